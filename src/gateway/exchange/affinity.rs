//! Computes the affinity hash of a request, so that the turns of a conversation go to the same target and find the
//! provider's cache again. Used only if a model has several targets of equal priority, or if the provider gets a cache
//! key.

use super::event::{ClientMessage, DriverCall};
use super::request::Request;
use crate::base::digest::{hex_into, sha256};
use crate::base::hash::mix_bytes;
use crate::dialect::{self, CacheKey};
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::{Affinity, PromptCache};
use crate::wire::ModelEndpoint;
use crate::wire::head::HeaderField;

impl Request {
    /// Number of the conversation or key that stays at one target; 0 if the model has no affinity.
    pub(super) fn kept_with(&self, draft: &OutgoingRequest, call: &DriverCall) -> u64 {
        let Some(model) = self.model().filter(|model| model.shares) else { return 0 };
        match (model.affinity, self.found.key, self.written_for()) {
            (Affinity::Off, ..) => 0,
            (Affinity::Key, Some(key), _) => mix_bytes(0, call.cx.access.keys.get(key).id().as_str().as_bytes()),
            (_, _, Some(endpoint)) => session(endpoint, draft, &call.message),
            _ => 0,
        }
    }

    /// Key under which a provider's prompt cache may find the conversation, if the model's configuration asks for one.
    /// It is hashed with the digest of the client's key: it reveals nothing of the session to the provider, and every
    /// host computes the same one.
    pub(super) fn cache_key(&self, draft: &OutgoingRequest, call: &DriverCall) -> Option<CacheKey> {
        self.model().filter(|model| model.capabilities.cache == PromptCache::Key)?;
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
