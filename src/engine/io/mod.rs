//! The world: sockets, TLS, files, clocks, signals and helper threads.
//!
//! All code here is thin and makes no decisions: a [`Core`](crate::base::seam::Core) decides. In the steady state, the
//! only system calls of the loop thread are `recv`, `send` and `epoll_wait`. Anything that can block (names, the
//! ledger, stderr) has a separate thread.

pub mod batch_queue;
pub mod channel;
pub mod clock;
pub mod entropy;
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
