//! Access control of the admin listener: tokens, and host names that a malicious page in a browser could not have
//! chosen.

use crate::base::digest::sha256;
use crate::gateway::orders::desk::ChangeAuthor;
use crate::policy::config::{Reach, Server};
use crate::policy::settings::secret::Secret;
use crate::wire::head::{HeaderField, RequestHead, bearer_token};
use std::net::IpAddr;

/// Permissions of a caller.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum AdminRole {
    /// No access: without a valid token, which is required.
    Nobody,
    /// Read access, without a token.
    Guest,
    /// Read access.
    Reader,
    /// Read and write access.
    Writer(ChangeAuthor),
}

/// Returns the permissions of the caller of a request with this head. `reach`: the clients that can connect to the
/// listening socket, whatever the configuration permits.
pub(crate) fn role(head: &RequestHead, bytes: &[u8], reach: Option<Reach>, server: &Server) -> AdminRole {
    if reach == Some(Reach::Owner) {
        return AdminRole::Writer(ChangeAuthor::Socket);
    }
    let shown = bearer_token(head.field(HeaderField::Authorization).of(bytes));
    // Compared as digests, so that the duration reveals nothing of the token.
    let is =
        |token: &Option<Secret>| token.as_ref().is_some_and(|token| sha256(shown) == sha256(token.expose().as_bytes()));
    if is(&server.admin_write_token) {
        AdminRole::Writer(ChangeAuthor::Token)
    } else if is(&server.admin_token) {
        AdminRole::Reader
    } else if shown.is_empty() && server.admin_token.is_none() && reach == Some(Reach::Host) {
        AdminRole::Guest
    } else {
        AdminRole::Nobody
    }
}

/// Returns the host name in the request, without its port; empty if missing or malformed. A target with a host
/// overrides the field (RFC 9112 section 3.2.2).
pub(crate) fn host<'a>(head: &RequestHead, bytes: &'a [u8]) -> &'a str {
    let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).unwrap_or_default();
    let asked = match text(head.target.of(bytes)).split_once("://") {
        Some((scheme, rest)) if !scheme.starts_with('/') => rest.split(['/', '?']).next().unwrap_or_default(),
        _ => text(head.field(HeaderField::Host).of(bytes)),
    };
    let (name, port) = match asked.strip_prefix('[').map(|rest| rest.split_once(']').unwrap_or_default()) {
        Some(parts) => parts,
        None => asked.split_at(asked.find(':').unwrap_or(asked.len())),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if is_port { name } else { "" }
}

/// True if that name is Tollgate's: an address, `localhost` or a configured name. A malicious page could make its own
/// name resolve to this host, so that a browser would treat this host as the page's; it cannot do so with these names.
pub(crate) fn knows_host(host: &str, reach: Option<Reach>, server: &Server) -> bool {
    reach == Some(Reach::Owner)
        || host.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || server.admin_hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}
