//! The file of alerts next to a ledger: alerts that are not due or not delivered yet, and the last delivered one of
//! each subject. A restart, and a successor, continue from there. So an alert may be raised any number of times: the
//! file shows whether it is new.
//!
//! The file has a JSON line for each fact; [`AlertFile::shrink`] drops lines that are not needed any more. A process
//! holds its lock while it delivers alerts, so that two of them do not deliver the same. Facts that
//! cannot be written are kept in memory, and are written with the next ones.

use super::spill::Place;
use crate::base::limits::{ALERT_KEPT, ALERT_RETRIES_END, ALERTS_MAX, ALERTS_UNWRITTEN, SPILL_LINE_MAX};
use crate::base::time::Unix;
use crate::io::files::{self, FileDraft};
use crate::policy::alert::{Alert, AlertKind, BudgetUse};
use rustix::fs::FlockOperation;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Contents of the file and the memory.
#[derive(Default)]
pub struct AlertFacts {
    /// Alerts that wait, the oldest first.
    pub due: Vec<Alert>,
    subjects: BTreeMap<String, Subject>,
    /// Number of lines that are not facts.
    damaged: usize,
}

/// Last events of a subject, in milliseconds.
#[derive(Copy, Clone, Default)]
struct Subject {
    /// Start of the last event whose alert is done: delivered, or given up.
    done: Option<u64>,
    /// Time at which it was done.
    at: u64,
    /// Time at which the last trouble was over.
    over: u64,
}

impl AlertFacts {
    /// Start of the oldest event that `alert` is about. Trouble lasts over restarts, and each process sees it begin at
    /// another time.
    fn first(&self, alert: &Alert) -> u64 {
        let over = self.subjects.get(&alert.subject).map_or(0, |known| known.over);
        if alert.what.lasts() { alert.since.min(over) } else { alert.since }
    }

    /// True if an alert about the same event was delivered or given up.
    pub fn is_done(&self, alert: &Alert) -> bool {
        let done = self.subjects.get(&alert.subject).and_then(|known| known.done);
        done.is_some_and(|since| since >= self.first(alert))
    }

    /// True if an alert about the same event is done, or waits.
    pub fn knows(&self, alert: &Alert) -> bool {
        let is_same = |due: &Alert| due.subject == alert.subject && due.since >= self.first(alert);
        self.is_done(alert) || self.due.iter().any(is_same)
    }

    /// True if trouble of this subject was reported, and not its end.
    pub fn is_open(&self, subject: &str) -> bool {
        let Subject { done, over, .. } = self.subjects.get(subject).copied().unwrap_or_default();
        let is_after = |since: u64| since >= over;
        done.is_some_and(is_after) || self.due.iter().any(|due| due.subject == subject && is_after(due.since))
    }

    /// The trouble of this subject is over since `at`: an alert whose time has not come is not delivered.
    pub fn over(&mut self, subject: &str, at: u64) {
        self.due.retain(|due| due.subject != subject || due.at <= at);
        self.subjects.entry(subject.to_string()).or_default().over = at;
    }

    /// Reads lines. Counts invalid ones. Returns the last line if it has no end: another process may be writing it.
    fn take_all(&mut self, lines: impl Read) -> Vec<u8> {
        let (mut lines, mut line) = (BufReader::new(lines), Vec::new());
        while (&mut lines).take(SPILL_LINE_MAX as u64).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            // The end of a line may have been written since the end of the file was found.
            if line.ends_with(b"\n") || line.len() >= SPILL_LINE_MAX {
                self.take_or_count(&line);
                line.clear();
            }
        }
        // Every line begins so.
        if line.starts_with(b"{") {
            let _ = self.take(&line);
            return line;
        }
        self.take_or_count(&line);
        Vec::new()
    }

    fn take_or_count(&mut self, line: &[u8]) {
        let is_damaged = !line.trim_ascii().is_empty() && self.take(line).is_none();
        self.damaged += usize::from(is_damaged);
    }

    /// Drops old subjects, and alerts that are done or too old.
    fn tidy(&mut self, now: Unix) {
        let is_recent = |at: u64| u128::from(now.0.saturating_sub(at)) <= ALERT_KEPT.as_millis();
        let known = std::mem::take(&mut self.subjects).into_iter();
        self.subjects = known.filter(|(_, known)| is_recent(known.at.max(known.over))).collect();
        let mut due = std::mem::take(&mut self.due);
        due.retain(|alert| !self.is_done(alert) && may_wait(alert, now));
        due.truncate(ALERTS_MAX);
        self.due = due;
    }

    /// Writes these facts in as few lines as possible.
    fn lines(&self) -> AlertLines {
        let mut lines = AlertLines::default();
        for (subject, Subject { done, at, over }) in &self.subjects {
            if *over > 0 {
                lines.over(subject, *over);
            }
            if let Some(since) = done {
                lines.add_done(subject, *since, *at);
            }
        }
        self.due.iter().for_each(|alert| lines.due(alert));
        lines
    }

    /// Takes a line of the file; `None` if it is not one.
    fn take(&mut self, line: &[u8]) -> Option<()> {
        let line: Value = serde_json::from_str(str::from_utf8(line).ok()?).ok()?;
        if let Some(alert) = line.get("due") {
            let alert = alert_of(alert)?;
            if !self.knows(&alert) {
                self.due.push(alert);
            }
        } else if let Some(done) = line.get("done") {
            let known = self.subjects.entry(text(done.get(0)?)?).or_default();
            let (since, at) = (done.get(1)?.as_u64()?, done.get(2)?.as_u64()?);
            (known.done, known.at) = (known.done.max(Some(since)), at);
        } else {
            let over = line.get("over")?;
            self.over(over.get(0)?.as_str()?, over.get(1)?.as_u64()?);
        }
        Some(())
    }
}

/// Lines for the file, which are written by one call, so that a kill leaves no half of them.
#[derive(Default)]
pub struct AlertLines(String);

impl AlertLines {
    /// The alert waits.
    pub fn due(&mut self, alert: &Alert) {
        self.add(&due_line(alert));
    }

    /// The alert was delivered or given up.
    pub fn done(&mut self, alert: &Alert, at: Unix) {
        self.add_done(&alert.subject, alert.since, at.0);
    }

    fn add_done(&mut self, subject: &str, since: u64, at: u64) {
        self.add(&format!("{{\"done\":[{},{since},{at}]}}", quoted(subject)));
    }

    /// The trouble of this subject is over.
    pub fn over(&mut self, subject: &str, at: u64) {
        self.add(&format!("{{\"over\":[{},{at}]}}", quoted(subject)));
    }

    /// Adds a line. The first begins with an end of line, in case half of one was left by a full disk.
    fn add(&mut self, line: &str) {
        for part in [if self.0.is_empty() { "\n" } else { "" }, line, "\n"] {
            self.0.push_str(part);
        }
    }
}

/// The file. It is opened for each use: it is used rarely, and may have been replaced. Clones share their memory.
#[derive(Clone, Debug)]
pub struct AlertFile {
    path: PathBuf,
    /// Lines that could not be written.
    unwritten: Arc<Mutex<String>>,
    /// The lock, while this process has it.
    held: Arc<Mutex<Weak<AlertLock>>>,
}

/// The lock of a file of alerts: of the file that replaced it, if it was shrunk meanwhile.
#[derive(Debug)]
pub struct AlertLock(Mutex<File>);

impl AlertFile {
    /// The file at `place`.
    pub fn new(place: &Place) -> AlertFile {
        AlertFile { path: place.alerts(), unwritten: Arc::default(), held: Arc::default() }
    }

    /// Drops lines about alerts that are too old to matter, and damaged lines, unless another process delivers alerts
    /// at present. Returns the number of damaged lines.
    pub fn shrink(&self, now: Unix) -> io::Result<usize> {
        if self.size() == 0 {
            return Ok(0);
        }
        // An attempt may be waiting for another process.
        let Ok(held) = self.held.try_lock() else { return Ok(0) };
        let lock = match self.locked(held, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            lock => lock?,
        };
        // No attempt of this process writes to the file that is replaced.
        let _unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut facts, mut old) = (AlertFacts::default(), super::spill::open(&self.path)?);
        let begun = facts.take_all(&mut old);
        facts.tidy(now);
        let (draft, file) = FileDraft::beside(&self.path)?;
        let mut out = files::append_private(draft.path())?;
        out.write_all(&[facts.lines().0.as_bytes(), &begun].concat())?;
        // Attempts that go on keep other processes from delivering alerts of this file, too.
        rustix::fs::flock(&out, FlockOperation::NonBlockingLockExclusive)?;
        draft.replace(file, &self.path)?;
        // Another process may have written meanwhile. It repeats lines that it writes to the former file from now on.
        let copied = io::copy(&mut old, &mut out);
        *lock.0.lock().unwrap_or_else(PoisonError::into_inner) = out;
        copied.map(|_| facts.damaged)
    }

    /// Bytes of the file. It grows with each fact.
    pub fn size(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |found| found.len())
    }

    /// Adds lines to the file, after those that could not be written before. If they cannot be written either, they are
    /// kept in memory.
    pub fn add(&self, lines: &AlertLines) -> io::Result<()> {
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        unwritten.push_str(&lines.0);
        if unwritten.is_empty() {
            return Ok(());
        }
        let written = loop {
            match self.writer().and_then(|mut file| file.write_all(unwritten.as_bytes()).map(|()| file)) {
                Ok(file) if !self.is_present(&file) => {}
                written => break written,
            }
        };
        match written {
            Ok(file) => {
                unwritten.clear();
                // Other attempts can write their facts while this one waits for the disk.
                drop(unwritten);
                file.sync_data()
            }
            Err(error) => {
                if unwritten.len() > ALERTS_UNWRITTEN {
                    let mut facts = AlertFacts::default();
                    facts.take_all(unwritten.as_bytes());
                    *unwritten = facts.lines().0;
                }
                Err(error)
            }
        }
    }

    /// Notes that the alert was delivered or given up.
    pub fn done(&self, alert: &Alert, at: Unix) -> io::Result<()> {
        let mut lines = AlertLines::default();
        lines.done(alert, at);
        self.add(&lines)
    }

    /// Waits until no other process delivers alerts, and keeps them from it until the last result is dropped.
    pub fn lock(&self) -> io::Result<Arc<AlertLock>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.locked(held, FlockOperation::LockExclusive)
    }

    fn locked(&self, mut held: MutexGuard<'_, Weak<AlertLock>>, how: FlockOperation) -> io::Result<Arc<AlertLock>> {
        if let Some(lock) = held.upgrade() {
            return Ok(lock);
        }
        loop {
            let file = self.writer()?;
            rustix::fs::flock(&file, how)?;
            if self.is_present(&file) {
                let lock = Arc::new(AlertLock(Mutex::new(file)));
                *held = Arc::downgrade(&lock);
                return Ok(lock);
            }
        }
    }

    /// False if another process has replaced the file meanwhile.
    fn is_present(&self, file: &File) -> bool {
        let present = std::fs::metadata(&self.path).ok();
        present.is_some_and(|present| file.metadata().is_ok_and(|file| file.ino() == present.ino()))
    }

    /// The facts in the file, if it can be read, and those kept in memory.
    pub fn facts(&self, now: Unix) -> AlertFacts {
        let mut facts = AlertFacts::default();
        if let Ok(file) = super::spill::open(&self.path) {
            facts.take_all(file);
        }
        facts.take_all(self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).as_bytes());
        facts.tidy(now);
        facts
    }

    fn writer(&self) -> io::Result<File> {
        files::append_private(&self.path)
    }
}

/// True if the alert is not too old to be delivered.
pub fn may_wait(alert: &Alert, now: Unix) -> bool {
    u128::from(now.0.saturating_sub(alert.at)) <= ALERT_RETRIES_END.as_millis()
}

/// An alert that waits, as JSON.
pub fn due_line(alert: &Alert) -> String {
    let Alert { id, since, at, .. } = alert;
    let (what, name, subject) = (alert.what.as_str(), quoted(&alert.name), quoted(&alert.subject));
    let budget = alert.budget.as_ref().map_or(String::new(), |budget| {
        let BudgetUse { threshold, used, limit, period: [begins, renews] } = budget;
        let counts = format!("\"threshold\":{threshold},\"used\":{used},\"limit\":{limit}");
        format!(",\"budget\":{{{counts},\"period\":[{begins},{renews}]}}")
    });
    let times = format!("\"since\":{since},\"at\":{at}");
    format!("{{\"due\":{{\"id\":\"{id}\",\"what\":\"{what}\",\"name\":{name},\"subject\":{subject},{times}{budget}}}}}")
}

/// The alert in such a line.
#[cfg(feature = "redis")]
pub fn due_of(line: &str) -> Option<Alert> {
    alert_of(serde_json::from_str::<Value>(line).ok()?.get("due")?)
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
        id: text(value.get("id")?)?,
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

#[cfg(test)]
mod tests {
    use super::*;

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

    fn alert(what: AlertKind, subject: &str, since: u64, at: u64) -> Alert {
        let (id, name, subject) = (format!("{subject}{since}"), String::new(), subject.to_string());
        Alert { id, what, name, subject, since, at, budget: None }
    }

    fn opened(place: &Place, now: Unix) -> AlertFile {
        let file = AlertFile::new(place);
        file.shrink(now).unwrap();
        file
    }

    fn note(file: &AlertFile, fill: impl FnOnce(&mut AlertLines)) {
        let mut lines = AlertLines::default();
        fill(&mut lines);
        file.add(&lines).unwrap();
    }

    #[test]
    fn file_keeps_alerts_until_they_are_delivered_or_too_old() {
        let folder = ScratchFolder::new("due");
        let place = Place::new(folder.0.clone(), "ledger.db".to_string());
        let now = Unix(10_000_000_000);
        let file = opened(&place, now);
        assert!(file.facts(now).due.is_empty());
        let [one, two, three] =
            ["key/a", "key/b", "key/c"].map(|subject| alert(AlertKind::Budget, subject, now.0 - 5, now.0));
        note(&file, |lines| [&one, &two, &three].into_iter().for_each(|one| lines.due(one)));
        file.done(&one, Unix(now.0 + 1)).unwrap();
        file.done(&two, Unix(now.0 + 1)).unwrap();
        std::fs::OpenOptions::new().append(true).open(&file.path).unwrap().write_all(b"{\"done\":[\"half").unwrap();
        note(&file, |lines| lines.due(&three));
        for _ in 0..2 {
            let facts = file.facts(now);
            assert_eq!(facts.due, std::slice::from_ref(&three));
            assert!(facts.is_done(&one) && !facts.is_done(&three) && facts.knows(&three) && facts.knows(&two));
            // The next period of the same budget is another event.
            assert!(!facts.knows(&alert(AlertKind::Budget, "key/a", now.0 - 4, now.0 + 3)));
            opened(&place, now);
        }
        let later = Unix(now.0 + 3_600_001);
        assert!(file.facts(later).due.is_empty());
        assert!(file.facts(later).is_done(&one));
    }

    #[test]
    fn trouble_is_known_until_it_is_over() {
        let folder = ScratchFolder::new("over");
        let place = Place::new(folder.0.clone(), "ledger.db".to_string());
        let file = opened(&place, Unix(1));
        let (now, of) = (Unix(10_000_000_000), |since: u64| alert(AlertKind::Target, "target/a", since, since + 60));
        let read = || opened(&place, now).facts(now);
        let first = of(now.0);
        note(&file, |lines| lines.due(&first));
        // A restart sees it begin again, before and after the delivery.
        assert!(read().knows(&of(now.0 + 100)) && read().is_open("target/a"));
        file.done(&first, now).unwrap();
        assert!(read().knows(&of(now.0 + 100)) && read().is_open("target/a") && read().due.is_empty());
        note(&file, |lines| lines.over("target/a", now.0 + 200));
        assert!(read().is_done(&first) && !read().is_open("target/a") && !read().knows(&of(now.0 + 200)));
        // Trouble that ends early raises no alert; a late alert is delivered.
        let (early, late) = (of(now.0 + 300), of(now.0 + 400));
        note(&file, |lines| lines.due(&early));
        assert_eq!(read().due, [early]);
        note(&file, |lines| lines.over("target/a", now.0 + 359));
        assert!(read().due.is_empty());
        note(&file, |lines| lines.due(&late));
        note(&file, |lines| lines.over("target/a", now.0 + 460));
        assert_eq!(read().due, std::slice::from_ref(&late));
        assert!(!read().knows(&of(now.0 + 470)));
        file.done(&late, now).unwrap();
        assert!(read().due.is_empty() && !read().knows(&of(now.0 + 470)));
    }

    #[test]
    fn only_one_process_delivers_at_a_time() {
        let folder = ScratchFolder::new("lock");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let file = opened(&place, Unix(1));
        let held = file.lock().unwrap();
        // A process may make several attempts at once.
        let also_held = file.lock().unwrap();
        let other = AlertFile::new(&place);
        let waits = std::thread::spawn(move || other.lock().map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waits.is_finished());
        drop(held);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waits.is_finished());
        drop(also_held);
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn shrinking_loses_no_line_of_another_process_and_waits_for_none() {
        let folder = ScratchFolder::new("shrink");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let (file, now) = (AlertFile::new(&place), Unix(10_000_000_000));
        let of = move |subject: String| alert(AlertKind::Budget, &subject, now.0, now.0);
        let other = AlertFile::new(&place);
        let writes = std::thread::spawn(move || {
            for number in 0..300 {
                note(&other, |lines| lines.due(&of(format!("key/{number}"))));
            }
        });
        while !writes.is_finished() {
            file.shrink(now).unwrap();
        }
        writes.join().unwrap();
        let facts = file.facts(now);
        assert_eq!((0..300).find(|number| !facts.knows(&of(format!("key/{number}")))), None);
        // While another process delivers, the file stays as it is.
        (0..300).for_each(|number| file.done(&of(format!("key/{number}")), now).unwrap());
        let (other, size) = (AlertFile::new(&place), file.size());
        let held = other.lock().unwrap();
        file.shrink(now).unwrap();
        assert_eq!(file.size(), size);
        drop(held);
        file.shrink(now).unwrap();
        assert!(file.size() < size / 3, "{} of {size}", file.size());
        assert!((0..300).all(|number| file.facts(now).is_done(&of(format!("key/{number}")))));
    }

    /// Another process writes the rest of a line while the file is read.
    #[test]
    fn line_that_grows_while_it_is_read_is_one_line() {
        struct Growing<'a>(std::vec::IntoIter<&'a [u8]>);
        impl Read for Growing<'_> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                let Some(part) = self.0.next() else { return Ok(0) };
                buf[..part.len()].copy_from_slice(part);
                Ok(part.len())
            }
        }
        let (mut facts, mut lines, mut begin) = (AlertFacts::default(), AlertLines::default(), AlertLines::default());
        let one = alert(AlertKind::Budget, "key/a", 1, 1);
        lines.due(&one);
        begin.over("target/a", 7);
        let (half, rest) = lines.0.as_bytes().split_at(lines.0.len() / 2);
        let begun = &begin.0.as_bytes()[..9];
        // An empty read is the end of the file at that time.
        let begun_later = facts.take_all(Growing(vec![half, b"", rest, begun].into_iter()));
        assert_eq!((facts.due, begun_later), (vec![one], begun[1..].to_vec()));
    }

    #[test]
    fn damaged_lines_are_counted_and_dropped() {
        let folder = ScratchFolder::new("damaged");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let (file, now) = (AlertFile::new(&place), Unix(10_000_000_000));
        let kept = alert(AlertKind::Budget, "key/a", now.0, now.0);
        note(&file, |lines| lines.due(&kept));
        assert_eq!(file.shrink(now).unwrap(), 0);
        for (damage, lines) in [(&b"garbage\n{\"due\":1}\n"[..], 2), (&[0; 100], 1)] {
            file.writer().unwrap().write_all(damage).unwrap();
            assert_eq!(file.shrink(now).unwrap(), lines);
            assert_eq!(file.shrink(now).unwrap(), 0);
            assert_eq!(file.facts(now).due, std::slice::from_ref(&kept));
        }
    }

    /// The rest of the line follows with what other processes have written meanwhile.
    #[test]
    fn shrinking_keeps_a_line_that_is_being_written() {
        let folder = ScratchFolder::new("torn");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let (file, now) = (AlertFile::new(&place), Unix(10_000_000_000));
        let [first, second] = ["key/a", "key/b"].map(|subject| alert(AlertKind::Budget, subject, now.0, now.0));
        note(&file, |lines| lines.due(&first));
        let mut lines = AlertLines::default();
        lines.due(&second);
        let (begin, rest) = lines.0.split_at(lines.0.len() / 2);
        file.writer().unwrap().write_all(begin.as_bytes()).unwrap();
        file.shrink(now).unwrap();
        file.writer().unwrap().write_all(rest.as_bytes()).unwrap();
        assert_eq!(file.facts(now).due, [first, second]);
    }

    #[test]
    fn file_shrinks_during_attempts_which_keep_its_lock() {
        let folder = ScratchFolder::new("busy");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let (file, now) = (AlertFile::new(&place), Unix(10_000_000_000));
        let waits = alert(AlertKind::Budget, "key/waits", now.0, now.0);
        note(&file, |lines| lines.due(&waits));
        let held = file.lock().unwrap();
        for round in 0..3 {
            for number in 0..100 {
                let one = alert(AlertKind::Target, "target/a", now.0 + number, now.0 + number);
                note(&file, |lines| lines.due(&one));
                file.done(&one, now).unwrap();
            }
            let size = file.size();
            file.shrink(now).unwrap();
            assert!(file.size() < size / 3, "{round}: {} of {size}", file.size());
            assert_eq!(file.facts(now).due, std::slice::from_ref(&waits));
        }
        // Another process waits for all attempts. Meanwhile it does not wait to shrink the file.
        let (other, also_held) = (AlertFile::new(&place), file.lock().unwrap());
        drop(held);
        let theirs = other.clone();
        let waits = std::thread::spawn(move || theirs.lock().map(drop));
        let size = file.size();
        while !waits.is_finished() && other.held.try_lock().is_ok() {
            std::thread::yield_now();
        }
        other.shrink(now).unwrap();
        assert!(!waits.is_finished() && file.size() == size);
        drop(also_held);
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn facts_that_cannot_be_written_are_remembered_and_written_later() {
        let folder = ScratchFolder::new("unwritten");
        let place = Place::new(folder.0.clone(), "l".to_string());
        let (file, now) = (AlertFile::new(&place), Unix(10_000_000_000));
        let of = |since: u64| alert(AlertKind::Ledger, "ledger/l", since, since);
        let (first, second) = (of(now.0), of(now.0 + 200));
        note(&file, |lines| lines.due(&first));
        let text = std::fs::read(&file.path).unwrap();
        std::fs::remove_file(&file.path).unwrap();
        std::fs::create_dir(&file.path).unwrap();
        assert!(file.done(&first, now).is_err());
        assert!(file.facts(now).is_done(&first) && file.facts(now).is_open("ledger/l"));
        let mut over = AlertLines::default();
        over.over("ledger/l", now.0 + 100);
        assert!(file.add(&over).is_err());
        assert!(!file.facts(now).is_open("ledger/l") && !file.facts(now).knows(&second));
        // However often it fails, the memory does not grow without bound.
        for at in 0..10_000 {
            over = AlertLines::default();
            over.over("ledger/l", now.0 + 100 + at % 50);
            assert!(file.add(&over).is_err());
        }
        assert!(file.unwritten.lock().unwrap().len() <= ALERTS_UNWRITTEN);
        assert!(file.facts(now).is_done(&first) && !file.facts(now).knows(&second));
        std::fs::remove_dir(&file.path).unwrap();
        std::fs::write(&file.path, text).unwrap();
        file.add(&AlertLines::default()).unwrap();
        let other = opened(&place, now);
        assert!(other.facts(now).is_done(&first) && !other.facts(now).knows(&second));
        assert!(other.facts(now).due.is_empty());
    }
}
