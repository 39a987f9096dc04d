//! Owns the thread of a shared ledger: sends questions and rows in one pipeline, passes the answers to the event loop,
//! keeps this host's lease alive, and reconnects by itself when the ledger is back.
//!
//! No row is dropped while the thread lives: rows that cannot be sent are kept and sent again under the same number, so
//! that they count once however often they arrive. Every question is answered, with [`Ruling::Unavailable`] if the
//! ledger cannot be reached. After every failure the host announces itself under a new name with its present
//! reservations. So a reservation made in an answer that never arrived does not last.

mod batches;
mod handle;
mod lents;
mod seam;

use super::End;
use super::api::{Batch, StoreError, answers, ids, unavailable};
use super::follow::KeysSeen;
use super::remote::epoch::OLDER;
use super::remote::{Done, Holds, RemoteCommand, Speaker, places};
use super::watch::Watch;
use super::writer_clocks::FoldGuard;
use crate::base::limits;
use crate::base::time::{Mono, Unix};
use crate::io::batch_queue::{BatchQueue, IdlePolicy, Polled};
use crate::policy::keys::{KeyId, ShownKey};
use crate::policy::ledger::LedgerNotice;
use crate::policy::ledger::{Ask, AskAnswer, Grant, Release, Ruling, Use};
use crate::policy::meter::Lease;
use crate::policy::row::Row;
use crate::store::bounds;
use batches::{batches_of, count_alone};
pub use handle::spawn;
use lents::Lents;
pub use seam::SharedStore;
use std::collections::VecDeque;
use std::time::Duration;

/// Time after its last commit within which a host expects its number in a shared ledger, which keeps it for seven days.
const BATCH_NUMBER: Duration = Duration::from_secs(6 * 86_400);
/// Former names of a host that end when it is announced again. Beyond that number they end with their lease.
const FORMER_NAMES_MAX: usize = 8;
/// Commands sent to a shared ledger at once.
const COMMANDS_PER_PIPELINE: usize = 256;
/// Time that a request waits for capacity that is granted to other hosts.
const CALL_TIMEOUT: Duration = Duration::from_millis(250);
/// Interval at which such a request asks again.
const CALL_TICK: Duration = Duration::from_millis(5);
/// Requests that ask at the same time while they wait.
const CALLS_AT_ONCE: usize = 8;
/// Rows folded in one step in a shared ledger, which serves nobody else meanwhile.
const ROWS_PER_SHARED_FOLD: usize = 500;

/// Task for the thread.
#[derive(Debug)]
pub enum Task {
    /// A row.
    Row(Row),
    /// A question.
    Ask(Ask),
    /// A lease that is released without a row.
    Release(Release),
    /// A use of a grant.
    Use(Use),
    /// Keys to look up.
    LookUp(Vec<ShownKey>),
    /// Grants in this account are called in.
    Called(String),
}

/// Times of the next periodic tasks.
#[derive(Default)]
struct Due {
    connect: Mono,
    look: Mono,
    renew: Mono,
    fold: Mono,
}

/// Work of the thread. Does not pause and does not wait by itself.
pub struct SharedThread<S: SharedStore, F: Fn(LedgerNotice)> {
    /// Dropped first: if the thread dies, nothing may delay the notice.
    watch: Watch<F>,
    remote: S,
    speaker: Speaker,
    /// Former names of this host that the ledger may still know, oldest first.
    formers: Vec<String>,
    /// Rows that are not in the ledger yet, oldest first.
    batches: VecDeque<Batch>,
    /// Number given last.
    numbered: u64,
    /// Number of the last batch that the ledger has accepted, and the time; `None` if the ledger has lost it.
    committed: Option<(u64, Mono)>,
    releases: Vec<Release>,
    /// Keys to look up.
    lookups: Vec<ShownKey>,
    /// Reservations that the ledger has given to this host and that are not released.
    holds: Holds,
    lents: Lents,
    /// Questions that wait for grants of other hosts.
    waiting: Vec<Ask>,
    /// A waiting question was answered in the last round, so more may be now.
    went_on: bool,
    /// Grants to give back.
    returned: Vec<u64>,
    /// Questions, or batches, sent at a time: fewer after a pipeline that the ledger could not execute in time.
    room: usize,
    /// The ledger knows this host under its present name.
    announced: bool,
    /// Epoch of the ledger.
    epoch: Option<String>,
    next: Due,
}

impl<S: SharedStore, F: Fn(LedgerNotice)> SharedThread<S, F> {
    /// Creates the work of a host that is not announced yet; `tell` takes its notices. `seen`: see [`super::Duties`].
    pub fn new(remote: S, speaker: Speaker, folding: FoldGuard, seen: KeysSeen, tell: F) -> Self {
        SharedThread {
            remote,
            watch: Watch::new(seen, folding, tell),
            speaker,
            formers: Vec::new(),
            batches: VecDeque::new(),
            numbered: 0,
            committed: None,
            releases: Vec::new(),
            lookups: Vec::new(),
            holds: Holds::new(),
            lents: Lents::default(),
            waiting: Vec::new(),
            went_on: false,
            returned: Vec::new(),
            room: COMMANDS_PER_PIPELINE,
            announced: false,
            epoch: None,
            next: Due::default(),
        }
    }

    fn serve(mut self, queue: &BatchQueue<Vec<Task>>) -> Vec<Batch> {
        let (mut tasks, mut idle) = (Vec::new(), IdlePolicy::new(limits::COMMIT_TICK));
        let mut wait = bounds::KEYS_LOOK;
        loop {
            let polled = queue.poll(&mut tasks, &mut idle, wait, Vec::is_empty);
            wait = self.round(&mut tasks);
            if polled == Polled::Closed {
                return self.leave();
            }
        }
    }

    /// Does all tasks and all other work that is due. Returns the time until the next round if no task is urgent.
    pub fn round(&mut self, tasks: &mut Vec<Task>) -> Duration {
        let asks = self.take(tasks);
        self.work(asks);
        match (self.waiting.is_empty(), self.went_on) {
            (true, _) if self.watch.follower.is_reading() => bounds::KEYS_REST,
            (true, _) => bounds::KEYS_LOOK,
            (false, true) => Duration::ZERO,
            (false, false) => CALL_TICK,
        }
    }

    /// Puts the rows of the tasks into numbered batches, and returns their questions.
    fn take(&mut self, tasks: &mut Vec<Task>) -> Vec<Ask> {
        let (mut asks, mut rows, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        for task in tasks.drain(..) {
            match task {
                Task::Row(row) => rows.push(row),
                Task::Ask(ask) => asks.push(ask),
                Task::Use(Use::Returned(number)) => {
                    self.lents.remove(number);
                    self.returned.push(number);
                }
                Task::Use(Use::Took(number, key, lease)) => {
                    self.lents.used(number, lease.reserved);
                    uses.push(Use::Took(number, key, lease));
                }
                Task::Use(one @ (Use::Served(..) | Use::Left(..))) => uses.push(one),
                Task::Called(account) => (self.watch.tell)(LedgerNotice::CalledIn(account)),
                Task::Release(release) => self.releases.push(release),
                Task::LookUp(ids) => self.lookups.extend(ids),
            }
        }
        self.batches.extend(batches_of(uses, rows, &self.speaker.writer, &mut self.numbered));
        asks
    }

    /// Does one round: reconnects if needed, sends, and maintains keys, lease and old rows.
    fn work(&mut self, mut asks: Vec<Ask>) {
        let (back, now) = (self.come_back(), self.remote.watch());
        asks.iter_mut().for_each(|ask| ask.wish.waits = true);
        self.went_on = false;
        let later = self.waiting.split_off(self.waiting.len().min(CALLS_AT_ONCE));
        for mut ask in std::mem::replace(&mut self.waiting, later) {
            ask.wish.waits = now < ask.wish.by;
            asks.push(ask);
        }
        if back.is_err() {
            self.answer_none(&asks);
        }
        self.lents.wish(&mut asks, now);
        if self.is_ready() {
            asks.extend(self.lents.renewals(now));
        }
        let done =
            back.and_then(|()| self.exchange(&mut asks)).and_then(|()| self.look_up()).and_then(|()| self.look_after());
        let left = std::mem::take(&mut self.lookups);
        if !left.is_empty() {
            (self.watch.tell)(LedgerNotice::LookedUp(unavailable(&left)));
        }
        self.watch.tell_odd(&mut self.remote);
        match done {
            Ok(true) => self.watch.succeeded(),
            // Paused between two attempts. Questions asked in the meantime have been answered.
            Ok(false) => {}
            Err(error) => self.failed_with(&error),
        }
    }

    /// Connects and announces this host unless that is done.
    fn come_back(&mut self) -> Result<(), StoreError> {
        let now = self.remote.watch();
        if self.remote.is_connected() && self.announced {
            return Ok(());
        }
        if now < self.next.connect {
            return Ok(());
        }
        self.next.connect = now.after(bounds::COMMIT_RETRY);
        self.come_back_at_once()
    }

    /// Connects, and announces this host under a new name.
    fn come_back_at_once(&mut self) -> Result<(), StoreError> {
        self.announced = false;
        // Leases that were given back meanwhile are not reserved any more.
        self.drop_releases();
        // An earlier announcement may have arrived, although it was not answered.
        if self.formers.len() == FORMER_NAMES_MAX {
            self.formers.remove(1);
        }
        self.formers.push(self.speaker.host.clone());
        if let Ok(name) = self.remote.fresh_name() {
            self.speaker.host = name;
        }
        self.remote.announce(&self.speaker, &self.formers.join(" "), &self.holds)?;
        self.formers.clear();
        self.announced = true;
        let epoch = self.remote.epoch().map(str::to_owned);
        let known = std::mem::replace(&mut self.epoch, epoch);
        if known.is_some() && known != self.epoch {
            (self.watch.tell)(LedgerNotice::BegunAnew);
            // Admissions of the former ledger do not count in this one.
            self.holds.values_mut().for_each(|held| held.asked = 0);
            self.batches
                .iter_mut()
                .for_each(|batch| batch.uses.retain(|one| !matches!(one, Use::Served(..) | Use::Left(..))));
            self.committed = None;
            return self.come_back_at_once();
        }
        let is_recent = |at: Mono| self.remote.watch().micros_since(at) < BATCH_NUMBER.as_micros() as u64;
        if let Some((number, _)) = self.committed.filter(|(_, at)| is_recent(*at))
            && self.remote.last_batch(&self.speaker)? < number
        {
            (self.watch.tell)(LedgerNotice::Warning(OLDER.to_string()));
            self.committed = None;
        }
        self.next.renew = self.remote.watch().after(bounds::LEASE / 3);
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.remote.is_connected() && self.announced
    }

    /// Sends releases, rows and questions, in this order, so that ended requests make room first. Every question is
    /// answered in any case.
    fn exchange(&mut self, asks: &mut [Ask]) -> Result<(), StoreError> {
        if !self.is_ready() {
            self.answer_none(asks);
            self.returned.clear();
            self.drop_releases();
            return Ok(());
        }
        let (mut rest, mut first, mut interrupted, mut advances) = (asks, true, false, false);
        let until = self.remote.watch().after(bounds::SHARED_ANSWER);
        while first || !rest.is_empty() || !self.batches.is_empty() || !self.releases.is_empty() {
            first = false;
            let (releases, returned) = (std::mem::take(&mut self.releases), std::mem::take(&mut self.returned));
            // Order: amounts taken from grants, then the remainders of grants, then the leases given back.
            let batches = self.batches.iter().take(self.room.min(COMMANDS_PER_PIPELINE / 8));
            let mut commands: Vec<RemoteCommand<'_>> = Vec::new();
            commands.extend(
                batches.filter_map(|batch| Some(RemoteCommand::Rows(batch.sent.as_ref()?.1, &batch.rows, &batch.uses))),
            );
            let sent = commands.len();
            if !releases.is_empty() {
                commands.push(RemoteCommand::Release(&releases));
            }
            commands.extend(returned.iter().map(|number| RemoteCommand::Return(*number)));
            let room = COMMANDS_PER_PIPELINE.saturating_sub(commands.len()).max(1);
            let now = rest.len().min(room).min(self.room);
            commands.extend(rest[..now].iter().map(RemoteCommand::Ask));
            if commands.is_empty() {
                return Ok(());
            }
            let asked = self.remote.watch();
            let (late, error) = match self.remote.send(&self.speaker, &commands) {
                Ok(done) => {
                    self.settle(sent, &done, asked);
                    (done.iter().filter(|done| **done == Done::Late).count(), None)
                }
                Err(error) => {
                    // Grants in an answer that never arrived end by themselves.
                    self.lents.take();
                    (now, Some(error))
                }
            };
            releases.iter().for_each(|one| self.give_back(&one.key, &one.lease, one.unsent));
            // The server executes commands in this order, so that the last questions are late.
            let answered = now - late;
            (rest, advances) = (&mut rest[answered..], advances || error.is_none());
            if error.is_none() && late == 0 {
                let more = if answered.max(sent) == self.room { 1 + self.room / 8 } else { 0 };
                self.room = (self.room + more).min(COMMANDS_PER_PIPELINE);
                continue;
            }
            rest.iter_mut().for_each(|ask| ask.wish.part = 0);
            // Interrupted commands may have been done, so all of them are sent again under a new name.
            let is_lost = error.as_ref().is_some_and(|error| !matches!(error, StoreError::Interrupted(_)));
            if !is_lost {
                // If nothing was answered, the ledger or this process stood still for a moment, whatever the number.
                self.room = (if answered > 0 { answered } else { self.room } / 2).max(1);
            }
            let again = !is_lost && (!interrupted || self.remote.watch() < until);
            // A ledger that is only slow has not failed: the rest may be asked again.
            let error = error.filter(|_| is_lost || !advances);
            let back = if again { self.come_back_at_once() } else { error.map_or(Ok(()), Err) };
            if !again || back.is_err() {
                self.announced = false;
                self.answer_none(rest);
                return back;
            }
            interrupted = true;
        }
        Ok(())
    }

    /// Gives back leases under the host's former name: the next announcement does not contain them.
    fn drop_releases(&mut self) {
        for release in std::mem::take(&mut self.releases) {
            self.give_back(&release.key, &release.lease, release.unsent);
        }
    }

    /// Records the outcomes of the first `sent` batches, which come first, and of the questions, which were sent after
    /// `asked`.
    fn settle(&mut self, sent: usize, done: &[Done], asked: Mono) {
        let mut committed = 0;
        let batches: Vec<Batch> = self.batches.drain(..sent).collect();
        for (batch, done) in batches.iter().zip(done) {
            committed += batch.rows.len() as u64;
            self.committed = batch.sent.as_ref().map(|(_, number)| (*number, asked));
            self.watch.folding.wrote(&batch.rows);
            for one in &batch.uses {
                match one {
                    Use::Took(_, key, lease) => self.hold(key, lease, 0),
                    Use::Served(key, lease) => {
                        for name in places(key, lease) {
                            self.holds.entry(name).and_modify(|held| held.asked = held.asked.saturating_sub(1));
                        }
                    }
                    Use::Left(key, lease, _) => self.give_back(key, lease, false),
                    Use::Returned(_) => {}
                }
            }
            // Taken under a former name of this host: it announces itself under another name with all its reservations.
            let is_moved = *done == Done::Before && !batch.uses.is_empty();
            self.announced &= !is_moved;
            let lent = |row: &'_ Row| row.lease.as_deref().filter(|lease| lease.shared).cloned();
            for (row, lease) in batch.rows.iter().filter_map(|row| Some((row, lent(row)?))) {
                match done {
                    // Lent under a former name of this host, and announced again under the present one.
                    Done::Before if !is_moved => self.releases.push(Release { key: row.key, lease, unsent: false }),
                    _ => self.give_back(&row.key, &lease, false),
                }
            }
        }
        if committed > 0 {
            (self.watch.tell)(LedgerNotice::Committed(committed));
        }
        for done in done {
            match done {
                Done::Answer(answer) => self.heard(answer, asked),
                Done::Ended => self.announced = false,
                Done::Unanswered(ask) => self.answer_none(std::slice::from_ref(ask)),
                Done::Done | Done::Before | Done::Late => {}
            }
        }
    }

    /// Records the reservation of a lease. `asked` is 1 if the ledger has admitted its request.
    fn hold(&mut self, key: &KeyId, lease: &Lease, asked: u64) {
        for name in places(key, lease) {
            let held = self.holds.entry(name).or_default();
            held.reserved = held.reserved.plus(lease.reserved);
            (held.running, held.asked) = (held.running + 1, held.asked + asked);
        }
    }

    fn heard(&mut self, answer: &AskAnswer, asked: Mono) {
        let (ask, now) = (&answer.ask, self.remote.watch());
        let until = asked.after(bounds::GRANT - bounds::GRANT_MARGIN);
        self.lents.answered(answer, until, now);
        self.went_on |= ask.wish.by > Mono(0) && answer.ruling != Ruling::Called;
        match answer.ruling {
            Ruling::Admitted => self.hold(&ask.key, &ask.lease, 1),
            Ruling::Called => {
                let mut ask = ask.clone();
                if ask.wish.by == Mono(0) {
                    ask.wish.by = now.after(CALL_TIMEOUT);
                }
                return self.waiting.push(ask);
            }
            // The lease of this host has ended: it must announce itself under a new name first.
            Ruling::Unavailable => self.announced = false,
            Ruling::Refused(..) | Ruling::Less(_) | Ruling::Looked => {}
        }
        let grant = answer.grant.map(|grant| Grant { until, ..grant });
        (self.watch.tell)(LedgerNotice::Answered(Box::new(AskAnswer { grant, ..answer.clone() })));
    }

    /// Releases the reservation of a lease. `unsent`: the ledger has admitted the request, which does not count.
    fn give_back(&mut self, key: &KeyId, lease: &Lease, unsent: bool) {
        for name in places(key, lease) {
            let Some(held) = self.holds.get_mut(&name) else { continue };
            held.reserved = held.reserved.minus(lease.reserved);
            held.running = held.running.saturating_sub(1);
            held.asked = held.asked.saturating_sub(u64::from(unsent));
            if held.running == 0 {
                self.holds.remove(&name);
            }
        }
    }

    fn answer_none(&self, asks: &[Ask]) {
        for ask in asks {
            (self.watch.tell)(LedgerNotice::Answered(Box::new(AskAnswer::unavailable(ask.clone()))));
        }
    }

    /// Looks up the requested keys. Keys that are left over cannot be looked up.
    fn look_up(&mut self) -> Result<(), StoreError> {
        while self.is_ready() && !self.lookups.is_empty() {
            let shown: Vec<ShownKey> = self.lookups.drain(..self.lookups.len().min(limits::IDS_PER_LOOKUP)).collect();
            let found = self.remote.find_keys(&ids(&shown));
            let failed = found.is_err();
            (self.watch.tell)(LedgerNotice::LookedUp(answers(&shown, found)));
            if failed {
                break;
            }
        }
        Ok(())
    }

    /// Reads changes of the keys, renews the lease, and folds old rows. Returns true if all of this works.
    fn look_after(&mut self) -> Result<bool, StoreError> {
        if !self.is_ready() {
            return Ok(false);
        }
        let now = self.remote.watch();
        if now >= self.next.renew {
            self.announced &= self.remote.renew(&self.speaker)?;
            self.next.renew = now.after(bounds::LEASE / 3);
        }
        if now >= self.next.look {
            let before = self.remote.unix();
            self.remote.follow_clock()?;
            self.look_at_clock(before)?;
            self.next.look = now.after(bounds::KEYS_LOOK);
            self.look_at_keys()?;
        } else if self.watch.follower.is_reading() {
            self.look_at_keys()?;
        }
        if now >= self.next.fold
            && let Some(before) = self.watch.folding.before(self.remote.unix())
        {
            let count = self.remote.fold(before, ROWS_PER_SHARED_FOLD)?;
            let more = count >= ROWS_PER_SHARED_FOLD as u64;
            self.next.fold = now.after(if more { bounds::FOLD_PAUSE } else { bounds::FOLD_REST });
        }
        Ok(true)
    }

    fn look_at_keys(&mut self) -> Result<(), StoreError> {
        match self.watch.look_at_keys(&mut self.remote)? {
            true => self.watch.look_at_writer_clocks(&mut self.remote),
            false => Ok(()),
        }
    }

    /// Checks whether the ledger's clock has jumped since `before`, and whether it permits folding.
    fn look_at_clock(&mut self, before: Unix) -> Result<(), StoreError> {
        let now = self.remote.unix();
        let jumped = now.0.abs_diff(before.0) > limits::CLOCK_BEHIND_MAX.as_millis() as u64;
        // Other hosts may have written since the last check.
        if jumped || self.watch.folding.gap(now) != self.watch.folding.clocks.held {
            self.watch.look_at_writer_clocks(&mut self.remote)?;
        }
        self.watch.judge_clock(&mut self.remote, now)
    }

    fn failed_with(&mut self, error: &StoreError) {
        self.announced = false;
        let waiting = std::mem::take(&mut self.waiting);
        self.answer_none(&waiting);
        self.watch.failed_with(error);
    }

    /// Ends the work: sends all batches, with attempts limited by `bounds::LAST_COMMITS`, and ends the host's lease.
    fn leave(&mut self) -> Vec<Batch> {
        let mut end = End::default();
        while !self.batches.is_empty() && !end.has_come(true) {
            std::thread::sleep(bounds::COMMIT_RETRY);
            self.work(Vec::new());
        }
        if self.is_ready() {
            let returned = self.lents.take();
            let returned: Vec<RemoteCommand<'_>> =
                returned.iter().map(|number| RemoteCommand::Return(*number)).collect();
            // Grants that are not given back end by themselves.
            let _ = self.remote.send(&self.speaker, &returned);
            // The remaining reservations end with the lease in any case.
            let _ = self.remote.leave(&self.speaker);
        }
        let mut left: Vec<Batch> = self.batches.drain(..).collect();
        count_alone(&mut left);
        left
    }
}
