//! The world: sockets, TLS, files, clocks, signals and helper threads.
//!
//! Everything here is thin and takes no decision: a [`Core`](crate::base::seam::Core) decides. The loop thread's only
//! system calls in the steady state are `recv`, `send` and `epoll_wait`; whatever can block (names, the ledger,
//! stderr) has a thread of its own.

pub mod batch_queue;
pub mod channel;
pub mod clock;
pub mod files;
pub mod links;
pub mod listen;
pub mod log_writer;
pub mod machine;
pub mod mailbox;
pub mod outcome;
pub mod process;
pub mod proxy;
pub mod reactor;
pub mod resolver;
pub mod secrets;
pub mod signals;
pub mod tls;
pub mod transport;
pub mod tunnel;
pub mod upgrade;
pub mod worker;
