//! The pages of the manuals: each is short, is linked from the contents, and has no broken link.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of words on a page.
const WORDS_MAX: usize = 2500;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Markdown files below a folder.
pub fn pages(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = paths.flat_map(|path| match path.is_dir() {
        true => pages(&path),
        false => vec![path],
    });
    found.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// Returns the link targets of a page, without those in code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|prose| prose.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Returns the anchors of a page's headings, as GitHub creates them.
pub fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Returns the anchor of a heading.
pub fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// Checks the generated parts of a page, or writes them if `BLESS` is set. A part is between `<!-- name -->` and `<!--
/// end -->`.
pub fn blessed(page: &Path, parts: &[(String, String)]) {
    let text = fs::read_to_string(page).unwrap();
    let mut made = text.clone();
    for (name, part) in parts {
        let mark = format!("<!-- {name} -->\n");
        let (before, rest) = made.split_once(&mark).unwrap_or_else(|| panic!("{}: no {mark}", page.display()));
        let (_, after) = rest.split_once("<!-- end -->").unwrap();
        made = format!("{before}{mark}\n{}\n\n<!-- end -->{after}", part.trim());
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(page, &made).unwrap();
    } else {
        let different = text.lines().zip(made.lines()).find(|(is, should)| is != should);
        let hint = "BLESS=1 cargo test --test it docs:: writes it; the first difference";
        assert!(text == made, "{}: {hint}: {different:#?}", page.display());
    }
}

/// Returns the files that a page links to, and adds errors to `wrong`.
fn follow(page: &Path, wrong: &mut Vec<String>) -> Vec<PathBuf> {
    let text = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    for link in links(&text) {
        let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let target = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
        let Ok(target) = target.canonicalize() else {
            wrong.push(format!("{}: {link} leads nowhere", page.display()));
            continue;
        };
        let is_page = target.extension().is_some_and(|end| end == "md");
        let has = |anchor: &str| !is_page || anchors(&fs::read_to_string(&target).unwrap()).iter().any(|a| a == anchor);
        if !anchor.is_none_or(has) {
            wrong.push(format!("{}: {link} names no heading", page.display()));
        }
        found.push(target);
    }
    found
}

#[test]
fn all_links_of_the_manuals_work() {
    let mut all = pages(&root().join("src/docs"));
    assert!(all.len() > 30, "{all:?}");
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benches/README.md"];
    all.extend(others.map(|name| root().join(name)));
    let mut wrong = Vec::new();
    for page in all {
        follow(&page, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn contents_link_every_page() {
    let contents = root().join("src/docs/README.md");
    let linked = follow(&contents, &mut Vec::new());
    let pages = pages(&root().join("src/docs"));
    let missing: Vec<&PathBuf> = pages.iter().filter(|page| **page != contents && !linked.contains(page)).collect();
    assert!(missing.is_empty(), "missing in src/docs/README.md: {missing:?}");
    let readme = root().join("README.md");
    assert!(follow(&readme, &mut Vec::new()).contains(&contents), "README.md does not link the contents");
}

#[test]
fn no_page_is_too_long() {
    let pages = pages(&root().join("src/docs"));
    for page in &pages {
        let words = fs::read_to_string(page).unwrap().split_whitespace().count();
        // The list of all commands is not read as a whole.
        let most = if page.ends_with("reference/cli.md") { 2 * WORDS_MAX } else { WORDS_MAX };
        assert!(words <= most, "{}: {words} words", page.display());
    }
}

/// Returns the lines of code in which a backslash that continues a command is not the last character.
fn broken_continuations(text: &str) -> Vec<&str> {
    let code = text.split("```").skip(1).step_by(2);
    code.flat_map(str::lines).filter(|line| line.contains(" \\ ")).collect()
}

#[test]
fn commands_continue_only_at_the_end_of_a_line() {
    assert_eq!(broken_continuations("a \\ b\n```sh\ncurl \\ -H x\ncurl \\\n  -H y\n```\n"), ["curl \\ -H x"]);
    for page in pages(&root().join("src/docs")) {
        let text = fs::read_to_string(&page).unwrap();
        let broken = broken_continuations(&text);
        assert!(broken.is_empty(), "{}: {broken:?}", page.display());
    }
}

/// How-to pages that list symptoms with their fixes, without steps of their own.
const SYMPTOMS: [&str; 2] = ["alerts.md", "troubleshooting.md"];
/// How-to pages whose steps change nothing.
const READERS: [&str; 1] = ["usage-reports.md"];

#[test]
fn how_to_pages_have_prerequisites_steps_and_undo() {
    for page in pages(&root().join("src/docs/how-to")) {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        if SYMPTOMS.contains(&&*name) {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for part in ["You need ", "\n1. ", "undo"] {
            let is_needed = part != "undo" || !READERS.contains(&&*name);
            assert!(text.contains(part) == is_needed, "{name}: {part:?}");
        }
    }
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# A `b` of c's, d\n```sh\n# no heading\n```\n## E_f-g\n";
    assert_eq!(anchors(text), ["a-b-of-cs-d", "e_f-g"]);
    assert_eq!(links("[a](b.md#c) `x` [d](https://e) ```\n[f](g)\n``` [h](i)"), ["b.md#c", "i"]);
}
