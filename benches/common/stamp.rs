//! A time as a word of ten digits, which can replace any text of ten bytes: microseconds of the wall clock that two
//! processes of one machine share. It restarts every quarter of an hour, longer than any delay.
#![allow(dead_code)] // one side writes it, the other reads it

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Placeholder in an event before it gets its stamp; no other text of an event looks like it.
pub const BLANK: &[u8] = b"2222222222";
const FIRST: u64 = 1_000_000_000;

fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % FIRST
}

/// The present moment.
pub fn now() -> String {
    (FIRST + micros()).to_string()
}

/// Time since the stamp that follows `before` in `data` was made; `None` if there is no complete stamp.
pub fn age(data: &[u8], before: &[u8]) -> Option<Duration> {
    let at = data.windows(before.len()).position(|window| window == before)? + before.len();
    let digits = std::str::from_utf8(data.get(at..at + BLANK.len())?).ok()?;
    let stamp: u64 = digits.parse().ok()?;
    Some(Duration::from_micros((FIRST + micros()).wrapping_sub(stamp.checked_sub(FIRST)?) % FIRST))
}
