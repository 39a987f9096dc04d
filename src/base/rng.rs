//! A small seeded generator (xoshiro256**, Blackman and Vigna 2018) for ids and jitter. Must never be used for secrets.

/// A generator that is deterministic for a given seed, so that a simulated run can be repeated exactly.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Seeds the generator with 32 bytes. Replaces an all-zero seed, with which the generator would only return zeros.
    pub fn new(seed: [u8; 32]) -> Rng {
        let mut state = [0u64; 4];
        for (word, bytes) in state.iter_mut().zip(seed.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        if state == [0; 4] {
            state = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 1];
        }
        Rng { state }
    }

    /// Seeds from one number, for tests and the simulator.
    pub fn from_u64(seed: u64) -> Rng {
        let mut bytes = [0u8; 32];
        for (i, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            let word = splitmix(seed.wrapping_add(i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Rng::new(bytes)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Returns a number in `0..bound`, or 0 if `bound` is 0. The bias (below 2^-32 for our bounds) does not matter
    /// here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

fn splitmix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_only_on_the_seed() {
        let (mut a, mut b, mut c) = (Rng::from_u64(7), Rng::from_u64(7), Rng::from_u64(8));
        let first: Vec<u64> = (0..8).map(|_| a.next_u64()).collect();
        assert_eq!(first, (0..8).map(|_| b.next_u64()).collect::<Vec<_>>());
        assert_ne!(first, (0..8).map(|_| c.next_u64()).collect::<Vec<_>>());
    }

    #[test]
    fn below_is_in_range_even_with_a_zero_seed() {
        let mut rng = Rng::new([0; 32]);
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!(rng.below(0), 0);
    }
}
