//! Admits a request whose body is written, with a reservation in the meter. A shared ledger admits for all hosts; then
//! this module asks the ledger and handles its answer, or follows `on_outage` if there is none.

use super::replace::{instead_of, is_exhausted, replace_model};
use super::strict::{self, ASKS_MAX, NoBound};
use crate::base::limits::{ASK_TIMEOUT, ROW_TOKENS_MAX};
use crate::base::time::{Mono, Unix};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{DriverCall, Effect, Flow};
use crate::gateway::exchange::job::{Admitted, RequestJob};
use crate::gateway::exchange::own_events::EventWriter;
use crate::gateway::exchange::request::{Asked, Request};
use crate::gateway::exchange::room::note_needs;
use crate::gateway::exchange::state::{Exchange, NextStep, Outgoing, Reserving, State};
use crate::gateway::exchange::target_hold;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::keys::KeyIx;
use crate::policy::ledger::{Ask, AskedLimits, Release, Ruling, Use, Wish};
use crate::policy::meter::{Amount, Hold, Lease, Meter, Payer, StrictReservation};
use crate::policy::plan::Shorthand;
use crate::policy::refusal::Refusal;
use std::num::NonZeroU32;

/// Question to a shared ledger.
struct Question {
    key: KeyIx,
    lease: Lease,
    limits: AskedLimits,
    /// True if a grant may admit further requests like this one. Concurrent requests are granted one by one, and so are
    /// requests that may differ in what counts them.
    is_granted: bool,
}

impl Question {
    fn of(payer: Payer<'_>, reserved: Amount, now: Unix, meter: &mut Meter) -> Question {
        let (lease, limits) = (meter.lease_for(payer, now, reserved), meter.limits_of(payer));
        let is_granted = limits.running.iter().all(|total| *total == 0) && !meter.names_models(payer);
        Question { key: payer.key, lease, limits, is_granted }
    }
}

/// True if the key or its groups have running requests that were admitted by a bound.
fn has_bounded_others(request: &Request, cx: &mut Cx) -> bool {
    let payer = request.payer(&cx.access, &cx.setup.config);
    payer.is_ok_and(|payer| cx.accounts.meter.is_bounded(payer.key, payer.path))
}

impl Reserving {
    /// Charges the request to its window and reserves its maximum use, or asks a shared ledger to do so.
    /// `others_counted`: the requests of its key that were admitted by a bound have counted their prompts.
    pub(crate) fn begin(
        job: &mut RequestJob,
        draft: Outgoing,
        others_counted: bool,
        call: &mut DriverCall,
    ) -> NextStep {
        if job.admit_bounded(&draft, call) {
            return NextStep::Serve(draft);
        }
        if let Some(strict) = job.request.strict().copied() {
            return Reserving::strictly(job, draft, strict, call);
        }
        let mut estimate = job.count_prompt(&draft, call);
        if draft.scan.tokens_fetched() > 0 {
            estimate = job.request.with_fetched(estimate, &draft, call);
        }
        let mut draft = draft;
        if call.cx.access.plans.replaces_models && is_exhausted(&job.request, estimate, call) {
            if !others_counted && has_bounded_others(&job.request, call.cx) {
                return Reserving::wait_for_counts(draft, estimate, call.cx);
            }
            match replace_model(job, draft, estimate, (None, 1), call) {
                Ok(next) => return next,
                Err(back) => draft = back,
            }
        }
        if call.cx.asks_ledger() {
            let reserved = Amount { tokens: estimate.tokens.min(ROW_TOKENS_MAX), ..estimate };
            let granted = job.request.found.key.and_then(|key| call.cx.admit_granted(key, reserved));
            return match granted {
                Some((hold, lease)) => {
                    job.admitted(hold, Some(lease), call.cx.now.unix);
                    NextStep::Serve(draft)
                }
                None => Reserving::ask(job, draft, reserved, call),
            };
        }
        match job.admit_alone(estimate, call.cx) {
            Ok(()) => NextStep::Serve(draft),
            // Requests that share a limit with this one were admitted by a bound and have not been counted: their real
            // reservations may be smaller.
            Err(_) if !others_counted && has_bounded_others(&job.request, call.cx) => {
                Reserving::wait_for_counts(draft, estimate, call.cx)
            }
            Err(refusal) => NextStep::refuse(draft, refusal),
        }
    }

    /// Admits a request if every limit has room for its whole reservation. Without the shared ledger nobody knows that.
    /// A ledger in a file gets the reservation before the request is sent.
    #[cold]
    fn strictly(job: &mut RequestJob, draft: Outgoing, strict: StrictReservation, call: &mut DriverCall) -> NextStep {
        let payer = match job.request.payer(&call.cx.access, &call.cx.setup.config) {
            Ok(payer) => payer,
            Err(refusal) => return NextStep::refuse(draft, refusal),
        };
        let (need, now) = (strict.amount(), call.cx.now.unix);
        if call.cx.is_shared() {
            if !call.cx.asks_ledger() {
                return NextStep::refuse(draft, Refusal::store());
            }
            let mut question = Question::of(payer, need, now, &mut call.cx.accounts.meter);
            (question.limits.strict, question.is_granted) = (Some(strict.least), false);
            let reserving = Reserving::put(question, Some(draft), call);
            return NextStep::Enter(State::Reserving(reserving), Effect::Rearm);
        }
        let hold = match call.cx.accounts.meter.admit_whole(payer, now, need) {
            Ok(hold) => hold,
            // Another request has reserved since its bound was computed.
            Err(_) if strict.asked <= ASKS_MAX => return Reserving::less(job, draft, Amount::MAX, call),
            Err(limit) => return instead_of(&limit, job, draft, need, call),
        };
        job.admitted(hold, None, now);
        strict::promise(job, (call.message.exchange.slot, call.message.exchange.generation), call.cx);
        let (lease, by) = (Box::default(), call.cx.now.mono.after(ASK_TIMEOUT));
        let reserving = Reserving { draft: Some(draft), lease, asked: now, by };
        NextStep::Enter(State::Reserving(reserving), Effect::Rearm)
    }

    /// There is less left than a request would reserve, at most `left`: it is bounded by that, and asks again.
    #[cold]
    fn less(job: &mut RequestJob, mut draft: Outgoing, left: Amount, call: &mut DriverCall) -> NextStep {
        match strict::bound_again(job, &mut draft, left, call) {
            Ok(()) => NextStep::Write(draft),
            Err(NoBound::Full(limit)) => instead_of(&limit, job, draft, left, call),
            Err(NoBound::Refused(refusal)) => NextStep::refuse(draft, refusal),
        }
    }

    /// Waits until the other requests that were admitted by a bound have been counted.
    fn wait_for_counts(draft: Outgoing, reserved: Amount, cx: &Cx) -> NextStep {
        let lease = Box::new(Lease { reserved, ..Lease::default() });
        let (draft, asked, by) = (Some(draft), cx.now.unix, Mono::NEVER);
        NextStep::Enter(State::Reserving(Reserving { draft, lease, asked, by }), Effect::CountOthers)
    }

    /// Asks the shared ledger; the exchange waits for the answer.
    fn ask(job: &RequestJob, draft: Outgoing, reserved: Amount, call: &mut DriverCall) -> NextStep {
        let payer = job.request.payer(&call.cx.access, &call.cx.setup.config).and_then(|payer| {
            job.request.fits(payer, reserved, call.cx.now.unix, &mut call.cx.accounts.meter).map(|()| payer)
        });
        let payer = match payer {
            Ok(payer) => payer,
            Err(refusal) => return NextStep::refuse(draft, refusal),
        };
        let question = Question::of(payer, reserved, call.cx.now.unix, &mut call.cx.accounts.meter);
        let reserving = Reserving::put(question, Some(draft), call);
        NextStep::Enter(State::Reserving(reserving), Effect::Rearm)
    }

    /// Asks the shared ledger for the state of the key, since other hosts use it too. `None` if the local state is
    /// enough, or if the request has a body, which no client sends.
    pub(crate) fn ask_for_quota(job: &RequestJob, call: &mut DriverCall) -> Option<Reserving> {
        let asks = job.request.meta.bodiless && call.cx.asks_ledger();
        let payer = job.request.payer(&call.cx.access, &call.cx.setup.config).ok().filter(|_| asks)?;
        let question = Question::of(payer, Amount::default(), call.cx.now.unix, &mut call.cx.accounts.meter);
        Some(Reserving::put(question, None, call))
    }

    fn put(question: Question, draft: Option<Outgoing>, call: &mut DriverCall) -> Reserving {
        let Question { key, lease, limits, is_granted } = question;
        let number = (call.message.exchange.slot, call.message.exchange.generation);
        let (admits, kept) = (draft.is_some(), Box::new(lease.clone()));
        let wish = match admits && is_granted {
            true => call.cx.accounts.grants.wish(key, call.cx.setup.config.store.hosts.saturating_mul(4)),
            false => Wish::default(),
        };
        let key = call.cx.access.keys.get(key).id();
        call.cx.commands.orders.ask(Ask { number, key, lease, limits, admits, wish, promise: None });
        let by = call.cx.now.mono.after(ASK_TIMEOUT);
        Reserving { draft, lease: kept, asked: call.cx.now.unix, by }
    }

    /// A deadline of the question or of the request has expired, or a heartbeat is due.
    pub(crate) fn due(self, job: &mut RequestJob, flow: Flow, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        if self.by <= now {
            return self.not_ruled(job, call);
        }
        if let Some(fault) = job.overdue(flow.unread, now) {
            return NextStep::End(State::Reserving(self), Box::new(fault));
        }
        let state = self.draft.as_ref().and_then(|draft| draft.state.as_ref());
        let effect = job.heartbeat(flow.drained, EventWriter::Opening(state), call);
        NextStep::Enter(State::Reserving(self), effect)
    }

    /// The ledger has answered. A ledger in a file has only taken the promise of a request that is admitted.
    pub(crate) fn ruled(self, job: &mut RequestJob, ask: &Ask, ruling: Ruling, call: &mut DriverCall) -> NextStep {
        let cx = &mut *call.cx;
        if ask.lease.is_of_targets() {
            let admitted = match ruling {
                Ruling::Admitted => Some(true),
                Ruling::Refused(..) | Ruling::Less(_) => Some(false),
                Ruling::Called | Ruling::Looked | Ruling::Unavailable => None,
            };
            return target_hold::ruled(self, job, admitted, cx);
        }
        if ruling == Ruling::Unavailable {
            return self.not_ruled(job, call);
        }
        let (Some(draft), false) = (self.draft, ruling == Ruling::Looked) else {
            return NextStep::Enter(State::Ended, Effect::Quota);
        };
        if job.admitted.is_some() {
            return NextStep::Serve(draft);
        }
        if let Ruling::Less(left) = ruling {
            return Reserving::less(job, draft, left, call);
        }
        let refusal = match (ruling, job.request.payer(&cx.access, &cx.setup.config), job.request.still_welcome(cx)) {
            (Ruling::Admitted, Ok(payer), Ok(())) => {
                let lease = Lease { shared: true, ..ask.lease.clone() };
                let hold = cx.accounts.meter.grant(payer, self.asked, &lease);
                cx.commands.orders.used(Use::Served(ask.key, lease.clone()));
                job.admitted(hold, Some(lease), self.asked);
                return NextStep::Serve(draft);
            }
            (Ruling::Refused(resource, part, by), Ok(payer), _) => {
                let payer = Payer { path: ask.lease.path, ..payer };
                let limit = cx.accounts.meter.limit(payer, cx.now.unix, (resource, part, by), &ask.lease);
                return instead_of(&limit, job, draft, self.lease.reserved, call);
            }
            (_, Err(refusal), _) | (_, _, Err(refusal)) => refusal,
            _ => Refusal::internal(),
        };
        if ruling == Ruling::Admitted {
            cx.commands.orders.give_back(Release { key: ask.key, lease: ask.lease.clone(), unsent: true });
        }
        NextStep::refuse(draft, refusal)
    }

    /// The ledger has not decided: follows `on_outage`.
    pub(crate) fn not_ruled(self, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        let cx = &mut *call.cx;
        if self.lease.is_of_targets() {
            return target_hold::ruled(self, job, None, cx);
        }
        let alone = cx.goes_on_alone() && job.request.strict().is_none();
        let Some(draft) = self.draft else {
            let effect = if alone { Effect::Quota } else { Effect::refuse(Refusal::store()) };
            return NextStep::Enter(State::Ended, effect);
        };
        let admitted = match alone {
            true => job.request.still_welcome(cx).and_then(|()| job.admit_alone(self.lease.reserved, cx)),
            false => Err(Refusal::store()),
        };
        let (refusal, hosts) = match admitted {
            Ok(()) => return NextStep::Serve(draft),
            Err(refusal) => (refusal, cx.setup.config.store.hosts),
        };
        let is_limit =
            refusal.limit.is_some_and(|limit| !matches!(limit, Shorthand::Requests | Shorthand::Concurrency));
        match is_limit && cx.access.plans.replaces_models {
            false => NextStep::refuse(draft, refusal),
            true => replace_model(job, draft, self.lease.reserved, (None, hosts), call)
                .unwrap_or_else(|draft| NextStep::refuse(draft, refusal)),
        }
    }
}

impl Exchange {
    /// Asks the shared ledger for the state of the key. Returns false if the local state is enough.
    pub(crate) fn ask_for_quota(&mut self, call: &mut DriverCall) -> bool {
        let Some(reserving) = Reserving::ask_for_quota(&self.job, call) else { return false };
        self.state = State::Reserving(reserving);
        true
    }
}

impl RequestJob {
    /// Admits a request without counting its prompt if the count cannot matter: far from all limits, and if the
    /// response will report its usage, which audio does not. Its body is kept until then, so that it can still be
    /// counted.
    fn admit_bounded(&mut self, draft: &OutgoingRequest, call: &mut DriverCall) -> bool {
        let is_whole = self.request.asked.is_some_and(|asked| !asked.stream && asked.prompt.is_none());
        let is_limited = self.request.model().is_some_and(|model| model.limited);
        if !is_whole || is_limited || call.cx.is_shared() || self.request.relays_media() {
            return false;
        }
        let most = draft.scan.prompt_tokens_max() + self.request.unknown_tokens(draft, &call.message);
        let payer = self.request.payer(&call.cx.access, &call.cx.setup.config).ok();
        let most = self.request.amount_of(payer, most, draft, &call.message);
        let hold = payer.and_then(|payer| call.cx.accounts.meter.admit_bounded(payer, call.cx.now.unix, most));
        let Some(hold) = hold else { return false };
        self.admitted(hold, None, call.cx.now.unix);
        true
    }

    /// Counts the prompt of a request that was admitted by a bound.
    pub(crate) fn count_now(&mut self, draft: &OutgoingRequest, call: &mut DriverCall) {
        if self.is_bounded() {
            self.count_prompt(draft, call);
        }
    }

    /// Counts the request's prompt and returns the maximum usage. If it was admitted by a bound, the exact amount is
    /// reserved from here on.
    pub(crate) fn count_prompt(&mut self, draft: &OutgoingRequest, call: &mut DriverCall) -> Amount {
        let Some(asked) = self.request.asked else { return Amount::default() };
        if let Some(counted) = asked.prompt {
            return self.request.amount(counted.get().into(), draft, call);
        }
        let mut prompt = draft.scan.prompt_tokens(call.message.body).count().max(1)
            + self.request.unknown_tokens(draft, &call.message);
        if draft.scan.tokens_fetched() > 0 {
            let most = self
                .request
                .model()
                .map_or(0, |model| model.prompt_max().saturating_mul(draft.scan.fields().prompts()));
            prompt = prompt.min(most);
        }
        let prompt_counted = NonZeroU32::new(u32::try_from(prompt).unwrap_or(u32::MAX));
        self.request.asked = Some(Asked { prompt: prompt_counted, ..asked });
        let estimate = self.request.amount(prompt, draft, call);
        note_needs(&mut self.request, prompt, draft, &call.message);
        if let Some(admitted) = &self.admitted {
            call.cx.accounts.meter.count(&admitted.hold, estimate);
        }
        estimate
    }

    /// Admits by this process's own counters if no ledger is shared, or by the host's share of every limit while the
    /// shared ledger cannot be reached.
    fn admit_alone(&mut self, estimate: Amount, cx: &mut Cx) -> Result<(), Refusal> {
        let payer = self.request.payer(&cx.access, &cx.setup.config)?;
        let shared = cx.is_shared();
        let hosts = if shared { cx.setup.config.store.hosts } else { 1 };
        let share = (hosts > 1).then(|| payer.plan.share(hosts));
        let whole = payer;
        let payer = Payer { plan: share.as_ref().unwrap_or(payer.plan), hosts, ..payer };
        self.request.fits(payer, estimate, cx.now.unix, &mut cx.accounts.meter)?;
        let admitted = cx.accounts.meter.admit(payer, cx.now.unix, estimate);
        if share.is_some() {
            cx.accounts.meter.rebudget(whole, cx.now.unix);
        }
        let hold = admitted.map_err(|limit| Refusal::limit(&limit))?;
        let lease = shared.then(|| cx.accounts.meter.lease(&hold));
        self.admitted(hold, lease, cx.now.unix);
        Ok(())
    }

    fn admitted(&mut self, hold: Hold, lease: Option<Lease>, at: Unix) {
        let lease = lease.map(Box::new);
        let never = Mono::NEVER;
        self.admitted = Some(Admitted { hold, lease, at, until: never, beat: never });
    }
}
