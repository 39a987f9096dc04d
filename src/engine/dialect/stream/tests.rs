use super::*;
use crate::dialect::Reported;
use crate::dialect::errors::ErrorText;
use crate::dialect::tests::{ME, ME_ID, cut_everywhere, fixture, fixtures};
use crate::wire::ModelEndpoint;

/// A chat stream for a messages client.
const TO_MESSAGES: (Shape, Shape) = (Shape::Chat, Shape::Messages);

/// Result of a stream.
#[derive(PartialEq, Debug)]
struct Outcome {
    out: String,
    observed: ObservedUsage,
    events: u32,
    result: Result<(), StreamFault>,
}

fn run(shape: Shape, show_usage: bool, max_event: usize, chunks: &[&[u8]]) -> Outcome {
    let mut stream = SseStream::same(ModelEndpoint::generate(shape), show_usage, max_event);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let (mut events, mut result) = (0, Ok(()));
    for chunk in chunks {
        // As the gateway does. A text in one piece never matches a template.
        let alike = stream.feed_alike(chunk, &mut pool, &mut out);
        events += u32::from(alike > 0);
        match stream.feed(&chunk[alike..], &mut pool, &ME, &mut out) {
            Ok(fed) => events += fed.events,
            Err(fault) => result = Err(fault),
        }
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        result = stream.end(&mut pool, &ME, &mut out);
    }
    stream.release(&mut pool);
    assert_eq!(pool.lent(), 0);
    Outcome { out: String::from_utf8(out).unwrap(), observed: stream.observed(), events, result }
}

/// Feeds it whole, cut at every byte, and byte by byte; all results must be equal.
fn run_every_way(shape: Shape, show_usage: bool, text: &[u8]) -> Outcome {
    let whole = run(shape, show_usage, 1 << 20, &[text]);
    for pieces in cut_everywhere(text) {
        let cut = run(shape, show_usage, 1 << 20, &pieces);
        // The number of events before a failure depends on how the stream is cut.
        let events = if whole.result.is_ok() { cut.events } else { whole.events };
        let cut = Outcome { events, ..cut };
        assert_eq!(cut, whole, "after {} bytes, then every {}", pieces[0].len(), pieces.get(1).map_or(0, |p| p.len()));
    }
    whole
}

fn chat(text: &str) -> Outcome {
    run_every_way(Shape::Chat, false, text.as_bytes())
}

fn messages(text: &str) -> Outcome {
    run_every_way(Shape::Messages, false, text.as_bytes())
}

/// Expected output for a chat fixture: Tollgate's id and model, LF framing, comments without text.
fn expected_chat(text: &str, show_usage: bool) -> String {
    let text = text.replace('\r', "").replace("data:{", "data: {");
    let mut out = String::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let usage_only = block.contains("\"choices\":[]") && block.contains("\"usage\":{");
        if block.starts_with(':') {
            out.push_str(":\n\n");
        } else if !usage_only || show_usage {
            out.push_str(block);
            out.push_str("\n\n");
        }
    }
    for id in ["\"chatcmpl-Up1\"", "\"c1\""] {
        out = out.replace(id, "\"req_5f1c9a7e3b2d4c60\"");
    }
    out.replace("\"gpt-4o-mini\"", "\"team-fast\"")
}

/// A stream without the chunk of estimated usage before its end.
fn without_estimate(stream: &str) -> String {
    let body = stream.strip_suffix("data: [DONE]\n\n").unwrap();
    let (before, chunk) = body[..body.len() - 2].rsplit_once("\n\n").unwrap();
    assert!(chunk.contains("\"choices\":[],\"usage\":{\"prompt_tokens\":7,"), "{chunk}");
    format!("{before}\n\ndata: [DONE]\n\n")
}

#[test]
fn chat_streams_pass_unchanged_except_for_id_and_model() {
    for (name, text) in fixtures(".upstream.chat.stream.sse") {
        for show_usage in [false, true] {
            let outcome = run_every_way(Shape::Chat, show_usage, &text);
            let mut want = expected_chat(std::str::from_utf8(&text).unwrap(), show_usage);
            if name.starts_with("09-error") {
                want.truncate(want.find("data: {\"error\"").unwrap());
                let error = ErrorText {
                    message: "The server had an error".to_owned(),
                    kind: Some("server_error".to_owned()),
                    ..ErrorText::default()
                };
                assert_eq!(outcome.result, Err(StreamFault::Error(error)));
            } else {
                assert_eq!(outcome.result, Ok(()), "{name}");
            }
            if name.starts_with("09-no-done") {
                want.push_str("data: [DONE]\n\n");
            }
            let want = want.trim_start_matches(":\n\n");
            let unreported = show_usage && outcome.result.is_ok() && !want.contains("\"prompt_tokens\"");
            assert_eq!(if unreported { without_estimate(&outcome.out) } else { outcome.out }, want, "{name}");
        }
    }
}

#[test]
fn messages_streams_pass_unchanged_except_for_the_start() {
    for (name, text) in fixtures(".upstream.messages.stream.sse") {
        let outcome = run_every_way(Shape::Messages, false, &text);
        let text = String::from_utf8(text).unwrap();
        let mut want = text.replace("\"msg_01Up\"", "\"req_5f1c9a7e3b2d4c60\"");
        want = want.replace("\"claude-sonnet-4-6\"", "\"team-fast\"").replace(": keepalive\r\n\r\n", "");
        if text.contains('\r') {
            // Only the rewritten event has Tollgate's line ends.
            let from = want.find("event: message_start").unwrap();
            let to = want.find("event: content_block_start").unwrap();
            want = format!("{}{}{}", &want[..from], want[from..to].replace('\r', ""), &want[to..]);
        }
        if name.starts_with("09-error") {
            want.truncate(want.find("event: error").unwrap());
            let error = ErrorText {
                message: "Overloaded".to_owned(),
                kind: Some("overloaded_error".to_owned()),
                ..ErrorText::default()
            };
            assert_eq!(outcome.result, Err(StreamFault::Error(error)));
        } else {
            assert_eq!(outcome.result, Ok(()), "{name}");
        }
        assert_eq!(outcome.out, want, "{name}");
    }
}

#[test]
fn usage_is_read_in_both_formats() {
    let seen = run_every_way(Shape::Chat, false, &fixture("02-tools-call.upstream.chat.stream.sse")).observed;
    let want = Reported { input: Some(150), cache_read: Some(0), output: Some(60), ..Reported::default() };
    assert_eq!(seen.reported, want);
    assert!((15..60).contains(&seen.relayed_tokens), "{}", seen.relayed_tokens);
    let seen = run_every_way(Shape::Messages, false, &fixture("05-thinking.upstream.messages.stream.sse")).observed;
    let want = Reported {
        input: Some(15),
        cache_read: Some(0),
        cache_write: Some(0),
        output: Some(48),
        reasoning: Some(41),
        ..Reported::default()
    };
    assert_eq!(seen.reported, want);
}

fn chunk(rest: &str) -> String {
    format!("data: {{\"id\":\"x\",\"model\":\"y\",{rest}}}\n\n")
}

const FINISH: &str = r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#;

#[test]
fn usage_is_found_at_every_position_in_a_chat_stream() {
    let usage = |prompt: u64, completion: u64| {
        format!("\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}}}")
    };
    let reported = |stream: String| {
        let outcome = chat(&(stream + "data: [DONE]\n\n"));
        assert_eq!(outcome.result, Ok(()));
        let seen = outcome.observed.reported;
        (seen.input, seen.output, outcome.out.matches("\"usage\"").count())
    };
    // On the finish chunk: passed on unchanged.
    assert_eq!(reported(chunk(&format!("{FINISH},{}", usage(9, 4)))), (Some(9), Some(4), 1));
    // On a separate chunk: withheld.
    let own = chunk(FINISH) + &chunk(&format!("\"choices\":[],{}", usage(9, 4)));
    assert_eq!(reported(own), (Some(9), Some(4), 0));
    // On a chunk without a `choices` member.
    assert_eq!(reported(chunk(FINISH) + &chunk(&usage(9, 4))), (Some(9), Some(4), 0));
    // Repeated and cumulative on each chunk: the last one counts.
    let content = r#""choices":[{"index":0,"delta":{"content":"a"}}]"#;
    let cumulative = chunk(&format!("{content},{}", usage(9, 1))) + &chunk(&format!("{FINISH},{}", usage(9, 2)));
    assert_eq!(reported(cumulative), (Some(9), Some(2), 2));
    // `usage: null` erases nothing.
    let null = chunk(&format!("{content},{}", usage(9, 1))) + &chunk(&format!("{FINISH},\"usage\":null"));
    assert_eq!(reported(null), (Some(9), Some(1), 2));
    // An empty list of choices without usage is not a usage chunk: it passes.
    let filter = chunk("\"choices\":[],\"prompt_filter_results\":[]") + &chunk(FINISH);
    assert_eq!(chat(&(filter + "data: [DONE]\n\n")).out.matches("prompt_filter_results").count(), 1);
}

#[test]
fn usage_of_start_and_delta_is_merged() {
    let usage = r#"{"input_tokens":21,"cache_read_input_tokens":5,"output_tokens":1}"#;
    let message = format!(r#"{{"id":"m","model":"c","usage":{usage}}}"#);
    let start = format!("event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{message}}}\n\n");
    let delta = |usage: &str| {
        format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\
             \"usage\":{usage}}}\n\n"
        )
    };
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let reported = |usage: &str| {
        let outcome = messages(&(start.clone() + &delta(usage) + stop));
        assert_eq!(outcome.result, Ok(()));
        let seen = outcome.observed.reported;
        (seen.input, seen.cache_read, seen.cache_write, seen.output)
    };
    assert_eq!(reported(r#"{"output_tokens":12}"#), (Some(21), Some(5), None, Some(12)));
    let all = r#"{"input_tokens":22,"cache_read_input_tokens":6,"cache_creation_input_tokens":2,"output_tokens":12}"#;
    assert_eq!(reported(all), (Some(22), Some(6), Some(2), Some(12)));
    assert_eq!(reported(r#"{"input_tokens":null,"output_tokens":3}"#), (Some(21), Some(5), None, Some(3)));
    // The count in the first event is not the final one.
    assert_eq!(reported("null"), (Some(21), Some(5), None, None));
}

#[test]
fn only_top_level_members_are_replaced_and_missing_ones_added() {
    let text = concat!(
        "data: {\"object\":\"o\",\"choices\":[{\"delta\":{\"content\":\"x \\\"model\\\":\\\"y\\\"\",\"id\":\"call\",",
        "\"model\":\"inner\"},\"finish_reason\":\"stop\"}],\"m\\u006fdel\":{\"a\":[1]},\"id\":null}\n\n",
        "data: {}\n\ndata: { \"choices\" : [] }\n\ndata: [DONE]\n\n"
    );
    let want = concat!(
        "data: {\"created\":1795158000,\"object\":\"o\",\"choices\":[{\"delta\":{\"content\":\"x \\\"model\\\":\\\"y\\\"\",",
        "\"id\":\"call\",\"model\":\"inner\"},\"finish_reason\":\"stop\"}],\"m\\u006fdel\":\"team-fast\",",
        "\"id\":\"req_5f1c9a7e3b2d4c60\"}\n\n",
        "data: {\"id\":\"req_5f1c9a7e3b2d4c60\",\"object\":\"chat.completion.chunk\",\"created\":1795158000,",
        "\"model\":\"team-fast\",\"choices\":[]}\n\n",
        "data: {\"id\":\"req_5f1c9a7e3b2d4c60\",\"object\":\"chat.completion.chunk\",\"created\":1795158000,",
        "\"model\":\"team-fast\", \"choices\" : [] }\n\ndata: [DONE]\n\n"
    );
    assert_eq!(chat(text).out, want);
}

#[test]
fn start_without_id_gets_one_and_unknown_events_pass() {
    let text = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"role\":\"assistant\"}}\n\n\
                event: brand_new\nid: 7\ndata: {\"type\":\"brand_new\",\"message\":{\"id\":\"kept\"},\"x\":1.0}\n\n\
                data: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
                event: ping\ndata: {\"type\": \"ping\"}\n\n\
                data: [DONE]\n\n\
                event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
                \"usage\":{\"output_tokens\":1}}\n\n\
                event: message_stop\ndata: {\"type\":\"message_stop\"}\n\nevent: late\ndata: {}\n\n";
    let outcome = messages(text);
    let want = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"req_5f1c9a7e3b2d4c60\",\
                \"model\":\"team-fast\",\"role\":\"assistant\"}}\n\n\
                event: brand_new\nid: 7\ndata: {\"type\":\"brand_new\",\"message\":{\"id\":\"kept\"},\"x\":1.0}\n\n\
                event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
                event: ping\ndata: {\"type\": \"ping\"}\n\n\
                event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
                \"usage\":{\"output_tokens\":1}}\n\n\
                event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    assert_eq!((outcome.out.as_str(), outcome.events), (want, 5));
}

#[test]
fn comments_pings_and_empty_events_are_not_events_for_chat_clients() {
    let text = ": secret provider\n\ndata: {\"id\":\"a\",\"model\":\"b\",\"choices\":[]}\n\n\
                : secret provider\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: ping\n\nretry: 3000\n\nid: 4\n\n\
                data:\n\nevent: message\n\
                data: {\"id\":\"a\",\"model\":\"b\",\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
    let outcome = chat(text);
    let want = "data: {\"object\":\"chat.completion.chunk\",\"created\":1795158000,\"id\":\"req_5f1c9a7e3b2d4c60\",\
                \"model\":\"team-fast\",\"choices\":[]}\n\n:\n\n:\n\n:\n\n\
                data: {\"object\":\"chat.completion.chunk\",\"created\":1795158000,\"id\":\"req_5f1c9a7e3b2d4c60\",\
                \"model\":\"team-fast\",\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    assert_eq!((outcome.out.as_str(), outcome.events), (want, 2));
}

#[test]
fn chunk_without_choices_gets_an_empty_list() {
    // OpenAI's Python helper iterates over them. Such a chunk is in `row-56-chunks-without-choices.txt`.
    let text = "data: {\"id\":\"a\",\"object\":\"\",\"created\":7,\"model\":\"b\",\"choices\":null}\n\n\
                data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
    let want = "data: {\"id\":\"req_5f1c9a7e3b2d4c60\",\"object\":\"chat.completion.chunk\",\"created\":7,\
                \"model\":\"team-fast\",\"choices\":[]}\n\n";
    let out = chat(text).out;
    assert_eq!(out.split_inclusive("\n\n").next(), Some(want));
}

#[test]
fn data_of_several_lines_is_written_in_one() {
    let text = "data: {\"id\":1,\ndata: \"model\":2,\ndata: \"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
    let want = "data: {\"object\":\"chat.completion.chunk\",\"created\":1795158000,\"id\":\"req_5f1c9a7e3b2d4c60\", \
                \"model\":\"team-fast\", \
                \"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    assert_eq!(chat(text).out, want);
}

#[test]
fn stream_without_its_end_is_incomplete() {
    let start = chunk(r#""choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]"#);
    assert_eq!(chat(&start).result, Err(StreamFault::Incomplete));
    assert_eq!(chat("").result, Err(StreamFault::Incomplete));
    assert_eq!(chat(&(start.clone() + "data: {\"choi")).result, Err(StreamFault::Incomplete));
    // The last event lacks only its blank line and is complete.
    assert_eq!(chat((start.clone() + &chunk(FINISH)).trim_end()).result, Ok(()));
    assert_eq!(chat(&(start.clone() + &chunk(FINISH) + "data: [DONE]")).result, Ok(()));
    assert_eq!(chat(&(start + "data: [DONE]")).result, Err(StreamFault::Incomplete));
    let open = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    assert_eq!(messages(open).result, Err(StreamFault::Incomplete));
}

#[test]
fn messages_stream_that_lacks_only_its_stop_gets_one() {
    let delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
                 \"usage\":{\"output_tokens\":1}}\n\n";
    let outcome = messages(delta);
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.out, delta.to_owned() + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

#[test]
fn errors_inside_a_stream_are_recognised_in_every_form() {
    let message = |outcome: Outcome| match outcome.result {
        Err(StreamFault::Error(error)) => (outcome.out, error.message),
        other => panic!("{other:?}"),
    };
    for text in [
        "data: {\"error\":{\"message\":\"m\",\"type\":\"t\"}}\n\n",
        "data: {\"choices\":[],\"error\":{\"message\":\"m\"}}\n\n",
        "data: {\"error\":\"m\"}\n\n",
        "event: error\ndata: {\"message\":\"m\"}\n\n",
        "data: {\"type\":\"error\",\"error\":{\"type\":\"t\",\"message\":\"m\"}}\n\n",
    ] {
        assert_eq!(message(chat(text)), (String::new(), "m".to_owned()), "{text}");
        assert_eq!(message(messages(text)), (String::new(), "m".to_owned()), "{text}");
    }
    let named = "data: {\"object\":\"error\",\"message\":\"m\",\"type\":\"t\"}\n\n";
    assert_eq!(message(chat(named)), (String::new(), "m".to_owned()));
    let fine = "data: {\"id\":\"a\",\"model\":\"b\",\"error\":null,\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(chat(fine).result, Ok(()));
}

#[test]
fn data_that_is_not_json_of_its_format_is_malformed() {
    for text in ["data: {\"a\":}\n\n", "data: hello\n\n", "data: []\n\n", "data: 1\n\n"] {
        assert_eq!(chat(text).result, Err(StreamFault::Malformed), "{text}");
        assert_eq!(messages(text).result, Err(StreamFault::Malformed), "{text}");
    }
    let greedy = format!("data: {{{}\"id\":1}}\n\n", "\"id\":1,".repeat(16));
    assert_eq!(chat(&greedy).result, Err(StreamFault::Malformed));
}

#[test]
fn event_over_the_bound_is_refused_and_one_below_passes() {
    let event = |len: usize| chunk(&format!("\"x\":\"{}\",{FINISH}", "a".repeat(len)));
    let small = event(300);
    let bytes: Vec<&[u8]> = small.as_bytes().chunks(7).collect();
    assert_eq!(run(Shape::Chat, false, 1000, &bytes).result, Ok(()));
    let large = event(2000);
    assert_eq!(run(Shape::Chat, false, 1000, &[large.as_bytes()]).result, Err(StreamFault::TooLarge));
    let bytes: Vec<&[u8]> = large.as_bytes().chunks(7).collect();
    assert_eq!(run(Shape::Chat, false, 1000, &bytes).result, Err(StreamFault::TooLarge));
}

#[test]
fn stream_can_be_reused() {
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let mut stream = SseStream::same(ModelEndpoint::CHAT, true, 1000);
    let text = chunk(FINISH) + "data: [DO";
    stream.feed(text.as_bytes(), &mut pool, &ME, &mut out).unwrap();
    assert!(stream.finish_seen());
    stream.release(&mut pool);
    stream.restart(ModelEndpoint::MESSAGES, false, 1000);
    assert!(!stream.finish_seen());
    assert_eq!((stream.end_at(), stream.observed()), (None, ObservedUsage::default()));
    out.clear();
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n";
    let text = format!("{start}{delta}{stop}");
    assert!(stream.feed(text.as_bytes(), &mut pool, &ME, &mut out).unwrap().finished);
    assert!(out.ends_with(stop.as_bytes()));
    stream.release(&mut pool);
    stream.restart(ModelEndpoint::MESSAGES, false, 1000);
    let fault = stream.feed(stop.as_bytes(), &mut pool, &ME, &mut out);
    assert_eq!(fault, Err(StreamFault::Incomplete), "what has begun in one stream has not in the next");
}

#[test]
fn translated_stream_can_be_reused_within_one_format() {
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let mut stream = SseStream::translated(TO_MESSAGES, TranslationState::default(), false, (1000, 1 << 20));
    assert!(!stream.keeps_shape());
    let text = chunk(r#""choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]"#);
    stream.feed(text.as_bytes(), &mut pool, &ME, &mut out).unwrap();
    assert!(out.starts_with(b"event: message_start"), "{}", String::from_utf8_lossy(&out));
    stream.restart(ModelEndpoint::CHAT, false, 1000);
    out.clear();
    stream.feed(chunk(FINISH).as_bytes(), &mut pool, &ME, &mut out).unwrap();
    assert!(stream.keeps_shape() && out.starts_with(b"data: "), "{}", String::from_utf8_lossy(&out));
}

#[test]
fn storage_is_lent_only_for_the_current_event_and_returned() {
    let translated = |way| SseStream::translated(way, TranslationState::default(), false, (1000, 1 << 20));
    for mut stream in [SseStream::same(ModelEndpoint::CHAT, false, 1000), translated(TO_MESSAGES)] {
        let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
        let text = chunk(FINISH);
        let (half, rest) = text.as_bytes().split_at(9);
        stream.feed(text.as_bytes(), &mut pool, &ME, &mut out).unwrap();
        assert_eq!((stream.held(), stream.capacity(), pool.lent()), (0, 0, 0));
        stream.feed(half, &mut pool, &ME, &mut out).unwrap();
        assert_eq!((stream.held(), stream.capacity()), (9, pool.lent()));
        assert!(pool.lent() >= 9);
        stream.feed(rest, &mut pool, &ME, &mut out).unwrap();
        assert_eq!((stream.held(), pool.lent()), (0, 0));
        // A fault leaves the event in place; it is released with the stream.
        let fault = stream.feed(&[b'x'; 2000], &mut pool, &ME, &mut out);
        assert_eq!((fault, stream.held()), (Err(StreamFault::TooLarge), 2000));
        stream.release(&mut pool);
        assert_eq!((stream.held(), stream.capacity(), pool.lent()), (0, 0, 0));
    }
}

#[test]
fn storage_is_returned_at_any_end() {
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    for (text, result) in [("data: {\"choi", Err(StreamFault::Incomplete)), ("data: [DONE]\n", Ok(()))] {
        let mut stream = SseStream::same(ModelEndpoint::CHAT, false, 1000);
        stream.feed((chunk(FINISH) + text).as_bytes(), &mut pool, &ME, &mut out).unwrap();
        assert!(pool.lent() > 0);
        assert_eq!((stream.end(&mut pool, &ME, &mut out), pool.lent()), (result, 0));
    }
}

/// Every stream under way holds one of these.
#[test]
fn stream_is_small() {
    let size = size_of::<SseStream>() - size_of::<json::ScanCount>();
    assert!(size <= 232, "{size}");
}

/// Sends an event through a new stream; with `warm`, through one that has just read that event.
fn one(shape: Shape, warm: Option<&str>, event: &str) -> (Vec<u8>, ObservedUsage, Result<Fed, StreamFault>) {
    let mut stream = SseStream::same(ModelEndpoint::generate(shape), true, 1 << 20);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    // Content, before which every event is held.
    let content = match shape {
        Shape::Chat => {
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\"}]}}]}\n\n"
        }
        Shape::Messages => {
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
             \"content_block\":{\"type\":\"tool_use\",\"id\":\"c\"}}\n\n"
        }
        Shape::Responses => {
            "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\
             \"item\":{\"type\":\"function_call\"}}\n\n"
        }
    };
    for event in [content, warm.unwrap_or_default()] {
        stream.feed(event.as_bytes(), &mut pool, &ME, &mut out).unwrap();
    }
    out.clear();
    let before = stream.observed();
    let result = stream.feed(event.as_bytes(), &mut pool, &ME, &mut out);
    let mut observed = stream.observed();
    observed.relayed_tokens -= before.relayed_tokens;
    stream.release(&mut pool);
    (out, observed, result)
}

#[test]
fn event_that_matches_the_template_is_treated_as_if_parsed() {
    let chat = |text: &str| {
        format!(
            "data: {{\"id\":\"c\", \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
             \"finish_reason\":null}}],\"model\":\"m\",\"usage\":null}}\n\n"
        )
    };
    let messages = |text: &str| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        )
    };
    let responses = |text: &str| response_event(&format!("{}", text.len()), text, "x1");
    let texts = [
        "",
        " heron",
        "a\\nb",
        "\\\"",
        "\\\\",
        "\\",
        "\\\\\\",
        "\\u00e9",
        "\\ud83e\\udd80",
        "\\ud83e",
        "\\u00",
        "é漢🦀",
        "\u{1}",
        "tab\there",
        "\"",
        "x\"},\"finish_reason\":\"stop\",\"y\":{\"z\":\"",
        "\",\"content\":\"",
        "x\"}},{\"index\":1,\"delta\":{\"content\":\"y",
        "\\q",
        "null",
    ];
    type Form<'a> = &'a dyn Fn(&str) -> String;
    let forms: [(Shape, Form); 3] =
        [(Shape::Chat, &chat), (Shape::Messages, &messages), (Shape::Responses, &responses)];
    for (shape, event) in forms {
        let mut sound = 0;
        for text in texts {
            let (first, fitted) = (one(shape, None, &event(text)), one(shape, Some(&event(" words")), &event(text)));
            // Rounding may differ if texts are counted one after another.
            assert!(first.1.relayed_tokens.abs_diff(fitted.1.relayed_tokens) <= 1, "{text:?}");
            assert_eq!((&first.0, first.1.reported, &first.2), (&fitted.0, fitted.1.reported, &fitted.2), "{text:?}");
            sound += usize::from(first.2.is_ok());
        }
        assert!(sound > 8 && sound < texts.len(), "{sound} of {} are sound", texts.len());
    }
    let error = "data: {\"error\":{\"message\":\"overloaded\"}}\n\n";
    assert_eq!(one(Shape::Chat, Some(&chat(" words")), error), one(Shape::Chat, None, error));
}

fn response_event(number: &str, text: &str, padding: &str) -> String {
    let kind = "response.output_text.delta";
    format!(
        "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},\"item_id\":\"m\",\
         \"delta\":\"{text}\",\"logprobs\":[],\"obfuscation\":\"{padding}\"}}\n\n"
    )
}

#[test]
fn events_of_a_response_may_differ_in_their_numbers_and_padding() {
    let warm = response_event("9", "words", "abc");
    let numbers =
        ["0", "10", "123456789012345678901234", "07", "-1", "1.5", "1e3", "", "\"9\"", "null", "9 ", "9,\"x\":1"];
    let paddings = ["", "\\n", "\\q", "\"", "é", "x\",\"delta\":\"more", "x\",\"obfuscation\":\"y"];
    let events = numbers.iter().map(|number| response_event(number, "heron", "x"));
    let mut sound = 0;
    for event in events.chain(paddings.iter().map(|padding| response_event("10", "heron", padding))) {
        let (first, fitted) = (one(Shape::Responses, None, &event), one(Shape::Responses, Some(&warm), &event));
        assert_eq!((&first.0, first.1.reported, &first.2), (&fitted.0, fitted.1.reported, &fitted.2), "{event}");
        sound += usize::from(first.2.is_ok());
    }
    assert!(sound > 6, "{sound}");
    // Matching events are counted, too: a heartbeat has the number after theirs.
    let mut stream = SseStream::same(ModelEndpoint::RESPONSES, true, 1 << 20);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    for number in 0..12 {
        let event = response_event(&number.to_string(), "heron", "x");
        stream.feed(event.as_bytes(), &mut pool, &ME, &mut out).unwrap();
    }
    out.clear();
    stream.heartbeat(Shape::Responses, 0, &ME, &mut out);
    assert!(String::from_utf8(out).unwrap().contains("\"sequence_number\":12}"));
    stream.release(&mut pool);
}

#[test]
fn ids_of_repeated_messages_are_all_replaced() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"model\":\"theirs\"},\
                 \"message\":{\"content\":[]},\"message\":{\"model\":\"theirs\",\"content\":[]}}\n\n";
    let (out, _, _) = one(Shape::Messages, None, start);
    let (id, model) = (ME_ID, ME.model);
    let expected = format!(
        "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"{id}\",\"model\":\"{model}\"}},\
         \"message\":{{\"content\":[]}},\"message\":{{\"id\":\"{id}\",\"model\":\"{model}\",\"content\":[]}}}}\n\n"
    );
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

#[test]
fn split_surrogate_pair_is_joined() {
    let chunk = |content: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n");
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let text = |pieces: &[&str]| pieces.iter().map(|piece| chunk(piece)).collect::<String>() + end;
    let said = |out: &str| {
        let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.filter_map(|data| serde_json::from_str::<serde_json::Value>(data).ok());
        let content = |event: serde_json::Value| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
        events.filter_map(content).collect::<String>()
    };
    for (pieces, want) in [
        (&["a", "b\\ud83d", "\\ude00c", "d"][..], "ab\u{1f600}cd"),
        (&["a\\uD83D", "\\uDE00\\ud83d", "\\ude01"], "a\u{1f600}\u{1f601}"),
        (&["\\ud83d", "", "\\ude00"], "\u{1f600}"),
        (&["\\ud83d\\ude00\\ud83d", "\\ude01"], "\u{1f600}\u{1f601}"),
        (&["\\\\ud83d", "\\\\ude00"], "\\ud83d\\ude00"),
        // The other half never arrives.
        (&["a\\ud83d", "b"], "ab"),
    ] {
        let outcome = chat(&text(pieces));
        assert_eq!((outcome.result, said(&outcome.out).as_str()), (Ok(()), want), "{pieces:?}");
    }
    for pieces in [&["\\ude00"][..], &["a\\ud83d", "b\\ude00"], &["a\\ud83db"], &["\\ud83d\\n"]] {
        assert_eq!(chat(&text(pieces)).result, Err(StreamFault::Malformed), "{pieces:?}");
    }
    let delta = |text: &str| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":\
             {{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        )
    };
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\nevent: content_block_start\n\
                 data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    let stop = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n\
                event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let outcome = messages(&format!("{start}{}{}{stop}", delta("a\\ud83d"), delta("\\ude00")));
    assert_eq!(outcome.result, Ok(()));
    let passed = format!("{}{}", delta("a"), delta("\\ud83d\\ude00"));
    assert!(outcome.out.contains(&passed), "{}", outcome.out);
}
