//! Limits how much of an answer is read at the moment: nothing while its client is slow to read or the buffer budget
//! has no room. Asks [`super::super::budget`]; waits there for its turn, and for the share of its key.

use super::state::{Answering, Body, Draft, Exchange, State};
use crate::base::buf::BLOCK;
use crate::base::limits::{BODY_STEP_MAX, COPIED_MAX, EXTENDED_MIN, IO_SLICE, RELAY_SLICE};
use crate::gateway::budget::{Budget, MemoryVerdict, Promise};
use crate::gateway::cx::Cx;
use crate::gateway::ids::ExchangeId;
use crate::gateway::provider::request::OutgoingRequest;

impl Exchange {
    /// True if nothing more of the answer is read for now.
    pub(crate) fn is_paused(&self) -> bool {
        match &self.state {
            State::Answering(answering) => answering.paused || matches!(answering.body, Body::Offloaded { .. }),
            _ => false,
        }
    }

    /// Number of the next `bytes` of the answer to take at once; `None` if the provider is not read for now. `unread`:
    /// true if the client has too much unread output, and the bytes that its key is charged for that.
    pub(crate) fn intake(
        &mut self,
        own: ExchangeId,
        bytes: usize,
        (full, unread): (bool, usize),
        cx: &mut Cx,
    ) -> Option<usize> {
        if let State::Answering(Answering { paused: false, body: Body::Collect { .. }, .. }) = &self.state {
            return self.intake_whole(own, bytes, cx);
        }
        let key = self.job.request.found.key;
        let State::Answering(answering) = &mut self.state else { return Some(bytes) };
        if answering.paused {
            return None;
        }
        let (slice, more) = match &answering.body {
            Body::Offloaded { .. } => return None,
            // Events may grow on their way, so that not too many of them are relayed before the client is looked at.
            // What is long leaves for a helper thread as it comes, so that it does not leave too often.
            Body::Stream(stream) if !cx.is_long(stream.held() + RELAY_SLICE) => {
                if full && bytes > 0 {
                    return None;
                }
                (bytes.min(RELAY_SLICE), stream.growth(bytes.min(RELAY_SLICE)))
            }
            Body::Stream(stream) => (bytes, stream.growth(bytes)),
            _ => (bytes, bytes),
        };
        let verdict = cx.room_for_events(own, more);
        answering.paused = verdict != MemoryVerdict::Now;
        if answering.paused {
            cx.wait_for(own, None, more, verdict);
        }
        let own = answering.charged as usize + unread;
        answering.crowded = key.is_some_and(|key| cx.budget.is_crowded(key, own));
        (!answering.paused).then_some(slice)
    }

    /// True if a complete answer of so many bytes, none of which came before, is read in place: it is short and there
    /// is room for the output, so that no room needs to be reserved.
    pub(crate) fn reads_at_once(&self, bytes: usize, cx: &mut Cx) -> bool {
        let State::Answering(Answering { paused: false, body: Body::Collect { buf, .. }, draft, .. }) = &self.state
        else {
            return false;
        };
        let (Some(promise), Some(key), Some(target)) =
            (draft.get().map(|draft| &draft.answer), self.job.request.found.key, self.job.target())
        else {
            return false;
        };
        let total = 2 * bytes + ANSWER_MORE;
        let is_first = buf.is_empty() && promise.total() == 0 && !cx.may_have_room();
        let is_short = bytes <= target.limits.max_response && !cx.is_long(bytes);
        is_first && is_short && cx.budget.share_allows(promise, key, total) && Budget::has_room(total, false, &cx.pool)
    }

    /// True if the pending input may be read without a check of the free memory: room is reserved for it, or this
    /// exchange is the only one that may proceed.
    pub(crate) fn has_own_room(&self, own: ExchangeId, cx: &Cx) -> bool {
        let promised = match &self.state {
            State::Answering(Answering { body: Body::Collect { buf, announced, .. }, draft, .. }) => {
                draft.get().map(|draft| &draft.answer).is_some_and(|answer| answer.total() > 0)
                    && (announced.is_some() || buf.capacity() >= buf.len() + IO_SLICE)
            }
            _ => false,
        };
        promised || cx.turns.alone == Some(own)
    }

    /// True if part of an event is buffered: the exchange must not be left without room for the rest of it.
    pub(crate) fn holds_part(&self) -> bool {
        match &self.state {
            State::Answering(Answering { body: Body::Stream(stream), .. }) => stream.held() > 0,
            State::Answering(_) => true,
            _ => false,
        }
    }

    /// All promises of memory to this exchange.
    pub(crate) fn promises(&self) -> impl Iterator<Item = &Promise> {
        let answers = matches!(self.state, State::Answering(_));
        let (body, answer) = match (&self.state, self.state.draft()) {
            (State::Translating(translating), _) => (Some(&translating.promise), None),
            (_, draft) => (draft.map(|draft| &draft.promise), draft.filter(|_| answers).map(|draft| &draft.answer)),
        };
        body.into_iter().chain(answer)
    }

    /// The charge to its key for the storage of a stream.
    pub(crate) fn charge(&self) -> Option<Promise> {
        let State::Answering(answering) = &self.state else { return None };
        self.job.request.found.key.map(|key| Promise::charged(key, answering.charged))
    }

    /// Bytes of storage in its buffers.
    pub(crate) fn storage(&self) -> usize {
        let own = match &self.state {
            State::Answering(answering) => answering.last.capacity() + answering.body.storage(),
            State::Committing(committing) => committing.last.capacity(),
            _ => 0,
        };
        own + self.state.draft().map_or(0, OutgoingRequest::storage)
    }

    /// True if an answer has begun.
    pub(crate) fn is_answering(&self) -> bool {
        matches!(self.state, State::Answering(_))
    }

    /// True if its provider is not read until there is room.
    pub(crate) fn waits_for_room(&self) -> bool {
        matches!(&self.state, State::Answering(Answering { paused: true, .. }))
    }

    /// Reports that its message and its draft are lent to a helper thread, with so many bytes of storage.
    pub(crate) fn lent(&mut self, storage: usize, cx: &mut Cx) {
        if let State::Translating(translating) = &mut self.state {
            cx.budget.came(&mut translating.promise, storage, &mut cx.pool);
        }
    }

    /// Amount of a complete answer to take, of which `bytes` have arrived: all of it or nothing. Room for all that is
    /// announced is reserved first.
    fn intake_whole(&mut self, own: ExchangeId, bytes: usize, cx: &mut Cx) -> Option<usize> {
        let limit = self.job.target().map_or(0, |target| target.limits.max_response);
        let key = self.job.request.found.key;
        let State::Answering(answering) = &mut self.state else { return Some(bytes) };
        let (Draft::Kept(draft) | Draft::Leaving(draft)) = &mut answering.draft else { return Some(bytes) };
        let Body::Collect { buf, announced, stream } = &mut answering.body else { return Some(bytes) };
        let is_rewritten = draft.state.is_some() || stream.is_some();
        let promise = &mut draft.answer;
        let Some(key) = key else { return Some(bytes) };
        let wanted = wanted(buf.len() + bytes, announced.map(|length| length.get() as usize), limit);
        // What is sent takes the place of what has come; a translation may be longer.
        let total = if is_rewritten { 2 * wanted } else { wanted } + ANSWER_MORE;
        let verdict = cx.room_for_answer(own, key, promise, total);
        if verdict != MemoryVerdict::Now {
            let more = total - promise.total();
            answering.paused = true;
            cx.wait_for(own, Some(key), more, verdict);
            return None;
        }
        if promise.total() > 0 && buf.capacity() < wanted {
            let missing = wanted - buf.len();
            buf.reserve(&mut cx.pool, missing);
            cx.budget.came(promise, buf.capacity(), &mut cx.pool);
        }
        Some(bytes)
    }
}

/// Bytes that an answer takes in addition to its own: a name, an id, a usage, the frame of its chunk; and a small
/// buffer that is replaced by a larger one.
const ANSWER_MORE: usize = 4 * BLOCK;

/// Storage for an answer of which `length` bytes have arrived. It is the announced length, if any. Otherwise it
/// doubles, and grows by an eighth from the size of a step on. Growing a large block can cost a copy of all of it: a
/// still longer answer gets so much that the system extends the block without copying. Memory that is not written to is
/// not used.
fn wanted(length: usize, announced: Option<usize>, limit: usize) -> usize {
    let ahead = match announced {
        Some(announced) => announced,
        None if length < BODY_STEP_MAX => length.next_power_of_two().max(BLOCK),
        None if length < COPIED_MAX => length + length / 8,
        None => EXTENDED_MIN.max(length + length / 4),
    };
    ahead.min(limit).max(length)
}
