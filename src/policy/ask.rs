//! What the gateway asks of a shared ledger before it admits a request, and the answer. Plain data between
//! `gateway` and `io::store`; whether a request passes is decided by the ledger, for all hosts at once.

use super::keys::KeyId;
use super::meter::{Amount, By, Lease, LimitKind, SharedCounts};
use crate::base::time::Mono;

/// Limits of a plan or a group, 0 for none.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Tokens per period.
    pub tokens: u64,
    /// Requests per window.
    pub requests: u64,
    /// Tokens per window.
    pub tokens_per_window: u64,
    /// Requests at once.
    pub concurrency: u64,
    /// Nano-dollars per period.
    pub budget: u64,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Slot and generation of the exchange that waits.
    pub number: (u32, u32),
    /// Whose request.
    pub key: KeyId,
    /// What it would be lent: windows, periods, and what is reserved.
    pub lease: Lease,
    /// What it is measured against.
    pub limits: Limits,
    /// The same of each group of the lease.
    pub groups: Box<[Limits]>,
    /// False: it is only asked how the key and its groups stand.
    pub admits: bool,
    /// What is wanted beside the answer.
    pub wish: Wish,
}

/// Leave to admit further requests of a key without asking, until a moment: a grant.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// At most one of so many parts of what is left; 0: no grant is wanted.
    pub part: u32,
    /// The grant's number, with its host; one that is known is enlarged.
    pub number: u64,
    /// How many requests.
    pub requests: u64,
    /// What they may reserve together.
    pub amount: Amount,
    /// It was granted, and is to be enlarged.
    pub known: bool,
    /// If only what others have been granted stands against it, it waits until they have given that back.
    pub waits: bool,
    /// It has waited, and does so until then; 0: it has not.
    pub by: Mono,
}

/// What was granted. Limits that there are none of are granted without end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// As in [`Wish::number`].
    pub number: u64,
    /// So many requests more.
    pub requests: u64,
    /// They may reserve so much more.
    pub amount: Amount,
    /// It ends then, by the clock that [`Start::watch`](crate::gateway::Start::watch) reads.
    pub until: Mono,
}

/// What is done with a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Use {
    /// A request of this key was admitted by the grant of this number; its row will give the lease back.
    Took(u64, KeyId, Lease),
    /// The grant is not used any more.
    Returned(u64),
}

/// How a shared ledger has decided.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ruling {
    /// The request is counted and the lease is lent, until its row or a [`Release`] gives it back.
    Admitted,
    /// A limit stands against it, and why: the key's own (0) or that of a group, counted from the nearest on.
    Refused(LimitKind, usize, By),
    /// Only how the key stands was asked.
    Looked,
    /// What other hosts have been granted has been called in: it is to be asked again.
    Called,
    /// The ledger cannot be reached: it has not decided.
    Unavailable,
}

/// The answer to an [`Ask`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What was asked.
    pub ask: Ask,
    /// The decision.
    pub ruling: Ruling,
    /// How the key stands now, over all hosts.
    pub counts: SharedCounts,
    /// The same of each group of the lease.
    pub groups: Vec<SharedCounts>,
    /// What was granted beside it.
    pub grant: Option<Grant>,
}

impl Answer {
    /// That there is none.
    pub fn unavailable(ask: Ask) -> Answer {
        Answer { ask, ruling: Ruling::Unavailable, counts: SharedCounts::default(), groups: Vec::new(), grant: None }
    }
}

/// A lease that is given back without a row: its request has gone before it was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// Whose.
    pub key: KeyId,
    /// What was lent.
    pub lease: Lease,
}
