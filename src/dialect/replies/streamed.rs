//! The response of a provider that streams although a whole answer was asked for: what its last event says (`responses`
//! 4, row 44).

use crate::wire::json::{self, Kind, Raw, item, key};
use crate::wire::sse::Splitter;

/// Events that end a stream with a response.
const ENDS: [&str; 4] = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

/// The response that the stream `body` ends in, with its items where only their own events told them. `None` if it
/// ends in none.
pub(in crate::dialect) fn response(body: &[u8]) -> Option<Vec<u8>> {
    let (mut splitter, mut rest) = (Splitter::new(), body);
    let mut items = b"[".to_vec();
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
            } else if ENDS.into_iter().any(is) {
                let response = data.get("response").filter(|response| response.kind() == Kind::Object);
                return response.map(|response| with(response, &items, is("response.incomplete")));
            } else if is("error") {
                return Some(data.bytes().to_vec());
            }
        }
        splitter.done(&event);
        rest = rest.get(event.len..)?;
    }
    None
}

/// `response` with these items, where it has none of its own, and as incomplete where the event says so and its status
/// does not. Of two members of one name the last one holds.
fn with(response: Raw<'_>, items: &[u8], incomplete: bool) -> Vec<u8> {
    let mut out = response.bytes().to_vec();
    let own = response.get("output").is_some_and(|output| output.items().next().is_some());
    if !own && out.pop() == Some(b'}') {
        key(&mut out, "output");
        out.extend_from_slice(items);
        out.extend_from_slice(b"]}");
    }
    let says_so = !incomplete || response.get("status").is_some_and(|status| !status.is("completed"));
    if !says_so && out.pop() == Some(b'}') {
        out.extend_from_slice(b",\"status\":\"incomplete\"}");
    }
    out
}
