//! Data about keys and their use: plans, grants of a shared ledger, pending rows, look-ups, and whether the clock can
//! be trusted. Decides about single keys and rows; what follows for the gateway is in `upkeep`.

pub(crate) mod budget_sums;
pub(crate) mod clock;
pub(crate) mod grants;
pub(crate) mod ledger;
pub(crate) mod lookups;
pub(crate) mod plans;
pub(crate) mod targets;
