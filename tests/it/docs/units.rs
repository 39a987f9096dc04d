//! Files of a release other than the binary.

use serde_json::Value;
use std::process::Command;

#[allow(dead_code)] // its `main` is not used here
#[path = "../../../scripts/generate.rs"]
mod generate;

/// Runs systemd's own check, with an existing program in place of the installed one.
#[test]
fn systemd_units_are_valid_and_the_service_is_confined() {
    let folder = std::env::temp_dir().join(format!("tollgate-units-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
    for unit in ["tollgate.service", "tollgate.socket"] {
        let text = std::fs::read_to_string(format!("{scripts}/{unit}")).unwrap();
        std::fs::write(folder.join(unit), text.replace("/usr/bin/tollgate", env!("CARGO_BIN_EXE_tollgate"))).unwrap();
    }
    let analyze = |args: &[&str]| {
        let output = Command::new("systemd-analyze").current_dir(&folder).args(args).output().unwrap();
        (
            output.status.success(),
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        )
    };
    let (good, said) = analyze(&["verify", "./tollgate.service", "./tollgate.socket"]);
    assert!(good && said.is_empty(), "{said}");
    // Exposure 0 is best, 10 is worst; `--threshold` counts in tenths.
    let (good, said) = analyze(&["security", "--offline=yes", "--threshold=20", "./tollgate.service"]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(good, "{said}");
}

/// The socket listens on port 443 in place of the configured addresses, so only those who want that enable it.
#[test]
fn enabling_the_service_does_not_enable_the_socket() {
    let root = std::env::temp_dir().join(format!("tollgate-enabled-{}", std::process::id()));
    let units = root.join("usr/lib/systemd/system");
    std::fs::create_dir_all(&units).unwrap();
    for unit in ["tollgate.service", "tollgate.socket"] {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
        std::fs::copy(format!("{scripts}/{unit}"), units.join(unit)).unwrap();
    }
    let systemctl = |args: &[&str]| {
        let output = Command::new("systemctl").arg("--root").arg(&root).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let states = || ["tollgate.service", "tollgate.socket"].map(|unit| systemctl(&["is-enabled", unit]));
    systemctl(&["enable", "tollgate.service"]);
    let alone = states();
    systemctl(&["enable", "tollgate.socket", "tollgate.service"]);
    let both = states();
    systemctl(&["disable", "tollgate.socket", "tollgate.service"]);
    let none = states();
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(alone, ["enabled", "disabled"]);
    assert_eq!((both, none), (["enabled", "enabled"].map(str::to_owned), ["disabled", "disabled"].map(str::to_owned)));
}

/// `BLESS=1 cargo test --test it docs::` writes them.
#[test]
fn completions_match_the_definitions() {
    use clap_complete::Shell::{Bash, Fish, Zsh};
    for shell in [Bash, Fish, Zsh] {
        let file = format!("{}/src/control/cli/completions/{shell}", env!("CARGO_MANIFEST_DIR"));
        let mut made = Vec::new();
        clap_complete::generate(shell, &mut tollgate::cli::definition(), "tollgate", &mut made);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, &made).unwrap();
            continue;
        }
        assert!(std::fs::read(&file).unwrap() == made, "BLESS=1 cargo test --test it docs:: writes {file}");
        let printed = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["completions", &shell.to_string()]).output();
        assert!(printed.unwrap().stdout == made, "{shell}: printed completions must equal the written ones");
    }
}

#[test]
fn every_command_has_its_man_page() {
    let command = tollgate::cli::definition();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    for name in command.get_subcommands().map(clap::Command::get_name) {
        assert!(page.contains(&format!("tollgate\\-{name}(1)")), "{name}: {page}");
    }
}

#[test]
fn bill_of_materials_matches_the_released_binary() {
    let root = env!("CARGO_MANIFEST_DIR");
    let script = std::fs::read_to_string(format!("{root}/scripts/release")).unwrap();
    let is_built = |line: &&str| line.starts_with("cargo rustc --release") || line.starts_with("cargo metadata");
    let built: Vec<&str> = script.lines().map(str::trim).filter(is_built).collect();
    assert_eq!(built.len(), 3, "expected the binary, the static one and the bill: {built:?}");
    assert!(built.iter().all(|line| !line.contains("features")), "all must have the default features: {built:?}");
    // Only for this platform, as in the script: the crates of other platforms may not have been downloaded.
    let ask = "host=$(rustc -vV | sed -n 's/^host: //p'); \
               cargo metadata --format-version 1 --locked --filter-platform \"$host\"";
    let output = Command::new("sh").args(["-c", ask]).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bill = generate::bill_of_materials(&serde_json::from_slice(&output.stdout).unwrap()).unwrap();
    let names: Vec<&str> = bill["components"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    for (name, linked) in [("rustls", true), ("rusqlite", true), ("serde_derive", false), ("criterion", false)] {
        assert_eq!(names.contains(&name), linked, "{name}: {names:?}");
    }
    let refs: Vec<&Value> = bill["components"].as_array().unwrap().iter().map(|c| &c["bom-ref"]).collect();
    for dependency in bill["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(refs.contains(&on), "{on} is not a component");
        }
    }
    assert!(!bill.to_string().contains(root), "the bill must not contain the build folder");
}
