//! A hash that is the same on every host, in every version and after every restart, so that hosts that never speak to
//! one another choose alike. For nothing that an adversary could gain by a collision.

/// Odd constants with as many ones as noughts: the fractions of the square roots of 2 and 3.
const ROOTS: [u64; 2] = [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b];

/// Multiplies into 128 bits and folds them: every bit of either has a say in every bit of what comes.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Mixes a number into what has been mixed so far.
#[inline]
pub fn mix(so_far: u64, value: u64) -> u64 {
    fold(so_far ^ ROOTS[0], value ^ ROOTS[1])
}

/// Mixes bytes, and how many they are.
pub fn mix_bytes(so_far: u64, bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mixed = chunks.iter().fold(mix(so_far, bytes.len() as u64), |sum, chunk| mix(sum, u64::from_le_bytes(*chunk)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(mixed, u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_changes() {
        // Whoever changes these moves every conversation to another target.
        assert_eq!(mix(0, 0), 0xf901_09d2_335f_6b4f);
        assert_eq!(mix_bytes(7, b"conversation 12"), 0x403a_902d_d6d4_9af0);
    }

    #[test]
    fn its_bits_are_even_and_lengths_count() {
        let mut ones = [0u32; 64];
        for value in 0..4096u64 {
            let mixed = mix_bytes(1, format!("session-{value}").as_bytes());
            (0..64).for_each(|bit| ones[bit] += u32::from(mixed >> bit & 1 == 1));
        }
        assert!(ones.iter().all(|count| (1848..2248).contains(count)), "{ones:?}");
        assert_ne!(mix_bytes(0, b"a"), mix_bytes(0, b"a\0"));
        assert_ne!(mix_bytes(0, b""), mix_bytes(0, b"\0"));
    }
}
