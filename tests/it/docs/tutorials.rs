//! Executes the tutorials as a reader would: pastes their blocks, one after the other, into one shell in a new folder.

use super::lessons::blocks;
use super::process::{Folder, binary, free_port, wait_for};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

const FIRST: &str = include_str!("../../../src/docs/tutorial/first-gateway.md");
const LIFE: &str = include_str!("../../../src/docs/tutorial/life-of-a-key.md");
const TEAM: &str = include_str!("../../../src/docs/tutorial/team-of-five.md");
const LOCAL: &str = include_str!("../../../src/docs/tutorial/claude-code-local.md");
const LITELLM: &str = include_str!("../../../src/docs/tutorial/from-litellm.md");

/// Variables that `tollgate init` looks for, and those that change what a command does.
const VARIABLES: [&str; 10] = [
    "ANTHROPIC_API_KEY",
    "DEEPSEEK_API_KEY",
    "GEMINI_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "TOLLGATE_CONFIG",
    "TOLLGATE_CONFIG_TOML",
    "XAI_API_KEY",
];

/// Claude Code as the tutorial uses it: sends the prompt to Anthropic's API at the address and with the token in its
/// variables.
const CLAUDE: &str = "#!/bin/sh
curl -sS \"$ANTHROPIC_BASE_URL/v1/messages?beta=true\" -H \"authorization: Bearer $ANTHROPIC_AUTH_TOKEN\" \
  -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' -H 'user-agent: claude-cli/2.1' \
  -d '{\"model\":\"claude-sonnet-5-5\",\"max_tokens\":32000,\"messages\":[{\"role\":\"user\",\"content\":\"'\"$2\"'\"}]}'
echo
";

/// A shell that reads pasted text from its standard input. Programs that it starts read from there, too, as they do in
/// a terminal.
struct Terminal {
    folder: Folder,
    shell: Child,
    input: Option<ChildStdin>,
    /// Blocks of the tutorial that have not been pasted yet.
    blocks: std::vec::IntoIter<String>,
    /// Ports of the tutorial, and the free ports that replace them, because tests share the machine.
    ports: Vec<(String, String)>,
    /// Number of blocks that have been pasted, and length of what they have printed.
    pasted: usize,
    read: usize,
}

impl Terminal {
    /// Starts a shell in a new folder, for a tutorial that uses these ports.
    fn new(page: &str, ports: &[u16]) -> Terminal {
        let all = blocks(page);
        assert!(all.iter().all(|(language, _)| ["sh", "text"].contains(&&**language)), "a block is never executed");
        let commands: Vec<String> = all.into_iter().filter(|(name, _)| name == "sh").map(|(_, body)| body).collect();
        let folder = Folder::new();
        let programs = folder.path().join("programs");
        fs::create_dir(&programs).unwrap();
        symlink(binary(), programs.join("tollgate")).unwrap();
        fs::write(programs.join("claude"), CLAUDE).unwrap();
        fs::set_permissions(programs.join("claude"), fs::Permissions::from_mode(0o755)).unwrap();
        let output = File::create(folder.path().join("output")).unwrap();
        let mut command = Command::new("bash");
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.current_dir(folder.path()).stdin(Stdio::piped());
        command.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let mut shell = command.spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(b"trap 'kill $(jobs -p)' EXIT; trap 'echo \"failed: $BASH_COMMAND\"' ERR\n").unwrap();
        let ports = ports.iter().map(|port| (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", free_port())));
        let ports = ports.collect();
        Terminal { folder, shell, input: Some(input), blocks: commands.into_iter(), ports, pasted: 0, read: 0 }
    }

    /// Replaces the ports of the tutorial.
    fn here(&self, text: &str) -> String {
        self.ports.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns what has been printed since the last block.
    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("output")).unwrap()[self.read..]).into_owned()
    }

    fn write(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the last block has ended. Returns what it has printed.
    fn finish(&mut self) -> String {
        let end = format!("end of block {}\n", self.pasted);
        self.write(&format!("echo '{}'\n", end.trim_end()));
        let printed = wait_for("the end of a block", || Some(self.output()).filter(|text| text.contains(&end)));
        self.read += printed.len();
        self.pasted += 1;
        assert!(!printed.contains("failed: "), "{printed}");
        printed.split_once(&end).unwrap().0.to_owned()
    }

    /// Pastes the next block, which must contain `part`. Returns what it has printed.
    fn paste(&mut self, part: &str) -> String {
        let block = self.blocks.next().unwrap_or_else(|| panic!("no block with {part}"));
        assert!(block.contains(part), "expected {part}:\n{block}");
        self.write(&self.here(&block));
        self.finish()
    }

    /// Pastes the next block, which runs in the foreground, and presses Ctrl-C after it has printed `text`.
    fn paste_until(&mut self, text: &str) -> String {
        let block = self.blocks.next().unwrap();
        self.write(&block);
        wait_for(text, || self.output().contains(text).then_some(()));
        let children = format!("/proc/{0}/task/{0}/children", self.shell.id());
        let child = fs::read_to_string(children).unwrap();
        assert!(Command::new("kill").args(["-INT", child.trim()]).status().unwrap().success(), "{child}");
        self.finish()
    }

    /// Asserts that every block has been pasted and that nothing remains: no process, and no file of the reader's.
    fn close(mut self) {
        assert!(self.blocks.next().is_none(), "blocks remain");
        self.write("wait; ls\n");
        self.read += self.output().len();
        drop(self.input.take());
        wait_for("the shell to end", || self.shell.try_wait().unwrap());
        let remaining = self.output();
        assert!(!remaining.contains("tollgate.toml"), "{remaining}");
        let files = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<_> = files.collect();
        files.sort();
        assert_eq!(files, ["output", "programs"]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.shell.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.path("output")).unwrap_or_default());
        }
    }
}

/// Returns the JSON documents that a block has printed, one per line.
fn documents(printed: &str) -> Vec<Value> {
    let lines = printed.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns the words of the line of a report that has `name` as a word.
fn row(report: &str, name: &str) -> Vec<String> {
    let lines = report.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let found = lines.filter(|words| words.iter().any(|word| word == name)).collect::<Vec<_>>();
    let [row] = &found[..] else { panic!("expected one line for {name}: {report}") };
    row.clone()
}

/// Replaces the addresses of listeners in a generated configuration.
fn move_listeners(file: &Path, ports: &[(String, String)]) {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| match line.split_once(" = ") {
        Some(("listen", _)) => format!("listen = \"{}\"\n", ports[0].1),
        Some(("admin_listen", _)) => format!("admin_listen = \"{}\"\n", ports[1].1),
        _ => format!("{line}\n"),
    });
    fs::write(file, lines.collect::<String>()).unwrap();
}

#[test]
fn first_gateway_reaches_a_refusal_and_lifts_it() {
    let mut terminal = Terminal::new(FIRST, &[8080, 9090, 9000]);
    let demo = terminal.paste_until("prints a command for every API");
    assert!(demo.contains("curl -sN http://127.0.0.1:") && demo.contains("Dashboard: http://"), "{demo}");
    let found = terminal.paste("tollgate init");
    assert!(found.contains("found openai") && found.contains("wrote tollgate.toml\n"), "{found}");
    // `init` found the ports that are free on this machine, and other tests may take them.
    move_listeners(&terminal.path("first-gateway/tollgate.toml"), &terminal.ports);
    terminal.paste("tollgate provider");
    let checked = terminal.paste("tollgate check --connect");
    assert!(checked.contains("ok: gpt-5.4-mini -> gpt-5.4-mini: available"), "{checked}");
    terminal.paste("--tokens 1)");
    assert_eq!(documents(&terminal.paste("Hello"))[0]["object"], "chat.completion");
    let usage = row(&terminal.paste("tollgate usage"), "first");
    assert!(usage[2] == "1" && usage.last().unwrap().parse::<f64>().unwrap() > 0.0, "{usage:?}");
    assert_eq!(documents(&terminal.paste("Again"))[0]["error"]["code"], 429);
    let lifted = documents(&terminal.paste("--tokens plan"));
    assert_eq!(lifted[0]["object"], "chat.completion", "{lifted:?}");
    terminal.paste("rm -r first-gateway");
    terminal.close();
}

#[test]
fn life_of_a_key_ends_with_its_usage() {
    let mut terminal = Terminal::new(LIFE, &[8080, 9090, 9000]);
    terminal.paste("cat >tollgate.toml");
    let checked = terminal.paste("kill -HUP");
    assert!(checked.contains("ok"), "{checked}");
    let log = terminal.path("key-life/tollgate.log");
    wait_for("the reload", || {
        fs::read_to_string(&log).unwrap().contains("\"event\":\"reload\",\"outcome\":\"done\"").then_some(())
    });
    terminal.paste("--plan trial");
    let asked = terminal.paste("answered");
    let answered = asked.matches("answered\n").count();
    assert!(answered > 0, "{asked}");
    assert_eq!(documents(&asked)[0]["error"]["code"], 429, "{asked}");
    let spent = documents(&terminal.paste("/v1/quota")).remove(0);
    assert!(spent["tokens"]["used"].as_u64().unwrap() >= 50, "{spent}");
    let rotated = terminal.paste("keys rotate");
    let [old, new] = &documents(&rotated)[..] else { panic!("expected two documents: {rotated}") };
    assert_eq!(old["error"]["code"], 401);
    assert_eq!(new["tokens"], spent["tokens"], "rotation must keep the usage");
    let report = terminal.paste("tollgate usage");
    assert_eq!(row(&report, "ann")[2], answered.to_string(), "{report}");
    assert!(report.contains("\nok: "), "{report}");
    assert!(report.trim_end().ends_with(&format!("\n{answered}")), "expected one record per answer: {report}");
    let list = terminal.paste("keys revoke");
    assert!(row(&list, "ann").iter().any(|word| word.contains("revoked")), "{list}");
    terminal.paste("rm -r key-life");
    terminal.close();
}

#[test]
fn team_of_five_gets_keys_and_budgets() {
    let mut terminal = Terminal::new(TEAM, &[8080, 9090, 9000]);
    terminal.paste("cat >tollgate.toml");
    terminal.paste("tollgate check");
    let list = terminal.paste("keys issue");
    for (name, budget) in [("ann", "$30"), ("ben", "$30"), ("cat", "$30"), ("dan", "$30"), ("eve", "$5")] {
        let list = list.split_once("PLAN").unwrap().1;
        let words = row(list, name);
        assert!(words.contains(&"person".to_owned()) && words.contains(&"team".to_owned()), "{words:?}");
        assert!(words.last().unwrap().starts_with(budget), "{words:?}");
    }
    let answers = documents(&terminal.paste("curl"));
    assert!(answers.len() == 2 && answers.iter().all(|answer| answer["object"] == "chat.completion"), "{answers:?}");
    let reports = terminal.paste("tollgate usage");
    let requests = |name| row(&reports, name);
    assert_eq!((&*requests("ann")[2], &*requests("eve")[2], &*requests("team")[1]), ("1", "1", "2"), "{reports}");
    terminal.paste("keys revoke ben");
    terminal.paste("rm -r team");
    terminal.close();
}

#[test]
fn claude_code_reaches_the_local_model() {
    let mut terminal = Terminal::new(LOCAL, &[8080, 9090, 8000]);
    terminal.paste("tollgate provider");
    terminal.paste("cat >tollgate.toml");
    let checked = terminal.paste("check --connect");
    assert!(checked.contains("ok: local -> default: available"), "{checked}");
    terminal.paste("keys issue");
    let answer = documents(&terminal.paste("claude -p"));
    assert_eq!(answer[0]["type"], "message", "{answer:?}");
    let usage = terminal.paste("tollgate usage");
    assert!(row(&usage, "local").iter().any(|word| word.contains("claude")), "{usage}");
    terminal.paste("rm -r claude-local");
    terminal.close();
}

#[test]
fn litellm_client_moves_with_its_model_names() {
    let mut terminal = Terminal::new(LITELLM, &[8080, 9090, 9000]);
    terminal.paste("cat >tollgate.toml");
    terminal.paste("sed");
    let checked = terminal.paste("check --connect");
    assert_eq!(checked.matches(": available").count(), 3, "{checked}");
    terminal.paste("keys issue");
    let answers = documents(&terminal.paste("curl"));
    assert!(answers.len() == 2 && answers.iter().all(|answer| answer["object"] == "chat.completion"), "{answers:?}");
    let usage = terminal.paste("tollgate usage");
    assert!(["gpt-5.4-mini", "sonnet"].iter().all(|model| row(&usage, model).contains(&"my-app".to_owned())));
    terminal.paste("rm -r from-litellm");
    terminal.close();
}
