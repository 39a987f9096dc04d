//! Reports the result of an attempt to the breakers, and to the log if the target cools down or recovers. The breakers
//! get one result for each attempt, whatever the reason for its end.

use super::dial::avoid;
use crate::base::time::{Mono, Unix};
use crate::gateway::counters::AttemptEnd;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::fault::{CoolDownFor, Fault, FaultKind, refuses_credential, wants_rest};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::Request;
use crate::gateway::provider::breaker::{
    Begins, Begun, Breakers, Caller, FailedAttempt, Flight, UNANSWERED, without_credential,
};
use crate::gateway::provider::rate_limits::RateLimitHeaders;
use crate::gateway::upkeep::trouble::target_alert;
use crate::policy::catalog::Target;
use crate::policy::cause::Cause;
use crate::policy::keys::{Keys, LiveKeys};
use crate::wire::head::ResponseHead;
use std::time::Duration;

impl RequestJob {
    /// The target of the present attempt has sent its complete response.
    pub(crate) fn target_succeeded(&mut self, cx: &mut Cx) {
        let begun = self.land(cx);
        if let Some(target) = self.target()
            && cx.upstreams.breakers.served(target, begun.cooling, cx.now.mono)
        {
            cx.log_target(&target.label, None);
        }
    }

    /// The present attempt has ended and is not in flight any more. Returns how it began.
    fn land(&mut self, cx: &mut Cx) -> Begun {
        let (Some(mut flight), Some(target)) = (self.attempt.flight.take(), self.target()) else {
            return Begun::default();
        };
        cx.upstreams.breakers.form_arrived(target, &mut flight, self.request.found.key);
        cx.upstreams.breakers.land(target, flight, &self.request.needs(), cx.now.mono)
    }

    /// The attempt that is in flight, and its target.
    pub(crate) fn flight(&self) -> Option<(&Target, &Flight)> {
        self.target().zip(self.attempt.flight.as_ref())
    }

    /// The target's number and the beginning of the attempt that is in flight, if it has no answer yet. The head of a
    /// stream is no answer.
    pub(crate) fn awaits_answer(&self) -> Option<(u64, Mono)> {
        let has_none = self.attempt.first == Mono::NEVER
            || (self.request.asked.is_some_and(|asked| asked.stream) && !self.attempt.has_content);
        let (target, _) = self.flight().filter(|_| has_none)?;
        Some((target.seed, self.attempt.begun))
    }

    /// The client leaves. If it has waited for an answer, this counts for the state of the target.
    #[cold]
    pub(crate) fn note_unanswered(&self, cx: &mut Cx) {
        let Some((_, begun)) = self.awaits_answer() else { return };
        let waited = Duration::from_micros(cx.now.mono.micros_since(begun));
        if waited >= UNANSWERED
            && let Some(target) = self.target()
        {
            let begun = Unix(cx.now.unix.0.saturating_sub(waited.as_millis() as u64));
            cx.upstreams.breakers.unanswered(target, self.request.whose(cx), begun, cx.now.unix);
        }
    }

    /// Evaluates the head of an answer for the credential that was sent. True if the body of a 429 must decide who has
    /// to wait.
    pub(crate) fn heard_head(
        &self,
        flight: &mut Option<Flight>,
        head: &ResponseHead,
        bytes: &[u8],
        cx: &mut Cx,
    ) -> bool {
        let Some(target) = self.target() else { return false };
        let is_error = head.status >= 400;
        let (cools_down, refuses) = (is_error && wants_rest(head.status), is_error && refuses_credential(head.status));
        let reads = head.has_allowances || cools_down;
        if (reads || refuses) && self.takes_clients() {
            // This status is about the client's own account, so it must not count against the target.
            if let Some(flight) = flight {
                cx.upstreams.breakers.answer_begins(target, flight, &self.request.needs(), None, cx.now.mono);
            }
            return false;
        }
        let said = reads.then(|| RateLimitHeaders::read(&bytes[..(head.len as usize).min(bytes.len())], cx.now.unix));
        let (mut rested, now) = (false, cx.now.mono);
        if let Some(flight) = flight {
            cx.upstreams.breakers.answer_begins(target, flight, &self.request.needs(), said.as_ref(), now);
            rested = flight.begun.cooling;
        }
        if !is_error {
            return false;
        }
        let cause = Cause::status(head.status);
        if let Some(said) = said.filter(|_| cools_down) {
            if head.status == 429 && !said.is_stated() {
                return !said.is_less_than(&self.request.needs());
            }
            cool_down(self, &said, None, rested, cause, cx);
        }
        if refuses {
            // A status other than 401 may concern the request.
            let caller = (head.status != 401).then(|| self.request.whose(cx));
            credential_refused(self, caller, rested, cause, cx);
        }
        false
    }

    /// The attempt failed, regardless of the cause.
    pub(crate) fn target_failed(&mut self, fault: &Fault, cx: &mut Cx) {
        self.note_failed(fault, cx.now.mono);
        if let FaultKind::Closed(_) | FaultKind::BadHead(_) = fault.kind {
            avoid(self, usize::from(self.attempt.address).checked_sub(1), cx);
        }
        let (Begun { trial, cooling }, now) = (self.land(cx), cx.now.mono);
        if let Some(owners) = fault.cool_down {
            let is_one = owners == CoolDownFor::Owner && cx.access.keys.live(cx.now.unix) == LiveKeys::SeveralOwners;
            let caller = is_one.then(|| self.request.whose(cx));
            match fault.kind {
                FaultKind::Account(_) => credential_refused(self, caller, cooling, fault.cause(), cx),
                _ => cool_down(self, &RateLimitHeaders::default(), caller, cooling, fault.cause(), cx),
            }
        }
        let Some(target) = self.target() else { return };
        cx.upstreams.breakers.ended(target, fault.end());
        if fault.is_targets_own() || fault.asks_for_rest() {
            cx.upstreams.breakers.troubled(target, self.request.whose(cx), fault.cause(), cx.now.unix);
            cx.upstreams.breakers.waited(target, now.micros_since(self.attempt.begun) / 1000);
        }
        if fault.is_targets_own() {
            let (caller, live) = (self.request.whose(cx), cx.access.keys.live(cx.now.unix));
            let unsent = match fault.kind {
                // Each further request would wait as long.
                FaultKind::ConnectTimeout => u32::MAX,
                _ => fault.cause().is_of_connection().into(),
            };
            let failure = FailedAttempt { caller, live, unsent, trial };
            let place = || without_credential(&target.label);
            match cx.upstreams.breakers.failed(target, failure, &target.limits, now) {
                Some(Begins::CoolDown) => {
                    let cool_down = Some(target.limits.breaker_cooldown);
                    cx.log_target(&place(), Some((fault.cause(), cool_down, None)));
                }
                Some(Begins::Failing) => {
                    let advice = target_alert(target, cx).map(|problem| problem.advice);
                    cx.log_target(&place(), Some((fault.cause(), None, advice)));
                }
                None => {}
            }
        } else if fault.asks_for_rest() {
            if trial {
                cx.upstreams.breakers.no_verdict(target);
            }
        } else if cx.upstreams.breakers.succeeded(target, cooling, now) {
            cx.log_target(&target.label, None);
        }
    }

    /// An attempt ends without a result for its target.
    pub(crate) fn no_verdict(&mut self, cx: &mut Cx) {
        if self.land(cx).trial
            && let Some(target) = self.target()
        {
            cx.upstreams.breakers.no_verdict(target);
        }
    }
}

/// Begins a cool-down: a provider has no capacity for more requests of its credential and model; `caller`: of one
/// client.
fn cool_down(
    job: &RequestJob,
    said: &RateLimitHeaders,
    caller: Option<Caller>,
    rested: bool,
    cause: Cause,
    cx: &mut Cx,
) {
    if let Some(target) = job.target()
        && let Some(wait) = cx.upstreams.breakers.rest(target, said, caller, rested, cx.now.mono)
    {
        cx.log_target(&target.label, Some((cause, Some(wait), None)));
    }
}

/// A provider refuses its credential; `caller`: possibly because of the request of one client.
fn credential_refused(job: &RequestJob, caller: Option<Caller>, rested: bool, cause: Cause, cx: &mut Cx) {
    // If the refused secret is an older one, the credential does not cool down.
    if job.has_newer_secret(cx) {
        return;
    }
    let Some((_, target, provider)) = job.route() else { return };
    let Some(wait) = cx.upstreams.breakers.refused(target, caller, rested, cx.now.mono) else { return };
    cx.log_target(&provider.credential_name(target.credential), Some((cause, Some(wait), None)));
    if caller.is_none()
        && let Some(credential) = provider.credentials.get(target.credential)
    {
        cx.renew(credential.secret.origin());
    }
}

impl Request {
    /// The caller of the request.
    fn whose(&self, cx: &Cx) -> Caller {
        self.caller(&cx.access.keys)
    }

    fn caller(&self, keys: &Keys) -> Caller {
        self.found.key.map_or_else(Caller::default, |key| Caller::from_key(keys.get(key)))
    }

    /// Owner of the request's key, while a credential cools down for one owner; otherwise 0.
    pub(crate) fn owner(&self, cx: &Cx) -> u64 {
        self.owner_of(&cx.upstreams.breakers, &cx.access.keys, cx.now.mono)
    }

    pub(crate) fn owner_of(&self, breakers: &Breakers, keys: &Keys, now: Mono) -> u64 {
        if breakers.own_until > now { self.caller(keys).owner } else { 0 }
    }
}

/// Ends the attempt under way; its target is not to blame.
pub(crate) fn abandon(job: &RequestJob, cx: &mut Cx) {
    if let Some(target) = job.target() {
        cx.upstreams.breakers.ended(target, AttemptEnd::Abandoned);
    }
}
