//! The world: sockets, TLS, files, clocks, signals and helper threads.
