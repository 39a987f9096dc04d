//! Takes over from a predecessor: the requests that it still serves count in this process; their reservations are
//! settled as its rows arrive, and it is notified when these rows are committed.

use crate::gateway::cx::Cx;
use crate::gateway::lifecycle::InheritedRequest;
use crate::gateway::orders::Order;
use crate::policy::meter::{Amount, Payer};
use crate::policy::row::{Row, Running};

/// Counts the requests that a predecessor still serves, if there is one. Called at the start.
pub(crate) fn adopt(running: Option<Vec<Running>>, cx: &mut Cx) {
    cx.lifecycle.inheritance.present = running.is_some();
    for one in running.unwrap_or_default() {
        let Some((key, plan)) = cx.counted_key(&one.key) else { continue };
        let payer =
            Payer { key, plan: &plan, path: cx.accounts.meter.path(&one.group), hosts: 1, model: Some(&one.model) };
        let reserved = Amount { tokens: one.reserved, nano: one.money };
        let hold = cx.accounts.meter.adopt(payer, cx.now.unix, one.admitted, reserved);
        let (tokens, nano) = one.target_reserved;
        let reserved = Amount { tokens, nano };
        let at_target = cx.accounts.targets.adopt(&one.target, cx.now.unix, one.admitted, reserved);
        cx.lifecycle.inheritance.holds.push(InheritedRequest { running: one, hold, at_target });
    }
}

/// Handles a request that the predecessor has settled: the row is written to the ledger, and the reservation is
/// settled. A request that was not on its list counts too.
pub(crate) fn inherited(row: Row, cx: &mut Cx) {
    let holds = &mut cx.lifecycle.inheritance.holds;
    let mut counted = false;
    if let Some(index) = holds.iter().position(|one| one.running.request == row.request) {
        let InheritedRequest { running, hold, at_target } = holds.swap_remove(index);
        cx.accounts.meter.settle(hold, row.amount());
        if let Some(hold) = at_target {
            counted = running.target == row.target;
            // An attempt at another target before was sent, and has used a request there.
            cx.accounts.targets.end(hold, Some(if counted { row.amount() } else { Amount::default() }));
        }
    } else if let Some((key, plan)) = cx.counted_key(&row.key) {
        let payer =
            Payer { key, plan: &plan, path: cx.accounts.meter.path(&row.group), hosts: 1, model: Some(&row.model) };
        let hold = cx.accounts.meter.adopt(payer, cx.now.unix, row.admitted, Amount::default());
        cx.accounts.meter.settle(hold, row.amount());
    }
    if !counted {
        cx.accounts.targets.count(&row.target, cx.now.unix, row.admitted, row.amount());
    }
    cx.tell_of_budgets();
    let number = cx.give_row(row);
    cx.lifecycle.inheritance.rows.push_back(number);
}

/// Handles the end of the predecessor. Requests that it has not settled will never be settled. Those under strict
/// limits have used their reservations: the ledger has a promise of each, which the next start appends.
pub(crate) fn predecessor_left(cx: &mut Cx) {
    cx.lifecycle.inheritance.present = false;
    let lost = std::mem::take(&mut cx.lifecycle.inheritance.holds);
    cx.log_event(|out| {
        out.extend_from_slice(b",\"event\":\"upgrade\",\"outcome\":\"predecessor left\",\"unsettled\":");
        out.extend_from_slice(lost.len().to_string().as_bytes());
    });
    for InheritedRequest { running, hold, at_target } in lost {
        let used = |reserved: Amount| if running.strict { reserved } else { Amount::default() };
        let reserved = cx.accounts.meter.reserved(&hold);
        cx.accounts.meter.settle(hold, used(reserved));
        if let Some(hold) = at_target {
            let reserved = cx.accounts.targets.reserved(&hold);
            cx.accounts.targets.end(hold, Some(used(reserved)));
        }
    }
}

/// Handles committed rows: notifies the predecessor about its own ones.
pub(crate) fn acknowledge(cx: &mut Cx) {
    let rows = &mut cx.lifecycle.inheritance.rows;
    let safe = rows.iter().take_while(|number| cx.accounts.ledger.is_safe(**number)).count();
    if safe > 0 {
        rows.drain(..safe);
        cx.commands.orders.push(Order::Acknowledge(safe as u64));
    }
}
