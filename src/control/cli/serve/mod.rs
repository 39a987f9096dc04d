//! `tollgate serve`: creates the gateway core, the event loop and the helper threads, and runs them until a signal.

use super::args::ServeArgs;
use super::load::{self, Secrets};
use super::output::{Failure, remark};
use super::store;
use crate::base::time::Unix;
use crate::gateway::Gateway;
use crate::gateway::orders::Notice;
use crate::io::clock::{Clock, unix};
use crate::io::listen;
use crate::io::log_writer::LogWriter;
use crate::io::machine::{self, explained};
use crate::io::mailbox::Mailbox;
use crate::io::process;
use crate::io::reactor::{Reactor, ReactorMessage, Security};
use crate::io::secrets::{self, SecretWatch};
use crate::io::signals::Signals;
use crate::io::upgrade::Inherited;
use crate::policy::config::Config;
use crate::policy::window;
use crate::store::api::Leftover;
use crate::store::spill::SpillFolder;
use ledger::Opened;
pub(super) use listeners::ServeListeners;
use log_lines::{rows_line, spilled, stopped, warning};
use outbox::{DeskEnd, Helpers, LongWork, outbox};
use reload::Reloader;
use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use upgrade::{HandoverReceiver, HandoverSender, Listening, ReceivedLedger};

mod capture;
mod capture_line;
mod courier;
pub(super) mod descriptors;
mod exporter;
mod ledger;
mod listeners;
mod log_lines;
mod outbox;
mod program;
mod reload;
mod upgrade;

/// Maximum number of warnings about limits of keys that name no model.
pub(super) const UNUSED_MAX: usize = 20;

/// Runs the gateway in the foreground, on the `inherited` sockets if there are any. Exit code 0 after a drain, 1 if it
/// could not start or could not write every row.
pub fn run(args: &ServeArgs, inherited: io::Result<Inherited>) -> ExitCode {
    let start = || {
        let signals = catch_signals()?;
        let unusable = |error| Failure::failed(format!("cannot use the inherited sockets: {error}"));
        let inherited = inherited.map_err(unusable)?;
        let path = load::find(&args.config)?;
        let config = load::read(&path, Secrets::Needed).map_err(Failure::Config)?;
        store::may_snapshot(&config.store)?;
        let listeners = ServeListeners::open(&config, inherited).map_err(Failure::failed)?;
        if io::stderr().is_terminal() {
            remark(&addresses(&config, &listeners));
        }
        serve(config, Some(path), listeners, signals, Box::new(io::stderr())).map_err(Failure::failed)
    };
    start().map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// Must be called first: later signals are queued for the event loop.
pub(super) fn catch_signals() -> Result<Signals, Failure> {
    Signals::catch().map_err(|error| Failure::failed(format!("cannot catch signals: {}", explained(&error))))
}

/// Runs a gateway on `listeners` until it has drained. `path` is the file of `config`, read again on HUP; `log`
/// receives the log lines.
pub(super) fn serve(
    config: Config,
    path: Option<PathBuf>,
    mut listeners: ServeListeners,
    signals: Signals,
    log: Box<dyn io::Write + Send>,
) -> Result<(), String> {
    process::started();
    // The demo has no successor: its ledger ends with it.
    let program = path.as_ref().and_then(|_| program::called());
    let descriptors = listen::raise_descriptor_limit();
    let descriptors =
        descriptors.map_err(|error| format!("cannot raise the descriptor limit: {}", explained(&error)))?;
    descriptors::check(descriptors)?;
    silence_panics();
    let security = load::security(&config, None)?;
    let log = LogWriter::start(log, config.server.bounds.log)
        .map_err(|error| format!("cannot start the log thread: {}", explained(&error)))?;
    let predecessor = listeners.channel.take().map(HandoverReceiver::new).transpose().map_err(cannot_take_over)?;
    let spills = store::spill_folder(&config, path.as_deref());
    let plan =
        ServiceInputs { config: Arc::new(config), path, program, descriptors, security, spills, log: Rc::new(log) };
    let service = match predecessor {
        None => Service::prepare(&plan, listeners, signals, ReceivedLedger::default(), false)?,
        Some(predecessor) => take_over(&plan, listeners, signals, predecessor)?,
    };
    plan.log.write(service.banner);
    for text in service.warnings {
        plan.log.write(warning(&text, unix()));
    }
    crate::io::upgrade::notify("READY=1\n");
    let ended = engine::serve(service.reactor).map_err(|error| format!("the loop failed: {error}"));
    secrets::end_programs();
    let (left, spans) = service.helpers.finish();
    let kept = keep_left(&left, &plan);
    let unsettled = ended.as_ref().map_or(0, |gateway| gateway.vitals().holds);
    plan.log.write(stopped(unsettled, left.rows(), spans, unix()));
    let ended = ended.and_then(|gateway| match gateway.is_outgrown() {
        true => Err("a newer version has changed the ledger: start that".to_string()),
        false => Ok(()),
    });
    ended.and(kept)
}

fn cannot_take_over(error: io::Error) -> String {
    format!("cannot take over: {error}")
}

/// Becomes a successor. Every error is detected before the predecessor stops serving, or before it lets this process
/// serve.
fn take_over(
    plan: &ServiceInputs,
    listeners: ServeListeners,
    signals: Signals,
    mut predecessor: HandoverReceiver,
) -> Result<Service, String> {
    let prepared = ledger::look(&plan.config).and_then(|()| {
        let turn = predecessor.await_turn().map_err(cannot_take_over)?;
        turn.listening.iter().try_for_each(|before| Listening::from_config(&plan.config).check(before))?;
        Service::prepare(plan, listeners, signals, turn, true)
    });
    let service = prepared.inspect_err(|why| predecessor.fail(why))?;
    predecessor.await_serve().map_err(cannot_take_over)?;
    let safe = predecessor.follow(service.reactor.mailbox()).map_err(|error| format!("cannot follow: {error}"))?;
    // The cell is empty: this is the only writer.
    let _ = service.helpers.safe.set(safe);
    Ok(service)
}

/// Inputs of a service.
struct ServiceInputs {
    config: Arc<Config>,
    path: Option<PathBuf>,
    program: Option<PathBuf>,
    /// Maximum number of open descriptors.
    descriptors: u64,
    security: Security,
    spills: SpillFolder,
    log: Rc<LogWriter>,
}

/// A gateway that is ready to serve.
struct Service {
    reactor: Reactor<Gateway>,
    helpers: Arc<Helpers>,
    /// The first line of its log.
    banner: Vec<u8>,
    /// Warnings for the operator.
    warnings: Vec<String>,
}

impl Service {
    /// Opens the ledger and starts the threads. `inherits`: there is a predecessor, whose running requests are in
    /// `turn`.
    fn prepare(
        plan: &ServiceInputs,
        listeners: ServeListeners,
        signals: Signals,
        turn: ReceivedLedger,
        inherits: bool,
    ) -> Result<Service, String> {
        let mut config = plan.config.clone();
        if !turn.lists.is_empty() {
            config = Arc::new(config.with_lists(&turn.lists));
        }
        let (config, now) = (&config, Clock::new().now());
        let mut ledger = Opened::open(config, &plan.spills, inherits)?;
        let listening = Listening::from_config(config);
        let mut warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        warnings.append(&mut ledger.warnings);
        if let Err(error) = plan.spills.check() {
            let folder = plan.spills.folder().display();
            warnings.push(format!(
                "{folder}: usage records that the ledger does not accept cannot be kept here ({error}): set store.spill"
            ));
        }
        warnings.extend(turn.listening.iter().flat_map(|before| listening.warnings(before)));
        let mut start = ledger.start(config, now)?;
        start.client_listeners = listeners.clients.len();
        start.admin = listeners.door.as_ref().map(|door| door.reach);
        start.descriptors = Some(descriptors::usable(plan.descriptors));
        warnings.extend(descriptors::warning(config, plan.descriptors));
        warnings.extend(config.memory_warning(start.keys.bytes(), machine::memory()));
        let known = config.known_models();
        let unused = start.keys.kinds().flat_map(|kind| known.unused(&kind.limits));
        warnings.extend(unused.take(UNUSED_MAX).map(|text| ["limits of a key: ", &text].concat()));
        start.running = inherits.then_some(turn.running);
        start.recorded = turn.recorded;
        start.process = Some(process::vitals);
        let banner = banner(config, &listeners, start.keys.bytes(), now.unix);
        let gateway = Gateway::new(config.clone(), start, now);
        let door = listeners.door.clone();

        let helpers = Arc::<Helpers>::default();
        let setup = listeners.with(plan.security.clone());
        let mut reactor = Reactor::new(gateway, setup, outbox(plan.log.clone(), helpers.clone()))
            .map_err(|error| format!("cannot start the loop: {}", explained(&error)))?;
        let lines = plan.log.lines();
        let warn = move |text: String| drop(lines.write(warning(&text, unix())));
        helpers.store().ledger = Some(ledger.keep(config, reactor.mailbox(), warn)?);
        let long = LongWork::start(reactor.mailbox());
        let long = long.map_err(|error| format!("cannot start the threads for long work: {}", explained(&error)))?;
        // The cells are empty: this is the only writer.
        let _ = helpers.worker.set(long);
        let _ = helpers.place.set(plan.spills.clone());
        let _ = helpers.desk.set(DeskEnd::new(reactor.mailbox()));
        let handover = HandoverSender::new(
            plan.program.clone(),
            door.is_some(),
            listening,
            plan.spills.clone(),
            plan.log.lines(),
            reactor.mailbox(),
        );
        reactor.on_upgrade(handover.successor());
        let _ = helpers.handover.set(handover);
        let secrets = watch_secrets(config, reactor.mailbox())?;
        let reloader =
            Reloader::new(plan.path.clone(), door, plan.security.clone(), secrets.clone(), reactor.mailbox());
        let _ = helpers.secrets.set(secrets);
        let _ = helpers.reloader.set(reloader);
        reactor.watch(signals).map_err(|error| format!("cannot watch signals: {}", explained(&error)))?;
        Ok(Service { reactor, helpers, banner, warnings })
    }
}

/// Starts the thread that reads secrets again from their sources.
fn watch_secrets(config: &Config, mailbox: Mailbox<ReactorMessage<Gateway>>) -> Result<Arc<SecretWatch>, String> {
    // A full mailbox means that the event loop has ended.
    let tell = move |origin, said| drop(mailbox.send(ReactorMessage::Notice(Notice::SecretTold(origin, said))));
    let secrets = SecretWatch::start(tell)
        .map_err(|error| format!("cannot start the thread for secrets: {}", explained(&error)))?;
    secrets.watch(reload::secrets(config), config.secret_variables.clone());
    Ok(Arc::new(secrets))
}

/// Spills rows that could not be written, so that the next start finds them. Losses are reported in the log and by the
/// exit code.
fn keep_left(left: &Leftover, plan: &ServiceInputs) -> Result<(), String> {
    let rows = left.rows();
    let kept = match rows {
        0 => Ok(()),
        _ => match plan.spills.write(left, unix(), std::process::id()) {
            Ok(path) => {
                plan.log.write(spilled(rows, &path));
                Err(format!("usage records not in the ledger: {rows}; {} has them", path.display()))
            }
            Err(error) => {
                plan.log.write(rows_line("lost", rows, "error", &error.to_string()));
                Err(format!("usage records lost: {rows}: {error}"))
            }
        },
    };
    match left.died {
        true => kept.and(Err("the thread of the ledger has died, and usage records with it".to_string())),
        false => kept,
    }
}

/// Addresses for a user at a terminal.
fn addresses(config: &Config, listeners: &ServeListeners) -> String {
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let clients: Vec<String> =
        listeners.clients.iter().filter_map(|one| one.local_addr().ok()).map(|at| format!("{scheme}://{at}")).collect();
    let door = listeners.door.as_ref().filter(|door| !door.name.starts_with("unix:"));
    let page = door.map_or(String::new(), |door| format!(", dashboard http://{}/", door.name));
    format!("serving {}{page}", clients.join(", "))
}

/// The first log line: addresses, and the maximum memory.
fn banner(config: &Config, listeners: &ServeListeners, keys: u64, now: Unix) -> Vec<u8> {
    let addrs = |listeners: &[TcpListener]| {
        let texts = listeners.iter().filter_map(|l| l.local_addr().ok()).map(|addr| format!("\"{addr}\""));
        texts.collect::<Vec<_>>().join(",")
    };
    let admin = listeners.door.as_ref().map(|door| serde_json::Value::from(&*door.name).to_string());
    format!(
        "{{\"time\":\"{}\",\"event\":\"listening\",\"clients\":[{}],\"admin\":[{}],\"tls\":{},\"version\":\"{}\",\
         \"pid\":{},\"max_connections\":{},\"max_buffered\":{},\"worst_case_bytes\":{}}}\n",
        window::iso(now),
        addrs(&listeners.clients),
        admin.unwrap_or_default(),
        config.server.tls.is_some(),
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        config.server.max_connections,
        config.server.max_buffered,
        config.worst_case_bytes(keys),
    )
    .into_bytes()
}

/// Reduces a panic's message to its location: the message could contain a client's text.
fn silence_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        super::output::remark(&format!("{{\"event\":\"panic\",\"place\":\"{place}\"}}"));
    }));
}
