//! When providers are asked for their lists of models. Owns the times; what is asked and what comes of an answer is
//! `lifecycle::listing`.

use crate::base::time::Mono;
use crate::policy::config::Config;

/// One provider that is asked.
#[derive(Debug)]
struct Poll {
    provider: usize,
    /// When it is asked next; `NEVER` while it is being asked.
    due: Mono,
    /// Why the last answer was none.
    failed: Option<String>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Discovery {
    polls: Vec<Poll>,
    /// The earliest time of all: it is asked for several times in each turn.
    due: Mono,
}

impl Default for Discovery {
    fn default() -> Discovery {
        Discovery { polls: Vec::new(), due: Mono::NEVER }
    }
}

impl Discovery {
    /// By a new configuration: all are asked at once.
    pub(crate) fn restart(&mut self, config: &Config, now: Mono) {
        let asked = config.providers.iter().enumerate().filter(|(_, provider)| provider.discover.is_some());
        self.polls = asked.map(|(provider, _)| Poll { provider, due: now, failed: None }).collect();
        self.set_due();
    }

    /// When one is to be asked; `NEVER` where none is.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        self.due
    }

    fn set_due(&mut self) {
        self.due = self.polls.iter().map(|poll| poll.due).min().unwrap_or(Mono::NEVER);
    }

    /// One whose time has come; each is asked once at a time.
    pub(crate) fn take_due(&mut self, now: Mono) -> Option<usize> {
        let poll = self.polls.iter_mut().find(|poll| poll.due <= now)?;
        poll.due = Mono::NEVER;
        let provider = poll.provider;
        self.set_due();
        Some(provider)
    }

    /// A provider has answered, or not, and why; it is asked again then. True if that is another end than before.
    pub(crate) fn answered(&mut self, provider: usize, failed: Option<String>, again: Mono) -> bool {
        let Some(poll) = self.polls.iter_mut().find(|poll| poll.provider == provider) else { return false };
        poll.due = again;
        let is_news = std::mem::replace(&mut poll.failed, failed.clone()) != failed;
        self.set_due();
        is_news
    }
}
