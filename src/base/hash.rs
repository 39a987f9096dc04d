//! A hash that is equal on every host, in every version and after every restart, so that hosts choose alike without
//! communication. Must never be used where an attacker could benefit from a collision.

/// Odd constants with as many ones as zeros: the fractional parts of the square roots of 2 and 3.
const ROOTS: [u64; 2] = [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b];

/// Multiplies into 128 bits and folds them: every bit of the result depends on every bit of both inputs.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Mixes a number into the hash so far.
#[inline]
pub fn mix(so_far: u64, value: u64) -> u64 {
    fold(so_far ^ ROOTS[0], value ^ ROOTS[1])
}

/// Mixes bytes and their number into the hash so far.
pub fn mix_bytes(so_far: u64, bytes: &[u8]) -> u64 {
    // Four words at a time.
    let (blocks, tail) = bytes.as_chunks::<32>();
    let (chunks, rest) = tail.as_chunks::<8>();
    let add = |sum: u64, chunk: &[u8; 8]| mix(sum, u64::from_le_bytes(*chunk));
    let blocks = blocks.iter().map(|block| block.as_chunks::<8>().0);
    let mixed = blocks.fold(mix(so_far, bytes.len() as u64), |sum, block| block.iter().fold(sum, add));
    let mixed = chunks.iter().fold(mixed, add);
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(mixed, u64::from_le_bytes(last))
}

/// Returns the draw of the bidder with `seed` for a number; the smallest draw wins (weighted rendezvous hashing). Each
/// bidder wins a share of the numbers in proportion to its weight, and if a bidder leaves, only its own numbers move.
/// Mathematically, each bidder is a series of events with its weight as the rate, and the first event wins.
pub fn lot(number: u64, seed: u64, weight: f64) -> f64 {
    first_of_events(mix(number, seed)) / weight
}

/// Returns the time to the first event at a rate of 1, for a uniform draw of 64 bits: the negative logarithm of a
/// number between 0 and 1. Uses only sums, products and quotients, which are rounded alike everywhere. A library's
/// logarithm differs between systems in its last bit, and would be the only use of `libm` in the binary.
#[inline(never)]
fn first_of_events(draw: u64) -> f64 {
    let even = ((draw >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    // even = part * 2^power, with `part` between the roots of 1/2 and 2.
    let bits = even.to_bits();
    let power = (bits >> 52) as i32 - 1023;
    let part = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let (part, power) = if part > std::f64::consts::SQRT_2 { (part / 2.0, power + 1) } else { (part, power) };
    // ln(part) = 2 (s + s^3/3 + s^5/5 + ...), with s at most 0.172: eight terms are accurate to 14 places.
    let s = (part - 1.0) / (part + 1.0);
    let square = s * s;
    let series = (0..8).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    -(f64::from(power) * std::f64::consts::LN_2 + 2.0 * s * series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_event_is_at_the_negative_logarithm() {
        let edges = [0, 1, 1 << 12, 1 << 62, 1 << 63, (1 << 63) - 1, u64::MAX, u64::MAX - (1 << 12)];
        let mut sum = 0.0;
        for draw in edges.into_iter().chain((0..10_000).map(|n| mix(3, n))) {
            let even = ((draw >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
            let (time, want) = (first_of_events(draw), -even.ln());
            assert!((time - want).abs() <= 1e-13 * (1.0 + want), "{draw}: {time}, not {want}");
            assert!(time > 0.0);
            sum += time;
        }
        assert!((0.95..1.05).contains(&(sum / 10_000.0)), "{sum}");
    }

    #[test]
    fn hash_values_never_change() {
        // A change of these values would move every conversation to another target.
        assert_eq!(mix(0, 0), 0xf901_09d2_335f_6b4f);
        assert_eq!(mix_bytes(7, b"conversation 12"), 0x403a_902d_d6d4_9af0);
    }

    #[test]
    fn hash_bits_are_uniform_and_lengths_count() {
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
