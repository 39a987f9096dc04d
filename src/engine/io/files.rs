//! Opens, creates, replaces and renames the files of the product. Never waits for a file and never reads without bound:
//! otherwise a reload would never end if a path names a pipe or a device.
//!
//! Other users may be able to write to the folder of a file that Tollgate makes. There, no link is followed, a file of
//! another user is refused, and a new content is written to a [`FileDraft`], which then gets the file's name: a crash
//! or a power cut leaves the old file or the new one.
//!
//! Called by the ledgers, by the command line, and by the code that loads certificates.

use super::entropy::random;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of one configuration file: the configuration itself, a secret, certificates.
const SETTINGS_FILE_MAX: usize = 4 << 20;

/// Mode of a file that only its owner may read.
const PRIVATE: u32 = 0o600;

/// Reads a regular file of at most `SETTINGS_FILE_MAX` bytes. Any other file is an error.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, SETTINGS_FILE_MAX)
}

/// Reads a regular file of at most `max` bytes.
pub fn read_at_most(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    bounded(open_at(OpenOptions::new().read(true), path, OFlags::empty())?.0, max)
}

/// Reads a file as [`read`] does, as text in UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8"))
}

/// Reads the first `max` bytes of a regular file.
pub fn read_head(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    head_of(&open_at(OpenOptions::new().read(true), path, OFlags::empty())?.0, max)
}

/// Reads the first `max` bytes of a file that was just opened.
pub fn head_of(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(max).read_to_end(&mut head).map(|_| head)
}

/// Opens a regular file for reading. No link is followed.
pub fn open_plain(path: &Path) -> io::Result<File> {
    Ok(open_at(OpenOptions::new().read(true), path, OFlags::NOFOLLOW)?.0)
}

/// Opens a regular file of this process's user for reading. No link is followed.
pub fn open_own(path: &Path) -> io::Result<File> {
    let (file, found) = open_at(OpenOptions::new().read(true), path, OFlags::NOFOLLOW)?;
    owned_by(&found, geteuid().as_raw()).map(|()| file)
}

/// Opens a file of this process's user for reading and appending, and lets nobody else read it. Creates it if it does
/// not exist. No link is followed, and a file with a second name is refused.
pub fn append_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let (file, found) = open_at(options.read(true).append(true).create(true).mode(PRIVATE), path, OFlags::NOFOLLOW)?;
    owned_by(&found, geteuid().as_raw())?;
    has_one_name(&found)?;
    if found.mode() & 0o777 != PRIVATE {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
    }
    Ok(file)
}

/// Fails if a file has a second name: after a draft has replaced it, the other name would have the former content.
pub fn has_one_name(found: &Metadata) -> io::Result<()> {
    if found.nlink() > 1 { Err(odd("it has a second name (a hard link)")) } else { Ok(()) }
}

/// Creates a file. There must be none.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

/// Creates a file with this content that only its owner may read. There must be none.
pub fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    create(path, PRIVATE)?.write_all(content)
}

/// Opens a file that the operator has named for reading and writing, also by a link. `makes`: creates an empty file,
/// private to its owner, if there is none.
pub fn open_named(path: &Path, makes: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(makes).truncate(false).mode(PRIVATE).open(path)
}

/// Gives a file another name, and replaces the file that has this name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    sync_folder(to);
    Ok(())
}

/// Returns the folder of a path.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens the folder of a path, for example to lock it.
pub fn open_folder_of(path: &Path) -> io::Result<File> {
    File::open(folder_of(path))
}

/// Lets the name of a file survive a power cut. Some file systems cannot ensure this.
fn sync_folder(path: &Path) {
    let _ = open_folder_of(path).and_then(|folder| folder.sync_all());
}

/// Opens a regular file without waiting. The text of an error is the reason.
fn open_at(options: &mut OpenOptions, path: &Path, more: OFlags) -> io::Result<(File, Metadata)> {
    let file = options.custom_flags((more | OFlags::NONBLOCK).bits() as i32).open(path);
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) if more.contains(OFlags::NOFOLLOW) => odd("it is a link"),
        _ => error,
    })?;
    match file.metadata()? {
        found if found.is_file() => Ok((file, found)),
        _ => Err(odd("not a regular file")),
    }
}

fn owned_by(found: &Metadata, user: u32) -> io::Result<()> {
    if found.uid() == user { Ok(()) } else { Err(odd("it belongs to another user")) }
}

fn odd(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// A file next to another one, which gets the other's name when it is complete. Otherwise it is removed, with the
/// journal that SQLite may have left.
pub struct FileDraft(PathBuf);

/// End of the name of every draft.
pub const DRAFT_END: &str = ".draft";

/// End of the name of the journal that SQLite has next to a file.
const JOURNAL_END: &str = "-journal";

/// Maximum bytes of the name of a file that has drafts. Linux allows 255; the name of a draft has a dot, 16 digits
/// and [`DRAFT_END`] more.
const NAME_MAX: usize = 255 - 1 - 16 - DRAFT_END.len() - JOURNAL_END.len();

impl FileDraft {
    /// Creates an empty draft of the file at `target`, private to its owner, under a name that no other file has.
    pub fn beside(target: &Path) -> io::Result<(FileDraft, File)> {
        FileDraft::with_mode(target, PRIVATE)
    }

    /// Does the same with another mode, less the process's umask.
    pub fn with_mode(target: &Path, mode: u32) -> io::Result<(FileDraft, File)> {
        if target.file_name().is_some_and(|name| name.len() > NAME_MAX) {
            return Err(odd(&format!("use a name of at most {NAME_MAX} bytes")));
        }
        let mut name = target.as_os_str().to_os_string();
        name.push(format!(".{:016x}{DRAFT_END}", u64::from_ne_bytes(random()?)));
        let draft = PathBuf::from(name);
        create(&draft, mode).map(|file| (FileDraft(draft), file))
    }

    /// The path of the draft.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Syncs the draft, which is `file`, closes it, and replaces the file at `target` with it.
    pub fn replace(self, file: File, target: &Path) -> io::Result<()> {
        file.sync_all()?;
        drop(file);
        rename(&self.0, target)
    }

    /// Does the same, unless there is a file at `target`: that is an error then.
    pub fn put(self, file: File, target: &Path) -> io::Result<()> {
        file.sync_all()?;
        drop(file);
        match renameat_with(CWD, &self.0, CWD, target, RenameFlags::NOREPLACE) {
            // Not every file system can do this.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&self.0, target)?,
            renamed => renamed?,
        }
        sync_folder(target);
        Ok(())
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        let mut journal = self.0.clone().into_os_string();
        journal.push(JOURNAL_END);
        // Both are absent if the draft has its name.
        for path in [Path::new(&journal), &self.0] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Reads at most `max` bytes. The length given by the file system is not used: files of `/proc` have none.
fn bounded(file: File, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("larger than {} MiB", max >> 20)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{hard_link, metadata};
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn new_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tollgate-files-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn odd_files_are_refused_without_waiting() {
        let folder = new_folder("odd");
        let [pipe, link, other, second, own] = ["pipe", "link", "other", "second", "own"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("own", &link).unwrap();
        std::fs::write(&other, "x").unwrap();
        hard_link(&other, &second).unwrap();
        std::fs::write(&own, "x").unwrap();
        std::fs::set_permissions(&own, Permissions::from_mode(0o644)).unwrap();
        let why = |opened: io::Result<File>| opened.map_or_else(|error| error.to_string(), |_| "none".to_string());
        for (path, reads, appends) in [
            (&pipe, "not a regular file", "not a regular file"),
            (&link, "it is a link", "it is a link"),
            (&second, "none", "it has a second name (a hard link)"),
            (&own, "none", "none"),
        ] {
            let found = [open_plain(path), open_own(path), append_private(path)].map(why);
            assert_eq!(found, [reads, reads, appends], "{}", path.display());
        }
        assert_eq!(metadata(&own).unwrap().mode() & 0o777, 0o600);
        let (found, user) = (metadata(&own).unwrap(), geteuid().as_raw());
        assert!(owned_by(&found, user).is_ok());
        assert_eq!(owned_by(&found, user + 1).unwrap_err().to_string(), "it belongs to another user");
        assert!(write_new(&own, b"y").is_err() && write_new(&link, b"y").is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn draft_replaces_a_file_in_one_step_or_leaves_nothing() {
        let folder = new_folder("draft");
        let [link, other, new] = ["link", "other", "new"].map(|name| folder.join(name));
        std::fs::write(&other, "other").unwrap();
        symlink("other", &link).unwrap();
        let begin = |target: &Path| {
            let (draft, mut file) = FileDraft::beside(target).unwrap();
            file.write_all(b"content").unwrap();
            assert_eq!(metadata(draft.path()).unwrap().mode() & 0o777, 0o600);
            (draft, file)
        };
        let names = || std::fs::read_dir(&folder).unwrap().count();
        // A link is replaced, not its target.
        let (draft, file) = begin(&link);
        draft.replace(file, &link).unwrap();
        assert!(link.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
        for taken in [&link, &other] {
            let (draft, file) = begin(taken);
            assert_eq!(draft.put(file, taken).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        let (draft, file) = begin(&new);
        draft.put(file, &new).unwrap();
        assert_eq!((std::fs::read(&new).unwrap(), names()), (b"content".to_vec(), 3));
        let (draft, _file) = begin(&new);
        std::fs::write(folder.join(format!("{}-journal", draft.path().display())), "x").unwrap();
        drop(draft);
        assert_eq!(names(), 3, "a draft that is given up leaves nothing");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_bounded_regular_files_are_read_without_waiting() {
        let folder = new_folder("bounded");
        let [pipe, small, large, link] = ["pipe", "small", "large", "link"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&small, "a = 1\n").unwrap();
        symlink("small", &link).unwrap();
        let grown = File::create(&large).unwrap();
        let why = |path: &Path| read(path).unwrap_err().to_string();
        for odd in [&*pipe, &*folder, Path::new("/dev/zero")] {
            assert_eq!(why(odd), "not a regular file");
        }
        grown.set_len(SETTINGS_FILE_MAX as u64).unwrap();
        assert_eq!(read(&large).unwrap().len(), SETTINGS_FILE_MAX);
        grown.set_len(SETTINGS_FILE_MAX as u64 + 1).unwrap();
        assert_eq!(why(&large), "larger than 4 MiB");
        assert_eq!((read(&small).unwrap(), read(&link).unwrap()), (b"a = 1\n".to_vec(), b"a = 1\n".to_vec()));
        assert!(!read(Path::new("/proc/self/status")).unwrap().is_empty());
        std::fs::write(&small, b"\xff").unwrap();
        assert_eq!(read_text(&small).unwrap_err().kind(), ErrorKind::InvalidData);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
