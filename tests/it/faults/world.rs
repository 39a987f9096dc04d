//! The gateway as a separate process, its configured providers, and its resources in use.

use super::answers::Shape;
use super::client::{Answer, get};
use super::play;
use super::process::{Folder, Process, free_port, run, wait_for};
use super::wire::{authority, listen};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Timeouts short enough for a test, long enough for a busy machine.
pub const CONFIG: &str = r#"
[server]
listen = "{gateway}"
admin_listen = "{admin}"

[store]
url = "sqlite:tollgate.db"

[upstream]
connect_timeout = "4s"
first_byte_timeout = "4s"
idle_timeout = "4s"
request_timeout = "12s"
breaker_failures = 0
pool_idle_timeout = "30s"

[[plans]]
name = "open"
tokens = 1_000_000_000_000
requests = 1_000_000_000

"#;

/// A running gateway with its providers.
pub struct World {
    pub gateway: Process,
    pub at: SocketAddr,
    pub admin: SocketAddr,
    pub key: String,
    pub folder: Folder,
    /// Usage records, as of the last time the ledger was read.
    rows: Mutex<BTreeMap<String, Value>>,
    /// Keeps the connection queue of an address full.
    _full: Vec<std::net::TcpStream>,
}

/// Resources in use, from `/metrics` and `/proc`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Use {
    pub clients: u64,
    pub upstreams: u64,
    pub idle: u64,
    pub holds: u64,
    pub buffered: u64,
}

impl Use {
    /// Returns true if nothing is in use.
    pub fn is_at_rest(&self) -> bool {
        self.upstreams == self.idle && self.holds == 0 && self.buffered == 0
    }
}

/// Name, scheme, host and port of a provider, and additional lines of its configuration.
pub struct Place {
    pub name: &'static str,
    pub base: String,
    pub more: String,
}

/// Returns a provider without TLS.
pub fn open(name: &'static str, at: SocketAddr) -> Place {
    Place { name, base: format!("http://{at}"), more: String::new() }
}

/// Returns a provider with TLS, whose certificate must be issued by the test's CA for `host`.
pub fn secure(name: &'static str, host: &str, at: SocketAddr) -> Place {
    Place {
        name,
        base: format!("https://{host}:{}", at.port()),
        more: "ca_file = \"ca.pem\"\naddresses = [\"127.0.0.1\"]\n".into(),
    }
}

impl World {
    pub fn start() -> World {
        let folder = Folder::new();
        let (pem, config) = authority();
        let (_, strangers) = authority();
        fs::write(folder.path().join("ca.pem"), pem).unwrap();
        let plain = listen(None, play::faulty);
        let usual_tls = listen(Some(config.clone()), play::faulty);
        let (full, holders) = full_listener();
        let places = [
            open("usual", plain),
            secure("usual-tls", "localhost", usual_tls),
            open("good", listen(None, play::good)),
            open("refused", SocketAddr::from(([127, 0, 0, 1], free_port()))),
            open("silent", full),
            open("slams", listen(None, play::slams)),
            secure("slams-tls", "localhost", listen(None, play::slams)),
            secure("not-tls", "localhost", listen(None, play::no_tls)),
            secure("silent-tls", "localhost", listen(None, play::silent)),
            secure("untrusted", "localhost", listen(Some(strangers), play::faulty)),
            secure("wrong-name", "other.test", usual_tls),
            Place { name: "no-name", base: "http://no.such.host.invalid".into(), more: String::new() },
            open("roomy", plain),
            Place { more: "breaker_failures = 2\nbreaker_cooldown = \"60s\"\n".into(), ..open("brittle", plain) },
            Place { more: "max_event = \"1MiB\"\nmax_response = \"1MiB\"\n".into(), ..open("narrow", plain) },
        ];
        World::of(folder, &places, CONFIG, holders)
    }

    /// Starts a gateway with these providers. `full` is kept as long as the gateway runs.
    pub fn of(folder: Folder, places: &[Place], config: &str, full: Vec<std::net::TcpStream>) -> World {
        World::by(folder, places, config, full, |path| Process::start(path, "gateway", &["serve"], &[]))
    }

    /// Starts a gateway with `start`, which gets the folder.
    pub fn by(
        folder: Folder,
        places: &[Place],
        config: &str,
        full: Vec<std::net::TcpStream>,
        start: impl FnOnce(&Path) -> Process,
    ) -> World {
        let (at, admin) = (address(), address());
        let mut text = config.replace("{gateway}", &at.to_string()).replace("{admin}", &admin.to_string());
        for place in places {
            for shape in Shape::ALL {
                text += &provider(place, shape);
            }
        }
        for place in places {
            for shape in Shape::ALL {
                text += &model(place, shape);
            }
        }
        fs::write(folder.path().join("tollgate.toml"), text).unwrap();
        let issued = run(folder.path(), &["keys", "issue", "--name", "faults"], &[]);
        assert_eq!(issued.code, 0, "{}", issued.err);
        let gateway = start(folder.path());
        wait_for("the gateway", || get(admin, "/readyz").ok().filter(|answer| answer.status() == 200));
        World { gateway, at, admin, key: issued.out.trim().to_owned(), folder, rows: Mutex::default(), _full: full }
    }

    /// Waits until all resources in use, and the number of descriptors, are as before. Otherwise fails with the
    /// differences.
    pub fn back_to(&self, start: &Use, descriptors: usize) {
        self.back_to_within(start, descriptors, Duration::from_secs(60));
    }

    /// Works like [`World::back_to`], with another timeout.
    pub fn back_to_within(&self, start: &Use, descriptors: usize, timeout: Duration) {
        let begun = Instant::now();
        loop {
            let (now, open) = (self.at_rest(timeout), self.gateway.descriptors());
            if now == *start && open <= descriptors {
                return;
            }
            if begun.elapsed() > timeout {
                let names = fs::read_dir(format!("/proc/{}/fd", self.gateway.id())).unwrap();
                let names: Vec<_> = names.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
                panic!("{start:?} and {descriptors} descriptors have become {now:?} and {open}: {names:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Issues another key.
    pub fn issue(&self, name: &str) -> String {
        let issued = run(self.folder.path(), &["keys", "issue", "--name", name], &[]);
        assert_eq!(issued.code, 0, "{}", issued.err);
        issued.out.trim().to_owned()
    }

    /// Returns all metrics without labels.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let answer: Answer = get(self.admin, "/metrics").unwrap();
        let lines = answer.text().lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.rsplit_once(' ')).map(|(k, v)| (k.to_owned(), v.parse().unwrap())).collect()
    }

    /// Returns the resources in use now, without connections to the admin listener.
    pub fn usage(&self) -> Use {
        let metrics = self.metrics();
        let of = |name: &str| metrics[name] as u64;
        Use {
            clients: of("tollgate_client_connections"),
            upstreams: of("tollgate_upstream_connections"),
            idle: of("tollgate_upstream_idle_connections"),
            holds: of("tollgate_open_reservations"),
            // The request for the metrics uses buffers itself.
            buffered: of("tollgate_buffered_bytes").saturating_sub(2 * 4096),
        }
    }

    /// Waits until all requests have ended. Returns the resources in use.
    pub fn at_rest(&self, timeout: Duration) -> Use {
        let start = Instant::now();
        loop {
            let found = self.usage();
            if found.is_at_rest() {
                return found;
            }
            assert!(start.elapsed() < timeout, "still in use after {timeout:?}: {found:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns a memory value in bytes by its name in `/proc/PID/status`: `VmRSS` is the present one, `VmHWM` the peak.
    pub fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.gateway.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Returns the worst case of memory in bytes that the gateway logs at startup.
    pub fn announced(&self) -> u64 {
        let written = self.gateway.written();
        announced(written.lines().find(|line| line.contains("\"listening\"")).expect("the first line of the log"))
    }

    /// Waits until the usage record of a request is committed. Returns its columns as a JSON object.
    pub fn row(&self, id: &str) -> Value {
        let known = self.rows.lock().unwrap().get(id).cloned();
        known.unwrap_or_else(|| {
            wait_for("the row", || {
                let rows = self.read_rows();
                let found = rows.get(id).cloned();
                *self.rows.lock().unwrap() = rows;
                found
            })
        })
    }

    /// Reads all usage records, which takes no longer than reading one.
    fn read_rows(&self) -> BTreeMap<String, Value> {
        let db = rusqlite::Connection::open(self.folder.path().join("tollgate.db")).unwrap();
        let sql = "SELECT id, json_object('target', target, 'attempts', attempts, 'status', status, \
                   'stream', stream, 'in', input, 'out', output, 'source', source) FROM rows";
        let mut statement = db.prepare(sql).unwrap();
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        let mut rows = BTreeMap::new();
        for row in statement.query_map([], read).unwrap() {
            let (id, text) = row.unwrap();
            let other = rows.insert(id.clone(), serde_json::from_str(&text).unwrap());
            assert!(other.is_none(), "two usage records of {id}");
        }
        rows
    }
}

/// Returns the worst case of a line `listening`.
pub fn announced(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["worst_case_bytes"].as_u64().unwrap()
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

fn provider(place: &Place, shape: Shape) -> String {
    let Place { name, base, more } = place;
    let path = if shape == Shape::Chat { "/v1" } else { "" };
    let shape = shape.name();
    format!("[[providers]]\nname = \"{name}-{shape}\"\nshape = \"{shape}\"\nbase_url = \"{base}{path}\"\n{more}\n")
}

/// Returns two models: one with only the tested target, and one with the good target after it.
fn model(place: &Place, shape: Shape) -> String {
    let (name, shape) = (place.name, shape.name());
    let target = |name: &str| format!("{{ provider = \"{name}-{shape}\", model = \"up\" }}");
    let more = if name == "roomy" { "request_timeout = \"60s\"\n" } else { "" };
    format!(
        "[[models]]\nid = \"{name}-{shape}-one\"\ncontext = \"1M\"\n{more}targets = [{}]\n\
         [[models]]\nid = \"{name}-{shape}-two\"\ncontext = \"1M\"\n{more}targets = [{}, {}]\n\n",
        target(name),
        target(name),
        target("good"),
    )
}

/// Returns an address whose queue is full: the kernel drops every further SYN, so that a dial hangs.
pub fn full_listener() -> (SocketAddr, Vec<std::net::TcpStream>) {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    let mut held = vec![std::net::TcpStream::from(socket)];
    while let Ok(next) = std::net::TcpStream::connect_timeout(&at, Duration::from_millis(100)) {
        held.push(next);
        assert!(held.len() < 64, "the queue did not fill up");
    }
    (at, held)
}
