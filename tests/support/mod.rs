//! What the transcript runner and the simulator share: a configuration put together from sections, keys, and a strict
//! reader of HTTP answers that owes nothing to the code under test.
#![allow(dead_code)]

pub mod answers;
pub mod setting;
