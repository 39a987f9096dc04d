//! `tollgate serve`: puts the gateway core, the loop and the helper threads together, and runs them until a signal.

use super::args::ServeArgs;
use super::load::{self, Secrets};
use super::output::Failure;
use crate::base::time::Unix;
use crate::gateway::orders::{Notice, Work};
use crate::gateway::{self, Gateway};
use crate::io::clock::{Clock, unix};
use crate::io::listen;
use crate::io::log_writer::LogWriter;
use crate::io::reactor::{Note, Reactor};
use crate::io::signals::Signals;
use crate::io::worker::Worker;
use crate::policy::config::Config;
use crate::policy::row::Running;
use crate::policy::window;
use ledger::Opened;
pub(super) use listeners::Listeners;
use outbox::{Helpers, outbox};
use reload::Reloader;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use upgrade::{HandoverReceiver, HandoverSender};

mod ledger;
mod listeners;
mod outbox;
mod reload;
pub(super) mod setup;
mod upgrade;

/// Runs the gateway in the foreground. Exit code 0 after a drain, 1 if it could not start.
pub fn run(args: &ServeArgs) -> ExitCode {
    let start = || {
        let signals = catch_signals()?;
        let path = load::find(&args.config)?;
        let config = load::read(&path, Secrets::Needed).map_err(Failure::Config)?;
        let listeners = Listeners::open(&config).map_err(Failure::failed)?;
        serve(config, Some(path), listeners, signals, Box::new(std::io::stderr())).map_err(Failure::failed)
    };
    start().map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// To be called first: a signal that comes from here on waits for the loop.
pub(super) fn catch_signals() -> Result<Signals, Failure> {
    Signals::catch().map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))
}

/// Runs a gateway on `listeners` until it has drained. `path` is where `config` was read, and will be read again on
/// HUP; `log` takes its log lines.
pub(super) fn serve(
    config: Config,
    path: Option<PathBuf>,
    mut listeners: Listeners,
    signals: Signals,
    log: Box<dyn std::io::Write + Send>,
) -> Result<(), String> {
    listen::raise_descriptor_limit().map_err(|error| format!("cannot raise the descriptor limit: {error}"))?;
    silence_panics();
    let security = setup::security(&config, None)?;
    let config = Arc::new(config);
    // Everything that can be wrong is known by now; from here on a predecessor stands aside for us.
    let (predecessor, running) = await_turn(listeners.channel.take())?;
    let now = Clock::new().now();
    let mut ledger = Opened::open(&config)?;
    let mut start = ledger.start(&config, now)?;
    (start.client_listeners, start.running) = (listeners.clients.len(), running);
    let gateway = Gateway::new(config.clone(), start, now);
    let log = LogWriter::start(log).map_err(|error| format!("cannot start the log thread: {error}"))?;
    log.write(banner(&config, &listeners, now.unix));

    let warnings = config.warnings.iter().map(ToString::to_string).chain(ledger.warnings()?);
    warnings.for_each(|text| drop(log.write(warning(&text, now.unix))));

    let (helpers, has_admin) = (Arc::<Helpers>::default(), listeners.admin.is_some());
    let setup = setup::setup(listeners, security.clone());
    let lines = log.lines();
    let mut reactor = Reactor::new(gateway, setup, outbox(log, helpers.clone()))
        .map_err(|error| format!("cannot start the loop: {error}"))?;
    let warn = move |text: String| drop(lines.write(warning(&text, unix())));
    let store = ledger.keep(&config, reactor.mailbox(), warn)?;
    *helpers.store.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    let mailbox = reactor.mailbox();
    let done = move |done| drop(mailbox.send(Note::Notice(Notice::Worked(done))));
    let worker = Worker::start(|work: Box<Work>| work.run(), done)
        .map_err(|error| format!("cannot start the thread for long work: {error}"))?;
    // The cells are empty: this is their only writer.
    let _ = helpers.worker.set(worker);
    let program = path.as_ref().and_then(|_| std::env::current_exe().ok());
    let handover = HandoverSender::new(program, has_admin, reactor.mailbox());
    reactor.on_upgrade(handover.successor());
    let _ = helpers.handover.set(handover);
    let _ = helpers.reloader.set(Reloader::new(path, security, reactor.mailbox()));
    if let Some(predecessor) = predecessor {
        let safe = predecessor.follow(reactor.mailbox()).map_err(|error| format!("cannot follow: {error}"))?;
        let _ = helpers.safe.set(safe);
    }
    reactor.watch(signals).map_err(|error| format!("cannot watch signals: {error}"))?;
    crate::io::upgrade::notify_ready();
    let ended = reactor.run().map(drop).map_err(|error| format!("the loop failed: {error}"));
    helpers.finish();
    ended
}

/// Waits for a predecessor, if there is one, to stand aside.
fn await_turn(channel: Option<UnixStream>) -> Result<(Option<HandoverReceiver>, Option<Vec<Running>>), String> {
    let Some(channel) = channel else { return Ok((None, None)) };
    let turn = HandoverReceiver::await_turn(channel).map_err(|error| format!("cannot take over: {error}"))?;
    Ok((Some(turn.0), Some(turn.1)))
}

/// The first log line: where it listens, and the worst case of memory.
fn banner(config: &Config, listeners: &Listeners, now: Unix) -> Vec<u8> {
    let addrs = |listeners: &[TcpListener]| {
        let texts = listeners.iter().filter_map(|l| l.local_addr().ok()).map(|addr| format!("\"{addr}\""));
        texts.collect::<Vec<_>>().join(",")
    };
    format!(
        "{{\"time\":\"{}\",\"event\":\"listening\",\"clients\":[{}],\"admin\":[{}],\"version\":\"{}\",\"pid\":{},\
         \"max_connections\":{},\"max_buffered\":{},\"worst_case_bytes\":{}}}\n",
        window::iso(now),
        addrs(&listeners.clients),
        addrs(listeners.admin.as_slice()),
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        config.server.max_connections,
        config.server.max_buffered,
        gateway::worst_case_bytes(config),
    )
    .into_bytes()
}

/// A log line for something that an operator should know.
fn warning(text: &str, now: Unix) -> Vec<u8> {
    let text = serde_json::Value::from(text);
    format!("{{\"time\":\"{}\",\"event\":\"warning\",\"message\":{text}}}\n", window::iso(now)).into_bytes()
}

/// A panic tells its place and nothing else: its message could carry a client's words.
fn silence_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        eprintln!("{{\"event\":\"panic\",\"place\":\"{place}\"}}");
    }));
}
