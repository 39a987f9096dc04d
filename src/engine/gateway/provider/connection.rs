//! A connection to a provider, in two independent halves: the request being written and the answer being read. A
//! provider may answer before it has read the complete request (RFC 9112 section 9.3), and continue to read it.
//!
//! | request half | event → next |
//! |---|---|
//! | Writing | all of it is in the queue → Handed |
//! | Handed | the queue is empty → Written |
//! | Writing, Handed | the answer is an error → Stopped |
//!
//! | response half | event → next |
//! |---|---|
//! | Dialing | connected → None |
//! | None | the first request begins, or the first byte of a later one is written → Head; bytes → closed |
//! | Head | complete → Body; interim → Head; broken → failed |
//! | Body | all of it read → Body with nothing left; its exchange needs no more → Tail |
//! | Tail | the end of the body → None; too long or too late → closed |

use crate::base::buf::{Buf, Pool};
use crate::base::limits::ROOM_MAX;
use crate::base::seam::Ending;
use crate::base::time::Mono;
use crate::gateway::ids::{ExchangeId, ProviderId};
use crate::wire::body::{BodyError, BodyReader, Piece};
use crate::wire::head::{self, ResponseHead};
use std::time::Duration;

/// Maximum bytes of the head of a provider's answer.
const HEAD_MAX: usize = 32 * 1024;
/// Maximum number of interim (1xx) answers skipped before the final one.
const INTERIM_MAX: u8 = 16;
/// Maximum bytes read after a stream's last event, up to the end of the body, so that the connection can be kept.
const TAIL_BYTES_MAX: usize = 4096;
/// Maximum time to wait for that end.
pub(crate) const TAIL_WAIT: Duration = Duration::from_secs(1);

/// First bytes of TLS records that a server may send first.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// Event that received bytes cause.
#[derive(Debug)]
pub(crate) enum ProviderEvent {
    /// The head of an answer. Its body begins after the head, in the result of [`ProviderConnection::take_received`]
    /// or, if that is empty, in the bytes that have just arrived.
    Head(ResponseHead),
    /// The bytes are not a valid or acceptable head; the reason, for the log.
    BadHead(&'static str),
    /// Bytes without a request: the connection cannot be trusted.
    Unasked,
    /// Bytes of an end that is read only to keep the connection; pass them to [`ProviderConnection::read_tail`].
    Tail,
}

/// State of the answer when the provider ended the connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// The connection had no request.
    Unused,
    /// Unknown yet: its exchange has not taken all received bytes.
    Held,
    /// Before the first byte of an answer.
    Silent,
    /// Inside the head of an answer, with the reason for the log.
    InHead(&'static str),
    /// Inside the body of an answer.
    InBody,
    /// At the end of the body of an answer.
    AtEnd,
}

/// Further use of a connection that its exchange has released.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Parting {
    /// The connection may carry another request.
    Keep,
    /// The connection may carry another request, once the end of its answer has been read.
    AwaitTail,
    /// The connection cannot be used again.
    Close,
}

/// Progress of writing the request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum RequestHalf {
    /// More of it must be put into the queue as the queue empties.
    Writing,
    /// All of it is in the queue or has been written.
    Handed,
    /// All of it has been written, or there is no request.
    Written,
    /// The queue has the last bytes to be written: the answer needs no more.
    Stopped,
}

/// Progress of reading the answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ResponseHalf {
    /// TCP, and TLS if used, are being established.
    Dialing,
    /// No answer is due.
    None,
    /// `scanned` bytes of an incomplete head have been searched for its end.
    Head { scanned: u32, interim: u8 },
    /// A body, and true if the connection may be used again after it.
    Body { reader: BodyReader, reusable: bool },
    /// The end of a body that is no longer needed; `seen` bytes of it have arrived.
    Tail { reader: BodyReader, reusable: bool, seen: u32 },
}

/// A connection to a provider.
#[derive(Debug)]
pub(crate) struct ProviderConnection {
    /// Index into the providers of the configuration numbered `epoch`.
    pub(crate) provider: u32,
    pub(crate) epoch: u32,
    /// The exchange whose request the connection carries.
    pub(crate) exchange: Option<ExchangeId>,
    request: RequestHalf,
    response: ResponseHalf,
    queue: Buf,
    received: Buf,
    /// Number of requests this connection has carried.
    used: u32,
    /// The connection's own deadline: the end of its idle time, or of the wait for its tail. Its exchange has deadlines
    /// of its own.
    pub(crate) wait: Mono,
    /// End of the connection by the provider while its exchange did not take the received bytes.
    ended: Option<Ending>,
}

impl ProviderConnection {
    /// Returns a connection about to be dialed for an exchange.
    pub(crate) fn dialing(provider: usize, epoch: u32, exchange: ExchangeId) -> ProviderConnection {
        ProviderConnection {
            provider: provider as u32,
            epoch,
            exchange: Some(exchange),
            request: RequestHalf::Written,
            response: ResponseHalf::Dialing,
            queue: Buf::default(),
            received: Buf::default(),
            used: 0,
            wait: Mono::NEVER,
            ended: None,
        }
    }

    /// Begins a request. `write` appends its head and as much of its body as fits; true if that is all of it.
    pub(crate) fn begin(&mut self, exchange: ExchangeId, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        self.exchange = Some(exchange);
        self.used = self.used.saturating_add(1);
        self.wait = Mono::NEVER;
        // On a kept connection no answer is expected before the request is written: earlier bytes could answer an
        // earlier request.
        if !self.is_reused() {
            self.response = ResponseHalf::Head { scanned: 0, interim: 0 };
        }
        self.refill(pool, write);
    }

    /// Puts more of the request into the queue, like [`ProviderConnection::begin`].
    pub(crate) fn refill(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let all = self.queue.edit(pool, write);
        self.request = if all { RequestHalf::Handed } else { RequestHalf::Writing };
    }

    /// The driver has written `count` bytes. `Some(true)`: the complete request has been written; `Some(false)`: the
    /// queue is empty and more of the request is wanted.
    pub(crate) fn wrote(&mut self, count: usize, pool: &mut Pool) -> Option<bool> {
        if self.response == ResponseHalf::None {
            self.response = ResponseHalf::Head { scanned: 0, interim: 0 };
        }
        self.queue.consume(pool, count);
        match self.request {
            _ if !self.queue.is_empty() => None,
            RequestHalf::Writing => Some(false),
            RequestHalf::Handed => {
                self.request = RequestHalf::Written;
                Some(true)
            }
            RequestHalf::Written | RequestHalf::Stopped => None,
        }
    }

    /// True if more of its request is wanted, and nothing is left to be written.
    pub(crate) fn is_starved(&self) -> bool {
        self.request == RequestHalf::Writing && self.queue.is_empty()
    }

    /// Stops writing the request: its answer, an error, does not need the rest. The connection cannot be kept.
    pub(crate) fn stop_writing(&mut self) {
        if self.request != RequestHalf::Written {
            self.request = RequestHalf::Stopped;
        }
    }

    /// Bytes to be written next.
    #[inline]
    pub(crate) fn unsent(&self) -> &[u8] {
        self.queue.bytes()
    }

    /// True if it carried a request before the current one.
    pub(crate) fn is_reused(&self) -> bool {
        self.used > 1
    }

    /// True if it is kept for a later request.
    pub(crate) fn is_idle(&self) -> bool {
        self.exchange.is_none() && self.response == ResponseHalf::None
    }

    /// True if no answer is expected, since no request has been sent.
    pub(crate) fn is_unasked(&self) -> bool {
        self.response == ResponseHalf::None
    }

    /// True if TCP or TLS are still being established.
    pub(crate) fn is_dialing(&self) -> bool {
        self.response == ResponseHalf::Dialing
    }

    /// Takes bytes that do not belong to a body; [`ProviderConnection::read`] takes those of a body. Bytes of a head
    /// are stored.
    pub(crate) fn push(&mut self, data: &[u8], pool: &mut Pool) -> Option<ProviderEvent> {
        debug_assert!(!self.has_answer());
        let ResponseHalf::Head { scanned, interim } = &mut self.response else {
            return Some(match self.response {
                ResponseHalf::Tail { .. } => ProviderEvent::Tail,
                _ => ProviderEvent::Unasked,
            });
        };
        // Nearly every head arrives complete and is read in place.
        if self.received.is_empty()
            && let Ok(Some(head)) = head::parse_response(data, &mut 0, HEAD_MAX, false)
            && head.status >= 200
        {
            self.response = ResponseHalf::Body { reader: BodyReader::new(head.framing), reusable: head.keep_alive };
            return Some(ProviderEvent::Head(head));
        }
        self.received.push(pool, data);
        loop {
            match head::parse_response(self.received.bytes(), scanned, HEAD_MAX, false) {
                Ok(None) => return None,
                Ok(Some(head)) if head.status < 200 && head.status != 101 && *interim < INTERIM_MAX => {
                    *interim += 1;
                    *scanned = 0;
                    self.received.consume(pool, head.len as usize);
                }
                Ok(Some(head)) if head.status >= 200 => {
                    let reader = BodyReader::new(head.framing);
                    self.response = ResponseHalf::Body { reader, reusable: head.keep_alive };
                    return Some(ProviderEvent::Head(head));
                }
                Ok(Some(_)) => return Some(ProviderEvent::BadHead("too many interim answers")),
                Err(error) => return Some(ProviderEvent::BadHead(self.odd_head(error.reason))),
            }
        }
    }

    /// Returns the reason for a head that is not HTTP: `reason`, unless a more precise one is known.
    fn odd_head(&self, reason: &'static str) -> &'static str {
        let is_tls = matches!(self.received.bytes(), [ALERT | HANDSHAKE, 3, ..]);
        if is_tls { "the provider speaks TLS here" } else { reason }
    }

    /// True if these bytes are all the remaining bytes of a body of declared length.
    #[inline]
    pub(crate) fn is_rest(&self, data: &[u8]) -> bool {
        let ResponseHalf::Body { reader: BodyReader::Length(left), .. } = &self.response else { return false };
        *left == data.len() as u64
    }

    /// Reads the front of the body's bytes; see [`BodyReader::next`]. Bytes after the end of the body are not allowed:
    /// the connection cannot be kept.
    #[inline]
    pub(crate) fn read(&mut self, data: &[u8]) -> Result<Piece, BodyError> {
        let ResponseHalf::Body { reader, reusable } = &mut self.response else {
            return Ok(Piece { consumed: 0, data: 0..0, done: true });
        };
        let has_more = reader.is_done() && !data.is_empty();
        let read = reader.next(data);
        if has_more || read.is_err() {
            *reusable = false;
        }
        read
    }

    /// Stores bytes that its exchange does not take at the moment.
    pub(crate) fn hold(&mut self, data: &[u8], pool: &mut Pool) {
        self.received.push(pool, data);
    }

    /// Takes the stored bytes.
    pub(crate) fn take_received(&mut self) -> Buf {
        std::mem::take(&mut self.received)
    }

    /// True if the head of an answer has been read.
    pub(crate) fn has_answer(&self) -> bool {
        matches!(self.response, ResponseHalf::Body { .. })
    }

    /// True if part of an answer's body is buffered here until its exchange takes it.
    pub(crate) fn holds_back(&self) -> bool {
        matches!(self.response, ResponseHalf::Body { .. }) && !self.received.is_empty()
    }

    /// Handles the end of the connection by the provider.
    pub(crate) fn ended(&mut self, how: Ending, paused: bool) -> Ended {
        if self.exchange.is_none() || self.response == ResponseHalf::Dialing {
            return Ended::Unused;
        }
        if self.holds_back() || paused {
            self.ended = Some(how);
            return Ended::Held;
        }
        match &mut self.response {
            // A body that runs to the end of its connection is not provably complete, whatever the kind of end (servers
            // forget close_notify). Its content proves it: a JSON object, a stream's finish reason.
            ResponseHalf::Body { reader, reusable } => {
                *reusable = false;
                if reader.end().is_ok() { Ended::AtEnd } else { Ended::InBody }
            }
            ResponseHalf::None => Ended::Silent,
            ResponseHalf::Head { interim: 0, .. } if self.received.is_empty() => Ended::Silent,
            _ => Ended::InHead(self.odd_head("ended in the head")),
        }
    }

    /// End of the connection by the provider while its exchange did not take the received bytes; returned once.
    pub(crate) fn ended_meanwhile(&mut self) -> Option<Ending> {
        self.ended.take_if(|_| self.received.is_empty())
    }

    /// Handles a successful dial.
    pub(crate) fn dialed(&mut self) {
        self.response = ResponseHalf::None;
    }

    /// Releases the connection from its exchange. `complete`: the exchange needs no more of the answer.
    pub(crate) fn let_go(&mut self, complete: bool) -> Parting {
        self.exchange = None;
        let ResponseHalf::Body { reader, reusable } = self.response else { return Parting::Close };
        if !complete || !reusable || self.ended.is_some() {
            return Parting::Close;
        }
        if reader.is_done() && self.received.is_empty() {
            return if self.keep() { Parting::Keep } else { Parting::Close };
        }
        self.response = ResponseHalf::Tail { reader, reusable, seen: 0 };
        Parting::AwaitTail
    }

    /// True if no part of an answer is left to read.
    fn keep(&mut self) -> bool {
        self.response = ResponseHalf::None;
        self.request == RequestHalf::Written && self.received.is_empty()
    }

    /// Reads bytes of the end of an answer.
    pub(crate) fn read_tail(&mut self, mut data: &[u8]) -> Parting {
        let ResponseHalf::Tail { reader, seen, .. } = &mut self.response else { return Parting::Close };
        *seen = seen.saturating_add(data.len() as u32);
        while !reader.is_done() && (*seen as usize) <= TAIL_BYTES_MAX {
            match reader.next(data) {
                Ok(piece) if piece.consumed > 0 || piece.done => data = &data[piece.consumed..],
                Ok(_) => return Parting::AwaitTail,
                Err(_) => return Parting::Close,
            }
        }
        match reader.is_done() && data.is_empty() && self.keep() {
            true => Parting::Keep,
            false => Parting::Close,
        }
    }

    /// Bytes of storage in its buffers.
    pub(crate) fn storage(&self) -> usize {
        self.queue.capacity() + self.received.capacity()
    }

    /// Returns all storage.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.queue.release(pool);
        self.received.release(pool);
    }
}

/// Idle connections by provider index. Last in, first out: the most recent one is used, the others age out.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    by_provider: Vec<Vec<ProviderId>>,
}

impl Idle {
    /// The connection used last, if there is one.
    pub(crate) fn take(&mut self, provider: usize) -> Option<ProviderId> {
        self.by_provider.get_mut(provider)?.pop()
    }

    /// Keeps a connection. Returns the oldest one, to be closed, if there are now more than `max`.
    pub(crate) fn put(&mut self, provider: usize, id: ProviderId, max: usize) -> Option<ProviderId> {
        if self.by_provider.len() <= provider {
            self.by_provider.resize_with(provider + 1, Vec::new);
        }
        let list = &mut self.by_provider[provider];
        if list.capacity() == 0 {
            // Growing during a burst would leave storage behind it that stays.
            list.reserve_exact(max.min(ROOM_MAX) + 1);
        }
        list.push(id);
        (list.len() > max).then(|| list.remove(0))
    }

    /// The oldest connection of the provider with most of them.
    pub(crate) fn oldest(&self) -> Option<ProviderId> {
        self.by_provider.iter().max_by_key(|list| list.len())?.first().copied()
    }

    /// Forgets a connection that has closed.
    pub(crate) fn forget(&mut self, provider: usize, id: ProviderId) {
        if let Some(list) = self.by_provider.get_mut(provider) {
            list.retain(|other| *other != id);
        }
    }

    /// Takes out all idle connections.
    pub(crate) fn drain(&mut self) -> Vec<ProviderId> {
        self.by_provider.iter_mut().flat_map(std::mem::take).collect()
    }

    /// Number of idle connections.
    pub(crate) fn len(&self) -> usize {
        self.by_provider.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_in_is_first_out_and_the_oldest_is_closed() {
        let mut idle = Idle::default();
        let id = |slot| ProviderId::new(slot, 0);
        assert_eq!(idle.put(1, id(1), 2), None);
        assert_eq!(idle.put(1, id(2), 2), None);
        assert_eq!(idle.put(1, id(3), 2), Some(id(1)));
        assert_eq!(idle.put(0, id(4), 2), None);
        assert_eq!(idle.oldest(), Some(id(2)));
        assert_eq!((idle.take(1), idle.take(0), idle.len()), (Some(id(3)), Some(id(4)), 1));
        idle.forget(1, id(2));
        assert_eq!(idle.take(1), None);
    }
}
