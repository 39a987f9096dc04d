//! Problems that an operator should know of: what has the problem, its cause and its beginning, the requests of clients
//! that failed, and the next step. The admin API, the command line, the dashboard, alerts and the log take their words
//! from here.

use crate::base::text::quoted;
use crate::base::time::{Mono, Unix};
use crate::gateway::counters::Callers;
use crate::gateway::cx::Cx;
use crate::gateway::provider::breaker::{
    Among, Choice, CoolDownStatus, LEAST, Seek, Stage, TargetCondition, TargetStatus, TargetTrouble,
};
use crate::gateway::report::recorder::first_bytes::FirstByteTimes;
use crate::policy::alert::AlertProblem;
use crate::policy::catalog::Target;
use crate::policy::cause::{Advice, Cause};
use crate::policy::keys::LiveKeys;
use crate::policy::window;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

/// Microseconds after which an attempt without an answer may hang, if its target has not answered any for so long.
const HUNG: u64 = 30_000_000;
/// Maximum number of reported problems.
const PROBLEMS_MAX: usize = 100;
/// Maximum number of models that a problem names.
const MODELS_MAX: usize = 20;
/// Share of failed requests, in percent, and number of requests of five minutes from which the gateway is degraded.
const FAILED_PERCENT: u64 = 5;
const REQUESTS_MIN: u64 = 20;
/// Milliseconds from which the wait for a failed attempt is reported.
const WAITED_MIN: u32 = 1000;
/// Lag of the ledger in microseconds from which the gateway is degraded.
const LATE: u64 = 1_000_000;

/// State of the gateway in one word.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Health {
    Healthy,
    Degraded,
    Down,
}

impl Health {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Degraded => "degraded",
            Health::Down => "down",
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) what: &'static str,
    /// Name of the target or model; empty for the gateway's own problems.
    pub(crate) name: String,
    /// The state in one word, as in the list of targets.
    pub(crate) state: &'static str,
    pub(crate) cause: String,
    pub(crate) since: Option<Unix>,
    /// End of a cool-down.
    pub(crate) until: Option<Unix>,
    /// Requests of clients that failed because of it in five minutes, or whose clients left without an answer.
    pub(crate) failed: u64,
    /// Milliseconds of the longest failed attempt in these minutes.
    pub(crate) waited: u32,
    /// Models that use the target.
    pub(crate) models: Vec<Arc<str>>,
    pub(crate) advice: Advice,
    /// Its effect on the state of the gateway.
    pub(crate) health: Health,
}

impl Problem {
    /// The problem in one sentence, without its subject and its times.
    pub(crate) fn text(&self) -> String {
        let mut text = [&state_words(self.state), ": ", &*self.cause].concat();
        // Writing to a String cannot fail.
        let _ = match (self.what, self.failed) {
            ("target", 0) if self.waited >= WAITED_MIN => {
                let (seconds, tenths) = (self.waited / 1000, self.waited / 100 % 10);
                write!(text, "; no request of a client failed in 5 min, but requests waited up to {seconds}.{tenths} s")
            }
            ("target" | "model", 0) => write!(text, "; no request of a client failed in 5 min"),
            ("target" | "model", 1) => write!(text, "; 1 request of a client failed in 5 min"),
            ("target" | "model", failed) => write!(text, "; {failed} requests of clients failed in 5 min"),
            _ => Ok(()),
        };
        if self.what == "target" && !self.models.is_empty() {
            let s = if self.models.len() == 1 { "" } else { "s" };
            let names: Vec<String> = self.models.iter().map(|name| quoted(name)).collect();
            let _ = write!(text, " (model{s} {})", names.join(", "));
        }
        text
    }

    /// A problem of the gateway itself.
    fn own(what: &'static str, state: &'static str, cause: String, since: Option<Unix>, advice: Advice) -> Problem {
        let (name, until, models, health) = (String::new(), None, Vec::new(), Health::Down);
        Problem { what, name, state, cause, since, until, failed: 0, waited: 0, models, advice, health }
    }
}

/// A state in words.
fn state_words(state: &str) -> String {
    if state == TargetCondition::StillTried.as_str() {
        return "only target, still tried".to_string();
    }
    state.replace('_', " ")
}

/// State of a target, which the list of targets shows and the health of the gateway follows from.
pub(crate) struct JudgedTarget {
    pub(crate) word: &'static str,
    pub(crate) since: Option<Unix>,
    pub(crate) standing: TargetStatus,
    pub(crate) times: Option<FirstByteTimes>,
    /// Its state follows from failures of one key or group alone, and others could use it.
    pub(crate) one_caller: bool,
    /// Attempts in flight without an answer: the number, and the beginning of the oldest.
    pub(crate) unanswered: Option<(u64, Unix)>,
}

impl JudgedTarget {
    /// True if the target fails for one key or group alone and has answered since: this is no trouble of the gateway.
    fn answers_others(&self) -> bool {
        self.one_caller && self.standing.answers
    }
}

/// Attempts without an answer so far, in the order of targets and beginnings.
pub(crate) fn by_target(mut unanswered: Vec<(u64, Mono)>) -> Vec<(u64, Mono)> {
    unanswered.sort_unstable();
    unanswered
}

/// Judges a target. `unanswered`: see [`by_target`].
#[inline(never)]
pub(crate) fn judge(target: &Target, unanswered: &[(u64, Mono)], cx: &mut Cx) -> JudgedTarget {
    let (now, live) = (cx.now, cx.access.keys.live(cx.now.unix));
    let standing = cx.upstreams.breakers.standing(target, now.mono, now.unix);
    let times = cx.report.recorder.first_bytes(Some(target.seed), now.unix);
    let from = unanswered.partition_point(|(number, _)| *number < target.seed);
    let own = unanswered[from..].iter().take_while(|(number, _)| *number == target.seed);
    let oldest = own.clone().next().map(|(_, begun)| now.mono.micros_since(*begun));
    let oldest_at = oldest.map(|micros| Unix(now.unix.0.saturating_sub(micros / 1000)));
    let most = times.map_or(HUNG, |times| HUNG.max(3 * u64::from(times.p95)));
    let is_quiet = now.unix.0.saturating_sub(standing.quiet_since.0) > HUNG / 1000;
    let hangs = is_quiet && oldest.is_some_and(|micros| micros > most);
    let (began, slow) = (standing.trouble.map(|trouble| trouble.since), times.and_then(|times| times.slow_since));
    let callers = standing.trouble.map_or(Callers::default(), |trouble| trouble.callers);
    let is_one = match live {
        LiveKeys::One => false,
        LiveKeys::OneOwner => !callers.several_keys,
        LiveKeys::SeveralOwners => !callers.several_owners,
    };
    use TargetCondition::{CoolingDown, Failing, Hung, PartlyFailing, StillTried};
    let one_caller = is_one && callers.first.is_some() && matches!(standing.condition, Failing | Hung | PartlyFailing);
    let (word, since) = match standing.condition {
        CoolingDown => {
            let since = standing.cool_down.map(|rest| cool_down_since(&standing, now.wall(rest.begun)));
            (if is_still_tried(target, cx) { StillTried } else { CoolingDown }.as_str(), since)
        }
        state @ (Failing | Hung) => (state.as_str(), began),
        _ if hangs => (Hung.as_str(), oldest_at),
        state @ PartlyFailing => (state.as_str(), began),
        _ if slow.is_some() => ("slow", slow),
        _ if oldest.is_some() && standing.recent[..2] == [0; 2] => ("waiting", None),
        state => (state.as_str(), None),
    };
    let unanswered = oldest_at.map(|at| (own.count() as u64, at));
    JudgedTarget { word, since, standing, times, one_caller: one_caller && !hangs, unanswered }
}

/// True if some model's requests still go to the target although it cools down, since the model has no better one.
fn is_still_tried(target: &Target, cx: &mut Cx) -> bool {
    let (setup, now, breakers) = (cx.setup.clone(), cx.now.mono, &mut cx.upstreams.breakers);
    // Pauses between trials do not matter here.
    let stated = std::mem::take(&mut breakers.stated_until);
    let among = Among::Turns;
    let least = Choice { tried: 0, full: 0, late: 0, needs: LEAST, owner: 0, among, uploader: None, now };
    let is_tried = setup.config.catalog.models().iter().any(|model| {
        let (targets, at) = (&model.targets, model.targets.iter().position(|one| one.seed == target.seed));
        at.is_some()
            && at
                == match model.queue {
                    // A request waits for a cool-down that ends soon.
                    Some(queue) => match breakers.seek(targets, &least, Stage::New, now.after(queue.wait)) {
                        Seek::Found(found) => Some(found),
                        Seek::Wait | Seek::None => None,
                    },
                    None if targets.len() == 1 => at,
                    None => breakers.choose(targets, &least),
                }
    });
    breakers.stated_until = stated;
    is_tried
}

/// Beginning of a cool-down that began at this time, or of the failures that led to it.
fn cool_down_since(standing: &TargetStatus, begun: Unix) -> Unix {
    // Both clocks are rounded.
    let leads = |trouble: &TargetTrouble| trouble.last.0 + 1000 >= begun.0;
    standing.trouble.filter(leads).map_or(begun, |trouble| trouble.since.min(begun))
}

/// The words of a cause.
fn words(cause: &Cause) -> String {
    let mut text = Vec::new();
    cause.write(&mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// The time since which no attempt has failed, if one has been answered then.
fn none_since(standing: &TargetStatus) -> String {
    standing.none_since.map_or(String::new(), |last| format!(", none since {}", &window::iso(last)[11..]))
}

/// Microseconds in the unit that suits them.
fn millis(micros: u32) -> String {
    match micros {
        0..1_000 => "<1 ms".to_string(),
        1_000..10_000_000 => format!("{} ms", (micros + 500) / 1_000),
        _ => format!("{}.{} s", micros / 1_000_000, micros / 100_000 % 10),
    }
}

/// The problem of a target in this state; `None` if it has none. `callers`: names of keys whose requests failed there.
pub(crate) fn of_target(target: &Target, state: &JudgedTarget, callers: &[String], cx: &Cx) -> Option<Problem> {
    let standing = &state.standing;
    let [answered, failed, unanswered] = standing.recent;
    let (bad, all) = (failed + unanswered, answered + failed + unanswered);
    let is_used = all > 0 || state.unanswered.is_some();
    let (rest, most) = (standing.cool_down, standing.failure.map(|(_, cause)| cause));
    let known = rest.and_then(|rest| rest.cause).or(most);
    let mut cause = match (rest, &known) {
        (Some(CoolDownStatus { cause: None, why, .. }), _) => why.to_string(),
        (_, Some(known)) => words(known),
        (_, None) => "no answer".to_string(),
    };
    let until = rest.map(|rest| Unix(cx.now.unix.0 + rest.until.micros_since(cx.now.mono).div_ceil(1000)));
    let mut advice = known.map_or(Advice::HANGS, |cause| cause.advice());
    let counts = match state.word {
        "slow" => {
            let times = state.times?;
            advice = Advice::SLOW;
            cause = format!("median {}, usually {}", millis(times.median), millis(times.usual.unwrap_or_default()));
            true
        }
        "cooling_down" => true,
        "still_tried" => is_used,
        "failing" | "hung" | "partly_failing" => is_used && !state.answers_others(),
        _ => return None,
    };
    let _ = match (state.word, state.unanswered) {
        ("slow", _) => Ok(()),
        ("hung", Some((attempts, _))) => write!(cause, ", {attempts} in flight without an answer"),
        _ if all == 0 => match standing.failure {
            Some(_) => write!(cause, ", not tried for 5 min"),
            None => Ok(()),
        },
        _ => write!(cause, ", {bad} of {all} attempts failed in 5 min{}", none_since(standing)),
    };
    // The count is that of all causes.
    let is_other = |most: &Cause| rest.is_some_and(|rest| rest.cause.is_none_or(|one| one.number() != most.number()));
    if let Some(most) = most.filter(|most| bad > 0 && is_other(most)) {
        let _ = write!(cause, ", mostly {}", words(&most));
    }
    if let Some(until) = until.filter(|_| state.word == "still_tried" && rest.is_some_and(|rest| rest.is_stated)) {
        let until = window::iso(Unix(until.0.next_multiple_of(1000)));
        let _ = write!(cause, ", the provider asks to wait until {}: one request a second is tried", &until[11..]);
    }
    if state.one_caller {
        let who = owner_of(callers);
        // A caller that others are compared with may be the cause.
        if answered > 0 {
            advice = Advice::ONE_CALLER;
        }
        let _ = match (answered, all) {
            (0, 1..) => write!(cause, ", only {who} has used this target"),
            _ => write!(cause, ", all failures are of {who}"),
        };
    }
    Some(Problem {
        what: "target",
        name: target.label.to_string(),
        state: state.word,
        cause,
        since: state.since,
        until,
        failed: standing.lost + unanswered,
        waited: standing.waited,
        models: models_of(target, cx),
        advice,
        health: if counts { Health::Degraded } else { Health::Healthy },
    })
}

/// The only caller of a target, in words.
fn owner_of(keys: &[String]) -> String {
    let names: Vec<String> = keys.iter().map(|name| quoted(name)).collect();
    match &names[..] {
        [] => "one key or group".to_string(),
        [one] => format!("key {one}"),
        some => format!("one group (keys {})", some.join(", ")),
    }
}

fn models_of(target: &Target, cx: &Cx) -> Vec<Arc<str>> {
    let models = cx.setup.config.catalog.models().iter();
    let users = models.filter(|model| model.targets.iter().any(|one| one.seed == target.seed));
    users.map(|model| model.id.clone()).take(MODELS_MAX).collect()
}

/// State of the gateway, and its problems: those with the most failed requests of clients first.
pub(crate) fn health(unready: Option<&str>, unanswered: Vec<(u64, Mono)>, cx: &mut Cx) -> (Health, Vec<Problem>) {
    let (mut problems, mut of_targets) = (Vec::new(), Vec::new());
    let (setup, unanswered) = (cx.setup.clone(), by_target(unanswered));
    let (mut seen, mut down, mut of_one) = (BTreeSet::new(), BTreeMap::new(), 0);
    for target in setup.config.catalog.models().iter().flat_map(|model| &model.targets) {
        if !seen.insert(target.seed) {
            continue;
        }
        let state = judge(target, &unanswered, cx);
        let is_of_trouble = matches!(state.word, "failing" | "hung" | "cooling_down" | "still_tried");
        if state.answers_others() {
            of_one += state.standing.lost;
        } else if let Some(trouble) = state.standing.trouble.filter(|_| is_of_trouble && state.standing.is_down) {
            down.insert(target.seed, trouble.down_since);
        }
        let since = state.standing.trouble.map_or(Unix(0), |trouble| trouble.since);
        let callers = if state.one_caller { cx.report.recorder.callers_at(&target.label, since) } else { Vec::new() };
        of_targets.extend(of_target(target, &state, &callers, cx));
    }
    own_problems(unready, of_one, cx, &mut problems);
    problems.append(&mut of_targets);
    let mut in_use = 0;
    let mut dead = Vec::new();
    for model in setup.config.catalog.models().iter().filter(|model| !model.targets.is_empty()) {
        let sums = model.targets.iter().map(|target| cx.upstreams.breakers.standing(target, cx.now.mono, cx.now.unix));
        let lost =
            sums.filter(|one| one.recent != [0; 3]).map(|one| one.lost + one.recent[2]).reduce(|sum, lost| sum + lost);
        in_use += u64::from(lost.is_some());
        // The model is down from the time at which its last target failed.
        let since = model.targets.iter().map(|target| down.get(&target.seed).copied());
        let since = since.reduce(|latest, since| Some(latest?.max(since?))).flatten();
        if let Some(lost) = lost.filter(|_| since.is_some()) {
            let cause = "none of its targets answers".to_string();
            let own = Problem::own("model", "down", cause, since, Advice::MODEL_DOWN);
            dead.push(Problem { name: model.id.to_string(), failed: lost, ..own });
        }
    }
    let is_all = !dead.is_empty() && dead.len() as u64 == in_use;
    dead.iter_mut().for_each(|one| one.health = if is_all { Health::Down } else { Health::Degraded });
    problems.extend(dead);
    let health = problems.iter().map(|one| one.health).max().unwrap_or(Health::Healthy);
    problems.sort_by(|a, b| {
        (b.health == Health::Down, b.failed, b.health).cmp(&(a.health == Health::Down, a.failed, a.health))
    });
    problems.truncate(PROBLEMS_MAX);
    (health, problems)
}

/// Problems that are not those of a target. `of_one`: failed requests of single callers at targets that answer others.
fn own_problems(unready: Option<&str>, of_one: u64, cx: &mut Cx, problems: &mut Vec<Problem>) {
    let (now, lag) = (cx.now, cx.accounts.ledger.lag(cx.now.mono));
    if let Some((why, since)) = cx.accounts.ledger.failure() {
        let cause = format!("requests are refused, since the ledger cannot be written: {why}");
        problems.push(Problem::own("ledger", "failing", cause, Some(*since), Advice::LEDGER));
    } else if lag > LATE {
        let (cause, since) =
            (format!("usage records wait for {} ms", lag / 1000), now.unix.0.saturating_sub(lag / 1000));
        let late = Problem::own("ledger", "late", cause, Some(Unix(since)), Advice::LEDGER);
        let health = if unready == Some("ledger") { Health::Down } else { Health::Degraded };
        problems.push(Problem { health, ..late });
    }
    if unready == Some("clock") {
        let cause = "requests are refused, since the clock is behind the newest usage record or the build date";
        let since = now.wall(cx.accounts.clock.behind_since);
        problems.push(Problem::own("clock", "behind", cause.to_string(), Some(since), Advice::CLOCK));
    }
    if unready == Some("stopping") {
        let cause = "requests are refused, since the gateway is stopping".to_string();
        problems.push(Problem::own("gateway", "stopping", cause, None, Advice::NONE));
    }
    let Some(minutes) = &cx.report.recorder.minutes else { return };
    let recent = minutes.of_hour(&cx.report.stats, now.unix).filter(|sum| sum.minute + 5 > now.unix.0 / 60_000);
    let [requests, failed] = recent.fold([0; 2], |sums, sum| [sums[0] + sum.requests, sums[1] + sum.failed]);
    let [requests, failed] = [requests, failed].map(|count| count.saturating_sub(of_one));
    let since = cx.report.recorder.failing_since(now.unix);
    if requests >= REQUESTS_MIN && failed * 100 >= requests * FAILED_PERCENT && since.is_some() {
        let cause = format!("{failed} of {requests} requests failed (5xx) in 5 min");
        let own = Problem::own("gateway", "failing", cause, since, Advice::REASONS);
        problems.push(Problem { failed, health: Health::Degraded, ..own });
    }
}

impl From<Problem> for AlertProblem {
    fn from(problem: Problem) -> AlertProblem {
        let models = problem.models.iter().map(ToString::to_string).collect();
        let text = problem.text();
        let Problem { cause, failed, advice, .. } = problem;
        AlertProblem { text, cause, failed, models, advice, ended: None }
    }
}

/// Content of an alert about a failing target.
pub(crate) fn target_alert(target: &Target, cx: &mut Cx) -> Option<AlertProblem> {
    let mut state = judge(target, &[], cx);
    if matches!(state.word, "ok" | "no_traffic" | "waiting" | "slow") {
        state.word = TargetCondition::Failing.as_str();
    }
    let since = state.standing.trouble.map_or(Unix(0), |trouble| trouble.since);
    let callers = if state.one_caller { cx.report.recorder.callers_at(&target.label, since) } else { Vec::new() };
    of_target(target, &state, &callers, cx).map(AlertProblem::from)
}

/// Content of an alert about the ledger.
pub(crate) fn ledger_alert(cx: &mut Cx) -> Option<AlertProblem> {
    let mut problems = Vec::new();
    own_problems(None, 0, cx, &mut problems);
    problems.into_iter().find(|one| one.what == "ledger").map(AlertProblem::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_one_sentence_with_its_effect_on_clients() {
        let own = Problem::own("target", "still_tried", "status 429".to_string(), None, Advice::NONE);
        let models = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
        assert_eq!(own.text(), "only target, still tried: status 429; no request of a client failed in 5 min");
        let hurts = Problem { failed: 87, models: models(&["limited"]), ..own };
        let effect = "87 requests of clients failed in 5 min (model `limited`)";
        assert_eq!(hurts.text(), format!("only target, still tried: status 429; {effect}"));
        let waited = Problem { failed: 0, waited: 5049, models: models(&["a` (model b"]), ..hurts };
        let effect = "no request of a client failed in 5 min, but requests waited up to 5.0 s (model `a' (model b`)";
        assert_eq!(waited.text(), format!("only target, still tried: status 429; {effect}"));
        let two = Problem { state: "partly_failing", failed: 1, models: models(&["a", "b"]), ..waited };
        assert!(two.text().ends_with("1 request of a client failed in 5 min (models `a`, `b`)"), "{}", two.text());
        let clock = Problem::own("clock", "behind", "why".to_string(), None, Advice::CLOCK);
        assert_eq!(clock.text(), "behind: why");
        assert_eq!([999, 1_500, 9_999_499, 12_340_000].map(millis), ["<1 ms", "2 ms", "9999 ms", "12.3 s"]);
    }
}
