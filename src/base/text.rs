//! Words that look like credentials; and numbers as text, without the machinery of `std::fmt`: a request writes some
//! twenty of them, and a formatter costs a hundred and more instructions for each.

use std::io::Write;
use std::net::IpAddr;

/// Appends a number in decimal digits.
pub fn push_number(out: &mut Vec<u8>, mut value: u64) {
    const PAIRS: &[u8; 200] =
        b"0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243\
        44454647484950515253545556575859606162636465666768697071727374757677787980818283848586878889909192939495969798\
        99";
    // Most numbers are short; what is copied has a length that the compiler knows, and costs two moves.
    if value < 1000 {
        let low = (value % 100) as usize * 2;
        let (text, count) = match value {
            100.. => ([b'0' + (value / 100) as u8, PAIRS[low], PAIRS[low + 1]], 3),
            10.. => ([PAIRS[low], PAIRS[low + 1], 0], 2),
            _ => ([PAIRS[low + 1], 0, 0], 1),
        };
        let end = out.len() + count;
        out.extend_from_slice(&text);
        return out.truncate(end);
    }
    let count = value.ilog10() as usize + 1;
    let (mut digits, mut at) = ([0u8; 20], count);
    while value >= 100 {
        let pair = (value % 100) as usize * 2;
        value /= 100;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    let pair = value as usize * 2;
    match at {
        1 => digits[0] = PAIRS[pair + 1],
        _ => digits[..2].copy_from_slice(&PAIRS[pair..pair + 2]),
    }
    let end = out.len() + count;
    out.extend_from_slice(&digits);
    out.truncate(end);
}

/// An octet in decimal digits, and how many they are.
const fn octet(value: u8) -> ([u8; 3], u8) {
    let (high, middle, low) = (b'0' + value / 100, b'0' + value / 10 % 10, b'0' + value % 10);
    match value {
        100.. => ([high, middle, low], 3),
        10.. => ([middle, low, 0], 2),
        _ => ([low, 0, 0], 1),
    }
}

/// Appends an IP address as people write it; an IPv4 address that is mapped into IPv6 as what it is.
pub fn push_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // One byte more than the longest, since a dot is put behind each octet.
            let (mut text, mut at) = ([b'.'; 16], 0);
            for value in ip.octets() {
                let (digits, count) = octet(value);
                text[at..at + 3].copy_from_slice(&digits);
                at += usize::from(count);
                text[at] = b'.';
                at += 1;
            }
            let end = out.len() + at - 1;
            out.extend_from_slice(&text);
            out.truncate(end);
        }
        // Writing to a Vec cannot fail.
        IpAddr::V6(ip) => drop(write!(out, "{ip}")),
    }
}

/// What keys of well-known services, and headers that carry one, begin with.
const KEY_STARTS: [&str; 10] = ["sk-", "sk_", "pk-", "rk-", "xai-", "gsk_", "hf_", "AIza", "ghp_", "Bearer"];

/// Whether a word looks like a credential by its beginning.
pub fn looks_secret(word: &str) -> bool {
    word.len() > 8 && KEY_STARTS.iter().any(|start| word.starts_with(start))
}

/// Whether such a word stands in a text: at its beginning, or behind anything that is no letter and no digit.
pub fn holds_secret(text: &str) -> bool {
    KEY_STARTS.iter().any(|start| begun_by(text, start).any(|rest| start.len() + key_length(rest) > 8))
}

/// What follows `start` wherever that begins a word: `-` and `_` part words, too.
pub fn begun_by<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let begins = |at: &usize| !text[..*at].ends_with(char::is_alphanumeric);
    text.match_indices(start).map(|(at, _)| at).filter(begins).map(|at| &text[at + start.len()..])
}

/// So many characters at the beginning of a text may belong to a key.
pub fn key_length(text: &str) -> usize {
    // Stars and dots stand for what somebody has shortened.
    let is_key = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.' | '…');
    text.chars().take_while(is_key).map(char::len_utf8).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_seen_inside_a_word_and_words_that_only_hold_its_letters_are_not() {
        for text in
            ["sk-proj-0123456789", "req-sk-proj-0123456789", "x_hf_0123456789", "é gsk_0123456789", "a:Bearer1234"]
        {
            assert!(holds_secret(text), "{text}");
        }
        for text in
            ["", "sk-", "a task-force-meeting", "ask-me-anything", "3f2c-77aa-task-sk-1", "disk_sk-", "sk-é123456"]
        {
            assert!(!holds_secret(text), "{text}");
        }
    }

    #[test]
    fn addresses_come_out_as_people_write_them() {
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
    fn numbers_come_out_as_the_formatter_writes_them() {
        let edges = [0, 1, 9, 10, 99, 100, 101, 999, 1000, 1001, 12_345, u64::from(u32::MAX), u64::MAX];
        let powers = (0..20).map(|power| 10u64.pow(power)).flat_map(|power| [power - 1, power, power / 4 * 7]);
        for value in edges.into_iter().chain(0..2000).chain(powers) {
            let mut out = Vec::new();
            push_number(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
