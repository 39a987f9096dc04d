//! Alerts of several hosts on one ledger: one of them delivers each.

use super::super::e2e::collector::{Collector, answer};
use super::client::get;
use super::harness::{Harness, Setup, chat, with};
use super::process::{wait_at_most, wait_for};
use super::shared::{Server, key_of};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Returns the number of alerts whose delivery by this host is recorded.
fn sent(h: &Harness) -> usize {
    h.log().iter().filter(|line| line["event"] == "alert" && line["outcome"] == "sent").count()
}

#[test]
fn two_hosts_deliver_each_alert_once() {
    let Some(server) = Server::start() else { return };
    // The first attempt for each alert fails, so that hosts compete for the next ones.
    let collector = Collector::that(Arc::new(|number, _| match number {
        0 | 1 => answer("500 Internal Server Error", "", ""),
        _ => answer("200 OK", "", ""),
    }));
    let more = format!(
        "[[groups]]\nname = \"eng\"\nbudget = 0.0005\n[alerts]\nurl = \"http://{}/\"\nbudget = [50, 100]\n",
        collector.at
    );
    let host = || {
        let store = format!("url = \"{}\"", server.url());
        Harness::start(&Setup { store, more: more.clone(), ..Setup::default() })
    };
    let mut all = [host(), host()];
    let (key, free) = (key_of(&all, &["--group", "eng"]), key_of(&all, &[]));
    // Both hosts have a target that fails.
    for h in &all {
        assert_eq!(h.chat(&free, &with(chat("x"), "model", "gone")).status(), 500);
    }
    // Both hosts learn of the shared use, and find the thresholds crossed.
    let ask = with(chat("x\n#sim tokens=130"), "max_tokens", 130);
    for at in [0, 1, 0, 1] {
        let status = all[at].chat(&key, &ask).status();
        assert!(matches!(status, 200 | 429), "{status}");
        std::thread::sleep(Duration::from_millis(300));
    }
    let accepted = || collector.asked().into_iter().skip(2).map(|(_, body)| body).collect::<Vec<Value>>();
    let of = |what: &'static str| accepted().into_iter().filter(move |body| body["what"] == what).collect::<Vec<_>>();
    wait_at_most(Duration::from_secs(120), "the alerts", || {
        (of("budget").len() >= 2 && !of("target").is_empty()).then_some(())
    });
    wait_for("the records", || (all.iter().map(sent).sum::<usize>() >= 3).then_some(()));
    // A host that starts again, and one that is a moment later, must not send them again.
    all[0].gateway.stop("KILL");
    all[0].start_again();
    std::thread::sleep(Duration::from_secs(8));
    let mut shares: Vec<u64> = of("budget").iter().map(|body| body["threshold"].as_u64().unwrap()).collect();
    shares.sort_unstable();
    assert_eq!((shares, of("target").len()), (vec![50, 100], 1), "{:#?}", accepted());
}

#[test]
fn host_delivers_alerts_of_a_host_that_is_gone() {
    let Some(server) = Server::start() else { return };
    let works = Arc::new(AtomicBool::new(false));
    let says = works.clone();
    let collector = Collector::that(Arc::new(move |_, _| match says.load(Ordering::Relaxed) {
        true => answer("200 OK", "", ""),
        false => answer("503 Service Unavailable", "", ""),
    }));
    let alerts = format!("[alerts]\nurl = \"http://{}/\"\nbudget = [100]\n", collector.at);
    let more = format!("[[groups]]\nname = \"eng\"\nbudget = 0.0001\n{alerts}");
    let host = || {
        Harness::start(&Setup { store: format!("url = \"{}\"", server.url()), more: more.clone(), ..Setup::default() })
    };
    let mut all = [host(), host()];
    let key = key_of(&all, &["--group", "eng"]);
    // Each host queries all sums soon after its start; here only a later query finds the use.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(all[0].chat(&key, &with(chat("x\n#sim tokens=130"), "max_tokens", 130)).status(), 200);
    wait_at_most(Duration::from_secs(30), "the first attempt", || (!collector.asked().is_empty()).then_some(()));
    // A usage record that is not in the ledger is lost with its host.
    all[1].ledger(1);
    all[0].gateway.stop("KILL");
    works.store(true, Ordering::Relaxed);
    // The other host finds the use at its next query of all sums, and raises the alert, too.
    wait_at_most(Duration::from_secs(90), "the other host", || (sent(&all[1]) == 1).then_some(()));
    let asked = collector.asked();
    assert!(asked.iter().all(|(_, alert)| alert["id"] == asked[0].1["id"]), "{asked:?}");
    // The host that was gone learns that the alert was delivered.
    all[0].start_again();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(collector.asked().len(), asked.len());
}

#[test]
fn each_host_names_itself_when_a_shared_ledger_is_gone() {
    let Some(mut server) = Server::start() else { return };
    let collector = Collector::start();
    let more = format!("[alerts]\nurl = \"http://{}/\"\n", collector.at);
    let store = format!("url = \"{}\"\nmax_commit_lag = \"1s\"", server.url());
    let h = Harness::start(&Setup { store, more, ..Setup::default() });
    let key = h.key();
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=1")).status(), 200);
    server.kill();
    h.chat(&key, &chat("x\n#sim tokens=1"));
    let name =
        wait_at_most(Duration::from_secs(60), "the alert", || Some(collector.asked().first()?.1["name"].clone()));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(name, format!("the ledger (host {})", host.trim()));
}

/// Returns the budget alerts so far, each as its threshold, use and limit.
fn budget_alerts(collector: &Collector) -> Vec<(u64, f64, f64)> {
    let bodies = collector.asked().into_iter().map(|(_, body)| body).filter(|body| body["what"] == "budget");
    let of = |body: &Value, name: &str| body[name].as_f64().unwrap();
    bodies.map(|body| (of(&body, "threshold") as u64, of(&body, "used"), of(&body, "limit"))).collect()
}

#[test]
fn threshold_reached_by_the_sum_of_two_hosts_alerts_immediately() {
    let Some(server) = Server::start() else { return };
    let collector = Collector::start();
    let host = |budget: &str| {
        let more = format!(
            "[[groups]]\nname = \"eng\"\nbudget = 0.0005\n[[plans]]\nname = \"tiny\"\nbudget = 0.0005\n\
             [alerts]\nurl = \"http://{}/\"\nbudget = {budget}\n",
            collector.at
        );
        Harness::start(&Setup { store: format!("url = \"{}\"", server.url()), more, ..Setup::default() })
    };
    let all = [host("[60, 100]"), host("[60, 100]")];
    // Each host knows only its own 52 percent when its request ends.
    let ask = with(chat("x\n#sim tokens=130 delay=700"), "max_tokens", 130);
    for args in [["--group", "eng"], ["--plan", "tiny"]] {
        let key = key_of(&all, &args);
        let before = budget_alerts(&collector).len();
        std::thread::scope(|scope| {
            for h in &all {
                scope.spawn(|| assert_eq!(h.chat(&key, &ask).status(), 200));
            }
        });
        wait_for("the alerts of the sum", || (budget_alerts(&collector).len() >= before + 2).then_some(()));
        let mut shares: Vec<u64> = budget_alerts(&collector)[before..].iter().map(|alert| alert.0).collect();
        shares.sort_unstable();
        assert_eq!(shares, [60, 100], "{args:?}");
    }
    // A starting host learns the use of other hosts, and applies a new threshold to it.
    let before = budget_alerts(&collector).len();
    let _third = host("[30, 60, 100]");
    wait_for("the alerts of the start", || (budget_alerts(&collector).len() >= before + 2).then_some(()));
    let more = budget_alerts(&collector).split_off(before);
    assert!(more.iter().all(|alert| alert.0 == 30), "{more:?}");
}

#[test]
fn host_without_the_ledger_compares_use_with_complete_budgets() {
    let Some(mut server) = Server::start() else { return };
    let collector = Collector::start();
    let plan = "[[plans]]\nname = \"tiny\"\nbudget = 0.0016\n";
    let more = format!("{plan}[alerts]\nurl = \"http://{}/\"\nbudget = [30]\n", collector.at);
    let store = format!("url = \"{}\"\non_outage = \"local\"\nhosts = 2", server.url());
    let h = Harness::start(&Setup { store, more, ..Setup::default() });
    let key = h.key_with(&["--plan", "tiny"]);
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=1")).status(), 200);
    server.kill();
    // The first request uses a third of this host's share, which is a sixth of the budget.
    let ask = with(chat("x\n#sim tokens=130"), "max_tokens", 130);
    for _ in 0..2 {
        wait_at_most(Duration::from_secs(20), "an answer", || (h.chat(&key, &ask).status() == 200).then_some(()));
    }
    let alert = wait_at_most(Duration::from_secs(20), "the alert", || budget_alerts(&collector).pop());
    assert!(alert.1 > 0.0005 && alert.2 == 0.0016, "{alert:?}");
}

#[test]
fn host_without_requests_of_a_group_shows_what_others_use_of_it() {
    let Some(server) = Server::start() else { return };
    // More groups than are asked for at once.
    let mut more = "[[groups]]\nname = \"eng\"\nbudget = 0.001\n".to_owned();
    for number in 0..150 {
        more.push_str(&format!("[[groups]]\nname = \"g{number}\"\nparent = \"eng\"\nbudget = 0.001\n"));
    }
    let host = || {
        Harness::start(&Setup { store: format!("url = \"{}\"", server.url()), more: more.clone(), ..Setup::default() })
    };
    let all = [host(), host()];
    let ask = with(chat("x\n#sim tokens=130"), "max_tokens", 130);
    for group in ["g0", "g149"] {
        let key = all[0].key_with(&["--group", group]);
        assert_eq!(all[0].chat(&key, &ask).status(), 200);
    }
    // A host shows the used share of a group in its metrics, and the use in its admin API.
    let shown = |h: &Harness| {
        let answer = get(h.admin, "/metrics").unwrap();
        let metrics = answer.text();
        let share = |group: &str| {
            let name = format!("tollgate_budget_used_ratio{{group=\"{group}\",per=\"month\"}} ");
            metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok())
        };
        let (mut groups, mut next) = (Vec::new(), Some("0".to_owned()));
        while let Some(after) = next {
            let page = get(h.admin, &format!("/admin/v1/groups?limit=100&after={after}")).unwrap().json();
            groups.extend(page["data"].as_array().unwrap().clone());
            next = page["next"].as_str().map(str::to_owned);
        }
        let used = |group: &str| {
            let found = groups.iter().find(|entry| entry["name"] == group);
            found.unwrap_or_else(|| panic!("{groups:?}"))["budget"]["used"].as_f64().unwrap()
        };
        ["eng", "g0", "g149"].map(|group| (share(group).unwrap(), used(group)))
    };
    let first = wait_at_most(Duration::from_secs(20), "the use", || {
        Some(shown(&all[0])).filter(|shown| shown.iter().all(|(share, used)| *share > 0.2 && *used > 0.0002))
    });
    wait_at_most(Duration::from_secs(30), "the use of the other host", || (shown(&all[1]) == first).then_some(()));
}
