//! Models that a provider lists, with the real binary: the list is polled, kept when a poll fails, updated when it
//! changes, and shown by the commands.

use super::harness::{CREDENTIAL, Harness, Setup, chat, with};
use super::process::wait_for;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Answers of a provider to requests for its models, by path and query; and the requests that it received.
#[derive(Default)]
struct Lists {
    answers: Vec<(&'static str, u16, String)>,
    asked: Vec<String>,
}

/// Starts a provider with model lists, which gives one fixed answer to all other requests.
fn provider(lists: &Arc<Mutex<Lists>>) -> SocketAddr {
    let (listener, lists) = (TcpListener::bind("127.0.0.1:0").unwrap(), lists.clone());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let lists = lists.clone();
            std::thread::spawn(move || answer(socket, &lists));
        }
    });
    at
}

fn answer(mut socket: TcpStream, lists: &Mutex<Lists>) {
    let (mut got, mut block) = (Vec::new(), [0; 4096]);
    while !got.windows(4).any(|end| end == b"\r\n\r\n") {
        match socket.read(&mut block) {
            Ok(count) if count > 0 => got.extend_from_slice(&block[..count]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&got).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, body) = match path.contains("/models") {
        true => {
            let mut lists = lists.lock().unwrap();
            lists.asked.push(text.clone());
            let found = lists.answers.iter().find(|(known, ..)| *known == path);
            found.map_or((404, "{}".to_owned()), |(_, status, body)| (*status, body.clone()))
        }
        false => {
            let answer = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}});
            (200, answer.to_string())
        }
    };
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes()));
    // Unread bytes of the request must not reset the connection before the answer arrives.
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let _ = std::io::copy(&mut socket, &mut std::io::sink());
}

fn list(ids: &[&str]) -> String {
    json!({"object": "list", "data": ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()}).to_string()
}

fn ids(h: &Harness, key: &str) -> Vec<String> {
    let listed = h.get("/v1/models", key).json();
    listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

fn events(h: &Harness, outcome: &str) -> Vec<Value> {
    h.log().into_iter().filter(|line| line["event"] == "models" && line["outcome"] == outcome).collect()
}

#[test]
fn model_list_is_updated_kept_on_failure_and_shown() {
    let lists = Arc::new(Mutex::new(Lists::default()));
    let at = provider(&lists);
    let say = |status, body: &str| lists.lock().unwrap().answers = vec![("/v1/models", status, body.to_owned())];
    let long = "x".repeat(1 << 20);
    say(
        200,
        &format!(
            "{{\"data\":[{{\"id\":\"qwen\",\"max_model_len\":32768}},{{\"id\":\"{long}\"}},{{\"id\":\"a\\u0007b\"}}]}}"
        ),
    );
    let more = format!(
        "[[providers]]\nname = \"local\"\nshape = \"chat\"\nbase_url = \"http://{at}/v1\"\n\
         api_key = {{ env = \"{}\" }}\nheaders = {{ x-team = \"a\" }}\ndiscover = {{ every = \"1s\", prefix = \"l/\" }}\n",
        CREDENTIAL.0
    );
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    let found = wait_for("the list", || ids(&h, &key).contains(&"l/qwen".to_owned()).then(|| ids(&h, &key)));
    assert_eq!(found.len(), 6, "after the five configured models: {found:?}");
    let model = h.get("/v1/models/l/qwen", &key).json();
    assert_eq!((&model["context_window"], &model["owned_by"]), (&32768.into(), &"local".into()));
    let told = wait_for("the log", || events(&h, "listed").pop());
    assert_eq!((&told["models"], &told["skipped"]), (&1.into(), &2.into()));
    assert_eq!(told["first_skipped"], "x".repeat(64));
    let answer = h.chat(&key, &with(chat("x"), "model", "l/qwen"));
    assert_eq!((answer.status(), &answer.json()["model"]), (200, &"l/qwen".into()), "{}", answer.text());
    assert_eq!(h.log_of(&answer.id())["cost_nano"].as_u64().unwrap_or_default(), 0);
    let request = lists.lock().unwrap().asked[0].clone();
    assert!(request.contains(&format!("authorization: Bearer {}\r\n", CREDENTIAL.1)), "{request}");
    assert!(request.contains("x-team: a\r\n"), "{request}");
    // The commands request the list, mark its models, and accept them in the scope of a key.
    let table = h.done(&["models"]);
    let line = table.lines().find(|line| line.contains("l/qwen")).unwrap_or_else(|| panic!("{table}"));
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["l/qwen", "l/qwen", "32Ki", "discovered", "-", "chat"]);
    let json: Value = serde_json::from_str(&h.done(&["models", "--json"])).unwrap();
    let marks: Vec<&Value> = json.as_array().unwrap().iter().map(|model| &model["discovered"]).collect();
    assert_eq!(marks.iter().filter(|mark| mark.as_bool() == Some(true)).count(), 1);
    assert!(h.done(&["check"]).contains("5 models and those that one provider lists"), "{}", h.done(&["check"]));
    let checked = h.command(&["check", "--connect"]).out;
    assert!(checked.contains("ok: discover: 1 model of its list for the catalog"), "{checked}");
    let narrow = h.key_with(&["--models", "l/qwen,l/later"]);
    assert_eq!(ids(&h, &narrow), ["l/qwen"]);
    assert_ne!(h.command(&["keys", "issue", "--name", "n", "--models", "other/qwen"]).code, 0);
    // An invalid list changes nothing and is reported once.
    for (status, body, why) in [(200, "{\"data\":[", "the list is no JSON"), (500, "{}", "status 500")] {
        say(status, body);
        wait_for("the failure", || events(&h, "failed").iter().any(|line| line["error"] == why).then_some(()));
    }
    assert!(ids(&h, &key).contains(&"l/qwen".to_owned()));
    let asked = lists.lock().unwrap().asked.len();
    wait_for("more polls", || (lists.lock().unwrap().asked.len() > asked + 1).then_some(()));
    assert_eq!(events(&h, "failed").len(), 2);
    let unknown = h.command(&["models"]);
    assert!(unknown.err.contains("the models of `local` are unknown: status 500"), "{}", unknown.err);
    // A reload keeps the list although no new one arrives.
    h.gateway.signal("HUP");
    wait_for("the reload", || h.log().iter().any(|line| line["event"] == "reload").then_some(()));
    assert!(ids(&h, &key).contains(&"l/qwen".to_owned()));
    say(200, &list(&["later", "small"]));
    wait_for("the next list", || (ids(&h, &narrow) == ["l/later"]).then_some(()));
    assert_eq!(h.chat(&key, &with(chat("x"), "model", "l/qwen")).status(), 404);
}

#[test]
fn messages_model_list_is_read_page_by_page() {
    let lists = Arc::new(Mutex::new(Lists::default()));
    let page = |ids: &[&str], more: bool| {
        let data: Vec<Value> = ids.iter().map(|id| json!({"type": "model", "id": id, "display_name": id})).collect();
        json!({"data": data, "has_more": more, "first_id": ids[0], "last_id": ids[ids.len() - 1]}).to_string()
    };
    lists.lock().unwrap().answers = vec![
        ("/v1/models?limit=1000", 200, page(&["claude-a", "claude-b"], true)),
        ("/v1/models?limit=1000&after_id=claude-b", 200, page(&["claude-c"], false)),
    ];
    let at = provider(&lists);
    let more = format!(
        "[[providers]]\nname = \"ant\"\nshape = \"messages\"\nbase_url = \"http://{at}\"\n\
         api_key = {{ env = \"{}\" }}\ndiscover = {{ context = \"200K\" }}\n",
        CREDENTIAL.0
    );
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    wait_for("the list", || ids(&h, &key).ends_with(&["claude-b".to_owned(), "claude-c".to_owned()]).then_some(()));
    assert_eq!(h.get("/v1/models/claude-c", &key).json()["context_window"], 200_000);
    let asked = lists.lock().unwrap().asked.clone();
    assert_eq!(asked.len(), 2);
    for request in asked {
        assert!(request.contains(&format!("x-api-key: {}\r\n", CREDENTIAL.1)), "{request}");
        assert!(request.contains("anthropic-version: 2023-06-01\r\n"), "{request}");
    }
}

#[test]
fn successor_has_the_model_list_immediately() {
    let lists = Arc::new(Mutex::new(Lists::default()));
    lists.lock().unwrap().answers = vec![("/v1/models", 200, list(&["kept"]))];
    let at = provider(&lists);
    let more =
        format!("[[providers]]\nname = \"local\"\nshape = \"chat\"\nbase_url = \"http://{at}/v1\"\ndiscover = {{}}\n");
    let mut h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    wait_for("the list", || ids(&h, &key).contains(&"kept".to_owned()).then_some(()));
    // From here on the provider returns no list.
    lists.lock().unwrap().answers.clear();
    h.gateway.signal("USR2");
    h.gateway.wait();
    assert!(ids(&h, &key).contains(&"kept".to_owned()), "{:?}", h.log());
    let failed = wait_for("the poll of the new process", || events(&h, "failed").pop());
    assert_eq!(failed["error"], "status 404");
    let pid = h.log().iter().rev().find(|line| line["event"] == "listening").and_then(|line| line["pid"].as_u64());
    let pid = pid.unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    wait_for("the end of the new process", || {
        h.log().iter().filter(|line| line["event"] == "stopped").nth(1).map(drop)
    });
}
