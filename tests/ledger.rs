//! The ledger end to end, on the real binary: limits under races, durability under kill -9, a ledger that is slow, full
//! or gone, and several gateways on one. Contract sections 3 and 5.

#[allow(dead_code)]
mod e2e {
    pub mod client;
    pub mod harness;
    pub mod process;
}

mod ledger {
    mod commit;
}
