//! Owns the names thread: getaddrinfo can block for many seconds, and must not do so on the loop.
//!
//! Called by the reactor for `Action::Resolve`. Keeps no cache; the core decides what to keep and when to look up
//! again.

use super::channel::{BoundedSender, Receiver, bounded};
use crate::base::limits;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Answer to one look-up: host and port as asked, and the addresses, or the reason that there are none.
pub type Lookup = (Arc<str>, u16, Result<Vec<SocketAddr>, &'static str>);

/// Handle of the thread. The thread ends when it is dropped, after the current look-up.
pub struct Resolver {
    questions: BoundedSender<(Arc<str>, u16)>,
}

impl Resolver {
    /// Starts the thread; it passes every answer to `report`.
    pub fn start(report: impl Fn(Lookup) + Send + 'static) -> io::Result<Resolver> {
        let (questions, asked) = bounded(limits::LOOKUPS_MAX);
        std::thread::Builder::new().name("names".into()).spawn(move || serve(&asked, report))?;
        Ok(Resolver { questions })
    }

    /// Requests a look-up of `host`. Returns false if too many look-ups wait already, or if the thread is gone.
    pub fn ask(&self, host: Arc<str>, port: u16) -> bool {
        self.questions.try_send((host, port))
    }
}

fn serve(asked: &Receiver<(Arc<str>, u16)>, report: impl Fn(Lookup)) {
    while let Ok((host, port)) = asked.recv() {
        let addrs = match (&*host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>) {
            Ok(addrs) if !addrs.is_empty() => Ok(addrs),
            Ok(_) => Err(UNKNOWN),
            Err(error) => Err(explain(&error.to_string())),
        };
        report((host, port, addrs));
    }
}

const UNKNOWN: &str = "no such name";

/// Maps the C library's error text: no answer from a server is temporary, an unknown name is not.
fn explain(words: &str) -> &'static str {
    let passes = ["emporary failure", "ry again"].iter().any(|part| words.contains(part));
    if passes { "no answer from the name server" } else { UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_name_has_addresses_and_invalid_one_has_none() {
        let (sender, results) = crate::io::channel::channel();
        let resolver = Resolver::start(move |answer| sender.send(answer).unwrap()).unwrap();
        assert!(resolver.ask("localhost".into(), 80));
        assert!(resolver.ask("no such name.invalid".into(), 81));
        let (host, port, addrs) = results.recv().unwrap();
        assert_eq!((&*host, port), ("localhost", 80));
        let addrs = addrs.unwrap();
        assert!(addrs.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 80) && !addrs.is_empty());
        let (host, port, addrs) = results.recv().unwrap();
        assert_eq!((&*host, port), ("no such name.invalid", 81));
        assert!(addrs.is_err());
    }

    #[test]
    fn unknown_name_is_distinguished_from_a_silent_name_server() {
        assert_eq!(explain("failed to lookup address information: Name or service not known"), UNKNOWN);
        for words in ["Temporary failure in name resolution", "Try again"] {
            assert_ne!(explain(words), UNKNOWN, "{words}");
        }
    }
}
