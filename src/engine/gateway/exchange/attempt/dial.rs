//! The connection of an attempt: a kept one, or dials to the addresses of the provider's host. The dial to a slow
//! address continues while the next ones are tried (RFC 8305); all of them share `connect_timeout`. When the dials to
//! all known addresses have failed, the name is looked up again, and the attempt goes on with new addresses.

use crate::base::seam::DialError;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{Dial, DriverCall, Effect};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::state::{AttemptStage, Attempting, Dials, NextStep};
use crate::gateway::ids::ProviderId;
use crate::policy::config::Provider;
use std::net::SocketAddr;
use std::time::Duration;

/// Time after which the next address of a host is tried while the one before has not answered (RFC 8305 section 5); it
/// is shorter if `connect_timeout` would not reach for all.
const ADDRESS_WAIT: Duration = Duration::from_millis(250);

impl Attempting {
    /// The request is written completely: the wait for a response begins.
    pub(crate) fn sent(&mut self, job: &mut RequestJob, now: Mono) -> Effect {
        let by = match (job.request.asked.is_some_and(|asked| asked.stream), job.target()) {
            (true, Some(target)) => now.after(target.limits.first_byte_timeout),
            _ => Mono::NEVER,
        };
        job.attempt.sent = now;
        Effect::rearm_if_earlier(by, std::mem::replace(&mut self.by, by))
    }

    /// This connection is established: closes the other dials, and remembers its address if there was a choice.
    pub(crate) fn dialed(&mut self, job: &mut RequestJob, provider: ProviderId, call: &mut DriverCall) -> Effect {
        let mut dials = self.stage.take_dials();
        let addr = dials.remove(provider);
        dials.list.iter().for_each(|(other, _)| call.out.release(*other, false));
        (self.stage, self.by) = (AttemptStage::Open(provider), Mono::NEVER);
        if let (Some(addr), Some(provider)) = (addr, job.target_provider()) {
            job.attempt.address = tries_first(provider, addr, call.cx);
        }
        Effect::Send(provider)
    }

    /// A dial has failed: tries the next address of the host, or waits for the other dials. If all known addresses have
    /// failed, waits for new ones, and otherwise fails the attempt. The connection is closed already.
    pub(crate) fn dial_failed(
        mut self,
        job: &mut RequestJob,
        id: ProviderId,
        why: DialError,
        call: &mut DriverCall,
    ) -> NextStep {
        let mut dials = self.stage.take_dials();
        let is_newest = dials.list.last().is_some_and(|(newest, _)| *newest == id);
        let addr = dials.remove(id);
        let goes_on = !dials.list.is_empty();
        if let (DialError::Tls(_), Some(addr)) = (&why, addr) {
            let at = job.target_provider().and_then(|provider| position(provider, addr, call.cx));
            avoid(job, at, call.cx);
        }
        if !is_newest {
            self.stage = AttemptStage::Dialing(dials);
            return self.goes_on(Effect::Nothing);
        }
        if let DialError::Connect(why) = why {
            if next_address(job, &dials.tried, call.cx).is_some() {
                return self.dial_again(dials, job, call);
            }
            let until = connect_until(job);
            if !goes_on && call.cx.now.mono < until && ask_again(job, call.cx) {
                dials.unreached = Some(why);
                (self.stage, self.by) = (AttemptStage::Dialing(dials), until);
                return self.goes_on(Effect::Rearm);
            }
        }
        self.stage = AttemptStage::Dialing(dials);
        match goes_on {
            true => self.goes_on(Effect::Rearm),
            false => self.failed(job, Fault::from(FaultKind::Dial(why)), false, call),
        }
    }

    /// A dial takes long: the next address is tried while the slow dials continue.
    pub(crate) fn dial_late(mut self, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        let (mut dials, until) = (self.stage.take_dials(), connect_until(job));
        if until > call.cx.now.mono && next_address(job, &dials.tried, call.cx).is_some() {
            if let Some(slow) = dials.make_room() {
                call.out.release(slow, false);
            }
            return self.dial_again(dials, job, call);
        }
        let unreached = dials.unreached;
        (self.stage, self.by) = (AttemptStage::Dialing(dials), until);
        if until > call.cx.now.mono {
            // Fewer addresses are known than when it began.
            return self.goes_on(Effect::Rearm);
        }
        let kind = unreached.map_or(FaultKind::ConnectTimeout, unreachable);
        // The next attempt may find another address.
        ask_again(job, call.cx);
        self.failed(job, Fault::from(kind), false, call)
    }

    /// The host's addresses are known, or their lookup has failed.
    pub(crate) fn resolved(
        mut self,
        job: &mut RequestJob,
        failed: Option<&'static str>,
        call: &mut DriverCall,
    ) -> NextStep {
        let mut dials = self.stage.take_dials();
        let kind = match (dials.unreached.take(), failed) {
            (Some(why), _) if next_address(job, &dials.tried, call.cx).is_none() => unreachable(why),
            (None, Some(why)) => job.target_provider().map_or(FaultKind::Name(why), |provider| nameless(provider, why)),
            _ => return self.dial_again(dials, job, call),
        };
        self.failed(job, Fault::from(kind), false, call)
    }

    fn dial_again(mut self, dials: Box<Dials>, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        match job.connect(Some(dials), call.cx) {
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
    pub(crate) fn connect(
        &mut self,
        again: Option<Box<Dials>>,
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
        let (now, mut dials) = (cx.now.mono, again.unwrap_or_default());
        let until = self.attempt.begun.after(target.limits.connect_timeout);
        let (host, port) = provider.next_hop();
        let Some((addr, left)) = next_address(self, &dials.tried, cx) else {
            return match cx.upstreams.names.is_asked(host, port) {
                Ok(()) => Ok((AttemptStage::Resolving, until, Effect::Rearm)),
                Err(why) => Err(Box::new(Fault::from(nameless(provider, why)))),
            };
        };
        let late = match left {
            1 => until,
            _ => now.after(ADDRESS_WAIT.min(Duration::from_micros(until.micros_since(now) / left))),
        };
        dials.tried.push(addr);
        let closes = if left > 1 || dials.tried.len() > 1 { until } else { Mono::NEVER };
        let dial = Dial { provider: target.provider, addr, authority: provider.authority, present, until: closes };
        // The name of the connection comes with `dialing`.
        Ok((AttemptStage::Dialing(dials), late, Effect::Dial(dial)))
    }
}

/// Position of an address in the list of its host; `None` if the host has one address.
fn position(provider: &Provider, addr: SocketAddr, cx: &mut Cx) -> Option<usize> {
    let known = addresses(provider, cx);
    known.iter().position(|one| *one == addr).filter(|_| known.len() > 1)
}

/// The address at this position has accepted a connection and sent no answer: if it is the one that is tried first, the
/// next dial begins with the address behind it.
#[cold]
pub(crate) fn avoid(job: &RequestJob, at: Option<usize>, cx: &mut Cx) {
    let (Some(provider), Some(at)) = (job.target_provider(), at) else { return };
    let (host, port) = provider.next_hop();
    let first = cx.upstreams.names.answered(host, port);
    let known = addresses(provider, cx);
    let (Some(present), Some(next)) = (known.get(at), known.iter().cycle().nth(at + 1)) else { return };
    if first.is_none_or(|first| first == *present) {
        let next = *next;
        cx.upstreams.names.has_answered(host, port, next);
    }
}

/// Notes that this address of a host with several is tried first from now on. Returns its position, plus 1; 0 for a
/// host with one address.
fn tries_first(provider: &Provider, addr: SocketAddr, cx: &mut Cx) -> u8 {
    let at = position(provider, addr, cx);
    if at.is_some() {
        let (host, port) = provider.next_hop();
        cx.upstreams.names.has_answered(host, port, addr);
    }
    at.and_then(|at| u8::try_from(at + 1).ok()).unwrap_or(0)
}

/// The address that is tried next, and the number of untried ones: first the one that answered last, then IPv6 and
/// IPv4 in turns (RFC 8305 section 4).
fn next_address(job: &RequestJob, tried: &[SocketAddr], cx: &mut Cx) -> Option<(SocketAddr, u64)> {
    let provider = job.target_provider()?;
    let (host, port) = provider.next_hop();
    let answered = cx.upstreams.names.answered(host, port);
    let known = addresses(provider, cx);
    let untried = || known.iter().filter(|addr| !tried.contains(addr));
    let is_preferred = |addr: &&SocketAddr| match tried.last() {
        None => Some(**addr) == answered,
        Some(last) => addr.is_ipv6() != last.is_ipv6(),
    };
    let next = untried().find(is_preferred).or_else(|| untried().next())?;
    Some((*next, untried().count() as u64))
}

/// End of `connect_timeout` of the present attempt.
fn connect_until(job: &RequestJob) -> Mono {
    job.attempt.begun.after(job.target().map_or(Duration::ZERO, |target| target.limits.connect_timeout))
}

/// Has the name of the host looked up again, since its known addresses have failed. True if an answer is expected.
fn ask_again(job: &RequestJob, cx: &mut Cx) -> bool {
    let Some(provider) = job.target_provider().filter(|one| one.addresses.is_empty()) else { return false };
    let (host, port) = provider.next_hop();
    cx.upstreams.names.renew(host, port, cx.now.mono, &mut cx.commands.actions)
}

/// The known addresses of a provider's host; starts a lookup when one is due.
fn addresses<'a>(provider: &'a Provider, cx: &'a mut Cx) -> &'a [SocketAddr] {
    if !provider.addresses.is_empty() {
        return &provider.addresses;
    }
    let (host, port) = provider.next_hop();
    cx.upstreams.names.look_up(host, port, cx.now.mono, &mut cx.commands.actions)
}

/// Fault of a host whose known addresses cannot be reached.
fn unreachable(why: &'static str) -> FaultKind {
    FaultKind::Dial(DialError::Connect(why))
}

/// The host to connect to has no address.
fn nameless(provider: &Provider, why: &'static str) -> FaultKind {
    FaultKind::Name(if provider.proxy.is_some() { "no address of the proxy" } else { why })
}
