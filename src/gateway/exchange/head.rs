//! Checks of a request's head, before its body is read.

use super::authorize::{self, AuthContext, Readiness};
use super::diagnosis::printable_word;
use super::job::RequestJob;
use super::paths::Endpoint;
use super::presented::presented;
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::peer::caller;
use crate::gateway::cx::Cx;
use crate::policy::refusal::Refusal;
use crate::wire::head::{HeaderField, RequestHead};

impl RequestJob {
    /// Checks the head: its endpoint, its key, and whether the request may continue.
    pub(crate) fn authorize(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        ready: Readiness,
        cx: &mut Cx,
    ) -> Result<Endpoint, Refusal> {
        if head.traced | self.request.setup.traces {
            let head = Some(&bytes[..head.len as usize]).filter(|_| head.traced);
            self.notes.begin_trace(&self.request, head);
        }
        let request = &mut self.request;
        let client_request_id = head.field(HeaderField::XRequestId).of(bytes);
        if !client_request_id.is_empty() {
            let printable = printable_word(client_request_id, &cx.setup.config.server.key_prefix);
            request.extras.get_or_insert_default().client_request_id = printable;
        }
        let trusted = &request.setup.config.server.trusted_proxies;
        if !trusted.is_empty() {
            let peer = cx.connections.peers.of(request.client);
            let caller = caller(peer, &bytes[..head.len as usize], trusted);
            if caller != peer {
                self.notes.get_mut().caller = Some(caller);
            }
        }
        let request = &mut self.request;
        request.cors =
            CorsPolicy::of(&request.setup.config.server.cors_origins, head.field(HeaderField::Origin).of(bytes));
        let shared = cx.is_shared();
        let mut context = AuthContext {
            setup: &cx.setup,
            access: &mut cx.access,
            meter: &mut cx.accounts.meter,
            shared,
            ready,
            now: cx.now.unix,
            captured: false,
        };
        let passed = authorize::authorize(head, bytes, &mut context, &mut request.found);
        request.meta.captured = context.captured;
        if let Err(refusal) = &passed {
            let prefix = &cx.setup.config.server.key_prefix;
            let shown = (refusal.status == 401).then(|| presented(head, bytes, self.request.found.endpoint, prefix));
            let ended = shown.and_then(|shown| cx.access.keys.why_not(shown, prefix, cx.now.unix).1);
            self.notes.note_head(&self.request, refusal, head, bytes, ended);
            self.request.attribute_head(head, bytes, cx);
        }
        passed
    }
}
