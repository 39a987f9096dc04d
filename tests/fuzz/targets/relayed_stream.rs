//! Fuzzes the reader `relayed_stream`; see `tests/fuzz/readers.rs`.
#![no_main]

#[path = "../readers.rs"]
mod readers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| readers::run("relayed_stream", data));
