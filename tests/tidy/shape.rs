//! Rules for the shape of the source tree: circles between folders, types that are spread over many files, large
//! folders, and the files that the map names. What does not follow a rule yet is listed with a number that may only
//! shrink.

use crate::calls::Methods;
use crate::dependencies::{groups, needs};
use crate::paths::{Tree, in_crate};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Folders whose files and folders need each other in a circle, and the number of their members in circles.
const CIRCLES: [(&str, usize); 2] = [("dialect", 12), ("store", 2)];
/// Maximum number of files with methods of a type, and the types that exceed it.
const FILES_MAX: usize = 6;
const SPREAD: [(&str, usize); 5] = [("RequestJob", 16), ("Request", 11), ("Remote", 10), ("Answering", 7), ("Cx", 7)];
/// Maximum number of entries of a folder, and of the folder of the gateway.
const ENTRIES_MAX: usize = 25;
const GATEWAY_ENTRIES_MAX: usize = 20;
/// Maximum number of lines of a row of the map, at 120 columns.
const ROW_COLUMNS_MAX: usize = 2 * 120;

/// Returns the folders whose members need each other, with these members. The file that declares a folder's modules is
/// not a member; `a.rs` and `a/` are one.
pub fn circles(files: &[(String, String)]) -> BTreeMap<String, Vec<BTreeSet<String>>> {
    let tree = Tree::new(files);
    let mut below: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, module) in tree.modules.iter().enumerate() {
        for to in needs(&tree, from) {
            let (one, other) = (&module.name, &tree.modules[to].name);
            let depth = one.iter().zip(other).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (one.get(depth), other.get(depth)) {
                let folder = module.name[..depth].join("/");
                below.entry(folder).or_default().insert((one.clone(), other.clone()));
            }
        }
    }
    let mut found = BTreeMap::new();
    for (folder, pairs) in below {
        let names: Vec<&String> =
            pairs.iter().flat_map(|(one, other)| [one, other]).collect::<BTreeSet<_>>().into_iter().collect();
        let at = |name: &String| names.binary_search(&name).unwrap();
        let mut edges = vec![BTreeSet::new(); names.len()];
        pairs.iter().for_each(|(one, other)| _ = edges[at(one)].insert(at(other)));
        let circles = groups(&edges);
        if !circles.is_empty() {
            let named = circles.iter().map(|group| group.iter().map(|at| names[*at].clone()).collect());
            found.insert(folder, named.collect());
        }
    }
    found
}

/// Returns circles that are not listed, and listed ones that have become smaller.
pub fn folder_circles(files: &[(String, String)]) -> Vec<String> {
    let mut found = circles(files);
    let mut wrong = Vec::new();
    for (folder, listed) in CIRCLES {
        let members: usize = found.remove(folder).iter().flatten().map(BTreeSet::len).sum();
        if members != listed {
            wrong.push(format!("{folder}: {members} members are in circles, {listed} are listed"));
        }
    }
    wrong.extend(found.into_iter().map(|(folder, circles)| format!("{folder}: a circle of folders: {circles:?}")));
    wrong
}

/// Returns types with methods in too many files.
pub fn spread(all: &BTreeMap<(String, String), Methods>) -> Vec<String> {
    let mut wrong = Vec::new();
    for ((_, name), methods) in all {
        let listed = SPREAD.iter().find(|(spread, _)| spread == name).map(|(_, files)| *files);
        let files = methods.files();
        match listed {
            Some(listed) if files != listed && files > FILES_MAX => {
                wrong.push(format!("{name} has methods in {files} files, {listed} are listed"));
            }
            None if files > FILES_MAX => {
                wrong.push(format!("{name} has methods in {files} files, at most {FILES_MAX} may"));
            }
            _ => {}
        }
    }
    wrong
}

/// Returns folders of `src` with too many entries.
pub fn large_folders(root: &Path) -> Vec<String> {
    let (mut wrong, mut next) = (Vec::new(), vec!["src".to_owned()]);
    while let Some(folder) = next.pop() {
        let names: Vec<String> = fs::read_dir(root.join(&folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let most = if in_crate(&folder) == "gateway" { GATEWAY_ENTRIES_MAX } else { ENTRIES_MAX };
        if names.len() > most {
            wrong.push(format!("{folder}: {} entries, at most {most} are allowed", names.len()));
        }
        let folders = names.into_iter().map(|name| format!("{folder}/{name}"));
        next.extend(folders.filter(|path| path != "src/docs" && root.join(path).is_dir()));
    }
    wrong
}

/// Returns rows of the table "How to change" that are too long, and files that it names but that do not exist.
pub fn map(root: &Path, text: &str) -> Vec<String> {
    let table = text.split("//! # How to change\n").nth(1).and_then(|rest| rest.split("\n//! # ").next());
    let rows = table.unwrap_or_default().lines().filter(|line| line.starts_with("//! | ") && !line.contains("|---"));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for row in rows {
        count += 1;
        if row.chars().count() > ROW_COLUMNS_MAX {
            wrong.push(format!("longer than {ROW_COLUMNS_MAX} columns: {row}"));
        }
        let mut named = 0;
        for name in row.split('`').skip(1).step_by(2).filter(|name| name.contains('/')) {
            named += 1;
            let crates = ["", "src/", "src/engine/", "src/control/"];
            if !crates.iter().any(|folder| root.join(format!("{folder}{name}")).exists()) {
                wrong.push(format!("no such file: {name} in {row}"));
            }
        }
        if named == 0 && count > 1 {
            wrong.push(format!("names no file: {row}"));
        }
    }
    if count < 10 {
        wrong.push(format!("the map has {count} rows"));
    }
    wrong
}
