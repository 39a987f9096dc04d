//! Answers of the admin API about the process itself: its state, targets, groups and last requests. Answers that
//! commands also give come from their code, on a helper thread.

use super::minutes::Minute;
use super::paging::{ListPart, end};
use super::recorder::{RecordedRow, Recorder};
use crate::base::text::{push_dollars, push_number};
use crate::base::time::{Mono, Unix};
use crate::gateway::cx::Cx;
use crate::gateway::metrics::{Gauges, Scrape, Sources};
use crate::gateway::provider::breaker::{TargetCondition, TargetStatus};
use crate::policy::cause::Cause;
use crate::policy::meter::GroupStatus;
use crate::policy::window;
use crate::wire::json::{item, key, write_string};

/// State of the gateway's connections and requests.
pub(crate) struct View {
    /// Reason why no requests are accepted, if so: `stopping`, `clock` or `ledger`.
    pub(crate) unready: Option<&'static str>,
    pub(crate) gauges: Gauges,
    /// Number of requests that have a slot.
    pub(crate) exchanges: usize,
}

/// Appends more of the metrics, until there are more than `room` bytes. True if they are complete.
pub(crate) fn scrape(cx: &mut Cx, scrape: &mut Scrape, room: usize, out: &mut Vec<u8>) -> bool {
    let Scrape { gauges, position } = scrape;
    let budgets = cx.meter.budgets(cx.now.unix);
    let models = cx.setup.config.catalog.models();
    let (stats, breakers, queues, now) = (&cx.stats, &cx.breakers, &cx.queues, cx.now.mono);
    Sources { stats, gauges, breakers, queues, models, budgets, now }.write(position, room, out)
}

/// Appends a member that is a number.
#[inline(never)] // compiled once: it has many callers here
fn count(out: &mut Vec<u8>, name: &str, value: u64) {
    key(out, name);
    push_number(out, value);
}

#[inline(never)]
fn truth(out: &mut Vec<u8>, name: &str, value: bool) {
    key(out, name);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

#[inline(never)]
fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    key(out, name);
    write_string(out, value);
}

/// Appends a member that is a point in time.
#[inline(never)]
fn moment(out: &mut Vec<u8>, name: &str, at: Unix) {
    key(out, name);
    out.push(b'"');
    window::write_iso(at, out);
    out.push(b'"');
}

/// Opens a member that is an object or a list.
#[inline(never)]
fn open(out: &mut Vec<u8>, name: &str, bracket: u8) {
    key(out, name);
    out.push(bracket);
}

/// `GET /admin/v1/status`. `origins`: origins of the client listeners, as seen by a browser.
pub(crate) fn status(view: &View, origins: &str, cx: &mut Cx, out: &mut Vec<u8>) {
    let (gauges, now) = (&view.gauges, cx.now);
    out.push(b'{');
    text(out, "version", env!("CARGO_PKG_VERSION"));
    let started = gauges.process.started;
    moment(out, "started", started);
    count(out, "uptime_seconds", now.unix.secs().saturating_sub(started.secs()));
    moment(out, "time", now.unix);
    truth(out, "ready", view.unready.is_none());
    truth(out, "stopping", cx.lifecycle.is_stopping());
    count(out, "configuration_epoch", cx.setup.epoch.into());
    open(out, "memory", b'{');
    count(out, "resident_bytes", gauges.process.resident_bytes);
    count(out, "buffered_bytes", gauges.buffered as u64);
    count(out, "max_buffered_bytes", cx.setup.config.server.max_buffered as u64);
    out.push(b'}');
    count(out, "cpu_us", gauges.process.cpu_micros);
    open(out, "connections", b'{');
    count(out, "clients", gauges.clients as u64);
    count(out, "upstream", gauges.upstreams as u64);
    count(out, "upstream_idle", gauges.idle as u64);
    count(out, "turned_away", gauges.turned_away);
    out.push(b'}');
    count(out, "exchanges", view.exchanges as u64);
    open(out, "ledger", b'{');
    truth(out, "failed", cx.ledger.is_failed());
    count(out, "rows_waiting", gauges.uncommitted);
    count(out, "lag_us", cx.ledger.lag(now.mono));
    out.push(b'}');
    open(out, "clients", b'[');
    for origin in origins.split_ascii_whitespace() {
        item(out);
        write_string(out, origin);
    }
    out.push(b']');
    open(out, "cors_origins", b'[');
    for origin in &cx.setup.config.server.cors_origins {
        item(out);
        write_string(out, origin);
    }
    out.push(b']');
    open(out, "alert_thresholds", b'[');
    for percent in cx.setup.config.alerts.thresholds() {
        item(out);
        push_number(out, (*percent).into());
    }
    out.push(b']');
    // All requests are recorded from the first read on.
    cx.recorder.start(now.unix);
    recorded_since(&cx.recorder, out);
    open(out, "minutes", b'[');
    cx.close_minute();
    for sum in cx.recorder.minutes.iter().flat_map(|minutes| minutes.of_hour(&cx.stats, now.unix)) {
        item(out);
        minute(&sum, out);
    }
    out.extend_from_slice(b"]}");
}

/// Appends the times from which all requests, and all failures, are kept.
fn recorded_since(recorder: &Recorder, out: &mut Vec<u8>) {
    let [failures, all] = recorder.since();
    moment(out, "recorded_since", all);
    moment(out, "failures_recorded_since", failures);
}

#[inline(never)]
fn minute(sum: &Minute, out: &mut Vec<u8>) {
    out.push(b'{');
    moment(out, "start", Unix(sum.minute * 60_000));
    count(out, "requests", sum.requests);
    count(out, "errors", sum.errors());
    count(out, "refused", sum.refused);
    count(out, "failed", sum.failed);
    count(out, "tokens", sum.tokens);
    count(out, "cost_nano_usd", sum.cost_nano);
    out.push(b'}');
}

/// `GET /admin/v1/targets`: the targets of all models.
pub(crate) fn targets(mut part: ListPart, cx: &mut Cx, out: &mut Vec<u8>) {
    let (setup, now) = (cx.setup.clone(), cx.now);
    // All requests are recorded from the first read on.
    cx.recorder.start(now.unix);
    cx.close_minute();
    out.extend_from_slice(b"{\"data\":[");
    for model in setup.config.catalog.models() {
        for target in &model.targets {
            if !part.takes(out.len()) {
                continue;
            }
            let standing = cx.breakers.standing(target, now.mono, now.unix);
            item(out);
            out.push(b'{');
            text(out, "target", &target.label);
            text(out, "model", &model.id);
            let name = setup.config.provider(target.provider).map_or("", |provider| &provider.name);
            text(out, "provider", name);
            count(out, "priority", target.priority.into());
            count(out, "in_flight", standing.busy.into());
            count(out, "places", target.places.into());
            count(out, "queued", cx.queues.len(&model.id) as u64);
            rest(&standing, now.mono, now.unix, out);
            let times = cx.recorder.first_bytes(target.seed, now.unix);
            condition(&standing, times.and_then(|times| times.slow_since), out);
            count(out, "served", standing.served);
            count(out, "failures", standing.failures);
            count(out, "failures_in_a_row", standing.in_a_row.into());
            key(out, "first_byte_us");
            match times {
                Some(times) => {
                    out.push(b'{');
                    count(out, "median", times.median.into());
                    count(out, "p95", times.p95.into());
                    key(out, "usual");
                    match times.usual {
                        Some(usual) => push_number(out, usual.into()),
                        None => out.extend_from_slice(b"null"),
                    }
                    out.push(b'}');
                }
                None => out.extend_from_slice(b"null"),
            }
            out.push(b'}');
        }
    }
    part.end(out);
}

/// Converts an end to wall-clock time, in whole seconds, rounded up: at the reported time it has been reached.
fn on_wall(at: Mono, now: Mono, unix: Unix) -> Unix {
    Unix(unix.0.saturating_add(at.micros_since(now).div_ceil(1000)).next_multiple_of(1000))
}

#[inline(never)]
fn rest(standing: &TargetStatus, now: Mono, unix: Unix, out: &mut Vec<u8>) {
    key(out, "resting");
    match standing.cool_down {
        None => out.extend_from_slice(b"null"),
        Some((until, why)) => {
            out.push(b'{');
            moment(out, "until", on_wall(until, now, unix));
            match &standing.trouble {
                Some(trouble) => words(out, "why", &trouble.cause),
                None => text(out, "why", why),
            }
            out.push(b'}');
        }
    }
    open(out, "left", b'{');
    for (name, left, until) in standing.left.iter().flatten() {
        open(out, name, b'{');
        count(out, "left", *left);
        moment(out, "until", on_wall(*until, now, unix));
        out.push(b'}');
    }
    out.push(b'}');
}

/// Appends a member that is a cause.
fn words(out: &mut Vec<u8>, name: &str, cause: &Cause) {
    open(out, name, b'"');
    cause.write(out);
    out.push(b'"');
}

/// Appends the state of a target in one word, its start, the last failure, and the attempts of the last minutes.
/// `slow`: the time from which it has been slow.
#[inline(never)]
fn condition(standing: &TargetStatus, slow: Option<Unix>, out: &mut Vec<u8>) {
    let (state, since) = match (standing.condition, slow) {
        (TargetCondition::Ok, Some(_)) => ("slow", slow),
        (state @ (TargetCondition::Failing | TargetCondition::CoolingDown), _) => {
            (state.name(), standing.trouble.map(|trouble| trouble.since))
        }
        (state, _) => (state.name(), None),
    };
    text(out, "state", state);
    match since {
        Some(since) => moment(out, "since", since),
        None => {
            key(out, "since");
            out.extend_from_slice(b"null");
        }
    }
    key(out, "last_failure");
    match &standing.trouble {
        Some(trouble) => {
            out.push(b'{');
            moment(out, "time", trouble.last);
            words(out, "cause", &trouble.cause);
            out.push(b'}');
        }
        None => out.extend_from_slice(b"null"),
    }
    open(out, "minutes_5", b'{');
    count(out, "answered", standing.recent[0]);
    count(out, "failed", standing.recent[1]);
    out.push(b'}');
    truth(out, "one_caller", standing.one_caller);
}

/// `GET /admin/v1/groups`: amounts used, reserved and allowed.
pub(crate) fn groups(mut part: ListPart, cx: &mut Cx, out: &mut Vec<u8>) {
    let setup = cx.setup.clone();
    out.extend_from_slice(b"{\"data\":[");
    let mut each = |status: &GroupStatus<'_>| {
        if !part.takes(out.len()) {
            return;
        }
        let limits = status.limits;
        let parent = setup.config.group(&limits.name).and_then(|group| group.parent.clone());
        item(out);
        out.push(b'{');
        text(out, "name", &limits.name);
        key(out, "parent");
        match &parent {
            Some(parent) => write_string(out, parent),
            None => out.extend_from_slice(b"null"),
        }
        text(out, "period", limits.period.as_str());
        moment(out, "renews", status.renews);
        count(out, "window_seconds", limits.window.as_secs());
        count(out, "running", status.running.into());
        for (name, used, reserved, total) in [
            ("requests", status.requests, 0, limits.requests),
            ("tokens", status.used.tokens, status.reserved.tokens, limits.tokens),
            ("tokens_per_window", status.window_tokens, 0, limits.tokens_per_window),
            ("concurrency", status.running.into(), 0, limits.concurrency),
        ] {
            open(out, name, b'{');
            count(out, "used", used);
            count(out, "reserved", reserved);
            count(out, "total", total);
            out.push(b'}');
        }
        open(out, "budget", b'{');
        for (name, nano) in [("used", status.used.nano), ("reserved", status.reserved.nano), ("total", limits.budget)] {
            key(out, name);
            push_dollars(out, nano);
        }
        out.extend_from_slice(b"}}");
    };
    cx.meter.groups(cx.now.unix, &mut each);
    part.end(out);
}

/// `GET /admin/v1/requests`: the last requests, newest first; only those before `after` if given, and only those with
/// the requested `id` or `session`, which may be the name that the client uses.
pub(crate) fn requests(part: &ListPart, cx: &mut Cx, out: &mut Vec<u8>) {
    cx.recorder.open(cx.now.unix);
    out.push(b'{');
    recorded_since(&cx.recorder, out);
    let wanted = |name: &str| part.more.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let (id, session) = (wanted("id"), wanted("session"));
    let hash = session.map(|name| cx.hash_key.session(name.as_bytes()));
    if let Some(hash) = &hash {
        text(out, "session_hash", hash);
    }
    let names = || session.into_iter().chain(hash.as_deref());
    let is_wanted = |row: &RecordedRow<'_>| session.is_none() || names().any(|name| row.is_of_session(name));
    let limit = usize::try_from(part.limit).unwrap_or(usize::MAX);
    open(out, "data", b'[');
    let mut rows = cx.recorder.rows();
    let before = part.after.unwrap_or(u64::MAX);
    rows.retain(|row| row.number() < before && id.is_none_or(|id| row.is(id)));
    rows.retain(is_wanted);
    let mut last = None;
    let mut rows = rows.iter().take(limit.saturating_add(1)).enumerate();
    let more = rows.any(|(at, row)| {
        if at >= limit || (at > 0 && out.len() >= part.bytes) {
            return true;
        }
        item(out);
        row.write(out);
        last = Some(row.number());
        false
    });
    end(last.filter(|_| more), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_rounded_up_to_a_whole_second() {
        let now = Unix(1_795_158_000_400);
        let told = |micros: u64| on_wall(Mono(5_000_000 + micros), Mono(5_000_000), now).0 - 1_795_158_000_000;
        assert_eq!([0, 1, 600_000, 600_001, 1_500_000].map(told), [1000, 1000, 1000, 2000, 2000]);
    }
}
