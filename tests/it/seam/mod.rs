//! Guarantees of the gateway to many concurrent clients, tested through its seam with a virtual clock and no sockets:
//! the bound on buffered bytes, session affinity, failover and cool-downs, access for new clients, and a stack whose depth does not depend on
//! client input. The transcripts in `scripts` test the conversation of a single client.

mod admin;
mod affinity;
mod billed;
mod budget;
mod connections;
mod cool_downs;
mod drain;
mod fairness;
mod forms;
mod media;
mod pace;
mod preface;
mod pressure;
mod queue;
mod readers;
mod rig;
mod stack;
mod strangers;
mod strict;
mod vectors;
