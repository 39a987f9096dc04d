//! The fixed bounds that several layers share, with their units, and how they must relate. A bound of one file is a
//! constant of that file; settings and their defaults are in `policy`.

use std::time::Duration;

// Heads, bodies and requests.

/// Header lines in one head. RFC 9110 sets no limit.
pub const HEADERS_MAX: usize = 100;
/// Empty lines accepted before a request (RFC 9112 section 2.2 wants at least one).
pub const EMPTY_LINES_MAX: u8 = 4;
/// Bytes of one chunk-size line or trailer section, extensions included.
pub const CHUNK_LINE_MAX: usize = 1024;
/// Bytes of pipelined requests accepted while a request is being answered. Beyond it the client is not read.
pub const PIPELINE_BYTES_MAX: usize = 16 * 1024;
/// Pipelined requests of one connection that begin without a break. The others wait until other connections have been
/// served.
pub const PIPELINE_BURST: u8 = 4;
/// Bytes by which the storage of a request's body grows ahead of what has arrived.
pub const BODY_STEP_MAX: usize = 1 << 20;
/// Bytes per second that the body of a request must arrive with on average after `body_timeout`.
pub const BODY_RATE_MIN: u64 = 16 * 1024;
/// Bytes of a request body on the admin listener.
pub const ADMIN_BODY_MAX: u64 = 64 * 1024;
/// Bytes of a form that are held until its model is known.
pub const UPLOAD_HOLD: usize = 256 * 1024;
/// Bytes of a form that is being sent which are read ahead of its provider.
pub const UPLOAD_AHEAD: usize = 64 * 1024;
/// Members of a request's top-level object that the scanner visits. A body with more is refused.
pub const MEMBERS_MAX: usize = 4096;
/// Bytes of the name of a model or of a request member, escapes included, that are compared with known names. A longer
/// name is unknown.
pub const NAME_BYTES_MAX: usize = 1024;
/// Messages of a translated request, or items of the input of a translated response. Conversations of agents have
/// thousands.
pub const MESSAGES_MAX: usize = 100_000;
/// Parts, calls and results in all messages of a translated request.
pub const PARTS_MAX: usize = 100_000;
/// Tools of a translated request, including those in namespaces. Agents with many servers offer hundreds.
pub const TOOLS_MAX: usize = 4096;
/// Stop sequences of a translated request. Providers accept a few.
pub const STOPS_MAX: usize = 1024;
/// Bytes of a client's user name or conversation name that are used.
pub const NAMED_BYTES_MAX: usize = 1024;
/// Characters of a user's name that are kept in plain text.
pub const USER_CHARS_MAX: usize = 64;
const _: () = assert!(UPLOAD_AHEAD <= UPLOAD_HOLD);

// Answers.

/// Bytes of the events of a stream that are held until the first content, so that another target can still answer.
pub const PREFACE_MAX: usize = 16 * 1024;
/// Time to wait for a missing `[DONE]` after a finish reason.
pub const DONE_GRACE: Duration = Duration::from_secs(2);
/// Bytes of a failed upstream answer that are read for its message.
pub const ERROR_BODY_MAX: usize = 64 * 1024;
/// Bytes of one body or event that the loop itself parses or translates. Larger ones go to a helper thread.
pub const WORK_MIN: usize = 512 * 1024;
/// Bytes of one server answer to a command or a helper thread, such as a list of models.
pub const ASKED_BYTES_MAX: usize = 4 << 20;
const _: () = assert!(PREFACE_MAX < ERROR_BODY_MAX && ERROR_BODY_MAX < WORK_MIN && WORK_MIN < ASKED_BYTES_MAX);

// Connections and descriptors.

/// Highest `max_connections`. Each client connection can have an upstream connection, and a 32-bit poll token can name
/// about a million sockets.
pub const CONNECTIONS_MAX: u64 = if usize::BITS == 64 { 1_000_000 } else { 500_000 };
/// Connections beyond `max_connections` that are still accepted, only to be answered with 503.
pub const RESERVE_CONNECTIONS: usize = 32;
/// Connections of one host beyond `max_connections_per_ip` that are still accepted, only to be answered with 503.
pub const RESERVE_PER_HOST: usize = 4;
/// Maximum number of concurrent admin connections. They do not count against `max_connections`.
pub const ADMIN_CONNECTIONS: usize = 64;
/// Descriptors reserved for other uses than clients and providers: our files and threads, health, and answers of 503.
pub const DESCRIPTORS_KEPT: u64 = 96;
/// Look-ups under way at once, each in a thread with at most two sockets, which [`DESCRIPTORS_KEPT`] reserves. A name
/// server that is silent for one host must not delay another host.
pub const LOOKUP_THREADS_MAX: usize = 32;
/// Number of client connections that may use `descriptors`; connections to providers may use half of them.
pub fn client_descriptors(descriptors: usize) -> usize {
    (descriptors / 4 * 3).max(1)
}
/// Time that a closed TLS connection may take to send its last bytes before the socket is dropped.
pub const PARTING: Duration = Duration::from_secs(5);
/// Time that idle connections stay open when draining begins, for requests in flight.
pub const DRAIN_IDLE_GRACE: Duration = Duration::from_millis(500);
/// Time after a burst of connections at which their memory is given back.
pub const TRIM_AFTER: Duration = Duration::from_secs(5);
/// Connections of either side for which the tables have room from the start. Beyond it they are copied as they grow.
pub const ROOM_MAX: usize = 16 * 1024;
/// Links for which the lists of links to be served or flushed have room from the start; see [`ROOM_MAX`].
pub const LINKS_ROOM: usize = 2 * ROOM_MAX;
const _: () = {
    assert!(2 * CONNECTIONS_MAX < u32::MAX as u64, "a poll token names each connection and its upstream connection");
    assert!(DESCRIPTORS_KEPT as usize >= 2 * LOOKUP_THREADS_MAX + RESERVE_CONNECTIONS);
    assert!(RESERVE_PER_HOST < RESERVE_CONNECTIONS, "one host must not use up all answers of 503");
};

// Iterations of the event loop.

/// Poll events handled in one event-loop iteration. The kernel keeps the others for the next one.
pub const EVENTS_PER_TURN: usize = 1024;
/// Connections accepted from one listener in one event-loop iteration, so that a flood of them stalls no stream.
pub const ACCEPT_BATCH: usize = 64;
/// Rounds of flush, actions and replies in one event-loop iteration. Remaining work waits for the next one.
pub const ROUNDS_PER_TURN: usize = 16;
/// Time that one event-loop iteration spends on connections before it writes the results and polls again, so that many
/// busy connections do not add up to a stall.
pub const TURN_TIME: Duration = Duration::from_millis(2);
/// Bytes read from or written to one connection before the next connection is served.
pub const IO_SLICE: usize = 64 * 1024;
/// Bytes of one read that make a connection a bulk sender. It is then served after connections that send less.
pub const BULK: usize = IO_SLICE / 4;
/// Bytes of a request written to an upstream at a time. The others are cut from the client's own bytes as these leave.
pub const SEND_SLICE: usize = 32 * 1024;
/// Unsent bytes of one connection above which its source is not read.
pub const HIGH_WATER: usize = 64 * 1024;
const _: () = {
    assert!(ACCEPT_BATCH < EVENTS_PER_TURN);
    assert!(SEND_SLICE <= IO_SLICE && IO_SLICE <= HIGH_WATER);
};

// Log and spans.

/// Bytes of log lines waiting for a slow stderr; lines beyond it are dropped and counted.
pub const LOG_BYTES_MAX: usize = 4 << 20;
/// Time that shutdown waits for a stderr that accepts no more lines.
pub const LOG_PARTING: Duration = Duration::from_secs(1);
/// Bytes of spans waiting for a slow collector; spans beyond it are dropped and counted.
pub const SPANS_BYTES_MAX: usize = 4 << 20;
/// Names of fields that are left out, which one request reports.
pub const DROPPED_MAX: usize = 16;
/// Bytes of a word in the log that a client or a provider chose.
pub const TOLD_BYTES_MAX: usize = 64;
/// Bytes of such a word that are searched for a key: the bytes the log shows, and a key that begins at their end, with
/// each byte written as a six-byte escape.
pub const TOLD_LOOKED_AT_MAX: usize = 1024;
const _: () = assert!(TOLD_LOOKED_AT_MAX > 2 * 6 * TOLD_BYTES_MAX);

// Keys, limits and the ledger.

/// Keys searched, newest first, for those that can send requests when a target fails or a queue is full.
pub const LIVE_KEYS_SEARCHED: usize = 1024;
/// Ids of one look-up: their answers must not delay the loop.
pub const IDS_PER_LOOKUP: usize = 128;
/// Keys that a command reads and prints at a time, and bytes of their texts that end such a page earlier.
pub const KEYS_PAGE: (usize, usize) = (1000, 1 << 20);
/// Group paths that are remembered: those configured now or earlier, and those of rows since the beginning of the
/// longest period.
pub const PATHS_MAX: usize = 1 << 16;
/// Time for which a limit counts as spent because a shared ledger said so. After that the ledger is asked again.
pub const COUNTS_FRESH: Duration = Duration::from_secs(1);
/// Time for which a shared ledger must report less than a host knows before the host accepts it. Longer than it takes
/// to report what was admitted.
pub const COUNTS_SETTLE: Duration = Duration::from_secs(2);
/// Time that a request waits for its admission by a shared ledger before the ledger counts as unreachable. Longer than
/// the ledger's thread needs to find out.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(4);
/// Pause of the busy store thread, so that rows accumulate for one commit. A kill must lose at most 50 ms of rows.
pub const COMMIT_TICK: Duration = Duration::from_millis(25);
/// Time to wait for a ledger that another process is writing to.
pub const STORE_BUSY: Duration = Duration::from_secs(5);
/// Maximum lag of the wall clock behind the newest usage record and the build date. Beyond it nothing is admitted.
pub const CLOCK_BEHIND_MAX: Duration = Duration::from_secs(300);
/// Rows that wait for their ledger. Beyond it nothing is admitted.
pub const ROWS_WAITING_MAX: u64 = 50_000;
/// Rows that wait for a shared ledger that cannot be reached, if a host admits on its own meanwhile.
pub const ROWS_WAITING_ALONE_MAX: u64 = 500_000;
/// Maximum of the integers that a ledger in a file stores.
pub const STORED_MAX: u64 = i64::MAX as u64;
/// Tokens of one kind in one row. Larger reports are absurd and would overflow sums for good.
pub const ROW_TOKENS_MAX: u64 = 1 << 40;
/// Cost of one row in nano-dollars, for the same reason.
pub const ROW_COST_MAX: u64 = 1 << 50;
const _: () = {
    assert!(COUNTS_FRESH.as_millis() < COUNTS_SETTLE.as_millis());
    assert!(2 * COMMIT_TICK.as_millis() <= 50, "a kill loses at most 50 ms of rows");
    assert!(ROWS_WAITING_MAX < ROWS_WAITING_ALONE_MAX);
    assert!(
        ROW_COST_MAX <= STORED_MAX / 4096 && ROW_TOKENS_MAX < ROW_COST_MAX,
        "a commit of the largest rows has a sum"
    );
};
