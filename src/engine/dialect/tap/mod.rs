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

pub(super) use event::{StreamFormat, Tap};
pub use reply::{rejected, whole};
pub(super) use said::is_said;

#[cfg(test)]
mod tests;
