use super::history::MINUTES;
use super::table::name_hash;
use super::*;
use crate::base::hash::mix_bytes;
use crate::base::time::Unix;
use crate::gateway::provider::rate_limits::RateLimitHeaders;
use crate::policy::cause::Cause;
use crate::policy::keys::LiveKeys::{One, OneOwner, SeveralOwners};
use crate::policy::plan::caps::Caps;
use std::time::Duration;

fn target(label: &str, priority: u32, weight: u32) -> Target {
    let limits = limits();
    let seed = mix_bytes(0, label.as_bytes());
    let (label, share) = (label.into(), u64::from(weight));
    let (provider, model, credential, concurrency, slots, context) = (0, String::new(), 0, 0, 0, 1);
    Target {
        provider,
        model,
        credential,
        label,
        priority,
        weight,
        share,
        seed,
        concurrency,
        context,
        slots,
        prices: None,
        limits,
        caps: Caps::default(),
        accounts: None,
        rules: Default::default(),
    }
}

fn ask(tried: u64, now: Mono) -> Choice {
    Choice { tried, full: 0, late: 0, needs: [1; ALLOWANCES], owner: 0, among: Among::Turns, uploader: None, now }
}

fn limits() -> UpstreamLimits {
    UpstreamLimits { breaker_failures: 2, breaker_cooldown: Duration::from_micros(100), ..UpstreamLimits::default() }
}

fn fail(breakers: &mut Breakers, target: &Target, keys: &[u32], live: LiveKeys, now: Mono) {
    for key in keys {
        let caller = Caller::new((*key).into(), (*key).into());
        let failure = FailedAttempt { caller, live, unsent: 0, trial: false };
        breakers.failed(target, failure, &target.limits, now);
    }
}

#[test]
fn targets_are_tried_in_order_and_once() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(0))), Some(0));
    assert_eq!(breakers.choose(&targets, &ask(0b01, Mono(0))), Some(1));
    assert_eq!(breakers.choose(&targets, &ask(0b11, Mono(0))), None);
}

#[test]
fn equal_targets_share_smoothly_by_weight() {
    let (targets, mut breakers) = ([target("a", 1, 5), target("b", 1, 1), target("c", 1, 1)], Breakers::default());
    let mut pick = || {
        let chosen = breakers.choose(&targets, &ask(0, Mono(0))).unwrap();
        assert_eq!(breakers.choose(&targets, &ask(0, Mono(0))), Some(chosen), "a choice alone takes no turn");
        breakers.begin(&targets, chosen, &ask(0, Mono(0)));
        chosen
    };
    let picks: Vec<usize> = (0..7).map(|_| pick()).collect();
    assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn a_target_cools_down_after_failures_of_several_keys_and_one_request_probes_it() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1, 2], SeveralOwners, Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(99))), Some(1));
    let first = &targets[0];
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(100))), Some(0), "half-open");
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(100))), Some(0), "a request that is refused has tried nothing");
    assert!(breakers.begin(&targets, 0, &ask(0, Mono(100))).unwrap().begun.trial, "one tries");
    assert!(!breakers.begin(&targets, 0, &ask(0, Mono(100))).unwrap().begun.trial, "and no other at the same time");
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(100))), Some(1), "the others wait for its verdict");
    let failure = FailedAttempt { caller: Caller::new(1, 1), live: SeveralOwners, unsent: 0, trial: true };
    breakers.failed(first, failure, &targets[0].limits, Mono(101));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(200))), Some(1), "it cools down again");
    assert!(breakers.begin(&targets, 0, &ask(0, Mono(201))).unwrap().begun.trial);
    breakers.no_verdict(first);
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(202))), Some(0), "a trial without a verdict is made again");
    assert!(breakers.begin(&targets, 0, &ask(0, Mono(202))).unwrap().begun.trial);
    breakers.answered(first, Begun { trial: true, cooling: false }, Mono(202));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(203))), Some(0), "an answer that has begun is enough for others");
    fail(&mut breakers, &targets[0], &[1], SeveralOwners, Mono(204));
    assert_eq!(
        breakers.choose(&targets, &ask(0, Mono(205))),
        Some(1),
        "an answer that breaks off has forgiven nothing"
    );
}

#[test]
fn a_trial_that_a_bug_has_lost_is_made_again() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1, 2], SeveralOwners, Mono(0));
    let flight = breakers.begin(&targets, 0, &ask(0, Mono(100))).unwrap();
    breakers.recount([(&targets[0], &flight)].into_iter());
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(100))), Some(1), "the trial is still under way");
    breakers.recount([].into_iter());
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(100))), Some(0));
}

#[test]
fn one_key_alone_cannot_trip_it_for_others_but_the_only_key_can() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1, 1, 1, 1], SeveralOwners, Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(1))), Some(0));
    fail(&mut breakers, &targets[0], &[1], One, Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(1))), Some(1));
}

#[test]
fn failures_without_a_byte_sent_need_no_second_owner() {
    let (targets, now) = ([target("a", 1, 1), target("b", 2, 1)], Mono(0));
    let chosen = |failures: &[u32]| {
        let mut breakers = Breakers::default();
        for unsent in failures {
            let failure =
                FailedAttempt { caller: Caller::new(1, 1), live: SeveralOwners, unsent: *unsent, trial: false };
            breakers.failed(&targets[0], failure, &targets[0].limits, now);
        }
        breakers.choose(&targets, &ask(0, Mono(1)))
    };
    assert_eq!(chosen(&[1, 1]), Some(1), "two refused connections");
    assert_eq!(chosen(&[1, 0, 0, 0]), Some(0), "one of them, and failures that the only caller can cause");
    assert_eq!(chosen(&[u32::MAX]), Some(1), "one connection that timed out");
    let none = UpstreamLimits { breaker_failures: 0, ..limits() };
    let failure = FailedAttempt { caller: Caller::new(1, 1), live: One, unsent: u32::MAX, trial: false };
    assert_eq!(Breakers::default().failed(&targets[0], failure, &none, now), None, "turned off");
}

#[test]
fn only_target_is_tried_once_a_second_while_its_provider_asks_to_wait() {
    let (targets, mut breakers) = ([target("a", 1, 1)], Breakers::default());
    let asked = |wait| RateLimitHeaders { wait: Some(Duration::from_secs(wait)), ..NOTHING };
    breakers.rest(&targets[0], &asked(20), None, false, Mono(0));
    assert_eq!(breakers.next_change(&targets, Mono(0)), Mono(SECOND), "waiting requests are looked at then, too");
    let tried: Vec<u64> = (0..200)
        .filter(|at| {
            let choice = ask(0, Mono(at * SECOND / 10));
            let chosen = breakers.choose(&targets, &choice);
            chosen.is_some_and(|chosen| breakers.begin(&targets, chosen, &choice).is_some())
        })
        .collect();
    assert_eq!(tried, (1..20).map(|second| second * 10).collect::<Vec<_>>());
    let pair = [target("a", 1, 1), target("b", 2, 1)];
    let first = ask(0, Mono(0));
    breakers.rest(&pair[1], &asked(30), None, false, Mono(0));
    breakers.rest(&pair[0], &asked(20), None, false, Mono(0));
    assert_eq!(breakers.choose(&pair, &first), None, "none of several, either");
    assert_eq!(breakers.choose(&pair, &ask(0, Mono(SECOND))), Some(0), "the one that is there again first");
    breakers.begin(&pair, 0, &ask(0, Mono(SECOND)));
    assert!(breakers.served(&pair[0], true, Mono(SECOND)), "an answer ends the cool-down");
    assert_eq!(breakers.choose(&pair, &ask(0, Mono(SECOND))), Some(0));
    breakers.rest(&pair[0], &asked(20), None, false, Mono(SECOND));
    breakers.rest(&pair[1], &asked(30), None, false, Mono(SECOND));
    let seek = |breakers: &mut Breakers, at: u64| {
        breakers.seek(&pair, &ask(0, Mono(at * SECOND)), Stage::New, Mono((at + 9) * SECOND))
    };
    assert_eq!(seek(&mut breakers, 1), Seek::None, "waiting in a queue could not help");
    assert_eq!([seek(&mut breakers, 2), seek(&mut breakers, 12)], [Seek::Found(0), Seek::Wait]);
    let mut unsaid = Breakers::default();
    unsaid.rest(&targets[0], &NOTHING, None, false, Mono(0));
    assert_eq!(unsaid.choose(&targets, &first), Some(0), "a cool-down of unknown length holds nobody back");
}

#[test]
fn success_in_between_resets_failures() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1], SeveralOwners, Mono(0));
    breakers.succeeded(&targets[0], false, Mono(0));
    fail(&mut breakers, &targets[0], &[2], SeveralOwners, Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(1))), Some(0));
}

#[test]
fn last_available_target_does_not_cool_down() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1, 2], SeveralOwners, Mono(0));
    fail(&mut breakers, &targets[1], &[1, 2], SeveralOwners, Mono(10));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(20))), Some(1), "a cools down, b was available last");
    fail(&mut breakers, &targets[1], &[1], SeveralOwners, Mono(20));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(99))), Some(1));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(100))), Some(0), "a has rested");
}

/// True for each target that is cooling down.
fn states(breakers: &Breakers) -> impl Iterator<Item = bool> {
    (0..).map_while(|index| breakers.state(index, Mono(1)).map(|(_, cooling)| cooling))
}

#[test]
fn ends_are_counted_within_a_bound() {
    let (one, mut breakers) = (target("a", 1, 1), Breakers::default());
    breakers.served(&one, false, Mono(0));
    (500..600).for_each(|status| breakers.ended(&one, AttemptEnd::Status(status)));
    breakers.ended(&one, AttemptEnd::Status(500));
    let (counts, _) = breakers.state(0, Mono(0)).unwrap();
    let sum: u64 = counts.ends().map(|(_, count)| count).sum();
    assert_eq!((counts.served, counts.ends().count(), sum), (1, ENDS_MAX + 2, 102));
    let words: Vec<String> = counts.ends().take(2).map(|(end, count)| format!("{end} {count}")).collect();
    assert_eq!(words, ["200 1", "500 2"]);
}

#[test]
fn if_all_cool_down_the_first_to_recover_is_used() {
    let (targets, mut breakers) = ([target("a", 1, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1, 2], SeveralOwners, Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(1))), Some(0));
    assert_eq!(states(&breakers).filter(|cooling| *cooling).count(), 1);
}

const NOTHING: RateLimitHeaders = RateLimitHeaders { wait: None, left: [None; ALLOWANCES], is_exhausted: false };

/// Headers of a provider without remaining requests for `seconds`.
fn spent(seconds: u64) -> RateLimitHeaders {
    let left = [Some((0, Duration::from_secs(seconds))), None, None, None];
    RateLimitHeaders { left, ..NOTHING }
}

fn account(label: &str, credential: usize) -> Target {
    Target { credential, ..target(label, 1, 1) }
}

const SECOND: u64 = 1_000_000;

#[test]
fn server_failure_affects_all_credentials_and_lack_of_capacity_one() {
    let targets = [account("p#1/m", 0), account("p#2/m", 1), target("q/m", 2, 1)];
    let mut breakers = Breakers::default();
    fail(&mut breakers, &targets[0], &[1], One, Mono(0));
    fail(&mut breakers, &targets[1], &[1], One, Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(1))), Some(2));
    let now = Mono(SECOND);
    assert!(breakers.succeeded(&targets[1], false, now));
    assert_eq!(breakers.choose(&targets, &ask(0, now)), Some(0));
    let retry_after = |wait| RateLimitHeaders { wait: Some(Duration::from_secs(wait)), ..NOTHING };
    assert_eq!(breakers.rest(&targets[0], &retry_after(20), None, false, now), Some(Duration::from_secs(20)));
    assert_eq!(breakers.rest(&targets[0], &retry_after(20), None, false, now), None, "it rested before");
    assert_eq!(breakers.choose(&targets, &ask(0, now)), Some(1));
    assert_eq!(breakers.choose(&targets, &ask(0b10, now)), Some(2));
    breakers.rest(&targets[1], &retry_after(30), None, false, now);
    breakers.rest(&targets[2], &retry_after(10), None, false, now);
    assert_eq!(breakers.choose(&targets, &ask(0, now)), None, "all were just tried");
    let soon = Mono(2 * SECOND);
    assert_eq!(breakers.choose(&targets, &ask(0, soon)), Some(2), "all rest: the one that is there again first");
    assert_eq!(breakers.choose(&targets, &ask(0b100, soon)), None, "but no second one");
    assert_eq!(breakers.there_again(&targets, 0, &[1; ALLOWANCES], 0, now), Some(Mono(11 * SECOND)));
    assert_eq!(breakers.there_again(&targets, 3, &[1; ALLOWANCES], 0, now), Some(Mono(11 * SECOND)), "they all rest");
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(21 * SECOND))), Some(0));
    let begun = breakers.begin(&targets, 1, &ask(0, Mono(21 * SECOND)));
    assert_eq!(begun.unwrap().begun, Begun { trial: false, cooling: true });
    assert!(!breakers.served(&targets[1], false, Mono(22 * SECOND)), "what was sent before the rest ends none");
    assert!(breakers.served(&targets[1], true, Mono(22 * SECOND)), "what was sent in spite of it does");
    let later = Mono(22 * SECOND);
    assert_eq!(breakers.there_again(&targets, 0, &[1; ALLOWANCES], 0, later), Some(later), "one is there");
    assert_eq!(
        breakers.there_again(&targets, 7, &[1; ALLOWANCES], 0, later),
        None,
        "they have failed: nobody knows when"
    );
}

#[test]
fn a_refused_credential_cools_down_for_all_models_until_it_changes() {
    let targets = [account("p#1/m", 0), account("p#2/m", 1)];
    let others = [account("p#1/n", 0), account("p#2/n", 1)];
    let mut breakers = Breakers::default();
    assert_eq!(breakers.refused(&targets[0], None, false, Mono(0)), Some(Duration::from_secs(60)));
    assert_eq!(breakers.choose(&others, &ask(0, Mono(1))), Some(1));
    assert_eq!(states(&breakers).collect::<Vec<_>>(), [true, true, false]);
    assert!(breakers.credential_renewed("p#1") && !breakers.credential_renewed("p#1"));
    assert_eq!(breakers.choose(&others, &ask(0, Mono(1))), Some(0));
}

#[test]
fn target_with_insufficient_limits_is_skipped_if_another_is_free() {
    let targets = [account("p#1/m", 0), account("p#2/m", 1)];
    let mut breakers = Breakers::default();
    let said = |requests: u64| RateLimitHeaders {
        left: [Some((requests, Duration::from_secs(60))), None, None, None],
        ..NOTHING
    };
    let needs = [1; ALLOWANCES];
    breakers.begin(&targets, 0, &ask(0, Mono(0)));
    breakers.begin(&targets, 0, &ask(0, Mono(0)));
    breakers.heard(&targets[0], &needs, Some(&said(2)), Mono(0));
    assert!(breakers.is_free(&targets[0], &Choice { needs, ..ask(0, Mono(0)) }), "two are left, and one is on its way");
    breakers.begin(&targets, 0, &ask(0, Mono(0)));
    assert!(!breakers.is_free(&targets[0], &Choice { needs, ..ask(0, Mono(0)) }));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(0))), Some(1));
    breakers.heard(&targets[1], &[0; ALLOWANCES], Some(&spent(30)), Mono(0));
    assert_eq!(breakers.choose(&targets, &ask(0, Mono(0))), Some(1), "none is free: the one that is first again");
    assert!(breakers.is_free(&targets[1], &Choice { needs, ..ask(0, Mono(30 * SECOND)) }));
}

#[test]
fn keys_of_one_owner_cannot_open_a_breaker_for_others() {
    let (targets, now) = ([target("a", 1, 1), target("b", 2, 1)], Mono(0));
    let chosen = |callers: [(u64, u64); 2], live: LiveKeys| {
        let mut breakers = Breakers::default();
        for (key, owner) in callers.into_iter().cycle().take(8) {
            let failure = FailedAttempt { caller: Caller::new(key, owner), live, unsent: 0, trial: false };
            breakers.failed(&targets[0], failure, &targets[0].limits, now);
        }
        breakers.choose(&targets, &ask(0, Mono(1)))
    };
    assert_eq!(chosen([(1, 7), (2, 7)], SeveralOwners), Some(0), "two keys of one group");
    assert_eq!(chosen([(1, 7), (2, 8)], SeveralOwners), Some(1), "of two");
    assert_eq!(chosen([(1, 7), (2, 2)], SeveralOwners), Some(1), "of one and of none");
    assert_eq!(chosen([(1, 7), (2, 7)], OneOwner), Some(1), "all keys are of one group");
    assert_eq!(chosen([(1, 7), (1, 7)], OneOwner), Some(0), "one key of several");
}

#[test]
fn a_credential_cools_down_after_refusals_of_two_owners_without_success() {
    let target = account("p#1/m", 0);
    let minute = Some(Duration::from_secs(60));
    let (one, twin, two) = (Caller::new(1, 7), Caller::new(2, 7), Caller::new(3, 8));
    let mut breakers = Breakers::default();
    for caller in [one, twin, one] {
        assert_eq!(breakers.refused(&target, Some(caller), false, Mono(0)), None);
    }
    breakers.succeeded(&target, false, Mono(0));
    assert_eq!(breakers.refused(&target, Some(two), false, Mono(0)), None, "it has served since");
    assert_eq!(breakers.refused(&target, Some(one), false, Mono(0)), minute);
    let mut alone = Breakers::default();
    assert_eq!(alone.refused(&target, Some(one), false, Mono(0)), None);
    assert_eq!(alone.refused(&target, None, false, Mono(0)), minute, "a wrong credential is nobody's request");
}

fn kept(number: u64) -> Choice {
    Choice { among: Among::Kept(number), ..ask(0, Mono(0)) }
}

/// Number of 20 000 conversations for each of `targets`.
fn shares(targets: &[Target], breakers: &mut Breakers) -> Vec<usize> {
    let mut shares = vec![0; targets.len()];
    (0..20_000).for_each(|session| shares[breakers.choose(targets, &kept(mix(9, session))).unwrap()] += 1);
    shares
}

#[test]
fn conversation_stays_on_its_target_and_weights_apply() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let targets: Vec<Target> = names.iter().map(|name| target(name, 1, 1)).collect();
    let mut breakers = Breakers::default();
    let even = shares(&targets, &mut breakers);
    for session in 0..2_000 {
        let number = mix(9, session);
        let lots = targets.iter().map(|target| lot(number, target.seed, target.share as f64));
        let least = lots.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(at, _)| at);
        assert_eq!(breakers.choose(&targets, &kept(number)), least, "as where weights differ");
    }
    assert!(even.iter().all(|share| (2_250..2_750).contains(share)), "{even:?}");
    let home: Vec<usize> =
        (0..2_000).map(|session| breakers.choose(&targets, &kept(mix(9, session))).unwrap()).collect();
    for (session, home) in home.iter().enumerate() {
        let choice = kept(mix(9, session as u64));
        breakers.begin(&targets, *home, &choice);
        assert_eq!(breakers.choose(&targets, &choice), Some(*home), "however busy it is");
        breakers.left(&targets[*home]);
    }
    // A removed target loses only its own conversations, and gets them back when it returns.
    breakers.rest(
        &targets[3],
        &RateLimitHeaders { wait: Some(Duration::from_secs(10)), ..NOTHING },
        None,
        false,
        Mono(0),
    );
    for (session, home) in home.iter().enumerate() {
        let now = breakers.choose(&targets, &kept(mix(9, session as u64))).unwrap();
        assert!(if *home == 3 { now != 3 } else { now == *home }, "{session}");
    }
    let fewer: Vec<Target> = targets.iter().filter(|target| *target.label != *"d").cloned().collect();
    for (session, home) in home.iter().enumerate().filter(|(_, home)| **home != 3) {
        let now = Breakers::default().choose(&fewer, &kept(mix(9, session as u64))).unwrap();
        assert_eq!(fewer[now].label, targets[*home].label, "the same in another process, without the one that is gone");
    }
    let weighted = [target("a", 1, 5), target("b", 1, 3), target("c", 1, 2)];
    let by_weight = shares(&weighted, &mut Breakers::default());
    for (share, expected) in by_weight.iter().zip([10_000, 6_000, 4_000]) {
        assert!(share.abs_diff(expected) < 400, "{by_weight:?}");
    }
    let later = [target("a", 1, 1), target("b", 2, 1)];
    assert_eq!(shares(&later, &mut Breakers::default()), [20_000, 0], "only among equals");
}

#[test]
fn shortcut_for_a_conversation_selects_the_same_target() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    for case in 0..2_000 {
        let draw = |what: u64, of: u64| mix(mix(11, case), what) % of;
        let targets: Vec<Target> = (0..names.len() as u64)
            .map(|at| Target {
                slots: 1,
                ..target(names[at as usize], 1 + (at / 4) as u32, 1 + draw(99, 2) as u32 * at as u32)
            })
            .collect();
        let mut breakers = Breakers::default();
        for (at, target) in targets.iter().enumerate() {
            match draw(at as u64, 4) {
                0 => fail(&mut breakers, target, &[1, 2], SeveralOwners, Mono(0)),
                1 => _ = breakers.rest(target, &spent(9), None, false, Mono(0)),
                2 => _ = breakers.begin(&targets, at, &kept(0)),
                _ => {}
            }
        }
        let choice = kept(mix(9, case));
        let equals = breakers.equals(&targets, &choice);
        let among_all = (equals != 0).then(|| breakers.choose_among(&targets, equals, choice.among)).flatten();
        if among_all.is_some() {
            assert_eq!(breakers.choose(&targets, &choice), among_all, "{case}");
        }
        assert!(breakers.kept(&targets, &choice).is_none_or(|kept| Some(kept) == among_all), "{case}");
    }
}

#[test]
fn least_busy_target_has_the_fewest_in_flight_per_weight() {
    let targets = [target("a", 1, 1), target("b", 1, 2), target("c", 1, 1)];
    let mut breakers = Breakers::default();
    let choice = Choice { among: Among::LeastBusy, ..ask(0, Mono(0)) };
    let pick = |breakers: &mut Breakers| {
        let chosen = breakers.choose(&targets, &choice).unwrap();
        breakers.begin(&targets, chosen, &choice);
        chosen
    };
    let picks: Vec<usize> = (0..8).map(|_| pick(&mut breakers)).collect();
    assert_eq!(picks, [1, 0, 1, 2, 1, 0, 1, 2]);
    breakers.left(&targets[2]);
    breakers.left(&targets[2]);
    assert_eq!((pick(&mut breakers), pick(&mut breakers), breakers.busy()), (2, 2, 8));
    let flight = breakers.begin(&targets, 0, &choice).unwrap();
    breakers.recount([(&targets[0], &flight)].into_iter());
    assert_eq!((breakers.busy(), pick(&mut breakers)), (1, 1));
}

#[test]
fn requests_in_flight_never_exceed_slots_of_a_target() {
    let full =
        |label: &str, credential, priority| Target { slots: 2, ..Target { priority, ..account(label, credential) } };
    let targets = [full("p#1/m", 0, 1), full("p#2/m", 1, 1), target("q/m", 2, 1)];
    let mut breakers = Breakers::default();
    for expected in [0, 1, 2, 2] {
        assert_eq!(breakers.choose(&targets, &ask(0, Mono(0))), Some(expected), "one of lower priority has a place");
        breakers.begin(&targets, expected, &ask(0, Mono(0)));
    }
    assert_eq!(breakers.choose(&targets[..2], &ask(0, Mono(0))), None);
    assert_eq!(breakers.choose(&targets[..1], &ask(0, Mono(0))), None, "the only one, too");
    breakers.rest(&targets[0], &spent(9), None, false, Mono(0));
    breakers.rest(&targets[1], &spent(8), None, false, Mono(0));
    let later = ask(0, Mono(SECOND));
    assert_eq!(
        breakers.choose(&targets[..2], &later),
        None,
        "a target that cools down is used only if it has a free slot"
    );
    breakers.left(&targets[0]);
    assert_eq!(breakers.choose(&targets[..2], &later), Some(1));
    fail(&mut breakers, &targets[0], &[1, 2], SeveralOwners, Mono(SECOND));
    breakers.begin(&targets, 1, &later);
    assert_eq!(breakers.choose(&targets[..2], &later), None, "nor one that fails");
}

#[test]
fn requests_wait_for_slots_and_short_cool_downs_but_not_failures() {
    let bounded = |label| Target { slots: 1, concurrency: 1, ..target(label, 1, 1) };
    let (targets, mut breakers) = ([bounded("a"), bounded("b")], Breakers::default());
    let seek = |breakers: &mut Breakers, tried: u64, stage: Stage, now: u64, until: u64| {
        breakers.seek(&targets, &ask(tried, Mono(now)), stage, Mono(until))
    };
    let stages = [Stage::New, Stage::Failed, Stage::Waits];
    for (target, _) in targets.iter().enumerate() {
        assert_eq!(seek(&mut breakers, 0, Stage::New, 0, 9), Seek::Found(target));
        breakers.begin(&targets, target, &ask(0, Mono(0)));
    }
    assert!(stages.iter().all(|stage| seek(&mut breakers, 0, *stage, 0, 9) == Seek::Wait), "both are full");
    assert!(!breakers.is_any_open(&targets, Mono(0)));
    assert_eq!(breakers.next_change(&targets, Mono(0)), Mono::NEVER, "time alone brings none");
    assert!(!breakers.take_eased());
    breakers.left(&targets[0]);
    assert!(breakers.take_eased() && !breakers.take_eased());
    assert_eq!((seek(&mut breakers, 0, Stage::Waits, 0, 9), breakers.busiest()), (Seek::Found(0), 1));
    assert_eq!(seek(&mut breakers, 1, Stage::Waits, 0, 9), Seek::Wait, "that one has been tried");
    assert!(breakers.is_any_open(&targets, Mono(0)));
    // The free target begins to cool down, for a second.
    breakers.rest(&targets[0], &spent(1), None, false, Mono(0));
    let second = 1_000_000;
    assert_eq!(breakers.next_change(&targets, Mono(0)), Mono(second));
    assert!(stages.iter().all(|stage| seek(&mut breakers, 0, *stage, 0, 9) == Seek::Wait), "the other is full");
    breakers.left(&targets[1]);
    breakers.rest(&targets[1], &spent(2), None, false, Mono(0));
    assert!(stages.iter().all(|stage| seek(&mut breakers, 0, *stage, 0, second) == Seek::Wait));
    assert_eq!(seek(&mut breakers, 0, Stage::New, 0, second - 1), Seek::None, "both were just tried");
    assert_eq!(seek(&mut breakers, 0, Stage::Failed, 0, second - 1), Seek::None);
    assert_eq!(seek(&mut breakers, 0, Stage::Waits, 0, second - 1), Seek::Wait, "until its time is over");
    assert_eq!(seek(&mut breakers, 0, Stage::Waits, second, second), Seek::Found(0));
}

#[test]
fn if_all_fail_waiting_requests_use_the_last_available_target() {
    let (targets, mut breakers) = ([target("a", 1, 1), target("b", 1, 1)], Breakers::default());
    fail(&mut breakers, &targets[0], &[1, 2], SeveralOwners, Mono(0));
    fail(&mut breakers, &targets[1], &[1, 2], SeveralOwners, Mono(10));
    let seek = |breakers: &mut Breakers, tried: u64, stage: Stage| {
        breakers.seek(&targets, &ask(tried, Mono(20)), stage, Mono(1000))
    };
    assert_eq!([Stage::New, Stage::Waits].map(|stage| seek(&mut breakers, 0, stage)), [Seek::Found(1); 2]);
    assert!(breakers.is_any_open(&targets, Mono(20)));
    assert_eq!(seek(&mut breakers, 0, Stage::Failed), Seek::None, "failing over goes to none that fails");
    assert_eq!(breakers.next_change(&targets, Mono(20)), Mono(100));
}

#[test]
fn state_of_a_removed_target_is_kept_while_requests_are_in_flight() {
    let mut breakers = Breakers::default();
    let targets = ["a/x", "a/y", "b#1/x", "b#2/x"].map(|label| target(label, 1, 1));
    for at in 0..targets.len() {
        breakers.begin(&targets, at, &ask(0, Mono(0)));
        if at != 1 {
            breakers.left(&targets[at]);
        }
    }
    breakers.forget(|label| label == "b#2/x");
    let left: Vec<&str> = breakers.entries.iter().map(|entry| &*entry.label).collect();
    assert_eq!(left, ["a/y", "b#2/x"]);
    let places: Vec<&str> = breakers.breakers.iter().map(|breaker| &*breaker.place).collect();
    assert_eq!((places, breakers.busy(), breakers.busiest()), (vec!["a/y", "b/x"], 1, 1));
    breakers.left(&targets[1]);
    breakers.begin(&targets, 0, &ask(0, Mono(0)));
    assert_eq!((breakers.busy(), breakers.breakers.len()), (1, 3), "it is known again");
}

#[test]
fn target_without_an_answer_since_its_failures_stays_failing() {
    let (target, mut breakers) = (target("a/x", 1, 1), Breakers::default());
    let second = |second: u64| Unix(1_000_000 + second * 1000);
    let state = |breakers: &mut Breakers, at: u64| {
        let status = breakers.standing(&target, Mono(at * 1_000_000), second(at));
        (status.condition, status.trouble.map(|trouble| (trouble.since.0 - second(0).0) / 1000))
    };
    let refuse = |breakers: &mut Breakers, at: u64| {
        breakers.ended(&target, AttemptEnd::Status(503));
        breakers.troubled(&target, Caller::default(), Cause::status(503), second(at));
        breakers.rest(&target, &spent(9), None, false, Mono(at * 1_000_000));
    };
    refuse(&mut breakers, 0);
    assert_eq!(state(&mut breakers, 1), (TargetCondition::CoolingDown, Some(0)));
    assert_eq!(state(&mut breakers, 10), (TargetCondition::Failing, Some(0)), "its only attempt has failed");
    [100, 200, 5000].into_iter().for_each(|at| refuse(&mut breakers, at));
    assert_eq!(state(&mut breakers, 5001), (TargetCondition::CoolingDown, Some(0)), "a pause is no success");
    breakers.close_minutes(MINUTES as u64, second(5001));
    assert_eq!(state(&mut breakers, 90_000), (TargetCondition::Failing, Some(0)), "nor are minutes without requests");
    breakers.served(&target, false, Mono(90_001_000_000));
    assert_eq!(state(&mut breakers, 90_002).0, TargetCondition::Ok);
    // Among successes, few failures are not a state.
    refuse(&mut breakers, 90_010);
    refuse(&mut breakers, 90_011);
    assert_eq!(state(&mut breakers, 90_025).0, TargetCondition::Ok);
    refuse(&mut breakers, 90_026);
    assert_eq!(state(&mut breakers, 90_040), (TargetCondition::Failing, Some(90_010)));
}

#[test]
fn failed_connection_is_no_fault_of_its_caller() {
    let target = target("a/x", 1, 1);
    for (cause, alone) in [
        (Cause::status(503), true),
        (Cause::new("timeout", "idle"), true),
        (Cause::new("timeout", "connect"), false),
        (Cause::new("connect", "refused"), false),
    ] {
        let mut breakers = Breakers::default();
        breakers.troubled(&target, Caller::new(1, 1), cause, Unix(1_000_000));
        let callers = breakers.standing(&target, Mono(0), Unix(1_000_000)).trouble.unwrap().callers;
        assert_eq!((!callers.several_keys, !callers.several_owners), (alone, alone), "{cause:?}");
    }
}

#[test]
fn callers_are_those_of_all_failures_since_the_state_began() {
    let (target, mut breakers) = (target("a/x", 1, 1), Breakers::default());
    let fail = |breakers: &mut Breakers, key: u64, minute: u64| {
        breakers.ended(&target, AttemptEnd::Status(500));
        breakers.troubled(&target, Caller::new(key, key), Cause::status(500), Unix(minute * 60_000));
    };
    fail(&mut breakers, 1, 10);
    (0..2 * MINUTES as u64).for_each(|minute| {
        fail(&mut breakers, 2, 10 + minute);
        breakers.close_minutes(1, Unix((11 + minute) * 60_000));
    });
    let status = breakers.standing(&target, Mono(0), Unix(1_200_000));
    let trouble = status.trouble.unwrap();
    assert_eq!((trouble.since, trouble.callers.several_keys), (Unix(600_000), true), "the first has met it, too");
    breakers.served(&target, false, Mono(0));
    fail(&mut breakers, 2, 60);
    let trouble = breakers.standing(&target, Mono(0), Unix(3_600_000)).trouble.unwrap();
    assert_eq!((trouble.since, trouble.callers.several_keys), (Unix(3_600_000), false), "another trouble");
}

#[test]
fn cause_of_a_target_is_the_one_of_most_failures() {
    let (target, mut breakers) = (target("a/x", 1, 1), Breakers::default());
    let second = |second: u64| Unix(1_000_000 + second * 1000);
    let fail = |breakers: &mut Breakers, cause: Cause, at: u64| {
        breakers.ended(&target, AttemptEnd::Status(500));
        breakers.troubled(&target, Caller::default(), cause, second(at));
    };
    let cause = |breakers: &mut Breakers| breakers.standing(&target, Mono(0), second(400)).failure;
    (0..7).for_each(|at| fail(&mut breakers, Cause::status(500), at));
    breakers.unanswered(&target, Caller::default(), second(20), second(30));
    assert_eq!(cause(&mut breakers), Some((second(6), Cause::status(500))), "a client that leaves is no cause");
    let reset = Cause::new("reset", "");
    (40..46).for_each(|at| fail(&mut breakers, reset.after(at, "events"), at));
    assert_eq!(cause(&mut breakers), Some((second(45), Cause::status(500))), "seven, against six after other events");
    fail(&mut breakers, reset.after(1, "events"), 46);
    assert_eq!(cause(&mut breakers), Some((second(46), reset.after(1, "events"))), "of equal ones the newest");
    // Another minute, after which the earlier failures are out of the window.
    breakers.close_minutes(MINUTES as u64 - 1, second(300));
    fail(&mut breakers, Cause::new("dns", "no such name"), 301);
    assert_eq!(cause(&mut breakers), Some((second(301), reset.after(1, "events"))));
    breakers.close_minutes(1, second(302));
    assert_eq!(cause(&mut breakers), Some((second(301), Cause::new("dns", "no such name"))));
    breakers.close_minutes(MINUTES as u64, second(400));
    assert_eq!(cause(&mut breakers), Some((second(301), Cause::new("dns", "no such name"))), "nothing later is known");
    (0..100).for_each(|status| fail(&mut breakers, Cause::status(500 + status), 500));
    assert_eq!(breakers.entries[0].history.causes.len(), history::CAUSES_MAX);
}

#[test]
fn cool_down_has_its_beginning_and_its_own_cause() {
    let targets = [target("a/x", 1, 1), target("a/y", 1, 1)];
    let (mut breakers, second) = (Breakers::default(), Duration::from_secs(1));
    let at = |seconds: u64| Unix(1_000_000 + seconds * 1000);
    // A server error of its own, then a refused credential, which concerns all of its targets.
    breakers.troubled(&targets[1], Caller::default(), Cause::status(500), at(1));
    breakers.troubled(&targets[0], Caller::default(), Cause::status(401), at(5));
    breakers.refused(&targets[0], None, false, Mono(0).after(second * 5));
    let rest = |breakers: &mut Breakers, target: &Target| {
        let rest = breakers.standing(target, Mono(0).after(second * 9), at(9)).cool_down.unwrap();
        (rest.begun, rest.cause, rest.why)
    };
    let (begun, why) = (Mono(0).after(second * 5), "the provider refuses the credential");
    assert_eq!(rest(&mut breakers, &targets[0]), (begun, Some(Cause::status(401)), why));
    assert_eq!(rest(&mut breakers, &targets[1]), (begun, None, why), "not its own server error");
    // A longer one goes on from the beginning of the first.
    breakers.refused(&targets[0], None, true, Mono(0).after(second * 7));
    assert_eq!(rest(&mut breakers, &targets[0]).0, begun);
}

#[test]
fn target_partly_fails_from_a_fifth_of_its_attempts_on() {
    let (target, mut breakers) = (target("a/x", 1, 1), Breakers::default());
    let second = |second: u64| Unix(1_000_000 + second * 1000);
    let state = |breakers: &mut Breakers, at: u64| {
        let status = breakers.standing(&target, Mono(at * 1_000_000), second(at));
        (status.condition, status.trouble.map(|trouble| (trouble.since.0 - second(0).0) / 1000))
    };
    let answer = |breakers: &mut Breakers, count: u64, at: u64| {
        for _ in 0..count {
            breakers.served(&target, false, Mono(at * 1_000_000));
        }
    };
    let fail = |breakers: &mut Breakers, at: u64| {
        breakers.ended(&target, AttemptEnd::Status(500));
        breakers.troubled(&target, Caller::default(), Cause::status(500), second(at));
    };
    (0..4).for_each(|at| {
        fail(&mut breakers, at);
        answer(&mut breakers, 5, at);
    });
    assert_eq!(state(&mut breakers, 4), (TargetCondition::Ok, Some(0)), "four failures are too few");
    fail(&mut breakers, 5);
    assert_eq!(state(&mut breakers, 5), (TargetCondition::PartlyFailing, Some(0)), "5 of 25");
    answer(&mut breakers, 1, 6);
    assert_eq!(state(&mut breakers, 6).0, TargetCondition::Ok, "5 of 26");
    fail(&mut breakers, 7);
    fail(&mut breakers, 50);
    answer(&mut breakers, 4, 51);
    assert_eq!(state(&mut breakers, 100), (TargetCondition::PartlyFailing, Some(0)), "few requests show no recovery");
    answer(&mut breakers, 1, 101);
    assert_eq!(state(&mut breakers, 101).0, TargetCondition::Ok, "five answers since the last failure");
    // Attempts that clients have left count, too.
    (0..6).for_each(|at| breakers.unanswered(&target, Caller::default(), second(200 + at), second(205 + at)));
    assert_eq!(state(&mut breakers, 211), (TargetCondition::Hung, Some(200)), "six without an answer between them");
    let none_since = |breakers: &mut Breakers| breakers.standing(&target, Mono(0), second(212)).none_since;
    assert_eq!(none_since(&mut breakers), None);
    answer(&mut breakers, 1, 212);
    assert_eq!(state(&mut breakers, 212), (TargetCondition::PartlyFailing, Some(200)), "13 of 40");
    assert_eq!(none_since(&mut breakers), Some(second(210)));
    breakers.close_minutes(u64::MAX, second(300));
    assert_eq!(state(&mut breakers, 600).0, TargetCondition::NoTraffic);
}

#[test]
fn target_that_answers_again_is_not_failing_whatever_its_last_minutes_were() {
    let (target, mut breakers) = (target("a/x", 1, 1), Breakers::default());
    let second = |second: u64| Unix(1_000_000 + second * 1000);
    let attempt = |breakers: &mut Breakers, at: u64, fails: bool| {
        if fails {
            breakers.ended(&target, AttemptEnd::Status(500));
            breakers.troubled(&target, Caller::default(), Cause::status(500), second(at));
        } else {
            breakers.served(&target, false, Mono(at * 1_000_000));
        }
        breakers.standing(&target, Mono(at * 1_000_000), second(at)).condition
    };
    attempt(&mut breakers, 0, false);
    let states = (1..=37).map(|at| attempt(&mut breakers, at, true)).collect::<Vec<_>>();
    assert_eq!(states.last(), Some(&TargetCondition::Failing));
    assert_eq!(attempt(&mut breakers, 38, false), TargetCondition::PartlyFailing, "37 of 39");
    assert_eq!(attempt(&mut breakers, 39, true), TargetCondition::Failing, "it has failed again");
    (40..44).for_each(|at| assert_eq!(attempt(&mut breakers, at, false), TargetCondition::PartlyFailing));
    assert_eq!(
        attempt(&mut breakers, 69, false),
        TargetCondition::Ok,
        "five answers, and 30 seconds without a failure"
    );
}

#[test]
fn finding_a_target_takes_constant_time() {
    let targets: Vec<Target> = (0..1000).map(|number| target(&format!("p{number}/m"), 1, 1)).collect();
    let mut breakers = Breakers::default();
    targets
        .iter()
        .for_each(|target| assert!(breakers.is_free(target, &Choice { needs: [0; ALLOWANCES], ..ask(0, Mono(0)) })));
    // Another configuration has other labels for the same targets.
    let renewed: Vec<Target> = (0..1000).map(|number| target(&format!("p{number}/m"), 1, 1)).collect();
    let looked = std::cell::Cell::new(0);
    for (number, target) in targets.iter().chain(&renewed).enumerate() {
        let (label, place) = (&target.label, without_credential(&target.label));
        let looks = |same: bool| {
            looked.set(looked.get() + 1);
            same
        };
        let same = |index: u32| looks(breakers.entries[index as usize].label == *label);
        assert_eq!(breakers.by_label.find(target.seed, same), Some(number as u32 % 1000));
        let same = |index: u32| looks(*breakers.breakers[index as usize].place == *place);
        assert_eq!(breakers.by_place.find(name_hash(&place), same), Some(number as u32 % 1000));
        let same = |index: u32| looks(*breakers.accounts[index as usize].name == *account_of(label));
        assert_eq!(breakers.by_account.find(name_hash(account_of(label)), same), Some(number as u32 % 1000));
    }
    assert!(looked.get() < 12_000, "{} names compared for 6000 searches", looked.get());
    // Some targets are gone.
    fail(&mut breakers, &targets[7], &[1, 2], SeveralOwners, Mono(0));
    assert!(!breakers.is_free(&renewed[7], &Choice { needs: [0; ALLOWANCES], ..ask(0, Mono(1)) }));
    breakers.forget(|label| label == "p7/m");
    assert!(!breakers.is_free(&renewed[7], &Choice { needs: [0; ALLOWANCES], ..ask(0, Mono(1)) }));
    assert_eq!(breakers.entries.len(), 1);
}

#[test]
fn reading_the_status_of_unused_targets_adds_no_state() {
    let (targets, mut breakers) =
        (["p#1/m", "p#2/m", "p#2/n", "q/m"].map(|label| target(label, 1, 1)), Breakers::default());
    let former = target("p#1/m", 1, 1);
    fail(&mut breakers, &former, &[1, 2], SeveralOwners, Mono(0));
    let read = |breakers: &mut Breakers, at: usize| {
        let status = breakers.standing(&targets[at], Mono(1), Unix(1_000_000));
        (status.condition, status.in_a_row, breakers.sums(&targets[at]).map_or([0; 2], |(_, attempts, _)| attempts))
    };
    let (cooling, idle) = (TargetCondition::CoolingDown, TargetCondition::NoTraffic);
    assert_eq!(read(&mut breakers, 0), (cooling, 2, [0; 2]), "another configuration's label");
    assert_eq!(read(&mut breakers, 1), (cooling, 2, [0; 2]), "its server fails with another credential");
    assert_eq!([2, 3].map(|at| read(&mut breakers, at)), [(idle, 0, [0; 2]); 2]);
    assert!(Arc::ptr_eq(&breakers.entries[0].label, &former.label), "a read changes no label");
    // The credential of another model is refused.
    breakers.refused(&targets[1], None, false, Mono(0));
    assert_eq!(read(&mut breakers, 2), (cooling, 0, [0; 2]));
    assert_eq!((breakers.entries.len(), breakers.breakers.len(), breakers.accounts.len()), (2, 1, 2));
}
