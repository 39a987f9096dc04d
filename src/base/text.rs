//! Detection of words that look like credentials, and formatting of numbers without `std::fmt`. A request writes about
//! twenty numbers, and a formatter costs a hundred or more instructions for each.

use std::io::Write;
use std::net::IpAddr;

/// Digits of the numbers below a thousand without leading zeros, the first digit in the lowest byte, and the number of
/// digits.
static SMALL: [u32; 1000] = small();

const fn small() -> [u32; 1000] {
    let mut table = [0; 1000];
    let mut value = 0;
    while value < 1000 {
        let digits = [value / 100, value / 10 % 10, value % 10];
        let count = if value >= 100 {
            3
        } else if value >= 10 {
            2
        } else {
            1
        };
        let nought = b'0' as u32;
        let three = (digits[0] + nought) | (digits[1] + nought) << 8 | (digits[2] + nought) << 16;
        table[value as usize] = three >> (8 * (3 - count)) | count << 24;
        value += 1;
    }
    table
}

/// Ending of a noun after this count: `1 request`, `2 requests`.
pub fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Appends a number in decimal digits.
#[inline]
pub fn push_number(out: &mut Vec<u8>, value: u64) {
    match value {
        ..1000 => push_small(out, value),
        _ => push_large(out, value),
    }
}

fn push_large(out: &mut Vec<u8>, value: u64) {
    if value < 1_000_000 {
        push_small(out, value / 1000);
        return out.extend_from_slice(&three_digits(value % 1000));
    }
    match value / 1_000_000 {
        high @ ..1000 => push_small(out, high),
        // Recurses at most three more times, for numbers of ten or more digits.
        high => push_large(out, high),
    }
    let [a, b, c] = three_digits(value / 1000 % 1000);
    let [d, e, f] = three_digits(value % 1000);
    out.extend_from_slice(&[a, b, c, d, e, f]);
}

/// Returns the digits of a number below 1000, with leading zeros.
#[inline(always)]
fn three_digits(value: u64) -> [u8; 3] {
    let entry = SMALL[value as u32 as usize];
    let noughts = 8 * (3 - (entry >> 24));
    let [a, b, c, _] = ((entry << noughts) | (0x0030_3030 & ((1 << noughts) - 1))).to_le_bytes();
    [a, b, c]
}

/// Appends a number below 1000 without leading zeros.
#[inline]
fn push_small(out: &mut Vec<u8>, value: u64) {
    let entry = SMALL[value as u32 as usize];
    let length = out.len() + (entry >> 24) as usize;
    // Copies a length that the compiler knows, then cuts off the excess.
    out.extend_from_slice(&entry.to_le_bytes());
    out.truncate(length);
}

/// Appends numbers, at most twelve, each after a comma. They are written next to each other before they are copied,
/// since a vector checks its room for every piece.
#[inline]
pub fn push_values<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    const { assert!(N <= 12, "a number takes at most 21 bytes") };
    let (mut text, mut at) = ([0; VALUES_ROOM], 0);
    for value in values {
        at = match value {
            ..1000 => write_first(&mut text, at, value),
            _ => write_large(&mut text, at, value),
        };
    }
    out.extend_from_slice(&text[..at.min(VALUES_ROOM)]);
}

/// Room for the texts of [`push_values`], and for four bytes after the last number.
const VALUES_ROOM: usize = 256 + 4;

/// Writes a comma and a number below 1000 at this position. Returns the position after them.
#[inline(always)]
fn write_first(text: &mut [u8; VALUES_ROOM], at: usize, value: u64) -> usize {
    let entry = SMALL[value as u32 as usize];
    // The mask saves a bounds check. The excess is overwritten or cut off.
    let from = at & 255;
    text[from..from + 4].copy_from_slice(&(entry << 8 | u32::from(b',')).to_le_bytes());
    at + 1 + (entry >> 24) as usize
}

fn write_large(text: &mut [u8; VALUES_ROOM], at: usize, value: u64) -> usize {
    let at = match value / 1000 {
        high @ ..1000 => write_first(text, at, high),
        // Recurses at most five more times.
        high => write_large(text, at, high),
    };
    let from = at & 255;
    text[from..from + 3].copy_from_slice(&three_digits(value % 1000));
    at + 3
}

/// Appends `parts` / `unit` as a decimal number. `unit` is a power of ten, and its zeros are the number of decimals.
pub fn push_decimal(out: &mut Vec<u8>, parts: u64, unit: u64) {
    push_number(out, parts / unit);
    // The position of the first digit becomes that of the decimal point.
    let point = out.len();
    push_number(out, unit + parts % unit);
    out[point] = b'.';
}

/// Appends nano-dollars as dollars, exactly, with at least one decimal.
pub fn push_dollars(out: &mut Vec<u8>, nano: u64) {
    push_number(out, nano / 1_000_000_000);
    let (millions, rest) = (nano % 1_000_000_000 / 1_000_000, nano % 1_000_000);
    let [[a, b, c], [d, e, f], [g, h, i]] = [millions, rest / 1000, rest % 1000].map(three_digits);
    let decimals = [b'.', a, b, c, d, e, f, g, h, i];
    let last = decimals.iter().rposition(|digit| *digit != b'0').unwrap_or(0).max(1);
    let length = out.len() + last + 1;
    // Copies a length that the compiler knows, then cuts off the excess.
    out.extend_from_slice(&decimals);
    out.truncate(length);
}

/// Appends a cost in nano-dollars as dollars, exactly: a JSON number.
pub fn push_cost(out: &mut Vec<u8>, nano: u64) {
    if nano == 0 { out.push(b'0') } else { push_dollars(out, nano) }
}

/// Decimal digits of the octets of an address, each followed by a dot.
static OCTETS: [u32; 256] = {
    let (mut table, mut value) = ([0; 256], 0);
    while value < table.len() {
        let count = SMALL[value] >> 24;
        table[value] = (SMALL[value] & 0x00ff_ffff) | (b'.' as u32) << (8 * count);
        value += 1;
    }
    table
};

/// Appends an IP address in its usual notation. An IPv4 address that is mapped into IPv6 is written as IPv4.
#[inline]
pub fn push_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let (mut text, mut at) = ([0; 20], 0);
            for value in ip.octets() {
                // The last octet begins at twelve at most, so the copy needs no bounds check.
                let from = at & 15;
                text[from..from + 4].copy_from_slice(&OCTETS[usize::from(value)].to_le_bytes());
                at += 2 + usize::from(value >= 10) + usize::from(value >= 100);
            }
            let end = out.len() + at - 1;
            out.extend_from_slice(&text);
            out.truncate(end);
        }
        // Writing to a Vec cannot fail.
        IpAddr::V6(ip) => drop(write!(out, "{ip}")),
    }
}

/// Prefixes of API keys of well-known services, and of headers that carry a key.
const KEY_STARTS: [&str; 10] = ["sk-", "sk_", "pk-", "rk-", "xai-", "gsk_", "hf_", "AIza", "ghp_", "Bearer"];

/// True if a word begins like a credential.
pub fn looks_secret(word: &str) -> bool {
    word.len() > 8 && KEY_STARTS.iter().any(|start| word.starts_with(start))
}

/// True if the text contains an API key at its start or after a character that is not a letter or a digit.
pub fn holds_secret(text: &str) -> bool {
    let is_key_id =
        |rest: &str| rest.bytes().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit()).count() == 16;
    let is_token = |rest: &str| rest[..key_length(rest)].split('.').filter(|part| part.len() > 3).count() > 2;
    KEY_STARTS.iter().any(|start| begun_by(text, start).any(|rest| start.len() + key_length(rest) > 8))
        // Ids of AWS access keys, and JSON web tokens.
        || ["AKIA", "ASIA"].iter().any(|start| begun_by(text, start).any(is_key_id))
        || begun_by(text, "eyJ").any(is_token)
}

/// A name in backticks. Its own backticks become apostrophes, so that it ends where the sentence goes on.
pub fn quoted(name: &str) -> String {
    ["`", &name.replace('`', "'"), "`"].concat()
}

/// Returns the text after each `start` that begins a word. `-` and `_` also separate words.
pub fn begun_by<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let begins = |at: &usize| !text[..*at].ends_with(char::is_alphanumeric);
    text.match_indices(start).map(|(at, _)| at).filter(begins).map(|at| &text[at + start.len()..])
}

/// Number of characters at the beginning of a text that may belong to a key.
pub fn key_length(text: &str) -> usize {
    // Stars and dots replace parts of a shortened key.
    let is_key = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.' | '…');
    text.chars().take_while(is_key).map(char::len_utf8).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_found_inside_a_text_but_not_inside_a_word() {
        for text in
            ["sk-proj-0123456789", "req-sk-proj-0123456789", "x_hf_0123456789", "é gsk_0123456789", "a:Bearer1234"]
        {
            assert!(holds_secret(text), "{text}");
        }
        for text in ["id AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"] {
            assert!(holds_secret(text), "{text}");
        }
        for text in
            ["", "sk-", "a task-force-meeting", "ask-me-anything", "3f2c-77aa-task-sk-1", "disk_sk-", "sk-é123456"]
        {
            assert!(!holds_secret(text), "{text}");
        }
        for text in ["ASIA-PACIFIC-REGION-1", "AKIAIOSFODNN7EXAMPLES", "eyJhbGciOiJIUzI1NiJ9", "eyJ.a.b"] {
            assert!(!holds_secret(text), "{text}");
        }
    }

    #[test]
    fn addresses_have_their_usual_notation() {
        for (text, shown) in [
            ("127.0.0.1", "127.0.0.1"),
            ("255.10.0.255", "255.10.0.255"),
            ("255.255.255.255", "255.255.255.255"),
            ("0.9.99.100", "0.9.99.100"),
            ("10.200.19.1", "10.200.19.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            let mut out = Vec::new();
            push_ip(&mut out, text.parse().unwrap());
            assert_eq!(String::from_utf8_lossy(&out), shown);
        }
    }

    #[test]
    fn numbers_are_written_like_by_the_formatter() {
        let edges = [0, 1, 9, 10, 99, 100, 101, 999, 1000, 1001, 12_345, u64::from(u32::MAX), u64::MAX];
        let powers = (0..20).map(|power| 10u64.pow(power)).flat_map(|power| [power - 1, power, power / 4 * 7]);
        for value in edges.into_iter().chain(0..2000).chain(powers) {
            let mut out = Vec::new();
            push_number(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
            let mut list = b"[".to_vec();
            push_values(&mut list, [value, 7, value]);
            assert_eq!(String::from_utf8_lossy(&list), format!("[,{value},7,{value}"));
        }
        let mut list = Vec::new();
        push_values(&mut list, [u64::MAX; 12]);
        assert_eq!(String::from_utf8_lossy(&list), format!(",{}", u64::MAX).repeat(12));
    }
}
