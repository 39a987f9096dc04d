//! A gateway and a simulated provider, both as real processes, with a ledger and keys in a temporary folder. [`Setup`]
//! contains the options that a test changes.

use super::client::{Answer, Client, get, post, request};
use super::process::{Done, Folder, Process, free_port, run, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// The environment variable of the gateway's credential for the provider, and its value: a marker that must not appear
/// anywhere else.
pub const CREDENTIAL: (&str, &str) = ("SIM_KEY", "upstream-credential-4711");

/// Configuration with placeholders, which [`Harness::start`] fills in.
const CONFIG: &str = r#"
default_model = "small"

[server]
listen = "{gateway}"
admin_listen = "{admin}"
{server}

[store]
{store}

[upstream]
connect_timeout = "20s"
breaker_failures = 0
{upstream}

[[providers]]
name = "sim-chat"
shape = "chat"
base_url = "http://{provider}/v1"
api_key = { env = "SIM_KEY" }

[[providers]]
name = "sim-messages"
shape = "messages"
base_url = "http://{provider}"
auth = "x-api-key"
api_key = { env = "SIM_KEY" }

[[providers]]
name = "nobody"
shape = "chat"
base_url = "http://{nobody}/v1"

[[models]]
id = "small"
name = "Small One"
owned_by = "sim"
context = "256K"
input_price = 0.25
output_price = 2.0
targets = [{ provider = "sim-chat", model = "up-small" }]

[[models]]
id = "large"
name = "Large One"
owned_by = "sim"
context = "1M"
input_price = 3.0
output_price = 15.0
targets = [{ provider = "sim-messages", model = "up-large" }]

[[models]]
id = "hasty"
context = "256K"
first_byte_timeout = "400ms"
idle_timeout = "400ms"
request_timeout = "400ms"
targets = [{ provider = "sim-chat", model = "up-hasty" }]

[[models]]
id = "hasty-large"
context = "256K"
first_byte_timeout = "400ms"
idle_timeout = "400ms"
request_timeout = "400ms"
targets = [{ provider = "sim-messages", model = "up-hasty-large" }]

[[models]]
id = "gone"
context = "256K"
targets = [{ provider = "nobody", model = "up-gone" }]

[[plans]]
name = "open"
tokens = 1_000_000_000
requests = 1_000_000

[[plans]]
name = "two"
requests = 2
window = "7d"

[[plans]]
name = "allowance"
tokens = 40

[[plans]]
name = "window-tokens"
tokens_per_window = 40
window = "7d"

[[plans]]
name = "single"
concurrency = 1

{more}
"#;

/// Options of a test that differ from the defaults.
#[derive(Default)]
pub struct Setup {
    /// Lines for `[server]`.
    pub server: &'static str,
    /// Lines for `[upstream]`.
    pub upstream: &'static str,
    /// Lines for `[store]`, instead of the default `url`.
    pub store: String,
    /// Additional tables.
    pub more: String,
}

/// The two processes, their folder and their addresses.
pub struct Harness {
    /// The gateway's process.
    pub gateway: Process,
    /// The provider's process.
    pub provider: Process,
    /// Address of the gateway.
    pub at: SocketAddr,
    /// Address for health and metrics.
    pub admin: SocketAddr,
    /// Address of the provider.
    pub upstream: SocketAddr,
    /// Folder of the configuration, the ledger and the output.
    pub folder: Folder,
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Starts a simulated provider and waits until it answers.
pub fn start_provider(folder: &Path, at: SocketAddr, name: &str) -> Process {
    let listen = at.to_string();
    let args = ["provider", "--listen", &listen, "--key", CREDENTIAL.1];
    let mut process = Process::start(folder, name, &args, &[]);
    wait_for("the provider to answer", || {
        assert!(!process.has_ended(), "the provider has ended: {}", process.written());
        get(at, "/healthz").ok().filter(|answer| answer.status() == 200)
    });
    process
}

fn start_gateway(folder: &Path, admin: SocketAddr) -> Process {
    let mut process = Process::start(folder, "gateway", &["serve"], &[CREDENTIAL]);
    wait_for("the gateway to be ready", || {
        assert!(!process.has_ended(), "the gateway has ended: {}", process.written());
        get(admin, "/readyz").ok().filter(|answer| answer.status() == 200)
    });
    process
}

impl Harness {
    /// Starts both processes with the default configuration.
    pub fn usual() -> Harness {
        Harness::start(&Setup::default())
    }

    /// Starts both processes.
    pub fn start(setup: &Setup) -> Harness {
        Harness::start_at(setup, local(free_port()))
    }

    /// Starts both processes, with the provider at a given address.
    pub fn start_at(setup: &Setup, upstream: SocketAddr) -> Harness {
        let folder = Folder::new();
        let [at, admin, nobody] = [(); 3].map(|()| local(free_port()));
        let store = if setup.store.is_empty() { "url = \"sqlite:tollgate.db\"" } else { &setup.store };
        let mut text = CONFIG.to_owned();
        for (name, value) in [
            ("{server}", setup.server),
            ("{upstream}", setup.upstream),
            ("{more}", &setup.more),
            ("{store}", store),
            ("{gateway}", &at.to_string()),
            ("{admin}", &admin.to_string()),
            ("{provider}", &upstream.to_string()),
            ("{nobody}", &nobody.to_string()),
        ] {
            text = text.replace(name, value);
        }
        fs::write(folder.path().join("tollgate.toml"), text).unwrap();
        let provider = start_provider(folder.path(), upstream, "provider");
        let gateway = start_gateway(folder.path(), admin);
        Harness { gateway, provider, at, admin, upstream, folder }
    }

    /// Starts the gateway again after it has ended, on the same ledger.
    pub fn start_again(&mut self) {
        self.gateway = start_gateway(self.folder.path(), self.admin);
    }

    /// Starts the provider again after it has ended, at the same address.
    pub fn start_provider_again(&mut self) {
        self.provider = start_provider(self.folder.path(), self.upstream, "provider");
    }

    /// Runs a command of the binary while the gateway runs.
    pub fn command(&self, args: &[&str]) -> Done {
        run(self.folder.path(), args, &[CREDENTIAL])
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub fn done(&self, args: &[&str]) -> String {
        let done = self.command(args);
        assert_eq!(done.code, 0, "{args:?}: {}{}", done.out, done.err);
        done.out
    }

    /// Issues a key and waits until the running gateway knows it.
    pub fn key_with(&self, args: &[&str]) -> String {
        let key = self.issue(args);
        wait_for("the gateway to know the key", || (self.status_of(&key) != 401).then_some(()));
        key
    }

    /// Issues a key of the first plan without a restricted scope.
    pub fn key(&self) -> String {
        self.key_with(&[])
    }

    /// Issues a key without waiting for the gateway.
    pub fn issue(&self, args: &[&str]) -> String {
        let mut all = vec!["keys", "issue", "--name", "test"];
        all.extend(args);
        let out = self.done(&all);
        let key = out.strip_suffix('\n').unwrap_or(&out).to_owned();
        assert!(key.starts_with("tg_live_") && key.len() == 8 + 12 + 32 + 6, "{out:?}");
        key
    }

    /// Returns the status of `GET /v1/quota` with a key.
    pub fn status_of(&self, key: &str) -> u16 {
        self.get("/v1/quota", key).status()
    }

    /// Opens a connection to the gateway.
    pub fn client(&self) -> Client {
        Client::connect(self.at)
    }

    /// Sends a GET with a key on a new connection.
    pub fn get(&self, path: &str, key: &str) -> Answer {
        self.client().ask(&request("GET", path, &[("authorization", &bearer(key))]))
    }

    /// Sends a chat request on a new connection.
    pub fn chat(&self, key: &str, body: &Value) -> Answer {
        self.client().ask(&chat_request(key, body))
    }

    /// Sends a Messages request on a new connection.
    pub fn messages(&self, key: &str, body: &Value) -> Answer {
        self.client().ask(&messages_request(key, body))
    }

    /// Sends a request to the endpoint of a route.
    pub fn generate(&self, route: &str, key: &str, body: &Value) -> Answer {
        if is_chat(route) { self.chat(key, body) } else { self.messages(key, body) }
    }

    /// Returns the provider's own counts.
    pub fn stats(&self) -> Value {
        get(self.upstream, "/stats").unwrap().json()
    }

    /// Returns one of the provider's own counts.
    pub fn count(&self, name: &str) -> u64 {
        self.stats()[name].as_u64().unwrap_or_else(|| panic!("{name}: {}", self.stats()))
    }

    /// Returns the header lines (in lower case) and the body of the last request that the provider received.
    pub fn last(&self) -> (String, Value) {
        let mut last = get(self.upstream, "/last").unwrap().json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_ascii_lowercase();
        let lines = last["headers"].as_array().into_iter().flatten();
        let head = lines.map(|line| format!("{}: {}\n", text(&line[0]), text(&line[1]))).collect();
        (head, last["body"].take())
    }

    /// Returns the output of `tollgate usage --json`, grouped by `by`.
    pub fn usage(&self, by: &str) -> Vec<Value> {
        let out = self.done(&["usage", "--by", by, "--json"]);
        serde_json::from_str::<Value>(&out).unwrap().as_array().unwrap().clone()
    }

    /// Waits until the ledger has at least `requests` usage records. Returns the sums over all keys.
    pub fn ledger(&self, requests: u64) -> Ledger {
        wait_for("the rows to be written", || {
            let ledger = Ledger::sum(&self.usage("key"));
            (ledger.requests >= requests).then_some(ledger)
        })
    }

    /// Returns the tokens used in the period, as the gateway reports them to the key.
    pub fn used(&self, key: &str) -> u64 {
        self.get("/v1/quota", key).json()["tokens"]["used"].as_u64().unwrap()
    }

    /// Returns the lines of the request log so far.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.gateway.stderr).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for the log line of a request and returns it.
    pub fn log_of(&self, id: &str) -> Value {
        wait_for("the log line", || self.log().into_iter().find(|line| line["id"] == id))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let written = self.gateway.written() + &self.provider.written();
            assert!(!written.contains("panic"), "a panic was caught: {written}");
        }
    }
}

/// Returns the value of a gateway metric without labels.
pub fn gauge(h: &Harness, name: &str) -> u64 {
    let metrics = get(h.admin, "/metrics").unwrap();
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {}", metrics.text()))
}

/// Sums of usage records.
#[derive(Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Number of records.
    pub requests: u64,
    /// Input tokens, including cached ones.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
}

impl Ledger {
    fn sum(lines: &[Value]) -> Ledger {
        let of = |name: &str| lines.iter().map(|line| line[name].as_u64().unwrap_or_default()).sum::<u64>();
        Ledger {
            requests: of("requests"),
            input: of("uncached_input_tokens") + of("cache_read_tokens") + of("cache_write_tokens"),
            output: of("output_tokens"),
        }
    }

    /// Returns the sum of input and output tokens.
    pub fn tokens(&self) -> u64 {
        self.input + self.output
    }
}

/// Returns the value of an `authorization` header.
pub fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

/// A part of a form whose boundary is `b`. `file`: its file name.
pub fn part(name: &str, file: Option<&str>, content: &str) -> String {
    let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
    format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n{content}\r\n")
}

/// A request with a form of these parts.
pub fn post_form(path: &str, key: &str, parts: &str, in_chunks: bool) -> Vec<u8> {
    let body = [parts, "--b--\r\n"].concat();
    let (framing, framed) = match in_chunks {
        true => ("transfer-encoding: chunked".to_owned(), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())),
        false => (format!("content-length: {}", body.len()), body),
    };
    let credential = bearer(key);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: {credential}\r\n\
         content-type: multipart/form-data; boundary=b\r\n{framing}\r\n\r\n"
    );
    (head + &framed).into_bytes()
}

/// Returns a request to the chat endpoint.
pub fn chat_request(key: &str, body: &Value) -> Vec<u8> {
    post("/v1/chat/completions", &[("authorization", &bearer(key))], &body.to_string())
}

/// Returns a request to the messages endpoint.
pub fn messages_request(key: &str, body: &Value) -> Vec<u8> {
    let fields = [("x-api-key", key), ("anthropic-version", "2023-06-01")];
    post("/v1/messages", &fields, &body.to_string())
}

/// Returns a body for the chat endpoint.
pub fn chat(text: &str) -> Value {
    json!({ "model": "small", "messages": [{ "role": "user", "content": text }] })
}

/// Returns a body for the messages endpoint.
pub fn message(text: &str) -> Value {
    json!({ "model": "large", "max_tokens": 10_000_000, "messages": [{ "role": "user", "content": text }] })
}

/// Every route through the gateway: the endpoint, and the API format of the provider if it differs.
pub const ROUTES: [&str; 4] = ["chat", "messages", "chat to messages", "messages to chat"];

/// Returns true if a route begins at the chat endpoint.
pub fn is_chat(route: &str) -> bool {
    route.starts_with("chat")
}

/// Returns the models of a route: a usual one, and one with short timeouts.
pub fn models_of(route: &str) -> (&'static str, &'static str) {
    if matches!(route, "chat" | "messages to chat") { ("small", "hasty") } else { ("large", "hasty-large") }
}

/// Returns a body for a route.
pub fn body(route: &str, text: &str) -> Value {
    with(if is_chat(route) { chat(text) } else { message(text) }, "model", models_of(route).0)
}

/// Returns the body with one member set.
pub fn with(mut body: Value, name: &str, value: impl Into<Value>) -> Value {
    body[name] = value.into();
    body
}

/// Returns the body of a streamed request.
pub fn streamed(body: Value) -> Value {
    with(body, "stream", true)
}
