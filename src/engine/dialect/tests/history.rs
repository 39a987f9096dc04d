//! Earlier turns and files of a request, for every pair of client and provider format.

use super::responses::json;
use super::*;
use serde_json::json as value;

fn asked(from: Shape, shape: Shape, body: &str) -> Value {
    request_for((from, shape), body, "m", &Capabilities::default()).unwrap().0
}

/// A conversation in which `f` was called with these arguments.
fn called(from: Shape, arguments: &Value) -> String {
    match from {
        Shape::Responses => value!({"model": "m", "input": [
            {"role": "user", "content": "a"},
            {"type": "function_call", "name": "f", "arguments": arguments, "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "ok"}]}),
        Shape::Chat => value!({"model": "m", "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "ok"}]}),
        _ => value!({"model": "m", "max_tokens": 9, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "call_1", "name": "f", "input": arguments}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "ok"}]}]}),
    }
    .to_string()
}

#[test]
fn message_of_dropped_reasoning_alone_is_omitted() {
    // Anthropic refuses a message without content, Mistral one without content and tool calls.
    let carrier = "tg1.eyJrIjoiMDAwMDAwMDAiLCJiIjpbXX0";
    let conversation = |from: Shape| match from {
        Shape::Responses => value!({"model": "m", "input": [
            {"role": "user", "content": "a"},
            {"type": "reasoning", "summary": [], "encrypted_content": carrier},
            {"role": "user", "content": "b"}]}),
        _ => value!({"model": "m", "max_tokens": 9, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": carrier}]},
            {"role": "user", "content": "b"}]}),
    };
    for (from, shape) in [
        (Shape::Messages, Shape::Chat),
        (Shape::Messages, Shape::Responses),
        (Shape::Responses, Shape::Chat),
        (Shape::Responses, Shape::Messages),
    ] {
        let sent = asked(from, shape, &conversation(from).to_string());
        let list = &sent[if shape == Shape::Responses { "input" } else { "messages" }];
        assert!(list.as_array().unwrap().iter().all(|item| item["role"] == "user"), "{from:?} to {shape:?}: {sent}");
    }
}

/// The arguments of the call as the provider reads them.
fn arguments(shape: Shape, request: &Value) -> &Value {
    match shape {
        Shape::Chat => &request["messages"][1]["tool_calls"][0]["function"]["arguments"],
        Shape::Messages => &request["messages"][1]["content"][0]["input"],
        _ => &request["input"][1]["arguments"],
    }
}

#[test]
fn empty_arguments_become_an_empty_object() {
    let all = [Shape::Chat, Shape::Messages, Shape::Responses];
    for (from, shape) in all.iter().flat_map(|from| all.iter().map(move |shape| (*from, *shape))) {
        if from == shape {
            continue;
        }
        let words = match from {
            Shape::Messages => vec![value!({})],
            _ => vec![value!(""), value!(" "), value!(" \n\t"), value!("null"), value!(" null ")],
        };
        let want = if shape == Shape::Messages { value!({}) } else { value!("{}") };
        for word in words {
            let request = asked(from, shape, &called(from, &word));
            assert_eq!(arguments(shape, &request), &want, "{from:?} to {shape:?}: {word}");
        }
        let full = if from == Shape::Messages { value!({"a": " "}) } else { value!("{\"a\":\" \"}") };
        let want = if shape == Shape::Messages { value!({"a": " "}) } else { value!("{\"a\":\" \"}") };
        let request = asked(from, shape, &called(from, &full));
        assert_eq!(arguments(shape, &request), &want, "{from:?} to {shape:?}");
    }
}

#[test]
fn null_arguments_become_an_empty_object() {
    let call = value!({"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": null});
    let body = value!({"model": "m", "input": [{"role": "user", "content": "a"}, call]}).to_string();
    for (shape, want) in [(Shape::Chat, value!("{}")), (Shape::Messages, value!({}))] {
        let request = asked(Shape::Responses, shape, &body);
        assert_eq!(arguments(shape, &request), &want, "{shape:?}");
    }
    let body = called(Shape::Messages, &Value::Null);
    for shape in [Shape::Chat, Shape::Responses] {
        assert_eq!(arguments(shape, &asked(Shape::Messages, shape, &body)), "{}", "{shape:?}");
    }
}

#[test]
fn empty_result_of_a_tool_search_is_stated() {
    let body = |output: Value| {
        let call = value!({"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {}});
        value!({"model": "m", "input": [{"role": "user", "content": "a"}, call, output]}).to_string()
    };
    let search = body(value!({"type": "tool_search_output", "call_id": "call_1", "execution": "client",
        "status": "completed", "tools": []}));
    let chat = asked(Shape::Responses, Shape::Chat, &search);
    assert_eq!(chat["messages"][2]["content"], "[]", "{chat}");
    let messages = asked(Shape::Responses, Shape::Messages, &search);
    let content = &messages["messages"][2]["content"][0]["content"];
    assert_eq!(content.as_str().or_else(|| content[0]["text"].as_str()), Some("[]"), "{messages}");
    let empty = body(value!({"type": "function_call_output", "call_id": "call_1", "output": []}));
    assert_eq!(asked(Shape::Responses, Shape::Chat, &empty)["messages"][2]["content"], "");
}

#[test]
fn text_file_of_a_chat_client_becomes_text() {
    let body = String::from_utf8(fixture("../translated/text-file.chat.json")).unwrap();
    let text = "The meeting is on Tuesday.\n";
    let messages = asked(Shape::Chat, Shape::Messages, &body);
    assert_eq!(messages["messages"][0]["content"][0], value!({"type": "text", "text": text}), "{messages}");
    let responses = asked(Shape::Chat, Shape::Responses, &body);
    assert_eq!(responses["input"][0]["content"][0], value!({"type": "input_text", "text": text}), "{responses}");
    let mut broken = json(&body);
    broken["messages"][0]["content"][0]["file"]["file_data"] = value!("data:text/plain;base64,/w==");
    let refused = request_for((Shape::Chat, Shape::Messages), &broken.to_string(), "m", &Capabilities::default());
    assert_eq!(refused.unwrap_err(), "messages[0].content[0].file.file_data: expected text in base64");
}
