//! Admission of a request: checks of its head, its model, its maximum use, and the reservation.

pub(crate) mod authorize;
mod choose_model;
pub(crate) mod cost;
pub(crate) mod record;
pub(crate) mod replace;
mod reserve;
pub(crate) mod strict;
