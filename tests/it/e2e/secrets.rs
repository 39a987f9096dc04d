//! Credentials that change while the gateway runs: from a file that changes, and from a program that runs again when
//! the provider rejects its credential.

use super::client::get;
use super::harness::{CREDENTIAL, Harness, Setup, chat, with};
use super::process::{Folder, wait_for};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

/// Returns a provider called `keyed` with this credential, and a model called `of-keyed`.
fn keyed(credential: &str) -> Setup {
    let more = format!(
        "[[providers]]\nname = \"keyed\"\nshape = \"chat\"\nbase_url = \"http://{{provider}}/v1\"\n{credential}\n\
         [[models]]\nid = \"of-keyed\"\ncontext = \"1K\"\ntargets = [{{ provider = \"keyed\", model = \"m\" }}]\n"
    );
    Setup { more, ..Setup::default() }
}

fn status(h: &Harness, key: &str) -> u16 {
    h.chat(key, &with(chat("hi"), "model", "of-keyed")).status()
}

#[test]
fn credential_file_is_read_again_when_it_changes() {
    let folder = Folder::new();
    let file = folder.path().join("key");
    fs::write(&file, "not-the-one\n").unwrap();
    let mut h = Harness::start(&keyed(&format!("api_key = {{ file = \"{}\" }}", file.display())));
    let key = h.key();
    assert_eq!(status(&h, &key), 500);
    fs::write(&file, format!("{}\n", CREDENTIAL.1)).unwrap();
    wait_for("the provider to accept it", || (status(&h, &key) == 200).then_some(()));
    fs::write(&file, "").unwrap();
    wait_for("the error in the log", || {
        let said = |line: &Value| line["event"] == "credential" && line["outcome"] == "failed";
        h.log().iter().any(said).then_some(())
    });
    assert_eq!(status(&h, &key), 200, "the last credential must stay in use");
    assert!(h.log().iter().any(|line| line["event"] == "credential" && line["outcome"] == "renewed"));
    h.gateway.stop("TERM");
    assert!(!h.gateway.written().contains(CREDENTIAL.1));
}

#[test]
fn credential_program_runs_again_when_its_credential_is_rejected() {
    // The program prints another credential once a file called `ready` exists.
    let program = format!("test -e ready && echo {} || echo early", CREDENTIAL.1);
    let h = Harness::start(&keyed(&format!(
        "api_keys = [{{ command = [\"sh\", \"-c\", \"{program}\"], refresh = \"1h\", weight = 1000 }}, \
         {{ env = \"SIM_KEY\" }}]"
    )));
    let key = h.key();
    fs::write(h.folder.path().join("ready"), "").unwrap();
    assert_eq!(status(&h, &key), 200, "the second credential serves the request");
    wait_for("the cool-down in the log", || {
        let rests = |line: &Value| line["event"] == "target" && line["target"] == "keyed#1";
        h.log().iter().any(rests).then_some(())
    });
    let asked = with(chat("hi"), "model", "of-keyed");
    wait_for("the cool-down to end", || {
        let line = h.log_of(&h.chat(&key, &asked).id());
        (line["target"] == "keyed#1/m").then_some(())
    });
    let metrics = get(h.admin, "/metrics").unwrap().text().to_owned();
    assert!(metrics.contains("tollgate_upstream_responses_total{target=\"keyed#1/m\",status=\"401\"} 1"), "{metrics}");
    assert!(metrics.contains("{target=\"keyed#2/m\",status=\"200\"}"), "{metrics}");
}

#[test]
fn credential_that_is_renewed_after_its_rejection_is_found() {
    let program = format!("test -e ready && echo {} || echo early", CREDENTIAL.1);
    let h =
        Harness::start(&keyed(&format!("api_key = {{ command = [\"sh\", \"-c\", \"{program}\"], refresh = \"1h\" }}")));
    let key = h.key();
    assert_eq!(status(&h, &key), 500);
    fs::write(h.folder.path().join("ready"), "").unwrap();
    wait_for("the provider to accept it", || (status(&h, &key) == 200).then_some(()));
}

#[test]
fn credential_program_ends_with_the_gateway() {
    // The test finds the program by the argument of its `sleep` process.
    let mark = format!("620.{}", std::process::id());
    let program = format!("test -e slow && sleep {mark}; echo {}", CREDENTIAL.1);
    let mut h =
        Harness::start(&keyed(&format!("api_key = {{ command = [\"sh\", \"-c\", \"{program}\"], refresh = \"1s\" }}")));
    let key = h.key();
    assert_eq!(status(&h, &key), 200);
    fs::write(h.folder.path().join("slow"), "").unwrap();
    let sleeping = format!("sleep {mark}");
    let runs = || {
        let mut look = Command::new("pgrep");
        look.args(["-xf", &sleeping]).stdout(Stdio::null()).status().unwrap().success()
    };
    wait_for("the program to run", || runs().then_some(()));
    assert_eq!(h.gateway.stop("TERM").code(), Some(0));
    wait_for("the program to have ended", || (!runs()).then_some(()));
}
