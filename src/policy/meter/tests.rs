mod entries;
mod lengths;
mod shares;
mod strict;
mod trees;
mod whole;

use super::*;
use crate::base::rng::Rng;
use crate::policy::plan::{Shorthand, UNLIMITED};
use crate::policy::window::{DAY_MS, Period, parse_moment, window};
use std::time::Duration;

const KEY: KeyIx = KeyIx(0);

fn at(text: &str) -> Unix {
    parse_moment(text).unwrap()
}

fn plan() -> Plan {
    Plan::unlimited("test")
}

/// One request, or those of one day.
fn restored(is_day: bool, at: Unix, used: Amount) -> Restored<'static> {
    Restored { is_day, at, requests: 1, used, model: "small" }
}

/// Returns a payer for [`KEY`] that is in no group.
fn by(plan: &Plan) -> Payer<'_> {
    Payer { key: KEY, plan, path: PathIx::NONE, hosts: 1, model: None }
}

fn amount(tokens: u64) -> Amount {
    Amount { tokens, nano: 0 }
}

fn named(limit: &Limit) -> Shorthand {
    Shorthand::of(&limit.cap)
}

fn kind(result: Result<Hold, Limit>) -> Option<Shorthand> {
    result.err().map(|limit| named(&limit))
}

#[test]
fn a_limit_of_n_requests_admits_exactly_n_in_a_window() {
    let plan = Plan { requests: 3, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20T09:00:10Z"));
    for _ in 0..3 {
        let hold = meter.admit(by(&plan), now, amount(5)).unwrap();
        meter.settle(hold, amount(5));
    }
    assert!(meter.spent(by(&plan), now).is_err());
    let limit = meter.admit(by(&plan), now, amount(5)).unwrap_err();
    assert_eq!((named(&limit), limit.cap.total, limit.retry_after), (Shorthand::Requests, 3, 50));
    assert_eq!(limit.reset, at("2026-11-20T09:01:00Z"));
    let hold = meter.admit(by(&plan), at("2026-11-20T09:01:00Z"), amount(5)).unwrap();
    meter.settle(hold, Amount::default());
}

#[test]
fn refused_requests_do_not_count_and_refunded_requests_do() {
    let plan = Plan { requests: 2, concurrency: 1, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let hold = meter.admit(by(&plan), now, amount(0)).unwrap();
    for _ in 0..10 {
        assert_eq!(kind(meter.admit(by(&plan), now, amount(0))), Some(Shorthand::Concurrency));
    }
    assert_eq!(meter.standing(by(&plan), now).remaining_requests, 1);
    meter.settle(hold, Amount::default());
    let hold = meter.admit(by(&plan), now, amount(0)).unwrap();
    meter.settle(hold, Amount::default());
    assert_eq!(kind(meter.admit(by(&plan), now, amount(0))), Some(Shorthand::Requests));
}

#[test]
fn a_concurrency_limit_of_n_admits_exactly_n_and_frees_slots_in_any_order() {
    let plan = Plan { concurrency: 4, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let mut holds: Vec<Hold> = (0..4).map(|_| meter.admit(by(&plan), now, amount(1)).unwrap()).collect();
    let limit = meter.admit(by(&plan), now, amount(1)).unwrap_err();
    assert_eq!((named(&limit), limit.retry_after), (Shorthand::Concurrency, 1));
    meter.settle(holds.swap_remove(1), amount(7));
    holds.push(meter.admit(by(&plan), now, amount(1)).unwrap());
    assert_eq!(kind(meter.admit(by(&plan), now, amount(1))), Some(Shorthand::Concurrency));
    holds.into_iter().for_each(|hold| meter.settle(hold, Amount::default()));
    assert_eq!(meter.open_holds(), 0);
}

#[test]
fn a_running_request_keeps_its_slot_in_later_windows() {
    let plan = Plan { concurrency: 1, ..plan() }.settled("");
    let mut meter = Meter::new();
    let hold = meter.admit(by(&plan), at("2026-11-20T09:00:59Z"), amount(0)).unwrap();
    assert_eq!(kind(meter.admit(by(&plan), at("2026-12-20T09:00:59Z"), amount(0))), Some(Shorthand::Concurrency));
    meter.settle(hold, Amount::default());
    assert!(meter.spent(by(&plan), at("2026-12-20T09:00:59Z")).is_ok());
}

#[test]
fn admission_is_refused_when_used_and_reserved_reach_the_total() {
    let plan = Plan { tokens: 100, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let first = meter.admit(by(&plan), now, amount(99)).unwrap();
    // 99 < 100, so one more request is admitted, whatever it reserves.
    let second = meter.admit(by(&plan), now, amount(1_000)).unwrap();
    assert_eq!(kind(meter.admit(by(&plan), now, amount(0))), Some(Shorthand::Tokens));
    meter.settle(first, amount(10));
    assert_eq!(kind(meter.admit(by(&plan), now, amount(0))), Some(Shorthand::Tokens));
    meter.settle(second, amount(20));
    let third = meter.admit(by(&plan), now, amount(0)).unwrap();
    meter.settle(third, amount(70));
    let limit = meter.admit(by(&plan), now, amount(0)).unwrap_err();
    assert_eq!((named(&limit), limit.reset), (Shorthand::Tokens, at("2026-12-01")));
    assert_eq!(limit.retry_after, 11 * 86_400);
    assert_eq!(meter.standing(by(&plan), now).used, 100);
}

#[test]
fn tokens_per_window_are_a_separate_limit() {
    let plan = Plan { tokens_per_window: 50, tokens: 1_000, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20T09:00:30Z"));
    let hold = meter.admit(by(&plan), now, amount(10)).unwrap();
    meter.settle(hold, amount(50));
    let limit = meter.admit(by(&plan), now, amount(10)).unwrap_err();
    assert_eq!((named(&limit), limit.retry_after), (Shorthand::TokensPerWindow, 30));
    let later = at("2026-11-20T09:01:00Z");
    let hold = meter.admit(by(&plan), later, amount(10)).unwrap();
    meter.settle(hold, amount(1));
    assert_eq!(meter.standing(by(&plan), later).used, 51);
    assert_eq!(meter.standing(by(&plan), later).remaining_tokens, 49);
}

#[test]
fn a_spent_period_is_named_before_a_spent_window() {
    let plan = Plan { requests: 1, tokens: 10, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let hold = meter.admit(by(&plan), now, amount(0)).unwrap();
    meter.settle(hold, amount(10));
    assert_eq!(kind(meter.admit(by(&plan), now, amount(0))), Some(Shorthand::Tokens));
}

#[test]
fn a_request_counts_in_the_window_and_period_of_its_admission() {
    let plan = Plan { tokens: 1_000, tokens_per_window: 100, ..plan() }.settled("");
    let mut meter = Meter::new();
    let before = at("2026-11-30T23:59:59Z");
    let hold = meter.admit(by(&plan), before, amount(100)).unwrap();
    let after = at("2026-12-01T00:00:00Z");
    // The reservation from November does not count in December.
    let other = meter.admit(by(&plan), after, amount(30)).unwrap();
    meter.settle(hold, amount(80));
    let standing = meter.standing(by(&plan), after);
    assert_eq!((standing.used, standing.remaining_tokens), (0, 100));
    meter.settle(other, amount(40));
    assert_eq!(meter.standing(by(&plan), after).used, 40);
}

#[test]
fn a_request_that_outlives_its_window_still_counts_in_its_period() {
    let plan = Plan { tokens: 1_000, tokens_per_window: 100, ..plan() }.settled("");
    let mut meter = Meter::new();
    let hold = meter.admit(by(&plan), at("2026-11-20T09:00:59Z"), amount(100)).unwrap();
    let after = at("2026-11-20T09:01:00Z");
    assert!(meter.spent(by(&plan), after).is_ok());
    meter.settle(hold, amount(80));
    let standing = meter.standing(by(&plan), after);
    assert_eq!((standing.used, standing.remaining_tokens), (80, 100));
}

#[test]
fn remaining_tokens_subtract_settled_use_but_not_reservations() {
    let plan = Plan { tokens: 1_000, requests: 10, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20T09:00:30Z"));
    let hold = meter.admit(by(&plan), now, amount(600)).unwrap();
    let standing = meter.standing(by(&plan), now);
    assert_eq!((standing.remaining_tokens, standing.remaining_requests, standing.used), (1_000, 9, 0));
    meter.settle(hold, amount(250));
    let standing = meter.standing(by(&plan), now);
    assert_eq!((standing.remaining_tokens, standing.used, standing.total), (750, 250, 1_000));
    assert_eq!((standing.limit, standing.reset_at), (10, at("2026-11-20T09:01:00Z")));
    assert_eq!((standing.period_start, standing.renews), (at("2026-11-01"), at("2026-12-01")));
}

#[test]
fn an_unlimited_plan_shows_the_largest_safe_integer_and_admits_everything() {
    assert_eq!(UNLIMITED, (1 << 53) - 1);
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    for _ in 0..1000 {
        let hold = meter.admit(by(&plan()), now, amount(u64::MAX)).unwrap();
        meter.settle(hold, amount(1_000_000));
    }
    let standing = meter.standing(by(&plan()), now);
    let shown = (standing.limit, standing.remaining_requests, standing.remaining_tokens, standing.total);
    assert_eq!(shown, (UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED));
    assert_eq!(standing.used, 1_000_000_000);
}

#[test]
fn exceeding_an_allowance_leaves_zero_and_never_wraps() {
    let plan = Plan { tokens: 10, requests: 1, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let hold = meter.admit(by(&plan), now, amount(u64::MAX)).unwrap();
    meter.settle(hold, amount(u64::MAX));
    let standing = meter.standing(by(&plan), now);
    assert_eq!((standing.remaining_tokens, standing.remaining_requests), (0, 0));
}

#[test]
fn keys_do_not_share_counters() {
    let plan = Plan { requests: 1, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    for key in [KeyIx(7), KeyIx(0), KeyIx(3)] {
        let hold = meter.admit(Payer { key, ..by(&plan) }, now, amount(0)).unwrap();
        meter.settle(hold, Amount::default());
        assert_eq!(kind(meter.admit(Payer { key, ..by(&plan) }, now, amount(0))), Some(Shorthand::Requests));
    }
}

/// Uses up to `n` requests. Returns how many were admitted.
fn drain(meter: &mut Meter, plan: &Plan, now: Unix, n: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..n {
        if let Ok(hold) = meter.admit(by(plan), now, amount(0)) {
            meter.settle(hold, amount(1));
            admitted += 1;
        }
    }
    admitted
}

#[test]
fn a_clock_set_back_grants_nothing_twice_and_blocks_for_at_most_one_window() {
    let plan = Plan { requests: 5, ..plan() }.settled("");
    let mut meter = Meter::new();
    assert_eq!(drain(&mut meter, &plan, at("2026-11-20T09:10:10Z"), 9), 5);
    // The clock goes back an hour, to a window with no stored counts. The amount spent stays spent until that window
    // ends.
    let back = at("2026-11-20T08:10:50Z");
    assert_eq!(drain(&mut meter, &plan, back, 9), 0);
    assert_eq!(meter.standing(by(&plan), back).reset_at, at("2026-11-20T08:11:00Z"));
    assert_eq!(drain(&mut meter, &plan, at("2026-11-20T08:11:00Z"), 9), 5);
    assert_eq!(drain(&mut meter, &plan, at("2026-11-20T08:12:00Z"), 9), 5);
    // The window in which everything was spent is still spent when the clock reaches it again.
    assert_eq!(drain(&mut meter, &plan, at("2026-11-20T09:10:30Z"), 9), 0);
    assert_eq!(drain(&mut meter, &plan, at("2026-11-20T09:11:00Z"), 9), 5);
}

#[test]
fn windows_keep_their_counts_when_the_clock_jumps_forward_and_back() {
    let plan = Plan { requests: 5, ..plan() }.settled("");
    let mut meter = Meter::new();
    let (now, far) = (at("2026-11-20T09:10:10Z"), at("2027-11-20T09:10:10Z"));
    assert_eq!(drain(&mut meter, &plan, now, 3), 3);
    assert_eq!(drain(&mut meter, &plan, far, 9), 5);
    assert_eq!(drain(&mut meter, &plan, now, 9), 2, "the present window keeps its count");
    for minute in 1..50 {
        assert_eq!(drain(&mut meter, &plan, Unix(now.0 + minute * 60_000), 9), 5, "minute {minute}");
    }
    assert_eq!(drain(&mut meter, &plan, far, 9), 0, "the window in the far future stays spent");
}

#[test]
fn each_period_keeps_its_use_when_the_clock_jumps() {
    let plan = Plan { tokens: 10, period: Period::Day, ..plan() }.settled("");
    let mut meter = Meter::new();
    let (today, yesterday) = (at("2026-11-20T00:00:10Z"), at("2026-11-19T23:58:00Z"));
    meter.restore(KEY, &plan, today, &restored(true, at("2026-11-19"), amount(7)));
    assert_eq!(drain(&mut meter, &plan, today, 20), 10);
    assert_eq!(drain(&mut meter, &plan, yesterday, 20), 3);
    assert_eq!(meter.standing(by(&plan), yesterday).renews, at("2026-11-20"));
    assert_eq!(drain(&mut meter, &plan, today, 20), 0);
}

#[test]
fn a_request_is_settled_in_its_window_of_admission_after_a_clock_jump() {
    let plan = Plan { tokens: 1_000, tokens_per_window: 100, ..plan() }.settled("");
    let mut meter = Meter::new();
    let now = at("2026-11-20T09:10:10Z");
    let hold = meter.admit(by(&plan), now, amount(80)).unwrap();
    let back = at("2026-11-20T07:00:00Z");
    let other = meter.admit(by(&plan), back, amount(20)).unwrap();
    assert_eq!(
        kind(meter.admit(by(&plan), back, amount(0))),
        Some(Shorthand::TokensPerWindow),
        "80 and 20 of the 100 tokens are reserved"
    );
    meter.settle(hold, amount(50));
    meter.settle(other, amount(10));
    assert_eq!(meter.standing(by(&plan), back).remaining_tokens, 40);
    assert_eq!(meter.standing(by(&plan), now).remaining_tokens, 50);
    assert_eq!(meter.standing(by(&plan), now).used, 60);
}

/// The plan with windows of this length.
fn windows_of(plan: Plan, seconds: u64) -> Plan {
    Plan { window: Duration::from_secs(seconds), ..plan }.settled("")
}

/// Random clocks and plans: no counter wraps or loses a token, and no reservation remains.
#[test]
fn random_clock_jumps_and_plan_changes_neither_lose_nor_double_a_token() {
    for seed in 0..60 {
        let mut rng = Rng::from_u64(seed);
        let (mut meter, mut now, mut used) = (Meter::new(), at("2026-11-15"), 0);
        let mut open = Vec::new();
        let periods = [Period::Month, Period::Week, Period::Day];
        let mut plan = Plan { tokens: 1 << 40, tokens_per_window: 1 << 40, requests: 1 << 40, ..plan() }.settled("");
        for _ in 0..400 {
            match rng.below(8) {
                0 => now = Unix(now.0 + rng.below(3 * DAY_MS)),
                1 => now = Unix(now.0.saturating_sub(rng.below(DAY_MS)).max(at("2026-11-01").0)),
                2 => plan = Plan { period: periods[rng.below(3) as usize], ..plan }.settled(""),
                3 => plan = windows_of(plan, [1, 60, 3600, 90_000][rng.below(4) as usize]),
                4 if !open.is_empty() => {
                    let hold = open.swap_remove(rng.below(open.len() as u64) as usize);
                    let tokens = rng.below(500);
                    used += tokens;
                    meter.settle(hold, amount(tokens));
                }
                _ => open.push(meter.admit(by(&plan), now, amount(rng.below(300))).unwrap()),
            }
        }
        open.into_iter().for_each(|hold| meter.settle(hold, Amount::default()));
        let account = meter.accounts.entry(0);
        let reserved = account.counts.iter().map(|count| count.windows.present.reserved);
        assert_eq!((account.running, reserved.fold(amount(0), Amount::plus)), (0, amount(0)), "seed {seed}");
        // The search covers 36 months. Every token is in exactly one of them.
        plan = Plan { period: Period::Month, ..plan }.settled("");
        let mut found = 0;
        for month in 0..36 {
            let (start, _) = Period::Month.bounds(Unix(at("2026-11-01").0 + month * 31 * DAY_MS));
            if Period::Month.bounds(Unix(at("2026-11-01").0 + (month + 1) * 31 * DAY_MS)).0 != start {
                found += meter.standing(by(&plan), start).used;
            }
        }
        assert_eq!(found, used, "seed {seed}");
    }
}

#[test]
fn a_changed_plan_applies_immediately_and_old_holds_settle_correctly() {
    let monthly = Plan { tokens: 100, ..plan() }.settled("");
    let daily = Plan { tokens: 100, period: Period::Day, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let hold = meter.admit(by(&monthly), now, amount(90)).unwrap();
    assert_eq!(meter.standing(by(&daily), now).renews, at("2026-11-21"));
    meter.settle(hold, amount(60));
    // The tokens used so far today count in the new plan's day.
    assert_eq!(meter.standing(by(&daily), now).used, 60);
    let hold = meter.admit(by(&daily), now, amount(39)).unwrap();
    assert!(meter.admit(by(&daily), now, amount(0)).is_ok());
    meter.settle(hold, amount(40));
    assert_eq!(meter.standing(by(&daily), now).used, 100);
    assert_eq!(meter.standing(by(&monthly), now).used, 100);
}

/// Admits and settles one request.
fn use_one(meter: &mut Meter, plan: &Plan, now: Unix) -> Option<Shorthand> {
    match meter.admit(by(plan), now, amount(5)) {
        Ok(hold) => {
            meter.settle(hold, amount(5));
            None
        }
        Err(limit) => Some(named(&limit)),
    }
}

#[test]
fn a_window_of_a_new_length_counts_every_request_admitted_within_it() {
    let of = |seconds: u64| Plan { requests: 4, window: Duration::from_secs(seconds), ..plan() }.settled("");
    let (mut meter, start) = (Meter::new(), at("2026-11-20T09:00:00Z"));
    let after = |seconds: u64| Unix(start.0 + seconds * 1000);
    // Two requests in each of four short windows, then a look at a fifth window.
    for second in [1, 2, 11, 12, 21, 22, 31, 32] {
        assert_eq!(use_one(&mut meter, &of(10), after(second)), None);
    }
    meter.standing(by(&of(10)), after(41));
    assert_eq!(
        use_one(&mut meter, &of(60), after(42)),
        Some(Shorthand::Requests),
        "eight requests were admitted in this minute"
    );
    assert_eq!(use_one(&mut meter, &of(60), after(61)), None, "no request was admitted in the next minute");
    // The plan returns to the long window: requests counted in the short windows count here too.
    let mut meter = Meter::new();
    for second in [1, 2] {
        assert_eq!(use_one(&mut meter, &of(60), after(second)), None);
    }
    for second in [11, 21] {
        assert_eq!(use_one(&mut meter, &of(10), after(second)), None);
    }
    assert_eq!(
        use_one(&mut meter, &of(60), after(25)),
        Some(Shorthand::Requests),
        "four requests were admitted in this minute"
    );
    assert_eq!(meter.standing(by(&of(60)), after(25)).remaining_requests, 0);
}

#[test]
fn a_clock_that_jumps_between_many_windows_grants_nothing_twice() {
    let plan = Plan { requests: 3, ..plan() }.settled("");
    let (mut meter, start) = (Meter::new(), at("2026-11-20T09:00:10Z"));
    let mut admitted = [0; 5];
    for _ in 0..10 {
        for minute in [0, 3, 1, 4, 2] {
            let now = Unix(start.0 + minute * 60_000);
            admitted[minute as usize] += u32::from(use_one(&mut meter, &plan, now).is_none());
        }
    }
    assert!(admitted.iter().all(|count| *count <= 3), "{admitted:?}");
}

#[test]
fn counters_have_the_same_values_after_a_restart() {
    let plan = Plan { tokens: 1_000, requests: 10, tokens_per_window: 500, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20T09:00:30Z"));
    let days = [("2026-10-31", 900), ("2026-11-01", 100), ("2026-11-19", 200), ("2026-11-20", 60)];
    for (day, tokens) in days {
        meter.restore(KEY, &plan, now, &restored(true, at(day), amount(tokens)));
    }
    let rows = [("2026-11-20T08:59:59Z", 40), ("2026-11-20T09:00:00Z", 15), ("2026-11-20T09:00:29Z", 5)];
    for (admitted, tokens) in rows {
        meter.restore(KEY, &plan, now, &restored(false, at(admitted), amount(tokens)));
    }
    let standing = meter.standing(by(&plan), now);
    assert_eq!((standing.used, standing.remaining_requests, standing.remaining_tokens), (360, 8, 480));
    assert_eq!(meter.open_holds(), 0);
}

#[test]
fn each_limit_is_named_in_its_message() {
    let now = at("2026-11-20T09:00:30Z");
    let plans = [
        (Plan { requests: 1, ..plan() }.settled(""), "1 request per 1 minute"),
        (Plan { tokens: 1, ..plan() }.settled(""), "1 token per month"),
        (Plan { tokens_per_window: 1, ..plan() }.settled(""), "1 token per 1 minute"),
        (Plan { concurrency: 1, ..plan() }.settled(""), "1 request at once"),
    ];
    for (plan, words) in plans {
        let mut meter = Meter::new();
        let hold = meter.admit(by(&plan), now, amount(1)).unwrap();
        let limit = meter.admit(by(&plan), now, amount(1)).unwrap_err();
        assert!(limit.message().contains(words), "{}", limit.message());
        meter.settle(hold, Amount::default());
    }
}

/// Random traffic against the bound: the used amount is at most the total - 1, plus the reservation of the last request
/// admitted, plus the sum of max(0, actual - reserved).
#[test]
fn the_stated_bound_holds_for_random_traffic() {
    for seed in 0..200 {
        let mut rng = Rng::from_u64(seed);
        let plan = Plan { tokens: 1 + rng.below(5_000), ..plan() }.settled("");
        let (mut meter, now) = (Meter::new(), at("2026-11-20"));
        let (mut open, mut last, mut excess, mut used) = (Vec::new(), 0, 0, 0);
        for _ in 0..300 {
            if rng.below(2) == 0 {
                let estimate = rng.below(400);
                if let Ok(hold) = meter.admit(by(&plan), now, amount(estimate)) {
                    last = estimate;
                    open.push((hold, estimate));
                }
            } else if !open.is_empty() {
                let (hold, reserved) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let actual = rng.below(600);
                excess += actual.saturating_sub(reserved);
                used += actual;
                meter.settle(hold, amount(actual));
            }
            assert!(used <= plan.tokens - 1 + last + excess, "seed {seed}");
            assert_eq!(meter.standing(by(&plan), now).used, used);
        }
        open.into_iter().for_each(|(hold, _)| meter.settle(hold, Amount::default()));
        assert_eq!(meter.open_holds(), 0);
        // No reservation remains, so only settled use can cause a refusal now.
        assert_eq!(meter.spent(by(&plan), now).is_err(), used >= plan.tokens);
    }
}

/// Random traffic over days: the counters always equal a recount of all rows.
#[test]
fn counters_always_equal_a_recount_of_the_rows() {
    for (seed, period) in [(1, Period::Month), (2, Period::Week), (3, Period::Day)] {
        let plan = Plan { period, requests: 1 << 40, ..plan() }.settled("");
        let (mut rng, mut meter, mut now) = (Rng::from_u64(seed), Meter::new(), at("2026-11-28T23:00:00Z"));
        let (mut open, mut rows) = (Vec::new(), Vec::new());
        let mut admitted = Vec::new();
        for _ in 0..4_000 {
            now = Unix(now.0 + rng.below(DAY_MS / 200));
            if rng.below(2) == 0 {
                open.push((meter.admit(by(&plan), now, amount(rng.below(100))).unwrap(), now));
                admitted.push(now);
            } else if !open.is_empty() {
                let (hold, at) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let tokens = rng.below(100);
                rows.push((at, tokens));
                meter.settle(hold, amount(tokens));
            }
            let standing = meter.standing(by(&plan), now);
            let (start, renews) = period.bounds(now);
            let used: u64 = rows.iter().filter(|(at, _)| *at >= start && *at < renews).map(|(_, t)| t).sum();
            let (opened, closes) = window(now, plan.window);
            let requests = admitted.iter().filter(|at| **at >= opened && **at < closes).count() as u64;
            assert_eq!((standing.used, standing.limit - standing.remaining_requests), (used, requests));
        }
    }
}

#[test]
fn holds_that_no_exchange_owns_are_reclaimed() {
    let plan = Plan { tokens: 1_000, concurrency: 2, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    let kept = meter.admit(by(&plan), now, amount(10)).unwrap();
    drop(meter.admit(by(&plan), now, amount(990)).unwrap());
    assert!(meter.spent(by(&plan), now).is_err());
    let lost = meter.reclaim(|id| id == kept.id());
    assert_eq!((lost.len(), lost[0].0, lost[0].1.reserved), (1, KEY, amount(990)));
    assert_eq!(meter.open_holds(), 1);
    assert!(meter.spent(by(&plan), now).is_ok());
    meter.settle(kept, amount(5));
    assert_eq!((meter.open_holds(), meter.standing(by(&plan), now).used), (0, 5));
}

#[test]
fn a_bound_is_reserved_unless_it_could_decide_the_admission() {
    let plan = Plan { tokens: 1_000, tokens_per_window: 1_000, ..plan() }.settled("");
    let (mut meter, now) = (Meter::new(), at("2026-11-20"));
    assert!(meter.admit_bounded(by(&plan), now, amount(500)).is_none(), "the bound is half of the limit");
    let one = meter.admit_bounded(by(&plan), now, amount(400)).unwrap();
    assert!(
        meter.admit_bounded(by(&plan), now, amount(100)).is_none(),
        "the bound and the reservations are half of the limit"
    );
    let two = meter.admit(by(&plan), now, amount(650)).unwrap();
    assert!(meter.admit(by(&plan), now, amount(1)).is_err());
    assert!(meter.spent(by(&plan), now).is_ok(), "a bound does not cause a refusal before the body is read");
    assert!(meter.is_bounded(KEY, PathIx::NONE));
    meter.count(&one, amount(40));
    assert!(!meter.is_bounded(KEY, PathIx::NONE));
    assert_eq!(meter.lease(&one).reserved, amount(40));
    meter.count(&one, amount(1));
    meter.count(&two, amount(1));
    assert_eq!(
        (meter.lease(&one).reserved, meter.lease(&two).reserved),
        (amount(40), amount(650)),
        "a bound is replaced once, and an exact estimate never"
    );
    let three = meter.admit(by(&plan), now, amount(310)).unwrap();
    assert!(meter.spent(by(&plan), now).is_err());
    [one, two, three].into_iter().for_each(|hold| meter.settle(hold, Amount::default()));
    let lost = meter.admit_bounded(by(&plan), now, amount(400)).unwrap();
    drop(lost);
    meter.reclaim(|_| false);
    assert!(!meter.is_bounded(KEY, PathIx::NONE));
}

/// Random traffic: a meter that counts late admits and refuses the same requests as one that counts immediately.
#[test]
fn late_and_immediate_counting_admit_the_same_requests() {
    let mut bounded = 0;
    for seed in 0..50 {
        let plan = Plan { tokens: 40_000, tokens_per_window: 10_000, requests: 1 << 40, ..plan() }.settled("");
        let (mut rng, mut now) = (Rng::from_u64(seed), at("2026-11-20T10:00:00Z"));
        let (mut at_once, mut late, mut open) = (Meter::new(), Meter::new(), Vec::new());
        for _ in 0..1_000 {
            now = Unix(now.0 + rng.below(4_000));
            if rng.below(5) < 3 {
                let exact = 1 + rng.below(400);
                let most = exact + rng.below(1_200);
                let first = at_once.admit(by(&plan), now, amount(exact));
                let second = late.admit_bounded(by(&plan), now, amount(most)).map_or_else(
                    || {
                        let again = late.admit(by(&plan), now, amount(exact));
                        if again.is_ok() || !late.is_bounded(KEY, PathIx::NONE) {
                            return again;
                        }
                        open.iter().for_each(|(_, hold, exact)| late.count(hold, amount(*exact)));
                        late.admit(by(&plan), now, amount(exact))
                    },
                    Ok,
                );
                bounded += u64::from(late.is_bounded(KEY, PathIx::NONE));
                match (first, second) {
                    (Ok(first), Ok(second)) => open.push((first, second, exact)),
                    (first, second) => assert_eq!(first.unwrap_err(), second.unwrap_err(), "seed {seed}"),
                }
            } else if !open.is_empty() {
                let (first, second, exact) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let used = rng.below(2 * exact);
                at_once.settle(first, amount(used));
                late.settle(second, amount(used));
            }
        }
        for (first, second, _) in open {
            at_once.settle(first, Amount::default());
            late.settle(second, Amount::default());
        }
        assert_eq!(at_once.standing(by(&plan), now), late.standing(by(&plan), now));
        assert!(!late.is_bounded(KEY, PathIx::NONE));
    }
    assert!(bounded > 1_000, "{bounded}");
}
