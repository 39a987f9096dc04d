//! Address of the caller. Behind trusted proxies: the last address of `x-forwarded-for` that is not one of theirs.
//! Values that the client itself writes into that field come before those of the proxies, and are never used.

use crate::gateway::ids::ClientId;
use crate::policy::network::Network;
use crate::wire::head::values;
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of addresses examined per request, from the last one on.
const HOPS_MAX: usize = 32;

/// Peers of client connections, by their slot. Separate from connections and exchanges, which both need them.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    sockets: Vec<Ipv6Addr>,
    /// Clients named by trusted proxies at the beginning of their connections; empty if no proxy does that.
    proxied: Vec<Option<Ipv6Addr>>,
}

impl Peers {
    /// Creates a table with room for `clients`; see [`crate::base::slots::Slots::with_room`].
    pub(crate) fn with_room(clients: usize) -> Peers {
        Peers { sockets: Vec::with_capacity(clients), proxied: Vec::new() }
    }

    /// Records that a client has connected from `peer`.
    pub(crate) fn connected(&mut self, client: ClientId, peer: Ipv6Addr) {
        let slot = client.slot as usize;
        if self.sockets.len() <= slot {
            self.sockets.resize(slot + 1, Ipv6Addr::UNSPECIFIED);
        }
        self.sockets[slot] = peer;
        self.proxied.get_mut(slot).map(Option::take);
    }

    /// Records the client named by a trusted proxy.
    pub(crate) fn set_proxied(&mut self, client: ClientId, peer: Ipv6Addr) {
        let slot = client.slot as usize;
        if self.proxied.len() <= slot {
            self.proxied.resize(slot + 1, None);
        }
        self.proxied[slot] = Some(peer);
    }

    /// Returns the peer of a client's socket.
    pub(crate) fn socket(&self, client: ClientId) -> Ipv6Addr {
        self.sockets.get(client.slot as usize).copied().unwrap_or(Ipv6Addr::UNSPECIFIED)
    }

    /// Returns the caller's address.
    #[inline]
    pub(crate) fn of(&self, client: ClientId) -> Ipv6Addr {
        self.proxied.get(client.slot as usize).copied().flatten().unwrap_or_else(|| self.socket(client))
    }
}

/// Converts an address to IPv6.
pub(crate) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Returns the caller of a request with this head, on a connection of `peer`.
pub(crate) fn caller(peer: Ipv6Addr, head: &[u8], trusted: &[Network]) -> Ipv6Addr {
    let is_trusted = |address: Ipv6Addr| trusted.iter().any(|network| network.contains(address));
    if !is_trusted(peer) {
        return peer;
    }
    let fields: Vec<&[u8]> = values(head, "x-forwarded-for").collect();
    let hops = fields.into_iter().rev().flat_map(|field| field.rsplit(|byte| *byte == b',')).take(HOPS_MAX);
    let mut caller = peer;
    for hop in hops {
        // An unreadable address was not written by a trusted proxy: the caller is the last readable address.
        let Some(address) = address(hop.trim_ascii()) else { break };
        caller = address;
        if !is_trusted(address) {
            break;
        }
    }
    caller
}

/// Parses an address, with or without a port.
fn address(text: &[u8]) -> Option<Ipv6Addr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None if text.matches(':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    bare.parse().ok().map(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer: &str, fields: &str) -> String {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].map(|text| Network::parse(text).unwrap());
        let head = format!("GET / HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n");
        IpAddr::V6(caller(mapped(peer.parse().unwrap()), head.as_bytes(), &trusted)).to_canonical().to_string()
    }

    #[test]
    fn caller_is_the_last_untrusted_address() {
        for (peer, fields, caller) in [
            ("10.0.0.1", "x-forwarded-for: 203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "x-forwarded-for: 198.51.100.1, 203.0.113.9, 10.0.0.7", "203.0.113.9"),
            ("10.0.0.1", "x-forwarded-for: 198.51.100.1\r\nX-Forwarded-For:203.0.113.9 ,10.0.0.7", "203.0.113.9"),
            ("2001:db8::1", "x-forwarded-for: 203.0.113.9:4711", "203.0.113.9"),
            ("10.0.0.1", "x-forwarded-for: [2001:db9::7]:4711", "2001:db9::7"),
            ("10.0.0.1", "x-forwarded-for: 2001:db9::7", "2001:db9::7"),
            ("10.0.0.1", "x-forwarded-for: 10.0.0.2, 10.0.0.3", "10.0.0.2"),
            ("10.0.0.1", "", "10.0.0.1"),
        ] {
            assert_eq!(of(peer, fields), caller, "{fields}");
        }
    }

    #[test]
    fn only_trusted_proxies_can_name_the_caller() {
        assert_eq!(of("192.0.2.1", "x-forwarded-for: 203.0.113.9"), "192.0.2.1", "not a trusted proxy");
        for (fields, caller) in [
            ("x-forwarded-for: 203.0.113.9, unknown", "10.0.0.1"),
            ("x-forwarded-for: 203.0.113.9,", "10.0.0.1"),
            ("x-forwarded-for: 203.0.113.9, \"x\", 10.0.0.3", "10.0.0.3"),
            ("x-forwarded-for: 999.1.1.1", "10.0.0.1"),
            ("x-forwarded-for: [::1", "10.0.0.1"),
            ("x-forwarded-for: \u{fc}", "10.0.0.1"),
        ] {
            assert_eq!(of("10.0.0.1", fields), caller, "{fields}");
        }
        let many = format!("x-forwarded-for: 203.0.113.9{}", ", 10.0.0.2".repeat(HOPS_MAX));
        assert_eq!(of("10.0.0.1", &many), "10.0.0.2", "looked at within a bound");
    }
}
