//! Progress and deadlines of an attempt that has no answer yet.

use super::event::{DriverCall, Effect, Flow};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::next::NextStep;
use super::output::Output;
use super::own_events::EventWriter;
use super::state::{Attempting, Half, State};
use crate::base::time::Mono;

impl Attempting {
    /// The attempt continues, with this effect.
    pub(super) fn goes_on(self, effect: Effect) -> NextStep {
        NextStep::Enter(State::Attempting(self), effect)
    }

    /// Closes its connection, or its dials.
    pub(super) fn drop_provider(&mut self, out: &mut Output) {
        let slow = self.half.dials().earlier.map(|(slow, _)| slow);
        let other = slow.filter(|slow| self.half.provider() != Some(*slow));
        for provider in self.half.provider().into_iter().chain(other) {
            out.release(provider, false);
        }
        self.half = Half::Resolving;
    }

    /// A deadline of the request or of the present step has expired, or a heartbeat is due.
    pub(super) fn due(mut self, job: &mut RequestJob, flow: Flow, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        let overdue = job.overdue(flow.unread, now);
        let late = match self.half {
            _ if overdue.is_some() => overdue,
            _ if self.by > now => None,
            Half::Renewing => return job.renewed(self.draft, call),
            Half::Dialing(dials) => return self.dial_late(dials, job, call),
            // The provider is not to blame.
            Half::Open(_) if flow.unread => {
                let first_byte = job.target().map(|target| target.limits.first_byte_timeout);
                self.by = first_byte.map_or(Mono::NEVER, |timeout| now.after(timeout));
                None
            }
            Half::Open(_) => Some(Fault::from(FaultKind::FirstByteTimeout)),
            Half::Resolving => Some(Fault::from(FaultKind::ConnectTimeout)),
        };
        if let Some(fault) = late {
            return self.failed(job, fault, false, call);
        }
        let effect = job.heartbeat(flow.drained, EventWriter::Opening(self.draft.state.as_ref()), call);
        self.goes_on(effect)
    }
}
