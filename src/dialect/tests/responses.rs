//! The responses shape: the examples 20 to 49, whole and split everywhere.

use super::*;

const MODELS: [(Dialect, &str, &str, &str); 2] = [
    (Dialect::Chat, "upstream.chat", "gpt-4o-mini", "openai"),
    (Dialect::Messages, "upstream.messages", "claude-sonnet-4-6", "anthropic"),
];

fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(folder().join(name)).ok()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Examples of the responses shape whose names end so, without that end.
fn scenarios(ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect();
    names.retain(|name| name.starts_with(['2', '3', '4']) && name.as_bytes()[1].is_ascii_digit());
    names.sort();
    names
}

/// What the target of a scenario takes.
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

/// What the scenario's request leaves for its answer; of a scenario without one, what any request would.
fn state_of(scenario: &str, shape: Dialect, target: (&str, &str)) -> TranslationState {
    let body = read(&format!("{scenario}.client.responses.request.json"));
    let body = body.unwrap_or_else(|| r#"{"model":"team-fast","input":"hi"}"#.to_owned());
    let capabilities = capabilities(scenario, target);
    request_for((Dialect::Responses, shape), &body, target.0, &capabilities).unwrap().1
}

#[test]
fn requests_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (shape, upstream, model, provider) in MODELS {
        for scenario in scenarios(&format!(".{upstream}.request.json")) {
            let Some(body) = read(&format!("{scenario}.client.responses.request.json")) else { continue };
            let want = json(&read(&format!("{scenario}.{upstream}.request.json")).unwrap());
            let capabilities = capabilities(&scenario, (model, provider));
            let (got, _) = request_for((Dialect::Responses, shape), &body, model, &capabilities).unwrap();
            assert_eq!(got, want, "{scenario} {upstream}");
            seen += 1;
        }
    }
    assert_eq!(seen, 26);
}

#[test]
fn whole_answers_are_translated_as_the_examples_say() {
    let mut seen = 0;
    for (shape, upstream, model, provider) in MODELS {
        for scenario in scenarios(&format!(".{upstream}.response.json")) {
            let body = read(&format!("{scenario}.{upstream}.response.json")).unwrap();
            let Some(want) = read(&format!("{scenario}.client.responses.response.json")) else { continue };
            let (mut out, state) = (Vec::new(), state_of(&scenario, shape, (model, provider)));
            reply((shape, Dialect::Responses), body.as_bytes(), &state, &ME, &mut out).unwrap();
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
            let outcome = stream_for_every_way((shape, Dialect::Responses), &state, false, &ME, &text);
            assert_eq!(outcome.result, Ok(()), "{scenario}");
            assert_eq!(outcome.out, want, "{scenario} {upstream}");
            seen += 1;
        }
    }
    assert_eq!(seen, 13);
}

#[test]
fn what_would_need_a_stored_response_or_is_wrong_is_refused_by_its_path() {
    let cases = json(&read("27-refused.client.responses.requests.json").unwrap());
    for case in cases.as_array().unwrap() {
        let body = case["request"].to_string();
        let mut scan = RequestScan::new();
        scan.reset(Dialect::Responses);
        for (shape, _, model, _) in MODELS {
            let found = scan.finish(body.as_bytes()).map_err(|invalid| invalid.0);
            let refused = found.err().or_else(|| {
                let capabilities = Capabilities::default();
                request_for((Dialect::Responses, shape), &body, model, &capabilities).err()
            });
            let refused = refused.unwrap_or_else(|| panic!("accepted: {body}"));
            let field = case["field"].as_str().unwrap();
            assert_eq!(refused.split_once(": ").map(|(path, _)| path), Some(field), "{refused}: {body}");
            scan.reset(Dialect::Responses);
        }
    }
}

#[test]
fn the_same_shape_passes_but_for_what_is_ours_to_say() {
    let body = read("46-same-shape.client.responses.request.json").unwrap();
    let mut scan = RequestScan::new();
    scan.reset(Dialect::Responses);
    scan.finish(body.as_bytes()).unwrap();
    let (mut text, mut pieces) = (Vec::new(), Vec::new());
    let capabilities = Capabilities::default();
    let target = Target { model: "gpt-5.5", shape: Dialect::Responses, capabilities: &capabilities };
    let length = rewrite(Dialect::Responses, body.as_bytes(), scan.fields(), &target, &mut text, &mut pieces);
    let mut out = Vec::new();
    for piece in &pieces {
        out.extend_from_slice(match piece {
            Piece::Body(span) => span.of(body.as_bytes()),
            Piece::Text(span) => span.of(&text),
        });
    }
    assert_eq!(out.len() as u64, length);
    let want = json(&read("46-same-shape.upstream.responses.request.json").unwrap());
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
    let upstream = read("46-same-shape.upstream.responses.stream.sse").unwrap();
    let run = |chunks: &[&[u8]]| {
        let mut stream = SseStream::same(Dialect::Responses, false, 1 << 20);
        let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
        for chunk in chunks {
            stream.feed(chunk, &mut pool, &ME, &mut out).unwrap();
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
fn a_chat_client_reaches_a_model_that_speaks_this_shape_alone() {
    let body = read("47-chat-to-responses.client.chat.request.json").unwrap();
    let capabilities = Capabilities { mark: carrier::mark("openai", "gpt-5.5"), ..Capabilities::default() };
    let way = (Dialect::Chat, Dialect::Responses);
    let (got, state) = request_for(way, &body, "gpt-5.5", &capabilities).unwrap();
    assert_eq!(got, json(&read("47-chat-to-responses.upstream.responses.request.json").unwrap()));
    let text = read("47-chat-to-responses.upstream.responses.stream.sse").unwrap();
    let outcome = stream_for_every_way((Dialect::Responses, Dialect::Chat), &state, true, &ME, &text);
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.out, read("47-chat-to-responses.client.chat.stream.sse").unwrap());
}
