//! A secret that cannot be printed: no key stays valid that its owner has never seen.

use super::harness::{CREDENTIAL, Harness, chat, with};
use super::process::{binary, wait_for};
use serde_json::Value;
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Runs a command with this standard output.
fn with_output(h: &Harness, args: &[&str], out: Stdio) -> Output {
    let mut command = Command::new(binary());
    command.args(args).env(CREDENTIAL.0, CREDENTIAL.1).current_dir(h.folder.path()).stdin(Stdio::null());
    command.stdout(out).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

/// Returns the writing end of a pipe that no process reads.
fn abandoned() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn keys(h: &Harness) -> Vec<Value> {
    serde_json::from_str::<Value>(&h.done(&["keys", "list", "--json"])).unwrap().as_array().unwrap().clone()
}

fn failed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

#[test]
fn key_that_cannot_be_printed_is_revoked_immediately() {
    let h = Harness::usual();
    let issue = ["keys", "issue", "--name", "unseen"];
    let json = ["keys", "issue", "--name", "unseen", "--json"];
    for (count, (args, out)) in
        [(&issue[..], abandoned()), (&json, abandoned()), (&issue, full())].into_iter().enumerate()
    {
        let said = failed(&with_output(&h, args, out));
        let all = keys(&h);
        assert_eq!(all.len(), count + 1);
        let id = all.iter().map(|key| key["id"].as_str().unwrap()).find(|id| said.contains(id));
        assert!(id.is_some() && said.contains("could not be shown") && said.contains("revoked"), "{said}");
        assert!(all.iter().all(|key| key["status"] == "revoked"), "{all:?}");
    }
}

#[test]
fn closed_standard_output_prevents_issue_and_rotation() {
    let h = Harness::usual();
    let key = h.key();
    let line = format!("exec '{}' \"$@\" >&-", binary().display());
    let closed = |args: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", &line, "sh"]).args(args).env(CREDENTIAL.0, CREDENTIAL.1).current_dir(h.folder.path());
        failed(&command.output().unwrap())
    };
    for args in [&["keys", "issue", "--name", "unseen"][..], &["keys", "rotate", &key[8..20], "--grace", "0s"]] {
        let said = closed(args);
        assert!(said.contains("standard output") && said.contains("nothing was changed"), "{said}");
    }
    let all = keys(&h);
    assert_eq!((all.len(), all[0]["status"].as_str()), (1, Some("live")));
    assert_eq!(h.status_of(&key), 200);
}

#[test]
fn rotation_that_cannot_be_printed_is_undone() {
    let h = Harness::usual();
    let key = h.key();
    for grace in ["0s", "1h"] {
        let said = failed(&with_output(&h, &["keys", "rotate", &key[8..20], "--grace", grace], abandoned()));
        assert!(said.contains(&key[8..20]) && said.contains("could not be shown"), "{said}");
        let all = keys(&h);
        assert_eq!(all[0]["former_secrets_until"], serde_json::json!([]), "{all:?}");
        wait_for("the former secret", || (h.status_of(&key) == 200).then_some(()));
    }
}

#[test]
fn command_that_cannot_print_fails_and_says_so() {
    let h = Harness::usual();
    let key = h.key();
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
    h.ledger(1);
    // The recorder has a failure, too.
    assert_eq!(h.chat(&key, &with(chat("x"), "model", "no-such")).status(), 404);
    let free = ["--listen", "127.0.0.1:0"];
    let demo = ["demo", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let provider = [&["provider"], &free[..]].concat();
    for args in [
        &["--help"][..],
        &["--version"],
        &["completions", "bash"],
        &["check"],
        &["models"],
        &["models", "--json"],
        &["keys", "list"],
        &["keys", "show", &key[8..20]],
        &["usage"],
        &["usage", "--csv"],
        &["usage", "--budgets"],
        &["status"],
        &["requests"],
        &["requests", "--json"],
        &["ledger", "verify"],
        &["ledger", "audit"],
        &["ledger", "export"],
        &demo,
        &provider,
    ] {
        let output = with_output(&h, args, full());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = failed(&output);
        assert!(said.ends_with("error: standard output: No space left on device (os error 28)\n"), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
    // A reader that has gone away is no failure.
    for args in [&["--help"][..], &["models"], &["usage"], &["status"], &["requests", "--json"], &["ledger", "export"]]
    {
        let output = with_output(&h, args, abandoned());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked"), "{args:?}: {said}");
    }
}
