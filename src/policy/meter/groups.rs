//! How groups stand, for whoever looks at all of them.

use super::{Amount, Meter};
use crate::base::time::Unix;
use crate::policy::plan::Plan;

/// How one group stands, by what is settled and what is reserved.
#[derive(Debug)]
pub struct GroupStatus<'a> {
    /// Its name and limits.
    pub limits: &'a Plan,
    /// Used in the period.
    pub used: Amount,
    /// Reserved by requests that run.
    pub reserved: Amount,
    /// When the next period begins.
    pub renews: Unix,
    /// Requests of the present window.
    pub requests: u64,
    /// Tokens of the present window.
    pub window_tokens: u64,
    /// Requests that run.
    pub running: u32,
}

impl Meter {
    /// Shows every configured group, brought to `now`.
    pub fn groups(&mut self, now: Unix, see: &mut dyn FnMut(&GroupStatus<'_>)) {
        self.tree.each_configured(&self.open, now, |node| {
            let account = &node.account;
            let (requests, window_tokens) = account.window_known();
            see(&GroupStatus {
                limits: &node.limits,
                used: account.period_known(),
                reserved: account.period.reserved,
                renews: account.period.bounds.1,
                requests,
                window_tokens,
                running: account.running,
            });
        });
    }
}
