//! Attacks by large numbers of clients.

use super::rig::{Gate, Rig, TIMEOUT, chat, connect, get, read_until};
use super::table::{Attack, descriptors, honest, idle_ticks, resident, status};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![
        Attack {
            name: "1,000 concurrent connects",
            bound: "all answered: the backlog is 1024",
            server: "",
            run: at_once,
        },
        Attack {
            name: "10,000 idle connections, kept alive after a request each (as many as descriptors allow)",
            bound: "no buffers and no work for an idle connection",
            server: "header_timeout = \"1h\"\nkeepalive_timeout = \"1h\"\n",
            run: idle,
        },
        Attack {
            name: "300 connections with a key, max_connections = 100",
            bound: "100 kept, idle ones are closed for new ones; health is answered",
            server: "max_connections = 100\n",
            run: too_many,
        },
        Attack {
            name: "200 connections with a key from one host, max_connections_per_ip = 10",
            bound: "10 kept, the others get 503",
            server: "max_connections_per_ip = 10\n",
            run: one_host,
        },
        Attack {
            name: "10,040 connections without a key, `GET /` on each (as many as descriptors allow)",
            bound: "a key on a new connection is served within 50 ms, 200 of 200",
            server: "header_timeout = \"1h\"\nkeepalive_timeout = \"1h\"\nlog = \"failures\"\n",
            run: strangers,
        },
        Attack {
            name: "three threads that connect to the admin listener and send nothing",
            bound: "health, metrics and changes with a token are answered, 300 of 300",
            server: "admin_token = { file = \"read.token\" }\nadmin_write_token = { file = \"write.token\" }\n",
            run: admin_strangers,
        },
        Attack {
            name: "requests without a key, pipelined for 3 s",
            bound: "100 log lines a second, and one with the number of suppressed lines",
            server: "",
            run: log_flood,
        },
        Attack {
            name: "3,000 connections that reset immediately, 1,000 in mid-stream",
            bound: "no descriptor, buffer or reservation is leaked",
            server: "",
            run: resets,
        },
        Attack {
            name: "2,000 guessed keys",
            bound: "401 each with little work: no lookup before the checksum, and one text for all words of a key's form",
            server: "",
            run: guesses,
        },
    ]
};

fn at_once(rig: &Rig, gate: &mut Gate) -> String {
    let began = Instant::now();
    let mut sockets: Vec<mio::net::TcpStream> =
        (0..1000).map(|_| mio::net::TcpStream::connect(gate.clients).unwrap()).collect();
    let request = get(&rig.key, "/v1/quota");
    for socket in &mut sockets {
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = socket.write_all(request.as_bytes()) {
            assert!(matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::WouldBlock), "{error}");
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for socket in &mut sockets {
        let (mut said, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
        loop {
            match socket.read(&mut [0; 4096]) {
                Ok(0) => break,
                Ok(count) => said.push(count),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(Instant::now() < deadline);
        }
        assert!(!said.is_empty());
    }
    format!("all answered within {} ms", began.elapsed().as_millis())
}

/// Returns the descriptor limit of this process.
fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn idle(rig: &Rig, gate: &mut Gate) -> String {
    let room = descriptor_limit();
    let count = 9_900.min((room as usize).saturating_sub(200));
    // The first connections also pay one-time costs (pages of tables), which do not count.
    let mut clients: Vec<TcpStream> = Vec::with_capacity(count);
    let ask = format!("GET /v1/quota HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n\r\n", rig.key);
    let mut before = 0;
    for number in 0..count {
        let mut client = gate.connect();
        client.write_all(ask.as_bytes()).unwrap();
        read_until(&mut client, "\"reset_at\"");
        clients.push(client);
        if number == 100 {
            before = resident(gate);
        }
    }
    let each = (resident(gate) - before) as usize * 1024 / (count - 100);
    assert_eq!(gate.metric("tollgate_client_connections"), count as u64);
    let work = idle_ticks(gate);
    assert!(gate.metric("tollgate_buffered_bytes") < 64 * 1024);
    assert!(each < 1024, "{each} bytes per idle connection");
    assert!(work < 10, "{work} hundredths of a second of CPU time in an idle second");
    let asked = Instant::now();
    assert_eq!(status(&gate.ask(&honest(&rig.key))), 200);
    let took = asked.elapsed().as_millis();
    drop(clients);
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    format!("{count} open: {each} bytes each, {} ms of work in a second; an honest response took {took} ms", work * 10)
}

/// Sends `count` requests with a key, each on a new connection. Returns how many were served and kept, and how many got
/// 503.
fn crowd(rig: &Rig, gate: &Gate, count: usize) -> [usize; 2] {
    let ask = get(&rig.key, "/v1/quota").replacen("connection: close\r\n", "", 1);
    let (mut kept, mut refused) = (Vec::new(), 0);
    for _ in 0..count {
        let mut client = gate.connect();
        client.write_all(ask.as_bytes()).unwrap();
        let answer = read_until(&mut client, "}");
        match status(&answer) {
            200 => kept.push(client),
            503 => {
                assert!(answer.contains("retry-after: 1"));
                refused += 1;
            }
            other => panic!("{other}: {answer}"),
        }
    }
    let seen = [kept.len(), refused];
    drop(kept);
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    seen
}

fn too_many(rig: &Rig, gate: &mut Gate) -> String {
    let seen = crowd(rig, gate, 300);
    assert_eq!(seen, [300, 0]);
    let closed = gate.metric("tollgate_turned_away_total");
    assert!((200..=300).contains(&closed), "{closed}");
    format!("{} served, {closed} closed for new ones", seen[0])
}

fn one_host(rig: &Rig, gate: &mut Gate) -> String {
    let seen = crowd(rig, gate, 200);
    assert_eq!(seen, [10, 190]);
    format!("{} kept, {} got 503", seen[0], seen[1])
}

fn strangers(rig: &Rig, gate: &mut Gate) -> String {
    let room = descriptor_limit();
    let count = 10_040.min((room as usize).saturating_sub(300));
    let mut held: Vec<TcpStream> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stranger = gate.connect();
        stranger.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        held.push(stranger);
    }
    // With a low descriptor limit there are fewer clients.
    let most = 9_900.min(count as u64 * 9 / 10);
    gate.until("the connections are open", |gate| gate.metric("tollgate_client_connections") >= most);
    let mut took = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        assert_eq!(status(&gate.ask(&get(&rig.key, "/v1/models"))), 200);
        took.push(began.elapsed());
    }
    took.sort();
    let (median, slowest) = (took[100], took[199]);
    // A busy machine may be slower occasionally.
    assert!(median < Duration::from_millis(50) && slowest < Duration::from_secs(2), "{median:?} {slowest:?}");
    let (count, median, slowest) = (held.len(), median.as_millis(), slowest.as_millis());
    format!("200 of 200 with {count} connections, median {median} ms, slowest {slowest} ms")
}

fn admin_strangers(_: &Rig, gate: &mut Gate) -> String {
    let over = AtomicBool::new(false);
    let connects = AtomicU64::new(0);
    let [mut asked, mut answered] = [0; 2];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut held = VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    if let Ok(stream) = TcpStream::connect(gate.admin) {
                        connects.fetch_add(1, Ordering::Relaxed);
                        held.push_back(stream);
                    }
                    if held.len() > 200 {
                        held.pop_front();
                    }
                }
            });
        }
        let change = "POST /admin/v1/keys HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer a-token-that-writes\r\n\
                      content-length: 14\r\n\r\n{\"name\":\"new\"}";
        let metrics = "GET /metrics HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer a-token-that-reads\r\n\r\n";
        for _ in 0..100 {
            for request in ["GET /readyz HTTP/1.1\r\nhost: h\r\n\r\n", metrics, change] {
                asked += 1;
                let mut stream = connect(gate.admin);
                let sent = stream.write_all(request.as_bytes());
                let answer = sent.map_or(String::new(), |()| rest_of_first(&mut stream));
                answered += u32::from(status(&answer) == 200 || status(&answer) == 201);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(answered, asked, "beside {connects:?} connections");
    format!("{answered} of {asked} answered with {} connections", connects.into_inner())
}

/// Reads the beginning of an answer; empty if the connection was reset.
fn rest_of_first(stream: &mut TcpStream) -> String {
    let mut block = [0; 4096];
    let read = stream.read(&mut block).unwrap_or(0);
    String::from_utf8_lossy(&block[..read]).into_owned()
}

fn log_flood(_: &Rig, gate: &mut Gate) -> String {
    let mut stranger = gate.connect();
    let many = "GET /nothing HTTP/1.1\r\nhost: h\r\n\r\n".repeat(400);
    let (began, mut sent) = (Instant::now(), 0u64);
    let mut block = vec![0; 1 << 20];
    while began.elapsed() < Duration::from_secs(3) {
        stranger.write_all(many.as_bytes()).unwrap();
        let mut answers = Vec::new();
        while answers.windows(12).filter(|window| window == b"HTTP/1.1 404").count() < 400 {
            let read = stream_read(&mut stranger, &mut block);
            answers.extend_from_slice(&block[..read]);
        }
        sent += 400;
    }
    let seconds = began.elapsed().as_secs() + 2;
    gate.until("the suppressed lines are counted", |gate| gate.log().contains("\"event\":\"suppressed\""));
    std::thread::sleep(Duration::from_millis(1200));
    let log = gate.log();
    let (written, summaries) =
        (log.matches("\"status\":404").count() as u64, log.matches("\"suppressed\"").count() as u64);
    let counted: u64 = log
        .lines()
        .filter_map(|line| line.split_once("\"suppressed\",\"requests\":")?.1.trim_end_matches('}').parse::<u64>().ok())
        .sum();
    assert!(written <= 100 * seconds, "{written} log lines in {seconds} s");
    assert!(summaries <= seconds, "{summaries} lines that count the others in {seconds} s");
    assert_eq!(written + counted, gate.metric("tollgate_log_suppressed_total") + written);
    assert!(written + counted >= sent, "{written} and {counted} of {sent}");
    format!("{sent} requests, {written} lines, {counted} counted in {summaries} lines")
}

fn stream_read(stream: &mut TcpStream, block: &mut [u8]) -> usize {
    let read = stream.read(block).unwrap();
    assert!(read > 0, "the connection was closed");
    read
}

fn resets(rig: &Rig, gate: &mut Gate) -> String {
    let reset = |stream: &TcpStream| {
        let socket = socket2::SockRef::from(stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    };
    let before = descriptors(gate);
    for _ in 0..3000 {
        reset(&gate.connect());
    }
    for _ in 0..10 {
        let clients: Vec<TcpStream> = (0..100)
            .map(|_| {
                let mut client = gate.connect();
                client.write_all(chat(&rig.key, "small", true, "#sim tokens=100000 pace=100").as_bytes()).unwrap();
                client
            })
            .collect();
        for mut client in clients {
            read_until(&mut client, "chunk");
            reset(&client);
        }
    }
    gate.until("all resources are free", |gate| {
        let left = ["client_connections", "upstream_connections", "open_reservations", "buffered_bytes"];
        // The request for the metrics itself uses a connection and buffers.
        left.iter().map(|name| gate.metric(&format!("tollgate_{name}"))).sum::<u64>() <= 2 * 4096
            && gate.metric("tollgate_upstream_connections") == 0
    });
    // One descriptor more, in case a client of an earlier check is still connected.
    gate.until("the descriptors are free again", |gate| descriptors(gate) <= before + 1);
    let after = descriptors(gate);
    format!("{before} descriptors before, {after} after")
}

fn guesses(rig: &Rig, gate: &mut Gate) -> String {
    let mut client = gate.connect();
    let mut answers = std::collections::BTreeSet::new();
    let began = Instant::now();
    for number in 0..2000 {
        let guess = match number % 4 {
            0 => format!("tg_live_{number:050}"),
            // Another last character than the key has.
            1 => format!("{}{}", &rig.key[..rig.key.len() - 1], if rig.key.ends_with('x') { 'y' } else { 'x' }),
            2 => "x".repeat(number),
            _ => rig.key.to_uppercase(),
        };
        client
            .write_all(format!("GET /v1/quota HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {guess}\r\n\r\n").as_bytes())
            .unwrap();
        let answer = read_until(&mut client, "}}");
        assert_eq!(status(&answer), 401);
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        // Other words get another text, which shows nothing about the keys that exist.
        let is_malformed = !guess.starts_with("tg_live_") || guess.len() != rig.key.len();
        answers.insert((is_malformed, body[..body.find("req_").unwrap()].to_string()));
    }
    assert_eq!(answers.len(), 2, "{answers:?}");
    format!(
        "2,000 × 401 on one connection, {} µs each, with one text for all words of a key's form",
        began.elapsed().as_micros() / 2000
    )
}
