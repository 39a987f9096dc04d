//! Unsent bytes of one client: appended bytes, sometimes followed by one large buffer that is sent without a copy.
//! Called by `connection`.

use crate::base::buf::{Buf, Pool};

/// Unsent bytes, in order.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    tx: Buf,
    /// Follows `tx`.
    bulk: Buf,
}

impl SendQueue {
    /// Returns the bytes to be written next; all of them, unless a large buffer follows.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.tx.is_empty() { self.bulk.bytes() } else { self.tx.bytes() }
    }

    /// Number of unsent bytes.
    pub(super) fn len(&self) -> usize {
        self.tx.len() + self.bulk.len()
    }

    /// Bytes of storage.
    pub(super) fn storage(&self) -> usize {
        self.tx.capacity() + self.bulk.capacity()
    }

    /// True if everything has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.tx.is_empty() && self.bulk.is_empty()
    }

    /// Lets `write` append.
    pub(super) fn edit(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>)) {
        let last = if self.bulk.is_empty() { &mut self.tx } else { &mut self.bulk };
        last.edit(pool, write);
    }

    /// Appends a large buffer without a copy of it.
    pub(super) fn follow(&mut self, pool: &mut Pool, bulk: Buf) {
        // The remainder of an earlier buffer is small: more is appended only below the high-water mark.
        let mut earlier = std::mem::replace(&mut self.bulk, bulk);
        self.tx.push(pool, earlier.bytes());
        earlier.release(pool);
    }

    /// Removes the first `count` of [`SendQueue::bytes`], which have been sent.
    pub(super) fn consume(&mut self, pool: &mut Pool, count: usize) {
        if self.tx.is_empty() {
            self.bulk.consume(pool, count);
        } else {
            self.tx.consume(pool, count);
        }
    }

    /// Drops everything and returns all storage.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        self.tx.release(pool);
        self.bulk.release(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(queue: &mut SendQueue, pool: &mut Pool, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !queue.is_empty() {
            let count = queue.bytes().len().min(most);
            all.extend_from_slice(&queue.bytes()[..count]);
            queue.consume(pool, count);
        }
        all
    }

    #[test]
    fn bytes_are_sent_in_order() {
        let mut pool = Pool::new(1 << 20);
        for most in 1..20 {
            let mut queue = SendQueue::default();
            queue.edit(&mut pool, |out| out.extend_from_slice(b"head "));
            for text in ["bulk one ", "bulk two "] {
                let mut bulk = Buf::default();
                bulk.push(&mut pool, text.as_bytes());
                queue.follow(&mut pool, bulk);
                queue.edit(&mut pool, |out| out.extend_from_slice(b"tail "));
            }
            assert_eq!(queue.len(), 33);
            assert_eq!(sent(&mut queue, &mut pool, most), b"head bulk one tail bulk two tail ");
            assert_eq!(pool.lent(), 0);
        }
    }
}
