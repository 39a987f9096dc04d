//! The gateway without limits and ledger: `scripts/bench` compares its CPU time with that of `tollgate serve`. It has
//! the same core on the same event loop, with the same log, but stores nothing: usage records are dropped immediately
//! and reported as committed, and the plan of the keys must not have a limit. Keys are read once, from the configured
//! ledger. `ungoverned --config FILE`

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::base::limits::LOG_BYTES_MAX;
use tollgate::cli::load::{Secrets, read};
use tollgate::gateway::orders::{Notice, Order};
use tollgate::gateway::{Gateway, Start};
use tollgate::io::clock::Clock;
use tollgate::io::listen;
use tollgate::io::log_writer::LogWriter;
use tollgate::io::reactor::{Authority, Reactor, ReactorMessage, ReactorSetup, Security};
use tollgate::io::signals::Signals;
use tollgate::policy::config::{AdminListen, Config, StoreUrl};
use tollgate::policy::ledger::LedgerNotice;
use tollgate::store::api::Names;
use tollgate::store::sqlite::{Mode, Sqlite};

/// Interval at which the event loop learns that its usage records are committed: long, since each report wakes the
/// loop, and well within the lag that admission tolerates.
const ACKNOWLEDGE: Duration = Duration::from_secs(1);

fn start(config: &Config) -> Start {
    let StoreUrl::Sqlite(path) = &config.store.url else { panic!("the keys are read from a file") };
    let db = Sqlite::open(path, Mode::Shared).unwrap();
    let keys = db.keys_page(None, Names::default(), (1 << 20, usize::MAX)).unwrap().unwrap().into();
    for plan in &config.plans {
        let limits = [plan.tokens, plan.requests, plan.tokens_per_window, plan.concurrency];
        assert_eq!(limits, [0; 4], "the plan {} has a limit", plan.name);
    }
    let mut seed = [0u8; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut seed).unwrap();
    Start { seed, keys, client_listeners: config.server.listen.len(), ..Start::default() }
}

fn setup(config: &Config) -> ReactorSetup {
    let own = &config.server;
    let bind = |addr| listen::bind(addr, own.reuse_port).unwrap();
    let authorities: Vec<Authority> = (config.authorities.iter())
        .map(|spec| Authority {
            server_name: spec.server_name.clone(),
            ca_file: spec.ca_file.clone(),
            retired: spec.retired,
        })
        .collect();
    let admin = match own.admin_listen {
        Some(AdminListen::Address(admin)) => Some(admin),
        _ => None,
    };
    ReactorSetup {
        listeners: own.listen.iter().copied().chain(admin).map(bind).collect(),
        secured: own.listen.len(),
        security: Security::load(&authorities, None, None).unwrap(),
    }
}

fn main() -> std::io::Result<()> {
    let signals = Signals::catch()?;
    let path = std::env::args().skip_while(|arg| arg != "--config").nth(1).expect("--config FILE");
    let config = Arc::new(read(Path::new(&path), Secrets::Needed).unwrap());
    listen::raise_descriptor_limit()?;
    let gateway = Gateway::new(config.clone(), start(&config), Clock::new().now());
    let log = LogWriter::start(Box::new(std::io::stderr()), LOG_BYTES_MAX)?;
    let rows = Arc::new(AtomicU64::new(0));
    let dropped = rows.clone();
    let perform = move |order| match order {
        Order::Log(lines) => Order::Log(log.write(lines)),
        Order::Rows(mut kept) => {
            dropped.fetch_add(kept.len() as u64, Ordering::Relaxed);
            kept.clear();
            Order::Rows(kept)
        }
        other => panic!("the bench causes no {other:?}"),
    };
    let outbox = move |orders: Vec<Order>| orders.into_iter().map(&perform).collect();
    let mut reactor = Reactor::new(gateway, setup(&config), outbox)?;
    let mailbox = reactor.mailbox();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(ACKNOWLEDGE);
            let count = rows.swap(0, Ordering::Relaxed);
            if count > 0
                && mailbox.send(ReactorMessage::Notice(Notice::Ledger(LedgerNotice::Committed(count)))).is_err()
            {
                break;
            }
        }
    });
    reactor.watch(signals)?;
    reactor.run().map(drop)
}
