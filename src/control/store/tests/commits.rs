//! Work of one commit, as the kernel counts it for this thread.

use super::*;
use crate::store::bounds::{ROWS_ENOUGH, ROWS_PER_SLICE};

/// Returns a number about this thread.
fn number(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

fn rows(many: usize) -> Vec<Row> {
    (0..many as u64).map(|n| row(A, 1_790_000_000_000 + n, "gpt-4o-mini", 500)).collect()
}

/// A thread that sleeps yields the core to the event loop.
#[test]
fn large_commit_yields_the_core_between_its_slices() {
    let place = TempFolder::new("slices");
    let mut db = open_owner(&place.file(), false, sqlite::PAGE_SIZE).unwrap();
    let mut yields = |many: usize| {
        let before = number("status", "voluntary_ctxt_switches:");
        db.append(&rows(many)).unwrap();
        number("status", "voluntary_ctxt_switches:") - before
    };
    // The disk may delay some of the commits.
    let mut least = |many: usize| (0..8).map(|_| yields(many)).min();
    assert!(least(ROWS_ENOUGH) >= Some(ROWS_ENOUGH.div_ceil(ROWS_PER_SLICE) as u64));
    assert_eq!(least(ROWS_PER_SLICE), Some(0));
}

#[test]
fn small_commit_reads_its_files_only_a_few_times() {
    let place = TempFolder::new("reads");
    let mut db = open_owner(&place.file(), false, sqlite::PAGE_SIZE).unwrap();
    db.append(&rows(1)).unwrap();
    let reads = || number("io", "syscr:");
    let before = reads();
    let own = reads() - before;
    let before = reads();
    db.append(&rows(1)).unwrap();
    let each = reads() - before - own;
    assert!(each <= 4, "{each} reads");
}
