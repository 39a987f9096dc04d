//! Every request field at both endpoints, valid and invalid, and its value at the provider.

use super::client::post;
use super::harness::{CREDENTIAL, Harness, bearer, chat, message, with};
use serde_json::{Value, json};

/// Documented fields of the chat endpoint, each with a valid and an invalid value.
fn chat_fields() -> Vec<(&'static str, Value, Value)> {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    vec![
        ("model", json!("small"), json!(7)),
        ("messages", json!([{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]), json!("hi")),
        ("stream", json!(false), json!("yes")),
        ("temperature", json!(0.5), json!("hot")),
        ("top_p", json!(0.9), json!(1.5)),
        ("max_tokens", json!(5), json!(0)),
        ("tools", json!([tool]), json!("f")),
        ("tool_choice", json!("auto"), json!(3)),
        ("response_format", json!({"type": "text"}), json!("json")),
        ("stop", json!(["a", "b"]), json!(5)),
        ("user", json!("someone"), json!({"id": 1})),
    ]
}

#[test]
fn each_chat_field_passes_if_valid_and_is_named_if_invalid() {
    let h = Harness::usual();
    let key = h.key();
    for (name, good, bad) in chat_fields() {
        let answer = h.chat(&key, &with(chat("hi"), name, good.clone()));
        assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
        let (_, sent) = h.last();
        let expected = if name == "model" { json!("up-small") } else { good };
        assert_eq!(sent[name], expected, "{name} must reach the provider");
        let served = h.count("requests");
        let answer = h.chat(&key, &with(chat("hi"), name, bad.clone()));
        assert_eq!(answer.status(), 400, "{name}={bad}");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(name), "{name}: {error}");
        assert_eq!(h.count("requests"), served, "a rejected request must not reach the provider");
    }
}

#[test]
fn null_counts_as_absent_and_required_fields_are_required() {
    let h = Harness::usual();
    let key = h.key();
    for (name, _, _) in chat_fields() {
        let answer = h.chat(&key, &with(chat("hi"), name, Value::Null));
        let expected = if name == "messages" { 400 } else { 200 };
        assert_eq!(answer.status(), expected, "{name}: null: {}", answer.text());
    }
    let answer = h.chat(&key, &json!({"messages": [{"role": "user", "content": "hi"}]}));
    assert_eq!(answer.json()["model"], "small", "the default model");
    for messages in [json!([]), json!([{"role": "wizard", "content": "x"}]), json!([{"content": "x"}]), json!([5])] {
        let answer = h.chat(&key, &with(chat("hi"), "messages", messages.clone()));
        assert_eq!(answer.status(), 400, "{messages}");
        assert!(answer.json()["error"]["message"].as_str().unwrap().starts_with("messages"), "{}", answer.text());
    }
}

#[test]
fn unknown_fields_are_ignored_and_documented_ones_pass() {
    let h = Harness::usual();
    let key = h.key();
    let mut body = chat("hi");
    for (name, value) in [
        ("no_such_field", json!({"a": [1, 2]})),
        ("seed", json!(42)),
        ("logprobs", json!("a wrong type is no reason to refuse")),
        ("store", json!(true)),
        ("fallbacks", json!(["other"])),
        ("n", json!(3)),
    ] {
        body[name] = value;
    }
    assert_eq!(h.chat(&key, &body).status(), 200);
    let (_, sent) = h.last();
    assert_eq!(sent["seed"], 42, "a documented field must be forwarded");
    for name in ["no_such_field", "store", "fallbacks"] {
        assert_eq!(sent[name], Value::Null, "{name} must not be forwarded");
    }
    assert!(matches!(sent["n"].as_u64(), None | Some(1)), "n must be forwarded as 1: {sent}");
}

#[test]
fn usage_is_requested_upstream_only_on_streams() {
    let h = Harness::usual();
    let key = h.key();
    h.chat(&key, &chat("hi"));
    assert_eq!(h.last().1["stream_options"], Value::Null);
    let options = json!({"include_usage": false, "include_obfuscation": false});
    h.chat(&key, &with(with(chat("hi"), "stream", true), "stream_options", options));
    assert_eq!(h.last().1["stream_options"], json!({"include_usage": true, "include_obfuscation": false}));
}

#[test]
fn each_messages_field_passes_if_valid_and_is_named_if_invalid() {
    let h = Harness::usual();
    let key = h.key();
    let rows = [
        ("model", json!("large"), json!(["large"])),
        ("max_tokens", json!(50), json!(1.5)),
        ("messages", json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]), json!({"role": "user"})),
        ("system", json!("be brief"), json!(5)),
        ("stream", json!(false), json!(1)),
    ];
    for (name, good, bad) in rows {
        let answer = h.messages(&key, &with(message("hi"), name, good.clone()));
        assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
        let expected = if name == "model" { json!("up-large") } else { good };
        assert_eq!(h.last().1[name], expected, "{name} must reach the provider");
        let answer = h.messages(&key, &with(message("hi"), name, bad));
        assert_eq!(answer.status(), 400, "{name}");
        let body = answer.json();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert!(body["error"]["message"].as_str().unwrap().contains(name), "{name}: {body}");
    }
    let mut body = message("hi");
    body.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(h.messages(&key, &body).status(), 400, "max_tokens is required");
}

#[test]
fn the_version_header_is_a_date_and_is_sent_upstream() {
    let h = Harness::usual();
    let key = h.key();
    let ask = |fields: &[(&str, &str)]| {
        let mut all = vec![("x-api-key", key.as_str())];
        all.extend_from_slice(fields);
        h.client().ask(&post("/v1/messages?beta=true", &all, &message("hi").to_string()))
    };
    assert_eq!(ask(&[]).status(), 200, "the header is optional");
    assert!(h.last().0.contains("anthropic-version: 2023-06-01"));
    assert_eq!(ask(&[("anthropic-version", "2026-10-21"), ("anthropic-beta", "some-beta")]).status(), 200);
    let (head, _) = h.last();
    assert!(head.contains("anthropic-version: 2026-10-21") && head.contains("anthropic-beta: some-beta"), "{head}");
    for wrong in ["yesterday", "2026-1-1", "20261021"] {
        assert_eq!(ask(&[("anthropic-version", wrong)]).status(), 400, "{wrong}");
    }
}

/// The provider receives its own credential, but never the client's key.
#[test]
fn the_provider_gets_its_credential_and_never_the_clients_key() {
    let h = Harness::usual();
    let key = h.key();
    let auth = bearer(&key);
    let private = [
        ("authorization", auth.as_str()),
        ("cookie", "session=secret"),
        ("x-forwarded-for", "10.0.0.1"),
        ("accept-encoding", "gzip"),
        ("x-request-id", "mine-1"),
    ];
    let answer = h.client().ask(&post("/v1/chat/completions", &private, &chat("hi").to_string()));
    assert_eq!(answer.status(), 200);
    let (head, _) = h.last();
    assert!(head.contains(&format!("authorization: bearer {}", CREDENTIAL.1)), "{head}");
    for word in [key.to_ascii_lowercase().as_str(), "cookie", "x-forwarded", "gzip", "mine-1"] {
        assert!(!head.contains(word), "{word}: {head}");
    }
    h.messages(&key, &message("hi"));
    let (head, _) = h.last();
    assert!(head.contains(&format!("x-api-key: {}", CREDENTIAL.1)), "{head}");
    assert_eq!(h.log_of(&answer.id())["client_request_id"], "mine-1");
}

/// Each endpoint can use every model.
#[test]
fn answers_have_the_format_of_the_endpoint_for_every_model() {
    let h = Harness::usual();
    let key = h.key();
    let chat = h.chat(&key, &with(chat("hi"), "model", "large"));
    assert_eq!((chat.status(), chat.json()["object"].as_str()), (200, Some("chat.completion")), "{}", chat.text());
    assert_eq!(chat.json()["choices"][0]["finish_reason"], "stop");
    let (head, _) = h.last();
    assert!(head.contains("/v1/messages") || head.contains("anthropic-version: 2023-06-01"), "{head}");
    let message = h.messages(&key, &with(message("hi"), "model", "small"));
    assert_eq!((message.status(), message.json()["type"].as_str()), (200, Some("message")), "{}", message.text());
    assert_eq!(message.json()["stop_reason"], "end_turn");
    let usage = (&chat.json()["usage"]["completion_tokens"], &message.json()["usage"]["output_tokens"]);
    assert!(usage.0.as_u64() > Some(0) && usage.0 == usage.1, "{usage:?}");
}

/// Each endpoint can use every model, and documented fields keep their meaning.
#[test]
fn fields_keep_their_meaning_when_translated() {
    let h = Harness::usual();
    let key = h.key();
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let mut asked = with(chat("hi"), "model", "large");
    for (name, value) in [
        ("messages", json!([{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}])),
        ("temperature", json!(0.5)),
        ("max_tokens", json!(77)),
        ("tools", json!([tool])),
        ("tool_choice", json!("required")),
        ("stop", json!("END")),
        ("user", json!("someone")),
    ] {
        asked[name] = value;
    }
    let answer = h.chat(&key, &asked);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(
        (&body["object"], &body["choices"][0]["finish_reason"]),
        (&json!("chat.completion"), &json!("tool_calls"))
    );
    let (head, sent) = h.last();
    assert!(head.contains("anthropic-version: 20"), "{head}");
    assert_eq!((&sent["model"], &sent["max_tokens"]), (&json!("up-large"), &json!(77)));
    assert!(sent["system"].to_string().contains("be"), "{sent}");
    assert_eq!((&sent["stop_sequences"], &sent["tool_choice"]["type"]), (&json!(["END"]), &json!("any")));
    assert_eq!((&sent["tools"][0]["name"], &sent["metadata"]["user_id"]), (&json!("f"), &json!("someone")));

    let asked = with(with(with(message("hi"), "model", "small"), "system", "be"), "max_tokens", 78);
    let answer = h.messages(&key, &asked);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!((&answer.json()["type"], &answer.json()["stop_reason"]), (&json!("message"), &json!("end_turn")));
    let (head, sent) = h.last();
    assert!(!head.contains("anthropic"), "{head}");
    assert_eq!((&sent["model"], &sent["messages"][0]["content"]), (&json!("up-small"), &json!("be")));
    let limits = [&sent["max_tokens"], &sent["max_completion_tokens"]];
    assert!(limits.contains(&&json!(78)), "{sent}");
}

/// Tools and images pass unchanged if the provider has the API format of the endpoint.
#[test]
fn tools_and_images_pass_untouched() {
    let h = Harness::usual();
    let key = h.key();
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]);
    let image = json!([{"type": "text", "text": "weather in this picture?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]);
    let asked = with(with(chat(""), "tools", tools.clone()), "messages", json!([{"role": "user", "content": image}]));
    let answer = h.chat(&key, &asked).json();
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(
        (&call["function"]["name"], &call["function"]["arguments"]),
        (&json!("weather"), &json!(r#"{"city":"Oslo"}"#))
    );
    let (_, sent) = h.last();
    assert_eq!((&sent["tools"], &sent["messages"]), (&asked["tools"], &asked["messages"]));

    let tools =
        json!([{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]);
    let image = json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "text", "text": "weather?"}]);
    let asked = with(with(message(""), "tools", tools), "messages", json!([{"role": "user", "content": image}]));
    let answer = h.messages(&key, &asked).json();
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["input"]),
        (&json!("tool_use"), &json!({"city": "Oslo"}))
    );
    let (_, sent) = h.last();
    assert_eq!((&sent["tools"], &sent["messages"]), (&asked["tools"], &asked["messages"]));
}
