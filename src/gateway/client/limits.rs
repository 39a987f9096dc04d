//! Who may hold how many connections: all clients together, each host, and the admin listener apart from them, so that
//! a flood of clients never hides the gateway's health. Where the admin listener has no room left, of its connections
//! that have shown no token the one that was idle longest goes. Counts; closes nothing itself.

use crate::base::limits::{ADMIN_CONNECTIONS, RESERVE_CONNECTIONS, RESERVE_PER_HOST};
use crate::gateway::ids::ClientId;
use crate::policy::config::Server;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// What a new connection meets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is let in.
    In,
    /// It is let in only to be told 503.
    Crowded,
    /// It is closed at once.
    Out,
}

/// The name of a peer's host: an IPv4 address, or the 64 bits of an IPv6 address that name its network, since whoever
/// has one address there has them all.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PeerKey(u64);

impl PeerKey {
    /// The host of `ip`.
    pub(crate) fn of(ip: IpAddr) -> PeerKey {
        match ip.to_canonical() {
            IpAddr::V4(ip) => PeerKey(u64::from(u32::from(ip))),
            IpAddr::V6(ip) => PeerKey((u128::from(ip) >> 64) as u64),
        }
    }
}

/// Connections open at the moment.
#[derive(Debug)]
pub(crate) struct ConnectionLimits {
    clients: usize,
    /// Connections to the admin listener, the one that has been idle longest first, and whether each is never closed
    /// to make room.
    admins: VecDeque<(ClientId, bool)>,
    /// Clients by host.
    hosts: HashMap<PeerKey, usize, ahash::RandomState>,
    /// Connections refused or told 503 since the start.
    pub(crate) turned_away: u64,
}

impl ConnectionLimits {
    /// None open. `seed` keeps strangers from choosing hosts that collide.
    pub(crate) fn new(seed: u64) -> ConnectionLimits {
        let hasher = ahash::RandomState::with_seeds(seed, !seed, seed.rotate_left(32), 0x646f_6f72);
        ConnectionLimits { clients: 0, admins: VecDeque::new(), hosts: HashMap::with_hasher(hasher), turned_away: 0 }
    }

    /// Open client connections, without those to the admin listener.
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    /// Whether one more admin connection has a place, and the one that has to go for it: of those that are not kept the
    /// one that was idle longest.
    pub(crate) fn admin_room(&mut self) -> (Verdict, Option<ClientId>) {
        let is_full = self.admins.len() >= ADMIN_CONNECTIONS;
        self.turned_away += u64::from(is_full);
        let goes = self.admins.iter().find(|(_, kept)| is_full && !kept).map(|(id, _)| *id);
        (if is_full && goes.is_none() { Verdict::Out } else { Verdict::In }, goes)
    }

    /// An admin connection has been opened or has asked something. `kept`: with a token, so that it makes room for
    /// nobody.
    pub(crate) fn admin_lives(&mut self, id: ClientId, kept: bool) {
        self.admin_gone(id);
        self.admins.push_back((id, kept));
    }

    /// An answer to an admin connection is under way. It is kept for that without a token, too, while half of the
    /// places are left for whoever asks next.
    pub(crate) fn admin_waits(&mut self, id: ClientId) {
        let kept = self.admins.iter().filter(|(_, kept)| *kept).count();
        let own = self.admins.iter_mut().filter(|(other, _)| *other == id && kept < ADMIN_CONNECTIONS / 2);
        own.for_each(|(_, kept)| *kept = true);
    }

    /// An admin connection is gone.
    pub(crate) fn admin_gone(&mut self, id: ClientId) {
        self.admins.retain(|(other, _)| *other != id);
    }

    /// Whether an admin connection may be kept after an answer: half of them never are.
    pub(crate) fn keeps_admin(&self) -> bool {
        self.admins.len() <= ADMIN_CONNECTIONS / 2
    }

    /// Counts a new client connection in, unless it is to stay out.
    pub(crate) fn enter(&mut self, host: PeerKey, bounds: &Server) -> Verdict {
        let held = self.hosts.get(&host).copied().unwrap_or(0);
        let share = match bounds.max_connections_per_ip {
            0 => usize::MAX - RESERVE_PER_HOST,
            share => share,
        };
        if self.clients >= bounds.max_connections + RESERVE_CONNECTIONS || held >= share + RESERVE_PER_HOST {
            return self.away(Verdict::Out);
        }
        self.clients += 1;
        *self.hosts.entry(host).or_insert(0) += 1;
        if self.clients > bounds.max_connections || held >= share {
            return self.away(Verdict::Crowded);
        }
        Verdict::In
    }

    fn away(&mut self, welcome: Verdict) -> Verdict {
        self.turned_away += 1;
        welcome
    }

    /// Counts a client connection out that was let in, crowded or not.
    pub(crate) fn leave(&mut self, host: PeerKey) {
        self.clients -= 1;
        if let Some(held) = self.hosts.get_mut(&host) {
            *held -= 1;
            if *held == 0 {
                self.hosts.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> PeerKey {
        PeerKey::of(text.parse().unwrap())
    }

    #[test]
    fn an_ipv6_network_is_one_host_and_a_mapped_address_is_the_ipv4_one() {
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
    }

    #[test]
    fn one_host_gets_its_share_then_a_few_words_then_nothing_and_others_do_not_feel_it() {
        let bounds = Server { max_connections: 100, max_connections_per_ip: 2, ..Server::default() };
        let (mut limits, a, b) = (ConnectionLimits::new(1), host("10.0.0.1"), host("10.0.0.2"));
        let met: Vec<Verdict> = (0..2 + RESERVE_PER_HOST).map(|_| limits.enter(a, &bounds)).collect();
        assert!(met[..2].iter().all(|welcome| *welcome == Verdict::In));
        assert!(met[2..].iter().all(|welcome| *welcome == Verdict::Crowded));
        assert_eq!(limits.enter(a, &bounds), Verdict::Out);
        assert_eq!(limits.enter(b, &bounds), Verdict::In);
        met.iter().for_each(|_| limits.leave(a));
        assert_eq!(limits.enter(a, &bounds), Verdict::In);
        limits.leave(a);
        limits.leave(b);
        assert!(limits.hosts.is_empty());
    }

    #[test]
    fn a_full_house_still_answers_about_its_health() {
        let bounds = Server { max_connections: 1, ..Server::default() };
        let (mut limits, a) = (ConnectionLimits::new(1), host("10.0.0.1"));
        let met: Vec<Verdict> = (0..RESERVE_CONNECTIONS + 2).map(|_| limits.enter(a, &bounds)).collect();
        assert_eq!((met[0], met[1], met[met.len() - 1]), (Verdict::In, Verdict::Crowded, Verdict::Out));
        assert_eq!(limits.admin_room(), (Verdict::In, None));
        assert_eq!(limits.turned_away, RESERVE_CONNECTIONS as u64 + 1);
    }
}
