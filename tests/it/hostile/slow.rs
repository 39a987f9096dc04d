//! Deliberately slow clients.

use super::rig::{Gate, Rig, chat, read_to_end};
use super::table::{Attack, honest, resident, status};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const HASTY: &str =
    "header_timeout = \"1s\"\nbody_timeout = \"1s\"\nwrite_stall = \"1s\"\nkeepalive_timeout = \"1s\"\n";

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![
        Attack {
            name: "500 heads, a byte each 100 ms",
            bound: "closed by header_timeout (here 1 s), honest clients are served",
            server: HASTY,
            run: slow_heads,
        },
        Attack {
            name: "500 silent connections",
            bound: "closed by header_timeout (here 1 s)",
            server: HASTY,
            run: silent,
        },
        Attack {
            name: "100 bodies of 1 MiB, a byte each 100 ms",
            bound: "408 after body_timeout (here 1 s) at less than 16 KiB/s; memory only for received bytes",
            server: HASTY,
            run: slow_bodies,
        },
        Attack {
            name: "100 bodies announced with expect: 100-continue and never sent",
            bound: "408 after body_timeout (here 1 s)",
            server: HASTY,
            run: never_continued,
        },
        Attack {
            name: "100 unread streams of 4 MiB",
            bound: "256 KiB each, closed by write_stall (here 1 s), settled",
            server: "write_stall = \"1s\"\n",
            run: slow_readers,
        },
        Attack {
            name: "50 streams, read one byte each 50 ms",
            bound: "256 KiB each; the provider is slowed down",
            server: "",
            run: trickling_readers,
        },
        Attack {
            name: "endless pipelined requests, unread responses",
            bound: "256 KiB buffered, closed by write_stall (here 1 s)",
            // All other timeouts are longer than the test waits.
            server: "write_stall = \"1s\"\nheader_timeout = \"120s\"\nkeepalive_timeout = \"120s\"\n",
            run: pipelined,
        },
    ]
};

fn many(gate: &Gate, count: usize, said: &str) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = gate.connect();
        stream.write_all(said.as_bytes()).unwrap();
        stream
    };
    (0..count).map(open).collect()
}

/// Opens a connection with small kernel buffers, so that unread bytes soon block the gateway.
fn narrow(gate: &Gate) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&SockAddr::from(gate.clients)).unwrap();
    TcpStream::from(socket)
}

/// Lets every client send one more byte each 100 ms until `over`. Returns the worst latency of an honest client in the
/// meantime.
fn drip(rig: &Rig, gate: &Gate, clients: &mut [TcpStream], over: Duration) -> Duration {
    let (began, mut worst) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < over {
        for client in clients.iter_mut() {
            let _ = client.write_all(b"a");
        }
        let asked = Instant::now();
        assert_eq!(status(&gate.ask(&honest(&rig.key))), 200);
        worst = worst.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    worst
}

fn ends(clients: &mut [TcpStream], expected: u16) -> usize {
    let mut count = 0;
    for client in clients {
        let answer = read_to_end(client);
        assert!([expected, 0].contains(&status(&answer)), "{answer}");
        count += usize::from(status(&answer) == expected);
    }
    count
}

fn slow_heads(rig: &Rig, gate: &mut Gate) -> String {
    let mut clients = many(gate, 500, "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-slow: ");
    let worst = drip(rig, gate, &mut clients, Duration::from_millis(1500));
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    let refused = ends(&mut clients, 408);
    format!("{refused} got 408, the others were closed; slowest honest response {} ms", worst.as_millis())
}

fn silent(rig: &Rig, gate: &mut Gate) -> String {
    let began = Instant::now();
    let mut clients = many(gate, 500, "");
    assert_eq!(status(&gate.ask(&honest(&rig.key))), 200);
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    assert!(clients.iter_mut().all(|client| read_to_end(client).is_empty()));
    format!("all closed after {} ms", began.elapsed().as_millis())
}

fn slow_bodies(rig: &Rig, gate: &mut Gate) -> String {
    let head = chat(&rig.key, "small", false, "x");
    let head = head.replacen(head.split_once("content-length: ").unwrap().1, "1048576\r\n\r\n{", 1);
    let before = resident(gate);
    let mut clients = many(gate, 100, &head);
    let worst = drip(rig, gate, &mut clients, Duration::from_millis(2500));
    let grown = resident(gate).saturating_sub(before);
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    let refused = ends(&mut clients, 408);
    assert!(grown < 20_000, "{grown} kB for 100 declared megabytes");
    format!(
        "{refused} got 408; {grown} kB more for 100 announced MiB; slowest honest response {} ms",
        worst.as_millis()
    )
}

fn never_continued(rig: &Rig, gate: &mut Gate) -> String {
    let head = chat(&rig.key, "small", false, "x");
    let head = &head[..head.find("content-length").unwrap()];
    let head = format!("{head}content-length: 1000\r\nexpect: 100-continue\r\n\r\n");
    let mut clients = many(gate, 100, &head);
    assert_eq!(status(&gate.ask(&honest(&rig.key))), 200);
    for client in &mut clients {
        let said = read_to_end(client);
        let refusal = said.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or_else(|| panic!("{said}"));
        assert_eq!(status(refusal), 408, "{said}");
    }
    "100 continued and refused 408".to_string()
}

fn slow_readers(rig: &Rig, gate: &mut Gate) -> String {
    let request = chat(&rig.key, "small", true, "#sim tokens=20000");
    let before = resident(gate);
    let mut clients: Vec<TcpStream> = (0..100).map(|_| narrow(gate)).collect();
    clients.iter_mut().for_each(|client| client.write_all(request.as_bytes()).unwrap());
    let mut most = 0;
    gate.until("all connections are cut", |gate| {
        most = most.max(gate.metric("tollgate_buffered_bytes"));
        gate.metric("tollgate_client_connections") == 0
    });
    gate.until("all requests are settled", |gate| gate.log().matches("\"stream\":true,\"status\":499").count() == 100);
    let grown = resident(gate).saturating_sub(before);
    drop(clients);
    assert!(most <= 100 * 256 * 1024, "{most} bytes are buffered");
    format!("at most {} KiB buffered each ({grown} kB in all); all closed and settled", most / 1024 / 100)
}

fn trickling_readers(rig: &Rig, gate: &mut Gate) -> String {
    let mut clients = many(gate, 50, &chat(&rig.key, "small", true, "#sim tokens=20000"));
    let (began, mut most) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(2) {
        for client in &mut clients {
            client.read_exact(&mut [0]).unwrap();
        }
        most = most.max(gate.metric("tollgate_buffered_bytes"));
        assert_eq!(status(&gate.ask(&honest(&rig.key))), 200);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(most <= 50 * 256 * 1024, "{most} bytes are buffered");
    drop(clients);
    gate.until("all clients have left", |gate| gate.metric("tollgate_client_connections") == 0);
    format!("at most {} KiB buffered each", most / 1024 / 50)
}

fn pipelined(rig: &Rig, gate: &mut Gate) -> String {
    let request = format!("GET /v1/models HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n\r\n", rig.key);
    let mut client = narrow(gate);
    client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let (all, mut sent) = (request.repeat(1_000), 0);
    // More than the kernel buffers in both directions. The gateway stops reading before.
    while sent < 256 << 20
        && let Ok(count @ 1..) = client.write(&all.as_bytes()[sent % all.len()..])
    {
        sent += count;
    }
    let most = gate.metric("tollgate_buffered_bytes");
    assert!(most < 256 * 1024, "{most} bytes are buffered");
    gate.until("the client is cut", |gate| gate.metric("tollgate_client_connections") == 0);
    format!("{} requests sent, {} KiB buffered, then closed", sent / request.len(), most / 1024)
}
