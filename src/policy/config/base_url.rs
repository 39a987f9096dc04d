//! URLs of servers: a provider's `base_url`, and its proxy. Pure: text to parts, or an error, which must never repeat
//! the text.

/// A parsed `base_url`.
pub struct Base {
    /// True for TLS.
    pub tls: bool,
    /// Host without brackets.
    pub host: String,
    /// Port as written, or the default of the scheme.
    pub port: u16,
    /// Host with brackets, and the port unless it is the default of the scheme.
    pub authority: String,
    /// Path without a trailing slash; empty, or with a leading one.
    pub path: String,
}

/// Parses a `base_url`.
pub fn parse_base(text: &str) -> Result<Base, &'static str> {
    const EXPECTED: &str = "expected a URL such as \"https://api.example.com/v1\"";
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => return Err(EXPECTED),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err("must not carry a user or a password; use api_key");
    }
    if path.contains(['?', '#']) {
        return Err("must not have a query or a fragment");
    }
    if !path.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(EXPECTED);
    }
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or(EXPECTED)?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| EXPECTED)?;
        (host, after.strip_prefix(':').or(if after.is_empty() { None } else { Some("") }))
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let named = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'));
    if host.is_empty() || host.len() > 253 || !named {
        return Err(EXPECTED);
    }
    let own = if tls { 443 } else { 80 };
    let port = match port {
        None => own,
        Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or("expected a port from 1 to 65535")?,
    };
    let bare = if authority.starts_with('[') { format!("[{host}]") } else { host.to_string() };
    let authority = if port == own { bare } else { format!("{bare}:{port}") };
    Ok(Base { tls, host: host.to_string(), port, authority, path: path.trim_end_matches('/').to_string() })
}
