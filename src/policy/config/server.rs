//! `[server]`: listeners, and the bounds on what clients may ask.

use crate::base::limits;
use crate::policy::attribution::Attribution;
use crate::policy::memory::{self, ConfigFacts, QueueBounds};
use crate::policy::network::Network;
use crate::policy::settings::kinds::{Bytes, Flag, Kind, OneOf, Or, Reference, Shown, Time, Whole};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::secret::Secret;
use crate::policy::settings::units::{self, quoted, quoted_list};
use crate::policy::settings::{Settings, section};
use crate::policy::upstream_limits::TIMEOUTS;
use crate::policy::vendors::capabilities::TOKENS_MAX;
use crate::wire::{ModelEndpoint, Passthrough};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Listeners of one gateway.
const LISTENERS_MAX: usize = 16;
/// Smallest number of bytes of an admin token. A shorter one could be guessed.
const TOKEN_MIN: usize = 16;
const TOKEN_SHORT: &str = "shorter than 16 characters, so it can be guessed: use a longer token";
/// Settings that `memory` sets.
pub(super) const DERIVED: [&str; 3] = ["max_connections", "max_body", "max_buffered"];
/// Error text for a `memory` of which nothing remains for requests.
pub(super) const TOO_LITTLE: &str =
    "too little for this configuration: raise it, or configure fewer providers, no telemetry or no admin listener";
/// Range of a wait that may be zero.
const WAITS: RangeInclusive<Duration> = Duration::ZERO..=*TIMEOUTS.end();

section! {
    /// Listeners, and the bounds on requests of clients.
    #[derive(Clone, Debug)]
    pub struct Server {
        /// Address for clients, or a list of up to 16. `":8080"` is port 8080 on every address of the host. Sockets
        /// inherited from systemd replace them. Value: an address with a port, such as `"127.0.0.1:8080"`,
        /// `"[::]:8080"` or `":8080"`, or a list of them.
        pub listen: Vec<SocketAddr> = vec![SocketAddr::from(([127, 0, 0, 1], 8080))], Addresses, Restart;
        /// Address of the dashboard, the admin API, `/healthz`, `/readyz`, `/metrics` and `/openapi.json`. It always
        /// uses plain HTTP. `"unix:PATH"` is a Unix socket with mode 0600. Its clients need no token. Value: an address
        /// with a port, or `"unix:PATH"`.
        pub admin_listen: Option<AdminListen> = None, Or(AdminPlace, "none"), Restart;
        /// Bearer token for reading the admin API and `/metrics`. Required if other hosts can reach the admin listener:
        /// without it, Tollgate refuses to start, to reload and to upgrade. A token of less than 16 characters gives a
        /// warning. Value: `{ env = "NAME" }` or `{ file = "path" }`.
        pub admin_token: Option<Secret> = None, Or(Reference, "none"), Live;
        /// Bearer token for changes through the admin API. It also permits reading. Without it, only a client of a
        /// `unix:` socket can make changes. Value: `{ env = "NAME" }` or `{ file = "path" }`.
        pub admin_write_token: Option<Secret> = None, Or(Reference, "none"), Live;
        /// Further host names for the dashboard, the admin API, `/metrics` and `/openapi.json`, in addition to
        /// addresses and `localhost`. A request for `/metrics` with the token may use any name.
        pub admin_hosts: Vec<Arc<str>> = Vec::new(), Hosts, Live;
        /// Records all requests for the admin API from the start, which adds about 1 % to the cost of a request. If
        /// false, Tollgate records only failed requests until `requests`, `targets` or `status` of the admin API is
        /// first read.
        pub record_requests: bool = false, Flag, Restart;
        /// Completion tokens that a [strict](groups.md#strict) limit must still pay for to admit a request, unless the
        /// client asks for fewer.
        pub strict_min_tokens: u64 = 256, Whole(1..=TOKENS_MAX), Live;
        /// Prefix of API keys. A change makes all issued keys invalid.
        pub key_prefix: String = "tg_".to_string(), KeyPrefix, Live;
        /// Certificate chain and private key in PEM. Without this setting, clients use plain HTTP. Value: `{ cert =
        /// "PATH", key = "PATH" }`.
        pub tls: Option<TlsFiles> = None, Or(Certificate, "none"), Live;
        /// Web origins whose pages may call Tollgate from a browser, or `"*"` for all. Pages in an application have a
        /// scheme of their own, such as `app://obsidian.md`. An empty list turns CORS off.
        pub cors_origins: Vec<Arc<str>> = Vec::new(), Origins, Live;
        /// Lets several processes listen on the same addresses (SO_REUSEPORT). Requires a shared ledger.
        pub reuse_port: bool = false, Flag, Restart;
        /// Memory that the process may use. From this value, Tollgate derives `max_connections`, `max_body`,
        /// `max_buffered` and the bounds of queues, so that `worst_case_bytes` does not exceed it. You cannot set
        /// `memory` together with one of these three settings. 15 MiB are enough for one provider; TLS, telemetry, and
        /// many providers or models need more. Default: not bounded.
        pub memory: Option<u64> = None, Or(Bytes(memory::SHARE_MIN..=1024 * 1024 * MIB), "not bounded"), Live;
        /// Bounds that no setting names.
        pub bounds: QueueBounds = QueueBounds::default();
        /// Open client connections. At the limit, Tollgate closes a connection that has sent no valid key. It picks the
        /// address with the most such connections, and closes the connection that has been idle longest. If all
        /// connections have sent a valid key, Tollgate closes the longest idle connections of the key with the most
        /// idle connections. If no connection is idle, 32 further connections get 503; Tollgate closes any beyond
        /// these. On 32-bit processors the maximum is 500,000.
        pub max_connections: usize = 10_000, Whole(1..=limits::CONNECTIONS_MAX), Live;
        /// Open connections of one IPv4 address or IPv6 /64 network. At the limit, Tollgate closes only connections of
        /// this address to make room, and 4 further connections get 503. 0 means no limit.
        pub max_connections_per_ip: usize = 0, Whole(0..=limits::CONNECTIONS_MAX), Live;
        /// Size of a request's head. A request with a larger head gets 431.
        pub max_header: usize = 16 << 10, Bytes(1024..=MIB), Live;
        /// Size of a request's body. A request with a larger body gets 413.
        pub max_body: u64 = 32 * MIB, Bytes(1024..=1024 * MIB), Live;
        /// Size of the form of a transcription, a translation or an image edit. A request with a larger one gets 413.
        /// Tollgate passes the form on while it arrives, and holds at most 320 KiB of it.
        pub max_upload: u64 = 100 * MIB, Bytes(1024..=2048 * MIB), Live;
        /// Memory of all buffers together; at least four times `max_body`. Requests beyond it get 503. The requests of
        /// one key together can use a quarter of this memory, or up to three quarters while one large request is
        /// translated. A response of up to an eighth (a sixteenth if it is translated) always continues. A larger
        /// response may wait for other responses.
        pub max_buffered: usize = 512 << 20, Bytes(MIB..=1024 * 1024 * MIB), Live;
        /// Time from the first byte of a request's head to the last byte of the head. The same time applies until the
        /// first byte on a new connection, including the TLS handshake, and on an idle connection that has sent no
        /// valid key.
        pub header_timeout: Duration = Duration::from_secs(10), Time(TIMEOUTS), Live;
        /// Time in which no byte of a request's body arrives. A body that takes longer than this in total must average
        /// at least 16 KiB/s.
        pub body_timeout: Duration = Duration::from_secs(30), Time(TIMEOUTS), Live;
        /// Time that a connection may be idle between two requests after it has sent a valid key.
        pub keepalive_timeout: Duration = Duration::from_secs(75), Time(TIMEOUTS), Live;
        /// Time in which a client reads nothing although data waits for the client.
        pub write_stall: Duration = Duration::from_secs(60), Time(TIMEOUTS), Live;
        /// Time for running requests to finish after Tollgate gets the signal to stop.
        pub drain_timeout: Duration = Duration::from_secs(30), Time(WAITS), Live;
        /// Time between SIGTERM and the stop. `/readyz` returns 503 immediately, and Tollgate keeps serving clients for
        /// this time, so that a load balancer can notice.
        pub drain_lead: Duration = Duration::ZERO, Time(WAITS), Live;
        /// Addresses or networks of proxies whose `x-forwarded-for` Tollgate trusts. The client (`peer` in the log) is
        /// the last address in this header that is not in this list.
        pub trusted_proxies: Vec<Network> = Vec::new(), Networks, Live;
        /// Connections of `trusted_proxies` begin with a PROXY protocol header (version 1 or 2), before TLS.
        pub proxy_protocol: bool = false, Flag, Live;
        /// Requests that Tollgate logs: `"all"`, only `"failures"`, or a share of the successful requests. Tollgate
        /// always logs failures, and requests that needed a second attempt. It logs at most 100 requests a second
        /// without a valid key.
        pub log: RequestLog = RequestLog::All, Logged, Live;
        /// Form of the names of users and conversations in usage records: `"hash"` stores users as keyed hashes,
        /// `"plain"` stores the first 64 printable characters of a user's name, `"off"` stores none of these names and
        /// no kind of client.
        pub attribution: Attribution = Attribution::Hash, OneOf(&Attribution::ALL, Attribution::as_str), Live;
        /// Time without an event after which Tollgate sends the head of a stream with status 200. After that, it is the
        /// time between heartbeats. A failure after the head is an error event.
        pub heartbeat_after: Duration = Duration::from_secs(15), Time(TIMEOUTS), Live;
    }
}

/// Address of the admin listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminListen {
    /// An address of the host's.
    Address(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminListen::Address(address) => address.fmt(f),
            AdminListen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Group of processes that can connect to a listening socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Owner of the process, by a file that no other user can open.
    Owner,
    /// Processes of this host.
    Host,
    /// Other hosts.
    Network,
}

impl Reach {
    /// Reach of a socket that listens on `address`.
    pub fn from_address(address: SocketAddr) -> Reach {
        if address.ip().to_canonical().is_loopback() { Reach::Host } else { Reach::Network }
    }
}

/// PEM files for inbound TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// Settings that other sections decide about: byte offset and path of each that is set.
#[derive(Default)]
pub(super) struct SettingPositions {
    pub(super) reuse_port: Option<(usize, String)>,
    pub(super) memory: Option<(usize, String)>,
}

impl Server {
    /// Maximum bytes of the body of a request to `endpoint`.
    pub fn body_max(&self, endpoint: ModelEndpoint) -> u64 {
        let is_form = endpoint.as_passthrough().is_some_and(Passthrough::is_form);
        if is_form { self.max_upload } else { self.max_body }
    }

    /// Reads `[server]`. `known`: facts of other sections that the memory depends on.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        top: &mut Section<'_>,
        known: ConfigFacts,
    ) -> (Server, SettingPositions) {
        let mut server = Server::default();
        let Some(mut section) = reader.table(top, "server") else { return (server, SettingPositions::default()) };
        server.read_rows(reader, &mut section);
        server.check_admin(reader, &section);
        server.share_memory(reader, &section, known);
        if (server.max_buffered as u64) < server.max_body * 4 {
            let name = if section.place("max_buffered").is_some() { "max_buffered" } else { "max_body" };
            let at = section.place(name).unwrap_or(section.start());
            let sizes = [server.max_buffered as u64, server.max_body].map(units::size_text);
            let [all, body] = sizes;
            let text = format!("expected max_buffered ({all}) to be at least four times max_body ({body})");
            reader.report(at, section.path_of(name), text);
        }
        if let Some(at) = section.place("proxy_protocol").filter(|_| server.proxy_protocol)
            && server.trusted_proxies.is_empty()
            && !reader.is_wrong(&section.path_of("trusted_proxies"))
        {
            let text = "requires `trusted_proxies`: only their PROXY headers are trusted";
            reader.report(at, section.path_of("proxy_protocol"), text);
        }
        section.finish(reader);
        let place = |key, is_set| section.place(key).filter(|_| is_set).map(|at| (at, section.path_of(key)));
        let places = SettingPositions {
            reuse_port: place("reuse_port", server.reuse_port),
            memory: place("memory", server.memory.is_some()),
        };
        (server, places)
    }

    /// Derives the limits that `memory` allows.
    fn share_memory(&mut self, reader: &mut Reader<'_>, section: &Section<'_>, known: ConfigFacts) {
        let Some((memory, at)) = self.memory.zip(section.place("memory")) else { return };
        for key in DERIVED {
            if let Some(at) = section.place(key) {
                reader.report(at, section.path_of(key), "is derived from `memory`: remove one of the two");
            }
        }
        let known = ConfigFacts { tls: self.tls.is_some(), admin: self.admin_listen.is_some(), ..known };
        let Some(share) = memory::share(memory, known) else {
            return reader.report(at, section.path_of("memory"), TOO_LITTLE);
        };
        // No more than `memory`, which a small machine can count as it has that much.
        self.max_buffered = usize::try_from(share.max_buffered).unwrap_or(usize::MAX);
        (self.max_connections, self.max_body, self.bounds) = (share.max_connections, share.max_body, share.bounds);
    }

    /// Fails if an admin listener with this `reach` must not be open with these settings. `place` names it in the
    /// error.
    pub fn allows_admin(&self, reach: Reach, place: impl fmt::Display) -> Result<(), String> {
        match reach == Reach::Network && self.admin_token.is_none() {
            true => Err(format!("{place} can be reached from other hosts: set an `admin_token`")),
            false => Ok(()),
        }
    }

    fn check_admin(&self, reader: &mut Reader<'_>, section: &Section<'_>) {
        let secret = |token: &Option<Secret>| token.as_ref().map(|token| token.expose().to_string());
        let (reads, writes) = (secret(&self.admin_token), secret(&self.admin_write_token));
        for (name, token, is_same) in [("admin_token", &reads, false), ("admin_write_token", &writes, reads == writes)]
        {
            let Some((at, token)) = section.place(name).zip(token.as_ref()) else { continue };
            if self.admin_listen.is_none() {
                reader.warn(
                    at,
                    section.path_of(name),
                    "no effect, because `admin_listen` is not set: set it, or remove this key",
                );
            } else if is_same {
                reader.warn(
                    at,
                    section.path_of(name),
                    "the same as `admin_token`: every reader can also make changes; use another token",
                );
            } else if token.len() < TOKEN_MIN {
                reader.warn(at, section.path_of(name), TOKEN_SHORT);
            }
        }
        let Some(AdminListen::Address(admin)) = &self.admin_listen else { return };
        let Some(place) = section.place("admin_listen") else { return };
        let path = section.path_of("admin_listen");
        if admin.port() != 0 && self.listen.contains(admin) {
            reader.report(
                place,
                path.clone(),
                "must differ from `listen`: dashboard, admin API, health and metrics are not for clients",
            );
        }
        // A token that cannot be read has been reported.
        let is_written = section.place("admin_token").is_some();
        if let Err(text) = self.allows_admin(Reach::from_address(*admin), admin.ip())
            && !is_written
        {
            reader.report(place, path, text);
        }
    }
}

/// Selection of the requests that are logged.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum RequestLog {
    /// All requests.
    All,
    /// Failed requests.
    Failures,
    /// Failed requests, and this share of the others.
    Share(f64),
}

impl RequestLog {
    /// True if a successful request is logged. `id`: its random id.
    pub fn keeps(self, id: &[u8; 16]) -> bool {
        match self {
            RequestLog::All => true,
            RequestLog::Failures => false,
            RequestLog::Share(share) => {
                let [a, b, c, d, ..] = *id;
                // Less than one, so that a share of one selects all.
                f64::from(u32::from_be_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0) < share
            }
        }
    }
}

/// `"all"`, `"failures"` or a number from 0 to 1.
struct Logged;

impl Kind<RequestLog> for Logged {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<RequestLog> {
        let read = match field.number() {
            Some(share) => (0.0..=1.0).contains(&share).then_some(RequestLog::Share(share)),
            None => match field.text() {
                Some("all") => Some(RequestLog::All),
                Some("failures") => Some(RequestLog::Failures),
                _ => None,
            },
        };
        if read.is_none() {
            reader.wrong(&field, "expected \"all\", \"failures\" or a number from 0 to 1");
        }
        read
    }

    fn shown(&self, value: &RequestLog) -> Shown {
        Shown::Value(match value {
            RequestLog::All => quoted("all"),
            RequestLog::Failures => quoted("failures"),
            RequestLog::Share(share) => format!("{share:?}"),
        })
    }
}

/// Networks, by address and length of prefix.
struct Networks;

impl Kind<Vec<Network>> for Networks {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<Network>> {
        let mut networks = Vec::new();
        for (field, text) in reader.strings(field) {
            match Network::parse(&text) {
                Some(network) => networks.push(network),
                None => reader.wrong(&field, "expected an address or a network such as \"10.0.0.0/8\""),
            }
        }
        Some(networks)
    }

    fn shown(&self, value: &Vec<Network>) -> Shown {
        Shown::Value(quoted_list(value.iter().map(ToString::to_string)))
    }
}

/// An address with its port; names are not looked up for listeners.
struct Address;

impl Kind<SocketAddr> for Address {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<SocketAddr> {
        let text = reader.string(&field)?;
        let address = units::address(&text);
        if address.is_none() {
            reader.wrong(
                &field,
                "expected an address with a port, such as \"127.0.0.1:8080\", \"[::]:8080\" or \":8080\"",
            );
        }
        address
    }

    fn shown(&self, value: &SocketAddr) -> Shown {
        Shown::Value(quoted(&value.to_string()))
    }
}

/// An address, or the path of a socket.
struct AdminPlace;

impl Kind<AdminListen> for AdminPlace {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<AdminListen> {
        let path = field.text().and_then(|text| text.strip_prefix("unix:")).map(str::to_string);
        match path {
            None => Address.read(reader, field).map(AdminListen::Address),
            Some(path) if path.is_empty() => {
                reader.wrong(&field, "expected a path behind `unix:`");
                None
            }
            Some(path) => Some(AdminListen::Unix(reader.resolve(path))),
        }
    }

    fn shown(&self, value: &AdminListen) -> Shown {
        Shown::Value(quoted(&value.to_string()))
    }
}

/// Host names, as a browser sends them.
struct Hosts;

impl Kind<Vec<Arc<str>>> for Hosts {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<Arc<str>>> {
        let mut hosts = Vec::new();
        for (field, host) in reader.strings(field) {
            match !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
                true => hosts.push(host.into()),
                false => reader.wrong(&field, "expected the name of a host, without a port"),
            }
        }
        Some(hosts)
    }

    fn shown(&self, value: &Vec<Arc<str>>) -> Shown {
        Shown::Value(quoted_list(value))
    }
}

/// An address or a list of them.
struct Addresses;

impl Kind<Vec<SocketAddr>> for Addresses {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<SocketAddr>> {
        let (at, path) = (field.start(), field.path.clone());
        let fields = if field.is_array() { reader.items(field, LISTENERS_MAX) } else { vec![field] };
        if fields.is_empty() {
            reader.report(at, path, "expected at least one address");
        }
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for field in fields {
            let (at, path) = (field.start(), field.path.clone());
            let Some(address) = Address.read(reader, field) else { continue };
            if address.port() != 0 && addresses.contains(&address) {
                reader.report(at, path, "the same address is listed twice: remove one");
            }
            addresses.push(address);
        }
        Some(addresses)
    }

    fn shown(&self, value: &Vec<SocketAddr>) -> Shown {
        Shown::Value(quoted_list(value.iter().map(ToString::to_string)))
    }
}

/// Prefix of keys.
struct KeyPrefix;

impl Kind<String> for KeyPrefix {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<String> {
        let prefix = reader.string(&field)?;
        let fits = (1..=32).contains(&prefix.len());
        if fits && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Some(prefix);
        }
        reader.wrong(&field, "expected 1 to 32 letters, digits, `_` or `-`");
        None
    }

    fn shown(&self, value: &String) -> Shown {
        Shown::Value(quoted(value))
    }
}

/// A certificate and its key.
struct Certificate;

impl Kind<TlsFiles> for Certificate {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<TlsFiles> {
        let mut table = reader.as_table(field)?;
        let cert = reader.required(&mut table, "cert");
        let key = reader.required(&mut table, "key");
        let cert = cert.and_then(|cert| reader.pem_file(&cert, "-----BEGIN CERTIFICATE-----"));
        let key = key.and_then(|key| reader.pem_file(&key, "PRIVATE KEY-----"));
        table.finish(reader);
        cert.zip(key).map(|(cert, key)| TlsFiles { cert, key })
    }

    fn shown(&self, value: &TlsFiles) -> Shown {
        let (cert, key) = (value.cert.to_string_lossy(), value.key.to_string_lossy());
        Shown::Value(format!("{{ cert = {}, key = {} }}", quoted(&cert), quoted(&key)))
    }
}

/// Origins of web pages, or all of them.
struct Origins;

impl Kind<Vec<Arc<str>>> for Origins {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<Arc<str>>> {
        let mut origins = Vec::new();
        for (field, origin) in reader.strings(field) {
            let good = origin.split_once("://").is_some_and(|(scheme, host)| {
                // Scheme: RFC 3986, section 3.1. Pages in an application have one of its own, such as `app`.
                let all = |text: &str, marks: &[u8]| {
                    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || marks.contains(&b))
                };
                scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                    && all(scheme, b"+-.")
                    && all(host, b"-.:[]")
            });
            if good || origin == "*" {
                origins.push(origin.into());
            } else {
                let rule = "expected an origin such as \"https://app.example.com\" or \"app://obsidian.md\", or \"*\"";
                reader.wrong(&field, rule);
            }
        }
        Some(origins)
    }

    fn shown(&self, value: &Vec<Arc<str>>) -> Shown {
        Shown::Value(quoted_list(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_successful_requests_is_selected_for_the_log_by_id() {
        let ids = (0..10_000u32).map(|n| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
            id
        });
        let kept = |log: RequestLog| ids.clone().filter(|id| log.keeps(id)).count();
        assert_eq!((kept(RequestLog::All), kept(RequestLog::Failures)), (10_000, 0));
        assert_eq!((kept(RequestLog::Share(0.0)), kept(RequestLog::Share(1.0))), (0, 10_000));
        assert!((900..1100).contains(&kept(RequestLog::Share(0.1))));
        assert!(RequestLog::Share(1.0).keeps(&[255; 16]) && !RequestLog::Share(0.0).keeps(&[0; 16]));
    }
}
