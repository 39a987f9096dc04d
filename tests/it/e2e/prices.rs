//! Price lists that a command downloads: what it writes, and every download that changes nothing.

use super::process::{Done, Folder, free_port, run};
use super::tls::{authority, start_proxy};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const CONFIG: &str = r#"# Prices of 2026.
[[providers]]
name = "openai"
shape = "chat"
base_url = "https://api.openai.com/v1"

[[models]]
id = "small" # for everybody
context = "256K"
input_price = 4.0 # too low
targets = [{ provider = "openai", model = "gpt-5.5" }]
"#;

const LIST: &str = r#"{"openai": {"id": "openai", "models": {"gpt-5.5": {"id": "gpt-5.5",
    "cost": {"input": 5, "output": 30, "cache_read": 0.5}, "limit": {"context": 400000, "output": 128000}}}}}"#;

/// The requests that a server has received: the first lines, and all header fields that name a login.
type Asked = Arc<Mutex<Vec<String>>>;

/// Starts a server that answers each path by `answer`, and closes the connection.
fn serve(asked: &Asked, answer: fn(&str, SocketAddr) -> String) -> SocketAddr {
    let (listener, asked) = (TcpListener::bind("127.0.0.1:0").unwrap(), asked.clone());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let asked = asked.clone();
            std::thread::spawn(move || {
                let head = head_of(&socket);
                let Some(path) = head[0].split(' ').nth(1) else { return };
                asked.lock().unwrap().push(head[0].clone());
                let _ = socket.write_all(answer(path, at).as_bytes());
            });
        }
    });
    at
}

fn head_of(socket: &TcpStream) -> Vec<String> {
    let (mut reader, mut lines, mut line) = (BufReader::new(socket.try_clone().unwrap()), Vec::new(), String::new());
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        lines.push(std::mem::take(&mut line).trim_end().to_owned());
    }
    lines.push(String::new());
    lines
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn moved(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

/// The paths of the server of these tests.
fn answer(path: &str, at: SocketAddr) -> String {
    match path {
        "/api.json" | "/d/list?v=1" => ok(LIST),
        "/1" => moved("/2"),
        "/2" => moved("d/3"),
        "/d/3" => moved(&format!("http://{at}/d/list?v=1")),
        "/4" => moved("/1"),
        "/out" => moved("http://prices.invalid/api.json"),
        "/nowhere" => "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "/odd" => ok("{\"openai\": {"),
        "/other" => ok("[1, 2]"),
        "/page" => ok("<html>"),
        "/cut" => format!("HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{LIST}"),
        "/large" => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{{", (64 << 20) + 1),
        "/late" => "HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n".to_owned(),
        _ => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
    }
}

/// A folder with the configuration.
fn folder() -> Folder {
    let folder = Folder::new();
    fs::write(folder.path().join("tollgate.toml"), CONFIG).unwrap();
    folder
}

fn written(folder: &Folder) -> String {
    fs::read_to_string(folder.path().join("tollgate.toml")).unwrap()
}

fn fetch(folder: &Folder, args: &[&str], env: &[(&str, &str)]) -> Done {
    // The environment of the test may name a proxy.
    let none = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"].map(|name| (name, ""));
    run(folder.path(), &[&["prices"], args].concat(), &[&none, env].concat())
}

#[test]
fn downloaded_prices_are_shown_and_written_on_request() {
    let (folder, asked) = (folder(), Asked::default());
    let url = format!("http://{}/api.json", serve(&asked, answer));
    let shown = fetch(&folder, &["--fetch", &url], &[]);
    assert_eq!((shown.code, written(&folder).as_str()), (0, CONFIG), "{}", shown.err);
    assert!(shown.out.contains("input_price") && shown.out.contains("5.00"), "{}", shown.out);
    assert!(shown.out.contains("nothing was changed: add --write"), "{}", shown.out);
    let done = fetch(&folder, &["--fetch", &url, "--write"], &[]);
    assert_eq!(done.code, 0, "{}", done.err);
    let expected = CONFIG.replace("4.0 # too", "5.00 # too").replace(
        "id = \"small\" # for everybody\n",
        "id = \"small\" # for everybody\noutput_price = 30.00\ncache_read_price = 0.50\n",
    );
    assert_eq!(written(&folder), expected);
    let again = fetch(&folder, &["--fetch", &url, "--write"], &[]);
    assert!(again.code == 0 && again.out.contains("listed prices match: 1 of 1 model"), "{}", again.out);
    assert_eq!(asked.lock().unwrap().len(), 3);
}

#[test]
fn failed_download_changes_nothing() {
    let (folder, asked) = (folder(), Asked::default());
    let at = serve(&asked, answer);
    for (path, why) in [
        ("/4", "more than 3 redirects"),
        ("/out", "status 302: expected https://, or http:// and a loopback address"),
        ("/nowhere", "status 302: no location"),
        ("/odd", "is not JSON"),
        ("/page", "is not JSON"),
        ("/other", "is neither LiteLLM's price list nor the api.json of models.dev"),
        ("/cut", "it ended too early"),
        ("/large", "it has more than 64 MiB"),
        ("/late", "status 503"),
        ("/missing", "status 404"),
    ] {
        let done = fetch(&folder, &["--fetch", &format!("http://{at}{path}"), "--write"], &[]);
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{path}: {}", done.err);
        assert!(done.err.starts_with("error: ") && done.err.contains(why), "{path}: {}", done.err);
    }
    let done = fetch(&folder, &["--fetch", &format!("http://127.0.0.1:{}/", free_port()), "--write"], &[]);
    assert!(done.code == 1 && done.err.contains("refuses the connection"), "{}", done.err);
    for args in [
        &["--fetch", "http://prices.invalid/api.json"][..],
        &["--fetch", "prices.invalid"],
        &["--fetch", "https://prices.invalid/", "--from", "list.json"],
        &["--from", "list.json", "--ca", "ca.pem"],
        &["--write"],
    ] {
        assert_eq!(fetch(&folder, args, &[]).code, 2, "{args:?}");
    }
    assert_eq!(written(&folder), CONFIG);
    let done = fetch(&folder, &["--fetch", &format!("http://{at}/1")], &[]);
    assert_eq!(done.code, 0, "three redirects are followed: {}", done.err);
}

#[test]
fn download_uses_tls_the_proxy_and_its_exceptions() {
    let (folder, asked, tunnels) = (folder(), Asked::default(), Asked::default());
    let (pem, config) = authority();
    fs::write(folder.path().join("ca.pem"), pem).unwrap();
    let server = start_proxy(config, serve(&asked, answer));
    let proxy = tunnel_to(server, &tunnels);
    let through = format!("http://me:pass%20word@{proxy}");
    let url = "https://localhost/api.json";
    let done = fetch(&folder, &["--fetch", url, "--ca", "ca.pem"], &[("HTTPS_PROXY", &through)]);
    assert_eq!(done.code, 0, "{}", done.err);
    let done = fetch(&folder, &["--fetch", url], &[("ALL_PROXY", &through)]);
    assert!(done.code == 1 && done.err.contains("no trusted authority has signed its certificate"), "{}", done.err);
    // Without the proxy, the server is at another port.
    let direct = format!("https://localhost:{}/api.json", server.port());
    let env = [("HTTPS_PROXY", through.as_str()), ("NO_PROXY", "localhost")];
    let done = fetch(&folder, &["--fetch", &direct, "--ca", "ca.pem"], &env);
    assert_eq!(done.code, 0, "{}", done.err);
    let done = fetch(&folder, &["--fetch", &format!("https://127.0.0.1:{}/", server.port()), "--ca", "ca.pem"], &[]);
    assert!(done.code == 1 && done.err.contains("its certificate is for another host"), "{}", done.err);
    let done = fetch(&folder, &["--fetch"], &[("HTTPS_PROXY", &through)]);
    assert!(done.code == 1 && done.err.contains("cannot fetch https://models.dev/api.json: "), "{}", done.err);
    let done = fetch(&folder, &["--fetch", url], &[("HTTPS_PROXY", "socks5://me:pass@127.0.0.1")]);
    assert!(done.code == 2 && !done.err.contains("pass"), "{}", done.err);
    let login = "proxy-authorization: Basic bWU6cGFzcyB3b3Jk";
    let line = |to: &str| format!("CONNECT {to}:443 HTTP/1.1 {login}");
    assert_eq!(*tunnels.lock().unwrap(), [line("localhost"), line("localhost"), line("models.dev")]);
    assert_eq!(*asked.lock().unwrap(), ["GET /api.json HTTP/1.1"; 2]);
}

/// Starts a proxy that connects every tunnel to `to`, and notes what it is asked for.
fn tunnel_to(to: SocketAddr, asked: &Asked) -> SocketAddr {
    let (listener, asked) = (TcpListener::bind("127.0.0.1:0").unwrap(), asked.clone());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let head = head_of(&socket);
            let login = head.iter().find(|line| line.starts_with("proxy-authorization: ")).cloned().unwrap_or_default();
            asked.lock().unwrap().push([&head[0], " ", &login].concat());
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let mut server = TcpStream::connect(to).unwrap();
            let mut back = (server.try_clone().unwrap(), socket.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut back.0, &mut back.1)));
            std::thread::spawn(move || drop(std::io::copy(&mut socket, &mut server)));
        }
    });
    at
}
