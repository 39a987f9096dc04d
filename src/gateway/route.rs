//! Which target an attempt goes to, on which connection; and what follows a failed one. The commit point stands here:
//! once part of an answer has been relayed there is no other attempt.

use super::Gateway;
use super::breaker::Breakers;
use super::exchange::{Commit, Exchange, Phase};
use super::fault::{Fault, FaultKind};
use super::outgoing::{Draft, Failed};
use super::relay::Relay;
use super::upstream::{Phase as UpstreamPhase, Upstream, conn};
use crate::base::buf::Pool;
use crate::base::limits::SEND_SLICE;
use crate::base::seam::{Action, DialError};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use crate::dialect::{self, Invalid, Rewrite, rewrite};
use crate::policy::refusal::Refusal;
use std::net::SocketAddr;
use std::sync::Arc;

/// Addresses of one host that are tried before its target counts as unreachable.
const ADDRESSES_TRIED_MAX: usize = 3;

impl Gateway {
    /// Chooses the target of the next attempt; false when none is left.
    pub(crate) fn choose_target(&mut self, xid: Id<Exchange>, now: Now) -> bool {
        let Some(ex) = self.exchanges.get_mut(xid) else { return false };
        let Some(model) = ex.model() else { return false };
        let Some(chosen) = self.breakers.choose(&model.targets, ex.tried, now.mono) else { return false };
        ex.target = chosen as u32;
        ex.tried |= 1u64.checked_shl(chosen as u32).unwrap_or(0);
        ex.fresh_only = false;
        ex.on_trial = true;
        true
    }

    /// The target of the present attempt has answered.
    pub(crate) fn target_succeeded(&mut self, xid: Id<Exchange>) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        if std::mem::take(&mut ex.on_trial)
            && let Some(target) = ex.target()
        {
            self.breakers.succeeded(&target.label);
        }
    }

    fn target_failed(&mut self, xid: Id<Exchange>, fault: &Fault, now: Now) {
        if !fault.is_targets_own() {
            return self.target_succeeded(xid);
        }
        let many_keys = self.keys.len() > 1;
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.on_trial = false;
        if let Some(target) = ex.target() {
            self.breakers.failed(&target.label, ex.finding.key, many_keys, &target.limits, now.mono);
        }
    }

    /// An exchange ends, perhaps in the middle of an attempt.
    pub(crate) fn undecided(&mut self, ex: &mut Exchange) {
        no_verdict(&mut self.breakers, ex);
    }

    /// Begins an attempt at the exchange's present target, whose body has been drafted.
    pub(crate) fn attempt(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.attempts += 1;
        ex.address = 0;
        ex.relay = Relay::None;
        let Some(provider) = ex.target().map(|target| target.provider) else { return };
        // What is kept was dialed under the present configuration; another one's providers have other numbers.
        let present = Arc::ptr_eq(&ex.config, &self.config);
        let kept = if ex.fresh_only || !present { None } else { self.idle.take(provider) };
        match kept {
            Some(upstream) => self.send_on(xid, upstream),
            None => self.dial(xid, now),
        }
    }

    /// Builds the outgoing body for the present target from the client's bytes. False if that is done elsewhere; then
    /// `drafted` follows.
    pub(crate) fn draft_body(&mut self, xid: Id<Exchange>, now: Now) -> Result<bool, Refusal> {
        let work_min = self.work_min;
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(false) };
        let Some(client) = self.clients.get(ex.client) else { return Ok(false) };
        let (_, body) = client.inbound.message();
        let speaks = ex.target().and_then(|target| ex.config.providers.get(target.provider)).map(|p| p.shape);
        let translated = speaks != ex.shape();
        // A second attempt has let go of what the first had taken.
        if translated && ex.hold.is_none() && !self.pool.has_room(body.len()) {
            return Err(Refusal::no_buffers());
        }
        if body.len() > work_min && translated {
            ex.phase = Phase::Drafting;
            self.work_on_request(xid, now);
            return Ok(false);
        }
        let Some(mut draft) = ex.draft.take() else { return Ok(false) };
        draft.rewind(&mut self.pool);
        let built = build_body(ex, &mut draft, body, &mut self.pool);
        ex.draft = Some(draft);
        built.map(|()| true)
    }

    /// Opens a connection to the present target, once its host has an address.
    fn dial(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let Some(target) = ex.target() else { return };
        let (index, timeout) = (target.provider, target.limits.connect_timeout);
        let Some(provider) = ex.config.providers.get(index) else { return };
        let known: &[SocketAddr] = match provider.addresses.is_empty() {
            false => &provider.addresses,
            true => self.names.look_up(&provider.host, provider.port, now.mono, &mut self.actions),
        };
        let addr = match known.get(ex.address as usize % known.len().max(1)).copied() {
            Some(addr) => addr,
            None if !self.names.is_asked(&provider.host, provider.port) => {
                return self.attempt_failed(xid, Fault::from(FaultKind::Name), now);
            }
            None => {
                ex.phase = Phase::Naming;
                ex.naming = now.mono.after(timeout);
                let cid = ex.client;
                return self.arm_client(cid);
            }
        };
        let authority = provider.authority;
        let epoch = if Arc::ptr_eq(&ex.config, &self.config) { self.epoch } else { self.epoch.wrapping_sub(1) };
        let upstream = self.upstreams.insert(Upstream::dialing(index, epoch, xid));
        ex.upstream = Some(upstream);
        ex.phase = Phase::Dialing;
        ex.naming = Mono::NEVER;
        self.actions.push(Action::Dial { conn: conn(upstream), addr, authority });
        self.wait_upstream(upstream, now.mono.after(timeout));
        self.forget_stale_timers();
    }

    /// A host's addresses have come, or will not: every exchange that waits for them goes on.
    pub(crate) fn named(&mut self, host: &Arc<str>, port: u16, addrs: Vec<SocketAddr>, now: Now) {
        let failed = addrs.is_empty();
        self.names.learned(host, port, addrs, now.mono);
        let waiting: Vec<Id<Exchange>> = self
            .exchanges
            .iter()
            .filter(|(_, ex)| ex.phase == Phase::Naming && waits_for(ex, host, port))
            .map(|(id, _)| id)
            .collect();
        for xid in waiting {
            match failed {
                true => self.attempt_failed(xid, Fault::from(FaultKind::Name), now),
                false => self.dial(xid, now),
            }
        }
    }

    /// A dial has succeeded.
    pub(crate) fn dialed(&mut self, uid: Id<Upstream>) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        upstream.phase = UpstreamPhase::Busy;
        match upstream.exchange {
            Some(xid) => self.send_on(xid, uid),
            None => self.close_upstream(uid),
        }
    }

    /// A dial has failed: the next address of the host, then whatever follows a failed attempt.
    pub(crate) fn dial_failed(&mut self, uid: Id<Upstream>, why: DialError, now: Now) {
        let Some(xid) = self.forget_upstream(uid) else { return };
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.upstream = None;
        ex.address += 1;
        let known = self.addresses_of(xid, now);
        let Some(ex) = self.exchanges.get(xid) else { return };
        if why == DialError::Connect && (ex.address as usize) < known.min(ADDRESSES_TRIED_MAX) {
            self.dial(xid, now);
        } else {
            self.attempt_failed(xid, Fault::from(FaultKind::Dial(why)), now);
        }
    }

    fn addresses_of(&mut self, xid: Id<Exchange>, now: Now) -> usize {
        let Some(ex) = self.exchanges.get(xid) else { return 0 };
        let provider = ex.target().and_then(|target| ex.config.providers.get(target.provider));
        match provider {
            Some(provider) if provider.addresses.is_empty() => {
                self.names.look_up(&provider.host, provider.port, now.mono, &mut self.actions).len()
            }
            Some(provider) => provider.addresses.len(),
            None => 0,
        }
    }

    /// Writes the request to an open connection.
    fn send_on(&mut self, xid: Id<Exchange>, uid: Id<Upstream>) {
        let (Some(ex), Some(upstream)) = (self.exchanges.get_mut(xid), self.upstreams.get_mut(uid)) else { return };
        let (Some(client), Some(draft)) = (self.clients.get(ex.client), ex.draft.as_mut()) else { return };
        ex.upstream = Some(uid);
        ex.phase = Phase::Sending;
        upstream.begin(xid);
        let (head, body) = client.inbound.message();
        let length = draft.length();
        let Some(template) = ex.outgoing.template(upstream.provider) else { return };
        let all = upstream.tx.edit(&mut self.pool, |out| {
            let same_shape = draft.carry.is_none().then_some((&draft.head, head));
            template.write(length, same_shape, out);
            draft.write_some(body, SEND_SLICE, out)
        });
        upstream.sent_all = all;
        self.dirty.push(conn(uid));
        self.wait_upstream(uid, Mono::NEVER);
    }

    /// The world has written to an upstream: give it more of the body, or begin to wait for the answer.
    pub(crate) fn upstream_wrote(&mut self, uid: Id<Upstream>, count: usize, now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        upstream.tx.consume(&mut self.pool, count);
        if !upstream.tx.is_empty() {
            return;
        }
        let Some((xid, ex)) = upstream.exchange.and_then(|id| Some((id, self.exchanges.get_mut(id)?))) else { return };
        if ex.phase != Phase::Sending {
            return;
        }
        if upstream.sent_all {
            ex.phase = Phase::Waiting;
            ex.times.sent = now.mono;
            return self.await_answer(xid, uid, now);
        }
        let (Some(client), Some(draft)) = (self.clients.get(ex.client), ex.draft.as_mut()) else { return };
        let (_, body) = client.inbound.message();
        upstream.sent_all = upstream.tx.edit(&mut self.pool, |out| draft.write_some(body, SEND_SLICE, out));
        self.dirty.push(conn(uid));
    }

    fn await_answer(&mut self, xid: Id<Exchange>, uid: Id<Upstream>, now: Now) {
        let Some(ex) = self.exchanges.get(xid) else { return };
        if let (true, Some(target)) = (ex.stream, ex.target()) {
            let due = now.mono.after(target.limits.first_byte_timeout);
            self.wait_upstream(uid, due);
        }
    }

    /// An attempt has failed: a free one on a fresh connection, the next target, or the end.
    pub(crate) fn attempt_failed(&mut self, xid: Id<Exchange>, fault: Fault, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let upstream = ex.upstream.take();
        let reused = upstream.and_then(|uid| self.upstreams.get(uid)).is_some_and(|u| u.used > 1);
        if let Some(uid) = upstream {
            self.close_upstream(uid);
        }
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.naming = Mono::NEVER;
        ex.working = None;
        ex.held.release(&mut self.pool);
        if let Relay::Stream(flow) = &mut ex.relay {
            flow.release(&mut self.pool);
        }
        ex.last.release(&mut self.pool);
        if ex.commit == Commit::Relayed {
            self.target_failed(xid, &fault, now);
            return self.end_with_fault(xid, fault, now);
        }
        if fault.is_stale_connection() && reused && !ex.fresh_only {
            ex.fresh_only = true;
            ex.attempts -= 1;
            if let Some(draft) = ex.draft.as_mut() {
                draft.restart();
            }
            self.stats.stale_retries += 1;
            return self.attempt(xid, now);
        }
        let limit = ex.target().map_or(1, |target| target.limits.attempts);
        let may_go_on = fault.may_try_next() && ex.attempts < limit;
        self.target_failed(xid, &fault, now);
        match may_go_on {
            true => self.try_next(xid, fault, now),
            false => self.end_with_fault(xid, fault, now),
        }
    }

    /// Begins an attempt at the next target after `fault`. One that the request cannot be written for is passed over:
    /// the client has asked for nothing wrong, since an earlier target took it.
    fn try_next(&mut self, xid: Id<Exchange>, fault: Fault, now: Now) {
        let Some(target) = self.exchanges.get(xid).map(|ex| ex.target) else { return };
        if !self.choose_target(xid, now) {
            return self.end_with_fault(xid, fault, now);
        }
        self.note_failed(xid, Some(Failed { fault, target }));
        match self.draft_body(xid, now) {
            Ok(true) => {
                self.note_failed(xid, None);
                self.attempt(xid, now);
            }
            Ok(false) => {}
            Err(_) => {
                if let Some(failed) = self.note_failed(xid, None) {
                    self.pass_over(xid, failed, now);
                }
            }
        }
    }

    /// Keeps the attempt before with the draft, wherever that is worked on; returns the one kept until now.
    fn note_failed(&mut self, xid: Id<Exchange>, failed: Option<Failed>) -> Option<Failed> {
        let draft = self.exchanges.get_mut(xid)?.draft.as_mut()?;
        std::mem::replace(&mut draft.failed, failed)
    }

    /// The request cannot be written for the target that was chosen after `failed`.
    pub(crate) fn pass_over(&mut self, xid: Id<Exchange>, failed: Failed, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        no_verdict(&mut self.breakers, ex);
        ex.target = failed.target;
        self.try_next(xid, failed.fault, now);
    }
}

/// The present attempt ends without a verdict on its target: the next request may try.
fn no_verdict(breakers: &mut Breakers, ex: &mut Exchange) {
    if std::mem::take(&mut ex.on_trial)
        && let Some(target) = ex.target()
    {
        breakers.undecided(&target.label);
    }
}

fn waits_for(ex: &Exchange, host: &str, port: u16) -> bool {
    let provider = ex.target().and_then(|target| ex.config.providers.get(target.provider));
    provider.is_some_and(|provider| *provider.host == *host && provider.port == port)
}

/// The body for the present target: the client's own with our words spliced in, or its translation.
fn build_body(ex: &Exchange, draft: &mut Draft, body: &[u8], pool: &mut Pool) -> Result<(), Refusal> {
    let (Some(model), Some(target), Some(shape)) = (ex.model(), ex.target(), ex.shape()) else { return Ok(()) };
    let Some(provider) = ex.config.providers.get(target.provider) else { return Ok(()) };
    if provider.shape == shape {
        let with = Rewrite {
            model: &target.model,
            ask_usage: provider.stream_usage,
            forward_unknown: provider.forward_unknown,
            drop_params: &model.drop_params,
        };
        let (fields, pieces) = (draft.scan.fields(), &mut draft.pieces);
        let length = draft.text.edit_small(pool, |out| rewrite(shape, body, fields, &with, out, pieces));
        draft.set_length(length);
        return Ok(());
    }
    let capabilities = ex.model.and_then(|index| ex.outgoing.capabilities(index as usize, ex.target as usize));
    let Some(capabilities) = capabilities else { return Ok(()) };
    let to = dialect::Target { model: &target.model, capabilities };
    draft.translate(shape, body, &to, pool).map_err(|Invalid(message)| Refusal::invalid_body(message))
}
