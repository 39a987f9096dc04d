//! Promises of the gateway to many clients at once, tested through its seam with a virtual clock and no sockets: its
//! bound on buffered bytes, the targets of conversations, access for new clients, and stacks that do not grow with what
//! a client sends. Transcripts (`scripts`) have the conversations of one client.

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
