//! Providers over TLS, with a certificate of a CA that the test creates: the name and the CA are checked, and a broken
//! connection is an upstream error.

use super::harness::{CREDENTIAL, Harness, Setup, chat, chat_request, streamed, with};
use super::process::Folder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Time for which the proxy waits on one side before it checks the other.
const GLANCE: Duration = Duration::from_millis(2);

/// Creates a CA. Returns its certificate as PEM, and a server configuration with a certificate that it issued for
/// `localhost`.
pub fn authority() -> (String, Arc<ServerConfig>) {
    authority_from(2020)
}

/// Works like [`authority`]; the certificate for `localhost` is valid from the beginning of this year.
pub fn authority_from(year: i32) -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(year, 1, 1);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let secret = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], secret).unwrap();
    (issuer.pem(), Arc::new(config))
}

/// Starts a TLS proxy that forwards to `to`. Returns its address.
pub fn start_proxy(config: Arc<ServerConfig>, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (Ok(socket), config) = (socket, config.clone()) else { return };
            std::thread::spawn(move || {
                let Ok(plain) = TcpStream::connect(to) else { return };
                let connection = ServerConnection::new(config).unwrap();
                for side in [&socket, &plain] {
                    side.set_read_timeout(Some(GLANCE)).unwrap();
                    side.set_nodelay(true).unwrap();
                }
                pass(StreamOwned::new(connection, socket), plain);
            });
        }
    });
    at
}

/// Forwards bytes in both directions until either side ends.
fn pass(mut tls: StreamOwned<ServerConnection, TcpStream>, mut plain: TcpStream) {
    let mut block = vec![0u8; 64 * 1024];
    let patient = |error: &std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    loop {
        match tls.read(&mut block) {
            Ok(count) if count > 0 && plain.write_all(&block[..count]).is_ok() => {}
            Err(error) if patient(&error) => {}
            _ => return,
        }
        match plain.read(&mut block) {
            Ok(count) if count > 0 && tls.write_all(&block[..count]).is_ok() => {}
            Err(error) if patient(&error) => {}
            _ => {
                tls.conn.send_close_notify();
                let _ = tls.flush();
                return;
            }
        }
    }
}

struct Secured {
    h: Harness,
    key: String,
    _folder: Folder,
}

/// Starts a gateway with the models `good`, `wrong-name` and `unknown-authority`, all at the same proxy.
fn secured() -> Secured {
    let folder = Folder::new();
    let (pem, config) = authority();
    let ca_file = folder.path().join("ca.pem");
    fs::write(&ca_file, pem).unwrap();
    // The proxy needs the provider's address, and the gateway's configuration needs the proxy's, so the port is chosen
    // first.
    let upstream = SocketAddr::from(([127, 0, 0, 1], super::process::free_port()));
    let proxy = start_proxy(config, upstream);
    let ca = format!("ca_file = \"{}\"", ca_file.display());
    let mut more = String::new();
    for (name, host, ca) in [
        ("good", "localhost", ca.as_str()),
        ("wrong-name", "other.test", ca.as_str()),
        ("unknown-authority", "localhost", ""),
    ] {
        let port = proxy.port();
        more += &format!(
            "[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"https://{host}:{port}/v1\"\n{ca}\n\
             addresses = [\"127.0.0.1\"]\napi_key = {{ env = \"{}\" }}\n\
             [[models]]\nid = \"{name}\"\ncontext = \"1M\"\ntargets = [{{ provider = \"{name}\" }}]\n",
            CREDENTIAL.0
        );
    }
    let h = Harness::start_at(&Setup { more, ..Setup::default() }, upstream);
    let key = h.key();
    Secured { h, key, _folder: folder }
}

#[test]
fn tls_provider_answers_and_streams_on_kept_connections() {
    let s = secured();
    let mut client = s.h.client();
    for round in 0..6 {
        let asked = with(chat("größe\n#sim tokens=200"), "model", "good");
        let asked = if round % 2 == 0 { asked } else { streamed(asked) };
        let answer = client.ask(&chat_request(&s.key, &asked));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(s.h.log_of(&answer.id())["output"], 200);
    }
}

#[test]
fn large_requests_and_answers_pass_through_tls() {
    let s = secured();
    let text = format!("{}\n#sim big=3000000", "word ".repeat(400_000));
    let answer = s.h.chat(&s.key, &with(chat(&text), "model", "good"));
    assert_eq!(answer.status(), 200);
    assert!(answer.body.len() > 3_000_000);
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 400_002);
}

/// The last bytes, close_notify and FIN arrive together.
#[test]
fn answer_that_ends_with_the_tls_connection_is_complete() {
    let s = secured();
    for stream in [false, true] {
        let asked = with(with(chat("x\n#sim close tokens=5"), "model", "good"), "stream", stream);
        let answer = s.h.chat(&s.key, &asked);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(s.h.log_of(&answer.id())["output"], 5);
    }
}

#[test]
fn a_wrong_name_and_an_unknown_authority_are_upstream_errors() {
    let s = secured();
    for model in ["wrong-name", "unknown-authority"] {
        let served = s.h.count("requests");
        let answer = s.h.chat(&s.key, &with(chat("x"), "model", model));
        assert_eq!(
            (answer.status(), answer.json()["error"]["type"].as_str()),
            (500, Some("upstream_error")),
            "{model}"
        );
        assert_eq!(s.h.count("requests"), served, "{model}: no byte of the request may be sent");
    }
}
