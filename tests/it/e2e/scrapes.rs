//! `/metrics` with many models: the text has megabytes, and is sent in pieces, so that neither one response nor many
//! unread ones need memory for it.

use super::client::{Client, get, request};
use super::harness::{Harness, Setup, bearer, chat_request, streamed, with};
use super::process::wait_for;
use super::{harness, reports};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

const MODELS: usize = 600;
/// Bytes of `memory`, from which the bound of unread responses is derived.
const SERVER: &str =
    "memory = \"24MiB\"\nadmin_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]\nlog = \"failures\"";
/// Documented memory of responses of the admin API: "lists" in the manual's table of the upper bound, a 32nd of
/// `memory`.
const LISTS: u64 = (24 << 20) / 32;

fn name(number: usize) -> String {
    format!("m{number:0>119}")
}

/// Starts a gateway whose models have all served a stream.
fn used_models() -> Harness {
    let models = (0..MODELS).map(|number| {
        let id = name(number);
        format!("[[models]]\nid = \"{id}\"\ncontext = \"1K\"\ntargets = [{{ provider = \"sim-chat\" }}]\n")
    });
    let h = Harness::start(&Setup { server: SERVER, more: models.collect(), ..Setup::default() });
    let (key, mut client) = (h.key(), h.client());
    for number in 0..MODELS {
        let body = with(streamed(harness::chat("#sim tokens=2")), "model", name(number));
        assert_eq!(client.ask(&chat_request(&key, &body)).status(), 200);
    }
    h
}

fn scrape(method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let token = bearer(harness::CREDENTIAL.1);
    request(method, "/metrics", &[&[("authorization", token.as_str())], more].concat())
}

/// Sends a request to the admin listener over a connection whose answer is not read.
fn unread(h: &Harness, request: &[u8]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    // Otherwise the kernel would take most of the answer.
    socket.set_tcp_mss(536).unwrap();
    socket.connect(&h.admin.into()).unwrap();
    (&socket).write_all(request).unwrap();
    socket.into()
}

#[test]
fn many_models_and_unread_scrapes_stay_within_the_documented_memory() {
    let h = used_models();
    let mut client = Client::connect(h.admin);
    // The memory of the first answer stays allocated for the next one.
    client.ask(&request("GET", "/healthz", &[]));
    let [_, before] = reports::peak_and_now(&h);
    let text = client.ask(&scrape("GET", &[]));
    assert_eq!(text.head.get("content-length"), None);
    let names: Vec<&str> = text.text().lines().filter(|line| !line.starts_with('#')).collect();
    let series: BTreeSet<&str> = names.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(series.len(), names.len(), "a series exists twice");
    for number in [0, MODELS / 2, MODELS - 1] {
        let last = format!("tollgate_tokens_per_second_count{{model=\"{}\"}}", name(number));
        assert!(series.contains(last.as_str()), "{last}");
    }
    assert!(text.body.len() as u64 > 4 * LISTS, "{} bytes", text.body.len());
    // The connection stays usable.
    assert_eq!(client.ask(&request("GET", "/healthz", &[])).status(), 200);
    let unread: Vec<TcpStream> = (0..30).map(|_| unread(&h, &scrape("GET", &[]))).collect();
    let statuses = unread.iter().map(|mut socket| {
        let mut status = [0; 12];
        socket.read_exact(&mut status).unwrap();
        status
    });
    let refused = statuses.filter(|status| status.ends_with(b" 503")).count();
    assert!((1..30).contains(&refused), "{refused} of 30 scrapes are refused");
    let [peak, _] = reports::peak_and_now(&h);
    assert!(peak <= before + LISTS, "{} KiB more than documented", (peak - before - LISTS) / 1024);
    drop(unread);
    wait_for("room for a scrape", || (Client::connect(h.admin).ask(&scrape("GET", &[])).status() == 200).then_some(()));
    // The text does not depend on how it is read.
    let old = scrape("GET", &[("connection", "close")]);
    let old = String::from_utf8(old).unwrap().replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut socket = TcpStream::connect(h.admin).unwrap();
    socket.write_all(old.as_bytes()).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut whole = String::new();
    socket.read_to_string(&mut whole).unwrap();
    let end = whole.trim_end().lines().next_back().unwrap();
    assert!(end.starts_with("process_start_time_seconds ") && whole.lines().count() >= text.text().lines().count());
    // The body of a request is not taken for another request.
    let mut client = Client::connect(h.admin);
    let hidden = String::from_utf8(request("GET", "/healthz", &[])).unwrap();
    let length = hidden.len().to_string();
    client.send(&[scrape("GET", &[("content-length", length.as_str())]), hidden.into_bytes()].concat());
    assert_eq!(client.answer().unwrap().head.get("connection"), Some("close"));
    assert!(client.is_ended());
    let mut client = Client::connect(h.admin);
    client.send(&[scrape("HEAD", &[]), request("GET", "/healthz", &[])].concat());
    assert_eq!(client.head().unwrap().get("transfer-encoding"), Some("chunked"));
    assert_eq!(client.answer().unwrap().text(), "ok\n");
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
}
