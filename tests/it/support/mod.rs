//! Code shared by the transcripts, the simulator and the fuzz targets: a configuration from sections, keys, a strict
//! parser of HTTP answers that is independent of the code under test, invariants of the vitals, and the world around a
//! gateway.
#![allow(dead_code)]

pub mod answers;
pub mod setting;
pub mod vitals;
pub mod world;
