//! Tests entries of `limits`: several limits at once, of all models or of some.

use super::super::*;
use super::named;
use crate::policy::plan::caps::{Cap, Caps};
use crate::policy::plan::{Group, Shorthand};
use crate::policy::window::parse_moment;

const KEY: KeyIx = KeyIx(0);

fn at(text: &str) -> Unix {
    parse_moment(&format!("2026-11-{text}Z")).unwrap()
}

fn caps(texts: &[&str]) -> Caps {
    texts.iter().map(|text| Cap::parse(text).unwrap()).collect()
}

fn plan(texts: &[&str]) -> Plan {
    Plan { limits: caps(texts), ..Plan::unlimited("p") }.settled("")
}

fn of(tokens: u64, nano: u64) -> Amount {
    Amount { tokens, nano }
}

fn by<'a>(plan: &'a Plan, model: Option<&'a Arc<str>>) -> Payer<'a> {
    Payer { key: KEY, plan, path: PathIx::NONE, hosts: 1, model }
}

/// Number of requests, of at most 50, that are admitted and use `used`.
fn admitted(meter: &mut Meter, payer: Payer<'_>, now: Unix, used: Amount) -> usize {
    let mut all = 0;
    while all < 50
        && let Ok(hold) = meter.admit(payer, now, used)
    {
        meter.settle(hold, used);
        all += 1;
    }
    all
}

#[test]
fn a_request_needs_room_in_every_entry() {
    let plan = plan(&["requests=3/1m", "requests=5/1h", "tokens=60/day", "budget=0.0000001/week"]);
    let mut meter = Meter::new();
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T09:00:10"), of(10, 10)), 3);
    let refused = meter.spent(by(&plan, None), at("20T09:00:10")).unwrap_err();
    assert_eq!(
        refused.message(),
        "the limit of plan `p` of 3 requests per 1 minute is reached until 2026-11-20T09:01:00Z"
    );
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T09:01:10"), of(10, 10)), 2);
    let refused = meter.spent(by(&plan, None), at("20T09:01:10")).unwrap_err();
    assert_eq!((named(&refused), refused.reset), (Shorthand::Requests, at("20T10:00:00")));
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T10:00:10"), of(10, 10)), 1, "tokens of the day");
    assert_eq!(admitted(&mut meter, by(&plan, None), at("21T10:00:10"), of(10, 10)), 3);
    assert_eq!(admitted(&mut meter, by(&plan, None), at("21T10:01:10"), of(10, 10)), 1, "the week's budget");
    let refused = meter.spent(by(&plan, None), at("21T10:01:10")).unwrap_err();
    assert_eq!(refused.message(), "the budget of plan `p` for a week is spent until 2026-11-23T00:00:00Z");
}

#[test]
fn the_entry_that_renews_last_is_named() {
    let plan = plan(&["requests=2/1m", "budget=0.00000002/5h"]);
    let mut meter = Meter::new();
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T09:00:10"), of(1, 10)), 2);
    let refused = meter.spent(by(&plan, None), at("20T09:00:10")).unwrap_err();
    // Windows of five hours begin at multiples of five hours since the epoch.
    assert_eq!(refused.message(), "the budget of plan `p` for 5 hours is spent until 2026-11-20T12:00:00Z");
    assert_eq!(refused.retry_after, 10_790);
}

#[test]
fn an_entry_counts_only_its_models() {
    let plan = plan(&["requests=2/1h:opus-*,!opus-mini", "requests=5/1h"]);
    let (opus, mini, small): (Arc<str>, Arc<str>, Arc<str>) = ("opus-5".into(), "opus-mini".into(), "small".into());
    let (mut meter, now) = (Meter::new(), at("20T09:00:10"));
    assert_eq!(admitted(&mut meter, by(&plan, Some(&opus)), now, of(1, 1)), 2);
    let refused = meter.admit(by(&plan, Some(&opus)), now, of(1, 1)).unwrap_err();
    assert!(refused.message().contains("plan `p` and models opus-*,!opus-mini of 2 requests"), "{}", refused.message());
    assert!(meter.spent(by(&plan, None), now).is_ok(), "the model is not known yet");
    let hold = meter.admit(by(&plan, Some(&mini)), now, of(1, 1)).unwrap();
    meter.settle(hold, Amount::default());
    assert_eq!(admitted(&mut meter, by(&plan, Some(&small)), now, of(1, 1)), 2, "five in all");
}

#[test]
fn reservations_count_in_every_entry_until_they_are_settled() {
    let plan = plan(&["tokens=100/5h", "budget=0.0000001/1h"]);
    let (mut meter, now) = (Meter::new(), at("20T09:00:10"));
    let hold = meter.admit(by(&plan, None), now, of(100, 10)).unwrap();
    let refused = meter.admit(by(&plan, None), now, of(1, 1)).unwrap_err();
    assert_eq!((refused.by, refused.retry_after), (LimitReason::Reserved, 1));
    let of_tokens = meter.limits(by(&plan, None), now);
    assert_eq!((of_tokens[0].used, of_tokens[0].reserved, of_tokens[0].cap.total), (0, 100, 100));
    meter.settle(hold, of(40, 100));
    let refused = meter.admit(by(&plan, None), now, of(1, 1)).unwrap_err();
    assert_eq!((named(&refused), refused.by), (Shorthand::Budget, LimitReason::Spent));
    assert!(meter.admit(by(&plan, None), at("20T10:00:00"), of(1, 1)).is_ok());
}

#[test]
fn a_group_and_its_keys_have_entries_of_their_own() {
    let limits =
        Plan { limits: [Cap::parse("requests=4/1h").unwrap()].into_iter().collect(), ..Plan::unlimited("labs") }
            .settled("labs");
    let mut meter = Meter::new();
    assert!(meter.configure(&[Group { parent: None, path: "labs".into(), limits }], at("20T09:00:00")));
    let (plan, now) = (plan(&["requests=3/1h"]), at("20T09:00:10"));
    let path = meter.path_of("labs").unwrap();
    let payer = |key| Payer { key: KeyIx(key), path, ..by(&plan, None) };
    assert_eq!([0, 1, 2].map(|key| admitted(&mut meter, payer(key), now, of(1, 1))), [3, 1, 0]);
    let refused = meter.spent(payer(2), now).unwrap_err();
    assert_eq!(
        refused.message(),
        "the limit of group `labs` of 4 requests per 1 hour is reached until 2026-11-20T10:00:00Z"
    );
}

#[test]
fn an_entry_keeps_its_counts_when_the_list_changes() {
    let (mut meter, now) = (Meter::new(), at("20T09:00:10"));
    let before = plan(&["tokens=100/day", "requests=9/1h"]);
    assert_eq!(admitted(&mut meter, by(&before, None), now, of(30, 3)), 4);
    let after = plan(&["requests=5/1h", "tokens=120/day", "tokens=121/week"]);
    let all = meter.limits(by(&after, None), now);
    assert_eq!(all.iter().map(|one| one.used).collect::<Vec<_>>(), [4, 120, 120], "the week has the sums of days");
    assert!(meter.admit(by(&after, None), now, of(1, 1)).is_err());
}

#[test]
fn a_jump_of_the_clock_grants_no_entry_twice() {
    let plan = plan(&["requests=3/1h", "tokens=50/day"]);
    let mut meter = Meter::new();
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T09:00:10"), of(10, 0)), 3);
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T10:00:10"), of(10, 0)), 2);
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T09:30:00"), of(10, 0)), 0, "set back");
    assert_eq!(admitted(&mut meter, by(&plan, None), at("20T10:30:00"), of(10, 0)), 0);
    assert_eq!(admitted(&mut meter, by(&plan, None), at("21T10:00:00"), of(10, 0)), 3);
}

#[test]
fn entries_have_the_same_counts_after_a_restart() {
    let plan = plan(&["requests=9/week", "tokens=900/day", "budget=1/5h:opus-*"]);
    let (mut meter, now) = (Meter::new(), at("20T09:00:10"));
    for (day, model) in [("17T00:00:00", "small"), ("20T00:00:00", "opus-5"), ("14T00:00:00", "small")] {
        meter.restore(KEY, &plan, now, &Restored { is_day: true, at: at(day), requests: 2, used: of(20, 7), model });
    }
    for (admitted, model) in [("20T06:59:59", "opus-5"), ("20T07:00:00", "opus-5"), ("20T08:00:00", "small")] {
        meter.restore(
            KEY,
            &plan,
            now,
            &Restored { is_day: false, at: at(admitted), requests: 1, used: of(20, 7), model },
        );
    }
    let used: Vec<u64> = meter.limits(by(&plan, None), now).iter().map(|one| one.used).collect();
    assert_eq!(used, [4, 20, 7]);
}

#[test]
fn an_entry_of_a_key_replaces_an_entry_or_a_setting_of_its_plan() {
    let plan = Plan { requests: 600, limits: caps(&["budget=5/day"]), ..Plan::unlimited("p") }.settled("");
    let with = |texts: &[&str]| plan.with(&caps(texts), Unix(0)).all.iter().map(Cap::text).collect::<Vec<_>>();
    assert_eq!(with(&["requests=7/1m", "budget=9/day"]), ["requests=7/1m", "budget=9/day"]);
    assert_eq!(with(&["requests/window=none", "budget/day=none", "running=2"]), ["running=2"]);
}

#[test]
fn each_budget_reports_its_shares_in_each_of_its_windows_once() {
    let plan = plan(&["budget=0.0000001/1h", "budget=0.0000003/day", "budget=0.0000001/month:opus-*"]);
    let (mut meter, opus) = (Meter::new(), Arc::<str>::from("opus-5"));
    let spend = |meter: &mut Meter, now: &str, model: Option<&Arc<str>>, nano: u64| {
        let hold = meter.admit(by(&plan, model), at(now), of(0, nano)).unwrap();
        meter.settle(hold, of(0, nano));
        let taken = meter.take_news().into_iter();
        taken.map(|news| format!("{} {} {}", news.cap.name(), news.percent, news.fresh)).collect::<Vec<_>>()
    };
    assert_eq!(spend(&mut meter, "20T09:00:10", None, 80), ["budget/1h 80 true"]);
    assert_eq!(spend(&mut meter, "20T09:00:11", None, 15), [""; 0]);
    assert_eq!(spend(&mut meter, "20T10:00:00", None, 79), [""; 0]);
    let (hour, opus_80) = ("budget/1h 80 true", "budget/month:opus-* 80 true");
    let all = [hour, "budget/1h 100 true", "budget/day 80 true", opus_80];
    assert_eq!(spend(&mut meter, "20T10:00:01", Some(&opus), 80), all);
    // The clock was set back into a window whose shares were reported: nobody can tell by which process.
    assert_eq!(spend(&mut meter, "20T09:00:12", None, 1), ["budget/1h 80 false"]);
}
