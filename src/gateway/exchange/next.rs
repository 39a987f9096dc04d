//! Steps of a request from one state to the next. A handler owns the state that it ends, and returns the step that
//! follows: so no handler calls another, and only [`super::Exchange`] knows the whole way.

use super::event::{Effect, Forward};
use super::fault::Fault;
use super::state::{Outgoing, State};
use crate::policy::refusal::Refusal;

/// The next step of a request.
#[derive(Debug)]
pub(super) enum NextStep {
    /// The request is in this state, and the driver performs this effect.
    Enter(State, Effect),
    /// The body is written: charge the request, and reserve its maximum use. `others_counted`: the requests of its key
    /// that were admitted by a bound have counted their maximum use.
    Reserve { draft: Outgoing, others_counted: bool },
    /// The request is admitted: start its clocks and its first attempt.
    Serve(Outgoing),
    /// Have a helper thread write the body for the chosen target; the attempt before, and its target.
    Translate(Outgoing, Option<Box<(Fault, u32)>>),
    /// The body for the chosen target is written: begin an attempt.
    Attempt(Outgoing),
    /// An attempt has failed.
    Failed(Outgoing, Box<Fault>),
    /// Choose another target after this failure.
    Another(Outgoing, Box<Fault>),
    /// No other target is free: wait for one, if that can help.
    Wait(Outgoing, Box<Fault>),
    /// No other target is left.
    LastResort(Outgoing, Box<Fault>),
    /// End the request: another target would not help.
    GiveUp(Outgoing, Box<Fault>),
    /// End the request in this state.
    End(State, Box<Fault>),
    /// End the request in this state after the good part of its stream, which is in the output and sent like this.
    EndAfter(State, Box<Fault>, Forward),
}

impl NextStep {
    /// Refuses a request that has not been admitted.
    pub(super) fn refuse(draft: Outgoing, refusal: Refusal) -> NextStep {
        NextStep::Enter(State::Reading { draft }, Effect::refuse(refusal))
    }
}
