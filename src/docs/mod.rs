//! The manuals, kept beside the code and checked by `tests/it/docs/` where they repeat what the code says. No code.

#[doc = include_str!("api.md")]
pub mod api {}

#[doc = include_str!("configuration.md")]
pub mod configuration {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("money.md")]
pub mod money {}

#[doc = include_str!("agents.md")]
pub mod agents {}

#[doc = include_str!("compare.md")]
pub mod compare {}

#[doc = include_str!("litellm.md")]
pub mod litellm {}

#[doc = include_str!("threats.md")]
pub mod threats {}

#[doc = include_str!("past.md")]
pub mod past {}

#[doc = include_str!("cost.md")]
pub mod cost {}

#[doc = include_str!("testing.md")]
pub mod testing {}
