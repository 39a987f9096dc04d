//! Owns the thread that writes captured requests, one line of JSON each, to a file of each key beside the ledger. It
//! starts with the first of them. The event loop never waits for it: what waits counts as buffered, and is bounded by
//! that; the loop learns of each line what has become of it.

use super::capture_line;
use crate::base::limits::LOG_PARTING;
use crate::gateway::Gateway;
use crate::gateway::orders::{Captured, Notice};
use crate::io::channel::{Receiver, Sender, channel};
use crate::io::files;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::ReactorMessage;
use crate::io::worker::{start_thread, unless_panicked};
use crate::store::spill::{SpillFolder, disk_space};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Bytes of a file of captured requests before another one is begun.
const CAPTURE_FILE_MAX: u64 = 64 << 20;
/// Bytes of the ledger's disk that captures leave free, and at most an eighth of the disk.
const CAPTURE_DISK_SPARED: u64 = 256 << 20;

/// The event loop's side.
pub(super) struct CaptureWriter {
    /// Requests that wait; `None` once the process ends.
    lines: Mutex<Option<Sender<Box<Captured>>>>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
}

impl CaptureWriter {
    /// Starts the thread, which writes beside the ledger of `place`.
    pub(super) fn start(place: SpillFolder, mailbox: Mailbox<ReactorMessage<Gateway>>) -> io::Result<CaptureWriter> {
        let ((lines, taken), (alive, ended)) = (channel::<Box<Captured>>(), channel());
        let serve = move || {
            let mut text = Vec::new();
            while let Ok(captured) = taken.recv() {
                let path = place.capture(&captured.key);
                let written = unless_panicked(|| {
                    text.clear();
                    capture_line::write(&captured, &mut text);
                    append(&path, &text, disk_space).map_err(|error| format!("{}: {error}", path.display()))
                });
                let written = written.and_then(|written| written);
                let (key, kept) = (captured.key, captured.kept());
                // A long line must not occupy memory permanently.
                drop((captured, std::mem::take(&mut text)));
                // A full mailbox means that the event loop has ended.
                let _ = mailbox.send(ReactorMessage::Notice(Notice::Captured(key, kept, written)));
            }
            drop(alive);
        };
        start_thread("capture", Box::new(serve))?;
        Ok(CaptureWriter { lines: Mutex::new(Some(lines)), ended })
    }

    /// Hands over a request.
    pub(super) fn give(&self, captured: Box<Captured>) {
        if let Some(lines) = &*self.lines.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = lines.send(captured);
        }
    }

    /// Waits a limited time until all requests are written.
    pub(super) fn finish(&self) {
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.ended.recv_timeout(LOG_PARTING);
    }
}

/// Appends a line to the file at `path`, completely or not at all. A file that would become too long is renamed first,
/// and replaces the one that was renamed before. `disk_space`: returns the free and all bytes of the file's disk.
fn append(path: &Path, line: &[u8], disk_space: fn(&File) -> io::Result<[u64; 2]>) -> io::Result<()> {
    let mut file = files::append_private(path)?;
    let mut length = file.metadata()?.len();
    if length > 0 && length + line.len() as u64 > CAPTURE_FILE_MAX {
        // During an upgrade the other process may have renamed it a moment ago.
        if fs::metadata(path)?.ino() == file.metadata()?.ino() {
            files::rename(path, &path.with_extension("jsonl.1"))?;
        }
        file = files::append_private(path)?;
        length = file.metadata()?.len();
    }
    let [free, total] = disk_space(&file)?;
    if !leaves_space(free, total, line.len() as u64) {
        return Err(io::Error::new(ErrorKind::StorageFull, "the rest of the disk is kept free for the ledger"));
    }
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    // A line that a killed process has begun is ended.
    let begin: &[u8] = if last == *b"\n" { b"" } else { b"\n" };
    file.write_all(&[begin, line].concat()).inspect_err(|_| _ = file.set_len(length))
}

/// True if the disk of the ledger keeps some free space after these bytes were written: without any, no request is
/// admitted.
fn leaves_space(free: u64, total: u64, bytes: u64) -> bool {
    free.saturating_sub(bytes) >= (total / 8).min(CAPTURE_DISK_SPARED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("tollgate-capture-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn roomy(_: &File) -> io::Result<[u64; 2]> {
        Ok([1 << 40; 2])
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn captures_leave_an_eighth_of_a_disk_free() {
        assert!(leaves_space(100, 800, 0) && !leaves_space(100, 800, 1) && !leaves_space(0, 800, 1));
        let spared = CAPTURE_DISK_SPARED;
        assert!(leaves_space(spared + 1, 1 << 40, 1) && !leaves_space(spared, 1 << 40, 1));
        let folder = Folder::new("space");
        let path = folder.0.join("capture-a.jsonl");
        append(&path, b"{}\n", |_| Ok([103, 800])).unwrap();
        assert_eq!(append(&path, b"{}\n", |_| Ok([102, 800])).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"{}\n");
    }

    #[test]
    fn file_is_private_and_its_lines_are_whole() {
        let folder = Folder::new("whole");
        let path = folder.0.join("capture-a.jsonl");
        append(&path, b"{\"a\":1}\n", roomy).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, "{\"a\":1}\n{\"cut").unwrap();
        append(&path, b"{\"a\":2}\n", roomy).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"cut\n{\"a\":2}\n");
    }

    #[test]
    fn full_file_is_renamed_and_one_old_file_is_kept() {
        let folder = Folder::new("full");
        let (path, old) = (folder.0.join("capture-a.jsonl"), folder.0.join("capture-a.jsonl.1"));
        for round in 0..3u8 {
            append(&path, &[b'0' + round, b'\n'], roomy).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(CAPTURE_FILE_MAX).unwrap();
            append(&path, b"next\n", roomy).unwrap();
            let first = fs::read(&path).unwrap();
            assert_eq!(first, b"next\n", "a line that does not fit begins another file");
            let mut begins = [0];
            File::open(&old).unwrap().read_exact_at(&mut begins, 0).unwrap();
            assert_eq!((begins, fs::metadata(&old).unwrap().len()), ([b'0' + round], CAPTURE_FILE_MAX));
            assert_eq!((mode(&path), mode(&old)), (0o600, 0o600));
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        // A line that no file has room for is written all the same: its bounds are those of a request.
        append(&path, &vec![b'x'; CAPTURE_FILE_MAX as usize + 1], roomy).unwrap();
        append(&path, b"next\n", roomy).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"next\n");
    }

    #[test]
    fn pipe_folder_or_link_is_refused_without_waiting() {
        let folder = Folder::new("odd");
        let [pipe, link, inside] = ["pipe", "link", "folder"].map(|name| folder.0.join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("pipe", &link).unwrap();
        fs::create_dir(&inside).unwrap();
        let (other, another) = (folder.0.join("other"), folder.0.join("another"));
        fs::write(&other, "content").unwrap();
        symlink("other", &another).unwrap();
        for odd in [&pipe, &link, &inside, &another] {
            assert!(append(odd, b"{}\n", roomy).is_err());
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "content");
        let second = folder.0.join("second");
        fs::hard_link(&other, &second).unwrap();
        assert!(append(&second, b"{}\n", roomy).is_err());
        fs::remove_file(&second).unwrap();
        assert!(append(&other, b"{}\n", roomy).is_ok());
    }
}
