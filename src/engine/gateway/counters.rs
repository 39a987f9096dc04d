//! Counters of a process for its metrics: plain data that `gateway` counts. The arithmetic is in
//! `gateway::report::metrics`.

use crate::base::time::Unix;
use crate::policy::plan::Shorthand;
use crate::policy::row::millis;
use serde::{Deserialize, Serialize};
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
    /// Requests under strict limits that it has billed more than they had reserved.
    pub overruns: u64,
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
    /// The connection closed early, or the answer was not valid.
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

/// Sums of a recorder, as one process hands them over to another.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RecorderSums {
    /// Table of reasons.
    pub reasons: Vec<ReasonRow>,
    /// Times to the first byte, if they are recorded.
    pub first_bytes: Option<Vec<TargetTimes>>,
}

/// Failed requests and attempts with one reason.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReasonRow {
    /// The reason in words.
    pub reason: String,
    /// Status of the response.
    pub status: u64,
    /// Label of the target; empty if there was none.
    pub target: String,
    /// Requested model.
    pub model: String,
    /// Id and name of the key.
    pub key: [String; 2],
    /// Requests that failed.
    pub failed: u64,
    /// Requests that another attempt answered.
    pub answered: u64,
    /// Time of the first failure.
    #[serde(with = "millis")]
    pub first: Unix,
    /// Time of the last failure.
    #[serde(with = "millis")]
    pub last: Unix,
    /// Id of the last request.
    pub id: String,
}

/// Times of the streams, or of the complete responses, of one target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetTimes {
    /// Number of the target.
    pub target: u64,
    /// False for complete responses.
    pub streams: bool,
    /// The last minutes.
    pub recent: Vec<RecentMinute>,
    /// The hour before them.
    pub past: Vec<PastMinute>,
    /// Minute of the last time.
    pub last: u32,
    /// First minute in which it was slow, if it still is.
    pub slow_since: Option<u32>,
}

/// Times of a minute by class; no class before the first time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RecentMinute {
    /// Minutes since 1970.
    pub minute: u32,
    /// Number of times in each class.
    pub counts: Vec<u16>,
}

/// Median of a minute, and the number of its times.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PastMinute {
    /// Minutes since 1970.
    pub minute: u32,
    /// In microseconds.
    pub median: u32,
    /// Number of times.
    pub count: u32,
}
