//! The same answer in two forms gives the client the same. Streams in which each event has a member that no template
//! matches, and the same streams without it: the events, the usage and the end are the same, however the bytes arrive.
//! The events are those that servers send, in runs, with odd members, in odd orders, and in most streams with something
//! that breaks a rule. And complete answers, and their content as a stream.

use super::property::{accumulate_chat, accumulate_messages};
use super::responses::last_response;
use super::*;
use crate::base::rng::Rng;
use crate::wire::Passthrough;
use serde_json::json;

const COMPLETIONS: ModelEndpoint = ModelEndpoint::passthrough(Passthrough::Completions);

/// Texts as they stand in JSON. Equal pieces in a row are frequent.
const TEXTS: [&str; 12] = ["1", "0", "0", " is", "a\\nb", "\\u00e9", "漢", "\\\"q\\\"", "", "\\n", "{", "x\\\\"];
/// Pieces of the arguments of a call.
const ARGUMENTS: [&str; 8] = ["{\\\"a\\\":", "1", "1", "}", "{}", " ", "\\\"b\\\"", ","];

/// An endpoint of a provider, the format of its client, and the number of choices that the client asked for.
#[derive(Copy, Clone, Debug)]
struct Way {
    from: ModelEndpoint,
    to: Shape,
    choices: u64,
    json_tool: bool,
}

/// Result of a stream.
#[derive(PartialEq, Debug)]
struct Played {
    out: String,
    observed: ObservedUsage,
    result: Result<(), StreamFault>,
    /// A finish reason has arrived, and all choices that have begun have ended.
    ends: (bool, bool),
}

fn one_of(rng: &mut Rng, all: &[&str]) -> String {
    all[rng.below(all.len() as u64) as usize].to_owned()
}

/// One of `all`, and in one case of `odd` the first.
fn seldom(rng: &mut Rng, odd: u64, all: &[&str]) -> String {
    if rng.below(odd) > 0 { all[0].to_owned() } else { one_of(rng, all) }
}

/// Feeds a stream in pieces, as the gateway does; returns its result and the number of pieces that were an event like
/// the previous one.
fn play(way: Way, pieces: &[&[u8]]) -> (Played, usize) {
    let (shape, state) = (way.from.shape, TranslationState { json_tool: way.json_tool, ..TranslationState::default() });
    let mut stream = match way.to == shape {
        true => SseStream::same(way.from, true, 1 << 20),
        false => SseStream::translated((shape, way.to), state, true, (1 << 20, 1 << 26)),
    };
    stream.awaits(way.choices as u32);
    let (mut pool, mut out, mut hits) = (Pool::new(1 << 20), Vec::new(), 0);
    let mut result = pieces.iter().try_for_each(|piece| {
        let alike = stream.feed_alike(piece, &mut pool, &mut out);
        hits += usize::from(alike > 0);
        stream.feed(&piece[alike..], &mut pool, &ME, &mut out).map(drop)
    });
    let ends = (stream.finish_seen(), stream.may_be_done());
    if result.is_ok() {
        result = stream.end(&mut pool, &ME, &mut out);
    }
    stream.release(&mut pool);
    let out = String::from_utf8(out).unwrap();
    (Played { out, observed: stream.observed(), result, ends }, hits)
}

/// Cuts bytes at random.
fn cut<'a>(rng: &mut Rng, bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    let longest = [3, 60, 700][rng.below(3) as usize];
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.len().min(1 + rng.below(longest) as usize));
        pieces.push(piece);
        rest = more;
    }
    pieces
}

/// Writes the member into the event at place `at`.
fn marked(at: usize, event: &str) -> String {
    match event.split_once("data: {\"") {
        Some((before, rest)) => format!("{before}data: {{\"x_at\":{at},\"{rest}"),
        None => event.to_owned(),
    }
}

/// An event as some servers frame it.
fn framed(framing: u64, event: &str) -> String {
    match framing {
        0 => event.replace('\n', "\r\n"),
        1 => event.replace('\n', "\r"),
        2 => event.replace("data: ", ": a\nid:7\ndata:"),
        _ => event.to_owned(),
    }
}

/// Removes the members that [`marked`] has written.
fn unmarked(text: &str) -> String {
    let mut parts = text.split("\"x_at\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(','))
}

/// The members of a `delta` with a text, of one of the kinds that chat servers send.
fn chat_delta(kind: u64, call: u64, text: &str, json: &str) -> String {
    let detail = |more: &str| format!("\"reasoning_details\":[{{\"type\":\"reasoning.{more},\"index\":0}}]");
    let calls = |more: &str| format!("\"tool_calls\":[{{\"index\":{call},{more}}}]");
    match kind {
        0..4 => format!("\"content\":\"{text}\""),
        4 => format!("\"reasoning_content\":\"{text}\""),
        5 => format!("\"reasoning\":\"{text}\""),
        6 | 7 => format!("\"reasoning\":\"{text}\",{}", detail(&format!("text\",\"text\":\"{text}\""))),
        8 | 9 => detail(&format!("text\",\"text\":\"{text}\"")),
        10 => detail("text\",\"signature\":\"U0lH\""),
        11 => detail(&format!("encrypted\",\"data\":\"{text}\"")),
        12 => format!("\"reasoning\":\"{text}\",{}", detail("encrypted\",\"data\":\"eA\"")),
        13 => format!("\"content\":\"{text}\",{}", detail("summary\",\"summary\":\"s\"")),
        14 => format!("\"refusal\":\"{text}\""),
        15 => format!("\"refusal\":\"{text}\",\"content\":[]"),
        16 => format!("\"reasoning_content\":\"{text}\",\"tool_calls\":[]"),
        17 => format!("\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]"),
        18 => {
            format!("\"content\":[{{\"type\":\"thinking\",\"thinking\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}}]")
        }
        19 => format!("\"role\":\"assistant\",\"content\":\"{text}\""),
        20 => format!("\"content\":\"a\",\"reasoning_content\":\"{text}\""),
        21 => {
            format!("\"content\":\"{text}\",{}", calls("\"id\":\"\",\"function\":{\"name\":\"\",\"arguments\":\"\"}"))
        }
        22 => format!("\"function_call\":{{\"name\":\"f\",\"arguments\":\"{json}\"}}"),
        23 => calls(&format!("\"function\":{{\"name\":\"f\",\"arguments\":\"{json}\"}}")),
        24 => calls(&format!(
            "\"function\":{{\"arguments\":\"{json}\"}},\"extra_content\":{{\"google\":{{\"thought_signature\":\"Rw\"}}}}"
        )),
        25 => String::new(),
        _ => calls(&format!("\"function\":{{\"arguments\":\"{json}\"}}")),
    }
}

/// The events of a chat stream, or of one of a legacy completion.
fn chat(rng: &mut Rng, way: Way) -> Vec<String> {
    let chunk = |choices: &str, more: &str| format!("data: {{\"id\":\"c\",\"choices\":[{choices}]{more}}}\n\n");
    let is_completion = way.from.is_passthrough();
    let mut events = Vec::new();
    let (mut call, mut ended) = (0, 0);
    for _ in 0..3 + rng.below(9) {
        let kind = rng.below(34);
        let index = seldom(rng, 2, &["0", "0", "1", "2"][..1 + way.choices as usize]);
        let odd = ["", ",\"finish_reason\":\"\"", ",\"logprobs\":null", ",\"usage\":{\"prompt_tokens\":5}"];
        let choice = seldom(rng, 3, &odd);
        let more = seldom(
            rng,
            3,
            &[
                "",
                ",\"usage\":null",
                ",\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"cost\":0.5}",
                ",\"created\":1700000000123",
                ",\"x_groq\":{\"usage\":{\"cost\":0.5}}",
                ",\"error\":null,\"created\":1700000000",
            ],
        );
        match rng.below(16) {
            0 => events.push(one_of(rng, &[": ping\n\n", "event: ping\ndata: {\"a\":1}\n\n"])),
            1 => events.push(chunk("", ",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12}")),
            2 if way.choices > 1 || rng.below(4) == 0 => {
                // Some servers repeat it.
                let end = chunk(&format!("{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop\"}}"), "");
                events.extend(vec![end; 1 + rng.below(2) as usize]);
                ended += 1;
            }
            3 => {
                call += u64::from(rng.below(2) == 0);
                let name = seldom(rng, 2, &["json_response", "f"]);
                let open = format!(
                    "\"tool_calls\":[{{\"index\":{call},\"id\":\"c{call}\",\"function\":{{\"name\":\"{name}\"}}}}]"
                );
                events.push(chunk(&format!("{{\"index\":0,\"delta\":{{{open}}}}}"), ""));
            }
            4 => {
                let message = chat_delta(kind, call, "m", "{}");
                events.push(chunk(&format!("{{\"index\":0,\"delta\":{{}},\"message\":{{{message}}}}}"), ""));
            }
            // The halves of one character.
            5 => {
                for half in ["a\\ud83d", "\\ude00b"] {
                    let both = format!("\"reasoning\":\"t\",{}", chat_delta(0, 0, half, ""));
                    events.push(chunk(&format!("{{\"index\":0,\"delta\":{{{both}}}}}"), ""));
                }
            }
            _ => {
                for _ in 0..1 + rng.below(6) {
                    let (text, json) = (one_of(rng, &TEXTS), one_of(rng, &ARGUMENTS));
                    let said = match is_completion {
                        true => format!("\"text\":\"{text}\""),
                        false => format!("\"delta\":{{{}}}", chat_delta(kind, call, &text, &json)),
                    };
                    events.push(chunk(&format!("{{\"index\":{index},{said}{choice}}}"), &more));
                }
            }
        }
    }
    for index in ended..way.choices + rng.below(2) {
        let word = one_of(rng, &["stop", "tool_calls", "length"]);
        events.push(chunk(&format!("{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"{word}\"}}"), ""));
    }
    events.push(chunk("", ",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7,\"total_tokens\":16,\"cost\":1}"));
    events.push("data: [DONE]\n\n".to_owned());
    events.truncate(events.len() - rng.below(3) as usize);
    events
}

/// An event of the formats whose events have names.
fn named(kind: &str, members: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{members}}}\n\n")
}

/// The events of a messages stream.
fn messages(rng: &mut Rng) -> Vec<String> {
    let usage = one_of(rng, &["{\"input_tokens\":9,\"output_tokens\":1}", "{}", "{\"input_tokens\":9,\"cost\":0.5}"]);
    let mut events =
        vec![named("message_start", &format!(",\"message\":{{\"id\":\"m\",\"model\":\"up\",\"usage\":{usage}}}"))];
    for index in 0..1 + rng.below(5) {
        let name = seldom(rng, 2, &["json_response", "f"]);
        let kind = rng.below(4);
        let block = match kind {
            0 | 1 => "{\"type\":\"text\",\"text\":\"\"}".to_owned(),
            2 => "{\"type\":\"thinking\",\"thinking\":\"\"}".to_owned(),
            _ => format!("{{\"type\":\"tool_use\",\"id\":\"t{index}\",\"name\":\"{name}\",\"input\":{{}}}}"),
        };
        events.push(named("content_block_start", &format!(",\"index\":{index},\"content_block\":{block}")));
        for _ in 0..rng.below(4) {
            let more =
                seldom(rng, 4, &["", ",\"usage\":{\"output_tokens\":4}", ",\"usage\":{\"cost\":0.5}", ",\"p\":\"x\""]);
            let odd = seldom(rng, 4, &["", ",\"citations\":[]", ",\"text\":\"o\"", ",\"signature\":\"U0lH\""]);
            for _ in 0..1 + rng.below(6) {
                let (text, json) = (one_of(rng, &TEXTS), one_of(rng, &ARGUMENTS));
                let delta = match kind {
                    0 | 1 => format!("\"type\":\"text_delta\",\"text\":\"{text}\""),
                    2 => format!("\"type\":\"thinking_delta\",\"thinking\":\"{text}\""),
                    _ => format!("\"type\":\"input_json_delta\",\"partial_json\":\"{json}\""),
                };
                let delta = format!(",\"index\":{index},\"delta\":{{{delta}{odd}}}{more}");
                events.push(named("content_block_delta", &delta));
            }
            if rng.below(3) == 0 {
                events.push(one_of(rng, &["event: ping\ndata: {\"type\":\"ping\"}\n\n", ": ping\n\n"]));
            }
        }
        if kind == 2 {
            let signature = ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"U0lH\"}";
            events.push(named("content_block_delta", &format!(",\"index\":{index}{signature}")));
        }
        if rng.below(8) > 0 {
            events.push(named("content_block_stop", &format!(",\"index\":{index}")));
        }
    }
    let usage = seldom(rng, 3, &["{\"output_tokens\":7}", "{}", "{\"output_tokens\":7,\"cost\":0.5}"]);
    let delta = format!(",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{usage}");
    events.push(named("message_delta", &delta));
    events.push(named("message_stop", ""));
    events.truncate(events.len() - rng.below(3) as usize);
    events
}

/// The events of a response's stream.
fn responses(rng: &mut Rng) -> Vec<String> {
    let mut events = vec![named(
        "response.created",
        ",\"sequence_number\":0,\"response\":{\"id\":\"r\",\"status\":\"in_progress\"}",
    )];
    for item in 0..1 + rng.below(4) {
        let kind = rng.below(4);
        let (name, added) = match kind {
            0 => ("output_text", "{\"type\":\"message\",\"content\":[]}"),
            1 => ("refusal", "{\"type\":\"message\",\"content\":[]}"),
            2 => ("reasoning_summary_text", "{\"type\":\"reasoning\",\"summary\":[]}"),
            _ => {
                ("function_call_arguments", "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"json_response\"}")
            }
        };
        let place = format!(",\"output_index\":{item}");
        events.push(named("response.output_item.added", &format!("{place},\"item\":{added}")));
        for part in 0..1 + rng.below(2) {
            let list = if kind == 2 { "summary_index" } else { "content_index" };
            let place = format!("{place},\"{list}\":{part}");
            let more = seldom(rng, 3, &[",\"obfuscation\":\"xyz\"", "", ",\"logprobs\":[]", ",\"x\":{}"]);
            for _ in 0..rng.below(7) {
                let text = one_of(rng, if kind < 3 { &TEXTS } else { &ARGUMENTS });
                let number = events.len();
                let delta = format!("{place},\"sequence_number\":{number},\"delta\":\"{text}\"{more}");
                events.push(named(&format!("response.{name}.delta"), &delta));
            }
            if rng.below(5) == 0 {
                events.push(one_of(rng, &["event: ping\ndata: {\"type\":\"ping\"}\n\n", ": ping\n\n"]));
            }
        }
        if kind < 3 {
            events.push(named("response.output_item.done", &format!("{place},\"item\":{added}")));
        }
    }
    let usage = "{\"input_tokens\":9,\"output_tokens\":7,\"total_tokens\":16,\"cost\":0.5}";
    let end = format!(",\"response\":{{\"id\":\"r\",\"status\":\"completed\",\"output\":[],\"usage\":{usage}}}");
    events.push(named("response.completed", &end));
    events.truncate(events.len() - rng.below(2) as usize);
    events
}

#[test]
fn no_member_that_defeats_templates_changes_what_is_delivered() {
    let (mut whole, mut hits) = (0, 0);
    for seed in 0..400 {
        for from in [ModelEndpoint::CHAT, ModelEndpoint::MESSAGES, ModelEndpoint::RESPONSES, COMPLETIONS] {
            let mut rng = Rng::from_u64(seed);
            let to = Shape::ALL[rng.below(3) as usize];
            let to = if from.is_passthrough() { from.shape } else { to };
            let several = from.shape == Shape::Chat && to == Shape::Chat && rng.below(2) == 0;
            let way =
                Way { from, to, choices: if several { 2 + rng.below(2) } else { 1 }, json_tool: rng.below(4) == 0 };
            let events = match from.shape {
                Shape::Chat => chat(&mut rng, way),
                Shape::Messages => messages(&mut rng),
                Shape::Responses => responses(&mut rng),
            };
            let framing = seed % 6;
            let odd: String =
                events.iter().enumerate().map(|(at, event)| framed(framing, &marked(at, event))).collect();
            let events: Vec<String> = events.iter().map(|event| framed(framing, event)).collect();
            let text = events.concat();
            // The last event of some streams has no blank line.
            let open = if rng.below(4) == 0 { text.trim_end() } else { &text };
            let odd = if open.len() < text.len() { odd.trim_end() } else { &odd };
            let mut pieces: Vec<&[u8]> = events.iter().map(String::as_bytes).collect();
            if let Some(last) = pieces.last_mut().filter(|_| open.len() < text.len()) {
                *last = last.trim_ascii_end();
            }
            let (plain, alike) = play(way, &pieces);
            let (arrived, _) = play(way, &cut(&mut rng, open.as_bytes()));
            assert_eq!(arrived, plain, "seed {seed}, {way:?}\n{open}");
            let (mut read, _) = play(way, &cut(&mut rng, odd.as_bytes()));
            read.out = unmarked(&read.out);
            assert_eq!(read, plain, "seed {seed}, {way:?}\n{open}");
            assert!(!plain.out.contains("\"cost\""), "seed {seed}, {way:?}\n{open}\n{}", plain.out);
            (whole, hits) = (whole + usize::from(plain.result.is_ok()), hits + alike);
        }
    }
    assert!(whole > 400 && hits > 1500, "{whole} streams ended well, {hits} events were like the one before");
}

/// A stream cut at the ends of its events.
fn events_of(text: &str) -> Vec<&[u8]> {
    text.split_inclusive("\n\n").map(str::as_bytes).collect()
}

/// A chat answer with odd members.
fn chat_answer(rng: &mut Rng) -> String {
    const EMPTY: &str =
        "{\"index\":0,\"id\":\"\",\"type\":\"function\",\"function\":{\"name\":\"\",\"arguments\":\"\"}}";
    const CALL: &str = "{\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}";
    let detail = "\"reasoning_details\":[{\"type\":\"reasoning.text\",\"text\":\"so\",\"signature\":\"U0lH\"}],";
    let nested = "[{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\",\"text\":\"in\"}]},\"said\"]";
    let thinking =
        one_of(rng, &["", "\"reasoning_content\":\"so\",", "\"reasoning_content\":[],\"reasoning\":\"so\","]);
    let details = one_of(rng, &["", "\"reasoning_details\":[],", detail]);
    let content = one_of(rng, &["null", "\"said\"", "\"\"", "[]", "[{\"type\":\"text\",\"text\":\"\"}]", nested]);
    let refusal = one_of(rng, &["", "\"refusal\":null,", "\"refusal\":\"no\","]);
    let calls = one_of(
        rng,
        &[
            "",
            "\"tool_calls\":[],",
            &format!("\"tool_calls\":[{EMPTY}],"),
            &format!("\"tool_calls\":[{{}},{CALL}],"),
            &format!("\"tool_calls\":[{CALL}],"),
            "\"tool_calls\":[{\"id\":\"c\",\"function\":{\"arguments\":\"{}\"}}],",
            "\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"},\"tool_calls\":[{}],",
        ],
    );
    let message = format!("{{{thinking}{details}{refusal}{calls}\"role\":\"assistant\",\"content\":{content}}}");
    let choice = |index: &str, message: &str| format!("{{{index}\"message\":{message},\"finish_reason\":\"stop\"}}");
    let own = choice(&one_of(rng, &["", "\"index\":0,"]), &message);
    let other = choice("\"index\":1,", "{\"role\":\"assistant\",\"content\":\"other\"}");
    let choices = one_of(rng, &[&own, &format!("{own},{other}"), &format!("{other},{own}")]);
    format!("{{\"id\":\"c\",\"choices\":[{choices}],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":7}}}}")
}

#[test]
fn chat_answer_and_its_content_as_a_stream_are_read_alike() {
    let (state, mut complete) = (TranslationState::default(), 0);
    for seed in 0..1000 {
        let body = chat_answer(&mut Rng::from_u64(seed));
        for to in [Shape::Messages, Shape::Responses] {
            let mut out = Vec::new();
            let whole = reply((Shape::Chat, to), body.as_bytes(), &state, &ME, &mut out);
            let streamed = unstreamed((Shape::Chat, to), &state, &body).ok().filter(|outcome| outcome.result.is_ok());
            let Some(streamed) = streamed else {
                assert!(whole.is_err(), "seed {seed} to {to:?}: {body}");
                continue;
            };
            assert!(whole.is_ok(), "seed {seed} to {to:?}: {body}\n{}", streamed.out);
            let mut whole: Value = serde_json::from_slice(&out).unwrap();
            if to == Shape::Responses {
                assert_eq!(last_response(&streamed.out)["output"], whole["output"], "seed {seed}: {body}");
            } else {
                let blocks = whole["content"].as_array_mut().unwrap().iter_mut();
                // The signature is in events of its own.
                blocks.filter(|block| block["type"] == "thinking").for_each(|block| block["signature"] = json!(""));
                assert_eq!(accumulate_messages(&streamed.out), whole, "seed {seed}: {body}");
            }
            complete += 1;
        }
    }
    assert!(complete > 1000, "{complete}");
}

/// An item of a response with the texts of its parts, and its events, of which some are missing or late.
fn response_item(rng: &mut Rng, at: usize) -> (Value, Vec<Value>) {
    let reasons = rng.below(3) == 0;
    let (list, kind, index) = match reasons {
        true => ("summary", "summary_text", "summary_index"),
        false => ("content", "output_text", "content_index"),
    };
    let (mut parts, mut events, mut late) = (Vec::new(), Vec::new(), Vec::new());
    // All texts are streamed.
    let mut is_whole = true;
    let count = rng.below(4);
    // From this part on, only the end of the item has the texts.
    let silent = rng.below(count + 2);
    for part in 0..count {
        if !reasons && rng.below(5) == 0 {
            parts.push(json!({"type": "x_citation", "text": "no text of the answer"}));
            continue;
        }
        let text = one_of(rng, &["one", "two \"words\"", "漢", "\\", ""]);
        let is_refusal = !reasons && rng.below(4) == 0;
        let (name, member) = match (reasons, is_refusal) {
            (true, _) => ("reasoning_summary_text", "text"),
            (_, true) => ("refusal", "refusal"),
            _ => ("output_text", "text"),
        };
        parts.push(json!({"type": if is_refusal { "refusal" } else { kind }, member: text}));
        if part >= silent {
            is_whole = false;
            continue;
        }
        let event = |end: &str, member: &str, text: &str| json!({"type": format!("response.{name}.{end}"), "output_index": at, index: part, member: text});
        let form = rng.below(4);
        if form > 0 {
            // The last text that is streamed may lack its end.
            let cut = form == 3 && (part + 1 == count || part + 1 == silent);
            let said: String = text.chars().take(if cut { 2 } else { 99 }).collect();
            is_whole &= said == text;
            events.extend(said.chars().map(|c| event("delta", "delta", &c.to_string())));
        }
        events.append(&mut late);
        match form {
            0 => events.push(event("done", member, &text)),
            1 if rng.below(2) == 0 => late.push(event("done", member, &text)),
            1 => events.push(event("done", member, &text)),
            _ => {}
        }
    }
    events.append(&mut late);
    let item = json!({"type": if reasons { "reasoning" } else { "message" }, "id": format!("i{at}"), list: parts});
    if events.is_empty() || !is_whole || rng.below(3) > 0 {
        events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
    }
    (item, events)
}

#[test]
fn response_and_its_content_as_a_stream_are_read_alike() {
    let state = TranslationState::default();
    let mut texts = 0;
    for seed in 0..1000 {
        let mut rng = Rng::from_u64(seed);
        let (items, mut events): (Vec<_>, Vec<_>) =
            (0..1 + rng.below(3)).map(|at| response_item(&mut rng, at as usize)).unzip();
        let usage = json!({"input_tokens": 9, "output_tokens": 7, "total_tokens": 16});
        let response = json!({"id": "r", "status": "completed", "output": items, "usage": usage});
        events.push(vec![json!({"type": "response.completed", "response": response})]);
        let text: String = events.iter().flatten().map(|event| format!("data: {event}\n\n")).collect();
        let mut out = Vec::new();
        reply((Shape::Responses, Shape::Chat), response.to_string().as_bytes(), &state, &ME, &mut out).unwrap();
        let whole: Value = serde_json::from_slice(&out).unwrap();
        let streamed = stream_for((Shape::Responses, Shape::Chat), &state, true, &ME, &[text.as_bytes()]);
        assert_eq!(streamed.result, Ok(()), "seed {seed}\n{text}");
        assert_eq!(accumulate_chat(&streamed.out), whole, "seed {seed}\n{text}");
        texts += usize::from(whole["choices"][0]["message"]["content"] != "");
    }
    assert!(texts > 300, "{texts}");
}

/// A chat chunk with this member of its `delta`, and these members of its choice.
fn chunk(delta: &str, choice: &str) -> String {
    format!("data: {{\"id\":\"c\",\"choices\":[{{\"delta\":{{{delta}}}{choice}}}]}}\n\n")
}

const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

#[test]
fn calls_that_say_nothing_cut_no_reasoning_and_break_no_text() {
    let state = TranslationState::default();
    for calls in ["[]", "[{}]", "[null]", "[{\"index\":0,\"id\":\"\",\"function\":{\"name\":\"\",\"arguments\":\"\"}}]"]
    {
        let piece = format!("\"reasoning_content\":\"word \",\"tool_calls\":{calls}");
        let text =
            chunk(&piece, "").repeat(20) + &chunk(&format!("\"content\":\"Hi\",\"tool_calls\":{calls}"), "") + STOP;
        let streamed = stream_for((Shape::Chat, Shape::Responses), &state, true, &ME, &[text.as_bytes()]);
        assert_eq!(streamed.result, Ok(()), "{calls}");
        let output = &last_response(&streamed.out)["output"];
        let kinds: Vec<&str> = output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["reasoning", "message"], "{calls}");
        let streamed = stream_for((Shape::Chat, Shape::Messages), &state, true, &ME, &[text.as_bytes()]);
        assert_eq!(streamed.result, Ok(()), "{calls}");
        let message = accumulate_messages(&streamed.out);
        assert_eq!(message["content"].as_array().map(Vec::len), Some(2), "{message}");
        assert_eq!((&message["content"][1]["text"], &message["stop_reason"]), (&json!("Hi"), &json!("end_turn")));
    }
}

#[test]
fn call_without_a_name_fails_a_complete_answer() {
    for (from, body) in [
        (Shape::Chat, r#"{"choices":[{"message":{"content":"a","tool_calls":[{"id":"c","function":{"name":""}}]}}]}"#),
        (Shape::Messages, r#"{"content":[{"type":"tool_use","id":"t","input":{}}],"stop_reason":"tool_use"}"#),
        (
            Shape::Responses,
            r#"{"status":"completed","output":[{"type":"function_call","call_id":"c","arguments":"{}"}]}"#,
        ),
    ] {
        for to in Shape::ALL.into_iter().filter(|to| *to != from) {
            let read = reply((from, to), body.as_bytes(), &TranslationState::default(), &ME, &mut Vec::new());
            assert_eq!(read, Err(Broken::NotJson), "{to:?}: {body}");
        }
    }
}

/// A stream within one format of which nothing has arrived.
fn same(from: ModelEndpoint, choices: u32) -> SseStream {
    let mut stream = SseStream::same(from, true, 1 << 20);
    stream.awaits(choices);
    stream
}

#[test]
fn each_choice_of_a_stream_has_an_end_of_its_own() {
    for (from, member) in [(ModelEndpoint::CHAT, "\"delta\":{\"content\":\"A\"}"), (COMPLETIONS, "\"text\":\"A\"")] {
        let event = |index: u32, rest: &str| format!("data: {{\"choices\":[{{\"index\":{index},{rest}}}]}}\n\n");
        let stop = |index| event(index, "\"delta\":{},\"text\":\"\",\"finish_reason\":\"stop\"");
        let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
        let mut stream = same(from, 2);
        let mut feed = |stream: &mut SseStream, text: &str| {
            stream.feed(text.as_bytes(), &mut pool, &ME, &mut out).unwrap();
            (stream.finish_seen(), stream.may_be_done())
        };
        // A reason that is repeated before the other choice begins, and after.
        assert_eq!(feed(&mut stream, &(event(0, member) + &stop(0) + &stop(0))), (false, true));
        assert_eq!(feed(&mut stream, &(event(1, member) + &stop(0))), (false, false));
        assert_eq!(feed(&mut stream, &stop(1)), (true, true));
        // A server that sends one of two choices, and no other end.
        let mut stream = same(from, 2);
        assert_eq!(feed(&mut stream, &(event(0, member) + &stop(0))), (false, true));
        assert_eq!(stream.end(&mut pool, &ME, &mut out), Ok(()));
    }
}

#[test]
fn time_in_milliseconds_is_replaced_in_every_chunk() {
    let text = chunk("\"content\":\"a\"", "").replace("{\"id\"", "{\"created\":1700000000123,\"id\"").repeat(3) + STOP;
    let (played, _) =
        play(Way { from: ModelEndpoint::CHAT, to: Shape::Chat, choices: 1, json_tool: false }, &events_of(&text));
    let created = format!("\"created\":{},", ME.created);
    assert_eq!(played.out.matches(&created).count(), 5, "{}", played.out);
    assert_eq!(played.out.matches("\"created\"").count(), 5, "{}", played.out);
}

#[test]
fn call_without_arguments_and_end_has_an_empty_object() {
    let text = named("message_start", ",\"message\":{}")
        + &named(
            "content_block_start",
            ",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\"}",
        )
        + &named("message_delta", ",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":7}")
        + &named("message_stop", "");
    let streamed = stream(Shape::Messages, &TranslationState::default(), true, &ME, &[text.as_bytes()]);
    let message = &accumulate_chat(&streamed.out)["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{}", "{}", streamed.out);
}

#[test]
fn last_event_without_a_blank_line_shows_no_cost_of_the_provider() {
    let image = ModelEndpoint::passthrough(Passthrough::Images);
    let chat =
        chunk("\"content\":\"a\"", ",\"index\":0,\"finish_reason\":\"stop\"") + "data: {\"choices\":[],\"usage\":";
    let start = named("message_start", ",\"message\":{}");
    for (from, text) in [
        (ModelEndpoint::CHAT, chat),
        (
            ModelEndpoint::MESSAGES,
            start
                + "event: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"},\"type\":\"message_delta\",\"usage\":",
        ),
        (
            image,
            "event: image_generation.completed\ndata: {\"type\":\"image_generation.completed\",\"usage\":".to_owned(),
        ),
    ] {
        let usage =
            "{\"prompt_tokens\":9,\"completion_tokens\":7,\"input_tokens\":9,\"output_tokens\":7,\"cost\":0.5}}";
        for end in ["", "\n", "\r", "\r\n", "\n\n"] {
            let mut stream = same(from, 1);
            let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
            stream.feed(format!("{text}{usage}{end}").as_bytes(), &mut pool, &ME, &mut out).unwrap();
            assert_eq!(stream.end(&mut pool, &ME, &mut out), Ok(()), "{from:?}");
            let out = String::from_utf8(out).unwrap();
            assert!(out.contains("\"usage\"") && !out.contains("cost") && out.ends_with("\n\n"), "{from:?}: {out}");
        }
    }
}

#[test]
fn required_json_is_the_first_call_of_its_tool_alone() {
    let state = TranslationState { json_tool: true, ..TranslationState::default() };
    let call = |index: usize, json: &str| {
        format!(
            "{{\"index\":{index},\"id\":\"c{index}\",\"function\":{{\"name\":\"json_response\",\"arguments\":\"{json}\"}}}}"
        )
    };
    let calls = format!("\"tool_calls\":[{},{}]", call(0, "{\\\"a\\\":1}"), call(1, "{\\\"a\\\":2}"));
    let whole =
        format!("{{\"choices\":[{{\"message\":{{{calls}}},\"finish_reason\":\"tool_calls\"}}],\"usage\":{{}}}}");
    let text = chunk(&calls, "") + STOP;
    for to in [Shape::Messages, Shape::Responses] {
        let mut out = Vec::new();
        reply((Shape::Chat, to), whole.as_bytes(), &state, &ME, &mut out).unwrap();
        let streamed = stream_for((Shape::Chat, to), &state, true, &ME, &[text.as_bytes()]);
        assert_eq!(streamed.result, Ok(()));
        for out in [String::from_utf8(out).unwrap(), streamed.out] {
            assert!(out.contains("{\\\"a\\\":1}") && !out.contains("\\\":2"), "{to:?}: {out}");
            assert!(!out.contains("json_response") && !out.contains("\"tool_use\""), "{to:?}: {out}");
        }
    }
}

#[test]
fn document_after_blanks_is_a_complete_answer() {
    let body = r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{}}"#;
    for blanks in ["", " ", "\n", " \r\n\t", "\n\n  "] {
        let mut stream = same(ModelEndpoint::CHAT, 1);
        let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
        for piece in format!("{blanks}{body}").as_bytes().chunks(7) {
            stream.feed(piece, &mut pool, &ME, &mut out).unwrap();
        }
        let document = stream.take_document().map(|mut document| {
            let bytes = document.bytes().trim_ascii().to_vec();
            document.release(&mut pool);
            bytes
        });
        assert_eq!(document.as_deref(), Some(body.as_bytes()), "{blanks:?}");
    }
}

#[test]
fn texts_beside_half_a_character_are_counted_once() {
    let relayed = |reasoning: &str| {
        let half = |content: &str| chunk(&format!("\"reasoning\":\"{reasoning}\",\"content\":\"{content}\""), "");
        let text = half("a\\ud83d") + &half("\\ude00b") + STOP;
        let way = Way { from: ModelEndpoint::CHAT, to: Shape::Chat, choices: 1, json_tool: false };
        play(way, &[text.as_bytes()]).0.observed.relayed_tokens
    };
    let (one, two) = (relayed("some words of reasoning "), relayed(&"some words of reasoning ".repeat(2)));
    assert!(two - one < one, "{one} tokens, {two} for twice the text");
}
