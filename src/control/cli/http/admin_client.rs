//! The admin listener of a running gateway, for commands that query it: its address and the token to send.

use super::blocking_http::{HttpResponse, NoAnswer, ServerAddress, ask, follow};
use crate::cli::args::{ConfigArg, parse_address};
use crate::cli::load::{self, Secrets};
use crate::cli::output::Failure;
use crate::io::tls::Security;
use crate::policy::config::{AdminListen, Server};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Maximum time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// Timeout for a stream of events: practically unlimited.
const FOR_EVER: Duration = Duration::from_secs(366 * 86_400);

/// Gateway options.
#[derive(clap::Args, Debug)]
pub struct AdminArg {
    /// Admin listener of the gateway, an address or unix:PATH [default: admin_listen of the configuration]
    #[arg(long, value_name = "ADDR", value_parser = parse)]
    pub admin: Option<AdminListen>,
}

/// Gateway options, and permission to send it the token.
#[derive(clap::Args, Debug)]
pub struct AskArg {
    /// Address options.
    #[command(flatten)]
    pub at: AdminArg,
    /// Send the configuration's admin_token to --admin ADDR, even if that is not its admin_listen
    #[arg(long, requires = "admin")]
    pub send_token: bool,
}

fn parse(text: &str) -> Result<AdminListen, String> {
    match text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        Some(path) => Ok(AdminListen::Unix(path.into())),
        None => parse_address(text).map(AdminListen::Address),
    }
}

/// An admin listener.
#[derive(Clone)]
pub(crate) struct Listener {
    place: AdminListen,
    /// The read token, if it is to be sent.
    pub(crate) token: Option<String>,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl Listener {
    /// The listener named on the command line, otherwise that of the configuration.
    pub(crate) fn find(named: &AdminArg, config: &ConfigArg) -> Result<Listener, Failure> {
        let place = match &named.admin {
            Some(place) => Listener { place: place.clone(), token: None },
            None => Listener::configured(&load::load(config, Secrets::Optional)?.server)?,
        };
        Ok(place.reachable())
    }

    /// Like [`find`][Listener::find], with the read token. A listener named on the command line gets the token only if
    /// it is the configuration's own, or with `send_token`: anyone may be listening elsewhere. The write token is never
    /// sent.
    pub(crate) fn with_token(named: &AskArg, config: &ConfigArg) -> Result<Listener, Failure> {
        let own = load::load(config, Secrets::Optional).and_then(|high| Listener::configured(&high.server));
        let own = own.map(Listener::reachable);
        let Some(place) = &named.at.admin else { return own };
        let found = Listener { place: place.clone(), token: None }.reachable();
        let token = own.ok().filter(|own| own.place == found.place || named.send_token).and_then(|own| own.token);
        Ok(Listener { token, ..found })
    }

    fn configured(server: &Server) -> Result<Listener, Failure> {
        let none = || Failure::failed("the configuration has no admin_listen: set it, or use --admin ADDR");
        let place = server.admin_listen.clone().ok_or_else(none)?;
        let token = server.admin_token.as_ref().filter(|token| load::is_known(token));
        let token = token.map(|token| token.expose().to_string());
        Ok(Listener { place, token })
    }

    /// Replaces an unspecified address by the loopback address.
    fn reachable(mut self) -> Listener {
        if let AdminListen::Address(address) = &mut self.place {
            let ip = match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                other => other,
            };
            *address = SocketAddr::new(ip, address.port());
        }
        self
    }

    /// Error for a listener that does not know the paths of an admin listener.
    pub(crate) fn is_for_clients(&self) -> String {
        format!("{self} is not an admin listener (404): use the address in server.admin_listen")
    }

    /// Sends a GET request for a path.
    pub(crate) fn get(&self, path: &str, timeout: Duration) -> Result<HttpResponse, NoAnswer> {
        self.at(timeout, |place| ask(place, &self.request(path)))
    }

    /// Passes the response to a path to `see` as it arrives; returns the status.
    pub(crate) fn follow(&self, path: &str, see: &mut dyn FnMut(&[u8]) -> bool) -> Result<u16, NoAnswer> {
        self.at(FOR_EVER, |place| follow(place, &self.request(path), see))
    }

    fn request(&self, path: &str) -> Vec<u8> {
        let token = self.token.as_ref().map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n").into_bytes()
    }

    fn at<T>(&self, timeout: Duration, call: impl FnOnce(&ServerAddress<'_>) -> T) -> T {
        let (addresses, socket) = match &self.place {
            AdminListen::Address(address) => (vec![*address], None),
            AdminListen::Unix(path) => (Vec::new(), Some(path.as_path())),
        };
        call(&ServerAddress {
            socket,
            addresses: &addresses,
            host: "localhost",
            port: addresses.first().map_or(0, SocketAddr::port),
            tunnel: None,
            tls: (&Security::default(), None),
            connect: CONNECT.min(timeout),
            answer: timeout,
        })
    }
}
