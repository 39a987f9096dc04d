//! Limits of targets end to end: under races, across `kill -9`, and as the commands show them.

use super::client::{Answer, Client, get, request};
use super::harness::{CREDENTIAL, Harness, Setup, chat, chat_request, streamed, with};
use super::process::{Process, free_port, wait_for};
use serde_json::Value;
use std::net::SocketAddr;
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

#[test]
fn racing_requests_reach_a_limited_target_exactly_as_often_as_it_allows() {
    let (requests, most) = (200, 37);
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

/// A round of the large race: the model of its number is limited in one place, and the provider by the same limits.
struct Round {
    /// Member that has the limits: a target, a provider, or each of two credentials.
    place: &'static str,
    limits: &'static [&'static str],
    /// Requests that reach the provider; `None`: as many as their tokens allow.
    reach: Option<u64>,
}

/// Tokens of a request by the provider's count, and more than a request reserves.
const TOKENS: [u64; 2] = [8, 40];

const ROUNDS: [Round; 10] = [
    Round { place: "target", limits: &["requests=37/31d"], reach: Some(37) },
    Round { place: "target", limits: &["tokens=500/31d"], reach: None },
    Round {
        place: "target",
        limits: &["requests=500/31d", "requests=400/quarter", "tokens=9000/31d"],
        reach: Some(400),
    },
    Round { place: "provider", limits: &["requests=1/31d"], reach: Some(1) },
    Round { place: "provider", limits: &["tokens=1000/31d"], reach: None },
    Round { place: "provider", limits: &["requests=150/31d", "tokens=9000/31d"], reach: Some(150) },
    Round { place: "credential", limits: &["requests=100/31d"], reach: Some(200) },
    Round { place: "credential", limits: &["tokens=700/31d"], reach: None },
    Round { place: "credential", limits: &["requests=333/31d", "tokens=9000/31d"], reach: Some(666) },
    Round { place: "target", limits: &["requests=999/31d"], reach: Some(999) },
];

impl Round {
    fn accounts(&self) -> u64 {
        if self.place == "credential" { 2 } else { 1 }
    }

    /// The provider and the model of the round at this place. Both targets count in the limits of the provider, and in
    /// those of the credentials.
    fn tables(&self, at: usize, provider: SocketAddr) -> String {
        let limits =
            |place: &str| if place == self.place { format!(", limits = {:?}", self.limits) } else { String::new() };
        let credential = |n: u64| format!("{{ command = [\"echo\", \"account-{n}\"]{} }}", limits("credential"));
        let credentials: Vec<String> = (0..self.accounts()).map(credential).collect();
        let names: &[&str] = if self.place == "target" { &["a"] } else { &["a", "b"] };
        let target = |n: &&str| format!("{{ provider = \"p{at}\", model = \"up{at}-{n}\"{} }}", limits("target"));
        let targets: Vec<String> = names.iter().map(target).collect();
        let of_provider = limits("provider").replace(", limits", "limits");
        format!(
            "[[providers]]\nname = \"p{at}\"\nshape = \"chat\"\nbase_url = \"http://{provider}/v1\"\n\
             api_keys = [{}]\n{of_provider}\n\
             [[models]]\nid = \"m{at}\"\ncontext = \"256K\"\ntargets = [{}]\n",
            credentials.join(", "),
            targets.join(", ")
        )
    }
}

#[test]
fn ten_times_a_thousand_racing_requests_never_exceed_the_same_limits_of_the_provider() {
    let limited = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let more = ROUNDS.iter().enumerate().map(|(at, round)| round.tables(at, limited)).collect();
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let mut args: Vec<String> = ["provider", "--listen", &limited.to_string()].map(str::to_owned).into();
    for (at, round) in ROUNDS.iter().enumerate() {
        args.extend(round.limits.iter().flat_map(|limit| ["--limit".to_owned(), format!("{limit}:up{at}-*")]));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let _provider = Process::start(h.folder.path(), "limited", &args, &[]);
    wait_for("the limited provider", || get(limited, "/healthz").ok());
    let count = |name: &str| get(limited, "/stats").unwrap().json()[name].as_u64().unwrap();
    let key = h.key_with(&["--plan", "open"]);
    for (at, round) in ROUNDS.iter().enumerate() {
        let body = with(with(chat("a\n#sim tokens=5"), "model", format!("m{at}")), "max_tokens", 5);
        let body = if at % 2 == 0 { body } else { streamed(body) };
        let before = count("requests");
        let raced = super::races::race(&[h.at], 100, 10, &chat_request(&key, &body));
        let more: Vec<Answer> = (0..10).map(|_| h.chat(&key, &body)).collect();
        let statuses: Vec<u16> = raced.iter().chain(&more).map(Answer::status).collect();
        assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
        let (answered, reached) =
            (statuses.iter().filter(|status| **status == 200).count() as u64, count("requests") - before);
        println!(
            "{:?} of a {}: {reached} of {} requests reach the provider",
            round.limits,
            round.place,
            statuses.len()
        );
        assert_eq!(answered, reached);
        match round.reach {
            Some(reach) => assert_eq!(reached, reach),
            None => {
                let total: u64 = round.limits[0]["tokens=".len()..].split('/').next().unwrap().parse().unwrap();
                let (used, total) = (reached * TOKENS[0], total * round.accounts());
                assert!(used <= total && total - used < TOKENS[1] * round.accounts(), "{used} of {total} tokens");
            }
        }
    }
    assert_eq!(count("failed"), 0);
    // The provider does enforce its limits.
    for (at, round) in ROUNDS.iter().enumerate() {
        let body = with(chat("a\n#sim tokens=100000"), "model", format!("up{at}-a"));
        for account in 0..round.accounts() {
            let answer = Client::connect(limited).ask(&chat_request(&format!("account-{account}"), &body));
            assert_eq!(answer.status(), 429, "round {at}");
        }
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
