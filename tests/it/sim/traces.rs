//! Compares spans with usage records: each request must have exactly one span of its own, however it ends.

use serde_json::Value;
use std::collections::BTreeMap;
use tollgate::policy::row::Row;

/// The spans so far.
#[derive(Default)]
pub struct Traces {
    /// By request id: the trace as in the usage record, the charged output tokens, and their cost in nano-dollars.
    requests: BTreeMap<String, (String, Option<String>, Option<u64>)>,
    /// Number of attempts in spans.
    pub attempts: u64,
}

fn text<'a>(span: &'a Value, name: &str) -> &'a str {
    span[name].as_str().unwrap_or_default()
}

/// Returns the value of an attribute, without its type.
fn value<'a>(span: &'a Value, name: &str) -> Option<&'a Value> {
    let all = span["attributes"].as_array()?;
    let found = all.iter().find(|one| one["key"] == name)?;
    found["value"].as_object()?.values().next()
}

fn attribute<'a>(span: &'a Value, name: &str) -> Option<&'a str> {
    value(span, name)?.as_str()
}

impl Traces {
    /// Parses spans: for each request first its own, then those of its attempts.
    pub fn take(&mut self, spans: &[u8]) -> Result<(), String> {
        let mut own = String::new();
        for line in spans.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let span: Value = serde_json::from_slice(line).map_err(|error| format!("{error} in a span"))?;
            let number = |name: &str| text(&span, name).parse::<u64>().unwrap_or(0);
            if number("startTimeUnixNano") == 0 || number("startTimeUnixNano") > number("endTimeUnixNano") {
                return Err(format!("a span with invalid times: {span}"));
            }
            let name = format!("{}-{}", text(&span, "traceId"), text(&span, "spanId"));
            if span["kind"] == 3 {
                self.attempts += 1;
                match format!("{}-{}", text(&span, "traceId"), text(&span, "parentSpanId")) == own {
                    true => continue,
                    false => return Err(format!("an attempt without its request: {span}")),
                }
            }
            own.clone_from(&name);
            let id = attribute(&span, "tollgate.request.id").ok_or("a span without its request")?.to_string();
            let out = attribute(&span, "gen_ai.usage.output_tokens").map(str::to_string);
            let cost = value(&span, "gen_ai.usage.cost").and_then(Value::as_f64);
            if self.requests.insert(id, (name, out, cost.map(|cost| (cost * 1e9).round() as u64))).is_some() {
                return Err(format!("a request has two spans: {span}"));
            }
        }
        Ok(())
    }

    /// Checks that each usage record agrees with the span of its request. `id` returns the request id of a record.
    pub fn agree(&self, rows: &[Row], id: impl Fn(&Row) -> String) -> Result<(), String> {
        for row in rows {
            let Some((name, out, cost)) = self.requests.get(&id(row)) else { continue };
            let same = row.names.trace.as_deref() == Some(name) && out.as_deref() == Some(&row.usage.out.to_string());
            if !same || cost.unwrap_or(0) != row.cost_nano {
                return Err(format!("{name} with {out:?} tokens at {cost:?} differs from {row:?}"));
            }
        }
        let charged = self.requests.values().filter(|(_, out, _)| out.is_some()).count();
        if charged > rows.len() { Err(format!("{charged} spans for {} rows", rows.len())) } else { Ok(()) }
    }
}
