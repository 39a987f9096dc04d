//! A recorded request as people read it: a row of the table, or all of its members.

use super::names::KeyNames;
use crate::cli::output::{Align, clean, dollars, grouped, money};
use crate::wire::json::Raw;
use crate::wire::percent::decoded;

/// Columns of the table.
pub(super) const COLUMNS: [(&str, Align); 12] = [
    ("TIME", Align::Left),
    ("STATUS", Align::Right),
    ("ENDPOINT", Align::Left),
    ("MODEL", Align::Name),
    ("TARGET", Align::Name),
    ("KEY", Align::Name),
    ("TOKENS", Align::Right),
    ("MS", Align::Right),
    ("FIRST BYTE MS", Align::Right),
    ("COST $", Align::Right),
    ("ID", Align::Left),
    ("REASON", Align::Left),
];
/// Columns that are omitted, in this order, if the terminal is too narrow; a live list does not know its rows.
pub(super) const SPARE: [&str; 5] = ["FIRST BYTE MS", "ENDPOINT", "TOKENS", "TARGET", "COST $"];
/// Prefix of ids, and number of characters of the rest that a narrow terminal shows.
const ID: (&str, usize) = ("req_", 8);

/// The id of a request, or its beginning, with or without the prefix.
pub(super) fn parse_id(text: &str) -> Result<String, String> {
    let (prefix, shown) = ID;
    let id = text.strip_prefix(prefix).unwrap_or(text);
    if id.len() < shown {
        return Err(format!("expected an id of a request, or at least its first {shown} characters"));
    }
    Ok([prefix, id].concat())
}

/// Formats microseconds as milliseconds with one digit.
fn millis(micros: u64) -> String {
    format!("{}.{}", micros / 1000, micros % 1000 / 100)
}

/// Everything about a request: a line for each member of its log line, with one for each attempt.
pub(super) fn details(request: Raw<'_>) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| out += &format!("{:<18}{}\n", name.replace('_', " "), clean(value));
    let text = |of: Raw<'_>, name: &str| of.get(name).and_then(Raw::text).map(String::from).unwrap_or_default();
    let count = |of: Raw<'_>, name: &str| of.get(name).and_then(Raw::count).unwrap_or_default();
    for (name, value) in request.members() {
        match &*Raw::text_of(name) {
            "us" => {
                let phases = value
                    .members()
                    .map(|(phase, us)| format!("{} {}", Raw::text_of(phase), millis(us.count().unwrap_or_default())));
                line("ms", &phases.collect::<Vec<_>>().join(", "));
            }
            "failed" => {
                for (at, one) in value.items().enumerate() {
                    let (target, cause) = (text(one, "target"), text(one, "cause"));
                    let ms = millis(count(one, "us"));
                    line(&format!("attempt {}", at + 1), &format!("{target}: {cause}, {ms} ms"));
                }
                let (target, cause) = (text(request, "target"), text(request, "cause"));
                let outcome = if cause.is_empty() { count(request, "status").to_string() } else { cause };
                line(&format!("attempt {}", value.items().count() + 1), &format!("{target}: {outcome}"));
            }
            "input" => {
                let [input, read, write] = ["input", "cache_read", "cache_write"].map(|name| count(request, name));
                let all = grouped(input.saturating_add(read).saturating_add(write));
                let [read, write, output] = [read, write, count(request, "output")].map(grouped);
                let source = text(request, "source");
                let input = format!("input {all} (cache read {read}, cache write {write})");
                line("tokens", &format!("{input}, output {output}; counts: {source}"));
            }
            "cache_read" | "cache_write" | "output" | "source" => {}
            "asked" => line("asked", &asked(request).unwrap_or_default()),
            "cost_usd" => line("cost", &cost(request).map(money).unwrap_or_default()),
            name => line(name, &value.text().unwrap_or_else(|| String::from_utf8_lossy(value.bytes()))),
        }
    }
    out
}

/// Requested name of a model that the request did not get, as the client wrote it.
pub(super) fn asked(request: Raw<'_>) -> Option<String> {
    request.get("asked").and_then(Raw::text).map(|name| decoded(name.as_bytes()))
}

/// Cost of a request in nano-dollars.
pub(super) fn cost(request: Raw<'_>) -> Option<u64> {
    request.get("cost_usd").and_then(Raw::number).map(|dollars| (dollars * 1e9).round() as u64)
}

/// Cells of a request's row, one for each of [`COLUMNS`].
pub(super) fn cells(request: Raw<'_>, is_short: bool, names: &mut KeyNames<'_>) -> [String; COLUMNS.len()] {
    let text = |name: &str| request.get(name).and_then(Raw::text).map(String::from).unwrap_or_default();
    let count = |name: &str| request.get(name).and_then(Raw::count);
    let tokens: Vec<u64> = ["input", "cache_read", "cache_write", "output"].into_iter().filter_map(count).collect();
    let micros = |name: &str| request.get("us").and_then(|us| us.get(name)).and_then(Raw::count);
    let short = |whole: String, from: usize, to: usize| match whole.get(from..to) {
        Some(part) if is_short => part.to_string(),
        _ => whole,
    };
    // First, since a narrow terminal cuts the end of the reason.
    let repeated = count("count").map_or(String::new(), |count| format!("(x {count}) "));
    [
        // The time of day is enough.
        short(text("time"), 11, 19),
        count("status").unwrap_or_default().to_string(),
        text("endpoint"),
        Some(text("model")).filter(|model| !model.is_empty()).or_else(|| asked(request)).unwrap_or_default(),
        text("target"),
        names.of(request).unwrap_or_else(|| text("key")),
        if tokens.is_empty() { String::new() } else { tokens.iter().sum::<u64>().to_string() },
        micros("total").map(millis).unwrap_or_default(),
        micros("wait").map(millis).unwrap_or_default(),
        cost(request).map(dollars).unwrap_or_default(),
        short(text("id"), ID.0.len(), ID.0.len() + ID.1),
        repeated + &text("reason"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Table;

    #[test]
    fn unknown_model_has_the_name_that_the_client_wrote() {
        let request = Raw::new(br#"{"status":404,"asked":"a%22b%0a"}"#);
        assert_eq!(cells(request, true, &mut KeyNames::new(&|_: &str| Ok(None)))[3], "a\"b\n");
        let text = details(request);
        assert!(text.contains("asked             a\"b?\n"), "{text}");
    }

    #[test]
    fn row_is_short_on_a_terminal_and_whole_elsewhere() {
        let request = Raw::new(
            br#"{"time":"2026-11-22T10:00:00Z","id":"req_0123456789abcdef","status":200,"endpoint":"chat","model":"m",
            "target":"p/m","name":"ann","input":3,"output":4,"us":{"total":12345,"wait":999},"cost_usd":0.0125,
            "reason":"why","count":3}"#,
        );
        let names = &mut KeyNames::new(&|_: &str| Ok(None));
        let rest = ["200", "chat", "m", "p/m", "ann", "7", "12.3", "0.9", "0.0125"];
        for (is_short, time, id) in
            [(true, "10:00:00", "01234567"), (false, "2026-11-22T10:00:00Z", "req_0123456789abcdef")]
        {
            assert_eq!(cells(request, is_short, names)[..], [&[time], &rest[..], &[id, "(x 3) why"]].concat());
        }
        assert_eq!(parse_id("01234567").unwrap(), "req_01234567");
        assert_eq!(parse_id("req_01234567").unwrap(), "req_01234567");
        assert!(parse_id("req_0123456").is_err());
    }

    #[test]
    fn narrow_table_keeps_names_id_and_most_of_the_reason() {
        let row = |name: &str, reason: &str| {
            let line = format!(
                r#"{{"time":"2026-11-22T10:00:00Z","id":"req_0123456789abcdef","status":503,"endpoint":"chat",
                "model":"{name}","target":"{name}/x","name":"{name}","us":{{"total":1234567}},"reason":"{reason}"}}"#
            );
            cells(Raw::new(line.as_bytes()), true, &mut KeyNames::new(&|_: &str| Ok(None))).to_vec()
        };
        let text = |rows: &[Vec<String>]| {
            let mut table = Table::new(&COLUMNS).within(80, &SPARE);
            rows.iter().for_each(|one| table.row(one.clone()));
            table.text()
        };
        let long = row("twenty-characters-ab", "attempt 2 succeeded; egret-rack1/egret: connect: refused");
        let all = text(&[long, row("ann", "")]);
        assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
        for wanted in ["TIME", "STATUS", "MODEL", "KEY", "MS", "ID", "REASON", "01234567", "attempt 2 succeeded"] {
            assert!(all.contains(wanted), "{wanted}: {all}");
        }
        let short = text(&[row("twenty-characters-ab", ""), row("ann", "")]);
        assert!(short.contains("twenty-characters-ab  ") && !short.contains('\u{2026}'), "no reason to cut: {short}");
    }

    #[test]
    fn details_have_every_attempt_token_phase_and_other_member() {
        let request = br#"{"id":"abc","status":500,"target":"b/m","attempts":2,"cause":"status 503",
            "upstream_code":"overloaded","failed":[{"target":"a/m","cause":"connect: refused","us":9100}],
            "input":624,"cache_read":108,"cache_write":0,"output":7,"source":"provider",
            "us":{"total":12345,"wait":999},"cost_usd":0.0125,"dropped":["top_p"],"reason":"why"}"#;
        let text = details(Raw::new(request));
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for wanted in [
            "id abc",
            "attempt 1 a/m: connect: refused, 9.1 ms",
            "attempt 2 b/m: status 503",
            "upstream code overloaded",
            "tokens input 732 (cache read 108, cache write 0), output 7; counts: provider",
            "ms total 12.3, wait 0.9",
            "cost $0.0125",
            "dropped [\"top_p\"]",
            "reason why",
        ] {
            assert!(lines.iter().any(|line| line == wanted), "{wanted}: {text}");
        }
    }
}
