//! Inputs of a gateway.

use crate::base::seam::ProcessVitals;
use crate::base::time::{Mono, Unix};
use crate::gateway::counters::RecorderSums;
use crate::policy::attribution::HashKey;
use crate::policy::config::Reach;
use crate::policy::keys::{KeyId, Keys};
use crate::policy::meter::Amount;
use crate::policy::row::Running;
use std::sync::Arc;

/// Inputs of the gateway in addition to its configuration.
#[derive(Debug, Default)]
pub struct Start {
    /// Entropy for ids and hashing; a fixed one makes a run repeatable.
    pub seed: [u8; 32],
    /// Secret from the ledger, used to hash users and conversations.
    pub hash_key: HashKey,
    /// Number of listeners that serve clients; those after them serve the admin endpoints.
    pub client_listeners: usize,
    /// Clients that can connect to the admin listener; `None` if there is none.
    pub admin: Option<Reach>,
    /// Descriptors for connections of clients and to providers; `None` for as many as are needed.
    pub descriptors: Option<usize>,
    /// All keys.
    pub keys: Keys,
    /// Usage settled per key, path and UTC day (its first moment), since the beginning of the longest period,
    /// preferably for the last [`crate::policy::meter::DAYS_KEPT`] days.
    pub days: Vec<Past>,
    /// Usage settled per target and UTC day, since then; empty if no target has limits.
    pub target_days: Vec<PastOfTarget>,
    /// Requests since the beginning of the longest window. Their usage is in `days` too.
    pub recent: Vec<Past>,
    /// Time of admission of the newest usage record; the clock must not be more than five minutes behind it.
    pub newest: Unix,
    /// Build date; the clock must not be more than five minutes behind it either.
    pub built: Unix,
    /// Requests that a predecessor still serves; `None` if there is no predecessor.
    pub running: Option<Vec<Running>>,
    /// Sums of that predecessor's recorder.
    pub recorded: RecorderSums,
    /// Reads the system's data about this process whenever metrics are read; must not block. `None`: no such metrics.
    pub process: Option<fn() -> ProcessVitals>,
    /// A monotonic clock, read at each admission by a grant of the shared ledger: the time of the current call is too
    /// old for that, since the process may have been suspended. `None`: there are no grants.
    pub watch: Option<fn() -> Mono>,
    /// Bytes in one piece above which a job goes to a helper thread; `None` for `limits::WORK_MIN`.
    pub work_min: Option<usize>,
}

/// Usage according to the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    /// Key that used it.
    pub key: KeyId,
    /// The path of groups under which it was admitted, see [`crate::policy::row::Row::group`].
    pub group: Arc<str>,
    /// Time of use.
    pub at: Unix,
    /// Amount used.
    pub used: Amount,
    /// Number of requests.
    pub requests: u64,
    /// Model of the requests.
    pub model: Arc<str>,
    /// Target that answered, of a single request.
    pub target: Arc<str>,
}

/// Usage of a target on one UTC day.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastOfTarget {
    /// Label of the target.
    pub target: Arc<str>,
    /// First moment of the day.
    pub at: Unix,
    /// Amount used.
    pub used: Amount,
    /// Number of requests.
    pub requests: u64,
}
