//! Masks a provider's message for the client: removes the provider's name for the model, the secrets that were sent to
//! the provider (in any encoding, in pieces or shortened), and anything that looks like a key. Pure; called for every
//! message of a provider.

use super::views::{MappedText, in_base64, in_hex};
use crate::base::hash::mix_bytes;
use crate::base::limits::{ERROR_MESSAGE_MAX, MASK_AHEAD};
use crate::base::text::holds_secret;
use crate::wire::Span;
use std::collections::BTreeMap;

/// Shorter parts of secrets are words like `Bearer`, or too common to be removed.
const PART_MIN: usize = 8;
/// This many consecutive characters of a secret reveal it, at any position. A shorter secret is removed as a whole.
/// Words that share fewer with it are common, such as a prefix of all keys of a service.
const RUN_MIN: usize = 12;
/// This many characters at the beginning or the end of a secret, next to stars or dots, are a shortened form of it.
const EDGE_MIN: usize = 3;
/// Bytes in which fewer than `RUN_MIN` characters of a secret, or the beginning of a key, may be written.
const CUT_MAX: usize = 1024;
/// Bits of the table of a secret's runs, a power of two.
const MARKS: usize = 1 << 16;
/// Replacement for a removed part.
const STARS: &str = "***";
/// Stars or dots that mark an omission.
const GAPS: [&str; 3] = ["*", "\u{2026}", ".."];

/// Masks a provider's message for the client: replaces `upstream_model` by `our_model` and removes all of `secrets`; at
/// most [`ERROR_MESSAGE_MAX`] characters.
pub(super) fn mask<'a>(
    message: &str,
    upstream_model: &str,
    our_model: &str,
    secrets: impl Iterator<Item = &'a str>,
) -> String {
    let parts = secrets.flat_map(str::split_whitespace).filter(|part| part.len() >= PART_MIN);
    let parts: Vec<Vec<u8>> = parts.map(|part| part.to_ascii_lowercase().into_bytes()).collect();
    let looked_at = looked_at(message);
    let is_cut = looked_at.len() < message.len();
    let mut text = without(looked_at, &parts);
    // The end of the searched text may be the beginning of a secret, and then of the model's name.
    if is_cut {
        drop_end(&mut text, CUT_MAX);
    }
    if !upstream_model.is_empty() {
        text = with_name(&text, upstream_model, our_model);
    }
    let mut text = without_keys(&text);
    if is_cut {
        drop_end(&mut text, upstream_model.len());
    }
    if let Some((cut, _)) = text.char_indices().nth(ERROR_MESSAGE_MAX) {
        text.truncate(cut);
    }
    text
}

/// The beginning of a message that is searched: what a client gets, and [`MASK_AHEAD`] bytes.
fn looked_at(message: &str) -> &str {
    let shown = message.char_indices().nth(ERROR_MESSAGE_MAX).map_or(message.len(), |(at, _)| at);
    &message[..whole_chars(message, shown + MASK_AHEAD)]
}

fn drop_end(text: &mut String, bytes: usize) {
    text.truncate(whole_chars(text, text.len().saturating_sub(bytes)));
}

/// End of the last character that ends at or before this position.
fn whole_chars(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// A text without the words of a client's own credential that [`mask`] leaves since they are short, except the name of
/// the scheme; `None` if there are none. Unlike an operator's headers, a credential is secret whatever its length.
#[cold]
pub(super) fn without_words<'a>(message: &str, own: impl Iterator<Item = &'a str>) -> Option<String> {
    let words = own.flat_map(str::split_whitespace).filter(|word| word.len() < PART_MIN);
    let secret = words.filter(|word| !word.eq_ignore_ascii_case("bearer"));
    secret.fold(None, |text, word| Some(with_name(text.as_deref().unwrap_or(message), word, STARS)))
}

/// A text with `ours` in place of the provider's name of a model, unless a letter or digit before or after it makes it
/// part of another word. Any other character may belong to a path, a version or a sentence around the name.
fn with_name(text: &str, theirs: &str, ours: &str) -> String {
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(theirs) {
        let before = text[..at].chars().next_back();
        let after = text[at + theirs.len()..].chars().next();
        if [before, after].into_iter().flatten().any(char::is_alphanumeric) {
            continue;
        }
        out.push_str(&text[from..at]);
        out.push_str(ours);
        from = at + theirs.len();
    }
    out.push_str(&text[from..]);
    out
}

/// A text without these secrets, which are in small letters.
fn without(message: &str, parts: &[Vec<u8>]) -> String {
    if parts.is_empty() {
        return message.to_owned();
    }
    let mut spans = Vec::new();
    let runs: Vec<SecretRuns<'_>> =
        (PART_MIN..=RUN_MIN).filter_map(|length| SecretRuns::to_remove(parts, length)).collect();
    let edges = SecretRuns::new(parts.iter(), EDGE_MIN);
    let plain = MappedText::plain(message);
    // Text that was encoded twice, such as a query in a URL in a URL.
    let twice = plain.decoded();
    for text in [&plain, &twice] {
        find(text, &runs, &mut spans);
        shortened(text, parts, &edges, &mut spans);
        in_hex(text).iter().chain(&in_base64(text)).for_each(|text| find(text, &runs, &mut spans));
    }
    spans.sort_by_key(|span| span.start);
    let (mut out, mut from) = (String::with_capacity(message.len()), 0);
    for span in spans {
        let (start, end) = (span.start as usize, span.end as usize);
        if start > from || (start == from && !out.ends_with(STARS)) {
            out.push_str(&message[from..start]);
            out.push_str(STARS);
        }
        from = from.max(end);
    }
    out.push_str(&message[from..]);
    out
}

/// All runs of some length in secrets.
struct SecretRuns<'a> {
    length: usize,
    runs: BTreeMap<&'a [u8], usize>,
    /// Hashes of the runs, as bits: most other windows of a text are known by their hash alone.
    marks: Vec<u64>,
}

impl<'a> SecretRuns<'a> {
    fn new(parts: impl Iterator<Item = &'a Vec<u8>>, length: usize) -> SecretRuns<'a> {
        let runs = parts.flat_map(|part| part.windows(length)).enumerate();
        let runs: BTreeMap<&[u8], usize> = runs.map(|(number, run)| (run, number)).collect();
        let mut marks = vec![0; MARKS / 64];
        for run in runs.keys() {
            let (word, bit) = mark(run);
            marks[word] |= bit;
        }
        SecretRuns { length, runs, marks }
    }

    /// The runs of this length that are removed wherever they occur; `None` if there are none.
    fn to_remove(parts: &'a [Vec<u8>], length: usize) -> Option<SecretRuns<'a>> {
        let runs = SecretRuns::new(parts.iter().filter(|part| part.len().min(RUN_MIN) == length), length);
        Some(runs).filter(|runs| !runs.runs.is_empty())
    }

    fn may_have(&self, window: &[u8]) -> bool {
        let (word, bit) = mark(window);
        self.marks[word] & bit != 0
    }

    fn has(&self, window: &[u8]) -> bool {
        self.may_have(window) && self.runs.contains_key(window)
    }
}

/// Word and bit of a run's hash.
fn mark(run: &[u8]) -> (usize, u64) {
    let hash = mix_bytes(0, run) as u32 as usize % MARKS;
    (hash / 64, 1 << (hash % 64))
}

/// Finds runs of the secrets in a text.
fn find(text: &MappedText, runs: &[SecretRuns<'_>], spans: &mut Vec<Span>) {
    for runs in runs {
        for (at, window) in text.bytes().windows(runs.length).enumerate() {
            if runs.has(window) {
                spans.push(text.span(at, at + runs.length));
            }
        }
    }
}

/// Finds secrets whose beginning or end is next to stars or dots: `sk-proj-****abcd`, `abcd...wxyz`. `edges`: the runs
/// of [`EDGE_MIN`] in `parts`.
fn shortened(text: &MappedText, parts: &[Vec<u8>], edges: &SecretRuns<'_>, spans: &mut Vec<Span>) {
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
        let has = |run: Option<&[u8]>| run.is_some_and(|run| edges.has(run));
        let longest = |text: &[u8], behind| parts.iter().filter_map(|part| edge(part, text, behind)).max();
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

/// Providers quote the key they were sent: `"api_key":"sk-ant…"`.
fn without_keys(text: &str) -> String {
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.' | '…');
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(|c| !is_key(c)) {
        let word = piece.trim_end_matches(|c| !is_key(c));
        if holds_secret(word) {
            out.push_str(STARS);
            out.push_str(&piece[word.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn masked(text: &str, secrets: &[&str]) -> String {
        mask(text, "", "m", secrets.iter().copied())
    }

    #[test]
    fn masked_message_keeps_its_text_without_names_and_keys() {
        let secrets = ["Bearer secretsecret"];
        let text = "prompt is too long for gpt-x-1 with key sk-abcdef123456 (secretsecret)";
        let text = mask(text, "gpt-x-1", "small", secrets.into_iter());
        assert_eq!(text, "prompt is too long for small with key *** (***)");
    }

    #[test]
    fn a_model_name_is_replaced_only_as_a_word() {
        let cases = [
            ("simulated failure", "simulated failure"),
            ("sim: models/sim is not `sim`, sim-2 or sim.", "small: models/small is not `small`, small-2 or small."),
            ("asim simé sim", "asim simé small"),
            ("simsim", "simsim"),
        ];
        for (text, want) in cases {
            assert_eq!(mask(text, "sim", "small", [].into_iter()), want);
        }
    }

    #[test]
    fn keys_are_found_at_any_position() {
        let cases = [
            ("{\"api_key\":\"sk-ant-abcdef\"}", "{\"api_key\":\"***\"}"),
            ("key=sk-proj-****abcd\nnext", "key=***\nnext"),
            ("(gsk_0123456789): no", "(***): no"),
            ("sk-abcdef123456.", "***"),
            ("key=tenant-sk-abcdef123456", "key=***"),
            ("a task-force, ask-me-anything, sk-short", "a task-force, ask-me-anything, sk-short"),
            ("größe ä sk-é", "größe ä sk-é"),
        ];
        for (text, want) in cases {
            assert_eq!(masked(text, &[]), want);
        }
    }

    #[test]
    fn credentials_are_masked_also_encoded_and_shortened() {
        let secrets = ["Bearer top+secret/value=9", "tenant-0123456789"];
        for text in [
            "no top+secret/value=9",
            "no top%2Bsecret%2Fvalue%3D9",
            "no top%2bsecret%2fvalue%3d9",
            "no dG9wK3NlY3JldC92YWx1ZT05",
            "no tenant-0123456789",
            "no dGVuYW50LTAxMjM0NTY3ODk",
            "no dTp0ZW5hbnQtMDEyMzQ1Njc4OQ==",
            "no tenant-***6789",
            "no ten…",
            "no ten...789.",
            "no ***6789",
            "no tenant-01****",
        ] {
            let text = masked(text, &secrets);
            assert!(text.contains("***") && text.len() <= "no dTp***OQ==".len(), "{text}");
        }
        for text in ["wait... and see", "2 * 3 = 6", "tenants are many ...", "a value of 9..."] {
            assert_eq!(masked(text, &secrets), text);
        }
    }

    #[test]
    fn key_is_masked_before_the_message_is_cut() {
        let text = format!("{}secretsecret", "x ".repeat(ERROR_MESSAGE_MAX / 2 - 2));
        let text = masked(&text, &["Bearer secretsecret"]);
        assert!(text.ends_with("x ***") && !text.contains("secr"), "{}", &text[text.len() - 20..]);
    }

    #[test]
    fn only_the_shown_beginning_of_a_message_is_searched() {
        for (text, want) in
            [("x", ERROR_MESSAGE_MAX + MASK_AHEAD), ("\u{20ac}", 3 * ERROR_MESSAGE_MAX + MASK_AHEAD - 1)]
        {
            assert_eq!(looked_at(&text.repeat(64 * 1024)).len(), want);
            assert_eq!(looked_at(text), text);
            assert_eq!(masked(&text.repeat(64 * 1024), &["secretsecret"]).chars().count(), ERROR_MESSAGE_MAX);
        }
    }

    #[test]
    fn secret_at_the_end_of_the_searched_text_is_not_shown() {
        // Text that becomes much shorter moves the end of the searched text to the front.
        let keys = format!("sk-{} ", "k".repeat(5000));
        for (secret, edge) in [("short-1x", "short-1"), ("long-secret-0123456789", "lon")] {
            for whole in written(secret).into_iter().chain([format!("{}****", &secret[..4])]) {
                for before in [3, 7].map(|eighths| whole.len() * eighths / 8) {
                    let room = ERROR_MESSAGE_MAX + MASK_AHEAD - keys.len() - before;
                    let text = format!("{keys}{}{whole} {}", &"; ".repeat(room)[..room], "y".repeat(9000));
                    let text = masked(&text, &[secret]).to_ascii_lowercase();
                    let shown = whole[..before].to_ascii_lowercase();
                    assert!(text.starts_with("***"), "{text}");
                    assert!(!text.contains(edge) && (shown.len() < 3 || !text.contains(&shown)), "{shown} in {text}");
                }
            }
        }
        for more in 0..20 {
            let fill = format!("{}{}", "; ".repeat(50), ";".repeat(more));
            let text = format!("{keys}{fill}provider-model {}", "y".repeat(9000));
            let text = mask(&text, "provider-model", "m", [].into_iter());
            assert!(text.starts_with("***") && !text.contains("pro"), "{text}");
        }
    }

    #[test]
    fn search_compares_few_windows_of_a_text_without_secrets() {
        let mut rng = Rng::from_u64(43);
        let parts: Vec<Vec<u8>> = (0..20).map(|_| secret(&mut rng).to_ascii_lowercase().into_bytes()).collect();
        let text: String = (0..200).map(|_| secret(&mut rng).to_ascii_lowercase()).collect();
        let runs = SecretRuns::to_remove(&parts, RUN_MIN).unwrap();
        let compared = text.as_bytes().windows(RUN_MIN).filter(|window| runs.may_have(window)).count();
        assert!(compared * 20 < text.len(), "{compared} of {}", text.len());
        assert!(parts.iter().flat_map(|part| part.windows(RUN_MIN)).all(|run| runs.has(run)));
        // Next to a gap, a secret is compared only if three characters occur in one.
        let edges = SecretRuns::new(parts.iter(), EDGE_MIN);
        assert!(!edges.has(b"\x01\x02\x03") && parts.iter().all(|part| edges.has(&part[..EDGE_MIN])));
        assert!(parts.iter().all(|part| edges.has(&part[part.len() - EDGE_MIN..])));
    }

    /// Ways in which a secret may be written.
    fn written(secret: &str) -> Vec<String> {
        let each = |write: &dyn Fn(u8) -> String| secret.bytes().map(write).collect::<String>();
        let named = |byte: u8| match byte {
            b'+' => "&plus;".to_owned(),
            b'/' => "&sol;".to_owned(),
            b'=' => "&equals;".to_owned(),
            b':' => "&colon;".to_owned(),
            b'_' => "&lowbar;".to_owned(),
            b'.' => "&period;".to_owned(),
            b'-' => "&hyphen;".to_owned(),
            other => char::from(other).to_string(),
        };
        let percent = |byte: u8| format!("%{byte:02X}");
        let mut all = vec![
            secret.to_owned(),
            secret.to_ascii_uppercase(),
            secret.to_ascii_lowercase(),
            each(&|byte| format!("{byte:02x}")),
            each(&|byte| format!("{byte:02X}")),
            each(&|byte| format!("{byte:02x} ")),
            each(&|byte| format!("{byte:02X}:")),
            each(&|byte| format!("0x{byte:02x}, ")),
            each(&percent),
            each(&|byte| percent(byte).to_ascii_lowercase()),
            each(&|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { percent(byte) }),
            each(&|byte| format!("%25{byte:02x}")),
            each(&|byte| format!("&#{byte};")),
            each(&|byte| format!("&#x{byte:x};")),
            each(&|byte| format!("&#0{byte};")),
            each(&named),
            each(&|byte| format!("\\u{byte:04x}")),
        ];
        for prefix in ["", "u", "us", "user:"] {
            let encoded = crate::base::base64::encode(format!("{prefix}{secret}").as_bytes());
            all.push(encoded.replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned());
            all.push(encoded.bytes().map(percent).collect());
            all.push(encoded);
        }
        all
    }

    fn secret(rng: &mut Rng) -> String {
        const OF: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=:.";
        let length = 13 + rng.next_u64() as usize % 60;
        (0..length).map(|_| char::from(OF[rng.next_u64() as usize % OF.len()])).collect()
    }

    #[test]
    fn no_part_of_a_secret_is_left_in_any_notation() {
        let mut rng = Rng::from_u64(41);
        for _ in 0..12 {
            let secret = secret(&mut rng);
            for whole in written(&secret) {
                for _ in 0..4 {
                    let from = rng.next_u64() as usize % (whole.len() / 2);
                    let cut = &whole[from * (rng.next_u64() as usize % 2)..];
                    let cut = &cut[..cut.len() - rng.next_u64() as usize % (cut.len() / 2)];
                    let text = masked(&format!("you sent `{cut}` to us"), &[&format!("Bearer {secret}")]);
                    // Number of characters of a run in this form, with a name before it.
                    let run = (whole.len() * (RUN_MIN + 8)).div_ceil(secret.len());
                    let (whole, text) = (whole.to_ascii_lowercase(), text.to_ascii_lowercase());
                    let left = |run: &[u8]| text.contains(std::str::from_utf8(run).unwrap());
                    assert!(!whole.as_bytes().windows(run).any(left), "{secret} as {whole} in {text} of {cut}");
                }
            }
        }
    }

    #[test]
    fn text_without_the_secret_is_unchanged() {
        let mut rng = Rng::from_u64(42);
        for _ in 0..200 {
            let (own, other) = (secret(&mut rng), secret(&mut rng));
            for text in written(&other) {
                let text = format!("größe {text} \u{202e}...");
                let looks_like_a_key = without_keys(&text) != text;
                let (lower, own_lower) = (text.to_ascii_lowercase(), own.to_ascii_lowercase());
                let edges = [&own_lower[..EDGE_MIN], &own_lower[own.len() - EDGE_MIN..]];
                let shares = edges.into_iter().any(|edge| lower.contains(edge));
                if !looks_like_a_key && !shares && text.chars().count() <= ERROR_MESSAGE_MAX {
                    assert_eq!(masked(&text, &[&own]), text);
                }
            }
        }
    }

    #[test]
    fn shortened_secret_is_masked_whatever_characters_it_has() {
        let secret = "zq7Secret+Key/9abcdEFGH==";
        for (text, want) in [
            ("you sent zq7Secret+Ke...", "you sent ***"),
            ("you sent zq7Secret%2BKe...", "you sent ***"),
            ("you sent ZQ7SECRET+K**** to", "you sent *** to"),
            ("you sent zq7Secret+...FGH==, no", "you sent ***, no"),
            ("(…EFGH==)", "(***)"),
            ("key=zq7…", "key=***"),
            ("middle ret+Key/9abc of it", "middle *** of it"),
            ("middle ret+Key/9ab of it", "middle ret+Key/9ab of it"),
            ("a zq... and azq7...", "a zq... and azq7..."),
        ] {
            assert_eq!(masked(text, &[secret]), want);
        }
        assert_eq!(masked("no user:pass/wo... here", &["Basic user:pass/word.1"]), "no *** here");
    }
}
