//! `tollgate provider`: only the simulated provider, for experiments, tests and benchmarks. Prints its address and runs
//! until TERM or INT. Independent of the gateway.

use super::args::parse_address;
use super::output::{Failure, print};
use crate::io::listen;
use crate::io::machine::explained;
use crate::io::reactor::{Reactor, ReactorSetup};
use crate::io::signals::Signals;
use crate::policy::plan::caps::Cap;
use crate::simulator::quotas::parse_limit;
use crate::simulator::{Simulator, SimulatorSettings};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

/// Arguments of `tollgate provider`.
#[derive(clap::Args, Clone, Debug)]
pub struct ProviderArgs {
    /// Address to listen on; port 0 selects a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000", value_parser = parse_address)]
    pub listen: SocketAddr,
    /// Tokens per second of each response; 0 sends them as fast as the client reads
    #[arg(long, value_name = "TOKENS_PER_SECOND", default_value_t = 0)]
    pub pace: u64,
    /// Key that requests must contain [default: no check]
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Serve this model; repeat it for several. Without it every name is served
    #[arg(long, value_name = "NAME")]
    pub model: Vec<String>,
    /// Limit for each key, such as requests=600/1m or tokens=2M/day:small; repeat it for several. Further requests get
    /// 429
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    pub limit: Vec<Cap>,
}

/// Runs the command. Exit codes: 0 ended by a signal, 1 failed.
pub fn run(args: &ProviderArgs) -> ExitCode {
    let failed = |error| Failure::failed(format!("provider on {}: {}", args.listen, explained(&error)));
    let served = start(args).map_err(failed).and_then(|(reactor, addr)| {
        print(&format!("simulated provider on http://{addr} (stats at /stats, last request at /last)\n"))?;
        reactor.run().map(drop).map_err(failed)
    });
    served.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn start(args: &ProviderArgs) -> io::Result<(Reactor<Simulator>, SocketAddr)> {
    // Benchmarks need many connections; fewer descriptors still work.
    let _ = listen::raise_descriptor_limit();
    let listener = listen::bind(args.listen, false)?;
    let addr = listener.local_addr()?;
    let settings = SimulatorSettings {
        pace: args.pace,
        key: args.key.clone(),
        models: args.model.clone(),
        limits: args.limit.clone(),
    };
    let mut reactor = reactor(listener, settings)?;
    reactor.watch(Signals::catch()?)?;
    Ok((reactor, addr))
}

/// An event loop with a provider on `listener`, ready to run on a separate thread; for `demo` and tests.
pub fn reactor(listener: TcpListener, settings: SimulatorSettings) -> io::Result<Reactor<Simulator>> {
    let setup = ReactorSetup { listeners: vec![listener], ..ReactorSetup::default() };
    Reactor::new(Simulator::new(settings), setup, |orders| orders)
}
