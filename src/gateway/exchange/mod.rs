//! The life of one request, from its head to its one end. A state machine: it receives [`ExchangeEvent`]s and returns
//! an [`Effect`]; it knows neither sockets nor connections. Every way out passes [`Exchange::finish`]: the reservation
//! is settled, and the usage record and the log line are written exactly once.
//!
//! A state owns its data, which is dropped with it: once the draft is dropped, the request is committed to its target.
//! Only `dispatch` takes a state out of its exchange. The table in `transitions` lists the events of each state and the
//! states that may follow.

mod answer_end;
mod answering;
mod attempt;
pub(crate) mod authorize;
mod build;
pub(crate) mod capturing;
mod choose_model;
mod cost;
mod diagnosis;
mod dial;
mod dispatch;
mod event;
mod failover;
pub(crate) mod fault;
mod finish;
mod intake;
mod job;
mod mask;
mod own_events;
mod paths;
mod provider_error;
mod queue;
mod reading;
mod reply;
mod request;
mod reserve;
mod spans;
mod state;
mod stream;
pub(crate) mod streams;
mod transitions;
mod translating;
mod upload;
mod views;

pub(crate) use authorize::Readiness;
pub(crate) use event::{ClientMessage, Dial, DriverCall, Effect, ExchangeEvent, Flow, Forward, Outcome, Output};
pub(crate) use job::RequestJob;
pub(crate) use paths::Endpoint;
use paths::Identified;
pub(crate) use reading::is_too_slow;
pub(crate) use request::Request;
pub(crate) use state::Exchange;
pub(crate) use stream::Alike;

/// All requests.
pub(crate) type Exchanges = Slots<Exchange, ExchangeName>;

use super::client::cors::CorsPolicy;
use super::client::response::{RequestId, RequestMeta};
use super::cx::Cx;
use super::ids::{ClientId, ExchangeName};
use super::provider::request::OutgoingRequest;
use crate::base::limits::{IO_SLICE, LOOKUP_TIMEOUT, UPLOAD_HOLD};
use crate::base::slots::Slots;
use crate::base::time::Mono;
use crate::policy::refusal::Refusal;
use crate::wire::head::{Framing, HeaderField, RequestHead};
use crate::wire::{Passthrough, multipart};
use build::promise_translation;
use job::Attempt;
use job::RequestNotes;
use state::{Reserving, State};

impl Exchange {
    /// The exchange of a request whose head is complete or invalid.
    pub(crate) fn new(client: ClientId, meta: RequestMeta, cx: &mut Cx) -> Exchange {
        if cx.report.recorder.is_asleep() {
            cx.close_minute();
        }
        let request = Request {
            client,
            id: RequestId::fresh(&mut cx.rng),
            meta,
            found: Identified::default(),
            cors: CorsPolicy::Off,
            asked: None,
            extras: None,
            setup: cx.setup.clone(),
            received: cx.now.mono,
            read: Mono::NEVER,
            queued: 0,
        };
        let attempt = Attempt::default();
        let job = RequestJob { request, admitted: None, attempt, notes: RequestNotes::default() };
        Exchange { job, state: State::Ended }
    }

    /// Starts the lookup of its key in the ledger; the checks that follow from the head wait for that.
    pub(crate) fn identify(&mut self, head: &RequestHead, now: Mono) {
        self.state = State::Identifying { head: Box::new(*head), by: now.after(LOOKUP_TIMEOUT) };
    }

    /// The head is accepted: memory for the body is reserved, and the body is read.
    pub(crate) fn read_body(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        declared: u64,
        cx: &mut Cx,
    ) -> Result<(), Refusal> {
        let (Some(key), Some(endpoint)) = (self.job.request.found.key, self.job.request.endpoint()) else {
            return Ok(());
        };
        let mut draft = cx.upstreams.requests.take();
        draft.scan.reset(endpoint);
        draft.head = *head;
        let mut declared = declared;
        if let Some(passthrough) = endpoint.as_passthrough().filter(|passthrough| passthrough.is_form()) {
            begin_form(&mut draft, passthrough, bytes, cx.setup.config.server.max_upload);
            // More is not held.
            declared = declared.min((UPLOAD_HOLD + IO_SLICE) as u64);
        }
        let promised = cx.memory.budget.body(&mut draft.promise, key, declared, &mut cx.memory.pool);
        let promised = promised.and_then(|()| promise_translation(&self.job.request, &mut draft, declared, None, cx));
        self.state = State::Reading { draft };
        promised
    }

    /// Asks the shared ledger for the state of the key. Returns false if the local state is enough.
    pub(crate) fn ask_for_quota(&mut self, call: &mut DriverCall) -> bool {
        let Some(reserving) = Reserving::ask_for_quota(&self.job, call) else { return false };
        self.state = State::Reserving(reserving);
        true
    }
}

/// Begins to read a form. `bytes`: those of its request's head.
#[cold]
fn begin_form(draft: &mut OutgoingRequest, passthrough: Passthrough, bytes: &[u8], most: u64) {
    let known = if let Framing::Length(length) = draft.head.framing { Some(length) } else { None };
    let boundary = multipart::boundary(draft.head.field(HeaderField::ContentType).of(bytes)).unwrap_or_default();
    draft.scan.reset_form(passthrough, boundary, known, most);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::SseStream;
    use crate::gateway::{client, provider};

    /// The sizes that every stream under way costs; its client's connection costs no more than when idle, including the
    /// charge for unread output.
    #[test]
    fn state_of_a_running_stream_is_small() {
        assert!(size_of::<Exchange>() <= 320, "{}", size_of::<Exchange>());
        assert!(size_of::<provider::ProviderConnection>() <= 80, "{}", size_of::<provider::ProviderConnection>());
        assert!(size_of::<SseStream>() <= 224, "{}", size_of::<SseStream>());
        assert!(size_of::<client::ClientConnection>() <= 128, "{}", size_of::<client::ClientConnection>());
    }
}
