//! What the gateway promises to many at once, driven through its seam with a virtual clock and no sockets: its bound on
//! buffered bytes, where conversations go, the doors it keeps open, and stacks that do not grow with what a client sends. Conversations of one
//! client stand in transcripts (`scripts`).

mod admin;
mod affinity;
mod billed;
mod budget;
mod drain;
mod fairness;
mod pace;
mod pressure;
mod queue;
mod readers;
mod rig;
mod stack;
mod strangers;
mod vectors;
