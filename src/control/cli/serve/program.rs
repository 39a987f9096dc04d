//! The program to start as a successor: the path by which this one was started, with its symbolic links, so that a link
//! that now points to another version is followed. The kernel's answer (`/proc/self/exe`) would name the file that the
//! link pointed to at the start.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Must be called at the start, before the working directory or the file can change. `None` if the program cannot be
/// found again.
pub(super) fn called() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let name = std::env::args_os().next().unwrap_or_default();
    let search = std::env::var_os("PATH").unwrap_or_default();
    Some(by_name(&name, &search, &own).unwrap_or(own))
}

/// The absolute path to which a shell resolves `name`, if it leads to `own`.
fn by_name(name: &OsStr, search: &OsStr, own: &Path) -> Option<PathBuf> {
    let path = Path::new(name);
    let places: Vec<PathBuf> = match path.components().count() {
        0 => Vec::new(),
        1 if path.is_relative() && !name.as_encoded_bytes().contains(&b'/') => {
            std::env::split_paths(search).map(|folder| folder.join(path)).collect()
        }
        _ => vec![path.to_path_buf()],
    };
    let own = own.canonicalize().ok()?;
    let found = places.into_iter().find(|place| place.canonicalize().is_ok_and(|place| place == own))?;
    std::path::absolute(found).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_link_is_kept_by_path_and_search_path() {
        let folder = std::env::temp_dir().join(format!("tollgate-called-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let (own, link, other) = (folder.join("own"), folder.join("link"), folder.join("other"));
        std::fs::write(&own, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink("own", &link).unwrap();
        let find = |name: &OsStr| by_name(name, folder.as_os_str(), &own);
        assert_eq!(find(link.as_os_str()), Some(link.clone()));
        assert_eq!(find(OsStr::new("link")), Some(link));
        // A program may be started under any name.
        assert_eq!(find(OsStr::new("other")), None);
        assert_eq!(find(other.as_os_str()), None);
        assert_eq!(find(OsStr::new("")), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
