//! Reads the files of a configuration: the configuration itself, secrets, certificates. Never waits for a file and
//! never reads without bound: otherwise a reload would never end if a path leads to a pipe or a device.
//!
//! Called by the command line and by the code that loads certificates.

use crate::base::limits;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Linux's `O_NONBLOCK`, which is equal on every supported architecture: opening a pipe does not wait for its other
/// end.
const NONBLOCK: i32 = 0o4000;

/// Reads a regular file of at most `limits::SETTINGS_FILE_MAX` bytes. Any other file is an error.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, limits::SETTINGS_FILE_MAX)
}

/// Reads a regular file of at most `max` bytes.
pub fn read_at_most(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    bounded(file, max)
}

/// Reads a file as [`read`] does, as text in UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8"))
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
    use std::process::Command;

    #[test]
    fn only_bounded_regular_files_are_read_without_waiting() {
        let folder = std::env::temp_dir().join(format!("tollgate-files-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let [pipe, small, large, link] = ["pipe", "small", "large", "link"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&small, "a = 1\n").unwrap();
        std::os::unix::fs::symlink("small", &link).unwrap();
        let grown = File::create(&large).unwrap();
        let why = |path: &Path| read(path).unwrap_err().to_string();
        for odd in [&*pipe, &*folder, Path::new("/dev/zero")] {
            assert_eq!(why(odd), "not a regular file");
        }
        grown.set_len(limits::SETTINGS_FILE_MAX as u64).unwrap();
        assert_eq!(read(&large).unwrap().len(), limits::SETTINGS_FILE_MAX);
        grown.set_len(limits::SETTINGS_FILE_MAX as u64 + 1).unwrap();
        assert_eq!(why(&large), "larger than 4 MiB");
        assert_eq!((read(&small).unwrap(), read(&link).unwrap()), (b"a = 1\n".to_vec(), b"a = 1\n".to_vec()));
        assert!(!read(Path::new("/proc/self/status")).unwrap().is_empty());
        std::fs::write(&small, b"\xff").unwrap();
        assert_eq!(read_text(&small).unwrap_err().kind(), ErrorKind::InvalidData);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
