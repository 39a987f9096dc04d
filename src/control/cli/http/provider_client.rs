//! HTTP client for requests to a provider as the gateway would send them, for commands and helper threads: with its
//! credential, headers, certificates and proxy, and with a deadline.

use super::blocking_http::{HttpResponse, NoAnswer, ServerAddress, ask, follow, status};
use crate::base::time::Mono;
use crate::io::clock::Clock;
use crate::io::tls::Security;
use crate::policy::config::Provider;
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum time of a complete answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
/// Maximum time of all requests for one purpose: the models of a provider by one credential, or one model.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Settings and deadline of requests for one purpose.
pub(crate) struct Asker<'a> {
    pub(crate) security: &'a Security,
    pub(crate) clock: Clock,
    pub(crate) until: Mono,
}

impl Asker<'_> {
    /// Starts the default time limit.
    pub(crate) fn new(security: &Security) -> Asker<'_> {
        Asker::within(security, TIMEOUT)
    }

    /// Starts a time limit of `timeout`.
    pub(crate) fn within(security: &Security, timeout: Duration) -> Asker<'_> {
        let clock = Clock::new();
        let until = clock.mono().after(timeout);
        Asker { security, clock, until }
    }
}

/// The path of a provider before the endpoint: `/v1`, or the path in its `base_url`.
pub(crate) fn base_path(provider: &Provider) -> &str {
    provider.path.strip_suffix(provider.shape.path_below()).unwrap_or(&provider.path)
}

pub(crate) fn list_path(provider: &Provider) -> String {
    let query = if provider.shape.is_anthropic() { "?limit=1000" } else { "" };
    format!("{}/models{query}", base_path(provider))
}

/// A request with the headers of the provider and the headers `more`.
pub(crate) fn request(provider: &Provider, method: &str, path: &str, more: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", provider.host_header);
    let mut line = |name: &str, value: &str| {
        let _ = write!(text, "{name}: {value}\r\n");
    };
    if let Some((name, value)) = provider.credentials.first().map(|one| provider.header_of(one)) {
        line(name, &value);
    }
    provider.headers.iter().for_each(|(name, value)| line(name, value));
    more.iter().for_each(|(name, value)| line(name, value));
    // Defaults apply only to headers that the configuration does not set.
    let says = |header: &str| {
        provider.headers.iter().any(|(name, _)| name == header) || more.iter().any(|(name, _)| *name == header)
    };
    if provider.shape.is_anthropic() && !says("anthropic-version") {
        line("anthropic-version", "2023-06-01");
    }
    if !says("user-agent") {
        line("user-agent", concat!("tollgate/", env!("CARGO_PKG_VERSION")));
    }
    line("accept-encoding", "identity");
    line("connection", "close");
    if method == "POST" {
        line("content-type", "application/json");
        line("content-length", &body.len().to_string());
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn send(provider: &Provider, asker: &Asker<'_>, request: &[u8]) -> Result<HttpResponse, NoAnswer> {
    ask(&address(provider, asker)?, request)
}

/// Sends a request, and does not wait for the body of the answer.
pub(crate) fn send_for_status(provider: &Provider, asker: &Asker<'_>, request: &[u8]) -> Result<u16, NoAnswer> {
    status(&address(provider, asker)?, request)
}

fn address<'a>(provider: &'a Provider, asker: &Asker<'a>) -> Result<ServerAddress<'a>, NoAnswer> {
    let left = Duration::from_micros(asker.until.micros_since(asker.clock.mono()));
    if left.is_zero() {
        return Err(NoAnswer::Silent);
    }
    Ok(ServerAddress {
        socket: None,
        addresses: &provider.addresses,
        host: provider.next_hop().0,
        port: provider.next_hop().1,
        tunnel: provider.proxy.as_ref().map(|proxy| &proxy.tunnel),
        tls: (asker.security, provider.authority),
        connect: provider.limits.connect_timeout.min(left),
        answer: ANSWER.min(left),
    })
}

pub(crate) fn get(provider: &Provider, asker: &Asker<'_>, path: &str) -> Result<HttpResponse, NoAnswer> {
    send(provider, asker, &request(provider, "GET", path, &[], b""))
}

/// Does the same, but passes the answer's body to `read` as it arrives, until it ends or `read` returns false; returns
/// the status.
pub(crate) fn read(
    provider: &Provider,
    asker: &Asker<'_>,
    path: &str,
    read: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<u16, NoAnswer> {
    follow(&address(provider, asker)?, &request(provider, "GET", path, &[], b""), read)
}

pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || b"-._~:/".contains(&b) => out.push(char::from(b)),
            b => {
                let _ = write!(out, "%{b:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_name_is_encoded_for_a_path() {
        assert_eq!(encoded("org/model:7b q?"), "org/model:7b%20q%3F");
    }
}
