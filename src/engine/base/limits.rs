//! Every fixed bound that is not a setting, with its unit. Settings and their defaults are in `policy`.

use std::time::Duration;

/// Header lines in one head. RFC 9110 sets no limit.
pub const HEADERS_MAX: usize = 100;
/// Nesting depth of JSON. Deeper JSON is answered with 400.
pub const JSON_DEPTH_MAX: usize = 128;
/// Messages of a translated request, or items of the input of a translated response. Conversations of agents have
/// thousands.
pub const MESSAGES_MAX: usize = 100_000;
/// Parts, calls and results in all messages of a translated request.
pub const PARTS_MAX: usize = 100_000;
/// Tools of a translated request, including those in namespaces. Agents with many servers offer hundreds.
pub const TOOLS_MAX: usize = 4096;
/// Bytes of the name or the namespace of a translated tool. Providers accept at most 128.
pub const TOOL_NAME_MAX: usize = 1024;
/// Stop sequences of a translated request. Providers accept a few.
pub const STOPS_MAX: usize = 1024;
/// Bytes of the events of a stream that are held until the first content, so that another target can still answer.
pub const PREFACE_MAX: usize = 16 * 1024;
/// Bytes of a member that is rewritten for a provider with the client's own API: `include`, `stream_options`.
pub const REWRITTEN_MAX: usize = 64 * 1024;
/// Members of a request's top-level object that the scanner visits. A body with more is refused.
pub const MEMBERS_MAX: usize = 4096;
/// Bytes read from or written to one connection before the next connection is served.
pub const IO_SLICE: usize = 64 * 1024;
/// Largest declared body of a refused request that is read and dropped, so that the connection stays open.
pub const DRAIN_BODY_MAX: u64 = 64 * 1024;
/// Time that a connection is read and drained after a refusal that closes it, so that the answer is not reset.
pub const LINGER: Duration = Duration::from_secs(2);
/// Bytes read and dropped from a lingering connection at most.
pub const LINGER_BYTES_MAX: u32 = 64 << 20;
/// Bytes of pipelined requests accepted while a request is being answered. Beyond it the client is not read.
pub const PIPELINE_BYTES_MAX: usize = 16 * 1024;
/// Pipelined requests of one connection that begin without a break. The others wait until other connections have been
/// served.
pub const PIPELINE_BURST: u8 = 4;
/// Longest number in bytes that is parsed. A longer one is not a number.
pub const NUMBER_BYTES_MAX: usize = 1024;
/// Bytes by which the storage of a request's body grows ahead of what has arrived.
pub const BODY_STEP_MAX: usize = 1 << 20;
/// Dials that one attempt has under way at once.
pub const DIALS_MAX: usize = 4;
/// Time after which the next address of a host is tried while the one before has not answered (RFC 8305 section 5); it
/// is shorter if `connect_timeout` would not reach for all.
pub const ADDRESS_WAIT: Duration = Duration::from_millis(250);
/// Connections beyond `max_connections` that are still accepted, only to be answered with 503.
pub const RESERVE_CONNECTIONS: usize = 32;
/// Connections of one host beyond `max_connections_per_ip` that are still accepted, only to be answered with 503.
pub const RESERVE_PER_HOST: usize = 4;
/// Descriptors reserved for other uses than clients and providers: our files and threads, health, and answers of 503.
pub const DESCRIPTORS_KEPT: u64 = 96;
/// Number of client connections that may use `descriptors`; connections to providers may use half of them.
pub fn client_descriptors(descriptors: usize) -> usize {
    (descriptors / 4 * 3).max(1)
}
/// Descriptors without which no gateway starts: its ledger, event loop and threads need nearly as many.
pub const DESCRIPTORS_MIN: u64 = 24;
/// Log lines per second for the requests of one key that cost nothing, and for all requests without a valid key.
/// Further requests are counted in one line.
pub const FREE_LINES_PER_SECOND: usize = 100;
/// Time between two looks whether a capture has ended: the clock may be set meanwhile.
pub const CAPTURE_LOOK: Duration = Duration::from_secs(60);
/// Look-ups of names that helper threads and commands no longer wait for, and that go on all the same.
pub const RESOLVING_MAX: usize = 32;
/// Pause of a thread that waits for room in the mailbox of the event loop.
pub const MAILBOX_REST: Duration = Duration::from_millis(10);
/// Callers whose lines of one second are counted apart.
pub const LOGGED_CALLERS_MAX: usize = 512;
/// Maximum number of concurrent admin connections. They do not count against `max_connections`.
pub const ADMIN_CONNECTIONS: usize = 64;
/// Bytes of a request body on the admin listener.
pub const ADMIN_BODY_MAX: u64 = 64 * 1024;
/// Unsent bytes of one connection above which its source is not read.
pub const HIGH_WATER: usize = 64 * 1024;
/// Bytes of a stream that are relayed before its client's unsent bytes are checked again. Translation may enlarge
/// events (a comment of three bytes to a ping of thirty), and a stream must stay within its 256 KiB.
pub const RELAY_SLICE: usize = 8 * 1024;
/// Time for which a stream with audio or images is read on after its client has left, up to its last event.
pub const MEDIA_LINGER: Duration = Duration::from_secs(10);
/// Bytes of such events that are read, without the media in them.
pub const MEDIA_LINGER_BYTES_MAX: usize = 1024 * 1024;
/// Time to wait for a missing `[DONE]` after a finish reason.
pub const DONE_GRACE: Duration = Duration::from_secs(2);
/// Empty lines accepted before a request (RFC 9112 section 2.2 wants at least one).
pub const EMPTY_LINES_MAX: u8 = 4;
/// Bytes of one chunk-size line or trailer section, extensions included.
pub const CHUNK_LINE_MAX: usize = 1024;
/// Bytes of a failed upstream answer that are read for its message.
pub const ERROR_BODY_MAX: usize = 64 * 1024;
/// Time to wait for that body: its status is known, and another target may be tried.
pub const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);
/// Characters of a provider's message passed on to a client.
pub const ERROR_MESSAGE_MAX: usize = 2048;
/// Bytes after these characters that are searched for secrets, too: one may begin before the end.
pub const MASK_AHEAD: usize = 4096;
/// Names of fields that are left out, which one request reports.
pub const DROPPED_MAX: usize = 16;
/// Bytes of a word in the log that a client or a provider chose.
pub const TOLD_BYTES_MAX: usize = 64;
/// Characters of one value in a table that a command prints; `--json` prints all of them.
pub const CELL_CHARS_MAX: usize = 120;
/// Characters of a value in the last column of such a table, which shifts no other column.
pub const LAST_CELL_CHARS_MAX: usize = 4096;
/// Bytes of such a word that are searched for a key: the bytes the log shows, and a key that begins at their end, with
/// each byte written as a six-byte escape.
pub const TOLD_LOOKED_AT_MAX: usize = 1024;
/// Bytes of the name of a model or of a request member, escapes included, that are compared with known names. A longer
/// name is unknown.
pub const NAME_BYTES_MAX: usize = 1024;
/// Keys of one ledger change that are logged one by one.
pub const KEYS_TOLD_MAX: usize = 100;
/// Group paths that are remembered: those configured now or earlier, and those of rows since the beginning of the
/// longest period.
pub const PATHS_MAX: usize = 1 << 16;
/// Poll events handled in one event-loop iteration. The kernel keeps the others for the next one.
pub const EVENTS_PER_TURN: usize = 1024;
/// Highest `max_connections`. Each client connection can have an upstream connection, and a 32-bit poll token can name
/// about a million sockets.
pub const CONNECTIONS_MAX: u64 = if usize::BITS == 64 { 1_000_000 } else { 500_000 };
/// Connections accepted from one listener in one event-loop iteration, so that a flood of them stalls no stream.
pub const ACCEPT_BATCH: usize = 64;
/// TLS handshakes continued in one event-loop iteration: each costs up to a millisecond of arithmetic.
pub const SHAKES_PER_TURN: usize = 16;
/// TLS handshakes of one host continued in one event-loop iteration, so that a flood of them leaves time for others.
pub const SHAKES_PER_HOST: usize = 4;
/// Pause of the listeners after an error such as EMFILE, which would repeat at once and make the loop spin.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of one read that make a connection a bulk sender. It is then served after connections that send less.
pub const BULK: usize = IO_SLICE / 4;
/// One in this number of served connections is a bulk sender, however many others wait.
pub const BULK_SHARE: usize = 16;
/// Length of the kernel's queue of connections not yet accepted.
pub const BACKLOG: i32 = 1024;
/// Bytes encrypted on a TLS connection before earlier ones have been sent: one record.
pub const TLS_UNSENT_MAX: usize = 16 * 1024;
/// Bytes read at a time during a TLS handshake. They may include a client's first request, which then waits.
pub const TLS_SHAKE_SLICE: usize = 4096;
/// Bytes of storage that the event loop keeps for its next actions, and for their answers. Storage that a burst has
/// made larger is deallocated.
pub const LIST_KEPT: usize = 4 * 1024;
/// Links for which the lists of links to be served or flushed have room from the start; see [`ROOM_MAX`].
pub const LINKS_ROOM: usize = 2 * ROOM_MAX;
/// Deadlines handled in one event-loop iteration.
pub const EXPIRED_PER_TURN: usize = 1024;
/// Rounds of flush, actions and replies in one event-loop iteration. Remaining work waits for the next one.
pub const ROUNDS_PER_TURN: usize = 16;
/// Links that a debug build checks after each iteration.
pub const LINKS_CHECKED: usize = 256;
/// Messages in the loop's mailbox. Each sender has few outstanding, so a full box means that the loop is dead.
pub const MAILBOX_MAX: usize = 64 * 1024;
/// Pause of a helper thread before it tries again to put an answer into a full mailbox.
pub const MAILBOX_PAUSE: Duration = Duration::from_millis(10);
/// Time that a closed TLS connection may take to send its last bytes before the socket is dropped.
pub const PARTING: Duration = Duration::from_secs(5);
/// Connections that are read before the resulting output is written. Writing at once would cost a tenth more time,
/// because reading and writing would evict each other from the processor's cache.
pub const RUNS_PER_FLUSH: usize = 64;
/// Bytes of log lines waiting for a slow stderr; lines beyond it are dropped and counted.
pub const LOG_BYTES_MAX: usize = 4 << 20;
/// Time that shutdown waits for a stderr that accepts no more lines.
pub const LOG_PARTING: Duration = Duration::from_secs(1);
/// Bytes of the body of a captured request or answer; the rest is left out and counted.
pub const CAPTURE_PART_MAX: usize = 4 << 20;
/// Requests to providers that are kept of one captured request.
pub const CAPTURE_SENT_MAX: usize = 8;
/// Bytes of a file of captured requests before another one is begun.
pub const CAPTURE_FILE_MAX: u64 = 64 << 20;
/// Bytes of the ledger's disk that captures leave free, and at most an eighth of the disk.
pub const CAPTURE_DISK_SPARED: u64 = 256 << 20;
/// Longest time for which the traffic of a key is captured.
pub const CAPTURE_TIME_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Bytes of spans waiting for a slow collector; spans beyond it are dropped and counted.
pub const SPANS_BYTES_MAX: usize = 4 << 20;
/// Spans per request to a collector.
pub const SPANS_PER_BATCH: usize = 512;
/// Pause of the busy thread that sends spans, so that spans accumulate.
pub const SPANS_TICK: Duration = Duration::from_secs(1);
/// Time that a collector may take to answer, including the connection.
pub const SPANS_ANSWER: Duration = Duration::from_secs(5);
/// Attempts to send a batch to a collector that cannot be reached or asks for a retry.
pub const SPANS_TRIES: u32 = 3;
/// Longest `Retry-After` of a collector that is honoured.
pub const SPANS_AGAIN_MAX: Duration = Duration::from_secs(10);
/// Time that shutdown waits for the last spans to be sent.
pub const SPANS_PARTING: Duration = Duration::from_secs(2);
/// Alerts that wait for their delivery, and ends of trouble that wait. Beyond it they are dropped; for alerts that is
/// logged.
pub const ALERTS_MAX: usize = 1000;
/// Pause of the busy thread that delivers alerts.
pub const ALERTS_TICK: Duration = Duration::from_millis(20);
/// Interval at which targets and the ledger are looked at for alerts.
pub const ALERTS_LOOK: Duration = Duration::from_secs(1);
/// Attempts to deliver alerts that may be made at once.
pub const ALERTS_AT_ONCE: usize = 8;
/// Time at the end that the present attempts to deliver alerts are waited for.
pub const ALERTS_PARTING: Duration = Duration::from_secs(2);
/// Time for a connection to the webhook, and as long again for TLS.
pub const ALERT_CONNECT: Duration = Duration::from_secs(5);
/// Time after the first failed attempt to deliver an alert until the next; it doubles with each.
pub const ALERT_RETRY: Duration = Duration::from_secs(1);
/// Longest such time.
pub const ALERT_RETRY_MAX: Duration = Duration::from_secs(300);
/// Age of an alert after which there is no other attempt.
pub const ALERT_RETRIES_END: Duration = Duration::from_secs(3600);
/// Time for which a process claims the subject of an alert in the ledger: longer than an attempt takes. After a kill
/// during an attempt, the next attempt is so late.
pub const ALERT_CLAIM: Duration = Duration::from_secs(15);
/// Time that the delivery of an alert is remembered: longer than any period of a budget.
pub const ALERT_KEPT: Duration = Duration::from_secs(70 * 86_400);
/// Time without a success after which a failing target raises an alert.
pub const ALERT_TARGET_FAILS: Duration = Duration::from_secs(60);
/// Shares of a budget that raise an alert.
pub const ALERT_THRESHOLDS_MAX: usize = 8;
/// Connections of either side for which the tables have room from the start. Beyond it they are copied as they grow.
pub const ROOM_MAX: usize = 16 * 1024;
/// Bytes of log lines for which the queue of the log thread has room from the start. The system provides memory only as
/// it fills, and growing would leave the former storage behind.
pub const LOG_ROOM: usize = 256 * 1024;
/// Bytes of waiting log lines at which the busy log thread is woken before its pause ends.
pub const LOG_ENOUGH: usize = 48 * 1024;
/// Pause of the busy log thread between two polls of its queue, so that the loop seldom has to wake it.
pub const LOG_TICK: Duration = Duration::from_millis(10);
/// Pause of the busy store thread, so that rows accumulate for one commit. A kill must lose at most 50 ms of rows.
pub const COMMIT_TICK: Duration = Duration::from_millis(25);
/// Waiting rows at which the busy store thread is woken before its pause ends.
pub const ROWS_ENOUGH: usize = 512;
/// Pause of the busy store thread when commits are seconds apart, since rows then only move from one queue to another.
pub const GATHER_TICK: Duration = Duration::from_millis(100);
/// Polls of an empty queue before its thread waits to be woken, and ticks since its last items within which further
/// ones must come for it to poll.
pub const QUEUE_BUSY_TICKS: u32 = 8;
/// Keys searched, newest first, for those that can send requests when a target fails or a queue is full.
pub const LIVE_KEYS_SEARCHED: usize = 1024;
/// Cache of the ledger's pages in KiB. It can be small because writes go to the end of the tables.
pub const LEDGER_CACHE_KIB: i64 = 128;
/// SQLite's cache in KiB while a gateway reads its ledger at the start.
pub const LEDGER_START_KIB: i64 = 32;
/// Bytes of one configuration file: the configuration itself, a secret, certificates.
pub const SETTINGS_FILE_MAX: usize = 4 << 20;
/// Bytes of one server answer to a command or a helper thread, such as a list of models.
pub const ASKED_BYTES_MAX: usize = 4 << 20;
/// Pages of one provider's list of models.
pub const LIST_PAGES_MAX: usize = 16;
/// Interval at which the store thread checks for key changes by other processes, which must take effect within 1 s.
pub const KEYS_LOOK: Duration = Duration::from_millis(250);
/// Interval of the check for key changes while no rows are written. An idle gateway then wakes once a second.
pub const KEYS_LOOK_IDLE: Duration = Duration::from_secs(1);
/// Keys sent to the loop at a time. Handling them takes far less than a millisecond.
pub const KEYS_PER_PIECE: usize = 256;
/// Bytes of the texts of such keys after which a piece of a ledger in a file ends.
pub const KEYS_PIECE_BYTES: usize = 256 * 1024;
/// Keys that a command reads and prints at a time, and bytes of their texts that end such a page earlier.
pub const KEYS_PAGE: (usize, usize) = (1000, 1 << 20);
/// Lines of one report that the admin API merges in memory. Reports of more lines are refused.
pub const REPORT_LINES_MAX: usize = 20_000;
/// Pause of the store thread between two such pieces while it reads all keys, so that the loop is not flooded.
pub const KEYS_REST: Duration = Duration::from_millis(1);
/// Time between two look-ups of unknown keys: the ledger is queried at most 1,000 times a second. Ids that arrive
/// meanwhile share the next look-up, so strangers cannot use up the look-ups of a new key.
pub const LOOKUP_PAUSE: Duration = Duration::from_millis(1);
/// Ids of one look-up: their answers must not delay the loop.
pub const IDS_PER_LOOKUP: usize = 128;
/// Maximum lag of the wall clock behind the newest usage record and the build date. Beyond it nothing is admitted.
pub const CLOCK_BEHIND_MAX: Duration = Duration::from_secs(300);
/// Time between two checks of a clock that is behind.
pub const CLOCK_LOOK: Duration = Duration::from_secs(1);
/// Requests that wait for a look-up. Further ones are refused at once.
pub const LOOKUPS_WAITING_MAX: usize = 1000;
/// Time that the gateway remembers that a key does not exist.
pub const UNKNOWN_KEPT: Duration = Duration::from_secs(1);
/// Unknown ids that are remembered. Beyond it the oldest is forgotten.
pub const UNKNOWN_MAX: usize = 8192;
/// Time after a burst of connections at which their memory is given back.
pub const TRIM_AFTER: Duration = Duration::from_secs(5);
/// Connections that end together after which the allocator is made to give back the end of its heap.
pub const BURST_MIN: usize = 1024;
/// Maximum of the integers that a ledger in a file stores.
pub const STORED_MAX: u64 = i64::MAX as u64;
/// Rows packed, or sums updated, in one step.
pub const ROWS_PER_SLICE: usize = 192;
/// Bytes of one line of a spill file, which is one row: its names take a few kilobytes.
pub const SPILL_LINE_MAX: usize = 256 * 1024;
/// Bytes of one spill file: [`ROWS_WAITING_ALONE_MAX`] rows of 2 KiB.
pub const SPILL_BYTES_MAX: u64 = 1 << 30;
/// Files with the names of spill files that are skipped and logged one by one.
pub const SPILLS_NAMED_MAX: u64 = 100;
/// Milliseconds since 1970 of the last moment that a ledger can store: the end of the year 9999.
pub const MOMENT_MAX: u64 = 253_402_300_799_999;
/// Longest pause between two such steps: as long as a request takes while a busy loop has thirty others.
pub const SLICE_REST: Duration = Duration::from_micros(500);
/// Such pauses together while the rows of a commit are packed. A kill loses these rows, and other processes wait for
/// the end of the commit.
pub const COMMIT_PAUSES: Duration = Duration::from_millis(4);
/// Rows of one commit. Further rows go into the next one.
pub const ROWS_PER_COMMIT: usize = 4096;
/// Connect timeout of a shared ledger while serving.
pub const SHARED_CONNECT: Duration = Duration::from_secs(1);
/// Time to wait for replicas of a shared ledger to have a write, if such a wait is configured.
pub const SHARED_REPLICAS: Duration = Duration::from_secs(1);
/// Longest answer of a shared ledger to a command, such as a report.
pub const SHARED_REPLY: usize = 1 << 30;
/// Longest answer of a shared ledger to a gateway that serves.
pub const SHARED_REPLY_SERVING: usize = 64 << 20;
/// Nodes of a cluster that are remembered, and tried one after another until one has the ledger.
pub const SHARED_NODES_MAX: usize = 64;
/// Time that a shared ledger may take to answer while serving.
pub const SHARED_ANSWER: Duration = Duration::from_secs(2);
/// Both times for a command, and until a gateway serves. No request waits meanwhile, and a busy host may need
/// more than a second.
pub const SHARED_COMMAND: Duration = Duration::from_secs(5);
/// Time that a request waits for its admission by a shared ledger before the ledger counts as unreachable. Longer than
/// the ledger's thread needs to find out.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum time that a request waits for the look-up of its unknown key. The look-up may have to wait for a commit, and
/// that for another process ([`STORE_BUSY`]).
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which a shared ledger must execute a question. A later one changes nothing and is asked again: a host
/// may not have reported its use of grants that have ended since. With [`KEYS_LOOK`] and a commit it is less than
/// [`GRANT_MARGIN`].
pub const ASK_FRESH: Duration = Duration::from_millis(600);
/// Time for which a limit counts as spent because a shared ledger said so. After that the ledger is asked again.
pub const COUNTS_FRESH: Duration = Duration::from_secs(1);
/// Keys whose sums of all hosts a shared ledger is asked for at once.
pub const SUMS_AT_ONCE: usize = 128;
/// Pause before it is asked for further ones.
pub const SUMS_PAUSE: Duration = Duration::from_millis(250);
/// Time for which a shared ledger must report less than a host knows before the host accepts it. Longer than it takes
/// to report what was admitted.
pub const COUNTS_SETTLE: Duration = Duration::from_secs(2);
/// Time that a shared ledger keeps the last start of a host. A host does not expect it for the last day of that.
pub const START_KEPT: Duration = Duration::from_secs(31 * 86_400);
/// Keys whose usage records one script of a shared ledger counts, which serves nobody else meanwhile.
pub const KEYS_PER_SCRIPT: usize = 128;
/// Time after its last commit within which a host expects its number in a shared ledger, which keeps it for seven days.
pub const BATCH_NUMBER: Duration = Duration::from_secs(6 * 86_400);
/// Former names of a host that end when it is announced again. Beyond that number they end with their lease.
pub const FORMER_NAMES_MAX: usize = 8;
/// Time after a host's last sign of life when its reservations in a shared ledger expire.
pub const LEASE: Duration = Duration::from_secs(15);
/// Rows of one commit in a shared ledger, which serves nobody else meanwhile.
pub const ROWS_PER_SCRIPT: usize = 1024;
/// Commands sent to a shared ledger at once.
pub const COMMANDS_PER_PIPELINE: usize = 256;
/// Rows that wait for their ledger. Beyond it nothing is admitted.
pub const ROWS_WAITING_MAX: u64 = 50_000;
/// Rows that wait for a shared ledger that cannot be reached, if a host admits on its own meanwhile.
pub const ROWS_WAITING_ALONE_MAX: u64 = 500_000;
/// Time that the counts of a window are kept in a shared ledger after its end, for requests still running.
pub const WINDOW_KEPT: Duration = Duration::from_secs(3600);
/// Malformed entries of a shared ledger that are logged one by one. Further ones are not logged.
pub const ODD_ENTRIES_MAX: usize = 1000;
/// Entries read from a shared ledger at a time, each of at most [`ROWS_PER_SCRIPT`] rows.
pub const ENTRIES_PER_READ: usize = 32;
/// Usage records that are searched for what the sums do not have, the newest first.
pub const RECENT_ROWS_MAX: usize = 100_000;
/// The newest usage records that are searched for the last use of each key in a list of keys.
pub const LAST_USE_ROWS_MAX: usize = 10_000;
/// Lifetime of a grant of a shared ledger, by the ledger's clock.
pub const GRANT: Duration = Duration::from_secs(2);
/// Time before the end of a grant when a host stops using it. Its admissions must be reported before they are granted
/// to others, even if the host, the server or its disk stalls for a moment.
pub const GRANT_MARGIN: Duration = Duration::from_secs(1);
/// Grants that a host has at once. A key beyond them asks the ledger for each request.
pub const GRANTS_MAX: u64 = 4096;
/// Minimum and maximum number of requests of one grant, if that many are left.
pub const GRANT_REQUESTS: (u64, u64) = (64, 1 << 16);
/// Time since the last request of a key within which the key gets a grant.
pub const GRANT_BUSY: Duration = Duration::from_secs(1);
/// Time that a grant lasts at its recent rate of use, if a limit leaves enough room. It is enlarged once half of it is
/// used. So a key asks four times a second, and near a limit as often as [`GRANT_REST`] allows.
pub const GRANT_AHEAD: Duration = Duration::from_millis(500);
/// Minimum time between two enlargements of a grant.
pub const GRANT_REST: Duration = Duration::from_millis(50);
/// Time that a request waits for capacity that is granted to other hosts.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(250);
/// Interval at which such a request asks again.
pub const CALL_TICK: Duration = Duration::from_millis(5);
/// Requests that ask at the same time while they wait.
pub const CALLS_AT_ONCE: usize = 8;
/// Time that running hosts may adopt a shared ledger that was restarted deliberately.
pub const ADOPTED_KEPT: Duration = Duration::from_secs(3600);
/// Attempts at a change in a shared ledger when other writers interfere.
pub const EDIT_TRIES: usize = 20;
/// Rows folded into the sums of their days in one step. Committing waits that long.
pub const ROWS_PER_FOLD: usize = 2000;
/// Rows folded in one step in a shared ledger, which serves nobody else meanwhile.
pub const ROWS_PER_SHARED_FOLD: usize = 500;
/// Pause between two such steps.
pub const FOLD_PAUSE: Duration = Duration::from_millis(200);
/// Time past the retention from which the age of the newest usage record stops folding: the clock may be wrong.
pub const FOLD_GAP: Duration = Duration::from_secs(365 * 86_400);
/// Pause when nothing is left to fold.
pub const FOLD_REST: Duration = Duration::from_secs(600);
/// Pause of the store thread after a failed commit.
pub const COMMIT_RETRY: Duration = Duration::from_millis(250);
/// Time at shutdown that rows that cannot be committed are retried before they are spilled. An attempt in progress
/// still finishes.
pub const LAST_COMMITS: Duration = Duration::from_secs(5);
/// Time to wait for a ledger that another process is writing to.
pub const STORE_BUSY: Duration = Duration::from_secs(5);
/// Time to retry the lock on a ledger's file: a command may briefly check who has it.
pub const LOCK_WAIT: Duration = Duration::from_millis(100);
/// Pause between two such attempts.
pub const LOCK_LOOK: Duration = Duration::from_millis(5);
/// Time that a starting gateway waits for another one that compares the ledger with the same mark.
pub const MARK_WAIT: Duration = Duration::from_secs(10);
/// Time that a command waits for a starting gateway to lock all files of the ledger.
pub const SEEN_WAIT: Duration = Duration::from_millis(500);

/// Time without a write after which the draft of a copy is a leftover.
pub const DRAFT_OLD: Duration = Duration::from_secs(3600);
/// Ledger files that a process keeps open for their locks, including replaced ones.
pub const LOCKED_FILES_MAX: usize = 1024;
/// Tokens of one kind in one row. Larger reports are absurd and would overflow sums for good.
pub const ROW_TOKENS_MAX: u64 = 1 << 40;
/// Bytes charged as one token for an answer that is too large to be parsed: text has at most that many per token.
pub const BYTES_PER_TOKEN_MAX: u64 = 8;
/// Cost of one row in nano-dollars, for the same reason.
pub const ROW_COST_MAX: u64 = 1 << 50;
/// Prompt tokens that one request may reserve in addition to an answer of the model's `reserve_tokens`, however small a
/// limit is. Without it a limit below the usual reservation would admit nobody.
pub const RESERVATION_FLOOR: u64 = 4096;
/// Bytes of a client's user name or conversation name that are used.
pub const NAMED_BYTES_MAX: usize = 1024;
/// Characters of a user's name that are kept in plain text.
pub const USER_CHARS_MAX: usize = 64;
/// Look-ups that wait for a resolver thread. Further ones fail.
pub const LOOKUPS_MAX: usize = 1024;
/// Look-ups under way at once, each in a thread with at most two sockets, which [`DESCRIPTORS_KEPT`] reserves. A name
/// server that is silent for one host must not delay another host.
pub const LOOKUP_THREADS_MAX: usize = 32;
/// Requests that may wait for slots of one model, whatever is configured.
pub const QUEUED_MAX: u64 = 10_000;
/// Idle keys of one queue whose use beyond their share is remembered. Beyond it the key with the smallest debt is
/// forgotten.
pub const DEBTORS_MAX: usize = 1024;
/// Bytes per second that the body of a request must arrive with on average after `body_timeout`.
pub const BODY_RATE_MIN: u64 = 16 * 1024;
/// Bytes of a request written to an upstream at a time. The others are cut from the client's own bytes as these leave.
pub const SEND_SLICE: usize = 32 * 1024;
/// Bytes that wait to be sent to one provider, besides the head of the request: a slice, and what is inserted into it.
pub const SEND_QUEUE_MAX: usize = 2 * SEND_SLICE;
/// Bytes of a form that are held until its model is known.
pub const UPLOAD_HOLD: usize = 256 * 1024;
/// Bytes of a form that is being sent which are read ahead of its provider.
pub const UPLOAD_AHEAD: usize = 64 * 1024;
/// Bytes of a request written to an upstream at a time if buffers are short.
pub const SEND_SLICE_MIN: usize = 1024;
/// Time that a process that hands over waits for requests that have begun to arrive. New ones wait in the kernel.
/// Arrived requests wait as long again for the successor to take the ledger. Later ones are asked to retry.
pub const QUIET_WAIT: Duration = Duration::from_secs(2);
/// Interval at which all connections are checked for such requests.
pub const QUIET_LOOK: Duration = Duration::from_millis(5);
/// Bytes of a line from a successor: a word, a number or the reason for a failure.
pub const SUCCESSOR_LINE_MAX: u64 = 64 * 1024;
/// Time that a successor may take to report that it is ready.
pub const SUCCESSOR_WAIT: Duration = Duration::from_secs(30);
/// Time that a successor may take to confirm that it has the ledger. Nothing is admitted meanwhile. Longer than two
/// waits for a ledger that another process is writing to ([`STORE_BUSY`]): at its opening and once more.
pub const TAKE_WAIT: Duration = Duration::from_secs(15);
/// Time that a process that has handed over waits at its end for the successor to confirm its last rows.
pub const LAST_ROWS_WAIT: Duration = Duration::from_secs(10);
/// Timeout of a stalled write to the other process of a hand-over.
pub const HANDOVER_STALL: Duration = Duration::from_secs(5);
/// Time that idle connections stay open when draining begins, for requests in flight.
pub const DRAIN_IDLE_GRACE: Duration = Duration::from_millis(500);
/// Bytes of an answer of unannounced length that may be copied when its storage grows: a millisecond.
pub const COPIED_MAX: usize = 4 << 20;
/// Size in bytes from which blocks are certainly extended by moving pages instead of copying (glibc: above the largest
/// `M_MMAP_THRESHOLD`, 32 MiB).
pub const EXTENDED_MIN: usize = 34 << 20;
/// Bytes of one body or event that the loop itself parses or translates. Larger ones go to a helper thread.
pub const WORK_MIN: usize = 512 * 1024;
/// Times that a debug build lets an input be scanned on average, by all readers together. Every loop over a part of it
/// costs one; a loop within a loop over the same part costs as many as it has items.
#[cfg(debug_assertions)]
pub const SCANS_MAX: usize = 50;
/// Bytes that may be scanned in addition, whatever the length of the input.
#[cfg(debug_assertions)]
pub const SCANS_FLOOR: usize = 16 * 1024;
/// Threads for such work. Each key uses one at a time, so one key cannot delay the others.
pub const WORK_THREADS: usize = 2;
/// Time that one event-loop iteration spends on connections before it writes the results and polls again, so that many
/// busy connections do not add up to a stall.
pub const TURN_TIME: Duration = Duration::from_millis(2);
/// Bytes of providers' events, with [`EVENT_WORK`] for each read, after which an iteration reads the clock again.
pub const UNCLOCKED_MAX: usize = 4 * 1024;
/// Work of a read besides its bytes, as a number of bytes.
pub const EVENT_WORK: usize = 256;
