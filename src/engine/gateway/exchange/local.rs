//! Answers that the gateway gives without a provider, as bodies: models, quota, errors in the client's format. Writes
//! bytes only: the request has been authorized before.

use crate::base::text::{push_dollars, push_number};
use crate::dialect::errors::ErrorWords;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::{Endpoint, Request};
use crate::policy::catalog::Model;
use crate::policy::meter::{BudgetStatus, LimitStatus, QuotaStatus, Whose};
use crate::policy::plan::Shorthand;
use crate::policy::plan::caps::Resource;
use crate::policy::refusal::Refusal;
use crate::policy::window;
use crate::wire::head::values;
use crate::wire::json::write_string;
use crate::wire::{Span, percent};

/// Maximum bytes of a percent-encoded model id in a path.
const PATH_ID_MAX: usize = 1024;

/// Returns the body for an endpoint without a request body. `head`: the bytes of the request's head.
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
    let key_kind = cx.access.keys.get(key).kind;
    match endpoint {
        Endpoint::Models => {
            let visible = catalog.models().iter().filter(|model| key_kind.scope.allows_model(&model.id));
            let part = if anthropic { ModelsPart::parse(head)? } else { ModelsPart::default() };
            write_models(visible, &part, anthropic, out)?;
        }
        Endpoint::Model(id) => {
            let id = model_asked(id, head);
            let found = catalog.asked(&id).and_then(|index| catalog.get(index));
            // A model that the key may not use looks like one that does not exist.
            let model = found.filter(|model| key_kind.scope.allows_model(&model.id));
            write_model(model.ok_or_else(|| Refusal::unknown_model(&id))?, None, anthropic, out);
        }
        Endpoint::Quota => {
            let payer = cx.access.payer(key, &cx.setup.config)?;
            let quota = cx.accounts.meter.standing(payer, cx.now.unix);
            let limits = cx.accounts.meter.limits(payer, cx.now.unix);
            write_quota(&payer.plan.name, &quota, &limits, out);
        }
        // Answered elsewhere.
        Endpoint::Root | Endpoint::Inference(_) | Endpoint::Preflight => {}
    }
    Ok(())
}

/// Name of the model in a path.
pub(crate) fn model_asked(id: Span, head: &[u8]) -> String {
    let id = id.of(head);
    percent::decoded(&id[..id.len().min(PATH_ID_MAX)])
}

/// Content of the error body for a refusal.
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

/// Adapts an error for Codex if a quota or budget is used up, and adds a header for it. Codex shows the owner and the
/// end of the period only in these places. For other errors it shows its own text, or none.
#[cold]
pub(crate) fn tell_codex(refusal: &Refusal, words: &mut ErrorWords<'_>, header: &mut Vec<u8>) {
    let is_spent = matches!(refusal.limit, Some(Shorthand::Tokens | Shorthand::Budget));
    let Some(reset) = refusal.reset.filter(|_| is_spent) else { return };
    (words.kind, words.resets_at) = ("usage_limit_reached", Some(reset.0 / 1000));
    header.extend_from_slice(b"\r\nx-codex-promo-message: ");
    header.extend(refusal.message.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
}

/// Most entries of a list that a client may ask for, as at Anthropic (Models API, "List Models": `limit`).
const LIST_MAX: usize = 1000;

/// Beginnings of the user agents of Claude Code. Its model picker reads the list and shows the entries whose id
/// contains `claude` or `anthropic`, so it needs the aliases.
const PICKERS: [&[u8]; 2] = [b"claude-code/", b"claude-cli/"];

/// The part of the list of models that a request in Anthropic's form asks for; all of it by default.
#[derive(Default)]
struct ModelsPart {
    limit: Option<usize>,
    /// Id of the last entry of the previous page.
    after: Option<String>,
    /// True if aliases without `*` are entries, too.
    has_aliases: bool,
}

impl ModelsPart {
    /// Reads the query `limit`, `after_id` and `aliases`. Others are ignored, as at Anthropic.
    fn parse(head: &[u8]) -> Result<ModelsPart, Refusal> {
        let agent = values(head, "user-agent").next().unwrap_or_default();
        let mut part =
            ModelsPart { has_aliases: PICKERS.iter().any(|start| agent.starts_with(start)), ..Self::default() };
        let target = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let query = target.iter().position(|byte| *byte == b'?').map_or(&b""[..], |at| &target[at + 1..]);
        for pair in query.split(|byte| *byte == b'&') {
            let (name, value) = pair.iter().position(|byte| *byte == b'=').map_or((pair, &b""[..]), |at| {
                let (name, value) = pair.split_at(at);
                (name, &value[1..])
            });
            let value = percent::decoded(&value[..value.len().min(PATH_ID_MAX)]);
            match name {
                b"limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIST_MAX).contains(limit));
                    part.limit = Some(limit.ok_or_else(|| {
                        Refusal::of_status(400, format!("limit: expected a whole number from 1 to {LIST_MAX}"))
                    })?);
                }
                b"after_id" => part.after = Some(value),
                b"aliases" => part.has_aliases = value == "true",
                _ => {}
            }
        }
        Ok(part)
    }
}

/// Writes `GET /v1/models` in OpenAI's format; with `anthropic` also the members of the Anthropic list, so that both
/// families of SDK can parse it.
fn write_models<'a>(
    models: impl Iterator<Item = &'a Model>,
    part: &ModelsPart,
    anthropic: bool,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let aliases = |model: &'a Model| model.aliases.iter().filter(|alias| part.has_aliases && !alias.ends_with('*'));
    let mut entries = models.flat_map(|model| {
        std::iter::once((model, None)).chain(aliases(model).map(move |alias| (model, Some(alias.as_str()))))
    });
    if let Some(after) = &part.after
        && !entries.any(|(model, alias)| alias.unwrap_or(&model.id) == after)
    {
        return Err(Refusal::of_status(400, "after_id: no model of this key has that id".to_string()));
    }
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    let (mut first, mut last) = (None, None);
    for (model, alias) in entries.by_ref().take(part.limit.unwrap_or(usize::MAX)) {
        if last.is_some() {
            out.push(b',');
        }
        last = Some(alias.unwrap_or(&model.id));
        first = first.or(last);
        write_model(model, alias, anthropic, out);
    }
    out.push(b']');
    if anthropic {
        let has_more = entries.next().is_some();
        out.extend_from_slice(if has_more { b",\"has_more\":true" } else { b",\"has_more\":false" });
        out.extend_from_slice(b",\"first_id\":");
        id_or_null(first, out);
        out.extend_from_slice(b",\"last_id\":");
        id_or_null(last, out);
    }
    out.push(b'}');
    Ok(())
}

fn id_or_null(id: Option<&str>, out: &mut Vec<u8>) {
    match id {
        Some(id) => write_string(out, id),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes one model of the list, under its id or `alias`.
fn write_model(model: &Model, alias: Option<&str>, anthropic: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    write_string(out, alias.unwrap_or(&model.id));
    out.extend_from_slice(b",\"object\":\"model\",\"owned_by\":");
    write_string(out, &model.owned_by);
    out.extend_from_slice(b",\"context_window\":");
    push_number(out, model.context);
    if anthropic {
        out.extend_from_slice(b",\"type\":\"model\",\"display_name\":");
        write_string(out, alias.unwrap_or(&model.name));
        let description = match alias {
            Some(_) => format!("Alias of {}", model.id),
            None => format!("{} tokens of context, {}", model.context, model.owned_by),
        };
        out.extend_from_slice(b",\"description\":");
        write_string(out, &description);
        out.extend_from_slice(b",\"created_at\":\"");
        window::write_iso(model.created, out);
        out.extend_from_slice(b"\",\"lifecycle\":\"active\",\"max_input_tokens\":");
        push_number(out, model.context);
    }
    out.push(b'}');
}

/// Writes `GET /v1/quota`.
fn write_quota(plan: &str, quota: &QuotaStatus, limits: &[LimitStatus], out: &mut Vec<u8>) {
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
    out.extend_from_slice(b",\"limits\":");
    write_limits(limits, out);
    out.push(b'}');
}

/// Writes limits as an array, each with its use.
pub(crate) fn write_limits(limits: &[LimitStatus], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, LimitStatus { whose, cap, used, reserved, renews }) in limits.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"{\"scope\":\"" } else { b",{\"scope\":\"" });
        let (scope, name) = match whose {
            Whose::Key => ("key", None),
            Whose::Plan(_) => ("plan", None),
            Whose::Group(name) => ("group", Some(name)),
            Whose::Target(name) => ("target", Some(name)),
        };
        out.extend_from_slice(scope.as_bytes());
        out.extend_from_slice(b"\",\"name\":");
        match name {
            Some(name) => write_string(out, name),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"resource\":\"");
        out.extend_from_slice(cap.resource.as_str().as_bytes());
        out.extend_from_slice(b"\",\"per\":");
        match renews {
            Some(_) => write_string(out, &cap.per.text()),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"models\":");
        match cap.models.text() {
            Some(models) => {
                for (at, name) in models.split(',').enumerate() {
                    out.push(if at == 0 { b'[' } else { b',' });
                    write_string(out, name);
                }
                out.push(b']');
            }
            None => out.extend_from_slice(b"null"),
        }
        for (name, value) in [("used", *used), ("reserved", *reserved), ("total", cap.total)] {
            for part in [",\"", name, "\":"] {
                out.extend_from_slice(part.as_bytes());
            }
            if cap.resource == Resource::Budget { push_dollars(out, value) } else { push_number(out, value) }
        }
        out.extend_from_slice(b",\"renews\":");
        match renews {
            Some(renews) => {
                out.push(b'"');
                window::write_iso(*renews, out);
                out.push(b'"');
            }
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
    out.push(b']');
}
