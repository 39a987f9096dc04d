//! Known bugs of other gateways in the responses format: each row names the tests that would fail if Tollgate had the
//! bug.
//!
//! A test is named as `example NAME` (a golden file of `tests/fixtures/cross/`), `transcript FILE: CASE` (of
//! `tests/fixtures/responses/`), or `FILE: TEST` (below `src/engine/dialect/`).

use super::property::{accumulate_chat, accumulate_messages, answer};
use super::responses::{ask, asked, call, json, last_response, output, user};
use super::*;
use crate::base::rng::Rng;
use serde_json::json as value;
use std::collections::BTreeMap;

/// Known bugs of other gateways, and the tests that would show them here.
const ROWS: [(&str, &[&str]); 45] = [
    ("parallel calls of a responses upstream are merged", &["known: parallel_calls_stay_separate"]),
    (
        "arguments that arrive only with an item's end are lost",
        &["responses: arguments_sent_with_the_end_of_a_call_are_passed_on"],
    ),
    ("an output index is used twice, reasoning left open", &["known: written_stream_conforms_to_the_format"]),
    ("parts and items are not added", &["known: written_stream_conforms_to_the_format"]),
    (
        "text after reasoning is never opened; an empty message",
        &["known: written_stream_conforms_to_the_format", "example 28-thinking-m"],
    ),
    ("ids change between events", &["known: written_stream_conforms_to_the_format"]),
    (
        "reasoning has text parts and stays open",
        &["known: written_stream_conforms_to_the_format", "example 30-thinking-c"],
    ),
    ("created says completed, calls lack status or id", &["known: written_stream_conforms_to_the_format"]),
    ("calls without id or index are lost or merged", &["known: calls_without_id_or_index_are_kept"]),
    ("the whole object is sent as the effort", &["known: effort_is_sent_as_a_word"]),
    (
        "an unknown kind of item is an error",
        &["responses: items_without_an_equivalent_are_omitted", "known: unknown_items_are_ignored"],
    ),
    (
        "one message for each call, and items in between break a turn",
        &["responses: turn_is_complete_wherever_its_outputs_are"],
    ),
    ("an orphan breaks a conversation", &["responses: orphans_become_text"]),
    ("an item's id is taken for its call's", &["responses: turn_is_complete_wherever_its_outputs_are"]),
    ("a namespace is lost in either direction", &["example 23-namespace"]),
    ("a tool that is not a function is 400", &["known: tools_of_every_kind_are_accepted_and_served_if_possible"]),
    (
        "members of the default namespace get a prefix",
        &["known: tools_of_every_kind_are_accepted_and_served_if_possible"],
    ),
    ("additional tools are lost", &["example 25-additional-tools"]),
    ("a custom tool is dropped, or answered as a function", &["example 24-custom"]),
    ("free text in another wrapping is lost", &["responses: free_text_is_extracted_from_any_wrapping"]),
    ("a search for tools is dropped, or a string", &["known: tool_search_returns_an_object"]),
    ("an image in an output is dropped", &["responses: image_in_an_output_is_moved_if_the_format_requires"]),
    ("instructions are dropped, developers are users", &["known: developer_messages_keep_their_role"]),
    (
        "a late developer message moves to the front",
        &["example 41-late-developer", "known: developer_messages_keep_their_role"],
    ),
    ("usage without its details", &["known: written_stream_conforms_to_the_format"]),
    ("usage under the names of chat", &["known: written_stream_conforms_to_the_format"]),
    ("a cut answer is complete for messages clients", &["known: end_and_usage_of_an_upstream_reach_every_client"]),
    (
        "a cut answer is completed, or all of it incomplete",
        &["responses: cut_answer_is_incomplete_only_in_its_last_item", "example 33-length"],
    ),
    ("an answer cut before its text is an error", &["known: answer_cut_before_its_first_token_is_empty"]),
    ("a filtered answer is retried", &["example 35-refusal-c", "example 35-refusal-m", "example 35-refusal-stop"]),
    ("a failure is not recognised", &["transcript cross.txt: an answer opened by a heartbeat fails in both events"]),
    (
        "a failure's error is outside the response",
        &["transcript same.txt: a response that fails at the provider fails in both events, without its name"],
    ),
    ("a stream that breaks off is complete", &["responses: cut_answer_is_incomplete_only_in_its_last_item"]),
    (
        "a reference to a stored response is sent on",
        &[
            "example 27-refused",
            "transcript errors.txt: a request for a stored response is refused with an instruction",
        ],
    ),
    ("thinking is lost between turns", &["example 29-replay-m"]),
    (
        "another target's ciphertext breaks a conversation",
        &[
            "responses: items_without_an_equivalent_are_omitted",
            "../neutral/carrier: carrier_opens_only_for_its_own_target",
        ],
    ),
    (
        "a signature made by the gateway reaches a provider that signs",
        &["transcript rows.txt: 37: only a signature made by Tollgate is omitted on the way to a provider that signs"],
    ),
    (
        "reasoning that must be returned is lost or changed",
        &[
            "known: reasoning_of_a_chat_upstream_is_returned_to_it",
            "transcript rows.txt: 38: reasoning passes unchanged",
        ],
    ),
    ("a tool becomes strict unrequested", &["known: tool_is_strict_only_if_the_client_says_so"]),
    ("an id of more than 64 characters is sent", &["responses: long_ids_of_a_pair_stay_equal"]),
    ("an answer is cut at a small number", &["known: models_maximum_is_the_default_bound"]),
    ("a request for compaction is ignored", &["example 27-refused"]),
    (
        "429 does not say when to retry",
        &[
            "transcript errors.txt: a full window says when to retry",
            "transcript errors.txt: a spent period stops a client's retries, a full window does not",
        ],
    ),
    (
        "a provider that accepts no bound, or streams unrequested",
        &["known: unsupported_bound_is_not_sent", "transcript rows.txt: 44: a provider that streams unrequested"],
    ),
    ("a client's headers reach the provider", &["transcript rows.txt: 45: no client header is passed on"]),
];

#[test]
fn every_row_has_its_test() {
    let root = std::path::Path::new(crate::ROOT);
    let text =
        |path: String| std::fs::read_to_string(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    for (row, (what, places)) in ROWS.iter().enumerate() {
        assert!(!places.is_empty(), "row {}: {what}", row + 1);
        for place in *places {
            let found = if let Some(name) = place.strip_prefix("example ") {
                let mut names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
                names.any(|file| file.to_str().unwrap().starts_with(&format!("{name}.")))
            } else if let Some((file, case)) = place.strip_prefix("transcript ").and_then(|rest| rest.split_once(": "))
            {
                text(format!("tests/fixtures/responses/{file}")).lines().any(|line| line == format!("=== {case}"))
            } else {
                let (file, name) = place.split_once(": ").unwrap();
                text(format!("src/engine/dialect/tests/{file}.rs"))
                    .contains(&format!("#[test]\n{}fn {name}(", indent(file)))
            };
            assert!(found, "row {}: {place}", row + 1);
        }
    }
}

/// Indentation of a file's tests: test modules inside a source file are indented.
fn indent(file: &str) -> &str {
    if file.starts_with("../") { "    " } else { "" }
}

fn event(kind: &str, mut rest: Value) -> String {
    rest["type"] = value!(kind);
    format!("event: {kind}\ndata: {rest}\n\n")
}

fn completed(status: &str, more: Value) -> String {
    let mut response = value!({"status": status, "output": []});
    response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let kind = if status == "completed" { "response.completed" } else { "response.incomplete" };
    event(kind, value!({"response": response}))
}

/// A responses upstream's stream as assembled by clients of both older formats.
fn heard(text: &str) -> (Value, Value) {
    let state = TranslationState::default();
    let run = |to| {
        let outcome = stream_for_every_way((Shape::Responses, to), &state, true, &ME, text);
        assert_eq!(outcome.result, Ok(()), "{text}");
        outcome.out
    };
    (accumulate_chat(&run(Shape::Chat)), accumulate_messages(&run(Shape::Messages)))
}

/// Row 1: an item is identified by its `output_index`, whatever the order.
#[test]
fn parallel_calls_stay_separate() {
    let item = |index: usize| {
        let call = value!({"type": "function_call", "id": format!("fc_{index}"), "call_id": format!("call_{index}"),
            "name": format!("f{index}"), "arguments": ""});
        event("response.output_item.added", value!({"output_index": index, "item": call}))
    };
    let more = |index: usize, delta: &str| {
        let rest = value!({"output_index": index, "item_id": format!("fc_{index}"), "delta": delta});
        event("response.function_call_arguments.delta", rest)
    };
    let text = item(1) + &item(2) + &more(1, "{\"a\"") + &more(2, "{\"b\"") + &more(1, ":1}") + &more(2, ":2}");
    let (chat, messages) = heard(&(text + &completed("completed", value!({}))));
    let calls = chat["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    let got: Vec<_> = calls.iter().map(|call| (&call["id"], &call["function"]["arguments"])).collect();
    let want = [("call_1", "{\"a\":1}"), ("call_2", "{\"b\":2}")].map(|(id, text)| (value!(id), value!(text)));
    assert_eq!(got, [(&want[0].0, &want[0].1), (&want[1].0, &want[1].1)]);
    let blocks = messages["content"].as_array().unwrap();
    let got: Vec<&Value> = blocks.iter().map(|block| &block["input"]).collect();
    assert_eq!(got, [&value!({"a": 1}), &value!({"b": 2})]);
}

/// Reads a stream of events as strictly as the strictest client.
#[derive(Default)]
struct Strict {
    /// The current item, as it was added.
    open: Option<Value>,
    /// The texts of its current part so far.
    part: Option<String>,
    done: Vec<Value>,
    deltas: BTreeMap<String, String>,
}

impl Strict {
    fn read(text: &str) -> Vec<Value> {
        let mut strict = Strict::default();
        let events: Vec<Value> = text
            .split("\n\n")
            .filter_map(|event| Some((event.lines().next()?, event.split_once("data: ")?.1)))
            .map(|(name, data)| {
                let event = json(data);
                assert_eq!(name, format!("event: {}", event["type"].as_str().unwrap()));
                event
            })
            .collect();
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at, "{event}");
            strict.event(at, event["type"].as_str().unwrap().trim_start_matches("response."), event);
        }
        let last = &events.last().unwrap()["response"];
        assert!(strict.open.is_none(), "an item stays open");
        assert_eq!(last["output"], Value::Array(strict.done), "items as they were sent");
        for path in ["/input_tokens_details/cached_tokens", "/output_tokens_details/reasoning_tokens"] {
            assert!(last["usage"].pointer(path).is_some_and(Value::is_u64), "{last}");
        }
        let count = |name| last["usage"][name].as_u64().unwrap();
        assert_eq!(count("input_tokens") + count("output_tokens"), count("total_tokens"));
        events
    }

    fn event(&mut self, at: usize, kind: &str, event: &Value) {
        match kind {
            "created" | "in_progress" => {
                assert!(at < 2 && event["response"]["status"] == "in_progress", "{event}");
                assert_eq!((&event["response"]["output"], &event["response"]["usage"]), (&value!([]), &Value::Null));
            }
            "output_item.added" => {
                assert!(self.open.is_none(), "the item before it is open: {event}");
                assert_eq!(event["output_index"], self.done.len(), "{event}");
                let item = &event["item"];
                assert!(item["type"] == "reasoning" || item["status"] == "in_progress", "{event}");
                self.open = Some(item.clone());
            }
            "output_item.done" => {
                let (item, open) = (&event["item"], self.open.take().unwrap());
                assert!(self.part.is_none(), "a part stays open: {event}");
                assert_eq!((&item["id"], &item["type"]), (&open["id"], &open["type"]));
                assert_eq!(event["output_index"], self.done.len(), "{event}");
                assert!(item["type"] == "reasoning" || item["status"].is_string(), "{event}");
                assert!(item["type"] != "message" || !item["content"].as_array().unwrap().is_empty(), "{event}");
                if item["type"] == "function_call" {
                    assert!(item["call_id"].as_str().is_some_and(|id| !id.is_empty()), "{event}");
                    assert_eq!(item["call_id"], open["call_id"]);
                }
                self.done.push(item.clone());
            }
            "completed" | "incomplete" => assert_eq!(event["response"]["status"], kind),
            _ => self.inside(kind, event),
        }
    }

    /// An event within an item.
    fn inside(&mut self, kind: &str, event: &Value) {
        let open = self.open.as_ref().unwrap_or_else(|| panic!("no item is open: {event}"));
        assert_eq!((&event["item_id"], &event["output_index"]), (&open["id"], &value!(self.done.len())));
        let is_reasoning = open["type"] == "reasoning";
        assert_eq!(kind.starts_with("reasoning_summary_"), is_reasoning, "{event}");
        if let Some(index) = event.get("content_index").or_else(|| event.get("summary_index")) {
            assert_eq!(index, 0, "one part: {event}");
        }
        match kind {
            "content_part.added" | "reasoning_summary_part.added" => {
                assert!(self.part.replace(String::new()).is_none(), "{event}")
            }
            "content_part.done" | "reasoning_summary_part.done" => {
                let part = &event["part"];
                let text = part.get("text").or_else(|| part.get("refusal")).unwrap();
                assert_eq!(text, &value!(self.part.take().unwrap()));
            }
            "output_text.delta" | "refusal.delta" | "reasoning_summary_text.delta" => {
                self.part.as_mut().unwrap().push_str(event["delta"].as_str().unwrap());
            }
            "output_text.done" | "refusal.done" | "reasoning_summary_text.done" => {
                let text = event.get("text").or_else(|| event.get("refusal")).unwrap();
                assert_eq!(text, &value!(self.part.as_ref().unwrap()));
            }
            "function_call_arguments.delta" => {
                let text = self.deltas.entry(open["id"].to_string()).or_default();
                text.push_str(event["delta"].as_str().unwrap());
            }
            "function_call_arguments.done" => {
                assert_eq!(event["arguments"], self.deltas.get(&open["id"].to_string()).map_or("", |text| text));
            }
            other => panic!("no such event here: {other}"),
        }
    }
}

/// Rows 3 to 8, 25 and 26.
#[test]
fn written_stream_conforms_to_the_format() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let mut rng = Rng::from_u64(seed);
        let answer = answer(&mut rng);
        let texts = [(Shape::Chat, answer.chat_stream(&mut rng)), (Shape::Messages, answer.messages_stream(&mut rng))];
        for (from, text) in texts {
            let body = value!({"model": "m", "input": "hi", "reasoning": {"summary": "auto"}}).to_string();
            let state = ask(Shape::Responses, from, &body, &Capabilities::default()).1;
            let outcome = stream_for((from, Shape::Responses), &state, false, &ME, &[text.as_bytes()]);
            assert_eq!(outcome.result, Ok(()), "seed {seed}");
            let events = Strict::read(&outcome.out);
            kinds.extend(events.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
        }
    }
    assert!(kinds.len() >= 16, "what was looked at: {kinds:?}");
}

/// Row 9: a chat upstream may omit the id of a call, and a stream its index.
#[test]
fn calls_without_id_or_index_are_kept() {
    let function = |name: &str| value!({"type": "function", "function": {"name": name, "arguments": "{}"}});
    let calls = value!([function("f"), function("g")]);
    let message = value!({"role": "assistant", "content": null, "tool_calls": calls});
    let whole = value!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).to_string();
    let chunk = |delta: Value| format!("data: {}\n\n", value!({"choices": [{"index": 0, "delta": delta}]}));
    let stream = chunk(value!({"tool_calls": [function("f")]}))
        + &chunk(value!({"tool_calls": [function("g")]}))
        + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    let (mut out, way, state) = (Vec::new(), (Shape::Chat, Shape::Responses), TranslationState::default());
    reply(way, whole.as_bytes(), &state, &ME, &mut out).unwrap();
    let streamed = stream_for_every_way(way, &state, false, &ME, &stream);
    Strict::read(&streamed.out);
    for answer in [json(std::str::from_utf8(&out).unwrap()), last_response(&streamed.out)] {
        let items = answer["output"].as_array().unwrap();
        let of = |at: usize, name: &str| items[at][name].as_str().unwrap().to_owned();
        assert_eq!((items.len(), of(0, "name"), of(1, "name")), (2, "f".into(), "g".into()), "{answer}");
        assert!(!of(0, "call_id").is_empty() && of(0, "call_id") != of(1, "call_id"), "{answer}");
    }
}

/// Row 10.
#[test]
fn effort_is_sent_as_a_word() {
    let takes = Capabilities { effort: true, ..Capabilities::default() };
    for (reasoning, want) in [
        (value!({"effort": "high", "summary": "auto"}), value!("high")),
        (value!({"summary": "auto"}), Value::Null),
        (Value::Null, Value::Null),
    ] {
        let body = value!({"model": "m", "input": "hi", "reasoning": reasoning}).to_string();
        let chat = ask(Shape::Responses, Shape::Chat, &body, &takes).0;
        assert_eq!(chat["reasoning_effort"], want, "{chat}");
        let messages = ask(Shape::Responses, Shape::Messages, &body, &takes).0;
        assert_eq!(messages["output_config"]["effort"], want, "{messages}");
    }
}

/// Row 11, also in answers.
#[test]
fn unknown_items_are_ignored() {
    let said = value!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]});
    let search = value!({"type": "web_search_call", "id": "ws", "status": "completed"});
    let items = value!([search, {"type": "of_next_month", "x": [1]}, said]);
    let whole = value!({"status": "completed", "output": items, "usage": {"input_tokens": 1, "output_tokens": 1}});
    let mut out = Vec::new();
    let state = TranslationState::default();
    let way = (Shape::Responses, Shape::Chat);
    reply(way, whole.to_string().as_bytes(), &state, &ME, &mut out).unwrap();
    assert_eq!(json(std::str::from_utf8(&out).unwrap())["choices"][0]["message"]["content"], "x");
    let added = |index: usize, item: &Value| {
        event("response.output_item.added", value!({"output_index": index, "item": item}))
            + &event("response.output_item.done", value!({"output_index": index, "item": item}))
    };
    let text = added(0, &items[0])
        + &event("response.of_next_month.delta", value!({"output_index": 1, "delta": {}}))
        + &added(1, &items[1])
        + &added(2, &items[2])
        + &completed("completed", value!({}));
    let (chat, messages) = heard(&text);
    assert_eq!(
        (&chat["choices"][0]["message"]["content"], &messages["content"][0]["text"]),
        (&value!("x"), &value!("x"))
    );
}

/// Rows 16 and 17.
#[test]
fn tools_of_every_kind_are_accepted_and_served_if_possible() {
    let function = |name: &str| value!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let tools = value!([{"type": "web_search"}, {"type": "image_generation"}, {"type": "mcp", "server_label": "s"},
        {"type": "of_next_month"}, {"type": "local_shell"}, function("f"),
        {"type": "namespace", "name": "functions", "description": "d", "tools": [function("g")]},
        {"type": "namespace", "name": "mcp__s", "description": "d", "tools": [function("h")]}]);
    let body = value!({"model": "m", "input": "hi", "tools": tools}).to_string();
    let chat = ask(Shape::Responses, Shape::Chat, &body, &Capabilities::default()).0;
    let names = |list: &Value, path: &str| -> Vec<Value> {
        list["tools"].as_array().unwrap().iter().map(|tool| tool.pointer(path).unwrap().clone()).collect()
    };
    assert_eq!(names(&chat, "/function/name"), ["f", "g", "mcp__s__h"]);
    let messages = ask(Shape::Responses, Shape::Messages, &body, &Capabilities::default()).0;
    assert_eq!(names(&messages, "/name"), ["f", "g", "mcp__s__h"]);
}

/// Row 21.
#[test]
fn tool_search_returns_an_object() {
    let parameters = value!({"type": "object", "properties": {"query": {"type": "string"}}});
    let tool = value!({"type": "tool_search", "execution": "client", "description": "d", "parameters": parameters});
    let body = value!({"model": "m", "input": "hi", "tools": [tool]}).to_string();
    let (chat, state) = ask(Shape::Responses, Shape::Chat, &body, &Capabilities::default());
    let offered = &chat["tools"][0]["function"];
    assert_eq!(
        (&offered["name"], &offered["parameters"]["properties"]["query"]["type"]),
        (&value!("tool_search"), &value!("string"))
    );
    let call =
        value!({"id": "c1", "type": "function", "function": {"name": "tool_search", "arguments": "{\"query\":\"x\"}"}});
    let message = value!({"role": "assistant", "tool_calls": [call]});
    let answer = value!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
    let mut out = Vec::new();
    reply((Shape::Chat, Shape::Responses), answer.to_string().as_bytes(), &state, &ME, &mut out).unwrap();
    let item = json(std::str::from_utf8(&out).unwrap())["output"][0].clone();
    assert_eq!((&item["type"], &item["arguments"]), (&value!("tool_search_call"), &value!({"query": "x"})), "{item}");
    assert_eq!((&item["call_id"], &item["execution"]), (&value!("c1"), &value!("client")), "{item}");
}

/// Rows 23 and 24.
#[test]
fn developer_messages_keep_their_role() {
    let rule = |text: &str| value!({"role": "developer", "content": [{"type": "input_text", "text": text}]});
    let items = value!([rule("first"), user("Go."), call("a"), output("a", value!("1")), rule("late")]);
    let body = value!({"model": "m", "instructions": "top", "input": items}).to_string();
    let messages = ask(Shape::Responses, Shape::Messages, &body, &Capabilities::default()).0;
    let texts: Vec<&Value> = messages["system"].as_array().unwrap().iter().map(|block| &block["text"]).collect();
    assert_eq!(texts, ["top", "first"]);
    let last = messages["messages"].as_array().unwrap().last().unwrap();
    assert!(last["content"][1]["text"].as_str().unwrap().contains("late"), "{messages}");
    let chat = ask(Shape::Responses, Shape::Chat, &body, &Capabilities::default()).0;
    let messages: Vec<_> =
        chat["messages"].as_array().unwrap().iter().map(|one| (&one["role"], &one["content"])).collect();
    let system = |text: &str| (value!("system"), value!(text));
    for (at, text) in [(0, "top"), (1, "first"), (messages.len() - 1, "late")] {
        assert_eq!((messages[at].0.clone(), messages[at].1.clone()), system(text), "{chat}");
    }
}

/// Row 27: cached tokens are part of this format's input, and counted once.
#[test]
fn end_and_usage_of_an_upstream_reach_every_client() {
    let usage = value!({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60}, "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 105});
    let said = event("response.output_text.delta", value!({"output_index": 0, "content_index": 0, "delta": "x"}));
    for (reason, stops) in
        [("max_output_tokens", ("length", "max_tokens")), ("content_filter", ("content_filter", "refusal"))]
    {
        let more = value!({"incomplete_details": {"reason": reason}, "usage": usage});
        let (chat, messages) = heard(&(said.clone() + &completed("incomplete", more)));
        assert_eq!(
            (&chat["choices"][0]["finish_reason"], &messages["stop_reason"]),
            (&value!(stops.0), &value!(stops.1))
        );
        assert_eq!((&chat["usage"]["prompt_tokens"], &chat["usage"]["total_tokens"]), (&value!(100), &value!(105)));
        let counted = ["input_tokens", "cache_read_input_tokens", "output_tokens"].map(|name| &messages["usage"][name]);
        assert_eq!(counted, [&value!(40), &value!(60), &value!(5)], "{messages}");
    }
}

/// Row 29.
#[test]
fn answer_cut_before_its_first_token_is_empty() {
    let more = value!({"incomplete_details": {"reason": "max_output_tokens"},
        "usage": {"input_tokens": 1, "output_tokens": 16, "total_tokens": 17}});
    let mut whole = value!({"status": "incomplete", "output": [{"type": "reasoning", "id": "rs", "summary": []}]});
    whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut out = Vec::new();
    let (way, state) = ((Shape::Responses, Shape::Chat), TranslationState::default());
    reply(way, whole.to_string().as_bytes(), &state, &ME, &mut out).unwrap();
    let choice = json(std::str::from_utf8(&out).unwrap())["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length", "{choice}");
    assert!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{choice}");
    let (chat, messages) = heard(&completed("incomplete", more));
    assert_eq!(
        (&chat["choices"][0]["finish_reason"], &messages["stop_reason"]),
        (&value!("length"), &value!("max_tokens"))
    );
}

/// Row 38: reasoning that a model requires back is carried, and sent back only to that model.
#[test]
fn reasoning_of_a_chat_upstream_is_returned_to_it() {
    let takes = Capabilities { replay_reasoning: true, mark: carrier::mark("p", "up"), ..Capabilities::default() };
    let body = value!({"model": "m", "input": "hi"}).to_string();
    let state = ask(Shape::Responses, Shape::Chat, &body, &takes).1;
    let message = value!({"role": "assistant", "reasoning_content": "hm \"so\"", "content": "x"});
    let answer = value!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let mut out = Vec::new();
    reply((Shape::Chat, Shape::Responses), answer.to_string().as_bytes(), &state, &ME, &mut out).unwrap();
    let mut items = vec![user("hi")];
    items.extend(json(std::str::from_utf8(&out).unwrap())["output"].as_array().unwrap().clone());
    items.push(user("and?"));
    let body = value!({"model": "m", "input": items}).to_string();
    let again = |takes: &Capabilities| ask(Shape::Responses, Shape::Chat, &body, takes).0["messages"][1].clone();
    assert_eq!((&again(&takes)["reasoning_content"], &again(&takes)["content"]), (&value!("hm \"so\""), &value!("x")));
    let other = Capabilities { mark: carrier::mark("q", "up"), ..takes };
    assert_eq!(again(&other).get("reasoning_content"), None);
}

/// Row 39.
#[test]
fn tool_is_strict_only_if_the_client_says_so() {
    let tool = |more: Value| {
        let mut function = value!({"name": "f", "parameters": {"type": "object", "properties": {}}});
        function.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body =
            value!({"model": "m", "messages": [user("hi")], "tools": [{"type": "function", "function": function}]});
        ask(Shape::Chat, Shape::Responses, &body.to_string(), &Capabilities::default()).0["tools"][0]["strict"].clone()
    };
    assert_eq!((tool(value!({})), tool(value!({"strict": true}))), (value!(false), value!(true)));
    let body = value!({"model": "m", "max_tokens": 9, "messages": [user("hi")], "tools": [{"name": "f", "input_schema": {"type": "object"}}]});
    let got = ask(Shape::Messages, Shape::Responses, &body.to_string(), &Capabilities::default()).0;
    assert_eq!(got["tools"][0]["strict"], false);
}

/// Row 41: clients of this format send no bound, and treat a cut answer as a failure.
#[test]
fn models_maximum_is_the_default_bound() {
    let takes = Capabilities { max_output_tokens: Some(64_000), ..Capabilities::default() };
    let body = value!({"model": "m", "input": "hi"}).to_string();
    assert_eq!(ask(Shape::Responses, Shape::Messages, &body, &takes).0["max_tokens"], 64_000);
    assert_eq!(asked(Shape::Messages, &value!([user("hi")]))["max_tokens"], 9);
    let chat = ask(Shape::Responses, Shape::Chat, &body, &takes).0;
    assert_eq!((chat.get("max_tokens"), chat.get("max_completion_tokens")), (None, None));
}

/// Row 44.
#[test]
fn unsupported_bound_is_not_sent() {
    let takes = Capabilities { drop_params: vec!["max_output_tokens".to_owned()], ..Capabilities::default() };
    let body = value!({"model": "m", "messages": [user("hi")], "max_tokens": 99}).to_string();
    assert_eq!(ask(Shape::Chat, Shape::Responses, &body, &takes).0.get("max_output_tokens"), None);
    assert_eq!(ask(Shape::Chat, Shape::Responses, &body, &Capabilities::default()).0["max_output_tokens"], 99);
}
