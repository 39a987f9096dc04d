//! Limits of connections: of all clients together, of each address, and of the admin listener separately, so that a
//! flood of clients cannot make the health endpoint unreachable. If there are too many, a connection without a
//! credential is closed (`client::seats`), after its received bytes have been read; if all have shown one, idle ones
//! of the key that has most of them. Clients may use three quarters of the descriptors, connections to providers half.
//! Counts; closes nothing itself.

use super::seats::{ListenerConnections, PeerKey, Seats};
use crate::base::limits::{ADMIN_CONNECTIONS, RESERVE_CONNECTIONS, RESERVE_PER_HOST, client_descriptors};
use crate::policy::config::Server;

/// Decision on a new connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionVerdict {
    /// The connection is accepted.
    In,
    /// The connection is accepted only to be answered 503.
    Crowded,
    /// The connection is closed immediately. Strangers make room for later ones nevertheless.
    Out,
}

/// Decision on a new connection, and the slots of the connections to be closed for it. One is enough unless the limit
/// is already exceeded.
pub(crate) type Welcome = (ConnectionVerdict, [Option<u32>; 2]);

/// Counts of open connections.
#[derive(Debug)]
pub(crate) struct ConnectionLimits {
    seats: Seats,
    clients: ListenerConnections,
    admins: ListenerConnections,
    /// Number of connections to providers.
    pub(crate) providers: usize,
    /// Descriptors for connections of clients and to providers.
    descriptors: usize,
    /// Number of connections refused, answered 503 or closed to make room, since the start.
    pub(crate) turned_away: u64,
}

impl ConnectionLimits {
    /// Returns limits without open connections, with storage for `room`. `seed` prevents strangers from choosing
    /// addresses that collide. `descriptors`: number of descriptors for connections of clients and to providers.
    pub(crate) fn new(seed: u64, room: usize, descriptors: Option<usize>) -> ConnectionLimits {
        let hasher = ahash::RandomState::with_seeds(seed, !seed, seed.rotate_left(32), 0x646f_6f72);
        ConnectionLimits {
            seats: Seats::with_room(room),
            clients: ListenerConnections::new(hasher.clone()),
            admins: ListenerConnections::new(hasher),
            providers: 0,
            descriptors: descriptors.unwrap_or(usize::MAX),
            turned_away: 0,
        }
    }

    /// Gives the memory of many connections back.
    pub(crate) fn trim(&mut self) {
        self.clients.trim();
        self.admins.trim();
    }

    /// Number of open client connections, without those to the admin listener.
    pub(crate) fn clients(&self) -> usize {
        self.clients.held()
    }

    /// Number of connections to providers that may be open.
    pub(crate) fn providers_max(&self) -> usize {
        (self.descriptors / 2).min(self.descriptors.saturating_sub(self.clients.held())).max(1)
    }

    /// Number of client connections that may be open.
    fn clients_max(&self, bounds: &Server) -> usize {
        let left = self.descriptors.saturating_sub(self.providers).max(1);
        bounds.max_connections.min(client_descriptors(self.descriptors)).min(left)
    }

    /// Number of connections that `host` may have.
    fn share(bounds: &Server) -> usize {
        match bounds.max_connections_per_ip {
            0 => usize::MAX - RESERVE_PER_HOST,
            share => share,
        }
    }

    /// True if only a connection with a credential can make room for a new one from `host`.
    pub(crate) fn is_full(&self, host: PeerKey, bounds: &Server) -> bool {
        let clients = &self.clients;
        clients.held() >= self.clients_max(bounds)
            && clients.known() == clients.held()
            && clients.held_by(host) < ConnectionLimits::share(bounds)
    }

    /// Decides on a new connection from `host`. `has_room`: others will be closed for it in any case.
    pub(crate) fn welcome(&mut self, admin: bool, host: PeerKey, has_room: bool, bounds: &Server) -> Welcome {
        let welcome = match admin {
            true => self.admin_welcome(),
            false if has_room => (ConnectionVerdict::In, [None; 2]),
            false => self.client_welcome(host, bounds),
        };
        self.turned_away += u64::from(welcome.0 != ConnectionVerdict::In);
        welcome
    }

    fn admin_welcome(&mut self) -> Welcome {
        let more = (self.admins.held() + 1).saturating_sub(ADMIN_CONNECTIONS);
        let goes = self.next_to_go(true, more, None);
        let is_out = more > RESERVE_PER_HOST || (more > 0 && goes[0].is_none());
        (if is_out { ConnectionVerdict::Out } else { ConnectionVerdict::In }, goes)
    }

    fn client_welcome(&mut self, host: PeerKey, bounds: &Server) -> Welcome {
        let (held, own) = (self.clients.held(), self.clients.held_by(host));
        let (most, share) = (self.clients_max(bounds), ConnectionLimits::share(bounds));
        let goes = match own >= share {
            true => self.next_to_go(false, own + 1 - share, Some(host)),
            false => self.next_to_go(false, (held + 1).saturating_sub(most), None),
        };
        // A stranger that is to go may have sent a credential that has not been read: then it stays.
        let is_out = held >= most + RESERVE_CONNECTIONS || own >= share + RESERVE_PER_HOST;
        let verdict = match goes[0].is_some() {
            _ if is_out => ConnectionVerdict::Out,
            true => ConnectionVerdict::In,
            false if held >= most || own >= share => ConnectionVerdict::Crowded,
            false => ConnectionVerdict::In,
        };
        (verdict, goes)
    }

    /// Returns the connections without credentials to be closed for `more` connections, two at most.
    fn next_to_go(&mut self, admin: bool, more: usize, host: Option<PeerKey>) -> [Option<u32>; 2] {
        let (places, seats) = (if admin { &mut self.admins } else { &mut self.clients }, &mut self.seats);
        let mut goes = [None; 2];
        for at in 0..more.min(2) {
            // A single stranger would be returned twice.
            goes[at] = places.next_to_go(host, seats).filter(|slot| goes[0] != Some(*slot));
        }
        goes
    }

    fn places(&mut self, admin: bool) -> (&mut ListenerConnections, &mut Seats) {
        (if admin { &mut self.admins } else { &mut self.clients }, &mut self.seats)
    }

    /// Records an accepted connection from `host`.
    pub(crate) fn enter(&mut self, admin: bool, slot: u32, host: PeerKey) {
        let (places, seats) = self.places(admin);
        places.enter(slot, host, seats);
    }

    /// Records a request on a connection. `known`: it has sent a valid credential, so it is not closed to make space.
    pub(crate) fn acts(&mut self, admin: bool, slot: u32, known: bool) {
        let (places, seats) = self.places(admin);
        places.acts(slot, known, seats);
    }

    /// Records the end of an accepted connection.
    pub(crate) fn leave(&mut self, admin: bool, slot: u32) {
        let (places, seats) = self.places(admin);
        places.leave(slot, seats);
    }

    /// True if an admin connection without a token may keep its slot during an answer: half of the slots stay free.
    pub(crate) fn may_wait(&self) -> bool {
        self.admins.known() < ADMIN_CONNECTIONS / 2
    }

    /// True if an admin connection may be kept after an answer: half of the slots are never kept.
    pub(crate) fn keeps_admin(&self) -> bool {
        self.admins.held() <= ADMIN_CONNECTIONS / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> PeerKey {
        PeerKey::from_ip(text.parse().unwrap())
    }

    #[test]
    fn an_ipv6_network_is_one_host_and_a_mapped_address_is_the_ipv4_one() {
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
    }

    /// Opens connections until `count` are open, each in the next slot.
    fn open(
        limits: &mut ConnectionLimits,
        host: PeerKey,
        slots: std::ops::Range<u32>,
        bounds: &Server,
    ) -> Vec<Welcome> {
        let mut met = Vec::new();
        for slot in slots {
            let welcome = limits.welcome(false, host, false, bounds);
            if welcome.0 != ConnectionVerdict::Out {
                limits.enter(false, slot, host);
            }
            welcome.1.iter().flatten().for_each(|goes| limits.leave(false, *goes));
            met.push(welcome);
        }
        met
    }

    #[test]
    fn only_strangers_are_closed_for_new_connections() {
        let bounds = Server { max_connections: 3, ..Server::default() };
        let (mut limits, a, b) = (ConnectionLimits::new(1, 0, None), host("10.0.0.1"), host("10.0.0.2"));
        open(&mut limits, a, 0..3, &bounds);
        limits.acts(false, 0, true);
        assert_eq!(limits.welcome(false, b, false, &bounds), (ConnectionVerdict::In, [Some(1), None]));
        limits.leave(false, 1);
        limits.enter(false, 1, b);
        [1, 2].into_iter().for_each(|slot| limits.acts(false, slot, true));
        let met = open(&mut limits, b, 3..3 + RESERVE_CONNECTIONS as u32, &bounds);
        assert_eq!(met[0], (ConnectionVerdict::Crowded, [None, None]));
        assert_eq!(met[1], (ConnectionVerdict::In, [Some(3), None]), "a connection that gets 503 makes room, too");
        assert_eq!(limits.clients(), 4);
    }

    #[test]
    fn full_share_of_an_address_does_not_affect_others() {
        let bounds = Server { max_connections: 100, max_connections_per_ip: 2, ..Server::default() };
        let (mut limits, a, b) = (ConnectionLimits::new(1, 0, None), host("10.0.0.1"), host("10.0.0.2"));
        open(&mut limits, b, 0..1, &bounds);
        let met = open(&mut limits, a, 1..4, &bounds);
        assert_eq!(met[2], (ConnectionVerdict::In, [Some(1), None]), "its own idlest stranger goes");
        for slot in 4..4 + RESERVE_PER_HOST as u32 {
            (2..slot).for_each(|known| limits.acts(false, known, true));
            assert_eq!(open(&mut limits, a, slot..slot + 1, &bounds)[0].0, ConnectionVerdict::Crowded);
        }
        limits.acts(false, 3 + RESERVE_PER_HOST as u32, true);
        assert_eq!(limits.welcome(false, a, false, &bounds).0, ConnectionVerdict::Out);
        assert_eq!(limits.welcome(false, b, false, &bounds).0, ConnectionVerdict::In);
    }

    #[test]
    fn health_is_reachable_when_all_connections_are_used() {
        let bounds = Server { max_connections: 1, ..Server::default() };
        let (mut limits, a) = (ConnectionLimits::new(1, 0, None), host("10.0.0.1"));
        let mut met = Vec::new();
        for slot in 0..RESERVE_CONNECTIONS as u32 + 2 {
            met.append(&mut open(&mut limits, a, slot..slot + 1, &bounds));
            (0..=slot.min(RESERVE_CONNECTIONS as u32)).for_each(|slot| limits.acts(false, slot, true));
        }
        let verdicts: Vec<ConnectionVerdict> = met.iter().map(|(verdict, _)| *verdict).collect();
        assert_eq!(
            (verdicts[0], verdicts[1], verdicts[verdicts.len() - 1]),
            (ConnectionVerdict::In, ConnectionVerdict::Crowded, ConnectionVerdict::Out)
        );
        assert_eq!(limits.welcome(true, a, false, &bounds), (ConnectionVerdict::In, [None, None]));
        assert_eq!(limits.turned_away, RESERVE_CONNECTIONS as u64 + 1);
    }

    #[test]
    fn few_descriptors_bound_clients_and_connections_to_providers() {
        let bounds = Server { max_connections: 100, ..Server::default() };
        let (mut limits, a) = (ConnectionLimits::new(1, 0, Some(8)), host("10.0.0.1"));
        assert_eq!(limits.providers_max(), 4);
        let met = open(&mut limits, a, 0..9, &bounds);
        assert_eq!((met[5].1[0], met[6].1[0], limits.clients()), (None, Some(0), 6));
        assert_eq!(limits.providers_max(), 2, "what clients have taken is not there");
        (0..3).for_each(|slot| limits.leave(false, slot + 3));
        limits.providers = 4;
        let met = open(&mut limits, a, 9..11, &bounds);
        assert_eq!((met[0].1[0], met[1].1[0].is_some(), limits.clients()), (None, true, 4), "nor what providers have");
    }
}
