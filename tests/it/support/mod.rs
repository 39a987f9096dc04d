//! What the transcript runner, the simulator and the fuzz targets share: a configuration put together from sections,
//! keys, a strict reader of HTTP answers that owes nothing to the code under test, and what must hold of the vitals.
#![allow(dead_code)]

pub mod answers;
pub mod setting;
pub mod vitals;
