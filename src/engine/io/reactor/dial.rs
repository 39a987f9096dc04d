//! Beginning and end of a connection: look-up, dial, a proxy's tunnel, TLS handshake, close; reading at once; and the
//! check of the run queue. The parent module does the rest.

use super::{Reactor, ReactorMessage, verb};
use crate::base::limits;
use crate::base::seam::{Conn, Core, DialError, Ending, NO_DESCRIPTOR, Reply, Shut, Side, Stray, Tunnel};
use crate::base::slots::Id;
use crate::io::links::{Flags, Link};
use crate::io::outcome::Shake;
use crate::io::proxy;
use crate::io::resolver::Resolver;
use crate::io::transport::Transport;
use crate::io::tunnel;
use mio::net::TcpStream;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Links that a debug build checks after each iteration.
const LINKS_CHECKED: usize = 256;
/// Pause of a helper thread before it tries again to put an answer into a full mailbox.
const MAILBOX_PAUSE: Duration = Duration::from_millis(10);

impl<C: Core + 'static> Reactor<C> {
    /// Reads bytes that have arrived on a connection, even if the poll has not reported them yet.
    #[cold]
    #[inline(never)]
    pub(super) fn read_now(&mut self, conn: Conn) {
        if let Some((id, link)) = self.links.find_mut(conn)
            && !link.has_more_to_do()
        {
            link.set(Flags::READ);
            // The link stays in the run queue if it is in it.
            self.run_link(id, false);
        }
    }

    /// Checks in a debug build that no wake-up is lost: each link that the core wants to read, and that may have bytes,
    /// is in the run queue, once.
    pub(super) fn check_queues(&mut self) {
        let mut queued = 0;
        for link in self.links.each().take(LINKS_CHECKED) {
            queued += usize::from(link.has(Flags::QUEUED));
            let is_known = link.has(Flags::QUEUED.and(Flags::ERROR)) || self.links.find(link.conn()).is_none();
            let is_lost = !is_known && link.may_read() && self.core.wants_read(link.conn());
            assert!(!is_lost || self.core.dirty().contains(&link.conn()), "a wake-up was lost: {:?}", link.conn());
        }
        if self.links.len() <= LINKS_CHECKED {
            let waiting = self.run_queue.ids().filter(|id| self.links.has(*id)).count();
            assert_eq!(waiting, queued, "a link is in the run queue twice");
        }
    }

    /// Handles [`Action::Hear`].
    pub(super) fn hear(&mut self, conn: Conn) {
        self.read_now(conn);
        verb(&mut self.core, Some(conn), self.now, |core| core.heard(conn, self.now));
    }

    /// Handles an event of a dialing socket: connected, failed, or not yet.
    pub(super) fn connected(&mut self, id: Id<Link>) {
        let Some(link) = self.links.get_mut(id) else { return };
        let socket = link.transport.socket();
        match (socket.take_error(), socket.peer_addr()) {
            (Ok(None), Ok(_)) => {}
            (Ok(None), Err(error)) if error.kind() == ErrorKind::NotConnected => return,
            (Ok(Some(error)) | Err(error), _) | (Ok(None), Err(error)) => {
                let why = if link.has(Flags::TUNNEL) { proxy_unreachable(&error) } else { unreachable(&error) };
                return self.dial_failed(id, DialError::Connect(why));
            }
        }
        link.clear(Flags::DIALING);
        link.set(Flags::WRITE.and(Flags::SHAKING));
        match link.has(Flags::TUNNEL) {
            true => self.ask_proxy(id),
            false => self.shake(id),
        }
    }

    /// Sends the request for a tunnel to the connected proxy. It is shorter than what a new socket takes at once.
    fn ask_proxy(&mut self, id: Id<Link>) {
        let at = self.tunnels.iter().position(|(of, _)| *of == id);
        let (Some(at), Some(link)) = (at, self.links.get_mut(id)) else { return };
        let (_, tunnel) = self.tunnels.swap_remove(at);
        match link.transport.socket().write(tunnel.bytes()) {
            Ok(taken) if taken == tunnel.bytes().len() => self.proxied(id),
            _ => self.dial_failed(id, DialError::Connect(tunnel::CLOSED)),
        }
    }

    /// Parses the proxy's answer so far, and takes a good answer and no further byte off the socket.
    fn proxied(&mut self, id: Id<Link>) {
        let Some(link) = self.links.get_mut(id) else { return };
        let answer = match link.transport.peek_into(&mut self.scratch, tunnel::ANSWER_MAX) {
            Ok(0) => Err(tunnel::CLOSED),
            Ok(count) => tunnel::all_of(self.scratch.raw(count)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(_) => Err(tunnel::CLOSED),
        };
        match answer {
            // The missing bytes will not arrive any more.
            Ok(None) if link.has(Flags::HINT) => self.dial_failed(id, DialError::Connect(tunnel::CLOSED)),
            Ok(None) => link.clear(Flags::READ),
            Ok(Some(len)) => {
                link.clear(Flags::TUNNEL);
                link.transport.skip(len, &mut self.scratch);
                self.shake(id);
            }
            Err(why) => self.dial_failed(id, DialError::Connect(why)),
        }
    }

    /// Continues handshakes of clients and with providers, as many as one iteration may. Each host has its share,
    /// however many links of others wait before its own.
    pub(super) fn shake_some(&mut self) {
        for _ in 0..self.run_queue.shaking() {
            if self.shakes.are_spent() {
                return;
            }
            let Some(id) = self.run_queue.next_shaking() else { return };
            let Some(link) = self.links.get_mut(id) else { continue };
            link.clear(Flags::QUEUED);
            match link.has_more_to_do() {
                true => self.advance(id),
                false => self.enqueue(id),
            }
        }
    }

    pub(super) fn shake(&mut self, id: Id<Link>) {
        if self.links.get_mut(id).is_some_and(|link| link.has(Flags::TUNNEL)) {
            return self.proxied(id);
        }
        // A handshake is the costliest operation that a stranger can request, so a flood of them is spread over many
        // iterations.
        let Some(link) = self.links.get_mut(id) else { return };
        if !self.shakes.takes(link.host()) {
            return self.enqueue(id);
        }
        match link.transport.shake(&mut self.scratch) {
            // A hinted end has not been read yet, so READ stays set until it has.
            Shake::Going if !link.has(Flags::HINT) => link.clear(Flags::READ),
            Shake::Going => {}
            Shake::More => self.enqueue(id),
            Shake::Failed(_) if link.conn().side == Side::Client => self.ended(id, Ending::Broken),
            Shake::Failed(why) => self.dial_failed(id, DialError::Tls(why)),
            Shake::Plain(count) => self.strayed(id, count),
            Shake::Done if link.conn().side == Side::Client => {
                // The first request may have arrived in the same segment as the end of the handshake.
                link.clear(Flags::SHAKING);
                link.set(Flags::READ);
                self.enqueue(id);
            }
            Shake::Done => {
                link.clear(Flags::SHAKING);
                let (conn, reads) = (link.conn(), link.has(Flags::READ));
                self.replies.push(Reply::Dialed(conn));
                if reads {
                    self.enqueue(id);
                }
            }
        }
    }

    /// Handles a client that sends plain HTTP instead of TLS: takes its socket out of the session, so that it can
    /// receive an answer.
    fn strayed(&mut self, id: Id<Link>, count: usize) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (conn, now) = (link.conn(), self.now);
        if !verb(&mut self.core, Some(conn), now, |core| core.strayed(conn, Stray::PlainHttp, now)) {
            return self.ended(id, Ending::Broken);
        }
        let Some(link) = self.links.remove(id) else { return };
        let Transport::Tls(both) = link.transport else { return };
        let (mut socket, _) = *both;
        // The socket was registered when it was accepted; it is registered again under its new name.
        let _ = self.poll.registry().deregister(&mut socket);
        if self.add(conn, Transport::Plain(socket), Flags::WRITE.and(Flags::READ)) {
            let data = self.scratch.raw(count);
            verb(&mut self.core, Some(conn), now, |core| core.bytes(conn, data, now));
        }
    }

    /// Reads the header of a trusted proxy's connection, which names the client, and no further byte.
    pub(super) fn preface(&mut self, id: Id<Link>) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (conn, now) = (link.conn(), self.now);
        let header = match link.transport.peek_into(&mut self.scratch, proxy::HEADER_MAX) {
            Ok(0) => return self.ended(id, Ending::Fin),
            Ok(count) => proxy::header(self.scratch.raw(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(_) => return self.ended(id, Ending::Broken),
        };
        match header {
            // The missing bytes will not arrive any more.
            Ok(None) if link.has(Flags::HINT) => self.ended(id, Ending::Fin),
            Ok(None) => link.clear(Flags::READ),
            Ok(Some(header)) => {
                link.clear(Flags::PREFACE);
                link.transport.skip(header.len, &mut self.scratch);
                verb(&mut self.core, Some(conn), now, |core| core.proxied(conn, header.from, now));
                self.enqueue(id);
            }
            Err(_) => {
                if !verb(&mut self.core, Some(conn), now, |core| core.strayed(conn, Stray::NoProxyHeader, now)) {
                    self.ended(id, Ending::Broken);
                }
            }
        }
    }

    fn dial_failed(&mut self, id: Id<Link>, why: DialError) {
        if let Some(link) = self.links.remove(id) {
            self.replies.push(Reply::DialFailed(link.conn(), why));
        }
    }

    pub(super) fn dial(&mut self, conn: Conn, addr: SocketAddr, authority: Option<u32>, tunnel: Option<Tunnel>) {
        let socket = match TcpStream::connect(addr) {
            Ok(socket) => socket,
            Err(error) => return self.replies.push(Reply::DialFailed(conn, blame(&error))),
        };
        let _ = socket.set_nodelay(true);
        let transport = match authority.map(|index| self.security.peers.session(index)) {
            None => Transport::Plain(socket),
            Some(Some(session)) => Transport::Tls(Box::new((socket, session))),
            Some(None) => return self.replies.push(Reply::DialFailed(conn, DialError::Tls("no configuration"))),
        };
        let flags = if tunnel.is_some() { Flags::DIALING.and(Flags::TUNNEL) } else { Flags::DIALING };
        if !self.add(conn, transport, flags) {
            return self.replies.push(Reply::DialFailed(conn, DialError::Local("the poll takes no more")));
        }
        if let (Some(tunnel), Some(id)) = (tunnel, self.links.find(conn)) {
            // Removes the entries of dials that were given up.
            let links = &mut self.links;
            self.tunnels.retain(|(of, _)| links.get_mut(*of).is_some());
            self.tunnels.push((id, tunnel));
        }
    }

    /// Ends our half. If encrypted bytes are still to be written, or the peer has gone, only the close ends it.
    pub(super) fn finish(&mut self, conn: Conn) {
        if let Some(link) = self.links.find(conn).and_then(|id| self.links.get_mut(id))
            && link.transport.finish()
        {
            link.set(Flags::FINISHED);
        }
    }

    pub(super) fn close(&mut self, conn: Conn, shut: Shut) {
        let Some(id) = self.links.find(conn) else { return };
        let Some(link) = self.links.get_mut(id) else { return };
        match shut {
            Shut::Clean if !link.has(Flags::DIALING.and(Flags::SHAKING)) => {
                link.set(Flags::PARTING);
                self.links.forget(conn, id);
                if !self.part(id) {
                    self.parting.push_back((self.now.mono.after(limits::PARTING), id));
                }
            }
            _ => {
                link.transport.abort();
                self.links.remove(id);
            }
        }
    }

    /// Starts the successor; the callback handles errors, also of the sockets.
    pub(super) fn start_successor(&mut self) {
        if let Some(start) = &mut self.successor {
            start(self.listeners.duplicates());
        }
    }

    /// True if the end has been sent and the socket is closed.
    pub(super) fn part(&mut self, id: Id<Link>) -> bool {
        let Some(link) = self.links.get_mut(id) else { return true };
        let unread = link.has(Flags::READ);
        let done = link.transport.part(&mut self.scratch, unread);
        if done {
            self.links.remove(id);
        }
        done
    }

    pub(super) fn end_partings(&mut self) {
        while let Some((until, id)) = self.parting.front().copied() {
            if until > self.now.mono && self.links.get_mut(id).is_some() {
                break;
            }
            self.links.remove(id);
            self.parting.pop_front();
        }
    }

    /// Resolves a host. Literal addresses are answered at once; names go to threads.
    pub(super) fn resolve(&mut self, host: Arc<str>, port: u16) {
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(ip) = literal {
            let addrs = Ok(vec![SocketAddr::new(ip, port)]);
            return self.replies.push(Reply::Named { host, port, addrs });
        }
        let mailbox = self.inbox.mailbox();
        let resolver = self.resolver.get_or_insert_with(|| {
            Resolver::new(move |(host, port, addrs)| {
                let mut answer = ReactorMessage::Reply(Reply::Named { host, port, addrs });
                // The core asks for a host again only after an answer.
                while let Err(full) = mailbox.send(answer) {
                    std::thread::sleep(MAILBOX_PAUSE);
                    answer = full;
                }
            })
        });
        let asked = resolver.ask(host.clone(), port);
        if !asked {
            self.replies.push(Reply::Named { host, port, addrs: Err("too many look-ups") });
        }
    }
}

/// Returns the cause of a failed `connect`: local, or the network.
fn blame(error: &io::Error) -> DialError {
    match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::TimedOut => DialError::Connect(unreachable(error)),
        _ => DialError::Local(NO_DESCRIPTOR),
    }
}

/// Returns the reason that a proxy cannot be reached.
fn proxy_unreachable(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionRefused => "proxy: refused",
        _ => "proxy: unreachable",
    }
}

/// Returns the reason that a peer cannot be reached.
fn unreachable(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionRefused => "refused",
        ErrorKind::ConnectionReset => "reset",
        ErrorKind::HostUnreachable => "host unreachable",
        ErrorKind::NetworkUnreachable => "network unreachable",
        ErrorKind::TimedOut => "no answer",
        _ => "failed",
    }
}
