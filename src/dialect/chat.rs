//! OpenAI Chat Completions: its requests, streams and complete answers.

pub(super) mod custom_tools;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod signature;
pub(super) mod stream_reader;
pub(super) mod stream_writer;
pub(super) mod templates;
