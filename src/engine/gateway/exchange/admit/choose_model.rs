//! Finds the model that a request names, and checks that the key may use it. Then reads from the body what depends on
//! the model: the attribution, and the affinity hash.

use super::cost::answer_tokens;
use crate::base::digest::{hex_into, sha256};
use crate::base::hash::mix_bytes;
use crate::dialect::{self, CacheKey, Fields, Named, Surcharge};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{ClientMessage, DriverCall};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::{Asked, Request};
use crate::gateway::provider::credential::ClientCredential;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::agent::Client;
use crate::policy::attribution::{Attribution, plain};
use crate::policy::catalog::{Affinity, Model};
use crate::policy::keys::stands_in;
use crate::policy::prices::ModelPrices;
use crate::policy::refusal::Refusal;
use crate::wire::head::{HeaderField, RequestHead, values};
use crate::wire::{ModelEndpoint, Operation};

/// Part of a request whose price is not configured.
pub(super) enum LacksPrice<'a> {
    /// Its model.
    Model,
    /// A member.
    Member(Surcharge<'a>),
}

impl RequestJob {
    /// The model that the body names, or the default one, if the key may use it.
    pub(crate) fn choose_model(&mut self, draft: &OutgoingRequest, call: &mut DriverCall) -> Result<(), Refusal> {
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
                    let name = String::from_utf8_lossy(name).into_owned();
                    self.notes.note_asked(&self.request, &name);
                    return Err(Refusal::unknown_model(&name));
                }
            },
            None => catalog.default_model().ok_or_else(Refusal::no_model)?,
        };
        let Some(model) = catalog.get(index) else { return Ok(()) };
        if !call.cx.access.keys.get(key).kind.scope.allows_model(&model.id) {
            let (asked, id) = (asked_name.map(|name| String::from_utf8_lossy(name).into_owned()), model.id.clone());
            self.notes.note_asked(&self.request, asked.as_deref().unwrap_or(&id));
            return Err(Refusal::model_scope(asked.as_deref()));
        }
        let asked = self.request.family();
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
            && let Some(lack) = self.request.lacks_price(index, model, fields, &call.message)
        {
            let id = model.id.clone();
            self.notes.note_asked(&self.request, &id);
            return Err(match lack {
                LacksPrice::Model => Refusal::unpriced(&model.id),
                LacksPrice::Member(Surcharge { path, word }) => Refusal::unpriced_member(&path, word.as_deref()),
            });
        }
        let answer = answer_tokens(model, fields, None);
        self.request.note_units(draft.scan.form(), fields);
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
    /// The endpoint that a model must serve, as configurations name it.
    pub(super) fn family(&self) -> Option<ModelEndpoint> {
        self.endpoint().map(ModelEndpoint::family)
    }

    /// Name of what has no price for a request under a budget: the model, or something that a target is sent and bills
    /// at another price.
    #[cold]
    pub(super) fn lacks_price<'m>(
        &self,
        index: usize,
        model: &Model,
        fields: &Fields,
        message: &'m ClientMessage,
    ) -> Option<LacksPrice<'m>> {
        let passthrough = self.endpoint().and_then(|endpoint| endpoint.as_passthrough());
        let lists = || self.targets_of(model).iter().map(|target| model.prices_at(Some(target)));
        let is_open = |passthrough| lists().any(|(_, units)| units.is_open(passthrough));
        if !model.priced || passthrough.is_some_and(is_open) {
            return Some(LacksPrice::Model);
        }
        if model.client_credential && lists().all(|(prices, _)| *prices == ModelPrices::default()) {
            return None; // the clients pay their provider themselves
        }
        // A count is not sent to a provider.
        let sends = |endpoint: &ModelEndpoint| endpoint.operation != Operation::CountTokens;
        let endpoint = self.written_for().filter(sends)?;
        let mut targets = self.takers(index, model);
        let found = targets.find_map(|to| dialect::surcharge(endpoint, message.body, fields, &to, false));
        found.map(LacksPrice::Member)
    }
}

#[cold]
fn not_served(model: &Model, asked: Option<ModelEndpoint>) -> Refusal {
    Refusal::not_served(&model.id, asked.map_or("", ModelEndpoint::name), &model.serves_text())
}

/// Attribution of a request in its usage record and log line: the user and the conversation that the client names, and
/// the kind of client program. It is never added to what a provider gets, and no metric has it as a label.
impl Request {
    /// Notes user, session and client, if the configuration keeps them.
    pub(crate) fn attribute(&mut self, draft: &OutgoingRequest, call: &DriverCall) {
        let kept = self.setup.config.server.attribution;
        if kept == Attribution::Off {
            return;
        }
        let header = draft.head.field(HeaderField::Session).of(call.message.head);
        let Named { user, session } = dialect::named(call.message.body, draft.scan.fields());
        self.meta.agent = Client::of_agent(draft.head.field(HeaderField::UserAgent).of(call.message.head));
        if header.is_empty() && user.is_none() && session.is_none() && !draft.head.names_agent {
            return;
        }
        let hash = |name: &str| call.cx.report.hash_key.user(name.as_bytes());
        let prefix = &self.setup.config.server.key_prefix;
        let user = user.and_then(|name| match kept {
            Attribution::Plain if !stands_in(&name, prefix) => plain(&name),
            _ => Some(hash(&name)),
        });
        let session = match header {
            [] => session.map(|name| call.cx.report.hash_key.session(name.as_bytes())),
            name => Some(call.cx.report.hash_key.session(name)),
        };
        let extras = self.extras.get_or_insert_default();
        (extras.user, extras.session) = (user, session);
        if draft.head.names_agent {
            let [agent, parent] = agents(call.message.head, header);
            let hash = |name: &[u8]| (!name.is_empty()).then(|| call.cx.report.hash_key.session(name));
            (extras.agent, extras.parent_agent) = (hash(agent), hash(parent));
        }
    }

    /// Notes the session that a refused head names, since the body is not read.
    #[cold]
    pub(crate) fn attribute_head(&mut self, head: &RequestHead, bytes: &[u8], cx: &Cx) {
        let session = head.field(HeaderField::Session).of(bytes);
        let is_kept = self.setup.config.server.attribution != Attribution::Off && self.found.key.is_some();
        if is_kept && !session.is_empty() {
            self.extras.get_or_insert_default().session = Some(cx.report.hash_key.session(session));
        }
    }
}

/// The agent that a head names, and what started it; each is empty if it is not named. Codex and opencode name a
/// sub-agent by its thread or session, and only a sub-agent has a parent.
#[cold]
fn agents<'a>(head: &'a [u8], session: &'a [u8]) -> [&'a [u8]; 2] {
    let named = |name: &'static str| values(head, name).find(|value| !value.is_empty()).unwrap_or_default();
    let agent = named("x-claude-code-agent-id");
    let (thread, parent) = (named("x-codex-parent-thread-id"), named("x-parent-session-id"));
    match (agent.is_empty(), thread.is_empty()) {
        (false, _) => [agent, named("x-claude-code-parent-agent-id")],
        (true, false) => [named("thread-id"), thread],
        (true, true) if parent.is_empty() => [b""; 2],
        (true, true) => [session, parent],
    }
}

/// Affinity: the turns of a conversation go to the same target, and find the provider's cache again. It matters only if
/// a model has several targets of equal priority, or if the provider gets a cache key.
impl Request {
    /// Number of the conversation or key that stays at one target; 0 if the model has no affinity.
    pub(crate) fn kept_with(&self, draft: &OutgoingRequest, call: &DriverCall) -> u64 {
        let Some(model) = self.model().filter(|model| model.shares) else { return 0 };
        match (model.affinity, self.found.key, self.written_for()) {
            (Affinity::Off, ..) => 0,
            (Affinity::Key, Some(key), _) => mix_bytes(0, call.cx.access.keys.get(key).id().as_str().as_bytes()),
            (_, _, Some(endpoint)) => session(endpoint, draft, &call.message),
            _ => 0,
        }
    }

    /// Key under which a provider's prompt cache may find the conversation, if the model's configuration asks for one.
    /// It is a hash of the session and the digest of the client's key. The provider cannot recover the session from it,
    /// and all hosts compute the same key.
    pub(crate) fn cache_key(&self, draft: &OutgoingRequest, call: &DriverCall) -> Option<CacheKey> {
        self.model().filter(|model| model.caches_by_key)?;
        let (key, endpoint) = (self.found.key?, self.written_for()?);
        let mut text = [0; 40];
        text[..32].copy_from_slice(call.cx.access.keys.get(key).digest());
        text[32..].copy_from_slice(&session(endpoint, draft, &call.message).to_be_bytes());
        let mut digits = Vec::with_capacity(32);
        hex_into(&sha256(&text)[..16], &mut digits);
        digits.try_into().ok()
    }
}

/// Number of the conversation: by the head, otherwise by the body.
fn session(endpoint: ModelEndpoint, draft: &OutgoingRequest, message: &ClientMessage) -> u64 {
    match draft.head.field(HeaderField::Session).of(message.head) {
        [] => dialect::conversation(endpoint, message.body, draft.scan.fields()),
        session => mix_bytes(2, session),
    }
}
