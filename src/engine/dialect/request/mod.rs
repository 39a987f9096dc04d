//! Checks a complete request body of any format.
//!
//! Owns the classification of fields (specified, documented, denied, unknown) and the text of a refusal. Must never
//! copy the body. Called by the gateway's admission. `rewrite` and the translation work from its notes.

mod body;
mod bound;
pub(super) mod fields;
pub(super) mod leave;
mod members;
mod numbers;
pub(super) mod part_names;
pub(super) mod parts;
mod plain;
mod reading;
mod relayed;
pub(super) mod stored;
mod table;

pub(crate) use bound::lenient_bound_of;
pub use fields::{Fields, Invalid};
pub(crate) use fields::{Member, PresentMembers, refuse};
pub(crate) use leave::Leave;
pub(crate) use members::{Class, Name};
pub(crate) use numbers::whole_number;
pub(crate) use part_names::PartName;
pub(crate) use plain::PlainMessage;
pub(crate) use reading::{Place, Reading};

use super::tokens::{CountLater, PromptTokens};
use crate::dialect::passthrough::form::RequestForm;
use crate::wire::json::{Raw, linear};
use crate::wire::{ModelEndpoint, Passthrough};

/// The bound on completion tokens in `value`, if it is usable.
pub(crate) fn bound_of(value: &[u8]) -> Option<u64> {
    whole_number(Raw::new(value))
}

/// Number of answers that `value` requests; 0 if it has none.
pub(crate) fn answers_of(value: &[u8]) -> u64 {
    numbers::answers(Raw::new(value)).into()
}

/// Bytes of a long text that are read in the time that one value takes, at most.
const VALUE_BYTES: usize = 16;
/// Bytes of a body that is read quickly whatever its values are.
const SMALL: usize = 32 * 1024;

/// Bytes of a long text that are read in the time that `body` takes, at most: a body of many small values takes longer
/// than others.
#[inline]
pub fn reading_work(body: &[u8]) -> usize {
    if body.len() <= SMALL { body.len() } else { body.len() + VALUE_BYTES * most_values(body) }
}

/// Number of values in a body, at most: each follows a comma or an opening bracket.
fn most_values(body: &[u8]) -> usize {
    // In blocks whose counts fit a byte, so that many bytes are compared at a time.
    let begins = |byte: &u8| u8::from(*byte == b',') + u8::from(*byte == b'[') + u8::from(*byte == b'{');
    let count = |block: &[u8]| usize::from(block.iter().map(begins).fold(0u8, u8::wrapping_add));
    body.chunks(usize::from(u8::MAX)).map(count).sum()
}

/// Scans one request body once it is complete; a form also while it arrives.
#[derive(Debug)]
pub struct RequestScan {
    endpoint: ModelEndpoint,
    has_input: bool,
    fields: Fields,
    tokens: CountLater,
    /// Bytes of unknown members, their names included.
    unknown: u32,
    /// The reader of a form, which is no JSON.
    form: Option<Box<RequestForm>>,
}

impl Default for RequestScan {
    fn default() -> RequestScan {
        RequestScan {
            endpoint: ModelEndpoint::CHAT,
            has_input: false,
            fields: Fields::default(),
            tokens: CountLater::default(),
            unknown: 0,
            form: None,
        }
    }
}

impl RequestScan {
    /// Returns a scan that must be [`RequestScan::reset`] first; until then it expects a chat request.
    pub fn new() -> RequestScan {
        RequestScan::default()
    }

    /// Begins another body and keeps the storage.
    #[inline]
    pub fn reset(&mut self, endpoint: ModelEndpoint) {
        (self.endpoint, self.has_input, self.form) = (endpoint, false, None);
        self.clear();
    }

    #[inline]
    fn clear(&mut self) {
        self.fields.reset();
        self.tokens.reset();
        self.unknown = 0;
    }

    /// Begins a form of `declared` bytes, at most `most`.
    pub fn reset_form(&mut self, passthrough: Passthrough, boundary: &[u8], declared: Option<u64>, most: u64) {
        let form = RequestForm::new(passthrough, boundary, declared, most);
        self.clear();
        self.form = Some(Box::new(form));
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

    /// Reads the bytes of a form that have arrived. `body` is everything so far, from its first byte on.
    pub fn feed(&mut self, body: &[u8]) -> Result<(), Invalid> {
        match &mut self.form {
            Some(form) => form.feed(body, false, &mut self.fields, &mut self.tokens),
            None => Ok(()),
        }
    }

    /// Scans a complete body and checks that nothing is missing.
    pub fn finish(&mut self, body: &[u8]) -> Result<(), Invalid> {
        if let Some(form) = &mut self.form {
            return form.feed(body, true, &mut self.fields, &mut self.tokens);
        }
        let _linear = linear(body.len());
        let mut reading = Reading::new(self.endpoint, body, &mut self.fields, &mut self.tokens);
        reading.read()?;
        self.unknown = reading.unknown;
        reading.required().inspect_err(|_| self.has_input = reading.has_input())
    }

    /// True if the body of a chat request is one of the responses format: it has `input` in the place of messages, as
    /// Cursor sends it. [`RequestScan::finish`] then refuses it.
    pub fn has_input(&self) -> bool {
        self.has_input
    }

    /// Like [`RequestScan::finish`], but scans such a body again, as a responses request. For a helper thread: it reads
    /// the whole body, perhaps twice.
    pub fn finish_any(&mut self, body: &[u8]) -> Result<(), Invalid> {
        // A short body has been read before.
        self.clear();
        match self.finish(body) {
            Err(_) if self.has_input => self.reread(body),
            scanned => scanned,
        }
    }

    fn reread(&mut self, body: &[u8]) -> Result<(), Invalid> {
        self.endpoint = ModelEndpoint::RESPONSES;
        self.clear();
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
        &self.fields
    }

    #[inline]
    pub(crate) fn tokens(&self) -> &CountLater {
        &self.tokens
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

#[cfg(test)]
mod tests;
