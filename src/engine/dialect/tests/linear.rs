//! No input costs more than linear time: the examples of all formats, with a part of each made as large as an attacker
//! would make it. Debug builds count what a translation scans, and stop one that exceeds the bound
//! (`wire::json::ScanCount`).

use super::*;
use crate::base::rng::Rng;
use crate::dialect::capabilities::{Cache, Structured, Thinking};
use crate::dialect::rewrite;
use crate::wire::json;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SHAPES: [Shape; 3] = [Shape::Chat, Shape::Messages, Shape::Responses];

/// Way to enlarge one value of an example.
#[derive(Copy, Clone, Debug)]
enum Swelling {
    /// Its members or items again and again.
    Repeated,
    /// One member or item again and again.
    One,
    /// White space around its members or items.
    Blank,
    /// The value within itself, or within a member of it, as deep as allowed.
    Deep,
    /// The same, around many small values.
    Wide,
}

const SWELLINGS: [Swelling; 5] = [Swelling::Repeated, Swelling::One, Swelling::Blank, Swelling::Deep, Swelling::Wide];

/// Bytes that a swelling adds, about.
const SIZE: usize = 24_000;

/// Number of values that contain others.
fn containers(value: &Value) -> u64 {
    match value {
        Value::Object(members) => 1 + members.values().map(containers).sum::<u64>(),
        Value::Array(items) => 1 + items.iter().map(containers).sum::<u64>(),
        _ => 0,
    }
}

/// Writes `value`; the container with the number `at` swells.
fn swollen(value: &Value, at: &mut u64, how: Swelling, rng: &mut Rng, out: &mut String) {
    let (open, close, mut parts): (_, _, Vec<String>) = match value {
        Value::Object(members) => ('{', '}', members.keys().map(|name| format!("{}:", Value::from(&**name))).collect()),
        Value::Array(items) => ('[', ']', vec![String::new(); items.len()]),
        scalar => return *out += &scalar.to_string(),
    };
    let is_it = *at == 0;
    *at = at.wrapping_sub(1);
    let inner: Vec<&Value> = match value {
        Value::Object(members) => members.values().collect(),
        other => other.as_array().into_iter().flatten().collect(),
    };
    for (part, inner) in parts.iter_mut().zip(inner) {
        swollen(inner, at, how, rng, part);
    }
    if is_it && !parts.is_empty() {
        let one = parts[rng.below(parts.len() as u64) as usize].clone();
        let all: usize = parts.iter().map(String::len).sum();
        match how {
            Swelling::Repeated => parts = parts.iter().cycle().take(parts.len() * (1 + SIZE / all)).cloned().collect(),
            Swelling::One => parts.extend(vec![one; 1 + SIZE / all.max(8)]),
            Swelling::Blank => parts.insert(0, format!("{}{one}", " ".repeat(SIZE))),
            Swelling::Deep | Swelling::Wide => {
                let (depth, key) = (100, if open == '[' { "" } else { &one[..one.find(':').unwrap() + 1] });
                let wide = if open == '[' { vec!["1"; SIZE / 2] } else { vec!["\"type\":\"a\""; SIZE / 11] };
                let core = if matches!(how, Swelling::Deep) { one.clone() } else { wide.join(",") };
                let nested = format!("{open}{key}").repeat(depth) + &format!("{open}{core}{close}");
                parts.push(format!("{key}{nested}{}", close.to_string().repeat(depth)));
            }
        }
    }
    out.push(open);
    *out += &parts.join(",");
    out.push(close);
}

/// Targets with every capability that makes a translation read or write more.
fn targets() -> [Capabilities; 3] {
    [Structured::Native, Structured::Tool, Structured::Instruction].map(|structured_output| Capabilities {
        structured_output,
        strict_tools: true,
        effort: true,
        replay_reasoning: true,
        thought_signatures: true,
        stored_objects: true,
        mid_conversation_system: Some(structured_output == Structured::Native),
        thinking: if structured_output == Structured::Native { Thinking::Adaptive } else { Thinking::Budget },
        cache: if structured_output == Structured::Tool { Cache::Marks } else { Cache::Key },
        ..Capabilities::default()
    })
}

/// Sends a request to providers of all formats. Many are refused; none may take too long.
fn send(from: Shape, body: &str) {
    let endpoint = ModelEndpoint::generate(from);
    let mut scan = RequestScan::new();
    scan.reset(endpoint);
    if scan.finish(body.as_bytes()).is_err() {
        return;
    }
    for capabilities in &targets() {
        for shape in SHAPES {
            let target = RequestTarget { model: "m", shape, capabilities, cache_key: None };
            let (mut out, mut pieces) = (Vec::new(), Vec::new());
            if shape == from {
                let _ = rewrite(endpoint, body.as_bytes(), scan.fields(), &target, &mut out, &mut pieces);
            } else {
                let _ = translate(from, body.as_bytes(), &scan, &target, &mut out);
            }
        }
    }
}

/// Gives an answer to clients of all formats, as one that was requested complete and as one that was to be streamed.
fn answer(from: Shape, body: &str) {
    for to in SHAPES {
        let mut out = Vec::new();
        let _ = reply((from, to), body.as_bytes(), &TranslationState::default(), &ME, &mut out);
        let _ = unstreamed((from, to), &TranslationState::default(), body);
    }
    let _ = whole(ModelEndpoint::generate(from), body.as_bytes(), &ME, &mut Vec::new());
}

fn relay(from: Shape, events: &str) {
    answer(from, events);
    for to in SHAPES {
        let bounds = (1 << 20, 1 << 26);
        let mut stream = match from == to {
            true => SseStream::same(ModelEndpoint::generate(from), to == Shape::Chat, 1 << 20),
            false => SseStream::translated((from, to), TranslationState::default(), true, bounds),
        };
        let (mut pool, mut out) = (Pool::new(1 << 24), Vec::new());
        let _ = stream.feed(events.as_bytes(), &mut pool, &ME, &mut out);
        let _ = stream.end(&mut pool, &ME, &mut out);
        stream.release(&mut pool);
    }
}

/// Reports the inputs that exceed the bound.
fn check(found: &mut Vec<String>, about: String, input: &str, take: impl FnOnce(&str)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| take(input))) {
        let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        found.push(format!("{about}: {why}: {:.300}", input));
    }
}

fn shape_of(name: &str) -> Shape {
    SHAPES.into_iter().find(|shape| name.contains(&format!(".{}.", format!("{shape:?}").to_lowercase()))).unwrap()
}

/// Runs `each` with examples of the given kind, their format, and one way to swell.
fn examples(ending: &str, rounds: u64, mut each: impl FnMut(&str, Shape, &str, Swelling, &mut Rng)) {
    let all: Vec<(String, Vec<u8>)> =
        fixtures(ending).into_iter().filter(|(name, _)| !name.contains("anthropic.j")).collect();
    let all: Vec<_> = all.into_iter().filter(|(name, _)| name.split('.').count() == 5).collect();
    for seed in 0..rounds {
        let mut rng = Rng::from_u64(seed);
        let (name, text) = &all[rng.below(all.len() as u64) as usize];
        let how = SWELLINGS[rng.below(SWELLINGS.len() as u64) as usize];
        each(name, shape_of(name), std::str::from_utf8(text).unwrap(), how, &mut rng);
    }
}

fn rounds(usual: u64) -> u64 {
    std::env::var("LINEAR_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn swollen_requests_are_translated_in_linear_time() {
    let mut found = Vec::new();
    examples("request.json", rounds(150), |name, from, text, how, rng| {
        let value: Value = serde_json::from_str(text).unwrap();
        let mut at = rng.below(containers(&value));
        let (mut body, about) = (String::new(), format!("{name}, {how:?}, {at}"));
        swollen(&value, &mut at, how, rng, &mut body);
        check(&mut found, about, &body, |body| send(from, body));
    });
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

#[test]
fn swollen_answers_are_translated_in_linear_time() {
    let mut found = Vec::new();
    examples("response.json", rounds(60), |name, from, text, how, rng| {
        let value: Value = serde_json::from_str(text).unwrap();
        let mut at = rng.below(containers(&value));
        let (mut body, about) = (String::new(), format!("{name}, {how:?}, {at}"));
        swollen(&value, &mut at, how, rng, &mut body);
        check(&mut found, about, &body, |body| answer(from, body));
    });
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

#[test]
fn swollen_streams_are_translated_in_linear_time() {
    let mut found = Vec::new();
    examples("stream.sse", rounds(100), |name, from, text, how, rng| {
        let events: Vec<&str> = text.split_inclusive("\n\n").collect();
        let which = rng.below(events.len() as u64) as usize;
        let Some((head, data)) = events[which].split_once("data: ") else { return };
        let Ok(value) = serde_json::from_str::<Value>(data) else { return };
        let mut at = rng.below(containers(&value).max(1));
        let (mut swell, about) = (format!("{head}data: "), format!("{name}, {how:?}, event {which}, {at}"));
        swollen(&value, &mut at, how, rng, &mut swell);
        swell += "\n\n";
        // One large event, or many usual ones.
        let times = if rng.below(3) == 0 { 1 + SIZE / events[which].len() } else { 1 };
        let mut events: Vec<String> = events.iter().map(|event| (*event).to_owned()).collect();
        match times {
            1 => events[which] = swell,
            times => events[which] = events[which].repeat(times),
        }
        check(&mut found, about, &events.concat(), |events| relay(from, events));
    });
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

fn list(one: &str, size: usize) -> String {
    vec![one; 1 + size / one.len()].join(",")
}

/// A member of a schema within itself, with another member beside it at each level.
fn nested(around: &str, depth: usize) -> String {
    let (open, close) = around.split_once('*').unwrap();
    open.repeat(depth) + "{}" + &close.repeat(depth)
}

#[test]
fn hostile_schemas_and_tools_are_translated_in_linear_time() {
    let repeated = |member: &str| format!("{{\"type\":\"object\",{}}}", list(member, SIZE));
    let blanks = " ".repeat(SIZE);
    let schemas = [
        repeated("\"oneOf\":1"),
        repeated("\"oneOf\":[{}]"),
        repeated("\"anyOf\":[],\"oneOf\":[]"),
        repeated("\"type\":\"object\""),
        repeated("\"description\":\"d\",\"not\":1"),
        repeated("\"properties\":{\"a\":{}}"),
        repeated("\"required\":[\"a\"]"),
        repeated("\"additionalProperties\":{}"),
        format!("{{{blanks}\"type\":\"object\",\"x\":{}}}", nested("{\"items\":*}", 100)),
        format!(
            "{{\"type\":\"object\",\"x\":1,\"items\":{}}}",
            nested("{\"items\":*,\"type\":\"object\",\"not\":1}", 100)
        ),
        nested(
            &format!(
                "{{\"description\":\"{}\",\"properties\":{{\"a\":*}},\"type\":\"object\",\"not\":1}}",
                "d".repeat(200)
            ),
            50,
        ),
        nested("{\"anyOf\":[*],\"oneOf\":[{\"a\":1}],\"type\":[\"object\"]}", 60),
        nested("{\"oneOf\":[*],\"anyOf\":[{\"a\":1}],\"type\":\"object\"}", 60),
        nested("{\"not\":*,\"type\":\"object\"}", 100),
        nested(&format!("{{\"type\":\"object\",\"items\":*,\"enum\":[{}]}}", list("1", 200)), 100),
    ];
    let said = "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]";
    let mut found = Vec::new();
    for schema in &schemas {
        assert!(json::check(schema.as_bytes()).is_ok(), "{schema}");
        let function = format!("{{\"name\":\"f\",\"strict\":true,\"parameters\":{schema}}}");
        let chat = format!(
            "{{\"model\":\"m\",{said},\"tools\":[{{\"type\":\"function\",\"function\":{function}}}],\"response_format\":{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"n\",\"schema\":{schema}}}}}}}"
        );
        let messages = format!(
            "{{\"model\":\"m\",\"max_tokens\":9,{said},\"tools\":[{{\"name\":\"f\",\"strict\":true,\"input_schema\":{schema}}}],\"output_config\":{{\"format\":{{\"type\":\"json_schema\",\"schema\":{schema}}}}}}}"
        );
        let responses = format!(
            "{{\"model\":\"m\",\"input\":\"a\",\"tools\":[{{\"type\":\"function\",\"name\":\"f\",\"strict\":true,\"parameters\":{schema}}}],\"text\":{{\"format\":{{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{schema}}}}}}}"
        );
        for (from, body) in SHAPES.into_iter().zip([chat, messages, responses]) {
            check(&mut found, format!("{from:?}"), &body, |body| send(from, body));
        }
    }
    // The first definition is long, and its name is repeated.
    let first = |schema: &str| format!("{{\"a\":{schema}1}}");
    let (long, short) = (first(&blanks), first(""));
    let times = SIZE / 60;
    let equal = |tool: &dyn Fn(&str) -> String| {
        std::iter::once(tool(&long)).chain(vec![tool(&short); times]).collect::<Vec<_>>().join(",")
    };
    let chat =
        equal(&|schema| format!("{{\"type\":\"function\",\"function\":{{\"name\":\"f\",\"parameters\":{schema}}}}}"));
    let messages = equal(&|schema| format!("{{\"name\":\"f\",\"input_schema\":{schema}}}"));
    let responses = equal(&|schema| format!("{{\"type\":\"function\",\"name\":\"f\",\"parameters\":{schema}}}"));
    let bodies = [
        format!("{{\"model\":\"m\",{said},\"tools\":[{chat}]}}"),
        format!("{{\"model\":\"m\",\"max_tokens\":9,{said},\"tools\":[{messages}]}}"),
        format!("{{\"model\":\"m\",\"input\":\"a\",\"tools\":[{responses}]}}"),
    ];
    for (from, body) in SHAPES.into_iter().zip(bodies) {
        check(&mut found, format!("{from:?}"), &body, |body| send(from, body));
    }
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}
