//! Tests of the translation as a whole: the examples, a fixture for each known bug of other gateways, and properties.

mod account;
mod alike;
mod answers;
mod endings;
mod examples;
mod history;
mod hostile;
mod known;
mod linear;
mod oddities;
mod overflow;
mod pairs;
mod property;
mod reports;
mod responses;
mod rows;
mod schema;
mod signatures;
mod spelling;
mod templates;

use super::*;
use crate::base::buf::Pool;
use crate::dialect::neutral::carrier;
use crate::wire::{ModelEndpoint, Shape};
use serde_json::Value;
use std::path::PathBuf;

pub(super) const ME_ID: &str = "req_5f1c9a7e3b2d4c60";
pub(super) const ME: ResponseIdentity<'static> = ResponseIdentity {
    id: ME_ID.as_bytes(),
    model: "team-fast",
    created: 1795158000,
    prompt: PromptTokens::Counted(7),
    hides: &[],
};

pub(super) fn fixture(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn fixtures(ending: &str) -> Vec<(String, Vec<u8>)> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(ending)).collect();
    names.sort();
    assert!(!names.is_empty(), "no fixture ends in {ending}");
    names.into_iter().map(|name| (name.clone(), fixture(&name))).collect()
}

pub(super) fn folder() -> PathBuf {
    PathBuf::from(crate::ROOT).join("tests/fixtures/cross")
}

/// The other one of the two older formats.
pub(super) fn other(shape: Shape) -> Shape {
    if shape == Shape::Chat { Shape::Messages } else { Shape::Chat }
}

/// Translates a request between the two older formats, as the gateway does.
pub(super) fn request(
    from: Shape,
    body: &str,
    model: &str,
    capabilities: &Capabilities,
) -> Result<(Value, TranslationState), String> {
    request_for((from, other(from)), body, model, capabilities)
}

/// Translates a request as the gateway does.
pub(super) fn request_for(
    (from, shape): (Shape, Shape),
    body: &str,
    model: &str,
    capabilities: &Capabilities,
) -> Result<(Value, TranslationState), String> {
    let mut scan = RequestScan::new();
    scan.reset(ModelEndpoint::generate(from));
    scan.finish(body.as_bytes()).unwrap_or_else(|invalid| panic!("refused by the scan: {}: {body}", invalid.0));
    let mut out = Vec::new();
    let target = RequestTarget { model, shape, capabilities, cache_key: None };
    let state = translate(from, body.as_bytes(), &scan, &target, &mut out).map_err(|invalid| invalid.0)?;
    crate::wire::json::check(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)));
    Ok((serde_json::from_slice(&out).unwrap(), state))
}

/// Result of a stream.
#[derive(PartialEq, Debug, Clone)]
pub(super) struct Outcome {
    pub(super) out: String,
    pub(super) observed: ObservedUsage,
    pub(super) result: Result<(), StreamFault>,
}

/// Translates a stream between the two older formats.
pub(super) fn stream(
    from: Shape,
    state: &TranslationState,
    show_usage: bool,
    identity: &ResponseIdentity<'_>,
    chunks: &[&[u8]],
) -> Outcome {
    stream_for((from, other(from)), state, show_usage, identity, chunks)
}

pub(super) fn stream_for(
    way: (Shape, Shape),
    state: &TranslationState,
    show_usage: bool,
    identity: &ResponseIdentity<'_>,
    chunks: &[&[u8]],
) -> Outcome {
    let mut stream = SseStream::translated(way, state.clone(), show_usage, (1 << 20, 1 << 26));
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let mut result = Ok(());
    for chunk in chunks {
        let alike = stream.feed_alike(chunk, &mut pool, &mut out);
        let fed = stream.feed(&chunk[alike..], &mut pool, identity, &mut out);
        if let Err(fault) = fed {
            result = Err(fault);
            break;
        }
    }
    if result.is_ok() {
        result = end(way.0, &mut stream, &mut pool, identity, &mut out);
    }
    stream.release(&mut pool);
    assert_eq!(pool.lent(), 0);
    Outcome { out: String::from_utf8(out).unwrap(), observed: stream.observed(), result }
}

/// Ends the body of a stream.
pub(super) fn end(
    from: Shape,
    stream: &mut SseStream,
    pool: &mut Pool,
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<(), StreamFault> {
    let Some(mut body) = stream.take_document() else { return stream.end(pool, identity, out) };
    let read = stream.whole(ModelEndpoint::generate(from), body.bytes(), pool, identity, out);
    body.release(pool);
    match read {
        Ok(fed) => fed.map(drop),
        Err(Rejected { why: Broken::Error(text), .. }) => Err(StreamFault::Error(text)),
        Err(_) => Err(StreamFault::Malformed),
    }
}

/// Feeds a complete response instead of a stream. The bound on an event must not apply to it.
pub(super) fn unstreamed(way: (Shape, Shape), state: &TranslationState, body: &str) -> Result<Outcome, Rejected> {
    let mut stream = match way {
        (from, to) if from == to => SseStream::same(ModelEndpoint::generate(from), true, 10),
        _ => SseStream::translated(way, state.clone(), true, (10, 1 << 26)),
    };
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let fed = stream.whole(ModelEndpoint::generate(way.0), body.as_bytes(), &mut pool, &ME, &mut out)?;
    stream.release(&mut pool);
    assert_eq!(pool.lent(), 0);
    assert_ne!(fed.as_ref().map(|fed| fed.finished), Ok(false));
    Ok(Outcome { out: String::from_utf8(out).unwrap(), observed: stream.observed(), result: fed.map(drop) })
}

/// A text in pieces, in enough ways that every position between two bytes is cut once. A short text is cut in two at
/// each position. A long one is cut at many positions at once, this far apart: that tests more after each cut and costs
/// a tenth. The longer distance leaves whole events between two cuts. The last way is pieces of one byte.
pub(super) fn cut_everywhere(text: &[u8]) -> Vec<Vec<&[u8]>> {
    const ONE_BY_ONE: usize = 400;
    let distances: &[usize] = if text.len() <= ONE_BY_ONE { &[ONE_BY_ONE + 1] } else { &[61, 389] };
    let mut ways = Vec::new();
    for &distance in distances {
        for first in 0..distance.min(text.len() + 1) {
            let (head, rest) = text.split_at(first);
            ways.push(std::iter::once(head).chain(rest.chunks(distance)).collect());
        }
    }
    ways.push(text.chunks(1).collect());
    ways
}

/// Feeds it whole, cut everywhere, and byte by byte; all results must be equal.
pub(super) fn stream_every_way(
    from: Shape,
    state: &TranslationState,
    show_usage: bool,
    identity: &ResponseIdentity<'_>,
    text: &str,
) -> Outcome {
    stream_for_every_way((from, other(from)), state, show_usage, identity, text)
}

pub(super) fn stream_for_every_way(
    way: (Shape, Shape),
    state: &TranslationState,
    show_usage: bool,
    identity: &ResponseIdentity<'_>,
    text: &str,
) -> Outcome {
    let text = text.as_bytes();
    let whole = stream_for(way, state, show_usage, identity, &[text]);
    if way.1 == Shape::Messages && whole.result.is_ok() {
        schema::events(&whole.out);
    }
    for pieces in cut_everywhere(text) {
        let cut = stream_for(way, state, show_usage, identity, &pieces);
        assert_eq!(cut, whole, "after {} bytes, then every {}", pieces[0].len(), pieces.get(1).map_or(0, |p| p.len()));
    }
    whole
}
