//! The responses format: the examples 20 to 49, whole and split everywhere.

use super::answers::run_time;
use super::property::{accumulate_chat, accumulate_messages, answer};
use super::*;
use crate::base::rng::Rng;
use crate::wire::ModelEndpoint;
use serde_json::json as value;

const MODELS: [(Shape, &str, &str, &str); 2] = [
    (Shape::Chat, "upstream.chat", "gpt-4o-mini", "openai"),
    (Shape::Messages, "upstream.messages", "claude-sonnet-4-6", "anthropic"),
];

fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(folder().join(name)).ok()
}

pub(super) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Examples of the responses format with this ending, without it.
fn scenarios(ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect();
    names.retain(|name| name.starts_with(['2', '3', '4']) && name.as_bytes()[1].is_ascii_digit());
    names.sort();
    names
}

/// Capabilities of a scenario's target.
fn capabilities(scenario: &str, (model, provider): (&str, &str)) -> Capabilities {
    let thinks = ["28", "29", "30"].contains(&&scenario[..2]);
    Capabilities {
        max_output_tokens: (provider == "anthropic").then_some(32_000),
        effort: thinks,
        thinking: if thinks { Thinking::Adaptive } else { Thinking::Unset },
        mark: carrier::mark(provider, model),
        ..Capabilities::default()
    }
}

/// Translation state of the scenario's request; without one, that of a simple request.
fn state_of(scenario: &str, shape: Shape, target: (&str, &str)) -> TranslationState {
    let body = read(&format!("{scenario}.client.responses.request.json"));
    let body = body.unwrap_or_else(|| r#"{"model":"team-fast","input":"hi"}"#.to_owned());
    let capabilities = capabilities(scenario, target);
    request_for((Shape::Responses, shape), &body, target.0, &capabilities).unwrap().1
}

#[test]
fn requests_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (shape, upstream, model, provider) in MODELS {
        for scenario in scenarios(&format!(".{upstream}.request.json")) {
            let Some(body) = read(&format!("{scenario}.client.responses.request.json")) else { continue };
            let want = json(&read(&format!("{scenario}.{upstream}.request.json")).unwrap());
            let capabilities = capabilities(&scenario, (model, provider));
            let (got, _) = request_for((Shape::Responses, shape), &body, model, &capabilities).unwrap();
            assert_eq!(got, want, "{scenario} {upstream}");
            seen += 1;
        }
    }
    assert_eq!(seen, 26);
}

#[test]
fn complete_answers_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (shape, upstream, model, provider) in MODELS {
        for scenario in scenarios(&format!(".{upstream}.response.json")) {
            let body = read(&format!("{scenario}.{upstream}.response.json")).unwrap();
            let Some(want) = read(&format!("{scenario}.client.responses.response.json")) else { continue };
            let (mut out, state) = (Vec::new(), state_of(&scenario, shape, (model, provider)));
            reply((shape, Shape::Responses), body.as_bytes(), &state, &ME, &mut out).unwrap();
            assert_eq!(json(std::str::from_utf8(&out).unwrap()), json(&want), "{scenario} {upstream}");
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}

#[test]
fn streams_are_translated_as_the_examples_say_however_they_are_cut() {
    let mut seen = 0;
    for (shape, upstream, model, provider) in MODELS {
        for scenario in scenarios(&format!(".{upstream}.stream.sse")) {
            let text = read(&format!("{scenario}.{upstream}.stream.sse")).unwrap();
            let Some(want) = read(&format!("{scenario}.client.responses.stream.sse")) else { continue };
            let state = state_of(&scenario, shape, (model, provider));
            let outcome = stream_for_every_way((shape, Shape::Responses), &state, false, &ME, &text);
            assert_eq!(outcome.result, Ok(()), "{scenario}");
            assert_eq!(outcome.out, want, "{scenario} {upstream}");
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}

#[test]
fn stored_responses_and_errors_are_refused_by_path() {
    let cases = json(&read("27-refused.client.responses.requests.json").unwrap());
    for case in cases.as_array().unwrap() {
        let body = case["request"].to_string();
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::RESPONSES);
        for (shape, _, model, _) in MODELS {
            let found = scan.finish(body.as_bytes()).map_err(|invalid| invalid.0);
            let refused = found.err().or_else(|| {
                let capabilities = Capabilities::default();
                request_for((Shape::Responses, shape), &body, model, &capabilities).err()
            });
            let refused = refused.unwrap_or_else(|| panic!("accepted: {body}"));
            let field = case["field"].as_str().unwrap();
            assert_eq!(refused.split_once(": ").map(|(path, _)| path), Some(field), "{refused}: {body}");
            scan.reset(ModelEndpoint::RESPONSES);
        }
    }
}

#[test]
fn same_format_passes_except_for_tollgates_members() {
    let body = read("46-same-shape.client.responses.request.json").unwrap();
    let mut scan = RequestScan::new();
    scan.reset(ModelEndpoint::RESPONSES);
    scan.finish(body.as_bytes()).unwrap();
    let (mut text, mut pieces) = (Vec::new(), Vec::new());
    let capabilities = Capabilities { effort: true, ..Capabilities::default() };
    let target =
        RequestTarget { model: "gpt-5.5", shape: Shape::Responses, capabilities: &capabilities, cache_key: None };
    let length = rewrite(ModelEndpoint::RESPONSES, body.as_bytes(), scan.fields(), &target, &mut text, &mut pieces);
    let length = length.unwrap();
    let mut out = Vec::new();
    for piece in &pieces {
        out.extend_from_slice(match piece {
            RewritePiece::Body(span) => span.of(body.as_bytes()),
            RewritePiece::Text(span) => span.of(&text),
        });
    }
    assert_eq!(out.len() as u64, length);
    let want = json(&read("46-same-shape.upstream.responses.request.json").unwrap());
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
    let upstream = read("46-same-shape.upstream.responses.stream.sse").unwrap();
    let run = |chunks: &[&[u8]]| {
        let mut stream = SseStream::same(ModelEndpoint::RESPONSES, false, 1 << 20);
        let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
        for chunk in chunks {
            let alike = stream.feed_alike(chunk, &mut pool, &mut out);
            stream.feed(&chunk[alike..], &mut pool, &ME, &mut out).unwrap();
        }
        stream.end(&mut pool, &ME, &mut out).unwrap();
        (String::from_utf8(out).unwrap(), stream.observed())
    };
    let want = read("46-same-shape.client.responses.stream.sse").unwrap();
    let whole = run(&[upstream.as_bytes()]);
    assert_eq!(whole.0, want);
    assert_eq!((whole.1.reported.prompt(), whole.1.reported.output), (Some(9), Some(1)));
    for at in 0..upstream.len() {
        assert_eq!(run(&[&upstream.as_bytes()[..at], &upstream.as_bytes()[at..]]), whole, "split at {at}");
    }
}

#[test]
fn chat_client_reaches_a_model_with_only_this_format() {
    let body = read("47-chat-to-responses.client.chat.request.json").unwrap();
    let mark = carrier::mark("openai", "gpt-5.5");
    let capabilities = Capabilities { mark, effort: true, ..Capabilities::default() };
    let way = (Shape::Chat, Shape::Responses);
    let (got, state) = request_for(way, &body, "gpt-5.5", &capabilities).unwrap();
    assert_eq!(got, json(&read("47-chat-to-responses.upstream.responses.request.json").unwrap()));
    let text = read("47-chat-to-responses.upstream.responses.stream.sse").unwrap();
    let outcome = stream_for_every_way((Shape::Responses, Shape::Chat), &state, true, &ME, &text);
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.out, read("47-chat-to-responses.client.chat.stream.sse").unwrap());
}

/// The response at the end of a stream.
pub(super) fn last_response(stream: &str) -> Value {
    let last = stream.trim_end().rsplit("\n\n").next().unwrap();
    let event = json(last.split_once("data: ").unwrap().1);
    assert!(["response.completed", "response.incomplete"].contains(&event["type"].as_str().unwrap()), "{event}");
    event["response"].clone()
}

#[test]
fn stream_ends_with_the_complete_answer_and_both_are_read_alike() {
    for seed in 0..300 {
        let mut rng = Rng::from_u64(seed);
        let answer = answer(&mut rng);
        let texts = [
            (Shape::Chat, answer.chat_whole(), answer.chat_stream(&mut rng)),
            (Shape::Messages, answer.messages_whole(), answer.messages_stream(&mut rng)),
        ];
        for (from, whole, text) in texts {
            let state = state_of("none", from, ("m", "p"));
            let (mut out, way) = (Vec::new(), (from, Shape::Responses));
            reply(way, whole.as_bytes(), &state, &ME, &mut out).unwrap();
            let want = json(std::str::from_utf8(&out).unwrap());
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(1 + seed as usize).collect();
            let outcome = stream_for(way, &state, false, &ME, &chunks);
            assert_eq!(outcome.result, Ok(()), "seed {seed}");
            assert_eq!(last_response(&outcome.out), want, "seed {seed} {from:?}: {answer:?}");
            for to in [Shape::Chat, Shape::Messages] {
                let (mut again, back) = (Vec::new(), (Shape::Responses, to));
                let read = reply(back, &out, &state, &ME, &mut again);
                read.unwrap();
                let want = json(std::str::from_utf8(&again).unwrap());
                let outcome = stream_for(back, &state, true, &ME, &[outcome.out.as_bytes()]);
                assert_eq!(outcome.result, Ok(()), "seed {seed}");
                let got = match to {
                    Shape::Chat => accumulate_chat(&outcome.out),
                    _ => accumulate_messages(&outcome.out),
                };
                assert_eq!(
                    without_signatures(got),
                    without_signatures(want),
                    "seed {seed} {from:?} {to:?}: {answer:?}"
                );
            }
        }
    }
}

/// Signatures arrive with the ends of a stream's blocks, and are assembled elsewhere.
fn without_signatures(mut answer: Value) -> Value {
    let blocks = answer.get_mut("content").and_then(Value::as_array_mut);
    blocks.into_iter().flatten().filter_map(Value::as_object_mut).for_each(|block| drop(block.remove("signature")));
    answer
}

/// A request written for a target, and the state for its answer.
pub(super) fn ask(from: Shape, to: Shape, body: &str, takes: &Capabilities) -> (Value, TranslationState) {
    request_for((from, to), body, "up", takes).unwrap()
}

/// A request of these items, written for a target.
pub(super) fn asked(shape: Shape, items: &Value) -> Value {
    let body = value!({"model": "team-fast", "input": items, "max_output_tokens": 9});
    request_for((Shape::Responses, shape), &body.to_string(), "up", &Capabilities::default()).unwrap().0
}

pub(super) fn call(id: &str) -> Value {
    value!({"type": "function_call", "id": "fc_x", "call_id": id, "name": "f", "arguments": "{}"})
}

pub(super) fn output(id: &str, output: Value) -> Value {
    value!({"type": "function_call_output", "id": "fco_x", "call_id": id, "output": output})
}

pub(super) fn user(text: &str) -> Value {
    value!({"role": "user", "content": text})
}

fn roles(messages: &Value) -> Vec<&str> {
    messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect()
}

/// Rows 12 and 14 of the known bugs of others: items between a call and its output are moved after the outputs, which
/// follow the order of the calls, by `call_id`.
#[test]
fn turn_is_complete_wherever_its_outputs_are() {
    let text = value!({"role": "assistant", "content": [{"type": "output_text", "text": "Look."}]});
    let (b, a) = (output("b", value!("2")), output("a", value!("1")));
    let items = value!([user("Go."), text, call("a"), call("b"), user("Wait."), b, a, user("Now.")]);
    let chat = asked(Shape::Chat, &items);
    assert_eq!(roles(&chat["messages"]), ["user", "assistant", "tool", "tool", "user", "user"]);
    let calls = chat["messages"][1]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &chat["messages"][1]["content"]), (2, &value!("Look.")));
    let outputs = |at: usize| (&chat["messages"][at]["tool_call_id"], &chat["messages"][at]["content"]);
    assert_eq!((outputs(2), outputs(3)), ((&value!("a"), &value!("1")), (&value!("b"), &value!("2"))));
    let messages = asked(Shape::Messages, &items);
    assert_eq!(roles(&messages["messages"]), ["user", "assistant", "user"]);
    let kinds: Vec<&Value> =
        messages["messages"][2]["content"].as_array().unwrap().iter().map(|b| &b["type"]).collect();
    assert_eq!(kinds, ["tool_result", "tool_result", "text", "text"]);
}

/// Row 13: a call without an output, and an output without a call or without an id, do not break a conversation.
#[test]
fn orphans_become_text() {
    let lost = value!({"type": "function_call_output", "output": "lost"});
    let items = value!([user("Go."), call("a"), user("On."), output("z", value!("late")), lost]);
    let chat = asked(Shape::Chat, &items);
    assert_eq!(roles(&chat["messages"]), ["user", "assistant", "tool", "user", "user", "user"]);
    assert_eq!(chat["messages"][2]["content"], "[no output was recorded]");
    let text = chat["messages"][4]["content"].to_string();
    assert!(text.contains("not in this conversation") && text.contains("late"), "{text}");
}

/// Row 22: an image returned by a tool reaches the model.
#[test]
fn image_in_an_output_is_moved_if_the_format_requires() {
    let image = value!([{"type": "input_image", "image_url": "data:image/png;base64,iVBO", "detail": "high"}]);
    let items = value!([user("Go."), call("a"), output("a", image)]);
    let chat = asked(Shape::Chat, &items);
    assert_eq!(roles(&chat["messages"]), ["user", "assistant", "tool", "user"]);
    let part = &chat["messages"][3]["content"][1]["image_url"];
    assert_eq!(part, &value!({"url": "data:image/png;base64,iVBO", "detail": "high"}));
    let messages = asked(Shape::Messages, &items);
    let source = &messages["messages"][2]["content"][0]["content"][0]["source"];
    assert_eq!(source, &value!({"type": "base64", "media_type": "image/png", "data": "iVBO"}));
}

/// Rows 11, 34 and 36: traces of provider-hosted tools, unknown kinds, and another target's reasoning are omitted.
#[test]
fn items_without_an_equivalent_are_omitted() {
    let foreign = value!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAAA"});
    let search = value!({"type": "web_search_call", "id": "ws", "status": "completed"});
    let items = value!([user("Go."), foreign, search, {"type": "of_next_month", "x": 1}, user("On.")]);
    assert_eq!(roles(&asked(Shape::Messages, &items)["messages"]), ["user"]);
}

/// Row 40: an id that a responses upstream would refuse is replaced, by the same one for the call and its result.
#[test]
fn long_ids_of_a_pair_stay_equal() {
    let id = "toolu_".repeat(20);
    let body = value!({"model": "m", "max_tokens": 9, "messages": [user("Go."),
        {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "ok"}]}]});
    let way = (Shape::Messages, Shape::Responses);
    let (got, _) = request_for(way, &body.to_string(), "up", &Capabilities::default()).unwrap();
    let ids = [&got["input"][1]["call_id"], &got["input"][2]["call_id"]];
    assert!(ids[0] == ids[1] && ids[0].as_str().unwrap().len() <= 64, "{got}");
    assert_eq!(got["max_output_tokens"], 16, "{got}");
}

/// Row 20: free text is extracted from whatever a model wraps it in.
#[test]
fn free_text_is_extracted_from_any_wrapping() {
    let body = r#"{"model":"m","input":"hi","tools":[{"type":"custom","name":"c"}]}"#;
    let capabilities = Capabilities::default();
    let state = request_for((Shape::Responses, Shape::Chat), body, "up", &capabilities).unwrap().1;
    for (arguments, want) in [
        (r#"{"input":"a\nb"}"#, "a\nb"),
        (r#"{"patch":"a"}"#, "a"),
        (r#"{"x":"a","y":"b"}"#, r#"{"x":"a","y":"b"}"#),
        (r#""a""#, "a"),
        ("*** Begin", "*** Begin"),
    ] {
        let call = value!({"id": "c1", "type": "function", "function": {"name": "c", "arguments": arguments}});
        let message = value!({"role": "assistant", "tool_calls": [call]});
        let answer = value!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
        let mut out = Vec::new();
        reply((Shape::Chat, Shape::Responses), answer.to_string().as_bytes(), &state, &ME, &mut out).unwrap();
        let item = json(std::str::from_utf8(&out).unwrap())["output"][0].clone();
        assert_eq!((&item["type"], &item["input"]), (&value!("custom_tool_call"), &value!(want)), "{arguments}");
    }
}

/// Rows 28 and 33: a cut answer is incomplete only in its last item, a cut call of free text is omitted, and a stream
/// that breaks off is never complete.
#[test]
fn cut_answer_is_incomplete_only_in_its_last_item() {
    let body = r#"{"model":"m","input":"hi","tools":[{"type":"custom","name":"c"},{"type":"function","name":"f"}]}"#;
    let capabilities = Capabilities::default();
    let state = request_for((Shape::Responses, Shape::Chat), body, "up", &capabilities).unwrap().1;
    let way = (Shape::Chat, Shape::Responses);
    let entry = |index: usize, name: &str, args: &str| {
        let call = value!({"index": index, "id": format!("c{index}"), "function": {"name": name, "arguments": args}});
        format!("data: {}\n\n", value!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}))
    };
    let length = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";
    let run = |text: String| stream_for(way, &state, false, &ME, &[text.as_bytes()]);
    let cut = last_response(&run(entry(0, "f", "{}") + &entry(1, "f", "{\"a") + length).out);
    let statuses: Vec<&Value> = cut["output"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!((statuses, &cut["status"]), (vec![&value!("completed"), &value!("incomplete")], &value!("incomplete")));
    let cut = last_response(&run(entry(0, "c", "{\"input\":\"*** Be") + length).out);
    assert_eq!(cut["output"], value!([]));
    let broken = run(entry(0, "f", "{}"));
    assert_eq!(broken.result, Err(StreamFault::Incomplete));
    assert!(!broken.out.contains("response.completed"), "{}", broken.out);
}

/// The format of a chat stream permits pieces of calls, texts and reasoning in any order.
#[test]
fn parts_of_interleaved_pieces_keep_their_order() {
    let chunk = |delta: Value| format!("data: {}\n\n", value!({"choices": [{"index": 0, "delta": delta}]}));
    let piece = |index: usize, name: &str, args: &str| {
        let mut call = value!({"index": index, "function": {"arguments": args}});
        if !name.is_empty() {
            (call["id"], call["function"]["name"]) = (value!(format!("c{index}")), value!(name));
        }
        chunk(value!({"tool_calls": [call]}))
    };
    let text = chunk(value!({"content": "a"}))
        + &piece(0, "f", "{\"x\"")
        + &chunk(value!({"content": "b"}))
        + &piece(1, "g", "{\"y\"")
        + &chunk(value!({"content": "\n"}))
        + &piece(0, "", ":1}")
        + &chunk(value!({"reasoning_content": "c"}))
        + &piece(1, "", ":2}")
        + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    let state = state_of("none", Shape::Chat, ("m", "p"));
    let to_messages = stream_for_every_way((Shape::Chat, Shape::Messages), &state, false, &ME, &text);
    let message = accumulate_messages(&to_messages.out);
    let blocks: Vec<&Value> = message["content"].as_array().unwrap().iter().collect();
    let kinds: Vec<&str> = blocks.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "tool_use", "text", "tool_use", "thinking"], "{message}");
    assert_eq!((&blocks[1]["input"], &blocks[3]["input"]), (&value!({"x": 1}), &value!({"y": 2})));
    assert_eq!((&blocks[2]["text"], &blocks[4]["thinking"]), (&value!("b"), &value!("c")));
    let to_responses = stream_for_every_way((Shape::Chat, Shape::Responses), &state, false, &ME, &text);
    let output = last_response(&to_responses.out)["output"].clone();
    let kinds: Vec<&str> = output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "function_call", "message", "function_call", "reasoning"], "{output}");
    let arguments = (&output[1]["arguments"], &output[3]["arguments"]);
    assert_eq!(arguments, (&value!("{\"x\":1}"), &value!("{\"y\":2}")));
}

/// Row 2: content that an upstream sends only at the end of an item is not lost.
#[test]
fn arguments_sent_with_the_end_of_a_call_are_passed_on() {
    let item = |arguments: &str| value!({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments});
    let event = |kind: &str, rest: Value| {
        let mut event = rest;
        event["type"] = value!(kind);
        format!("event: {kind}\ndata: {event}\n\n")
    };
    let delta = event("response.function_call_arguments.delta", value!({"output_index": 0, "delta": "{\"a\""}));
    let text = event("response.output_item.added", value!({"output_index": 0, "item": item("")}))
        + &delta
        + &event("response.output_item.done", value!({"output_index": 0, "item": item("{\"a\":\"ü\"}")}))
        + &event("response.completed", value!({"response": {"status": "completed", "output": []}}));
    let state = TranslationState::default();
    let outcome = stream_for_every_way((Shape::Responses, Shape::Chat), &state, false, &ME, &text);
    let call = accumulate_chat(&outcome.out)["choices"][0]["message"]["tool_calls"][0].clone();
    assert_eq!(call["function"]["arguments"], "{\"a\":\"ü\"}");
}

#[test]
fn tool_names_are_bounded_in_translations() {
    let capabilities = Capabilities::default();
    let (fits, long) = ("n".repeat(1024), "n".repeat(1025));
    let of_response = |tool: Value| value!({"input": "a", "tools": [tool]});
    let hi = value!([{"role": "user", "content": "a"}]);
    for (from, to, path, body) in [
        (Shape::Responses, Shape::Chat, "tools[0].name", of_response(value!({"type": "function", "name": long}))),
        (
            Shape::Responses,
            Shape::Chat,
            "tools[0].name",
            of_response(value!({"type": "namespace", "name": long, "tools": [{"name": "f"}]})),
        ),
        (
            Shape::Chat,
            Shape::Messages,
            "tools[0].function.name",
            value!({"messages": hi, "tools": [{"type": "function", "function": {"name": long}}]}),
        ),
        (
            Shape::Messages,
            Shape::Chat,
            "tools[0].name",
            value!({"max_tokens": 1, "messages": hi, "tools": [{"name": long}]}),
        ),
    ] {
        let text = body.to_string();
        let said = request_for((from, to), &text, "up", &capabilities).unwrap_err();
        assert_eq!(said, format!("{path}: expected at most 1024 bytes"));
        assert!(request_for((from, to), &text.replace(&long, &fits), "up", &capabilities).is_ok(), "{path}");
    }
}

#[test]
fn long_choice_is_computed_once_for_all_tools() {
    let tools: Vec<Value> = (0..4000).map(|n| value!({"type": "function", "name": format!("t{n}")})).collect();
    let ask = |length: usize| {
        let choice = value!({"type": "function", "name": "f", "namespace": "n".repeat(length)});
        let body = value!({"input": "a", "tools": tools, "tool_choice": choice}).to_string();
        let began = run_time();
        let said = request_for((Shape::Responses, Shape::Chat), &body, "up", &Capabilities::default());
        assert!(said.unwrap_err().starts_with("tool_choice: expected"));
        run_time() - began
    };
    // Hashing it for each tool would take minutes.
    let (short, long) = (ask(10), ask(1 << 20));
    assert!(long < 20 * short, "{short} ns, {long} ns");
}
