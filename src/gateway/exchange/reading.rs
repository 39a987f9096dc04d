//! Reads a body as it arrives. Once it is complete, finds the model that it names, and writes the body for the first
//! target.

use super::build::{promise_named, write_first};
use super::event::{ClientMessage, DriverCall, Effect, Outcome};
use super::job::RequestJob;
use super::need::answer_tokens;
use super::next::NextStep;
use super::paths::Endpoint;
use super::request::{Asked, Request};
use super::state::{Outgoing, State, Translating};
use crate::base::limits::BODY_RATE_MIN;
use crate::dialect::{self, Fields, Invalid, Surcharge};
use crate::gateway::budget::REQUEST_BYTES;
use crate::gateway::credential::ClientCredential;
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Model;
use crate::policy::keys::KeyIx;
use crate::policy::prices::ModelPrices;
use crate::policy::refusal::Refusal;
use crate::wire::{ModelEndpoint, Operation, Shape};
use std::io::Write;
use std::time::Duration;

/// The body is complete: checks that the requested model exists and that the key may use it.
/// `complete` is false for a form of which enough has arrived.
pub(super) fn complete(job: &mut RequestJob, mut draft: Outgoing, complete: bool, call: &mut DriverCall) -> NextStep {
    let scanned = if complete { job.request.scan(&mut draft, true, call) } else { Ok(()) };
    match scanned.and_then(|()| job.read(&mut draft, call)) {
        // Writes the body for its provider before admission: a request that cannot be sent is not charged.
        Ok(None) => write_first(job, draft, call),
        Ok(Some(shape)) => {
            call.out.bytes.clear();
            let object = if shape.is_anthropic() { "" } else { r#""object":"response.input_tokens","# };
            // Writing to a Vec cannot fail.
            let count = draft.scan.prompt_tokens(call.message.body).count();
            let _ = write!(call.out.bytes, "{{{object}\"input_tokens\":{count}}}");
            NextStep::Enter(State::Reading { draft }, Effect::Answer(Outcome::ok()))
        }
        // A lack of memory was found before the body was judged.
        Err(_) if draft.scan.has_input() && draft.invalid.is_none() => Translating::reread(job, draft, call.cx),
        Err(refusal) => {
            job.note_model(call.message.body);
            NextStep::refuse(draft, refusal)
        }
    }
}

/// A helper thread has read the body again, see [`Translating::reread`].
#[cold]
pub(super) fn reread(
    job: &mut RequestJob,
    mut draft: Outgoing,
    scanned: Result<(), Invalid>,
    call: &mut DriverCall,
) -> NextStep {
    call.cx.upstreams.requests.keep_work(&mut draft.scan);
    job.request.read = call.cx.now.mono;
    let read = scanned.map_err(|Invalid(why)| Refusal::invalid_body(why));
    // The second scan has tables of its own.
    let read = read.and_then(|()| job.request.keep(&mut draft, call));
    match read.and_then(|()| job.read(&mut draft, call)) {
        Ok(_) => write_first(job, draft, call),
        Err(refusal) => NextStep::refuse(draft, refusal),
    }
}

impl RequestJob {
    /// Reads the request in the body. Returns its API format if only its tokens are to be counted.
    fn read(&mut self, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<Option<Shape>, Refusal> {
        let counts = match self.request.found.endpoint {
            Some(Endpoint::Inference(ModelEndpoint { operation: Operation::CountTokens, shape })) => Some(shape),
            _ => None,
        };
        self.request.still_welcome(call.cx)?;
        if !call.cx.clock_is_right() {
            return Err(Refusal::clock());
        }
        // A count needs only the prompt; but a named model must exist, and the key must be allowed to use it.
        if counts.is_none() || draft.scan.fields().model.is_some() {
            self.choose_model(draft, call)?;
        }
        if counts.is_some() {
            return Ok(counts);
        }
        self.request.attribute(draft, call);
        draft.kept_with = self.request.kept_with(draft, call);
        draft.cache_key = self.request.cache_key(draft, call);
        self.attempt.first_target(&self.request, draft, call.cx)?;
        Ok(None)
    }

    /// The model that the body names, or the default one, if the key may use it.
    fn choose_model(&mut self, draft: &OutgoingRequest, call: &mut DriverCall) -> Result<(), Refusal> {
        let Some(key) = self.request.found.key else { return Ok(()) };
        let fields = draft.scan.fields();
        if fields.thread {
            return Err(Refusal::no_threads());
        }
        if let Some(name) = fields.long_model_name(call.message.body) {
            let name = String::from_utf8_lossy(name);
            self.notes.note_asked(&self.request, &name);
            return Err(Refusal::unknown_model(&name));
        }
        call.cx.report.scratch.clear();
        let catalog = &self.request.setup.config.catalog;
        let asked_name = fields.model_name(call.message.body, &mut call.cx.report.scratch);
        let index = match asked_name {
            Some(name) => match catalog.asked(name) {
                Some(index) => index,
                None => {
                    let refusal = Refusal::unknown_model(name);
                    let name = name.to_owned();
                    self.notes.note_asked(&self.request, &name);
                    return Err(refusal);
                }
            },
            None => catalog.default_model().ok_or_else(Refusal::no_model)?,
        };
        let Some(model) = catalog.get(index) else { return Ok(()) };
        if !call.cx.access.keys.get(key).kind.scope.allows_model(&model.id) {
            let asked = asked_name.unwrap_or(&model.id).to_owned();
            self.notes.note_asked(&self.request, &asked);
            return Err(Refusal::model_scope(asked_name));
        }
        let family = |one: ModelEndpoint| {
            one.as_passthrough().map(|passthrough| ModelEndpoint::passthrough(passthrough.family()))
        };
        let asked = self.request.endpoint().map(|one| family(one).unwrap_or(ModelEndpoint::CHAT));
        if !model.serves.iter().any(|served| Some(*served) == asked) {
            let (id, refusal) = (model.id.clone(), not_served(model, asked));
            self.notes.note_asked(&self.request, &id);
            return Err(refusal);
        }
        let payer = if !model.checked && !fields.may_cost_more() {
            None
        } else {
            if model.client_credential {
                let prefix = &self.request.setup.config.server.key_prefix;
                let credential = ClientCredential::read(&draft.head, call.message.head, prefix)?;
                self.request.said.get_or_insert_default().credential = Some(credential);
            }
            call.cx.access.payer(key, &call.cx.setup.config).ok()
        };
        if payer.is_some_and(|payer| call.cx.accounts.meter.refuses_unpriced(payer))
            && let Err(refusal) = self.request.has_price(index, model, fields, &call.message)
        {
            let id = model.id.clone();
            self.notes.note_asked(&self.request, &id);
            return Err(refusal);
        }
        let answer = answer_tokens(model, fields, None);
        self.request.asked = Some(Asked {
            model: index as u16,
            about: u32::try_from(draft.scan.tokens().tokens_about()).unwrap_or(u32::MAX),
            completion: u32::try_from(answer).unwrap_or(u32::MAX),
            // Their provider decides whether it streams.
            stream: fields.stream && !self.request.relays_media(),
            show_usage: fields.include_usage | draft.head.wants_cost,
            prompt: None,
        });
        Ok(())
    }
}

impl Request {
    /// Reads more of the body, perhaps the last of it.
    pub(super) fn scan(
        &mut self,
        draft: &mut OutgoingRequest,
        complete: bool,
        call: &mut DriverCall,
    ) -> Result<(), Refusal> {
        let length = call.message.body.len() as u64;
        let scanned = match (&draft.invalid, complete) {
            (Some(_), _) => Ok(()),
            (None, true) => draft.scan.finish(call.message.body),
            (None, false) => draft.scan.feed(call.message.body),
        };
        if complete {
            call.cx.upstreams.requests.keep_work(&mut draft.scan);
        }
        // Reported when the body is complete: the response must not depend on how its bytes arrived.
        if let Err(Invalid(why)) = scanned {
            draft.invalid = Some(why);
        }
        let body_timeout = self.setup.config.server.body_timeout;
        if !complete && is_too_slow(length, call.cx.now.mono.micros_since(self.received), body_timeout) {
            return Err(Refusal::body_too_slow(body_timeout));
        }
        if let Some(key) = self.found.key {
            promise_body(draft, key, length, call.cx)?;
        }
        if !complete {
            promise_named(self, draft, call.message.body, call.cx)?;
        }
        let storage = call.message.storage + draft.storage();
        call.cx.memory.budget.came(&mut draft.promise, storage, &mut call.cx.memory.pool);
        let is_form = draft.scan.form().is_some();
        if let Some(why) = draft.invalid.take_if(|_| complete || is_form) {
            return Err(Refusal::invalid_body(why));
        }
        if complete {
            self.read = call.cx.now.mono;
        }
        Ok(())
    }

    /// Minutes may lie between a head and the end of its body: the key may have been revoked meanwhile, and admission
    /// may have gone to another process.
    #[inline]
    pub(super) fn still_welcome(&self, cx: &Cx) -> Result<(), Refusal> {
        let Some(key) = self.found.key else { return Ok(()) };
        if !cx.access.keys.get(key).is_live(cx.now.unix) {
            return Err(Refusal::bad_key("ended while its request arrived"));
        }
        if cx.lifecycle.has_handed_over() {
            return Err(Refusal::upgrading());
        }
        Ok(())
    }

    /// Checks, for a request under a budget, that the model has a price and that no target is sent anything that is
    /// billed at another price.
    #[cold]
    fn has_price(&self, index: usize, model: &Model, fields: &Fields, message: &ClientMessage) -> Result<(), Refusal> {
        if !model.priced {
            return Err(Refusal::unpriced(&model.id));
        }
        if model.client_credential && model.prices == ModelPrices::default() {
            return Ok(()); // the clients pay their provider themselves
        }
        // A count is not sent to a provider.
        let sends = |endpoint: &ModelEndpoint| endpoint.operation != Operation::CountTokens;
        let Some(endpoint) = self.written_for().filter(sends) else { return Ok(()) };
        let found = self.takers(index, model).find_map(|to| dialect::surcharge(endpoint, message.body, fields, &to));
        match found {
            Some(Surcharge { path, word }) => Err(Refusal::unpriced_member(&path, word.as_deref())),
            None => Ok(()),
        }
    }
}

#[cold]
fn not_served(model: &Model, asked: Option<ModelEndpoint>) -> Refusal {
    Refusal::not_served(&model.id, asked.map_or("", ModelEndpoint::name), &model.serves_text())
}

/// True if `bytes` of a body are too few after this time to wait for the rest of it.
#[inline]
pub(crate) fn is_too_slow(length: u64, micros: u64, body_timeout: Duration) -> bool {
    micros > body_timeout.as_micros() as u64 && length < (micros / 1_000_000).saturating_mul(BODY_RATE_MIN)
}

/// Reserves memory for a body of `length` bytes and for the tables of its scan, which grow with its members.
fn promise_body(draft: &mut OutgoingRequest, key: KeyIx, length: u64, cx: &mut Cx) -> Result<(), Refusal> {
    cx.memory.budget.body(&mut draft.promise, key, length, &mut cx.memory.pool)?;
    match draft.scan.storage() {
        0 => Ok(()),
        tables => {
            // The budget has just reserved it.
            let wanted = usize::try_from(length).unwrap_or(0) + tables + REQUEST_BYTES;
            let more = wanted.saturating_sub(draft.promise.total());
            cx.memory.budget.beyond_body(&mut draft.promise, key, more, &mut cx.memory.pool)?;
            draft.charge(&mut cx.memory.pool);
            Ok(())
        }
    }
}
