//! `tollgate demo`: the gateway with a simulated provider and a fresh key, without any set-up. Prints commands to
//! paste.

pub mod config;

use super::args::DemoArgs;
use super::demo::config::{PLAN, demo_text};
use super::keys::with_entropy;
use super::output::{Failure, print};
use super::serve::{ServeListeners, catch_signals, serve};
use crate::base::digest::hex;
use crate::io::clock;
use crate::io::entropy::random;
use crate::io::files;
use crate::io::listen;
use crate::io::machine::explained;
use crate::io::signals::Signals;
use crate::io::worker::start_thread;
use crate::policy::catalog::Model;
use crate::policy::config::{Config, Source};
use crate::policy::keys::{self, KeyRecord, Scope};
use crate::policy::plan::caps::Caps;
use crate::simulator::SimulatorSettings;
use crate::store::sqlite::{Mode, Sqlite};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the demo in the foreground until a signal; exit code 0.
pub fn run(args: &DemoArgs) -> ExitCode {
    let folder = DemoFolder::new().map_err(Failure::failed);
    let ended = catch_signals().and_then(|signals| demo(args, &folder?.0, signals));
    ended.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// A folder for the demo's ledger, removed when the demo ends.
struct DemoFolder(PathBuf);

impl DemoFolder {
    /// Creates a folder with an unguessable name. It must be new, since other users may write to the temporary
    /// directory.
    fn new() -> Result<DemoFolder, String> {
        let random = random().map_err(|error| error.to_string())?;
        let path = std::env::temp_dir().join(format!("tollgate-demo-{:016x}", u64::from_ne_bytes(random)));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(DemoFolder(path))
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        // If it cannot be removed, it remains in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn demo(args: &DemoArgs, folder: &Path, signals: Signals) -> Result<(), Failure> {
    let provider = start_provider(args).map_err(Failure::failed)?;
    let listen = Port::find(args.listen, "--listen", LISTEN).map_err(Failure::failed)?;
    let admin = Port::find(args.admin_listen, "--admin-listen", ADMIN).map_err(Failure::failed)?;
    let (db, place) = (folder.join("demo.db"), folder.join("write.token"));
    let token = write_token(&place).map_err(Failure::failed)?;
    let text = demo_text(provider, listen.address, admin.address, &db.to_string_lossy(), &place.to_string_lossy());
    let file = folder.join("demo.toml");
    files::write_new(&file, text.as_bytes())
        .map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
    let name = file.to_string_lossy();
    let read = |_: &str| Ok(token.clone());
    let source = Source { file: &name, text: &text, env: &|_| None, read: &read, run: &Source::no_program };
    let config = Config::parse(&source).map_err(Failure::Config)?;
    let key = issue_key(&db, &config).map_err(Failure::failed)?;
    let listeners = ServeListeners::bind(&config).map_err(Failure::failed)?;
    let listeners_at = [listen.address, admin.address];
    let help = help_text(&listeners_at, (&key, &token), &config, &file, args.examples).map_err(Failure::failed)?;
    print(&[listen.taken(), admin.taken(), help].concat())?;
    // Without log output: the demo's terminal shows the commands to paste.
    serve(config, None, listeners, signals, Box::new(std::io::sink())).map_err(Failure::failed)
}

/// Default address of the demo.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Address of the dashboard, the admin API, health and metrics.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// An address to listen on, and the address that the user requested.
struct Port {
    address: SocketAddr,
    usual: SocketAddr,
    asked: bool,
}

impl Port {
    /// The requested address, which must be free; otherwise the default, or a free port if that is taken.
    fn find(asked: Option<SocketAddr>, option: &str, usual: SocketAddr) -> Result<Port, String> {
        let wanted = asked.unwrap_or(usual);
        let bound = TcpListener::bind(wanted);
        let bound = match asked {
            Some(_) => bound.map_err(|error| format!("{option} {wanted}: {}", explained(&error)))?,
            None => bound
                .or_else(|_| TcpListener::bind(SocketAddr::new(wanted.ip(), 0)))
                .map_err(|error| format!("cannot listen on {wanted}: {}", explained(&error)))?,
        };
        let address = bound.local_addr().map_err(|error| format!("cannot listen on {wanted}: {error}"))?;
        Ok(Port { address, usual, asked: asked.is_some() })
    }

    /// Line about the default port if another one is used in its place; otherwise nothing.
    fn taken(&self) -> String {
        if self.asked || self.address == self.usual {
            return String::new();
        }
        format!("Port {} is taken by something else: this is {}.\n", self.usual.port(), self.address)
    }
}

/// Starts the simulated provider, on a thread and an event loop of its own; it ends with the process.
fn start_provider(args: &DemoArgs) -> Result<SocketAddr, String> {
    let failed = |error: std::io::Error| format!("cannot start the simulated provider: {error}");
    let listener = listen::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), false).map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let settings = SimulatorSettings { pace: args.pace, ..SimulatorSettings::default() };
    let start = move || drop(super::provider::reactor(listener, settings).and_then(|reactor| reactor.run()));
    start_thread("provider", Box::new(start)).map_err(failed)?;
    Ok(addr)
}

/// Writes a token for changing keys in the dashboard; it is in the demo's folder, readable only by its owner.
fn write_token(place: &Path) -> Result<String, String> {
    let token = hex(&random::<16>().map_err(|error| error.to_string())?);
    files::write_new(place, token.as_bytes()).map_err(|error| format!("{}: {error}", place.display()))?;
    Ok(token)
}

/// Issues a key; returns its secret.
fn issue_key(db: &Path, config: &Config) -> Result<String, String> {
    let issued = with_entropy(|fill| keys::issue(&config.server.key_prefix, fill)).map_err(|failure| failure.text())?;
    let record = KeyRecord {
        id: issued.id,
        digest: issued.digest,
        name: "demo".into(),
        plan: PLAN.into(),
        scope: Scope::default(),
        created: clock::unix(),
        expires: None,
        revoked: None,
        disabled: false,
        limits: Caps::default(),
        group: None,
        labels: Vec::new(),
        former: Vec::new(),
        capture: None,
    };
    let failed = |error| format!("cannot issue a key: {error}");
    Sqlite::open(db, Mode::Shared).map_err(failed)?.insert_key(&record).map_err(failed)?;
    Ok(issued.text)
}

/// The catalog id of the first model whose provider has the API format `shape`.
fn model_of<'a>(config: &'a Config, shape: &str) -> &'a str {
    let speaks = |model: &&Model| {
        let provider = model.targets.first().and_then(|target| config.provider(target.provider));
        provider.is_some_and(|provider| provider.shape.name() == shape)
    };
    config.catalog.models().iter().find(speaks).map_or("", |model| &*model.id)
}

fn help_text(
    [listen, admin]: &[SocketAddr; 2],
    (key, token): (&str, &str),
    config: &Config,
    file: &Path,
    examples: bool,
) -> Result<String, std::fmt::Error> {
    let models: Vec<&str> = config.catalog.models().iter().map(|model| &*model.id).collect();
    let (chat, messages) = (model_of(config, "chat"), model_of(config, "messages"));
    let relayed = config.catalog.models().iter().find(|model| model.serves.len() > 1).map_or("", |model| &*model.id);
    let (base, models) = (format!("http://{listen}"), models.join(", "));
    let json = "-H 'content-type: application/json'";
    let hello = "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]";
    let mut out = String::new();
    writeln!(out, "Tollgate is listening on {base} with a simulated provider behind it. Ctrl-C ends it.\n")?;
    writeln!(out, "Dashboard: http://{admin}/#token={token} (admin token: {token})")?;
    writeln!(out, "Configuration, removed at the end: {}\n", file.display())?;
    writeln!(out, "Models: {models}\n\nOpenAI Chat Completions, streamed:\n")?;
    writeln!(
        out,
        "curl -sN {base}/v1/chat/completions -H 'authorization: Bearer {key}' {json} \
         -d '{{\"model\":\"{chat}\",\"stream\":true,{hello}}}'"
    )?;
    writeln!(out, "\nFor the SDKs:\n")?;
    writeln!(out, "export OPENAI_BASE_URL={base}/v1 OPENAI_API_KEY={key}")?;
    writeln!(out, "export ANTHROPIC_BASE_URL={base} ANTHROPIC_API_KEY={key}\n")?;
    if !examples {
        writeln!(out, "`tollgate demo --examples` prints a command for every API, Claude Code, usage and metrics.")?;
        return Ok(out);
    }
    writeln!(out, "Anthropic Messages:\n")?;
    writeln!(
        out,
        "curl -s {base}/v1/messages -H 'x-api-key: {key}' -H 'anthropic-version: 2023-06-01' {json} \
         -d '{{\"model\":\"{messages}\",\"max_tokens\":256,{hello}}}'"
    )?;
    writeln!(out, "\nOpenAI Responses, which Codex uses:\n")?;
    writeln!(
        out,
        "curl -s {base}/v1/responses -H 'authorization: Bearer {key}' {json} \
         -d '{{\"model\":\"{chat}\",\"input\":\"Hello\"}}'"
    )?;
    for (path, words, more) in [
        ("embeddings", "Embeddings", "\"input\":[\"red fox\",\"grey heron\"]"),
        (
            "rerank",
            "Rerank: documents by how well they fit a query",
            "\"query\":\"red fox\",\"documents\":[\"a heron\",\"the red fox\"]",
        ),
        ("completions", "Fill-in-the-middle, for editors", "\"prompt\":\"def add(\",\"suffix\":\"return a + b\""),
        ("images/generations", "Images", "\"prompt\":\"A red fox\",\"n\":1"),
        ("audio/speech", "Speech (bytes that are no sound)", "\"input\":\"A red fox\",\"voice\":\"alloy\""),
        ("moderations", "Moderations", "\"input\":\"A red fox\""),
    ] {
        writeln!(out, "\n{words}:\n")?;
        writeln!(
            out,
            "curl -s {base}/v1/{path} -H 'authorization: Bearer {key}' {json} -d '{{\"model\":\"{relayed}\",{more}}}'"
        )?;
    }
    writeln!(out, "\nTranscription (made-up text):\n")?;
    writeln!(
        out,
        "curl -s {base}/v1/audio/transcriptions -H 'authorization: Bearer {key}' -F model={relayed} -F file=@/etc/hosts"
    )?;
    writeln!(out, "\nModels of the key, and its remaining quota: GET {base}/v1/models and {base}/v1/quota\n")?;
    writeln!(out, "Claude Code (the simulated provider returns made-up text):\n")?;
    writeln!(out, "ANTHROPIC_BASE_URL={base} ANTHROPIC_AUTH_TOKEN={key} claude --model {messages}\n")?;
    writeln!(out, "Usage: tollgate usage --config {}", file.display())?;
    writeln!(out, "Health and metrics: http://{admin}/readyz and http://{admin}/metrics\n")?;
    Ok(out)
}
