//! Reads a complete answer within one format.

use super::cost::without_cost;
use super::media::observed_media;
use super::own::{Own, OwnValues, OwnWriter, Places, is_word};
use super::text::count_others;
use crate::dialect::answer::{Broken, Rejected, ResponseIdentity};
use crate::dialect::dispatch::with_format;
use crate::dialect::errors::{ErrorText, is_error, read_error};
use crate::dialect::keys::{K, each_value};
use crate::dialect::neutral::delta::lists_nothing;
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::passthrough::PassthroughFormat;
use crate::dialect::responses::hidden::hide;
use crate::dialect::tokens::Estimator;
use crate::dialect::translate::answer::streamed::streamed_response;
use crate::dialect::translate::answer::whole::WholeAnswer;
use crate::dialect::translate::answer::{AnswerTemplates, read_stream, reply};
use crate::dialect::usage::{ChatUsage, ObservedUsage, Reported, tokens};
use crate::wire::json::{self, Raw, Stop, Token, Visitor, linear, write_escaped};
use crate::wire::{ModelEndpoint, Passthrough, Span};

/// Results of one scan of an answer.
#[derive(Default)]
struct Seen {
    places: Places,
    body: Span,
    usage: Option<Span>,
    /// `meta` of a pass-through answer, which may report usage.
    meta: Option<Span>,
    error: Option<Span>,
    object_is_error: bool,
    /// Choices, content or output of the answer, or the list of a pass-through one.
    list: Option<Span>,
    /// Reason for the end of an answer without choices: its `stop_reason` or its `status`.
    ending: Option<Span>,
}

/// The only scan of an answer: reads its members, and those of `usage` as chat completions have it. Deeper values are
/// only checked for validity.
struct Notes {
    endpoint: ModelEndpoint,
    seen: Seen,
    usage: ChatUsage,
    key: K,
    inner: K,
    /// Beginnings of the containers of the first three levels.
    starts: [u32; 3],
    /// The scan is inside a `usage` that has a chat completion's members.
    in_usage: bool,
    /// The client gets all counters of such a usage.
    completes_usage: bool,
    /// A member has the name of a provider's cost.
    own_cost: bool,
}

impl Notes {
    fn new(endpoint: ModelEndpoint) -> Notes {
        let (seen, usage) = (Seen::default(), ChatUsage::default());
        let has_chat_usage = with_format!(endpoint.shape, F => F::HAS_CHAT_USAGE);
        Notes {
            endpoint,
            seen,
            usage,
            key: K::Other,
            inner: K::Other,
            starts: [0; 3],
            in_usage: false,
            completes_usage: !endpoint.is_passthrough() && has_chat_usage,
            own_cost: false,
        }
    }

    /// Ends a `usage`. A pass-through answer is not rewritten, so it notes no place.
    fn close_usage(&mut self, token: Token, whole: Span) {
        self.seen.usage = (token == Token::ObjectClose).then_some(whole);
        if !std::mem::take(&mut self.in_usage) {
            self.usage = ChatUsage::default();
        }
        if self.completes_usage {
            self.seen.places.add(whole, Own::Usage);
        }
    }

    fn member(&mut self, buf: &[u8], token: Token, whole: Span) {
        let seen = &mut self.seen;
        if self.key == K::Object {
            seen.object_is_error = whole.of(buf) == b"\"error\"";
        }
        match self.key {
            K::Id => seen.places.add(whole, Own::Id),
            K::Model => seen.places.add(whole, Own::Model),
            K::Usage => self.close_usage(token, whole),
            K::Error => seen.error = Some(whole),
            _ if self.endpoint.is_passthrough() => self.passthrough_member(token, whole),
            key => {
                let (list, ending, replaced) =
                    with_format!(self.endpoint.shape, F => (F::LIST.1, F::ENDING.1, F::REPLACED));
                if key == list {
                    seen.list = (token == Token::ArrayClose).then_some(whole);
                } else if key == ending {
                    seen.ending = Some(whole);
                } else if let Some((_, edit)) = replaced.iter().find(|(name, _)| *name == key) {
                    seen.places.add(whole, *edit);
                }
            }
        }
    }

    /// Notes a member of a pass-through answer.
    fn passthrough_member(&mut self, token: Token, whole: Span) {
        let (Some(passthrough), seen) = (self.endpoint.as_passthrough(), &mut self.seen) else { return };
        let format = PassthroughFormat::of(passthrough);
        match self.key {
            K::Meta => seen.meta = Some(whole),
            key if key == format.list => seen.list = (token == Token::ArrayClose).then_some(whole),
            key if Some(key) == format.other && seen.list.is_none() => {
                seen.list = matches!(token, Token::ArrayClose | Token::ObjectClose).then_some(whole);
            }
            _ => {}
        }
    }

    #[inline]
    fn usage_member(&mut self, buf: &[u8], whole: Span) {
        // A pass-through answer counts no reasoning, so its total adds no information.
        if self.inner == K::TotalTokens && self.endpoint.is_passthrough() {
            return;
        }
        self.own_cost |= matches!(self.inner, K::Cost | K::CostDetails | K::CostInUsdTicks);
        self.usage.member(self.inner, Raw::new(whole.of(buf)));
        match self.inner {
            _ if !self.completes_usage => {}
            K::PromptTokens => self.seen.places.add(whole, Own::Prompt),
            K::CompletionTokens => self.seen.places.add(whole, Own::Completion),
            K::TotalTokens => self.seen.places.add(whole, Own::Total),
            _ => {}
        }
    }
}

impl Visitor for Notes {
    #[inline(always)]
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        if depth > 2 || (depth == 2 && !self.in_usage) {
            self.own_cost |= token == Token::Key && is_cost(span.of(buf));
            return Ok(());
        }
        let whole = match token {
            Token::Key => {
                *if depth == 1 { &mut self.key } else { &mut self.inner } = K::of(span.of(buf));
                return Ok(());
            }
            Token::ObjectOpen | Token::ArrayOpen => {
                self.starts[depth] = span.start;
                let is_usage = depth == 1 && self.key == K::Usage && token == Token::ObjectOpen;
                if is_usage && with_format!(self.endpoint.shape, F => F::HAS_CHAT_USAGE) {
                    (self.in_usage, self.usage) = (true, ChatUsage::default());
                }
                return Ok(());
            }
            Token::ObjectClose | Token::ArrayClose => Span { start: self.starts[depth], end: span.end },
            Token::String => Span { start: span.start - 1, end: span.end + 1 },
            _ => span,
        };
        match depth {
            0 if token == Token::ObjectClose => self.seen.body = whole,
            // Some servers answer with only the list.
            0 if token == Token::ArrayClose && !has_text(self.endpoint) => {
                (self.seen.body, self.seen.list) = (whole, Some(whole));
            }
            1 => self.member(buf, token, whole),
            2 => self.usage_member(buf, whole),
            _ => {}
        }
        Ok(())
    }
}

/// True if the answers of an endpoint are text of a model.
fn has_text(endpoint: ModelEndpoint) -> bool {
    endpoint.as_passthrough().is_none_or(Passthrough::generates)
}

/// True for the name of a provider's cost in a usage.
#[inline(always)]
fn is_cost(name: &[u8]) -> bool {
    name == b"cost" || name == b"cost_details" || name == b"cost_in_usd_ticks"
}

/// Passes on a complete answer: `id` and `model` are replaced; members that a chat upstream omitted (`object`,
/// `created`, `usage`) are added, and `total_tokens` is at least the sum; a `cost` in the usage is removed; all
/// other bytes stay unchanged.
pub fn whole(
    endpoint: ModelEndpoint,
    body: &[u8],
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    read(endpoint, body, identity, out, None)
}

impl AnswerTemplates {
    /// Relays a complete answer; compares it with templates of earlier ones first.
    pub fn whole(
        &mut self,
        endpoint: ModelEndpoint,
        body: &[u8],
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<ObservedUsage, Broken> {
        match self.pass(endpoint, body, identity, out) {
            Some(observed) => Ok(observed),
            None => read(endpoint, body, identity, out, Some(self)),
        }
    }
}

fn read(
    endpoint: ModelEndpoint,
    body: &[u8],
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
    templates: Option<&mut AnswerTemplates>,
) -> Result<ObservedUsage, Broken> {
    let _linear = linear(body.len());
    let mut notes = Notes::new(endpoint);
    let scanned = json::scan(body, &mut notes);
    // By reference: moving all positions out would copy them.
    let (seen, usage) = (&notes.seen, &notes.usage);
    let (streams_it, repeats) = with_format!(endpoint.shape, F => (F::STREAM_HAS_ANSWER, F::REPEATS_REQUEST));
    if scanned.is_err() && streams_it {
        // Some providers stream although a complete answer was requested.
        let response = streamed_response(body).ok_or(Broken::NotJson)?;
        json::check(&response).map_err(|_| Broken::NotJson)?;
        return read(endpoint, &response, identity, out, None);
    }
    if scanned.is_err() && !endpoint.is_passthrough() {
        return reply((endpoint.shape, endpoint.shape), body, &TranslationState::default(), identity, out);
    }
    if scanned.is_err() || seen.places.is_too_many() {
        return Err(Broken::NotJson);
    }
    if seen.body.is_empty() {
        // Google wraps its errors in an array.
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    }
    let error = seen.error.map(|span| Raw::new(span.of(body))).filter(|error| is_error(*error));
    if let Some(error) = error {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    let Some(list) = list_of(endpoint, seen).filter(|_| !seen.object_is_error) else {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    };
    let value = |span: Option<Span>| span.map_or(Raw::EMPTY, |span| Raw::new(span.of(body)));
    let ending = seen.ending.map_or(Raw::NULL, |span| Raw::new(span.of(body)));
    ends_well(endpoint, Raw::new(list.of(body)), ending, || value(seen.usage))?;
    let found = match (endpoint.as_passthrough(), endpoint.shape) {
        (Some(kind), _) => PassthroughFormat::reported(kind, usage.reported(), value(seen.usage), value(seen.meta)),
        (None, _) if notes.completes_usage && seen.usage.is_none() => Reported::of_choices(Raw::new(list.of(body))),
        (None, _) if notes.completes_usage => usage.reported().or_renamed(value(seen.usage)),
        (None, shape) => with_format!(shape, F => F::reported(value(seen.usage))),
    };
    if notes.own_cost {
        let clean = without_cost(body);
        if clean.len() < body.len() {
            let mut observed = read(endpoint, &clean, identity, out, None)?;
            observed.reported.cost = found.cost;
            return Ok(observed);
        }
    }
    let reported = found.believed();
    // The estimate is made only on demand: nearly every answer reports its usage.
    let relayed_tokens = if reported.output.is_some() || !has_text(endpoint) { 0 } else { estimated(endpoint, body) };
    let observed = with_media(endpoint, list.of(body), ObservedUsage { reported, relayed_tokens, units: 0 });
    // Other formats' counters are passed on unchanged; the prompt is counted only on demand.
    let counts =
        if notes.completes_usage { ChatCounts::new(body, seen, identity, &observed) } else { ChatCounts::default() };
    let from = out.len();
    write(endpoint, seen, &counts, OwnWriter::new(body, usize::MAX, counts.values(identity, &observed), out));
    if repeats {
        hide(identity.hides, false, from, out);
    }
    if let Some(templates) = templates {
        templates.learn_passed(endpoint, body, identity, &observed, &out[from..]);
    }
    Ok(observed)
}

/// The endpoint, if its answers are audio, images or the text of audio.
#[inline]
fn media(endpoint: ModelEndpoint) -> Option<Passthrough> {
    endpoint.as_passthrough().filter(|passthrough| passthrough.is_media())
}

/// Adds what an answer with media shows besides its usage.
#[inline]
fn with_media(endpoint: ModelEndpoint, list: &[u8], observed: ObservedUsage) -> ObservedUsage {
    media(endpoint).map_or(observed, |passthrough| observed_media(passthrough, list, observed))
}

/// The list in an answer; all of it if answers of its endpoint have none, as some with media.
#[inline]
fn list_of(endpoint: ModelEndpoint, seen: &Seen) -> Option<Span> {
    let has_list = media(endpoint).is_none_or(|passthrough| PassthroughFormat::of(passthrough).list != K::Other);
    if has_list { seen.list } else { Some(seen.body) }
}

/// The rejection of a complete answer of `endpoint`, with its reported usage: its provider has billed that.
#[cold]
pub fn rejected(endpoint: ModelEndpoint, body: &[u8], why: Broken) -> Rejected {
    let is_json = json::check(body).is_ok();
    let shape = endpoint.shape;
    let streams_it = with_format!(shape, F => F::STREAM_HAS_ANSWER);
    if !is_json && !streams_it && !endpoint.is_passthrough() {
        let mut answer = WholeAnswer::default();
        // Of a broken answer, what it has reported before its fault.
        let _ = read_stream(shape, body, false, &mut answer);
        return Rejected { why, reported: Box::new(answer.reported) };
    }
    let streamed = if streams_it && !is_json { streamed_response(body) } else { None };
    let picked = json::check_and_pick(streamed.as_deref().unwrap_or(body), ["usage", "meta"]);
    let [usage, meta] = picked.unwrap_or_default().map(|value| value.unwrap_or(Raw::NULL));
    let reported = match (endpoint.as_passthrough(), shape) {
        // Its counters are read as those of an answer that is passed on; without either member it reports none.
        (Some(_), _) if usage.is_null() && meta.is_null() => Reported::default(),
        (Some(passthrough), _) => PassthroughFormat::reported(passthrough, Reported::from_chat(usage), usage, meta),
        (None, shape) => with_format!(shape, F => F::reported(usage)),
    };
    Rejected { why, reported: Box::new(reported) }
}

/// An error if an answer reports that it is incomplete, or has no content. `list`, `ending` and `usage` as for
/// [`is_empty`].
fn ends_well<'a>(
    endpoint: ModelEndpoint,
    list: Raw<'_>,
    ending: Raw<'_>,
    usage: impl FnOnce() -> Raw<'a>,
) -> Result<(), Broken> {
    if !has_text(endpoint) {
        return Ok(());
    }
    let is_empty = with_format!(endpoint.shape, F => {
        F::check_end(list, ending)?;
        if endpoint.is_passthrough() { lists_nothing(list) } else { F::is_empty(list, ending, usage) }
    });
    if is_empty { Err(Broken::NotJson) } else { Ok(()) }
}

/// Tokens of the text in a valid answer, by a second scan.
pub(super) fn estimated(endpoint: ModelEndpoint, body: &[u8]) -> u64 {
    let (has_choices, called_with) = with_format!(endpoint.shape, F => (F::HAS_CHOICES, F::OBJECT_ARGUMENTS));
    let is_text = match endpoint.is_passthrough() {
        true => is_completed_text,
        false => with_format!(endpoint.shape, F => F::is_text),
    };
    let mut relayed = Estimator::new();
    each_value(body, &mut |buf, path, token, whole| {
        if token == Token::String && is_text(path) {
            relayed.feed_json(&buf[whole.start as usize + 1..whole.end as usize - 1]);
        } else if token == Token::ObjectClose && Some(path) == called_with {
            // As in a stream: JSON in a string.
            let mut text = Vec::new();
            write_escaped(&mut text, whole.of(buf));
            relayed.feed_json(&text);
        }
    });
    if has_choices && !endpoint.is_passthrough() {
        let messages = Raw::new(body).get("choices").unwrap_or(Raw::NULL).items().filter_map(|one| one.get("message"));
        messages.for_each(|message| {
            count_others(message, &mut relayed);
        });
    }
    relayed.tokens()
}

/// The three token counters that a chat client gets.
#[derive(Default)]
struct ChatCounts {
    prompt: (u64, bool),
    completion: (u64, bool),
    total: (u64, bool),
}

impl ChatCounts {
    /// Each count has a flag: true if the upstream's own is already right.
    fn new(body: &[u8], seen: &Seen, identity: &ResponseIdentity<'_>, observed: &ObservedUsage) -> ChatCounts {
        let (mut prompt, mut completion, mut total) = (None, None, None);
        let usage = seen.usage.unwrap_or_default();
        // Of a repeated member the last one counts.
        for (span, edit) in seen.places.iter().filter(|(span, _)| usage.start <= span.start) {
            let value = match edit {
                Own::Prompt => &mut prompt,
                Own::Completion => &mut completion,
                Own::Total => &mut total,
                _ => continue,
            };
            *value = tokens(Raw::new(span.of(body)));
        }
        let known = || observed.reported.prompt().unwrap_or_else(|| identity.prompt.count());
        let own = prompt.filter(|_| observed.reported.prompt().is_some());
        let prompt = (own.unwrap_or_else(known), own.is_some());
        // Reasoning that the provider has counted separately is added, so that its total is the sum.
        let output = observed.reported.output;
        let completion = (output.unwrap_or(observed.relayed_tokens), completion.is_some() && completion == output);
        let sum = prompt.0.saturating_add(completion.0);
        // A larger total includes tokens counted separately, such as cached ones.
        let total = total.filter(|total| *total >= sum);
        ChatCounts { prompt, completion, total: (total.unwrap_or(sum), total.is_some()) }
    }

    fn values<'a>(&self, identity: &'a ResponseIdentity<'a>, observed: &'a ObservedUsage) -> OwnValues<'a> {
        let counts = [self.prompt.0, self.completion.0, self.total.0];
        OwnValues { identity, object: "chat.completion", created: identity.created, counts, usage: Some(observed) }
    }
}

/// Appends an answer with its values replaced, and with the members that it lacks.
fn write(endpoint: ModelEndpoint, seen: &Seen, counts: &ChatCounts, mut writer: OwnWriter<'_>) {
    let (is_new, body) = (|own: &Own| !seen.places.has(*own), writer.document);
    if !endpoint.is_passthrough() {
        let members = with_format!(endpoint.shape, F => F::ADDED);
        writer.add(seen.body, members.iter().copied().filter(is_new));
    }
    for (span, own) in seen.places.iter() {
        let stays = match own {
            Own::Usage if seen.usage == Some(span) => {
                let members = [Own::Prompt, Own::Completion, Own::Total].into_iter();
                writer.add(span, members.filter(is_new));
                true
            }
            Own::Object => is_word(Raw::new(span.of(body))),
            Own::Created => Raw::new(span.of(body)).count().is_some(),
            Own::Prompt => counts.prompt.1,
            Own::Completion => counts.completion.1,
            Own::Total => counts.total.1,
            _ => false,
        };
        if !stays {
            writer.replace(span, own);
        }
    }
    writer.end();
}

/// True if the value at `path` is text that a completion relays.
fn is_completed_text(path: &[K]) -> bool {
    matches!(path, [K::Choices, K::Item, K::Text])
}
