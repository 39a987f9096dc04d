//! Writes answers in the published format of the responses API: items added, filled and done, each event named and
//! numbered, the whole response at the beginning and at the end. [`ResponseEvents`] keeps the items so far for the
//! writer of the events. Pure.

use super::event::{AnswerEvent, AnswerIdentity, AnswerUsage, quoted, sse};
use super::script::{Finish, Script, ScriptPart};

/// Placeholder for reasoning that only this provider can read.
const ENCRYPTED: &str = "c2ltdWxhdGVk";

/// Members of a response that repeat its request, all with their defaults.
const SETTINGS: &str = "\"background\":false,\"frequency_penalty\":0,\"instructions\":null,\"max_output_tokens\":null,\
     \"max_tool_calls\":null,\"metadata\":{},\"parallel_tool_calls\":true,\"presence_penalty\":0,\
     \"previous_response_id\":null,\"prompt_cache_key\":null,\"reasoning\":{\"effort\":null,\"summary\":\"auto\"},\
     \"safety_identifier\":null,\"service_tier\":\"default\",\"store\":true,\"temperature\":1,\
     \"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,\
     \"top_p\":1,\"truncation\":\"disabled\"";

/// State of a stream that later events repeat.
#[derive(Debug, Default)]
pub struct ResponseEvents {
    sequence: u64,
    /// Finished items.
    items: Vec<String>,
    /// Text of the current item so far.
    text: String,
    name: String,
    usage: AnswerUsage,
    finish: Option<Finish>,
    closed: bool,
}

fn usage_object(usage: AnswerUsage) -> String {
    let AnswerUsage { prompt, cached, written, completion, thought } = usage;
    let total = prompt + completion;
    let input = format!(r#""input_tokens":{prompt},"input_tokens_details":{{"cached_tokens":{cached}"#);
    let output = format!(r#""output_tokens":{completion},"output_tokens_details":{{"reasoning_tokens":{thought}}}"#);
    format!(r#"{{{input},"cache_write_tokens":{written}}},{output},"total_tokens":{total}}}"#)
}

fn response(id: &AnswerIdentity, status: &str, items: &[String], usage: Option<AnswerUsage>, error: &str) -> String {
    let (serial, created, model) = (id.serial, id.created, quoted(&id.model));
    let lacks = match status {
        "incomplete" if id.refuses => r#"{"reason":"content_filter"}"#,
        "incomplete" => r#"{"reason":"max_output_tokens"}"#,
        _ => "null",
    };
    let usage = usage.filter(|_| !id.no_usage).map_or("null".to_owned(), usage_object);
    let head = format!(r#""id":"resp_sim_{serial}","object":"response","created_at":{created},"status":"{status}""#);
    let middle =
        format!(r#""error":{error},"incomplete_details":{lacks},"model":{model},"output":[{}]"#, items.join(","));
    let completed = if status == "completed" { created.to_string() } else { "null".to_owned() };
    let rest = format!(r#""completed_at":{completed},"usage":{usage}"#);
    format!(r#"{{{head},{middle},{SETTINGS},{rest}}}"#)
}

fn part(id: &AnswerIdentity, text: &str) -> String {
    match id.refuses {
        true => format!(r#"{{"type":"refusal","refusal":{}}}"#, quoted(text)),
        false => format!(r#"{{"type":"output_text","text":{},"annotations":[],"logprobs":[]}}"#, quoted(text)),
    }
}

fn message(id: &AnswerIdentity, block: usize, status: &str, parts: &str) -> String {
    let serial = id.serial;
    let head = format!(r#""id":"msg_sim_{serial}_{block}","type":"message","status":"{status}""#);
    format!(r#"{{{head},"role":"assistant","content":[{parts}]}}"#)
}

fn call(id: &AnswerIdentity, block: usize, status: &str, name: &str, args: &str) -> String {
    let (serial, name, args) = (id.serial, quoted(name), quoted(args));
    let head = format!(r#""id":"fc_sim_{serial}_{block}","type":"function_call","status":"{status}""#);
    format!(r#"{{{head},"call_id":"call_sim_{serial}_{block}","name":{name},"arguments":{args}}}"#)
}

fn reasoning(id: &AnswerIdentity, block: usize, text: Option<&str>) -> String {
    let head = format!(r#""id":"rs_sim_{}_{block}","type":"reasoning""#, id.serial);
    match text {
        None => format!(r#"{{{head},"summary":[]}}"#),
        Some(text) => {
            let summary = format!(r#"{{"type":"summary_text","text":{}}}"#, quoted(text));
            format!(r#"{{{head},"summary":[{summary}],"encrypted_content":"{ENCRYPTED}"}}"#)
        }
    }
}

impl ResponseEvents {
    fn put(&mut self, id: &AnswerIdentity, name: &str, rest: &str, out: &mut Vec<u8>) {
        let data = format!(r#"{{"type":"{name}","sequence_number":{}{rest}}}"#, self.sequence);
        self.sequence += 1;
        sse(out, id.crlf, Some(name), &data);
    }

    fn added(&mut self, id: &AnswerIdentity, block: usize, item: &str, out: &mut Vec<u8>) {
        self.text.clear();
        self.put(id, "response.output_item.added", &format!(r#","output_index":{block},"item":{item}"#), out);
    }

    fn done(&mut self, id: &AnswerIdentity, block: usize, item: String, out: &mut Vec<u8>) {
        self.put(id, "response.output_item.done", &format!(r#","output_index":{block},"item":{item}"#), out);
        self.items.push(item);
        self.text.clear();
        self.name.clear();
    }

    /// Appends one event of a stream, or nothing if this API does not have it.
    pub fn event(&mut self, id: &AnswerIdentity, event: &AnswerEvent<'_>, out: &mut Vec<u8>) {
        let about = |start: &str, block: usize| {
            format!(r#","item_id":"{start}_sim_{}_{block}","output_index":{block}"#, id.serial)
        };
        match event {
            AnswerEvent::Start(usage) => {
                self.usage = *usage;
                let response = response(id, "in_progress", &[], None, "null");
                self.put(id, "response.created", &format!(r#","response":{response}"#), out);
                self.put(id, "response.in_progress", &format!(r#","response":{response}"#), out);
            }
            AnswerEvent::OpenThought { block } => {
                self.added(id, *block, &reasoning(id, *block, None), out);
                let rest =
                    format!(r#"{},"summary_index":0,"part":{{"type":"summary_text","text":""}}"#, about("rs", *block));
                self.put(id, "response.reasoning_summary_part.added", &rest, out);
            }
            AnswerEvent::Thought { block, piece } => {
                self.text.push_str(piece);
                let rest = format!(r#"{},"summary_index":0,"delta":{}"#, about("rs", *block), quoted(piece));
                self.put(id, "response.reasoning_summary_text.delta", &rest, out);
            }
            AnswerEvent::Sign { block } => {
                let text = self.text.clone();
                self.done(id, *block, reasoning(id, *block, Some(&text)), out);
                self.closed = true;
            }
            AnswerEvent::OpenText { block } => {
                self.added(id, *block, &message(id, *block, "in_progress", ""), out);
                let rest = format!(r#"{},"content_index":0,"part":{}"#, about("msg", *block), part(id, ""));
                self.put(id, "response.content_part.added", &rest, out);
            }
            AnswerEvent::Text { block, piece } => {
                self.text.push_str(piece);
                let name = if id.refuses { "response.refusal.delta" } else { "response.output_text.delta" };
                let rest = format!(r#"{},"content_index":0,"delta":{}"#, about("msg", *block), quoted(piece));
                self.put(id, name, &rest, out);
            }
            AnswerEvent::OpenCall { block, name, .. } => {
                self.added(id, *block, &call(id, *block, "in_progress", name, ""), out);
                self.name = (*name).to_owned();
            }
            AnswerEvent::Args { block, piece, .. } => {
                self.text.push_str(piece);
                let rest = format!(r#"{},"delta":{}"#, about("fc", *block), quoted(piece));
                self.put(id, "response.function_call_arguments.delta", &rest, out);
            }
            // Reasoning ends with its signature.
            AnswerEvent::Close { .. } if std::mem::take(&mut self.closed) => {}
            AnswerEvent::Close { block } => self.close(id, *block, out),
            AnswerEvent::Finish { finish, usage, .. } => (self.finish, self.usage) = (Some(*finish), *usage),
            AnswerEvent::Usage(_) => {}
            AnswerEvent::End => self.end(id, out),
            AnswerEvent::Ping => self.put(id, "keepalive", "", out),
            AnswerEvent::Error(words) => {
                let error = format!(r#"{{"code":"server_error","message":{}}}"#, quoted(words));
                let response = response(id, "failed", &self.items, None, &error);
                self.put(id, "response.failed", &format!(r#","response":{response}"#), out);
            }
            AnswerEvent::Garbage => sse(out, id.crlf, Some("response.output_text.delta"), r#"{"type":"response.out"#),
        }
    }

    fn close(&mut self, id: &AnswerIdentity, block: usize, out: &mut Vec<u8>) {
        let (text, name) = (std::mem::take(&mut self.text), std::mem::take(&mut self.name));
        let about = |start: &str| format!(r#","item_id":"{start}_sim_{}_{block}","output_index":{block}"#, id.serial);
        if name.is_empty() {
            let (kind, member) = if id.refuses { ("refusal", "refusal") } else { ("output_text", "text") };
            let rest = format!(r#"{},"content_index":0,"{member}":{}"#, about("msg"), quoted(&text));
            self.put(id, &format!("response.{kind}.done"), &rest, out);
            let rest = format!(r#"{},"content_index":0,"part":{}"#, about("msg"), part(id, &text));
            self.put(id, "response.content_part.done", &rest, out);
            return self.done(id, block, message(id, block, "completed", &part(id, &text)), out);
        }
        let rest = format!(r#"{},"arguments":{}"#, about("fc"), quoted(&text));
        self.put(id, "response.function_call_arguments.done", &rest, out);
        self.done(id, block, call(id, block, "completed", &name, &text), out);
    }

    fn end(&mut self, id: &AnswerIdentity, out: &mut Vec<u8>) {
        let status = status(self.finish.unwrap_or(Finish::Stop));
        let response = response(id, status, &self.items, Some(self.usage), "null");
        self.put(id, &format!("response.{status}"), &format!(r#","response":{response}"#), out);
    }
}

fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Length | Finish::Refusal => "incomplete",
        Finish::Stop | Finish::Tools | Finish::Sequence => "completed",
    }
}

/// Returns a whole answer.
pub fn whole(id: &AnswerIdentity, script: &Script, usage: AnswerUsage) -> String {
    let mut items = Vec::new();
    for (block, (part_of, tokens)) in script.given().enumerate() {
        let joined = |text: &super::script::Text| (0..tokens).map(|at| text.piece(at)).collect::<String>();
        items.push(match part_of {
            ScriptPart::Think(text) => reasoning(id, block, Some(&joined(text))),
            ScriptPart::Text(text) => message(id, block, "completed", &part(id, &joined(text))),
            ScriptPart::Call(made) => {
                call(id, block, "completed", &made.name, &made.args[..tokens as usize - 1].concat())
            }
        });
    }
    response(id, status(script.finish), &items, Some(usage), "null")
}
