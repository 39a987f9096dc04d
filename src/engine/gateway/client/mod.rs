//! Lifetime of a client's TCP connection: heads and bodies in, answers out, keep-alive, deadlines. Independent of
//! exchanges: `drive` interprets requests and provides answers.

mod after;
pub(crate) mod connection;
pub(crate) mod connection_limits;
pub(crate) mod cors;
pub(crate) mod peer;
pub(crate) mod response;
pub(crate) mod seats;
mod send_queue;

pub(crate) use after::AfterResponse;
pub(crate) use connection::{ClientConnection, ClientEvent, Oddity};
