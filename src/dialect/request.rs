//! A request body of either shape, checked while it arrives (contract sections 1 and 2).
//!
//! Owns which fields are specified, documented, denied or unknown, and the words of a refusal. Must never copy the
//! body nor look at it twice. Called by the gateway's admission; what it notes is what `rewrite` and the translation
//! work from.

mod checks;
mod table;
mod unsigned;

pub(in crate::dialect) use table::{Class, Name};

use super::tokens::Estimator;
use crate::base::limits::MEMBERS_MAX;
use crate::wire::json::{ScanError, Scanner, unescape};
use crate::wire::{Dialect, Span};
use checks::Checks;

/// Why a body is refused, in the client's words: names the field by its path and says what was expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid(pub String);

/// One member of the request's top-level object.
#[derive(Copy, Clone, Debug)]
pub(in crate::dialect) struct Member {
    /// The key between its quotes, escapes still in it.
    pub(in crate::dialect) key: Span,
    /// The value, quotes and brackets included.
    pub(in crate::dialect) value: Span,
    /// Which member it is.
    pub(in crate::dialect) name: Name,
}

impl Member {
    /// Offset of the key's opening quote.
    pub(in crate::dialect) fn start(&self) -> usize {
        self.key.start as usize - 1
    }

    /// Offset just behind the value.
    pub(in crate::dialect) fn end(&self) -> usize {
        self.value.end as usize
    }
}

/// What the gateway must know of a request.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The model's name as written between its quotes; `None` if absent or `null`.
    pub model: Option<Span>,
    /// A stream is asked for.
    pub stream: bool,
    /// `stream_options.include_usage`: the client wants the usage chunk (chat).
    pub include_usage: bool,
    /// The bound on completion tokens: `max_completion_tokens` where usable, else `max_tokens`.
    pub max_tokens: Option<u64>,
    /// Local estimate of the prompt's tokens: system, messages, tools, images.
    pub prompt_estimate: u64,
    /// `thread`: the client wants its conversation held at the provider and sends the rest of it later (messages).
    pub thread: bool,
    pub(in crate::dialect) members: Vec<Member>,
    /// Parts of the body that are not for an upstream of the same shape, in order: reasoning without a signature.
    pub(in crate::dialect) cuts: Vec<Span>,
}

impl Fields {
    /// The model's name; `scratch` is used where the name is written with escapes.
    pub fn model_name<'a>(&self, body: &'a [u8], scratch: &'a mut Vec<u8>) -> Option<&'a str> {
        let raw = self.model?.of(body);
        if !raw.contains(&b'\\') {
            return std::str::from_utf8(raw).ok();
        }
        scratch.clear();
        unescape(raw, scratch);
        std::str::from_utf8(scratch).ok()
    }

    fn reset(&mut self) {
        let (mut members, mut cuts) = (std::mem::take(&mut self.members), std::mem::take(&mut self.cuts));
        members.clear();
        cuts.clear();
        *self = Fields { members, cuts, ..Fields::default() };
    }
}

/// Scans one request body, fed as it arrives.
#[derive(Debug)]
pub struct RequestScan {
    scanner: Scanner,
    checks: Checks,
}

impl Default for RequestScan {
    fn default() -> RequestScan {
        RequestScan::new()
    }
}

impl RequestScan {
    /// A scan that has yet to be [`RequestScan::reset`]; until then it expects a chat request.
    pub fn new() -> RequestScan {
        RequestScan { scanner: Scanner::new(), checks: Checks::new(Dialect::Chat) }
    }

    /// Begins another body; storage is kept.
    pub fn reset(&mut self, shape: Dialect) {
        self.scanner = Scanner::new();
        self.checks.reset(shape, true);
    }

    /// Begins a body of `POST /v1/messages/count_tokens`: messages-shaped, `max_tokens` not required.
    pub fn reset_count(&mut self) {
        self.scanner = Scanner::new();
        self.checks.reset(Dialect::Messages, false);
    }

    /// Looks at what has come: `body` is everything so far, from its first byte on.
    pub fn feed(&mut self, body: &[u8]) -> Result<(), Invalid> {
        let scanned = self.scanner.scan(body, &mut self.checks);
        self.verdict(scanned)
    }

    /// The body is complete: looks at the rest and at what is missing.
    pub fn finish(&mut self, body: &[u8]) -> Result<(), Invalid> {
        let scanned = self.scanner.finish(body, &mut self.checks);
        self.verdict(scanned)?;
        self.checks.finish()
    }

    /// What was found; complete after [`RequestScan::finish`].
    pub fn fields(&self) -> &Fields {
        &self.checks.fields
    }

    fn verdict(&mut self, scanned: Result<(), ScanError>) -> Result<(), Invalid> {
        match scanned {
            Ok(()) => Ok(()),
            Err(ScanError::Syntax(syntax)) => Err(Invalid(syntax.to_string())),
            Err(ScanError::Stopped) => Err(self.checks.refusal()),
        }
    }
}

/// Keeps the number of members within its bound.
fn too_many() -> String {
    format!("the body: expected at most {MEMBERS_MAX} members")
}

#[cfg(test)]
mod tests;
