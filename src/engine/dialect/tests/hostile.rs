//! Invalid and hostile inputs: nothing panics, no result depends on how the input was cut, and the output is well
//! formed.

use super::*;
use crate::base::rng::Rng;
use crate::wire::ModelEndpoint;
use serde_json::json;

fn files(ending: &str) -> Vec<String> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.to_str().unwrap().ends_with(ending));
    names.sort();
    assert!(!names.is_empty());
    names.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Mutates a text in critical ways: bytes, lines, whole events.
fn mutate(rng: &mut Rng, text: &str) -> Vec<u8> {
    const BYTES: &[u8] = b"{}[]\",:\\nu0 \r\n\x00\x7f\xc3\xff1e-";
    let mut events: Vec<&str> = text.split_inclusive("\n\n").collect();
    for _ in 0..rng.below(3) {
        let (a, b) = (rng.below(events.len() as u64) as usize, rng.below(events.len() as u64) as usize);
        match rng.below(3) {
            0 => events.swap(a, b),
            1 => events.insert(a, events[b]),
            _ if events.len() > 1 => drop(events.remove(a)),
            _ => {}
        }
    }
    let mut bytes = events.concat().into_bytes();
    for _ in 0..rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        let byte = BYTES[rng.below(BYTES.len() as u64) as usize];
        match rng.below(4) {
            0 => bytes.insert(at, byte),
            1 => bytes[at] = byte,
            2 => drop(bytes.remove(at)),
            _ if rng.below(4) == 0 => bytes.truncate(at + 1),
            _ => {}
        }
    }
    bytes
}

fn tapped(shape: Shape, chunks: &[&[u8]]) -> Outcome {
    let mut stream = SseStream::same(ModelEndpoint::generate(shape), false, 1 << 20);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let fed = chunks.iter().try_for_each(|chunk| {
        let alike = stream.feed_alike(chunk, &mut pool, &mut out);
        stream.feed(&chunk[alike..], &mut pool, &ME, &mut out).map(drop)
    });
    let result = fed.and_then(|()| stream.end(&mut pool, &ME, &mut out));
    stream.release(&mut pool);
    Outcome { out: String::from_utf8_lossy(&out).into_owned(), observed: stream.observed(), result }
}

fn assert_well_formed(out: &str, seed: u64) {
    assert!(out.is_empty() || out.ends_with("\n\n"), "seed {seed}: {out}");
    for event in out.split("\n\n").filter(|event| !event.is_empty() && *event != ":") {
        let data = event.split_once("data: ").unwrap_or_else(|| panic!("seed {seed}: {event}")).1;
        assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(), "seed {seed}: {data}");
    }
    let ends = out.matches("data: [DONE]").count() + out.matches("event: message_stop").count();
    assert!(ends <= 1, "seed {seed}: ended {ends} times");
}

#[test]
fn mutated_stream_gives_one_result_however_it_is_cut() {
    for (shape, ending) in
        [(Shape::Chat, ".upstream.chat.stream.sse"), (Shape::Messages, ".upstream.messages.stream.sse")]
    {
        let texts = files(ending);
        let mut whole = 0;
        for seed in 0..1500 {
            let mut rng = Rng::from_u64(seed);
            let pick = rng.below(texts.len() as u64) as usize;
            let text = mutate(&mut rng, &texts[pick]);
            let bytes: Vec<&[u8]> = text.chunks(1 + seed as usize % 7).collect();
            let state = TranslationState { json_tool: seed % 5 == 0, ..TranslationState::default() };
            let outcome = stream_bytes(shape, &state, &[&text]);
            assert_eq!(stream_bytes(shape, &state, &bytes), outcome, "seed {seed}");
            assert_well_formed(&outcome.out, seed);
            let passed = tapped(shape, &[&text]);
            assert_eq!(tapped(shape, &bytes), passed, "seed {seed}");
            whole += u32::from(outcome.result.is_ok());
        }
        assert!((100..1400).contains(&whole), "{whole} of 1500 ended well: the mutations are too weak or too strong");
    }
}

fn stream_bytes(from: Shape, state: &TranslationState, chunks: &[&[u8]]) -> Outcome {
    stream(from, state, true, &ME, chunks)
}

/// Replaces values anywhere in a document.
fn spoil(rng: &mut Rng, value: &mut Value) {
    let odd = [
        json!(null),
        json!(7),
        json!(-0.5),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
        json!(true),
        json!([{}]),
        json!({"type": "text"}),
        json!({"type": "tool_use"}),
        json!("data:image/png;base64,"),
        json!([[]]),
    ];
    match value {
        Value::Array(items) if !items.is_empty() && rng.below(8) > 0 => {
            let at = rng.below(items.len() as u64) as usize;
            match rng.below(6) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => spoil(rng, &mut items[at]),
            }
        }
        Value::Object(members) if !members.is_empty() && rng.below(8) > 0 => {
            let key = members.keys().nth(rng.below(members.len() as u64) as usize).unwrap().clone();
            match rng.below(6) {
                0 => drop(members.remove(&key)),
                _ => spoil(rng, &mut members[&key]),
            }
        }
        _ => *value = odd[rng.below(odd.len() as u64) as usize].clone(),
    }
}

#[test]
fn mutated_request_is_refused_or_translated_into_json() {
    let (mut refused, mut translated, mut scanned_out) = (0, 0, 0);
    for text in files(".txt") {
        for case in text.split("=== request ").skip(1) {
            let shape = if case.starts_with("chat") { Shape::Chat } else { Shape::Messages };
            let input = case.split("--- in\n").nth(1).unwrap().split("--- out").next().unwrap();
            let document: Value = serde_json::from_str(input).unwrap();
            for seed in 0..40 {
                let (mut rng, mut body) = (Rng::from_u64(seed), document.clone());
                (0..=seed % 3).for_each(|_| spoil(&mut rng, &mut body));
                let body = body.to_string();
                let mut scan = RequestScan::new();
                scan.reset(ModelEndpoint::generate(shape));
                if scan.finish(body.as_bytes()).is_err() {
                    scanned_out += 1;
                    continue;
                }
                let how = [Structured::Native, Structured::Tool, Structured::Instruction][seed as usize % 3];
                let capabilities = Capabilities { effort: true, structured_output: how, ..Capabilities::default() };
                let target =
                    RequestTarget { model: "m", shape: other(shape), capabilities: &capabilities, cache_key: None };
                let mut out = Vec::new();
                match translate(shape, body.as_bytes(), &scan, &target, &mut out) {
                    Err(_) => refused += 1,
                    Ok(_) => {
                        let written = serde_json::from_slice::<Value>(&out);
                        let written =
                            written.unwrap_or_else(|e| panic!("{e}: {body}\n{}", String::from_utf8_lossy(&out)));
                        assert!(written["messages"].as_array().is_some_and(|list| !list.is_empty()), "{body}");
                        translated += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 100 && translated > 500 && scanned_out > 100, "{refused} {translated} {scanned_out}");
}

#[test]
fn mutated_answer_is_broken_or_translated_into_json() {
    let (mut broken, mut translated) = (0, 0);
    for (shape, ending) in
        [(Shape::Chat, ".upstream.chat.response.json"), (Shape::Messages, ".upstream.messages.response.json")]
    {
        for text in files(ending) {
            let document: Value = serde_json::from_str(&text).unwrap();
            for seed in 0..100 {
                let (mut rng, mut body) = (Rng::from_u64(seed), document.clone());
                (0..=seed % 3).for_each(|_| spoil(&mut rng, &mut body));
                let body = body.to_string();
                let state = TranslationState { json_tool: seed % 4 == 0, ..TranslationState::default() };
                for same in [false, true] {
                    let mut out = Vec::new();
                    let done = match same {
                        true => whole(ModelEndpoint::generate(shape), body.as_bytes(), &ME, &mut out),
                        false => reply((shape, other(shape)), body.as_bytes(), &state, &ME, &mut out),
                    };
                    if done.is_err() {
                        broken += 1;
                        continue;
                    }
                    let out: Value = serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {body}"));
                    assert_eq!((&out["id"], &out["model"]), (&json!(ME_ID), &json!(ME.model)));
                    translated += 1;
                }
            }
        }
    }
    assert!(broken > 100 && translated > 500, "{broken} {translated}");
}

/// Pairs of formats with the responses format on one side.
const WAYS: [(Shape, Shape); 4] = [
    (Shape::Chat, Shape::Responses),
    (Shape::Messages, Shape::Responses),
    (Shape::Responses, Shape::Chat),
    (Shape::Responses, Shape::Messages),
];

/// Complete and streamed answers by their format.
fn answers(shape: Shape, ending: &str) -> Vec<String> {
    let side = if shape == Shape::Responses { "client" } else { "upstream" };
    files(&format!(".{side}.{}.{ending}", shape.name()))
}

/// Translation state of a responses request with tools of every kind.
fn state_with_tools() -> TranslationState {
    let body = fixture("23-namespace.client.responses.request.json");
    let body = String::from_utf8(body).unwrap().replacen(
        "\"tools\": [",
        "\"tools\":[{\"type\":\"custom\",\"name\":\"f\"},",
        1,
    );
    request_for((Shape::Responses, Shape::Chat), &body, "m", &Capabilities::default()).unwrap().1
}

#[test]
fn mutated_responses_give_one_result_however_they_are_cut() {
    let with_tools = state_with_tools();
    for way in WAYS {
        let texts = answers(way.0, "stream.sse");
        let mut whole = 0;
        for seed in 0..400 {
            let mut rng = Rng::from_u64(seed);
            let pick = rng.below(texts.len() as u64) as usize;
            let text = mutate(&mut rng, &texts[pick]);
            let bytes: Vec<&[u8]> = text.chunks(1 + seed as usize % 7).collect();
            let state = if seed % 2 == 0 { &with_tools } else { &TranslationState::default() };
            let outcome = stream_for(way, state, true, &ME, &[&text]);
            assert_eq!(stream_for(way, state, true, &ME, &bytes), outcome, "seed {seed} {way:?}");
            assert_well_formed(&outcome.out, seed);
            let passed = tapped(way.0, &[&text]);
            assert_eq!(tapped(way.0, &bytes), passed, "seed {seed} {way:?}");
            whole += u32::from(outcome.result.is_ok());
        }
        assert!((30..390).contains(&whole), "{whole} of 400 ended well, {way:?}");
    }
}

#[test]
fn mutated_response_is_broken_or_translated_into_json() {
    let with_tools = state_with_tools();
    let (mut broken, mut translated) = (0, 0);
    for way in WAYS {
        for text in answers(way.0, "response.json") {
            let document: Value = serde_json::from_str(&text).unwrap();
            for seed in 0..60 {
                let (mut rng, mut body) = (Rng::from_u64(seed), document.clone());
                (0..=seed % 3).for_each(|_| spoil(&mut rng, &mut body));
                let (body, mut out) = (body.to_string(), Vec::new());
                match reply(way, body.as_bytes(), &with_tools, &ME, &mut out) {
                    Err(_) => broken += 1,
                    Ok(_) => {
                        let out: Value = serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {body}"));
                        assert_eq!((&out["id"], &out["model"]), (&json!(ME_ID), &json!(ME.model)));
                        translated += 1;
                    }
                }
            }
        }
    }
    assert!(broken > 50 && translated > 500, "{broken} {translated}");
}

#[test]
fn mutated_responses_request_is_refused_or_translated_into_json() {
    let (mut refused, mut translated) = (0, 0);
    for text in files(".client.responses.request.json") {
        let document: Value = serde_json::from_str(&text).unwrap();
        for seed in 0..150 {
            let (mut rng, mut body) = (Rng::from_u64(seed), document.clone());
            (0..=seed % 4).for_each(|_| spoil(&mut rng, &mut body));
            let body = body.to_string();
            let mut scan = RequestScan::new();
            scan.reset(ModelEndpoint::RESPONSES);
            if scan.finish(body.as_bytes()).is_err() {
                refused += 1;
                continue;
            }
            for shape in [Shape::Chat, Shape::Messages] {
                let capabilities = Capabilities { effort: true, thinking: Thinking::Budget, ..Capabilities::default() };
                let target = RequestTarget { model: "m", shape, capabilities: &capabilities, cache_key: None };
                let mut out = Vec::new();
                if translate(Shape::Responses, body.as_bytes(), &scan, &target, &mut out).is_err() {
                    refused += 1;
                    continue;
                }
                let mut again = RequestScan::new();
                again.reset(ModelEndpoint::generate(shape));
                let accepted = again.finish(&out).map_err(|invalid| invalid.0);
                assert_eq!(accepted, Ok(()), "{body}\n{}", String::from_utf8_lossy(&out));
                translated += 1;
            }
        }
    }
    assert!(refused > 100 && translated > 500, "{refused} {translated}");
}
