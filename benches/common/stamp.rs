//! A time stamp of ten digits, which can replace any text of ten bytes: microseconds of the wall clock that two
//! processes on one machine share. It restarts every quarter of an hour, longer than any delay.
#![allow(dead_code)] // one process writes it, the other one reads it

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Placeholder of a stamp in an event; no other text of an event equals it.
pub const BLANK: &[u8] = b"2222222222";
const FIRST: u64 = 1_000_000_000;

fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % FIRST
}

/// Returns a stamp of the present time.
pub fn now() -> String {
    (FIRST + micros()).to_string()
}

/// Returns the age of the stamp that follows `before` in `data`; `None` if there is no complete stamp.
pub fn age(data: &[u8], before: &[u8]) -> Option<Duration> {
    let at = data.windows(before.len()).position(|window| window == before)? + before.len();
    let digits = std::str::from_utf8(data.get(at..at + BLANK.len())?).ok()?;
    let stamp: u64 = digits.parse().ok()?;
    Some(Duration::from_micros((FIRST + micros()).wrapping_sub(stamp.checked_sub(FIRST)?) % FIRST))
}
