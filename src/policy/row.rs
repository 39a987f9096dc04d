//! One row of the ledger: plain data between `gateway`, which writes it, and `io::store`, which keeps it.
//! It decides nothing and never holds content of a request or an answer.

use super::keys::KeyId;
use super::meter::Lease;
use super::usage::{Usage, UsageSource};
use crate::base::digest;
use crate::base::time::Unix;
use crate::wire::Dialect;
use crate::wire::json::write_string;
use std::io::Write;
use std::sync::Arc;

/// What is remembered of one admitted request (contract sections 3 and 5).
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The 16 bytes behind the hexadecimal of the request id.
    pub request: [u8; 16],
    /// Whose key.
    pub key: KeyId,
    /// When it was admitted; window and period follow from it.
    pub admitted: Unix,
    /// Catalog id of the model.
    pub model: Arc<str>,
    /// `provider/model` of the target that served, empty if none was reached.
    pub target: Arc<str>,
    /// The endpoint's shape.
    pub endpoint: Dialect,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// The status the client saw; 499 for a client that left before one.
    pub status: u16,
    /// Tokens and where their counts come from.
    pub usage: Usage,
    /// Cost in nano-dollars.
    pub cost_nano: u64,
    /// Targets tried.
    pub attempts: u32,
    /// Microseconds from the first byte of the request to the end of the answer.
    pub micros: u64,
    /// What a shared ledger has lent to the request, to be given back with this row; `None` where none is shared. Not
    /// kept.
    pub lease: Option<Box<Lease>>,
}

/// Reads the endpoint's shape as ledgers keep it, by [`Dialect::name`].
pub fn endpoint_from(text: &str) -> Dialect {
    if text == Dialect::Messages.name() { Dialect::Messages } else { Dialect::Chat }
}

/// A request that has been admitted and still runs, as one process tells another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// As in [`Row::request`].
    pub request: [u8; 16],
    /// Whose key.
    pub key: KeyId,
    /// When it was admitted.
    pub admitted: Unix,
    /// Tokens reserved for it.
    pub reserved: u64,
}

impl Running {
    /// One line of text without its line feed.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        digest::hex_into(&self.request, out);
        // Writing to a Vec cannot fail.
        let _ = write!(out, " {} {} {}", self.key, self.admitted.0, self.reserved);
    }

    /// Reads what [`Running::write_line`] wrote.
    pub fn read_line(line: &str) -> Option<Running> {
        let mut words = line.split(' ');
        let request = request_from(words.next()?)?;
        let key = KeyId::parse(words.next()?)?;
        let admitted = Unix(words.next()?.parse().ok()?);
        let reserved = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Running { request, key, admitted, reserved })
    }
}

impl Row {
    /// One line of text without its line feed: numbers and words, then the model and the target as JSON strings.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        digest::hex_into(&self.request, out);
        let (usage, shape) = (&self.usage, self.endpoint.name());
        // Writing to a Vec cannot fail.
        let _ = write!(
            out,
            " {} {} {shape} {} {} {} {} {} {} {} {} {} {} ",
            self.key,
            self.admitted.0,
            u8::from(self.stream),
            self.status,
            usage.uncached_in,
            usage.cache_read,
            usage.cache_write,
            usage.out,
            usage.source.as_str(),
            self.cost_nano,
            self.attempts,
            self.micros
        );
        write_string(out, &self.model);
        out.push(b' ');
        write_string(out, &self.target);
    }

    /// Reads what [`Row::write_line`] wrote.
    pub fn read_line(line: &str) -> Option<Row> {
        let mut words = line.splitn(15, ' ');
        let mut next = || words.next();
        let (request, key) = (request_from(next()?)?, KeyId::parse(next()?)?);
        let (admitted, endpoint) = (Unix(next()?.parse().ok()?), endpoint_from(next()?));
        let (stream, status) = (next()? == "1", next()?.parse().ok()?);
        let mut number = || next()?.parse::<u64>().ok();
        let (uncached_in, cache_read, cache_write, out) = (number()?, number()?, number()?, number()?);
        let source = UsageSource::from_text(next()?)?;
        let usage = Usage { uncached_in, cache_read, cache_write, out, source };
        let (cost_nano, attempts, micros) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
        let mut names = serde_json::Deserializer::from_str(next()?).into_iter::<String>();
        let (model, target) = (names.next()?.ok()?.into(), names.next()?.ok()?.into());
        Some(Row {
            // Rows are passed on only where the ledger is a file, which lends nothing.
            lease: None,
            request,
            key,
            admitted,
            model,
            target,
            endpoint,
            stream,
            status,
            usage,
            cost_nano,
            attempts,
            micros,
        })
    }
}

fn request_from(hex: &str) -> Option<[u8; 16]> {
    let value = u128::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 32)?;
    Some(value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_and_a_running_request_come_back_from_their_lines() {
        let key = KeyId::parse("abcdefABCDEF").unwrap();
        let usage = Usage { uncached_in: 1, cache_read: 2, cache_write: 3, out: 4, source: UsageSource::Partial };
        let row = Row {
            lease: None,
            request: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255],
            key,
            admitted: Unix(1_800_000_000_123),
            model: "a \"quoted\"\nname".into(),
            target: "ü/x y".into(),
            endpoint: Dialect::Messages,
            stream: true,
            status: 499,
            usage,
            cost_nano: 5,
            attempts: 6,
            micros: 7,
        };
        let mut line = Vec::new();
        row.write_line(&mut line);
        let text = String::from_utf8(line).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(Row::read_line(&text), Some(row.clone()));
        let running = Running { request: row.request, key, admitted: row.admitted, reserved: 8 };
        let mut line = Vec::new();
        running.write_line(&mut line);
        assert_eq!(Running::read_line(std::str::from_utf8(&line).unwrap()), Some(running));
        for cut in 0..text.len() - 1 {
            let Some(part) = text.get(..cut) else { continue };
            assert_eq!(Row::read_line(part), None, "{part}");
        }
    }
}
