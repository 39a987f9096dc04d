//! Owns the listening sockets: opens them, limits the connections accepted per event-loop iteration, and pauses after
//! an error. Called by the command line ([`bind`]) and by the reactor.

use crate::base::limits;
use crate::base::time::Mono;
use crate::policy::config::Reach;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Pause of the listeners after an error such as EMFILE, which would repeat at once and make the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Length of the kernel's queue of connections not yet accepted.
const BACKLOG: i32 = 1024;

/// Peer address of connections to a Unix socket, which have none.
pub const UNIX_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Opens a listening socket on `addr` with a backlog of `BACKLOG`. With `reuse_port` several processes may
/// listen on the same address and the kernel spreads the connections.
pub fn bind(addr: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Opens a listening Unix socket, private to its owner. A socket without a listener is replaced. It has the type of the
/// others; only the peer address differs.
pub fn bind_unix(path: &Path) -> io::Result<TcpListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Sets the mode before any client can connect.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns the reach of `listener`, and its name for errors. A Unix socket is private to its owner if the file's mode
/// is; if that cannot be read, anyone may reach it.
pub fn reach(listener: &TcpListener) -> io::Result<(Reach, String)> {
    let address = SockRef::from(listener).local_addr()?;
    if let Some(address) = address.as_socket() {
        return Ok((Reach::from_address(address), address.to_string()));
    }
    let nameless = || io::Error::new(ErrorKind::PermissionDenied, "a socket without a file is open to everybody");
    let path = address.as_pathname().ok_or_else(nameless)?;
    check_private(path)?;
    Ok((Reach::Owner, format!("unix:{}", path.display())))
}

/// Fails unless only the owner of the Unix socket at `path` can connect to it.
pub fn check_private(path: &Path) -> io::Result<()> {
    let refused = |why| io::Error::new(ErrorKind::PermissionDenied, format!("unix:{} {why}", path.display()));
    let found = std::fs::symlink_metadata(path);
    match found.map_err(|error| refused(format!("cannot be read: {error}")))?.mode() & 0o777 {
        mode if mode & 0o077 == 0 => Ok(()),
        mode => Err(refused(format!("has mode {mode:04o} and is open to others: 0600 is needed (SocketMode=0600)"))),
    }
}

/// Raises the limit of open descriptors to this process's maximum; returns the limit.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

struct Door {
    listener: mio::net::TcpListener,
    /// A connection may be waiting: an edge arrived and no WouldBlock since.
    ready: bool,
    /// True for a Unix socket.
    is_unix: bool,
}

impl Door {
    fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        if !self.is_unix {
            return self.listener.accept();
        }
        let (socket, _) = SockRef::from(&self.listener).accept()?;
        socket.set_nonblocking(true)?;
        Ok((TcpStream::from_std(socket.into()), UNIX_PEER))
    }
}

/// The listening sockets of one reactor.
pub struct Listeners {
    /// Sockets by number; `None` for closed ones.
    doors: Vec<Option<Door>>,
    /// True if any of them may have a connection, so that an iteration need not check each.
    knocked: bool,
    /// Time until which no socket accepts. In the past if there was no error.
    rest_until: Mono,
}

/// Result of accepting.
pub enum Arrival {
    /// A connection.
    Guest(TcpStream, SocketAddr),
    /// None now; try again after the next event, or after the pause.
    Nobody,
}

impl Listeners {
    /// Watches `sockets`; listener number `n` has the token `token(n)`.
    pub fn watch(sockets: Vec<TcpListener>, registry: &Registry, token: impl Fn(usize) -> Token) -> io::Result<Self> {
        let mut doors = Vec::with_capacity(sockets.len());
        for (number, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let is_unix = SockRef::from(&socket).local_addr()?.is_unix();
            if !is_unix {
                // Accepted connections inherit this option, without a call for each.
                SockRef::from(&socket).set_tcp_nodelay(true)?;
            }
            let mut listener = mio::net::TcpListener::from_std(socket);
            registry.register(&mut listener, token(number), Interest::READABLE)?;
            doors.push(Some(Door { listener, ready: false, is_unix }));
        }
        Ok(Listeners { doors, knocked: false, rest_until: Mono(0) })
    }

    /// Records an event for listener `number`.
    pub fn mark(&mut self, number: usize) {
        if let Some(Some(door)) = self.doors.get_mut(number) {
            door.ready = true;
            self.knocked = true;
        }
    }

    fn look_for_knocks(&mut self) {
        self.knocked = self.doors.iter().flatten().any(|door| door.ready);
    }

    /// True if a connection may be waiting at any of them.
    #[inline]
    pub fn is_knocked(&self) -> bool {
        self.knocked
    }

    /// Number of listening sockets, including closed ones.
    pub fn len(&self) -> usize {
        self.doors.len()
    }

    /// True if there never was a socket.
    pub fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// Accepts the next connection of listener `number`. An error of one connection skips it. Any other error (above
    /// all EMFILE) pauses all sockets for `ACCEPT_PAUSE`, because it would occur again at once.
    pub fn accept(&mut self, number: usize, now: Mono) -> Arrival {
        let Some(Some(door)) = self.doors.get_mut(number) else { return Arrival::Nobody };
        if !door.ready || now < self.rest_until {
            return Arrival::Nobody;
        }
        for _ in 0..limits::ACCEPT_BATCH {
            match door.accept() {
                Ok((stream, peer)) => return Arrival::Guest(stream, peer),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => {
                        door.ready = false;
                        self.look_for_knocks();
                        return Arrival::Nobody;
                    }
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
                    _ => {
                        self.rest_until = now.after(ACCEPT_PAUSE);
                        return Arrival::Nobody;
                    }
                },
            }
        }
        Arrival::Nobody
    }

    /// Returns the time at which a socket must be tried again although no event will arrive. `open` is true for sockets
    /// that may be tried.
    pub fn due(&self, open: impl Fn(usize) -> bool) -> Option<Mono> {
        let waits = |door: &Option<Door>| door.as_ref().is_some_and(|door| door.ready);
        self.doors.iter().enumerate().any(|(number, door)| waits(door) && open(number)).then_some(self.rest_until)
    }

    /// Closes the `first` of them. A successor may have the same sockets open, so they must be deregistered: the poll
    /// would continue to raise events for them.
    pub fn close(&mut self, first: usize, registry: &Registry) {
        for mut door in self.doors.iter_mut().take(first).filter_map(Option::take) {
            // The socket was registered when it was opened; it is closed in any case.
            let _ = registry.deregister(&mut door.listener);
        }
        self.look_for_knocks();
    }

    /// Duplicates the sockets for another process, in their order.
    pub fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        self.doors.iter().flatten().map(|door| door.listener.as_fd().try_clone_to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn one_guest(listeners: &mut Listeners) -> TcpStream {
        let began = Instant::now();
        loop {
            listeners.mark(0);
            match listeners.accept(0, Mono(1)) {
                Arrival::Guest(stream, _) => return stream,
                Arrival::Nobody => assert!(began.elapsed() < Duration::from_secs(60)),
            }
        }
    }

    #[test]
    fn an_accepted_connection_does_not_delay_small_writes() {
        let poll = mio::Poll::new().unwrap();
        let socket = bind(([127, 0, 0, 1], 0).into(), false).unwrap();
        let addr = socket.local_addr().unwrap();
        let mut listeners = Listeners::watch(vec![socket], poll.registry(), Token).unwrap();
        let _guest = std::net::TcpStream::connect(addr).unwrap();
        assert!(one_guest(&mut listeners).nodelay().unwrap());
    }

    #[test]
    fn address_is_shared_only_if_both_request_it() {
        let first = bind(([127, 0, 0, 1], 0).into(), true).unwrap();
        let addr = first.local_addr().unwrap();
        assert!(bind(addr, true).is_ok());
        assert_eq!(bind(addr, false).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn the_descriptor_limit_can_be_raised_twice() {
        let limit = raise_descriptor_limit().unwrap();
        assert_eq!(raise_descriptor_limit().unwrap(), limit);
    }
}
