//! Files next to a ledger. The mark contains the shared ledger that this host used last, and its last start.
//!
//! Spill files contain rows that the ledger had not taken when their process ended. The next start reads them. There is
//! one file for each such end, with the rows as JSON lines, private to its owner. Called at the end of a gateway and at
//! the start of the next.
//!
//! A file is written atomically, and is removed when the ledger has its rows. The ledger counts each row once, however
//! often a file is read (see [`Importer`]).

use super::api::{Batch, Leftover, StoreError};
#[cfg(feature = "redis")]
use super::lock::lock_within;
use super::written::Written;
use crate::base::limits;
use crate::base::time::Unix;
use crate::io::files::{self, FileDraft};
use crate::policy::keys::KeyId;
use crate::policy::meter::{Amount, Lease, LeasePart, PathIx};
use crate::policy::row::Row;
use crate::store::bounds;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of one line of a spill file, which is one row: its names take a few kilobytes.
const SPILL_LINE_MAX: usize = 256 * 1024;
/// Bytes of one spill file: 2 KiB for each row that may wait for a ledger that cannot be reached.
const SPILL_BYTES_MAX: u64 = 1 << 30;
/// Files with the names of spill files that are skipped and logged one by one.
const SPILLS_NAMED_MAX: u64 = 100;
/// Milliseconds since 1970 of the last moment that a ledger can store: the end of the year 9999.
const MOMENT_MAX: u64 = 253_402_300_799_999;
/// Time that a starting gateway waits for another one that compares the ledger with the same mark.
#[cfg(feature = "redis")]
const MARK_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Free bytes and all bytes of the disk of a file.
pub fn disk_space(file: &File) -> io::Result<[u64; 2]> {
    let disk = rustix::fs::fstatvfs(file)?;
    Ok([disk.f_bavail, disk.f_blocks].map(|blocks| blocks.saturating_mul(disk.f_frsize)))
}

/// Location of the files of one ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpillFolder {
    folder: PathBuf,
    /// Prefix of the names of its files, so that several ledgers can share a folder.
    stem: String,
}

/// A ledger that takes the rows of an earlier process.
pub trait Importer {
    /// Appends the rows that the ledger does not have yet.
    fn import(&mut self, batch: &Batch) -> Result<Written, StoreError>;
    /// Makes what it has appended survive a power cut.
    fn keep(&mut self, written: Written) -> Result<(), StoreError>;
}

/// Line of a file: a row, and for a shared ledger its number.
#[derive(Serialize)]
struct SpillLine {
    #[serde(flatten)]
    row: Row,
    #[serde(flatten)]
    sent: SentRow,
}

/// Members that only rows of a shared ledger have.
#[derive(Serialize, Deserialize)]
struct SentRow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    batch: Option<(String, u64)>,
    /// Tokens and nano-dollars reserved, true if the ledger lent them, and what the request counts in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<(u64, u64, bool, Vec<SpilledPart>)>,
}

/// A part of a lease: its name, and its window or period.
type SpilledPart = (Arc<str>, [u64; 2]);

impl SpillLine {
    fn from_row(row: &Row, batch: &Batch) -> SpillLine {
        let part = |LeasePart { account, bounds: (from, to) }: &LeasePart| (account.clone(), [from.0, to.0]);
        let lease = row.lease.as_deref().filter(|_| batch.sent.is_some());
        let lease = lease.map(|Lease { reserved: Amount { tokens, nano }, shared, parts, .. }| {
            (*tokens, *nano, *shared, parts.iter().map(part).collect())
        });
        SpillLine { row: row.clone(), sent: SentRow { batch: batch.sent.clone(), lease } }
    }

    /// Reads each part from the whole line: code that reads flattened members is large.
    fn read(line: &[u8]) -> Option<SpillLine> {
        let line = str::from_utf8(line).ok()?;
        Some(SpillLine { row: serde_json::from_str(line).ok()?, sent: serde_json::from_str(line).ok()? })
    }

    /// True if a ledger can store the row. No gateway writes other rows, and a single one would make a whole ledger
    /// unreadable.
    fn is_possible(&self) -> bool {
        let is_moment = |at: &u64| *at <= MOMENT_MAX;
        let are_moments = |moments: &[u64; 2]| moments.iter().all(is_moment);
        let (row, sent) = (&self.row, &self.sent);
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_moment(&row.admitted.0)
            && row.bounded() == (row.usage, row.cost_nano)
            && sent.batch.iter().all(|(writer, number)| is_name(writer) && is_moment(number))
            && sent.lease.iter().all(|(tokens, nano, _, parts)| {
                let fits = *tokens <= limits::ROW_TOKENS_MAX && *nano <= limits::ROW_COST_MAX;
                fits && parts.iter().all(|(_, moments)| are_moments(moments))
            })
    }

    fn into_row(self) -> (Option<(String, u64)>, Row) {
        let part = |(account, [from, to]): SpilledPart| LeasePart { account, bounds: (Unix(from), Unix(to)) };
        let lease = self.sent.lease.map(|(tokens, nano, shared, parts)| {
            let (reserved, parts) = (Amount { tokens, nano }, parts.into_iter().map(part).collect());
            Box::new(Lease { reserved, shared, path: PathIx::NONE, parts })
        });
        (self.sent.batch, Row { lease, ..self.row })
    }
}

/// Shared ledger that a host used last, and its last start.
#[cfg(feature = "redis")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Epoch of the ledger.
    pub epoch: String,
    /// Name of the place of this mark in the ledger.
    pub place: String,
    /// Name of the last start of a gateway, which the ledger knows too.
    pub start: String,
    /// Time of that start, in milliseconds.
    pub at: u64,
}

#[cfg(feature = "redis")]
impl SpillFolder {
    fn mark_path(&self) -> PathBuf {
        self.folder.join(format!("{}.mark", self.stem))
    }

    /// Returns the mark of an earlier process, if there is one. A mark that cannot be read is an error: without it, an
    /// emptied ledger would be taken for a new one.
    pub fn mark(&self) -> Result<Option<Mark>, StoreError> {
        let path = self.mark_path();
        let read = |file| Ok(serde_json::from_slice(&files::head_of(&file, SPILL_LINE_MAX as u64)?)?);
        match files::open_own(&path).and_then(read) {
            Ok(mark) => Ok(Some(mark)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let why = format!(
                    "the epoch of the shared ledger that this host used last cannot be read ({error}): put back the \
                     file, or remove it to use the present ledger"
                );
                Err(StoreError::File(path, io::Error::other(why)))
            }
        }
    }

    /// Replaces the mark, atomically.
    pub fn set_mark(&self, mark: &Mark) -> Result<(), StoreError> {
        let (path, text) = (self.mark_path(), serde_json::to_vec(mark).unwrap_or_default());
        let written = FileDraft::beside(&path).and_then(|(draft, mut file)| {
            file.write_all(&text)?;
            draft.replace(file, &path)
        });
        written.map_err(|error| StoreError::File(path, error))
    }

    /// Locks the mark: the processes of a host share it. The lock ends when the result is dropped. `None` if that is
    /// impossible, or another process has the lock for too long.
    pub fn lock_mark(&self) -> Option<File> {
        let folder = files::open_folder_of(&self.mark_path()).ok()?;
        lock_within(&folder, MARK_WAIT).ok().map(|()| folder)
    }
}

impl SpillFolder {
    /// Location in `folder`, with names that begin with `stem`.
    pub fn new(folder: PathBuf, stem: String) -> SpillFolder {
        SpillFolder { folder, stem }
    }

    /// Checks that a file could be written there.
    pub fn check(&self) -> io::Result<()> {
        FileDraft::beside(&self.folder.join(self.prefix())).map(drop)
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of the file with the captured requests of a key.
    pub fn capture(&self, key: &KeyId) -> PathBuf {
        self.folder.join(format!("capture-{key}.jsonl"))
    }

    fn prefix(&self) -> String {
        format!("{}.spill-", self.stem)
    }

    /// Writes a file of all rows left, named by the time and the process. Returns its path. If it fails, there is no
    /// file.
    pub fn write(&self, left: &Leftover, now: Unix, pid: u32) -> io::Result<PathBuf> {
        let path = self.folder.join(format!("{}{}-{pid}.jsonl", self.prefix(), now.0));
        let (draft, file) = FileDraft::beside(&path)?;
        write_lines(&file, left)?;
        draft.replace(file, &path).map(|()| path)
    }

    /// Passes the rows of every file to `ledger`, the oldest file first, and removes the files once the rows survive a
    /// power cut in the ledger. Returns warnings for the operator. A file with any other contents is kept under another
    /// name after its rows have been taken. A file of another user, or one that is not a regular file, is not touched,
    /// since others may be able to write to the folder.
    pub fn read(&self, ledger: &mut dyn Importer) -> Result<Vec<String>, StoreError> {
        let (mut notes, mut passed_over) = (Vec::new(), 0);
        for path in self.files() {
            let name = path.display();
            let file = match open(&path) {
                Ok(file) => file,
                Err(why) => {
                    passed_over += 1;
                    if passed_over <= SPILLS_NAMED_MAX {
                        notes.push(format!("{name}: passed over: {why}"));
                    }
                    continue;
                }
            };
            let (written, rows, strange) = read_lines(file, ledger)?;
            ledger.keep(written)?;
            let (kept, text) = match strange {
                0 => (
                    std::fs::remove_file(&path),
                    format!("usage records of an earlier process are in the ledger now: {rows}"),
                ),
                _ => (
                    files::rename(&path, &path.with_extension("unread")),
                    format!(
                        "usage records taken from it: {rows}, lines that could not be read: {strange}; kept as \
                         `.unread`"
                    ),
                ),
            };
            match kept {
                Ok(()) => notes.push(format!("{name}: {text}")),
                // The file is read again at the next start, and its rows count once.
                Err(error) => notes.push(format!("{name}: usage records taken from it: {rows}; it stays: {error}")),
            }
        }
        if passed_over > SPILLS_NAMED_MAX {
            notes.push(format!("{}: {passed_over} files were passed over", self.folder.display()));
        }
        Ok(notes)
    }

    fn files(&self) -> Vec<PathBuf> {
        let prefix = self.prefix();
        let named = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(&prefix) && name.ends_with(".jsonl")
        };
        // A missing folder has no files.
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named).collect();
        let moment =
            |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(&prefix)?.split('-').next()?.parse::<u64>().ok();
        files.sort_unstable_by_key(moment);
        files
    }
}

fn write_lines(file: &File, left: &Leftover) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    for batch in &left.batches {
        for row in &batch.rows {
            out.write_all(&serde_json::to_vec(&SpillLine::from_row(row, batch))?)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}

/// Opens a file that a gateway of this user can have written.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = files::open_own(path)?;
    match file.metadata()?.len() > SPILL_BYTES_MAX {
        true => Err(io::Error::other("it is larger than a spill file can be")),
        false => Ok(file),
    }
}

/// Reads the rows. Returns what the ledger has appended, the number of rows taken, and of invalid lines.
fn read_lines(file: File, ledger: &mut dyn Importer) -> Result<(Written, u64, u64), StoreError> {
    let (mut batch, mut written, mut taken, mut strange) = (Batch::default(), Written::default(), 0, 0);
    // The file may grow while it is read.
    let mut lines =
        SpillLines { file: BufReader::new(file.take(SPILL_BYTES_MAX)), line: Vec::new(), has_failed: false };
    while let Some(line) = lines.next() {
        let line = line.and_then(SpillLine::read);
        let Some(line) = line.filter(SpillLine::is_possible) else {
            strange += 1;
            continue;
        };
        let (sent, row) = line.into_row();
        let full = sent.is_none() && batch.rows.len() >= bounds::ROWS_PER_COMMIT;
        if !batch.rows.is_empty() && (full || sent != batch.sent) {
            written = written.and(ledger.import(&batch)?);
            batch.rows.clear();
        }
        batch.sent = sent;
        batch.rows.push(row);
        taken += 1;
    }
    if !batch.rows.is_empty() {
        written = written.and(ledger.import(&batch)?);
    }
    Ok((written, taken, strange))
}

/// Lines of a file, none of them longer than [`SPILL_LINE_MAX`] in memory.
struct SpillLines<R> {
    file: R,
    line: Vec<u8>,
    /// Reading has failed.
    has_failed: bool,
}

impl<R: BufRead> SpillLines<R> {
    /// Returns the next line. The inner `None` is a line that is too long or cannot be read. After a read error there
    /// are no more lines.
    fn next(&mut self) -> Option<Option<&[u8]>> {
        if self.has_failed {
            return None;
        }
        self.line.clear();
        let most = SPILL_LINE_MAX as u64 + 1;
        match self.file.by_ref().take(most).read_until(b'\n', &mut self.line) {
            Ok(0) => None,
            Ok(_) => {
                let is_whole = self.line.pop_if(|last| *last == b'\n').is_some();
                if !is_whole && self.line.len() > SPILL_LINE_MAX {
                    self.has_failed = self.file.skip_until(b'\n').is_err();
                    return Some(None);
                }
                Some(Some(&self.line))
            }
            Err(_) => {
                self.has_failed = true;
                Some(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::channel::channel;
    use crate::store::tests::Taking;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::time::Duration;

    const ROW: &str = concat!(
        r#"{"r":"000102030405060708090a0b0c0d0eff","k":"abcdefABCDEF","a":1800000000123,"m":"m","t":"p/m","#,
        r#""e":"chat","s":false,"c":200,"u":[1,2,3,4],"f":"partial","n":5,"x":1,"d":7}"#
    );

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("tollgate-spill-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn spill(&self, number: u32) -> PathBuf {
            self.0.join(format!("t.db.spill-{number}-1.jsonl"))
        }

        /// Reads the files, which must not block. Returns the number of rows, and the warnings.
        fn read(&self) -> (usize, Vec<String>) {
            let (tell, told) = channel();
            let place = SpillFolder::new(self.0.clone(), "t.db".to_string());
            std::thread::spawn(move || {
                let mut taken = Taking::default();
                let notes = place.read(&mut taken).unwrap();
                let _ = tell.send((taken.rows(), notes));
            });
            told.recv_timeout(Duration::from_secs(20)).expect("reading must end")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn foreign_files_are_skipped() {
        let folder = Folder::new("strange");
        let spill = |number| folder.spill(number);
        let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        pipe(&spill(1));
        pipe(&folder.0.join("pipe"));
        std::fs::write(folder.0.join("rows"), ROW).unwrap();
        for (number, target) in [(2, "/dev/zero"), (3, "pipe"), (4, "rows"), (5, "nothing"), (6, "/dev/stdin")] {
            symlink(target, spill(number)).unwrap();
        }
        std::fs::create_dir(spill(7)).unwrap();
        let _socket = UnixListener::bind(spill(8)).unwrap();
        File::create(spill(9)).unwrap().set_len(SPILL_BYTES_MAX + 1).unwrap();
        std::fs::write(spill(10), format!("{ROW}\n")).unwrap();
        let (rows, notes) = folder.read();
        assert_eq!(rows, 1, "only those of the last file: {notes:?}");
        assert_eq!(notes.len(), 10, "each must be named: {notes:?}");
        for (number, note) in (1..10).zip(&notes) {
            assert!(note.contains(&format!("t.db.spill-{number}-1.jsonl: passed over: ")), "{note}");
            assert!(std::fs::symlink_metadata(spill(number)).is_ok(), "{number} must not be touched");
        }
        assert!(!spill(10).exists());
    }

    #[test]
    fn file_is_removed_only_when_its_records_survive_a_power_cut() {
        let folder = Folder::new("order");
        std::fs::write(folder.spill(1), format!("{ROW}\n{ROW}\n")).unwrap();
        let place = SpillFolder::new(folder.0.clone(), "t.db".to_string());
        let mut ledger = Taking { watched: folder.spill(1), fails: true, ..Taking::default() };
        assert!(place.read(&mut ledger).is_err() && folder.spill(1).exists(), "{:?}", ledger.calls);
        ledger.fails = false;
        place.read(&mut ledger).unwrap();
        let calls = [("append", true), ("sync", true)].repeat(2);
        assert_eq!((ledger.calls, folder.spill(1).exists()), (calls, false));
    }

    #[test]
    fn records_that_no_ledger_can_store_are_kept() {
        let folder = Folder::new("rows");
        let late = format!("\"a\":{}", 1u64 << 63);
        let mut lines: Vec<String> = [
            ("\"a\":1800000000123", late.as_str()),
            ("\"u\":[1,", "\"u\":[1099511627777,"),
            ("\"n\":5", "\"n\":18446744073709551615"),
            ("\"d\":7", "\"d\":7,\"batch\":[\"a}b\",1]"),
            ("\"d\":7", "\"d\":7,\"batch\":[\"ab\",18446744073709551615]"),
            ("\"d\":7", "\"d\":7,\"lease\":[18446744073709551615,1,true,[]]"),
            ("\"d\":7", "\"d\":7,\"lease\":[1,18446744073709551615,true,[]]"),
            ("\"d\":7", "\"d\":7,\"lease\":[1,1,true,[[\"g/5h\",[0,18446744073709551615]]]]"),
        ]
        .iter()
        .map(|(from, to)| ROW.replace(from, to))
        .collect();
        assert!(lines.iter().all(|line| line != ROW && SpillLine::read(line.as_bytes()).is_some()));
        lines.push(" ".repeat(2 * SPILL_LINE_MAX) + ROW);
        lines.push("\u{0}".repeat(SPILL_LINE_MAX));
        let odd = lines.len();
        lines.insert(3, ROW.to_string());
        lines.push(ROW.to_string());
        std::fs::write(folder.spill(1), lines.join("\n")).unwrap();
        let (rows, notes) = folder.read();
        assert_eq!((rows, notes.len()), (2, 1), "{notes:?}");
        assert!(notes[0].contains(&format!("lines that could not be read: {odd};")), "{notes:?}");
        assert!(folder.spill(1).with_extension("unread").exists() && !folder.spill(1).exists());
    }
}
