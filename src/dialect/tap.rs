//! Answers that keep their shape: passed on byte for byte except `id` and `model`; their usage is observed on the way.
//!
//! Owns the splicing and the end of a stream. Must never re-order, re-number or re-write what an upstream says.
//! Called by [`super::stream`] for the events of a stream, by the gateway for whole answers.

mod event;
mod hidden;
mod places;
mod reply;
mod templates;

pub(super) use event::Tap;
pub use reply::{rejected, whole};
pub use templates::AnswerTemplates;

#[cfg(test)]
mod tests;
