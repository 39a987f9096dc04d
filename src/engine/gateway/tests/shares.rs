//! Shares of one key in common resources, and unsolicited answers.

use super::*;

/// Requests of a key, each on a connection of its own; returns the connections.
fn ask(gateway: &mut Gateway, key: &str, count: usize) -> Vec<Conn> {
    let body = "{\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let length = body.len();
    let text = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    (0..count)
        .map(|_| {
            let conn = accepted(gateway);
            gateway.bytes(conn, text.as_bytes(), now());
            conn
        })
        .collect()
}

/// Statuses of the answers to clients; 0 for none yet.
fn statuses(gateway: &Gateway, conns: &[Conn]) -> Vec<u16> {
    let status = |conn: &Conn| String::from_utf8_lossy(gateway.unsent(*conn)).get(9..12)?.parse().ok();
    conns.iter().map(|conn| status(conn).unwrap_or(0)).collect()
}

/// Connections to be dialed since the last call.
fn dials(gateway: &mut Gateway) -> Vec<Conn> {
    let dialed = |action| if let Action::Dial { conn, .. } = action { Some(conn) } else { None };
    gateway.actions().drain(..).filter_map(dialed).collect()
}

/// Takes all bytes to be written to a connection.
fn take(gateway: &mut Gateway, conn: Conn) -> String {
    let text = String::from_utf8_lossy(gateway.unsent(conn)).into_owned();
    gateway.wrote(conn, text.len(), now());
    text
}

fn answer(text: &str) -> String {
    let body = format!(
        "{{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"message\":\
         {{\"content\":\"{text}\"}}}}],\"usage\":{{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}}}"
    );
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn streams_of_one_key_leave_descriptors_to_clients_and_to_other_keys() {
    let (mut gateway, keys) = gateway_of(CONFIG, 2, Some(60));
    let greedy = ask(&mut gateway, &keys[0], 18);
    assert_eq!(dials(&mut gateway).len(), 15, "half of those for providers, which are half of all");
    assert_eq!(statuses(&gateway, &greedy), [vec![0; 15], vec![503; 3]].concat());
    let text = String::from_utf8_lossy(gateway.unsent(greedy[17])).into_owned();
    assert!(text.contains("no descriptor left"), "{text}");
    let other = ask(&mut gateway, &keys[1], 12);
    assert_eq!((dials(&mut gateway).len(), statuses(&gateway, &other)), (12, vec![0; 12]));
    let quota = accepted(&mut gateway);
    gateway.bytes(quota, model_asked(&keys[1], "small").as_bytes(), now());
    assert_eq!(statuses(&gateway, &[quota]), [200]);
}

#[test]
fn only_key_may_use_all_descriptors_for_providers() {
    let config = CONFIG.replace(
        "[[plans]]",
        "[[providers]]\nname = \"v\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.2/v1\"\n\
        [[models]]\nid = \"other\"\ncontext = \"1M\"\ntargets = [{ provider = \"v\", model = \"m\" }]\n[[plans]]",
    );
    let (mut gateway, keys) = gateway_of(&config, 1, Some(10));
    let clients = ask(&mut gateway, &keys[0], 5);
    let dialed = dials(&mut gateway);
    assert_eq!((dialed.len(), statuses(&gateway, &clients)), (5, vec![0; 5]));
    dialed.iter().for_each(|conn| Core::reply(&mut gateway, Reply::Dialed(*conn), now()));
    take(&mut gateway, dialed[0]);
    gateway.bytes(dialed[0], answer("one").as_bytes(), now());
    assert_eq!((statuses(&gateway, &clients)[0], gateway.vitals().idle), (200, 1));
    let text = take(&mut gateway, clients[0]);
    assert!(text.contains("one"));
    let body = "{\"model\":\"other\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let length = body.len();
    let text = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\ncontent-length: {length}\r\n\r\n{body}",
        keys[0]
    );
    gateway.bytes(clients[0], text.as_bytes(), now());
    assert_eq!((dials(&mut gateway).len(), gateway.vitals().idle), (1, 0));
    let beyond = ask(&mut gateway, &keys[0], 1);
    assert_eq!((dials(&mut gateway).len(), statuses(&gateway, &beyond)), (0, vec![503]));
}

#[test]
fn one_key_leaves_half_of_a_queue_to_others() {
    let config =
        CONFIG.replace("model = \"m\" }]", "model = \"m\", concurrency = 1 }]\nqueue = { max = 5, wait = \"1m\" }");
    let (mut gateway, keys) = gateway_of(&config, 3, None);
    let greedy = ask(&mut gateway, &keys[0], 6);
    assert_eq!(statuses(&gateway, &greedy), [0, 0, 0, 0, 429, 429], "one is served, and three wait");
    let text = String::from_utf8_lossy(gateway.unsent(greedy[5])).into_owned();
    assert!(text.contains("this key already has 3 requests in the queue"), "{text}");
    let others: Vec<Conn> = keys[1..].iter().flat_map(|key| ask(&mut gateway, key, 2)).collect();
    assert_eq!(statuses(&gateway, &others), [0, 0, 429, 429]);
    let text = String::from_utf8_lossy(gateway.unsent(others[3])).into_owned();
    assert!(text.contains("queue of the model is full: 5 requests"), "{text}");
}

#[test]
fn the_only_key_may_fill_a_queue() {
    let config =
        CONFIG.replace("model = \"m\" }]", "model = \"m\", concurrency = 1 }]\nqueue = { max = 4, wait = \"1m\" }");
    let (mut gateway, keys) = gateway_of(&config, 1, None);
    let greedy = ask(&mut gateway, &keys[0], 6);
    assert_eq!(statuses(&gateway, &greedy), [0, 0, 0, 0, 0, 429]);
}

/// The bytes were in the socket before the request was sent, so they cannot answer it.
#[test]
fn bytes_before_the_request_are_not_its_answer() {
    let (mut gateway, keys) = gateway_of(CONFIG, 2, None);
    let first = ask(&mut gateway, &keys[0], 1)[0];
    let kept = dials(&mut gateway)[0];
    Core::reply(&mut gateway, Reply::Dialed(kept), now());
    take(&mut gateway, kept);
    gateway.bytes(kept, answer("first").as_bytes(), now());
    assert!(take(&mut gateway, first).contains("first"));
    assert_eq!(gateway.vitals().idle, 1);

    let second = ask(&mut gateway, &keys[1], 1)[0];
    assert_eq!((dials(&mut gateway).len(), gateway.unsent(kept).is_empty()), (0, false), "the kept one is used");
    assert!(gateway.wants_read(kept));
    gateway.bytes(kept, answer("another's").as_bytes(), now());
    let fresh = dials(&mut gateway);
    assert_eq!((gateway.unsent(second), fresh.len()), (&b""[..], 1));
    Core::reply(&mut gateway, Reply::Dialed(fresh[0]), now());
    assert!(take(&mut gateway, fresh[0]).contains("\"hi\""));
    gateway.bytes(fresh[0], answer("second").as_bytes(), now());
    assert!(take(&mut gateway, second).contains("second"));
    assert_eq!(gateway.vitals().upstreams, 1);
}
