//! Traffic of `tollgate demo --traffic`: clients of four invented keys, whose requests succeed and fail in the ways
//! that the dashboard explains.

use super::blocking_http::{ServerAddress, ask, follow};
use super::demo_config::toml_string;
use crate::io::tls::Security;
use crate::io::worker::start_thread;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

/// Clients that send requests at the same time.
const CLIENTS: usize = 3;
/// Time between a client's response and its next request.
const PAUSE: Duration = Duration::from_millis(300);
/// Longest time for a response.
const ANSWER: Duration = Duration::from_secs(20);
/// Requests of an agent's session.
const SESSION: usize = 40;
/// Completion tokens that a request may cost. Without a maximum, reservations would use up the small budgets.
const TOKENS_MAX: u32 = 64;

/// Name, plan and group of each key.
pub const KEYS: [(&str, &str, &str); 4] = [
    ("support-bot", super::demo_config::PLAN, "product"),
    ("bob-notebook", super::demo_config::PLAN, "research"),
    ("ci-pipeline", "trial", "product"),
    ("agent-fleet", super::demo_config::PLAN, "product"),
];

/// Settings of the plan and the groups of [`KEYS`]: a limit of requests and a budget that are exhausted within a
/// minute, and a budget that lasts longer than a day.
const LIMITS: &str = "[[plans]]\nname = \"trial\"\nrequests = 10\n\n\
    [[groups]]\nname = \"research\"\nbudget = 0.004\nperiod = \"day\"\n\n\
    [[groups]]\nname = \"product\"\nbudget = 250\nperiod = \"day\"\n\n";

/// A target at which nothing listens: TCP port 1 is reserved for a service that no host offers.
const DOWN: &str = "127.0.0.1:1";

/// The part of the configuration that only the traffic needs: [`LIMITS`], and two models that fail. One has a target
/// that refuses connections before one that answers; the other's provider returns errors.
pub fn traffic_settings(provider: SocketAddr) -> String {
    let (down, up) = (toml_string(&format!("http://{DOWN}/v1")), toml_string(&format!("http://{provider}/v1")));
    let price = "input_price = 0.3\noutput_price = 1.2\ncontext = \"256K\"\n";
    format!(
        "\n{LIMITS}\
         [[providers]]\nname = \"egret-rack1\"\nshape = \"chat\"\nbase_url = {down}\n\n\
         [[providers]]\nname = \"egret-rack2\"\nshape = \"chat\"\nbase_url = {up}\n\n\
         [[models]]\nid = \"egret\"\n{price}targets = [\n  {{ provider = \"egret-rack1\", model = \"egret\" }},\n  \
         {{ provider = \"egret-rack2\", model = \"egret\" }},\n]\n\n\
         [[models]]\nid = \"egret-beta\"\n{price}targets = [{{ provider = \"egret-rack2\", model = \"egret-beta\" }}]\n"
    )
}

/// A request that a client sends.
#[derive(Clone, Copy)]
struct DemoRequest {
    /// Position in [`KEYS`]; beyond them, a key that was never issued.
    key: usize,
    path: &'static str,
    model: &'static str,
    /// Directives for the simulated provider.
    directives: &'static str,
    /// A member of the body, and a value that the API does not allow.
    wrong: Option<(&'static str, &'static str)>,
    stream: bool,
    /// True if the client leaves in the middle of the response.
    leaves: bool,
}

impl DemoRequest {
    const fn chat(key: usize, model: &'static str, directives: &'static str) -> DemoRequest {
        let path = "/v1/chat/completions";
        DemoRequest { key, path, model, directives, wrong: None, stream: true, leaves: false }
    }

    const fn whole(self) -> DemoRequest {
        DemoRequest { stream: false, ..self }
    }

    const fn to(self, path: &'static str) -> DemoRequest {
        DemoRequest { path, ..self }
    }
}

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Requests that succeed. The exception is the key with few requests per minute, so it has only one of them: its
/// failures must not change the share of [`FAILS`] much.
const SUCCESSES: [DemoRequest; 11] = [
    DemoRequest::chat(0, "heron-small", "tokens=40 cached=8"),
    DemoRequest::chat(3, "ibis-medium", "tokens=60").to(MESSAGES),
    DemoRequest::chat(3, "heron-large", "tokens=30"),
    DemoRequest::chat(0, "egret", "tokens=20"),
    DemoRequest::chat(3, "heron-large", "tokens=50 think=10").to(RESPONSES),
    DemoRequest::chat(2, "heron-nano", "tokens=10").whole(),
    DemoRequest::chat(0, "heron-large", "tokens=40").whole(),
    DemoRequest::chat(3, "ibis-large", "tokens=30").to(MESSAGES),
    DemoRequest::chat(0, "egret", "tokens=30").whole(),
    DemoRequest::chat(0, "ibis-small", "tokens=20").to(MESSAGES),
    DemoRequest::chat(3, "heron-small", "tokens=60 cached=20"),
];

/// Requests that fail, each for another reason. The key with the small budget has no other requests: once the budget is
/// exhausted, all of them fail.
const FAILURES: [DemoRequest; 10] = [
    DemoRequest::chat(0, "egret-beta", "status=503 message=overloaded"),
    DemoRequest { wrong: Some(("temperature", "warm")), ..DemoRequest::chat(0, "heron-small", "").whole() },
    DemoRequest::chat(3, "egret-beta", "error_after=5 message=out_of_memory"),
    DemoRequest::chat(0, "gpt-5-mini", "").whole(),
    DemoRequest { leaves: true, ..DemoRequest::chat(0, "heron-small", "tokens=60 pace=20") },
    DemoRequest::chat(3, "egret-beta", "cut_after=4"),
    DemoRequest::chat(0, "heron-small", "").to("/v1/chatt").whole(),
    DemoRequest::chat(0, "egret-beta", "status=429 retry_after=1 message=slow_down").whole(),
    DemoRequest::chat(KEYS.len(), "heron-small", "").whole(),
    DemoRequest::chat(1, "ibis-large", "tokens=60").to(MESSAGES),
];

/// One of this number of requests fails.
const FAILS: usize = 4;

/// Pieces of a response after which a client leaves.
const LEAVES_AFTER: u32 = 5;

/// The request that a client sends at this position.
fn request_at(count: usize) -> &'static DemoRequest {
    match count % FAILS {
        0 => &FAILURES[count / FAILS % FAILURES.len()],
        _ => &SUCCESSES[(count - count / FAILS) % SUCCESSES.len()],
    }
}

/// Starts the clients on threads of their own; they end with the process. `secrets` are those of [`KEYS`].
pub fn start(gateway: SocketAddr, secrets: &[String]) -> std::io::Result<()> {
    for client in 0..CLIENTS {
        let secrets = secrets.to_vec();
        // Each client begins elsewhere in the tables.
        let first = client * FAILS * FAILURES.len() / CLIENTS;
        start_thread("traffic", Box::new(move || send_forever(gateway, &secrets, first)))?;
    }
    Ok(())
}

fn send_forever(gateway: SocketAddr, secrets: &[String], first: usize) {
    let security = Security::default();
    let gateway = ServerAddress {
        socket: None,
        addresses: &[gateway],
        host: "127.0.0.1",
        port: gateway.port(),
        tunnel: None,
        tls: (&security, None),
        connect: ANSWER,
        answer: ANSWER,
    };
    for count in first.. {
        let request = request_at(count);
        let secret = secrets.get(request.key).map_or("tg_live_never_issued", String::as_str);
        let bytes = bytes_of(request, secret, count);
        // The result shows on the dashboard; failures are intended.
        if request.leaves {
            let mut pieces = 0;
            let mut see = |_: &[u8]| {
                pieces += 1;
                pieces < LEAVES_AFTER
            };
            drop(follow(&gateway, &bytes, &mut see));
        } else {
            drop(ask(&gateway, &bytes));
        }
        sleep(PAUSE);
    }
}

/// The request as it is sent. `count` numbers the sessions of agents.
fn bytes_of(request: &DemoRequest, secret: &str, count: usize) -> Vec<u8> {
    let prompt = format!("Summarise the next page of the report.\n#sim {}", request.directives);
    let (texts, maximum): (Value, &str) = match request.path {
        RESPONSES => (json!(prompt), "max_output_tokens"),
        MESSAGES => (json!([{ "role": "user", "content": prompt }]), "max_tokens"),
        _ => (json!([{ "role": "user", "content": prompt }]), "max_completion_tokens"),
    };
    let member = if request.path == RESPONSES { "input" } else { "messages" };
    let mut body = json!({ "model": request.model, "stream": request.stream, member: texts, maximum: TOKENS_MAX });
    if let Some((name, value)) = request.wrong {
        body[name] = json!(value);
    }
    let body = body.to_string();
    let (path, length, session) = (request.path, body.len(), count / SESSION);
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {secret}\r\nanthropic-version: 2023-06-01\r\n\
         content-type: application/json\r\nx-session-id: session-{session}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
