//! Computes the tokens and money that a request may use: its prompt, all answers that it requests, and bytes that
//! providers get in addition to those counted. Also the share of a limit that one request may take.

use super::event::{ClientMessage, DriverCall};
use super::request::Request;
use crate::base::limits::{RESERVATION_FLOOR, ROW_COST_MAX};
use crate::base::time::Unix;
use crate::dialect::{self, BOUND_MIN, Beside, Fields, RequestTarget};
use crate::gateway::cx::Access;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Model;
use crate::policy::config::Config;
use crate::policy::meter::{Amount, Meter, Payer};
use crate::policy::refusal::Refusal;
use crate::policy::usage::most_nano;
use crate::wire::ModelEndpoint;

/// Bytes per token of members that are not counted like the prompt: unknown ones and those that the configuration
/// writes. Tollgate cannot know how a provider reads them; this covers texts in most languages.
const BESIDE_BYTES_PER_TOKEN: u64 = 3;

impl Request {
    /// The descriptions that the body is written for, one for each target that may be used.
    pub(super) fn takers<'a>(&'a self, index: usize, model: &'a Model) -> impl Iterator<Item = RequestTarget<'a>> {
        let setup = &self.setup;
        let before = if self.endpoint().is_some_and(ModelEndpoint::is_passthrough) { model.targets.len() } else { 0 };
        self.targets_of(model).iter().enumerate().filter_map(move |(at, target)| {
            let shape = setup.config.providers.get(target.provider)?.shape;
            let capabilities = setup.requests.capabilities(index, before + at)?;
            Some(RequestTarget { model: &target.model, shape, capabilities, cache_key: None })
        })
    }

    /// Maximum usage of the request with a prompt of this many tokens; money only if it is limited, or may soon be.
    pub(super) fn amount(&self, prompt: u64, draft: &OutgoingRequest, call: &DriverCall) -> Amount {
        let payer = self.payer(&call.cx.access, &call.cx.setup.config).ok();
        self.amount_of(payer, prompt, draft, &call.message)
    }

    /// Like [`Request::amount`], for a payer that is known.
    #[inline]
    pub(super) fn amount_of(
        &self,
        payer: Option<Payer<'_>>,
        prompt: u64,
        draft: &OutgoingRequest,
        message: &ClientMessage,
    ) -> Amount {
        let Some(model) = self.model() else { return Amount::default() };
        let fields = draft.scan.fields();
        let mut prompt = prompt.min(model.prompt_max().saturating_mul(fields.prompts()));
        let mut completion = answer_tokens(model, fields, None);
        let is_short = fields.max_tokens.is_some_and(|bound| (1..BOUND_MIN).contains(&bound));
        if draft.scan.unknown_bytes() > 0 || model.edits_requests() || is_short || fields.predicts() {
            let beside = self.beside(model, fields, message);
            // The members that the configuration writes are read with each prompt.
            prompt += (beside.added / BESIDE_BYTES_PER_TOKEN).saturating_mul(fields.prompts());
            completion = answer_tokens(model, fields, Some(&beside));
        }
        let is_limited = payer.is_some_and(|payer| payer.path.is_some() || payer.plan.budget > 0);
        let mut nano = if is_limited { most_nano(prompt, completion, &model.prices).min(ROW_COST_MAX) } else { 0 };
        if is_limited && !model.units.is_empty() {
            nano = nano.saturating_add(self.most_units(model, fields)).min(ROW_COST_MAX);
        }
        Amount { tokens: prompt.saturating_add(completion), nano }
    }

    /// Highest possible cost of the request itself and of the images that it requests.
    #[cold]
    fn most_units(&self, model: &Model, fields: &Fields) -> u64 {
        match self.endpoint().and_then(ModelEndpoint::as_passthrough) {
            // The length of audio is not known before.
            Some(passthrough) if passthrough.is_transcript() => model.units.cost_nano(passthrough, 1, 0),
            Some(passthrough) => model.units.cost_nano(passthrough, 1, fields.generated()),
            None => 0,
        }
    }

    /// Returns the reservation of a request with files of unknown size: their maximum, but no more than a whole limit.
    /// So such requests run one after the other. The known part may still exceed the limit.
    #[cold]
    pub(super) fn with_fetched(&self, all: Amount, draft: &OutgoingRequest, call: &mut DriverCall) -> Amount {
        let Ok(payer) = self.payer(&call.cx.access, &call.cx.setup.config) else { return all };
        let prompt = draft.scan.prompt_tokens(call.message.body).count() + self.unknown_tokens(draft, &call.message);
        let known = self.amount_of(Some(payer), prompt - draft.scan.tokens_fetched(), draft, &call.message);
        all.min(call.cx.accounts.meter.share(payer).max(known))
    }

    /// Tokens of the client's unknown members that a target is sent, with each prompt: reserved, and charged if the
    /// provider reports no usage.
    #[inline]
    pub(super) fn unknown_tokens(&self, draft: &OutgoingRequest, message: &ClientMessage) -> u64 {
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
    pub(super) fn completion_max(&self, draft: &OutgoingRequest, message: &ClientMessage) -> u64 {
        self.model().map_or(0, |model| {
            let fields = draft.scan.fields();
            answer_tokens(model, fields, Some(&self.beside(model, fields, message)))
        })
    }

    /// Bytes that a target gets in addition to those that the scan has found; the maximum over all targets.
    #[cold]
    fn beside(&self, model: &Model, fields: &Fields, message: &ClientMessage) -> Beside {
        let (Some(endpoint), Some(asked)) = (self.written_for(), self.asked) else { return Beside::default() };
        let of_each = self.takers(asked.model.into(), model);
        of_each.map(|to| dialect::beside(endpoint, message.body, fields, &to)).fold(Beside::default(), Beside::max)
    }

    /// True if the request uses no more of a limit than its share.
    #[inline]
    pub(super) fn fits(&self, payer: Payer<'_>, need: Amount, now: Unix, meter: &mut Meter) -> Result<(), Refusal> {
        let floor = || {
            let (model, prompt) = (self.model(), RESERVATION_FLOOR);
            model.map_or(Amount::default(), |model| {
                let nano = most_nano(prompt, model.reserve_tokens, &model.prices);
                Amount { tokens: prompt.saturating_add(model.reserve_tokens), nano }
            })
        };
        meter.fits(payer, now, need, floor).map_err(|limit| Refusal::limit(&limit))
    }

    /// The caller, its plan and its groups. Limits are those of the present configuration, like those of the counters.
    #[inline]
    pub(super) fn payer<'a>(&self, access: &'a Access, config: &'a Config) -> Result<Payer<'a>, Refusal> {
        let key = self.found.key.ok_or_else(Refusal::internal)?;
        Ok(access.payer(key, config)?)
    }
}

/// Tokens that the answer to a request for `model` may take; for several answers, all of them. `beside`: bytes that
/// targets get in addition to those that the scan has found.
#[inline]
pub(super) fn answer_tokens(model: &Model, fields: &Fields, beside: Option<&Beside>) -> u64 {
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
