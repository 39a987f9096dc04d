//! The neutral forms between the API formats: each format has readers that produce them and writers that consume them.

pub(super) mod answer;
pub(super) mod conversation;
pub(super) mod delta;
pub(super) mod pieces;
