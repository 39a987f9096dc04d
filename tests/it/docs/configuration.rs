//! The configuration reference: its tables are made here, from the code, and must stand in `src/docs/configuration.md`
//! as they are made. `BLESS=1 cargo test --test it docs::` writes them; headings and prose stay as they are.
//!
//! Keys are those that the reader knows, by its own word. Defaults are what the effective configuration shows of a
//! configuration that sets nothing but what is required. Whether a key is live is what the rows say that
//! `Config::follow` goes by. The meaning is the comment of the field that holds the value; a field of another name than
//! its key bears it as an alias.

use std::collections::BTreeMap;
use std::fmt::Write;
use tollgate::policy::config::{Config, Source, effective, fixed};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/configuration.md");

/// Heading of a table; where a key of it stands in a configuration; the types whose fields hold its values.
const TABLES: [(&str, &str, &[&str]); 12] = [
    ("[server]", "server", &["Server"]),
    ("[store]", "store", &["StoreConfig"]),
    ("[telemetry]", "telemetry", &["Telemetry"]),
    ("[upstream]", "upstream", &["UpstreamLimits"]),
    ("[[providers]]", "providers[0]", &["Provider", "Credential"]),
    ("discover", "providers[0].discover", &["Discover"]),
    ("[[models]]", "models[0]", &["Model", "Prices"]),
    ("targets", "models[0].targets[0]", &["Target"]),
    ("queue", "models[0].queue", &["QueueLimits"]),
    ("capabilities", "models[0].capabilities", &["Capabilities"]),
    ("[[plans]]", "plans[0]", &["Plan"]),
    ("[[groups]]", "groups[0]", &["Group", "Plan"]),
];

const SOURCES: [&str; 8] = [
    include_str!("../../../src/policy/discover.rs"),
    include_str!("../../../src/policy/config/providers.rs"),
    include_str!("../../../src/policy/config/server.rs"),
    include_str!("../../../src/policy/config/store.rs"),
    include_str!("../../../src/policy/config/telemetry.rs"),
    include_str!("../../../src/policy/limits.rs"),
    include_str!("../../../src/policy/catalog.rs"),
    include_str!("../../../src/policy/plan.rs"),
];

/// Required settings, line by line, each with its key. Braces mark the position of further keys of a table.
const REQUIRED: [(&str, &str); 22] = [
    ("", "[server]\n{server}"),
    ("", "[store]\n{store}"),
    ("", "[telemetry]\n{telemetry}"),
    ("", "[upstream]\n{upstream}"),
    ("", "[[providers]]\n{providers[0]}"),
    ("providers[0].name", "name = \"p\""),
    ("providers[0].shape", "shape = \"chat\""),
    ("providers[0].base_url", "base_url = \"https://p.example/v1\""),
    ("", "[providers.discover]\n{providers[0].discover}"),
    ("", "[[models]]"),
    ("models[0].id", "id = \"m\""),
    ("models[0].context", "context = \"256K\""),
    ("models[0].targets", "[[models.targets]]\n{models[0].targets[0]}"),
    ("models[0].targets[0].provider", "provider = \"p\""),
    ("", "[models.queue]\n{models[0].queue}"),
    ("", "[models.capabilities]\n{models[0].capabilities}"),
    ("", "[[plans]]"),
    ("plans[0].name", "name = \"plan\""),
    ("", "{plans[0]}"),
    ("", "[[groups]]"),
    ("groups[0].name", "name = \"group\""),
    ("", "{groups[0]}"),
];

/// The required configuration with `more` at the place of the table at `path`, and without the key `lacking`.
fn text(path: &str, more: &str, lacking: &str) -> String {
    let kept = REQUIRED.iter().filter(|(key, _)| key.is_empty() || *key != lacking);
    let mut text: String = kept.map(|(_, line)| format!("{line}\n")).collect();
    for (_, other, _) in TABLES {
        text = text.replace(&format!("{{{other}}}"), if other == path { more } else { "" });
    }
    if path == "models[0]" { text.replace("[[models]]", &format!("[[models]]\n{more}")) } else { text }
}

fn parse(text: &str) -> Result<Config, Vec<String>> {
    let read = |_: &str| Ok("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n".to_string());
    let env = |_: &str| Some("a-token-that-is-long-enough".to_string());
    let source = Source { file: "tollgate.toml", text, env: &env, read: &read, run: &Source::no_program };
    Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

/// The keys of the table at `path`, as the reader tells them to somebody who wrote one that it does not know.
fn known(path: &str) -> Vec<String> {
    let errors = parse(&text(path, "no_such_key_there_is = 1", "")).unwrap_err();
    let said = errors.iter().find_map(|error| error.split_once("no_such_key_there_is: unknown key; known are "));
    let (_, list) = said.unwrap_or_else(|| panic!("{path}: {errors:?}"));
    list.split(", ").map(str::to_string).collect()
}

/// Key to value of one table of the effective configuration, in its order; values that are none are words.
fn shown(config: &Config, path: &str) -> Vec<(String, String)> {
    let (heading, inline) = match path {
        "providers[0].discover" => ("[[providers]]", Some("discover = { ")),
        "models[0].targets[0]" => ("[[models]]", Some("targets = [{ ")),
        "models[0].queue" => ("[[models]]", Some("queue = { ")),
        "models[0].capabilities" => ("[[models]]", Some("capabilities = { ")),
        _ => (TABLES.iter().find(|(_, other, _)| *other == path).unwrap().0, None),
    };
    let page = effective(config);
    let lines = page.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with('['));
    let code = |(key, value): (&str, &str)| (key.to_string(), format!("`{value}`"));
    let words = |line: &str| {
        let (key, words) = line.strip_prefix("# ")?.split_once(": ")?;
        Some((key.to_string(), words.split(',').next()?.to_string()))
    };
    match inline {
        Some(start) => {
            let line = lines.into_iter().find_map(|line| line.strip_prefix(start)).unwrap();
            let end = line.find(" }").unwrap();
            line[..end].split(", ").filter_map(|pair| pair.split_once(" = ")).map(code).collect()
        }
        None => lines.filter_map(|line| words(line).or_else(|| line.split_once(" = ").map(code))).collect(),
    }
}

/// Type and key to the first paragraph of the comment of the field that holds it; others are for who reads the code.
fn comments() -> BTreeMap<(String, String), String> {
    let (mut all, mut of, mut alias) = (BTreeMap::new(), String::new(), None);
    let (mut comment, mut first) = (String::new(), true);
    for line in SOURCES.iter().flat_map(|source| source.lines()) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            of = name.to_string();
        } else if let Some(text) = line.strip_prefix("/// ").filter(|_| first) {
            comment = format!("{comment} {text}").trim().to_string();
        } else if line.starts_with("///") {
            first = false;
        } else if let Some(name) = line.strip_prefix("#[doc(alias = \"").and_then(|rest| rest.strip_suffix("\")]")) {
            alias = Some(name.to_string());
        } else if let Some((field, _)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(':')) {
            let key = alias.take().unwrap_or_else(|| field.to_string());
            all.insert((of.clone(), key), std::mem::take(&mut comment));
            first = true;
        } else {
            comment.clear();
            first = true;
        }
        if line == "}" {
            of.clear();
        }
    }
    all
}

/// The rows of one table.
fn rows(path: &str, types: &[&str]) -> String {
    let (comments, fixed) = (comments(), fixed());
    let shown = shown(&parse(&text("", "", "")).unwrap(), path);
    let place = |key: &String| shown.iter().position(|(other, _)| other == key).unwrap_or(usize::MAX);
    let mut keys = known(path);
    for (key, _) in &shown {
        assert!(keys.contains(key), "{path}.{key} is shown, but the reader does not know it");
    }
    if ["providers[0]", "models[0]"].contains(&path) {
        let repeated = known("upstream");
        keys.retain(|key| !repeated.contains(key));
    }
    keys.sort_by_key(place);
    let mut out = String::new();
    for key in keys {
        let full = format!("{path}.{key}");
        let comment = types.iter().find_map(|of| comments.get(&(of.to_string(), key.clone())));
        let comment = comment.unwrap_or_else(|| panic!("no field of {types:?} holds {key}"));
        let (meaning, told) = match comment.split_once(" Default: ") {
            Some((meaning, words)) => (meaning, Some(words.trim_end_matches('.').to_string())),
            None => (comment.as_str(), None),
        };
        let required = REQUIRED.iter().any(|(other, _)| *other == full);
        let default = match shown.get(place(&key)) {
            _ if required => "required".to_string(),
            Some((_, value)) => told.unwrap_or_else(|| value.clone()),
            None => told.unwrap_or_else(|| "none".to_string()),
        };
        let live = if fixed.contains(&full) { "no" } else { "yes" };
        let _ = writeln!(out, "| `{key}` | {default} | {live} | {meaning} |");
    }
    out
}

/// The page with every table made again.
fn made(page: &str) -> String {
    let (mut out, mut table, mut headings) = (String::new(), None, Vec::new());
    for line in page.lines() {
        let heading = line.trim_start_matches('#').trim().trim_matches('`');
        if let Some(found) = TABLES.iter().find(|(name, _, _)| line.starts_with("##") && *name == heading) {
            table = Some(found);
            headings.push(found.0);
        }
        if !line.starts_with("| `") {
            let _ = writeln!(out, "{line}");
        }
        if line == "|---|---|---|---|"
            && let Some((_, path, types)) = table.take()
        {
            out.push_str(&rows(path, types));
        }
    }
    assert_eq!(headings, TABLES.map(|(name, _, _)| name), "every table has its heading, once, in this order");
    out
}

#[test]
fn the_configuration_reference_is_what_the_code_says() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let made = made(&page);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, &made).unwrap();
    } else {
        let different = page.lines().zip(made.lines()).find(|(is, should)| is != should);
        assert!(page == made, "BLESS=1 cargo test --test it docs:: writes it; the first difference: {different:#?}");
    }
}

#[test]
fn what_the_reference_calls_required_is() {
    for (key, _) in REQUIRED.iter().filter(|(key, _)| !key.is_empty()) {
        assert!(parse(&text("", "", key)).is_err(), "nobody misses {key}");
    }
}

#[test]
fn outside_the_tables_stands_the_default_model_alone() {
    let errors = parse(&format!("no_such_key_there_is = 1\n{}", text("", "", ""))).unwrap_err();
    let known =
        "unknown key; known are default_model, server, store, telemetry, upstream, providers, models, plans, groups";
    assert!(errors.iter().any(|error| error.ends_with(known)), "{errors:?}");
}
