//! A plan: what keys of it may use, as configured. Counting is `meter`'s, calendars are `window`'s.

use super::window::Period;
use std::sync::Arc;
use std::time::Duration;

/// Shown in place of "unlimited": the largest integer every JSON parser keeps exactly (contract section 3).
pub const UNLIMITED: u64 = 9_007_199_254_740_991;

/// Limits of one plan; a limit of 0 is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Its name in keys and in `GET /v1/quota`.
    pub name: Arc<str>,
    /// Tokens per period.
    pub tokens: u64,
    /// Calendar period in UTC: `"month"`, `"week"`, `"day"`.
    pub period: Period,
    /// Requests per window.
    pub requests: u64,
    /// Length of the window in whole seconds; windows begin at multiples of it, so that all hosts agree.
    pub window: Duration,
    /// Tokens per window.
    pub tokens_per_window: u64,
    /// Requests at once.
    pub concurrency: u64,
}

impl Plan {
    /// The plan of a configuration that names none.
    pub fn unlimited(name: &str) -> Plan {
        Plan {
            name: name.into(),
            tokens: 0,
            period: Period::Month,
            requests: 0,
            window: Duration::from_secs(60),
            tokens_per_window: 0,
            concurrency: 0,
        }
    }
}

impl Plan {
    /// One host's share of every limit while the ledger that `hosts` of them share cannot be reached: at least 1 of
    /// each, so that a share is not "no limit".
    pub fn share(&self, hosts: u32) -> Plan {
        let part = |limit: u64| if limit == 0 { 0 } else { (limit / u64::from(hosts.max(1))).max(1) };
        Plan {
            tokens: part(self.tokens),
            requests: part(self.requests),
            tokens_per_window: part(self.tokens_per_window),
            concurrency: part(self.concurrency),
            ..self.clone()
        }
    }
}

/// A limit as shown to people: 0 becomes [`UNLIMITED`].
pub fn shown(limit: u64) -> u64 {
    if limit == 0 { UNLIMITED } else { limit.min(UNLIMITED) }
}
