//! Answers within one format: passed on byte for byte except `id` and `model`; their usage is observed.
//!
//! Owns the splicing and the end of a stream. Must never re-order, re-number or rewrite an upstream's content. Called
//! by [`super::stream`] for the events of a stream, and by the gateway for complete answers.

pub(crate) mod cost;
mod event;
mod media;
pub(super) mod own;
mod reply;
mod said;
mod stream_format;

pub(super) use event::Tap;
pub use reply::{rejected, whole};
pub(super) use said::is_said;
pub(super) use stream_format::StreamFormat;

#[cfg(test)]
mod tests;
