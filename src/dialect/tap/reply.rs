//! One whole answer that keeps its shape.

use super::super::answer::{Broken, ResponseIdentity};
use super::super::errors::{ErrorText, is_error, read_error};
use super::super::keys::{K, Walk};
use super::super::tokens::Estimator;
use super::super::usage::{ObservedUsage, Reported};
use crate::wire::json::{Raw, Scanner, Token, write_count, write_string};
use crate::wire::{Dialect, Span};

/// Values that one answer may need replaced; more of them (a name repeated again and again) is no sane answer.
const EDITS_MAX: usize = 16;

/// Levels of an answer at which there is something to note or to replace; its text lies deeper.
const NOTED: usize = 2;

/// What to write in the place of a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Edit {
    Id,
    Model,
    Object,
    Created,
    Usage,
    Prompt,
    Completion,
    Total,
}

impl Edit {
    fn key(self) -> &'static str {
        match self {
            Edit::Id => "id",
            Edit::Model => "model",
            Edit::Object => "object",
            Edit::Created => "created",
            Edit::Usage => "usage",
            Edit::Prompt => "prompt_tokens",
            Edit::Completion => "completion_tokens",
            Edit::Total => "total_tokens",
        }
    }
}

/// What one look at an answer found.
#[derive(Default)]
struct Seen {
    places: [Option<(Span, Edit)>; EDITS_MAX],
    count: usize,
    body: Span,
    usage: Option<Span>,
    error: Option<Span>,
    object_is_error: bool,
    listed: bool,
}

impl Seen {
    fn place(&mut self, value: Span, edit: Edit) {
        if let Some(slot) = self.places.get_mut(self.count) {
            *slot = Some((value, edit));
        }
        self.count += 1;
    }

    fn has(&self, edit: Edit) -> bool {
        self.places.iter().flatten().any(|(_, there)| *there == edit)
    }
}

/// Passes on a whole answer: `id` and `model` are ours; what specification 2.2 promises and a chat upstream left out
/// (`object`, `created`, `usage`) is added, `total_tokens` made the sum; everything else stays byte for byte.
pub fn whole(
    shape: Dialect,
    body: &[u8],
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    let mut seen = Seen::default();
    let value: Value = if shape == Dialect::Chat { chat_value } else { messages_value };
    let mut walk = Walk::new(|buf: &[u8], path: &[K], token, whole: Span| {
        value(buf, path, token, whole, &mut seen);
    })
    .within(NOTED);
    let scanned = Scanner::new().finish(body, &mut walk);
    if scanned.is_err() || seen.count > EDITS_MAX || seen.body.is_empty() {
        return Err(Broken::NotJson);
    }
    seen.places[..seen.count].sort_unstable_by_key(|place| place.map(|(span, _)| span.start));
    let error = seen.error.map(|span| Raw::new(span.of(body))).filter(|error| is_error(*error));
    if let Some(error) = error {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    if seen.object_is_error || !seen.listed {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    }
    let usage = seen.usage.map_or(Raw::EMPTY, |span| Raw::new(span.of(body)));
    let reported = match shape {
        Dialect::Chat => Reported::from_chat(usage),
        Dialect::Messages => Reported::from_messages(usage),
    };
    // An estimate that nobody asks for is not made: nearly every answer says what it used.
    let relayed_tokens = if reported.output.is_some() { 0 } else { estimated(body, value) };
    let observed = ObservedUsage { reported, relayed_tokens };
    Writer { body, me, seen: &seen, counts: Counts::new(body, &seen, me, &observed), out }.write(shape);
    Ok(observed)
}

type Value = fn(&[u8], &[K], Token, Span, &mut Seen) -> bool;

/// Tokens of the text that an answer carries, by a second look at it.
fn estimated(body: &[u8], value: Value) -> u64 {
    let (mut relayed, mut seen) = (Estimator::new(), Seen::default());
    let mut walk = Walk::new(|buf: &[u8], path: &[K], token, whole: Span| {
        if value(buf, path, token, whole, &mut seen) && token == Token::String {
            relayed.feed_json(&buf[whole.start as usize + 1..whole.end as usize - 1]);
        }
    });
    // It has been found valid before.
    let _ = Scanner::new().finish(body, &mut walk);
    relayed.tokens()
}

/// The three counters of specification 2.2 as the client is to see them.
struct Counts {
    prompt: (u64, bool),
    completion: (u64, bool),
    total: (u64, bool),
}

impl Counts {
    /// Each with a mark that says whether the upstream's own is already right.
    fn new(body: &[u8], seen: &Seen, me: &ResponseIdentity<'_>, observed: &ObservedUsage) -> Counts {
        let (mut prompt, mut completion, mut total) = (None, None, None);
        let usage = seen.usage.unwrap_or_default();
        // Of a repeated member the last one counts.
        for (span, edit) in seen.places.iter().flatten().filter(|(span, _)| usage.start <= span.start) {
            let value = match edit {
                Edit::Prompt => &mut prompt,
                Edit::Completion => &mut completion,
                Edit::Total => &mut total,
                _ => continue,
            };
            *value = Raw::new(span.of(body)).count();
        }
        let or = |there: Option<u64>, estimate| (there.unwrap_or(estimate), there.is_some());
        let prompt = or(prompt, me.prompt_estimate);
        let completion = or(completion, observed.relayed_tokens);
        let sum = prompt.0.saturating_add(completion.0);
        Counts { prompt, completion, total: (sum, total == Some(sum)) }
    }
}

struct Writer<'a> {
    body: &'a [u8],
    me: &'a ResponseIdentity<'a>,
    seen: &'a Seen,
    counts: Counts,
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn write(&mut self, shape: Dialect) {
        let top: &[Edit] = match shape {
            Dialect::Chat => &[Edit::Id, Edit::Object, Edit::Created, Edit::Model, Edit::Usage],
            Dialect::Messages => &[Edit::Id, Edit::Model],
        };
        let mut from = self.open(0, self.seen.body, top);
        for index in 0..EDITS_MAX {
            let Some((span, edit)) = self.seen.places[index] else { break };
            let replace = match edit {
                Edit::Id | Edit::Model => true,
                Edit::Object | Edit::Created => false,
                Edit::Prompt => !self.counts.prompt.1,
                Edit::Completion => !self.counts.completion.1,
                Edit::Total => !self.counts.total.1,
                Edit::Usage if self.seen.usage == Some(span) => {
                    from = self.open(from, span, &[Edit::Prompt, Edit::Completion, Edit::Total]);
                    false
                }
                Edit::Usage => true,
            };
            if replace && span.start as usize >= from {
                self.out.extend_from_slice(&self.body[from..span.start as usize]);
                self.value(edit);
                from = span.end as usize;
            }
        }
        self.out.extend_from_slice(&self.body[from..]);
    }

    /// Copies up to just inside the object at `span` and adds which of `members` it lacks.
    fn open(&mut self, from: usize, span: Span, members: &[Edit]) -> usize {
        let inside = span.start as usize + 1;
        self.out.extend_from_slice(&self.body[from..inside]);
        let mut first = true;
        for &edit in members.iter().filter(|edit| !self.seen.has(**edit)) {
            self.out.extend_from_slice(if first { b"\"" } else { b",\"" });
            self.out.extend_from_slice(edit.key().as_bytes());
            self.out.extend_from_slice(b"\":");
            self.value(edit);
            first = false;
        }
        if !first && Raw::new(span.of(self.body)).members().next().is_some() {
            self.out.push(b',');
        }
        inside
    }

    fn number(&mut self, value: u64) {
        write_count(self.out, value);
    }

    fn value(&mut self, edit: Edit) {
        match edit {
            Edit::Id => write_string(self.out, self.me.id),
            Edit::Model => write_string(self.out, self.me.model),
            Edit::Object => self.out.extend_from_slice(b"\"chat.completion\""),
            Edit::Created => self.number(self.me.created),
            Edit::Prompt => self.number(self.counts.prompt.0),
            Edit::Completion => self.number(self.counts.completion.0),
            Edit::Total => self.number(self.counts.total.0),
            Edit::Usage => {
                self.out.push(b'{');
                for (at, edit) in [Edit::Prompt, Edit::Completion, Edit::Total].into_iter().enumerate() {
                    self.out.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
                    self.out.extend_from_slice(edit.key().as_bytes());
                    self.out.extend_from_slice(b"\":");
                    self.value(edit);
                }
                self.out.push(b'}');
            }
        }
    }
}

/// Notes what matters of a chat completion; true for text that counts as relayed.
fn chat_value(buf: &[u8], path: &[K], token: Token, whole: Span, seen: &mut Seen) -> bool {
    match path {
        [] if token == Token::ObjectClose => seen.body = whole,
        [K::Id] => seen.place(whole, Edit::Id),
        [K::Model] => seen.place(whole, Edit::Model),
        [K::Object] => {
            seen.object_is_error = whole.of(buf) == b"\"error\"";
            seen.place(whole, Edit::Object);
        }
        [K::Created] => seen.place(whole, Edit::Created),
        [K::Usage] => {
            seen.usage = (token == Token::ObjectClose).then_some(whole);
            seen.place(whole, Edit::Usage);
        }
        [K::Usage, K::PromptTokens] => seen.place(whole, Edit::Prompt),
        [K::Usage, K::CompletionTokens] => seen.place(whole, Edit::Completion),
        [K::Usage, K::TotalTokens] => seen.place(whole, Edit::Total),
        [K::Error] => seen.error = Some(whole),
        [K::Choices] => seen.listed = token == Token::ArrayClose,
        [K::Choices, K::Item, K::Message, K::Content | K::ReasoningContent | K::Reasoning | K::Refusal] => return true,
        [K::Choices, K::Item, K::Message, K::ToolCalls, K::Item, K::Function, K::Name | K::Arguments] => return true,
        _ => {}
    }
    false
}

/// Notes what matters of a message; true for text that counts as relayed.
fn messages_value(_: &[u8], path: &[K], token: Token, whole: Span, seen: &mut Seen) -> bool {
    match path {
        [] if token == Token::ObjectClose => seen.body = whole,
        [K::Id] => seen.place(whole, Edit::Id),
        [K::Model] => seen.place(whole, Edit::Model),
        [K::Usage] => seen.usage = (token == Token::ObjectClose).then_some(whole),
        [K::Error] => seen.error = Some(whole),
        [K::Content] => seen.listed = token == Token::ArrayClose,
        [K::Content, K::Item, K::Text | K::Thinking | K::Name] => return true,
        [K::Content, K::Item, K::Input, ..] => return true,
        _ => {}
    }
    false
}
