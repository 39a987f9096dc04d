//! The phase `Asking`: with a shared ledger it is the ledger that admits, for all hosts at once. Here the question is
//! put, the answer taken, and done what the configuration says if there is none (`on_outage`).

use super::Gateway;
use super::admit::Endpoint;
use super::client::Phase as ClientPhase;
use super::exchange::{Exchange, Phase};
use super::orders::Order;
use crate::base::limits::{ASK_PATIENCE, ROW_TOKENS_MAX, ROWS_WAITING_MAX};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use crate::policy::ask::{Answer, Ask, Limits, Release, Ruling};
use crate::policy::config::{OnOutage, StoreUrl};
use crate::policy::keys::KeyIx;
use crate::policy::meter::Lease;
use crate::policy::plan::Plan;
use crate::policy::refusal::Refusal;

impl Gateway {
    /// Whether several hosts share the ledger.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.config.store.url, StoreUrl::Redis(_))
    }

    /// Whether this host goes on alone while the shared ledger cannot be reached.
    fn goes_on_alone(&self) -> bool {
        self.is_shared() && self.config.store.on_outage == OnOutage::Local
    }

    /// Whether another request may be admitted: nothing is let through unmetered (contract section 5).
    pub(crate) fn takes_requests(&self, now: Now) -> bool {
        let caught_up = self.ledger.takes_rows(now.mono, self.config.store.max_commit_lag);
        caught_up || (self.goes_on_alone() && self.ledger.uncommitted() < ROWS_WAITING_MAX)
    }

    /// Whether the ledger is to be asked for this request: not where that is known to be in vain.
    pub(crate) fn asks_ledger(&self) -> bool {
        self.is_shared() && !(self.ledger.is_failed() && self.goes_on_alone())
    }

    /// Puts the question for an exchange that would reserve `estimate` tokens; it waits for the answer.
    pub(crate) fn ask(&mut self, xid: Id<Exchange>, estimate: u64, now: Now) -> Result<(), Refusal> {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(()) };
        let Some(key) = ex.finding.key else { return Ok(()) };
        let record = self.keys.record(key);
        let plan = self.config.plan(&record.plan).ok_or_else(Refusal::no_plan)?;
        let estimate = estimate.min(ROW_TOKENS_MAX);
        let lease = self.meter.lease_for(key, plan, now.unix, estimate);
        ex.lease = Some(Box::new(lease));
        let limits = limits_of(plan);
        let ask = Ask { number: (xid.slot, xid.generation), key: record.id, lease, limits: Some(limits) };
        self.put_question(xid, ask, now);
        Ok(())
    }

    /// How a key stands is asked of the ledger too, since other hosts have a part in it. A request with a body, which
    /// nobody sends, is answered from what is known.
    pub(crate) fn look(&mut self, ex: Exchange, now: Now) {
        let key = ex.finding.key.filter(|_| ex.head.bodiless && self.asks_ledger());
        let plan = key.and_then(|key| self.config.plan(&self.keys.record(key).plan));
        let (Some(key), Some(plan)) = (key, plan) else { return self.answer_local(ex, Endpoint::Quota, now) };
        let lease = self.meter.lease_for(key, plan, now.unix, 0);
        let (cid, id) = (ex.client, self.keys.record(key).id);
        let xid = self.exchanges.insert(ex);
        if let Some(client) = self.clients.get_mut(cid) {
            client.exchange = Some(xid);
            client.phase = ClientPhase::Busy;
            client.wait = Mono::NEVER;
        }
        self.put_question(xid, Ask { number: (xid.slot, xid.generation), key: id, lease, limits: None }, now);
    }

    fn put_question(&mut self, xid: Id<Exchange>, ask: Ask, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.phase = Phase::Asking;
        ex.admitted = now.unix;
        ex.deadline = now.mono.after(ASK_PATIENCE);
        let cid = ex.client;
        self.arm_client(cid);
        for order in &mut self.orders {
            if let Order::Asks(asks) = order {
                return asks.push(ask);
            }
        }
        self.orders.push(Order::Asks(vec![ask]));
    }

    /// The ledger has answered.
    pub(crate) fn answered(&mut self, answer: Answer, now: Now) {
        let ask = &answer.ask;
        if let Some(key) = self.keys.index_of(&ask.key)
            && let Some(plan) = self.config.plan(&self.keys.record(key).plan)
            && answer.ruling != Ruling::Unavailable
        {
            self.meter.learn(key, plan, now.unix, &answer.counts);
        }
        let xid = Id::new(ask.number.0, ask.number.1);
        let Some(ex) = self.exchanges.get(xid).filter(|ex| ex.phase == Phase::Asking) else {
            // Whoever asked has left, or has waited too long; what was lent goes back.
            if answer.ruling == Ruling::Admitted {
                self.give_back(Release { key: ask.key, lease: ask.lease });
            }
            return;
        };
        let cid = ex.client;
        match answer.ruling {
            Ruling::Admitted => self.granted(xid, ask, now),
            Ruling::Looked => self.looked(xid, now),
            Ruling::Unavailable => self.ask_failed(xid, now),
            Ruling::Refused(kind) => {
                let plan = self.plan_of(xid);
                if let Some((key, plan)) = plan {
                    let limit = self.meter.limit(key, &plan, now.unix, kind);
                    self.refuse_open(xid, &Refusal::limit(&limit), now);
                } else {
                    self.refuse_open(xid, &Refusal::no_plan(), now);
                }
            }
        }
        self.advance(cid, now);
    }

    fn granted(&mut self, xid: Id<Exchange>, ask: &Ask, now: Now) {
        let Some((key, plan)) = self.plan_of(xid) else {
            self.give_back(Release { key: ask.key, lease: ask.lease });
            return self.refuse_open(xid, &Refusal::no_plan(), now);
        };
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let lease = Lease { shared: true, ..ask.lease };
        ex.lease = Some(Box::new(lease));
        ex.hold = Some(self.meter.grant(key, &plan, ex.admitted, lease));
        self.serve(xid, now);
    }

    fn looked(&mut self, xid: Id<Exchange>, now: Now) {
        if let Some(ex) = self.take_exchange(xid) {
            self.answer_local(ex, Endpoint::Quota, now);
        }
    }

    /// The ledger has not decided: what the configuration says for that.
    pub(crate) fn ask_failed(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get(xid) else { return };
        if ex.finding.endpoint == Some(Endpoint::Quota) && self.goes_on_alone() {
            return self.looked(xid, now);
        }
        if !self.goes_on_alone() {
            return self.refuse_open(xid, &Refusal::store(), now);
        }
        let estimate = ex.lease.as_ref().map_or(0, |lease| lease.reserved);
        match self.admit_alone(xid, estimate, now) {
            Ok(()) => self.serve(xid, now),
            Err(refusal) => self.refuse_open(xid, &refusal, now),
        }
    }

    /// Admits by this process's own counters: where no ledger is shared, or by the host's share of every limit while
    /// the shared one cannot be reached.
    pub(crate) fn admit_alone(&mut self, xid: Id<Exchange>, estimate: u64, now: Now) -> Result<(), Refusal> {
        let (key, plan) = self.plan_of(xid).ok_or_else(Refusal::no_plan)?;
        let shared = self.is_shared();
        let hosts = if shared { self.config.store.hosts } else { 1 };
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(()) };
        let admitted = match hosts {
            1 => self.meter.admit(key, &plan, now.unix, estimate),
            hosts => self.meter.admit(key, &plan.share(hosts), now.unix, estimate),
        };
        let hold = admitted.map_err(|limit| Refusal::limit(&limit))?;
        ex.lease = shared.then(|| Box::new(self.meter.lease(&hold)));
        ex.hold = Some(hold);
        ex.admitted = now.unix;
        Ok(())
    }

    fn plan_of(&self, xid: Id<Exchange>) -> Option<(KeyIx, Plan)> {
        let key = self.exchanges.get(xid)?.finding.key?;
        // Limits are those of the present configuration: counters know no other.
        Some((key, self.config.plan(&self.keys.record(key).plan)?.clone()))
    }

    /// Gives a lease back that no row will.
    pub(crate) fn give_back(&mut self, release: Release) {
        for order in &mut self.orders {
            if let Order::Releases(releases) = order {
                return releases.push(release);
            }
        }
        self.orders.push(Order::Releases(vec![release]));
    }
}

fn limits_of(plan: &Plan) -> Limits {
    Limits {
        tokens: plan.tokens,
        requests: plan.requests,
        tokens_per_window: plan.tokens_per_window,
        concurrency: plan.concurrency,
    }
}
