//! Providers behind an HTTP proxy: CONNECT with and without TLS inside, and every other answer that a proxy may give.

use super::harness::{CREDENTIAL, Harness, Setup, chat, chat_request, streamed, with};
use super::process::{Folder, free_port, run};
use super::tls::{authority, start_proxy};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Response of a proxy to CONNECT.
#[derive(Clone, Copy)]
enum Does {
    /// Sends this answer byte by byte and opens the tunnel.
    Makes(&'static str),
    /// Sends this answer and closes the connection.
    Says(&'static str),
    /// Sends this answer and keeps the connection open.
    Waits(&'static str),
}

/// Requests to all proxies of a test: the request line, and the credentials for the proxy.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// Starts a proxy that connects every tunnel to `to`, whatever target is requested. Returns its address.
fn proxy(does: Does, to: SocketAddr, asked: &Asked) -> SocketAddr {
    let (listener, asked) = (TcpListener::bind("127.0.0.1:0").unwrap(), asked.clone());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let asked = asked.clone();
            std::thread::spawn(move || serve(socket, does, to, &asked));
        }
    });
    at
}

fn serve(mut socket: TcpStream, does: Does, to: SocketAddr, asked: &Asked) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let (mut lines, mut line) = (Vec::new(), String::new());
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        lines.push(std::mem::take(&mut line).trim_end().to_owned());
    }
    let login = lines.iter().find_map(|line| line.strip_prefix("proxy-authorization: "));
    asked.lock().unwrap().push((lines.first().cloned().unwrap_or_default(), login.unwrap_or_default().to_owned()));
    socket.set_nodelay(true).unwrap();
    match does {
        Does::Makes(words) => {
            words.bytes().for_each(|byte| socket.write_all(&[byte]).unwrap());
            let server = TcpStream::connect(to).unwrap();
            let mut back = (server.try_clone().unwrap(), socket.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut back.0, &mut back.1)));
            let mut server = server;
            let _ = std::io::copy(&mut socket, &mut server);
            let _ = server.shutdown(std::net::Shutdown::Write);
        }
        Does::Says(words) => drop(socket.write_all(words.as_bytes())),
        Does::Waits(words) => {
            let _ = socket.write_all(words.as_bytes());
            let _ = socket.read(&mut [0; 64]);
        }
    }
}

/// Returns the configuration of a provider called `name` behind a proxy, and of a model with its name.
fn behind(name: &str, base_url: &str, proxy: &str, more: &str) -> String {
    format!(
        "[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"{base_url}\"\nproxy = {proxy}\n\
         api_key = {{ env = \"{}\" }}\n{more}\n\
         [[models]]\nid = \"{name}\"\ncontext = \"1M\"\ntargets = [{{ provider = \"{name}\", model = \"m\" }}]\n",
        CREDENTIAL.0
    )
}

const MADE: &str = "HTTP/1.1 200 Connection established\r\ncontent-length: 7\r\nproxy-agent: x\r\n\r\n";

#[test]
fn provider_is_reached_by_a_kept_tunnel_with_and_without_tls() {
    let (folder, asked) = (Folder::new(), Asked::default());
    let (pem, config) = authority();
    fs::write(folder.path().join("ca.pem"), pem).unwrap();
    let ca = format!("ca_file = \"{}\"", folder.path().join("ca.pem").display());
    let upstream = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (plain, secure) =
        (proxy(Does::Makes(MADE), upstream, &asked), proxy(Does::Makes(MADE), start_proxy(config, upstream), &asked));
    let file = folder.path().join("proxy");
    fs::write(&file, format!("http://{plain}\n")).unwrap();
    // Only the proxy resolves the provider's name, which does not exist anywhere else.
    let more = behind("plain", "http://far.invalid:81/v1", &format!("\"http://me:pass%20word@{plain}\""), "")
        + &behind("secure", "https://localhost/v1", &format!("\"http://{secure}\""), &ca)
        + &behind("filed", "http://far.invalid/v1", &format!("{{ file = \"{}\" }}", file.display()), "discover = {}");
    let h = Harness::start_at(&Setup { more, ..Setup::default() }, upstream);
    let key = h.key();
    let mut client = h.client();
    for (round, model) in ["plain", "secure", "plain", "secure", "filed"].into_iter().enumerate() {
        let body = with(chat("größe\n#sim tokens=200"), "model", model);
        let body = if round % 2 == 0 { body } else { streamed(body) };
        let answer = client.ask(&chat_request(&key, &body));
        assert_eq!(answer.status(), 200, "{model}: {}", answer.text());
        assert_eq!(h.log_of(&answer.id())["output"], 200);
    }
    let mut asked = asked.lock().unwrap().clone();
    asked.sort();
    let line = |target: &str| format!("CONNECT {target} HTTP/1.1");
    let login = "Basic bWU6cGFzcyB3b3Jk".to_owned();
    let expected = [
        (line("far.invalid:80"), String::new()),
        (line("far.invalid:80"), String::new()),
        (line("far.invalid:81"), login),
        (line("localhost:443"), String::new()),
    ];
    assert_eq!(asked, expected, "expected one kept tunnel for each provider and one for the list of models");
    let shown = h.done(&["check", "--print"]);
    assert!(shown.contains(&format!("proxy = \"http://***@{plain}\"")) && !shown.contains("pass"), "{shown}");
    assert!(!h.gateway.written().contains("pass") && !h.gateway.written().contains("bWU6"));
}

#[test]
fn refused_tunnel_is_reported_and_another_target_is_tried() {
    let (asked, upstream) = (Asked::default(), SocketAddr::from(([127, 0, 0, 1], free_port())));
    let endless: &'static str = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(9000)).leak();
    let ways = [
        (
            "wants",
            Does::Says("HTTP/1.1 407 P\r\ncontent-length: 4\r\n\r\nbody"),
            "connect: proxy: 407, it wants other credentials",
        ),
        ("forbids", Does::Waits("HTTP/1.1 403 F\r\n\r\n"), "connect: proxy: 403, it forbids the tunnel"),
        (
            "fails",
            Does::Says("HTTP/1.1 502 B\r\ncontent-length: 99\r\n\r\n"),
            "connect: proxy: 502, it cannot reach the provider",
        ),
        ("wants-too", Does::Says("HTTP/1.1 401 U\r\n\r\n"), "connect: proxy: 401, it wants other credentials"),
        ("moves", Does::Says("HTTP/1.1 302 F\r\nlocation: x\r\n\r\n"), "connect: proxy: it refuses"),
        ("babbles", Does::Waits("SSH-2.0-OpenSSH\r\n"), "connect: proxy: no answer in HTTP"),
        ("drones", Does::Waits(endless), "connect: proxy: no answer in HTTP"),
        ("closes", Does::Says(""), "connect: proxy: closed without an answer"),
        ("breaks", Does::Says("HTTP/1.1 200 O"), "connect: proxy: closed without an answer"),
        (
            "speaks",
            Does::Waits("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            "connect: proxy: bytes behind its answer",
        ),
        ("hangs", Does::Waits("HTTP/1.1 200 OK\r\n"), "timeout: connect"),
        ("deaf", Does::Makes("HTTP/1.1 200 OK\r\n\r\n"), "connect: proxy: refused"),
    ];
    let mut more = String::new();
    for (name, does, _) in ways {
        let at = match name {
            "deaf" => SocketAddr::from(([127, 0, 0, 1], free_port())),
            _ => proxy(does, upstream, &asked),
        };
        let base = if name == "wants" { "https://far.invalid/v1" } else { "http://far.invalid/v1" };
        more += &behind(name, base, &format!("\"http://{at}\""), "connect_timeout = \"400ms\"");
        more += &format!(
            "[[models]]\nid = \"{name}-or\"\ncontext = \"1M\"\n\
             targets = [{{ provider = \"{name}\", model = \"m\" }}, {{ provider = \"sim-chat\", model = \"m\" }}]\n"
        );
    }
    more += &behind("nameless", "http://127.0.0.1/v1", "\"http://proxy.invalid:3128\"", "");
    let h = Harness::start_at(&Setup { more, ..Setup::default() }, upstream);
    let key = h.key();
    let cause = |model: &str| {
        let answer = h.chat(&key, &with(chat("x"), "model", model));
        let line = h.log_of(&answer.id());
        (answer.status(), line["cause"].as_str().unwrap_or_default().to_owned())
    };
    for (name, _, why) in ways {
        let status = if name == "hangs" { 504 } else { 500 };
        assert_eq!(cause(name), (status, why.to_owned()), "{name}");
        let answer = h.chat(&key, &with(chat("x"), "model", format!("{name}-or")));
        let line = h.log_of(&answer.id());
        assert_eq!((answer.status(), &line["attempts"], &line["target"]), (200, &2.into(), &"sim-chat/m".into()));
        let failed: &Value = &line["failed"][0];
        assert_eq!(failed["cause"], why, "{line}");
    }
    assert_eq!(cause("nameless"), (500, "dns: no address of the proxy".to_owned()));
    let metrics = super::client::get(h.admin, "/metrics").unwrap().text().to_owned();
    assert!(metrics.contains("{target=\"wants/m\",status=\"connect\"} 2"), "{metrics}");
}

#[test]
fn check_connects_through_the_proxy_and_reports_its_errors() {
    let (folder, asked, h) = (Folder::new(), Asked::default(), Harness::usual());
    let good = proxy(Does::Makes(MADE), h.upstream, &asked);
    let wants = proxy(Does::Says("HTTP/1.1 407 P\r\n\r\n"), h.upstream, &asked);
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = behind("good", "http://far.invalid/v1", &format!("\"http://{good}\""), "")
        + &behind("wants", "https://far.invalid/v1", &format!("\"http://me:secret@{wants}\""), "")
        + &behind("closed", "http://far.invalid/v1", &format!("\"http://{closed}\""), "");
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let done = run(folder.path(), &["check", "--connect"], &[CREDENTIAL]);
    let lines: Vec<&str> = done.out.lines().filter(|line| line.starts_with("  ")).collect();
    assert!(lines[0].starts_with("  ok: 200, ") && lines[1].starts_with("  ok: good -> m"), "{}", done.out);
    let said = ["error: proxy: 407, it wants other credentials: check `proxy`", "error: the proxy 127.0.0.1:"];
    assert!(lines[2].contains(said[0]) && lines[4].contains(said[1]), "{}", done.out);
    let without = ["  models without another provider: wants", "  models without another provider: closed"];
    assert_eq!([lines[3], lines[5]], without, "{}", done.out);
    assert!(done.code == 1 && !done.out.contains("secret"), "{}{}", done.out, done.err);
}
