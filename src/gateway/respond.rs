//! Complete answers of ours: errors of every kind, and the head of any answer. Each ends its exchange; what is relayed
//! from a provider stands in `relay`.

use super::Gateway;
use super::answers::{self, Extent, Head, RequestId};
use super::client::{Brief, Client, Next};
use super::cors::Grant;
use super::exchange::Exchange;
use crate::base::slots::Id;
use crate::base::time::Now;
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use crate::policy::usage::Usage;
use crate::wire::head::{HeadError, Method, RequestHead};
use crate::wire::inbound::BodyRefusal;

/// What the head of an answer needs to know of its exchange.
#[derive(Clone, Debug)]
pub(crate) struct Face {
    pub(crate) client: Id<Client>,
    pub(crate) id: RequestId,
    pub(crate) key: Option<KeyIx>,
    pub(crate) http11: bool,
    pub(crate) grant: Grant,
}

/// How an answer begins.
pub(crate) struct Opening<'a> {
    pub(crate) status: u16,
    pub(crate) extent: Extent,
    pub(crate) content_type: &'static str,
    pub(crate) refusal: Option<&'a Refusal>,
    pub(crate) next: Next,
}

impl Gateway {
    /// Ends an exchange that has not been given a slot, or was taken out of it, with an error.
    pub(crate) fn refuse(&mut self, mut ex: Exchange, refusal: &Refusal, now: Now) {
        ex.error = Some(refusal.kind);
        self.scratch.clear();
        answers::error_body(ex.shape(), refusal, &ex.id, &mut self.scratch);
        let body = std::mem::take(&mut self.scratch);
        self.answer(ex, refusal.status, answers::JSON, &body, Some(refusal), now);
        self.scratch = body;
    }

    /// Ends an exchange in its slot with an error; nothing of an answer has been sent.
    pub(crate) fn refuse_open(&mut self, xid: Id<Exchange>, refusal: &Refusal, now: Now) {
        if let Some(ex) = self.take_exchange(xid) {
            self.refuse(ex, refusal, now);
        }
    }

    /// A body that cannot be taken: too large, or badly framed.
    pub(crate) fn refuse_body(&mut self, cid: Id<Client>, refusal: BodyRefusal, now: Now) {
        let max = self.config.server.max_body;
        let refusal = match refusal {
            BodyRefusal::TooLarge => Refusal::too_large(max),
            BodyRefusal::Bad(_) => Refusal::bad_framing(),
        };
        match self.clients.get(cid).and_then(|client| client.exchange) {
            Some(xid) => self.refuse_open(xid, &refusal, now),
            None => self.drop_client(cid, now),
        }
    }

    /// A head that is not HTTP, or too large.
    pub(crate) fn refuse_syntax(&mut self, cid: Id<Client>, error: HeadError, now: Now) {
        self.refuse_headless(cid, &Refusal::bad_http(error.status, error.reason), now);
    }

    pub(crate) fn refuse_slow_head(&mut self, cid: Id<Client>, now: Now) {
        self.refuse_headless(cid, &Refusal::head_too_slow(self.config.server.header_timeout), now);
    }

    pub(crate) fn refuse_slow_body(&mut self, cid: Id<Client>, now: Now) {
        let refusal = Refusal::body_too_slow(self.config.server.body_timeout);
        if let Some(xid) = self.clients.get(cid).and_then(|client| client.exchange) {
            self.refuse_open(xid, &refusal, now);
        }
    }

    fn refuse_headless(&mut self, cid: Id<Client>, refusal: &Refusal, now: Now) {
        let id = RequestId::fresh(&mut self.rng);
        let ex = Exchange::new(cid, id, Brief::of(&RequestHead::unparsed()), self.plans(), now);
        if let Some(client) = self.clients.get_mut(cid) {
            client.last = true;
        }
        self.refuse(ex, refusal, now);
    }

    /// Gives a complete answer of ours and ends the exchange.
    pub(crate) fn answer(
        &mut self,
        mut ex: Exchange,
        status: u16,
        content_type: &'static str,
        body: &[u8],
        refusal: Option<&Refusal>,
        now: Now,
    ) {
        let cid = ex.client;
        self.settle(&mut ex, Usage::default());
        let close = refusal.is_some_and(|refusal| refusal.close);
        let next = self.next_after(cid, ex.head, close);
        let opening = Opening { status, extent: Extent::Length(body.len()), content_type, refusal, next };
        self.write_head(&ex.face(), &opening, now);
        if ex.head.method != Method::Head {
            self.push_client(cid, now, |out| out.extend_from_slice(body));
        }
        self.conclude(ex, status, now);
        self.move_on(cid, next, now);
    }

    /// Writes the head of an answer to the client's unsent bytes.
    pub(crate) fn write_head(&mut self, face: &Face, opening: &Opening<'_>, now: Now) {
        self.write_head_with(face, opening, b"", now);
    }

    /// The same with further fields, each with its line break before it.
    pub(crate) fn write_head_with(&mut self, face: &Face, opening: &Opening<'_>, more: &[u8], now: Now) {
        let standing = face.key.and_then(|key| {
            let plan = self.config.plan(&self.keys.record(key).plan)?;
            Some(self.meter.standing(key, plan, now.unix))
        });
        let mut date = std::mem::take(&mut self.date);
        let head = Head {
            status: opening.status,
            id: &face.id,
            date: date.at(now.unix),
            http11: face.http11,
            keep_alive: opening.next.keeps_alive(),
            extent: opening.extent,
            content_type: opening.content_type,
            standing,
            refusal: opening.refusal,
            grant: &face.grant,
            more,
        };
        self.push_client(face.client, now, |out| head.write(out));
        self.date = date;
    }
}
