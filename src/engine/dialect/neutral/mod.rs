//! The neutral forms between the API formats: each format has readers that produce them and writers that consume them.

pub(super) mod arguments;
pub mod carrier;
pub(super) mod conversation;
pub(super) mod delta;
pub(super) mod json_tool;
pub(crate) mod naming;
pub(super) mod pieces;
pub(super) mod replay;

use std::borrow::Cow;

/// The inside of a JSON string, with its escapes.
pub(super) type JsonText<'a> = Cow<'a, [u8]>;
