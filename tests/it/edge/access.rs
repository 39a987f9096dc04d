//! Access to the admin listener depends on the socket itself, whatever its origin: at startup, on a reload, in an
//! upgrade, and for sockets from systemd.

use super::rig::{Gate, Rig, TIMEOUT, read_to_end};
use command_fds::{CommandFdExt, FdMapping};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const READ: &str = "admin_token = { file = \"read.token\" }\n";
/// Part of every error about a socket that needs a token.
const REASON: &str = "can be reached from other hosts: set an `admin_token`";

/// Address of the admin socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Place {
    Loopback,
    Wide,
    /// Unix socket with this mode.
    File(u32),
}

/// Origin of a socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Origin {
    /// Bound as configured.
    Bound,
    /// Inherited from systemd, while the configuration names a loopback address.
    Inherited,
    /// Inherited from systemd, while the configuration names no address.
    InheritedAlone,
}

fn configure(rig: &Rig, listen: &str, token: bool) {
    let line = if listen.is_empty() { String::new() } else { format!("admin_listen = \"{listen}\"\n") };
    rig.configure(if token { READ } else { "" }, &rig.models("small"), "");
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    let own = "admin_listen = \"127.0.0.1:0\"\n";
    assert!(text.contains(own));
    std::fs::write(rig.path("tollgate.toml"), text.replace(own, &line)).unwrap();
}

fn socket_of(rig: &Rig, place: Place) -> OwnedFd {
    match place {
        Place::Loopback => TcpListener::bind("127.0.0.1:0").unwrap().into(),
        Place::Wide => TcpListener::bind("0.0.0.0:0").unwrap().into(),
        Place::File(mode) => {
            let socket = UnixListener::bind(rig.path("admin.sock")).unwrap();
            std::fs::set_permissions(rig.path("admin.sock"), std::fs::Permissions::from_mode(mode)).unwrap();
            socket.into()
        }
    }
}

fn inherit(command: &mut Command, socket: OwnedFd) {
    command.fd_mappings(vec![FdMapping { parent_fd: socket, child_fd: 3 }]).unwrap();
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "admin");
}

/// Returns the status of a request for `path`.
fn status(to: &Result<SocketAddr, PathBuf>, path: &str, token: bool) -> u16 {
    let token = if token { "authorization: Bearer a-token-that-reads\r\n" } else { "" };
    let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n\r\n");
    let exchange = |mut stream: Box<dyn ReadWrite>| {
        stream.write_all(ask.as_bytes()).unwrap();
        read_to_end(&mut stream)
    };
    let answer = match to {
        Ok(address) => exchange(Box::new(TcpStream::connect(address).unwrap())),
        Err(path) => exchange(Box::new(UnixStream::connect(path).unwrap())),
    };
    answer.get(9..12).map_or(0, |status| status.parse().unwrap())
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// Returns the statuses without a token and with it.
fn statuses(to: &Result<SocketAddr, PathBuf>, path: &str) -> [u16; 2] {
    [status(to, path, false), status(to, path, true)]
}

fn by_loopback(gate: &Gate) -> Result<SocketAddr, PathBuf> {
    Ok((Ipv4Addr::LOCALHOST, gate.admin.port()).into())
}

/// Starts a gateway that must refuse to start. Returns its error message.
fn refused(mut command: Command) -> String {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("the start was not refused");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn admin_socket_decides_access_at_startup() {
    for origin in [Origin::Bound, Origin::Inherited, Origin::InheritedAlone] {
        for place in [Place::Loopback, Place::Wide, Place::File(0o600), Place::File(0o660), Place::File(0o666)] {
            for token in [false, true] {
                let case = format!("{origin:?} {place:?} {token}");
                if origin == Origin::Bound && matches!(place, Place::File(0o601..)) {
                    continue;
                }
                let rig = Rig::new("access-start", "");
                let listen = match (origin, place) {
                    (Origin::Bound, Place::Wide) => "0.0.0.0:0",
                    (Origin::Bound, Place::File(_)) => "unix:admin.sock",
                    (Origin::InheritedAlone, _) => "",
                    _ => "127.0.0.1:0",
                };
                configure(&rig, listen, token);
                let socket = (origin != Origin::Bound).then(|| socket_of(&rig, place));
                let why = match place {
                    Place::Wide if !token => Some(REASON),
                    Place::File(0o601..) => Some("is open to others: 0600 is needed"),
                    _ => None,
                };
                if let Some(why) = why {
                    let mut command = rig.command(&["serve"]);
                    socket.into_iter().for_each(|socket| inherit(&mut command, socket));
                    let said = refused(command);
                    assert!(said.contains(why), "{case}: {said}");
                    continue;
                }
                let gate = rig.start_with(|command| socket.into_iter().for_each(|socket| inherit(command, socket)));
                let to = match place {
                    Place::File(_) => Err(rig.path("admin.sock")),
                    _ => by_loopback(&gate),
                };
                let expected = match (place, token) {
                    (Place::File(_), _) => [200, 200],
                    (_, true) => [401, 200],
                    // A token that is not configured is a wrong token.
                    (_, false) => [200, 401],
                };
                for path in ["/metrics", "/admin/v1/status", "/admin/v1/keys", "/admin/v1/requests"] {
                    assert_eq!(statuses(&to, path), expected, "{case} {path}");
                }
            }
        }
    }
}

/// A misspelt name must not open the admin socket to clients, and a gateway without a listener must not start.
#[test]
fn unusable_inherited_sockets_are_refused() {
    let rig = Rig::new("access-odd", "");
    let deaf = || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        OwnedFd::from(socket)
    };
    let listening = || socket_of(&rig, Place::Loopback);
    for (names, fds, why) in [
        ("admin:admin", vec![listening(), listening()], "two of them are named \"admin\""),
        ("tollgate.socket:admins", vec![listening(), listening()], "\"admins\" is neither \"clients\" nor \"admin\""),
        ("clients:admin", vec![listening(), deaf()], "one of them does not listen"),
        ("clients", vec![deaf()], "one of them does not listen"),
        ("clients", vec![UnixStream::pair().unwrap().0.into()], "fd 3 is not a valid tcp socket"),
    ] {
        let mut command = rig.command(&["serve"]);
        let count = fds.len().to_string();
        let fds = fds.into_iter().zip(3..).map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(fds.collect()).unwrap();
        command.env("LISTEN_FDS", count).env("LISTEN_FDNAMES", names);
        let said = refused(command);
        assert!(said.contains(&format!("cannot use the inherited sockets: {why}")), "{said}");
    }
}

/// Starts a gateway with a token on `place`, then removes the token and sends `signal`. Returns the rig, the gateway,
/// and the log line that contains `outcome`.
fn taken_away(place: Place, listen: &str, signal: &str, outcome: &str) -> (Rig, Gate, String) {
    let rig = Rig::new("access-change", "");
    configure(&rig, if place == Place::Wide { "0.0.0.0:0" } else { "127.0.0.1:0" }, true);
    let mut gate = rig.start();
    assert_eq!(statuses(&by_loopback(&gate), "/metrics"), [401, 200]);
    configure(&rig, listen, false);
    gate.signal(signal);
    let line = gate.logged(outcome);
    (rig, gate, line)
}

#[test]
fn reload_that_opens_a_wide_admin_socket_is_refused() {
    for listen in ["127.0.0.1:0", ""] {
        let (_rig, gate, line) = taken_away(Place::Wide, listen, "-HUP", "\"event\":\"reload\"");
        assert!(line.contains("\"outcome\":\"refused\"") && line.contains(REASON), "{line}");
        for path in ["/metrics", "/admin/v1/status"] {
            assert_eq!(statuses(&by_loopback(&gate), path), [401, 200], "{path}");
        }
    }
    let (_rig, gate, line) = taken_away(Place::Loopback, "127.0.0.1:0", "-HUP", "\"event\":\"reload\"");
    assert!(line.contains("\"outcome\":\"done\""), "{line}");
    assert_eq!(statuses(&by_loopback(&gate), "/metrics"), [200, 401]);
}

#[test]
fn reload_is_refused_while_others_can_reach_the_unix_socket() {
    let rig = Rig::new("access-mode", "");
    configure(&rig, "unix:admin.sock", false);
    let mut gate = rig.start();
    let set_mode = |mode| std::fs::set_permissions(rig.path("admin.sock"), PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o666);
    gate.signal("-HUP");
    let line = gate.logged("\"event\":\"reload\"");
    assert!(line.contains("\"outcome\":\"refused\"") && line.contains("is open to others: 0600 is needed"), "{line}");
    set_mode(0o600);
    gate.signal("-HUP");
    gate.logged("\"outcome\":\"done\"");
}

#[test]
fn successor_refuses_a_wide_admin_socket_without_a_token() {
    for listen in ["127.0.0.1:0", ""] {
        let (_rig, gate, _) = taken_away(Place::Wide, listen, "-USR2", "the successor was not ready");
        assert!(gate.log().contains(REASON), "{}", gate.log());
        assert_eq!(gate.pids().len(), 1);
        for path in ["/metrics", "/admin/v1/status"] {
            assert_eq!(statuses(&by_loopback(&gate), path), [401, 200], "{path}");
        }
    }
    let (_rig, gate, _) = taken_away(Place::Loopback, "127.0.0.1:0", "-USR2", "handed over");
    gate.until("the successor serves", |gate| status(&by_loopback(gate), "/readyz", false) == 200);
    assert_eq!(statuses(&by_loopback(&gate), "/metrics"), [200, 401]);
    // Its id, by which it is killed, is in the log before this line.
    gate.until("the successor logs", |gate| gate.log().contains("predecessor left"));
}

#[test]
fn token_is_sent_only_to_the_configured_address() {
    let rig = Rig::new("access-requests", "");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    // Runs the command against a server that answers 401. Returns the request head and the standard error.
    let heard = |args: &[&str]| {
        let mut command = rig.command(&[&["requests", "--admin", &at.to_string()][..], args].concat());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stream, _) = other.accept().unwrap();
        let mut head = vec![0; 4096];
        let count = stream.read(&mut head).unwrap();
        stream.write_all(b"HTTP/1.1 401 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").unwrap();
        drop(stream);
        let said = child.wait_with_output().unwrap();
        (String::from_utf8_lossy(&head[..count]).into_owned(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    let write = "admin_write_token = { file = \"write.token\" }\n";
    let configure = |listen: &str, tokens: &str| {
        rig.configure(tokens, &rig.models("small"), "");
        let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
        let text = text.replacen("admin_listen = \"127.0.0.1:0\"", &format!("admin_listen = \"{listen}\""), 1);
        std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    };
    let both = format!("{READ}{write}");
    configure("127.0.0.1:9", &both);
    let (head, said) = heard(&[]);
    assert!(!head.contains("authorization") && said.contains("--send-token"), "{head}{said}");
    assert!(heard(&["--send-token"]).0.contains("authorization: Bearer a-token-that-reads\r\n"));
    // The address is the configured one.
    configure(&format!("0.0.0.0:{}", at.port()), &both);
    assert!(heard(&[]).0.contains("authorization: Bearer a-token-that-reads\r\n"));
    // The write token is not sent, even if there is no other token.
    configure("127.0.0.1:9", write);
    assert!(!heard(&["--send-token"]).0.contains("authorization"));
}
