//! `check --connect` with each common mistake in the configuration of a provider, against real servers on loopback; and
//! `ready`.

use super::harness::{CREDENTIAL, Harness};
use super::process::{Folder, free_port, run};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

const LIST: &str = r#"{"object":"list","data":[{"id":"gpt-5.4-mini","shutdown_date":null},{"id":"gpt-5-mini","shutdown_date":"2026-12-11"}]}"#;
const THEIR_LIST: &str =
    r#"{"data":[{"type":"model","id":"claude-x"}],"has_more":false,"first_id":null,"last_id":null}"#;

/// Path, status and body of the answers of a server; other paths return 404.
type Answers = &'static [(&'static str, u16, &'static str)];

fn answer(stream: &mut (impl Read + Write), answers: Answers) {
    let (mut got, mut block) = (Vec::new(), [0; 4096]);
    while !got.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut block) {
            Ok(count) if count > 0 => got.extend_from_slice(&block[..count]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&got).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default();
    let found = answers.iter().find(|(known, _, _)| *known == path);
    let (status, body) = found.map_or((404, "{}"), |(_, status, body)| (*status, *body));
    let more = if status == 308 { "location: https://elsewhere.example/v1/models\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status} X\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let _ = stream.flush();
}

fn listen(serve: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(&serve));
    at
}

fn plain(answers: Answers) -> SocketAddr {
    listen(move |mut stream| answer(&mut stream, answers))
}

/// Starts a TLS server with a self-signed certificate that is valid until the year `until`. Returns its address and the
/// certificate.
fn secure(name: &str, until: i32) -> (SocketAddr, String) {
    secured(name, until, IsCa::NoCa)
}

fn secured(name: &str, until: i32, is_ca: IsCa) -> (SocketAddr, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = is_ca;
    (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(until, 12, 31));
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let secret = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], secret).unwrap();
    let config = Arc::new(config);
    let at = listen(move |stream| {
        let session = ServerConnection::new(config.clone()).unwrap();
        let answers: Answers = &[("/v1/models", 200, LIST), ("/v1/chat/completions", 400, "{}")];
        answer(&mut StreamOwned::new(session, stream), answers);
    });
    (at, certificate.pem())
}

/// Returns the configuration of a Chat Completions provider called `name`, and of a model `of-NAME` that uses it.
fn provider(name: &str, base_url: &str, more: &str) -> String {
    format!(
        "[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"{base_url}\"\n{more}\n\
         [[models]]\nid = \"of-{name}\"\ncontext = \"1M\"\ntargets = [{{ provider = \"{name}\", model = \"gpt-5.4-mini\" }}]\n"
    )
}

#[test]
fn every_common_mistake_is_found_and_its_fix_is_printed() {
    let folder = Folder::new();
    let good = plain(&[("/v1/models", 200, LIST), ("/v1/chat/completions", 400, "{}")]);
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (deaf, _) = secure("gate.test", 2999);
    let key = format!("api_key = {{ env = \"{}\" }}", CREDENTIAL.0);
    let shut = plain(&[("/v1/models", 401, "{}")]);
    let forbidden = plain(&[("/v1/models", 403, "{}")]);
    let unpaid = plain(&[("/v1/models", 402, "{}")]);
    let theirs = plain(&[("/v1/models", 200, THEIR_LIST)]);
    let page = plain(&[("/v1/models", 200, "<html>welcome</html>")]);
    let moved = plain(&[("/v1/models", 308, "")]);
    let mistakes = [
        ("no-v1", format!("http://{good}"), "", format!("base_url lacks /v1: write base_url = \"http://{good}/v1\"")),
        (
            "twice",
            format!("http://{good}/v1/v1"),
            "",
            format!("base_url has /v1 twice: write base_url = \"http://{good}/v1\""),
        ),
        (
            "endpoint",
            format!("http://{good}/v1/chat/completions"),
            "",
            format!("base_url names an endpoint: write base_url = \"http://{good}/v1\""),
        ),
        ("nowhere", format!("http://{good}/api"), "", "nothing at /api".to_owned()),
        ("closed", format!("http://{closed}/v1"), "", format!("connection refused: nothing listens at {closed}")),
        (
            "unnamed",
            "http://no-such-host.invalid/v1".to_owned(),
            "",
            "no address for `no-such-host.invalid`".to_owned(),
        ),
        (
            "refused",
            format!("http://{shut}/v1"),
            &key,
            "401: it refuses the credential of { env = \"SIM_KEY\" }".to_owned(),
        ),
        ("keyless", format!("http://{shut}/v1"), "", "401: it wants a credential: set api_key".to_owned()),
        (
            "forbidden",
            format!("http://{forbidden}/v1"),
            &key,
            "403: the credential is valid, but lacks permission".to_owned(),
        ),
        ("unpaid", format!("http://{unpaid}/v1"), &key, "402: the account has no credit left".to_owned()),
        (
            "not-tls",
            format!("https://{good}/v1"),
            "",
            format!("it does not speak TLS: write base_url = \"http://{good}/v1\""),
        ),
        (
            "tls",
            format!("http://{deaf}/v1"),
            "",
            format!("it speaks TLS, and base_url says http: write base_url = \"https://{deaf}/v1\""),
        ),
        (
            "stranger",
            format!("https://{deaf}/v1"),
            "",
            "signed by nobody who is trusted: name the authority by ca_file".to_owned(),
        ),
        (
            "other-shape",
            format!("http://{theirs}/v1"),
            "",
            "it speaks the messages shape: write shape = \"messages\"".to_owned(),
        ),
        ("page", format!("http://{page}/v1"), "", "200, but the response is not JSON".to_owned()),
        (
            "moved",
            format!("http://{moved}/v1"),
            "",
            "308: a redirect, which Tollgate never follows: write base_url = \"https://elsewhere.example/v1\""
                .to_owned(),
        ),
    ];
    let text: String = mistakes.iter().map(|(name, url, more, _)| provider(name, url, more)).collect();
    let misspelt =
        provider("misspelt", &format!("http://{good}/v1"), "").replace("\"gpt-5.4-mini\"", "\"gpt-5.4-mimi\"");
    let ending = provider("ending", &format!("http://{good}/v1"), "").replace("\"gpt-5.4-mini\"", "\"gpt-5-mini\"");
    let fine = provider("fine", &format!("http://{good}/v1"), &key);
    // One of the servers receives a TLS handshake and waits for the end of a request head, so this timeout is short.
    let text = format!("[upstream]\nconnect_timeout = \"1s\"\n{text}{misspelt}{ending}{fine}");
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[CREDENTIAL]);
    let of = |name: &str| {
        let start = format!("\n{}", done.out).find(&format!("\n{name}  http"));
        let start = start.unwrap_or_else(|| panic!("{name}:\n{}", done.out));
        done.out[start..]
            .split_once('\n')
            .unwrap()
            .1
            .lines()
            .take_while(|line| line.starts_with("  "))
            .collect::<Vec<_>>()
    };
    for (name, _, _, said) in &mistakes {
        let lines = of(name);
        assert!(lines[0].starts_with("  error: ") && lines[0].contains(said), "{name}: {said}\n{}", lines.join("\n"));
    }
    assert!(of("misspelt")[1].starts_with("  error: of-misspelt -> gpt-5.4-mimi: "), "{}", done.out);
    assert!(of("misspelt")[1].contains("did you mean `gpt-5.4-mini`?"), "{}", done.out);
    let ends = "  hint: of-ending -> gpt-5-mini: available until 2026-12-11, when the provider ends it: choose another";
    assert_eq!(of("ending")[1], ends);
    assert_eq!(of("fine").len(), 2);
    assert!(of("fine").iter().all(|line| line.starts_with("  ok: ")), "{}", done.out);
    assert_eq!((done.code, done.err.trim()), (1, "error: requests to 17 providers would fail"));
    assert!(!done.out.contains(CREDENTIAL.1));
}

#[test]
fn expired_certificate_and_wrong_host_name_are_reported() {
    let folder = Folder::new();
    let mut text = String::new();
    for (name, host, until) in
        [("expired", "localhost", 2002), ("other", "elsewhere.test", 2999), ("trusted", "localhost", 2999)]
    {
        let (at, pem) = secure(host, until);
        fs::write(folder.path().join(format!("{name}.pem")), pem).unwrap();
        text += &provider(
            name,
            &format!("https://localhost:{}/v1", at.port()),
            &format!("addresses = [\"127.0.0.1\"]\nca_file = \"{name}.pem\""),
        );
    }
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[]);
    assert_eq!((done.code, done.out.matches("  error: ").count()), (1, 2), "{}", done.out);
    assert!(done.out.contains("error: its certificate has expired or is not valid yet: renew it"), "{}", done.out);
    assert!(done.out.contains("error: its certificate is not for `localhost`"), "{}", done.out);
    assert!(done.out.contains("ok: 200, 2 models"), "{}", done.out);
}

/// Node, uvicorn and Python's `ssl` close the connection when they receive plain HTTP. The other TLS servers of these
/// tests answer it.
#[test]
fn tls_server_that_closes_on_plain_http_is_detected() {
    let folder = Folder::new();
    let (speaks, _) = secure("gate.test", 2999);
    let shy = listen(move |mut socket| {
        let mut first = [0];
        if matches!(socket.peek(&mut first), Ok(1) if first[0] == 22) {
            let mut server = TcpStream::connect(speaks).unwrap();
            let mut back = (server.try_clone().unwrap(), socket.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut back.0, &mut back.1)));
            drop(std::io::copy(&mut socket, &mut server));
        }
    });
    fs::write(folder.path().join("tollgate.toml"), provider("shy", &format!("http://{shy}/v1"), "")).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[]);
    let said = format!("error: it speaks TLS, and base_url says http: write base_url = \"https://{shy}/v1\"");
    assert!(done.code == 1 && done.out.contains(&said), "{}", done.out);
}

#[test]
fn ca_certificate_used_by_a_server_is_reported() {
    let folder = Folder::new();
    let (at, pem) = secured("localhost", 2999, IsCa::Ca(BasicConstraints::Unconstrained));
    fs::write(folder.path().join("ca.pem"), pem).unwrap();
    let more = "addresses = [\"127.0.0.1\"]\nca_file = \"ca.pem\"";
    let text = provider("own", &format!("https://localhost:{}/v1", at.port()), more);
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[]);
    let said = "error: a CA certificate serves as the server's own: issue one with CA:FALSE for it";
    assert!(done.code == 1 && done.out.contains(said), "{}", done.out);
}

#[test]
fn provider_without_a_model_list_causes_only_a_hint() {
    let h = Harness::usual();
    let bare = plain(&[("/v1/chat/completions", 400, "{}")]);
    let busy = plain(&[("/v1/models", 503, "{}")]);
    let text = provider("bare", &format!("http://{bare}/v1"), "") + &provider("busy", &format!("http://{busy}/v1"), "");
    fs::write(h.folder.path().join("hints.toml"), text).unwrap();
    let hints = h.command(&["--config", "hints.toml", "check", "--connect"]);
    assert_eq!((hints.code, hints.err.as_str()), (0, ""), "{}", hints.out);
    assert!(hints.out.contains("hint: 404: it answers, but lists no models"), "{}", hints.out);
    assert!(hints.out.contains("hint: 503: the provider is busy"), "{}", hints.out);
    let usual = h.command(&["check", "--connect"]);
    let fine = usual.out.split("nobody  ").next().unwrap();
    assert_eq!((fine.matches("  ok: ").count(), fine.matches("error: ").count()), (6, 0), "{}", usual.out);
    assert_eq!(usual.code, 1, "one provider is not running");
}

#[test]
fn a_target_whose_model_does_not_serve_the_endpoint_fails() {
    const NOT_CHAT: &str = r#"{"error":{"message":"This is not a chat model"}}"#;
    let folder = Folder::new();
    let chat = plain(&[("/v1/models", 200, LIST), ("/v1/chat/completions", 400, "{}")]);
    let vectors =
        plain(&[("/v1/models", 200, LIST), ("/v1/chat/completions", 400, NOT_CHAT), ("/v1/embeddings", 422, "{}")]);
    let serves = |text: String| text.replacen("context", "serves = [\"embeddings\"]\ncontext", 1);
    let text = serves(provider("none", &format!("http://{chat}/v1"), ""))
        + &provider("wrong", &format!("http://{vectors}/v1"), "")
        + &serves(provider("right", &format!("http://{vectors}/v1"), ""));
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[]);
    for said in [
        "error: of-none -> gpt-5.4-mini: available, but not for /v1/embeddings, which returns 404: check \"embeddings\" in",
        "error: of-wrong -> gpt-5.4-mini: available, but not for /v1/chat/completions, which returns 400: check \"chat\" in",
        "ok: of-right -> gpt-5.4-mini: available",
    ] {
        assert!(done.out.contains(said), "{said}\n{}", done.out);
    }
    assert_eq!(done.code, 1);
}

#[test]
fn anthropic_model_list_is_read_next_to_a_chat_endpoint() {
    let folder = Folder::new();
    let both = plain(&[("/v1/models", 200, THEIR_LIST), ("/v1/chat/completions", 400, "{}")]);
    let named = provider("both", &format!("http://{both}/v1"), "discover = {}").replace("gpt-5.4-mini", "claude-x");
    let misspelt = provider("other", &format!("http://{both}/v1"), "").replace("gpt-5.4-mini", "claude-y");
    fs::write(folder.path().join("tollgate.toml"), named + &misspelt).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[]);
    for said in [
        "ok: 200, 1 model (",
        "ok: discover: 1 model of its list",
        "ok: of-both -> claude-x: available",
        "error: of-other -> claude-y: the provider has no such model; did you mean `claude-x`?",
    ] {
        assert!(done.out.contains(said), "{said}\n{}", done.out);
    }
}

#[test]
fn simulated_provider_with_a_model_list_rejects_other_models() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let settings =
        tollgate::simulator::SimulatorSettings { models: vec!["gpt-5.4-mini".to_owned()], ..Default::default() };
    std::thread::spawn(move || tollgate::cli::provider::reactor(listener, settings).unwrap().run());
    let right = provider("right", &format!("http://{at}/v1"), "");
    let misspelt = provider("wrong", &format!("http://{at}/v1"), "").replace("gpt-5.4-mini", "gpt-5.4-mimi");
    fs::write(folder.path().join("tollgate.toml"), right + &misspelt).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[]);
    assert!(done.out.contains("ok: of-right -> gpt-5.4-mini: available"), "{}", done.out);
    assert!(done.out.contains("no such model; did you mean `gpt-5.4-mini`?"), "{}", done.out);
}

#[test]
fn ready_reports_by_exit_code_whether_requests_are_admitted() {
    let mut h = Harness::usual();
    let admin = h.admin.to_string();
    assert_eq!((h.command(&["ready"]).code, h.command(&["ready", "--admin", &admin]).out.as_str()), (0, "ready\n"));
    let folder = Folder::new();
    assert_eq!(run(folder.path(), &["ready", "--admin", &format!("localhost:{}", h.admin.port())], &[]).code, 0);
    let at = plain(&[("/readyz", 503, "not ready: ledger\n")]).to_string();
    let why = format!("{at} returned 503: the ledger cannot be written; the gateway's log says why");
    let unready = run(folder.path(), &["ready", "--json", "--admin", &at], &[]);
    assert_eq!((unready.code, unready.err), (1, format!("error: not ready: {why}\n")));
    let result: serde_json::Value = serde_json::from_str(&unready.out).unwrap();
    assert_eq!(result["why"], why);
    h.gateway.stop("TERM");
    let gone = h.command(&["ready"]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.starts_with("error: not ready: nothing listens at"), "{}", gone.err);
    assert_eq!(run(folder.path(), &["ready"], &[]).code, 1, "without a configuration the address is unknown");
}

#[test]
fn shared_ledger_that_does_not_answer_is_named() {
    let folder = Folder::new();
    let good = plain(&[("/v1/models", 200, LIST)]);
    let store = format!("[store]\nurl = \"redis://:hidden@127.0.0.1:{}/0\"\n", free_port());
    let plan = "[[plans]]\nname = \"paid\"\nbudget = 5\n";
    let text = store + plan + &provider("fine", &format!("http://{good}/v1"), "");
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let done = run(folder.path(), &["check"], &[]);
    assert!(done.code == 0 && done.err.contains("warning: store.url: "), "{}{}", done.out, done.err);
    let done = run(folder.path(), &["check", "--json"], &[]);
    let told: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let warnings = told["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), done.err.lines().filter(|line| line.starts_with("warning: ")).count());
    assert!(warnings.iter().any(|text| text.as_str().unwrap().contains("no `input_price`")), "{warnings:?}");
    let connect = run(folder.path(), &["check", "--connect"], &[]);
    assert!(connect.code == 1 && connect.out.contains("error: "), "{}{}", connect.out, connect.err);
    assert!(connect.out.contains("ok: 200"), "providers are still checked: {}", connect.out);
    for done in [done, connect] {
        assert!(!done.out.contains("hidden") && !done.err.contains("hidden"), "{}{}", done.out, done.err);
    }
}

#[test]
fn credential_that_only_requests_need_is_checked() {
    for (status, said) in [(401, "error: of-fine -> gpt-5.4-mini: 401: "), (402, "402: the account"), (403, "403: the")]
    {
        let folder = Folder::new();
        let answers = [("/v1/models", 200, LIST), ("/v1/chat/completions", status, "{}")];
        let open = plain(Box::leak(Box::new(answers)));
        let text = provider("fine", &format!("http://{open}/v1"), "");
        fs::write(folder.path().join("tollgate.toml"), text).unwrap();
        let done = run(folder.path(), &["check", "--connect"], &[]);
        assert!(done.code == 1 && done.out.contains(said), "{status}: {}{}", done.out, done.err);
    }
}
