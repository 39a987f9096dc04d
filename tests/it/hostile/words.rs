//! Hostile texts of clients: deep JSON, log injection, keys in wrong fields. A secret must never appear in any output.

use super::rig::{Gate, Rig, chat, get, read_to_end, read_until};
use super::table::{Attack, honest, resident, status};
use std::io::Write;
use std::time::{Duration, Instant};

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![
        Attack {
            name: "JSON bombs: depth, width, numbers, escapes, duplicate keys, invalid UTF-8",
            bound: "400; depth 128, 4096 members; one pass, no tree",
            server: "",
            run: bombs,
        },
        Attack {
            name: "log injection in path, query, ids, model, user agent, body",
            bound: "one line of JSON per request, printable ASCII from clients",
            server: "",
            run: log_lines,
        },
        Attack {
            name: "keys in URLs: query, user, path",
            bound: "401, and the key is in no log line",
            server: "",
            run: keys_in_urls,
        },
        Attack {
            name: "search for secrets in all output of the process",
            bound: "no key, credential or content in log, metrics, answers, ledger",
            server: "",
            run: secrets,
        },
    ]
};

fn with_body(key: &str, body: &[u8]) -> Vec<u8> {
    let head = chat(key, "small", false, "");
    let head = &head[..head.find("content-length").unwrap()];
    let mut request = format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    request
}

fn bombs(rig: &Rig, gate: &mut Gate) -> String {
    let valid = "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]";
    let deep = |open: &str, close: &str, n: usize| format!("{{{valid},\"x\":{}1{}}}", open.repeat(n), close.repeat(n));
    let members: String = (0..5000).map(|n| format!(",\"k{n}\":1")).collect();
    let bodies: Vec<Vec<u8>> = vec![
        deep("[", "]", 200).into(),
        deep("[", "]", 1_000_000).into(),
        deep("{\"a\":", "}", 1_000_000).into(),
        "[".repeat(8_000_000).into(),
        format!("{{{valid}{members}}}").into(),
        format!("{{{valid},\"model\":\"small\",\"mod\\u0065l\":\"other\"}}").into(),
        format!("{{{valid},\"max_tokens\":1e999999999}}").into(),
        format!("{{{valid},\"max_tokens\":{}}}", "9".repeat(1_000_000)).into(),
        format!("{{{valid},\"temperature\":-{}}}", "1".repeat(1_000_000)).into(),
        format!("{{{valid},\"model\":\"\\ud800\"}}").into(),
        [b"{\"model\":\"".as_slice(), &[0xff; 100], b"\"}"].concat(),
        format!("{{{valid}}}{{{valid}}}").into(),
        format!("\u{feff}{{{valid}}}").into(),
        "\"".repeat(1_000_001).into(),
        "\\".repeat(1_000_000).into(),
        vec![0; 1_000_000],
    ];
    let (before, mut slowest) = (resident(gate), Duration::ZERO);
    for (number, body) in bodies.iter().enumerate() {
        let (mut stream, began) = (gate.connect(), Instant::now());
        let _ = stream.write_all(&with_body(&rig.key, body));
        let answer = read_to_end(&mut stream);
        assert!([400, 404].contains(&status(&answer)), "{number}: {answer}");
        slowest = slowest.max(began.elapsed());
    }
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    let grown = resident(gate).saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} kB");
    format!("{} × 4xx; slowest {} ms (8 MB); {grown} kB more memory", bodies.len(), slowest.as_millis())
}

fn log_lines(rig: &Rig, gate: &mut Gate) -> String {
    let forged = "\\\",\\\"status\\\":200}\\n{\\\"forged\\\":true}";
    let ask = |request: String| status(&gate.ask(&request));
    let raw = "\",\"status\":200}\u{1b}[2J%0d%0a{\"forged\":true}";
    let named = |name: &str, value: &str| {
        honest(&rig.key).replacen("connection: close", &format!("{name}: {value}\r\nconnection: close"), 1)
    };
    assert_eq!(ask(get(&rig.key, "/v1/models?x=%0d%0a{\"forged\":true}")), 200);
    assert_eq!(ask(get(&rig.key, "/v1/models/%0d%0a%22%7b%22forged%22:true%7d")), 404);
    assert_eq!(ask(honest(&rig.key).replacen("\"small\"", &format!("\"{forged}\""), 1)), 400);
    for name in ["x-request-id", "user-agent", "x-forwarded-for", "anthropic-beta"] {
        // A control character in a head is rejected. Other characters are logged in a safe form or not at all.
        assert_eq!(ask(named(name, raw)), 400);
        assert_eq!(ask(named(name, &raw.replace('\u{1b}', "\u{fc}"))), 200);
    }
    let model = format!("{{\"model\":\"{forged}\",\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}");
    let mut stream = gate.connect();
    stream.write_all(&with_body(&rig.key, model.as_bytes())).unwrap();
    assert_eq!(status(&read_to_end(&mut stream)), 404);
    std::thread::sleep(Duration::from_millis(100));
    let log = gate.log();
    for line in log.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value.get("forged").is_none() && value.get("time").is_some(), "{line}");
    }
    assert!(log.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)));
    format!("{} lines, all JSON, all printable, none forged", log.lines().count())
}

fn keys_in_urls(rig: &Rig, gate: &mut Gate) -> String {
    let key = &rig.key;
    let targets = [
        format!("/v1/models?api_key={key}"),
        format!("/v1/models?key={key}&access_token={key}"),
        format!("/v1/models#{key}"),
        format!("/{key}/v1/models"),
        format!("/v1/{key}/models"),
        format!("http://user:{key}@h/v1/models"),
        format!("http://{key}@h/v1/models"),
    ];
    for target in &targets {
        let answer = gate.ask(&format!("GET {target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"));
        assert!([400, 401, 404].contains(&status(&answer)) && !answer.contains(key.as_str()), "{answer}");
    }
    let cookie =
        gate.ask(&format!("GET /v1/models HTTP/1.1\r\nhost: h\r\ncookie: key={key}\r\nconnection: close\r\n\r\n"));
    assert_eq!(status(&cookie), 401);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!gate.log().contains(key.as_str()));
    format!("{} places: none accepted, none logged", targets.len() + 1)
}

/// Text in a client's request, and a secret for the provider, which must not appear in any output.
const CONTENT: &str = "content-marker-90125";
const CREDENTIAL: &str = "credential-marker-5150";

fn secrets(rig: &Rig, _: &mut Gate) -> String {
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    let text =
        text.replace("[[models]]", "api_key = { env = \"SIM_KEY\" }\n[[models]]").replace("ledger.db", "second.db");
    let text = text.replace("[server]", "[server]\nadmin_token = { env = \"ADMIN\" }");
    std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    let prepare = |command: &mut std::process::Command| {
        command.env("SIM_KEY", CREDENTIAL).env("ADMIN", "admin-marker-2112");
    };
    let mut issue = rig.command(&["keys", "issue", "--name", "n"]);
    prepare(&mut issue);
    let key = String::from_utf8(issue.output().unwrap().stdout).unwrap().trim().to_string();
    let mut gate = rig.start_with(prepare);
    let mut seen = String::new();
    for directive in ["", "status=401", "status=400 message=bad_key_credential-marker-5150", "garbage", "cut_after=1"] {
        for stream in [true, false] {
            let request = chat(&key, "small", stream, &format!("{CONTENT} #sim {directive}"));
            seen += &gate.ask(&request.replacen("host: h", "connection: close\r\nhost: h", 1));
        }
    }
    seen +=
        &gate.ask(&chat(&key, "no-such-model", false, CONTENT).replacen("host: h", "connection: close\r\nhost: h", 1));
    seen += &gate.ask(&get(&format!("{key}x"), "/v1/models"));
    gate.signal("-HUP");
    gate.until("the reload is logged", |gate| gate.log().contains("\"event\":\"reload\""));
    let mut metrics = super::rig::connect(gate.admin);
    let ask = "GET /metrics HTTP/1.1\r\nhost: h\r\nauthorization: Bearer admin-marker-2112\r\n\r\n";
    metrics.write_all(ask.as_bytes()).unwrap();
    let mut written = read_until(&mut metrics, "tollgate_panics_total 0").into_bytes();
    gate.signal("-TERM");
    assert!(gate.child.wait().unwrap().success());
    let mut files = 0;
    for entry in std::fs::read_dir(&rig.folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() != "tollgate.toml" {
            written.extend(std::fs::read(&path).unwrap());
            files += 1;
        }
    }
    let secret = &key[key.len() - 38..];
    for (name, bytes) in [("written", &written), ("answered", &seen.clone().into_bytes())] {
        for marker in [CREDENTIAL, secret, "admin-marker-2112"] {
            assert!(!bytes.windows(marker.len()).any(|window| window == marker.as_bytes()), "{marker} was {name}");
        }
    }
    assert!(
        !written.windows(CONTENT.len()).any(|window| window == CONTENT.as_bytes()),
        "content appears in the output"
    );
    format!("{files} files, {} KiB, metrics and 12 responses: no secret found", written.len() / 1024)
}
