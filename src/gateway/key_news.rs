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
                    self.keys.begin();
                }
                (records, Vec::new(), begins, ends)
            }
        };
        if begins {
            self.keys_told = 0;
        }
        for record in records {
            self.learn_key(record);
        }
        gone.iter().for_each(|id| self.keys.forget(id));
        if !ends {
            return;
        }
        if is_full {
            // A key that was in no part of the list no longer exists.
            self.keys.end();
        }
        if let Some(more) = self.keys_told.checked_sub(KEYS_TOLD_MAX).filter(|more| *more > 0) {
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
        let news = self.keys.news(&record);
        if let Some(outcome) = news {
            if self.keys_told < KEYS_TOLD_MAX {
                self.tell_of_key(outcome, &record.id, &record.name);
            }
            self.keys_told += 1;
        }
        let (key, kind) = self.keys.learn(record);
        if let Some(kind) = kind {
            self.plans.add(kind, &self.keys, &self.setup.config, &self.meter);
        }
        if news.is_some() {
            self.give_up_grants_of(key);
            self.rebudget(key);
        }
    }

    /// Warns of keys whose plan or group is not configured: they are refused.
    pub(crate) fn warn_of_missing(&mut self) {
        for (what, name, keys) in self.plans.missing(&self.keys, self.now.unix) {
            let text = what.message(&name, keys);
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"warning\",\"message\":");
                write_string(out, &text);
            });
        }
    }
}
