//! Waiting for a slot: a request of a model with a queue waits instead of failing. It is admitted before it waits, so
//! that no client waits for a refusal; it waits without the body for a target, which is written once a slot is free.
//! [`crate::gateway::queue`] decides the order.

use crate::base::time::{Mono, Now};
use crate::gateway::accounts::targets::TargetMeter;
use crate::gateway::cx::{Cx, Setup};
use crate::gateway::exchange::body::build::Built;
use crate::gateway::exchange::event::{DriverCall, Effect, Flow};
use crate::gateway::exchange::fault::{Fault, FaultKind, wants_rest};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::own_events::EventWriter;
use crate::gateway::exchange::request::Request;
use crate::gateway::exchange::room::full_targets;
use crate::gateway::exchange::state::{NextStep, Outgoing, Queued, State};
use crate::gateway::provider::breaker::{Breakers, Choice, Seek, Stage};
use crate::gateway::queue::{Look, Waiter};
use crate::policy::catalog::{QueueLimits, Target};
use crate::policy::keys::{Keys, LiveKeys};
use crate::policy::refusal::QueueRefusal;
use std::time::Duration;

impl Request {
    /// Milliseconds for which it has waited for slots.
    pub(crate) fn queued_ms(&self) -> u64 {
        u64::from(self.queued / 1000)
    }

    /// The part of `wait` that the request may still spend.
    pub(crate) fn may_wait(&self, wait: Duration) -> Duration {
        wait.saturating_sub(Duration::from_micros(self.queued.into()))
    }
}

impl State {
    /// Checks whether this request, if it waits, can be served.
    pub(crate) fn look_for_place(
        &self,
        job: &RequestJob,
        breakers: &mut Breakers,
        keys: &Keys,
        setup: &Setup,
        (limits, now): (&mut TargetMeter, Now),
    ) -> Look {
        let State::Queued(Queued { draft, by, .. }) = self else { return Look::NotThis };
        let Some(targets) = job.request.present_targets(setup) else { return Look::NotThis };
        let owner = job.request.owner_of(breakers, keys, now.mono);
        let full = full_targets(&job.request, limits, now, *by);
        let choice = job.attempt.choice_among(&job.request, draft, owner, now.mono, &full);
        match breakers.seek(targets, &choice, Stage::Waits, *by) {
            Seek::Found(_) => Look::Served,
            _ if breakers.is_any_open(targets, now.mono) => Look::NotThis,
            _ => Look::None,
        }
    }
}

impl Queued {
    /// Begins the first attempt of an admitted request whose model has a queue, or adds it to the queue.
    pub(crate) fn first(job: &mut RequestJob, queue: QueueLimits, draft: Outgoing, call: &mut DriverCall) -> NextStep {
        let fresh = job.attempt.fresh();
        let choice = Choice { tried: fresh.tried, ..job.attempt.choice(&job.request, &draft, call.cx) };
        match job.request.seek(&queue, &choice, Stage::New, call.cx) {
            Seek::Found(target) if target == job.attempt.target as usize => NextStep::Attempt(draft),
            Seek::Found(target) => {
                job.attempt = fresh;
                job.attempt.aim(target);
                sent_to(job, draft, call.cx.now.mono.after(queue.wait), call)
            }
            Seek::None => {
                let fault = job.attempt.without_target(&job.request, &draft, call.cx);
                NextStep::GiveUp(draft, Box::new(fault))
            }
            Seek::Wait => match job.request.full(&queue, call.cx) {
                Some((why, again)) => {
                    let fault = Fault { retry_after: Some(again), ..FaultKind::Queue(why).into() };
                    NextStep::GiveUp(draft, Box::new(fault))
                }
                None => {
                    job.attempt = fresh;
                    Queued::begin(job, queue, draft, call)
                }
            },
        }
    }

    /// After a failed attempt no other target is free: waits for one, if that can help.
    pub(crate) fn again(job: &mut RequestJob, draft: Outgoing, fault: Box<Fault>, call: &mut DriverCall) -> NextStep {
        let Some(queue) = job.request.model().and_then(|model| model.queue) else {
            return NextStep::LastResort(draft, fault);
        };
        let mut choice = job.attempt.choice(&job.request, &draft, call.cx);
        if matches!(fault.kind, FaultKind::Status(status) if wants_rest(status)) || fault.kind == FaultKind::NoRoom {
            // The target had no free slot or no room, so it may be tried again later.
            choice.tried &= !job.attempt.bit();
        }
        match job.request.seek(&queue, &choice, Stage::Failed, call.cx) {
            Seek::Wait if job.request.full(&queue, call.cx).is_none() => {
                job.attempt.tried = choice.tried;
                Queued::begin(job, queue, draft, call)
            }
            _ => NextStep::LastResort(draft, fault),
        }
    }

    /// Adds the request to the queue. A body that was written for a target is dropped.
    fn begin(job: &mut RequestJob, queue: QueueLimits, mut draft: Outgoing, call: &mut DriverCall) -> NextStep {
        draft.rewind(&mut call.cx.memory.pool);
        let (now, own) = (call.cx.now.mono, call.message.exchange);
        if let (Some(key), Some(model), Some(asked)) = (job.request.found.key, job.request.model(), &job.request.asked)
        {
            let share = call.cx.access.payer(key, &call.cx.setup.config).map_or(1, |payer| payer.plan.share);
            let tokens = asked.about.saturating_add(asked.completion);
            let (came, epoch) = (job.request.read, job.request.setup.epoch);
            call.cx.upstreams.queues.wait(&model.id, (key, share), Waiter { exchange: own, came, tokens, epoch }, now);
        }
        let by = now.after(job.request.may_wait(queue.wait));
        job.attempt.not_sent();
        NextStep::Enter(State::Queued(Queued { draft, own, since: now, by }), Effect::Rearm)
    }

    /// Starts the attempt: the request is first in its queue, and a slot is free.
    pub(crate) fn placed(mut self, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        self.note_waited(&mut job.request, now);
        if job.request.found.key.is_some_and(|key| !call.cx.access.keys.get(key).is_live(call.cx.now.unix)) {
            return NextStep::End(State::Queued(self), Box::new(Fault::from(FaultKind::KeyEnded)));
        }
        let Queued { draft, by, .. } = self;
        let choice = job.attempt.choice(&job.request, &draft, call.cx);
        let found = job
            .request
            .present_targets(&call.cx.setup)
            .map(|targets| call.cx.upstreams.breakers.seek(targets, &choice, Stage::Waits, by));
        let Some(Seek::Found(target)) = found else {
            debug_assert!(false, "a turn without a place");
            return NextStep::GiveUp(draft, Box::new(Fault::from(FaultKind::Internal)));
        };
        job.attempt.aim(target);
        sent_to(job, draft, by, call)
    }

    /// Failure of a request that has waited for `wait`.
    fn in_vain(job: &RequestJob, cx: &mut Cx) -> Fault {
        let now = cx.now.mono;
        let Some((queue, model)) = job.request.model().and_then(|model| Some((model.queue?, model))) else {
            return Fault::from(FaultKind::Internal);
        };
        // The end of the first cool-down if all targets cool down, otherwise the time until the waiting requests are
        // served.
        let (targets, needs, owner) = (job.request.targets(), job.request.needs(), job.request.owner(cx));
        let again = cx.upstreams.breakers.there_again(targets, 0, &needs, owner, now);
        let again = match again {
            Some(again) if again > now => again.micros_since(now).div_ceil(1_000_000),
            _ => cx.upstreams.queues.seconds(&model.id, cx.upstreams.queues.len(&model.id), now),
        };
        Fault { retry_after: Some(again), ..FaultKind::Queue(QueueRefusal::Wait(queue.wait)).into() }
    }

    /// Adds the time since the last call to the time that the request has waited.
    fn note_waited(&mut self, request: &mut Request, now: Mono) {
        let waited = u32::try_from(now.micros_since(self.since)).unwrap_or(u32::MAX);
        self.since = now;
        // At least 1, so that a wait of no time is still reported as one.
        request.queued = request.queued.saturating_add(waited).max(1);
    }

    /// The wait is over, or a deadline of the request, or a heartbeat is due.
    pub(crate) fn due(mut self, job: &mut RequestJob, flow: Flow, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        let late = match self.by <= now {
            true => Some(Queued::in_vain(job, call.cx)),
            false => job.overdue(flow.unread, now),
        };
        if let Some(fault) = late {
            return NextStep::End(State::Queued(self), Box::new(fault));
        }
        self.note_waited(&mut job.request, now);
        let effect = job.heartbeat(flow.drained, EventWriter::Opening(self.draft.state.as_ref()), call);
        NextStep::Enter(State::Queued(self), effect)
    }

    /// Leaves the queue: the request ends while it waits.
    pub(crate) fn leave(&mut self, job: &mut RequestJob, cx: &mut Cx) {
        self.note_waited(&mut job.request, cx.now.mono);
        if let (Some(key), Some(model)) = (job.request.found.key, job.request.model()) {
            cx.upstreams.queues.leave(&model.id, key, self.own);
        }
    }
}

/// Writes the body for the chosen target, which is free, for an attempt. If the body cannot be written for that target,
/// another one is chosen.
fn sent_to(job: &mut RequestJob, mut draft: Outgoing, by: Mono, call: &mut DriverCall) -> NextStep {
    let unfit = || Fault::from(FaultKind::Internal);
    loop {
        match job.build(&mut draft, call) {
            Ok(Built::Whole) => return NextStep::Attempt(draft),
            Ok(Built::TooLong) => return NextStep::Translate(draft, Some(Box::new((unfit(), job.attempt.target)))),
            Err(_) => {}
        }
        let Some(queue) = job.request.model().and_then(|model| model.queue) else {
            return NextStep::GiveUp(draft, Box::new(unfit()));
        };
        let choice = job.attempt.choice(&job.request, &draft, call.cx);
        let all_tried = choice.tried.count_ones() as usize >= job.request.targets().len();
        match call.cx.upstreams.breakers.seek(job.request.targets(), &choice, Stage::Waits, by) {
            Seek::Found(target) => job.attempt.aim(target),
            Seek::Wait if !all_tried => return Queued::begin(job, queue, draft, call),
            _ => return NextStep::GiveUp(draft, Box::new(unfit())),
        }
    }
}

impl Request {
    /// A target for a request that does not wait yet. It never overtakes waiting requests.
    pub(crate) fn seek(&self, queue: &QueueLimits, choice: &Choice, stage: Stage, cx: &mut Cx) -> Seek {
        let Some(model) = self.model() else { return Seek::None };
        if stage == Stage::New && cx.upstreams.queues.len(&model.id) > 0 {
            return Seek::Wait;
        }
        let until = choice.now.after(self.may_wait(queue.wait));
        cx.upstreams.breakers.seek(self.targets(), choice, stage, until)
    }

    /// Reason that the request cannot wait: the queue is full, or its key uses half of it and other keys exist. With
    /// it, the seconds until the next waiting request gets its slot, which makes room.
    pub(crate) fn full(&self, queue: &QueueLimits, cx: &Cx) -> Option<(QueueRefusal, u64)> {
        let (model, key) = (self.model()?, self.found.key?);
        let share = match cx.access.keys.live(cx.now.unix) {
            LiveKeys::One => queue.max,
            LiveKeys::OneOwner | LiveKeys::SeveralOwners => queue.max.div_ceil(2),
        };
        let again = cx.upstreams.queues.seconds(&model.id, 1, cx.now.mono);
        if cx.upstreams.queues.len(&model.id) >= queue.max as usize {
            return Some((QueueRefusal::Full(queue.max), again));
        }
        let has_share = cx.upstreams.queues.len_of(&model.id, key) >= share as usize;
        has_share.then_some((QueueRefusal::Share(share), again))
    }

    /// The targets of its model, with the slots of the present configuration if it has the same targets: waiting
    /// requests use the slots that exist now.
    fn present_targets<'a>(&'a self, present: &'a Setup) -> Option<&'a [Target]> {
        let model = self.model()?;
        let catalog = &present.config.catalog;
        let now = catalog.find(&model.id).and_then(|index| catalog.get(index)).map(|model| self.targets_of(model));
        let own = self.targets();
        let same = |now: &&[Target]| now.iter().map(|one| &one.label).eq(own.iter().map(|one| &one.label));
        Some(now.filter(same).unwrap_or(own))
    }

    /// Time at which the request may get a slot without an event: the end of a cool-down, or of a limit's window.
    pub(crate) fn next_change(&self, breakers: &mut Breakers, limits: &mut TargetMeter, now: Now) -> Mono {
        let renewal = full_targets(self, limits, now, Mono::NEVER).renewal(now);
        breakers.next_change(self.targets(), now.mono).min(renewal)
    }
}
