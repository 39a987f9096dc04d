//! The scripted provider's end of a connection, plain or TLS, with every way to end it; and the listeners that accept
//! connections for a script.

use super::answers::Shape;
use super::client::find;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of every wait of the provider.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Kernel buffer size of a provider's connection. By default the kernel uses many megabytes per connection for a
/// provider that does not read, or that sends without end, and once this memory is used up every connection of the
/// machine suffers.
const KERNEL_BUFFER: usize = 64 * 1024;

/// The provider's end of a connection.
pub enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Wire {
    pub fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(both) => &both.sock,
        }
    }

    /// Sends all of `bytes`; an error means that the gateway has closed the connection.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Plain(socket) => socket.write_all(bytes),
            Wire::Tls(both) => both.write_all(bytes).and_then(|()| both.flush()),
        }
    }

    /// Works like [`Wire::try_send`], for scripts that ignore errors.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.try_send(bytes.as_ref());
    }

    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Wire::Plain(socket) => socket.read(block),
                Wire::Tls(both) => both.read(block),
            };
            // The kernel does not restart a read with a timeout after the process was stopped.
            if !read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                return read;
            }
        }
    }

    /// Sends a FIN, preceded by close_notify over TLS. Then waits until the gateway closes, so that no reset is sent.
    pub fn fin(&mut self) {
        if let Wire::Tls(both) = self {
            both.conn.send_close_notify();
            let _ = both.flush();
        }
        self.fin_without_notify();
    }

    /// Sends a FIN without close_notify.
    pub fn fin_without_notify(&mut self) {
        let _ = self.socket().shutdown(Shutdown::Write);
        self.wait_for_end();
    }

    /// Makes the connection end with an RST.
    pub fn reset(&mut self) {
        let _ = SockRef::from(self.socket()).set_linger(Some(Duration::ZERO));
    }

    /// Reads and discards until the gateway has closed the connection.
    pub fn wait_for_end(&mut self) {
        let mut block = [0; 64 * 1024];
        while matches!(self.read(&mut block), Ok(count) if count > 0) {}
    }

    /// Sends nothing for this time, or until the gateway closes.
    pub fn stall(&mut self, time: Duration) {
        let _ = self.socket().set_read_timeout(Some(time));
        self.wait_for_end();
        let _ = self.socket().set_read_timeout(Some(TIMEOUT));
    }
}

/// A request, with the parts that a script needs.
pub struct Asked {
    pub shape: Shape,
    pub stream: bool,
    /// Text after `#fault` up to the slash. The kind of the answer follows it.
    pub script: String,
    /// Bytes of the body that have not been read.
    pub left: usize,
}

impl Wire {
    /// Reads the next request. The body is read completely unless the script's name begins with `early`.
    pub fn request(&mut self) -> Option<Asked> {
        let mut got = Vec::new();
        let mut block = [0; 64 * 1024];
        loop {
            if let Some(asked) = parse(&got) {
                return Some(asked);
            }
            match self.read(&mut block) {
                Ok(count) if count > 0 => got.extend_from_slice(&block[..count]),
                _ => return None,
            }
        }
    }

    /// Reads the rest of the body of `asked`.
    pub fn rest(&mut self, asked: &Asked) {
        let (mut left, mut block) = (asked.left, [0; 64 * 1024]);
        while left > 0 {
            let most = left.min(block.len());
            match self.read(&mut block[..most]) {
                Ok(count) if count > 0 => left -= count,
                _ => return,
            }
        }
    }
}

fn parse(got: &[u8]) -> Option<Asked> {
    let end = find(got, b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&got[..end]).unwrap();
    let shape = Shape::ALL.into_iter().find(|shape| head.starts_with(&format!("POST {} ", shape.path())))?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let length: usize = length.parse().unwrap();
    let body = &got[end..];
    let at = find(body, b"#fault ")? + 7;
    let word = body[at..].iter().position(|byte| matches!(byte, b' ' | b'"'))?;
    let script = String::from_utf8(body[at..at + word].to_vec()).unwrap();
    if body.len() < length && !script.starts_with("early") {
        return None;
    }
    let (script, kind) = script.split_once('/')?;
    Some(Asked { shape, stream: kind == "stream", script: script.to_owned(), left: length - body.len().min(length) })
}

/// Creates a CA. Returns its certificate as PEM, and a server configuration with a certificate that it issued for
/// `localhost`.
pub fn authority() -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let secret = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], secret).unwrap();
    (issuer.pem(), Arc::new(config))
}

/// Accepts connections and runs `serve` for each on a separate thread.
pub fn listen(tls: Option<Arc<ServerConfig>>, serve: impl Fn(Wire) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The buffers are small, so that the gateway notices immediately when a provider does not read.
    SockRef::from(&listener).set_recv_buffer_size(KERNEL_BUFFER).unwrap();
    SockRef::from(&listener).set_send_buffer_size(KERNEL_BUFFER).unwrap();
    // The default queue of 128 is too short for a gateway that dials for all of its clients concurrently.
    SockRef::from(&listener).listen(4096).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else { return };
            let (serve, tls) = (serve.clone(), tls.clone());
            std::thread::spawn(move || {
                socket.set_nodelay(true).unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                socket.set_write_timeout(Some(TIMEOUT)).unwrap();
                serve(match tls {
                    None => Wire::Plain(socket),
                    Some(config) => {
                        Wire::Tls(Box::new(StreamOwned::new(ServerConnection::new(config).unwrap(), socket)))
                    }
                });
            });
        }
    });
    at
}
