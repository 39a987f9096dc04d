//! How many clients the descriptors are enough for that this process may have. Called at the start and by `check`.

use crate::base::limits::{DESCRIPTORS_KEPT, RESERVE_CONNECTIONS};
use crate::policy::config::Config;

/// Of `limit` descriptors, how many clients can be connected: each may need a connection to a provider, too. Some are
/// kept back, so that strangers never hide the gateway's health.
pub(super) fn clients(limit: u64) -> usize {
    let usable = limit.saturating_sub(DESCRIPTORS_KEPT).max(limit / 4);
    usize::try_from(usable / 2).unwrap_or(usize::MAX).max(1)
}

/// What an operator should know if they are not enough for `max_connections`.
pub(crate) fn warning(config: &Config, limit: u64) -> Option<String> {
    let (enough, wanted) = (clients(limit), config.server.max_connections);
    (enough < wanted).then(|| {
        let needed = 2 * wanted as u64 + DESCRIPTORS_KEPT;
        format!(
            "server.max_connections is {wanted}, and {limit} descriptors are enough for {enough} clients, each with a \
             connection to a provider: raise the limit to {needed} (LimitNOFILE=, ulimit -n)"
        )
    })
}

// Answers of 503 have theirs.
const _: () = assert!(DESCRIPTORS_KEPT > 2 * RESERVE_CONNECTIONS as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_that_is_asked_for_is_enough() {
        for wanted in [1u64, 10_000, 1_000_000] {
            assert_eq!(clients(2 * wanted + DESCRIPTORS_KEPT) as u64, wanted.max(clients(DESCRIPTORS_KEPT + 2) as u64));
        }
        assert!((1..=64).all(|limit| clients(limit) <= 8));
    }
}
