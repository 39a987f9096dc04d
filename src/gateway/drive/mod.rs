//! Driver: the only module that uses more than one state machine. It passes events to a machine and performs the
//! effects; it decides nothing that a machine could. Borrows the three tables separately, so that an exchange and its
//! two connections can be accessed at the same time.
//!
//! No machine calls another. Later effects of the same call are added to a worklist ([`Gateway::settle_down`]): so
//! there is no recursion, however many requests are pipelined.

mod admins;
mod answers;
mod clients;
mod places;
mod process;
mod providers;

use super::exchange::{ClientMessage, Effect, Endpoint, Exchange, ExchangeEvent};
use super::ids::{ExchangeId, client_conn};
use super::offload::{JobOwner, OffloadTask};
use super::{Gateway, Next};
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use crate::wire::head::Framing;

/// Beginning of an answer in one piece.
pub(crate) struct WholeReply<'a> {
    status: u16,
    framing: Framing,
    content_type: &'static str,
    refusal: Option<&'a Refusal>,
    /// Cost of the request in nano-dollars.
    cost: Option<u64>,
    /// Further header fields.
    more: &'a [u8],
}

impl Gateway {
    /// Passes an event to an exchange and performs the effects.
    fn tell(&mut self, id: ExchangeId, event: ExchangeEvent<'_>) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let Some(client) = self.clients.get(exchange.job.request.client) else { return };
        let (head, body) = client.message();
        // The body's storage changes only while the body arrives.
        let storage = if matches!(event, ExchangeEvent::Body { .. }) { client.payload_storage() } else { 0 };
        let (message, key) = (ClientMessage { exchange: id, head, body, storage }, exchange.job.request.found.key);
        let effect = exchange.on(event, &message, &mut self.cx);
        self.done(id, effect);
        self.free_heavy(key);
    }

    /// Frees unused large blocks, after work for `key`.
    #[inline]
    pub(crate) fn free_heavy(&mut self, key: Option<KeyIx>) {
        if self.cx.pool.has_heavy() {
            self.cx.discard_heavy(key);
        }
    }

    /// Performs the effect of an event of an exchange.
    #[inline]
    fn done(&mut self, id: ExchangeId, effect: Effect) {
        if self.cx.lets_go() {
            self.cx.take_let_go().into_iter().flatten().for_each(|(id, complete)| self.part(id, complete));
        }
        match effect {
            Effect::Nothing => {}
            Effect::Forward(forward) => self.forward(id, forward),
            other => self.follow(id, other),
        }
    }

    fn follow(&mut self, id: ExchangeId, effect: Effect) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let (cid, key) = (exchange.job.request.client, exchange.job.request.found.key);
        match effect {
            Effect::Nothing => {}
            Effect::Wait => self.arm(cid),
            Effect::Translate(translate) => {
                let Some(client) = self.clients.get_mut(cid) else { return };
                let (mut draft, pool) = (translate.draft, &mut self.cx.pool);
                draft.rewind(pool);
                let body = client.lend_message(pool);
                // Taken before the work begins, so that it cannot be missing later.
                if translate.target.is_some() {
                    draft.make_room(body.payload().len(), pool);
                }
                let lent = body.capacity() + draft.storage();
                exchange.state.lent(lent, &mut self.cx);
                let task = OffloadTask::Request { body, draft, from: translate.from, target: translate.target };
                let of = JobOwner { exchange: id, key, serial: translate.serial };
                self.cx.offload(of, lent, Default::default(), task);
                self.arm(cid);
            }
            Effect::CountOthers => {
                let payer = exchange
                    .job
                    .request
                    .found
                    .key
                    .map(|key| self.cx.plans.of(key, &self.cx.keys, &self.cx.setup.config));
                // With a group, the requests may belong to any key.
                let key = payer.and_then(|payer| payer.ok().filter(|payer| !payer.path.is_some()).map(|one| one.key));
                self.count_bounded(key);
                self.tell(id, ExchangeEvent::Counted);
            }
            Effect::Send(provider) => self.write_request(id, provider, true),
            Effect::Begin => {
                if let Some(provider) = exchange.state.provider() {
                    self.write_request(id, provider, true);
                }
            }
            Effect::Dial(dial) => self.dial(id, dial),
            Effect::Release => {
                if let Some(client) = self.clients.get_mut(cid) {
                    client.release_message(&mut self.cx.pool);
                }
            }
            Effect::Again => self.queue.push_back(Next::Tell(id, ExchangeEvent::BodyEnd)),
            Effect::Forward(forward) => self.forward(id, forward),
            Effect::ForwardBulk(forward, bytes) => self.forward_bulk(id, forward, bytes),
            Effect::End(forward, outcome) => self.end_stream(id, forward, outcome),
            effect => self.conclude(id, effect),
        }
    }

    /// Makes requests that were admitted by a bound count their possible use: those of a key, or all.
    pub(crate) fn count_bounded(&mut self, key: Option<KeyIx>) {
        let bounded = |exchange: &Exchange| {
            exchange.job.is_bounded() && key.is_none_or(|key| exchange.job.request.found.key == Some(key))
        };
        self.tell_all(&bounded, &|| ExchangeEvent::Count);
    }

    /// Passes an event to all exchanges for which `wants` is true.
    #[inline(never)]
    fn tell_all(&mut self, wants: &dyn Fn(&Exchange) -> bool, event: &dyn Fn() -> ExchangeEvent<'static>) {
        let ids: Vec<ExchangeId> = self.exchanges.iter().filter(|(_, one)| wants(one)).map(|(id, _)| id).collect();
        for id in ids {
            if self.exchanges.get(id).is_some_and(wants) {
                self.tell(id, event());
            }
        }
    }

    /// Performs the effects of the end of an exchange.
    fn conclude(&mut self, id: ExchangeId, effect: Effect) {
        // Kept in place: unpacking would copy it once more.
        let mut removed = self.exchanges.remove(id);
        let Some(exchange) = &mut removed else { return };
        let cid = exchange.job.request.client;
        if let Some(client) = self.clients.get_mut(cid) {
            client.exchange = None;
        }
        match effect {
            Effect::Answer(outcome) => self.answer(exchange, outcome),
            Effect::AnswerBulk(outcome, body) => self.answer_bulk(exchange, outcome, body),
            Effect::Refuse(refusal, outcome) => self.refuse(exchange, &refusal, outcome),
            Effect::Quota => self.answer_local(exchange, Endpoint::Quota),
            Effect::Authorize(head) => {
                if let Some(exchange) = removed {
                    self.authorize(|_| exchange, &head);
                }
                // The client was hardly read while the request waited.
                self.dirty.push(client_conn(cid));
            }
            Effect::Gone(outcome) => {
                exchange.finish(outcome, &mut self.cx);
            }
            _ => debug_assert!(false, "this effect ends nothing"),
        }
        self.queue.push_back(Next::Advance(cid));
    }

    /// Does the remaining work of a call: pipelined requests, answers that wait for memory, and stopping. Most events
    /// of a stream leave none.
    #[inline]
    pub(crate) fn settle_down(&mut self) {
        let (lifecycle, cx) = (&self.cx.lifecycle, &self.cx);
        let is_quiet = self.queue.is_empty() && !cx.may_have_room() && !cx.queues.is_any_waiting();
        if !is_quiet || lifecycle.is_stopping() || lifecycle.handover.is_under_way() {
            self.go_on();
        }
    }

    #[inline(never)]
    fn go_on(&mut self) {
        loop {
            while let Some(next) = self.queue.pop_front() {
                match next {
                    Next::Advance(id) => self.advance(id),
                    Next::Tell(id, event) => self.tell(id, event),
                }
            }
            if self.cx.may_have_room() {
                self.look_at_room();
            }
            // A request that gets a slot may end immediately and free it for the next.
            if !self.cx.queues.is_any_waiting() || !self.give_places() {
                break;
            }
        }
        if self.cx.lifecycle.handover.is_under_way() {
            self.go_on_handing_over();
        }
        if self.cx.lifecycle.is_stopping() {
            self.go_on_stopping();
        }
    }
}
