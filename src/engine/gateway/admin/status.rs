//! Answers of the admin API about the process itself: its state, targets, groups and last requests. Answers that
//! commands also give come from their code, on a helper thread.

use crate::base::text::{push_dollars, push_number};
use crate::base::time::{Mono, Unix};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::local::write_limits;
use crate::gateway::orders::paging::{ListPart, end};
use crate::gateway::provider::breaker::{HOUR, TargetStatus};
use crate::gateway::report::metrics::{Gauges, Scrape, Sources};
use crate::gateway::report::recorder::first_bytes::FirstByteTimes;
use crate::gateway::report::recorder::minutes::Minute;
use crate::gateway::report::recorder::{RecordedRow, Recorder, is_beginning};
use crate::gateway::upkeep::budget_news::groups_read;
use crate::gateway::upkeep::trouble::{JudgedTarget, Problem, by_target, health, judge};
use crate::policy::catalog::{Model, Target};
use crate::policy::cause::Cause;
use crate::policy::config::target_limits::shown;
use crate::policy::keys::KeyId;
use crate::policy::meter::{GroupStatus, LimitStatus, Whose};
use crate::policy::plan::{PATH_SEPARATOR, Shorthand};
use crate::policy::prices::{KEYS, price_text};
use crate::policy::refusal::Refusal;
use crate::policy::window;
use crate::wire::json::{item, key, member_count, member_string, write_string};

/// State of the gateway's connections and requests.
pub(crate) struct View<'a> {
    /// Reason why no requests are accepted: `stopping`, `clock` or `ledger`; none if requests are accepted.
    pub(crate) unready: Option<&'static str>,
    pub(crate) gauges: Gauges,
    /// Number of requests that have a slot.
    pub(crate) exchanges: usize,
    /// Attempts without an answer so far: the number of the target, and the beginning.
    pub(crate) unanswered: &'a dyn Fn() -> Vec<(u64, Mono)>,
}

/// Maximum number of reported captures.
const CAPTURES_MAX: usize = 20;
/// Appends more of the metrics, until there are more than `room` bytes. True if they are complete.
pub(crate) fn scrape(cx: &mut Cx, scrape: &mut Scrape, room: usize, out: &mut Vec<u8>) -> bool {
    let Scrape { gauges, position } = scrape;
    groups_read(cx);
    let budgets = cx.accounts.meter.budgets(cx.now.unix);
    let limits = target_limits(cx);
    let models = cx.setup.config.catalog.models();
    let (stats, breakers, queues, now) = (&cx.report.stats, &cx.upstreams.breakers, &cx.upstreams.queues, cx.now.mono);
    Sources { stats, gauges, breakers, queues, models, budgets, limits, now }.write(position, room, out)
}

/// Appends a member that is a number.
#[inline(never)] // compiled once: it has many callers here
fn count(out: &mut Vec<u8>, name: &str, value: u64) {
    member_count(out, name, value);
}

#[inline(never)]
fn truth(out: &mut Vec<u8>, name: &str, value: bool) {
    key(out, name);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

#[inline(never)]
fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    member_string(out, name, value);
}

/// Appends a member that is a point in time.
#[inline(never)]
fn moment(out: &mut Vec<u8>, name: &str, at: Unix) {
    key(out, name);
    out.push(b'"');
    window::write_iso(at, out);
    out.push(b'"');
}

/// Appends a member that `write` writes, or that is null.
fn optional<T>(out: &mut Vec<u8>, name: &str, value: Option<T>, write: impl FnOnce(T, &mut Vec<u8>)) {
    match value {
        Some(value) => write(value, out),
        None => {
            key(out, name);
            out.extend_from_slice(b"null");
        }
    }
}

/// Opens a member that is an object or a list.
#[inline(never)]
fn open(out: &mut Vec<u8>, name: &str, bracket: u8) {
    key(out, name);
    out.push(bracket);
}

/// Memory of the process and of its buffers.
fn memory(gauges: &Gauges, max_buffered: usize, out: &mut Vec<u8>) {
    open(out, "memory", b'{');
    count(out, "resident_bytes", gauges.process.resident_bytes);
    count(out, "buffered_bytes", gauges.buffered as u64);
    count(out, "max_buffered_bytes", max_buffered as u64);
    count(out, "worst_case_bytes", gauges.worst_case);
    out.push(b'}');
}

/// `GET /admin/v1/status`. `origins`: origins of the client listeners, as seen by a browser.
pub(crate) fn status(view: &View<'_>, origins: &str, cx: &mut Cx, out: &mut Vec<u8>) {
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
    memory(gauges, cx.setup.config.server.max_buffered, out);
    count(out, "cpu_us", gauges.process.cpu_micros);
    open(out, "connections", b'{');
    count(out, "clients", gauges.clients as u64);
    count(out, "upstream", gauges.upstreams as u64);
    count(out, "upstream_idle", gauges.idle as u64);
    count(out, "turned_away", gauges.turned_away);
    out.push(b'}');
    count(out, "exchanges", view.exchanges as u64);
    open(out, "ledger", b'{');
    truth(out, "failed", cx.accounts.ledger.is_failed());
    count(out, "rows_waiting", gauges.uncommitted);
    count(out, "lag_us", cx.accounts.ledger.lag(now.mono));
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
    cx.report.recorder.start(now.unix);
    recorded_since(&cx.report.recorder, out);
    cx.close_minute();
    let (health, problems) = health(view.unready, (view.unanswered)(), cx);
    text(out, "health", health.as_str());
    open(out, "problems", b'[');
    for one in &problems {
        item(out);
        problem(one, out);
    }
    out.push(b']');
    let times = cx.report.recorder.first_bytes(None, now.unix);
    first_bytes(times, out);
    refused(&cx.report.recorder, now.unix, out);
    captures(cx, out);
    open(out, "minutes", b'[');
    for sum in cx.report.recorder.minutes.iter().flat_map(|minutes| minutes.of_hour(&cx.report.stats, now.unix)) {
        item(out);
        minute(&sum, out);
    }
    out.extend_from_slice(b"]}");
}

/// Appends a problem as an object.
#[inline(never)]
pub(crate) fn problem(one: &Problem, out: &mut Vec<u8>) {
    out.push(b'{');
    text(out, "what", one.what);
    text(out, "name", &one.name);
    text(out, "state", one.state);
    text(out, "cause", &one.cause);
    optional(out, "since", one.since, |since, out| moment(out, "since", since));
    optional(out, "until", one.until, |until, out| moment(out, "until", Unix(until.0.next_multiple_of(1000))));
    count(out, "failed", one.failed);
    open(out, "models", b'[');
    for model in &one.models {
        item(out);
        write_string(out, model);
    }
    out.push(b']');
    text(out, "text", &one.text());
    one.advice.write(out);
    text(out, "health", one.health.as_str());
    out.push(b'}');
}

/// `GET /admin/v1/reasons`: failures by reason, target and key.
pub(crate) fn reasons(cx: &mut Cx, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"data\":[");
    cx.report.recorder.write_reasons(out);
    out.extend_from_slice(b"],\"next\":null}");
}

/// Appends the keys and models most of whose requests are refused.
fn refused(recorder: &Recorder, now: Unix, out: &mut Vec<u8>) {
    open(out, "refused", b'[');
    for one in recorder.refused(now) {
        item(out);
        out.push(b'{');
        text(out, "what", one.what);
        text(out, "id", one.id);
        text(out, "name", one.name);
        count(out, "requests", one.requests.into());
        count(out, "refused", one.refused.into());
        count(out, "status", one.status.into());
        moment(out, "since", one.since);
        out.push(b'}');
    }
    out.push(b']');
}

/// Appends the keys whose traffic is captured.
fn captures(cx: &Cx, out: &mut Vec<u8>) {
    open(out, "captures", b'[');
    for (id, until) in cx.report.captures.running(cx.now.unix).take(CAPTURES_MAX) {
        let Some(known) = cx.access.keys.index_of(&id) else { continue };
        item(out);
        out.push(b'{');
        text(out, "id", id.as_str());
        text(out, "name", cx.access.keys.get(known).name());
        moment(out, "until", until);
        out.push(b'}');
    }
    out.push(b']');
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
pub(crate) fn targets(mut part: ListPart, view: &View<'_>, cx: &mut Cx, out: &mut Vec<u8>) {
    let (setup, now) = (cx.setup.clone(), cx.now);
    let accounts = target_limits(cx);
    let (unanswered, with_minutes) = (by_target((view.unanswered)()), part.wanted("minutes").is_some());
    // All requests are recorded from the first read on.
    cx.report.recorder.start(now.unix);
    cx.close_minute();
    out.extend_from_slice(b"{\"data\":[");
    for model in setup.config.catalog.models() {
        for target in &model.targets {
            if !part.takes(out.len()) {
                continue;
            }
            let state = judge(target, &unanswered, cx);
            let standing = &state.standing;
            item(out);
            out.push(b'{');
            text(out, "target", &target.label);
            text(out, "model", &model.id);
            let name = setup.config.provider(target.provider).map_or("", |provider| &provider.name);
            text(out, "provider", name);
            count(out, "priority", target.priority.into());
            count(out, "in_flight", standing.busy.into());
            count(out, "slots", target.slots.into());
            count(out, "queued", cx.upstreams.queues.len(&model.id) as u64);
            rest(standing, now.mono, now.unix, out);
            condition(&state, out);
            optional(out, "unanswered", state.unanswered, |(attempts, oldest), out| {
                open(out, "unanswered", b'{');
                count(out, "attempts", attempts);
                moment(out, "since", oldest);
                out.push(b'}');
            });
            prices(model, target, out);
            limits_of_target(target, &accounts, out);
            count(out, "served", standing.served);
            count(out, "failures", standing.failures);
            count(out, "failures_in_a_row", standing.in_a_row.into());
            first_bytes(state.times, out);
            if with_minutes {
                minutes(target, cx, out);
            }
            out.push(b'}');
        }
    }
    part.end(out);
}

/// All limits of targets, providers and credentials.
fn target_limits(cx: &mut Cx) -> Vec<LimitStatus> {
    let mut all = Vec::new();
    cx.accounts.targets.each(cx.now.unix, &mut |status| all.extend(status.all.iter().cloned()));
    all
}

/// Appends the limits that attempts at a target count in.
#[inline(never)]
fn limits_of_target(target: &Target, all: &[LimitStatus], out: &mut Vec<u8>) {
    let path = target.accounts.as_ref().map_or("", |accounts| &accounts.path);
    let counts = |limit: &&LimitStatus| match &limit.whose {
        Whose::Group(name) => path.split(PATH_SEPARATOR).any(|own| own == &**name),
        Whose::Key | Whose::Plan(_) | Whose::Target(_) => false,
    };
    let own: Vec<LimitStatus> = all.iter().filter(counts).map(named).collect();
    key(out, "limits");
    write_limits(&own, out);
}

/// A limit of a target, a provider or a credential with the name that people read.
fn named(limit: &LimitStatus) -> LimitStatus {
    let name = if let Whose::Group(name) = &limit.whose { shown(name) } else { String::new() };
    LimitStatus { whose: Whose::Target(name.into()), ..limit.clone() }
}

/// Appends the prices of a target in US dollars per million tokens, those of prompts below all thresholds; null without
/// prices of tokens.
#[inline(never)]
fn prices(model: &Model, target: &Target, out: &mut Vec<u8>) {
    let has_tokens = target.prices.as_ref().map_or(model.has_token_prices, |own| own.has_tokens);
    let prices = has_tokens.then(|| model.prices_at(Some(target)).0);
    optional(out, "prices", prices, |prices, out| {
        open(out, "prices", b'{');
        for (name, of) in KEYS {
            key(out, name);
            out.extend_from_slice(price_text(of(&prices.base)).as_bytes());
        }
        out.push(b'}');
    });
}

/// Appends the minutes of the last hour, the current one first: answered and failed attempts, and the median time to
/// the first byte in microseconds, or null.
#[inline(never)]
fn minutes(target: &Target, cx: &mut Cx, out: &mut Vec<u8>) {
    let medians = cx.report.recorder.medians(target.seed, cx.now.unix);
    let mut sums = cx.upstreams.breakers.sums(target).into_iter().flat_map(|(minutes, ..)| minutes);
    open(out, "minutes", b'[');
    for at in 0..HOUR {
        let [answered, failed, unanswered, _] = sums.next().unwrap_or_default();
        item(out);
        out.push(b'[');
        push_number(out, answered.into());
        out.push(b',');
        push_number(out, u64::from(failed) + u64::from(unanswered));
        out.push(b',');
        match medians.get(at).copied().flatten() {
            Some(median) => push_number(out, median.into()),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b']');
    }
    out.push(b']');
}

#[inline(never)]
fn first_bytes(times: Option<FirstByteTimes>, out: &mut Vec<u8>) {
    optional(out, "first_byte_us", times, |times, out| {
        open(out, "first_byte_us", b'{');
        count(out, "median", times.median.into());
        count(out, "p95", times.p95.into());
        optional(out, "usual", times.usual, |usual, out| count(out, "usual", usual.into()));
        out.push(b'}');
    });
}

/// Converts an end to wall-clock time, in whole seconds, rounded up: at the reported time it has been reached.
fn on_wall(at: Mono, now: Mono, unix: Unix) -> Unix {
    Unix(unix.0.saturating_add(at.micros_since(now).div_ceil(1000)).next_multiple_of(1000))
}

#[inline(never)]
fn rest(standing: &TargetStatus, now: Mono, unix: Unix, out: &mut Vec<u8>) {
    optional(out, "resting", standing.cool_down, |rest, out| {
        open(out, "resting", b'{');
        moment(out, "until", on_wall(rest.until, now, unix));
        match &rest.cause {
            Some(cause) => words(out, "why", cause),
            None => text(out, "why", rest.why),
        }
        out.push(b'}');
    });
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
#[inline(never)]
fn condition(state: &JudgedTarget, out: &mut Vec<u8>) {
    let standing = &state.standing;
    text(out, "state", state.word);
    optional(out, "since", state.since, |since, out| moment(out, "since", since));
    optional(out, "last_failure", standing.failure, |(last, cause), out| {
        open(out, "last_failure", b'{');
        moment(out, "time", last);
        words(out, "cause", &cause);
        out.push(b'}');
    });
    open(out, "minutes_5", b'{');
    count(out, "answered", standing.recent[0]);
    count(out, "failed", standing.recent[1]);
    count(out, "unanswered", standing.recent[2]);
    out.push(b'}');
    truth(out, "one_caller", state.one_caller);
}

/// `GET /admin/v1/groups`: amounts used, reserved and allowed.
pub(crate) fn groups(mut part: ListPart, cx: &mut Cx, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"data\":[");
    let mut each = |status: &GroupStatus<'_>| {
        if !part.takes(out.len()) {
            return;
        }
        let limits = status.limits;
        item(out);
        out.push(b'{');
        text(out, "name", &limits.name);
        optional(out, "parent", status.parent, |parent, out| text(out, "parent", parent));
        text(out, "period", limits.period.as_str());
        moment(out, "renews", status.renews);
        count(out, "window_seconds", limits.window.as_secs());
        let settings = || Shorthand::ALL.into_iter().zip(status.used);
        let running = settings().find(|(setting, _)| *setting == Shorthand::Concurrency);
        count(out, "running", running.map_or(0, |(_, (used, _))| used));
        for (setting, (used, reserved)) in settings() {
            open(out, setting.as_str(), b'{');
            for (name, value) in [("used", used), ("reserved", reserved), ("total", limits.limit(setting))] {
                key(out, name);
                if setting.is_money() { push_dollars(out, value) } else { push_number(out, value) }
            }
            out.push(b'}');
        }
        out.extend_from_slice(b",\"limits\":");
        write_limits(&status.all, out);
        out.push(b'}');
    };
    groups_read(cx);
    cx.accounts.meter.groups(cx.now.unix, &mut each);
    part.end(out);
}

/// `GET /admin/v1/limits`: every limit of the key with the id `key`, and of the groups above it, with its use.
pub(crate) fn limits(part: &ListPart, cx: &mut Cx, out: &mut Vec<u8>) -> Result<(), Refusal> {
    let key = part.wanted("key").and_then(KeyId::parse).and_then(|id| cx.access.keys.index_of(&id));
    let payer = key.and_then(|key| cx.access.payer(key, &cx.setup.config).ok());
    let payer =
        payer.ok_or_else(|| Refusal::of_status(404, "no key with this id, or its plan or group is not configured"))?;
    out.extend_from_slice(b"{\"data\":");
    write_limits(&cx.accounts.meter.limits(payer, cx.now.unix), out);
    out.push(b'}');
    Ok(())
}

/// `GET /admin/v1/requests`: the last requests, newest first; only those before `after` if given, and only those with
/// the requested `id` or `session`, which may be the name that the client uses. If no request with this id is recorded,
/// returns the beginning of the answer: the ledger may have it.
pub(crate) fn requests(part: &ListPart, cx: &mut Cx, out: &mut Vec<u8>) -> Option<String> {
    let start = out.len();
    cx.report.recorder.open(cx.now.unix);
    out.push(b'{');
    recorded_since(&cx.report.recorder, out);
    let (id, session) = (part.wanted("id"), part.wanted("session"));
    let hash = session.map(|name| cx.report.hash_key.session(name.as_bytes()));
    if let Some(hash) = &hash {
        text(out, "session_hash", hash);
    }
    let names = || session.into_iter().chain(hash.as_deref());
    let is_wanted = |row: &RecordedRow<'_>| session.is_none() || names().any(|name| row.is_of_session(name));
    let limit = usize::try_from(part.limit).unwrap_or(usize::MAX);
    open(out, "data", b'[');
    let mut rows = cx.report.recorder.rows();
    let before = part.after.unwrap_or(u64::MAX);
    rows.retain(|row| row.number() < before && id.is_none_or(|id| row.is(id)));
    if rows.is_empty() && part.after.is_none() && session.is_none() && id.is_some_and(is_beginning) {
        let begun = out.split_off(start);
        return String::from_utf8(begun).ok();
    }
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
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_rounded_up_to_a_whole_second() {
        let now = Unix(1_795_158_000_400);
        let shown = |micros: u64| on_wall(Mono(5_000_000 + micros), Mono(5_000_000), now).0 - 1_795_158_000_000;
        assert_eq!([0, 1, 600_000, 600_001, 1_500_000].map(shown), [1000, 1000, 1000, 2000, 2000]);
    }
}
