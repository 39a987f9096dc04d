//! The layers that a request passes, above base, wire and policy: a crate of its own, because a release optimises it
//! for speed. The crate `tollgate` exports them as its own modules, and its map describes them (`src/lib.rs`).

pub mod dialect;
pub mod gateway;
pub mod io;

// All layers use the same paths: `crate::base` is the layer base, whichever crate contains it.
pub use {base, policy, wire};

use gateway::Gateway;
use io::reactor::Reactor;

/// Root of the repository, for tests that read fixtures.
#[cfg(test)]
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Serves until the gateway has drained. The loop is generic, so it is compiled by the crate that runs it: `control`
/// would have it optimised for size.
pub fn serve(reactor: Reactor<Gateway>) -> std::io::Result<Gateway> {
    reactor.run()
}
