//! The reservation of an attempt in the limits of its target, provider and credential. An attempt that was sent uses a
//! request; what it uses besides is what its provider reports.

use super::job::RequestJob;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::policy::meter::{Amount, Hold};

/// Reserves what an attempt at the present target needs, unless that is done. False if there is no room for it.
#[inline]
pub(crate) fn reserve(job: &mut RequestJob, cx: &mut Cx) -> bool {
    job.target().is_none_or(|target| target.accounts.is_none()) || reserve_at(job, cx)
}

#[cold]
fn reserve_at(job: &mut RequestJob, cx: &mut Cx) -> bool {
    let index = job.attempt.target as usize;
    let accounts = job.target().and_then(|target| target.accounts.clone());
    let share = &mut job.request.extras.get_or_insert_default().reserved;
    let need = share.needs.get(index).copied().unwrap_or_default();
    if let (None, Some(accounts)) = (&share.hold, accounts) {
        share.hold = cx.accounts.targets.hold(&accounts, cx.now.unix, need);
        return share.hold.is_some();
    }
    true
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
    let share = job.request.extras.as_mut().map(|extras| &mut extras.reserved);
    if let Some(hold) = share.and_then(|share| share.hold.take()) {
        let used = used.filter(|used| was_sent || *used != Amount::default());
        cx.accounts.targets.end(hold, used.or(was_sent.then(Amount::default)));
        // There may be room for a request that waits.
        cx.upstreams.queues.look |= cx.upstreams.queues.is_any_waiting();
    }
}

/// The reservation of a request's present attempt.
pub(crate) fn target_hold(job: &RequestJob) -> Option<&Hold> {
    job.request.extras.as_ref()?.reserved.hold.as_ref()
}
