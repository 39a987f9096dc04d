//! Writes relayed answers like the real servers. Pure; called by `simulator::answer`.

use super::event::{AnswerEvent, AnswerIdentity, AnswerUsage, quoted, sse};
use super::script::{Finish, Script, ScriptPart};
use crate::wire::Passthrough;
use std::ops::Range;

/// Returns a whole answer. `given`: `given::Read::given`.
pub(super) fn whole(
    relay: Passthrough,
    id: &AnswerIdentity,
    given: &str,
    script: &Script,
    usage: AnswerUsage,
) -> String {
    let (serial, model, prompt) = (id.serial, quoted(&id.model), usage.prompt);
    match relay {
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
            let mut said = String::new();
            for (part, tokens) in script.given() {
                if let ScriptPart::Text(text) = part {
                    (0..tokens).for_each(|at| said.push_str(&text.piece(at)));
                }
            }
            chunk(id, 0..id.texts, &said, &quoted(reason(script.finish)), &counts(id, usage))
        }
    }
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
pub(super) fn event(id: &AnswerIdentity, event: &AnswerEvent<'_>, out: &mut Vec<u8>) {
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
