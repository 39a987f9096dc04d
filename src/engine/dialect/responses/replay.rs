//! Writes a complete response as the events of a stream.
//!
//! Used if a responses provider answers a request for a stream with one JSON document, whatever the client's format is.

use super::read_stream::is_answer;
use crate::dialect::neutral::replay::{begin, end, string};
use crate::wire::json::{Raw, key, member_count, member_inside, object_with};

/// Status of a response, or of an item of it, that has begun.
const IN_PROGRESS: &str = "\"in_progress\"";

/// Writer of the events of a response, which are numbered.
struct Response<'o> {
    out: &'o mut Vec<u8>,
    number: u64,
}

/// A list of texts within an item, and the names of their events.
struct Texts {
    list: &'static str,
    /// The member of an event with the index of the text.
    index: &'static str,
    /// Prefix of the events that begin and end a part.
    part: &'static str,
}

const CONTENT: Texts = Texts { list: "content", index: "content_index", part: "content_part" };
const SUMMARY: Texts = Texts { list: "summary", index: "summary_index", part: "reasoning_summary_part" };

pub fn write(body: Raw<'_>, out: &mut Vec<u8>) {
    Response { out, number: 0 }.write(body);
}

impl Response<'_> {
    fn write(&mut self, body: Raw<'_>) {
        for name in ["response.created", "response.in_progress"] {
            self.begin(name);
            key(self.out, "response");
            let begun = [("status", IN_PROGRESS), ("output", "[]"), ("usage", "null"), ("incomplete_details", "")];
            object_with(body, &begun, self.out);
            end(self.out);
        }
        let output = body.get("output").unwrap_or(Raw::NULL);
        output.items().enumerate().for_each(|(at, item)| self.item(at as u64, item));
        let incomplete = body.get("status").is_some_and(|status| status.is("incomplete"));
        self.begin(if incomplete { "response.incomplete" } else { "response.completed" });
        key(self.out, "response");
        self.out.extend_from_slice(body.bytes());
        end(self.out);
    }

    fn begin(&mut self, name: &str) {
        begin(name, self.out);
        member_count(self.out, "sequence_number", self.number);
        self.number += 1;
    }

    /// Begins an event about the item with index `at`.
    fn about(&mut self, name: &str, at: u64, item: Raw<'_>) {
        self.begin(name);
        if let Some(id) = string(item, "id") {
            member_inside(self.out, "item_id", id);
        }
        member_count(self.out, "output_index", at);
    }

    fn item(&mut self, at: u64, item: Raw<'_>) {
        let texts = match string(item, "type").unwrap_or_default() {
            b"message" => Some(CONTENT),
            b"reasoning" => Some(SUMMARY),
            _ => None,
        };
        let arguments = string(item, "arguments");
        self.begin("response.output_item.added");
        member_count(self.out, "output_index", at);
        key(self.out, "item");
        let later = texts.as_ref().map_or("arguments", |texts| texts.list);
        let nothing = if texts.is_some() { "[]" } else { "\"\"" };
        // Without those that the item lacks.
        let begun = [("status", IN_PROGRESS), (later, nothing)]
            .map(|(name, value)| (name, if item.get(name).is_some() { value } else { "" }));
        object_with(item, &begun, self.out);
        end(self.out);
        if let Some(texts) = texts {
            for (index, part) in item.get(texts.list).unwrap_or(Raw::NULL).items().enumerate() {
                self.part(&texts, (at, index as u64), item, part);
            }
        } else if let Some(arguments) = arguments {
            for (name, value) in [("delta", "delta"), ("done", "arguments")] {
                self.about(&format!("response.function_call_arguments.{name}"), at, item);
                member_inside(self.out, value, arguments);
                end(self.out);
            }
        }
        self.begin("response.output_item.done");
        member_count(self.out, "output_index", at);
        key(self.out, "item");
        self.out.extend_from_slice(item.bytes());
        end(self.out);
    }

    /// Writes one part of an item: its start, its text, its end.
    fn part(&mut self, texts: &Texts, (at, index): (u64, u64), item: Raw<'_>, part: Raw<'_>) {
        let (kind, text) = match (string(part, "refusal"), texts.list) {
            (Some(text), _) => ("refusal", text),
            (None, "summary") => ("reasoning_summary_text", string(part, "text").unwrap_or_default()),
            (None, _) => ("output_text", string(part, "text").unwrap_or_default()),
        };
        let own = if kind == "refusal" { "refusal" } else { "text" };
        let is_text = texts.list == SUMMARY.list || is_answer(&part);
        for (name, member) in [
            (format!("response.{}.added", texts.part), "part"),
            (format!("response.{kind}.delta"), "delta"),
            (format!("response.{kind}.done"), own),
            (format!("response.{}.done", texts.part), ""),
        ] {
            if !is_text && !matches!(member, "part" | "") {
                continue;
            }
            self.about(&name, at, item);
            member_count(self.out, texts.index, index);
            match member {
                "part" if is_text => {
                    key(self.out, "part");
                    object_with(part, &[(own, "\"\"")], self.out);
                }
                "part" | "" => {
                    key(self.out, "part");
                    self.out.extend_from_slice(part.bytes());
                }
                name => {
                    member_inside(self.out, name, text);
                }
            }
            end(self.out);
        }
    }
}
