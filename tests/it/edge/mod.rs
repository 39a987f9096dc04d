//! The gateway at its edges, with the real binary: TLS for clients, browsers, changes at run time, and hostile clients.

mod access;
mod back;
mod browsers;
mod peers;
mod reload;
pub mod rig;
mod tls;
mod upgrade;
