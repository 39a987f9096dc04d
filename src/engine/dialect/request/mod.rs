//! Checks a request body of any format while it arrives.
//!
//! Owns the classification of fields (specified, documented, denied, unknown) and the text of a refusal. Must never
//! copy the body nor read it twice. Called by the gateway's admission. `rewrite` and the translation work from its
//! notes.

mod bound;
mod checks;
pub(super) mod fields;
pub(super) mod leave;
mod members;
mod plain;
pub(super) mod stored;
mod table;

pub(crate) use bound::lenient_bound_of;
pub use fields::{Fields, Invalid};
pub(crate) use fields::{Member, PresentMembers};
pub(crate) use leave::Leave;
pub(crate) use members::{Class, Name};
pub(crate) use plain::PlainMessage;

use super::tokens::{CountLater, PromptTokens};
use crate::dialect::passthrough::form::RequestForm;
use crate::wire::json::{Raw, ScanError, Scanner};
use crate::wire::{ModelEndpoint, Passthrough};
use checks::Checks;

/// The bound on completion tokens in `value`, if it is usable.
pub(crate) fn bound_of(value: &[u8]) -> Option<u64> {
    checks::whole_number(Raw::new(value))
}

/// Number of answers that `value` requests; 0 if it has none.
pub(crate) fn answers_of(value: &[u8]) -> u64 {
    checks::answers(Raw::new(value)).into()
}

/// Scans one request body, fed as it arrives.
#[derive(Debug, Default)]
pub struct RequestScan {
    /// The part that only an incomplete body needs, to be used for another scan once this body is complete.
    pub work: Option<Box<ScanWork>>,
    phase: ScanPhase,
    /// Boxed, like the tokens, since they change places with those of the next scan.
    fields: Box<Fields>,
    tokens: Box<CountLater>,
    unknown: u32,
    /// The reader of a form, which is no JSON.
    form: Option<Box<RequestForm>>,
}

/// How far a scan is.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum ScanPhase {
    /// The body is incomplete or refused.
    #[default]
    Open,
    /// The body is complete and the fields are final.
    Done,
    /// The complete body of a chat request is one of the responses format, see [`RequestScan::has_input`].
    HasInput,
}

/// The part of a scan that is needed only while a body arrives. Boxed, so that a request waiting for a target does not
/// hold it and the next body can use it.
#[derive(Debug)]
pub struct ScanWork {
    scanner: Scanner,
    checks: Checks,
}

impl RequestScan {
    /// Returns a scan that must be [`RequestScan::reset`] first; until then it expects a chat request.
    pub fn new() -> RequestScan {
        RequestScan::default()
    }

    /// Begins another body and keeps the storage.
    #[inline]
    pub fn reset(&mut self, endpoint: ModelEndpoint) {
        let work = self.work.get_or_insert_default();
        work.scanner = Scanner::new();
        work.checks.reset(endpoint);
        (self.phase, self.form) = (ScanPhase::Open, None);
    }

    /// Begins a form of `declared` bytes, at most `most`.
    pub fn reset_form(&mut self, passthrough: Passthrough, boundary: &[u8], declared: Option<u64>, most: u64) {
        let form = RequestForm::new(passthrough, boundary, declared, most);
        self.fields.reset();
        self.tokens.reset();
        (self.phase, self.unknown, self.form) = (ScanPhase::Done, 0, Some(Box::new(form)));
    }

    /// The form that is read.
    #[inline]
    pub fn form(&self) -> Option<&RequestForm> {
        self.form.as_deref()
    }

    /// All of the form, `received` bytes, has arrived; see [`RequestForm::completed`].
    pub fn form_completed(&mut self, received: u64) -> u64 {
        self.form.as_mut().map_or(0, |form| form.completed(received))
    }

    /// Scans the bytes that have arrived. `body` is everything so far, from its first byte on.
    pub fn feed(&mut self, body: &[u8]) -> Result<(), Invalid> {
        if let Some(form) = &mut self.form {
            return form.feed(body, false, &mut self.fields, &mut self.tokens);
        }
        let work = self.work.get_or_insert_default();
        let scanned = work.scanner.scan(body, &mut work.checks);
        if let Some(span) = work.scanner.open_string() {
            work.checks.arriving(body, span);
        }
        work.verdict(scanned)
    }

    /// Scans the rest of a complete body and checks that nothing is missing.
    pub fn finish(&mut self, body: &[u8]) -> Result<(), Invalid> {
        if let Some(form) = &mut self.form {
            return form.feed(body, true, &mut self.fields, &mut self.tokens);
        }
        let work = self.work.get_or_insert_default();
        let scanned = work.scanner.finish(body, &mut work.checks);
        work.verdict(scanned)?;
        if let Err(invalid) = work.checks.finish() {
            if work.checks.has_input(body) {
                self.phase = ScanPhase::HasInput;
            }
            return Err(invalid);
        }
        std::mem::swap(&mut self.fields, &mut work.checks.fields);
        std::mem::swap(&mut self.tokens, &mut work.checks.tokens);
        (self.unknown, self.phase) = (work.checks.unknown, ScanPhase::Done);
        Ok(())
    }

    /// True if [`RequestScan::finish`] has refused a chat request only because it has `input` in the place of
    /// messages: Cursor sends responses requests to the chat endpoint.
    pub fn has_input(&self) -> bool {
        self.phase == ScanPhase::HasInput
    }

    /// Scans the complete body of such a request again, as a responses request. For a helper thread: it reads the whole
    /// body.
    pub fn reread(&mut self, body: &[u8]) -> Result<(), Invalid> {
        self.reset(ModelEndpoint::RESPONSES);
        self.finish(body)?;
        let members = &mut self.fields.members;
        if let Some(at) = members.iter().position(|member| member.name == Name::StreamOptions) {
            // Its meaning is that of a chat request, and no target is sent it.
            let wants = Raw::new(members.remove(at).value.of(body)).get("include_usage");
            self.fields.include_usage = wants.and_then(Raw::bool).unwrap_or(false);
        }
        // A bound under a name of the chat format is sent under that of a response.
        let of_chat = |member: &&mut Member| {
            let is_bound = matches!(member.name, Name::MaxTokens | Name::MaxCompletionTokens);
            is_bound && bound_of(member.value.of(body)).is_some()
        };
        if self.fields.max_tokens.is_none()
            && let Some(member) = members.iter_mut().find(of_chat)
        {
            member.name = Name::MaxOutputTokens;
            self.fields.max_tokens = bound_of(member.value.of(body));
        }
        Ok(())
    }

    /// Results of the scan; complete after [`RequestScan::finish`].
    #[inline]
    pub fn fields(&self) -> &Fields {
        match &self.work {
            Some(work) if self.phase != ScanPhase::Done => &work.checks.fields,
            _ => &self.fields,
        }
    }

    #[inline]
    pub(crate) fn tokens(&self) -> &CountLater {
        match &self.work {
            Some(work) if self.phase != ScanPhase::Done => &work.checks.tokens,
            _ => &self.tokens,
        }
    }

    /// Bytes of storage that grow with the body; 0 for an ordinary request.
    #[inline]
    pub fn storage(&self) -> usize {
        self.fields().storage() + self.tokens().storage()
    }

    /// Estimated tokens of the prompt: system, messages, tools, images and the response format. `body`: all scanned
    /// bytes.
    pub fn prompt_tokens<'a>(&'a self, body: &'a [u8]) -> PromptTokens<'a> {
        PromptTokens::Later(self.tokens(), body)
    }

    /// Bytes of unknown members including their names. Known after [`RequestScan::finish`].
    #[inline]
    pub fn unknown_bytes(&self) -> u64 {
        self.unknown.into()
    }

    /// Upper bound of [`RequestScan::prompt_tokens`], known without reading the body again.
    pub fn prompt_tokens_max(&self) -> u64 {
        self.tokens().tokens_max()
    }

    /// Upper bound of the prompt's tokens that no tokenizer exceeds: one token for each byte of decoded text, and the
    /// constants in `bound`. `image` and `file`: most tokens that the model reads of each.
    #[cold]
    pub fn prompt_most(&self, endpoint: ModelEndpoint, body: &[u8], image: u64, file: u64) -> u64 {
        match endpoint.as_passthrough() {
            // Its texts are part of the body, and a provider reads the query with each of them.
            Some(_) => self.fields().relayed_most(body),
            None => self.fields().around_most(body).saturating_add(self.tokens().tokens_most(body, image, file)),
        }
    }

    /// True if the provider fetches a part of the prompt by its address or its id.
    pub fn is_fetched(&self) -> bool {
        self.tokens().is_fetching() || self.fields().names_objects()
    }

    /// Has `bound` sent as the bound on completion tokens, in place of the client's.
    #[cold]
    pub fn set_bound(&mut self, bound: u64) {
        let fields = &mut self.fields;
        fields.client_tokens = fields.client_bound();
        (fields.max_tokens, fields.sets_bound, fields.has_odd) = (Some(bound), true, true);
    }

    /// The part of [`RequestScan::prompt_tokens`] for files of unknown size that the provider fetches.
    #[inline]
    pub fn tokens_fetched(&self) -> u64 {
        self.tokens().tokens_fetched()
    }
}

impl Default for ScanWork {
    fn default() -> ScanWork {
        ScanWork { scanner: Scanner::new(), checks: Checks::new(ModelEndpoint::CHAT) }
    }
}

impl ScanWork {
    /// Bytes of storage that grow with the body; 0 after an ordinary one.
    #[inline]
    pub fn storage(&self) -> usize {
        self.checks.fields.storage() + self.checks.tokens.storage()
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
