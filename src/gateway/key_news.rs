//! Applies changes of the keys in the ledger, and logs them.

use super::cx::Cx;
use crate::base::limits::KEYS_TOLD_MAX;
use crate::base::text::push_number;
use crate::policy::keys::{KeyId, KeyNews, KeyRecord};
use crate::wire::json::write_string;

impl Cx {
    /// Applies changes of the keys, and logs them.
    pub(crate) fn keys_news(&mut self, news: KeyNews) {
        let is_full = matches!(news, KeyNews::Piece { .. });
        let (records, gone, begins, ends) = match news {
            KeyNews::Changed(records, gone) => (records, gone, true, true),
            KeyNews::Piece { records, begins, ends } => {
                if begins {
                    self.access.keys.begin();
                }
                (records, Vec::new(), begins, ends)
            }
        };
        if begins {
            self.access.keys_told = 0;
        }
        for record in records {
            self.learn_key(record);
        }
        gone.iter().for_each(|id| self.access.keys.forget(id));
        if !ends {
            return;
        }
        if is_full {
            // A key that was in no part of the list no longer exists.
            self.access.keys.end();
        }
        if let Some(more) = self.access.keys_told.checked_sub(KEYS_TOLD_MAX).filter(|more| *more > 0) {
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"key\",\"outcome\":\"more\",\"keys\":");
                push_number(out, more as u64);
            });
        }
        self.tell_of_budgets();
    }

    /// Logs a change of a key.
    fn tell_of_key(&mut self, outcome: &str, id: &KeyId, name: &str) {
        self.log_event(|out| {
            for (before, value) in [(",\"event\":\"key\",\"outcome\":\"", outcome), ("\",\"key\":\"", id.as_str())] {
                out.extend_from_slice(before.as_bytes());
                out.extend_from_slice(value.as_bytes());
            }
            out.extend_from_slice(b"\",\"name\":");
            write_string(out, name);
        });
    }

    /// Applies one key's record, known or new.
    pub(crate) fn learn_key(&mut self, record: KeyRecord) {
        let news = self.access.keys.news(&record);
        if let Some(outcome) = news {
            if self.access.keys_told < KEYS_TOLD_MAX {
                self.tell_of_key(outcome, &record.id, &record.name);
            }
            self.access.keys_told += 1;
        }
        let (key, kind) = self.access.keys.learn(record);
        if let Some(kind) = kind {
            self.access.plans.add(kind, &self.access.keys, &self.setup.config, &self.accounts.meter);
        }
        if news.is_some() {
            // Its limits may have changed.
            let number = self.accounts.grants.give_up_of(key);
            self.give_back_grants(number);
            self.rebudget(key);
        }
    }

    /// Warns of keys whose plan or group is not configured: they are refused.
    pub(crate) fn warn_of_missing(&mut self) {
        for (what, name, keys) in self.access.plans.missing(&self.access.keys, self.now.unix) {
            let text = what.message(&name, keys);
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"warning\",\"message\":");
                write_string(out, &text);
            });
        }
    }
}
