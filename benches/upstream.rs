//! The upstream of `scripts/bench`: sends the same response as fast as a single mio loop can. A request with
//! `"stream":true` gets `--events` events, one every `--pace-ms`; any other request gets a fixed response of 622 bytes.
//! The API format depends on the path. With `--stamp yes` the text of a chat event is the time when it was sent. The
//! program parses as little as possible. Tests of correctness use `tollgate provider` instead.

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

#[path = "common/stamp.rs"]
mod stamp;

const LISTENER: Token = Token(usize::MAX);
/// First sequence number of the events of a response: it has five digits, like all later ones.
const FIRST_NUMBER: u32 = 10_000;
/// Beginnings of the requests of each API format.
const PATHS: [&[u8]; 4] =
    [b"POST /v1/chat/completions", b"POST /v1/messages", b"POST /v1/responses", b"POST /v1/embeddings"];

struct Conn {
    socket: TcpStream,
    rx: Vec<u8>,
    tx: Vec<u8>,
    /// Events still to be sent.
    events_left: u32,
    /// Index of the API format in the lists of the plan.
    shape: usize,
    generation: u32,
}

struct Plan {
    events: u32,
    pace: Duration,
    whole: [Vec<u8>; PATHS.len()],
    event: [Vec<u8>; PATHS.len()],
    first: [Vec<u8>; PATHS.len()],
    last: [Vec<u8>; PATHS.len()],
    /// Position of the time stamp in a chat event.
    stamp: Option<usize>,
}

fn http(content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

fn chunk(payload: &str) -> Vec<u8> {
    format!("{:x}\r\n{payload}\r\n", payload.len()).into_bytes()
}

/// Pads the text so that the body has exactly 622 bytes.
fn padded(frame: impl Fn(&str) -> String) -> String {
    let words = "The heron waits in the shallow water and stands; it is patient, grey and exact. ".repeat(8);
    let room = 622 - frame("").len();
    frame(&words[..room])
}

fn plan(events: u32, pace: Duration, stamped: bool) -> Plan {
    let chat = padded(|text| {
        format!(
            "{{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1790000000,\
             \"model\":\"upstream-model-2026-11-01\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\
             \"content\":\"{text}\"}},\"logprobs\":null,\"finish_reason\":\"stop\"}}],\"usage\":{{\
             \"prompt_tokens\":271,\"completion_tokens\":83,\"total_tokens\":354}}}}"
        )
    });
    let messages = padded(|text| {
        format!(
            "{{\"id\":\"msg_0123456789abcdef\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"upstream-model\",\
             \"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}],\"stop_reason\":\"end_turn\",\
             \"stop_sequence\":null,\"usage\":{{\"input_tokens\":271,\"output_tokens\":83}}}}"
        )
    });
    let piece = "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
                 \"created\":1790000000,\"model\":\"upstream-model-2026-11-01\",\"choices\":[{\"index\":0,\"delta\":";
    let chat_event = |delta: &str, finish: &str| format!("{piece}{delta},\"finish_reason\":{finish}}}]}}\n\n");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chat_usage = "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
                      \"created\":1790000000,\"model\":\"upstream-model-2026-11-01\",\"choices\":[],\
                      \"usage\":{\"prompt_tokens\":271,\"completion_tokens\":83,\"total_tokens\":354}}\n\n";
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_0123456789abcdef\",\
                 \"type\":\"message\",\"role\":\"assistant\",\"model\":\"upstream-model\",\"content\":[],\
                 \"stop_reason\":null,\"usage\":{\"input_tokens\":271,\"output_tokens\":1}}}\n\n\
                 event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
                 \"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                 \"delta\":{\"type\":\"text_delta\",\"text\":\" patient\"}}\n\n";
    let stop = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
                event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
                \"usage\":{\"output_tokens\":83}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let response = |status: &str, output: &str, usage: &str| {
        format!(
            "{{\"id\":\"resp_0123456789abcdef\",\"object\":\"response\",\"created_at\":1790000000,\
             \"status\":\"{status}\",\"error\":null,\"incomplete_details\":null,\
             \"model\":\"upstream-model-2026-11-01\",\"output\":[{output}],\"usage\":{usage}}}"
        )
    };
    let message = |status: &str, content: &str| {
        format!(
            "{{\"id\":\"msg_0123456789abcdef\",\"type\":\"message\",\"status\":\"{status}\",\"role\":\"assistant\",\
             \"content\":[{content}]}}"
        )
    };
    let part = |text: &str| format!("{{\"type\":\"output_text\",\"text\":\"{text}\",\"annotations\":[]}}");
    let usage = "{\"input_tokens\":271,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":83,\
                 \"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":354}";
    let whole = padded(|text| response("completed", &message("completed", &part(text)), usage));
    // Their numbers are those of a short stream, since no client of this bench checks them.
    let event = |kind: &str, number: u32, rest: &str| {
        format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},{rest}}}\n\n")
    };
    let place = "\"item_id\":\"msg_0123456789abcdef\",\"output_index\":0,\"content_index\":0";
    let opening = event("response.created", 0, &format!("\"response\":{}", response("in_progress", "", "null")))
        + &event(
            "response.output_item.added",
            1,
            &format!("\"output_index\":0,\"item\":{}", message("in_progress", "")),
        )
        + &event("response.content_part.added", 2, &format!("{place},\"part\":{}", part("")));
    let delta_of = format!("{place},\"delta\":\" patient\",\"logprobs\":[],\"obfuscation\":\"6fXQ1qkzR\"");
    let text = event("response.output_text.delta", FIRST_NUMBER, &delta_of);
    let said = message("completed", &part("patient"));
    let closing = event("response.output_text.done", 4, &format!("{place},\"text\":\"patient\",\"logprobs\":[]"))
        + &event("response.content_part.done", 5, &format!("{place},\"part\":{}", part("patient")))
        + &event("response.output_item.done", 6, &format!("\"output_index\":0,\"item\":{said}"))
        + &event("response.completed", 7, &format!("\"response\":{}", response("completed", &said, usage)));
    // A vector in base64.
    let vector = padded(|text| {
        let base64 = text.replace(|c: char| !c.is_ascii_alphanumeric(), "+");
        format!(
            "{{\"object\":\"list\",\"data\":[{{\"object\":\"embedding\",\"index\":0,\"embedding\":\"{base64}\"}}],\
             \"model\":\"upstream-model-2026-11-01\",\"usage\":{{\"prompt_tokens\":271,\"total_tokens\":271}}}}"
        )
    });
    let word = if stamped { std::str::from_utf8(stamp::BLANK).unwrap() } else { " patient" };
    let chat_delta = chat_event(&format!("{{\"content\":\"{word}\"}}"), "null");
    let first = |text: &str| [head.as_bytes(), &chunk(text)].concat();
    let last = |text: &str| [&chunk(text)[..], b"0\r\n\r\n"].concat();
    let stamp = stamped.then(|| position(&chunk(&chat_delta), stamp::BLANK).unwrap());
    Plan {
        stamp,
        events,
        pace,
        whole: [&chat, &messages, &whole, &vector].map(|body| http("application/json", body)),
        event: [chunk(&chat_delta), chunk(delta), chunk(&text), Vec::new()],
        first: [
            first(&chat_event("{\"role\":\"assistant\",\"content\":\"\"}", "null")),
            first(start),
            first(&opening),
            Vec::new(),
        ],
        last: [
            last(&(chat_event("{}", "\"stop\"") + chat_usage + "data: [DONE]\n\n")),
            last(stop),
            last(&closing),
            Vec::new(),
        ],
    }
}

/// Returns the length of the first complete request in `rx` and the offset of its body; `None` if it is incomplete.
fn request(rx: &[u8]) -> Option<(usize, usize)> {
    let head = rx.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let mut length = 0;
    for line in rx[..head].split(|byte| *byte == b'\n') {
        if line.len() > 15 && line[..15].eq_ignore_ascii_case(b"content-length:") {
            length = std::str::from_utf8(&line[15..]).ok()?.trim().parse().ok()?;
        }
    }
    (rx.len() >= head + length).then_some((head, head + length))
}

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    position(haystack, needle).is_some()
}

fn flush(conn: &mut Conn) -> io::Result<()> {
    while !conn.tx.is_empty() {
        match conn.socket.write(&conn.tx) {
            Ok(count) => drop(conn.tx.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

type Due = BinaryHeap<Reverse<(Instant, usize, u32)>>;

fn serve(conn: &mut Conn, slot: usize, plan: &Plan, due: &mut Due) -> io::Result<()> {
    let mut scratch = [0u8; 65536];
    loop {
        match conn.socket.read(&mut scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                conn.rx.extend_from_slice(&scratch[..count]);
                if count < scratch.len() {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    while let Some((head, end)) = request(&conn.rx) {
        conn.shape = PATHS.iter().position(|path| conn.rx.starts_with(path)).unwrap_or(0);
        let shape = conn.shape;
        // The bodies of this bench have it near their end, so searching the last bytes keeps a large body cheap.
        let tail = &conn.rx[head.max(end.saturating_sub(256))..end];
        if contains(tail, b"\"stream\":true") || contains(tail, b"\"stream\": true") {
            conn.tx.extend_from_slice(&plan.first[shape]);
            conn.events_left = plan.events;
            due.push(Reverse((Instant::now() + plan.pace, slot, conn.generation)));
        } else {
            conn.tx.extend_from_slice(&plan.whole[shape]);
        }
        conn.rx.drain(..end);
    }
    flush(conn)
}

fn tick(conn: &mut Conn, at: Instant, slot: usize, plan: &Plan, due: &mut Due) -> io::Result<()> {
    let shape = conn.shape;
    if conn.events_left == 0 {
        conn.tx.extend_from_slice(&plan.last[shape]);
    } else {
        let event = &plan.event[shape];
        let begin = conn.tx.len();
        conn.tx.extend_from_slice(event);
        // Each event of a response has its own number.
        if let Some(number) = position(event, FIRST_NUMBER.to_string().as_bytes()) {
            let own = FIRST_NUMBER + (plan.events - conn.events_left) % FIRST_NUMBER;
            conn.tx[begin + number..][..5].copy_from_slice(own.to_string().as_bytes());
        }
        if let Some(at) = plan.stamp {
            conn.tx[begin + at..][..stamp::BLANK.len()].copy_from_slice(stamp::now().as_bytes());
        }
        conn.events_left -= 1;
        due.push(Reverse((at + plan.pace, slot, conn.generation)));
    }
    flush(conn)
}

fn main() -> io::Result<()> {
    let (mut listen, mut events, mut pace, mut stamped) = ("127.0.0.1:9000".to_owned(), 100, 20, false);
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().unwrap_or_default();
        match name.as_str() {
            "--listen" => listen = value,
            "--events" => events = value.parse().unwrap(),
            "--pace-ms" => pace = value.parse().unwrap(),
            "--stamp" => stamped = value == "yes",
            other => panic!("unknown argument {other}"),
        }
    }
    let plan = plan(events, Duration::from_millis(pace), stamped);
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(listen.parse().unwrap())?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut conns: Vec<Option<Conn>> = Vec::new();
    let (mut happened, mut due, mut generation) = (Events::with_capacity(1024), Due::new(), 0u32);
    loop {
        let wait = due.peek().map(|Reverse((at, _, _))| at.saturating_duration_since(Instant::now()));
        match poll.poll(&mut happened, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &happened {
            if event.token() == LISTENER {
                while let Ok((mut socket, _)) = listener.accept() {
                    let slot = conns.iter().position(Option::is_none).unwrap_or(conns.len());
                    if slot == conns.len() {
                        conns.push(None);
                    }
                    let _ = socket.set_nodelay(true);
                    poll.registry().register(&mut socket, Token(slot), Interest::READABLE | Interest::WRITABLE)?;
                    generation += 1;
                    let (rx, tx) = (Vec::new(), Vec::new());
                    conns[slot] = Some(Conn { socket, rx, tx, events_left: 0, shape: 0, generation });
                }
                continue;
            }
            let slot = event.token().0;
            let Some(conn) = conns.get_mut(slot).and_then(Option::as_mut) else { continue };
            let ended = (event.is_readable() && serve(conn, slot, &plan, &mut due).is_err())
                || (event.is_writable() && flush(conn).is_err());
            if ended {
                conns[slot] = None;
            }
        }
        let now = Instant::now();
        while let Some(Reverse((at, slot, generation))) = due.peek().copied().filter(|Reverse((at, _, _))| *at <= now) {
            due.pop();
            let conn = conns.get_mut(slot).and_then(Option::as_mut).filter(|conn| conn.generation == generation);
            if conn.is_some_and(|conn| tick(conn, at, slot, &plan, &mut due).is_err()) {
                conns[slot] = None;
            }
        }
    }
}
