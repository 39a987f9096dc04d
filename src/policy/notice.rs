//! Messages from the thread of a ledger to the event loop.

use super::ask::AskAnswer;
use super::keys::{KeyAnswer, KeyNews, ShownKey};
use crate::base::time::Unix;

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
