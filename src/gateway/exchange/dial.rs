//! The connection of an attempt: a kept one, or dials to the addresses of the provider's host. The dial to a slow
//! address continues while the next ones are tried (RFC 8305); all of them share `connect_timeout`.

use super::event::{Dial, DriverCall, Effect};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::state::{AttemptStage, Attempting, Dials, NextStep};
use crate::base::limits::{ADDRESS_WAIT, ADDRESSES_TRIED_MAX};
use crate::base::seam::DialError;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::ids::ProviderId;
use crate::policy::config::Provider;
use std::net::SocketAddr;

impl Attempting {
    /// The request is written completely: the wait for a response begins.
    pub(super) fn sent(&mut self, job: &mut RequestJob, now: Mono) -> Effect {
        let by = match (job.request.asked.is_some_and(|asked| asked.stream), job.target()) {
            (true, Some(target)) => now.after(target.limits.first_byte_timeout),
            _ => Mono::NEVER,
        };
        job.attempt.sent = now;
        Effect::rearm_if_earlier(by, std::mem::replace(&mut self.by, by))
    }

    /// This connection is established: closes the other dial, and remembers the address if it was not the first.
    pub(super) fn dialed(&mut self, job: &RequestJob, provider: ProviderId, call: &mut DriverCall) -> Effect {
        let (Dials { newest, earlier }, tried) = (self.stage.dials(), job.attempt.addresses);
        let (order, other) = match earlier {
            Some((earlier, order)) if earlier == provider => (order, newest),
            _ => (tried.order(), earlier.map(|(earlier, _)| earlier)),
        };
        if let Some(other) = other {
            call.out.release(other, false);
        }
        (self.stage, self.by) = (AttemptStage::Open(provider), Mono::NEVER);
        if order > 0
            && let Some(provider) = job.target_provider()
            && let Some(addr) = tried.address(order, addresses(provider, call.cx))
        {
            let (host, port) = provider.next_hop();
            call.cx.upstreams.names.has_answered(host, port, addr);
        }
        Effect::Send(provider)
    }

    /// A dial has failed: tries the next address of the host, or waits for the other dial, and otherwise fails the
    /// attempt. The connection is closed already.
    pub(super) fn dial_failed(
        mut self,
        job: &mut RequestJob,
        id: ProviderId,
        why: DialError,
        call: &mut DriverCall,
    ) -> NextStep {
        let Dials { newest, earlier } = self.stage.dials();
        if newest.is_some_and(|newest| newest != id) {
            self.stage = AttemptStage::Dialing(Dials { newest, earlier: None });
            return self.goes_on(Effect::Nothing);
        }
        let earlier = earlier.filter(|(earlier, _)| *earlier != id);
        self.stage = AttemptStage::Dialing(Dials { newest: None, earlier });
        if matches!(why, DialError::Connect(_)) && next_address(job, call.cx) {
            return self.dial_again(job, call);
        }
        match earlier.is_some() {
            true => self.goes_on(Effect::Rearm),
            false => self.failed(job, Fault::from(FaultKind::Dial(why)), false, call),
        }
    }

    /// A dial takes long: the next address is tried while the slow dial continues.
    pub(super) fn dial_late(mut self, dials: Dials, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        let Dials { newest, earlier } = dials;
        let timeout = job.target().map_or_else(Default::default, |target| target.limits.connect_timeout);
        let (order, until) = (job.attempt.addresses.order(), job.attempt.begun.after(timeout));
        if until <= call.cx.now.mono {
            return self.failed(job, Fault::from(FaultKind::ConnectTimeout), false, call);
        }
        if !next_address(job, call.cx) {
            // Fewer addresses are known than when it began.
            self.by = until;
            return self.goes_on(Effect::Rearm);
        }
        let slow = earlier.or(newest.map(|newest| (newest, order)));
        self.stage = AttemptStage::Dialing(Dials { newest: None, earlier: slow });
        if let (Some(_), Some(newest)) = (earlier, newest) {
            call.out.release(newest, false);
        }
        self.dial_again(job, call)
    }

    /// The host's addresses are known, or their lookup has failed.
    pub(super) fn resolved(
        self,
        job: &mut RequestJob,
        failed: Option<&'static str>,
        call: &mut DriverCall,
    ) -> NextStep {
        match failed {
            Some(why) => {
                let fault = job.target_provider().map_or(FaultKind::Name(why).into(), |one| nameless(one, why));
                self.failed(job, fault, false, call)
            }
            None => self.dial_again(job, call),
        }
    }

    fn dial_again(mut self, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        match job.connect(Some(self.stage.dials()), call.cx) {
            Ok((stage, by, effect)) => {
                (self.stage, self.by) = (stage, by);
                self.goes_on(effect)
            }
            Err(fault) => self.failed(job, *fault, false, call),
        }
    }
}

impl RequestJob {
    /// Connection for the present target; a new one, not a kept one, if it is dialed `again`.
    pub(super) fn connect(
        &mut self,
        again: Option<Dials>,
        cx: &mut Cx,
    ) -> Result<(AttemptStage, Mono, Effect), Box<Fault>> {
        let Some((_, target, provider)) = self.route() else {
            return Err(Box::new(Fault::from(FaultKind::Internal)));
        };
        // Kept connections belong to the present configuration; providers have other numbers in another one.
        let present = self.request.setup.epoch == cx.setup.epoch;
        if present
            && again.is_none()
            && !self.attempt.needs_fresh()
            // A form cannot be sent again if the connection turns out to be closed.
            && !self.request.is_upload()
            && let Some(kept) = cx.upstreams.idle.take(target.provider)
        {
            return Ok((AttemptStage::Open(kept), Mono::NEVER, Effect::Send(kept)));
        }
        let (timeout, now, mut tried) = (target.limits.connect_timeout, cx.now.mono, self.attempt.addresses);
        let until = self.attempt.begun.after(timeout);
        let (host, port) = provider.next_hop();
        let answered = if tried.order() == 0 { cx.upstreams.names.answered(host, port) } else { None };
        let known = addresses(provider, cx);
        if tried.order() == 0 {
            let lead = known.iter().position(|addr| Some(*addr) == answered).unwrap_or(0);
            tried.0 = u8::try_from(lead << 2).unwrap_or(0);
        }
        let Some(addr) = tried.address(tried.order(), known) else {
            return match cx.upstreams.names.is_asked(host, port) {
                Ok(()) => Ok((AttemptStage::Resolving, until, Effect::Rearm)),
                Err(why) => Err(Box::new(nameless(provider, why))),
            };
        };
        let tries = known.len().min(ADDRESSES_TRIED_MAX);
        let late = match usize::from(tried.order()) + 1 < tries {
            true => until.min(now.after(ADDRESS_WAIT.min(timeout / tries as u32))),
            false => until,
        };
        let until = if tries > 1 { until } else { Mono::NEVER };
        let dial = Dial { provider: target.provider, addr, authority: provider.authority, present, until };
        self.attempt.addresses = tried;
        // The name of the connection comes with `dialing`.
        let dials = Dials { newest: None, earlier: again.and_then(|dials| dials.earlier) };
        Ok((AttemptStage::Dialing(dials), late, Effect::Dial(dial)))
    }
}

/// Selects the next address of the host; false if none is left.
fn next_address(job: &mut RequestJob, cx: &mut Cx) -> bool {
    let known = job.target_provider().map_or(0, |provider| addresses(provider, cx).len());
    let tried = &mut job.attempt.addresses;
    let is_left = usize::from(tried.order()) + 1 < known.min(ADDRESSES_TRIED_MAX);
    tried.0 += u8::from(is_left);
    is_left
}

/// The known addresses of a provider's host; starts a lookup when one is due.
fn addresses<'a>(provider: &'a Provider, cx: &'a mut Cx) -> &'a [SocketAddr] {
    match provider.addresses.is_empty() {
        false => &provider.addresses,
        true => {
            let (host, port) = provider.next_hop();
            cx.upstreams.names.look_up(host, port, cx.now.mono, &mut cx.commands.actions)
        }
    }
}

/// The host to connect to has no address.
fn nameless(provider: &Provider, why: &'static str) -> Fault {
    let why = if provider.proxy.is_some() { "no address of the proxy" } else { why };
    Fault::from(FaultKind::Name(why))
}
