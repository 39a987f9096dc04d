//! Flight recorder: the last requests as their log lines, totals of every minute of the last hour, and times of targets
//! to their first byte. Its memory is bounded, and used only if there is an admin listener. No content, as in the log.
//! Called at the end of every exchange and by readers.

use crate::base::order;
use crate::base::time::Unix;
use std::collections::VecDeque;

/// Maximum number of requests kept.
pub(crate) const REQUESTS_MAX: usize = 1000;
/// Maximum bytes of their lines: before the first reader, and after.
const BYTES: [usize; 2] = [40 << 10, 1 << 20];
/// Maximum bytes of a line; a longer line is not kept.
const LINE_MAX: usize = 8 << 10;
/// Number of minutes that are summed up.
const MINUTES: usize = 60;
/// Number of times to the first byte kept.
const FIRSTS: usize = 1024;
/// Seconds for which these times count.
const FIRSTS_AGE: u64 = 300;
const MINUTE_MS: u64 = 60_000;

/// Totals of one minute.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Minute {
    /// Minutes since 1970.
    pub(crate) minute: u64,
    pub(crate) requests: u64,
    /// Requests that were answered with a status of 400 or more, or whose client left.
    pub(crate) errors: u64,
    pub(crate) tokens: u64,
    pub(crate) cost_nano: u64,
}

/// Data counted of a request besides its line.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) is_error: bool,
    pub(crate) tokens: u64,
    pub(crate) cost_nano: u64,
    /// Number of the target, and the microseconds to its first byte.
    pub(crate) first: Option<(u64, u64)>,
}

#[derive(Copy, Clone, Debug, Default)]
struct First {
    target: u32,
    micros: u32,
    second: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Recorder {
    lines: Box<[u8]>,
    /// Position of the next line.
    at: usize,
    /// Positions and lengths of lines, the oldest first.
    places: VecDeque<(u32, u32)>,
    /// Number of lines so far.
    count: u64,
    minutes: [Minute; MINUTES],
    firsts: Box<[First]>,
    next_first: usize,
    since: Unix,
}

/// Index of the sums of a minute.
fn place_of(minute: u64) -> usize {
    usize::try_from(minute % MINUTES as u64).unwrap_or(0)
}

impl Recorder {
    /// Empty recorder, which records from now on.
    pub(crate) fn new(now: Unix) -> Recorder {
        Recorder {
            lines: vec![0; BYTES[0]].into(),
            at: 0,
            places: VecDeque::new(),
            count: 0,
            minutes: [Minute::default(); MINUTES],
            firsts: vec![First::default(); FIRSTS].into(),
            next_first: 0,
            since: now,
        }
    }

    /// Returns the recorder; creates it for the first reader.
    pub(crate) fn of(recorder: &mut Option<Box<Recorder>>, now: Unix) -> &mut Recorder {
        recorder.get_or_insert_with(|| Box::new(Recorder::new(now)))
    }

    /// Start of the recording.
    pub(crate) fn since(&self) -> Unix {
        self.since
    }

    /// Records a request that has ended: `line` is its log line.
    #[cold]
    pub(crate) fn push(&mut self, line: &[u8], passed: &Passed, now: Unix) {
        // Without its line feed.
        self.keep(line.split_last().map_or(line, |(_, line)| line));
        self.count += 1;
        let minute = now.0 / MINUTE_MS;
        let sum = &mut self.minutes[place_of(minute)];
        if sum.minute != minute {
            *sum = Minute { minute, ..Minute::default() };
        }
        sum.requests += 1;
        sum.errors += u64::from(passed.is_error);
        sum.tokens = sum.tokens.saturating_add(passed.tokens);
        sum.cost_nano = sum.cost_nano.saturating_add(passed.cost_nano);
        if let Some((target, micros)) = passed.first {
            let (target, micros) = (target as u32, u32::try_from(micros).unwrap_or(u32::MAX));
            self.firsts[self.next_first] = First { target, micros, second: now.secs() as u32 };
            self.next_first = (self.next_first + 1) % FIRSTS;
        }
    }

    #[inline]
    fn keep(&mut self, line: &[u8]) {
        // A line that is not kept is replaced by an empty one, so that lines can be counted.
        let line = if line.len() > LINE_MAX { b"" } else { line };
        if self.places.len() == REQUESTS_MAX {
            self.places.pop_front();
        }
        if self.at + line.len() > self.lines.len() {
            while self.places.front().is_some_and(|(start, _)| *start as usize >= self.at) {
                self.places.pop_front();
            }
            self.at = 0;
        }
        let end = self.at + line.len();
        while self.places.front().is_some_and(|(start, _)| (self.at..end).contains(&(*start as usize))) {
            self.places.pop_front();
        }
        self.lines[self.at..end].copy_from_slice(line);
        self.places.push_back((self.at as u32, line.len() as u32));
        self.at = end;
    }

    /// Prepares for readers: from now on there is room for the maximum number of requests.
    pub(crate) fn open(&mut self) {
        if self.lines.len() == BYTES[1] {
            return;
        }
        let lines = std::mem::replace(&mut self.lines, vec![0; BYTES[1]].into());
        self.at = 0;
        for (start, length) in std::mem::take(&mut self.places) {
            self.keep(&lines[start as usize..(start + length) as usize]);
        }
    }

    /// Number of lines so far, including dropped ones.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the line with this number, counted from 0; `None` if it is not kept.
    pub(crate) fn line(&self, number: u64) -> Option<&[u8]> {
        let first = self.count - self.places.len() as u64;
        let (start, length) = self.places.get(usize::try_from(number.checked_sub(first)?).ok()?)?;
        Some(&self.lines[*start as usize..(start + length) as usize]).filter(|line| !line.is_empty())
    }

    /// Number of the first line kept.
    pub(crate) fn first(&self) -> u64 {
        self.count - self.places.len() as u64
    }

    /// Returns the minutes of the last hour that had any requests, the oldest first.
    pub(crate) fn minutes(&self, now: Unix) -> impl Iterator<Item = &Minute> {
        let last = now.0 / MINUTE_MS;
        let hour = last.saturating_sub(MINUTES as u64 - 1)..=last;
        let of = |minute: u64| &self.minutes[place_of(minute)];
        hour.map(move |minute| (minute, of(minute))).filter(|(minute, sum)| sum.minute == *minute).map(|(_, sum)| sum)
    }

    /// Returns median and 95th percentile of the microseconds to a target's first bytes in the last five minutes.
    pub(crate) fn first_bytes(&self, target: u64, now: Unix) -> Option<(u32, u32)> {
        let since = now.secs().saturating_sub(FIRSTS_AGE) as u32;
        let own = self.firsts.iter().filter(|one| one.target == target as u32 && one.second > since);
        let mut micros: Vec<u32> = own.map(|one| one.micros).collect();
        order::by_key(&mut micros, |micros| (u64::from(*micros), 0));
        let at = |share: usize| micros.get((micros.len() * share).div_ceil(100).saturating_sub(1)).copied();
        at(50).zip(at(95))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u64, length: usize) -> Vec<u8> {
        format!("{number:0length$}\n").into_bytes()
    }

    fn kept(recorder: &Recorder) -> Vec<u64> {
        let numbers = recorder.first()..recorder.count();
        let kept: Vec<u64> = numbers.clone().filter(|number| recorder.line(*number).is_some()).collect();
        for number in &kept {
            let text = std::str::from_utf8(recorder.line(*number).unwrap()).unwrap();
            assert_eq!(text.parse::<u64>().unwrap(), *number, "{text}");
        }
        assert_eq!(recorder.line(recorder.count()), None);
        kept
    }

    #[test]
    fn the_last_lines_are_kept_whatever_their_lengths_within_the_bytes() {
        let mut recorder = Recorder::new(Unix(0));
        for number in 0..5000u64 {
            recorder.push(&line(number, 20 + (number * 7919 % 997) as usize), &Passed::default(), Unix(0));
            let kept = kept(&recorder);
            assert_eq!(kept.last(), Some(&number));
            assert!(kept.windows(2).all(|two| two[0] + 1 == two[1]), "without gaps");
            let bytes: usize = kept.iter().map(|number| recorder.line(*number).unwrap().len()).sum();
            assert!(bytes <= BYTES[0] && (number < 200 || bytes > BYTES[0] - 2 * 1024), "{bytes}");
        }
        recorder.open();
        let before = kept(&recorder);
        for number in 5000..9000u64 {
            recorder.push(&line(number, 20 + (number * 7919 % 997) as usize), &Passed::default(), Unix(0));
        }
        assert!(before.len() < 200);
        assert_eq!(kept(&recorder), (8000..9000).collect::<Vec<u64>>());
    }

    #[test]
    fn what_is_there_before_anybody_looks_is_small() {
        let mut recorder = Recorder::new(Unix(0));
        // The shortest possible lines.
        (0..3000).for_each(|number| recorder.push(&line(number, 160), &Passed::default(), Unix(0)));
        let places = recorder.places.capacity() * size_of::<(u32, u32)>();
        let all = recorder.lines.len() + size_of_val(&*recorder.firsts) + size_of::<Recorder>() + places;
        assert!(all <= 64 << 10, "{all}");
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_and_counted() {
        let mut recorder = Recorder::new(Unix(0));
        recorder.push(&line(0, 10), &Passed::default(), Unix(0));
        // One more byte is its line feed.
        recorder.push(&[b'x'; LINE_MAX + 2], &Passed::default(), Unix(0));
        recorder.push(&line(2, 10), &Passed::default(), Unix(0));
        assert_eq!(kept(&recorder), [0, 2]);
    }

    #[test]
    fn minutes_are_those_of_the_last_hour() {
        let mut recorder = Recorder::new(Unix(0));
        let at = |minute: u64| Unix(minute * MINUTE_MS + 59_999);
        let passed = Passed { is_error: true, tokens: 5, cost_nano: 7, first: None };
        for minute in [100, 101, 101, 159, 161] {
            recorder.push(b"{}\n", &passed, at(minute));
        }
        let seen: Vec<(u64, u64, u64)> =
            recorder.minutes(at(161)).map(|sum| (sum.minute, sum.requests, sum.tokens)).collect();
        assert_eq!(seen, [(159, 1, 5), (161, 1, 5)], "101 was before the hour, and its place is another's");
        assert_eq!(recorder.minutes(at(400)).count(), 0);
    }

    #[test]
    fn first_bytes_are_of_one_target_and_the_last_minutes() {
        let mut recorder = Recorder::new(Unix(0));
        let push = |recorder: &mut Recorder, target, micros, second: u64| {
            let passed = Passed { first: Some((target, micros)), ..Passed::default() };
            recorder.push(b"{}\n", &passed, Unix(second * 1000));
        };
        push(&mut recorder, 1, 9_000_000, 100);
        (1..=100).for_each(|micros| push(&mut recorder, 1, micros, 1000));
        push(&mut recorder, 2, 7, 1000);
        assert_eq!(recorder.first_bytes(1, Unix(1_000_000)), Some((50, 95)));
        assert_eq!(recorder.first_bytes(2, Unix(1_000_000)), Some((7, 7)));
        assert_eq!(recorder.first_bytes(2, Unix(1_301_000)), None);
    }
}
