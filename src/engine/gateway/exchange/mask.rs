//! Masks a provider's message for the client: removes the provider's name for the model, the secrets that were sent to
//! the provider, and anything that looks like a key. Pure; called for every message of a provider.

use crate::base::text::holds_secret;
use crate::gateway::redactor::{CUT_MAX, PART_MIN, Redactor, STARS, whole_chars};

/// Characters of a provider's message passed on to a client.
const ERROR_MESSAGE_MAX: usize = 2048;
/// Bytes after these characters that are searched for secrets, too: one may begin before the end.
const MASK_AHEAD: usize = 4096;

/// Masks a provider's message for the client: replaces `upstream_model` by `our_model` and removes all of `secrets`; at
/// most [`ERROR_MESSAGE_MAX`] characters. `prefix`: beginning of the gateway's keys.
pub(super) fn mask<'a>(
    message: &str,
    (upstream_model, our_model): (&str, &str),
    secrets: impl Iterator<Item = &'a str>,
    prefix: &str,
) -> String {
    let looked_at = looked_at(message);
    let is_cut = looked_at.len() < message.len();
    let redactor = Redactor::new(&mut secrets.flat_map(str::split_whitespace), prefix);
    let mut text = redactor.text(looked_at, false);
    // The end of the searched text may be the beginning of a secret, and then of the model's name.
    if is_cut {
        drop_end(&mut text, CUT_MAX);
    }
    if !upstream_model.is_empty() {
        text = with_name(&text, upstream_model, our_model);
    }
    let mut text = without_passwords(&without_keys(&text));
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

/// A text without the passwords in its URLs: `://user:password@`.
fn without_passwords(text: &str) -> String {
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices("://") {
        let authority = text[at + 3..].split(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c)).next();
        let user = authority.and_then(|authority| Some(authority.rsplit_once('@')?.0));
        if let Some((user, (name, _))) = user.and_then(|user| Some((user, user.split_once(':')?))) {
            out.push_str(&text[from..at + 3 + name.len() + 1]);
            out.push_str(STARS);
            from = at + 3 + user.len();
        }
    }
    out.push_str(&text[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use crate::gateway::redactor::{EDGE_MIN, RUN_MIN};

    fn masked(text: &str, secrets: &[&str]) -> String {
        mask(text, ("", "m"), secrets.iter().copied(), "tg_")
    }

    #[test]
    fn masked_message_keeps_its_text_without_names_and_keys() {
        let secrets = ["Bearer secretsecret"];
        let text = "prompt is too long for gpt-x-1 with key sk-abcdef123456 (secretsecret)";
        let text = mask(text, ("gpt-x-1", "small"), secrets.into_iter(), "tg_");
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
            assert_eq!(mask(text, ("sim", "small"), [].into_iter(), "tg_"), want);
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
            ("id AKIAIOSFODNN7EXAMPLE, token eyJhbGci.eyJzdWIi.c2lnbmF0", "id ***, token ***"),
            (
                "redis://user:pässwört@db:6379/0, http://u:p@h http://h:80/a@b",
                "redis://user:***@db:6379/0, http://u:***@h http://h:80/a@b",
            ),
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
            let text = mask(&text, ("provider-model", "m"), [].into_iter(), "tg_");
            assert!(text.starts_with("***") && !text.contains("pro"), "{text}");
        }
    }

    #[test]
    fn secret_part_of_a_key_of_the_gateway_is_masked() {
        const KEY: &str = "tg_live_0123456789abABCDEFGHIJKLMNOPQRSTUVWXYZabcdef012345";
        for (key, shown) in [
            (KEY.to_owned(), "tg_live_0123456789ab***"),
            (KEY[..30].to_owned(), "tg_live_0123456789ab***"),
            (KEY.replace('_', "%5F"), "tg%5Flive%5F0123456789ab***"),
            (KEY.replace('c', "\\\\u0063"), "tg_live_0123456789ab***"),
        ] {
            let text = masked(&format!("no {key}, no tg_live_0123456789ab"), &[]);
            assert_eq!(text, format!("no {shown}, no tg_live_0123456789ab"));
        }
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
