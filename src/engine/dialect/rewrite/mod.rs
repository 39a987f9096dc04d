//! A request body for an upstream of the same format, as a list of pieces: the body is never copied.
//!
//! Owns what is omitted, replaced and added. Must never touch any other byte. Called by the gateway when it writes a
//! request upstream, once per attempt.

mod billed;

pub use billed::{Beside, Surcharge, beside, surcharge};

use super::capabilities::{Capabilities, Param, UnknownMembers};
use super::dispatch::with_format;
use super::format::Format as _;
use super::passthrough::PassthroughFormat;
use super::request::{Class, Fields, Invalid, Member, Name, bound_of};
use super::translate::RequestTarget;
use crate::base::text::push_number;
use crate::dialect::chat::{Chat, custom_tools, signature};
use crate::wire::json::{Raw, eq_unescaped, item, linear, members, write_string};
use crate::wire::{ModelEndpoint, Passthrough, Span};
use std::borrow::Cow;

/// A piece of the body to send.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RewritePiece {
    /// Part of the client's body.
    Body(Span),
    /// Part of the text written here.
    Text(Span),
}

/// Treatment of a member.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Fate {
    Keep,
    Drop,
    Model,
    One,
    AskUsage,
    /// The bound on completion tokens, under its other name.
    Bound,
    /// The `include` list, with the reasoning added.
    Include,
    /// The tools, each with its members where OpenAI documents them.
    Tools,
    /// The choice of a tool, with its members where OpenAI documents them.
    ToolChoice,
}

/// Value of `include` that makes a responses upstream return its reasoning.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// Numbers of members and cuts up to which a request counts as ordinary.
const ORDINARY: usize = 64;
/// Maximum pieces per member: a comma, the bytes before its value, and the value.
const PIECES_EACH: usize = 3;
/// Pieces for each cut: the bytes before it and its replacement.
const PIECES_CUT: usize = 2;

impl Fields {
    /// Bytes of storage for the tables of members and cuts and for the resulting pieces; 0 for an ordinary request.
    pub fn storage(&self) -> usize {
        let (members, cuts) = (self.members.capacity(), self.cuts.capacity());
        if members <= ORDINARY && cuts <= ORDINARY {
            return 0;
        }
        // Growing vectors have up to twice the capacity they need.
        let pieces = 2 * (PIECES_EACH * members + PIECES_CUT * cuts);
        let each_cut = size_of::<Span>() + 2 * Chat::CUT_INSTEAD.len();
        members * size_of::<Member>() + cuts * each_cut + pieces * size_of::<RewritePiece>()
    }
}

/// A request, and the target that it is laid out for.
#[derive(Copy, Clone)]
struct Layout<'a> {
    endpoint: ModelEndpoint,
    body: &'a [u8],
    fields: &'a Fields,
    target: &'a RequestTarget<'a>,
    /// Usage is to be requested.
    asks_usage: bool,
}

struct Writer<'a> {
    body: &'a [u8],
    /// Spans that are omitted from the body, in order. An empty one marks a missing thought signature, `null` or an
    /// object one without a value.
    cuts: &'a [Span],
    /// Replacement for each cut.
    instead: &'static str,
    text: &'a mut Vec<u8>,
    pieces: &'a mut Vec<RewritePiece>,
    total: u64,
}

/// Lays out `body` for an upstream of the same format:
/// - omits members outside the tables, on the deny list or in `drop_params`, and reasoning without a signature;
/// - replaces or adds `model`, and sets `n` to 1;
/// - requests `stream_options.include_usage` if the target reports it;
/// - sends the bound on completion tokens under the target's name for it, and that of `RequestScan::set_bound` in
///   place of the client's;
/// - replaces the role `developer` by `system` if the target does not accept it;
/// - nests the members of custom tools;
/// - adds the placeholder for missing thought signatures;
/// - writes the members from the configuration;
/// - omits provider-hosted tools of a responses request.
///
/// Refills `text` and `pieces` and returns the total length of the pieces. [`Invalid`] if no tool or no message is
/// left, or if the body names an object stored at the provider.
pub fn rewrite(
    endpoint: ModelEndpoint,
    body: &[u8],
    fields: &Fields,
    target: &RequestTarget<'_>,
    text: &mut Vec<u8>,
    pieces: &mut Vec<RewritePiece>,
) -> Result<u64, Invalid> {
    let _linear = linear(body.len());
    text.clear();
    pieces.clear();
    fields.may_name_stored(target.capabilities)?;
    fields.may_forward_stored(target.capabilities)?;
    let (cuts, instead) = match endpoint.is_passthrough() {
        true => (Cow::Borrowed(&fields.cuts[..]), ""),
        false => with_format!(endpoint.shape, F => {
            (F::cuts(body, fields, target.capabilities)?, F::CUT_INSTEAD)
        }),
    };
    if !cuts.is_empty() {
        keeps_item(fields, body, &cuts)?;
    }
    let takes_it = target.capabilities.stream_usage && !target.capabilities.refuses("stream_options");
    let lacks_usage = fields.stream && with_format!(endpoint.shape, F => F::USAGE_ON_REQUEST);
    let asks_usage = lacks_usage && takes_it && !is_media(endpoint);
    let mut writer = Writer { body, cuts: &cuts, instead, text, pieces, total: 0 };
    let layout = Layout { endpoint, body, fields, target, asks_usage };
    if let Some(model) = fields.model.filter(|_| !asks_usage && goes_as_it_is(endpoint, fields, target.capabilities)) {
        writer.body(0, model.start as usize - 1);
        writer.text(|text| write_string(text, target.model));
        writer.body(model.end as usize + 1, body.len());
    } else {
        by_members(&mut writer, &layout);
    }
    Ok(writer.total)
}

/// Checks that a message is left.
#[cold]
fn keeps_item(fields: &Fields, body: &[u8], cuts: &[Span]) -> Result<(), Invalid> {
    match fields.members.iter().find(|member| is_emptied(member, body, cuts)) {
        Some(list) => Err(Invalid(format!("{}: expected at least one item with content", list.name.text()))),
        None => Ok(()),
    }
}

/// True for the list of messages if one cut takes all of them.
fn is_emptied(member: &Member, body: &[u8], cuts: &[Span]) -> bool {
    if !matches!(member.name, Name::Messages | Name::Input) {
        return false;
    }
    let (start, value) = (member.value.start as usize, member.value.of(body));
    let blanks = value[1..].len() - value[1..].trim_ascii_start().len();
    let end = start + value[..value.len() - 1].trim_ascii_end().len();
    let begin = start + 1 + blanks;
    begin < end && cuts.iter().any(|cut| cut.start as usize <= begin && end <= cut.end as usize)
}

/// Lays out a body member by member.
fn by_members(writer: &mut Writer<'_>, layout: &Layout<'_>) {
    let &Layout { endpoint, body, fields, target, asks_usage } = layout;
    let Some((first, last)) = fields.members.first().zip(fields.members.last()) else { return };
    writer.body(0, first.start());
    let (mut wrote, mut has_model, mut asked) = (false, false, !asks_usage);
    // Kept members, and the bytes between them, that are not written yet.
    let mut run: Option<(usize, usize)> = None;
    for member in &fields.members {
        let fate = layout.fate_beside(member);
        asked |= member.name == Name::StreamOptions;
        if fate == Fate::Drop {
            if let Some((from, to)) = run.take() {
                writer.body(from, to);
            }
            continue;
        }
        if run.is_none() && wrote {
            writer.text(|text| text.push(b','));
        }
        let (from, _) = run.unwrap_or((member.start(), member.start()));
        if fate == Fate::Keep {
            run = Some((from, member.end()));
        } else if fate == Fate::Bound {
            writer.body(from, member.start());
            writer.name(bound(endpoint, target.capabilities));
            run = Some((member.value.start as usize, member.end()));
        } else {
            writer.body(from, member.value.start as usize);
            writer.replace(fate, member, target);
            run = Some((member.end(), member.end()));
        }
        has_model |= member.name == Name::Model;
        wrote = true;
    }
    if let Some((from, to)) = run {
        writer.body(from, to);
    }
    if fields.sets_bound
        && let Some(most) = fields.max_tokens
    {
        writer.add(&mut wrote, bound(endpoint, target.capabilities), |text| push_number(text, most));
    }
    let is_stored = with_format!(endpoint.shape, F => F::IS_STORED);
    if !has_model && Name::Model.is_read(endpoint) {
        writer.add(&mut wrote, "model", |text| write_string(text, target.model));
    }
    let adds = |name: Name| is_stored && !target.capabilities.refuses(name.text());
    if adds(Name::Store) {
        writer.add(&mut wrote, "store", |text| text.extend_from_slice(b"false"));
    }
    let includes = fields.members.iter().any(|member| member.name == Name::Include);
    if adds(Name::Include) && target.capabilities.effort && !includes {
        writer.add(&mut wrote, "include", |text| text.extend_from_slice(b"[\"reasoning.encrypted_content\"]"));
    }
    if !asked {
        writer.add(&mut wrote, "stream_options", |text| text.extend_from_slice(b"{\"include_usage\":true}"));
    }
    if !target.capabilities.params.is_empty() {
        writer.add_params(&mut wrote, layout);
    }
    writer.body(last.end(), body.len());
}

/// True if only the model differs for this target, as for nearly all requests. The members then need no check.
fn goes_as_it_is(endpoint: ModelEndpoint, fields: &Fields, takes: &Capabilities) -> bool {
    let (is_stored, two_names) = with_format!(endpoint.shape, F => (F::IS_STORED, F::BOUND_HAS_TWO_NAMES));
    let keeps_bound = fields.max_tokens.is_none() || !two_names || !takes.max_completion_tokens;
    !fields.has_odd && !is_stored && keeps_bound && takes.drop_params.is_empty() && takes.params.is_empty()
}

/// Names of the members that are not sent upstream: on a route within one format those that [`rewrite`] omits,
/// otherwise those that no translation reads. Each is the inside of its quotes, with escapes. A request without such
/// members costs one check for each member.
pub fn dropped<'a>(
    endpoint: ModelEndpoint,
    translated: bool,
    body: &'a [u8],
    fields: &'a Fields,
    target: &'a RequestTarget<'_>,
) -> impl Iterator<Item = &'a [u8]> {
    let takes = target.capabilities;
    let none = !translated && goes_as_it_is(endpoint, fields, takes);
    let members: &[Member] = if none { &[] } else { &fields.members };
    let is_read =
        move |name: Name| if translated { name.is_translated(endpoint.shape) } else { name.is_read(endpoint) };
    let may_go = move |member: &&Member| {
        !is_read(member.name) || !takes.drop_params.is_empty() || !takes.rules.refuses.is_empty()
    };
    let goes = move |member: &&Member| match translated {
        true => {
            let key = member.key.of(body);
            !is_read(member.name)
                || takes.drop_params.iter().chain(&takes.rules.refuses).any(|name| eq_unescaped(key, name))
        }
        false => {
            let layout = Layout { endpoint, body, fields, target, asks_usage: false };
            layout.fate(member) == Fate::Drop && !fields.replaces(member)
        }
    };
    members.iter().filter(may_go).filter(goes).map(|member| member.key.of(body))
}

impl Layout<'_> {
    /// Treatment of a member, ignoring those from the configuration.
    #[inline]
    fn fate_beside(&self, member: &Member) -> Fate {
        let params = &*self.target.capabilities.params;
        match params.is_empty() || !gives_way(params, self.body, member) {
            true => self.fate(member),
            false => Fate::Drop,
        }
    }

    fn fate(&self, member: &Member) -> Fate {
        let &Layout { endpoint, body, fields, target, asks_usage } = self;
        if member.name == Name::Model {
            return Fate::Model;
        }
        let (key, takes) = (member.key.of(body), target.capabilities);
        match member.name.class(endpoint) {
            Class::Denied => return Fate::Drop,
            Class::Unknown if !is_forwarded(endpoint, key, member.name, takes.unknown) => return Fate::Drop,
            _ => {}
        }
        let is_plain = !matches!(
            member.name,
            Name::N
                | Name::StreamOptions
                | Name::MaxTokens
                | Name::MaxCompletionTokens
                | Name::MaxOutputTokens
                | Name::Include
                | Name::Tools
                | Name::ToolChoice
        );
        if takes.drop_params.is_empty() && is_plain {
            return Fate::Keep;
        }
        let (two_names, is_stored) = with_format!(endpoint.shape, F => (F::BOUND_HAS_TWO_NAMES, F::IS_STORED));
        let (has_choices, usage_on_request) = with_format!(endpoint.shape, F => (F::HAS_CHOICES, F::USAGE_ON_REQUEST));
        let value = Raw::new(member.value.of(body));
        match member.name {
            _ if fields.replaces(member) => Fate::Drop,
            Name::MaxTokens | Name::MaxCompletionTokens if two_names && fields.max_tokens.is_some() => {
                self.bound_fate(member)
            }
            _ if takes.drop_params.iter().any(|name| eq_unescaped(key, name)) => Fate::Drop,
            Name::Tools if fields.has_custom => Fate::Tools,
            Name::ToolChoice if fields.has_custom => Fate::ToolChoice,
            Name::MaxOutputTokens if member.name.text() != bound(endpoint, takes) => Fate::Keep,
            Name::MaxOutputTokens if takes.drops(member.name.text()) => Fate::Drop,
            Name::MaxOutputTokens if !eq_unescaped(key, member.name.text()) => Fate::Bound,
            Name::Include if is_stored && takes.effort && !value.items().any(|word| word.is(ENCRYPTED)) => {
                Fate::Include
            }
            Name::N if has_choices && !endpoint.is_passthrough() && !value.is_null() && value.bytes() != b"1" => {
                Fate::One
            }
            Name::StreamOptions if !takes.stream_usage && usage_on_request => Fate::Drop,
            Name::StreamOptions if asks_usage => {
                let mut asking = value.members().filter(|(key, _)| eq_unescaped(key, "include_usage"));
                let plain =
                    asking.next().is_some_and(|(_, value)| value.bool() == Some(true)) && asking.next().is_none();
                if plain { Fate::Keep } else { Fate::AskUsage }
            }
            _ => Fate::Keep,
        }
    }

    /// Treatment of the two names of a bound. If both are present, the newer one applies if it is usable. The other is
    /// omitted: providers refuse the two together, or do not know one of them.
    fn bound_fate(&self, member: &Member) -> Fate {
        let &Layout { endpoint, body, fields, target, .. } = self;
        let newer = |member: &&Member| member.name == Name::MaxCompletionTokens;
        let wins = fields.members.iter().find(newer).is_some_and(|member| bound_of(member.value.of(body)).is_some());
        let name = bound(endpoint, target.capabilities);
        if newer(&member) != wins || target.capabilities.drops(name) {
            return Fate::Drop;
        }
        if newer(&member) == (name != Name::MaxTokens.text()) { Fate::Keep } else { Fate::Bound }
    }
}

/// True if a client's member is replaced by one from the configuration.
#[inline]
fn gives_way(params: &[Param], body: &[u8], member: &Member) -> bool {
    let key = member.key.of(body);
    let param = params.iter().find(|param| eq_unescaped(key, &param.name));
    param.is_some_and(|param| param.always || Raw::new(member.value.of(body)).is_null())
}

/// True if a member outside the tables is passed on.
fn is_forwarded(endpoint: ModelEndpoint, key: &[u8], name: Name, unknown: UnknownMembers) -> bool {
    if endpoint.as_passthrough().is_some_and(|passthrough| PassthroughFormat::of(passthrough).documents(key)) {
        return true;
    }
    match unknown {
        UnknownMembers::Drop => false,
        UnknownMembers::Local => with_format!(endpoint.shape, F => F::HAS_LOCAL_MEMBERS) && Name::is_local(key),
        UnknownMembers::New => name == Name::Other && !Name::leads_elsewhere(key),
        UnknownMembers::Forward => !Name::leads_elsewhere(key),
    }
}

/// True for an endpoint whose streams are not those of a chat completion.
fn is_media(endpoint: ModelEndpoint) -> bool {
    endpoint.as_passthrough().is_some_and(Passthrough::is_media)
}

/// Name of the bound on completion tokens. Completions only know the older name.
#[inline]
fn bound(endpoint: ModelEndpoint, takes: &Capabilities) -> &'static str {
    match endpoint.is_passthrough() {
        true => Name::MaxTokens.text(),
        false => with_format!(endpoint.shape, F => F::bound(takes)),
    }
}

impl Writer<'_> {
    /// Writes a part of the body with its cuts replaced. Parts come in order.
    fn body(&mut self, mut start: usize, end: usize) {
        let instead = self.instead;
        while let Some((cut, rest)) = self.cuts.split_first()
            && (cut.end as usize) <= end
        {
            if cut.start as usize >= start {
                self.plain(start, cut.start as usize);
                // Of the parts with a replacement, only a call's member without a signature is no string.
                let is_member = !instead.is_empty() && matches!(self.body[cut.start as usize], b'n' | b'{');
                self.text(|text| match cut.start == cut.end {
                    true => signature::write(Some(signature::SKIP), text),
                    false if is_member => signature::write_value(signature::SKIP, text),
                    false => text.extend_from_slice(instead.as_bytes()),
                });
                start = cut.end as usize;
            }
            self.cuts = rest;
        }
        self.plain(start, end);
    }

    #[inline]
    fn plain(&mut self, start: usize, end: usize) {
        if start == end {
            return;
        }
        self.total += (end - start) as u64;
        match self.pieces.last_mut() {
            Some(RewritePiece::Body(before)) if before.end as usize == start => before.end = end as u32,
            _ => self.pieces.push(RewritePiece::Body(Span::new(start, end))),
        }
    }

    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.text.len();
        write(self.text);
        let end = self.text.len();
        self.total += (end - start) as u64;
        match self.pieces.last_mut() {
            Some(RewritePiece::Text(before)) if before.end as usize == start => before.end = end as u32,
            _ if end > start => self.pieces.push(RewritePiece::Text(Span::new(start, end))),
            _ => {}
        }
    }

    /// Writes the name of a member and its colon.
    fn name(&mut self, name: &str) {
        self.text(|text| {
            text.push(b'"');
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
        });
    }

    /// Writes a member that the client has not sent. `wrote`: another member precedes it.
    fn add(&mut self, wrote: &mut bool, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
        if std::mem::replace(wrote, true) {
            self.text(|text| text.push(b','));
        }
        self.name(name);
        self.text(value);
    }

    /// Writes the members from the configuration: some always, others only if the client's own is not sent.
    fn add_params(&mut self, wrote: &mut bool, layout: &Layout<'_>) {
        for param in layout.target.capabilities.params.iter() {
            let is_forwarded = |member: &Member| {
                eq_unescaped(member.key.of(layout.body), &param.name) && layout.fate_beside(member) != Fate::Drop
            };
            if param.always || !layout.fields.members.iter().any(is_forwarded) {
                self.add(wrote, &param.name, |text| text.extend_from_slice(param.json.as_bytes()));
            }
        }
    }

    fn replace(&mut self, fate: Fate, member: &Member, target: &RequestTarget<'_>) {
        let value = Raw::new(member.value.of(self.body));
        self.text(|text| match fate {
            Fate::Model => write_string(text, target.model),
            Fate::Tools => custom_tools::write(value, text),
            Fate::ToolChoice => custom_tools::write_tool(value, text),
            Fate::Include => {
                text.push(b'[');
                for word in value.items() {
                    item(text);
                    text.extend_from_slice(word.bytes());
                }
                item(text);
                write_string(text, ENCRYPTED);
                text.push(b']');
            }
            Fate::AskUsage => {
                text.extend_from_slice(b"{\"include_usage\":true");
                members(value, &["include_usage"], text);
                text.push(b'}');
            }
            _ => text.push(b'1'),
        });
    }
}

#[cfg(test)]
mod tests;
