//! Alerts of several hosts on one ledger: one of them delivers each.

use super::super::e2e::collector::{Collector, answer};
use super::harness::{Harness, Setup, chat, with};
use super::process::wait_at_most;
use super::shared::{Server, key_of};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn two_hosts_deliver_each_alert_once() {
    let Some(server) = Server::start() else { return };
    // The first attempt for each alert fails, so that hosts compete for the next ones.
    let collector = Collector::that(Arc::new(|number| match number {
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
    // A host that starts again, and one that is a moment later, must not send them again.
    all[0].gateway.stop("KILL");
    all[0].start_again();
    std::thread::sleep(Duration::from_secs(8));
    let mut shares: Vec<u64> = of("budget").iter().map(|body| body["threshold"].as_u64().unwrap()).collect();
    shares.sort_unstable();
    assert_eq!((shares, of("target").len()), (vec![50, 100], 1), "{:#?}", accepted());
}
