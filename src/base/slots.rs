//! Names for things that outlive a call: a slot number and a generation. The only check for stale names in Tollgate.

use std::fmt;
use std::marker::PhantomData;

/// Name of an occupant of a [`Slots`]. A name of a freed slot never matches its next occupant. `T` is the occupant's
/// type, or a placeholder type if the name is passed to code that must not know the occupant.
pub struct Id<T> {
    /// Index into the table.
    pub slot: u32,
    /// Number of the occupant in its slot, below 2^31, so that a name fits a poll token next to a bit for its side.
    pub generation: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// Rebuilds a name from its parts, for example from a poll token.
    pub fn new(slot: u32, generation: u32) -> Id<T> {
        Id { slot, generation, kind: PhantomData }
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot && self.generation == other.generation
    }
}
impl<T> Eq for Id<T> {}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// A table whose keys are [`Id`]s: stale names give `None` instead of another occupant. `N` is the type that its names
/// carry.
#[derive(Debug)]
pub struct Slots<T, N = T> {
    slots: Vec<Slot<T>>,
    /// Number of occupants.
    len: usize,
    /// The slot that was freed last; the number of slots if none is free.
    free: u32,
    /// Generation of the first occupant of a new slot: no name of a slot that [`Slots::trim`] removed has it.
    fresh: u32,
    names: PhantomData<fn() -> N>,
}

/// Number of free slots from which [`Slots::trim`] is worthwhile. It keeps room for as many.
const TRIM_MIN: usize = 256;

/// A slot with its generation, so that a name is checked next to its occupant.
#[derive(Debug)]
struct Slot<T> {
    /// Generation of the occupant, or of the next one.
    generation: u32,
    /// In a free slot: the one that was freed before it; the number of slots if there was none.
    next_free: u32,
    tenant: Option<T>,
}

impl<T> Slot<T> {
    /// Makes names of the occupant stale, and puts the slot before `free`.
    #[inline(always)]
    fn vacate(&mut self, slot: u32, free: &mut u32, len: &mut usize) {
        self.generation = (self.generation + 1) & 0x7fff_ffff;
        self.next_free = std::mem::replace(free, slot);
        *len -= 1;
    }
}

impl<T, N> Default for Slots<T, N> {
    fn default() -> Self {
        Slots::with_room(0)
    }
}

impl<T, N> Slots<T, N> {
    /// Returns a table with room for `tenants` occupants. The room uses memory only as it fills, and growing within it
    /// costs no copy and leaves no storage behind.
    pub fn with_room(tenants: usize) -> Slots<T, N> {
        Slots { slots: Vec::with_capacity(tenants), len: 0, free: 0, fresh: 0, names: PhantomData }
    }

    /// Stores `value` and returns its name.
    #[inline(always)] // else large tenants are copied once more
    pub fn insert(&mut self, value: T) -> Id<N> {
        let free = self.free;
        self.len += 1;
        let Some(slot) = self.slots.get_mut(free as usize) else {
            self.free += 1;
            self.slots.push(Slot { generation: self.fresh, next_free: 0, tenant: Some(value) });
            return Id::new(free, self.fresh);
        };
        self.free = slot.next_free;
        debug_assert!(slot.tenant.is_none(), "a free slot is empty");
        // Without the check, the value is copied twice, in case that dropping an earlier one panics.
        if slot.tenant.is_none() {
            slot.tenant = Some(value);
        }
        Id::new(free, slot.generation)
    }

    /// Returns the occupant of `id`, unless it was removed.
    #[inline]
    pub fn get(&self, id: Id<N>) -> Option<&T> {
        match self.slots.get(id.slot as usize) {
            Some(slot) if slot.generation == id.generation => slot.tenant.as_ref(),
            _ => None,
        }
    }

    /// Returns the occupant of `id`, mutable, unless it was removed.
    #[inline]
    pub fn get_mut(&mut self, id: Id<N>) -> Option<&mut T> {
        match self.slots.get_mut(id.slot as usize) {
            Some(slot) if slot.generation == id.generation => slot.tenant.as_mut(),
            _ => None,
        }
    }

    /// Returns the current occupant of `slot` and its name.
    #[inline]
    pub fn tenant(&self, slot: u32) -> Option<(Id<N>, &T)> {
        let Slot { generation, tenant, .. } = self.slots.get(slot as usize)?;
        tenant.as_ref().map(|tenant| (Id::new(slot, *generation), tenant))
    }

    /// Returns the current occupant of `slot` and its name, mutable.
    #[inline]
    pub fn tenant_mut(&mut self, slot: u32) -> Option<(Id<N>, &mut T)> {
        let Slot { generation, tenant, .. } = self.slots.get_mut(slot as usize)?;
        tenant.as_mut().map(|tenant| (Id::new(slot, *generation), tenant))
    }

    /// Removes the occupant of `id`. Its name is stale from then on.
    #[inline]
    pub fn remove(&mut self, id: Id<N>) -> Option<T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation || slot.tenant.is_none() {
            return None;
        }
        slot.vacate(id.slot, &mut self.free, &mut self.len);
        // Last, because its result would be copied once more otherwise.
        slot.tenant.take()
    }

    /// Removes the occupant of `id` and drops it in its slot, which [`Slots::remove`] would copy first.
    #[inline]
    pub fn discard(&mut self, id: Id<N>) {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return };
        if slot.generation == id.generation && slot.tenant.is_some() {
            slot.vacate(id.slot, &mut self.free, &mut self.len);
            slot.tenant = None;
        }
    }

    /// True if at least half of the slots and `TRIM_MIN` of them are free: a burst may be over.
    #[inline]
    pub fn is_sparse(&self) -> bool {
        self.slots.len() >= TRIM_MIN + 2 * self.len
    }

    /// Gives the memory of the slots behind the last occupant back. Returns their number.
    pub fn trim(&mut self) -> usize {
        let used = self.slots.iter().rposition(|slot| slot.tenant.is_some()).map_or(0, |last| last + 1);
        let unused = self.slots.len() - used;
        for slot in self.slots.drain(used..) {
            self.fresh = self.fresh.max(slot.generation);
        }
        self.slots.shrink_to(used + TRIM_MIN);
        self.free = used as u32;
        for (index, slot) in self.slots.iter_mut().enumerate().rev() {
            if slot.tenant.is_none() {
                slot.next_free = std::mem::replace(&mut self.free, index as u32);
            }
        }
        unused
    }

    /// Number of occupants.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no occupant.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all occupants with their names, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Id<N>, &T)> {
        (0..self.slots.len() as u32).filter_map(|slot| self.tenant(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn stale_handle_never_reaches_the_next_occupant() {
        let mut slots: Slots<&str> = Slots::default();
        let a = slots.insert("a");
        assert_eq!(slots.remove(a), Some("a"));
        let b = slots.insert("b");
        assert_eq!(a.slot, b.slot);
        assert_eq!((slots.get(a), slots.get(b)), (None, Some(&"b")));
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn discarding_does_the_same_as_removing() {
        let (mut removes, mut discards) = (Slots::<Rc<()>>::default(), Slots::<Rc<()>>::default());
        let occupant = Rc::new(());
        for slots in [&mut removes, &mut discards] {
            for _ in 0..3 {
                slots.insert(occupant.clone());
            }
        }
        // A name twice, one of a freed slot and one that was never given.
        for (slot, generation) in [(1, 0), (1, 0), (0, 0), (0, 7), (9, 0), (0, 1)] {
            let id = Id::new(slot, generation);
            drop(removes.remove(id));
            discards.discard(id);
            assert_eq!(format!("{removes:?}"), format!("{discards:?}"));
        }
        assert_eq!(Rc::strong_count(&occupant), 3, "each table drops two");
        assert_eq!(removes.insert(occupant.clone()), discards.insert(occupant));
    }

    #[test]
    fn names_of_slots_that_were_removed_stay_stale() {
        let mut slots: Slots<usize> = Slots::default();
        let mut names: Vec<Id<usize>> = (0..3 * TRIM_MIN).map(|number| slots.insert(number)).collect();
        let twice = names[2 * TRIM_MIN];
        slots.remove(twice);
        names.push(slots.insert(7));
        assert_eq!(names.last().map(|name| name.slot), Some(twice.slot));
        let kept = names.remove(5);
        assert!(!slots.is_sparse());
        for name in &names {
            slots.remove(*name);
        }
        assert!(slots.is_sparse());
        assert_eq!(slots.trim(), 3 * TRIM_MIN - 6);
        assert_eq!((slots.len(), slots.slots.len(), slots.is_sparse()), (1, 6, false));
        assert!(slots.slots.capacity() <= 6 + TRIM_MIN);
        let grown: Vec<Id<usize>> = (0..3 * TRIM_MIN).map(|number| slots.insert(1000 + number)).collect();
        assert_eq!(grown[..6].iter().map(|name| name.slot).collect::<Vec<u32>>(), [0, 1, 2, 3, 4, 6]);
        assert!(names.iter().all(|name| slots.get(*name).is_none()), "a name came back");
        assert!(grown.iter().enumerate().all(|(number, name)| slots.get(*name) == Some(&(1000 + number))));
        assert_eq!((slots.get(kept), slots.len()), (Some(&5), 3 * TRIM_MIN + 1));
    }
}
