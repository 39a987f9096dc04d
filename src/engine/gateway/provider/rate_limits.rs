//! Reads rate-limit headers of a provider's answers: the length of a credential's cool-down, the remaining amounts of
//! its limits, and until when they are valid. Pure; `breaker` keeps one of each for every credential and model.

use crate::base::time::{Mono, Unix};
use crate::policy::window;
use std::time::Duration;

/// The minimum and the maximum cool-down: after a shorter one the provider would be asked too often, and a longer one
/// may be the provider's error.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
/// The first cool-down if the provider gives no length.
const REST_UNSAID: Duration = Duration::from_secs(5);
/// The first cool-down of a refused credential.
const REST_REFUSED: Duration = Duration::from_secs(60);
/// Time within which an answer may arrive that reports the remaining limits after a reset.
const ANSWER_SOON: Duration = Duration::from_secs(1);
/// Longest wait that is accepted from a provider, in seconds: a year.
const WAIT_MAX: f64 = 366.0 * 86_400.0;
/// Numbers that are not waits but times: seconds since 1970 from the first value on, milliseconds from the second on.
const MOMENTS: (f64, f64) = (1e9, 1e12);

/// Number of limits that a provider reports: requests, tokens, prompt tokens and completion tokens.
pub(crate) const ALLOWANCES: usize = 4;
pub(super) const COUNTED: [&str; ALLOWANCES] = ["requests", "tokens", "input-tokens", "output-tokens"];

/// Amount that a request needs of each limit, as far as known in advance.
pub(crate) type Needs = [u64; ALLOWANCES];

/// Rate-limit headers of an answer.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub(crate) struct RateLimitHeaders {
    /// Wait that the provider asks for.
    pub(crate) wait: Option<Duration>,
    /// Remaining amount of each limit, and the time for which it is valid.
    pub(crate) left: [Option<(u64, Duration)>; ALLOWANCES],
    /// True if a limit is exhausted, whether its reset is known or not.
    pub(crate) is_exhausted: bool,
}

/// Meaning of a rate-limit header, and the index of its limit.
enum RateLimitPart {
    Left(usize),
    Reset(usize),
}

impl RateLimitHeaders {
    /// Reads a whole head.
    pub(crate) fn read(head: &[u8], now: Unix) -> RateLimitHeaders {
        let (mut exact, mut wait) = (None, None);
        let (mut left, mut reset) = ([None; ALLOWANCES], [None; ALLOWANCES]);
        for line in head.split(|byte| *byte == b'\n').skip(1) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (Ok(name), Ok(value)) = (std::str::from_utf8(&line[..colon]), std::str::from_utf8(&line[colon + 1..]))
            else {
                continue;
            };
            let value = value.trim();
            match part_of(&name.to_ascii_lowercase()) {
                Some(RateLimitPart::Left(at)) => left[at] = value.parse::<f64>().ok().filter(|left| *left >= 0.0),
                Some(RateLimitPart::Reset(at)) => reset[at] = until_reset(value, now),
                None if name.eq_ignore_ascii_case("retry-after-ms") => {
                    exact = whole(value, 1000.0).or_else(|| seconds(value.parse::<f64>().ok()? / 1000.0));
                }
                None if name.eq_ignore_ascii_case("retry-after") => wait = retry_after(value, now),
                None => {}
            }
        }
        let pair = |at: usize| Some((left[at]? as u64, reset[at]?));
        let is_exhausted = left.contains(&Some(0.0));
        RateLimitHeaders { wait: exact.or(wait), left: [pair(0), pair(1), pair(2), pair(3)], is_exhausted }
    }

    /// True if the provider states a wait, or that a limit is exhausted.
    pub(crate) fn is_stated(&self) -> bool {
        self.is_exhausted || self.rest().is_some()
    }

    /// True if something is left, but not enough for a request with these needs.
    pub(crate) fn is_less_than(&self, needs: &Needs) -> bool {
        self.left.iter().zip(needs).any(|(left, need)| left.is_some_and(|(left, _)| left < *need))
    }

    /// Length of the cool-down, if known: the provider's wait, otherwise the latest reset of an exhausted limit.
    fn rest(&self) -> Option<Duration> {
        let spent = self.left.iter().flatten().filter(|(left, _)| *left == 0).map(|(_, reset)| *reset).max();
        self.wait.or(spent)
    }
}

/// Limit that a header is about, by its lower-case name: `x-ratelimit-remaining-tokens`,
/// `anthropic-ratelimit-tokens-remaining`.
fn part_of(name: &str) -> Option<RateLimitPart> {
    let (counted, is_reset) = match (name.strip_prefix("x-ratelimit-"), name.strip_prefix("anthropic-ratelimit-")) {
        (Some(rest), _) => match rest.strip_prefix("remaining-") {
            Some(counted) => (counted, false),
            None => (rest.strip_prefix("reset-")?, true),
        },
        (None, Some(rest)) => match rest.strip_suffix("-remaining") {
            Some(counted) => (counted, false),
            None => (rest.strip_suffix("-reset")?, true),
        },
        (None, None) => return None,
    };
    let at = COUNTED.iter().position(|known| *known == counted)?;
    Some(if is_reset { RateLimitPart::Reset(at) } else { RateLimitPart::Left(at) })
}

fn seconds(seconds: f64) -> Option<Duration> {
    (0.0..=WAIT_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

fn until(moment: Unix, now: Unix) -> Duration {
    Duration::from_millis(moment.0.saturating_sub(now.0))
}

/// Wait that `retry-after` asks for: a number of seconds, from some servers with fractions, or a date (RFC 9110 section
/// 10.2.3).
pub(crate) fn retry_after(value: &str, now: Unix) -> Option<Duration> {
    match window::parse_http_date(value) {
        Some(moment) => Some(until(moment, now)),
        None => whole(value, 1.0).or_else(|| seconds(value.parse().ok()?)),
    }
}

/// A whole number of seconds, or of fractions of a second. The standard sets no bound (RFC 9110 section 10.2.3): a
/// larger number than accepted counts as the longest accepted wait.
fn whole(value: &str, per_second: f64) -> Option<Duration> {
    let is_whole = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let count = value.parse::<f64>().ok().filter(|_| is_whole)?;
    Some(Duration::from_secs_f64((count / per_second).min(WAIT_MAX)))
}

/// Time until a limit is reset: seconds, a duration such as `6m0s`, or a date.
fn until_reset(value: &str, now: Unix) -> Option<Duration> {
    if let Ok(number) = value.parse::<f64>() {
        return match number {
            _ if number >= MOMENTS.1 => Some(until(Unix(number as u64), now)),
            _ if number >= MOMENTS.0 => Some(until(Unix((number * 1000.0) as u64), now)),
            _ => seconds(number),
        };
    }
    spelt(value).or_else(|| window::parse_moment(value).map(|moment| until(moment, now)))
}

/// Reads a duration in Go's notation: `1h2m3.5s`, `88ms`.
fn spelt(value: &str) -> Option<Duration> {
    let (mut rest, mut total) = (value, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "ns" => 0.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    seconds(total).filter(|_| !value.is_empty())
}

/// A cool-down, if any, and its end.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rest {
    /// End of the cool-down; set until the next success.
    until: Option<Mono>,
    pub(crate) begun: Mono,
    /// Consecutive cool-downs without a success and without a length from the provider.
    pub(crate) again: u32,
}

impl Rest {
    /// End of the cool-down; `None` if there is none or it has ended.
    pub(crate) fn ends(&self, now: Mono) -> Option<Mono> {
        self.until.filter(|until| *until > now)
    }

    /// True if the provider has given its length.
    pub(crate) fn is_stated(&self) -> bool {
        self.until.is_some() && self.again == 0
    }

    /// Begins a cool-down because the provider has no capacity for a request. It lasts as long as the provider asks,
    /// otherwise 5 s and longer each time, up to `most`. `trial`: the request was sent despite the cool-down, or
    /// because of it.
    pub(crate) fn begin(&mut self, said: &RateLimitHeaders, most: Duration, trial: bool, now: Mono) {
        match said.rest() {
            Some(wait) => {
                self.again = 0;
                self.extend(wait, now);
            }
            None => self.double(REST_UNSAID, most, trial, now),
        }
    }

    /// Begins a cool-down because the provider refuses the credential.
    pub(crate) fn refused(&mut self, trial: bool, now: Mono) {
        self.double(REST_REFUSED, REST.1, trial, now);
    }

    fn double(&mut self, first: Duration, most: Duration, trial: bool, now: Mono) {
        // Requests that were in flight when it began add no information.
        if self.ends(now).is_some() && !trial {
            return;
        }
        let wait = first.saturating_mul(1u32.checked_shl(self.again).unwrap_or(u32::MAX)).min(most);
        self.again = (self.again + 1).min(u32::BITS - 1);
        self.extend(wait, now);
    }

    fn extend(&mut self, wait: Duration, now: Mono) {
        if self.ends(now).is_none() {
            self.begun = now;
        }
        let until = now.after(wait.clamp(REST.0, REST.1));
        self.until = Some(self.until.map_or(until, |before| before.max(until)));
    }

    /// A request has succeeded. `trial`: it was sent during the cool-down. True if that ends a cool-down, or is the
    /// first success since one.
    pub(crate) fn ended(&mut self, trial: bool, now: Mono) -> bool {
        let ends = self.until.is_some() && (trial || self.ends(now).is_none());
        if ends {
            *self = Rest::default();
        }
        ends
    }
}

/// Remaining amount of one limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Left {
    left: u64,
    until: Mono,
    /// The largest amount that was reported before the last reported reset.
    full: u64,
}

impl Left {
    /// Takes the amount that a provider reports; `asked` is pending, and the provider may not have counted it.
    pub(crate) fn said(&mut self, left: u64, holds: Duration, asked: u64, now: Mono) {
        let before = if self.until > now { self.full } else { 0 };
        *self = Left { left: left.saturating_sub(asked), until: now.after(holds.min(REST.1)), full: left.max(before) };
    }

    /// End of the reported period; `None` if it is over.
    pub(crate) fn ends(&self, now: Mono) -> Option<Mono> {
        Some(self.until).filter(|until| *until > now)
    }

    /// Remaining amount and the end of its period; `None` if it is over.
    pub(crate) fn known(&self, now: Mono) -> Option<(u64, Mono)> {
        self.ends(now).map(|until| (self.left, until))
    }

    /// Subtracts the needs of a request that has been sent.
    pub(crate) fn take(&mut self, need: u64) {
        self.left = self.left.saturating_sub(need);
    }

    /// Time at which a request with this need may be sent; `None`: now. After the reset the full amount is assumed,
    /// until an answer reports the real one; `asked` is pending at the provider.
    pub(crate) fn suffices_from(&self, need: u64, asked: u64, now: Mono) -> Option<Mono> {
        if self.until > now {
            return (self.left < need).then_some(self.until);
        }
        let is_much = self.full > 0 && asked > 0 && asked.saturating_add(need) > self.full;
        is_much.then(|| now.after(ANSWER_SOON))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Unix = Unix(784_111_700_000);

    #[test]
    fn wait_is_a_number_of_seconds_or_a_date() {
        for (value, seconds) in [
            ("17", Some(17.0)),
            ("0", Some(0.0)),
            ("1.2", Some(1.2)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(77.0)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0.0)),
            ("", None),
            ("-1", None),
            ("soon", None),
            ("NaN", None),
            ("1e300", None),
            ("9999999999999999999999999999999999999999", Some(WAIT_MAX)),
            ("0000000000000000000000000000000000000017", Some(17.0)),
            ("31622401", Some(WAIT_MAX)),
        ] {
            assert_eq!(retry_after(value, NOW).map(|wait| wait.as_secs_f64()), seconds, "{value}");
        }
    }

    #[test]
    fn reset_is_in_seconds_a_go_duration_or_a_date() {
        for (value, millis) in [
            ("6m0s", Some(360_000)),
            ("1h0m30s", Some(3_630_000)),
            ("7.66s", Some(7_660)),
            ("88ms", Some(88)),
            ("1s", Some(1000)),
            ("60", Some(60_000)),
            ("0.5", Some(500)),
            ("1994-11-06T08:49:37Z", Some(77_000)),
            ("1994-11-06T08:00:00Z", Some(0)),
            ("1994-11-06T09:49:37+01:00", Some(77_000)),
            ("", None),
            ("soon", None),
            ("5 parsecs", None),
            ("m", None),
        ] {
            assert_eq!(until_reset(value, NOW).map(|wait| wait.as_millis()), millis, "{value}");
        }
        let later = Unix(1_800_000_000_000);
        assert_eq!(until_reset("1800000060", later), Some(Duration::from_secs(60)));
        assert_eq!(until_reset("1800000060500", later), Some(Duration::from_millis(60_500)));
    }

    fn read(lines: &str) -> RateLimitHeaders {
        RateLimitHeaders::read(format!("HTTP/1.1 429 x\r\n{lines}\r\n").as_bytes(), NOW)
    }

    #[test]
    fn every_form_of_header_is_read() {
        let said = read("Retry-After: 20\r\nretry-after-ms: 1500\r\n");
        assert_eq!(said.rest(), Some(Duration::from_millis(1500)), "the exact one first");
        assert_eq!(read("retry-after: 20\r\n").rest(), Some(Duration::from_secs(20)));
        let openai = read(
            "x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 6m0s\r\n\
             x-ratelimit-remaining-tokens: 12\r\nx-ratelimit-reset-tokens: 9m\r\n",
        );
        assert_eq!(openai.rest(), Some(Duration::from_secs(360)), "of those that say 0 is left");
        assert_eq!(openai.left[1], Some((12, Duration::from_secs(540))));
        let anthropic = read(
            "anthropic-ratelimit-input-tokens-remaining: 0\r\n\
             anthropic-ratelimit-input-tokens-reset: 1994-11-06T08:48:37Z\r\n\
             Anthropic-RateLimit-Output-Tokens-Remaining: 0\r\n\
             anthropic-ratelimit-output-tokens-reset: 1994-11-06T08:49:37Z\r\n\
             anthropic-ratelimit-requests-remaining: 5\r\nanthropic-ratelimit-requests-reset: 1994-11-06T09:49:37Z\r\n\
             anthropic-ratelimit-requests-limit: 50\r\n",
        );
        assert_eq!(anthropic.rest(), Some(Duration::from_secs(77)), "the latest");
        assert_eq!((anthropic.left[0].unwrap().0, anthropic.left[1]), (5, None));
        let without =
            read("x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-tokens: 5s\r\nretry-after: soon\r\n");
        assert_eq!((without.rest(), without.left), (None, [None; ALLOWANCES]));
    }

    #[test]
    fn cool_down_without_a_length_doubles() {
        let (second, most) = (Duration::from_secs(1), Duration::from_secs(30));
        let (mut rest, nothing) = (Rest::default(), RateLimitHeaders::default());
        let mut now = Mono(0);
        for expected in [5, 10, 20, 30, 30] {
            rest.begin(&nothing, most, true, now);
            assert_eq!(rest.ends(now), Some(now.after(second * expected)), "{expected}");
            rest.begin(&nothing, most, false, now);
            assert_eq!(rest.ends(now), Some(now.after(second * expected)), "one that was on its way");
            now = now.after(second * expected);
            assert_eq!(rest.ends(now), None);
        }
        assert!(rest.ended(false, now) && !rest.ended(false, now));
        rest.begin(&nothing, most, false, now);
        assert_eq!(rest.ends(now), Some(now.after(second * 5)), "a success forgives");
        assert!(!rest.ended(false, now), "what was sent before it began says nothing");
        assert!(rest.ended(true, now) && rest.ends(now).is_none());
        for (asked, kept) in [(0, 1), (17, 17), (86_400, 3600)] {
            let mut rest = Rest::default();
            rest.begin(
                &RateLimitHeaders { wait: Some(second * asked), ..RateLimitHeaders::default() },
                most,
                false,
                now,
            );
            assert_eq!(rest.ends(now), Some(now.after(second * kept)));
        }
        let mut rest = Rest::default();
        rest.refused(false, now);
        assert_eq!(rest.ends(now), Some(now.after(second * 60)));
        rest.refused(true, now);
        assert_eq!(rest.ends(now), Some(now.after(second * 120)));
    }

    #[test]
    fn remaining_amount_excludes_pending_requests() {
        let (now, minute) = (Mono(0), Duration::from_secs(60));
        let mut left = Left::default();
        left.said(3, minute, 1, now);
        assert_eq!(left.suffices_from(2, 1, now), None);
        assert_eq!(left.suffices_from(3, 1, now), Some(now.after(minute)));
        left.take(2);
        assert_eq!(left.suffices_from(1, 3, now), Some(now.after(minute)));
        assert_eq!(Left::default().suffices_from(u64::MAX, u64::MAX, now), None, "nothing was said");
    }

    #[test]
    fn full_amount_is_assumed_after_a_reset() {
        let (minute, mut left) = (Duration::from_secs(60), Left::default());
        left.said(59, minute, 0, Mono(0));
        left.said(40, minute, 0, Mono(1));
        let later = Mono(1).after(minute);
        assert_eq!((left.suffices_from(1, 58, later), left.ends(later)), (None, None));
        assert_eq!(left.suffices_from(1, 59, later), Some(later.after(ANSWER_SOON)));
        assert_eq!(left.suffices_from(100, 0, later), None, "one is sent in any case");
        left.said(9, minute, 5, later);
        let again = later.after(minute);
        assert_eq!(
            (left.suffices_from(5, 0, later), left.suffices_from(1, 9, again)),
            (Some(again), Some(again.after(ANSWER_SOON)))
        );
        left.said(0, minute, 0, again);
        assert_eq!(left.suffices_from(1, 99, again.after(minute)), None, "what it is when it is full is not known");
    }
}
