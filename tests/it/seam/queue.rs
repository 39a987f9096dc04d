//! Queue for a slot: with a single slot, one key sends two hundred requests concurrently and another sends one per
//! second; and clients disconnect while they wait.

use super::rig::{Rig, request};
use std::collections::BTreeMap;
use tollgate::base::seam::Ending;

/// Time that the provider takes for a request, and time between two checks, in milliseconds.
const SERVICE: u64 = 400;
const TICK: u64 = 50;

const ANSWER: &str = "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"\"}}],\
                      \"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}";

/// Returns a gateway whose server has this number of slots.
fn rig(slots: usize) -> Rig {
    let targets = format!("targets = [{{ provider = \"up\", model = \"m\", concurrency = {slots} }}]");
    let lines = [
        ("server", "max_buffered = \"16MiB\""),
        ("upstream", "request_timeout = \"1h\""),
        ("model small", "queue = { max = 1000, wait = \"30m\" }"),
        ("model small", &targets),
    ];
    Rig::with(4, &lines)
}

/// Sends a request of a key from a new client.
fn ask(rig: &mut Rig, client: &str, key: &str) {
    let (head, body) = request(&rig.keys.texts[key].clone(), 200, false);
    rig.send(client, format!("{head}{body}"));
}

/// Advances time by one tick and answers the requests that have run for `SERVICE`. Checks that at most `slots` run
/// concurrently.
fn serve(rig: &mut Rig, since: &mut BTreeMap<String, u64>, now: u64, slots: usize) {
    let asked = rig.asked();
    assert!(asked.len() <= slots, "{asked:?}");
    since.retain(|label, _| asked.contains(label));
    for label in asked {
        if now - *since.entry(label.clone()).or_insert(now) >= SERVICE {
            since.remove(&label);
            let length = ANSWER.len();
            rig.answer(&label, &format!("HTTP/1.1 200 X\r\ncontent-length: {length}\r\n\r\n{ANSWER}"));
        }
    }
}

/// Returns the queueing time that an answer reports, in milliseconds.
fn waited(answer: &str) -> Option<u64> {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split("x-queue-wait-ms: ").nth(1)?.split("\r\n").next()?.parse().ok()
}

#[test]
fn burst_of_one_key_delays_another_by_at_most_two_service_times() {
    let (mut rig, mut since) = (rig(1), BTreeMap::new());
    (0..200).for_each(|n| ask(&mut rig, &format!("a{n}"), "k0"));
    let mut asked = 0;
    for now in (0..110_000).step_by(TICK as usize) {
        if now % 1000 == 0 {
            ask(&mut rig, &format!("b{}", now / 1000), "k1");
            asked += 1;
        }
        serve(&mut rig, &mut since, now, 1);
        rig.wait(TICK);
    }
    let mut waits: Vec<u64> = (0..asked).filter_map(|n| waited(&rig.got(&format!("b{n}")))).collect();
    waits.sort_unstable();
    let (most, p95) = (*waits.last().unwrap(), waits[waits.len() * 95 / 100]);
    println!("of {} requests one a second the 95th percentile waited {p95} ms, the longest {most} ms", waits.len());
    assert!(waits.len() > 100 && p95 <= 2 * SERVICE && most <= 2 * SERVICE + 2 * TICK, "{waits:?}");
    let left = (0..200).filter(|n| rig.got(&format!("a{n}")).is_empty()).count();
    assert!((1..80).contains(&left), "the first key was served too, and still has requests waiting: {left}");
}

#[test]
fn client_that_leaves_is_dequeued_immediately() {
    let (mut rig, mut since) = (rig(4), BTreeMap::new());
    for n in 0..100 {
        ask(&mut rig, &format!("c{n}"), &format!("k{}", n % 4));
    }
    assert_eq!(rig.world.gateway.vitals().queued, 96);
    rig.wait(100);
    for n in (4..100).step_by(2) {
        let label = format!("c{n}");
        let before = rig.world.gateway.vitals();
        rig.world.finish(&label, Ending::Fin).unwrap();
        // No time has passed since the client left.
        let after = rig.world.gateway.vitals();
        assert_eq!((after.queued, after.holds), (before.queued - 1, before.holds - 1));
        assert!(after.buffered < before.buffered);
    }
    for now in (0..20_000).step_by(TICK as usize) {
        serve(&mut rig, &mut since, now, 4);
        rig.wait(TICK);
    }
    let served = (0..100).filter(|n| rig.got(&format!("c{n}")).starts_with("HTTP/1.1 200")).count();
    let vitals = rig.world.gateway.vitals();
    assert_eq!((served, vitals.queued, vitals.flying), (52, 0, 0));
}
