//! The interface between a sans-I/O core and the world: names of connections, inputs of a core, and its requests to the
//! world. The gateway and the simulated provider are both a [`Core`]. The reactor and the test simulator both drive
//! one.

use super::time::{Mono, Now, Unix};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The side of the program that a connection belongs to.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Side {
    /// A client connection, accepted by Tollgate.
    Client,
    /// An upstream connection, opened by Tollgate.
    Upstream,
}

/// Name of a connection: its slot and generation in the core's slab for that side.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Conn {
    /// Side of the connection.
    pub side: Side,
    /// Slot in the core's slab of that side.
    pub slot: u32,
    /// Generation of that slot, below 2^31.
    pub generation: u32,
}

/// Manner in which the other side ended a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// An orderly end: FIN, preceded over TLS by a close_notify.
    Fin,
    /// A reset, a TLS failure, a TLS stream cut off without close_notify, or an error of the socket.
    Broken,
}

/// Manner in which a core wants a connection ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shut {
    /// Everything written has been sent; close in an orderly way (close_notify, FIN).
    Clean,
    /// Close at once, even if bytes are unsent.
    Abort,
}

/// Kind of first bytes that the listener of a connection does not expect.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Stray {
    /// Plain HTTP on a TLS listener. It is read and answered as plain HTTP, but the core must serve nothing on it.
    PlainHttp,
    /// No PROXY header from a trusted proxy that must send one. The core closes the connection.
    NoProxyHeader,
}

/// A complete CONNECT request that is sent to a proxy before a connection through it can be used. It may contain a
/// password, so it must never be displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Tunnel(Arc<[u8]>);

impl Tunnel {
    /// Makes a tunnel from the bytes of the request.
    pub fn new(request: Vec<u8>) -> Tunnel {
        Tunnel(request.into())
    }

    /// Returns the bytes of the request.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A request of a core to the world.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Connect `conn` to `addr`, over TLS if `authority` names an entry of the reactor's table of TLS peers. Answered
    /// by [`Reply::Dialed`] (for TLS: after the handshake) or [`Reply::DialFailed`].
    Dial {
        /// The upstream connection.
        conn: Conn,
        /// Address to connect to.
        addr: SocketAddr,
        /// Index into the table of TLS peers, `None` for plain TCP.
        authority: Option<u32>,
        /// Request for the proxy that listens at `addr`, if any. TLS begins after its successful answer.
        tunnel: Option<Tunnel>,
    },
    /// Everything written to `conn` has been sent, and nothing follows: signal the end (close_notify, FIN), and keep
    /// reading.
    Finish(Conn),
    /// Pass on what has arrived on `conn` by [`Core::bytes`], at most one slice, then call [`Core::heard`].
    Hear(Conn),
    /// Close the socket of `conn`. The core has already dropped the connection.
    Close {
        /// Connection to close.
        conn: Conn,
        /// Manner of closing it.
        shut: Shut,
    },
    /// Look up `host`. Answered by [`Reply::Named`].
    Resolve {
        /// Host name as configured.
        host: Arc<str>,
        /// Port for the addresses.
        port: u16,
    },
    /// Start the program again next to this process, with the listening sockets inherited. A notice reports the
    /// outcome.
    StartSuccessor,
    /// Close the given number of listening sockets, from the first: draining has begun.
    StopAccepting(usize),
    /// Leave the loop: nothing is left to do.
    Exit,
}

/// Kind of a dial failure, with its exact cause as text for the log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum DialError {
    /// Connection refused, unreachable or reset by the peer or the network.
    Connect(&'static str),
    /// TLS handshake failed: protocol, certificate or name.
    Tls(&'static str),
    /// No descriptor or other local resource available.
    Local(&'static str),
}

/// Cause of [`DialError::Local`] if all descriptors or ports are in use.
pub const NO_DESCRIPTOR: &str = "no descriptor or port left";

/// Request made by a signal.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Signal {
    /// TERM or INT: drain and exit.
    Terminate,
    /// HUP: read the configuration again.
    Reload,
    /// USR2: hand over to a new process, and exit when the running requests have ended.
    Upgrade,
}

/// System statistics of the process that a core runs in.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessVitals {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Processor time used, in microseconds.
    pub cpu_micros: u64,
    /// Number of open descriptors.
    pub open_fds: u64,
    /// Start time.
    pub started: Unix,
}

/// An answer of the world.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// A dialed connection is open. Over TLS, its handshake is done.
    Dialed(Conn),
    /// A dial failed. The core frees the slot itself.
    DialFailed(Conn, DialError),
    /// The addresses of a host, or an error.
    Named {
        /// Host name as requested.
        host: Arc<str>,
        /// Port as requested.
        port: u16,
        /// At least one address, in the resolver's order; otherwise the error as text for the log.
        addrs: Result<Vec<SocketAddr>, &'static str>,
    },
    /// A signal arrived.
    Signal(Signal),
}

/// A product without sockets, clocks and threads. The world calls its methods, then writes [`Core::unsent`], performs
/// [`Core::actions`] and passes [`Core::orders`] to the helper threads.
///
/// The methods take `now` instead of reading a clock. None blocks, and none calls back.
pub trait Core {
    /// Message of this core to helper threads (ledger rows, log lines).
    type Order: Send + 'static;
    /// Message of helper threads to this core.
    type Notice: Send + 'static;

    /// Handles a connection that arrived on listener number `listener`. `None` refuses it: the world closes it at once.
    fn accepted(&mut self, listener: usize, peer: SocketAddr, now: Now) -> Option<Conn>;
    /// True if the core accepts connections from listener number `listener` now. Otherwise new ones wait in the kernel.
    /// The world asks again after every event-loop iteration.
    fn wants_clients(&self, _listener: usize) -> bool {
        true
    }
    /// True if a just accepted connection begins with a PROXY header. The world removes the header and reports its
    /// contents by [`Core::proxied`].
    fn begins_with_proxy(&self, _conn: Conn) -> bool {
        false
    }
    /// Takes the client address from a PROXY header, `None` if the proxy speaks for itself.
    fn proxied(&mut self, _conn: Conn, _from: Option<IpAddr>, _now: Now) {}
    /// Handles first bytes that the listener does not expect. True if the core handles the connection as `how`
    /// describes. Otherwise the world aborts it.
    fn strayed(&mut self, _conn: Conn, _how: Stray, _now: Now) -> bool {
        false
    }
    /// Handles bytes that arrived. The core takes all of them.
    fn bytes(&mut self, conn: Conn, data: &[u8], now: Now);
    /// Reports that everything that had arrived when [`Action::Hear`] was performed has been delivered.
    fn heard(&mut self, _conn: Conn, _now: Now) {}
    /// Handles the other side's end. Bytes before it have been delivered, unless `wants_read` was false.
    fn closed(&mut self, conn: Conn, how: Ending, now: Now);
    /// Removes the first `count` bytes of `unsent`, which were sent. False if nothing is left to write until `dirty`
    /// reports it.
    fn wrote(&mut self, conn: Conn, count: usize, now: Now) -> bool;
    /// Handles an answer to an action, or a signal.
    fn reply(&mut self, reply: Reply, now: Now);
    /// Handles a message of a helper thread.
    fn notice(&mut self, notice: Self::Notice, now: Now);
    /// Returns the earliest deadline, if any.
    fn next_deadline(&self) -> Option<Mono>;
    /// Handles one deadline that is due at `now`. False if none is. Handles only one, so that a panic has an owner.
    fn expire(&mut self, now: Now) -> bool;
    /// Returns the bytes waiting to be written to `conn`, none for an unknown connection.
    fn unsent(&self, conn: Conn) -> &[u8];
    /// True if the core accepts bytes from `conn` now. False is back-pressure: the world stops reading.
    fn wants_read(&self, conn: Conn) -> bool;
    /// True if the core works on bytes of `conn` that it has already, and reads more afterwards. The peer's end is not
    /// looked for meanwhile.
    fn is_paused(&self, _conn: Conn) -> bool {
        false
    }
    /// Connections whose unsent bytes or read interest changed since the last call. May include duplicates and stale
    /// ones.
    fn dirty(&mut self) -> &mut Vec<Conn>;
    /// Actions requested since the world last drained them.
    fn actions(&mut self) -> &mut Vec<Action>;
    /// Orders given since the world last drained them.
    fn orders(&mut self) -> &mut Vec<Self::Order>;
    /// True if an order has been given. The vector may also contain old ones, kept only for their storage.
    fn has_orders(&mut self) -> bool {
        !self.orders().is_empty()
    }
    /// Handles a panic of the method that just ran for `conn` (`None`: for no connection). The core fails what depended
    /// on it and stays usable.
    fn panicked(&mut self, conn: Option<Conn>, now: Now);
    /// Records that an event-loop iteration took `micros` of the loop's own time, for the lag histogram.
    fn turned(&mut self, micros: u64);
}
