//! Generated tests for every pair of client and provider format: names of tools, and charges.

use super::endings::{SHAPES, run_stream};
use super::reports::{counted, shown};
use super::*;
use crate::dialect::capabilities::Structured;
use crate::dialect::neutral::carrier;
use crate::wire::ModelEndpoint;
use serde_json::json as value;

/// Names that some format refuses, or that become similar when they are changed.
const NAMES: [&str; 10] = [
    "desk.list/tickets",
    "desk_list_tickets",
    "desk.list:tickets",
    "close ticket",
    "desk_list_tickets_37a15033",
    "plain-Name_1",
    "caf\u{e9} \"quoted\"",
    "mcp__a_server_with_a_very_long_name__and_a_tool_with_a_long_name_1",
    "mcp__a_server_with_a_very_long_name__and_a_tool_with_a_long_name_2",
    "x123456789x123456789x123456789x123456789x123456789x123456789x123456789x123456789x123456789x123456789x123456789x123456789x123456789",
];

/// A request that offers tools with all names, chooses the second to last and has called the first.
fn offering(from: Shape) -> Value {
    let (one, called) = (NAMES[8], NAMES[0]);
    let schema = value!({"type": "object", "properties": {}});
    match from {
        Shape::Messages => value!({"model": "m", "max_tokens": 9, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": called, "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]}],
            "tools": NAMES.map(|name| value!({"name": name, "input_schema": schema})),
            "tool_choice": {"type": "tool", "name": one}}),
        Shape::Responses => value!({"model": "m", "input": [
            {"role": "user", "content": "a"},
            {"type": "function_call", "name": called, "arguments": "{}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"}],
            "tools": NAMES.map(|name| value!({"type": "function", "name": name, "parameters": schema})),
            "tool_choice": {"type": "function", "name": one}}),
        _ => value!({"model": "m", "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": called, "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"}],
            "tools": NAMES.map(|name| value!({"type": "function", "function": {"name": name, "parameters": schema}})),
            "tool_choice": {"type": "function", "function": {"name": one}}}),
    }
}

/// Names in a request or an answer: of tools, of the choice and of calls.
fn names(shape: Shape, body: &Value) -> (Vec<String>, Value, Vec<String>) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let own = |tool: &Value| text(tool.get("name").unwrap_or(&tool["function"]["name"]));
    let called = |item: &&Value| item["type"] == "tool_use" || item["type"] == "function_call";
    let calls: Vec<String> = match shape {
        Shape::Chat => of(&body["messages"][1]["tool_calls"]).iter().map(own).collect(),
        Shape::Messages => of(&body["messages"][1]["content"]).iter().filter(called).map(own).collect(),
        _ => of(&body["input"]).iter().filter(called).map(own).collect(),
    };
    let choice = &body["tool_choice"];
    let choice = choice.get("name").unwrap_or(&choice["function"]["name"]).clone();
    (of(&body["tools"]).iter().map(own).collect(), choice, calls)
}

/// A provider's answer that calls these tools, complete and streamed.
fn calling(from: Shape, names: &[String]) -> [String; 2] {
    let event = |kind: &str, more: Value| {
        let mut event = value!({"type": kind});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("event: {kind}\ndata: {event}\n\n")
    };
    let all = names.iter().enumerate();
    match from {
        Shape::Messages => {
            let blocks: Vec<Value> = all
                .map(|(at, name)| value!({"type": "tool_use", "id": format!("c{at}"), "name": name, "input": {}}))
                .collect();
            let start = value!({"message": {"id": "m", "content": [], "usage": {"input_tokens": 1}}});
            let mut text = event("message_start", start);
            for (at, block) in blocks.iter().enumerate() {
                text += &event("content_block_start", value!({"index": at, "content_block": block}));
                text += &event("content_block_stop", value!({"index": at}));
            }
            text +=
                &event("message_delta", value!({"delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}));
            let whole = value!({"id": "m", "type": "message", "content": blocks, "stop_reason": "tool_use"});
            [whole.to_string(), text + &event("message_stop", value!({}))]
        }
        Shape::Responses => {
            let items: Vec<Value> = all
                .map(|(at, name)| {
                    let id = format!("c{at}");
                    value!({"type": "function_call", "id": id, "call_id": id, "name": name, "arguments": "{}"})
                })
                .collect();
            let whole = value!({"id": "r", "status": "completed", "output": items});
            [whole.to_string(), event("response.completed", value!({"response": whole}))]
        }
        _ => {
            let calls: Vec<Value> = all
                .map(|(at, name)| {
                    let function = value!({"name": name, "arguments": "{}"});
                    value!({"index": at, "id": format!("c{at}"), "type": "function", "function": function})
                })
                .collect();
            let choice = |name: &str| value!({"index": 0, name: {"tool_calls": calls}, "finish_reason": "tool_calls"});
            let whole = value!({"object": "chat.completion", "choices": [choice("message")]});
            let chunk = value!({"choices": [choice("delta")]});
            [whole.to_string(), format!("data: {chunk}\n\ndata: [DONE]\n\n")]
        }
    }
}

fn pairs() -> impl Iterator<Item = (Shape, Shape)> {
    SHAPES.into_iter().flat_map(|from| SHAPES.map(|to| (from, to)))
}

#[test]
fn tool_names_are_valid_for_providers_and_restored() {
    for (client, provider) in pairs().filter(|(client, provider)| client != provider) {
        let way = format!("{client:?} to {provider:?}");
        let body = offering(client).to_string();
        let (request, state) = request_for((client, provider), &body, "up", &Capabilities::default()).unwrap();
        let (tools, choice, calls) = names(provider, &request);
        let most = if provider == Shape::Messages { 128 } else { 64 };
        let is_legal = |name: &String| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            (1..=most).contains(&name.len()) && name.bytes().all(plain)
        };
        assert!(tools.iter().all(is_legal), "{way}: {tools:?}");
        let distinct: std::collections::BTreeSet<&String> = tools.iter().collect();
        assert_eq!((tools.len(), distinct.len()), (NAMES.len(), NAMES.len()), "{way}: {tools:?}");
        assert_eq!((&choice, &calls), (&value!(tools[8]), &vec![tools[0].clone()]), "{way}");
        for (name, own) in tools.iter().zip(NAMES) {
            assert_eq!(name == own, is_legal(&own.to_owned()), "{way}: {name}");
        }
        let [whole, text] = calling(provider, &tools);
        let mut out = Vec::new();
        reply((provider, client), whole.as_bytes(), &state, &ME, &mut out).unwrap();
        let streamed = run_stream((provider, client), &state, &text);
        assert_eq!(streamed.result, Ok(()), "{way}: {}", streamed.out);
        for (text, what) in [(String::from_utf8(out).unwrap(), "complete"), (streamed.out, "streamed")] {
            for name in NAMES {
                let name = value!({ "name": name }).to_string();
                let name = &name[1..name.len() - 1];
                assert!(text.contains(name), "{way}, {what}: {name} is missing in {text}");
            }
        }
    }
}

/// A usage as a provider writes it, and the billed counts: input without cached tokens, read from a cache, written to
/// one, output.
type Bill = (&'static str, [u64; 4]);

const CHAT: &[Bill] = &[
    (r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43}"#, [31, 0, 0, 12]),
    (r#"{"prompt_tokens":31,"completion_tokens":12}"#, [31, 0, 0, 12]),
    (r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":99}"#, [31, 0, 0, 68]),
    (r#"{"prompt_tokens":31,"completion_tokens":0,"total_tokens":31}"#, [31, 0, 0, 0]),
    (r#"{"prompt_tokens":31,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":20}}"#, [11, 20, 0, 12]),
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":20,"cache_write_tokens":5}}"#,
        [6, 20, 5, 12],
    ),
    (r#"{"prompt_tokens":31,"completion_tokens":12,"prompt_tokens_details":null}"#, [31, 0, 0, 12]),
    (r#"{"prompt_tokens":31,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":null}}"#, [31, 0, 0, 12]),
    // DeepSeek, Moonshot.
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"prompt_cache_hit_tokens":20,"prompt_cache_miss_tokens":11}"#,
        [11, 20, 0, 12],
    ),
    (r#"{"prompt_tokens":31,"completion_tokens":12,"cached_tokens":20}"#, [11, 20, 0, 12]),
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"cached_tokens":20,"prompt_tokens_details":{"cached_tokens":20}}"#,
        [11, 20, 0, 12],
    ),
    // Cached tokens are not part of the prompt.
    (r#"{"prompt_tokens":11,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":20}}"#, [11, 20, 0, 12]),
    // Reasoning outside the completion, and within it.
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":50,"completion_tokens_details":{"reasoning_tokens":7}}"#,
        [31, 0, 0, 19],
    ),
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43,"completion_tokens_details":{"reasoning_tokens":7}}"#,
        [31, 0, 0, 12],
    ),
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43,"completion_tokens_details":{"reasoning_tokens":0}}"#,
        [31, 0, 0, 12],
    ),
    (
        r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":50,"prompt_tokens_details":{"cached_tokens":20},"completion_tokens_details":{"reasoning_tokens":7}}"#,
        [11, 20, 0, 19],
    ),
];

const MESSAGES: &[Bill] = &[
    (r#"{"input_tokens":31,"output_tokens":12}"#, [31, 0, 0, 12]),
    (r#"{"input_tokens":31,"output_tokens":0}"#, [31, 0, 0, 0]),
    (
        r#"{"input_tokens":31,"output_tokens":12,"cache_read_input_tokens":20,"cache_creation_input_tokens":5}"#,
        [31, 20, 5, 12],
    ),
    (
        r#"{"input_tokens":31,"output_tokens":12,"cache_read_input_tokens":null,"cache_creation":null,"iterations":null}"#,
        [31, 0, 0, 12],
    ),
    (
        r#"{"input_tokens":31,"output_tokens":12,"cache_creation_input_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":3}}"#,
        [31, 0, 5, 12],
    ),
    (
        r#"{"input_tokens":31,"output_tokens":12,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":3}}"#,
        [31, 0, 5, 12],
    ),
    (r#"{"input_tokens":31,"output_tokens":12,"output_tokens_details":{"thinking_tokens":7}}"#, [31, 0, 0, 12]),
    (
        r#"{"input_tokens":31,"output_tokens":12,"iterations":[{"type":"compaction","input_tokens":100,"output_tokens":50,"cache_read_input_tokens":7},{"type":"message","input_tokens":31,"output_tokens":12}]}"#,
        [131, 7, 0, 62],
    ),
    (
        r#"{"input_tokens":31,"output_tokens":12,"iterations":[{"type":"message","input_tokens":31,"output_tokens":12},{"type":"brand_new","input_tokens":9}]}"#,
        [31, 0, 0, 12],
    ),
];

const RESPONSES: &[Bill] = &[
    (r#"{"input_tokens":31,"output_tokens":12,"total_tokens":43}"#, [31, 0, 0, 12]),
    (r#"{"input_tokens":31,"output_tokens":0,"total_tokens":31}"#, [31, 0, 0, 0]),
    (r#"{"input_tokens":31,"input_tokens_details":{"cached_tokens":20},"output_tokens":12}"#, [11, 20, 0, 12]),
    (
        r#"{"input_tokens":31,"input_tokens_details":{"cached_tokens":20,"cache_write_tokens":5},"output_tokens":12}"#,
        [6, 20, 5, 12],
    ),
    (
        r#"{"input_tokens":31,"input_tokens_details":null,"output_tokens":12,"output_tokens_details":null}"#,
        [31, 0, 0, 12],
    ),
    (
        r#"{"input_tokens":31,"output_tokens":12,"output_tokens_details":{"reasoning_tokens":7},"total_tokens":50}"#,
        [31, 0, 0, 19],
    ),
    (
        r#"{"input_tokens":31,"output_tokens":12,"output_tokens_details":{"reasoning_tokens":7},"total_tokens":43}"#,
        [31, 0, 0, 12],
    ),
];

/// An answer that reports `usage`: complete, and in its possible streams.
fn billed(from: Shape, usage: &str) -> (Vec<String>, Vec<String>) {
    let event = |kind: &str, more: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{more}}}\n\n");
    match from {
        Shape::Chat => {
            let whole = |inside: &str, beside: &str| {
                format!(
                    r#"{{"object":"chat.completion","choices":[{{"index":0,"message":{{"content":"hi"}},"finish_reason":"stop"{inside}}}]{beside}}}"#
                )
            };
            let stream = |inside: &str, beside: &str, last: &str| {
                format!(
                    "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"hi\"}},\"finish_reason\":\"stop\"{inside}}}]{beside}}}\n\n{last}data: [DONE]\n\n"
                )
            };
            let own = format!(",\"usage\":{usage}");
            let last = format!("data: {{\"choices\":[]{own}}}\n\n");
            let early = r#"data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#.to_owned()
                + "

";
            let streams = [
                stream("", "", &last),
                stream("", &own, ""),
                stream(&own, "", ""),
                early + &stream("", ",\"usage\":null", &last),
                stream("", &own, &last),
            ];
            (vec![whole("", &own), whole(&own, "")], streams.into())
        }
        Shape::Messages => {
            let whole = format!(
                r#"{{"id":"m","type":"message","content":[{{"type":"text","text":"hi"}}],"stop_reason":"end_turn","usage":{usage}}}"#
            );
            let stream = |first: &str, last: &str| {
                [
                    event("message_start", &format!(r#""message":{{"id":"m","content":[]{first}}}"#)),
                    event("content_block_start", r#""index":0,"content_block":{"type":"text","text":"hi"}"#),
                    event("content_block_stop", r#""index":0"#),
                    event("message_delta", &format!(r#""delta":{{"stop_reason":"end_turn"}}{last}"#)),
                    event("message_stop", r#""x":1"#),
                ]
                .concat()
            };
            let own = format!(",\"usage\":{usage}");
            // The first report is a guess, or lacks only the output.
            let guess = r#","usage":{"input_tokens":2,"output_tokens":1}"#;
            let output = Reported::from_messages(crate::wire::json::Raw::new(usage.as_bytes())).output.unwrap();
            let late = format!(",\"usage\":{{\"output_tokens\":{output}}}");
            (vec![whole], vec![stream(guess, &own), stream("", &own), stream(&own, &own), stream(&own, &late)])
        }
        _ => {
            let item = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]}"#;
            let whole = format!(r#"{{"id":"r","status":"completed","output":[{item}],"usage":{usage}}}"#);
            let created = event("response.created", r#""response":{"id":"r","status":"in_progress","usage":null}"#);
            let stream = created + &event("response.completed", &format!("\"response\":{whole}"));
            (vec![whole], vec![stream])
        }
    }
}

/// Tokens in the last usage of a stream.
fn shown_last(to: Shape, out: &str) -> [u64; 4] {
    let events = out.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let mut usages = events.filter_map(|event| {
        let choice = &event["choices"][0]["usage"];
        let all = [&event["response"]["usage"], &event["usage"], choice];
        all.into_iter().find(|usage| usage.is_object()).cloned()
    });
    shown(to, &usages.next_back().unwrap())
}

#[test]
fn usage_is_charged_and_shown_as_billed() {
    let mut count = 0;
    for (from, to) in pairs() {
        let all = [CHAT, MESSAGES, RESPONSES][SHAPES.iter().position(|shape| *shape == from).unwrap()];
        for (usage, bill) in all {
            let (wholes, streams) = billed(from, usage);
            for body in &wholes {
                let mut out = Vec::new();
                let state = TranslationState::default();
                let observed = match from == to {
                    true => whole(ModelEndpoint::generate(from), body.as_bytes(), &ME, &mut out),
                    false => reply((from, to), body.as_bytes(), &state, &ME, &mut out),
                };
                let answer: Value = serde_json::from_slice(&out).unwrap();
                let what = format!("{from:?} to {to:?}: {body}\n{answer}");
                assert_eq!(counted(observed.unwrap().reported), *bill, "{what}");
                assert_eq!(shown(to, &answer["usage"]), *bill, "{what}");
                count += 1;
            }
            for text in wholes.iter().chain(&streams) {
                let Outcome { out, observed, result } = run_stream((from, to), &TranslationState::default(), text);
                let what = format!("{from:?} to {to:?}: {text}\n{out}");
                assert_eq!((result, counted(observed.reported)), (Ok(()), *bill), "{what}");
                // A client of the same format adds up its provider's reports itself.
                if from != to || from != Shape::Messages {
                    assert_eq!(shown_last(to, &out), *bill, "{what}");
                }
                count += 1;
            }
        }
    }
    assert!(count > 400, "{count}");
}

#[test]
fn reasoning_keeps_its_signature_in_the_other_format() {
    let thinking = value!({"type": "thinking", "thinking": "A", "signature": "U2ln"});
    let redacted = value!({"type": "redacted_thinking", "data": "RGF0YQ=="});
    let call = value!({"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1]}, "caller": {"type": "direct"}});
    let message = value!({"id": "m", "type": "message", "role": "assistant", "model": "up", "stop_reason": "tool_use",
        "content": [thinking, redacted, call], "usage": {"input_tokens": 31, "output_tokens": 12}});
    let way = (Shape::Messages, Shape::Messages);
    let streamed = run_stream(way, &TranslationState::default(), &message.to_string());
    assert_eq!(streamed.result, Ok(()), "{}", streamed.out);
    let mut out = Vec::new();
    whole(ModelEndpoint::MESSAGES, streamed.out.as_bytes(), &ME, &mut out).unwrap();
    let answer: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&answer["content"], &answer["stop_reason"]), (&message["content"], &message["stop_reason"]));
    let response = value!({"id": "r", "object": "response", "status": "completed", "model": "up", "output": [
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {"type": "custom_tool_call", "id": "ct", "call_id": "c1", "name": "f", "input": "free"}],
        "usage": {"input_tokens": 31, "output_tokens": 12}});
    let way = (Shape::Responses, Shape::Responses);
    let streamed = run_stream(way, &TranslationState::default(), &response.to_string());
    assert_eq!(streamed.result, Ok(()), "{}", streamed.out);
    let mut out = Vec::new();
    whole(ModelEndpoint::RESPONSES, streamed.out.as_bytes(), &ME, &mut out).unwrap();
    let answer: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(answer["output"], response["output"]);
}

#[test]
fn usage_chunk_is_withheld_unless_requested() {
    let usages = [
        r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43}"#,
        r#"{"completion_tokens":12}"#,
        r#"{"prompt_tokens":31}"#,
        "{}",
    ];
    let text = r#"data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
    for (usage, choices) in
        usages.iter().flat_map(|usage| [r#""choices":[],"#, r#""choices":null,"#, ""].map(|c| (usage, c)))
    {
        let all = format!("{text}\n\ndata: {{{choices}\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
        for (show, count) in [(false, 0), (true, 1)] {
            let mut stream = SseStream::same(ModelEndpoint::CHAT, show, 1 << 20);
            let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
            stream.feed(all.as_bytes(), &mut pool, &ME, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert!(out.matches("\"usage\"").count() >= count && (show || !out.contains("usage")), "{all}\n{out}");
        }
    }
}

/// First values of a provider's request, as text.
fn opening(provider: Shape, request: &Value) -> [String; 2] {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        parts => parts[0]["text"].as_str().unwrap_or_default().to_owned(),
    };
    match provider {
        Shape::Messages => [text(&request["system"]), text(&request["messages"][0]["content"])],
        Shape::Responses => [text(&request["instructions"]), text(&request["input"][0]["content"])],
        _ => {
            assert_eq!(request["messages"][0]["role"], "system");
            [text(&request["messages"][0]["content"]), text(&request["messages"][1]["content"])]
        }
    }
}

#[test]
fn developer_messages_and_text_files_reach_every_provider() {
    let (data, url) = ("SGVsbG8=", "data:text/plain;base64,SGVsbG8=");
    for (client, provider) in pairs().filter(|(client, provider)| client != provider) {
        let body = match client {
            Shape::Messages => value!({"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [
                {"role": "user", "content": [{"type": "document",
                    "source": {"type": "base64", "media_type": "text/plain", "data": data}}]}]}),
            Shape::Responses => value!({"model": "m", "input": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "input_file", "filename": "a.txt", "file_data": url}]}]}),
            _ => value!({"model": "m", "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "file", "file": {"filename": "a.txt", "file_data": url}}]}]}),
        };
        let request = request_for((client, provider), &body.to_string(), "up", &Capabilities::default()).unwrap().0;
        assert_eq!(opening(provider, &request), ["Be brief.", "Hello"], "{client:?} to {provider:?}: {request}");
    }
}

#[test]
fn strict_tool_has_a_schema_that_its_provider_accepts() {
    let takes = Capabilities { strict_tools: true, ..Capabilities::default() };
    let schema = value!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}, "required": ["n"],
        "additionalProperties": false});
    let function = value!({"name": "f", "strict": true, "parameters": schema});
    let body = value!({"model": "m", "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": function}]});
    let way = (Shape::Chat, Shape::Messages);
    let tool = &request_for(way, &body.to_string(), "up", &takes).unwrap().0["tools"][0];
    let number = value!({"type": "integer", "description": "{maximum: 5}"});
    assert_eq!((&tool["strict"], &tool["input_schema"]["properties"]["n"]), (&value!(true), &number), "{tool}");
    let loose = &request_for(way, &body.to_string(), "up", &Capabilities::default()).unwrap().0["tools"][0];
    assert_eq!((&loose["input_schema"], loose.get("strict")), (&schema, None), "{loose}");
}

#[test]
fn message_recognised_by_its_bytes_is_translated_like_any_other() {
    let texts =
        ["", "  ", "plain", r#"a \"quoted\" \\ \u00e9 \n"#, "\u{e9} \u{6f22}", r"the last is \\", r#"{\"role\""#];
    let named = r#"{"role":"user","content":"a \"b\"","name":"c"}"#;
    let mut translated = 0;
    for (from, to) in SHAPES.into_iter().flat_map(|from| SHAPES.map(|to| (from, to))).filter(|(from, to)| from != to) {
        let list = if from == Shape::Responses { "input" } else { "messages" };
        for (first, second) in texts.into_iter().flat_map(|first| texts.map(|second| (first, second))) {
            let one = |role: &str, text: &str| format!("{{\"role\":\"{role}\",\"content\":\"{text}\"}}");
            let three = [one("system", second), one("user", first), named.into(), one("assistant", second)].join(", ");
            let body = format!(r#"{{"model":"m","max_tokens":9,"{list}": [ {three},{} ]}}"#, one("user", first));
            let made = |body: &str| request_for((from, to), body, "up", &Capabilities::default()).map(|made| made.0);
            let other = made(&body.replace("{\"role\"", "{ \"role\""));
            assert_eq!(made(&body), other, "{from:?} to {to:?}: {body}");
            translated += usize::from(other.is_ok());
        }
    }
    assert!(translated > 150, "{translated} of 294");
}

#[test]
fn tool_is_strict_only_if_its_schema_is() {
    let takes = Capabilities { strict_tools: true, ..Capabilities::default() };
    let closed = value!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let open = value!({"type": "object", "properties": {"a": {"type": ["object", "null"]}}, "required": ["a"],
        "additionalProperties": false});
    let untyped = value!({"properties": {"a": {"type": "string", "minLength": 3}}});
    let combined = value!({"type": "object", "anyOf": [{"required": ["a"]}]});
    let strict = |way: (Shape, Shape), schema: &Value, asked: bool| {
        let function = value!({"name": "f", "strict": asked, "parameters": schema});
        let body = match way.0 {
            Shape::Messages => value!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
                "tools": [{"name": "f", "strict": asked, "input_schema": schema}]}),
            _ => value!({"model": "m", "messages": [{"role": "user", "content": "a"}],
                "tools": [{"type": "function", "function": function}]}),
        };
        let tool = request_for(way, &body.to_string(), "up", &takes).unwrap().0["tools"][0].clone();
        tool.get("function").unwrap_or(&tool).get("strict").and_then(Value::as_bool).unwrap_or(false)
    };
    for way in [(Shape::Messages, Shape::Chat), (Shape::Messages, Shape::Responses), (Shape::Chat, Shape::Messages)] {
        assert_eq!((strict(way, &closed, true), strict(way, &closed, false)), (true, false), "{way:?}");
    }
    for way in [(Shape::Messages, Shape::Chat), (Shape::Messages, Shape::Responses)] {
        assert!(!strict(way, &open, true), "{way:?}");
    }
    assert!(strict((Shape::Chat, Shape::Messages), &open, true), "it is closed for the provider");
    for schema in [&untyped, &combined] {
        assert!(!strict((Shape::Chat, Shape::Messages), schema, true), "{schema}");
    }
    // A client of OpenAI's formats knows the rules of its provider.
    assert!(strict((Shape::Chat, Shape::Responses), &open, true));
}

#[test]
fn custom_tool_is_called_as_one_in_any_spelling_of_its_name() {
    for (written, name) in
        [(r"my\u005ftool", "my_tool"), (r"gr\u00f6\u00dfe", "gr\u{f6}\u{df}e"), ("gr\u{f6}\u{df}e", "gr\u{f6}\u{df}e")]
    {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"tools":[
                {{"type":"custom","custom":{{"name":"{written}"}}}}],"tool_choice":{{"type":"allowed_tools",
                "allowed_tools":{{"mode":"auto","tools":[{{"type":"custom","custom":{{"name":"{name}"}}}}]}}}}}}"#
        );
        for provider in [Shape::Messages, Shape::Responses] {
            let (request, state) = request_for((Shape::Chat, provider), &body, "up", &Capabilities::default()).unwrap();
            let up = request["tools"][0]["name"].as_str().unwrap_or_else(|| panic!("{request}")).to_owned();
            let [whole, _] = calling(provider, &[up]);
            let whole = whole.replace("\"input\":{}", "\"input\":{\"input\":\"x\"}");
            let whole = whole.replace("\"arguments\":\"{}\"", "\"arguments\":\"{\\\"input\\\":\\\"x\\\"}\"");
            let mut out = Vec::new();
            reply((provider, Shape::Chat), whole.as_bytes(), &state, &ME, &mut out).unwrap();
            let answer: Value = serde_json::from_slice(&out).unwrap();
            let call = &answer["choices"][0]["message"]["tool_calls"][0];
            assert_eq!(
                (&call["type"], &call["custom"]),
                (&value!("custom"), &value!({"name": name, "input": "x"})),
                "{call}"
            );
        }
    }
}

/// A carrier of reasoning for the target with the mark `up______`.
fn carried(block: &Value) -> String {
    let mut carrier = Vec::new();
    carrier::close(block.to_string().as_bytes(), b"up______", &mut carrier);
    String::from_utf8(carrier).unwrap()
}

#[test]
fn reasoning_text_and_calls_of_a_turn_keep_their_order() {
    let takes = Capabilities { mark: *b"up______", ..Capabilities::default() };
    let made = |way, body: &Value| request_for(way, &body.to_string(), "up", &takes).unwrap().0;
    // A responses provider's turn comes back from a messages client.
    let thought = |id: &str| {
        let signature = carried(&value!({"id": id, "encrypted_content": "e"}));
        value!({"type": "thinking", "thinking": "", "signature": signature})
    };
    let call = value!({"type": "tool_use", "id": "c1", "name": "f", "input": {}});
    let blocks =
        value!([thought("rs_1"), {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, thought("rs_2"), call]);
    let result = value!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]});
    let body = value!({"model": "m", "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": blocks}, result]});
    let request = made((Shape::Messages, Shape::Responses), &body);
    let items: Vec<Value> = request["input"].as_array().unwrap()[1..5].to_vec();
    assert_eq!(
        items,
        [
            value!({"type": "reasoning", "summary": [], "id": "rs_1", "encrypted_content": "e"}),
            value!({"type": "message", "role": "assistant", "content": "ab"}),
            value!({"type": "reasoning", "summary": [], "id": "rs_2", "encrypted_content": "e"}),
            value!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}),
        ]
    );
    // A messages provider's turn comes back from a responses client.
    let signed = |text: &str| value!({"type": "thinking", "thinking": text, "signature": "U2ln"});
    let reasoning =
        |text: &str| value!({"type": "reasoning", "summary": [], "encrypted_content": carried(&signed(text))});
    let said = value!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]});
    let called = value!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"});
    let output = value!({"type": "function_call_output", "call_id": "c1", "output": "ok"});
    let turn = |items: Vec<Value>| {
        let input: Vec<Value> =
            [value!({"role": "user", "content": "x"})].into_iter().chain(items).chain([output.clone()]).collect();
        made((Shape::Responses, Shape::Messages), &value!({"model": "m", "input": input}))["messages"][1]["content"]
            .clone()
    };
    let (text, tool) =
        (value!({"type": "text", "text": "a"}), value!({"type": "tool_use", "id": "c1", "name": "f", "input": {}}));
    let got = turn(vec![reasoning("S1"), said.clone(), reasoning("S2"), called.clone()]);
    assert_eq!(got, value!([signed("S1"), text, signed("S2"), tool]));
    // The format has calls behind the text.
    let got = turn(vec![reasoning("S1"), called, reasoning("S2"), said]);
    assert_eq!(got, value!([signed("S1"), signed("S2"), text, tool]));
}

#[test]
fn members_that_the_gateway_adds_are_sent_only_where_they_are_taken() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"reasoning_effort":"low"}"#;
    let to =
        |capabilities: &Capabilities| request_for((Shape::Chat, Shape::Responses), body, "up", capabilities).unwrap().0;
    let plain = to(&Capabilities::default());
    assert_eq!((plain.get("include"), plain.get("reasoning"), &plain["store"]), (None, None, &value!(false)));
    let reasons = Capabilities { effort: true, ..Capabilities::default() };
    let request = to(&reasons);
    assert_eq!(request["include"], value!(["reasoning.encrypted_content"]));
    assert_eq!(request["reasoning"], value!({"effort": "low", "summary": "auto"}));
    let drop_params = ["include", "store", "reasoning"].map(str::to_owned).to_vec();
    let request = to(&Capabilities { drop_params, ..reasons });
    assert_eq!(["include", "store", "reasoning"].map(|name| request.get(name)), [None; 3]);
    // A demand for the tool that stands for JSON.
    let asks = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",
        "json_schema":{"name":"n","schema":{"type":"object"}}}}"#;
    let by_tool = |drop_params: Vec<String>| {
        let takes = Capabilities { structured_output: Structured::Tool, drop_params, ..Capabilities::default() };
        request_for((Shape::Chat, Shape::Messages), asks, "up", &takes).unwrap().0
    };
    assert!(by_tool(Vec::new()).get("tool_choice").is_some());
    assert!(by_tool(vec!["tool_choice".to_owned()]).get("tool_choice").is_none());
}

#[test]
fn file_as_plain_base64_is_a_pdf_for_every_provider() {
    let chat = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf","file_data":"JVBERi0xLjQK\/w=="}}]}]}"#;
    let request = request_for((Shape::Chat, Shape::Messages), chat, "up", &Capabilities::default()).unwrap().0;
    let block = &request["messages"][0]["content"][0];
    assert_eq!(
        block["source"],
        value!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK/w=="})
    );
    let request = request_for((Shape::Chat, Shape::Responses), chat, "up", &Capabilities::default()).unwrap().0;
    assert_eq!(request["input"][0]["content"][0]["file_data"], "data:application/pdf;base64,JVBERi0xLjQK/w==");
    for url in ["http://a.test/b.pdf", "file:///etc/passwd"] {
        let refused = chat.replace("JVBERi0xLjQK\\/w==", url);
        request_for((Shape::Chat, Shape::Messages), &refused, "up", &Capabilities::default()).unwrap_err();
    }
}

#[test]
fn usage_on_a_chunk_with_content_is_hidden_unless_requested() {
    let usage = r#"{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43}"#;
    let beside = format!(
        r#"data: {{"choices":[{{"index":0,"delta":{{"content":"hi"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
    );
    let inside = format!(
        r#"data: {{"choices":[{{"index":0,"delta":{{"content":"hi"}},"finish_reason":"stop","usage":{usage}}}]}}"#
    );
    for text in [beside, inside] {
        for show in [false, true] {
            let mut stream = SseStream::same(ModelEndpoint::CHAT, show, 1 << 20);
            let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
            stream.feed(format!("{text}\n\ndata: [DONE]\n\n").as_bytes(), &mut pool, &ME, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.contains("\"prompt_tokens\":31"), show, "{out}");
            assert!(out.contains("\"content\":\"hi\"") && stream.observed().reported.output == Some(12), "{out}");
            out.lines().filter_map(|line| line.strip_prefix("data: {")).for_each(|data| {
                serde_json::from_str::<Value>(&format!("{{{data}")).unwrap();
            });
        }
    }
}
