//! The gateway at its edges, with the real binary: TLS towards clients, browsers, change at run time, hostile clients.

mod access;
mod back;
mod browsers;
mod peers;
mod reload;
pub mod rig;
mod tls;
mod upgrade;
