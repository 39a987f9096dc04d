//! Every parser of external bytes, behind one entry point each: `fn(&[u8])` that panics if the parser breaks a
//! guarantee. Shared by the fuzz targets (`tests/fuzz/targets`) and by `tests/it/corpus.rs`, which replays the corpus
//! with stable Rust.
//!
//! The guarantees: no panic; the same outcome however the bytes are split; the parser accepts what the corresponding
//! writer writes; a broken stream never ends as if it were complete.

#[path = "../it/support/mod.rs"]
pub mod support;
#[path = "world.rs"]
mod world;

use std::fmt::Debug;
use tollgate::base::buf::Pool;
use tollgate::dialect::{
    AnswerTemplates, Cache, Capabilities, ErrorWords, FormWriter, Invalid, ObservedUsage, RequestScan, RequestTarget,
    ResponseIdentity, RewritePiece, SseStream, StreamFault, Structured, Thinking, TranslationState, UnknownMembers,
    error_event, read_error, reply, rewrite, translate, whole,
};
use tollgate::io::proxy;
use tollgate::policy::config::{Config, Source, effective};
use tollgate::wire::body::{BodyError, BodyReader};
use tollgate::wire::head::{Framing, HeadTemplates, RequestHead, parse_request, parse_response};
use tollgate::wire::inbound::Inbound;
use tollgate::wire::json;
use tollgate::wire::sse::Splitter;
use tollgate::wire::{ModelEndpoint, Passthrough, Shape};

/// Parses the bytes, and panics if a guarantee is broken.
pub type Door = fn(&[u8]);

/// Every parser by the name of its target.
pub const READERS: [(&str, Door); 20] = [
    ("http_head", http_head),
    ("chunked_body", chunked_body),
    ("json", json_text),
    ("sse", sse),
    ("chat_request", |data| request(ModelEndpoint::CHAT, data)),
    ("messages_request", |data| request(ModelEndpoint::MESSAGES, data)),
    ("responses_request", |data| request(ModelEndpoint::RESPONSES, data)),
    ("relayed_request", |data| chosen(data, request)),
    ("chat_reply", |data| answer(ModelEndpoint::CHAT, data)),
    ("messages_reply", |data| answer(ModelEndpoint::MESSAGES, data)),
    ("responses_reply", |data| answer(ModelEndpoint::RESPONSES, data)),
    ("relayed_reply", |data| chosen(data, |shape, data| answer(shape, data.get(1..).unwrap_or_default()))),
    ("chat_stream", |data| stream(ModelEndpoint::CHAT, data)),
    ("messages_stream", |data| stream(ModelEndpoint::MESSAGES, data)),
    ("responses_stream", |data| stream(ModelEndpoint::RESPONSES, data)),
    ("relayed_stream", |data| stream(ModelEndpoint::passthrough(Passthrough::Completions), data)),
    ("configuration", configuration),
    ("proxy_header", proxy_header),
    ("form", form),
    ("gateway", world::run),
];

const HEADER_MAX: usize = 16 * 1024;
const EVENT_MAX: usize = 1 << 20;
const ANSWER_MAX: usize = 1 << 22;
/// Bytes that one item or part of a response takes in addition to its content.
const ITEM_MORE: usize = 256;
const ME_ID: &str = "req_00000000000000000000000000000000";
const ME: ResponseIdentity<'static> = ResponseIdentity {
    id: ME_ID.as_bytes(),
    model: "small",
    created: 1_795_158_000,
    prompt: tollgate::dialect::PromptTokens::Counted(7),
    hides: &[],
};

/// Returns the first byte as a choice, a step of 1 to 16 bytes, and the rest of the data.
fn choice(data: &[u8]) -> Option<(u8, usize, &[u8])> {
    let (choice, rest) = data.split_first()?;
    Some((*choice, 1 + usize::from(choice & 15), rest))
}

/// Selects the relayed endpoint by the first byte.
fn chosen(data: &[u8], read: fn(ModelEndpoint, &[u8])) {
    let place = data.first().map_or(0, |choice| usize::from(choice >> 4)) % Passthrough::ALL.len();
    read(ModelEndpoint::passthrough(Passthrough::ALL[place]), data);
}

/// Parses a head that grows by `step` bytes each time. Returns the first result.
fn growing<T: Debug>(
    data: &[u8],
    step: usize,
    mut read: impl FnMut(&[u8], &mut u32) -> Result<Option<T>, String>,
) -> String {
    let mut scanned = 0;
    let ends = (0..data.len()).step_by(step).chain([data.len()]);
    for end in ends {
        match read(&data[..end], &mut scanned) {
            Ok(None) => {}
            verdict => return format!("{verdict:?}"),
        }
    }
    "more is needed".to_owned()
}

fn http_head(data: &[u8]) {
    let Some((flags, step, data)) = choice(data) else { return };
    let to_head = flags & 16 != 0;
    let request = |buf: &[u8], scanned: &mut u32| {
        let head = parse_request(buf, scanned, HEADER_MAX).map_err(|error| format!("{error:?}"))?;
        Ok(head.inspect(|head| {
            assert!(head.len as usize <= buf.len());
            assert!(head.path.of(buf).len() <= head.target.of(buf).len());
        }))
    };
    let response = |buf: &[u8], scanned: &mut u32| {
        let head = parse_response(buf, scanned, HEADER_MAX, to_head).map_err(|error| format!("{error:?}"))?;
        Ok(head.inspect(|head| assert!(head.len as usize <= buf.len())))
    };
    same_kind(&growing(data, data.len().max(1), request), &growing(data, step, request));
    same_kind(&growing(data, data.len().max(1), response), &growing(data, step, response));
    // A head that resembles an earlier one is parsed by comparing it with that one.
    let mut templates = HeadTemplates::default();
    let read = |bytes: &[u8], templates: Option<&mut HeadTemplates>| {
        let (mut inbound, mut pool, mut head) = (Inbound::new(), Pool::new(1 << 20), RequestHead::unparsed());
        let found = inbound.push(&mut pool, bytes).map(|()| {
            let found = inbound.head_like(&mut pool, HEADER_MAX, templates, &mut head);
            found.map(|found| found.then_some(head))
        });
        inbound.clear(&mut pool);
        found
    };
    let _ = read(data, Some(&mut templates));
    let (front, back) = data.split_at(data.len() / 16 * step);
    for behind in [back, back.get(1..).unwrap_or_default()] {
        let other = [front, &[flags], behind].concat();
        assert_eq!(read(&other, Some(&mut templates)), read(&other, None));
    }
    // A resumed search uses the strict parser, which must agree with the fast one on plain heads.
    if data.first().is_some_and(|first| !first.is_ascii_control()) {
        same_kind(&format!("{:?}", request(data, &mut 0)), &format!("{:?}", request(data, &mut 1)));
        same_kind(&format!("{:?}", response(data, &mut 0)), &format!("{:?}", response(data, &mut 1)));
    }
}

/// Checks that a head gives the same result however it arrives. An invalid one must be rejected either formats, though
/// a part of it may show another of its errors.
fn same_kind(at_once: &str, in_parts: &str) {
    if at_once.starts_with("Err") {
        assert!(in_parts.starts_with("Err"), "{at_once} but {in_parts}");
    } else {
        assert_eq!(at_once, in_parts);
    }
}

fn dechunk(data: &[u8], step: usize) -> (Vec<u8>, Result<usize, BodyError>) {
    let (mut reader, mut payload, mut used, mut end) = (BodyReader::new(Framing::Chunked), Vec::new(), 0, 0);
    while !reader.is_done() {
        end = data.len().min(end + step);
        loop {
            let piece = match reader.next(&data[used..end]) {
                Ok(piece) => piece,
                Err(error) => return (payload, Err(error)),
            };
            assert!(piece.consumed <= end - used && piece.data.end <= piece.consumed);
            payload.extend_from_slice(&data[used..end][piece.data.clone()]);
            used += piece.consumed;
            if piece.done || piece.consumed == 0 {
                break;
            }
        }
        if end == data.len() {
            break;
        }
    }
    let ended = reader.end().map(|()| used);
    (payload, ended)
}

fn chunked_body(data: &[u8]) {
    let Some((_, step, data)) = choice(data) else { return };
    let at_once = dechunk(data, data.len().max(1));
    assert!(at_once.0.len() <= data.len());
    assert_eq!(at_once, dechunk(data, step));
}

fn json_text(data: &[u8]) {
    let Some((_, _, data)) = choice(data) else { return };
    let ours = json::check(data);
    let names = ["a", "model", "content"];
    let picked = json::check_and_pick(data, names);
    match ours {
        Ok(()) => assert_eq!(picked, Ok(names.map(|name| json::Raw::new(data).get(name)))),
        Err(syntax) => assert_eq!(picked, Err(json::ScanError::Syntax(syntax))),
    }
    let (items, mut walked) = (json::Raw::new(data).items(), json::Raw::new(data).items());
    if ours.is_ok() {
        for item in items {
            assert_eq!(walked.pick(names), Some((item, names.map(|name| item.get(name)))));
        }
        assert_eq!(walked.pick(names), None);
    }
    match (ours, serde_json::from_slice::<serde_json::Value>(data)) {
        (Ok(()), Err(error)) => {
            let why = error.to_string();
            assert!(
                ["out of range", "surrogate", "hex escape", "recursion"].iter().any(|word| why.contains(word)),
                "only ours: {why}"
            );
        }
        (Err(error), Ok(_)) => panic!("only serde's: {error}"),
        (Ok(()), Ok(value)) => {
            let mut compact = Vec::new();
            json::compact(data, &mut compact);
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&compact).ok(), Some(value));
        }
        (Err(_), Err(_)) => {}
    }
}

type Seen = (Vec<u8>, Vec<u8>, u32, bool);

fn split(data: &[u8], step: usize) -> Vec<Seen> {
    let (mut splitter, mut from, mut end, mut events) = (Splitter::new(), 0, 0, Vec::new());
    loop {
        end = data.len().min(end + step);
        while let Some(event) = splitter.next(&data[from..end]) {
            let buf = &data[from..end];
            events.push((event.name.of(buf).to_vec(), splitter.data(&event, buf).to_vec(), event.lines, event.comment));
            assert!(event.len > 0 && event.len <= buf.len());
            from += event.len;
        }
        if end == data.len() {
            break;
        }
    }
    let buf = &data[from..];
    if let Some(event) = splitter.last(buf) {
        events.push((event.name.of(buf).to_vec(), splitter.data(&event, buf).to_vec(), event.lines, event.comment));
    }
    // A CR whose LF came later is an empty line with nothing before it, which is not an event.
    events.retain(|(name, _, lines, comment)| *lines > 0 || *comment || !name.is_empty());
    events
}

fn sse(data: &[u8]) {
    let Some((_, step, data)) = choice(data) else { return };
    assert_eq!(split(data, data.len().max(1)), split(data, step));
}

fn scan(endpoint: ModelEndpoint, body: &[u8]) -> Result<RequestScan, String> {
    let mut scan = RequestScan::new();
    scan.reset(endpoint);
    scan.finish(body).map_err(|invalid| invalid.0)?;
    Ok(scan)
}

/// Adds a space to each message of a request, so that the scanner reads all of them. `None` if the bytes that begin a
/// message also occur elsewhere.
fn spaced(endpoint: ModelEndpoint, body: &[u8]) -> Option<(Vec<u8>, RequestScan)> {
    const BEGIN: &[u8] = b"{\"role\"";
    let messages = json::Raw::new(body).get("messages")?;
    let places: Vec<usize> = (0..body.len()).filter(|at| body[*at..].starts_with(BEGIN)).collect();
    if places.len() != messages.items().filter(|item| item.bytes().starts_with(BEGIN)).count() {
        return None;
    }
    let mut other = body.to_vec();
    places.iter().rev().for_each(|at| other.insert(at + 1, b' '));
    let scanned = scan(endpoint, &other).expect("the request is valid");
    Some((other, scanned))
}

fn accepted(endpoint: ModelEndpoint, body: &[u8], what: &str) {
    if let Err(error) = scan(endpoint, body) {
        panic!("{what} is refused: {error}: {}", String::from_utf8_lossy(body));
    }
}

fn capabilities(flags: u8) -> Capabilities {
    let structured_output = match flags >> 6 {
        0 | 3 => Structured::Native,
        1 => Structured::Tool,
        _ => Structured::Instruction,
    };
    let (one, other) = (flags & 16 != 0, flags & 32 != 0);
    Capabilities {
        structured_output,
        sampling: !one,
        mid_conversation_system: [None, Some(one)][usize::from(other)],
        replay_reasoning: one,
        thought_signatures: other,
        effort: other,
        strict_tools: other,
        max_completion_tokens: other,
        thinking: if one { Thinking::Budget } else { Thinking::Adaptive },
        cache: if other { Cache::Marks } else { Cache::Key },
        ..Capabilities::default()
    }
}

fn request(endpoint: ModelEndpoint, data: &[u8]) {
    let Some((flags, _, body)) = choice(data) else { return };
    let Ok(scanned) = scan(endpoint, body) else { return };
    let fields = scanned.fields();
    let spaced = spaced(endpoint, body);
    let unknown = match flags & 48 {
        0 | 32 => UnknownMembers::Drop,
        16 => UnknownMembers::Forward,
        _ => UnknownMembers::Local,
    };
    let (max_completion_tokens, thought_signatures) = (flags & 64 != 0, flags & 128 != 0);
    let takes = Capabilities { unknown, max_completion_tokens, thought_signatures, ..Capabilities::default() };
    let with = RequestTarget { model: "up", shape: endpoint.shape, capabilities: &takes, cache_key: None };
    let (mut text, mut pieces) = (Vec::new(), Vec::new());
    let Ok(total) = rewrite(endpoint, body, fields, &with, &mut text, &mut pieces) else { return };
    let piece = |piece: &RewritePiece| match piece {
        RewritePiece::Body(span) => span.of(body).to_vec(),
        RewritePiece::Text(span) => span.of(&text).to_vec(),
    };
    let rewritten: Vec<u8> = pieces.iter().flat_map(piece).collect();
    assert_eq!(rewritten.len() as u64, total);
    accepted(endpoint, &rewritten, "what is forwarded");
    let capabilities = capabilities(flags);
    for to in others(endpoint) {
        let mut out = Vec::new();
        let target = RequestTarget { model: "up", shape: to, capabilities: &capabilities, cache_key: Some([b'0'; 32]) };
        let translated = translate(endpoint.shape, body, &scanned, &target, &mut out);
        if translated.is_ok() {
            accepted(ModelEndpoint::generate(to), &out, "what is translated");
        }
        if let Some((other, scan)) = &spaced {
            let (mut same, ok) = (Vec::new(), translated.is_ok());
            assert_eq!(translate(endpoint.shape, other, scan, &target, &mut same).is_ok(), ok);
            assert!(!ok || same == out, "{} is not {}", String::from_utf8_lossy(&same), String::from_utf8_lossy(&out));
        }
    }
}

fn answer(endpoint: ModelEndpoint, body: &[u8]) {
    let mut out = Vec::new();
    if whole(endpoint, body, &ME, &mut out).is_ok() {
        json::check(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)));
    }
    // An answer is compared with itself as a template, and with copies that differ in one or two bytes.
    let mut templates = AnswerTemplates::default();
    let _ = templates.whole(endpoint, body, &ME, &mut Vec::new());
    let place = body.iter().fold(0, |sum: usize, byte| sum * 31 % 65_521 + usize::from(*byte)) % body.len().max(1);
    for change in [0, 1, 2] {
        let (mut other, mut like, mut read) = (body.to_vec(), Vec::new(), Vec::new());
        other.iter_mut().skip(place).take(change).for_each(|byte| *byte ^= 1);
        let passed = templates.whole(endpoint, &other, &ME, &mut like);
        assert_eq!((passed, like), (whole(endpoint, &other, &ME, &mut read), read));
    }
    for to in others(endpoint) {
        let (way, state) = ((endpoint.shape, to), TranslationState::default());
        let mut templates = AnswerTemplates::default();
        let _ = templates.reply(way, body, &state, &ME, &mut Vec::new());
        for change in [0, 1, 2] {
            let (mut other, mut like, mut read) = (body.to_vec(), Vec::new(), Vec::new());
            other.iter_mut().skip(place).take(change).for_each(|byte| *byte ^= 1);
            let translated = templates.reply(way, &other, &state, &ME, &mut like);
            assert_eq!((translated, like), (reply(way, &other, &state, &ME, &mut read), read));
        }
    }
    for to in others(endpoint) {
        out.clear();
        if reply((endpoint.shape, to), body, &TranslationState::default(), &ME, &mut out).is_ok() {
            json::check(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)));
            let mut again = Vec::new();
            // An answer without content is written as it is, although it would be a failure if a provider sent it.
            let is_empty = out.windows(11).any(|bytes| bytes == b"\"output\":[]");
            assert!(
                is_empty || whole(ModelEndpoint::generate(to), &out, &ME, &mut again).is_ok(),
                "{}",
                String::from_utf8_lossy(&out)
            );
        }
    }
    if let Some(error) = read_error(body) {
        assert!(error.message.len() <= body.len().max(64));
    }
}

type Outcome = (Vec<u8>, Result<(), StreamFault>, ObservedUsage);

fn passed_on(endpoint: ModelEndpoint, show_usage: bool, data: &[u8], step: usize) -> Outcome {
    fed(SseStream::same(endpoint, show_usage, EVENT_MAX), data, step)
}

fn translated(formats: (Shape, Shape), show_usage: bool, data: &[u8], step: usize) -> Outcome {
    let bounds = (EVENT_MAX, ANSWER_MAX);
    fed(SseStream::translated(formats, TranslationState::default(), show_usage, bounds), data, step)
}

/// Returns the other API formats.
fn others(endpoint: ModelEndpoint) -> impl Iterator<Item = Shape> {
    let other = move |other: &Shape| !endpoint.is_passthrough() && *other != endpoint.shape;
    Shape::ALL.into_iter().filter(other)
}

fn fed(mut stream: SseStream, data: &[u8], step: usize) -> Outcome {
    let (mut pool, mut out) = (Pool::new(EVENT_MAX), Vec::new());
    let mut result = Ok(());
    for part in data.chunks(step) {
        let alike = stream.feed_alike(part, &mut pool, &mut out);
        result = stream.feed(&part[alike..], &mut pool, &ME, &mut out).map(|_| ());
        // The end of a response repeats all of it, with some bytes around each item.
        assert!(stream.held() + stream.waiting() <= data.len() + ITEM_MORE * (1 + data.len() / 8));
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        result = stream.end(&mut pool, &ME, &mut out);
    }
    stream.release(&mut pool);
    assert_eq!(pool.lent(), 0);
    (out, result, stream.observed())
}

fn stream(endpoint: ModelEndpoint, data: &[u8]) {
    let Some((flags, step, data)) = choice(data) else { return };
    let show_usage = flags & 16 != 0;
    let passed = passed_on(endpoint, show_usage, data, data.len().max(1));
    assert_eq!(passed, passed_on(endpoint, show_usage, data, step));
    for to in others(endpoint) {
        let at_once = translated((endpoint.shape, to), show_usage, data, data.len().max(1));
        assert_eq!(at_once, translated((endpoint.shape, to), show_usage, data, step));
        let each_read = unlike(data);
        assert_eq!(at_once, translated((endpoint.shape, to), show_usage, &each_read, each_read.len().max(1)));
        let (mut out, result, _) = at_once;
        // The output must be a stream of that format: its parser must find it complete, or ended by the error.
        if result.is_err() {
            let (kind, word, message) = ("upstream_error", "server_error", "broken");
            let words =
                ErrorWords { kind, status: 500, word, message, details: None, resets_at: None, request_id: ME_ID };
            error_event(ModelEndpoint::generate(to), &words, &mut out);
        }
        // A chat stream can contain pieces of one call after the next one has started, which a Messages stream cannot,
        // so it is parsed without translation.
        let (_, again, _) = match to {
            Shape::Messages => translated((to, Shape::Chat), true, &out, out.len().max(1)),
            _ => passed_on(ModelEndpoint::generate(to), true, &out, out.len().max(1)),
        };
        let text = String::from_utf8_lossy(&out);
        match result {
            Ok(()) => assert_eq!(again, Ok(()), "{text}"),
            Err(_) => assert!(matches!(again, Err(StreamFault::Error(_))), "{again:?}: {text}"),
        }
    }
}

/// Returns the stream with white space in its events that differs between neighbours, so that each event must be
/// parsed.
fn unlike(data: &[u8]) -> Vec<u8> {
    const BEGIN: &[u8] = b"data: {";
    let (mut out, mut count, mut at) = (Vec::new(), 0, 0);
    while at < data.len() {
        let begins_line = at == 0 || matches!(data[at - 1], b'\n' | b'\r');
        let taken = if begins_line && data[at..].starts_with(BEGIN) { BEGIN.len() - 1 } else { 1 };
        out.extend_from_slice(&data[at..at + taken]);
        if taken > 1 {
            count += 1;
            out.extend_from_slice(&b"      "[..count % 7]);
        }
        at += taken;
    }
    out
}

/// Secret in a configuration; no error and no listing may contain it.
const SECRET: &str = "sk-never-to-be-seen-anywhere";

fn configuration(data: &[u8]) {
    // The fuzzer may find the secret itself, and write it into another place.
    let Ok(text) = std::str::from_utf8(data).map(|text| text.replace(SECRET, "")) else { return };
    let text = text.as_str();
    let parse = |text: &str| {
        let read = |_: &str| Ok(format!("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n{SECRET}"));
        let env = |name: &str| (!name.starts_with("NO")).then(|| SECRET.to_owned());
        Config::parse(&Source { file: "/folder/tollgate.toml", text, env: &env, read: &read, run: &Source::no_program })
    };
    let high = match parse(text) {
        Ok(high) => high,
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                let lines = text.lines().count() as u32 + 1;
                assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error}");
                assert!(!error.to_string().contains(SECRET), "{error}");
            }
            return;
        }
    };
    let shown = effective(&high);
    assert!(!shown.contains(SECRET) && !format!("{high:?}").contains(SECRET), "{shown}");
    // A password in the URL of a store is masked, so the output cannot be parsed back to the same text.
    if !shown.contains("***") {
        let mut again = parse(&shown).unwrap_or_else(|errors| panic!("{errors:?}\n{shown}"));
        assert_eq!(effective(&again), shown);
        assert_eq!(again.follow(&high), Ok(Vec::new()), "a configuration must not differ from itself");
    }
}

fn proxy_header(data: &[u8]) {
    let Some((_, step, data)) = choice(data) else { return };
    let at_once = proxy::header(data);
    let ends = (0..data.len()).step_by(step).chain([data.len()]);
    let in_parts = ends.map(|end| proxy::header(&data[..end])).find(|verdict| *verdict != Ok(None));
    assert_eq!(in_parts.unwrap_or(Ok(None)), at_once, "later bytes must not change the result");
    match at_once {
        // An incomplete header must be shorter than the maximum.
        Ok(None) => assert!(data.len() < proxy::HEADER_MAX),
        Ok(Some(header)) => {
            assert!((1..=data.len().min(proxy::HEADER_MAX)).contains(&header.len));
            assert_eq!(
                proxy::header(&data[..header.len]),
                Ok(Some(header)),
                "the header must not depend on later bytes"
            );
            assert_eq!(
                proxy::header(&data[..header.len - 1]),
                Ok(None),
                "the header must not end before its last byte"
            );
        }
        Err(proxy::NoHeader) => {}
    }
}

/// Sends a form with the boundary `b` that arrives in pieces of `step` bytes, as the gateway does. Returns what the
/// provider gets, without the blanks behind it.
fn sent_form(body: &[u8], step: usize) -> Result<Vec<u8>, Invalid> {
    let takes = Capabilities { drop_params: vec!["temperature".to_owned()], ..Capabilities::default() };
    let with = RequestTarget { model: "up", shape: Shape::Chat, capabilities: &takes, cache_key: None };
    let mut scan = RequestScan::new();
    scan.reset_form(Passthrough::Transcriptions, b"b", Some(body.len() as u64), ANSWER_MAX as u64);
    let (mut writer, mut length, mut out, mut used): (Option<FormWriter>, u64, Vec<u8>, usize) =
        (None, 0, Vec::new(), 0);
    for end in (step..body.len()).step_by(step).chain([body.len()]) {
        let complete = end == body.len();
        if writer.is_none() {
            if complete { scan.finish(&body[..end]) } else { scan.feed(&body[..end]) }?;
            if let Some(form) = scan.form().filter(|form| form.may_be_sent) {
                let own = writer.insert(FormWriter::new(form, scan.fields(), &with));
                length = own.announce(&body[..end], complete, body.len() as u64)?;
            }
        }
        if let Some(writer) = &mut writer {
            used += writer.write(&body[used..end], complete, step, &mut out)?;
            while complete && writer.missing() > 0 {
                let before = out.len();
                writer.write(&[], complete, step, &mut out)?;
                assert!((1..=step).contains(&(out.len() - before)), "blanks are written as there is room");
            }
        }
    }
    assert_eq!((used, out.len() as u64), (body.len(), length), "all of the form must be sent, as announced");
    Ok(out.trim_ascii_end().to_vec())
}

fn form(data: &[u8]) {
    let Some((_, step, body)) = choice(data) else { return };
    match (sent_form(body, body.len().max(1)), sent_form(body, step)) {
        (Ok(at_once), Ok(in_parts)) => {
            assert_eq!(at_once, in_parts, "the form must not depend on the pieces");
            let again = sent_form(&at_once, step);
            assert_eq!(again, Ok(at_once), "a form that was sent is valid, and has only fields that may be sent");
        }
        (Err(_), Err(_)) => {}
        // Behind the file, which may have been sent already, this field's value is passed on as it is.
        (Err(Invalid(why)), Ok(_)) if why.starts_with("stream: expected true") => {}
        (at_once, in_parts) => panic!("{at_once:?} and in pieces {in_parts:?}"),
    }
}

/// Runs the parser with this name.
pub fn run(name: &str, data: &[u8]) {
    let found = READERS.iter().find(|(reader, _)| *reader == name);
    let (_, read) = found.unwrap_or_else(|| panic!("there is no reader {name}"));
    read(data);
}
