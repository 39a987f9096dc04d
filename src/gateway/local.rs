//! Requests that the gateway answers by itself: models, quota, token counts, and the admin listener's health and
//! metrics.

use super::Gateway;
use super::admit::{Endpoint, bearer_token};
use super::answers::{self, Extent, JSON, TEXT};
use super::client::Client;
use super::exchange::Exchange;
use super::respond::Opening;
use super::stats::Gauges;
use crate::base::slots::Id;
use crate::base::time::Now;
use crate::policy::refusal::Refusal;
use crate::wire::head::{Field, Method, RequestHead};
use crate::wire::percent;
use std::io::Write;

/// The description of what clients are offered (OpenAPI 3.1), and our version in quotes for it.
const OPENAPI: &str = include_str!("openapi.json");
const VERSION: &str = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
/// Bytes of a model id in a path, percent-encoded.
const PATH_ID_MAX: usize = 1024;

impl Gateway {
    /// An endpoint without a body.
    pub(crate) fn answer_local(&mut self, ex: Exchange, endpoint: Endpoint, now: Now) {
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        let outcome = self.local_body(&ex, endpoint, now, &mut body);
        match outcome {
            Ok(()) => self.answer(ex, 200, JSON, &body, None, now),
            Err(refusal) => {
                self.scratch = body;
                return self.refuse(ex, &refusal, now);
            }
        }
        self.scratch = body;
    }

    fn local_body(&mut self, ex: &Exchange, endpoint: Endpoint, now: Now, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let Some(client) = self.clients.get(ex.client) else { return Ok(()) };
        let (head, _) = client.inbound.message();
        let anthropic = ex.head.anthropic;
        let (Some(key), catalog) = (ex.finding.key, &ex.config.catalog) else {
            out.extend_from_slice(b"{\"name\":\"tollgate\"}");
            return Ok(());
        };
        let record = self.keys.record(key);
        match endpoint {
            Endpoint::Models => {
                let visible = catalog.models().iter().filter(|model| record.scope.allows_model(&model.id));
                answers::models(visible, anthropic, out);
            }
            Endpoint::Model(id) => {
                let id = id.of(head);
                let id = percent::decoded(&id[..id.len().min(PATH_ID_MAX)]);
                let found = catalog.find(&id).and_then(|index| catalog.get(index));
                // A model that the key may not use is not told from one that does not exist.
                let model = found.filter(|model| record.scope.allows_model(&model.id));
                answers::model(model.ok_or_else(|| Refusal::unknown_model(&id))?, anthropic, out);
            }
            _ => {
                let plan = self.config.plan(&record.plan).ok_or_else(Refusal::no_plan)?;
                let standing = self.meter.standing(key, plan, now.unix);
                answers::quota(&plan.name, &standing, out);
            }
        }
        Ok(())
    }

    /// `POST /v1/messages/count_tokens`: the local estimate, never charged, never sent upstream.
    pub(crate) fn answer_count(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.take_exchange(xid) else { return };
        let count = ex.draft.as_ref().map_or(0, |draft| draft.scan.fields().prompt_estimate);
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(body, "{{\"input_tokens\":{count}}}");
        self.answer(ex, 200, JSON, &body, None, now);
        self.scratch = body;
    }

    /// A request on the admin listener.
    pub(crate) fn answer_admin(&mut self, ex: &Exchange, head: &RequestHead, now: Now) {
        let (mut body, cid) = (Vec::new(), ex.client);
        let (status, content_type) = self.admin_body(cid, head, now, &mut body);
        let next = self.next_after(cid, ex.head, false);
        let extent = Extent::Length(body.len());
        let more: &[u8] = match status {
            401 => b"\r\nwww-authenticate: Bearer",
            405 => b"\r\nallow: GET, HEAD",
            _ => b"",
        };
        self.write_head_with(&ex.face(), &Opening { status, extent, content_type, refusal: None, next }, more, now);
        if ex.head.method != Method::Head {
            self.push_client(cid, now, |out| out.extend_from_slice(&body));
        }
        self.move_on(cid, next, now);
    }

    fn admin_body(&mut self, cid: Id<Client>, head: &RequestHead, now: Now, out: &mut Vec<u8>) -> (u16, &'static str) {
        let ready = self.readiness(cid, now).store && self.draining.is_none();
        let Some(client) = self.clients.get(cid) else { return (500, TEXT) };
        let (bytes, _) = client.inbound.message();
        if !matches!(head.method, Method::Get | Method::Head) {
            out.extend_from_slice(b"only GET and HEAD are answered here\n");
            return (405, TEXT);
        }
        match head.path.of(bytes) {
            b"/healthz" => out.extend_from_slice(b"ok\n"),
            b"/openapi.json" => {
                out.extend_from_slice(OPENAPI.replace("\"VERSION\"", VERSION).as_bytes());
                return (200, JSON);
            }
            b"/readyz" if ready => out.extend_from_slice(b"ready\n"),
            b"/readyz" => {
                out.extend_from_slice(b"not ready\n");
                return (503, TEXT);
            }
            b"/metrics" if self.admin_token_shown(head, bytes) => {
                let targets: Vec<_> = self.breakers.states(now.mono).collect();
                self.stats.write(&self.gauges(), &targets, out);
            }
            b"/metrics" => {
                out.extend_from_slice(b"the admin token is required\n");
                return (401, TEXT);
            }
            _ => {
                out.extend_from_slice(b"/healthz, /readyz, /metrics and /openapi.json are served here\n");
                return (404, TEXT);
            }
        }
        (200, TEXT)
    }

    fn admin_token_shown(&self, head: &RequestHead, bytes: &[u8]) -> bool {
        let Some(token) = &self.config.server.admin_token else { return true };
        let shown = bearer_token(head.field(Field::Authorization).of(bytes));
        // Compared as digests, so that the time taken tells nothing of the token.
        crate::base::digest::sha256(shown) == crate::base::digest::sha256(token.expose().as_bytes())
    }

    fn gauges(&self) -> Gauges {
        Gauges {
            clients: self.doors.clients(),
            upstreams: self.upstreams.len(),
            idle: self.idle.len(),
            holds: self.meter.open_holds(),
            buffered: self.pool.lent(),
            uncommitted: self.ledger.uncommitted(),
            turned_away: self.doors.turned_away,
        }
    }
}
