//! Executes how-to pages, the README and the examples as a new user would, with their own configurations and commands.

use super::process::{free_port, wait_for};
use super::rig::{Rig, write_certificate};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use tollgate::policy::config::{Config, Source};

const CREDENTIALS: &str = include_str!("../../../src/docs/how-to/provider-credentials.md");
const ENDPOINT: &str = include_str!("../../../src/docs/how-to/public-endpoint.md");
const README: &str = include_str!("../../../README.md");

/// Returns the code blocks of a page in one language, in order.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let all = page.split("\n```").skip(1).step_by(2);
    all.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[test]
fn credentials_of_the_guide_are_read_as_described() {
    let model =
        "[[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{ provider = \"openai\" }, { provider = \"vertex\" }]";
    let text = format!("{}\n{model}\n", blocks(CREDENTIALS, "toml")[0]);
    let (env, read) = (|name: &str| Some(name.to_owned()), |path: &str| Ok(path.to_owned()));
    let run = |program: &[String], _: &[String]| Ok(program.join(" "));
    let config = Config::parse(&Source { file: "t", text: &text, env: &env, read: &read, run: &run }).unwrap();
    let credentials = config.providers.iter().flat_map(|provider| &provider.credentials);
    let secrets: Vec<&str> = credentials.map(|credential| credential.secret.expose()).collect();
    assert_eq!(secrets, ["OPENAI_API_KEY", "/run/secrets/openai-2", "gcloud auth print-access-token"]);
    let labels: Vec<&str> = config.catalog.models()[0].targets.iter().map(|target| &*target.label).collect();
    assert_eq!(labels, ["openai#1/m", "openai#2/m", "vertex/m"]);
}

/// Creates a folder of programs: Tollgate, and a `systemctl` that can reload `pid`.
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
fn public_endpoint_guide_works_in_ten_commands() {
    let rig = Rig::new("public", "");
    let folder = rig.path("empty");
    fs::create_dir(&folder).unwrap();
    write_certificate(&folder);
    let port = free_port();
    // Name resolution and the trusted CA depend on the machine.
    let trust = format!("cacert = \"cert.pem\"\nresolve = \"gate.test:{port}:127.0.0.1\"\n");
    fs::write(folder.join(".curlrc"), trust).unwrap();

    let [commands] = blocks(ENDPOINT, "shell")[..] else { panic!("expected one block of commands") };
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

/// Redirects the requests of a configuration to the simulated provider, which is as strict as the configured one.
fn lead(text: &str, provider: SocketAddr) -> String {
    let real = "base_url = \"https://api.openai.com/v1\"\n";
    assert!(text.contains(real), "{text}");
    text.replace(real, &format!("base_url = \"http://api.openai.com/v1\"\naddresses = [\"{provider}\"]\n"))
}

#[test]
fn readme_configuration_serves_claude_code() {
    let rig = Rig::new("readme-claude", "");
    let (_, rest) = README.split_once("\n```toml\n").unwrap();
    let text = lead(&format!("{}\n", rest.split_once("\n```\n").unwrap().0), rig.provider);
    let text = format!("[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n{text}");
    fs::write(rig.path("tollgate.toml"), text).unwrap();
    let key = rig
        .command(&["keys", "issue", "--name", "claude"])
        .env("OPENAI_API_KEY", "sk-test")
        .output()
        .map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned())
        .unwrap();
    let gate = rig.start_with(|command| {
        command.env("OPENAI_API_KEY", "sk-test");
    });
    let lines = README.lines().filter(|line| line.contains("ANTHROPIC_") && line.contains('='));
    let names = lines.flat_map(|line| line.split_whitespace()).filter(|word| word.contains("_MODEL="));
    let mut models: Vec<&str> = names.filter_map(|word| Some(word.split_once('=')?.1)).collect();
    models.push("small");
    assert!(models.len() >= 3, "Claude Code requests several models: {models:?}");
    for model in models {
        let body = format!(
            "{{\"model\":\"{model}\",\"max_tokens\":32000,\"temperature\":0.3,\"stream\":false,\
             \"system\":[{{\"type\":\"text\",\"text\":\"Be brief.\"}}],\
             \"thinking\":{{\"type\":\"enabled\",\"budget_tokens\":31999}},\
             \"tools\":[{{\"name\":\"Read\",\"input_schema\":{{\"type\":\"object\"}}}}],\
             \"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}"
        );
        let answer = gate.ask(&format!(
            "POST /v1/messages?beta=true HTTP/1.1\r\nhost: h\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert!(answer.starts_with("HTTP/1.1 200"), "{model}: {answer}");
    }
}

/// Starts a gateway with an example configuration of a provider, redirected to the simulated one. Every model that it
/// lists must answer once.
fn serves(rig: &Rig, name: &str, text: &str, prepare: &dyn Fn(&mut Command)) {
    let led: String = text
        .lines()
        .map(|line| match line.strip_prefix("base_url = \"").and_then(|rest| rest.split_once("://")) {
            Some((_, rest)) => format!("base_url = \"http://{rest}\naddresses = [\"{}\"]\n", rig.provider),
            None => format!("{line}\n"),
        })
        .collect();
    rig.configure("", &led, "");
    let gate = rig.start_with(prepare);
    let ask = |method: &str, path: &str, body: &str| {
        gate.ask(&format!(
            "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
             content-length: {}\r\n\r\n{body}",
            rig.key,
            body.len()
        ))
    };
    let ids = wait_for(name, || {
        let list = ask("GET", "/v1/models", "");
        let ids: Vec<String> =
            list.split("\"id\":\"").skip(1).map(|rest| rest.split('"').next().unwrap().into()).collect();
        (!ids.is_empty()).then_some(ids)
    });
    for id in ids {
        let body = format!("{{\"model\":\"{id}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}");
        let answer = ask("POST", "/v1/chat/completions", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer}");
    }
}

#[test]
fn every_provider_example_is_valid_and_serves() {
    let rig = Rig::new("examples", "");
    let bin = rig.path("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("gcloud"), "#!/bin/sh\necho a-token-for-the-test\n").unwrap();
    fs::set_permissions(bin.join("gcloud"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/examples");
    let (mut count, mut started) = (0, 0);
    for example in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&example).unwrap();
        let inline = |start: &str| {
            let (_, rest) = text.split_once(start)?;
            let lines = rest.lines().skip(1).take_while(|line| line.is_empty() || line.starts_with("    "));
            Some(lines.map(|line| format!("{}\n", line.trim_start())).collect::<String>())
        };
        let text = match example.extension().and_then(|end| end.to_str()) {
            Some("toml") => Some(text.clone()),
            _ => inline("tollgate.toml: |").or_else(|| inline("TOLLGATE_CONFIG_TOML: |")),
        };
        // Alert rules and the dashboard contain no configuration.
        let Some(text) = text else { continue };
        // A compose file continues after the indented text.
        let text = text.split("volumes:").next().unwrap();
        fs::write(rig.path("tollgate.toml"), text).unwrap();
        let prepare = |command: &mut Command| {
            command.env("PATH", &path);
            for name in text.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next()) {
                command.env(name, "a-secret-for-the-test");
            }
        };
        let mut command = rig.command(&["check"]);
        prepare(&mut command);
        let output = command.output().unwrap();
        let shared = text.contains("redis://") && cfg!(not(feature = "redis"));
        assert!(
            output.status.success() || shared,
            "{}: {}",
            example.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        count += 1;
        if !text.contains("[server]") {
            serves(&rig, &example.to_string_lossy(), text, &prepare);
            started += 1;
        }
    }
    assert!(count >= 18 && started >= 15, "{count}, {started}");
    let (_, litellm) = include_str!("../../../src/docs/litellm.md").split_once("\n```toml\n").unwrap();
    fs::write(rig.path("tollgate.toml"), litellm.split_once("\n```\n").unwrap().0).unwrap();
    let output = rig.command(&["check"]).env("OPENAI_API_KEY", "sk-test").env("ANTHROPIC_API_KEY", "sk-test").output();
    assert!(output.unwrap().status.success());
}
