//! Key, client and times of sessions. The daily sums do not have them, so they are read from the newest usage records.

use crate::base::time::Unix;
use crate::policy::agent::Client;
use crate::policy::keys::KeyId;
use crate::policy::row::Row;
use crate::policy::window::{DAY_MS, iso};
use crate::store::api::{Query, REST, StoreError, UsageLine};
use crate::store::ledger::Ledger;
use std::collections::BTreeMap;

/// Details of the sessions in a report, by name.
pub(super) type Sessions = BTreeMap<String, SessionDetail>;

/// Details of a session, as far as its usage records were found.
pub(super) struct SessionDetail {
    /// Number of its requests that were not found.
    missing: u64,
    found: Option<FoundRequests>,
}

struct FoundRequests {
    /// Key and client of the last request.
    key: KeyId,
    client: Client,
    first: Unix,
    last: Unix,
}

impl SessionDetail {
    /// Adds a request. True if it was the last one missing.
    fn add(&mut self, row: &Row) -> bool {
        if self.missing == 0 {
            return false;
        }
        self.missing -= 1;
        let (key, client, at) = (row.key, row.client, row.admitted);
        match &mut self.found {
            Some(found) => {
                found.first = found.first.min(at);
                if found.last < at {
                    (found.key, found.client, found.last) = (key, client, at);
                }
            }
            None => self.found = Some(FoundRequests { key, client, first: at, last: at }),
        }
        self.missing == 0
    }

    /// Key of the last request.
    pub(super) fn key(&self) -> Option<KeyId> {
        self.found.as_ref().map(|found| found.key)
    }

    /// Client of the last request, times of the first and the last. Texts of unknown values are empty: the time of the
    /// first is known only if no request is missing.
    pub(super) fn texts(&self) -> [String; 3] {
        let Some(found) = &self.found else { return Default::default() };
        let first = if self.missing == 0 { iso(found.first) } else { String::new() };
        [found.client.name().to_string(), first, iso(found.last)]
    }
}

/// Reads the details of the sessions in these lines, which `query` returned.
pub(super) fn read(query: &Query, lines: &[UsageLine], ledger: &mut Ledger) -> Result<Sessions, StoreError> {
    let named = lines.iter().filter(|line| !line.name.is_empty() && line.name != REST);
    let detail = |line: &UsageLine| (line.name.clone(), SessionDetail { missing: line.requests, found: None });
    let mut sessions: Sessions = named.map(detail).collect();
    let (mut open, (first, beyond)) = (sessions.len(), query.days());
    if open > 0 {
        ledger.recent_rows(&mut |row| {
            if (first..beyond).contains(&(row.admitted.0 / DAY_MS))
                && let Some(session) = row.names.session.as_deref().and_then(|name| sessions.get_mut(name))
            {
                open -= usize::from(session.add(&row));
            }
            open > 0
        })?;
    }
    Ok(sessions)
}
