//! A loop whose process has no descriptor left.

use super::*;
use socket2::{Domain, Type};

/// The whole process runs out of descriptors here, so it has to be one of its own.
#[test]
fn a_loop_without_descriptors_rests_and_recovers() {
    let name = "io::reactor::tests::exhausted::without_descriptors";
    let me = std::env::current_exe().unwrap();
    let run = std::process::Command::new(me).args(["--exact", name, "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
#[ignore = "run in a process of its own by the test above"]
fn without_descriptors() {
    let world = World::new();
    let addr = world.addr.into();
    let sockets: Vec<_> = (0..16).map(|_| socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let (_, hard) = rlimit::Resource::NOFILE.get().unwrap();
    rlimit::setrlimit(rlimit::Resource::NOFILE, 64, hard).unwrap();
    // The connections have their descriptors already; every other one is taken before they are made.
    let taken: Vec<_> = std::iter::from_fn(|| sockets[0].try_clone().ok()).collect();
    for socket in &sockets {
        socket.connect(&addr).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(world.heard.try_iter().count(), 0, "a connection found a descriptor");
    let (before, began) = (world.turns.load(Ordering::Relaxed), Clock::new());
    std::thread::sleep(Duration::from_millis(1000));
    let turns = world.turns.load(Ordering::Relaxed) - before;
    let tenths = began.mono().0 / 100_000;
    assert!((1..=2 * tenths).contains(&turns), "{turns} turns in {tenths} tenths of a second");
    drop(taken);
    for _ in &sockets {
        assert!(matches!(world.next(), Heard::Accepted(_)));
    }
}
