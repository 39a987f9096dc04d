//! Tests budgets and trees of groups against the rows of their requests.

use super::super::*;
use super::named;
use crate::base::rng::Rng;
use crate::policy::plan::caps::{Caps, Models, Per, Resource};
use crate::policy::plan::{Group, LEVELS_MAX, Shorthand, Unpriced};
use crate::policy::window::{DAY_MS, Period, iso, parse_moment};
use std::time::Duration;

fn at(text: &str) -> Unix {
    parse_moment(text).unwrap()
}

/// Groups by name and parent, with limits set by `change`.
fn groups(named: &[(&str, &str)], change: impl Fn(&str, &mut Plan)) -> Vec<Group> {
    let path = |name: &str| {
        let (mut path, mut at) = (name.to_string(), name);
        while let Some((_, parent)) = named.iter().find(|(name, parent)| *name == at && !parent.is_empty()) {
            (path, at) = (format!("{parent}/{path}"), parent);
        }
        path
    };
    let group = |(name, parent): &(&str, &str)| {
        let mut limits = Plan::unlimited(name);
        change(name, &mut limits);
        Group {
            parent: (!parent.is_empty()).then(|| (*parent).into()),
            path: path(name).into(),
            limits: limits.settled(name),
        }
    };
    named.iter().map(group).collect()
}

const NOW: &str = "2026-11-20T09:00:10Z";
const KEY: KeyIx = KeyIx(0);

fn money(nano: u64) -> Amount {
    Amount { tokens: 1, nano }
}

/// Returns a meter with these groups, and a payer in `leaf`.
fn tree<'a>(
    named: &[(&str, &str)],
    change: impl Fn(&str, &mut Plan),
    leaf: &str,
    plan: &'a Plan,
) -> (Meter, Payer<'a>) {
    let mut meter = Meter::new();
    assert!(meter.configure(&groups(named, change), at(NOW)));
    let path = meter.path_of(leaf).unwrap();
    (meter, Payer { key: KEY, plan, path, hosts: 1, model: None })
}

const CHAIN: [(&str, &str); 4] = [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")];

#[test]
fn a_request_counts_in_its_key_and_all_groups_or_in_none() {
    for full in ["a", "b", "c", "d"] {
        let plan = Plan::unlimited("p");
        let limit = |name: &str, limits: &mut Plan| limits.requests = if name == full { 1 } else { 9 };
        let (mut meter, payer) = tree(&CHAIN, limit, "d", &plan);
        let hold = meter.admit(payer, at(NOW), money(5)).unwrap();
        for _ in 0..3 {
            let refused = meter.admit(payer, at(NOW), money(5)).unwrap_err();
            assert_eq!((named(&refused), refused.whose), (Shorthand::Requests, Whose::Group(full.into())));
        }
        meter.settle(hold, money(7));
        let standing = meter.standing(payer, at(NOW));
        assert_eq!((standing.limit, standing.remaining_requests), (1, 0));
        // Refused requests have changed no counter.
        meter.configure(&groups(&CHAIN, |_, limits| limits.requests = 2), at(NOW));
        assert_eq!(meter.standing(payer, at(NOW)).remaining_requests, 1);
        let hold = meter.admit(payer, at(NOW), money(0)).unwrap();
        meter.settle(hold, Amount::default());
    }
}

#[test]
fn a_refusal_by_a_budget_names_its_owner() {
    let plan = Plan { budget: 100, ..Plan::unlimited("team") }.settled("");
    let (mut meter, payer) = tree(&[("labs", "")], |_, limits| limits.budget = 150, "labs", &plan);
    let first = meter.admit(payer, at(NOW), money(99)).unwrap();
    let second = meter.admit(payer, at(NOW), money(60)).unwrap();
    let refused = meter.admit(payer, at(NOW), money(0)).unwrap_err();
    assert_eq!(refused.message(), "the budget of plan `team` for a month is reserved by running requests");
    assert_eq!((named(&refused), refused.retry_after), (Shorthand::Budget, 1));
    let own = plan.with(
        &[crate::policy::plan::caps::Cap { total: 100, ..Shorthand::Budget.cap() }].into_iter().collect(),
        Unix(0),
    );
    let refused = meter.admit(Payer { plan: &own, ..payer }, at(NOW), money(0)).unwrap_err();
    assert_eq!(refused.message(), "the budget of this key for a month is reserved by running requests");
    let other = Payer { key: KeyIx(1), ..payer };
    let refused = meter.admit(other, at(NOW), money(0)).unwrap_err();
    assert_eq!(refused.message(), "the budget of group `labs` for a month is reserved by running requests");
    meter.settle(first, money(10));
    meter.settle(second, Amount::default());
    let status = meter.standing(payer, at(NOW)).budget.unwrap();
    assert_eq!(
        (status.used, status.total, status.remaining()),
        (10, 100, 90),
        "the budget with the least left is shown"
    );
    assert_eq!(meter.standing(other, at(NOW)).budget, Some(BudgetStatus { used: 0, total: 100 }));
    let third = meter.admit(payer, at(NOW), money(0)).unwrap();
    meter.settle(third, money(140));
    let refused = meter.admit(Payer { plan: &own, ..payer }, at(NOW), money(0)).unwrap_err();
    assert_eq!(refused.message(), "the budget of this key for a month is spent until 2026-12-01T00:00:00Z");
    let refused = meter.admit(payer, at(NOW), money(0)).unwrap_err();
    assert_eq!(refused.message(), "the budget of plan `team` for a month is spent until 2026-12-01T00:00:00Z");
    assert_eq!((named(&refused), refused.retry_after), (Shorthand::Budget, 10 * 86_400 + 14 * 3600 + 59 * 60 + 50));
    let refused = meter.admit(other, at(NOW), money(0)).unwrap_err();
    assert_eq!(refused.message(), "the budget of group `labs` for a month is spent until 2026-12-01T00:00:00Z");
}

#[test]
fn a_refusal_names_the_limit_that_lasts_longest() {
    let plan = Plan { requests: 1, ..Plan::unlimited("p") }.settled("");
    let limit = |name: &str, limits: &mut Plan| match name {
        "a" => (limits.budget, limits.period) = (5, Period::Day),
        "b" => limits.budget = 5,
        _ => limits.concurrency = 1,
    };
    let (mut meter, payer) = tree(&CHAIN, limit, "c", &plan);
    let hold = meter.admit(payer, at(NOW), money(1)).unwrap();
    assert_eq!(
        meter.spent(payer, at(NOW)).unwrap_err().whose,
        Whose::Plan("p".into()),
        "a window lasts longer than a running request"
    );
    meter.settle(hold, money(5));
    assert_eq!(
        meter.spent(payer, at(NOW)).unwrap_err().whose,
        Whose::Group("b".into()),
        "a month lasts longer than a day"
    );
    let tomorrow = at("2026-11-21T09:00:10Z");
    assert_eq!(meter.spent(payer, tomorrow).unwrap_err().whose, Whose::Group("b".into()));
}

#[test]
fn a_group_has_its_own_window_and_period() {
    let plan = Plan { tokens_per_window: 1_000, ..Plan::unlimited("p") }.settled("");
    let limit = |_: &str, limits: &mut Plan| {
        (limits.period, limits.window) = (Period::Day, Duration::from_secs(3600));
        (limits.tokens_per_window, limits.budget) = (10, 10);
    };
    let (mut meter, payer) = tree(&[("labs", "")], limit, "labs", &plan);
    let used = Amount { tokens: 10, nano: 4 };
    let late = meter.admit(payer, at("2026-11-20T09:59:59Z"), used).unwrap();
    let after = at("2026-11-20T10:00:00Z");
    meter.settle(late, used);
    assert!(meter.spent(payer, at("2026-11-20T09:59:59Z")).is_err());
    let standing = meter.standing(payer, after);
    assert_eq!(
        (standing.remaining_tokens, standing.budget.unwrap().used),
        (10, 4),
        "the hour is a new one, the day is not"
    );
    assert_eq!(meter.standing(payer, at("2026-11-21")).budget.unwrap().used, 0);
    // The group still counts its running requests after the length of its window changes.
    let running = meter.admit(payer, after, used).unwrap();
    let shorter = groups(&[("labs", "")], |_, limits| (limits.tokens_per_window, limits.budget) = (10, 10));
    meter.configure(&shorter, after);
    assert_eq!(meter.admit(payer, after, used).unwrap_err().cap.total, 10);
    meter.settle(running, used);
    assert!(meter.spent(payer, after).is_err());
    assert!(meter.spent(payer, at("2026-11-20T10:01:00Z")).is_ok());
}

#[test]
fn requests_of_a_moved_or_removed_group_settle_where_they_were_admitted() {
    let plan = Plan::unlimited("p");
    let limit = |_: &str, limits: &mut Plan| limits.budget = 100;
    let (mut meter, payer) = tree(&[("a", ""), ("b", ""), ("x", "a")], limit, "x", &plan);
    let hold = meter.admit(payer, at(NOW), money(90)).unwrap();
    meter.configure(&groups(&[("a", ""), ("b", ""), ("x", "b")], limit), at(NOW));
    let moved = Payer { path: meter.path_of("x").unwrap(), ..payer };
    assert_ne!(moved.path, payer.path);
    assert_eq!(&*meter.path_text(&hold), "a/x");
    meter.settle(hold, money(70));
    let used = |meter: &mut Meter, name: &str| {
        let all = meter.budgets(at(NOW));
        all.into_iter().find(|(group, ..)| **group == *name).map(|(.., used)| used)
    };
    assert_eq!(["a", "b", "x"].map(|name| used(&mut meter, name)), [Some(70), Some(0), Some(70)]);
    let hold = meter.admit(moved, at(NOW), money(1)).unwrap();
    // A group that is removed from the configuration continues to count. Its counts apply when it is configured again.
    meter.configure(&groups(&[("a", "")], limit), at(NOW));
    assert_eq!((meter.path_of("x"), used(&mut meter, "b")), (None, None));
    meter.settle(hold, money(20));
    meter.configure(&groups(&[("b", ""), ("x", "b")], limit), at(NOW));
    assert_eq!(["a", "b", "x"].map(|name| used(&mut meter, name)), [None, Some(20), Some(90)]);
}

#[test]
fn each_budget_threshold_is_reported_once_per_period_and_again_for_a_smaller_budget() {
    let plan = Plan { budget: 1_000, ..Plan::unlimited("p") }.settled("");
    let (mut meter, payer) = tree(&[("labs", "")], |_, limits| limits.budget = 100, "labs", &plan);
    let spend = |meter: &mut Meter, now: &str, nano: u64| {
        let hold = meter.admit(payer, at(now), money(nano)).unwrap();
        meter.settle(hold, money(nano));
        let taken = meter.take_news().into_iter();
        taken.map(|news| (news.of, news.percent)).collect::<Vec<_>>()
    };
    let labs = |percent| (BudgetOf::Group("labs".into()), percent);
    assert_eq!(spend(&mut meter, NOW, 79), []);
    assert_eq!(spend(&mut meter, NOW, 1), [labs(80)]);
    assert_eq!(spend(&mut meter, NOW, 19), []);
    assert_eq!(spend(&mut meter, NOW, 801), [(BudgetOf::Key(KEY), 80), labs(100)]);
    assert_eq!(spend(&mut meter, "2026-12-01", 100), [labs(80), labs(100)]);
    meter.configure(&groups(&[("labs", "")], |_, limits| limits.budget = 1_000), at("2026-12-01"));
    assert_eq!(meter.take_news(), []);
    meter.configure(&groups(&[("labs", "")], |_, limits| limits.budget = 120), at("2026-12-01"));
    let news = meter.take_news();
    assert_eq!((news.len(), news[0].percent, news[0].used, news[0].cap.total), (1, 80, 100, 120));
    let mut now_with = |budget: u64| {
        let plan = Plan { budget, ..Plan::unlimited("p") }.settled("");
        meter.rebudget(Payer { plan: &plan, ..payer }, at("2026-12-01"));
        let taken = meter.take_news().into_iter();
        taken.map(|news| (news.of, news.percent, news.cap.total)).collect::<Vec<_>>()
    };
    let key = |percent, total| (BudgetOf::Key(KEY), percent, total);
    assert_eq!(now_with(1_000), [], "an unchanged budget causes no report");
    assert_eq!(now_with(125), [key(80, 125)]);
    assert_eq!(now_with(100), [key(100, 100)]);
    assert_eq!(now_with(90), [], "100 % has been reported in this period");
    assert_eq!(now_with(0), []);
    assert_eq!(now_with(101), [key(80, 101)], "a budget set again is reported again");
    // A new process, or one with other thresholds, reports all that were passed in this period.
    meter.set_thresholds(&[50]);
    let plan = Plan { budget: 101, ..Plan::unlimited("p") }.settled("");
    meter.report_passed(Payer { plan: &plan, ..payer }, at("2026-12-01"));
    meter.report_passed_groups(at("2026-12-01"));
    let taken = meter.take_news().into_iter();
    let news: Vec<_> = taken.map(|news| (news.of == BudgetOf::Key(KEY), news.percent, news.fresh)).collect();
    assert_eq!(news, [(true, 50, false), (true, 80, false), (false, 50, false), (false, 80, false)]);
}

#[test]
fn thresholds_passed_by_other_hosts_are_reported_and_are_fresh_if_passed_since() {
    let plan = Plan { budget: 100, ..Plan::unlimited("p") }.settled("");
    let (mut meter, payer) = tree(&[("labs", "")], |_, limits| limits.budget = 100, "labs", &plan);
    let lease = meter.lease_for(payer, at(NOW), money(0));
    let mut hear = |nano: u64| {
        let counts = |part: &LeasePart| SharedCounts { bounds: part.bounds, requests: 0, used: money(nano) };
        let news: Vec<SharedCounts> = lease.parts.iter().map(counts).collect();
        meter.learn(KEY, &plan, &lease, at(NOW), &news);
        meter.take_news().into_iter().map(|news| (news.of, news.percent, news.fresh)).collect::<Vec<_>>()
    };
    let both =
        |percent, fresh| [(BudgetOf::Key(KEY), percent, fresh), (BudgetOf::Group("labs".into()), percent, fresh)];
    assert_eq!(hear(85), both(80, false));
    assert_eq!(hear(99), []);
    assert_eq!(hear(100), both(100, true));
    assert_eq!(hear(50), [], "an older, smaller count is ignored");
}

#[test]
fn an_unpriced_model_must_be_allowed_by_every_budget_on_the_path() {
    let allow = |names: &'static str| {
        move |name: &str, limits: &mut Plan| {
            limits.budget = 5 * u64::from(name != "b");
            limits.unpriced = if names.contains(name) { Unpriced::Allow } else { Unpriced::Refuse };
        }
    };
    let plan = Plan::unlimited("p");
    for (names, refused) in [("", true), ("a", true), ("ac", true), ("acd", false)] {
        let (mut meter, payer) = tree(&CHAIN, allow(names), "d", &plan);
        assert_eq!(meter.refuses_unpriced(payer), refused, "{names}");
        let limited = Plan { budget: 1, ..plan.clone() }.settled("");
        assert!(meter.refuses_unpriced(Payer { plan: &limited, ..payer }));
    }
    assert!(!Meter::new().refuses_unpriced(Payer { key: KEY, plan: &plan, path: PathIx::NONE, hosts: 1, model: None }));
}

#[test]
fn the_number_of_stored_paths_is_limited() {
    let mut meter = Meter::new();
    meter.configure(&groups(&[("a", "")], |_, _| {}), at(NOW));
    for n in 2..crate::base::limits::PATHS_MAX {
        assert!(meter.path(&format!("old/{n}")).is_some());
    }
    assert!(!meter.path("old/one more").is_some() && meter.path("old/7").is_some());
    assert!(!meter.configure(&groups(&[("b", "")], |_, _| {}), at(NOW)), "there is no room for a new path");
    assert!(meter.path_of("a").is_some() && meter.path_of("b").is_none());
    assert!(
        meter.configure(&groups(&[("a", "")], |_, limits| limits.budget = 1), at(NOW)),
        "a known path can be configured again"
    );
}

/// Returns a random forest of groups `g0`, `g1` and so on, from a random subset of ten names, in random order.
fn forest(rng: &mut Rng) -> Vec<Group> {
    let mut named: Vec<(String, String)> = Vec::new();
    let mut depth = std::collections::BTreeMap::new();
    let mut names: Vec<u64> = (0..10).collect();
    while !names.is_empty() {
        let name = names.swap_remove(rng.below(names.len() as u64) as usize);
        if rng.below(6) == 0 {
            continue;
        }
        let above = named.get(rng.below(named.len() as u64 + 1) as usize).map(|(name, _)| name.clone());
        let above = above.filter(|above| depth[above] < LEVELS_MAX).unwrap_or_default();
        let own = format!("g{name}");
        depth.insert(own.clone(), depth.get(&above).map_or(1, |depth| depth + 1));
        named.push((own, above));
    }
    let named: Vec<(&str, &str)> = named.iter().map(|(name, above)| (name.as_str(), above.as_str())).collect();
    let limits: Vec<[u64; 4]> = (0..10).map(|_| std::array::from_fn(|_| rng.below(4))).collect();
    let more: Vec<(Caps, bool)> = (0..10).map(|_| (random_limits(rng), rng.below(3) == 0)).collect();
    groups(&named, |name, plan| {
        let number = name[1..].parse::<usize>().unwrap();
        let [budget, period, window, places] = limits[number];
        (plan.limits, plan.strict) = more[number].clone();
        plan.budget = [0, 500, 5_000, 1 << 40][budget as usize];
        plan.period = Period::ALL[period as usize % 3];
        plan.window = Duration::from_secs([60, 60, 3600, 90_000][window as usize]);
        plan.concurrency = [0, 0, 3, 9][places as usize];
    })
}

const MODELS: [&str; 3] = ["opus-5", "opus-mini", "small"];
const KEYS: u32 = 4;

/// Usage record of a request.
struct Record {
    key: KeyIx,
    path: Arc<str>,
    admitted: Unix,
    used: Amount,
    model: &'static str,
}

/// A running request.
struct Running {
    hold: Hold,
    key: KeyIx,
    admitted: Unix,
    reserved: Amount,
    model: &'static str,
    price: u64,
    is_strict: bool,
}

/// Owner of a limit: a group, or a key by its number.
type Owner = Result<Arc<str>, u32>;

/// A meter, and the usage records that it has to agree with.
struct World {
    rng: Rng,
    now: Unix,
    meter: Meter,
    groups: Vec<Group>,
    /// Plans of keys with an even and an odd number. The first is strict.
    plans: [Plan; 2],
    rows: Vec<Record>,
    open: Vec<Running>,
    /// Spans of limits that were added since the last restart, and when. Of earlier use they know only a part.
    added: std::collections::HashMap<(Owner, String), Unix>,
    /// Strict limits that are not exceeded: they were not exceeded when they were set, and all requests since were
    /// admitted by them.
    sound: std::collections::HashSet<(Owner, String)>,
    /// Moment of the last restart. A meter knows no windows before it.
    restarted: Unix,
    /// True if the clock was set back since the last restart.
    is_back: bool,
    /// True if the clock was behind usage records at the last restart.
    is_behind: bool,
}

/// Some random limits. Those of the settings have other times.
fn random_limits(rng: &mut Rng) -> Caps {
    let mut caps: Vec<Cap> = Vec::new();
    for _ in 0..rng.below(4) {
        let resource = [Resource::Requests, Resource::Tokens, Resource::Budget][rng.below(3) as usize];
        let per = ["1h", "5h", "7d", "quarter", "2h"][rng.below(5) as usize];
        let models = ["*", "opus-*", "*,!small", "*"][rng.below(4) as usize];
        let total = [3, 100, 400][resource as usize] * (1 + rng.below(8));
        let cap = Cap { models: Models::parse(models).unwrap(), ..Cap::new(resource, Per::parse(per).unwrap(), total) };
        if !caps.iter().any(|other| other.is_like(&cap)) {
            caps.push(cap);
        }
    }
    caps.into_iter().collect()
}

fn random_plans(rng: &mut Rng) -> [Plan; 2] {
    [true, false]
        .map(|strict| Plan { budget: 50_000, strict, limits: random_limits(rng), ..Plan::unlimited("p") }.settled(""))
}

/// Price of some tokens, which double above 30.
fn price_of(tokens: u64, price: u64) -> Amount {
    Amount { tokens, nano: tokens * price * if tokens > 30 { 2 } else { 1 } }
}

fn span_of(owner: &Owner, cap: &Cap) -> (Owner, String) {
    (owner.clone(), Cap { resource: Resource::Tokens, ..cap.clone() }.name())
}

impl World {
    fn new(seed: u64) -> World {
        let (mut rng, now) = (Rng::from_u64(seed), at("2026-11-29T20:00:00Z"));
        let (groups, plans) = (forest(&mut rng), random_plans(&mut rng));
        let mut meter = Meter::new();
        assert!(meter.configure(&groups, now));
        let (added, sound) = Default::default();
        let (rows, open) = (Vec::new(), Vec::new());
        let (restarted, is_back, is_behind) = (now, false, false);
        let mut world =
            World { rng, now, meter, groups, plans, rows, open, added, sound, restarted, is_back, is_behind };
        world.note_sound();
        world
    }

    fn payer<'a>(plans: &'a [Plan; 2], key: KeyIx, path: PathIx, model: Option<&'a Arc<str>>) -> Payer<'a> {
        Payer { key, plan: &plans[key.0 as usize % 2], path, hosts: 1, model }
    }

    /// Every limit of the groups and keys, and whether it is a strict one.
    fn limits(&mut self) -> Vec<(Owner, bool, LimitStatus)> {
        let mut all = Vec::new();
        self.meter.groups(self.now, &mut |group| {
            let owner = Ok(group.limits.name.clone());
            all.extend(group.all.iter().map(|one| (owner.clone(), group.limits.strict, one.clone())));
        });
        for key in 0..KEYS {
            let payer = World::payer(&self.plans, KeyIx(key), PathIx::NONE, None);
            let limits = self.meter.limits(payer, self.now).into_iter();
            all.extend(limits.map(|one| (Err(key), payer.plan.strict, one)));
        }
        let counts = |cap: &Cap| matches!(cap.resource, Resource::Tokens | Resource::Budget);
        all.into_iter().map(|(owner, strict, one)| (owner, strict && counts(&one.cap), one)).collect()
    }

    fn is_of(owner: &Owner, key: KeyIx, path: &str) -> bool {
        match owner {
            Ok(group) => path.split('/').any(|part| *part == **group),
            Err(number) => key.0 == *number,
        }
    }

    /// Notes which strict limits must hold from now on.
    fn note_sound(&mut self) {
        let (mut sound, loose) = (std::collections::HashSet::new(), |open: &&Running| !open.is_strict);
        for (owner, is_strict, one) in self.limits() {
            let of = |open: &Running| World::is_of(&owner, open.key, &self.meter.path_text(&open.hold));
            let is_tight = one.used + one.reserved > one.cap.total || self.open.iter().filter(loose).any(of);
            let id = (owner.clone(), one.cap.text());
            if is_strict && (!is_tight || self.sound.contains(&id)) {
                sound.insert(id);
            }
        }
        self.sound = sound;
    }

    /// Another configuration: groups are moved, removed, added and strict, and limits change.
    fn reload(&mut self) {
        let spans = |world: &mut World| -> Vec<_> {
            world.limits().iter().map(|(owner, _, one)| span_of(owner, &one.cap)).collect()
        };
        let before = spans(self);
        (self.groups, self.plans) = (forest(&mut self.rng), random_plans(&mut self.rng));
        assert!(self.meter.configure(&self.groups, self.now));
        for span in spans(self).into_iter().filter(|span| !before.contains(span)) {
            self.added.insert(span, self.now);
        }
        self.note_sound();
    }

    /// A crash and a restart: the meter counts all requests with rows. Of running requests only strict ones leave rows,
    /// with their whole reservations.
    fn crash(&mut self) {
        for open in std::mem::take(&mut self.open).into_iter().filter(|open| open.is_strict) {
            let path = self.meter.path_text(&open.hold);
            let Running { key, admitted, reserved, model, .. } = open;
            self.rows.push(Record { key, path, admitted, used: reserved, model });
        }
        self.meter = Meter::new();
        assert!(self.meter.configure(&self.groups, self.now));
        for row in &self.rows {
            let (path, day) = (self.meter.path(&row.path), Unix(row.admitted.0 / DAY_MS * DAY_MS));
            for (is_day, at) in [(true, day), (false, row.admitted)] {
                let past = Restored { is_day, at, requests: 1, used: row.used, model: row.model };
                self.meter.restore_groups(path, self.now, &past);
                self.meter.restore(row.key, &self.plans[row.key.0 as usize % 2], self.now, &past);
            }
        }
        // A limit that was added counts more after a restart: all of its window.
        for (owner, _, one) in self.limits() {
            if self.added.contains_key(&span_of(&owner, &one.cap)) {
                self.sound.remove(&(owner, one.cap.text()));
            }
        }
        self.added.clear();
        self.note_sound();
        (self.restarted, self.is_back) = (self.now, false);
        self.is_behind = self.rows.iter().any(|row| row.admitted > self.now);
    }

    /// Admits a request of any key in any group. Returns false if a limit refuses it.
    fn admit(&mut self) -> bool {
        let rng = &mut self.rng;
        let (key, model) = (KeyIx(rng.below(KEYS.into()) as u32), MODELS[rng.below(3) as usize]);
        let group = self.groups.get(rng.below(self.groups.len() as u64 + 1) as usize);
        let path = group.map_or(PathIx::NONE, |group| self.meter.path_of(&group.limits.name).unwrap());
        let (price, name) = (1 + rng.below(9), Arc::from(model));
        let (payer, reserved) = (World::payer(&self.plans, key, path, Some(&name)), price_of(rng.below(50), price));
        let is_strict = payer.plan.strict || self.meter.is_strict(path);
        let hold = match is_strict {
            true => self.meter.admit_whole(payer, self.now, reserved),
            false => self.meter.admit(payer, self.now, reserved),
        };
        let is_admitted = hold.is_ok();
        self.open.extend(hold.ok().map(|hold| Running {
            hold,
            key,
            admitted: self.now,
            reserved,
            model,
            price,
            is_strict,
        }));
        is_admitted
    }

    /// Ends a request. Its provider keeps to the bounds of a strict one.
    fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let open = self.open.swap_remove(self.rng.below(self.open.len() as u64) as usize);
        let most = if open.is_strict { open.reserved.tokens } else { 60 };
        let (used, path) = (price_of(self.rng.below(most + 1), open.price), self.meter.path_text(&open.hold));
        self.rows.push(Record { key: open.key, path, admitted: open.admitted, used, model: open.model });
        self.meter.settle(open.hold, used);
    }

    /// Checks every strict limit, and every counter against the usage records. Returns the number of counters that must
    /// be equal to them.
    fn check(&mut self, context: &str) -> u64 {
        let (mut exact, now) = (0, self.now);
        for (owner, _, one) in self.limits() {
            let LimitStatus { cap, used, reserved, .. } = &one;
            if self.sound.contains(&(owner.clone(), cap.text())) {
                assert!(used + reserved <= cap.total, "{context}, {owner:?}, {}: {used} and {reserved}", cap.text());
            }
            if cap.resource == Resource::Running {
                continue;
            }
            let (start, end) = cap.per.bounds(now);
            let counts = |at: Unix, model: &str| start <= at && at < end && cap.models.count(Some(model));
            let of = self.rows.iter().filter(|row| World::is_of(&owner, row.key, &row.path));
            let of = of.filter(|row| counts(row.admitted, row.model));
            let sum: u64 = match cap.resource {
                Resource::Tokens => of.map(|row| row.used.tokens).sum(),
                Resource::Budget => of.map(|row| row.used.nano).sum(),
                _ => {
                    let running = self.open.iter().filter(|open| {
                        counts(open.admitted, open.model)
                            && World::is_of(&owner, open.key, &self.meter.path_text(&open.hold))
                    });
                    (of.count() + running.count()) as u64
                }
            };
            let is_all = cap.models.text().is_none();
            let is_of_days = is_all && cap.per.has_whole_days() && cap.resource != Resource::Requests;
            let added = self.added.get(&span_of(&owner, cap));
            let is_whole = added.is_none_or(|added| *added < start);
            let context = || format!("{context}, {owner:?}, {} at {}", cap.text(), iso(now));
            if is_of_days || (is_whole && !self.is_back && !self.is_behind) {
                assert_eq!(*used, sum, "{}", context());
                exact += 1;
            } else if added.is_none() && !self.is_behind && self.restarted < start {
                assert!(*used >= sum, "{}: {used} instead of {sum}", context());
            }
        }
        exact
    }
}

#[test]
fn every_counter_is_the_sum_of_its_rows_and_no_strict_limit_is_exceeded() {
    let (mut admitted, mut refused, mut exact, mut sound, mut events) = (0, 0, 0, 0, [0u64; 5]);
    for seed in 0..60 {
        let mut world = World::new(seed);
        for step in 0..300 {
            let event = match world.rng.below(24) {
                0 | 1 => 0,
                2 if world.rng.below(4) == 0 => 1,
                3 if world.rng.below(2) == 0 => 2,
                4 if world.rng.below(3) == 0 => 3,
                5..=10 => 4,
                _ => 5,
            };
            match event {
                0 => world.now = Unix(world.now.0 + world.rng.below(DAY_MS / 2)),
                1 => {
                    world.now = Unix(world.now.0 - world.rng.below(DAY_MS / 4));
                    world.is_back = true;
                }
                2 => world.reload(),
                3 => world.crash(),
                4 => world.settle(),
                _ if world.admit() => admitted += 1,
                _ => refused += 1,
            }
            if let Some(count) = events.get_mut(event) {
                *count += 1;
            }
            exact += world.check(&format!("seed {seed}, step {step}, event {event}"));
            sound += world.sound.len();
        }
        // In the end there are no reservations and no running requests.
        let World { mut meter, mut groups, open, now, .. } = world;
        open.into_iter().for_each(|open| meter.settle(open.hold, Amount::default()));
        for group in &mut groups {
            let limits = Plan { budget: 1 << 60, concurrency: 1, tokens: 0, ..group.limits.clone() };
            let limits = Plan { limits: Caps::default(), ..limits };
            group.limits = limits.clone().settled(&limits.name);
        }
        meter.configure(&groups, now);
        for group in &groups {
            let payer = Payer {
                key: KEY,
                plan: &Plan::unlimited("p"),
                path: meter.path_of(&group.limits.name).unwrap(),
                hosts: 1,
                model: None,
            };
            let hold = meter.admit(payer, now, money(1 << 61)).unwrap();
            assert!(meter.admit(payer, now, money(0)).is_err());
            meter.settle(hold, Amount::default());
        }
        assert_eq!(meter.open_holds(), 0);
    }
    println!("{admitted} admitted, {refused} refused, {exact} counters equal, {sound} strict limits, {events:?}");
    assert!(admitted > 5_000 && refused > 2_000 && exact > 100_000 && sound > 20_000);
    assert!(events.iter().all(|count| *count > 100), "{events:?}");
}

/// Budgets against their bound: used ≤ budget − 1 + the reservation of the last request admitted + Σ max(0, actual −
/// reserved), for every budget on the path and any estimates.
#[test]
fn no_budget_is_exceeded_by_more_than_the_stated_bound() {
    let mut cases = 0;
    let mut seed = 0;
    while cases < 100_000 {
        seed += 1;
        let mut rng = Rng::from_u64(seed);
        // Estimates that are too small, about right, or too large.
        let lean = 1 + rng.below(3);
        let plan = Plan { budget: rng.below(3) * 700, ..Plan::unlimited("p") }.settled("");
        let budgets: [u64; 3] = std::array::from_fn(|_| rng.below(2) * (1 + rng.below(2_000)));
        let limit = |name: &str, limits: &mut Plan| limits.budget = budgets[usize::from(name.as_bytes()[0] - b'a')];
        let (mut meter, payer) = tree(&CHAIN[..3], limit, "c", &plan);
        // The key and all groups have the same values: used, the last reservation, and the sum by which estimates were
        // too small.
        let (mut used, mut last, mut short) = (0, 0, 0);
        let mut open: Vec<(Hold, u64)> = Vec::new();
        for _ in 0..100 {
            if rng.below(2) == 0 {
                let estimate = rng.below(300);
                let before = meter.spent(payer, at(NOW)).is_ok();
                let hold = meter.admit(payer, at(NOW), money(estimate));
                assert_eq!(hold.is_ok(), before);
                if let Ok(hold) = hold {
                    last = estimate;
                    open.push((hold, estimate));
                }
                cases += 1;
            } else if !open.is_empty() {
                let (hold, estimate) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let actual = rng.below(300) * lean / 2;
                meter.settle(hold, money(actual));
                (used, short) = (used + actual, short + actual.saturating_sub(estimate));
            }
            for budget in budgets.into_iter().chain([plan.budget]).filter(|budget| *budget > 0) {
                assert!(used < budget + last + short, "{used} of {budget}, {last}, {short}");
            }
        }
        open.into_iter().for_each(|(hold, _)| meter.settle(hold, Amount::default()));
    }
}

#[test]
fn late_and_immediate_counting_admit_the_same_requests_on_a_tree() {
    let mut bounded = 0;
    for seed in 0..30 {
        let plan = Plan { budget: 60_000, ..Plan::unlimited("p") }.settled("");
        let limit = |name: &str, limits: &mut Plan| {
            (limits.budget, limits.tokens_per_window) = if name == "a" { (90_000, 9_000) } else { (0, 0) };
        };
        let (mut at_once, payer) = tree(&CHAIN, limit, "d", &plan);
        let (mut late, _) = tree(&CHAIN, limit, "d", &plan);
        let (mut rng, mut now, mut open) = (Rng::from_u64(seed), at(NOW), Vec::new());
        for _ in 0..1_000 {
            now = Unix(now.0 + rng.below(4_000));
            let payer = Payer { key: KeyIx(rng.below(3) as u32), ..payer };
            if rng.below(5) < 3 {
                let exact = Amount { tokens: 1 + rng.below(400), nano: 1 + rng.below(2_000) };
                let most = exact.plus(Amount { tokens: rng.below(900), nano: rng.below(4_000) });
                let first = at_once.admit(payer, now, exact);
                let second = late.admit_bounded(payer, now, most).map_or_else(
                    || {
                        let again = late.admit(payer, now, exact);
                        if again.is_ok() || !late.is_bounded(payer.key, payer.path) {
                            return again;
                        }
                        open.iter().for_each(|(_, hold, exact)| late.count(hold, *exact));
                        late.admit(payer, now, exact)
                    },
                    Ok,
                );
                bounded += u64::from(late.is_bounded(payer.key, payer.path));
                match (first, second) {
                    (Ok(first), Ok(second)) => open.push((first, second, exact)),
                    (first, second) => assert_eq!(first.unwrap_err(), second.unwrap_err(), "seed {seed}"),
                }
            } else if !open.is_empty() {
                let (first, second, exact) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let used = Amount { tokens: rng.below(2 * exact.tokens), nano: rng.below(2 * exact.nano) };
                at_once.settle(first, used);
                late.settle(second, used);
            }
        }
        assert_eq!(at_once.budgets(now), late.budgets(now));
    }
    assert!(bounded > 1_000, "{bounded}");
}
