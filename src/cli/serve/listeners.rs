//! The listening sockets of a gateway: inherited, or bound as the configuration says. Called at the start.

use crate::io::listen;
use crate::policy::config::{AdminListen, Config};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

/// The sockets a gateway listens on.
pub(crate) struct Listeners {
    pub(super) clients: Vec<TcpListener>,
    pub(super) admin: Option<TcpListener>,
    /// To the process before us, which still serves.
    pub(super) channel: Option<UnixStream>,
}

impl Listeners {
    /// Takes the sockets that were inherited, from systemd or from a predecessor, and binds the others.
    pub(super) fn open(config: &Config) -> Result<Listeners, String> {
        let inherited = crate::io::upgrade::inherited();
        let inherited = inherited.map_err(|error| format!("cannot use the inherited sockets: {error}"))?;
        let Some(inherited) = inherited else { return Listeners::bind(config) };
        let mut rest = config.clone();
        if !inherited.clients.is_empty() {
            rest.server.listen.clear();
        }
        if inherited.admin.is_some() {
            rest.server.admin_listen = None;
        }
        let bound = Listeners::bind(&rest)?;
        Ok(Listeners {
            clients: inherited.clients.into_iter().chain(bound.clients).collect(),
            admin: inherited.admin.or(bound.admin),
            channel: inherited.channel,
        })
    }

    /// Binds what the configuration names.
    pub(crate) fn bind(config: &Config) -> Result<Listeners, String> {
        let bind = |addr: &SocketAddr| {
            listen::bind(*addr, config.server.reuse_port).map_err(|error| format!("cannot listen on {addr}: {error}"))
        };
        let admin = |place: &AdminListen| match place {
            AdminListen::Address(addr) => bind(addr),
            AdminListen::Unix(path) => {
                listen::bind_unix(path).map_err(|error| format!("cannot listen on {place}: {error}"))
            }
        };
        Ok(Listeners {
            clients: config.server.listen.iter().map(bind).collect::<Result<_, _>>()?,
            admin: config.server.admin_listen.as_ref().map(admin).transpose()?,
            channel: None,
        })
    }
}
