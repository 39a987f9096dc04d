//! Changes of the keys of a shared ledger: each change is counted and has a line in the audit, which names its key.
//! Also reads of keys in pieces.

use super::Remote;
use super::code::{CHANGES, PAGE};
use super::resp::{RedisCommand, Value, integer, list, text};
use crate::policy::keys::{KeyId, KeyRecord};
use crate::store::api::{Names, StoreError};
use crate::store::bounds;
use crate::store::follow::{KeyChanges, KeySource, KeysSeen};
use crate::store::keyform::record_from;

impl Remote {
    /// Returns the present position in the changes of the keys. Call it before reading all keys.
    pub fn keys_seen(&mut self) -> Result<KeysSeen, StoreError> {
        let mut seen = KeysSeen::default();
        self.key_changes(&mut seen).map(|_| seen)
    }

    /// Parses alternating ids and texts into records. Ids whose text is empty or unreadable are returned separately.
    fn records_of(&mut self, pairs: &[Value]) -> (Vec<KeyRecord>, Vec<KeyId>) {
        let (mut records, mut gone) = (Vec::with_capacity(pairs.len() / 2), Vec::new());
        for pair in pairs.as_chunks::<2>().0 {
            let (id, stored) = (text(&pair[0]), text(&pair[1]));
            match stored.and_then(record_from) {
                Some(record) => records.push(record),
                None => {
                    if stored != Some("") {
                        let id = if let Value::Text(id) = &pair[0] { id.as_slice() } else { b"" };
                        self.server
                            .pass_over(format!("key {:?}", String::from_utf8_lossy(id)), "its record cannot be read");
                    }
                    gone.extend(id.and_then(KeyId::parse));
                }
            }
        }
        (records, gone)
    }
}

/// Number of keys read for a page at first and at most; twice as many each time. So a page of large records is read in
/// few pieces of about its own size.
const PIECE: (u64, u64) = (16, 1000);

impl Remote {
    /// See [`crate::store::ledger::Ledger::keys_page`].
    pub fn keys_page(
        &mut self,
        after: Option<&KeyId>,
        names: Names<'_>,
        (limit, bytes): (usize, usize),
    ) -> Result<Option<Vec<KeyRecord>>, StoreError> {
        self.server.connect()?;
        let (mut before, mut page) = (after.map_or("", KeyId::as_str).as_bytes().to_vec(), Vec::new());
        let (mut length, mut piece) = (0, PIECE.0);
        while page.len() < limit {
            let mut cmd = self.server.script(PAGE, &["keys", "keys:created"].map(|name| self.server.named(name)));
            let answer = self.server.query(cmd.arg(&before).number(piece))?;
            let Value::List(pairs) = answer else { return Ok(None) };
            let Some([Value::Text(last), _]) = pairs.last_chunk() else { break };
            before.clone_from(last);
            piece = (2 * piece).min(PIECE.1);
            for record in self.records_of(&pairs).0.into_iter().filter(|record| names.takes(&record.name)) {
                let is_last = length >= bytes;
                length += record.text_bytes();
                page.push(record);
                if is_last || page.len() == limit {
                    return Ok(Some(page));
                }
            }
        }
        Ok(Some(page))
    }

    /// Returns all keys of this name. A shared ledger has no index by name, so all keys are searched.
    pub fn keys_named(&mut self, name: &str) -> Result<Vec<KeyRecord>, StoreError> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let piece = self.key_piece(&mut cursor)?;
            found.extend(piece.into_iter().filter(|record| record.name == name));
            if cursor.is_empty() {
                break;
            }
        }
        found.sort_unstable_by_key(|key| (key.created, key.id));
        // Keys that move meanwhile are returned twice.
        found.dedup_by_key(|key| key.id);
        Ok(found)
    }
}

impl KeySource for Remote {
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError> {
        self.server.connect()?;
        let epoch = self.server.epoch().unwrap_or_default();
        if seen.epoch != epoch {
            *seen = KeysSeen { epoch: epoch.to_string(), ..KeysSeen::default() };
        }
        let mut cmd =
            self.server.script(CHANGES, &["keys", "keys:version", "keys:audit"].map(|name| self.server.named(name)));
        match &seen.last {
            Some((number, digest)) => cmd.arg(number.to_string()).arg(digest),
            None => cmd.arg("").arg(""),
        };
        cmd.number(bounds::KEYS_PER_PIECE as u64);
        let answer = self.server.query(&cmd)?;
        let [known, number, digest, pairs @ ..] = list(&answer) else { return Err(self.server.nonsense()) };
        let number = integer(number).and_then(|number| i64::try_from(number).ok());
        let told = integer(known).zip(number).zip(text(digest));
        let Some(((known, number), digest)) = told else { return Err(self.server.nonsense()) };
        let before = seen.last.replace((number, digest.to_string()));
        if known != 1 {
            return Ok(KeyChanges::Unknown);
        }
        let more = before.is_some_and(|(before, _)| number - before == bounds::KEYS_PER_PIECE as i64);
        if pairs.is_empty() {
            return Ok(KeyChanges::None);
        }
        let (records, gone) = self.records_of(pairs);
        Ok(KeyChanges::These { records, gone, more })
    }

    fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError> {
        let from = if cursor.is_empty() { "0" } else { &**cursor };
        let mut cmd = RedisCommand::new("HSCAN");
        cmd.arg(self.server.named("keys")).arg(from).arg("COUNT").number(bounds::KEYS_PER_PIECE as u64);
        let before = self.server.connection_number();
        let answer = self.server.read(&cmd)?;
        // A position means nothing at another server, which may answer after a failover.
        if from != "0" && self.server.connection_number() != before {
            return Err(StoreError::Interrupted(self.server.name.clone()));
        }
        let [next, pairs] = list(&answer) else { return Err(self.server.nonsense()) };
        let next = text(next).ok_or_else(|| self.server.nonsense())?;
        *cursor = if next == "0" { String::new() } else { next.to_string() };
        Ok(self.records_of(list(pairs)).0)
    }

    fn take_odd(&mut self) -> Vec<String> {
        std::mem::take(&mut self.server.odd)
    }
}
