//! The life of one request, from its head to its one end. A state machine: it receives [`ExchangeEvent`]s and returns
//! an [`Effect`]; it knows neither sockets nor connections. Every way out passes [`Exchange::finish`]: the reservation
//! is settled, and the usage record and the log line are written exactly once.
//!
//! A state owns its data, which is dropped with it: once the draft is dropped, the request is committed to its target.
//! Only `dispatch` takes a state out of its exchange. The table in `transitions` lists the events of each state and the
//! states that may follow.
//!
//! | step of a request | files |
//! |---|---|
//! | check the head | `authorize` |
//! | read the body | `reading` |
//! | find the model, attribute the request | `choose_model` |
//! | choose a target of the model | `job` |
//! | write the body for the target | `build`, `translating` |
//! | reserve the maximum use | `cost`, `reserve` |
//! | wait for a slot, if none is free | `queue` |
//! | connect and send | `attempt`, `dial`, `upload` |
//! | judge the target by the attempt | `verdict` |
//! | pass on the answer | `answer_head`, `answering`, `intake`; `reply` if it is complete, `stream` for events |
//! | try another target after a failure | `fault`, `provider_error`, `failover` |
//! | settle, record and log | `answer_end`, `finish` |
//!
//! The data of a request is in `request` and `job`, its states are in `state`, and its boundary to the driver is
//! `event`.

mod answer_end;
mod answer_head;
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
mod linger;
mod mask;
mod own_events;
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
mod verdict;

pub(crate) use authorize::Readiness;
pub(crate) use event::{ClientMessage, Dial, DriverCall, Effect, ExchangeEvent, Flow, Forward, Outcome, Output};
pub(crate) use job::RequestJob;
pub(crate) use reading::is_too_slow;
pub(crate) use request::Endpoint;
pub(crate) use request::Request;
pub(crate) use state::Exchange;
pub(crate) use stream::Alike;

/// All requests.
pub(crate) type Exchanges = Slots<Exchange, ExchangeName>;

use super::ids::ExchangeName;
use crate::base::slots::Slots;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::SseStream;
    use crate::gateway::{client, provider};
    use crate::wire::json::ScanCount;

    /// The sizes that every stream under way costs; its client's connection costs no more than when idle, including the
    /// charge for unread output.
    #[test]
    fn state_of_a_running_stream_is_small() {
        assert!(size_of::<Exchange>() <= 320, "{}", size_of::<Exchange>());
        assert!(size_of::<provider::ProviderConnection>() <= 80, "{}", size_of::<provider::ProviderConnection>());
        let stream = size_of::<SseStream>() - size_of::<ScanCount>();
        assert!(stream <= 232, "{stream}");
        assert!(size_of::<client::ClientConnection>() <= 128, "{}", size_of::<client::ClientConnection>());
    }
}
