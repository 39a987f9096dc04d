//! Strict limits: what is refused and why, and that use and reservations stay within them.

use super::*;
use crate::policy::plan::Group;
use crate::policy::plan::caps::Cap;

const NOW: &str = "2026-11-20T09:00:10Z";

fn plan(texts: &[&str]) -> Plan {
    let limits = texts.iter().map(|text| Cap::parse(text).unwrap()).collect();
    Plan { limits, strict: true, ..Plan::unlimited("p") }.settled("")
}

fn of(tokens: u64) -> Amount {
    Amount { tokens, nano: 0 }
}

#[test]
fn whole_reservation_must_fit_into_every_limit() {
    let (mut meter, plan, now) = (Meter::new(), plan(&["tokens=100/day", "budget=0.00000005/month"]), at(NOW));
    let payer = by(&plan);
    assert_eq!(meter.room(payer, now), Amount { tokens: 100, nano: 50 });
    let why = |meter: &mut Meter, need| meter.admit_whole(payer, now, need).map(drop).map_err(|limit| limit.by);
    assert_eq!(why(&mut meter, of(101)), Err(LimitReason::Share { need: 101, left: 100 }));
    let over = |meter: &mut Meter| {
        let limits = meter.limits(payer, now).into_iter();
        limits.map(|limit| (limit.used + limit.reserved).saturating_sub(limit.cap.total)).max().unwrap()
    };
    let first = meter.admit_whole(payer, now, Amount { tokens: 60, nano: 49 }).unwrap();
    assert_eq!(why(&mut meter, of(41)), Err(LimitReason::Reserved));
    assert_eq!(why(&mut meter, Amount { tokens: 1, nano: 2 }), Err(LimitReason::Reserved));
    let second = meter.admit_whole(payer, now, of(30)).unwrap();
    assert_eq!((meter.room(payer, now).tokens, over(&mut meter)), (10, 0));
    meter.settle(first, of(60));
    assert_eq!(why(&mut meter, of(41)), Err(LimitReason::Spent));
    assert_eq!(why(&mut meter, of(11)), Err(LimitReason::Reserved));
    // A further attempt reserves again.
    meter.extend(&second, of(10));
    assert_eq!((meter.reserved(&second), meter.room(payer, now).tokens), (of(40), 0));
    meter.settle(second, of(35));
    assert_eq!(meter.room(payer, now).tokens, 5);
    // A report of a provider above the reservation counts in full.
    let last = meter.admit_whole(payer, now, of(5)).unwrap();
    meter.settle(last, of(9));
    assert_eq!(over(&mut meter), 4);
}

#[test]
fn limit_of_a_group_and_one_of_requests_apply_too() {
    let (mut meter, now) = (Meter::new(), at(NOW));
    let limits = Plan { tokens: 50, strict: true, ..Plan::unlimited("g") }.settled("g");
    assert!(meter.configure(&[Group { parent: None, path: "g".into(), limits }], now));
    let (own, path) = (plan(&["requests=1/day"]), meter.path_of("g").unwrap());
    assert!(meter.is_strict(path) && !meter.is_strict(PathIx::NONE));
    let payer = Payer { path, ..by(&own) };
    assert_eq!(meter.room(payer, now), Amount { tokens: 50, nano: u64::MAX });
    let whose = |meter: &mut Meter, need| meter.admit_whole(payer, now, need).map(drop).map_err(|limit| limit.whose);
    assert_eq!(whose(&mut meter, of(51)), Err(Whose::Group("g".into())));
    let hold = meter.admit_whole(payer, now, of(50)).unwrap();
    meter.settle(hold, Amount::default());
    assert_eq!(whose(&mut meter, of(1)), Err(Whose::Plan("p".into())));
}
