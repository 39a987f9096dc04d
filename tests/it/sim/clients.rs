//! Scripted clients: each has a few requests to send, a temperament, and a strict check of the answers that it may get.

use super::check::{Reading, is_hostile};
use super::greedy;
use super::media::{self, Media};
use super::providers::Book;
use super::tally::Faults;
use super::wider::Wider;
use crate::support::world::Pipe;
use std::collections::VecDeque;
use tollgate::base::rng::Rng;
use tollgate::base::seam::Ending;
use tollgate::policy::keys::issue;
use tollgate::wire::Passthrough;

/// Kind of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A request that a provider should serve. `cross`: to a model of the other API format. `passthrough`: relayed without
    /// translation.
    Generate {
        messages: bool,
        stream: bool,
        cross: bool,
        passthrough: Option<Passthrough>,
    },
    Models,
    Quota,
    Root,
    BadKey,
    UnknownModel,
    BadJson,
    TooLarge,
    NotHttp,
    /// A request with random changes to its bytes; the last one of its connection.
    Mangled,
    /// A form with fields that are left out, whose end may be broken; the last one of its connection.
    Form,
    /// A request for audio or images.
    Media,
}

impl Kind {
    /// Returns the intended error in the request.
    fn fault(self) -> Option<&'static str> {
        match self {
            Kind::Generate { .. } | Kind::Media | Kind::Models | Kind::Quota | Kind::Root => None,
            Kind::BadKey => Some("unknown key"),
            Kind::UnknownModel => Some("unknown model"),
            Kind::BadJson => Some("body that is no JSON"),
            Kind::TooLarge => Some("body that is too large"),
            Kind::NotHttp => Some("request that is no HTTP"),
            Kind::Mangled => Some("bytes of a request changed"),
            Kind::Form => Some("form with fields that are left out"),
        }
    }
}

/// A client's record of a request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub kind: Kind,
    pub marker: u64,
    pub key: usize,
    /// True if the greedy tenant sends it.
    pub greedy: bool,
    /// True if its model has a provider of the Responses format.
    pub reply: bool,
    /// True if the client requested that the connection be closed after it.
    pub last: bool,
    /// True for an HTTP/1.0 request, which is the last one.
    pub old: bool,
    /// Body that is sent only after `100 Continue`.
    pub held_body: Option<Vec<u8>>,
}

impl Ask {
    /// Returns the model that the request names.
    pub fn model(&self) -> &'static str {
        match self.kind {
            Kind::UnknownModel => "nobody",
            Kind::Media => media::MODEL,
            Kind::Generate { passthrough: Some(_), .. } => "small",
            Kind::Generate { .. } if self.reply => "reply",
            Kind::Generate { messages, cross, .. } if messages != cross => "large",
            _ => "small",
        }
    }

    /// Returns true if the request has the header that asks for the cost of a stream.
    pub fn wants_cost(&self) -> bool {
        self.marker.is_multiple_of(3)
    }

    /// Returns true if a failure of its provider can only be shown by a connection that is closed within the answer: the
    /// answer is bytes, or may have become bytes on its way.
    pub fn may_be_cut(&self, book: &Book) -> bool {
        let is_bytes = || Media::of(self.marker).answer == media::Answer::Bytes;
        self.kind == Kind::Media && (is_bytes() || is_hostile(self, book))
    }

    /// Returns true if the request is translated.
    pub fn crosses(&self) -> bool {
        matches!(self.kind, Kind::Generate { cross, passthrough: None, .. } if cross || self.reply)
    }
}

/// Behaviour of a client.
#[derive(Copy, Clone, Debug)]
pub struct Temper {
    /// True if it sends pipelined requests in one piece.
    pub bursts: bool,
    /// One in this number of bodies is large.
    pub large: u64,
    /// Maximum size of a large body, in bytes.
    pub most: u64,
    /// True if the beginning of a body reveals the kind of answer.
    pub tells: bool,
    /// True if requests contain their marker as the user.
    pub names_user: bool,
    pub pipelines: bool,
    pub drips: bool,
    /// The client reads at one in this number of opportunities.
    pub slowness: u64,
    /// The client disconnects at one in this number of steps; 0 for never.
    pub leaves: u64,
}

/// A client connection.
#[derive(Debug)]
pub struct Client {
    pub pipe: Pipe,
    pub temper: Temper,
    /// Requests not sent yet.
    pub plan: VecDeque<Ask>,
    /// Requests that were sent and not answered yet.
    pub awaiting: VecDeque<Ask>,
    pub outbox: Vec<u8>,
    pub reading: Reading,
    /// True once it has sent a form with a broken end.
    pub breaks_form: bool,
}

/// Keys and markers for new requests.
pub struct Supply<'a> {
    pub keys: &'a [String],
    pub next_marker: &'a mut u64,
    pub requests: &'a mut u64,
    pub faults: &'a mut Faults,
    pub wider: Wider,
}

impl Client {
    pub fn new(pipe: Pipe, rng: &mut Rng, supply: &mut Supply<'_>) -> Client {
        let wider = supply.wider;
        let temper = Temper {
            bursts: wider.nameless,
            most: if wider.tight { 240_000 } else { 150_000 },
            large: if wider.tight || wider.early { 2 } else { 6 },
            tells: wider.early,
            names_user: wider.greedy,
            pipelines: rng.below(3) == 0,
            drips: rng.below(4) == 0,
            slowness: [1, 1, 2, 6][rng.below(4) as usize],
            leaves: [0, 0, 0, 40, 200][rng.below(5) as usize],
        };
        let temper = Temper { pipelines: temper.pipelines || wider.nameless, ..temper };
        let temper = Temper { drips: temper.drips || (wider.upgrade.is_some() && rng.below(2) == 0), ..temper };
        let greedy = wider.media || (wider.greedy && rng.below(3) == 0);
        let temper = Temper { leaves: if greedy { 12 } else { temper.leaves }, ..temper };
        let temper = if wider.media { Temper { slowness: 6, drips: false, ..temper } } else { temper };
        let honest = supply.keys.len() - usize::from(wider.greedy);
        let count = if wider.nameless { 1 + rng.below(40) } else { 1 + rng.below(5) };
        let mut plan = VecDeque::new();
        for _ in 0..count {
            *supply.next_marker += 1;
            let kind = match kind(rng) {
                Kind::Generate { stream, .. } if wider.relays && rng.below(2) == 0 => relayed(stream, rng),
                kind => kind,
            };
            let kind = if greedy { greedy_kind(wider, rng) } else { kind };
            plan.push_back(Ask {
                kind,
                marker: *supply.next_marker,
                key: if greedy { honest } else { rng.below(honest as u64) as usize },
                greedy,
                reply: wider.lies && !greedy && rng.below(4) == 0,
                last: rng.below(12) == 0,
                old: rng.below(15) == 0,
                held_body: None,
            });
        }
        let (reading, breaks_form) = (Reading::default(), false);
        Client { pipe, temper, plan, awaiting: VecDeque::new(), outbox: Vec::new(), reading, breaks_form }
    }

    /// Returns a summary to print in a failure.
    pub fn brief(&self) -> String {
        format!(
            "{:?} closed {:?} ended {:?}, {} bytes unsent and {} on the wire, read at {}, {:?}, awaiting {:?}, {}",
            self.pipe.conn,
            self.pipe.closed,
            self.pipe.ending,
            self.outbox.len(),
            self.pipe.wire.len(),
            self.pipe.read_at,
            self.temper,
            self.awaiting.iter().map(|ask| (ask.kind, ask.marker, ask.key)).collect::<Vec<_>>(),
            self.reading.brief(),
        )
    }

    /// Sends something, starts a request, or disconnects.
    pub fn act(&mut self, rng: &mut Rng, supply: &mut Supply<'_>) {
        if !self.pipe.is_open() {
            return;
        }
        // Most clients leave media only once they have asked for them.
        let is_idle = self.awaiting.is_empty() || !self.outbox.is_empty();
        let stays = supply.wider.media && is_idle && rng.below(8) > 0;
        if self.temper.leaves > 0 && rng.below(self.temper.leaves) == 0 && !stays {
            return self.leave(rng, supply.faults);
        }
        let most = if self.temper.bursts { 1 + rng.below(40) } else { 1 };
        for _ in 0..most {
            self.begin_next(rng, supply);
        }
        if !self.outbox.is_empty() {
            let most = if self.temper.drips { 4 } else { 60_000 };
            let count = self.outbox.len().min(1 + rng.below(most) as usize);
            self.pipe.wire.extend(self.outbox.drain(..count));
        }
    }

    fn begin_next(&mut self, rng: &mut Rng, supply: &mut Supply<'_>) {
        if !self.pipe.is_open() {
            return;
        }
        if (self.outbox.is_empty() || self.temper.bursts) && (self.awaiting.is_empty() || self.temper.pipelines) {
            let held = self.awaiting.back().is_some_and(|ask| ask.held_body.is_some() || ask.last || ask.old);
            match self.plan.pop_front() {
                _ if held => {}
                Some(ask) => self.begin(ask, rng, supply),
                None if self.awaiting.is_empty() && rng.below(30) == 0 => self.leave(rng, supply.faults),
                None => {}
            }
        }
    }

    /// Ends the connection from the client's side.
    pub fn leave(&mut self, rng: &mut Rng, faults: &mut Faults) {
        let how = if rng.below(2) == 0 { Ending::Fin } else { Ending::Broken };
        let waits = !self.awaiting.is_empty() || !self.outbox.is_empty();
        faults.note(match (waits, how) {
            (true, Ending::Broken) => "client resets in the middle of a request",
            (true, _) => "client ends its side in the middle of a request",
            (false, _) => "client leaves between requests",
        });
        self.pipe.ending = Some(how);
        self.outbox.clear();
    }

    /// Handles `100 Continue`, or a final answer without it.
    pub fn release_body(&mut self, wanted: bool) {
        let Some(ask) = self.awaiting.front_mut() else { return };
        if let Some(body) = ask.held_body.take()
            && wanted
        {
            self.outbox.extend_from_slice(&body);
        }
    }

    fn begin(&mut self, mut ask: Ask, rng: &mut Rng, supply: &mut Supply<'_>) {
        *supply.requests += 1;
        if let Some(fault) = ask.kind.fault() {
            supply.faults.note(fault);
        }
        let key = &supply.keys[ask.key];
        let close = if ask.last { "connection: close\r\n" } else { "" };
        let version = if ask.old { "1.0" } else { "1.1" };
        let get = |path: &str, key: &str| {
            format!("GET {path} HTTP/{version}\r\nhost: g\r\n{close}authorization: Bearer {key}\r\n\r\n").into_bytes()
        };
        let bytes = match ask.kind {
            Kind::Models => get("/v1/models", key),
            Kind::Quota => get("/v1/quota", key),
            Kind::Root => get("/", key),
            Kind::BadKey if supply.next_marker.is_multiple_of(2) => get("/v1/models", "tg_live_nonsense"),
            // A well-formed key might have been issued a moment ago, so the gateway looks it up.
            Kind::BadKey => get("/v1/models", &issue("tg_", |out| out.fill(7)).text),
            Kind::NotHttp => b"GET /v1/models HTTP/1.1\r\nhost : g\r\n\r\n".to_vec(),
            Kind::TooLarge => {
                let head = format!("POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {key}\r\n");
                format!("{head}{close}content-length: 70000000\r\n\r\nxxxxxxxx").into_bytes()
            }
            Kind::Mangled => mangled(key, rng),
            Kind::Form => {
                let (form, is_broken) = form(key, rng);
                self.breaks_form |= is_broken;
                form
            }
            Kind::Media => {
                let lines = format!("{close}authorization: Bearer {key}\r\n");
                Media::of(ask.marker).request(version, &lines, rng)
            }
            Kind::BadJson | Kind::UnknownModel | Kind::Generate { .. } => self.post(&mut ask, key, close, rng),
        };
        if matches!(ask.kind, Kind::Mangled | Kind::Form) {
            // This request has no defined meaning, so the answer must only be valid HTTP.
            self.plan.clear();
            self.reading.lenient = true;
        }
        self.outbox.extend_from_slice(&bytes);
        self.awaiting.push_back(ask);
    }

    fn post(&mut self, ask: &mut Ask, key: &str, close: &str, rng: &mut Rng) -> Vec<u8> {
        let (messages, stream, passthrough) = match ask.kind {
            Kind::Generate { messages, stream, passthrough, .. } => (messages, stream, passthrough),
            _ => (rng.below(2) == 0, false, None),
        };
        let body = body(ask, messages, stream, self.temper, rng);
        let path = match passthrough {
            Some(passthrough) => &format!("/v1/{}", passthrough.as_str()),
            None if messages => "/v1/messages",
            None => "/v1/chat/completions",
        };
        let version = if ask.old { "1.0" } else { "1.1" };
        let mut head = format!("POST {path} HTTP/{version}\r\nhost: g\r\nauthorization: Bearer {key}\r\n{close}");
        if ask.wants_cost() {
            head.push_str("x-tollgate-include-cost: true\r\n");
        }
        if messages {
            head.push_str("cookie: a=b\r\nx-forwarded-for: 10.0.0.1\r\n");
        }
        let payload = if rng.below(3) == 0 && !ask.old {
            head.push_str("transfer-encoding: chunked\r\n");
            let mut out = Vec::new();
            let mut rest = body.as_bytes();
            while !rest.is_empty() {
                let (chunk, more) = rest.split_at(rest.len().min(1 + rng.below(2000) as usize));
                out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
                rest = more;
            }
            out.extend_from_slice(b"0\r\n\r\n");
            out
        } else {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
            body.into_bytes()
        };
        if rng.below(8) == 0 && !ask.old {
            ask.held_body = Some(payload);
            return format!("{head}expect: 100-continue\r\n\r\n").into_bytes();
        }
        [format!("{head}\r\n").as_bytes(), &payload].concat()
    }
}

/// Returns a request with some bytes changed, removed or repeated.
fn mangled(key: &str, rng: &mut Rng) -> Vec<u8> {
    let body = "{\"model\":\"small\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"mangled\"}]}";
    let framing = match rng.below(2) {
        0 => format!("content-length: {}\r\n\r\n{body}", body.len()),
        _ => format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
    };
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\n";
    let mut bytes = format!("{head}authorization: Bearer {key}\r\n{framing}").into_bytes();
    mangle(&mut bytes, rng);
    bytes
}

/// Returns a form with fields that are left out before and behind its file, and whether its end is broken.
fn form(key: &str, rng: &mut Rng) -> (Vec<u8>, bool) {
    let part = |head: &str, length: u64| {
        format!("--b\r\nContent-Disposition: form-data; name={head}\r\n\r\n{}\r\n", "1".repeat(length as usize))
    };
    let (path, file) = [("audio/transcriptions", "file"), ("images/edits", "image")][rng.below(2) as usize];
    let mut body = part("prompt", 1 + rng.below(2000)) + &part("n", 1);
    body.push_str("--b\r\nContent-Disposition: form-data; name=model\r\n\r\nsmall\r\n");
    body.push_str(&part("evil", rng.below(3000)));
    body.push_str(&part(&format!("{file}; filename=a"), rng.below(100_000)));
    let most = if rng.below(3) == 0 { 4 << 20 } else { 3000 };
    body.push_str(&part("evil", rng.below(most)));
    let ends = ["--b--", "--b--\r\n", "--b--x", "--b", "--c--"];
    let end = rng.below(ends.len() as u64) as usize;
    body.push_str(ends[end]);
    // Some forms have more bytes than are declared, or fewer.
    let declared = body.len() as u64 + rng.below(3) - 1;
    let (framing, is_whole) = match rng.below(3) {
        0 => (format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()), true),
        _ => (format!("content-length: {declared}\r\n\r\n{body}"), declared == body.len() as u64),
    };
    let head = format!("POST /v1/{path} HTTP/1.1\r\nhost: g\r\ncontent-type: multipart/form-data; boundary=b\r\n");
    let is_broken = !is_whole || end > 1;
    (format!("{head}authorization: Bearer {key}\r\n{framing}").into_bytes(), is_broken)
}

/// Changes, removes or repeats some bytes.
pub fn mangle(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = b"\r\n\0 :,{}[]\"\\0f"[rng.below(14) as usize],
            2 if bytes.len() > 1 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, bytes[at]),
        }
    }
}

fn kind(rng: &mut Rng) -> Kind {
    match rng.below(20) {
        8 if rng.below(2) == 0 => Kind::Mangled,
        0 => Kind::Models,
        1 => Kind::Quota,
        2 => Kind::Root,
        3 => Kind::BadKey,
        4 => Kind::UnknownModel,
        5 => Kind::BadJson,
        6 if rng.below(3) == 0 => Kind::TooLarge,
        7 if rng.below(3) == 0 => Kind::NotHttp,
        _ => {
            let (messages, stream) = (rng.below(2) == 0, rng.below(2) == 0);
            Kind::Generate { messages, stream, cross: rng.below(3) == 0, passthrough: None }
        }
    }
}

/// Returns a kind of request of the greedy tenant.
fn greedy_kind(wider: Wider, rng: &mut Rng) -> Kind {
    match rng.below(4) {
        0 => return Kind::Form,
        _ if wider.media => return Kind::Media,
        _ => {}
    }
    let passthrough = (wider.relays && rng.below(2) == 0).then_some(Passthrough::Completions);
    Kind::Generate { messages: false, stream: passthrough.is_none() && rng.below(2) == 0, cross: false, passthrough }
}

/// Returns a relayed request. Only completions are streamed.
fn relayed(stream: bool, rng: &mut Rng) -> Kind {
    let passthrough = Passthrough::ALL[rng.below(3) as usize];
    let stream = stream && passthrough == Passthrough::Completions;
    Kind::Generate { messages: false, stream, cross: false, passthrough: Some(passthrough) }
}

/// Returns the body of a relayed request.
fn asked_for(passthrough: Passthrough, text: &str, rng: &mut Rng) -> String {
    match (passthrough, rng.below(2)) {
        (Passthrough::Embeddings, 0) => format!("\"input\":\"{text}\""),
        (Passthrough::Embeddings, _) => format!("\"input\":[\"{text}\",\"\"],\"encoding_format\":\"base64\""),
        (Passthrough::Rerank, _) => format!("\"query\":\"{text}\",\"documents\":[\"a\",{{\"text\":\"b\"}}]"),
        (Passthrough::Completions, 0) => format!("\"prompt\":\"{text}\",\"suffix\":\"}}\",\"max_tokens\":50"),
        (Passthrough::Completions, _) => format!("\"n\":2,\"prompt\":[\"{text}\"],\"max_completion_tokens\":50"),
        (passthrough, _) => unreachable!("{passthrough:?} is not asked for"),
    }
}

fn body(ask: &Ask, messages: bool, stream: bool, temper: Temper, rng: &mut Rng) -> String {
    let model = ask.model();
    let pad = "z".repeat(if rng.below(temper.large) == 0 {
        rng.below(temper.most) as usize
    } else {
        rng.below(200) as usize
    });
    let marker = ask.marker;
    let wanted = match (temper.tells, stream) {
        (false, _) => "",
        (true, true) => "stream;",
        (true, false) => "whole;",
    };
    let text = format!("marker={marker};{wanted}{pad}");
    let mut body = match ask.kind {
        Kind::Generate { passthrough, .. } if ask.greedy => {
            format!("{{{}", greedy::members(&format!("marker={marker};{wanted}"), passthrough.is_some(), rng))
        }
        Kind::Generate { passthrough: Some(passthrough), .. } => format!("{{{}", asked_for(passthrough, &text, rng)),
        _ => format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]"),
    };
    if messages {
        body.push_str(",\"max_tokens\":100");
    }
    if temper.names_user && messages {
        body.push_str(&format!(",\"metadata\":{{\"user_id\":\"m{marker}\"}}"));
    } else if temper.names_user {
        body.push_str(&format!(",\"user\":\"m{marker}\""));
    }
    if stream {
        body.push_str(",\"stream\":true");
        if !messages && rng.below(2) == 0 {
            body.push_str(",\"stream_options\":{\"include_usage\":true}");
        }
    }
    if rng.below(3) == 0 {
        body.push_str(",\"unknown\":[1,{\"a\":null}]");
    }
    if ask.kind == Kind::BadJson {
        body.push_str(",\"oops\"");
    }
    body.push_str(&format!(",\"model\":\"{model}\"}}"));
    body
}
