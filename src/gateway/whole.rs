//! Whole answers: collected by `relay`, read here or elsewhere (`work`), and sent as one.

use super::Gateway;
use super::answers::{Extent, JSON};
use super::exchange::Exchange;
use super::fault::{Fault, FaultKind};
use super::relay::{NOT_JSON, Step, charged, error_fault, me};
use super::respond::Opening;
use super::work::LAST_OF_ONE;
use crate::base::buf::Buf;
use crate::base::limits::HIGH_WATER;
use crate::base::slots::Id;
use crate::base::time::Now;
use crate::dialect::{self, Broken, ObservedUsage};
use crate::wire::body::{LAST_CHUNK, write_chunk, write_chunk_size};
use crate::wire::head::Method;

impl Gateway {
    /// The body of a whole answer has ended: reads it.
    pub(crate) fn end_whole(&mut self, xid: Id<Exchange>, now: Now) -> Step {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Step::Ended };
        let Some(shape) = ex.shape() else { return Step::Ended };
        let length = ex.held.len();
        if self.is_long(length) {
            if !self.pool.has_room(length) {
                return Step::Failed(Fault::from(FaultKind::TooLarge("max_buffered")));
            }
            // The connection has given all it had to give.
            if let Some(ex) = self.exchanges.get_mut(xid) {
                ex.upstream = None;
            }
            self.work_on_reply(xid, now);
            return Step::Ended;
        }
        let Some(ex) = self.exchanges.get_mut(xid) else { return Step::Ended };
        self.scratch.clear();
        let read = match ex.carry() {
            None => dialect::whole(shape, ex.held.bytes(), &me(ex, now), &mut self.scratch),
            Some(carry) => dialect::reply(shape.other(), ex.held.bytes(), carry, &me(ex, now), &mut self.scratch),
        };
        let mut ex = match self.whole_read(xid, read) {
            Ok(Some(ex)) => ex,
            Ok(None) => return Step::Ended,
            Err(fault) => return Step::Failed(fault),
        };
        let body = std::mem::take(&mut self.scratch);
        if self.waits_for_rows() {
            ex.last.push(&mut self.pool, &body);
            self.await_commit(ex, now);
        } else {
            self.send_whole(ex, &body, now);
        }
        self.scratch = body;
        Step::Ended
    }

    /// A whole answer has been read: takes its exchange and settles it.
    fn whole_read(
        &mut self,
        xid: Id<Exchange>,
        read: Result<ObservedUsage, Broken>,
    ) -> Result<Option<Exchange>, Fault> {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(None) };
        let observed = match read {
            Ok(observed) => observed,
            Err(Broken::NotJson) => return Err(Fault::from(FaultKind::BadBody(NOT_JSON))),
            Err(Broken::Error(text)) => return Err(error_fault(text, Some(ex))),
        };
        ex.held.release(&mut self.pool);
        ex.upstream = None;
        self.target_succeeded(xid);
        let Some(mut ex) = self.take_exchange(xid) else { return Ok(None) };
        let usage = charged(observed, ex.estimate);
        self.settle(&mut ex, usage);
        Ok(Some(ex))
    }

    /// The same of one that was read elsewhere: `out` is what the client gets.
    pub(crate) fn reply_read(
        &mut self,
        xid: Id<Exchange>,
        read: Result<ObservedUsage, Broken>,
        mut out: Buf,
        now: Now,
    ) {
        match self.whole_read(xid, read) {
            Ok(Some(mut ex)) if self.waits_for_rows() => {
                (ex.last, ex.bulk) = (out, true);
                self.await_commit(ex, now);
            }
            Ok(Some(ex)) => self.send_bulk(ex, out, now),
            Ok(None) => out.release(&mut self.pool),
            Err(fault) => {
                out.release(&mut self.pool);
                self.attempt_failed(xid, fault, now);
            }
        }
    }

    /// A large whole answer, from where it lies: one chunk, whose end it has with it, or to the end of the connection.
    pub(crate) fn send_bulk(&mut self, ex: Exchange, body: Buf, now: Now) {
        let (cid, head) = (ex.client, ex.head);
        let extent = if head.http11 { Extent::Chunked } else { Extent::ToEnd };
        let next = self.next_after(cid, head, extent == Extent::ToEnd);
        self.write_head(&ex.face(), &Opening { status: 200, extent, content_type: JSON, refusal: None, next }, now);
        if head.http11 {
            let length = body.len().saturating_sub(LAST_OF_ONE.len());
            self.push_client(cid, now, |out| write_chunk_size(out, length));
        }
        self.push_bulk(cid, body, now);
        self.conclude(ex, 200, now);
        self.move_on(cid, next, now);
        self.advance(cid, now);
    }

    /// A whole answer: with its length where it fits one buffer, else in chunks (contract section 1).
    pub(crate) fn send_whole(&mut self, ex: Exchange, body: &[u8], now: Now) {
        let (cid, head) = (ex.client, ex.head);
        let extent = match (body.len() <= HIGH_WATER, head.http11) {
            (true, _) => Extent::Length(body.len()),
            (false, true) => Extent::Chunked,
            (false, false) => Extent::ToEnd,
        };
        let next = self.next_after(cid, head, extent == Extent::ToEnd);
        self.write_head(&ex.face(), &Opening { status: 200, extent, content_type: JSON, refusal: None, next }, now);
        if head.method != Method::Head {
            self.push_client(cid, now, |out| match extent {
                Extent::Chunked => {
                    for piece in body.chunks(HIGH_WATER) {
                        write_chunk(out, piece);
                    }
                    out.extend_from_slice(LAST_CHUNK);
                }
                _ => out.extend_from_slice(body),
            });
        }
        self.conclude(ex, 200, now);
        self.move_on(cid, next, now);
        self.advance(cid, now);
    }
}
