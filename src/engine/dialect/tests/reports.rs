//! Provider answers that users of other gateways have reported, for clients of every format: one file for each
//! report in `tests/fixtures/reports/`.
//!
//! The first line of a file is a comment: who reported it, and what is odd. A case begins with `=== whole` or `===
//! stream` and the format of the provider. `--- in` is followed by the answer as it arrived, `--- out` by JSON with the
//! content that a client of each format must receive: `thinking`, `text`, `ends` (the reason for the end in chat,
//! messages and responses), and the tokens that are charged and shown: `input` without the `cached` ones, and `output`.
//! An answer that failed has `fails`, and for a stream also the `text` before the failure. Tokens written to a cache
//! are `written`, 0 if omitted. `calls` is a list of calls, each with its name and its arguments. A refusal is text.
//! `own` has the members that differ for a client of the provider's own format, which receives the answer unchanged.
//! The charged tokens may be an estimate. A stream may be sent instead of a complete answer, and the other way round.
//!
//! `=== request FROM TO OPTIONS` has a client's request before `--- out`, and after it what the provider's request must
//! contain, or with `refused` the error; the options are those of `rows`. `=== next whole|stream FROM TO` has the
//! answer to that request, and what the client's message must contain. `=== replay whole|stream chat` has a chat
//! provider's answer, and what the assistant's message must contain in the next request, in any format of the client
//! that sends the answer back.

use super::endings::{SHAPES, index, run_stream, streamed_word, word_of};
use super::rows::{capabilities, cases};
use super::*;
use crate::wire::ModelEndpoint;
use crate::wire::json::Raw;
use serde_json::json as value;
use std::collections::BTreeMap;

/// Adds the text of a content, a string or a list of parts, to text or thinking.
fn gather(content: &Value, thinks: bool, said: &mut [String; 2]) {
    match content {
        Value::String(text) => said[usize::from(thinks)] += text,
        Value::Array(parts) => parts.iter().for_each(|part| gather(part, thinks, said)),
        Value::Object(part) => {
            let nested = part.get("thinking");
            let text = nested.or(part.get("text")).or(part.get("refusal"));
            gather(text.unwrap_or(&Value::Null), thinks || nested.is_some(), said);
        }
        _ => {}
    }
}

/// Adds the content of one event of a stream, or of a complete answer.
fn gather_answer(shape: Shape, answer: &Value, said: &mut [String; 2]) {
    match shape {
        Shape::Chat => {
            let choice = &answer["choices"][0];
            let message = choice.get("message").unwrap_or(&choice["delta"]);
            let thinking = message.get("reasoning_content").unwrap_or(&message["reasoning_details"]);
            gather(thinking, true, said);
            gather(&message["content"], false, said);
            gather(&message["refusal"], false, said);
        }
        Shape::Messages => gather(answer.get("delta").unwrap_or(&answer["content"]), false, said),
        Shape::Responses => {
            let kind = answer["type"].as_str().unwrap_or_default();
            if kind.ends_with("text.delta") || kind == "response.refusal.delta" {
                gather(&answer["delta"], kind.contains("reasoning"), said);
            } else if kind.ends_with("text.done") && said[usize::from(kind.contains("reasoning"))].is_empty() {
                gather(&answer["text"], kind.contains("reasoning"), said);
            }
            for item in answer["output"].as_array().into_iter().flatten() {
                gather(&item["summary"], true, said);
                gather(&item["content"], item["type"] == "reasoning", said);
            }
        }
    }
}

/// Calls of an answer by index: name, arguments in pieces, and all of them at once.
type Calls = BTreeMap<u64, [String; 3]>;

/// Adds the calls of one event of a stream, or of a complete answer.
fn gather_calls(shape: Shape, answer: &Value, calls: &mut Calls) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut add = |place: u64, name: &Value, pieces: &Value, whole: &Value| {
        let [known, json, all] = calls.entry(place).or_default();
        // In a chat stream a name may come in pieces, or again.
        if let Some(name) = name.as_str().filter(|name| known != name) {
            *known += name;
        }
        *json += pieces.as_str().unwrap_or_default();
        let whole = if whole.is_object() { whole.to_string() } else { whole.as_str().unwrap_or_default().to_owned() };
        if !matches!(&*whole, "" | "{}") {
            *all = whole;
        }
    };
    let none = &Value::Null;
    match shape {
        Shape::Chat => {
            let choice = &answer["choices"][0];
            let message = choice.get("message").unwrap_or(&choice["delta"]);
            for (at, call) in list(&message["tool_calls"]).iter().enumerate() {
                let place = call["index"].as_u64().unwrap_or(at as u64);
                let arguments = &call["function"]["arguments"];
                let whole = if arguments.is_object() { arguments } else { none };
                add(place, &call["function"]["name"], arguments, whole);
            }
            if let Some(call) = message.get("function_call").filter(|call| call.is_object()) {
                add(0, &call["name"], &call["arguments"], none);
            }
        }
        Shape::Messages => {
            let (block, place) = (&answer["content_block"], answer["index"].as_u64().unwrap_or(0));
            if block["type"] == "tool_use" {
                add(place, &block["name"], none, &block["input"]);
            } else if answer["delta"]["type"] == "input_json_delta" {
                add(place, none, &answer["delta"]["partial_json"], none);
            }
            for (at, block) in (0..).zip(list(&answer["content"])).filter(|(_, block)| block["type"] == "tool_use") {
                add(at, &block["name"], none, &block["input"]);
            }
        }
        Shape::Responses => {
            let (item, place) = (&answer["item"], answer["output_index"].as_u64().unwrap_or(0));
            if item["type"] == "function_call" {
                add(place, &item["name"], none, &item["arguments"]);
            } else if answer["type"].as_str().is_some_and(|kind| kind.starts_with("response.function_call")) {
                add(place, none, &answer["delta"], &answer["arguments"]);
            }
            let output = list(answer["response"].get("output").unwrap_or(&answer["output"]));
            for (at, item) in (0..).zip(output).filter(|(_, item)| item["type"] == "function_call") {
                add(at, &item["name"], none, &item["arguments"]);
            }
        }
    }
}

/// Tokens in an answer: input without cached tokens, read from a cache, written to one, output.
pub(super) fn shown(shape: Shape, usage: &Value) -> [u64; 4] {
    counted(report(shape, usage))
}

fn report(shape: Shape, usage: &Value) -> Reported {
    let usage = usage.to_string();
    match shape {
        Shape::Chat => Reported::from_chat(Raw::new(usage.as_bytes())),
        Shape::Messages => Reported::from_messages(Raw::new(usage.as_bytes())),
        Shape::Responses => Reported::from_responses(Raw::new(usage.as_bytes())),
    }
}

pub(super) fn counted(reported: Reported) -> [u64; 4] {
    let Reported { input, cache_read, cache_write, output, .. } = reported;
    [input, cache_read, cache_write, output].map(Option::unwrap_or_default)
}

/// Tokens charged: estimates if the provider has reported none.
fn charged(to: Shape, observed: &ObservedUsage, shown: [u64; 4], same: bool) -> [u64; 4] {
    let ObservedUsage { reported, relayed_tokens, .. } = observed;
    let [_, read, written, _] = counted(*reported);
    let input = reported.input.unwrap_or_else(|| ME.prompt.count());
    let charged = [input, read, written, reported.output.unwrap_or(*relayed_tokens)];
    // The client of a message or response gets the provider's own report.
    let sum = |[input, read, written, output]: [u64; 4]| [input + read + written, output];
    if !same {
        assert_eq!(shown, charged, "shown and charged to {to:?}");
    } else if to == Shape::Chat || reported.is_complete() {
        assert_eq!(sum(shown), sum(charged), "shown and charged to {to:?}");
    }
    charged
}

/// Result for a client, in the notation of a fixture.
fn fixture_of(to: Shape, said: &[String; 2], calls: Calls, word: &str, tokens: [u64; 4]) -> Value {
    let [input, cached, written, output] = tokens;
    // Only chat clients read them without a check.
    let whole = |json: &str| if json.is_empty() && to != Shape::Chat { "{}".to_owned() } else { json.to_owned() };
    let arguments = |json: &str| serde_json::from_str(&whole(json)).unwrap_or(value!({"broken": json}));
    let calls = calls
        .into_values()
        .map(|[name, pieces, all]| value!([name, arguments(if all.is_empty() { &pieces } else { &all })]));
    let calls: Vec<Value> = calls.collect();
    value!({"thinking": said[1], "text": said[0], "calls": calls, "to": index(to), "ends": word,
        "input": input, "cached": cached, "written": written, "output": output})
}

/// Translation state of a request whose client wants to see reasoning.
fn asked((from, to): (Shape, Shape)) -> TranslationState {
    let body = r#"{"model":"m","input":"hi","reasoning":{"summary":"auto"}}"#;
    match to {
        Shape::Responses if from != to => request_for((to, from), body, "up", &Capabilities::default()).unwrap().1,
        _ => TranslationState::default(),
    }
}

fn complete((from, to): (Shape, Shape), body: &str) -> Value {
    let (mut out, mut said, mut calls) = (Vec::new(), Default::default(), Calls::new());
    let read = match from == to {
        true => whole(ModelEndpoint::generate(from), body.as_bytes(), &ME, &mut out),
        false => reply((from, to), body.as_bytes(), &asked((from, to)), &ME, &mut out),
    };
    let Ok(observed) = read else { return value!({"fails": true}) };
    let answer: Value = serde_json::from_slice(&out).unwrap();
    if from != to && to == Shape::Messages {
        schema::message(&answer);
    }
    gather_answer(to, &answer, &mut said);
    gather_calls(to, &answer, &mut calls);
    let tokens = charged(to, &observed, shown(to, &answer["usage"]), from == to);
    fixture_of(to, &said, calls, &word_of(to, &answer.to_string()), tokens)
}

fn streamed((from, to): (Shape, Shape), text: &str) -> Value {
    let state = asked((from, to));
    let outcome = run_stream((from, to), &state, text);
    let Outcome { out, result, .. } = &outcome;
    if from != to {
        let cut = stream_for_every_way((from, to), &state, true, &ME, text);
        assert_eq!((&cut.out, &cut.result), (out, result));
    }
    fixture_of_stream((from, to), outcome)
}

/// Response that the client of a stream receives.
pub(super) fn fixture_of_stream((from, to): (Shape, Shape), Outcome { out, observed, result }: Outcome) -> Value {
    let (mut said, mut calls, mut reported) = (Default::default(), Calls::new(), Reported::default());
    let mut heads = Vec::new();
    for data in out.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        gather_answer(to, &event, &mut said);
        gather_calls(to, &event, &mut calls);
        if to == Shape::Chat && event.get("error").is_none() {
            heads.push(["id", "object", "created", "model"].map(|name| event[name].clone()));
        }
        let outer = ["response", "message"].iter().find_map(|name| event[name].get("usage"));
        let usage = outer.unwrap_or(&event["usage"]);
        if usage.is_object() && to == Shape::Messages {
            // Its clients keep a count that a later event omits or sets to zero.
            reported.merge(report(to, usage));
        } else if usage.is_object() {
            reported = report(to, usage);
        }
    }
    let tokens = counted(reported);
    if let Some([id, object, created, model]) = heads.first() {
        let says = id == ME_ID && object == "chat.completion.chunk" && created.is_u64() && model == "team-fast";
        assert!(says && heads.iter().all(|head| *head == heads[0]), "{out}");
    }
    let word = streamed_word(to, &out);
    match result {
        Ok(()) => {
            let tokens = charged(to, &observed, tokens, from == to);
            fixture_of(to, &said, calls, &word, tokens)
        }
        Err(StreamFault::Malformed | StreamFault::Error(_)) => value!({"fails": true, "text": said[0]}),
        Err(other) => panic!("{other:?}\n{out}"),
    }
}

/// True if `value` contains everything in `part`. Lists must have the same length.
fn contains(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::Object(value), Value::Object(part)) => {
            // `null` also means that there is no such member.
            part.iter().all(|(name, part)| contains(value.get(name).unwrap_or(&Value::Null), part))
        }
        (Value::Array(value), Value::Array(part)) => {
            value.len() == part.len() && value.iter().zip(part).all(|(value, part)| contains(value, part))
        }
        _ => value == part,
    }
}

/// Assistant's message of the next request, after a client of format `to` has received this answer of a chat provider.
pub(super) fn replayed(to: Shape, streams: bool, answer: &str, takes: &Capabilities) -> Value {
    let way = (Shape::Chat, to);
    let mark = carrier::mark("provider", "model");
    let state = TranslationState { mark, ..asked(way) };
    let mut out = Vec::new();
    let said = if streams {
        let Outcome { out, result, .. } = stream_for_every_way(way, &state, true, &ME, &format!("{answer}\n\n"));
        assert_eq!(result, Ok(()), "{out}");
        let events: Vec<Value> =
            out.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        match to {
            Shape::Responses => events.last().unwrap()["response"]["output"].clone(),
            _ => blocks_of(&events),
        }
    } else {
        reply(way, answer.as_bytes(), &state, &ME, &mut out).unwrap();
        let answer: Value = serde_json::from_slice(&out).unwrap();
        answer[if to == Shape::Responses { "output" } else { "content" }].clone()
    };
    let of =
        |kind: &str| said.as_array().unwrap().iter().filter(|item| item["type"] == kind).cloned().collect::<Vec<_>>();
    let (body, from) = if to == Shape::Responses {
        let mut input = said.as_array().unwrap().clone();
        input.extend(
            of("function_call")
                .iter()
                .map(|call| value!({"type": "function_call_output", "call_id": call["call_id"], "output": "found"})),
        );
        (value!({"model": "m", "input": input}), to)
    } else {
        let results: Vec<Value> = of("tool_use")
            .iter()
            .map(|call| value!({"type": "tool_result", "tool_use_id": call["id"], "content": "found"}))
            .collect();
        let user = value!({"role": "user", "content": "hi"});
        let (assistant, results) =
            (value!({"role": "assistant", "content": said}), value!({"role": "user", "content": results}));
        (value!({"model": "m", "max_tokens": 9, "messages": [user, assistant, results]}), to)
    };
    let takes = Capabilities { mark, ..takes.clone() };
    let next = request_for((from, Shape::Chat), &body.to_string(), "up", &takes).unwrap().0;
    let messages = next["messages"].as_array().unwrap();
    messages.iter().find(|message| message["role"] == "assistant").unwrap().clone()
}

/// The message that answers a request; `head` names its form and the pair of formats.
fn next(head: &str, state: &TranslationState, answer: &str) -> Value {
    let mut words = head.split_whitespace();
    let streams = words.next() == Some("stream");
    let way = [(); 2].map(|()| format_of(words.next().unwrap())).into();
    if streams {
        let Outcome { out, result, .. } = stream_for_every_way(way, state, true, &ME, &format!("{answer}\n\n"));
        assert_eq!(result, Ok(()), "{out}");
        let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        return value!({"content": blocks_of(&events)});
    }
    let mut out = Vec::new();
    reply(way, answer.as_bytes(), state, &ME, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

/// Content of a message, collected from its stream.
fn blocks_of(events: &[Value]) -> Value {
    let mut blocks: Vec<Value> = Vec::new();
    let mut input = String::new();
    for event in events {
        if event["type"] == "content_block_start" {
            blocks.push(event["content_block"].clone());
            input.clear();
        }
        let Some(block) = blocks.last_mut() else { continue };
        for name in ["text", "thinking", "signature"] {
            if let Some(more) = event["delta"][name].as_str() {
                block[name] = value!(format!("{}{more}", block[name].as_str().unwrap_or_default()));
            }
        }
        input += event["delta"]["partial_json"].as_str().unwrap_or_default();
        if event["type"] == "content_block_stop" && block["type"] == "tool_use" {
            block["input"] = serde_json::from_str(&input).unwrap();
        }
    }
    Value::Array(blocks)
}

fn format_of(name: &str) -> Shape {
    SHAPES[["chat", "messages", "responses"].iter().position(|known| *known == name).unwrap()]
}

#[test]
fn every_report_is_answered_for_clients_of_every_format() {
    let folder = PathBuf::from(crate::ROOT).join("tests/fixtures/reports");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut last = TranslationState::default();
        let (comment, cases) = cases(&std::fs::read_to_string(&path).unwrap());
        assert!(comment.starts_with("# "), "{}: its first line must name the report", path.display());
        for case in &cases {
            count += 1;
            let (kind, from) = case.head.trim().split_once(' ').unwrap();
            let want: Value = serde_json::from_str(&case.out).unwrap();
            let what = format!("{}: {}", path.display(), case.head);
            if kind == "request" {
                let mut words = from.split_whitespace();
                let way = [(); 2].map(|()| format_of(words.next().unwrap()));
                let got = match request_for(way.into(), &case.input, "up", &capabilities(from)) {
                    Ok((got, state)) => (got, last = state).0,
                    Err(text) => value!({ "refused": text }),
                };
                assert!(contains(&got, &want), "{what}: {got}");
                continue;
            }
            if kind == "next" {
                let got = next(from, &last, &case.input);
                assert!(contains(&got, &want), "{what}: {got}");
                continue;
            }
            if kind == "replay" {
                for to in [Shape::Messages, Shape::Responses] {
                    let takes = Capabilities { replay_reasoning: true, ..Capabilities::default() };
                    let got = replayed(to, from.starts_with("stream"), &case.input, &takes);
                    assert!(contains(&got, &want), "{what} to {to:?}: {got}");
                }
                continue;
            }
            let from = format_of(from);
            for to in SHAPES {
                let mut want = want.clone();
                let own = want.as_object_mut().and_then(|want| want.remove("own")).filter(|_| from == to);
                if let Some(Value::Object(own)) = own {
                    want.as_object_mut().unwrap().remove("fails");
                    want.as_object_mut().unwrap().extend(own);
                }
                if want.get("ends").is_some() {
                    want["written"] = value!(want["written"].as_u64().unwrap_or(0));
                    want["calls"] = value!(want["calls"].as_array().cloned().unwrap_or_default());
                    (want["to"], want["ends"]) = (value!(index(to)), want["ends"][index(to)].clone());
                }
                let got = match kind {
                    "whole" => {
                        if case.input.starts_with('{') {
                            let written = unstreamed((from, to), &asked((from, to)), &case.input);
                            let written = written
                                .map_or(value!({"fails": true}), |outcome| fixture_of_stream((from, to), outcome));
                            assert_eq!(written, want, "{} as a stream to {to:?}", path.display());
                        }
                        complete((from, to), &case.input)
                    }
                    "stream" => streamed((from, to), &format!("{}\n\n", case.input)),
                    other => panic!("unknown kind {other}"),
                };
                assert_eq!(got, want, "{what} to {to:?}");
            }
        }
    }
    assert!(count > 0);
}
