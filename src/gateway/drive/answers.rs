//! Output to clients: events, complete answers, errors, each with its head.

use super::WholeReply;
use super::clients::charge_unread;
use crate::base::buf::{BLOCK, Buf};
use crate::base::limits::HIGH_WATER;
use crate::base::seam::Conn;
use crate::base::time::{Mono, Unix};
use crate::base::timers::Timers;
use crate::gateway::client::{self, AfterResponse, response};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::{Exchange, Forward, Outcome, Request};
use crate::gateway::ids::{ClientId, ExchangeId, client_conn};
use crate::gateway::offload::LAST_OF_ONE;
use crate::gateway::{Gateway, Next};
use crate::policy::meter::QuotaStatus;
use crate::wire::body::{LAST_CHUNK, write_chunk, write_chunk_size};
use crate::wire::head::{Framing, Method};

/// Maximum bytes around a chunk.
pub(super) const CHUNK_FRAME: usize = 24;

/// Context for writing to a client, besides the tables of connections and exchanges.
pub(super) struct Sending<'a> {
    pub(super) cx: &'a mut Cx,
    pub(super) timers: &'a mut Timers,
    pub(super) dirty: &'a mut Vec<Conn>,
}

impl Sending<'_> {
    /// Appends to a client's unsent bytes.
    #[inline]
    fn append(&mut self, client: &mut client::ClientConnection, id: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        let server = &self.cx.setup.config.server;
        let stall = client.send(server, &mut self.cx.pool, self.cx.now.mono, write);
        self.sent(client, id, stall);
    }

    /// Records that more is unsent, with the deadline `stall`.
    #[inline(always)] // otherwise nearly every event takes one more call
    fn sent(&mut self, client: &mut client::ClientConnection, id: ClientId, stall: Option<Mono>) {
        charge_unread(client, &mut self.cx.budget);
        if let Some(stall) = stall {
            self.timers.arm(client_conn(id), stall);
        }
        // All events of one read need one entry only.
        if self.dirty.last() != Some(&client_conn(id)) {
            self.dirty.push(client_conn(id));
        }
    }

    /// Appends the events in `cx.out`.
    pub(super) fn pass_on(&mut self, client: &mut client::ClientConnection, request: &Request) {
        let Cx { setup, pool, now, out: events, .. } = &mut *self.cx;
        let (id, http11) = (request.client, request.meta.http11);
        let stall = client.send(&setup.config.server, pool, now.mono, |out| {
            // The buffer for a slow client grows by at least a block, so that small events do not move all of it each
            // time, but not by half its size.
            let more = events.len() + CHUNK_FRAME;
            if out.len() >= HIGH_WATER / 4 && out.capacity() - out.len() < more {
                out.reserve_exact(more.max(BLOCK));
            }
            match http11 {
                true => write_chunk(out, events),
                false => out.extend_from_slice(events),
            }
        });
        self.sent(client, id, stall);
    }
}

impl Gateway {
    /// Sends the events in `cx.out`.
    pub(crate) fn forward(&mut self, id: ExchangeId, forward: Forward) {
        if forward.opens || forward.commits {
            self.open_stream(id, forward);
        }
        let Some(exchange) = self.exchanges.get(id) else { return };
        let cid = exchange.job.request.client;
        if let Some(client) = self.clients.get_mut(cid) {
            let mut sending = Sending { cx: &mut self.cx, timers: &mut self.timers, dirty: &mut self.dirty };
            sending.pass_on(client, &exchange.job.request);
        }
        if forward.waits {
            self.arm(cid);
        }
    }

    /// Sends one large event without a copy.
    pub(crate) fn forward_bulk(&mut self, id: ExchangeId, forward: Forward, mut bytes: Vec<u8>) {
        self.open_stream(id, forward);
        let Some(exchange) = self.exchanges.get(id) else { return };
        let (cid, http11) = (exchange.job.request.client, exchange.job.request.meta.http11);
        if http11 {
            self.send(cid, |out| write_chunk_size(out, bytes.len()));
            bytes.reserve_exact(2);
            bytes.extend_from_slice(b"\r\n");
        }
        let bulk = Buf::adopt(&mut self.cx.pool, bytes);
        self.send_bulk(cid, bulk);
        self.arm(cid);
    }

    /// Writes the head of a stream and releases its request, if not done yet.
    fn open_stream(&mut self, id: ExchangeId, forward: Forward) {
        let Some(exchange) = self.exchanges.get(id) else { return };
        let request = &exchange.job.request;
        let Some(client) = self.clients.get_mut(request.client) else { return };
        if forward.opens {
            let framing = if request.meta.http11 { Framing::Chunked } else { Framing::ToEnd };
            let after = client.after_response(request.meta, !request.meta.http11 || self.cx.lifecycle.is_stopping());
            if !after.keeps_alive() {
                // The head has announced whether the connection stays open, so the end of the stream must match it.
                client.end_after_answer();
            }
            let reply = WholeReply {
                status: 200,
                framing,
                content_type: response::EVENTS,
                refusal: None,
                cost: None,
                more: b"",
            };
            let (server, now) = (&self.cx.setup.config.server, self.cx.now);
            let quota = request.found.key.and_then(|key| {
                let payer = self.cx.plans.of(key, &self.cx.keys, &self.cx.setup.config).ok()?;
                Some(self.cx.meter.standing(payer, now.unix))
            });
            let dates = self.cx.date.of_head(now.unix, reset_of(&reply, quota, now.unix));
            let head = head_of(request, &reply, after, dates, quota);
            client.send(server, &mut self.cx.pool, now.mono, |out| head.write(out));
        }
        if forward.commits {
            client.release_message(&mut self.cx.pool);
        }
    }

    /// Sends the last events, which are in `cx.out`, and ends the stream.
    pub(crate) fn end_stream(&mut self, id: ExchangeId, forward: Forward, outcome: Outcome) {
        self.open_stream(id, forward);
        let Some(mut exchange) = self.exchanges.remove(id) else { return };
        exchange.finish(outcome, &mut self.cx);
        let request = &exchange.job.request;
        let (cid, http11) = (request.client, request.meta.http11);
        let bytes = std::mem::take(&mut self.cx.out);
        self.send(cid, |out| match http11 {
            true => {
                write_chunk(out, &bytes);
                out.extend_from_slice(LAST_CHUNK);
            }
            false => out.extend_from_slice(&bytes),
        });
        self.cx.out = bytes;
        let Some(client) = self.clients.get_mut(cid) else { return };
        let after = client.after_response(request.meta, !http11 || self.cx.lifecycle.is_over());
        self.answered(cid, after);
        self.queue.push_back(Next::Advance(cid));
    }

    /// Sends the whole answer in `cx.out`: with its length if it fits one buffer, otherwise in chunks.
    #[inline]
    pub(crate) fn answer(&mut self, exchange: &mut Exchange, outcome: Outcome) {
        let cost = exchange.finish(outcome, &mut self.cx);
        let request = &exchange.job.request;
        let framing = match (self.cx.out.len() <= HIGH_WATER, request.meta.http11) {
            (true, _) => Framing::Length(self.cx.out.len() as u64),
            (false, true) => Framing::Chunked,
            (false, false) => Framing::ToEnd,
        };
        let (status, content_type) = (outcome.status, response::JSON);
        self.reply(request, &WholeReply { status, framing, content_type, refusal: None, cost, more: b"" });
    }

    /// Sends a large whole answer without a copy: as one chunk, which includes its end, or to the end of the
    /// connection.
    pub(crate) fn answer_bulk(&mut self, exchange: &mut Exchange, outcome: Outcome, body: Buf) {
        let cost = exchange.finish(outcome, &mut self.cx);
        let request = &exchange.job.request;
        let (cid, http11) = (request.client, request.meta.http11);
        let framing = if http11 { Framing::Chunked } else { Framing::ToEnd };
        let (status, content_type) = (outcome.status, response::JSON);
        let after =
            self.write_head(request, &WholeReply { status, framing, content_type, refusal: None, cost, more: b"" });
        if http11 {
            let length = body.len().saturating_sub(LAST_OF_ONE.len());
            self.send(cid, |out| write_chunk_size(out, length));
        }
        self.send_bulk(cid, body);
        self.answered(cid, after);
    }

    /// Answers a request with the contents of `cx.out`.
    pub(crate) fn reply(&mut self, request: &Request, reply: &WholeReply<'_>) {
        let after = self.write_head(request, reply);
        if request.meta.method != Method::Head && !self.cx.out.is_empty() {
            let body = std::mem::take(&mut self.cx.out);
            self.send(request.client, |out| match reply.framing {
                Framing::Chunked => {
                    out.reserve_exact(body.len() + (body.len() / HIGH_WATER + 2) * CHUNK_FRAME);
                    for piece in body.chunks(HIGH_WATER) {
                        write_chunk(out, piece);
                    }
                    out.extend_from_slice(LAST_CHUNK);
                }
                _ => out.extend_from_slice(&body),
            });
            self.cx.out = body;
        }
        self.answered(request.client, after);
    }

    pub(super) fn write_head(&mut self, request: &Request, reply: &WholeReply<'_>) -> AfterResponse {
        let asks_close = reply.framing == Framing::ToEnd || reply.refusal.is_some_and(|refusal| refusal.close);
        let close = asks_close || self.cx.lifecycle.is_stopping();
        let Some(client) = self.clients.get_mut(request.client) else { return AfterResponse::Close };
        let after = client.after_response(request.meta, close);
        let quota = request.found.key.and_then(|key| self.cx.quota(key));
        let (server, now) = (&self.cx.setup.config.server, self.cx.now);
        let dates = self.cx.date.of_head(now.unix, reset_of(reply, quota, now.unix));
        let head = head_of(request, reply, after, dates, quota);
        client.send(server, &mut self.cx.pool, now.mono, |out| head.write(out));
        after
    }

    /// Continues after an answer was queued for a client.
    pub(super) fn answered(&mut self, id: ClientId, after: AfterResponse) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (server, now) = (&self.cx.setup.config.server, self.cx.now.mono);
        let idle = client.idle_timeout(server, self.cx.lifecycle.is_stopping());
        let event = client.answered(after, server, idle, &mut self.cx.pool, now);
        self.dirty.push(client_conn(id));
        match event {
            Some(shut) => self.close_client(id, shut),
            None => self.arm(id),
        }
    }

    /// Appends to a client's unsent bytes.
    pub(crate) fn send(&mut self, id: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let mut sending = Sending { cx: &mut self.cx, timers: &mut self.timers, dirty: &mut self.dirty };
        sending.append(client, id, write);
    }

    fn send_bulk(&mut self, id: ClientId, mut bulk: Buf) {
        let Some(client) = self.clients.get_mut(id) else { return bulk.release(&mut self.cx.pool) };
        let server = &self.cx.setup.config.server;
        let stall = client.send_bulk(server, &mut self.cx.pool, self.cx.now.mono, bulk);
        let mut sending = Sending { cx: &mut self.cx, timers: &mut self.timers, dirty: &mut self.dirty };
        sending.sent(client, id, stall);
    }
}

/// Returns the end of the limit that refused the request, otherwise of the key's window.
#[inline]
fn reset_of(reply: &WholeReply<'_>, quota: Option<QuotaStatus>, now: Unix) -> Unix {
    let of_limit = reply.refusal.and_then(|refusal| refusal.reset);
    of_limit.or(quota.map(|quota| quota.reset_at)).unwrap_or(now)
}

/// Returns the head of an answer to `request`.
fn head_of<'a>(
    request: &'a Request,
    reply: &WholeReply<'a>,
    after: AfterResponse,
    (date, reset): (&'a [u8], &'a [u8; response::ISO_LEN]),
    quota: Option<QuotaStatus>,
) -> response::ClientResponseHead<'a> {
    response::ClientResponseHead {
        status: reply.status,
        id: &request.id,
        date,
        http11: request.meta.http11,
        keep_alive: after.keeps_alive(),
        framing: reply.framing,
        content_type: reply.content_type,
        quota,
        reset,
        refusal: reply.refusal,
        queued_ms: (request.queued > 0).then(|| request.queued_ms()),
        cost: reply.cost,
        cors: request.cors,
        origins: &request.setup.config.server.cors_origins,
        more: reply.more,
    }
}
