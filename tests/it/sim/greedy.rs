//! A tenant that tries to pay for less than it uses, and the most that its providers may bill.
//!
//! Its texts are of kinds that an estimate could undercount, its completions request many answers, and it disconnects
//! at any event. Every request contains its marker as the user or as its trace, so that its usage record can be identified
//! even if the client never received a byte.

use super::providers::Book;
use serde_json::Value;
use std::collections::BTreeMap;
use tollgate::base::rng::Rng;
use tollgate::policy::row::Row;
use tollgate::policy::usage::UsageSource;
use tollgate::wire::Passthrough;

/// Name of its key and of its plan.
pub const GREEDY: &str = "greedy";
/// Budget of the greedy tenant in nano-dollars: some dozens of ordinary requests, or one with the maximum number of
/// answers.
pub const BUDGET: u64 = 50_000_000;
/// Maximum tokens of one answer that it requests.
pub const ANSWER: u64 = 47;
/// Bytes per token that no tokenizer exceeds: an estimate is never lower.
const BYTES_PER_TOKEN: u64 = 8;
/// Shorter strings are names and roles.
const TEXT_MIN: usize = 64;
/// Prices of the model `small` in nano-dollars per thousand tokens, input and output.
const PRICES: [u64; 2] = [1_000_000, 4_000_000];

/// Texts that an estimate could undercount, as JSON.
const CHEAP: [&str; 10] =
    ["word\\\\u ", "\\uface", "     ", "\\t", "\\\\", "!?.,", "[]{}", "qXzJ", "\\ud83c\\udde9", "http"];

/// The most that a provider may bill for a request.
#[derive(Copy, Clone, Debug, Default)]
pub struct Bill {
    /// Prompt tokens: the fewest that any tokenizer produces.
    pub input: u64,
    /// Tokens of all answers.
    pub output: u64,
    /// Nano-dollars for the request itself, its images and its audio.
    pub units_nano: u64,
}

impl Bill {
    fn nano(self) -> u64 {
        (self.input * PRICES[0] + self.output * PRICES[1]) / 1000 + self.units_nano
    }
}

/// Returns the members of a request that determine its price; its text starts with `marked`. `relayed`: for
/// `/v1/completions`.
pub fn members(marked: &str, relayed: bool, rng: &mut Rng) -> String {
    let cheap = CHEAP[rng.below(CHEAP.len() as u64) as usize];
    let text = cheap.repeat(1 + rng.below(3000) as usize);
    if relayed {
        let prompts = vec![format!("\"{marked}{text}\""); 1 + rng.below(4) as usize].join(",");
        let many = ["", "\"n\":20,", "\"n\":8.0,", "\"best_of\":16,\"n\":2,", "\"n\":2e1,"][rng.below(5) as usize];
        return format!("{many}\"prompt\":[{prompts}],\"max_tokens\":{ANSWER}");
    }
    let content = match rng.below(4) {
        0 => format!(
            "[{{\"type\":\"text\",\"text\":\"{marked}\"}},{{\"type\":\"text\",\"url\":\"http{text}\",\"text\":\"a\"}}]"
        ),
        1 => format!(
            "[{{\"type\":\"text\",\"text\":\"{marked}\"}},{{\"type\":\"text\",\"data\":\"x{text}\",\"text\":\"a\"}}]"
        ),
        _ => format!("\"{marked}{text}\""),
    };
    let tools = vec!["{\"type\":\"function\",\"function\":{\"name\":\"a\"}}"; rng.below(200) as usize].join(",");
    let tools = if tools.is_empty() { String::new() } else { format!(",\"tools\":[{tools}]") };
    format!("\"messages\":[{{\"role\":\"user\",\"content\":{content}}}],\"max_tokens\":{ANSWER}{tools}")
}

/// Returns the provider's bill for this request: each answer has its full length.
pub fn bill(body: &Value, relayed: bool) -> Bill {
    let input = text_bytes(body) / BYTES_PER_TOKEN;
    let number = |name: &str| body[name].as_f64().unwrap_or(1.0) as u64;
    let prompts = body["prompt"].as_array().map_or(1, |prompts| prompts.len() as u64);
    let answers = if relayed { prompts * number("n").max(number("best_of")) } else { 1 };
    Bill { input: input.max(1), output: answers * ANSWER, units_nano: 0 }
}

/// Returns the bytes of all texts after JSON decoding.
pub fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) if text.len() >= TEXT_MIN => text.len() as u64,
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => members.values().map(text_bytes).sum(),
        _ => 0,
    }
}

/// Returns the marker in the user or in the trace of a usage record.
fn marker(row: &Row) -> Option<u64> {
    match &row.names.user {
        Some(user) => user.strip_prefix('m')?.parse().ok(),
        None => u64::from_str_radix(row.names.trace.as_deref()?.split('-').next()?, 16).ok(),
    }
}

/// Checks that a request is charged for everything that was sent and received, and for all of its audio or images.
/// Returns its marker if its client has left without a report of its provider.
pub fn row_covers(row: &Row, received: &BTreeMap<u64, u64>, book: &Book) -> Result<Option<u64>, String> {
    let Some(marker) = marker(row) else { return Ok(None) };
    let attempts: Vec<_> = book.served.range((marker, 0)..(marker + 1, 0)).collect();
    let [((_, attempt), served)] = attempts[..] else { return Ok(None) };
    // An attempt that failed costs only what its provider has reported.
    if *attempt != u64::from(row.attempts) {
        return Ok(None);
    }
    if !served.complete || served.hostile || !matches!(row.status, 200 | 499) {
        return Ok(None);
    }
    if row.endpoint.as_passthrough().is_some_and(Passthrough::is_media) {
        let bill = book.bills.get(&marker).map_or(0, |bill| bill.nano());
        if row.cost_nano < bill {
            return Err(format!("its provider bills {bill} nano-dollars: {row:?}"));
        }
    }
    if matches!(row.usage.source, UsageSource::Provider | UsageSource::Partial) {
        return Ok(None);
    }
    let (least, relayed) = (served.text_bytes / BYTES_PER_TOKEN, received.get(&marker).copied().unwrap_or(0));
    if row.usage.prompt() < least {
        return Err(format!("{} bytes were sent, which are at least {least} tokens: {row:?}", served.text_bytes));
    }
    let has_output = row.endpoint.as_passthrough().is_none_or(Passthrough::generates);
    if has_output && row.usage.out < relayed / BYTES_PER_TOKEN {
        return Err(format!("{relayed} bytes of text were received: {row:?}"));
    }
    Ok((row.status == 499).then_some(marker))
}

/// Checks that the greedy key has spent less than its budget, plus one reservation, plus the amounts that providers
/// billed beyond the requests.
pub fn budget_holds<'a>(rows: impl Iterator<Item = &'a Row>, book: &Book) -> Result<u64, String> {
    let (mut spent, mut excess, mut largest) = (0u64, 0u64, 0u64);
    for row in rows {
        let legal = marker(row).and_then(|marker| book.bills.get(&marker)).map_or(0, |bill| bill.nano());
        spent += row.cost_nano;
        if row.usage.source == UsageSource::Provider {
            excess += row.cost_nano.saturating_sub(legal);
        }
        largest = largest.max(row.cost_nano.max(legal));
    }
    let bound = BUDGET - 1 + largest + excess;
    match spent <= bound {
        true => Ok(spent),
        false => Err(format!("{spent} nano-dollars of {BUDGET} were spent, more than {bound}")),
    }
}
