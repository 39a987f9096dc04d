//! The connection of an attempt: a kept one, or dials to the addresses of the provider's host. An address that does not
//! answer soon goes on while the next ones are tried (RFC 8305); all of them share `connect_timeout`.

use super::event::{ClientMessage, Dial, Effect};
use super::fault::{Fault, FaultKind};
use super::state::{Attempting, Dials, Exchange, Half, State};
use crate::base::limits::{ADDRESS_WAIT, ADDRESSES_TRIED_MAX};
use crate::base::seam::DialError;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::ids::ProviderId;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::config::Provider;
use std::net::SocketAddr;

/// Source of a connection.
pub(super) enum Connect {
    Kept(ProviderId),
    /// When the dial is late.
    Dial(Dial, Mono),
    /// When the host's addresses are there, until then.
    Resolved(Mono),
}

impl Exchange {
    /// Connection for the present target; a new one, not a kept one, if `fresh`.
    pub(super) fn connect(&mut self, fresh: bool, cx: &mut Cx) -> Result<Connect, Box<Fault>> {
        let Some((_, target, provider)) = self.route() else {
            return Err(Box::new(Fault::from(FaultKind::Internal)));
        };
        // What is kept was dialed under the present configuration; another one's providers have other numbers.
        let present = self.request.setup.epoch == cx.setup.epoch;
        if present
            && !fresh
            && !self.attempt.needs_fresh()
            && let Some(kept) = cx.idle.take(target.provider)
        {
            return Ok(Connect::Kept(kept));
        }
        let (timeout, now, mut tried) = (target.limits.connect_timeout, cx.now.mono, self.attempt.addresses);
        let until = self.attempt.begun.after(timeout);
        let (host, port) = provider.next_hop();
        let answered = if tried.order() == 0 { cx.names.answered(host, port) } else { None };
        let known = addresses(provider, cx);
        if tried.order() == 0 {
            let lead = known.iter().position(|addr| Some(*addr) == answered).unwrap_or(0);
            tried.0 = u8::try_from(lead << 2).unwrap_or(0);
        }
        let Some(addr) = tried.address(tried.order(), known) else {
            return match cx.names.is_asked(host, port) {
                Ok(()) => Ok(Connect::Resolved(until)),
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
        Ok(Connect::Dial(dial, late))
    }

    /// Goes that way; an `earlier` dial goes on meanwhile.
    pub(super) fn connecting(
        &mut self,
        way: Connect,
        draft: Box<OutgoingRequest>,
        earlier: Option<(ProviderId, u8)>,
    ) -> Effect {
        let (half, by, effect) = match way {
            Connect::Kept(kept) => (Half::Open(kept), Mono::NEVER, Effect::Send(kept)),
            // The name of the connection comes with `dialing`.
            Connect::Dial(dial, late) => (Half::Dialing(Dials { newest: None, earlier }), late, Effect::Dial(dial)),
            Connect::Resolved(until) => (Half::Resolving, until, Effect::Wait),
        };
        self.state = State::Attempting(Attempting { draft, half, by });
        effect
    }

    /// The connection that [`Effect::Dial`] asked for has this name.
    pub(crate) fn dialing(&mut self, provider: ProviderId) {
        if let Some(dials) = self.dials() {
            dials.newest = Some(provider);
        }
    }

    /// True if the exchange waits for this connection to be established.
    pub(crate) fn awaits_dial(&self, provider: ProviderId) -> bool {
        match &self.state {
            State::Attempting(Attempting { half: Half::Dialing(dials), .. }) => {
                dials.newest == Some(provider) || dials.earlier.is_some_and(|(earlier, _)| earlier == provider)
            }
            _ => false,
        }
    }

    fn dials(&mut self) -> Option<&mut Dials> {
        match &mut self.state {
            State::Attempting(Attempting { half: Half::Dialing(dials), .. }) => Some(dials),
            _ => None,
        }
    }

    /// This connection is open: the other dial is given up, and the address is remembered if it was not the first.
    pub(super) fn dialed(&mut self, provider: ProviderId, cx: &mut Cx) -> Effect {
        let Some(&mut Dials { newest, earlier }) = self.dials() else { return Effect::Nothing };
        let tried = self.attempt.addresses;
        let (order, other) = match earlier {
            Some((earlier, order)) if earlier == provider => (order, newest),
            _ => (tried.order(), earlier.map(|(earlier, _)| earlier)),
        };
        if let Some(other) = other {
            cx.let_go(other, false);
        }
        if let State::Attempting(attempting) = &mut self.state {
            (attempting.half, attempting.by) = (Half::Open(provider), Mono::NEVER);
        }
        if order > 0
            && let Some(provider) = self.target_provider()
            && let Some(addr) = tried.address(order, addresses(provider, cx))
        {
            let (host, port) = provider.next_hop();
            cx.names.has_answered(host, port, addr);
        }
        Effect::Begin
    }

    /// A dial has failed: the next address of the host, or the other dial that is under way, then whatever follows a
    /// failed attempt. The world has given the connection up already.
    pub(super) fn dial_failed(
        &mut self,
        provider: ProviderId,
        why: DialError,
        message: &ClientMessage<'_>,
        cx: &mut Cx,
    ) -> Effect {
        let Some(dials) = self.dials() else { return Effect::Nothing };
        if dials.newest != Some(provider) {
            dials.earlier = None;
            if dials.newest.is_some() {
                return Effect::Nothing;
            }
        }
        dials.newest = None;
        let goes_on = dials.earlier.is_some();
        if matches!(why, DialError::Connect(_)) && self.next_address(cx) {
            return self.dial_again(message, cx);
        }
        match goes_on {
            true => Effect::Wait,
            false => self.attempt_failed(Fault::from(FaultKind::Dial(why)), false, message, cx),
        }
    }

    /// A dial takes long: the next address is tried while the first one that was slow goes on.
    pub(super) fn dial_late(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let timeout = self.target().map_or_else(Default::default, |target| target.limits.connect_timeout);
        let (order, until) = (self.attempt.addresses.order(), self.attempt.begun.after(timeout));
        let Some(&mut Dials { newest, earlier }) = self.dials() else { return Effect::Nothing };
        if until <= cx.now.mono {
            return self.attempt_failed(Fault::from(FaultKind::ConnectTimeout), false, message, cx);
        }
        if !self.next_address(cx) {
            // Fewer are known than when it began.
            if let State::Attempting(attempting) = &mut self.state {
                attempting.by = until;
            }
            return Effect::Wait;
        }
        if let Some(dials) = self.dials() {
            *dials = Dials { newest: None, earlier: earlier.or(newest.map(|newest| (newest, order))) };
        }
        if let (Some(_), Some(newest)) = (earlier, newest) {
            cx.let_go(newest, false);
        }
        self.dial_again(message, cx)
    }

    /// Turns to the next address of the host; false if none is left.
    fn next_address(&mut self, cx: &mut Cx) -> bool {
        let known = self.target_provider().map_or(0, |provider| addresses(provider, cx).len());
        let tried = &mut self.attempt.addresses;
        let is_left = usize::from(tried.order()) + 1 < known.min(ADDRESSES_TRIED_MAX);
        tried.0 += u8::from(is_left);
        is_left
    }

    /// A host's addresses have come, or will not.
    pub(super) fn named(
        &mut self,
        host: &str,
        port: u16,
        failed: Option<&'static str>,
        message: &ClientMessage<'_>,
        cx: &mut Cx,
    ) -> Effect {
        if !self.awaits_name(host, port) {
            return Effect::Nothing;
        }
        match failed {
            Some(why) => {
                let fault = self.target_provider().map_or(FaultKind::Name(why).into(), |one| nameless(one, why));
                self.attempt_failed(fault, false, message, cx)
            }
            None => self.dial_again(message, cx),
        }
    }

    fn dial_again(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let State::Attempting(Attempting { draft, half, .. }) = std::mem::replace(&mut self.state, State::Ended) else {
            return Effect::Nothing;
        };
        let earlier = if let Half::Dialing(dials) = half { dials.earlier } else { None };
        match self.connect(true, cx) {
            Ok(way) => self.connecting(way, draft, earlier),
            Err(fault) => match self.after_failure(draft, *fault, message, cx) {
                Ok(draft) => self.begin_attempt(draft, message, cx),
                Err(effect) => *effect,
            },
        }
    }
}

/// The addresses of a provider's host, as far as they are known; asks for them when it is time to.
fn addresses<'a>(provider: &'a Provider, cx: &'a mut Cx) -> &'a [SocketAddr] {
    match provider.addresses.is_empty() {
        false => &provider.addresses,
        true => {
            let (host, port) = provider.next_hop();
            cx.names.look_up(host, port, cx.now.mono, &mut cx.actions)
        }
    }
}

/// The host to connect to has no address.
fn nameless(provider: &Provider, why: &'static str) -> Fault {
    let why = if provider.proxy.is_some() { "no address of the proxy" } else { why };
    Fault::from(FaultKind::Name(why))
}
