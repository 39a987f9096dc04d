//! The way of a stream through the dialects: passed on in its own shape, or translated. One face for both, so that
//! `relay` knows no difference.

use crate::base::buf::{Buf, Pool};
use crate::dialect::{ObservedUsage, Progress, ResponseIdentity, StreamFault, StreamTap, StreamTranslator};
use crate::wire::Dialect;

/// One upstream stream on its way to a client.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a relay keeps the whole in a box
pub(crate) enum Flow {
    /// Of the client's shape.
    Same(StreamTap),
    /// Of the other shape.
    Cross(Box<StreamTranslator>),
}

impl Flow {
    /// Takes body bytes; see [`StreamTap::feed`].
    pub(crate) fn feed(
        &mut self,
        data: &[u8],
        held: &mut Buf,
        pool: &mut Pool,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, StreamFault> {
        match self {
            Flow::Same(tap) => tap.feed(data, held, pool, me, out),
            Flow::Cross(translator) => translator.feed(data, held, pool, me, out),
        }
    }

    /// The body has ended; see [`StreamTap::end`].
    pub(crate) fn end(
        &mut self,
        held: &mut Buf,
        pool: &mut Pool,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamFault> {
        match self {
            Flow::Same(tap) => tap.end(held, pool, me, out),
            Flow::Cross(translator) => translator.end(held, pool, me, out),
        }
    }

    /// What has been overheard so far.
    pub(crate) fn heard(&self) -> ObservedUsage {
        match self {
            Flow::Same(tap) => tap.heard(),
            Flow::Cross(translator) => translator.heard(),
        }
    }

    /// A finish reason has come: only the formal end may be missing.
    pub(crate) fn finish_seen(&self) -> bool {
        match self {
            Flow::Same(tap) => tap.finish_seen(),
            Flow::Cross(translator) => translator.finish_seen(),
        }
    }

    /// Where the end of the stream begins in what the last [`Flow::feed`] has appended; see [`StreamTap::end_at`].
    pub(crate) fn end_at(&self) -> Option<usize> {
        match self {
            Flow::Same(tap) => tap.end_at(),
            Flow::Cross(translator) => translator.end_at(),
        }
    }
}

/// Flows kept for reuse.
const SPARE_MAX: usize = 64;

/// The spare flows of streams that keep their shape, so that a stream in the steady state allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    // Boxed as an exchange holds them: moving a flow moves a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Flow>>,
}

impl Flows {
    /// A flow at the start of a stream that keeps its shape; see [`StreamTap::new`].
    pub(crate) fn same(&mut self, shape: Dialect, show_usage: bool, max_event: usize) -> Box<Flow> {
        match self.spare.pop() {
            Some(mut flow) => {
                if let Flow::Same(tap) = flow.as_mut() {
                    tap.reset(shape, show_usage, max_event);
                }
                flow
            }
            None => Box::new(Flow::Same(StreamTap::new(shape, show_usage, max_event))),
        }
    }

    /// Gives a flow back; a translator is not kept, since what it carries belongs to its stream.
    pub(crate) fn put(&mut self, flow: Box<Flow>) {
        if matches!(*flow, Flow::Same(_)) && self.spare.len() < SPARE_MAX {
            self.spare.push(flow);
        }
    }
}
