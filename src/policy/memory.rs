//! The account of memory: the most that given limits allow, and the limits that a given amount of memory allows. Pure
//! arithmetic. `config` derives limits from `server.memory`, `cli` announces the most and compares it with the
//! machine, `gateway` keeps to the limits. The terms are explained in `docs::explanation::memory`; a test attacks them
//! from every side.

use super::catalog::CATALOG_MAX;
use super::discover::LISTED_MAX;
use crate::base::limits::{
    ASKED_BYTES_MAX, LOG_BYTES_MAX, RESERVE_CONNECTIONS, ROWS_WAITING_ALONE_MAX, ROWS_WAITING_MAX, SPANS_BYTES_MAX,
};

/// Resident memory without a connection: code, ledger cache, stacks, and a reserve of free blocks.
const PROGRAM_BYTES: u64 = 7 << 20;
/// Multiplier for the bound of the log queue: waiting lines and lines being written, with the growth of both.
const LOG_QUEUES: u64 = 4;
/// Bytes of one connection besides its buffers: its state, the state of its exchange, alarms, and the event that later
/// events of its stream are compared with.
const CONNECTION_BYTES: u64 = 24 << 10;
/// Bytes of an idle connection to a provider. It has no buffers and no exchange.
const IDLE_BYTES: u64 = 1 << 10;
/// Bytes that TLS adds to a connection: keys, a record received in part, and a record not yet sent.
const SESSION_BYTES: u64 = 40 << 10;
/// Bytes of lists and other responses of the admin API, for each item that a page may have. [`QueueBounds`] divides
/// them: three eighths for the page in work, and a half for responses that wait to be read.
const ITEM_BYTES: u64 = 8 << 10;
/// Bytes of a model of the catalog besides its targets, and of a target: in the configuration and in the one that
/// follows it, with names of any length, their counters, and the state of the target.
const MODEL_BYTES: u64 = 3 << 10;
const TARGET_BYTES: u64 = 5 << 9;
/// Bytes of a list of models that are in memory while another list is longer. One longer list is read at a time.
pub const SHORT_LIST_BYTES: usize = 16 << 10;
/// Bytes of one row that waits for the ledger, with the longest names. The queue may have room for twice as many rows
/// as it holds.
pub const ROW_BYTES: u64 = 992;
/// Multiplier for the length of a piece: the text made from it may be this long before it replaces the piece.
pub(super) const IN_HAND: u64 = 2;

/// Bytes in a mebibyte.
pub(super) const MIB: u64 = 1 << 20;

/// Bounds of queues, lists and idle connections that are not settings.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct QueueBounds {
    /// Usage records that may wait for the ledger.
    pub rows: u64,
    /// Usage records that may wait while a host runs without its shared ledger.
    pub rows_alone: u64,
    /// Bytes of log lines that may wait.
    pub log: usize,
    /// Items in one part of a list of the admin API.
    pub list: u64,
    /// Models of providers' lists in the catalog.
    pub listed: usize,
    /// Bytes of one such list.
    pub list_bytes: usize,
    /// Idle connections to a provider that has no such setting; `None` for the default.
    pub idle: Option<usize>,
    /// Bytes that are counted for keys, even if they take less.
    pub keys: u64,
}

impl QueueBounds {
    /// Bytes after which a page of a list ends. While it is made there are its items, their text and a copy of it.
    pub fn page_bytes(&self) -> usize {
        count(self.list * ITEM_BYTES / 8)
    }

    /// Bytes of admin responses that may wait to be read by callers with a token, and as many by callers without one.
    pub fn unread_bytes(&self) -> usize {
        count(self.list * ITEM_BYTES / 4)
    }

    /// Bytes that are counted for keys of `bytes` bytes. They may grow by an eighth before they are counted again.
    pub fn key_bytes(&self, bytes: u64) -> u64 {
        self.keys.max(bytes + bytes / 8)
    }
}

impl Default for QueueBounds {
    fn default() -> QueueBounds {
        QueueBounds {
            rows: ROWS_WAITING_MAX,
            rows_alone: ROWS_WAITING_ALONE_MAX,
            log: LOG_BYTES_MAX,
            list: 1000,
            listed: CATALOG_MAX,
            list_bytes: ASKED_BYTES_MAX,
            idle: None,
            keys: MIB,
        }
    }
}

/// Facts of a configuration that are known before its limits and that its memory depends on.
#[derive(Copy, Clone, Debug)]
pub struct ConfigFacts {
    /// Number of providers.
    pub providers: u64,
    /// True if clients use TLS.
    pub tls: bool,
    /// True if there is an admin listener.
    pub admin: bool,
    /// True if spans are exported.
    pub spans: bool,
    /// Configured models and lists of models.
    pub catalog: CatalogSize,
}

/// Numbers of things in the catalog.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct CatalogSize {
    /// Models.
    pub models: u64,
    /// Targets of all models, once for each credential.
    pub targets: u64,
    /// Providers whose lists of models are imported.
    pub lists: u64,
    /// Most credentials of such a provider.
    pub credentials: u64,
}

impl CatalogSize {
    /// With the models of lists, `listed` at most.
    pub fn filled(self, listed: u64) -> CatalogSize {
        let listed = listed.min(self.lists * LISTED_MAX as u64);
        let targets = self.targets + listed * self.credentials;
        CatalogSize { models: self.models + listed, targets, ..self }
    }

    fn bytes(&self) -> u64 {
        self.models * MODEL_BYTES + self.targets * TARGET_BYTES
    }
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

/// Divides `memory` bytes among the limits. `None` if too little remains for buffers.
pub fn share(memory: u64, known: ConfigFacts) -> Option<Share> {
    let max_connections = (memory / MIB).clamp(8, 10_000);
    let idle = (memory / (4 * MIB)).clamp(2, 1024);
    let rows = (memory / 16 / ROW_BYTES).min(ROWS_WAITING_MAX);
    let log = (memory / 128).clamp(64 << 10, LOG_BYTES_MAX as u64);
    let list = (memory / 32 / ITEM_BYTES).clamp(16, 1000);
    let listed = memory / 64 / (MODEL_BYTES + known.catalog.credentials.max(1) * TARGET_BYTES);
    let listed = listed.min(CATALOG_MAX as u64);
    let list_bytes = (memory / 64).min(ASKED_BYTES_MAX as u64);
    let keys = memory / 64;
    let clients = max_connections + RESERVE_CONNECTIONS as u64;
    let idle_upstreams = known.providers * idle.min(clients);
    let terms = Terms {
        clients,
        idle_upstreams,
        secure: clients + idle_upstreams + if known.tls { clients } else { 0 },
        spans: known.spans,
        rows: clients + rows,
        log,
        list: if known.admin { list } else { 0 },
        keys,
        catalog: known.catalog.filled(listed),
        list_bytes,
        ..Terms::default()
    };
    let rest = memory.checked_sub(terms.bytes())?;
    // A body or an answer may take a quarter of the buffers, and twice as much besides (`IN_HAND`). So the total is one
    // and a half times `max_buffered`.
    let max_buffered = rest * 2 / 3 / (64 << 10) * (64 << 10);
    (max_buffered >= MIB).then_some(Share {
        max_connections: count(max_connections),
        max_body: max_buffered / 4,
        max_buffered,
        bounds: QueueBounds {
            rows,
            rows_alone: rows,
            log: count(log),
            list,
            listed: count(listed),
            list_bytes: count(list_bytes),
            idle: Some(count(idle)),
            keys,
        },
    })
}

/// Converts a number of things in memory.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Numbers of all things that take memory.
#[derive(Debug, Default)]
pub struct Terms {
    /// Client connections. Each has at most one connection to a provider.
    pub clients: u64,
    /// Idle connections to providers.
    pub idle_upstreams: u64,
    /// Connections of all kinds that use TLS.
    pub secure: u64,
    /// True if spans are exported.
    pub spans: bool,
    /// Usage records that wait for the ledger.
    pub rows: u64,
    /// Bytes of log lines that wait.
    pub log: u64,
    /// Items in the longest list.
    pub list: u64,
    /// Bytes that are counted for the keys in the ledger.
    pub keys: u64,
    /// `server.max_buffered`.
    pub buffers: u64,
    /// Bytes of the largest body or response.
    pub largest: u64,
    /// The catalog.
    pub catalog: CatalogSize,
    /// Bytes of the longest list of models that is read for it.
    pub list_bytes: u64,
}

impl Terms {
    /// Most memory that all of these take together, in bytes.
    pub fn bytes(&self) -> u64 {
        // Waiting spans, spans being exported, and the request that they are sent in.
        let spans = if self.spans { 3 * SPANS_BYTES_MAX as u64 } else { 0 };
        // A short list takes twice its length while it grows.
        let lists = match self.catalog.lists {
            0 => 0,
            lists => lists * 2 * SHORT_LIST_BYTES as u64 + self.list_bytes,
        };
        PROGRAM_BYTES
            + spans
            + lists
            + self.log * LOG_QUEUES
            + self.keys
            + self.list * ITEM_BYTES
            + self.catalog.bytes()
            + 2 * self.clients * CONNECTION_BYTES
            + self.idle_upstreams * IDLE_BYTES
            + self.secure * SESSION_BYTES
            + self.rows * ROW_BYTES
            + self.buffers
            + IN_HAND * self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ConfigFacts = ConfigFacts {
        providers: 1,
        tls: false,
        admin: true,
        spans: false,
        catalog: CatalogSize { models: 1, targets: 1, lists: 0, credentials: 0 },
    };

    #[test]
    fn all_limits_grow_with_memory() {
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
    fn providers_tls_and_spans_leave_less_for_buffers() {
        let most = share(64 * MIB, PLAIN).unwrap().max_buffered;
        for known in [
            ConfigFacts { providers: 9, ..PLAIN },
            ConfigFacts { tls: true, ..PLAIN },
            ConfigFacts { spans: true, ..PLAIN },
            ConfigFacts { catalog: CatalogSize { lists: 1, credentials: 1, ..PLAIN.catalog }, ..PLAIN },
            ConfigFacts { catalog: CatalogSize { models: 200, targets: 400, ..PLAIN.catalog }, ..PLAIN },
        ] {
            assert!(share(64 * MIB, known).unwrap().max_buffered < most, "{known:?}");
        }
    }

    #[test]
    fn lists_of_models_being_read_are_counted() {
        let of = |lists| Terms {
            list_bytes: 4 * MIB,
            catalog: CatalogSize { lists, ..CatalogSize::default() },
            ..Terms::default()
        };
        let short = 2 * SHORT_LIST_BYTES as u64;
        assert_eq!([1, 3].map(|lists| of(lists).bytes() - of(0).bytes()), [4 * MIB + short, 4 * MIB + 3 * short]);
        let [small, large] = [16, 1024].map(|mib| share(mib * MIB, PLAIN).unwrap().bounds.list_bytes as u64);
        assert_eq!((small, large), (MIB / 4, 4 * MIB));
    }
}
