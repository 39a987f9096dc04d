//! Contiguous byte buffers that borrow their storage from one pool with a global budget.

/// Lends storage to every [`Buf`] and counts what is lent, so that the whole process has one bound on buffered bytes.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Vec<u8>>,
    /// Large blocks that are done with, to be given back to the system where that holds nobody up.
    heavy: Vec<Vec<u8>>,
    lent: usize,
    budget: usize,
}

/// Capacity of a pooled block in bytes: an ordinary request, head and body, fits one.
pub const BLOCK: usize = 4096;
/// Storage above this many bytes is given back when no more than a block of it is in use.
const LARGE: usize = 4 * BLOCK;
/// Capacity in bytes from which on a block is not dropped on the spot.
const HEAVY: usize = 4 << 20;
/// Blocks kept for reuse beyond those lent; the rest goes back to the allocator.
const FREE_MAX: usize = 256;

impl Pool {
    /// A pool that wants to lend no more than `budget` bytes in all.
    pub fn new(budget: usize) -> Pool {
        Pool { free: Vec::new(), heavy: Vec::new(), lent: 0, budget }
    }

    /// Bytes lent at this moment.
    pub fn lent(&self) -> usize {
        self.lent
    }

    /// The budget in bytes.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Changes the budget; what is already lent stays lent.
    pub fn set_budget(&mut self, budget: usize) {
        self.budget = budget;
    }

    /// True if `more` bytes would still fit the budget.
    pub fn has_room(&self, more: usize) -> bool {
        self.lent.saturating_add(more) <= self.budget
    }

    /// A pool for buffers that leave together with storage of `lent` bytes. It stays counted here until
    /// [`Pool::reunite`].
    pub fn part(&self, lent: usize) -> Pool {
        Pool { free: Vec::new(), heavy: Vec::new(), lent, budget: usize::MAX }
    }

    /// What left with `lent` bytes is back with what `part` has lent by now.
    pub fn reunite(&mut self, part: &mut Pool, lent: usize) {
        self.lent = self.lent - lent + part.lent;
        self.heavy.append(&mut part.heavy);
    }

    /// Takes out the large blocks that are done with. Dropping one costs the system a visit to each of its pages.
    pub fn heavy(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.heavy)
    }

    /// True when [`Pool::heavy`] has something.
    pub fn has_heavy(&self) -> bool {
        !self.heavy.is_empty()
    }

    fn lend(&mut self) -> Vec<u8> {
        let block = self.free.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK));
        self.lent += block.capacity();
        block
    }

    fn take_back(&mut self, mut block: Vec<u8>) {
        self.lent -= block.capacity();
        if block.capacity() == BLOCK && self.free.len() < FREE_MAX {
            block.clear();
            self.free.push(block);
        } else if block.capacity() >= HEAVY {
            self.heavy.push(block);
        }
    }
}

/// Bytes in one piece with a moving front. Empty, it holds no storage at all; so an idle connection costs none.
///
/// Offsets into [`Buf::bytes`] stay true while bytes are appended and until [`Buf::consume`] is called.
#[derive(Debug, Default)]
pub struct Buf {
    data: Vec<u8>,
    front: usize,
}

impl Buf {
    /// Takes storage that was filled elsewhere; it counts from here on.
    pub fn adopt(pool: &mut Pool, data: Vec<u8>) -> Buf {
        pool.lent += data.capacity();
        Buf { data, front: 0 }
    }

    /// Bytes of storage.
    pub fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// What is in the buffer.
    pub fn bytes(&self) -> &[u8] {
        &self.data[self.front..]
    }

    /// What is in the buffer, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.front..]
    }

    /// Number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.data.len() - self.front
    }

    /// True when nothing is in the buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`.
    pub fn push(&mut self, pool: &mut Pool, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.edit(pool, |out| out.extend_from_slice(bytes));
        }
    }

    /// Makes room for `more` bytes at once, so that a body of declared length grows its buffer exactly once.
    pub fn reserve(&mut self, pool: &mut Pool, more: usize) {
        self.edit(pool, |out| out.reserve_exact(more));
    }

    /// Lets `write` append to the buffer; growth is charged to the pool. `write` must not shorten the vector.
    pub fn edit<R>(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if self.data.capacity() == 0 {
            self.data = pool.lend();
        } else if self.front > 0 && self.front * 2 >= self.data.len() {
            self.data.drain(..self.front);
            self.front = 0;
        }
        let before = self.data.capacity();
        let result = write(&mut self.data);
        pool.lent += self.data.capacity() - before;
        result
    }

    /// Appends to a buffer that becomes large: when it has to grow, by `ahead` bytes more than what is needed now.
    pub fn push_ahead(&mut self, pool: &mut Pool, bytes: &[u8], ahead: usize) {
        self.edit(pool, |out| {
            if out.capacity() - out.len() < bytes.len() {
                out.reserve_exact(bytes.len().max(ahead));
            }
            out.extend_from_slice(bytes);
        });
    }

    /// Removes `count` bytes from the front; storage goes back to the pool when the buffer is empty.
    pub fn consume(&mut self, pool: &mut Pool, count: usize) {
        self.front += count;
        debug_assert!(self.front <= self.data.len());
        if self.front >= self.data.len() {
            self.release(pool);
        } else if self.data.capacity() > LARGE && self.len() <= BLOCK {
            // A large storage must not stay lent for the few bytes at its end.
            let mut kept = Buf::default();
            kept.push(pool, self.bytes());
            std::mem::replace(self, kept).release(pool);
        }
    }

    /// Drops everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.data.truncate(self.front + len);
    }

    /// Empties the buffer and returns its storage.
    pub fn release(&mut self, pool: &mut Pool) {
        self.front = 0;
        if self.data.capacity() > 0 {
            pool.take_back(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_lent_comes_back() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push(&mut pool, b"hello");
        assert_eq!(pool.lent(), BLOCK);
        buf.push(&mut pool, &[0; 3 * BLOCK]);
        assert!(pool.lent() >= 3 * BLOCK + 5);
        buf.consume(&mut pool, 5);
        assert_eq!(buf.len(), 3 * BLOCK);
        buf.release(&mut pool);
        assert_eq!((pool.lent(), buf.len()), (0, 0));
    }

    #[test]
    fn a_large_storage_is_not_kept_for_a_few_bytes() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push(&mut pool, &[7; 10 * BLOCK]);
        buf.consume(&mut pool, 9 * BLOCK - 1);
        assert!(pool.lent() >= 10 * BLOCK, "more than a block is left: nothing is copied");
        buf.consume(&mut pool, 1);
        assert_eq!((pool.lent(), buf.len()), (BLOCK, BLOCK));
        assert!(buf.bytes().iter().all(|byte| *byte == 7));
        buf.release(&mut pool);
        assert_eq!(pool.lent(), 0);
    }

    #[test]
    fn an_empty_buffer_holds_nothing_and_blocks_are_reused() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push(&mut pool, b"ab");
        let first = buf.bytes().as_ptr();
        buf.consume(&mut pool, 2);
        assert_eq!(pool.lent(), 0);
        buf.push(&mut pool, b"cd");
        assert_eq!(buf.bytes().as_ptr(), first);
        buf.release(&mut pool);
    }

    #[test]
    fn what_leaves_with_a_part_of_the_pool_stays_counted_until_it_is_back() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push_ahead(&mut pool, &[7; 10_000], 1000);
        let lent = buf.capacity();
        let mut part = pool.part(lent);
        buf.release(&mut part);
        let mut other = Buf::adopt(&mut part, vec![1; 5000]);
        assert_eq!(pool.lent(), lent);
        pool.reunite(&mut part, lent);
        assert_eq!(pool.lent(), other.capacity());
        other.release(&mut pool);
        assert_eq!(pool.lent(), 0);
    }

    #[test]
    fn consuming_in_pieces_keeps_the_rest_in_order() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push(&mut pool, b"abcdef");
        buf.consume(&mut pool, 4);
        buf.push(&mut pool, b"gh");
        assert_eq!(buf.bytes(), b"efgh");
        buf.release(&mut pool);
    }
}
