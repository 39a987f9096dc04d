//! Fixtures for known bugs of other gateways that concern the translation.
//!
//! A fixture is `tests/fixtures/cross/row-NN-name.txt`. Its first line is a comment that names the source. A case
//! begins with `=== request|reply|stream chat|messages` (the format of its input) and options, has an input after `---
//! in` and the expected output after `--- out`. A reply or stream is translated with the state of the preceding request
//! in the same file. Stream events are abbreviated:
//!
//! - chat: `delta {…}`, `finish "stop"`, `usage {…}`, `chunk {…}` (all members except id, model and created), `done`
//! - messages: the data of one event; `start` is the usual `message_start`
//! - both: `raw …` for literal text, `ping`, and in an output `fault …` for the way it ended
//!
//! `BLESS=1 cargo test --lib every_row` writes the actual output; read it before you keep it.

use super::*;
use std::fmt::Write as _;
use std::sync::Arc;

/// Tests that cover a row without a fixture, and the reason.
const ELSEWHERE: &[(u32, &str)] = &[
    (60, "same shape: tap tests `stream_without_its_end_is_incomplete`; cross shape: row 57's last case"),
    (72, "the gateway asks upstreams for identity encoding and writes its own heads; no body is decoded here"),
    (73, "sizes are the gateway's: `max_body`, checked before a byte is read"),
    (75, "heartbeats and idle deadlines are the gateway's; `Fed` distinguishes pings from events"),
    (76, "count_tokens is answered locally and never metered by the gateway; here it is only an estimate"),
    (77, "`prompt_estimate_includes_system_and_tools_but_not_base64` in the request tests"),
    (78, "the model list is the gateway's"),
    (79, "credentials are the gateway's"),
    (80, "credentials are the gateway's"),
];

const ROWS: u32 = 80;

/// The delta that opens a chat stream.
const ROLE: &str = r#"{"role":"assistant","content":"","refusal":null}"#;

#[derive(Default, Clone)]
pub(super) struct Case {
    pub(super) head: String,
    pub(super) input: String,
    pub(super) out: String,
}

pub(super) fn cases(text: &str) -> (String, Vec<Case>) {
    let mut parts = text.split("=== ");
    let comment = parts.next().unwrap().to_owned();
    let case = |part: &str| {
        let (head, rest) = part.split_once('\n').unwrap();
        let (_, rest) = rest.split_once("--- in\n").unwrap_or_else(|| panic!("no input: {part}"));
        let (input, out) = rest.split_once("--- out\n").unwrap_or((rest, ""));
        Case { head: head.to_owned(), input: input.trim().to_owned(), out: out.trim().to_owned() }
    };
    (comment, parts.map(case).collect())
}

pub(super) fn capabilities(head: &str) -> Capabilities {
    let mut capabilities = Capabilities::default();
    for word in head.split_whitespace().skip(2) {
        match word.split_once('=').unwrap_or((word, "")) {
            ("sampling", _) => capabilities.sampling = false,
            ("mid_system", value) => capabilities.mid_conversation_system = Some(value != "false"),
            ("replay", _) => capabilities.replay_reasoning = true,
            ("max_completion_tokens", _) => capabilities.max_completion_tokens = true,
            ("ceiling", n) => capabilities.max_output_tokens = Some(n.parse().unwrap()),
            ("default_max", n) => capabilities.default_max_tokens = n.parse().unwrap(),
            ("tool", _) => capabilities.structured_output = Structured::Tool,
            ("words", _) => capabilities.structured_output = Structured::Instruction,
            ("effort", _) => capabilities.effort = true,
            ("effort_without_tools", _) => (capabilities.effort, capabilities.effort_with_tools) = (true, false),
            ("strict", _) => capabilities.strict_tools = true,
            ("drop", list) => capabilities.drop_params = list.split(',').map(str::to_owned).collect(),
            ("refuses", list) => {
                Arc::make_mut(&mut capabilities.rules).refuses = list.split(',').map(str::to_owned).collect();
            }
            ("never", pair) => {
                let (first, second) = pair.split_once('+').unwrap();
                Arc::make_mut(&mut capabilities.rules).never_together = vec![[first.to_owned(), second.to_owned()]];
            }
            ("no_user_after_tool", _) => Arc::make_mut(&mut capabilities.rules).user_after_tool = false,
            ("call_id", n) => Arc::make_mut(&mut capabilities.rules).call_id_length = n.parse().unwrap(),
            ("show_usage", _) => {}
            other => panic!("unknown option {other:?}"),
        }
    }
    capabilities
}

/// Expands short lines to a stream's bytes. `ours`: written by the gateway, otherwise by an upstream.
fn expand(shape: Shape, ours: bool, show_usage: bool, text: &str) -> String {
    let mut out = String::new();
    let (id, model) = if ours { (ME_ID, ME.model) } else { ("c1", "upstream-model") };
    let head = format!(
        "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":1795158000,\"model\":\"{model}\","
    );
    let tail = if ours && show_usage { "],\"usage\":null}\n\n" } else { "]}\n\n" };
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let choice = |delta: &str, finish: &str| {
            format!(
                "{head}\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\
                 \"finish_reason\":{finish}}}{tail}"
            )
        };
        match (shape, word) {
            (_, "raw") => write!(out, "{}\n\n", rest.replace("\\n", "\n")).unwrap(),
            (_, "fault") => {}
            (Shape::Chat, "ping") => out.push_str(":\n\n"),
            (Shape::Chat, "role") => out.push_str(&choice(ROLE, "null")),
            (Shape::Chat, "delta") => out.push_str(&choice(rest, "null")),
            (Shape::Chat, "finish") => out.push_str(&choice("{}", rest)),
            (Shape::Chat, "usage") => write!(out, "{head}\"choices\":[],\"usage\":{rest}}}\n\n").unwrap(),
            (Shape::Chat, "chunk") => write!(out, "{head}{}\n\n", &rest[1..]).unwrap(),
            (Shape::Chat, "done") => out.push_str("data: [DONE]\n\n"),
            (Shape::Messages, "ping") => out.push_str("event: ping\ndata: {\"type\":\"ping\"}\n\n"),
            (Shape::Messages, "start") => write!(
                out,
                "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"{id}\",\
                 \"type\":\"message\",\"role\":\"assistant\",\"model\":\"{model}\",\"content\":[],\
                 \"stop_reason\":null,\"stop_sequence\":null,\"stop_details\":null,\"container\":null,\
                 \"usage\":{{\"input_tokens\":7,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\
                 \"output_tokens\":0,\"output_tokens_details\":null,\"cache_creation\":null,\"inference_geo\":null,\
                 \"server_tool_use\":null,\"service_tier\":null}}}}}}\n\n"
            )
            .unwrap(),
            (Shape::Messages, _) => {
                let kind = line.split("\"type\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
                write!(out, "event: {kind}\ndata: {line}\n\n").unwrap();
            }
            other => panic!("unknown line {other:?}"),
        }
    }
    out
}

/// The inverse, for blessing: the gateway's bytes to short lines.
fn shorten(shape: Shape, show_usage: bool, outcome: &Outcome) -> String {
    let mut short = String::new();
    for event in outcome.out.split("\n\n").filter(|event| !event.is_empty()) {
        let data = event.split("data: ").nth(1).unwrap_or("");
        let line = match (shape, data) {
            (Shape::Chat, "") | (Shape::Messages, "{\"type\":\"ping\"}") => "ping".to_owned(),
            (Shape::Chat, "[DONE]") => "done".to_owned(),
            (Shape::Messages, _) if data.contains("message_start") => "start".to_owned(),
            (Shape::Messages, _) => data.to_owned(),
            _ => {
                let between = |from: &str, to: &str| {
                    let rest = &data[data.find(from)? + from.len()..];
                    Some(rest[..rest.rfind(to)?].to_owned())
                };
                let delta = between("\"delta\":", ",\"logprobs\"").unwrap_or_default();
                match delta.as_str() {
                    "" => format!("usage {}", between("\"usage\":", "}").unwrap()),
                    "{}" => format!("finish {}", between("\"finish_reason\":", "}]").unwrap()),
                    _ if delta.contains("\"role\"") => "role".to_owned(),
                    _ => format!("delta {delta}"),
                }
            }
        };
        assert_eq!(expand(shape, true, show_usage, &line), format!("{event}\n\n"), "not as usual: {event}");
        short.push_str(&line);
        short.push('\n');
    }
    short
}

fn fault_text(result: &Result<(), StreamFault>) -> String {
    match result {
        Ok(()) => String::new(),
        Err(StreamFault::Error(error)) => {
            format!("fault error {} {:?}\n", error.kind.as_deref().unwrap_or("-"), error.message)
        }
        Err(fault) => format!("fault {fault:?}\n"),
    }
}

/// Output of a case, in the fixture's notation; `state` is carried from a request to the cases that follow it.
fn run(case: &Case, state: &mut TranslationState) -> String {
    let mut words = case.head.split_whitespace();
    let kind = words.next().unwrap();
    let from = if words.next() == Some("chat") { Shape::Chat } else { Shape::Messages };
    let to = if from == Shape::Chat { Shape::Messages } else { Shape::Chat };
    let show_usage = case.head.contains("show_usage");
    match kind {
        "request" => match request(from, &case.input, "upstream-model", &capabilities(&case.head)) {
            Ok((value, left)) => {
                *state = left;
                value.to_string()
            }
            Err(message) => format!("400 {message}"),
        },
        "reply" => {
            let mut out = Vec::new();
            match reply((from, other(from)), case.input.as_bytes(), state, &ME, &mut out) {
                Ok(_) => serde_json::from_slice::<Value>(&out).unwrap().to_string(),
                Err(broken) => format!("broken {broken:?}"),
            }
        }
        "stream" => {
            let input = expand(from, false, false, &case.input);
            let outcome = stream_every_way(from, state, show_usage, &ME, &input);
            shorten(to, show_usage, &outcome) + &fault_text(&outcome.result)
        }
        other => panic!("unknown kind {other}"),
    }
}

fn same(got: &str, want: &str) -> bool {
    match (serde_json::from_str::<Value>(got), serde_json::from_str::<Value>(want)) {
        (Ok(got), Ok(want)) => got == want,
        _ => got.trim() == want.trim(),
    }
}

fn fixtures() -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if let Some(rest) = name.strip_prefix("row-") {
            found.push((rest[..2].parse().unwrap(), path));
        }
    }
    found.sort();
    found
}

#[test]
fn every_row_behaves_as_its_fixture_says() {
    for (row, path) in fixtures() {
        let text = std::fs::read_to_string(&path).unwrap();
        let (comment, cases) = cases(&text);
        assert!(
            comment.starts_with(&format!("# {row} ")),
            "{}: its first line must name row and source",
            path.display()
        );
        assert!(!cases.is_empty(), "{}", path.display());
        let (mut state, mut blessed) = (TranslationState::default(), comment);
        for case in &cases {
            let got = run(case, &mut state);
            if std::env::var_os("BLESS").is_some() {
                write!(blessed, "=== {}\n--- in\n{}\n--- out\n{}\n\n", case.head, case.input, got.trim()).unwrap();
            } else {
                assert!(same(&got, &case.out), "{}\n{}\n{}\n-- got\n{got}", path.display(), case.head, case.input);
            }
        }
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, blessed.trim_end().to_owned() + "\n").unwrap();
        }
    }
}

#[test]
fn every_row_has_a_fixture_or_a_test_elsewhere() {
    let here: Vec<u32> = fixtures().into_iter().map(|(row, _)| row).collect();
    for row in 1..=ROWS {
        let elsewhere = ELSEWHERE.iter().filter(|(other, why)| *other == row && !why.is_empty()).count();
        let fixtures = here.iter().filter(|own| **own == row).count();
        assert_eq!(fixtures + elsewhere, 1, "row {row}: {fixtures} fixtures, {elsewhere} entries elsewhere");
    }
}
