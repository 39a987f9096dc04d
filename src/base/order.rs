//! Sorting of lists that are rarely sorted. The standard sort is compiled again for every type, with eight kilobytes of
//! code each time. Here indices are sorted, which have one type, and the items are moved afterwards.

/// Sorts `list` by `key` in ascending order. The sort is stable.
pub fn by_key<T>(list: &mut [T], key: impl Fn(&T) -> (u64, u128)) {
    let mut order: Vec<(u64, u128, usize)> = Vec::with_capacity(list.len());
    order.extend(list.iter().enumerate().map(|(at, one)| {
        let (major, minor) = key(one);
        (major, minor, at)
    }));
    // With their indices in them no two are equal.
    order.sort_unstable();
    for start in 0..list.len() {
        // Follows a cycle of indices: each gets its item, and the first item moves on to the last index.
        let mut at = start;
        loop {
            let from = std::mem::replace(&mut order[at].2, at);
            if from == start {
                break;
            }
            list.swap(at, from);
            at = from;
        }
    }
}

/// Collects into a map or set, item by item. The standard way for a B-tree sorts first: see the head of this file.
pub fn gathered<T, M: Default + Extend<T>>(items: impl IntoIterator<Item = T>) -> M {
    let mut all = M::default();
    items.into_iter().for_each(|item| all.extend([item]));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    #[test]
    fn lists_come_out_as_the_library_would_sort_them() {
        let mut rng = Rng::from_u64(7);
        for length in (0..40u64).chain([1000]) {
            let list: Vec<(u64, u64)> = (0..length).map(|at| (rng.below(length / 2 + 1), at)).collect();
            let (mut ours, mut theirs) = (list.clone(), list);
            by_key(&mut ours, |(value, _)| (value / 3, u128::from(*value)));
            theirs.sort_by_key(|(value, _)| (value / 3, *value));
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn what_has_moved_as_a_whole_costs_one_round() {
        let mut list: Vec<u64> = (1..100_000).chain([0]).collect();
        by_key(&mut list, |value| (*value, 0));
        assert!(list.is_sorted());
        list.rotate_right(1);
        by_key(&mut list, |value| (*value, 0));
        assert!(list.is_sorted());
    }
}
