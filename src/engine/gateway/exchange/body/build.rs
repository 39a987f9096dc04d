//! Writes the body for a target: the client's own with replaced parts if the target has its API format, otherwise a
//! translation. Also notes the fields that the target is not sent.

use crate::base::limits::DROPPED_MAX;
use crate::dialect::{self, Invalid, rewrite};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::diagnosis::beginning;
use crate::gateway::exchange::event::{ClientMessage, DriverCall};
use crate::gateway::exchange::job::{Attempt, RequestJob, RequestNotes};
use crate::gateway::exchange::request::{Endpoint, Request};
use crate::gateway::exchange::state::{NextStep, Outgoing};
use crate::gateway::memory::shares::REQUEST_BYTES;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::{Model, Target};
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use crate::wire::json::unescape;
use crate::wire::{ModelEndpoint, Operation};

/// Result of writing an outgoing body.
pub(crate) enum Built {
    /// The body is complete.
    Whole,
    /// The body is too long to be translated on the loop.
    TooLong,
}

/// Writes the body for the first target that it can be written for.
#[inline]
pub(crate) fn build_first(
    job: &mut RequestJob,
    draft: &mut OutgoingRequest,
    call: &mut DriverCall,
) -> Result<Built, Refusal> {
    loop {
        match job.build(draft, call) {
            Err(_) if job.attempt.next_to_write(&job.request, draft, call.cx) => {}
            built => return built,
        }
    }
}

impl Built {
    /// The step after the body was written for the first target.
    #[inline]
    pub(crate) fn next(self, draft: Outgoing) -> NextStep {
        match self {
            Built::Whole => NextStep::Reserve { draft, others_counted: false },
            Built::TooLong => NextStep::Translate(draft, None),
        }
    }
}

/// Target that a body is written for, and its endpoint.
pub(crate) struct Wanted<'a> {
    pub(crate) endpoint: ModelEndpoint,
    translated: bool,
    pub(crate) to: dialect::RequestTarget<'a>,
}

impl RequestJob {
    /// Writes the body for the chosen target from the client's own, and notes the fields that the target is not sent.
    #[inline]
    pub(crate) fn build(&mut self, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<Built, Refusal> {
        let RequestJob { request, attempt, notes, .. } = self;
        let wanted = attempt.wanted(request).ok_or_else(Refusal::internal)?;
        let built = request.lay_out(draft, &wanted, call)?;
        notes.note_dropped(request, draft, &wanted, &call.message);
        // The body goes to a helper thread.
        if matches!(built, Built::TooLong) {
            self.count_prompt(draft, call);
        }
        Ok(built)
    }
}

impl RequestNotes {
    /// Notes the fields of the client's body that the chosen target is not sent.
    #[inline]
    pub(crate) fn note_dropped(
        &mut self,
        request: &Request,
        draft: &OutgoingRequest,
        wanted: &Wanted<'_>,
        message: &ClientMessage,
    ) {
        let &Wanted { endpoint, translated, ref to } = wanted;
        let mut names = dialect::dropped(endpoint, translated, message.body, draft.scan.fields(), to).peekable();
        let lost = if translated { draft.state.as_ref().map_or(&[][..], |state| &state.dropped) } else { &[] };
        if names.peek().is_some() || !self.is_empty() || !lost.is_empty() {
            let mut plain = Vec::new();
            let mut tell = |name: &[u8]| {
                plain.clear();
                unescape(beginning(name), &mut plain);
                request.printable_word(&plain)
            };
            let lost = lost.iter().map(|name| name.as_bytes());
            let names = names.chain(lost).take(DROPPED_MAX).map(&mut tell).collect();
            self.get_mut().dropped = names;
        }
    }

    /// Notes fields of a form that its target is not sent.
    #[cold]
    pub(crate) fn note_left_out(&mut self, request: &Request, names: &[Box<[u8]>]) {
        let noted = &mut self.get_mut().dropped;
        let room = DROPPED_MAX.saturating_sub(noted.len());
        noted.extend(names.iter().take(room).map(|name| request.printable_word(name)));
    }
}

impl Request {
    fn lay_out(
        &self,
        draft: &mut OutgoingRequest,
        wanted: &Wanted<'_>,
        call: &mut DriverCall,
    ) -> Result<Built, Refusal> {
        let &Wanted { endpoint, translated, ref to } = wanted;
        draft.rewind(&mut call.cx.memory.pool);
        let added = to.capabilities.params_room();
        let built = match translated {
            true => dialect::structure(endpoint.shape, draft.scan.fields())
                .map_err(|Invalid(why)| Refusal::invalid_body(why))?,
            false => 0,
        };
        if (translated || added > 0)
            && let Some(key) = self.found.key
        {
            // The memory reserved for the translation of an earlier attempt is used again.
            let length = call.message.body.len();
            let room = if translated { OutgoingRequest::room_for(length) } else { REQUEST_BYTES };
            let wanted = length + room + built + added + draft.scan.storage();
            let more = wanted.saturating_sub(draft.promise.total());
            call.cx.memory.shares.beyond_body(&mut draft.promise, key, more, &mut call.cx.memory.pool)?;
        }
        // A translation costs as much by its items as by its bytes.
        if translated && call.cx.is_long(call.message.body.len() + built) {
            return Ok(Built::TooLong);
        }
        if translated {
            let to = dialect::RequestTarget { cache_key: draft.cache_key, ..*to };
            draft
                .translate(endpoint.shape, call.message.body, &to, &mut call.cx.memory.pool)
                .map_err(|Invalid(why)| Refusal::invalid_body(why))?;
        } else {
            let (body, pool) = (call.message.body, &mut call.cx.memory.pool);
            let spliced = if draft.scan.form().is_some() {
                draft.lay_out_form(body, to)
            } else {
                // The client's own body with replaced parts.
                let (fields, pieces) = (draft.scan.fields(), &mut draft.pieces);
                let length = draft.text.edit_small(pool, |out| rewrite(endpoint, body, fields, to, out, pieces));
                length.map(|length| draft.length = length)
            };
            spliced.map_err(|Invalid(why)| Refusal::invalid_body(why))?;
        }
        if translated || added > 0 || draft.text.capacity() > REQUEST_BYTES {
            self.keep(draft, call)?;
        }
        Ok(Built::Whole)
    }

    /// The outgoing body is written. It stays in the buffers with the state of the translation, if the share of the key
    /// allows it: their size was not known before.
    #[inline]
    pub(crate) fn keep(&self, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<(), Refusal> {
        let storage = call.message.storage.max(call.message.body.len()) + draft.storage();
        match self.found.key {
            Some(key) => call.cx.memory.shares.took(&mut draft.promise, key, storage, &mut call.cx.memory.pool),
            None => Ok(()),
        }
    }
}

impl Attempt {
    /// The body that the chosen target needs.
    #[inline(always)]
    pub(crate) fn wanted<'a>(&self, request: &'a Request) -> Option<Wanted<'a>> {
        let (endpoint, target) = (request.written_for()?, self.target(request)?);
        let provider = request.setup.config.providers.get(target.provider)?;
        let asked = request.asked.map_or(0, |asked| asked.model as usize);
        let before = if endpoint.is_passthrough() { request.model()?.targets.len() } else { 0 };
        let capabilities = request.setup.requests.capabilities(asked, before + self.target as usize)?;
        let to = dialect::RequestTarget { model: &target.model, shape: provider.shape, capabilities, cache_key: None };
        // An answer in the client's format needs a translation, too, if its request was of another.
        let translated = provider.shape != endpoint.shape || request.found.has_input;
        Some(Wanted { endpoint, translated, to })
    }
}

/// Reserves memory for the translation of a long body of `length` declared bytes if every model that the key may use
/// needs one. Without memory the request is refused before its body is read.
pub(crate) fn promise_translation(
    request: &Request,
    draft: &mut OutgoingRequest,
    length: u64,
    cx: &mut Cx,
) -> Result<(), Refusal> {
    let Some(length) = usize::try_from(length).ok().filter(|length| cx.is_long(*length)) else { return Ok(()) };
    let Some(key) = request.found.key else { return Ok(()) };
    let more = (length + OutgoingRequest::room_for(length)).saturating_sub(draft.promise.total());
    match more > 0 && is_translated(request, key, cx) {
        true => cx.memory.shares.beyond_body(&mut draft.promise, key, more, &mut cx.memory.pool),
        false => Ok(()),
    }
}

/// True if no target of any model that the key may use has the client's API format.
fn is_translated(request: &Request, key: KeyIx, cx: &Cx) -> bool {
    let (config, Some(Endpoint::Inference(ModelEndpoint { operation: Operation::Generate, shape: own }))) =
        (&request.setup.config, request.found.endpoint)
    else {
        return false;
    };
    let is_foreign = |model: &Model| {
        let shape = |target: &Target| config.provider(target.provider).map(|provider| provider.shape);
        !model.targets.iter().any(|target| shape(target) == Some(own))
    };
    let scope = &cx.access.keys.get(key).kind.scope;
    let mut may_be = config.catalog.models().iter().filter(|model| scope.allows_model(&model.id)).peekable();
    may_be.peek().is_some() && may_be.all(is_foreign)
}
