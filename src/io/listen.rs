//! Owns the listening sockets: how they are opened, how many connections a turn takes from them, and their rest
//! after an error. Called by the command line ([`bind`]) and by the reactor.

use crate::base::limits;
use crate::base::time::Mono;
use crate::policy::config::Reach;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Who calls by a socket in the file system: nobody that has an address.
pub const UNIX_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Opens a listening socket on `addr` with a backlog of `limits::BACKLOG`. With `reuse_port` several processes may
/// listen on the same address and the kernel spreads the connections.
pub fn bind(addr: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(limits::BACKLOG)?;
    Ok(socket.into())
}

/// Opens a listening socket in the file system, for its owner alone. One that nobody listens on any more makes room. It
/// has the type of the others: only who calls is told in another way.
pub fn bind_unix(path: &Path) -> io::Result<TcpListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Before anybody can connect.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.listen(limits::BACKLOG)?;
    Ok(socket.into())
}

/// Who can connect to `listener`, and what it is called in an error. A socket in the file system is its owner's if the
/// file says so; one that cannot be looked at may be anybody's.
pub fn reach(listener: &TcpListener) -> io::Result<(Reach, String)> {
    let address = SockRef::from(listener).local_addr()?;
    if let Some(address) = address.as_socket() {
        return Ok((Reach::of(address), address.to_string()));
    }
    let refused = |why: String| io::Error::new(ErrorKind::PermissionDenied, why);
    let path = address.as_pathname().ok_or_else(|| refused("a socket without a file is open to everybody".into()))?;
    let name = format!("unix:{}", path.display());
    let mode = std::fs::symlink_metadata(path).map_err(|error| refused(format!("{name}: {error}")))?.mode() & 0o777;
    match mode & 0o077 {
        0 => Ok((Reach::Owner, name)),
        _ => {
            Err(refused(format!("{name} has mode {mode:04o} and is open to others: 0600 is needed (SocketMode=0600)")))
        }
    }
}

/// Raises the limit of open descriptors to the most this process may have; returns the limit.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    rlimit::increase_nofile_limit(u64::MAX)
}

struct Door {
    listener: mio::net::TcpListener,
    /// A connection may be waiting: an edge has come and no WouldBlock since.
    ready: bool,
    /// It lies in the file system.
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
    /// By number; those that have been closed are gone.
    doors: Vec<Option<Door>>,
    /// One of them may have a connection: each turn asks, so that it is not looked for each time.
    knocked: bool,
    /// Until then no door is tried. Passed moments mean that all is well.
    rest_until: Mono,
}

/// What a listener had to give.
pub enum Arrival {
    /// A connection.
    Guest(TcpStream, SocketAddr),
    /// Nothing now; ask again after the next event, or after the rest.
    Nobody,
}

impl Listeners {
    /// Watches `sockets`, listener number `n` with the token `token(n)`.
    pub fn watch(sockets: Vec<TcpListener>, registry: &Registry, token: impl Fn(usize) -> Token) -> io::Result<Self> {
        let mut doors = Vec::with_capacity(sockets.len());
        for (number, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let is_unix = SockRef::from(&socket).local_addr()?.is_unix();
            if !is_unix {
                // What is set here is inherited by every accepted connection, and costs no call for each.
                SockRef::from(&socket).set_tcp_nodelay(true)?;
            }
            let mut listener = mio::net::TcpListener::from_std(socket);
            registry.register(&mut listener, token(number), Interest::READABLE)?;
            doors.push(Some(Door { listener, ready: false, is_unix }));
        }
        Ok(Listeners { doors, knocked: false, rest_until: Mono(0) })
    }

    /// An event came for listener `number`.
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

    /// Number of listening sockets, those that have been closed included.
    pub fn len(&self) -> usize {
        self.doors.len()
    }

    /// True when there never was one.
    pub fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// The next connection of listener `number`. An error that belongs to one connection skips it; any other error
    /// (above all EMFILE) sends all doors to rest for `limits::ACCEPT_PAUSE`, because it would come again at once.
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
                        self.rest_until = now.after(limits::ACCEPT_PAUSE);
                        return Arrival::Nobody;
                    }
                },
            }
        }
        Arrival::Nobody
    }

    /// When a door has to be tried again although no event will say so; `open` says which ones may be.
    pub fn due(&self, open: impl Fn(usize) -> bool) -> Option<Mono> {
        let waits = |door: &Option<Door>| door.as_ref().is_some_and(|door| door.ready);
        self.doors.iter().enumerate().any(|(number, door)| waits(door) && open(number)).then_some(self.rest_until)
    }

    /// Closes the `first` of them. A successor may hold the same sockets open, so the poll has to be told: it would go
    /// on raising events for them.
    pub fn close(&mut self, first: usize, registry: &Registry) {
        for mut door in self.doors.iter_mut().take(first).filter_map(Option::take) {
            // It was registered when it was opened, and is gone from here on in any case.
            let _ = registry.deregister(&mut door.listener);
        }
        self.look_for_knocks();
    }

    /// The same sockets once more, for another process, in their order.
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
    fn two_may_listen_on_one_address_only_if_both_share_it() {
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
