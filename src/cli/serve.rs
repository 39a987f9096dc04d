//! `tollgate serve`: puts the gateway core, the loop and the helper threads together, and runs them until a signal.

use super::ServeArgs;
use super::load::{self, Secrets};
use super::output::Failure;
use crate::base::limits;
use crate::base::time::{Now, Unix};
use crate::gateway::orders::{Notice, Order, Work};
use crate::gateway::{Gateway, Start};
use crate::io::clock::Clock;
use crate::io::listen;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{Authority, Note, Reactor, Setup};
use crate::io::scribe::Scribe;
use crate::io::store::book::StoreError;
use crate::io::store::sqlite::Sqlite;
use crate::io::store::{self, Duties, StoreHandle, StoreNotice};
use crate::io::worker::Worker;
use crate::policy::config::{Durability, High, StoreUrl};
use crate::policy::window::{self, Period};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

/// Runs the gateway in the foreground. Exit code 0 after a drain, 1 if it could not start.
pub fn run(args: &ServeArgs) -> ExitCode {
    let ended = load::load(&args.config, Secrets::Needed).and_then(|config| {
        let listeners = Listeners::bind(&config).map_err(Failure::failed)?;
        serve(config, listeners, Box::new(std::io::stderr())).map_err(Failure::failed)
    });
    ended.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// The sockets a gateway listens on.
pub(super) struct Listeners {
    clients: Vec<TcpListener>,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds what the configuration names.
    pub(super) fn bind(config: &High) -> Result<Listeners, String> {
        let bind = |addr: &SocketAddr| {
            listen::bind(*addr, config.server.reuse_port).map_err(|error| format!("cannot listen on {addr}: {error}"))
        };
        Ok(Listeners {
            clients: config.server.listen.iter().map(bind).collect::<Result<_, _>>()?,
            admin: config.server.admin_listen.as_ref().map(bind).transpose()?,
        })
    }
}

/// Runs a gateway on `listeners` until it has drained. `log` takes its log lines.
pub(super) fn serve(config: High, listeners: Listeners, log: Box<dyn std::io::Write + Send>) -> Result<(), String> {
    if let Some(setting) = not_built_yet(&config) {
        return Err(format!("{setting} is accepted by the configuration but not built yet"));
    }
    let StoreUrl::Sqlite(path) = config.store.url.clone() else { return Err("a shared store is not built yet".into()) };
    listen::raise_descriptor_limit().map_err(|error| format!("cannot raise the descriptor limit: {error}"))?;
    silence_panics();
    let config = Arc::new(config);
    let now = Clock::new().now();
    let db = open_ledger(&path, &config)?;
    let mut start = continue_from(&db, &config, now)?;
    start.client_listeners = listeners.clients.len();
    let gateway = Gateway::new(config.clone(), start, now);
    let scribe = Scribe::start(log).map_err(|error| format!("cannot start the log thread: {error}"))?;
    scribe.write(banner(&config, &listeners, now.unix));

    let (store, worker): (Cell<StoreHandle>, Cell<Worker<Box<Work>>>) = Default::default();
    let outbox = outbox(scribe, store.clone(), worker.clone());
    let mut reactor = Reactor::new(gateway, setup(&config, listeners), outbox)
        .map_err(|error| format!("cannot start the loop: {error}"))?;
    let duties =
        Duties { urgent: config.store.durability == Durability::BeforeReply, retention: config.store.retention };
    let handle = store::spawn(db, duties, tell(reactor.mailbox()))
        .map_err(|error| format!("cannot start the ledger's thread: {error}"))?;
    let mailbox = reactor.mailbox();
    let done = move |done| drop(mailbox.send(Note::Notice(Notice::Worked(done))));
    let helper = Worker::start(|work: Box<Work>| work.run(), done)
        .map_err(|error| format!("cannot start the thread for long work: {error}"))?;
    // The cells are empty: this is their only writer.
    let _ = (store.set(handle), worker.set(helper));
    reactor.watch_signals().map_err(|error| format!("cannot watch signals: {error}"))?;
    reactor.run().map_err(|error| format!("the loop failed: {error}"))?;
    Ok(())
}

/// Settings whose feature comes later: refused, since a setting that does nothing would be worse.
fn not_built_yet(config: &High) -> Option<&'static str> {
    let server = &config.server;
    match () {
        () if server.tls.is_some() => Some("server.tls"),
        () if !server.cors_origins.is_empty() => Some("server.cors_origins"),
        () if server.reuse_port => Some("server.reuse_port"),
        () if server.max_connections_per_ip > 0 => Some("server.max_connections_per_ip"),
        () => None,
    }
}

fn open_ledger(path: &Path, config: &High) -> Result<Sqlite, String> {
    let durable = config.store.durability == Durability::BeforeReply;
    store::open_owner(path, durable).map_err(|error| format!("cannot open the ledger {}: {error}", path.display()))
}

/// Everything the ledger says about keys, periods and windows.
fn continue_from(db: &Sqlite, config: &High, now: Now) -> Result<Start, String> {
    let failed = |error: StoreError| format!("cannot read the ledger: {error}");
    let (month, _) = Period::Month.bounds(now.unix);
    let (week, _) = Period::Week.bounds(now.unix);
    // Windows of different lengths do not nest, so the longest need not begin first.
    let starts = config.plans.iter().map(|plan| window::window(now.unix, plan.window).0);
    let window = starts.min().unwrap_or(now.unix);
    let days = db.day_sums(month.min(week)).map_err(failed)?;
    let mut seed = [0u8; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut seed)
        .map_err(|_| "no entropy is available".to_string())?;
    Ok(Start {
        seed,
        client_listeners: 0,
        keys: db.list_keys().map_err(failed)?,
        days: days.into_iter().map(|sum| (sum.key, sum.day, sum.tokens)).collect(),
        recent: db.rows_since(window).map_err(failed)?,
        work_min: None,
    })
}

fn setup(config: &High, listeners: Listeners) -> Setup {
    let authority = |spec: &crate::policy::config::AuthoritySpec| Authority {
        server_name: spec.server_name.clone(),
        ca_file: spec.ca_file.clone(),
    };
    Setup {
        listeners: listeners.clients.into_iter().chain(listeners.admin).collect(),
        authorities: config.authorities.iter().map(authority).collect(),
    }
}

/// A helper that the loop's outbox needs, but that can only be started once the loop is there.
type Cell<T> = Arc<OnceLock<T>>;

/// The way of rows and log lines to their threads: a copy under a lock, without a system call.
fn outbox(
    scribe: Scribe,
    store: Cell<StoreHandle>,
    worker: Cell<Worker<Box<Work>>>,
) -> impl FnMut(Vec<Order>) -> Vec<Order> {
    move |mut orders| {
        for order in orders.drain(..) {
            match order {
                Order::Rows(rows) => drop(store.get().map(|store| store.write(rows))),
                Order::Log(lines) => drop(scribe.write(lines)),
                Order::Work(work) => drop(worker.get().map(|worker| worker.give(work))),
            }
        }
        orders
    }
}

/// The way of the ledger's news into the loop. A letter that cannot be delivered finds the loop gone.
fn tell(mailbox: Mailbox<Note<Gateway>>) -> impl Fn(StoreNotice) + Send + 'static {
    move |notice| {
        let notice = match notice {
            StoreNotice::Keys(keys) => Notice::Keys(keys),
            StoreNotice::Committed { rows } => Notice::Committed(rows),
            StoreNotice::Failed => Notice::StoreFailed,
            StoreNotice::Recovered => Notice::StoreRecovered,
        };
        let _ = mailbox.send(Note::Notice(notice));
    }
}

/// The first log line: where it listens, and the worst case of memory.
fn banner(config: &High, listeners: &Listeners, now: Unix) -> Vec<u8> {
    let addrs = |listeners: &[TcpListener]| {
        let texts = listeners.iter().filter_map(|l| l.local_addr().ok()).map(|addr| format!("\"{addr}\""));
        texts.collect::<Vec<_>>().join(",")
    };
    format!(
        "{{\"time\":\"{}\",\"event\":\"listening\",\"clients\":[{}],\"admin\":[{}],\"version\":\"{}\",\
         \"max_connections\":{},\"max_buffered\":{},\"worst_case_bytes\":{}}}\n",
        window::iso(now),
        addrs(&listeners.clients),
        addrs(listeners.admin.as_slice()),
        env!("CARGO_PKG_VERSION"),
        config.server.max_connections,
        config.server.max_buffered,
        worst_case(config),
    )
    .into_bytes()
}

/// The most memory that the configuration allows, in bytes: what the program needs by itself, its connections, and
/// every buffer full. A translated request has a second copy of its body until its answer begins, so bodies count
/// twice.
fn worst_case(config: &High) -> u64 {
    let connections = 2 * (config.server.max_connections + limits::RESERVE_CONNECTIONS) as u64;
    OWN_BYTES + connections * CONNECTION_BYTES + 2 * config.server.max_buffered as u64
}

/// Resident without a connection: code, ledger cache, stacks, and a keep of free blocks.
const OWN_BYTES: u64 = 48 << 20;
/// What one connection takes beside its buffers: state, a reused exchange, and over TLS its session.
const CONNECTION_BYTES: u64 = 24 << 10;

/// A panic tells its place and nothing else: its message could carry a client's words.
fn silence_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        eprintln!("{{\"event\":\"panic\",\"place\":\"{place}\"}}");
    }));
}
