//! Newly issued keys and secrets work immediately, however many there are and however many clients with unknown ones
//! send requests at the same time.

use super::client::{Answer, Client, post, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer};
#[cfg(feature = "redis")]
use super::shared::Server;
use ring::rand::{SecureRandom, SystemRandom};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::base::time::Unix;
use tollgate::policy::keys::{Issued, KeyId, KeyRecord, Scope, issue, reissue};
use tollgate::policy::plan::caps::Caps;
use tollgate::store::sqlite::{Mode, Sqlite};

const KEYS: usize = 500;
const STRANGERS: usize = 900;
/// Rotations of one key, each with a grace.
const ROTATIONS: usize = 4;
/// The grace of the last one, in seconds.
const LAST_GRACE: u64 = 5;
/// Number of concurrent threads that issue keys, and of clients with unknown keys.
const THREADS: usize = 5;

/// Returns a key with random digits, which is in no ledger.
fn fresh() -> Issued {
    issue("tg_", |out| SystemRandom::new().fill(out).unwrap())
}

/// Returns the answer to a request with this key.
fn ask(client: &mut Client, key: &str) -> Answer {
    client.ask(&request("GET", "/v1/models", &[("authorization", &bearer(key))]))
}

/// Issues keys with `make` and uses each immediately at `at`, while clients with unknown keys send requests there, too.
/// All issued keys must be served and all unknown ones rejected.
fn burst(at: SocketAddr, make: impl Fn(usize) -> String + Sync) {
    let (make, wrong, slowest) = (&make, Mutex::new(Vec::new()), Mutex::new(Duration::ZERO));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (wrong, slowest) = (&wrong, &slowest);
            scope.spawn(move || {
                let mut client = Client::connect(at);
                for n in 0..KEYS / THREADS {
                    let key = make(thread * KEYS + n);
                    let issued = Instant::now();
                    let answer = ask(&mut client, &key);
                    let mut slowest = slowest.lock().unwrap();
                    *slowest = issued.elapsed().max(*slowest);
                    if answer.status() != 200 {
                        wrong.lock().unwrap().push(answer.text().to_owned());
                    }
                }
            });
            scope.spawn(move || {
                let mut client = Client::connect(at);
                for _ in 0..STRANGERS / THREADS {
                    let answer = ask(&mut client, &fresh().text);
                    assert_eq!(answer.status(), 401, "{}", answer.text());
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    println!("{KEYS} keys beside {STRANGERS} strangers, the slowest answer: {:?}", slowest.into_inner().unwrap());
    assert!(wrong.is_empty(), "{} of {KEYS}: {wrong:?}", wrong.len());
}

const WRITE: &str = "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";

/// Issues a key with the admin API.
fn by_api(admin: SocketAddr, n: usize) -> String {
    let token = bearer(CREDENTIAL.1);
    let body = format!(r#"{{"name":"burst {n}"}}"#);
    let answer = Client::connect(admin).ask(&post("/admin/v1/keys", &[("authorization", &token)], &body));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()["secret"].as_str().unwrap().to_owned()
}

#[test]
fn every_key_of_an_admin_api_burst_works_immediately() {
    let h = Harness::start(&Setup { server: WRITE, ..Setup::default() });
    burst(h.at, |n| by_api(h.admin, n));
}

/// Issues keys as `keys issue` does, without starting 500 processes.
#[test]
fn every_key_of_a_command_burst_works_immediately() {
    let h = Harness::usual();
    let ledger = Mutex::new(Sqlite::open(&h.folder.path().join("tollgate.db"), Mode::Shared).unwrap());
    ledger.lock().unwrap().set_durable(false).unwrap();
    burst(h.at, |n| {
        let issued = fresh();
        let record = KeyRecord {
            id: issued.id,
            digest: issued.digest,
            name: format!("burst {n}"),
            plan: "open".to_owned(),
            scope: Scope::default(),
            created: Unix(0),
            expires: None,
            revoked: None,
            disabled: false,
            limits: Caps::default(),
            group: None,
            labels: Vec::new(),
            former: Vec::new(),
            capture: None,
        };
        ledger.lock().unwrap().insert_key(&record).unwrap();
        issued.text
    });
}

#[cfg(feature = "redis")]
#[test]
fn every_key_of_a_burst_works_immediately_at_another_host() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"{}\"", server.url());
    let host = || Harness::start(&Setup { server: WRITE, store: store.clone(), ..Setup::default() });
    let hosts = [host(), host()];
    burst(hosts[1].at, |n| by_api(hosts[0].admin, n));
    burst(hosts[0].at, |n| by_api(hosts[0].admin, n));
}

/// Rotates keys at `admin`. Uses each new secret at `at` immediately, and the one before it until its grace ends, while
/// clients with ended and with guessed secrets of the same key send requests. ROTATED_KEYS=200 makes 1,000 rotations.
fn rotations(at: SocketAddr, admin: SocketAddr) {
    let keys = std::env::var("ROTATED_KEYS").map_or(KEYS / ROTATIONS, |keys| keys.parse().unwrap());
    let (wrong, count, last) = (Mutex::new(Vec::new()), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (wrong, count, last) = (&wrong, &count, &last);
            scope.spawn(move || {
                let (mut client, mut operator) = (Client::connect(at), Client::connect(admin));
                for n in 0..keys / THREADS {
                    let ended = by_api(admin, thread * KEYS + n);
                    let (id, mut former) = (KeyId::parse(&ended[8..20]).unwrap(), None);
                    for rotation in 0..=ROTATIONS {
                        let guessed = reissue("tg_", id, |out| SystemRandom::new().fill(out).unwrap()).text;
                        assert_eq!(ask(&mut client, &guessed).status(), 401);
                        let grace = match rotation {
                            0 => "0s".to_owned(),
                            ROTATIONS => format!("{LAST_GRACE}s"),
                            _ => "1h".to_owned(),
                        };
                        let body = format!(r#"{{"grace":"{grace}"}}"#);
                        let begins = Instant::now();
                        let path = format!("/admin/v1/keys/{}/rotate", id.as_str());
                        let answer = operator.ask(&post(&path, &[("authorization", &bearer(CREDENTIAL.1))], &body));
                        assert_eq!(answer.status(), 200, "{}", answer.text());
                        count.fetch_add(1, Ordering::Relaxed);
                        let secret = answer.json()["secret"].as_str().unwrap().to_owned();
                        for text in former.iter().chain([&secret]) {
                            let answer = ask(&mut client, text);
                            if answer.status() != 200 {
                                wrong.lock().unwrap().push(format!("rotation {rotation}: {}", answer.text()));
                            }
                        }
                        assert_eq!(ask(&mut client, &ended).status(), 401);
                        if rotation == ROTATIONS {
                            last.lock().unwrap().push((begins, former.take().unwrap(), secret.clone()));
                        }
                        former = Some(secret);
                    }
                }
            });
        }
    });
    let (wrong, mut client) = (wrong.into_inner().unwrap(), Client::connect(at));
    println!("{} rotations, {} requests wrongly refused", count.into_inner(), wrong.len());
    assert!(wrong.is_empty(), "{} requests: {:?}", wrong.len(), wrong.first());
    for (begins, former, secret) in last.into_inner().unwrap() {
        // The grace ends at a whole second.
        let ends = begins + Duration::from_secs(LAST_GRACE + 2);
        thread::sleep(ends.saturating_duration_since(Instant::now()));
        assert_eq!([ask(&mut client, &former).status(), ask(&mut client, &secret).status()], [401, 200]);
    }
}

#[test]
fn every_secret_of_a_rotation_works_immediately_and_until_its_grace_ends() {
    let h = Harness::start(&Setup { server: WRITE, ..Setup::default() });
    rotations(h.at, h.admin);
}

#[cfg(feature = "redis")]
#[test]
fn every_secret_of_a_rotation_works_immediately_at_another_host() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"{}\"", server.url());
    let host = || Harness::start(&Setup { server: WRITE, store: store.clone(), ..Setup::default() });
    let hosts = [host(), host()];
    rotations(hosts[1].at, hosts[0].admin);
}
