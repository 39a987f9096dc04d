//! Counters and histograms. Counting costs no allocation once a combination of labels has been seen. `exposition`
//! writes them as text.

mod exposition;

use crate::base::seam::ProcessVitals;
use crate::gateway::counters::{Histogram, ModelCounts, PHASES as PHASES_COUNT, RequestCount, Stats};
use crate::policy::plan::Shorthand;
use crate::policy::usage::Usage;
pub(crate) use exposition::{Scrape, ScrapePosition, Sources};
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
#[derive(Copy, Clone, Debug, Default)]
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
    /// The upper bound of the process's memory.
    pub(crate) worst_case: u64,
    /// Rows not yet known to be in the ledger.
    pub(crate) uncommitted: u64,
    /// Connections refused, or answered 503, because there were too many.
    pub(crate) turned_away: u64,
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
            let serial = self.requests.len() as u16;
            self.requests.push(RequestCount {
                endpoint: endpoint.into(),
                model: model.cloned(),
                status,
                count,
                serial,
            });
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

    /// Counts a request that a limit has refused.
    pub(crate) fn refused(&mut self, limit: Shorthand) {
        self.refused[limit as usize] += 1;
    }

    /// Counts the time one phase took.
    pub(crate) fn phase(&mut self, phase: Timed, micros: u64) {
        self.phases[phase as usize].observe(&PHASE_TIMES, micros);
    }

    /// Counts the time of one event-loop iteration.
    pub(crate) fn turn(&mut self, micros: u64) {
        self.turns.observe(&PHASE_TIMES, micros);
    }
}

/// The buckets of a histogram.
struct Scale {
    /// Upper bounds; the last bucket has none.
    bounds: &'static [u64],
    /// Number of counted units per displayed unit.
    unit: f64,
}

/// Microseconds, displayed in seconds: times of the event loop and of the phases of a request, from 100 µs to ten
/// minutes.
const PHASE_TIMES: Scale = Scale {
    bounds: &[
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
    ],
    unit: 1e6,
};

/// Microseconds, displayed in seconds: times of models, from 50 ms to ten minutes.
const ANSWERS: Scale = Scale {
    bounds: &[
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        30_000_000,
        60_000_000,
        120_000_000,
        300_000_000,
        600_000_000,
    ],
    unit: 1e6,
};

/// Thousandths of a token per second, displayed in tokens per second.
const RATES: Scale = Scale {
    bounds: &[
        1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 500_000,
        1_000_000,
    ],
    unit: 1e3,
};

impl Histogram {
    /// Counts one value.
    #[inline]
    fn observe(&mut self, scale: &Scale, value: u64) {
        let index = scale.bounds.iter().position(|bound| value <= *bound).unwrap_or(scale.bounds.len());
        if self.buckets.is_empty() {
            self.buckets.resize(scale.bounds.len() + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(index) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_their_buckets() {
        let mut one = Histogram::default();
        [50_000, 50_001, 601_000_000].into_iter().for_each(|value| one.observe(&ANSWERS, value));
        assert_eq!(
            (one.buckets[0], one.buckets[1], one.buckets[ANSWERS.bounds.len()], one.sum),
            (1, 1, 1, 601_100_001)
        );
    }

    #[test]
    fn counters_and_histograms_are_written_as_prometheus_text() {
        let mut stats = Stats::default();
        let model: Arc<str> = Arc::from("a\"b");
        stats.request("chat", Some(&model), 200);
        stats.request("chat", Some(&model), 200);
        stats.request("none", None, 404);
        stats.phase(Timed::Total, 2_000_000_000);
        let text = exposition::text_of(&stats, &Gauges { clients: 3, ..Gauges::default() });
        assert!(text.contains("tollgate_requests_total{endpoint=\"chat\",model=\"a\\\"b\",status=\"200\"} 2\n"));
        assert!(text.contains("tollgate_phase_seconds_bucket{phase=\"total\",le=\"600\"} 0\n"));
        assert!(text.contains("tollgate_phase_seconds_bucket{phase=\"total\",le=\"+Inf\"} 1\n"));
        assert!(text.contains("tollgate_client_connections 3\n"));
    }

    #[test]
    fn every_count_is_written() {
        let mut stats = Stats::default();
        let model: Arc<str> = Arc::from("m");
        let usage = Usage { uncached_in: 1, out: 10, ..Usage::default() };
        let taken = Taken { usage, cost_nano: 7, micros: 60_000, events: Some((20_000, 100_000)) };
        for _ in 0..2 {
            stats.request("chat", Some(&model), 200);
            stats.taken(&model, &taken);
            stats.phase(Timed::Wait, 5);
            stats.turn(3);
            stats.refused(Shorthand::Concurrency);
            stats.stale_retries += 1;
        }
        stats.request("none", None, 404);
        let text = exposition::text_of(&stats, &Gauges::default());
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
            let text = exposition::text_of(stats, &Gauges::default());
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
