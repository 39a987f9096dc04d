//! The lifetime of a connection to a provider: a request out, an answer in, and again. Knows no exchange: what an
//! answer means and what follows a failure is not its business.

pub(crate) mod breaker;
pub(crate) mod connection;
pub(crate) mod names;
pub(crate) mod pool;
pub(crate) mod request;
pub(crate) mod rest;

pub(crate) use connection::{Connection, Event, Parting};
