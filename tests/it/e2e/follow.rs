//! `tollgate requests --live` prints each request that ends once, whenever it ends.

use super::harness::{CREDENTIAL, Harness, Setup, chat};
use super::process::{Folder, Process, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

fn start() -> Harness {
    Harness::start(&Setup { server: "record_requests = true", ..Setup::default() })
}

/// A request may end at any time: before the list is read, between the list and the first event, or while both are
/// read.
#[test]
fn a_follower_prints_each_request_once_whenever_it_ends() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let row = |id: &str| format!(r#"{{"id":"{id}","status":200,"endpoint":"chat","us":{{"total":1}}}}"#);
        let (mut ended, mut follower) = (vec![row("before")], None);
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let now = if head[0].contains("/requests/live") {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                write!(stream, "{head}: listening\n\n").unwrap();
                follower = Some(stream);
                "meanwhile"
            } else {
                let list: Vec<&str> = ended.iter().rev().map(String::as_str).collect();
                let since =
                    r#""recorded_since":"2026-01-01T00:00:00Z","failures_recorded_since":"2026-01-01T00:00:00Z""#;
                let body = format!(r#"{{"data":[{}],{since}}}"#, list.join(","));
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                write!(stream, "{head}{body}").unwrap();
                "after"
            };
            ended.push(row(now));
            if let Some(follower) = &mut follower {
                write!(follower, "data: {}\n\n", row(now)).unwrap();
            }
        }
    });
    let args = ["requests", "--live", "--json", "--admin", &at];
    let followed = Process::start(folder.path(), "live", &args, &[]);
    let ids = || -> Vec<String> {
        let written = std::fs::read_to_string(&followed.stdout).unwrap();
        let whole = written.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        whole.lines().map(id).collect()
    };
    wait_for("the last request", || ids().contains(&"after".to_owned()).then_some(()));
    assert_eq!(ids(), ["before", "meanwhile", "after"]);
}

#[test]
fn a_follower_receives_requests_as_they_end() {
    let h = start();
    let key = h.key();
    let followed =
        Process::start(h.folder.path(), "live", &["requests", "--live", "--json", "--limit", "1"], &[CREDENTIAL]);
    wait_for("the last request", || followed.written().contains("quota").then_some(()));
    let id = h.chat(&key, &chat("x\n#sim tokens=5")).id();
    let line =
        wait_for("the next one", || followed.written().lines().find(|line| line.contains(&id)).map(str::to_string));
    let mut line: Value = serde_json::from_str(&line).unwrap();
    line.as_object_mut().unwrap().remove("cost_usd");
    assert_eq!(line, h.log_of(&id));
}

#[test]
fn a_follower_continues_with_the_next_gateway() {
    let mut h = start();
    let key = h.key();
    let followed =
        Process::start(h.folder.path(), "live", &["requests", "--live", "--json", "--limit", "1"], &[CREDENTIAL]);
    wait_for("the last request", || followed.written().contains("quota").then_some(()));
    h.gateway.stop("TERM");
    h.start_again();
    wait_for("the next one", || {
        let id = h.chat(&key, &chat("x\n#sim tokens=5")).id();
        thread::sleep(Duration::from_millis(500));
        followed.written().contains(&id).then_some(())
    });
    assert!(followed.written().contains("trying again"), "{}", followed.written());
}
