//! Ends of connections, half and complete, and the bytes that are still read and written afterwards.

use super::*;

#[test]
fn finished_connection_sends_a_fin_and_still_reads() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    world.order(Order::Send(conn, b"the last word".to_vec()));
    assert_eq!(world.next(), Heard::Drained(conn));
    world.order(Order::Act(Action::Finish(conn)));
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"the last word");
    socket.write_all(b"more").unwrap();
    assert_eq!(world.next(), Heard::Bytes(conn, b"more".to_vec()));
    drop(socket);
    assert_eq!(world.next(), Heard::Closed(conn, Ending::Fin));
    world.close(conn, Shut::Clean);
}

#[test]
fn abort_sends_a_reset() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    world.close(conn, Shut::Abort);
    assert_eq!(socket.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn data_and_fin_together_are_both_reported_for_a_client() {
    for round in 0..50 {
        let world = World::new();
        // The client connects, writes and closes before the loop can see the connection in between.
        let mut socket = StdStream::connect(world.addr).unwrap();
        socket.write_all(b"GET /").unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let Heard::Accepted(conn) = world.next() else { panic!("round {round}") };
        assert_eq!(world.next(), Heard::Bytes(conn, b"GET /".to_vec()), "round {round}");
        assert_eq!(world.next(), Heard::Closed(conn, Ending::Fin), "round {round}");
    }
}

#[test]
fn data_and_fin_together_are_both_reported_for_an_upstream() {
    for round in 0..50 {
        let world = World::new();
        let (mut socket, conn) = world.upstream();
        socket.write_all(b"HTTP/1.1 200 OK").unwrap();
        drop(socket);
        assert_eq!(world.next(), Heard::Bytes(conn, b"HTTP/1.1 200 OK".to_vec()), "round {round}");
        assert_eq!(world.next(), Heard::Closed(conn, Ending::Fin), "round {round}");
    }
}

#[test]
fn server_that_answers_and_ends_early_is_read_completely() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = Conn { side: Side::Upstream, slot: 3, generation: 9 };
    world.order(Order::Act(Action::Dial { conn, addr: listener.local_addr().unwrap(), authority: None, tunnel: None }));
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(b"503").unwrap();
    drop(socket);
    assert_eq!(world.next(), Heard::Reply(Reply::Dialed(conn)));
    assert_eq!(world.next(), Heard::Bytes(conn, b"503".to_vec()));
    assert_eq!(world.next(), Heard::Closed(conn, Ending::Fin));
}

#[test]
fn half_closed_client_can_still_be_answered() {
    let world = World::new();
    let (mut socket, conn) = world.client();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(world.next(), Heard::Closed(conn, Ending::Fin));
    world.order(Order::Send(conn, b"bye".to_vec()));
    assert_eq!(world.next(), Heard::Drained(conn));
    world.close(conn, Shut::Clean);
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"bye");
}

#[test]
fn end_is_reported_while_the_core_does_not_read() {
    for side in [Side::Client, Side::Upstream] {
        for (ends, how) in [(drop as fn(StdStream), Ending::Fin), (reset, Ending::Broken)] {
            let world = World::new();
            let (socket, conn) = if side == Side::Client { world.client() } else { world.upstream() };
            world.want(false);
            ends(socket);
            assert_eq!(world.next(), Heard::Closed(conn, how), "{side:?}");
            assert!(world.is_silent(30), "the end was reported twice");
        }
    }
}

#[test]
fn client_that_ends_behind_unread_bytes_has_left() {
    for (ends, how) in [(drop as fn(StdStream), Ending::Fin), (reset, Ending::Broken)] {
        let world = World::new();
        let (mut socket, conn) = world.client();
        world.want(false);
        socket.write_all(b"pipelined").unwrap();
        assert!(world.is_silent(30));
        ends(socket);
        assert_eq!(world.next(), Heard::Closed(conn, how));
        world.order(Order::Want(true));
        assert!(world.is_silent(30), "bytes after the end");
    }
}

#[test]
fn unread_bytes_of_an_upstream_are_delivered_before_its_end() {
    for (ends, how) in [(drop as fn(StdStream), Ending::Fin), (reset, Ending::Broken)] {
        let world = World::new();
        let (mut socket, conn) = world.upstream();
        world.want(false);
        socket.write_all(b"the answer").unwrap();
        ends(socket);
        assert!(world.is_silent(50));
        world.order(Order::Want(true));
        assert_eq!(world.next(), Heard::Bytes(conn, b"the answer".to_vec()));
        assert_eq!(world.next(), Heard::Closed(conn, how));
    }
}
