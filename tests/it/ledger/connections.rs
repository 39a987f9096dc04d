//! Connections of commands and gateways to a shared ledger: with a password, over TLS, and to a server that answers
//! late or never.

use super::harness::{Harness, Setup, chat};
use super::process::{Folder, free_port, run};
use super::races::PLANS;
use super::shared::{Server, agree, key_of, url_gateway};
use std::path::Path;
use std::time::Duration;
use tollgate::store::bounds;

#[test]
fn missing_append_only_file_is_warned_of_and_passwords_are_never_shown() {
    let Some(server) = Server::with(&["--appendonly", "no", "--requirepass", "s3cret-word"]) else { return };
    let url = server.url().replace("redis://", "redis://:s3cret-word@");
    let h = url_gateway(&url, "");
    let key = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    let warned = h.log().into_iter().find(|line| line["event"] == "warning").expect("a warning");
    assert!(warned["message"].as_str().unwrap().contains("append-only"), "{warned}");
    assert!(!h.gateway.written().contains("s3cret-word"));
    let gone = Harness::start(&Setup { more: PLANS.to_owned(), ..Setup::default() });
    let wrong = server.url().replace("redis://", "redis://:another@");
    let text = std::fs::read_to_string(gone.folder.path().join("tollgate.toml")).unwrap();
    let text = text.replace("sqlite:tollgate.db", &wrong);
    std::fs::write(gone.folder.path().join("wrong.toml"), text).unwrap();
    let failed = gone.command(&["keys", "list", "--config", "wrong.toml"]);
    assert_eq!(failed.code, 1);
    assert!(!failed.err.contains("another"), "{}", failed.err);
    // The words of the server say what is wrong.
    let begin = format!("error: redis://***@127.0.0.1:{}/0: WRONGPASS ", server.port);
    assert!(failed.err.starts_with(&begin), "{}", failed.err);
}

#[test]
fn user_password_and_database_are_those_of_the_url() {
    let user = ["--user", "ann", "on", ">p@ss/:w%", "~*", "&*", "+@all"];
    let Some(server) = Server::with(&[&["--appendonly", "yes", "--requirepass", "other"][..], &user].concat()) else {
        return;
    };
    let at = |login: &str, db: u8| format!("redis://{login}@127.0.0.1:{}/{db}", server.port);
    let [first, second] = [1, 2].map(|db| url_gateway(&at("ann:p%40ss%2F:w%25", db), ""));
    let key = key_of(std::slice::from_ref(&first), &[]);
    assert_eq!((first.chat(&key, &chat("x")).status(), second.chat(&key, &chat("x")).status()), (200, 401));
    // The default user finds the same database.
    let third = url_gateway(&at(":other", 1), "");
    assert_eq!(third.chat(&key, &chat("x")).status(), 200);
}

#[test]
fn command_reports_a_server_that_does_not_answer() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (folder, url) = (Folder::new(), format!("redis://{}/0", silent.local_addr().unwrap()));
    let text = format!(
        "[store]\nurl = \"{url}\"\n[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://h/v1\"\n\
         [[models]]\nid = \"m\"\ncontext = 1\ntargets = [{{ provider = \"p\" }}]\n"
    );
    std::fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    let failed = run(folder.path(), &["keys", "list"], &[]);
    assert_eq!((failed.code, failed.err), (1, format!("error: {url}: no answer in time\n")));
}

#[test]
fn a_command_waits_for_a_busy_server_longer_than_a_request_does() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    // Longer than a running gateway waits for a connection plus an answer.
    let stopped = bounds::SHARED_CONNECT.max(bounds::SHARED_ANSWER) + Duration::from_millis(500);
    server.signal("STOP");
    std::thread::scope(|scope| {
        let listed = scope.spawn(|| h.command(&["keys", "list"]));
        std::thread::sleep(stopped);
        server.signal("CONT");
        let listed = listed.join().unwrap();
        assert!(listed.code == 0 && listed.out.contains(&key[8..20]), "{}{}", listed.out, listed.err);
    });
}

/// Writes a self-signed certificate of a server and its key. Returns the paths of the certificate, the key and the CA
/// file, which is the certificate itself.
pub fn certificates(folder: &Path) -> [String; 3] {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let cert = write("cert.pem", made.cert.pem());
    [cert.clone(), write("key.pem", made.signing_key.serialize_pem()), cert]
}

#[test]
fn the_ledger_may_be_reached_over_tls() {
    let (folder, port) = (Folder::new(), free_port().to_string());
    let [cert, key, ca] = certificates(folder.path());
    let tls = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-auth-clients", "no"];
    let Some(server) = Server::with(&[&tls[..], &["--appendonly", "yes"]].concat()) else { return };
    let url = format!("rediss://localhost:{port}/0");
    let h = url_gateway(&url, &format!("ca_file = \"{ca}\""));
    let key = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    agree(&[h], &[&key]);
    drop(server);
}
