//! TLS for providers, with a CA that the test creates.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};
use std::path::PathBuf;

type Secured = StreamOwned<ServerConnection, StdStream>;

/// A private CA, its file, and a server with certificates that it issued for `provider.test` and 127.0.0.1.
struct Pki {
    file: PathBuf,
    config: Arc<ServerConfig>,
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn pki(name: &str) -> Pki {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["provider.test".to_string(), "127.0.0.1".to_string()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let file = std::env::temp_dir().join(format!("tollgate-{}-{name}.pem", std::process::id()));
    std::fs::write(&file, ca_pem).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Pki { file, config: Arc::new(config) }
}

impl Pki {
    fn authority(&self, name: &str) -> Vec<Authority> {
        vec![Authority { server_name: name.into(), ca_file: Some(self.file.clone()), retired: false }]
    }

    /// Lets `world` dial a server and performs the handshake. The world's report about it is not read yet.
    fn dial(&self, world: &World, slot: u32) -> (io::Result<Secured>, Conn) {
        let (mut socket, conn) = dial(world, slot);
        let mut session = ServerConnection::new(self.config.clone()).unwrap();
        while session.is_handshaking() {
            if let Err(error) = session.complete_io(&mut socket) {
                return (Err(error), conn);
            }
        }
        (Ok(StreamOwned::new(session, socket)), conn)
    }

    fn connect(&self, world: &World, slot: u32) -> (Secured, Conn) {
        let (secured, conn) = self.dial(world, slot);
        assert_eq!(world.next(), Heard::Reply(Reply::Dialed(conn)));
        (secured.unwrap(), conn)
    }
}

fn dial(world: &World, slot: u32) -> (StdStream, Conn) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = Conn { side: Side::Upstream, slot, generation: 0 };
    world.order(Order::Act(Action::Dial {
        conn,
        addr: listener.local_addr().unwrap(),
        authority: Some(0),
        tunnel: None,
    }));
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    (socket, conn)
}

fn bytes(world: &World, count: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < count {
        match world.next() {
            Heard::Bytes(_, bytes) => got.extend(bytes),
            Heard::Drained(_) => {}
            other => panic!("{other:?} after {} bytes", got.len()),
        }
    }
    got
}

#[test]
fn dial_is_reported_after_the_handshake_with_http11() {
    let pki = pki("hello");
    let world = World::with(pki.authority("provider.test"));
    let (mut server, conn) = pki.connect(&world, 0);
    assert_eq!(server.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    world.order(Order::Send(conn, b"GET / HTTP/1.1\r\n\r\n".to_vec()));
    let mut request = [0; 18];
    server.read_exact(&mut request).unwrap();
    assert_eq!(&request, b"GET / HTTP/1.1\r\n\r\n");
    server.write_all(b"HTTP/1.1 200 OK\r\n").unwrap();
    assert_eq!(bytes(&world, 17), b"HTTP/1.1 200 OK\r\n");
}

#[test]
fn finished_tls_connection_sends_close_notify_and_still_reads() {
    let pki = pki("finish");
    let world = World::with(pki.authority("provider.test"));
    let (mut server, conn) = pki.connect(&world, 0);
    world.order(Order::Send(conn, b"the last word".to_vec()));
    assert_eq!(world.next(), Heard::Drained(conn));
    world.order(Order::Act(Action::Finish(conn)));
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"the last word");
    server.write_all(b"more").unwrap();
    assert_eq!(bytes(&world, 4), b"more");
    world.close(conn, Shut::Clean);
}

#[test]
fn megabyte_each_way_arrives_complete() {
    let pki = pki("large");
    let world = World::with(pki.authority("127.0.0.1"));
    let (mut server, conn) = pki.connect(&world, 0);
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 247) as u8).collect();
    world.order(Order::Send(conn, data.clone()));
    let mut up = vec![0; data.len()];
    server.read_exact(&mut up).unwrap();
    assert!(up == data);
    let copy = data.clone();
    let writer = std::thread::spawn(move || {
        server.write_all(&copy).unwrap();
        server
    });
    assert!(bytes(&world, data.len()) == data);
    drop(writer.join().unwrap());
}

#[test]
fn back_pressure_over_tls_loses_nothing() {
    let pki = pki("pressure");
    let world = World::with(pki.authority("provider.test"));
    let (mut server, _) = pki.connect(&world, 0);
    world.want(false);
    let writer = std::thread::spawn(move || {
        server.write_all(&vec![b'x'; 2_000_000]).unwrap();
        server.conn.send_close_notify();
        server.flush().unwrap();
    });
    assert!(world.is_silent(100));
    world.order(Order::Want(true));
    assert_eq!(bytes(&world, 2_000_000).len(), 2_000_000);
    assert!(matches!(world.next(), Heard::Closed(_, Ending::Fin)));
    writer.join().unwrap();
}

#[test]
fn close_notify_is_a_proper_end_but_a_bare_fin_is_not() {
    let pki = pki("ends");
    let world = World::with(pki.authority("provider.test"));
    for (slot, notify, how) in [(0, true, Ending::Fin), (1, false, Ending::Broken)] {
        let (mut server, conn) = pki.connect(&world, slot);
        server.write_all(b"last words").unwrap();
        if notify {
            server.conn.send_close_notify();
        }
        server.flush().unwrap();
        drop(server);
        assert_eq!(world.next(), Heard::Bytes(conn, b"last words".to_vec()));
        assert_eq!(world.next(), Heard::Closed(conn, how));
    }
}

#[test]
fn clean_close_sends_close_notify_but_an_abort_does_not() {
    let pki = pki("goodbye");
    let world = World::with(pki.authority("provider.test"));
    let (mut server, conn) = pki.connect(&world, 0);
    world.close(conn, Shut::Clean);
    assert_eq!(server.read_to_end(&mut Vec::new()).unwrap(), 0);
    let (mut server, conn) = pki.connect(&world, 1);
    world.close(conn, Shut::Abort);
    assert_eq!(server.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn clean_close_waits_for_a_slow_reader() {
    let pki = pki("parting");
    let world = World::with(pki.authority("provider.test"));
    let (mut server, conn) = pki.connect(&world, 0);
    world.order(Order::Send(conn, vec![b'x'; 8_000_000]));
    let mut up = vec![0; 7_900_000];
    server.read_exact(&mut up).unwrap();
    assert_eq!(world.next(), Heard::Drained(conn));
    world.close(conn, Shut::Clean);
    std::thread::sleep(Duration::from_millis(100));
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 100_000);
}

#[test]
fn a_wrong_name_an_unknown_authority_and_a_plain_server_fail_the_handshake() {
    let (pki, other) = (pki("right"), super::tls::pki("other"));
    // Both CAs have the same name, so that only the signature is wrong.
    for (authority, why) in
        [(pki.authority("elsewhere.test"), "NotValidForName"), (other.authority("provider.test"), "BadSignature")]
    {
        let world = World::with(authority);
        let (secured, conn) = pki.dial(&world, 0);
        assert_eq!(world.next(), Heard::Reply(Reply::DialFailed(conn, DialError::Tls(why))));
        let failed = secured.and_then(|mut server| server.read(&mut [0; 1]));
        assert!(failed.is_err(), "the server must receive an alert");
    }
    let world = World::with(pki.authority("provider.test"));
    let (mut plain, conn) = dial(&world, 0);
    plain.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let why = DialError::Tls("the peer does not speak TLS");
    assert_eq!(world.next(), Heard::Reply(Reply::DialFailed(conn, why)));
    // Closed or reset, depending on when the first bytes arrive.
    let (plain, conn) = dial(&world, 1);
    drop(plain);
    let Heard::Reply(Reply::DialFailed(failed, DialError::Tls(why))) = world.next() else { panic!() };
    assert!(failed == conn && why.ends_with("in the handshake"), "{why}");
}

#[test]
fn a_second_connection_resumes_the_session_of_the_first() {
    let pki = pki("resume");
    let world = World::with(pki.authority("provider.test"));
    let mut open = Vec::new();
    for (slot, kind) in [(0, HandshakeKind::Full), (1, HandshakeKind::Resumed)] {
        let (mut server, conn) = pki.connect(&world, slot);
        assert_eq!(server.conn.handshake_kind(), Some(kind));
        // The ticket precedes these bytes, so it has been read when they are delivered.
        server.write_all(b"x").unwrap();
        assert_eq!(world.next(), Heard::Bytes(conn, b"x".to_vec()));
        open.push(server);
    }
}

#[test]
fn bad_authority_is_named_when_the_loop_is_created() {
    let setup = |authority: Authority| Security::load(&[authority], None, None).err().unwrap().to_string();
    let file = std::env::temp_dir().join(format!("tollgate-{}-empty.pem", std::process::id()));
    std::fs::write(&file, "no certificate here").unwrap();
    let authority =
        |name: &str, path: &str| Authority { server_name: name.into(), ca_file: Some(path.into()), retired: false };
    let empty = file.display().to_string();
    assert_eq!(setup(authority("a.test", &empty)), format!("{empty}: no certificate in it"));
    assert!(setup(authority("a.test", "/nowhere/ca.pem")).starts_with("/nowhere/ca.pem: "));
    let bad = Authority { server_name: "not a name".into(), ca_file: None, retired: false };
    assert_eq!(setup(bad), "`not a name` is not a name a certificate can carry");
    std::fs::remove_file(file).unwrap();
}
