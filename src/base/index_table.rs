//! A hash table of indices into a list that its owner keeps: four bytes a slot, and no copy of the items. Growing moves
//! a few slots with each entry, so that no entry waits for a copy of the whole table.

/// A hash table of indices. Entries cannot be removed one by one.
#[derive(Clone, Debug, Default)]
pub struct IndexTable {
    /// Index plus one, 0 for none. The length is a power of two, and at most half of the slots are used.
    slots: Vec<u32>,
    /// The table before it grew, and the number of its slots that have been moved.
    former: (Vec<u32>, usize),
    /// Number of entries in both.
    len: usize,
}

/// Slots of the first table.
const SLOTS_MIN: usize = 16;
/// Slots of the former table that are moved with each new entry. The new table has room for as many further entries as
/// the former one had, which is half its number of slots.
const MOVED: usize = 4;

impl IndexTable {
    /// Returns the index with hash `hash` for which `is` holds.
    #[inline]
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let found = search(&self.slots, hash, &is);
        if found.is_some() || self.former.0.is_empty() { found } else { search(&self.former.0, hash, &is) }
    }

    /// Adds an index that is not in the table. `hash_of` returns the hash of every index in it.
    pub fn insert(&mut self, hash: u64, index: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 2 > self.slots.len() {
            let slots = vec![0; (2 * self.slots.len()).max(SLOTS_MIN)];
            // The former table has been moved completely by now.
            self.former = (std::mem::replace(&mut self.slots, slots), 0);
        }
        self.len += 1;
        put(&mut self.slots, hash, index + 1);
        let (former, moved) = &mut self.former;
        let end = former.len().min(*moved + MOVED);
        for slot in &former[*moved..end] {
            if let Some(index) = slot.checked_sub(1) {
                put(&mut self.slots, hash_of(index), index + 1);
            }
        }
        *moved = end;
        if end == former.len() {
            self.former = (Vec::new(), 0);
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = IndexTable::default();
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of storage.
    pub fn bytes(&self) -> usize {
        4 * (self.slots.capacity() + self.former.0.capacity())
    }
}

/// First slot of a search for `hash`, from its upper bits, which multiplication mixes best.
#[inline]
fn home(slots: &[u32], hash: u64) -> usize {
    (hash >> 32) as usize & (slots.len() - 1)
}

#[inline]
fn search(slots: &[u32], hash: u64, is: &impl Fn(u32) -> bool) -> Option<u32> {
    if slots.is_empty() {
        return None;
    }
    let mut at = home(slots, hash);
    while let Some(index) = slots[at].checked_sub(1) {
        if is(index) {
            return Some(index);
        }
        at = (at + 1) & (slots.len() - 1);
    }
    None
}

fn put(slots: &mut [u32], hash: u64, value: u32) {
    let mut at = home(slots, hash);
    while slots[at] != 0 {
        at = (at + 1) & (slots.len() - 1);
    }
    slots[at] = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hash::mix;
    use std::cell::Cell;

    #[test]
    fn every_entry_is_found_while_the_table_grows() {
        let (mut places, hash) = (IndexTable::default(), |index: u32| mix(7, index.into()));
        for index in 0..5000 {
            places.insert(hash(index), index, hash);
            let seen = [0, index / 2, index];
            assert!(seen.iter().all(|one| places.find(hash(*one), |found| found == *one) == Some(*one)), "{index}");
            assert_eq!(places.find(hash(index + 1), |found| found == index + 1), None);
        }
        assert_eq!(places.len(), 5000);
    }

    #[test]
    fn insertion_cost_does_not_depend_on_the_size() {
        let hashed = Cell::new(0);
        let hash = |index: u32| {
            hashed.set(hashed.get() + 1);
            mix(7, index.into())
        };
        let mut places = IndexTable::default();
        for index in 0..100_000 {
            let (before, own) = (hashed.get(), mix(7, index.into()));
            places.insert(own, index, hash);
            assert!(hashed.get() - before <= MOVED, "{} entries moved with entry {index}", hashed.get() - before);
        }
        let looked = Cell::new(0);
        (0..100_000u32).for_each(|index| {
            let is = |found| {
                looked.set(looked.get() + 1);
                found == index
            };
            assert_eq!(places.find(mix(7, index.into()), is), Some(index));
        });
        assert!(looked.get() < 300_000, "{} comparisons for 100,000 entries", looked.get());
    }
}
