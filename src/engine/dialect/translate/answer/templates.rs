//! Templates of earlier complete answers, with holes for the parts that differ between answers: ids, dates, the text
//! and its counters. A provider formats all its answers alike, so an answer that matches a template is compared instead
//! of parsed.
//!
//! Owns the comparison. Must never read an answer in another way than the parser: all bytes outside the holes equal
//! those of a valid, parsed answer; strings fill the holes of strings, whole numbers those of numbers, and the counters
//! add up. Must never store content: a template has room only for short words. Called by `relay::answer` and
//! [`super::reply`]; property tests and fuzz targets compare both methods.

use super::hole::AnswerHole;
use super::whole::{AnswerPart, WholeAnswer};
use crate::base::ring::Ring;
use crate::dialect::answer::ResponseIdentity;
use crate::dialect::dispatch::with_format;
use crate::dialect::keys::{K, each_value};
use crate::dialect::neutral::delta::StopReason;
use crate::dialect::usage::{ObservedUsage, Reported};
use crate::wire::json::{Token, string_end};
use crate::wire::template::{BytesTemplate, number};
use crate::wire::{ModelEndpoint, Shape, Span};

/// Number of templates; a new one replaces the oldest.
const KEPT_MAX: usize = 4;
/// Maximum bytes of an answer without the contents of its holes.
const BYTES_MAX: usize = 2048;
/// Maximum bytes of a string outside the holes, such as a finish reason: a longer one may be content.
const WORD_MAX: usize = 64;
/// Levels whose strings are seen. A longer container below them may have content.
const LEVELS_MAX: usize = 7;
/// Maximum digits of a number; larger numbers are left to the parser, which rejects them.
const DIGITS_MAX: usize = 12;
/// Maximum number of holes.
const HOLES_MAX: usize = 12;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct AnswerTemplates(Ring<AnswerTemplate>);

/// The hole for the value at `path` in an answer of a format.
fn hole_of(shape: Shape, path: &[K], token: Token) -> Option<AnswerHole> {
    match (path, token) {
        ([K::Id], Token::String) => Some(AnswerHole::Id),
        ([K::Model], Token::String) => Some(AnswerHole::Model),
        _ => with_format!(shape, F => F::hole(path, token)),
    }
}

#[derive(Debug)]
struct AnswerTemplate {
    template: BytesTemplate<AnswerHole, { HOLES_MAX + 1 }>,
    shape: Shape,
    /// The learned answer's report.
    reported: Reported,
    /// The reason for its end, if it was translated.
    reason: Option<StopReason>,
}

/// Values in the holes of an answer.
struct HoleValues {
    id: Span,
    model: Span,
    text: Span,
    reported: Reported,
    reason: Option<StopReason>,
}

impl AnswerTemplates {
    /// Passes on an answer that matches a template.
    pub(crate) fn pass(
        &mut self,
        endpoint: ModelEndpoint,
        body: &[u8],
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Option<ObservedUsage> {
        if !is_fit(endpoint, identity) {
            return None;
        }
        let found = self.find(endpoint.shape, false, body)?;
        found.write(body, identity, out);
        Some(ObservedUsage { reported: found.reported, relayed_tokens: 0, units: 0 })
    }

    /// Reads an answer of format `from` that matches a template, for a translation.
    pub(crate) fn read<'a>(&mut self, from: Shape, body: &'a [u8]) -> Option<WholeAnswer<'a>> {
        let HoleValues { text, reported, reason, .. } = self.find(from, true, body)?;
        Some(WholeAnswer::of_text(text.of(body), reason?, reported))
    }

    fn find(&mut self, shape: Shape, is_translated: bool, body: &[u8]) -> Option<HoleValues> {
        let mut text = (0, 0);
        self.0.find(|template| {
            let is_like = template.shape == shape && template.reason.is_some() == is_translated;
            // The readers differ in what they make of an empty text.
            let is_read = |found: &HoleValues| !is_translated || !found.text.is_empty();
            if is_like { template.matches(body, &mut text).filter(is_read) } else { None }
        })
    }

    /// Learns a parsed answer, which is valid. `passed` is what the client gets: only id and model may differ.
    #[cold]
    pub(crate) fn learn_passed(
        &mut self,
        endpoint: ModelEndpoint,
        body: &[u8],
        identity: &ResponseIdentity<'_>,
        observed: &ObservedUsage,
        passed: &[u8],
    ) {
        if is_fit(endpoint, identity) {
            self.learn((endpoint.shape, None), body, observed.reported, &|found| {
                let mut out = Vec::new();
                found.write(body, identity, &mut out);
                out == passed
            });
        }
    }

    /// Learns an answer that was read for a translation, if it has only a text.
    #[cold]
    pub(super) fn learn_read(&mut self, from: Shape, body: &[u8], answer: &WholeAnswer<'_>) {
        if matches!(answer.parts[..], [AnswerPart::Text(_)])
            && answer.sequence.is_none()
            && answer.explanation.is_none()
        {
            self.learn((from, Some(answer.reason)), body, answer.reported, &|found| {
                let text = found.text.of(body);
                (text.as_ptr() as usize, text.len()) == answer.last_text
            });
        }
    }

    /// Learns an answer if its own template gives the same report, and a result that `is_right`.
    fn learn(
        &mut self,
        (shape, reason): (Shape, Option<StopReason>),
        body: &[u8],
        reported: Reported,
        is_right: &dyn Fn(&HoleValues) -> bool,
    ) {
        let cached = reported.cache_read.max(reported.cache_write).filter(|_| has_total(shape));
        if !self.0.takes() || cached > Some(0) {
            return;
        }
        let Some(holes) = holes(shape, body) else { return };
        let hollow: usize = holes.iter().map(|(span, _)| span.len()).sum();
        if body.len() - hollow > BYTES_MAX {
            return;
        }
        let new = || AnswerTemplate { template: BytesTemplate::default(), shape, reported, reason };
        let place = self.0.place(KEPT_MAX, new);
        place.template.learn(body, &holes, [b"", b""]);
        (place.shape, place.reported, place.reason) = (shape, reported, reason);
        let found = place.matches(body, &mut (0, 0)).filter(|found| found.reported == reported);
        if !found.is_some_and(|found| is_right(&found)) {
            place.template.forget();
        }
    }
}

/// True for an endpoint whose answers have templates. An answer may repeat parameters that a client must not see.
fn is_fit(endpoint: ModelEndpoint, identity: &ResponseIdentity<'_>) -> bool {
    let may_repeat = with_format!(endpoint.shape, F => F::REPEATS_REQUEST);
    endpoint == ModelEndpoint::generate(endpoint.shape) && (!may_repeat || identity.hides.is_empty())
}

/// True if the usage has a total, and the prompt's counter includes the cached tokens.
fn has_total(shape: Shape) -> bool {
    with_format!(shape, F => F::HAS_TOTAL)
}

/// The holes of an answer in order; `None` if one is missing, repeated, or contains a value that it must not.
fn holes(shape: Shape, body: &[u8]) -> Option<Vec<(Span, AnswerHole)>> {
    let (mut holes, mut usages, mut is_odd) = (Vec::new(), 0, false);
    each_value(body, &mut |buf, path, token, whole| {
        usages += u32::from(path == [K::Usage]);
        // Usage in an array is that of several steps.
        is_odd |= path.first() == Some(&K::Usage) && path.contains(&K::Item);
        let hole = hole_of(shape, path, token);
        let is_text = token == Token::String || path.len() > LEVELS_MAX;
        let value = match hole {
            Some(AnswerHole::Id | AnswerHole::Model | AnswerHole::Text | AnswerHole::Word) => {
                Some(Span { start: whole.start + 1, end: whole.end - 1 })
            }
            Some(hole) => {
                let is_whole = number(whole.of(buf), DIGITS_MAX).is_some_and(|(_, len)| len == whole.len());
                is_odd |= !is_whole && hole != AnswerHole::Number;
                is_whole.then_some(whole)
            }
            None => {
                is_odd |= is_text && whole.len() > WORD_MAX;
                None
            }
        };
        holes.extend(value.zip(hole));
    });
    let count = |wanted| holes.iter().filter(|(_, hole)| *hole == wanted).count();
    let is_complete = AnswerHole::NEEDED.into_iter().all(|hole| count(hole) == 1)
        && count(AnswerHole::Total) == usize::from(has_total(shape));
    (is_complete && !is_odd && usages == 1 && holes.len() <= HOLES_MAX).then_some(holes)
}

impl AnswerTemplate {
    /// Compares `body` with the template. `text`: start and end of a text that has been scanned before.
    fn matches(&self, body: &[u8], text: &mut (usize, usize)) -> Option<HoleValues> {
        let [mut id, mut model] = [Span::default(); 2];
        let [mut prompt, mut completion, mut total] = [0; 3];
        let mut comparison = self.template.compare(body)?;
        while let Some(hole) = comparison.next_hole()? {
            let counter = match hole {
                AnswerHole::Number => &mut 0,
                AnswerHole::Prompt => &mut prompt,
                AnswerHole::Completion => &mut completion,
                AnswerHole::Total => &mut total,
                AnswerHole::Id | AnswerHole::Model | AnswerHole::Text | AnswerHole::Word => {
                    let at = body.len() - comparison.left.len();
                    let scanned = hole == AnswerHole::Text && text.0 == at;
                    let end = if scanned { text.1 } else { string_end(body, at)? };
                    match hole {
                        AnswerHole::Id => id = Span::new(at, end),
                        AnswerHole::Model => model = Span::new(at, end),
                        AnswerHole::Text => *text = (at, end),
                        _ => {}
                    }
                    comparison.fill(end - at)?;
                    continue;
                }
            };
            let (value, len) = number(comparison.left, DIGITS_MAX)?;
            *counter = value;
            comparison.fill(len)?;
        }
        let adds_up = !has_total(self.shape) || prompt + completion == total;
        let reported = Reported { input: Some(prompt), output: Some(completion), ..self.reported };
        let found = HoleValues { id, model, text: Span::new(text.0, text.1), reported, reason: self.reason };
        (comparison.left.is_empty() && adds_up).then_some(found)
    }
}

impl HoleValues {
    /// Appends the answer with its id and model replaced.
    fn write(&self, body: &[u8], identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        out.reserve(body.len() + identity.id.len() + identity.model.len());
        let (id, model) = ((self.id, identity.id), (self.model, identity.model.as_bytes()));
        let (first, second) = if self.id.start < self.model.start { (id, model) } else { (model, id) };
        // The quotes around both stay. An id of Tollgate's and the id of a model need no escapes.
        out.extend_from_slice(&body[..first.0.start as usize]);
        out.extend_from_slice(first.1);
        out.extend_from_slice(&body[first.0.end as usize..second.0.start as usize]);
        out.extend_from_slice(second.1);
        out.extend_from_slice(&body[second.0.end as usize..]);
    }
}
