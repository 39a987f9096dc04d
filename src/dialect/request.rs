//! A request body of any shape, checked while it arrives (contract sections 1 and 2).
//!
//! Owns which fields are specified, documented, denied or unknown, and the words of a refusal. Must never copy the
//! body nor look at it twice. Called by the gateway's admission; what it notes is what `rewrite` and the translation
//! work from.

mod checks;
mod fields;
mod input;
mod leave;
mod names;
mod stored;
mod table;
mod unsigned;

pub(in crate::dialect) use fields::Member;
pub use fields::{Fields, Invalid};
pub(in crate::dialect) use leave::Leave;
pub(in crate::dialect) use names::Name;
pub(in crate::dialect) use table::Class;

use super::tokens::PromptTokens;
use crate::wire::Dialect;
use crate::wire::json::{Raw, ScanError, Scanner};
use checks::Checks;

/// A bound on completion tokens, if `value` is usable as one.
pub(in crate::dialect) fn bound_of(value: &[u8]) -> Option<u64> {
    checks::whole_number(Raw::new(value))
}

/// How many answers `value` asks for; 0: it does not say.
pub(in crate::dialect) fn answers_of(value: &[u8]) -> u64 {
    checks::answers(Raw::new(value)).into()
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

    /// Begins a body whose tokens are to be counted, as `POST /v1/messages/count_tokens` is: `max_tokens` not required.
    pub fn reset_count(&mut self, shape: Dialect) {
        self.scanner = Scanner::new();
        self.checks.reset(shape, false);
    }

    /// Looks at what has come: `body` is everything so far, from its first byte on.
    pub fn feed(&mut self, body: &[u8]) -> Result<(), Invalid> {
        let scanned = self.scanner.scan(body, &mut self.checks);
        if let Some(span) = self.scanner.open_string() {
            self.checks.arriving(body, span);
        }
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

    /// Bytes of storage that grow with what is in the body; 0 for an ordinary request.
    #[inline]
    pub fn storage(&self) -> usize {
        self.checks.fields.storage() + self.checks.tokens.storage()
    }

    /// Estimated tokens of the prompt: system, messages, tools, images, what the answer is to fit. `body` is all of
    /// what has been scanned.
    pub fn prompt_tokens<'a>(&'a self, body: &'a [u8]) -> PromptTokens<'a> {
        PromptTokens::Later(&self.checks.tokens, body)
    }

    /// Bytes of unknown members, their names included.
    #[inline]
    pub fn unknown_bytes(&self) -> u64 {
        self.checks.unknown.into()
    }

    /// What [`RequestScan::prompt_tokens`] does not exceed, known without another look at the body.
    pub fn prompt_tokens_max(&self) -> u64 {
        self.checks.tokens.tokens_max()
    }

    /// About as many as [`RequestScan::prompt_tokens`], known without another look at the body.
    pub fn prompt_tokens_about(&self) -> u64 {
        self.checks.tokens.tokens_about()
    }

    fn verdict(&mut self, scanned: Result<(), ScanError>) -> Result<(), Invalid> {
        match scanned {
            Ok(()) => Ok(()),
            Err(ScanError::Syntax(syntax)) => Err(Invalid(syntax.to_string())),
            Err(ScanError::Stopped) => Err(self.checks.refusal()),
        }
    }
}

#[cfg(test)]
mod tests;
