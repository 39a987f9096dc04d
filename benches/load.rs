//! The load generator of `scripts/bench`: N keep-alive connections, an exact number of requests, latency percentiles.
//! It opens and warms up its connections, prints `ready`, waits for a line on standard input, sends the requests, and
//! prints one JSON line. So a script can read the counters of a process before and after the requests. The generator
//! checks the status and length of every response, and counts events. With `--delays` it reports the age of stamped
//! events on arrival, measured while all streams run.

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "common/stamp.rs"]
mod stamp;

/// Wait until the last request is settled.
const SETTLED: Duration = Duration::from_millis(500);

struct Args {
    addr: SocketAddr,
    connections: usize,
    requests: usize,
    /// Requests per connection before `ready`.
    warm: usize,
    path: String,
    model: String,
    body_bytes: usize,
    stream: bool,
    /// True to send GET without a body.
    get: bool,
    /// The status that every answer must have.
    expect: String,
    keys: Vec<String>,
    /// Additional header fields, each with its line end.
    headers: String,
    /// Maximum number of concurrent requests; 0 for the number of connections.
    at_once: usize,
    /// Minimum time between the starts of two requests.
    gap: Duration,
    /// True to keep the connections open after the result, until standard input ends.
    hold: bool,
    /// CA certificates in PEM. If set, all connections use TLS, each with a full handshake.
    tls: Option<String>,
    /// True to measure the age of events.
    delays: bool,
}

fn args() -> Args {
    let mut all = Args {
        addr: "127.0.0.1:8080".parse().unwrap(),
        connections: 1,
        requests: 1000,
        warm: 10,
        path: "/v1/chat/completions".into(),
        model: "bench".into(),
        body_bytes: 1200,
        stream: false,
        get: false,
        expect: "200".into(),
        keys: vec!["none".into()],
        headers: String::new(),
        at_once: 0,
        gap: Duration::ZERO,
        hold: false,
        tls: None,
        delays: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{name} needs a value"));
        match name.as_str() {
            "--addr" => all.addr = value().parse().unwrap(),
            "--connections" => all.connections = value().parse().unwrap(),
            "--requests" => all.requests = value().parse().unwrap(),
            "--warm" => all.warm = value().parse().unwrap(),
            "--path" => all.path = value(),
            "--model" => all.model = value(),
            "--body-bytes" => all.body_bytes = value().parse().unwrap(),
            "--keys" => all.keys = std::fs::read_to_string(value()).unwrap().lines().map(str::to_owned).collect(),
            "--header" => all.headers += &(value() + "\r\n"),
            "--at-once" => all.at_once = value().parse().unwrap(),
            "--gap-us" => all.gap = Duration::from_micros(value().parse().unwrap()),
            "--stream" => all.stream = true,
            "--get" => all.get = true,
            "--expect" => all.expect = value(),
            "--hold" => all.hold = true,
            "--delays" => all.delays = true,
            "--tls" => all.tls = Some(value()),
            other => panic!("unknown argument {other}"),
        }
    }
    all
}

/// Returns a chat in several turns, in the API format of the path, of about the requested size, with the escapes of
/// code in a prompt.
fn body(args: &Args, stream: bool) -> String {
    if args.path.ends_with("/embeddings") {
        let frame = format!("{{\"model\":\"{}\",\"input\":\"\"}}", args.model);
        let text = "The heron waits in the shallow water and stands. ".repeat(1 + args.body_bytes / 49);
        let space = args.body_bytes.saturating_sub(frame.len());
        return frame.replace("\"\"}", &format!("\"{}\"}}", &text[..space]));
    }
    let responses = args.path.ends_with("/responses");
    let (turns, bound) = if responses { ("input", "max_output_tokens") } else { ("messages", "max_tokens") };
    let open = format!(
        "{{\"model\":\"{}\",\"{turns}\":[{{\"role\":\"system\",\"content\":\"You are a careful reviewer. Answer in \
         short sentences and name the line you mean.\"}},",
        args.model
    );
    let stream = if stream { ",\"stream\":true" } else { "" };
    let close = format!("],\"temperature\":0.2,\"{bound}\":256{stream}}}");
    let code = "fn next(&mut self) -> Option<u8> {\\n    let byte = self.bytes.get(self.at)?;\\n    \
                // \\\"quoted\\\"\\n    self.at += 1;\\n    Some(*byte)\\n}\\n";
    let mut turns = Vec::new();
    let mut length = open.len() + close.len();
    let mut role = "user";
    loop {
        let frame = format!("{{\"role\":\"{role}\",\"content\":\"\"}}").len() + 1;
        let space = args.body_bytes.saturating_sub(length + frame);
        if space < code.len() && !turns.is_empty() {
            break;
        }
        // A large body has turns of some kilobytes, a small one has turns of one piece of code.
        let pieces = (space / code.len()).clamp(1, 16);
        let text = code.repeat(pieces);
        length += frame + text.len();
        turns.push(format!("{{\"role\":\"{role}\",\"content\":\"{text}\"}}"));
        role = if role == "user" { "assistant" } else { "user" };
    }
    format!("{open}{}{close}", turns.join(","))
}

fn requests(args: &Args, stream: bool) -> Vec<Vec<u8>> {
    if args.get {
        let request = |key: &String| {
            let (path, host, more) = (&args.path, args.addr, &args.headers);
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n{more}\r\n").into_bytes()
        };
        return args.keys.iter().take(args.connections).map(request).collect();
    }
    let body = body(args, stream);
    let request = |key: &String| {
        format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
             accept: application/json\r\nuser-agent: load/1\r\n{}content-length: {}\r\n\r\n{body}",
            args.path,
            args.addr,
            args.headers,
            body.len()
        )
        .into_bytes()
    };
    args.keys.iter().take(args.connections).map(request).collect()
}

#[derive(Copy, Clone, PartialEq)]
enum Extent {
    Unknown,
    Left(usize),
    Chunked,
}

/// A socket that counts the transferred bytes.
struct Counted<S> {
    socket: S,
    bytes: u64,
}

impl<S: Read> Read for Counted<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buf).inspect(|count| self.bytes += *count as u64)
    }
}

impl<S: Write> Write for Counted<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.write(buf).inspect(|count| self.bytes += *count as u64)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Line {
    Plain(Counted<TcpStream>),
    Tls(Box<StreamOwned<ClientConnection, Counted<TcpStream>>>),
}

impl Line {
    /// Connects, with a TLS handshake if there is a configuration for it.
    fn open(addr: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Line> {
        let mut socket = Counted { socket: connect(addr)?, bytes: 0 };
        let mut session = None;
        if let Some(config) = tls {
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            let mut client = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
            while client.is_handshaking() {
                client.complete_io(&mut socket)?;
            }
            session = Some(client);
        }
        socket.socket.set_nonblocking(true)?;
        let socket = Counted { socket: TcpStream::from_std(socket.socket), bytes: socket.bytes };
        Ok(match session {
            Some(client) => Line::Tls(Box::new(StreamOwned::new(client, socket))),
            None => Line::Plain(socket),
        })
    }

    fn counted(&mut self) -> &mut Counted<TcpStream> {
        match self {
            Line::Plain(socket) => socket,
            Line::Tls(stream) => &mut stream.sock,
        }
    }

    /// Returns true if a read of fewer bytes than requested means that the socket is empty.
    fn short_is_empty(&self) -> bool {
        matches!(self, Line::Plain(_))
    }
}

impl Read for Line {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Line::Plain(socket) => socket.read(buf),
            Line::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for Line {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Line::Plain(socket) => socket.write(buf),
            Line::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Line::Plain(socket) => socket.flush(),
            Line::Tls(stream) => stream.flush(),
        }
    }
}

fn trusting(file: &str) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file).map_err(io::Error::other)?).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

struct Conn {
    line: Line,
    request: usize,
    sent: usize,
    busy: bool,
    head: Vec<u8>,
    extent: Extent,
    tail: [u8; 5],
    began: Instant,
    first: Option<Instant>,
}

#[derive(Default)]
struct Tally {
    done: usize,
    failed: usize,
    events: u64,
    bytes: u64,
    latencies: Vec<u32>,
    firsts: Vec<u32>,
    /// Start of the measurement of event ages, which lasts until the first stream ends.
    steady: Option<Instant>,
    delays: Vec<u32>,
}

impl Conn {
    fn begin(&mut self) {
        self.sent = 0;
        self.busy = true;
        self.head.clear();
        self.extent = Extent::Unknown;
        self.tail = [0; 5];
        self.first = None;
        self.began = Instant::now();
    }

    fn write(&mut self, requests: &[Vec<u8>]) {
        let request = &requests[self.request];
        while self.busy && self.sent < request.len() {
            match self.line.write(&request[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("the connection broke while a request was written: {error}"),
            }
        }
        // TLS may hold bytes that the socket has not accepted.
        match self.line.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("the connection broke: {error}"),
            _ => {}
        }
    }

    /// Handles received bytes. Returns true when the answer is complete.
    fn take(&mut self, mut data: &[u8], expected: &[u8], tally: &mut Tally) -> bool {
        if self.first.is_none() {
            self.first = Some(Instant::now());
        }
        tally.bytes += data.len() as u64;
        if self.extent == Extent::Unknown {
            let before = self.head.len();
            self.head.extend_from_slice(data);
            let Some(end) = self.head.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
            data = &data[end + 4 - before..];
            self.head.truncate(end + 4);
            if !self.head.starts_with(expected) {
                tally.failed += 1;
                if tally.failed == 1 {
                    eprintln!("{}{}", String::from_utf8_lossy(&self.head), String::from_utf8_lossy(data));
                }
            }
            self.extent = extent(&self.head);
        }
        match &mut self.extent {
            Extent::Left(left) => {
                assert!(data.len() <= *left, "the answer is longer than declared");
                *left -= data.len();
                *left == 0
            }
            _ => {
                if tally.done == 0 && tally.steady.is_some_and(|from| Instant::now() >= from) {
                    tally.delays.extend(stamp::age(data, b"\"content\":\"").map(nanos));
                }
                let before = [self.tail[4]].into_iter().chain(data.iter().copied());
                tally.events += before.zip(data).filter(|pair| *pair == (b'\n', &b'\n')).count() as u64;
                let kept = data.len().min(self.tail.len());
                self.tail.rotate_left(kept);
                let from = self.tail.len() - kept;
                self.tail[from..].copy_from_slice(&data[data.len() - kept..]);
                self.tail == *b"0\r\n\r\n"
            }
        }
    }
}

fn extent(head: &[u8]) -> Extent {
    for line in head.split(|byte| *byte == b'\n') {
        if line.len() > 15 && line[..15].eq_ignore_ascii_case(b"content-length:") {
            return Extent::Left(std::str::from_utf8(&line[15..]).unwrap().trim().parse().unwrap());
        }
    }
    Extent::Chunked
}

struct World {
    poll: Poll,
    conns: Vec<Conn>,
    requests: Vec<Vec<u8>>,
    /// Expected beginning of each answer.
    expected: Vec<u8>,
    scratch: Vec<u8>,
    delays: bool,
}

impl World {
    fn open(args: &Args) -> io::Result<World> {
        // The warm-up uses complete answers, which take less time than streams.
        let (poll, requests) = (Poll::new()?, requests(args, false));
        let tls = args.tls.as_deref().map(trusting).transpose()?;
        let mut conns = Vec::new();
        for number in 0..args.connections {
            let mut line = Line::open(args.addr, tls.as_ref())?;
            let socket = &mut line.counted().socket;
            socket.set_nodelay(true)?;
            poll.registry().register(socket, Token(number), Interest::READABLE | Interest::WRITABLE)?;
            let request = number % requests.len();
            let (head, now) = (Vec::new(), Instant::now());
            conns.push(Conn {
                line,
                request,
                sent: 0,
                busy: false,
                head,
                extent: Extent::Unknown,
                tail: [0; 5],
                began: now,
                first: None,
            });
        }
        let expected = format!("HTTP/1.1 {}", args.expect).into_bytes();
        Ok(World { poll, conns, requests, expected, scratch: vec![0; 65536], delays: args.delays })
    }

    /// Sends exactly `total` requests, at most `at_once` of them concurrently, each at least `gap` after the previous
    /// one. The connection that has been idle longest sends the next request.
    fn run(&mut self, total: usize, at_once: usize, gap: Duration) -> io::Result<Tally> {
        let mut tally = Tally::default();
        tally.latencies.reserve(total);
        tally.firsts.reserve(total);
        let mut idle: VecDeque<usize> = (0..self.conns.len()).collect();
        let (mut begun, mut next_at) = (0, Instant::now());
        let mut events = Events::with_capacity(1024);
        while tally.done < total {
            while begun < total && begun - tally.done < at_once && (gap.is_zero() || Instant::now() >= next_at) {
                let Some(number) = idle.pop_front() else { break };
                begun += 1;
                next_at += gap;
                self.conns[number].begin();
                self.conns[number].write(&self.requests);
                if self.delays && begun == total {
                    tally.steady = Some(Instant::now() + SETTLED);
                }
            }
            let wait = if gap.is_zero() || begun == total { Duration::from_secs(60) } else { Duration::from_millis(1) };
            self.poll.poll(&mut events, Some(wait))?;
            assert!(!events.is_empty() || wait < Duration::from_secs(60), "nothing has arrived for a minute");
            for event in &events {
                let conn = &mut self.conns[event.token().0];
                if event.is_writable() {
                    conn.write(&self.requests);
                }
                while event.is_readable() {
                    let count = match conn.line.read(&mut self.scratch) {
                        Ok(0) => panic!("the connection was closed"),
                        Ok(count) => count,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    };
                    if conn.take(&self.scratch[..count], &self.expected, &mut tally) {
                        conn.busy = false;
                        tally.done += 1;
                        tally.latencies.push(nanos(conn.began.elapsed()));
                        tally.firsts.push(nanos(conn.first.unwrap() - conn.began));
                        idle.push_back(event.token().0);
                    }
                    if count < self.scratch.len() && conn.line.short_is_empty() {
                        break;
                    }
                }
            }
        }
        Ok(tally)
    }
}

/// Connects, with retries: the measured process may still be starting.
fn connect(addr: SocketAddr) -> io::Result<std::net::TcpStream> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match std::net::TcpStream::connect(addr) {
            Ok(socket) => return Ok(socket),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}

fn percentile(sorted: &[u32], percent: f64) -> f64 {
    let index = ((sorted.len() as f64 - 1.0) * percent / 100.0).round() as usize;
    sorted.get(index).map_or(0.0, |nanos| f64::from(*nanos) / 1000.0)
}

fn wait_for_line() {
    let mut line = String::new();
    // The end of the input has the same effect as a line.
    let _ = io::stdin().lock().read_line(&mut line);
}

fn main() -> io::Result<()> {
    let args = args();
    let mut world = World::open(&args)?;
    let at_once = if args.at_once == 0 { args.connections } else { args.at_once };
    world.run(args.connections * args.warm, at_once, Duration::ZERO)?;
    world.requests = requests(&args, args.stream);
    println!("ready");
    wait_for_line();
    let began = Instant::now();
    let mut tally = world.run(args.requests, at_once, args.gap)?;
    let seconds = began.elapsed().as_secs_f64();
    tally.latencies.sort_unstable();
    tally.firsts.sort_unstable();
    tally.delays.sort_unstable();
    println!(
        "{{\"requests\":{},\"failed\":{},\"events\":{},\"bytes\":{},\"wire_bytes\":{},\"seconds\":{seconds:.6},\"request_bytes\":{},\
         \"p50_us\":{:.1},\"p99_us\":{:.1},\"first_p50_us\":{:.1},\"first_p99_us\":{:.1},\
         \"delays\":{},\"delay_p50_us\":{:.1},\"delay_p99_us\":{:.1}}}",
        tally.done,
        tally.failed,
        tally.events,
        tally.bytes,
        world.conns.iter_mut().map(|conn| conn.line.counted().bytes).sum::<u64>(),
        world.requests[0].len(),
        percentile(&tally.latencies, 50.0),
        percentile(&tally.latencies, 99.0),
        percentile(&tally.firsts, 50.0),
        percentile(&tally.firsts, 99.0),
        tally.delays.len(),
        percentile(&tally.delays, 50.0),
        percentile(&tally.delays, 99.0),
    );
    if args.hold {
        while io::stdin().lock().read_line(&mut String::new())? > 0 {}
    }
    Ok(())
}
