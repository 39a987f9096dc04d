//! Providers fail; clients get the best answer there is. The real binary before a provider that misbehaves on real
//! sockets, plain and TLS. `faults/table.rs` says what is expected of every fault.

mod faults {
    mod answers;
    mod budget;
    mod cancel;
    #[allow(dead_code)] // shared with the end-to-end tests, which use more of it
    #[path = "../e2e/client.rs"]
    mod client;
    mod play;
    mod pressure;
    #[allow(dead_code)] // as above
    #[path = "../e2e/process.rs"]
    mod process;
    mod run;
    mod soak;
    mod stalls;
    #[path = "../support/mod.rs"]
    mod support;
    mod table;
    mod turns;
    mod wire;
    mod world;
}
