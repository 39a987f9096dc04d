//! Additional features of some worlds: little room for many keys, a successor, providers that answer before they have
//! read, names without an address. They have a random generator of their own, so that a seed without them makes the
//! same choices as before.

use tollgate::base::rng::Rng;

/// When what becomes of a successor.
#[derive(Copy, Clone, Debug)]
pub struct Upgrade {
    /// Step at which it starts,
    pub at: u64,
    /// is ready at this one,
    pub ready: u64,
    /// and has the ledger so many steps after it was given it.
    pub takes: u64,
    /// Unless something becomes of it.
    pub fate: Fate,
}

/// Fate of a successor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The successor serves.
    Serves,
    /// The successor dies instead of being ready.
    DiesEarly,
    /// The successor dies instead of taking the ledger.
    DiesWithLedger,
    /// The successor dies as soon as it serves.
    DiesServing,
    /// The successor sends nothing after its start.
    StallsEarly,
    /// The successor sends nothing after it gets the ledger.
    StallsWithLedger,
}

/// Additional features of one world.
#[derive(Copy, Clone, Default, Debug)]
pub struct Wider {
    /// Half the buffers, ten keys, and more bodies that are large.
    pub tight: bool,
    /// A successor.
    pub upgrade: Option<Upgrade>,
    /// Providers answer before they have read the whole request, and read on.
    pub early: bool,
    /// Two requests at a time at each target.
    pub places: bool,
    /// Requests wait for those, and ten keys have them.
    pub queue: bool,
    /// Half of the requests are for what is relayed.
    pub relays: bool,
    /// The host of the provider of messages has no address, and clients send many requests in one piece.
    pub nameless: bool,
    /// Spans are exported.
    pub spans: bool,
    /// Strangers hold all connections that clients leave.
    pub strangers: bool,
    /// A third of the clients are of a tenant that tries to pay for less than it uses.
    pub greedy: bool,
    /// Providers lie about how their answers end.
    pub lies: bool,
    /// Providers answer in odd forms.
    pub odd: bool,
}

impl Wider {
    /// Features of the world of a seed, which runs for this number of steps.
    pub fn of(seed: u64, steps: u64) -> Wider {
        let mut rng = Rng::from_u64(seed ^ 0x77_6964_6572);
        let (tight, upgrade, early, nameless) = (rng.below(4), rng.below(4), rng.below(4), rng.below(6));
        let at = steps / 4 + rng.below(steps / 2 + 1);
        let ready = at + 1 + rng.below(steps / 8 + 1);
        let takes = rng.below(20);
        let fates = [Fate::DiesEarly, Fate::DiesWithLedger, Fate::DiesServing, Fate::StallsEarly];
        let fate = *fates.get(rng.below(9) as usize).unwrap_or(&Fate::Serves);
        let fate = if rng.below(9) == 0 { Fate::StallsWithLedger } else { fate };
        let places = rng.below(6) == 0;
        let queue = rng.below(4) == 0;
        let relays = rng.below(2) == 0;
        let spans = rng.below(3) == 0;
        let strangers = rng.below(3) == 0;
        let greedy = rng.below(3) == 0;
        let lies = rng.below(3) == 0;
        let odd = rng.below(3) == 0;
        Wider {
            tight: tight == 0,
            upgrade: (upgrade == 0).then_some(Upgrade { at, ready, takes, fate }),
            early: early == 0,
            nameless: nameless == 0,
            places: places || queue,
            queue,
            relays,
            spans,
            strangers,
            greedy,
            lies,
            odd,
        }
    }

    /// Value of `max_buffered`, in MiB.
    pub fn budget(self) -> usize {
        if self.tight { 1 } else { 2 }
    }
}
