//! Generic building blocks, independent of HTTP and models. Imports nothing else of Tollgate.

// All layers use the same paths: `crate::base` is the layer base, whichever crate contains it.
extern crate self as base;

pub mod base64;
pub mod buf;
pub mod digest;
pub mod hash;
pub mod heap;
pub mod index_table;
pub mod limits;
pub mod packed;
pub mod paged;
pub mod ring;
pub mod rng;
pub mod seam;
pub mod slots;
pub mod text;
pub mod time;
pub mod timers;
mod words;
