//! Pool of unused streams, so that a new one allocates nothing.

use crate::dialect::SseStream;
use crate::wire::ModelEndpoint;

/// Streams kept for reuse.
const SPARE_MAX: usize = 256;

/// Unused streams that keep their API format, so that a stream in the steady state allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    // Boxed as an exchange holds them: moving one moves a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<SseStream>>,
}

impl Streams {
    /// A stream, at its start, that keeps its API format.
    pub(crate) fn same(&mut self, endpoint: ModelEndpoint, show_usage: bool, max_event: usize) -> Box<SseStream> {
        match self.spare.pop() {
            Some(mut stream) => {
                stream.restart(endpoint, show_usage, max_event);
                stream
            }
            None => Box::new(SseStream::same(endpoint, show_usage, max_event)),
        }
    }

    /// Returns a stream without storage. One that translates is dropped, since its state belongs to its request.
    pub(crate) fn put(&mut self, stream: Box<SseStream>) {
        if stream.keeps_shape() && self.spare.len() < SPARE_MAX {
            self.spare.push(stream);
        }
    }
}
