//! Provokes every cause of a failure once, and checks the log and the metrics for the operator and the client's answer.
//! No two causes may look alike to the operator, and none may reveal a secret. `cargo test --test it e2e::causes --
//! --nocapture` prints the table.

use super::client::{Answer, get, post, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, chat_request, streamed, with};
use super::process::{Folder, free_port, wait_for};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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

/// A gateway with one model for every way in which a provider can be misconfigured.
struct World {
    h: Harness,
    key: String,
    _folder: Folder,
}

fn world() -> World {
    let folder = Folder::new();
    let upstream = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (good, ca) = secured("good", 2096);
    let (expired, expired_ca) = secured("old", 2021);
    let (authority, its_ca) = secured_by("vain", 2096, IsCa::Ca(BasicConstraints::Unconstrained));
    let file = |name: &str, pem: &str| {
        std::fs::write(folder.path().join(name), pem).unwrap();
        format!("ca_file = \"{}\"", folder.path().join(name).display())
    };
    let (ca, expired_ca, its_ca) = (file("ca.pem", &ca), file("old.pem", &expired_ca), file("vain.pem", &its_ca));
    let silent = listen(|mut socket| drop(socket.read_to_end(&mut Vec::new())));
    let closing = listen(|mut socket| drop(socket.read(&mut [0; 65536])));
    let nonsense = listen(|mut socket| {
        let _ = socket.read(&mut [0; 65536]);
        let _ = socket.write_all(b"220 mail.test ESMTP\r\n\r\n");
    });
    let mut more = String::new();
    for (name, url, extra) in [
        ("keyless", format!("http://{upstream}/v1"), ""),
        ("nameless", "http://no-such-host.invalid/v1".to_owned(), ""),
        ("plain-port", format!("https://{upstream}/v1"), ""),
        ("tls-port", format!("http://{good}/v1"), ""),
        ("expired", format!("https://localhost:{}/v1", expired.port()), &*expired_ca),
        ("stranger", format!("https://localhost:{}/v1", good.port()), ""),
        ("misnamed", format!("https://127.0.0.1:{}/v1", good.port()), &*ca),
        ("authority", format!("https://localhost:{}/v1", authority.port()), &*its_ca),
        ("no-handshake", format!("https://{silent}/v1"), "connect_timeout = \"300ms\""),
        ("closing", format!("http://{closing}/v1"), ""),
        ("nonsense", format!("http://{nonsense}/v1"), ""),
    ] {
        more += &format!(
            "[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"{url}\"\n{extra}\n\
             [[models]]\nid = \"{name}\"\ncontext = \"1M\"\ntargets = [{{ provider = \"{name}\", model = \"m\" }}]\n"
        );
    }
    more += "[[models]]\nid = \"patient\"\ncontext = \"1M\"\nfirst_byte_timeout = \"300ms\"\nidle_timeout = \"300ms\"\n\
             targets = [{ provider = \"sim-chat\", model = \"up-patient\" }]\n";
    more += "[[models]]\nid = \"narrow\"\ncontext = \"1M\"\n\
             targets = [{ provider = \"sim-narrow\", model = \"up-narrow\" }]\n";
    more += &format!(
        "[[providers]]\nname = \"sim-narrow\"\nshape = \"chat\"\nbase_url = \"http://{upstream}/v1\"\n\
         api_key = {{ env = \"SIM_KEY\" }}\nmax_event = \"64KiB\"\n"
    );
    let h = Harness::start_at(&Setup { more, ..Setup::default() }, upstream);
    let key = h.key();
    World { h, key, _folder: folder }
}

/// Name, model, instruction to the simulated provider, and whether the request is streamed; then the expected cause,
/// metric label, and status for the client (the status of the error event if there is a stream).
type Row = (&'static str, &'static str, &'static str, bool, &'static str, &'static str, u64);

const UPSTREAM: &[Row] = &[
    ("a wrong credential", "keyless", "", false, "status 401", "401", 500),
    ("an account that is not paid", "small", "status=402", false, "status 402", "402", 500),
    ("a model that the provider does not let us use", "small", "status=403", false, "status 403", "403", 500),
    ("a model that the provider does not know", "small", "status=404", false, "status 404", "404", 500),
    ("a provider's rate limit", "small", "status=429", false, "status 429", "429", 500),
    ("a provider that is overloaded", "small", "status=529", false, "status 529", "529", 500),
    ("a request that the provider finds wrong", "small", "status=400", false, "status 400", "400", 400),
    ("nobody listens", "gone", "", false, "connect: refused", "connect", 500),
    ("no such host", "nameless", "", false, "dns: no such name", "connect", 500),
    ("TLS to a plain port", "plain-port", "", false, "tls: the peer does not speak TLS", "tls", 500),
    ("plain HTTP to a TLS port", "tls-port", "", false, "not HTTP: the provider speaks TLS here", "broken", 500),
    ("an expired certificate", "expired", "", false, "tls: Expired by this host's clock", "tls", 500),
    ("a certificate of an unknown authority", "stranger", "", false, "tls: UnknownIssuer", "tls", 500),
    ("a certificate for another name", "misnamed", "", false, "tls: NotValidForName", "tls", 500),
    ("an authority's certificate", "authority", "", false, "tls: CaUsedAsEndEntity", "tls", 500),
    ("a handshake that does not come", "no-handshake", "", false, "timeout: connect", "timeout", 504),
    ("a connection closed before an answer", "closing", "", false, "closed: before an answer", "broken", 500),
    ("an answer that is not HTTP", "nonsense", "", false, "not HTTP: the response head is malformed", "broken", 500),
    ("a stalled head, whole", "hasty", "stall_head", false, "timeout: request", "timeout", 504),
    ("a stalled head, streamed", "patient", "stall_head", true, "timeout: first_byte", "timeout", 504),
    ("a stall in mid-stream", "patient", "stall_after=3", true, "timeout: idle after 4 events", "timeout", 504),
    ("a reset in mid-stream", "small", "reset_after=3 pace=20", true, "reset after 4 events", "broken", 500),
    ("an end in mid-stream", "small", "cut_after=3", true, "ended after 4 events", "broken", 500),
    ("an error in mid-stream", "small", "error_after=3", true, "error in the answer after 4 events", "broken", 500),
    ("an event beyond max_event", "narrow", "big=200000", true, "too large: max_event after 1 event", "broken", 500),
    ("an answer that is not JSON", "small", "garbage", false, NOT_JSON, "broken", 500),
    ("an answer that is compressed", "small", "encoding=gzip", false, COMPRESSED, "broken", 500),
];

const NOT_JSON: &str = "bad answer: the provider's answer was not valid";
const COMPRESSED: &str = "bad answer: the provider's answer is compressed, although compression was refused";

/// A row of the table.
struct Seen {
    done: String,
    log: String,
    metric: String,
    client: String,
}

/// Returns the members of a log line that describe the cause, in the order of the line.
fn told(line: &Value) -> String {
    let names = ["status", "error", "cause", "upstream_status", "upstream_code", "field", "limit", "asked", "path"];
    let member = |name: &&str| line.get(*name).map(|value| format!("{name}={}", value.to_string().replace('"', "")));
    names.iter().filter_map(member).collect::<Vec<_>>().join(" ")
}

/// Returns the status and the message of the error that a client received.
fn error_of(answer: &Answer) -> (u64, String) {
    let body: Value = match answer.text().rfind("data: {\"error\"") {
        Some(at) => serde_json::from_str(answer.text()[at + 6..].trim()).unwrap(),
        None => answer.json(),
    };
    let error = &body["error"];
    (error["code"].as_u64().unwrap(), format!("{} {}", error["code"], error["message"].as_str().unwrap()))
}

/// Returns the series of a metric with their values.
fn series(h: &Harness, name: &str) -> BTreeMap<String, u64> {
    let text = get(h.admin, "/metrics").unwrap().text().to_owned();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.filter_map(|line| line.rsplit_once(' ')).map(|(name, count)| (name.into(), count.parse().unwrap())).collect()
}

/// Returns the series of `name` that have grown since `before`, by their last label.
fn grown(h: &Harness, name: &str, before: &BTreeMap<String, u64>) -> Vec<String> {
    let now = series(h, name);
    let news = now.iter().filter(|(series, count)| before.get(*series).copied().unwrap_or(0) < **count);
    news.filter_map(|(series, _)| Some(series.rsplit('"').nth(1)?.to_owned())).collect()
}

fn provoke(world: &World, row: &Row) -> Seen {
    let (done, model, sim, stream, cause, metric, status) = row;
    let (h, name) = (&world.h, "tollgate_upstream_responses_total");
    let before = series(h, name);
    let body = with(chat(&format!("one\n#sim tokens=9 {sim}")), "model", *model);
    let body = if *stream { streamed(body) } else { body };
    let answer = h.chat(&world.key, &body);
    let line = h.log_of(&answer.id());
    let (code, words) = error_of(&answer);
    let log = told(&line);
    // Without a name server the gateway cannot know that a name does not exist.
    let known = line["cause"].as_str().unwrap_or_default().replace("no answer from the name server", "no such name");
    assert_eq!((known.as_str(), code), (*cause, *status), "{done}: {line}");
    let metric_now = wait_for("the metric", || Some(grown(h, name, &before)).filter(|names| !names.is_empty()));
    assert_eq!(metric_now, [*metric], "{done}");
    Seen { done: (*done).into(), log, metric: format!("{name}{{status=\"{metric}\"}}"), client: words }
}

/// Returns the head of a request to the chat endpoint with one more field.
fn headed(key: &str, (name, value): (&str, &str)) -> Vec<u8> {
    request("POST", "/v1/chat/completions", &[("authorization", &bearer(key)), (name, value)])
}

/// Returns errors of clients: a description and the request.
fn mistakes(world: &World) -> Vec<(&'static str, Vec<u8>)> {
    let (h, key) = (&world.h, world.key.as_str());
    let revoked = h.key_with(&[]);
    h.done(&["keys", "revoke", &revoked[8..20]]);
    wait_for("the key to be refused", || (h.status_of(&revoked) == 401).then_some(()));
    let narrow = h.key_with(&["--models", "large", "--endpoints", "chat"]);
    let two = h.key_with(&["--plan", "two"]);
    (0..2).for_each(|_| assert_eq!(h.chat(&two, &chat("x")).status(), 200));
    let mut mistyped = key.to_owned();
    mistyped.replace_range(30..31, if &key[30..31] == "a" { "b" } else { "a" });
    let asks = |key: &str| request("GET", "/v1/models", &[("authorization", &bearer(key))]);
    let plain = |body: &str| post("/v1/chat/completions", &[("authorization", &bearer(key))], body);
    vec![
        ("no key", request("GET", "/v1/models", &[])),
        ("another service's key", asks("sk-0123456789abcdef")),
        ("a mistyped key", asks(&mistyped)),
        ("a revoked key", asks(&revoked)),
        ("a model outside the key's scope", chat_request(&narrow, &chat("x"))),
        ("an endpoint outside the key's scope", post("/v1/messages", &[("x-api-key", &narrow)], "{}")),
        ("an unknown model", chat_request(key, &with(chat("x"), "model", "gpt-99"))),
        ("an unknown path", request("POST", "/v1/v1/chat", &[("authorization", &bearer(key))])),
        ("a wrong method", request("GET", "/v1/chat/completions", &[("authorization", &bearer(key))])),
        ("a wrong field", chat_request(key, &with(chat("x"), "temperature", 9))),
        ("no JSON", plain("{\"model\"")),
        ("a form in the place of JSON", headed(key, ("content-type", "application/x-www-form-urlencoded"))),
        ("a body that is compressed", headed(key, ("content-encoding", "gzip"))),
        ("an expectation that is unknown", headed(key, ("expect", "a miracle"))),
        ("a body beyond max_body", headed(key, ("content-length", "99000000"))),
        ("a head beyond max_header", headed(key, ("x-long", &"x".repeat(20_000)))),
        ("a limit", chat_request(&two, &chat("x"))),
        ("no HTTP", b"nonsense\r\n\r\n".to_vec()),
    ]
}

fn refuse(world: &World, done: &str, asked: &[u8]) -> Seen {
    let (h, name) = (&world.h, "tollgate_requests_total");
    let before = series(h, name);
    let answer = h.client().ask(asked);
    let line = h.log_of(&answer.id());
    let metric = wait_for("the metric", || grown(h, name, &before).pop());
    assert_eq!(metric, line["status"].to_string(), "{done}");
    Seen {
        done: done.into(),
        log: told(&line),
        metric: format!("{name}{{status=\"{metric}\"}}"),
        client: error_of(&answer).1,
    }
}

fn print(table: &[Seen]) {
    let width = |cell: fn(&Seen) -> &String| table.iter().map(|seen| cell(seen).len()).max().unwrap_or(0);
    let (done, log, metric) = (width(|seen| &seen.done), width(|seen| &seen.log), width(|seen| &seen.metric));
    for Seen { done: d, log: l, metric: m, client } in table {
        println!("{d:done$} | {l:log$} | {m:metric$} | {client}");
    }
}

/// Replaces numbers by `#`, since they vary: `status 401` and `status 402` are one row of the manual.
fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if plain.ends_with('#') => {}
            true => plain.push('#'),
            false => plain.push(c),
        }
    }
    plain.replace("# events", "# event")
}

#[test]
fn every_cause_is_reported_and_no_two_look_alike() {
    let world = world();
    let mut table: Vec<Seen> = UPSTREAM.iter().map(|row| provoke(&world, row)).collect();
    table.extend(mistakes(&world).iter().map(|(done, asked)| refuse(&world, done, asked)));
    print(&table);
    let mut seen = BTreeMap::new();
    for row in &table {
        if let Some(other) = seen.insert(&row.log, &row.done) {
            panic!("`{other}` and `{}` look alike: {}", row.done, row.log);
        }
    }
    let known: BTreeSet<String> = CAUSES.split('`').skip(1).step_by(2).map(without_numbers).collect();
    for line in world.h.log().iter().filter_map(|line| line["cause"].as_str()) {
        assert!(known.contains(&without_numbers(line)), "`{line}` is missing in the reference of causes");
    }
    let metrics = get(world.h.admin, "/metrics").unwrap().text().to_owned();
    let written =
        world.h.gateway.written() + &metrics + &table.iter().map(|row| row.client.as_str()).collect::<String>();
    for secret in [CREDENTIAL.1, &world.key[20..52], "sk-0123456789abcdef"] {
        assert!(!written.contains(secret), "{secret} was written");
    }
}

/// A failed attempt ends in a successful request, whose log line contains the cause of the failed attempt.
#[test]
fn failed_attempts_are_in_the_log_line_of_a_successful_request() {
    let more = "[[models]]\nid = \"both\"\ncontext = \"1M\"\ntargets = [{ provider = \"nobody\", model = \"a\" }, \
                { provider = \"sim-chat\", model = \"b\" }]\n";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let key = h.key_with(&[]);
    let answer = h.chat(&key, &with(chat("x"), "model", "both"));
    let line = h.log_of(&answer.id());
    assert_eq!((answer.status(), &line["target"], &line["attempts"]), (200, &"sim-chat/b".into(), &2.into()), "{line}");
    let failed = &line["failed"][0];
    assert_eq!((&failed["target"], &failed["cause"]), (&"nobody/a".into(), &"connect: refused".into()));
    assert!(failed["us"].is_u64() && line["cause"].is_null() && line["peer"] == "127.0.0.1" && line["name"] == "test");
}
