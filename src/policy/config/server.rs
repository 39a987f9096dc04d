//! `[server]` and `[store]`.

use super::Secret;
use super::reader::{Field, Reader, Section};
use super::upstream::TIMEOUTS;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Listeners of one gateway.
const LISTENERS_MAX: usize = 16;
/// A wait that may also be none at all.
const WAITS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);

/// Listeners, and the bounds on what clients may ask of us (contract section 1).
#[derive(Clone, Debug)]
pub struct Server {
    /// Address, or list of addresses, that clients connect to. Sockets inherited from systemd take their place.
    pub listen: Vec<SocketAddr>,
    /// Address of `/healthz`, `/readyz`, `/metrics` and `/openapi.json`; always plain HTTP.
    pub admin_listen: Option<SocketAddr>,
    /// Secret that `/metrics` asks for as a bearer token. Required if `admin_listen` can be reached from other hosts.
    pub admin_token: Option<Secret>,
    /// What API keys begin with. A change makes all issued keys unusable.
    pub key_prefix: String,
    /// `{ cert = "cert.pem", key = "key.pem" }`: certificate chain and private key in PEM. Without it clients speak
    /// plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Origins whose pages may call (`"https://app.example.com"`), or `"*"`. Empty: CORS is off.
    pub cors_origins: Vec<Arc<str>>,
    /// Several processes listen on the same addresses (SO_REUSEPORT); needs a shared store.
    pub reuse_port: bool,
    /// Client connections at once. 32 more are told 503, those beyond are closed.
    pub max_connections: usize,
    /// The same for one IPv4 address or IPv6 /64; 4 more are told 503. 0: no limit.
    pub max_connections_per_ip: usize,
    /// Bytes of a request's head; 431 beyond it.
    pub max_header: usize,
    /// Bytes of a request's body; 413 beyond it.
    pub max_body: u64,
    /// Bytes in all buffers together, at least four times `max_body`; 503 beyond it. One key may hold a quarter.
    pub max_buffered: usize,
    /// For a head from its first byte, and for a new connection, its TLS handshake included, until that byte.
    pub header_timeout: Duration,
    /// Without progress of a body; after it, 16 KiB/s on average are asked for.
    pub body_timeout: Duration,
    /// For an idle connection between two requests.
    pub keepalive_timeout: Duration,
    /// For a client that reads nothing of what is ready for it.
    pub write_stall: Duration,
    /// For what runs when the process is told to stop.
    pub drain_timeout: Duration,
    /// Before a silent stream's status goes out, and between its heartbeats.
    pub commit_after: Duration,
}

/// PEM files for inbound TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

impl Default for Server {
    fn default() -> Server {
        Server {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080))],
            admin_listen: None,
            admin_token: None,
            key_prefix: "tg_".to_string(),
            tls: None,
            cors_origins: Vec::new(),
            reuse_port: false,
            max_connections: 10_000,
            max_connections_per_ip: 0,
            max_header: 16 << 10,
            max_body: 32 * MIB,
            max_buffered: 512 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(75),
            write_stall: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            commit_after: Duration::from_secs(15),
        }
    }
}

/// [`Server`] and, if set to true, the place of `reuse_port`, which the store has a say in.
pub(super) struct ReadServer {
    /// The checked table.
    pub value: Server,
    /// Byte of the document and path.
    pub reuse_port: Option<(usize, String)>,
}

/// Reads `[server]`.
pub(super) fn read_server(reader: &mut Reader<'_>, top: &mut Section<'_>) -> ReadServer {
    let mut server = Server::default();
    let Some(mut section) = reader.table(top, "server") else {
        return ReadServer { value: server, reuse_port: None };
    };
    let s = &mut section;
    read_listeners(reader, s, &mut server);
    let at = s.peek_start("reuse_port").unwrap_or_default();
    server.reuse_port = reader.boolean(s, "reuse_port", false);
    let reuse_port = server.reuse_port.then(|| (at, s.path_of("reuse_port")));
    server.max_connections = reader.integer(s, "max_connections", 10_000, 1..=1_000_000) as usize;
    server.max_connections_per_ip = reader.integer(s, "max_connections_per_ip", 0, 0..=1_000_000) as usize;
    server.max_header = reader.size(s, "max_header", server.max_header as u64, 1024..=MIB) as usize;
    server.max_body = reader.size(s, "max_body", server.max_body, 1024..=1024 * MIB);
    let buffered = s.take("max_buffered");
    let at = buffered.as_ref().map_or(s.start(), Field::start);
    if let Some(field) = buffered {
        let bytes = reader.as_size(&field, MIB..=1024 * 1024 * MIB);
        server.max_buffered = bytes.map_or(server.max_buffered, |bytes| bytes as usize);
    }
    if (server.max_buffered as u64) < server.max_body * 4 {
        let text = "must be at least four times max_body, since one key may hold a quarter of it";
        reader.report(at, "server.max_buffered".to_string(), text);
    }
    for (key, place, range) in [
        ("header_timeout", &mut server.header_timeout, TIMEOUTS),
        ("body_timeout", &mut server.body_timeout, TIMEOUTS),
        ("keepalive_timeout", &mut server.keepalive_timeout, TIMEOUTS),
        ("write_stall", &mut server.write_stall, TIMEOUTS),
        ("drain_timeout", &mut server.drain_timeout, WAITS),
        ("commit_after", &mut server.commit_after, TIMEOUTS),
    ] {
        *place = reader.duration(s, key, range).unwrap_or(*place);
    }
    section.finish(reader);
    ReadServer { value: server, reuse_port }
}

/// The keys of `[server]` that say who may come in, and where.
fn read_listeners(reader: &mut Reader<'_>, s: &mut Section<'_>, server: &mut Server) {
    if let Some(field) = s.take("listen") {
        let at = field.start();
        let fields = if field.is_array() { reader.items(field, LISTENERS_MAX) } else { vec![field] };
        let listen: Vec<SocketAddr> = fields.iter().filter_map(|field| address(reader, field)).collect();
        if fields.is_empty() {
            reader.report(at, s.path_of("listen"), "expected at least one address");
        }
        for (index, field) in fields.iter().enumerate().skip(1) {
            if listen.get(index).is_some_and(|at| at.port() != 0 && listen[..index].contains(at)) {
                reader.error(field, "the same address twice");
            }
        }
        server.listen = listen;
    }
    if let Some(field) = s.take("admin_listen") {
        server.admin_listen = address(reader, &field);
        if server.admin_listen.is_some_and(|at| at.port() != 0 && server.listen.contains(&at)) {
            reader.error(&field, "must differ from `listen`: health and metrics are not for clients");
        }
        let exposed = server.admin_listen.filter(|at| !at.ip().is_loopback());
        if let (Some(at), None) = (exposed, s.peek_start("admin_token")) {
            reader.error(&field, format!("{} can be reached from other hosts: set an `admin_token`", at.ip()));
        }
    }
    server.admin_token = reader.secret(s, "admin_token");
    if let Some(field) = s.take("key_prefix")
        && let Some(prefix) = reader.string(&field)
    {
        let fits = (1..=32).contains(&prefix.len());
        if fits && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            server.key_prefix = prefix;
        } else {
            reader.error(&field, "expected 1 to 32 letters, digits, `_` or `-`");
        }
    }
    if let Some(mut tls) = reader.table(s, "tls") {
        for key in ["cert", "key"] {
            if tls.peek_start(key).is_none() {
                reader.report(tls.start(), tls.path_of(key), "missing");
            }
        }
        let cert = reader.pem_file(&mut tls, "cert", "-----BEGIN CERTIFICATE-----");
        let key = reader.pem_file(&mut tls, "key", "PRIVATE KEY-----");
        tls.finish(reader);
        server.tls = cert.zip(key).map(|(cert, key)| TlsFiles { cert, key });
    }
    for (field, origin) in reader.strings(s, "cors_origins").unwrap_or_default() {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let good = host.is_some_and(|host| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b))
        });
        if good || origin == "*" {
            server.cors_origins.push(origin.into());
        } else {
            reader.error(&field, "expected an origin such as \"https://app.example.com\", or \"*\"");
        }
    }
}

/// An address with its port; names are not looked up for listeners.
fn address(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<SocketAddr> {
    let text = reader.string(field)?;
    let address = text.parse().ok();
    if address.is_none() {
        reader.error(field, "expected an address with a port, such as \"127.0.0.1:8080\" or \"[::]:8080\"");
    }
    address
}

/// When a client may see an answer as complete (contract section 5).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// At once; the row follows within milliseconds.
    #[default]
    WriteBehind,
    /// After the commit of its row.
    BeforeReply,
}

/// What happens while a shared store cannot be reached.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum OnOutage {
    /// 503.
    #[default]
    Refuse,
    /// Each host admits its share of every limit.
    Local,
}

/// Where the ledger is.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A file, resolved against the configuration's folder.
    Sqlite(PathBuf),
    /// A Redis or Valkey server; may contain a password, so it is never printed whole.
    Redis(String),
}

impl fmt::Display for StoreUrl {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Redis(url) => f.write_str(&masked(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL with its user and password, if any, replaced.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("//") else { return "***".to_string() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}//***{}", &rest[at..]),
        // Whatever is malformed may still hide a password before an `@` further on.
        None if rest.contains('@') => format!("{scheme}//***"),
        None => url.to_string(),
    }
}

/// `[store]` (contract section 5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Where keys and ledger are: `sqlite:PATH`, or `redis://…` and `rediss://…` for several hosts.
    pub url: StoreUrl,
    /// Authorities in PEM for `rediss://`, instead of the public ones.
    pub ca_file: Option<PathBuf>,
    /// When an answer may be seen as complete: at once, its row following within 50 ms, or `"before-reply"`, after its
    /// row's commit.
    pub durability: Durability,
    /// Age of the oldest uncommitted row at which admission answers 503.
    pub max_commit_lag: Duration,
    /// While a shared store cannot be reached: 503, or `"local"`, each host its share of every limit.
    pub on_outage: OnOutage,
    /// Hosts that share the store.
    pub hosts: u32,
    /// How long rows are kept, at least 32 days; their sums by day stay.
    ///
    /// `None` keeps them for ever.
    pub retention: Option<Duration>,
}

/// Rows younger than this are needed to rebuild the longest period.
const RETENTION: RangeInclusive<Duration> = Duration::from_secs(32 * 86_400)..=Duration::from_secs(36_500 * 86_400);

/// Reads `[store]`; `reuse_port` is where `[server]` asks for shared listeners.
pub(super) fn read_store(
    reader: &mut Reader<'_>,
    top: &mut Section<'_>,
    reuse_port: Option<&(usize, String)>,
) -> StoreConfig {
    let mut store = StoreConfig {
        url: StoreUrl::Sqlite(reader.resolve("tollgate.db")),
        ca_file: None,
        durability: Durability::WriteBehind,
        max_commit_lag: Duration::from_secs(5),
        on_outage: OnOutage::Refuse,
        hosts: 1,
        retention: None,
    };
    if let Some(mut section) = reader.table(top, "store") {
        let s = &mut section;
        if let Some(field) = s.take("url") {
            store.url = store_url(reader, &field).unwrap_or(store.url);
        }
        store.ca_file = reader.pem_file(s, "ca_file", "-----BEGIN CERTIFICATE-----");
        if let Some(field) = s.take("durability") {
            let choices = [("write-behind", Durability::WriteBehind), ("before-reply", Durability::BeforeReply)];
            store.durability = reader.choice(&field, &choices).unwrap_or_default();
        }
        if let Some(lag) = reader.duration(s, "max_commit_lag", TIMEOUTS) {
            store.max_commit_lag = lag;
        }
        if let Some(field) = s.take("on_outage") {
            let choices = [("refuse", OnOutage::Refuse), ("local", OnOutage::Local)];
            store.on_outage = reader.choice(&field, &choices).unwrap_or_default();
            if store.on_outage == OnOutage::Local && store.durability == Durability::BeforeReply {
                reader.error(&field, "`local` cannot be had with durability = \"before-reply\"");
            }
        }
        store.hosts = reader.integer(s, "hosts", 1, 1..=10_000) as u32;
        store.retention = reader.duration(s, "retention", RETENTION);
        section.finish(reader);
    }
    if let (Some((at, path)), StoreUrl::Sqlite(_)) = (reuse_port, &store.url) {
        reader.report(
            *at,
            path.clone(),
            "needs a shared store (redis://…): one gateway at a time owns a SQLite ledger",
        );
    }
    store
}

/// Whether this follows the scheme of a shared store's URL: `//USER:PASSWORD@HOST:PORT/DB?OPTIONS`. All but the host
/// may be left out; a fragment, by which some clients leave out the check of certificates, may not be there.
fn is_shared(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix("//") else { return false };
    let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
    let (_, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    let after_brackets = place.rfind(']').map_or(0, |end| end + 1);
    let colon = place[after_brackets..].find(':').map(|colon| after_brackets + colon);
    let (host, port) = colon.map_or((place, None), |colon| (&place[..colon], Some(&place[colon + 1..])));
    let named = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._[]:".contains(&b));
    let reachable = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    named && reachable && (db.is_empty() || db.parse::<u16>().is_ok())
}

fn store_url(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<StoreUrl> {
    let text = reader.string(field)?;
    let known = match text.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() && path != ":memory:" => {
            Some(StoreUrl::Sqlite(reader.resolve(path)))
        }
        Some(("redis" | "rediss", rest)) if is_shared(rest) => Some(StoreUrl::Redis(text)),
        _ => None,
    };
    if known.is_none() {
        reader.error(field, "expected \"sqlite:PATH\", \"redis://HOST:PORT/DB\" or \"rediss://HOST:PORT/DB\"");
    }
    known
}
