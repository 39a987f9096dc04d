//! Handle table: names objects that outlive a call by a slot number and a generation. The only check for stale names in
//! Tollgate.

use std::fmt;
use std::marker::PhantomData;

/// Name of an occupant of a [`Slots`]. A name of a freed slot never matches its next occupant. `T` is the occupant's
/// type, or a placeholder type if the name is passed to code that must not know the occupant.
pub struct Id<T> {
    /// Index into the slab.
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

/// A slab whose keys are [`Id`]s: stale names return `None` instead of another occupant. `N` is the type in its names.
#[derive(Debug)]
pub struct Slots<T, N = T> {
    slab: slab::Slab<Tenant<T>>,
    /// Generation of the next occupant of each slot that has had one.
    next: Vec<u32>,
    names: PhantomData<fn() -> N>,
}

/// An occupant with its generation, so that the check of a name touches the same memory.
#[derive(Debug)]
struct Tenant<T> {
    generation: u32,
    value: T,
}

impl<T, N> Default for Slots<T, N> {
    fn default() -> Self {
        Slots { slab: slab::Slab::new(), next: Vec::new(), names: PhantomData }
    }
}

impl<T, N> Slots<T, N> {
    /// Returns a slab with room for `tenants` occupants. The room uses memory only as it fills, and growing within it
    /// copies nothing and leaves no unused memory behind.
    pub fn with_room(tenants: usize) -> Slots<T, N> {
        Slots { slab: slab::Slab::with_capacity(tenants), next: Vec::with_capacity(tenants), names: PhantomData }
    }

    /// Stores `value` and returns its name.
    pub fn insert(&mut self, value: T) -> Id<N> {
        let entry = self.slab.vacant_entry();
        let slot = entry.key();
        if self.next.len() <= slot {
            self.next.resize(slot + 1, 0);
        }
        let generation = self.next[slot];
        entry.insert(Tenant { generation, value });
        Id::new(slot as u32, generation)
    }

    /// Returns the occupant of `id`, unless it was removed.
    #[inline]
    pub fn get(&self, id: Id<N>) -> Option<&T> {
        match self.slab.get(id.slot as usize) {
            Some(tenant) if tenant.generation == id.generation => Some(&tenant.value),
            _ => None,
        }
    }

    /// Returns the occupant of `id`, mutable, unless it was removed.
    #[inline]
    pub fn get_mut(&mut self, id: Id<N>) -> Option<&mut T> {
        match self.slab.get_mut(id.slot as usize) {
            Some(tenant) if tenant.generation == id.generation => Some(&mut tenant.value),
            _ => None,
        }
    }

    /// Returns the current occupant of `slot` and its name.
    #[inline]
    pub fn tenant(&self, slot: u32) -> Option<(Id<N>, &T)> {
        self.slab.get(slot as usize).map(|tenant| (Id::new(slot, tenant.generation), &tenant.value))
    }

    /// Returns the current occupant of `slot` and its name, mutable.
    #[inline]
    pub fn tenant_mut(&mut self, slot: u32) -> Option<(Id<N>, &mut T)> {
        self.slab.get_mut(slot as usize).map(|tenant| (Id::new(slot, tenant.generation), &mut tenant.value))
    }

    /// Removes the occupant of `id`. Its name is stale from then on.
    #[inline]
    pub fn remove(&mut self, id: Id<N>) -> Option<T> {
        self.get(id)?;
        // Done before the removal, since its result would otherwise be copied once more.
        self.next[id.slot as usize] = (id.generation + 1) & 0x7fff_ffff;
        self.slab.try_remove(id.slot as usize).map(|tenant| tenant.value)
    }

    /// Number of occupants.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// True if there is no occupant.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Iterates over all occupants with their names, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Id<N>, &T)> {
        self.slab.iter().map(|(slot, tenant)| (Id::new(slot as u32, tenant.generation), &tenant.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_name_never_matches_the_next_occupant() {
        let mut slots: Slots<&str> = Slots::default();
        let a = slots.insert("a");
        assert_eq!(slots.remove(a), Some("a"));
        let b = slots.insert("b");
        assert_eq!(a.slot, b.slot);
        assert_eq!((slots.get(a), slots.get(b)), (None, Some(&"b")));
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.len(), 1);
    }
}
