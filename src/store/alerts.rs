//! The file of alerts next to a ledger: those that wait for their delivery, and when those of each subject were
//! delivered. A restart goes on from there, and so does a process that takes over.
//!
//! The file has a JSON line for each fact and only grows; [`AlertFile::open`] drops what no one needs any more. A
//! process holds its lock while it delivers an alert, so that two of them do not deliver the same.

use super::spill::Place;
use crate::base::limits::{ALERT_KEPT, ALERT_RETRIES_END, ALERTS_MAX, SPILL_LINE_MAX};
use crate::base::time::Unix;
use crate::policy::alert::{Alert, AlertKind, BudgetUse};
use rustix::fs::FlockOperation;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Bytes that are read of the file.
const FILE_MAX: u64 = 64 << 20;

/// What the file says.
#[derive(Default)]
pub struct AlertFacts {
    /// Alerts that wait, the oldest first.
    pub due: Vec<Alert>,
    /// Subjects, and when an alert of each was delivered last.
    sent: Vec<(String, u64)>,
}

impl AlertFacts {
    /// True if an alert about the same event was delivered.
    pub fn is_sent(&self, alert: &Alert) -> bool {
        self.sent.iter().any(|(subject, at)| *subject == alert.subject && *at >= alert.since)
    }

    /// True if an alert about the same event was delivered, or waits.
    pub fn knows(&self, alert: &Alert) -> bool {
        self.is_sent(alert) || self.due.iter().any(|due| due.is_like(alert))
    }

    /// Takes a line of the file; `None` if it is not one.
    fn take(&mut self, line: &[u8]) -> Option<()> {
        let line: Value = serde_json::from_slice(line).ok()?;
        if let Some(alert) = line.get("due") {
            self.due.push(alert_of(alert)?);
        } else if let Some(sent) = line.get("sent") {
            let (subject, at) = (text(sent.get(0)?)?, sent.get(1)?.as_u64()?);
            self.sent.retain(|(known, _)| *known != subject);
            self.sent.push((subject, at));
        } else {
            let id = line.get("gone")?.as_str()?;
            self.due.retain(|alert| alert.id() != id);
        }
        Some(())
    }
}

/// The file. It is opened for each use: it is used rarely, and may have been replaced.
#[derive(Clone, Debug)]
pub struct AlertFile(PathBuf);

impl AlertFile {
    /// The file at `place`. Drops lines about alerts that are too old to matter.
    pub fn open(place: &Place, now: Unix) -> io::Result<AlertFile> {
        let file = AlertFile(place.alerts());
        if let Ok(found) = std::fs::metadata(&file.0)
            && found.len() > 0
        {
            let _lock = file.lock()?;
            let facts = file.read(now)?;
            let draft = file.0.with_extension("alerts-part");
            // A killed process may have left one.
            let _ = std::fs::remove_file(&draft);
            let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            for (subject, at) in &facts.sent {
                write_line(&mut out, &sent_line(subject, *at))?;
            }
            for alert in &facts.due {
                write_line(&mut out, &due_line(alert))?;
            }
            out.sync_all()?;
            std::fs::rename(&draft, &file.0)?;
        }
        Ok(file)
    }

    /// Notes that the alert is to be delivered.
    pub fn due(&self, alert: &Alert) -> io::Result<()> {
        self.append(&due_line(alert))
    }

    /// Notes that the alert was delivered.
    pub fn sent(&self, alert: &Alert, at: Unix) -> io::Result<()> {
        self.append(&sent_line(&alert.subject, at.0))
    }

    /// Notes that the alert is not delivered any more.
    pub fn gone(&self, alert: &Alert) -> io::Result<()> {
        self.append(&format!("{{\"gone\":\"{}\"}}", alert.id()))
    }

    /// Waits until no other process delivers alerts, and keeps them from it until the result is dropped.
    pub fn lock(&self) -> io::Result<File> {
        loop {
            let file = self.writer()?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // Another process may have replaced the file meanwhile.
            if std::fs::metadata(&self.0).is_ok_and(|at| Some(at.ino()) == file.metadata().ok().map(|own| own.ino())) {
                return Ok(file);
            }
        }
    }

    /// Reads the file. Lines that cannot be read are passed over.
    pub fn read(&self, now: Unix) -> io::Result<AlertFacts> {
        let mut facts = AlertFacts::default();
        let file = match super::spill::open(&self.0) {
            Ok(file) => file,
            Err(_) if !self.0.exists() => return Ok(facts),
            Err(why) => return Err(io::Error::other(why)),
        };
        let mut lines = BufReader::new(file.take(FILE_MAX));
        let mut line = Vec::new();
        while (&mut lines).take(SPILL_LINE_MAX as u64).read_until(b'\n', &mut line)? > 0 {
            let _ = facts.take(&line);
            line.clear();
        }
        let is_recent = |at: u64, kept: std::time::Duration| u128::from(now.0.saturating_sub(at)) <= kept.as_millis();
        let mut due = std::mem::take(&mut facts.due);
        due.retain(|alert| !facts.is_sent(alert) && is_recent(alert.at, ALERT_RETRIES_END));
        due.dedup_by(|one, before| one.is_like(before));
        due.truncate(ALERTS_MAX);
        facts.due = due;
        facts.sent.retain(|(_, at)| is_recent(*at, ALERT_KEPT));
        Ok(facts)
    }

    fn writer(&self) -> io::Result<File> {
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(&self.0)
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let mut file = self.writer()?;
        write_line(&mut file, line)?;
        file.sync_data()
    }
}

/// The line of an alert that is to be delivered.
fn due_line(alert: &Alert) -> String {
    let Alert { since, at, .. } = alert;
    let (what, name, subject) = (alert.what.name(), quoted(&alert.name), quoted(&alert.subject));
    let budget = alert.budget.as_ref().map_or(String::new(), |budget| {
        let BudgetUse { threshold, used, limit, period: [begins, renews] } = budget;
        let counts = format!("\"threshold\":{threshold},\"used\":{used},\"limit\":{limit}");
        format!(",\"budget\":{{{counts},\"period\":[{begins},{renews}]}}")
    });
    let times = format!("\"since\":{since},\"at\":{at}");
    format!("{{\"due\":{{\"what\":\"{what}\",\"name\":{name},\"subject\":{subject},{times}{budget}}}}}")
}

/// The line of an alert about `subject` that was delivered.
fn sent_line(subject: &str, at: u64) -> String {
    format!("{{\"sent\":[{},{at}]}}", quoted(subject))
}

fn quoted(text: &str) -> Value {
    Value::from(text)
}

/// The alert in a line.
fn alert_of(value: &Value) -> Option<Alert> {
    let number = |value: &Value, name: &str| value.get(name)?.as_u64();
    let budget = match value.get("budget") {
        None => None,
        Some(budget) => {
            let period = budget.get("period")?;
            Some(BudgetUse {
                threshold: number(budget, "threshold")? as u8,
                used: number(budget, "used")?,
                limit: number(budget, "limit")?,
                period: [period.get(0)?.as_u64()?, period.get(1)?.as_u64()?],
            })
        }
    };
    Some(Alert {
        what: AlertKind::of(value.get("what")?.as_str()?)?,
        name: text(value.get("name")?)?,
        subject: text(value.get("subject")?)?,
        since: number(value, "since")?,
        at: number(value, "at")?,
        budget,
    })
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}

/// Writes a line by one call, so that a kill leaves no half of it. It begins with an end of line, in case one was left
/// by a full disk.
fn write_line(file: &mut File, line: &str) -> io::Result<()> {
    file.write_all(format!("\n{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::alert::AlertKind;

    /// A new folder, which is removed at the end.
    struct ScratchFolder(PathBuf);

    impl ScratchFolder {
        fn new(name: &str) -> ScratchFolder {
            let path = std::env::temp_dir().join(format!("tollgate-alerts-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            ScratchFolder(path)
        }
    }

    impl Drop for ScratchFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn alert(subject: &str, since: u64, at: u64) -> Alert {
        let (name, subject) = (String::new(), subject.to_string());
        Alert { what: AlertKind::Target, name, subject, since, at, budget: None }
    }

    #[test]
    fn file_keeps_alerts_until_they_are_delivered_or_too_old() {
        let folder = ScratchFolder::new("due");
        let place = Place::new(folder.0.clone(), "ledger.db".to_string());
        let now = Unix(10_000_000_000);
        let file = AlertFile::open(&place, now).unwrap();
        assert!(file.read(now).unwrap().due.is_empty());
        let [one, two, three] = ["a", "b", "c"].map(|subject| alert(subject, now.0 - 5, now.0));
        for one in [&one, &two, &three] {
            file.due(one).unwrap();
        }
        file.sent(&one, Unix(now.0 + 1)).unwrap();
        file.gone(&two).unwrap();
        std::fs::OpenOptions::new().append(true).open(&file.0).unwrap().write_all(b"{\"sent\":[\"half").unwrap();
        for _ in 0..2 {
            let facts = file.read(now).unwrap();
            assert_eq!(facts.due, std::slice::from_ref(&three));
            assert!(facts.is_sent(&one) && !facts.is_sent(&three) && facts.knows(&three) && !facts.knows(&two));
            // The next trouble of the same target is another event.
            assert!(!facts.is_sent(&alert("a", now.0 + 2, now.0 + 3)));
            AlertFile::open(&place, now).unwrap();
        }
        let later = Unix(now.0 + 3_600_001);
        assert!(file.read(later).unwrap().due.is_empty());
        assert!(file.read(later).unwrap().is_sent(&one));
    }

    #[test]
    fn only_one_process_delivers_at_a_time() {
        let folder = ScratchFolder::new("lock");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let file = AlertFile::open(&place, Unix(1)).unwrap();
        let held = file.lock().unwrap();
        let other = file.clone();
        let waits = std::thread::spawn(move || other.lock().map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waits.is_finished());
        drop(held);
        waits.join().unwrap().unwrap();
    }
}
