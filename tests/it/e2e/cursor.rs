//! Cursor's requests: a responses body at the chat endpoint in agent mode, and a chat body with tools in the responses
//! format in ask mode (BerriAI/litellm#34029 has captures of both). It reads chat chunks only.

use super::client::Answer;
use super::harness::{Harness, Setup, streamed, with};
use super::process::wait_for;
use serde_json::{Value, json};

/// A model at a provider of each format.
const MODELS: [(&str, &str); 3] = [("of-chat", "chat"), ("of-messages", "messages"), ("of-responses", "responses")];
const GRAMMAR: &str = "start: \"*** Begin Patch\" LF";

fn harness() -> Harness {
    let models = MODELS.map(|(id, shape)| {
        format!(
            "[[providers]]\nname = \"own-{shape}\"\nshape = \"{shape}\"\nbase_url = \"http://{{provider}}{}\"\n\
             api_key = {{ env = \"SIM_KEY\" }}\n\
             [[models]]\nid = \"{id}\"\ncontext = \"256K\"\ncapabilities = {{ effort = true }}\n\
             targets = [{{ provider = \"own-{shape}\", model = \"up-{shape}\" }}]\n",
            if shape == "messages" { "" } else { "/v1" }
        )
    });
    Harness::start(&Setup { more: models.concat(), ..Setup::default() })
}

/// Agent mode: the body of the responses format, with its flat tools.
fn agent_mode(model: &str, text: &str) -> Value {
    json!({
        "model": model,
        "user": "cursor-user",
        "input": [
            { "role": "system", "content": "You are an agent." },
            { "role": "user", "content": [{ "type": "input_text", "text": "Hello." }] },
            { "type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": "{\"path\":\"a\"}" },
            { "type": "function_call_output", "call_id": "call_1", "output": "content of a" },
            { "role": "assistant", "content": [{ "type": "output_text", "text": "It is read." }] },
            { "role": "user", "content": [{ "type": "input_text", "text": text }] },
        ],
        "tools": tools(),
        "tool_choice": "auto",
        "reasoning": { "effort": "high", "summary": "auto" },
        "include": ["reasoning.encrypted_content"],
        "text": { "verbosity": "medium" },
        "prompt_cache_retention": "24h",
        "store": false,
        "metadata": { "cursorConversationId": "4be2" },
    })
}

fn tools() -> Value {
    json!([
        { "type": "function", "name": "read_file", "description": "Reads.", "strict": false,
          "parameters": { "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] } },
        { "type": "custom", "name": "ApplyPatch", "description": "Patches.",
          "format": { "type": "grammar", "syntax": "lark", "definition": GRAMMAR } },
    ])
}

/// The message of a complete answer, or the joined deltas of a stream that is well-formed.
fn message_of(answer: &Answer, streams: bool) -> Value {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    if !streams {
        let body = answer.json();
        assert_eq!(body["object"], "chat.completion", "{body}");
        return body["choices"][0]["message"].clone();
    }
    let mut events = answer.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", answer.text());
    let mut message = json!({ "content": "", "tool_calls": [] });
    for event in events {
        let chunk: Value = serde_json::from_str(&event).unwrap();
        assert_eq!(chunk["object"], "chat.completion.chunk", "{chunk}");
        let delta = &chunk["choices"][0]["delta"];
        let text = message["content"].as_str().unwrap().to_owned() + delta["content"].as_str().unwrap_or_default();
        message["content"] = json!(text);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().unwrap() as usize;
            let calls = message["tool_calls"].as_array_mut().unwrap();
            if at == calls.len() {
                calls.push(call.clone());
                continue;
            }
            for (kind, member) in [("function", "arguments"), ("custom", "input")] {
                if let Some(piece) = call[kind][member].as_str() {
                    let known = calls[at][kind][member].as_str().unwrap_or_else(|| panic!("{event}")).to_owned();
                    calls[at][kind][member] = json!(known + piece);
                }
            }
        }
    }
    message
}

#[test]
fn responses_body_at_the_chat_endpoint_is_answered_in_the_chat_format() {
    let h = harness();
    let key = h.key();
    for (model, shape) in MODELS {
        for (at, absent) in [None, Some(Value::Null), Some(json!([]))].into_iter().enumerate() {
            for streams in [false, true] {
                let mut body = with(agent_mode(model, "#sim echo\nbye"), "stream", streams);
                if let Some(messages) = absent.clone() {
                    body["messages"] = messages;
                }
                let message = message_of(&h.chat(&key, &body), streams);
                assert_eq!(message["content"], "bye", "{model} {at} {streams}");
                let (_, sent) = h.last();
                assert_eq!(sent.get("input").is_some(), shape == "responses", "{sent}");
                assert!(sent.to_string().contains("content of a"), "{sent}");
                let effort = match shape {
                    "chat" => &sent["reasoning_effort"],
                    "messages" => &sent["output_config"]["effort"],
                    _ => &sent["reasoning"]["effort"],
                };
                assert_eq!(effort, "high", "{sent}");
            }
        }
    }
    // The last records are committed after their responses.
    wait_for("a record of each request", || {
        let usage = h.usage("endpoint");
        let requests = usage.iter().map(|row| row["requests"].as_u64().unwrap()).sum::<u64>();
        assert!(requests <= 18, "{usage:?}");
        (requests == 18).then_some(())
    });
}

/// Long bodies and answers, which helper threads read.
#[test]
fn long_responses_body_at_the_chat_endpoint_is_answered_completely() {
    let h = harness();
    let key = h.key();
    let text = format!("{} ", "word".repeat(25)).repeat(6_000);
    for (model, _) in MODELS {
        for streams in [false, true] {
            let body = with(agent_mode(model, &format!("#sim echo\n{text}")), "max_output_tokens", 999_999);
            let message = message_of(&h.chat(&key, &with(body, "stream", streams)), streams);
            assert_eq!(message["content"].as_str().unwrap().trim_end().len(), text.trim_end().len(), "{model}");
        }
    }
}

#[test]
fn stream_options_with_input_add_the_usage_chunk() {
    let h = harness();
    let key = h.key();
    for (model, _) in MODELS {
        for wanted in [true, false] {
            let body = with(
                streamed(agent_mode(model, "#sim tokens=3")),
                "stream_options",
                json!({ "include_usage": wanted }),
            );
            let answer = h.chat(&key, &body);
            let dropped = h.log_of(&answer.id())["dropped"].to_string();
            assert!(!dropped.contains("stream_options"), "{model}: nothing of it is lost: {dropped}");
            let events = answer.events();
            let [.., last, done] = &events[..] else { panic!("{events:?}") };
            let last: Value = serde_json::from_str(last).unwrap();
            let has = last["usage"]["completion_tokens"].as_u64() == Some(3) && last["choices"] == json!([]);
            assert_eq!((has, done.as_str()), (wanted, "[DONE]"), "{model}: {last}");
        }
    }
}

#[test]
fn bound_of_the_chat_format_beside_input_reaches_each_provider() {
    let h = harness();
    let key = h.key();
    for (model, shape) in MODELS {
        for own in ["max_tokens", "max_completion_tokens"] {
            let answer = h.chat(&key, &with(agent_mode(model, "#sim echo\nbye"), own, 77));
            assert_eq!(answer.status(), 200, "{}", answer.text());
            let (_, sent) = h.last();
            let names = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
            let bounds: Vec<_> = names.iter().filter(|name| sent.get(**name).is_some()).collect();
            let expected = if shape == "responses" { "max_output_tokens" } else { "max_tokens" };
            assert_eq!(bounds, [&expected], "{model} {own}: {sent}");
            assert_eq!(sent[expected], 77, "{model} {own}: {sent}");
        }
    }
}

/// In both modes, at each provider; the calls and their results go back in the format that Cursor uses.
#[test]
fn custom_calls_are_chat_calls_of_the_type_custom() {
    let h = harness();
    let key = h.key();
    let text = "#sim tool=ApplyPatch args={\"input\":\"***\\nBegin\\u0020\\\"x\\\"\"}\npatch";
    let ask = json!({ "messages": [{ "role": "user", "content": text }], "tools": mixed() });
    for (model, shape) in MODELS {
        for streams in [false, true] {
            // In ask mode a chat provider gets the custom tool itself.
            for body in [agent_mode(model, text), ask.clone()].into_iter().take(1 + usize::from(shape != "chat")) {
                let body = with(with(body, "model", model), "stream", streams);
                let message = message_of(&h.chat(&key, &body), streams);
                let call = &message["tool_calls"][0];
                assert_eq!(call["type"], "custom", "{model} {streams}: {message}");
                assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()) && call["function"].is_null(), "{call}");
                let custom = json!({ "name": "ApplyPatch", "input": "***\nBegin \"x\"" });
                assert_eq!(call["custom"], custom, "{model} {streams}");
                if body.get("input").is_some() {
                    continue;
                }
                let history = json!([body["messages"][0], { "role": "assistant", "content": null, "tool_calls": [call] },
                    { "role": "tool", "tool_call_id": call["id"], "content": "#sim echo\ndone" }]);
                let next = h.chat(&key, &with(with(body, "messages", history), "stream", false));
                assert_eq!(next.status(), 200, "{}", next.text());
                let (_, sent) = h.last();
                assert!(sent.to_string().contains("***"), "{sent}");
            }
        }
    }
}

/// Ask mode: functions in the chat format, the custom tool in the responses format.
fn mixed() -> Value {
    let parameters = json!({ "type": "object", "properties": {} });
    json!([{ "type": "function", "function": { "name": "list_dir", "parameters": parameters } }, tools()[1]])
}

#[test]
fn flat_custom_tools_in_a_chat_body_are_nested() {
    let h = harness();
    let key = h.key();
    let grammar = json!({ "type": "grammar", "grammar": { "syntax": "lark", "definition": GRAMMAR } });
    let nested = json!({ "type": "custom",
        "custom": { "name": "ApplyPatch", "description": "Patches.", "format": grammar } });
    let mut half = nested.clone();
    half["custom"]["format"] = tools()[1]["format"].clone();
    let mut body = json!({ "model": "of-chat", "messages": [{ "role": "user", "content": "x" }] });
    for custom in [&tools()[1], &half, &nested] {
        body["tools"] = json!([mixed()[0], custom]);
        let answer = h.chat(&key, &body);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(h.last().1["tools"], json!([mixed()[0], nested]));
    }
    for (model, _) in &MODELS[1..] {
        let answer = h.chat(&key, &with(body.clone(), "model", *model));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let sent = h.last().1["tools"].to_string();
        assert!(sent.contains("ApplyPatch") && sent.contains("list_dir") && sent.contains("Begin Patch"), "{sent}");
    }
    let chosen = json!({ "type": "custom", "custom": { "name": "ApplyPatch" } });
    for choice in [json!({ "type": "custom", "name": "ApplyPatch" }), chosen.clone(), json!("auto")] {
        let answer = h.chat(&key, &with(body.clone(), "tool_choice", choice.clone()));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let expected = if choice.is_string() { choice } else { chosen.clone() };
        assert_eq!(h.last().1["tool_choice"], expected);
    }
    // So is a tool choice that names it.
    body["tool_choice"] = json!({ "type": "custom", "custom": { "name": "ApplyPatch" } });
    let answer = h.chat(&key, &with(body, "model", "of-messages"));
    assert_eq!(answer.json()["choices"][0]["message"]["tool_calls"][0]["custom"]["name"], "ApplyPatch");
}

#[test]
fn messages_have_priority_and_a_body_with_neither_is_refused() {
    let h = harness();
    let key = h.key();
    for (model, shape) in MODELS {
        let body = with(
            agent_mode(model, "#sim echo\nnot this"),
            "messages",
            json!([{ "role": "user", "content": "#sim echo\nthis" }]),
        );
        let body = with(body, "tools", json!([mixed()[0]]));
        assert_eq!(message_of(&h.chat(&key, &body), false)["content"], "this");
        assert_eq!(h.last().1.get("input").is_some(), shape == "responses");
        for (input, messages, said) in [
            (Value::Null, json!([]), "messages: expected an array of at least one message"),
            (Value::Null, Value::Null, "messages: required, expected an array of at least one message"),
            (json!([]), Value::Null, "input: expected a string or an array of at least one object"),
            (json!([7]), json!([]), "input[0]: expected an object"),
            (json!("x"), json!([7]), "messages[0]: expected an object"),
        ] {
            let body = with(with(agent_mode(model, "x"), "input", input), "messages", messages);
            let answer = h.chat(&key, &body);
            assert_eq!((answer.status(), answer.json()["error"]["message"].as_str()), (400, Some(said)));
        }
    }
    let answer = h.chat(&key, &agent_mode("no-such-model", "x"));
    assert_eq!((answer.status(), answer.text().contains("`no-such-model` does not exist")), (404, true));
    let request = super::client::post("/v1/chat/completions", &[("authorization", "Bearer tg_live_wrong")], "{}");
    assert_eq!(h.client().ask(&request).status(), 401);
}

/// Cursor appends an effort or `-fast` to the name of a model.
#[test]
fn names_with_a_suffix_are_those_of_an_alias() {
    let more = "[[models]]\nid = \"quick\"\naliases = [\"quick-*\"]\ncontext = \"256K\"\n\
                targets = [{ provider = \"sim-chat\", model = \"up-quick\" }]";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let key = h.key();
    for name in ["quick", "quick-thinking-high", "quick-fast", "quick-thinking-low-fast"] {
        let answer = h.chat(&key, &agent_mode(name, "#sim echo\nbye"));
        assert_eq!((answer.status(), answer.json()["model"].as_str()), (200, Some("quick")), "{}", answer.text());
    }
    assert_eq!(h.chat(&key, &agent_mode("small-fast", "bye")).status(), 404);
}
