//! Failure on the provider's side: its kind, its cause, and if another attempt may help. Pure: `provider_error` makes a
//! fault from a status, `stream` and `reply` from a body, the driver from the end of a connection, other states from
//! deadlines. `failover` reads it, `verdict` reports it to the breakers, `finish` turns it into the client's error.

use crate::base::seam::{DialError, Ending};
use crate::dialect::{Overflow, Reported};
use crate::gateway::counters::AttemptEnd;
use crate::policy::cause::Cause;
use crate::policy::refusal::{CredentialError, QueueRefusal, Refusal, UpstreamRefusal};
use crate::policy::upstream_limits::UpstreamLimits;

/// The ways in which an attempt at a target fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// The host's name has no address; the reason, for the log.
    Name(&'static str),
    /// TCP or TLS failed, or this host has no resources left.
    Dial(DialError),
    /// `connect_timeout` passed, look-up included.
    ConnectTimeout,
    /// `first_byte_timeout` passed before a stream's first event.
    FirstByteTimeout,
    /// `idle_timeout` passed between two events.
    IdleTimeout,
    /// `request_timeout` passed before a complete response or a stream's first event arrived.
    RequestTimeout,
    /// `request_timeout` passed while the provider was not read: its client did not read, or no buffer was free.
    NotRead,
    /// The connection ended before the first byte of an answer.
    Closed(Ending),
    /// The connection ended, or the stream stopped, in the middle of an answer.
    Incomplete(Ending),
    /// A head that is not HTTP or not supported; the reason, for the log.
    BadHead(&'static str),
    /// A body that does not fit the API format; the reason, for the log and the client.
    BadBody(&'static str),
    /// A response or an event that exceeds the setting with this name; its bytes so far.
    AnswerTooLarge(&'static str, usize),
    /// A stream buffers more of its response than the key's share allows.
    KeyBuffers,
    /// An HTTP status without a response.
    Status(u16),
    /// This status of an error that says that the provider's account is at fault.
    Account(u16),
    /// This status, by which the provider refuses the client's own credential or its limits.
    ClientCredential(u16),
    /// An error inside a response, with the status of such an error outside one.
    InStream(u16),
    /// Every target is at its concurrency limit.
    NoSlot,
    /// The limits of every target, of its provider or its credential, have no room for the request.
    NoRoom,
    /// The provider has asked for a pause, and the model has no other target.
    CoolingDown,
    /// The request's key holds its share of the slots with forms that are still arriving.
    KeySlots,
    /// The queue of the model does not hold the request, or not any longer.
    Queue(QueueRefusal),
    /// The request's key ended while it waited.
    KeyEnded,
    /// The usage record of a complete answer could not be committed, or not in time.
    Store,
    /// Tollgate is stopping and the drain time is over.
    Draining,
    /// A bug of ours was caught.
    Internal,
}

/// True if a provider has no capacity for more requests of this credential and model: it then cools down.
pub(crate) fn wants_rest(status: u16) -> bool {
    matches!(status, 429 | 503 | 529)
}

/// True if a provider refuses a credential, whatever the request.
pub(crate) fn refuses_credential(status: u16) -> bool {
    Cause::status(status).is_of_credential()
}

/// The owners of keys for whom a credential cools down, after a 429 without a stated time or a failure of the account.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CoolDownFor {
    /// After a 429, the owner who met it; all, once a second owner has met the failure.
    Owner,
    All,
}

/// Status of an error in the request itself.
pub(super) const REJECTED: u16 = 400;
/// A failed attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Kind of failure.
    pub(crate) kind: FaultKind,
    /// The provider's message, already masked.
    pub(crate) message: Option<String>,
    /// Seconds the provider asked to wait.
    pub(crate) retry_after: Option<u64>,
    /// The provider's name for it (`error.code`, otherwise `error.type`), already masked.
    pub(crate) code: Option<String>,
    /// The prompt is longer than the model can read.
    pub(crate) overflow: Option<Overflow>,
    /// The field of the request that the provider names (`error.param`), already masked.
    pub(crate) param: Option<String>,
    /// An answer with status 200 had begun.
    pub(crate) answered: bool,
    /// Amount of it that had arrived, with its unit.
    pub(crate) came: Option<(u64, &'static str)>,
    /// Tokens that a rejected complete answer reports.
    pub(crate) reported: Option<Box<Reported>>,
    /// The cool-down that its body decides.
    pub(crate) cool_down: Option<CoolDownFor>,
}

impl From<FaultKind> for Fault {
    fn from(kind: FaultKind) -> Fault {
        let (message, code, param, overflow) = (None, None, None, None);
        let (retry_after, answered, came, reported, cool_down) = (None, false, None, None, None);
        Fault { kind, message, retry_after, code, param, overflow, answered, came, reported, cool_down }
    }
}

impl Fault {
    /// True if the next target may be tried.
    pub(crate) fn may_try_next(&self) -> bool {
        match self.kind {
            // Another model may read it.
            _ if self.overflow.is_some() => true,
            // Any other 4xx is about the request.
            FaultKind::Status(status) => !(400..500).contains(&status) || matches!(status, 401..=404 | 408 | 429),
            FaultKind::Account(_) => true,
            FaultKind::ClientCredential(_) => false,
            FaultKind::Draining | FaultKind::Store | FaultKind::Internal | FaultKind::KeyEnded => false,
            FaultKind::NoRoom
            | FaultKind::NoSlot
            | FaultKind::CoolingDown
            | FaultKind::KeySlots
            | FaultKind::Queue(_) => false,
            FaultKind::RequestTimeout | FaultKind::NotRead | FaultKind::KeyBuffers => false,
            FaultKind::Name(_) | FaultKind::Dial(_) | FaultKind::ConnectTimeout => true,
            FaultKind::FirstByteTimeout | FaultKind::IdleTimeout | FaultKind::Closed(_) | FaultKind::Incomplete(_) => {
                true
            }
            FaultKind::InStream(status) => status != REJECTED,
            FaultKind::BadHead(_) | FaultKind::BadBody(_) | FaultKind::AnswerTooLarge(..) => true,
        }
    }

    /// True if the target itself is to blame, so that it may cool down. Errors of the client, lack of resources here
    /// and the end of the process do not count.
    pub(crate) fn is_targets_own(&self) -> bool {
        match self.kind {
            _ if self.overflow.is_some() => false,
            FaultKind::Status(status) => !matches!(status, 400 | 413 | 422) && !self.asks_for_rest(),
            FaultKind::Account(_) | FaultKind::Dial(DialError::Local(_)) | FaultKind::AnswerTooLarge(..) => false,
            FaultKind::RequestTimeout => true,
            // A fault that another target may not have is this target's own.
            _ => self.may_try_next(),
        }
    }

    /// True if the provider rejects one credential, which then cools down: it has no capacity for more of its requests,
    /// or it refuses it. The health of its server is not affected.
    pub(crate) fn asks_for_rest(&self) -> bool {
        match self.kind {
            FaultKind::Account(_) => true,
            FaultKind::Status(status) => wants_rest(status) || refuses_credential(status),
            _ => false,
        }
    }

    /// Result of the attempt in the metrics.
    pub(crate) fn end(&self) -> AttemptEnd {
        match &self.kind {
            FaultKind::Status(status) | FaultKind::Account(status) | FaultKind::ClientCredential(status) => {
                AttemptEnd::Status(*status)
            }
            FaultKind::Name(_) | FaultKind::Dial(DialError::Connect(_) | DialError::Local(_)) => AttemptEnd::Connect,
            FaultKind::Dial(DialError::Tls(_)) => AttemptEnd::Tls,
            FaultKind::ConnectTimeout
            | FaultKind::FirstByteTimeout
            | FaultKind::IdleTimeout
            | FaultKind::RequestTimeout => AttemptEnd::Timeout,
            FaultKind::NotRead | FaultKind::Draining | FaultKind::Store | FaultKind::Internal => AttemptEnd::Abandoned,
            FaultKind::NoRoom | FaultKind::NoSlot | FaultKind::CoolingDown | FaultKind::KeySlots => {
                AttemptEnd::Abandoned
            }
            FaultKind::Queue(_) | FaultKind::KeyEnded | FaultKind::KeyBuffers => AttemptEnd::Abandoned,
            _ => AttemptEnd::Broken,
        }
    }

    /// The status of the provider's response, if one had begun.
    pub(crate) fn upstream_status(&self) -> Option<u16> {
        match self.kind {
            FaultKind::Status(status) | FaultKind::Account(status) | FaultKind::ClientCredential(status) => {
                Some(status)
            }
            _ => self.answered.then_some(200),
        }
    }

    /// Cause of the failure for the operator.
    pub(crate) fn cause(&self) -> Cause {
        let cause = match &self.kind {
            _ if self.overflow.is_some() => Cause::new("overflow", ""),
            FaultKind::Name(why) => Cause::new("dns", why),
            FaultKind::Dial(DialError::Connect(why)) => Cause::new("connect", why),
            FaultKind::Dial(DialError::Tls(why)) => Cause::new("tls", why),
            FaultKind::Dial(DialError::Local(why)) => Cause::new("local", why),
            FaultKind::ConnectTimeout => Cause::new("timeout", "connect"),
            FaultKind::FirstByteTimeout => Cause::new("timeout", "first_byte"),
            FaultKind::IdleTimeout => Cause::new("timeout", "idle"),
            FaultKind::RequestTimeout => Cause::new("timeout", "request"),
            FaultKind::NotRead => Cause::new("not read", "buffers are full, or the client does not read"),
            FaultKind::Closed(Ending::Fin) => Cause::new("closed", "before an answer"),
            FaultKind::Closed(Ending::Broken) => Cause::new("reset", "before an answer"),
            FaultKind::Incomplete(Ending::Fin) => Cause::new("ended", ""),
            FaultKind::Incomplete(Ending::Broken) => Cause::new("reset", ""),
            FaultKind::BadHead(why) => Cause::new("not HTTP", why),
            FaultKind::BadBody(what) => Cause::new("bad answer", what),
            FaultKind::AnswerTooLarge(setting, _) => Cause::new("too large", setting),
            FaultKind::KeyBuffers => Cause::new("buffers", "of this key"),
            FaultKind::Status(413) => return Cause::request_size(),
            FaultKind::Status(status) | FaultKind::ClientCredential(status) => return Cause::status(*status),
            FaultKind::Account(status) => return Cause::account(*status),
            FaultKind::InStream(_) => Cause::new("error in the answer", ""),
            FaultKind::NoSlot => Cause::new("slots", ""),
            FaultKind::NoRoom => Cause::new("slots", "limits"),
            FaultKind::CoolingDown => Cause::new("cooling down", "the provider asked to wait"),
            FaultKind::KeySlots => Cause::new("slots", "of this key"),
            FaultKind::Queue(why) => Cause::new("queue", why.what()),
            FaultKind::KeyEnded => Cause::new("key", "ended while its request waited"),
            FaultKind::Store => Cause::new("ledger", ""),
            FaultKind::Draining => Cause::new("stopping", ""),
            FaultKind::Internal => Cause::new("internal", ""),
        };
        self.came.map_or(cause, |(count, unit)| cause.after(count, unit))
    }

    /// Error that the client receives when no attempt is left, except for an overflow. `limits` are those of the last
    /// target.
    pub(crate) fn refusal(&self, limits: &UpstreamLimits) -> Refusal {
        let upstream = match &self.kind {
            FaultKind::ClientCredential(status) => {
                return CredentialError::Refused(*status, self.message.clone(), self.retry_after).into();
            }
            FaultKind::NotRead => return Refusal::no_room(limits.request_timeout),
            FaultKind::Dial(DialError::Local(_)) => return Refusal::no_descriptors(),
            FaultKind::KeyBuffers => return Refusal::key_answers(),
            FaultKind::NoSlot => return Refusal::no_slot(),
            FaultKind::NoRoom => return Refusal::no_room_at_targets(self.retry_after.unwrap_or(1)),
            FaultKind::CoolingDown => return Refusal::cooling_down(self.retry_after.unwrap_or(1)),
            FaultKind::KeySlots => return Refusal::key_slots(),
            FaultKind::Queue(why) => return why.refusal(self.retry_after.unwrap_or(1)),
            FaultKind::KeyEnded => return Refusal::bad_key("ended while its request waited"),
            FaultKind::Store => return Refusal::store(),
            FaultKind::Draining => return Refusal::draining(),
            FaultKind::Internal => return Refusal::internal(),
            FaultKind::Status(400 | 413 | 422) | FaultKind::InStream(REJECTED) => {
                UpstreamRefusal::Rejected(self.message.clone())
            }
            FaultKind::Status(401..=404) | FaultKind::Account(_) => UpstreamRefusal::Denied,
            FaultKind::Status(status) => {
                let text = format!("the model's provider failed with status {status}");
                UpstreamRefusal::Failed(Some(text), self.retry_after)
            }
            FaultKind::InStream(401..=404 | 429) => UpstreamRefusal::Failed(None, None),
            FaultKind::InStream(_) => UpstreamRefusal::Failed(self.message.clone(), None),
            FaultKind::ConnectTimeout => UpstreamRefusal::Timeout("connect_timeout", limits.connect_timeout),
            FaultKind::FirstByteTimeout => UpstreamRefusal::Timeout("first_byte_timeout", limits.first_byte_timeout),
            FaultKind::IdleTimeout => UpstreamRefusal::Timeout("idle_timeout", limits.idle_timeout),
            FaultKind::RequestTimeout => UpstreamRefusal::Timeout("request_timeout", limits.request_timeout),
            FaultKind::Name(_) | FaultKind::Dial(_) => UpstreamRefusal::Unreachable,
            FaultKind::Closed(_) | FaultKind::Incomplete(_) | FaultKind::BadHead(_) => UpstreamRefusal::Broken,
            FaultKind::BadBody(what) => UpstreamRefusal::Failed(Some((*what).to_string()), None),
            FaultKind::AnswerTooLarge(setting, _) => UpstreamRefusal::TooLarge(setting),
        };
        upstream.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::refusal::RefusalKind;

    #[test]
    fn provider_statuses_map_to_the_documented_errors() {
        let limits = UpstreamLimits::default();
        let status = |n| Fault::from(FaultKind::Status(n)).refusal(&limits);
        for n in [400, 413, 422] {
            assert_eq!((status(n).status, status(n).kind), (400, RefusalKind::InvalidRequest));
        }
        for n in [401, 402, 403, 404] {
            assert_eq!((status(n).status, status(n).should_retry), (500, Some(false)));
        }
        for n in [302, 408, 429, 500, 503, 529] {
            assert_eq!((status(n).status, status(n).kind), (500, RefusalKind::Upstream));
        }
        assert_eq!(Fault::from(FaultKind::IdleTimeout).refusal(&limits).status, 504);
    }

    #[test]
    fn failures_have_the_documented_labels_in_the_metrics() {
        let label = |kind| Fault::from(kind).end().to_string();
        let [name, connect, tls] = [
            FaultKind::Name("no such name"),
            FaultKind::Dial(DialError::Connect("refused")),
            FaultKind::Dial(DialError::Tls("UnknownIssuer")),
        ];
        assert_eq!([name, connect, tls].map(label), ["connect", "connect", "tls"]);
        assert_eq!([401, 529].map(|status| label(FaultKind::Status(status))), ["401", "529"]);
        let timeouts = [FaultKind::ConnectTimeout, FaultKind::FirstByteTimeout, FaultKind::RequestTimeout];
        assert_eq!(timeouts.map(label), ["timeout"; 3]);
        let broken = [
            FaultKind::Closed(Ending::Fin),
            FaultKind::Incomplete(Ending::Broken),
            FaultKind::BadHead("malformed"),
            FaultKind::BadBody("not JSON"),
            FaultKind::AnswerTooLarge("max_event", 1),
            FaultKind::InStream(500),
        ];
        assert_eq!(broken.map(label), ["broken"; 6]);
        assert_eq!(label(FaultKind::Draining), "abandoned");
    }

    #[test]
    fn only_a_request_that_is_too_large_has_a_cause_of_its_own_among_rejected_ones() {
        let cause = |kind| Fault::from(kind).cause();
        assert_eq!(cause(FaultKind::Status(413)), Cause::request_size());
        assert_eq!([400, 422].map(|n| cause(FaultKind::Status(n))), [400, 422].map(Cause::status));
        assert_eq!(cause(FaultKind::Account(413)), Cause::account(413));
        let rejected = Fault::from(FaultKind::Status(413));
        assert_eq!((rejected.upstream_status(), rejected.end().to_string()), (Some(413), "413".to_string()));
        assert!(!rejected.is_targets_own() && !rejected.may_try_next());
    }

    #[test]
    fn only_failures_that_another_target_may_avoid_are_retried() {
        let next = |kind| Fault::from(kind).may_try_next();
        assert!(next(FaultKind::Status(529)) && next(FaultKind::Status(401)) && next(FaultKind::FirstByteTimeout));
        assert!([201, 204, 302, 304, 307].into_iter().all(|status| next(FaultKind::Status(status))));
        assert!(!next(FaultKind::Status(400)) && !next(FaultKind::Status(422)) && !next(FaultKind::RequestTimeout));
    }
}
