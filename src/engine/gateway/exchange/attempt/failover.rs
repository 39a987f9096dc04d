//! The step after a failed attempt: a fresh connection, another target, a renewed secret, or the end. Another attempt
//! is possible as long as the draft is kept: the exchange drops it once part of an answer has been relayed.
//!
//! A secret is renewed without a restart: if the last provider of a request refuses it, the request waits until
//! Tollgate has read the secret again, and is sent again with it.

use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::admit::strict;
use crate::gateway::exchange::body::build::Built;
use crate::gateway::exchange::event::{DriverCall, Effect};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::Attempt;
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::Request;
use crate::gateway::exchange::room::full_targets;
use crate::gateway::exchange::state::{Answering, AttemptStage, Attempting, Draft, NextStep, Outgoing, State};
use crate::gateway::exchange::target_hold::leave_target;
use crate::policy::catalog::Target;
use crate::policy::config::Origin;
use std::sync::Arc;

impl Attempting {
    /// The attempt has failed before an answer. `reused`: its connection had served before.
    pub(crate) fn failed(
        mut self,
        job: &mut RequestJob,
        fault: Fault,
        reused: bool,
        call: &mut DriverCall,
    ) -> NextStep {
        self.drop_provider(call.out);
        after(job, self.draft, fault, reused, call.cx)
    }
}

impl Answering {
    /// A response under way has failed. If part of it was relayed, there is no other attempt.
    pub(crate) fn failed(
        mut self,
        job: &mut RequestJob,
        mut fault: Fault,
        reused: bool,
        call: &mut DriverCall,
    ) -> NextStep {
        (fault.answered, fault.came) = (true, self.body.came());
        self.drop_provider(call.out);
        match std::mem::replace(&mut self.draft, Draft::Gone) {
            Draft::Kept(mut draft) => {
                if !strict::note_unbilled(job, &fault) {
                    job.charge_failed(&self.body, &draft, &fault, call);
                }
                call.cx.memory.release(&mut draft.answer);
                self.release(job.request.found.key, call.cx);
                if job.request.read != Mono::NEVER {
                    // `request_timeout` begins again for the first event of the next stream.
                    job.start_timeout(call.cx.now.mono);
                }
                after(job, draft, fault, reused, call.cx)
            }
            draft => {
                job.target_failed(&fault, call.cx);
                self.draft = draft;
                NextStep::End(State::Answering(self), Box::new(fault))
            }
        }
    }
}

/// The step after a failed attempt: one on a kept connection that the provider had closed is repeated for free.
fn after(job: &mut RequestJob, mut draft: Outgoing, fault: Fault, reused: bool, cx: &mut Cx) -> NextStep {
    if matches!(fault.kind, FaultKind::Closed(_)) && reused && !job.attempt.needs_fresh() {
        job.attempt.was_stale();
        job.note_failed(&fault, cx.now.mono);
        job.no_verdict(cx);
        // The provider may have read and counted the request.
        leave_target(job, None, cx);
        draft.restart();
        cx.report.stats.stale_retries += 1;
        return NextStep::Attempt(draft);
    }
    // A form that has been sent in part is gone.
    if draft.upload.as_ref().is_some_and(|upload| upload.has_begun()) {
        job.target_failed(&fault, cx);
        return NextStep::GiveUp(draft, Box::new(fault));
    }
    NextStep::Failed(draft, Box::new(fault))
}

impl RequestJob {
    /// Reports a failed attempt to its target; another may follow.
    pub(crate) fn attempt_failed(&mut self, draft: Outgoing, fault: Box<Fault>, cx: &mut Cx) -> NextStep {
        let limit = self.target().map_or(1, |target| target.limits.attempts);
        self.target_failed(&fault, cx);
        leave_target(self, None, cx);
        if !fault.asks_for_rest() {
            self.attempt.tried |= self.attempt.siblings(&self.request);
        }
        if fault.overflow.is_some() {
            self.attempt.tried |= self.attempt.no_larger(&self.request);
        }
        if !strict::may_try_again(self, &fault, cx) {
            return NextStep::GiveUp(draft, fault);
        }
        match fault.may_try_next() && u32::from(self.attempt.attempts - self.attempt.free()) < limit {
            true => NextStep::Another(draft, fault),
            false => NextStep::LastResort(draft, fault),
        }
    }

    /// Chooses the next target for which the request can be written, and skips others: the request is valid, since it
    /// could be written for an earlier target.
    pub(crate) fn next_target(&mut self, mut draft: Outgoing, fault: Box<Fault>, call: &mut DriverCall) -> NextStep {
        let failed = self.attempt.target;
        while self.attempt.choose(&self.request, &draft, call.cx) {
            match self.build(&mut draft, call) {
                Ok(Built::Whole) => return NextStep::Attempt(draft),
                Ok(Built::TooLong) => return NextStep::Translate(draft, Some(Box::new((*fault, failed)))),
                Err(_) => {}
            }
        }
        self.attempt.target = failed;
        NextStep::Wait(draft, fault)
    }

    /// No other target is left. If the provider has refused a secret that was renewed since, makes one more attempt at
    /// the present target; if it is being renewed, waits for that; otherwise ends the request.
    pub(crate) fn last_resort(&mut self, draft: Outgoing, fault: Box<Fault>, call: &mut DriverCall) -> NextStep {
        if matches!(fault.kind, FaultKind::Status(401) | FaultKind::Account(_)) && !self.attempt.renewed {
            self.attempt.renewed = true;
            if self.adopt_secret(call.cx) {
                return self.once_more(draft, fault, call);
            }
            if self.origin().is_some_and(|origin| call.cx.upstreams.renewals.contains(origin)) {
                let timeout = self.target().map_or(Default::default(), |target| target.limits.connect_timeout);
                let by = call.cx.now.mono.after(timeout);
                self.attempt.not_sent();
                return NextStep::Enter(
                    State::Attempting(Attempting { draft, stage: AttemptStage::Renewing, by }),
                    Effect::Rearm,
                );
            }
        }
        NextStep::GiveUp(draft, fault)
    }

    /// Writes the request for the present target again.
    fn once_more(&mut self, mut draft: Outgoing, fault: Box<Fault>, call: &mut DriverCall) -> NextStep {
        match self.build(&mut draft, call) {
            Ok(Built::Whole) => NextStep::Attempt(draft),
            Ok(Built::TooLong) => NextStep::Translate(draft, Some(Box::new((*fault, self.attempt.target)))),
            Err(_) => NextStep::GiveUp(draft, fault),
        }
    }

    /// The refused secret has been read again, or that takes too long.
    pub(crate) fn renewed(&mut self, draft: Outgoing, call: &mut DriverCall) -> NextStep {
        let fault = Box::new(Fault::from(FaultKind::Status(401)));
        match self.adopt_secret(call.cx) {
            true => self.once_more(draft, fault, call),
            false => NextStep::GiveUp(draft, fault),
        }
    }

    /// Gives up when no target is left. The client's `Retry-After` is the earlier of the provider's and the end of the
    /// first cool-down.
    pub(crate) fn give_up(&self, draft: Outgoing, mut fault: Box<Fault>, cx: &mut Cx) -> NextStep {
        if fault.kind == FaultKind::NoRoom {
            let full = full_targets(&self.request, &mut cx.accounts.targets, cx.now, Mono::NEVER);
            fault.retry_after = full.fault(cx.now.unix).retry_after;
        } else if fault.asks_for_rest() || fault.retry_after.is_some() {
            let (now, owner) = (cx.now.mono, self.request.owner(cx));
            let (request, breakers) = (&self.request, &mut cx.upstreams.breakers);
            let again = breakers.there_again(request.targets(), self.attempt.tried, &request.needs(), owner, now);
            let again = again.map(|again| again.micros_since(now).div_ceil(1_000_000).max(1));
            fault.retry_after = fault.retry_after.into_iter().chain(again).min();
        }
        NextStep::End(State::Attempting(Attempting { draft, stage: AttemptStage::Resolving, by: Mono::NEVER }), fault)
    }
}

impl Attempt {
    /// The present target's variants with other credentials, as bits: a failure that the credential did not cause would
    /// be the same there.
    fn siblings(&self, request: &Request) -> u64 {
        let Some(own) = self.target(request) else { return 0 };
        request.targets_with(|target| (target.provider, &target.model) == (own.provider, &own.model))
    }

    /// The targets whose context is not larger than that of the present one, as bits.
    fn no_larger(&self, request: &Request) -> u64 {
        let context = self.target(request).map_or(0, |own| own.context);
        request.targets_with(|target| target.context <= context)
    }
}

impl Request {
    /// The targets for which `wants` is true, as bits.
    pub(crate) fn targets_with(&self, wants: impl Fn(&Target) -> bool) -> u64 {
        let wanted = self.targets().iter().enumerate().filter(|(_, target)| wants(target));
        wanted.fold(0, |bits, (index, _)| bits | 1u64.checked_shl(index as u32).unwrap_or(0))
    }
}

impl RequestJob {
    /// Origin of the present target's secret.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        let (_, target, provider) = self.route()?;
        Some(provider.credentials.get(target.credential)?.secret.origin())
    }

    /// The secret that the attempt is sent has been replaced by another one.
    pub(crate) fn has_newer_secret(&self, cx: &Cx) -> bool {
        let (own, present) = (&self.request.setup, &cx.setup);
        if Arc::ptr_eq(own, present) {
            return false;
        }
        let Some((_, target, provider)) = self.route() else { return false };
        let used = provider.credentials.get(target.credential);
        let known = present.config.providers.iter().find(|one| one.name == provider.name);
        let fresh = known.and_then(|one| one.credentials.get(target.credential));
        used.zip(fresh).is_some_and(|(used, fresh)| used.secret.expose() != fresh.secret.expose())
    }

    /// Continues with the present configuration, if it differs for this request only in the secret of the present
    /// target.
    pub(crate) fn adopt_secret(&mut self, cx: &Cx) -> bool {
        let (own, present, model) = (&self.request.setup, &cx.setup, self.request.model());
        // Configurations of the same number differ only in secrets and lists of models, which may shift the model.
        let index = self.request.asked.map_or(usize::MAX, |asked| asked.model as usize);
        let there = present.config.catalog.get(index).map(|one| &one.id);
        let is_there = there.is_some() && there == model.map(|model| &model.id);
        let adopts = own.epoch == present.epoch && is_there && self.has_newer_secret(cx);
        if adopts {
            self.request.setup = present.clone();
        }
        adopts
    }
}
