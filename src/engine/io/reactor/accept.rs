//! Accepts connections of clients.

use super::queues::host;
use super::{Reactor, verb};
use crate::base::limits;
use crate::base::seam::{Core, Ending};
use crate::io::links::Flags;
use crate::io::listen::Arrival;
use crate::io::tls::Identity;
use crate::io::transport::Transport;
use mio::net::TcpStream;
use std::net::SocketAddr;

impl<C: Core + 'static> Reactor<C> {
    /// Accepts waiting connections, at most some of each listener.
    pub(super) fn accept(&mut self) {
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
        // The core may reuse a slot whose old socket it has asked to close in this iteration.
        while !self.core.actions().is_empty() {
            self.perform_actions();
        }
        let now = self.now;
        let Some(conn) = verb(&mut self.core, None, now, |core| core.accepted(listener, peer, now)) else { return };
        let identity = self.security.identity.as_ref().filter(|_| listener < self.secured);
        let (transport, flags) = match identity.map(Identity::session) {
            None => (Transport::Plain(socket), Flags::WRITE),
            Some(Some(session)) => (Transport::Tls(Box::new((socket, session))), Flags::WRITE.and(Flags::SHAKING)),
            // rustls makes a session from every configuration that it has accepted; otherwise the connection would be
            // closed.
            Some(None) => return verb(&mut self.core, Some(conn), now, |core| core.closed(conn, Ending::Broken, now)),
        };
        let flags = if self.core.begins_with_proxy(conn) { flags.and(Flags::PREFACE) } else { flags };
        if self.add(conn, transport, flags)
            && let Some((_, link)) = self.links.find_mut(conn)
        {
            link.set_host(host(peer.ip()));
        }
    }
}
