//! A shared ledger that needs long for each question: hosts that ask many at a time make progress all the same.

use super::super::e2e::collector::Collector;
use super::harness::{Harness, Setup, chat, with};
use super::process::wait_at_most;
use super::shared::{Server, part};
use super::spared::Host;
use std::collections::BTreeSet;
use std::time::Duration;
use tollgate::policy::ledger::AskedLimits;
use tollgate::store::bounds;

/// Questions that are asked at a time.
const COUNT: usize = 32;

/// Makes questions about the group `eng` so slow that the server does not execute [`COUNT`] of them in time.
fn slow_down(server: &Server) -> Host {
    let mut host = Host::new(server, "1");
    let bounds = host.ask.lease.parts[0].bounds;
    host.ask.lease.parts = [part("/period", bounds), part("eng/period", bounds)].into();
    host.ask.limits = AskedLimits { parts: vec![[0; 3]; 2], running: vec![0; 2], strict: None };
    host.ask.admits = false;
    // Running requests of many hosts, all of which are alive.
    for piece in 0.. {
        let names: Vec<String> = (0..5000).map(|number| format!("4:{:x}", 5000 * piece + number)).collect();
        let hosts: Vec<String> = names.iter().map(|name| format!("tollgate:host:{}", &name[2..])).collect();
        let alive = hosts.iter().flat_map(|host| [host.as_bytes(), b"1"]);
        server.say(&[b"MSET".as_slice()].into_iter().chain(alive).collect::<Vec<_>>());
        let fields = names.iter().flat_map(|name| [name.as_bytes(), b"1"]);
        server.say(&[b"HSET".as_slice(), b"tollgate:live:@eng"].into_iter().chain(fields).collect::<Vec<_>>());
        let least = (0..5).filter_map(|_| host.timed()).min();
        if least > Some(bounds::ASK_FRESH * 5 / 4 / COUNT as u32) {
            return host;
        }
    }
    unreachable!()
}

#[test]
fn host_gets_all_answers_of_a_slow_ledger() {
    let Some(server) = Server::start() else { return };
    let (collector, plan) = (Collector::start(), "[[plans]]\nname = \"tiny\"\nbudget = 0.001\n");
    let host = |more: &str| {
        let more = format!("[[groups]]\nname = \"eng\"\n{plan}{more}");
        Harness::start(&Setup { store: format!("url = \"{}\"", server.url()), more, ..Setup::default() })
    };
    let one = host("");
    let keys: Vec<String> = (0..COUNT).map(|_| one.issue(&["--group", "eng", "--plan", "tiny"])).collect();
    for key in &keys {
        let ask = with(chat("x\n#sim tokens=130"), "max_tokens", 130);
        wait_at_most(Duration::from_secs(10), "an answer", || (one.chat(key, &ask).status() == 200).then_some(()));
    }
    slow_down(&server);
    // A host that starts asks for the sums of all keys.
    let _other = host(&format!("[alerts]\nurl = \"http://{}/\"\nbudget = [20]\n", collector.at));
    wait_at_most(Duration::from_secs(180), "the alerts", || {
        let names = collector.asked().into_iter().map(|(_, body)| body["id"].to_string());
        (names.collect::<BTreeSet<_>>().len() == COUNT).then_some(())
    });
}
