//! Clients that come in numbers.

use super::rig::{Gate, PATIENCE, Rig, chat, get, read_until, rest};
use super::table::{Attack, descriptors, honest, resident, status, work_at_rest};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![
        Attack { name: "1,000 connects at once", bound: "all answered: the backlog is 1024", server: "", run: at_once },
        Attack {
            name: "10,000 idle connections, kept alive after a request each (as many as descriptors allow)",
            bound: "no storage for an idle connection; no work",
            server: "header_timeout = \"1h\"\nkeepalive_timeout = \"1h\"\n",
            run: idle,
        },
        Attack {
            name: "300 connections where max_connections is 100",
            bound: "100 served, 32 told 503, the rest closed at once; health is answered",
            server: "header_timeout = \"1h\"\nmax_connections = 100\n",
            run: too_many,
        },
        Attack {
            name: "200 connections from one host where max_connections_per_ip is 10",
            bound: "10 served, 4 told 503, the rest closed at once",
            server: "header_timeout = \"1h\"\nmax_connections_per_ip = 10\n",
            run: one_host,
        },
        Attack {
            name: "3,000 connections that reset at once, 1,000 in the middle of a stream",
            bound: "nothing is left behind: descriptors, buffers, holds",
            server: "",
            run: resets,
        },
        Attack {
            name: "2,000 guessed keys",
            bound: "401 each, all the same, cheap: no look-up before the checksum",
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
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = socket.write_all(request.as_bytes()) {
            assert!(matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::WouldBlock), "{error}");
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for socket in &mut sockets {
        let (mut said, deadline) = (Vec::new(), Instant::now() + PATIENCE);
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

fn idle(rig: &Rig, gate: &mut Gate) -> String {
    let room = rlimit::getrlimit(rlimit::Resource::NOFILE).unwrap().0;
    let count = 9_900.min((room as usize).saturating_sub(200));
    // What the first connections cost once (pages of tables) is not what one more costs.
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
    let work = work_at_rest(gate);
    assert!(gate.metric("tollgate_buffered_bytes") < 64 * 1024);
    assert!(each < 1024, "{each} bytes for an idle connection");
    assert!(work < 10, "{work} hundredths of a second of work in a second for nobody");
    let asked = Instant::now();
    assert_eq!(status(&gate.ask(&honest(&rig.key))), 200);
    let took = asked.elapsed().as_millis();
    drop(clients);
    gate.until("all are gone", |gate| gate.metric("tollgate_client_connections") == 0);
    format!("{count} held: {each} bytes each, {} ms of work in a second; an honest answer took {took} ms", work * 10)
}

fn too_many(rig: &Rig, gate: &mut Gate) -> String {
    let mut clients: Vec<TcpStream> = (0..300).map(|_| gate.connect()).collect();
    gate.until("all are seen", |gate| gate.metric("tollgate_turned_away_total") >= 200);
    let mut seen = [0; 3];
    for client in clients.iter_mut().rev() {
        let _ = client.write_all(get(&rig.key, "/v1/quota").as_bytes());
        let answer = rest(client);
        match status(&answer) {
            200 => seen[0] += 1,
            503 => {
                assert!(answer.contains("retry-after: 1"));
                seen[1] += 1;
            }
            _ => seen[2] += 1,
        }
    }
    assert_eq!(seen, [100, 32, 168]);
    format!("{} served, {} told 503, {} closed", seen[0], seen[1], seen[2])
}

fn one_host(rig: &Rig, gate: &mut Gate) -> String {
    let mut clients: Vec<TcpStream> = (0..200).map(|_| gate.connect()).collect();
    gate.until("all are seen", |gate| gate.metric("tollgate_turned_away_total") >= 190);
    let mut seen = [0; 3];
    for client in clients.iter_mut().rev() {
        let _ = client.write_all(get(&rig.key, "/v1/quota").as_bytes());
        match status(&rest(client)) {
            200 => seen[0] += 1,
            503 => seen[1] += 1,
            _ => seen[2] += 1,
        }
    }
    assert_eq!(seen, [10, 4, 186]);
    format!("{} served, {} told 503, {} closed", seen[0], seen[1], seen[2])
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
    gate.until("nothing is left", |gate| {
        let left = ["client_connections", "upstream_connections", "open_holds", "buffered_bytes"];
        // The question itself is asked over one, and holds a block.
        left.iter().map(|name| gate.metric(&format!("tollgate_{name}"))).sum::<u64>() <= 2 * 4096
            && gate.metric("tollgate_upstream_connections") == 0
    });
    // One more, should one of those that asked still have been there.
    gate.until("the descriptors are back", |gate| descriptors(gate) <= before + 1);
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
            1 => format!("{}x", &rig.key[..rig.key.len() - 1]),
            2 => "x".repeat(number),
            _ => rig.key.to_uppercase(),
        };
        client
            .write_all(format!("GET /v1/quota HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {guess}\r\n\r\n").as_bytes())
            .unwrap();
        let answer = read_until(&mut client, "}}");
        assert_eq!(status(&answer), 401);
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        answers.insert(body[..body.find("req_").unwrap()].to_string());
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    format!("2,000 × 401 on one connection, {} µs each, one text", began.elapsed().as_micros() / 2000)
}
