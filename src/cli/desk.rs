//! What the admin API answers by the code of the commands: a request becomes the command line that asks for the same,
//! is read as one is, and told as `--json` tells it. On a helper thread, one at a time: never on the loop.

use super::keys::{self, By, KeysCommand};
use super::output::{Failure, json_text};
use super::usage::{self, UsageArgs};
use super::{ledger, models, store};
use crate::base::digest::sha256;
use crate::base::time::Unix;
use crate::gateway::orders::{DeskAnswer, DeskAsk, Writer};
use crate::io::clock::unix;
use crate::policy::config::Config;
use crate::policy::plan::Plan;
use crate::wire::json::{self, Kind, Raw};
use crate::wire::percent;
use clap::{Parser, Subcommand};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Items of a list that are told at once, at most, and if nothing is said of it.
const LIMITS: (usize, usize) = (1000, 100);
/// Bytes of an `Idempotency-Key`.
const ONCE_MAX: usize = 255;

/// A command line as it is made here.
#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Keys(Box<KeysCommand>),
    Usage(Box<UsageArgs>),
}

/// Why there is no answer but an error: its status, and what is told.
type Wrong = (u16, String);

/// Answers a request. It may take as long as a command takes.
pub(super) fn answer(ask: Box<DeskAsk>) -> Box<DeskAnswer> {
    let told = catch_unwind(AssertUnwindSafe(|| told(&ask)));
    let (status, body) = match told {
        Ok(Ok(text)) => (200, Ok(text.into_bytes())),
        Ok(Err((status, message))) => (status, Err(message)),
        Err(_) => (500, Err("an internal error".to_string())),
    };
    ask.answer(status, body)
}

/// Said where no thread can be begun.
pub(super) fn unanswered(ask: &DeskAsk) -> Box<DeskAnswer> {
    ask.answer(503, Err("no thread can be started".to_string()))
}

fn told(ask: &DeskAsk) -> Result<String, Wrong> {
    let (high, now, path) = (&*ask.config, unix(), percent::decoded(ask.path.as_bytes()));
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    match (ask.method.as_str(), parts.as_slice()) {
        ("GET", ["keys"]) => page(ask, &keys::listed(high, now).map_err(failed)?),
        ("GET", ["keys", id]) => json(&keys::shown(high, id, now).map_err(failed)?),
        ("GET", ["plans"]) => page(ask, &high.plans.iter().map(plan).collect::<Vec<_>>()),
        ("GET", ["models"]) => page(ask, &models::lines(&high.catalog)),
        ("GET", ["usage"]) => {
            let mut line = vec!["usage".to_string()];
            for (name, value) in pairs(&ask.query) {
                if !["by", "since", "until", "key", "group", "model", "user", "label"].contains(&name) {
                    return Err(unknown(name));
                }
                line.push(format!("--{name}={value}"));
            }
            let Command::Usage(args) = parsed(line)? else { return Err(nothing()) };
            let lines = usage::reported(&args, high).map_err(failed)?;
            Ok(list(json(&lines)?.trim_end(), None))
        }
        ("GET", ["audit"]) => {
            let (from, limit) = part(ask)?;
            let lines = ledger::audited(high, from.saturating_add(limit).saturating_add(1)).map_err(failed)?;
            let (from, to) = (from.min(lines.len()), from.saturating_add(limit).min(lines.len()));
            Ok(list(&ledger::audit_json(&lines[from..to]), (to < lines.len()).then_some(to)))
        }
        ("POST" | "PATCH" | "DELETE", ["keys", ..]) => change(ask, high, &parts, now),
        (_, ["keys" | "plans" | "models" | "usage" | "audit", ..]) => Err((405, "this is not done here".to_string())),
        _ => Err(nothing()),
    }
}

/// Does what changes a key, once under the name that the request has for it.
fn change(ask: &DeskAsk, high: &Config, parts: &[&str], now: Unix) -> Result<String, Wrong> {
    let asked = [ask.method.as_bytes(), b" ", ask.path.as_bytes(), b"\n", &ask.body].concat();
    let once = ask.once.as_deref().map(|name| (name, sha256(&asked)));
    if let Some((name, digest)) = once {
        if name.is_empty() || name.len() > ONCE_MAX || !name.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) {
            return Err((400, format!("idempotency-key: expected 1 to {ONCE_MAX} printable characters")));
        }
        let ledger = store::open_existing(high).map_err(failed)?;
        let known = ledger.map(|mut ledger| ledger.answered(name, now).map_err(|error| failed(Failure::failed(error))));
        match known.transpose()?.flatten() {
            Some(known) if known.digest == digest => return Ok(known.answer),
            Some(_) => {
                return Err((409, "idempotency-key: something else was asked for under this name".to_string()));
            }
            None => {}
        }
    }
    let by = By { who: ask.writer.map_or("", Writer::name), once };
    let line = |words: &[&str]| words.iter().map(|word| (*word).to_string()).collect::<Vec<_>>();
    let line = match (ask.method.as_str(), parts) {
        ("POST", ["keys"]) => [line(&["keys", "issue"]), options(&ask.body, false)?].concat(),
        ("POST", ["keys", id, "rotate"]) => [line(&["keys", "rotate", id]), grace(&ask.body)?].concat(),
        ("PATCH", ["keys", id]) => [line(&["keys", "set", id]), options(&ask.body, true)?].concat(),
        ("DELETE", ["keys", id]) => line(&["keys", "revoke", id]),
        _ => return Err((405, "this is not done here".to_string())),
    };
    let Command::Keys(command) = parsed(line)? else { return Err(nothing()) };
    match &*command {
        KeysCommand::Issue(args) => json(&keys::api::issued(args, high, &by, now).map_err(failed)?),
        KeysCommand::Rotate(args) => json(&keys::api::rotated(args, high, &by, now).map_err(failed)?),
        KeysCommand::Set(args) => json(&keys::api::changed(args, high, &by, now).map_err(failed)?),
        KeysCommand::Revoke(args) => json(&keys::api::revoked(args, high, &by, now).map_err(failed)?),
        _ => Err(nothing()),
    }
}

/// What a command line asks for.
fn parsed(line: Vec<String>) -> Result<Command, Wrong> {
    let words = std::iter::once("tollgate".to_string()).chain(line);
    let wrong = |error: clap::Error| {
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        (400, text.split("\n\n").next().unwrap_or_default().replace('\n', " "))
    };
    Line::try_parse_from(words).map(|line| line.command).map_err(wrong)
}

/// The options of a key, out of a body that has the members of `--json`.
fn options(body: &[u8], is_edit: bool) -> Result<Vec<String>, Wrong> {
    let mut line = Vec::new();
    for (name, value) in members(body)? {
        let expected = |what: &str| Err((400, format!("{name}: expected {what}")));
        match (name.as_str(), value.kind()) {
            ("name" | "plan" | "group" | "expires", Kind::String) => {
                line.push(format!("--{name}={}", value.text().unwrap_or_default()));
            }
            ("group", Kind::Null) => line.push("--group=none".to_string()),
            ("expires", Kind::Null) => line.push("--expires=never".to_string()),
            ("name" | "plan" | "group" | "expires", _) => return expected("a string"),
            ("models" | "endpoints", Kind::Array) => {
                let items: Option<Vec<String>> = value.items().map(|item| item.text().map(String::from)).collect();
                match items {
                    Some(items) if items == ["*"] => line.push(format!("--{name}=all")),
                    Some(items) if !items.is_empty() && items.iter().all(|item| !item.contains(',')) => {
                        line.push(format!("--{name}={}", items.join(",")));
                    }
                    _ => return expected("names, or `[\"*\"]` for all"),
                }
            }
            ("models" | "endpoints", _) => return expected("a list of names, or `[\"*\"]` for all"),
            ("labels", Kind::Object) => {
                for (label, value) in value.members() {
                    let (label, text) = (Raw::text_of(label), value.text());
                    if text.is_none() && !value.is_null() {
                        return Err((400, format!("labels.{label}: expected a string, or null to take it away")));
                    }
                    line.push(format!("--label={label}={}", text.unwrap_or_default()));
                }
            }
            ("labels", _) => return expected("an object"),
            ("limits", Kind::Object) => {
                for (limit, value) in value.members() {
                    let limit = Raw::text_of(limit);
                    let known = ["requests", "tokens", "tokens_per_window", "concurrency", "budget"];
                    if !known.contains(&&*limit) {
                        return Err(unknown(&format!("limits.{limit}")));
                    }
                    let value = match value.kind() {
                        Kind::Null => "plan".into(),
                        Kind::Number => String::from_utf8_lossy(value.bytes()),
                        _ => return Err((400, format!("limits.{limit}: expected a number, or null: as its plan"))),
                    };
                    line.push(format!("--{}={value}", limit.replace('_', "-")));
                }
            }
            ("limits", _) => return expected("an object"),
            ("disabled", _) if is_edit => match value.bool() {
                Some(disabled) => line.push(if disabled { "--disable" } else { "--enable" }.to_string()),
                None => return expected("true or false"),
            },
            _ => return Err(unknown(&name)),
        }
    }
    Ok(line)
}

/// The time for which the old secret of a key stays valid.
fn grace(body: &[u8]) -> Result<Vec<String>, Wrong> {
    let mut line = Vec::new();
    for (name, value) in members(body)? {
        match (name.as_str(), value.text()) {
            ("grace", Some(text)) => line.push(format!("--grace={text}")),
            ("grace", None) => return Err((400, "grace: expected a duration such as \"24h\"".to_string())),
            _ => return Err(unknown(&name)),
        }
    }
    Ok(line)
}

/// The members of a body; none of an empty one.
fn members(body: &[u8]) -> Result<Vec<(String, Raw<'_>)>, Wrong> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    json::check(body).map_err(|error| (400, format!("the body is no JSON: {error}")))?;
    let document = Raw::new(body);
    if document.kind() != Kind::Object {
        return Err((400, "the body: expected an object".to_string()));
    }
    let mut members: Vec<(String, Raw<'_>)> = Vec::new();
    for (name, value) in document.members() {
        let name = Raw::text_of(name).into_owned();
        if members.iter().any(|(known, _)| *known == name) {
            return Err((400, format!("{name}: is there twice")));
        }
        members.push((name, value));
    }
    Ok(members)
}

/// The pairs of a query, decoded.
fn pairs(query: &str) -> impl Iterator<Item = (&str, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name, percent::decoded(value.replace('+', " ").as_bytes()))
    })
}

/// A part of a list: `limit` items behind so many as `after` says.
fn page(ask: &DeskAsk, items: &[impl serde::Serialize]) -> Result<String, Wrong> {
    let (from, limit) = part(ask)?;
    let from = from.min(items.len());
    let to = from.saturating_add(limit).min(items.len());
    Ok(list(json(&&items[from..to])?.trim_end(), (to < items.len()).then_some(to)))
}

/// A list, and where the rest of it begins.
fn list(items: &str, next: Option<usize>) -> String {
    let next = next.map_or("null".to_string(), |next| format!("\"{next}\""));
    format!("{{\"data\": {items}, \"next\": {next}}}\n")
}

/// Where the part of a list begins that is asked for, and how much of it that is.
fn part(ask: &DeskAsk) -> Result<(usize, usize), Wrong> {
    let (mut limit, mut from) = (LIMITS.1, 0);
    for (name, value) in pairs(&ask.query) {
        match (name, value.parse::<usize>()) {
            ("limit", Ok(value)) if (1..=LIMITS.0).contains(&value) => limit = value,
            ("limit", _) => return Err((400, format!("limit: expected a number from 1 to {}", LIMITS.0))),
            ("after", Ok(value)) => from = value,
            ("after", _) => return Err((400, "after: expected what a list before had in `next`".to_string())),
            _ => return Err(unknown(name)),
        }
    }
    Ok((from, limit))
}

fn plan(plan: &Plan) -> serde_json::Value {
    serde_json::json!({
        "name": &*plan.name,
        "tokens": plan.tokens,
        "period": plan.period.as_str(),
        "requests": plan.requests,
        "window_seconds": plan.window.as_secs(),
        "tokens_per_window": plan.tokens_per_window,
        "concurrency": plan.concurrency,
        "budget": plan.budget as f64 / 1e9,
        "unpriced": plan.unpriced.as_str(),
        "share": plan.share,
    })
}

fn json(value: &impl serde::Serialize) -> Result<String, Wrong> {
    json_text(value).map_err(failed)
}

fn unknown(name: &str) -> Wrong {
    (400, format!("{name}: is not known here"))
}

fn nothing() -> Wrong {
    (404, "there is nothing here; see /admin/openapi.json".to_string())
}

fn failed(failure: Failure) -> Wrong {
    let status = match failure {
        Failure::Misused(_) => 400,
        Failure::Absent(_) => 404,
        Failure::Refused(_) => 409,
        Failure::Failed(_) | Failure::Config(_) => 503,
    };
    (status, failure.text())
}
