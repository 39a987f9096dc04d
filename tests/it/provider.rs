//! The simulated provider over real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::cli::provider::reactor;
use tollgate::simulator::SimulatorSettings;

fn start(settings: SimulatorSettings) -> SocketAddr {
    let listener = tollgate::io::listen::bind(([127, 0, 0, 1], 0).into(), false).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || reactor(listener, settings).unwrap().run());
    addr
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn request(text: &str, stream: bool) -> String {
    let body = format!(r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let length = body.len();
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Reads until the received text ends with `end`.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut all, mut block) = (Vec::new(), [0; 4096]);
    while !all.ends_with(end.as_bytes()) {
        let count = match stream.read(&mut block) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(count > 0, "ended after {:?}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&block[..count]);
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn pipelined_requests_are_answered_over_one_socket() {
    let mut stream = connect(start(SimulatorSettings::default()));
    stream.write_all((request("one #sim tokens=3", false) + &request("two", true)).as_bytes()).unwrap();
    let said = read_until(&mut stream, "data: [DONE]\n\n\r\n0\r\n\r\n");
    assert_eq!(said.matches("HTTP/1.1 200").count(), 2);
    assert!(said.contains(r#""content":"This answer was""#));
}

#[test]
fn paced_stream_takes_the_requested_time() {
    let mut stream = connect(start(SimulatorSettings { pace: 50, ..SimulatorSettings::default() }));
    let mut times = [(); 5].map(|()| {
        let begun = Instant::now();
        stream.write_all(request("#sim tokens=11", true).as_bytes()).unwrap();
        read_until(&mut stream, "0\r\n\r\n");
        begun.elapsed().as_millis()
    });
    times.sort();
    assert!(times[0] >= 200 && times[2] < 2000, "{times:?}");
}

#[test]
fn cut_and_reset_end_the_connection_as_named() {
    let addr = start(SimulatorSettings::default());
    let mut cut = connect(addr);
    cut.write_all(request("#sim cut_after=2", true).as_bytes()).unwrap();
    let mut all = String::new();
    cut.read_to_string(&mut all).unwrap();
    assert!(all.contains(" answer") && !all.ends_with("0\r\n\r\n"));
    let mut reset = connect(addr);
    reset.write_all(request("#sim reset_after=2", true).as_bytes()).unwrap();
    let error = reset.read_to_string(&mut String::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn disconnects_are_counted_and_long_answers_wait_for_slow_clients() {
    let addr = start(SimulatorSettings::default());
    let mut stream = connect(addr);
    stream.write_all(request("#sim tokens=200000", true).as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(50));
    read_until(&mut stream, "0\r\n\r\n");
    stream.write_all(request("#sim stall_after=1", true).as_bytes()).unwrap();
    read_until(&mut stream, "null}]}\n\n\r\n");
    drop(stream);
    let mut other = connect(addr);
    for _ in 0..2000 {
        other.write_all(b"GET /stats HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        if read_until(&mut other, "}").contains(r#""aborted":1"#) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the disconnect was not counted");
}
