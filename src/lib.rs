//! Tollgate is a model gateway in one small binary. This page is the map of the house.
//!
//! A client speaks the OpenAI chat shape or the Anthropic messages shape with one key; the gateway authenticates it,
//! validates and meters the request, routes it to the model it names, and returns the answer, whole or streamed, with
//! exact usage in a ledger.
//!
//! # Layers
//!
//! Six folders are six layers; a lower one never imports a higher one, and `tests/tidy.rs` checks it.
//!
//! | layer | what it is | imports |
//! |---|---|---|
//! | [`base`] | time, ids, buffers, timers, limits, and the seam between core and world ([`base::seam`]) | nothing of ours |
//! | [`wire`] | bytes to values: HTTP heads and bodies, server-sent events, JSON in place | base |
//! | [`dialect`] | the two API shapes: requests, answers, streams, usage, errors | base, wire |
//! | [`policy`] | configuration, keys, catalog, limits, metering, rows, refusals | base, wire |
//! | [`gateway`] | the sans-I/O core; the only place where the others meet | all above |
//! | [`io`] | sockets, TLS, clocks, signals, the helper threads for names, ledger and log | the seam, policy's data |
//!
//! [`simulator`] is the simulated provider, a second core on the same seam; [`cli`] puts everything together. The
//! manuals (API, configuration, operations, threats) are in [`docs`].
//!
//! # One thread that matters
//!
//! Everything that decides is a **sans-I/O core**: [`gateway::Gateway`] owns connection state and buffers and is driven
//! by the verbs of [`base::seam::Core`]. It takes `now` as an argument and a seed at its start, so that a simulator can
//! drive the whole product without a socket. [`io::reactor`] is the one loop that drives it for real. Helper
//! threads exist only because looking up names, committing rows and writing to stderr can block, and because reading
//! tens of megabytes in one piece takes long (`gateway::work`).
//!
//! # The one way of a request
//!
//! 1. `gateway::client` takes bytes; [`wire::inbound`] finds a head.
//! 2. `gateway::admit` judges the head before a byte of the body is read: path, key, method, scope, readiness, size,
//!    a limit that is already spent.
//! 3. The body is scanned by [`dialect::request`] as it arrives: strict JSON, fields, roles, an estimate of tokens.
//! 4. `gateway::exchange` admits it: model, scope, and a hold in the [`policy::meter`].
//! 5. `gateway::route` picks a target and a connection; `gateway::outgoing` cuts the new body from the old one.
//! 6. `gateway::upstream` frames the answer, `gateway::relay` (events) or `gateway::whole` passes it on and overhears
//!    usage.
//! 7. `gateway::exchange::conclude` is the one end: settle the hold, hand a row to the ledger, write a log line.
//!
//! # How to change
//!
//! | to add | touch |
//! |---|---|
//! | a header sent to providers | `gateway::outgoing::Template` |
//! | a header of our answers | `gateway::answers::Head` |
//! | a plan limit | its row in [`policy::plan`], `meter`, `LimitKind`; on shared ledgers `ask`, `remote`, `admit.lua` |
//! | a metric | `gateway::stats`, and its row in [`docs::operations`] |
//! | a field of the log line | `gateway::log`, and its row in [`docs::operations`] |
//! | a request field that is validated | [`dialect::request`] |
//! | a setting | its row in the table of its section ([`policy::settings`]); `BLESS=1 cargo test --test it docs::` |
//! | an error | [`policy::refusal`] (one constructor), and where it is raised |
//! | an endpoint | `gateway::admit::Endpoint`, `gateway::local`, `gateway/openapi.json`, [`docs::api`] |
//! | a ledger column | [`policy::row`], [`io::store`], both kinds of it |
//! | a test of behaviour | [`docs::testing`]: mostly a transcript in `tests/fixtures/` |
//!
//! # Where the guarantees stand
//!
//! | guarantee | place |
//! |---|---|
//! | every admitted request is settled once | `gateway::exchange::conclude`, [`policy::meter::Hold`] |
//! | no retry after the first relayed byte | `gateway::route::attempt_failed` |
//! | no memory before its bound is checked | `gateway::charges`, [`wire::inbound`] |
//! | stale names reach nobody | [`base::slots`] |
//! | a slow client slows its provider | `gateway::upstream::upstream_wants_read` |
//! | nothing is let through unmetered | `gateway::ledger`, `gateway::asking` |
//! | no answer is complete before its row is safe (`before-reply`) | `gateway::commit` |
//! | a jump of the clock neither frees nor blocks a key | [`policy::meter`], its accounts |
//! | several hosts admit no more than one would | `io::store::remote`, its scripts |
//! | no body or answer holds the loop | `gateway::work`, `limits::{WORK_MIN, TURN_TIME}` |

pub mod base;
pub mod cli;
pub mod dialect;
pub mod docs;
pub mod gateway;
pub mod io;
pub mod policy;
pub mod simulator;
pub mod wire;
