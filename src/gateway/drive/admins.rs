//! Requests to the admin listener: answered immediately, passed to a helper thread, or kept for the live feed of
//! requests.

use super::WholeReply;
use super::answers::CHUNK_FRAME;
use crate::base::limits::{ADMIN_BODY_MAX, HIGH_WATER};
use crate::base::time::Mono;
use crate::dialect::errors;
use crate::gateway::admin::{
    self, AdminRole, AdminStep, Answer, DeskAnswer, DeskAsk, IncomingRequest, Load, View, Waiting, Waits,
};
use crate::gateway::client::places::PeerKey;
use crate::gateway::client::response::{EVENTS, JSON, RequestMeta, TEXT};
use crate::gateway::exchange::authorize::content_fits;
use crate::gateway::exchange::{Endpoint, Exchange, is_too_slow};
use crate::gateway::ids::ClientId;
use crate::gateway::metrics::{Gauges, Scrape};
use crate::gateway::orders::Order;
use crate::gateway::{Gateway, Next, local};
use crate::policy::refusal::Refusal;
use crate::wire::body::{LAST_CHUNK, write_chunk};
use crate::wire::head::{Framing, Method, RequestHead, values};
use std::time::Duration;

/// Responses that wait for slow callers take at most this part of `max_buffered`, for callers with a token and for the
/// others.
const UNREAD_SHARE: usize = 8;

/// Interval between updates of the live feed.
const LIVE_EVERY: Duration = Duration::from_millis(250);
/// Number of intervals without requests after which a comment is sent.
const LIVE_SILENCE: u64 = 60;

impl Gateway {
    /// Handles a head on the admin listener.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer_admin(&mut self, id: ClientId, meta: RequestMeta, head: &RequestHead) {
        let lifecycle = &self.cx.lifecycle;
        let unready = match () {
            () if lifecycle.is_leaving() || lifecycle.has_handed_over() => Some("stopping"),
            () if !self.cx.clock_is_right() => Some("clock"),
            () if !self.cx.takes_requests() => Some("ledger"),
            () => None,
        };
        let view = View { unready, gauges: self.gauges(), exchanges: self.exchanges.len() };
        let (keep, peer) = (self.cx.limits.keeps_admin(), self.cx.peers.socket(id));
        let Some(client) = self.clients.get_mut(id) else { return };
        if !keep {
            client.end_after_answer();
        }
        let (bytes, _) = client.message();
        let role = admin::role(head, bytes, self.cx.admin, &self.cx.setup.config.server);
        let mut out = std::mem::take(&mut self.cx.out);
        out.clear();
        let step = admin::step(head, bytes, role, &view, &mut self.cx, &mut out);
        self.cx.out = out;
        let known = role > AdminRole::Guest;
        self.acts(id, known);
        match step {
            AdminStep::Answer(answer) if self.has_room_for_answer(id, known) => self.reply_admin(id, meta, answer),
            AdminStep::Scrape(scrape) if self.has_room_for_answer(id, known) => self.begin_scrape(id, meta, scrape),
            AdminStep::Answer(_) | AdminStep::Scrape(_) => self.refuse_admin(id, meta, &unread()),
            AdminStep::Refuse(refusal) => self.refuse_admin(id, meta, &refusal),
            AdminStep::Ask(part, writer) => {
                let caller = (PeerKey::of(peer.into()), known);
                let begun = IncomingRequest { head: *head, part, writer, caller };
                if admin::has_body(head) {
                    self.read_admin_body(id, meta, begun)
                } else {
                    self.ask_desk(id, meta, begun)
                }
            }
            AdminStep::Live => self.begin_live(id, meta),
        }
    }

    /// True if `cx.out` may wait to be read by its caller, who has shown a token or not; records that it does.
    fn has_room_for_answer(&mut self, id: ClientId, known: bool) -> bool {
        let clients = &self.clients;
        let unsent = |id| clients.get(id).map_or(0, |client| client.unsent_bytes());
        let server = &self.cx.setup.config.server;
        // Unsent answers count as buffered, and clients need most of that memory.
        let most = server.bounds.unread_bytes().min(server.max_buffered / UNREAD_SHARE);
        let has_room = self.cx.desk.has_room(known, self.cx.out.len(), most, unsent);
        if has_room {
            self.cx.desk.reads(id, known);
        }
        has_room
    }

    /// Answers with the contents of `cx.out`.
    #[cold]
    #[inline(never)]
    fn reply_admin(&mut self, id: ClientId, meta: RequestMeta, answer: Answer) {
        let exchange = Exchange::new(id, meta, &mut self.cx);
        let Answer { status, content_type, more } = answer;
        let framing = Framing::Length(self.cx.out.len() as u64);
        let reply = WholeReply { status, framing, content_type, refusal: None, cost: None, more: more.as_bytes() };
        self.reply(&exchange.job.request, &reply);
        // A page is not kept for the next response.
        self.cx.out = Vec::new();
    }

    #[cold]
    #[inline(never)]
    fn refuse_admin(&mut self, id: ClientId, meta: RequestMeta, refusal: &Refusal) {
        let exchange = Exchange::new(id, meta, &mut self.cx);
        self.cx.out.clear();
        errors::error_body(None, &local::words(refusal, exchange.job.request.id.as_str()), &mut self.cx.out);
        let framing = Framing::Length(self.cx.out.len() as u64);
        let (status, refusal) = (refusal.status, Some(refusal));
        self.reply(
            &exchange.job.request,
            &WholeReply { status, framing, content_type: JSON, refusal, cost: None, more: b"" },
        );
    }

    fn read_admin_body(&mut self, id: ClientId, meta: RequestMeta, begun: IncomingRequest) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let head = begun.head;
        if let Err(refusal) = content_fits(&head, client.message().0, Endpoint::Root, ADMIN_BODY_MAX) {
            return self.refuse_admin(id, meta, &refusal);
        }
        if client.begin_body(None, None, &head, ADMIN_BODY_MAX).is_err() {
            return self.refuse_admin(id, meta, &Refusal::too_large(ADMIN_BODY_MAX));
        }
        let awaits_continue = client.awaits_continue(&head);
        self.cx.desk.wait(Waiting { client: id, meta, waits: Waits::Body(Box::new(begun), self.cx.now.mono) });
        if awaits_continue {
            self.send(id, |out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }

    /// Handles more of a body.
    #[cold]
    #[inline(never)]
    pub(crate) fn admin_body(&mut self, id: ClientId, complete: bool) {
        if complete {
            return match self.cx.desk.gone(id) {
                Some(Waiting { meta, waits: Waits::Body(begun, _), .. }) => self.ask_desk(id, meta, *begun),
                _ => self.drop_client(id),
            };
        }
        let Some(Waiting { waits: Waits::Body(_, since), .. }) = self.cx.desk.of(id) else { return };
        let elapsed = self.cx.now.mono.micros_since(*since);
        let length = self.clients.get(id).map_or(0, |client| client.message().1.len() as u64);
        let body_timeout = self.cx.setup.config.server.body_timeout;
        if is_too_slow(length, elapsed, body_timeout) {
            self.bad_admin_body(id, &Refusal::body_too_slow(body_timeout));
        }
    }

    /// Refuses a body that cannot be accepted.
    #[cold]
    #[inline(never)]
    pub(crate) fn bad_admin_body(&mut self, id: ClientId, refusal: &Refusal) {
        let Some(Waiting { meta, .. }) = self.cx.desk.gone(id) else { return self.drop_client(id) };
        let Some(client) = self.clients.get_mut(id) else { return };
        client.end_after_answer();
        self.refuse_admin(id, meta, refusal);
    }

    #[cold]
    #[inline(never)]
    fn ask_desk(&mut self, id: ClientId, meta: RequestMeta, begun: IncomingRequest) {
        let Some(client) = self.clients.get(id) else { return };
        let (bytes, body) = client.message();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let IncomingRequest { head, part, writer, caller } = begun;
        let mut names: Vec<String> = values(&bytes[..head.len as usize], "idempotency-key").map(text).collect();
        let (once, twice) = (names.pop(), !names.is_empty());
        let path = text(admin::inside(head.path.of(bytes)).unwrap_or_default());
        let load = match path.as_str() {
            _ if writer.is_some() => Load::Change,
            "usage" | "budgets" => Load::Report(caller),
            _ => Load::List(caller),
        };
        let ask = DeskAsk {
            client: id,
            config: self.cx.setup.config.clone(),
            method: text(if head.method == Method::Head { b"GET" } else { admin::method(bytes) }),
            path,
            part,
            body: body.to_vec(),
            once,
            writer,
            load,
        };
        let refused = match load {
            _ if twice => Some(Refusal::of_status(400, "idempotency-key: given twice")),
            _ if self.cx.desk.takes(load) => None,
            Load::Change => Some(Refusal::of_status(503, "too many changes are being made; try again")),
            Load::List(_) | Load::Report(_) => {
                Some(Refusal::of_status(503, "too many lists and reports are being written; try again"))
            }
        };
        if let Some(refusal) = refused {
            return self.refuse_admin(id, meta, &refusal);
        }
        if let Some(client) = self.clients.get_mut(id) {
            client.begin_answer(None);
        }
        self.keep_while_waiting(id);
        self.cx.desk.wait(Waiting { client: id, meta, waits: Waits::Answer });
        self.cx.orders.push(Order::Desk(Box::new(ask)));
    }

    /// Keeps the connection of a pending answer. Even without a token it keeps its slot, if there are enough slots.
    fn keep_while_waiting(&mut self, id: ClientId) {
        let is_known = self.clients.get(id).is_some_and(|client| client.known);
        if !is_known && self.cx.limits.may_wait() {
            self.acts(id, true);
        }
    }

    /// Handles an answer of the helper thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn desk_answered(&mut self, answer: DeskAnswer) {
        self.cx.desk.done(answer.load);
        // A known record may have changed since.
        if let Some(record) = answer.issued.filter(|record| !self.cx.keys.knows(&record.id)) {
            self.cx.learn_key(*record);
        }
        let id = answer.client;
        let Some(Waiting { meta, .. }) = self.cx.desk.gone(id) else { return };
        match answer.body {
            Ok(body) => {
                self.cx.out = body;
                let caller = answer.load.caller();
                // A change that was made is reported.
                match self.has_room_for_answer(id, caller.is_none_or(|(_, known)| known)) || caller.is_none() {
                    true => {
                        let more = admin::FRESH.to_string();
                        self.reply_admin(id, meta, Answer { status: answer.status, content_type: JSON, more });
                    }
                    false => self.refuse_admin(id, meta, &unread()),
                }
            }
            Err(message) => self.refuse_admin(id, meta, &Refusal::of_status(answer.status, message)),
        }
        self.queue.push_back(Next::Advance(id));
    }

    /// Writes the head of a response whose length is not known. False if no body follows it. `lasts`: the response ends
    /// with the connection.
    fn begin_pieces(&mut self, id: ClientId, meta: RequestMeta, content_type: &'static str, lasts: bool) -> bool {
        let exchange = Exchange::new(id, meta, &mut self.cx);
        let framing = if meta.http11 { Framing::Chunked } else { Framing::ToEnd };
        let reply = WholeReply { status: 200, framing, content_type, refusal: None, cost: None, more: b"" };
        if meta.method == Method::Head {
            self.reply(&exchange.job.request, &reply);
            return false;
        }
        let Some(client) = self.clients.get_mut(id) else { return false };
        if lasts || !meta.bodiless {
            client.end_after_answer();
        }
        client.begin_answer(None);
        self.write_head(&exchange.job.request, &reply);
        true
    }

    /// Starts to send the metrics: the first piece is in `cx.out`.
    fn begin_scrape(&mut self, id: ClientId, meta: RequestMeta, scrape: Box<Scrape>) {
        if self.begin_pieces(id, meta, TEXT, false) {
            self.cx.desk.wait(Waiting { client: id, meta, waits: Waits::Scrape(scrape) });
            self.send_piece(id, meta, false);
        }
        self.cx.out = Vec::new();
    }

    /// Sends more of the metrics to a client that has read most of what was sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn continue_scrape(&mut self, id: ClientId) {
        let unsent = self.clients.get(id).map_or(0, |client| client.unsent_bytes());
        let Some(Waiting { waits: Waits::Scrape(_), .. }) = self.cx.desk.of(id) else { return };
        let Some(Waiting { meta, waits: Waits::Scrape(mut scrape), .. }) = self.cx.desk.gone(id) else { return };
        let mut out = Vec::new();
        let complete = admin::scrape(&mut self.cx, &mut scrape, HIGH_WATER.saturating_sub(unsent), &mut out);
        self.cx.out = out;
        self.send_piece(id, meta, complete);
        self.cx.out = Vec::new();
        if !complete {
            return self.cx.desk.wait(Waiting { client: id, meta, waits: Waits::Scrape(scrape) });
        }
        let Some(client) = self.clients.get(id) else { return };
        let after = client.after_response(meta, !meta.http11 || self.cx.lifecycle.is_stopping());
        self.answered(id, after);
    }

    /// Sends the piece in `cx.out`.
    fn send_piece(&mut self, id: ClientId, meta: RequestMeta, complete: bool) {
        let piece = std::mem::take(&mut self.cx.out);
        self.send(id, |out| {
            // Reserves as little as possible, since the piece waits for a slow reader.
            out.reserve_exact(piece.len() + CHUNK_FRAME);
            match meta.http11 {
                true => write_chunk(out, &piece),
                false => out.extend_from_slice(&piece),
            }
            if meta.http11 && complete {
                out.extend_from_slice(LAST_CHUNK);
            }
        });
    }

    /// Starts the live feed for a client.
    fn begin_live(&mut self, id: ClientId, meta: RequestMeta) {
        if !self.begin_pieces(id, meta, EVENTS, true) {
            return;
        }
        self.cx.recorder.open(self.cx.now.unix);
        let from = self.cx.recorder.next();
        self.keep_while_waiting(id);
        self.cx.desk.wait(Waiting { client: id, meta, waits: Waits::Live(from) });
        self.live(id, b": listening\n\n");
    }

    /// Sends new requests to a client of the live feed.
    #[cold]
    #[inline(never)]
    pub(crate) fn live_due(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let is_full = client.is_full();
        let Some(Waiting { waits: Waits::Live(next), .. }) = self.cx.desk.of(id) else { return };
        let mut events = Vec::new();
        if !is_full {
            let (missed, rows) = self.cx.recorder.from(*next);
            if missed > 0 {
                events.extend_from_slice(format!("event: missed\ndata: {{\"requests\":{missed}}}\n\n").as_bytes());
            }
            for row in rows {
                events.extend_from_slice(b"data: ");
                row.write(&mut events);
                events.extend_from_slice(b"\n\n");
            }
            *next = self.cx.recorder.next();
        }
        // Computed from the clock, so that no state is needed.
        let beat = LIVE_EVERY.as_micros() as u64 * LIVE_SILENCE;
        let now = self.cx.now.mono.0;
        if events.is_empty() && now / beat != (now + LIVE_EVERY.as_micros() as u64) / beat {
            events.extend_from_slice(b":\n\n");
        }
        self.live(id, &events);
    }

    fn live(&mut self, id: ClientId, events: &[u8]) {
        let Some(Waiting { meta, .. }) = self.cx.desk.of(id) else { return };
        let http11 = meta.http11;
        if !events.is_empty() {
            self.send(id, |out| match http11 {
                true => write_chunk(out, events),
                false => out.extend_from_slice(events),
            });
        }
        let due = match self.cx.lifecycle.is_stopping() {
            true => Mono::NEVER,
            false => self.cx.now.mono.after(LIVE_EVERY),
        };
        if let Some(client) = self.clients.get_mut(id) {
            client.wake_at(due);
            self.arm(id);
        }
    }

    fn gauges(&self) -> Gauges {
        Gauges {
            clients: self.cx.limits.clients(),
            upstreams: self.providers.len(),
            idle: self.cx.idle.len(),
            holds: self.cx.meter.open_holds(),
            buffered: self.cx.pool.lent(),
            uncommitted: self.cx.ledger.uncommitted(),
            turned_away: self.cx.limits.turned_away,
            process: self.process.map(|look| look()).unwrap_or_default(),
        }
    }
}

/// 503: too many responses wait to be read.
fn unread() -> Refusal {
    Refusal::of_status(503, "other responses of the admin listener have not been read; try again")
}
