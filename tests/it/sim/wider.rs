//! Additional features of some worlds: small buffers for many keys, a successor, providers that answer before they have
//! read, names without an address. They use a separate random generator, so that a seed without them makes the same
//! choices as before.

use tollgate::base::rng::Rng;

/// Schedule of a successor.
#[derive(Copy, Clone, Debug)]
pub struct Upgrade {
    /// Step at which it starts,
    pub at: u64,
    /// at which it is ready,
    pub ready: u64,
    /// and the number of steps from the hand-over of the ledger until it has taken it.
    pub takes: u64,
    /// A fate other than `Serves` interrupts this.
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
    /// Half the buffers, ten keys, and more large bodies.
    pub tight: bool,
    /// There is a successor.
    pub upgrade: Option<Upgrade>,
    /// Providers answer before they have read the whole request, and continue to read it.
    pub early: bool,
    /// Each target has a concurrency limit of two.
    pub places: bool,
    /// Requests queue for these slots, and ten keys send them.
    pub queue: bool,
    /// Half of the requests are relayed ones.
    pub relays: bool,
    /// The host name of the Messages provider has no address, and clients pipeline many requests in one piece.
    pub nameless: bool,
    /// Spans are exported.
    pub spans: bool,
    /// Connections without a key use all that clients leave free.
    pub strangers: bool,
    /// A third of the clients belong to a tenant that tries to pay for less than it uses.
    pub greedy: bool,
    /// All clients belong to this tenant, and most send requests for audio and images.
    pub media: bool,
    /// Providers lie about how their answers end.
    pub lies: bool,
    /// Providers answer in odd forms.
    pub odd: bool,
    /// Further limits of plans and groups, a bit for each; 0 for none.
    pub limits: u64,
    /// Limits of providers and targets, a bit for each; 0 for none.
    pub target_limits: u64,
}

impl Wider {
    /// Returns the features of the world of a seed that runs for this number of steps.
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
        let media = rng.below(3) == 0;
        let limits = rng.below(2) * rng.below(1 << 24);
        let target_limits = rng.below(3) * rng.below(1 << 8);
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
            greedy: greedy || media,
            media,
            lies,
            odd,
            limits,
            target_limits,
        }
    }

    /// Returns the value of `max_buffered`, in MiB.
    pub fn budget(self) -> usize {
        if self.tight { 1 } else { 2 }
    }
}
