//! Attribution of a request in its usage record and log line: the user and the conversation that the client names, and
//! the kind of client program. Read once, when the model is known. It is never added to what a provider gets, and no
//! metric has it as a label.

use super::event::DriverCall;
use super::request::Request;
use crate::dialect::{self, Named};
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::agent::Client;
use crate::policy::attribution::{Attribution, plain};
use crate::policy::keys::stands_in;
use crate::wire::head::{HeaderField, RequestHead, values};

impl Request {
    /// Notes user, session and client, if the configuration keeps them.
    pub(super) fn attribute(&mut self, draft: &OutgoingRequest, call: &DriverCall) {
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
}

impl Request {
    /// Notes the session that a refused head names, since the body is not read.
    #[cold]
    pub(super) fn attribute_head(&mut self, head: &RequestHead, bytes: &[u8], cx: &Cx) {
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
