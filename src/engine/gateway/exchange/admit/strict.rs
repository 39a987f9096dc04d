//! Requests under strict limits: their reservation is an upper bound of what their provider can bill, and their bound
//! on completion tokens is what the limits still pay for. What a provider has not reported is settled at the whole
//! reservation.

use super::choose_model::LacksPrice;
use super::cost::{is_open, settle_attempt, spend, with_spent};
use super::record::row_of;
use crate::base::text::push_cost;
use crate::base::time::Mono;
use crate::dialect;
use crate::gateway::accounts::budget_sums::NO_EXCHANGE;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{ClientMessage, DriverCall};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::Request;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Model;
use crate::policy::ledger::{Ask, AskedLimits, Wish};
use crate::policy::meter::{Amount, Lease, Limit, StrictReservation};
use crate::policy::prices::{ModelPrices, UnitPrices};
use crate::policy::refusal::Refusal;
use crate::policy::usage::UsageSource;
use crate::wire::{Passthrough, json};

impl Fault {
    /// True if the provider bills nothing for the attempt: it has answered with an error status.
    fn is_unbilled(&self) -> bool {
        matches!(self.kind, FaultKind::Status(_) | FaultKind::Account(_) | FaultKind::ClientCredential(_))
    }
}

/// Reason why a request gets no bound.
pub(crate) enum NoBound {
    /// A limit does not pay for enough tokens.
    Full(Box<Limit>),
    /// Another reason.
    Refused(Refusal),
}

impl From<Refusal> for NoBound {
    fn from(refusal: Refusal) -> NoBound {
        NoBound::Refused(refusal)
    }
}

impl From<NoBound> for Refusal {
    fn from(why: NoBound) -> Refusal {
        match why {
            NoBound::Full(limit) => Refusal::limit(&limit),
            NoBound::Refused(refusal) => refusal,
        }
    }
}

/// Bounds a request of a key with strict limits before its body is written.
#[inline]
pub(crate) fn bound(job: &mut RequestJob, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<(), NoBound> {
    match job.request.found.key {
        Some(key) if call.cx.access.plans.is_strict(key, &call.cx.access.keys) => {
            bound_within(job, draft, Amount::MAX, call)
        }
        _ => Ok(()),
    }
}

/// Questions about one request, to a shared ledger or the meter, before it asks for its least reservation.
pub(super) const ASKS_MAX: u8 = 3;

/// Bounds a request again, since a shared ledger has only `left` for it.
pub(super) fn bound_again(
    job: &mut RequestJob,
    draft: &mut OutgoingRequest,
    left: Amount,
    call: &mut DriverCall,
) -> Result<(), NoBound> {
    let before = job.request.extras.as_mut().and_then(|extras| extras.strict.take()).unwrap_or_default();
    let most = if before.asked < ASKS_MAX { left.max(before.least) } else { before.least };
    bound_within(job, draft, most, call)?;
    if let Some(strict) = job.request.extras.as_mut().and_then(|extras| extras.strict.as_mut()) {
        strict.asked = before.asked + 1;
    }
    Ok(())
}

/// Computes the reservation, and the bound on completion tokens that is sent: the smallest of the client's, the model's
/// and what the limits still pay for. `most`: what a shared ledger has left.
#[cold]
fn bound_within(
    job: &mut RequestJob,
    draft: &mut OutgoingRequest,
    most: Amount,
    call: &mut DriverCall,
) -> Result<(), NoBound> {
    if job.request.strict().is_some() {
        return Ok(());
    }
    let request = &job.request;
    let payer = request.payer(&call.cx.access, &call.cx.setup.config)?;
    let (now, meter) = (call.cx.now.unix, &mut call.cx.accounts.meter);
    let room = meter.room(payer, now);
    let (Some(model), Some(endpoint), true) = (request.model(), request.written_for(), room != Amount::MAX) else {
        return Ok(());
    };
    has_bound(request, model, draft, &call.message, room)?;
    let room = room.min(most);
    let fields = draft.scan.fields();
    let beside = request.beside(model, fields, &call.message);
    let answers = fields.generated().saturating_mul(beside.answers.max(1));
    let is_media = endpoint.as_passthrough().is_some_and(Passthrough::is_media);
    let prompt = if is_media {
        0
    } else {
        let (image, file) = (model.image_tokens_max(), model.prompt_max());
        let beside = (beside.added + beside.unknown).saturating_mul(fields.prompts());
        draft.scan.prompt_most(endpoint, call.message.body, image, file).saturating_add(beside)
    };
    let longest = model.completion_max();
    let want = match fields.client_bound() {
        _ if is_media => 0,
        Some(own) => own.min(longest.unwrap_or(u64::MAX)),
        None => longest.unwrap_or(model.default_max_tokens),
    };
    let reserved = |bound: u64| {
        let each = if want == 0 { 0 } else { bound.max(beside.bound) };
        let completion = each.saturating_mul(answers).saturating_add(beside.predicted);
        let nano = request.most_nano(model, prompt, completion, Some(fields));
        StrictReservation { prompt, completion, nano, ..StrictReservation::default() }
    };
    let fits = |bound: u64| {
        let need = reserved(bound).amount();
        need.min(room) == need
    };
    let least = request.setup.config.server.strict_min_tokens.min(want);
    if !fits(least) {
        let limit = meter.has_room(payer, now, reserved(least).amount(), None).err();
        return Err(limit.map_or(NoBound::Refused(Refusal::internal()), |limit| NoBound::Full(Box::new(limit))));
    }
    // The largest bound that the limits pay for.
    let (mut bound, mut above) = (least, want);
    while bound < above {
        let middle = bound + (above - bound).div_ceil(2);
        if fits(middle) { bound = middle } else { above = middle - 1 }
    }
    let strict = StrictReservation { least: reserved(least).amount(), ..reserved(bound) };
    job.request.extras.get_or_insert_default().strict = Some(strict);
    if want > 0 {
        draft.scan.set_bound(bound);
    }
    job.count_prompt(draft, call);
    if let Some(asked) = &mut job.request.asked {
        asked.completion = u32::try_from(strict.completion).unwrap_or(u32::MAX);
    }
    Ok(())
}

/// A failed attempt that may have been billed is settled at its whole reservation, and another one needs room for
/// another reservation. False without it.
#[inline]
pub(crate) fn may_try_again(job: &mut RequestJob, fault: &Fault, cx: &mut Cx) -> bool {
    job.request.strict().is_none() || reserve_again(job, fault, cx)
}

#[cold]
fn reserve_again(job: &mut RequestJob, fault: &Fault, cx: &mut Cx) -> bool {
    let Some(strict) = job.request.strict().copied() else { return true };
    let was_open = is_open(job);
    settle_attempt(job);
    if job.attempt.sent == Mono::NEVER || fault.is_unbilled() {
        return true;
    }
    if was_open {
        spend(job, with_spent(job, strict.all(UsageSource::Estimated)));
    }
    let Ok(payer) = job.request.payer(&cx.access, &cx.setup.config) else { return false };
    let (meter, more) = (&mut cx.accounts.meter, strict.amount());
    // A shared ledger knows only one reservation of the request.
    let Some(admitted) = job.admitted.as_ref().filter(|admitted| admitted.lease.is_none()) else { return false };
    let has_room = meter.has_room(payer, cx.now.unix, more, Some(admitted.at)).is_ok();
    if has_room {
        meter.extend(&admitted.hold, more);
        promise(job, NO_EXCHANGE, cx);
    }
    has_room
}

/// Gives the ledger the record that the request leaves if this process is killed: all of its reservation. The answer
/// goes to the exchange of this number.
pub(super) fn promise(job: &RequestJob, number: (u32, u32), cx: &mut Cx) {
    let (Some(strict), Some(admitted), Some(key)) = (job.request.strict(), &job.admitted, job.request.found.key) else {
        return;
    };
    let usage = with_spent(job, strict.all(UsageSource::Estimated));
    let group = cx.accounts.meter.path_text(&admitted.hold);
    let Some(row) = row_of(job, job.bill(&usage), 500, (group, admitted.at), cx) else { return };
    cx.commands.orders.ask(Ask {
        number,
        key: cx.access.keys.get(key).id(),
        lease: Lease::default(),
        limits: AskedLimits::default(),
        admits: false,
        wish: Wish::default(),
        promise: Some(Box::new(row)),
    });
}

/// True if an attempt has failed by an answer that is not billed. It then costs nothing.
#[inline]
pub(crate) fn note_unbilled(job: &mut RequestJob, fault: &Fault) -> bool {
    let is_unbilled = job.request.strict().is_some() && fault.is_unbilled();
    if is_unbilled {
        settle_attempt(job);
    }
    is_unbilled
}

/// The request has ended: reports a provider that bills more than was reserved.
#[cold]
pub(crate) fn check_overrun(job: &RequestJob, reserved: Amount, used: Amount, cx: &mut Cx) {
    let of_tokens = job.request.strict().is_some_and(|strict| strict.prompt > 0);
    if used.nano <= reserved.nano && (!of_tokens || used.tokens <= reserved.tokens) {
        return;
    }
    let (Some(target), Some(key)) = (job.target(), job.request.found.key) else { return };
    cx.upstreams.breakers.overran(target);
    let (label, key) = (target.label.clone(), cx.access.keys.get(key).id());
    cx.log_event(|out| {
        for (name, text) in
            [("event", "overrun"), ("id", job.request.id.as_str()), ("key", key.as_str()), ("target", &label)]
        {
            json::member_string(out, name, text);
        }
        for (name, amount) in [("reserved", reserved), ("used", used)] {
            json::member_count(out, name, amount.tokens);
            json::key(out, &[name, "_dollars"].concat());
            push_cost(out, amount.nano);
        }
    });
}

/// Fails if nothing bounds what a provider can bill. `room`: what the limits leave.
fn has_bound(
    request: &Request,
    model: &Model,
    draft: &OutgoingRequest,
    message: &ClientMessage,
    room: Amount,
) -> Result<(), Refusal> {
    let (Some(asked), Some(endpoint)) = (request.asked, request.written_for()) else { return Ok(()) };
    let (fields, passthrough) = (draft.scan.fields(), endpoint.as_passthrough());
    let index = asked.model.into();
    let lack = if room.nano < u64::MAX { request.lacks_price(index, model, fields, message) } else { None };
    // Whatever `unpriced` says.
    match lack {
        Some(LacksPrice::Model) => return Err(Refusal::unbounded("a model without prices")),
        Some(LacksPrice::Member(member)) => return Err(Refusal::unbounded(&member.path)),
        None => {}
    }
    if let Some(passthrough) = passthrough.filter(|passthrough| passthrough.is_media()) {
        let is_known = |target| is_priced_before(model.prices_at(target), model.has_token_prices, passthrough);
        let is_known = match model.priced_by_target {
            true => request.targets_of(model).iter().all(|target| is_known(Some(target))),
            false => is_known(None),
        };
        return match room.tokens == u64::MAX && is_known {
            true => Ok(()),
            false => Err(Refusal::unbounded(passthrough.as_str())),
        };
    }
    let adds = |to| dialect::surcharge(endpoint, message.body, fields, &to, true).map(|found| found.path.into_owned());
    if let Some(path) = request.takers(index, model).find_map(adds) {
        return Err(Refusal::unbounded(&path));
    }
    let generates = passthrough.is_none_or(Passthrough::generates);
    let what = match passthrough.filter(|_| generates).and_then(|_| fields.odd_count(message.body)) {
        Some(name) => name,
        None if draft.scan.is_fetched() => "a file or an image that the provider fetches",
        None if generates && request.beside(model, fields, message).is_unbounded => {
            "a model whose `drop_params` has the bound on completion tokens"
        }
        None => return Ok(()),
    };
    Err(Refusal::unbounded(what))
}

/// True if the price of audio or images is known before the request: that of the request itself, or of each image that
/// it asks for.
fn is_priced_before((prices, units): (&ModelPrices, &UnitPrices), has_tokens: bool, passthrough: Passthrough) -> bool {
    let has_tokens = has_tokens && *prices != ModelPrices::default();
    let of_image = units.image.is_some() && passthrough.makes_images();
    let of_minute = units.minute.is_some() && passthrough.is_transcript();
    !has_tokens && !of_minute && (of_image || units.request.is_some())
}
