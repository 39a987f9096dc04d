//! Translates a request of one format into a request of another: a reader and a writer per format around common types.
//!
//! Owns what a translation keeps, changes, drops and refuses. Must never change a number, the order of members inside
//! an argument, or a byte of text. Called by the gateway for a route whose upstream has another format. The body has
//! passed [`crate::dialect::RequestScan`] and is valid.

pub mod answer;
pub(super) mod bounds;
pub(super) mod facts;
pub(super) mod ids;
pub(super) mod media;
pub(super) mod names;
pub(super) mod openai;
pub(super) mod params;
pub(super) mod schema;
pub(super) mod source;
pub(super) mod stream;

pub use crate::dialect::responses::write_request::BOUND_MIN;
pub use bounds::most_text;
pub(super) use params::cut;
pub use source::{CacheKey, OwnedTarget, RequestTarget};

use crate::dialect::capabilities::{Cache, Capabilities};
use crate::dialect::dispatch::with_format;
use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::conversation::{AnswerSettings, Conversation};
use crate::dialect::neutral::naming::{TranslationState, hash};
use crate::dialect::request::refuse;
use crate::dialect::request::{Fields, Invalid, Name, RequestScan};
use crate::wire::Shape;
use crate::wire::json::{Raw, linear};
use facts::RequestFacts;
use source::SourceRequest;
use std::borrow::Cow;
use std::cell::Cell;

/// Key of the conversation for the prompt cache: the client's own, otherwise one derived from its session.
fn cache_key<'a>(source: &SourceRequest<'a>) -> Option<JsonText<'a>> {
    let own = source.get(Name::PromptCacheKey, "prompt_cache_key").and_then(Raw::string);
    match own.filter(|own| !own.is_empty()) {
        Some(own) => Some(Cow::Borrowed(own)),
        None => source.target.cache_key.map(|made| Cow::Owned(made.to_vec())),
    }
}

/// Leaves out settings that the vendor refuses beside another one.
fn leave_out(settings: &mut AnswerSettings<'_>, takes: &Capabilities) {
    for [first, second] in &takes.rules.never_together {
        match (first.as_str(), second.as_str()) {
            ("temperature", "top_p") if settings.temperature.is_some() => settings.top_p = None,
            ("top_p", "temperature") if settings.top_p.is_some() => settings.temperature = None,
            _ => {}
        }
    }
}

/// Notes the members that the target's format or model lacks in whole or in part.
fn note_dropped(source: &SourceRequest<'_>, conversation: &Conversation<'_>, state: &mut TranslationState) {
    let (settings, sampling) = (&conversation.settings, source.target.capabilities.sampling);
    let (targets_stop, stops_max) = source.targets.stops;
    let stops_max = if source.drops(targets_stop) { 0 } else { stops_max };
    let stops = settings.stops.iter().filter(|stop| !stop.is_empty()).count();
    let takes_verbosity = with_format!(source.target.shape, F => F::takes_verbosity(source.target.capabilities));
    let keeps_verbosity = takes_verbosity && !source.drops(source.targets.verbosity);
    // A reader leaves out a value beyond the range of the other formats.
    let lost = |name, text, read: Option<Raw<'_>>| source.get(name, text).is_some() && (read.is_none() || !sampling);
    let names = [
        (source.own.stops.0, stops > stops_max),
        ("temperature", lost(Name::Temperature, "temperature", settings.temperature)),
        ("top_p", lost(Name::TopP, "top_p", settings.top_p)),
        ("tools (hosted)", conversation.tools.hosted),
        (source.own.verbosity, settings.verbosity.is_some() && !keeps_verbosity),
        (
            "prompt_cache_key",
            source.targets.marks_prefixes && source.get(Name::PromptCacheKey, "prompt_cache_key").is_some(),
        ),
    ];
    state.dropped.extend(names.into_iter().filter(|(_, lost)| *lost).map(|(name, _)| name));
}

/// Properties of the requests of a format.
fn facts(shape: Shape) -> &'static RequestFacts {
    with_format!(shape, F => &F::REQUESTS)
}

/// Bytes that a translation builds in addition to the text of the new request. [`Invalid`]: there are too many items.
pub fn structure(from: Shape, fields: &Fields) -> Result<usize, Invalid> {
    bounds::structure(facts(from), fields)
}

/// Writes a request of format `from`, scanned by `scan`, in the target's format. The [`TranslationState`] is needed to
/// translate the answer. [`Invalid`] if a specified field cannot be expressed there; the content of `out` is then
/// meaningless.
pub fn request(
    from: Shape,
    body: &[u8],
    scan: &RequestScan,
    target: &RequestTarget<'_>,
    out: &mut Vec<u8>,
) -> Result<TranslationState, Invalid> {
    let _linear = linear(body.len());
    let fields = scan.fields();
    fields.may_name_stored(target.capabilities)?;
    let present = fields.members.iter().fold(0, |bits, member| bits | source::bit(member.name));
    let texts = scan.tokens();
    let (own, targets) = (facts(from), facts(target.shape));
    let source = SourceRequest { body, fields, texts, present, from, own, targets, target, marks: Cell::new(0) };
    let mut state = TranslationState { mark: target.capabilities.mark, ..TranslationState::default() };
    let mut conversation = with_format!(from, F => F::read_request(&source, &mut state))?;
    if target.capabilities.cache == Cache::Key {
        conversation.settings.cache_key = cache_key(&source);
    }
    leave_out(&mut conversation.settings, target.capabilities);
    note_dropped(&source, &conversation, &mut state);
    names::distinct(&mut conversation.tools.list)?;
    names::fit(&mut conversation, targets.tool_name_max, &mut state);
    if own.distinct_ids {
        state.ids = conversation.call_ids().map(hash).collect();
    }
    with_format!(target.shape, F => F::write_request(&source, conversation, &mut state, out))?;
    if !target.capabilities.params.is_empty() {
        // Prevents the storage from doubling for a few more bytes.
        out.reserve_exact(target.capabilities.params_room());
        params::write(&target.capabilities.params, out);
    }
    if state.is_full() {
        return refuse(
            "tools",
            "fewer tools that this model knows by another name: custom, in a namespace, long, or with other characters \
             than letters, digits, _ and -",
        );
    }
    Ok(state)
}
