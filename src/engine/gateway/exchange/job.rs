//! The request of an exchange and all data that outlives its states: its properties, its admission, and its attempts at
//! the targets of its model, with the choice among these.

use super::event::{DriverCall, Effect, Forward};
use super::fault::{Fault, FaultKind};
use super::request::Request;
use crate::base::time::{Mono, Unix};
use crate::gateway::accounts::targets::TargetMeter;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::room::{FullTargets, full_now, full_targets, has_needs};
use crate::gateway::provider::breaker::{Among, Choice, Flight, Seek, Stage};
use crate::gateway::provider::request::OutgoingRequest;
use crate::gateway::report::diagnosis::Diagnosis;
use crate::policy::catalog::{Affinity, Balance, Model, QueueLimits, Target, with_quarter};
use crate::policy::config::Provider;
use crate::policy::keys::Keys;
use crate::policy::meter::{Amount, Hold, Lease, Meter};
use crate::policy::refusal::Refusal;
use crate::policy::row::Running;
use std::net::Ipv6Addr;

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

    /// Address of the caller.
    pub(super) fn caller(&self, request: &Request, cx: &Cx) -> Ipv6Addr {
        let noted = self.0.as_ref().and_then(|diagnosis| diagnosis.caller);
        noted.unwrap_or_else(|| cx.connections.peers.of(request.client))
    }
}

/// Admission of a request, and its deadlines.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hold: Hold,
    /// Lease from the shared ledger, which is returned with the usage record.
    pub(super) lease: Option<Box<Lease>>,
    pub(super) at: Unix,
    /// End of `request_timeout` over all attempts, until a complete response or a stream's first event arrives. For a
    /// form that is still arriving it begins with the first slot.
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
            // A form that is still arriving has no slot yet.
            admitted.until = if self.request.read == Mono::NEVER { Mono::NEVER } else { now.after(timeout) };
            if stream {
                admitted.beat = now.after(self.request.setup.config.server.heartbeat_after);
            }
        }
        self.request.model()?.queue
    }

    /// Starts `request_timeout` unless it is running.
    pub(super) fn start_timeout(&mut self, now: Mono) {
        if self.admitted.as_ref().is_none_or(|admitted| admitted.until != Mono::NEVER) {
            return;
        }
        let timeout = self.target().map(|target| target.limits.request_timeout);
        if let (Some(admitted), Some(timeout)) = (&mut self.admitted, timeout) {
            admitted.until = now.after(timeout);
        }
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
    pub(crate) fn running(&self, meter: &Meter, targets: &TargetMeter, keys: &Keys) -> Option<Running> {
        let (admitted, key) = (self.admitted.as_ref()?, self.request.found.key?);
        let Amount { tokens: reserved, nano: money } = meter.reserved(&admitted.hold);
        let (request, key, group) = (self.request.id.raw(), keys.get(key).id(), meter.path_text(&admitted.hold));
        let model = self.request.model().map(|model| model.id.clone()).unwrap_or_default();
        let strict = self.request.strict().is_some();
        let hold = self.request.extras.as_ref().and_then(|extras| extras.reserved.hold.as_ref());
        let at_target = hold.zip(self.target());
        let target = at_target.map(|(_, target)| target.label.clone()).unwrap_or_default();
        let Amount { tokens, nano } = at_target.map_or(Amount::default(), |(hold, _)| targets.reserved(hold));
        let target_reserved = (tokens, nano);
        Some(Running {
            request,
            key,
            admitted: admitted.at,
            reserved,
            money,
            group,
            model,
            strict,
            target,
            target_reserved,
        })
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
        self.request.setup.config.providers.get(self.target()?.provider)
    }
}

/// The attempts at a model's targets. It outlives the states that make them; all zeros before a target is chosen.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Index into the model's targets.
    pub(super) target: u32,
    /// Number of times that the request was sent, or was to be sent.
    pub(super) attempts: u8,
    /// Targets tried so far, as bits.
    pub(super) tried: u64,
    /// Attempts on kept connections that turned out to be closed, which are free; see [`Attempt::free`].
    pub(super) stale: u8,
    /// A refused secret was read again for this request; this happens once.
    pub(super) renewed: bool,
    /// The head of a stream has been sent, with the first event or a heartbeat.
    pub(super) opened: bool,
    /// The present attempt, as long as it counts as in flight at its target.
    pub(super) flight: Option<Flight>,
    /// When the present attempt began; once the first content of its stream has arrived, the time of that.
    pub(super) begun: Mono,
    /// When the request was written completely to the present target; `NEVER` before.
    pub(super) sent: Mono,
    /// When the present attempt's answer began; `NEVER` before.
    pub(super) first: Mono,
    /// The first content of a stream has arrived.
    pub(super) has_content: bool,
    /// Events of a response that were sent as heartbeats before any arrived.
    pub(super) heartbeats_sent: u16,
    /// Position in the host's list, plus 1, of the address that the present attempt has dialed. 0 for a kept
    /// connection.
    pub(super) address: u8,
}

/// The present target was tried on a kept connection that turned out to be closed: only a fresh one will do.
const FRESH_ONLY: u8 = 1 << 7;

impl Attempt {
    /// Number of attempts that do not count for the configured number.
    pub(super) fn free(&self) -> u8 {
        self.stale & !FRESH_ONLY
    }

    /// Notes that the present target has received nothing of the request.
    pub(super) fn not_sent(&mut self) {
        (self.sent, self.first, self.address) = (Mono::NEVER, Mono::NEVER, 0);
    }

    /// The present target is not tried on a kept connection again.
    pub(super) fn needs_fresh(&self) -> bool {
        self.stale & FRESH_ONLY != 0
    }

    /// The present attempt was made on a kept connection that turned out to be closed.
    pub(super) fn was_stale(&mut self) {
        self.stale = (self.stale + 1) | FRESH_ONLY;
    }

    /// The target of the present attempt; `None` before the model is known.
    #[inline]
    pub(super) fn target<'a>(&self, request: &'a Request) -> Option<&'a Target> {
        request.targets().get(self.target as usize)
    }

    /// The next attempt goes to this target.
    pub(super) fn aim(&mut self, target: usize) {
        self.target = target as u32;
        self.tried |= self.bit();
        // The next attempt may use a kept connection.
        self.stale &= !FRESH_ONLY;
    }

    /// The target, as a bit.
    pub(super) fn bit(&self) -> u64 {
        1u64.checked_shl(self.target).unwrap_or(0)
    }

    /// An attempt that has not begun. The targets before the present one are marked as tried: the request cannot be
    /// written for them.
    pub(super) fn fresh(&self) -> Attempt {
        Attempt { tried: self.tried & !self.bit(), ..Attempt::default() }
    }

    /// Chooses the next target; false when none is left.
    #[inline]
    pub(super) fn choose(&mut self, request: &Request, draft: &OutgoingRequest, cx: &mut Cx) -> bool {
        let choice = self.choice(request, draft, cx);
        let Some(chosen) = cx.upstreams.breakers.choose(request.targets(), &choice) else { return false };
        self.aim(chosen);
        true
    }

    /// The failure of a request that may be sent to no target now.
    #[cold]
    pub(super) fn without_target(&self, request: &Request, draft: &OutgoingRequest, cx: &mut Cx) -> Fault {
        let (owner, now) = (request.owner(cx), cx.now.mono);
        let full = full_targets(request, &mut cx.accounts.targets, cx.now, Mono::NEVER);
        let choice = self.choice_among(request, draft, owner, now, &full);
        let (targets, breakers) = (request.targets(), &mut cx.upstreams.breakers);
        if full.bits != 0 && breakers.choose(targets, &Choice { full: 0, late: 0, ..choice }).is_some() {
            return full.fault(cx.now.unix);
        }
        let of_others = Choice { tried: 0, uploader: None, ..choice };
        if choice.uploader.is_some() && breakers.choose(targets, &of_others).is_some() {
            return FaultKind::KeySlots.into();
        }
        let Some(paused) = targets.iter().find(|target| breakers.waits_for_trial(target, now)) else {
            return FaultKind::NoSlot.into();
        };
        breakers.lost(&paused.label);
        let again = breakers.there_again(targets, 0, &choice.needs, owner, now);
        let seconds = again.map_or(1, |again| again.micros_since(now).div_ceil(1_000_000).max(1));
        Fault { retry_after: Some(seconds), ..FaultKind::CoolingDown.into() }
    }

    /// Rule that chooses a target for the request among those that were not tried.
    #[inline]
    pub(super) fn choice(&self, request: &Request, draft: &OutgoingRequest, cx: &mut Cx) -> Choice {
        let full = if has_needs(request) { full_now(request, cx) } else { FullTargets::default() };
        self.choice_among(request, draft, request.owner(cx), cx.now.mono, &full)
    }

    /// Like [`Attempt::choice`], if these targets are known to have no room.
    #[inline]
    pub(super) fn choice_among(
        &self,
        request: &Request,
        draft: &OutgoingRequest,
        owner: u64,
        now: Mono,
        full: &FullTargets,
    ) -> Choice {
        let among = match request.model().map(|model| (model.balance, model.affinity)) {
            Some((Balance::LeastBusy, _)) => Among::LeastBusy,
            Some((Balance::Affinity, Affinity::Off)) | None => Among::Turns,
            Some(_) => Among::Kept(draft.kept_with),
        };
        let arrives = draft.scan.form().is_some_and(|form| !form.is_complete);
        let uploader = request.found.key.filter(|_| arrives);
        let (full, late) = (full.bits, full.late);
        Choice { tried: self.tried, full, late, needs: request.needs(), owner, among, uploader, now }
    }

    /// Counts the attempt as in flight at its target, unless it is counted already.
    pub(super) fn take_slot(&mut self, request: &Request, draft: &OutgoingRequest, cx: &mut Cx) {
        if self.flight.is_none() {
            let choice = self.choice_among(request, draft, request.owner(cx), cx.now.mono, &FullTargets::default());
            let choice = Choice { tried: self.tried & !self.bit(), ..choice };
            self.flight = cx.upstreams.breakers.begin(request.targets(), self.target as usize, &choice);
        }
    }

    /// Chooses the next target, free or not, after the body could not be written for the chosen one. False if the model
    /// has no other.
    pub(super) fn next_to_write(&mut self, request: &Request, draft: &OutgoingRequest, cx: &mut Cx) -> bool {
        self.tried |= self.bit();
        if self.choose(request, draft, cx) {
            return true;
        }
        let untried = self.tried.trailing_ones() as usize;
        let is_there = untried < request.targets().len();
        if is_there {
            self.aim(untried);
        }
        is_there
    }

    /// The target that the body is written for before admission. If the request will wait, that is the first in the
    /// list; it may be sent to another one later.
    pub(super) fn first_target(
        &mut self,
        request: &Request,
        draft: &OutgoingRequest,
        cx: &mut Cx,
    ) -> Result<(), Refusal> {
        let Some(model) = request.model() else { return Err(Refusal::no_model()) };
        let (small, queue) = (request.too_small(model), model.queue);
        let Some(queue) = queue else {
            self.tried |= small;
            if self.choose(request, draft, cx) {
                return Ok(());
            }
            self.tried &= !small;
            return match small > 0 && self.choose(request, draft, cx) {
                true => Ok(()),
                false => Err(self.without_target(request, draft, cx).refusal(&request.setup.config.upstream)),
            };
        };
        let choice = Choice { tried: small, ..self.choice(request, draft, cx) };
        match request.seek(&queue, &choice, Stage::New, cx) {
            Seek::Found(target) => self.aim(target),
            Seek::None => return Err(self.without_target(request, draft, cx).refusal(&request.setup.config.upstream)),
            Seek::Wait => return request.full(&queue, cx).map_or(Ok(()), |(why, again)| Err(why.refusal(again))),
        }
        Ok(())
    }
}

impl Request {
    /// The targets that are too small for the prompt by its estimate, as bits; never the largest.
    #[inline]
    fn too_small(&self, model: &Model) -> u64 {
        let prompt = self.asked.map_or(0, |asked| asked.about.into());
        if prompt <= model.narrow {
            return 0;
        }
        let largest = self.targets().iter().map(|target| target.context).max().unwrap_or_default();
        self.targets_with(|target| target.context < largest && with_quarter(target.context) < prompt)
    }
}

impl Default for Attempt {
    fn default() -> Attempt {
        Attempt {
            target: 0,
            attempts: 0,
            tried: 0,
            stale: 0,
            renewed: false,
            opened: false,
            flight: None,
            begun: Mono::NEVER,
            sent: Mono::NEVER,
            first: Mono::NEVER,
            has_content: false,
            heartbeats_sent: 0,
            address: 0,
        }
    }
}
