//! An event loop with more work than one iteration can do, and one whose process has no descriptor left.

use super::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Type};
use std::sync::mpsc::sync_channel;

/// Other connections' bytes must not delay the report of an established dial, whose timeout is running.
#[test]
fn established_dial_is_reported_before_waiting_bytes() {
    let world = World::new();
    let mut clients: Vec<_> = (0..20).map(|_| world.client()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (stand, until) = channel();
    world.order(Order::Stand(until));
    clients.iter_mut().for_each(|(socket, _)| socket.write_all(b"x").unwrap());
    world.order(Order::Dwell(limits::TURN_TIME));
    let conn = Conn { side: Side::Upstream, slot: 0, generation: 0 };
    world.order(Order::Act(Action::Dial { conn, addr: listener.local_addr().unwrap(), authority: None, tunnel: None }));
    drop(stand);
    // On a busy machine the kernel takes time to connect. Events until then do not count.
    listener.accept().unwrap();
    let early: Vec<_> = world.heard.try_iter().collect();
    let (mut seen, mut before) = (0, 0);
    for (number, heard) in early.iter().cloned().chain(std::iter::repeat_with(|| world.next())).enumerate() {
        if heard == Heard::Reply(Reply::Dialed(conn)) {
            break;
        }
        assert!(matches!(heard, Heard::Bytes(..)), "{heard:?}");
        seen += 1;
        before += u32::from(number >= early.len());
    }
    // One event in the iteration that dials, one in the iteration that finds the connection established, and one for
    // the delay of this thread.
    assert!(before <= 3, "{before} of 20 came first");
    (seen..20).for_each(|_| assert!(matches!(world.next(), Heard::Bytes(..))));
}

/// There may be many connections that always have more to read, and each of their reads may take long.
#[test]
fn a_small_request_does_not_wait_for_a_round_over_all_bulk_senders() {
    const BUSY: usize = 40;
    let world = World::new();
    let (mut light, conn) = world.client();
    let mut busy: Vec<_> = (0..BUSY).map(|_| world.client()).collect();
    let stand = || {
        let (stand, until) = channel();
        world.order(Order::Stand(until));
        stand
    };
    world.order(Order::Dwell(limits::TURN_TIME));
    let first = stand();
    for (socket, _) in &mut busy {
        socket.set_nonblocking(true).unwrap();
        let sent: usize = (0..4).filter_map(|_| socket.write(&[b'x'; limits::IO_SLICE]).ok()).sum();
        assert!(sent >= 2 * limits::IO_SLICE, "{sent}");
    }
    drop(first);
    (0..BUSY).for_each(|_| assert!(matches!(world.next(), Heard::Bytes(..))));
    let second = stand();
    light.write_all(b"y").unwrap();
    let is_light = |heard: &Heard| matches!(heard, Heard::Bytes(from, _) if *from == conn);
    let quiet = Duration::from_millis(100);
    let early = std::iter::from_fn(|| world.heard.recv_timeout(quiet).ok()).filter(is_light).count();
    drop(second);
    let before = std::iter::repeat_with(|| world.next()).take_while(|heard| !is_light(heard));
    assert!(early > 0 || before.count() <= 3);
}

/// Bytes sent before the request is written cannot be the answer to it.
#[test]
fn bytes_of_a_provider_are_read_before_a_request_is_written_to_it() {
    let world = World::new();
    let (mut client, from) = world.client();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = Conn { side: Side::Upstream, slot: 0, generation: 0 };
    world.order(Order::Act(Action::Dial { conn, addr: listener.local_addr().unwrap(), authority: None, tunnel: None }));
    assert_eq!(world.next(), Heard::Reply(Reply::Dialed(conn)));
    let (mut provider, _) = listener.accept().unwrap();
    // The iteration ends when the client has been served.
    world.order(Order::Dwell(limits::TURN_TIME));
    let (met, first) = sync_channel(0);
    let (stand, until) = channel();
    world.order(Order::Stand(first));
    world.order(Order::Stand(until));
    met.send(()).unwrap();
    client.write_all(b"x").unwrap();
    provider.write_all(b"y").unwrap();
    world.order(Order::Send(conn, b"z".to_vec()));
    drop(stand);
    let heard = [world.next(), world.next(), world.next()];
    let at = |wanted: &Heard| heard.iter().position(|heard| heard == wanted).expect("all of them");
    assert!(heard.contains(&Heard::Bytes(from, b"x".to_vec())));
    assert!(at(&Heard::Bytes(conn, b"y".to_vec())) < at(&Heard::Drained(conn)), "{heard:?}");
}

/// A core names a connection for each piece that it appends. If writing to a client takes several iterations, the work
/// must not be multiplied by the number of pieces.
#[test]
fn pieces_for_one_connection_are_flushed_together() {
    const PIECES: usize = 2000;
    let world = World::new();
    let (mut socket, conn) = world.client();
    let (stand, until) = channel();
    world.order(Order::Stand(until));
    world.order(Order::Send(conn, vec![b'x'; 40 * limits::IO_SLICE]));
    (0..PIECES).for_each(|_| world.order(Order::Send(conn, vec![b'x'])));
    drop(stand);
    let mut got = vec![0; 40 * limits::IO_SLICE + PIECES];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(world.next(), Heard::Drained(conn));
    let (asked, turns) = (world.asked.load(Ordering::Relaxed), world.turns.load(Ordering::Relaxed));
    // Twice in the rounds of each iteration, and once for each piece.
    let most = PIECES as u64 + 2 * (limits::ROUNDS_PER_TURN as u64) * (turns + 1);
    assert!(asked <= most, "{asked} flushes in {turns} turns");
}

/// The whole process runs out of descriptors, so this test starts a separate one.
#[test]
fn a_loop_without_descriptors_pauses_and_recovers() {
    let name = "io::reactor::tests::overload::without_descriptors";
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
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    // The sockets have their descriptors already. All others are used up before they connect.
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
