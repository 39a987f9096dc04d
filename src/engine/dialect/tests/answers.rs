//! Responses upstreams with unusual answers: failures, content that arrives late or never, and the members that
//! Tollgate replaces.

use super::responses::{asked, call, json, user};
use super::*;
use crate::dialect::Param;
use crate::wire::ModelEndpoint;
use serde_json::json as value;

/// The events of a responses upstream, each with its type as its name.
fn events(events: &[Value]) -> String {
    let event = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    events.iter().map(event).collect()
}

/// A stream within one format, with the client's error event if it breaks.
fn same(text: &str, identity: &ResponseIdentity<'_>) -> (String, ObservedUsage, Result<Fed, StreamFault>) {
    let mut stream = SseStream::same(ModelEndpoint::RESPONSES, false, 1 << 20);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let fed = stream.feed(text.as_bytes(), &mut pool, identity, &mut out);
    if let Err(StreamFault::Error(_)) = fed {
        let words = ErrorWords {
            kind: "upstream_error",
            status: 500,
            word: "server_error",
            message: "ours",
            details: None,
            resets_at: None,
            request_id: ME_ID,
        };
        stream.fail(ModelEndpoint::RESPONSES, &words, identity, &mut out);
    }
    stream.release(&mut pool);
    (String::from_utf8(out).unwrap(), stream.observed(), fed)
}

fn data(out: &str) -> Vec<Value> {
    out.lines().filter_map(|line| line.strip_prefix("data: ")).map(json).collect()
}

fn delta(number: u64, text: &str) -> Value {
    value!({"type": "response.output_text.delta", "sequence_number": number, "output_index": 0, "delta": text})
}

fn created() -> Value {
    value!({"type": "response.created", "sequence_number": 0, "response": {"id": "r", "status": "in_progress"}})
}

fn usage() -> Value {
    value!({"input_tokens": 11, "output_tokens": 7, "total_tokens": 18})
}

fn failed(kind: &str) -> Value {
    value!({"type": kind, "sequence_number": 2, "response": {"id": "r", "model": "theirs", "created_at": 5,
        "status": "failed", "output": [{"type": "reasoning", "id": "rs"}], "usage": usage(),
        "error": {"code": "server_error", "message": "theirs"}}})
}

#[test]
fn failed_response_keeps_its_usage_and_finished_items() {
    for kind in ["response.failed", "response.completed"] {
        let text = events(&[created(), delta(1, "hi"), failed(kind)]);
        let (out, observed, fed) = same(&text, &ME);
        assert!(matches!(fed, Err(StreamFault::Error(_))), "{fed:?}");
        assert_eq!((observed.reported.input, observed.reported.output), (Some(11), Some(7)));
        let sent = data(&out);
        let [error, last] = &sent[2..] else { panic!("{out}") };
        assert_eq!((&error["type"], &error["sequence_number"]), (&value!("error"), &value!(2)));
        assert_eq!((&last["type"], &last["sequence_number"]), (&value!("response.failed"), &value!(3)));
        let want = value!({"id": ME_ID, "model": ME.model, "created_at": 5, "status": "failed", "usage": usage(),
            "output": [{"type": "reasoning", "id": "rs"}], "error": {"code": "server_error", "message": "ours"}});
        assert_eq!(last["response"], want);
        for to in [Shape::Chat, Shape::Messages] {
            let outcome =
                stream_for((Shape::Responses, to), &TranslationState::default(), false, &ME, &[text.as_bytes()]);
            assert!(matches!(outcome.result, Err(StreamFault::Error(_))));
            let reported = outcome.observed.reported;
            assert_eq!((reported.input, reported.output), (Some(11), Some(7)), "{to:?}");
        }
    }
}

#[test]
fn cancelled_response_reports_its_usage() {
    let text = events(&[
        created(),
        value!({"type": "response.cancelled", "sequence_number": 1, "response": {"id": "r", "status": "cancelled", "usage": usage()}}),
        value!({"type": "error", "sequence_number": 2, "message": "gone"}),
    ]);
    let (out, _, _) = same(&text, &ME);
    assert_eq!(data(&out).last().unwrap()["response"]["usage"]["input_tokens"], 11, "{out}");
}

#[test]
fn heartbeats_are_events_and_later_numbers_shift() {
    let mut stream = SseStream::same(ModelEndpoint::RESPONSES, false, 1 << 20);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let mut feed = |stream: &mut SseStream, events_: &[Value], out: &mut Vec<u8>| {
        stream.feed(events(events_).as_bytes(), &mut pool, &ME, out).unwrap();
    };
    let alive = |number: u64| value!({"type": "keepalive", "sequence_number": number});
    feed(&mut stream, &[alive(0)], &mut out);
    assert_eq!(out, b"", "before an answer begins there is none");
    feed(&mut stream, &[created(), alive(1), delta(2, "a"), delta(3, "b"), delta(4, "c")], &mut out);
    let from = out.len();
    assert_eq!(stream.heartbeat(Shape::Responses, 0, &ME, &mut out), 6);
    assert_eq!(stream.heartbeat(Shape::Responses, 0, &ME, &mut out), 7);
    let usage = value!({"type": "x", "sequence_number": 8, "y": {"sequence_number": 1}});
    feed(&mut stream, &[delta(5, "d"), delta(6, "e"), alive(7), usage], &mut out);
    feed(&mut stream, &[value!({"type": "ping"}), delta(9, "f")], &mut out);
    let done = value!({"type": "response.completed", "sequence_number": 10, "response": {"id": "r", "output": []}});
    feed(&mut stream, &[done], &mut out);
    let out = String::from_utf8(out).unwrap();
    let sent = data(&out[from..]);
    let numbers: Vec<u64> = sent.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (5..14).collect::<Vec<_>>(), "{out}");
    let kinds: Vec<&str> = sent.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!([kinds[0], kinds[1], kinds[4], kinds[6]], ["keepalive"; 4], "{out}");
    assert_eq!((&sent[2]["delta"], &sent[3]["delta"], &sent[7]["delta"]), (&value!("d"), &value!("e"), &value!("f")));
    assert_eq!(sent[5]["y"]["sequence_number"], 1);
    // Without events of Tollgate's own in between, everything is unchanged.
    assert_eq!(data(&out[..from])[2..], [delta(2, "a"), delta(3, "b"), delta(4, "c")]);
    assert_eq!(data(&out[..from])[1], alive(1));
}

#[test]
fn response_sent_only_at_its_end_is_passed_on() {
    let output = value!([
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "said"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":1}"}
    ]);
    let response = value!({"status": "completed", "output": output, "usage": usage()});
    let end = value!({"type": "response.completed", "response": response});
    let began = value!({"type": "response.output_text.delta", "output_index": 1, "delta": "said"});
    let opened = value!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "thought"});
    for text in [events(std::slice::from_ref(&end)), events(&[opened, began, end])] {
        let way = |to| stream_for_every_way((Shape::Responses, to), &TranslationState::default(), false, &ME, &text);
        let chat = super::property::accumulate_chat(&way(Shape::Chat).out)["choices"][0].clone();
        assert_eq!((&chat["message"]["content"], &chat["finish_reason"]), (&value!("said"), &value!("tool_calls")));
        assert_eq!(chat["message"]["reasoning_content"], "thought");
        assert_eq!(chat["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        let messages = super::property::accumulate_messages(&way(Shape::Messages).out);
        assert_eq!((messages["content"].as_array().unwrap().len(), &messages["stop_reason"]), (3, &value!("tool_use")));
    }
}

#[test]
fn escaped_type_is_recognised() {
    let text = events(&[created()])
        + "data: {\"type\":\"response.compl\\u0065ted\",\"response\":{\"status\":\"completed\",\"output\":[{}]}}\n\n";
    let (out, _, fed) = same(&text, &ME);
    assert!(fed.unwrap().finished && out.contains("event: response.completed\n"), "{out}");
    let way = (Shape::Responses, Shape::Chat);
    assert_eq!(stream_for(way, &TranslationState::default(), false, &ME, &[text.as_bytes()]).result, Ok(()));
    // The name of an event must not contain a line end.
    let text = "data: {\"type\":\"response.x\\n\\ndata: 1\",\"response\":{\"id\":\"r\"}}\n\n";
    assert!(!same(&(events(&[created()]) + text), &ME).0.contains("\ndata: 1"));
}

#[test]
fn configured_parameters_are_not_repeated() {
    let param = |name: &str| Param { name: name.to_owned(), json: "1".to_owned(), always: true };
    let hides = [param("temperature"), param("service_tier"), param("prompt_cache_key")];
    let identity = ResponseIdentity { hides: &hides, ..ME };
    let full = value!({"temperature": 0.2, "id": "r", "output": [{"temperature": 1}], "status": "completed",
        "prompt_cache_key": "operator-secret", "model": "m", "service_tier": "flex"});
    let want = value!({"id": ME_ID, "output": [{"temperature": 1}], "status": "completed", "model": ME.model});
    let mut out = Vec::new();
    whole(ModelEndpoint::RESPONSES, full.to_string().as_bytes(), &identity, &mut out).unwrap();
    assert_eq!(json(std::str::from_utf8(&out).unwrap()), want);
    let event = value!({"type": "response.completed", "temperature": 3, "response": full});
    let sent = data(&same(&events(&[event]), &identity).0);
    assert_eq!(sent, [value!({"type": "response.completed", "temperature": 3, "response": want})]);
    let mut broken = failed("response.failed");
    broken["response"]["service_tier"] = value!("flex");
    let (out, _, _) = same(&events(&[created(), broken]), &identity);
    assert!(out.contains("response.failed") && !out.contains("flex"), "{out}");
}

#[test]
fn unrequested_stream_is_collected_for_a_client_of_its_format() {
    let item = value!({"type": "message", "content": [{"type": "output_text", "text": "x"}]});
    let text = events(&[
        created(),
        value!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        value!({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [], "usage": usage()}}),
    ]);
    let mut out = Vec::new();
    let observed = whole(ModelEndpoint::RESPONSES, text.as_bytes(), &ME, &mut out).unwrap();
    let got = json(std::str::from_utf8(&out).unwrap());
    assert_eq!((&got["id"], &got["output"]), (&value!(ME_ID), &value!([item])));
    assert_eq!((observed.reported.input, observed.reported.output), (Some(11), Some(7)));
    assert_eq!(whole(ModelEndpoint::RESPONSES, b"data: {}\n\n", &ME, &mut Vec::new()), Err(Broken::NotJson));
}

#[test]
fn file_by_id_is_refused() {
    let refused = |item: Value| {
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::RESPONSES);
        let body = value!({"model": "m", "input": [item]}).to_string();
        scan.finish(body.as_bytes()).unwrap();
        let stored = scan.fields().may_name_stored(&Capabilities::default());
        stored.err().map(|why| why.0.split_once(':').unwrap().0.to_owned())
    };
    let shot = value!({"type": "computer_screenshot", "file_id": "file-other"});
    for (item, path) in [
        (value!({"type": "computer_call_output", "call_id": "c", "output": shot}), "input[0].output.file_id"),
        (value!({"type": "x", "output": [{"y": {"file_id": "f"}}]}), "input[0].output[0].y.file_id"),
        (value!({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}), "input[0].content[0].file_id"),
        (value!({"type": "input_image", "role": "user", "file_id": "f"}), "input[0].file_id"),
    ] {
        assert_eq!(refused(item.clone()).as_deref(), Some(path), "{item}");
    }
    let cited =
        value!([{"type": "output_text", "text": "x", "annotations": [{"type": "file_citation", "file_id": "f"}]}]);
    assert_eq!(refused(value!({"role": "assistant", "content": cited})), None);
    let schema = value!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"file_id\":\"f\"}"});
    assert_eq!(refused(schema), None);
}

/// Many calls in one turn, without outputs and with texts between them: each must be visited once.
#[test]
fn turn_of_many_calls_takes_linear_time() {
    let time = |count: usize| {
        let mut items = vec![user("Go.")];
        items.extend((0..count).map(|n| call(&format!("c{n}"))));
        items.extend((0..count).map(|_| value!({"role": "assistant", "content": "Look."})));
        let items = Value::from(items);
        let began = run_time();
        asked(Shape::Chat, &items);
        (run_time() - began) / 1000
    };
    // Other load can only add time. Quadratic work takes 256 times as long for 16 times as many.
    let (some, more) = (time(1_000), (0..3).map(|_| time(16_000)).min().unwrap());
    assert!(more < 100 * some.max(1000), "{some} µs, {more} µs");
}

/// Nanoseconds of CPU time of this thread.
pub(super) fn run_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split_whitespace().next().unwrap().parse().unwrap()
}

fn marked(from: Shape, body: &Value) -> Value {
    let capabilities = Capabilities { cache: Cache::Marks, ..Capabilities::default() };
    request_for((from, Shape::Messages), &body.to_string(), "up", &capabilities).unwrap().0
}

#[test]
fn clients_own_marks_reach_a_provider_that_caches_marked_prefixes() {
    let usual = value!({"type": "ephemeral"});
    let hour = value!({"type": "ephemeral", "ttl": "1h"});
    let text = |text: &str, mark: &Value| value!({"type": "text", "text": text, "cache_control": mark});
    let tool = value!({"type": "function", "function": {"name": "f", "cache_control": usual}});
    let got = marked(
        Shape::Chat,
        &value!({"model": "m", "tools": [tool], "messages": [
            {"role": "system", "content": [text("rules", &hour), {"type": "text", "text": "more"}]},
            {"role": "user", "content": [text("x", &usual), text(" ", &usual)]},
            {"role": "assistant", "content": null,
             "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": [text("done", &usual)]},
        ]}),
    );
    assert_eq!(got["system"], value!([text("rules", &hour), {"type": "text", "text": "more"}]));
    assert_eq!(got["messages"][0]["content"][0], text("x", &usual));
    assert_eq!(got["messages"][0]["content"][1].get("cache_control"), None);
    let result = &got["messages"][2]["content"][0];
    assert_eq!((&result["cache_control"], result["content"][0].get("cache_control")), (&usual, None));
    assert_eq!(got["tools"][0]["cache_control"], usual);
    let part = value!({"type": "input_text", "text": "x", "prompt_cache_breakpoint": {}});
    let parts = vec![part; 6];
    let got = marked(Shape::Responses, &value!({"model": "m", "input": [{"role": "user", "content": parts}]}));
    let marks =
        got["messages"][0]["content"].as_array().unwrap().iter().filter(|part| part.get("cache_control").is_some());
    assert_eq!(marks.count(), 4, "{got}");
    // Also if the configuration sets no marks.
    let body = value!({"model": "m", "messages": [{"role": "user", "content": [text("x", &usual)]}]});
    let (plain, _) =
        request_for((Shape::Chat, Shape::Messages), &body.to_string(), "up", &Capabilities::default()).unwrap();
    assert_eq!(plain["messages"][0]["content"][0], text("x", &usual));
}

#[test]
fn forged_carrier_passes_on_no_signature() {
    let capabilities = Capabilities { mark: carrier::mark("p", "m"), ..Capabilities::default() };
    let block = br#"{"type":"thinking","thinking":"a","signature":"tg1.zzz"}"#;
    let mut forged = Vec::new();
    carrier::close(block, &capabilities.mark, &mut forged);
    let reasoning = value!({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": String::from_utf8(forged).unwrap()});
    let items = value!([user("hi"), reasoning, {"role": "assistant", "content": "said"}, user("on")]);
    let body = value!({"model": "m", "input": items}).to_string();
    let (got, _) = request_for((Shape::Responses, Shape::Messages), &body, "up", &capabilities).unwrap();
    assert!(!got.to_string().contains("tg1."), "{got}");
}

#[test]
fn refusals_about_tools_name_the_clients_members() {
    let refused = |body: Value| {
        let capabilities = Capabilities::default();
        request_for((Shape::Responses, Shape::Chat), &body.to_string(), "up", &capabilities).err()
    };
    let path = |body: Value| refused(body).unwrap().split_once(':').unwrap().0.to_owned();
    let function = value!({"type": "function", "name": "f"});
    let space = |tools: Value| value!({"type": "namespace", "name": "n", "tools": tools});
    let hosted = space(value!([{"type": "web_search"}, {"type": "function", "name": "g"}]));
    assert_eq!(refused(value!({"model": "m", "input": "x", "tools": [hosted]})), None);
    let nameless = space(value!([function, {"type": "function"}]));
    assert_eq!(path(value!({"model": "m", "input": "x", "tools": [function, nameless]})), "tools[1].tools[1].name");
    let item = value!({"type": "additional_tools", "tools": [function, {"type": "custom"}]});
    assert_eq!(path(value!({"model": "m", "input": [user("x"), item], "tools": [function]})), "input[1].tools[1].name");
    let choice = value!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]});
    let body = value!({"model": "m", "input": "x", "tools": [function, {"type": "web_search"}], "tool_choice": choice});
    assert_eq!(path(body), "tool_choice");
    let members: Vec<Value> = (0..3000).map(|n| value!({"type": "function", "name": format!("f{n}")})).collect();
    let words = refused(value!({"model": "m", "input": "x", "tools": [space(value!(members))]})).unwrap();
    assert!(words.starts_with("tools: ") && words.contains("namespace"), "{words}");
}

/// The answer gets at least half of the bound.
#[test]
fn thinking_leaves_half_of_the_bound_for_the_answer() {
    let budget = |bound: Option<u64>| {
        let capabilities = Capabilities { thinking: Thinking::Budget, ..Capabilities::default() };
        let body = value!({"model": "m", "input": "x", "max_output_tokens": bound, "reasoning": {"effort": "high"}});
        let way = (Shape::Responses, Shape::Messages);
        request_for(way, &body.to_string(), "up", &capabilities).unwrap().0["thinking"]["budget_tokens"].as_u64()
    };
    assert_eq!([budget(None), budget(Some(1500)), budget(Some(64_000))], [Some(2048), Some(1024), Some(16_384)]);
    assert_eq!(budget(Some(1024)), None);
}
