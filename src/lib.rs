//! Tollgate is a model gateway in one small binary. This page is the map of the project.
//!
//! A client speaks OpenAI Chat Completions, OpenAI Responses or Anthropic Messages with one key. The gateway
//! authenticates it, validates and meters the request, routes it to the requested model, and returns the answer,
//! complete or streamed. A ledger records the exact usage.
//!
//! # Layers
//!
//! Nine folders are nine layers. Each imports only the layers in its last column; `tests/tidy.rs` checks it.
//!
//! | layer | what it is | imports |
//! |---|---|---|
//! | [`base`] | time, ids, buffers, timers, limits, and the seam between core and world ([`base::seam`]) | none |
//! | [`wire`] | bytes to values: HTTP heads and bodies, server-sent events, JSON in place | base |
//! | [`dialect`] | the three API formats: requests, answers, streams, usage, errors | base, wire |
//! | [`policy`] | configuration, keys, catalog, limits, metering, rows, refusals | base, wire |
//! | [`gateway`] | the sans-I/O core; the only layer that combines the others | base, wire, dialect, policy |
//! | [`simulator`] | the simulated provider, a second core on the same seam | base, wire, dialect, policy |
//! | [`io`] | sockets, TLS, clocks, signals, the helper threads for name resolution, long work and log | base, policy |
//! | [`store`] | the ledgers in SQLite and Redis, their threads, and rows spilled to files | base, policy, io |
//! | [`cli`] | the command line, which puts everything together | all but dialect |
//!
//! A crate is a folder below `src`. A request passes six layers: base, wire and policy are crates of their own, and
//! dialect, gateway and io are the crate `engine`. A release optimises them for speed, except for policy, most of which
//! no request calls: it is optimised for size, like the other layers, which are the crate `control`. The functions of
//! policy that requests call are `#[inline]`, and compiled where they are called. The crate `lanes`, below all of them,
//! scans text sixteen bytes at a time; debug builds optimise it, too, and only wire and dialect may use it. This crate
//! exports the nine layers as its own modules.
//!
//! The manuals (tutorials, how-to pages, references, explanations) are in [`docs`].
//!
//! # One thread that matters
//!
//! All decisions are made in a **sans-I/O core**: [`gateway::Gateway`] owns connection state and buffers and is driven
//! by the methods of [`base::seam::Core`]. It takes `now` as an argument and a seed at its start, so that a simulator
//! can drive the whole product without a socket. [`io::reactor`] is the event loop that drives it in production. Helper
//! threads exist only because resolving names, reading secrets, committing rows, answering the admin API and writing to
//! stderr can block, and because reading tens of megabytes in one piece or building a catalog takes long
//! (`gateway::orders::offload`).
//!
//! # Three state machines and a driver
//!
//! **A state machine receives events and returns effects; only the driver knows more than one of them.**
//! `gateway::client` lives as long as a client's TCP connection and knows no exchange. `gateway::exchange` lives as
//! long as a request and knows no socket. `gateway::provider` lives as long as a connection to a provider and knows no
//! exchange. `gateway::drive` owns the tables of all three, passes events to them, and performs their effects.
//! Everything else (configuration, keys, meter, ledger, buffers, counters) is in `gateway::cx`. The transitions
//! of an exchange are in one table, `exchange::transitions`, which a debug build checks at every step; those of the
//! connections are in `client::connection` and `provider::connection`.
//!
//! # The path of a request
//!
//! 1. `gateway::client` takes bytes; [`wire::inbound`] finds a head.
//! 2. `exchange::admit::authorize` checks the head before a byte of the body is read: path, key, method, scope,
//!    readiness, size, and limits that are already spent.
//! 3. Once the body is complete, `exchange::body::reading` reads it with [`dialect::request`]: strict JSON, fields,
//!    roles, an estimate of tokens. `exchange::admit::choose_model` finds the model, and `Attempt::first_target` in
//!    `exchange::job` the first target.
//! 4. `replace::write_first` in `exchange::admit::replace` has `exchange::body::build` write the body for that target,
//!    from pieces of the client's or as a translation. `exchange::body::translating` has a helper thread read or
//!    translate a long body.
//! 5. `Reserving::begin` in `exchange::admit::reserve` makes a reservation in the [`policy::meter`]: a request that
//!    cannot be written is not charged. If the reservation does not fit, `exchange::admit::replace` may choose a
//!    cheaper model, and the body is written again. `exchange::attempt` then takes a slot at the target, and
//!    `exchange::attempt::dial` a connection. Without a free slot, a request may wait in `exchange::attempt::queue`,
//!    whose order is in `gateway::queue`. If the target has changed since step 3, the body is written again.
//! 6. `wire::head` parses the head of the answer, `exchange::answer::head` decides on it, `provider::connection` reads
//!    the framing of the body; `exchange::answer::stream` (events) or
//!    `exchange::answer::reply` (complete answers) passes it on and reads its usage.
//! 7. `exchange::finish` is the only end: settles the reservation, passes a row to the ledger, writes a log line.
//!
//! `scripts/bench path` prints the functions of the driver that a streamed request passes from its first byte to its
//! first event in the client's queue, and for each further event.
//!
//! # How to change
//!
//! Every change also needs the test that [`docs::testing`] names, usually a transcript in `tests/fixtures/`.
//!
//! Files are named from `src`, `src/engine` or `src/control`, or from the root of the repository. A change of one kind
//! touches these files, and what raises or reads the new thing; `tests/tidy.rs` checks that they exist.
//!
//! | to add | change |
//! |---|---|
//! | a header sent to providers | `Template` in `gateway/provider/request.rs` or, for one of the client's, `gateway/provider/credential.rs`; `cli/http/provider_client.rs`; `RESERVED` in `policy/config/providers.rs` |
//! | a response header | `ClientResponseHead` and `EXPOSED` in `gateway/client/response.rs`; `Clients::write_head` in `gateway/drive/clients.rs`; `gateway/openapi.json`, `src/docs/api.md` |
//! | a span of limits | `Per` in `policy/plan/caps.rs` |
//! | a resource that limits count | `Resource` in `policy/plan/caps.rs`, `policy/meter/windows.rs` (its count), `policy/meter/limit.rs` (its words), `gateway/exchange/admit/cost.rs` (what a request uses), `policy/row.rs` |
//! | a setting for one limit | its row and its `Shorthand` in `policy/plan/mod.rs`; its option in `cli/keys/options.rs`; `gateway/admin/page.html` |
//! | a metric | its field in `gateway/counters.rs`, its lines in `gateway/report/metrics/exposition.rs`; `src/docs/reference/metrics.md` |
//! | a field of the log line | `gateway/report/access_log.rs`, `gateway/exchange/finish.rs`; `src/docs/reference/log.md`; what only the driver sees: a field in `gateway/exchange/request.rs` |
//! | an alert | `policy/alert.rs` (kind), `gateway/upkeep/alert_rules.rs` (raised), `gateway/report/alert_watch.rs` (what it compares), `cli/alerts/body.rs` (words); `src/docs/how-to/webhook-alerts.md` |
//! | a problem in the status | `gateway/upkeep/trouble.rs` (what and why), `policy/cause.rs` (next step); `src/docs/reference/health.md` |
//! | a cause for the operator | its kind and cause in `gateway/exchange/fault.rs`; its next step in `policy/cause.rs`; a new error in `policy/refusal/upstream.rs`; `src/docs/reference/causes.md`, `tests/fixtures/chat/causes.txt` |
//! | a way to fail over | its kind in `gateway/exchange/fault.rs`, its origin in `gateway/exchange/provider_error.rs` or `gateway/exchange/answer/reply.rs`; the order: `gateway/exchange/attempt/failover.rs` |
//! | another spelling or name of a member in an answer | `read_stream` of the format; `dialect/keys.rs`; within one format `dialect/relay/event.rs` and `dialect/relay/text.rs`; a file in `tests/fixtures/reports/` |
//! | a new kind of stream event | `Delta` in `dialect/neutral/delta.rs`, a reader and a writer; `dialect/translate/answer/whole.rs`; see `dialect/mod.rs`; a pair in `tests/fixtures/cross/` |
//! | an API format | `Shape` in `wire/endpoint.rs`, its rows in `dialect/format.rs`, a folder of `dialect`; see `dialect/mod.rs` |
//! | a state of a request | `gateway/exchange/state.rs`, its arms in `gateway/exchange/dispatch.rs`, its rows in `gateway/exchange/transitions.rs` |
//! | a field that is validated | `dialect/request/members.rs`, `dialect/request/body.rs`, `dialect/chat/check.rs` |
//! | a setting | its row in the table of its section, such as `policy/config/server.rs`; its page by `BLESS=1 cargo test --test it docs::`, with an example in `tests/it/docs/examples.rs` if its default is none |
//! | a form of a list of models | `cli/discover.rs` (reading), `policy/discover.rs`; `gateway/upkeep/listing.rs`, `policy/config/fill.rs` (results) |
//! | an error | its constructor in `policy/refusal.rs`, the code that raises it; advice for the client in `tests/it/docs/errors.rs` (`BLESS=1` writes the page) |
//! | an endpoint | `Endpoint` in `gateway/exchange/request.rs`, `gateway/exchange/admit/authorize.rs`, `gateway/exchange/local.rs`; its scope in `policy/keys.rs`; `gateway/openapi.json`, `src/docs/api.md` |
//! | a pass-through endpoint | `Passthrough` in `wire/endpoint.rs`, `dialect/passthrough/mod.rs`, `gateway/exchange/admit/cost.rs`, `simulator/passthrough.rs`; `gateway/openapi.json`, `src/docs/api.md` |
//! | a ledger column | its field in `RareNames` and its row in `COLUMNS` in `policy/row.rs`; `SCHEMA` in `store/sqlite/tables.rs`; `gateway/exchange/finish.rs`, which sets it; `src/docs/reference/ledger.md` |
//! | a file that is read or written | `io/files.rs`, the only module that opens and replaces files; `src/docs/reference/exit-codes.md` |
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | hold | the reservation of one request in the meter of its process: tokens, money, a running request ([`policy::meter::Hold`]) |
//! | held | the request runs; what it may use at most counts as used |
//! | settled | the request has ended; its actual use counts |
//! | refunded | the request has ended without use; nothing counts |
//! | adopted | a hold of a predecessor, which the new process settles |
//! | lease | a hold that a shared ledger knows, too: it counts for all hosts |
//! | asked, ruled | a lease is requested from the shared ledger ([`policy::ledger::Ask`]), which admits or refuses it |
//! | released | a lease is given back without a usage record ([`policy::ledger::Release`]) |
//! | grant | an amount that a shared ledger gives to a host in advance; the host makes leases from it by itself |
//! | slot | a target may serve one more request |
//! | budget | an amount of money; memory has a capacity, and keys have shares of it |
//!
//! # Where the guarantees are implemented
//!
//! | guarantee | code |
//! |---|---|
//! | every admitted request is settled once | `exchange::finish`, [`policy::meter::Hold`] |
//! | no retry after the first relayed byte | `exchange::answer::stream::commit`: the draft is released |
//! | no memory before its bound is checked | `gateway::memory::shares`, [`wire::inbound`] |
//! | a stale handle reaches no object | [`base::slots`] |
//! | a target's requests in flight never exceed its slots, and no request waits for a free slot | `provider::breaker`, `drive::waiting` |
//! | waiting requests are served fairly by key | `gateway::queue` |
//! | a slow client slows its provider | `drive::responses::provider_wants_read`, `Answering::intake` |
//! | no request passes unmetered | `gateway::accounts::ledger`, `exchange::admit::reserve` |
//! | no answer is complete before its row is committed (`before-reply`) | `exchange::finish::await_row` |
//! | a jump of the clock neither frees nor blocks a key | the accounts of [`policy::meter`] |
//! | no request is admitted, and no row folded, while the clock is implausible | `gateway::accounts::clock`, `store::moments` |
//! | a key works immediately after it is issued | `gateway::accounts::lookups` |
//! | several hosts admit no more than one would, within the bound of [`docs::explanation::shared_ledger`] | `store::remote`, its scripts |
//! | one key cannot lock out others | `gateway::memory::shares`, `gateway::upkeep::helpers`, [`io::worker`] |
//! | a captured request shows no credential, and waits for no disk | `gateway::report::captures`, `cli::serve::capture` |
//! | no body or answer blocks the event loop | `gateway::orders::offload`, `limits::{WORK_MIN, TURN_TIME, PIPELINE_BURST, BULK}` |

#[doc(inline)]
pub use control::{cli, simulator, store};
#[doc(inline)]
pub use engine::{base, dialect, gateway, io, policy, wire};

pub mod docs;
