//! Owns the threads that look names up: getaddrinfo can block for many seconds, and must not do so on the loop. A
//! thread exists only as long as there are look-ups, and each look-up under way has its own, so that a silent name
//! server of one host delays no other host.
//!
//! Called by the reactor for `Action::Resolve`, and by helper threads and commands ([`resolve_within`]). Keeps no
//! cache; the core decides what to keep and when to look up again.

use super::channel::channel;
use super::worker::start_thread;
use crate::base::limits;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Look-ups of names that helper threads and commands no longer wait for, and that go on all the same.
const RESOLVING_MAX: usize = 32;
/// Look-ups that wait for a resolver thread. Further ones fail.
const LOOKUPS_MAX: usize = 1024;

/// Answer to one look-up: host and port as asked, and the addresses, or the reason that there are none.
pub type Lookup = (Arc<str>, u16, Result<Vec<SocketAddr>, &'static str>);

/// Finds the addresses of a host. It may block as long as name servers are silent.
type Find = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Work of the threads.
struct LookupThreads {
    waiting: Mutex<LookupQueue>,
    find: Find,
    report: Box<dyn Fn(Lookup) + Send + Sync>,
}

#[derive(Default)]
struct LookupQueue {
    questions: VecDeque<(Arc<str>, u16)>,
    threads: usize,
}

/// Starts the threads.
pub struct Resolver(Arc<LookupThreads>);

impl Resolver {
    /// A resolver that passes every answer to `report`.
    pub fn new(report: impl Fn(Lookup) + Send + Sync + 'static) -> Resolver {
        Resolver::with(look_up, report)
    }

    fn with(find: Find, report: impl Fn(Lookup) + Send + Sync + 'static) -> Resolver {
        Resolver(Arc::new(LookupThreads { waiting: Mutex::default(), find, report: Box::new(report) }))
    }

    /// Requests a look-up of `host`. Returns false if too many look-ups wait already, or if no thread can be started.
    pub fn ask(&self, host: Arc<str>, port: u16) -> bool {
        let mut waiting = self.0.waiting();
        if waiting.questions.len() >= LOOKUPS_MAX {
            return false;
        }
        waiting.questions.push_back((host, port));
        if waiting.threads < limits::LOOKUP_THREADS_MAX {
            let lookups = self.0.clone();
            match start_thread("names", Box::new(move || lookups.serve())) {
                Ok(_) => waiting.threads += 1,
                Err(_) if waiting.threads == 0 => {
                    waiting.questions.pop_back();
                    return false;
                }
                // One of the other threads takes it.
                Err(_) => {}
            }
        }
        true
    }
}

/// Resolves `host`, at most for `wait`, for threads that may block. The name servers may need longer: the look-up then
/// continues on a thread of its own, of which there are at most `RESOLVING_MAX`.
pub fn resolve_within(host: &str, port: u16, wait: Duration) -> io::Result<Vec<SocketAddr>> {
    resolve_by(look_up, host, port, wait)
}

fn resolve_by(find: Find, host: &str, port: u16, wait: Duration) -> io::Result<Vec<SocketAddr>> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    if RUNNING.fetch_add(1, Ordering::Relaxed) >= RESOLVING_MAX {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        return Err(io::Error::new(ErrorKind::TimedOut, "earlier look-ups of names have no answer yet"));
    }
    let (tell, answer) = channel();
    let resolver = Resolver::with(find, move |(_, _, found)| {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        let _ = tell.send(found);
    });
    if !resolver.ask(host.into(), port) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        return Err(io::Error::other("no thread can be started"));
    }
    match answer.recv_timeout(wait) {
        Ok(found) => found.map_err(io::Error::other),
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, SILENT)),
    }
}

impl LookupThreads {
    fn waiting(&self) -> MutexGuard<'_, LookupQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next question; ends the thread if there is none.
    fn next(&self) -> Option<(Arc<str>, u16)> {
        let mut waiting = self.waiting();
        let next = waiting.questions.pop_front();
        waiting.threads -= usize::from(next.is_none());
        next
    }

    fn serve(&self) {
        while let Some((host, port)) = self.next() {
            let addrs = match (self.find)(&host, port) {
                Ok(addrs) if !addrs.is_empty() => Ok(addrs),
                Ok(_) => Err(UNKNOWN),
                Err(error) => Err(explain(&error.to_string())),
            };
            (self.report)((host, port, addrs));
        }
    }
}

const UNKNOWN: &str = "no such name";
const SILENT: &str = "no answer from the name server";

/// Maps the C library's error text: no answer from a server is temporary, an unknown name is not.
fn explain(words: &str) -> &'static str {
    let passes = ["emporary failure", "ry again"].iter().any(|part| words.contains(part));
    if passes { SILENT } else { UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits::LOOKUP_THREADS_MAX;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    fn reported(make: impl FnOnce(Box<dyn Fn(Lookup) + Send + Sync>) -> Resolver) -> (Resolver, Receiver<Lookup>) {
        let (sender, results) = channel();
        (make(Box::new(move |answer| sender.send(answer).unwrap())), results)
    }

    #[test]
    fn known_name_has_addresses_and_invalid_one_has_none() {
        let (resolver, results) = reported(Resolver::new);
        assert!(resolver.ask("localhost".into(), 80));
        let (host, port, addrs) = results.recv().unwrap();
        assert_eq!((&*host, port), ("localhost", 80));
        let addrs = addrs.unwrap();
        assert!(addrs.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 80) && !addrs.is_empty());
        assert!(resolver.ask("no such name.invalid".into(), 81));
        let (host, port, addrs) = results.recv().unwrap();
        assert_eq!((&*host, port), ("no such name.invalid", 81));
        assert!(addrs.is_err());
    }

    /// Held as long as a name server is silent for hosts that are called so.
    static SILENCE: Mutex<()> = Mutex::new(());

    fn partly_silent(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if host == "silent" {
            drop(SILENCE.lock());
        }
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    }

    #[test]
    fn silent_name_servers_delay_no_other_host_and_idle_threads_end() {
        let (resolver, results) = reported(|report| Resolver::with(partly_silent, report));
        let (silence, wait) = (SILENCE.lock(), Duration::from_secs(30));
        (1..LOOKUP_THREADS_MAX).for_each(|port| assert!(resolver.ask("silent".into(), port as u16)));
        for _ in 0..3 {
            assert!(resolver.ask("healthy".into(), 80));
            assert_eq!(&*results.recv_timeout(wait).unwrap().0, "healthy");
        }
        // Beyond the bound, look-ups wait for a thread.
        (0..2).for_each(|_| assert!(resolver.ask("silent".into(), 99)));
        assert!(resolver.ask("healthy".into(), 80) && resolver.0.waiting().threads <= LOOKUP_THREADS_MAX);
        drop(silence);
        (0..LOOKUP_THREADS_MAX + 2).for_each(|_| drop(results.recv_timeout(wait).unwrap()));
        let began = Instant::now();
        while resolver.0.waiting().threads > 0 {
            assert!(began.elapsed() < wait, "a thread has not ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn look_up_for_a_thread_is_bounded() {
        let wait = Duration::from_secs(10);
        for host in ["127.0.0.1", "[::1]", "::1", "localhost"] {
            let found = resolve_within(host, 80, wait).unwrap();
            assert!(!found.is_empty() && found.iter().all(|at| at.ip().is_loopback() && at.port() == 80), "{host}");
        }
        assert!(resolve_within("no such name.invalid", 80, wait).is_err());
        // The answer may have arrived already.
        let late = resolve_within("localhost", 80, Duration::ZERO).err();
        assert!(late.is_none_or(|error| error.kind() == ErrorKind::TimedOut));
    }

    #[test]
    fn thread_waits_for_a_silent_name_server_no_longer_than_it_asked() {
        let (silence, (tell, answer)) = (SILENCE.lock(), channel());
        let waits = Duration::from_millis(10);
        std::thread::spawn(move || tell.send(resolve_by(partly_silent, "silent", 80, waits)).unwrap());
        let late = answer.recv_timeout(Duration::from_secs(30)).unwrap().unwrap_err();
        assert_eq!((late.kind(), late.to_string().as_str()), (ErrorKind::TimedOut, SILENT));
        drop(silence);
    }

    #[test]
    fn unknown_name_is_distinguished_from_a_silent_name_server() {
        assert_eq!(explain("failed to lookup address information: Name or service not known"), UNKNOWN);
        for words in ["Temporary failure in name resolution", "Try again"] {
            assert_ne!(explain(words), UNKNOWN, "{words}");
        }
    }
}
