//! `[[providers]]`: addresses, API shapes, credentials and TLS of upstream servers.

use super::base_url::{Base, parse_base};
use super::proxy::{self, Proxy};
use crate::base::words;
use crate::policy::discover::{Discover, Listed};
use crate::policy::plan::caps::Caps;
use crate::policy::plan::entries::Entries;
use crate::policy::settings::kinds::{Kind, OneOf};
use crate::policy::settings::reader::{ENTRIES_MAX, Field, Reader, Section};
use crate::policy::settings::secret::Secret;
use crate::policy::upstream_limits::UpstreamLimits;
use crate::policy::usage::CostSource;
use crate::policy::vendors::{VendorPlace, Vendors};
use crate::wire::{ModelEndpoint, Shape};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Further headers of one provider.
pub(super) const CONFIGURED_HEADERS_MAX: usize = 32;
/// Addresses of one provider.
const ADDRESSES_MAX: usize = 64;
/// Headers that the gateway sets itself, or that would carry a literal credential.
pub(super) const RESERVED: [&str; 22] = [
    "accept-encoding",
    "api-key",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
    "x-goog-api-key",
    "http2-settings",
];

/// Reserved headers that carry a credential.
pub(super) const CREDENTIALS: [&str; 4] = ["api-key", "authorization", "x-api-key", "x-goog-api-key"];

/// A TLS peer: name and authorities of its certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthoritySpec {
    /// Name or address that the certificate must carry.
    pub server_name: String,
    /// Authorities in PEM that are trusted besides the public ones.
    pub ca_file: Option<PathBuf>,
    /// True if no provider of this configuration uses it. It keeps its index from an earlier configuration.
    pub retired: bool,
}

/// Header for a provider's credential.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Auth {
    /// `authorization: Bearer …`.
    Bearer,
    /// Only the key, in a header with this lower-case name.
    Header(String),
    /// The client's own `authorization` or `x-api-key`. There is no other credential.
    Client,
}

words! {
    /// Treatment of request fields that neither API documents.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum UnknownFields {
        /// Fields that local servers document go to servers on the local network, and fields that no format has from
        /// Messages clients to Messages providers. All others are dropped.
        #[default]
        Auto = "auto",
        /// Drop them.
        Drop = "drop",
        /// Pass them on, except those that refer to other places.
        Forward = "forward",
    }
}

/// Suffixes of names that only the local network knows.
const NEAR: [&str; 3] = [".local", ".lan", ".internal"];

/// A credential of a provider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credential {
    /// Credential for the provider: `{ env = "NAME" }`, `{ file = "path" }`, or the output of a program: `{ command =
    /// ["path", "argument"], refresh = "45m" }`. Value: a reference to a secret.
    ///
    /// The value without the scheme in its header.
    #[doc(alias = "api_key")]
    pub secret: Secret,
    /// Share among the credentials of the provider.
    pub weight: u32,
    /// Limits of requests with it.
    pub caps: Caps,
}

/// Credentials of one provider.
const CREDENTIALS_MAX: usize = 32;

/// An upstream server.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Name of the provider in targets, logs and the ledger.
    pub name: Arc<str>,
    /// Vendor whose rules apply: a `name` of the table of vendors. A server of one's own has the vendor of its program,
    /// such as `"vllm"`. Default: by the host.
    pub vendor: Option<Arc<str>>,
    /// The configuration names its vendor.
    pub says_vendor: bool,
    /// Name in spans and metrics.
    pub telemetry: Arc<str>,
    /// API format that the provider uses: `"chat"` (OpenAI Chat Completions; `"openai"` also works), `"messages"`
    /// (Anthropic Messages; `"anthropic"` also works) or `"responses"` (OpenAI Responses).
    pub shape: Shape,
    /// Base URL as in the provider's own SDK: with `/v1` for `chat` and `responses`, without it for `messages`.
    ///
    /// Without a trailing slash.
    pub base_url: String,
    /// True if it is reached over TLS.
    pub tls: bool,
    /// Host to look up, without brackets; also the TLS server name.
    pub host: Arc<str>,
    /// Port to connect to.
    pub port: u16,
    /// Value of `host`: with brackets for IPv6, with the port unless it is the scheme's own.
    pub host_header: String,
    /// Path of a generation request: `/v1/chat/completions`, `/v1/messages`.
    pub path: String,
    /// IP addresses of the provider. With them, Tollgate does not resolve the host name. If an address does not answer
    /// within 250 ms, Tollgate also tries the next address, IPv6 and IPv4 in turns, and all of them within
    /// `connect_timeout`. Default: the host name is resolved.
    ///
    /// Empty means look [`Provider::next_hop`] up; filled if that is an address.
    pub addresses: Vec<SocketAddr>,
    /// HTTP proxy through which Tollgate reaches the provider, as a URL or a reference to one: `{ env = "NAME" }` or `{
    /// file = "path" }`.
    pub proxy: Option<Proxy>,
    /// Header of the credential: `"bearer"`, `"x-api-key"`, or the name of another header. `"client"` forwards each
    /// client's own `authorization` or `x-api-key`. The client then sends its gateway key in `x-tollgate-key`. Models
    /// of such a provider can have no other provider. Default: `"bearer"`; `"x-api-key"` for the shape `messages`.
    pub auth: Auth,
    /// Several credentials in place of `api_key`. Each request uses one, chosen by weight. Value: a list of up to 32
    /// references to secrets.
    ///
    /// Requests have no credential if this is empty.
    #[doc(alias = "api_keys")]
    pub credentials: Vec<Credential>,
    /// Further headers for every request to the provider. Value: a table of up to 32 strings.
    ///
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Values of `anthropic-beta` that are forwarded to the provider. Value: a list of strings. Default: all.
    ///
    /// `None` passes all.
    pub betas: Option<Vec<String>>,
    /// Certificate authorities that are trusted for the provider in addition to the public ones. Value: path of a PEM
    /// file.
    pub ca_file: Option<PathBuf>,
    /// Index into `Config.authorities`; `None` for plain TCP.
    pub authority: Option<u32>,
    /// Treatment of undocumented request fields: `"drop"`, `"forward"`, or `"auto"`, which forwards the
    /// documented fields of local servers to providers on the local network, and new fields of the Messages format to
    /// providers of the shape `messages`.
    pub unknown_fields: UnknownFields,
    /// The provider understands a request for usage in a stream.
    pub stream_usage: bool,
    /// Source of the cost in usage records. `"provider"` takes the cost that the provider states in its usage: `cost`
    /// of OpenRouter, with `cost_details.upstream_inference_cost` if `is_byok` is true, and `cost_in_usd_ticks` of xAI.
    /// An answer without a stated cost costs what the prices give. Reservations always use the prices.
    #[doc(alias = "cost")]
    pub cost_source: CostSource,
    /// Requests may name objects in the provider's account by their ids: files, containers, skills, recordings, voices,
    /// vector stores. All keys share this account, so a key that knows an id can use the object of another key. If
    /// false, such a request gets 400, or goes to another target that permits it.
    pub stored_objects: bool,
    /// Imports the provider's list of models, and adds the models that are not configured to the catalog. `{}` uses the
    /// defaults of the keys below. Value: a table. Default: off.
    pub discover: Option<Discover>,
    /// Models that it lists; none before it has been asked.
    pub listed: Vec<Listed>,
    /// Deadlines and bounds of this provider.
    pub limits: UpstreamLimits,
    /// Limits of all requests to the provider, such as those that it sets itself: entries as in
    /// [`limits`](plans.md#limits) of a plan; `models` are upstream names. A credential in `api_keys` may have `limits`
    /// of its own. A request is sent only if its whole reservation fits; otherwise Tollgate uses the next target.
    #[doc(alias = "limits")]
    pub caps: Caps,
}

impl Provider {
    /// Another server that is called in the same way, without a credential, at `path`.
    pub(super) fn at(base: &Base, path: String) -> Provider {
        let address = base.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, base.port));
        Provider {
            name: "".into(),
            vendor: None,
            says_vendor: false,
            telemetry: "".into(),
            shape: Shape::Chat,
            base_url: String::new(),
            tls: base.tls,
            host: base.host.as_str().into(),
            port: base.port,
            host_header: base.authority.clone(),
            path,
            addresses: address.into_iter().collect(),
            proxy: None,
            auth: Auth::Bearer,
            credentials: Vec::new(),
            headers: Vec::new(),
            betas: None,
            ca_file: None,
            authority: None,
            unknown_fields: UnknownFields::Drop,
            stream_usage: false,
            cost_source: CostSource::Prices,
            stored_objects: false,
            discover: None,
            listed: Vec::new(),
            limits: UpstreamLimits::default(),
            caps: Caps::default(),
        }
    }

    /// Header that carries one of its credentials: name in lower case, and value.
    pub fn header_of(&self, credential: &Credential) -> (&str, String) {
        let secret = credential.secret.expose();
        match &self.auth {
            Auth::Header(name) => (name, secret.to_string()),
            // With `Client` there is none.
            Auth::Bearer | Auth::Client => ("authorization", format!("Bearer {secret}")),
        }
    }

    /// Host and port to connect to: its own, or its proxy's.
    pub fn next_hop(&self) -> (&Arc<str>, u16) {
        match &self.proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&self.host, self.port),
        }
    }

    /// Name of one of its credentials, by index from 0: `openai#2` for the second of several. A single credential has
    /// the provider's name.
    pub fn credential_name(&self, credential: usize) -> String {
        match self.credentials.len() {
            0 | 1 => self.name.to_string(),
            _ => format!("{}#{}", self.name, credential + 1),
        }
    }

    /// Its properties that the table of vendors compares.
    pub fn place(&self) -> VendorPlace<'_> {
        let (vendor, says_vendor, near) = (self.vendor.as_deref(), self.says_vendor, self.is_near());
        VendorPlace { vendor, says_vendor, host: &self.host, shape: self.shape, near }
    }

    /// True if it is on the local network, by the host of its `base_url`: a loopback, private or link-local address, a
    /// name without a dot, or one that only the local network knows.
    pub fn is_near(&self) -> bool {
        is_near(&self.host)
    }
}

fn is_near(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
        Err(_) => !host.contains('.') || NEAR.iter().any(|end| host.ends_with(end)),
    }
}

/// A provider with the parts that are valid. The name is enough to check the models' references.
pub(super) struct Declared {
    /// Name, if it has a usable one.
    pub name: Option<String>,
    /// Unusable name, if it has one.
    pub unfit: Option<String>,
    /// The provider, unless it has an error.
    pub provider: Option<Provider>,
}

impl Declared {
    /// True if its list fills the catalog.
    pub fn discovers(&self) -> bool {
        self.provider.as_ref().is_none_or(|provider| provider.discover.is_some())
    }
}

/// Reads `[[providers]]`.
pub(super) fn read(
    reader: &mut Reader<'_>,
    top: &mut Section<'_>,
    vendors: &Vendors,
    limits: &UpstreamLimits,
    max_buffered: usize,
) -> Vec<Declared> {
    let mut declared: Vec<Declared> = Vec::new();
    for mut section in reader.tables(top, "providers", ENTRIES_MAX) {
        let mut unfit = None;
        let name = reader.required(&mut section, "name").and_then(|field| {
            let Some(name) = provider_name(reader, &field) else {
                unfit = field.text().map(str::to_string);
                return None;
            };
            if declared.iter().any(|other| other.name.as_deref() == Some(&name)) {
                reader.error(&field, format!("a second provider is named `{name}`: names must be unique"));
            }
            Some(name)
        });
        let provider = read_one(reader, &mut section, name.as_deref(), vendors, (limits, max_buffered));
        section.finish(reader);
        declared.push(Declared { name, unfit, provider });
    }
    declared
}

/// Numbers the TLS peers and sets the number in each provider.
pub(super) fn authorities(providers: &mut [Provider], collectors: [Option<&mut Provider>; 2]) -> Vec<AuthoritySpec> {
    let mut table: Vec<AuthoritySpec> = Vec::new();
    let all = providers.iter_mut().chain(collectors.into_iter().flatten());
    for provider in all.filter(|provider| provider.tls) {
        let (server_name, ca_file) = (provider.host.to_string(), provider.ca_file.clone());
        let spec = AuthoritySpec { server_name, ca_file, retired: false };
        let index = table.iter().position(|known| *known == spec).unwrap_or_else(|| {
            table.push(spec);
            table.len() - 1
        });
        provider.authority = u32::try_from(index).ok();
    }
    table
}

fn provider_name(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<String> {
    let name = reader.string(field)?;
    let good = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !good {
        reader.wrong(field, "expected 1 to 64 letters, digits, `-`, `_` or `.`");
    }
    good.then_some(name)
}

fn read_one(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    name: Option<&str>,
    vendors: &Vendors,
    (limits, max_buffered): (&UpstreamLimits, usize),
) -> Option<Provider> {
    let (names, shapes): (Vec<_>, Vec<_>) = Shape::names().into_iter().unzip();
    let shape = reader.required(s, "shape").and_then(|field| reader.choice(&field, &names));
    let shape = shape.and_then(|index| shapes.get(index).copied());
    let base = reader.required(s, "base_url").and_then(|field| read_base(reader, &field));
    let auth = read_auth(reader, s, shape.unwrap_or(Shape::Chat));
    let credentials = read_credentials(reader, s);
    let headers = read_headers(reader, s, &auth);
    let betas = s.take("betas").map(|field| reader.strings(field).into_iter().map(|(_, beta)| beta).collect());
    let ca_file = s.take("ca_file").and_then(|field| reader.pem_file(&field, "-----BEGIN CERTIFICATE-----"));
    check_authorities(reader, s, base.as_ref());
    let (addresses, proxy) = read_way(reader, s, base.as_ref());
    let unknown = OneOf(&UnknownFields::ALL, UnknownFields::as_str);
    let unknown_fields = s.take("unknown_fields").and_then(|field| unknown.read(reader, field)).unwrap_or_default();
    let sources = OneOf(&CostSource::ALL, CostSource::as_str);
    let cost_source = s.take("cost").and_then(|field| sources.read(reader, field)).unwrap_or_default();
    let mut flag = |key, usual| s.take(key).and_then(|field| reader.boolean(&field)).unwrap_or(usual);
    let stored_objects = flag("stored_objects", false);
    let stream_usage = s.take("stream_usage").and_then(|field| reader.boolean(&field));
    let own = s.take("vendor").and_then(|field| read_vendor(reader, &field, vendors));
    let says_vendor = own.is_some();
    let discover = Discover::read(reader, s);
    check_auth(reader, s, &auth);
    let mut limits = *limits;
    limits.read(reader, s, max_buffered);
    let caps = s.take("limits").and_then(|field| Entries.read(reader, field)).unwrap_or_default();
    let (name, shape, base) = (name?, shape?, base?);
    let (base_url, path) = paths(shape, &base);
    let vendor = own.or_else(|| vendors.of_host(&base.host).map(Arc::from));
    let near = is_near(&base.host);
    let place = VendorPlace { vendor: vendor.as_deref(), says_vendor, host: &base.host, shape, near };
    let identity = vendors.identity(&place);
    Some(Provider {
        telemetry: identity.telemetry.as_deref().unwrap_or(name).into(),
        name: name.into(),
        vendor,
        says_vendor,
        shape,
        base_url,
        tls: base.tls,
        host: base.host.as_str().into(),
        port: base.port,
        host_header: base.authority,
        path,
        addresses,
        proxy,
        auth,
        credentials,
        headers,
        betas,
        ca_file,
        authority: None,
        unknown_fields,
        stream_usage: stream_usage.or(identity.stream_usage).unwrap_or(true),
        cost_source,
        stored_objects,
        discover,
        listed: Vec::new(),
        limits,
        caps,
    })
}

/// Reads the name of a vendor of the table.
fn read_vendor(reader: &mut Reader<'_>, field: &Field<'_>, vendors: &Vendors) -> Option<Arc<str>> {
    let name = reader.string(field)?;
    if !vendors.knows(&name) {
        reader.wrong(field, format!("expected the name of a vendor: {}", vendors.names().join(", ")));
    }
    Some(name.into())
}

/// Reads `addresses` and `proxy`.
fn read_way(reader: &mut Reader<'_>, s: &mut Section<'_>, base: Option<&Base>) -> (Vec<SocketAddr>, Option<Proxy>) {
    let addresses = read_addresses(reader, s, base);
    let proxy = s.take("proxy").zip(base).and_then(|(field, base)| proxy::read(reader, field, base));
    if let (Some(at), Some(_)) = (s.place("addresses"), &proxy) {
        let text = "has no effect with `proxy`, which resolves the name itself: remove one of them";
        reader.report(at, s.path_of("addresses"), text);
    }
    let addresses = proxy.as_ref().map_or(addresses, |proxy| proxy.address().into_iter().collect());
    (addresses, proxy)
}

fn read_base(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<Base> {
    let text = reader.string(field)?;
    match parse_base(&text) {
        Ok(base) => Some(base),
        Err(reason) => {
            reader.error(field, reason);
            None
        }
    }
}

/// Normal form of `base_url`, and the path of a generation request. `base_url` is the value for the provider's own SDK:
/// with `/v1` for OpenAI's shapes, without for the messages shape, which also accepts a trailing `/v1`.
fn paths(shape: Shape, base: &Base) -> (String, String) {
    let scheme = if base.tls { "https" } else { "http" };
    let (path, suffix) = match shape.is_anthropic() {
        false => (base.path.as_str(), shape.path_below()),
        true => (base.path.strip_suffix("/v1").unwrap_or(&base.path), ModelEndpoint::generate(shape).path()),
    };
    (format!("{scheme}://{}{path}", base.authority), format!("{path}{suffix}"))
}

fn read_auth(reader: &mut Reader<'_>, s: &mut Section<'_>, shape: Shape) -> Auth {
    let usual = if shape.is_anthropic() { Auth::Header("x-api-key".to_string()) } else { Auth::Bearer };
    let Some(field) = s.take("auth") else { return usual };
    let Some(text) = reader.string(&field) else { return usual };
    let name = text.to_ascii_lowercase();
    match text.as_str() {
        "bearer" => return Auth::Bearer,
        "client" => return Auth::Client,
        _ => {}
    }
    // These words in another spelling are mistakes, not names of headers.
    let is_word = matches!(name.as_str(), "bearer" | "client");
    if is_word || !is_token(&name) || (RESERVED.contains(&name.as_str()) && !CREDENTIALS.contains(&name.as_str())) {
        reader.wrong(&field, "expected \"bearer\", \"x-api-key\", \"client\" or the name of a header");
    }
    Auth::Header(name)
}

/// A provider that takes the credentials of clients has none of its own, so its list cannot be requested.
fn check_auth(reader: &mut Reader<'_>, s: &Section<'_>, auth: &Auth) {
    for key in ["api_key", "api_keys", "discover"] {
        if let Some(at) = s.place(key).filter(|_| *auth == Auth::Client) {
            reader.report(at, s.path_of(key), "has no effect with auth = \"client\": remove one of them");
        }
    }
}

/// Authorities are for TLS only.
fn check_authorities(reader: &mut Reader<'_>, s: &Section<'_>, base: Option<&Base>) {
    if let Some(at) = s.place("ca_file").filter(|_| base.is_some_and(|base| !base.tls)) {
        let text = "has no effect on an http:// base_url: use https:// or remove this key";
        reader.report(at, s.path_of("ca_file"), text);
    }
}

/// Reads `api_key` or `api_keys`.
fn read_credentials(reader: &mut Reader<'_>, s: &mut Section<'_>) -> Vec<Credential> {
    let (one, several) = (s.take("api_key"), s.take("api_keys"));
    if let (Some(_), Some(list)) = (&one, &several) {
        reader.error(list, "expected either api_key or api_keys");
    }
    let Some(list) = several else {
        let found = one.and_then(|field| reader.credential(field, None));
        return found
            .map(|(secret, weight)| Credential { secret, weight, caps: Caps::default() })
            .into_iter()
            .collect();
    };
    let (at, path, was_array) = (list.start(), list.path.clone(), list.is_array());
    let items = reader.items(list, CREDENTIALS_MAX);
    if items.is_empty() && was_array {
        reader.report(at, path, "at least one credential is needed");
    }
    let read = items.into_iter().filter_map(|item| {
        let mut caps = Caps::default();
        let mut take_limits = |reader: &mut Reader<'_>, s: &mut Section<'_>| {
            caps = s.take("limits").and_then(|field| Entries.read(reader, field)).unwrap_or_default();
        };
        let (secret, weight) = reader.credential(item, Some(&mut take_limits))?;
        Some(Credential { secret, weight, caps })
    });
    read.collect()
}

fn read_headers(reader: &mut Reader<'_>, s: &mut Section<'_>, auth: &Auth) -> Vec<(String, String)> {
    let Some(mut table) = reader.table(s, "headers") else { return Vec::new() };
    let mut headers: Vec<(String, String)> = Vec::new();
    let entries = table.take_rest();
    if entries.len() > CONFIGURED_HEADERS_MAX {
        reader.report(
            table.start(),
            s.path_of("headers"),
            format!("expected at most {CONFIGURED_HEADERS_MAX} headers"),
        );
    }
    for (name, field) in entries {
        let name = name.to_ascii_lowercase();
        let Some(value) = reader.string(&field) else { continue };
        if !is_token(&name) {
            reader.error(&field, "expected the name of a header");
        } else if RESERVED.contains(&name.as_str()) || *auth == Auth::Header(name.clone()) {
            reader.error(&field, "this header is the gateway's own; a credential belongs in api_key");
        } else if !value.bytes().all(|b| b.is_ascii_graphic() || b == b' ') || value.trim() != value {
            reader.error(&field, "expected printable ASCII without spaces around it");
        } else if headers.iter().any(|(known, _)| *known == name) {
            reader.error(&field, "the same header is listed twice: remove one");
        } else {
            headers.push((name, value));
        }
    }
    headers
}

/// True for a token of RFC 9110.
pub(super) fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Reads `addresses`, each with or without a port. A host that is an address is the only one.
fn read_addresses(reader: &mut Reader<'_>, s: &mut Section<'_>, base: Option<&Base>) -> Vec<SocketAddr> {
    let port = base.map_or(443, |base| base.port);
    let Some(written) = s.take("addresses").map(|field| reader.strings(field)) else {
        let literal = base.and_then(|base| base.host.parse::<IpAddr>().ok());
        return literal.map(|ip| SocketAddr::new(ip, port)).into_iter().collect();
    };
    let mut addresses = Vec::new();
    for (field, text) in written.into_iter().take(ADDRESSES_MAX) {
        let plain = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port));
        match plain.or_else(|_| text.parse::<SocketAddr>()) {
            Ok(address) if address.port() != 0 => addresses.push(address),
            _ => reader.wrong(&field, "expected an IP address, with or without a port"),
        }
    }
    addresses
}
