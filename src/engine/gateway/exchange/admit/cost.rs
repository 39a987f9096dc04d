//! Usage and cost of a request: the maximum that is reserved for it, and the charge. The maximum has its prompt, all
//! answers that it requests, and bytes that providers get in addition to those counted. The cost in its usage record,
//! in the head of a complete answer, and in the last usage of a stream whose client asked for it, is the same number.

use crate::base::limits::ROW_COST_MAX;
use crate::base::text::push_cost;
use crate::base::time::{Mono, Unix};
use crate::dialect::{
    self, BOUND_MIN, Beside, Broken, Fields, ObservedUsage, Reported, RequestForm, RequestTarget, SseStream, write_cost,
};
use crate::gateway::cx::Access;
use crate::gateway::exchange::event::{ClientMessage, DriverCall};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::Request;
use crate::gateway::exchange::state::Body;
use crate::gateway::exchange::target_hold::leave_target;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::{Model, Target};
use crate::policy::config::Config;
use crate::policy::meter::{Amount, Meter, Payer, StrictReservation};
use crate::policy::prices::{ModelPrices, UnitPrices};
use crate::policy::refusal::Refusal;
use crate::policy::usage::{CostBasis, CostSource, Usage, UsageSource, most_nano};
use crate::wire::{ModelEndpoint, Passthrough};
use std::num::NonZeroU32;

/// Bytes charged as one token for an answer that is too large to be parsed: text has at most that many per token.
const BYTES_PER_TOKEN_MAX: u64 = 8;
/// Prompt tokens that one request may reserve in addition to an answer of the model's `reserve_tokens`, however small a
/// limit is. Without it a limit below the usual reservation would admit nobody.
const RESERVATION_FLOOR: u64 = 4096;

/// The final charge for a request.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bill {
    pub(crate) usage: Usage,
    pub(crate) cost_nano: u64,
}

/// Cost of a request, as its usage record contains it. Each attempt is billed at the prices of its own target, in the
/// tier of its own prompt, or at the cost that its provider has stated.
fn cost_nano(job: &RequestJob, usage: &Usage) -> u64 {
    let Some(model) = job.request.model() else { return 0 };
    let (own, earlier) = match &job.notes.0 {
        Some(diagnosis) => (usage.minus(diagnosis.spent), diagnosis.spent_nano),
        None => (*usage, 0),
    };
    if let Some(stated) = own.stated_nano() {
        return stated.saturating_add(earlier).min(ROW_COST_MAX);
    }
    let (prices, units) = model.prices_at(job.target());
    let nano = match job.request.strict() {
        Some(strict) if strict.is_all(&own) => strict.nano,
        _ => own.cost_nano(prices.of(own.prompt())),
    };
    let mut nano = nano.saturating_add(earlier);
    if own.requests > 0
        && let Some(passthrough) = job.request.endpoint().and_then(ModelEndpoint::as_passthrough)
    {
        nano = nano.saturating_add(units.cost_nano(passthrough, own.requests.into(), own.basis.of_prices().1.into()));
    }
    nano.min(ROW_COST_MAX)
}

/// Part of the charge that the last attempt has used.
pub(crate) fn own_amount(job: &RequestJob, usage: &Usage, cost_nano: u64) -> Amount {
    let (earlier, nano) = job.notes.0.as_ref().map_or((0, 0), |notes| (notes.spent.total(), notes.spent_nano));
    Amount { tokens: usage.total(), nano: cost_nano }.minus(Amount { tokens: earlier, nano })
}

/// True if the cost of this usage is known: its provider has stated it, or each target has prices.
pub(crate) fn is_priced(request: &Request, usage: &Usage) -> bool {
    usage.stated_nano().is_some() || request.model().is_some_and(|model| model.priced)
}

/// How an answer has ended, for its charge.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum AnswerEnd {
    Complete,
    /// The provider, or Tollgate, has ended it.
    Failed,
    /// Its client has left, or Tollgate has not read it to its end: the provider may bill all of it.
    Unread,
}

impl Request {
    /// Tokens of the prompt that are charged if the provider reports none. Those of audio are an upper bound by the
    /// length of the form, up to what the model reads.
    fn counted_prompt(&self) -> u64 {
        let most = if self.is_transcript() { self.model().map_or(0, Model::prompt_max) } else { u64::MAX };
        self.asked.map_or(0, |asked| asked.counted()).min(most)
    }

    /// Notes how many images a request may get, or how long its audio may be.
    #[inline]
    pub(crate) fn note_units(&mut self, form: Option<&RequestForm>, fields: &Fields) {
        if self.relays_media() {
            let images = u32::try_from(fields.generated()).unwrap_or(u32::MAX);
            let units = form.filter(|_| self.is_transcript()).map_or(images, RequestForm::audio_millis);
            self.extras.get_or_insert_default().units = units;
        }
    }

    /// Images that it may get, or milliseconds of its audio; see [`ClientAttribution::units`].
    fn units_max(&self) -> u32 {
        self.extras.as_ref().map_or(0, |extras| extras.units)
    }

    /// Adds what only pass-through endpoints have: requests and units with a price, and audio or images. What their
    /// provider has not reported costs what was reserved for it, whatever part of the answer its client has taken.
    #[cold]
    fn used_beside(
        &self,
        passthrough: Passthrough,
        units: &UnitPrices,
        observed: &ObservedUsage,
        (end, has_begun): (AnswerEnd, bool),
        mut usage: Usage,
    ) -> Usage {
        let most = self.units_max();
        let (is_left, is_words) = (end == AnswerEnd::Unread, passthrough.is_transcript());
        let is_made = match end {
            AnswerEnd::Complete | AnswerEnd::Unread => true,
            AnswerEnd::Failed if passthrough.makes_images() => observed.units > 0,
            AnswerEnd::Failed => has_begun,
        };
        let count = match is_words {
            true if observed.units == 0 && is_made => most,
            // The images that have begun may be all.
            false if is_made && end != AnswerEnd::Complete => observed.units.max(most),
            _ => observed.units,
        };
        // The text of audio is estimated; audio and images are billed as a whole.
        let is_reported = observed.reported.output.is_some() && !is_left;
        if passthrough.is_media() && is_made && !is_reported && (is_left || !is_words) {
            usage.out = usage.out.max(self.asked.map_or(0, |asked| asked.completion.into()));
        }
        if !units.is_empty() {
            usage.basis = CostBasis::Prices { hour_write: 0, units: count };
            usage.requests = 1;
        }
        usage
    }

    /// All of a form has arrived: its audio has so many prompt tokens fewer than were reserved.
    pub(crate) fn form_completed(&mut self, form: Option<&RequestForm>, fewer: u64) {
        let form = form.filter(|_| self.is_transcript());
        if let (Some(form), Some(extras), Some(asked)) = (form, &mut self.extras, &mut self.asked) {
            extras.units = form.audio_millis();
            let prompt = |prompt: NonZeroU32| u64::from(prompt.get()).saturating_sub(fewer) as u32;
            asked.prompt = asked.prompt.map(|counted| NonZeroU32::new(prompt(counted)).unwrap_or(NonZeroU32::MIN));
        }
    }
}

/// Adds the charge for earlier attempts.
#[inline]
pub(super) fn with_spent(job: &RequestJob, usage: Usage) -> Usage {
    match &job.notes.0 {
        Some(diagnosis) if job.admitted.is_some() => usage.plus(diagnosis.spent),
        _ => usage,
    }
}

/// Usage that an attempt is charged if its provider has not reported all of it.
#[cold]
fn used_strictly(strict: &StrictReservation, observed: &ObservedUsage, is_whole: bool) -> Option<Usage> {
    let known = observed.reported;
    let has_output = known.output.is_some() || strict.completion == 0;
    if strict.prompt == 0 || (is_whole && known.input.is_some() && has_output) {
        return None;
    }
    let is_estimate = known == Reported::default();
    Some(strict.all(if is_estimate { UsageSource::Estimated } else { UsageSource::Partial }))
}

/// True if the present attempt may be billed and has not been settled.
pub(super) fn is_open(job: &RequestJob) -> bool {
    let settled = job.request.strict().map_or(0, |strict| strict.settled);
    job.attempt.sent != Mono::NEVER && settled != job.attempt.attempts
}

/// The present attempt costs nothing more.
pub(super) fn settle_attempt(job: &mut RequestJob) {
    if let Some(strict) = job.request.extras.as_mut().and_then(|extras| extras.strict.as_mut()) {
        strict.settled = job.attempt.attempts;
    }
}

/// Notes the charge for all attempts so far.
pub(super) fn spend(job: &mut RequestJob, usage: Usage) {
    let spent_nano = cost_nano(job, &usage.bounded());
    let notes = job.notes.get_mut();
    (notes.spent, notes.spent_nano) = (usage, spent_nano);
}

impl RequestJob {
    /// Usage that a complete answer is charged: as reported, estimated if the provider reported none.
    #[inline]
    pub(crate) fn charged(&self, observed: ObservedUsage) -> Usage {
        let source = if observed.reported.is_complete() { UsageSource::Provider } else { UsageSource::Estimated };
        with_spent(self, Usage { source, ..self.used(observed, AnswerEnd::Complete) })
    }

    /// Charges an answer that failed before any of it was relayed. The provider bills the usage that it reports, and
    /// has also generated an answer that is too large here.
    pub(crate) fn charge_failed(&mut self, body: &Body, draft: &OutgoingRequest, fault: &Fault, call: &mut DriverCall) {
        let (mut observed, mut end) = (body.observed(), AnswerEnd::Failed);
        if let Some(reported) = &fault.reported {
            observed.reported.merge(**reported);
        }
        if let FaultKind::AnswerTooLarge(_, came) = fault.kind {
            let passthrough = self.request.endpoint().and_then(ModelEndpoint::as_passthrough);
            let generates = passthrough.is_none_or(Passthrough::generates);
            let most = if generates { self.request.completion_max(draft, &call.message) } else { 0 };
            let text = most.min(came as u64 / BYTES_PER_TOKEN_MAX);
            observed.relayed_tokens = observed.relayed_tokens.saturating_add(text);
            end = AnswerEnd::Unread;
        } else {
            if let Body::Collect { buf, .. } = body
                && let Some((from, _)) = self.endpoints()
                && !buf.is_empty()
                && !call.cx.is_long(buf.len())
            {
                // Events that were cut off may have reported it.
                observed.reported = *dialect::rejected(from, buf.bytes(), Broken::NotJson).reported;
            }
            // A stream without content costs nothing, whatever its first event reports.
            let is_empty = matches!(body, Body::Stream(_)) && observed.relayed_tokens == 0 && observed.units == 0;
            if is_empty || observed == ObservedUsage::default() {
                return;
            }
            if self.request.strict().is_some() {
                // A complete answer that is rejected has reported its usage.
                match matches!(body, Body::Stream(_)) || !observed.reported.is_complete() {
                    true => return,
                    false => end = AnswerEnd::Complete,
                }
            }
        }
        if observed.reported.input.is_none() {
            self.count_prompt(draft, call);
        }
        let known = observed.reported;
        let source = match known {
            _ if known == Reported::default() => UsageSource::Estimated,
            _ if known.is_complete() => UsageSource::Provider,
            _ => UsageSource::Partial,
        };
        let usage = with_spent(self, Usage { source, ..self.used(observed, end) });
        let spent_nano = cost_nano(self, &usage.bounded());
        leave_target(self, Some(own_amount(self, &usage, spent_nano)), call.cx);
        spend(self, usage);
        settle_attempt(self);
    }

    /// The charge for an answer: as reported, and an estimate of what the provider has not reported.
    #[inline(always)] // else both usages are copied once more
    fn used(&self, observed: ObservedUsage, end: AnswerEnd) -> Usage {
        if let Some(strict) = self.request.strict()
            && let Some(usage) = used_strictly(strict, &observed, end == AnswerEnd::Complete)
        {
            return usage;
        }
        let known = observed.reported;
        let source = if known == Reported::default() { UsageSource::Estimated } else { UsageSource::Partial };
        let out = match end {
            AnswerEnd::Complete => known.output.unwrap_or(observed.relayed_tokens),
            AnswerEnd::Failed | AnswerEnd::Unread => known.output.unwrap_or(0).max(observed.relayed_tokens),
        };
        let usage = Usage {
            uncached_in: known.input.unwrap_or_else(|| self.request.counted_prompt()),
            cache_read: known.cache_read.unwrap_or(0),
            cache_write: known.cache_write.unwrap_or(0),
            basis: CostBasis::Prices { hour_write: known.hour_write, units: 0 },
            out,
            source,
            ..Usage::default()
        };
        let passthrough = self.request.endpoint().and_then(ModelEndpoint::as_passthrough);
        match (passthrough, self.request.model().map(|model| model.prices_at(self.target()).1)) {
            // Embeddings and the like are tokens and nothing else, unless they have further prices.
            (Some(passthrough), Some(units)) if passthrough.is_media() || !units.is_empty() => {
                self.request.used_beside(passthrough, units, &observed, (end, self.attempt.has_content), usage)
            }
            _ => usage,
        }
        .with_stated(
            known.cost().filter(|_| {
                self.target_provider().is_some_and(|provider| provider.cost_source == CostSource::Provider)
            }),
        )
    }

    /// The charge for this usage, within the ledger's bounds, so that a restart counts the same.
    #[inline]
    pub(crate) fn bill(&self, usage: &Usage) -> Bill {
        let usage = usage.bounded();
        Bill { usage, cost_nano: cost_nano(self, &usage) }
    }

    /// Usage that a request is charged if it ends before its answer was complete. `left`: its client has left, and may
    /// have read the final usage if the flag is set.
    pub(crate) fn partial_usage(&self, observed: ObservedUsage, left: Option<bool>) -> Usage {
        let is_free = match left {
            Some(true) => return self.charged(observed),
            Some(false) => self.attempt.sent == Mono::NEVER,
            None => observed == ObservedUsage::default() && !(self.attempt.has_content && self.request.relays_media()),
        };
        let is_strict = self.request.strict().is_some();
        let is_free = if is_strict { !is_open(self) } else { is_free } || self.admitted.is_none();
        let end = if left.is_some() || is_strict { AnswerEnd::Unread } else { AnswerEnd::Failed };
        with_spent(self, if is_free { Usage::default() } else { self.used(observed, end) })
    }

    /// Writes the cost into the last usage of a stream, if that is among the events in `out`.
    #[cold]
    pub(crate) fn write_cost(&self, stream: &SseStream, out: &mut Vec<u8>) {
        let (Some(endpoint), Some(from)) = (self.request.endpoint(), stream.end_at()) else { return };
        let usage = self.charged(stream.observed()).bounded();
        let (is_priced, mut cost) = (is_priced(&self.request, &usage), Vec::new());
        if is_priced {
            push_cost(&mut cost, cost_nano(self, &usage));
        }
        write_cost(endpoint.shape, from, is_priced.then_some(&*cost), out);
    }
}

impl Request {
    /// True if the client may have read the final usage of its stream with the cost. It is charged that cost even if it
    /// leaves before the stream's formal end.
    pub(crate) fn has_shown_cost(&self, stream: &SseStream, observed: &ObservedUsage) -> bool {
        let is_asked = self.asked.is_some_and(|asked| asked.show_usage);
        is_asked && stream.finish_seen() && observed.reported.is_complete()
    }
}

/// Bytes per token of members that are not counted like the prompt: unknown ones and those that the configuration
/// writes. Tollgate cannot know how a provider reads them; this covers texts in most languages.
const BESIDE_BYTES_PER_TOKEN: u64 = 3;

impl Request {
    /// The descriptions that the body is written for, one for each target that may be used.
    pub(crate) fn takers<'a>(&'a self, index: usize, model: &'a Model) -> impl Iterator<Item = RequestTarget<'a>> {
        let setup = &self.setup;
        let before = if self.endpoint().is_some_and(ModelEndpoint::is_passthrough) { model.targets.len() } else { 0 };
        self.targets_of(model).iter().enumerate().filter_map(move |(at, target)| {
            let shape = setup.config.providers.get(target.provider)?.shape;
            let capabilities = setup.requests.capabilities(index, before + at)?;
            Some(RequestTarget { model: &target.model, shape, capabilities, cache_key: None })
        })
    }

    /// Maximum usage of the request with a prompt of this many tokens; money only if it is limited, or may soon be.
    pub(crate) fn amount(&self, prompt: u64, draft: &OutgoingRequest, call: &DriverCall) -> Amount {
        let payer = self.payer(&call.cx.access, &call.cx.setup.config).ok();
        self.amount_of(payer, prompt, draft, &call.message)
    }

    /// Like [`Request::amount`], for a payer that is known.
    #[inline]
    pub(crate) fn amount_of(
        &self,
        payer: Option<Payer<'_>>,
        prompt: u64,
        draft: &OutgoingRequest,
        message: &ClientMessage,
    ) -> Amount {
        let Some(model) = self.model() else { return Amount::default() };
        let (prompt, completion) = most_tokens(self, model, prompt, draft, message);
        let is_limited = payer.is_some_and(|payer| payer.path.is_some() || payer.plan.has_budget());
        let nano = if is_limited { self.most_nano(model, prompt, completion, Some(draft.scan.fields())) } else { 0 };
        Amount { tokens: prompt.saturating_add(completion), nano }
    }

    /// Maximum use of the request at each of its targets.
    #[cold]
    pub(crate) fn needs_at_targets(
        &self,
        prompt: u64,
        draft: &OutgoingRequest,
        message: &ClientMessage,
    ) -> Box<[Amount]> {
        let Some(model) = self.model() else { return Box::default() };
        let (prompt, completion) = most_tokens(self, model, prompt, draft, message);
        let tokens = prompt.saturating_add(completion);
        let need = |target: &Target| {
            let lists = model.prices_at(Some(target));
            Amount { tokens, nano: nano_at(self, lists, prompt, completion, Some(draft.scan.fields())) }
        };
        self.targets_of(model).iter().map(need).collect()
    }

    /// Highest possible cost at the most expensive target. `fields`: those of a request, whose units count, too.
    pub(super) fn most_nano(&self, model: &Model, prompt: u64, completion: u64, fields: Option<&Fields>) -> u64 {
        if !model.priced_by_target {
            return nano_at(self, (&model.prices, &model.units), prompt, completion, fields);
        }
        let of_each = self.targets_of(model).iter().map(|target| model.prices_at(Some(target)));
        of_each.map(|lists| nano_at(self, lists, prompt, completion, fields)).max().unwrap_or(0)
    }

    /// Highest possible cost of the request itself and of the images that it requests.
    #[cold]
    fn most_units(&self, units: &UnitPrices, fields: &Fields) -> u64 {
        match self.endpoint().and_then(ModelEndpoint::as_passthrough) {
            // The length of audio is not known before: that of its bytes is reserved.
            Some(passthrough) if passthrough.is_transcript() => {
                units.cost_nano(passthrough, 1, self.units_max().into())
            }
            Some(passthrough) => units.cost_nano(passthrough, 1, fields.generated()),
            None => 0,
        }
    }

    /// Returns the reservation of a request with files of unknown size: their maximum, but no more than a whole limit.
    /// So such requests run one after the other. The known part may still exceed the limit.
    #[cold]
    pub(crate) fn with_fetched(&self, all: Amount, draft: &OutgoingRequest, call: &mut DriverCall) -> Amount {
        let Ok(payer) = self.payer(&call.cx.access, &call.cx.setup.config) else { return all };
        let prompt = draft.scan.prompt_tokens(call.message.body).count() + self.unknown_tokens(draft, &call.message);
        let known = self.amount_of(Some(payer), prompt - draft.scan.tokens_fetched(), draft, &call.message);
        all.min(call.cx.accounts.meter.share(payer).max(known))
    }

    /// Tokens of the client's unknown members that a target is sent, with each prompt: reserved, and charged if the
    /// provider reports no usage.
    #[inline]
    pub(crate) fn unknown_tokens(&self, draft: &OutgoingRequest, message: &ClientMessage) -> u64 {
        match self.model() {
            Some(model) if draft.scan.unknown_bytes() > 0 => {
                let fields = draft.scan.fields();
                let beside = self.beside(model, fields, message);
                (beside.unknown / BESIDE_BYTES_PER_TOKEN).saturating_mul(fields.prompts())
            }
            _ => 0,
        }
    }

    /// Completion tokens that a provider can bill for the request.
    #[cold]
    pub(crate) fn completion_max(&self, draft: &OutgoingRequest, message: &ClientMessage) -> u64 {
        self.model().map_or(0, |model| {
            let fields = draft.scan.fields();
            answer_tokens(model, fields, Some(&self.beside(model, fields, message)))
        })
    }

    /// Bytes that a target gets in addition to those that the scan has found; the maximum over all targets.
    #[cold]
    pub(super) fn beside(&self, model: &Model, fields: &Fields, message: &ClientMessage) -> Beside {
        let (Some(endpoint), Some(asked)) = (self.written_for(), self.asked) else { return Beside::default() };
        let of_each = self.takers(asked.model.into(), model);
        of_each.map(|to| dialect::beside(endpoint, message.body, fields, &to)).fold(Beside::default(), Beside::max)
    }

    /// True if the request uses no more of a limit than its share.
    #[inline]
    pub(crate) fn fits(&self, payer: Payer<'_>, need: Amount, now: Unix, meter: &mut Meter) -> Result<(), Refusal> {
        let floor = || {
            let (model, prompt) = (self.model(), RESERVATION_FLOOR);
            model.map_or(Amount::default(), |model| {
                let nano = self.most_nano(model, prompt, model.reserve_tokens, None);
                Amount { tokens: prompt.saturating_add(model.reserve_tokens), nano }
            })
        };
        meter.fits(payer, now, need, floor).map_err(|limit| Refusal::limit(&limit))
    }

    /// The caller, its plan and its groups. Limits are those of the present configuration, like those of the counters.
    #[inline]
    pub(crate) fn payer<'a>(&'a self, access: &'a Access, config: &'a Config) -> Result<Payer<'a>, Refusal> {
        let key = self.found.key.ok_or_else(Refusal::internal)?;
        Ok(Payer { model: self.model().map(|model| &model.id), ..access.payer(key, config)? })
    }
}

/// Prompt and completion tokens that the request may use at most.
#[inline]
fn most_tokens(
    request: &Request,
    model: &Model,
    prompt: u64,
    draft: &OutgoingRequest,
    message: &ClientMessage,
) -> (u64, u64) {
    let fields = draft.scan.fields();
    let mut prompt = prompt.min(model.prompt_max().saturating_mul(fields.prompts()));
    let mut completion = answer_tokens(model, fields, None);
    let is_short = fields.max_tokens.is_some_and(|bound| (1..BOUND_MIN).contains(&bound));
    if draft.scan.unknown_bytes() > 0 || model.edits_requests() || is_short || fields.predicts() {
        let beside = request.beside(model, fields, message);
        // The members that the configuration writes are read with each prompt.
        prompt += (beside.added / BESIDE_BYTES_PER_TOKEN).saturating_mul(fields.prompts());
        completion = answer_tokens(model, fields, Some(&beside));
    }
    (prompt, completion)
}

/// Highest possible cost at these prices.
fn nano_at(
    request: &Request,
    (prices, units): (&ModelPrices, &UnitPrices),
    prompt: u64,
    completion: u64,
    fields: Option<&Fields>,
) -> u64 {
    let of_units = fields.filter(|_| !units.is_empty()).map_or(0, |fields| request.most_units(units, fields));
    most_nano(prompt, completion, prices).saturating_add(of_units).min(ROW_COST_MAX)
}

/// Tokens that the answer to a request for `model` may take; for several answers, all of them. `beside`: bytes that
/// targets get in addition to those that the scan has found.
#[inline]
pub(crate) fn answer_tokens(model: &Model, fields: &Fields, beside: Option<&Beside>) -> u64 {
    let (most, made) = (model.reserve_tokens, fields.generated());
    let each = match (fields.max_tokens, beside) {
        (Some(bound), None) => bound.min(most),
        // There is no answer.
        (Some(0), _) => 0,
        (Some(bound), Some(beside)) if !beside.is_unbounded => bound.max(beside.bound).min(most),
        _ => most,
    };
    let all = each.saturating_mul(made).saturating_mul(beside.map_or(1, |beside| beside.answers.max(1)));
    all.saturating_add(beside.map_or(0, |beside| beside.predicted / BESIDE_BYTES_PER_TOKEN))
}
