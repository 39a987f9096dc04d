//! A client's own credential: only providers with `auth = "client"` get it.

use super::client::{Answer, post, request};
use super::collector::Collector;
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, message, streamed, with};
use super::process::{Folder, run};
use super::recorder::Recorder;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;

/// Credentials of a client: in `authorization`, and in `x-api-key`.
const OWN: &str = "own-oauth-canary-8f31c2d7";
const OWN_KEY: &str = "own-apikey-canary-77b0aa19";

fn provider(name: &str, shape: &str, at: SocketAddr, more: &str) -> String {
    let path = if shape == "messages" { "" } else { "/v1" };
    format!(
        "[[providers]]\nname = \"{name}\"\nshape = \"{shape}\"\nbase_url = \"http://{at}{path}\"\n{more}\n\
         breaker_failures = 0\n"
    )
}

fn model(id: &str, targets: &[&str]) -> String {
    let targets: Vec<String> =
        targets.iter().map(|name| format!("{{ provider = \"{name}\", model = \"m\" }}")).collect();
    format!("[[models]]\nid = \"{id}\"\ncontext = \"100K\"\ntargets = [{}]\n", targets.join(", "))
}

/// A gateway with two providers that take clients' credentials, and their recorders.
fn owned() -> (Harness, Recorder, Recorder) {
    let ((chat, chat_at), (messages, messages_at)) = (Recorder::start(), Recorder::start());
    let more = provider("own-chat", "chat", chat_at, "auth = \"client\"")
        + &provider("own-messages", "messages", messages_at, "auth = \"client\"")
        + &model("mine", &["own-chat"])
        + &model("claude-mine", &["own-messages"]);
    let h = Harness::start(&Setup { more, ..Setup::default() });
    (h, chat, messages)
}

fn ask(h: &Harness, path: &str, fields: &[(&str, &str)], body: &Value) -> Answer {
    h.client().ask(&post(path, fields, &body.to_string()))
}

fn lines(received: &str) -> Vec<&str> {
    received.split("\r\n\r\n").next().unwrap().lines().collect()
}

#[test]
fn client_credential_reaches_its_provider_and_the_gateway_key_does_not() {
    let (h, chat_provider, messages_provider) = owned();
    let (key, own) = (h.key(), bearer(OWN));
    let beta = "oauth-2025-04-20,claude-code-20250219";
    let fields = [("authorization", &*own), ("x-tollgate-key", &*key), ("anthropic-beta", beta)];
    let answer = ask(&h, "/v1/messages?beta=true", &fields, &with(message("x"), "model", "claude-mine"));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(answer.head.get("x-tollgate-cost"), Some("0"), "no price is configured, so it is 0");
    let received = messages_provider.taken().remove(0);
    for line in [&*format!("authorization: {own}"), &*format!("anthropic-beta: {beta}")] {
        assert!(lines(&received).contains(&line), "{received}");
    }
    assert!(!received.contains(&key) && !received.contains("x-tollgate-key") && !received.contains("x-api-key"));
    // A provider of another format gets it, too, also with a long request, which a helper thread translates.
    for text in ["x".to_string(), "long ".repeat(100_000)] {
        let body = with(message(&text), "model", "mine");
        let answer = ask(&h, "/v1/messages", &[("x-api-key", OWN_KEY), ("X-Tollgate-Key", &key)], &body);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let received = chat_provider.taken().remove(0);
        assert!(lines(&received).contains(&&*format!("x-api-key: {OWN_KEY}")), "{:?}", lines(&received));
        assert!(!received.contains("authorization") && !received.contains(&key), "{:?}", lines(&received));
    }
    for path in ["/v1/models", "/v1/quota"] {
        let fields = [("authorization", &*own), ("x-tollgate-key", &*key)];
        assert_eq!(h.client().ask(&request("GET", path, &fields)).status(), 200, "{path}");
    }
    let unknown = [("authorization", &*own), ("x-tollgate-key", "tg_live_wrong")];
    assert_eq!(h.client().ask(&request("GET", "/v1/quota", &unknown)).status(), 401);
    let usage = h.ledger(3);
    assert_eq!((usage.requests, usage.tokens()), (3, 15));
}

#[test]
fn client_that_pays_its_provider_may_use_dearer_tiers_under_a_budget() {
    let (at, dearer) = (Recorder::start(), Recorder::start());
    let priced = "input_price = 1\noutput_price = 1\n";
    let more = provider("own", "messages", at.1, "auth = \"client\"")
        + &provider("own-priced", "messages", dearer.1, "auth = \"client\"")
        + &model("mine", &["own"])
        + &model("priced", &["own-priced"])
        + priced;
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let (key, own) = (h.key_with(&["--budget", "1"]), bearer(OWN));
    let fields = [("authorization", &*own), ("x-tollgate-key", &*key)];
    for (id, status) in [("mine", 200), ("priced", 403)] {
        let body = with(with(message("x"), "model", id), "speed", "fast");
        let answer = ask(&h, "/v1/messages", &fields, &body);
        assert_eq!(answer.status(), status, "{id}: {}", answer.text());
    }
    assert!(at.0.taken().remove(0).contains("\"speed\":\"fast\"") && dearer.0.taken().is_empty());
}

#[test]
fn missing_credential_and_gateway_key_are_refused_before_sending() {
    let (h, chat_provider, messages_provider) = owned();
    let (key, own) = (h.key(), bearer(OWN));
    let as_bearer = bearer(&key);
    let none: &[(&str, &str)] = &[("x-tollgate-key", &key)];
    let empty: &[(&str, &str)] = &[("authorization", "Bearer"), ("x-tollgate-key", &key)];
    let usual: &[(&str, &str)] = &[("authorization", &as_bearer)];
    let both: &[(&str, &str)] = &[("authorization", &as_bearer), ("x-tollgate-key", &key)];
    let beside: &[(&str, &str)] = &[("authorization", &own), ("x-api-key", &key)];
    for (fields, said) in [
        (none, "send it in `authorization`, and the gateway's key in `x-tollgate-key`"),
        (empty, "send it in `authorization`, and the gateway's key in `x-tollgate-key`"),
        (usual, "gets `authorization`, which has the gateway's key"),
        (both, "gets `authorization`, which has the gateway's key"),
        (beside, "gets `x-api-key`, which has the gateway's key"),
    ] {
        for (path, body) in [
            ("/v1/messages", with(message("x"), "model", "claude-mine")),
            ("/v1/messages", streamed(with(message("x"), "model", "mine"))),
        ] {
            let answer = ask(&h, path, fields, &body);
            assert_eq!((answer.status(), answer.text().contains(said)), (401, true), "{fields:?}: {}", answer.text());
            assert_eq!(answer.head.get("x-should-retry"), Some("false"));
        }
    }
    assert!(chat_provider.taken().is_empty() && messages_provider.taken().is_empty());
    assert_eq!(h.ledger(0).requests, 0);
}

/// A 401 lets the client renew its credential, and does not affect other clients.
#[test]
fn refused_client_credential_is_the_answer_and_no_target_cools_down() {
    let (h, provider, _) = owned();
    let (key, own) = (h.key(), bearer(OWN));
    let fields = [("authorization", &*own), ("x-tollgate-key", &*key)];
    for (status, shown, kind) in [
        (401, 401, "authentication_error"),
        (402, 403, "permission_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (429, 429, "rate_limit_error"),
    ] {
        provider.answer_with(status);
        let answer = ask(&h, "/v1/chat/completions", &fields, &with(chat("x"), "model", "mine"));
        assert_eq!((answer.status(), answer.json()["error"]["type"].as_str()), (shown, Some(kind)));
        assert_eq!(answer.head.get("retry-after"), Some("7"));
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains("POST /v1/chat/completions") && message.contains("***"), "{message}");
        assert_eq!(provider.taken().len(), 1, "it is sent once");
    }
    provider.answer_with(200);
    let answer = ask(&h, "/v1/chat/completions", &fields, &with(chat("x"), "model", "mine"));
    assert_eq!(answer.status(), 200);
    assert!(!h.log().iter().any(|line| line["event"] == "target"));
}

#[test]
fn check_refuses_routes_that_mix_client_credentials_with_other_providers() {
    let (h, _, _) = owned();
    let file = h.folder.path().join("tollgate.toml");
    let good = fs::read_to_string(&file).unwrap();
    for (more, said) in [
        (model("mixed", &["own-chat", "sim-chat"]), "must be the only provider of its models"),
        (model("mixed", &["own-chat", "own-messages"]), "must be the only provider of its models"),
        (
            provider("p", "chat", h.upstream, "auth = \"client\"\napi_key = { env = \"SIM_KEY\" }"),
            "has no effect with auth = \"client\"",
        ),
        (provider("p", "chat", h.upstream, "auth = \"client\"\ndiscover = {}"), "has no effect with auth = \"client\""),
        (
            provider("p", "chat", h.upstream, "auth = \"Client\""),
            "expected \"bearer\", \"x-api-key\", \"client\" or the name of a header",
        ),
    ] {
        fs::write(h.folder.path().join("other.toml"), format!("{good}\n{more}")).unwrap();
        let done = run(h.folder.path(), &["check", "--config", "other.toml"], &[CREDENTIAL]);
        assert!(done.code != 0 && done.err.contains(said), "{}{}", done.out, done.err);
    }
    let done = h.command(&["check", "--connect"]);
    assert!(!done.out.contains("wants a credential"), "{}{}", done.out, done.err);
}

/// The header is refused like a repeated `authorization`, even with one value: which one would count?
#[test]
fn repeated_gateway_key_is_refused() {
    let (h, provider, _) = owned();
    let (key, own) = (h.key(), bearer(OWN));
    for second in [&*key, "tg_live_other"] {
        let fields = [("authorization", &*own), ("x-tollgate-key", &*key), ("X-Tollgate-Key", second)];
        let answer = ask(&h, "/v1/chat/completions", &fields, &with(chat("x"), "model", "mine"));
        assert_eq!((answer.status(), answer.text().contains("x-tollgate-key is repeated")), (400, true));
    }
    assert!(provider.taken().is_empty());
}

#[test]
fn short_credential_is_masked_as_a_word() {
    let (h, provider, _) = owned();
    let key = h.key();
    provider.answer_with(403);
    for own in ["zq7", "zq7-1", "zq7+1x"] {
        let fields = [("authorization", &*bearer(own)), ("x-api-key", own), ("x-tollgate-key", &*key)];
        let answer = ask(&h, "/v1/chat/completions", &fields, &with(chat("x"), "model", "mine"));
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains("authorization: Bearer ***") && !message.contains(own), "{message}");
    }
    assert!(!h.log().iter().any(|line| line.to_string().contains("zq7")));
}

/// A header that `connection` names is only for the next hop (RFC 9110 section 7.6.1).
#[test]
fn headers_named_by_connection_reach_no_provider() {
    let (h, _, provider) = owned();
    let (key, own) = (h.key(), bearer(OWN));
    let fields = [
        ("authorization", &*own),
        ("x-tollgate-key", &*key),
        ("connection", "keep-alive, Anthropic-Foo"),
        ("anthropic-foo", "1"),
        ("anthropic-bar", "2"),
    ];
    let body = with(message("x"), "model", "claude-mine");
    let answer = ask(&h, "/v1/messages", &fields, &body);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let received = provider.taken().remove(0);
    assert!(lines(&received).contains(&"anthropic-bar: 2") && !received.contains("anthropic-foo"), "{received}");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let sent = [
        ("x-tollgate-key", &*key),
        ("authorization", &*own),
        ("x-api-key", OWN_KEY),
        ("anthropic-beta", "named-1"),
        ("anthropic-version", "2022-02-02"),
        ("traceparent", trace),
        ("tracestate", "named=1"),
    ];
    for (name, value) in sent.into_iter().skip(1) {
        let options = format!("close, x , {}", name.to_uppercase());
        let fields: Vec<_> = [("connection", &*options)].into_iter().chain(sent).collect();
        let answer = ask(&h, "/v1/messages", &fields, &body);
        assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
        let received = provider.taken().remove(0);
        assert!(!received.contains(value), "{name}: {received}");
        for (other, value) in sent.into_iter().skip(1).filter(|(other, _)| *other != name) {
            // A state without its trace has no meaning, and with traceparent only its version has one.
            let kept = received.contains(value) || (name.starts_with("trace") && other.starts_with("trace"));
            assert!(kept || other == "traceparent", "{name}, {other}: {received}");
        }
    }
    let fields = [("connection", "authorization"), ("x-tollgate-key", &*key), ("authorization", &*own)];
    let answer = ask(&h, "/v1/messages", &fields, &body);
    assert_eq!((answer.status(), provider.taken().len()), (401, 0), "{}", answer.text());
}

/// 200 models with one to three targets each, and a request to each model with a canary in every header. If there are
/// several targets, the first ones may fail. Each provider also has a canary as its own credential, which no other may
/// get.
#[test]
fn canaries_in_credentials_reach_no_provider_but_their_own() {
    const HEADERS: [&str; 18] = [
        "authorization",
        "x-api-key",
        "cookie",
        "proxy-authorization",
        "api-key",
        "x-goog-api-key",
        "referer",
        "x-session-id",
        "x-claude-code-session-id",
        "x-claude-code-agent-id",
        "x-claude-code-parent-agent-id",
        "x-codex-turn-metadata",
        "x-request-id",
        "originator",
        "openai-organization",
        "x-forwarded-for",
        "user-agent",
        "x-stainless-lang",
    ];
    let recorders: Vec<(Recorder, SocketAddr)> = (0..6).map(|_| Recorder::start()).collect();
    let (own, others) = (["own-chat", "own-messages"], ["chat-1", "chat-2", "messages-1", "messages-2"]);
    let (mut more, mut seed) = (String::new(), 0x2545_f491_4f6c_dd1du64);
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let secrets = Folder::new();
    let secret_of = |name: &str| format!("provider-canary-{name}-9876543210");
    for (name, (_, at)) in own.iter().chain(&others).zip(&recorders) {
        let shape = if name.contains("chat") { "chat" } else { "messages" };
        let file = secrets.path().join(name);
        fs::write(&file, secret_of(name)).unwrap();
        let secret = format!("api_key = {{ file = \"{}\" }}", file.display());
        let auth = if own.contains(name) { "auth = \"client\"" } else { &*secret };
        more += &provider(name, shape, *at, auth);
    }
    let mut routes = Vec::new();
    for number in 0..200 {
        let first = random(6) as usize;
        let targets: Vec<&str> = match own.get(first) {
            Some(name) => vec![name],
            None => (0..1 + random(3)).map(|_| others[random(4) as usize]).collect(),
        };
        more += &model(&format!("route-{number}"), &targets);
        routes.push(own.get(first).map(|_| first));
    }
    let collector = Collector::start();
    // Writing to a String cannot fail.
    let _ = write!(more, "[telemetry]\notlp = \"http://{}\"\nsample = 1.0\n", collector.at);
    let mut h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    let (mut answers, mut failed_over) = (String::new(), 0);
    for (number, route) in routes.iter().enumerate() {
        for (recorder, _) in &recorders {
            // The last three let a target rest, so that few of the requests after them can fail over.
            let statuses =
                if number < 150 { &[200, 200, 400, 500, 500, 500, 500] } else { &[200, 200, 400, 500, 401, 429, 503] };
            recorder.answer_with(statuses[random(7) as usize]);
        }
        let canary = |name: &str| format!("canary-{number}-{name}-0123456789");
        let mut fields: Vec<(&str, String)> = HEADERS.iter().map(|name| (*name, canary(name))).collect();
        fields[0].1 = bearer(&fields[0].1);
        fields.push(("x-tollgate-key", key.clone()));
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (path, body) = match random(3) {
            0 => ("/v1/chat/completions", chat("x")),
            1 => ("/v1/messages", with(message("x"), "max_tokens", 9)),
            _ => ("/v1/responses", json!({ "input": "x" })),
        };
        let body = with(body, "model", format!("route-{number}"));
        let answer = ask(&h, path, &fields, &if random(2) == 0 { streamed(body) } else { body });
        // Writing to a String cannot fail.
        let _ = writeln!(answers, "{:?} {}", answer.head.fields, answer.text());
        let (mut sent, mut several) = (0, 0);
        for (at, (recorder, _)) in recorders.iter().enumerate() {
            for mut received in recorder.taken() {
                sent += 1;
                if *route == Some(at) {
                    for name in &HEADERS[..2] {
                        assert!(received.contains(&canary(name)), "{name} is missing: {received}");
                        received = received.replace(&canary(name), "");
                    }
                }
                if let Some(name) = at.checked_sub(own.len()).map(|at| others[at]) {
                    assert!(received.contains(&secret_of(name)), "{name}: {received}");
                    received = received.replace(&secret_of(name), "");
                    several += usize::from(sent > 1);
                }
                assert!(!received.contains("canary") && !received.contains(&key), "route {number}: {received}");
            }
        }
        // A provider that has asked for a pause gets at most one request a second.
        assert!(sent > 0 || answer.status() == 503, "route {number} was not taken: {}", answer.text());
        failed_over += usize::from(several > 0);
    }
    assert!(failed_over >= 20, "{failed_over} requests were sent to several providers");
    let kept = ["authorization", "x-api-key", "cookie", "api-key", "x-goog-api-key", "x-codex-turn-metadata"];
    let admin = super::client::get(h.admin, "/metrics").unwrap().text().to_owned();
    let requests = h.command(&["requests", "--json"]).out;
    h.gateway.stop("TERM");
    let mut places =
        vec![("answer", answers), ("log", h.gateway.written()), ("metrics", admin), ("requests", requests)];
    assert!(collector.spans().len() >= routes.len(), "{} spans", collector.spans().len());
    places.push(("spans", format!("{:?}", collector.asked())));
    for entry in fs::read_dir(h.folder.path()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("tollgate.db") {
            places.push(("ledger", String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned()));
        }
    }
    for (place, text) in places {
        for name in kept {
            assert!(!text.contains(&format!("-{name}-0123456789")), "{place} has {name}");
        }
        assert!(!text.contains(&key) && !text.contains("provider-canary"), "{place} has a key");
    }
}
