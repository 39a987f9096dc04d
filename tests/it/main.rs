//! The tests of the whole, one module for each kind, in one crate that is linked once. The real binary and the core in
//! memory, from outside the crate; what a module tests says its head.
//!
//! `cargo test --test it e2e::` runs one module, `cargo test --test it` all of them. `scripts/test` runs modules that
//! wait side by side, each in a process of its own. Two tests stand apart: `tests/alloc.rs` counts what reaches the
//! allocator of its process, `tests/tidy.rs` reads sources and needs no gateway.

mod corpus;
mod docs;
mod e2e;
mod edge;
mod faults;
mod hostile;
mod ledger;
mod provider;
#[path = "../fuzz/readers.rs"]
mod readers;
mod scripts;
mod seam;
mod sim;

// What is beside us belongs to the readers, too: the fuzz targets are crates of their own and bring it along.
use readers::support;
