//! Values of Linux about this process, for its metrics. Reads files that the kernel generates on demand: none of them
//! blocks. Called by the core, through a function that it receives at its start.

use crate::base::seam::ProcessVitals;
use crate::base::time::Unix;
use crate::io::clock::unix;
use std::fs;
use std::sync::OnceLock;

/// Ticks of `/proc/self/stat` in a second, on every architecture that Linux has today.
const TICKS: u64 = 100;

/// Returns the present values; 0 for any that are unavailable.
pub fn vitals() -> ProcessVitals {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    ProcessVitals {
        resident_bytes: resident(&read("status")),
        cpu_micros: cpu_micros(&read("stat")),
        open_fds: open_fds(),
        started: started(),
    }
}

/// Start time of the process. Call it first when the process begins.
pub fn started() -> Unix {
    static STARTED: OnceLock<Unix> = OnceLock::new();
    *STARTED.get_or_init(unix)
}

fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Reads the fields after the name, which may contain blanks and brackets.
fn cpu_micros(stat: &str) -> u64 {
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    ticks * (1_000_000 / TICKS)
}

/// Number of open descriptors. Newer kernels return it as the size of the folder; in older ones it must be counted.
fn open_fds() -> u64 {
    match fs::metadata("/proc/self/fd").map(|folder| folder.len()) {
        Ok(0) | Err(_) => fs::read_dir("/proc/self/fd").map_or(0, |folder| folder.count() as u64),
        Ok(count) => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_kernel_are_read() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    5304 kB\nVmData: 7 kB\n"), 5304 * 1024);
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 99 0";
        assert_eq!(cpu_micros(stat), 3_000_000);
        let _open = fs::File::open("/dev/null").unwrap();
        let vitals = vitals();
        assert!(vitals.resident_bytes > 1 << 20 && vitals.open_fds >= 4 && vitals.started.0 > 1_600_000_000_000);
        assert_eq!((resident(""), cpu_micros("")), (0, 0));
    }
}
