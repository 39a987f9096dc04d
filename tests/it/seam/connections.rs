//! Connections to providers follow demand: a steady load opens connections only at its beginning, and those that are no
//! longer needed are closed.

use super::rig::{Rig, large_answer, request};

/// Numbers of clients that always have a request.
const LEVELS: [usize; 4] = [16, 64, 256, 1000];
/// Requests of each client after its first one.
const ROUNDS: usize = 2;

/// Returns a gateway whose limits are those of the default configuration, for keys without limits.
fn rig() -> Rig {
    Rig::with(1, &[("server", "max_buffered = \"1GiB\""), ("plan team", "concurrency = 0")])
}

/// Sends a request from each of these clients.
fn ask(rig: &mut Rig, clients: impl Iterator<Item = usize>) {
    for client in clients {
        let (head, body) = request(&rig.keys.texts["k0"], 300, false);
        rig.send(&format!("c{client:04}"), format!("{head}{body}"));
    }
}

/// Number of connections to providers that have ever been opened.
fn opened(rig: &Rig) -> usize {
    rig.world.ends.keys().filter(|label| label.starts_with('u')).count()
}

/// Number of connections to providers that are open.
fn open(rig: &Rig) -> usize {
    rig.world.ends.iter().filter(|(label, end)| label.starts_with('u') && end.closed.is_none()).count()
}

#[test]
fn steady_load_opens_connections_only_at_its_beginning() {
    let answer = large_answer(0);
    for level in LEVELS {
        let mut rig = rig();
        ask(&mut rig, 0..level);
        let begun = opened(&rig);
        assert_eq!(begun, level);
        // All connections are idle at once before each further round.
        for _ in 0..ROUNDS {
            rig.asked().iter().for_each(|label| rig.answer(label, &answer));
            assert!(rig.asked().is_empty());
            ask(&mut rig, 0..level);
        }
        assert_eq!(opened(&rig), begun, "{level} clients: a request waited for a new connection");
    }
}

#[test]
fn connections_that_are_no_longer_needed_are_closed() {
    let answer = large_answer(0);
    let mut rig = rig();
    ask(&mut rig, 0..100);
    rig.asked().iter().for_each(|label| rig.answer(label, &answer));
    // A few clients go on for longer than `pool_idle_timeout`.
    for _ in 0..7 {
        rig.wait(10_000);
        ask(&mut rig, 0..5);
        rig.asked().iter().for_each(|label| rig.answer(label, &answer));
    }
    assert_eq!((open(&rig), opened(&rig)), (5, 100));
}
