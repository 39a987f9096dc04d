//! URL of a shared ledger.

use crate::wire::percent;
use std::net::Ipv6Addr;

/// Nodes of a cluster that a URL names.
const NODES_MAX: usize = 16;

pub(super) const FORMS: &str = "expected \"sqlite:PATH\", \"redis://HOST:PORT/DB\" or \"rediss://HOST:PORT/DB\", \
     \"redis+cluster://HOST:PORT,HOST,...\" or \"rediss+cluster://HOST:PORT,HOST,...\"";
const CLUSTER: &str = "expected one to 16 nodes behind redis+cluster:// or rediss+cluster://, as \"HOST:PORT,HOST\", \
                       and no database but 0: a cluster has no other";
const OPTIONS: &str = "expected no `?`: the URL of a shared ledger has no options, and a password has %3F instead";

/// Location of a shared ledger: one server, or nodes of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedUrl {
    /// The URL as it may be shown: with stars for user and password.
    pub shown: String,
    /// True for TLS.
    pub is_secure: bool,
    /// True for nodes of a cluster.
    pub is_cluster: bool,
    /// Name of the user; empty for the default one.
    pub user: Vec<u8>,
    /// Password; empty for none.
    pub password: Vec<u8>,
    /// Database; 0 in a cluster.
    pub db: u16,
    /// Hosts and ports: one, or several of a cluster.
    pub places: Vec<(String, u16)>,
}

impl SharedUrl {
    /// Default port of a server.
    pub const PORT: u16 = 6379;

    /// Parses `redis://USER:PASSWORD@HOST:PORT/DB`, of which only the host is required, and the other schemes.
    /// Otherwise returns what was expected, without any part of the URL.
    pub fn parse(url: &str) -> Result<SharedUrl, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or(FORMS)?;
        let (is_secure, is_cluster) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+cluster" => (false, true),
            "rediss+cluster" => (true, true),
            _ => return Err(FORMS),
        };
        let (wrong, most) = if is_cluster { (CLUSTER, NODES_MAX) } else { (FORMS, 1) };
        if rest.contains('?') {
            return Err(OPTIONS);
        }
        let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.split_at(authority.rfind('@').unwrap_or(0));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let db = if db.is_empty() { Some(0) } else { db.parse().ok().filter(|db| !is_cluster || *db == 0) };
        let places = hosts.strip_prefix('@').unwrap_or(hosts).split(',').map(place);
        let places = places.take(most + 1).collect::<Option<Vec<_>>>().filter(|places| places.len() <= most);
        let (Some(db), Some(places)) = (db, places) else { return Err(wrong) };
        let stars = if hosts.starts_with('@') { "***" } else { "" };
        let shown = [scheme, "://", stars, &rest[login.len()..]].concat();
        let [user, password] = [user, password].map(|part| percent::bytes(part.as_bytes()));
        Ok(SharedUrl { shown, is_secure, is_cluster, user, password, db, places })
    }
}

/// Parses a host with or without a port. An IPv6 address has brackets.
fn place(text: &str) -> Option<(String, u16)> {
    let is_name = |host: &str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').filter(|(host, _)| host.parse::<Ipv6Addr>().is_ok())?,
        None => Some(text.split_at(text.find(':').unwrap_or(text.len()))).filter(|(host, _)| is_name(host))?,
    };
    let port = if port.is_empty() { SharedUrl::PORT } else { port.strip_prefix(':')?.parse().ok()? };
    (!host.is_empty() && port > 0).then(|| (host.to_string(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_user_password_hosts_and_database() {
        let cases = [
            ("redis://h", "h 6379", ["", ""], 0),
            ("redis://[::1]:7/12", "::1 7", ["", ""], 12),
            ("rediss://u:p%40ss%2F%3Aw%25@h:1", "h 1", ["u", "p@ss/:w%"], 0),
            ("redis://u:p@w#@h.test/1", "h.test 6379", ["u", "p@w#"], 1),
            ("redis://:p:q@127.0.0.1/", "127.0.0.1 6379", ["", "p:q"], 0),
            ("redis://u@h", "h 6379", ["u", ""], 0),
            ("redis://:@h", "h 6379", ["", ""], 0),
            ("rediss+cluster://%75:p@a:1,[::2],b/0", "a 1,::2 6379,b 6379", ["u", "p"], 0),
        ];
        for (url, places, login, db) in cases {
            let read = SharedUrl::parse(url).unwrap();
            let told: Vec<String> = read.places.iter().map(|(host, port)| format!("{host} {port}")).collect();
            assert_eq!((&*told.join(","), read.db), (places, db), "{url}");
            assert_eq!([&read.user[..], &read.password], login.map(str::as_bytes), "{url}");
            assert_eq!((read.is_secure, read.is_cluster), (url.starts_with("rediss"), url.contains("+cluster")));
        }
        assert_eq!(SharedUrl::parse("redis://:%ff@h").unwrap().password, b"\xff", "a password may have any bytes");
    }

    #[test]
    fn shown_url_has_no_user_and_no_password() {
        for (url, shown) in [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://:hunter@hunter2@h/0", "redis://***@h/0"),
            ("rediss://u@[::1]", "rediss://***@[::1]"),
            ("redis+cluster://u:p@a:1,b", "redis+cluster://***@a:1,b"),
        ] {
            assert_eq!(SharedUrl::parse(url).map(|url| url.shown), Ok(shown.to_string()));
        }
    }

    #[test]
    fn any_other_form_is_refused() {
        let hosts = ["redis://[x]", "redis://[::1", "redis://::1", "redis://h]", "redis://[::1]x", "redis://a b"];
        let others =
            ["redis://", "redis:h", "redis://a,b", "redis://h/65536", "redis://h/-1", "redis://h/0/", "unix://h"];
        for url in hosts.into_iter().chain(others) {
            assert_eq!(SharedUrl::parse(url).err(), Some(FORMS), "{url}");
        }
        for url in ["redis://h?protocol=resp3", "redis://:a?b@h/0", "rediss+cluster://h/0?x"] {
            assert_eq!(SharedUrl::parse(url).err(), Some(OPTIONS), "{url}");
        }
    }
}
