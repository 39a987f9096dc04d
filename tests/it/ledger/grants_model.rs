//! Compares the scripts of a shared ledger with a model. Hosts ask, use their grants, report the uses, return grants
//! and write usage records in random order, seeded so that a failure can be repeated. Each script must return what the
//! ledger of the simulated fleet returns (`sim/fleet/server.rs`).

use super::super::sim::fleet::server::Server as Model;
use super::shared::{Server, part};
use tollgate::base::rng::Rng;
use tollgate::base::time::Unix;
use tollgate::policy::keys::KeyId;
use tollgate::policy::ledger::{Ask, AskAnswer, AskedLimits, Ruling, Use, Wish};
use tollgate::policy::meter::{Amount, Lease};
use tollgate::policy::row::Row;
use tollgate::policy::window::{DAY_MS, window};
use tollgate::store::remote::{Done, Holds, Remote, RemoteCommand, RemoteServer, Speaker, places};
use tollgate::store::shared::SharedStore;

/// Limits of the group that contains all keys.
const REQUESTS: u64 = 150;
const TOKENS: u64 = 1200;
const NANO: u64 = 15_000;
/// Maximum tokens of a request. Each token costs ten nano-dollars.
const MOST: u64 = 30;

/// State of a host, as its event loop and its ledger thread keep it.
struct Host {
    speaker: Speaker,
    /// For each grant: its number, the requests and amounts left, and the key.
    grants: Vec<(u64, u64, Amount, KeyId)>,
    serial: u64,
    uses: Vec<Use>,
    running: Vec<(KeyId, Lease)>,
    rows: Vec<Row>,
    batch: u64,
}

struct World<'a> {
    server: &'a Server,
    remote: Remote,
    /// In-memory model of the ledger.
    model: Model,
    rng: Rng,
    hosts: Vec<Host>,
    keys: Vec<KeyId>,
    moment: Unix,
    serial: u64,
    /// Requests, tokens and nano-dollars of the group, in the span at this place of the lease.
    limits: [u64; 3],
    span: usize,
    /// Number of admitted requests and the sum of their amounts.
    admitted: u64,
    reserved: Amount,
    by_grant: u64,
}

impl World<'_> {
    fn lease(&self, reserved: Amount) -> Lease {
        let bounds = window(self.moment, std::time::Duration::from_secs(86_400));
        // A period with the sums of days, and windows of other lengths.
        let long = window(self.moment, std::time::Duration::from_secs(400_000));
        let parts = ["/period", "/window", "labs/period", "labs/5h"];
        let parts = parts.map(|name| part(name, if name.ends_with("period") { bounds } else { long })).into();
        Lease { reserved, shared: true, parts, ..Lease::default() }
    }

    fn send(&mut self, host: usize, command: &RemoteCommand<'_>) -> Done {
        let speaker = &self.hosts[host].speaker;
        let done = self.remote.send(speaker, std::slice::from_ref(command)).unwrap().remove(0);
        assert_eq!(self.model.command(speaker, command), done, "the model and the scripts must agree");
        // Leases must not expire by time in the server: the test decides when they end, in both.
        if let Done::Answer(AskAnswer { grant: Some(grant), .. }) = &done {
            let name = format!("{}g{}", speaker.writer, grant.number);
            self.server.say(&[b"PERSIST", format!("tollgate:host:{name}").as_bytes()]);
        }
        done
    }

    /// Ends the lease of a grant or a host, as if its time had passed.
    fn end_by_itself(&mut self, name: &str) {
        self.server.say(&[b"DEL", format!("tollgate:host:{name}").as_bytes()]);
        self.model.end(name);
    }

    /// Ends all grants of a host without returning them.
    fn expire(&mut self, host: usize) {
        self.commit(host);
        let writer = self.hosts[host].speaker.writer.clone();
        for (number, ..) in std::mem::take(&mut self.hosts[host].grants) {
            self.end_by_itself(&format!("{writer}g{number}"));
        }
    }

    /// Lets a host whose lease has expired announce itself under a new name, with the reservations of its running
    /// requests.
    fn come_again(&mut self, host: usize) {
        self.expire(host);
        let mut holds = Holds::new();
        for (key, lease) in &self.hosts[host].running {
            for place in places(key, lease) {
                let held = holds.entry(place).or_default();
                (held.reserved, held.running) = (held.reserved.plus(lease.reserved), held.running + 1);
            }
        }
        let old = self.hosts[host].speaker.host.clone();
        self.end_by_itself(&old);
        self.serial += 1;
        self.hosts[host].speaker.host = format!("{old}{}", self.serial);
        self.announce(host, &old, &holds);
    }

    fn announce(&mut self, host: usize, old: &str, holds: &Holds) {
        let speaker = &self.hosts[host].speaker;
        self.remote.announce(speaker, old, holds).unwrap();
        self.model.announce(speaker, old, holds);
        self.server.say(&[b"PERSIST", format!("tollgate:host:{}", speaker.host).as_bytes()]);
    }

    /// Reports the uses of grants and the finished requests.
    fn commit(&mut self, host: usize) {
        let of = &mut self.hosts[host];
        let (uses, rows) = (std::mem::take(&mut of.uses), std::mem::take(&mut of.rows));
        of.batch += 1;
        let number = of.batch;
        assert_eq!(self.send(host, &RemoteCommand::Rows(number, &rows, &uses)), Done::Done);
        if self.rng.below(4) == 0 {
            assert_eq!(
                self.send(host, &RemoteCommand::Rows(number, &rows, &uses)),
                Done::Before,
                "a repeated commit must count once"
            );
        }
    }

    fn give_back(&mut self, host: usize) {
        self.commit(host);
        for (number, ..) in std::mem::take(&mut self.hosts[host].grants) {
            self.send(host, &RemoteCommand::Return(number));
        }
    }

    fn begin(&mut self, host: usize, key: KeyId, lease: Lease) {
        self.admitted += 1;
        self.reserved = self.reserved.plus(lease.reserved);
        self.hosts[host].running.push((key, lease));
        let limit = self.limits[0];
        assert!(limit == 0 || self.admitted <= limit, "{} admitted", self.admitted);
    }

    /// Sends a request. Returns whether it was admitted.
    fn admit(&mut self, host: usize, tokens: u64, waits: bool) -> bool {
        let key = self.keys[self.rng.below(self.keys.len() as u64) as usize];
        let reserved = Amount { tokens, nano: 10 * tokens };
        let lease = self.lease(reserved);
        let of = &mut self.hosts[host];
        let known = of.grants.iter_mut().find(|(.., of)| *of == key);
        let mut wish =
            Wish { part: 4, requests: 8, amount: Amount { tokens: 160, nano: 1600 }, waits, ..Wish::default() };
        if let Some((number, requests, left, _)) = known {
            if *requests > 0 && reserved.tokens <= left.tokens && reserved.nano <= left.nano {
                (*requests, *left) = (*requests - 1, left.minus(reserved));
                of.uses.push(Use::Took(*number, key, lease.clone()));
                self.begin(host, key, lease);
                self.by_grant += 1;
                let (sum, [_, tokens, budget]) = (self.reserved, self.limits);
                // Only one check can exceed a limit, and requests of earlier grants are admitted after it.
                let more = (MOST - 1, 10 * MOST - 1);
                let within =
                    (tokens == 0 || sum.tokens <= tokens + more.0) && (budget == 0 || sum.nano <= budget + more.1);
                assert!(within, "{sum:?} granted");
                return true;
            }
            (wish.number, wish.known) = (*number, true);
        } else {
            of.serial += 1;
            wish.number = of.serial;
        }
        let before = self.reserved;
        let mut limits = AskedLimits { parts: vec![[0; 3]; 4], running: vec![0; 2], strict: None };
        limits.parts[self.span] = self.limits;
        let ask = Ask { number: (0, 0), key, lease, limits, admits: true, wish, promise: None };
        self.hosts[host].uses.len().gt(&0).then(|| self.commit(host));
        let Done::Answer(AskAnswer { ruling, grant, ask, .. }) = self.send(host, &RemoteCommand::Ask(&ask)) else {
            panic!()
        };
        if let Some(grant) = grant {
            assert_eq!(ruling, Ruling::Admitted);
            let grants = &mut self.hosts[host].grants;
            match grants.iter_mut().find(|(number, ..)| *number == grant.number) {
                Some((_, requests, left, _)) => {
                    (*requests, *left) = (*requests + grant.requests, left.plus(grant.amount));
                }
                None => grants.push((grant.number, grant.requests, grant.amount, key)),
            }
        }
        match ruling {
            Ruling::Admitted => {
                let [_, tokens, budget] = self.limits;
                let within = (tokens == 0 || before.tokens < tokens) && (budget == 0 || before.nano < budget);
                assert!(within, "{before:?} before it was admitted");
                self.hosts[host].uses.push(Use::Served(key, ask.lease.clone()));
                self.begin(host, key, ask.lease);
                true
            }
            Ruling::Called => {
                assert!(waits);
                (0..self.hosts.len()).for_each(|other| self.give_back(other));
                self.admit(host, tokens, false)
            }
            _ => false,
        }
    }

    /// Ends a request that has used all of its reservation.
    fn end(&mut self, host: usize) {
        if self.hosts[host].running.is_empty() {
            return;
        }
        let at = self.rng.below(self.hosts[host].running.len() as u64) as usize;
        let (key, lease) = self.hosts[host].running.swap_remove(at);
        self.serial += 1;
        let Amount { tokens, nano } = lease.reserved;
        let text = format!(
            r#"{{"r":"{:032x}","k":"{key}","a":{},"m":"m","t":"p/m","e":"chat","s":true,"c":200,"u":[0,0,0,{tokens}],
            "f":"provider","n":{nano},"x":1,"d":7,"g":"labs"}}"#,
            self.serial, self.moment.0
        );
        let row: Row = serde_json::from_str(&text).unwrap();
        self.hosts[host].rows.push(Row { lease: Some(Box::new(lease)), ..row });
    }
}

fn run(server: &Server, seed: u64) -> u64 {
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "the server".to_owned()).unwrap() };
    server.say(&[b"FLUSHALL"]);
    remote.server.connect().unwrap();
    let hosts: Vec<Host> = (0..3)
        .map(|n| {
            let speaker = Speaker { host: format!("a{n}"), writer: format!("b{n}") };
            let (grants, uses, running, rows) = Default::default();
            Host { speaker, grants, serial: 0, uses, running, rows, batch: 0 }
        })
        .collect();
    let keys = ["0123456789ab", "abcdefABCDEF"].map(|id| KeyId::parse(id).unwrap());
    // The server must know which keys have counters.
    keys.iter().for_each(|key| server.say(&[b"HSET", b"tollgate:keys", key.as_str().as_bytes(), b"{}"]));
    let keys = keys.into();
    // In three of four seeds one of the limits is missing, so that each of the others is reached in some seed.
    let all = [(seed % 4 != 1), (seed % 4 != 2), (seed % 4 != 3)];
    let [requests, tokens, nano] = all;
    let limits = [(requests, REQUESTS), (tokens, TOKENS), (nano, NANO)].map(|(has, limit)| if has { limit } else { 0 });
    let span = if seed % 8 < 4 { 2 } else { 3 };
    let moment = Unix(20_000 * DAY_MS + 5);
    let (rng, none) = (Rng::from_u64(seed), Amount::default());
    let mut world = World {
        server,
        remote,
        model: Model::default(),
        rng,
        hosts,
        keys,
        moment,
        serial: 0,
        limits,
        span,
        admitted: 0,
        reserved: none,
        by_grant: 0,
    };
    (0..3).for_each(|host| world.announce(host, "", &Holds::new()));
    for _ in 0..300 {
        let host = world.rng.below(3) as usize;
        match world.rng.below(20) {
            0 | 1 => world.commit(host),
            2 | 3 => world.give_back(host),
            4..=7 => world.end(host),
            8 => world.expire(host),
            9 if world.rng.below(4) == 0 => world.come_again(host),
            _ => {
                let tokens = 1 + world.rng.below(MOST);
                world.admit(host, tokens, true);
            }
        }
    }
    // Uses up the rest, one token at a time.
    let mut host = 0;
    while world.admit(host, 1, true) {
        host = (host + 1) % 3;
    }
    for host in 0..3 {
        world.give_back(host);
        while !world.hosts[host].running.is_empty() {
            world.end(host);
        }
        world.commit(host);
    }
    let Amount { tokens, nano } = world.reserved;
    let is = |limit: u64, count: u64| limit > 0 && count >= limit;
    let reached = is(limits[0], world.admitted) || is(limits[1], tokens) || is(limits[2], nano);
    assert!(reached, "refused at {} requests, {tokens} tokens, {nano} nano-dollars", world.admitted);
    assert_eq!(world.remote.verify().unwrap().differences, []);
    world.by_grant
}

#[test]
fn limits_hold_and_are_reached_for_random_uses_of_grants() {
    let Some(server) = Server::start() else { return };
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let by_grant: Vec<u64> = (0..seeds).map(|seed| run(&server, seed)).collect();
    println!("admitted by grants: {by_grant:?}");
    assert!(by_grant.iter().sum::<u64>() > 20 * seeds, "grants must be used");
}
