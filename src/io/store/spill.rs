//! Rows that the ledger did not take before their process ended, in files that the next start reads in: one file for
//! each such end, JSON lines in the form of rows, for their owner's eyes. Called at the end of a gateway and at the
//! start of the next.
//!
//! A file appears whole or not at all, and goes when the ledger has its rows; the ledger takes each row once, however
//! often a file is read (see `Store::append_missing` and `shared::append_again`).

use super::api::{Batch, Leftover, StoreError};
use crate::base::limits;
use crate::base::order;
use crate::base::time::Unix;
use crate::policy::meter::{Amount, GroupLease, Lease, PathIx};
use crate::policy::row::Row;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the rows of one ledger are put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    folder: PathBuf,
    /// What the names of its files begin with, so that several ledgers can share a folder.
    stem: String,
}

/// One line: a row, and for a shared ledger what it was sent as.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    row: Row,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    batch: Option<(String, u64)>,
    /// Window, period, tokens reserved, and whether the ledger lent them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<([u64; 2], [u64; 2], u64, bool)>,
    /// Nano-dollars reserved, and the windows and periods of groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lent: Option<(u64, Vec<LentBy>)>,
}

/// A group, its window and its period.
type LentBy = (Arc<str>, [u64; 2], [u64; 2]);

impl Line {
    fn of(row: &Row, batch: &Batch) -> Line {
        let pair = |(from, to): (Unix, Unix)| [from.0, to.0];
        let lease = row.lease.as_deref().filter(|_| batch.sent.is_some());
        let lent = lease.filter(|lease| lease.reserved.nano > 0 || !lease.groups.is_empty()).map(|lease| {
            let groups = lease.groups.iter().map(|group| (group.name.clone(), pair(group.window), pair(group.period)));
            (lease.reserved.nano, groups.collect())
        });
        let lease = lease.map(|lease| (pair(lease.window), pair(lease.period), lease.reserved.tokens, lease.shared));
        Line { row: row.clone(), batch: batch.sent.clone(), lease, lent }
    }

    fn into_row(self) -> (Option<(String, u64)>, Row) {
        let pair = |[from, to]: [u64; 2]| (Unix(from), Unix(to));
        let (nano, groups) = self.lent.unwrap_or_default();
        let group = |(name, window, period)| GroupLease { name, window: pair(window), period: pair(period) };
        let groups: Box<[GroupLease]> = groups.into_iter().map(group).collect();
        let lease = self.lease.map(|(window, period, tokens, shared)| {
            let reserved = Amount { tokens, nano };
            let (window, period, path) = (pair(window), pair(period), PathIx::NONE);
            Box::new(Lease { window, period, reserved, shared, path, groups })
        });
        (self.batch, Row { lease, ..self.row })
    }
}

impl Place {
    /// Files in `folder` whose names begin with `stem`.
    pub fn new(folder: PathBuf, stem: String) -> Place {
        Place { folder, stem }
    }

    /// Whether a file could be written there.
    pub fn check(&self) -> io::Result<()> {
        let probe = self.folder.join(format!("{}probe", self.prefix()));
        // One that a killed process has left is in nobody's way.
        let _ = std::fs::remove_file(&probe);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe)?;
        std::fs::remove_file(probe)
    }

    /// Where that is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn prefix(&self) -> String {
        format!("{}.spill-", self.stem)
    }

    /// Writes a file of all the rows that are left, named by the moment and the process; its path. Nothing is there
    /// where it fails.
    pub fn write(&self, left: &Leftover, now: Unix, pid: u32) -> io::Result<PathBuf> {
        let path = self.folder.join(format!("{}{}-{pid}.jsonl", self.prefix(), now.0));
        let draft = path.with_extension("part");
        let written = write_lines(&draft, left).and_then(|()| std::fs::rename(&draft, &path));
        if let Err(error) = written {
            // It may not have come so far.
            let _ = std::fs::remove_file(&draft);
            return Err(error);
        }
        // The name is to outlive a power cut, too; a file system that cannot promise so is no reason to give up.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(path)
    }

    /// Hands the rows of every file to `take`, the oldest file first, and removes the files. Returns what an operator
    /// should know. A file that holds anything else is kept under another name once its rows have been taken.
    pub fn read(&self, mut take: impl FnMut(&Batch) -> Result<(), StoreError>) -> Result<Vec<String>, StoreError> {
        let mut notes = Vec::new();
        for path in self.files() {
            let failed = |error| StoreError::File(path.clone(), error);
            let (rows, strange) = read_lines(&path, &mut take)?;
            if strange == 0 {
                std::fs::remove_file(&path).map_err(failed)?;
                notes.push(format!("{}: {rows} rows of an earlier process are in the ledger now", path.display()));
            } else {
                let kept = path.with_extension("unread");
                std::fs::rename(&path, &kept).map_err(failed)?;
                let text = format!("{rows} rows were taken from it, {strange} lines could not be read");
                notes.push(format!("{}: {text}", kept.display()));
            }
        }
        Ok(notes)
    }

    fn files(&self) -> Vec<PathBuf> {
        let prefix = self.prefix();
        let named = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(&prefix) && name.ends_with(".jsonl")
        };
        // A folder that is not there has no files.
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named).collect();
        let moment =
            |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(&prefix)?.split('-').next()?.parse().ok();
        order::by_key(&mut files, |path| (moment(path).unwrap_or(0), 0));
        files
    }
}

fn write_lines(path: &Path, left: &Leftover) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut out = BufWriter::new(file);
    for batch in &left.batches {
        for row in &batch.rows {
            serde_json::to_writer(&mut out, &Line::of(row, batch))?;
            out.write_all(b"\n")?;
        }
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// How many rows were taken, and how many lines are no rows.
fn read_lines(path: &Path, take: &mut impl FnMut(&Batch) -> Result<(), StoreError>) -> Result<(u64, u64), StoreError> {
    let failed = |error| StoreError::File(path.to_path_buf(), error);
    let (mut batch, mut taken, mut strange) = (Batch::default(), 0, 0);
    for line in BufReader::new(File::open(path).map_err(failed)?).split(b'\n') {
        let Ok(line) = serde_json::from_slice::<Line>(&line.map_err(failed)?) else {
            strange += 1;
            continue;
        };
        let (sent, row) = line.into_row();
        let full = sent.is_none() && batch.rows.len() >= limits::ROWS_PER_COMMIT;
        if !batch.rows.is_empty() && (full || sent != batch.sent) {
            take(&batch)?;
            batch.rows.clear();
        }
        batch.sent = sent;
        batch.rows.push(row);
        taken += 1;
    }
    if !batch.rows.is_empty() {
        take(&batch)?;
    }
    Ok((taken, strange))
}
