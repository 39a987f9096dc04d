//! Writes the generated files of a release: completions, man pages, and a bill of materials. Called by
//! `scripts/release`:
//!
//!     cargo run --example generate -- shell FOLDER
//!     cargo metadata --format-version 1 --features LIST --filter-platform TARGET | cargo run --example generate -- sbom FILE

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::Read;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["shell", folder] => shell(Path::new(folder)),
        ["sbom", file] => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            let sbom = bill_of_materials(&serde_json::from_str(&text)?)?;
            Ok(std::fs::write(file, serde_json::to_string_pretty(&sbom)? + "\n")?)
        }
        _ => Err("generate shell FOLDER | generate sbom FILE".into()),
    }
}

/// Writes completions for the usual shells, and a man page for every command.
fn shell(folder: &Path) -> Result<(), Box<dyn Error>> {
    let (completions, pages) = (folder.join("completions"), folder.join("man"));
    std::fs::create_dir_all(&completions)?;
    std::fs::create_dir_all(&pages)?;
    let mut command = tollgate::cli::definition();
    for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "tollgate", &completions)?;
    }
    clap_mangen::generate_to(tollgate::cli::definition(), &pages)?;
    Ok(())
}

/// Returns a CycloneDX 1.5 document of the crates linked into the binary, without crates that only build or test it.
pub fn bill_of_materials(metadata: &Value) -> Result<Value, Box<dyn Error>> {
    let packages = by_id(&metadata["packages"], "id");
    let nodes = by_id(&metadata["resolve"]["nodes"], "id");
    let linked_by = |id: &str| linked_by(nodes.get(id).copied(), &packages);
    let root = metadata["resolve"]["root"].as_str().ok_or("no root package")?;
    let (mut linked, mut next) = (BTreeSet::new(), vec![root]);
    while let Some(id) = next.pop() {
        if linked.insert(id) {
            next.extend(linked_by(id));
        }
    }
    linked.remove(root);
    let describe = |id: &&str| component(packages[*id]);
    let components: Vec<Value> = linked.iter().map(describe).collect();
    let name = |id: &str| purl(packages[id]);
    let depends = |id: &&str| {
        let on: Vec<String> = linked_by(id).into_iter().map(name).collect();
        json!({ "ref": name(id), "dependsOn": on })
    };
    let dependencies: Vec<Value> = linked.iter().chain([&root]).map(depends).collect();
    let mut subject = component(packages[root]);
    subject["type"] = "application".into();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": subject },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn by_id<'a>(list: &'a Value, key: &str) -> BTreeMap<&'a str, &'a Value> {
    let entries = list.as_array().into_iter().flatten();
    entries.filter_map(|entry| Some((entry[key].as_str()?, entry))).collect()
}

/// Returns the packages that a package links: its ordinary dependencies without procedural macros.
fn linked_by<'a>(node: Option<&'a Value>, packages: &BTreeMap<&str, &Value>) -> Vec<&'a str> {
    let ordinary = |dep: &&Value| dep["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
    let is_macro = |id: &&str| packages.get(id).is_some_and(|package| is_macro(package));
    let deps = node.and_then(|node| node["deps"].as_array()).into_iter().flatten();
    deps.filter(ordinary).filter_map(|dep| dep["pkg"].as_str()).filter(|id| !is_macro(id)).collect()
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    let kinds = targets.flat_map(|target| target["kind"].as_array().into_iter().flatten());
    kinds.filter_map(Value::as_str).any(|kind| kind == "proc-macro")
}

/// Returns a package's public name. Cargo's own id contains the path of the sources.
fn purl(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(package: &Value) -> Value {
    let (name, version, purl) = (&package["name"], &package["version"], purl(package));
    let mut component = json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl });
    if let Some(license) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    component
}
