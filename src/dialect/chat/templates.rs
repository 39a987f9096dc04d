//! Templates of earlier chat answers, with holes for the parts that differ between answers: id, date, text and three
//! counters. A provider formats all its answers alike, so an answer that matches a template is compared instead of
//! parsed.
//!
//! Owns the comparison. Must never pass an answer that the parser would treat differently: all bytes outside the holes
//! equal those of a valid, parsed answer; strings fill the holes of strings, whole numbers those of numbers, and the
//! counters add up. Must never store content: a template has room only for short words. Called by `tap::reply`; a
//! property test and a fuzz target compare both methods.

use crate::base::order;
use crate::base::ring::Ring;
use crate::dialect::answer::ResponseIdentity;
use crate::dialect::keys::{K, Walk};
use crate::dialect::tap::places::{Edit, Seen, is_word};
use crate::dialect::usage::{ChatUsage, ObservedUsage};
use crate::wire::Span;
use crate::wire::json::{Raw, Scanner, Token, string_end, write_inside};
use crate::wire::template::{BytesTemplate, number};

/// Number of templates; a new one replaces the oldest.
const KEPT_MAX: usize = 4;
/// Maximum bytes of an answer without the contents of its holes.
const BYTES_MAX: usize = 2048;
/// Maximum bytes of a string outside the holes, such as a finish reason: a longer one may be content.
const WORD_MAX: usize = 64;
/// Maximum digits of a number; larger numbers are left to the parser, which rejects them.
const DIGITS_MAX: usize = 12;
/// Number of holes.
const HOLES: usize = 7;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct AnswerTemplates(Ring<AnswerTemplate>);

/// Kind of value in a hole.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum AnswerHole {
    Id,
    Model,
    Text,
    Created,
    Prompt,
    Completion,
    Total,
}

#[derive(Debug)]
struct AnswerTemplate {
    template: BytesTemplate<AnswerHole, { HOLES + 1 }>,
    /// Token counts of the learned answer.
    usage: ChatUsage,
}

/// Values in the holes of an answer.
struct HoleValues {
    id: Span,
    model: Span,
    prompt: u64,
    completion: u64,
}

impl AnswerTemplates {
    /// Passes on an answer that matches a template.
    pub(in crate::dialect) fn pass(
        &mut self,
        body: &[u8],
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Option<ObservedUsage> {
        let mut text = (0, 0);
        let (found, reported) = self.0.find(|template| {
            let found = template.matches(body, &mut text)?;
            let reported = template.usage.with(found.prompt, found.completion).reported();
            Some((found, reported))
        })?;
        found.write(body, me, out);
        Some(ObservedUsage { reported, relayed_tokens: 0, units: 0 })
    }

    /// Learns a parsed answer that lacked nothing.
    pub(in crate::dialect) fn learn(&mut self, body: &[u8], seen: &Seen, usage: ChatUsage) {
        if !self.0.takes() {
            return;
        }
        let Some(holes) = holes(body, seen) else { return };
        let hollow: usize = holes.iter().map(|(span, _)| span.len()).sum();
        if body.len() - hollow > BYTES_MAX {
            return;
        }
        let place = self.0.place(KEPT_MAX, || AnswerTemplate { template: BytesTemplate::default(), usage });
        place.template.learn(body, &holes, [b"", b""]);
        place.usage = usage;
    }
}

/// The holes of an answer in order; `None` if one is missing, repeated, or contains a value that it must not.
fn holes(body: &[u8], seen: &Seen) -> Option<[(Span, AnswerHole); HOLES]> {
    let mut holes = [(Span::default(), AnswerHole::Text); HOLES];
    let mut count = 0;
    for (span, edit) in seen.places() {
        let hole = match edit {
            Edit::Id => AnswerHole::Id,
            Edit::Model => AnswerHole::Model,
            Edit::Created => AnswerHole::Created,
            Edit::Prompt => AnswerHole::Prompt,
            Edit::Completion => AnswerHole::Completion,
            Edit::Total => AnswerHole::Total,
            Edit::Object if !is_word(Raw::new(span.of(body))) => return None,
            Edit::Object | Edit::Usage => continue,
            Edit::Store | Edit::Previous => return None,
        };
        let inside = match hole {
            AnswerHole::Id | AnswerHole::Model => {
                Raw::new(span.of(body)).string()?;
                Span { start: span.start + 1, end: span.end - 1 }
            }
            _ => {
                let (_, len) = number(&body[span.start as usize..], DIGITS_MAX)?;
                (len == span.len()).then_some(span)?
            }
        };
        *holes.get_mut(count)? = (inside, hole);
        count += 1;
    }
    let (mut text, mut texts, mut is_said) = (Span::default(), 0, false);
    let mut walk = Walk::new(|_: &[u8], path: &[K], token, whole: Span| {
        if token == Token::String && path == [K::Choices, K::Item, K::Message, K::Content] {
            text = Span { start: whole.start + 1, end: whole.end - 1 };
            texts += 1;
        } else if !matches!(path, [K::Id | K::Model]) {
            is_said |= token == Token::String && whole.len() > WORD_MAX;
        }
    });
    // The body is known to be valid.
    let _ = Scanner::new().finish(body, &mut walk);
    let every = [Edit::Id, Edit::Model, Edit::Object, Edit::Created, Edit::Usage, Edit::Prompt, Edit::Completion];
    let once = seen.places().len() == every.len() + 1 && every.iter().all(|edit| seen.has(*edit));
    if texts != 1 || is_said || count != HOLES - 1 || !once || !seen.has(Edit::Total) {
        return None;
    }
    holes[count] = (text, AnswerHole::Text);
    order::by_key(&mut holes, |(span, _)| (span.start as u64, span.end as u128));
    Some(holes)
}

impl AnswerTemplate {
    /// Compares `body` with the template. `text`: start and end of a text that has been scanned before.
    fn matches(&self, body: &[u8], text: &mut (usize, usize)) -> Option<HoleValues> {
        let mut found = HoleValues { id: Span::default(), model: Span::default(), prompt: 0, completion: 0 };
        let (mut total, mut comparison) = (0, self.template.compare(body)?);
        while let Some(hole) = comparison.next_hole()? {
            let counter = match hole {
                AnswerHole::Created => &mut 0,
                AnswerHole::Prompt => &mut found.prompt,
                AnswerHole::Completion => &mut found.completion,
                AnswerHole::Total => &mut total,
                AnswerHole::Id | AnswerHole::Model | AnswerHole::Text => {
                    let at = body.len() - comparison.left.len();
                    let scanned = hole == AnswerHole::Text && text.0 == at;
                    let end = if scanned { text.1 } else { string_end(body, at)? };
                    match hole {
                        AnswerHole::Id => found.id = Span::new(at, end),
                        AnswerHole::Model => found.model = Span::new(at, end),
                        _ => *text = (at, end),
                    }
                    comparison.fill(end - at)?;
                    continue;
                }
            };
            let (value, len) = number(comparison.left, DIGITS_MAX)?;
            *counter = value;
            comparison.fill(len)?;
        }
        (comparison.left.is_empty() && found.prompt + found.completion == total).then_some(found)
    }
}

impl HoleValues {
    /// Appends the answer with its id and model replaced.
    fn write(&self, body: &[u8], me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        out.reserve(body.len() + me.id.len() + me.model.len());
        let quoted = |span: Span| (span.start as usize - 1, span.end as usize + 1);
        let (id, model) = (quoted(self.id), quoted(self.model));
        let id_first = id < model;
        let (first, second) = if id_first { (id, model) } else { (model, id) };
        out.extend_from_slice(&body[..first.0]);
        if id_first {
            write_inside(out, me.id)
        } else {
            me.write_model(out)
        }
        out.extend_from_slice(&body[first.1..second.0]);
        if id_first {
            me.write_model(out)
        } else {
            write_inside(out, me.id)
        }
        out.extend_from_slice(&body[second.1..]);
    }
}
