//! Changes of keys in a shared ledger, by a script that also writes the audit and the answers to repeated requests.

use super::resp::{RedisCommand, list, text};
use super::{Remote, code::EDIT};
use crate::base::digest::{hex, unhex};
use crate::base::time::Unix;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::store::api::StoreError;
use crate::store::keyform::{record_from, record_text};
use crate::store::note::{ANSWERS_KEPT_MS, AUDIT_MAX, Answered, AuditLine, Change, Note};

/// Attempts at a change in a shared ledger when other writers interfere.
const EDIT_TRIES: usize = 20;

/// Separator of the parts of a line, which no part contains.
const BETWEEN: char = '\u{1f}';

/// Number of lines read at first and at most; twice as many each time.
const PIECE: (u64, u64) = (16, 1000);

/// Results of the script: the record is stored, or the idempotency name has an answer already.
const STORED: u64 = 1;
const ANSWERED: u64 = 2;

/// Returns arguments of the script: a line of the audit and the number of lines kept, the answer and its lifetime in
/// milliseconds.
fn arguments(note: &Note<'_>, before: Option<&KeyRecord>, after: &KeyRecord) -> [String; 4] {
    let line = line_text(&note.line(before, after));
    let answer = note.once.as_ref().map(|once| format!("{}{}", hex(&once.digest), (once.answer)(after)));
    [line, AUDIT_MAX.to_string(), answer.unwrap_or_default(), ANSWERS_KEPT_MS.to_string()]
}

/// Returns a line of the audit as stored.
pub(super) fn line_text(line: &AuditLine) -> String {
    let AuditLine { at, who, what, key, before, after } = line;
    let at = at.0.to_string();
    [&at, who, what, key, before.as_deref().unwrap_or_default(), after].map(String::from).join(&BETWEEN.to_string())
}

/// Largest index of a list.
const LINE_LAST: u64 = i64::MAX as u64;

impl Remote {
    /// Returns the names of the audit and of the answer under an idempotency name.
    fn places(&self, once: &str) -> [String; 2] {
        [self.server.named("keys:audit"), self.server.named("keys:once:") + once]
    }

    /// Stores a new key with its audit line and answer. A known id is an error.
    pub fn issue_key(&mut self, key: &KeyRecord, note: &Note<'_>) -> Result<(), StoreError> {
        match self.replace_key(key, "", (note, None))? {
            true => Ok(()),
            false => Err(StoreError::Shared(self.server.name.clone(), format!("a key has the id {} already", key.id))),
        }
    }

    /// `note`: its audit line and answer, and the record before.
    fn replace_key(
        &mut self,
        key: &KeyRecord,
        old: &str,
        (note, before): (&Note<'_>, Option<&KeyRecord>),
    ) -> Result<bool, StoreError> {
        self.server.connect()?;
        let (id, new) = (&key.id, &*record_text(key));
        let once = note.once.as_ref().map_or("", |once| once.name);
        let [audit, answer] = self.places(once);
        let created = self.server.named("keys:created");
        let mut cmd = self
            .server
            .script(EDIT, &[self.server.named("keys"), self.server.named("keys:version"), audit, answer, created]);
        cmd.arg(id.as_str()).arg(old).arg(new).args(&arguments(note, before, key)).number(key.created.0);
        let code = self.server.query_number(&cmd)?;
        let mut done = code == STORED;
        if !done {
            // An interrupted attempt may have stored it.
            let found =
                self.server.read_text(RedisCommand::new("HGET").arg(self.server.named("keys")).arg(id.as_str()))?;
            done = found.as_deref() == Some(new);
        }
        match done {
            true => self.server.replicated()?,
            false if code == ANSWERED => {
                let why = "something was done under this idempotency key at the same time";
                return Err(StoreError::Shared(self.server.name.clone(), why.to_string()));
            }
            false => {}
        }
        Ok(done)
    }

    /// Lets `change` edit the record of a key; again if another process has changed it meanwhile. See
    /// `Ledger::edit_key`.
    pub fn edit(&mut self, id: &KeyId, note: &Note<'_>, change: Change<'_>) -> Result<Option<KeyRecord>, StoreError> {
        for _ in 0..EDIT_TRIES {
            let found =
                self.server.read_text(RedisCommand::new("HGET").arg(self.server.named("keys")).arg(id.as_str()))?;
            let Some(old) = found else { return Ok(None) };
            let Some(mut key) = record_from(&old) else {
                return Err(StoreError::Shared(
                    self.server.name.clone(),
                    format!("the record of key {id} cannot be read"),
                ));
            };
            let before = key.clone();
            if !change(&mut key) {
                return Ok(Some(key));
            }
            if self.replace_key(&key, &old, (note, Some(&before)))? {
                return Ok(Some(key));
            }
        }
        Err(StoreError::Shared(self.server.name.clone(), format!("key {id} is being changed by others")))
    }

    /// Returns the answer given under an idempotency name within the last day.
    pub fn answered(&mut self, once: &str) -> Result<Option<Answered>, StoreError> {
        let [_, place] = self.places(once);
        let found = self.server.read_text(RedisCommand::new("GET").arg(&place))?;
        Ok(found.and_then(|text| {
            let (digest, answer) = text.split_at_checked(64)?;
            Some(Answered { digest: unhex(digest)?, answer: answer.to_string() })
        }))
    }

    /// See [`crate::store::ledger::Ledger::audit`].
    pub fn audit(&mut self, from: u64, most: u64, bytes: usize) -> Result<Vec<AuditLine>, StoreError> {
        let [place, _] = self.places("");
        let (mut from, end) = (from.min(LINE_LAST), from.saturating_add(most).min(LINE_LAST));
        let (mut lines, mut length, mut piece) = (Vec::new(), 0, PIECE.0);
        while from < end {
            let last = from.saturating_add(piece).min(end) - 1;
            let found = self.server.read(RedisCommand::new("LRANGE").arg(&place).number(from).number(last))?;
            if list(&found).is_empty() {
                break;
            }
            (from, piece) = (last + 1, (2 * piece).min(PIECE.1));
            for line in list(&found).iter().filter_map(|line| read(text(line)?)) {
                let is_last = length >= bytes;
                length += line.text_bytes();
                lines.push(line);
                if is_last {
                    return Ok(lines);
                }
            }
        }
        Ok(lines)
    }
}

fn read(line: &str) -> Option<AuditLine> {
    let parts: Vec<&str> = line.split(BETWEEN).collect();
    let [at, who, what, key, before, after] = *parts.as_slice() else { return None };
    let text = str::to_string;
    Some(AuditLine {
        at: Unix(at.parse().ok()?),
        who: text(who),
        what: text(what),
        key: text(key),
        before: Some(before).filter(|before| !before.is_empty()).map(text),
        after: text(after),
    })
}
