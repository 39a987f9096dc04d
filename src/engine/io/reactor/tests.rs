//! Tests of the event loop on real sockets, around a core that follows the test's orders and reports all its calls.

mod ends;
mod guests;
mod overload;
mod tls;

use super::*;
use crate::base::seam::Side;
use crate::base::seam::{DialError, Shut};
use crate::io::listen;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Timeout of an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls that the puppet core receives.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Heard {
    Accepted(Conn),
    Refused,
    Bytes(Conn, Vec<u8>),
    Closed(Conn, Ending),
    Drained(Conn),
    Woken,
    Reply(Reply),
    Panicked(Option<Conn>),
}

/// Orders from the test to the puppet core.
pub(super) enum Order {
    Want(bool),
    Send(Conn, Vec<u8>),
    Act(Action),
    Echo,
    PanicAt(u8),
    /// Time that processing of bytes takes from now on.
    Dwell(Duration),
    /// The loop blocks until the sender is dropped.
    Stand(Receiver<()>),
    Alarm(Duration),
    Give(Vec<u8>),
    Refuse,
}

#[derive(Default)]
struct Peer {
    conn: Option<Conn>,
    unsent: Vec<u8>,
}

pub(super) struct Puppet {
    tell: Sender<Heard>,
    peers: HashMap<(Side, u32), Peer>,
    next: u32,
    wants: bool,
    echo: bool,
    panic_at: Option<u8>,
    dwell: Duration,
    alarm: Option<Mono>,
    dirty: Vec<Conn>,
    actions: Vec<Action>,
    orders: Vec<Vec<u8>>,
    refuse: bool,
    turns: Arc<AtomicU64>,
    /// Number of times that the loop has asked for unsent bytes.
    asked: Arc<AtomicU64>,
}

impl Puppet {
    fn tell(&self, heard: Heard) {
        let _ = self.tell.send(heard);
    }

    fn knows(&self, conn: Conn) -> bool {
        self.peers.contains_key(&(conn.side, conn.slot))
    }
}

impl Core for Puppet {
    type Order = Vec<u8>;
    type Notice = Order;

    fn accepted(&mut self, _: usize, _: SocketAddr, _: Now) -> Option<Conn> {
        if self.refuse {
            self.tell(Heard::Refused);
            return None;
        }
        let conn = Conn { side: Side::Client, slot: self.next, generation: 0 };
        self.next += 1;
        self.peers.insert((conn.side, conn.slot), Peer { conn: Some(conn), ..Peer::default() });
        self.tell(Heard::Accepted(conn));
        Some(conn)
    }
    fn bytes(&mut self, conn: Conn, data: &[u8], _: Now) {
        assert_ne!(self.panic_at, data.first().copied(), "the test asked for this panic");
        std::thread::sleep(self.dwell);
        self.tell(Heard::Bytes(conn, data.to_vec()));
        if self.echo {
            self.peers.get_mut(&(conn.side, conn.slot)).unwrap().unsent.extend_from_slice(data);
            self.dirty.push(conn);
        }
    }
    fn closed(&mut self, conn: Conn, how: Ending, _: Now) {
        self.tell(Heard::Closed(conn, how));
    }
    fn wrote(&mut self, conn: Conn, count: usize, _: Now) -> bool {
        let Some(peer) = self.peers.get_mut(&(conn.side, conn.slot)) else { return false };
        peer.unsent.drain(..count);
        if peer.unsent.is_empty() {
            self.tell(Heard::Drained(conn));
        }
        !self.unsent(conn).is_empty()
    }
    fn reply(&mut self, reply: Reply, _: Now) {
        if let Reply::Dialed(conn) = reply {
            self.peers.entry((conn.side, conn.slot)).or_default().conn = Some(conn);
        }
        self.tell(Heard::Reply(reply));
    }
    fn notice(&mut self, notice: Order, now: Now) {
        match notice {
            Order::Want(wants) => {
                self.wants = wants;
                self.dirty.extend(self.peers.values().filter_map(|peer| peer.conn));
            }
            Order::Send(conn, bytes) => {
                self.peers.entry((conn.side, conn.slot)).or_default().unsent.extend(bytes);
                self.dirty.push(conn);
            }
            Order::Act(action) => {
                if let Action::Close { conn, .. } = action {
                    self.peers.remove(&(conn.side, conn.slot));
                }
                self.actions.push(action);
            }
            Order::Echo => self.echo = true,
            Order::PanicAt(byte) => self.panic_at = Some(byte),
            Order::Dwell(time) => self.dwell = time,
            Order::Stand(until) => drop(until.recv()),
            Order::Alarm(after) => self.alarm = Some(now.mono.after(after)),
            Order::Refuse => self.refuse = true,
            Order::Give(order) => self.orders.push(order),
        }
    }
    fn next_deadline(&self) -> Option<Mono> {
        self.alarm
    }
    fn expire(&mut self, now: Now) -> bool {
        let due = self.alarm.is_some_and(|at| at <= now.mono);
        if due {
            self.alarm = None;
            self.tell(Heard::Woken);
        }
        due
    }
    fn unsent(&self, conn: Conn) -> &[u8] {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.peers.get(&(conn.side, conn.slot)).map_or(&[], |peer| &peer.unsent)
    }
    fn wants_read(&self, conn: Conn) -> bool {
        self.wants && self.knows(conn)
    }
    fn dirty(&mut self) -> &mut Vec<Conn> {
        &mut self.dirty
    }
    fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.actions
    }
    fn orders(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.orders
    }
    fn panicked(&mut self, conn: Option<Conn>, _: Now) {
        self.tell(Heard::Panicked(conn));
        if let Some(conn) = conn {
            self.actions.push(Action::Close { conn, shut: Shut::Abort });
        }
    }
    fn turned(&mut self, _: u64) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
}

/// A running loop around a puppet core.
pub(super) struct World {
    pub(super) addr: SocketAddr,
    pub(super) heard: Receiver<Heard>,
    mailbox: Mailbox<ReactorMessage<Puppet>>,
    pub(super) orders: Receiver<Vec<Vec<u8>>>,
    turns: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<Puppet>>>,
}

impl World {
    pub(super) fn new() -> World {
        World::with(Vec::new())
    }

    pub(super) fn with(authorities: Vec<Authority>) -> World {
        World::secured(Security::load(&authorities, None, None).unwrap())
    }

    pub(super) fn secured(security: Security) -> World {
        let listener = listen::bind(([127, 0, 0, 1], 0).into(), false).unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, heard) = channel();
        let (give, orders) = channel();
        let (send, mailbox) = channel();
        let turns = Arc::new(AtomicU64::new(0));
        let asked = Arc::new(AtomicU64::new(0));
        let theirs = (turns.clone(), asked.clone());
        let thread = std::thread::spawn(move || {
            let puppet = Puppet {
                tell,
                peers: HashMap::new(),
                next: 0,
                wants: true,
                echo: false,
                panic_at: None,
                dwell: Duration::ZERO,
                alarm: None,
                dirty: Vec::new(),
                actions: Vec::new(),
                orders: Vec::new(),
                refuse: false,
                turns: theirs.0,
                asked: theirs.1,
            };
            let outbox = move |orders: Vec<Vec<u8>>| {
                let _ = give.send(orders);
                Vec::new()
            };
            let reactor =
                Reactor::new(puppet, ReactorSetup { listeners: vec![listener], secured: 1, security }, outbox)?;
            let _ = send.send(reactor.mailbox());
            reactor.run()
        });
        World { addr, heard, mailbox: mailbox.recv().unwrap(), orders, turns, asked, thread: Some(thread) }
    }

    pub(super) fn order(&self, order: Order) {
        assert!(self.mailbox.send(ReactorMessage::Notice(order)).is_ok());
    }

    pub(super) fn next(&self) -> Heard {
        self.heard.recv_timeout(TIMEOUT).expect("no call arrived")
    }

    /// Sets whether the core wants to read, and waits until it has received that.
    pub(super) fn want(&self, wants: bool) {
        self.order(Order::Want(wants));
        self.order(Order::Alarm(Duration::ZERO));
        assert_eq!(self.next(), Heard::Woken);
    }

    pub(super) fn is_silent(&self, millis: u64) -> bool {
        self.heard.recv_timeout(Duration::from_millis(millis)).is_err()
    }

    /// Connects a client of the test. Returns it and the puppet's name for it.
    fn client(&self) -> (StdStream, Conn) {
        let socket = StdStream::connect(self.addr).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        match self.next() {
            Heard::Accepted(conn) => (socket, conn),
            other => panic!("{other:?}"),
        }
    }

    /// Lets the puppet dial a server of the test. Returns the server's end and the puppet's name for it.
    fn upstream(&self) -> (StdStream, Conn) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let conn = Conn { side: Side::Upstream, slot: 0, generation: 0 };
        self.order(Order::Act(Action::Dial {
            conn,
            addr: listener.local_addr().unwrap(),
            authority: None,
            tunnel: None,
        }));
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(self.next(), Heard::Reply(Reply::Dialed(conn)));
        (socket, conn)
    }

    pub(super) fn close(&self, conn: Conn, shut: Shut) {
        self.order(Order::Act(Action::Close { conn, shut }));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.order(Order::Act(Action::Exit));
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            assert!(ended.unwrap().is_ok());
        }
    }
}

/// Closes `socket` with a reset.
fn reset(socket: StdStream) {
    socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn bytes_are_echoed_and_the_connection_ends_with_a_fin() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    world.order(Order::Echo);
    for word in ["hello", "again"] {
        socket.write_all(word.as_bytes()).unwrap();
        assert_eq!(world.next(), Heard::Bytes(conn, word.into()));
        assert_eq!(world.next(), Heard::Drained(conn));
        let mut back = [0; 5];
        socket.read_exact(&mut back).unwrap();
        assert_eq!(back, word.as_bytes());
    }
    world.close(conn, Shut::Clean);
    assert_eq!(socket.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn back_pressure_stops_reading_without_losing_an_edge() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    world.want(false);
    let sent: Vec<u8> = (0..4_000_000u32).map(|n| (n % 251) as u8).collect();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || {
        socket.write_all(&copy).unwrap();
        socket
    });
    assert!(world.is_silent(100));
    let mut got = Vec::new();
    let mut wanted = false;
    while got.len() < sent.len() {
        if !wanted {
            world.order(Order::Want(true));
            wanted = true;
        }
        let Heard::Bytes(from, bytes) = world.next() else { panic!() };
        assert_eq!(from, conn);
        assert!(bytes.len() <= limits::IO_SLICE);
        got.extend(bytes);
        if got.len() % 7 == 0 {
            world.order(Order::Want(false));
            wanted = false;
        }
    }
    assert!(got == sent);
    drop(writer.join().unwrap());
}

#[test]
fn ten_megabytes_reach_a_slow_reader_in_slices() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    let sent: Vec<u8> = (0..10_000_000u32).map(|n| (n % 253) as u8).collect();
    world.order(Order::Send(conn, sent.clone()));
    let (mut got, mut piece) = (Vec::new(), vec![0; 100_000]);
    while got.len() < sent.len() {
        let count = socket.read(&mut piece).unwrap();
        got.extend_from_slice(&piece[..count]);
        if got.len() < 2_000_000 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(got == sent);
    assert_eq!(world.next(), Heard::Drained(conn));
}

#[test]
fn early_answer_is_delivered_although_the_upload_is_reset() {
    let world = World::new();
    let (mut socket, conn) = world.upstream();
    world.order(Order::Send(conn, vec![b'x'; 8_000_000]));
    socket.read_exact(&mut [0; 1000]).unwrap();
    socket.write_all(b"413 too large").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(socket);
    assert_eq!(world.next(), Heard::Bytes(conn, b"413 too large".to_vec()));
    assert_eq!(world.next(), Heard::Closed(conn, Ending::Broken));
}

#[test]
fn refused_dial_is_reported() {
    let world = World::new();
    // A port below the ephemeral ones, on which no other process starts to listen in the meantime.
    let addr = ([127, 0, 0, 1], 1).into();
    let conn = Conn { side: Side::Upstream, slot: 0, generation: 0 };
    world.order(Order::Act(Action::Dial { conn, addr, authority: None, tunnel: None }));
    assert_eq!(world.next(), Heard::Reply(Reply::DialFailed(conn, DialError::Connect("refused"))));
    world.order(Order::Act(Action::Dial { conn, addr, authority: Some(7), tunnel: None }));
    assert!(matches!(world.next(), Heard::Reply(Reply::DialFailed(_, DialError::Tls(_) | DialError::Connect(_)))));
}

#[test]
fn names_and_literal_addresses_are_answered() {
    let world = World::new();
    for (host, loopback) in [("localhost", true), ("127.0.0.1", true), ("[::1]", true), ("no such.invalid", false)] {
        world.order(Order::Act(Action::Resolve { host: host.into(), port: 80 }));
        let Heard::Reply(Reply::Named { host: named, port: 80, addrs }) = world.next() else { panic!() };
        assert_eq!(&*named, host);
        let addrs = addrs.unwrap_or_default();
        assert_eq!(!addrs.is_empty() && addrs.iter().all(|addr| addr.ip().is_loopback()), loopback, "{host}");
    }
}

#[test]
fn panic_in_one_connection_affects_no_other() {
    let world = World::new();
    let (mut bad, bad_conn) = world.client();
    let (mut good, good_conn) = world.client();
    world.order(Order::PanicAt(b'!'));
    bad.write_all(b"!").unwrap();
    assert_eq!(world.next(), Heard::Panicked(Some(bad_conn)));
    assert!(bad.read(&mut [0; 8]).is_err());
    good.write_all(b"fine").unwrap();
    assert_eq!(world.next(), Heard::Bytes(good_conn, b"fine".to_vec()));
}

#[test]
fn refused_connection_is_closed_immediately() {
    let world = World::new();
    world.order(Order::Refuse);
    let mut socket = StdStream::connect(world.addr).unwrap();
    assert_eq!(world.next(), Heard::Refused);
    assert_eq!(socket.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn many_concurrent_connections_are_all_accepted() {
    let world = World::new();
    let count = limits::ACCEPT_BATCH * 4;
    let sockets: Vec<StdStream> = (0..count).map(|_| StdStream::connect(world.addr).unwrap()).collect();
    for (number, mut socket) in sockets.iter().enumerate() {
        socket.write_all(&(number as u32).to_le_bytes()).unwrap();
    }
    let (mut accepted, mut received) = (0, std::collections::BTreeSet::new());
    while received.len() < count {
        match world.next() {
            Heard::Accepted(_) => accepted += 1,
            Heard::Bytes(_, bytes) => drop(received.insert(bytes)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(accepted, count);
}

#[test]
fn listeners_close_on_drain_and_open_connections_continue() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    world.order(Order::Act(Action::StopAccepting(1)));
    // Actions are performed in order, so the second answer implies that the first action is done.
    world.order(Order::Act(Action::Resolve { host: "127.0.0.1".into(), port: 1 }));
    assert!(matches!(world.next(), Heard::Reply(Reply::Named { .. })));
    world.order(Order::Send(conn, b"x".to_vec()));
    assert_eq!(world.next(), Heard::Drained(conn));
    socket.read_exact(&mut [0]).unwrap();
    // The write is reported before the action of the same iteration is performed, so the close follows slightly later.
    let closed = (0..10_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        StdStream::connect(world.addr).is_err()
    });
    assert!(closed);
}

#[test]
fn deadline_fires_when_due_and_not_before() {
    let world = World::new();
    let began = Clock::new();
    world.order(Order::Alarm(Duration::from_millis(60)));
    assert_eq!(world.next(), Heard::Woken);
    let waited = began.mono().0;
    assert!((60_000..TIMEOUT.as_micros() as u64).contains(&waited), "{waited}");
}

#[test]
fn orders_leave_in_the_iteration_that_gave_them() {
    let world = World::new();
    world.order(Order::Give(b"row 1".to_vec()));
    assert_eq!(world.orders.recv_timeout(TIMEOUT).unwrap(), [b"row 1".to_vec()]);
    world.order(Order::Give(b"row 2".to_vec()));
    assert_eq!(world.orders.recv_timeout(TIMEOUT).unwrap(), [b"row 2".to_vec()]);
}

#[test]
fn stale_handle_closes_no_connection() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    let stale = Conn { generation: conn.generation + 1, ..conn };
    world.order(Order::Act(Action::Close { conn: stale, shut: Shut::Abort }));
    world.order(Order::Send(conn, b"x".to_vec()));
    socket.read_exact(&mut [0]).unwrap();
}
