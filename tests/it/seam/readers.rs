//! Answers that are not read count against the key whose they are, and stand in nobody else's way.

use super::rig::{Rig, large_answer, request};

/// Connections of the key that does not read.
const CROWD: usize = 20;
/// Bytes of each of its answers.
const LARGE: usize = 100_000;

fn asks(rig: &mut Rig, client: &str, key: &str) {
    let (head, body) = request(&rig.keys.texts[key].clone(), 200, false);
    rig.world.connect(client, false).unwrap();
    rig.world.end(client).unwrap().reads = false;
    rig.send(client, head + &body);
}

/// Another key is let in and served.
fn another_is_served(rig: &mut Rig) {
    assert!(rig.is_open(), "new clients wait outside, at {:?}", rig.world.gateway.vitals());
    asks(rig, "other", "k1");
    let provider = rig.asked().pop().expect("the provider is asked for another key");
    rig.answer(&provider, &large_answer(0));
    rig.read("other");
    assert_eq!(rig.status("other"), 200, "{}", rig.got("other"));
    assert!(rig.got("other").contains("\"total_tokens\":100}"));
}

/// Bytes that a client sends ahead in one piece, requests behind a first one that is not answered.
const AHEAD: usize = 60_000;

#[test]
fn what_clients_send_ahead_counts_against_their_key_and_keeps_no_other_out() {
    let mut rig = Rig::new(2);
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 200, false);
    let one = head + &body;
    for number in 0..CROWD {
        let client = format!("c{number:02}");
        rig.world.connect(&client, false).unwrap();
        rig.give(&client, one.repeat(AHEAD / one.len()));
        assert!(rig.is_open(), "after {number} clients that sent ahead: {:?}", rig.world.gateway.vitals());
    }
    let waiting = (0..CROWD).filter(|number| rig.status(&format!("c{number:02}")) == 0).count();
    assert!((1..=5).contains(&waiting), "{waiting} clients wait with {AHEAD} bytes each in a quarter of 1 MiB");
    another_is_served(&mut rig);
}

#[test]
fn a_key_that_does_not_read_its_answers_is_refused_further_ones_and_keeps_no_other_out() {
    let mut rig = Rig::new(2);
    let mut served = Vec::new();
    for number in 0..CROWD {
        let client = format!("c{number:02}");
        asks(&mut rig, &client, "k0");
        if let Some(provider) = rig.asked().pop() {
            rig.answer(&provider, &large_answer(LARGE));
            served.push(client);
        }
        assert!(rig.is_open(), "after {number} answers that were not read: {:?}", rig.world.gateway.vitals());
    }
    assert!((1..=4).contains(&served.len()), "{} answers of {LARGE} bytes in a quarter of 1 MiB", served.len());
    another_is_served(&mut rig);
    for number in 0..CROWD {
        let client = format!("c{number:02}");
        rig.read(&client);
        let expected = if served.contains(&client) { 200 } else { 503 };
        assert_eq!(rig.status(&client), expected, "{client}: {:.600}", rig.got(&client));
        assert_eq!(rig.got(&client).matches('b').count() > LARGE, expected == 200);
    }
}

#[test]
fn answers_of_a_key_that_does_not_read_wait_at_the_provider_and_arrive_once_it_reads() {
    let mut rig = Rig::new(2);
    let clients: Vec<String> = (0..CROWD).map(|number| format!("c{number:02}")).collect();
    clients.iter().for_each(|client| asks(&mut rig, client, "k0"));
    let providers = rig.asked();
    assert_eq!(providers.len(), CROWD, "small requests, all of which fit");
    for provider in &providers {
        rig.answer(provider, &large_answer(LARGE));
        assert!(rig.is_open(), "new clients wait outside, at {:?}", rig.world.gateway.vitals());
    }
    another_is_served(&mut rig);
    clients.iter().for_each(|client| rig.read(client));
    rig.wait(1000);
    for client in &clients {
        assert_eq!(rig.status(client), 200, "{client}: {:.600}", rig.got(client));
        assert!(rig.got(client).matches('b').count() > LARGE, "{client} got its answer whole");
    }
}
