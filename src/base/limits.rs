//! Every fixed bound that is not a setting, with its unit. Settings and their defaults stand in `policy`.

use std::time::Duration;

/// Header lines in one head; RFC 9110 leaves it to us, contract section 1 says 100.
pub const HEADERS_MAX: usize = 100;
/// Nesting of JSON; deeper is 400 (contract section 1).
pub const JSON_DEPTH_MAX: usize = 128;
/// Messages of a request, or items of a response's input, that are translated. The conversations of agents have
/// thousands.
pub const MESSAGES_MAX: usize = 100_000;
/// Parts, calls and results in all messages of a request that is translated.
pub const PARTS_MAX: usize = 100_000;
/// Tools of a request that is translated, those of namespaces included. Agents with many servers offer hundreds.
pub const TOOLS_MAX: usize = 4096;
/// Bytes of the name or the namespace of a tool that is translated. Providers take 128 at most.
pub const TOOL_NAME_MAX: usize = 1024;
/// Words that end an answer, of a request that is translated. Providers take a few.
pub const STOPS_MAX: usize = 1024;
/// Bytes of a member that is written again for a provider of the client's own shape: `include`, `stream_options`.
pub const REWRITTEN_MAX: usize = 64 * 1024;
/// Members of a request's top-level object that the scanner will look at; beyond it the body is refused.
pub const MEMBERS_MAX: usize = 4096;
/// Bytes read from or written to one connection before the next one has its turn.
pub const IO_SLICE: usize = 64 * 1024;
/// A refused request's declared body up to this many bytes is read and dropped, so that the connection lives on.
pub const DRAIN_BODY_MAX: u64 = 64 * 1024;
/// After a refusal that closes, how long a connection goes on reading and dropping, so that the answer is not reset.
pub const LINGER: Duration = Duration::from_secs(2);
/// Bytes a lingering connection reads and drops at most.
pub const LINGER_BYTES_MAX: u32 = 64 << 20;
/// Bytes of pipelined requests taken while one is being answered; beyond it the client is not read.
pub const PIPELINE_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a number that is read; a longer one is none.
pub const NUMBER_BYTES_MAX: usize = 1024;
/// Bytes by which the storage of a request's body grows ahead of what has arrived.
pub const BODY_STEP_MAX: usize = 1 << 20;
/// Addresses of one host that are tried before its target counts as unreachable.
pub const ADDRESSES_TRIED_MAX: usize = 3;
/// Time after which the next address of a host is tried while the one before has not answered (RFC 8305 section 5); it
/// is shorter if `connect_timeout` would not reach for all.
pub const ADDRESS_WAIT: Duration = Duration::from_millis(250);
/// Connections beyond `max_connections` that are still accepted, only to be told 503.
pub const RESERVE_CONNECTIONS: usize = 32;
/// Connections of one host beyond `max_connections_per_ip` that are still accepted, only to be told 503.
pub const RESERVE_PER_HOST: usize = 4;
/// Descriptors that are not for clients and providers: our own files and threads, health, and answers of 503.
pub const DESCRIPTORS_KEPT: u64 = 96;
/// Lines of requests without a valid key that are logged in a second; the rest is counted in one line.
pub const STRANGER_LINES_PER_SECOND: u32 = 100;
/// Connections to the admin listener at once; they do not count against `max_connections`.
pub const ADMIN_CONNECTIONS: usize = 64;
/// Bytes of a body that the admin listener takes (contract section 14).
pub const ADMIN_BODY_MAX: u64 = 64 * 1024;
/// Bytes unsent to one connection above which its source is not read.
pub const HIGH_WATER: usize = 64 * 1024;
/// Bytes of a stream that are relayed before its client's unsent bytes are looked at again: events may grow on their
/// way (a comment of three bytes to a ping of thirty), and a stream is to keep within its 256 KiB.
pub const RELAY_SLICE: usize = 8 * 1024;
/// Time to wait for a missing `[DONE]` after a finish reason.
pub const DONE_GRACE: Duration = Duration::from_secs(2);
/// Empty lines before a request that are forgiven (RFC 9112 section 2.2 wants one at least).
pub const EMPTY_LINES_MAX: u8 = 4;
/// Bytes of one chunk-size line or trailer section, extensions included.
pub const CHUNK_LINE_MAX: usize = 1024;
/// Bytes of a failed upstream answer that are read for its message.
pub const ERROR_BODY_MAX: usize = 64 * 1024;
/// How long that body is waited for: its status has been told, and another target may be tried.
pub const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);
/// Characters of a provider's message passed on to a client.
pub const ERROR_MESSAGE_MAX: usize = 2048;
/// Bytes of a word that a client or a provider chose, in the log.
pub const TOLD_BYTES_MAX: usize = 64;
/// Characters of one value in a table that a command prints; `--json` prints all of them.
pub const CELL_CHARS_MAX: usize = 120;
/// The same in the last column, which makes no other column move.
pub const LAST_CELL_CHARS_MAX: usize = 4096;
/// Bytes of such a word in which a key is looked for: what the log shows, and a key that begins at its end, each byte
/// of it written as an escape of six.
pub const TOLD_LOOKED_AT_MAX: usize = 1024;
/// Bytes of the name of a model or of a member of a request, escapes included, that are compared with known names; a
/// longer name is unknown.
pub const NAME_BYTES_MAX: usize = 1024;
/// Keys of one change in the ledger that are told one by one in the log.
pub const KEYS_TOLD_MAX: usize = 100;
/// Paths of groups that are remembered: those configured, and those that were or that rows since the beginning of the
/// longest period are of.
pub const PATHS_MAX: usize = 1 << 16;
/// Poll events taken in one turn of the loop; the kernel keeps the rest for the next.
pub const EVENTS_PER_TURN: usize = 1024;
/// Highest `max_connections`. Each client connection can have an upstream connection, and a 32-bit poll token can name
/// about a million sockets.
pub const CONNECTIONS_MAX: u64 = if usize::BITS == 64 { 1_000_000 } else { 500_000 };
/// Connections accepted from one listener in one turn, so that a flood of them stalls no stream.
pub const ACCEPT_BATCH: usize = 64;
/// TLS handshakes gone on with in one turn: each costs up to a millisecond of arithmetic.
pub const SHAKES_PER_TURN: usize = 16;
/// Rest of the listeners after an error such as EMFILE: the error would come again at once, and the loop must not spin.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Length of the kernel's queue of connections not yet accepted.
pub const BACKLOG: i32 = 1024;
/// Bytes of a TLS connection that are encrypted before the ones before them have left: one record.
pub const TLS_UNSENT_MAX: usize = 16 * 1024;
/// Bytes read at a time during a TLS handshake; a client's first request may lie among them, and waits for its turn.
pub const TLS_SHAKE_SLICE: usize = 4096;
/// Deadlines handled in one turn.
pub const EXPIRED_PER_TURN: usize = 1024;
/// Rounds of flush, actions and replies in one turn; what is still to do then waits for the next turn.
pub const ROUNDS_PER_TURN: usize = 16;
/// Messages in the loop's mailbox. Senders have few outstanding each, so a full box means that the loop is dead.
pub const MAILBOX_MAX: usize = 64 * 1024;
/// Time that a closed TLS connection may take to send its last bytes before the socket is dropped.
pub const PARTING: Duration = Duration::from_secs(5);
/// Connections that are read from before what that has led to is written. Writing at once would cost a tenth more
/// time, since reading and writing would drive each other out of the processor's cache.
pub const RUNS_PER_FLUSH: usize = 64;
/// Bytes of log lines waiting for a slow stderr; lines beyond it are dropped and counted.
pub const LOG_BYTES_MAX: usize = 4 << 20;
/// Time that shutdown waits for a stderr that takes no more lines.
pub const LOG_PARTING: Duration = Duration::from_secs(1);
/// Bytes of spans waiting for a slow collector; spans beyond it are dropped and counted.
pub const SPANS_BYTES_MAX: usize = 4 << 20;
/// Spans that a collector is sent at a time.
pub const SPANS_PER_BATCH: usize = 512;
/// Rest of the busy thread that sends spans: they gather meanwhile.
pub const SPANS_TICK: Duration = Duration::from_secs(1);
/// Time that a collector may take to answer, including the connection.
pub const SPANS_ANSWER: Duration = Duration::from_secs(5);
/// How often a batch is sent to a collector that cannot be reached or says that it may come again.
pub const SPANS_TRIES: u32 = 3;
/// How long such a collector is obeyed that says when.
pub const SPANS_AGAIN_MAX: Duration = Duration::from_secs(10);
/// Time that shutdown waits for the last spans to be sent.
pub const SPANS_PARTING: Duration = Duration::from_secs(2);
/// Connections of either side for which the tables have room from the start; beyond it they are copied as they grow.
pub const ROOM_MAX: usize = 16 * 1024;
/// Bytes of log lines for which the queue of the log thread has room from the start.
pub const LOG_ROOM: usize = 64 * 1024;
/// Rest of the busy log thread between two polls of its queue, so that the loop never has to wake it.
pub const LOG_TICK: Duration = Duration::from_millis(3);
/// The same for the store thread: rows gather for one commit. Contract section 5 allows a kill to lose 50 ms.
pub const COMMIT_TICK: Duration = Duration::from_millis(25);
/// Polls of an empty queue before its thread waits to be woken.
pub const QUEUE_IDLE_POLLS: u32 = 100;
/// Cache of the ledger's pages in KiB: what is written lies at the end of its tables.
pub const LEDGER_CACHE_KIB: i64 = 256;
/// Bytes of one file of the configuration: itself, a secret, certificates.
pub const SETTINGS_FILE_MAX: usize = 4 << 20;
/// Bytes of one answer to a question that a command or a helper thread asks a server, such as a list of models.
pub const ASKED_BYTES_MAX: usize = 4 << 20;
/// Pages of one provider's list of models.
pub const LIST_PAGES_MAX: usize = 16;
/// Interval at which the store thread checks for key changes by other processes, which must take effect within 1 s.
pub const KEYS_LOOK: Duration = Duration::from_millis(250);
/// Keys that the loop is told of at a time: it takes far less than a millisecond for them.
pub const KEYS_PER_PIECE: usize = 256;
/// Keys that a command reads and prints at a time.
pub const KEYS_PER_PAGE: usize = 1000;
/// Rest of the store thread between two such pieces while it reads all keys, so that they do not gather at the loop.
pub const KEYS_REST: Duration = Duration::from_millis(1);
/// Time between two look-ups of keys that are not known: the ledger is asked at most 1,000 times a second. Ids that
/// come meanwhile share the next look-up, so strangers cannot use up the look-ups of a key that was just issued.
pub const LOOKUP_PAUSE: Duration = Duration::from_millis(1);
/// Ids of one look-up: their answers must not hold up the loop.
pub const IDS_PER_LOOKUP: usize = 128;
/// By so much the wall clock may be behind the newest usage record and the build date; beyond it nothing is admitted.
pub const CLOCK_BEHIND_MAX: Duration = Duration::from_secs(300);
/// Time between two looks at a clock that is behind.
pub const CLOCK_LOOK: Duration = Duration::from_secs(1);
/// Requests that wait for a look-up; those beyond are refused at once.
pub const LOOKUPS_WAITING_MAX: usize = 1000;
/// Time that the gateway remembers that a key does not exist.
pub const UNKNOWN_KEPT: Duration = Duration::from_secs(1);
/// Ids that it remembers so; beyond it the oldest is forgotten.
pub const UNKNOWN_MAX: usize = 8192;
/// Rows that are packed, or sums that are brought up to date, in one go.
pub const ROWS_PER_SLICE: usize = 64;
/// Bytes of one line of a spill file, a row: its names are of a few kilobytes.
pub const SPILL_LINE_MAX: usize = 256 * 1024;
/// Bytes of one spill file: [`ROWS_WAITING_ALONE_MAX`] rows of 2 KiB.
pub const SPILL_BYTES_MAX: u64 = 1 << 30;
/// Files that are passed over although their names are those of spill files, and that are named one by one.
pub const SPILLS_NAMED_MAX: u64 = 100;
/// Milliseconds since 1970 of the last moment that a ledger can hold: the end of the year 9999.
pub const MOMENT_MAX: u64 = 253_402_300_799_999;
/// Rest between two such slices: as long as the loop needs for some requests.
pub const SLICE_REST: Duration = Duration::from_micros(100);
/// Rows of one commit; the rest goes into the next.
pub const ROWS_PER_COMMIT: usize = 4096;
/// Connect timeout of a shared ledger.
pub const SHARED_CONNECT: Duration = Duration::from_secs(1);
/// How long replicas of it are given to have what was written, where that is waited for.
pub const SHARED_REPLICAS: Duration = Duration::from_secs(1);
/// Nodes of a cluster that are remembered, and tried one after the other until one has the ledger.
pub const SHARED_NODES_MAX: usize = 64;
/// How long it is given to answer.
pub const SHARED_ANSWER: Duration = Duration::from_secs(2);
/// Time that a request waits for its admission by a shared ledger before that counts as unreachable; longer than its
/// thread needs to find out.
pub const ASK_PATIENCE: Duration = Duration::from_secs(4);
/// What a host holds in a shared ledger ends so long after the host was heard of last.
pub const LEASE: Duration = Duration::from_secs(15);
/// Rows of one commit in a shared ledger, which serves nobody else meanwhile.
pub const ROWS_PER_SCRIPT: usize = 1024;
/// Commands sent to a shared ledger in one go.
pub const COMMANDS_PER_PIPELINE: usize = 256;
/// Rows that wait for their ledger; beyond it nothing is admitted.
pub const ROWS_WAITING_MAX: u64 = 50_000;
/// The same for a shared ledger which cannot be reached, where a host admits alone meanwhile.
pub const ROWS_WAITING_ALONE_MAX: u64 = 500_000;
/// Time that the counts of a window are kept in a shared ledger after its end, for requests that still run.
pub const WINDOW_KEPT: Duration = Duration::from_secs(3600);
/// Entries of a shared ledger that are not what they should be and are named one by one; what is beyond is not told.
pub const ODD_ENTRIES_MAX: usize = 1000;
/// Entries read from a shared ledger at a time, each of [`ROWS_PER_SCRIPT`] rows at most.
pub const ENTRIES_PER_READ: usize = 32;
/// Lifetime of a grant of a shared ledger, by the ledger's clock.
pub const GRANT: Duration = Duration::from_secs(2);
/// So much earlier a host takes it to be over: what it has admitted must be told before that is granted to others, also
/// where the host, the server or its disk stands still for a moment.
pub const GRANT_MARGIN: Duration = Duration::from_secs(1);
/// Grants that a host has at once; a key beyond them is asked for each time.
pub const GRANTS_MAX: u64 = 4096;
/// Requests that a grant is given for at least and at most, as far as there are so many left.
pub const GRANT_REQUESTS: (u64, u64) = (64, 1 << 16);
/// A key is granted something if it has asked before within this time.
pub const GRANT_BUSY: Duration = Duration::from_secs(1);
/// A grant lasts so long at the rate at which it was used, where a limit leaves room for so much; once half of it is
/// used it is enlarged. So a key asks four times a second, and as often as [`GRANT_REST`] allows where a limit is near.
pub const GRANT_AHEAD: Duration = Duration::from_millis(500);
/// Between two enlargements of a grant.
pub const GRANT_REST: Duration = Duration::from_millis(50);
/// How long a request waits for what other hosts have been granted.
pub const CALL_PATIENCE: Duration = Duration::from_millis(250);
/// How often it asks meanwhile.
pub const CALL_TICK: Duration = Duration::from_millis(5);
/// Requests that ask at a time while they wait.
pub const CALLS_AT_ONCE: usize = 8;
/// How long hosts that run take over a shared ledger that was begun again on purpose.
pub const ADOPTED_KEPT: Duration = Duration::from_secs(3600);
/// How often a change in a shared ledger is tried again when somebody else came in between.
pub const EDIT_TRIES: usize = 20;
/// Rows folded into the sums of their days in one go; committing waits that long.
pub const ROWS_PER_FOLD: usize = 2000;
/// The same in a shared ledger, which serves nobody else meanwhile.
pub const ROWS_PER_SHARED_FOLD: usize = 500;
/// Rest between two such goes.
pub const FOLD_PAUSE: Duration = Duration::from_millis(200);
/// Nothing is folded while the newest usage record is older than the retention and this: the clock may be wrong.
pub const FOLD_GAP: Duration = Duration::from_secs(365 * 86_400);
/// Rest when nothing is left to fold.
pub const FOLD_REST: Duration = Duration::from_secs(600);
/// Rest of the store thread after a failed commit.
pub const COMMIT_RETRY: Duration = Duration::from_millis(250);
/// At the end, how long rows that cannot be committed are tried again before they are spilled. A try that is under way
/// then comes to its end.
pub const LAST_COMMITS: Duration = Duration::from_secs(5);
/// How long a ledger that another process is writing to is waited for.
pub const STORE_BUSY: Duration = Duration::from_secs(5);
/// How long the lock on a ledger's file is tried for: a command may look for a moment who has it.
pub const LOCK_WAIT: Duration = Duration::from_millis(100);
/// Rest between two such tries.
pub const LOCK_LOOK: Duration = Duration::from_millis(5);
/// Time that a command waits for a gateway that starts to have locked all files of the ledger.
pub const SEEN_WAIT: Duration = Duration::from_millis(500);
/// Files of ledgers that a process keeps open for their locks, those that were replaced included.
pub const LOCKED_FILES_MAX: usize = 1024;
/// Tokens of one kind in one row; larger reports are absurd and would overflow sums for ever after.
pub const ROW_TOKENS_MAX: u64 = 1 << 40;
/// Bytes of an answer for each token that it is charged if it is too large to be read: a text costs no less.
pub const BYTES_PER_TOKEN_MAX: u64 = 8;
/// Cost of one row in nano-dollars, for the same reason.
pub const ROW_COST_MAX: u64 = 1 << 50;
/// Tokens of a prompt that one request may reserve, with an answer of the model's `reserve_tokens`, however small a
/// limit is: without it a limit below the usual reservation would admit nobody.
pub const RESERVATION_FLOOR: u64 = 4096;
/// Bytes of what a client calls its user or its conversation that are looked at.
pub const NAMED_BYTES_MAX: usize = 1024;
/// Characters of a user's name that are kept in plain.
pub const USER_CHARS_MAX: usize = 64;
/// Look-ups waiting for the resolver thread; one beyond it is answered with an empty list.
pub const LOOKUPS_MAX: usize = 1024;
/// Requests that may wait for places of one model, whatever is configured.
pub const QUEUED_MAX: u64 = 10_000;
/// Keys of one queue with none waiting that are remembered for what they have had beyond their share; beyond it who
/// owes the least is forgiven.
pub const DEBTORS_MAX: usize = 1024;
/// Bytes per second that a request's body must bring on average once `body_timeout` has passed.
pub const BODY_RATE_MIN: u64 = 16 * 1024;
/// Bytes of a request written to an upstream at a time; the rest is cut from the client's own bytes as these leave.
pub const SEND_SLICE: usize = 32 * 1024;
/// The same where buffers are short.
pub const SEND_SLICE_MIN: usize = 1024;
/// Time that a process that hands over waits for requests that have begun to arrive; new ones wait in the kernel. These
/// wait as long again for the successor to take the ledger, and are told to come again if they come later.
pub const QUIET_WAIT: Duration = Duration::from_secs(2);
/// Rest between two looks whether such requests are still arriving: each look is at every connection.
pub const QUIET_LOOK: Duration = Duration::from_millis(5);
/// Bytes of a line that a successor says: a word, a number or why it cannot go on.
pub const SUCCESSOR_LINE_MAX: u64 = 64 * 1024;
/// Time that a successor may take to report that it is ready.
pub const SUCCESSOR_WAIT: Duration = Duration::from_secs(30);
/// How long it may take, once it is given the ledger, to say that it has it; nothing is admitted meanwhile. Longer than
/// a ledger is waited for that another process is writing to ([`STORE_BUSY`]), at its opening and once more.
pub const TAKE_WAIT: Duration = Duration::from_secs(15);
/// Time that a process that has handed over waits at its end for its last rows to be safe with the successor.
pub const LAST_ROWS_WAIT: Duration = Duration::from_secs(10);
/// Timeout of a stalled write to the other process of a hand-over.
pub const HANDOVER_STALL: Duration = Duration::from_secs(5);
/// Time that idle connections stay open when draining begins, for requests that are on their way.
pub const DRAIN_IDLE_GRACE: Duration = Duration::from_millis(500);
/// Bytes of an answer whose length is not announced that may be copied where its storage grows: a millisecond.
pub const COPIED_MAX: usize = 4 << 20;
/// Blocks from this size on are surely extended by moving pages, not by copying (glibc: above the largest
/// `M_MMAP_THRESHOLD`, 32 MiB).
pub const EXTENDED_MIN: usize = 34 << 20;
/// Bytes of one body or event that are read or translated on the loop itself; more is given to a helper thread.
pub const WORK_MIN: usize = 512 * 1024;
/// Threads for such work. Each key has one at a time: so one key alone delays no other.
pub const WORK_THREADS: usize = 2;
/// Time one turn of the loop spends on connections before it writes what has come of it and polls again; so that no
/// crowd of busy connections adds up to a stall.
pub const TURN_TIME: Duration = Duration::from_millis(2);
