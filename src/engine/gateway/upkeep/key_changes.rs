//! Applies changes of the keys in the ledger, and logs them.

use super::event_log::warn;
use crate::base::text::push_number;
use crate::base::time::Unix;
use crate::gateway::cx::Cx;
use crate::gateway::report::captures::{CaptureChange, CaptureNews};
use crate::policy::keys::{KeyId, KeyIx, KeyNews, KeyRecord};
use crate::policy::window;
use crate::wire::json::write_string;

/// Keys of one ledger change that are logged one by one.
const KEYS_TOLD_MAX: usize = 100;

/// Logs the upper bound of the process's memory if keys or settings have changed it, and warns if it is more than
/// `server.memory` allows.
pub(crate) fn announce_memory(cx: &mut Cx) {
    let (config, keys) = (cx.setup.config.clone(), cx.access.keys.bytes());
    cx.memory.key_bytes = config.server.bounds.key_bytes(keys);
    let most = config.worst_case_bytes(keys);
    if std::mem::replace(&mut cx.memory.announced, most) == most {
        return;
    }
    let (known, max_buffered) = (cx.access.keys.len(), config.server.max_buffered);
    cx.log_event(|out| {
        let line = format!(
            ",\"event\":\"memory\",\"keys\":{known},\"max_buffered\":{max_buffered},\"worst_case_bytes\":{most}"
        );
        out.extend_from_slice(line.as_bytes());
    });
    if let Some(text) = config.memory_warning(keys, None) {
        warn(&text, cx);
    }
}

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
        for id in &gone {
            self.access.keys.forget(id);
            self.set_capture(id, None);
        }
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
        if self.access.keys.bytes() > self.memory.key_bytes {
            announce_memory(self);
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

    /// Begins the captures that are on when the process starts.
    pub(crate) fn begin_captures(&mut self) {
        let captured = self.access.keys.captured(self.now.unix).map(|key| (key.id(), key.captured_until()));
        for (id, until) in captured.collect::<Vec<_>>() {
            self.set_capture(&id, until);
        }
    }

    /// Sets the end of a key's capture, and logs a change.
    fn set_capture(&mut self, id: &KeyId, until: Option<Unix>) {
        if let Some(change) = self.report.captures.set(id, until, self.now) {
            self.tell_of_capture(id, change);
        }
    }

    /// Logs the captures that have ended by themselves.
    pub(crate) fn end_captures(&mut self) {
        while let Some(id) = self.report.captures.over(self.now) {
            self.tell_of_capture(&id, CaptureChange::Ended);
        }
    }

    /// Logs that the traffic of a key is captured, or not any more.
    fn tell_of_capture(&mut self, id: &KeyId, change: CaptureChange) {
        let known = self.access.keys.index_of(id);
        let name = known.map_or_else(String::new, |key| self.access.keys.get(key).name().to_owned());
        self.log_event(|out| {
            let outcome: &[u8] = match change {
                CaptureChange::On(_) => b"on",
                CaptureChange::Off => b"off",
                CaptureChange::Ended => b"ended",
            };
            out.extend_from_slice(b",\"event\":\"capture\",\"outcome\":\"");
            out.extend_from_slice(outcome);
            out.extend_from_slice(b"\",\"key\":\"");
            out.extend_from_slice(id.text());
            out.extend_from_slice(b"\",\"name\":");
            write_string(out, &name);
            if let CaptureChange::On(until) = change {
                out.extend_from_slice(b",\"until\":\"");
                window::write_iso(until, out);
                out.push(b'"');
            }
        });
    }

    /// A captured request of a key with `bytes` bytes has been written, or is lost (with the reason), or was not to be
    /// written.
    pub(crate) fn captured(&mut self, key: &KeyId, bytes: usize, done: Option<Result<(), String>>) {
        self.report.captures.release(bytes, &mut self.memory.pool);
        let Some(done) = done else { return };
        let Some(news) = self.report.captures.ended(key, done.is_ok(), self.now.mono) else { return };
        self.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"capture\",\"outcome\":\"");
            out.extend_from_slice(if news == CaptureNews::Failed { b"failed" } else { b"recovered" });
            out.extend_from_slice(b"\",\"key\":\"");
            out.extend_from_slice(key.text());
            match news {
                CaptureNews::Recovered(lost) => {
                    out.extend_from_slice(b"\",\"requests_lost\":");
                    push_number(out, lost);
                }
                CaptureNews::Failed => {
                    out.extend_from_slice(b"\",\"error\":");
                    write_string(out, done.as_ref().err().map_or("", String::as_str));
                }
            }
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
        let until = record.capture.filter(|_| record.revoked.is_none());
        let until = until.map(|until| Unix(until.0.next_multiple_of(1000))).filter(|until| self.now.unix < *until);
        let (id, (key, kind)) = (record.id, self.access.keys.learn(record));
        self.set_capture(&id, until);
        if let Some(kind) = kind {
            self.access.plans.add(kind, &self.access.keys, &self.setup.config, &self.accounts.meter, self.now);
        }
        if news.is_some() {
            self.limits_changed(key);
        }
    }

    /// The limits of a key may have changed.
    fn limits_changed(&mut self, key: KeyIx) {
        let number = self.accounts.grants.limits_changed(key);
        self.give_back_grants(number);
        self.rebudget(key);
    }

    /// Ends the temporary allowances whose time is over, and logs that.
    #[cold]
    pub(crate) fn end_extras(&mut self) {
        for key in self.access.plans.ended(&self.access.keys, self.now) {
            if let Some(kind) = self.access.keys.kind_of(key) {
                self.access.plans.add(kind, &self.access.keys, &self.setup.config, &self.accounts.meter, self.now);
            }
            let found = self.access.keys.get(key);
            if found.is_live(self.now.unix) {
                let (id, name) = (found.id(), found.name().to_owned());
                self.tell_of_key("allowance_ended", &id, &name);
            }
            self.limits_changed(key);
        }
        self.tell_of_budgets();
    }

    /// Warns of keys whose plan or group is not configured: they are refused.
    pub(crate) fn warn_of_missing(&mut self) {
        for (what, name, keys) in self.access.plans.missing(&self.access.keys, self.now.unix) {
            warn(&what.message(&name, keys), self);
        }
    }
}
