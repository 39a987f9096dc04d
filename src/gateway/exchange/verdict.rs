//! Reports the result of an attempt to the breakers, and to the log if the target cools down or recovers. Every attempt
//! ends exactly once, whatever the reason.

use super::fault::{Fault, refuses_credential, wants_rest};
use super::state::{Attempt, Exchange, State};
use crate::gateway::cx::Cx;
use crate::gateway::provider::breaker::{Begun, Caller, FailedAttempt, place_of};
use crate::gateway::provider::rate_limits::RateLimitHeaders;
use crate::policy::catalog::Target;
use crate::policy::cause::Cause;
use crate::wire::head::ResponseHead;

impl Exchange {
    /// The target of the present attempt has given its whole answer.
    pub(super) fn target_succeeded(&mut self, cx: &mut Cx) {
        let Some(mut at) = self.attempt().copied() else { return };
        if let Some((_, target, _)) = self.route(&at)
            && cx.breakers.served(target, at.begun_as.cooling, cx.now.mono)
        {
            cx.log_target(&target.label, None);
        }
        at.begun_as = Begun::default();
        self.landed(&mut at, cx);
        if let State::Answering(answering) = &mut self.state {
            answering.at = at;
        }
    }

    /// The present attempt has ended: it is in flight no more.
    fn landed(&self, at: &mut Attempt, cx: &mut Cx) {
        self.heard(at, None, cx);
        if std::mem::take(&mut at.flies)
            && let Some((_, target, _)) = self.route(at)
        {
            cx.breakers.left(target);
        }
    }

    /// The target that it flies at.
    pub(crate) fn flies_at(&self) -> Option<&Target> {
        self.attempt().filter(|at| at.flies).and_then(|_| self.target())
    }

    /// Evaluates the head of an answer for the credential that was sent.
    pub(super) fn heard_head(&self, at: &mut Attempt, head: &ResponseHead, bytes: &[u8], cx: &mut Cx) {
        let Some((_, target, provider)) = self.route(at) else { return };
        let cools_down = wants_rest(head.status);
        let reads = head.has_allowances || cools_down;
        let said = reads.then(|| RateLimitHeaders::read(&bytes[..(head.len as usize).min(bytes.len())], cx.now.unix));
        self.heard(at, said.as_ref(), cx);
        let (rested, now) = (at.begun_as.cooling, cx.now.mono);
        let cause = Cause::status(head.status);
        if let Some(said) = said.filter(|_| cools_down)
            && let Some(wait) = cx.breakers.rest(target, &said, rested, now)
        {
            cx.log_target(&target.label, Some((cause, wait)));
        }
        // The refused secret may be an older one: then nothing cools down.
        if !refuses_credential(head.status) || self.has_newer_secret(at, cx) {
            return;
        }
        // Any other status than 401 may be about the request.
        let caller = (head.status != 401).then(|| self.whose(cx));
        if let Some(wait) = cx.breakers.refused(target, caller, rested, now) {
            cx.log_target(&provider.place_of(target.credential), Some((cause, wait)));
            if head.status == 401
                && let Some(credential) = provider.credentials.get(target.credential)
            {
                cx.renew(credential.secret.origin());
            }
        }
    }

    /// The present attempt has an answer, or will have none.
    fn heard(&self, at: &mut Attempt, said: Option<&RateLimitHeaders>, cx: &mut Cx) {
        if std::mem::take(&mut at.unheard)
            && let Some((_, target, _)) = self.route(at)
        {
            cx.breakers.heard(target, &self.needs(), said, cx.now.mono);
        }
    }

    /// The attempt failed, regardless of the cause.
    pub(super) fn target_failed(&mut self, at: &mut Attempt, fault: &Fault, cx: &mut Cx) {
        self.note_failed(at, fault, cx.now.mono);
        self.landed(at, cx);
        let Some((_, target, _)) = self.route(at) else { return };
        let (Begun { trial, cooling }, now) = (std::mem::take(&mut at.begun_as), cx.now.mono);
        cx.breakers.ended(target, fault.end());
        if fault.is_targets_own() || fault.asks_for_rest() {
            cx.breakers.troubled(target, fault.cause(), cx.now.unix);
        }
        if fault.is_targets_own() {
            let failure = FailedAttempt { caller: self.whose(cx), live: cx.keys.live(cx.now.unix), trial };
            if cx.breakers.failed(target, failure, &target.limits, now) {
                cx.log_target(&place_of(&target.label), Some((fault.cause(), target.limits.breaker_cooldown)));
            }
        } else if fault.asks_for_rest() {
            if trial {
                cx.breakers.no_verdict(target);
            }
        } else if cx.breakers.succeeded(target, cooling, now) {
            cx.log_target(&target.label, None);
        }
    }

    /// The caller of the request.
    fn whose(&self, cx: &Cx) -> Caller {
        self.request.found.key.map_or_else(Caller::default, |key| Caller::of(cx.keys.get(key)))
    }

    /// An attempt ends without a result for its target.
    pub(super) fn no_verdict(&self, at: &mut Attempt, cx: &mut Cx) {
        self.landed(at, cx);
        if std::mem::take(&mut at.begun_as).trial
            && let Some((_, target, _)) = self.route(at)
        {
            cx.breakers.no_verdict(target);
        }
    }
}
