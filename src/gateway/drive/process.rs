//! Results of helper threads, and events of the process: commits, answers of the ledger, stopping, handing over.

use crate::base::limits::DRAIN_IDLE_GRACE;
use crate::base::seam::{Action, Shut};
use crate::base::text::push_number;
use crate::base::time::{Mono, Unix};
use crate::gateway::Gateway;
use crate::gateway::budget::{Budget, Gate};
use crate::gateway::budget_sums::NO_EXCHANGE;
use crate::gateway::exchange::ExchangeEvent;
use crate::gateway::ids::{ClientId, ExchangeId, client_conn, provider_conn};
use crate::gateway::lifecycle::upgrade::Handover;
use crate::gateway::lifecycle::{drain, inheritance, upgrade};
use crate::gateway::offload::{FinishedJob, Product};
use crate::gateway::orders::Order;
use crate::policy::ask::{AskAnswer, Release, Ruling};
use crate::policy::row::Running;
use crate::policy::window;
use crate::wire::json::write_string;

/// Maximum number of answers continued in one call; the next call continues.
const TURNS_MAX: usize = 64;

impl Gateway {
    /// Handles work returned by a helper thread.
    pub(crate) fn offloaded(&mut self, done: FinishedJob) {
        let (id, serial) = done.owner();
        let key = done.key();
        self.cx.returned(serial);
        let Some(exchange) = self.exchanges.get_mut(id).filter(|exchange| exchange.state.awaits(serial)) else {
            done.discard(&mut self.cx.pool);
            return self.free_heavy(key);
        };
        let cid = exchange.job.request.client;
        match done.take(&mut self.cx.pool) {
            Some(Product::Request { body, draft, built }) => {
                if let Some(client) = self.clients.get_mut(cid) {
                    client.put_back(body, &mut self.cx.pool);
                }
                self.tell(id, ExchangeEvent::Translated { draft, built });
                // The clocks of the exchange may have started.
                self.arm(cid);
            }
            product => {
                self.tell(id, ExchangeEvent::Offloaded(product.map(Box::new)));
                self.resume(id);
            }
        }
    }

    /// Handles an answer of a shared ledger.
    pub(crate) fn ruled(&mut self, answer: &AskAnswer) {
        let ask = &answer.ask;
        if answer.ruling != Ruling::Unavailable
            && let Some((key, plan)) = self.cx.counted_key(&ask.key)
        {
            self.cx.meter.learn(key, &plan, self.cx.now.unix, &answer.counts);
            self.cx.meter.learn_groups(&ask.lease, self.cx.now.unix, &answer.groups);
            self.cx.granted(key, answer);
            self.cx.tell_of_budgets();
        }
        if answer.ruling == Ruling::Unavailable
            && ask.number == NO_EXCHANGE
            && let Some(key) = self.cx.keys.index_of(&ask.key)
        {
            self.cx.lookups.sums.add(key, 0, self.cx.now.mono);
        }
        let id = ExchangeId::new(ask.number.0, ask.number.1);
        let exchange = self.exchanges.get(id).filter(|one| one.state.is_reserving());
        if let Some(cid) = exchange.map(|one| one.job.request.client) {
            self.tell(id, ExchangeEvent::Ruled(ask, answer.ruling));
            // The clocks of the exchange may have started.
            self.arm(cid);
        } else if answer.ruling == Ruling::Admitted {
            // The request has ended or waited too long; its lease is returned.
            self.cx.orders.give_back(Release { key: ask.key, lease: ask.lease.clone(), unsent: true });
        }
    }

    /// Records that `rows` more rows are committed, and sends the answers that waited for them.
    pub(crate) fn committed(&mut self, rows: u64) {
        self.cx.ledger.committed(rows);
        self.cx.lookups.sums.committed(self.cx.now.mono);
        while let Some(id) = self.cx.ledger.next_safe() {
            self.tell(id, ExchangeEvent::Committed);
        }
        inheritance::acknowledge(&mut self.cx);
    }

    /// Handles a failure to write the ledger: admission stops, and waiting answers cannot complete.
    pub(crate) fn store_failed(&mut self) {
        self.cx.ledger.failed(true);
        self.cx.forget_grants();
        for (_, id) in self.cx.ledger.all_held() {
            self.tell(id, ExchangeEvent::NotCommitted);
        }
    }

    /// Stops accepting requests, after TERM or at the beginning of a hand-over.
    pub(crate) fn begin_drain(&mut self, until: Mono) {
        let now = self.cx.now.mono;
        match &mut self.cx.lifecycle.drain {
            // A process that hands over has no deadline.
            Some(drain) => drain.bound(until),
            None => {
                let idle_after = now.after(DRAIN_IDLE_GRACE).min(until);
                self.cx.lifecycle.drain = Some(drain::Drain::new(idle_after, until));
                self.close_idle_providers();
            }
        }
    }

    /// Handles TERM: stops immediately, or after load balancers have had time to notice. A second TERM skips that
    /// delay.
    pub(crate) fn told_to_stop(&mut self) {
        let lead = self.cx.setup.config.server.drain_lead;
        if lead.is_zero() || self.cx.lifecycle.is_leaving() || self.cx.lifecycle.has_handed_over() {
            return self.terminate();
        }
        let until = Unix(self.cx.now.unix.0.saturating_add(lead.as_millis() as u64));
        self.cx.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"drain_lead\",\"until\":\"");
            window::write_iso(until, out);
            out.push(b'"');
        });
        self.call_off("called off: the process is to stop");
        self.cx.lifecycle.lead = Some(self.cx.now.mono.after(lead));
    }

    /// Stops accepting requests, ends those that take too long, and exits.
    pub(crate) fn terminate(&mut self) {
        self.cx.lifecycle.lead = None;
        let (requests, timeout) = (self.exchanges.len() as u64, self.cx.setup.config.server.drain_timeout);
        if !self.cx.lifecycle.is_terminated() {
            let until = Unix(self.cx.now.unix.0.saturating_add(timeout.as_millis() as u64));
            self.cx.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"stopping\",\"requests\":");
                push_number(out, requests);
                out.extend_from_slice(b",\"until\":\"");
                window::write_iso(until, out);
                out.push(b'"');
            });
        }
        if !self.cx.lifecycle.handover.is_final() {
            // Health checks must see that the process is stopping, as long as it runs.
            self.cx.actions.push(Action::StopAccepting(self.client_listeners));
        }
        self.call_off("called off: the process is to stop");
        self.begin_drain(self.cx.now.mono.after(timeout));
    }

    /// Handles USR2: starts a successor.
    pub(crate) fn begin_handover(&mut self) {
        let stopping = self.cx.lifecycle.is_stopping() || self.cx.lifecycle.lead.is_some();
        if self.cx.lifecycle.handover != Handover::None || stopping {
            self.cx.log_upgrade("refused: already stopping or handing over");
        } else if !self.can_give_ledger() {
            self.cx.log_upgrade("refused: the ledger is not available");
        } else {
            self.cx.log_upgrade("starting");
            self.hand_over(upgrade::UpgradeEvent::Asked);
        }
    }

    /// True if the ledger can be given away: it must be writable.
    fn can_give_ledger(&self) -> bool {
        self.cx.ledger.takes_rows(self.cx.now.mono, self.cx.setup.config.store.max_commit_lag)
    }

    /// Cancels a hand-over, if that is still possible.
    pub(crate) fn call_off(&mut self, why: &str) {
        if self.cx.lifecycle.handover.may_be_called_off() {
            self.cx.log_upgrade(why);
            self.hand_over(upgrade::UpgradeEvent::CalledOff);
        }
    }

    /// Records that spans have not reached their collector, or that it accepts them again.
    pub(crate) fn spans_lost(&mut self, lost: u64, news: Option<Result<(), String>>) {
        self.cx.stats.spans_dropped += lost;
        if self.cx.lifecycle.handover.is_final() && lost > 0 {
            let counters = Box::new(self.cx.take_counters());
            self.cx.orders.push(Order::Counted(counters));
        }
        let Some(news) = news else { return };
        self.cx.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"telemetry\",\"outcome\":");
            match &news {
                Ok(()) => out.extend_from_slice(b"\"recovered\""),
                Err(why) => {
                    out.extend_from_slice(b"\"failed\",\"error\":");
                    write_string(out, why);
                }
            }
        });
    }

    /// Continues a hand-over when a deadline has passed.
    pub(crate) fn go_on_handing_over(&mut self) {
        let (handover, now) = (self.cx.lifecycle.handover, self.cx.now.mono);
        if !handover.is_due(now) {
            return;
        }
        if handover.is_quieting() {
            self.walks += 1;
            let quiet = !self.clients.iter().any(|(_, client)| !client.admin && client.is_arriving())
                && !self.exchanges.iter().any(|(_, exchange)| exchange.may_be_admitted());
            match self.can_give_ledger() {
                true => self.hand_over(upgrade::UpgradeEvent::Looked { quiet }),
                false => self.call_off("failed: the ledger is not available"),
            }
        } else if handover.is_impatient(now) {
            self.hand_over(upgrade::UpgradeEvent::Impatient);
        } else {
            self.call_off("failed: the successor is late");
        }
    }

    /// Handles an event of a hand-over.
    pub(crate) fn hand_over(&mut self, event: upgrade::UpgradeEvent) {
        let (next, step) = self.cx.lifecycle.handover.on(event, self.cx.now.mono);
        self.cx.lifecycle.handover = next;
        match step {
            upgrade::UpgradeStep::Nothing => {}
            upgrade::UpgradeStep::Start => self.cx.actions.push(Action::StartSuccessor),
            // Streams have no deadline; TERM still limits them.
            upgrade::UpgradeStep::Quiet => self.begin_drain(Mono::NEVER),
            upgrade::UpgradeStep::GiveAway => {
                // The successor gets no bodies whose tokens it could count.
                self.count_bounded(None);
                let running = self.running();
                self.cx.orders.push(Order::HandOver(running));
            }
            upgrade::UpgradeStep::LetServe => {
                self.cx.log_upgrade("handed over");
                // All listeners: the successor answers health checks from now on.
                self.cx.actions.push(Action::StopAccepting(usize::MAX));
                let counters = Box::new(self.cx.take_counters());
                self.cx.orders.push(Order::LetServe(counters));
            }
            upgrade::UpgradeStep::TakeBack => self.cx.orders.push(Order::TakeBack),
            upgrade::UpgradeStep::Resume => {
                self.cx.lifecycle.drain.take_if(|drain| !drain.is_bounded());
                self.cx.log_upgrade(match self.cx.lifecycle.is_stopping() {
                    true => "the successor has been ended",
                    false => "serving on without a successor",
                });
            }
        }
    }

    /// Returns the requests still served here, and those by a predecessor whose rows this process writes.
    fn running(&self) -> Vec<Running> {
        let (meter, keys) = (&self.cx.meter, &self.cx.keys);
        let own = self.exchanges.iter().filter_map(|(_, exchange)| exchange.job.running(meter, keys));
        own.chain(self.cx.lifecycle.inheritance.running()).collect()
    }

    /// Closes connections to providers that were kept for later requests.
    pub(crate) fn close_idle_providers(&mut self) {
        for id in self.cx.idle.drain() {
            self.close_provider(id);
        }
    }

    /// Continues answers that wait for memory if some is free, and one of them in any case. Updates the connections if
    /// more or fewer of them may be read than before.
    pub(crate) fn look_at_room(&mut self) {
        if self.cx.turns.alone.is_some() || !self.cx.turns.is_empty() {
            self.go_on_waiting();
        }
        let eased = self.cx.budget.take_eased();
        if eased {
            self.go_on_by_key();
        }
        let gate = Budget::gate(&self.cx.pool, self.cx.gate);
        if gate != self.cx.gate || eased || (self.cx.gate == Gate::Narrow && self.cx.turns.take_emptied()) {
            self.cx.gate = gate;
            if gate != Gate::Shut {
                self.dirty.extend(self.providers.iter().map(|(id, _)| provider_conn(id)));
            }
            if gate == Gate::Open {
                self.dirty.extend(self.clients.iter().map(|(id, _)| client_conn(id)));
            }
        }
    }

    fn go_on_waiting(&mut self) {
        let is_free = Budget::has_room(0, false, &self.cx.pool);
        let has_part = |id| self.exchanges.get(id).is_some_and(|one| one.state.holds_part());
        if self.cx.turns.alone.is_some_and(|id| is_free || !has_part(id)) {
            self.cx.turns.alone = None;
        }
        for _ in 0..TURNS_MAX {
            let waits = |id| self.exchanges.get(id).is_some_and(|one| one.state.waits_for_room());
            let Some(id) = self.cx.turns.next(&self.cx.pool, waits) else { return };
            self.tell_room(id);
        }
    }

    /// Retries the answers that wait for their keys' shares.
    fn go_on_by_key(&mut self) {
        for _ in 0..self.cx.turns.by_key.len() {
            let Some((id, key)) = self.cx.turns.by_key.pop_front() else { return };
            self.cx.budget.waits_no_more(key);
            self.tell_room(id);
        }
    }

    fn tell_room(&mut self, id: ExchangeId) {
        if self.exchanges.get(id).is_some_and(|one| one.state.waits_for_room()) {
            self.cx.turns.served = Some(id);
            self.tell(id, ExchangeEvent::Room);
            self.resume(id);
            self.cx.turns.served = None;
        }
    }

    /// Continues stopping: closes idle connections, ends requests that run too long, exits when none are left.
    pub(crate) fn go_on_stopping(&mut self) {
        let now = self.cx.now.mono;
        match self.cx.lifecycle.drain.as_mut().and_then(|drain| drain.step(now)) {
            Some(drain::DrainStep::CloseIdle) => self.close_idle_clients(),
            Some(drain::DrainStep::EndAll) => self.end_all_clients(),
            None => {}
        }
        let is_over = self.cx.lifecycle.is_over();
        if self.cx.limits.clients() == 0 && (is_over || !self.cx.lifecycle.is_needed()) {
            // Health checks are not waited for.
            for id in self.client_ids() {
                let is_cut =
                    self.cx.desk.scrapes(id) || self.clients.get(id).is_some_and(|client| client.unsent_bytes() > 0);
                self.close_client(id, if is_cut { Shut::Abort } else { Shut::Clean });
            }
            self.cx.tell_of_suppressed(true);
            self.cx.actions.push(Action::Exit);
        }
    }

    fn client_ids(&mut self) -> Vec<ClientId> {
        self.walks += 1;
        self.clients.iter().map(|(id, _)| id).collect()
    }

    /// Closes idle connections. Connections whose clients still read their last answer are closed afterwards.
    fn close_idle_clients(&mut self) {
        let by = self.cx.now.mono.after(DRAIN_IDLE_GRACE);
        for id in self.client_ids() {
            let Some(client) = self.clients.get_mut(id).filter(|client| !client.admin) else { continue };
            if client.is_idle() {
                self.close_client(id, Shut::Clean);
            } else if client.hasten(by) {
                self.arm(id);
            }
        }
    }

    /// Ends every exchange and closes every connection at the end of the drain time.
    fn end_all_clients(&mut self) {
        for id in self.client_ids() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            match client.exchange {
                Some(exchange) => self.tell(exchange, ExchangeEvent::Stopped),
                // A clean end would make half of the metrics look complete.
                None if self.cx.desk.scrapes(id) => self.drop_client(id),
                None => {
                    if let Some(shut) = client.close_when_written(&mut self.cx.pool) {
                        self.close_client(id, shut);
                    }
                }
            }
        }
    }
}
