//! The operations guide, walked by a stranger: its own configuration and its own commands, run as they stand there.

use super::process::free_port;
use super::rig::{Rig, write_certificate};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

const GUIDE: &str = include_str!("../../../src/docs/operations.md");

/// Blocks of the guide in one language, in their order.
fn blocks(language: &str) -> Vec<&'static str> {
    let all = GUIDE.split("\n```").skip(1).step_by(2);
    all.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// The guide's configuration, on this machine: other addresses, another folder, no certificate.
fn configuration(rig: &Rig) -> String {
    let [first, trial] = blocks("toml")[..] else { panic!("a configuration and a plan") };
    let mut text = format!("{first}\n{trial}\n");
    let tls = text.lines().find(|line| line.starts_with("tls = ")).unwrap().to_owned();
    let base = format!("http://{}/v1", rig.provider);
    for (there, here) in [
        (tls.as_str(), "listen = \"127.0.0.1:0\""),
        ("127.0.0.1:9090", "127.0.0.1:0"),
        ("/var/lib/tollgate/", ""),
        ("https://api.openai.com/v1", &base),
    ] {
        assert!(text.contains(there), "{there} is not in the guide");
        text = text.replace(there, here);
    }
    text
}

/// A folder of programs: ours, and a `systemctl` that knows how to reload `pid`.
fn programs(rig: &Rig, pid: &str) -> String {
    let folder = rig.path("bin");
    fs::create_dir(&folder).unwrap();
    symlink(env!("CARGO_BIN_EXE_tollgate"), folder.join("tollgate")).unwrap();
    let systemctl = folder.join("systemctl");
    fs::write(&systemctl, format!("#!/bin/sh\n[ \"$*\" = 'reload tollgate' ] && kill -HUP {pid}\n")).unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_stranger_has_a_public_endpoint_with_a_certificate_in_ten_commands() {
    let rig = Rig::new("public", "");
    let folder = rig.path("empty");
    fs::create_dir(&folder).unwrap();
    write_certificate(&folder);
    let port = free_port();
    // Where names are resolved and whom to trust is the machine's business.
    let trust = format!("cacert = \"cert.pem\"\nresolve = \"gate.test:{port}:127.0.0.1\"\n");
    fs::write(folder.join(".curlrc"), trust).unwrap();

    let [commands] = blocks("shell")[..] else { panic!("one walk") };
    let (configuration, commands) = commands.split_once("\nEND\n").unwrap();
    let count = 1 + commands.lines().filter(|line| !line.starts_with(' ')).count();
    assert!(count <= 10, "{count} commands");
    let mut here = format!("trap 'kill ${{!-}} || true' EXIT\n{configuration}\nEND\n{commands}");
    for (there, ours) in [
        ("https://gateway.example", format!("https://gate.test:{port}")),
        ("sk-…", "sk-test".to_owned()),
        ("0.0.0.0:443", format!("127.0.0.1:{port}")),
        ("https://api.openai.com/v1", format!("http://{}/v1", rig.provider)),
    ] {
        assert!(here.contains(there), "{there} is not in the guide");
        here = here.replace(there, &ours);
    }
    let output = Command::new("sh")
        .args(["-e", "-u", "-c", &here])
        .current_dir(&folder)
        .env("PATH", programs(&rig, "0"))
        .env("HOME", &folder)
        .env_remove("TOLLGATE_CONFIG")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("\"object\":\"list\"") && said.contains("\"object\":\"chat.completion\""), "{said}");
}

#[test]
fn a_stranger_issues_spends_rotates_reports_and_verifies_by_the_guide() {
    let rig = Rig::new("walk", "");
    let text = configuration(&rig);
    let (without_trial, _) = text.split_once("\n[[plans]]\nname = \"trial\"").unwrap();
    fs::write(rig.path("tollgate.toml"), without_trial).unwrap();
    let gate = rig.start_with(|command| {
        command.env("OPENAI_API_KEY", "sk-test");
    });
    fs::write(rig.path("tollgate.toml"), &text).unwrap();

    let [walk] = blocks("sh")[..] else { panic!("one walk") };
    let here = walk.replace("https://gateway.example", &format!("http://{}", gate.clients));
    assert_ne!(here, walk);
    // The guide waits as long as the gateway may take; a machine full of other tests may take longer.
    assert_eq!(here.matches("\nsleep 1\n").count(), 2);
    let here = here.replace("\nsleep 1\n", "\nsleep 4\n");
    let output = Command::new("sh")
        .args(["-e", "-u", "-c", &here])
        .current_dir(&rig.folder)
        .env("PATH", programs(&rig, &gate.pids()[0]))
        .env("TOLLGATE_CONFIG", rig.path("tollgate.toml"))
        .env("OPENAI_API_KEY", "sk-test")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(gate.log().contains("\"event\":\"reload\",\"outcome\":\"done\""));

    let answered = said.matches("answered\n").count();
    assert!(answered > 0, "{said}");
    let documents: Vec<Value> =
        said.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect();
    let [refused, spent, old, new] = &documents[..] else { panic!("four documents are due: {said}") };
    assert_eq!(refused["error"]["code"], 429, "{said}");
    assert!(spent["tokens"]["used"].as_u64().unwrap() >= 50, "{spent}");
    assert_eq!(old["error"]["code"], 401);
    assert_eq!(new["tokens"], spent["tokens"], "the same history");
    let report = said.lines().find(|line| line.contains(" ann ")).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(report.split_whitespace().nth(2), Some(answered.to_string().as_str()), "{report}");
    assert!(said.contains("\nok: "), "{said}");
    assert!(said.trim_end().ends_with(&format!("\n{answered}")), "one row per answer: {said}");
}
