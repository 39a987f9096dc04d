//! Finds parts of an unchanged request that a provider may bill in addition to the scanned prompt and answer, and parts
//! with a price of their own.
//!
//! Owns the names. Must never change a body. Called at admission, and only for requests with such members or models
//! whose configuration changes requests.

use super::super::capabilities::Capabilities;
use super::super::dispatch::with_format;
use super::super::passthrough::PassthroughFormat;
use super::super::request::{Class, Fields, Member, Name, answers_of, lenient_bound_of};
use super::super::responses::hosted_tools;
use super::super::translate::RequestTarget;
use super::{Fate, Layout, bound};
use crate::wire::ModelEndpoint;
use crate::wire::json::{Raw, eq_unescaped, unescape};
use std::borrow::Cow;

/// Service tiers that cost no more than the price per token.
const USUAL_TIERS: [&str; 7] = ["auto", "default", "standard", "standard_only", "on_demand", "flex", "batch"];

/// Data sent to a target in addition to the scanned parts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// Bytes of the client's unknown members.
    pub unknown: u64,
    /// Bytes of members that the configuration writes.
    pub added: u64,
    /// The smallest bound on completion tokens that is sent, or the largest number among the unknown members: it may be
    /// another name of the bound.
    pub bound: u64,
    /// Number of answers that the unknown members request; 0 or 1: one.
    pub answers: u64,
    /// The client's bound is not sent.
    pub is_unbounded: bool,
    /// Bytes of a predicted answer: wrong parts of it are billed as completion tokens.
    pub predicted: u64,
}

impl Beside {
    /// The larger value of each field.
    pub fn max(self, other: Beside) -> Beside {
        Beside {
            unknown: self.unknown.max(other.unknown),
            added: self.added.max(other.added),
            bound: self.bound.max(other.bound),
            answers: self.answers.max(other.answers),
            is_unbounded: self.is_unbounded | other.is_unbounded,
            predicted: self.predicted.max(other.predicted),
        }
    }
}

/// A member with a price of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Surcharge<'a> {
    /// Path of the member.
    pub path: Cow<'static, str>,
    /// Value of the member, if it is a word.
    pub word: Option<Cow<'a, str>>,
}

/// Data sent to `with` in addition to the scanned parts of the request.
pub fn beside(endpoint: ModelEndpoint, body: &[u8], fields: &Fields, target: &RequestTarget<'_>) -> Beside {
    let (takes, translated) = (target.capabilities, target.shape != endpoint.shape);
    let added = takes.params.iter().map(|param| (param.name.len() + param.json.len()) as u64).sum();
    if translated {
        // A smaller bound is raised to the least one.
        let (name, bound, is_required) = with_format!(target.shape, F => {
            (F::bound(takes), F::BOUND_MIN, F::REQUIRES_BOUND)
        });
        return Beside { added, bound, is_unbounded: takes.drops(name) && !is_required, ..Beside::default() };
    }
    let is_unbounded = takes.drops(bound(endpoint, takes));
    let mut found = Beside { added, is_unbounded, ..Beside::default() };
    let layout = Layout { endpoint, body, fields, target, asks_usage: false };
    for member in &fields.members {
        let predicts = fields.predicts && member.name == Name::Prediction;
        if !(predicts || is_unknown(endpoint, body, member)) {
            continue;
        }
        if layout.fate_beside(member) == Fate::Drop {
            continue;
        }
        let value = member.value.of(body);
        if predicts {
            found.predicted = value.len() as u64;
            continue;
        }
        found.unknown += (member.key.len() + value.len()) as u64;
        match member.name {
            Name::N | Name::BestOf => found.answers = found.answers.max(answers_of(value)),
            _ => found.bound = found.bound.max(lenient_bound_of(member.key.of(body), Raw::new(value)).unwrap_or(0)),
        }
    }
    found
}

/// True if a member is outside the tables, so that the configuration decides whether it is passed on.
fn is_unknown(endpoint: ModelEndpoint, body: &[u8], member: &Member) -> bool {
    let documents =
        |key| endpoint.as_passthrough().is_some_and(|passthrough| PassthroughFormat::of(passthrough).documents(key));
    member.name.class(endpoint) == Class::Unknown && !documents(member.key.of(body))
}

/// The first member sent to `with` that has a price of its own. `adds`: only one that makes the provider bill more than
/// the tokens of prompt and answer, or that may name a document for it to fetch.
pub fn surcharge<'a>(
    endpoint: ModelEndpoint,
    body: &'a [u8],
    fields: &Fields,
    target: &RequestTarget<'_>,
    adds: bool,
) -> Option<Surcharge<'a>> {
    if target.shape != endpoint.shape {
        return None;
    }
    let layout = Layout { endpoint, body, fields, target, asks_usage: false };
    let goes = |member: &&Member| layout.fate_beside(member) != Fate::Drop;
    let format = endpoint.as_passthrough().map(PassthroughFormat::of);
    // A documented member of a pass-through request has no price of its own, whatever it means elsewhere.
    let has_price = |member: &&Member| !format.is_some_and(|format| format.documents(member.key.of(body)));
    let mut members = fields.members.iter().filter(goes).filter(has_price);
    members.find_map(|member| {
        let value = Raw::new(member.value.of(body));
        let key = member.key.of(body);
        let name = match member.name {
            Name::Other => Name::priced(key).unwrap_or(Name::Other),
            name => name,
        };
        let costs = match name {
            _ if value.is_null() => false,
            Name::ServiceTier | Name::Speed | Name::InferenceGeo if adds => false,
            Name::Tools => return hosted(endpoint, value, target.capabilities),
            Name::Input if fields.adds_tools => {
                return hosted_in_items(value, target.capabilities);
            }
            Name::ServiceTier => !USUAL_TIERS.iter().any(|tier| value.is(tier)),
            Name::Speed => !value.is("standard"),
            Name::InferenceGeo => !value.is("global"),
            Name::WebSearchOptions => value.bool() != Some(false),
            Name::Modalities => !is_text_alone(value),
            Name::Audio => true,
            // An unknown member may name a document to fetch.
            _ => adds && is_unknown(endpoint, body, member) && has_address(value),
        };
        let path = || Raw::text_of(key).into_owned().into();
        costs.then(|| Surcharge { path: path(), word: value.text() })
    })
}

/// True if a text in it contains the address of something that a provider may fetch. Readers of addresses do without
/// the second slash of `https://`, and without the scheme.
fn has_address(value: Raw<'_>) -> bool {
    let mut text = Vec::new();
    unescape(value.bytes(), &mut text);
    text.make_ascii_lowercase();
    text.windows(2).any(|at| at == b"//") || text.windows(6).any(|at| at.ends_with(b"http:") || at == b"https:")
}

/// True if the answer is requested as text only.
fn is_text_alone(kinds: Raw<'_>) -> bool {
    let mut items = kinds.items().peekable();
    items.peek().is_some() && items.all(|kind| kind.is("text"))
}

/// The first tool that runs at the provider.
fn hosted<'a>(endpoint: ModelEndpoint, list: Raw<'a>, takes: &Capabilities) -> Option<Surcharge<'a>> {
    let mut tools = list.items().enumerate();
    tools.find_map(|(at, tool)| {
        let kind = match endpoint.is_passthrough() {
            true => hosted_tools::hosted(tool, takes),
            false => with_format!(endpoint.shape, F => F::hosted(tool, takes)),
        };
        kind.map(|kind| Surcharge { path: format!("tools[{at}]").into(), word: kind.text() })
    })
}

/// Finds a billed tool in items of the conversation.
fn hosted_in_items<'a>(items: Raw<'a>, takes: &Capabilities) -> Option<Surcharge<'a>> {
    items.items().enumerate().find_map(|(at, item)| {
        let lists = item.members().filter(|(key, _)| eq_unescaped(key, "tools"));
        let kind = lists.flat_map(|(_, list)| list.items()).find_map(|tool| hosted_tools::hosted(tool, takes))?;
        Some(Surcharge { path: format!("input[{at}].tools").into(), word: kind.text() })
    })
}
