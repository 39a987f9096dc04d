//! The page of the simulated provider: its table of directives equals the simulator's own documentation and contains
//! every directive. `BLESS=1 cargo test --test it docs::` writes the table.

use super::pages::{blessed, root};

const SIMULATOR: &str = include_str!("../../../src/control/simulator/mod.rs");
const DIRECTIVES: &str = include_str!("../../../src/control/simulator/directives.rs");

#[test]
fn simulator_page_has_every_directive() {
    let lines = SIMULATOR.lines().filter_map(|line| line.strip_prefix("//! |"));
    let table: String = lines.map(|line| format!("|{line}\n")).collect();
    let (_, fields) = DIRECTIVES.split_once("pub struct Directives {\n").unwrap();
    let fields = fields.split("\n}").next().unwrap().lines();
    let words: Vec<&str> = fields.filter_map(|line| line.trim().strip_prefix("pub ")?.split(':').next()).collect();
    assert!(words.len() >= 30, "{words:?}");
    for word in words {
        assert!(
            ["`", "="].iter().any(|end| table.contains(&format!("`{word}{end}"))),
            "`{word}` is missing in the table"
        );
    }
    blessed(&root().join("src/docs/reference/simulator.md"), &[("directives".to_owned(), table)]);
}
