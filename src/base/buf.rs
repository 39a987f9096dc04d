//! Contiguous byte buffers that borrow their storage from one pool with a global capacity.

/// Lends storage to every [`Buf`] and counts what is lent, so that the whole process has one bound on buffered bytes.
#[derive(Debug)]
pub struct Pool {
    // Boxed because a `Buf` holds its store boxed: lending moves a pointer.
    #[allow(clippy::vec_box)]
    free: Vec<Box<BufStorage>>,
    /// Free blocks of `SMALL` bytes.
    #[allow(clippy::vec_box)]
    small: Vec<Box<BufStorage>>,
    /// Large blocks no longer in use. They wait to be freed when that delays nobody, and count as lent until then.
    heavy: Vec<Vec<u8>>,
    lent: usize,
    /// Lent bytes in parts of the pool that are away; see [`Pool::part`].
    away: usize,
    /// Bytes that are promised, but not lent yet.
    promised: usize,
    capacity: usize,
}

/// The storage of one buffer: its bytes begin at `front`.
#[derive(Debug, Default)]
struct BufStorage {
    data: Vec<u8>,
    front: usize,
}

/// Capacity of a pooled block in bytes: an ordinary request, head and body, fits one.
pub const BLOCK: usize = 2048;
/// Capacity in bytes of the storage that [`Buf::edit_small`] begins with: the words spliced into a request fit it.
const SMALL: usize = 256;
/// A buffer above this many bytes returns its storage to the pool once at most one block of bytes is left in it.
const LARGE: usize = 8 * BLOCK;
/// Smallest capacity in bytes of a block whose deallocation is deferred.
const HEAVY: usize = 4 << 20;
/// Maximum number of free blocks kept for reuse: with fewer, a few hundred requests at once allocate for each request.
/// Further blocks are deallocated.
const FREE_MAX: usize = 256;

impl Pool {
    /// Returns a pool of `capacity` bytes.
    pub fn new(capacity: usize) -> Pool {
        Pool { free: Vec::new(), small: Vec::new(), heavy: Vec::new(), lent: 0, away: 0, promised: 0, capacity }
    }

    /// Bytes currently lent.
    pub fn lent(&self) -> usize {
        self.lent
    }

    /// Its capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the capacity. Storage already lent stays lent.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// True if `more` bytes fit the capacity, in addition to those lent and promised.
    pub fn has_room(&self, more: usize) -> bool {
        self.room() >= more
    }

    /// Bytes that are neither lent nor promised.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.lent).saturating_sub(self.promised)
    }

    /// Keeps `bytes` free for a later borrower, until [`Pool::redeem`].
    pub fn promise(&mut self, bytes: usize) {
        self.promised += bytes;
    }

    /// Ends a promise for `bytes`: they have been lent, or are no longer needed.
    pub fn redeem(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.promised);
        self.promised = self.promised.saturating_sub(bytes);
    }

    /// Bytes promised and not lent yet.
    pub fn promised(&self) -> usize {
        self.promised
    }

    /// Returns a pool for buffers that leave together, with storage of `lent` bytes. The bytes stay counted here until
    /// [`Pool::reunite`].
    pub fn part(&mut self, lent: usize) -> Pool {
        self.away += lent;
        Pool { lent, ..Pool::new(usize::MAX) }
    }

    /// Takes back a part that left with `lent` bytes. Its own count of lent bytes replaces them.
    pub fn reunite(&mut self, part: &mut Pool, lent: usize) {
        self.away -= lent;
        self.lent = self.lent - lent + part.lent;
        self.heavy.append(&mut part.heavy);
    }

    /// Recounts the lent bytes after a panic that may have lost buffers: `live` bytes are in known buffers.
    pub fn recount(&mut self, live: usize) {
        let heavy: usize = self.heavy.iter().map(Vec::capacity).sum();
        self.lent = live + self.away + heavy;
    }

    /// Takes out the large blocks no longer in use, and returns them with their size in bytes. They leave like a part
    /// of the pool. Freeing a large block makes the kernel visit each of its pages.
    pub fn heavy(&mut self) -> (Vec<Vec<u8>>, usize) {
        let blocks = std::mem::take(&mut self.heavy);
        let bytes = blocks.iter().map(Vec::capacity).sum();
        (blocks, bytes)
    }

    /// Drops large blocks no longer in use, including those that [`Pool::heavy`] returned.
    pub fn discard(&mut self, blocks: Vec<Vec<u8>>) {
        for block in blocks.into_iter().chain(std::mem::take(&mut self.heavy)) {
            self.lent -= block.capacity();
        }
    }

    /// Deallocates all free blocks.
    pub fn trim(&mut self) {
        // The larger ones last: freeing them joins the small ones to the free memory around them.
        self.small = Vec::new();
        self.free = Vec::new();
    }

    /// True if [`Pool::heavy`] would return any block.
    pub fn has_heavy(&self) -> bool {
        !self.heavy.is_empty()
    }

    #[inline]
    fn lend(&mut self) -> Box<BufStorage> {
        match self.free.pop() {
            Some(store) if store.data.capacity() > 0 => {
                self.lent += store.data.capacity();
                store
            }
            empty => self.lend_new(empty.unwrap_or_default()),
        }
    }

    #[inline(never)] // else a block that is there saves registers that only the allocation needs
    fn lend_new(&mut self, mut store: Box<BufStorage>) -> Box<BufStorage> {
        store.data = Vec::with_capacity(BLOCK);
        self.lent += store.data.capacity();
        store
    }

    fn lend_small(&mut self) -> Box<BufStorage> {
        let store = self.small.pop();
        let store = store.unwrap_or_else(|| Box::new(BufStorage { data: Vec::with_capacity(SMALL), front: 0 }));
        self.lent += store.data.capacity();
        store
    }

    #[inline]
    fn take_back(&mut self, mut store: Box<BufStorage>) {
        // Nearly all blocks are of this size, and the list has had as many of them before.
        if store.data.capacity() == BLOCK && self.free.len() < self.free.capacity() {
            self.lent -= BLOCK;
            store.front = 0;
            store.data.clear();
            return self.free.push(store);
        }
        self.take_back_other(store);
    }

    #[inline(never)] // as above
    fn take_back_other(&mut self, mut store: Box<BufStorage>) {
        let capacity = store.data.capacity();
        store.front = 0;
        if capacity == BLOCK && self.free.len() < FREE_MAX {
            self.lent -= BLOCK;
            store.data.clear();
            return self.free.push(store);
        }
        if capacity >= HEAVY {
            self.heavy.push(std::mem::take(&mut store.data));
        } else {
            self.lent -= capacity;
        }
        if capacity == SMALL && self.small.len() < FREE_MAX {
            store.data.clear();
            return self.small.push(store);
        }
        if self.free.len() < FREE_MAX {
            store.data = Vec::new();
            self.free.push(store);
        }
    }
}

/// Storage outside any buffer that also counts as lent.
#[derive(Debug, Default)]
pub struct Charge(u32);

impl Charge {
    /// Changes the charge to `bytes`.
    pub fn set(&mut self, pool: &mut Pool, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let lent = pool.lent + bytes as usize;
        // A sum below zero would count as buffers that are full for ever.
        debug_assert!(lent >= self.0 as usize, "a charge that is not lent");
        pool.lent = lent.saturating_sub(self.0 as usize);
        self.0 = bytes;
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.0 as usize
    }
}

/// Contiguous bytes with a moving front. An empty buffer has no storage and is as small as a pointer, so an idle
/// connection costs next to nothing.
///
/// Offsets into [`Buf::bytes`] stay valid while bytes are appended, until [`Buf::consume`] is called.
#[derive(Debug, Default)]
pub struct Buf(Option<Box<BufStorage>>);

impl Buf {
    /// Takes storage that was filled elsewhere, and counts it as lent.
    pub fn adopt(pool: &mut Pool, data: Vec<u8>) -> Buf {
        pool.lent += data.capacity();
        Buf(Some(Box::new(BufStorage { data, front: 0 })))
    }

    /// Bytes of storage.
    pub fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |store| store.data.capacity())
    }

    /// The bytes in the buffer.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |store| &store.data[store.front..])
    }

    /// The bytes in the buffer, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], |store| &mut store.data[store.front..])
    }

    /// Number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |store| store.data.len() - store.front)
    }

    /// True if the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`.
    pub fn push(&mut self, pool: &mut Pool, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.edit(pool, |out| out.extend_from_slice(bytes));
        }
    }

    /// Reserves room for `more` bytes, so that a body of declared length grows its buffer exactly once.
    pub fn reserve(&mut self, pool: &mut Pool, more: usize) {
        self.edit(pool, |out| out.reserve_exact(more));
    }

    /// Releases the unused capacity.
    pub fn shrink(&mut self, pool: &mut Pool) {
        self.edit(pool, Vec::shrink_to_fit);
    }

    /// Lets `write` append to the buffer, and charges the storage it uses to the pool. `write` must not shorten the
    /// vector.
    pub fn edit<R>(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let BufStorage { data, front } = &mut **self.0.get_or_insert_with(|| pool.lend());
        if *front > 0 && *front * 2 >= data.len() {
            data.drain(..*front);
            *front = 0;
        }
        let before = data.capacity();
        let result = write(data);
        pool.lent = pool.lent - before + data.capacity();
        result
    }

    /// Like [`Buf::edit`], for a buffer that usually stays small.
    pub fn edit_small<R>(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.0.get_or_insert_with(|| pool.lend_small());
        self.edit(pool, write)
    }

    /// Removes `count` bytes from the front. An empty buffer returns its storage to the pool.
    #[inline]
    pub fn consume(&mut self, pool: &mut Pool, count: usize) {
        let Some(store) = &mut self.0 else { return debug_assert_eq!(count, 0) };
        store.front += count;
        debug_assert!(store.front <= store.data.len());
        let left = store.data.len().saturating_sub(store.front);
        if left == 0 {
            self.release(pool);
        } else if store.data.capacity() > LARGE && left <= BLOCK {
            // A large block must not stay lent for a few bytes.
            let mut kept = Buf::default();
            kept.push(pool, self.bytes());
            std::mem::replace(self, kept).release(pool);
        }
    }

    /// Drops everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if let Some(store) = &mut self.0 {
            store.data.truncate(store.front + len);
        }
    }

    /// Empties the buffer and returns its storage.
    #[inline]
    pub fn release(&mut self, pool: &mut Pool) {
        if let Some(store) = self.0.take() {
            pool.take_back(store);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lent_byte_is_returned() {
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
    fn large_block_is_not_kept_for_a_few_bytes() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push(&mut pool, &[7; 10 * BLOCK]);
        buf.consume(&mut pool, 9 * BLOCK - 1);
        assert!(pool.lent() >= 10 * BLOCK, "nothing is copied while more than a block is left");
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
    fn small_block_is_reused_unless_it_has_grown() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.edit_small(&mut pool, |out| out.extend_from_slice(b"ab"));
        let first = buf.bytes().as_ptr();
        assert_eq!((pool.lent(), buf.bytes()), (SMALL, b"ab".as_slice()));
        buf.release(&mut pool);
        let mut other = Buf::default();
        other.push(&mut pool, b"cd");
        buf.edit_small(&mut pool, |out| out.extend_from_slice(b"ef"));
        assert_eq!(pool.lent(), SMALL + BLOCK);
        assert_eq!(buf.bytes().as_ptr(), first);
        buf.edit_small(&mut pool, |out| out.extend_from_slice(&[0; SMALL]));
        assert_eq!(buf.len(), SMALL + 2);
        buf.release(&mut pool);
        other.release(&mut pool);
        assert_eq!(pool.lent(), 0);
        buf.edit_small(&mut pool, |out| out.push(1));
        assert_eq!(buf.capacity(), SMALL);
        buf.release(&mut pool);
    }

    #[test]
    fn bytes_of_a_pool_part_stay_counted_until_reunited() {
        let mut pool = Pool::new(1 << 20);
        let mut buf = Buf::default();
        buf.push(&mut pool, &[7; 10_000]);
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
