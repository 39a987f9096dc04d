//! Tests of the interpretation of requests, in all APIs.

use super::*;
use crate::simulator::script::Finish;

fn chat(body: Value) -> SimulatedRequest {
    read(ModelEndpoint::CHAT, body.to_string().as_bytes()).unwrap()
}

fn messages(body: Value) -> SimulatedRequest {
    read(ModelEndpoint::MESSAGES, body.to_string().as_bytes()).unwrap()
}

fn user(text: &str) -> Value {
    json!({ "model": "m", "max_tokens": 1000, "messages": [{ "role": "user", "content": text }] })
}

fn with(text: &str, members: Value) -> Value {
    let mut body = user(text);
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn weather() -> Value {
    let schema =
        json!({ "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } });
    json!([
        { "type": "function", "function": { "name": "get_weather", "parameters": schema } },
        { "type": "function", "function": { "name": "get_time" } },
    ])
}

fn names(ask: &SimulatedRequest) -> Vec<String> {
    let call = |part: &'_ ScriptPart| match part {
        ScriptPart::Call(call) => Some(call.name.clone()),
        ScriptPart::Think(_) | ScriptPart::Text(_) => None,
    };
    ask.script.parts.iter().filter_map(call).collect()
}

#[test]
fn the_tokens_of_a_prompt_are_its_words() {
    let ask = chat(json!({ "model": "m", "messages": [
        { "role": "system", "content": "Be  brief." },
        { "role": "user", "content": [
            { "type": "text", "text": "What is\nthis?" },
            { "type": "image_url", "image_url": { "url": "data:," } },
        ] },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c", "function": { "name": "f", "arguments": "{\"a\": 1}" } }] },
        { "role": "tool", "tool_call_id": "c", "content": "one two" },
    ] }));
    assert_eq!(ask.prompt, 2 + 3 + OTHER_PART_TOKENS + (1 + 2) + 2);
    let ask = messages(
        json!({ "model": "m", "max_tokens": 9, "tools": [{ "name": "f" }], "system": [{ "type": "text", "text": "a b" }], "messages": [
        { "role": "user", "content": "c" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "d e" }] }] },
    ] }),
    );
    assert_eq!(ask.prompt, 1 + 2 + 1 + 2 + 2);
    assert_eq!(chat(json!({ "model": "m", "messages": [{ "role": "user", "content": "" }] })).prompt, 1);
}

#[test]
fn requests_that_real_providers_refuse_are_refused() {
    let bodies = [
        (ModelEndpoint::CHAT, "{"),
        (ModelEndpoint::CHAT, "[]"),
        (ModelEndpoint::CHAT, r#"{"messages":[{"role":"user","content":"a"}]}"#),
        (ModelEndpoint::CHAT, r#"{"model":"m","messages":[]}"#),
        (ModelEndpoint::CHAT, r#"{"model":"m","messages":[{}],"stream_options":{"include_usage":true}}"#),
        (ModelEndpoint::CHAT, r##"{"model":"m","messages":[{"role":"user","content":"#sim wrong"}]}"##),
        (ModelEndpoint::MESSAGES, r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#),
        (ModelEndpoint::MESSAGES, r#"{"model":"m","max_tokens":0,"messages":[{"role":"user","content":"a"}]}"#),
    ];
    for (shape, body) in bodies {
        assert_eq!(
            read(shape, body.as_bytes()).map(|ask| ask.prompt).map_err(|error| error.status),
            Err(400),
            "{body}"
        );
    }
}

#[test]
fn tool_is_called_only_if_forced_requested_or_named() {
    let tools = weather();
    assert!(names(&chat(with("Hello", json!({ "tools": tools })))).is_empty());
    assert_eq!(names(&chat(with("use get_time", json!({ "tools": tools })))), ["get_time"]);
    assert_eq!(names(&chat(with("#sim tool=get_weather", json!({ "tools": tools })))), ["get_weather"]);
    assert_eq!(
        names(&chat(with("#sim tool calls=3", json!({ "tools": tools })))),
        ["get_weather", "get_time", "get_weather"]
    );
    assert_eq!(names(&chat(with("Hi", json!({ "tools": tools, "tool_choice": "required" })))), ["get_weather"]);
    let one = json!({ "type": "function", "function": { "name": "get_time" } });
    assert_eq!(names(&chat(with("Hi", json!({ "tools": tools, "tool_choice": one })))), ["get_time"]);
    assert!(names(&chat(with("get_time", json!({ "tools": tools, "tool_choice": "none" })))).is_empty());
    let single = json!({ "tools": tools, "parallel_tool_calls": false });
    assert_eq!(names(&chat(with("#sim tool calls=3", single))), ["get_weather"]);
    assert!(names(&chat(user("#sim tool"))).is_empty());
    let tools = json!([{ "name": "look", "input_schema": { "type": "object" } }]);
    assert_eq!(names(&messages(with("Hi", json!({ "tools": tools, "tool_choice": { "type": "any" } })))), ["look"]);
    let choice = json!({ "type": "tool", "name": "look", "disable_parallel_tool_use": true });
    assert_eq!(names(&messages(with("#sim calls=2", json!({ "tools": tools, "tool_choice": choice })))), ["look"]);
}

#[test]
fn a_tools_result_ends_the_loop_even_when_a_tool_is_forced() {
    let mut body = with("use get_time", json!({ "tools": weather(), "tool_choice": "required" }));
    body["messages"].as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "c", "function": { "name": "f", "arguments": "" } }] }),
        json!({ "role": "tool", "tool_call_id": "c", "content": "12:00" }),
    ]);
    let ask = chat(body);
    assert_eq!((names(&ask).len(), ask.script.finish), (0, Finish::Stop));
    let result = json!([{ "type": "tool_result", "tool_use_id": "t", "content": "12" }]);
    let tools = json!([{ "name": "look", "input_schema": {} }]);
    let body = json!({ "model": "m", "max_tokens": 99, "tools": tools, "tool_choice": { "type": "any" }, "messages": [
        { "role": "user", "content": "look" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "look", "input": {} }] },
        { "role": "user", "content": result },
    ] });
    assert!(names(&messages(body)).is_empty());
}

#[test]
fn arguments_and_json_answers_fit_their_schema() {
    let ask = chat(with("#sim tool=get_weather", json!({ "tools": weather() })));
    let ScriptPart::Call(call) = &ask.script.parts[0] else { panic!("a call") };
    assert_eq!(call.args.concat(), r#"{"city":"Oslo","days":1}"#);
    let ask = chat(with("#sim tool=get_weather args={\"x\":[]}", json!({ "tools": weather() })));
    let ScriptPart::Call(call) = &ask.script.parts[0] else { panic!("a call") };
    assert_eq!(call.args.concat(), r#"{"x":[]}"#);
    let schema = json!({ "type": "object", "properties": { "kind": { "enum": ["a", "b"] }, "list": { "type": "array", "items": { "type": "boolean" } } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let ask = chat(with("Hi", json!({ "response_format": format })));
    let ScriptPart::Text(text) = &ask.script.parts[0] else { panic!("a text") };
    let joined: String = (0..text.len()).map(|at| text.piece(at)).collect();
    assert_eq!(joined, r#"{"kind":"a","list":[true]}"#);
}

#[test]
fn newer_name_of_the_limit_has_priority() {
    let ask = chat(with("#sim tokens=9", json!({ "max_completion_tokens": 4, "max_tokens": 7 })));
    assert_eq!((ask.script.tokens, ask.script.finish), (4, Finish::Length));
    assert_eq!(chat(with("#sim tokens=9", json!({}))).script.tokens, 9);
}

#[test]
fn turns_are_counted_and_their_results_reported() {
    let question = "#sim turns=2 calls=2 report think=1";
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    let tools = json!([{ "name": "alpha", "input_schema": schema }, { "name": "beta", "input_schema": schema }]);
    let mut history = vec![json!({ "role": "user", "content": question })];
    let ask_with =
        |history: &[Value]| messages(json!({ "model": "m", "max_tokens": 99, "tools": tools, "messages": history }));
    let mut given = Vec::new();
    for turn in 0..2 {
        let ask = ask_with(&history);
        assert_eq!((names(&ask), ask.script.finish), (vec!["alpha".into(), "beta".into()], Finish::Tools));
        assert_eq!(ask.script.parts[0], ScriptPart::Think(Text::Words(1)));
        let args = ask
            .script
            .parts
            .iter()
            .filter_map(|part| if let ScriptPart::Call(call) = part { Some(call.args.concat()) } else { None });
        given.extend(args);
        let calls =
            [0, 1].map(|n| json!({ "type": "tool_use", "id": format!("t{turn}{n}"), "name": "alpha", "input": {} }));
        let results = [0, 1].map(|n| json!({ "type": "tool_result", "tool_use_id": format!("t{turn}{n}"), "content": format!("r{turn}{n}") }));
        history
            .extend([json!({ "role": "assistant", "content": calls }), json!({ "role": "user", "content": results })]);
    }
    assert_eq!(given, [1, 2, 3, 4].map(|n| format!("{{\"n\":{n}}}")));
    let ask = ask_with(&history);
    assert_eq!(ask.script.parts[1..], [ScriptPart::Text(Text::words_of("r00 r01 r10 r11"))]);
    assert_eq!(ask.script.finish, Finish::Stop);
}

#[test]
fn stop_sequences_and_refusals_end_an_answer() {
    let ask = chat(with("Hi", json!({ "stop": ["made", ""] })));
    assert_eq!((ask.script.tokens, ask.script.finish), (4, Finish::Sequence));
    assert_eq!(ask.script.sequence.as_deref(), Some("made"));
    let ask = messages(with("Hi", json!({ "stop_sequences": ["gate"], "max_tokens": 2 })));
    assert_eq!((ask.script.tokens, ask.script.finish, ask.script.sequence), (2, Finish::Length, None));
    assert_eq!(chat(with("Hi", json!({ "stop": "nowhere" }))).script.finish, Finish::Stop);
    assert_eq!(chat(with("#sim refuse", json!({}))).script.finish, Finish::Refusal);
}

#[test]
fn models_that_reason_refuse_the_older_bound_and_any_temperature_but_one() {
    let refusal = |shape, model: &str, members: Value| {
        let mut body = with("hi", members);
        body["model"] = json!(model);
        if shape == ModelEndpoint::CHAT && body["max_tokens"] == 1000 {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        read(shape, body.to_string().as_bytes()).err().map(|complaint| (complaint.status, complaint.message))
    };
    let bound = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' \
                 instead.";
    for model in ["gpt-5-mini", "o1", "o3-mini", "o4-mini", "openai/gpt-5", "gpt-6-luna"] {
        let chat = |members| refusal(ModelEndpoint::CHAT, model, members);
        assert_eq!(chat(json!({ "max_tokens": 5 })), Some((400, bound.to_owned())), "{model}");
        let (status, words) = chat(json!({ "temperature": 0.2 })).unwrap();
        assert!(status == 400 && words.contains("'temperature' does not support 0.2"), "{words}");
        assert_eq!(chat(json!({ "max_completion_tokens": 5, "temperature": 1 })), None);
        assert_eq!(refusal(ModelEndpoint::MESSAGES, model, json!({ "temperature": 0.2 })), None);
    }
    for model in ["gpt-4o", "olmo-2", "m", "sim-heron-small"] {
        assert_eq!(
            refusal(ModelEndpoint::CHAT, model, json!({ "max_tokens": 5, "temperature": 0.2 })),
            None,
            "{model}"
        );
    }
}

#[test]
fn newer_models_refuse_tools_with_an_effort() {
    let refuses = |model: &str, effort: Option<&str>, tools: bool| {
        let mut body = with("hi", json!({ "model": model, "max_tokens": null }));
        if let Some(effort) = effort {
            body["reasoning_effort"] = json!(effort);
        }
        if tools {
            body["tools"] = json!([{ "type": "function", "function": { "name": "look", "parameters": {} } }]);
        }
        match read(ModelEndpoint::CHAT, body.to_string().as_bytes()) {
            Ok(_) => false,
            Err(complaint) => {
                assert!(complaint.message.contains("set reasoning_effort to 'none'"), "{}", complaint.message);
                true
            }
        }
    };
    for (model, low, absent) in [
        ("gpt-5-mini", false, false),
        ("gpt-5.1", false, false),
        ("gpt-5.4-mini", true, false),
        ("gpt-6-luna", true, true),
    ] {
        assert_eq!((refuses(model, Some("low"), true), refuses(model, None, true)), (low, absent), "{model}");
        assert!(!refuses(model, Some("none"), true) && !refuses(model, Some("low"), false), "{model}");
    }
}

#[test]
fn consecutive_calls_of_a_responses_request_are_one_turn() {
    let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "get_time", "arguments": "{}" });
    let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "noon" });
    let read = |turns: u64| {
        let said = json!({ "type": "message", "role": "assistant", "content": "Let me see." });
        let asked = json!({ "role": "user", "content": format!("go #sim turns={turns} calls=2") });
        let items = json!([asked, said, call("a"), call("b"), output("a"), output("b")]);
        let tool = json!({ "type": "function", "name": "get_time", "parameters": { "type": "object" } });
        let body = json!({ "model": "m", "input": items, "tools": [tool], "store": false });
        names(&read(ModelEndpoint::RESPONSES, body.to_string().as_bytes()).unwrap()).len()
    };
    assert_eq!((read(1), read(2)), (0, 2));
}

/// A conversation of a Gemini model whose last calls have these signatures, after a turn without any.
fn signed(model: &str, signatures: &[Value]) -> Result<SimulatedRequest, Complaint> {
    let call = |id: String, signature: &Value| {
        json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" },
                "extra_content": { "google": { "thought_signature": signature } } })
    };
    let calls: Vec<Value> = signatures.iter().enumerate().map(|(at, one)| call(format!("c{at}"), one)).collect();
    let ids = calls.iter().map(|call| json!({ "role": "tool", "tool_call_id": call["id"], "content": "r" }));
    let mut messages = vec![
        json!({ "role": "user", "content": "a" }),
        json!({ "role": "assistant", "tool_calls": [call("old".to_owned(), &Value::Null)] }),
        json!({ "role": "tool", "tool_call_id": "old", "content": "r" }),
        json!({ "role": "user", "content": "b" }),
        json!({ "role": "assistant", "tool_calls": calls }),
    ];
    messages.extend(ids);
    read(ModelEndpoint::CHAT, json!({ "model": model, "messages": messages }).to_string().as_bytes())
}

#[test]
fn a_gemini_model_refuses_a_missing_or_foreign_signature_on_the_first_call_of_the_turn() {
    let model = "google/gemini-3.8-flash";
    let own = json!(signature::make(model, "c0", 16 * 1024));
    let other = json!(signature::make("gemini-3.8-flash", "c0", signature::LENGTH));
    let moved = json!(signature::make(model, "c1", signature::LENGTH));
    let skip = json!("skip_thought_signature_validator");
    for fine in [vec![own.clone()], vec![own.clone(), Value::Null], vec![skip, Value::Null]] {
        assert!(signed(model, &fine).is_ok());
    }
    let complaint = |signatures: &[Value]| {
        let complaint = signed(model, signatures).unwrap_err();
        assert!(complaint.of_gemini && complaint.status == 400);
        complaint.message
    };
    let missing = complaint(&[Value::Null, own.clone()]);
    assert!(missing.starts_with("Function call is missing a thought_signature in functionCall parts."), "{missing}");
    assert!(missing.ends_with("Additional data, function call `default_api:f`, position 5."), "{missing}");
    for foreign in [json!("c2ln"), other, moved] {
        assert_eq!(complaint(&[foreign]), "Corrupted thought signature.");
    }
    for lax in ["gemini-2.5-pro", "gemini-3-pro-image", "gpt-4o"] {
        assert!(signed(lax, &[Value::Null]).is_ok(), "{lax}");
    }
}
