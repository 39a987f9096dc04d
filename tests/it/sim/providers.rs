//! Scripted providers: each reads requests from its connection and answers them, with a good, slow, broken or corrupted
//! answer. Each answer is recorded, so that clients and the ledger can be checked against it.

use super::clients::mangle;
use super::greedy::{self, Bill};
use super::media::{self, Media};
use super::odd;
use super::tally::Faults;
use super::wider::Wider;
use crate::support::world::Pipe;
use std::collections::BTreeMap;
use tollgate::base::rng::Rng;
use tollgate::base::seam::{Core, Ending};
use tollgate::gateway::Gateway;
use tollgate::wire::{Passthrough, Shape};

/// Answer to one attempt of one request.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Number of text pieces in the answer.
    pub pieces: u64,
    /// True if the answer was meant to be complete: it has a finish reason, or is not a stream.
    pub complete: bool,
    /// True if bytes of it were changed at random.
    pub hostile: bool,
    /// (input, output) tokens, if it reports both.
    pub usage: Option<(u64, u64)>,
    /// Bytes of the texts in the request.
    pub text_bytes: u64,
}

/// All answers of the providers, by (marker of the request, attempt from 1), and the faults of the world.
#[derive(Default)]
pub struct Book {
    pub served: BTreeMap<(u64, u64), Served>,
    pub faults: Faults,
    /// Highest bill for each request of the greedy tenant, by its marker.
    pub bills: BTreeMap<u64, Bill>,
}

/// Action after the last byte of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum After {
    Keep,
    Fin,
    Reset,
    /// The provider sends nothing more.
    Silence,
}

/// A connection that the gateway has dialed.
#[derive(Debug)]
pub struct Provider {
    pub pipe: Pipe,
    /// Number of requests read.
    pub requests: u64,
    format: Shape,
    got: Vec<u8>,
    /// The current answer and the action after it.
    answer: Option<(Vec<u8>, After)>,
    silent: bool,
    /// Bytes still to arrive of a request that has already been answered with 200.
    rest: usize,
    /// True once it has answered a form; it ignores the rest of that form.
    has_form: bool,
    /// True if it may answer before it has read the request.
    early: bool,
    /// True if the end of its answers may be false.
    lies: bool,
    /// True if its answers may have odd forms.
    odd: bool,
    /// Marker and attempt of the last answer.
    last: (u64, u64),
}

/// A request to a provider.
#[derive(Copy, Clone)]
struct Asked {
    marker: u64,
    attempt: u64,
    format: Shape,
    stream: bool,
    usage: bool,
    passthrough: Option<Passthrough>,
    /// Number of requested texts.
    texts: u64,
    /// Highest bill for the request, if its tenant is greedy.
    bill: Option<Bill>,
    /// True if the end of its answer may be false.
    lies: bool,
    /// True if its answer may have an odd form.
    odd: bool,
}

impl Asked {
    fn is(&self, format: Shape) -> bool {
        self.format == format
    }
}

impl Provider {
    pub fn new(pipe: Pipe, format: Shape, wider: Wider) -> Provider {
        let Wider { early, lies, odd, .. } = wider;
        let (got, last) = (Vec::new(), (0, 0));
        let has_form = false;
        Provider {
            pipe,
            requests: 0,
            format,
            got,
            answer: None,
            silent: false,
            rest: 0,
            has_form,
            early,
            lies,
            odd,
            last,
        }
    }

    /// Returns true if it waits for the rest of a request that it is already answering, and the gateway has nothing to
    /// send.
    pub fn is_starved(&self, gateway: &Gateway) -> bool {
        let begun = self.pipe.is_open() && self.pipe.wire.is_empty() && self.rest > 0;
        begun && gateway.unsent(self.pipe.conn).is_empty()
    }

    /// Reads bytes of a request, and may start to answer.
    pub fn read(&mut self, bytes: &[u8], rng: &mut Rng, book: &mut Book) -> Result<(), String> {
        if self.has_form {
            return Ok(());
        }
        let late = bytes.len().min(self.rest);
        self.rest -= late;
        self.got.extend_from_slice(&bytes[late..]);
        let text = String::from_utf8_lossy(&self.got).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(()) };
        for secret in ["tg_live_", "cookie", "x-forwarded"] {
            if head.contains(secret) {
                return Err(format!("{secret} was sent to a provider: {head}"));
            }
        }
        if head.contains(media::BOUNDARY) {
            return self.answer_media_form(head, body, rng, book);
        }
        if head.contains("multipart/form-data") {
            self.answer_form(rng, book);
            return Ok(());
        }
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let length: usize = length.ok_or_else(|| format!("a request without a length: {head}"))?;
        let known = body.contains("marker=") && body.contains("\"up-");
        let marked =
            body.contains("marker=") && body.split("marker=").nth(1).is_some_and(|rest| rest.matches(';').count() > 1);
        if self.early && body.len() < length && marked && self.answer.is_none() && !self.silent && rng.below(3) == 0 {
            return self.answer_early(head, body.to_string(), length, rng, book);
        }
        let early = body.len() < length && known && rng.below(400) == 0;
        if (body.len() < length && !early) || self.answer.is_some() || self.silent {
            return Ok(());
        }
        if body.len() > length {
            return Err(format!("more than one request at a time: {text}"));
        }
        let mut asked = self.asked(head, body, early, book)?;
        let mut text_bytes = 0;
        if !early {
            let value = serde_json::from_str(body).map_err(|error| format!("{error} in {body}"))?;
            text_bytes = greedy::text_bytes(&value);
            let is_media = asked.passthrough.is_some_and(Passthrough::is_media);
            if is_media || value["max_tokens"] == greedy::ANSWER {
                let bill = match is_media {
                    true => Media::of(asked.marker).bill(),
                    false => greedy::bill(&value, asked.passthrough.is_some()),
                };
                asked.bill = Some(bill);
                book.bills.insert(asked.marker, bill);
            }
        }
        self.got.clear();
        self.requests += 1;
        self.last = (asked.marker, asked.attempt);
        let (mut bytes, mut after) = answer(&asked, rng, book);
        if let Some(served) = book.served.get_mut(&self.last) {
            served.text_bytes = text_bytes;
        }
        if early {
            // The rest of the request would be parsed as another request.
            book.faults.note("provider answers before it has read the request");
            bytes = plain(rng, 400, "{\"error\":{\"message\":\"early\"}}");
            after = After::Reset;
            book.served.insert((asked.marker, asked.attempt), Served::default());
        }
        self.answer = Some((bytes, after));
        Ok(())
    }

    /// Answers a good form when its closing boundary has arrived.
    fn answer_media_form(&mut self, head: &str, body: &str, rng: &mut Rng, book: &mut Book) -> Result<(), String> {
        if !body.contains(&format!("--{}--", media::BOUNDARY)) {
            return Ok(());
        }
        self.has_form = true;
        self.requests += 1;
        let asked = self.asked(head, body, true, book)?;
        if !body.contains("\r\nup-small\r\n") {
            return Err(format!("the model was not replaced: {body:.2000}"));
        }
        self.got.clear();
        self.last = (asked.marker, asked.attempt);
        book.bills.insert(asked.marker, Media::of(asked.marker).bill());
        self.answer = Some(answer(&asked, rng, book));
        Ok(())
    }

    /// Answers a form while it arrives, or not at all.
    fn answer_form(&mut self, rng: &mut Rng, book: &mut Book) {
        self.has_form = true;
        self.got.clear();
        self.requests += 1;
        let event = "data: {\"type\":\"transcript.text.delta\",\"delta\":\"a\"}\n\n";
        let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let (bytes, after) = match rng.below(4) {
            0 => (plain(rng, 200, "{\"text\":\"a\",\"data\":[{}]}"), After::Keep),
            1 => (plain(rng, 500, "{}"), After::Keep),
            2 => (format!("{stream}{}", event.repeat(50)).into_bytes(), After::Silence),
            _ => return self.silent = true,
        };
        book.faults.note("provider answers a form while it arrives");
        self.answer = Some((bytes, after));
    }

    /// Answers an incompletely read request, and continues to read it.
    fn answer_early(
        &mut self,
        head: &str,
        body: String,
        length: usize,
        rng: &mut Rng,
        book: &mut Book,
    ) -> Result<(), String> {
        let asked = Asked { stream: body.contains(";stream;"), ..self.asked(head, &body, true, book)? };
        self.got.clear();
        self.requests += 1;
        self.last = (asked.marker, asked.attempt);
        let (bytes, after) = answer(&asked, rng, book);
        let hostile = book.served.get(&self.last).is_none_or(|served| served.hostile);
        let good = bytes.starts_with(b"HTTP/1.1 200 OK\r\n") && bytes.len() > 200 && !hostile;
        if !good || after == After::Silence {
            // The rest of the request would be parsed as another request.
            self.answer = Some((bytes, After::Reset));
            return Ok(());
        }
        book.faults.note("provider answers well before it has read the request");
        self.rest = length - body.len();
        self.answer = Some((bytes, after));
        Ok(())
    }

    fn asked(&self, head: &str, body: &str, early: bool, book: &Book) -> Result<Asked, String> {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let passthrough = Passthrough::ALL.into_iter().find(|passthrough| path == passthrough.path());
        let marker = body.split("marker=").nth(1).and_then(|rest| rest.split(';').next()?.parse().ok());
        // A request that was mangled by its client has none, and no particular answer is expected.
        let marker: u64 = marker.unwrap_or(0);
        let attempt = 1 + book.served.range((marker, 0)..(marker + 1, 0)).count() as u64;
        if attempt > 8 && marker > 0 {
            return Err(format!("request {marker} is tried for the {attempt}th time"));
        }
        let model = match self.format {
            Shape::Messages => "\"up-large\"",
            Shape::Responses => "\"up-reply\"",
            _ => "\"up-small\"",
        };
        if !early && marker > 0 && !body.contains(model) {
            return Err(format!("the model was not replaced: {body}"));
        }
        Ok(Asked {
            marker,
            attempt,
            format: self.format,
            stream: body.contains("\"stream\":true"),
            usage: self.format != Shape::Chat || body.contains("\"include_usage\":true"),
            passthrough,
            texts: if body.contains("\"n\":2,") { 2 } else { 1 },
            bill: None,
            lies: self.lies,
            odd: self.odd,
        })
    }

    /// Sends more of the answer, in pieces of random size.
    pub fn write(&mut self, rng: &mut Rng, book: &mut Book) {
        if !self.pipe.is_open() {
            return;
        }
        let Some((bytes, after)) = &mut self.answer else {
            if rng.below(3000) == 0 {
                book.faults.note("provider says 408 and closes an idle connection");
                if let Some(served) = book.served.get_mut(&self.last).filter(|_| self.silent) {
                    // The answer had already started.
                    served.hostile = true;
                }
                self.pipe.wire.extend(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n");
                self.pipe.ending = Some(Ending::Fin);
            } else if rng.below(1500) == 0 {
                book.faults.note("provider closes or resets an idle connection");
                self.pipe.ending = Some(if rng.below(2) == 0 { Ending::Fin } else { Ending::Broken });
            }
            return;
        };
        if rng.below(500) == 0 {
            book.faults.note("provider resets in the middle of an answer");
            self.pipe.ending = Some(Ending::Broken);
            return;
        }
        let most = if rng.below(3) == 0 { 8 } else { 8000 };
        // The end of an answer waits for the end of its request.
        let ready = if self.rest > 0 { bytes.len().saturating_sub(100) } else { bytes.len() };
        let count = ready.min(1 + rng.below(most) as usize);
        self.pipe.wire.extend(bytes.drain(..count));
        if bytes.is_empty() {
            match after {
                After::Keep => {}
                After::Fin => self.pipe.ending = Some(Ending::Fin),
                After::Reset => self.pipe.ending = Some(Ending::Broken),
                After::Silence => self.silent = true,
            }
            self.answer = None;
        }
    }
}

fn plain(rng: &mut Rng, status: u16, body: &str) -> Vec<u8> {
    let retry = if rng.below(3) == 0 { "retry-after: 9\r\n" } else { "" };
    format!("HTTP/1.1 {status} Words\r\n{retry}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Finish reason of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Reason {
    /// The reason as JSON.
    text: &'static str,
    /// True if the reason means a complete answer.
    is_complete: bool,
}

impl Reason {
    /// Returns a good reason in most cases; a lying provider also uses others.
    fn of(asked: &Asked, rng: &mut Rng, faults: &mut Faults) -> Reason {
        let good = match asked.format {
            Shape::Messages => "\"end_turn\"",
            Shape::Responses => "\"completed\"",
            _ => "\"stop\"",
        };
        if !asked.lies || rng.below(3) > 0 {
            return Reason { text: good, is_complete: true };
        }
        let is_unknown = rng.below(4) == 0;
        if is_unknown {
            faults.note("unknown finish reason");
            return Reason { text: "\"full_moon\"", is_complete: true };
        }
        if asked.is(Shape::Responses) {
            faults.note("status that means failure");
            let failures = ["\"failed\"", "\"cancelled\"", "\"in_progress\"", "\"queued\""];
            return Reason { text: failures[rng.below(4) as usize], is_complete: false };
        }
        let failures = ["\"error\"", "\"abort\"", "\"insufficient_system_resource\""];
        let missing = ["\"\"", "\"null\"", "null"];
        if asked.stream && rng.below(2) == 0 {
            faults.note("finish reason that is none");
            return Reason { text: missing[rng.below(3) as usize], is_complete: false };
        }
        faults.note("finish reason that means failure");
        Reason { text: failures[rng.below(3) as usize], is_complete: false }
    }
}

/// Bodies of errors: ordinary words, a failure of the account by code or words, a request larger than a limit.
const ERRORS: [&str; 4] = [
    "{\"error\":{\"message\":\"no\",\"type\":\"t\"}}",
    "{\"error\":{\"message\":\"no\",\"code\":\"billing_hard_limit_reached\"}}",
    "{\"error\":{\"message\":\"Your credit balance is too low\",\"type\":\"invalid_request_error\"}}",
    "{\"error\":{\"message\":\"Request too large for m\",\"type\":\"tokens\",\"code\":\"rate_limit_exceeded\"}}",
];

/// Returns the bytes of the answer to one request, and the action after it.
fn answer(asked: &Asked, rng: &mut Rng, book: &mut Book) -> (Vec<u8>, After) {
    let mut served = Served::default();
    let interim: &[u8] = if rng.below(10) == 0 { b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" } else { b"" };
    let kind = rng.below(20);
    let bad = ["error status", "bad gateway in HTML", "no HTTP", "no answer", "half a head", "error with status 200"];
    if let Some(bad) = bad.get(kind as usize) {
        book.faults.note(bad);
    }
    let (bytes, after) = match kind {
        0 => {
            let status = [400, 401, 404, 413, 422, 429, 500, 503, 529, 302][rng.below(10) as usize];
            let body = ERRORS[rng.below(ERRORS.len() as u64) as usize];
            (plain(rng, status, body), After::Keep)
        }
        1 => (plain(rng, 502, "<html>bad gateway</html>"), After::Fin),
        2 => (b"\x16\x03\x01 not http\r\n\r\n".to_vec(), After::Keep),
        3 => (Vec::new(), if rng.below(2) == 0 { After::Silence } else { After::Reset }),
        4 => (b"HTTP/1.1 200 OK\r\ncontent-le".to_vec(), After::Fin),
        5 => (plain(rng, 200, "{\"error\":{\"message\":\"soft failure\"}}"), After::Keep),
        6.. if asked.passthrough.is_some_and(Passthrough::is_media) => media(asked, rng, &mut served, &mut book.faults),
        6 if asked.odd => {
            book.faults.note("success without an answer");
            match rng.below(2) {
                0 => (plain(rng, 200, "{\"id\":\"c\",\"choices\":[],\"content\":[],\"output\":[]}"), After::Keep),
                _ => (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), After::Keep),
            }
        }
        7 if asked.odd && asked.stream => {
            book.faults.note("one response in the place of a stream");
            whole(&Asked { stream: false, ..*asked }, rng, &mut served, &mut book.faults)
        }
        _ if asked.stream => stream(asked, rng, &mut served, &mut book.faults),
        _ => whole(asked, rng, &mut served, &mut book.faults),
    };
    let mut bytes = [interim, &bytes].concat();
    if rng.below(12) == 0 && !bytes.is_empty() {
        mangle(&mut bytes, rng);
        book.faults.note("bytes of an answer changed");
        served.hostile = true;
    }
    book.served.insert((asked.marker, asked.attempt), served);
    (bytes, after)
}

/// Answers a request for audio or images.
fn media(asked: &Asked, rng: &mut Rng, served: &mut Served, faults: &mut Faults) -> (Vec<u8>, After) {
    let media = Media::of(asked.marker);
    let (content_type, body) = media.answered(rng.below(3) == 0, rng);
    let cut = maybe_cut(rng, body.len(), faults);
    *served = Served { pieces: 1, complete: cut.is_none(), ..Served::default() };
    let (bytes, after) = framed(rng, content_type, body.as_bytes(), cut);
    // Only the framing of bytes shows that some are missing.
    let seems_whole = bytes.ends_with(b"\r\n0\r\n\r\n") || (after == After::Fin && is_to_end(&bytes));
    served.hostile = cut.is_some() && media.answer == media::Answer::Bytes && seems_whole;
    (bytes, after)
}

/// True if the end of the connection is the end of the answer.
fn is_to_end(bytes: &[u8]) -> bool {
    bytes.windows(19).any(|line| line == b"connection: close\r\n")
}

fn text(asked: &Asked, piece: u64) -> String {
    format!("m{}.a{}.{piece};", asked.marker, asked.attempt)
}

/// Wraps a body in one of the three framings. If the body is cut, only its first bytes are sent and the promised rest
/// never follows; occasionally a chunked body ends properly nevertheless.
fn framed(rng: &mut Rng, content_type: &str, body: &[u8], cut: Option<usize>) -> (Vec<u8>, After) {
    let mut out = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n").into_bytes();
    let sent = &body[..cut.unwrap_or(body.len())];
    let broken = [After::Fin, After::Reset, After::Silence][rng.below(3) as usize];
    let after = if cut.is_some() { broken } else { After::Keep };
    match rng.below(4) {
        0 => {
            out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
            out.extend_from_slice(sent);
            (out, after)
        }
        1 => {
            out.extend_from_slice(b"connection: close\r\n\r\n");
            out.extend_from_slice(sent);
            (out, if cut.is_some() { after } else { After::Fin })
        }
        _ => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            let mut rest = sent;
            while !rest.is_empty() {
                let (chunk, more) = rest.split_at(rest.len().min(1 + rng.below(3000) as usize));
                out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
                rest = more;
            }
            if cut.is_none() || rng.below(4) == 0 {
                out.extend_from_slice(b"0\r\n\r\n");
            }
            (out, after)
        }
    }
}

/// Returns the offset at which an answer is cut, if it is.
fn maybe_cut(rng: &mut Rng, len: usize, faults: &mut Faults) -> Option<usize> {
    if rng.below(6) != 0 {
        return None;
    }
    faults.note("answer cut short");
    Some(rng.below(len as u64) as usize)
}

/// Returns the tokens that a provider reports.
fn used(asked: &Asked, rng: &mut Rng) -> (u64, u64) {
    let some = (1 + rng.below(500), 1 + rng.below(300));
    asked.bill.map_or(some, |bill| (bill.input, bill.output))
}

fn whole(asked: &Asked, rng: &mut Rng, served: &mut Served, faults: &mut Faults) -> (Vec<u8>, After) {
    let (input, output) = used(asked, rng);
    let pad = "x".repeat(if rng.below(8) == 0 { rng.below(120_000) as usize } else { 0 });
    let content = text(asked, 0);
    let usage = rng.below(5) > 0;
    let end = Reason::of(asked, rng, faults);
    let output = if let Some(Passthrough::Embeddings | Passthrough::Rerank) = asked.passthrough { 0 } else { output };
    let body = if let Some(passthrough) = asked.passthrough {
        relayed(passthrough, (&content, &pad), usage.then_some((input, output)), end.text)
    } else if asked.is(Shape::Responses) {
        response(&content, &format!("\"{pad}\""), end.text, usage.then_some((input, output)))
    } else if asked.is(Shape::Messages) {
        let usage = if usage {
            format!(",\"usage\":{{\"input_tokens\":{input},\"output_tokens\":{output}}}")
        } else {
            String::new()
        };
        format!(
            "{{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"up-large\",\
             \"content\":[{{\"type\":\"text\",\"text\":\"{content}\"}}],\"stop_reason\":{},\"pad\":\"{pad}\"{usage}}}",
            end.text
        )
    } else {
        let usage = if usage {
            format!(",\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":0}}")
        } else {
            String::new()
        };
        format!(
            "{{\"id\":\"c\",\"object\":\"chat.completion\",\"model\":\"up-small\",\"choices\":[{{\"index\":0,\
             \"message\":{{\"role\":\"assistant\",\"content\":\"{content}\"}},\"finish_reason\":{}}}],\
             \"pad\":\"{pad}\"{usage}}}",
            end.text
        )
    };
    let usual = asked.is(Shape::Chat) && asked.passthrough.is_none() && asked.bill.is_none();
    let body = if asked.odd && usual { odd::whole(&body, usage.then_some((input, output)), rng, faults) } else { body };
    let cut = maybe_cut(rng, body.len(), faults);
    let has_reason = !matches!(asked.passthrough, Some(Passthrough::Embeddings | Passthrough::Rerank));
    let complete = cut.is_none() && (end.is_complete || !has_reason);
    *served = Served { pieces: 1, complete, hostile: false, usage: usage.then_some((input, output)), text_bytes: 0 };
    framed(rng, "application/json", body.as_bytes(), cut)
}

/// Returns a response object of the Responses API.
fn response(content: &str, pad: &str, status: &str, usage: Option<(u64, u64)>) -> String {
    let item = "\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\"";
    let usage = usage.map_or("null".to_string(), |(input, output)| {
        let total = input + output;
        format!("{{\"input_tokens\":{input},\"output_tokens\":{output},\"total_tokens\":{total}}}")
    });
    format!(
        "{{\"id\":\"resp_1\",\"object\":\"response\",\"created_at\":1,\"status\":{status},\"model\":\"up-reply\",\
         \"output\":[{{{item},\"content\":[{{\"type\":\"output_text\",\"text\":\"{content}\",\"annotations\":[]}}]}}],\
         \"pad\":{pad},\"usage\":{usage}}}"
    )
}

/// Returns the events of a response, without the last one.
fn response_events(asked: &Asked, pieces: u64) -> String {
    let mut out = String::new();
    let mut event = |kind: &str, members: &str| {
        out.push_str(&format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{members}}}\n\n"));
    };
    let item = "\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\"";
    let place = "\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0";
    event(
        "response.created",
        "\"response\":{\"id\":\"resp_1\",\"status\":\"in_progress\",\"model\":\"up-reply\",\"output\":[]}",
    );
    event(
        "response.output_item.added",
        &format!("\"output_index\":0,\"item\":{{{item},\"status\":\"in_progress\",\"content\":[]}}"),
    );
    let part = |text: &str| format!("\"part\":{{\"type\":\"output_text\",\"text\":\"{text}\",\"annotations\":[]}}");
    event("response.content_part.added", &format!("{place},{}", part("")));
    let mut all = String::new();
    for piece in 0..pieces {
        let content = text(asked, piece);
        event("response.output_text.delta", &format!("{place},\"delta\":\"{content}\""));
        all.push_str(&content);
    }
    event("response.output_text.done", &format!("{place},\"text\":\"{all}\""));
    event("response.content_part.done", &format!("{place},{}", part(&all)));
    let content = format!("{{\"type\":\"output_text\",\"text\":\"{all}\",\"annotations\":[]}}");
    event(
        "response.output_item.done",
        &format!("\"output_index\":0,\"item\":{{{item},\"status\":\"completed\",\"content\":[{content}]}}"),
    );
    out
}

/// Returns a complete answer to a relayed request.
fn relayed(passthrough: Passthrough, (content, pad): (&str, &str), usage: Option<(u64, u64)>, reason: &str) -> String {
    let (input, output) = usage.unwrap_or_default();
    let (own, usage) = match passthrough {
        Passthrough::Embeddings => (
            format!("\"data\":[{{\"index\":0,\"embedding\":\"{content}\"}}]"),
            format!("\"usage\":{{\"prompt_tokens\":{input},\"total_tokens\":{input}}}"),
        ),
        Passthrough::Rerank => (
            format!("\"results\":[{{\"index\":0,\"relevance_score\":0.50,\"document\":{{\"text\":\"{content}\"}}}}]"),
            format!("\"meta\":{{\"tokens\":{{\"input_tokens\":{input}}}}}"),
        ),
        Passthrough::Completions => (
            format!("\"choices\":[{{\"text\":\"{content}\",\"index\":0,\"finish_reason\":{reason}}}]"),
            format!("\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output}}}"),
        ),
        passthrough => unreachable!("{passthrough:?} is not asked for"),
    };
    let usage = if (input, output) == (0, 0) { "\"usage\":null" } else { &usage };
    format!("{{\"id\":\"c\",\"model\":\"up-small\",{own},\"pad\":\"{pad}\",{usage}}}")
}

fn stream(asked: &Asked, rng: &mut Rng, served: &mut Served, faults: &mut Faults) -> (Vec<u8>, After) {
    let pieces = rng.below(12);
    let (input, output) = used(asked, rng);
    let report = rng.below(5) > 0 && asked.usage;
    // Occasionally the answer has fewer texts than requested.
    let ends = asked.texts.min(pieces.max(1));
    let end = Reason::of(asked, rng, faults);
    let mut out = String::new();
    if asked.is(Shape::Messages) {
        out.push_str(&format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"msg_1\",\"type\":\"message\",\
             \"role\":\"assistant\",\"model\":\"up-large\",\"content\":[],\"usage\":{{\"input_tokens\":{input},\
             \"output_tokens\":1}}}}}}\n\n"
        ));
    }
    if asked.is(Shape::Responses) {
        out.push_str(&response_events(asked, pieces));
    }
    let pad = "y".repeat(if rng.below(10) == 0 { rng.below(30_000) as usize } else { 0 });
    let deltas = if asked.is(Shape::Responses) { 0 } else { pieces };
    for piece in 0..deltas {
        let content = text(asked, piece);
        out.push_str(&if asked.is(Shape::Messages) {
            format!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
                 \"delta\":{{\"type\":\"text_delta\",\"text\":\"{content}\"}},\"pad\":\"{pad}\"}}\n\n"
            )
        } else if asked.passthrough.is_some() {
            format!(
                "data: {{\"id\":\"c\",\"object\":\"text_completion\",\"model\":\"up-small\",\"choices\":\
                 [{{\"text\":\"{content}\",\"index\":{},\"finish_reason\":null}}],\"pad\":\"{pad}\"}}\n\n",
                piece.min(ends - 1)
            )
        } else {
            format!(
                "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"up-small\",\"choices\":\
                 [{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}}}}],\"pad\":\"{pad}\"}}\n\n"
            )
        });
        if piece == 1 && ends > 1 {
            // The first text ends while the other one continues.
            out.push_str(&end_of(asked, 0, end));
        }
        if rng.below(10) == 0 {
            out.push_str(": still here\n\n");
        }
    }
    let error = rng.below(12) == 0;
    if error {
        faults.note("error event in a stream");
        let event = if !asked.is(Shape::Chat) { "event: error\n" } else { "" };
        out.push_str(&format!(
            "{event}data: {{\"type\":\"error\",\"code\":\"t\",\"message\":\"overloaded\",\"error\":{{\"type\":\"t\",\"message\":\"overloaded\"}}}}\n\n"
        ));
    } else {
        finish(asked, rng, &mut out, (input, output), (report, pieces, ends, end), faults);
    }
    if asked.odd {
        out = odd::stream(&out, asked.format, asked.passthrough.is_some(), rng, faults);
    }
    let mut cut = maybe_cut(rng, out.len(), faults);
    if asked.passthrough.is_some() {
        // The cut is between two events, so only the contents show that something is missing.
        cut = cut.map(|cut| out[..cut].rfind("\n\n").map_or(0, |end| end + 2));
    }
    let sent = &out[..cut.unwrap_or(out.len())];
    let reasons = sent.matches(&format!("{}}}", end.text)).count() as u64;
    let finished = match asked.format {
        Shape::Messages => reasons > 0,
        Shape::Responses => sent.contains("\"type\":\"response.completed\"") && sent.ends_with("}}\n\n"),
        _ => reasons == ends,
    };
    let finished = finished && end.is_complete;
    let usage = (report || asked.is(Shape::Messages)).then_some((input, output));
    *served = Served { pieces, complete: finished, hostile: false, usage, text_bytes: 0 };
    framed(rng, "text/event-stream", out.as_bytes(), cut)
}

/// Appends the proper end of a stream, sometimes without its terminator.
fn finish(
    asked: &Asked,
    rng: &mut Rng,
    out: &mut String,
    (input, output): (u64, u64),
    (report, pieces, ends, end): (bool, u64, u64, Reason),
    faults: &mut Faults,
) {
    let terminated = rng.below(6) > 0;
    if !terminated {
        faults.note("stream without its terminator");
    }
    if asked.is(Shape::Messages) {
        out.push_str(&format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":{}}},\
             \"usage\":{{\"output_tokens\":{output}}}}}\n\n",
            end.text
        ));
        if terminated {
            out.push_str("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
        }
        return;
    }
    if asked.is(Shape::Responses) {
        let all: String = (0..pieces).map(|piece| text(asked, piece)).collect();
        let last = response(&all, "null", end.text, report.then_some((input, output)));
        let kind = if end.text == "\"failed\"" { "failed" } else { "completed" };
        out.push_str(&format!(
            "event: response.{kind}\ndata: {{\"type\":\"response.{kind}\",\"response\":{last}}}\n\n"
        ));
        return;
    }
    out.push_str(&end_of(asked, ends - 1, end));
    if report {
        out.push_str(&format!(
            "data: {{\"id\":\"c\",\"model\":\"up-small\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{input},\
             \"completion_tokens\":{output}}}}}\n\n"
        ));
    }
    if terminated {
        out.push_str("data: [DONE]\n\n");
    }
}

/// Returns the event that ends one text of a stream.
fn end_of(asked: &Asked, index: u64, end: Reason) -> String {
    let own = if asked.passthrough.is_some() { "\"text\":\"\"" } else { "\"delta\":{}" };
    format!(
        "data: {{\"id\":\"c\",\"model\":\"up-small\",\"choices\":[{{\"index\":{index},{own},\"finish_reason\":{}}}]}}\n\n",
        end.text
    )
}
