//! OpenAI Responses: its requests, streams and complete answers.

pub(super) mod echo;
pub(super) mod hidden;
pub(super) mod hosted_tools;
pub(super) mod input;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod response;
pub(super) mod stream_reader;
pub(super) mod stream_writer;
pub(super) mod tools;
