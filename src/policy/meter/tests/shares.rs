//! Tests the reasons for a refusal by a limit: the limit is spent, running requests have reserved it, or one request
//! needs more than its share.

use super::super::*;
use super::{KEY, amount, at, by, named, plan};
use crate::policy::plan::{Group, Shorthand};

const NOW: &str = "2026-11-20T09:00:10Z";

/// Plans with one limit of 100 each, and the kind of this limit.
fn limits() -> [(Plan, Shorthand); 3] {
    [
        (Plan { tokens: 100, ..Plan::unlimited("a") }.settled(""), Shorthand::Tokens),
        (Plan { tokens_per_window: 100, ..Plan::unlimited("a") }.settled(""), Shorthand::TokensPerWindow),
        (Plan { budget: 100, ..Plan::unlimited("a") }.settled(""), Shorthand::Budget),
    ]
}

fn of(both: u64) -> Amount {
    Amount { tokens: both, nano: both }
}

/// Returns a meter, and a payer under these limits, which are those of the key's plan or of its group.
fn meter<'a>(limits: &'a Plan, free: &'a Plan, in_group: bool) -> (Meter, Payer<'a>) {
    let mut meter = Meter::new();
    assert!(meter.configure(&[Group { parent: None, path: "a".into(), limits: limits.clone() }], at(NOW)));
    let path = if in_group { meter.path_of("a").unwrap() } else { PathIx::NONE };
    (meter, Payer { key: KEY, plan: if in_group { free } else { limits }, path, hosts: 1, model: None })
}

#[test]
fn a_limit_is_reserved_until_settled_use_reaches_it() {
    for (limits, kind) in limits() {
        for in_group in [false, true] {
            let free = plan();
            let (mut meter, payer) = meter(&limits, &free, in_group);
            let (one, two) =
                (meter.admit(payer, at(NOW), of(99)).unwrap(), meter.admit(payer, at(NOW), of(50)).unwrap());
            let refused = meter.admit(payer, at(NOW), of(1)).unwrap_err();
            assert_eq!((named(&refused), refused.by, refused.retry_after), (kind, LimitReason::Reserved, 1));
            assert!(refused.message().contains("reserved by running requests"), "{}", refused.message());
            assert_eq!(meter.spent(payer, at(NOW)).unwrap_err().by, LimitReason::Reserved);
            assert!(meter.spent_settled(payer, at(NOW)).is_ok());
            meter.settle(one, of(99));
            assert_eq!(
                meter.admit(payer, at(NOW), of(1)).unwrap_err().by,
                LimitReason::Reserved,
                "99 are used and 50 are reserved"
            );
            meter.settle(two, of(1));
            let refused = meter.admit(payer, at(NOW), of(1)).unwrap_err();
            assert_eq!((named(&refused), refused.by), (kind, LimitReason::Spent));
            assert!(refused.retry_after > 1 && !refused.message().contains("reserved"), "{}", refused.message());
        }
    }
}

#[test]
fn spent_limits_are_named_before_reserved_ones() {
    let plan = Plan { tokens: 100, requests: 1, ..plan() }.settled("");
    let mut meter = Meter::new();
    let hold = meter.admit(by(&plan), at(NOW), amount(500)).unwrap();
    let refused = meter.admit(by(&plan), at(NOW), amount(1)).unwrap_err();
    assert_eq!((named(&refused), refused.by, refused.retry_after), (Shorthand::Requests, LimitReason::Spent, 50));
    meter.settle(hold, Amount::default());
}

#[test]
fn one_request_may_need_up_to_the_whole_limit_or_the_floor() {
    for (limits, kind) in limits() {
        for in_group in [false, true] {
            let free = plan();
            let (mut meter, payer) = meter(&limits, &free, in_group);
            let hold = meter.admit(payer, at(NOW), of(50)).unwrap();
            meter.settle(hold, of(58));
            let mut fits = |need, floor| meter.fits(payer, at(NOW), of(need), || of(floor));
            assert_eq!((fits(100, 0), fits(1, 0), fits(5000, 5000)), (Ok(()), Ok(()), Ok(())));
            for (need, floor) in [(101, 0), (101, 100), (5001, 5000), (u64::MAX, 5000)] {
                let limit = fits(need, floor).unwrap_err();
                assert_eq!((named(&limit), limit.by), (kind, LimitReason::Share { need, left: 42 }), "{need} {floor}");
                assert!(limit.retry_after > 1, "the client must wait until the limit renews");
            }
        }
    }
    let plan = plan();
    assert_eq!(
        Meter::new().fits(by(&plan), at(NOW), of(u64::MAX), || of(0)),
        Ok(()),
        "without a limit there is no share"
    );
}

#[test]
fn the_share_applies_to_every_group_and_to_one_hosts_part() {
    let free = plan();
    let mut meter = Meter::new();
    let group = |name: &str, parent: Option<&str>, path: &str, tokens| Group {
        parent: parent.map(Into::into),
        path: path.into(),
        limits: Plan { tokens, ..Plan::unlimited(name) }.settled(name),
    };
    assert!(meter.configure(&[group("a", None, "a", 60), group("b", Some("a"), "a/b", 90)], at(NOW)));
    let path = meter.path_of("b").unwrap();
    let payer = Payer { key: KEY, plan: &free, path, hosts: 1, model: None };
    assert_eq!(meter.fits(payer, at(NOW), of(60), || of(0)), Ok(()));
    let limit = meter.fits(payer, at(NOW), of(61), || of(0)).unwrap_err();
    assert_eq!((limit.whose, limit.cap.total), (Whose::Group("a".into()), 60));
    let limit = meter.fits(Payer { hosts: 2, ..payer }, at(NOW), of(31), || of(0)).unwrap_err();
    assert_eq!((limit.whose, limit.cap.total), (Whose::Group("a".into()), 30));
}
