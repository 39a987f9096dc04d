//! Addresses of upstream hosts: resolved at the start, refreshed in the background, with the last good answer kept, so
//! that ordinarily no request waits for the resolver. Requests are [`Action::Resolve`]; never blocks.

use crate::base::seam::Action;
use crate::base::time::Mono;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Age from which an answer is refreshed, while it is still used.
const REFRESH: Duration = Duration::from_secs(60);
/// Minimum pause before a look-up is repeated that failed, or whose addresses failed.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum number of addresses per host.
const ADDRESSES_MAX: usize = 16;

#[derive(Debug)]
struct HostEntry {
    host: Arc<str>,
    port: u16,
    addrs: Vec<SocketAddr>,
    /// The address that is tried first, if there is a choice: the one that answered last, or the one behind it if it
    /// has failed since.
    answered: Option<SocketAddr>,
    ask_after: Mono,
    /// When the resolver answered last.
    told: Mono,
    /// True while the resolver works on it.
    asked: bool,
    /// Reason of the last failed lookup.
    why: &'static str,
}

impl HostEntry {
    /// Requests a look-up, unless one is under way.
    fn ask(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.asked, true) {
            actions.push(Action::Resolve { host: self.host.clone(), port: self.port });
        }
    }
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
        let entry = self.entry(host, port);
        if now >= entry.ask_after {
            entry.ask(actions);
        }
        &entry.addrs
    }

    /// All known addresses of `host` have failed: requests a look-up, unless the last answer is recent. True if an
    /// answer is expected.
    pub(crate) fn renew(&mut self, host: &Arc<str>, port: u16, now: Mono, actions: &mut Vec<Action>) -> bool {
        let entry = self.entry(host, port);
        if entry.ask_after != Mono::NEVER && now >= entry.told.after(RETRY) {
            entry.ask(actions);
        }
        entry.asked
    }

    /// Handles a resolver's answer; a failed look-up keeps the known addresses.
    pub(crate) fn learned(
        &mut self,
        host: &Arc<str>,
        port: u16,
        addrs: Result<Vec<SocketAddr>, &'static str>,
        now: Mono,
    ) {
        let entry = self.entry(host, port);
        (entry.asked, entry.told) = (false, now);
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

    fn entry(&mut self, host: &Arc<str>, port: u16) -> &mut HostEntry {
        let known = self.entries.iter().position(|e| e.port == port && e.host == *host);
        let index = known.unwrap_or_else(|| self.add(host, port));
        &mut self.entries[index]
    }

    fn add(&mut self, host: &Arc<str>, port: u16) -> usize {
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
            told: Mono(0),
            asked: false,
            why: "",
        });
        self.entries.len() - 1
    }

    /// The address of `host` that is tried first.
    pub(crate) fn answered(&self, host: &Arc<str>, port: u16) -> Option<SocketAddr> {
        self.entries.iter().find(|entry| entry.port == port && entry.host == *host)?.answered
    }

    /// Records that this address of `host` is tried first from now on.
    pub(crate) fn has_answered(&mut self, host: &Arc<str>, port: u16, addr: SocketAddr) {
        self.entry(host, port).answered = Some(addr);
    }

    /// Checks if an answer is expected. If not, waiting for addresses is useless: returns why the last look-up failed,
    /// for the log.
    pub(crate) fn is_asked(&mut self, host: &Arc<str>, port: u16) -> Result<(), &'static str> {
        let entry = self.entry(host, port);
        if entry.asked { Ok(()) } else { Err(entry.why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST_PORT: u16 = 443;

    struct Rig {
        names: HostNames,
        actions: Vec<Action>,
        host: Arc<str>,
    }

    fn rig(host: &str) -> Rig {
        Rig { names: HostNames::default(), actions: Vec::new(), host: host.into() }
    }

    fn addr(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), HOST_PORT)
    }

    impl Rig {
        fn addrs(&mut self, now: Mono) -> Vec<SocketAddr> {
            self.names.look_up(&self.host, HOST_PORT, now, &mut self.actions).to_vec()
        }

        fn learn(&mut self, addrs: Result<&[&str], &'static str>, now: Mono) {
            let addrs = addrs.map(|addrs| addrs.iter().map(|text| addr(text)).collect());
            self.names.learned(&self.host.clone(), HOST_PORT, addrs, now);
        }

        fn renew(&mut self, now: Mono) -> bool {
            self.names.renew(&self.host.clone(), HOST_PORT, now, &mut self.actions)
        }
    }

    #[test]
    fn literal_address_is_never_resolved() {
        for host in ["127.0.0.1", "[::1]"] {
            let mut rig = rig(host);
            assert_eq!(rig.addrs(Mono(5)).len(), 1);
            assert!(!rig.renew(Mono(0).after(REFRESH)) && rig.actions.is_empty());
        }
    }

    #[test]
    fn a_failed_refresh_keeps_the_last_good_answer() {
        let mut rig = rig("api.example");
        assert!(rig.addrs(Mono(0)).is_empty());
        rig.learn(Err("no such name"), Mono(1));
        assert!(rig.addrs(Mono(2)).is_empty());
        let host = rig.host.clone();
        assert_eq!(rig.names.is_asked(&host, HOST_PORT), Err("no such name"), "it is too early to ask again");
        rig.learn(Ok(&["10.0.0.1"]), Mono(2));
        let later = Mono(2).after(REFRESH);
        assert_eq!(rig.addrs(later), [addr("10.0.0.1")]);
        assert_eq!(rig.actions.len(), 2);
        rig.learn(Err("no such name"), later);
        assert_eq!(rig.addrs(later), [addr("10.0.0.1")]);
    }

    #[test]
    fn a_host_has_one_lookup_at_a_time() {
        let mut rig = rig("api.example");
        for now in [Mono(0), Mono(0).after(RETRY), Mono(0).after(10 * REFRESH)] {
            assert!(rig.addrs(now).is_empty() && rig.renew(now));
            assert_eq!(rig.actions.len(), 1, "asked once until the answer arrives");
        }
    }

    #[test]
    fn failed_addresses_are_looked_up_again_at_most_every_two_seconds() {
        let mut rig = rig("api.example");
        rig.addrs(Mono(0));
        rig.learn(Ok(&["10.0.0.1"]), Mono(0));
        rig.actions.clear();
        let later = Mono(0).after(RETRY);
        assert!(!rig.renew(Mono(later.0 - 1)) && rig.actions.is_empty());
        assert!(rig.renew(later) && rig.renew(later) && rig.actions.len() == 1);
        rig.learn(Err("no answer from the name server"), later);
        assert!(!rig.renew(later) && rig.actions.len() == 1);
    }
}
