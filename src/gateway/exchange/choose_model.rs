//! Finds the model that a request names, and checks that the key may use it.

use super::event::{ClientMessage, DriverCall};
use super::job::RequestJob;
use super::need::answer_tokens;
use super::request::{Asked, Request};
use crate::dialect::{self, Fields, Surcharge};
use crate::gateway::credential::ClientCredential;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Model;
use crate::policy::prices::ModelPrices;
use crate::policy::refusal::Refusal;
use crate::wire::{ModelEndpoint, Operation};

impl RequestJob {
    /// The model that the body names, or the default one, if the key may use it.
    pub(super) fn choose_model(&mut self, draft: &OutgoingRequest, call: &mut DriverCall) -> Result<(), Refusal> {
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
                self.request.extras.get_or_insert_default().credential = Some(credential);
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
    /// Checks, for a request under a budget, that the model has a price and that no target is sent anything that is
    /// billed at another price.
    #[cold]
    fn has_price(&self, index: usize, model: &Model, fields: &Fields, message: &ClientMessage) -> Result<(), Refusal> {
        let passthrough = self.endpoint().and_then(|endpoint| endpoint.as_passthrough());
        if !model.priced || passthrough.is_some_and(|passthrough| model.units.is_open(passthrough)) {
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
