//! TLS for clients.

use super::rig::{Gate, Rig, chat, get, read_to_end, read_until, write_certificate};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns a rig with TLS whose gateway has this `header_timeout`, which includes the TLS handshake.
fn with_header_timeout(name: &str, header_timeout: &str) -> Rig {
    let rig = Rig::new(name, "");
    write_certificate(&rig.folder);
    let tls = "tls = { cert = \"cert.pem\", key = \"key.pem\" }";
    rig.configure(&format!("{tls}\nheader_timeout = \"{header_timeout}\"\n"), &rig.models("small"), "");
    rig
}

pub fn rig(name: &str) -> Rig {
    with_header_timeout(name, "60s")
}

fn connect(rig: &Rig, gate: &Gate) -> StreamOwned<ClientConnection, TcpStream> {
    over(rig, gate.connect())
}

/// Starts TLS on an existing connection.
pub fn over(rig: &Rig, stream: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(rig.path("cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from("gate.test").unwrap()).unwrap();
    StreamOwned::new(session, stream)
}

#[test]
fn clients_use_tls_while_the_admin_listener_stays_plain() {
    let rig = rig("tls-answers");
    let gate = rig.start();
    let mut client = connect(&rig, &gate);
    client.write_all(chat(&rig.key, "small", false, "one").as_bytes()).unwrap();
    assert!(read_until(&mut client, "\"usage\"").starts_with("HTTP/1.1 200"));
    let mut client = connect(&rig, &gate);
    client.write_all(chat(&rig.key, "small", true, "#sim tokens=2000").as_bytes()).unwrap();
    let stream = read_until(&mut client, "[DONE]");
    assert!(stream.matches("chat.completion.chunk").count() > 1000);
    assert_eq!(gate.metric("tollgate_open_reservations"), 0);
}

#[test]
fn client_that_closes_tls_during_a_stream_has_left() {
    let rig = rig("tls-leaves");
    let mut gate = rig.start();
    for (number, fin) in [false, true].into_iter().enumerate() {
        let mut client = connect(&rig, &gate);
        client.write_all(chat(&rig.key, "small", true, "#sim tokens=100000 pace=20").as_bytes()).unwrap();
        read_until(&mut client, "chunk");
        client.conn.send_close_notify();
        client.flush().unwrap();
        if fin {
            // The gateway may have closed the connection already.
            let _ = client.sock.shutdown(std::net::Shutdown::Write);
        }
        gate.until("the departure is logged", |gate| gate.log().matches("\"status\":499").count() == number + 1);
        gate.until("its upstream is closed", |gate| gate.metric("tollgate_upstream_connections") == 0);
    }
    // The connection ends without a close_notify.
    let mut client = connect(&rig, &gate);
    client.write_all(chat(&rig.key, "small", true, "#sim tokens=100000 pace=20").as_bytes()).unwrap();
    read_until(&mut client, "chunk");
    drop(client.sock);
    gate.until("the departure is logged", |gate| gate.log().matches("\"status\":499").count() == 3);
    gate.logged("\"source\":\"");
}

#[test]
fn unfinished_handshake_ends_at_the_header_timeout() {
    let rig = with_header_timeout("tls-slow", "1s");
    let gate = rig.start();
    // Longer than the configured second, and shorter than the default of ten seconds.
    let cut = Duration::from_millis(990)..Duration::from_secs(9);
    for said in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"] {
        let (began, mut client) = (Instant::now(), gate.connect());
        client.write_all(said).unwrap();
        assert_eq!(read_to_end(&mut client), "");
        assert!(cut.contains(&began.elapsed()), "{:?}", began.elapsed());
    }
    // The timeout also applies to silence after the handshake.
    let (began, mut client) = (Instant::now(), connect(&rig, &gate));
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock).unwrap();
    }
    assert_eq!(read_to_end(&mut client), "");
    assert!(cut.contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[test]
fn openssl_and_curl_get_an_answer() {
    let rig = rig("tls-openssl");
    let gate = rig.start();
    for version in ["-tls1_2", "-tls1_3"] {
        let to = gate.clients.to_string();
        let mut openssl = Command::new("openssl")
            .args(["s_client", "-connect", &to, version, "-alpn", "h2,http/1.1", "-servername", "gate.test"])
            .args(["-verify_return_error", "-verify_hostname", "gate.test", "-ign_eof", "-CAfile"])
            .arg(rig.path("cert.pem"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        openssl.stdin.take().unwrap().write_all(get(&rig.key, "/v1/models").as_bytes()).unwrap();
        let said = String::from_utf8_lossy(&openssl.wait_with_output().unwrap().stdout).into_owned();
        assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
        assert!(said.contains("HTTP/1.1 200 OK") && said.contains("\"id\":\"small\""), "{said}");
    }
    let resolve = format!("gate.test:{}:127.0.0.1", gate.clients.port());
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--resolve", &resolve, "--cacert"])
        .arg(rig.path("cert.pem"))
        .args(["-H", &format!("authorization: Bearer {}", rig.key)])
        .arg(format!("https://gate.test:{}/v1/quota", gate.clients.port()))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"object\":\"quota\""), "{output:?}");
}

#[test]
fn hundred_concurrent_handshakes_do_not_stop_streams() {
    let rig = rig("tls-many");
    let gate = rig.start();
    let mut stream = connect(&rig, &gate);
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=300 pace=100").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let mut client = connect(&rig, &gate);
                client.write_all(get(&rig.key, "/v1/models").as_bytes()).unwrap();
                assert!(read_to_end(&mut client).starts_with("HTTP/1.1 200"));
            });
        }
    });
    assert!(read_until(&mut stream, "[DONE]").contains("\"finish_reason\":\"stop\""));
}

#[test]
fn key_that_does_not_match_its_certificate_is_refused() {
    let rig = rig("tls-wrong");
    let key = std::fs::read(rig.path("key.pem")).unwrap();
    write_certificate(&rig.folder);
    std::fs::write(rig.path("key.pem"), key).unwrap();
    for command in ["serve", "check"] {
        let output = rig.command(&[command]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("key.pem"), "{output:?}");
    }
}
