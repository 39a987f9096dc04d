//! Words that look like credentials; and numbers as text, without the machinery of `std::fmt`: a request writes some
//! twenty of them, and a formatter costs a hundred and more instructions for each.

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
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    while value >= 10 {
        let pair = (value % 100) as usize * 2;
        value /= 100;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    // What is left is one digit, or nothing behind a pair.
    if value > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + value as u8;
    }
    // The first of a pair may be an idle nought.
    if digits[at] == b'0' && at + 1 < digits.len() {
        at += 1;
    }
    out.extend_from_slice(&digits[at..]);
}

/// What keys of well-known services, and headers that carry one, begin with.
const KEY_STARTS: [&str; 10] = ["sk-", "sk_", "pk-", "rk-", "xai-", "gsk_", "hf_", "AIza", "ghp_", "Bearer"];

/// Whether a word looks like a credential by its beginning.
pub fn looks_secret(word: &str) -> bool {
    word.len() > 8 && KEY_STARTS.iter().any(|start| word.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_as_the_formatter_writes_them() {
        let edges = [0, 1, 9, 10, 99, 100, 101, 999, 1000, 1001, 12_345, u64::from(u32::MAX), u64::MAX];
        for value in edges.into_iter().chain(0..2000) {
            let mut out = Vec::new();
            push_number(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
