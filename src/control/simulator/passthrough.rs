//! Writes relayed answers like the real servers. Pure; called by `simulator::answer`.

use super::event::{AnswerEvent, AnswerIdentity, AnswerUsage, quoted, sse};
use super::given::PIXEL;
use super::script::{Finish, Script, ScriptPart};
use crate::base::base64;
use crate::wire::Passthrough;
use std::ops::Range;

/// Returns a whole answer. `given`: `given::Read::given`.
pub(super) fn whole(
    passthrough: Passthrough,
    id: &AnswerIdentity,
    given: &str,
    script: &Script,
    usage: AnswerUsage,
) -> String {
    let (serial, model, prompt) = (id.serial, quoted(&id.model), usage.prompt);
    match passthrough {
        Passthrough::Embeddings => {
            let usage = format!(r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt}}}"#);
            format!(r#"{{"object":"list",{given},"model":{model}{}}}"#, if id.no_usage { "" } else { &usage })
        }
        Passthrough::Rerank => {
            let counts = format!(r#","tokens":{{"input_tokens":{prompt},"output_tokens":0}}"#);
            let counts = if id.no_usage { "" } else { &counts };
            let meta =
                format!(r#""meta":{{"api_version":{{"version":"2"}},"billed_units":{{"search_units":1}}{counts}}}"#);
            format!(r#"{{"id":"rerank-sim-{serial}",{given},{meta}}}"#)
        }
        Passthrough::Completions => {
            let said = text_of(script);
            chunk(id, 0..id.texts, &said, &quoted(reason(script.finish)), &counts(id, usage))
        }
        // Only if events or bytes were wanted, and the request says that there are none.
        Passthrough::Speech => r#"{"audio":""}"#.to_owned(),
        Passthrough::Transcriptions | Passthrough::Translations => transcript(id, script, usage),
        Passthrough::Images | Passthrough::ImageEdits => {
            let usage = format!(r#","usage":{}"#, image_counts(prompt, id.texts * IMAGE_TOKENS));
            format!(r#"{{"created":{},{given}{}}}"#, id.created, if id.no_usage { "" } else { &usage })
        }
        Passthrough::Moderations => format!(r#"{{"id":"modr-sim-{serial}","model":{model},{given}}}"#),
    }
}

/// Completion tokens of an image.
const IMAGE_TOKENS: u64 = 272;
/// Bytes of audio for a token.
const AUDIO_BYTES: usize = 256;

fn text_of(script: &Script) -> String {
    let mut said = String::new();
    for (part, tokens) in script.given() {
        if let ScriptPart::Text(text) = part {
            (0..tokens).for_each(|at| said.push_str(&text.piece(at)));
        }
    }
    said
}

/// Returns the text of audio in the format that was requested; the audio has `id.texts` seconds.
fn transcript(id: &AnswerIdentity, script: &Script, usage: AnswerUsage) -> String {
    let (said, seconds) = (text_of(script), id.texts);
    let end = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match id.audio {
        None => {
            let usage = format!(r#","usage":{}"#, audio_counts(usage));
            format!(r#"{{"text":{}{}}}"#, quoted(&said), if id.no_usage { "" } else { &usage })
        }
        Some("text/vtt") => format!("WEBVTT\n\n00:00:00.000 --> {end}.000\n{said}\n"),
        Some("application/x-subrip") => format!("1\n00:00:00,000 --> {end},000\n{said}\n"),
        Some("application/json") => format!(
            r#"{{"task":"transcribe","language":"english","duration":{seconds}.0,"text":{},"segments":[]}}"#,
            quoted(&said)
        ),
        Some(_) => format!("{said}\n"),
    }
}

fn audio_counts(usage: AnswerUsage) -> String {
    format!(r#"{{"type":"tokens",{}}}"#, media_counts(usage.prompt, usage.completion))
}

fn image_counts(input: u64, output: u64) -> String {
    let details = format!(r#""input_tokens_details":{{"text_tokens":{input},"image_tokens":0}}"#);
    format!(r#"{{{},{details}}}"#, media_counts(input, output))
}

fn media_counts(input: u64, output: u64) -> String {
    format!(r#""input_tokens":{input},"output_tokens":{output},"total_tokens":{}"#, input + output)
}

/// Appends one event with audio or an image, or the bytes of audio; nothing for events that they do not have.
fn media_event(passthrough: Passthrough, id: &AnswerIdentity, event: &AnswerEvent<'_>, out: &mut Vec<u8>) {
    let bytes = |piece: &str| piece.bytes().cycle().take(AUDIO_BYTES).collect::<Vec<u8>>();
    let (is_speech, is_transcript) = (passthrough == Passthrough::Speech, passthrough.is_transcript());
    let usage_of = |usage: &AnswerUsage| {
        let counts = match passthrough.makes_images() {
            true => image_counts(usage.prompt, id.texts * IMAGE_TOKENS),
            false => audio_counts(*usage),
        };
        format!(r#","usage":{counts}"#)
    };
    let about_image = format!(
        r#","created_at":{},"size":"1024x1024","quality":"low","background":"opaque","output_format":"png""#,
        id.created
    );
    let (kind, more) = match event {
        AnswerEvent::Text { piece, .. } if is_transcript => {
            ("transcript.text.delta", format!(r#","delta":{}"#, quoted(piece)))
        }
        AnswerEvent::Text { piece, .. } if id.audio.is_some() => return out.extend_from_slice(&bytes(piece)),
        _ if id.audio.is_some() && !is_transcript => return,
        AnswerEvent::Text { piece, .. } if is_speech => {
            ("speech.audio.delta", format!(r#","audio":"{}""#, base64::encode(&bytes(piece))))
        }
        AnswerEvent::Text { .. } => {
            let image = format!(r#","b64_json":"{PIXEL}","partial_image_index":0{about_image}"#);
            ("image_generation.partial_image", image)
        }
        AnswerEvent::Finish { usage, .. } => {
            let usage = if id.no_usage { String::new() } else { usage_of(usage) };
            match is_speech {
                true => ("speech.audio.done", usage),
                false if is_transcript => ("transcript.text.done", format!(r#","text":""{usage}"#)),
                false => ("image_generation.completed", format!(r#","b64_json":"{PIXEL}"{about_image}{usage}"#)),
            }
        }
        AnswerEvent::Error(_) | AnswerEvent::Ping | AnswerEvent::Garbage => return super::chat::event(id, event, out),
        _ => return,
    };
    let copies = if kind == "image_generation.completed" { id.texts } else { 1 };
    (0..copies).for_each(|_| sse(out, id.crlf, Some(kind), &format!(r#"{{"type":"{kind}"{more}}}"#)));
}

fn reason(finish: Finish) -> &'static str {
    if finish == Finish::Length { "length" } else { "stop" }
}

fn counts(id: &AnswerIdentity, usage: AnswerUsage) -> String {
    let AnswerUsage { prompt, completion, .. } = usage;
    let total = prompt + completion;
    let counts = format!(r#""prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total}"#);
    if id.no_usage { String::new() } else { format!(r#","usage":{{{counts}}}"#) }
}

/// Returns the members that every answer has.
fn opening(id: &AnswerIdentity) -> String {
    let (serial, created, model) = (id.serial, id.created, quoted(&id.model));
    format!(r#"{{"id":"cmpl-sim-{serial}","object":"text_completion","created":{created},"model":{model}"#)
}

/// Returns a text, or a piece of one, for each of the indices `at`.
fn chunk(id: &AnswerIdentity, at: Range<u64>, text: &str, finish: &str, usage: &str) -> String {
    let text = quoted(text);
    let choice = |at| format!(r#"{{"text":{text},"index":{at},"logprobs":null,"finish_reason":{finish}}}"#);
    let choices: Vec<String> = at.map(choice).collect();
    format!(r#"{},"choices":[{}]{usage}}}"#, opening(id), choices.join(","))
}

/// Appends one event of a stream, or one for each of its texts; nothing for events that completions do not have.
pub(super) fn event(passthrough: Passthrough, id: &AnswerIdentity, event: &AnswerEvent<'_>, out: &mut Vec<u8>) {
    if passthrough.is_media() {
        return media_event(passthrough, id, event, out);
    }
    let mut each = |text: &str, finish: &str| {
        (0..id.texts).for_each(|at| sse(out, id.crlf, None, &chunk(id, at..at + 1, text, finish, "")));
    };
    let data = match event {
        AnswerEvent::Text { piece, .. } => return each(piece, "null"),
        AnswerEvent::Finish { finish, .. } => return each("", &quoted(reason(*finish))),
        AnswerEvent::Usage(usage) if id.include_usage && !id.no_usage => {
            format!(r#"{},"choices":[]{}}}"#, opening(id), counts(id, *usage))
        }
        AnswerEvent::Start(_) | AnswerEvent::OpenText { .. } | AnswerEvent::Close { .. } | AnswerEvent::Usage(_) => {
            return;
        }
        other => return super::chat::event(id, other, out),
    };
    sse(out, id.crlf, None, &data);
}
