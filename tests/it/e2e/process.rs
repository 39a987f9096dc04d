//! Processes that a test starts and ends, always by their id, and their output.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Timeout of a test for any single wait.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Seconds after which a command is killed, so that a command that serves instead of failing ends its test.
const COMMAND_SECONDS: &str = "180";

/// Returns the path of the binary under test.
pub fn binary() -> PathBuf {
    std::env::var_os("TOLLGATE_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_tollgate")), PathBuf::from)
}

/// A folder that is removed at the end of the test.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a new folder.
    pub fn new() -> Folder {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        // Tests have a thousand or more connections, some with both ends in this process.
        tollgate::io::listen::raise_descriptor_limit().unwrap();
        let name = format!("e2e-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// First port for tests. All of them are below the ephemeral ports, so that no outgoing connection takes one in the
/// meantime.
const FIRST_PORT: u16 = 10_000;
/// Ports per block, and number of blocks.
const BLOCK: u16 = 100;
const BLOCKS: u16 = 210;

/// Ports that this program may use. Several test programs run concurrently and share all ports in blocks: the program
/// that listens on the first port of a block may use the others.
struct Ports {
    claims: Vec<TcpListener>,
    /// The next port of the current block, and the end of the block.
    next: u16,
    end: u16,
}

/// Returns a port on which nobody listens and which no other test program uses.
pub fn free_port() -> u16 {
    static PORTS: Mutex<Ports> = Mutex::new(Ports { claims: Vec::new(), next: 0, end: 0 });
    let mut ports = PORTS.lock().unwrap();
    let listen = |port: u16| TcpListener::bind(("127.0.0.1", port)).ok();
    loop {
        if ports.next == ports.end {
            let block = |n: u16| FIRST_PORT + n * BLOCK;
            let claim = (0..BLOCKS).map(block).find_map(|port| Some((port, listen(port)?)));
            let (first, listener) = claim.expect("no free port");
            ports.claims.push(listener);
            (ports.next, ports.end) = (first + 1, first + BLOCK);
        }
        ports.next += 1;
        if listen(ports.next - 1).is_some() {
            return ports.next - 1;
        }
    }
}

/// A running process. It is killed at the end of the test if it has not been stopped before.
pub struct Process {
    child: Child,
    /// File with the standard output.
    pub stdout: PathBuf,
    /// File with the standard error.
    pub stderr: PathBuf,
}

impl Process {
    /// Starts the binary in `folder`; `name` names its output files.
    pub fn start(folder: &Path, name: &str, args: &[&str], env: &[(&str, &str)]) -> Process {
        let (stdout, stderr) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        let append = |path: &Path| File::options().create(true).append(true).open(path).unwrap();
        let mut command = Command::new(binary());
        command.args(args).envs(env.iter().copied()).current_dir(folder).stdin(Stdio::null());
        let child = command.stdout(append(&stdout)).stderr(append(&stderr)).spawn().unwrap();
        Process { child, stdout, stderr }
    }

    /// Starts a process whose standard error the caller reads, or leaves unread.
    pub fn heard(folder: &Path, name: &str, args: &[&str]) -> (Process, ChildStderr) {
        let (stdout, stderr) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        let mut command = Command::new(binary());
        command.args(args).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let heard = child.stderr.take().unwrap();
        (Process { child, stdout, stderr }, heard)
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Sends a signal and waits until the process ends.
    pub fn stop(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }

    /// Waits until the process ends.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the process to end", || self.child.try_wait().unwrap())
    }

    /// Returns true if the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Returns the resident memory in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of the resident memory in bytes.
    pub fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    }

    /// Returns the number of open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Returns everything that it has written so far to both streams.
    pub fn written(&self) -> String {
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        read(&self.stdout) + &read(&self.stderr)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let text = self.written();
            let tail: Vec<&str> = text.lines().rev().take(20).collect();
            eprintln!("--- {}:", self.stderr.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Result of a finished command.
pub struct Done {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs the binary in `folder` until it ends.
pub fn run(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Done {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", COMMAND_SECONDS]).arg(binary());
    command.args(args).envs(env.iter().copied()).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Calls `condition` repeatedly until it returns a value. Fails the test after [`TIMEOUT`].
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_at_most(TIMEOUT, what, look)
}

/// Works like [`wait_for`], with another timeout.
pub fn wait_at_most<T>(timeout: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < timeout, "timeout after {timeout:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
