//! `tollgate demo` starts without any set-up, and its printed commands work when pasted.

use super::process::{Folder, Process, free_port, run, wait_for};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a printed command in a shell. Returns the status and the output.
fn paste(line: &str) -> (u16, String) {
    let output = Command::new("sh").args(["-c", &format!("{line} -w '\\n%{{http_code}}'")]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn demo_starts_its_commands_work_and_ctrl_c_exits_with_0() {
    let folder = Folder::new();
    let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = ["demo", "--listen", &listen, "--admin-listen", &admin, "--pace", "500", "--examples"];
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let mut demo = Process::start(folder.path(), "demo", &args, &[("TMPDIR", temporary.to_str().unwrap())]);
    let printed = wait_for("the demo's text", || {
        assert!(!demo.has_ended(), "{}", demo.written());
        Some(demo.written()).filter(|text| text.contains("Health and metrics: ") && text.ends_with('\n'))
    });
    let lines: Vec<&str> = printed.lines().map(str::trim).filter(|line| line.starts_with("curl ")).collect();
    assert!(lines.len() >= 2, "{printed}");
    let find =
        |path: &str| *lines.iter().find(|line| line.contains(path)).unwrap_or_else(|| panic!("{path}: {printed}"));
    let (status, body) = paste(find("/v1/chat/completions"));
    assert!(status == 200 && body.contains("choices"), "{status}: {body}");
    let (status, body) = paste(find("/v1/messages"));
    assert!(status == 200 && body.contains("content"), "{status}: {body}");
    let (status, body) = paste(find("/v1/responses"));
    assert!(status == 200 && body.contains("output_text"), "{status}: {body}");
    for (path, word) in [
        ("embeddings", "embedding"),
        ("rerank", "relevance_score"),
        ("completions ", "text_completion"),
        ("audio/speech", "answer"),
        ("images/generations", "b64_json"),
        ("moderations", "flagged"),
        ("audio/transcriptions", "text"),
    ] {
        let (status, body) = paste(find(&format!("/v1/{path}")));
        assert!(status == 200 && body.contains(word), "{path}: {status}: {body}");
    }
    for line in &lines {
        assert_eq!(paste(line).0, 200, "{line}");
    }

    let setting = |name: &str| {
        let at = printed.find(&format!("{name}=")).unwrap_or_else(|| panic!("{name}: {printed}")) + name.len() + 1;
        printed[at..].split_whitespace().next().unwrap().to_owned()
    };
    let (base, key) = (setting("OPENAI_BASE_URL"), setting("OPENAI_API_KEY"));
    assert_eq!(
        (setting("ANTHROPIC_API_KEY"), format!("{}/v1", setting("ANTHROPIC_BASE_URL"))),
        (key.clone(), base.clone())
    );
    let (status, models) = paste(&format!("curl -s {base}/models -H 'authorization: Bearer {key}'"));
    let models: Value = serde_json::from_str(&models).unwrap();
    let sizes: Vec<u64> =
        models["data"].as_array().unwrap().iter().filter_map(|m| m["context_window"].as_u64()).collect();
    assert_eq!((status, sizes.len()), (200, 6), "the catalog must have six entries");
    assert!(sizes.iter().all(|size| matches!(size, 1_000_000 | 256_000)), "1M and 256K: {sizes:?}");
    assert!(sizes.contains(&1_000_000) && sizes.contains(&256_000), "{sizes:?}");

    let file = printed.lines().find_map(|line| line.strip_prefix("Configuration, removed at the end: ")).unwrap();
    let usage = run(folder.path(), &["usage", "--config", file], &[]);
    assert!(usage.code == 0 && usage.out.contains("  demo  "), "{}{}", usage.out, usage.err);
    let own = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let [kept] = &own(&temporary)[..] else { panic!("expected one folder: {:?}", own(&temporary)) };
    assert_eq!(fs::metadata(kept).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(demo.stop("INT").code(), Some(0));
    assert!(own(&temporary).is_empty(), "the demo must remove its folder");
}

/// Returns the output of a demo once it serves.
fn text_of(demo: &mut Process) -> String {
    wait_for("the demo's text", || {
        assert!(!demo.has_ended(), "{}", demo.written());
        Some(demo.written()).filter(|text| text.contains("Health and metrics: ") && text.ends_with('\n'))
    })
}

/// A second demo, or one whose port is in use, must use another port and print it.
#[test]
fn two_demos_run_concurrently_and_print_their_addresses() {
    let folder = Folder::new();
    // From here on the usual ports are in use: by these listeners, or by another process if binding fails.
    let _held = ["127.0.0.1:8080", "127.0.0.1:9090"].map(TcpListener::bind);
    let mut demos = ["one", "two"].map(|name| Process::start(folder.path(), name, &["demo", "--examples"], &[]));
    for demo in &mut demos {
        let text = text_of(demo);
        assert!(text.contains("Port 8080 is taken by something else: this is 127.0.0.1:"), "{text}");
        assert!(text.contains("Port 9090 is taken by something else: this is 127.0.0.1:"), "{text}");
        let mut lines = text.lines().map(str::trim).filter(|line| line.starts_with("curl "));
        let line = lines.find(|line| line.contains("/v1/messages")).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(paste(line).0, 200);
        assert_eq!(demo.stop("INT").code(), Some(0));
    }
}

#[test]
fn explicit_port_that_is_in_use_is_an_error() {
    let folder = Folder::new();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    for option in ["--listen", "--admin-listen"] {
        let done = run(folder.path(), &["demo", option, &taken], &[]);
        assert_eq!((done.code, done.out.as_str()), (1, ""));
        assert!(done.err.starts_with(&format!("error: {option} {taken}: ")), "{}", done.err);
    }
}

#[test]
fn demo_prints_health_url_claude_code_setup_and_usage_command() {
    let folder = Folder::new();
    let [listen, admin] = [(); 2].map(|()| format!("localhost:{}", free_port()));
    let args = ["demo", "--listen", &listen, "--admin-listen", &admin, "--pace", "0", "--examples"];
    let mut demo = Process::start(folder.path(), "demo", &args, &[]);
    let text = text_of(&mut demo);
    let admin = admin.replace("localhost", "127.0.0.1");
    assert!(text.contains(&format!("Health and metrics: http://{admin}/readyz")), "{text}");
    assert_eq!(paste(&format!("curl -s http://{admin}/readyz")).0, 200);
    let claude = text.lines().find(|line| line.contains(" claude --model ")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        claude.contains("ANTHROPIC_BASE_URL=http://127.0.0.1:") && claude.contains("ANTHROPIC_AUTH_TOKEN=tg_live_")
    );
    let line = text.lines().find(|line| line.starts_with("curl ") && line.contains("/v1/messages")).unwrap();
    assert_eq!(paste(line).0, 200);
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: tollgate ")).unwrap();
    let args: Vec<&str> = usage.split(' ').collect();
    wait_for("the usage", || run(folder.path(), &args, &[]).out.contains(" demo ").then_some(()));
    assert_eq!(demo.stop("INT").code(), Some(0));
}
