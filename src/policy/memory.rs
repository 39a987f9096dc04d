//! The account of memory: the most that given limits allow, and the limits that a given amount of memory allows. Pure
//! arithmetic. `config` derives limits from `server.memory`, `cli` announces the most and compares it with the
//! machine, `gateway` keeps to the limits. The terms are explained in `docs::explanation::memory`; a test attacks them
//! from every side.

use crate::base::limits::{
    LOG_BYTES_MAX, RESERVE_CONNECTIONS, ROWS_WAITING_ALONE_MAX, ROWS_WAITING_MAX, SPANS_BYTES_MAX,
};

/// Resident without a connection: code, ledger cache, stacks, a reserve of free blocks.
const PROGRAM_BYTES: u64 = 7 << 20;
/// As many times a queue of log lines: those that wait and those being written, with the growth of both.
const LOG_QUEUES: u64 = 4;
/// What one connection takes beside its buffers: its state, that of its exchange, alarms, the event that others of its
/// stream are compared with.
const CONNECTION_BYTES: u64 = 24 << 10;
/// What it takes over TLS: keys, a record that has come in part, and one that has not left.
const SESSION_BYTES: u64 = 40 << 10;
/// What a key takes: its place in the table, and its counters once it is used.
const KEY_BYTES: u64 = 448;
/// What an item takes of the longest part of a list that the admin API answers with: a key, and its text twice.
const ITEM_BYTES: u64 = 8 << 10;
/// What a row takes that waits for the ledger, with the room that the queue has for twice as many.
const ROW_BYTES: u64 = 440;
/// As many times as long as a piece what is made of it may be, before that takes the piece's place.
pub(super) const IN_HAND: u64 = 2;

/// Bytes of a mebibyte.
pub(super) const MIB: u64 = 1 << 20;

/// Bounds of queues, lists and idle connections, which no setting names.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct QueueBounds {
    /// Usage records that wait for the ledger, at most.
    pub rows: u64,
    /// The same while a host goes on without its shared ledger.
    pub rows_alone: u64,
    /// Bytes of log lines that wait.
    pub log: usize,
    /// Items in one part of a list of the admin API.
    pub list: u64,
    /// Idle connections to a provider, unless they are configured; `None` for the usual number.
    pub idle: Option<usize>,
}

impl Default for QueueBounds {
    fn default() -> QueueBounds {
        QueueBounds {
            rows: ROWS_WAITING_MAX,
            rows_alone: ROWS_WAITING_ALONE_MAX,
            log: LOG_BYTES_MAX,
            list: 1000,
            idle: None,
        }
    }
}

/// Facts of a configuration that its memory depends on, as far as they are known before its limits.
#[derive(Copy, Clone, Debug)]
pub struct ConfigFacts {
    /// Number of providers.
    pub providers: u64,
    /// Clients speak TLS.
    pub tls: bool,
    /// There is an admin listener.
    pub admin: bool,
    /// Spans are exported.
    pub spans: bool,
}

/// Limits that a given amount of memory allows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// `server.max_connections`.
    pub max_connections: usize,
    /// `server.max_body`.
    pub max_body: u64,
    /// `server.max_buffered`.
    pub max_buffered: u64,
    /// The other bounds.
    pub bounds: QueueBounds,
}

/// The least that [`share`] can divide: for one provider, without TLS and spans.
pub const SHARE_MIN: u64 = 15 * MIB;

/// Divides `memory` bytes. `None` if nothing useful remains for buffers.
pub fn share(memory: u64, known: ConfigFacts) -> Option<Share> {
    let max_connections = (memory / MIB).clamp(8, 10_000);
    let idle = (memory / (4 * MIB)).clamp(2, 64);
    let rows = (memory / 16 / ROW_BYTES).min(ROWS_WAITING_MAX);
    let log = (memory / 128).clamp(64 << 10, LOG_BYTES_MAX as u64);
    let list = (memory / 32 / ITEM_BYTES).clamp(16, 1000);
    let clients = max_connections + RESERVE_CONNECTIONS as u64;
    let upstreams = clients + known.providers * idle.min(clients);
    let terms = Terms {
        clients,
        upstreams,
        secure: upstreams + if known.tls { clients } else { 0 },
        spans: known.spans,
        rows: clients + rows,
        log,
        list: if known.admin { list } else { 0 },
        // Keys that can be issued meanwhile.
        keys: memory / 64 / KEY_BYTES,
        ..Terms::default()
    };
    let rest = memory.checked_sub(terms.bytes())?;
    // A quarter of the buffers for each of a body and an answer, and twice that in hand.
    let max_buffered = rest * 2 / 3 / (64 << 10) * (64 << 10);
    (max_buffered >= MIB).then_some(Share {
        max_connections: count(max_connections),
        max_body: max_buffered / 4,
        max_buffered,
        bounds: QueueBounds { rows, rows_alone: rows, log: count(log), list, idle: Some(count(idle)) },
    })
}

/// As a number of things in memory.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Numbers of everything that takes memory.
#[derive(Debug, Default)]
pub struct Terms {
    /// Connections of clients.
    pub clients: u64,
    /// Connections to providers.
    pub upstreams: u64,
    /// Connections of both kinds that use TLS.
    pub secure: u64,
    /// Spans are exported.
    pub spans: bool,
    /// Usage records that wait for the ledger.
    pub rows: u64,
    /// Bytes of log lines that wait.
    pub log: u64,
    /// Items of the longest list.
    pub list: u64,
    /// Keys in the ledger.
    pub keys: u64,
    /// `server.max_buffered`.
    pub buffers: u64,
    /// Bytes of the largest body or response.
    pub largest: u64,
}

impl Terms {
    /// The most memory that these take together, in bytes.
    pub fn bytes(&self) -> u64 {
        // Those that wait, those in hand, and the request that they are sent in.
        let spans = if self.spans { 3 * SPANS_BYTES_MAX as u64 } else { 0 };
        PROGRAM_BYTES
            + spans
            + self.log * LOG_QUEUES
            + self.keys * KEY_BYTES
            + self.list * ITEM_BYTES
            + (self.clients + self.upstreams) * CONNECTION_BYTES
            + self.secure * SESSION_BYTES
            + self.rows * ROW_BYTES
            + self.buffers
            + IN_HAND * self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ConfigFacts = ConfigFacts { providers: 1, tls: false, admin: true, spans: false };

    #[test]
    fn more_memory_allows_more_of_everything() {
        let shares = [16, 64, 128, 1024, 8192].map(|mib| share(mib * MIB, PLAIN).unwrap());
        for pair in shares.windows(2) {
            assert!(pair[0].max_buffered < pair[1].max_buffered && pair[0].max_connections < pair[1].max_connections);
            assert!(pair[0].bounds.rows <= pair[1].bounds.rows && pair[0].bounds.list <= pair[1].bounds.list);
        }
        assert!(shares.iter().all(|share| share.max_buffered >= 4 * share.max_body && share.max_body >= MIB / 4));
        assert_eq!(share(8 * MIB, PLAIN), None);
        let smallest = ConfigFacts { admin: false, ..PLAIN };
        assert!(share(SHARE_MIN, smallest).is_some() && share(SHARE_MIN - MIB, smallest).is_none());
    }

    #[test]
    fn providers_and_tls_take_from_the_buffers() {
        let most = share(64 * MIB, PLAIN).unwrap().max_buffered;
        for known in [
            ConfigFacts { providers: 9, ..PLAIN },
            ConfigFacts { tls: true, ..PLAIN },
            ConfigFacts { spans: true, ..PLAIN },
        ] {
            assert!(share(64 * MIB, known).unwrap().max_buffered < most, "{known:?}");
        }
    }
}
