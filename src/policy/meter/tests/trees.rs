//! Tests budgets and trees of groups against the rows of their requests.

use super::super::*;
use super::named;
use crate::base::rng::Rng;
use crate::policy::plan::{Group, LEVELS_MAX, Shorthand, Unpriced};
use crate::policy::window::{DAY_MS, Period, parse_moment};
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

/// Record of a request: its key, path, admission and use.
type Left = (KeyIx, Arc<str>, Unix, Amount);

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
    groups(&named, |name, plan| {
        let [budget, period, window, places] = limits[name[1..].parse::<usize>().unwrap()];
        plan.budget = [0, 500, 5_000, 1 << 40][budget as usize];
        plan.period = Period::ALL[period as usize % 3];
        plan.window = Duration::from_secs([60, 60, 3600, 90_000][window as usize]);
        plan.concurrency = [0, 0, 3, 9][places as usize];
    })
}

/// Returns the meter after a crash and a restart: it counts all requests with rows, and running requests are gone.
fn restart(groups: &[Group], plan: &Plan, rows: &[Left], now: Unix) -> Meter {
    let mut meter = Meter::new();
    assert!(meter.configure(groups, now));
    for (key, path, admitted, used) in rows {
        let (path, day) = (meter.path(path), Unix(admitted.0 / DAY_MS * DAY_MS));
        for (is_day, at) in [(true, day), (false, *admitted)] {
            let past = Restored { is_day, at, requests: 1, used: *used, model: "small" };
            meter.restore_groups(path, now, &past);
            meter.restore(*key, plan, now, &past);
        }
    }
    meter
}

#[test]
fn every_group_is_the_sum_of_its_rows_after_moves_removals_and_crashes() {
    let (mut admitted, mut refused, mut deaths) = (0, 0, 0);
    for seed in 0..200 {
        let mut rng = Rng::from_u64(seed);
        let (mut now, mut config) = (at("2026-11-29T20:00:00Z"), forest(&mut rng));
        let plan = Plan { budget: 50_000, ..Plan::unlimited("p") }.settled("");
        let mut meter = restart(&config, &plan, &[], now);
        let (mut rows, mut open): (Vec<Left>, Vec<(KeyIx, Unix, Hold)>) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            match rng.below(12) {
                0 => now = Unix(now.0 + rng.below(DAY_MS / 2)),
                1 => {
                    config = forest(&mut rng);
                    assert!(meter.configure(&config, now));
                }
                2 if rng.below(4) == 0 => {
                    deaths += 1;
                    open.clear();
                    meter = restart(&config, &plan, &rows, now);
                }
                3..=5 if !open.is_empty() => {
                    let (key, admitted, hold) = open.swap_remove(rng.below(open.len() as u64) as usize);
                    let used = Amount { tokens: rng.below(50), nano: rng.below(400) };
                    rows.push((key, meter.path_text(&hold), admitted, used));
                    meter.settle(hold, used);
                }
                _ => {
                    let path = config.get(rng.below(config.len() as u64 + 1) as usize);
                    let path = path.map_or(PathIx::NONE, |group| meter.path_of(&group.limits.name).unwrap());
                    let key = KeyIx(rng.below(4) as u32);
                    let estimate = Amount { tokens: rng.below(50), nano: rng.below(300) };
                    match meter.admit(Payer { key, plan: &plan, path, hosts: 1, model: None }, now, estimate) {
                        Ok(hold) => open.push((key, now, hold)),
                        Err(_) => refused += 1,
                    }
                    admitted += 1;
                }
            }
            for (name, _, used) in meter.budgets(now) {
                let group = config.iter().find(|group| group.limits.name == name).unwrap();
                let (start, end) = group.limits.period.bounds(now);
                let is_in = |path: &str| path.split('/').any(|part| *part == *name);
                let own = rows.iter().filter(|(_, path, at, _)| is_in(path) && start <= *at && *at < end);
                let sum: u64 = own.map(|(.., used)| used.nano).sum();
                assert_eq!(used, sum, "seed {seed}, group {name}");
            }
        }
        // In the end there are no reservations and no running requests.
        open.into_iter().for_each(|(.., hold)| meter.settle(hold, Amount::default()));
        for group in &mut config {
            let limits = Plan { budget: 1 << 60, concurrency: 1, tokens: 0, ..group.limits.clone() };
            group.limits = limits.clone().settled(&limits.name);
        }
        meter.configure(&config, now);
        for group in &config {
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
    assert!(admitted > 20_000 && refused > 3_000 && deaths > 500, "{admitted} {refused} {deaths}");
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
