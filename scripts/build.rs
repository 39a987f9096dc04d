//! Build script of the packages `policy`, `engine` and `control`. Sets commit, build date and target, and compresses the
//! texts in the binary: the table of vendors without comments (`policy`), the dashboard and the OpenAPI documents
//! without white space (`engine`), the shell completions, and the Lua scripts of a shared ledger without comments
//! (`control`).

use std::process::Command;

const LUA: &str = "store/scripts";
/// The scripts in the order of their numbers in `src/control/store/remote/code.rs`.
const SCRIPTS: [&str; 13] = [
    "admit", "append", "release", "announce", "edit", "fold", "snapshot", "changes", "page", "decide", "begin",
    "epoch", "try",
];
const COMPLETIONS: &str = "cli/completions";

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Returns a JSON document without white space outside its strings.
fn dense(json: &str) -> String {
    let (mut out, mut inside, mut escaped) = (String::with_capacity(json.len()), false, false);
    for c in json.chars() {
        if inside || !c.is_ascii_whitespace() {
            out.push(c);
        }
        inside ^= c == '"' && !escaped;
        escaped = inside && c == '\\' && !escaped;
    }
    out
}

/// Returns the lines of a program without indentation and comment lines.
fn bare(text: &str, comment: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(comment));
    lines.collect::<Vec<&str>>().join("\n") + "\n"
}

/// Beginning of the year in which this program was written. A source archive has no commit, so this is its build date.
const WRITTEN: u64 = 1_767_225_600;

/// Returns the build date in seconds since 1970, the same for every build of the same source: `SOURCE_DATE_EPOCH` if
/// set, otherwise the date of the commit.
fn built(own: bool) -> u64 {
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let of_commit = || git(&["log", "-1", "--format=%ct"]).filter(|_| own)?.parse().ok();
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text.trim().parse().expect("SOURCE_DATE_EPOCH is a number of seconds since 1970"),
        Err(_) => of_commit().unwrap_or(WRITTEN),
    }
}

/// Compresses a text into a file that the package's code includes.
fn pack(to: &str, text: &str) {
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let packed = miniz_oxide::deflate::compress_to_vec(text.as_bytes(), 10);
    std::fs::write(std::path::Path::new(&out).join(to), packed).expect("OUT_DIR is writable");
}

/// Build script of the package `policy`, whose folder is `src/policy`.
fn policy() {
    const TABLE: &str = "vendors/table.toml";
    println!("cargo:rerun-if-changed=../../scripts/build.rs");
    println!("cargo:rerun-if-changed={TABLE}");
    pack("vendors", &bare(&std::fs::read_to_string(TABLE).expect("the table of vendors exists"), "#"));
}

/// Build script of the package `engine`, whose folder is `src/engine`.
fn engine() {
    println!("cargo:rerun-if-changed=../../scripts/build.rs");
    for (from, to) in
        [("openapi.json", "openapi.json"), ("admin/openapi.json", "admin.json"), ("admin/page.html", "page.html")]
    {
        let from = format!("gateway/{from}");
        println!("cargo:rerun-if-changed={from}");
        let text = std::fs::read_to_string(&from).expect("the source of each document exists");
        pack(to, &if from.ends_with(".json") { dense(&text) } else { bare(&text, "//") });
    }
}

/// Build script of the package `control`, whose folder is `src/control`.
fn control() {
    println!("cargo:rerun-if-changed=../../scripts/build.rs");
    println!("cargo:rerun-if-changed={COMPLETIONS}");
    let shells = ["bash", "fish", "zsh"];
    let completions = shells.map(|shell| std::fs::read_to_string(format!("{COMPLETIONS}/{shell}")));
    pack("completions", &completions.map(|text| format!("\0{}", text.expect("each shell has a file"))).concat());
    println!("cargo:rerun-if-changed={LUA}");
    let scripts = SCRIPTS.map(|name| std::fs::read_to_string(format!("{LUA}/{name}.lua")));
    let bared = scripts.map(|text| format!("{}\0", bare(&text.expect("each script has a file"), "--")));
    pack("scripts", &bared.concat());
    // Only release builds are rebuilt after a commit.
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        for name in ["HEAD", "logs/HEAD"] {
            if let Some(path) =
                git(&["rev-parse", "--git-path", name]).filter(|path| std::path::Path::new(path).exists())
            {
                println!("cargo:rerun-if-changed={path}");
            }
        }
    }
    // Cargo runs this in the folder of the package. In a source archive, git finds no repository or a foreign one.
    let own = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix == "src/control/");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| own).unwrap_or_else(|| "no commit".to_owned());
    println!("cargo:rustc-env=TOLLGATE_COMMIT={commit}");
    println!("cargo:rustc-env=TOLLGATE_BUILT={}", built(own));
    println!("cargo:rustc-env=TOLLGATE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}

fn main() {
    match std::env::var("CARGO_PKG_NAME").as_deref() {
        Ok("policy") => policy(),
        Ok("engine") => engine(),
        _ => control(),
    }
}
