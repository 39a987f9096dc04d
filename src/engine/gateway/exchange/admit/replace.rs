//! A cheaper model instead of a refusal: if a reservation does not fit, the request goes to the model that
//! `on_exhausted` of the key, its plan or a group names.

use super::cost::answer_tokens;
use super::strict::{self, NoBound};
use crate::gateway::exchange::body::build::{Built, build_first};
use crate::gateway::exchange::body::reading::first_target;
use crate::gateway::exchange::event::DriverCall;
use crate::gateway::exchange::job::{Attempt, RequestJob};
use crate::gateway::exchange::request::{Asked, Request};
use crate::gateway::exchange::room::note_needs;
use crate::gateway::exchange::state::{NextStep, Outgoing};
use crate::gateway::provider::request::OutgoingRequest;
use crate::gateway::report::access_log::Replaced;
use crate::policy::meter::{Amount, Limit, Payer, Replacing, Whose};
use crate::policy::plan::REPLACEMENTS_MAX;
use crate::policy::plan::caps::Resource;
use crate::policy::refusal::Refusal;
use std::num::NonZeroU32;

/// Value of `x-tollgate-model-reason`. The names of models and limits are in it, those of plans and groups are not.
fn reason(asked: &str, of: &Replacing) -> Box<str> {
    let scope = match of.whose {
        Whose::Key => "key",
        Whose::Plan(_) => "plan",
        Whose::Group(_) | Whose::Target(_) => "group",
    };
    let text = ["exhausted; asked=\"", asked, "\"; limit=\"", &of.limit.name(), "\"; scope=\"", scope, "\""].concat();
    text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

/// True if a limit has no room for the request, and another model may replace the requested one.
#[cold]
pub(super) fn is_exhausted(request: &Request, estimate: Amount, call: &mut DriverCall) -> bool {
    let Ok(payer) = request.payer(&call.cx.access, &call.cx.setup.config) else { return false };
    let (now, meter) = (call.cx.now.unix, &mut call.cx.accounts.meter);
    meter.replaces_models(payer) && !meter.replacing(payer, now, estimate, None).1.is_empty()
}

/// Replaces the model by one whose reservation fits, and writes the body for it. Gives the draft back if there is
/// none; the request is then as before. `refused`: the limit by which a shared ledger has refused the request. `hosts`:
/// number of hosts that divide the limits while there is no ledger.
#[cold]
pub(super) fn replace_model(
    job: &mut RequestJob,
    mut draft: Outgoing,
    estimate: Amount,
    (refused, hosts): (Option<&Limit>, u32),
    call: &mut DriverCall,
) -> Result<NextStep, Outgoing> {
    let Some(before) = job.request.asked.filter(|_| !job.request.is_upload()) else { return Err(draft) };
    let known = job.request.extras.as_ref().and_then(|extras| extras.replaced.as_deref());
    let mut replaced = known.cloned().unwrap_or_else(|| Replaced {
        asked: job.request.model().map(|model| model.id.clone()).unwrap_or_default(),
        reason: Box::default(),
        rules: 0,
        tried: vec![before.model],
    });
    let (mut need, mut full, mut is_rewritten, reason_before) = (estimate, refused, false, replaced.reason.clone());
    while let Ok(payer) = job.request.payer(&call.cx.access, &call.cx.setup.config) {
        let payer = Payer { hosts, ..payer };
        let (is_full, models) = call.cx.accounts.meter.replacing(payer, call.cx.now.unix, need, full);
        if !is_full {
            if job.request.asked.is_none_or(|asked| asked.model == before.model) {
                break;
            }
            if let Ok(built) = write_again(job, &mut draft, call) {
                job.request.extras.get_or_insert_default().replaced = Some(Box::new(replaced));
                return Ok(built.next(draft));
            }
            // No target of this model can get the request.
            job.request.asked = Some(before);
            (need, full, is_rewritten) = (estimate, refused, true);
            continue;
        }
        let next = models.iter().find(|one| replaced.rules & (1 << one.rule) == 0);
        let Some(next) = next.filter(|_| replaced.rules.count_ones() < REPLACEMENTS_MAX as u32) else { break };
        replaced.rules |= 1 << next.rule;
        if replaced.reason.is_empty() {
            replaced.reason = reason(&replaced.asked, next);
        }
        if let Some(asked) = replacement(&job.request, &next.model, &replaced.tried, &draft, call) {
            replaced.tried.push(asked.model);
            job.request.asked = Some(asked);
            need = job.count_prompt(&draft, call);
            if draft.scan.tokens_fetched() > 0 {
                need = job.request.with_fetched(need, &draft, call);
            }
            full = None;
        }
    }
    job.request.asked = Some(before);
    if !is_rewritten {
        // The other models were asked about their own targets.
        let prompt = before.prompt.map_or(before.about.into(), |count| count.get().into());
        note_needs(&mut job.request, prompt, &draft, &call.message);
        return Err(draft);
    }
    // No other model is tried again.
    let none = Replaced { rules: u32::MAX, reason: reason_before, ..replaced };
    job.request.extras.get_or_insert_default().replaced = Some(Box::new(none));
    Ok(match write_again(job, &mut draft, call) {
        Ok(built) => built.next(draft),
        Err(refusal) => NextStep::refuse(draft, refusal),
    })
}

/// Bounds the request if its limits are strict, and writes its body for the first target: here, or on a helper thread
/// if it is long. If it can be written for no target, the model cannot serve the request.
pub(crate) fn write_first(job: &mut RequestJob, mut draft: Outgoing, call: &mut DriverCall) -> NextStep {
    match strict::bound(job, &mut draft, call) {
        Ok(()) => {}
        Err(NoBound::Full(limit)) => return instead_of(&limit, job, draft, Amount::default(), call),
        Err(NoBound::Refused(refusal)) => return NextStep::refuse(draft, refusal),
    }
    match build_first(job, &mut draft, call) {
        Ok(built) => built.next(draft),
        Err(refusal) => NextStep::refuse(draft, refusal),
    }
}

/// Replaces the model of a request that `limit` refuses, or refuses it.
#[cold]
pub(super) fn instead_of(
    limit: &Limit,
    job: &mut RequestJob,
    draft: Outgoing,
    estimate: Amount,
    call: &mut DriverCall,
) -> NextStep {
    let is_spent = matches!(limit.cap.resource, Resource::Tokens | Resource::Budget);
    let payer = job.request.payer(&call.cx.access, &call.cx.setup.config).ok();
    if !is_spent || !payer.is_some_and(|payer| call.cx.accounts.meter.replaces_models(payer)) {
        return NextStep::refuse(draft, Refusal::limit(limit));
    }
    replace_model(job, draft, estimate, (Some(limit), 1), call)
        .unwrap_or_else(|draft| NextStep::refuse(draft, Refusal::limit(limit)))
}

/// The properties of the request with a model that may replace the requested one and has not been tried.
fn replacement(
    request: &Request,
    id: &str,
    tried: &[u16],
    draft: &OutgoingRequest,
    call: &mut DriverCall,
) -> Option<Asked> {
    let catalog = &request.setup.config.catalog;
    let (at, asked) = (catalog.find(id)?, catalog.get((*tried.first()?).into())?);
    let (index, model) = (u16::try_from(at).ok()?, catalog.get(at)?);
    let is_cheaper = model.costs_at_most(asked);
    let family = request.family();
    let serves = model.serves.iter().any(|served| Some(*served) == family);
    // The client's credential is for the provider of the requested model.
    let has_credential = !model.client_credential && !asked.client_credential;
    let is_allowed = call.cx.access.keys.get(request.found.key?).kind.scope.allows_model(&model.id);
    let prompt = request.asked.map_or(0, |asked| asked.prompt.map_or(asked.about, NonZeroU32::get));
    let is_large = u64::from(prompt) <= model.largest;
    let is_good = is_cheaper && is_large && serves && has_credential && is_allowed && !tried.contains(&index);
    let payer = request.payer(&call.cx.access, &call.cx.setup.config).ok().filter(|_| is_good)?;
    let is_priced = !call.cx.accounts.meter.refuses_unpriced(payer)
        || request.lacks_price(at, model, draft.scan.fields(), &call.message).is_none();
    let completion = u32::try_from(answer_tokens(model, draft.scan.fields(), None)).unwrap_or(u32::MAX);
    let asked = request.asked.filter(|_| is_priced)?;
    Some(Asked { model: index, completion, prompt: None, ..asked })
}

/// Writes the body for a target of the present model.
fn write_again(job: &mut RequestJob, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<Built, Refusal> {
    job.attempt = Attempt::default();
    if let Some(extras) = &mut job.request.extras {
        extras.strict = None;
    }
    first_target(job, draft, call)?;
    strict::bound(job, draft, call)?;
    build_first(job, draft, call)
}
