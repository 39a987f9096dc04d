//! Causes of failures that only sockets show: wrong addresses, and wrong TLS. Transcripts have the others.

use super::client::get;
use super::harness::{Harness, Setup, chat, with};
use super::process::{Folder, free_port, wait_for};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

const CAUSES: &str = include_str!("../../../src/docs/reference/causes.md");

/// Runs `serve` with every connection to a new listener. Returns its address.
fn listen(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(socket));
        }
    });
    at
}

/// Starts a TLS server that answers nothing, with a certificate for `localhost` that expires in the year `until`.
/// Returns its address and its CA as PEM.
fn secured(name: &str, until: i32) -> (SocketAddr, String) {
    secured_by(name, until, IsCa::NoCa)
}

/// Works like [`secured`], with the CA flag of the server's certificate.
fn secured_by(name: &str, until: i32, is_ca: IsCa) -> (SocketAddr, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
    params.is_ca = is_ca;
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let secret = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], secret).unwrap();
    let config = Arc::new(config);
    let at = listen(move |socket| {
        let mut tls = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket);
        let _ = tls.read(&mut [0; 65536]);
        let _ = tls.flush();
    });
    (at, issuer.pem())
}

#[test]
fn wrong_address_or_certificate_is_reported_by_its_cause() {
    let folder = Folder::new();
    let (good, ca) = secured("good", 2096);
    let (expired, expired_ca) = secured("old", 2021);
    let (authority, its_ca) = secured_by("vain", 2096, IsCa::Ca(BasicConstraints::Unconstrained));
    let file = |name: &str, pem: &str| {
        std::fs::write(folder.path().join(name), pem).unwrap();
        format!("ca_file = \"{}\"", folder.path().join(name).display())
    };
    let (ca, expired_ca, its_ca) = (file("ca.pem", &ca), file("old.pem", &expired_ca), file("vain.pem", &its_ca));
    let silent = listen(|mut socket| drop(socket.read_to_end(&mut Vec::new())));
    let (nobody, plain) =
        (free_port(), listen(|mut socket| drop(socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"))));
    // Provider, its `base_url` and another line; then the cause, the metric's label, and the client's status.
    let at = |host: &str, port: u16| format!("https://{host}:{port}/v1");
    let rows = [
        ("gone", format!("http://127.0.0.1:{nobody}/v1"), "", "connect: refused", "connect", 500),
        ("nameless", "http://no-such-host.invalid/v1".to_owned(), "", "dns: no such name", "connect", 500),
        ("plain-port", at("127.0.0.1", plain.port()), "", "tls: the peer does not speak TLS", "tls", 500),
        ("tls-port", format!("http://{good}/v1"), "", "not HTTP: the provider speaks TLS here", "broken", 500),
        ("expired", at("localhost", expired.port()), &*expired_ca, "tls: Expired by this host's clock", "tls", 500),
        ("stranger", at("localhost", good.port()), "", "tls: UnknownIssuer", "tls", 500),
        ("misnamed", at("127.0.0.1", good.port()), &*ca, "tls: NotValidForName", "tls", 500),
        ("authority", at("localhost", authority.port()), &*its_ca, "tls: CaUsedAsEndEntity", "tls", 500),
        ("slow", format!("https://{silent}/v1"), "connect_timeout = \"300ms\"", "timeout: connect", "timeout", 504),
    ];
    let more = rows.iter().map(|(name, url, line, ..)| {
        format!(
            "[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"{url}\"\n{line}\n\
             [[models]]\nid = \"x-{name}\"\ncontext = \"1M\"\ntargets = [{{ provider = \"{name}\", model = \"m\" }}]\n"
        )
    });
    let h = Harness::start(&Setup { more: more.collect(), ..Setup::default() });
    let key = h.key();
    for (name, _, _, cause, label, status) in &rows {
        let answer = h.chat(&key, &with(chat("one"), "model", format!("x-{name}")));
        let line = h.log_of(&answer.id());
        // Without a name server the gateway cannot know that a name does not exist.
        let told = line["cause"].as_str().unwrap_or_default().replace("no answer from the name server", "no such name");
        assert_eq!((told.as_str(), answer.status()), (*cause, *status), "{name}: {line}");
        assert!(CAUSES.contains(&format!("`{cause}`")), "{cause} is missing in the reference of causes");
        let series = format!("tollgate_upstream_responses_total{{target=\"{name}/m\",status=\"{label}\"}} 1");
        wait_for("the metric", || get(h.admin, "/metrics").unwrap().text().contains(&series).then_some(()));
    }
}
