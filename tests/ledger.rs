//! The ledger end to end, on the real binary: limits under races, durability under kill -9, a ledger that is slow, full
//! or gone, and several gateways on one. Contract sections 3 and 5.

#[path = "e2e/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "ledger/clock.rs"]
mod clock;
#[path = "ledger/commit.rs"]
mod commit;
#[path = "ledger/files.rs"]
mod files;
#[path = "ledger/handover.rs"]
mod handover;
#[path = "e2e/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "ledger/kills.rs"]
mod kills;
#[path = "ledger/odd.rs"]
mod odd;
#[path = "ledger/outage.rs"]
mod outage;
#[path = "e2e/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "ledger/races.rs"]
mod races;
#[path = "ledger/shared.rs"]
mod shared;
mod support;
