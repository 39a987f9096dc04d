//! Streams kept for reuse, so that one that keeps its shape allocates nothing in the steady state.
//!
//! Owns the spare ones. Must never keep storage of the pool's, nor what belongs to one stream. Called by `relay`, and
//! by `exchange` when a stream is done with.

use crate::base::buf::Pool;
use crate::dialect::SseStream;
use crate::wire::Dialect;

/// Streams kept for reuse.
const SPARE_MAX: usize = 64;

/// The spare streams.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    // Boxed as an exchange holds them: moving a stream moves a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<SseStream>>,
}

impl Flows {
    /// At the start of a stream that keeps its shape; see [`SseStream::same`].
    pub(crate) fn same(&mut self, dialect: Dialect, show_usage: bool, max_event: usize) -> Box<SseStream> {
        match self.spare.pop() {
            Some(mut flow) => {
                flow.restart(dialect, show_usage, max_event);
                flow
            }
            None => Box::new(SseStream::same(dialect, show_usage, max_event)),
        }
    }

    /// Gives a stream back; a translated one is not kept, since what it carries belongs to it.
    pub(crate) fn put(&mut self, mut flow: Box<SseStream>, pool: &mut Pool) {
        flow.release(pool);
        if flow.keeps_shape() && self.spare.len() < SPARE_MAX {
            self.spare.push(flow);
        }
    }
}
