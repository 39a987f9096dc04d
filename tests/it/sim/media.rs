//! Requests for audio and images by the greedy tenant, the answers of their providers, and what a provider bills.
//!
//! The marker of a request determines all of it, so that all of its checks know what it asks for.

use super::greedy::Bill;
use std::fmt::Write;
use tollgate::base::rng::Rng;
use tollgate::wire::Passthrough;

/// Name of the model.
pub const MODEL: &str = "media";
/// Completion tokens that the model reserves for an answer.
pub const RESERVE: u64 = 300;
/// Prices of a request, an image and a minute of audio, in nano-dollars.
pub const UNITS: [u64; 3] = [100_000, 500_000, 2_000_000];
/// Boundary of the forms.
pub const BOUNDARY: &str = "media";
/// Bytes of a minute of audio, and of a token of it.
const MINUTE: u64 = 120_000;
const AUDIO_TOKEN: u64 = 100;
/// Bytes per token that no tokenizer exceeds.
const TEXT_TOKEN: u64 = 8;

/// Form of an answer.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Answer {
    Json,
    Events,
    /// Audio, or text that is not JSON.
    Bytes,
}

/// An endpoint and the form of its answer.
pub type Way = (&'static str, Answer);

/// All of them.
const WAYS: [(Passthrough, Answer); 12] = [
    (Passthrough::Speech, Answer::Bytes),
    (Passthrough::Speech, Answer::Events),
    (Passthrough::Images, Answer::Json),
    (Passthrough::Images, Answer::Events),
    (Passthrough::ImageEdits, Answer::Json),
    (Passthrough::ImageEdits, Answer::Events),
    (Passthrough::Transcriptions, Answer::Json),
    (Passthrough::Transcriptions, Answer::Events),
    (Passthrough::Transcriptions, Answer::Bytes),
    (Passthrough::Translations, Answer::Json),
    (Passthrough::Translations, Answer::Events),
    (Passthrough::Translations, Answer::Bytes),
];
/// Their endpoints, and forms of answers.
pub const ENDPOINTS: usize = 5;
pub const ANSWERS: usize = 3;

/// One request.
#[derive(Copy, Clone, Debug)]
pub struct Media {
    marker: u64,
    pub passthrough: Passthrough,
    pub answer: Answer,
    images: u64,
    /// Bytes of its file.
    file: u64,
    /// Bytes of its prompt behind the marker.
    pad: u64,
    /// Bytes of an answer's text.
    words: u64,
    /// True if the file is the last field that is sent on.
    ends_with_file: bool,
    /// True if the form has a field that is left out.
    has_other: bool,
    is_chunked: bool,
}

impl Media {
    pub fn of(marker: u64) -> Media {
        let mut rng = Rng::from_u64(marker ^ 0x6d_6564_6961);
        let (passthrough, answer) = WAYS[rng.below(WAYS.len() as u64) as usize];
        let images = if passthrough.makes_images() { 1 + rng.below(3) } else { 1 };
        Media {
            marker,
            passthrough,
            answer,
            images,
            file: rng.below(60_000),
            pad: rng.below(3000),
            words: rng.below(RESERVE * TEXT_TOKEN),
            ends_with_file: rng.below(2) == 0,
            has_other: rng.below(2) == 0,
            // The length of audio of unknown length is beyond the budget.
            is_chunked: rng.below(3) == 0 && !passthrough.is_transcript(),
        }
    }

    pub fn way(&self) -> Way {
        (self.passthrough.path(), self.answer)
    }

    /// The end of every complete answer.
    pub fn end(&self) -> String {
        format!("m{}.end", self.marker)
    }

    /// Returns the request of a client. `lines`: further lines of its head.
    pub fn request(&self, version: &str, lines: &str, rng: &mut Rng) -> Vec<u8> {
        let (kind, body) = match self.passthrough.is_form() {
            true => (format!("multipart/form-data; boundary={BOUNDARY}"), self.form()),
            false => ("application/json".to_string(), self.json()),
        };
        let framing = match self.is_chunked && version == "1.1" {
            true => {
                let (first, rest) = body.split_at(1 + rng.below(body.len() as u64 - 1) as usize);
                format!(
                    "transfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
                    first.len(),
                    rest.len()
                )
            }
            false => format!("content-length: {}\r\n\r\n{body}", body.len()),
        };
        let path = self.passthrough.path();
        // The trace names the request in its usage record; forms have no field for its user.
        let trace = format!("traceparent: 00-{0:032x}-{0:016x}-00", self.marker);
        format!("POST {path} HTTP/{version}\r\nhost: g\r\n{lines}{trace}\r\ncontent-type: {kind}\r\n{framing}")
            .into_bytes()
    }

    /// Names and values of its members or fields, without those of the prompt and the file.
    fn members(&self) -> Vec<(&'static str, String)> {
        let mut members = Vec::new();
        let stream = self.answer == Answer::Events;
        match self.passthrough {
            Passthrough::Speech => {
                members.push(("voice", "alloy".to_string()));
                if stream {
                    members.push(("stream_format", "sse".to_string()));
                }
            }
            Passthrough::Images | Passthrough::ImageEdits => members.push(("n", self.images.to_string())),
            _ if self.answer == Answer::Bytes => members.push(("response_format", "text".to_string())),
            _ => {}
        }
        if stream && self.passthrough != Passthrough::Speech {
            members.push(("stream", "true".to_string()));
        }
        members
    }

    fn prompt(&self) -> String {
        format!("marker={};{}", self.marker, "z".repeat(self.pad as usize))
    }

    fn json(&self) -> String {
        let text = if self.passthrough == Passthrough::Speech { "input" } else { "prompt" };
        let mut body = format!("{{\"{text}\":\"{}\"", self.prompt());
        for (name, value) in self.members() {
            let quote = if value.parse::<u64>().is_ok() || value == "true" { "" } else { "\"" };
            write!(body, ",\"{name}\":{quote}{value}{quote}").unwrap();
        }
        body + ",\"model\":\"media\"}"
    }

    fn form(&self) -> String {
        let field = |name: &str, value: &str| {
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n")
        };
        let name = if self.passthrough.is_transcript() { "file" } else { "image" };
        let file = field(&format!("{name}; filename=a"), &"1".repeat(self.file as usize));
        let mut body = field("prompt", &self.prompt()) + &field("model", MODEL);
        let fields: String = self.members().iter().map(|(name, value)| field(name, value)).collect();
        // `n` must come before the file.
        match self.ends_with_file || self.passthrough.makes_images() {
            true => body = body + &fields + &file,
            false => body = body + &file + &fields,
        }
        if self.has_other {
            body.push_str(&field("evil", &"1".repeat(self.pad as usize)));
        }
        format!("{body}--{BOUNDARY}--\r\n")
    }

    /// Returns what the provider bills for its answer, even if nobody reads it.
    pub fn bill(&self) -> Bill {
        let prompt = self.prompt().len() as u64 / TEXT_TOKEN;
        let [request, image, minute] = UNITS;
        match self.passthrough.is_transcript() {
            true => Bill {
                input: prompt + self.file / AUDIO_TOKEN,
                output: self.words / TEXT_TOKEN,
                units_nano: request + self.file * minute / MINUTE,
            },
            false => Bill {
                input: prompt.max(1),
                output: self.images * RESERVE,
                units_nano: request + if self.passthrough.makes_images() { self.images * image } else { 0 },
            },
        }
    }

    /// Returns the provider's answer and its content type. `reports`: it contains its usage.
    pub fn answered(&self, reports: bool, rng: &mut Rng) -> (&'static str, String) {
        let Bill { input, output, .. } = self.bill();
        let usage = match reports {
            true => format!(
                ",\"usage\":{{\"input_tokens\":{input},\"output_tokens\":{output},\"total_tokens\":{}}}",
                input + output
            ),
            false => String::new(),
        };
        let end = format!(",\"mark\":\"{}\"{usage}}}", self.end());
        let base64 = |rng: &mut Rng| "QUJD".repeat(rng.below(6000) as usize);
        let words = "w ".repeat(self.words as usize / 2);
        let images = self.passthrough.makes_images();
        match self.answer {
            Answer::Json if images => {
                let all: Vec<String> =
                    (0..self.images).map(|_| format!("{{\"b64_json\":\"{}\"}}", base64(rng))).collect();
                ("application/json", format!("{{\"created\":1,\"data\":[{}]{end}", all.join(",")))
            }
            Answer::Json => ("application/json", format!("{{\"text\":\"{words}\"{end}")),
            Answer::Bytes if self.passthrough == Passthrough::Speech => {
                ("audio/mpeg", format!("ID3{}{}", base64(rng), self.end()))
            }
            Answer::Bytes => ("text/plain", format!("{words}{}", self.end())),
            Answer::Events => {
                let mut events = Vec::new();
                let kind = match self.passthrough {
                    Passthrough::Speech => {
                        events.extend(
                            (0..1 + rng.below(4))
                                .map(|_| format!("speech.audio.delta\",\"audio\":\"{}\"}}", base64(rng))),
                        );
                        "speech.audio.done"
                    }
                    _ if images => {
                        for _ in 0..self.images {
                            let partial = base64(rng);
                            events.push(format!("image_generation.partial_image\",\"b64_json\":\"{partial}\"}}"));
                        }
                        for _ in 1..self.images {
                            events.push("image_generation.completed\",\"b64_json\":\"QQ==\"}".to_string());
                        }
                        "image_generation.completed"
                    }
                    _ => {
                        let delta = |part: &str| format!("transcript.text.delta\",\"delta\":\"{part}\"}}");
                        let (first, rest) = words.split_at(words.len() / 2);
                        events.extend([delta(first), delta(rest)]);
                        "transcript.text.done"
                    }
                };
                events.push(format!("{kind}\"{end}"));
                let events = events.iter().map(|event| format!("data: {{\"type\":\"{event}\n\n")).collect();
                ("text/event-stream", events)
            }
        }
    }
}
