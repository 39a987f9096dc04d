//! Admission of a request: checks of its head, its model, its maximum use, and the reservation.

pub(crate) mod authorize;
mod choose_model;
pub(crate) mod cost;
mod reserve;
pub(crate) mod strict;
