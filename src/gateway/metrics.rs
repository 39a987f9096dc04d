//! Counters and histograms, written out as Prometheus text (exposition format 0.0.4). Counting costs no allocation
//! once a combination of labels has been seen.

mod histogram;

use crate::base::seam::ProcessVitals;
use crate::policy::counters::{Histogram, ModelCounts, PHASES as PHASES_COUNT, RequestCount, Stats, TargetCounts};
use crate::policy::meter::{BudgetStatus, LimitKind};
use crate::policy::usage::Usage;
use histogram::{ANSWERS, RATES};
use std::io::Write;
use std::sync::Arc;

/// Maximum number of series by endpoint, model and status; further combinations count in `other`.
const SERIES_MAX: usize = 4096;
/// Maximum number of models with their own series; further models count as `other`.
const MODELS_MAX: usize = 1024;
const OTHER: &str = "other";

impl ModelCounts {
    fn new(model: Arc<str>) -> ModelCounts {
        let [first_event, request, rate] = [(); 3].map(|()| Histogram::default());
        ModelCounts { model, tokens: [0; 4], cost_nano: 0, first_event, request, rate }
    }

    fn add(&mut self, other: &ModelCounts) {
        self.tokens.iter_mut().zip(other.tokens).for_each(|(sum, more)| *sum += more);
        self.cost_nano = self.cost_nano.saturating_add(other.cost_nano);
        self.first_event.add(&other.first_event);
        self.request.add(&other.request);
        self.rate.add(&other.rate);
    }
}

/// Usage and times of one admitted request.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) usage: Usage,
    /// Cost.
    pub(crate) cost_nano: u64,
    /// From the end of its head to the end of its answer.
    pub(crate) micros: u64,
    /// Times of a stream: from the end of its body to the first event, and from that to the end.
    pub(crate) events: Option<(u64, u64)>,
}

/// The measured phases of a request.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Timed {
    /// From the end of the head to the end of the body.
    Body,
    /// From the end of the body, without waiting for slots, until the request has been sent to the provider: name
    /// resolution, connection, TLS, sending.
    Send,
    /// From there to the first byte from the provider.
    Wait,
    /// From there to the end of the answer.
    Relay,
    /// From the end of the head to the end of the answer.
    Total,
    /// Time of waiting for slots, if any.
    Queue,
}

const PHASES: [&str; PHASES_COUNT] = ["body", "send", "wait", "relay", "total", "queue"];

impl Timed {
    /// Name in metrics and log lines.
    pub(crate) fn name(self) -> &'static str {
        PHASES[self as usize]
    }
}

/// Minimum microseconds from first event to end for a stream's rate to be counted.
const RATE_MICROS_MIN: u64 = 1_000;

/// Values that are measured rather than counted.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Requests that wait for slots, by model.
    pub(crate) queued: Vec<(Arc<str>, usize)>,
    /// Open client connections.
    pub(crate) clients: usize,
    /// Open upstream connections, idle ones included.
    pub(crate) upstreams: usize,
    /// Idle upstream connections.
    pub(crate) idle: usize,
    /// Requests between admission and settlement.
    pub(crate) holds: usize,
    /// Bytes in buffers.
    pub(crate) buffered: usize,
    /// Rows not yet known to be in the ledger.
    pub(crate) uncommitted: u64,
    /// Connections refused, or answered 503, because there were too many.
    pub(crate) turned_away: u64,
    /// Budgets of groups.
    pub(crate) budgets: Vec<(Arc<str>, BudgetStatus)>,
    /// The system's values for the process.
    pub(crate) process: ProcessVitals,
}

/// True if two models share the string of their name, as they do until a reload. A comparison of names byte by byte
/// would make each request pay for all models.
#[inline]
fn is_same_model(counted: &Option<Arc<str>>, model: Option<&Arc<str>>) -> bool {
    match (counted, model) {
        (Some(counted), Some(model)) => Arc::ptr_eq(counted, model),
        (None, None) => true,
        _ => false,
    }
}

impl Stats {
    /// Counts one answered request.
    pub(crate) fn request(&mut self, endpoint: &'static str, model: Option<&Arc<str>>, status: u16) {
        self.count(endpoint, model, status, 1);
    }

    fn count(&mut self, endpoint: &str, model: Option<&Arc<str>>, status: u16, count: u64) {
        let is_same =
            |r: &RequestCount| r.status == status && is_same_model(&r.model, model) && *r.endpoint == *endpoint;
        let by_name = |r: &RequestCount| r.status == status && r.model.as_ref() == model && *r.endpoint == *endpoint;
        let find = || self.requests.iter().position(is_same).or_else(|| self.requests.iter().position(by_name));
        if let Some(index) = find() {
            if !is_same_model(&self.requests[index].model, model) {
                self.requests[index].model = model.cloned();
            }
            self.requests[index].count += count;
            // The commonest series come first, so that the search stays short.
            if index > 0 && self.requests[index].count > self.requests[index - 1].count {
                self.requests.swap(index, index - 1);
            }
        } else if self.requests.len() < SERIES_MAX {
            self.requests.push(RequestCount { endpoint: endpoint.into(), model: model.cloned(), status, count });
        } else {
            self.other += count;
        }
    }

    /// Counts usage and times of one admitted request.
    pub(crate) fn taken(&mut self, model: &Arc<str>, taken: &Taken) {
        let entry = self.model(model);
        let usage = &taken.usage;
        let parts = [usage.uncached_in, usage.cache_read, usage.cache_write, usage.out];
        entry.tokens.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        entry.cost_nano = entry.cost_nano.saturating_add(taken.cost_nano);
        entry.request.observe(&ANSWERS, taken.micros);
        if let Some((first, rest)) = taken.events {
            entry.first_event.observe(&ANSWERS, first);
            // A stream that arrived all at once has no rate.
            if rest >= RATE_MICROS_MIN && usage.out > 0 {
                entry.rate.observe(&RATES, usage.out.saturating_mul(1_000_000_000) / rest);
            }
        }
    }

    fn model(&mut self, model: &Arc<str>) -> &mut ModelCounts {
        let find = |models: &[ModelCounts], name: &str| models.iter().position(|entry| *entry.model == *name);
        let same = self.models.iter().position(|entry| Arc::ptr_eq(&entry.model, model));
        let index = match same.or_else(|| find(&self.models, model)) {
            Some(index) => {
                if same.is_none() {
                    self.models[index].model = model.clone();
                }
                index
            }
            None if self.models.len() < MODELS_MAX => {
                self.models.push(ModelCounts::new(model.clone()));
                self.models.len() - 1
            }
            None => find(&self.models, OTHER).unwrap_or_else(|| {
                self.models.push(ModelCounts::new(OTHER.into()));
                self.models.len() - 1
            }),
        };
        &mut self.models[index]
    }

    /// Adds the counts of another process.
    pub(crate) fn add(&mut self, other: &Stats) {
        for r in &other.requests {
            self.count(&r.endpoint, r.model.as_ref(), r.status, r.count);
        }
        self.other += other.other;
        for model in &other.models {
            self.model(&model.model).add(model);
        }
        self.phases.iter_mut().zip(&other.phases).for_each(|(sum, more)| sum.add(more));
        self.turns.add(&other.turns);
        self.refused.iter_mut().zip(other.refused).for_each(|(sum, more)| *sum += more);
        self.stale_retries += other.stale_retries;
        self.panics += other.panics;
        self.reloads += other.reloads;
        self.spans_dropped += other.spans_dropped;
        self.log_suppressed += other.log_suppressed;
    }

    /// Counts a request that a limit has refused.
    pub(crate) fn refused(&mut self, limit: LimitKind) {
        self.refused[limit as usize] += 1;
    }

    /// Counts the time one phase took.
    pub(crate) fn phase(&mut self, phase: Timed, micros: u64) {
        self.phases[phase as usize].observe(&histogram::PHASES, micros);
    }

    /// Counts the time of one event-loop iteration.
    pub(crate) fn turn(&mut self, micros: u64) {
        self.turns.observe(&histogram::PHASES, micros);
    }

    /// Appends everything in Prometheus' text format.
    pub(crate) fn write(&self, gauges: &Gauges, targets: &[(TargetCounts, bool)], out: &mut Vec<u8>) {
        head(out, "tollgate_build_info", "gauge", "The running version.");
        let _ = writeln!(out, "tollgate_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        head(out, "tollgate_requests_total", "counter", "Answered requests; status 499: the client left.");
        for r in &self.requests {
            let _ = write!(out, "tollgate_requests_total{{endpoint=\"{}\",model=\"", r.endpoint);
            label_value(r.model.as_deref().unwrap_or(""), out);
            let _ = writeln!(out, "\",status=\"{}\"}} {}", r.status, r.count);
        }
        let _ = writeln!(out, "tollgate_requests_total{{endpoint=\"other\",model=\"\",status=\"0\"}} {}", self.other);
        head(out, "tollgate_refused_total", "counter", "Requests that a limit has refused (429).");
        for (limit, count) in LimitKind::ALL.into_iter().zip(self.refused) {
            let _ = writeln!(out, "tollgate_refused_total{{limit=\"{}\"}} {count}", limit.name());
        }
        self.write_models(out);
        head(out, "tollgate_phase_seconds", "histogram", "Time per phase of a request.");
        for (name, histogram) in PHASES.iter().zip(&self.phases) {
            let label = format!("phase=\"{name}\"");
            histogram.write(&histogram::PHASES, "tollgate_phase_seconds", &label, out);
        }
        head(out, "tollgate_loop_iteration_seconds", "histogram", "Seconds of one event-loop iteration.");
        self.turns.write(&histogram::PHASES, "tollgate_loop_iteration_seconds", "", out);
        write_targets(targets, out);
        head(out, "tollgate_queued", "gauge", "Requests that wait for a place, by model with a queue.");
        for (model, length) in &gauges.queued {
            out.extend_from_slice(b"tollgate_queued{model=\"");
            label_value(model, out);
            let _ = writeln!(out, "\"}} {length}");
        }
        head(out, "tollgate_budget_used_ratio", "gauge", "Share of a group's budget that is used in its period.");
        for (group, budget) in &gauges.budgets {
            out.extend_from_slice(b"tollgate_budget_used_ratio{group=\"");
            label_value(group, out);
            let _ = writeln!(out, "\"}} {}", budget.used as f64 / budget.total as f64);
        }
        self.write_plain(gauges, out);
        write_process(&gauges.process, out);
    }

    fn write_models(&self, out: &mut Vec<u8>) {
        head(out, "tollgate_tokens_total", "counter", "Tokens charged.");
        for model in &self.models {
            for (kind, count) in ["input", "cache_read", "cache_write", "output"].iter().zip(model.tokens) {
                out.extend_from_slice(b"tollgate_tokens_total{model=\"");
                label_value(&model.model, out);
                let _ = writeln!(out, "\",kind=\"{kind}\"}} {count}");
            }
        }
        head(out, "tollgate_cost_dollars_total", "counter", "What the tokens charged cost, by the prices configured.");
        for model in &self.models {
            out.extend_from_slice(b"tollgate_cost_dollars_total{model=\"");
            label_value(&model.model, out);
            let _ = writeln!(out, "\"}} {}", model.cost_nano as f64 / 1e9);
        }
        type Pick = fn(&ModelCounts) -> &Histogram;
        let first = "Time from the end of a request to the first event of its stream.";
        let rate = "Tokens of a stream by the time from its first event to its end.";
        let histograms: [(&str, &str, &histogram::Scale, Pick); 3] = [
            ("tollgate_first_event_seconds", first, &ANSWERS, |model| &model.first_event),
            ("tollgate_request_seconds", "Time of admitted requests, as `total`.", &ANSWERS, |model| &model.request),
            ("tollgate_tokens_per_second", rate, &RATES, |model| &model.rate),
        ];
        for (name, what, scale, pick) in histograms {
            head(out, name, "histogram", what);
            for model in &self.models {
                let mut label = b"model=\"".to_vec();
                label_value(&model.model, &mut label);
                label.push(b'"');
                pick(model).write(scale, name, &String::from_utf8_lossy(&label), out);
            }
        }
    }

    /// Appends the metrics without labels.
    fn write_plain(&self, gauges: &Gauges, out: &mut Vec<u8>) {
        for (name, what, value) in [
            (
                "tollgate_client_connections",
                "Open client connections, without those to the admin listener.",
                gauges.clients as u64,
            ),
            ("tollgate_upstream_connections", "Open upstream connections.", gauges.upstreams as u64),
            ("tollgate_upstream_idle_connections", "Idle upstream connections.", gauges.idle as u64),
            (
                "tollgate_open_reservations",
                "Reservations of requests between admission and settlement.",
                gauges.holds as u64,
            ),
            ("tollgate_buffered_bytes", "Bytes in buffers, at most max_buffered.", gauges.buffered as u64),
            ("tollgate_uncommitted_rows", "Usage records not yet in the ledger.", gauges.uncommitted),
        ] {
            head(out, name, "gauge", what);
            let _ = writeln!(out, "{name} {value}");
        }
        for (name, what, value) in [
            (
                "tollgate_stale_retries_total",
                "Requests sent once more because the kept connection was closed.",
                self.stale_retries,
            ),
            ("tollgate_reloads_total", "Configurations applied by a reload.", self.reloads),
            (
                "tollgate_turned_away_total",
                "Connections beyond a limit: closed, or answered with 503.",
                gauges.turned_away,
            ),
            (
                "tollgate_log_suppressed_total",
                "Requests without a valid key that are not in the log, beyond 100 a second.",
                self.log_suppressed,
            ),
            ("tollgate_panics_total", "Requests aborted by an internal panic.", self.panics),
            ("tollgate_spans_dropped_total", "Spans that did not reach their collector.", self.spans_dropped),
        ] {
            head(out, name, "counter", what);
            let _ = writeln!(out, "{name} {value}");
        }
    }
}

/// Appends the metrics of the process, under their standard names.
fn write_process(process: &ProcessVitals, out: &mut Vec<u8>) {
    let cpu = process.cpu_micros as f64 / 1e6;
    let started = process.started.0 as f64 / 1e3;
    for (name, kind, what, value) in [
        ("process_cpu_seconds_total", "counter", "Time of processors that the process has taken.", cpu),
        ("process_resident_memory_bytes", "gauge", "Memory that is really there.", process.resident_bytes as f64),
        ("process_open_fds", "gauge", "Open descriptors.", process.open_fds as f64),
        ("process_start_time_seconds", "gauge", "When the process began, since 1970.", started),
    ] {
        head(out, name, kind, what);
        let _ = writeln!(out, "{name} {value}");
    }
}

fn write_targets(targets: &[(TargetCounts, bool)], out: &mut Vec<u8>) {
    let ended = "tollgate_upstream_responses_total";
    head(out, ended, "counter", "Attempts by how they ended: a status, connect, tls, timeout, broken or abandoned.");
    for (target, _) in targets {
        for (end, count) in target.ends() {
            let _ = write!(out, "{ended}{{target=\"");
            label_value(&target.label, out);
            let _ = writeln!(out, "\",status=\"{end}\"}} {count}");
        }
    }
    let mut series = |name: &str, kind: &str, what: &str, value: &dyn Fn(&(TargetCounts, bool)) -> u64| {
        head(out, name, kind, what);
        for target in targets {
            let _ = write!(out, "{name}{{target=\"");
            label_value(&target.0.label, out);
            let _ = writeln!(out, "\"}} {}", value(target));
        }
    };
    let failures = "Failures of a target by its own fault.";
    series("tollgate_target_failures_total", "counter", failures, &|(target, _)| target.failures);
    let cooling = "1 while a target cools down, after failures or as its provider asks, or is being probed.";
    series("tollgate_target_cooling_down", "gauge", cooling, &|(_, cooling)| u64::from(*cooling));
}

fn head(out: &mut Vec<u8>, name: &str, kind: &str, what: &str) {
    let _ = writeln!(out, "# HELP {name} {what}\n# TYPE {name} {kind}");
}

fn label_value(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\n' => out.extend_from_slice(b"\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_histograms_come_out_as_prometheus_text() {
        let mut stats = Stats::default();
        let model: Arc<str> = Arc::from("a\"b");
        stats.request("chat", Some(&model), 200);
        stats.request("chat", Some(&model), 200);
        stats.request("none", None, 404);
        stats.phase(Timed::Total, 2_000_000_000);
        let mut out = Vec::new();
        stats.write(&Gauges { clients: 3, ..Gauges::default() }, &[], &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("tollgate_requests_total{endpoint=\"chat\",model=\"a\\\"b\",status=\"200\"} 2\n"));
        assert!(text.contains("tollgate_phase_seconds_bucket{phase=\"total\",le=\"600\"} 0\n"));
        assert!(text.contains("tollgate_phase_seconds_bucket{phase=\"total\",le=\"+Inf\"} 1\n"));
        assert!(text.contains("tollgate_client_connections 3\n"));
    }

    #[test]
    fn counts_of_a_predecessor_are_added() {
        let (mut old, mut new) = (Stats::default(), Stats::default());
        let model: Arc<str> = Arc::from("m");
        let usage = Usage { uncached_in: 1, out: 10, ..Usage::default() };
        let taken = Taken { usage, cost_nano: 7, micros: 60_000, events: Some((20_000, 100_000)) };
        for stats in [&mut old, &mut new] {
            stats.request("chat", Some(&model), 200);
            stats.taken(&model, &taken);
            stats.phase(Timed::Wait, 5);
            stats.turn(3);
            stats.refused(LimitKind::Concurrency);
            stats.stale_retries += 1;
        }
        old.request("none", None, 404);
        let told: Stats = serde_json::from_str(&serde_json::to_string(&old).unwrap()).unwrap();
        assert_eq!(told, old);
        new.add(&told);
        let mut out = Vec::new();
        new.write(&Gauges::default(), &[], &mut out);
        let text = String::from_utf8(out).unwrap();
        for line in [
            "tollgate_requests_total{endpoint=\"chat\",model=\"m\",status=\"200\"} 2\n",
            "tollgate_requests_total{endpoint=\"none\",model=\"\",status=\"404\"} 1\n",
            "tollgate_tokens_total{model=\"m\",kind=\"output\"} 20\n",
            "tollgate_cost_dollars_total{model=\"m\"} 0.000000014\n",
            "tollgate_first_event_seconds_count{model=\"m\"} 2\n",
            "tollgate_request_seconds_bucket{model=\"m\",le=\"0.1\"} 2\n",
            "tollgate_tokens_per_second_bucket{model=\"m\",le=\"75\"} 0\n",
            "tollgate_tokens_per_second_bucket{model=\"m\",le=\"100\"} 2\n",
            "tollgate_phase_seconds_count{phase=\"wait\"} 2\n",
            "tollgate_loop_iteration_seconds_count 2\n",
            "tollgate_refused_total{limit=\"concurrency\"} 2\n",
            "tollgate_stale_retries_total 2\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    #[test]
    fn models_beyond_the_bound_share_a_series() {
        let mut stats = Stats::default();
        let taken = Taken { usage: Usage { out: 1, ..Usage::default() }, cost_nano: 0, micros: 1, events: None };
        for n in 0..MODELS_MAX + 3 {
            stats.taken(&format!("m{n}").into(), &taken);
        }
        let other = stats.models.last().unwrap();
        assert_eq!((stats.models.len(), &*other.model, other.tokens), (MODELS_MAX + 1, OTHER, [0, 0, 0, 3]));
    }

    #[test]
    fn counters_never_shrink_beyond_the_series_bound() {
        let counts = |stats: &Stats| {
            let mut out = Vec::new();
            stats.write(&Gauges::default(), &[], &mut out);
            let text = String::from_utf8(out).unwrap();
            let series = text.lines().filter(|line| line.starts_with("tollgate_requests_total{"));
            let pairs = series.filter_map(|line| line.rsplit_once(' '));
            pairs.map(|(name, count)| (name.to_string(), count.parse().unwrap())).collect()
        };
        let mut stats = Stats::default();
        let mut before: std::collections::BTreeMap<String, u64> = counts(&stats);
        assert_eq!(before.into_values().collect::<Vec<_>>(), [0]);
        let models: Vec<Arc<str>> = (0..SERIES_MAX + 2).map(|n| format!("m{n}").into()).collect();
        models.iter().for_each(|model| stats.request("chat", Some(model), 200));
        before = counts(&stats);
        models.iter().rev().for_each(|model| stats.request("chat", Some(model), 200));
        let after = counts(&stats);
        assert!(before.iter().all(|(name, count)| after.get(name) == Some(&(count * 2))));
        assert_eq!((after.len(), after.values().sum::<u64>()), (SERIES_MAX + 1, 2 * (SERIES_MAX as u64 + 2)));
    }
}
