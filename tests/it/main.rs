//! Integration tests, one module per kind, in a single crate that is linked once: the real binary, and the core in
//! memory, both from outside the crate. The head of each module describes its tests.
//!
//! `cargo test --test it e2e::` runs one module, `cargo test --test it` all of them. `scripts/test` runs modules that
//! mostly wait in parallel, each in its own process. Two tests are separate: `tests/alloc.rs` counts the allocations of
//! its process, and `tests/tidy.rs` reads sources and needs no gateway.

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

// The support code is a module of the readers, since the fuzz targets are separate crates that need it, too.
use readers::support;
