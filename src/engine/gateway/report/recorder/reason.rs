//! Reason of a failed request in one phrase, derived from its log line: one rule for the admin API, the dashboard and
//! `tollgate requests`.

use crate::wire::json::Raw;
use std::borrow::Cow;

/// Returns the reason; `None` for a successful request.
pub(crate) fn reason(line: Raw<'_>) -> Option<String> {
    let [status, failed, us, attempts] = line.pick(["status", "failed", "us", "attempts"]);
    let status = status.and_then(Raw::count).unwrap_or_default();
    if status < 400 && failed.is_none() {
        return None;
    }
    let text = |value: Option<Raw<'_>>| value.and_then(|value| value.text().map(Cow::into_owned)).unwrap_or_default();
    let [limit, of_group, field, asked, path] = line.pick(["limit", "limit_group", "field", "asked", "path"]).map(text);
    // Words of clients and providers stay escaped, as in the log line.
    let [cause, code, param, error] = line.pick(["cause", "upstream_code", "upstream_param", "error"]).map(text);
    let attempt = |at: Raw<'_>| format!("{}: {}", text(at.get("target")), text(at.get("cause")));
    let attempts_failed: Vec<String> = failed.iter().flat_map(|list| list.items()).map(attempt).collect();
    let more =
        [code.as_str(), param.as_str()].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    Some(if status < 400 {
        let number = attempts.and_then(Raw::count).unwrap_or(2);
        format!("attempt {number} succeeded; {}", attempts_failed.join(", "))
    } else if !limit.is_empty() {
        let whose = if of_group.is_empty() { "the key".to_string() } else { format!("group {of_group}") };
        let why = cause.strip_prefix("limit: ").map_or(String::new(), |why| format!(", {why}"));
        format!("limit: {limit} of {whose}{why}")
    } else if !field.is_empty() {
        format!("field: {field}")
    } else if !asked.is_empty() {
        match &*cause {
            "scope: model" => format!("the key may not use model {asked}"),
            "budget: model without a price" => format!("model {asked} has no price"),
            "endpoint: not served by the model" => format!("model {asked} does not serve the endpoint"),
            "" => format!("no model {asked}"),
            other => format!("{other}: {asked}"),
        }
    } else if !path.is_empty() {
        if cause.is_empty() { format!("no path {path}") } else { format!("{cause}: {path}") }
    } else if status == 499 {
        let micros = us.and_then(|us| us.get("total")).and_then(Raw::count).unwrap_or_default();
        match micros {
            0..1_000_000 => format!("client left after {} ms", micros / 1000),
            _ => format!("client left after {}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
        }
    } else if !cause.is_empty() {
        if more.is_empty() { cause } else { format!("{cause}: {more}") }
    } else if !attempts_failed.is_empty() {
        attempts_failed.join(", ")
    } else if !more.is_empty() {
        more
    } else {
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_names_its_limit_field_name_or_cause() {
        let second = r#""failed":[{"target":"a/m","cause":"connect: refused","us":9}],"target":"b/m","attempts":2"#;
        for (members, expected) in [
            (r#""status":200"#, None),
            (&*format!(r#""status":200,{second}"#), Some("attempt 2 succeeded; a/m: connect: refused")),
            (r#""status":429,"error":"rate_limit_error","limit":"tokens""#, Some("limit: tokens of the key")),
            (r#""status":429,"limit":"budget","limit_group":"agents""#, Some("limit: budget of group agents")),
            (
                r#""status":429,"limit":"budget","cause":"limit: reserved by running requests""#,
                Some("limit: budget of the key, reserved by running requests"),
            ),
            (
                r#""status":405,"cause":"http: method not allowed","path":"/v1/models""#,
                Some("http: method not allowed: /v1/models"),
            ),
            (r#""status":400,"field":"temperature""#, Some("field: temperature")),
            (r#""status":404,"asked":"gpt-5-mini""#, Some("no model gpt-5-mini")),
            (r#""status":404,"asked":"a%22b%25c""#, Some("no model a%22b%25c")),
            (r#""status":400,"cause":"status 400","upstream_code":"a%22b""#, Some("status 400: a%22b")),
            (r#""status":403,"cause":"scope: model","asked":"two""#, Some("the key may not use model two")),
            (r#""status":403,"cause":"budget: model without a price","asked":"free""#, Some("model free has no price")),
            (
                r#""status":404,"cause":"endpoint: not served by the model","asked":"emb""#,
                Some("model emb does not serve the endpoint"),
            ),
            (
                r#""status":403,"cause":"budget: member without a price","asked":"m""#,
                Some("budget: member without a price: m"),
            ),
            (r#""status":404,"path":"/v1/chatt""#, Some("no path /v1/chatt")),
            (r#""status":499,"cause":"client left","us":{"total":12140000}"#, Some("client left after 12.1 s")),
            (r#""status":499,"us":{"total":54900}"#, Some("client left after 54 ms")),
            (r#""status":500,"cause":"status 503","upstream_code":"overloaded""#, Some("status 503: overloaded")),
            (r#""status":400,"cause":"status 400","upstream_code":"x","upstream_param":"n""#, Some("status 400: x n")),
            (r#""status":401,"error":"authentication_error""#, Some("authentication_error")),
        ] {
            let line = format!("{{{members}}}");
            assert_eq!(reason(Raw::new(line.as_bytes())).as_deref(), expected, "{line}");
        }
    }
}
