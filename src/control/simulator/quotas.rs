//! Limits of the provider's accounts. Each credential is an account, with counts of its own. A request counts in full
//! when it arrives, since the length of its answer is known. Shares no code with the meter of the gateway, so that it
//! can check the meter.

use super::ask::{Complaint, SimulatedRequest};
use crate::base::time::Unix;
use crate::policy::plan::caps::{Cap, Per, Resource};

/// Maximum number of counts: limits times accounts. Requests of further accounts are refused.
const COUNTS_MAX: usize = 4096;

/// Use of one limit by one account.
#[derive(Debug)]
struct AccountUse {
    limit: usize,
    account: Vec<u8>,
    window: Unix,
    used: u64,
}

/// Limits and their counts.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    limits: Vec<Cap>,
    counts: Vec<AccountUse>,
}

impl Quotas {
    pub(super) fn new(limits: Vec<Cap>) -> Quotas {
        Quotas { limits, counts: Vec::new() }
    }

    /// Counts a request of an account in all limits of its model, or in none if one of them has no room.
    pub(super) fn admit(&mut self, ask: &SimulatedRequest, account: &[u8], now: Unix) -> Result<(), Complaint> {
        let made = if ask.directives.fails() { 0 } else { ask.script.tokens * ask.made };
        let mut counted = Vec::new();
        for (limit, cap) in self.limits.iter().enumerate().filter(|(_, cap)| cap.models.count(Some(&ask.model))) {
            let amount = if cap.resource == Resource::Requests { 1 } else { ask.prompt + made };
            let (window, end) = cap.per.bounds(now);
            let known = self.counts.iter().position(|count| count.limit == limit && count.account == account);
            let at = known.unwrap_or(self.counts.len());
            if known.is_none() {
                self.counts.push(AccountUse { limit, account: account.to_vec(), window, used: 0 });
            }
            let count = &mut self.counts[at];
            if count.window != window {
                (count.window, count.used) = (window, 0);
            }
            if count.used + amount > cap.total || at >= COUNTS_MAX {
                self.counts.truncate(COUNTS_MAX);
                return Err(Complaint {
                    status: 429,
                    message: format!("the limit {} is reached", cap.text()),
                    of_gemini: false,
                    retry_after: Some((end.0 - now.0).div_ceil(1000)),
                });
            }
            counted.push((at, amount));
        }
        for (at, amount) in counted {
            self.counts[at].used += amount;
        }
        Ok(())
    }
}

/// Reads a limit that a provider can have.
pub fn parse_limit(text: &str) -> Result<Cap, String> {
    let expected = || "expected a limit such as requests=600/1m, tokens=2M/day or tokens=2M/day:small".to_owned();
    let cap = Cap::parse(text).map_err(|_| expected())?;
    let is_counted = matches!(cap.resource, Resource::Requests | Resource::Tokens);
    let has_end = !matches!(cap.per, Per::Window | Per::Period) && cap.total > 0;
    if is_counted && has_end { Ok(cap) } else { Err(expected()) }
}
