//! What a part of the worlds has besides: little room for many keys, a successor, providers that answer before they
//! have read, names without an address. Drawn apart from everything else, so that a seed without any of them makes
//! the choices it always made.

use tollgate::base::rng::Rng;

/// What one world has.
#[derive(Copy, Clone, Default, Debug)]
pub struct Wider {
    /// Half the buffers, ten keys, and more bodies that are large.
    pub tight: bool,
    /// From this step on a successor starts, and at the second it is ready.
    pub upgrade: Option<(u64, u64)>,
    /// Providers answer before they have read the whole request, and read on.
    pub early: bool,
    /// The host of the provider of messages has no address, and clients send many requests in one piece.
    pub nameless: bool,
}

impl Wider {
    /// What the world of a seed has, which runs for so many steps.
    pub fn of(seed: u64, steps: u64) -> Wider {
        let mut rng = Rng::from_u64(seed ^ 0x77_6964_6572);
        let (tight, upgrade, early, nameless) = (rng.below(4), rng.below(4), rng.below(4), rng.below(6));
        let at = steps / 4 + rng.below(steps / 2 + 1);
        let ready = at + 1 + rng.below(steps / 8 + 1);
        Wider {
            tight: tight == 0,
            upgrade: (upgrade == 0).then_some((at, ready)),
            early: early == 0,
            nameless: nameless == 0,
        }
    }

    /// What `max_buffered` is set to, in MiB.
    pub fn budget(self) -> usize {
        if self.tight { 1 } else { 2 }
    }
}
