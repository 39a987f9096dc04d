//! The tables of the manuals against the program.

use super::rig::Rig;
use std::collections::BTreeMap;
use std::io::Write;

const CONFIGURATION: &str = include_str!("../../src/docs/configuration.md");
const OPERATIONS: &str = include_str!("../../src/docs/operations.md");

/// Key → default of every table, as the reference says; only the first column's and the second's code words.
fn written() -> BTreeMap<(String, String), String> {
    let (mut table, mut all) = (String::new(), BTreeMap::new());
    for line in CONFIGURATION.lines() {
        if let Some(heading) = line.strip_prefix("## `") {
            table = heading.trim_end_matches('`').to_string();
        } else if let Some(row) = line.strip_prefix("| `") {
            let mut cells = row.split(" | ");
            let key = cells.next().unwrap().trim_end_matches('`').to_string();
            let default = cells.next().unwrap().trim_matches('`').to_string();
            assert!(["yes", "no"].contains(&cells.next().unwrap()), "{line}");
            assert!(all.insert((table.clone(), key), default).is_none(), "{line}");
        }
    }
    all
}

/// The same as `check --print` shows it for a configuration that sets only what is required.
fn effective() -> BTreeMap<(String, String), String> {
    let folder = std::env::temp_dir().join(format!("tollgate-reference-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("t.toml");
    let text = "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"https://p.example/v1\"\n\
                [[models]]\nid = \"m\"\ncontext = \"256K\"\ntargets = [{ provider = \"p\" }]\n\
                [[plans]]\nname = \"plan\"\n";
    std::fs::write(&file, text).unwrap();
    let program = env!("CARGO_BIN_EXE_tollgate");
    let output =
        std::process::Command::new(program).args(["check", "--print", "--config"]).arg(&file).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{output:?}");
    let (mut table, mut all) = (String::new(), BTreeMap::new());
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if line.starts_with('[') {
            table = line.to_string();
        } else if let Some((key, value)) = line.split_once(" = ") {
            all.insert((table.clone(), key.to_string()), value.to_string());
        } else if let Some((key, _)) = line.strip_prefix("# ").and_then(|line| line.split_once(": ")) {
            all.insert((table.clone(), key.to_string()), "none".to_string());
        }
    }
    all
}

#[test]
fn the_configuration_reference_lists_every_key_with_its_default() {
    let (written, effective) = (written(), effective());
    let limits: Vec<&String> = effective.keys().filter(|(t, _)| t == "[upstream]").map(|(_, key)| key).collect();
    for ((table, key), value) in &effective {
        // Providers and models repeat those of [upstream].
        if table != "[upstream]" && limits.contains(&key) {
            continue;
        }
        let Some(default) = written.get(&(table.clone(), key.clone())) else { panic!("{table} {key} is not in it") };
        let told_in_words = default == "required" || default.starts_with("the ") || default.starts_with("by ");
        let same = default == value || value.contains("/tollgate.db") && default == "\"sqlite:tollgate.db\"";
        assert!(told_in_words || same, "{table} {key}: {default} is written, {value} is so");
    }
    for entry in written.keys() {
        assert!(effective.contains_key(entry), "{entry:?} is written and unknown");
    }
}

#[test]
fn the_operations_guide_lists_every_metric_and_every_field_of_the_log() {
    let rig = Rig::new("guide", "");
    let gate = rig.start();
    let request = super::rig::chat(&rig.key, "small", true, "hello");
    gate.ask(&request.replacen("host: h", "connection: close\r\nx-request-id: mine\r\nhost: h", 1));
    gate.ask(&super::rig::get("nothing", "/v1/models"));
    let mut stream = super::rig::connect(gate.admin);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
    let metrics = super::rig::rest(&mut stream);
    let known = |name: &str| OPERATIONS.contains(&format!("`{name}`")) || OPERATIONS.contains(&format!("`{name}{{"));
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(known(name) || name == "tollgate_build_info", "{name} is not in the operations guide");
    }
    for name in OPERATIONS.split('`').filter(|word| word.starts_with("tollgate_")) {
        let name = name.split('{').next().unwrap();
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is no metric");
    }
    gate.until("two requests are logged", |gate| gate.log().lines().count() >= 3);
    for line in gate.log().lines().filter(|line| !line.contains("\"event\"")) {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for field in value.as_object().unwrap().keys() {
            assert!(OPERATIONS.contains(&format!("`{field}`")), "{field} of the log is not in the operations guide");
        }
    }
}
