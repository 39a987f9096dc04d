//! The deterministic simulator: the whole core in a world of pipes, driven by one seed.
//!
//! A run is a number of steps. In each step the seed chooses the next event: a client sends or reads a few bytes,
//! starts a request or disconnects; a provider reads part of a request or sends part of its answer, breaks off or stops
//! responding; a dial succeeds or fails; the ledger commits, fails or recovers; time passes and deadlines fire. So
//! every split, delay, reset, half-close and stall occurs, and occurs again with the same seed. After each step the
//! invariants in `check.rs` must hold. At the end all clients disconnect (or the gateway is drained), and then nothing
//! may remain: no connection, no reservation, no buffered byte, no timer.
//!
//! `SIM_SEED=7 cargo test --test it sim::` replays one seed, `SIM_STEPS=100` changes the length of runs,
//! `SIM_SEEDS=5000` runs at least this number of seeds, `SIM_REQUESTS=1000000` runs as many seeds as this number of
//! requests takes. Add a failed seed to `tests/regressions/`, with a line that says what it found; those seeds are
//! replayed first. (A pinned seed reproduces its bug only as long as the simulator makes the same choices. A bug that
//! must stay covered also gets a transcript.)

mod check;
mod clients;
#[cfg(feature = "redis")]
pub mod fleet;
mod greedy;
mod ledger;
mod media;
mod odd;
mod pair;
mod providers;
mod tally;
mod traces;
mod wider;
mod world;

use ledger::LedgerKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use wider::Wider;

/// Seeds of one test run.
const SEEDS: u64 = 200;
/// After this number of failures, further requests give no new information.
const FAILURES_MAX: usize = 100;
/// Some worlds have additional features; see `sim/wider.rs`. Pinned seeds do not, so that they reproduce what they
/// found.
const WIDER: bool = true;
/// Steps of one seed, before all clients disconnect.
const STEPS: u64 = 1500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs one seed. A panic of the gateway counts as a failure.
fn run(seed: u64, steps: u64, ledger_kind: LedgerKind, wider: Wider) -> Result<tally::Tally, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(seed, steps, ledger_kind, wider)));
    let error = match outcome {
        Ok(Ok(tally)) => return Ok(tally),
        Ok(Err(error)) => error,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(text) => format!("panic: {text}"),
            None => format!("panic: {}", panic.downcast_ref::<&str>().unwrap_or(&"?")),
        },
    };
    Err(format!("seed {seed}, {ledger_kind:?}, {wider:?}, replay with SIM_SEED={seed} SIM_STEPS={steps}:\n{error}"))
}

fn wider(seed: u64, steps: u64) -> Wider {
    if WIDER { Wider::of(seed, steps) } else { Wider::default() }
}

/// Returns (seed, steps) of every line `seed STEPS # words` of a file in `tests/regressions/`.
fn pinned(file: &str) -> Vec<(u64, u64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let numbers = lines.map(|line| line.split_whitespace().map(|word| word.parse::<u64>().unwrap()));
    numbers.filter_map(|mut words| words.next().zip(words.next())).collect()
}

#[test]
fn pinned_seeds_pass() {
    for (seed, steps) in pinned("simulator.seeds") {
        run(seed, steps, LedgerKind::File, Wider::default()).unwrap();
    }
}

/// Runs all seeds, each with the ledger that `kind_of` chooses. Returns the sum of their counts; `None` for a single
/// seed.
fn run_all(kind_of: impl Fn(u64) -> LedgerKind) -> Option<tally::Tally> {
    let steps = number("SIM_STEPS").unwrap_or(STEPS);
    if let Some(seed) = number("SIM_SEED") {
        println!("{:#?}", run(seed, steps, kind_of(seed), wider(seed, steps)).unwrap());
        return None;
    }
    let mut sum = tally::Tally::default();
    let mut failures = Vec::new();
    let (seeds, requests) = (number("SIM_SEEDS").unwrap_or(SEEDS), number("SIM_REQUESTS").unwrap_or(0));
    let mut seed = 0;
    while seed < seeds || (sum.requests < requests && failures.len() < FAILURES_MAX) {
        match run(seed, steps, kind_of(seed), wider(seed, steps)) {
            Ok(tally) => sum.add(&tally),
            Err(error) => failures.push(error),
        }
        seed += 1;
    }
    println!("simulator: {seed} seeds, {} violations, {sum}", failures.len());
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    Some(sum)
}

#[test]
fn every_seed_passes() {
    if let Some(sum) = run_all(|_| LedgerKind::File) {
        // A simulator that tests nothing would pass, so all interesting outcomes must have occurred.
        assert!(sum.is_rich(), "something never happened: {sum:#?}");
    }
}

#[test]
fn every_seed_passes_on_a_shared_ledger() {
    if let Some(sum) = run_all(|seed| if seed % 5 < 3 { LedgerKind::Refuse } else { LedgerKind::Local }) {
        assert!(sum.is_rich_and_shared(), "something never happened: {sum:#?}");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for ledger_kind in [LedgerKind::File, LedgerKind::Refuse] {
        let one = || run(3, 600, ledger_kind, Wider::default()).unwrap();
        assert_eq!(one(), one());
    }
}

#[test]
fn every_upgrade_passes_with_failing_successors_and_predecessors() {
    let (mut sum, mut failures) = (pair::Tally::default(), Vec::new());
    let seeds = number("SIM_SEED").map_or(0..5 * number("SIM_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    for seed in seeds.clone() {
        let outcome = catch_unwind(AssertUnwindSafe(|| pair::run(seed, &mut sum)));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(format!("seed {seed}: {error}")),
            Err(_) => failures.push(format!("seed {seed}: a panic")),
        }
    }
    let of = |words: &[&str]| failures.iter().filter(|text| words.iter().any(|word| text.contains(word))).count();
    let faults = sum.reported_faults();
    println!(
        "upgrades: {} requested, {} started, {} served, {} cancelled; {} double admissions, {} lost usage records, \
         {} moments without a serving process, {} other violations\n{faults}\n  {sum:?}",
        seeds.clone().count(),
        sum.begun,
        sum.served,
        sum.taken_back,
        of(pair::DOUBLE),
        of(pair::LOST),
        of(pair::STUCK),
        failures.len() - of(&[pair::DOUBLE, pair::LOST, pair::STUCK].concat()),
    );
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    assert!(seeds.count() == 1 || sum.is_rich(), "something never happened: {sum:?}");
}

#[cfg(feature = "redis")]
#[test]
fn three_hosts_on_one_ledger_hold_its_limits_despite_faults() {
    let (mut sum, mut failures) = (fleet::Tally::default(), Vec::new());
    let (steps, count) = (number("SIM_STEPS").unwrap_or(fleet::STEPS), number("SIM_SEEDS").unwrap_or(SEEDS) / 4);
    let seeds: Vec<_> = match number("SIM_SEED") {
        Some(seed) => vec![(seed, steps)],
        None => pinned("fleet.seeds").into_iter().chain((0..count).map(|seed| (seed, steps))).collect(),
    };
    for (seed, steps) in &seeds {
        match catch_unwind(AssertUnwindSafe(|| fleet::run(*seed, *steps, &mut sum))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(format!("seed {seed}, {steps} steps: {error}")),
            Err(_) => failures.push(format!("seed {seed}, {steps} steps: a panic")),
        }
    }
    println!("fleets: {} seeds, {} violations, {sum:?}", seeds.len(), failures.len());
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures[..failures.len().min(5)].join("\n"));
    assert!(number("SIM_SEED").is_some() || sum.is_rich(), "something never happened: {sum:?}");
}
