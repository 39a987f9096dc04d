//! The gateway at its edges, with the real binary: TLS towards clients, browsers, change at run time, hostile clients.

mod edge {
    mod browsers;
    mod reload;
    mod rig;
    #[path = "../support/room.rs"]
    mod room;
    mod tls;
    mod upgrade;
}
