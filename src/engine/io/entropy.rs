//! Random bytes of the system, for names and secrets that nobody may guess.

use crate::base::digest::hex;
use ring::rand::{SecureRandom, SystemRandom};
use std::io;

/// Returns random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes).map(|()| bytes)
}

/// Fills `bytes` with random bytes.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    SystemRandom::new().fill(bytes).map_err(|_| io::Error::other("no entropy is available"))
}

/// Returns a name that no other process has.
pub fn fresh_name() -> io::Result<String> {
    random::<12>().map(|bytes| hex(&bytes))
}
