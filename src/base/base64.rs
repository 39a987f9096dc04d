//! Base64 in both alphabets (RFC 4648 sections 4 and 5).

const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Appends `bytes` in the alphabet for URLs, without padding.
pub fn encode_url(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..=group.len() {
            out.push(URL[(bits >> (18 - 6 * place)) as usize & 63]);
        }
    }
}

/// Returns `bytes` in the standard alphabet, padded.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    encode_url(bytes, &mut out);
    let usual = out.iter().map(|byte| match byte {
        b'-' => '+',
        b'_' => '/',
        byte => char::from(*byte),
    });
    usual.chain(std::iter::repeat_n('=', (4 - out.len() % 4) % 4)).collect()
}

/// Decodes `text` in either alphabet, padded or not. Returns `None` if it is invalid.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let text = &text[..text.len() - padding];
    if text.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0;
        for byte in group {
            bits = bits << 6 | value(*byte)?;
        }
        bits <<= 6 * (4 - group.len());
        let bytes = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        out.extend_from_slice(&bytes[..group.len() - 1]);
    }
    Some(out)
}

fn value(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_round_trips_and_matches_the_rfc_examples() {
        let words = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let coded = ["", "Zg", "Zm8", "Zm9v", "Zm9vYg", "Zm9vYmE", "Zm9vYmFy"];
        for (word, code) in words.iter().zip(coded) {
            let mut out = Vec::new();
            encode_url(word.as_bytes(), &mut out);
            assert_eq!(out, code.as_bytes());
            assert_eq!(decode(&out).as_deref(), Some(word.as_bytes()));
            assert_eq!(encode(word.as_bytes()).trim_end_matches('='), code);
        }
        assert_eq!(decode(b"Zm9vYg=="), Some(b"foob".to_vec()));
        assert_eq!(
            (encode(b"foob"), encode(b"fooba"), encode(&[251, 239, 255])),
            ("Zm9vYg==".into(), "Zm9vYmE=".into(), "++//".into())
        );
        assert_eq!(decode(b"-_+/"), decode(b"+/-_"));
        for wrong in [&b"Z"[..], b"Zm 9", b"Z===", b"=Zm9"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
