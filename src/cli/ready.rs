//! `tollgate ready`: whether a running gateway admits requests, by the exit code; for health checks of containers,
//! which have no curl.

use super::args::{ConfigArg, parse_address};
use super::load::{self, Secrets};
use super::output::{Failure, print};
use super::probe::{NoAnswer, Place, ask};
use crate::io::tls::Security;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// How long the gateway may take to be reached, and as long again to answer: together less than the 5 s that the
/// example for Docker Compose gives a health check.
const PATIENCE: Duration = Duration::from_secs(2);

/// `tollgate ready`.
#[derive(clap::Args, Debug)]
pub struct ReadyArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// The gateway's admin listener [default: admin_listen of the configuration]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub admin: Option<SocketAddr>,
}

/// Asks `/readyz`. Exit code 0 if requests are admitted, else 1.
pub fn run(args: &ReadyArgs) -> Result<(), Failure> {
    let address = match args.admin {
        Some(address) => address,
        None => load::load(&args.config, Secrets::Optional)?
            .server
            .admin_listen
            .ok_or_else(|| Failure::failed("the configuration has no admin_listen; name it by --admin ADDR"))?,
    };
    let address = reachable(address);
    let place = Place {
        addresses: &[address],
        host: "localhost",
        port: address.port(),
        tunnel: None,
        tls: (&Security::default(), None),
        connect: PATIENCE,
        answer: PATIENCE,
    };
    match ask(&place, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n") {
        Ok(answer) if answer.status == 200 => print("ready\n"),
        Ok(answer) => Err(Failure::failed(format!("not ready: {address} says {}", answer.status))),
        Err(NoAnswer::Refused(_)) => Err(Failure::failed(format!("not ready: nothing listens at {address}"))),
        Err(_) => Err(Failure::failed(format!("not ready: no answer from {address}"))),
    }
}

/// What stands for all addresses of a host is asked at its loopback one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, address.port())
}
