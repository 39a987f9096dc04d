//! The gateway at its edges, with the real binary: TLS towards clients, browsers, change at run time, hostile clients.

mod edge {
    mod back;
    mod browsers;
    mod reload;
    mod rig;
    mod tls;
    mod upgrade;
}
