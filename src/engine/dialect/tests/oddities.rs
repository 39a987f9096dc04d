//! Answers with odd members: meaningless ones change nothing, and a broken answer never looks complete. At random
//! places, in random spellings and pieces, from every format to every other.

use super::endings::{SHAPES, run_stream};
use super::property::{Answer, accumulate_chat, accumulate_messages, answer};
use super::reports::fixture_of_stream;
use super::*;
use crate::base::rng::Rng;
use crate::wire::ModelEndpoint;
use serde_json::json;

/// The events of a stream of format `shape` with the content of `answer`.
fn events_of(shape: Shape, answer: &Answer, rng: &mut Rng) -> Vec<Value> {
    let text = match shape {
        Shape::Messages => answer.messages_stream(rng),
        _ => answer.chat_stream(rng),
    };
    let text = match shape {
        Shape::Responses => run_stream((Shape::Chat, shape), &TranslationState::default(), &text).out,
        _ => text,
    };
    let data = text.split("\n\n").filter_map(|event| Some(event.split_once("data: ")?.1));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// `ODD_SEEDS` of the environment, or the number that the suite has time for.
fn seeds(usual: u64) -> u64 {
    std::env::var("ODD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn one_of<T: Clone>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize].clone()
}

/// Any object in a document, except the arguments of a tool call.
fn any_object<'a>(rng: &mut Rng, value: &'a mut Value) -> &'a mut Value {
    let goes_in =
        |value: &Value| value.is_object() || value.as_array().is_some_and(|list| list.iter().any(Value::is_object));
    let inner: Vec<String> = match &*value {
        Value::Object(members) => members
            .iter()
            .filter(|(key, value)| *key != "input" && goes_in(value))
            .map(|(key, _)| key.clone())
            .collect(),
        Value::Array(items) => (0..items.len()).filter(|at| items[*at].is_object()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    };
    let is_list = value.is_array();
    if inner.is_empty() || (!is_list && rng.below(3) == 0) {
        return value;
    }
    let key = one_of(rng, &inner);
    let next = if is_list { &mut value[key.parse::<usize>().unwrap()] } else { &mut value[key.as_str()] };
    any_object(rng, next)
}

/// Adds one meaningless oddity.
fn add_oddity(shape: Shape, rng: &mut Rng, events: &mut Vec<Value>) {
    let odd =
        [json!(null), json!(""), json!({}), json!([]), json!(7), json!([{"type": "text", "text": "no"}]), json!(false)];
    let at = rng.below(events.len() as u64) as usize;
    let is_chat = shape == Shape::Chat;
    match rng.below(6) {
        0 => {
            let name = format!("x_{}", rng.below(9));
            any_object(rng, &mut events[at])[name] = one_of(rng, &odd);
        }
        1 => {
            let name = one_of(rng, &["usage", "error", "system_fingerprint", "stop_details"]);
            let event = &mut events[at];
            if event.get(name).is_none() {
                event[name] = Value::Null;
            }
        }
        2 if is_chat => {
            let name = one_of(rng, &["id", "object", "created", "model"]);
            events[at].as_object_mut().unwrap().remove(name);
        }
        3 if is_chat => {
            let empty = one_of(rng, &[json!(""), json!("null"), json!(null)]);
            let nothing = json!({"index": 0, "delta": {"content": null, "tool_calls": null}, "finish_reason": empty});
            // No content follows the end.
            let last = events.iter().position(|event| event["choices"][0]["finish_reason"].is_string());
            let at = at.min(last.unwrap_or(0));
            events.insert(at, one_of(rng, &[json!({"choices": [nothing]}), json!({"choices": []}), json!({"x": 1})]));
        }
        4 if is_chat => {
            // The usage repeated.
            let usage = events.iter().rposition(|event| event["usage"].is_object()).unwrap();
            events.insert(usage, events[usage].clone());
        }
        _ if is_chat => {
            if let Some(delta) = events[at].pointer_mut("/choices/0/delta").and_then(Value::as_object_mut) {
                let name = one_of(rng, &["refusal", "reasoning", "function_call", "audio"]);
                delta.entry(name).or_insert(Value::Null);
            }
        }
        // An unknown event, and a heartbeat; the last event is the end.
        _ => events.insert(at, one_of(rng, &[json!({"type": "mood", "x": 1}), json!({"type": "ping"})])),
    }
}

/// A stream of these events as servers usually write it.
fn plain(shape: Shape, events: &[Value]) -> String {
    let event = |event: &Value| match event["type"].as_str().filter(|_| shape != Shape::Chat) {
        Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    };
    let end = if shape == Shape::Chat { "data: [DONE]\n\n" } else { "" };
    events.iter().map(event).collect::<String>() + end
}

/// Writes a stream in one of several equivalent spellings.
fn spelt(shape: Shape, rng: &mut Rng, events: &[Value]) -> String {
    let mut out = String::new();
    let end = one_of(rng, &["\n", "\r\n"]);
    for event in events {
        if rng.below(8) == 0 {
            out += &format!(": {}{end}{end}", one_of(rng, &["", "PROCESSING", "data: {"]));
        }
        if let (Some(kind), false) = (event["type"].as_str(), shape == Shape::Chat) {
            out += &format!("event: {kind}{end}");
        }
        let data = if rng.below(4) == 0 { format!("{event:#}") } else { event.to_string() };
        let begin = one_of(rng, &["data: ", "data:"]);
        data.lines().for_each(|line| out += &format!("{begin}{line}{end}"));
        out += end;
    }
    if shape == Shape::Chat {
        out += &format!("data: [DONE]{end}{end}");
    }
    out
}

fn played(way: (Shape, Shape), text: &str, piece: usize) -> Outcome {
    let state = TranslationState::default();
    let chunks: Vec<&[u8]> = text.as_bytes().chunks(piece).collect();
    match way {
        (from, to) if from != to => stream_for(way, &state, true, &ME, &chunks),
        _ => run_stream(way, &state, text),
    }
}

/// The content that a client receives from a stream.
fn said(way: (Shape, Shape), outcome: Outcome) -> Value {
    let put_together = match way {
        _ if outcome.result.is_err() => Value::Null,
        (Shape::Messages, Shape::Chat) => accumulate_chat(&outcome.out),
        (Shape::Chat, Shape::Messages) => {
            accumulate_messages(&outcome.out.replace("event: ping\ndata: {\"type\":\"ping\"}\n\n", ""))
        }
        _ => Value::Null,
    };
    json!([fixture_of_stream(way, outcome), put_together])
}

#[test]
fn meaningless_members_and_events_change_nothing() {
    for seed in 0..seeds(40) {
        for from in SHAPES {
            let mut rng = Rng::from_u64(seed);
            let answer = answer(&mut rng);
            let base = events_of(from, &answer, &mut rng);
            let usual = plain(from, &base);
            let mut odd = base.clone();
            (0..1 + rng.below(4)).for_each(|_| add_oddity(from, &mut rng, &mut odd));
            let spelt = spelt(from, &mut rng, &odd);
            for to in SHAPES {
                let want = said((from, to), played((from, to), &usual, usual.len()));
                // Within one format the spelling is passed on.
                let text = if from == to { plain(from, &odd) } else { spelt.clone() };
                let got = said((from, to), played((from, to), &text, 1 + rng.below(300) as usize));
                assert_eq!(got, want, "seed {seed}, {from:?} to {to:?}\n{text}");
            }
        }
    }
}

/// True for an event with the reason for the end of its answer.
fn ends(shape: Shape, event: &Value) -> bool {
    match shape {
        Shape::Messages => event["delta"]["stop_reason"].is_string(),
        Shape::Responses => ["response.completed", "response.incomplete"].iter().any(|kind| event["type"] == *kind),
        _ => event["choices"][0]["finish_reason"].is_string(),
    }
}

#[test]
fn stream_without_its_end_is_never_complete_and_charged_as_reported() {
    let odd = [json!(null), json!(""), json!("null"), json!(7), json!({}), json!([]), json!(true)];
    for seed in 0..seeds(40) {
        for from in SHAPES {
            let mut rng = Rng::from_u64(seed);
            let answer = answer(&mut rng);
            let mut events = events_of(from, &answer, &mut rng);
            let last = events.iter().position(|event| ends(from, event)).unwrap();
            let word = one_of(&mut rng, &odd);
            match (rng.below(3), from) {
                (0, _) => drop(events.remove(last)),
                (1, _) => events.truncate(last),
                (_, Shape::Messages) => events[last]["delta"]["stop_reason"] = word,
                (_, Shape::Responses) => events[last]["response"]["status"] = json!("in_progress"),
                _ => events[last]["choices"][0]["finish_reason"] = word,
            }
            let text = spelt(from, &mut rng, &events);
            for to in SHAPES {
                let Outcome { out, observed, result } = played((from, to), &text, 1 + rng.below(300) as usize);
                assert!(result.is_err(), "seed {seed}, {from:?} to {to:?}\n{text}");
                for end in ["[DONE]", "message_stop", "event: response.completed", "event: response.incomplete"] {
                    assert!(!out.contains(end), "seed {seed}, {from:?} to {to:?}: {out}");
                }
                let mut with_usage = events.iter().filter(|event| event["usage"]["completion_tokens"].is_u64());
                if let Some(last) = with_usage.next_back().filter(|_| from == Shape::Chat) {
                    assert_eq!(observed.reported.output, last["usage"]["completion_tokens"].as_u64(), "seed {seed}");
                }
            }
        }
    }
}

/// A complete response of format `shape` with the content of `answer`.
fn whole_of(shape: Shape, answer: &Answer) -> Value {
    let text = match shape {
        Shape::Messages => answer.messages_whole(),
        _ => answer.chat_whole(),
    };
    let mut out = Vec::new();
    if shape == Shape::Responses {
        reply((Shape::Chat, shape), text.as_bytes(), &TranslationState::default(), &ME, &mut out).unwrap();
    }
    serde_json::from_slice(if out.is_empty() { text.as_bytes() } else { &out }).unwrap()
}

/// The content that a client of format `to` receives from a complete response; `Null` if it failed.
fn got((from, to): (Shape, Shape), body: &str) -> (Value, ObservedUsage) {
    let mut out = Vec::new();
    let read = match from == to {
        true => whole(ModelEndpoint::generate(from), body.as_bytes(), &ME, &mut out),
        false => reply((from, to), body.as_bytes(), &TranslationState::default(), &ME, &mut out),
    };
    match read {
        Ok(observed) => (serde_json::from_slice(&out).unwrap(), observed),
        Err(_) => (Value::Null, ObservedUsage::default()),
    }
}

#[test]
fn meaningless_members_do_not_change_a_response() {
    let odd = [json!(null), json!(""), json!({}), json!([]), json!(7), json!([{"type": "text"}]), json!(false)];
    let mut complete = 0;
    for seed in 0..seeds(60) {
        let mut rng = Rng::from_u64(seed);
        let answer = answer(&mut rng);
        for from in SHAPES {
            let base = whole_of(from, &answer);
            let mut body = base.clone();
            for _ in 0..1 + rng.below(4) {
                any_object(&mut rng, &mut body)[format!("x_{}", rng.below(9))] = one_of(&mut rng, &odd);
            }
            let text = if rng.below(2) == 0 { format!("{body:#}") } else { body.to_string() };
            for to in SHAPES.into_iter().filter(|to| *to != from) {
                let (want, got) = (got((from, to), &base.to_string()), got((from, to), &text));
                assert_eq!(got, want, "seed {seed}, {from:?} to {to:?}\n{text}");
                complete += u32::from(!want.0.is_null());
            }
            let (same, observed) = got((from, from), &text);
            assert_eq!(observed.reported, got((from, from), &base.to_string()).1.reported, "seed {seed}");
            let is_failure = got((from, from), &base.to_string()).0.is_null();
            assert_eq!(same.is_null(), is_failure, "seed {seed}, {from:?}: {text}");
        }
    }
    assert!(complete > 300, "{complete}");
}

#[test]
fn response_with_odd_content_is_cleaned_and_charged_as_reported() {
    let odd =
        [json!(null), json!(""), json!({}), json!([]), json!(7), json!([null]), json!([{"type": 7}]), json!(true)];
    let mut failed = 0;
    for seed in 0..seeds(100) {
        let mut rng = Rng::from_u64(seed);
        let answer = answer(&mut rng);
        for from in SHAPES {
            let mut body = whole_of(from, &answer);
            let usage = body["usage"].clone();
            let place = any_object(&mut rng, &mut body);
            let keys: Vec<String> = place.as_object().unwrap().keys().cloned().collect();
            if let Some(key) = keys.get(rng.below(keys.len().max(1) as u64) as usize) {
                match rng.below(4) {
                    0 => drop(place.as_object_mut().unwrap().remove(key)),
                    _ => place[key] = one_of(&mut rng, &odd),
                }
            }
            body["usage"] = usage;
            let text = body.to_string();
            for to in SHAPES {
                let (answer, observed) = got((from, to), &text);
                let written = unstreamed((from, to), &TranslationState::default(), &text);
                if answer.is_null() {
                    failed += 1;
                    let reported =
                        rejected(ModelEndpoint::generate(from), text.as_bytes(), crate::dialect::Broken::NotJson)
                            .reported;
                    assert!(reported.output.is_some(), "seed {seed}: {text}");
                    // An answer that fails when complete must not end well as a stream.
                    assert!(
                        !written.is_ok_and(|outcome| outcome.result.is_ok()),
                        "seed {seed}, {from:?} to {to:?}: {text}"
                    );
                    continue;
                }
                assert!(observed.reported.output.is_some(), "seed {seed}, {from:?} to {to:?}: {text}");
                if let Ok(Outcome { out, observed: streamed, result: Ok(()) }) = written {
                    assert_eq!(streamed.reported, observed.reported, "seed {seed}, {from:?} to {to:?}: {text}\n{out}");
                }
            }
        }
    }
    assert!(failed > 10, "{failed} failed: the oddities are too weak");
}

/// Complete answers with a text `shown` and content of unknown kinds, which has a member `text`, too.
const UNKNOWN_WHOLE: [(Shape, &str); 3] = [
    (
        Shape::Chat,
        r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":
        {"role":"assistant","content":[{"type":"text","text":"shown"},{"type":"mood","text":"hidden"}]},
        "finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#,
    ),
    (
        Shape::Messages,
        r#"{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"shown"},
        {"type":"mood","text":"hidden"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2}}"#,
    ),
    (
        Shape::Responses,
        r#"{"id":"r","object":"response","created_at":1,"model":"m","status":"completed","output":[
        {"type":"message","id":"i","role":"assistant","status":"completed","content":[
        {"type":"output_text","text":"shown","annotations":[]},{"type":"mood","text":"hidden"}]},
        {"type":"mood","id":"j","content":[{"type":"output_text","text":"hidden"}],"text":"hidden"}],
        "usage":{"input_tokens":1,"output_tokens":2,"total_tokens":3}}"#,
    ),
];

/// The events of such answers.
fn unknown_events(shape: Shape) -> Vec<Value> {
    let whole = |shape| UNKNOWN_WHOLE.iter().find(|(own, _)| *own == shape).unwrap().1;
    let text = match shape {
        Shape::Chat => {
            let body: Value = serde_json::from_str(whole(shape)).unwrap();
            let delta = &body["choices"][0]["message"];
            return vec![
                json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}),
                json!({"id": "c", "choices": [{"index": 0, "delta": {"mood": {"text": "hidden"}}}]}),
                json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
                json!({"id": "c", "choices": [], "usage": body["usage"]}),
            ];
        }
        Shape::Messages => {
            r#"[{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}},
            {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}},
            {"type":"content_block_delta","index":0,"delta":{"type":"mood_delta","text":"hidden"}},
            {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"shown"}},
            {"type":"content_block_delta","index":0,"delta":{"type":"mood_delta","text":"hidden"}},
            {"type":"content_block_delta","index":0,"delta":{"type":"mood_delta","text":"hidden"}},
            {"type":"content_block_stop","index":0},
            {"type":"content_block_start","index":1,"content_block":{"type":"mood","text":"hidden"}},
            {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"hidden"}},
            {"type":"content_block_stop","index":1},
            {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}},
            {"type":"content_block_delta","index":2,"delta":{"type":"mood_delta","partial_json":"hidden"}},
            {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}},
            {"type":"content_block_stop","index":2},
            {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}},
            {"type":"message_stop"}]"#
        }
        Shape::Responses => {
            r#"[{"type":"response.output_item.added","output_index":0,"item":{"type":"mood","text":"hidden"}},
            {"type":"response.mood.delta","output_index":0,"delta":"hidden","text":"hidden"},
            {"type":"response.output_item.done","output_index":0,"item":{"type":"mood","content":[
                {"type":"output_text","text":"hidden"}]}}]"#
        }
    };
    let mut events: Vec<Value> = serde_json::from_str(text).unwrap();
    if shape == Shape::Responses {
        let mut response: Value = serde_json::from_str(whole(shape)).unwrap();
        response["output"].as_array_mut().unwrap().reverse();
        events.push(json!({"type": "response.completed", "response": response}));
    }
    events
}

#[test]
fn content_of_unknown_kinds_is_never_answer_text() {
    let shows = |out: &str, what: String| assert!(out.contains("shown") && !out.contains("hidden"), "{what}: {out}");
    for (from, body) in UNKNOWN_WHOLE {
        let text = plain(from, &unknown_events(from));
        for to in SHAPES {
            let streamed = played((from, to), &text, text.len());
            assert!(streamed.result.is_ok(), "{from:?} to {to:?}: {}", streamed.out);
            let (answer, _) = got((from, to), body);
            let reply = unstreamed((from, to), &TranslationState::default(), body).ok().unwrap().out;
            if from != to {
                shows(&streamed.out, format!("{from:?} to {to:?}, streamed"));
                shows(&answer.to_string(), format!("{from:?} to {to:?}, complete"));
                shows(&reply, format!("{from:?} to {to:?}, complete for a stream"));
                continue;
            }
            // Within one format all of it is passed on, under its own type.
            let count = |text: &str| text.matches("hidden").count();
            assert_eq!(count(&streamed.out), count(&text), "{from:?}: {}", streamed.out);
            assert_eq!(count(&answer.to_string()), count(body), "{from:?}: {answer}");
            for event in reply.split("\n\n").filter(|event| event.contains("hidden")) {
                assert!(!event.contains("output_text.d") && !event.contains("text_delta"), "{from:?}: {event}");
            }
        }
    }
}
