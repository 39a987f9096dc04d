//! The lifetime of a connection to a provider: it sends a request, receives an answer, and may start again. Knows no
//! exchange: it neither interprets answers nor reacts to failures.

pub(crate) mod breaker;
pub(crate) mod connection;
pub(crate) mod credential;
pub(crate) mod discovery;
pub(crate) mod dns;
pub(crate) mod rate_limits;
pub(crate) mod request;
pub(crate) mod upload;

pub(crate) use connection::{Parting, ProviderConnection, ProviderEvent};
