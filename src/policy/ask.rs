//! What the gateway asks of a shared ledger before it admits a request, and the answer. Plain data between
//! `gateway` and `io::store`; whether a request passes is decided by the ledger, for all hosts at once.

use super::keys::KeyId;
use super::meter::{Lease, LimitKind, SharedCounts};

/// Limits of a plan, 0 for none.
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
}

/// A question.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Slot and generation of the exchange that waits.
    pub number: (u32, u32),
    /// Whose request.
    pub key: KeyId,
    /// What it would be lent: window, period and tokens reserved.
    pub lease: Lease,
    /// What it is measured against; `None` only asks how the key stands.
    pub limits: Option<Limits>,
}

/// How a shared ledger has decided.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ruling {
    /// The request is counted and the lease is lent, until its row or a [`Release`] gives it back.
    Admitted,
    /// A limit stands against it.
    Refused(LimitKind),
    /// Only how the key stands was asked.
    Looked,
    /// The ledger cannot be reached: it has not decided.
    Unavailable,
}

/// The answer to an [`Ask`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What was asked.
    pub ask: Ask,
    /// The decision.
    pub ruling: Ruling,
    /// How the key stands now, over all hosts.
    pub counts: SharedCounts,
}

/// A lease that is given back without a row: its request has gone before it was answered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// Whose.
    pub key: KeyId,
    /// What was lent.
    pub lease: Lease,
}
