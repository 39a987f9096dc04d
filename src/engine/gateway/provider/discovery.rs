//! Schedules requests for providers' lists of models, and keeps new lists until the catalog has them. Owns the times;
//! the requests and their results are handled by `lifecycle::listing`.

use crate::base::time::Mono;
use crate::policy::config::Config;
use crate::policy::discover::Listed;
use std::any::Any;
use std::num::NonZeroU64;
use std::sync::Weak;

/// A provider whose list is requested.
#[derive(Debug)]
struct Poll {
    provider: usize,
    /// Time of the next request; `NEVER` during a request.
    due: Mono,
    /// Reason of the last failure, if the last request failed.
    failed: Option<String>,
}

/// A provider's list that differs from the one in the catalog.
#[derive(Debug)]
pub(crate) struct FreshList {
    pub(crate) provider: usize,
    pub(crate) models: Vec<Listed>,
    /// Number of models that were left out, and the first of them, for the log.
    pub(crate) skipped: Option<(usize, String)>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Discovery {
    polls: Vec<Poll>,
    /// Lists that wait for the next catalog, at most one for each provider.
    fresh: Vec<FreshList>,
    /// Number of the job that builds a catalog.
    pub(crate) building: Option<NonZeroU64>,
    /// Earliest time of all: it is read several times in each event-loop iteration.
    pub(crate) due: Mono,
    /// The setup before the last list was taken. It exists while a request uses it.
    pub(crate) former: Weak<dyn Any>,
}

impl Default for Discovery {
    fn default() -> Discovery {
        let (polls, fresh, former) = (Vec::new(), Vec::new(), Weak::<()>::new());
        Discovery { polls, fresh, building: None, due: Mono::NEVER, former }
    }
}

impl Discovery {
    /// Starts over with a new configuration: all lists are requested immediately.
    pub(crate) fn restart(&mut self, config: &Config, now: Mono) {
        let asked = config.providers.iter().enumerate().filter(|(_, provider)| provider.discover.is_some());
        self.polls = asked.map(|(provider, _)| Poll { provider, due: now, failed: None }).collect();
        self.fresh.clear();
        self.set_due();
    }

    fn set_due(&mut self) {
        self.due = self.polls.iter().map(|poll| poll.due).min().unwrap_or(Mono::NEVER);
    }

    /// Takes a provider whose request is due; there is one request per provider at a time.
    pub(crate) fn take_due(&mut self, now: Mono) -> Option<usize> {
        let poll = self.polls.iter_mut().find(|poll| poll.due <= now)?;
        poll.due = Mono::NEVER;
        let provider = poll.provider;
        self.set_due();
        Some(provider)
    }

    /// Keeps a list for the next catalog, in place of an earlier one of its provider.
    pub(crate) fn keep(&mut self, list: FreshList) {
        self.forget(list.provider);
        self.fresh.push(list);
    }

    /// Keeps a list again that a catalog was built with in vain, unless its provider has sent another one.
    pub(crate) fn put_back(&mut self, list: FreshList) {
        if self.fresh.iter().all(|other| other.provider != list.provider) {
            self.fresh.push(list);
        }
    }

    /// Drops the list of a provider that waits for the next catalog.
    pub(crate) fn forget(&mut self, provider: usize) {
        self.fresh.retain(|other| other.provider != provider);
    }

    /// Takes the lists for the next catalog, unless one is being built.
    pub(crate) fn take_fresh(&mut self) -> Vec<FreshList> {
        if self.building.is_some() { Vec::new() } else { std::mem::take(&mut self.fresh) }
    }

    /// Notes a provider's answer or failure, and the time of the next request. True if the result differs from the
    /// previous one.
    pub(crate) fn answered(&mut self, provider: usize, failed: Option<String>, again: Mono) -> bool {
        let Some(poll) = self.polls.iter_mut().find(|poll| poll.provider == provider) else { return false };
        poll.due = again;
        let is_news = std::mem::replace(&mut poll.failed, failed.clone()) != failed;
        self.set_due();
        is_news
    }
}
