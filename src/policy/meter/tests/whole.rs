//! Tests limits that admit only what fits as a whole, against an independent model.

use super::super::*;
use crate::base::rng::Rng;
use crate::policy::plan::Group;
use crate::policy::plan::caps::{Cap, LimitList, Per, Resource};
use crate::policy::window::Period;
use std::time::Duration;

const MINUTE: u64 = 60_000;
const START: u64 = 1_800_000_000_000;

/// A meter whose only group has these limits.
fn meter(texts: &[&str]) -> Meter {
    let caps = texts.iter().map(|text| Cap::parse(text).unwrap());
    let list = LimitList::new("g", Per::of_window(Duration::from_secs(60)), Per::Calendar(Period::Month), caps);
    let limits = Plan { all: list, ..Plan::unlimited("g") };
    let mut meter = Meter::new();
    assert!(meter.configure(&[Group { parent: None, path: "g".into(), limits }], Unix(START)));
    meter
}

fn need(tokens: u64, nano: u64) -> Amount {
    Amount { tokens, nano }
}

#[test]
fn lacking_limit_is_told_with_the_moment_of_its_renewal() {
    let mut meter = meter(&["requests=2/1m", "tokens=100/1m", "running=2"]);
    let (plan, path, now) = (Plan::unlimited("").settled(""), meter.path_of("g").unwrap(), Unix(START + 10_000));
    let payer = Payer { key: KeyIx(0), plan: &plan, path, hosts: 1, model: None };
    let lacks = |meter: &mut Meter, now, tokens| {
        meter.has_room(payer, now, need(tokens, 0), None).map_err(|limit| (limit.cap.resource, limit.by, limit.reset))
    };
    let (spent, next) = ((Resource::Requests, LimitReason::Spent, Unix(START + MINUTE)), Unix(START + MINUTE));
    assert_eq!(lacks(&mut meter, now, 100), Ok(()));
    assert_eq!(lacks(&mut meter, now, 101), Err((Resource::Tokens, LimitReason::Share { need: 101, left: 100 }, next)));
    let first = meter.admit_whole(payer, now, need(60, 0)).unwrap();
    assert_eq!(lacks(&mut meter, now, 41), Err((Resource::Tokens, LimitReason::Reserved, next)));
    let second = meter.admit_whole(payer, now, need(40, 0)).unwrap();
    // A request that was not sent does not count.
    meter.cancel(second);
    let second = meter.admit_whole(payer, now, need(40, 0)).unwrap();
    assert_eq!(lacks(&mut meter, now, 0), Err(spent));
    meter.settle(first, need(60, 0));
    meter.settle(second, need(1, 0));
    assert_eq!(lacks(&mut meter, now, 0), Err(spent));
    assert_eq!((lacks(&mut meter, next, 100), meter.open_holds()), (Ok(()), 0));
}

#[test]
fn random_requests_are_admitted_exactly_while_they_fit() {
    const TOTALS: [u64; 4] = [7, 500, 900, 3];
    for seed in 0..200 {
        let mut rng = Rng::from_u64(seed);
        let mut meter = meter(&["requests=7/1m", "tokens=500/1m", "budget=0.0000009/5m", "running=3"]);
        let (plan, path) = (Plan::unlimited("").settled(""), meter.path_of("g").unwrap());
        let mut now = Unix(START);
        // Admission, reservation, and use once it has ended; `None` while it runs.
        let mut all: Vec<(Unix, Amount, Option<Amount>)> = Vec::new();
        let mut open: Vec<(usize, Hold)> = Vec::new();
        for _ in 0..300 {
            now = Unix(now.0 + rng.below(4000));
            let payer = Payer { key: KeyIx(0), plan: &plan, path, hosts: 1, model: None };
            if rng.below(2) == 0 && !open.is_empty() {
                let (at, hold) = open.swap_remove(rng.below(open.len() as u64) as usize);
                if rng.below(4) == 0 && all[at].0.0 / MINUTE == now.0 / MINUTE {
                    meter.cancel(hold);
                    all[at] = (Unix(0), Amount::default(), Some(Amount::default()));
                } else {
                    let used = need(rng.below(all[at].1.tokens + 1), rng.below(all[at].1.nano + 1));
                    meter.settle(hold, used);
                    all[at].2 = Some(used);
                }
                continue;
            }
            let wants = need(rng.below(300), rng.below(400));
            let within = |length: u64| all.iter().filter(move |(at, ..)| at.0 / length == now.0 / length);
            let counted = |one: &(Unix, Amount, Option<Amount>)| one.2.unwrap_or(one.1);
            let sums = [
                within(MINUTE).count() as u64 + 1,
                within(MINUTE).map(|one| counted(one).tokens).sum::<u64>() + wants.tokens.max(1),
                within(5 * MINUTE).map(|one| counted(one).nano).sum::<u64>() + wants.nano.max(1),
                open.len() as u64 + 1,
            ];
            let fits = sums.iter().zip(TOTALS).all(|(sum, total)| *sum <= total);
            assert_eq!(meter.has_room(payer, now, wants, None).is_ok(), fits, "seed {seed}: {sums:?}");
            let hold = meter.admit_whole(payer, now, wants);
            assert_eq!(hold.is_ok(), fits, "seed {seed}");
            if let Ok(hold) = hold {
                open.push((all.len(), hold));
                all.push((now, wants, None));
            }
        }
        assert!(all.len() > 20, "seed {seed}: {}", all.len());
        open.into_iter().for_each(|(_, hold)| meter.cancel(hold));
    }
}

#[test]
fn running_request_needs_room_in_the_windows_of_its_admission() {
    let mut meter = meter(&["tokens=100/1m"]);
    let (plan, path, now) = (Plan::unlimited("").settled(""), meter.path_of("g").unwrap(), Unix(START + 10_000));
    let payer = Payer { key: KeyIx(0), plan: &plan, path, hosts: 1, model: None };
    let hold = meter.admit_whole(payer, now, need(60, 0)).unwrap();
    assert!(meter.has_room(payer, now, need(40, 0), Some(now)).is_ok());
    assert!(meter.has_room(payer, now, need(41, 0), Some(now)).is_err());
    // The next window has room, but what the request uses counts in the one that has passed.
    let next = Unix(START + MINUTE + 1);
    assert!(meter.has_room(payer, next, need(1, 0), Some(now)).is_err());
    assert!(meter.has_room(payer, next, need(100, 0), None).is_ok());
    meter.settle(hold, need(60, 0));
}

#[test]
fn request_that_was_not_sent_gives_back_its_part_of_a_limit_that_was_added_meanwhile() {
    let mut meter = meter(&["tokens=100/1m"]);
    let (plan, path, now) = (Plan::unlimited("").settled(""), meter.path_of("g").unwrap(), Unix(START + 10_000));
    let payer = Payer { key: KeyIx(0), plan: &plan, path, hosts: 1, model: None };
    let hold = meter.admit_whole(payer, now, need(60, 0)).unwrap();
    let caps = ["tokens=100/1m", "tokens=100/month"].map(|text| Cap::parse(text).unwrap()).into_iter();
    let list = LimitList::new("g", Per::of_window(Duration::from_secs(60)), Per::Calendar(Period::Month), caps);
    let limits = Plan { all: list, ..Plan::unlimited("g") };
    assert!(meter.configure(&[Group { parent: None, path: "g".into(), limits }], Unix(now.0 + 1)));
    let later = Unix(now.0 + 2);
    assert!(meter.has_room(payer, later, need(41, 0), None).is_err());
    meter.cancel(hold);
    assert!(meter.has_room(payer, later, need(100, 0), None).is_ok());
}
