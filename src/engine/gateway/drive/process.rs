//! Events of the process: stopping, handing over.

use super::Driver;
use super::clients::Next;
use crate::base::limits::DRAIN_IDLE_GRACE;
use crate::base::seam::{Action, Shut};
use crate::base::text::push_number;
use crate::base::time::{Mono, Unix};
use crate::gateway::Gateway;
use crate::gateway::exchange::ExchangeEvent;
use crate::gateway::lifecycle::upgrade::Handover;
use crate::gateway::lifecycle::{drain, upgrade};
use crate::gateway::orders::Order;
use crate::policy::window;

impl Gateway {
    /// Does the remaining work of a call: pipelined requests, answers that wait for memory, and stopping. Most events
    /// of a stream leave none.
    #[inline]
    pub(crate) fn settle_down(&mut self) {
        let (lifecycle, cx) = (&self.driver.cx.lifecycle, &self.driver.cx);
        let is_quiet =
            self.driver.clients.queue.is_empty() && !cx.memory.may_have_room() && !cx.upstreams.queues.is_any_waiting();
        if !is_quiet || lifecycle.is_stopping() || lifecycle.handover.is_under_way() {
            self.go_on();
        }
    }

    #[inline(never)]
    fn go_on(&mut self) {
        loop {
            while let Some(next) = self.driver.clients.queue.pop_front() {
                match next {
                    Next::Advance(id) => self.driver.advance(id),
                    Next::Tell(id, event) => self.driver.tell(id, event),
                }
            }
            if self.driver.cx.memory.may_have_room() {
                self.driver.look_at_room();
            }
            // A request that gets a slot may end immediately and free it for the next.
            if !self.driver.cx.upstreams.queues.is_any_waiting() || !self.driver.give_places() {
                break;
            }
        }
        if self.driver.cx.lifecycle.handover.is_under_way() {
            self.go_on_handing_over();
        }
        if self.driver.cx.lifecycle.is_stopping() {
            self.go_on_stopping();
        }
    }

    /// Stops accepting requests, after TERM or at the beginning of a hand-over.
    pub(crate) fn begin_drain(&mut self, until: Mono) {
        let now = self.driver.cx.now.mono;
        match &mut self.driver.cx.lifecycle.drain {
            // A process that hands over has no deadline.
            Some(drain) => drain.bound(until),
            None => {
                let idle_after = now.after(DRAIN_IDLE_GRACE).min(until);
                self.driver.cx.lifecycle.drain = Some(drain::Drain::new(idle_after, until));
                self.driver.providers.close_idle(&mut self.driver.cx);
            }
        }
    }

    /// Handles TERM: stops immediately, or after load balancers have had time to notice. A second TERM skips that
    /// delay.
    pub(crate) fn told_to_stop(&mut self) {
        let lead = self.driver.cx.setup.config.server.drain_lead;
        if lead.is_zero() || self.driver.cx.lifecycle.is_leaving() || self.driver.cx.lifecycle.has_handed_over() {
            return self.terminate();
        }
        let until = Unix(self.driver.cx.now.unix.0.saturating_add(lead.as_millis() as u64));
        self.driver.cx.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"drain_lead\",\"until\":\"");
            window::write_iso(until, out);
            out.push(b'"');
        });
        self.call_off("called off: the process is to stop");
        self.driver.cx.lifecycle.lead = Some(self.driver.cx.now.mono.after(lead));
    }

    /// Stops accepting requests, ends those that take too long, and exits.
    pub(crate) fn terminate(&mut self) {
        self.driver.cx.lifecycle.lead = None;
        let (requests, timeout) =
            (self.driver.exchanges.len() as u64, self.driver.cx.setup.config.server.drain_timeout);
        if self.driver.cx.lifecycle.drain.is_none_or(|drain| !drain.is_bounded()) {
            let until = Unix(self.driver.cx.now.unix.0.saturating_add(timeout.as_millis() as u64));
            self.driver.cx.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"stopping\",\"requests\":");
                push_number(out, requests);
                out.extend_from_slice(b",\"until\":\"");
                window::write_iso(until, out);
                out.push(b'"');
            });
        }
        if !self.driver.cx.lifecycle.handover.is_final() {
            // Health checks must see that the process is stopping, as long as it runs.
            self.driver.cx.commands.actions.push(Action::StopAccepting(self.client_listeners));
        }
        self.call_off("called off: the process is to stop");
        self.begin_drain(self.driver.cx.now.mono.after(timeout));
    }

    /// Handles USR2: starts a successor.
    pub(crate) fn begin_handover(&mut self) {
        let stopping = self.driver.cx.lifecycle.is_stopping() || self.driver.cx.lifecycle.lead.is_some();
        if self.driver.cx.lifecycle.handover != Handover::None || stopping {
            self.driver.cx.log_upgrade("refused: already stopping or handing over");
        } else if !self.driver.cx.can_give_ledger() {
            self.driver.cx.log_upgrade("refused: the ledger is not available");
        } else {
            self.driver.cx.log_upgrade("starting");
            self.hand_over(upgrade::UpgradeEvent::Asked);
        }
    }

    /// Cancels a hand-over, if that is still possible.
    pub(crate) fn call_off(&mut self, why: &str) {
        use Handover::{Given, Quieting, Starting};
        if matches!(self.driver.cx.lifecycle.handover, Starting { .. } | Quieting { .. } | Given { .. }) {
            self.driver.cx.log_upgrade(why);
            self.hand_over(upgrade::UpgradeEvent::CalledOff);
        }
    }

    /// Continues a hand-over when a deadline has passed.
    pub(crate) fn go_on_handing_over(&mut self) {
        let (handover, now) = (self.driver.cx.lifecycle.handover, self.driver.cx.now.mono);
        if !handover.is_due(now) {
            return;
        }
        if handover.is_quieting() {
            self.driver.clients.walks += 1;
            let quiet = !self.driver.clients.table.iter().any(|(_, client)| !client.admin && client.is_arriving())
                && !self.driver.exchanges.iter().any(|(_, one)| one.state.may_be_admitted(&one.job));
            match self.driver.cx.can_give_ledger() {
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
        let (next, step) = self.driver.cx.lifecycle.handover.on(event, self.driver.cx.now.mono);
        self.driver.cx.lifecycle.handover = next;
        match step {
            upgrade::UpgradeStep::Nothing => {}
            upgrade::UpgradeStep::Start => self.driver.cx.commands.actions.push(Action::StartSuccessor),
            // Streams have no deadline; TERM still limits them.
            upgrade::UpgradeStep::Quiet => self.begin_drain(Mono::NEVER),
            upgrade::UpgradeStep::GiveAway => {
                // The successor gets no bodies whose tokens it could count.
                self.driver.count_bounded(None);
                let Driver { exchanges, cx, .. } = &mut self.driver;
                let (accounts, keys) = (&cx.accounts, &cx.access.keys);
                let own =
                    exchanges.iter().filter_map(|(_, one)| one.job.running(&accounts.meter, &accounts.targets, keys));
                // Those of a predecessor too, whose rows this process writes.
                let running = own.chain(cx.lifecycle.inheritance.running()).collect();
                let lists = cx.setup.config.lists();
                cx.commands.orders.push(Order::HandOver(running, lists, Box::new(cx.report.recorder.recorded())));
            }
            upgrade::UpgradeStep::LetServe => {
                self.driver.cx.log_upgrade("handed over");
                // All listeners: the successor answers health checks from now on.
                self.driver.cx.commands.actions.push(Action::StopAccepting(usize::MAX));
                self.driver.cx.commands.orders.push(Order::LetServe);
                for id in self.driver.cx.connections.desk.followers(u64::MAX) {
                    self.driver.admins().live(id, b"event: successor\ndata: {}\n\n");
                }
            }
            upgrade::UpgradeStep::TakeBack => self.driver.cx.commands.orders.push(Order::TakeBack),
            upgrade::UpgradeStep::Resume => {
                self.driver.cx.lifecycle.drain.take_if(|drain| !drain.is_bounded());
                self.driver.cx.log_upgrade(match self.driver.cx.lifecycle.is_stopping() {
                    true => "the successor has been ended",
                    false => "serving on without a successor",
                });
            }
        }
    }

    /// Continues stopping: closes idle connections, ends requests that run too long, exits when none are left.
    pub(crate) fn go_on_stopping(&mut self) {
        let now = self.driver.cx.now.mono;
        match self.driver.cx.lifecycle.drain.as_mut().and_then(|drain| drain.step(now)) {
            Some(drain::DrainStep::CloseIdle) => self.driver.clients.close_idle(&mut self.driver.cx),
            Some(drain::DrainStep::EndAll) => self.end_all_clients(),
            None => {}
        }
        let lifecycle = &self.driver.cx.lifecycle;
        // An exit would lose rows that a predecessor has yet to send, or interrupt a hand-over.
        let is_needed = lifecycle.inheritance.is_present() || lifecycle.handover.is_under_way();
        let is_done = self.driver.cx.connections.limits.clients() == 0 && self.driver.exchanges.is_empty();
        if is_done && (lifecycle.is_over() || !is_needed) {
            // The live feed gets the last requests. This is called again after they are written.
            let mut behind = self.driver.cx.connections.desk.followers(self.driver.cx.report.recorder.next());
            behind.retain(|id| self.driver.clients.table.get(*id).is_some_and(|client| !client.is_full()));
            if !behind.is_empty() {
                return behind.into_iter().for_each(|id| self.driver.admins().live_due(id));
            }
            // Health checks are not waited for.
            for id in self.driver.clients.ids() {
                let is_cut = self.driver.cx.connections.desk.scrapes(id)
                    || self.driver.clients.table.get(id).is_some_and(|client| client.unsent_bytes() > 0);
                self.driver.clients.close(id, if is_cut { Shut::Abort } else { Shut::Clean }, &mut self.driver.cx);
            }
            self.driver.cx.tell_of_suppressed(true);
            self.driver.cx.commands.actions.push(Action::Exit);
        }
    }

    /// Ends every exchange and closes every connection at the end of the drain time.
    fn end_all_clients(&mut self) {
        self.driver.tell_all(&|one| one.state.is_lingering(), &|| ExchangeEvent::Stopped);
        for id in self.driver.clients.ids() {
            let Some(client) = self.driver.clients.table.get_mut(id) else { continue };
            match client.exchange {
                Some(exchange) => self.driver.tell(exchange, ExchangeEvent::Stopped),
                // A follower of the live feed gets the requests that end now. Its connection is closed at the exit.
                None if self.driver.cx.connections.desk.followers(u64::MAX).contains(&id) => {}
                // A clean end would make half of the metrics look complete.
                None if self.driver.cx.connections.desk.scrapes(id) => self.driver.drop_client(id),
                None => {
                    if let Some(shut) = client.close_when_written(&mut self.driver.cx.memory.pool) {
                        self.driver.clients.close(id, shut, &mut self.driver.cx);
                    }
                }
            }
        }
    }
}
