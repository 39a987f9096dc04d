//! Number of connections for which the process has descriptors. Called at the start and by `check`.

use crate::base::limits::{DESCRIPTORS_KEPT, RESERVE_CONNECTIONS, client_descriptors};
use crate::policy::config::Config;

/// Descriptors without which no gateway starts: its ledger, event loop and threads need nearly as many.
const DESCRIPTORS_MIN: u64 = 24;

/// Descriptors of `limit` for connections of clients and to providers: all but those reserved for the gateway itself,
/// so that connections cannot make its health endpoint unreachable.
pub(super) fn usable(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(DESCRIPTORS_KEPT).max(limit / 4)).unwrap_or(usize::MAX)
}

fn clients(limit: u64) -> usize {
    client_descriptors(usable(limit))
}

/// Fails if `limit` is too low to start. SQLite would report only that it cannot open its file.
pub(super) fn check(limit: u64) -> Result<(), String> {
    match limit < DESCRIPTORS_MIN {
        true => Err(format!(
            "the limit of {limit} descriptors is too low: raise it to {DESCRIPTORS_MIN} at least, better to 1024 \
             (LimitNOFILE=, ulimit -n)"
        )),
        false => Ok(()),
    }
}

/// Warning for the operator if `limit` is too low for `max_connections`.
pub(crate) fn warning(config: &Config, limit: u64) -> Option<String> {
    let (enough, wanted) = (clients(limit), config.server.max_connections);
    (enough < wanted).then(|| {
        let needed = (wanted as u64).div_ceil(3) * 4 + DESCRIPTORS_KEPT;
        format!(
            "server.max_connections is {wanted}, and {limit} descriptors are enough for {enough} clients and their \
             providers: raise the limit to {needed} (LimitNOFILE=, ulimit -n)"
        )
    })
}

// Connections that only get a 503 have reserved descriptors, too.
const _: () = assert!(DESCRIPTORS_KEPT > 2 * RESERVE_CONNECTIONS as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommended_limit_is_enough() {
        for max_connections in [1usize, 10_000, 1_000_000] {
            let needed = (max_connections as u64).div_ceil(3) * 4 + DESCRIPTORS_KEPT;
            assert!(clients(needed) >= max_connections, "{max_connections}");
        }
        assert!((1..=64).all(|limit| (1..=12).contains(&clients(limit))));
        assert!(clients(13_000) < 10_000 && clients(20_000) > 10_000);
    }
}
