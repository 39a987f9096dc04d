//! Counts the bytes that are scanned for an input, in debug builds: no input costs more than linear time.
//!
//! Owns the count of this thread and the bound. Costs a release nothing. Tests, the simulator and fuzzing check the
//! bound with everything that they translate.

#[cfg(debug_assertions)]
#[cfg(debug_assertions)]
use std::cell::Cell;

/// Times that a debug build lets an input be scanned on average, by all readers together. Every loop over a part of it
/// costs one; a loop within a loop over the same part costs as many as it has items.
#[cfg(debug_assertions)]
const SCANS_MAX: usize = 50;
/// Bytes that may be scanned in addition, whatever the length of the input.
#[cfg(debug_assertions)]
const SCANS_FLOOR: usize = 16 * 1024;

#[cfg(debug_assertions)]
thread_local! {
    static SCANNED: Cell<usize> = const { Cell::new(0) };
}

/// Notes that `bytes` are scanned.
#[inline(always)]
pub(super) fn scanned(bytes: usize) {
    #[cfg(debug_assertions)]
    SCANNED.set(SCANNED.get().wrapping_add(bytes));
    let _ = bytes;
}

/// Bytes that are scanned for an input, which may arrive in pieces, and its length.
#[derive(Debug, Default)]
pub struct ScanCount {
    #[cfg(debug_assertions)]
    scanned: usize,
    #[cfg(debug_assertions)]
    length: usize,
}

impl ScanCount {
    /// Begins to read a piece of `length` bytes.
    #[inline(always)]
    pub fn begin(&mut self, length: usize) {
        #[cfg(debug_assertions)]
        {
            self.scanned = self.scanned.wrapping_sub(SCANNED.get());
            self.length += length;
        }
        let _ = length;
    }

    /// Has read a piece. Panics in a debug build if more was scanned than the bound allows.
    #[inline(always)]
    pub fn end(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.scanned = self.scanned.wrapping_add(SCANNED.get());
            let (scanned, length) = (self.scanned, self.length);
            let is_linear = scanned <= SCANS_MAX * length + SCANS_FLOOR;
            assert!(is_linear, "{scanned} bytes were scanned for an input of {length}");
        }
    }
}

/// Checks at its end that reading an input took linear time.
pub struct LinearGuard(ScanCount);

impl Drop for LinearGuard {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Begins to read an input of `length` bytes. The guard is held until it is read.
#[inline(always)]
#[must_use]
pub fn linear(length: usize) -> LinearGuard {
    let mut count = ScanCount::default();
    count.begin(length);
    LinearGuard(count)
}

/// Reads another input of `length` bytes while one is read: what it scans counts for that other input alone.
#[inline(always)]
pub fn linear_apart<T>(length: usize, read: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let before = SCANNED.get();
    let guard = linear(length);
    let result = read();
    drop(guard);
    #[cfg(debug_assertions)]
    SCANNED.set(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::Raw;

    /// Reads an object of many members, `times` over.
    fn read(times: impl Fn(usize) -> usize) {
        let text = format!("{{{}}}", vec!["\"a\":1"; 2000].join(","));
        let object = Raw::new(text.as_bytes());
        let _linear = linear(text.len());
        assert!((0..times(object.members().count())).all(|_| object.get("b").is_none()));
    }

    #[test]
    #[should_panic(expected = "bytes were scanned for an input of")]
    fn scanning_an_input_again_for_each_of_its_members_exceeds_the_bound() {
        read(|members| members);
    }

    #[test]
    fn another_input_counts_apart() {
        let text = vec![b'a'; SCANS_FLOOR + 1];
        let _linear = linear(0);
        for _ in 0..3 {
            linear_apart(text.len(), || scanned(text.len()));
        }
    }

    #[test]
    fn scanning_an_input_a_few_times_stays_within_the_bound() {
        read(|_| SCANS_MAX - 1);
    }
}
