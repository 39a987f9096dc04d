//! Reasoning in the form in which a chat provider requires it back: `reasoning_details`, or its text.
//!
//! Owns the joining of pieces. Must never change the members of a piece that is alone.

use crate::wire::json::{Raw, ValueKind, key, members, write_inside};

/// The members of a message's `reasoning_details`, each with its text if it has one.
pub(super) fn details_of<'a>(details: Raw<'a>) -> impl Iterator<Item = (Raw<'a>, Option<&'a [u8]>)> {
    details.items().filter(|detail| detail.kind() == ValueKind::Object).map(|detail| {
        let [text, summary] = detail.pick(["text", "summary"]);
        (detail, text.or(summary).and_then(Raw::string).filter(|text| !text.is_empty()))
    })
}

/// `reasoning_details` of a stream: consecutive pieces of one text become one item with the signature, as OpenRouter's
/// clients return them.
pub(super) fn joined(details: &[u8]) -> Vec<u8> {
    if details.is_empty() {
        return Vec::new();
    }
    let list = [b"[", details, b"]"].concat();
    let items: Vec<Raw<'_>> = Raw::new(&list).items().collect();
    let goes_on = |one: &Raw<'_>, next: &Raw<'_>| {
        let [one, next] = [one, next].map(|item| item.pick(["type", "index", "id"]));
        let is_same = one.iter().zip(next).all(|(one, next)| one.map(Raw::bytes) == next.map(Raw::bytes));
        is_same && one[0].is_some_and(|kind| kind.is("reasoning.text"))
    };
    let mut out = Vec::with_capacity(details.len());
    for pieces in items.chunk_by(goes_on) {
        if out.last().is_some() {
            out.push(b',');
        }
        match pieces {
            [one] => out.extend_from_slice(one.bytes()),
            pieces => write_joined_text(pieces, &mut out),
        }
    }
    out
}

/// Writes the pieces of one text as one item.
fn write_joined_text(pieces: &[Raw<'_>], out: &mut Vec<u8>) {
    const JOINED: [&str; 3] = ["text", "signature", "format"];
    out.push(b'{');
    pieces.iter().take(1).for_each(|first| members(*first, &JOINED, out));
    key(out, JOINED[0]);
    out.push(b'"');
    for piece in pieces {
        out.extend_from_slice(piece.get(JOINED[0]).and_then(Raw::string).unwrap_or_default());
    }
    out.push(b'"');
    for name in &JOINED[1..] {
        let mut values = pieces.iter().filter_map(|piece| piece.get(name));
        if let Some(value) = values.find(|value| value.string().is_some_and(|text| !text.is_empty())) {
            key(out, name);
            out.extend_from_slice(value.bytes());
        }
    }
    out.push(b'}');
}

/// Block of reasoning in the form that a chat provider requires: `details`, separated by commas, if there are any;
/// otherwise the text.
pub(super) fn thought_block(text: &[u8], details: &[u8]) -> Option<Vec<u8>> {
    let mut block = b"{".to_vec();
    if !details.is_empty() {
        block.extend_from_slice(b"\"reasoning_details\":[");
        block.extend_from_slice(details);
        block.push(b']');
    } else if !text.is_empty() {
        block.extend_from_slice(b"\"reasoning_content\":");
        write_inside(&mut block, text);
    }
    block.push(b'}');
    (block.len() > 2).then_some(block)
}
