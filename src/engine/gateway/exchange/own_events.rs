//! Events of a stream that its provider has not sent: heartbeats, and the error that ends a broken stream.

use super::event::{DriverCall, Effect, Forward};
use super::job::RequestJob;
use crate::dialect::errors::ErrorWords;
use crate::dialect::stream::own_events::heartbeat;
use crate::dialect::{ResponseIdentity, SseStream, TranslationState, failure, opening};
use crate::wire::{ModelEndpoint, Shape};

/// Writes heartbeats and final errors, in the client's API format.
#[derive(Debug)]
pub(crate) enum EventWriter<'a> {
    /// The stream of the answer under way.
    Stream(&'a mut SseStream),
    /// No answer has begun. With the state of its translation, if any.
    Opening(Option<&'a TranslationState>),
    /// The events belong to no stream.
    Alone,
    /// The answer has no events: nothing may be added to it.
    Nothing,
}

impl EventWriter<'_> {
    /// Writes a heartbeat. Returns the events that the client has got: another attempt may follow as long as none has
    /// arrived, and continues after them.
    fn heartbeat(self, shape: Shape, heartbeats_sent: u16, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> u16 {
        match self {
            EventWriter::Stream(stream) => stream.heartbeat(shape, heartbeats_sent, identity, out),
            EventWriter::Opening(state) => opening(shape, heartbeats_sent, state, identity, out),
            EventWriter::Alone => {
                heartbeat(shape, out);
                heartbeats_sent
            }
            EventWriter::Nothing => heartbeats_sent,
        }
    }

    /// Writes the error event that ends a broken stream; false for an answer without events.
    pub(super) fn failure(
        self,
        endpoint: ModelEndpoint,
        heartbeats_sent: u16,
        words: &ErrorWords<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        match self {
            EventWriter::Nothing => return false,
            EventWriter::Stream(stream) => stream.fail(endpoint, words, identity, out),
            EventWriter::Opening(state) => failure(endpoint, heartbeats_sent, state, words, identity, out),
            EventWriter::Alone => failure(endpoint, 0, None, words, identity, out),
        }
        true
    }
}

impl RequestJob {
    /// Sends the status and a heartbeat after a period without events, so that no proxy closes the connection. A client
    /// that has not read its pending output, `drained`, needs none.
    pub(super) fn heartbeat(&mut self, drained: bool, writer: EventWriter<'_>, call: &mut DriverCall) -> Effect {
        let now = call.cx.now.mono;
        let Some(admitted) = self.admitted.as_mut().filter(|admitted| admitted.beat <= now) else {
            return Effect::Rearm;
        };
        admitted.beat = now.after(self.request.setup.config.server.heartbeat_after);
        let Some(endpoint) = self.request.endpoint().filter(|_| drained) else { return Effect::Rearm };
        call.out.bytes.clear();
        let identity = self.request.counted_identity(call.cx.now.unix);
        self.attempt.heartbeats_sent =
            writer.heartbeat(endpoint.shape, self.attempt.heartbeats_sent, &identity, &mut call.out.bytes);
        Effect::Forward(Forward {
            opens: self.open(),
            commits: false,
            rearms: true,
            captured: self.request.meta.captured,
        })
    }
}
