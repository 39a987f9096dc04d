//! Owns the thread that asks again where providers' secrets come from: files when they have changed, programs every so
//! often, and either at once when a provider refuses what it said last. What they say goes where the starter says;
//! nothing else is ever told or kept of it.
//!
//! Called by `cli::serve`. The program itself is [`run`], at the start and on reload, too. Never decides whether what
//! comes is a secret.

use super::channel::{Receiver, RecvTimeoutError, Sender, channel};
use super::clock::Clock;
use super::files;
use crate::base::time::Mono;
use crate::policy::config::Origin;
use std::fs::Metadata;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long a program may take.
const PROGRAM_WAIT: Duration = Duration::from_secs(30);
/// Bytes of what it prints; a secret is shorter.
const PRINTED_MAX: u64 = 64 * 1024;
/// How often a file is looked at. One look is one system call.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row that find no file before that is told: until then it is being replaced.
const MISSED: u32 = 2;
/// How often a program is looked at whether it has ended.
const NAP: Duration = Duration::from_millis(10);
/// After a program that has failed it is run again so much later, if it is not due before.
const AGAIN: Duration = Duration::from_secs(30);

/// What `program` prints, its path first: without a shell, without input, and not beyond 30 s or 64 KiB. What it prints
/// as its errors is thrown away, since nobody knows what is in it. It is given our environment without the variables
/// `hidden`, which hold other secrets.
pub fn run(program: &[String], hidden: &[String]) -> io::Result<String> {
    run_within(program, hidden, PROGRAM_WAIT)
}

fn run_within(program: &[String], hidden: &[String], wait: Duration) -> io::Result<String> {
    let (path, arguments) = program.split_first().ok_or(ErrorKind::InvalidInput)?;
    let clock = Clock::new();
    let by = clock.mono().after(wait);
    let mut command = Command::new(path);
    // A group of its own: who stops the gateway by its terminal does not stop this.
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    for name in hidden.iter().filter(|name| !name.is_empty() && !name.contains(['=', '\0'])) {
        command.env_remove(name);
    }
    let mut child = command.spawn()?;
    let (tell, told) = channel();
    let output = child.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
    // What it has started may keep the pipe open after it has ended; this thread ends with them.
    thread::Builder::new().name("secret-pipe".into()).spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(PRINTED_MAX + 1).read_to_end(&mut bytes);
        // Whoever waited may have given up.
        let _ = tell.send(read.map(|_| bytes));
    })?;
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if clock.mono() >= by => break None,
            None => thread::sleep(NAP),
        }
    };
    let late = || io::Error::new(ErrorKind::TimedOut, format!("not done within {} s", wait.as_secs()));
    let Some(status) = ended else {
        // It may have ended by itself just now.
        let _ = child.kill();
        let _ = child.wait();
        return Err(late());
    };
    let bytes = told.recv_timeout(until(by, clock.mono())).map_err(|_| late())??;
    // Before how it ended: where nobody reads any more, a program may end by that.
    if bytes.len() as u64 > PRINTED_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it prints more than 64 KiB"));
    }
    if !status.success() {
        return Err(io::Error::other(said(status)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "what it prints is not UTF-8"))
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

/// What a file was when it was last read: a change of any of these is a change of it.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &str) -> Stamp {
    let of = |meta: Metadata| (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    std::fs::metadata(path).ok().map(of)
}

/// What the thread is told.
enum Told {
    /// These are the origins from here on; what they say has been read just now. And the variables that no program is
    /// given.
    Watch(Vec<Origin>, Arc<[String]>),
    /// Ask this one at once.
    Ask(Origin),
    /// A program has ended, and well or not.
    Ran(Origin, bool),
}

/// One that is watched.
struct Watched {
    origin: Origin,
    due: Mono,
    stamp: Stamp,
    /// Its program runs at the moment: one at a time.
    runs: bool,
    /// Looks in a row that found no file.
    missed: u32,
}

impl Watched {
    fn new(origin: Origin, now: Mono) -> Watched {
        let wait = if let Origin::Command { refresh, .. } = &origin { *refresh } else { LOOK };
        // It may have changed since it was read: the first look reads it again.
        Watched { origin, due: now.after(wait), stamp: None, runs: false, missed: 0 }
    }
}

/// The near end of the thread. It ends when this is dropped.
pub struct SecretWatch(Sender<Told>);

impl SecretWatch {
    /// Starts the thread. `tell`: what an origin says, or why it says nothing.
    pub fn start(tell: impl Fn(Origin, Result<String, String>) + Send + Clone + 'static) -> io::Result<SecretWatch> {
        let (orders, theirs) = channel();
        let own = orders.clone();
        thread::Builder::new().name("secrets".into()).spawn(move || serve(&theirs, &own, &tell))?;
        Ok(SecretWatch(orders))
    }

    /// These are the origins from here on, read just now. Those that cannot change are passed over. `hidden` are the
    /// variables that no program is given.
    pub fn watch(&self, origins: impl Iterator<Item = Origin>, hidden: Vec<String>) {
        let mut kept: Vec<Origin> = Vec::new();
        for origin in origins.filter(|origin| !matches!(origin, Origin::Env(_))) {
            if !kept.contains(&origin) {
                kept.push(origin);
            }
        }
        // The thread ends only after this sender does.
        let _ = self.0.send(Told::Watch(kept, hidden.into()));
    }

    /// Has an origin asked at once.
    pub fn ask(&self, origin: Origin) {
        let _ = self.0.send(Told::Ask(origin));
    }
}

fn serve(
    orders: &Receiver<Told>,
    own: &Sender<Told>,
    tell: &(impl Fn(Origin, Result<String, String>) + Send + Clone + 'static),
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
                }
            }
            Ok(Told::Ran(origin, well)) => {
                if let Some(one) = watched.iter_mut().find(|one| one.origin == origin)
                    && let Origin::Command { refresh, .. } = &one.origin
                {
                    one.due = now.after(if well { *refresh } else { AGAIN.min(*refresh) });
                    one.runs = false;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for one in watched.iter_mut().filter(|one| !one.runs && one.due <= now) {
            ask(one, &hidden, own, tell, now);
        }
    }
}

/// Those that were watched before keep their turns, and their programs run on.
fn watch(watched: &mut Vec<Watched>, origins: Vec<Origin>, now: Mono) {
    let mut before = std::mem::take(watched);
    for origin in origins {
        let known = before.iter().position(|one| one.origin == origin && one.runs);
        watched.push(known.map_or_else(|| Watched::new(origin, now), |at| before.swap_remove(at)));
    }
}

fn ask(
    one: &mut Watched,
    hidden: &Arc<[String]>,
    own: &Sender<Told>,
    tell: &(impl Fn(Origin, Result<String, String>) + Send + Clone + 'static),
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
                tell(one.origin.clone(), files::read_text(Path::new(path)).map_err(|error| error.to_string()));
            }
        }
        Origin::Command { program, .. } => {
            one.runs = true;
            let (origin, program, own, tell) = (one.origin.clone(), program.clone(), own.clone(), tell.clone());
            let hidden = hidden.clone();
            let runs = thread::Builder::new().name("secret".into()).spawn(move || {
                let said = run(&program, &hidden).map_err(|error| error.to_string());
                let well = said.is_ok();
                tell(origin.clone(), said);
                let _ = own.send(Told::Ran(origin, well));
            });
            if runs.is_err() {
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
    fn a_program_prints_its_secret_without_a_shell_and_not_for_ever() {
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
        // It has started something that keeps its pipe open.
        let error = run_within(&words("sh|-c|sleep 60 & echo x"), &[], Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(clock.mono() < Mono(0).after(Duration::from_secs(30)), "half of what the programs would take");
    }

    #[test]
    fn program_is_not_given_hidden_variables() {
        let hidden = ["HOME".to_string(), "A=B".to_string(), String::new()];
        let printed = run(&words("sh|-c|echo ${HOME-none} ${PATH-none}"), &hidden).unwrap();
        assert!(printed.starts_with("none ") && !printed.contains(" none"), "{printed}");
    }

    #[test]
    fn a_file_is_read_when_it_changes_and_a_program_when_it_is_due_or_asked_for() {
        let folder = std::env::temp_dir().join(format!("tollgate-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        std::fs::write(&path, "one").unwrap();
        let (tell, told) = channel();
        let watch = SecretWatch::start(move |origin, said| tell.send((origin, said)).unwrap()).unwrap();
        let file = Origin::File(path.to_string_lossy().into_owned());
        let late = Origin::Command { program: words("printf|late"), refresh: Duration::from_secs(3600) };
        let often = Origin::Command { program: words("printf|often"), refresh: Duration::from_millis(100) };
        let wait = Duration::from_secs(10);
        watch.watch([file.clone(), late.clone(), Origin::Env("X".into())].into_iter(), Vec::new());
        std::fs::write(folder.join("new"), "two!").unwrap();
        std::fs::rename(folder.join("new"), &path).unwrap();
        assert_eq!(told.recv_timeout(wait).unwrap(), (file.clone(), Ok("two!".to_string())));
        watch.ask(late.clone());
        assert_eq!(told.recv_timeout(wait).unwrap(), (late, Ok("late".to_string())));
        watch.ask(file.clone());
        assert_eq!(told.recv_timeout(wait).unwrap().0, file, "although it has not changed");
        std::fs::remove_file(&path).unwrap();
        let (origin, said) = told.recv_timeout(wait).unwrap();
        assert!(origin == file && said.is_err(), "it is gone, which is told once: {said:?}");
        std::fs::write(&path, "three").unwrap();
        assert_eq!(told.recv_timeout(wait).unwrap(), (file, Ok("three".to_string())));
        watch.watch([often.clone()].into_iter(), Vec::new());
        for _ in 0..3 {
            assert_eq!(told.recv_timeout(wait).unwrap(), (often.clone(), Ok("often".to_string())));
        }
        drop(watch);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
