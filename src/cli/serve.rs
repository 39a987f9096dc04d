//! `tollgate serve`: puts the gateway core, the loop and the helper threads together, and runs them until a signal.

use super::ServeArgs;
use super::load::{self, Secrets};
use super::output::Failure;
use crate::base::time::{Now, Unix};
use crate::gateway::orders::{Notice, Order};
use crate::gateway::{Gateway, Start};
use crate::io::clock::Clock;
use crate::io::listen;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{Note, Reactor};
use crate::io::scribe::Scribe;
use crate::io::store::book::StoreError;
use crate::io::store::sqlite::Sqlite;
use crate::io::store::{self, Duties, StoreHandle, StoreNotice};
use crate::policy::config::{Durability, High, StoreUrl};
use crate::policy::meter::DAYS_KEPT;
use crate::policy::window;
use reload::Reloader;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

mod reload;
pub(super) mod setup;

/// Runs the gateway in the foreground. Exit code 0 after a drain, 1 if it could not start.
pub fn run(args: &ServeArgs) -> ExitCode {
    let ended = load::find(&args.config).and_then(|path| {
        let config = load::read(&path, Secrets::Needed).map_err(Failure::Config)?;
        let listeners = Listeners::bind(&config).map_err(Failure::failed)?;
        serve(config, Some(path), listeners, Box::new(std::io::stderr())).map_err(Failure::failed)
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

/// Runs a gateway on `listeners` until it has drained. `path` is where `config` was read, and will be read again on
/// HUP; `log` takes its log lines.
pub(super) fn serve(
    config: High,
    path: Option<PathBuf>,
    listeners: Listeners,
    log: Box<dyn std::io::Write + Send>,
) -> Result<(), String> {
    if let Some(setting) = not_built_yet(&config) {
        return Err(format!("{setting} is accepted by the configuration but not built yet"));
    }
    let StoreUrl::Sqlite(ledger) = config.store.url.clone() else {
        return Err("a shared store is not built yet".into());
    };
    listen::raise_descriptor_limit().map_err(|error| format!("cannot raise the descriptor limit: {error}"))?;
    silence_panics();
    let security = setup::security(&config, None)?;
    let config = Arc::new(config);
    let now = Clock::new().now();
    let db = open_ledger(&ledger, &config)?;
    let mut start = continue_from(&db, &config, now)?;
    start.client_listeners = listeners.clients.len();
    let gateway = Gateway::new(config.clone(), start, now);
    let scribe = Scribe::start(log).map_err(|error| format!("cannot start the log thread: {error}"))?;
    scribe.write(banner(&config, &listeners, now.unix));

    let store: Arc<OnceLock<StoreHandle>> = Arc::default();
    let reloader: Arc<OnceLock<Reloader>> = Arc::default();
    let outbox = outbox(scribe, store.clone(), reloader.clone());
    let mut reactor = Reactor::new(gateway, setup::setup(listeners, security.clone()), outbox)
        .map_err(|error| format!("cannot start the loop: {error}"))?;
    let duties =
        Duties { urgent: config.store.durability == Durability::BeforeReply, retention: config.store.retention };
    let handle = store::spawn(db, duties, tell(reactor.mailbox()))
        .map_err(|error| format!("cannot start the ledger's thread: {error}"))?;
    // The cells are empty: this is their only writer.
    let _ = store.set(handle);
    let _ = reloader.set(Reloader::new(path, security, reactor.mailbox()));
    reactor.watch_signals().map_err(|error| format!("cannot watch signals: {error}"))?;
    reactor.run().map_err(|error| format!("the loop failed: {error}"))?;
    Ok(())
}

/// Settings whose feature comes later: refused, since a setting that does nothing would be worse.
fn not_built_yet(config: &High) -> Option<&'static str> {
    let server = &config.server;
    match () {
        () if server.reuse_port => Some("server.reuse_port"),
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
    // Windows of different lengths do not nest, so the longest need not begin first.
    let starts = config.plans.iter().map(|plan| window::window(now.unix, plan.window).0);
    let window = starts.min().unwrap_or(now.unix);
    let since = Unix(now.unix.0.saturating_sub(DAYS_KEPT * window::DAY_MS));
    let days = db.day_sums(since).map_err(failed)?;
    let mut seed = [0u8; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut seed)
        .map_err(|_| "no entropy is available".to_string())?;
    Ok(Start {
        seed,
        client_listeners: 0,
        keys: db.list_keys().map_err(failed)?,
        days: days.into_iter().map(|sum| (sum.key, sum.day, sum.tokens)).collect(),
        recent: db.rows_since(window).map_err(failed)?,
    })
}

/// The way of rows and log lines to their threads: a copy under a lock, without a system call.
fn outbox(
    scribe: Scribe,
    store: Arc<OnceLock<StoreHandle>>,
    reloader: Arc<OnceLock<Reloader>>,
) -> impl FnMut(Vec<Order>) -> Vec<Order> {
    move |mut orders| {
        // Given back empty but with their storage, so that the next turn's rows and lines cost no allocation.
        orders.retain_mut(|order| {
            match order {
                Order::Rows(rows) => match store.get() {
                    Some(store) => *rows = store.write(std::mem::take(rows)),
                    None => rows.clear(),
                },
                Order::Log(lines) => *lines = scribe.write(std::mem::take(lines)),
                Order::Reload(before) => {
                    if let Some(reloader) = reloader.get() {
                        reloader.start(before.clone());
                    }
                    return false;
                }
            }
            true
        });
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
         \"max_connections\":{},\"max_buffered\":{}}}\n",
        window::iso(now),
        addrs(&listeners.clients),
        addrs(listeners.admin.as_slice()),
        env!("CARGO_PKG_VERSION"),
        config.server.max_connections,
        config.server.max_buffered,
    )
    .into_bytes()
}

/// A panic tells its place and nothing else: its message could carry a client's words.
fn silence_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        eprintln!("{{\"event\":\"panic\",\"place\":\"{place}\"}}");
    }));
}
