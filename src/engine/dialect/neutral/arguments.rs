//! Arguments of a tool call: JSON in a string in the formats of OpenAI, a value in the format of Anthropic.
//!
//! Owns the way from one to the other. Must never change a number or the order of members.

use super::JsonText;
use crate::wire::json::{Inside, Raw, ValueKind, check, compact, put, write_escaped};
use std::borrow::Cow;

/// Arguments of a call.
#[derive(Copy, Clone)]
pub(crate) enum Arguments<'a> {
    /// A JSON value.
    Value(Raw<'a>),
    /// A text that should be JSON.
    Json(&'a [u8]),
    /// The one argument `input` of a tool that takes free text.
    Free(&'a [u8]),
}

impl<'a> Arguments<'a> {
    /// Arguments as they are given: JSON in a string, or a value.
    pub(crate) fn of(given: Option<Raw<'a>>) -> Arguments<'a> {
        match given.unwrap_or(Raw::NULL) {
            value if value.string().is_none() && !value.is_null() => Arguments::Value(value),
            text => Arguments::Json(text.string().unwrap_or_default()),
        }
    }

    /// The inside of a string with them; an empty text remains empty.
    pub(crate) fn text(self) -> JsonText<'a> {
        if let Arguments::Json(text) = self {
            return Cow::Borrowed(text);
        }
        let mut text = Vec::new();
        self.write_text(&mut text);
        Cow::Owned(text)
    }

    /// Appends them as the inside of a string: compact JSON.
    pub(crate) fn write_text(self, out: &mut Vec<u8>) {
        match self {
            Arguments::Value(value) => {
                let mut text = Vec::with_capacity(value.bytes().len());
                compact(value.bytes(), &mut text);
                write_escaped(out, &text);
            }
            Arguments::Json(text) if holds_nothing(text) => out.extend_from_slice(b"{}"),
            Arguments::Json(text) => out.extend_from_slice(text),
            Arguments::Free(text) => {
                out.extend_from_slice(b"{\\\"input\\\":\\\"");
                write_escaped(out, text);
                out.extend_from_slice(b"\\\"}");
            }
        }
    }

    /// Appends them as an object: a JSON object unchanged, even if it is encoded twice, an empty text as an empty
    /// object, anything else under `_raw`.
    pub(crate) fn write_object(self, out: &mut Vec<u8>) {
        match self {
            Arguments::Value(value) if value.kind() == ValueKind::Object => compact(value.bytes(), out),
            Arguments::Free(text) => put!(out, r#"{"input":"#, Inside(text), "}"),
            other => write_parsed(&other.text(), out),
        }
    }
}

fn write_parsed(arguments: &[u8], out: &mut Vec<u8>) {
    let mut text = Raw::text_of(arguments);
    if let Some(inner) = Raw::new(text.trim().as_bytes()).text().filter(|_| check(text.trim().as_bytes()).is_ok()) {
        text = Cow::Owned(inner.into_owned());
    }
    let trimmed = text.trim();
    if holds_nothing(arguments) {
        put!(out, "{}");
    } else if trimmed.starts_with('{') && check(trimmed.as_bytes()).is_ok() {
        compact(trimmed.as_bytes(), out);
    } else {
        put!(out, r#"{"_raw":"#, Inside(arguments), "}");
    }
}

/// True if a text is empty, blank or `null`.
fn holds_nothing(arguments: &[u8]) -> bool {
    // Nearly all begin with a brace.
    !arguments.starts_with(b"{") && matches!(Raw::text_of(arguments).trim(), "" | "null")
}
