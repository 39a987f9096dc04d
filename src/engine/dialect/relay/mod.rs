//! Answers within one format: passed on byte for byte except `id` and `model`; their usage is observed.
//!
//! Owns the splicing and the end of a stream. Must never re-order, re-number or rewrite an upstream's content. Called
//! by [`crate::dialect::stream`] for the events of a stream, and by the gateway for complete answers.

mod answer;
pub(crate) mod cost;
mod event;
mod media;
pub(super) mod own;
mod stream_format;
mod text;

pub use answer::{rejected, whole};
pub(super) use event::Tap;
pub(super) use stream_format::StreamFormat;
pub(super) use text::is_relayed_text;

#[cfg(test)]
mod tests;
