//! How the record of a key is written where a ledger keeps text: the secrets that rotations have replaced, and in the
//! shared store the whole record. Called by both kinds of ledger.

use crate::base::digest::hex_into;
use crate::base::time::Unix;
use crate::policy::keys::Former;

/// Former secrets as a JSON array of `["<hex of digest>", <end in ms>]`.
pub fn former_text(former: &[Former]) -> String {
    let pairs: Vec<(String, u64)> = former.iter().map(|former| (hex(&former.digest), former.until.0)).collect();
    serde_json::to_string(&pairs).unwrap_or_else(|_| "[]".to_string())
}

/// Reads [`former_text`]. What cannot be read opens nothing.
pub fn former_from(text: &str) -> Vec<Former> {
    let pairs: Vec<(String, u64)> = serde_json::from_str(text).unwrap_or_default();
    let former = |(digest, until): (String, u64)| Some(Former { digest: unhex(&digest)?, until: Unix(until) });
    pairs.into_iter().filter_map(former).collect()
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    hex_into(bytes, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Reads hexadecimal of exactly `N` bytes.
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
    fn former_secrets_come_back_as_they_were_and_nonsense_opens_nothing() {
        let former = [Former { digest: [7; 32], until: Unix(5) }, Former { digest: [255; 32], until: Unix(9) }];
        assert_eq!(former_from(&former_text(&former)), former);
        for nonsense in ["", "[]", "[[\"zz\",1]]", "{}", "[[\"07\",1]]"] {
            assert_eq!(former_from(nonsense), [], "{nonsense}");
        }
    }
}
