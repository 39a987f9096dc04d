//! Checks what requests with audio and images cost, whatever their client chooses: the form of the answer, and the
//! moment at which it leaves. Without a report of its provider, no request costs less than its reservation.

use super::rig::{Rig, STREAM};
use tollgate::base::seam::Ending;
use tollgate::policy::ledger::Ruling;
use tollgate::policy::meter::Amount;
use tollgate::policy::row::Row;

/// Completion tokens that the model reserves for an answer, and nano-dollars for one of them.
const RESERVE: u64 = 10_000;
const OUTPUT: u64 = 4000;
/// Images that each request asks for.
const IMAGES: usize = 3;
/// Bytes of the file in each form: 100 seconds of audio, and 2,000 prompt tokens.
const FILE: usize = 200_000;
/// Report of a provider, and what it costs: less than any reservation.
const REPORT: &str = r#","usage":{"input_tokens":14,"output_tokens":3,"total_tokens":17}"#;
const REPORTED: (u64, u64) = (14, 3);
const WORDS: &str = "it was the best of times, it was the worst of times, it was the age of wisdom ";
/// More base64 than is read of the events after a client has left.
const MEDIA: usize = 3 << 20;

/// A way to ask for audio or images, and how a provider answers.
struct Way {
    endpoint: &'static str,
    /// Members of the request besides the model and its input.
    asks: &'static [(&'static str, &'static str)],
    content_type: &'static str,
    /// The answer in pieces. `REPORT` is where it reports its usage, if it does.
    pieces: Vec<String>,
}

impl Way {
    fn is_form(&self) -> bool {
        self.endpoint.contains("trans") || self.endpoint.contains("edits")
    }

    fn is_words(&self) -> bool {
        self.endpoint.contains("trans")
    }

    fn is_stream(&self) -> bool {
        self.content_type == "text/event-stream"
    }

    fn may_report(&self) -> bool {
        self.pieces.iter().any(|piece| piece.contains("REPORT"))
    }

    fn name(&self) -> String {
        format!("{} {:?} {}", self.endpoint, self.asks, self.content_type)
    }

    /// The request of a client.
    fn request(&self, key: &str) -> String {
        let member = |name: &str, value: &str| match self.is_form() {
            true => format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"),
            false if value.parse::<u32>().is_ok() || value == "true" => format!(",\"{name}\":{value}"),
            false => format!(",\"{name}\":\"{value}\""),
        };
        let input = if self.endpoint.contains("speech") { "input" } else { "prompt" };
        let mut body: String = self.asks.iter().map(|(name, value)| member(name, value)).collect();
        body.push_str(&member(input, WORDS));
        let (kind, body) = match self.is_form() {
            true => {
                let file = if self.is_words() { "file" } else { "image" };
                let head = format!("--b\r\nContent-Disposition: form-data; name=\"{file}\"; filename=\"a\"\r\n\r\n");
                let file = format!("{head}{}\r\n--b--", "x".repeat(FILE));
                ("multipart/form-data; boundary=b", format!("{}{body}{file}", member("model", "small")))
            }
            false => ("application/json", format!("{{\"model\":\"small\"{body}}}")),
        };
        format!(
            "POST /v1/{} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-type: {kind}\r\n\
             content-length: {}\r\n\r\n{body}",
            self.endpoint,
            body.len()
        )
    }

    /// The answer in pieces, the head first.
    fn answer(&self, reports: bool) -> Vec<String> {
        let report = if reports { REPORT } else { "" };
        let head = match self.is_stream() {
            true => STREAM.to_owned(),
            false => {
                format!("HTTP/1.1 200 OK\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n\r\n", self.content_type)
            }
        };
        let pieces = self.pieces.iter().map(|piece| {
            let piece = piece.replace("REPORT", report);
            let piece = if self.is_stream() { format!("data: {piece}\n\n") } else { piece };
            format!("{:x}\r\n{piece}\r\n", piece.len())
        });
        let mut all: Vec<String> = [head].into_iter().chain(pieces).collect();
        all.last_mut().unwrap().push_str("0\r\n\r\n");
        all
    }
}

fn ways() -> Vec<Way> {
    let texts = |pieces: &[&str]| -> Vec<String> { pieces.iter().map(|piece| piece.to_string()).collect() };
    let base64 = |length: usize| "QUJD".repeat(length / 4);
    let mut ways = vec![
        Way {
            endpoint: "audio/speech",
            asks: &[("voice", "alloy")],
            content_type: "audio/mpeg",
            pieces: texts(&["ID3", "more", "end"]),
        },
        Way {
            endpoint: "audio/speech",
            asks: &[("voice", "alloy"), ("stream_format", "sse")],
            content_type: "text/event-stream",
            pieces: vec![
                r#"{"type":"speech.audio.delta","audio":"SUQz"}"#.to_owned(),
                format!(r#"{{"type":"speech.audio.delta","audio":"{}"}}"#, base64(MEDIA)),
                r#"{"type":"speech.audio.done"REPORT}"#.to_owned(),
            ],
        },
    ];
    for endpoint in ["images/generations", "images/edits"] {
        let (one, partial) = (base64(MEDIA), base64(4000));
        let part = |index| {
            format!(
                r#"{{"type":"image_generation.partial_image","b64_json":"{partial}","partial_image_index":{index}}}"#
            )
        };
        let done = |report: &str| format!(r#"{{"type":"image_generation.completed","b64_json":"{partial}"{report}}}"#);
        ways.push(Way {
            endpoint,
            asks: &[("n", "3")],
            content_type: "application/json",
            pieces: texts(&[r#"{"created":1,"data":[{"b64_json":"QQ=="},"#, r#"{"b64_json":"QQ=="},{}]REPORT}"#]),
        });
        ways.push(Way {
            endpoint,
            asks: &[("n", "3"), ("stream", "true"), ("partial_images", "1")],
            content_type: "text/event-stream",
            pieces: vec![
                part(0),
                part(0),
                done(""),
                format!(r#"{{"type":"image_generation.completed","b64_json":"{one}"}}"#),
                done("REPORT"),
            ],
        });
    }
    for endpoint in ["audio/transcriptions", "audio/translations"] {
        let json = [r#"{"text":"WORDS","#, r#""language":"en"REPORT}"#].map(|piece| piece.replace("WORDS", WORDS));
        let plain = vec![WORDS.to_owned(), WORDS.to_owned()];
        let way = |asks, content_type, pieces| Way { endpoint, asks, content_type, pieces };
        ways.push(way(&[("response_format", "json")], "application/json", json.to_vec()));
        ways.push(way(&[("response_format", "verbose_json")], "application/json", json.to_vec()));
        ways.push(way(&[("response_format", "text")], "text/plain", plain.clone()));
        ways.push(way(&[("response_format", "text")], "application/json", plain.clone()));
        ways.push(way(&[("response_format", "srt")], "application/x-subrip", plain.clone()));
        ways.push(way(&[("response_format", "vtt")], "text/vtt", plain));
        let delta = format!(r#"{{"type":"transcript.text.delta","delta":"{WORDS}"}}"#);
        let done = format!(r#"{{"type":"transcript.text.done","text":"{WORDS}{WORDS}"REPORT}}"#);
        let events = vec![delta.clone(), delta, done];
        ways.push(way(&[("stream", "true")], "text/event-stream", events));
    }
    ways
}

/// How an answer ends.
#[derive(Copy, Clone, PartialEq, Debug)]
enum End {
    Read,
    /// The client leaves after this number of pieces; whether the provider sends the rest.
    Left(usize, bool),
    /// The provider's connection breaks after this number of pieces.
    Reset(usize),
}

fn rig(keys: usize, lines: &[(&str, &str)]) -> Rig {
    let reserve = format!("reserve_tokens = {RESERVE}");
    let own = [
        ("model small", r#"serves = ["speech","images","transcriptions","translations"]"#),
        ("model small", reserve.as_str()),
        ("model small", "price_per_request = 0.001"),
        ("model small", "price_per_image = 0.04"),
        ("model small", "price_per_minute = 0.006"),
        ("server", "max_buffered = \"64MiB\""),
        ("server", "max_connections = 200"),
        ("upstream", "max_response = \"8MiB\""),
    ];
    Rig::with(keys, &[&own, lines].concat())
}

/// A ledger that is shared shows what is reserved.
const SHARED: [(&str, &str); 2] = [("store", "url = \"redis://10.0.0.9/0\""), ("plan team", "budget = 100000000.0")];

/// Serves one request. Returns its reservation and its usage record.
fn served(way: &Way, end: End, reports: bool) -> (Amount, Row) {
    let (mut rig, client) = (rig(1, &SHARED), "c1");
    let sent = way.request(&rig.keys.texts["k0"].clone());
    rig.send(client, sent);
    let reserved = rig.world.checks.first().unwrap_or_else(|| panic!("{}: {}", way.name(), rig.got(client)));
    let reserved = reserved.lease.reserved;
    rig.world.answer_check(1, Ruling::Admitted).unwrap();
    let label = rig.asked().pop().unwrap_or_else(|| panic!("{} was not sent: {}", way.name(), rig.got(client)));
    let pieces = way.answer(reports);
    let before = match end {
        End::Read => pieces.len(),
        End::Left(pieces, _) | End::Reset(pieces) => pieces,
    };
    pieces[..before].iter().for_each(|piece| rig.answer(&label, piece));
    match end {
        End::Read => {}
        End::Left(..) => rig.world.finish(client, Ending::Broken).unwrap(),
        End::Reset(_) => rig.world.finish(&label, Ending::Broken).unwrap(),
    }
    if let End::Left(_, true) = end {
        pieces[before..].iter().for_each(|piece| rig.give(&label, piece));
    }
    rig.holds();
    // A stream whose client has left is read for ten seconds.
    rig.wait(11_000);
    assert_eq!(rig.world.gateway.vitals().exchanges, 0, "{} {end:?}", way.name());
    let row = rig.world.rows.pop_back().unwrap_or_else(|| panic!("{} {end:?}: no usage record", way.name()));
    (reserved, row)
}

#[test]
fn no_request_without_a_report_costs_less_than_its_reservation() {
    let (mut tried, mut reported) = (0, 0);
    for way in ways() {
        let count = way.pieces.len() + 1;
        let ends = (0..count).flat_map(|at| [End::Left(at, false), End::Left(at, true), End::Reset(at)]);
        for end in ends.chain([End::Read]) {
            for reports in [false, true] {
                if reports && !way.may_report() {
                    continue;
                }
                tried += 1;
                let (reserved, row) = served(&way, end, reports);
                let cell = format!("{}, {end:?}, reports: {reports}: {row:?} of {reserved:?}", way.name());
                let has_report = match end {
                    End::Read => reports,
                    // Only a stream is read on.
                    End::Left(_, goes_on) => reports && goes_on && way.is_stream(),
                    End::Reset(_) => false,
                };
                if let End::Left(0, _) = end {
                    assert!(row.cost_nano >= reserved.nano, "{cell}");
                    continue;
                }
                if has_report {
                    assert_eq!((row.usage.uncached_in, row.usage.out), REPORTED, "{cell}");
                    reported += 1;
                    continue;
                }
                // Text is estimated as far as it was made, and a failure before it costs nothing.
                let is_made = match end {
                    End::Reset(at) => at > 1 && (way.is_stream() || way.content_type != "application/json"),
                    _ => true,
                };
                let is_whole = match end {
                    End::Left(_, goes_on) => goes_on && way.is_stream(),
                    _ => true,
                };
                let text = if way.is_words() && is_whole { WORDS.len() as u64 / 8 } else { RESERVE };
                let images = if way.endpoint.contains("images") { IMAGES as u64 } else { 1 };
                let least = reserved.nano - images * (RESERVE - text) * OUTPUT;
                assert!(!is_made || row.cost_nano >= least, "{cell}: {least} at least");
            }
        }
    }
    assert!(tried > 300 && reported >= 30, "{tried} cells, {reported} of them with a report");
}

#[test]
fn clients_that_leave_exceed_no_budget() {
    const DOLLAR: u64 = 1_000_000_000;
    for way in ways() {
        let (reserved, _) = served(&way, End::Read, false);
        for at in 0..=way.pieces.len() {
            let mut rig = rig(40, &[("group all", "budget = 1.0")]);
            let (mut billed, mut round) = (0, 0);
            loop {
                for client in 0..40 {
                    let sent = way.request(&rig.keys.texts[&format!("k{client}")].clone());
                    rig.send(&format!("r{round}c{client}"), sent);
                }
                let labels = rig.asked();
                if labels.is_empty() {
                    break;
                }
                // Its provider bills all that the request may have, and reports nothing.
                billed += labels.len() as u64 * reserved.nano;
                let pieces = way.answer(false);
                for label in &labels {
                    pieces[..at].iter().for_each(|piece| rig.answer(label, piece));
                }
                for client in 0..40 {
                    let client = format!("r{round}c{client}");
                    if rig.world.ends[&client].closed.is_none() {
                        rig.world.finish(&client, Ending::Broken).unwrap();
                    }
                }
                rig.wait(11_000);
                round += 1;
                assert!(round < 20, "{} left after {at}: the budget never binds", way.name());
            }
            assert!(billed < DOLLAR + reserved.nano, "{} left after {at}: ${}", way.name(), billed as f64 / 1e9);
            assert!(billed > DOLLAR / 2, "{} left after {at}: {billed} is too little to test the bound", way.name());
        }
    }
}

#[test]
fn events_without_an_end_are_read_within_a_bound() {
    let way = &ways()[1];
    let mut rig = rig(1, &SHARED);
    let sent = way.request(&rig.keys.texts["k0"].clone());
    rig.send("c1", sent);
    rig.world.answer_check(1, Ruling::Admitted).unwrap();
    let label = rig.asked().pop().unwrap();
    let pieces = way.answer(false);
    pieces[..2].iter().for_each(|piece| rig.answer(&label, piece));
    rig.world.finish("c1", Ending::Broken).unwrap();
    // Audio is dropped, whatever its length; other bytes of an event are kept, up to a bound.
    for _ in 0..8 {
        rig.give(&label, format!("100000\r\n{}\r\n", "QUJD".repeat(1 << 18)));
    }
    assert_eq!(rig.world.rows.len(), 0);
    assert!(rig.world.gateway.vitals().buffered < 256 << 10, "{:?}", rig.world.gateway.vitals());
    for _ in 0..5 {
        rig.give(&label, format!("40000\r\n{}\r\n", "a b ".repeat(1 << 16)));
    }
    assert_eq!((rig.world.rows.len(), rig.world.gateway.vitals().exchanges), (1, 0));
    assert!(rig.most < 2 << 20, "{} bytes were buffered", rig.most);
}
