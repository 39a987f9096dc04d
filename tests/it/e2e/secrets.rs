//! Credentials that change while the gateway runs: from a file that changes, and from a program that runs again when
//! the provider rejects its credential.

use super::client::get;
use super::harness::{CREDENTIAL, Harness, Setup, chat, with};
use super::process::{Folder, Process, free_port, run, wait_for};
use super::recorder::Recorder;
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
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
fn empty_credential_stops_only_what_needs_it() {
    let h = Harness::start(&Setup::default());
    h.key();
    let asks = |words: &[&str]| run(h.folder.path(), words, &[(CREDENTIAL.0, "")]);
    for words in [&["usage"][..], &["status"], &["keys", "list"], &["requests"]] {
        let done = asks(words);
        assert_eq!(done.code, 0, "{words:?}: {}", done.err);
    }
    let done = asks(&["check"]);
    assert!(done.code == 1 && done.err.contains("the environment variable `SIM_KEY` is empty"), "{}", done.err);
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

/// A value is data wherever it has quotes, backslashes or the syntax of a configuration. One that a header cannot carry
/// is refused without being shown.
#[test]
fn value_of_a_variable_is_sent_exactly_or_refused() {
    let h = Harness::usual();
    let (recorder, at) = Recorder::start();
    let text = fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    let [listen, admin] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let text = text.replace(&h.at.to_string(), &listen.to_string()).replace(&h.admin.to_string(), &admin.to_string());
    let text = text.replace("sqlite:tollgate.db", "sqlite:other.db")
        + &format!(
            "[[providers]]\nname = \"odd\"\nshape = \"chat\"\nbase_url = \"http://{at}/v1\"\n\
             api_key = {{ env = \"ODD_KEY\" }}\n[[models]]\nid = \"odd\"\ncontext = \"8K\"\n\
             targets = [{{ provider = \"odd\", model = \"m\" }}]\n"
        );
    fs::write(h.folder.path().join("other.toml"), text).unwrap();
    let issue = ["keys", "issue", "--name", "x", "--config", "other.toml"];
    for value in ["a\"b\\c'd", "\"]\n#", "${HOME} {env:X} %41 = # [x]", "sk-1\n", "sk-1\r\n", "\u{e9}\u{1f600}"] {
        let env = [CREDENTIAL, ("ODD_KEY", value)];
        let checked = run(h.folder.path(), &["check", "--config", "other.toml"], &env);
        let sent = value.trim();
        let fits = sent.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if checked.code != 0 {
            assert!(!fits && checked.err.contains("api_key: ") && !checked.err.contains(sent), "{}", checked.err);
            continue;
        }
        let key = run(h.folder.path(), &issue, &env).out;
        let mut gateway = Process::start(h.folder.path(), "odd", &["serve", "--config", "other.toml"], &env);
        wait_for("the gateway", || {
            assert!(!gateway.has_ended(), "{}", gateway.written());
            get(admin, "/readyz").ok().filter(|answer| answer.status() == 200)
        });
        let request = super::harness::chat_request(key.trim(), &with(chat("x"), "model", "odd"));
        let answer = super::client::Client::connect(listen).ask(&request);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let received = recorder.taken().remove(0);
        let line = format!("authorization: Bearer {sent}");
        assert!(received.lines().any(|found| found == line), "{line}: {received}");
        assert!(!gateway.written().contains(sent), "{}", gateway.written());
        gateway.stop("TERM");
    }
}
