//! The configuration reference: the entry of every key in `src/docs/configuration/` is generated here from the code.
//! `BLESS=1 cargo test --test it docs::` writes the entries; all text outside their marks is written by hand.
//!
//! The keys are those that the reader accepts. The accepted values come from the reader's own errors, or from the
//! comment. The defaults are those of the effective configuration if only the required keys are set. The rows of
//! `Config::follow` say if a reload applies a key. The description is the comment of the field that holds the value; a
//! field whose name differs from its key has the key as an alias. Examples are in `examples`, and the reader accepts
//! each.

use super::examples::EXAMPLES;
use super::pages::{anchor, blessed, root};
use std::collections::BTreeMap;
use std::fmt::Write;
use tollgate::policy::config::{Config, Source, effective, fixed};
use tollgate::policy::vendors::Vendors;

/// Folder of the pages, below `src/docs`.
const FOLDER: &str = "configuration";

/// A table of the configuration.
struct Table {
    /// Name in the manual.
    name: &'static str,
    /// Page that contains its keys.
    page: &'static str,
    /// Path in a configuration.
    path: &'static str,
    /// Types whose fields hold its values.
    types: &'static [&'static str],
}

const fn table(name: &'static str, page: &'static str, path: &'static str, types: &'static [&'static str]) -> Table {
    Table { name, page, path, types }
}

const TABLES: [Table; 14] = [
    table("[server]", "server", "server", &["Server"]),
    table("[store]", "store", "store", &["StoreConfig"]),
    table("[telemetry]", "telemetry", "telemetry", &["Telemetry"]),
    table("[alerts]", "alerts", "alerts", &["Alerts"]),
    table("[upstream]", "upstream", "upstream", &["UpstreamLimits"]),
    table("[[vendors]]", "vendors", "vendors[0]", &["VendorRow", "Identity", "RequestRules"]),
    table("[[providers]]", "providers", "providers[0]", &["Provider", "Credential"]),
    table("discover", "providers", "providers[0].discover", &["Discover"]),
    table("[[models]]", "models", "models[0]", &["Model", "Prices", "UnitPrices"]),
    table("targets", "models", "models[0].targets[0]", &["Target", "Prices", "UnitPrices"]),
    table("queue", "models", "models[0].queue", &["QueueLimits"]),
    table("capabilities", "capabilities", "models[0].capabilities", &["Capabilities"]),
    table("[[plans]]", "plans", "plans[0]", &["Plan"]),
    table("[[groups]]", "groups", "groups[0]", &["Group", "Plan"]),
];

const SOURCES: [&str; 12] = [
    include_str!("../../../src/policy/config/alerts.rs"),
    include_str!("../../../src/policy/discover.rs"),
    include_str!("../../../src/policy/config/providers.rs"),
    include_str!("../../../src/policy/config/server.rs"),
    include_str!("../../../src/policy/config/store.rs"),
    include_str!("../../../src/policy/config/telemetry.rs"),
    include_str!("../../../src/policy/upstream_limits.rs"),
    include_str!("../../../src/policy/vendors/capabilities.rs"),
    include_str!("../../../src/policy/vendors/row.rs"),
    include_str!("../../../src/policy/catalog.rs"),
    include_str!("../../../src/policy/prices.rs"),
    include_str!("../../../src/policy/plan/mod.rs"),
];

/// Required settings, line by line, each with its key. Braces mark where other keys of a table are inserted.
const REQUIRED: [(&str, &str); 24] = [
    ("", "[server]\n{server}"),
    ("", "[store]\n{store}"),
    ("", "[telemetry]\n{telemetry}"),
    ("", "[alerts]\n{alerts}"),
    ("", "[upstream]\n{upstream}"),
    ("", "[[vendors]]\n{vendors[0]}"),
    ("", "[[providers]]\n{providers[0]}"),
    ("providers[0].name", "name = \"openai\""),
    ("providers[0].shape", "shape = \"chat\""),
    ("providers[0].base_url", "base_url = \"https://api.openai.com/v1\""),
    ("", "[providers.discover]\n{providers[0].discover}"),
    ("", "[[models]]"),
    ("models[0].id", "id = \"small\""),
    ("models[0].context", "context = \"256K\""),
    ("models[0].targets", "[[models.targets]]\n{models[0].targets[0]}"),
    ("models[0].targets[0].provider", "provider = \"openai\""),
    ("", "[models.queue]\n{models[0].queue}"),
    ("", "[models.capabilities]\n{models[0].capabilities}"),
    ("", "[[plans]]"),
    ("plans[0].name", "name = \"team\""),
    ("", "{plans[0]}"),
    ("", "[[groups]]"),
    ("groups[0].name", "name = \"research\""),
    ("", "{groups[0]}"),
];

/// Returns the required configuration with `more` in the table at `path`, and without the key `lacking` and the keys
/// below it.
fn text(path: &str, more: &str, lacking: &str) -> String {
    let (mark, items) = (format!("{{{lacking}"), format!("{lacking}["));
    let is_kept = |key: &str, line: &str| lacking.is_empty() || !(key.starts_with(&items) || line.contains(&mark));
    let kept = REQUIRED.iter().filter(|(key, line)| (key.is_empty() || *key != lacking) && is_kept(key, line));
    let mut text: String = kept.map(|(_, line)| format!("{line}\n")).collect();
    for other in TABLES.iter().map(|table| table.path) {
        text = text.replace(&format!("{{{other}}}"), if other == path { more } else { "" });
    }
    if path == "models[0]" { text.replace("[[models]]", &format!("[[models]]\n{more}")) } else { text }
}

fn parse(text: &str) -> Result<Config, Vec<String>> {
    let read = |path: &str| match path.ends_with(".pem") {
        true => Ok("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n".to_string()),
        false => Ok("a-secret-that-is-long-enough".to_string()),
    };
    let env = |_: &str| Some("a-token-that-is-long-enough".to_string());
    let source = Source { file: "tollgate.toml", text, env: &env, read: &read, run: &Source::no_program };
    Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

/// Returns the keys of the table at `path`, from the reader's error for an unknown key.
fn known(path: &str) -> Vec<String> {
    let errors = parse(&text(path, "no_such_key_there_is = 1", "")).unwrap_err();
    let said = errors.iter().find_map(|error| error.split_once("no_such_key_there_is: unknown key; known are "));
    let (_, list) = said.unwrap_or_else(|| panic!("{path}: {errors:?}"));
    list.split(", ").map(str::to_string).collect()
}

/// Returns the keys and values of one table of the effective configuration, in its order. For a key without a value,
/// the value is a description.
fn shown(config: &Config, path: &str) -> Vec<(String, String)> {
    let (heading, inline) = match path {
        "providers[0].discover" => ("[[providers]]", Some("discover = { ")),
        "models[0].targets[0]" => ("[[models]]", Some("targets = [{ ")),
        "models[0].queue" => ("[[models]]", Some("queue = { ")),
        "models[0].capabilities" => ("[[models]]", Some("capabilities = { ")),
        _ => (TABLES.iter().find(|table| table.path == path).unwrap().name, None),
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

/// Maps type and key to the first paragraph of the field's comment; other paragraphs are for readers of the code.
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

/// Values that no key, or only a few keys, accept.
const WRONG: [&str; 8] = ["2026-11-25", "-1", "\"\"", "[]", "[\"\"]", "{}", "[\"zz zz\"]", "\"zz zz\""];

/// Returns the values that the key accepts, from the most precise of the reader's errors for wrong ones.
fn accepted(path: &str, key: &str) -> Option<String> {
    let full = format!("{path}.{key}");
    let mut best: Option<(bool, String)> = None;
    for wrong in WRONG {
        let Err(errors) = parse(&text(path, &format!("{key} = {wrong}\n"), &full)) else { continue };
        for error in errors {
            let Some((_, message)) = error.split_once(&format!(": {full}")) else { continue };
            let (item, message) = message.strip_prefix("[0]").map_or((false, message), |rest| (true, rest));
            let exact = message.strip_prefix(": expected ").map(|words| words.split(", found ").next().unwrap());
            let secret = message.strip_prefix(": a secret is never written here; use ");
            let Some(words) = exact.or(secret) else { continue };
            let is_exact = !["a string", "a table", "an array", "an integer"].contains(&words);
            let words = if item { format!("a list, each item {words}") } else { words.to_owned() };
            let new = (is_exact, words);
            let length = |found: &(bool, String)| (found.0, found.1.len());
            if best.as_ref().is_none_or(|best| length(best) < length(&new)) {
                best = Some(new);
            }
        }
    }
    best.map(|(_, words)| words)
}

/// Returns the text with TOML strings marked as code.
fn marked(text: &str) -> String {
    if text.contains('`') || text.contains("\" \\") {
        return text.to_owned();
    }
    let parts = text.split('"').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("`\"{part}\"`") } else { part.to_owned() }).collect()
}

/// Returns the heading of a key: its name, after the name of its table if that is inside another one.
fn heading(table: &Table, key: &str) -> String {
    if table.name.starts_with('[') { key.to_owned() } else { format!("{}.{key}", table.name) }
}

/// Returns the comment of the field that holds the value of a key.
fn comment(table: &Table, key: &str) -> String {
    let comments = comments();
    let found = table.types.iter().find_map(|of| comments.get(&(of.to_string(), key.to_owned())));
    found.unwrap_or_else(|| panic!("no field of {:?} holds {key}", table.types)).clone()
}

/// Returns the example of a key: from `examples`, the required line, or its default.
fn example(table: &Table, key: &str, default: &str) -> String {
    let full = format!("{}.{key}", table.path);
    let named = full.replace("[0]", "");
    let given = EXAMPLES.lines().find_map(|line| line.strip_prefix(&named)?.strip_prefix(" = "));
    let required = REQUIRED.iter().find(|(other, line)| *other == full && !line.contains('['));
    let usual = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    match (given, required, usual) {
        (Some(value), _, _) => format!("{key} = {value}"),
        (None, Some((_, line)), _) => (*line).to_owned(),
        (None, None, Some(value)) => format!("{key} = {value}"),
        (None, None, None) => panic!("{named} has no default, so it needs a line in tests/it/docs/examples.rs"),
    }
}

/// Returns the keys of one table in the order of the effective configuration, each with its default.
fn keys(table: &Table) -> Vec<(String, Option<String>)> {
    let shown = shown(&parse(&text("", "", "")).unwrap(), table.path);
    let place = |key: &String| shown.iter().position(|(other, _)| other == key).unwrap_or(usize::MAX);
    let mut keys = known(table.path);
    for (key, _) in &shown {
        assert!(
            keys.contains(key),
            "{}.{key} is in the effective configuration, but the reader does not know it",
            table.path
        );
    }
    if ["providers[0]", "models[0]"].contains(&table.path) {
        let repeated = known("upstream");
        keys.retain(|key| !repeated.contains(key));
    }
    if table.path == "vendors[0]" {
        let repeated = known("models[0].capabilities");
        keys.retain(|key| !repeated.contains(key));
    }
    keys.sort_by_key(place);
    keys.into_iter().map(|key| (key.clone(), shown.get(place(&key)).map(|(_, value)| value.clone()))).collect()
}

/// Returns the entries of one table.
fn entries(table: &Table) -> String {
    let (fixed, mut out) = (fixed(), String::new());
    for (key, shown) in keys(table) {
        let full = format!("{}.{key}", table.path);
        let comment = comment(table, &key);
        let split = |text: &str, mark: &str| match text.split_once(mark) {
            Some((before, after)) => (before.to_owned(), Some(after.trim_end_matches('.').to_owned())),
            None => (text.to_owned(), None),
        };
        let (rest, default) = split(&comment, " Default: ");
        let (meaning, value) = split(&rest, " Value: ");
        let is_models = table.name == "targets" && (key.ends_with("_price") || key.starts_with("price_"));
        let (meaning, default) = match is_models {
            true => (format!("As [`{key}`](#{key}), at this target."), Some("the model's".into())),
            false => (meaning, default),
        };
        let default = match REQUIRED.iter().any(|(other, _)| *other == full) {
            true => "required".to_owned(),
            false => default.or(shown).unwrap_or_else(|| "none".to_owned()),
        };
        let value = value.or_else(|| accepted(table.path, &key).map(|words| marked(&words)));
        let value = value.unwrap_or_else(|| panic!("{full}: name its values in the comment: `Value: …`"));
        let reload = if fixed.contains(&full) { "needs a restart" } else { "applied" };
        let example = example(table, &key, &default);
        let heading = heading(table, &key);
        let _ = write!(
            out,
            "### `{heading}`\n\n{meaning}\n\n- Value: {value}\n- Default: {default}\n- Reload: {reload}\n\
             - Example: `{example}`\n\n"
        );
    }
    out
}

/// Returns the list of all keys, by table.
fn index() -> String {
    let mut out = "| table | keys |\n|---|---|\n".to_owned();
    for table in &TABLES {
        let page = format!("{FOLDER}/{}.md", table.page);
        let link = |(key, _): (String, Option<String>)| {
            format!("[`{key}`]({page}#{})", anchor(&format!("`{}`", heading(table, &key))))
        };
        let keys: Vec<String> = keys(table).into_iter().map(link).collect();
        let _ = writeln!(out, "| [`{}`]({page}) | {} |", table.name, keys.join(", "));
    }
    out
}

#[test]
fn configuration_pages_match_the_code() {
    blessed(&root().join("src/docs/configuration.md"), &[("keys".to_owned(), index())]);
    let mut pages: Vec<&str> = TABLES.iter().map(|table| table.page).collect();
    pages.dedup();
    for page in pages {
        let tables = TABLES.iter().filter(|table| table.page == page);
        let parts: Vec<(String, String)> =
            tables.map(|table| (format!("keys of {}", table.name), entries(table))).collect();
        blessed(&root().join(format!("src/docs/{FOLDER}/{page}.md")), &parts);
    }
}

#[test]
fn page_of_the_table_of_vendors_matches_the_table() {
    let mut rows = "| row | for | properties | source |\n|---|---|---|---|\n".to_owned();
    for (at, row) in Vendors::built_in().rows().enumerate() {
        let all = row.settings();
        let part = |is: fn(&str) -> bool| {
            let part = all.iter().filter(|(key, _)| is(key)).map(|(key, value)| format!("`{key} = {value}`"));
            part.collect::<Vec<_>>().join("<br>")
        };
        let selects = part(|key| ["name", "host", "model", "shape", "near"].contains(&key));
        let says = part(|key| !["name", "host", "model", "shape", "near", "source", "date"].contains(&key));
        let _ = writeln!(rows, "| {} | {selects} | {says} | {} ({}) |", at + 1, row.source, row.date);
    }
    blessed(&root().join("src/docs/reference/vendors.md"), &[("rows of vendors".to_owned(), rows)]);
}

#[test]
fn every_example_of_a_key_is_accepted() {
    let mut used = 0;
    for table in &TABLES {
        for (key, shown) in keys(table) {
            let full = format!("{}.{key}", table.path);
            let mut more = format!("{}\n", example(table, &key, &shown.unwrap_or_default()));
            used += usize::from(EXAMPLES.contains(&format!("\n{} = ", full.replace("[0]", ""))));
            let needs = NEEDS.iter().find(|(other, _)| *other == full);
            more += needs.map_or("", |(_, line)| line);
            let mut text = text(table.path, &more, &full);
            if full == "groups[0].parent" {
                text += "[[groups]]\nname = \"company\"\n";
            }
            if full == "server.reuse_port" {
                text = text.replace("[store]\n", "[store]\nurl = \"redis://cache:6379\"\n");
            }
            assert!(parse(&text).is_ok(), "{full}: {:?}\n{text}", parse(&text).err());
        }
    }
    assert_eq!(used, EXAMPLES.lines().filter(|line| line.contains(" = ")).count(), "an example has no key");
}

/// Keys that are valid only together with another one.
const NEEDS: [(&str, &str); 1] = [("server.proxy_protocol", "trusted_proxies = [\"10.0.0.0/8\"]\n")];

#[test]
fn every_wrong_value_of_a_key_is_shown_with_its_rule() {
    let mut count = 0;
    for table in &TABLES {
        for (key, _) in keys(table) {
            let full = format!("{}.{key}", table.path);
            for wrong in WRONG {
                let Err(errors) = parse(&text(table.path, &format!("{key} = {wrong}\n"), &full)) else { continue };
                let own: Vec<&String> = errors.iter().filter(|error| error.contains(&format!(": {full}"))).collect();
                assert!(!own.is_empty(), "{full} = {wrong}: {errors:?}");
                for error in own {
                    let form = error.strip_prefix("tollgate.toml:").and_then(|rest| rest.split_once(": "));
                    assert!(form.is_some_and(|(line, _)| line.parse::<u32>().is_ok()), "{error}");
                    let rules =
                        ["expected", "missing, but required", "no provider", "no group", "at least one", "use {"];
                    assert!(rules.iter().any(|rule| error.contains(rule)), "{full} = {wrong}: {error}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 500, "{count}");
}

#[test]
fn discovery_is_off_by_default() {
    let text = text("", "", "providers[0].discover");
    assert!(!text.contains("discover"), "{text}");
    assert!(effective(&parse(&text).unwrap()).contains("\n# discover: none"));
    let page = std::fs::read_to_string(root().join("src/docs/configuration/providers.md")).unwrap();
    let (_, entry) = page.split_once("### `discover`\n").unwrap();
    assert!(entry.split("###").next().unwrap().contains("\n- Default: off\n"), "{entry}");
}

#[test]
fn required_keys_of_the_reference_are_required() {
    for (key, _) in REQUIRED.iter().filter(|(key, _)| !key.is_empty()) {
        assert!(parse(&text("", "", key)).is_err(), "{key} is not required");
    }
}

#[test]
fn default_model_is_the_only_key_outside_the_tables() {
    let errors = parse(&format!("no_such_key_there_is = 1\n{}", text("", "", ""))).unwrap_err();
    let known = "unknown key; known are default_model, server, store, telemetry, alerts, upstream, vendors, providers, models, \
         plans, groups";
    assert!(errors.iter().any(|error| error.ends_with(known)), "{errors:?}");
}
