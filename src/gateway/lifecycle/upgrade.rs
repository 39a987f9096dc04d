//! Handing over to a successor, and taking over from a predecessor, without a dropped stream. One process at a time
//! admits.
//!
//! The old one has its successor started, goes on serving until that says that it is ready, then stops accepting (the
//! sockets stay open in the successor, and new clients wait in the kernel's queue), lets what has begun to arrive be
//! admitted for [`QUIET_WAIT`] at most, and gives away the ledger together with a list of what it still serves. From
//! there on it admits nothing; its running requests end as they would, and their rows go to the successor.
//!
//! The new one counts the requests on that list as its own, and closes their holds as their rows arrive.

use super::Handover;
use crate::base::limits::{QUIET_LOOK, QUIET_WAIT};
use crate::base::seam::Action;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::orders::Order;
use crate::policy::row::{Row, Running};
use crate::wire::json::write_string;

/// USR2: have a successor started.
pub(crate) fn begin(cx: &mut Cx) {
    if cx.lifecycle.handover != Handover::None || cx.lifecycle.is_stopping() {
        return log(cx, "refused: already stopping or handing over");
    }
    cx.lifecycle.handover = Handover::Starting;
    log(cx, "starting");
    cx.actions.push(Action::StartSuccessor);
}

fn log(cx: &mut Cx, outcome: &str) {
    cx.log_event(|out| {
        out.extend_from_slice(b",\"event\":\"upgrade\",\"outcome\":");
        write_string(out, outcome);
    });
}

/// The successor could not be started, or has ended before it was ready: everything stays as it was.
pub(crate) fn successor_failed(why: &str, cx: &mut Cx) {
    if cx.lifecycle.handover == Handover::Starting {
        cx.lifecycle.handover = Handover::None;
    }
    log(cx, why);
}

/// The successor has read its configuration and waits. True if it is to have the listeners.
pub(crate) fn successor_ready(cx: &mut Cx) -> bool {
    if cx.lifecycle.handover != Handover::Starting || cx.lifecycle.is_stopping() {
        return false;
    }
    let now = cx.now.mono;
    cx.lifecycle.handover = Handover::Quieting { look: Mono(now.0 + 1), until: now.after(QUIET_WAIT) };
    true
}

/// Gives the ledger away as soon as nothing may still have to be admitted. `quiet`: nothing arrives. `running`: what
/// is still served.
pub(crate) fn hand_over(quiet: bool, running: impl FnOnce() -> Vec<Running>, cx: &mut Cx) {
    let now = cx.now.mono;
    let Handover::Quieting { until, .. } = cx.lifecycle.handover else { return };
    if !quiet && now < until {
        cx.lifecycle.handover = Handover::Quieting { look: now.after(QUIET_LOOK), until };
        return;
    }
    cx.lifecycle.handover = Handover::Given;
    // Our own predecessor may still be there: its rows come by us, and go on to our successor.
    let inherited = cx.lifecycle.inheritance.holds.iter().map(|(running, _)| running.clone());
    let running: Vec<Running> = running().into_iter().chain(inherited).collect();
    log(cx, "handed over");
    cx.orders.0.push(Order::HandOver(running));
}

/// At the start: what the predecessor, if there is one, still serves counts as ours.
pub(crate) fn adopt(running: Option<Vec<Running>>, cx: &mut Cx) {
    cx.lifecycle.inheritance.present = running.is_some();
    for one in running.unwrap_or_default() {
        let Some((key, plan)) = cx.counted_key(&one.key) else { continue };
        let hold = cx.meter.adopt(key, &plan, cx.now.unix, one.admitted, one.reserved);
        cx.lifecycle.inheritance.holds.push((one, hold));
    }
}

/// The predecessor has settled a request. It goes into our ledger, and its hold is closed. One that was not on its list
/// counts all the same.
pub(crate) fn inherited(row: Row, cx: &mut Cx) {
    let holds = &mut cx.lifecycle.inheritance.holds;
    if let Some(index) = holds.iter().position(|(running, _)| running.request == row.request) {
        let (_, hold) = holds.swap_remove(index);
        cx.meter.settle(hold, row.usage.total());
    } else if let Some((key, plan)) = cx.counted_key(&row.key) {
        let hold = cx.meter.adopt(key, &plan, cx.now.unix, row.admitted, 0);
        cx.meter.settle(hold, row.usage.total());
    }
    let number = cx.give_row(row);
    cx.lifecycle.inheritance.rows.push_back(number);
}

/// The predecessor has left. What it has not settled by now it never will.
pub(crate) fn predecessor_left(cx: &mut Cx) {
    cx.lifecycle.inheritance.present = false;
    let lost = std::mem::take(&mut cx.lifecycle.inheritance.holds);
    cx.log_event(|out| {
        out.extend_from_slice(b",\"event\":\"upgrade\",\"outcome\":\"predecessor left\",\"unsettled\":");
        out.extend_from_slice(lost.len().to_string().as_bytes());
    });
    for (_, hold) in lost {
        cx.meter.refund(hold);
    }
}

/// Rows are safe: tells the predecessor about those of its own.
pub(crate) fn acknowledge(cx: &mut Cx) {
    let rows = &mut cx.lifecycle.inheritance.rows;
    let safe = rows.iter().take_while(|number| cx.ledger.is_safe(**number)).count();
    if safe > 0 {
        rows.drain(..safe);
        cx.orders.0.push(Order::Acknowledge(safe as u64));
    }
}
