//! A provider's words as a client may see them: without its name for the model, without what the provider was told in
//! confidence, whole, encoded or shortened, and without anything that looks like a key. Pure; called for every message
//! of a provider.

use crate::base::limits::ERROR_MESSAGE_MAX;
use crate::base::text::holds_secret;

/// Shorter parts of what was told are words like `Bearer`, or too common to be taken out.
const PART_MIN: usize = 8;
/// So many characters at the beginning or the end of a secret, beside stars or dots, are that secret shortened.
const EDGE_MIN: usize = 3;
/// What stands in the place of what is taken out.
const STARS: &str = "***";

/// What a client may see of `message`: `upstream_model` is called `our_model`, and nothing of `secrets` is left; at
/// most [`ERROR_MESSAGE_MAX`] characters.
pub(super) fn mask<'a>(
    message: &str,
    upstream_model: &str,
    our_model: &str,
    secrets: impl Iterator<Item = &'a str>,
) -> String {
    let parts: Vec<&str> = secrets.flat_map(str::split_whitespace).filter(|part| part.len() >= PART_MIN).collect();
    let mut text = message.to_owned();
    for part in &parts {
        for form in forms(part) {
            text = text.replace(&form, STARS);
        }
    }
    if !upstream_model.is_empty() {
        text = text.replace(upstream_model, our_model);
    }
    let mut text = without_keys(&text, &parts);
    if let Some((cut, _)) = text.char_indices().nth(ERROR_MESSAGE_MAX) {
        text.truncate(cut);
    }
    text
}

/// A secret as it may stand in a text: as it is, in a URL, in base64 of either alphabet, alone or behind other bytes.
/// In base64 a character or two at its ends depend on what stands beside it.
fn forms(part: &str) -> Vec<String> {
    let upper: String = part.bytes().map(|byte| percent(byte, char::to_ascii_uppercase)).collect();
    let lower: String = part.bytes().map(|byte| percent(byte, char::to_ascii_lowercase)).collect();
    let mut all = vec![part.to_string(), upper, lower];
    for skipped in 0..3 {
        let plain = base64(&part.as_bytes()[skipped..]);
        all.push(plain.replace('+', "-").replace('/', "_"));
        all.push(plain);
    }
    all
}

fn percent(byte: u8, digit: impl Fn(&char) -> char) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        return char::from(byte).to_string();
    }
    format!("%{byte:02x}").chars().map(|c| digit(&c)).collect()
}

/// In base64, as far as the digits stand for whole bytes of `bytes` alone.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = |three: &[u8]| three.iter().fold(0usize, |bits, byte| bits << 8 | usize::from(*byte));
    let mut out = String::with_capacity(bytes.len() / 3 * 4 + 2);
    for three in bytes.chunks(3) {
        let whole = bits(three) << (8 * (3 - three.len()));
        let digits = three.len() * 8 / 6;
        out.extend((0..digits.max(1)).map(|at| char::from(DIGITS[whole >> (18 - 6 * at) & 63])));
    }
    out
}

/// Providers quote the key they were sent, partly starred: `sk-proj-****abcd`, `"api_key":"sk-ant…"`, `abcd...wxyz`.
fn without_keys(text: &str, parts: &[&str]) -> String {
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.' | '…');
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(|c| !is_key(c)) {
        let word = piece.trim_end_matches(|c| !is_key(c));
        if holds_secret(word) || parts.iter().any(|part| is_shortened(word, part)) {
            out.push_str(STARS);
            out.push_str(&piece[word.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out
}

/// Whether a word is the beginning or the end of `secret`, with stars or dots for the rest.
fn is_shortened(word: &str, secret: &str) -> bool {
    let gap = ["*", "…", ".."];
    let start = gap.iter().filter_map(|gap| word.find(gap)).min();
    let end = gap.iter().filter_map(|gap| word.rfind(gap).map(|at| at + gap.len())).max();
    let Some((start, end)) = start.zip(end) else { return false };
    let (first, last) = (&word[..start], word[end..].trim_end_matches('.'));
    let begins = first.len() >= EDGE_MIN && secret.starts_with(first);
    begins || (last.len() >= EDGE_MIN && secret.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str, secrets: &[&str]) -> String {
        mask(text, "", "m", secrets.iter().copied())
    }

    #[test]
    fn a_masked_message_keeps_its_words_and_loses_names_and_keys() {
        let secrets = ["Bearer secretsecret"];
        let text = "prompt is too long for gpt-x-1 with key sk-abcdef123456 (secretsecret)";
        let text = mask(text, "gpt-x-1", "small", secrets.into_iter());
        assert_eq!(text, "prompt is too long for small with key *** (***)");
    }

    #[test]
    fn keys_are_found_wherever_they_stand() {
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
    fn all_that_a_provider_was_told_is_taken_out_encoded_and_shortened_too() {
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
    fn a_key_that_the_cut_would_part_is_masked_before_it() {
        let text = format!("{}secretsecret", "x ".repeat(ERROR_MESSAGE_MAX / 2 - 2));
        let text = masked(&text, &["Bearer secretsecret"]);
        assert!(text.ends_with("x ***") && !text.contains("secr"), "{}", &text[text.len() - 20..]);
    }
}
