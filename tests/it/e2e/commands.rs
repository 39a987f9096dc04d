//! `check`, `models` and `usage`, as an operator types them.

use super::client::{Client, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, message, with};
use super::process::{Folder, run, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[test]
fn check_passes_a_good_configuration_and_prints_it_without_secrets() {
    let h = Harness::usual();
    let checked = h.command(&["check"]);
    assert!(checked.code == 0 && checked.out.contains("hint: Claude Code's model menu"), "{}", checked.out);
    let printed = h.done(&["check", "--print"]);
    for line in ["max_body = \"32MiB\"", "keepalive_timeout = \"75s\"", "id = \"small\"", "period = \"month\""] {
        assert!(printed.contains(line), "{line}:\n{printed}");
    }
    assert!(!printed.contains(CREDENTIAL.1), "{printed}");
}

#[test]
fn errors_of_the_configuration_name_file_line_and_field() {
    let folder = Folder::new();
    let good = "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
                [[models]]\nid = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";
    for (text, line, field) in [
        (good.replace("\"1M\"", "\"1X\""), 7, "models[0].context"),
        (good.replace("provider = \"p\"", "provider = \"q\""), 8, "models[0].targets[0].provider"),
        (format!("{good}[server]\nlisten_on = \"x\"\n"), 10, "server.listen_on"),
        (format!("{good}[server]\nmax_body = \"lots\"\n"), 10, "server.max_body"),
        (
            good.replace("shape = \"chat\"", "shape = \"chat\"\napi_key = { env = \"NOT_SET_ANYWHERE\" }"),
            4,
            "providers[0].api_key",
        ),
        (good.replace("[[models]]", "[[models]"), 5, ""),
    ] {
        fs::write(folder.path().join("tollgate.toml"), &text).unwrap();
        for command in ["check", "serve"] {
            let done = run(folder.path(), &[command], &[]);
            assert_ne!(done.code, 0, "{field}");
            let start = format!("error: tollgate.toml:{line}: {field}");
            assert!(done.err.starts_with(&start), "expected {start}, got {}", done.err);
        }
    }
    fs::write(folder.path().join("tollgate.toml"), [good.as_bytes(), b"# caf\xe9\n"].concat()).unwrap();
    let latin = run(folder.path(), &["check"], &[]);
    assert_eq!((latin.code, latin.err.as_str()), (1, "error: tollgate.toml:9: not UTF-8\n"));
    let absent = run(folder.path(), &["check", "--config", "no-such-file.toml"], &[]);
    assert!(absent.code != 0 && absent.err.contains("no-such-file.toml"), "{}", absent.err);
}

#[test]
fn printed_configuration_does_not_depend_on_its_folder() {
    let folder = Folder::new();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    fs::create_dir(&here).unwrap();
    fs::create_dir(&there).unwrap();
    fs::write(here.join("key"), "sk-in-a-file").unwrap();
    let text = "[store]\nurl = \"sqlite:data/t.db\"\n[[providers]]\nname = \"p\"\nshape = \"chat\"\n\
                base_url = \"http://127.0.0.1:1/v1\"\napi_key = { file = \"key\" }\n\
                [[models]]\nid = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";
    fs::write(here.join("t.toml"), text).unwrap();
    let printed = run(folder.path(), &["check", "--print", "--config", "here/t.toml"], &[]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    for path in [format!("\"sqlite:{}/data/t.db\"", here.display()), format!("\"{}/key\"", here.display())] {
        assert!(printed.out.contains(&path), "{path}:\n{}", printed.out);
    }
    fs::write(there.join("copy.toml"), &printed.out).unwrap();
    let again = run(folder.path(), &["check", "--print", "--config", "there/copy.toml"], &[]);
    assert_eq!((again.code, again.out), (0, printed.out));
    let wrong = run(folder.path(), &["check", "--print", "--config", "here/key"], &[]);
    assert!(
        wrong.code == 1 && wrong.err.starts_with("error: here/key:1: "),
        "the error must name the file as given: {}",
        wrong.err
    );
}

#[test]
fn usage_is_reported_by_key_model_day_and_target() {
    let h = Harness::usual();
    let key = h.key();
    h.chat(&key, &chat("one two\n#sim tokens=5 cached=1"));
    h.messages(&key, &message("one two\n#sim tokens=7"));
    let ledger = h.ledger(2);
    assert_eq!((ledger.input, ledger.output), (9, 12));
    let names = |by: &str| h.usage(by).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(names("key"), [&key[8..20]]);
    let mut models = names("model");
    models.sort();
    assert_eq!(models, ["large", "small"]);
    let mut targets = names("target");
    targets.sort();
    assert_eq!(targets, ["sim-chat/up-small", "sim-messages/up-large"]);
    let days = names("day");
    assert!(days.len() == 1 && days[0].len() == 10, "{days:?}");
    let line = h.usage("model").into_iter().find(|line| line["name"] == "small").unwrap();
    // 4 uncached and 1 cached input token at 0.25, and 5 output tokens at 2.00 dollars per million, in nano-dollars.
    assert_eq!(line["cost_nano_usd"], 5 * 250 + 5 * 2000);
    assert!(h.done(&["usage"]).contains(&key[8..20]), "a table, too");
    let none: Value = serde_json::from_str(&h.done(&["usage", "--json", "--until", "2020-01-01"])).unwrap();
    assert_eq!(none, Value::Array(Vec::new()));
    assert_eq!(h.command(&["usage", "--since", "tomorrow"]).code, 2);
    assert_eq!(h.command(&["usage", "--by", "moon"]).code, 2);
}

#[test]
fn help_and_version_work_and_misuse_is_reported() {
    let folder = Folder::new();
    let help = run(folder.path(), &["--help"], &[]);
    assert_eq!(help.code, 0);
    for command in ["serve", "demo", "provider", "check", "keys", "models", "usage"] {
        assert!(help.out.contains(command), "{command}");
    }
    let version = run(folder.path(), &["--version"], &[]).out;
    let (start, rest) = version.trim().split_once(" (").unwrap();
    assert_eq!(start, format!("tollgate {}", env!("CARGO_PKG_VERSION")));
    let parts: Vec<&str> = rest.trim_end_matches(')').split(", ").collect();
    let [commit, target, features] = parts[..] else { panic!("{version}") };
    // In a source archive, git finds no repository or a foreign one.
    let git = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--show-prefix"]).output();
    let archive = git.map_or(true, |git| !git.status.success() || git.stdout != b"\n");
    let known = commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit());
    assert!(known || (archive && commit == "no commit"), "{version}");
    assert!(target.contains("-linux-"), "{version}");
    assert_eq!(features, if cfg!(feature = "redis") { "with redis" } else { "without redis" });
    assert_eq!(run(folder.path(), &["no-such-command"], &[]).code, 2);
    assert_eq!(run(folder.path(), &[], &[]).code, 2);
}

#[test]
fn keys_of_a_file_are_listed_in_pages() {
    let setup = Setup {
        server: "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]",
        ..Setup::default()
    };
    keys_are_listed_in_pages(&Harness::start(&setup));
}

/// Checks the listing of keys with any kind of ledger, by issuing some more.
pub fn keys_are_listed_in_pages(h: &Harness) {
    let issued = |name: &str| {
        // With a shared ledger, a command knows the time only to some milliseconds.
        std::thread::sleep(Duration::from_millis(200));
        h.done(&["keys", "issue", "--name", name])[8..20].to_string()
    };
    let ids: Vec<String> = ["team one", "team two", "other", "team three"].iter().map(|name| issued(name)).collect();
    let listed = |more: &[&str]| -> Vec<Value> {
        let text = h.done(&[&["keys", "list", "--json"], more].concat());
        serde_json::from_str::<Vec<Value>>(&text).unwrap()
    };
    let of = |more: &[&str]| -> Vec<String> {
        listed(more).iter().map(|key| key["id"].as_str().unwrap().to_string()).collect()
    };
    let all = of(&[]);
    assert_eq!(all[all.len() - 4..], ids, "keys must be listed in the order of their issue");
    assert_eq!(of(&["--after", &ids[0], "--limit", "2"]), ids[1..3]);
    assert_eq!(of(&["--name", "team t*"]), [ids[1].clone(), ids[3].clone()]);
    assert_eq!(of(&["--name", "team t*", "--limit", "1"]), [ids[1].clone()]);
    assert_eq!(of(&["--name", "team"]), [""; 0]);
    assert_eq!(of(&["--after", &ids[3]]), [""; 0]);
    assert_eq!(h.command(&["keys", "list", "--after", "AAAAAAAAAAAA"]).code, 1, "the key does not exist");
    assert_eq!(h.command(&["keys", "list", "--name", "zz*"]).err, "No keys match --name zz*\n");
    let table = h.done(&["keys", "list", "--name", "other"]);
    assert!(table.starts_with("ID ") && table.lines().count() == 2, "{table}");
    let token = bearer(CREDENTIAL.1);
    let page = |query: &str| {
        let head = request("GET", &format!("/admin/v1/keys?{query}"), &[("authorization", token.as_str())]);
        let answer = Client::connect(h.admin).ask(&head);
        (answer.status(), answer.json())
    };
    let (status, first) = page(&format!("limit=2&after={}", ids[0]));
    let told = |page: &Value| page["data"].as_array().unwrap().iter().map(|key| key["id"].clone()).collect::<Vec<_>>();
    assert_eq!(
        (status, told(&first), &first["next"]),
        (200, told(&json!({"data": [{"id": ids[1]}, {"id": ids[2]}]})), &json!(ids[2]))
    );
    let (_, last) = page(&format!("limit=2&after={}", ids[2]));
    assert_eq!((told(&last), &last["next"]), (vec![json!(ids[3])], &Value::Null));
    for wrong in ["AAAAAAAAAAAA", "7", ""] {
        assert_eq!(page(&format!("after={wrong}")).0, 400, "{wrong}");
    }
    h.done(&["keys", "revoke", "other"]);
    assert_eq!(h.command(&["keys", "set", "other", "--disable"]).code, 1, "the key is revoked");
}

#[test]
fn requests_of_a_revoked_key_are_found_by_its_name() {
    let setup = Setup { server: "admin_token = { env = \"SIM_KEY\" }\nrecord_requests = true", ..Setup::default() };
    let mut h = Harness::start(&setup);
    let none = h.command(&["requests"]);
    assert!(none.code == 0 && none.out.is_empty(), "{}", none.out);
    assert!(none.err.starts_with("No request is recorded. Kept: all since ") || none.err.contains("begins now"));
    let key = h.done(&["keys", "issue", "--name", "carol"]).trim_end().to_owned();
    assert_eq!(h.status_of(&key), 200);
    h.done(&["keys", "revoke", "carol"]);
    wait_for("the revocation", || (h.status_of(&key) == 401).then_some(()));
    let rows = |h: &Harness| -> Vec<String> {
        let out = h.done(&["requests", "--wide", "--key", "carol"]);
        out.lines().skip(1).map(str::to_owned).collect()
    };
    let (all, refused) = (rows(&h), |row: &String| row.contains(" 401 ") && row.contains(" carol "));
    assert!(all[0].contains(" 200 ") && refused(&all[all.len() - 1]), "{all:?}");
    h.gateway.stop("TERM");
    h.start_again();
    assert_eq!(h.status_of(&key), 401);
    let all = rows(&h);
    assert!(all.len() == 1 && refused(&all[0]), "after a restart: {all:?}");
    let json = h.done(&["requests", "--key", "carol", "--json"]);
    assert!(json.contains(&key[8..20]) && json.lines().count() == 1, "{json}");
    assert_eq!(h.command(&["requests", "--key", "nobody"]).code, 1);
}

#[test]
fn status_names_the_cause_of_a_failing_target_and_what_is_spent() {
    let more = "[[groups]]\nname = \"crew\"\ntokens = 1\n".to_owned();
    let setup = Setup { server: "record_requests = true", upstream: "", more, ..Setup::default() };
    let h = Harness::start(&setup);
    let checked = h.done(&["check"]);
    assert!(checked.contains(" plans, 1 group)\n"), "{checked}");
    let key = h.key_with(&["--group", "crew"]);
    assert_eq!(h.chat(&key, &chat("one\n#sim tokens=5")).status(), 200);
    h.ledger(1);
    let said = wait_for("the spent quota", || {
        Some(h.done(&["status"])).filter(|said| said.contains("group `crew`: tokens for a month spent since "))
    });
    assert!(said.starts_with("healthy\n  notice: group `crew`: tokens for a month spent since "), "{said}");
    let key = h.key();
    let gone = with(chat("x"), "model", "gone");
    (0..6).for_each(|_| assert_ne!(h.chat(&key, &gone).status(), 200));
    let said = h.done(&["status"]);
    let at = said.find("target nobody/up-gone, since ").unwrap_or_else(|| panic!("{said}"));
    let lines: Vec<&str> = said[at..].lines().take(2).collect();
    assert!(lines[0].contains("failing: connect: refused"), "{said}");
    (0..5).for_each(|_| assert_eq!(h.chat(&key, &chat("x\n#sim status=500")).status(), 500));
    assert_eq!(h.chat(&key, &chat("one\n#sim tokens=5")).status(), 200);
    let repaired = h.done(&["status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "partly failing: status 500, 5 of 7 attempts failed in 5 min, none since ";
    assert!(repaired.contains(words), "{repaired}");
    assert!(
        lines[0].contains("6 requests of clients failed") && lines[1].contains("tollgate check --connect"),
        "{said}"
    );
}

/// The file could name files that only root can read, and the address to which a command sends their content. As
/// another user the test has nothing to refuse.
#[test]
fn root_uses_no_configuration_of_another_user_that_it_finds() {
    let folder = Folder::new();
    let (path, port) = (folder.path().join("tollgate.toml"), super::process::free_port());
    fs::write(folder.path().join("secret"), "only-for-root\n").unwrap();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:{port}\"\n\
         admin_token = {{ file = \"secret\" }}\n\
         [[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\n\
         api_key = {{ env = \"ROOT_KEY\" }}\n"
    );
    fs::write(&path, text).unwrap();
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        return;
    }
    for args in [&["status"][..], &["requests"], &["ready"], &["check", "--connect"], &["keys", "list"], &["serve"]] {
        let done = run(folder.path(), args, &[("ROOT_KEY", "root-has-a-key")]);
        let said = done.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(done.code == 1 && said.contains("root does not use a file of user 65534"), "{args:?}: {said}");
    }
    let named = run(folder.path(), &["check", "--config", "./tollgate.toml"], &[("ROOT_KEY", "root-has-a-key")]);
    assert!(!named.err.contains("root does not use"), "{}", named.err);
}
