//! Compares the reference pages and the README with the program.

use super::rig::Rig;
use std::fs;
use std::io::Write;
use std::path::Path;

const LEDGER: &str = include_str!("../../../src/docs/reference/ledger.md");
const LOG: &str = include_str!("../../../src/docs/reference/log.md");
const METRICS: &str = include_str!("../../../src/docs/reference/metrics.md");
const TROUBLESHOOTING: &str = include_str!("../../../src/docs/how-to/troubleshooting.md");
const README: &str = include_str!("../../../README.md");

/// Returns all sources of the program, without the manuals.
fn sources(folder: &Path) -> String {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = paths.filter(|path| !path.ends_with("docs")).map(|path| match path.is_dir() {
        true => sources(&path),
        false => fs::read_to_string(path).unwrap(),
    });
    text.collect()
}

#[test]
fn references_list_every_metric_and_log_field() {
    let rig = Rig::new("guide", "");
    let gate = rig.start();
    let request = super::rig::chat(&rig.key, "small", true, "hello");
    gate.ask(&request.replacen("host: h", "connection: close\r\nx-request-id: mine\r\nhost: h", 1));
    gate.ask(&super::rig::get("nothing", "/v1/models"));
    let mut stream = super::rig::connect(gate.admin);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let metrics = super::rig::read_to_end(&mut stream);
    let known = |name: &str| METRICS.contains(&format!("`{name}`")) || METRICS.contains(&format!("`{name}{{"));
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(known(name), "{name} is not in the reference of metrics");
    }
    for name in METRICS.split('`').filter(|word| word.starts_with("tollgate_")) {
        let name = name.split('{').next().unwrap();
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is not a metric");
    }
    gate.until("two requests are logged", |gate| gate.log().lines().count() >= 3);
    for line in gate.log().lines().filter(|line| !line.contains("\"event\"")) {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for field in value.as_object().unwrap().keys() {
            assert!(LOG.contains(&format!("`{field}`")), "{field} is not in the reference of the log");
        }
    }
}

#[test]
fn log_page_lists_all_events_and_troubleshooting_quotes_are_real() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let events: Vec<&str> =
        sources.split("\\\"event\\\":\\\"").skip(1).filter_map(|rest| rest.split('\\').next()).collect();
    assert!(events.len() >= 7, "{events:?}");
    for event in events {
        assert!(LOG.contains(&format!("`{event}`")), "the event {event} is not in the reference of the log");
    }
    let headings = TROUBLESHOOTING.lines().filter_map(|line| line.strip_prefix("### "));
    let quotes: Vec<&str> = headings.filter_map(|heading| heading.split('"').nth(1)).collect();
    assert!(quotes.len() >= 10, "{quotes:?}");
    for quote in quotes {
        assert!(sources.contains(quote), "the program never says {quote}");
    }
}

#[test]
fn ledger_page_has_every_column_of_the_views() {
    let rig = Rig::new("columns", "");
    let (_, table) = LEDGER.split_once("| column | in | meaning |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let mut told = Vec::new();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split('|').collect();
        let views: &[&str] =
            if cells[2].contains("both") { &["rows", "sums"] } else { &[cells[2].trim().trim_matches('`')] };
        for column in cells[1].split('`').skip(1).step_by(2) {
            told.extend(views.iter().map(|view| format!("{view}.{column}")));
        }
    }
    let ledger = rusqlite::Connection::open(rig.path("ledger.db")).unwrap();
    let mut real = Vec::new();
    for view in ["rows", "sums"] {
        let query = ledger.prepare(&format!("SELECT * FROM {view}")).unwrap();
        real.extend(query.column_names().map(|column| format!("{view}.{column}")));
    }
    told.sort();
    real.sort();
    assert_eq!(told, real);
}

#[test]
fn readme_configuration_is_valid_and_has_the_requested_models() {
    let rig = Rig::new("readme", "");
    let (_, rest) = README.split_once("\n```toml\n").unwrap();
    let (configuration, _) = rest.split_once("\n```\n").unwrap();
    fs::write(rig.path("tollgate.toml"), configuration).unwrap();
    let output = rig.command(&["check"]).env("OPENAI_API_KEY", "sk-test").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = rig.command(&["keys", "issue", "--name", "ci", "--plan", "team"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let asked: Vec<&str> = README.split("model=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(asked.len() >= 2, "{asked:?}");
    for model in asked {
        assert!(configuration.contains(&format!("id = \"{model}\"")), "{model} is not in the README's configuration");
    }
}

const PROMISES: &str = include_str!("../../../src/docs/promises.md");

/// Returns the file of a test that a promise names: `folder::file::test` below `tests/it`, with the prefix `src::`
/// below `src`, or a transcript. The path is relative to the project.
fn file_of(test: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if test.ends_with(".txt") {
        return Some(format!("tests/fixtures/{test}")).filter(|file| root.join(file).exists());
    }
    let (path, name) = test.rsplit_once("::")?;
    let (folder, path) = path.strip_prefix("src::").map_or(("tests/it", path), |path| ("src", path));
    let path = format!("{folder}/{}", path.replace("::", "/"));
    let parent = path.trim_end_matches("/tests").to_owned();
    let mut files = [&path, &parent].into_iter().flat_map(|path| [format!("{path}.rs"), format!("{path}/mod.rs")]);
    files.find(|file| fs::read_to_string(root.join(file)).is_ok_and(|text| has_test(&text, name)))
}

fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.trim_start().starts_with(&format!("fn {name}(")));
    at.is_some_and(|at| lines[at.saturating_sub(2)..at].iter().any(|line| line.trim() == "#[test]"))
}

/// Returns true for the name of a test or a transcript.
fn is_test(word: &str) -> bool {
    (word.contains("::") || word.ends_with(".txt")) && !word.contains(' ')
}

/// Returns the page with a link for every test that it names.
fn linked(page: &str) -> String {
    let rows = page.lines().map(|line| {
        let mut row = line.to_owned();
        for test in line.split('`').skip(1).step_by(2).filter(|word| line.starts_with("| ") && is_test(word)) {
            let file = file_of(test).unwrap_or_else(|| panic!("there is no test {test}"));
            let link = format!("[`{test}`](../../{file})");
            // The test may have moved since the page was written.
            while let Some(at) = row.find(&format!("[`{test}`](")) {
                let length = row[at..].find(')').expect("a link has an end") + 1;
                row.replace_range(at..at + length, &format!("`{test}`"));
            }
            row = row.replace(&format!("`{test}`"), &link);
        }
        row + "\n"
    });
    rows.collect()
}

/// `BLESS=1 cargo test --test it docs::` writes the links.
#[test]
fn every_promise_links_tests_that_attack_it() {
    for promise in README.split("\n- **").skip(1).filter_map(|rest| rest.split("**").next()) {
        assert!(PROMISES.contains(&format!("| **{promise}**")), "no test attacks {promise}");
    }
    let mut named = 0;
    for row in PROMISES.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let tests = row.split('`').skip(1).step_by(2).filter(|word| is_test(word)).count();
        assert!(tests > 0, "{row}");
        named += tests;
    }
    assert!(named > 40, "{named}");
    let made = linked(PROMISES);
    if std::env::var_os("BLESS").is_some() {
        fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/promises.md"), made).unwrap();
    } else {
        assert!(made == PROMISES, "BLESS=1 cargo test --test it docs:: writes the links");
    }
}
