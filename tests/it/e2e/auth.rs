//! Keys from the command line while a gateway runs: issue, rotation, revocation, and what is shown of them.

use super::client::{Client, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat};
use super::process::wait_for;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time within which a running gateway notices that a key was issued or revoked.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Makes several changes and waits until each is visible. More than half of them must be visible within
/// [`SEEN_WITHIN`]: a busy machine delays some, while a gateway that polls too rarely would be late most of the time.
fn are_seen_in_time<T>(changes: &[T], what: &str, change: impl Fn(&T), seen: impl Fn(&T) -> bool) {
    let mut times: Vec<Duration> = (changes.iter())
        .map(|one| {
            change(one);
            let start = Instant::now();
            wait_for(what, || seen(one).then_some(()));
            start.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[times.len() / 2] <= SEEN_WITHIN, "{what}: {times:?}");
}

fn id_of(key: &str) -> &str {
    &key["tg_live_".len()..][..12]
}

#[test]
fn both_keys_work_during_rotation_and_changes_apply_within_a_second() {
    let h = Harness::usual();
    let issued = [(); 5].map(|()| std::cell::OnceCell::new());
    let key = |cell: &std::cell::OnceCell<String>| cell.get_or_init(|| h.issue(&[])).clone();
    are_seen_in_time(&issued, "the new key", |cell| drop(key(cell)), |cell| h.status_of(&key(cell)) == 200);
    let keys = issued.each_ref().map(key);
    assert!(keys.iter().all(|key| h.status_of(key) == 200), "old and new secrets must both work");
    let (new, old) = keys.split_first().unwrap();
    let revoke = |key: &String| drop(h.done(&["keys", "revoke", id_of(key)]));
    are_seen_in_time(old, "the revocation", revoke, |key| h.status_of(key) == 401);
    assert_eq!(h.status_of(new), 200);
}

/// Rule: the secret is shown once and never stored.
#[test]
fn a_key_is_shown_once_and_listed_without_its_secret() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "two", "--models", "small", "--expires", "30d"]);
    let list: Value = serde_json::from_str(&h.done(&["keys", "list", "--json"])).unwrap();
    let entry = &list[0];
    assert_eq!((&entry["id"], &entry["plan"], &entry["name"]), (&json!(id_of(&key)), &json!("two"), &json!("test")));
    let shown = h.done(&["keys", "show", id_of(&key)]);
    let table = h.done(&["keys", "list"]);
    let secret = &key[20..52];
    for text in [&list.to_string(), &shown, &table] {
        assert!(text.contains(id_of(&key)) && !text.contains(secret), "{text}");
    }
    for file in std::fs::read_dir(h.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert_eq!(super::client::find(&bytes, secret.as_bytes()), None, "the secret is in a file");
    }
}

#[test]
fn keys_commands_distinguish_success_failure_and_misuse() {
    let h = Harness::usual();
    assert_eq!(h.command(&["keys", "issue"]).code, 2, "--name is missing");
    assert_eq!(h.command(&["keys", "issue", "--name", "x", "--expires", "soon"]).code, 2);
    let plan = h.command(&["keys", "issue", "--name", "x", "--plan", "no-such"]);
    assert!(plan.code != 0 && plan.err.contains("no-such") && plan.out.is_empty(), "{}", plan.err);
    let absent = h.command(&["keys", "issue", "--name", "x", "--models", "no-such"]);
    assert_eq!(absent.code, 2, "a model that is not configured: {}", absent.err);
    let unknown = h.command(&["keys", "revoke", "AAAAAAAAAAAA"]);
    assert!(unknown.code == 1 && !unknown.err.is_empty(), "{}", unknown.err);
    assert_eq!(h.command(&["keys", "show", "not an id"]).code, 1);
}

/// Neither another spelling of a path nor a `host` opens an endpoint or reaches the admin API.
#[test]
fn no_path_and_no_host_changes_authentication() {
    let h = Harness::usual();
    let key = h.key();
    let paths = [
        ("/v1/models", true),
        ("//v1///models", true),
        ("/v1/models/", true),
        ("/v1/quota?x=/healthz", true),
        ("/v1/quota?", true),
        ("http://elsewhere.test/v1/quota", true),
        ("/%2fv1/models", false),
        ("/v1%2fmodels", false),
        ("/v1/models%2f", false),
        ("/%76%31/quota", false),
        ("/v1/./quota", false),
        ("/healthz/../v1/quota", false),
        ("/healthz/..%2fv1/quota", false),
        ("/v1/quota;x", false),
        ("/V1/QUOTA", false),
        ("/v1/quota%00", false),
        ("/v1/quota/../../healthz", false),
        ("/admin/v1/keys", false),
        ("//admin/v1/keys", false),
        ("/%61dmin/v1/keys", false),
        ("/metrics", false),
        ("//metrics", false),
    ];
    let [at, admin] = [h.at, h.admin].map(|address| address.to_string());
    let hosts = ["gateway", "localhost", &at, &admin, "127.0.0.1", "[::1]:9090", "admin", "evil.test", ""];
    let status = |at: SocketAddr, path: &str, host: &str, key: Option<&str>| {
        let fields = key.map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
        let text = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{fields}connection: close\r\n\r\n");
        Client::connect(at).ask(text.as_bytes()).status()
    };
    for (path, is_known) in paths {
        let usual = status(h.at, path, "gateway", Some(&key));
        assert_eq!(usual == 200, is_known, "{path}: {usual}");
        for host in hosts {
            assert_eq!(status(h.at, path, host, Some(&key)), usual, "{path} {host}");
            for stranger in [None, Some("tg_live_wrong")] {
                let without = status(h.at, path, host, stranger);
                assert!(without == 401 || (!is_known && [400, 404].contains(&without)), "{path} {host}: {without}");
            }
        }
    }
    // The admin API with a token: only what its own paths name, and only with the token.
    let more = "admin_token = { env = \"SIM_KEY\" }";
    let h = Harness::start(&Setup { server: more, ..Setup::default() });
    for path in
        ["/admin/v1/keys", "//admin/v1/keys", "/admin//v1/keys", "/%61dmin/v1/keys", "/healthz/../admin/v1/keys"]
    {
        for host in hosts {
            for stranger in [None, Some("wrong")] {
                let without = status(h.admin, path, host, stranger);
                assert!([400, 401, 403, 404, 421].contains(&without), "{path} {host}: {without}");
            }
        }
    }
}

/// A client that uses a revoked key needs attention, by the name of the key.
#[test]
fn revoked_key_is_listed_with_its_name_among_refused_callers() {
    let server = "record_requests = true\nadmin_hosts = [\"gateway.test\"]\nadmin_token = { env = \"SIM_KEY\" }";
    let h = Harness::start(&Setup { server, ..Setup::default() });
    let gone = h.done(&["keys", "issue", "--name", "gone"]).trim().to_owned();
    wait_for("the gateway to know the key", || (h.status_of(&gone) == 200).then_some(()));
    h.done(&["keys", "revoke", "gone"]);
    wait_for("the end of the key", || (h.status_of(&gone) == 401).then_some(()));
    // More than the requests that waited for the changes of the key, of which a fast machine sends a hundred.
    (0..1000).for_each(|_| assert_eq!(h.chat(&gone, &chat("x")).status(), 401));
    let found = h.done(&["requests", "--key", "gone", "--status", "401"]);
    assert!(found.contains("key: revoked") && found.contains(" gone "), "{found}");
    let fields = [("authorization", &*bearer(CREDENTIAL.1))];
    let status = Client::connect(h.admin).ask(&request("GET", "/admin/v1/status", &fields)).json();
    let refused = status["refused"].as_array().unwrap_or_else(|| panic!("{status}"));
    let one = refused.iter().find(|one| one["name"] == "gone");
    assert_eq!(one.map(|one| &one["status"]), Some(&401.into()), "{status}");
}
