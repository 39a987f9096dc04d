//! Members of an answer or an event whose values are Tollgate's own, their places in the upstream's document, and the
//! one way to write that document with them.
//!
//! Owns the order of the places and the commas. Must never touch any other byte. Called by `relay::answer` for complete
//! answers and by `relay::event` for events.

use crate::base::words;
use crate::dialect::answer::ResponseIdentity;
use crate::dialect::chat::write_stream::write_usage as write_chat_usage;
use crate::dialect::usage::ObservedUsage;
use crate::wire::Span;
use crate::wire::json::{Number, Raw, key, put, write_inside};

/// Maximum number of replaced values in one document; a document with more (a name repeated many times) is invalid.
const PLACES_MAX: usize = 16;

words! {
    /// A member that Tollgate replaces, or adds if it is missing.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub(crate) enum Own {
        #[default]
        Id = "id",
        Model = "model",
        /// Type of the object.
        Object = "object",
        Created = "created",
        Choices = "choices",
        Usage = "usage",
        Prompt = "prompt_tokens",
        Completion = "completion_tokens",
        Total = "total_tokens",
        /// True if a response is stored, and the id of the previous one; Tollgate stores none.
        Store = "store",
        Previous = "previous_response_id",
    }
}

/// Members that a message and a response must have.
pub(crate) const IDENTITY: &[Own] = &[Own::Id, Own::Model];

/// Places of values to replace, in the order of their beginnings.
#[derive(Copy, Clone, Default)]
pub(super) struct Places {
    /// Two arrays, because zeros are quickly written.
    spans: [Span; PLACES_MAX],
    owns: [Own; PLACES_MAX],
    count: usize,
    /// Bits of the members that have a place.
    placed: u16,
}

impl Places {
    /// Adds a place. That of an object may be added after those of its members.
    pub(super) fn add(&mut self, span: Span, own: Own) {
        let mut at = self.count;
        self.count += 1;
        self.placed |= 1 << own as u16;
        if at >= PLACES_MAX {
            return;
        }
        while at > 0 && self.spans[at - 1].start > span.start {
            (self.spans[at], self.owns[at]) = (self.spans[at - 1], self.owns[at - 1]);
            at -= 1;
        }
        (self.spans[at], self.owns[at]) = (span, own);
    }

    /// True if the document is invalid.
    pub(super) fn is_too_many(&self) -> bool {
        self.count > PLACES_MAX
    }

    /// The places in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, Own)> {
        let count = self.count.min(PLACES_MAX);
        self.spans[..count].iter().copied().zip(self.owns[..count].iter().copied())
    }

    /// True if the member has one or more places.
    pub(super) fn has(&self, own: Own) -> bool {
        self.placed & 1 << own as u16 != 0
    }
}

/// The values.
pub(super) struct OwnValues<'a> {
    pub(super) identity: &'a ResponseIdentity<'a>,
    pub(super) object: &'static str,
    pub(super) created: u64,
    /// Tokens of the prompt, of the completion, and in total.
    pub(super) counts: [u64; 3],
    /// Counters of the usage; `None`: the client gets none.
    pub(super) usage: Option<&'a ObservedUsage>,
}

impl<'a> OwnValues<'a> {
    /// The values in a document without other members of Tollgate's than its identity.
    pub(super) fn of(identity: &'a ResponseIdentity<'a>) -> OwnValues<'a> {
        OwnValues { identity, object: "", created: 0, counts: [0; 3], usage: None }
    }

    fn write(&self, own: Own, out: &mut Vec<u8>) {
        let [prompt, completion, total] = self.counts.map(Number);
        match own {
            Own::Id => write_inside(out, self.identity.id),
            Own::Model => put!(out, self.identity.model()),
            Own::Object => write_inside(out, self.object.as_bytes()),
            Own::Created => put!(out, Number(self.created)),
            Own::Choices => put!(out, "[]"),
            Own::Store => put!(out, "false"),
            Own::Previous => put!(out, "null"),
            Own::Prompt => put!(out, prompt),
            Own::Completion => put!(out, completion),
            Own::Total => put!(out, total),
            Own::Usage => match self.usage {
                None => put!(out, "null"),
                // The usage is inside a choice.
                Some(observed) if observed.reported.output.is_some() => write_chat_usage(observed, self.identity, out),
                Some(_) => {
                    put!(out, r#"{"prompt_tokens":"#, prompt, r#","completion_tokens":"#, completion);
                    put!(out, r#","total_tokens":"#, total, "}");
                }
            },
        }
    }
}

/// Writes a document with values of Tollgate's own.
pub(super) struct OwnWriter<'a> {
    pub(super) document: &'a [u8],
    values: OwnValues<'a>,
    out: &'a mut Vec<u8>,
    /// Length of the part of the document that is written.
    written: usize,
    /// Offset of a text in the document, and its position in the output.
    text: usize,
    text_at: usize,
}

impl<'a> OwnWriter<'a> {
    /// `text`: offset of a text in the document whose new position [`OwnWriter::end`] returns.
    pub(super) fn new(document: &'a [u8], text: usize, values: OwnValues<'a>, out: &'a mut Vec<u8>) -> OwnWriter<'a> {
        OwnWriter { document, values, out, written: 0, text, text_at: 0 }
    }

    /// Replaces a value, unless it is inside one that is replaced already.
    pub(super) fn replace(&mut self, span: Span, own: Own) {
        if span.start as usize >= self.written {
            self.copy(span.start as usize);
            self.values.write(own, self.out);
            self.written = span.end as usize;
        }
    }

    /// Adds members at the beginning of the object at `span`.
    pub(super) fn add(&mut self, span: Span, members: impl Iterator<Item = Own>) {
        self.copy(span.start as usize + 1);
        let begin = self.out.len();
        for own in members {
            key(self.out, own.as_str());
            self.values.write(own, self.out);
        }
        if self.out.len() > begin && Raw::new(span.of(self.document)).members().next().is_some() {
            self.out.push(b',');
        }
    }

    /// Copies the rest. Returns the position of the text in the output.
    pub(super) fn end(mut self) -> usize {
        self.copy(self.document.len());
        self.text_at
    }

    fn copy(&mut self, to: usize) {
        if (self.written..to).contains(&self.text) {
            self.text_at = self.out.len() + self.text - self.written;
        }
        self.out.extend_from_slice(&self.document[self.written..to]);
        self.written = to;
    }
}

/// True for a string that is not empty.
pub(crate) fn is_word(value: Raw<'_>) -> bool {
    value.string().is_some_and(|word| !word.is_empty())
}
