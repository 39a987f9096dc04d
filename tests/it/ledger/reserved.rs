//! Reason that a shared ledger gives for a refusal: the limit is spent, or reserved by running requests.

use super::shared::Server;
use super::spared::Host;
use std::time::Duration;
use tollgate::policy::ask::{Limits, Release, Ruling};
use tollgate::policy::meter::{Amount, GroupLease, Lease, LimitReason};
use tollgate::policy::plan::LimitKind;
use tollgate::policy::window::window;
use tollgate::store::remote::{Done, RemoteCommand};

fn of(both: u64) -> Amount {
    Amount { tokens: both, nano: both }
}

#[test]
fn shared_limits_are_reserved_until_records_have_spent_them() {
    let Some(server) = Server::start() else { return };
    let none = Limits::default();
    let limits = [
        (Limits { tokens: 100, ..none }, LimitKind::TokensPerPeriod),
        (Limits { tokens_per_window: 100, ..none }, LimitKind::TokensPerWindow),
        (Limits { budget: 100, ..none }, LimitKind::Budget),
    ];
    for ((limits, kind), which) in limits.into_iter().flat_map(|limit| [(limit, 0), (limit, 1)]) {
        server.say(&[b"FLUSHALL"]);
        let mut host = Host::new(&server, "1");
        let (lease, name) = (host.ask.lease.clone(), format!("{}-{which}", kind.name()));
        let group = GroupLease { name: name.as_str().into(), window: lease.window, period: lease.period };
        host.ask.lease = Lease { groups: [group].into(), reserved: of(100), ..lease };
        (host.ask.limits, host.ask.groups) = if which == 0 { (limits, [none].into()) } else { (none, [limits].into()) };
        assert_eq!(host.admit().0, Ruling::Admitted);
        assert_eq!(host.admit().0, Ruling::Refused(kind, which, LimitReason::Reserved), "{name}");
        // A spent limit takes precedence over a reserved one.
        let requests = Limits { requests: 1, ..host.ask.limits };
        let free = std::mem::replace(&mut host.ask.limits, requests);
        assert_eq!(host.admit().0, Ruling::Refused(LimitKind::Requests, 0, LimitReason::Spent), "{name}");
        host.ask.limits = free;
        // The reservation is released, and another request has used all of the limit.
        let release = Release { key: host.ask.key, lease: host.ask.lease.clone(), unsent: true };
        assert_eq!(host.send(&RemoteCommand::Release(&[release])), Done::Done);
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
        let day = window(tollgate::base::time::Unix(now), Duration::from_secs(86_400)).0.0 / 86_400_000;
        for account in [host.ask.key.to_string(), format!("@{name}")] {
            for what in ["use", "cost"] {
                let (entry, day) = (format!("tollgate:{what}:{account}"), day.to_string());
                server.say(&[b"HINCRBY", entry.as_bytes(), day.as_bytes(), b"100"]);
            }
            let (start, end) = host.ask.lease.window;
            let entry = format!("tollgate:win:{account}:{}:{}", start.0, end.0);
            server.say(&[b"HINCRBY", entry.as_bytes(), b"t", b"100"]);
        }
        assert_eq!(host.admit().0, Ruling::Refused(kind, which, LimitReason::Spent), "{name}");
    }
}
