//! Handing over to a successor, and taking over from a predecessor, without a dropped stream. One process at a time
//! admits.
//!
//! The old one has its successor started, goes on serving until that says that it is ready, then stops accepting (the
//! sockets stay open in the successor, and new clients wait in the kernel's queue), lets what has begun to arrive be
//! admitted for [`QUIET_WAIT`] at most, and gives away the ledger together with a list of what it still serves. From
//! there on it admits nothing; its running requests end as they would, and their rows go to the successor.
//!
//! The new one counts the requests on that list as its own, and closes their holds as their rows arrive.

use super::Gateway;
use super::client::Phase as ClientPhase;
use super::orders::Order;
use crate::base::limits::{DRAIN_IDLE_GRACE, QUIET_WAIT};
use crate::base::seam::Action;
use crate::base::time::{Mono, Now};
use crate::policy::meter::Hold;
use crate::policy::row::{Row, Running};
use crate::wire::json::write_string;
use std::collections::VecDeque;

/// How far handing over has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Handover {
    /// Nobody has asked for it.
    #[default]
    None,
    /// The successor is starting.
    Starting,
    /// It is ready. What has begun to arrive may still be admitted.
    Quieting {
        /// Not in this turn yet: until its end the listeners are open.
        after: Mono,
        /// Not longer than this.
        until: Mono,
    },
    /// It owns admission and the ledger.
    Given,
}

/// What a predecessor still serves.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    /// A predecessor is there.
    present: bool,
    holds: Vec<(Running, Hold)>,
    /// Numbers of its rows in our ledger that it has not been told to be safe yet.
    rows: VecDeque<u64>,
}

impl Gateway {
    /// USR2: have a successor started.
    pub(crate) fn begin_upgrade(&mut self, now: Now) {
        if self.handover != Handover::None || self.draining.is_some() {
            return self.log_upgrade("refused: already stopping or handing over", now);
        }
        self.handover = Handover::Starting;
        self.log_upgrade("starting", now);
        self.actions.push(Action::StartSuccessor);
    }

    fn log_upgrade(&mut self, outcome: &str, now: Now) {
        self.log_event(now, |out| {
            out.extend_from_slice(b",\"event\":\"upgrade\",\"outcome\":");
            write_string(out, outcome);
        });
    }

    /// The successor could not be started, or has ended before it was ready: everything stays as it was.
    pub(crate) fn successor_failed(&mut self, why: &str, now: Now) {
        if self.handover == Handover::Starting {
            self.handover = Handover::None;
        }
        self.log_upgrade(why, now);
    }

    /// The successor has read its configuration and waits.
    pub(crate) fn successor_ready(&mut self, now: Now) {
        if self.handover != Handover::Starting || self.draining.is_some() {
            return;
        }
        self.handover = Handover::Quieting { after: now.mono, until: now.mono.after(QUIET_WAIT) };
        // All of them: the successor answers for our health from here on.
        self.actions.push(Action::StopAccepting(usize::MAX));
        // Streams end in their own time; TERM still bounds it.
        self.drain_until(now.mono.after(DRAIN_IDLE_GRACE), Mono::NEVER, now);
    }

    /// Gives the ledger away as soon as nobody is left whose request might still have to be admitted.
    pub(crate) fn hand_over_on(&mut self, now: Now) {
        let Handover::Quieting { after, until } = self.handover else { return };
        if now.mono <= after || (!self.is_quiet() && now.mono < until) {
            return;
        }
        self.handover = Handover::Given;
        let own = self.exchanges.iter().filter_map(|(_, ex)| self.running(ex));
        // Our own predecessor may still be there: its rows come by us, and go on to our successor.
        let inherited = self.inheritance.holds.iter().map(|(running, _)| running.clone());
        let running: Vec<Running> = own.chain(inherited).collect();
        self.log_upgrade("handed over", now);
        self.orders.push(Order::HandOver(running));
    }

    /// Nobody's request may still have to be admitted.
    fn is_quiet(&self) -> bool {
        let arriving = |phase| matches!(phase, ClientPhase::Head | ClientPhase::Body | ClientPhase::Discard);
        !self.clients.iter().any(|(_, client)| !client.admin && arriving(client.phase))
    }

    fn running(&self, ex: &super::exchange::Exchange) -> Option<Running> {
        let (hold, key) = (ex.hold.as_ref()?, ex.finding.key?);
        let reserved = self.meter.lease(hold).reserved;
        Some(Running { request: ex.id.raw(), key: self.keys.record(key).id, admitted: ex.admitted, reserved })
    }

    /// A row given in the very turn that hands over reaches the ledger before it is given away.
    pub(crate) fn not_running(&mut self, row: &Row) {
        if self.handover == Handover::Given {
            for order in &mut self.orders {
                if let Order::HandOver(running) = order {
                    running.retain(|one| one.request != row.request);
                }
            }
        }
    }

    /// When handing over goes on by itself.
    pub(crate) fn handover_deadline(&self) -> Option<Mono> {
        match self.handover {
            Handover::Quieting { after, .. } if self.is_quiet() => Some(Mono(after.0 + 1)),
            Handover::Quieting { until, .. } => Some(until),
            _ => None,
        }
    }

    /// At the start: what the predecessor, if there is one, still serves counts as ours.
    pub(crate) fn adopt(&mut self, running: Option<Vec<Running>>, now: Now) {
        self.inheritance.present = running.is_some();
        for one in running.unwrap_or_default() {
            let Some(key) = self.keys.index_of(&one.key) else { continue };
            let Some(plan) = self.config.plan(&self.keys.record(key).plan) else { continue };
            let hold = self.meter.adopt(key, plan, now.unix, one.admitted, one.reserved);
            self.inheritance.holds.push((one, hold));
        }
    }

    /// The predecessor has settled a request. It goes into our ledger, and its hold is closed.
    pub(crate) fn inherited(&mut self, row: Row, now: Now) {
        let holds = &mut self.inheritance.holds;
        if let Some(index) = holds.iter().position(|(running, _)| running.request == row.request) {
            let (_, hold) = holds.swap_remove(index);
            self.meter.settle(hold, row.usage.total());
        }
        let number = self.give_row(row, now);
        self.inheritance.rows.push_back(number);
    }

    /// The predecessor has left. What it has not settled by now it never will.
    pub(crate) fn predecessor_left(&mut self, now: Now) {
        self.inheritance.present = false;
        let lost = std::mem::take(&mut self.inheritance.holds);
        self.log_event(now, |out| {
            out.extend_from_slice(b",\"event\":\"upgrade\",\"outcome\":\"predecessor left\",\"unsettled\":");
            out.extend_from_slice(lost.len().to_string().as_bytes());
        });
        for (_, hold) in lost {
            self.meter.refund(hold);
        }
        self.drain_on(now);
    }

    /// Whether leaving now would lose rows that a predecessor is still to bring, or end before handing over.
    pub(crate) fn is_needed(&self) -> bool {
        self.inheritance.present || matches!(self.handover, Handover::Quieting { .. })
    }

    /// Rows are safe: tells the predecessor about those of its own.
    pub(crate) fn acknowledge(&mut self) {
        let rows = &mut self.inheritance.rows;
        let safe = rows.iter().take_while(|number| self.ledger.is_safe(**number)).count();
        if safe > 0 {
            rows.drain(..safe);
            self.orders.push(Order::Acknowledge(safe as u64));
        }
    }

    /// The holds that the predecessor's requests stand for.
    pub(crate) fn inherited_holds(&self) -> impl Iterator<Item = &Hold> {
        self.inheritance.holds.iter().map(|(_, hold)| hold)
    }
}
