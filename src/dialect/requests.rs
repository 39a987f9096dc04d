//! A request of one shape written as a request of the other (`wire-formats` 3.1 to 3.9; contract section 2).
//!
//! Owns what a translation keeps, changes, drops and refuses. Must never change a number, the order of members inside
//! an argument, or a byte of text. Called by the gateway for a route whose upstream speaks the other shape; the body
//! has passed [`super::RequestScan`] and is valid.

mod media;
mod offer;
mod schema;
mod to_chat;
mod to_messages;

pub(super) use to_chat::write_arguments;
pub(super) use to_messages::write_input;

use super::capabilities::Capabilities;
use super::naming::TranslationState;
use super::request::{Fields, Invalid, Name};
use crate::base::digest::{hex_into, sha256};
use crate::wire::Dialect;
use crate::wire::json::{Raw, Run, eq_unescaped, runs, write_inside};
use std::fmt::Display;

/// What the request is written for.
#[derive(Copy, Clone, Debug)]
pub struct Target<'a> {
    /// The model's name at the upstream.
    pub model: &'a str,
    /// What it takes.
    pub capabilities: &'a Capabilities,
}

/// Writes the request in the shape that is not `from`. The [`TranslationState`] is needed to translate the answer back.
/// [`Invalid`] where a specified field cannot be expressed there; `out` then holds nothing of use.
pub fn request(
    from: Dialect,
    body: &[u8],
    fields: &Fields,
    target: &Target<'_>,
    out: &mut Vec<u8>,
) -> Result<TranslationState, Invalid> {
    let ask = Ask { body, fields, shape: from, target };
    match from {
        Dialect::Chat => to_messages::write(&ask, out),
        Dialect::Messages => to_chat::write(&ask, out),
    }
}

/// The request as it is asked.
struct Ask<'a> {
    body: &'a [u8],
    fields: &'a Fields,
    shape: Dialect,
    target: &'a Target<'a>,
}

impl<'a> Ask<'a> {
    /// A top-level member; `null`, and whatever the model does not take, counts as absent.
    fn get(&self, name: Name, text: &str) -> Option<Raw<'a>> {
        let member = self.fields.members.iter().find(|member| member.name == name)?;
        if name.class(self.shape) == super::request::Class::Unknown || self.drops(text) {
            return None;
        }
        Some(Raw::new(member.value.of(self.body))).filter(|value| !value.is_null())
    }

    /// True if the configuration says that the model does not take the parameter `text`.
    fn drops(&self, text: &str) -> bool {
        self.target.capabilities.drop_params.iter().any(|param| param == text)
    }

    /// The messages in order.
    fn messages(&self) -> impl Iterator<Item = Message<'a>> {
        let list = self.get(Name::Messages, "messages").unwrap_or(Raw::NULL);
        list.items().enumerate().map(|(at, raw)| Message::read(at, raw))
    }

    /// The bound on completion tokens, no higher than the model's ceiling.
    fn max_tokens(&self) -> Option<u64> {
        let ceiling = self.target.capabilities.max_output_tokens.unwrap_or(u64::MAX);
        self.fields.max_tokens.map(|max| max.min(ceiling))
    }
}

/// A message with what is asked of every one, found in one walk.
#[derive(Copy, Clone)]
struct Message<'a> {
    at: usize,
    raw: Raw<'a>,
    role: Raw<'a>,
    content: Raw<'a>,
}

impl<'a> Message<'a> {
    fn read(at: usize, raw: Raw<'a>) -> Message<'a> {
        let mut message = Message { at, raw, role: Raw::NULL, content: Raw::NULL };
        for (name, value) in raw.members() {
            if eq_unescaped(name, "role") {
                message.role = value;
            } else if eq_unescaped(name, "content") {
                message.content = value;
            }
        }
        message
    }
}

fn refuse<T>(path: impl Display, expected: &str) -> Result<T, Invalid> {
    Err(Invalid(format!("{path}: expected {expected}")))
}

/// True if the inside of a string is nothing but white space.
fn is_blank(raw: &[u8]) -> bool {
    runs(raw).all(|run| match run {
        Run::Plain(bytes) => std::str::from_utf8(bytes).is_ok_and(|text| text.trim().is_empty()),
        Run::Char(c) => c.is_whitespace(),
    })
}

/// Appends the string `raw` if it has at most `most` characters, else its SHA-256 in hexadecimal.
fn write_user(raw: &[u8], most: usize, out: &mut Vec<u8>) {
    let text = Raw::text_of(raw);
    if text.chars().count() <= most {
        return write_inside(out, raw);
    }
    let mut hex = Vec::with_capacity(64);
    hex_into(&sha256(text.as_bytes()), &mut hex);
    write_inside(out, &hex);
}
