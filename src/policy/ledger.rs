//! Messages between the event loop and the thread of a ledger: the questions to a shared ledger, which decides for all
//! hosts before a request is admitted, its answers, and other notices. Plain data between `gateway` and `store`.

use super::keys::{KeyAnswer, KeyId, KeyNews, ShownKey};
pub use super::meter::AskedLimits;
use super::meter::{Amount, Lease, LimitReason, SharedCounts};
use super::plan::caps::Resource;
use super::row::Row;
use crate::base::time::{Mono, Unix};

/// A question.
#[derive(Clone, PartialEq, Debug)]
pub struct Ask {
    /// Slot and generation of the exchange that waits.
    pub number: (u32, u32),
    /// Key of the request.
    pub key: KeyId,
    /// Lease that it would get.
    pub lease: Lease,
    /// Limits of the key and its groups.
    pub limits: AskedLimits,
    /// If false, the question only asks for the counts of the key and its groups.
    pub admits: bool,
    /// Grant that is requested as well.
    pub wish: Wish,
    /// Usage record of the request at its whole reservation, for a ledger in a file: that appends it if this process is
    /// killed. The request waits until the ledger has it.
    pub promise: Option<Box<Row>>,
}

/// Request for a grant: the right to admit further requests of a key without asking, until a given moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// Divisor: the grant is at most this fraction of what is left. 0: no grant is requested.
    pub part: u32,
    /// Number of the grant, with its host. A grant with a known number is enlarged.
    pub number: u64,
    /// Number of requests.
    pub requests: u64,
    /// Amount that they may reserve together.
    pub amount: Amount,
    /// True if the grant exists and is to be enlarged.
    pub known: bool,
    /// True if the request waits for other hosts to return their grants, if only these prevent it.
    pub waits: bool,
    /// Moment until which it waits; 0 if it has not waited.
    pub by: Mono,
    /// Version of the key's limits in the question. A grant by earlier limits is given back.
    pub epoch: u64,
}

/// A grant. It has no bound for a limit that is not set.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Number, as in [`Wish::number`].
    pub number: u64,
    /// Number of additional requests.
    pub requests: u64,
    /// Amount that they may reserve in addition.
    pub amount: Amount,
    /// End of the grant, by the clock of `Start::watch` in `gateway`.
    pub until: Mono,
}

/// Use of a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Use {
    /// The grant with this number has admitted a request of this key. The row of the request returns the lease.
    Took(u64, KeyId, Lease),
    /// A request of this key that the ledger has admitted continues. Until that is reported, the request counts only as
    /// long as its host's lease.
    Served(KeyId, Lease),
    /// An attempt that was sent has ended with this use. No row returns its lease, which counts for its target.
    Left(KeyId, Lease, Amount),
    /// The grant is not used any more.
    Returned(u64),
}

impl Use {
    /// Key of the request.
    pub fn key(&self) -> Option<&KeyId> {
        match self {
            Use::Took(_, key, _) | Use::Served(key, _) | Use::Left(key, ..) => Some(key),
            Use::Returned(_) => None,
        }
    }
}

/// Decision of a shared ledger.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ruling {
    /// The request is counted. Its row or a [`Release`] returns the lease.
    Admitted,
    /// A limit of this resource refuses the request, in this part of its lease.
    Refused(Resource, usize, LimitReason),
    /// The reservation does not fit into the limits, which leave this much. The least one of the question fits.
    Less(Amount),
    /// The question asked only for the counts.
    Looked,
    /// The ledger has recalled the grants of other hosts. The gateway must ask again.
    Called,
    /// The ledger cannot be reached.
    Unavailable,
}

/// The answer to an [`Ask`].
#[derive(Clone, PartialEq, Debug)]
pub struct AskAnswer {
    /// The question.
    pub ask: Ask,
    /// The decision.
    pub ruling: Ruling,
    /// Counts of each part of the lease now, over all hosts.
    pub counts: Vec<SharedCounts>,
    /// The grant, if there is one.
    pub grant: Option<Grant>,
}

impl AskAnswer {
    /// Answer if the ledger cannot be reached.
    pub fn unavailable(ask: Ask) -> AskAnswer {
        AskAnswer { ask, ruling: Ruling::Unavailable, counts: Vec::new(), grant: None }
    }
}

/// Return of a lease without a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// Key of the request.
    pub key: KeyId,
    /// The lease.
    pub lease: Lease,
    /// The request ended before the ledger answered: it was never sent and does not count.
    pub unsent: bool,
}

/// Notice from the thread of a ledger.
#[derive(Clone, PartialEq, Debug)]
pub enum LedgerNotice {
    /// Changes of the keys, made by any process.
    Keys(KeyNews),
    /// Results of looking up keys.
    LookedUp(Vec<(ShownKey, KeyAnswer)>),
    /// The newest usage record that the ledger knows.
    Newest {
        /// Time of its admission.
        at: Unix,
        /// An operator has accepted the present time since the last notice: earlier records no longer count.
        accepted: bool,
    },
    /// Number of further rows committed, in the order in which they were handed over.
    Committed(u64),
    /// Rows cannot be committed at present, or the thread has died: the reason; admission stops. Sent once until
    /// [`LedgerNotice::Recovered`].
    Failed(String),
    /// A newer version has changed the ledger while it was away, so this one cannot read it any more: the reason.
    Outgrown(String),
    /// Committing works again.
    Recovered,
    /// Warning for the operator; nothing stops.
    Warning(String),
    /// A shared ledger has answered.
    Answered(Box<AskAnswer>),
    /// A shared ledger revokes this host's grants in an account, which another host needs: the key with this id, or,
    /// after an `@`, the group with this name.
    CalledIn(String),
    /// A shared ledger is a different one than before, adopted by the operator: its counts start at zero.
    BegunAnew,
}
