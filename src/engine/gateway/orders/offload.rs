//! Work that would block the event loop too long: reading or translating input larger than `limits::WORK_MIN` in one
//! piece, and building a catalog with a provider's models. It leaves as a command with everything it needs; a helper
//! thread (or a test) runs it; it returns as a `Notice::Worked`. In the meantime its exchange waits, its provider is
//! not read, and every other exchange continues.
//!
//! Storage is moved with the work and stays counted: the work's own pool starts with the lent bytes, which are counted
//! again when it returns, even if its exchange no longer waits for it. Until then the work is charged to its key: by
//! the promise of its exchange while that waits, otherwise as leaving bytes (`gateway::upkeep::helpers`).

use crate::base::buf::{Buf, Pool};
use crate::dialect::{
    self, Fed, Invalid, ObservedUsage, OwnedTarget, Param, PromptTokens, Rejected, ResponseIdentity, SseStream,
    StreamFault, TranslationState,
};
use crate::gateway::ids::ExchangeId;
use crate::gateway::lifecycle::setup::Setup;
use crate::gateway::provider::discovery::FreshList;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::config::Config;
use crate::policy::keys::KeyIx;
use crate::wire::inbound::Lent;
use crate::wire::{ModelEndpoint, Shape};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// End of a chunk and of the whole chunked body.
pub(crate) const LAST_OF_ONE: &[u8] = b"\r\n0\r\n\r\n";

/// A job for a helper thread.
#[derive(Debug)]
pub struct Work {
    ticket: Ticket,
    identity: OwnedIdentity,
    task: OffloadTask,
}

/// A job that a helper thread has finished.
#[derive(Debug)]
pub struct FinishedJob {
    ticket: Ticket,
    /// `None` if a bug lost the result.
    product: Option<Product>,
}

/// The exchange and the key that wait for the job, and the storage that moved with it.
#[derive(Debug)]
struct Ticket {
    exchange: ExchangeId,
    key: Option<KeyIx>,
    serial: u64,
    pool: Pool,
    /// Bytes that `pool` started with.
    lent: usize,
}

/// Owner of a job, and the job's number.
#[derive(Copy, Clone, Debug)]
pub(crate) struct JobOwner {
    pub(crate) exchange: ExchangeId,
    pub(crate) key: Option<KeyIx>,
    pub(crate) serial: NonZeroU64,
}

impl JobOwner {
    /// Owner of a job for which no exchange waits.
    pub(crate) fn alone(key: Option<KeyIx>, serial: NonZeroU64) -> JobOwner {
        JobOwner { exchange: ExchangeId::new(u32::MAX, 0), key, serial }
    }
}

/// [`ResponseIdentity`] that owns its data.
#[derive(Debug, Default)]
pub(crate) struct OwnedIdentity {
    id: Vec<u8>,
    model: String,
    created: u64,
    prompt_tokens: u64,
    hides: Vec<Param>,
}

impl From<ResponseIdentity<'_>> for OwnedIdentity {
    fn from(identity: ResponseIdentity<'_>) -> OwnedIdentity {
        let ResponseIdentity { id, model, created, prompt, hides } = identity;
        let (id, model, hides) = (id.to_owned(), model.to_owned(), hides.to_owned());
        OwnedIdentity { id, model, created, prompt_tokens: prompt.count(), hides }
    }
}

impl OwnedIdentity {
    fn borrowed(&self) -> ResponseIdentity<'_> {
        let OwnedIdentity { id, model, created, prompt_tokens, hides } = self;
        ResponseIdentity { id, model, created: *created, prompt: PromptTokens::Counted(*prompt_tokens), hides }
    }
}

/// Task of a job.
#[derive(Debug)]
pub(crate) enum OffloadTask {
    /// Large blocks of memory, to be given back to the system.
    Discard(Vec<Vec<u8>>),
    /// Build the setup with the lists of models that providers have sent.
    Catalog { base: Arc<Setup>, lists: Vec<FreshList> },
    /// Read a complete answer of a provider's endpoint `from` for a client of `to`; translate it if its request was.
    Reply { body: Buf, from: ModelEndpoint, to: ModelEndpoint, state: Option<TranslationState>, chunked: bool },
    /// Translate a request of format `from` for a provider of another format; without a target, only scan it.
    Request { body: Lent, draft: Box<OutgoingRequest>, from: Shape, target: Option<Box<OwnedTarget>> },
    /// Read a piece of a stream whose current event is large.
    Events { stream: Box<SseStream>, data: Buf },
    /// Read a complete response of a provider's endpoint `from` that arrived instead of a stream.
    Unstreamed { stream: Box<SseStream>, body: Buf, from: ModelEndpoint },
    /// Read the end of a stream whose last, large event lacks its empty line.
    LastEvent { stream: Box<SseStream> },
}

/// Result of a task.
#[derive(Debug)]
pub(crate) enum Product {
    /// The setup with the lists, and the one that it was built from.
    Catalog { base: Arc<Setup>, built: Arc<Setup>, lists: Vec<FreshList> },
    /// The answer as it is sent, with the end of its one chunk if it is chunked.
    Reply { read: Result<ObservedUsage, Rejected>, out: Buf },
    /// The lent message, and the request for the provider.
    Request { body: Lent, draft: Box<OutgoingRequest>, built: Result<(), Invalid> },
    /// The events of a piece.
    Events { stream: Box<SseStream>, out: Vec<u8>, fed: Result<Fed, StreamFault> },
    /// The events of the end.
    LastEvent { stream: Box<SseStream>, out: Vec<u8>, ended: Result<(), StreamFault> },
}

impl Work {
    /// Takes storage of `lent` bytes from `pool` for a task.
    pub(crate) fn new(
        of: JobOwner,
        (pool, lent): (&mut Pool, usize),
        identity: OwnedIdentity,
        task: OffloadTask,
    ) -> Work {
        let JobOwner { exchange, key, serial } = of;
        let ticket = Ticket { exchange, key, serial: serial.get(), pool: pool.part(lent), lent };
        Work { ticket, identity, task }
    }

    /// Lane of the job's key, as a number: jobs of different keys run in parallel.
    pub fn lane(&self) -> u64 {
        self.ticket.key.map_or(0, |key| u64::from(key.0) + 1)
    }

    /// True if it only frees memory.
    pub fn is_freeing(&self) -> bool {
        matches!(self.task, OffloadTask::Discard(_))
    }

    /// Runs the task. Takes some milliseconds per megabyte.
    pub fn run(self) -> FinishedJob {
        let Work { mut ticket, identity, task } = self;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut pool = std::mem::replace(&mut ticket.pool, Pool::new(usize::MAX));
            let product = run(task, &identity.borrowed(), &mut pool);
            (product, pool)
        }));
        let product = done.ok().and_then(|(product, mut pool)| {
            pool.discard(Vec::new());
            ticket.pool = pool;
            product
        });
        FinishedJob { ticket, product }
    }
}

fn run(task: OffloadTask, identity: &ResponseIdentity<'_>, pool: &mut Pool) -> Option<Product> {
    Some(match task {
        OffloadTask::Discard(blocks) => {
            pool.discard(blocks);
            return None;
        }
        OffloadTask::Catalog { base, lists } => {
            let mut config = Config::clone(&base.config);
            for list in &lists {
                config.take_list(list.provider, list.models.clone());
            }
            let built = Setup::new(Arc::new(config), base.epoch);
            Product::Catalog { base, built, lists }
        }
        OffloadTask::Reply { mut body, from, to, state, chunked } => {
            let mut out = Vec::with_capacity(body.len() + REPLY_MORE);
            let read = match state {
                None => dialect::whole(to, body.bytes(), identity, &mut out),
                Some(state) => dialect::reply((from.shape, to.shape), body.bytes(), &state, identity, &mut out),
            };
            let read = read.map_err(|why| dialect::rejected(from, body.bytes(), why));
            body.release(pool);
            if chunked {
                out.extend_from_slice(LAST_OF_ONE);
            }
            Product::Reply { read, out: Buf::adopt(pool, out) }
        }
        OffloadTask::Request { body, mut draft, from, target } => {
            let built = match target {
                Some(target) => {
                    draft.make_most_room(body.payload(), pool);
                    draft.translate(from, body.payload(), &target.borrowed(), pool)
                }
                None => draft.scan.finish_any(body.payload()),
            };
            Product::Request { body, draft, built }
        }
        OffloadTask::Events { mut stream, mut data } => {
            let mut out = Vec::new();
            let fed = stream.feed(data.bytes(), pool, identity, &mut out);
            data.release(pool);
            Product::Events { stream, out, fed }
        }
        OffloadTask::Unstreamed { mut stream, mut body, from } => {
            let mut out = Vec::new();
            let read = stream.whole(from, body.bytes(), pool, identity, &mut out);
            body.release(pool);
            match read {
                Ok(fed) => Product::Events { stream, out, fed },
                Err(rejected) => Product::Reply { read: Err(rejected), out: Buf::default() },
            }
        }
        OffloadTask::LastEvent { mut stream } => {
            let mut out = Vec::new();
            let ended = stream.end(pool, identity, &mut out);
            stream.release(pool);
            Product::LastEvent { stream, out, ended }
        }
    })
}

/// Bytes that an answer may grow by without growing its storage: an id, a name, a usage.
const REPLY_MORE: usize = 4096;

impl FinishedJob {
    /// Returns the exchange that gave the job away, and the job's number.
    pub(crate) fn owner(&self) -> (ExchangeId, u64) {
        (self.ticket.exchange, self.ticket.serial)
    }

    /// Key that the job belongs to.
    pub(crate) fn key(&self) -> Option<KeyIx> {
        self.ticket.key
    }

    /// Counts the job's storage in `into` again, and returns the result of the task.
    pub(crate) fn take(self, into: &mut Pool) -> Option<Product> {
        let FinishedJob { mut ticket, product } = self;
        into.reunite(&mut ticket.pool, ticket.lent);
        product
    }

    /// Drops the result, since the exchange has ended in the meantime or begun another attempt; only the storage
    /// counts.
    pub(crate) fn discard(self, into: &mut Pool) {
        let FinishedJob { mut ticket, product } = self;
        let pool = &mut ticket.pool;
        match product {
            Some(Product::Reply { mut out, .. }) => out.release(pool),
            Some(Product::Request { body, mut draft, .. }) => {
                body.release(pool);
                draft.release(pool);
            }
            Some(Product::Events { mut stream, .. } | Product::LastEvent { mut stream, .. }) => stream.release(pool),
            Some(Product::Catalog { .. }) | None => {}
        }
        into.reunite(pool, ticket.lent);
    }
}

/// A job in a helper thread.
#[derive(Debug)]
pub(crate) struct RunningJob {
    pub(crate) serial: u64,
    pub(crate) key: Option<KeyIx>,
    pub(crate) lent: usize,
    /// No exchange waits for it: its key is charged for it.
    pub(crate) alone: bool,
}

/// Jobs in helper threads: at most one for each exchange, and blocks being freed.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// Size from which a piece is handled by a helper thread instead of the event loop.
    pub(crate) min: usize,
    pub(crate) pieces: Vec<RunningJob>,
    /// Number of jobs given away so far.
    pub(crate) given: u64,
}
