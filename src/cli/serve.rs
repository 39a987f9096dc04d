//! `tollgate serve`: puts the gateway core, the loop and the helper threads together, and runs them until a signal.

use super::ServeArgs;
use super::load::{self, Secrets};
use super::output::Failure;
use crate::base::time::Unix;
use crate::gateway::Gateway;
use crate::gateway::orders::Order;
use crate::io::clock::Clock;
use crate::io::listen;
use crate::io::reactor::Reactor;
use crate::io::scribe::Scribe;
use crate::policy::config::High;
use crate::policy::window;
use ledger::{Keeper, Opened};
use reload::Reloader;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

mod ledger;
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
    listen::raise_descriptor_limit().map_err(|error| format!("cannot raise the descriptor limit: {error}"))?;
    silence_panics();
    let security = setup::security(&config, None)?;
    let config = Arc::new(config);
    let now = Clock::new().now();
    let mut ledger = Opened::open(&config)?;
    let mut start = ledger.start(&config, now)?;
    start.client_listeners = listeners.clients.len();
    let gateway = Gateway::new(config.clone(), start, now);
    let scribe = Scribe::start(log).map_err(|error| format!("cannot start the log thread: {error}"))?;
    scribe.write(banner(&config, &listeners, now.unix));

    ledger.warnings()?.iter().for_each(|text| drop(scribe.write(warning(text, now.unix))));

    let store: Arc<OnceLock<Keeper>> = Arc::default();
    let reloader: Arc<OnceLock<Reloader>> = Arc::default();
    let outbox = outbox(scribe, store.clone(), reloader.clone());
    let mut reactor = Reactor::new(gateway, setup::setup(listeners, security.clone()), outbox)
        .map_err(|error| format!("cannot start the loop: {error}"))?;
    // The cells are empty: this is their only writer.
    let _ = store.set(ledger.keep(&config, reactor.mailbox())?);
    let _ = reloader.set(Reloader::new(path, security, reactor.mailbox()));
    reactor.watch_signals().map_err(|error| format!("cannot watch signals: {error}"))?;
    reactor.run().map_err(|error| format!("the loop failed: {error}"))?;
    Ok(())
}

/// The way of rows and log lines to their threads: a copy under a lock, without a system call.
fn outbox(
    scribe: Scribe,
    store: Arc<OnceLock<Keeper>>,
    reloader: Arc<OnceLock<Reloader>>,
) -> impl FnMut(Vec<Order>) -> Vec<Order> {
    move |mut orders| {
        // Rows before questions: what has ended makes room for what would begin.
        orders.sort_by_key(|order| matches!(order, Order::Asks(_)));
        // Rows and lines are given back empty but with their storage, so that the next turn's cost no allocation.
        for order in &mut orders {
            let store = store.get();
            match order {
                Order::Rows(rows) => match store {
                    Some(store) => *rows = store.write(std::mem::take(rows)),
                    None => rows.clear(),
                },
                Order::Asks(asks) => store.into_iter().for_each(|store| store.ask(asks)),
                Order::Releases(releases) => store.into_iter().for_each(|store| store.release(releases)),
                Order::Log(lines) => *lines = scribe.write(std::mem::take(lines)),
                Order::Reload(before) => {
                    if let Some(reloader) = reloader.get() {
                        reloader.start(before.clone());
                    }
                }
            }
        }
        orders
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

/// A log line for something that an operator should know.
fn warning(text: &str, now: Unix) -> Vec<u8> {
    let line = serde_json::json!({"time": window::iso(now), "event": "warning", "message": text});
    format!("{line}\n").into_bytes()
}

/// A panic tells its place and nothing else: its message could carry a client's words.
fn silence_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        eprintln!("{{\"event\":\"panic\",\"place\":\"{place}\"}}");
    }));
}
