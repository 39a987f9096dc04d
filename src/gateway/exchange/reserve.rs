//! From a complete body to an admitted request: the model, the body for its first target, and a hold in the meter. With
//! a shared ledger it is the ledger that admits, for all hosts at once; here the question is put, the answer taken, and
//! done what the configuration says if there is none (`on_outage`).

use super::authorize::Endpoint;
use super::build::Built;
use super::event::{ClientMessage, Effect, Outcome};
use super::job::{Admitted, Asked, RequestJob};
use super::need::{answer_tokens, payer};
use super::state::{Exchange, Outgoing, Reserving, State, Translating};
use crate::base::limits::{ASK_TIMEOUT, ROW_TOKENS_MAX};
use crate::base::time::{Mono, Unix};
use crate::dialect::{self, Fields, Invalid, Surcharge};
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::ask::{Ask, Limits, Release, Ruling, Use, Wish};
use crate::policy::catalog::Model;
use crate::policy::meter::{Amount, Hold, Lease, Payer};
use crate::policy::plan::Plan;
use crate::policy::refusal::Refusal;
use crate::wire::{ModelEndpoint, Operation};
use std::io::Write;
use std::num::NonZeroU32;

impl Exchange {
    /// The whole body is there and is what it should be.
    pub(super) fn body_complete(&mut self, mut draft: Outgoing, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let counts = match self.job.request.found.endpoint {
            Some(Endpoint::Inference(ModelEndpoint { operation: Operation::CountTokens, shape })) => Some(shape),
            _ => None,
        };
        if let Err(refusal) = self.job.still_welcome(cx) {
            return self.turn_down(draft, refusal);
        }
        if !cx.clock_is_right() {
            return self.turn_down(draft, Refusal::clock());
        }
        // A count is of the prompt alone; but a model that is named must be there, and be the key's.
        let named = counts.is_none() || draft.scan.fields().model.is_some();
        let chosen = if named { self.job.choose_model(&draft, message, cx) } else { Ok(()) };
        if let Err(refusal) = chosen {
            return self.turn_down(draft, refusal);
        }
        if let Some(shape) = counts {
            cx.out.clear();
            let object = if shape.is_anthropic() { "" } else { r#""object":"response.input_tokens","# };
            // Writing to a Vec cannot fail.
            let count = draft.scan.prompt_tokens(message.body).count();
            let _ = write!(cx.out, "{{{object}\"input_tokens\":{count}}}");
            self.state = State::Reading { draft };
            return Effect::Answer(Outcome::ok());
        }
        self.job.attribute(&draft, message, cx);
        draft.kept_with = self.job.kept_with(&draft, message, cx);
        draft.cache_key = self.job.cache_key(&draft, message, cx);
        if let Err(refusal) = self.job.first_target(&draft, cx) {
            return self.turn_down(draft, refusal);
        }
        // The body for its provider before admission: what cannot be sent is not charged.
        self.write_first(draft, message, cx)
    }

    /// Writes the body for the first target, here or, where it is long, on a helper thread.
    fn write_first(&mut self, mut draft: Outgoing, message: &ClientMessage, cx: &mut Cx) -> Effect {
        match self.job.build(&mut draft, message, cx) {
            Ok(Built::Whole) => self.reserve(draft, false, message, cx),
            Ok(Built::TooLong) => self.translate(draft, None, cx),
            Err(refusal) => self.write_next(draft, refusal, message, cx),
        }
    }

    /// Writes the body for the next target, after that was impossible for the chosen one. If there is no other, the
    /// request asks for something that the model cannot give, as `refusal` says.
    fn write_next(&mut self, draft: Outgoing, refusal: Refusal, message: &ClientMessage, cx: &mut Cx) -> Effect {
        match self.job.next_to_write(&draft, cx) {
            true => self.write_first(draft, message, cx),
            false => self.turn_down(draft, refusal),
        }
    }

    /// A helper thread has translated the request.
    pub(super) fn translated(
        &mut self,
        Translating { promise, failed, .. }: Translating,
        mut draft: Outgoing,
        built: Result<(), Invalid>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        draft.promise = promise;
        self.job.look_for_dropped(&draft, message);
        let built = built.map_err(|Invalid(why)| Refusal::invalid_body(why));
        match (built.and_then(|()| self.job.keep(&mut draft, message, cx)), failed) {
            (Ok(()), _) if self.job.admitted.is_some() => self.begin_attempt(draft, message, cx),
            (Ok(()), _) => match self.job.still_welcome(cx) {
                Ok(()) => self.reserve(draft, false, message, cx),
                Err(refusal) => self.turn_down(draft, refusal),
            },
            (Err(_), Some(failed)) => {
                let (fault, target) = *failed;
                self.job.no_verdict(cx);
                self.job.attempt.target = target;
                self.next_attempt(draft, fault, message, cx)
            }
            (Err(refusal), None) => self.write_next(draft, refusal, message, cx),
        }
    }

    /// Charges the request to its window and reserves what it may use, or asks a shared ledger to.
    /// `others_counted`: those of its key that were admitted by a bound have counted what they may use.
    pub(super) fn reserve(
        &mut self,
        draft: Outgoing,
        others_counted: bool,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        if self.job.admit_bounded(&draft, message, cx) {
            return self.serve(draft, message, cx);
        }
        let mut estimate = self.job.count_prompt(&draft, message, cx);
        if draft.scan.tokens_fetched() > 0 {
            estimate = self.job.with_fetched(estimate, &draft, message, cx);
        }
        if cx.asks_ledger() {
            let reserved = Amount { tokens: estimate.tokens.min(ROW_TOKENS_MAX), ..estimate };
            let granted = self.job.request.found.key.and_then(|key| cx.admit_granted(key, reserved));
            return match granted {
                Some((hold, lease)) => {
                    self.job.admitted(hold, Some(lease), cx.now.unix);
                    self.serve(draft, message, cx)
                }
                None => self.ask(draft, reserved, message, cx),
            };
        }
        match self.job.admit_alone(estimate, cx) {
            Ok(()) => self.serve(draft, message, cx),
            // They may have been given less than is kept for them.
            Err(_) if !others_counted && self.job.others_are_bounded(cx) => {
                let lease = Box::new(Lease { reserved: estimate, ..Lease::default() });
                let (asked, by) = (cx.now.unix, Mono::NEVER);
                self.state = State::Reserving(Reserving { draft: Some(draft), lease, asked, by });
                Effect::CountOthers
            }
            Err(refusal) => self.turn_down(draft, refusal),
        }
    }

    /// Puts the question to the shared ledger; the exchange waits for the answer.
    fn ask(&mut self, draft: Outgoing, reserved: Amount, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let payer = payer(&self.job, &cx.plans, &cx.keys, &cx.setup.config)
            .and_then(|payer| self.job.fits(payer, reserved, cx.now.unix, &mut cx.meter).map(|()| payer));
        let payer = match payer {
            Ok(payer) => payer,
            Err(refusal) => {
                return self.turn_down(draft, refusal);
            }
        };
        let lease = cx.meter.lease_for(payer, cx.now.unix, reserved);
        let limits = limits_of(payer.plan);
        self.put_question(Some(draft), lease, limits, message, cx)
    }

    /// Asks the shared ledger for the state of the key, since other hosts use it too. Returns false if the local state
    /// is enough: the request has a body, which no client sends.
    pub(crate) fn look(&mut self, message: &ClientMessage, cx: &mut Cx) -> bool {
        let asks = self.job.request.meta.bodiless && cx.asks_ledger();
        let Some(payer) = payer(&self.job, &cx.plans, &cx.keys, &cx.setup.config).ok().filter(|_| asks) else {
            return false;
        };
        let lease = cx.meter.lease_for(payer, cx.now.unix, Amount::default());
        let limits = limits_of(payer.plan);
        self.put_question(None, lease, limits, message, cx);
        true
    }

    fn put_question(
        &mut self,
        draft: Option<Outgoing>,
        lease: Lease,
        limits: Limits,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        let Some(key) = self.job.request.found.key else { return Effect::refuse(Refusal::internal()) };
        let number = (message.exchange.slot, message.exchange.generation);
        let groups: Box<[Limits]> = match lease.path.is_some() {
            true => cx.meter.group_limits(lease.path).iter().map(limits_of).collect(),
            false => Box::default(),
        };
        let (admits, kept) = (draft.is_some(), Box::new(lease.clone()));
        // Places at once are granted one by one.
        let is_granted = admits && limits.concurrency == 0 && groups.iter().all(|group| group.concurrency == 0);
        let wish = match is_granted {
            true => cx.grants.wish(key, cx.setup.config.store.hosts.saturating_mul(4)),
            false => Wish::default(),
        };
        cx.orders.ask(Ask { number, key: cx.keys.get(key).id(), lease, limits, groups, admits, wish });
        let by = cx.now.mono.after(ASK_TIMEOUT);
        self.state = State::Reserving(Reserving { draft, lease: kept, asked: cx.now.unix, by });
        Effect::Wait
    }

    /// The shared ledger has answered.
    pub(super) fn ruled(
        &mut self,
        reserving: Reserving,
        ask: &Ask,
        ruling: Ruling,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        if ruling == Ruling::Unavailable {
            return self.not_ruled(reserving, message, cx);
        }
        let Reserving { draft, asked, .. } = reserving;
        let (Some(draft), false) = (draft, ruling == Ruling::Looked) else { return Effect::Quota };
        let refusal =
            match (ruling, payer(&self.job, &cx.plans, &cx.keys, &cx.setup.config), self.job.still_welcome(cx)) {
                (Ruling::Admitted, Ok(payer), Ok(())) => {
                    let lease = Lease { shared: true, ..ask.lease.clone() };
                    let hold = cx.meter.grant(payer, asked, &lease);
                    cx.orders.used(Use::Served(ask.key, lease.clone()));
                    self.job.admitted(hold, Some(lease), asked);
                    return self.serve(draft, message, cx);
                }
                (Ruling::Refused(kind, which, by), Ok(payer), _) => {
                    let payer = Payer { path: ask.lease.path, ..payer };
                    Refusal::limit(&cx.meter.limit(payer, cx.now.unix, kind, by, which))
                }
                (_, Err(refusal), _) | (_, _, Err(refusal)) => refusal,
                _ => Refusal::internal(),
            };
        if ruling == Ruling::Admitted {
            cx.orders.give_back(Release { key: ask.key, lease: ask.lease.clone(), unsent: true });
        }
        self.turn_down(draft, refusal)
    }

    /// The shared ledger has not decided: what the configuration says for that.
    pub(super) fn not_ruled(
        &mut self,
        Reserving { draft, lease, .. }: Reserving,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        let alone = cx.goes_on_alone();
        let Some(draft) = draft else {
            return if alone { Effect::Quota } else { Effect::refuse(Refusal::store()) };
        };
        let admitted = match alone {
            true => self.job.still_welcome(cx).and_then(|()| self.job.admit_alone(lease.reserved, cx)),
            false => Err(Refusal::store()),
        };
        match admitted {
            Ok(()) => self.serve(draft, message, cx),
            Err(refusal) => self.turn_down(draft, refusal),
        }
    }

    /// An admitted request is served: its clocks start, and the first attempt.
    fn serve(&mut self, draft: Outgoing, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let timeout = self.job.target().map(|target| target.limits.request_timeout);
        let stream = self.job.asked.is_some_and(|asked| asked.stream);
        if let (Some(admitted), Some(timeout)) = (&mut self.job.admitted, timeout) {
            admitted.until = cx.now.mono.after(timeout);
            if stream {
                admitted.beat = cx.now.mono.after(self.job.request.setup.config.server.heartbeat_after);
            }
        }
        self.first_attempt(draft, message, cx)
    }
}

impl RequestJob {
    /// Minutes may lie between a head and the end of its body: the key may have been revoked meanwhile, and admission
    /// may have gone to another process.
    #[inline]
    fn still_welcome(&self, cx: &Cx) -> Result<(), Refusal> {
        let Some(key) = self.request.found.key else { return Ok(()) };
        if !cx.keys.get(key).is_live(cx.now.unix) {
            return Err(Refusal::bad_key("ended while its request arrived"));
        }
        if cx.lifecycle.has_handed_over() {
            return Err(Refusal::upgrading());
        }
        Ok(())
    }

    /// The model that the body names, or the default one, if the key may use it.
    fn choose_model(&mut self, draft: &OutgoingRequest, message: &ClientMessage, cx: &mut Cx) -> Result<(), Refusal> {
        let Some(key) = self.request.found.key else { return Ok(()) };
        let fields = draft.scan.fields();
        if fields.thread {
            return Err(Refusal::no_threads());
        }
        if let Some(name) = fields.long_model_name(message.body) {
            let name = String::from_utf8_lossy(name);
            self.note_asked(&name);
            return Err(Refusal::unknown_model(&name));
        }
        cx.out.clear();
        let catalog = &self.request.setup.config.catalog;
        let index = match fields.model_name(message.body, &mut cx.out) {
            Some(name) => match catalog.asked(name) {
                Some(index) => index,
                None => {
                    let refusal = Refusal::unknown_model(name);
                    let name = name.to_owned();
                    self.note_asked(&name);
                    return Err(refusal);
                }
            },
            None => catalog.default_model().ok_or_else(Refusal::no_model)?,
        };
        let Some(model) = catalog.get(index) else { return Ok(()) };
        if !cx.keys.get(key).kind.scope.allows_model(&model.id) {
            let (id, refusal) = (model.id.clone(), Refusal::model_scope(&model.id));
            self.note_asked(&id);
            return Err(refusal);
        }
        let asked = self.endpoint().map(served_as);
        if !model.serves.iter().any(|served| Some(*served) == asked) {
            let (id, refusal) = (model.id.clone(), not_served(model, asked));
            self.note_asked(&id);
            return Err(refusal);
        }
        let payer = if model.priced && !fields.may_cost_more() {
            None
        } else {
            cx.plans.of(key, &cx.keys, &cx.setup.config).ok()
        };
        if payer.is_some_and(|payer| cx.meter.refuses_unpriced(payer))
            && let Err(refusal) = self.has_price(index, model, fields, message)
        {
            let id = model.id.clone();
            self.note_asked(&id);
            return Err(refusal);
        }
        let answer = answer_tokens(model, fields, None);
        self.asked = Some(Asked {
            model: index as u16,
            about: u32::try_from(draft.scan.prompt_tokens_about()).unwrap_or(u32::MAX),
            completion: u32::try_from(answer).unwrap_or(u32::MAX),
            stream: fields.stream,
            show_usage: fields.include_usage | draft.head.wants_cost,
            prompt: None,
        });
        Ok(())
    }

    /// Checks, for a request under a budget, that the model has a price and that no target is sent anything that is
    /// billed at another price.
    #[cold]
    fn has_price(&self, index: usize, model: &Model, fields: &Fields, message: &ClientMessage) -> Result<(), Refusal> {
        if !model.priced {
            return Err(Refusal::unpriced(&model.id));
        }
        // A count is sent to nobody.
        let sends = |endpoint: &ModelEndpoint| endpoint.operation != Operation::CountTokens;
        let Some(endpoint) = self.endpoint().filter(sends) else { return Ok(()) };
        let found = self.takers(index, model).find_map(|to| dialect::surcharge(endpoint, message.body, fields, &to));
        match found {
            Some(Surcharge { path, word }) => Err(Refusal::unpriced_member(&path, word.as_deref())),
            None => Ok(()),
        }
    }

    /// Admits a request without counting its prompt, where that cannot matter to anybody: far from all limits, and with
    /// an answer that will say what was used. Its body stays until then, so that it can still be counted.
    fn admit_bounded(&mut self, draft: &OutgoingRequest, message: &ClientMessage, cx: &mut Cx) -> bool {
        let is_whole = self.asked.is_some_and(|asked| !asked.stream && asked.prompt.is_none());
        if !is_whole || cx.is_shared() {
            return false;
        }
        let most = draft.scan.prompt_tokens_max() + self.unknown_tokens(draft, message);
        let payer = payer(self, &cx.plans, &cx.keys, &cx.setup.config).ok();
        let most = self.amount_of(payer, most, draft, message);
        let hold = payer.and_then(|payer| cx.meter.admit_bounded(payer, cx.now.unix, most));
        let is_admitted = hold.is_some();
        if let Some(hold) = hold {
            self.admitted(hold, None, cx.now.unix);
        }
        is_admitted
    }

    /// True if requests that share a limit with this one were admitted by a bound and have not been counted.
    fn others_are_bounded(&self, cx: &mut Cx) -> bool {
        payer(self, &cx.plans, &cx.keys, &cx.setup.config).is_ok_and(|payer| cx.meter.is_bounded(payer.key, payer.path))
    }

    /// Counts the prompt of a request that was admitted by a bound.
    pub(super) fn count_now(&mut self, draft: &OutgoingRequest, message: &ClientMessage, cx: &mut Cx) {
        if self.is_bounded() {
            self.count_prompt(draft, message, cx);
        }
    }

    /// Counts the request's prompt and returns the maximum usage. If it was admitted by a bound, the exact amount is
    /// reserved from here on.
    pub(super) fn count_prompt(&mut self, draft: &OutgoingRequest, message: &ClientMessage, cx: &mut Cx) -> Amount {
        let Some(asked) = self.asked else { return Amount::default() };
        if let Some(counted) = asked.prompt {
            return self.amount(counted.get().into(), draft, message, cx);
        }
        let mut prompt = draft.scan.prompt_tokens(message.body).count().max(1) + self.unknown_tokens(draft, message);
        if draft.scan.tokens_fetched() > 0 {
            let most = self.model().map_or(0, |model| model.prompt_max().saturating_mul(draft.scan.fields().prompts()));
            prompt = prompt.min(most);
        }
        let prompt_counted = NonZeroU32::new(u32::try_from(prompt).unwrap_or(u32::MAX));
        self.asked = Some(Asked { prompt: prompt_counted, ..asked });
        let estimate = self.amount(prompt, draft, message, cx);
        if let Some(admitted) = &self.admitted {
            cx.meter.count(&admitted.hold, estimate);
        }
        estimate
    }

    /// Admits by this process's own counters: where no ledger is shared, or by the host's share of every limit while
    /// the shared one cannot be reached.
    fn admit_alone(&mut self, estimate: Amount, cx: &mut Cx) -> Result<(), Refusal> {
        let payer = payer(self, &cx.plans, &cx.keys, &cx.setup.config)?;
        let shared = cx.is_shared();
        let hosts = if shared { cx.setup.config.store.hosts } else { 1 };
        let share = (hosts > 1).then(|| payer.plan.share(hosts));
        let payer = Payer { plan: share.as_ref().unwrap_or(payer.plan), hosts, ..payer };
        self.fits(payer, estimate, cx.now.unix, &mut cx.meter)?;
        let hold = cx.meter.admit(payer, cx.now.unix, estimate).map_err(|limit| Refusal::limit(&limit))?;
        let lease = shared.then(|| cx.meter.lease(&hold));
        self.admitted(hold, lease, cx.now.unix);
        Ok(())
    }

    fn admitted(&mut self, hold: Hold, lease: Option<Lease>, at: Unix) {
        let lease = lease.map(Box::new);
        let never = Mono::NEVER;
        self.admitted = Some(Admitted { hold, lease, at, until: never, beat: never });
    }
}

/// Entry in a model's `serves` that a request to this endpoint needs.
fn served_as(endpoint: ModelEndpoint) -> ModelEndpoint {
    if endpoint.is_relayed() { endpoint } else { ModelEndpoint::CHAT }
}

#[cold]
fn not_served(model: &Model, asked: Option<ModelEndpoint>) -> Refusal {
    Refusal::not_served(&model.id, asked.map_or("", ModelEndpoint::name), &model.serves_text())
}

fn limits_of(plan: &Plan) -> Limits {
    // Every field by name: a limit that the question leaves out would not be kept on a shared ledger.
    #[rustfmt::skip]
    let Plan {
        tokens, requests, tokens_per_window, concurrency, budget,
        name: _, period: _, window: _, share: _, unpriced: _, own_budget: _,
    } = *plan;
    Limits { tokens, requests, tokens_per_window, concurrency, budget }
}
