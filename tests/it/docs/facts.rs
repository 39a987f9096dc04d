//! Facts that several texts state and that have disagreed before: each is compared with the code or with the other
//! text.

use super::rig::Rig;
use serde_json::Value;
use tollgate::policy::refusal::Refusal;
use tollgate::wire::Passthrough;

const ADMIN_API: &str = include_str!("../../../src/docs/reference/admin-api.md");
const AGENTS: &str = include_str!("../../../src/docs/agents.md");
const BENCHES: &str = include_str!("../../../benches/README.md");
const CHANGELOG: &str = include_str!("../../../CHANGELOG.md");
const COST: &str = include_str!("../../../src/docs/cost.md");
const GATE: &str = include_str!("../../../benches/gate.json");
const LITELLM: &str = include_str!("../../../src/docs/litellm.md");
const MAP: &str = include_str!("../../../src/lib.rs");
const OPENAPI: &str = include_str!("../../../src/engine/gateway/openapi.json");
const README: &str = include_str!("../../../README.md");
const SHARED: &str = include_str!("../../../src/docs/explanation/shared-ledger.md");

/// Returns the text between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start}"));
    rest.split_once(end).map_or(rest, |(inside, _)| inside)
}

#[test]
fn peers_have_versions() {
    let header = between(README, "<!-- scripts/bench --peers -->\n", "\n");
    for peer in ["nginx ", "litellm[proxy]==", "@portkey-ai/gateway@"] {
        let version = between(header, peer, ",").chars().next();
        assert!(version.is_some_and(|first| first.is_ascii_digit()), "{peer}: {header}");
    }
    let columns = between(README, "| on one core, 32 connections |", "\n").split('|').count();
    assert_eq!(columns, 5, "the table has a gateway without a version");
}

#[test]
fn costs_on_the_page_are_those_of_the_gate() {
    let gate: Value = serde_json::from_str(GATE).unwrap();
    let figures = gate["figures"].as_object().unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let heads = cells(&format!("| module |{}", between(COST, "| module |", "\n")));
    let totals = cells(&format!("| **all** |{}", between(COST, "| **all** |", "\n")));
    let mut found = 0;
    for (head, total) in heads.iter().zip(&totals).filter(|(_, total)| total.parse::<u64>().is_ok()) {
        let name = head.replace(' ', "_");
        let figure = ["instructions_per_", "instructions_per_refused_"]
            .iter()
            .find_map(|start| figures.get(&format!("{start}{name}")))
            .unwrap_or_else(|| panic!("{name}: {figures:?}"));
        assert_eq!(total, &figure.to_string(), "{head}");
        found += 1;
    }
    assert!(found >= 10, "{heads:?}");
}

#[test]
fn goals_agree_with_the_figures_shown() {
    let mut judged = 0;
    for row in BENCHES.lines().filter(|line| line.ends_with("| yes |") || line.ends_with("| NO |")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let first = |cell: &str| cell.split([' ', ';']).next().and_then(|number| number.parse::<f64>().ok());
        let goal = match cells[3].strip_prefix("<= ") {
            Some("nginx's") => first(cells[5]),
            Some(goal) => first(goal),
            None => None,
        };
        let (Some(goal), Some(figure)) = (goal, first(cells[4])) else { panic!("{row}") };
        assert_eq!(cells[7] == "yes", figure <= goal, "{row}");
        judged += 1;
    }
    assert!(judged >= 20, "{judged}");
}

#[test]
fn litellm_page_maps_existing_features() {
    let row = |name: &str| between(LITELLM, name, "\n");
    let signed = row("| providers that need signed requests");
    assert!(["chat", "responses", "messages"].iter().all(|shape| signed.contains(&format!("`{shape}`"))), "{signed}");
    assert!(row("| Bedrock, Vertex").contains("scripts/examples/bedrock.toml"));
    assert!(row("| `/key/generate`").contains("`/admin/v1/keys`"), "keys are also issued over HTTP");
    // A limit of one deployment has no equivalent, so the example must not turn it into a limit per key.
    assert!(row("| `litellm_params.rpm`").contains("| none:") || row("| `litellm_params.rpm`").contains("none"));
    let example = between(LITELLM, "\n```toml\n", "\n```\n");
    assert!(!example.contains("requests =") && !between(LITELLM, "\n```yaml\n", "\n```\n").contains("rpm"));
}

#[test]
fn all_three_apis_are_named() {
    let openapi: Value = serde_json::from_str(OPENAPI).unwrap();
    let described = openapi["info"]["description"].as_str().unwrap();
    let first = |text: &'static str| text.split("\n//! # ").next().unwrap();
    for api in ["OpenAI Chat Completions", "OpenAI Responses", "Anthropic Messages"] {
        for text in [README, first(MAP), described] {
            assert!(text.contains(api), "{api}: {}", &text[..200]);
        }
    }
}

#[test]
fn admin_listener_is_described_with_its_dashboard() {
    let rig = Rig::new("described", "");
    let demo = rig.command(&["demo", "--help"]).output().unwrap();
    let demo = String::from_utf8(demo.stdout).unwrap();
    assert!(between(&demo, "--admin-listen", "--pace").contains("dashboard"), "{demo}");
    let file = rig.path("fresh.toml");
    let mut init = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    assert!(init.args(["init", "--config"]).arg(&file).output().unwrap().status.success());
    let written = std::fs::read_to_string(file).unwrap();
    assert!(between(&written, "admin_listen", "\n").contains("dashboard"), "{written}");
}

#[test]
fn lists_of_endpoints_are_complete() {
    let help = include_str!("../../../src/docs/reference/cli.md");
    let help = between(help, "| `--endpoints NAMES` | ", "\n");
    let serves = between(include_str!("../../../src/docs/configuration/models.md"), "### `serves`", "###");
    let missing = Refusal::not_spoken().message;
    for passthrough in Passthrough::ALL {
        let (name, path) = (passthrough.as_str(), passthrough.path());
        assert!(help.contains(name) && serves.contains(&format!("`\"{name}\"`")), "{name}");
        assert!(missing.contains(path), "{path}: {missing}");
    }
    let admin: Value = serde_json::from_str(include_str!("../../../src/engine/gateway/admin/openapi.json")).unwrap();
    let listed = &admin["components"]["schemas"]["Model"]["properties"]["serves"]["items"]["enum"];
    let mut names = vec!["chat"];
    names.extend(Passthrough::ALL.map(Passthrough::as_str));
    let mut listed: Vec<&str> = listed.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    listed.sort_unstable();
    assert_eq!(listed, names);
}

#[test]
fn help_texts_match_their_own_command() {
    let rig = Rig::new("helps", "");
    let help = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate")).args(words).arg("--help").output();
        String::from_utf8(output.unwrap().stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (issue, set) = (help(&["keys", "issue"]), help(&["keys", "set"]));
    assert!(issue.contains("Plan [default: the first in the configuration]") && !issue.contains("removes it"));
    assert!(set.contains("Move the key to this plan") && !set.contains("[default: the first"), "{set}");
    let ledger = help(&[]);
    let line = between(&ledger, " ledger ", "completions");
    for word in ["Verify", "audit", "export", "adopt"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    // A warning of the configuration must start with `warning`.
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    std::fs::write(rig.path("tollgate.toml"), text.replace("context = ", "input_price = 1\ncontext = ")).unwrap();
    let checked = rig.command(&["check"]).output().unwrap();
    let warned = String::from_utf8(checked.stderr).unwrap();
    assert!(checked.status.success() && warned.starts_with("warning: ") && warned.contains("unpriced"), "{warned}");
}

#[test]
fn changelog_has_the_current_ledger_formats() {
    let tables = include_str!("../../../src/control/store/sqlite/tables.rs");
    let remote = include_str!("../../../src/control/store/remote.rs");
    let file = between(tables, "const SCHEMA: i64 = ", ";");
    let shared = between(remote, "const FORMAT: &str = \"", "\"");
    assert!(CHANGELOG.contains(&format!("SQLite (file format {file})")), "file format {file}");
    assert!(CHANGELOG.contains(&format!("Redis or Valkey (format {shared})")), "format {shared}");
}

#[test]
fn bounds_are_next_to_their_claims() {
    let claim = between(SHARED, "All hosts together admit no more requests than one host would, with", "\n\n");
    assert!(claim.contains("exception"), "{claim}");
    assert!(MAP.contains("no more than one would, within the bound of [`docs::explanation::shared_ledger`]"));
    let recorder = include_str!("../../../src/engine/gateway/report/recorder/mod.rs");
    assert!(recorder.contains("const BYTES: [usize; 2] = [40 << 10, 1 << 20];"), "the manual says 40 KiB and 1 MiB");
    assert!(ADMIN_API.contains("in 40 KiB") && ADMIN_API.contains("in 1 MiB"));
}

#[test]
fn claude_code_gets_the_same_variables_everywhere() {
    let names = |text: &str| {
        let lines = text.lines().filter(|line| line.trim_start().starts_with("export ANTHROPIC_"));
        let words = lines.flat_map(|line| line.split_whitespace()).filter_map(|word| word.split_once('='));
        let mut names: Vec<String> = words.map(|(name, _)| name.to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(README), names(AGENTS));
    assert!(names(README).contains(&"ANTHROPIC_MODEL".to_owned()));
}

#[test]
fn container_examples_expose_their_dashboard() {
    for (name, text) in [
        ("compose", include_str!("../../../scripts/examples/compose.yaml")),
        ("kubernetes", include_str!("../../../scripts/examples/kubernetes.yaml")),
        ("kubernetes-redis", include_str!("../../../scripts/examples/kubernetes-redis.yaml")),
    ] {
        assert!(text.contains("admin_listen = \":9090\"") && text.contains("admin_token = "), "{name}");
    }
}

/// Requirements of the pod security standard "restricted", and of a container that is not killed for its memory.
#[test]
fn container_examples_need_no_privilege() {
    let kubernetes = [
        "runAsNonRoot: true",
        "seccompProfile: { type: RuntimeDefault }",
        "allowPrivilegeEscalation: false",
        "capabilities: { drop: [ALL] }",
        "automountServiceAccountToken: false",
        "limits: { memory: 512Mi }",
        "memory = \"384MiB\"",
    ];
    let compose = ["no-new-privileges:true", "cap_drop: [ALL]", "read_only: true", "\"127.0.0.1:8080:8080\""];
    for (text, wanted) in [
        (include_str!("../../../scripts/examples/kubernetes.yaml"), &kubernetes[..]),
        (include_str!("../../../scripts/examples/kubernetes-redis.yaml"), &kubernetes[..]),
        (include_str!("../../../scripts/examples/compose.yaml"), &compose[..]),
    ] {
        for wanted in wanted {
            assert_eq!(text.matches(wanted).count(), 1, "{wanted}");
        }
    }
    for (name, text) in [
        ("docker.md", include_str!("../../../src/docs/how-to/docker.md")),
        ("Dockerfile", include_str!("../../../scripts/Dockerfile")),
        ("Containerfile", include_str!("../../../scripts/Containerfile")),
    ] {
        let ports: Vec<&str> = text.split(" -p ").skip(1).collect();
        assert!(!ports.is_empty() && ports.iter().all(|port| port.starts_with("127.0.0.1:")), "{name}");
    }
}

/// A stop takes `drain_lead`, `drain_timeout`, and up to 30 seconds in which a locked ledger is waited for.
#[test]
fn examples_wait_for_the_last_usage_records() {
    let seconds = |text: &str, name: &str, default: u64| {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((_, rest)) = words.split_once(&format!(" {name}")) else { return default };
        let rest = rest.trim_start_matches([' ', '=', ':', '"']);
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()].parse::<u64>().unwrap()
    };
    for (text, name) in [
        (include_str!("../../../scripts/examples/compose.yaml"), "stop_grace_period"),
        (include_str!("../../../scripts/examples/kubernetes.yaml"), "terminationGracePeriodSeconds"),
        (include_str!("../../../scripts/examples/kubernetes-redis.yaml"), "terminationGracePeriodSeconds"),
        (include_str!("../../../scripts/tollgate.service"), "TimeoutStopSec"),
        (include_str!("../../../src/docs/how-to/docker.md"), "--time"),
    ] {
        let needed = seconds(text, "drain_lead =", 0) + seconds(text, "drain_timeout =", 30) + 30;
        assert!(seconds(text, name, 0) >= needed, "{name} is shorter than {needed} s");
    }
}

#[test]
fn readme_is_short_and_has_one_line_to_install() {
    assert!(README.lines().count() <= 140, "{}", README.lines().count());
    assert_eq!(README.matches("cargo install").count(), 1);
    assert!(!README.contains("| NO |"), "goals are for benches/README.md");
}

#[test]
fn signals_and_files_page_matches_the_program() {
    let page = include_str!("../../../src/docs/reference/exit-codes.md");
    let source = include_str!("../../../src/engine/io/signals.rs");
    let caught = between(source, "use signal_hook::consts::{", "}").split(',').map(str::trim);
    let table = between(page, "## Signals", "## Exit codes");
    let mut listed: Vec<&str> =
        table.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| w.starts_with("SIG")).collect();
    let mut caught: Vec<&str> = caught.collect();
    caught.sort_unstable();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed, caught);
    let places = between(include_str!("../../../src/control/cli/load.rs"), "const USUAL: [&str; 2] = [", "]");
    let files = between(page, "## Files", "\u{0}");
    for place in places.split(", ").map(|place| place.trim_matches('"')) {
        assert!(files.contains(place), "{place}");
    }
    let spill = include_str!("../../../src/control/store/spill.rs");
    assert!(
        spill.contains(".spill-")
            && spill.contains("`.unread`")
            && files.contains(".spill-")
            && files.contains(".unread")
    );
}

#[test]
fn platforms_page_has_the_versions_of_the_build() {
    let page = include_str!("../../../src/docs/reference/platforms.md");
    let rust = between(include_str!("../../../Cargo.toml"), "rust-version = \"", "\"");
    assert!(page.contains(&format!("| {rust} and later |")), "{rust}");
}
