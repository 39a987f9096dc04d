//! The page of the simulated provider: its table of directives has a row for each comment in the simulator's own table,
//! and contains every directive. `BLESS=1 cargo test --test it docs::` writes the table.

use super::pages::{blessed, root};

const DIRECTIVES: &str = include_str!("../../../src/control/simulator/directives.rs");

#[test]
fn simulator_page_has_every_directive() {
    let (_, rows) = DIRECTIVES.split_once("\ndirectives! {\n").unwrap();
    let rows = rows.split("\n}").next().unwrap().lines().map(str::trim);
    let effects = rows.clone().filter_map(|row| row.strip_prefix("/// ")?.split_once(": "));
    let table: String = effects.map(|(words, effect)| format!("| {words} | {effect} |\n")).collect();
    let table = format!("| word | effect |\n|---|---|\n{table}");
    let words: Vec<&str> = rows.filter(|row| !row.starts_with('/')).filter_map(|row| row.split(':').next()).collect();
    assert!(words.len() >= 30, "{words:?}");
    for word in words {
        assert!(
            ["`", "="].iter().any(|end| table.contains(&format!("`{word}{end}"))),
            "`{word}` is missing in the table"
        );
    }
    blessed(&root().join("src/docs/reference/simulator.md"), &[("directives".to_owned(), table)]);
}
