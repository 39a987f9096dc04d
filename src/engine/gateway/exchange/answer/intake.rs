//! Limits how much of a response is read at the moment: nothing while its client is slow to read or the buffers have no
//! free memory. Reserves memory in `memory::shares`, and waits there for its turn and for the share of its key. A
//! helper thread reads long events.

use super::end::AnswerStep;
use crate::base::buf::{BLOCK, Buf};
use crate::base::limits::{BODY_STEP_MAX, IO_SLICE};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{DriverCall, Effect};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::state::{Answering, Body, Draft, State};
use crate::gateway::ids::ExchangeId;
use crate::gateway::memory::shares::{Gate, MemoryVerdict, Promise};
use crate::gateway::orders::offload::{JobOwner, OffloadTask, Product};
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::keys::KeyIx;

/// Bytes of a stream that are relayed before its client's unsent bytes are checked again. Translation may enlarge
/// events (a comment of three bytes to a ping of thirty), and a stream must stay within its 256 KiB.
const RELAY_SLICE: usize = 8 * 1024;
/// Bytes of an answer of unannounced length that may be copied when its storage grows: a millisecond.
const COPIED_MAX: usize = 4 << 20;
/// Size in bytes from which blocks are certainly extended by moving pages instead of copying (glibc: above the largest
/// `M_MMAP_THRESHOLD`, 32 MiB).
const EXTENDED_MIN: usize = 34 << 20;

impl Answering {
    /// Number of the next `bytes` of the response to take together; `None` if the provider is not read for now.
    /// `unread`: true if the client has too much unread output, and the bytes charged to its key for that.
    #[inline]
    pub(crate) fn intake(
        &mut self,
        job: &RequestJob,
        own: ExchangeId,
        bytes: usize,
        (full, unread): (bool, usize),
        cx: &mut Cx,
    ) -> Option<usize> {
        let (slice, more) = match &self.body {
            _ if self.paused => return None,
            Body::Offloaded { .. } => return None,
            Body::Collect { .. } => return self.intake_whole(job, own, bytes, cx),
            // Events may grow in translation, so only some are relayed before the client's unread output is checked. A
            // long piece goes to a helper thread as it arrives: collecting it would cause more hand-overs.
            Body::Stream(stream) if !cx.is_long(stream.held() + RELAY_SLICE) => {
                if full && bytes > 0 {
                    return None;
                }
                (bytes.min(RELAY_SLICE), stream.growth(bytes.min(RELAY_SLICE)))
            }
            Body::Stream(stream) => (bytes, stream.growth(bytes)),
            Body::Bytes { .. } if full && bytes > 0 => return None,
            Body::Bytes { .. } => (bytes.min(RELAY_SLICE), bytes.min(RELAY_SLICE)),
            Body::Error { .. } => (bytes, bytes),
        };
        let verdict = cx.memory.room_for_events(own, more);
        self.paused = verdict != MemoryVerdict::Now;
        if self.paused {
            cx.memory.wait_for(own, None, more, verdict);
        }
        let own = self.charged as usize + unread;
        self.crowded = job.request.found.key.is_some_and(|key| cx.memory.shares.is_crowded(key, own));
        (!self.paused).then_some(slice)
    }

    /// Amount to take of a complete response, of which `bytes` have arrived: all of it or nothing. Memory for the
    /// announced length is reserved first.
    fn intake_whole(&mut self, job: &RequestJob, own: ExchangeId, bytes: usize, cx: &mut Cx) -> Option<usize> {
        let limit = job.target().map_or(0, |target| target.limits.max_response);
        let (Draft::Kept(draft) | Draft::Leaving(draft)) = &mut self.draft else { return Some(bytes) };
        let Body::Collect { buf, announced, stream } = &mut self.body else { return Some(bytes) };
        let is_rewritten = draft.state.is_some() || stream.is_some();
        let promise = &mut draft.answer;
        let Some(key) = job.request.found.key else { return Some(bytes) };
        let wanted = wanted(buf.len() + bytes, announced.map(|length| length.get() as usize), limit);
        // The output replaces the input; a translation may be longer.
        let total = if is_rewritten { 2 * wanted } else { wanted } + ANSWER_MORE;
        let verdict = cx.memory.room_for_answer(own, key, promise, total);
        if verdict != MemoryVerdict::Now {
            let more = total - promise.total();
            self.paused = true;
            cx.memory.wait_for(own, Some(key), more, verdict);
            return None;
        }
        if promise.total() > 0 && buf.capacity() < wanted {
            let missing = wanted - buf.len();
            buf.reserve(&mut cx.memory.pool, missing);
            cx.memory.shares.came(promise, buf.capacity(), &mut cx.memory.pool);
        }
        Some(bytes)
    }

    /// True if the pending input may be read without a check of the free memory: room is reserved for it.
    fn has_promise(&self) -> bool {
        let Body::Collect { buf, announced, .. } = &self.body else { return false };
        let is_promised = self.draft.get().is_some_and(|draft| draft.answer.total() > 0);
        is_promised && (announced.is_some() || buf.capacity() >= buf.len() + IO_SLICE)
    }

    /// Has a large event read by a helper thread: `data` is its part so far, or the stream has ended with it.
    pub(crate) fn offload_events(
        &mut self,
        job: &RequestJob,
        data: Option<&[u8]>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        let observed = Box::new(self.body.observed());
        let Some(stream) = self.body.take_stream() else { return Err(Fault::from(FaultKind::Internal).into()) };
        let serial = call.cx.next_offload();
        let identity = job.request.counted_identity(call.cx.now.unix).into();
        self.body = Body::Offloaded { serial, observed };
        let mut piece = Buf::default();
        piece.push(&mut call.cx.memory.pool, data.unwrap_or_default());
        let lent = stream.capacity() + piece.capacity();
        let task = match data {
            Some(_) => OffloadTask::Events { stream, data: piece },
            None => OffloadTask::LastEvent { stream },
        };
        let of = JobOwner { exchange: call.message.exchange, key: job.request.found.key, serial };
        call.cx.offload(of, lent, identity, task);
        Ok(Effect::Rearm)
    }

    /// Handles the result of a helper thread for a piece of the answer.
    pub(crate) fn offloaded(
        &mut self,
        job: &mut RequestJob,
        product: Option<Product>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        match product {
            Some(Product::Reply { read, out: body }) => self.whole_read(job, read, body, call),
            Some(Product::Events { stream, out: bytes, fed }) => {
                self.body = Body::Stream(stream);
                call.out.bytes = bytes;
                self.fed(job, fed, call)
            }
            Some(Product::LastEvent { stream, out: bytes, ended }) => {
                self.body = Body::Stream(stream);
                call.out.bytes = bytes;
                self.ended(job, ended, call)
            }
            Some(Product::Request { .. } | Product::Catalog { .. }) | None => {
                call.cx.report.stats.panics += 1;
                Err(Fault::from(FaultKind::Internal).into())
            }
        }
    }
}

impl State {
    /// True if nothing more of the answer is read for now.
    pub(crate) fn is_paused(&self) -> bool {
        let is_paused = |one: &Answering| one.paused || matches!(one.body, Body::Offloaded { .. });
        self.answering().is_some_and(is_paused)
    }

    /// True if its provider may be read now, although memory pressure stops others. `drained`: the client has read
    /// everything that was sent.
    #[cold]
    pub(crate) fn has_turn(&self, own: ExchangeId, key: Option<KeyIx>, drained: bool, cx: &Cx) -> bool {
        let share = || match key {
            Some(key) if self.is_answering() => drained || !cx.memory.shares.is_over(key),
            // Another answer of its key waits, and has been read in part.
            Some(key) => !cx.memory.shares.is_waited_for(key),
            None => true,
        };
        let reads = match cx.memory.gate {
            Gate::Open => share(),
            Gate::Narrow => cx.memory.turns.is_empty() && drained && share(),
            Gate::Shut => false,
        };
        // Room is reserved for it, or it is the only one that may proceed.
        reads || self.answering().is_some_and(Answering::has_promise) || cx.memory.turns.alone == Some(own)
    }

    /// True if part of an event is buffered: the exchange must not be left without room for the rest of it.
    pub(crate) fn holds_part(&self) -> bool {
        self.answering().is_some_and(|one| match &one.body {
            Body::Stream(stream) => stream.held() > 0,
            body => !matches!(body, Body::Bytes { .. }),
        })
    }

    /// True if its provider is not read until there is room.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.answering().is_some_and(|answering| answering.paused)
    }

    /// All promises of memory to the request.
    pub(crate) fn promises(&self) -> impl Iterator<Item = &Promise> {
        let draft = self.draft();
        let body =
            if let State::Translating(lent) = self { Some(&lent.promise) } else { draft.map(|draft| &draft.promise) };
        let answer = draft.filter(|_| self.answering().is_some()).map(|draft| &draft.answer);
        body.into_iter().chain(answer)
    }

    /// Bytes of storage in its buffers.
    pub(crate) fn storage(&self) -> usize {
        let own = match self {
            State::Committing(committing) => committing.last.capacity(),
            state => state.answering().map_or(0, |one| one.last.capacity() + one.body.storage()),
        };
        own + self.draft().map_or(0, OutgoingRequest::storage)
    }

    /// Reports that its message and its draft are lent to a helper thread, with this many bytes of storage.
    pub(crate) fn lent(&mut self, storage: usize, cx: &mut Cx) {
        if let State::Translating(translating) = self {
            cx.memory.shares.came(&mut translating.promise, storage, &mut cx.memory.pool);
        }
    }
}

/// Bytes that a response needs in addition to its own: a name, an id, a usage, the frame of its chunk, and a small
/// buffer that is replaced by a larger one.
pub(crate) const ANSWER_MORE: usize = 4 * BLOCK;

/// Storage for an answer of which `length` bytes have arrived. It is the announced length, if any. Otherwise it
/// doubles, and grows by an eighth from the size of a step on. Growing a large block can cost a copy of all of it: an
/// even longer response gets a block that the system extends without copying. Memory that is not written to is not
/// used.
fn wanted(length: usize, announced: Option<usize>, limit: usize) -> usize {
    let ahead = match announced {
        Some(announced) => announced,
        None if length < BODY_STEP_MAX => length.next_power_of_two().max(BLOCK),
        None if length < COPIED_MAX => length + length / 8,
        None => EXTENDED_MIN.max(length + length / 4),
    };
    ahead.min(limit).max(length)
}
