//! Providers fail, and clients must get the best possible answer. The real binary runs against a provider that
//! misbehaves on real sockets, plain and with TLS. `table.rs` lists the expected outcome of every fault.

mod answers;
mod budget;
mod cancel;
mod fim;
mod play;
mod pressure;
mod run;
mod sides;
mod small;
mod soak;
mod stalls;
mod table;
mod tenant;
mod turns;
mod wire;
mod world;

use super::e2e::{client, process};
use super::support;
