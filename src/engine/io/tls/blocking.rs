//! Connection for commands, which may block: plain or encrypted, with the same table of peers as the event loop's. Must
//! never be used by the event loop.

use super::{Security, invalid, is_authority, provider, roots_of};
use crate::base::time::Mono;
use crate::io::clock::Clock;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Socket with a deadline, independent of the bytes that arrive.
pub struct Bounded {
    tcp: TcpStream,
    clock: Clock,
    until: Mono,
}

impl Bounded {
    /// Sets the deadline to `within` from now.
    pub fn new(tcp: TcpStream, within: Duration) -> Bounded {
        let clock = Clock::new();
        let until = clock.mono().after(within);
        Bounded { tcp, clock, until }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.micros_since(self.clock.mono()) {
            0 => Err(ErrorKind::TimedOut.into()),
            micros => Ok(Some(Duration::from_micros(micros))),
        }
    }
}

impl Read for Bounded {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(self.left()?)?;
        self.tcp.read(buf)
    }
}

impl Write for Bounded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(self.left()?)?;
        self.tcp.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// A blocking connection.
pub enum Blocking {
    /// Plain TCP.
    Plain(Bounded),
    /// TLS over it, its handshake done.
    Secure(Box<StreamOwned<ClientConnection, Bounded>>),
}

/// Reason that TLS fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The server does not use TLS.
    NotTls,
    /// No trusted authority has signed the certificate.
    UnknownIssuer,
    /// The certificate has expired, or is not valid yet.
    OutOfTime,
    /// The certificate is for a different host.
    OtherName,
    /// The certificate is that of an authority.
    Authority,
    /// Any other reason.
    Other(String),
}

impl Blocking {
    /// Makes a TLS handshake with the peer of this number; without a number the connection is plain.
    pub fn new(security: &Security, authority: Option<u32>, tcp: Bounded) -> io::Result<Blocking> {
        let Some(index) = authority else { return Ok(Blocking::Plain(tcp)) };
        let peer = security.peers.0.get(index as usize).ok_or(io::ErrorKind::NotFound)?;
        Blocking::shake(peer.config.clone(), peer.name.clone(), tcp)
    }

    /// Makes a TLS handshake with the server of this name.
    pub fn secure(trust: &Trust, name: &str, tcp: Bounded) -> io::Result<Blocking> {
        let name = ServerName::try_from(name.to_string())
            .map_err(|_| invalid(format!("`{name}` is not a name a certificate can carry")))?;
        Blocking::shake(trust.0.clone(), name, tcp)
    }

    fn shake(config: Arc<ClientConfig>, name: ServerName<'static>, mut tcp: Bounded) -> io::Result<Blocking> {
        let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut tcp)?;
        }
        Ok(Blocking::Secure(Box::new(StreamOwned::new(session, tcp))))
    }
}

/// Authorities that may vouch for a server.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// The authorities of a PEM file, or the public ones.
    pub fn load(ca_file: Option<&Path>) -> io::Result<Trust> {
        let roots = match ca_file {
            Some(path) => roots_of(path, RootCertStore::empty())?,
            None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        };
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| invalid(error.to_string()))?;
        Ok(Trust(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
    }
}

impl Blocking {
    /// Sets the deadline to `within` from now.
    pub fn bound(&mut self, within: Duration) {
        let socket = match self {
            Blocking::Plain(socket) => socket,
            Blocking::Secure(stream) => &mut stream.sock,
        };
        socket.until = socket.clock.mono().after(within);
    }
}

impl Read for Blocking {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Blocking::Plain(stream) => stream.read(buf),
            Blocking::Secure(stream) => stream.read(buf),
        }
    }
}

impl Write for Blocking {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Blocking::Plain(stream) => stream.write(buf),
            Blocking::Secure(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Blocking::Plain(stream) => stream.flush(),
            Blocking::Secure(stream) => stream.flush(),
        }
    }
}

/// Returns the TLS reason of an error; `None` for any other error.
pub fn trouble(error: &io::Error) -> Option<Trouble> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match inner {
        rustls::Error::InvalidMessage(_) => Trouble::NotTls,
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => Trouble::UnknownIssuer,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Trouble::OutOfTime,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Trouble::OutOfTime,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Trouble::OtherName,
            CertificateError::Other(why) if is_authority(why) => Trouble::Authority,
            other => Trouble::Other(other.to_string()),
        },
        other => Trouble::Other(other.to_string()),
    })
}
