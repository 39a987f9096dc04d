//! Schedules requests for providers' lists of models. Owns the times; the requests and their results are handled by
//! `lifecycle::listing`.

use crate::base::time::Mono;
use crate::policy::config::Config;
use std::any::Any;
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

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Discovery {
    polls: Vec<Poll>,
    /// Earliest time of all: it is read several times in each event-loop iteration.
    pub(crate) due: Mono,
    /// The setup before the last list was taken. It exists while a request uses it.
    pub(crate) former: Weak<dyn Any>,
}

impl Default for Discovery {
    fn default() -> Discovery {
        Discovery { polls: Vec::new(), due: Mono::NEVER, former: Weak::<()>::new() }
    }
}

impl Discovery {
    /// Starts over with a new configuration: all lists are requested immediately.
    pub(crate) fn restart(&mut self, config: &Config, now: Mono) {
        let asked = config.providers.iter().enumerate().filter(|(_, provider)| provider.discover.is_some());
        self.polls = asked.map(|(provider, _)| Poll { provider, due: now, failed: None }).collect();
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
