//! Reason that a shared ledger gives for a refusal: the limit is spent, or reserved by running requests.

use super::shared::{Server, part};
use super::spared::Host;
use std::time::Duration;
use tollgate::base::time::Unix;
use tollgate::policy::ledger::{AskedLimits, Release, Ruling};
use tollgate::policy::meter::{Amount, LimitReason};
use tollgate::policy::plan::caps::Resource;
use tollgate::policy::window::window;
use tollgate::store::remote::{Done, RemoteCommand};

fn of(both: u64) -> Amount {
    Amount { tokens: both, nano: both }
}

#[test]
fn shared_limits_are_reserved_until_records_have_spent_them() {
    let Some(server) = Server::start() else { return };
    // The period has the sums of days, the window has its own.
    let limits = [("period", Resource::Tokens), ("window", Resource::Tokens), ("period", Resource::Budget)];
    for ((span, resource), which) in limits.into_iter().flat_map(|limit| [(limit, 0), (limit, 1)]) {
        server.say(&[b"FLUSHALL"]);
        let mut host = Host::new(&server, "1");
        let name = format!("{span}-{}-{which}", resource.as_str());
        let day = host.ask.lease.parts[0].bounds;
        let bounds = |span: &str| if span == "period" { day } else { window(day.0, Duration::from_secs(3_600_000)) };
        let both = |owner: &str| [part(&format!("{owner}/period"), day), part(&format!("{owner}/window"), bounds(""))];
        host.ask.lease.parts = [both(""), both(&name)].concat().into();
        host.ask.lease.reserved = of(100);
        let at = 2 * which + usize::from(span == "window");
        host.ask.limits = AskedLimits { parts: vec![[0; 3]; 4], running: vec![0; 2], strict: None };
        host.ask.limits.parts[at][resource as usize] = 100;
        assert_eq!(host.admit().0, Ruling::Admitted);
        assert_eq!(host.admit().0, Ruling::Refused(resource, at, LimitReason::Reserved), "{name}");
        // A spent limit takes precedence over a reserved one.
        let free = host.ask.limits.clone();
        host.ask.limits.parts[0][0] = 1;
        assert_eq!(host.admit().0, Ruling::Refused(Resource::Requests, 0, LimitReason::Spent), "{name}");
        host.ask.limits = free;
        // The reservation is released, and another request has used all of the limit.
        let release = Release { key: host.ask.key, lease: host.ask.lease.clone(), unsent: true };
        assert_eq!(host.send(&RemoteCommand::Release(&[release])), Done::Done);
        let first = day.0.0 / 86_400_000;
        for account in [host.ask.key.to_string(), format!("@{name}")] {
            for what in ["use", "cost"] {
                let (entry, day) = (format!("tollgate:{what}:{account}"), first.to_string());
                server.say(&[b"HINCRBY", entry.as_bytes(), day.as_bytes(), b"100"]);
            }
            let (start, end) = bounds("window");
            let entry = format!("tollgate:win:{account}/window:{}:{}", start.0, end.0);
            server.say(&[b"HINCRBY", entry.as_bytes(), b"2", b"100"]);
        }
        assert_eq!(host.admit().0, Ruling::Refused(resource, at, LimitReason::Spent), "{name}");
    }
}

#[test]
fn a_limit_of_any_span_admits_exactly_its_number_on_a_shared_ledger() {
    let Some(server) = Server::start() else { return };
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    // A window, whole days, and some models, each of the key and of a group.
    for (name, seconds, limits, resource) in [
        ("/5h", 18_000, [3, 0, 0], Resource::Requests),
        ("/day", 86_400, [3, 0, 0], Resource::Requests),
        ("/5h", 18_000, [0, 30, 0], Resource::Tokens),
        ("labs/day", 86_400, [0, 30, 0], Resource::Tokens),
        ("labs/5h", 18_000, [0, 0, 30], Resource::Budget),
        ("/day", 86_400, [0, 0, 30], Resource::Budget),
        ("/day:opus-*", 86_400, [0, 0, 30], Resource::Budget),
    ] {
        server.say(&[b"FLUSHALL"]);
        let mut hosts = [Host::new(&server, "1"), Host::new(&server, "2")];
        for host in &mut hosts {
            let bounds = window(Unix(now), Duration::from_secs(seconds));
            let first = host.ask.lease.parts[0].clone();
            (host.ask.lease.parts, host.ask.lease.reserved) = ([first, part(name, bounds)].into(), of(10));
            host.ask.limits = AskedLimits { parts: vec![[0; 3], limits], running: vec![0], strict: None };
        }
        let rulings: Vec<Ruling> = (0..5).map(|at| hosts[at % 2].admit().0).collect();
        let by = if resource == Resource::Requests { LimitReason::Spent } else { LimitReason::Reserved };
        assert_eq!(rulings[..3], [Ruling::Admitted; 3], "{name}");
        assert_eq!(rulings[3..], [Ruling::Refused(resource, 1, by); 2], "{name}");
    }
}
