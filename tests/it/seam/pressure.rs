//! Ten kinds of pressure, each by sixty keys concurrently on buffers of 1 MiB. In no case does the gateway buffer more
//! than its configured maximum, and afterwards every client is served.

use super::rig::{BUDGET, Rig, STREAM, event, large_answer, request, stream_end};
use tollgate::base::seam::Ending;
use tollgate::policy::keys::KEY_BYTES;

/// Number of keys, and of clients with one key each.
const CROWD: usize = 60;
/// Bytes of a large body.
const BODY: usize = 200_000;
/// Bytes of a large answer.
const ANSWER: usize = 100_000;

/// Puts the gateway under one kind of pressure.
type Press = fn(&mut Rig);

fn clients() -> impl Iterator<Item = (String, String)> {
    (0..CROWD).map(|number| (format!("c{number:02}"), format!("k{number}")))
}

/// Sends a chat request of `length` bytes from each client. Clients with `reads` false never read their answers.
fn all_ask(rig: &mut Rig, length: usize, stream: bool, reads: bool) -> Vec<String> {
    for (client, key) in clients() {
        rig.world.connect(&client, false).unwrap();
        rig.world.end(&client).unwrap().reads = reads;
        let (head, body) = request(&rig.keys.texts[&key].clone(), length, stream);
        rig.send(&client, head + &body);
    }
    rig.asked()
}

/// Sends a large body from each client, except its last byte, in interleaved pieces.
fn bodies(rig: &mut Rig, framed: fn(String, String) -> (String, String)) {
    let mut texts = Vec::new();
    for (client, key) in clients() {
        let (head, body) = request(&rig.keys.texts[&key].clone(), BODY, false);
        let (head, body) = framed(head, body);
        rig.send(&client, head);
        texts.push((client, body));
    }
    for at in (0..BODY).step_by(20_000) {
        for (client, body) in &texts {
            rig.give(client, &body[at..(at + 20_000).min(BODY - 1)]);
        }
    }
}

fn declared(rig: &mut Rig) {
    bodies(rig, |head, body| (head, body));
}

fn undeclared(rig: &mut Rig) {
    bodies(rig, |head, body| {
        let head = head.replace(&format!("content-length: {BODY}"), "transfer-encoding: chunked");
        (head, format!("{BODY:x}\r\n{body}"))
    });
}

fn translated(rig: &mut Rig) {
    for (client, key) in clients() {
        let (head, body) = request(&rig.keys.texts[&key].clone(), 60_000, false);
        rig.send(&client, head + &body.replace("\"small\"", "\"large\""));
    }
}

fn heads(rig: &mut Rig) {
    for number in 0..4 * CROWD {
        rig.send(
            &format!("h{number:03}"),
            format!("GET /v1/models HTTP/1.1\r\nhost: g\r\nx-a: {}", "a".repeat(15_000)),
        );
    }
}

fn pipelines(rig: &mut Rig) {
    all_ask(rig, 200, false, true);
    for (client, key) in clients() {
        let (head, body) = request(&rig.keys.texts[&key].clone(), 60_000, false);
        rig.give(&client, (head + &body).repeat(2));
    }
}

fn unread_answers(rig: &mut Rig) {
    for provider in all_ask(rig, 200, false, false) {
        rig.answer(&provider, &large_answer(ANSWER));
    }
}

fn answers_without_length(rig: &mut Rig) {
    let providers = all_ask(rig, 200, false, false);
    let whole = large_answer(ANSWER);
    let (_, body) = whole.split_once("\r\n\r\n").unwrap();
    for provider in &providers {
        rig.answer(provider, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    }
    for piece in body.as_bytes().chunks(9_000) {
        let piece = format!("{:x}\r\n{}\r\n", piece.len(), std::str::from_utf8(piece).unwrap());
        providers.iter().for_each(|provider| rig.give(provider, &piece));
    }
    providers.iter().for_each(|provider| rig.give(provider, "0\r\n\r\n"));
}

fn unread_streams(rig: &mut Rig) {
    let providers = all_ask(rig, 200, true, false);
    providers.iter().for_each(|provider| rig.answer(provider, STREAM));
    let events = event(&"w".repeat(500)).repeat(200);
    providers.iter().for_each(|provider| rig.give(provider, &events));
    providers.iter().for_each(|provider| rig.give(provider, stream_end()));
}

fn growing_events(rig: &mut Rig) {
    let providers = all_ask(rig, 200, true, true);
    providers.iter().for_each(|provider| rig.answer(provider, STREAM));
    let whole = event(&"w".repeat(ANSWER));
    for piece in whole.as_bytes().chunks(9_000) {
        providers.iter().for_each(|provider| rig.give(provider, piece));
    }
    providers.iter().for_each(|provider| rig.give(provider, stream_end()));
}

fn errors_and_heads(rig: &mut Rig) {
    for (number, provider) in all_ask(rig, 200, false, true).iter().enumerate() {
        let more = "e".repeat(30_000);
        match number % 2 {
            0 => rig.answer(provider, &format!("HTTP/1.1 500 No\r\ncontent-length: 60000\r\n\r\n{more}{more:.20000}")),
            _ => rig.answer(provider, &format!("HTTP/1.1 200 OK\r\nx-a: {more}")),
        }
    }
}

#[test]
fn no_kind_of_pressure_exceeds_max_buffered() {
    let kinds: [(&str, Press); 10] = [
        ("declared bodies", declared),
        ("undeclared bodies", undeclared),
        ("translated bodies", translated),
        ("heads that do not end", heads),
        ("requests behind requests", pipelines),
        ("answers that are not read", unread_answers),
        ("answers without a length", answers_without_length),
        ("streams that are not read", unread_streams),
        ("events that grow", growing_events),
        ("errors and long heads", errors_and_heads),
    ];
    for (name, press) in kinds {
        let mut rig = Rig::with(CROWD + 1, &[("upstream", "max_event = \"128KiB\"")]);
        let announced = rig.config.worst_case_bytes((CROWD as u64 + 1) * KEY_BYTES) as usize;
        press(&mut rig);
        println!("{name:<26} announced {announced:>10}, of them buffers {BUDGET}; most seen {:>8}", rig.most);
        assert!(rig.most <= BUDGET && BUDGET < announced, "{name}");
        assert!(rig.most > BUDGET / 4, "{name} causes too little pressure: {}", rig.most);
        is_over(&mut rig, name);
    }
}

/// Breaks off the provider connections; slow clients are disconnected or resume reading. Then checks that any request
/// is served.
fn is_over(rig: &mut Rig, name: &str) {
    let providers: Vec<String> = rig.world.ends.keys().filter(|label| label.starts_with('u')).cloned().collect();
    for label in &providers {
        if rig.world.ends[label].closed.is_none() {
            rig.world.finish(label, Ending::Broken).unwrap();
        }
    }
    let labels: Vec<String> = rig.world.ends.keys().filter(|label| !label.starts_with('u')).cloned().collect();
    for label in &labels {
        if rig.world.ends[label].closed.is_none() {
            rig.read(label);
        }
    }
    for _ in 0..14 {
        rig.wait(10_000);
    }
    let (head, body) = request(&rig.keys.texts[&format!("k{CROWD}")].clone(), 50_000, false);
    let before = rig.asked();
    rig.send("after", head + &body);
    let provider = rig.asked().into_iter().find(|label| !before.contains(label));
    let provider = provider.unwrap_or_else(|| panic!("{name}: {:?} {}", rig.world.gateway.vitals(), rig.got("after")));
    rig.answer(&provider, &large_answer(ANSWER));
    assert_eq!(rig.status("after"), 200, "{name}: {:.600}", rig.got("after"));
}

#[test]
fn answers_that_clients_read_arrive_under_every_pressure() {
    let mut rig = Rig::new(CROWD);
    let providers = all_ask(&mut rig, 200, false, true);
    assert_eq!(providers.len(), CROWD);
    let answer = large_answer(ANSWER);
    for piece in answer.as_bytes().chunks(30_000) {
        providers.iter().for_each(|provider| rig.give(provider, piece));
    }
    for (client, _) in clients() {
        assert!(rig.got(&client).contains("\"total_tokens\":100}"), "{client}: {:.600}", rig.got(&client));
    }
    let mut rig = Rig::with(CROWD, &[("upstream", "max_event = \"128KiB\"")]);
    growing_events(&mut rig);
    for (client, _) in clients() {
        assert!(rig.got(&client).contains("data: [DONE]"), "{client}: {:.600}", rig.got(&client));
    }
    let mut rig = Rig::new(CROWD);
    unread_answers(&mut rig);
    clients().for_each(|(client, _)| rig.read(&client));
    rig.wait(1000);
    for (client, _) in clients() {
        assert!(rig.got(&client).contains("\"total_tokens\":100}"), "{client}: {:.600}", rig.got(&client));
    }
}
