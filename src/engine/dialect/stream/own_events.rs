//! Events of Tollgate's own in a client's stream: heartbeats, the announcement of an answer, and its failure.

use crate::dialect::answer::{Destination, ResponseIdentity};
use crate::dialect::dispatch::with_format;
use crate::dialect::errors::{ErrorWords, error_event};
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::responses::write_stream::ResponsesWriter;
use crate::dialect::usage::ObservedUsage;
use crate::wire::{ModelEndpoint, Shape};

/// Appends the heartbeat that every client of this format accepts at any time.
pub fn heartbeat(shape: Shape, out: &mut Vec<u8>) {
    out.extend_from_slice(with_format!(shape, F => F::HEARTBEAT));
}

/// Appends a heartbeat before an answer has begun, for a client of format `shape`. `events` were sent before; returns
/// the new number. `state`: the translation of the request, if there is one.
pub fn opening(
    shape: Shape,
    events: u16,
    state: Option<&TranslationState>,
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> u16 {
    match state.filter(|_| with_format!(shape, F => F::IS_NUMBERED)) {
        Some(state) => {
            let mut writer = ResponsesWriter::after(events.into(), identity.created);
            writer.heartbeat(&mut Destination { state, observed: &ObservedUsage::default(), identity, out });
            u16::try_from(writer.sequence).unwrap_or(u16::MAX)
        }
        None => {
            heartbeat(shape, out);
            events
        }
    }
}

/// Appends the client's error event for an answer that fails before any of it has arrived, after `events` were sent.
pub fn failure(
    endpoint: ModelEndpoint,
    events: u16,
    state: Option<&TranslationState>,
    words: &ErrorWords<'_>,
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) {
    if !with_format!(endpoint.shape, F => F::IS_NUMBERED) {
        return error_event(endpoint, words, out);
    }
    let plain = TranslationState::default();
    let mut to = Destination { state: state.unwrap_or(&plain), observed: &ObservedUsage::default(), identity, out };
    let mut writer = ResponsesWriter::after(events.into(), identity.created);
    // Codex reads the failure of a response only if that response has begun.
    if events == 0 && words.is_overflow() {
        writer.heartbeat(&mut to);
    }
    writer.fail(words, &mut to);
}
