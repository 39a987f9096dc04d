//! Location of a shared ledger: one server, or the node of a Redis Cluster that has the slot of its names.
//!
//! In a cluster all names have one hash tag, so they are in one slot, and a script that uses several of them is atomic
//! there too. Any node reports which master has the slot ([`Nodes::turn`]). The nodes that it reports are remembered,
//! so that the ledger is found even if its former nodes, or those that the URL names, are gone.
//!
//! **While the slot moves** from one master to another, each of the two has some of its names. A script run then would
//! treat entries at the other master as missing, and count from zero. So every script names one entry that never
//! exists: both masters refuse a script that names a missing entry (TRYAGAIN) until the whole slot has moved. That is a
//! temporary outage; so is ASK, the answer for names that have moved already.

use super::link::{Bounds, RemoteLink};
use super::values::{list, text};
use crate::io::tls::blocking::Trust;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult, Value};
use std::path::Path;

/// Nodes of a cluster that are remembered, and tried one after another until one has the ledger.
const SHARED_NODES_MAX: usize = 64;

/// Prefixes of all names: on one server, and in a cluster.
const PREFIXES: [&str; 2] = ["tollgate:", "{tollgate}:"];
/// Default port of a cluster's node.
const PORT: u16 = 6379;

/// Host and port.
type HostPort = (String, u16);

/// Known location of the ledger.
#[derive(Clone)]
pub(super) struct Nodes {
    info: ConnectionInfo,
    /// Authorities that vouch for the server; `None` without TLS.
    trust: Option<Trust>,
    pub(super) bounds: Bounds,
    /// Nodes of a cluster: first those that the URL names, then those that nodes have reported. Empty on one server.
    places: Vec<HostPort>,
    /// Number of nodes that the URL names.
    seeds: usize,
    /// Node that was last reported to have the ledger, or that is to be tried next; `None` on one server.
    at: Option<HostPort>,
}

impl Nodes {
    /// Reads the URL. `ca_file` contains authorities in PEM, instead of the public ones.
    pub(super) fn new(url: &str, ca_file: Option<&Path>) -> RedisResult<Nodes> {
        let (url, places) = of_cluster(url).unwrap_or_else(|| (url.to_string(), Vec::new()));
        let secure = url.strip_prefix("rediss://").map(|rest| ["redis://", rest].concat());
        let trust = if secure.is_some() { Some(Trust::load(ca_file)?) } else { None };
        let info = secure.unwrap_or(url).into_connection_info()?;
        let (at, seeds) = (places.first().cloned(), places.len());
        Ok(Nodes { info, trust, bounds: Bounds::COMMAND, places, seeds, at })
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.seeds > 0
    }

    /// Returns the prefix of all names.
    pub(super) fn prefix(&self) -> &'static str {
        PREFIXES[usize::from(self.is_cluster())]
    }

    /// Returns the name that a script names last, in a cluster.
    pub(super) fn never(&self) -> Option<String> {
        self.is_cluster().then(|| format!("{}never", self.prefix()))
    }

    /// Connects to the server, or to the node that is next.
    pub(super) fn connect(&self) -> RedisResult<RemoteLink> {
        let (host, port) = match (&self.at, self.info.addr()) {
            (Some((host, port)), _) | (None, ConnectionAddr::Tcp(host, port)) => (&**host, *port),
            _ => return Err(std::io::Error::from(std::io::ErrorKind::Unsupported).into()),
        };
        RemoteLink::open((host, port), self.trust.as_ref(), self.info.redis_settings(), self.bounds)
    }

    /// Remembers the answer to `CLUSTER SLOTS`: first and last slot, then host, port and more of each node.
    pub(super) fn learn(&mut self, told: &Value) {
        let mut places = self.places[..self.seeds].to_vec();
        for node in list(told).iter().flat_map(|range| list(range).iter().skip(2)) {
            let [host, Value::Int(port), ..] = list(node) else { continue };
            let Some(place) = self.meant(text(host).unwrap_or_default(), u16::try_from(*port).unwrap_or(0)) else {
                continue;
            };
            if places.len() < SHARED_NODES_MAX && !places.contains(&place) {
                places.push(place);
            }
        }
        // An answer without nodes changes nothing.
        if places.len() > self.seeds {
            self.places = places;
        }
    }

    /// Returns a node as another node reports it. If the reporting node does not know the name, it means itself.
    fn meant(&self, host: &str, port: u16) -> Option<HostPort> {
        let own = || self.at.as_ref().map(|(host, _)| host.clone());
        let host = if matches!(host, "" | "?") { own()? } else { host.to_string() };
        (port > 0).then_some((host, port))
    }

    /// Selects the node that an error names. True if there is one, and this is a cluster.
    pub(super) fn follow(&mut self, error: &RedisError) -> bool {
        if !self.is_cluster() || error.code() != Some("MOVED") {
            return false;
        }
        let named = error.redirect_node().map(|(place, _)| host_port(place));
        let named = named.and_then(|(host, port)| self.meant(&host, port));
        let follows = named.is_some();
        self.at = named.or(self.at.take());
        follows
    }

    /// After `error`, selects the node that the error names, or the next untried one. False if there is none.
    pub(super) fn turn(&mut self, error: &RedisError, tried: &mut Vec<HostPort>) -> bool {
        let Some(here) = self.at.clone() else { return false };
        tried.push(here.clone());
        let is_new = |place: &HostPort| !tried.contains(place);
        if tried.len() >= SHARED_NODES_MAX {
            return false;
        }
        if self.follow(error) && self.at.as_ref().is_some_and(is_new) {
            return true;
        }
        // The node after this one, even if all were tried, so that the next round begins with a different one.
        let behind = self.places.iter().position(|place| *place == here).map_or(0, |at| at + 1);
        let next = self.places.iter().cycle().skip(behind).take(self.places.len());
        let fresh = next.clone().find(|place| is_new(place));
        self.at = fresh.or(next.clone().next()).cloned();
        fresh.is_some()
    }

    /// Selects the next node; any node of a cluster is suitable.
    pub(super) fn go_on(&mut self) {
        let behind = self.places.iter().position(|place| Some(place) == self.at.as_ref()).map_or(0, |at| at + 1);
        self.at = self.places.get(behind).or(self.places.first()).cloned();
    }
}

/// Parses host and port. A host with colons has brackets, except possibly if there is no port.
fn host_port(text: &str) -> HostPort {
    let name = |host: &str| host.trim_matches(['[', ']']).to_string();
    match text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        Some((host, port)) => (name(host), port.parse().unwrap_or(0)),
        None => (name(text), PORT),
    }
}

/// Splits the URL of a cluster into that of its first node, and all nodes that it names; `None` for one server.
fn of_cluster(url: &str) -> Option<(String, Vec<HostPort>)> {
    let (scheme, rest) = url.split_once("+cluster://")?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let places: Vec<HostPort> = hosts.split(',').map(host_port).collect();
    let first = hosts.split(',').next().unwrap_or_default();
    Some((format!("{scheme}://{user}{first}{tail}"), places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::ServerErrorKind;

    fn nodes(url: &str) -> Nodes {
        Nodes::new(url, None).unwrap()
    }

    fn moved(to: &str) -> RedisError {
        (redis::ErrorKind::Server(ServerErrorKind::Moved), "key moved", format!("7332 {to}")).into()
    }

    fn refused() -> RedisError {
        std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()
    }

    fn at(nodes: &Nodes) -> String {
        nodes.at.as_ref().map(|(host, port)| format!("{host} {port}")).unwrap_or_default()
    }

    #[test]
    fn a_url_names_one_server_or_nodes_of_a_cluster() {
        let one = nodes("redis://h:1/3");
        assert_eq!((one.is_cluster(), one.prefix(), one.never()), (false, "tollgate:", None));
        let many = nodes("rediss+cluster://u:p@h:1,[::1]:2,other,[::2]/0?protocol=resp3");
        let told: Vec<String> = many.places.iter().map(|(host, port)| format!("{host} {port}")).collect();
        assert_eq!(told, ["h 1", "::1 2", "other 6379", "::2 6379"]);
        assert_eq!((many.prefix(), at(&many)), ("{tollgate}:", "h 1".to_string()));
        assert!(many.trust.is_some() && one.trust.is_none());
        let login = many.info.redis_settings();
        assert_eq!((login.username(), login.password()), (Some("u"), Some("p")));
    }

    #[test]
    fn each_node_is_tried_once_and_a_named_one_next() {
        let (mut nodes, mut tried) = (nodes("redis+cluster://a:1,b:2,c:3"), Vec::new());
        assert!(nodes.turn(&refused(), &mut tried));
        assert_eq!(at(&nodes), "b 2");
        assert!(nodes.turn(&moved("d:4"), &mut tried));
        assert_eq!(at(&nodes), "d 4");
        // A node that was tried already is not selected again.
        assert!(nodes.turn(&moved("a:1"), &mut tried));
        assert_eq!(at(&nodes), "c 3");
        assert!(!nodes.turn(&moved("d:4"), &mut tried));
        // The next round begins after the last node.
        assert_eq!(at(&nodes), "a 1");
    }

    #[test]
    fn endless_redirections_are_given_up() {
        let (mut nodes, mut tried) = (nodes("redis+cluster://a:1"), Vec::new());
        let hops = (1..).take_while(|n| nodes.turn(&moved(&format!("n{n}:1")), &mut tried)).count();
        assert_eq!(hops + 1, SHARED_NODES_MAX);
    }

    #[test]
    fn single_server_is_never_replaced() {
        let mut one = nodes("redis://h");
        assert!(!one.turn(&moved("a:1"), &mut Vec::new()) && !one.follow(&moved("a:1")));
        assert_eq!(at(&one), "");
    }

    #[test]
    fn nodes_are_learnt_and_an_unknown_name_is_the_reporting_node() {
        let node =
            |host: Value, port: i64| Value::Array(vec![host, Value::Int(port), Value::SimpleString("id".into())]);
        let name = |text: &str| Value::BulkString(text.into());
        let range = |nodes: Vec<Value>| Value::Array([vec![Value::Int(0), Value::Int(9)], nodes].concat());
        let mut nodes = nodes("redis+cluster://a:1");
        nodes.learn(&Value::Array(vec![
            range(vec![node(name("b"), 2), node(Value::Nil, 3), node(name("a"), 1)]),
            range(vec![node(name("?"), 4), node(name("::1"), 5), node(name("x"), 0), Value::Int(7)]),
        ]));
        let told = |nodes: &Nodes| nodes.places.iter().map(|(host, port)| format!("{host} {port}")).collect::<Vec<_>>();
        assert_eq!(told(&nodes), ["a 1", "b 2", "a 3", "a 4", "::1 5"]);
        nodes.learn(&Value::Nil);
        assert_eq!(told(&nodes).len(), 5, "an answer without nodes must not remove known nodes");
        let many = (0..200).map(|n| node(name(&format!("n{n}")), 1)).collect();
        nodes.learn(&Value::Array(vec![range(many)]));
        assert_eq!(nodes.places.len(), SHARED_NODES_MAX);
        assert!(nodes.follow(&moved(":9")) && at(&nodes) == "a 9");
        assert!(nodes.follow(&moved("::1:7")) && at(&nodes) == "::1 7");
        assert!(!nodes.follow(&refused()) && at(&nodes) == "::1 7");
        (0..70).for_each(|_| nodes.go_on());
        assert!(nodes.places.iter().any(|(host, port)| at(&nodes) == format!("{host} {port}")));
    }
}
