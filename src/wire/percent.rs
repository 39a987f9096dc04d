//! Percent-decoding (RFC 3986 section 2.1), used for names in paths and for passwords in URLs.

/// Returns the text that `raw` encodes. A `%` without two hexadecimal digits is kept, and invalid UTF-8 becomes U+FFFD.
pub fn decoded(raw: &[u8]) -> String {
    String::from_utf8_lossy(&bytes(raw)).into_owned()
}

/// Returns the bytes that `raw` encodes. A `%` without two hexadecimal digits is kept.
pub fn bytes(raw: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((first, after)) = rest.split_first() {
        let byte = match after {
            [high, low, ..] if *first == b'%' => digit(high).zip(digit(low)).map(|(high, low)| (high << 4 | low) as u8),
            _ => None,
        };
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hexadecimal_digits_after_a_percent_sign_are_a_byte() {
        let cases: [(&[u8], &str); 5] =
            [(b"org%2Fname", "org/name"), (b"%2f%2F", "//"), (b"%c3%A9", "\u{e9}"), (b"%25", "%"), (b"", "")];
        for (raw, text) in cases {
            assert_eq!(decoded(raw), text);
        }
    }

    #[test]
    fn all_other_bytes_stay_unchanged() {
        for text in ["100%", "a%zz", "%+5", "%-1", "% 1", "%1", "%%", "a+b"] {
            assert_eq!(decoded(text.as_bytes()), text);
        }
        assert_eq!(decoded(b"%ff"), "\u{fffd}");
        assert_eq!(decoded(b"%%41"), "%A");
    }
}
