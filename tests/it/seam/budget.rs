//! `max_buffered` is a hard bound. A body that does not fit is rejected before a provider receives the request, and
//! every requested answer arrives, whatever other clients send in the meantime.

use super::rig::{BUDGET, Rig, event, large_answer, request, stream_end};

/// Length of a body that fits within the share of its key.
const LARGE: usize = 250_000;
/// Number of keys, and of clients with one key each.
const CROWD: usize = 10;

/// Sends the heads of ten large bodies, each within the share of its key. Returns those bodies.
fn send_heads(rig: &mut Rig) -> Vec<(String, String)> {
    let begin = |number| {
        let (head, body) = request(&rig.keys.texts[&format!("k{number}")].clone(), LARGE, false);
        rig.send(&format!("c{number}"), head);
        (format!("c{number}"), body)
    };
    (0..CROWD).map(begin).collect()
}

/// Sends each body except its last byte, in interleaved pieces.
fn send_bodies(rig: &mut Rig, bodies: &[(String, String)]) {
    for at in (0..LARGE - 1).step_by(40_000) {
        for (client, body) in bodies {
            rig.give(client, &body[at..(at + 40_000).min(LARGE - 1)]);
        }
    }
}

/// Sends the last byte of each body and answers requests at the provider until none is left. Returns how many there
/// were.
fn finish_bodies(rig: &mut Rig, bodies: &[(String, String)]) -> usize {
    let mut asked = 0;
    for (client, body) in bodies {
        rig.give(client, &body[LARGE - 1..]);
    }
    while let Some(provider) = rig.asked().pop() {
        asked += 1;
        rig.answer(&provider, &large_answer(0));
    }
    rig.wait(1000);
    asked
}

fn is_whole_answer(text: &str) -> bool {
    text.starts_with("HTTP/1.1 200") && text.contains("\"total_tokens\":100}")
}

#[test]
fn bodies_that_do_not_fit_the_budget_are_503_before_the_provider_is_asked() {
    let mut rig = Rig::new(CROWD);
    let bodies = send_heads(&mut rig);
    send_bodies(&mut rig, &bodies);
    let asked = finish_bodies(&mut rig, &bodies);
    let count = |status| bodies.iter().filter(|(client, _)| rig.status(client) == status).count();
    assert_eq!((count(200), count(503)), (asked, CROWD - asked));
    assert!((2..BUDGET / LARGE + 1).contains(&asked), "{asked} bodies of {LARGE} in {BUDGET}");
    for (client, _) in bodies.iter().filter(|(client, _)| rig.status(client) == 503) {
        assert!(rig.got(client).contains("\"type\":\"upstream_error\""), "{}", rig.got(client));
        assert!(!rig.got(client).contains("max_response"), "{}", rig.got(client));
    }
}

#[test]
fn bodies_of_undeclared_length_stay_within_the_budget_too() {
    let mut rig = Rig::new(CROWD);
    let bodies: Vec<_> = (0..CROWD)
        .map(|number| {
            let (head, body) = request(&rig.keys.texts[&format!("k{number}")].clone(), LARGE, false);
            let head = head.replace(&format!("content-length: {LARGE}"), "transfer-encoding: chunked");
            rig.send(&format!("c{number}"), format!("{head}{LARGE:x}\r\n"));
            (format!("c{number}"), body)
        })
        .collect();
    send_bodies(&mut rig, &bodies);
    let ends: Vec<_> = bodies.into_iter().map(|(client, body)| (client, body + "\r\n0\r\n\r\n")).collect();
    let asked = finish_bodies(&mut rig, &ends);
    let strange =
        ends.iter().map(|(client, _)| rig.got(client)).find(|got| !got.contains(" 200 ") && !got.contains(" 503 "));
    assert_eq!(strange, None);
    let count = |status| ends.iter().filter(|(client, _)| rig.status(client) == status).count();
    assert_eq!((count(200), count(503)), (asked, CROWD - asked));
    assert!(asked > 0, "some of {CROWD} bodies must fit");
}

#[test]
fn an_answer_arrives_whole_while_the_bodies_of_others_fill_the_budget() {
    let mut rig = Rig::new(CROWD + 1);
    let (head, body) = request(&rig.keys.texts["k10"].clone(), 100, false);
    rig.send("bystander", head + &body);
    let provider = rig.asked().pop().unwrap();
    let bodies = send_heads(&mut rig);
    send_bodies(&mut rig, &bodies);
    rig.answer(&provider, &large_answer(0));
    let early = rig.got("bystander");
    assert!(early.is_empty() || is_whole_answer(&early), "{early}");
    let asked = finish_bodies(&mut rig, &bodies);
    assert!(is_whole_answer(&rig.got("bystander")), "{}", rig.got("bystander"));
    assert_eq!(bodies.iter().filter(|(client, _)| is_whole_answer(&rig.got(client))).count(), asked);
}

#[test]
fn a_large_answer_waits_at_its_provider_while_the_bodies_of_others_fill_the_budget() {
    let mut rig = Rig::new(CROWD + 1);
    let (head, body) = request(&rig.keys.texts["k10"].clone(), 100, false);
    rig.send("bystander", head + &body);
    let provider = rig.asked().pop().unwrap();
    let bodies = send_heads(&mut rig);
    send_bodies(&mut rig, &bodies);
    rig.answer(&provider, &large_answer(100_000));
    assert!(!rig.got("bystander").contains("\"error\""), "{}", rig.got("bystander"));
    let asked = finish_bodies(&mut rig, &bodies);
    assert!(is_whole_answer(&rig.got("bystander")), "{:.1000}", rig.got("bystander"));
    assert!(rig.got("bystander").contains(&"b".repeat(100_000)));
    assert_eq!(bodies.iter().filter(|(client, _)| is_whole_answer(&rig.got(client))).count(), asked);
}

#[test]
fn answers_in_pieces_do_not_starve_each_other() {
    let mut rig = Rig::new(CROWD);
    let clients: Vec<String> = (0..24).map(|number| format!("c{number:02}")).collect();
    for (number, client) in clients.iter().enumerate() {
        let (head, body) = request(&rig.keys.texts[&format!("k{}", number % CROWD)].clone(), 100, false);
        rig.send(client, head + &body);
    }
    let providers = rig.asked();
    assert_eq!(providers.len(), clients.len());
    let answer = large_answer(100_000);
    for at in (0..answer.len()).step_by(10_000) {
        for provider in &providers {
            rig.give(provider, &answer[at..(at + 10_000).min(answer.len())]);
        }
    }
    for client in &clients {
        assert!(is_whole_answer(&rig.got(client)), "{client}: {:.1000}", rig.got(client));
    }
}

#[test]
fn a_stream_arrives_whole_while_the_bodies_of_others_fill_the_budget() {
    let mut rig = Rig::new(CROWD + 1);
    let (head, body) = request(&rig.keys.texts["k10"].clone(), 100, true);
    rig.send("bystander", head + &body);
    let provider = rig.asked().pop().unwrap();
    rig.answer(&provider, super::rig::STREAM);
    rig.give(&provider, event("w0;"));
    let bodies = send_heads(&mut rig);
    send_bodies(&mut rig, &bodies);
    for number in 1..20 {
        rig.give(&provider, event(&format!("w{number};")));
    }
    rig.give(&provider, stream_end());
    let asked = finish_bodies(&mut rig, &bodies);
    let all = rig.got("bystander");
    let words: Vec<&str> = all.split("\"content\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let expected: Vec<String> = (0..20).map(|number| format!("w{number};")).collect();
    assert_eq!(words, expected, "{all}");
    assert!(all.contains("data: [DONE]") && !all.contains("\"error\""), "{all}");
    assert_eq!(bodies.iter().filter(|(client, _)| is_whole_answer(&rig.got(client))).count(), asked);
}

#[test]
fn a_burst_loses_no_requested_answer() {
    let mut rig = Rig::new(CROWD);
    let clients: Vec<String> = (0..24).map(|number| format!("c{number:02}")).collect();
    for (number, client) in clients.iter().enumerate() {
        let key = rig.keys.texts[&format!("k{}", number % CROWD)].clone();
        let (head, body) = request(&key, 60_000, false);
        rig.send(client, head + &body);
    }
    let mut asked = 0;
    while let Some(provider) = rig.asked().pop() {
        asked += 1;
        rig.answer(&provider, &large_answer(60_000));
    }
    rig.wait(1000);
    let whole = clients.iter().filter(|client| is_whole_answer(&rig.got(client).replace(&"b".repeat(60_000), "")));
    let lost: Vec<String> = clients.iter().map(|client| rig.got(client)).filter(|got| got.contains("max_")).collect();
    assert_eq!(lost, [""; 0]);
    let refused = clients.iter().filter(|client| rig.status(client) == 503).count();
    assert_eq!((whole.count() + refused, asked + refused), (clients.len(), clients.len()));
    assert!(asked >= 6, "{asked} of {} requests were served", clients.len());
}

#[test]
fn provider_does_not_time_out_while_buffers_are_full() {
    let mut rig = Rig::with(1, &[("upstream", "first_byte_timeout = \"20s\"")]);
    let key = rig.keys.texts["k0"].clone();
    let mut providers = Vec::new();
    let slow = ["a", "b", "c", "d", "e", "f"];
    for (client, stream) in slow.iter().map(|client| (*client, false)).chain([("late", true)]) {
        rig.world.connect(client, false).unwrap();
        rig.world.end(client).unwrap().reads = client == "late";
        let (head, body) = request(&key, 200, stream);
        rig.send(client, head + &body);
        let asked = rig.asked();
        providers.push(asked.into_iter().find(|label| !providers.contains(label)).unwrap());
    }
    // Unread answers use up the share of their key, and its other answers wait.
    providers[..slow.len()].iter().for_each(|provider| rig.answer(provider, &large_answer(100_000)));
    rig.answer(&providers[slow.len()], super::rig::STREAM);
    rig.give(&providers[slow.len()], event("one"));
    rig.give(&providers[slow.len()], stream_end());
    assert_eq!(rig.status("late"), 0, "the gateway must not read from its provider");
    rig.wait(25_000);
    // The client has received only a heartbeat.
    assert!(rig.got("late").ends_with(": ping\n\n"), "{}", rig.got("late"));
    slow.iter().for_each(|client| rig.read(client));
    rig.wait(100);
    for client in slow {
        assert!(is_whole_answer(&rig.got(client)), "{client}: {:.600}", rig.got(client));
    }
    assert!(rig.got("late").contains("data: [DONE]"), "{}", rig.got("late"));
}
