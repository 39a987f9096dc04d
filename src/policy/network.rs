//! Networks: addresses that share their first bits. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An address and the length of its prefix. IPv4 networks are stored as mapped IPv6 addresses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reads `10.0.0.0/8`, `2001:db8::/32` or a single address; `None` for anything else, including a network with bits
    /// set after its prefix.
    pub fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) if !bits.starts_with('+') => (address, Some(bits.parse::<u8>().ok()?)),
            Some(_) => return None,
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let network = Network { address, bits: bits.unwrap_or(most) };
        (network.bits <= most && number(address) & !network.mask() == 0).then_some(network)
    }

    /// True if the network contains the address. IPv4 addresses must be mapped into IPv6.
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        u128::from(address) & self.mask() == number(self.address)
    }

    fn mask(&self) -> u128 {
        let bits = u32::from(self.bits) + if self.address.is_ipv4() { 96 } else { 0 };
        u128::MAX.checked_shl(128 - bits).unwrap_or(0)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        let mapped = |text: &str| match text.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::1", "::1", "::2"),
            ("::/0", "2001:db8::1", ""),
        ] {
            let read = Network::parse(network).unwrap();
            assert!(read.contains(mapped(inside)), "{network}");
            assert!(outside.is_empty() || !read.contains(mapped(outside)), "{network}");
            assert_eq!(Network::parse(&read.to_string()), Some(read));
        }
        for wrong in
            ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "::/129", "host", "::1/64"]
        {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }
}
