//! A waiting gateway is idle: no state of a connection may keep the event loop busy, and temporary memory is released.

use super::client::{Client, get, request};
use super::harness::{Harness, Setup, bearer, chat, chat_request, streamed, with};
use super::process::wait_for;
use std::fs;
use std::time::Duration;

/// Returns the ticks of CPU time (10 ms each) that the gateway uses within a second.
fn ticks(h: &Harness) -> u64 {
    let used = || {
        let text = fs::read_to_string(format!("/proc/{}/stat", h.gateway.id())).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    used() - before
}

#[track_caller]
fn is_quiet(h: &Harness, when: &str) {
    // A busy loop would show in every second; CPU time that the machine charges for other reasons does not.
    let mut seen = Vec::new();
    let quiet = (0..5).any(|_| {
        seen.push(ticks(h));
        seen[seen.len() - 1] <= 15
    });
    assert!(quiet, "{when}: {seen:?} ticks of 10 ms in a second");
}

#[test]
fn waiting_uses_no_cpu_time() {
    let h = Harness::usual();
    let key = h.key();
    is_quiet(&h, "no client is connected");

    let mut idle: Vec<Client> = (0..300).map(|_| h.client()).collect();
    for client in &mut idle {
        client.ask(&request("GET", "/", &[]));
    }
    is_quiet(&h, "three hundred idle connections");

    let mut half = h.client();
    half.send(&chat_request(&key, &chat("x"))[..100]);
    is_quiet(&h, "half a request");

    let mut stalled = h.client();
    stalled.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=50 stall_after=3"))));
    assert_eq!(stalled.head().unwrap().status, 200);
    is_quiet(&h, "a provider that says nothing more");

    let mut slow = h.client();
    slow.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=1000000"))));
    assert_eq!(slow.head().unwrap().status, 200);
    wait_for("the stream to stall", || {
        let before = h.count("completion_tokens");
        std::thread::sleep(Duration::from_millis(300));
        (h.count("completion_tokens") == before).then_some(())
    });
    is_quiet(&h, "a client that reads nothing");

    let mut piling = h.client();
    piling.send(&chat_request(&key, &chat("x\n#sim stall_head")));
    piling.socket.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let more = request("GET", "/v1/quota", &[("authorization", &bearer(&key))]);
    let _ = std::io::Write::write_all(&mut piling.socket, &more.repeat(2000));
    is_quiet(&h, "a client that sends more than is taken");
}

/// Voluntary context switches of all threads of the gateway.
fn woken(h: &Harness) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", h.gateway.id())).unwrap().flatten();
    let status = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let count = |status: String| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    status.filter_map(count).sum()
}

/// Threads that have been busy must not poll for ever while there is a request now and then.
#[test]
fn one_request_a_second_wakes_threads_at_most_ten_times_also_after_a_burst() {
    let flash = "url = \"sqlite:tollgate.db\"\ncommit_every = \"10s\"";
    for store in [String::new(), flash.to_owned()] {
        let h = Harness::start(&Setup { store, ..Setup::default() });
        let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
        let mut client = h.client();
        let mut ask = |pause: Duration| {
            assert_eq!(client.ask(&chat_request(&key, &body)).status(), 200);
            std::thread::sleep(pause);
        };
        for burst in [0, 200] {
            (0..burst).for_each(|_| ask(Duration::ZERO));
            for pause in [Duration::from_secs(1), Duration::from_secs(2)] {
                let before = woken(&h);
                (0..6).for_each(|_| ask(pause));
                let a_second = (woken(&h) - before) / (6 * pause.as_secs());
                assert!(a_second <= 10, "{a_second} a second every {pause:?} after {burst} requests");
            }
        }
    }
}

#[test]
fn connections_beyond_the_limit_use_no_cpu_time() {
    let h = Harness::start(&Setup { server: "max_connections = 10", ..Setup::default() });
    let crowd: Vec<Client> = (0..100).map(|_| h.client()).collect();
    is_quiet(&h, "ninety connections too many");
    drop(crowd);
    wait_for("room", || get(h.at, "/v1/quota").ok().filter(|answer| answer.status() == 401));
}

#[test]
fn memory_of_large_bodies_is_released() {
    let h = Harness::usual();
    let key = h.key();
    let request = chat_request(&key, &with(chat(&"x".repeat(5 << 20)), "max_tokens", 5));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = h.client();
                for _ in 0..4 {
                    let answer = client.ask(&request);
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                }
            });
        }
    });
    // The allocator itself may keep what was in use at once, but not the eighty megabytes of all bodies.
    let mut seen = Vec::new();
    let is_released = (0..60).any(|_| {
        seen.push(h.gateway.resident() >> 20);
        std::thread::sleep(Duration::from_secs(1));
        seen[seen.len() - 1] < 48
    });
    assert!(is_released, "resident: {seen:?} MiB");
}
