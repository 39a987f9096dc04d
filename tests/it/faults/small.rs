//! A gateway with `memory` set, in a cgroup of that size. More concurrent bodies and streams than fit cause refusals,
//! never an out-of-memory kill. Without a cgroup (no root, another system) the peak of resident memory is compared with
//! the limit.

use crate::e2e::client::{Client, get};
use crate::e2e::harness::{Harness, Setup, chat, chat_request, streamed};
use crate::e2e::process::wait_for;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Limits in MiB, each with its setting: the cgroup also counts the kernel's memory for sockets.
const LIMITS: [(u64, &str); 3] = [(16, "memory = \"16MiB\""), (32, "memory = \"28MiB\""), (64, "memory = \"56MiB\"")];

/// More than the connections of the largest limit.
const SLOW_READERS: usize = 80;
/// Time in which answers pile up before clients that do not read.
const UNREAD: Duration = Duration::from_secs(2);

/// A cgroup (version 1 or 2) with a memory limit; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Creates a group for a process; `None` without the permission.
    fn of(pid: u32, bytes: u64) -> Option<Group> {
        for (base, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Group(PathBuf::from(base).join(format!("tollgate-{}-{pid}", std::process::id())));
            if fs::create_dir(&group.0).is_err() {
                continue;
            }
            let limited = fs::write(group.0.join(file), bytes.to_string());
            if limited.and_then(|()| fs::write(group.0.join("cgroup.procs"), pid.to_string())).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Sends requests concurrently, each on a new connection. Returns their statuses, 0 for a closed connection.
fn at_once(h: &Harness, count: usize, request: &[u8]) -> Vec<u16> {
    std::thread::scope(|scope| {
        let ask = || {
            let Ok(mut client) = Client::try_connect(h.at) else { return 0 };
            // The refusal may arrive before the whole body was sent.
            let _ = client.socket.write_all(request);
            client.answer().map_or(0, |answer| answer.status())
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Connects clients with small receive buffers that ask for streams and whole answers of megabytes and read nothing.
fn slow_readers(h: &Harness, key: &str) -> Vec<TcpStream> {
    let long = chat("x\n#sim tokens=500000");
    let requests = [chat_request(key, &streamed(long.clone())), chat_request(key, &long)];
    let connect = |number: usize| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&SockAddr::from(h.at)).unwrap();
        let mut socket = TcpStream::from(socket);
        // The connection may be refused.
        let _ = socket.write_all(&requests[number % 2]);
        socket
    };
    (0..SLOW_READERS).map(connect).collect()
}

#[test]
fn pressure_in_little_memory_causes_refusals_not_a_kill() {
    for (limit, setting) in LIMITS {
        let mut h = Harness::start(&Setup { server: setting, ..Setup::default() });
        let key = h.key();
        let group = Group::of(h.gateway.id(), limit * MIB);
        let text = |bytes: u64| "word ".repeat((bytes / 5) as usize);
        let stream = chat_request(&key, &streamed(chat("x\n#sim tokens=200")));
        let mut statuses = at_once(&h, 50, &stream);
        for _ in 0..12 {
            statuses.extend(at_once(&h, 8, &chat_request(&key, &chat("x\n#sim tokens=5"))));
        }
        let small = statuses.iter().filter(|status| **status == 200).count();
        for bytes in [MIB, 8 * MIB] {
            for _ in 0..3 {
                statuses.extend(at_once(&h, 8, &chat_request(&key, &chat(&text(bytes)))));
            }
        }
        let wrong = statuses.iter().filter(|status| ![0, 200, 413, 503].contains(*status)).count();
        assert_eq!(wrong, 0, "{limit} MiB: {statuses:?}");
        assert!(small >= 96 && statuses.iter().any(|status| [413, 503].contains(status)), "{limit} MiB: {statuses:?}");
        assert!(!h.gateway.has_ended(), "{limit} MiB: killed");
        let slow = slow_readers(&h, &key);
        std::thread::sleep(UNREAD);
        assert!(!h.gateway.has_ended(), "{limit} MiB: killed by clients that do not read");
        drop(slow);
        let small = chat_request(&key, &chat("x\n#sim tokens=1"));
        wait_for("the slow clients are gone", || (at_once(&h, 1, &small) == [200]).then_some(()));
        assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
        assert_eq!(h.chat(&key, &chat("x\n#sim tokens=1")).status(), 200);
        let status = fs::read_to_string(format!("/proc/{}/status", h.gateway.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        println!("{limit} MiB{}: at most {} KiB resident", if group.is_some() { "" } else { " (no cgroup)" }, peak);
        assert!(group.is_some() || peak << 10 <= limit * MIB, "{limit} MiB: {peak} KiB resident");
        assert!(h.gateway.stop("TERM").success());
        assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
    }
}
