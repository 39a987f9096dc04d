//! The phase `Committing` (`durability = "before-reply"`): everything from a stream's finishing event on, or a whole
//! answer, waits until its row is in the ledger, so that a kill loses nothing a client saw completed. Tokens before
//! that event are relayed as they come; no stream waits for another's commit but at its own end.

use super::Gateway;
use super::exchange::{Commit, Exchange, Phase};
use super::fault::{Fault, FaultKind};
use super::relay::Relay;
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use crate::policy::config::Durability;
use crate::wire::json::write_string;

impl Gateway {
    /// Whether answers wait for their rows.
    pub(crate) fn waits_for_rows(&self) -> bool {
        self.config.store.durability == Durability::BeforeReply
    }

    /// Keeps back what is not to be sent before the row is safe: the bytes from `end_at` on. Returns the others.
    pub(crate) fn hold_back<'a>(&mut self, xid: Id<Exchange>, bytes: &'a [u8], end_at: Option<usize>) -> &'a [u8] {
        let Some(end_at) = end_at.filter(|_| self.waits_for_rows()) else { return bytes };
        let (sent, kept) = bytes.split_at(end_at.min(bytes.len()));
        if let Some(ex) = self.exchanges.get_mut(xid) {
            ex.last.push(&mut self.pool, kept);
        }
        sent
    }

    /// A complete answer: gives its row to the ledger and waits. At most `max_commit_lag`, for beyond it the ledger is
    /// late by our own word.
    pub(crate) fn await_commit(&mut self, mut ex: Exchange, now: Now) {
        self.record(&mut ex, 200, now);
        ex.phase = Phase::Committing;
        ex.deadline = now.mono.after(ex.config.store.max_commit_lag);
        (ex.beat, ex.naming) = (Mono::NEVER, Mono::NEVER);
        let (cid, row) = (ex.client, ex.row);
        let xid = self.exchanges.insert(ex);
        if let Some(client) = self.clients.get_mut(cid) {
            client.exchange = Some(xid);
        }
        self.arm_client(cid);
        match row {
            Some(row) => self.ledger.hold_back(row.get(), xid),
            // Nothing was admitted, so nothing has to be kept.
            None => self.commit_done(xid, now),
        }
    }

    /// So many more rows are safe: the answers that waited for them go out.
    pub(crate) fn committed(&mut self, rows: u64, now: Now) {
        self.ledger.committed(rows);
        while let Some(xid) = self.ledger.next_safe() {
            self.commit_done(xid, now);
        }
        self.acknowledge();
    }

    fn commit_done(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid).filter(|ex| ex.phase == Phase::Committing) else { return };
        let mut last = std::mem::take(&mut ex.last);
        if let Relay::Whole { .. } = ex.relay {
            match self.take_exchange(xid) {
                Some(ex) if ex.bulk => self.send_bulk(ex, std::mem::take(&mut last), now),
                Some(ex) => self.send_whole(ex, last.bytes(), now),
                None => {}
            }
        } else {
            if !last.is_empty() {
                self.send_events(xid, Commit::Relayed, last.bytes(), now);
            }
            if let Some(ex) = self.take_exchange(xid) {
                self.close_stream(ex, now);
            }
        }
        last.release(&mut self.pool);
    }

    /// The ledger cannot be written: admission stops, and no answer that waits can be said to be complete.
    pub(crate) fn store_failed(&mut self, why: &str, now: Now) {
        self.ledger.failed(true);
        self.log_event(now, |out| {
            out.extend_from_slice(b",\"event\":\"ledger\",\"outcome\":\"failed\",\"error\":");
            write_string(out, why);
        });
        for (_, xid) in self.ledger.all_held() {
            self.commit_failed(xid, now);
        }
    }

    /// The ledger can be written again: so is what was kept meanwhile, and requests are admitted.
    pub(crate) fn store_recovered(&mut self, now: Now) {
        self.ledger.failed(false);
        self.log_event(now, |out| out.extend_from_slice(b",\"event\":\"ledger\",\"outcome\":\"recovered\""));
    }

    /// The row of a complete answer has not been committed in time. It may still be: then the key has paid for an
    /// answer that ended in an error, but never the other way round.
    pub(crate) fn commit_failed(&mut self, xid: Id<Exchange>, now: Now) {
        if self.exchanges.get(xid).is_some_and(|ex| ex.phase == Phase::Committing) {
            self.end_with_fault(xid, Fault::from(FaultKind::Store), now);
        }
    }
}
