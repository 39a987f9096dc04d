//! Pairs of examples: the client's request and the upstream's, and the same for answers.

use super::*;

fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(folder().join(name)).ok()
}

fn scenarios(ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect();
    names.sort();
    names
}

/// Removes parts that the examples do not fix: an estimated count, and the position of an unknown count.
fn without_estimates(text: &str) -> String {
    text.replace(r#""input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"#, "")
}

#[test]
fn requests_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (from, client, upstream, model) in [
        (Shape::Chat, "client.chat", "upstream.messages", "claude-sonnet-4-6"),
        (Shape::Messages, "client.messages", "upstream.chat", "gpt-4o-mini"),
    ] {
        for scenario in scenarios(&format!(".{client}.request.json")) {
            let body = read(&format!("{scenario}.{client}.request.json")).unwrap();
            let Some(want) = read(&format!("{scenario}.{upstream}.request.json")) else { continue };
            let (out, _) = request(from, &body, model, &Capabilities::default()).unwrap();
            assert_eq!(out, serde_json::from_str::<Value>(&want).unwrap(), "{scenario} {client}");
            seen += 1;
        }
    }
    assert_eq!(seen, 7);
}

#[test]
fn complete_answers_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (from, client, upstream) in
        [(Shape::Chat, "client.messages", "upstream.chat"), (Shape::Messages, "client.chat", "upstream.messages")]
    {
        for scenario in scenarios(&format!(".{upstream}.response.json")) {
            let body = read(&format!("{scenario}.{upstream}.response.json")).unwrap();
            let Some(want) = read(&format!("{scenario}.{client}.response.json")) else { continue };
            let mut out = Vec::new();
            reply((from, other(from)), body.as_bytes(), &TranslationState::default(), &ME, &mut out).unwrap();
            let out: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(out, serde_json::from_str::<Value>(&want).unwrap(), "{scenario} {client}");
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}

#[test]
fn streams_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (from, client, upstream) in
        [(Shape::Chat, "client.messages", "upstream.chat"), (Shape::Messages, "client.chat", "upstream.messages")]
    {
        for scenario in scenarios(&format!(".{upstream}.stream.sse")) {
            let text = read(&format!("{scenario}.{upstream}.stream.sse")).unwrap();
            let Some(want) = read(&format!("{scenario}.{client}.stream.sse")) else { continue };
            // If an example has a true count of the prompt, that is the estimate.
            let estimate = want.split("\"input_tokens\":").nth(1).and_then(|rest| rest.split(',').next());
            let identity = ResponseIdentity {
                prompt: PromptTokens::Counted(estimate.and_then(|n| n.parse().ok()).unwrap_or(7)),
                ..ME
            };
            let outcome = stream_every_way(from, &TranslationState::default(), true, &identity, &text);
            assert_eq!(outcome.result, Ok(()), "{scenario}");
            let pings = ["event: ping\ndata: {\"type\":\"ping\"}\n\n", ":\n\n"];
            let out = pings.iter().fold(outcome.out, |out, ping| out.replace(ping, ""));
            if text.contains("\"usage\":{") {
                assert_eq!(out, want, "{scenario} {client}");
            } else {
                let relayed = format!("\"output_tokens\":{}", outcome.observed.relayed_tokens);
                let out = without_estimates(&out).replace(&relayed, "\"output_tokens\":0");
                assert_eq!(out, without_estimates(&want), "{scenario} {client}");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}

#[test]
fn error_inside_a_translated_stream_ends_it_without_a_formal_end() {
    for (from, name) in [(Shape::Chat, "upstream.chat"), (Shape::Messages, "upstream.messages")] {
        let text = read(&format!("09-error-midstream.{name}.stream.sse")).unwrap();
        let outcome = stream_every_way(from, &TranslationState::default(), true, &ME, &text);
        assert!(matches!(outcome.result, Err(StreamFault::Error(_))), "{:?}", outcome.result);
        assert!(outcome.out.contains("will "));
        for end in ["[DONE]", "message_stop", "message_delta", "\"finish_reason\":\"", "content_block_stop"] {
            assert!(!outcome.out.contains(end), "{end} in {}", outcome.out);
        }
    }
}

#[test]
fn other_framings_give_the_same_result() {
    for (from, name) in [
        (Shape::Chat, "11-framing-crlf-comments-nospace.upstream.chat.stream.sse"),
        (Shape::Messages, "11-framing-crlf-comments.upstream.messages.stream.sse"),
    ] {
        let upstream = if from == Shape::Chat { "upstream.chat" } else { "upstream.messages" };
        let plain = read(&format!("01-basic.{upstream}.stream.sse")).unwrap();
        let clean = |text: &str| {
            let out = stream_every_way(from, &TranslationState::default(), true, &ME, text).out;
            out.replace(":\n\n", "").replace("event: ping\ndata: {\"type\":\"ping\"}\n\n", "")
        };
        assert_eq!(clean(&read(name).unwrap()), clean(&plain));
    }
}

#[test]
fn call_without_a_name_is_an_incomplete_answer() {
    let block = r#"{"type":"tool_use","id":"toolu_1","input":{}}"#;
    let messages = format!(
        "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":0,\
         \"content_block\":{block}}}\n\n\
         event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"tool_use\"}}}}\n\n\
         event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
    );
    let call = r#"{"index":0,"id":"a","function":{"arguments":"{}"}}"#;
    let chat = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}},\"finish_reason\":\"tool_calls\"}}]}}\n\n\
         data: [DONE]\n\n"
    );
    for (from, text) in [(Shape::Messages, messages), (Shape::Chat, chat)] {
        let outcome = stream_every_way(from, &TranslationState::default(), true, &ME, &text);
        assert_eq!(outcome.result, Err(StreamFault::Malformed), "{}", outcome.out);
    }
}
