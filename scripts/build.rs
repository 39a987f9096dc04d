//! The build script: tells the linker how to lay the release binary out.
//!
//! The kernel brings a program's code into memory in pieces of 64 KiB. What a start and ordinary requests run lies all
//! over three and a half megabytes, so nearly all of it came in; `scripts/order.txt` names those functions, and here
//! they are put side by side. Names that no function bears do no harm: a list that is out of date costs memory alone.
//! `scripts/bench order` writes it anew.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs, process};

const ORDER: &str = "scripts/order.txt";

fn main() {
    println!("cargo::rerun-if-changed={ORDER}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_OS", "linux") || !is("PROFILE", "release") || has_chosen_a_linker() {
        return;
    }
    let names = fs::read_to_string(ORDER).expect("the list of functions lies beside the build script");
    let script = Path::new(&env::var("OUT_DIR").expect("cargo names a folder")).join("order.ld");
    fs::write(&script, layout(&names)).expect("cargo's folder can be written to");
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", script.display());
    if is("CARGO_CFG_TARGET_ENV", "gnu") && knows_packed_relocations() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether whoever builds has named a linker: not every one reads scripts such as ours.
fn has_chosen_a_linker() -> bool {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    env::var_os("RUSTC_LINKER").is_some() || flags.contains("fuse-ld") || flags.contains("linker=")
}

/// A linker script that adds to the linker's own: code in the order of `names`, then all other code.
fn layout(names: &str) -> String {
    let mut script = String::from("SECTIONS {\n  .text : {\n");
    for name in names.lines().filter(|line| !line.starts_with('#')) {
        writeln!(script, "    *(.text.{name} .text.unlikely.{name})").expect("a string takes everything");
    }
    script.push_str("    *(.text .text.*)\n  }\n} INSERT BEFORE .fini;\n");
    script
}

/// Whether the C library loads programs whose relocations are packed, which a start then need not read (glibc 2.36).
/// Where it is built for another machine, nobody can say.
fn knows_packed_relocations() -> bool {
    if env::var("HOST") != env::var("TARGET") {
        return false;
    }
    let found = process::Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let Ok(text) = found.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()) else { return false };
    let version: Option<Vec<u32>> =
        text.trim().strip_prefix("glibc ").map(|version| version.split('.').filter_map(|n| n.parse().ok()).collect());
    version.is_some_and(|version| version.as_slice() >= [2, 36].as_slice())
}
