//! The neutral forms between the API formats: each format has readers that produce them and writers that consume them.

pub(super) mod arguments;
pub mod carrier;
pub(super) mod conversation;
pub(super) mod delta;
pub(super) mod json_tool;
pub(crate) mod naming;
pub(super) mod pieces;
pub(super) mod replay;

use crate::wire::json::{Run, runs};
use std::borrow::Cow;

/// The inside of a JSON string, with its escapes.
pub(super) type JsonText<'a> = Cow<'a, [u8]>;

/// True if the inside of a string is only white space.
pub(super) fn is_blank(raw: &[u8]) -> bool {
    // The first byte decides for nearly all texts.
    if raw.first().is_some_and(|byte| byte.is_ascii_graphic() && *byte != b'\\') {
        return false;
    }
    runs(raw).all(|run| match run {
        Run::Plain(bytes) => std::str::from_utf8(bytes).is_ok_and(|text| text.trim().is_empty()),
        Run::Char(c) => c.is_whitespace(),
    })
}
