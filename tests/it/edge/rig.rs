//! The gateway of one test: the real binary, a simulated provider, a configuration, a ledger and a key.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tollgate::simulator::SimulatorSettings;

/// Timeout of every wait.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder with the files of a gateway, removed when the rig is dropped.
pub struct Rig {
    pub folder: PathBuf,
    /// Address of the simulated provider.
    pub provider: SocketAddr,
    /// A key without restrictions.
    pub key: String,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Rig {
    /// Creates a rig; `server` contains lines for the table `[server]`. All ports are free ones.
    pub fn new(name: &str, server: &str) -> Rig {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let (id, serial) = (std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("tollgate-edge-{id}-{serial}-{name}"));
        // Tests have a thousand or more connections, some with both ends in this process.
        tollgate::io::listen::raise_descriptor_limit().unwrap();
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut rig = Rig { folder, provider: provider(), key: String::new() };
        for what in ["read", "write"] {
            std::fs::write(rig.path(&format!("{what}.token")), format!("a-token-that-{what}s")).unwrap();
        }
        rig.configure(server, &rig.models("small"), "");
        rig.key = rig.issue("");
        rig
    }

    /// Replaces the configuration. The files `read.token` and `write.token` exist for its tokens.
    pub fn configure(&self, server: &str, models: &str, plans: &str) {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n{server}\n\
             [store]\nurl = \"sqlite:ledger.db\"\n{models}\n{plans}"
        );
        std::fs::write(self.path("tollgate.toml"), text).unwrap();
    }

    /// Returns the configuration of the simulated provider and of one model called `id`.
    pub fn models(&self, id: &str) -> String {
        format!(
            "[[providers]]\nname = \"sim\"\nshape = \"chat\"\nbase_url = \"http://{}/v1\"\n\
             [[models]]\nid = \"{id}\"\ncontext = \"256K\"\ntargets = [{{ provider = \"sim\", model = \"upstream-x\" }}]\n",
            self.provider
        )
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(crate::e2e::process::binary());
        command.args(args).arg("--config").arg(self.path("tollgate.toml")).stdin(Stdio::null());
        command
    }

    /// Issues a key; `more` contains additional arguments, separated by spaces.
    pub fn issue(&self, more: &str) -> String {
        let args: Vec<&str> = ["keys", "issue", "--name", "test"].into_iter().chain(more.split_whitespace()).collect();
        let output = self.command(&args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    }

    /// Starts the gateway and waits until it listens.
    pub fn start(&self) -> Gate {
        self.start_with(|_| {})
    }

    pub fn start_with(&self, prepare: impl FnOnce(&mut Command)) -> Gate {
        self.run(self.command(&["serve"]), prepare)
    }

    /// Starts the gateway from another path.
    pub fn start_by(&self, program: PathBuf) -> Gate {
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(self.path("tollgate.toml")).stdin(Stdio::null());
        self.run(command, |_| {})
    }

    fn run(&self, mut command: Command, prepare: impl FnOnce(&mut Command)) -> Gate {
        // Every gateway of a rig has its own log file.
        let number = (0..).find(|number| !self.path(&format!("log-{number}")).exists()).unwrap_or(0);
        let log = self.path(&format!("log-{number}"));
        command.stderr(std::fs::File::create(&log).unwrap());
        prepare(&mut command);
        let mut gate = Gate { child: command.spawn().unwrap(), log, clients: NOWHERE, admin: NOWHERE };
        let line = gate.logged("\"event\":\"listening\"");
        gate.clients = address_after(&line, "\"clients\":[\"");
        gate.admin = address_after(&line, "\"admin\":[\"");
        gate
    }
}

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Starts a simulated provider on a separate thread.
pub fn provider() -> SocketAddr {
    let listener = tollgate::io::listen::bind(([127, 0, 0, 1], 0).into(), false).unwrap();
    let addr = listener.local_addr().unwrap();
    // Without a limit, the kernel buffers megabytes per connection for a provider whose reader is blocked.
    socket2::SockRef::from(&listener).set_send_buffer_size(64 * 1024).unwrap();
    std::thread::spawn(move || tollgate::cli::provider::reactor(listener, SimulatorSettings::default()).unwrap().run());
    addr
}

fn address_after(line: &str, mark: &str) -> SocketAddr {
    let rest = &line[line.find(mark).unwrap() + mark.len()..];
    // A Unix socket has no port.
    rest[..rest.find('"').unwrap()].parse().unwrap_or(NOWHERE)
}

/// A running gateway. It is killed when it is dropped.
pub struct Gate {
    pub child: Child,
    log: PathBuf,
    pub clients: SocketAddr,
    pub admin: SocketAddr,
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A successor is not a child of this process. Even one that does not listen yet has the log as its stderr.
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            if std::fs::read_link(process.path().join("fd/2")).is_ok_and(|stderr| stderr == self.log) {
                let _ = Command::new("kill").arg("-KILL").arg(process.file_name()).stderr(Stdio::null()).status();
            }
        }
    }
}

impl Gate {
    /// Returns all complete lines logged so far.
    pub fn log(&self) -> String {
        let mut text = std::fs::read_to_string(&self.log).unwrap();
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        text
    }

    fn last_lines(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.join("\n")
    }

    /// Waits for a line that contains `text` and returns the first one.
    pub fn logged(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(line) = self.log().lines().find(|line| line.contains(text)) {
                return line.to_string();
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "ended with {ended:?}: {}", self.last_lines());
            assert!(began.elapsed() < TIMEOUT, "{text} is not in the log: {}", self.last_lines());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the ids of the processes that have listened, oldest first.
    pub fn pids(&self) -> Vec<String> {
        let log = self.log();
        let pids = log.lines().filter_map(|line| line.split_once("\"pid\":"));
        pids.map(|(_, rest)| rest.split(',').next().unwrap_or_default().to_string()).collect()
    }

    /// Sends a signal to the newest process.
    pub fn signal(&self, name: &str) {
        let pid = self.pids().pop().unwrap();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.clients)
    }

    /// Sends `request` on a new connection and reads until the gateway closes it.
    pub fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        read_to_end(&mut stream)
    }

    /// Returns the value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let mut stream = connect(self.admin);
        let secured = std::fs::read_to_string(self.log.with_file_name("tollgate.toml")).unwrap().contains("read.token");
        let token = if secured { "authorization: Bearer a-token-that-reads\r\n" } else { "" };
        let ask = format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n\r\n");
        stream.write_all(ask.as_bytes()).unwrap();
        let text = read_to_end(&mut stream);
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("no {name} in {text}"))
    }

    /// Waits until `holds` returns true.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Gate) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}; log: {}", self.last_lines());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads until the connection ends or is reset.
pub fn read_to_end(stream: &mut impl Read) -> String {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads until the text contains `end`.
pub fn read_until(stream: &mut impl Read, end: &str) -> String {
    let (mut all, mut block) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&all).contains(end) {
        let count = match stream.read(&mut block) {
            // The kernel does not restart a read with a timeout after the process was stopped.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(count > 0, "ended after {:?}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&block[..count]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Returns a chat request for `model` with the message `text`.
pub fn chat(key: &str, model: &str, stream: bool, text: &str) -> String {
    let body = format!(r#"{{"model":"{model}","stream":{stream},"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns a request without a body.
pub fn get(key: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n")
}

/// Writes a self-signed certificate for `gate.test` and its key as `cert.pem` and `key.pem`.
pub fn write_certificate(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["gate.test".to_string()]).unwrap();
    std::fs::write(folder.join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}
