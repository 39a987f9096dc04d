//! Limits of targets, providers and credentials: which targets have no room for a request.

use super::event::ClientMessage;
use super::fault::{Fault, FaultKind};
use super::request::Request;
use crate::base::time::{Mono, Now, Unix};
use crate::gateway::accounts::targets::{Lack, TargetMeter};
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::meter::TargetShare;
use std::time::Duration;

/// Targets whose limits have no room for a request.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct FullTargets {
    /// All of them, as bits.
    pub(crate) bits: u64,
    /// Those of them that have none before the request may no longer wait.
    pub(crate) late: u64,
    /// Moment from which the first of them has room; the present if the end of running requests may make room.
    again: Option<Unix>,
    /// The first end of a window of a limit without room.
    renews: Option<Unix>,
}

impl FullTargets {
    /// Moment at which one of them may have room without another event; `NEVER` if there is none.
    pub(crate) fn renewal(&self, now: Now) -> Mono {
        let wait = self.renews.map(|renews| renews.0.saturating_sub(now.unix.0)).filter(|wait| *wait > 0);
        wait.map_or(Mono::NEVER, |wait| now.mono.after(Duration::from_millis(wait)))
    }

    /// The failure of a request that no target has room for.
    pub(crate) fn fault(&self, now: Unix) -> Fault {
        // A request that needs more than a whole limit never has room.
        let wait = self.again.filter(|again| *again < Unix(u64::MAX)).map(|again| again.0.saturating_sub(now.0));
        Fault { retry_after: wait.map(|wait| wait.div_ceil(1000).max(1)), ..FaultKind::NoRoom.into() }
    }
}

/// True if a target of the request has limits.
#[inline]
pub(crate) fn has_needs(request: &Request) -> bool {
    request.extras.as_ref().is_some_and(|extras| !extras.reserved.needs.is_empty())
}

/// Targets whose limits have no room for a request that begins to wait now.
#[cold]
pub(crate) fn full_now(request: &Request, cx: &mut Cx) -> FullTargets {
    let until = match request.model().and_then(|model| model.queue) {
        Some(queue) => cx.now.mono.after(request.may_wait(queue.wait)),
        None => Mono::NEVER,
    };
    full_targets(request, &mut cx.accounts.targets, cx.now, until)
}

/// Targets whose limits have no room for the request. `until`: moment until which it may wait.
#[inline]
pub(crate) fn full_targets(request: &Request, targets: &mut TargetMeter, now: Now, until: Mono) -> FullTargets {
    match &request.extras {
        Some(extras) if has_needs(request) => look(request, &extras.reserved, targets, now, until),
        _ => FullTargets::default(),
    }
}

#[cold]
fn look(request: &Request, share: &TargetShare, targets: &mut TargetMeter, now: Now, until: Mono) -> FullTargets {
    let mut full = FullTargets::default();
    for ((index, target), need) in request.targets().iter().enumerate().zip(&share.needs) {
        let lack = target.accounts.as_ref().and_then(|at| targets.lack(at, now.unix, *need));
        let (Some(Lack { from, renews }), bit) = (lack, 1u64.checked_shl(index as u32).unwrap_or(0)) else { continue };
        let wait = Duration::from_millis(from.0.saturating_sub(now.unix.0));
        full.bits |= bit;
        full.late |= if now.mono.after(wait) > until { bit } else { 0 };
        full.again = Some(full.again.map_or(from, |again| again.min(from)));
        full.renews = Some(full.renews.map_or(renews, |first| first.min(renews)));
    }
    full
}

/// Notes what the request needs at each of its targets, with a prompt of this many tokens.
#[inline]
pub(crate) fn note_needs(request: &mut Request, prompt: u64, draft: &OutgoingRequest, message: &ClientMessage) {
    if request.model().is_some_and(|model| model.limited) {
        let needs = request.needs_at_targets(prompt, draft, message);
        request.extras.get_or_insert_default().reserved.needs = needs;
    } else if let Some(extras) = &mut request.extras {
        extras.reserved.needs = Box::default();
    }
}
