//! The answer of a provider of the responses format that streams although a complete one was requested: the response in
//! the last event.

use crate::wire::json::{self, Raw, ValueKind, item, key, member_inside};
use crate::wire::sse::Splitter;
use std::collections::BTreeMap;

/// Events that end a stream with a response.
const ENDS: [&str; 4] = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

/// Events that end the arguments of a call, each with its member that has all of them.
const REPEATS: [(&str, &str); 2] =
    [("response.function_call_arguments.done", "arguments"), ("response.custom_tool_call_input.done", "input")];

/// Arguments of such events, by [`late_key`].
type Late = BTreeMap<Vec<u8>, Vec<u8>>;

/// The member `name` of the item with an id.
fn late_key(name: &str, id: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b" ", id].concat()
}

/// The response in the last event of the stream `body`, with any items that only separate events contained. `None` if
/// no event ends with a response.
pub(crate) fn streamed_response(body: &[u8]) -> Option<Vec<u8>> {
    let (mut splitter, mut rest) = (Splitter::new(), body);
    let (mut items, mut late) = (b"[".to_vec(), Late::new());
    while !rest.is_empty() {
        let event = splitter.next(rest).or_else(|| splitter.last(rest))?;
        let data = splitter.data(&event, rest);
        if json::check(data).is_ok() {
            let data = Raw::new(data);
            let is = |kind: &str| data.get("type").is_some_and(|own| own.is(kind));
            if is("response.output_item.done") {
                let done = data.get("item").unwrap_or(Raw::EMPTY);
                item(&mut items);
                items.extend_from_slice(done.bytes());
            } else if let Some((_, name)) = REPEATS.into_iter().find(|(kind, _)| is(kind)) {
                let text = |name| data.get(name).and_then(Raw::string).unwrap_or_default();
                if !text(name).is_empty() {
                    late.entry(late_key(name, text("item_id"))).or_insert_with(|| text(name).to_vec());
                }
            } else if ENDS.into_iter().any(is) {
                let response = data.get("response").filter(|response| response.kind() == ValueKind::Object);
                items.push(b']');
                return response.map(|response| with(response, &items, &late, is("response.incomplete")));
            } else if is("error") {
                return Some(data.bytes().to_vec());
            }
        }
        splitter.done(&event);
        rest = rest.get(event.len..)?;
    }
    None
}

/// Adds to `response`: the items, if it has none of its own; arguments that its items lack; and the status
/// `incomplete`, if only the event says so. Of two members with one name the last one counts.
fn with(response: Raw<'_>, items: &[u8], late: &Late, incomplete: bool) -> Vec<u8> {
    let mut out = response.bytes().to_vec();
    let own = response.get("output").filter(|output| output.items().next().is_some());
    let output = own.unwrap_or(Raw::new(items));
    let is_whole = own.is_some() && output.items().all(|call| arguments_of(call, late).is_none());
    if !is_whole && out.pop() == Some(b'}') {
        key(&mut out, "output");
        out.push(b'[');
        for call in output.items() {
            item(&mut out);
            out.extend_from_slice(call.bytes());
            if let Some((name, text)) = arguments_of(call, late).filter(|_| out.pop() == Some(b'}')) {
                member_inside(&mut out, name, text);
                out.push(b'}');
            }
        }
        out.extend_from_slice(b"]}");
    }
    let says_so = !incomplete || response.get("status").is_some_and(|status| !status.is("completed"));
    if !says_so && out.pop() == Some(b'}') {
        out.extend_from_slice(b",\"status\":\"incomplete\"}");
    }
    out
}

/// The arguments from an event, if the call lacks them.
fn arguments_of<'l>(call: Raw<'_>, late: &'l Late) -> Option<(&'static str, &'l [u8])> {
    let id = call.get("id").and_then(Raw::string)?;
    let lacks = |name| call.get(name).and_then(Raw::string).is_some_and(<[u8]>::is_empty);
    let names = REPEATS.into_iter().map(|(_, name)| name).filter(|name| lacks(name));
    names.into_iter().find_map(|name| Some((name, &**late.get(&late_key(name, id))?)))
}
