//! Grants that end during an outage of the ledger. Requests that a host admitted from a grant and could not report are
//! not admitted again by another host that reconnects first.

use super::process::wait_for;
use super::shared::{Server, part};
use std::time::{Duration, Instant};
use tollgate::base::time::Unix;
use tollgate::policy::keys::KeyId;
use tollgate::policy::ledger::{Ask, AskAnswer, AskedLimits, Grant, Ruling, Use, Wish};
use tollgate::policy::meter::{Amount, Lease};
use tollgate::policy::window::window;
use tollgate::store::remote::{Done, Holds, Remote, RemoteCommand, RemoteServer, Speaker};
use tollgate::store::shared::SharedStore;

const LIMIT: u64 = 40;

pub struct Host {
    remote: Remote,
    speaker: Speaker,
    pub ask: Ask,
}

impl Host {
    pub fn new(server: &Server, name: &str) -> Host {
        let mut remote =
            Remote { server: RemoteServer::new(&server.address(), None, "the server".to_owned()).unwrap() };
        let speaker = Speaker { host: format!("a{name}"), writer: format!("b{name}") };
        remote.announce(&speaker, "", &Holds::new()).unwrap();
        let now = Unix(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64);
        let day = window(now, Duration::from_secs(86_400));
        let reserved = Amount { tokens: 1, nano: 0 };
        let lease = Lease { reserved, shared: true, parts: [part("/period", day)].into(), ..Lease::default() };
        let limits = AskedLimits { parts: vec![[LIMIT, LIMIT, 0]], running: vec![0], strict: None };
        let key = KeyId::parse("0123456789ab").unwrap();
        Host {
            remote,
            speaker,
            ask: Ask { number: (0, 0), key, lease, limits, admits: true, wish: Wish::default(), promise: None },
        }
    }

    pub fn send(&mut self, command: &RemoteCommand<'_>) -> Done {
        self.remote.send(&self.speaker, std::slice::from_ref(command)).unwrap().remove(0)
    }

    /// Returns how long the ledger takes for the question; `None` if it did not answer in time.
    pub fn timed(&mut self) -> Option<Duration> {
        let (begun, ask) = (Instant::now(), self.ask.clone());
        self.remote.send(&self.speaker, &[RemoteCommand::Ask(&ask)]).ok()?;
        Some(begun.elapsed())
    }

    pub fn admit(&mut self) -> (Ruling, Option<Grant>) {
        let ask = self.ask.clone();
        let Done::Answer(AskAnswer { ruling, grant, .. }) = self.send(&RemoteCommand::Ask(&ask)) else {
            panic!("no answer")
        };
        (ruling, grant)
    }

    /// Sends requests until the first refusal and returns how many were admitted.
    fn drain(&mut self) -> u64 {
        std::iter::repeat_with(|| self.admit().0).take_while(|ruling| *ruling == Ruling::Admitted).count() as u64
    }

    /// Lets the host notice that its connection is gone, and announce itself under a new name.
    fn come_back(&mut self) {
        let old = self.speaker.host.clone();
        self.speaker.host += "0";
        assert!(self.remote.announce(&self.speaker, &old, &Holds::new()).is_err());
        self.remote.announce(&self.speaker, &old, &Holds::new()).unwrap();
    }
}

#[test]
fn grant_counts_after_an_outage_until_its_host_reports_its_use() {
    let Some(server) = Server::start() else { return };
    let (mut one, mut other) = (Host::new(&server, "1"), Host::new(&server, "2"));
    // The second outage begins while the reports after the first one are still known.
    for (number, key) in [(1, "0123456789ab"), (2, "abcdefABCDEF")] {
        let key = KeyId::parse(key).unwrap();
        (one.ask.key, other.ask.key) = (key, key);
        let amount = Amount { tokens: 8, nano: 0 };
        one.ask.wish = Wish { part: 4, number, requests: 8, amount, ..Wish::default() };
        let (ruling, grant) = one.admit();
        let requests = grant.expect("a grant").requests;
        assert_eq!((ruling, requests), (Ruling::Admitted, 8));
        // All connections break, and the grant expires before the ledger is available again.
        server.say(&[b"DEL", format!("tollgate:host:b1g{number}").as_bytes()]);
        server.say(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
        other.come_back();
        assert_eq!(other.drain(), LIMIT - 1 - requests, "the grant may have been used");
        // All of the grant except one request was used, and the last use is reported last.
        one.come_back();
        let took = (1..requests).map(|_| Use::Took(number, key, one.ask.lease.clone()));
        let uses: Vec<Use> = took.chain([Use::Served(key, one.ask.lease.clone())]).collect();
        assert_eq!(one.send(&RemoteCommand::Rows(number, &[], &uses)), Done::Done);
        assert_eq!(
            one.send(&RemoteCommand::Rows(number, &[], &uses)),
            Done::Before,
            "a repeated report must count once"
        );
        one.remote.follow_clock().unwrap();
        assert_eq!(other.drain(), 0, "more uses may still be reported");
        // The unused remainder is available once the grant has also expired by its host's clock.
        let rest = || {
            one.remote.follow_clock().unwrap();
            Some(other.drain()).filter(|rest| *rest > 0)
        };
        assert_eq!(wait_for("the rest", rest), 1);
        assert!(server.number(&["PTTL", "tollgate:host:spared"]) > 0, "the entry must expire");
    }
}

#[test]
fn expired_grant_is_freed_without_an_outage() {
    let Some(server) = Server::start() else { return };
    let (mut one, mut other) = (Host::new(&server, "1"), Host::new(&server, "2"));
    one.ask.wish = Wish { part: 4, number: 1, requests: 8, amount: Amount { tokens: 8, nano: 0 }, ..Wish::default() };
    assert!(one.admit().1.is_some());
    server.say(&[b"DEL", format!("tollgate:host:{}g1", one.speaker.writer).as_bytes()]);
    assert_eq!(other.drain(), LIMIT - 1, "no part is reserved for a dead host");
}
