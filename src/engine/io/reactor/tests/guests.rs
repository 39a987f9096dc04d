//! TLS for clients: the loop shows a certificate that the test has created.

use super::*;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, StreamOwned};
use std::path::{Path, PathBuf};

type Secured = StreamOwned<ClientConnection, StdStream>;

/// A self-signed certificate for `gate.test` and its key, in a folder that is removed when this is dropped.
struct Card {
    folder: PathBuf,
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Card {
    fn new(name: &str) -> Card {
        let folder = std::env::temp_dir().join(format!("tollgate-guests-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let card = Card { folder };
        card.renew();
        card
    }

    /// Writes another key and certificate into the same files.
    fn renew(&self) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["gate.test".to_string()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(self.cert(), certificate.pem()).unwrap();
        std::fs::write(self.key(), key.serialize_pem()).unwrap();
    }

    fn cert(&self) -> PathBuf {
        self.folder.join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.join("key.pem")
    }

    fn security(&self, before: Option<&Security>) -> Security {
        Security::load(&[], Some((&self.cert(), &self.key())), before).unwrap()
    }

    /// Returns the configuration of a client that trusts the present certificate and supports `versions`.
    fn trusting(&self, versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.cert()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

fn session(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config.clone(), ServerName::try_from("gate.test").unwrap()).unwrap()
}

/// Waits for the next accepted client, and ignores events of earlier ones.
fn accepted(world: &World) -> Conn {
    loop {
        if let Heard::Accepted(conn) = world.next() {
            return conn;
        }
    }
}

fn connect(world: &World, config: &Arc<ClientConfig>) -> (Secured, Conn) {
    let mut socket = StdStream::connect(world.addr).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let conn = accepted(world);
    let mut session = session(config);
    while session.is_handshaking() {
        session.complete_io(&mut socket).unwrap();
    }
    (StreamOwned::new(session, socket), conn)
}

fn bytes(world: &World, count: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < count {
        match world.next() {
            Heard::Bytes(_, bytes) => got.extend(bytes),
            // Event of an earlier client of the same test.
            Heard::Drained(_) | Heard::Closed(..) => {}
            other => panic!("{other:?} after {} bytes", got.len()),
        }
    }
    got
}

const BOTH: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;

#[test]
fn megabyte_each_way_arrives_over_both_tls_versions() {
    let card = Card::new("hello");
    let world = World::secured(card.security(None));
    for (versions, version) in [
        (&[&rustls::version::TLS12][..], ProtocolVersion::TLSv1_2),
        (&[&rustls::version::TLS13][..], ProtocolVersion::TLSv1_3),
    ] {
        let (mut client, conn) = connect(&world, &card.trusting(versions));
        assert_eq!(client.conn.protocol_version(), Some(version));
        assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 247) as u8).collect();
        client.write_all(&data).unwrap();
        assert!(bytes(&world, data.len()) == data);
        world.order(Order::Send(conn, data.clone()));
        let mut back = vec![0; data.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == data);
    }
}

#[test]
fn request_in_the_last_segment_of_the_handshake_is_not_lost() {
    let card = Card::new("early");
    let world = World::secured(card.security(None));
    let mut socket = StdStream::connect(world.addr).unwrap();
    let Heard::Accepted(conn) = world.next() else { panic!("not accepted") };
    let mut session = session(&card.trusting(&[&rustls::version::TLS13]));
    session.write_tls(&mut socket).unwrap();
    let mut last = Vec::new();
    while session.is_handshaking() {
        session.read_tls(&mut socket).unwrap();
        session.process_new_packets().unwrap();
    }
    session.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    while session.wants_write() {
        session.write_tls(&mut last).unwrap();
    }
    socket.write_all(&last).unwrap();
    assert_eq!(world.next(), Heard::Bytes(conn, b"GET / HTTP/1.1\r\n\r\n".to_vec()));
}

#[test]
fn second_connection_resumes_even_after_a_renewed_certificate() {
    let card = Card::new("resume");
    let security = card.security(None);
    let world = World::secured(security.clone());
    for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
        let config = card.trusting(versions);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let (mut client, conn) = connect(&world, &config);
            assert_eq!(client.conn.handshake_kind(), Some(kind));
            // The ticket precedes these bytes, so it has been read with them.
            world.order(Order::Send(conn, b"x".to_vec()));
            client.read_exact(&mut [0]).unwrap();
        }
    }
    let (old, config) = (card.trusting(BOTH), card.trusting(BOTH));
    let (mut client, conn) = connect(&world, &config);
    world.order(Order::Send(conn, b"x".to_vec()));
    client.read_exact(&mut [0]).unwrap();
    card.renew();
    let renewed = Box::new(card.security(Some(&security)));
    assert!(world.mailbox.send(ReactorMessage::Security(renewed)).is_ok());
    // A new client needs the new certificate, a client with a ticket needs none, and a connected client stays
    // connected.
    let (fresh, _) = connect(&world, &card.trusting(BOTH));
    assert_eq!(fresh.conn.handshake_kind(), Some(HandshakeKind::Full));
    let (again, _) = connect(&world, &config);
    assert_eq!(again.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    let mut socket = StdStream::connect(world.addr).unwrap();
    accepted(&world);
    let mut refusing = session(&old);
    while refusing.is_handshaking() {
        if refusing.complete_io(&mut socket).is_err() {
            break;
        }
    }
    assert!(refusing.is_handshaking(), "the old certificate was used");
    client.write_all(b"still here").unwrap();
    loop {
        match world.next() {
            Heard::Bytes(_, bytes) => break assert_eq!(bytes, b"still here"),
            Heard::Closed(..) | Heard::Drained(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn close_notify_is_a_proper_end_and_a_cut_is_broken() {
    let card = Card::new("ends");
    let world = World::secured(card.security(None));
    for (notify, fin, how) in [(true, false, Ending::Fin), (true, true, Ending::Fin), (false, true, Ending::Broken)] {
        let (mut client, conn) = connect(&world, &card.trusting(BOTH));
        if notify {
            client.conn.send_close_notify();
            client.flush().unwrap();
        }
        if fin {
            client.sock.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert_eq!(world.next(), Heard::Closed(conn, how), "{notify} {fin}");
        world.close(conn, Shut::Abort);
    }
}

#[test]
fn plain_http_client_on_a_tls_listener_gets_an_answer() {
    let card = Card::new("plain");
    let world = World::secured(card.security(None));
    for said in [&b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"[..], b"\x16\x03\x01\xff\xff", b""] {
        let mut socket = StdStream::connect(world.addr).unwrap();
        let Heard::Accepted(conn) = world.next() else { panic!("not accepted") };
        socket.write_all(said).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(world.next(), Heard::Closed(conn, Ending::Broken));
    }
}

#[test]
fn wrong_key_and_file_without_a_key_are_named() {
    let (card, other) = (Card::new("one"), Card::new("other"));
    let load = |cert: &Path, key: &Path| Security::load(&[], Some((cert, key)), None).err().unwrap().to_string();
    let text = load(&card.cert(), &other.key());
    assert!(text.starts_with(&other.key().display().to_string()), "{text}");
    let text = load(&card.key(), &card.key());
    assert!(text.ends_with("no certificate in it"), "{text}");
    let text = load(&card.cert(), &card.cert());
    assert!(text.starts_with(&card.cert().display().to_string()), "{text}");
    let text = load(Path::new("/nowhere/cert.pem"), &card.key());
    assert!(text.starts_with("/nowhere/cert.pem: "), "{text}");
}
