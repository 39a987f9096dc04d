//! SHA-256, from the TLS provider.

/// SHA-256 of `bytes` (FIPS 180-4).
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0u8; 32];
    out.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    out
}

/// Appends `bytes` to `out` in lower-case hexadecimal.
pub fn hex_into(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Returns the hexadecimal digits of an id. The compiler computes all of them at once.
#[inline]
pub fn hex_id(id: [u8; 16]) -> [u8; 32] {
    let digit = |value: u8| value + if value > 9 { b'a' - 10 } else { b'0' };
    let mut text = [0; 32];
    for (digits, byte) in text.as_chunks_mut().0.iter_mut().zip(id) {
        *digits = [digit(byte >> 4), digit(byte & 15)];
    }
    text
}

/// Reverse of [`hex_id`].
#[inline]
pub fn unhex_id(text: &[u8; 32]) -> [u8; 16] {
    let mut id = [0; 16];
    for (byte, digits) in id.iter_mut().zip(text.as_chunks().0) {
        // Both digits at once: the low bits of a letter are those of its value minus nine.
        let digits = u16::from_le_bytes(*digits);
        let values = (digits & 0x0f0f) + 9 * (digits >> 6 & 0x0101);
        *byte = (values << 4 | values >> 8) as u8;
    }
    id
}

/// Returns `bytes` in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    hex_into(bytes, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Parses hexadecimal of exactly `N` bytes.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0u8; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, place) in out.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(text.get(place..place + 2)?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_vector() {
        let mut hex = Vec::new();
        hex_into(&sha256(b"abc"), &mut hex);
        assert_eq!(hex, b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn digits_of_an_id_are_those_of_its_bytes() {
        for first in 0..=u8::MAX {
            let id: [u8; 16] = std::array::from_fn(|place| first.wrapping_mul(place as u8 | 1).wrapping_add(first));
            assert_eq!(hex_id(id), *hex(&id).as_bytes());
            assert_eq!(unhex_id(&hex_id(id)), id);
        }
    }
}
