//! The reservation of an attempt in the limits of its target, provider and credential. An attempt that was sent uses a
//! request; what it uses besides is what its provider reports.

use super::event::{DriverCall, Effect};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::state::{NextStep, Outgoing, Reserving, State};
use crate::base::limits::ASK_TIMEOUT;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::policy::catalog::TargetAccounts;
use crate::policy::ledger::{Ask, Release, Use, Wish};
use crate::policy::meter::{Amount, Hold, Lease};
use crate::policy::refusal::Refusal;

/// True if an attempt at the present target needs a reservation that it does not have.
#[inline]
pub(crate) fn must_reserve(job: &RequestJob) -> bool {
    job.target().is_some_and(|target| target.accounts.is_some()) && target_hold(job).is_none()
}

/// Reserves what an attempt at the present target needs, or asks a shared ledger to do so.
#[cold]
pub(crate) fn reserve(job: &mut RequestJob, draft: Outgoing, call: &mut DriverCall) -> NextStep {
    let (index, accounts) = (job.attempt.target as usize, job.target().and_then(|target| target.accounts.clone()));
    let needs = job.request.extras.as_ref().map_or(&[][..], |extras| &extras.reserved.needs);
    let need = needs.get(index).copied().unwrap_or_default();
    let Some(accounts) = accounts else { return NextStep::Attempt(draft) };
    let now = call.cx.now;
    let cx = &mut *call.cx;
    if let Some(key) = job.request.found.key.filter(|_| cx.asks_ledger()) {
        let (lease, limits) = cx.accounts.targets.question(&accounts, now.unix, need);
        let kept = Box::new(lease.clone());
        let number = (call.message.exchange.slot, call.message.exchange.generation);
        let key = cx.access.keys.get(key).id();
        cx.commands.orders.ask(Ask { number, key, lease, limits, admits: true, wish: Wish::default(), promise: None });
        let by = now.mono.after(ASK_TIMEOUT);
        let reserving = Reserving { draft: Some(draft), lease: kept, asked: now.unix, by };
        return NextStep::Enter(State::Reserving(reserving), Effect::Rearm);
    }
    if cx.is_shared() && !cx.goes_on_alone() {
        return NextStep::GiveUp(draft, Box::new(Fault::from(FaultKind::Store)));
    }
    hold(job, draft, &accounts, need, cx)
}

/// Reserves what an attempt needs without asking. In an outage of a shared ledger, this host has its share.
fn hold(job: &mut RequestJob, draft: Outgoing, accounts: &TargetAccounts, need: Amount, cx: &mut Cx) -> NextStep {
    let share = &mut job.request.extras.get_or_insert_default().reserved;
    share.hold = cx.accounts.targets.hold(accounts, cx.now.unix, need);
    match &share.hold {
        Some(_) => NextStep::Attempt(draft),
        None => without_room(draft, accounts, cx),
    }
}

/// The present target has no room: another one may have.
fn without_room(draft: Outgoing, accounts: &TargetAccounts, cx: &mut Cx) -> NextStep {
    // Only the shared ledger knows when there is room again.
    if cx.is_shared() {
        cx.accounts.targets.refused(accounts, cx.now.unix);
    }
    NextStep::Another(draft, Box::new(Fault::from(FaultKind::NoRoom)))
}

/// The shared ledger has decided about an attempt at the present target; `None`: it has not, or not in time.
#[cold]
pub(crate) fn ruled(reserving: Reserving, job: &mut RequestJob, admitted: Option<bool>, cx: &mut Cx) -> NextStep {
    let Reserving { draft, lease, asked, .. } = reserving;
    let (Some(draft), Some(accounts)) = (draft, job.target().and_then(|target| target.accounts.clone())) else {
        return NextStep::Enter(State::Ended, Effect::refuse(Refusal::internal()));
    };
    match admitted {
        Some(true) => {
            let share = &mut job.request.extras.get_or_insert_default().reserved;
            let lease = Box::new(Lease { shared: true, ..*lease });
            share.hold = Some(cx.accounts.targets.grant(&accounts, asked, &lease));
            share.lease = Some(lease);
            NextStep::Attempt(draft)
        }
        Some(false) => without_room(draft, &accounts, cx),
        None if cx.goes_on_alone() => hold(job, draft, &accounts, lease.reserved, cx),
        None => NextStep::GiveUp(draft, Box::new(Fault::from(FaultKind::Store))),
    }
}

/// The present attempt has ended with this use; `None`: its provider has reported none.
#[inline]
pub(crate) fn leave_target(job: &mut RequestJob, used: Option<Amount>, cx: &mut Cx) {
    if job.request.extras.as_ref().is_some_and(|extras| extras.reserved.hold.is_some()) {
        end(job, used, cx);
    }
}

#[cold]
fn end(job: &mut RequestJob, used: Option<Amount>, cx: &mut Cx) {
    let was_sent = job.attempt.sent != Mono::NEVER || job.attempt.first != Mono::NEVER;
    let Some(share) = job.request.extras.as_mut().map(|extras| &mut extras.reserved) else { return };
    if let Some(hold) = share.hold.take() {
        let used = used.filter(|used| was_sent || *used != Amount::default());
        let used = used.or(was_sent.then(Amount::default));
        cx.accounts.targets.end(hold, used);
        if let (Some(lease), Some(key)) = (share.lease.take(), job.request.found.key) {
            let (key, lease) = (cx.access.keys.get(key).id(), *lease);
            match used {
                Some(used) => {
                    cx.commands.orders.used(Use::Served(key, lease.clone()));
                    cx.commands.orders.used(Use::Left(key, lease, used));
                }
                None => cx.commands.orders.give_back(Release { key, lease, unsent: true }),
            }
        }
        // There may be room for a request that waits.
        cx.upstreams.queues.look |= cx.upstreams.queues.is_any_waiting();
    }
}

/// The reservation of a request's present attempt.
pub(crate) fn target_hold(job: &RequestJob) -> Option<&Hold> {
    job.request.extras.as_ref()?.reserved.hold.as_ref()
}
