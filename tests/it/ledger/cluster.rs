//! A ledger in a Redis Cluster: three masters and three replicas on loopback, under the load of two gateways. A master
//! dies, its slot moves, its scripts are flushed, its memory is full: no limit is passed, and no row is lost beyond what
//! is stated (contract section 17). `CLUSTER_KILLS` says how often a master dies, once unless it is set.

use super::harness::{Harness, chat, chat_request};
use super::process::{free_port, wait_at_most, wait_for};
use super::shared::{Server, key_of, url_gateway};
use serde_json::Value;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// When a node counts as gone, in milliseconds.
const NODE_TIMEOUT: &str = "1000";
/// What a failover may lose (contract section 17).
const WINDOW: Duration = Duration::from_secs(1);
/// After the cluster has a master again, so long until every gateway serves: a pause between two tries, a connection,
/// and what a busy machine adds.
const BACK: Duration = Duration::from_millis(1500);
/// Clients of each gateway that ask without end.
const CLIENTS: usize = 3;
/// Where all names of the ledger lie.
const NAME: &str = "{tollgate}:epoch";

/// Three masters, and a replica of each behind them.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// `None` if there is no server on this machine.
    pub fn start() -> Option<Cluster> {
        let bus: Vec<String> = (0..6).map(|_| free_port().to_string()).collect();
        let args = ["--appendonly", "yes", "--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT];
        let more = ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0", "--cluster-port"];
        let nodes = bus.iter().map(|bus| Server::idle(&[&args[..], &more, &[bus]].concat()));
        let mut nodes: Vec<Server> = nodes.collect::<Option<_>>()?;
        let id = |n: usize| format!("{:040x}", n + 1);
        let slots = ["0-5460", "5461-10922", "10923-16383"];
        let line = |n: usize, port: u16, own: bool| {
            let own = if own { "myself," } else { "" };
            let (role, of, slots) = match n {
                0..3 => ("master", "-".to_owned(), slots[n]),
                _ => ("slave", id(n - 3), ""),
            };
            let (id, bus, epoch) = (id(n), &bus[n], n % 3 + 1);
            format!("{id} 127.0.0.1:{port}@{bus} {own}{role} {of} 0 0 {epoch} connected {slots}\n")
        };
        let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
        for (own, node) in nodes.iter_mut().enumerate() {
            let lines: String = ports.iter().enumerate().map(|(n, port)| line(n, *port, n == own)).collect();
            node.put("nodes.conf", &format!("{lines}vars currentEpoch 3 lastVoteEpoch 0\n"));
            node.run();
        }
        let cluster = Cluster { nodes };
        cluster.wait_until_whole();
        Some(cluster)
    }

    /// All nodes say that all is well, and every replica has its master's data.
    fn wait_until_whole(&self) {
        for node in &self.nodes {
            wait_for("a node's consent", || node.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(()));
            let is_linked = || {
                let told = node.text(&["INFO", "replication"]);
                (told.contains("role:master") || told.contains("master_link_status:up")).then_some(())
            };
            wait_for("a replica's data", is_linked);
        }
    }

    fn url(&self) -> String {
        let places: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// A gateway on this cluster; `more` are further lines of `[store]`.
    pub fn gateway(&self, more: &str) -> Harness {
        url_gateway(&self.url(), more)
    }

    /// The node that has the ledger.
    fn owner(&self) -> usize {
        self.owner_among(&[]).unwrap()
    }

    fn owner_among(&self, gone: &[usize]) -> Option<usize> {
        let is_there = |n: &usize| !gone.contains(n) && self.nodes[*n].text(&["GET", NAME]).starts_with('$');
        (0..self.nodes.len()).find(is_there)
    }
}

/// What the load has seen.
#[derive(Default)]
struct Seen {
    /// Answers that were complete, by their ids, and when.
    complete: Vec<(String, Instant)>,
    /// How many were refused because the ledger was away.
    refused: usize,
}

/// Asks one request after the other until `over`; nothing but an answer, its limit, or a refusal that says when to come
/// again is ever heard.
fn load(h: &Harness, key: &str, over: &AtomicBool, count: &AtomicUsize) -> Seen {
    let (request, mut seen, mut client) = (chat_request(key, &chat("x\n#sim tokens=2")), Seen::default(), h.client());
    while !over.load(Ordering::Relaxed) {
        let answer = client.ask(&request);
        match answer.status() {
            200 => {
                let id = answer.head.get("x-gateway-request-id").unwrap().to_owned();
                seen.complete.push((id, Instant::now()));
                count.fetch_add(1, Ordering::Relaxed);
            }
            429 => {}
            status => {
                assert_eq!((status, answer.head.get("retry-after").is_some()), (503, true), "{}", answer.text());
                seen.refused += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    seen
}

/// Puts `keys` under load at all gateways while `meanwhile` runs; what was seen of each key.
fn under_load(all: &[Harness], keys: &[&String], meanwhile: impl FnOnce()) -> Vec<Seen> {
    let (over, counts) = (AtomicBool::new(false), [(); 2].map(|()| AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            for h in all {
                let (over, count) = (&over, &counts[at]);
                running.extend((0..CLIENTS).map(|_| (at, scope.spawn(move || load(h, key, over, count)))));
            }
        }
        wait_for("some load", || (counts[0].load(Ordering::Relaxed) > 50).then_some(()));
        meanwhile();
        over.store(true, Ordering::Relaxed);
        let mut seen: Vec<Seen> = keys.iter().map(|_| Seen::default()).collect();
        for (at, one) in running {
            let one = one.join().unwrap();
            seen[at].complete.extend(one.complete);
            seen[at].refused += one.refused;
        }
        seen
    })
}

/// The ids of all rows.
fn rows(h: &Harness) -> HashSet<String> {
    let text = h.done(&["ledger", "export"]);
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["request_id"].as_str().unwrap().to_owned();
    let all: HashSet<String> = text.lines().map(id).collect();
    assert_eq!(all.len(), text.lines().count(), "a row twice");
    all
}

fn is_served(h: &Harness, key: &str) -> Option<()> {
    (h.chat(key, &chat("x\n#sim tokens=1")).status() == 200).then_some(())
}

/// Kills the master that has the ledger, waits until the cluster has another and every gateway serves again; when it
/// died.
fn fail_over(cluster: &mut Cluster, all: &[Harness], key: &str) -> (usize, Instant) {
    let owner = cluster.owner();
    let killed = Instant::now();
    cluster.nodes[owner].kill();
    wait_for("another master", || cluster.owner_among(&[owner]));
    let (failed_over, limit) = (killed.elapsed(), Instant::now() + BACK);
    for h in all {
        let left = limit.saturating_duration_since(Instant::now());
        wait_at_most(left, "service", || is_served(h, key));
    }
    println!("another master after {failed_over:?}, service at all gateways after {:?}", killed.elapsed());
    (owner, killed)
}

#[test]
fn a_master_dies_under_load_and_no_limit_is_passed_and_no_row_lost_but_of_the_last_second() {
    let Some(mut cluster) = Cluster::start() else { return };
    let all = [cluster.gateway(""), cluster.gateway("")];
    let rounds = std::env::var("CLUSTER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let open = key_of(&all, &[]);
    for _ in 0..rounds {
        let limited = key_of(&all, &["--plan", "requests"]);
        let mut died = None;
        let seen = under_load(&all, &[&open, &limited], || died = Some(fail_over(&mut cluster, &all, &open)));
        let (owner, killed) = died.unwrap();
        let known = rows(&all[0]);
        let lost = seen.iter().flat_map(|seen| &seen.complete).filter(|(id, _)| !known.contains(id));
        let before = lost.clone().map(|(_, at)| killed.saturating_duration_since(*at)).max().unwrap_or_default();
        let of = |at: usize| (seen[at].complete.len(), seen[at].refused);
        println!("{:?} answered and refused without a limit, {:?} with one of 137", of(0), of(1));
        println!("{} rows lost, the oldest {before:?} before", lost.clone().count());
        assert!(lost.clone().all(|(_, at)| *at <= killed), "what was answered later is there");
        assert!(before <= WINDOW);
        assert!(of(1).0 <= 137, "the limit holds");
        cluster.nodes[owner].run();
        cluster.wait_until_whole();
    }
}
