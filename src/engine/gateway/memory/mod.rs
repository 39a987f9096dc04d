//! Memory for requests and answers: who may take more now, and who waits for it. Knows no contents.

pub(crate) mod shares;
pub(crate) mod streams;

use super::ids::ExchangeId;
use crate::base::buf::Pool;
use crate::base::time::Mono;
use crate::policy::keys::KeyIx;
use shares::{Gate, MemoryShares, MemoryVerdict, Promise};
use std::collections::VecDeque;

/// Buffers, and who may use how much memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) pool: Pool,
    pub(crate) shares: MemoryShares,
    /// Memory pressure as of the end of the last call.
    pub(crate) gate: Gate,
    /// Answers that wait for memory, and the one that may use the reserve.
    pub(crate) turns: AnswerQueue,
    /// Time at which the memory of a burst is given back; `NEVER` if there was none.
    pub(crate) trim: Mono,
    /// The upper bound of the process's memory, as last announced.
    pub(crate) announced: u64,
    /// Bytes that it counts for keys.
    pub(crate) key_bytes: u64,
}

impl Memory {
    /// Releases everything that was reserved.
    pub(crate) fn release(&mut self, promise: &mut Promise) {
        self.shares.release(promise, &mut self.pool);
    }

    /// Decides if an answer of `key` may have `total` bytes; if so, they are reserved. Other keys can only delay it.
    pub(crate) fn room_for_answer(
        &mut self,
        own: ExchangeId,
        key: KeyIx,
        promise: &mut Promise,
        total: usize,
    ) -> MemoryVerdict {
        let more = total.saturating_sub(promise.total());
        if more == 0 || !MemoryShares::can_ever_hold(total, &self.pool) {
            return MemoryVerdict::Now;
        }
        if !self.shares.share_allows(promise, key, total) {
            return MemoryVerdict::Share;
        }
        if !self.turns.grants(own, more, &self.pool) {
            return MemoryVerdict::Room;
        }
        self.shares.answer(promise, key, total, &mut self.pool);
        MemoryVerdict::Now
    }

    /// Decides if `more` bytes of a streamed answer may be taken.
    pub(crate) fn room_for_events(&mut self, own: ExchangeId, more: usize) -> MemoryVerdict {
        match self.turns.grants(own, more, &self.pool) {
            true => MemoryVerdict::Now,
            false => MemoryVerdict::Room,
        }
    }

    /// True if the amount of free memory may have changed, or if an answer waits for it.
    #[inline]
    pub(crate) fn may_have_room(&self) -> bool {
        self.turns.alone.is_some()
            || !self.turns.is_empty()
            || self.shares.eased
            || self.gate != Gate::Open
            // The memory pressure is about to rise.
            || self.pool.room() < MemoryShares::narrow(&self.pool)
    }

    /// Makes an answer that wants `more` bytes wait.
    pub(crate) fn wait_for(&mut self, own: ExchangeId, key: Option<KeyIx>, more: usize, what: MemoryVerdict) {
        match (what, key) {
            (MemoryVerdict::Share, Some(key)) => {
                // Other answers must not wait for the unread output of this key's clients.
                self.turns.alone = self.turns.alone.filter(|alone| *alone != own);
                self.shares.waits(key);
                self.turns.by_key.push_back((own, key));
            }
            _ => self.turns.wait(own, more),
        }
    }
}

/// Answers whose providers are not read until memory is free, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct AnswerQueue {
    /// Waiting exchanges, with the bytes that each needs.
    queue: VecDeque<(ExchangeId, usize)>,
    /// Exchanges that wait for the share of their keys.
    pub(crate) by_key: VecDeque<(ExchangeId, KeyIx)>,
    /// The exchange that may use the reserve.
    pub(crate) alone: Option<ExchangeId>,
    /// The exchange being served.
    pub(crate) served: Option<ExchangeId>,
    /// Some exchanges waited, and none waits any more.
    emptied: bool,
}

impl AnswerQueue {
    /// Returns true, once, when no exchange waits any more.
    pub(crate) fn take_emptied(&mut self) -> bool {
        self.queue.is_empty() && std::mem::take(&mut self.emptied)
    }

    /// True if no exchange waits for memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// True if `own` may have `more` bytes immediately, from the reserve if necessary.
    #[inline]
    fn grants(&mut self, own: ExchangeId, more: usize, pool: &Pool) -> bool {
        let may_pass = self.queue.is_empty() || self.served == Some(own) || self.alone == Some(own);
        if may_pass && MemoryShares::has_room(more, false, pool) {
            return true;
        }
        if !may_pass || self.alone.is_some_and(|alone| alone != own) || !MemoryShares::has_room(more, true, pool) {
            return false;
        }
        self.alone = Some(own);
        true
    }

    /// Makes `own` wait: after all others, unless it is being served.
    fn wait(&mut self, own: ExchangeId, more: usize) {
        self.emptied = true;
        match self.served == Some(own) {
            true => self.queue.push_front((own, more)),
            false => self.queue.push_back((own, more)),
        }
    }

    /// Removes and returns the first exchange for which the free memory is enough; drops earlier ones for which
    /// `is_waiting` is false.
    pub(crate) fn next(&mut self, pool: &Pool, is_waiting: impl Fn(ExchangeId) -> bool) -> Option<ExchangeId> {
        self.queue.retain(|(id, _)| is_waiting(*id));
        let alone = self.alone;
        let fits = |(id, more): &(ExchangeId, usize)| {
            MemoryShares::has_room(*more, alone.is_none_or(|alone| alone == *id), pool)
        };
        // An exchange that needs more than the reserve must not block others.
        let at = self.queue.iter().position(fits)?;
        self.queue.remove(at).map(|(id, _)| id)
    }
}
