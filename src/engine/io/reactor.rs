//! Owns the event loop: polls, drives a [`Core`] by its methods and performs its actions. Takes no decision of its own.
//!
//! **One iteration**: poll → read the clock once → record the events → mailbox → accept → run queue (each connection at
//! most `limits::IO_SLICE` bytes in) → deadlines → rounds of {write unsent bytes, perform actions, pass on their
//! answers} → hand the orders over. No work is done inside an event.
//!
//! **Ends.** A core receives `closed(Fin)` at most once for a connection, and may still write to it. It ends its own
//! half with [`Action::Finish`] if it likes, and the connection with [`Action::Close`]. It receives `closed(Broken)` at
//! most once, even after a Fin; the socket is gone then, and a later `Close` for it is harmless. If the peer has ended
//! while `wants_read` is false, there may be bytes before the end. If there are none, the core receives the end. If
//! there are, an upstream's are an answer: they wait until they are wanted, and the end after them. A client's are not
//! waited for: a client that ends its half while a request is in flight has left, so the core receives the end at once
//! and those bytes are never read.
//!
//! **A failed write** does not end the connection by itself: a server that refuses a request early answers, closes and
//! thereby resets us, and its answer arrives before the reset. Available bytes are read first.
//!
//! **Orders** go to the outbox at the end of the iteration that gave them, the whole vector at once. The outbox should
//! put them into queues (`io::batch_queue`), which costs no system call while the helper threads are busy. So no row or
//! line waits inside the loop, and the loop needs no clock of its own for them. An iteration with many connections
//! hands over several times, so that the vector stays small.

use super::clock::Clock;
use super::links::{self, Flags, Link, Links, SPECIAL};
use super::listen::Listeners;
use super::mailbox::{Inbox, Mailbox, inbox};
use super::outcome::{Fill, Peek};
use super::resolver::Resolver;
use super::signals::{KINDS, Signals};
use super::transport::{Scratch, Transport};
use crate::base::limits;
use crate::base::seam::{Action, Conn, Core, Ending, Reply, Side, Tunnel};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use mio::{Events, Interest, Poll, Token};
use queues::{RunQueue, Shakes, touch};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use super::tls::{Authority, Security};

mod accept;
mod dial;
mod events;
mod queues;

/// Bytes of storage that the event loop keeps for its next actions, and for their answers. Storage that a burst has
/// made larger is deallocated.
const LIST_KEPT: usize = 4 * 1024;
/// Deadlines handled in one event-loop iteration.
const EXPIRED_PER_TURN: usize = 1024;
/// Connections that are read before the resulting output is written. Writing at once would cost a tenth more time,
/// because reading and writing would evict each other from the processor's cache.
const RUNS_PER_FLUSH: usize = 64;
/// Bytes of providers' events, with [`EVENT_WORK`] for each read, after which an iteration reads the clock again.
const UNCLOCKED_MAX: usize = 4 * 1024;
/// Work of a read besides its bytes, as a number of bytes.
const EVENT_WORK: usize = 256;

/// Initial data of a reactor.
#[derive(Default)]
pub struct ReactorSetup {
    /// Listening sockets; their index is the `listener` of [`Core::accepted`].
    pub listeners: Vec<TcpListener>,
    /// Number of listeners, counted from the first, that show the certificate in `security`, if there is one.
    pub secured: usize,
    /// TLS peers, whose index is the `authority` of [`Action::Dial`], and our own certificate.
    pub security: Security,
}

/// Callback that takes the listening sockets, in their order, for a new process, or the reason that they cannot be
/// duplicated. It must not block: it begins a thread.
pub type Successor = Box<dyn FnMut(io::Result<Vec<OwnedFd>>)>;

/// A message to the loop.
pub enum ReactorMessage<C: Core> {
    /// An answer to an action, from the resolver.
    Reply(Reply),
    /// Notice from a helper thread.
    Notice(C::Notice),
    /// Certificates, read again, for all new connections. Peers keep their index.
    Security(Box<Security>),
}

type Outbox<T> = Box<dyn FnMut(Vec<T>) -> Vec<T>>;

const WAKER: Token = Token(SPECIAL);
const SIGNALS: [Token; KINDS] = [Token(SPECIAL | 1), Token(SPECIAL | 2), Token(SPECIAL | 3)];
const FIRST_LISTENER: usize = SPECIAL | 16;

/// Event loop around one core.
pub struct Reactor<C: Core> {
    core: C,
    clock: Clock,
    poll: Poll,
    links: Links,
    run_queue: RunQueue,
    /// Work since the clock was read, as a number of bytes.
    unclocked: usize,
    /// Requests to the proxies of links that are being dialed.
    tunnels: Vec<(Id<Link>, Tunnel)>,
    /// Connections to be flushed: their socket takes bytes again, or their room in an iteration was used up.
    touched: Vec<Conn>,
    /// Closed TLS connections whose last bytes are unsent, oldest first, with the end of their time.
    parting: VecDeque<(Mono, Id<Link>)>,
    scratch: Scratch,
    listeners: Listeners,
    security: Security,
    successor: Option<Successor>,
    secured: usize,
    /// Handshakes continued in this iteration.
    shakes: Shakes,
    inbox: Inbox<ReactorMessage<C>>,
    notes: Vec<ReactorMessage<C>>,
    mail: bool,
    dirty: Vec<Conn>,
    actions: Vec<Action>,
    replies: Vec<Reply>,
    outbox: Outbox<C::Order>,
    resolver: Option<Resolver>,
    signals: Option<Signals>,
    now: Now,
    /// Time before which the core has no deadline; in the past if unknown.
    due: Mono,
    turn: u16,
    leaving: bool,
}

/// Calls a method of the core. A panic in it fails only the work on `conn`. A panic while that is cleaned up ends the
/// process, since the core's state is unknown then.
#[inline(always)] // most calls are on the path of a request
fn verb<C: Core, R: Default>(core: &mut C, conn: Option<Conn>, now: Now, call: impl FnOnce(&mut C) -> R) -> R {
    catch_unwind(AssertUnwindSafe(|| call(core))).unwrap_or_else(|_| {
        core.panicked(conn, now);
        R::default()
    })
}

impl<C: Core + 'static> Reactor<C> {
    /// Creates the loop: opens the poll and watches the listeners.
    ///
    /// `outbox` receives everything the core orders, once per iteration that has orders. It returns the vector: empty,
    /// or with orders that are empty but keep their storage for the next iteration.
    pub fn new(
        core: C,
        setup: ReactorSetup,
        outbox: impl FnMut(Vec<C::Order>) -> Vec<C::Order> + 'static,
    ) -> io::Result<Reactor<C>> {
        let poll = Poll::new()?;
        let listeners = Listeners::watch(setup.listeners, poll.registry(), |n| Token(FIRST_LISTENER + n))?;
        let inbox = inbox(poll.registry(), WAKER)?;
        let mut clock = Clock::new();
        Ok(Reactor {
            core,
            now: clock.now(),
            clock,
            poll,
            links: Links::default(),
            run_queue: RunQueue::default(),
            unclocked: 0,
            tunnels: Vec::new(),
            touched: Vec::new(),
            parting: VecDeque::new(),
            scratch: Scratch::new(),
            listeners,
            security: setup.security,
            successor: None,
            secured: setup.secured,
            shakes: Shakes::default(),
            inbox,
            notes: Vec::new(),
            mail: false,
            dirty: Vec::with_capacity(limits::LINKS_ROOM),
            actions: Vec::new(),
            replies: Vec::new(),
            outbox: Box::new(outbox),
            resolver: None,
            signals: None,
            due: Mono(0),
            turn: 0,
            leaving: false,
        })
    }

    /// Returns the mailbox for helper threads.
    pub fn mailbox(&self) -> Mailbox<ReactorMessage<C>> {
        self.inbox.mailbox()
    }

    /// Returns the core and the present time, to prepare the core before [`Reactor::run`].
    pub fn core(&mut self) -> (&mut C, Now) {
        self.now = self.clock.now();
        (&mut self.core, self.now)
    }

    /// Sets the callback for [`Action::StartSuccessor`].
    pub fn on_upgrade(&mut self, successor: Successor) {
        self.successor = Some(successor);
    }

    /// Watches signals: TERM, INT, HUP and USR2 reach the core as [`Reply::Signal`], including those received before.
    pub fn watch(&mut self, mut signals: Signals) -> io::Result<()> {
        signals.watch(self.poll.registry(), SIGNALS)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Runs until the core asks to [`Action::Exit`]; returns the core. Fails only if the poll itself does.
    pub fn run(mut self) -> io::Result<C> {
        let mut events = Events::with_capacity(limits::EVENTS_PER_TURN);
        // Performs actions from before the loop began, such as the first look-ups.
        self.settle();
        let mut now = self.clock.mono();
        while !self.leaving {
            let mut wait = self.wait(now);
            // The poll is interrupted if the process was stopped and continued (signal(7)). Events that arrived
            // meanwhile are handled before any deadline.
            while let Err(error) = self.poll.poll(&mut events, wait) {
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
                wait = Some(Duration::ZERO);
            }
            now = self.turn(&events);
        }
        Ok(self.core)
    }

    /// Does one iteration: all work that is due, and a share of the ready connections. Returns the time at its end.
    fn turn(&mut self, events: &Events) -> Mono {
        self.now = self.clock.now();
        self.turn = self.turn.wrapping_add(1);
        self.shakes.begin();
        for event in events {
            self.mark(event);
        }
        if std::mem::take(&mut self.mail) {
            self.read_mail();
        }
        self.accept();
        let enough = self.now.mono.after(limits::TURN_TIME);
        self.unclocked = 0;
        for count in 1..=self.run_queue.waiting() {
            let Some(id) = self.run_queue.next(count) else { break };
            self.run_link(id, true);
            // Writes before more is read: the storage is reused.
            if count % RUNS_PER_FLUSH == 0 {
                self.flush_dirty();
                if self.core.has_orders() {
                    self.hand_over();
                }
            }
            // Reading the clock costs as much as a short event, so it is skipped after little work, and if no other
            // connection waits.
            if self.unclocked >= UNCLOCKED_MAX && self.run_queue.waiting() > 0 {
                if self.clock.mono() >= enough {
                    break;
                }
                self.unclocked = 0;
            }
        }
        self.run_queue.forget_served();
        self.shake_some();
        // Data that arrived in this iteration precedes deadlines: after a long iteration a connection must not fail for
        // its deadline although its data is there.
        self.tell_replies();
        // Deadlines set since the last check are later than that check.
        let due = if self.due <= self.now.mono { EXPIRED_PER_TURN } else { 0 };
        for _ in 0..due {
            let now = self.now;
            if !verb(&mut self.core, None, now, |core| core.expire(now)) || self.clock.mono() >= enough {
                break;
            }
        }
        self.settle();
        self.end_partings();
        if cfg!(debug_assertions) {
            self.check_queues();
        }
        let end = self.clock.mono();
        self.core.turned(end.micros_since(self.now.mono));
        end
    }

    /// Returns the maximum sleep of the poll; `None` for no limit.
    fn wait(&mut self, now: Mono) -> Option<Duration> {
        let at_once = !self.run_queue.is_empty()
            || !self.touched.is_empty()
            || !self.replies.is_empty()
            || !self.core.actions().is_empty()
            || !self.core.dirty().is_empty();
        self.due = Mono(0);
        if at_once {
            return Some(Duration::ZERO);
        }
        let parting = self.parting.front().map_or(Mono::NEVER, |(until, _)| *until);
        let accept_due = match self.listeners.is_knocked() {
            true => self.listeners.due(|number| self.core.wants_clients(number)).unwrap_or(Mono::NEVER),
            false => Mono::NEVER,
        };
        self.due = self.core.next_deadline().unwrap_or(Mono::NEVER);
        let due = self.due.min(accept_due).min(parting);
        (due != Mono::NEVER).then(|| Duration::from_micros(due.micros_since(now)))
    }

    fn enqueue(&mut self, id: Id<Link>) {
        if let Some(link) = self.links.get_mut(id) {
            self.run_queue.line_up(id, link);
        }
    }

    fn read_mail(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        self.inbox.take(&mut notes);
        for note in notes.drain(..) {
            let now = self.now;
            match note {
                ReactorMessage::Reply(reply) => self.replies.push(reply),
                ReactorMessage::Security(security) => self.security = *security,
                ReactorMessage::Notice(notice) => verb(&mut self.core, None, now, |core| core.notice(notice, now)),
            }
        }
        self.notes = notes;
    }

    /// Watches a socket, once and for all events. False if the poll refuses; the core then receives a broken end.
    fn add(&mut self, conn: Conn, transport: Transport, flags: Flags) -> bool {
        let id = self.links.insert(conn, transport, flags);
        let Some(link) = self.links.get_mut(id) else { return false };
        let everything = Interest::READABLE | Interest::WRITABLE;
        let watched = self.poll.registry().register(link.transport.socket(), links::token(id), everything).is_ok();
        if !watched {
            self.links.remove(id);
            if !flags.is_dialing() {
                let now = self.now;
                verb(&mut self.core, Some(conn), now, |core| core.closed(conn, Ending::Broken, now));
            }
        }
        watched
    }

    /// Does work of a link other than plain reading.
    fn advance(&mut self, id: Id<Link>) {
        let Some(link) = self.links.get_mut(id) else { return };
        if link.has(Flags::PARTING) {
            self.part(id);
        } else if link.has(Flags::DIALING) {
            self.connected(id);
        } else if link.has(Flags::PREFACE) {
            self.preface(id);
        } else if link.has(Flags::SHAKING) {
            self.shake(id);
        } else if link.has(Flags::ERROR) {
            self.ended(id, Ending::Broken);
        }
    }

    /// Serves a link: reads at most one slice, as long as bytes are available and wanted. `is_next`: it was taken from
    /// the run queue.
    #[inline(always)] // one caller of two is cold
    fn run_link(&mut self, id: Id<Link>, is_next: bool) {
        let (now, mut room) = (self.now, limits::IO_SLICE);
        let Some(link) = self.links.get_mut(id) else { return };
        if is_next {
            link.clear(Flags::QUEUED);
        }
        if link.has_more_to_do() {
            self.unclocked = UNCLOCKED_MAX;
            return self.advance(id);
        }
        while link.may_read() {
            let conn = link.conn();
            if !self.core.wants_read(conn) {
                return self.look_for_end(id);
            }
            if room == 0 {
                return self.enqueue(id);
            }
            match link.transport.fill(&mut self.scratch, room) {
                Fill::Data { len, cost, drained } => {
                    room = room.saturating_sub(cost);
                    // A client's few bytes may be a request that takes long; an event takes as long as it has bytes.
                    self.unclocked += match conn.side {
                        Side::Upstream => cost + EVENT_WORK,
                        Side::Client => UNCLOCKED_MAX,
                    };
                    if cost < limits::BULK {
                        link.clear(Flags::BULK);
                    } else {
                        link.set(Flags::BULK);
                    }
                    if drained && !link.has(Flags::HINT) {
                        link.clear(Flags::READ);
                    }
                    if len > 0 {
                        let data = self.scratch.data(len);
                        verb(&mut self.core, Some(conn), now, |core| core.bytes(conn, data, now));
                    }
                }
                Fill::Blocked if link.has(Flags::ERROR) => return self.ended(id, Ending::Broken),
                Fill::Blocked => link.clear(Flags::READ),
                Fill::Ended(how) => {
                    link.clear(Flags::READ);
                    return self.ended(id, how);
                }
            }
        }
    }

    /// Checks whether the peer has left although the core does not want to read. See the head of this file.
    fn look_for_end(&mut self, id: Id<Link>) {
        let Some(link) = self.links.get_mut(id) else { return };
        if !link.has(Flags::HINT) || self.core.is_paused(link.conn()) {
            return;
        }
        match link.transport.peek() {
            Peek::Ended(how) => self.ended(id, how),
            // A client that has ended its half has left; a provider's bytes are an answer that must be read first.
            Peek::Bytes(how) if link.conn().side == Side::Client => self.ended(id, how),
            Peek::Nothing if link.has(Flags::ERROR) => self.ended(id, Ending::Broken),
            Peek::Bytes(_) | Peek::Nothing => {}
        }
    }

    fn ended(&mut self, id: Id<Link>, how: Ending) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (conn, now) = (link.conn(), self.now);
        let how = if link.has(Flags::ERROR) { Ending::Broken } else { how };
        match how {
            Ending::Fin => link.set(Flags::ENDED),
            Ending::Broken => drop(self.links.remove(id)),
        }
        verb(&mut self.core, Some(conn), now, |core| core.closed(conn, how, now));
    }

    /// Writes, performs and answers until no work is left or the iteration's rounds are used up.
    fn settle(&mut self) {
        for _ in 0..limits::ROUNDS_PER_TURN {
            self.tell_replies();
            let due = self.touched.len();
            for index in 0..due {
                self.flush(self.touched[index], true);
            }
            if due > 0 {
                // Connections whose room is used up were appended; they wait for the next iteration.
                self.touched.drain(..due);
            }
            self.flush_dirty();
            if !self.core.actions().is_empty() {
                self.perform_actions();
            }
            if self.replies.is_empty() && self.core.dirty().is_empty() && self.core.actions().is_empty() {
                break;
            }
        }
        if self.core.has_orders() {
            self.hand_over();
        }
    }

    /// Hands the orders over that the core has given since the last call.
    fn hand_over(&mut self) {
        let orders = std::mem::take(self.core.orders());
        *self.core.orders() = (self.outbox)(orders);
    }

    /// Writes the bytes that the core has prepared since the last call.
    fn flush_dirty(&mut self) {
        std::mem::swap(&mut self.dirty, self.core.dirty());
        for index in 0..self.dirty.len() {
            self.flush(self.dirty[index], false);
        }
        self.dirty.clear();
    }

    #[inline]
    fn tell_replies(&mut self) {
        if !self.replies.is_empty() {
            self.tell_those_replies();
        }
    }

    fn tell_those_replies(&mut self) {
        let mut replies = std::mem::take(&mut self.replies);
        let now = self.now;
        for (index, reply) in replies.drain(..).enumerate() {
            let conn = match &reply {
                Reply::Dialed(conn) | Reply::DialFailed(conn, _) => Some(*conn),
                Reply::Named { .. } | Reply::Signal(_) => None,
            };
            verb(&mut self.core, conn, now, |core| core.reply(reply, now));
            // Many connections that are dialed at once would otherwise take the storage of all their requests at once.
            if (index + 1) % RUNS_PER_FLUSH == 0 {
                self.flush_dirty();
            }
        }
        debug_assert!(self.replies.is_empty());
        if replies.capacity() * size_of::<Reply>() <= LIST_KEPT {
            self.replies = replies;
        }
    }

    /// Writes unsent bytes to `conn`, at most one slice per iteration, and checks whether reading is wanted again.
    /// `is_due`: it was taken from the connections to be flushed.
    fn flush(&mut self, conn: Conn, is_due: bool) {
        let Some((id, mut link)) = self.links.find_mut(conn) else { return };
        if is_due {
            link.clear(Flags::TOUCHED);
        }
        // An answer that precedes its request must not be taken for the answer to it.
        if link.may_have_answered() && !self.core.unsent(conn).is_empty() {
            self.read_now(conn);
            let Some((_, found)) = self.links.find_mut(conn) else { return };
            link = found;
        }
        let now = self.now;
        loop {
            if link.has(Flags::DIALING.and(Flags::SHAKING)) {
                return;
            }
            let unsent = self.core.unsent(conn);
            if unsent.is_empty() && !link.transport.owes() {
                break;
            }
            if link.has(Flags::ERROR) {
                return self.enqueue(id);
            }
            if !link.has(Flags::WRITE) {
                link.set(Flags::BLOCKED);
                break;
            }
            let room = link.room(self.turn);
            if room == 0 {
                touch(&mut self.touched, link);
                break;
            }
            match link.transport.send(&unsent[..unsent.len().min(room)]) {
                Ok(sent) => {
                    link.spend(sent.taken);
                    if sent.blocked {
                        link.clear(Flags::WRITE);
                    }
                    let goes_on = sent.taken == 0
                        || verb(&mut self.core, Some(conn), now, |core| core.wrote(conn, sent.taken, now));
                    if !goes_on && !link.transport.owes() {
                        break;
                    }
                }
                // Bytes that the peer sent before the break are read first; the end follows.
                Err(_) => link.set(Flags::READ.and(Flags::HINT).and(Flags::ERROR)),
            }
        }
        if link.may_read() && self.core.wants_read(conn) {
            self.enqueue(id);
        }
    }

    fn perform_actions(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        std::mem::swap(&mut actions, self.core.actions());
        for action in actions.drain(..) {
            match action {
                Action::Dial { conn, addr, authority, tunnel } => self.dial(conn, addr, authority, tunnel),
                Action::Finish(conn) => self.finish(conn),
                Action::Hear(conn) => self.hear(conn),
                Action::Close { conn, shut } => self.close(conn, shut),
                Action::Resolve { host, port } => self.resolve(host, port),
                Action::StopAccepting(first) => self.listeners.close(first, self.poll.registry()),
                Action::StartSuccessor => self.start_successor(),
                Action::Exit => self.leaving = true,
            }
        }
        if actions.capacity() * size_of::<Action>() <= LIST_KEPT {
            self.actions = actions;
        }
    }
}

#[cfg(test)]
mod tests;
