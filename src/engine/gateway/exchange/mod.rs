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
//! | check the head | `admit::authorize` |
//! | read the body | `body::reading` |
//! | find the model, attribute the request | `admit::choose_model` |
//! | choose a target of the model | `job` |
//! | write the body for the target | `body::build`, `body::translating` |
//! | reserve the maximum use | `admit::cost`, `admit::reserve` |
//! | wait for a slot, if none is free | `attempt::queue` |
//! | connect and send | `attempt`, `attempt::dial`, `body::upload` |
//! | judge the target by the attempt | `attempt::verdict` |
//! | pass on the answer | `answer::head`, `answering`, `intake`; `reply` if it is complete, `stream` for events |
//! | try another target after a failure | `fault`, `provider_error`, `attempt::failover` |
//! | settle, record and log | `answer::end`, `finish` |
//!
//! The data of a request is in `request` and `job`, its states are in `state`, and its boundary to the driver is
//! `event`.

pub(crate) mod admit;
mod answer;
mod attempt;
mod body;
pub(crate) mod capturing;
mod diagnosis;
mod dispatch;
mod event;
pub(crate) mod fault;
mod finish;
mod job;
pub(crate) mod local;
mod mask;
mod own_events;
mod provider_error;
mod request;
mod room;
mod spans;
mod state;
mod target_hold;
mod transitions;

pub(crate) use admit::authorize::Readiness;
pub(crate) use answer::stream::Alike;
pub(crate) use body::reading::is_too_slow;
pub(crate) use event::{ClientMessage, Dial, DriverCall, Effect, ExchangeEvent, Flow, Forward, Outcome, Output};
pub(crate) use job::RequestJob;
pub(crate) use request::Endpoint;
pub(crate) use request::Request;
pub(crate) use state::Exchange;
pub(crate) use target_hold::target_hold;

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
