//! Chooses the target of each attempt and the step after a failed one. Another attempt is possible as long as the draft
//! is kept: the exchange drops it once part of an answer has been relayed.

use super::build::Built;
use super::event::{AnswerStep, ClientMessage, Effect, Forward, Outcome, Over, Translate};
use super::fault::{Fault, FaultKind};
use super::job::{Asked, RequestJob, TriedAddresses};
use super::state::{
    Answering, Attempting, Body, Committing, Draft, Exchange, Half, Outgoing, Queued, State, Translating,
};
use crate::base::limits::{SEND_SLICE, SEND_SLICE_MIN};
use crate::base::time::Mono;
use crate::dialect::{Overflow, OwnedTarget, RequestTarget, failure};
use crate::gateway::cx::Cx;
use crate::gateway::local;
use crate::gateway::provider::breaker::{Among, Choice};
use crate::gateway::provider::rate_limits::Needs;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::{Affinity, Balance, Target};
use crate::policy::config::Provider;
use crate::policy::refusal::Refusal;
use crate::wire::ModelEndpoint;
use std::num::NonZeroU32;

/// The part of what is free that one slice of a request may take, as a divisor.
const SEND_SHARE: usize = 16;

impl Exchange {
    /// Begins the first attempt after admission. Admission may have taken a while: a target that is cooling down or
    /// full by now is skipped if another one is free.
    pub(super) fn first_attempt(&mut self, mut draft: Outgoing, message: &ClientMessage, cx: &mut Cx) -> Effect {
        if let Some(queue) = self.job.model().and_then(|model| model.queue) {
            return self.first_place(queue, draft, message, cx);
        }
        let targets = self.job.targets();
        let target = self.job.target().filter(|target| targets.len() > 1 || target.places > 0);
        if target.is_some_and(|target| !cx.breakers.is_free(target, &self.job.needs(), cx.now.mono)) {
            let fresh = self.job.attempt.fresh();
            let full = std::mem::replace(&mut self.job.attempt, fresh);
            if !self.job.choose(&draft, cx) {
                self.job.attempt = full;
                return self.give_up(draft, Fault::from(FaultKind::NoPlace), cx);
            }
            if self.job.attempt.target != full.target {
                let unfit = Fault::from(FaultKind::Internal);
                match self.job.build(&mut draft, message, cx) {
                    Ok(Built::Whole) => {}
                    Ok(Built::TooLong) => {
                        return self.translate(draft, Some(Box::new((unfit, self.job.attempt.target))), cx);
                    }
                    Err(_) => return self.next_attempt(draft, unfit, message, cx),
                }
            }
        }
        self.begin_attempt(draft, message, cx)
    }

    /// Begins an attempt at the chosen target, whose body has been written; if that fails immediately, at the next.
    pub(super) fn begin_attempt(&mut self, mut draft: Outgoing, message: &ClientMessage, cx: &mut Cx) -> Effect {
        loop {
            let at = &mut self.job.attempt;
            at.attempts += 1;
            at.addresses = TriedAddresses::default();
            (at.begun, at.first) = (cx.now.mono, Mono::NEVER);
            if self.job.diagnosis.is_some() {
                self.job.note_begun();
            }
            self.job.take_place(&draft, cx);
            match self.job.connect(None, cx) {
                Ok((half, by, effect)) => {
                    self.state = State::Attempting(Attempting { draft, half, by });
                    return effect;
                }
                Err(fault) => match self.after_failure(draft, *fault, message, cx) {
                    Ok(next) => draft = next,
                    Err(effect) => return *effect,
                },
            }
        }
    }

    /// Appends what fits of the outgoing request to `out`, its head first where `begins`; true when all of it is out.
    /// `room`: bytes that are free of the buffers.
    pub(crate) fn write_request(
        &mut self,
        begins: bool,
        message: &ClientMessage,
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let target = self.job.target().map(|target| (target.provider, target.credential));
        let relayed = self.job.endpoint().filter(|endpoint| endpoint.is_relayed());
        let (State::Attempting(Attempting { draft, .. })
        | State::Answering(Answering { draft: Draft::Kept(draft) | Draft::Leaving(draft), .. })) = &mut self.state
        else {
            return true;
        };
        let requests = &self.job.request.setup.requests;
        if begins
            && let Some((provider, credential)) = target
            && let Some(template) = requests.template(provider)
        {
            let same_shape = draft.state.is_none().then_some((&draft.head, message.head));
            template.write(credential, draft.length(), relayed, same_shape, out);
            if let Some(diagnosis) = &self.job.diagnosis {
                diagnosis.trace_request(self.job.attempt.attempts, out);
            }
        }
        // Where little is free a request leaves in small slices.
        let slice = (room / SEND_SHARE).clamp(SEND_SLICE_MIN, SEND_SLICE);
        draft.write_some(message.body, slice, out)
    }

    /// Does what follows from an event of an answer or a dial.
    #[inline]
    pub(super) fn follow(&mut self, step: AnswerStep, message: &ClientMessage, cx: &mut Cx) -> Effect {
        match step {
            Ok(effect) => effect,
            Err(over) => self.answer_over(*over, message, cx),
        }
    }

    /// The attempt or the answer under way is over.
    #[inline(never)]
    fn answer_over(&mut self, over: Over, message: &ClientMessage, cx: &mut Cx) -> Effect {
        match over {
            Over::Failed { fault, good: None } => self.attempt_failed(fault, false, message, cx),
            Over::Failed { fault, good: Some(forward) } => {
                let good = std::mem::take(&mut cx.out);
                let effect = self.attempt_failed(fault, false, message, cx);
                let error = std::mem::replace(&mut cx.out, good);
                cx.out.extend_from_slice(&error);
                if let Effect::End(_, outcome) = effect { Effect::End(forward, outcome) } else { effect }
            }
            Over::Complete { last, kind, usage, forward } => {
                self.await_row(Committing { last, kind, usage, by: Mono::NEVER }, forward, message, cx)
            }
        }
    }

    /// An attempt has failed: a free one on a fresh connection, the next target, or the end.
    pub(super) fn attempt_failed(
        &mut self,
        mut fault: Fault,
        reused: bool,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        fault.answered = matches!(self.state, State::Answering(_));
        fault.came = self.came();
        let mut draft = match std::mem::replace(&mut self.state, State::Ended) {
            State::Attempting(mut attempting) => {
                attempting.drop_provider(cx);
                attempting.draft
            }
            State::Answering(answering) => match self.job.answer_failed(answering, &fault, message, cx) {
                Ok(kept) => kept,
                Err(answering) => {
                    self.state = State::Answering(*answering);
                    return self.end(fault, cx);
                }
            },
            other => {
                self.state = other;
                return self.end(fault, cx);
            }
        };
        if fault.is_stale_connection() && reused && !self.job.attempt.needs_fresh() {
            self.job.attempt.was_stale();
            self.job.note_failed(&fault, cx.now.mono);
            self.job.no_verdict(cx);
            draft.restart();
            cx.stats.stale_retries += 1;
            return self.begin_attempt(draft, message, cx);
        }
        match self.after_failure(draft, fault, message, cx) {
            Ok(draft) => self.begin_attempt(draft, message, cx),
            Err(effect) => *effect,
        }
    }

    /// Reacts to a failed attempt: returns the next target and the body for it, or an effect that ends or delays the
    /// request.
    pub(super) fn after_failure(
        &mut self,
        draft: Outgoing,
        fault: Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<Outgoing, Box<Effect>> {
        let limit = self.job.target().map_or(1, |target| target.limits.attempts);
        self.job.target_failed(&fault, cx);
        if !fault.asks_for_rest() {
            self.job.attempt.tried |= self.job.siblings();
        }
        if fault.overflow.is_some() {
            self.job.attempt.tried |= self.job.no_larger();
        }
        if fault.may_try_next() && u32::from(self.job.attempt.attempts - self.job.attempt.free()) < limit {
            return self.next_target(draft, fault, message, cx);
        }
        self.last_resort(draft, fault, message, cx)
    }

    /// The next target that the request can be written for. One that it cannot be written for is skipped: the client
    /// has asked for nothing wrong, since an earlier target took it.
    fn next_target(
        &mut self,
        mut draft: Outgoing,
        fault: Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<Outgoing, Box<Effect>> {
        let failed = self.job.attempt.target;
        loop {
            if !self.job.choose(&draft, cx) {
                self.job.attempt.target = failed;
                return match self.wait_again(draft, &fault, message, cx) {
                    Ok(effect) => Err(Box::new(effect)),
                    Err(draft) => self.last_resort(draft, fault, message, cx),
                };
            }
            match self.job.build(&mut draft, message, cx) {
                Ok(Built::Whole) => return Ok(draft),
                Ok(Built::TooLong) => {
                    let failed = Some(Box::new((fault, failed)));
                    return Err(Box::new(self.translate(draft, failed, cx)));
                }
                Err(_) => {}
            }
        }
    }

    /// The next target after `fault`, and an attempt at it.
    pub(super) fn next_attempt(
        &mut self,
        draft: Outgoing,
        fault: Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        match self.next_target(draft, fault, message, cx) {
            Ok(draft) => self.begin_attempt(draft, message, cx),
            Err(effect) => *effect,
        }
    }

    /// Has a large request translated by a helper thread.
    pub(super) fn translate(&mut self, mut draft: Outgoing, failed: Option<Box<(Fault, u32)>>, cx: &mut Cx) -> Effect {
        let (Some((endpoint, target, _)), Some(to)) = (self.job.route(), self.job.wanted()) else {
            return self.turn_down(draft, Refusal::internal());
        };
        let by = cx.now.mono.after(target.limits.request_timeout);
        let target = Box::new(OwnedTarget::from(RequestTarget { cache_key: draft.cache_key, ..to }));
        if self.job.admitted.is_some() {
            // Nobody may have the place meanwhile.
            self.job.take_place(&draft, cx);
        }
        let (serial, promise) = (cx.next_offload(), std::mem::take(&mut draft.promise));
        self.state = State::Translating(Translating { serial, promise, failed, by });
        Effect::Translate(Box::new(Translate { draft, from: endpoint.shape, target, serial }))
    }

    /// Refuses a request that has not been admitted.
    pub(super) fn turn_down(&mut self, draft: Outgoing, refusal: Refusal) -> Effect {
        self.state = State::Reading { draft };
        Effect::refuse(refusal)
    }

    /// Gives up when no target is left. The client's `Retry-After` is the earlier of the provider's and the end of the
    /// first cool-down.
    pub(super) fn give_up(&mut self, draft: Outgoing, mut fault: Fault, cx: &mut Cx) -> Effect {
        if fault.asks_for_rest() || fault.retry_after.is_some() {
            let now = cx.now.mono;
            let again = cx.breakers.there_again(self.job.targets(), self.job.attempt.tried, &self.job.needs(), now);
            let again = again.map(|again| again.micros_since(now).div_ceil(1_000_000).max(1));
            fault.retry_after = fault.retry_after.into_iter().chain(again).min();
        }
        self.state = State::Attempting(Attempting { draft, half: Half::Resolving, by: Mono::NEVER });
        self.end(fault, cx)
    }

    /// No attempt is left: an error with its own status, or, where one has gone out already, an error event.
    pub(super) fn end(&mut self, fault: Fault, cx: &mut Cx) -> Effect {
        self.drop_provider(cx);
        self.note_end(&fault);
        let usage = self.partial_usage(false);
        let limits = self.job.target().map_or(&self.job.request.setup.config.upstream, |target| &target.limits);
        let refusal = match &fault.overflow {
            Some(overflow) => self.job.too_long(overflow, fault.message.as_deref()),
            None => fault.refusal(limits),
        };
        let error = Some(refusal.kind);
        let outcome = Outcome { status: refusal.status, error, usage };
        // Releases of Codex before 0.167 compact after a failed stream alone (openai/codex `responses_retry.rs`).
        let is_streamed = self.job.asked.is_some_and(|asked| asked.stream);
        let in_stream = refusal.is_overflow() && is_streamed && self.job.request.found.is_codex;
        if !self.job.attempt.opened && !in_stream {
            return Effect::Refuse(Box::new(refusal), outcome);
        }
        let opens = self.job.open();
        self.tell_failure(&refusal, cx);
        Effect::End(Forward { opens, ..Forward::default() }, outcome)
    }

    /// Writes the error event that ends a broken stream, in the client's shape.
    fn tell_failure(&mut self, refusal: &Refusal, cx: &mut Cx) {
        cx.out.clear();
        let Some(endpoint) = self.job.endpoint() else { return };
        let identity = self.job.counted_identity(cx.now.unix);
        let words = local::words(refusal, self.job.request.id.as_str());
        match &mut self.state {
            State::Answering(Answering { body: Body::Stream(stream), .. }) => {
                stream.fail(endpoint, &words, &identity, &mut cx.out);
            }
            State::Queued(Queued { draft, .. }) | State::Attempting(Attempting { draft, .. }) => {
                failure(endpoint, self.job.attempt.told, draft.state.as_ref(), &words, &identity, &mut cx.out);
            }
            _ => failure(endpoint, 0, None, &words, &identity, &mut cx.out),
        }
    }

    /// Lets go of its connection in the middle of whatever that does.
    pub(super) fn drop_provider(&mut self, cx: &mut Cx) {
        match &mut self.state {
            State::Attempting(attempting) => attempting.drop_provider(cx),
            State::Answering(answering) => answering.drop_provider(cx),
            _ => {}
        }
    }
}

impl RequestJob {
    #[inline]
    pub(super) fn route(&self) -> Option<(ModelEndpoint, &Target, &Provider)> {
        let target = self.target()?;
        Some((self.endpoint()?, target, self.request.setup.config.providers.get(target.provider)?))
    }

    /// Share of the provider's rate limits that the request needs.
    pub(super) fn needs(&self) -> Needs {
        self.asked.map_or_else(Needs::default, |asked| asked.needs())
    }

    /// Chooses the next target; false when none is left.
    #[inline]
    pub(super) fn choose(&mut self, draft: &OutgoingRequest, cx: &mut Cx) -> bool {
        let choice = self.choice(draft, cx.now.mono);
        let chosen = cx.breakers.choose(self.targets(), &choice);
        chosen.is_some_and(|chosen| {
            self.attempt.aim(chosen);
            true
        })
    }

    /// Rule by which a target is chosen for the request, of those that were not tried.
    #[inline]
    pub(super) fn choice(&self, draft: &OutgoingRequest, now: Mono) -> Choice {
        let among = match self.model().map(|model| (model.balance, model.affinity)) {
            Some((Balance::LeastBusy, _)) => Among::LeastBusy,
            Some((Balance::Affinity, Affinity::Off)) | None => Among::Turns,
            Some(_) => Among::Kept(draft.kept_with),
        };
        Choice { tried: self.attempt.tried, needs: self.needs(), among, now }
    }

    /// The attempt counts as in flight at its target from here on, if it does not already.
    pub(super) fn take_place(&mut self, draft: &OutgoingRequest, cx: &mut Cx) {
        let at = &self.attempt;
        if at.flight.is_some() {
            return;
        }
        let choice = Choice { tried: at.tried & !at.bit(), ..self.choice(draft, cx.now.mono) };
        self.attempt.flight = cx.breakers.begin(self.targets(), at.target as usize, &choice);
    }

    /// An answer under way has failed: gives back what it held. With part of it relayed there is no other attempt.
    fn answer_failed(
        &mut self,
        mut answering: Answering,
        fault: &Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<Outgoing, Box<Answering>> {
        answering.drop_provider(cx);
        match std::mem::replace(&mut answering.draft, Draft::Gone) {
            Draft::Kept(mut draft) => {
                self.charge_failed(&answering.body, &draft, fault, message, cx);
                cx.budget.release(&mut draft.answer, &mut cx.pool);
                State::Answering(answering).release(self.request.found.key, cx);
                Ok(draft)
            }
            draft => {
                self.target_failed(fault, cx);
                answering.draft = draft;
                Err(Box::new(answering))
            }
        }
    }

    /// The targets that are the present one with another credential, as bits: what is not its credential's doing would
    /// be the same there.
    fn siblings(&self) -> u64 {
        let Some(own) = self.target() else { return 0 };
        let same = |target: &Target| (target.provider, &target.model) == (own.provider, &own.model);
        let all = self.targets().iter().enumerate().filter(|(_, target)| same(target));
        all.fold(0, |bits, (index, _)| bits | 1u64.checked_shl(index as u32).unwrap_or(0))
    }

    /// The targets that read no longer prompts than the present one, as bits.
    fn no_larger(&self) -> u64 {
        let context = self.target().map_or(0, |own| own.context);
        let small = self.targets().iter().enumerate().filter(|(_, target)| target.context <= context);
        small.fold(0, |bits, (index, _)| bits | 1u64.checked_shl(index as u32).unwrap_or(0))
    }

    /// The refusal of a prompt that no target can read.
    fn too_long(&self, overflow: &Overflow, own: Option<&str>) -> Refusal {
        let counted = |asked: Asked| asked.prompt.map_or(asked.about, NonZeroU32::get);
        let (estimate, context) = (self.asked.map_or(0, counted), self.target().map_or(0, |target| target.context));
        let to = self.endpoint().unwrap_or(ModelEndpoint::CHAT).shape;
        Refusal::context_overflow(overflow.message(to, estimate.into(), context, own))
    }
}
