//! Who may do what by the admin listener (contract section 14): tokens, and names of hosts that a page in somebody's
//! browser could not have chosen.

use super::desk::Writer;
use crate::base::digest::sha256;
use crate::gateway::exchange::authorize::bearer_token;
use crate::policy::config::{Reach, Server};
use crate::policy::settings::secret::Secret;
use crate::wire::head::{Field, RequestHead};
use std::net::IpAddr;

/// What a caller may do.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Role {
    /// Shows no token that is one of ours, and needs one for anything.
    Nobody,
    /// Look, without a token.
    Guest,
    /// Look.
    Reader,
    /// Look and change.
    Writer(Writer),
}

/// What the caller of a request with this head may do. `reach`: who can connect to the listening socket, whatever the
/// configuration says of it.
pub(crate) fn role(head: &RequestHead, bytes: &[u8], reach: Option<Reach>, server: &Server) -> Role {
    if reach == Some(Reach::Owner) {
        return Role::Writer(Writer::Socket);
    }
    let shown = bearer_token(head.field(Field::Authorization).of(bytes));
    // Compared as digests, so that the time taken tells nothing of the token.
    let is =
        |token: &Option<Secret>| token.as_ref().is_some_and(|token| sha256(shown) == sha256(token.expose().as_bytes()));
    if is(&server.admin_write_token) {
        Role::Writer(Writer::Token)
    } else if is(&server.admin_token) {
        Role::Reader
    } else if shown.is_empty() && server.admin_token.is_none() && reach == Some(Reach::Host) {
        Role::Guest
    } else {
        Role::Nobody
    }
}

/// The name by which the listener is asked for, without its port; empty where there is none, or what is there has
/// another form. A target that names a host decides over the field (RFC 9112 section 3.2.2).
pub(crate) fn host<'a>(head: &RequestHead, bytes: &'a [u8]) -> &'a str {
    let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).unwrap_or_default();
    let asked = match text(head.target.of(bytes)).split_once("://") {
        Some((scheme, rest)) if !scheme.starts_with('/') => rest.split(['/', '?']).next().unwrap_or_default(),
        _ => text(head.field(Field::Host).of(bytes)),
    };
    let (name, port) = match asked.strip_prefix('[').map(|rest| rest.split_once(']').unwrap_or_default()) {
        Some(parts) => parts,
        None => asked.split_at(asked.find(':').unwrap_or(asked.len())),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if is_port { name } else { "" }
}

/// True if that name is one of ours: an address, `localhost` or one that is configured. A page elsewhere can have a
/// name of its own lead to this host, and would be taken for ours by the browser; it cannot do so with these.
pub(crate) fn knows_host(host: &str, reach: Option<Reach>, server: &Server) -> bool {
    reach == Some(Reach::Owner)
        || host.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || server.admin_hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}
