//! Tollgate is a model gateway in one small binary. This page is the map of the project.
//!
//! A client speaks OpenAI Chat Completions, OpenAI Responses or Anthropic Messages with one key. The gateway
//! authenticates it, validates and meters the request, routes it to the model it names, and returns the answer, whole
//! or streamed, with exact usage in a ledger.
//!
//! # Layers
//!
//! Nine folders are nine layers. Each imports only those in its last column, and `tests/tidy.rs` checks it.
//!
//! | layer | what it is | imports |
//! |---|---|---|
//! | [`base`] | time, ids, buffers, timers, limits, and the seam between core and world ([`base::seam`]) | nothing of ours |
//! | [`wire`] | bytes to values: HTTP heads and bodies, server-sent events, JSON in place | base |
//! | [`dialect`] | the three API formats: requests, answers, streams, usage, errors | base, wire |
//! | [`policy`] | configuration, keys, catalog, limits, metering, rows, refusals | base, wire |
//! | [`gateway`] | the sans-I/O core; the only place where the others meet | base, wire, dialect, policy |
//! | [`simulator`] | the simulated provider, a second core on the same seam | base, wire, dialect, policy |
//! | [`io`] | sockets, TLS, clocks, signals, the helper threads for names, long work and log | base, policy |
//! | [`store`] | the ledgers in SQLite and Redis, their threads, and rows spilled to files | base, policy, io |
//! | [`cli`] | the command line, which puts everything together | all but dialect |
//!
//! A request passes six of them, which are the crate `engine`: a release has it optimised for speed. The others are
//! the crate `cold`, optimised for size. This crate exports all nine as its own modules.
//!
//! Below all of them `src/lanes` is a crate of its own: sixteen bytes of text looked at together, which a debug build
//! has optimised, too. Those that look through text may use it: wire and dialect.
//!
//! The manuals (tutorials, how-to pages, references, explanations) are in [`docs`].
//!
//! # One thread that matters
//!
//! Everything that decides is a **sans-I/O core**: [`gateway::Gateway`] owns connection state and buffers and is driven
//! by the verbs of [`base::seam::Core`]. It takes `now` as an argument and a seed at its start, so that a simulator can
//! drive the whole product without a socket. [`io::reactor`] is the one loop that drives it for real. Helper
//! threads exist only because looking up names, committing rows and writing to stderr can block, and because reading
//! tens of megabytes in one piece takes long (`gateway::offload`).
//!
//! # Three machines and a driver
//!
//! **A machine receives events and returns effects; only the driver knows two machines.** `gateway::client` lives as
//! long as a client's TCP connection and knows no exchange; `gateway::exchange` lives as long as a request and knows
//! no socket; `gateway::provider` lives as long as a connection to a provider and knows no exchange. `gateway::drive`
//! owns the tables of all three, tells them what the world or another of them has done, and does what they say. What is
//! none of them (configuration, keys, meter, ledger, buffers, counters) is in `gateway::cx`. The states of an exchange
//! stand in one table, in `gateway::exchange`, that is checked against its one match; those of the connections in
//! `client::connection` and `provider::connection`.
//!
//! # The one way of a request
//!
//! 1. `gateway::client` takes bytes; [`wire::inbound`] finds a head.
//! 2. `exchange::authorize` looks at the head before a byte of the body is read: path, key, method, scope, readiness,
//!    size, a limit that is already spent.
//! 3. The body is scanned by [`dialect::request`] as it arrives: strict JSON, fields, roles, an estimate of tokens.
//! 4. `exchange::reserve` finds the model, writes the body for its first target and takes a hold in the
//!    [`policy::meter`].
//! 5. `exchange::attempt` picks a target (a request may wait in `gateway::queue`), `exchange::dial` a connection;
//!    `provider::request` cuts the new body from the old one.
//! 6. `provider::connection` frames the answer; `exchange::stream` (events) or `exchange::reply` (whole answers) passes
//!    it on and observes usage.
//! 7. `exchange::finish` is the one end: settle the hold, hand a row to the ledger, write a log line.
//!
//! A streamed request passes 16 functions of the driver from its first byte to its first event in the client's queue,
//! and 5 for each further event; what is done when it lies there (writing, settling down) is not counted.
//! `scripts/bench path` prints them all.
//!
//! # How to change
//!
//! Every row needs the test that [`docs::testing`] names, too: mostly a transcript in `tests/fixtures/`.
//!
//! | to add | touch |
//! |---|---|
//! | a header sent to providers | `gateway::provider::request::Template`; its name in `RESERVED` of `policy::config::providers` if nobody may set it; the heads `@up-…` in `tests/it/scripts/text.rs` |
//! | a header of our answers | `gateway::client::response::ClientResponseHead` |
//! | a plan limit | its row in [`policy::plan`] and `Plan::share` (`BLESS=1 cargo test --test it docs::`); `LimitKind`, `Counts` and `limit` in `meter::limit`; `exchange::reserve`; what is counted while requests run also in `meter::Open`, `meter::account`, [`policy::row`] (`Running`) and `gateway::lifecycle::inheritance`. On shared ledgers, which do not keep it otherwise: [`policy::ask`] (`Limits`), `reserve::limits_of`, `store::remote` and its `admit.lua`; for running counts `meter::Lease`, `store::spill`, `append.lua`, `release.lua`; `Server::admit` in `tests/it/sim/ledger.rs` |
//! | a metric | `gateway::metrics`, and its row in [`docs::reference::metrics`] |
//! | a field of the log line | `gateway::access_log::AccessLogLine`, where `exchange::finish` makes one, and its row in [`docs::reference::log`]; what only the driver sees: a field of `exchange::state::Request`, set in `gateway::drive` before `finish`, which comes before the last bytes are written |
//! | an alert | `gateway::alerts`, where it is raised; [`policy::alert`], its kind and words; how it is delivered: `cli::serve::alerts`, `store::alerts`; the page "Get alerts by webhook" |
//! | a cause for the operator | `exchange::fault`, [`policy::refusal`], and its row in [`docs::reference::causes`]; `e2e::causes` |
//! | a way to fail over | `exchange::fault` (the kind; its arms in `may_try_next`, `is_targets_own`, `refusal`), where it is made (`exchange::stream::status_fault` for statuses, `exchange::reply` for bodies; what is read of a body: [`dialect::errors`]); `exchange::attempt::next_target` for another order of targets |
//! | an event of a stream | `dialect::delta::Delta`, a reader that makes it and a writer that takes it (`dialect::convert`; the compiler names the matches); the same for whole answers in `dialect::replies`; a pair in `tests/fixtures/cross/`, counted in `src/dialect/tests/examples.rs` |
//! | a state of a request | `exchange::state`, its arms in `exchange::on`, and its row in the table above them |
//! | a request field that is validated | [`dialect::request`] |
//! | a setting | its row in the table of its section ([`policy::settings`]); `BLESS=1 cargo test --test it docs::`, and an example in `tests/it/docs/examples.rs` if the default is not one |
//! | a form of a provider's list of models | `cli::discover` (what is read of it), `policy::discover`; when it is asked for: `gateway::discovery`, and what comes of it `lifecycle::listing` and `policy::config::fill` |
//! | an error | [`policy::refusal`] (one constructor), where it is raised, and what the client can do in `tests/it/docs/errors.rs` (`BLESS=1 cargo test --test it docs::`) |
//! | an endpoint | `exchange::authorize::Endpoint`, `gateway::local`, `gateway/openapi.json`, [`docs::api`] |
//! | an endpoint that is relayed | [`wire::Relay`], its entry in `dialect::relay`, its word in [`policy::keys`], `simulator::given`, `gateway/openapi.json`, [`docs::api`]; transcripts in `tests/fixtures/relay/` |
//! | a ledger column | [`policy::row`], [`store`], both kinds of it |
//!
//! # Where the guarantees stand
//!
//! | guarantee | place |
//! |---|---|
//! | every admitted request is settled once | `exchange::finish`, [`policy::meter::Hold`] |
//! | no retry after the first relayed byte | `exchange::stream::commit`: the draft is gone |
//! | no memory before its bound is checked | `gateway::budget`, [`wire::inbound`] |
//! | stale names reach nobody | [`base::slots`] |
//! | no target has more in flight than places, and nobody waits for one that is free | `provider::breaker`, `drive::places` |
//! | who waits has its turn, fairly by key | `gateway::queue` |
//! | a slow client slows its provider | `drive::providers::provider_wants_read`, `Exchange::intake` |
//! | nothing is let through unmetered | `gateway::ledger`, `exchange::reserve` |
//! | no answer is complete before its row is safe (`before-reply`) | `exchange::finish::await_row` |
//! | a jump of the clock neither frees nor blocks a key | [`policy::meter`], its accounts |
//! | nothing is admitted by a clock that must be wrong, and nothing folded | `gateway::clock`, `store::moments` |
//! | a key works from the moment it was issued | `gateway::lookups` |
//! | several hosts admit no more than one would, within the bound of [`docs::explanation::shared_ledger`] | `store::remote`, its scripts |
//! | one key keeps no other out | `gateway::budget`, `gateway::helpers`, [`io::worker`] |
//! | no body or answer holds the loop | `gateway::offload`, `limits::{WORK_MIN, TURN_TIME, PIPELINE_BURST, BULK}` |

#[doc(inline)]
pub use cold::{cli, simulator, store};
#[doc(inline)]
pub use engine::{base, dialect, gateway, io, policy, wire};

pub mod docs;
