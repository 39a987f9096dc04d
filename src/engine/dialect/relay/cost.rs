//! Cost of a response in the last usage of its stream, for clients that asked for it; the `cost` of a provider is
//! removed from every usage.
//!
//! Owns the place of `cost` in the three API formats. Must never compute a cost: the gateway does. Called only for the
//! events that end a stream, and for usages with a `cost` of the provider.

use crate::dialect::dispatch::with_format;
use crate::dialect::keys::{K, each_value};
use crate::wire::json::{Raw, Token, object_with};
use crate::wire::sse::Splitter;
use crate::wire::{Shape, Span};

/// Writes `cost`, a JSON number, into the last usage among the events in `out` from `from` on; a `cost` of the provider
/// is removed. `None`: the model has no price.
pub fn write_cost(shape: Shape, from: usize, cost: Option<&[u8]>, out: &mut Vec<u8>) {
    let (mut splitter, mut at, mut last) = (Splitter::new(), from, None);
    while let Some(event) = splitter.next(&out[at..]) {
        let buf = &out[at..];
        let (name, data) = (event.name.of(buf), splitter.data(&event, buf));
        if let Some(usage) = usage_of(shape, data) {
            last = Some((Span::new(at, at + event.len), written(name, &with_cost(data, usage, cost))));
        }
        splitter.done(&event);
        at += event.len;
    }
    if let Some((span, event)) = last {
        out.splice(span.start as usize..span.end as usize, event);
    }
}

/// Members of a usage in which providers state the cost.
const COSTS: [&str; 3] = ["cost", "cost_details", "cost_in_usd_ticks"];

/// The final usage in an event's data.
fn usage_of(shape: Shape, data: &[u8]) -> Option<Raw<'_>> {
    let holder = with_format!(shape, F => F::usage_holder(Raw::new(data)))?;
    holder.get("usage").filter(|usage| usage.bytes().starts_with(b"{"))
}

/// An event.
fn written(name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 64);
    if !name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name);
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    let begin = out.len();
    out.extend_from_slice(data);
    // Data of several lines becomes one.
    for byte in out[begin..].iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    out.extend_from_slice(b"\n\n");
    out
}

/// Removes the provider's cost from every usage in the event in `out` from `from` on, if it has one.
pub(crate) fn remove_cost(is_there: bool, from: usize, out: &mut Vec<u8>) {
    if !is_there {
        return;
    }
    let mut splitter = Splitter::new();
    if let Some(event) = splitter.next(&out[from..]) {
        let buf = &out[from..];
        let clean = written(event.name.of(buf), &without_cost(splitter.data(&event, buf)));
        out.truncate(from);
        out.extend_from_slice(&clean);
    }
}

/// An answer, or the data of an event, without the provider's cost in any usage.
#[cold]
pub(crate) fn without_cost(json: &[u8]) -> Vec<u8> {
    let (mut out, mut from) = (Vec::with_capacity(json.len()), 0);
    // The JSON was checked before.
    each_value(json, &mut |buf, path, token, whole| {
        let is_usage = match path {
            [K::Usage] | [K::Choices, K::Item, K::Usage] => true,
            // `response`, `message`, or a server's own member, such as `x_groq`.
            [K::Response | K::Message | K::Other, K::Usage] => true,
            _ => false,
        };
        let usage = Raw::new(whole.of(buf));
        if is_usage && token == Token::ObjectClose && usage.pick(COSTS) != [None; 3] {
            out.extend_from_slice(&buf[from..whole.start as usize]);
            object_with(usage, &costs(None), &mut out);
            from = whole.end as usize;
        }
    });
    out.extend_from_slice(&json[from..]);
    out
}

/// `data` whose `usage` has this cost in place of the provider's.
fn with_cost(data: &[u8], usage: Raw<'_>, cost: Option<&[u8]>) -> Vec<u8> {
    let place = Span::of_part(data, usage.bytes());
    let mut out = data[..place.start as usize].to_vec();
    object_with(usage, &costs(cost), &mut out);
    out.extend_from_slice(&data[place.end as usize..]);
    out
}

/// The members of a usage with this cost in place of the provider's.
fn costs(cost: Option<&[u8]>) -> [(&'static str, &[u8]); 3] {
    COSTS.map(|name| (name, cost.filter(|_| name == "cost").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(shape: Shape, cost: Option<&str>, text: &str) -> String {
        let mut out = text.as_bytes().to_vec();
        write_cost(shape, 0, cost.map(str::as_bytes), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cost_goes_into_last_usage_only() {
        let text = "data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":2}}\n\n\
                    data: {\"usage\":null}\n\ndata: [DONE]\n\n";
        let want = text.replace("\"prompt_tokens\":2}", "\"prompt_tokens\":2,\"cost\":0.5}");
        assert_eq!(with(Shape::Chat, Some("0.5"), text), want);
    }

    #[test]
    fn cost_replaces_that_of_the_provider() {
        let text = "data: {\"usage\":{\"cost\":9,\"prompt_tokens\":2,\"co\\u0073t\":8,\"cost_details\":{}}}\n\n";
        assert_eq!(with(Shape::Chat, Some("1.0"), text), "data: {\"usage\":{\"prompt_tokens\":2,\"cost\":1.0}}\n\n");
        assert_eq!(with(Shape::Chat, None, text), "data: {\"usage\":{\"prompt_tokens\":2}}\n\n");
        let empty = "data: {\"usage\":{}}\n\n";
        assert_eq!(with(Shape::Chat, Some("1.0"), empty), "data: {\"usage\":{\"cost\":1.0}}\n\n");
    }

    #[test]
    fn cost_of_messages_goes_into_message_delta() {
        let start =
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":1}}}\n\n";
        let delta = "event: message_delta\r\ndata: {\"type\":\"message_delta\",\r\n\
                     data: \"usage\":{\"output_tokens\":1}}\r\n\r\n";
        let want = "event: message_delta\n\
                    data: {\"type\":\"message_delta\", \"usage\":{\"output_tokens\":1,\"cost\":2.5}}\n\n";
        assert_eq!(with(Shape::Messages, Some("2.5"), &format!("{start}{delta}")), format!("{start}{want}"));
    }

    #[test]
    fn cost_of_responses_goes_into_the_final_response() {
        let event = |kind, cost| {
            format!(
                "event: {kind}\ndata: {{\"type\":\"{kind}\",\
                 \"response\":{{\"usage\":{{\"input_tokens\":1{cost}}},\"id\":\"r\"}}}}\n\n"
            )
        };
        for (kind, cost) in [
            ("response.completed", ",\"cost\":0"),
            ("response.incomplete", ",\"cost\":0"),
            ("response.in_progress", ""),
        ] {
            assert_eq!(with(Shape::Responses, Some("0"), &event(kind, "")), event(kind, cost));
        }
    }
}
