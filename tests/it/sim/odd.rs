//! Oddities of real providers that do not change the meaning of an answer: members that are missing, null, empty or
//! unknown, content in parts, usage in other places and with other names, unknown events.

use super::tally::Faults;
use tollgate::base::rng::Rng;
use tollgate::wire::Shape;

/// Changes to one event of a chat stream: the text to replace, its replacement, and a name.
const CHAT: [(&str, &str, &str); 10] = [
    ("\"id\":\"c\",", "", "chunk without an id"),
    ("\"object\":\"chat.completion.chunk\",", "", "chunk without its object"),
    ("\"model\":\"up-small\",", "", "chunk without a model"),
    ("data: {", "data: {\"usage\":null,\"error\":null,\"service_tier\":null,", "members that are null"),
    ("\"delta\":{\"content\"", "\"finish_reason\":\"\",\"delta\":{\"content\"", "empty finish reason"),
    ("\"delta\":{\"content\"", "\"finish_reason\":\"null\",\"delta\":{\"content\"", "finish reason \"null\""),
    (
        "{\"content\":",
        "{\"role\":null,\"tool_calls\":null,\"reasoning_content\":\"\",\"content\":",
        "empty members of a delta",
    ),
    ("data: {", "data: {\"choices\":[]}\n\ndata: {", "chunk without a choice"),
    ("data: ", ": PROCESSING\n\ndata: ", "comment"),
    ("data: ", "data:", "no space behind the colon"),
];

/// Changes to an event of a Messages stream.
const MESSAGES: [(&str, &str, &str); 4] = [
    ("event: ", "event: mood\ndata: {\"type\":\"mood\"}\n\nevent: ", "unknown event"),
    ("event: ", "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: ", "ping"),
    ("\"delta\":{", "\"x\":{\"y\":[null]},\"delta\":{\"citations\":null,", "unknown members of a delta"),
    ("data: ", "data:", "no space behind the colon"),
];

/// Changes to an event of a Responses stream.
const RESPONSES: [(&str, &str, &str); 3] = [
    ("event: ", "event: response.mood\ndata: {\"type\":\"response.mood\"}\n\nevent: ", "unknown event"),
    ("\"delta\":", "\"obfuscation\":\"\",\"logprobs\":null,\"delta\":", "unknown members of a delta"),
    ("data: ", "data:", "no space behind the colon"),
];

/// Rewrites some events of a stream, but not its end.
pub fn stream(text: &str, format: Shape, relayed: bool, rng: &mut Rng, faults: &mut Faults) -> String {
    let kinds: &[(&str, &str, &str)] = match format {
        Shape::Messages => &MESSAGES,
        Shape::Responses => &RESPONSES,
        _ => &CHAT,
    };
    let mut out = String::with_capacity(text.len() * 2);
    for event in text.split_inclusive("\n\n") {
        let (from, to, name) = kinds[rng.below(kinds.len() as u64) as usize];
        let is_end = event.contains("[DONE]");
        if rng.below(2) > 0 || is_end || !event.contains(from) {
            out.push_str(event);
            continue;
        }
        faults.note(name);
        out.push_str(&event.replacen(from, to, 1));
    }
    if format == Shape::Chat && !relayed {
        out = parts(&out, rng, faults);
        out = usage_in_a_choice(&out, rng, faults);
    }
    out
}

/// Writes contents as lists of parts.
fn parts(text: &str, rng: &mut Rng, faults: &mut Faults) -> String {
    let mut pieces = text.split("\"content\":\"m");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once('"').filter(|_| rng.below(4) == 0) {
            Some((content, rest)) => {
                faults.note("content as a list of parts");
                out.push_str(&format!("\"content\":[{{\"type\":\"text\",\"text\":\"m{content}\"}}]{rest}"));
            }
            None => out.push_str(&format!("\"content\":\"m{piece}")),
        }
    }
    out
}

/// Moves the usage from its own chunk into the choice that ends the answer.
fn usage_in_a_choice(text: &str, rng: &mut Rng, faults: &mut Faults) -> String {
    let found = text.split("\n\n").find(|event| event.contains("\"choices\":[],\"usage\":{"));
    let Some((event, usage)) = found.and_then(|event| Some((event, event.split_once("\"usage\":")?.1))) else {
        return text.to_owned();
    };
    let end = "\"delta\":{},\"finish_reason\":";
    if rng.below(2) > 0 || !text.contains(end) {
        return text.to_owned();
    }
    faults.note("usage in a choice");
    let usage = usage.strip_suffix('}').unwrap_or(usage);
    text.replacen(&format!("{event}\n\n"), "", 1).replacen(end, &format!("\"usage\":{usage},{end}"), 1)
}

/// Rewrites a complete chat response; `usage` is the usage that it reports.
pub fn whole(body: &str, usage: Option<(u64, u64)>, rng: &mut Rng, faults: &mut Faults) -> String {
    let body = parts(body, rng, faults);
    let body = match usage.and_then(|usage| Some((usage, body.split_once("\"usage\":")?.0))) {
        Some(((input, output), before)) if rng.below(2) == 0 => {
            faults.note("cached tokens under another name, and reasoning counted apart");
            let (prompt, completion) = (input + 7, output - 1);
            format!(
                "{before}\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{},\
                 \"prompt_cache_hit_tokens\":7,\"prompt_tokens_details\":null,\
                 \"completion_tokens_details\":{{\"reasoning_tokens\":1}}}}}}",
                prompt + output
            )
        }
        _ => body,
    };
    let (from, to) = [
        ("{\"id\":\"c\",\"object\":\"chat.completion\",", "{"),
        ("\"role\":\"assistant\",", "\"role\":null,\"tool_calls\":[],\"refusal\":\"\",\"reasoning_content\":null,"),
        ("\"choices\"", "\"error\":null,\"choices\""),
    ][rng.below(3) as usize];
    faults.note("members of a response that are missing, null or empty");
    body.replacen(from, to, 1)
}
