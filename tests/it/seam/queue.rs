//! Queue for a slot: one slot, one key with two hundred requests at once and another with one a second; and clients
//! that leave.

use super::rig::{Rig, request};
use std::collections::BTreeMap;
use tollgate::base::seam::Ending;

/// Time of the provider for a request, and time between two checks, in milliseconds.
const SERVICE: u64 = 400;
const TICK: u64 = 50;

const ANSWER: &str = "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"\"}}],\
                      \"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}";

/// A gateway before a server with so many slots.
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

/// Sends one more request of a key from a new client.
fn ask(rig: &mut Rig, client: &str, key: &str) {
    let (head, body) = request(&rig.keys.texts[key].clone(), 200, false);
    rig.send(client, format!("{head}{body}"));
}

/// Time passes; requests are answered when they have been served for long enough. Never more at once than `slots`.
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

/// Milliseconds that an answer says its request has waited.
fn waited(answer: &str) -> Option<u64> {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split("x-queue-wait-ms: ").nth(1)?.split("\r\n").next()?.parse().ok()
}

#[test]
fn two_hundred_requests_of_one_key_delay_another_by_no_more_than_two_services() {
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
    assert!((1..80).contains(&left), "the first key was served meanwhile, and was still waiting: {left}");
}

#[test]
fn a_client_that_leaves_is_removed_at_once_and_the_others_are_served() {
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
        // No time has passed.
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
