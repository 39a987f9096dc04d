//! Aligned windows, calendar periods and the text forms of a moment. All of it is UTC and arithmetic on [`Unix`]
//! values; no clock is read here. Called by `meter`, `gateway` (headers, quota) and `cli`.

use crate::base::time::Unix;
use crate::base::words;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

const SECOND_MS: u64 = 1000;
/// Milliseconds of a UTC day; Unix time has no leap seconds.
pub const DAY_MS: u64 = 86_400 * SECOND_MS;
/// 9999-12-31T23:59:59Z, the last moment that has a date; later ones count as this one.
const LAST_MS: u64 = 253_402_300_799 * SECOND_MS;
/// Day 0.
const EPOCH: Date = Date::constant(1970, 1, 1);

words! {
    /// The calendar period of an allowance, UTC.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Hash)]
    pub enum Period {
        /// From the first of a month to the first of the next.
        #[default]
        Month = "month",
        /// From Monday to Monday (ISO 8601).
        Week = "week",
        /// From midnight to midnight.
        Day = "day",
        /// From the first of January, April, July or October to the first of the next of these.
        Quarter = "quarter",
    }
}

impl Period {
    /// Period that contains `at`: its first moment and the first moment of the next.
    pub fn bounds(self, at: Unix) -> (Unix, Unix) {
        let day = at.0.min(LAST_MS) / DAY_MS;
        let of = |day: u64| Unix(day * DAY_MS);
        match self {
            Period::Day => (of(day), of(day + 1)),
            Period::Week => {
                // Day 0 was a Thursday; the week before it began three days earlier and is cut off at the epoch.
                let monday = (day + 3) / 7 * 7;
                (of(monday.saturating_sub(3)), of(monday + 4))
            }
            Period::Month => {
                let date = date_of(at);
                let first = date.first_of_month();
                let next = day_number(first) + u64::try_from(first.days_in_month()).unwrap_or(31);
                (of(day_number(first)), of(next))
            }
            Period::Quarter => {
                let date = date_of(at);
                let month = |number: i8| Date::new(date.year(), number, 1).map_or(0, day_number);
                let first = (date.month() - 1) / 3 * 3 + 1;
                let next = if first == 10 { month(12) + 31 } else { month(first + 3) };
                (of(month(first)), of(next))
            }
        }
    }
}

/// Fixed window that contains `at`. It begins at a multiple of `length` since the epoch, so that every host agrees. A
/// `length` below one millisecond counts as one.
pub fn window(at: Unix, length: Duration) -> (Unix, Unix) {
    let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1);
    let start = at.0 - at.0 % length;
    (Unix(start), Unix(start.saturating_add(length)))
}

/// True if [`window`] would still return the same bounds. This check needs no division.
#[inline]
pub fn is_within((start, end): (Unix, Unix), at: Unix, length: Duration) -> bool {
    let length = length.as_secs().wrapping_mul(SECOND_MS).wrapping_add(u64::from(length.subsec_millis()));
    start <= at && at < end && end.0 - start.0 == length
}

/// Appends `at` as `2026-11-20T09:00:00Z`, whole seconds, rounded down. Every answer has one, so it is formatted by
/// hand.
#[inline]
pub fn write_iso(at: Unix, out: &mut Vec<u8>) {
    let secs = at.0.min(LAST_MS) / SECOND_MS % 86_400;
    write_date(at, out);
    let [a, b] = two_digits((secs / 3600) as u8);
    let [c, d] = two_digits((secs / 60 % 60) as u8);
    let [e, f] = two_digits((secs % 60) as u8);
    out.extend_from_slice(&[b'T', a, b, b':', c, d, b':', e, f, b'Z']);
}

/// The value of a `date` header: `Fri, 20 Nov 2026 09:00:00 GMT` (RFC 9110 section 5.6.7), appended to `out`.
#[inline]
pub fn write_http_date(at: Unix, out: &mut Vec<u8>) {
    let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_millis(at.0.min(LAST_MS)));
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{date}");
}

/// Appends `at` as `2026-11-20`.
#[inline]
pub fn write_date(at: Unix, out: &mut Vec<u8>) {
    let date = date_of(at);
    let year = date.year().unsigned_abs();
    let [a, b] = two_digits((year / 100) as u8);
    let [c, d] = two_digits((year % 100) as u8);
    let [e, f] = two_digits(date.month().unsigned_abs());
    let [g, h] = two_digits(date.day().unsigned_abs());
    out.extend_from_slice(&[a, b, c, d, b'-', e, f, b'-', g, h]);
}

/// The digits of a number below 100.
#[inline]
fn two_digits(number: u8) -> [u8; 2] {
    [b'0' + number / 10, b'0' + number % 10]
}

/// [`write_iso`] as a `String`, for places where speed does not matter.
#[inline]
pub fn iso(at: Unix) -> String {
    let mut out = Vec::with_capacity(20);
    write_iso(at, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// [`write_date`] as a `String`, for places where speed does not matter.
pub fn date(at: Unix) -> String {
    let mut out = Vec::with_capacity(10);
    write_date(at, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Reads `YYYY-MM-DD`, meaning its first moment, or an ISO 8601 date-time with offset. `None` for anything else and
/// for moments before 1970.
pub fn parse_moment(text: &str) -> Option<Unix> {
    let mut rest = MomentReader(text.as_bytes());
    let date = rest.date()?;
    let midnight = date.duration_since(EPOCH).as_secs();
    let millis = match text.len() {
        10 if rest.0.is_empty() => midnight * 1000,
        _ => {
            rest.take(b"Tt ")?;
            let time = rest.time()?;
            let offset = match rest.take(b"Zz+-")? {
                b'+' => rest.time()?,
                b'-' => -rest.time()?,
                _ => 0,
            };
            midnight * 1000 + time - offset
        }
    };
    // The name of a zone in brackets (RFC 9557) adds nothing to the offset.
    let is_whole = rest.0.is_empty() || (rest.0.starts_with(b"[") && rest.0.ends_with(b"]"));
    u64::try_from(millis).ok().filter(|_| is_whole).map(Unix)
}

/// Unread part of a moment. The parser of the crate `jiff` would add 40 kB of code, and the texts of its errors.
struct MomentReader<'a>(&'a [u8]);

impl MomentReader<'_> {
    /// Takes one character, if it is one of `any`.
    fn take(&mut self, any: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first().filter(|(first, _)| any.contains(first))?;
        self.0 = rest;
        Some(*first)
    }

    fn digit(&mut self) -> Option<i16> {
        self.take(b"0123456789").map(|digit| i16::from(digit - b'0'))
    }

    /// Takes a number of two digits.
    fn two(&mut self) -> Option<i16> {
        Some(10 * self.digit()? + self.digit()?)
    }

    /// Takes a date, with hyphens or without.
    fn date(&mut self) -> Option<Date> {
        let year = 100 * self.two()? + self.two()?;
        let hyphen = self.take(b"-");
        let month = self.two()?;
        if hyphen.is_some() {
            self.take(b"-")?;
        }
        Date::new(year, month as i8, self.two()? as i8).ok()
    }

    /// Takes hours, minutes and seconds, with colons or without, of which the last may be missing; in milliseconds. A
    /// leap second counts as the one before it.
    fn time(&mut self) -> Option<i64> {
        let hours = self.two().filter(|hours| *hours < 24)?;
        let has_colons = self.0.first() == Some(&b':');
        let (mut parts, mut millis) = ([0; 2], 0);
        for (at, part) in parts.iter_mut().enumerate() {
            let is_next = if has_colons { b':'..=b':' } else { b'0'..=b'9' };
            if !self.0.first().is_some_and(|first| is_next.contains(first)) {
                break;
            }
            self.take(b":");
            *part = self.two()?;
            millis = if at == 1 { self.millis()? } else { 0 };
        }
        let [minutes, seconds] = parts;
        let all = i64::from(hours) * 3600 + i64::from(minutes) * 60 + i64::from(seconds.min(59));
        (minutes < 60 && seconds <= 60).then_some(all * 1000 + millis)
    }

    /// Takes a fraction of a second, if there is one; in milliseconds, rounded down.
    fn millis(&mut self) -> Option<i64> {
        if self.take(b".,").is_none() {
            return Some(0);
        }
        let mut digits = [self.digit()?, 0, 0];
        for digit in &mut digits[1..] {
            *digit = self.digit().unwrap_or(0);
        }
        while self.digit().is_some() {}
        let [tenths, hundredths, thousandths] = digits.map(i64::from);
        Some(tenths * 100 + hundredths * 10 + thousandths)
    }
}

/// Reads a date of HTTP in any of its three forms (RFC 9110 section 5.6.7): the one that [`write_http_date`] writes,
/// that of RFC 850 and that of C's `asctime`. `None` for anything else.
pub fn parse_http_date(text: &str) -> Option<Unix> {
    let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok().map(Unix)
}

/// The UTC date of `at`.
#[inline]
fn date_of(at: Unix) -> Date {
    let midnight = i64::try_from(at.0.min(LAST_MS) / DAY_MS).unwrap_or(0) * 86_400;
    // Only the last day of the last year begins after the last `Timestamp`.
    Timestamp::from_second(midnight).map_or(Date::MAX, |midnight| Offset::UTC.to_datetime(midnight).date())
}

/// Days from the epoch to `date`, 0 for earlier dates.
fn day_number(date: Date) -> u64 {
    u64::try_from(date.duration_since(EPOCH).as_hours() / 24).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Unix {
        parse_moment(text).unwrap()
    }

    fn bounds(period: Period, moment: &str) -> (String, String) {
        let (start, renews) = period.bounds(at(moment));
        (iso(start), iso(renews))
    }

    fn midnights(start: &str, renews: &str) -> (String, String) {
        (format!("{start}T00:00:00Z"), format!("{renews}T00:00:00Z"))
    }

    #[test]
    fn a_month_runs_from_its_first_day_to_the_first_day_of_the_next() {
        let month = |moment| bounds(Period::Month, moment);
        assert_eq!(month("2026-11-20T09:13:07Z"), midnights("2026-11-01", "2026-12-01"));
        assert_eq!(month("2026-12-31T23:59:59Z"), midnights("2026-12-01", "2027-01-01"));
        assert_eq!(month("2028-02-29T12:00:00Z"), midnights("2028-02-01", "2028-03-01"));
        assert_eq!(month("2026-02-01T00:00:00Z"), midnights("2026-02-01", "2026-03-01"));
    }

    #[test]
    fn a_week_begins_on_monday() {
        // 2026-11-20 is a Friday.
        let week = |moment| bounds(Period::Week, moment);
        assert_eq!(week("2026-11-20T09:00:00Z"), midnights("2026-11-16", "2026-11-23"));
        assert_eq!(week("2026-11-22T23:59:59Z"), midnights("2026-11-16", "2026-11-23"));
        assert_eq!(week("2026-11-23T00:00:00Z"), midnights("2026-11-23", "2026-11-30"));
        assert_eq!(week("1970-01-01T00:00:00Z"), midnights("1970-01-01", "1970-01-05"));
    }

    #[test]
    fn a_day_runs_from_midnight_to_midnight() {
        assert_eq!(bounds(Period::Day, "2026-11-20T23:59:59Z"), midnights("2026-11-20", "2026-11-21"));
        assert_eq!(bounds(Period::Day, "2026-11-21T00:00:00Z"), midnights("2026-11-21", "2026-11-22"));
    }

    #[test]
    fn every_day_of_sixty_years_is_in_exactly_one_period_of_each_kind() {
        for period in [Period::Month, Period::Week, Period::Day] {
            let (mut start, mut renews) = period.bounds(Unix(0));
            for day in 0..60 * 365 {
                let at = Unix(day * DAY_MS + 12_345);
                if at >= renews {
                    let next = period.bounds(at);
                    assert_eq!(next.0, renews, "{period:?} has a gap before {}", iso(at));
                    (start, renews) = next;
                }
                assert_eq!(period.bounds(at), (start, renews));
            }
        }
    }

    #[test]
    fn windows_begin_at_multiples_of_their_length_since_the_epoch() {
        let minute = Duration::from_secs(60);
        let moment = at("2026-11-20T09:13:07Z");
        let (start, end) = window(moment, minute);
        assert_eq!((iso(start).as_str(), iso(end).as_str()), ("2026-11-20T09:13:00Z", "2026-11-20T09:14:00Z"));
        assert_eq!(window(start, minute), (start, end));
        assert_eq!(window(Unix(end.0 - 1), minute), (start, end));
        assert_eq!(window(end, minute).0, end);
        for seconds in [1, 7, 45, 3600, 100_000] {
            let (start, end) = window(moment, Duration::from_secs(seconds));
            assert_eq!((start.0 % (seconds * 1000), end.0 - start.0), (0, seconds * 1000));
        }
    }

    #[test]
    fn moments_are_written_in_whole_seconds_rounded_down() {
        assert_eq!(iso(Unix(at("2026-11-20T09:00:00Z").0 + 999)), "2026-11-20T09:00:00Z");
        assert_eq!(iso(Unix(0)), "1970-01-01T00:00:00Z");
        assert_eq!(date(at("2026-03-04T23:00:00Z")), "2026-03-04");
    }

    #[test]
    fn moments_are_read_as_dates_or_date_times() {
        assert_eq!(parse_moment("2026-11-20"), parse_moment("2026-11-20T00:00:00Z"));
        assert_eq!(parse_moment("2026-11-20T01:00:00+01:00"), parse_moment("2026-11-20"));
        assert_eq!(parse_moment("1970-01-01"), Some(Unix(0)));
        assert_eq!(parse_moment("9999-12-31").map(iso).as_deref(), Some("9999-12-31T00:00:00Z"));
        for wrong in ["", "2026-11-31", "20.11.2026", "1969-12-31", "2026-11-20T00:00:00", "yesterday"] {
            assert_eq!(parse_moment(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn date_times_are_read_as_jiff_reads_them() {
        let by_jiff = |text: &str| {
            let moment: jiff::Timestamp = text.parse().ok()?;
            u64::try_from(moment.as_millisecond()).ok().map(Unix)
        };
        let dates = ["2026-11-20", "20261120", "2028-02-29", "2027-02-29", "2026-1120", "2026-00-10", "2026-13-01"];
        let times = ["09:13:07", "091307", "09:13", "0913", "09", "23:59:60", "24:00", "09:60", "9:13", "09:1307", ""];
        let fractions = ["", ".5", ",25", ".123456789", "."];
        let offsets = ["Z", "z", "+01:00", "-0530", "+01", "+00:00", "-00:60", "+1", "", "[Europe/Berlin]"];
        let mut texts: Vec<String> = dates.map(str::to_owned).into();
        for parts in [&["T", "t", " ", "_"][..], &times, &fractions, &offsets] {
            texts = texts.iter().flat_map(|text| parts.iter().map(move |part| format!("{text}{part}"))).collect();
        }
        for text in &texts {
            assert_eq!(parse_moment(text), by_jiff(text), "{text}");
        }
        let read = texts.iter().filter(|text| parse_moment(text).is_some()).count();
        assert!((500..texts.len() - 500).contains(&read), "{read} of {}", texts.len());
        let zoned = "2026-11-20T09:13:07+01:00[Europe/Berlin]";
        assert_eq!(parse_moment(zoned), by_jiff(zoned));
    }

    #[test]
    fn http_dates_are_read_in_all_three_forms() {
        let asked = at("1994-11-06T08:49:37Z");
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse_http_date(text), Some(asked), "{text}");
        }
        for moment in ["1994-11-06T08:49:37Z", "2026-02-28T00:00:00Z", "2027-12-31T23:59:59Z"] {
            let mut text = Vec::new();
            write_http_date(at(moment), &mut text);
            assert_eq!(parse_http_date(std::str::from_utf8(&text).unwrap()), Some(at(moment)));
        }
        for wrong in ["", "17", "Sun, 06 Nov 1994 08:49:37 CET", "Sun Nov 31 08:49:37 1994", "a 31 Nov 1994 8 GMT"] {
            assert_eq!(parse_http_date(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn absurd_clock_times_are_written_as_the_last_date_and_break_nothing() {
        assert_eq!(iso(Unix(u64::MAX)), "9999-12-31T23:59:59Z");
        let mut text = Vec::new();
        write_http_date(Unix(u64::MAX), &mut text);
        assert_eq!(text, b"Fri, 31 Dec 9999 23:59:59 GMT");
        for period in [Period::Month, Period::Week, Period::Day] {
            let (start, renews) = period.bounds(Unix(u64::MAX));
            assert!(start < renews);
        }
        let (start, end) = window(Unix(u64::MAX), Duration::from_secs(60));
        assert!(start < end);
    }
}
