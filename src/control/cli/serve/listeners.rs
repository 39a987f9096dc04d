//! The listening sockets of a gateway: inherited, or bound as the configuration says. Called at the start.

use crate::io::listen;
use crate::io::machine::explained;
use crate::io::reactor::{ReactorSetup, Security};
use crate::io::upgrade::Inherited;
use crate::policy::config::{AdminListen, Config, Reach};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The sockets a gateway listens on.
pub(crate) struct ServeListeners {
    pub(super) clients: Vec<TcpListener>,
    pub(super) admin: Option<TcpListener>,
    /// Reachability of the admin listener.
    pub(super) door: Option<AdminDoor>,
    /// Channel to the predecessor, which is still serving.
    pub(super) channel: Option<UnixStream>,
}

/// Actual address of the admin listener; it may differ from the configuration if a socket is inherited.
#[derive(Clone, Debug)]
pub(super) struct AdminDoor {
    pub(super) reach: Reach,
    /// Address, or `unix:` and the path.
    pub(super) name: String,
}

impl AdminDoor {
    fn from_listener(listener: &TcpListener) -> Result<AdminDoor, String> {
        let (reach, name) = listen::reach(listener).map_err(|error| format!("cannot use the admin socket: {error}"))?;
        Ok(AdminDoor { reach, name })
    }

    /// Fails if it must not be open with these settings, or if others can reach a Unix socket by now.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        if let Some(path) = self.name.strip_prefix("unix:").map(Path::new).filter(|path| path.exists()) {
            listen::check_private(path).map_err(|error| format!("the admin socket {error}"))?;
        }
        config.server.allows_admin(self.reach, format_args!("the admin socket {}", self.name))
    }
}

impl ServeListeners {
    /// Uses the sockets inherited from systemd or from a predecessor, and binds the others.
    pub(super) fn open(config: &Config, inherited: Inherited) -> Result<ServeListeners, String> {
        let mut clients = inherited.clients;
        if clients.is_empty() {
            clients = ServeListeners::bind_clients(config)?;
        }
        let admin = inherited.admin.map_or_else(|| ServeListeners::bind_admin(config), |admin| Ok(Some(admin)))?;
        ServeListeners::new(clients, admin, inherited.channel, config)
    }

    /// Binds the configured addresses.
    pub(crate) fn bind(config: &Config) -> Result<ServeListeners, String> {
        let clients = ServeListeners::bind_clients(config)?;
        ServeListeners::new(clients, ServeListeners::bind_admin(config)?, None, config)
    }

    fn bind_clients(config: &Config) -> Result<Vec<TcpListener>, String> {
        config.server.listen.iter().map(|addr| bind(addr, "listen", config)).collect()
    }

    fn bind_admin(config: &Config) -> Result<Option<TcpListener>, String> {
        let admin = |place: &AdminListen| match place {
            AdminListen::Address(addr) => bind(addr, "admin_listen", config),
            AdminListen::Unix(path) => {
                listen::bind_unix(path).map_err(|error| format!("cannot listen on {place}: {}", explained(&error)))
            }
        };
        config.server.admin_listen.as_ref().map(admin).transpose()
    }

    /// Creates the listeners. Fails if the admin listener is reachable from other hosts without a token.
    fn new(
        clients: Vec<TcpListener>,
        admin: Option<TcpListener>,
        channel: Option<UnixStream>,
        config: &Config,
    ) -> Result<ServeListeners, String> {
        let door = admin.as_ref().map(AdminDoor::from_listener).transpose()?;
        door.as_ref().map_or(Ok(()), |door| door.check(config))?;
        Ok(ServeListeners { clients, admin, door, channel })
    }

    /// Inputs of the event loop. The listeners for clients come first, then the one for health and metrics, which uses
    /// plain HTTP.
    pub(super) fn with(self, security: Security) -> ReactorSetup {
        let secured = self.clients.len();
        ReactorSetup { listeners: self.clients.into_iter().chain(self.admin).collect(), secured, security }
    }
}

/// Binds an address that the setting `key` names.
fn bind(addr: &SocketAddr, key: &str, config: &Config) -> Result<TcpListener, String> {
    listen::bind(*addr, config.server.reuse_port).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            format!("cannot listen on {addr}: it is in use; is another gateway running? See `{key}` in [server]")
        }
        _ => format!("cannot listen on {addr}: {}", explained(&error)),
    })
}
