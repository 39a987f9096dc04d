//! Reloading the configuration on SIGHUP.

use super::rig::{Gate, Rig, TIMEOUT, chat, get, provider, read_to_end, read_until, write_certificate};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PLAN: &str = "[[plans]]\nname = \"p\"\nrequests = 1000000\nwindow = \"31d\"\ntokens = 1000000000\n";

/// Reloads the configuration and returns the log line with the outcome.
fn reload(gate: &Gate) -> String {
    let before = gate.log().matches("\"event\":\"reload\"").count();
    gate.signal("-HUP");
    gate.until("the reload is logged", |gate| gate.log().matches("\"event\":\"reload\"").count() > before);
    gate.log().lines().rfind(|line| line.contains("\"event\":\"reload\"")).unwrap_or_default().to_string()
}

fn rig(name: &str) -> Rig {
    let mut rig = Rig::new(name, "");
    rig.configure("", &rig.models("small"), PLAN);
    rig.key = rig.issue("--plan p");
    rig
}

#[test]
fn reload_changes_the_catalog_without_affecting_streams() {
    let rig = rig("reload-change");
    let gate = rig.start();
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=100 pace=40").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    // The old provider moves to the second position, after a new one.
    let second = provider();
    let models = format!(
        "[[providers]]\nname = \"other\"\nshape = \"chat\"\nbase_url = \"http://{second}/v1\"\n{}\
         [[models]]\nid = \"large\"\ncontext = \"1M\"\ntargets = [{{ provider = \"other\", model = \"y\" }}]\n",
        rig.models("medium")
    );
    rig.configure("max_body = \"1KiB\"", &models, &PLAN.replace("requests = 1000000", "requests = 3"));
    assert!(reload(&gate).contains("\"outcome\":\"done\",\"needs_restart\":[]"));
    let list = gate.ask(&get(&rig.key, "/v1/models"));
    assert!(list.contains("\"medium\"") && list.contains("\"large\"") && !list.contains("\"small\""), "{list}");
    let once = |model: &str, text: &str| {
        gate.ask(&chat(&rig.key, model, false, text).replacen("host: h", "connection: close\r\nhost: h", 1))
    };
    assert!(once("small", "x").starts_with("HTTP/1.1 404"));
    for model in ["medium", "large"] {
        assert!(once(model, "x").starts_with("HTTP/1.1 200"), "{model}");
    }
    assert!(once("medium", &"x".repeat(2000)).starts_with("HTTP/1.1 413"));
    // The plan now allows three requests per window, one of which was admitted before the reload.
    assert!(once("medium", "x").starts_with("HTTP/1.1 429"));
    let rest = read_until(&mut stream, "[DONE]");
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.contains("\"model\":\"small\""));
    gate.until("the row has its old names", |gate| {
        gate.log().contains("\"model\":\"small\",\"target\":\"sim/upstream-x\"")
    });
    assert_eq!(gate.metric("tollgate_reloads_total"), 1);
}

#[test]
fn unreadable_files_are_refused_and_the_next_reload_works() {
    let rig = rig("reload-pipes");
    let gate = rig.start();
    let good = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(rig.path(name)).status().unwrap();
        assert!(made.success());
    };
    std::fs::remove_file(rig.path("tollgate.toml")).unwrap();
    pipe("tollgate.toml");
    let line = reload(&gate);
    assert!(line.contains("\"outcome\":\"refused\"") && line.contains("not a regular file"), "{line}");
    std::fs::remove_file(rig.path("tollgate.toml")).unwrap();
    pipe("secret");
    std::fs::File::create(rig.path("endless")).unwrap().set_len(1 << 40).unwrap();
    for (name, why) in
        [("secret", "not a regular file"), ("/dev/zero", "not a regular file"), ("endless", "larger than")]
    {
        let models =
            rig.models("small").replacen("base_url", &format!("api_key = {{ file = \"{name}\" }}\nbase_url"), 1);
        rig.configure("", &models, PLAN);
        let line = reload(&gate);
        assert!(line.contains("\"outcome\":\"refused\"") && line.contains(why), "{name}: {line}");
    }
    write_certificate(&rig.path(""));
    for (cert, key) in [("secret", "key.pem"), ("cert.pem", "endless")] {
        rig.configure(&format!("tls = {{ cert = \"{cert}\", key = \"{key}\" }}"), &rig.models("small"), PLAN);
        assert!(reload(&gate).contains("\"outcome\":\"refused\""));
    }
    std::fs::write(rig.path("tollgate.toml"), good).unwrap();
    assert!(reload(&gate).contains("\"outcome\":\"done\""));
}

#[test]
fn invalid_file_is_refused_with_all_errors_and_the_old_one_stays() {
    let rig = rig("reload-bad");
    let gate = rig.start();
    rig.configure("max_body = \"1 parsec\"", &rig.models("other").replace("256K", "a lot"), PLAN);
    let line = reload(&gate);
    assert!(line.contains("\"outcome\":\"refused\""), "{line}");
    assert!(line.contains("tollgate.toml:4: server.max_body: ") && line.contains("models[0].context"), "{line}");
    assert!(gate.ask(&get(&rig.key, "/v1/models")).contains("\"small\""));
    std::fs::remove_file(rig.path("tollgate.toml")).unwrap();
    assert!(reload(&gate).contains("\"outcome\":\"refused\""));
    rig.configure("tls = { cert = \"none.pem\", key = \"none.pem\" }", &rig.models("other"), PLAN);
    assert!(reload(&gate).contains("server.tls"));
    assert_eq!(gate.metric("tollgate_reloads_total"), 0);
    rig.configure("", &rig.models("other"), PLAN);
    assert!(reload(&gate).contains("\"outcome\":\"done\""));
    assert!(gate.ask(&get(&rig.key, "/v1/models")).contains("\"other\""));
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let rig = rig("reload-fixed");
    let gate = rig.start();
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    let text = text.replacen("listen = \"127.0.0.1:0\"", "listen = \"127.0.0.1:1\"", 1).replace("ledger.db", "new.db");
    std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    assert!(reload(&gate).contains("\"needs_restart\":[\"server.listen\",\"store.url\"]"));
    assert!(gate.ask(&get(&rig.key, "/v1/models")).starts_with("HTTP/1.1 200"));
    assert!(!rig.path("new.db").exists());
}

#[test]
fn certificates_are_reloaded_and_tls_can_be_enabled() {
    let rig = rig("reload-tls");
    let gate = rig.start();
    let shown = || {
        let output = std::process::Command::new("openssl")
            .args(["s_client", "-connect", &gate.clients.to_string(), "-servername", "gate.test"])
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let from = text.find("-----BEGIN CERTIFICATE-----");
        from.map(|from| text[from..text.find("-----END CERTIFICATE-----").unwrap()].replace(['\r', '\n'], ""))
    };
    let filed = || {
        let text = std::fs::read_to_string(rig.path("cert.pem")).unwrap();
        text[..text.find("-----END CERTIFICATE-----").unwrap()].replace(['\r', '\n'], "")
    };
    let mut plain = gate.connect();
    plain.write_all(chat(&rig.key, "small", true, "#sim tokens=100 pace=50").as_bytes()).unwrap();
    read_until(&mut plain, "chunk");
    for _ in 0..2 {
        write_certificate(&rig.folder);
        rig.configure("tls = { cert = \"cert.pem\", key = \"key.pem\" }", &rig.models("small"), PLAN);
        assert!(reload(&gate).contains("\"outcome\":\"done\""));
        assert_eq!(shown(), Some(filed()));
    }
    read_until(&mut plain, "[DONE]");
    // A certificate whose key does not match is refused.
    let good = filed();
    let key = std::fs::read(rig.path("key.pem")).unwrap();
    write_certificate(&rig.folder);
    std::fs::write(rig.path("key.pem"), key).unwrap();
    assert!(reload(&gate).contains("\"outcome\":\"refused\""));
    assert_eq!(shown(), Some(good));
}

#[test]
fn forty_reloads_under_traffic_drop_no_request() {
    let rig = rig("reload-traffic");
    let gate = rig.start();
    let (over, asked) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (over, asked, gate, key) = (over.clone(), &asked, &gate, &rig.key);
            scope.spawn(move || {
                let mut kept = gate.connect();
                while !over.load(Ordering::Relaxed) {
                    let stream = worker % 2 == 0;
                    kept.write_all(chat(key, "small", stream, "hello #sim tokens=5").as_bytes()).unwrap();
                    let answer = read_until(&mut kept, if stream { "\r\n0\r\n\r\n" } else { "total_tokens" });
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    if !stream && !answer.ends_with('}') {
                        read_until(&mut kept, "}");
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                    // Each round also uses a new connection.
                    let list = gate.ask(&get(key, "/v1/models"));
                    assert!(list.contains("\"small\""), "{list}");
                }
            });
        }
        let other = provider();
        for round in 0..40 {
            let first = format!("[[providers]]\nname = \"n\"\nshape = \"chat\"\nbase_url = \"http://{other}/v1\"\n");
            let models = if round % 2 == 0 { first + &rig.models("small") } else { rig.models("small") };
            rig.configure("", &models, PLAN);
            let line = reload(&gate);
            assert!(line.contains("\"outcome\":\"done\""), "{line}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(asked.load(Ordering::Relaxed) > 100);
    assert_eq!(gate.metric("tollgate_reloads_total"), 40);
    assert!(!gate.log().contains("\"status\":5"), "{}", gate.log());
    let mut last = gate.connect();
    last.set_read_timeout(Some(TIMEOUT)).unwrap();
    last.write_all(get(&rig.key, "/v1/quota").as_bytes()).unwrap();
    assert!(read_to_end(&mut last).contains("\"used\":"));
}
