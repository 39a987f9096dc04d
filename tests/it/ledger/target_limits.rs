//! Limits of targets end to end: under races, across `kill -9`, and as the commands show them.

use super::client::{Answer, Client, request};
use super::harness::{CREDENTIAL, Harness, Setup, chat, with};
use super::process::wait_for;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Clients that race.
const CLIENTS: usize = 20;

/// A gateway with the model `limited`, whose only target accepts `limits`.
fn start(limits: &str, store: &str) -> Harness {
    let more = format!(
        "[[models]]\nid = \"limited\"\ncontext = \"256K\"\n\
         targets = [{{ provider = \"sim-chat\", model = \"up-limited\", limits = {limits} }}]\n"
    );
    Harness::start(&Setup {
        server: "admin_token = { env = \"SIM_KEY\" }",
        store: store.to_owned(),
        more,
        ..Setup::default()
    })
}

fn ask(h: &Harness, key: &str) -> u16 {
    h.chat(key, &with(chat("a\n#sim tokens=5"), "model", "limited")).status()
}

/// Lets clients send `requests` requests at the same time, of which `most` may be sent to the provider.
fn race(requests: usize, most: u64) {
    let h = start(&format!("[\"requests={most}/31d\"]"), "");
    let (key, sent, answered) = (h.key_with(&["--plan", "open"]), AtomicUsize::new(0), AtomicUsize::new(0));
    let before = h.count("requests");
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while sent.fetch_add(1, Ordering::Relaxed) < requests {
                    match ask(&h, &key) {
                        200 => _ = answered.fetch_add(1, Ordering::Relaxed),
                        503 => {}
                        other => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert_eq!((h.count("requests") - before, answered.into_inner() as u64), (most, most));
}

#[test]
fn racing_requests_reach_a_limited_target_exactly_as_often_as_it_allows() {
    race(200, 37);
}

#[test]
#[ignore = "takes a minute"]
fn a_thousand_racing_requests_reach_a_limited_target_exactly_as_often_as_it_allows() {
    for round in 1..=10 {
        race(1000, 100 * round);
    }
}

/// An answer of the admin listener.
fn ask_admin(h: &Harness, path: &str) -> Answer {
    let token = format!("Bearer {}", CREDENTIAL.1);
    let text = String::from_utf8(request("GET", path, &[("authorization", &token)])).unwrap();
    Client::connect(h.admin).ask(text.replace("gateway.test", "localhost").as_bytes())
}

/// Use of the only limit, as the metrics show it.
fn used(h: &Harness) -> u64 {
    let metrics = ask_admin(h, "/metrics").text().to_owned();
    let name = "tollgate_target_limit_used{target=\"sim-chat/up-limited\",resource=\"requests\",per=\"31d\"} ";
    let (_, rest) = metrics.split_once(name).unwrap_or_else(|| panic!("{metrics}"));
    rest.lines().next().unwrap().parse().unwrap()
}

#[test]
fn limits_of_targets_survive_a_kill_and_are_shown() {
    let mut h = start("[\"requests=5/31d\"]", "url = \"sqlite:tollgate.db\"\ndurability = \"before-reply\"");
    let key = h.key_with(&["--plan", "open"]);
    assert_eq!([ask(&h, &key), ask(&h, &key), ask(&h, &key)], [200; 3]);
    h.gateway.stop("KILL");
    h.start_again();
    assert_eq!(used(&h), 3);
    assert_eq!([ask(&h, &key), ask(&h, &key), ask(&h, &key), ask(&h, &key)], [200, 200, 503, 503]);
    assert_eq!(h.count("requests"), 5);
    let listed: Value = serde_json::from_str(&h.done(&["models", "--targets", "--json"])).unwrap();
    let own = listed.as_array().unwrap().iter().find(|one| one["target"] == "sim-chat/up-limited").unwrap();
    assert_eq!((&own["limits"][0]["limit"], &own["limits"][0]["used"]), (&"requests=5/31d".into(), &5.0.into()));
    let told = ask_admin(&h, "/admin/v1/targets?limit=100").json();
    let own = told["data"].as_array().unwrap().iter().find(|one| one["target"] == "sim-chat/up-limited");
    let own = own.unwrap_or_else(|| panic!("{told}"));
    let limit = &own["limits"][0];
    assert_eq!(
        (&limit["name"], &limit["used"], &limit["total"]),
        (&"sim-chat/up-limited".into(), &5.into(), &5.into())
    );
    // Days are read from sums, not from single records.
    let more = std::fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    std::fs::write(h.folder.path().join("tollgate.toml"), more.replace("requests=5/31d", "requests=6/quarter"))
        .unwrap();
    h.gateway.stop("TERM");
    wait_for("the gateway to end", || h.gateway.has_ended().then_some(()));
    h.start_again();
    assert_eq!([ask(&h, &key), ask(&h, &key)], [200, 503]);
}

#[cfg(feature = "redis")]
#[test]
fn two_hosts_share_the_limits_of_targets_and_a_killed_one_finds_them_again() {
    let Some(server) = super::shared::Server::start() else { return };
    let store = format!("url = \"{}\"", server.url());
    let mut hosts = [(); 2].map(|()| start("[\"requests=41/31d\", \"tokens=1M/day\", \"budget=9/month\"]", &store));
    let key = super::shared::key_of(&hosts, &["--plan", "open"]);
    let before: Vec<u64> = hosts.iter().map(|h| h.count("requests")).collect();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (h, key, answered) = (&hosts[n % 2], &key, &answered);
            scope.spawn(move || {
                for _ in 0..10 {
                    match ask(h, key) {
                        200 => _ = answered.fetch_add(1, Ordering::Relaxed),
                        503 => {}
                        other => panic!("{other}"),
                    }
                }
            });
        }
    });
    let reached = hosts.iter().zip(before).map(|(h, before)| h.count("requests") - before).sum::<u64>();
    assert_eq!((reached, answered.into_inner()), (41, 41));
    hosts[0].gateway.stop("KILL");
    hosts[0].start_again();
    assert_eq!([ask(&hosts[0], &key), ask(&hosts[1], &key)], [503; 2]);
    // The ledger reports the last request once its host has confirmed it; a host asks again after a moment.
    wait_for("the last request to be confirmed", || {
        (ask(&hosts[1], &key) == 503 && used(&hosts[1]) == 41).then_some(())
    });
    let said = hosts[1].done(&["ledger", "verify"]);
    assert!(said.starts_with("ok:"), "{said}");
}
