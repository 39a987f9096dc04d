//! Tests windows whose length changes while they are in use, against a list of all requests.

use super::super::*;
use super::{KEY, plan};
use crate::base::rng::Rng;
use crate::policy::plan::Group;
use std::time::Duration;

/// An admitted request: time of admission, reservation, and its use after it has ended.
struct Request {
    at: u64,
    reserved: u64,
    used: Option<u64>,
}

/// Expected counts, computed from all requests.
#[derive(Default)]
struct Model {
    requests: Vec<Request>,
    /// Time of the first request with the present length.
    since: u64,
}

impl Model {
    /// Requests admitted in the window that contains `now`, and their tokens.
    fn within(&self, now: u64, length: u64) -> (u64, u64) {
        let start = now - now % length;
        let inside = self.requests.iter().filter(|request| start <= request.at && request.at < start + length);
        inside.fold((0, 0), |(count, tokens), request| (count + 1, tokens + request.used.unwrap_or(request.reserved)))
    }
}

/// Runs random requests under a limit of the group or of the key, and returns how many were admitted and refused.
fn run(seed: u64, in_group: bool) -> (usize, usize) {
    let mut rng = Rng::from_u64(seed);
    let (requests, tokens) = (1 + rng.below(5), if rng.below(2) == 0 { 0 } else { 10 + rng.below(40) });
    let limits = |length: u64| {
        Plan { requests, tokens_per_window: tokens, window: Duration::from_millis(length), ..Plan::unlimited("g") }
            .settled("g")
    };
    let (mut meter, mut model, free) = (Meter::new(), Model::default(), plan());
    let (mut now, mut length) = (1_000_000_000_000 + rng.below(100_000), 1000 * (1 + rng.below(12)));
    let group = |length| Group { parent: None, path: "g".into(), limits: limits(length) };
    assert!(meter.configure(&[group(length)], Unix(now)));
    let path = if in_group { meter.path_of("g").unwrap() } else { PathIx::NONE };
    let (mut out, mut counts) = (Vec::new(), (0, 0));
    for _ in 0..300 {
        now += [0, 0, 1, 200, 900, 2500, 7000][rng.below(7) as usize];
        if rng.below(6) == 0 {
            length = [1000, 2000, 3000, 4000, 6000, 12_000, 60_000][rng.below(7) as usize];
            assert!(meter.configure(&[group(length)], Unix(now)));
            model.since = u64::MAX;
        }
        let own = limits(length);
        let payer = Payer { key: KEY, plan: if in_group { &free } else { &own }, path, hosts: 1, model: None };
        if rng.below(3) == 0 && !out.is_empty() {
            let (hold, index): (Hold, usize) = out.swap_remove(rng.below(out.len() as u64) as usize);
            let used = rng.below(30);
            meter.settle(hold, Amount { tokens: used, nano: 0 });
            model.requests[index].used = Some(used);
            continue;
        }
        let (count, sum) = model.within(now, length);
        let is_full = count >= requests || (tokens > 0 && sum >= tokens);
        let reserved = rng.below(12);
        let admitted = meter.admit(payer, Unix(now), Amount { tokens: reserved, nano: 0 });
        model.since = model.since.min(now);
        // Once the window in which the new length was first used has ended, the meter knows all requests of the present
        // window.
        if model.since < now - now % length {
            assert_eq!(admitted.is_err(), is_full, "seed {seed} {in_group} at {now}, {length} ms: {count} and {sum}");
        }
        assert!(
            !(admitted.is_ok() && is_full),
            "seed {seed} {in_group} at {now}, {length} ms: {count} and {sum} already"
        );
        counts = (counts.0 + usize::from(admitted.is_ok()), counts.1 + usize::from(admitted.is_err()));
        if let Ok(hold) = admitted {
            out.push((hold, model.requests.len()));
            model.requests.push(Request { at: now, reserved, used: None });
        }
    }
    out.into_iter().for_each(|(hold, _)| meter.settle(hold, Amount::default()));
    assert_eq!(meter.open_holds(), 0);
    counts
}

#[test]
fn changing_the_window_length_grants_nothing_twice() {
    for in_group in [false, true] {
        let (mut admitted, mut refused) = (0, 0);
        for seed in 0..400 {
            let counts = run(seed, in_group);
            (admitted, refused) = (admitted + counts.0, refused + counts.1);
        }
        assert!(admitted > 10_000 && refused > 10_000, "{admitted} and {refused} are too few for a meaningful result");
    }
}

#[test]
fn a_shorter_window_counts_earlier_use_if_the_windows_are_stored() {
    let of = |seconds: u64| Plan { requests: 5, window: Duration::from_secs(seconds), ..plan() }.settled("");
    let (mut meter, start) = (Meter::new(), 1_800_000_000_000);
    let mut use_five = |plan: &Plan, second: u64| {
        let payer = Payer { key: KEY, plan, path: PathIx::NONE, hosts: 1, model: None };
        let admit = |meter: &mut Meter| meter.admit(payer, Unix(start + second * 1000), Amount::default());
        (0..5).filter(|_| admit(&mut meter).map(|hold| meter.settle(hold, Amount::default())).is_ok()).count()
    };
    assert_eq!((use_five(&of(6), 1), use_five(&of(6), 6)), (5, 5));
    assert_eq!((use_five(&of(3), 7), use_five(&of(3), 8), use_five(&of(3), 9)), (0, 0, 5));
    // The length changes and returns within one window.
    assert_eq!((use_five(&of(6), 10), use_five(&of(3), 10), use_five(&of(60), 11)), (0, 0, 0));
    assert_eq!(use_five(&of(3), 12), 5, "no request was admitted since this window began");
    assert_eq!(use_five(&of(4), 14), 0, "all five requests were admitted in these four seconds");
}
