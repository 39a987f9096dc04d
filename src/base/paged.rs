//! A list that grows page by page. Its items never move, so growing never copies them.

use std::ops::{Index, IndexMut};

/// A list in pages.
#[derive(Clone, Debug)]
pub struct Paged<T> {
    pages: Vec<Vec<T>>,
}

/// Items of one page.
const PAGE: usize = 512;

impl<T> Default for Paged<T> {
    fn default() -> Paged<T> {
        Paged { pages: Vec::new() }
    }
}

impl<T> Paged<T> {
    /// Appends an item.
    pub fn push(&mut self, item: T) {
        match self.pages.last_mut() {
            Some(page) if page.len() < PAGE => page.push(item),
            _ => {
                let mut page = Vec::with_capacity(PAGE);
                page.push(item);
                self.pages.push(page);
            }
        }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.pages.last().map_or(0, |last| (self.pages.len() - 1) * PAGE + last.len())
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The item at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.pages.get(index / PAGE)?.get(index % PAGE)
    }

    /// The item at `index`, mutable.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pages.get_mut(index / PAGE)?.get_mut(index % PAGE)
    }

    /// All items in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten()
    }

    /// All items, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten()
    }
}

impl<T> Index<usize> for Paged<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.pages[index / PAGE][index % PAGE]
    }
}

impl<T> IndexMut<usize> for Paged<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.pages[index / PAGE][index % PAGE]
    }
}

/// Items of a few among many indices. Each index without an item, below the largest, costs four bytes.
#[derive(Clone, Debug)]
pub struct Sparse<T> {
    /// Position in `items` plus one for each index, 0 for none.
    places: Paged<u32>,
    /// Items, each with its index.
    items: Paged<(u32, T)>,
}

impl<T> Default for Sparse<T> {
    fn default() -> Sparse<T> {
        Sparse { places: Paged::default(), items: Paged::default() }
    }
}

impl<T: Default> Sparse<T> {
    /// Returns the item of `index`, if it has one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.items.get(self.places.get(index)?.checked_sub(1)? as usize).map(|(_, item)| item)
    }

    /// Returns the item of `index`, mutable.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(self.places.get(index)?.checked_sub(1)? as usize).map(|(_, item)| item)
    }

    /// Returns the item of `index`, and creates it if there is none.
    #[inline]
    pub fn entry(&mut self, index: usize) -> &mut T {
        let known = self.places.get(index).map_or(0, |place| *place);
        let place = if known == 0 { self.add(index) } else { known as usize - 1 };
        &mut self.items[place].1
    }

    #[cold]
    fn add(&mut self, index: usize) -> usize {
        while self.places.len() <= index {
            self.places.pages.push(vec![0; PAGE]);
        }
        let place = self.items.len();
        self.items.push((index as u32, T::default()));
        self.places[index] = place as u32 + 1;
        place
    }

    /// Iterates over all items with their indices, in the order of creation.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.items.iter().map(|(index, item)| (*index as usize, item))
    }

    /// Iterates over all items with their indices, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.items.iter_mut().map(|(index, item)| (*index as usize, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_do_not_move_while_the_list_grows() {
        let mut list = Paged::default();
        list.push(0u64);
        let first: *const u64 = list.get(0).unwrap();
        (1..10_000).for_each(|item| list.push(item));
        assert_eq!(first, std::ptr::from_ref(list.get(0).unwrap()));
        assert!((0..10_000u64).all(|item| list.get(item as usize) == Some(&item)));
        assert_eq!((list.len(), list.get(10_000), list.iter().count()), (10_000, None, 10_000));
    }

    #[test]
    fn sparse_item_exists_only_after_entry() {
        let mut sparse = Sparse::<u64>::default();
        assert_eq!(sparse.get(0), None);
        *sparse.entry(1_000_000) = 7;
        *sparse.entry(3) = 5;
        assert_eq!((sparse.get(3), sparse.get(1_000_000), sparse.get(4)), (Some(&5), Some(&7), None));
        assert_eq!(sparse.iter().collect::<Vec<_>>(), [(1_000_000, &7), (3, &5)]);
        *sparse.entry(3) += 1;
        assert_eq!(sparse.get_mut(3), Some(&mut 6));
        assert_eq!(sparse.get_mut(2_000_000), None);
    }
}
