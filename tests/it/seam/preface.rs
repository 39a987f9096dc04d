//! Failover by content: for every pair of formats, a stream that fails after events without content leads to the next
//! target, costs nothing, and shows the client nothing. After the first content there is no failover.

use super::rig::{Rig, STREAM};
use tollgate::base::seam::Ending;

const NAMES: [&str; 3] = ["chat", "messages", "responses"];
const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// Events without content, of a chat, a messages and a responses provider: each with a part that no client may see.
const PREFACES: [&[&str]; 3] = [
    &[
        "data: {\"id\":\"hidden\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null,\"tool_calls\":[]}}],\"usage\":{\"prompt_tokens\":42000,\"completion_tokens\":0,\"total_tokens\":42000}}\n\n",
        "data: {\"id\":\"hidden\",\"choices\":[],\"prompt_filter_results\":[{\"prompt_index\":0}]}\n\n",
        "data: {\"id\":\"hidden\",\"choices\":[{\"index\":0,\"finish_reason\":null,\"content_filter_results\":{\"hate\":{}}}]}\n\n",
        "data: {\"id\":\"hidden\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}},{\"index\":1,\"delta\":{}}]}\n\n",
        ": comment\n\n",
    ],
    &[
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"hidden\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"um\",\"content\":[],\"stop_reason\":null,\"usage\":{\"input_tokens\":42000,\"output_tokens\":1}}}\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\",\"citations\":[]}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}}\n\n",
    ],
    &[
        "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"hidden\",\"object\":\"response\",\"status\":\"in_progress\",\"output\":[]}}\n\n",
        "event: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"sequence_number\":1,\"response\":{\"id\":\"hidden\",\"object\":\"response\",\"status\":\"in_progress\",\"output\":[]}}\n\n",
        "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"sequence_number\":2,\"output_index\":0,\"item\":{\"id\":\"m\",\"type\":\"message\",\"status\":\"in_progress\",\"role\":\"assistant\",\"content\":[]}}\n\n",
        "event: response.content_part.added\ndata: {\"type\":\"response.content_part.added\",\"sequence_number\":3,\"item_id\":\"m\",\"output_index\":0,\"content_index\":0,\"part\":{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[]}}\n\n",
    ],
];

/// The first content, and the end of the stream.
const CONTENT: [&str; 3] = [
    "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"heron\"}}]}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"heron\"}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"item_id\":\"m\",\"output_index\":0,\"content_index\":0,\"delta\":\"heron\"}\n\n",
];
const ENDS: [&str; 3] = [
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}\n\ndata: [DONE]\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":7,\"output_tokens\":2}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":5,\"response\":{\"id\":\"r\",\"object\":\"response\",\"status\":\"completed\",\"output\":[{\"type\":\"message\",\"id\":\"m\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"heron\",\"annotations\":[]}]}],\"usage\":{\"input_tokens\":7,\"output_tokens\":2,\"total_tokens\":9}}}\n\n",
];

/// A failure before the end of a stream.
#[derive(Copy, Clone, Debug)]
enum Fails {
    Event,
    Fin,
    Reset,
    EndOfBody,
    Garbage,
    Silence,
    /// A formal end, of a chat stream only.
    Done,
}

const ERRORS: [&str; 3] = [
    "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n",
    "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
    "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":9,\"response\":{\"id\":\"hidden\",\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"The model is at capacity.\"},\"output\":[]}}\n\n",
];

fn chunk(events: &str) -> String {
    format!("{:x}\r\n{events}\r\n", events.len())
}

/// A gateway with a model for each provider format, of two targets.
fn rig() -> Rig {
    let mut lines: Vec<(String, String)> = vec![
        ("upstream".into(), "idle_timeout = \"5s\"".into()),
        ("upstream".into(), "request_timeout = \"20s\"".into()),
        ("server".into(), "heartbeat_after = \"3s\"".into()),
    ];
    for (format, name) in NAMES.iter().enumerate() {
        for at in [1, 2] {
            let provider = format!("provider {name}{at}");
            lines.push((provider.clone(), format!("shape = \"{name}\"")));
            lines.push((provider.clone(), format!("base_url = \"http://10.{format}.0.{at}/v1\"")));
            lines.push((provider, "breaker_failures = 0".into()));
        }
        let model = format!("model {name}");
        let target = |at: u32| format!("{{ provider = \"{name}{at}\", model = \"um\" }}");
        for line in ["context = \"256K\"", "input_price = 1.0", "output_price = 1.0"] {
            lines.push((model.clone(), line.into()));
        }
        lines.push((model, format!("targets = [{}, {}]", target(1), target(2))));
    }
    let lines: Vec<(&str, &str)> = lines.iter().map(|(section, line)| (section.as_str(), line.as_str())).collect();
    Rig::with(1, &lines)
}

/// Sends a streamed request of a client to the model of a provider format. Returns the connection to the first target.
fn ask(rig: &mut Rig, client: usize, provider: usize) -> String {
    let input = if client == 2 { "\"input\":\"hi\"" } else { "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" };
    let body = format!("{{\"model\":\"{}\",\"stream\":true,\"max_tokens\":50,{input}}}", NAMES[provider]);
    let body = if client == 2 { body.replace("max_tokens", "max_output_tokens") } else { body };
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        PATHS[client],
        rig.keys.texts["k0"],
        body.len()
    );
    rig.send("c1", format!("{head}{body}"));
    rig.asked().pop().expect("the first target is asked")
}

fn fail(rig: &mut Rig, label: &str, provider: usize, how: Fails) {
    match how {
        Fails::Event => rig.give(label, chunk(ERRORS[provider])),
        Fails::Garbage => rig.give(label, chunk("data: {\"a\":\n\n")),
        Fails::EndOfBody => rig.give(label, "0\r\n\r\n"),
        Fails::Done => rig.give(label, chunk("data: [DONE]\n\n")),
        Fails::Fin => rig.world.finish(label, Ending::Fin).unwrap(),
        Fails::Reset => rig.world.finish(label, Ending::Broken).unwrap(),
        Fails::Silence => rig.wait(5_000),
    }
}

#[test]
fn stream_that_fails_before_its_first_content_leads_to_the_next_target() {
    use Fails::{Done, EndOfBody, Event, Fin, Garbage, Reset, Silence};
    let mut count = 0;
    for (client, provider) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        for held in 0..=PREFACES[provider].len() {
            for how in [Event, Fin, Reset, EndOfBody, Garbage, Silence, Done] {
                if matches!(how, Done) && provider != 0 || (held == 0 && matches!(how, Silence)) {
                    continue;
                }
                let name = format!("{} of {}, {how:?} after {held}", NAMES[client], NAMES[provider]);
                let mut rig = rig();
                let first = ask(&mut rig, client, provider);
                let mut events: String = PREFACES[provider][..held].concat();
                if matches!(how, Silence) && held > 0 && events.ends_with("comment\n\n") {
                    events.truncate(events.len() - ": comment\n\n".len());
                }
                rig.answer(&first, &format!("{STREAM}{}", if held > 0 { chunk(&events) } else { String::new() }));
                assert_eq!(rig.got("c1"), "", "{name}: held");
                fail(&mut rig, &first, provider, how);
                let second = rig.asked().pop().unwrap_or_else(|| panic!("{name}: {}", rig.got("c1")));
                assert_ne!(second, first, "{name}");
                let all =
                    [&PREFACES[provider].concat().replace("42000", "7"), CONTENT[provider], ENDS[provider]].concat();
                rig.answer(&second, &format!("{STREAM}{}0\r\n\r\n", chunk(&all)));
                let got = rig.got("c1");
                assert!(got.starts_with("HTTP/1.1 200") && got.matches("heron").count() >= 1, "{name}: {got}");
                assert!(!got.contains("hidden") && !got.contains("error\":{"), "{name}: {got}");
                let row = rig.world.rows.pop_front().unwrap();
                assert_eq!((row.status, row.usage.uncached_in, row.usage.out, row.attempts), (200, 7, 2, 2), "{name}");
                count += 1;
            }
        }
    }
    assert!(count > 200, "{count}");
}

#[test]
fn after_the_first_content_there_is_no_other_target() {
    for (client, provider) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let name = format!("{} of {}", NAMES[client], NAMES[provider]);
        let mut rig = rig();
        let first = ask(&mut rig, client, provider);
        rig.answer(&first, &format!("{STREAM}{}", chunk(&PREFACES[provider].concat())));
        assert_eq!(rig.got("c1"), "", "{name}");
        rig.give(&first, chunk(CONTENT[provider]));
        let got = rig.got("c1");
        assert!(got.contains("heron"), "{name}: {got}");
        fail(&mut rig, &first, provider, Fails::Event);
        let got = rig.got("c1");
        assert!(rig.asked().is_empty() && got.contains("error"), "{name}: {got}");
        let row = rig.world.rows.pop_front().unwrap();
        assert!(row.status == 500 && row.usage.total() > 0, "{name}: {row:?}");
    }
}

#[test]
fn failure_before_any_content_costs_nothing_and_keeps_its_status() {
    for (client, provider) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let name = format!("{} of {}", NAMES[client], NAMES[provider]);
        let mut rig = rig();
        ask(&mut rig, client, provider);
        for _ in [1, 2] {
            let label = rig.asked().pop().unwrap_or_else(|| panic!("{name}"));
            rig.answer(&label, &format!("{STREAM}{}", chunk(&PREFACES[provider].concat())));
            fail(&mut rig, &label, provider, Fails::Event);
        }
        let got = rig.got("c1");
        assert!(got.starts_with("HTTP/1.1 500") && !got.contains("hidden"), "{name}: {got}");
        let row = rig.world.rows.pop_front().unwrap();
        assert_eq!((row.status, row.usage.total(), row.cost_nano), (500, 0, 0), "{name}");
    }
}

#[test]
fn heartbeats_go_out_while_events_are_held_and_failover_stays_possible() {
    for (client, provider) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let name = format!("{} of {}", NAMES[client], NAMES[provider]);
        let mut rig = rig();
        let first = ask(&mut rig, client, provider);
        rig.answer(&first, &format!("{STREAM}{}", chunk(&PREFACES[provider].concat())));
        rig.wait(3_000);
        let got = rig.got("c1");
        assert!(got.starts_with("HTTP/1.1 200") && !got.contains("hidden"), "{name}: {got}");
        rig.wait(2_000);
        let second = rig.asked().pop().unwrap_or_else(|| panic!("{name}: {}", rig.got("c1")));
        // `request_timeout` has begun again: the second target has time of its own.
        rig.wait(4_000);
        let all = [&PREFACES[provider].concat().replace("42000", "7"), CONTENT[provider], ENDS[provider]].concat();
        rig.answer(&second, &format!("{STREAM}{}0\r\n\r\n", chunk(&all)));
        let got = rig.got("c1");
        assert!(got.contains("heron") && !got.contains("hidden") && !got.contains("error\":{"), "{name}: {got}");
        // Events of a response are numbered without a gap.
        let number = |event: &str| event.split_once("\"sequence_number\":")?.1.split([',', '}']).next()?.parse().ok();
        let numbers: Vec<usize> = got.lines().filter_map(number).collect();
        assert!(client != 2 || numbers.iter().copied().eq(0..numbers.len()), "{name}: {got}");
        assert_eq!(rig.world.rows.pop_front().unwrap().usage.uncached_in, 7, "{name}");
    }
}

#[test]
fn events_without_content_are_held_up_to_a_bound() {
    for format in 0..3 {
        let mut rig = rig();
        let first = ask(&mut rig, format, format);
        let opening = PREFACES[format][0];
        let pad = |bytes: usize| opening.replacen("data: {", &format!("data: {{\"pad\":\"{}\",", "p".repeat(bytes)), 1);
        rig.answer(&first, &format!("{STREAM}{}", chunk(&pad(15_000))));
        assert_eq!(rig.got("c1"), "", "{}", NAMES[format]);
        rig.give(&first, chunk(&pad(2_000)));
        assert!(rig.got("c1").contains("pppp"), "{}", NAMES[format]);
        fail(&mut rig, &first, format, Fails::Event);
        assert!(rig.asked().is_empty() && rig.got("c1").contains("error"), "{}", NAMES[format]);
    }
}

#[test]
fn stream_that_ends_properly_without_content_is_an_answer() {
    for format in 0..2 {
        let mut rig = rig();
        let first = ask(&mut rig, format, format);
        let all = [&PREFACES[format].concat(), ENDS[format]].concat();
        rig.answer(&first, &format!("{STREAM}{}0\r\n\r\n", chunk(&all)));
        let got = rig.got("c1");
        assert!(got.starts_with("HTTP/1.1 200") && got.contains("stop"), "{got}");
        assert_eq!(rig.world.rows.pop_front().unwrap().status, 200);
    }
}

/// Events of a speech, an image and a transcription without content, and the first content of each.
const MEDIA: [(&str, &str, &[&str], &str); 4] = [
    (
        "/v1/audio/speech",
        r#"{"model":"media","input":"hi","voice":"a","stream_format":"sse"}"#,
        &[
            r#"{"type":"speech.audio.delta","audio":""}"#,
            r#"{"type":"speech.audio.created","id":"hidden","model":"up"}"#,
        ],
        r#"{"type":"speech.audio.delta","audio":"heron"}"#,
    ),
    (
        "/v1/images/generations",
        r#"{"model":"media","prompt":"hi","stream":true}"#,
        &[
            r#"{"type":"image_generation.in_progress","item_id":"hidden","created_at":7,"size":"1024x1024","quality":"high","background":"auto","output_format":"png"}"#,
            r#"{"type":"image_generation.partial_image","b64_json":"","partial_image_index":0,"usage":null}"#,
        ],
        r#"{"type":"image_generation.partial_image","b64_json":"heron","partial_image_index":0}"#,
    ),
    (
        "/v1/audio/transcriptions",
        "",
        &[r#"{"type":"transcript.text.delta","delta":"","logprobs":[]}"#],
        r#"{"type":"transcript.text.delta","delta":"heron"}"#,
    ),
    (
        "/v1/audio/transcriptions",
        "",
        &[
            r#"{"id":"hidden","object":"transcription.chunk","model":"up","choices":[{"delta":{"role":"assistant","content":""}}]}"#,
        ],
        r#"{"id":"x","object":"transcription.chunk","model":"up","choices":[{"delta":{"content":"heron"}}]}"#,
    ),
];

#[test]
fn media_events_without_content_are_held() {
    let form = ["model\"\r\n\r\nmedia", "stream\"\r\n\r\ntrue", "file\"; filename=a\r\n\r\nx"]
        .map(|part| format!("--b\r\nContent-Disposition: form-data; name=\"{part}\r\n"))
        .concat()
        + "--b--\r\n";
    for (path, body, preface, content) in MEDIA {
        let lines = [
            ("provider one", "shape = \"chat\""),
            ("provider one", "base_url = \"http://10.9.0.1/v1\""),
            ("provider two", "shape = \"chat\""),
            ("provider two", "base_url = \"http://10.9.0.2/v1\""),
            ("model media", "context = \"256K\""),
            ("model media", "input_price = 1.0"),
            ("model media", "output_price = 1.0"),
            ("model media", "serves = [\"speech\", \"images\", \"transcriptions\"]"),
            (
                "model media",
                "targets = [{ provider = \"one\", model = \"up\" }, { provider = \"two\", model = \"up\" }]",
            ),
        ];
        let mut rig = Rig::with(1, &lines);
        let (kind, body) = match body {
            "" => ("multipart/form-data; boundary=b", &*form),
            body => ("application/json", body),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            rig.keys.texts["k0"],
            body.len()
        );
        rig.send("c1", format!("{head}{body}"));
        let first = rig.asked().pop().unwrap_or_else(|| panic!("{path}: {}", rig.got("c1")));
        let event = |data: &str| chunk(&format!("data: {data}\n\n"));
        rig.answer(&first, &format!("{STREAM}{}", preface.iter().map(|data| event(data)).collect::<String>()));
        assert_eq!(rig.got("c1"), "", "{path}: held");
        if body == form {
            // A form is sent once: its events go out with the first content.
            rig.give(&first, event(content));
            assert!(rig.got("c1").contains("heron"), "{path}");
            continue;
        }
        rig.give(&first, event(r#"{"error":{"message":"overloaded","type":"server_error","code":503}}"#));
        let second = rig.asked().pop().unwrap_or_else(|| panic!("{path}: {}", rig.got("c1")));
        rig.answer(&second, &format!("{STREAM}{}", event(content)));
        let got = rig.got("c1");
        assert!(got.starts_with("HTTP/1.1 200") && got.contains("heron") && !got.contains("hidden"), "{path}: {got}");
        rig.give(&second, event(r#"{"error":{"message":"overloaded","type":"server_error","code":503}}"#));
        assert!(rig.asked().is_empty() && rig.got("c1").contains("error"), "{path}");
    }
}
