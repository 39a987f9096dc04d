//! End to end: the real binary, started as a user starts it, over real sockets. Every test starts its own simulated
//! provider, gateway, ledger and keys, and ends the processes that it started. `TOLLGATE_BIN` selects another binary
//! than the one just built.

mod admin;
mod agents;
mod alerts;
mod auth;
mod bounds;
mod capture;
mod causes;
mod changes;
mod claude_code;
pub mod client;
pub mod collector;
pub mod commands;
mod connect;
mod costs;
mod credential;
mod cursor;
mod demo;
mod discovery;
mod endpoints;
mod errors;
mod first;
mod follow;
mod forms;
pub mod harness;
mod life;
mod logs;
mod many;
mod portable;
mod prices;
pub mod process;
mod quiet;
mod recorder;
mod reports;
mod rows;
mod scrapes;
mod secrets;
mod signatures;
mod sockets;
pub mod tls;
mod traces;
mod tunnels;
mod unseen;
mod upstreams;
