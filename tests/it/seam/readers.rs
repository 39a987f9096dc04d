//! Unread answers count against their key and must not block other keys.

use super::rig::{BUDGET, Rig, STREAM, event, large_answer, request, stream_end};

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

/// Checks that another key is accepted and served.
fn another_is_served(rig: &mut Rig) {
    assert!(rig.is_open(), "new clients are not accepted: {:?}", rig.world.gateway.vitals());
    asks(rig, "other", "k1");
    let provider = rig.asked().pop().expect("the provider receives the request of another key");
    rig.answer(&provider, &large_answer(0));
    rig.read("other");
    assert_eq!(rig.status("other"), 200, "{}", rig.got("other"));
    assert!(rig.got("other").contains("\"total_tokens\":100}"));
}

/// Bytes that a client pipelines in one piece, after a first request that is not answered.
const AHEAD: usize = 60_000;

#[test]
fn pipelined_bytes_count_against_their_key_and_block_no_other() {
    let mut rig = Rig::new(2);
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 200, false);
    let one = head + &body;
    for number in 0..CROWD {
        let client = format!("c{number:02}");
        rig.world.connect(&client, false).unwrap();
        rig.give(&client, one.repeat(AHEAD / one.len()));
        assert!(rig.is_open(), "after {number} clients with pipelined requests: {:?}", rig.world.gateway.vitals());
    }
    let waiting = (0..CROWD).filter(|number| rig.status(&format!("c{number:02}")) == 0).count();
    assert!((1..=5).contains(&waiting), "{waiting} clients wait with {AHEAD} bytes each in a quarter of 1 MiB");
    another_is_served(&mut rig);
}

#[test]
fn key_that_does_not_read_is_refused_and_blocks_no_other() {
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
fn unread_answers_wait_at_the_provider_until_the_key_reads() {
    let mut rig = Rig::new(2);
    let clients: Vec<String> = (0..CROWD).map(|number| format!("c{number:02}")).collect();
    clients.iter().for_each(|client| asks(&mut rig, client, "k0"));
    let providers = rig.asked();
    assert_eq!(providers.len(), CROWD, "all requests are small and fit");
    for provider in &providers {
        rig.answer(provider, &large_answer(LARGE));
        assert!(rig.is_open(), "new clients are not accepted: {:?}", rig.world.gateway.vitals());
    }
    another_is_served(&mut rig);
    clients.iter().for_each(|client| rig.read(client));
    rig.wait(1000);
    for client in &clients {
        assert_eq!(rig.status(client), 200, "{client}: {:.600}", rig.got(client));
        assert!(rig.got(client).matches('b').count() > LARGE, "{client} received its complete answer");
    }
}

/// Sends a streamed Responses request, for a provider of another API format.
fn responds(rig: &mut Rig, client: &str, key: &str, (model, reads): (&str, bool)) {
    let body = format!("{{\"model\":\"{model}\",\"stream\":true,\"input\":\"hi\"}}");
    let (key, length) = (rig.keys.texts[key].clone(), body.len());
    rig.world.connect(client, false).unwrap();
    rig.world.end(client).unwrap().reads = reads;
    rig.send(
        client,
        format!(
            "POST /v1/responses HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"
        ),
    );
}

/// Returns the beginning of a Messages stream, as one chunk.
fn messages_start() -> String {
    let events = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\
                  \"role\":\"assistant\",\"model\":\"up-large\",\"content\":[],\"stop_reason\":null,\"usage\":\
                  {\"input_tokens\":1,\"output_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\
                  \"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    format!("{:x}\r\n{events}\r\n", events.len())
}

fn messages_text(text: &str) -> String {
    let event = format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\
         \"text_delta\",\"text\":\"{text}\"}}}}\n\n"
    );
    format!("{:x}\r\n{event}\r\n", event.len())
}

#[test]
fn buffered_text_of_streams_counts_against_their_key() {
    let piece = "t".repeat(4000);
    let shapes = [("small", String::new(), event(&piece)), ("large", messages_start(), messages_text(&piece))];
    for ((model, start, text), reads) in shapes.iter().flat_map(|shape| [(shape, true), (shape, false)]) {
        let mut rig = Rig::new(2);
        let clients: Vec<String> = (0..CROWD).map(|number| format!("c{number:02}")).collect();
        clients.iter().for_each(|client| responds(&mut rig, client, "k0", (model, reads)));
        let providers = rig.asked();
        assert_eq!(providers.len(), CROWD, "{model}: all requests are small and fit");
        providers.iter().for_each(|provider| rig.answer(provider, &(STREAM.to_string() + start)));
        for _ in 0..12 {
            providers.iter().for_each(|provider| rig.give(provider, text));
        }
        // Each client may leave 16 KiB unread without being charged for them.
        let slack = if reads { BUDGET / 8 } else { CROWD * 16 * 1024 };
        assert!(rig.most <= BUDGET / 4 + slack, "{model}, read: {reads}: one key held {}", rig.most);
        another_is_served(&mut rig);
        let failed = clients.iter().filter(|client| rig.got(client).contains("max_buffered")).count();
        assert_eq!((1..CROWD).contains(&failed), reads, "{model}, read: {reads}: {failed} streams have ended");
    }
}

#[test]
fn the_only_stream_of_a_key_may_exceed_its_share() {
    let mut rig = Rig::new(1);
    responds(&mut rig, "c", "k0", ("small", true));
    let provider = rig.asked().pop().unwrap();
    rig.answer(&provider, STREAM);
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 150_000, false);
    rig.send("body", head + &body[..140_000]);
    (0..28).for_each(|_| rig.give(&provider, event(&"t".repeat(4000))));
    assert!(rig.most > BUDGET / 4, "{}", rig.most);
    rig.give(&provider, stream_end());
    assert!(rig.got("c").contains("event: response.completed"), "{:.600}", rig.got("c"));
}
