//! Owns TLS on both sides: roots and configurations by peer for providers, the certificate for clients, and the session
//! of one encrypted connection.
//!
//! Only this module uses rustls. Called by the reactor (the table of peers) and by `io::transport`. Uses the buffered
//! interface. All plaintext leaves the session at once, since plaintext inside it raises no event.

pub mod blocking;

use super::files;
use super::outcome::{Fill, Sent, Shake};
use crate::base::limits;
use crate::base::seam::Ending;
use mio::net::TcpStream;
use rustix::net::{RecvFlags, recv};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ProducesTickets;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes encrypted on a TLS connection before earlier ones have been sent: one record.
const TLS_UNSENT_MAX: usize = 16 * 1024;
/// Bytes read at a time during a TLS handshake. They may include a client's first request, which then waits.
const TLS_SHAKE_SLICE: usize = 4096;

/// TLS peer: the name that it must prove, and the CAs trusted for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authority {
    /// DNS name or IP address that the peer's certificate must carry.
    pub server_name: String,
    /// PEM file with additional root certificates for this peer; the public roots (webpki-roots) are always trusted.
    pub ca_file: Option<PathBuf>,
    /// True if only an earlier configuration uses it: its file is not read again, and may be gone.
    pub retired: bool,
}

/// TLS data of the event loop; replaced as a whole when the configuration is read again.
#[derive(Clone, Default)]
pub struct Security {
    /// For connections to providers.
    pub(super) peers: TlsPeers,
    /// For clients; `None` for plain HTTP.
    pub(super) identity: Option<Identity>,
}

impl Security {
    /// Reads the certificate files of the peers, and our own certificate chain and key (PEM) if there is one. `before`
    /// is the data in use so far: retired peers and the keys of session tickets are taken from it.
    pub fn load(
        authorities: &[Authority],
        own: Option<(&Path, &Path)>,
        before: Option<&Security>,
    ) -> io::Result<Security> {
        let peers = TlsPeers::load(authorities, before.map(|before| &before.peers))?;
        let known = before.and_then(|before| before.identity.as_ref());
        let identity = own.map(|(cert, key)| Identity::load(cert, key, known)).transpose()?;
        Ok(Security { peers, identity })
    }
}

#[derive(Clone)]
struct Peer {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Table that `Action::Dial::authority` indexes.
#[derive(Clone, Default)]
pub struct TlsPeers(Vec<Peer>);

impl TlsPeers {
    /// Reads the certificate files; an error names the file or the bad name. Peers with the same file share one
    /// configuration, and with it the cache of sessions to resume.
    pub fn load(authorities: &[Authority], before: Option<&TlsPeers>) -> io::Result<TlsPeers> {
        let mut configs: Vec<(Option<&Path>, Arc<ClientConfig>)> = Vec::new();
        let mut peers = Vec::with_capacity(authorities.len());
        for (index, authority) in authorities.iter().enumerate() {
            if let Some(peer) = before.and_then(|before| before.0.get(index)).filter(|_| authority.retired) {
                peers.push(peer.clone());
                continue;
            }
            let ca_file = authority.ca_file.as_deref();
            let known = configs.iter().find(|(file, _)| *file == ca_file).map(|(_, config)| config.clone());
            let config = match known {
                Some(config) => config,
                None => {
                    let config = Arc::new(client_config(ca_file)?);
                    configs.push((ca_file, config.clone()));
                    config
                }
            };
            // An IPv6 address has brackets in a URL, but not in a certificate.
            let bare = authority.server_name.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(bare.to_string())
                .map_err(|_| invalid(format!("`{}` is not a name a certificate can carry", authority.server_name)))?;
            peers.push(Peer { config, name });
        }
        Ok(TlsPeers(peers))
    }

    /// Creates a session with peer number `index`, its ClientHello ready to be written. `None` for an unknown index.
    pub fn session(&self, index: u32) -> Option<Session> {
        let peer = self.0.get(index as usize)?;
        let session = ClientConnection::new(peer.config.clone(), peer.name.clone()).ok()?;
        Some(Session::new(session.into(), false))
    }
}

/// The certificate that Tollgate shows to clients: certificate chain and private key, TLS 1.2 and 1.3, only `http/1.1`.
/// Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<ServerConfig>);

impl Identity {
    /// Reads the PEM files and checks that the key belongs to the certificate; an error names the file. With `before`,
    /// session tickets of the former identity stay valid, so that a renewed certificate costs no client a full
    /// handshake.
    pub fn load(cert: &Path, key: &Path, before: Option<&Identity>) -> io::Result<Identity> {
        let named = |path: &Path, error: &dyn std::fmt::Display| invalid(format!("{}: {error}", path.display()));
        let pem = files::read(cert).map_err(|error| named(cert, &error))?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.map_err(|error| named(cert, &error))?;
        if chain.is_empty() {
            return Err(named(cert, &"no certificate in it"));
        }
        let pem = files::read(key).map_err(|error| named(key, &error))?;
        let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| named(key, &error))?;
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| invalid(error.to_string()))?;
        let built = builder.with_no_client_auth().with_single_cert(chain, secret);
        let whose =
            |error: &rustls::Error| if matches!(error, rustls::Error::InvalidCertificate(_)) { cert } else { key };
        let mut config = built.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                named(key, &format_args!("the private key does not belong to the certificate in {}", cert.display()))
            }
            error => named(whose(&error), &error),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = match before {
            Some(before) => before.0.ticketer.clone(),
            None => ticketer()?,
        };
        // One is enough: a client that opens several connections at once makes full handshakes for the others.
        config.send_tls13_tickets = 1;
        Ok(Identity(Arc::new(config)))
    }

    /// Creates a session for a client that has just connected.
    pub fn session(&self) -> Option<Session> {
        let session = ServerConnection::new(self.0.clone()).ok()?;
        Some(Session::new(session.into(), true))
    }
}

/// Creates encrypted tickets with keys that change by themselves every six hours; nothing is stored per client.
fn ticketer() -> io::Result<Arc<dyn ProducesTickets>> {
    rustls::crypto::ring::Ticketer::new().map_err(|error| invalid(error.to_string()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn invalid(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, message)
}

/// Adds the certificates of a PEM file to `roots`.
fn roots_of(path: &Path, mut roots: RootCertStore) -> io::Result<RootCertStore> {
    let bad = |error: &dyn std::fmt::Display| invalid(format!("{}: {error}", path.display()));
    let pem = files::read(path).map_err(|error| bad(&error))?;
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| bad(&error))?;
        roots.add(certificate).map_err(|error| bad(&error))?;
        count += 1;
    }
    if count == 0 { Err(bad(&"no certificate in it")) } else { Ok(roots) }
}

fn client_config(ca_file: Option<&Path>) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        roots = roots_of(path, roots)?;
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| invalid(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS state of one connection. Boxed by its owner: it is larger than a kilobyte.
pub struct Session {
    tls: Connection,
    /// End of the stream, reported after the plaintext before it.
    over: Option<Ending>,
    /// First bytes of a client, if they arrived together with the end of its handshake.
    early: Vec<u8>,
    /// True if a client has sent nothing yet.
    fresh: bool,
    /// Reason of a failure, for the log; empty if there was none.
    why: &'static str,
}

impl Session {
    /// `fresh`: a client's session, which has received nothing yet.
    fn new(mut tls: Connection, fresh: bool) -> Session {
        tls.set_buffer_limit(Some(TLS_UNSENT_MAX));
        Session { tls, over: None, early: Vec::new(), fresh, why: "" }
    }

    /// Continues the handshake as far as the socket allows; reads at most about `limits::IO_SLICE` bytes. Only few
    /// bytes after the handshake are read with it.
    pub fn shake(&mut self, socket: &mut TcpStream, cipher: &mut [u8]) -> Shake {
        let mut room = limits::IO_SLICE;
        loop {
            let written = self.flush(socket).is_ok();
            if written && !self.tls.is_handshaking() {
                return Shake::Done;
            }
            if self.over.is_some() {
                return Shake::Failed(if self.why.is_empty() { CUT } else { self.why });
            }
            if !written {
                return Shake::Failed(RESET);
            }
            if room == 0 {
                return Shake::More;
            }
            let len = cipher.len().min(room).min(TLS_SHAKE_SLICE);
            match receive(socket, &mut cipher[..len]) {
                Ok(Some(0)) => return Shake::Failed(CUT),
                Err(_) => return Shake::Failed(RESET),
                Ok(None) => return Shake::Going,
                Ok(Some(count)) if std::mem::take(&mut self.fresh) && cipher[0].is_ascii_uppercase() => {
                    return Shake::Plain(count);
                }
                Ok(Some(count)) => {
                    room -= count;
                    let mut early = std::mem::take(&mut self.early);
                    self.take(&cipher[..count], &mut early);
                    // A server sends only responses (HTTP/1.1): bytes before our request are dropped.
                    if matches!(self.tls, Connection::Server(_)) {
                        self.early = early;
                    }
                }
            }
        }
    }

    /// Receives once, at most `cipher.len()` bytes, and decrypts into `plain`, which is emptied first.
    pub fn fill(&mut self, socket: &mut TcpStream, cipher: &mut [u8], plain: &mut Vec<u8>) -> Fill {
        plain.clear();
        if !self.early.is_empty() {
            *plain = std::mem::take(&mut self.early);
            return Fill::Data { len: plain.len(), cost: plain.len(), drained: false };
        }
        if let Some(how) = self.over {
            return Fill::Ended(how);
        }
        let asked = cipher.len();
        let count = match receive(socket, cipher) {
            Ok(Some(count)) => count,
            Ok(None) => return Fill::Blocked,
            Err(_) => return Fill::Ended(Ending::Broken),
        };
        if count == 0 {
            // The stream was cut: a close_notify would have set `over` before.
            self.drain_plaintext(plain);
            self.over = Some(Ending::Broken);
        } else {
            self.take(&cipher[..count], plain);
        }
        self.filled(plain, count, count < asked)
    }

    fn filled(&self, plain: &[u8], cost: usize, drained: bool) -> Fill {
        match self.over {
            Some(how) if plain.is_empty() => Fill::Ended(how),
            over => Fill::Data { len: plain.len(), cost: cost.max(1), drained: drained && over.is_none() },
        }
    }

    /// Passes received bytes to the session in the pieces that it accepts.
    fn take(&mut self, mut input: &[u8], plain: &mut Vec<u8>) {
        while !input.is_empty() && self.over.is_none() {
            let taken = self.tls.read_tls(&mut input);
            let state = self.tls.process_new_packets();
            self.drain_plaintext(plain);
            match (taken, state) {
                (Ok(_), Ok(state)) if state.peer_has_closed() => self.over = Some(Ending::Fin),
                (Ok(count), Ok(_)) if count > 0 => {}
                (_, state) => {
                    self.why = state.err().map_or("", |error| words(&error));
                    self.over = Some(Ending::Broken);
                }
            }
        }
    }

    fn drain_plaintext(&mut self, plain: &mut Vec<u8>) {
        // WouldBlock is the usual end; an end without close_notify is an error too, but the socket has reported it.
        let _ = self.tls.reader().read_to_end(plain);
    }

    /// Encrypts the part of `data` that fits, and writes it. `taken` bytes have been taken from the core; some may
    /// still wait inside the session, see [`Session::owes`].
    pub fn send(&mut self, socket: &mut TcpStream, data: &[u8]) -> io::Result<Sent> {
        if !self.flush(socket)? {
            return Ok(Sent { taken: 0, blocked: true });
        }
        let taken = self.tls.writer().write(data)?;
        let blocked = !self.flush(socket)?;
        Ok(Sent { taken, blocked })
    }

    /// True if encrypted bytes wait to be written.
    pub fn owes(&self) -> bool {
        self.tls.wants_write()
    }

    /// Queues a close_notify and writes what it can; true if no bytes are left to write.
    pub fn part(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        self.tls.send_close_notify();
        self.flush(socket)
    }

    /// Writes encrypted bytes until none are left (true) or the socket takes no more (false).
    pub fn flush(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns the kind of end that a bare FIN of the socket means.
    pub fn ending_at_fin(&self) -> Ending {
        self.over.unwrap_or(Ending::Broken)
    }
}

/// Error texts for a handshake that the peer has ended.
const CUT: &str = "closed in the handshake";
const RESET: &str = "reset in the handshake";

/// Returns the reason of a failure, by rustls' name for it if an operator can look that up.
fn words(error: &rustls::Error) -> &'static str {
    use rustls::{CertificateError, Error};
    match error {
        Error::InvalidCertificate(error) => match error {
            CertificateError::UnknownIssuer => "UnknownIssuer",
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "Expired by this host's clock",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "NotValidYet by this host's clock"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => "NotValidForName",
            CertificateError::Revoked => "Revoked",
            CertificateError::BadSignature => "BadSignature",
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => "InvalidPurpose",
            CertificateError::BadEncoding => "BadEncoding",
            CertificateError::Other(why) if is_authority(why) => "CaUsedAsEndEntity",
            _ => "InvalidCertificate",
        },
        Error::InvalidMessage(_) => "the peer does not speak TLS",
        Error::AlertReceived(alert) => alert_words(*alert),
        Error::PeerIncompatible(_) => "no version or cipher in common",
        Error::NoApplicationProtocol => "no http/1.1",
        Error::PeerMisbehaved(_) | Error::InappropriateMessage { .. } => "a broken handshake",
        _ => "failed",
    }
}

/// True if a certificate is refused because it is an authority's (`CA:TRUE`) instead of a server's own: rustls has no
/// error for it, and passes on webpki's.
fn is_authority(why: &rustls::OtherError) -> bool {
    why.0.to_string() == "CaUsedAsEndEntity"
}

fn alert_words(alert: rustls::AlertDescription) -> &'static str {
    use rustls::AlertDescription as Alert;
    match alert {
        Alert::HandshakeFailure => "alert HandshakeFailure",
        Alert::ProtocolVersion => "alert ProtocolVersion",
        Alert::UnrecognisedName => "alert UnrecognisedName",
        Alert::InternalError => "alert InternalError",
        Alert::AccessDenied => "alert AccessDenied",
        Alert::CertificateRequired => "alert CertificateRequired",
        Alert::NoApplicationProtocol => "alert NoApplicationProtocol",
        _ => "an alert",
    }
}

/// Calls `recv` once; `None` if it would block.
#[inline]
pub(super) fn receive(socket: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match socket.try_io(|| Ok(recv(socket, &mut *into, RecvFlags::empty())?)) {
            Ok((count, _)) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
