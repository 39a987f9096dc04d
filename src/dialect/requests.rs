//! A request of one shape written as a request of the other (`wire-formats` 3.1 to 3.9; contract section 2).
//!
//! Owns what a translation keeps, changes, drops and refuses. Must never change a number, the order of members inside
//! an argument, or a byte of text. Called by the gateway for a route whose upstream speaks the other shape; the body
//! has passed [`super::RequestScan`] and is valid.

mod ask;
mod media;
mod offer;
mod schema;
mod to_chat;
mod to_messages;

pub use ask::Target;
pub(super) use to_chat::write_arguments;
pub(super) use to_messages::write_input;

use super::naming::TranslationState;
use super::request::{Fields, Invalid};
use crate::wire::Dialect;
use ask::Ask;

/// Writes the request in the shape that is not `from`. The [`TranslationState`] is needed to translate the answer back.
/// [`Invalid`] where a specified field cannot be expressed there; `out` then holds nothing of use.
pub fn request(
    from: Dialect,
    body: &[u8],
    fields: &Fields,
    target: &Target<'_>,
    out: &mut Vec<u8>,
) -> Result<TranslationState, Invalid> {
    let ask = Ask { body, fields, dialect: from, target };
    match from {
        Dialect::Chat => to_messages::write(&ask, out),
        Dialect::Messages => to_chat::write(&ask, out),
    }
}
