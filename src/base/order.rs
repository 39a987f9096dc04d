//! Sorting of lists that are rarely sorted. The standard sort is compiled separately for every type, with eight
//! kilobytes of code each time. This module sorts indices, which have a single type, and moves the items afterwards.

/// Sorts `list` by `key` in ascending order. The sort is stable.
pub fn by_key<T>(list: &mut [T], key: impl Fn(&T) -> (u64, u128)) {
    let mut order: Vec<(u64, u128, usize)> = Vec::with_capacity(list.len());
    order.extend(list.iter().enumerate().map(|(at, one)| {
        let (major, minor) = key(one);
        (major, minor, at)
    }));
    // The indices make all keys different.
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

/// Collects into a map or set, item by item. `collect` into a B-tree would sort first, which costs the code size
/// described above.
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
    fn lists_are_sorted_like_by_the_standard_library() {
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
    fn rotated_list_is_sorted_in_one_cycle() {
        let mut list: Vec<u64> = (1..100_000).chain([0]).collect();
        by_key(&mut list, |value| (*value, 0));
        assert!(list.is_sorted());
        list.rotate_right(1);
        by_key(&mut list, |value| (*value, 0));
        assert!(list.is_sorted());
    }
}
