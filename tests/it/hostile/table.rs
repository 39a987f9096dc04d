//! Runs every attack on its own gateway, one after the other, and prints the table.

use super::rig::{Gate, Rig};
use super::{descriptors, floods, heads, slow, smuggling, words};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// An attack.
pub struct Attack {
    /// Action of the client.
    pub name: &'static str,
    /// Bound that must not be exceeded, and its setting or constant.
    pub bound: &'static str,
    /// Lines for `[server]`.
    pub server: &'static str,
    /// Runs the attack, and panics if the bound does not hold. Returns the measurements.
    pub run: fn(&Rig, &mut Gate) -> String,
}

fn all() -> Vec<Attack> {
    [slow::ATTACKS, floods::ATTACKS, descriptors::ATTACKS, heads::ATTACKS, smuggling::ATTACKS, words::ATTACKS]
        .into_iter()
        .flat_map(|attacks| attacks())
        .collect()
}

#[test]
fn every_attack_meets_its_bound() {
    let only = std::env::var("ATTACK").unwrap_or_default();
    let mut failed = Vec::new();
    println!("\n| attack | bound | seen |\n|---|---|---|");
    for (number, attack) in all().into_iter().enumerate().filter(|(_, attack)| attack.name.contains(&only)) {
        let seen = catch_unwind(AssertUnwindSafe(|| {
            let rig = Rig::new(&format!("hostile-{number}"), attack.server);
            let mut gate = rig.start();
            let seen = (attack.run)(&rig, &mut gate);
            still_serves(&rig, &gate);
            seen
        }));
        let seen = seen.unwrap_or_else(|_| {
            failed.push(attack.name);
            "**the bound was broken**".to_string()
        });
        println!("| {} | {} | {seen} |", attack.name, attack.bound);
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Checks after every attack that an honest client is served, all resources are released, and no panic was caught.
fn still_serves(rig: &Rig, gate: &Gate) {
    let answer = gate.ask(&honest(&rig.key));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"usage\""), "{answer}");
    gate.until("all buffers are free", |gate| gate.metric("tollgate_open_reservations") == 0);
    assert_eq!(gate.metric("tollgate_panics_total"), 0);
    for line in gate.log().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error} in {line}"));
    }
}

/// Returns a request of an honest client, after which the connection closes.
pub fn honest(key: &str) -> String {
    super::rig::chat(key, "small", false, "hello").replacen("host: h", "connection: close\r\nhost: h", 1)
}

/// Returns the status of an answer; 0 if there is none.
pub fn status(answer: &str) -> u16 {
    answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0)
}

/// Returns the resident memory of the gateway in kilobytes.
pub fn resident(gate: &Gate) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", gate.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the CPU time of the gateway in hundredths of a second.
pub fn processor(gate: &Gate) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", gate.child.id())).unwrap();
    let fields: Vec<&str> = text[text.rfind(')').unwrap()..].split_whitespace().collect();
    fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
}

/// Returns the CPU time of an idle second. The machine adds some in a few seconds only, while a busy loop shows in
/// every second.
pub fn idle_ticks(gate: &Gate) -> u64 {
    let second = |_| {
        let before = processor(gate);
        std::thread::sleep(Duration::from_secs(1));
        processor(gate) - before
    };
    let mut least = u64::MAX;
    for work in (0..5).map(second) {
        least = least.min(work);
        if least < 5 {
            break;
        }
    }
    least
}

/// Returns the number of open descriptors of the gateway.
pub fn descriptors(gate: &Gate) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", gate.child.id())).unwrap().count()
}
