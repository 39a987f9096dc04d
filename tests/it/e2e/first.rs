//! The first day of a new operator: a first configuration, misspelled words, and errors that name a solution.

use super::harness::{Harness, chat};
use super::process::{Folder, Process, binary, free_port, run, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

const GOOD: &str = "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
                    [[models]]\nid = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";

/// Returns the standard error of `check`; empty for a valid configuration.
fn check(text: &str) -> String {
    let folder = Folder::new();
    fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    run(folder.path(), &["check"], &[]).err
}

#[test]
fn config_option_may_precede_or_follow_the_command() {
    let folder = Folder::new();
    fs::write(folder.path().join("mine.toml"), GOOD).unwrap();
    for args in [["--config", "mine.toml", "check"], ["check", "--config", "mine.toml"]] {
        let done = run(folder.path(), &args, &[]);
        let good = done.out.starts_with("mine.toml: ok (1 provider, 1 model, 1 plan)\n");
        assert!(done.code == 0 && good, "{}{}", done.out, done.err);
    }
    let listed = run(folder.path(), &["--config", "mine.toml", "keys", "list"], &[]);
    assert_eq!(listed.code, 0, "{}", listed.err);
    let twice = run(folder.path(), &["--config", "mine.toml", "check", "--config", "mine.toml"], &[]);
    assert_eq!((twice.code, twice.err.as_str()), (2, "error: --config is given twice: leave out one\n"));
    let useless = run(folder.path(), &["--config", "mine.toml", "demo"], &[]);
    assert_eq!((useless.code, useless.err.as_str()), (2, "error: this command does not use --config: leave it out\n"));
}

#[test]
fn wrong_word_gets_a_suggestion_and_errors_start_with_error() {
    let folder = Folder::new();
    for (args, near) in
        [(vec!["sevre"], "'serve'"), (vec!["keys", "isue"], "'issue'"), (vec!["usage", "--by", "modle"], "'model'")]
    {
        let done = run(folder.path(), &args, &[]);
        assert_eq!(done.code, 2);
        assert!(done.err.starts_with("error: ") && done.err.contains(near), "{args:?}: {}", done.err);
    }
    let absent = run(folder.path(), &["serve"], &[("TOLLGATE_CONFIG", "")]);
    assert_eq!(absent.code, 1);
    assert!(absent.err.starts_with("error: no configuration: "), "{}", absent.err);
    assert!(absent.err.contains("`tollgate init`") && absent.err.contains("`tollgate demo`"), "{}", absent.err);
    let evil = run(folder.path(), &["keys", "issue", "--name", "a\x1b[2Jb"], &[]);
    assert!(evil.code == 2 && !evil.err.contains('\x1b') && evil.err.contains("a?[2Jb"), "{:?}", evil.err);
}

#[test]
fn every_failing_command_prefixes_its_message() {
    let folder = Folder::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = busy.local_addr().unwrap().to_string();
    fs::write(folder.path().join("tollgate.toml"), format!("[server]\nlisten = \"{taken}\"\n{GOOD}")).unwrap();
    fs::write(folder.path().join("bad.toml"), "shape = \"x\"\n[server]\nlisten = 5\n").unwrap();
    let listen = format!("--listen {taken}");
    for line in [
        "serve",
        "serve --config bad.toml",
        "serve --config no-such.toml",
        "demo --listen nowhere",
        &format!("demo {listen}"),
        &format!("provider {listen}"),
        "init",
        "init --config no/such/folder.toml",
        "check --config bad.toml",
        "check --connect",
        "ready",
        "ready --admin 127.0.0.1:1",
        "keys issue",
        "keys issue --name n --plan none",
        "keys list --config bad.toml",
        "keys show nobody",
        "keys set nobody",
        "keys set nobody --name n",
        "keys rotate nobody",
        "keys revoke nobody",
        "models --all",
        "usage --since tomorrow",
        "ledger recount",
        "completions tcl",
    ] {
        let done = run(folder.path(), &line.split(' ').collect::<Vec<_>>(), &[]);
        assert!(matches!(done.code, 1 | 2), "{line}: {}", done.code);
        assert!(done.err.starts_with("error: "), "{line}: {}", done.err);
    }
    let help = run(folder.path(), &[], &[]);
    assert!(help.code == 2 && help.err.starts_with("LLM gateway: "), "{}", help.err);
}

#[test]
fn completions_know_every_command() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = run(folder.path(), &["completions", shell], &[]);
        assert_eq!(done.code, 0, "{}", done.err);
        for word in ["serve", "demo", "init", "check", "ready", "keys", "rotate", "completions"] {
            assert!(done.out.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(run(folder.path(), &["completions", "tcl"], &[]).code, 2);
}

#[test]
fn configuration_may_come_from_an_environment_variable() {
    let folder = Folder::new();
    let variable = |text: &'static str| [("TOLLGATE_CONFIG_TOML", text)];
    let good = run(folder.path(), &["check"], &variable(GOOD));
    let begins = good.out.starts_with("$TOLLGATE_CONFIG_TOML: ok (1 provider, 1 model, 1 plan)\n");
    assert!(good.code == 0 && begins, "{}", good.out);
    let bad = run(folder.path(), &["check"], &variable("[server]\nlisten_on = 1\n"));
    assert!(bad.code == 1 && bad.err.starts_with("error: $TOLLGATE_CONFIG_TOML:"), "{}", bad.err);
    let printed = run(folder.path(), &["check", "--print"], &variable(GOOD));
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    let ledger = format!("\"sqlite:{}/tollgate.db\"", folder.path().canonicalize().unwrap().display());
    assert!(printed.out.contains(&ledger), "{ledger}:\n{}", printed.out);
    // Relative paths are relative to the working directory, and an explicitly named file takes precedence.
    assert_eq!(run(folder.path(), &["keys", "issue", "--name", "n"], &variable(GOOD)).code, 0);
    assert!(folder.path().join("tollgate.db").exists());
    let named = run(folder.path(), &["check", "--config", "no-such.toml"], &variable(GOOD));
    assert!(named.code == 1 && named.err.contains("no-such.toml"), "{}", named.err);
    let both = [("TOLLGATE_CONFIG_TOML", GOOD), ("TOLLGATE_CONFIG", "a.toml")];
    let both = run(folder.path(), &["check"], &both);
    assert!(both.code == 1 && both.err.contains("unset one of them"), "{}", both.err);
}

#[test]
fn a_gateway_serves_from_a_variable() {
    let folder = Folder::new();
    let port = free_port();
    let text = format!("[server]\nlisten = \"127.0.0.1:{}\"\nadmin_listen = \"localhost:{port}\"\n{GOOD}", free_port());
    let mut gateway = Process::start(folder.path(), "gateway", &["serve"], &[("TOLLGATE_CONFIG_TOML", &text)]);
    let admin = format!(":{port}");
    let ready = ["ready", "--admin", &admin];
    wait_for("the gateway to be ready", || (run(folder.path(), &ready, &[]).code == 0).then_some(()));
    gateway.signal("HUP");
    wait_for("the reload", || gateway.written().contains("\"outcome\":\"done\"").then_some(()));
    assert_eq!(gateway.stop("TERM").code(), Some(0));
}

#[test]
fn init_writes_found_providers_and_never_overwrites() {
    let folder = Folder::new();
    // No other known variable is set here.
    let names = ["ANTHROPIC", "GEMINI", "MISTRAL", "DEEPSEEK", "GROQ", "OPENROUTER", "XAI"]
        .map(|name| format!("{name}_API_KEY"));
    let mut env: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    env.push(("OPENAI_API_KEY", "sk-test"));
    let done = run(folder.path(), &["init"], &env);
    assert_eq!((done.code, done.out.as_str()), (0, "wrote tollgate.toml\n"), "{}", done.err);
    assert!(done.err.contains("found openai ($OPENAI_API_KEY)"), "{}", done.err);
    assert!(!done.err.contains("no prices"), "{}", done.err);
    let file = folder.path().join("tollgate.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("api_key = { env = \"OPENAI_API_KEY\" }") && !text.contains("sk-test"), "{text}");
    assert_eq!(run(folder.path(), &["check"], &env).code, 0);
    fs::write(&file, "mine").unwrap();
    let again = run(folder.path(), &["init"], &env);
    assert_eq!((again.code, fs::read_to_string(&file).unwrap().as_str()), (1, "mine"));
    assert!(again.err.contains("tollgate.toml already exists"), "{}", again.err);
    env.push(("GEMINI_API_KEY", "a-key"));
    let other = run(folder.path(), &["init", "--config", "other.toml"], &env);
    let warned = "warning: gemini-3.8-flash has no prices in the file: keys with a budget get 403 for it";
    assert!(other.code == 0 && other.err.contains(warned), "{}", other.err);
    assert!(folder.path().join("other.toml").exists());
}

#[test]
fn written_prices_replace_the_configuration_and_no_other_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    let config =
        GOOD.replace("\"p\"", "\"openai\"").replace("\"m\"", "\"gpt-4o\"").replace("127.0.0.1:1", "api.openai.com");
    fs::write(at("tollgate.toml"), config.replace("http:", "https:")).unwrap();
    fs::set_permissions(at("tollgate.toml"), fs::Permissions::from_mode(0o640)).unwrap();
    let list =
        r#"{"gpt-4o":{"litellm_provider":"openai","input_cost_per_token":0.0000025,"output_cost_per_token":0.00001}}"#;
    fs::write(at("list.json"), list).unwrap();
    fs::write(at("victim"), "mine").unwrap();
    std::os::unix::fs::symlink("victim", at("tollgate.toml.new")).unwrap();
    let names = || fs::read_dir(folder.path()).unwrap().count();
    let before = names();
    let done = run(folder.path(), &["prices", "--from", "list.json", "--write"], &[]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let written = fs::read_to_string(at("tollgate.toml")).unwrap();
    assert!(written.contains("input_price = 2.50") && written.contains("output_price = 10.00"), "{written}");
    assert_eq!((fs::read_to_string(at("victim")).unwrap().as_str(), names()), ("mine", before));
    assert_eq!(fs::symlink_metadata(at("tollgate.toml")).unwrap().permissions().mode(), 0o100_640);
    // The other name would keep the former prices.
    fs::hard_link(at("tollgate.toml"), at("second.toml")).unwrap();
    fs::write(at("list.json"), list.replace("0.00001", "0.00002")).unwrap();
    let done = run(folder.path(), &["prices", "--from", "list.json", "--write"], &[]);
    assert!(done.code == 1 && done.err.contains("tollgate.toml: it has a second name"), "{}", done.err);
    assert_eq!(fs::read_to_string(at("tollgate.toml")).unwrap(), written);
}

#[test]
fn interrupted_init_leaves_nothing_in_the_way() {
    let folder = Folder::new();
    let mut killed = Command::new("sh");
    killed.args(["-c", "ulimit -f 0; exec \"$0\" init"]).arg(binary()).current_dir(folder.path());
    assert!(!killed.output().unwrap().status.success());
    assert!(!folder.path().join("tollgate.toml").exists());
    assert_eq!(run(folder.path(), &["init"], &[]).code, 0);
    assert_eq!(run(folder.path(), &["init", "--config", "missing/a.toml"], &[]).code, 1);
    std::os::unix::fs::symlink("nowhere", folder.path().join("link.toml")).unwrap();
    assert!(run(folder.path(), &["init", "--config", "link.toml"], &[]).err.contains("already exists"));
}

/// The usual ports may be taken, for example by `tollgate demo`.
#[test]
fn init_writes_free_ports() {
    // Another test or program may have them already.
    let _taken = [8080, 9090].map(|port| TcpListener::bind(("127.0.0.1", port)));
    let folder = Folder::new();
    let done = run(folder.path(), &["init"], &[]);
    assert_eq!(done.code, 0);
    let text = fs::read_to_string(folder.path().join("tollgate.toml")).unwrap();
    let ports = [("listen = \"127.0.0.1:", "8080", "gateway"), ("admin_listen = \"127.0.0.1:", "9090", "dashboard")];
    for (key, usual, name) in ports {
        let port = text.lines().find_map(|line| line.strip_prefix(key)).and_then(|rest| rest.split('"').next());
        assert!(port.is_some_and(|port| port != usual), "{text}");
        assert!(done.err.contains(&format!("{name} http://127.0.0.1:{}", port.unwrap())), "{}", done.err);
    }
}

#[test]
fn init_says_which_variable_hides_its_file() {
    let folder = Folder::new();
    let said = "$TOLLGATE_CONFIG_TOML is set, so commands ignore this file";
    let done = run(folder.path(), &["init"], &[("TOLLGATE_CONFIG_TOML", GOOD)]);
    assert!(done.code == 0 && done.err.contains(said), "{}", done.err);
    let done = run(folder.path(), &["init", "--config", "b.toml"], &[("TOLLGATE_CONFIG", "b.toml")]);
    assert!(done.code == 0 && !done.err.contains("ignore"), "{}", done.err);
}

#[test]
fn standard_error_contains_no_control_characters() {
    let folder = Folder::new();
    let folded = |text: &str| text.chars().filter(|c| c.is_control() && *c != '\n').count();
    for text in ["\"a\\u001b[2Jb\\nc\" = 1\n", "[\"x\\u001b\"]\n", "a = \"\u{1b}\"\n"] {
        let done = run(folder.path(), &["check"], &[("TOLLGATE_CONFIG_TOML", text)]);
        assert!(done.code == 1 && folded(&done.err) == 0, "{:?}", done.err);
        assert!(done.err.lines().all(|line| line.starts_with("error: ")), "{:?}", done.err);
    }
    let headers = GOOD.replacen("base_url", "headers = { \"x\\u001b[2J\" = \"v\" }\nbase_url", 1);
    for (args, text) in [
        (&["check"][..], headers.as_str()),
        (&["check", "--config", "no\u{1b}[2J.toml"][..], GOOD),
        (&["keys", "issue", "--name", "n", "--plan", "p\u{1b}[2J"][..], GOOD),
        (&["usage", "--since", "\u{1b}[2J"][..], GOOD),
    ] {
        let done = run(folder.path(), args, &[("TOLLGATE_CONFIG_TOML", text)]);
        assert!(done.code != 0 && done.err.starts_with("error: ") && folded(&done.err) == 0, "{:?}", done.err);
    }
}

#[test]
fn check_reports_a_path_that_is_not_a_ledger() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("notes.txt"), "not a ledger").unwrap();
    std::fs::write(folder.path().join("empty.db"), "").unwrap();
    for (place, said) in [
        ("notes.txt", Some("it holds something else")),
        (".", Some("name a file in it")),
        ("empty.db", None),
        ("new.db", None),
    ] {
        let text = format!("store = {{ url = \"sqlite:{place}\" }}\n{GOOD}");
        let done = run(folder.path(), &["check"], &[("TOLLGATE_CONFIG_TOML", &text)]);
        match said {
            Some(said) => assert!(done.code == 1 && done.err.contains(said), "{place}: {:?}", done.err),
            None => assert_eq!(done.code, 0, "{place}: {:?}", done.err),
        }
    }
}

#[test]
fn init_finds_a_local_server_on_its_usual_port() {
    // If another process uses the port, this test cannot run.
    let Ok(listener) = TcpListener::bind("127.0.0.1:11434") else { return };
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let body =
                "{\"object\":\"list\",\"data\":[{\"id\":\"qwen3:8b\"},{\"id\":\"x/y\",\"max_model_len\":40960}]}";
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    let folder = Folder::new();
    let done = run(folder.path(), &["init"], &[]);
    assert!(done.code == 0 && done.err.contains("found Ollama on port 11434 with 2 models"), "{}", done.err);
    let text = fs::read_to_string(folder.path().join("tollgate.toml")).unwrap();
    for line in ["base_url = \"http://127.0.0.1:11434/v1\"", "id = \"qwen3:8b\"", "id = \"x/y\"", "context = 40960"] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
}

#[test]
fn lenient_values_are_accepted_and_errors_reported_once() {
    let wrong_model = GOOD.replace("\"1M\"", "\"1X\"");
    let said = check(&format!("default_model = \"m\"\n{wrong_model}"));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("models[0].context"), "{said}");
    for (plan, said) in [
        ("requests_per_minute = 5", "plans[0].requests_per_minute: unknown key; write `requests`"),
        ("max_budget = 5.0", "plans[0].max_budget: unknown key; write `budget`, which is US dollars per `period`"),
        ("request = 5", "plans[0].request: unknown key; did you mean `requests`?"),
    ] {
        let text = check(&format!("{GOOD}[[plans]]\nname = \"a\"\n{plan}\n"));
        assert!(text.contains(said), "{plan}: {text}");
    }
    for right in [
        GOOD.replace("\"chat\"", "\"openai\""),
        GOOD.replace("\"chat\"", "\"anthropic\""),
        format!("{GOOD}[[plans]]\nname = \"a\"\ntokens = \"10M\"\nrequests = \"1K\"\n"),
        format!("[server]\nlisten = \"localhost:8080\"\n{GOOD}"),
        format!("[server]\nlisten = [\":8080\", \"[::1]:8081\"]\nadmin_listen = \"localhost:9090\"\n{GOOD}"),
    ] {
        assert_eq!(check(&right), "", "{right}");
    }
}

#[test]
fn invalid_certificate_is_reported_with_file_line_and_field() {
    let folder = Folder::new();
    let good = rcgen::generate_simple_self_signed(vec!["gate.test".to_owned()]).unwrap();
    let other = rcgen::KeyPair::generate().unwrap();
    fs::write(folder.path().join("cert.pem"), good.cert.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), other.serialize_pem()).unwrap();
    let text =
        format!("[server]\ntls = {{ cert = \"cert.pem\", key = \"key.pem\" }}\nlisten = \"127.0.0.1:0\"\n{GOOD}");
    fs::write(folder.path().join("tollgate.toml"), &text).unwrap();
    for command in ["check", "serve"] {
        let done = run(folder.path(), &[command], &[]);
        let start = "error: tollgate.toml:2: server.tls.key: key.pem: ";
        assert!(done.code == 1 && done.err.starts_with(start), "{command}: {}", done.err);
    }
    fs::write(folder.path().join("cert.pem"), "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n").unwrap();
    let done = run(folder.path(), &["check"], &[]);
    assert!(done.err.starts_with("error: tollgate.toml:2: server.tls.cert: cert.pem: "), "{}", done.err);
}

#[test]
fn new_key_works_immediately_and_by_its_name() {
    let h = Harness::usual();
    for round in 0..20 {
        let key = h.issue(&["--requests", "1"]);
        assert_eq!(h.status_of(&key), 200, "{round}");
    }
    let key = h.issue(&["--plan", "two"]);
    assert_eq!(h.chat(&key, &chat("one")).status(), 200);
    h.done(&["keys", "set", &key[8..20], "--name", "ann", "--requests", "1"]);
    wait_for("the limit to hold", || (h.chat(&key, &chat("two")).status() == 429).then_some(()));
    let shown = h.done(&["keys", "show", "ann"]);
    assert!(shown.contains("requests 1 (own)"), "{shown}");
    h.done(&["keys", "set", "ann", "--disable"]);
    wait_for("the key to be refused", || (h.status_of(&key) == 401).then_some(()));
    h.done(&["keys", "set", "ann", "--enable", "--requests", "plan"]);
    wait_for("the key to be accepted again", || (h.status_of(&key) == 200).then_some(()));
    let listed = h.done(&["keys", "list"]);
    assert!(listed.lines().any(|line| line.contains(" ann ") && line.contains("/ no limit")), "{listed}");
    let ambiguous = h.command(&["keys", "revoke", "test"]);
    assert!(ambiguous.code == 1 && ambiguous.err.contains("keys have the name `test`"), "{}", ambiguous.err);
    h.done(&["keys", "revoke", "ann"]);
    wait_for("the key to be revoked", || (h.status_of(&key) == 401).then_some(()));
}

#[test]
fn keys_of_a_removed_plan_are_reported_and_can_be_moved() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "two"]);
    assert_eq!(h.command(&["check"]).err, "");
    let file = h.folder.path().join("tollgate.toml");
    let text = fs::read_to_string(&file).unwrap().replace("name = \"two\"", "name = \"renamed\"");
    fs::write(&file, text).unwrap();
    let warned = h.command(&["check"]);
    let said =
        "1 key is of plan `two`, which is not configured: it is refused (403); `tollgate keys set ID --plan PLAN`";
    assert!(warned.code == 0 && warned.err.starts_with("warning: ") && warned.err.contains(said), "{}", warned.err);
    h.gateway.signal("HUP");
    wait_for("the log to warn", || h.gateway.written().contains(&said[..60]).then_some(()));
    assert_eq!(h.status_of(&key), 403);
    h.done(&["keys", "set", &key[8..20], "--plan", "renamed"]);
    wait_for("the key to work again", || (h.status_of(&key) == 200).then_some(()));
    assert_eq!(h.command(&["check"]).err, "");
}
