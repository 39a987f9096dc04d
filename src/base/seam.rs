//! The seam between a sans-I/O core and the world: names of connections, what the world tells a core, what a core
//! asks of the world. The gateway and the simulated provider are both a [`Core`]; the reactor and the test
//! simulator both drive one.

use super::time::{Mono, Now, Unix};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Which end of the program a connection is on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Side {
    /// Accepted by us.
    Client,
    /// Dialed by us.
    Upstream,
}

/// The name of a connection: its slot and generation in the core's slab for that side.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Conn {
    /// Accepted or dialed.
    pub side: Side,
    /// Slot in the core's slab of that side.
    pub slot: u32,
    /// Generation of that slot, below 2^31.
    pub generation: u32,
}

/// The way the other side ended a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// An orderly end: FIN, and over TLS a close_notify before it.
    Fin,
    /// A reset, a TLS failure, a TLS stream cut without close_notify, or an error of the socket.
    Broken,
}

/// The way a core wants a connection ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shut {
    /// Everything written has left; say a proper goodbye (close_notify, FIN).
    Clean,
    /// At once, whatever is unsent.
    Abort,
}

/// What the first bytes of a connection are, where its listener wants others.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Stray {
    /// Plain HTTP where TLS is spoken. It is read, and answered, as such; the core must serve nothing on it.
    PlainHttp,
    /// Something else than the PROXY header that a trusted proxy owes. The connection is closed by the core.
    NoProxyHeader,
}

/// What a proxy is told before a connection by way of it is of use: a whole CONNECT request. It may hold a password, so
/// that it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Tunnel(Arc<[u8]>);

impl Tunnel {
    /// From the bytes of the request.
    pub fn new(request: Vec<u8>) -> Tunnel {
        Tunnel(request.into())
    }

    /// The bytes of the request.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What a core asks of the world.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Connect `conn` to `addr`; over TLS when `authority` names an entry of the reactor's table of TLS peers.
    /// Answered by [`Reply::Dialed`] (for TLS: after the handshake) or [`Reply::DialFailed`].
    Dial {
        /// The upstream connection.
        conn: Conn,
        /// Where to.
        addr: SocketAddr,
        /// Index into the table of TLS peers, `None` for plain TCP.
        authority: Option<u32>,
        /// Somebody else listens at `addr`, and is told this first; TLS, if any, begins behind a good answer to it.
        tunnel: Option<Tunnel>,
    },
    /// Everything written to `conn` has left, and nothing follows: say so (close_notify, FIN), and go on reading.
    Finish(Conn),
    /// Hand over by [`Core::bytes`] what has arrived on `conn`, at most one slice, then call [`Core::heard`].
    Hear(Conn),
    /// Close the socket of `conn`. The core has forgotten it already.
    Close {
        /// Which one.
        conn: Conn,
        /// How.
        shut: Shut,
    },
    /// Look `host` up; answered by [`Reply::Named`].
    Resolve {
        /// Name as configured.
        host: Arc<str>,
        /// Port to put into the addresses.
        port: u16,
    },
    /// Start the program again with the listening sockets inherited, beside this process. Whoever does so answers by a
    /// notice.
    StartSuccessor,
    /// Close the first so many listening sockets: draining has begun.
    StopAccepting(usize),
    /// Nothing is left to do: leave the loop.
    Exit,
}

/// Why a dial failed: what kind of failure, and what exactly in words for the log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum DialError {
    /// Refused, unreachable or reset by the peer or the network.
    Connect(&'static str),
    /// The TLS handshake failed: protocol, certificate or name.
    Tls(&'static str),
    /// No descriptor or other local means left.
    Local(&'static str),
}

/// What a signal asks for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Signal {
    /// TERM or INT: drain and leave.
    Terminate,
    /// HUP: read the configuration again.
    Reload,
    /// USR2: hand over to a new process, and leave when what runs has ended.
    Upgrade,
}

/// What the system says of the process that a core runs in.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessVitals {
    /// Memory that is really there, in bytes.
    pub resident_bytes: u64,
    /// Time of processors that it has taken, in microseconds.
    pub cpu_micros: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// When it began.
    pub started: Unix,
}

/// What the world answers.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// A dialed connection is open; over TLS, its handshake is done.
    Dialed(Conn),
    /// A dial failed; the core frees the slot itself.
    DialFailed(Conn, DialError),
    /// The addresses of a host, or that there are none.
    Named {
        /// As asked.
        host: Arc<str>,
        /// As asked.
        port: u16,
        /// At least one, in the resolver's order; else what went wrong, in words for the log.
        addrs: Result<Vec<SocketAddr>, &'static str>,
    },
    /// A signal arrived.
    Signal(Signal),
}

/// A product without sockets, clocks and threads. The world calls its verbs, then writes [`Core::unsent`], performs
/// [`Core::actions`] and hands [`Core::orders`] to the helper threads.
///
/// The verbs take `now` instead of reading a clock. None blocks; none calls back.
pub trait Core {
    /// What this core hands to helper threads (ledger rows, log lines).
    type Order: Send + 'static;
    /// What helper threads tell this core.
    type Notice: Send + 'static;

    /// A connection arrived on listener number `listener`. `None` refuses it: the world closes it at once.
    fn accepted(&mut self, listener: usize, peer: SocketAddr, now: Now) -> Option<Conn>;
    /// True if the core will take connections from listener number `listener` now. False lets new ones wait in the
    /// kernel; the world asks again after every turn.
    fn wants_clients(&self, _listener: usize) -> bool {
        true
    }
    /// True if a connection that has just been accepted begins with a PROXY header. The world takes that off, and says
    /// what it holds by [`Core::proxied`].
    fn begins_with_proxy(&self, _conn: Conn) -> bool {
        false
    }
    /// The PROXY header has come: who really called, `None` where the proxy speaks for itself.
    fn proxied(&mut self, _conn: Conn, _from: Option<IpAddr>, _now: Now) {}
    /// The first bytes of a connection are not what its listener wants. True: the core deals with it, as `how` says;
    /// else the world breaks it off.
    fn strayed(&mut self, _conn: Conn, _how: Stray, _now: Now) -> bool {
        false
    }
    /// Bytes arrived. The core takes all of them.
    fn bytes(&mut self, conn: Conn, data: &[u8], now: Now);
    /// What had arrived when [`Action::Hear`] was performed has been delivered.
    fn heard(&mut self, _conn: Conn, _now: Now) {}
    /// The other side has ended. Bytes that came before it have been delivered, unless `wants_read` was false.
    fn closed(&mut self, conn: Conn, how: Ending, now: Now);
    /// The first `count` bytes of `unsent` have left. False: nothing is left to be written until `dirty` says so.
    fn wrote(&mut self, conn: Conn, count: usize, now: Now) -> bool;
    /// An answer to an action, or a signal.
    fn reply(&mut self, reply: Reply, now: Now);
    /// A helper thread says something.
    fn notice(&mut self, notice: Self::Notice, now: Now);
    /// The earliest deadline, if any.
    fn next_deadline(&self) -> Option<Mono>;
    /// Handles one deadline that is due at `now`; false when none is. One at a time, so that a panic has an owner.
    fn expire(&mut self, now: Now) -> bool;
    /// Bytes waiting to be written to `conn`; empty for an unknown one.
    fn unsent(&self, conn: Conn) -> &[u8];
    /// True if the core will take bytes from `conn` now. False is back-pressure: the world stops reading.
    fn wants_read(&self, conn: Conn) -> bool;
    /// Connections whose unsent bytes or wish to read changed since the last call; may name one twice or a stale one.
    fn dirty(&mut self) -> &mut Vec<Conn>;
    /// Actions asked for since the world last drained them.
    fn actions(&mut self) -> &mut Vec<Action>;
    /// Orders given since the world last drained them.
    fn orders(&mut self) -> &mut Vec<Self::Order>;
    /// True if an order has been given. Those the vector holds may be there for their storage alone.
    fn has_orders(&mut self) -> bool {
        !self.orders().is_empty()
    }
    /// The verb that just ran for `conn` panicked (`None`: it ran for no connection). The core fails what hung on it
    /// and stays usable.
    fn panicked(&mut self, conn: Option<Conn>, now: Now);
    /// The loop took `micros` of its own time for one turn: for the lag histogram.
    fn turned(&mut self, micros: u64);
}
