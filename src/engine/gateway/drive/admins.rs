//! Requests to the admin listener: answered immediately, passed to a helper thread, or kept for the live feed of
//! requests.

use super::clients::{CHUNK_FRAME, Clients, Next, WholeReply};
use crate::base::limits::{ADMIN_BODY_MAX, HIGH_WATER};
use crate::base::seam::Shut;
use crate::dialect::errors;
use crate::gateway::admin::{self, AdminRole, AdminStep, Answer, View};
use crate::gateway::client::response::{EVENTS, JSON, RequestMeta, TEXT};
use crate::gateway::client::seats::PeerKey;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::admit::authorize::content_fits;
use crate::gateway::exchange::local;
use crate::gateway::exchange::{Endpoint, Exchange, Exchanges, is_too_slow};
use crate::gateway::ids::{ClientId, client_conn};
use crate::gateway::orders::Order;
use crate::gateway::orders::desk::{DeskAnswer, DeskAsk, IncomingRequest, Load, Waiting, Waits};
use crate::gateway::report::metrics::{Gauges, Scrape};
use crate::policy::refusal::Refusal;
use crate::wire::body::{LAST_CHUNK, write_chunk};
use crate::wire::head::{Framing, HeaderField, Method, RequestHead, values};
use std::time::Duration;

/// Responses that wait for slow callers take at most this part of `max_buffered`, for callers with a token and for the
/// others.
const UNREAD_SHARE: usize = 8;

/// Interval between updates of the live feed.
const LIVE_EVERY: Duration = Duration::from_millis(250);
/// Number of intervals without requests after which a comment is sent.
const LIVE_SILENCE: u64 = 60;

/// Handles requests to the admin listener, with access to what they need: connections of clients and shared data.
pub(crate) struct AdminListener<'a> {
    pub(super) clients: &'a mut Clients,
    pub(super) cx: &'a mut Cx,
}

impl AdminListener<'_> {
    /// Handles a head on the admin listener.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer_admin(&mut self, id: ClientId, meta: RequestMeta, head: &RequestHead, exchanges: &Exchanges) {
        let lifecycle = &self.cx.lifecycle;
        let unready = match () {
            () if lifecycle.is_leaving() || lifecycle.has_handed_over() => Some("stopping"),
            () if !self.cx.clock_is_right() => Some("clock"),
            () if !self.cx.takes_requests() => Some("ledger"),
            () => None,
        };
        let Some(client) = self.clients.table.get_mut(id) else { return };
        let (bytes, _) = client.message();
        let role = admin::role(head, bytes, self.cx.connections.admin, &self.cx.setup.config.server);
        let known = role > AdminRole::Guest;
        if role == AdminRole::Nobody && !head.field(HeaderField::Authorization).of(bytes).is_empty() {
            self.cx.tell_of_wrong_token(id);
        }
        let unanswered = || exchanges.iter().filter_map(|(_, exchange)| exchange.job.awaits_answer()).collect();
        let gauges = Gauges {
            clients: self.cx.connections.limits.clients(),
            upstreams: self.cx.connections.limits.providers,
            idle: self.cx.upstreams.idle.len(),
            holds: self.cx.accounts.meter.open_holds(),
            buffered: self.cx.memory.pool.lent(),
            worst_case: self.cx.memory.announced,
            uncommitted: self.cx.accounts.ledger.uncommitted(),
            turned_away: self.cx.connections.limits.turned_away,
            // Reading it takes longer than anything else here.
            process: self
                .cx
                .connections
                .process
                .filter(|_| role > AdminRole::Nobody)
                .map(|look| look())
                .unwrap_or_default(),
        };
        let view = View { unready, gauges, exchanges: exchanges.len(), unanswered: &unanswered };
        let (keep, peer) = (self.cx.connections.limits.keeps_admin(), self.cx.connections.peers.socket(id));
        let Some(client) = self.clients.table.get_mut(id) else { return };
        if !keep {
            client.end_after_answer();
        }
        let (bytes, _) = client.message();
        self.clients.out.bytes.clear();
        let step = admin::step(head, bytes, role, &view, self.cx, &mut self.clients.out.bytes);
        self.clients.acts(id, known, self.cx);
        match step {
            AdminStep::Answer(answer) if self.has_room_for_answer(id, known) => self.reply_admin(id, meta, answer),
            AdminStep::Scrape(scrape) if self.has_room_for_answer(id, known) => self.begin_scrape(id, meta, scrape),
            AdminStep::Answer(_) | AdminStep::Scrape(_) => self.refuse_admin(id, meta, &unread()),
            AdminStep::Refuse(refusal) => self.refuse_admin(id, meta, &refusal),
            AdminStep::Ask(part, writer) => {
                let caller = (PeerKey::from_ip(peer.into()), known);
                let begun = IncomingRequest { head: *head, part, writer, caller };
                if !matches!(head.framing, Framing::None | Framing::Length(0)) {
                    self.read_admin_body(id, meta, begun)
                } else {
                    self.ask_desk(id, meta, begun)
                }
            }
            AdminStep::Live => self.begin_live(id, meta),
        }
    }

    /// True if the output may wait to be read by its caller, who has shown a token or not; records that it does.
    fn has_room_for_answer(&mut self, id: ClientId, known: bool) -> bool {
        let clients = &self.clients.table;
        let unsent = |id| clients.get(id).map_or(0, |client| client.unsent_bytes());
        let server = &self.cx.setup.config.server;
        // Unsent answers count as buffered, and clients need most of that memory.
        let most = server.bounds.unread_bytes().min(server.max_buffered / UNREAD_SHARE);
        let has_room = self.cx.connections.desk.has_room(known, self.clients.out.bytes.len(), most, unsent);
        if has_room {
            self.cx.connections.desk.reads(id, known);
        }
        has_room
    }

    /// Answers with the output.
    #[cold]
    #[inline(never)]
    fn reply_admin(&mut self, id: ClientId, meta: RequestMeta, answer: Answer) {
        let exchange = Exchange::new(id, meta, self.cx);
        let Answer { status, content_type, more } = answer;
        let framing = Framing::Length(self.clients.out.bytes.len() as u64);
        let reply = WholeReply { status, more: more.as_bytes(), ..WholeReply::ok(framing, content_type, None) };
        self.clients.reply(&exchange.job.request, &reply, self.cx);
        // A page is not kept for the next response.
        self.clients.out.bytes = Vec::new();
    }

    #[cold]
    #[inline(never)]
    fn refuse_admin(&mut self, id: ClientId, meta: RequestMeta, refusal: &Refusal) {
        let exchange = Exchange::new(id, meta, self.cx);
        self.clients.out.bytes.clear();
        errors::error_body(None, &local::words(refusal, exchange.job.request.id.as_str()), &mut self.clients.out.bytes);
        let framing = Framing::Length(self.clients.out.bytes.len() as u64);
        let reply =
            WholeReply { status: refusal.status, refusal: Some(refusal), ..WholeReply::ok(framing, JSON, None) };
        self.clients.reply(&exchange.job.request, &reply, self.cx);
    }

    fn read_admin_body(&mut self, id: ClientId, meta: RequestMeta, begun: IncomingRequest) {
        let Some(client) = self.clients.table.get_mut(id) else { return };
        let head = begun.head;
        if let Err(refusal) = content_fits(&head, client.message().0, Endpoint::Root, ADMIN_BODY_MAX) {
            return self.refuse_admin(id, meta, &refusal);
        }
        if client.begin_body(None, None, &head, ADMIN_BODY_MAX).is_err() {
            return self.refuse_admin(id, meta, &Refusal::too_large(ADMIN_BODY_MAX));
        }
        let awaits_continue = client.awaits_continue(&head);
        let waits = Waits::Body(Box::new(begun), self.cx.now.mono);
        self.cx.connections.desk.wait(Waiting { client: id, meta, waits });
        if awaits_continue {
            self.clients.send(id, self.cx, |out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }

    /// Handles more of a body.
    #[cold]
    #[inline(never)]
    pub(crate) fn admin_body(&mut self, id: ClientId, complete: bool) {
        if complete {
            return match self.cx.connections.desk.gone(id) {
                Some(Waiting { meta, waits: Waits::Body(begun, _), .. }) => self.ask_desk(id, meta, *begun),
                _ => self.clients.close(id, Shut::Abort, self.cx),
            };
        }
        let Some(Waiting { waits: Waits::Body(_, since), .. }) = self.cx.connections.desk.of(id) else { return };
        let elapsed = self.cx.now.mono.micros_since(*since);
        let length = self.clients.table.get(id).map_or(0, |client| client.message().1.len() as u64);
        let body_timeout = self.cx.setup.config.server.body_timeout;
        if is_too_slow(length, elapsed, body_timeout) {
            self.bad_admin_body(id, &Refusal::body_too_slow("body_timeout", body_timeout));
        }
    }

    /// Refuses a body that cannot be accepted.
    #[cold]
    #[inline(never)]
    pub(crate) fn bad_admin_body(&mut self, id: ClientId, refusal: &Refusal) {
        let Some(Waiting { meta, .. }) = self.cx.connections.desk.gone(id) else {
            return self.clients.close(id, Shut::Abort, self.cx);
        };
        let Some(client) = self.clients.table.get_mut(id) else { return };
        client.end_after_answer();
        self.refuse_admin(id, meta, refusal);
    }

    #[cold]
    #[inline(never)]
    fn ask_desk(&mut self, id: ClientId, meta: RequestMeta, begun: IncomingRequest) {
        let Some(client) = self.clients.table.get(id) else { return };
        let (bytes, body) = client.message();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let IncomingRequest { head, part, writer, caller } = begun;
        let mut names: Vec<String> = values(&bytes[..head.len as usize], "idempotency-key").map(text).collect();
        let (once, twice) = (names.pop(), !names.is_empty());
        let path = text(admin::inside(head.path.of(bytes)).unwrap_or_default());
        let load = match path.as_str() {
            _ if writer.is_some() => Load::Change,
            "usage" | "budgets" | "requests" => Load::Report(caller),
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
            _ if self.cx.connections.desk.takes(load) => None,
            Load::Change => Some(Refusal::of_status(503, "too many changes are being made; try again")),
            Load::List(_) | Load::Report(_) => {
                Some(Refusal::of_status(503, "too many lists and reports are being written; try again"))
            }
        };
        if let Some(refusal) = refused {
            return self.refuse_admin(id, meta, &refusal);
        }
        if let Some(client) = self.clients.table.get_mut(id) {
            client.begin_answer(None);
        }
        self.keep_while_waiting(id);
        self.cx.connections.desk.wait(Waiting { client: id, meta, waits: Waits::Answer });
        self.cx.commands.orders.push(Order::Desk(Box::new(ask)));
    }

    /// Keeps the connection of a pending answer. Even without a token it keeps its slot, if there are enough slots.
    fn keep_while_waiting(&mut self, id: ClientId) {
        let is_known = self.clients.table.get(id).is_some_and(|client| client.known);
        if !is_known && self.cx.connections.limits.may_wait() {
            self.clients.acts(id, true, self.cx);
        }
    }

    /// Handles an answer of the helper thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn desk_answered(&mut self, answer: DeskAnswer) {
        self.cx.connections.desk.done(answer.load);
        // A known record may have changed since.
        if let Some(record) = answer.issued.filter(|record| !self.cx.access.keys.knows(&record.id)) {
            self.cx.learn_key(*record);
        }
        let id = answer.client;
        let Some(Waiting { meta, .. }) = self.cx.connections.desk.gone(id) else { return };
        match answer.body {
            Ok(body) => {
                self.clients.out.bytes = body;
                let caller = answer.load.caller();
                // A change that was made is reported.
                match self.has_room_for_answer(id, caller.is_none_or(|(_, known)| known)) || caller.is_none() {
                    true => self.reply_admin(id, meta, Answer::new(answer.status, JSON)),
                    false => self.refuse_admin(id, meta, &unread()),
                }
            }
            Err(message) => self.refuse_admin(id, meta, &Refusal::of_status(answer.status, message)),
        }
        self.clients.queue.push_back(Next::Advance(id));
    }

    /// Writes the head of a response whose length is not known. False if no body follows it. `lasts`: the response ends
    /// with the connection.
    fn begin_pieces(&mut self, id: ClientId, meta: RequestMeta, content_type: &'static str, lasts: bool) -> bool {
        let exchange = Exchange::new(id, meta, self.cx);
        let framing = if meta.http11 { Framing::Chunked } else { Framing::ToEnd };
        let reply = WholeReply::ok(framing, content_type, None);
        if meta.method == Method::Head {
            self.clients.reply(&exchange.job.request, &reply, self.cx);
            return false;
        }
        let Some(client) = self.clients.table.get_mut(id) else { return false };
        if lasts || !meta.bodiless {
            client.end_after_answer();
        }
        client.begin_answer(None);
        self.clients.write_head(&exchange.job.request, &reply, b"", self.cx);
        true
    }

    /// Starts to send the metrics: the first piece is in the output.
    fn begin_scrape(&mut self, id: ClientId, meta: RequestMeta, scrape: Box<Scrape>) {
        if self.begin_pieces(id, meta, TEXT, false) {
            self.cx.connections.desk.wait(Waiting { client: id, meta, waits: Waits::Scrape(scrape) });
            self.send_piece(id, meta, false);
        }
        // A request for the head alone ends here, and keeps no output.
        self.clients.out.bytes = Vec::new();
    }

    /// Sends more of the metrics to a client that has read most of what was sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn continue_scrape(&mut self, id: ClientId) {
        let unsent = self.clients.table.get(id).map_or(0, |client| client.unsent_bytes());
        let Some(Waiting { waits: Waits::Scrape(_), .. }) = self.cx.connections.desk.of(id) else { return };
        let Some(Waiting { meta, waits: Waits::Scrape(mut scrape), .. }) = self.cx.connections.desk.gone(id) else {
            return;
        };
        self.clients.out.bytes.clear();
        let room = HIGH_WATER.saturating_sub(unsent);
        let complete = admin::scrape(self.cx, &mut scrape, room, &mut self.clients.out.bytes);
        self.send_piece(id, meta, complete);
        if !complete {
            return self.cx.connections.desk.wait(Waiting { client: id, meta, waits: Waits::Scrape(scrape) });
        }
        let Some(client) = self.clients.table.get(id) else { return };
        let after = client.after_response(meta, !meta.http11 || self.cx.lifecycle.is_stopping());
        self.clients.answered(id, after, self.cx);
    }

    /// Sends the piece in the output.
    fn send_piece(&mut self, id: ClientId, meta: RequestMeta, complete: bool) {
        let piece = std::mem::take(&mut self.clients.out.bytes);
        self.clients.send(id, self.cx, |out| {
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
        self.cx.report.recorder.open(self.cx.now.unix);
        let from = self.cx.report.recorder.next();
        self.keep_while_waiting(id);
        self.cx.connections.desk.wait(Waiting { client: id, meta, waits: Waits::Live(from) });
        self.live(id, b": listening\n\n");
    }

    /// Sends new requests to a client of the live feed.
    #[cold]
    #[inline(never)]
    pub(crate) fn live_due(&mut self, id: ClientId) {
        let Some(client) = self.clients.table.get(id) else { return };
        let is_full = client.is_full();
        let Some(Waiting { waits: Waits::Live(next), .. }) = self.cx.connections.desk.of(id) else { return };
        let mut events = Vec::new();
        if !is_full {
            let (missed, rows) = self.cx.report.recorder.from(*next);
            if missed > 0 {
                events.extend_from_slice(format!("event: missed\ndata: {{\"requests\":{missed}}}\n\n").as_bytes());
            }
            for row in rows {
                events.extend_from_slice(b"data: ");
                row.write(&mut events);
                events.extend_from_slice(b"\n\n");
            }
            *next = self.cx.report.recorder.next();
        }
        // Computed from the clock, so that no state is needed.
        let beat = LIVE_EVERY.as_micros() as u64 * LIVE_SILENCE;
        let now = self.cx.now.mono.0;
        if events.is_empty() && now / beat != (now + LIVE_EVERY.as_micros() as u64) / beat {
            events.extend_from_slice(b":\n\n");
        }
        self.live(id, &events);
    }

    /// Sends events to a client of the live feed.
    pub(crate) fn live(&mut self, id: ClientId, events: &[u8]) {
        let Some(Waiting { meta, .. }) = self.cx.connections.desk.of(id) else { return };
        let http11 = meta.http11;
        if !events.is_empty() {
            self.clients.send(id, self.cx, |out| match http11 {
                true => write_chunk(out, events),
                false => out.extend_from_slice(events),
            });
        }
        if let Some(client) = self.clients.table.get_mut(id) {
            client.wait = self.cx.now.mono.after(LIVE_EVERY);
            self.cx.commands.timers.arm(client_conn(id), client.due());
        }
    }
}

/// 503: too many responses wait to be read.
fn unread() -> Refusal {
    Refusal::of_status(503, "other responses of the admin listener have not been read; try again")
}
