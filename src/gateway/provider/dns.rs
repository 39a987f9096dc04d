//! Addresses of upstream hosts: resolved at the start, refreshed in the background, with the last good answer kept, so
//! that ordinarily no request waits for the resolver. Requests are [`Action::Resolve`]; never blocks.

use crate::base::seam::Action;
use crate::base::time::Mono;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Age from which an answer is refreshed, while it is still used.
const REFRESH: Duration = Duration::from_secs(60);
/// Minimum pause before a failed look-up is repeated.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum number of addresses per host.
const ADDRESSES_MAX: usize = 16;

#[derive(Debug)]
struct HostEntry {
    host: Arc<str>,
    port: u16,
    addrs: Vec<SocketAddr>,
    /// The address that answered when another one did not.
    answered: Option<SocketAddr>,
    ask_after: Mono,
    /// True while the resolver works on it.
    asked: bool,
    /// Reason of the last failed lookup.
    why: &'static str,
}

/// Hosts and ports of the configuration; few, so a linear search suffices.
#[derive(Debug, Default)]
pub(crate) struct HostNames {
    entries: Vec<HostEntry>,
}

impl HostNames {
    /// Returns the addresses of `host`, empty if none is known; requests a look-up when due.
    pub(crate) fn look_up(
        &mut self,
        host: &Arc<str>,
        port: u16,
        now: Mono,
        actions: &mut Vec<Action>,
    ) -> &[SocketAddr] {
        let index = self.index_of(host, port);
        let entry = &mut self.entries[index];
        if now >= entry.ask_after {
            entry.ask_after = now.after(if entry.addrs.is_empty() { RETRY } else { REFRESH });
            entry.asked = true;
            actions.push(Action::Resolve { host: host.clone(), port });
        }
        &entry.addrs
    }

    /// Handles a resolver's answer; a failed look-up keeps the known addresses.
    pub(crate) fn learned(
        &mut self,
        host: &Arc<str>,
        port: u16,
        addrs: Result<Vec<SocketAddr>, &'static str>,
        now: Mono,
    ) {
        let index = self.index_of(host, port);
        let entry = &mut self.entries[index];
        entry.asked = false;
        match addrs {
            Ok(mut addrs) => {
                addrs.truncate(ADDRESSES_MAX);
                entry.addrs = addrs;
                entry.ask_after = now.after(REFRESH);
            }
            Err(why) => {
                entry.why = why;
                entry.ask_after = now.after(RETRY);
            }
        }
    }

    fn index_of(&mut self, host: &Arc<str>, port: u16) -> usize {
        if let Some(index) = self.entries.iter().position(|e| e.port == port && e.host == *host) {
            return index;
        }
        // A literal address never needs a resolver.
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let (addrs, ask_after) = match literal {
            Ok(ip) => (vec![SocketAddr::new(ip, port)], Mono::NEVER),
            Err(_) => (Vec::new(), Mono(0)),
        };
        self.entries.push(HostEntry {
            host: host.clone(),
            port,
            addrs,
            answered: None,
            ask_after,
            asked: false,
            why: "",
        });
        self.entries.len() - 1
    }

    /// The address of `host` that answered when the first one did not.
    pub(crate) fn answered(&self, host: &Arc<str>, port: u16) -> Option<SocketAddr> {
        self.entries.iter().find(|entry| entry.port == port && entry.host == *host)?.answered
    }

    /// Records that this address of `host` is tried first from now on.
    pub(crate) fn has_answered(&mut self, host: &Arc<str>, port: u16, addr: SocketAddr) {
        let index = self.index_of(host, port);
        self.entries[index].answered = Some(addr);
    }

    /// Checks if an answer is expected. If not, waiting for addresses is useless: returns why the last look-up failed,
    /// for the log.
    pub(crate) fn is_asked(&mut self, host: &Arc<str>, port: u16) -> Result<(), &'static str> {
        let index = self.index_of(host, port);
        let entry = &self.entries[index];
        if entry.asked { Ok(()) } else { Err(entry.why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_address_is_never_resolved() {
        let (mut names, mut actions) = (HostNames::default(), Vec::new());
        let found = names.look_up(&Arc::from("127.0.0.1"), 80, Mono(5), &mut actions).to_vec();
        assert_eq!((found.len(), actions.len()), (1, 0));
        assert_eq!(names.look_up(&Arc::from("[::1]"), 80, Mono(5), &mut actions).len(), 1);
    }

    #[test]
    fn a_failed_refresh_keeps_the_last_good_answer() {
        let (mut names, mut actions) = (HostNames::default(), Vec::new());
        let host: Arc<str> = Arc::from("api.example");
        assert!(names.look_up(&host, 443, Mono(0), &mut actions).is_empty());
        assert!(names.look_up(&host, 443, Mono(1), &mut actions).is_empty());
        assert_eq!(actions.len(), 1, "asked once, not at every request");
        assert!(names.is_asked(&host, 443).is_ok());
        names.learned(&host, 443, Err("no such name"), Mono(1));
        assert!(names.look_up(&host, 443, Mono(2), &mut actions).is_empty());
        assert_eq!(names.is_asked(&host, 443), Err("no such name"), "it is too early to ask again");
        actions.truncate(1);
        let addr: SocketAddr = "10.0.0.1:443".parse().unwrap();
        names.learned(&host, 443, Ok(vec![addr]), Mono(2));
        let later = Mono(2).after(REFRESH);
        assert_eq!(names.look_up(&host, 443, later, &mut actions), [addr]);
        assert_eq!(actions.len(), 2);
        names.learned(&host, 443, Err("no such name"), later);
        assert_eq!(names.look_up(&host, 443, later, &mut actions), [addr]);
    }
}
