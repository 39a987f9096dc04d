//! Answers that the gateway gives by itself, as bodies: models, quota, errors in the caller's shape. Writes bytes; what
//! is asked and whether it may be is decided before.

use super::cx::Cx;
use super::exchange::{Endpoint, Request};
use crate::base::text::{push_dollars, push_number};
use crate::dialect::errors::ErrorWords;
use crate::policy::catalog::Model;
use crate::policy::meter::{BudgetStatus, LimitKind, QuotaStatus};
use crate::policy::refusal::Refusal;
use crate::policy::window;
use crate::wire::json::write_string;
use crate::wire::{Span, percent};

/// Bytes of a model id in a path, percent-encoded.
const PATH_ID_MAX: usize = 1024;

/// The body for an endpoint that needs none of its own. `head`: the bytes of the request's head.
pub(crate) fn body(
    request: &Request,
    endpoint: Endpoint,
    head: &[u8],
    cx: &mut Cx,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let anthropic = request.meta.anthropic;
    let (Some(key), catalog) = (request.found.key, &request.setup.config.catalog) else {
        out.extend_from_slice(b"{\"name\":\"tollgate\"}");
        return Ok(());
    };
    let key_kind = cx.keys.get(key).kind;
    match endpoint {
        Endpoint::Models => {
            let visible = catalog.models().iter().filter(|model| key_kind.scope.allows_model(&model.id));
            write_models(visible, anthropic, out);
        }
        Endpoint::Model(id) => {
            let id = model_asked(id, head);
            let found = catalog.asked(&id).and_then(|index| catalog.get(index));
            // A model that the key may not use is not told from one that does not exist.
            let model = found.filter(|model| key_kind.scope.allows_model(&model.id));
            write_model(model.ok_or_else(|| Refusal::unknown_model(&id))?, anthropic, out);
        }
        _ => {
            let payer = cx.plans.of(key, &cx.keys, &cx.setup.config)?;
            let quota = cx.meter.standing(payer, cx.now.unix);
            write_quota(&payer.plan.name, &quota, out);
        }
    }
    Ok(())
}

/// The name of a model in a path.
pub(crate) fn model_asked(id: Span, head: &[u8]) -> String {
    let id = id.of(head);
    percent::decoded(&id[..id.len().min(PATH_ID_MAX)])
}

/// What a client is told of a refusal.
#[inline]
pub(crate) fn words<'a>(refusal: &'a Refusal, id: &'a str) -> ErrorWords<'a> {
    let Refusal { kind, status, message, details, .. } = refusal;
    ErrorWords {
        kind: kind.as_str(),
        status: *status,
        word: refusal.word(),
        message,
        details: *details,
        resets_at: None,
        request_id: id,
    }
}

/// Where a period is spent, the same for Codex, and a header for it: whose period and until when it shows its user only
/// in these places. Of what is told in the others it shows words of its own, or none.
#[cold]
pub(crate) fn tell_codex(refusal: &Refusal, words: &mut ErrorWords<'_>, header: &mut Vec<u8>) {
    let is_spent = refusal.limit.is_some_and(LimitKind::is_of_period);
    let Some(reset) = refusal.reset.filter(|_| is_spent) else { return };
    (words.kind, words.resets_at) = ("usage_limit_reached", Some(reset.0 / 1000));
    header.extend_from_slice(b"\r\nx-codex-promo-message: ");
    header.extend(refusal.message.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
}

/// `GET /v1/models`: specification section 2.1; with `anthropic`, the union with the Anthropic list, which parses in
/// both families of SDK (wire-formats section 5.4).
fn write_models<'a>(models: impl Iterator<Item = &'a Model>, anthropic: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    let (mut first, mut last) = (None, None);
    for entry in models {
        if last.is_some() {
            out.push(b',');
        }
        first = first.or(Some(entry));
        last = Some(entry);
        write_model(entry, anthropic, out);
    }
    out.push(b']');
    if anthropic {
        out.extend_from_slice(b",\"has_more\":false,\"first_id\":");
        id_or_null(first, out);
        out.extend_from_slice(b",\"last_id\":");
        id_or_null(last, out);
    }
    out.push(b'}');
}

fn id_or_null(model: Option<&Model>, out: &mut Vec<u8>) {
    match model {
        Some(model) => write_string(out, &model.id),
        None => out.extend_from_slice(b"null"),
    }
}

/// One Model of specification section 2.1.
fn write_model(model: &Model, anthropic: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    write_string(out, &model.id);
    out.extend_from_slice(b",\"object\":\"model\",\"owned_by\":");
    write_string(out, &model.owned_by);
    out.extend_from_slice(b",\"context_window\":");
    push_number(out, model.context);
    if anthropic {
        out.extend_from_slice(b",\"type\":\"model\",\"display_name\":");
        write_string(out, &model.name);
        out.extend_from_slice(b",\"created_at\":\"");
        window::write_iso(model.created, out);
        out.extend_from_slice(b"\",\"lifecycle\":\"active\",\"max_input_tokens\":");
        push_number(out, model.context);
    }
    out.push(b'}');
}

/// `GET /v1/quota`: specification section 2.3.
fn write_quota(plan: &str, quota: &QuotaStatus, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"quota\",\"plan\":");
    write_string(out, plan);
    out.extend_from_slice(b",\"period\":{\"start\":\"");
    window::write_date(quota.period_start, out);
    out.extend_from_slice(b"\",\"renews\":\"");
    window::write_date(quota.renews, out);
    out.extend_from_slice(b"\"},\"tokens\":{\"used\":");
    push_number(out, quota.used);
    out.extend_from_slice(b",\"total\":");
    push_number(out, quota.total);
    out.extend_from_slice(b"},\"rate_limit\":{\"limit\":");
    push_number(out, quota.limit);
    out.extend_from_slice(b",\"remaining\":");
    push_number(out, quota.remaining_requests);
    out.extend_from_slice(b",\"reset_at\":\"");
    window::write_iso(quota.reset_at, out);
    out.extend_from_slice(b"\"}");
    if let Some(BudgetStatus { used, total }) = quota.budget {
        out.extend_from_slice(b",\"budget\":{\"used\":");
        push_dollars(out, used);
        out.extend_from_slice(b",\"total\":");
        push_dollars(out, total);
        out.extend_from_slice(b",\"currency\":\"USD\"}");
    }
    out.push(b'}');
}
