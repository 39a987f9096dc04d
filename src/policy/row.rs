//! One row of the ledger: plain data between `gateway`, which writes it, and `io::store`, which keeps it.
//! It decides nothing and never holds content of a request or an answer.

use super::keys::KeyId;
use super::usage::Usage;
use crate::base::time::Unix;
use crate::wire::Shape;
use std::sync::Arc;

/// What is remembered of one admitted request (contract sections 3 and 5).
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The 16 bytes behind the hexadecimal of the request id.
    pub request: [u8; 16],
    /// Whose key.
    pub key: KeyId,
    /// When it was admitted; window and period follow from it.
    pub admitted: Unix,
    /// Catalog id of the model.
    pub model: Arc<str>,
    /// `provider/model` of the target that served, empty if none was reached.
    pub target: Arc<str>,
    /// The endpoint's shape.
    pub endpoint: Shape,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// The status the client saw; 499 for a client that left before one.
    pub status: u16,
    /// Tokens and where their counts come from.
    pub usage: Usage,
    /// Cost in nano-dollars.
    pub cost_nano: u64,
    /// Targets tried.
    pub attempts: u32,
    /// Microseconds from the first byte of the request to the end of the answer.
    pub micros: u64,
}

/// Reads the endpoint's shape as ledgers keep it, by [`Shape::name`].
pub fn endpoint_from(text: &str) -> Shape {
    if text == Shape::Messages.name() { Shape::Messages } else { Shape::Chat }
}
