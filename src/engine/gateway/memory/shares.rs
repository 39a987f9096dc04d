//! Accounts for all memory that peers can make the process use: `max_buffered` bytes, lent by [`Pool`] or reserved
//! here. Owns each key's part of it; reads, refuses and pauses nothing itself. Called by exchanges and by `drive`.
//!
//! The shares answer one question: may this key have a number of bytes for a purpose? A body gets them immediately, or
//! the request gets 503. An answer gets them immediately or later, and is never refused. Reserved bytes are kept free,
//! so lent bytes never exceed `max_buffered`. From the top down:
//!
//! | free bytes | purpose |
//! |---|---|
//! | above [`MemoryShares::narrow`] and one slice | bodies, and their translations |
//! | above [`MemoryShares::narrow`] | heads, streams, complete answers of known length |
//! | its reserve, an eighth and one slice | one answer at a time: one can always proceed |
//! | the last [`WORK`] bytes | briefly: bytes that one read adds, and refusals |
//!
//! A key holds at most a quarter ([`KEY_SHARE`]): bodies, current answers and buffers of streams, answers that its
//! clients have not read, and blocks of its requests that wait for the thread that frees them. One request may have its
//! translation, and one answer its storage, in addition: otherwise they could never be served. With a translation a key
//! never holds more than three quarters ([`ALONE_SHARES`]): an eighth is left for other keys, and the reserve. If an
//! answer has to wait for its key's share, further requests of that key are refused; no other key is affected.

use crate::base::buf::{BLOCK, Pool};
use crate::base::limits::IO_SLICE;
use crate::base::paged::Sparse;
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use std::cmp::Ordering;

/// The part of `max_buffered` that one key may hold, as a divisor.
const KEY_SHARE: u64 = 4;
/// Number of shares that a key may hold for a single request: a body of a share, and a translation of twice its length.
/// Every key may have bodies of a share (`max_buffered` is at least four times `max_body`).
const ALONE_SHARES: u64 = 3;
/// The part of `max_buffered` that is kept for one answer, as a divisor.
const RESERVE_SHARE: usize = 8;
/// Bytes that are never reserved: one read can add as many, two slices if storage doubles.
const WORK: usize = 2 * IO_SLICE;
/// Bytes that a request takes in addition to its body: storage for its head, and for the part that is being sent.
pub(crate) const REQUEST_BYTES: usize = 2 * BLOCK;
const REQUEST: u64 = REQUEST_BYTES as u64;

/// Memory that all keys hold.
#[derive(Debug)]
pub(crate) struct MemoryShares {
    keys: Sparse<KeyMemory>,
    /// Bytes that one key may hold.
    share: u64,
    /// Number of keys that hold more.
    over: u32,
    /// Answers that wait for their keys' shares should be checked: such a key holds less than before or is back below
    /// its share, or such an answer may be gone or may continue.
    pub(crate) eased: bool,
}

/// Memory that one key holds, in bytes.
#[derive(Clone, Debug, Default)]
struct KeyMemory {
    /// Total bytes.
    held: u64,
    /// Bytes of answers among them: reserved, or not read by the client.
    answers: u64,
    /// Unused blocks among them that are not freed yet.
    leaving: u64,
    /// Answers that wait for this key's share.
    waiting: u32,
}

/// Bytes that are reserved for, or charged to, one body or answer. Released by [`MemoryShares::release`].
#[derive(Debug)]
pub(crate) struct Promise {
    /// Meaningless while `total` is 0.
    key: KeyIx,
    total: u32,
    /// Reserved bytes that are still kept free because they are unused.
    open: u32,
    is_answer: bool,
}

impl Default for Promise {
    fn default() -> Promise {
        Promise { key: KeyIx(0), total: 0, open: 0, is_answer: false }
    }
}

impl Promise {
    /// Charge for a complete answer of `key`.
    pub(crate) fn charged(key: KeyIx, total: u32) -> Promise {
        Promise { key, total, open: 0, is_answer: true }
    }

    /// Total bytes reserved.
    pub(crate) fn total(&self) -> usize {
        self.total as usize
    }

    /// Reserved bytes that have not been used.
    pub(crate) fn open(&self) -> usize {
        self.open as usize
    }
}

/// Decision on the memory of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum MemoryVerdict {
    /// The answer has the bytes.
    Now,
    /// Wait until enough bytes are free.
    Room,
    /// Wait until its key holds less.
    Share,
}

/// Memory pressure: decides what is read.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Gate {
    /// Everything is read.
    #[default]
    Open,
    /// No new request is begun; answers are read one at a time.
    Narrow,
    /// Only answers with reserved storage are read.
    Shut,
}

impl MemoryShares {
    /// Returns the shares of a pool with `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> MemoryShares {
        MemoryShares { keys: Sparse::default(), share: capacity as u64 / KEY_SHARE, over: 0, eased: false }
    }

    /// Changes the capacity of the pool; memory in use is not affected.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.share = capacity as u64 / KEY_SHARE;
        self.over = self.keys.iter().filter(|(_, account)| account.held > self.share).count() as u32;
        self.eased = true;
    }

    /// Free bytes below which no new request is begun; all but `WORK` are kept for the one answer that may proceed
    /// although nothing else is free.
    pub(crate) fn narrow(pool: &Pool) -> usize {
        WORK + pool.capacity() / RESERVE_SHARE + IO_SLICE
    }

    /// Returns the gate for the current memory pressure. A gate reopens a slice above the point at which it closed.
    pub(crate) fn gate(pool: &Pool, before: Gate) -> Gate {
        let free = pool.room();
        let more = |closed: bool| if closed { IO_SLICE / 2 } else { 0 };
        if free < WORK + more(before == Gate::Shut) {
            Gate::Shut
        } else if free < MemoryShares::narrow(pool) + more(before != Gate::Open) {
            Gate::Narrow
        } else {
            Gate::Open
        }
    }

    /// Reserves `total` bytes for a body, unless as many are reserved already. Called with the declared length before
    /// memory is taken, and again as an undeclared body grows.
    pub(crate) fn body(
        &mut self,
        promise: &mut Promise,
        key: KeyIx,
        total: u64,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        let total = total.saturating_add(REQUEST);
        if total <= u64::from(promise.total) {
            return Ok(());
        }
        let (share, account) = (self.share, self.account(key));
        let others = account.held - u64::from(promise.total);
        let waits = account.waiting > 0 && promise.total == 0;
        if waits || others + total > share + REQUEST {
            return Err(Refusal::key_buffers());
        }
        self.request(promise, key, total, pool)
    }

    /// Reserves `more` bytes for a request in addition to its body: for its translation, or for the results of the
    /// body's scan.
    pub(crate) fn beyond_body(
        &mut self,
        promise: &mut Promise,
        key: KeyIx,
        more: usize,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        let total = u64::from(promise.total).saturating_add(more as u64);
        self.allows_beyond(promise, key, total)?;
        self.request(promise, key, total, pool)
    }

    /// Charges `storage` lent bytes of a request as far as they were not reserved. An error if the request may not use
    /// them.
    pub(crate) fn took(
        &mut self,
        promise: &mut Promise,
        key: KeyIx,
        storage: usize,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        self.came(promise, storage, pool);
        let more = u32::try_from(storage).unwrap_or(u32::MAX).saturating_sub(promise.total);
        if more == 0 {
            return Ok(());
        }
        self.allows_beyond(promise, key, storage as u64)?;
        if pool.room() < MemoryShares::narrow(pool) + IO_SLICE {
            return Err(Refusal::no_buffers());
        }
        promise.key = key;
        promise.total += more;
        self.add(key, more.into(), promise.is_answer);
        Ok(())
    }

    /// True if a request of `key` may grow from its promise to `total` bytes.
    fn allows_beyond(&mut self, promise: &Promise, key: KeyIx, total: u64) -> Result<(), Refusal> {
        let others = self.account(key).held - u64::from(promise.total);
        let alone = ALONE_SHARES * self.share;
        if total > alone {
            return Err(Refusal::too_large_translated(alone));
        }
        match others == 0 || others + total <= self.share {
            true => Ok(()),
            false => Err(Refusal::key_buffers()),
        }
    }

    #[inline]
    fn request(&mut self, promise: &mut Promise, key: KeyIx, total: u64, pool: &mut Pool) -> Result<(), Refusal> {
        let more = total.saturating_sub(u64::from(promise.total));
        let left = pool.room().saturating_sub(MemoryShares::narrow(pool) + IO_SLICE);
        if more > left as u64 {
            return Err(Refusal::no_buffers());
        }
        self.grow(promise, key, total, pool);
        Ok(())
    }

    /// True if the share of `key` permits an answer to grow from its promise to `total` bytes. A key's only answer
    /// always may.
    pub(crate) fn share_allows(&mut self, promise: &Promise, key: KeyIx, total: usize) -> bool {
        let (share, account) = (self.share, self.account(key));
        let own = u64::from(promise.total);
        account.answers == own || account.held - own + total as u64 <= share
    }

    /// True if `more` bytes are free for an answer. `alone`: it may use the reserve.
    pub(crate) fn has_room(more: usize, alone: bool, pool: &Pool) -> bool {
        let below = if alone { WORK } else { MemoryShares::narrow(pool) };
        pool.room() >= more.saturating_add(below)
    }

    /// True if an answer of `total` bytes could be reserved if nothing else were held.
    pub(crate) fn can_ever_hold(total: usize, pool: &Pool) -> bool {
        total.saturating_add(WORK + IO_SLICE) <= pool.capacity() / 2
    }

    /// Reserves `total` bytes for an answer. The caller has checked that they are free.
    pub(crate) fn answer(&mut self, promise: &mut Promise, key: KeyIx, total: usize, pool: &mut Pool) {
        promise.is_answer = true;
        self.grow(promise, key, total as u64, pool);
    }

    #[inline]
    fn grow(&mut self, promise: &mut Promise, key: KeyIx, total: u64, pool: &mut Pool) {
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        let more = total.saturating_sub(promise.total);
        promise.key = key;
        promise.total += more;
        promise.open += more;
        self.add(key, more.into(), promise.is_answer);
        pool.promise(more as usize);
    }

    /// Reports that `storage` of the reserved bytes are in use: they need not be kept free any more.
    pub(crate) fn came(&self, promise: &mut Promise, storage: usize, pool: &mut Pool) {
        let storage = u32::try_from(storage).unwrap_or(u32::MAX);
        let open = promise.total.saturating_sub(storage);
        if open < promise.open {
            pool.redeem((promise.open - open) as usize);
            promise.open = open;
        }
    }

    /// Charges `key` for `bytes` of output that a client has not read.
    pub(crate) fn charge(&mut self, charge: &mut Promise, key: KeyIx, bytes: usize) {
        if charge.key != key && charge.total > 0 {
            self.take(charge.key, charge.total.into(), charge.is_answer);
            charge.total = 0;
        }
        *charge = Promise::charged(key, self.recharge(key, charge.total, bytes));
    }

    /// Changes the charge of `key` for an answer's storage from `before` to `bytes`; returns the new charge.
    #[inline]
    pub(crate) fn recharge(&mut self, key: KeyIx, before: u32, bytes: usize) -> u32 {
        let total = u32::try_from(bytes).unwrap_or(u32::MAX);
        match total.cmp(&before) {
            Ordering::Greater => self.add(key, (total - before).into(), true),
            Ordering::Less => self.take(key, (before - total).into(), true),
            Ordering::Equal => {}
        }
        total
    }

    /// True if `key` holds more than its share, and answers other than the one that takes `own` bytes.
    #[inline]
    pub(crate) fn is_crowded(&self, key: KeyIx, own: usize) -> bool {
        let crowded = |account: &KeyMemory| account.held > self.share && account.answers > own as u64;
        self.over > 0 && self.keys.get(key.0 as usize).is_some_and(crowded)
    }

    fn add(&mut self, key: KeyIx, bytes: u64, is_answer: bool) {
        let (share, account) = (self.share, self.account(key));
        let was_over = account.held > share;
        account.held += bytes;
        account.answers += if is_answer { bytes } else { 0 };
        self.over += u32::from(account.held > share && !was_over);
    }

    /// Releases a promise: the body or the answer is gone.
    pub(crate) fn release(&mut self, promise: &mut Promise, pool: &mut Pool) {
        if promise.total > 0 {
            pool.redeem(promise.open());
            self.take(promise.key, promise.total.into(), promise.is_answer);
            *promise = Promise::default();
        }
    }

    /// Charges unused blocks of `key` that are about to be freed.
    pub(crate) fn leaves(&mut self, key: KeyIx, bytes: usize) {
        self.account(key).leaving += bytes as u64;
        self.add(key, bytes as u64, false);
    }

    /// Ends the charge: the blocks have been freed.
    pub(crate) fn left(&mut self, key: KeyIx, bytes: usize) {
        self.account(key).leaving -= bytes as u64;
        self.take(key, bytes as u64, false);
    }

    fn take(&mut self, key: KeyIx, bytes: u64, is_answer: bool) {
        let (share, account) = (self.share, self.account(key));
        let was_over = account.held > share;
        account.held -= bytes;
        account.answers -= if is_answer { bytes } else { 0 };
        let (is_back, waits) = (was_over && account.held <= share, account.waiting > 0);
        self.over -= u32::from(is_back);
        self.eased |= is_back || waits;
    }

    /// Counts an answer that waits for the share of its key.
    pub(crate) fn waits(&mut self, key: KeyIx) {
        self.account(key).waiting += 1;
    }

    /// Ends the wait of an answer.
    pub(crate) fn waits_no_more(&mut self, key: KeyIx) {
        self.account(key).waiting -= 1;
    }

    /// True if an answer waits for the share of this key.
    pub(crate) fn is_waited_for(&self, key: KeyIx) -> bool {
        self.keys.get(key.0 as usize).is_some_and(|account| account.waiting > 0)
    }

    /// True if a key holds more than its share.
    #[inline]
    pub(crate) fn is_over(&self, key: KeyIx) -> bool {
        self.over > 0 && self.keys.get(key.0 as usize).is_some_and(|account| account.held > self.share)
    }

    /// True if any key holds more than its share.
    pub(crate) fn is_any_over(&self) -> bool {
        self.over > 0
    }

    /// Returns true, once, if answers waiting for their keys' shares should be checked.
    pub(crate) fn take_eased(&mut self) -> bool {
        std::mem::take(&mut self.eased)
    }

    /// Recounts after a panic: only these promises are left. Waiting answers still wait, and blocks are still being
    /// freed.
    pub(crate) fn recount<'a>(&mut self, live: impl Iterator<Item = &'a Promise>, pool: &mut Pool) {
        for (_, account) in self.keys.iter_mut() {
            (account.held, account.answers) = (account.leaving, 0);
        }
        self.over = self.keys.iter().filter(|(_, account)| account.held > self.share).count() as u32;
        let mut open = 0;
        for promise in live {
            open += promise.open();
            self.add(promise.key, promise.total.into(), promise.is_answer);
        }
        pool.redeem(pool.promised());
        pool.promise(open);
        self.eased = true;
    }

    #[inline]
    fn account(&mut self, key: KeyIx) -> &mut KeyMemory {
        self.keys.entry(key.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::Buf;

    const MIB: usize = 1 << 20;

    #[test]
    fn reserved_bytes_are_not_reserved_again() {
        let (mut shares, mut pool) = (MemoryShares::new(4 * MIB), Pool::new(4 * MIB));
        let mut promises: Vec<Promise> = Vec::new();
        let mut refused = 0;
        for key in 0..10 {
            let mut promise = Promise::default();
            match shares.body(&mut promise, KeyIx(key), MIB as u64, &mut pool) {
                Ok(()) => promises.push(promise),
                Err(_) => refused += 1,
            }
        }
        assert_eq!((promises.len(), refused), (3, 7), "an eighth and some work is left");
        assert_eq!(pool.promised(), 3 * (MIB + REQUEST as usize));
        let mut body = Buf::default();
        body.push(&mut pool, &[0; MIB / 2]);
        shares.came(&mut promises[0], MIB / 2, &mut pool);
        assert_eq!(pool.promised(), 3 * (MIB + REQUEST as usize) - MIB / 2);
        for promise in &mut promises {
            shares.release(promise, &mut pool);
        }
        body.release(&mut pool);
        assert_eq!((pool.promised(), pool.room()), (0, 4 * MIB));
        assert!(shares.keys.iter().all(|(_, account)| account.held == 0 && account.answers == 0));
    }

    #[test]
    fn one_key_holds_at_most_a_quarter() {
        let (mut shares, mut pool, mut promise) = (MemoryShares::new(4 * MIB), Pool::new(4 * MIB), Promise::default());
        assert!(shares.body(&mut promise, KeyIx(0), MIB as u64 / 2, &mut pool).is_ok());
        assert!(shares.body(&mut promise, KeyIx(0), MIB as u64, &mut pool).is_ok());
        assert!(shares.body(&mut promise, KeyIx(0), MIB as u64 + 1, &mut pool).is_err());
        assert!(shares.body(&mut Promise::default(), KeyIx(1), MIB as u64, &mut pool).is_ok());
    }

    #[test]
    fn answers_count_against_the_share_except_a_keys_only_one() {
        let (mut shares, mut pool) = (MemoryShares::new(4 * MIB), Pool::new(4 * MIB));
        let (mut body, mut first, second) = (Promise::default(), Promise::default(), Promise::default());
        assert!(shares.body(&mut body, KeyIx(0), MIB as u64, &mut pool).is_ok());
        assert!(shares.share_allows(&first, KeyIx(0), MIB));
        shares.answer(&mut first, KeyIx(0), MIB, &mut pool);
        assert!(!shares.share_allows(&second, KeyIx(0), 1) && shares.is_over(KeyIx(0)));
        shares.waits(KeyIx(0));
        assert!(shares.body(&mut Promise::default(), KeyIx(0), 1, &mut pool).is_err());
        assert!(shares.share_allows(&second, KeyIx(1), MIB), "another key feels nothing of it");
        shares.release(&mut first, &mut pool);
        assert!(shares.take_eased() && shares.share_allows(&second, KeyIx(0), 1));
    }

    #[test]
    fn lost_promises_are_no_longer_counted() {
        let (mut shares, mut pool) = (MemoryShares::new(4 * MIB), Pool::new(4 * MIB));
        let (mut kept, mut lost, mut unread) = (Promise::default(), Promise::default(), Promise::default());
        assert!(shares.body(&mut kept, KeyIx(0), 1000, &mut pool).is_ok());
        assert!(shares.body(&mut lost, KeyIx(0), MIB as u64 / 2, &mut pool).is_ok());
        shares.charge(&mut unread, KeyIx(1), 5000);
        shares.recount([&kept, &unread].into_iter(), &mut pool);
        assert_eq!((pool.promised(), shares.keys.get(0).unwrap().held), (kept.open(), kept.total() as u64));
        assert_eq!((shares.keys.get(1).unwrap().held, shares.keys.get(1).unwrap().answers), (5000, 5000));
    }

    #[test]
    fn one_request_takes_three_quarters_at_most() {
        let (mut shares, mut pool, mut promise) =
            (MemoryShares::new(64 * MIB), Pool::new(64 * MIB), Promise::default());
        assert!(shares.body(&mut promise, KeyIx(0), 15 * MIB as u64, &mut pool).is_ok());
        assert!(shares.beyond_body(&mut promise, KeyIx(0), 32 * MIB, &mut pool).is_ok(), "its translation, too");
        let refused = shares.beyond_body(&mut promise, KeyIx(0), MIB, &mut pool).unwrap_err();
        assert_eq!(refused.status, 413);
        // Another key still has an eighth, less some slices.
        assert!(shares.body(&mut Promise::default(), KeyIx(1), 7 * MIB as u64, &mut pool).is_ok());
    }

    #[test]
    fn storage_beyond_a_promise_is_kept_only_if_allowed() {
        let (mut shares, mut pool, mut promise) =
            (MemoryShares::new(64 * MIB), Pool::new(64 * MIB), Promise::default());
        assert!(shares.body(&mut promise, KeyIx(0), 8 * MIB as u64, &mut pool).is_ok());
        let mut lent = Buf::default();
        lent.reserve(&mut pool, 20 * MIB);
        assert!(shares.took(&mut promise, KeyIx(0), 20 * MIB, &mut pool).is_ok(), "it is alone");
        assert_eq!((promise.total(), promise.open(), shares.keys.get(0).unwrap().held), (20 * MIB, 0, 20 * MIB as u64));
        shares.leaves(KeyIx(0), MIB);
        let refused = shares.took(&mut promise, KeyIx(0), 21 * MIB, &mut pool).unwrap_err();
        assert_eq!((refused.status, promise.total()), (503, 20 * MIB));
        shares.left(KeyIx(0), MIB);
        lent.reserve(&mut pool, 60 * MIB);
        assert!(shares.took(&mut promise, KeyIx(0), 21 * MIB, &mut pool).is_err(), "nothing is free");
        lent.release(&mut pool);
        shares.release(&mut promise, &mut pool);
        assert_eq!((shares.keys.get(0).unwrap().held, pool.promised()), (0, 0));
    }

    #[test]
    fn blocks_being_freed_count_until_they_are_freed() {
        let (mut shares, mut pool) = (MemoryShares::new(4 * MIB), Pool::new(4 * MIB));
        shares.leaves(KeyIx(0), MIB);
        assert!(shares.body(&mut Promise::default(), KeyIx(0), MIB as u64 / 2, &mut pool).is_err());
        assert!(shares.body(&mut Promise::default(), KeyIx(1), MIB as u64 / 2, &mut pool).is_ok());
        // Blocks that are being freed during a panic come back later.
        shares.recount([].into_iter(), &mut pool);
        assert!(shares.body(&mut Promise::default(), KeyIx(0), MIB as u64 / 2, &mut pool).is_err());
        shares.left(KeyIx(0), MIB);
        assert!(shares.body(&mut Promise::default(), KeyIx(0), MIB as u64 / 2, &mut pool).is_ok());
    }
}
