//! Answers each line, the inside of a JSON string, with the tokens that the gateway estimates for it.

use std::io::{BufRead, Write};
use tollgate::dialect::Estimator;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let mut estimator = Estimator::new();
        estimator.feed_json(line?.as_bytes());
        writeln!(out, "{}", estimator.tokens())?;
        out.flush()?;
    }
    Ok(())
}
