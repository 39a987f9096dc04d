//! Names for things that outlive a call: a slot number and a generation. The one stale-name check of the house.

use std::fmt;
use std::marker::PhantomData;

/// The name of a tenant in a [`Slots`]. A freed slot's names never match its next tenant. `T` is the tenant's type or,
/// where names are passed to those that must not know the tenant, a type that stands for it.
pub struct Id<T> {
    /// Index into the slab.
    pub slot: u32,
    /// Counts the tenants of the slot, below 2^31 so that a name fits a poll token beside a bit for its side.
    pub generation: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// Rebuilds a name from its parts, for instance from a poll token.
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

/// A slab whose keys are [`Id`]s: stale names answer `None` instead of another tenant. `N` is what its names are of.
#[derive(Debug)]
pub struct Slots<T, N = T> {
    slab: slab::Slab<Tenant<T>>,
    /// What the next tenant of a slot is called, for each that has had one.
    next: Vec<u32>,
    names: PhantomData<fn() -> N>,
}

/// A tenant beside its generation, so that a name is checked where the tenant lies.
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
    /// Room for so many tenants at once. It costs memory only as it is used, and up to there growing costs no copy
    /// and leaves no storage behind.
    pub fn with_room(tenants: usize) -> Slots<T, N> {
        Slots { slab: slab::Slab::with_capacity(tenants), next: Vec::with_capacity(tenants), names: PhantomData }
    }

    /// Stores `value` and names it.
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

    /// The tenant of `id`, unless it has left.
    #[inline]
    pub fn get(&self, id: Id<N>) -> Option<&T> {
        match self.slab.get(id.slot as usize) {
            Some(tenant) if tenant.generation == id.generation => Some(&tenant.value),
            _ => None,
        }
    }

    /// The tenant of `id`, unless it has left.
    #[inline]
    pub fn get_mut(&mut self, id: Id<N>) -> Option<&mut T> {
        match self.slab.get_mut(id.slot as usize) {
            Some(tenant) if tenant.generation == id.generation => Some(&mut tenant.value),
            _ => None,
        }
    }

    /// The present tenant of `slot` and its name.
    #[inline]
    pub fn tenant(&self, slot: u32) -> Option<(Id<N>, &T)> {
        self.slab.get(slot as usize).map(|tenant| (Id::new(slot, tenant.generation), &tenant.value))
    }

    /// The present tenant of `slot` and its name, mutable.
    #[inline]
    pub fn tenant_mut(&mut self, slot: u32) -> Option<(Id<N>, &mut T)> {
        self.slab.get_mut(slot as usize).map(|tenant| (Id::new(slot, tenant.generation), &mut tenant.value))
    }

    /// Takes the tenant of `id` out; its name is stale from here on.
    #[inline]
    pub fn remove(&mut self, id: Id<N>) -> Option<T> {
        self.get(id)?;
        // Handed on as it comes: unpacked it would be copied once more.
        let tenant = self.slab.try_remove(id.slot as usize);
        if tenant.is_some() {
            self.next[id.slot as usize] = (id.generation + 1) & 0x7fff_ffff;
        }
        tenant.map(|tenant| tenant.value)
    }

    /// Number of tenants.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// True when there is no tenant.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// All tenants with their names, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Id<N>, &T)> {
        self.slab.iter().map(|(slot, tenant)| (Id::new(slot as u32, tenant.generation), &tenant.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_never_reaches_the_next_tenant() {
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
