//! Long events of a stream, which a helper thread reads.

use super::answer_end::AnswerStep;
use super::event::{DriverCall, Effect};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::state::{Answering, Body};
use crate::base::buf::Buf;
use crate::gateway::offload::{JobOwner, OffloadTask, Product};

impl Answering {
    /// Has a large event read by a helper thread: `data` is its part so far, or the stream has ended with it.
    pub(super) fn offload_events(
        &mut self,
        job: &RequestJob,
        data: Option<&[u8]>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        let observed = Box::new(self.body.observed());
        let Some(stream) = self.body.take_stream() else { return Err(Fault::from(FaultKind::Internal).into()) };
        let serial = call.cx.next_offload();
        let identity = job.request.counted_identity(call.cx.now.unix).into();
        self.body = Body::Offloaded { serial, observed };
        let mut piece = Buf::default();
        piece.push(&mut call.cx.memory.pool, data.unwrap_or_default());
        let lent = stream.capacity() + piece.capacity();
        let task = match data {
            Some(_) => OffloadTask::Events { stream, data: piece },
            None => OffloadTask::LastEvent { stream },
        };
        let of = JobOwner { exchange: call.message.exchange, key: job.request.found.key, serial };
        call.cx.offload(of, lent, identity, task);
        Ok(Effect::Rearm)
    }

    /// Handles the result of a helper thread for a piece of the answer.
    pub(super) fn offloaded(
        &mut self,
        job: &mut RequestJob,
        product: Option<Product>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        match product {
            Some(Product::Reply { read, out: body }) => self.whole_read(job, read, body, call),
            Some(Product::Events { stream, out: bytes, fed }) => {
                self.body = Body::Stream(stream);
                call.out.bytes = bytes;
                self.fed(job, fed, call)
            }
            Some(Product::LastEvent { stream, out: bytes, ended }) => {
                self.body = Body::Stream(stream);
                call.out.bytes = bytes;
                self.ended(job, ended, call)
            }
            Some(Product::Request { .. }) | None => {
                call.cx.report.stats.panics += 1;
                Err(Fault::from(FaultKind::Internal).into())
            }
        }
    }
}
