//! Tests of the whole core, driven by its methods: whole and streamed answers, every fault, many requests per
//! connection.

use super::*;
use crate::base::time::Unix;
use crate::wire::body::BodyReader;
use crate::wire::head::{ResponseHead, parse_response};
use serde_json::{Value, json};
use std::time::Duration;

/// A provider and the output of one connection.
struct World {
    provider: Simulator,
    conn: Conn,
    now: Now,
    received: Vec<u8>,
    shut: Option<Shut>,
}

impl World {
    fn new(settings: SimulatorSettings) -> World {
        let mut provider = Simulator::new(settings);
        let now = Now { mono: Mono(1_000_000), unix: Unix(1_795_158_000_000) };
        let conn = provider.accepted(0, ([127, 0, 0, 1], 1).into(), now).unwrap();
        World { provider, conn, now, received: Vec::new(), shut: None }
    }

    /// Takes the unsent bytes, `most` at a time, until none are left.
    fn take(&mut self, most: usize) {
        loop {
            let unsent = self.provider.unsent(self.conn);
            let count = unsent.len().min(most);
            self.received.extend_from_slice(&unsent[..count]);
            if count == 0 {
                break;
            }
            self.provider.wrote(self.conn, count, self.now);
        }
        for action in self.provider.actions().drain(..) {
            let Action::Close { shut, .. } = action else { panic!("{action:?}") };
            self.shut = Some(shut);
        }
        self.provider.dirty().clear();
    }

    fn send(&mut self, bytes: &[u8]) -> &mut World {
        self.provider.bytes(self.conn, bytes, self.now);
        self.take(usize::MAX);
        self
    }

    fn pass(&mut self, wait: Duration) -> &mut World {
        let end = self.now.mono.after(wait);
        while let Some(due) = self.provider.next_deadline().filter(|due| *due <= end) {
            self.now.mono = due.max(self.now.mono);
            while self.provider.expire(self.now) {}
            self.take(usize::MAX);
        }
        self.now.mono = end;
        self
    }

    /// Removes and returns the first answer received, which must be complete: head, payload.
    fn answer(&mut self) -> (ResponseHead, Vec<u8>) {
        let head = parse_response(&self.received, &mut 0, 1 << 16, false).unwrap().expect("a whole head");
        let (mut reader, mut at, mut payload) = (BodyReader::new(head.framing), head.len as usize, Vec::new());
        while !reader.is_done() {
            let piece = reader.next(&self.received[at..]).unwrap();
            payload.extend_from_slice(&self.received[at..][piece.data]);
            at += piece.consumed;
            if piece.consumed == 0 {
                assert!(self.shut.is_some(), "the body is incomplete");
                reader.end().unwrap();
            }
        }
        self.received.drain(..at);
        (head, payload)
    }

    fn json(&mut self) -> (u16, Value) {
        let (head, body) = self.answer();
        (head.status, serde_json::from_slice(&body).unwrap())
    }

    fn get(&mut self, path: &str) -> Value {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes());
        self.json().1
    }
}

fn world() -> World {
    World::new(SimulatorSettings::default())
}

fn post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: h\r\nanthropic-version: 2023-06-01\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body.as_bytes()].concat()
}

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn body(text: &str, stream: bool) -> Value {
    json!({ "model": "m", "max_tokens": 100, "stream": stream, "messages": [{ "role": "user", "content": text }] })
}

fn ask(path: &str, text: &str, stream: bool) -> Vec<u8> {
    post(path, &body(text, stream))
}

/// Returns the answer's body as text, for a request to a fresh provider.
fn said(path: &str, body: &Value) -> String {
    let mut world = world();
    let (head, payload) = world.send(&post(path, body)).answer();
    assert_eq!(head.status, 200);
    String::from_utf8(payload).unwrap()
}

#[test]
fn chat_stream_has_the_providers_format() {
    let chunk = |delta: &str, finish: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-sim-1\",\"object\":\"chat.completion.chunk\",\"created\":1795158000,\"model\":\"m\",\
             \"system_fingerprint\":\"fp_sim\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\
             \"finish_reason\":{finish}}}]{usage}}}\n\n"
        )
    };
    let all = |usage: &str| {
        [
            chunk(r#"{"role":"assistant","content":"","refusal":null}"#, "null", usage),
            chunk(r#"{"content":"This"}"#, "null", usage),
            chunk(r#"{"content":" answer"}"#, "null", usage),
            chunk("{}", "\"stop\"", usage),
        ]
        .concat()
    };
    let mut request = body("Hello there #sim tokens=2", true);
    assert_eq!(said(CHAT, &request), all("") + "data: [DONE]\n\n");
    request["stream_options"] = json!({ "include_usage": true });
    let usage = "data: {\"id\":\"chatcmpl-sim-1\",\"object\":\"chat.completion.chunk\",\"created\":1795158000,\"model\":\"m\",\
         \"system_fingerprint\":\"fp_sim\",\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2,\
         \"total_tokens\":6,\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n";
    assert_eq!(said(CHAT, &request), all(",\"usage\":null") + usage + "data: [DONE]\n\n");
}

#[test]
fn messages_stream_has_the_providers_format() {
    let expected = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_sim_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"container":null,"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":1,"output_tokens_details":null,"cache_creation":null,"inference_geo":null,"server_tool_use":null,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"","citations":[]}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"This"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null,"container":null},"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":1,"output_tokens_details":null,"cache_creation":null,"inference_geo":null,"server_tool_use":null,"service_tier":"standard"}}

event: message_stop
data: {"type":"message_stop"}

"#;
    assert_eq!(said(MESSAGES, &body("Hello there #sim tokens=1 cached=3", true)), expected);
    let crlf = said(MESSAGES, &body("Hello #sim tokens=1 cached=3 crlf", true));
    assert_eq!(crlf, expected.replace('\n', "\r\n"));
}

/// Returns text, calls as (name, arguments), stop reason and usage of a stream, joined from its events.
fn joined(path: &str, stream: &str) -> (String, Vec<(String, String)>, String, Value) {
    let (mut text, mut calls, mut stop, mut usage) = (String::new(), Vec::new(), String::new(), Value::Null);
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    for event in events.map(|data| serde_json::from_str::<Value>(data).unwrap()) {
        let choice = &event["choices"][0];
        let (delta, block) =
            if path == CHAT { (&choice["delta"], &Value::Null) } else { (&event["delta"], &event["content_block"]) };
        text.push_str(delta["content"].as_str().or(delta["text"].as_str()).unwrap_or_default());
        let function = &delta["tool_calls"][0]["function"];
        if let Some(name) = function["name"].as_str().or(block["name"].as_str()) {
            calls.push((name.to_owned(), String::new()));
        }
        if let Some(args) = function["arguments"].as_str().or(delta["partial_json"].as_str()) {
            calls.last_mut().unwrap().1.push_str(args);
        }
        stop.push_str(choice["finish_reason"].as_str().or(delta["stop_reason"].as_str()).unwrap_or_default());
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    (text, calls, stop, usage)
}

/// Returns the results of `joined` for a whole answer.
fn of_whole(path: &str, whole: &str) -> (String, Vec<(String, String)>, String, Value) {
    let root: Value = serde_json::from_str(whole).unwrap();
    let (mut text, mut calls) = (String::new(), Vec::new());
    let choice = &root["choices"][0];
    let blocks = if path == CHAT { &choice["message"]["tool_calls"] } else { &root["content"] };
    text.push_str(choice["message"]["content"].as_str().unwrap_or_default());
    for block in blocks.as_array().unwrap_or(&Vec::new()) {
        text.push_str(block["text"].as_str().unwrap_or_default());
        if let Some(name) = block["function"]["name"].as_str() {
            calls.push((name.to_owned(), block["function"]["arguments"].as_str().unwrap().to_owned()));
        } else if let Some(name) = block["name"].as_str() {
            calls.push((name.to_owned(), block["input"].to_string()));
        }
    }
    let stop = choice["finish_reason"].as_str().or(root["stop_reason"].as_str()).unwrap().to_owned();
    (text, calls, stop, root["usage"].clone())
}

#[test]
fn streamed_and_complete_answers_are_equal() {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let chat_tools = json!([{ "type": "function", "function": { "name": "look", "parameters": schema } }]);
    let tools = json!([{ "name": "look", "input_schema": schema }]);
    for (path, tools) in [(CHAT, chat_tools), (MESSAGES, tools)] {
        for text in [
            "Hi",
            "#sim tokens=3 cached=1",
            "#sim tool calls=2",
            "#sim tool tokens=4",
            "gr\u{fc}n\n#sim echo",
            "#sim tokens=200",
        ] {
            let mut request = body(text, false);
            request["tools"] = tools.clone();
            let whole = of_whole(path, &said(path, &request));
            request["stream"] = json!(true);
            if path == CHAT {
                request["stream_options"] = json!({ "include_usage": true });
            }
            let streamed = joined(path, &said(path, &request));
            assert_eq!(streamed, whole, "{path} {text}");
            assert_eq!(whole.1.len(), if text.contains("calls=2") { 2 } else { usize::from(text.contains("tool")) });
        }
    }
}

#[test]
fn requests_on_one_connection_are_answered_in_order_and_counted() {
    let mut world = world();
    let both = [
        ask(CHAT, "one two #sim tokens=2", false),
        ask(MESSAGES, "one #sim tokens=3", true),
        ask(CHAT, "#sim status=500", false),
    ];
    for byte in both.concat() {
        world.send(&[byte]);
    }
    assert_eq!(world.json().1["usage"]["completion_tokens"], 2);
    assert!(world.answer().1.ends_with(b"\"message_stop\"}\n\n"));
    assert_eq!(world.json().0, 500);
    let stats = json!({ "requests": 2, "streamed": 1, "prompt_tokens": 4 + 3, "completion_tokens": 5, "aborted": 0, "failed": 1 });
    assert_eq!(world.get("/stats"), stats);
    world.provider.closed(world.conn, Ending::Fin, world.now);
    assert_eq!((world.provider.links.len(), world.provider.shared.pool.lent()), (0, 0));
    assert_eq!(world.provider.stats().aborted, 0);
}

#[test]
fn last_request_is_shown_unchanged() {
    let mut world = world();
    assert_eq!(world.get("/last"), Value::Null);
    let request = ask("/some/v1/messages?beta=true", "Hi", false);
    world.send(&request).answer();
    let last = world.get("/last");
    assert_eq!((&last["method"], &last["target"]), (&json!("POST"), &json!("/some/v1/messages?beta=true")));
    assert_eq!(last["headers"][1], json!(["anthropic-version", "2023-06-01"]));
    assert_eq!(last["body"], body("Hi", false));
    assert_eq!(last["text"].as_str().unwrap().len(), last["bytes"].as_u64().unwrap() as usize);
}

#[test]
fn pace_applies_to_streamed_and_complete_answers() {
    let mut world = World::new(SimulatorSettings { pace: 10, ..SimulatorSettings::default() });
    world.send(&ask(CHAT, "#sim tokens=5", true));
    let texts = |world: &World| String::from_utf8_lossy(&world.received).matches("\"content\":\"").count() - 1;
    assert_eq!(texts(&world), 1);
    world.pass(Duration::from_millis(99));
    assert_eq!(texts(&world), 1);
    world.pass(Duration::from_millis(1));
    assert_eq!(texts(&world), 2);
    world.pass(Duration::from_millis(300));
    world.answer();
    world.send(&ask(CHAT, "#sim tokens=5", false)).pass(Duration::from_millis(499));
    assert!(world.received.is_empty());
    assert_eq!(world.pass(Duration::from_millis(1)).json().0, 200);
    world.send(&ask(CHAT, "#sim tokens=5 pace=0 delay=40", true)).pass(Duration::from_millis(39));
    assert!(world.received.is_empty());
    world.pass(Duration::from_millis(1)).answer();
    for (words, status) in [("status=429", 429), ("html", 502)] {
        world.send(&ask(CHAT, &format!("#sim {words} delay=40"), true)).pass(Duration::from_millis(39));
        assert!(world.received.is_empty());
        assert_eq!(world.pass(Duration::from_millis(1)).answer().0.status, status);
    }
}

#[test]
fn buffer_is_bounded_for_a_slow_reader() {
    let mut world = world();
    let mut request = body("#sim tokens=20000", true);
    request["max_tokens"] = Value::Null;
    world.provider.bytes(world.conn, &post(CHAT, &request), world.now);
    assert!(world.provider.unsent(world.conn).len() < 2 * crate::base::limits::HIGH_WATER);
    world.take(1000);
    let (_, payload) = world.answer();
    assert!(payload.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(world.provider.stats().completion_tokens, 20000);
}

#[test]
fn errors_have_their_formats_form() {
    let mut world = world();
    world.send(&ask(CHAT, "#sim status=429 retry_after=7 message=slow_down", true));
    let (head, body) = world.answer();
    assert_eq!((head.status, head.keep_alive), (429, true));
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        body["error"],
        json!({ "message": "slow down", "type": "requests", "param": null, "code": "rate_limit_exceeded" })
    );
    let (status, body) = world.send(&ask(MESSAGES, "#sim status=529", false)).json();
    assert_eq!((status, &body["type"], &body["error"]["type"]), (529, &json!("error"), &json!("overloaded_error")));
    let (head, body) = world.send(&ask(MESSAGES, "#sim html close", false)).answer();
    assert_eq!((head.status, head.keep_alive, world.shut), (502, false, Some(Shut::Clean)));
    assert!(body.starts_with(b"<html>"));
}

#[test]
fn limits_count_each_credential_by_itself_and_renew() {
    let limits =
        ["requests=3/1m", "tokens=20/1m:m", "tokens=99/day:other*"].map(|text| quotas::parse_limit(text).unwrap());
    let mut world = World::new(SimulatorSettings { limits: limits.into(), ..SimulatorSettings::default() });
    world.now.unix = Unix(1_795_158_000_000 + 15_000);
    let status = |world: &mut World, key: &str, tokens: u64| {
        let asked = String::from_utf8(ask(CHAT, &format!("#sim tokens={tokens}"), false)).unwrap();
        world.send(asked.replace("host: h", &format!("host: h\r\nauthorization: Bearer {key}")).as_bytes());
        let is_refused_until_the_next_minute = String::from_utf8_lossy(&world.received).contains("retry-after: 45\r\n");
        let status = world.json().0;
        assert_eq!(is_refused_until_the_next_minute, status == 429);
        status
    };
    // The prompt has two tokens. A refused request counts in no limit.
    for (key, tokens, expected) in [("a", 8, 200), ("a", 9, 429), ("a", 8, 200), ("a", 1, 429), ("b", 18, 200)] {
        assert_eq!(status(&mut world, key, tokens), expected, "{key} {tokens}");
    }
    world.now.unix = Unix(1_795_158_000_000 + 60_000);
    assert_eq!(status(&mut world, "a", 18), 200);
    for wrong in ["running=3", "budget=1/day", "requests=3", "requests/day=none", "requests=3/window"] {
        assert!(quotas::parse_limit(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn unknown_endpoints_are_refused_before_the_body() {
    let mut world = World::new(SimulatorSettings { key: Some("k".into()), ..SimulatorSettings::default() });
    assert_eq!(world.send(&ask(CHAT, "Hi", false)).json().0, 401);
    assert_eq!(world.send(&ask("/v1/other", "Hi", false)).json().0, 404);
    assert_eq!(world.send(b"GET /v1/messages HTTP/1.1\r\nhost: h\r\n\r\n").json().0, 405);
    let keyed = |path, name: &str| {
        String::from_utf8(ask(path, "Hi", false))
            .unwrap()
            .replace("host: h", &format!("host: h\r\n{name}"))
            .into_bytes()
    };
    assert_eq!(world.send(&keyed(CHAT, "authorization: Bearer k")).json().0, 200);
    assert_eq!(world.send(&keyed(MESSAGES, "x-api-key: k")).json().0, 200);
    let unversioned = keyed(MESSAGES, "x-api-key: k");
    let unversioned = String::from_utf8(unversioned).unwrap().replace("anthropic-version", "anthropic-nothing");
    assert_eq!(world.send(unversioned.as_bytes()).json().0, 400);
    assert_eq!(world.send(b"POST /v1/messages HTTP/1.1\r\n\r\n").json().0, 400);
    assert_eq!(world.shut, Some(Shut::Clean));
}

#[test]
fn streams_break_at_the_requested_position() {
    let run = |path, words: &str| {
        let mut world = world();
        world.send(&ask(path, &format!("#sim tokens=5 {words}"), true));
        world
    };
    let text = |world: &World| String::from_utf8_lossy(&world.received).into_owned();
    for path in [CHAT, MESSAGES] {
        for (words, shut) in
            [("cut_after=2", Some(Shut::Clean)), ("reset_after=2", Some(Shut::Abort)), ("stall_after=2", None)]
        {
            let world = run(path, words);
            assert!(text(&world).contains(" answer") && !text(&world).contains(" was"), "{words}");
            assert!(!text(&world).ends_with("0\r\n\r\n"));
            assert_eq!(world.shut, shut);
        }
        let (_, payload) = run(path, "error_after=2 message=oh_no").answer();
        let payload = String::from_utf8(payload).unwrap();
        let last = payload.trim_end().lines().last().unwrap().strip_prefix("data: ").unwrap();
        assert_eq!(serde_json::from_str::<Value>(last).unwrap()["error"]["message"], "oh no");
        assert_eq!(path == MESSAGES, payload.contains("event: error\n"));
        let (_, payload) = run(path, "error_after=0").answer();
        assert_eq!(String::from_utf8_lossy(&payload).matches("data: ").count(), 1);
        assert!(text(&run(path, "cut_after=0")).ends_with("\r\n\r\n"));
        let end = if path == CHAT { "[DONE]" } else { "message_stop" };
        let (_, payload) = run(path, "no_done").answer();
        let payload = String::from_utf8(payload).unwrap();
        assert!(!payload.contains(end) && payload.contains(if path == CHAT { "\"stop\"" } else { "end_turn" }));
        let (_, payload) = run(path, "no_finish").answer();
        assert!(!String::from_utf8(payload).unwrap().contains("usage\":{\"prompt"));
        let world = run(path, "hang");
        assert!(text(&world).contains(end) && !text(&world).ends_with("0\r\n\r\n"));
        assert_eq!(world.shut, None);
        let mut world = run(path, "close");
        assert_eq!(world.shut, Some(Shut::Clean));
        let (head, payload) = world.answer();
        assert_eq!(head.framing, crate::wire::head::Framing::ToEnd);
        assert!(String::from_utf8(payload).unwrap().contains(end));
        let world = run(path, "stall_head");
        assert!(world.received.is_empty() && world.provider.stats().requests == 0);
        let (_, payload) = run(path, "no_usage").answer();
        assert!(!String::from_utf8(payload).unwrap().contains("usage"));
        let (_, payload) = run(path, "garbage").answer();
        let broken = |data: &str| data != "[DONE]" && serde_json::from_str::<Value>(data).is_err();
        let payload = String::from_utf8(payload).unwrap();
        assert!(payload.lines().filter_map(|line| line.strip_prefix("data: ")).any(broken));
        assert!(run(path, "hint").received.starts_with(b"HTTP/1.1 103 "));
        assert!(text(&run(path, "encoding=gzip")).contains("content-encoding: gzip\r\n"));
        let (_, payload) = run(path, "plain").answer();
        assert!(serde_json::from_slice::<Value>(&payload).is_ok());
        let (_, payload) = run(path, "big=100000").answer();
        assert!(payload.len() > 100_000);
    }
}

#[test]
fn complete_answers_break_at_the_requested_position() {
    let run = |words: &str| {
        let mut world = world();
        world.send(&ask(CHAT, &format!("#sim {words}"), false));
        world
    };
    for (words, shut) in
        [("cut_after=9", Some(Shut::Clean)), ("reset_after=9", Some(Shut::Abort)), ("stall_after=9", None)]
    {
        let world = run(words);
        assert!(world.received.ends_with(b"\r\n\r\n{\"id\":\"ch"), "{words}");
        assert_eq!(world.shut, shut);
    }
    let (_, payload) = run("bare").answer();
    let payload: Value = serde_json::from_slice(&payload).unwrap();
    assert!(["object", "created", "usage"].iter().all(|name| payload.get(*name).is_none()));
    assert_eq!(run("garbage").answer().1, b"{\"id\"");
    let mut world = run("close");
    assert_eq!((world.shut, world.answer().0.framing), (Some(Shut::Clean), crate::wire::head::Framing::ToEnd));
}

#[test]
fn stalled_stream_can_send_heartbeats() {
    for (path, sign) in [(CHAT, ": sim\n\n"), (MESSAGES, "event: ping\n")] {
        let mut world = world();
        world.send(&ask(path, "#sim stall_after=1 ping=100", true));
        world.pass(Duration::from_millis(350));
        assert_eq!(String::from_utf8_lossy(&world.received).matches(sign).count(), 3);
    }
}

#[test]
fn completions_contain_every_requested_text() {
    let path = "/v1/completions";
    let body = |more: Value| {
        let mut body = json!({ "model": "m", "prompt": ["a", "b c\n#sim tokens=2"], "n": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole: Value = serde_json::from_str(&said(path, &body(json!({ "best_of": 3 })))).unwrap();
    let texts = whole["choices"].as_array().unwrap().iter();
    let texts: Vec<_> = texts.map(|choice| (choice["index"].as_u64(), choice["text"].as_str())).collect();
    assert_eq!(texts, [0, 1, 2, 3].map(|index| (Some(index), Some("This answer"))));
    let usage = json!({ "prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17 });
    assert_eq!(whole["usage"], usage);
    let stream = said(path, &body(json!({ "stream": true, "stream_options": { "include_usage": true } })));
    let mut texts = vec![(String::new(), 0); 4];
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    for event in data.filter_map(|data| serde_json::from_str::<Value>(data).ok()) {
        for choice in event["choices"].as_array().unwrap() {
            let (text, ends) = &mut texts[choice["index"].as_u64().unwrap() as usize];
            text.push_str(choice["text"].as_str().unwrap());
            *ends += u32::from(choice["finish_reason"] == "stop");
        }
    }
    assert_eq!(texts, vec![("This answer".to_owned(), 1); 4]);
    assert!(stream.contains("\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":8,\"total_tokens\":13}"), "{stream}");
    for more in
        [json!({ "best_of": 1 }), json!({ "best_of": 3, "stream": true }), json!({ "n": "2" }), json!({ "n": 0 })]
    {
        let mut world = world();
        assert_eq!(world.send(&post(path, &body(more))).json().0, 400);
    }
}

#[test]
fn a_client_that_leaves_is_counted() {
    let mut world = world();
    world.send(&ask(CHAT, "#sim stall_after=1", true));
    world.provider.closed(world.conn, Ending::Fin, world.now);
    let stats = world.provider.stats();
    assert_eq!((stats.aborted, stats.requests, stats.completion_tokens), (1, 1, 1));
    assert_eq!(world.provider.shared.pool.lent(), 0);
    world.provider.wrote(world.conn, 0, world.now);
    assert!(!world.provider.wants_read(world.conn));
}

#[test]
fn drip_writes_few_bytes_at_a_time() {
    let mut world = world();
    world.provider.bytes(world.conn, &ask(CHAT, "#sim drip=3 tokens=2", false), world.now);
    assert_eq!(world.provider.unsent(world.conn).len(), 3);
    world.take(usize::MAX);
    assert_eq!(world.json().0, 200);
    world.send(&ask(CHAT, "#sim tokens=2", false));
    assert_eq!(world.json().0, 200);
}

#[test]
fn client_that_expects_100_continue_gets_it() {
    let mut world = world();
    let request =
        String::from_utf8(ask(CHAT, "Hi", false)).unwrap().replace("host: h", "host: h\r\nexpect: 100-continue");
    let (head, body) = request.split_at(request.find("\r\n\r\n").unwrap() + 4);
    world.send(head.as_bytes());
    assert_eq!(world.received, b"HTTP/1.1 100 Continue\r\n\r\n");
    world.received.clear();
    assert_eq!(world.send(body.as_bytes()).json().0, 200);
}

#[test]
fn an_old_client_gets_a_body_that_ends_with_the_connection() {
    let mut world = world();
    let request = String::from_utf8(ask(CHAT, "Hi", true)).unwrap().replace("HTTP/1.1", "HTTP/1.0");
    world.send(request.as_bytes());
    assert_eq!((world.shut, world.answer().0.framing), (Some(Shut::Clean), crate::wire::head::Framing::ToEnd));
}

#[test]
fn terminate_ends_the_core() {
    let mut provider = Simulator::new(SimulatorSettings::default());
    provider.reply(Reply::Signal(Signal::Terminate), Now::default());
    assert_eq!(provider.actions(), &[Action::StopAccepting(usize::MAX), Action::Exit]);
}
