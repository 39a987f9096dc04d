//! Owns the thread that reads providers' secrets again: files when they have changed, programs at intervals, and either
//! at once when a provider refuses the last secret. Results go only to the starter's callback; nothing else is ever
//! reported or kept of them.
//!
//! Called by `cli::serve`. Programs are also run by [`run`], at the start and on reload. Never decides whether a result
//! is a secret.

use super::channel::{Receiver, RecvTimeoutError, Sender, channel};
use super::clock::Clock;
use super::files;
use super::upgrade::PRIVATE_VARIABLES;
use super::worker::start_thread;
use crate::base::digest::sha256;
use crate::base::time::Mono;
use crate::policy::config::Origin;
use crate::policy::settings::secret::Secret;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::fs::Metadata;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time limit of a program.
const PROGRAM_WAIT: Duration = Duration::from_secs(30);
/// Maximum bytes that it may print; a secret is shorter.
const PRINTED_MAX: usize = 64 * 1024;
/// Interval between checks of a file. One check is one system call.
const LOOK: Duration = Duration::from_secs(1);
/// Number of successive checks without a file before that is reported: until then the file may be being replaced.
const MISSED: u32 = 2;
/// Interval between checks whether a program has ended.
const NAP: Duration = Duration::from_millis(10);
/// Delay before a failed program is run again, if it is not due before.
const AGAIN: Duration = Duration::from_secs(30);
/// Delay before a program is run again if its refused secret has not changed; it doubles until the program is due.
/// Renewing a credential can end shortly after the provider refuses the old one.
const UNCHANGED: Duration = Duration::from_secs(1);

/// Process groups of running programs, each by the id of its first process; `None` after no more may begin. Every id is
/// removed before its process is reaped, so that no other process can have it.
static RUNNING: Mutex<Option<Vec<Pid>>> = Mutex::new(Some(Vec::new()));

fn running() -> MutexGuard<'static, Option<Vec<Pid>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all running programs, with all their child processes, and lets no more begin: this process ends.
pub fn end_programs() {
    running().take().into_iter().flatten().for_each(kill_group);
}

/// Kills a process group, which may be empty already.
fn kill_group(group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
}

/// Running program, in its own process group: stopping the gateway by its terminal does not stop it. Dropping this
/// kills the group: all processes that the program has started end, and close their ends of the pipe.
struct Program {
    child: Child,
    group: Pid,
    is_reaped: bool,
}

impl Program {
    fn start(program: &[String], hidden: &[String]) -> io::Result<Program> {
        let (path, arguments) = program.split_first().ok_or(ErrorKind::InvalidInput)?;
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        PRIVATE_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
        for name in hidden.iter().filter(|name| !name.is_empty() && !name.contains(['=', '\0'])) {
            command.env_remove(name);
        }
        let mut running = running();
        let groups = running.as_mut().ok_or_else(|| io::Error::other("the gateway is about to end"))?;
        let child = command.spawn()?;
        let group = Pid::from_child(&child);
        groups.push(group);
        Ok(Program { child, group, is_reaped: false })
    }

    /// True if it has ended. It is not reaped yet, so that its group keeps its id.
    fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(self.group), options)?.is_some())
    }

    /// Kills its group and reaps it. Returns its exit status.
    fn end(&mut self) -> io::Result<ExitStatus> {
        let mut running = running();
        kill_group(self.group);
        self.is_reaped = true;
        running.iter_mut().for_each(|groups| groups.retain(|group| *group != self.group));
        // A process in the kernel may end much later; the end of the gateway does not wait for it.
        drop(running);
        self.child.wait()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The id of a reaped group may have been reused.
        if !self.is_reaped {
            let _ = self.end();
        }
    }
}

/// Runs `program`, its path first, and returns its output: without a shell, without input, for at most 30 s and 64 KiB.
/// Its error output is discarded, because it could contain anything. It receives our environment without the variables
/// `hidden`, which contain other secrets. Processes that it leaves behind are killed.
pub fn run(program: &[String], hidden: &[String]) -> io::Result<String> {
    run_within(program, hidden, PROGRAM_WAIT)
}

fn run_within(program: &[String], hidden: &[String], wait: Duration) -> io::Result<String> {
    let clock = Clock::new();
    let by = clock.mono().after(wait);
    let mut program = Program::start(program, hidden)?;
    let mut output = program.child.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
    // A process that has left the group may keep the pipe open for ever: reading never waits for it.
    ioctl_fionbio(&output, true)?;
    let mut bytes = Vec::new();
    loop {
        // In this order: all output from before its end is in the pipe then.
        let has_ended = program.has_ended()?;
        read_available(&mut output, &mut bytes)?;
        if bytes.len() > PRINTED_MAX {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "it prints more than 64 KiB"));
        }
        if has_ended {
            break;
        }
        if clock.mono() >= by {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("not done within {} s", wait.as_secs())));
        }
        thread::sleep(NAP);
    }
    let status = program.end()?;
    if !status.success() {
        return Err(io::Error::other(said(status)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "what it prints is not UTF-8"))
}

/// Reads the available bytes of the pipe, at most one byte beyond the bound.
fn read_available(output: &mut ChildStdout, bytes: &mut Vec<u8>) -> io::Result<()> {
    let room = (PRINTED_MAX + 1).saturating_sub(bytes.len()) as u64;
    match output.take(room).read_to_end(bytes) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn until(due: Mono, now: Mono) -> Duration {
    Duration::from_micros(due.micros_since(now))
}

fn said(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("it ended with code {code}"),
        None => "it was ended by a signal".to_string(),
    }
}

/// State of a file at its last reading: a change of any of these is a change of the file.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &str) -> Stamp {
    let of = |meta: Metadata| (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    std::fs::metadata(path).ok().map(of)
}

/// Message to the thread.
enum Told {
    /// Origins to watch from now on, and their secrets, which have just been read; and the variables that no program
    /// receives.
    Watch(Vec<(Origin, Digest)>, Arc<[String]>),
    /// Read this origin at once.
    Ask(Origin),
    /// A program has ended, with its secret if it succeeded.
    Ran(Origin, Option<Digest>),
    /// End the thread.
    End,
}

/// Digest of a secret, to recognise it.
type Digest = [u8; 32];

fn digest(secret: &str) -> Digest {
    sha256(secret.trim().as_bytes())
}

/// Watched origin.
struct Watched {
    origin: Origin,
    due: Mono,
    stamp: Stamp,
    /// True while its program is running: one at a time.
    runs: bool,
    /// Number of successive checks that found no file.
    missed: u32,
    /// The last secret that the program has printed.
    last: Digest,
    /// Delay before the next run while a refused secret does not change.
    again: Option<Duration>,
}

impl Watched {
    fn new((origin, last): (Origin, Digest), now: Mono) -> Watched {
        let wait = if let Origin::Command { refresh, .. } = &origin { *refresh } else { LOOK };
        // The file may have changed since it was read: the first check reads it again.
        Watched { origin, due: now.after(wait), stamp: None, runs: false, missed: 0, last, again: None }
    }

    /// Returns the time until the program of a source with this `refresh` runs again after it has printed `secret`.
    fn wait(&mut self, secret: Option<Digest>, refresh: Duration) -> Duration {
        let is_changed = secret.is_some_and(|secret| std::mem::replace(&mut self.last, secret) != secret);
        let again = self.again.take().filter(|again| !is_changed && *again < refresh);
        self.again = again.map(|again| again * 2);
        again.unwrap_or(if secret.is_some() { refresh } else { AGAIN.min(refresh) })
    }
}

/// Handle of the thread, which ends when this is dropped.
pub struct SecretWatch(Sender<Told>);

impl SecretWatch {
    /// Starts the thread. `report` receives each origin's output, or the reason that there is none.
    pub fn start(report: impl Fn(Origin, Result<String, String>) + Send + Clone + 'static) -> io::Result<SecretWatch> {
        let (orders, theirs) = channel();
        let own = orders.clone();
        start_thread("secrets", Box::new(move || serve(&theirs, &own, &report)))?;
        Ok(SecretWatch(orders))
    }

    /// Sets the secrets to watch, which have just been read. Those that cannot change are skipped. `hidden` are the
    /// variables that no program receives.
    pub fn watch<'a>(&self, secrets: impl Iterator<Item = &'a Secret>, hidden: Vec<String>) {
        let mut kept: Vec<(Origin, Digest)> = Vec::new();
        for secret in secrets.filter(|secret| !matches!(secret.origin(), Origin::Env(_))) {
            if kept.iter().all(|(origin, _)| origin != secret.origin()) {
                kept.push((secret.origin().clone(), digest(secret.expose())));
            }
        }
        // The thread ends only after this sender does.
        let _ = self.0.send(Told::Watch(kept, hidden.into()));
    }

    /// Reads an origin, whose secret a provider refuses, at once, and a program again until it prints another secret.
    pub fn ask(&self, origin: Origin) {
        let _ = self.0.send(Told::Ask(origin));
    }
}

impl Drop for SecretWatch {
    fn drop(&mut self) {
        // The thread has a sender, too, for its programs: the channel does not close.
        let _ = self.0.send(Told::End);
    }
}

fn serve(
    orders: &Receiver<Told>,
    own: &Sender<Told>,
    report: &(impl Fn(Origin, Result<String, String>) + Send + Clone + 'static),
) {
    let (clock, mut watched, mut hidden) = (Clock::new(), Vec::<Watched>::new(), Arc::<[String]>::default());
    loop {
        let due = watched.iter().filter(|one| !one.runs).map(|one| one.due).min();
        let order = match due {
            Some(due) => orders.recv_timeout(until(due, clock.mono())),
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let now = clock.mono();
        match order {
            Ok(Told::Watch(origins, variables)) => {
                hidden = variables;
                watch(&mut watched, origins, now);
            }
            Ok(Told::Ask(origin)) => {
                if let Some(one) = watched.iter_mut().find(|one| one.origin == origin) {
                    one.due = now;
                    one.stamp = None;
                    one.again.get_or_insert(UNCHANGED);
                }
            }
            Ok(Told::Ran(origin, secret)) => {
                if let Some(one) = watched.iter_mut().find(|one| one.origin == origin)
                    && let &Origin::Command { refresh, .. } = &one.origin
                {
                    one.due = now.after(one.wait(secret, refresh));
                    one.runs = false;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        for one in watched.iter_mut().filter(|one| !one.runs && one.due <= now) {
            ask(one, &hidden, own, report, now);
        }
    }
}

/// Replaces the watched origins. Former ones keep their schedule, and their programs continue.
fn watch(watched: &mut Vec<Watched>, secrets: Vec<(Origin, Digest)>, now: Mono) {
    let mut before = std::mem::take(watched);
    for secret in secrets {
        let known = before.iter().position(|one| one.origin == secret.0 && one.runs);
        watched.push(known.map_or_else(|| Watched::new(secret, now), |at| before.swap_remove(at)));
    }
}

fn ask(
    one: &mut Watched,
    hidden: &Arc<[String]>,
    own: &Sender<Told>,
    report: &(impl Fn(Origin, Result<String, String>) + Send + Clone + 'static),
    now: Mono,
) {
    match &one.origin {
        Origin::Env(_) => {}
        Origin::File(path) => {
            one.due = now.after(LOOK);
            let found = stamp(path);
            one.missed = if found.is_some() { 0 } else { one.missed.saturating_add(1) };
            if (found.is_some() && found != one.stamp) || one.missed == MISSED {
                one.stamp = found;
                report(one.origin.clone(), files::read_text(Path::new(path)).map_err(|error| error.to_string()));
            }
        }
        Origin::Command { program, .. } => {
            one.runs = true;
            let (origin, program, own, report) = (one.origin.clone(), program.clone(), own.clone(), report.clone());
            let hidden = hidden.clone();
            let run = move || {
                let said = run(&program, &hidden).map_err(|error| error.to_string());
                let secret = said.as_ref().ok().map(|secret| digest(secret));
                report(origin.clone(), said);
                let _ = own.send(Told::Ran(origin, secret));
            };
            if start_thread("secret", Box::new(run)).is_err() {
                (one.runs, one.due) = (false, now.after(AGAIN));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split('|').map(str::to_string).collect()
    }

    #[test]
    fn program_prints_its_secret_without_a_shell_within_bounds() {
        assert_eq!(run(&words("printf|%s|a b;c"), &[]).unwrap(), "a b;c");
        for (program, why) in [
            ("false", "it ended with code 1"),
            ("/no/such/program", "No such file"),
            ("head|-c|70000|/dev/zero", "more than 64 KiB"),
            ("printf|\\377", "not UTF-8"),
        ] {
            let error = run(&words(program), &[]).unwrap_err().to_string();
            assert!(error.contains(why), "{program}: {error}");
        }
        let clock = Clock::new();
        let error = run_within(&words("sleep|60"), &[], Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(clock.mono() < Mono(0).after(Duration::from_secs(30)), "the programs must have been stopped early");
    }

    /// Returns the processes whose command line contains `mark`.
    fn processes(mark: &str) -> usize {
        let lines = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).contains(mark))
        });
        lines.filter(|has_mark| *has_mark).count()
    }

    fn is_gone(mark: &str) {
        let clock = Clock::new();
        while processes(mark) > 0 {
            assert!(clock.mono() < Mono(0).after(Duration::from_secs(10)), "a process of {mark} is left");
            thread::sleep(NAP);
        }
    }

    #[test]
    fn child_processes_end_with_their_program() {
        // Only these processes have the mark as an argument.
        let mark = format!("610.{}", std::process::id());
        let script = |then: &str| words(&format!("sh|-c|sleep {mark} & (sleep {mark} &) ; {then}"));
        let clock = Clock::new();
        assert_eq!(run(&script("echo x"), &[]).unwrap(), "x\n", "the child processes must not delay the result");
        is_gone(&mark);
        assert_eq!(run(&script("exit 3"), &[]).unwrap_err().to_string(), "it ended with code 3");
        is_gone(&mark);
        let error = run_within(&script("sleep 610"), &[], Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        is_gone(&mark);
        let error = run(&script("head -c 70000 /dev/zero; sleep 610"), &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        is_gone(&mark);
        assert!(clock.mono() < Mono(0).after(PROGRAM_WAIT), "no child process may delay the result");
    }

    #[test]
    fn program_leaves_no_thread_or_descriptor() {
        let folder = |name: &str| std::fs::read_dir(format!("/proc/self/{name}")).unwrap().filter_map(Result::ok);
        // The process has left the group, so it is not killed: only the pipe is closed.
        let mark = format!("5.{}", std::process::id());
        let printed = run(&words(&format!("sh|-c|setsid sleep {mark} & sleep 0.3; echo x")), &[]).unwrap();
        assert_eq!(printed, "x\n");
        assert_eq!(processes(&mark), 1, "the process outside the group must still run");
        let threads = folder("task").filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        assert_eq!(threads.filter(|name| name.trim() == "secret-pipe").count(), 0);
        let of_child = std::fs::read_dir("/proc").unwrap().find_map(|entry| {
            let path = entry.ok()?.path();
            let line = std::fs::read(path.join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).contains(&mark).then(|| std::fs::read_link(path.join("fd/1")).ok())?
        });
        let pipe = of_child.unwrap();
        let open = folder("fd").filter_map(|fd| std::fs::read_link(fd.path()).ok());
        assert_eq!(open.filter(|target| *target == pipe).count(), 0);
    }

    #[test]
    fn program_is_not_given_hidden_variables() {
        let hidden = ["HOME".to_string(), "A=B".to_string(), String::new()];
        let printed = run(&words("sh|-c|echo ${HOME-none} ${PATH-none}"), &hidden).unwrap();
        assert!(printed.starts_with("none ") && !printed.contains(" none"), "{printed}");
    }

    #[test]
    fn changed_files_are_read_and_due_or_requested_programs_run() {
        let folder = std::env::temp_dir().join(format!("tollgate-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        std::fs::write(&path, "one").unwrap();
        let (sender, changes) = channel();
        let watch = SecretWatch::start(move |origin, said| sender.send((origin, said)).unwrap()).unwrap();
        let file = Origin::File(path.to_string_lossy().into_owned());
        let late = Origin::Command { program: words("printf|late"), refresh: Duration::from_secs(3600) };
        let often = Origin::Command { program: words("printf|often"), refresh: Duration::from_millis(100) };
        let wait = Duration::from_secs(10);
        let secret = |origin: &Origin| Secret::new("one".to_string(), origin.clone());
        watch.watch([&secret(&file), &secret(&late), &secret(&Origin::Env("X".into()))].into_iter(), Vec::new());
        std::fs::write(folder.join("new"), "two!").unwrap();
        std::fs::rename(folder.join("new"), &path).unwrap();
        assert_eq!(changes.recv_timeout(wait).unwrap(), (file.clone(), Ok("two!".to_string())));
        watch.ask(late.clone());
        assert_eq!(changes.recv_timeout(wait).unwrap(), (late, Ok("late".to_string())));
        watch.ask(file.clone());
        assert_eq!(
            changes.recv_timeout(wait).unwrap().0,
            file,
            "a requested file must be read even if it has not changed"
        );
        std::fs::remove_file(&path).unwrap();
        let (origin, said) = changes.recv_timeout(wait).unwrap();
        assert!(origin == file && said.is_err(), "a missing file must be reported once: {said:?}");
        std::fs::write(&path, "three").unwrap();
        assert_eq!(changes.recv_timeout(wait).unwrap(), (file, Ok("three".to_string())));
        watch.watch([&secret(&often)].into_iter(), Vec::new());
        for _ in 0..3 {
            assert_eq!(changes.recv_timeout(wait).unwrap(), (often.clone(), Ok("often".to_string())));
        }
        drop(watch);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unchanged_secret_is_read_again_until_it_changes() {
        let folder = std::env::temp_dir().join(format!("tollgate-secrets-again-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        std::fs::write(&path, "one").unwrap();
        let (sender, changes) = channel();
        let watch = SecretWatch::start(move |_, said| sender.send(said).unwrap()).unwrap();
        let program = vec!["cat".to_string(), path.to_string_lossy().into_owned()];
        let origin = Origin::Command { program, refresh: Duration::from_secs(3600) };
        let secret = Secret::new("one".to_string(), origin.clone());
        watch.watch([&secret].into_iter(), Vec::new());
        watch.ask(origin);
        let clock = Clock::new();
        let next = || changes.recv_timeout(Duration::from_secs(10)).expect("another run").unwrap();
        assert_eq!([next(), next(), next()], ["one"; 3]);
        let took = clock.mono();
        assert!(took > Mono(0).after(Duration::from_secs(3)), "the waits are 1 s and 2 s, not {took:?}");
        std::fs::write(&path, "two\n").unwrap();
        assert_eq!(next(), "two\n");
        let more = changes.recv_timeout(Duration::from_secs(10));
        assert!(more.is_err(), "a changed secret is read again only when it is due: {more:?}");
        drop(watch);
        let ended = changes.recv_timeout(Duration::from_secs(10));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "the thread must end");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
