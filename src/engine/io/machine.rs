//! The memory that this process may use (of its cgroup, version 1 or 2, or of the machine), and the resource that
//! is exhausted when the system refuses something. Reads files of the kernel.

use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the bytes of memory, and what limits them; `None` if the kernel does not report it.
pub fn memory() -> Option<(u64, &'static str)> {
    memory_at(Path::new("/"))
}

fn memory_at(root: &Path) -> Option<(u64, &'static str)> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = total(&read("proc/meminfo")).map(|bytes| (bytes, "this machine"));
    let groups = read("proc/self/cgroup");
    let group = groups.lines().flat_map(places).filter_map(|(base, path, file)| least(&root.join(base), &path, file));
    machine.into_iter().chain(group.map(|bytes| (bytes, "this process's cgroup"))).min()
}

/// Returns the value of `MemTotal`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Parses a line of `/proc/self/cgroup`. Returns the folder of its hierarchy, the group in it, and the name of the file
/// with the limit.
fn places(line: &str) -> Option<(&'static str, PathBuf, &'static str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let path = PathBuf::from(path.trim_start_matches('/'));
    match controllers.split(',').any(|name| name == "memory") {
        true => Some(("sys/fs/cgroup/memory", path, "memory.limit_in_bytes")),
        false if number == "0" => Some(("sys/fs/cgroup", path, "memory.max")),
        false => None,
    }
}

/// Returns the smallest limit of a group and its ancestors. In a container the path may be one of the host, which is
/// missing here; then the limit is found at the root.
fn least(base: &Path, group: &Path, file: &str) -> Option<u64> {
    let limit = |group: &Path| fs::read_to_string(base.join(group).join(file)).ok()?.trim().parse::<u64>().ok();
    group.ancestors().filter_map(limit).min()
}

/// Returns the text of a system error, with the exhausted resource and how to raise its limit.
pub fn explained(error: &io::Error) -> String {
    match shortage(error) {
        Some(what) => format!("{error}: {what}"),
        None => error.to_string(),
    }
}

fn shortage(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN | Errno::NOMEM => {
            Some("memory or threads are short: raise their limit (MemoryMax=, TasksMax=, ulimit -v, ulimit -u)")
        }
        Errno::ADDRINUSE => Some("choose another address, or stop the program that uses it"),
        Errno::ADDRNOTAVAIL => Some("this host does not have the address"),
        Errno::MFILE | Errno::NFILE => Some("descriptors are short: raise their limit (LimitNOFILE=, ulimit -n)"),
        _ => None,
    }
}

/// Columns of the terminal at standard output; `None` if there is none.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_exhausted_resource() {
        let text = |errno: Errno| explained(&io::Error::from(errno));
        assert!(text(Errno::AGAIN).ends_with(
            ": memory or threads are short: raise their limit (MemoryMax=, TasksMax=, \
                                              ulimit -v, ulimit -u)"
        ));
        assert!(text(Errno::MFILE).ends_with(": descriptors are short: raise their limit (LimitNOFILE=, ulimit -n)"));
        assert_eq!(text(Errno::ROFS), io::Error::from(Errno::ROFS).to_string());
    }

    /// Returns the memory of a machine with 1 MiB and these files.
    fn found(name: &str, files: &[(&str, &str)]) -> Option<(u64, &'static str)> {
        let root = std::env::temp_dir().join(format!("tollgate-machine-{}-{name}", std::process::id()));
        let meminfo = ("proc/meminfo", "MemTotal:        1024 kB\nMemFree: 1 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = memory_at(&root);
        fs::remove_dir_all(root).unwrap();
        found
    }

    #[test]
    fn smaller_of_machine_and_cgroup_memory_counts() {
        let one = ("proc/self/cgroup", "5:cpu:/a\n4:memory,hugetlb:/a/b\n0::/x\n");
        let two = ("proc/self/cgroup", "0::/a/b\n");
        let group = |bytes| Some((bytes, "this process's cgroup"));
        assert_eq!(found("none", &[]), Some((1 << 20, "this machine")));
        let file = "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes";
        assert_eq!(found("one", &[one, (file, "65536\n")]), group(65536));
        assert_eq!(found("endless", &[one, (file, "9223372036854771712\n")]), Some((1 << 20, "this machine")));
        let (inner, outer) = ("sys/fs/cgroup/a/b/memory.max", "sys/fs/cgroup/a/memory.max");
        assert_eq!(found("two", &[two, (inner, "max\n"), (outer, "4096\n")]), group(4096));
        assert_eq!(found("container", &[two, ("sys/fs/cgroup/memory.max", "8192\n")]), group(8192));
    }
}
