//! Removes secrets from texts: from a provider's message that a client gets, and from the bodies of captured requests.
//! A secret is found in any encoding, in pieces, or shortened; of the gateway's own keys, the ids stay. Pure.

use crate::base::base64;
use crate::base::digest::hex;
use crate::base::hash::mix_bytes;
use crate::policy::keys::find_key;
use crate::wire::Span;
use views::MappedText;

mod views;

/// Shorter parts of secrets are words like `Bearer`, or too common to be removed.
pub(crate) const PART_MIN: usize = 8;
/// This many consecutive characters of a secret reveal it, at any position, and as many of its base64. A shorter secret
/// is removed as a whole. Words that share fewer with it are common, such as a prefix of all keys of a service.
pub(crate) const RUN_MIN: usize = 12;
/// This many characters at the beginning or the end of a secret, next to stars or dots, are a shortened form of it.
pub(crate) const EDGE_MIN: usize = 3;
/// This many characters of a secret at the end of a text that was cut may be its beginning.
const CUT_EDGE_MIN: usize = 4;
/// Bytes in which fewer than `RUN_MIN` characters of a secret, or the beginning of a key, may be written.
pub(crate) const CUT_MAX: usize = 1024;
/// Bytes of a text that are searched at once. What is made of them for the search is some thirty times as large.
const PIECE: usize = 64 * 1024;
/// Bits of the table of a secret's runs, a power of two.
const MARKS: usize = 1 << 16;
/// Replacement for a removed part.
pub const STARS: &str = "***";
/// Stars or dots that mark an omission.
const GAPS: [&str; 3] = ["*", "\u{2026}", ".."];

/// Removes some secrets, and all keys of the gateway.
pub struct Redactor<'a> {
    /// Beginning of the gateway's keys.
    prefix: &'a str,
    /// The secrets in small letters.
    parts: Vec<Vec<u8>>,
    /// Runs of the secrets in small letters, and of their hexadecimal digits.
    runs: Vec<SecretRuns>,
    /// Runs of the secrets in base64.
    base64: Vec<SecretRuns>,
    /// Runs of [`EDGE_MIN`].
    edges: SecretRuns,
}

impl<'a> Redactor<'a> {
    /// A redactor of `secrets`. `prefix`: beginning of the gateway's keys.
    pub fn new<'s>(secrets: &mut dyn Iterator<Item = &'s str>, prefix: &'a str) -> Redactor<'a> {
        // The id of a key is no secret.
        let secret = |part: &'s str| &part[find_key(part, prefix).map_or(0, |(public, _)| public)..];
        let words: Vec<&str> = secrets.map(secret).filter(|part| part.len() >= PART_MIN).collect();
        let parts: Vec<Vec<u8>> = words.iter().map(|word| word.to_ascii_lowercase().into_bytes()).collect();
        let digits: Vec<Vec<u8>> = words.iter().map(|word| hex(word.as_bytes()).into_bytes()).collect();
        let encoded: Vec<Vec<u8>> = words.iter().flat_map(|word| in_base64(word.as_bytes())).collect();
        let mut runs = SecretRuns::all(&parts, RUN_MIN);
        runs.extend(SecretRuns::all(&digits, 2 * RUN_MIN));
        let (base64, edges) = (SecretRuns::all(&encoded, RUN_MIN), SecretRuns::new(parts.iter(), EDGE_MIN));
        Redactor { prefix, parts, runs, base64, edges }
    }

    /// The text with stars in place of the secrets. If it `is_cut`, its end may be the beginning of a secret.
    pub fn text(&self, text: &str, is_cut: bool) -> String {
        let (mut spans, mut from) = (Vec::new(), 0);
        while from < text.len() {
            let next = whole_chars(text, from + PIECE);
            // A secret that begins in this piece may end in the next one.
            self.search(text, from..whole_chars(text, next + CUT_MAX), &mut spans);
            from = next;
        }
        if is_cut && let Some(length) = self.begun(text.as_bytes()) {
            spans.push((text.len() - length, text.len()));
        }
        starred(text, spans)
    }

    /// Number of characters at the end of a text that are the beginning of a secret.
    fn begun(&self, text: &[u8]) -> Option<usize> {
        let ends_with = |part: &[u8]| {
            text.get(text.len().wrapping_sub(part.len())..).is_some_and(|end| end.eq_ignore_ascii_case(part))
        };
        let begun = |part: &Vec<u8>| (CUT_EDGE_MIN..part.len()).rev().find(|length| ends_with(&part[..*length]));
        self.parts.iter().filter_map(begun).max()
    }

    /// Finds secrets in a range of a text.
    fn search(&self, text: &str, range: std::ops::Range<usize>, spans: &mut Vec<(usize, usize)>) {
        let plain = MappedText::plain(&text[range.clone()]);
        // Text that was encoded twice, such as a query in a URL in a URL.
        let twice = plain.decoded();
        let is_same = twice.bytes().len() == plain.bytes().len();
        let mut found = Vec::new();
        for view in [Some(&plain), Some(&twice).filter(|_| !is_same)].into_iter().flatten() {
            find(view, view.bytes(), &self.runs, &mut found);
            find(view, view.raw(), &self.base64, &mut found);
            let joined = view.joined();
            find(&joined, joined.bytes(), &self.runs, &mut found);
            self.find_shortened(view, &mut found);
            self.find_keys(view, &mut found);
        }
        spans.extend(found.iter().map(|span| (range.start + span.start as usize, range.start + span.end as usize)));
    }

    /// Finds secrets whose beginning or end is next to stars or dots: `sk-proj-****abcd`, `abcd...wxyz`.
    fn find_shortened(&self, text: &MappedText, spans: &mut Vec<Span>) {
        let bytes = text.bytes();
        let gap_at = |at: usize| GAPS.iter().find(|gap| bytes[at..].starts_with(gap.as_bytes())).map(|gap| gap.len());
        let mut at = 0;
        while at < bytes.len() {
            let start = at;
            while let Some(length) = bytes.get(at).and_then(|_| gap_at(at)) {
                at += length;
            }
            if at == start {
                at += 1;
                continue;
            }
            // A further dot belongs to them.
            at += bytes[at..].iter().take_while(|byte| **byte == b'.').count();
            let (before, after) = (&bytes[..start], &bytes[at..]);
            let has = |run: Option<&[u8]>| run.is_some_and(|run| self.edges.has(run));
            let longest = |text: &[u8], behind| self.parts.iter().filter_map(|part| edge(part, text, behind)).max();
            let begins =
                has(before.len().checked_sub(EDGE_MIN).map(|from| &before[from..])).then(|| longest(before, false));
            let ends = has(after.get(..EDGE_MIN)).then(|| longest(after, true));
            let (begins, ends) = (begins.flatten(), ends.flatten());
            if begins.or(ends).is_none() {
                continue;
            }
            // The whole word is removed, since the rest of it may belong to the secret, too.
            let first = begins.unwrap_or(0).max(before.iter().rev().take_while(|byte| is_of_key(**byte)).count());
            let last = ends.unwrap_or(0).max(after.iter().take_while(|byte| is_of_key(**byte)).count());
            spans.push(text.span(start - first, at + last));
        }
    }

    /// Finds the secret part of each key of the gateway, even of a key that is cut.
    fn find_keys(&self, text: &MappedText, spans: &mut Vec<Span>) {
        let ascii = |byte: &u8| if byte.is_ascii() { char::from(*byte) } else { '?' };
        let (plain, mut from) = (text.raw().iter().map(ascii).collect::<String>(), 0);
        while let Some((public, length)) = find_key(&plain[from..], self.prefix) {
            spans.push(text.span(from + public, from + length));
            from += length;
        }
    }
}

/// The text with stars in place of these ranges. Overlapping ranges share one row of stars.
fn starred(text: &str, mut spans: Vec<(usize, usize)>) -> String {
    spans.sort_unstable();
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for (start, end) in spans {
        if start > from || (start == from && !out.ends_with(STARS)) {
            out.push_str(&text[from..start]);
            out.push_str(STARS);
        }
        from = from.max(end);
    }
    out.push_str(&text[from..]);
    out
}

/// End of the last character that ends at or before this position.
pub(crate) fn whole_chars(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The digits of base64 that only these bytes decide, in both alphabets, for each place in a group of three bytes where
/// they may begin.
fn in_base64(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for before in 0..3 {
        let text = base64::encode(&[&[0; 2][..before], bytes].concat());
        let decided = (before * 8).div_ceil(6)..(before + bytes.len()) * 8 / 6;
        let digits = &text.as_bytes()[decided];
        all.push(
            digits
                .iter()
                .map(|digit| match digit {
                    b'+' => b'-',
                    b'/' => b'_',
                    other => *other,
                })
                .collect(),
        );
        all.push(digits.to_vec());
    }
    all
}

/// All runs of some length in secrets.
struct SecretRuns {
    length: usize,
    /// The secrets, one after the other.
    text: Vec<u8>,
    /// Positions of the runs in them, in the order of the runs.
    runs: Vec<usize>,
    /// Hashes of the runs, as bits: most other windows of a text are known by their hash alone.
    marks: Vec<u64>,
}

impl SecretRuns {
    fn new<'s>(secrets: impl Iterator<Item = &'s Vec<u8>>, length: usize) -> SecretRuns {
        let (mut text, mut runs, mut marks) = (Vec::new(), Vec::new(), vec![0; MARKS / 64]);
        for secret in secrets {
            // A blank around a secret stays in a text.
            let is_solid = |run: &[u8]| run.trim_ascii().len() == run.len();
            for (at, run) in secret.windows(length).enumerate().filter(|(_, run)| is_solid(run)) {
                let (word, bit) = mark(run);
                marks[word] |= bit;
                runs.push(text.len() + at);
            }
            text.extend_from_slice(secret);
        }
        let run = |at: usize| &text[at..at + length];
        runs.sort_unstable_by(|one, other| run(*one).cmp(run(*other)));
        SecretRuns { length, text, runs, marks }
    }

    /// The runs that are removed wherever they occur: of `most` characters, or all of a shorter secret.
    fn all(secrets: &[Vec<u8>], most: usize) -> Vec<SecretRuns> {
        let of = |length: usize| {
            SecretRuns::new(secrets.iter().filter(move |secret| secret.len().min(most) == length), length)
        };
        (1..=most).map(of).filter(|runs| !runs.runs.is_empty()).collect()
    }

    fn may_have(&self, window: &[u8]) -> bool {
        let (word, bit) = mark(window);
        self.marks[word] & bit != 0
    }

    fn has(&self, window: &[u8]) -> bool {
        let compare = |at: &usize| self.text[*at..*at + self.length].cmp(window);
        self.may_have(window) && self.runs.binary_search_by(compare).is_ok()
    }
}

/// Word and bit of a run's hash.
fn mark(run: &[u8]) -> (usize, u64) {
    let hash = mix_bytes(0, run) as u32 as usize % MARKS;
    (hash / 64, 1 << (hash % 64))
}

/// Finds runs of secrets in the bytes of a view of a text.
fn find(view: &MappedText, bytes: &[u8], runs: &[SecretRuns], spans: &mut Vec<Span>) {
    for runs in runs {
        for (at, window) in bytes.windows(runs.length).enumerate() {
            if runs.has(window) {
                spans.push(view.span(at, at + runs.length));
            }
        }
    }
}

/// Number of characters of a secret right before a gap (its beginning) or right `behind` it (its end). They begin a
/// word, or end one.
fn edge(part: &[u8], text: &[u8], behind: bool) -> Option<usize> {
    let most = part.len().min(text.len());
    (EDGE_MIN..=most).rev().find(|length| {
        let (same, beside) = match behind {
            true => (text.starts_with(&part[part.len() - length..]), text.get(*length)),
            false => (text.ends_with(&part[..*length]), text.iter().rev().nth(*length)),
        };
        same && !beside.is_some_and(u8::is_ascii_alphanumeric)
    })
}

fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn secrets(rng: &mut Rng, count: usize) -> Vec<String> {
        let digits = |rng: &mut Rng| format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64());
        (0..count).map(|_| digits(rng)).collect()
    }

    #[test]
    fn search_compares_few_windows_of_a_text_without_secrets() {
        let mut rng = Rng::from_u64(43);
        let parts: Vec<Vec<u8>> = secrets(&mut rng, 20).into_iter().map(String::into_bytes).collect();
        let text = secrets(&mut rng, 200).concat();
        let runs = &SecretRuns::all(&parts, RUN_MIN)[0];
        let compared = text.as_bytes().windows(RUN_MIN).filter(|window| runs.may_have(window)).count();
        assert!(compared * 20 < text.len(), "{compared} of {}", text.len());
        assert!(parts.iter().flat_map(|part| part.windows(RUN_MIN)).all(|run| runs.has(run)));
        // Next to a gap, a secret is compared only if three characters occur in one.
        let edges = SecretRuns::new(parts.iter(), EDGE_MIN);
        assert!(!edges.has(b"\x01\x02\x03") && parts.iter().all(|part| edges.has(&part[..EDGE_MIN])));
        assert!(parts.iter().all(|part| edges.has(&part[part.len() - EDGE_MIN..])));
    }

    #[test]
    fn secret_is_found_wherever_the_pieces_of_a_long_text_end() {
        let secret = "secret-of-the-provider";
        let redactor = Redactor::new(&mut [secret].into_iter(), "tg_");
        let encoded = base64::encode(format!("u:{secret}").as_bytes());
        for (written, stays) in [(secret, 0), (&*encoded, 3), (&*hex(secret.as_bytes()), 0)] {
            for before in [0, 1, written.len() / 2, written.len() - 1, written.len(), written.len() + 1] {
                let fill = "\u{fc} ".repeat((PIECE - before) / 3);
                let text = redactor.text(&format!("{fill}{written} end"), false);
                assert_eq!(text, format!("{fill}{}{STARS} end", &written[..stays]).as_str());
            }
        }
    }
}
