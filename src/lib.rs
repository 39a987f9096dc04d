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
//! A crate is a folder below `src`. A request passes six layers: they are the crate `engine`, which a release optimises
//! for speed. The others are the crate `control`, optimised for size. The crate `lanes`, below all of them, scans text
//! sixteen bytes at a time; debug builds optimise it, too, and only wire and dialect may use it. This crate exports the
//! nine layers as its own modules.
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
//! 3. `exchange::body::reading` scans the body as it arrives with [`dialect::request`]: strict JSON, fields, roles, an
//!    estimate of tokens. Once the body is complete (`reading::complete`), `exchange::admit::choose_model` finds the
//!    model, and `Attempt::first_target` in `exchange::job` the first target.
//! 4. `build::write_first` in `exchange::body::build` writes the body for that target, from pieces of the client's or
//!    as a translation. `exchange::body::translating` has a helper thread translate a long body.
//! 5. `Reserving::begin` in `exchange::admit::reserve` makes a reservation in the [`policy::meter`]: a request that
//!    cannot be written is not charged. `exchange::attempt` then takes a slot at the target, and
//!    `exchange::attempt::dial` a connection. Without a free slot, a request may wait in `exchange::attempt::queue`,
//!    whose order is in `gateway::queue`. If the target has changed since step 3, the body is written again.
//! 6. `provider::connection` reads the framing of the answer; `exchange::answer::stream` (events) or
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
//! | to add | change |
//! |---|---|
//! | a header sent to providers | `gateway::provider::request::Template` (the same for every request) or `gateway::provider::credential` (one of the client's); `cli::http::provider_client` for calls of the command line; its name in `RESERVED` of `policy::config::providers` if it must not be configurable; the heads `@up-…` in `tests/it/scripts/text.rs` |
//! | a response header | in `gateway::client::response`, `ClientResponseHead` (its field and its line) and `EXPOSED`, the list for browsers; `Clients::write_head` in `gateway::drive::clients` sets the field, by a field of `WholeReply` if the value depends on the answer; `gateway/openapi.json`, [`docs::api`]. A stream sends its head before its first event, so its cost and usage are not known yet |
//! | a limit of something that `meter::account` counts already | [`policy::plan`]: its setting, and its row in `limits!`, from which the limits of keys, shares of hosts, the request to a shared ledger, names and lists follow; its `ruling` there is a number that neither another limit nor a constant of `store::remote::code` has; `meter::limit`: its count and its message; a call of `reached` in `admit.lua`, without which a shared ledger does not enforce the limit; the models of that script, `Server::admit` in `tests/it/sim/ledger.rs` and `tests/it/sim/fleet/server.rs`; its option in `cli/keys/options.rs`; `LIMITS` in `gateway/admin/page.html`; `admin::status::groups`; `gateway/admin/openapi.json` (`BLESS=1 cargo test --test it docs::` writes the manual). |
//! | a limit of running requests | the same, and `meter::Open`, `meter::account`, `meter::Lease`, [`policy::row`] (`Running`), `gateway::upkeep::inheritance`, `store::spill`, `append.lua` and `release.lua` |
//! | a limit of something new | the same, and `meter::Amount`, `exchange::admit::cost` (what a request may use, and has used), [`policy::ask`] and `gateway::accounts::grants`, [`policy::row`] and [`policy::usage`], the sums in both kinds of ledger ([`store`], every script in `store::scripts`), `cli::serve::ledger` (counts after a restart), `gateway::exchange::local` and `gateway::client::response` (quota and headers) |
//! | a metric | `gateway::report::metrics`, and its row in [`docs::reference::metrics`] |
//! | a field of the log line | `gateway::report::access_log::AccessLogLine`, where `exchange::finish` makes one, and its row in [`docs::reference::log`]; what only the driver sees: a field of `exchange::request::Request`, set in `gateway::drive` before `finish`, which comes before the last bytes are written |
//! | an alert | `gateway::upkeep::alerts`, where it is raised; [`policy::alert`], its kind; `cli::alerts::body`, its words; how it is delivered and remembered: `cli::serve::alerts`, `cli::alerts`, `store::alerts`; the page "Get alerts by webhook" |
//! | a cause for the operator | `exchange::fault`, [`policy::refusal`], and its row in [`docs::reference::causes`]; `e2e::causes` |
//! | a way to fail over | `exchange::fault` (the kind; its arms in `may_try_next`, `is_targets_own`, `refusal`), its origin (`exchange::provider_error::status_fault` for statuses, `exchange::answer::reply` for bodies; [`dialect::errors`] reads a body); `exchange::attempt::failover` for another order of targets |
//! | another spelling of an event or a member that `Delta` has already | the format's `stream_reader`; `dialect::tap::event` for a stream within one format, and [`dialect`]'s `keys::K` for the name of the member; `replies::read` for complete answers; `dialect::events` for a complete answer to a request for a stream; a file in `tests/fixtures/reports/` |
//! | a new kind of event of a stream | `dialect::neutral::delta::Delta`, a reader that produces it and a writer that consumes it (`stream_reader` and `stream_writer` of each format); `convert::deferred` if it must wait while a call is incomplete; the same for complete answers in `dialect::replies`. The compiler names the matches except those with a `_` arm: `Delta::text`, `Sink::take` and `unwrap_json` in `dialect::convert`, `convert::deferred`, `replies::streamed`. A pair in `tests/fixtures/cross/`, counted in `src/engine/dialect/tests/examples.rs`, for the Responses format in `tests/responses.rs` beside it |
//! | an API format | [`wire::Shape`] and its row in the table below it; its rows in `dialect::format`; a folder of [`dialect`] with what they name; a column in `dialect::request::members`; the matches that the compiler names, and the matches with a `_` arm and comparisons with a `Shape` or a `ModelEndpoint`, which it does not name (`dialect::errors`, `dialect/request/checks/parts.rs`, `simulator/ask.rs` and others: search for `Shape::`). The model and `stream` are members of the body, and the path is one constant for each format. If the path names them, `exchange::request` reads them, and `exchange::body::reading` and `exchange::admit::choose_model` use them; a provider's path is in `provider::request` |
//! | a state of a request | `exchange::state`, its arms in `exchange::dispatch`, and its rows in `exchange::transitions` |
//! | a request field that is validated | [`dialect::request`] |
//! | a setting | its row in the table of its section ([`policy::settings`]); `BLESS=1 cargo test --test it docs::`, and an example in `tests/it/docs/examples.rs` if the default is not one |
//! | a form of a provider's list of models | `cli::discover` (reading), `policy::discover`; `gateway::provider::discovery` (times of requests), `upkeep::listing` and `policy::config::fill` (results) |
//! | an error | [`policy::refusal`] (one constructor, or one variant of a type that becomes one), the code that raises it, and advice for the client in `tests/it/docs/errors.rs` (`BLESS=1 cargo test --test it docs::`) |
//! | an endpoint | `exchange::request::Endpoint`, `gateway::exchange::local`, `gateway/openapi.json`, [`docs::api`] |
//! | a pass-through endpoint | [`wire::Passthrough`] with its lists and its properties (`is_form`, `is_media` and so on), its entry in `dialect::passthrough`; its names in scopes and settings follow from `ALL`, and `facts::lists_of_endpoints_are_complete` in `tests/it/docs` finds the texts that name all; `exchange::attempt` if its answers are bytes, `exchange::admit::cost` for its units, `simulator::given` and `whole` in `simulator/passthrough.rs`, `gateway/openapi.json`, [`docs::api`]; transcripts in `tests/fixtures/relay/` |
//! | a ledger column | [`policy::row`]: its field in `RareNames`, and its row in `COLUMNS`; `exchange::finish`, which sets the field; its row in [`docs::reference::ledger`] |
//! | a file that is read or written | [`io::files`], the only module that opens and replaces files; its row in [`docs::reference::exit_codes`] |
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
