//! Owns the loop: polls, drives a [`Core`] by its verbs and performs what it asks. Takes no decision of its own.
//!
//! **One turn**: poll → read the clock once → mark what the events say → mailbox → accept → run queue (each
//! connection at most `limits::IO_SLICE` bytes in) → deadlines → rounds of {write what is unsent, perform actions,
//! tell their answers} → hand the orders over. No work is done inside an event.
//!
//! **Ends.** A core hears `closed(Fin)` at most once for a connection, and may still write to it; it ends its own
//! half with [`Action::Finish`] if it likes, and the connection with [`Action::Close`]. It hears `closed(Broken)` at
//! most once, also after a Fin; the socket is gone then, and a later `Close` for it does no harm. When the peer has
//! ended while `wants_read` is false, bytes may lie before the end. If there are none the core is told. If there are,
//! an upstream's are an answer: they wait until they are wanted, and the end after them. A client's are not worth
//! waiting for: a client that ends its half while a request is in flight has left (contract section 4), so the core is
//! told at once and those bytes are never read.
//!
//! **A write that fails** does not end the connection by itself: a server that refuses a request early answers,
//! closes and thereby resets us, and its answer lies before the reset. What is there is read first.
//!
//! **Orders** go to the outbox at the end of the turn that gave them, the whole vector at once; the outbox is meant
//! to put them into queues (`io::batch_queue`), which costs no system call while the helper threads are busy. So no row
//! or line waits inside the loop, and the loop needs no clock of its own for them.

use super::clock::Clock;
use super::links::{self, Flags, Link, Links, SPECIAL};
use super::listen::{Arrival, Listeners};
use super::mailbox::{Inbox, Mailbox, inbox};
use super::outcome::{Fill, Peek};
use super::resolver::Resolver;
use super::signals::{KINDS, Signals};
use super::tls::Identity;
use super::transport::{Scratch, Transport};
use crate::base::limits;
use crate::base::seam::{Action, Conn, Core, Ending, Reply, Tunnel};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use queues::{line_up, touch};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use super::tls::{Authority, Security};

mod dial;
mod queues;

/// What a reactor starts with.
#[derive(Default)]
pub struct Setup {
    /// Listening sockets; their index is the `listener` of [`Core::accepted`].
    pub listeners: Vec<TcpListener>,
    /// Number of listeners, counted from the first, that show the certificate in `security`, if there is one.
    pub secured: usize,
    /// TLS peers, whose index is the `authority` of [`Action::Dial`], and our own certificate.
    pub security: Security,
}

/// Takes the listening sockets, in their order, for a new process. It must not block: it begins a thread.
pub type Successor = Box<dyn FnMut(Vec<OwnedFd>)>;

/// A message to the loop.
pub enum Note<C: Core> {
    /// An answer to an action, from the resolver.
    Reply(Reply),
    /// Something a helper thread says.
    Notice(C::Notice),
    /// Certificates read again: for every connection that begins from now on. Peers keep their index.
    Security(Box<Security>),
}

type Outbox<T> = Box<dyn FnMut(Vec<T>) -> Vec<T>>;

const WAKER: Token = Token(SPECIAL);
const SIGNALS: [Token; KINDS] = [Token(SPECIAL | 1), Token(SPECIAL | 2), Token(SPECIAL | 3)];
const FIRST_LISTENER: usize = SPECIAL | 16;

/// The loop around one core.
pub struct Reactor<C: Core> {
    core: C,
    clock: Clock,
    poll: Poll,
    links: Links,
    run_queue: VecDeque<Id<Link>>,
    /// What the proxies of links that are being dialed are to be told.
    tunnels: Vec<(Id<Link>, Tunnel)>,
    /// Connections to be flushed: their socket takes bytes again, or their turn's room was used up.
    touched: Vec<Conn>,
    /// Closed TLS connections whose last bytes are unsent, oldest first, with the moment their time is up.
    parting: VecDeque<(Mono, Id<Link>)>,
    scratch: Scratch,
    listeners: Listeners,
    security: Security,
    successor: Option<Successor>,
    secured: usize,
    /// Handshakes gone on with in this turn.
    shaken: usize,
    inbox: Inbox<Note<C>>,
    notes: Vec<Note<C>>,
    mail: bool,
    dirty: Vec<Conn>,
    actions: Vec<Action>,
    replies: Vec<Reply>,
    outbox: Outbox<C::Order>,
    resolver: Option<Resolver>,
    signals: Option<Signals>,
    now: Now,
    /// Before that no deadline of the core's comes; in the past where it has not been asked.
    due: Mono,
    turn: u16,
    leaving: bool,
}

/// Calls a verb. A panic inside fails what hung on `conn` and nothing else; a panic while that is cleared up ends the
/// process, since nothing is known of the core's state any more.
#[inline(always)] // most calls are on the path of a request
fn verb<C: Core, R: Default>(core: &mut C, conn: Option<Conn>, now: Now, call: impl FnOnce(&mut C) -> R) -> R {
    catch_unwind(AssertUnwindSafe(|| call(core))).unwrap_or_else(|_| {
        core.panicked(conn, now);
        R::default()
    })
}

impl<C: Core + 'static> Reactor<C> {
    /// Builds the loop: opens the poll and watches the listeners.
    ///
    /// `outbox` gets everything the core orders, once per turn that has orders, and returns the vector: empty, or with
    /// orders that are empty but keep their storage for the next turn.
    pub fn new(
        core: C,
        setup: Setup,
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
            run_queue: VecDeque::new(),
            tunnels: Vec::new(),
            touched: Vec::new(),
            parting: VecDeque::new(),
            scratch: Scratch::new(),
            listeners,
            security: setup.security,
            successor: None,
            secured: setup.secured,
            shaken: 0,
            inbox,
            notes: Vec::new(),
            mail: false,
            dirty: Vec::new(),
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

    /// The way into the loop for helper threads.
    pub fn mailbox(&self) -> Mailbox<Note<C>> {
        self.inbox.mailbox()
    }

    /// Both clocks as of the last turn, and the core, to prepare it before [`Reactor::run`].
    pub fn core(&mut self) -> (&mut C, Now) {
        self.now = self.clock.now();
        (&mut self.core, self.now)
    }

    /// What [`Action::StartSuccessor`] is answered by.
    pub fn on_upgrade(&mut self, successor: Successor) {
        self.successor = Some(successor);
    }

    /// From now on TERM, INT, HUP and USR2 reach the core as [`Reply::Signal`], those first that came before.
    pub fn watch(&mut self, mut signals: Signals) -> io::Result<()> {
        signals.watch(self.poll.registry(), SIGNALS)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Runs until the core asks to [`Action::Exit`]; gives it back. Fails only if the poll itself does.
    pub fn run(mut self) -> io::Result<C> {
        let mut events = Events::with_capacity(limits::EVENTS_PER_TURN);
        // What was asked for before the loop began, such as the first look-ups.
        self.settle();
        let mut now = self.clock.mono();
        while !self.leaving {
            let mut wait = self.wait(now);
            // So it ends where the process was stopped and goes on (signal(7)). What has come meanwhile is looked for
            // before anything fails for its deadline.
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

    /// What is due now, and a share of what is ready; gives the time at its end.
    fn turn(&mut self, events: &Events) -> Mono {
        self.now = self.clock.now();
        self.turn = self.turn.wrapping_add(1);
        self.shaken = 0;
        for event in events {
            self.mark(event);
        }
        if std::mem::take(&mut self.mail) {
            self.read_mail();
        }
        self.accept();
        let enough = self.now.mono.after(limits::TURN_TIME);
        for count in 1..=self.run_queue.len() {
            let Some(id) = self.run_queue.pop_front() else { break };
            self.run_link(id);
            // What many have brought leaves before more is read: its storage serves them too.
            if count % limits::RUNS_PER_FLUSH == 0 {
                self.flush_dirty();
            }
            // A look at the clock costs as much as a short event: none where no other connection waits.
            if !self.run_queue.is_empty() && self.clock.mono() >= enough {
                break;
            }
        }
        // What has come in this turn comes before what is late: after a long turn a connection that stands must not
        // fail for its deadline.
        self.tell_replies();
        // What has been armed since the last look is due later: that look was behind all of it.
        let due = if self.due <= self.now.mono { limits::EXPIRED_PER_TURN } else { 0 };
        for _ in 0..due {
            let now = self.now;
            if !verb(&mut self.core, None, now, |core| core.expire(now)) || self.clock.mono() >= enough {
                break;
            }
        }
        self.settle();
        self.end_partings();
        let end = self.clock.mono();
        self.core.turned(end.micros_since(self.now.mono));
        end
    }

    /// How long the poll may sleep; `None` for as long as it likes.
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
        let knock = match self.listeners.is_knocked() {
            true => self.listeners.due(|number| self.core.wants_clients(number)).unwrap_or(Mono::NEVER),
            false => Mono::NEVER,
        };
        self.due = self.core.next_deadline().unwrap_or(Mono::NEVER);
        let due = self.due.min(knock).min(parting);
        (due != Mono::NEVER).then(|| Duration::from_micros(due.micros_since(now)))
    }

    fn mark(&mut self, event: &Event) {
        let token = event.token();
        if token.0 & SPECIAL == 0 {
            return self.mark_link(event);
        }
        match token {
            WAKER => self.mail = true,
            Token(number) if number >= FIRST_LISTENER => self.listeners.mark(number - FIRST_LISTENER),
            token => {
                let which = SIGNALS.iter().position(|known| *known == token).unwrap_or_default();
                if let Some(signal) = self.signals.as_mut().and_then(|signals| signals.read(which)) {
                    self.replies.push(Reply::Signal(signal));
                }
            }
        }
    }

    fn mark_link(&mut self, event: &Event) {
        let Some((id, link)) = self.links.named_mut(event.token()) else { return };
        link.mark(event);
        if link.has(Flags::BLOCKED) && link.has(Flags::WRITE) {
            link.clear(Flags::BLOCKED);
            touch(&mut self.touched, link);
        }
        if link.has(Flags::READ.and(Flags::DIALING).and(Flags::SHAKING).and(Flags::PARTING)) {
            line_up(&mut self.run_queue, id, link);
        }
    }

    fn enqueue(&mut self, id: Id<Link>) {
        if let Some(link) = self.links.get_mut(id) {
            line_up(&mut self.run_queue, id, link);
        }
    }

    fn read_mail(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        self.inbox.take(&mut notes);
        for note in notes.drain(..) {
            let now = self.now;
            match note {
                Note::Reply(reply) => self.replies.push(reply),
                Note::Security(security) => self.security = *security,
                Note::Notice(notice) => verb(&mut self.core, None, now, |core| core.notice(notice, now)),
            }
        }
        self.notes = notes;
    }

    fn accept(&mut self) {
        if !self.listeners.is_knocked() {
            return;
        }
        for number in 0..self.listeners.len() {
            for _ in 0..limits::ACCEPT_BATCH {
                if !self.core.wants_clients(number) {
                    break;
                }
                let Arrival::Guest(socket, peer) = self.listeners.accept(number, self.now.mono) else { break };
                self.welcome(number, socket, peer);
            }
        }
    }

    fn welcome(&mut self, listener: usize, socket: TcpStream, peer: SocketAddr) {
        // The core may give away a slot whose old socket it has asked to close in this very turn.
        while !self.core.actions().is_empty() {
            self.perform_actions();
        }
        let now = self.now;
        let Some(conn) = verb(&mut self.core, None, now, |core| core.accepted(listener, peer, now)) else { return };
        let identity = self.security.identity.as_ref().filter(|_| listener < self.secured);
        let (transport, flags) = match identity.map(Identity::session) {
            None => (Transport::Plain(socket), Flags::WRITE),
            Some(Some(session)) => (Transport::Tls(Box::new((socket, session))), Flags::WRITE.and(Flags::SHAKING)),
            // rustls makes a session of every configuration it has accepted; were it not so, the client is sent away.
            Some(None) => return verb(&mut self.core, Some(conn), now, |core| core.closed(conn, Ending::Broken, now)),
        };
        let flags = if self.core.begins_with_proxy(conn) { flags.and(Flags::PREFACE) } else { flags };
        self.add(conn, transport, flags);
    }

    /// Watches a socket, once and for everything. False if the poll refuses; the core then hears of a broken end.
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

    /// What a link does that is not merely read.
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

    /// A link whose turn it is: reads at most one slice, as long as bytes are ready and wanted.
    #[inline(always)] // one caller of two is cold
    fn run_link(&mut self, id: Id<Link>) {
        let (now, mut room) = (self.now, limits::IO_SLICE);
        let Some(link) = self.links.get_mut(id) else { return };
        link.clear(Flags::QUEUED);
        if link.has_more_to_do() {
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

    /// The core does not want to read: it shall hear all the same that the peer has left. See the head of this file.
    fn look_for_end(&mut self, id: Id<Link>) {
        let Some(link) = self.links.get_mut(id) else { return };
        if !link.has(Flags::HINT) {
            return;
        }
        match link.transport.peek() {
            Peek::Ended(how) => self.ended(id, how),
            Peek::Bytes(how) if links::has_left(link.conn()) => self.ended(id, how),
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

    /// Writes, performs and answers until nothing is left to do or the turn's rounds are used up.
    fn settle(&mut self) {
        for _ in 0..limits::ROUNDS_PER_TURN {
            self.tell_replies();
            let due = self.touched.len();
            for index in 0..due {
                self.flush(self.touched[index], true);
            }
            if due > 0 {
                // Those whose room is used up have been added behind; they wait for the next turn.
                self.touched.drain(..due);
            }
            self.flush_dirty();
            self.perform_actions();
            if self.replies.is_empty() && self.core.dirty().is_empty() && self.core.actions().is_empty() {
                break;
            }
        }
        if self.core.has_orders() {
            let orders = std::mem::take(self.core.orders());
            *self.core.orders() = (self.outbox)(orders);
        }
    }

    /// Writes what the core has put together since the last time.
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
        for reply in replies.drain(..) {
            let conn = match &reply {
                Reply::Dialed(conn) | Reply::DialFailed(conn, _) => Some(*conn),
                Reply::Named { .. } | Reply::Signal(_) => None,
            };
            verb(&mut self.core, conn, now, |core| core.reply(reply, now));
        }
        debug_assert!(self.replies.is_empty());
        self.replies = replies;
    }

    /// Writes what is unsent to `conn`, at most one slice per turn, and looks whether reading is wanted again.
    /// `is_due`: it is taken out of those to be flushed.
    fn flush(&mut self, conn: Conn, is_due: bool) {
        let Some((id, link)) = self.links.find_mut(conn) else { return };
        if is_due {
            link.clear(Flags::TOUCHED);
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
                // What the peer said before it broke off is read first; the end follows.
                Err(_) => link.set(Flags::READ.and(Flags::HINT).and(Flags::ERROR)),
            }
        }
        if link.may_read() && self.core.wants_read(conn) {
            self.enqueue(id);
        }
    }

    /// Reads what has arrived on a connection, whether or not the poll has said so already.
    #[cold]
    #[inline(never)]
    fn hear(&mut self, conn: Conn) {
        if let Some((id, link)) = self.links.find_mut(conn)
            && !link.has_more_to_do()
        {
            link.set(Flags::READ);
            self.run_link(id);
        }
        verb(&mut self.core, Some(conn), self.now, |core| core.heard(conn, self.now));
    }

    fn perform_actions(&mut self) {
        if self.core.actions().is_empty() {
            return;
        }
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
        self.actions = actions;
    }
}

#[cfg(test)]
mod tests;
