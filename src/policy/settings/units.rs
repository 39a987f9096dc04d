//! The units of the configuration and the command line: durations, sizes in bytes, context sizes, prices, text. Each
//! can be read and written, except text, which the TOML parser reads. Written values read as the same value.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const DURATIONS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 8] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1000),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];
const CONTEXTS: [(&str, u64); 6] =
    [("", 1), ("K", 1000), ("k", 1000), ("M", 1_000_000), ("Ki", 1 << 10), ("Mi", 1 << 20)];

/// The leading number of `text`, underscores allowed between digits, and what follows it.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.starts_with('_') || digits.ends_with('_') {
        return None;
    }
    Some((digits.replace('_', "").parse().ok()?, rest))
}

/// A duration such as `5s`, `250ms`, `1h30m`, `30d`; units must become smaller. `None` for anything else.
pub fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total, mut last) = (text, 0u64, u64::MAX);
    while !rest.is_empty() {
        let (count, after) = number(rest)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, millis) = DURATIONS.iter().find(|(name, _)| *name == unit)?;
        if *millis >= last {
            return None;
        }
        last = *millis;
        total = total.checked_add(count.checked_mul(*millis)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// A duration in its largest unit that is exact: `90s`, `2h`. Parts below a millisecond are cut.
#[inline]
pub fn duration_text(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_string();
    }
    let fit = DURATIONS.iter().rev().find(|(_, unit)| millis.is_multiple_of(*unit));
    fit.map(|(name, unit)| (millis / unit).to_string() + name).unwrap_or_default()
}

/// A size in bytes such as `32MiB` (binary) or `5MB` (decimal). `None` for anything else.
pub fn size(text: &str) -> Option<u64> {
    scaled(text, &SIZES)
}

/// A size in its largest binary unit that is exact.
pub fn size_text(bytes: u64) -> String {
    let fit = SIZES[..4].iter().rev().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    fit.map_or_else(|| "0B".to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// An address with its port: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, or `:8080` for all addresses of the
/// host.
pub fn address(text: &str) -> Option<SocketAddr> {
    let port = |text: &str| text.parse::<u16>().ok();
    if let Some(loopback) = text.strip_prefix("localhost:") {
        return Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port(loopback)?)));
    }
    match text.strip_prefix(':') {
        Some(any) if !any.starts_with(':') => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(any)?))),
        _ => text.parse().ok(),
    }
}

/// A token count such as `1M`, `256K` (decimal), `128Ki`, `1Mi` (binary) or plain digits.
pub fn context(text: &str) -> Option<u64> {
    scaled(text, &CONTEXTS)
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (count, unit) = number(text)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start_matches(' '))?;
    count.checked_mul(*factor)
}

/// Dollars per 1M tokens as micro-dollars per 1M tokens, exactly. `None` if above a million dollars, or with more than
/// six decimals: smaller amounts cannot be counted.
pub fn price(text: &str) -> Option<u64> {
    decimal(text, 6).filter(|micro| *micro <= 1_000_000_000_000)
}

/// US dollars such as `50`, `12.5` or `1_000.0`, exactly, as nano-dollars. `None` for anything else, such as a minus
/// sign or more than nine decimals.
pub fn dollars(text: &str) -> Option<u64> {
    decimal(text, 9)
}

/// A number in TOML syntax (`12.50`, `1_000`, `1e6`, `2.5e-3`), times ten to the power of `places`, if that is whole.
fn decimal(text: &str, places: i64) -> Option<u64> {
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent = i64::from(exponent.parse::<i32>().ok()?);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let mut digits = String::with_capacity(number.len());
    for part in [whole.strip_prefix('+').unwrap_or(whole), part] {
        let edges = [part.bytes().next()?, part.bytes().next_back()?];
        if edges.contains(&b'_') || !part.bytes().all(|byte| byte == b'_' || byte.is_ascii_digit()) {
            return None;
        }
        digits.extend(part.chars().filter(|digit| *digit != '_'));
    }
    let decimals = part.bytes().filter(|byte| *byte != b'_').count() as i64;
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let zeros = places + exponent - decimals + (digits.len() - significant.len()) as i64;
    let factor = 10u64.checked_pow(u32::try_from(zeros).ok()?)?;
    significant.parse::<u64>().ok()?.checked_mul(factor)
}

/// Nano-dollars as dollars: exact, with two decimals at least unless there are none.
pub fn dollars_text(nano: u64) -> String {
    let (whole, decimals) = (nano / 1_000_000_000, nano % 1_000_000_000);
    if decimals == 0 {
        return whole.to_string();
    }
    let mut text = format!("{whole}.{decimals:09}");
    let least = text.len() - 7;
    while text.len() > least && text.ends_with('0') {
        text.pop();
    }
    text
}

/// A TOML basic string.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A TOML array of basic strings.
pub fn quoted_list<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit_and_in_combination() {
        let cases = [("250ms", 250), ("5s", 5000), ("2m", 120_000), ("1h30m", 5_400_000), ("30d", 2_592_000_000)];
        for (text, millis) in cases {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(duration("0s"), Some(Duration::ZERO));
        for wrong in ["", "5", "s", "5 s", "-5s", "5sec", "1.5s", "30m1h", "1s1s", "99999999999999999999s", "5S"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        assert_eq!(duration("18446744073709551615d"), None);
    }

    #[test]
    fn dollars_are_read_and_written_exactly() {
        let cases = [
            ("50", 50_000_000_000, "50"),
            ("50.0", 50_000_000_000, "50"),
            ("0.1", 100_000_000, "0.10"),
            ("12.34", 12_340_000_000, "12.34"),
            ("0.000000001", 1, "0.000000001"),
            ("1_000.000_000_5", 1_000_000_000_500, "1000.0000005"),
            ("9007199254.740993", 9_007_199_254_740_993_000, "9007199254.740993"),
            ("0", 0, "0"),
            ("1e6", 1_000_000_000_000_000, "1000000"),
            ("1.5E+3", 1_500_000_000_000, "1500"),
            ("2500e-3", 2_500_000_000, "2.50"),
            ("+1e-9", 1, "0.000000001"),
            ("0.00000000010e1", 1, "0.000000001"),
            ("0e999999999", 0, "0"),
        ];
        for (text, nano, shown) in cases {
            assert_eq!((dollars(text), dollars_text(nano).as_str()), (Some(nano), shown), "{text}");
            assert_eq!(dollars(shown), Some(nano), "{shown}");
        }
        let wrong = ["", ".", "1.", ".5", "-1", "1e", "e3", "1e-10", "0.0000000001", "inf", "nan", "$5", "1,5", "_1"];
        let more =
            ["18446744074", "1.0.0", " 1", "1.-5", "1_", "1e11", "1e999999999", "1e99999999999", "1.5e3.0", "++1"];
        for wrong in wrong.into_iter().chain(more) {
            assert_eq!(dollars(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_with_an_i_are_binary_and_others_decimal() {
        let cases = [("32MiB", 32 << 20), ("16KiB", 16 << 10), ("1GiB", 1 << 30), ("5MB", 5_000_000), ("512B", 512)];
        for (text, bytes) in cases {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for wrong in ["", "32", "32M", "MiB", "1.5MiB", "-1B", "99999999999GiB", "1_B", "32mib"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn addresses_may_be_localhost_or_omit_the_host() {
        for (text, meant) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:8080", "127.0.0.1:8080"),
            (":8080", "0.0.0.0:8080"),
        ] {
            assert_eq!(address(text), meant.parse().ok(), "{text}");
        }
        for wrong in ["", ":", "8080", "localhost", "localhost:", ":99999", ":::", "example.com:80", ": 80"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn context_sizes_are_decimal_unless_written_with_an_i() {
        let cases = [
            ("1M", 1_000_000),
            ("256K", 256_000),
            ("128Ki", 131_072),
            ("1Mi", 1 << 20),
            ("200000", 200_000),
            ("200_000", 200_000),
        ];
        for (text, tokens) in cases {
            assert_eq!(context(text), Some(tokens), "{text}");
        }
        for wrong in ["", "M", "1G", "1.5M", "-1K", "1MiB", "1 000"] {
            assert_eq!(context(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn written_values_read_back_as_the_same_value() {
        for millis in [0, 1, 999, 1000, 90_000, 3_600_000, 86_400_000, 86_400_001] {
            let value = Duration::from_millis(millis);
            assert_eq!(duration(&duration_text(value)), Some(value));
        }
        for bytes in [0, 1, 1023, 1024, 5_000_000, 32 << 20, 1 << 30] {
            assert_eq!(size(&size_text(bytes)), Some(bytes));
        }
    }

    #[test]
    fn prices_are_exact_to_a_millionth_of_a_dollar() {
        for (text, micro) in [
            ("0.25", 250_000),
            ("2.0", 2_000_000),
            ("0", 0),
            ("0.0375", 37_500),
            ("0.1", 100_000),
            ("75", 75_000_000),
            ("1.2e3", 1_200_000_000),
            ("1e6", 1_000_000_000_000),
            ("1e-6", 1),
            ("1_000.0", 1_000_000_000),
        ] {
            assert_eq!(price(text), Some(micro), "{text}");
        }
        for wrong in ["-0.01", "nan", "inf", "2e6", "0.0000005", "1e-9", "1e-7", "1000000.000001"] {
            assert_eq!(price(wrong), None, "{wrong}");
        }
    }
}
