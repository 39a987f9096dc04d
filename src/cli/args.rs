//! Arguments that several commands share, or that belong to a command without a definition of its own.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Which configuration.
#[derive(Args, Debug, Clone, Default)]
pub struct ConfigArg {
    /// Configuration file [default: $TOLLGATE_CONFIG, then ./tollgate.toml, then /etc/tollgate/tollgate.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `tollgate serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// `tollgate demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Address to serve on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address for health and metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,
    /// Tokens per second of every answer; 0 for at once
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub pace: u64,
}

/// `tollgate check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print the effective configuration: every default filled in, secrets masked
    #[arg(long)]
    pub print: bool,
}

/// `tollgate models`.
#[derive(Args, Debug)]
pub struct ModelsArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}
