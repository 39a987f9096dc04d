//! All metrics as Prometheus text (exposition format 0.0.4), in pieces: with many models the text has megabytes, which
//! must not wait in memory for a slow reader. A piece shows the counts of its own time; each series is in one piece.

use super::{ANSWERS, Gauges, PHASE_TIMES, PHASES, RATES, Scale};
use crate::base::text::push_number;
use crate::base::time::Mono;
use crate::gateway::counters::{Histogram, ModelCounts, Stats, TargetCounts};
use crate::gateway::provider::breaker::Breakers;
use crate::gateway::queue::Queues;
use crate::policy::catalog::Model;
use crate::policy::config::target_limits::shown;
use crate::policy::meter::{LimitStatus, Whose};
use crate::policy::plan::Shorthand;
use crate::policy::plan::caps::{Cap, Resource};
use std::io::Write;
use std::sync::Arc;

/// Position in the text: a family of series, and the first of them that is not written.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ScrapePosition {
    family: usize,
    series: usize,
}

/// A text that is being written.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// Values at its beginning.
    pub(crate) gauges: Gauges,
    pub(crate) position: ScrapePosition,
}

/// Origin of the values.
pub(crate) struct Sources<'a> {
    pub(crate) stats: &'a Stats,
    pub(crate) gauges: &'a Gauges,
    pub(crate) breakers: &'a Breakers,
    pub(crate) queues: &'a Queues,
    pub(crate) models: &'a [Model],
    /// Budgets of groups.
    pub(crate) budgets: Vec<(Arc<str>, Cap, u64)>,
    /// Limits of targets, providers and credentials.
    pub(crate) limits: Vec<LimitStatus>,
    pub(crate) now: Mono,
}

impl Sources<'_> {
    /// Appends the text from `position` on, until it is longer than `room` bytes. True if it is complete.
    #[cold]
    pub(crate) fn write(&self, position: &mut ScrapePosition, room: usize, out: &mut Vec<u8>) -> bool {
        let mut by_serial = vec![0; self.stats.requests.len()];
        for (at, request) in self.stats.requests.iter().enumerate() {
            if let Some(place) = by_serial.get_mut(usize::from(request.serial)) {
                *place = at;
            }
        }
        while let Some(family) = FAMILIES.get(position.family) {
            if position.series == 0 {
                for part in ["# HELP ", family.name, " ", family.help, "\n# TYPE ", family.name, " ", family.kind, "\n"]
                {
                    out.extend_from_slice(part.as_bytes());
                }
            }
            let mut text = FamilyText { name: family.name, by_serial: &by_serial, out };
            while (family.series)(self, position.series, &mut text) {
                position.series += 1;
                if text.out.len() > room {
                    return false;
                }
            }
            *position = ScrapePosition { family: position.family + 1, series: 0 };
        }
        true
    }

    fn model(&self, at: usize) -> Option<&ModelCounts> {
        self.stats.models.get(at)
    }

    fn target(&self, at: usize) -> Option<(&TargetCounts, bool)> {
        self.breakers.state(at, self.now)
    }
}

/// Text to which a family adds its series.
struct FamilyText<'a> {
    name: &'static str,
    /// Indices of the series of requests, the oldest first.
    by_serial: &'a [usize],
    out: &'a mut Vec<u8>,
}

impl FamilyText<'_> {
    /// Appends the name and labels of a series.
    fn labels(&mut self, suffix: &str, labels: &[(&str, &str)]) {
        self.out.extend_from_slice(self.name.as_bytes());
        self.out.extend_from_slice(suffix.as_bytes());
        let mut mark = b'{';
        for (label, value) in labels {
            self.out.push(std::mem::replace(&mut mark, b','));
            self.out.extend_from_slice(label.as_bytes());
            self.out.extend_from_slice(b"=\"");
            for byte in value.bytes() {
                match byte {
                    b'\\' | b'"' => self.out.extend_from_slice(&[b'\\', byte]),
                    b'\n' => self.out.extend_from_slice(b"\\n"),
                    other => self.out.push(other),
                }
            }
            self.out.push(b'"');
        }
        if mark == b',' {
            self.out.push(b'}');
        }
        self.out.push(b' ');
    }

    fn count(&mut self, labels: &[(&str, &str)], value: u64) {
        self.labels("", labels);
        push_number(self.out, value);
        self.out.push(b'\n');
    }

    /// Appends a value of a limit; money in dollars. The models that it counts, if not all, follow its time.
    fn limit(&mut self, limit: &LimitStatus, value: u64) {
        let Whose::Group(name) = &limit.whose else { return };
        let per = limit.cap.name();
        let (resource, per) = per.split_once('/').unwrap_or((&per, "now"));
        let labels = [("target", &*shown(name)), ("resource", resource), ("per", per)];
        match limit.cap.resource {
            Resource::Budget => self.real("", &labels, value as f64 / 1e9),
            _ => self.count(&labels, value),
        }
    }

    fn real(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.labels(suffix, labels);
        let _ = writeln!(self.out, "{value}");
    }

    /// Appends a histogram. `label`: the label of the series, which may be empty.
    fn histogram(&mut self, histogram: &Histogram, scale: &Scale, label: &[(&str, &str)]) {
        let mut total = 0;
        for index in 0..=scale.bounds.len() {
            total += histogram.buckets.get(index).copied().unwrap_or(0);
            let bound = scale.bounds.get(index).map_or("+Inf".to_string(), |at| (*at as f64 / scale.unit).to_string());
            let labels = [label, &[("le", bound.as_str())]].concat();
            self.labels("_bucket", &labels);
            push_number(self.out, total);
            self.out.push(b'\n');
        }
        self.real("_sum", label, histogram.sum as f64 / scale.unit);
        self.labels("_count", label);
        push_number(self.out, total);
        self.out.push(b'\n');
    }

    /// Appends the only series of a family. False if it is written.
    fn only(&mut self, at: usize, value: u64) -> bool {
        if at == 0 {
            self.count(&[], value);
        }
        at == 0
    }

    fn only_real(&mut self, at: usize, value: f64) -> bool {
        if at == 0 {
            self.real("", &[], value);
        }
        at == 0
    }

    /// Appends a series of a model, if there is one.
    fn of_model(&mut self, model: Option<&ModelCounts>, scale: &Scale, pick: fn(&ModelCounts) -> &Histogram) -> bool {
        let Some(model) = model else { return false };
        self.histogram(pick(model), scale, &[("model", &model.model)]);
        true
    }
}

/// Series with one name.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Appends the series with this index; several lines if they share most labels, or none. False if there is none.
    series: fn(&Sources<'_>, usize, &mut FamilyText<'_>) -> bool,
}

const fn counter(name: &'static str, help: &'static str, series: SeriesOf) -> Family {
    Family { name, kind: "counter", help, series }
}

const fn gauge(name: &'static str, help: &'static str, series: SeriesOf) -> Family {
    Family { name, kind: "gauge", help, series }
}

const fn histogram(name: &'static str, help: &'static str, series: SeriesOf) -> Family {
    Family { name, kind: "histogram", help, series }
}

type SeriesOf = fn(&Sources<'_>, usize, &mut FamilyText<'_>) -> bool;

/// All families, in the order of the text.
static FAMILIES: &[Family] = &[
    gauge("tollgate_build_info", "The running version.", |_, at, text| {
        if at == 0 {
            text.count(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        }
        at == 0
    }),
    counter("tollgate_requests_total", "Answered requests; status 499: the client left.", requests),
    counter("tollgate_refused_total", "Requests rejected by a limit (429).", |from, at, text| {
        let Some(limit) = Shorthand::ALL.iter().find(|kind| **kind as usize == at) else { return false };
        text.count(&[("limit", limit.as_str())], from.stats.refused[at]);
        true
    }),
    counter("tollgate_tokens_total", "Tokens charged.", |from, at, text| {
        let Some(model) = from.model(at) else { return false };
        for (kind, count) in ["input", "cache_read", "cache_write", "output"].into_iter().zip(model.tokens) {
            text.count(&[("model", &model.model), ("kind", kind)], count);
        }
        true
    }),
    counter(
        "tollgate_cost_dollars_total",
        "Cost of the tokens charged, at the configured prices.",
        |from, at, text| {
            let Some(model) = from.model(at) else { return false };
            text.real("", &[("model", &model.model)], model.cost_nano as f64 / 1e9);
            true
        },
    ),
    histogram(
        "tollgate_first_event_seconds",
        "Time from the end of a request to the first content of its stream.",
        |from, at, text| text.of_model(from.model(at), &ANSWERS, |model| &model.first_event),
    ),
    histogram("tollgate_request_seconds", "Time of admitted requests.", |from, at, text| {
        text.of_model(from.model(at), &ANSWERS, |model| &model.request)
    }),
    histogram(
        "tollgate_tokens_per_second",
        "Tokens of a stream by the time from its first content to its end.",
        |from, at, text| text.of_model(from.model(at), &RATES, |model| &model.rate),
    ),
    histogram("tollgate_phase_seconds", "Time per phase of a request.", |from, at, text| {
        let Some(name) = PHASES.get(at) else { return false };
        text.histogram(&from.stats.phases[at], &PHASE_TIMES, &[("phase", name)]);
        true
    }),
    histogram("tollgate_loop_iteration_seconds", "Seconds of one event-loop iteration.", |from, at, text| {
        if at == 0 {
            text.histogram(&from.stats.turns, &PHASE_TIMES, &[]);
        }
        at == 0
    }),
    counter(
        "tollgate_upstream_responses_total",
        "Attempts by how they ended: a status, connect, tls, timeout, broken or abandoned.",
        |from, at, text| {
            let Some((target, _)) = from.target(at) else { return false };
            for (end, count) in target.ends() {
                text.count(&[("target", &target.label), ("status", &end.to_string())], count);
            }
            true
        },
    ),
    counter("tollgate_target_failures_total", "Failures that a target caused itself.", |from, at, text| {
        let Some((target, _)) = from.target(at) else { return false };
        text.count(&[("target", &target.label)], target.failures);
        true
    }),
    counter(
        "tollgate_overruns_total",
        "Requests under strict limits that the provider reports more for than was reserved.",
        |from, at, text| {
            let Some((target, _)) = from.target(at) else { return false };
            text.count(&[("target", &target.label)], target.overruns);
            true
        },
    ),
    gauge(
        "tollgate_target_cooling_down",
        "1 while a target cools down (after failures, or because its provider reports a limit) or is probed.",
        |from, at, text| {
            let Some((target, cooling)) = from.target(at) else { return false };
            text.count(&[("target", &target.label)], u64::from(cooling));
            true
        },
    ),
    gauge("tollgate_queued", "Requests that wait for a slot, for models with a queue.", queued),
    gauge(
        "tollgate_budget_used_ratio",
        "Used share of a budget of a group, by the time it is for.",
        |from, at, text| {
            let Some((group, cap, used)) = from.budgets.get(at) else { return false };
            let (per, models) = (cap.per.text(), cap.models.text().map_or("", |models| models));
            let labels = [("group", &**group), ("per", &per), ("models", models)];
            let labels = if models.is_empty() { &labels[..2] } else { &labels };
            text.real("", labels, *used as f64 / cap.total as f64);
            true
        },
    ),
    gauge("tollgate_target_limit_used", "Use of a limit of a target, a provider or a credential.", |from, at, text| {
        let Some(limit) = from.limits.get(at) else { return false };
        text.limit(limit, limit.used);
        true
    }),
    gauge("tollgate_target_limit", "Total of a limit of a target, a provider or a credential.", |from, at, text| {
        let Some(limit) = from.limits.get(at) else { return false };
        text.limit(limit, limit.cap.total);
        true
    }),
    gauge(
        "tollgate_client_connections",
        "Open client connections, without those to the admin listener.",
        |from, at, text| text.only(at, from.gauges.clients as u64),
    ),
    gauge("tollgate_upstream_connections", "Open upstream connections.", |from, at, text| {
        text.only(at, from.gauges.upstreams as u64)
    }),
    gauge("tollgate_upstream_idle_connections", "Idle upstream connections.", |from, at, text| {
        text.only(at, from.gauges.idle as u64)
    }),
    gauge(
        "tollgate_open_reservations",
        "Reservations of requests between admission and settlement.",
        |from, at, text| text.only(at, from.gauges.holds as u64),
    ),
    gauge("tollgate_buffered_bytes", "Bytes in buffers, at most max_buffered.", |from, at, text| {
        text.only(at, from.gauges.buffered as u64)
    }),
    gauge("tollgate_worst_case_bytes", "Upper bound of the memory of the process.", |from, at, text| {
        text.only(at, from.gauges.worst_case)
    }),
    gauge("tollgate_uncommitted_rows", "Usage records not yet in the ledger.", |from, at, text| {
        text.only(at, from.gauges.uncommitted)
    }),
    counter(
        "tollgate_stale_retries_total",
        "Requests sent once more because the kept connection was closed.",
        |from, at, text| text.only(at, from.stats.stale_retries),
    ),
    counter("tollgate_reloads_total", "Configurations applied by a reload.", |from, at, text| {
        text.only(at, from.stats.reloads)
    }),
    counter(
        "tollgate_turned_away_total",
        "Connections beyond a limit: closed, or answered with 503.",
        |from, at, text| text.only(at, from.gauges.turned_away),
    ),
    counter(
        "tollgate_log_suppressed_total",
        "Requests that cost nothing and are not in the log, beyond 100 a second for each key.",
        |from, at, text| text.only(at, from.stats.log_suppressed),
    ),
    counter("tollgate_admin_refused_total", "Requests to the admin listener with a wrong token.", |from, at, text| {
        text.only(at, from.stats.admin_refused)
    }),
    counter("tollgate_panics_total", "Requests aborted by an internal panic.", |from, at, text| {
        text.only(at, from.stats.panics)
    }),
    counter("tollgate_spans_dropped_total", "Spans that did not reach their collector.", |from, at, text| {
        text.only(at, from.stats.spans_dropped)
    }),
    counter("process_cpu_seconds_total", "CPU time of the process in seconds.", |from, at, text| {
        text.only_real(at, from.gauges.process.cpu_micros as f64 / 1e6)
    }),
    gauge("process_resident_memory_bytes", "Resident memory of the process in bytes.", |from, at, text| {
        text.only_real(at, from.gauges.process.resident_bytes as f64)
    }),
    gauge("process_open_fds", "Open descriptors.", |from, at, text| {
        text.only_real(at, from.gauges.process.open_fds as f64)
    }),
    gauge("process_start_time_seconds", "Start of the process in seconds since 1970.", |from, at, text| {
        text.only_real(at, from.gauges.process.started.0 as f64 / 1e3)
    }),
];

/// The requests without a series come first, since their place must not depend on the number of series.
fn requests(from: &Sources<'_>, at: usize, text: &mut FamilyText<'_>) -> bool {
    let Some(serial) = at.checked_sub(1) else {
        text.count(&[("endpoint", "other"), ("model", ""), ("status", "0")], from.stats.other);
        return true;
    };
    let Some(request) = text.by_serial.get(serial).and_then(|at| from.stats.requests.get(*at)) else { return false };
    let (model, status) = (request.model.as_deref().unwrap_or(""), request.status.to_string());
    text.count(&[("endpoint", &request.endpoint), ("model", model), ("status", &status)], request.count);
    true
}

/// Models with a queue, followed by those whose requests wait although their model is gone or has no queue any more.
fn queued(from: &Sources<'_>, at: usize, text: &mut FamilyText<'_>) -> bool {
    let has_queue = |model: &Model| model.queue.is_some();
    if let Some(model) = from.models.get(at) {
        if has_queue(model) {
            text.count(&[("model", &model.id)], from.queues.len(&model.id) as u64);
        }
        return true;
    }
    let known = |id: &Arc<str>| from.models.iter().any(|model| has_queue(model) && model.id == *id);
    let mut others = from.queues.lengths().filter(|(model, _)| !known(model));
    let Some((model, length)) = others.nth(at - from.models.len()) else { return false };
    text.count(&[("model", model)], length as u64);
    true
}

/// A piece of the text, without targets, queues and budgets. True if it is the last.
#[cfg(test)]
fn piece_of(stats: &Stats, gauges: &Gauges, position: &mut ScrapePosition, room: usize, out: &mut Vec<u8>) -> bool {
    let (breakers, queues) = (Breakers::default(), Queues::default());
    let from = Sources {
        stats,
        gauges,
        breakers: &breakers,
        queues: &queues,
        models: &[],
        budgets: Vec::new(),
        limits: Vec::new(),
        now: Mono(0),
    };
    from.write(position, room, out)
}

/// The whole text, without targets, queues and budgets.
#[cfg(test)]
pub(crate) fn text_of(stats: &Stats, gauges: &Gauges) -> String {
    let mut out = Vec::new();
    assert!(piece_of(stats, gauges, &mut ScrapePosition::default(), usize::MAX, &mut out));
    String::from_utf8(out).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::report::metrics::Taken;
    use crate::policy::usage::Usage;
    use std::collections::BTreeSet;

    /// Counts requests of many models, each with a stream.
    fn count(stats: &mut Stats, models: impl Iterator<Item = usize>) {
        let taken =
            Taken { usage: Usage { out: 9, ..Usage::default() }, cost_nano: 1, micros: 1, events: Some((1, 9000)) };
        for number in models {
            let model: Arc<str> = format!("{number:0>128}").into();
            stats.request("chat", Some(&model), 200);
            stats.taken(&model, &taken);
        }
    }

    #[test]
    fn every_series_is_contiguous_while_counts_change() {
        let mut stats = Stats::default();
        count(&mut stats, 0..300);
        let (gauges, mut position, mut text, mut pieces) =
            (Gauges::default(), ScrapePosition::default(), Vec::new(), 0);
        loop {
            let mut piece = Vec::new();
            let complete = piece_of(&stats, &gauges, &mut position, 64 << 10, &mut piece);
            assert!(piece.len() < 72 << 10, "a piece has {} bytes", piece.len());
            text.extend(piece);
            pieces += 1;
            if complete {
                break;
            }
            // The order of the series changes, and one more is added.
            count(&mut stats, (0..300).rev().step_by(7).chain([300 + pieces]));
        }
        let text = String::from_utf8(text).unwrap();
        let series: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let names: BTreeSet<&str> = series.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(names.len(), series.len(), "a series is there twice");
        assert!(pieces > 20 && text.len() > 2 << 20, "{} bytes in {pieces} pieces", text.len());
        let whole = text_of(&stats, &gauges);
        let first = whole.lines().filter(|line| (0..300).any(|number| line.contains(&format!("{number:0>128}"))));
        let first = first.map(|line| line.rsplit_once(' ').unwrap().0);
        assert_eq!(first.filter(|name| !names.contains(name)).count(), 0, "a series is missing");
        let heads =
            |text: &str| text.lines().filter(|line| line.starts_with('#')).map(String::from).collect::<Vec<_>>();
        assert_eq!(heads(&text), heads(&whole));
    }
}
