//! The fixed bounds of the ledger that several of its files share, with their units, and how they must relate.

use crate::base::limits::{ASK_TIMEOUT, COMMIT_TICK, ROW_COST_MAX, STORED_MAX};
use std::time::Duration;

// Rows, commits and folding.

/// Rows packed, or sums updated, in one step.
pub const ROWS_PER_SLICE: usize = 192;
/// Waiting rows at which the busy store thread is woken before its pause ends.
pub const ROWS_ENOUGH: usize = 512;
/// Rows of one commit. Further rows go into the next one.
pub const ROWS_PER_COMMIT: usize = 4096;
/// Pause of the store thread after a failed commit.
pub const COMMIT_RETRY: Duration = Duration::from_millis(250);
/// Time at shutdown that rows that cannot be committed are retried before they are spilled. An attempt in progress
/// still finishes.
pub const LAST_COMMITS: Duration = Duration::from_secs(5);
/// Pause between two steps of folding.
pub const FOLD_PAUSE: Duration = Duration::from_millis(200);
/// Pause when nothing is left to fold.
pub const FOLD_REST: Duration = Duration::from_secs(600);
/// Cache of the ledger's pages in KiB. It can be small because writes go to the end of the tables.
pub const LEDGER_CACHE_KIB: i64 = 128;
/// Lines of one report that the admin API merges in memory. Reports of more lines are refused.
pub const REPORT_LINES_MAX: usize = 20_000;
const _: () = {
    assert!(ROWS_PER_SLICE <= ROWS_ENOUGH && ROWS_ENOUGH <= ROWS_PER_COMMIT);
    assert!(ROWS_PER_COMMIT as u64 <= STORED_MAX / ROW_COST_MAX, "the cost of one commit can be stored");
    assert!(COMMIT_RETRY.as_millis() < LAST_COMMITS.as_millis());
    assert!(FOLD_PAUSE.as_millis() < FOLD_REST.as_millis());
};

// Keys, locks and alerts.

/// Interval at which the store thread checks for key changes by other processes, which must take effect within 1 s.
pub const KEYS_LOOK: Duration = Duration::from_millis(250);
/// Interval of the check for key changes while no rows are written. An idle gateway then wakes once a second.
pub const KEYS_LOOK_IDLE: Duration = Duration::from_secs(1);
/// Keys sent to the loop at a time. Handling them takes far less than a millisecond.
pub const KEYS_PER_PIECE: usize = 256;
/// Pause of the store thread between two pieces of keys while it reads all keys, so that the loop is not flooded.
pub const KEYS_REST: Duration = Duration::from_millis(1);
/// Malformed entries of a shared ledger that are logged one by one. Further ones are not logged.
pub const ODD_ENTRIES_MAX: usize = 1000;
/// Pause between two attempts to lock a file of the ledger.
pub const LOCK_LOOK: Duration = Duration::from_millis(5);
/// Time without a write after which the draft of a copy is a leftover.
pub const DRAFT_OLD: Duration = Duration::from_secs(3600);
/// Time for which a process claims the subject of an alert in the ledger: longer than an attempt takes. After a kill
/// during an attempt, the next attempt is so late.
pub const ALERT_CLAIM: Duration = Duration::from_secs(15);
/// Time that the delivery of an alert is remembered: longer than any period of a budget.
pub const ALERT_KEPT: Duration = Duration::from_secs(100 * 86_400);
const _: () = assert!(KEYS_LOOK.as_millis() < KEYS_LOOK_IDLE.as_millis() && KEYS_LOOK_IDLE.as_millis() <= 1000);

// A shared ledger.

/// Connect timeout of a shared ledger while serving.
pub const SHARED_CONNECT: Duration = Duration::from_secs(1);
/// Time that a shared ledger may take to answer while serving.
pub const SHARED_ANSWER: Duration = Duration::from_secs(2);
/// Time within which a shared ledger must execute a question. A later one changes nothing and is asked again: a host
/// may not have reported its use of grants that have ended since.
pub const ASK_FRESH: Duration = Duration::from_millis(600);
/// Keys whose usage records one script of a shared ledger counts, which serves nobody else meanwhile.
pub const KEYS_PER_SCRIPT: usize = 128;
/// Time after a host's last sign of life when its reservations in a shared ledger expire.
pub const LEASE: Duration = Duration::from_secs(15);
/// Lifetime of a grant of a shared ledger, by the ledger's clock.
pub const GRANT: Duration = Duration::from_secs(2);
/// Time before the end of a grant when a host stops using it. Its admissions must be reported before they are granted
/// to others, even if the host, the server or its disk stalls for a moment.
pub const GRANT_MARGIN: Duration = Duration::from_secs(1);
/// Grants that a host has at once. A key beyond them asks the ledger for each request.
pub const GRANTS_MAX: u64 = 4096;
/// Minimum and maximum number of requests of one grant, if that many are left.
pub const GRANT_REQUESTS: (u64, u64) = (64, 1 << 16);
/// Time that a grant lasts at its recent rate of use, if a limit leaves enough room. It is enlarged once half of it is
/// used. So a key asks four times a second, and near a limit as often as [`GRANT_REST`] allows.
pub const GRANT_AHEAD: Duration = Duration::from_millis(500);
/// Minimum time between two enlargements of a grant.
pub const GRANT_REST: Duration = Duration::from_millis(50);
const _: () = {
    assert!(SHARED_CONNECT.as_millis() + SHARED_ANSWER.as_millis() < ASK_TIMEOUT.as_millis());
    // Admissions by a grant are reported before the grant is given to others.
    assert!(ASK_FRESH.as_millis() + KEYS_LOOK.as_millis() + COMMIT_TICK.as_millis() < GRANT_MARGIN.as_millis());
    assert!(GRANT_MARGIN.as_millis() < GRANT.as_millis() && GRANT.as_millis() < LEASE.as_millis());
    assert!(GRANT_AHEAD.as_millis() < GRANT.as_millis() - GRANT_MARGIN.as_millis());
    assert!(GRANT_REST.as_millis() < GRANT_AHEAD.as_millis() && GRANT_REQUESTS.0 < GRANT_REQUESTS.1);
};
