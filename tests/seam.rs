//! What the gateway promises to many at once, driven through its seam with a virtual clock and no sockets: its bound on
//! buffered bytes, the doors it keeps open, and stacks that do not grow with what a client sends. Conversations of one
//! client stand in transcripts (`scripts.rs`).

#[path = "seam/admin.rs"]
mod admin;
#[path = "seam/budget.rs"]
mod budget;
#[path = "seam/pressure.rs"]
mod pressure;
#[path = "seam/readers.rs"]
mod readers;
#[path = "seam/rig.rs"]
mod rig;
#[path = "seam/stack.rs"]
mod stack;
mod support;
#[path = "scripts/world.rs"]
#[allow(dead_code)]
mod world;
