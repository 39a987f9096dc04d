//! Counters and histograms, written out as Prometheus text (exposition format 0.0.4). Counting costs no allocation
//! once a combination of labels has been seen.

use super::provider::breaker::TargetState;
use crate::policy::usage::Usage;
use std::io::Write;
use std::sync::Arc;

/// Upper bounds of the time buckets in microseconds; the last bucket is open.
const BOUNDS: [u64; 15] = [
    100,
    250,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    100_000,
    250_000,
    1_000_000,
    2_500_000,
    10_000_000,
    30_000_000,
    100_000_000,
    600_000_000,
];
/// Combinations of endpoint, model and status that have a series of their own; what does not fit counts in `other`.
const SERIES_MAX: usize = 4096;

/// A cumulative histogram of microseconds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Histogram {
    buckets: [u64; BOUNDS.len() + 1],
    sum: u64,
}

impl Histogram {
    /// Counts one duration.
    pub(crate) fn observe(&mut self, micros: u64) {
        let index = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[index] += 1;
        self.sum += micros;
    }

    fn write(&self, name: &str, label: &str, out: &mut Vec<u8>) {
        let mut total = 0;
        let comma = if label.is_empty() { "" } else { "," };
        for (count, bound) in self.buckets.iter().zip(BOUNDS) {
            total += count;
            let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{}\"}} {total}", bound as f64 / 1e6);
        }
        total += self.buckets[BOUNDS.len()];
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {total}");
        let braces = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        let _ = writeln!(out, "{name}_sum{braces} {}", self.sum as f64 / 1e6);
        let _ = writeln!(out, "{name}_count{braces} {total}");
    }
}

#[derive(Debug)]
struct Requests {
    endpoint: &'static str,
    model: Option<Arc<str>>,
    status: u16,
    count: u64,
}

#[derive(Debug)]
struct Tokens {
    model: Arc<str>,
    usage: [u64; 4],
}

/// The phases of a request whose time is measured.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Timed {
    /// From the end of the head to the end of the body.
    Body,
    /// From the end of the body until the request has left for the provider: name, connection, TLS, sending.
    Send,
    /// From there to the provider's first byte.
    Wait,
    /// From there to the end of the answer.
    Relay,
    /// From the end of the head to the end of the answer.
    Total,
}

const PHASES: [&str; 5] = ["body", "send", "wait", "relay", "total"];

impl Timed {
    /// As metrics and log lines call it.
    pub(crate) fn name(self) -> &'static str {
        PHASES[self as usize]
    }
}

/// Values that are read off rather than counted.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
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
    /// Connections refused, or told 503, because there were too many.
    pub(crate) turned_away: u64,
}

/// All counters of one gateway.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    requests: Vec<Requests>,
    /// Requests of all combinations beyond [`SERIES_MAX`].
    other: u64,
    tokens: Vec<Tokens>,
    phases: [Histogram; PHASES.len()],
    turns: Histogram,
    pub(crate) stale_retries: u64,
    pub(crate) panics: u64,
    pub(crate) reloads: u64,
}

impl Stats {
    /// Counts one answered request.
    pub(crate) fn request(&mut self, endpoint: &'static str, model: Option<&Arc<str>>, status: u16) {
        let same = |r: &Requests| r.endpoint == endpoint && r.status == status && r.model.as_ref() == model;
        if let Some(index) = self.requests.iter().position(same) {
            self.requests[index].count += 1;
            // The commonest series come first, so that the search stays short.
            if index > 0 && self.requests[index].count > self.requests[index - 1].count {
                self.requests.swap(index, index - 1);
            }
        } else if self.requests.len() < SERIES_MAX {
            self.requests.push(Requests { endpoint, model: model.cloned(), status, count: 1 });
        } else {
            self.other += 1;
        }
    }

    /// Counts what was charged to one request.
    pub(crate) fn usage(&mut self, model: &Arc<str>, usage: &Usage) {
        let index = match self.tokens.iter().position(|t| t.model == *model) {
            Some(index) => index,
            None => {
                self.tokens.push(Tokens { model: model.clone(), usage: [0; 4] });
                self.tokens.len() - 1
            }
        };
        let parts = [usage.uncached_in, usage.cache_read, usage.cache_write, usage.out];
        for (sum, part) in self.tokens[index].usage.iter_mut().zip(parts) {
            *sum += part;
        }
    }

    /// Counts the time one phase took.
    pub(crate) fn phase(&mut self, phase: Timed, micros: u64) {
        self.phases[phase as usize].observe(micros);
    }

    /// Counts the time one turn of the loop took.
    pub(crate) fn turn(&mut self, micros: u64) {
        self.turns.observe(micros);
    }

    /// Appends everything in Prometheus' text format.
    pub(crate) fn write(&self, gauges: &Gauges, targets: &[TargetState<'_>], out: &mut Vec<u8>) {
        head(out, "tollgate_build_info", "gauge", "The running version.");
        let _ = writeln!(out, "tollgate_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        head(out, "tollgate_requests_total", "counter", "Answered requests; status 499: the client left.");
        for r in &self.requests {
            let _ = write!(out, "tollgate_requests_total{{endpoint=\"{}\",model=\"", r.endpoint);
            label_value(r.model.as_deref().unwrap_or(""), out);
            let _ = writeln!(out, "\",status=\"{}\"}} {}", r.status, r.count);
        }
        let _ = writeln!(out, "tollgate_requests_total{{endpoint=\"other\",model=\"\",status=\"0\"}} {}", self.other);
        head(out, "tollgate_tokens_total", "counter", "Tokens charged.");
        for t in &self.tokens {
            for (kind, count) in ["input", "cache_read", "cache_write", "output"].iter().zip(t.usage) {
                out.extend_from_slice(b"tollgate_tokens_total{model=\"");
                label_value(&t.model, out);
                let _ = writeln!(out, "\",kind=\"{kind}\"}} {count}");
            }
        }
        head(out, "tollgate_phase_seconds", "histogram", "Time per phase of a request.");
        for (name, histogram) in PHASES.iter().zip(&self.phases) {
            histogram.write("tollgate_phase_seconds", &format!("phase=\"{name}\""), out);
        }
        head(out, "tollgate_turn_seconds", "histogram", "Loop lag: the time the loop took for one turn.");
        self.turns.write("tollgate_turn_seconds", "", out);
        write_targets(targets, out);
        for (name, what, value) in [
            (
                "tollgate_client_connections",
                "Open client connections, without those to the admin listener.",
                gauges.clients as u64,
            ),
            ("tollgate_upstream_connections", "Open upstream connections.", gauges.upstreams as u64),
            ("tollgate_upstream_idle_connections", "Idle upstream connections.", gauges.idle as u64),
            ("tollgate_open_holds", "Requests between admission and settlement.", gauges.holds as u64),
            ("tollgate_buffered_bytes", "Bytes in buffers.", gauges.buffered as u64),
            ("tollgate_uncommitted_rows", "Rows not yet in the ledger.", gauges.uncommitted),
        ] {
            head(out, name, "gauge", what);
            let _ = writeln!(out, "{name} {value}");
        }
        for (name, what, value) in [
            ("tollgate_stale_retries_total", "Kept connections found closed and replaced.", self.stale_retries),
            ("tollgate_reloads_total", "Configurations taken over while running.", self.reloads),
            ("tollgate_turned_away_total", "Connections beyond a bound: closed, or told 503.", gauges.turned_away),
            ("tollgate_panics_total", "Exchanges lost to a bug.", self.panics),
        ] {
            head(out, name, "counter", what);
            let _ = writeln!(out, "{name} {value}");
        }
    }
}

fn write_targets(targets: &[TargetState<'_>], out: &mut Vec<u8>) {
    let mut series = |name: &str, kind: &str, what: &str, value: &dyn Fn(&TargetState<'_>) -> u64| {
        head(out, name, kind, what);
        for target in targets {
            let _ = write!(out, "{name}{{target=\"");
            label_value(target.label, out);
            let _ = writeln!(out, "\"}} {}", value(target));
        }
    };
    let failures = "Failures of a target by its own fault.";
    series("tollgate_target_failures_total", "counter", failures, &|target| target.failures);
    let resting = "1 while a target rests after failures, or is on trial after its rest.";
    series("tollgate_target_resting", "gauge", resting, &|target| u64::from(target.resting));
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
    fn no_counter_shrinks_when_there_are_more_combinations_than_series() {
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
