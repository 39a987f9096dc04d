//! Admin API handlers that reuse CLI commands: map a request to the arguments of a command and return that command's
//! `--json` output. They run on a helper thread, one at a time, and never on the event loop.

use super::keys::{self, Actor, Expiry, KeyEntry, KeyExtra, SetArgs, limit_json};
use super::output::{Failure, json_text};
use super::{ledger, models, store, usage};
use crate::base::digest::sha256;
use crate::base::time::Unix;
use crate::gateway::orders::{ChangeAuthor, DeskAnswer, DeskAsk, UNKNOWN_AFTER};
use crate::io::clock::unix;
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use crate::policy::plan::Plan;
use crate::policy::plan::caps::{Cap, Per, Resource};
use crate::policy::plan::entries::{EntryTable, NO_RESOURCE};
use crate::store::note::AuditLine;
use crate::wire::json::{self, Raw, ValueKind};
use crate::wire::percent;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Maximum bytes of an `Idempotency-Key`.
const ONCE_MAX: usize = 255;

/// An error answer: its status and message.
type ErrorAnswer = (u16, String);

/// Answers a request. It may take as long as a command.
pub(super) fn answer(ask: Box<DeskAsk>) -> Box<DeskAnswer> {
    let mut issued = None;
    let answered = catch_unwind(AssertUnwindSafe(|| answer_text(&ask, &mut issued)));
    let (status, body) = match answered {
        Ok(Ok(text)) => (200, Ok(text.into_bytes())),
        Ok(Err((status, message))) => (status, Err(message)),
        Err(_) => (500, Err("an internal error".to_string())),
    };
    ask.answer(status, body).with_issued(issued)
}

/// The answer if no thread can be started.
pub(super) fn unanswered(ask: &DeskAsk) -> Box<DeskAnswer> {
    ask.answer(503, Err("no thread can be started".to_string()))
}

fn answer_text(ask: &DeskAsk, issued: &mut Option<Box<KeyRecord>>) -> Result<String, ErrorAnswer> {
    let (high, now) = (&*ask.config, unix());
    // Decoded one by one, so that a name may contain a slash.
    let parts: Vec<String> = ask.path.split('/').map(|part| percent::decoded(part.as_bytes())).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (ask.method.as_str(), parts.as_slice()) {
        ("GET", ["keys"]) => keys_page(ask, high, now),
        ("GET", ["keys", id]) => json(&keys::shown(high, id, now).map_err(failed)?),
        ("GET", ["plans"]) => page(ask, high.plans.iter().map(plan).collect()),
        ("GET", ["models"]) => page(ask, models::lines(&high.catalog)),
        ("GET", ["budgets"]) => {
            let list = keys::budgets::report(high, now).map_err(failed)?;
            page(ask, list.iter().map(|one| one.json(now)).collect())
        }
        ("GET", ["usage"]) => {
            let args = usage::asked(&ask.part.more).map_err(|text| (400, text))?;
            let (mut lines, more) = usage::reported(&args, high, ask.part.bounds()).map_err(failed)?;
            part(ask, &mut lines, more)
        }
        ("GET", ["outcomes"]) => page(ask, ledger::outcomes(high, now).map_err(failed)?),
        ("GET", ["requests"]) => {
            let found = match ask.part.wanted("id") {
                Some(id) => ledger::found_request(high, id).map_err(failed)?,
                None => None,
            };
            Ok(format!("{}{}],\"next\":null}}", ask.part.begun, found.unwrap_or_default()))
        }
        ("GET", ["audit"]) => {
            let ((from, _), bytes, most) = (ask.part.bounds(), ask.part.bytes, ask.part.limit);
            let mut lines = ledger::audited(high, from, most.saturating_add(1), bytes).map_err(failed)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let more = keys::cut(&mut lines, most, bytes, AuditLine::text_bytes);
            let next = more.then(|| (from + lines.len() as u64).to_string());
            Ok(list(ledger::audit_json(&lines), next))
        }
        (_, [_, name @ ..]) => change(ask, high, name, now, issued),
        _ => Err(nothing()),
    }
}

/// Changes a key, once per idempotency key. `name`: the path after `keys`. `issued` takes the record of a new key.
fn change(
    ask: &DeskAsk,
    high: &Config,
    name: &[&str],
    now: Unix,
    issued: &mut Option<Box<KeyRecord>>,
) -> Result<String, ErrorAnswer> {
    let asked = [ask.method.as_bytes(), b" ", ask.path.as_bytes(), b"\n", &ask.body].concat();
    let Some(once) = ask.once.as_deref().map(|name| (name, sha256(&asked))) else {
        return changed(ask, high, name, None, now, issued);
    };
    if once.0.is_empty() || once.0.len() > ONCE_MAX || !once.0.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) {
        return Err((400, format!("idempotency-key: expected 1 to {ONCE_MAX} printable characters")));
    }
    if let Some(known) = answered(high, once, now)? {
        return Ok(known);
    }
    match changed(ask, high, name, Some(once), now, issued) {
        Ok(done) if ask.method != "DELETE" => Ok(done),
        // Another host or process may have made the change in the meantime: then its answer counts. Revoking a revoked
        // key is reported as an error, and nothing is written.
        done => answered(high, once, now)?.map_or(done, Ok),
    }
}

/// Answer to an earlier request with the same idempotency key; a different request with that key is an error.
fn answered(high: &Config, (name, digest): (&str, [u8; 32]), now: Unix) -> Result<Option<String>, ErrorAnswer> {
    let Some(mut ledger) = store::open_existing(high).map_err(failed)? else { return Ok(None) };
    match ledger.answered(name, now).map_err(|error| failed(Failure::failed(error)))? {
        Some(known) if known.digest == digest => Ok(Some(known.answer)),
        Some(_) => Err((409, "idempotency-key: already used for another request, use a new one".to_string())),
        None => Ok(None),
    }
}

fn changed(
    ask: &DeskAsk,
    high: &Config,
    name: &[&str],
    once: Option<(&str, [u8; 32])>,
    now: Unix,
    issued: &mut Option<Box<KeyRecord>>,
) -> Result<String, ErrorAnswer> {
    let by = Actor { who: ask.writer.map_or("", ChangeAuthor::as_str), once };
    match (ask.method.as_str(), name) {
        ("POST", []) => {
            let SetArgs { name, options, .. } = options(&ask.body, false)?;
            let name = name.ok_or_else(|| expected("name", "a string"))?;
            let (record, fresh) = keys::api::issued(name, options, high, &by).map_err(failed)?;
            *issued = Some(Box::new(record));
            json(&fresh)
        }
        ("POST", [id, _]) => json(&keys::api::rotated(id, grace(&ask.body)?, high, &by).map_err(failed)?),
        ("PATCH", [id]) => json(&keys::api::changed(id, &options(&ask.body, true)?, high, &by).map_err(failed)?),
        ("DELETE", [id]) if ask.body.is_empty() => json(&keys::api::revoked(id, high, &by, now).map_err(failed)?),
        ("DELETE", _) => Err(expected("the body", "none")),
        _ => Err(nothing()),
    }
}

/// The requested page of all keys; its `next` is the id of the last key.
fn keys_page(ask: &DeskAsk, high: &Config, now: Unix) -> Result<String, ErrorAnswer> {
    let most = usize::try_from(ask.part.limit).unwrap_or(usize::MAX);
    let most = (most, ask.part.bytes);
    let page = keys::listed(high, ask.part.after_key.as_ref(), most, now).map_err(|failure| match failure {
        Failure::Absent(_) => (400, UNKNOWN_AFTER.to_string()),
        other => failed(other),
    })?;
    let mut lines = page.lines;
    let (text, is_cut) = fitting(&mut lines, ask.part.bytes)?;
    let next = lines.last().filter(|_| page.more || is_cut).map(|line| line.id().to_string());
    Ok(list(text, next))
}

/// Options of a key, from a body with the members of `--json`.
fn options(body: &[u8], is_edit: bool) -> Result<SetArgs, ErrorAnswer> {
    let mut args = SetArgs::default();
    let options = &mut args.options;
    for (name, value) in members("the body", body)? {
        let text = || value.text().ok_or_else(|| expected(&name, "a string"));
        let is_null = value.is_null();
        match name.as_str() {
            "name" => args.name = Some(fits(&name, keys::parse_name(&text()?))?),
            "plan" => options.plan = Some(text()?.into_owned()),
            "group" => {
                let group = if is_null { "none".into() } else { text()? };
                options.group = Some(fits(&name, keys::parse_group(&group))?);
            }
            "expires" => {
                let when = if is_null { "never".into() } else { text()? };
                options.expires = Some(fits(&name, keys::parse_expiry(&when))?);
            }
            "models" => options.models = names(&name, value)?,
            "endpoints" => options.endpoints = names(&name, value)?,
            "labels" => {
                for (label, value) in members(&name, value.bytes())? {
                    let path = ["labels.", &label].concat();
                    let text = if value.is_null() { Some("".into()) } else { value.text() };
                    let text = text.ok_or_else(|| expected(&path, "a string, or null to remove it"))?;
                    options.labels.push(fits(&path, keys::parse_label(&[&label, "=", &text].concat()))?);
                }
            }
            "limits" => options.limits = limits(&name, value)?,
            "strict" => match value.bool() {
                Some(strict) => options.strict = Some(strict),
                None => return Err(expected(&name, "true or false")),
            },
            "on_exhausted" => {
                options.on_exhausted = Some(if is_null { "none".into() } else { text()?.into_owned() });
            }
            "disabled" if is_edit => match value.bool() {
                Some(disabled) => (args.disable, args.enable) = (disabled, !disabled),
                None => return Err(expected(&name, "true or false")),
            },
            "extra" if is_edit => args.extras = extras(&name, value)?,
            "capture_until" if is_edit => {
                let until = if is_null { "0".into() } else { text()? };
                args.capture = Some(fits(&name, keys::parse_capture(&until))?);
            }
            _ => return Err(unknown(&name)),
        }
    }
    Ok(args)
}

/// Result of reading the field at `path`, or an error with the expected value.
fn fits<T>(path: &str, read: Result<T, String>) -> Result<T, ErrorAnswer> {
    read.map_err(|text| (400, [path, ": ", &text].concat()))
}

/// The strings of a list.
fn strings(value: Raw<'_>) -> Option<Vec<String>> {
    let all = value.items().map(|item| Some(item.text()?.into_owned())).collect();
    if value.kind() == ValueKind::Array { all } else { None }
}

/// Limits as the command line or the configuration has them. Those of the plan, which `--json` prints, change nothing.
fn limits(path: &str, value: Raw<'_>) -> Result<Vec<KeyEntry>, ErrorAnswer> {
    let mut limits = Vec::new();
    for (path, entry) in limit_entries(path, value, &[])? {
        if !entry.is_plans {
            limits.push(fits(&path, keys::parse_entry(&entry.text))?);
        }
    }
    Ok(limits)
}

/// Temporary allowances: `{"budget": 20, "per": "month", "for": "2d"}`, `"budget/month=none"`, or as they are listed.
fn extras(path: &str, value: Raw<'_>) -> Result<Vec<KeyExtra>, ErrorAnswer> {
    let mut extras = Vec::new();
    for (path, LimitEntry { text, until, .. }) in limit_entries(path, value, &["for", "until"])? {
        extras.push(KeyExtra { cap: fits(&path, keys::parse_extra(&text))?, until });
    }
    Ok(extras)
}

/// A limit in a list.
struct LimitEntry {
    /// As on the command line.
    text: String,
    /// True for a limit of the plan.
    is_plans: bool,
    until: Option<Expiry>,
}

/// Reads a list of limits, each with its path.
fn limit_entries(path: &str, value: Raw<'_>, ends: &[&str]) -> Result<Vec<(String, LimitEntry)>, ErrorAnswer> {
    if value.kind() != ValueKind::Array {
        return Err(expected(path, "a list of limits such as \"budget=5/5h\" or {\"budget\":5,\"per\":\"5h\"}"));
    }
    let paths = (0..).map(|at: u32| format!("{path}[{at}]"));
    paths.zip(value.items()).map(|(path, item)| limit_entry(&path, item, ends).map(|entry| (path, entry))).collect()
}

/// Reads `"budget=5/5h"`, `{"budget": 5, "per": "5h"}`, or a limit as it is listed. `ends`: members that name the end
/// of an allowance.
fn limit_entry(path: &str, item: Raw<'_>, ends: &[&str]) -> Result<LimitEntry, ErrorAnswer> {
    let mut entry = LimitEntry { text: String::new(), is_plans: false, until: None };
    if let Some(text) = item.text() {
        return Ok(LimitEntry { text: text.into_owned(), ..entry });
    }
    let mut table = EntryTable::default();
    // Members that only a listed limit has.
    let (mut word, mut total, mut written, mut listed) = (None, None, None, None);
    for (name, value) in members(path, item.bytes())? {
        let at = [path, ".", &name].concat();
        let text = || value.text().map(|text| text.into_owned()).ok_or_else(|| expected(&at, "a string"));
        match name.as_str() {
            "per" | "models" | "setting" if value.is_null() => {}
            "per" => table.per = Some(text()?),
            "models" => table.models = Some(strings(value).ok_or_else(|| expected(&at, "a list of names"))?),
            end if ends.contains(&end) => {
                if entry.until.replace(fits(&at, keys::parse_end(&text()?))?).is_some() {
                    return Err(expected(path, "for or until, found both"));
                }
            }
            "resource" => word = Some(text()?),
            "total" => total = Some(plain(value)),
            "text" => written = Some(text()?),
            "from" => (entry.is_plans, listed) = (text()? != "key", Some(name)),
            "setting" => listed = Some(name),
            name => match resource(name) {
                Some(resource) => table.totals.push((resource, plain(value))),
                None => return Err((400, format!("{path}: unknown member `{name}`"))),
            },
        }
    }
    let found = word.zip(total);
    if let Some(name) = listed.filter(|_| found.is_none() && written.is_none()) {
        return Err((400, format!("{path}: unknown member `{name}`")));
    }
    let is_none = found.as_ref().is_some_and(|(_, total)| total == "0");
    if let Some((word, total)) = found {
        let resource = resource(&word).ok_or_else(|| NO_RESOURCE.to_string());
        table.totals.push((fits(path, resource)?, if is_none { "1".to_string() } else { total }));
    }
    let is_table = !table.totals.is_empty() || table.per.is_some() || table.models.is_some();
    if written.is_none() || is_table {
        let cap = fits(path, table.cap().map_err(str::to_string))?;
        let cap = Cap { total: if is_none { 0 } else { cap.total }, ..cap };
        let of_text = written.as_deref().and_then(|text| Cap::parse_open(text).ok());
        // The window and the period of a plan are listed as times.
        let per = of_text.as_ref().map(|cap| cap.per).filter(|per| matches!(per, Per::Window | Per::Period));
        if of_text.is_some_and(|other| other != Cap { per: per.unwrap_or(cap.per), ..cap.clone() }) {
            return Err((400, format!("{path}: text differs from the other members: leave it out")));
        }
        entry.text = cap.text();
    }
    entry.text = written.unwrap_or(entry.text);
    Ok(entry)
}

/// The resource of this name.
fn resource(name: &str) -> Option<Resource> {
    Resource::ALL.into_iter().find(|resource| resource.as_str() == name)
}

/// The names in a list, which must not be empty; `null` means all.
fn names(path: &str, value: Raw<'_>) -> Result<Vec<String>, ErrorAnswer> {
    let all = if value.is_null() { Some(vec!["*".into()]) } else { strings(value) };
    all.filter(|all| !all.is_empty()).ok_or_else(|| expected(path, "names, or `[\"*\"]` for all"))
}

/// A number in any JSON notation (`60`, `60.0`, `1e-9`), or a text such as `2M`, as the command line has it.
fn plain(value: Raw<'_>) -> String {
    let written = str::from_utf8(value.bytes()).unwrap_or_default();
    match (value.text(), written.parse::<f64>()) {
        (Some(text), _) => text.into_owned(),
        // A number with only digits may exceed a float's precision. For other numbers, a float prints without an
        // exponent.
        (None, Ok(float)) if written.contains(['.', 'e', 'E']) => float.to_string(),
        _ => written.to_string(),
    }
}

#[inline(never)]
fn expected(name: &str, what: &str) -> ErrorAnswer {
    (400, [name, ": expected ", what].concat())
}

/// The time for which the old secret of a key stays valid.
fn grace(body: &[u8]) -> Result<Duration, ErrorAnswer> {
    let mut grace = keys::GRACE.into();
    for (name, value) in members("the body", body)? {
        match name.as_str() {
            "grace" => grace = value.text().unwrap_or_default(),
            _ => return Err(unknown(&name)),
        }
    }
    fits("grace", keys::parse_grace(&grace))
}

/// The members of the object at `path`, each of which may occur only once; none for an empty body.
fn members<'a>(path: &str, body: &'a [u8]) -> Result<Vec<(String, Raw<'a>)>, ErrorAnswer> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    json::check(body).map_err(|error| (400, format!("the body is no JSON: {error}")))?;
    let document = Raw::new(body);
    if document.kind() != ValueKind::Object {
        return Err(expected(path, "an object"));
    }
    let mut members: Vec<(String, Raw<'_>)> = Vec::new();
    for (name, value) in document.members() {
        let name = Raw::text_of(name).into_owned();
        if members.iter().any(|(known, _)| *known == name) {
            return Err((400, format!("{name}: given twice")));
        }
        members.push((name, value));
    }
    Ok(members)
}

/// A list with the lines of the requested page, as many as fit. `more`: further lines follow.
fn part(ask: &DeskAsk, lines: &mut Vec<impl serde::Serialize>, more: bool) -> Result<String, ErrorAnswer> {
    let (text, is_cut) = fitting(lines, ask.part.bytes)?;
    let next = ask.part.bounds().0 + lines.len() as u64;
    Ok(list(text, (more || is_cut).then(|| next.to_string())))
}

/// The requested page of a list.
fn page(ask: &DeskAsk, mut items: Vec<impl serde::Serialize>) -> Result<String, ErrorAnswer> {
    let (from, to) = ask.part.bounds();
    let at = |place: u64| usize::try_from(place).map_or(items.len(), |place| place.min(items.len()));
    let (from, to, all) = (at(from), at(to), items.len());
    items.truncate(to);
    items.drain(..from);
    part(ask, &mut items, to < all)
}

/// The text of a page's lines. Lines at its end are removed until it has at most `bytes` bytes, or one line is left.
/// True if any were.
fn fitting(lines: &mut Vec<impl serde::Serialize>, bytes: usize) -> Result<(String, bool), ErrorAnswer> {
    let all = lines.len();
    loop {
        let text = json(lines)?;
        if text.len() <= bytes || lines.len() <= 1 {
            return Ok((text, lines.len() < all));
        }
        // Lines are about as long as each other; otherwise there is a further round.
        lines.truncate((lines.len() * bytes / text.len()).max(1));
    }
}

/// A list with the text of its items, and the position of its next page. The text can be long, so it is not copied.
fn list(mut items: String, next: Option<String>) -> String {
    items.truncate(items.trim_end().len());
    items.insert_str(0, "{\"data\": ");
    items.push_str(", \"next\": ");
    items.push_str(&next.map_or("null".to_string(), |next| format!("\"{next}\"")));
    items.push_str("}\n");
    items
}

fn plan(plan: &Plan) -> serde_json::Value {
    let mut all = serde_json::json!({
        "name": &*plan.name,
        "period": plan.period.as_str(),
        "window_seconds": plan.window.as_secs(),
        "unpriced": plan.unpriced.as_str(),
        "share": plan.share,
        "strict": plan.strict,
    });
    let limits = plan.all.iter().map(|cap| limit_json(plan, cap, false));
    all["limits"] = limits.collect::<Vec<_>>().into();
    all["on_exhausted"] = plan.on_exhausted.as_deref().into();
    all
}

fn json(value: &impl serde::Serialize) -> Result<String, ErrorAnswer> {
    json_text(value).map_err(failed)
}

#[inline(never)]
fn unknown(name: &str) -> ErrorAnswer {
    (400, ["unknown member `", name, "`"].concat())
}

fn nothing() -> ErrorAnswer {
    (404, "unknown path; see /admin/openapi.json".to_string())
}

fn failed(failure: Failure) -> ErrorAnswer {
    let status = match failure {
        Failure::Misused(_) => 400,
        Failure::Absent(_) => 404,
        Failure::Refused(_) => 409,
        Failure::Failed(_) | Failure::Config(_) => 503,
    };
    (status, failure.text())
}
