//! Counters of a process for its metrics: plain data that `gateway` counts. The arithmetic is in
//! `gateway::report::metrics`.

use super::plan::Shorthand;
use std::fmt;
use std::sync::Arc;

/// Callers that met a failure which a single caller may have provoked.
#[derive(Debug, Copy, Clone, Default, PartialEq, Eq)]
pub struct Callers {
    /// Key and owner of the first caller.
    pub first: Option<(u64, u64)>,
    /// True if a request of another key has met it since.
    pub several_keys: bool,
    /// True if a request of another owner has met it since.
    pub several_owners: bool,
}

/// Phases of a request that are measured.
pub const PHASES: usize = 6;

/// All counters of one gateway, except those of its connections and targets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// By endpoint, model and status.
    pub requests: Vec<RequestCount>,
    /// Requests of all combinations that have no series of their own.
    pub other: u64,
    /// By model.
    pub models: Vec<ModelCounts>,
    /// Time by phase.
    pub phases: [Histogram; PHASES],
    /// Time of one event-loop iteration.
    pub turns: Histogram,
    /// Number of requests that a limit has refused, by [`Shorthand`].
    pub refused: [u64; Shorthand::ALL.len()],
    /// Kept connections found closed and replaced.
    pub stale_retries: u64,
    /// Exchanges lost to a bug.
    pub panics: u64,
    /// Configurations taken over while running.
    pub reloads: u64,
    /// Spans that have not reached their collector.
    pub spans_dropped: u64,
    /// Requests without cost that are not in the log.
    pub log_suppressed: u64,
    /// Requests to the admin listener with a wrong token.
    pub admin_refused: u64,
}

/// Answered requests of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestCount {
    /// Name of the endpoint in metrics.
    pub endpoint: Arc<str>,
    /// The model, if it is known.
    pub model: Option<Arc<str>>,
    /// The status that was answered.
    pub status: u16,
    /// Number of requests.
    pub count: u64,
    /// Number of series that are older. The order in the list changes.
    pub serial: u16,
}

/// Sums over the requests for one model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCounts {
    /// Id of the model.
    pub model: Arc<str>,
    /// Uncached input, read from a cache, written to a cache, output.
    pub tokens: [u64; 4],
    /// Cost in nano-dollars.
    pub cost_nano: u64,
    /// Time to the first event of streams.
    pub first_event: Histogram,
    /// Time of requests.
    pub request: Histogram,
    /// Tokens a second of streams.
    pub rate: Histogram,
}

/// Results of the attempts at one target.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetCounts {
    /// Name of the target.
    pub label: Arc<str>,
    /// Failures by its own fault.
    pub failures: u64,
    /// Whole answers with status 200.
    pub served: u64,
    /// Attempts that ended otherwise.
    pub others: Vec<(AttemptEnd, u64)>,
}

/// End of an attempt at a target.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    /// By an answer with this status.
    Status(u16),
    /// No connection.
    Connect,
    /// No TLS.
    Tls,
    /// Too late.
    Timeout,
    /// The answer began, but did not end properly.
    Broken,
    /// The client left, or Tollgate stops.
    Abandoned,
    /// Any other end, if there are too many different ones.
    Other,
}

impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            AttemptEnd::Status(status) => return write!(f, "{status}"),
            AttemptEnd::Connect => "connect",
            AttemptEnd::Tls => "tls",
            AttemptEnd::Timeout => "timeout",
            AttemptEnd::Broken => "broken",
            AttemptEnd::Abandoned => "abandoned",
            AttemptEnd::Other => "other",
        };
        f.write_str(word)
    }
}

/// A cumulative histogram. Its owner knows the scale.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Histogram {
    /// Counts by bucket; empty before the first value.
    pub buckets: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}
