//! PROXY protocol, versions 1 and 2: a header at the beginning of a connection, in which a TCP proxy names the client.
//! Pure: bytes to a value. Called by `io::reactor`, only for connections of trusted proxies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length of a header in bytes. A header of version 1 has at most 107; one of version 2 has no bound, but
/// headers of known senders are far shorter.
pub const HEADER_MAX: usize = 2048;

const V1: &[u8] = b"PROXY ";
const V1_MAX: usize = 107;
const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Complete header.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Length in bytes.
    pub len: usize,
    /// Address of the client; `None` for a connection of the proxy itself, or an unknown address.
    pub from: Option<IpAddr>,
}

/// Error: the bytes are not a header, or the header is too long.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NoHeader;

/// Parses the header at the front of `bytes`; `Ok(None)` while bytes of it are missing.
pub fn header(bytes: &[u8]) -> Result<Option<Header>, NoHeader> {
    let begins = |mark: &[u8]| bytes.len() < mark.len() && mark.starts_with(bytes);
    match bytes {
        _ if begins(V1) || begins(V2) => Ok(None),
        _ if bytes.starts_with(V1) => version_1(bytes),
        _ if bytes.starts_with(V2) => version_2(bytes),
        _ => Err(NoHeader),
    }
}

/// Parses a header such as `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n`.
fn version_1(bytes: &[u8]) -> Result<Option<Header>, NoHeader> {
    let window = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_MAX { Ok(None) } else { Err(NoHeader) };
    };
    let line = std::str::from_utf8(&window[V1.len()..end]).map_err(|_| NoHeader)?;
    let len = end + 2;
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Ok(Some(Header { len, from: None }));
    }
    let words: Vec<&str> = line.split(' ').collect();
    let [family, from, to, from_port, to_port] = words[..] else { return Err(NoHeader) };
    let address = |text: &str| -> Result<IpAddr, NoHeader> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| NoHeader),
            "TCP6" => text.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| NoHeader),
            _ => Err(NoHeader),
        }
    };
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    let (from, _) = (address(from)?, address(to)?);
    if is_port(from_port) && is_port(to_port) { Ok(Some(Header { len, from: Some(from) })) } else { Err(NoHeader) }
}

/// Parses a binary header: twelve bytes of a signature, version and command, family, two bytes of a length, addresses,
/// and optional fields.
fn version_2(bytes: &[u8]) -> Result<Option<Header>, NoHeader> {
    let Some(fixed) = bytes.get(V2.len()..V2.len() + 4) else { return Ok(None) };
    let (version, command, family) = (fixed[0] >> 4, fixed[0] & 15, fixed[1]);
    let len = V2.len() + 4 + usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if version != 2 || command > 1 || len > HEADER_MAX {
        return Err(NoHeader);
    }
    let Some(rest) = bytes.get(V2.len() + 4..len) else { return Ok(None) };
    let from = match (command, family >> 4) {
        // A health check by the proxy itself, or a family without addresses.
        (0, _) | (_, 0 | 3) => None,
        (_, 1) => Some(IpAddr::from(address::<4>(rest, 12)?)),
        (_, 2) => Some(IpAddr::from(address::<16>(rest, 36)?)),
        _ => return Err(NoHeader),
    };
    Ok(Some(Header { len, from }))
}

/// Returns the first address of a block of `block` bytes.
fn address<const N: usize>(rest: &[u8], block: usize) -> Result<[u8; N], NoHeader> {
    let first = rest.get(..block).and_then(|block| block.get(..N));
    first.and_then(|bytes| bytes.try_into().ok()).ok_or(NoHeader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut all = V2.to_vec();
        all.extend([0x20 | command, family]);
        all.extend((rest.len() as u16).to_be_bytes());
        all.extend(rest);
        all
    }

    /// Checks a header as a whole, truncated at every byte, and followed by other bytes.
    fn check(bytes: &[u8], from: Option<&str>) {
        let want = Header { len: bytes.len(), from: from.map(|text| text.parse().unwrap()) };
        assert_eq!(header(bytes), Ok(Some(want)), "{bytes:?}");
        for cut in 0..bytes.len() {
            assert_eq!(header(&bytes[..cut]), Ok(None), "{cut} of {bytes:?}");
        }
        assert_eq!(header(&[bytes, b"\x16\x03\x01GET / HTTP/1.1\r\n\r\n"].concat()), Ok(Some(want)));
    }

    #[test]
    fn headers_of_both_versions_name_the_client() {
        check(b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n", Some("192.0.2.1"));
        check(b"PROXY TCP6 2001:db8::7 2001:db8::1 1 65535\r\n", Some("2001:db8::7"));
        check(b"PROXY UNKNOWN\r\n", None);
        check(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None);
        let four = [192, 0, 2, 9, 10, 0, 0, 1, 0, 1, 0, 2];
        check(&v2(1, 0x11, &four), Some("192.0.2.9"));
        check(&v2(1, 0x11, &[&four[..], &[3, 0, 4, 1, 2, 3, 4]].concat()), Some("192.0.2.9"));
        let mut six = [0; 36];
        six[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        check(&v2(1, 0x21, &six), Some("2001:db8::"));
        check(&v2(0, 0, &[]), None);
        check(&v2(0, 0x11, &four), None);
        check(&v2(1, 0x31, &[0; 216]), None);
    }

    #[test]
    fn invalid_headers_are_refused() {
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01",
            b"PROXY",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443 9\r\n",
            b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 +1 443\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 1 70000\r\n",
            b"PROXY TCP4  192.0.2.1 198.51.100.1 1 2\r\n",
            b"PROXY UDP4 192.0.2.1 198.51.100.1 1 2\r\n",
            b"PROXY \xff\r\n",
            b"PROXY UNKNOWNS\r\n",
            &long,
            &v2(1, 0x11, &[1, 2, 3]),
            &v2(2, 0x11, &[0; 12]),
            &v2(1, 0x41, &[0; 36]),
            &v2(1, 0x11, &[0; 2033]),
        ] {
            let refused = header(bytes);
            assert!(refused == Err(NoHeader) || (bytes == b"PROXY" && refused == Ok(None)), "{bytes:?}");
        }
        let mut wrong = v2(1, 0x11, &[0; 12]);
        wrong[12] = 0x11;
        assert_eq!(header(&wrong), Err(NoHeader));
    }
    /// Returns a header of either version as a proxy writes it, and the client in it.
    fn written(rng: &mut Rng) -> (Vec<u8>, Option<IpAddr>) {
        let mut bytes = |count: usize| -> Vec<u8> { (0..count).map(|_| rng.next_u64() as u8).collect() };
        let four = Ipv4Addr::from(<[u8; 4]>::try_from(bytes(4)).unwrap());
        let six = Ipv6Addr::from(<[u8; 16]>::try_from(bytes(16)).unwrap());
        let (rest, more) = (bytes(20), bytes(300));
        let ports = [u16::from_be_bytes([rest[0], rest[1]]), u16::from_be_bytes([rest[2], rest[3]])];
        let more = &more[..rng.below(300) as usize];
        match rng.below(6) {
            0 => (format!("PROXY TCP4 {four} {four} {} {}\r\n", ports[0], ports[1]).into_bytes(), Some(four.into())),
            1 => (format!("PROXY TCP6 {six} {six} {} {}\r\n", ports[0], ports[1]).into_bytes(), Some(six.into())),
            2 => (format!("PROXY UNKNOWN {six} {six} {} {}\r\n", ports[0], ports[1]).into_bytes(), None),
            3 => (v2(1, 0x11, &[&four.octets()[..], &rest[..8], more].concat()), Some(four.into())),
            4 => (v2(1, 0x21, &[&six.octets()[..], &rest, more].concat()), Some(six.into())),
            _ => (v2(0, rest[4], more), None),
        }
    }

    #[test]
    fn random_valid_headers_are_read_for_every_split() {
        let mut rng = Rng::from_u64(1);
        for _ in 0..300 {
            let (bytes, from) = written(&mut rng);
            check(&bytes, from.map(|from| from.to_string()).as_deref());
        }
    }

    /// Changes, removes or inserts bytes: the result must not depend on later bytes, and must never exceed the
    /// available bytes.
    #[test]
    fn result_of_a_corrupted_header_does_not_depend_on_later_bytes() {
        let (mut rng, mut refused) = (Rng::from_u64(2), 0);
        for _ in 0..2000 {
            let (mut bytes, _) = written(&mut rng);
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => drop(bytes.drain(at..(at + 1 + rng.below(9) as usize).min(bytes.len()))),
                _ => bytes.insert(at, b" \r\n09:.\0"[rng.below(8) as usize]),
            }
            bytes.extend(b"GET / HTTP/1.1\r\n\r\n");
            let verdict = header(&bytes);
            let first = (0..=bytes.len()).map(|end| header(&bytes[..end])).find(|verdict| *verdict != Ok(None));
            assert_eq!(first.unwrap_or(Ok(None)), verdict, "{bytes:?}");
            if let Ok(Some(header)) = verdict {
                assert!(header.len <= bytes.len().min(HEADER_MAX), "{header:?} of {bytes:?}");
            }
            refused += u64::from(verdict == Err(NoHeader));
        }
        assert!(
            (500..1900).contains(&refused),
            "{refused} of 2000 are refused: what is tried is not spoilt, or nothing else"
        );
    }
}
