//! Work that would hold the loop too long: reading or translating what is larger than `limits::WORK_MIN` in one piece.
//! It leaves as an [`Order::Work`], with everything it needs; a helper thread (or a test) runs it; it comes back as a
//! `Notice::Worked`. Meanwhile its exchange waits, its provider is not read, and every other exchange goes on.
//!
//! Storage goes along and stays counted: the work's own pool starts from what was lent to it, and is taken into account
//! again when it returns, whether its exchange still waits for it or not.

use super::Gateway;
use super::exchange::Exchange;
use super::fault::{Fault, FaultKind};
use super::orders::Order;
use super::outgoing::Draft;
use super::relay::Relay;
use crate::base::buf::{Buf, Pool};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use crate::dialect::{
    self, Broken, Capabilities, Fed, Invalid, ObservedUsage, ResponseIdentity, SseStream, StreamFault, TranslationState,
};
use crate::policy::refusal::Refusal;
use crate::wire::Dialect;
use crate::wire::inbound::Lent;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The end of a chunk that is at the same time the last one.
pub(crate) const LAST_OF_ONE: &[u8] = b"\r\n0\r\n\r\n";

/// Something to be done elsewhere.
#[derive(Debug)]
pub struct Work {
    ticket: Ticket,
    me: Own,
    task: Task,
}

/// Something that has been done elsewhere.
#[derive(Debug)]
pub struct Done {
    ticket: Ticket,
    /// `None`: it was lost to a bug.
    product: Option<Product>,
}

/// Which exchange waits for it, and the storage that went along.
#[derive(Debug)]
struct Ticket {
    exchange: Id<Exchange>,
    serial: u64,
    pool: Pool,
    /// What `pool` started from.
    lent: usize,
}

/// [`ResponseIdentity`] with its own words.
#[derive(Debug)]
struct Own {
    id: String,
    model: Arc<str>,
    created: u64,
    prompt_estimate: u64,
}

impl Own {
    fn me(&self) -> ResponseIdentity<'_> {
        ResponseIdentity {
            id: &self.id,
            model: &self.model,
            created: self.created,
            prompt_estimate: self.prompt_estimate,
        }
    }
}

#[derive(Debug)]
enum Task {
    /// Large blocks of memory, to be given back to the system.
    Discard(Vec<Vec<u8>>),
    /// A whole answer of a provider of shape `from`, for a client of shape `to`.
    Reply { body: Buf, from: Dialect, to: Dialect, carry: TranslationState, chunked: bool },
    /// A request of shape `from`, for a provider of the other one.
    Request { body: Lent, draft: Box<Draft>, from: Dialect, model: String, capabilities: Box<Capabilities> },
    /// A piece of a stream whose event under way is large.
    Events { flow: Box<SseStream>, data: Vec<u8> },
    /// The end of a stream that leaves a large event without its empty line.
    LastEvent { flow: Box<SseStream> },
}

#[derive(Debug)]
enum Product {
    /// The answer as it is sent, with the end of its one chunk if it is chunked.
    Reply {
        read: Result<ObservedUsage, Broken>,
        out: Buf,
    },
    Request {
        body: Lent,
        draft: Box<Draft>,
        built: Result<(), Invalid>,
    },
    Events {
        flow: Box<SseStream>,
        out: Vec<u8>,
        fed: Result<Fed, StreamFault>,
    },
    LastEvent {
        flow: Box<SseStream>,
        out: Vec<u8>,
        ended: Result<(), StreamFault>,
    },
}

impl Work {
    /// Does it. Takes some milliseconds per megabyte.
    pub fn run(self) -> Done {
        let Work { mut ticket, me, task } = self;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut pool = std::mem::replace(&mut ticket.pool, Pool::new(usize::MAX));
            let product = run(task, &me.me(), &mut pool);
            (product, pool)
        }));
        let product = done.ok().and_then(|(product, mut pool)| {
            drop(pool.heavy());
            ticket.pool = pool;
            product
        });
        Done { ticket, product }
    }
}

fn run(task: Task, me: &ResponseIdentity<'_>, pool: &mut Pool) -> Option<Product> {
    Some(match task {
        Task::Discard(blocks) => {
            drop(blocks);
            return None;
        }
        Task::Reply { mut body, from, to, carry, chunked } => {
            let mut out = Vec::with_capacity(body.len() + REPLY_MORE);
            let read = match from == to {
                true => dialect::whole(to, body.bytes(), me, &mut out),
                false => dialect::reply(from, body.bytes(), &carry, me, &mut out),
            };
            body.release(pool);
            if chunked {
                out.extend_from_slice(LAST_OF_ONE);
            }
            Product::Reply { read, out: Buf::adopt(pool, out) }
        }
        Task::Request { body, mut draft, from, model, capabilities } => {
            let target = dialect::Target { model: &model, capabilities: &capabilities };
            let built = draft.translate(from, body.payload(), &target, pool);
            Product::Request { body, draft, built }
        }
        Task::Events { mut flow, data } => {
            let mut out = Vec::new();
            let fed = flow.feed(&data, pool, me, &mut out);
            Product::Events { flow, out, fed }
        }
        Task::LastEvent { mut flow } => {
            let mut out = Vec::new();
            let ended = flow.end(pool, me, &mut out);
            Product::LastEvent { flow, out, ended }
        }
    })
}

/// Bytes that an answer may grow by without its storage having to: an id, a name, a usage.
const REPLY_MORE: usize = 4096;

impl Product {
    fn release(self, pool: &mut Pool) {
        match self {
            Product::Reply { mut out, .. } => out.release(pool),
            Product::Request { body, mut draft, .. } => {
                body.release(pool);
                draft.rewind(pool);
            }
            Product::Events { mut flow, .. } | Product::LastEvent { mut flow, .. } => flow.release(pool),
        }
    }
}

impl Gateway {
    fn give(&mut self, xid: Id<Exchange>, lent: usize, task: Task, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        self.works += 1;
        ex.working = NonZeroU64::new(self.works);
        let me = Own {
            id: ex.id.as_str().to_owned(),
            model: ex.model().map_or_else(|| Arc::from(""), |model| model.id.clone()),
            created: now.unix.secs(),
            prompt_estimate: ex.estimate,
        };
        let ticket = Ticket { exchange: xid, serial: self.works, pool: self.pool.part(lent), lent };
        self.orders.push(Order::Work(Box::new(Work { ticket, me, task })));
    }

    /// Has large blocks that are done with given back to the system elsewhere. Nobody waits for that.
    pub(crate) fn discard_heavy(&mut self) {
        let blocks = self.pool.heavy();
        let me = Own { id: String::new(), model: Arc::from(""), created: 0, prompt_estimate: 0 };
        let ticket = Ticket { exchange: Id::new(u32::MAX, 0), serial: 0, pool: self.pool.part(0), lent: 0 };
        self.orders.push(Order::Work(Box::new(Work { ticket, me, task: Task::Discard(blocks) })));
    }

    /// Whether so many bytes are too many to be looked at in one turn.
    pub(crate) fn is_long(&self, bytes: usize) -> bool {
        bytes > self.work_min
    }

    /// Has a whole answer read that has been collected in `held`.
    pub(crate) fn work_on_reply(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let Some(to) = ex.shape() else { return };
        let (from, carry) = match ex.carry() {
            None => (to, TranslationState::default()),
            Some(carry) => (to.other(), carry.clone()),
        };
        let body = std::mem::take(&mut ex.held);
        let (lent, chunked) = (body.capacity(), ex.head.http11);
        self.give(xid, lent, Task::Reply { body, from, to, carry, chunked }, now);
    }

    /// Has a large request translated for the present target.
    pub(crate) fn work_on_request(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let (Some(from), Some(model), Some(index)) = (ex.shape(), ex.target(), ex.model) else { return };
        let (model, capabilities) =
            (model.model.clone(), ex.outgoing.capabilities(index as usize, ex.target as usize).cloned());
        // Nothing else watches over an exchange that has not been admitted.
        ex.deadline = ex.deadline.min(ex.target().map_or(Mono::NEVER, |t| now.mono.after(t.limits.request_timeout)));
        let cid = ex.client;
        let (Some(capabilities), Some(client)) = (capabilities, self.clients.get_mut(cid)) else { return };
        let Some(mut draft) = ex.draft.take() else { return };
        draft.rewind(&mut self.pool);
        let body = client.inbound.lend(&mut self.pool);
        // Taken before the work begins, so that it is not found missing in the middle.
        draft.make_room(body.payload().len(), &mut self.pool);
        let lent = body.capacity() + draft.text.capacity();
        self.arm_client(cid);
        self.give(xid, lent, Task::Request { body, draft, from, model, capabilities: Box::new(capabilities) }, now);
    }

    /// Has a piece of a stream read whose event under way is large.
    pub(crate) fn work_on_events(&mut self, xid: Id<Exchange>, data: &[u8], now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let observed = ex.relay.observed();
        let Relay::Stream(flow) = std::mem::replace(&mut ex.relay, Relay::Away(Box::new(observed))) else { return };
        self.give(xid, flow.capacity(), Task::Events { flow, data: data.to_vec() }, now);
    }

    /// Has the large event read that a stream has ended with.
    pub(crate) fn work_on_last_event(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let observed = ex.relay.observed();
        let Relay::Stream(flow) = std::mem::replace(&mut ex.relay, Relay::Away(Box::new(observed))) else { return };
        self.give(xid, flow.capacity(), Task::LastEvent { flow }, now);
    }

    /// Work has come back. Of an exchange that has ended meanwhile, or begun another attempt, only the storage counts.
    pub(crate) fn worked(&mut self, done: Done, now: Now) {
        let Done { ticket, product } = done;
        let (xid, mut pool) = (ticket.exchange, ticket.pool);
        let waiting =
            self.exchanges.get_mut(xid).filter(|ex| ex.working.is_some_and(|work| work.get() == ticket.serial));
        let Some(ex) = waiting else {
            if let Some(product) = product {
                product.release(&mut pool);
            }
            return self.pool.reunite(&mut pool, ticket.lent);
        };
        ex.working = None;
        let (upstream, cid) = (ex.upstream, ex.client);
        self.pool.reunite(&mut pool, ticket.lent);
        match product {
            None => {
                self.stats.panics += 1;
                self.attempt_failed(xid, Fault::from(FaultKind::Internal), now);
            }
            Some(Product::Reply { read, out }) => self.reply_read(xid, read, out, now),
            Some(Product::Request { body, draft, built }) => self.request_translated(xid, body, draft, built, now),
            Some(Product::Events { flow, out, fed }) => {
                if let Some(ex) = self.exchanges.get_mut(xid) {
                    ex.relay = Relay::Stream(flow);
                }
                self.events_read(xid, upstream, out, fed, now);
            }
            Some(Product::LastEvent { flow, out, ended }) => {
                if let Some(ex) = self.exchanges.get_mut(xid) {
                    ex.relay = Relay::Stream(flow);
                }
                self.last_event_read(xid, upstream, out, ended, now);
            }
        }
        if let Some(uid) = upstream {
            self.resume_upstream(uid, now);
        }
        // The answer may have been given: the client's next request may lie here already.
        self.advance(cid, now);
    }

    fn request_translated(
        &mut self,
        xid: Id<Exchange>,
        body: Lent,
        mut draft: Box<Draft>,
        built: Result<(), Invalid>,
        now: Now,
    ) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let failed = draft.failed.take();
        ex.draft = Some(draft);
        match self.clients.get_mut(ex.client) {
            Some(client) => client.inbound.put_back(&mut self.pool, body),
            None => body.release(&mut self.pool),
        }
        match (built, failed) {
            (Ok(()), _) => self.drafted(xid, now),
            (Err(_), Some(failed)) => self.pass_over(xid, failed, now),
            (Err(Invalid(message)), None) => self.refuse_open(xid, &Refusal::invalid_body(message), now),
        }
    }
}
