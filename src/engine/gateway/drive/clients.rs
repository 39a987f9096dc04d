//! Connections of clients, and the output to them: events, complete answers, errors, each with its head.

use crate::base::buf::{BLOCK, Buf};
use crate::base::limits::{DRAIN_IDLE_GRACE, HIGH_WATER, TRIM_AFTER};
use crate::base::seam::{Action, Shut, Stray};
use crate::base::slots::Slots;
use crate::base::time::Mono;
use crate::dialect::errors;
use crate::gateway::client::response::RequestMeta;
use crate::gateway::client::{AfterResponse, ClientConnection, Oddity, cors, response};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::capturing;
use crate::gateway::exchange::local;
use crate::gateway::exchange::{Endpoint, Exchange, ExchangeEvent, Forward, Outcome, Output, Request, RequestJob};
use crate::gateway::ids::{ClientId, ClientName, ExchangeId, client_conn};
use crate::gateway::memory::shares::MemoryShares;
use crate::gateway::orders::offload::LAST_OF_ONE;
use crate::policy::refusal::Refusal;
use crate::wire::body::{LAST_CHUNK, write_chunk, write_chunk_size};
use crate::wire::head::{Framing, HeadTemplates, Method, RequestHead};
use std::collections::VecDeque;

/// Maximum bytes around a chunk.
pub(super) const CHUNK_FRAME: usize = 24;

/// The part of a key's idle connections that is closed at once to make room, as a divisor.
const IDLE_CLOSED: usize = 64;

/// Beginning of an answer in one piece.
pub(crate) struct WholeReply<'a> {
    pub(super) status: u16,
    pub(super) framing: Framing,
    pub(super) content_type: &'a str,
    pub(super) refusal: Option<&'a Refusal>,
    /// Cost of the request in nano-dollars.
    pub(super) cost: Option<u64>,
    /// Further header fields.
    pub(super) more: &'a [u8],
}

impl<'a> WholeReply<'a> {
    /// An answer with status 200.
    #[inline]
    pub(super) fn ok(framing: Framing, content_type: &'a str, cost: Option<u64>) -> Self {
        WholeReply { status: 200, framing, content_type, refusal: None, cost, more: b"" }
    }
}

/// Remaining work of the current call.
#[derive(Debug)]
pub(crate) enum Next {
    /// Process the input after an answered request.
    Advance(ClientId),
    /// Deliver this event to an exchange.
    Tell(ExchangeId, ExchangeEvent<'static>),
}

/// The connections of clients, and what they are sent. Knows requests, but neither their states nor their providers.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) table: Slots<ClientConnection, ClientName>,
    /// Lent to exchanges, see [`crate::gateway::exchange::DriverCall`]; never kept across a call.
    pub(crate) out: Output,
    pub(super) head_templates: HeadTemplates,
    /// Head of the answer to a captured request, until its body is kept.
    pub(super) captured_head: Vec<u8>,
    /// The worklist of the current call.
    pub(crate) queue: VecDeque<Next>,
    /// Clients whose pipelined requests wait until other connections have been served; each only once.
    pub(crate) paused: VecDeque<ClientId>,
    /// The paused client whose requests are being continued.
    pub(crate) resumed: Option<ClientId>,
    /// Number of walks over all clients, for [`crate::gateway::Vitals`]: the cost of an event must not grow with their
    /// number.
    pub(crate) walks: u64,
}

impl Clients {
    /// Sends the events in the output.
    pub(crate) fn forward(&mut self, job: &mut RequestJob, forward: Forward, cx: &mut Cx) {
        if forward.opens || forward.commits {
            self.open_stream(&job.request, forward, cx);
        }
        if forward.captured {
            capturing::capture_answer(job, &std::mem::take(&mut self.captured_head), &self.out.bytes, cx);
        }
        let request = &job.request;
        if let Some(client) = self.table.get_mut(request.client) {
            pass_on(client, request, &self.out.bytes, cx);
        }
    }

    /// Sends one large event without a copy.
    pub(crate) fn forward_bulk(&mut self, job: &mut RequestJob, forward: Forward, mut bytes: Vec<u8>, cx: &mut Cx) {
        self.open_stream(&job.request, forward, cx);
        if forward.captured {
            capturing::capture_answer(job, &std::mem::take(&mut self.captured_head), &bytes, cx);
        }
        let request = &job.request;
        let (cid, http11) = (request.client, request.meta.http11);
        if http11 {
            self.send(cid, cx, |out| write_chunk_size(out, bytes.len()));
            bytes.reserve_exact(2);
            bytes.extend_from_slice(b"\r\n");
        }
        let bulk = Buf::adopt(&mut cx.memory.pool, bytes);
        self.send_bulk(cid, bulk, cx);
    }

    /// Writes the head of a stream and releases its request, if not done yet.
    fn open_stream(&mut self, request: &Request, forward: Forward, cx: &mut Cx) {
        let framing = if request.meta.http11 { Framing::Chunked } else { Framing::ToEnd };
        let ends = forward.opens
            && !self.write_head(request, &WholeReply::ok(framing, request.answer_type(), None), b"", cx).keeps_alive();
        let Some(client) = self.table.get_mut(request.client) else { return };
        if ends {
            // The head has announced whether the connection stays open, so the end of the stream must match it.
            client.end_after_answer();
        }
        if forward.commits {
            client.release_message(&mut cx.memory.pool);
        }
    }

    /// Sends the last events, which are in the output, and ends the stream.
    pub(crate) fn end_stream(&mut self, exchange: &mut Exchange, forward: Forward, outcome: Outcome, cx: &mut Cx) {
        self.keep_received(exchange, cx);
        self.open_stream(&exchange.job.request, forward, cx);
        exchange.finish(outcome, cx);
        self.end_captured(exchange, cx);
        let request = &exchange.job.request;
        let (cid, http11) = (request.client, request.meta.http11);
        let bytes = std::mem::take(&mut self.out.bytes);
        self.send(cid, cx, |out| match http11 {
            true => {
                write_chunk(out, &bytes);
                out.extend_from_slice(LAST_CHUNK);
            }
            false => out.extend_from_slice(&bytes),
        });
        self.out.bytes = bytes;
        let Some(client) = self.table.get_mut(cid) else { return };
        let after = client.after_response(request.meta, !http11 || cx.lifecycle.is_over());
        self.answered(cid, after, cx);
    }

    /// Sends the whole answer in the output: with its length if it fits one buffer, otherwise in chunks.
    #[inline]
    pub(crate) fn answer(&mut self, exchange: &mut Exchange, outcome: Outcome, cx: &mut Cx) {
        self.keep_received(exchange, cx);
        let cost = exchange.finish(outcome, cx);
        let request = &exchange.job.request;
        let framing = match (self.out.bytes.len() <= HIGH_WATER, request.meta.http11) {
            (true, _) => Framing::Length(self.out.bytes.len() as u64),
            (false, true) => Framing::Chunked,
            (false, false) => Framing::ToEnd,
        };
        self.reply(
            request,
            &WholeReply { status: outcome.status, ..WholeReply::ok(framing, response::JSON, cost) },
            cx,
        );
        self.end_captured(exchange, cx);
    }

    /// Sends a large whole answer without a copy: as one chunk, which includes its end, or to the end of the
    /// connection.
    pub(crate) fn answer_bulk(&mut self, exchange: &mut Exchange, outcome: Outcome, body: Buf, cx: &mut Cx) {
        let cost = exchange.finish(outcome, cx);
        let request = &exchange.job.request;
        let (cid, http11) = (request.client, request.meta.http11);
        let framing = if http11 { Framing::Chunked } else { Framing::ToEnd };
        let reply = WholeReply { status: outcome.status, ..WholeReply::ok(framing, response::JSON, cost) };
        let after = self.write_head(request, &reply, b"", cx);
        if request.meta.captured {
            let whole = body.bytes().strip_suffix(LAST_OF_ONE).filter(|_| http11).unwrap_or(body.bytes());
            capturing::capture_answer(&mut exchange.job, &std::mem::take(&mut self.captured_head), whole, cx);
            capturing::end_capture(&mut exchange.job, cx);
        }
        if http11 {
            let length = body.len().saturating_sub(LAST_OF_ONE.len());
            self.send(cid, cx, |out| write_chunk_size(out, length));
        }
        self.send_bulk(cid, body, cx);
        self.answered(cid, after, cx);
    }

    /// Answers a request with the output.
    pub(crate) fn reply(&mut self, request: &Request, reply: &WholeReply<'_>, cx: &mut Cx) {
        let body = std::mem::take(&mut self.out.bytes);
        let sent = if request.meta.method == Method::Head { &[][..] } else { &body };
        let after = self.write_head(request, reply, sent, cx);
        self.out.bytes = body;
        self.answered(request.client, after, cx);
    }

    /// Appends the head of an answer to a client's unsent bytes, and its body, if it is here. Returns the next state of
    /// the connection.
    #[inline]
    pub(crate) fn write_head(
        &mut self,
        request: &Request,
        reply: &WholeReply<'_>,
        body: &[u8],
        cx: &mut Cx,
    ) -> AfterResponse {
        let Some(client) = self.table.get_mut(request.client) else { return AfterResponse::Close };
        let asks_close = reply.framing == Framing::ToEnd || reply.refusal.is_some_and(|refusal| refusal.close);
        let after = client.after_response(request.meta, asks_close || cx.lifecycle.is_stopping());
        let quota = if let Some(key) = request.found.key {
            cx.quota(key, request.model().map(|model| &model.id))
        } else {
            None
        };
        // The end of the limit that refused the request, otherwise of the key's window.
        let of_limit = reply.refusal.and_then(|refusal| refusal.reset);
        let reset = of_limit.or(quota.map(|quota| quota.reset_at)).unwrap_or(cx.now.unix);
        let (date, reset) = cx.report.date.of_head(cx.now.unix, reset);
        let head = response::ClientResponseHead {
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
            model_reason: request.model_reason(),
            cors: request.cors,
            origins: &request.setup.config.server.cors_origins,
            more: reply.more,
        };
        let captured_head = &mut self.captured_head;
        client.send(&cx.setup.config.server, &mut cx.memory.pool, cx.now.mono, |out| {
            let begin = out.len();
            head.write(out);
            if request.meta.captured {
                keep_head(captured_head, &out[begin..]);
            }
            match reply.framing {
                Framing::Chunked if !body.is_empty() => write_chunks(out, body),
                _ => out.extend_from_slice(body),
            }
        });
        after
    }

    /// Continues after an answer was queued for a client.
    pub(crate) fn answered(&mut self, id: ClientId, after: AfterResponse, cx: &mut Cx) {
        let Some(client) = self.table.get_mut(id) else { return };
        let (server, now) = (&cx.setup.config.server, cx.now.mono);
        charge_unread(client, &mut cx.memory.shares);
        let event = client.answered(after, server, cx.lifecycle.is_stopping(), &mut cx.memory.pool, now);
        cx.commands.dirty.push(client_conn(id));
        match event {
            Some(shut) => self.close(id, shut, cx),
            // Its exchange is over.
            None => cx.commands.timers.arm(client_conn(id), client.due()),
        }
    }

    /// Appends to a client's unsent bytes.
    pub(crate) fn send(&mut self, id: ClientId, cx: &mut Cx, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(client) = self.table.get_mut(id) else { return };
        let server = &cx.setup.config.server;
        let stall = client.send(server, &mut cx.memory.pool, cx.now.mono, write);
        sent(client, id, stall, cx);
    }

    fn send_bulk(&mut self, id: ClientId, mut bulk: Buf, cx: &mut Cx) {
        let Some(client) = self.table.get_mut(id) else { return bulk.release(&mut cx.memory.pool) };
        let server = &cx.setup.config.server;
        let stall = client.send_bulk(server, &mut cx.memory.pool, cx.now.mono, bulk);
        sent(client, id, stall, cx);
    }

    pub(crate) fn refuse(&mut self, exchange: &mut Exchange, refusal: &Refusal, outcome: Outcome, cx: &mut Cx) {
        exchange.job.notes.explain(refusal, cx);
        self.keep_received(exchange, cx);
        let endpoint = exchange.job.request.error_endpoint();
        let cost = exchange.finish(outcome, cx);
        let request = &exchange.job.request;
        self.out.bytes.clear();
        let (mut words, mut more) = (local::words(refusal, request.id.as_str()), Vec::new());
        if request.found.is_codex {
            local::tell_codex(refusal, &mut words, &mut more);
        }
        errors::error_body(endpoint, &words, &mut self.out.bytes);
        let framing = Framing::Length(self.out.bytes.len() as u64);
        let (status, content_type) = (refusal.status, response::JSON);
        self.reply(
            request,
            &WholeReply { status, framing, content_type, refusal: Some(refusal), cost, more: &more },
            cx,
        );
        self.end_captured(exchange, cx);
    }

    /// Keeps the request of a captured key, before its connection drops it.
    #[inline]
    pub(super) fn keep_received(&self, exchange: &mut Exchange, cx: &mut Cx) {
        if exchange.job.request.meta.captured
            && let Some(client) = self.table.get(exchange.job.request.client)
        {
            capturing::capture_received(&mut exchange.job, client.message(), cx);
        }
    }

    /// Keeps the last part of an answer for the capture, which is in the output, and has the request written.
    #[inline]
    fn end_captured(&mut self, exchange: &mut Exchange, cx: &mut Cx) {
        if exchange.job.request.meta.captured {
            capturing::capture_answer(&mut exchange.job, &std::mem::take(&mut self.captured_head), &self.out.bytes, cx);
            capturing::end_capture(&mut exchange.job, cx);
        }
    }

    /// Has a captured request written that ends without a further part of an answer.
    pub(crate) fn end_unanswered(&mut self, exchange: &mut Exchange, cx: &mut Cx) {
        self.keep_received(exchange, cx);
        if exchange.job.request.meta.captured {
            capturing::end_capture(&mut exchange.job, cx);
        }
    }

    /// Refuses a head that is not HTTP, too large or too late.
    pub(crate) fn refuse_headless(&mut self, id: ClientId, refusal: &Refusal, cx: &mut Cx) {
        let Some(client) = self.table.get_mut(id) else { return };
        client.end_after_answer();
        let mut exchange = headless(id, cx);
        self.refuse(&mut exchange, refusal, Outcome::refused(refusal), cx);
    }

    pub(crate) fn answer_local(&mut self, exchange: &mut Exchange, endpoint: Endpoint, cx: &mut Cx) {
        let Some(client) = self.table.get(exchange.job.request.client) else { return };
        let (head, _) = client.message();
        self.out.bytes.clear();
        let answered = local::body(&exchange.job.request, endpoint, head, cx, &mut self.out.bytes);
        if let (Err(_), Endpoint::Model(id)) = (&answered, endpoint) {
            exchange.job.notes.note_asked(&exchange.job.request, &local::model_asked(id, head));
        }
        match answered {
            Ok(()) => self.answer(exchange, Outcome::ok(), cx),
            Err(refusal) => self.refuse(exchange, &refusal, Outcome::refused(&refusal), cx),
        }
    }

    /// Answers a preflight: 204 for any origin; browsers decide by the fields.
    pub(crate) fn answer_preflight(&mut self, exchange: &mut Exchange, cx: &mut Cx) {
        let Some(client) = self.table.get(exchange.job.request.client) else { return };
        let mut more = Vec::new();
        if exchange.job.request.cors != cors::CorsPolicy::Refused {
            cors::write_permission(client.message().0, &mut more);
        }
        self.out.bytes.clear();
        exchange.finish(Outcome { status: 204, ..Outcome::ok() }, cx);
        let reply = WholeReply { status: 204, more: &more, ..WholeReply::ok(Framing::None, "", None) };
        self.reply(&exchange.job.request, &reply, cx);
    }

    /// Handles a client whose first bytes are not what its listener expects. A client that owes a PROXY header is not
    /// answered: its protocol is unknown.
    pub(crate) fn strayed(&mut self, id: ClientId, how: Stray, cx: &mut Cx) {
        let Some(client) = self.table.get_mut(id) else { return };
        match how {
            Stray::PlainHttp => client.oddity = Some(Oddity::Strayed),
            Stray::NoProxyHeader => {
                let (mut exchange, refusal) = (headless(id, cx), Refusal::no_proxy_header());
                exchange.job.notes.explain(&refusal, cx);
                exchange.finish(Outcome::refused(&refusal), cx);
                self.close(id, Shut::Abort, cx);
            }
        }
    }

    /// Records a request on a connection. `known`: with a credential.
    pub(crate) fn acts(&mut self, id: ClientId, known: bool, cx: &mut Cx) {
        let Some(client) = self.table.get_mut(id) else { return };
        client.known = known;
        cx.connections.limits.acts(client.admin, id.slot, known);
    }

    /// Connections to be closed if all have shown a credential: the ones idle longest, of the key that has most idle
    /// ones. Several at once, so that a flood of new connections does not walk over all of them each time.
    #[cold]
    pub(crate) fn idlest(&mut self) -> Vec<ClientId> {
        self.walks += 1;
        let idle = self.table.iter().filter(|(_, client)| !client.admin && client.is_idle());
        let mut idle: Vec<_> = idle.map(|(id, client)| (client.key, client.due(), id)).collect();
        idle.sort_by_key(|(key, due, _)| (key.is_none(), *key, *due));
        let of_keys = idle.chunk_by(|one, next| one.0 == next.0);
        let most = of_keys.max_by_key(|idle| idle.len()).unwrap_or_default();
        most[..most.len().div_ceil(IDLE_CLOSED)].iter().map(|(.., id)| *id).collect()
    }

    pub(crate) fn ids(&mut self) -> Vec<ClientId> {
        self.walks += 1;
        self.table.iter().map(|(id, _)| id).collect()
    }

    /// Closes idle connections. Connections whose clients still read their last answer are closed afterwards.
    pub(crate) fn close_idle(&mut self, cx: &mut Cx) {
        let by = cx.now.mono.after(DRAIN_IDLE_GRACE);
        for id in self.ids() {
            let Some(client) = self.table.get_mut(id).filter(|client| !client.admin) else { continue };
            if client.is_idle() {
                self.close(id, Shut::Clean, cx);
            } else if client.hasten(by) {
                cx.commands.timers.arm(client_conn(id), client.due());
            }
        }
    }

    /// Removes a client. Its exchange, if it had one, has ended before, or outlasts it.
    pub(crate) fn close(&mut self, id: ClientId, shut: Shut, cx: &mut Cx) {
        let Some(mut client) = self.table.remove(id) else { return };
        if self.table.is_sparse() && cx.memory.trim == Mono::NEVER {
            cx.memory.trim = cx.now.mono.after(TRIM_AFTER);
        }
        cx.commands.timers.forget(client_conn(id));
        if client.is_paused() {
            self.paused.retain(|paused| *paused != id);
        }
        cx.connections.limits.leave(client.admin, id.slot);
        if client.admin {
            cx.connections.desk.gone(id);
        }
        client.release(&mut cx.memory.pool);
        cx.memory.release(&mut client.unread);
        cx.free_heavy(client.key);
        cx.commands.actions.push(Action::Close { conn: client_conn(id), shut });
    }
}

/// Appends a complete body in chunks.
fn write_chunks(out: &mut Vec<u8>, body: &[u8]) {
    out.reserve_exact(body.len() + (body.len() / HIGH_WATER + 2) * CHUNK_FRAME);
    for piece in body.chunks(HIGH_WATER) {
        write_chunk(out, piece);
    }
    out.extend_from_slice(LAST_CHUNK);
}

/// Keeps the head of an answer for the capture.
#[cold]
#[inline(never)]
fn keep_head(kept: &mut Vec<u8>, head: &[u8]) {
    kept.clear();
    kept.extend_from_slice(head);
}

/// The exchange of a head that cannot be read.
fn headless(id: ClientId, cx: &mut Cx) -> Exchange {
    let mut exchange = Exchange::new(id, RequestMeta::from_head(&RequestHead::unparsed()), cx);
    exchange.job.notes.begin_trace(&exchange.job.request, None);
    exchange
}

/// Charges a key for the data that waits at its client.
#[inline]
pub(super) fn charge_unread(client: &mut ClientConnection, shares: &mut MemoryShares) {
    if let Some((key, due)) = client.unread() {
        shares.charge(&mut client.unread, key, due);
    }
}

/// Records that more is unsent, with the deadline `stall`.
#[inline(always)] // otherwise nearly every event takes one more call
fn sent(client: &mut ClientConnection, id: ClientId, stall: Option<Mono>, cx: &mut Cx) {
    charge_unread(client, &mut cx.memory.shares);
    if let Some(stall) = stall {
        cx.commands.timers.arm(client_conn(id), stall);
    }
    // All events of one read need one entry only.
    if cx.commands.dirty.last() != Some(&client_conn(id)) {
        cx.commands.dirty.push(client_conn(id));
    }
}

/// Appends events.
pub(super) fn pass_on(client: &mut ClientConnection, request: &Request, events: &[u8], cx: &mut Cx) {
    let (id, http11) = (request.client, request.meta.http11);
    let stall = client.send(&cx.setup.config.server, &mut cx.memory.pool, cx.now.mono, |out| {
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
    sent(client, id, stall, cx);
}
