//! The error reference, generated from the constructors of [`Refusal`] and from the types that become one.
//! `BLESS=1 cargo test --test it docs::` writes its tables.

use super::pages::{blessed, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;
use tollgate::base::time::Unix;
use tollgate::policy::meter::{Limit, LimitReason, Whose};
use tollgate::policy::plan::caps::Cap;
use tollgate::policy::refusal::{CredentialError, Missing, QueueRefusal, Refusal, UpstreamRefusal};

const SOURCE: &str = include_str!("../../../src/policy/refusal.rs");
/// Files of types whose variants are errors.
const VARIANTS: [&str; 3] = [
    include_str!("../../../src/policy/refusal/credential.rs"),
    include_str!("../../../src/policy/refusal/queue.rs"),
    include_str!("../../../src/policy/refusal/upstream.rs"),
];

/// Constructors that do not make an error: they change another error, or belong to the admin API.
const OTHERS: [&str; 2] = ["closing", "of_status"];

fn limit(text: &str, by: LimitReason) -> Refusal {
    let cap = Cap::parse(text).unwrap();
    // The end of a minute, or of a month.
    let is_window = text.ends_with("/1m") || text.starts_with("running");
    let (reset, retry_after) = if is_window { (1_795_617_060_000, 30) } else { (1_796_083_200_000, 466_140) };
    Refusal::limit(&Limit { cap, by, whose: Whose::Key, reset: Unix(reset), retry_after })
}

/// Returns the name of each constructor or variant, an error that it makes, and the client's remedy.
fn errors() -> Vec<(&'static str, Refusal, &'static str)> {
    let wait = Duration::from_secs(10);
    let share = LimitReason::Share { need: 900, left: 300 };
    let money = LimitReason::Share { need: 2_000_000_000, left: 1_000_000_000 };
    vec![
        ("bad_http", Refusal::bad_http(400, "(what is wrong)"), "Send valid HTTP/1.1."),
        ("bad_http", Refusal::bad_http(414, "the request line is too long"), "Send a shorter path."),
        ("bad_http", Refusal::bad_http(431, "the request head is too large"), "Send fewer or shorter headers."),
        ("bad_http", Refusal::bad_http(431, "the request has too many headers"), "Send fewer headers."),
        (
            "bad_http",
            Refusal::bad_http(501, "the only supported transfer-encoding is chunked"),
            "Send `transfer-encoding: chunked`, or `content-length`.",
        ),
        ("bad_http", Refusal::bad_http(505, "only HTTP/1.0 and HTTP/1.1 are supported"), "Send HTTP/1.1."),
        ("plain_http", Refusal::plain_http(), "Use https://."),
        ("content_type", Refusal::content_type(), "Send `content-type: application/json`, or none."),
        ("form", Refusal::form(), "Add the header."),
        ("content_encoding", Refusal::content_encoding(), "Send the body uncompressed."),
        ("version_header", Refusal::version_header(), "Correct the header, or leave it out."),
        (
            "invalid_body",
            Refusal::invalid_body("(field): expected (rule)"),
            "Correct the field that the message names.",
        ),
        ("invalid_body", Refusal::invalid_body("invalid JSON at byte (number): (what is wrong)"), "Send valid JSON."),
        ("no_threads", Refusal::no_threads(), "Send the whole conversation with each request."),
        ("bad_framing", Refusal::bad_framing(), "Correct `content-length` or the chunks."),
        ("no_model", Refusal::no_model(), "Name a model."),
        (
            "Rejected",
            UpstreamRefusal::Rejected(None).into(),
            "Correct the request. Usually the message is the provider's.",
        ),
        (
            "context_overflow",
            Refusal::context_overflow("prompt is too long: 200251 tokens > 200000 maximum".to_owned()),
            "Shorten the conversation. Coding agents do so by themselves. Chat and responses clients get other words.",
        ),
        ("no_key", Refusal::no_key(), "Send the key."),
        ("not_a_key", Refusal::not_a_key(), "Send a key of this gateway, not one of a provider."),
        ("bad_key", Refusal::bad_key(""), "Use a valid key. The log has the reason."),
        ("Missing", CredentialError::Missing.into(), "Send both headers."),
        ("GatewayKey", CredentialError::GatewayKey("authorization").into(), "Send each of the two in its header."),
        (
            "Refused",
            CredentialError::Refused(401, None, None).into(),
            "Renew your credential for the provider. Usually the message is the provider's.",
        ),
        ("Refused", CredentialError::Refused(403, None, None).into(), "See the provider's console."),
        ("Refused", CredentialError::Refused(429, None, Some(7)).into(), "Wait for `retry-after`."),
        ("from", Refusal::from(Missing::Plan), "Ask the operator: the key's plan must be configured."),
        ("from", Refusal::from(Missing::Group), "Ask the operator: the key's group must be configured."),
        ("endpoint_scope", Refusal::endpoint_scope("embeddings"), "Use another endpoint, or ask for a wider scope."),
        ("model_scope", Refusal::model_scope(Some("small")), "Use another model, or ask for a wider scope."),
        ("model_scope", Refusal::model_scope(None), "Name a model, or ask for a wider scope."),
        ("unpriced", Refusal::unpriced("small"), "Use a model with prices. The operator can set them."),
        ("unpriced_member", Refusal::unpriced_member("service_tier", Some("priority")), "Leave out the field."),
        ("unbounded", Refusal::unbounded("n"), "Leave out what the message names."),
        ("no_path", Refusal::no_path(), "Correct the base URL."),
        ("not_spoken", Refusal::not_spoken(), "Use one of the endpoints that the message names."),
        ("unknown_model", Refusal::unknown_model("small"), "Use a name from `GET /v1/models`."),
        ("not_served", Refusal::not_served("small", "chat", "embeddings"), "Use a model that serves the endpoint."),
        ("method", Refusal::method("POST"), "Use the method in `allow`."),
        ("head_too_slow", Refusal::head_too_slow(wait), "Send the head faster."),
        ("body_too_slow", Refusal::body_too_slow("body_timeout", wait), "Send the body faster."),
        ("too_large", Refusal::too_large(33_554_432), "Send a smaller request."),
        ("too_large_translated", Refusal::too_large_translated(402_653_184), "Send a smaller request."),
        ("expectation", Refusal::expectation(), "Send `expect: 100-continue`, or none."),
        ("upgrade_required", Refusal::upgrade_required(), "Send a POST."),
        ("limit", limit("requests=600/1m", LimitReason::Spent), "Wait for `retry-after`."),
        ("limit", limit("tokens=600/1m", LimitReason::Spent), "Wait for `retry-after`."),
        ("limit", limit("tokens=600/1m", LimitReason::Reserved), "Wait for `retry-after`: running requests end soon."),
        ("limit", limit("tokens=600/1m", share), "Send a smaller request, or a smaller `max_tokens`."),
        ("limit", limit("tokens=600/month", LimitReason::Spent), "Wait until the period renews."),
        (
            "limit",
            limit("tokens=600/month", LimitReason::Reserved),
            "Wait for `retry-after`: running requests end soon.",
        ),
        ("limit", limit("tokens=600/month", share), "Send a smaller request, or a smaller `max_tokens`."),
        ("limit", limit("running=600", LimitReason::Spent), "Wait until one of your requests ends."),
        ("limit", limit("budget=50/month", LimitReason::Spent), "Wait until the period renews."),
        (
            "limit",
            limit("budget=50/month", LimitReason::Reserved),
            "Wait for `retry-after`: running requests end soon.",
        ),
        ("limit", limit("budget=50/month", money), "Send a smaller request, or use a cheaper model."),
        ("Full", QueueRefusal::Full(64).refusal(1), "Wait for `retry-after`."),
        (
            "Share",
            QueueRefusal::Share(32).refusal(1),
            "Wait for `retry-after`, or send fewer requests at the same time.",
        ),
        ("Wait", QueueRefusal::Wait(wait).refusal(1), "Wait for `retry-after`."),
        ("Denied", UpstreamRefusal::Denied.into(), "Tell the operator: the credential or the model is wrong."),
        (
            "Failed",
            UpstreamRefusal::Failed(Some("the model's provider failed with status 500".to_owned()), None).into(),
            "Retry after `retry-after`, if present. The message has the provider's own status: 429 if it limits \
             the rate.",
        ),
        (
            "Failed",
            UpstreamRefusal::Failed(Some("the provider's answer was not valid".to_owned()), None).into(),
            "Retry later. The provider answered in another format, or without content.",
        ),
        (
            "Failed",
            UpstreamRefusal::Failed(Some("the model's provider did not complete its response".to_owned()), None).into(),
            "Retry. The response's finish reason means a failure.",
        ),
        (
            "Failed",
            UpstreamRefusal::Failed(None, None).into(),
            "The provider's response contained an error. Retry later. The message can be the provider's.",
        ),
        ("Unreachable", UpstreamRefusal::Unreachable.into(), "Retry later."),
        ("Broken", UpstreamRefusal::Broken.into(), "Retry."),
        ("TooLarge", UpstreamRefusal::TooLarge("max_response").into(), "Request a shorter response, or stream it."),
        ("internal", Refusal::internal(), "Report the request id: this is a bug in Tollgate."),
        ("draining", Refusal::draining(), "Retry on a new connection."),
        ("upgrading", Refusal::upgrading(), "Retry on a new connection."),
        ("no_connections", Refusal::no_connections(), "Retry later, with fewer connections."),
        ("no_descriptors", Refusal::no_descriptors(), "Retry later, with fewer requests at the same time."),
        ("no_buffers", Refusal::no_buffers(), "Retry later."),
        ("key_buffers", Refusal::key_buffers(), "Send fewer large requests at the same time."),
        ("key_answers", Refusal::key_answers(), "Read responses faster, or request fewer at the same time."),
        ("no_room", Refusal::no_room(wait), "Read responses faster."),
        ("no_slot", Refusal::no_slot(), "Retry later."),
        (
            "no_room_at_targets",
            Refusal::no_room_at_targets(20),
            "Retry after `retry-after`: the first limit renews then.",
        ),
        ("cooling_down", Refusal::cooling_down(20), "Retry after `retry-after`. The model has no other target."),
        ("key_slots", Refusal::key_slots(), "Send fewer forms at the same time."),
        ("store", Refusal::store(), "Retry later."),
        ("clock", Refusal::clock(), "Retry later. The operator must fix the clock."),
        (
            "Timeout",
            UpstreamRefusal::Timeout("request_timeout", wait).into(),
            "Retry, request a shorter response, or stream it.",
        ),
        ("Timeout", UpstreamRefusal::Timeout("first_byte_timeout", wait).into(), "Retry, or send a shorter prompt."),
        ("Timeout", UpstreamRefusal::Timeout("idle_timeout", wait).into(), "Retry."),
        ("Timeout", UpstreamRefusal::Timeout("connect_timeout", wait).into(), "Retry later."),
    ]
}

/// Errors that are never sent: the connection closes without a response.
const UNSENT: [&str; 1] = ["no_proxy_header"];

/// Returns a section for each status. Its first line has the type and the usual code, so a row names only another code.
fn table() -> String {
    let mut sections: BTreeMap<u16, Vec<(Refusal, &str)>> = BTreeMap::new();
    for (_, refusal, remedy) in errors() {
        sections.entry(refusal.status).or_default().push((refusal, remedy));
    }
    let mut out = String::new();
    for (status, rows) in sections {
        let kind = rows[0].0.kind.as_str();
        assert!(rows.iter().all(|(refusal, _)| refusal.kind.as_str() == kind), "{status} has errors of two types");
        let count = |word: &str| rows.iter().filter(|(refusal, _)| refusal.word() == word).count();
        let usual = rows.iter().rev().map(|(refusal, _)| refusal.word()).max_by_key(|word| count(word)).unwrap();
        let _ = writeln!(out, "\n## {status}\n\nType `{kind}`, code on `/v1/responses` `{usual}`.\n");
        let _ = writeln!(out, "| message | what to do |\n|---|---|");
        for (refusal, remedy) in &rows {
            let retry = if refusal.should_retry == Some(false) { " `x-should-retry: false`." } else { "" };
            let word = refusal.word();
            let code = if word == usual { String::new() } else { format!(" Code `{word}`.") };
            let message = refusal.message.replace('|', "\\|");
            let _ = writeln!(out, "| {message} | {remedy}{retry}{code} |");
        }
    }
    out
}

#[test]
fn errors_page_has_every_error_of_clients() {
    let (constructors, _) = SOURCE.split_once("/// A time in seconds, or in milliseconds").unwrap();
    let mut names: BTreeSet<&str> = constructors
        .split("pub fn ")
        .skip(1)
        .filter(|rest| rest.split('{').next().unwrap().contains("-> Refusal"))
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| !OTHERS.contains(name) && !UNSENT.contains(name))
        .collect();
    names.insert("from");
    for source in VARIANTS {
        let (_, variants) = source.split_once("pub enum ").unwrap();
        let (variants, _) = variants.split_once("\n}").unwrap();
        let lines = variants.lines().filter_map(|line| line.strip_prefix("    "));
        let variants = lines.filter(|line| line.starts_with(char::is_uppercase));
        names.extend(variants.filter_map(|line| line.split(['(', ',']).next()));
    }
    let listed: BTreeSet<&str> = errors().iter().map(|(name, _, _)| *name).collect();
    assert_eq!(names, listed);
    blessed(&root().join("src/docs/reference/errors.md"), &[("errors".to_owned(), table())]);
}
