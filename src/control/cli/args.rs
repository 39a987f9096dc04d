//! Arguments that several commands share, or that belong to a command without a definition of its own.

use crate::policy::config::units;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Parses an address.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    units::address(text).ok_or_else(|| "expected an address with a port, such as 127.0.0.1:8080 or :8080".to_string())
}

/// Configuration options.
#[derive(Args, Debug, Clone, Default)]
pub struct ConfigArg {
    /// Configuration file [default: $TOLLGATE_CONFIG, then the text in $TOLLGATE_CONFIG_TOML, then ./tollgate.toml,
    /// then /etc/tollgate/tollgate.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `tollgate serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// `tollgate demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Address for clients [default: 127.0.0.1:8080, or a free port if that is taken]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub listen: Option<SocketAddr>,
    /// Address of the dashboard, the admin API, health and metrics [default: 127.0.0.1:9090, or a free port if that is
    /// taken]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub admin_listen: Option<SocketAddr>,
    /// Tokens per second of each response; 0 sends them immediately
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub pace: u64,
    /// Print a command for every API, instead of one
    #[arg(long)]
    pub examples: bool,
}

/// `tollgate check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print the effective configuration: secrets masked, defaults filled in except those that depend on the provider
    #[arg(long)]
    pub print: bool,
    /// Connect to every provider with its credential, and to a shared ledger, and report what fails
    #[arg(long, conflicts_with = "print")]
    pub connect: bool,
    /// Print the result as JSON; not together with --print or --connect
    #[arg(long, conflicts_with_all = ["print", "connect"])]
    pub json: bool,
}

/// `tollgate models`.
#[derive(Args, Debug)]
pub struct ModelsArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// List the targets of the models with their prices and limits
    #[arg(long)]
    pub targets: bool,
    /// Explain each property of the targets of this model: its value, and the setting or the row that it comes from
    #[arg(long, value_name = "MODEL", conflicts_with = "targets")]
    pub why: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}
