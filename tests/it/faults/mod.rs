//! Providers fail; clients get the best answer there is. The real binary before a provider that misbehaves on real
//! sockets, plain and TLS. `table.rs` says what is expected of every fault.

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
