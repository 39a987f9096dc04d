//! The request of an exchange and all data that outlives its states: its properties, admission and attempts.

use super::event::{DriverCall, Effect, Forward};
use super::fault::{Fault, FaultKind};
use super::request::Request;
use super::targets::Attempt;
use crate::base::time::{Mono, Unix};
use crate::gateway::diagnosis::Diagnosis;
use crate::policy::catalog::{QueueLimits, Target};
use crate::policy::config::Provider;
use crate::policy::keys::Keys;
use crate::policy::meter::{Amount, Hold, Lease, Meter};
use crate::policy::row::Running;

/// A request, without the state that it is in.
#[derive(Debug)]
pub(crate) struct RequestJob {
    pub(crate) request: Request,
    pub(super) admitted: Option<Admitted>,
    pub(super) attempt: Attempt,
    pub(crate) notes: RequestNotes,
}

/// Diagnosis for the operator, if the request did not go as usual.
#[derive(Debug, Default)]
pub(crate) struct RequestNotes(pub(super) Option<Box<Diagnosis>>);

impl RequestNotes {
    /// True if nothing has been noted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> &mut Diagnosis {
        self.0.get_or_insert_default()
    }
}

/// Admission of a request, and its deadlines.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hold: Hold,
    /// Lease from the shared ledger, which is returned with the usage record.
    pub(super) lease: Option<Box<Lease>>,
    pub(super) at: Unix,
    /// End of `request_timeout` over all attempts, until a complete response or a stream's first event arrives.
    pub(super) until: Mono,
    /// When the next heartbeat is due.
    pub(super) beat: Mono,
}

impl RequestJob {
    /// The clocks of an admitted request start. Returns the queue of its model, if that has one.
    pub(super) fn start_clocks(&mut self, now: Mono) -> Option<QueueLimits> {
        let timeout = self.target().map(|target| target.limits.request_timeout);
        let stream = self.request.asked.is_some_and(|asked| asked.stream);
        if let (Some(admitted), Some(timeout)) = (&mut self.admitted, timeout) {
            // The time of an upload is limited by its own timeout.
            admitted.until = if self.request.read == Mono::NEVER { Mono::NEVER } else { now.after(timeout) };
            if stream {
                admitted.beat = now.after(self.request.setup.config.server.heartbeat_after);
            }
        }
        self.request.model()?.queue
    }

    /// Failure of the request if its `request_timeout` is over. A provider that was not read may have answered long
    /// ago, so it is not to blame.
    pub(super) fn overdue(&self, unread: bool, now: Mono) -> Option<Fault> {
        let kind = if unread { FaultKind::NotRead } else { FaultKind::RequestTimeout };
        self.admitted.as_ref().is_some_and(|admitted| admitted.until <= now).then(|| Fault::from(kind))
    }

    /// True if it was admitted by an upper bound of its usage.
    pub(crate) fn is_bounded(&self) -> bool {
        self.admitted.is_some() && self.request.asked.is_some_and(|asked| asked.prompt.is_none())
    }

    /// Reservation in the meter, while it exists.
    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.admitted.as_ref().map(|admitted| &admitted.hold)
    }

    /// The admitted request as a successor process receives it; `None` if nothing has been admitted, or everything is
    /// settled.
    pub(crate) fn running(&self, meter: &Meter, keys: &Keys) -> Option<Running> {
        let (admitted, key) = (self.admitted.as_ref()?, self.request.found.key?);
        let Amount { tokens: reserved, nano: money } = meter.reserved(&admitted.hold);
        let (request, key, group) = (self.request.id.raw(), keys.get(key).id(), meter.path_text(&admitted.hold));
        Some(Running { request, key, admitted: admitted.at, reserved, money, group })
    }

    /// Notes that a part of a stream is sent; true if its head must be sent first.
    #[inline]
    pub(super) fn open(&mut self) -> bool {
        !std::mem::replace(&mut self.attempt.opened, true)
    }

    /// Forwards the events in `out`.
    #[inline]
    pub(super) fn forward(&mut self, forward: Forward, call: &mut DriverCall) -> Effect {
        if call.out.bytes.is_empty() {
            return if forward.rearms { Effect::Rearm } else { Effect::Nothing };
        }
        let forward = Forward { opens: self.open(), captured: self.request.meta.captured, ..forward };
        if call.cx.is_long(call.out.bytes.len()) {
            return Effect::ForwardBulk(forward, std::mem::take(&mut call.out.bytes));
        }
        Effect::Forward(forward)
    }

    /// The target of the present attempt; `None` before the model is known.
    #[inline]
    pub(super) fn target(&self) -> Option<&Target> {
        self.attempt.target(&self.request)
    }

    #[inline]
    pub(super) fn target_provider(&self) -> Option<&Provider> {
        self.attempt.provider(&self.request)
    }
}
