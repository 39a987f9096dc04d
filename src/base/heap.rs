//! Gives free memory back to the system. glibc gives back only the end of its heap, above the last block in use. It
//! also keeps a few freed blocks of each small size for the next requests of the thread, wherever they are. After
//! a burst, one such block near the end keeps all free memory below it. Other allocators need no help, or cannot be
//! helped by safe code.

/// Largest block that glibc keeps in this way, in bytes.
const CACHED_MAX: usize = 1032;
/// Step between the sizes that it distinguishes.
const STEP: usize = 16;
/// Blocks that it keeps of each size.
const KEPT: usize = 7;
/// Bytes of the blocks taken of each size, among which those to be kept are chosen: the allocator begins with the
/// smallest gaps, which may all be near the end.
const TAKEN: usize = 32 * 1024;
/// Size of a block whose deallocation joins small free blocks with their neighbours: at least 64 KiB.
const JOINING: usize = 96 * 1024;

/// Moves the free blocks that the allocator keeps at hand towards the start of the heap, and has it give the end back.
/// Takes about a millisecond.
#[cold]
pub fn give_back() {
    if cfg!(not(target_env = "gnu")) {
        return;
    }
    // In the first round, kept blocks may lie between free ones that are taken in their place.
    for _ in 0..2 {
        join();
        for size in (STEP..=CACHED_MAX).step_by(STEP) {
            lower(size);
        }
    }
    join();
}

/// Chooses the blocks of one size that are kept.
fn lower(size: usize) {
    let mut blocks: Vec<Vec<u8>> = (0..TAKEN / size).map(|_| Vec::with_capacity(size)).collect();
    // The first ones freed are kept.
    for _ in 0..KEPT {
        if let Some(lowest) = (0..blocks.len()).min_by_key(|index| blocks[*index].as_ptr().addr()) {
            blocks.swap_remove(lowest);
        }
    }
}

/// Has small free blocks joined with their neighbours.
fn join() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(JOINING)));
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn blocks_at_hand_are_the_lowest_free_ones() {
        let take = || -> Vec<Vec<u8>> { (0..KEPT).map(|_| Vec::with_capacity(500)).collect() };
        let address = |block: &Vec<u8>| block.as_ptr().addr();
        let mut all: Vec<Vec<u8>> = (0..1000).map(|_| Vec::with_capacity(500)).collect();
        all.sort_unstable_by_key(address);
        let middle = address(&all[500]);
        // The last ones are freed first, and kept.
        while all.pop().is_some() {}
        assert!(take().iter().all(|block| address(block) > middle), "the allocator keeps other blocks");
        give_back();
        assert!(take().iter().all(|block| address(block) < middle));
    }
}
