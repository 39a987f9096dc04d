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
use super::resp::{LinkError, Value, list, text};
use crate::io::tls::blocking::Trust;
use crate::policy::config::SharedUrl;
use std::io;
use std::path::Path;

/// Nodes of a cluster that are remembered, and tried one after another until one has the ledger.
const SHARED_NODES_MAX: usize = 64;

/// Prefixes of all names: on one server, and in a cluster.
const PREFIXES: [&str; 2] = ["tollgate:", "{tollgate}:"];

/// Host and port.
type HostPort = (String, u16);

/// Known location of the ledger.
#[derive(Clone)]
pub(super) struct Nodes {
    url: SharedUrl,
    /// Authorities that vouch for the server; `None` without TLS.
    trust: Option<Trust>,
    pub(super) bounds: Bounds,
    /// The server, or the nodes of a cluster: first those that the URL names, then those that nodes have reported.
    places: Vec<HostPort>,
    /// The server, or the node that was last reported to have the ledger, or that is to be tried next.
    at: HostPort,
}

impl Nodes {
    /// `ca_file` contains authorities in PEM, instead of the public ones.
    pub(super) fn new(url: &SharedUrl, ca_file: Option<&Path>) -> io::Result<Nodes> {
        let trust = if url.is_secure { Some(Trust::load(ca_file)?) } else { None };
        let (places, at) = (url.places.clone(), url.places.first().cloned().unwrap_or_default());
        Ok(Nodes { url: url.clone(), trust, bounds: Bounds::COMMAND, places, at })
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.url.is_cluster
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
    pub(super) fn connect(&self) -> Result<RemoteLink, LinkError> {
        let (host, port) = &self.at;
        RemoteLink::open((host, *port), self.trust.as_ref(), &self.url, self.bounds)
    }

    /// Remembers the answer to `CLUSTER SLOTS`: first and last slot, then host, port and more of each node.
    pub(super) fn learn(&mut self, told: &Value) {
        let mut places = self.url.places.clone();
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
        if places.len() > self.url.places.len() {
            self.places = places;
        }
    }

    /// Returns a node as another node reports it. If the reporting node does not know the name, it means itself.
    fn meant(&self, host: &str, port: u16) -> Option<HostPort> {
        let host = if matches!(host, "" | "?") { &self.at.0 } else { host };
        (port > 0).then(|| (host.to_string(), port))
    }

    /// Selects the node that an error names. True if there is one, and this is a cluster.
    pub(super) fn follow(&mut self, error: &LinkError) -> bool {
        let named = Some(error.moved_to()).filter(|place| self.is_cluster() && !place.is_empty()).map(host_port);
        let Some(named) = named.and_then(|(host, port)| self.meant(&host, port)) else { return false };
        self.at = named;
        true
    }

    /// After `error`, selects the node that the error names, or the next untried one. False if there is none.
    pub(super) fn turn(&mut self, error: &LinkError, tried: &mut Vec<HostPort>) -> bool {
        let here = self.at.clone();
        tried.push(here.clone());
        let is_new = |place: &HostPort| !tried.contains(place);
        if !self.is_cluster() || tried.len() >= SHARED_NODES_MAX {
            return false;
        }
        if self.follow(error) && is_new(&self.at) {
            return true;
        }
        // The node after this one, even if all were tried, so that the next round begins with a different one.
        let behind = self.behind(&here);
        let mut next = self.places.iter().cycle().skip(behind).take(self.places.len());
        let first = next.clone().next();
        let fresh = next.find(|place| is_new(place));
        let found = fresh.is_some();
        self.at = fresh.or(first).cloned().unwrap_or(here);
        found
    }

    /// Index after that of a node, 0 for an unknown one.
    fn behind(&self, here: &HostPort) -> usize {
        self.places.iter().position(|place| place == here).map_or(0, |at| at + 1)
    }

    /// Selects the next node; any node of a cluster is suitable.
    pub(super) fn go_on(&mut self) {
        let next = self.places.get(self.behind(&self.at)).or(self.places.first());
        self.at = next.unwrap_or(&self.at).clone();
    }
}

/// Parses host and port. A host with colons has brackets, except possibly if there is no port.
fn host_port(text: &str) -> HostPort {
    let name = |host: &str| host.trim_matches(['[', ']']).to_string();
    match text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        Some((host, port)) => (name(host), port.parse().unwrap_or(0)),
        None => (name(text), SharedUrl::PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(url: &str) -> Nodes {
        Nodes::new(&SharedUrl::parse(url).unwrap(), None).unwrap()
    }

    fn moved(to: &str) -> LinkError {
        LinkError::Server(format!("MOVED 7332 {to}"))
    }

    fn refused() -> LinkError {
        io::Error::from(io::ErrorKind::ConnectionRefused).into()
    }

    fn at(nodes: &Nodes) -> String {
        format!("{} {}", nodes.at.0, nodes.at.1)
    }

    #[test]
    fn a_url_names_one_server_or_nodes_of_a_cluster() {
        let one = nodes("redis://h:1/3");
        assert_eq!((one.is_cluster(), one.prefix(), one.never()), (false, "tollgate:", None));
        let many = nodes("rediss+cluster://u:p@h:1,[::1]:2,other,[::2]/0");
        assert_eq!((many.prefix(), at(&many), many.places.len()), ("{tollgate}:", "h 1".to_string(), 4));
        assert!(many.trust.is_some() && one.trust.is_none());
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
        one.go_on();
        assert_eq!(at(&one), "h 6379");
    }

    #[test]
    fn nodes_are_learnt_and_an_unknown_name_is_the_reporting_node() {
        let name = |text: &str| Value::Text(text.into());
        let node = |host: Value, port: i64| Value::List(vec![host, Value::Int(port), name("id")]);
        let range = |nodes: Vec<Value>| Value::List([vec![Value::Int(0), Value::Int(9)], nodes].concat());
        let mut nodes = nodes("redis+cluster://a:1");
        nodes.learn(&Value::List(vec![
            range(vec![node(name("b"), 2), node(Value::Nil, 3), node(name("a"), 1)]),
            range(vec![node(name("?"), 4), node(name("::1"), 5), node(name("x"), 0), Value::Int(7)]),
        ]));
        let told = |nodes: &Nodes| nodes.places.iter().map(|(host, port)| format!("{host} {port}")).collect::<Vec<_>>();
        assert_eq!(told(&nodes), ["a 1", "b 2", "a 3", "a 4", "::1 5"]);
        nodes.learn(&Value::Nil);
        assert_eq!(told(&nodes).len(), 5, "an answer without nodes must not remove known nodes");
        let many = (0..200).map(|n| node(name(&format!("n{n}")), 1)).collect();
        nodes.learn(&Value::List(vec![range(many)]));
        assert_eq!(nodes.places.len(), SHARED_NODES_MAX);
        assert!(nodes.follow(&moved(":9")) && at(&nodes) == "a 9");
        assert!(nodes.follow(&moved("::1:7")) && at(&nodes) == "::1 7");
        assert!(!nodes.follow(&refused()) && at(&nodes) == "::1 7");
        (0..70).for_each(|_| nodes.go_on());
        assert!(nodes.places.iter().any(|(host, port)| at(&nodes) == format!("{host} {port}")));
    }
}
