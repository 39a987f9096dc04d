//! Replays the committed fuzz corpus through the entry points of the fuzz targets, with stable Rust and without a
//! fuzzer.

use super::readers;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum size of the whole corpus.
const CORPUS_BYTES_MAX: usize = 250_000;

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn every_reader_keeps_its_guarantees_on_its_corpus() {
    let mut bytes = 0;
    for (name, read) in readers::READERS {
        let inputs = corpus(name);
        assert!(inputs.len() >= 10, "{name} has {} inputs", inputs.len());
        for (path, input) in inputs {
            bytes += input.len();
            println!("{}", path.display()); // shown if the reader panics
            read(&input);
        }
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "the corpus has {bytes} bytes");
}

#[test]
fn every_reader_keeps_its_guarantees_on_truncated_inputs() {
    for (name, _) in readers::READERS {
        for (_, input) in corpus(name) {
            for end in [input.len() / 2, input.len().saturating_sub(1)] {
                readers::run(name, &input[..end]);
            }
        }
    }
}
