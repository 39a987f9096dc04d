//! The only printer of the command line: tables, JSON, failures. Standard output gets only the requested output;
//! remarks and errors go to standard error.

use crate::base::text::plural;
use crate::io::machine::terminal_width;
use crate::policy::config::ConfigError;
use crate::policy::keys::is_unseen;
use serde::Serialize;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::ExitCode;

/// Characters of one value in a table that a command prints; `--json` prints all of them.
const CELL_CHARS_MAX: usize = 120;
/// Characters of a value in the last column of such a table, which shifts no other column.
const LAST_CELL_CHARS_MAX: usize = 4096;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;
/// Exit code of a command with invalid arguments.
pub const MISUSED: u8 = 2;

/// Reason why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The operation failed.
    Failed(String),
    /// The object does not exist.
    Absent(String),
    /// The object's state does not allow it.
    Refused(String),
    /// The arguments are invalid.
    Misused(String),
    /// The configuration is wrong.
    Config(Vec<ConfigError>),
}

impl Failure {
    /// Returns [`Failure::Failed`] with the text `why`.
    pub fn failed(why: impl ToString) -> Failure {
        Failure::Failed(why.to_string())
    }

    /// Returns [`Failure::Misused`] with the text `why`.
    pub fn misused(why: impl ToString) -> Failure {
        Failure::Misused(why.to_string())
    }

    /// Returns its exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) | Failure::Absent(_) | Failure::Refused(_) | Failure::Config(_) => FAILED,
            Failure::Misused(_) => MISUSED,
        }
    }

    /// Text of the error.
    pub fn text(&self) -> String {
        match self {
            Failure::Failed(text) | Failure::Absent(text) | Failure::Refused(text) | Failure::Misused(text) => {
                text.clone()
            }
            Failure::Config(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Prints it to standard error and returns the exit code.
    pub fn report(self) -> ExitCode {
        match &self {
            // File and line in the format of compilers, so that an editor can jump there.
            Failure::Config(errors) => errors.iter().for_each(|wrong| remark(&format!("error: {}", line(wrong)))),
            other => remark(&format!("error: {}", other.text())),
        }
        ExitCode::from(self.code())
    }
}

/// Writes `text` to standard output. A reader that has gone away (`| head`) is not a failure.
pub fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(drop)
}

/// Writes a part of a long text to standard output; false if its reader has gone away.
pub fn print_on(text: &str) -> Result<bool, Failure> {
    match write_out(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(lost(&error))),
    }
}

/// Writes a secret to standard output. Here a reader that has gone away is a failure, too.
pub fn print_secret(secret: &str) -> Result<(), Failure> {
    write_out(secret).map_err(|error| Failure::failed(lost(&error)))
}

fn write_out(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn lost(error: &std::io::Error) -> String {
    format!("standard output: {error}")
}

/// Fails if standard output is the null device, to which writes succeed. Rust's runtime also opens it in place of a
/// closed standard output.
pub fn leads_somewhere() -> Result<(), Failure> {
    let own = std::io::stdout().as_fd().try_clone_to_owned().and_then(|out| File::from(out).metadata());
    let null = std::fs::metadata("/dev/null");
    match (own, null) {
        (Ok(own), Ok(null)) if own.file_type().is_char_device() && own.rdev() == null.rdev() => {
            Err(Failure::failed("standard output is closed or the null device, so a secret cannot be shown there"))
        }
        // If that cannot be determined, writing will report errors.
        _ => Ok(()),
    }
}

/// Writes lines to standard error, without control characters. A failure cannot be reported anywhere.
pub fn remark(lines: &str) {
    // One write per line: standard error has no buffer, and another process may log to the same file.
    lines.lines().for_each(|line| drop(std::io::stderr().write_all(format!("{}\n", clean(line)).as_bytes())));
}

/// Writes a warning to standard error.
pub fn warn(text: &str) {
    remark(&format!("warning: {text}"));
}

/// One error or warning about a configuration, on one line even if the quoted value has line feeds.
pub fn line(error: &ConfigError) -> String {
    clean(&error.to_string())
}

/// Prints `value` as indented JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&json_text(value)?)
}

/// `value` as indented JSON with a line feed.
pub fn json_text(value: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    text.push('\n');
    Ok(text)
}

/// `text` with `?` for each control or invisible character.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_unseen(c) { '?' } else { c }).collect()
}

/// Columns of a terminal that a text takes. Wide characters (East Asian ones, emoji) take two.
fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(character: char) -> usize {
    match u32::from(character) {
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f => 2,
        0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// `text` without control characters, in at most `most` columns. A name is cut in its middle, since both ends tell it
/// from others, and any other text at its end; an ellipsis marks the place.
fn cut(text: &str, most: usize, align: Align) -> String {
    if columns(text) <= most {
        return clean(text);
    }
    let room = most.saturating_sub(1);
    let tail = if align == Align::Name { room / 2 } else { 0 };
    let (begin, end) = (fitting(text.chars(), room - tail), fitting(text.chars().rev(), tail));
    [&clean(&text[..begin]), "…", &clean(&text[text.len() - end..])].concat()
}

/// Bytes of the first characters that fit in so many columns.
fn fitting(mut characters: impl Iterator<Item = char>, most: usize) -> usize {
    let mut left = most;
    let fits = |character: char| {
        left = left.checked_sub(columns_of(character))?;
        Some(character.len_utf8())
    };
    characters.by_ref().map_while(fits).sum()
}

/// A value in a column of this width, and the space after it.
pub fn padded(value: &str, width: usize, align: Align) -> String {
    let space = " ".repeat(width.saturating_sub(columns(value)));
    match align {
        Align::Left | Align::Name => [value, &space, "  "].concat(),
        Align::Right => [&space, value, "  "].concat(),
    }
}

/// `text` in lines of at most `width` characters; longer lines are wrapped by words below their last column.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let lead = line.len() - line.trim_start().len();
        let column = line[lead..].rfind("  ").map_or(lead, |at| lead + at + 2);
        let indent = if column > width / 2 { lead + 4 } else { column };
        let mut row = String::new();
        for (at, word) in line.split(' ').enumerate() {
            if at > 0 && !row.trim().is_empty() && row.chars().count() + 1 + word.chars().count() > width {
                out.push_str(row.trim_end());
                out.push('\n');
                row = " ".repeat(indent);
            } else if at > 0 {
                row.push(' ');
            }
            row.push_str(word);
        }
        out.push_str(row.trim_end());
        out.push('\n');
    }
    out
}

/// `text` wrapped to the width of the terminal, if there is one.
pub fn fitted(text: String) -> String {
    terminal_width().map_or(text.clone(), |width| wrapped(&text, width))
}

/// Alignment of a value in its column.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words of a fixed list, times, causes.
    Left,
    /// Names of any length: a narrow terminal cuts them before it omits a column.
    Name,
    /// Numbers.
    Right,
}

/// Minimum widths of columns that are made narrower, in this order.
const WIDTHS_MIN: [(Align, usize); 4] = [(Align::Name, 12), (Align::Left, 24), (Align::Name, 10), (Align::Left, 12)];
/// Width that a column of names keeps as long as other columns can be omitted.
const NAME_KEPT: usize = 16;
/// Label of the row of sums.
const TOTAL: &str = "total";

/// Width of a line with columns of these widths; a width of 0 is no column.
fn line_width(widths: &[usize]) -> usize {
    let used: usize = widths.iter().filter(|width| **width > 0).map(|width| width + 2).sum();
    used.saturating_sub(2)
}

/// A table: one line of headings, one line per row, two spaces between columns.
#[derive(Debug)]
pub struct Table<'a> {
    heads: Vec<(&'a str, Align)>,
    rows: Vec<Vec<String>>,
    /// Widths of the columns in the rows added so far.
    widths: Vec<usize>,
    /// Maximum width of a line, and columns that may be omitted for it, in this order.
    fits: Option<(usize, &'static [&'static str])>,
    /// True if names are printed whole, however long they are.
    wide: bool,
    /// True if the last row has the sums of the others.
    has_total: bool,
}

impl<'a> Table<'a> {
    /// A table with these columns and no rows.
    pub fn new(heads: &[(&'a str, Align)]) -> Table<'a> {
        Table { heads: heads.to_vec(), rows: Vec::new(), widths: Vec::new(), fits: None, wide: false, has_total: false }
    }

    /// Makes lines fit the terminal. Columns are omitted until a line with short names fits: first those without a
    /// value, then those in `spare` with one value in all rows, then the others in `spare`. Then the longest names are
    /// cut, and if that is not enough, the longest words.
    pub fn fit(self, wide: bool, spare: &'static [&'static str]) -> Table<'a> {
        match terminal_width().filter(|_| !wide) {
            Some(width) => self.within(width, spare),
            None => Table { wide, ..self },
        }
    }

    /// Makes lines fit this width.
    pub fn within(self, width: usize, spare: &'static [&'static str]) -> Table<'a> {
        Table { fits: Some((width, spare)), ..self }
    }

    /// Sets the width of omitted columns to 0.
    fn narrow(&self, widths: &mut [usize]) {
        let Some((most, spare)) = self.fits else { return };
        let is_same = |at: usize| self.rows.len() > 1 && self.rows.iter().all(|row| row[at] == self.rows[0][at]);
        let is_empty = |at: usize| !self.rows.is_empty() && self.rows.iter().all(|row| matches!(&*row[at], "" | "-"));
        let named = |name: &&str| self.heads.iter().position(|(head, _)| head == name);
        let spare: Vec<usize> = spare.iter().filter_map(named).collect();
        let order = (1..self.heads.len()).filter(|at| is_empty(*at));
        let order = order.chain(spare.iter().copied().filter(|at| is_same(*at))).chain(spare.iter().copied());
        let shortened = |(at, width): (usize, &usize)| match self.heads[at].1 {
            Align::Name => (*width).min(NAME_KEPT),
            _ => *width,
        };
        let mut short: Vec<usize> = widths.iter().enumerate().map(shortened).collect();
        for at in order {
            if line_width(&short) <= most {
                return;
            }
            (short[at], widths[at]) = (0, 0);
        }
    }

    /// Makes the widest columns of names and words narrower until a line fits.
    fn shrink(&self, widths: &mut [usize]) {
        let Some((most, _)) = self.fits else { return };
        for (kind, least) in WIDTHS_MIN {
            // A time or an id in the first column is useless if it is cut.
            let from = usize::from(kind == Align::Left);
            while line_width(widths) > most {
                let words = (from..widths.len()).filter(|at| self.heads[*at].1 == kind && widths[*at] > least);
                let Some(widest) = words.max_by_key(|at| widths[*at]) else { break };
                widths[widest] -= 1;
            }
        }
    }

    /// Adds a row with one value per column. Control characters are shown as `?`, so that a stored name cannot
    /// manipulate the terminal. A long value is cut unless the table is wide, since it would widen the column in every
    /// row.
    pub fn row(&mut self, values: Vec<String>) {
        let last = self.heads.len().saturating_sub(1);
        let most = |column| if column == last || self.wide { LAST_CELL_CHARS_MAX } else { CELL_CHARS_MAX };
        let kept = |(column, value): (usize, &String)| cut(value, most(column), self.heads[column].1);
        let row = values.iter().enumerate().map(kept).collect();
        self.rows.push(row);
    }

    /// Adds the last row, with the sums of the others: `counts` are the values of its last columns. Its label is in the
    /// first column that is printed.
    pub fn total(&mut self, counts: Vec<String>) {
        let blank = self.heads.len().saturating_sub(counts.len());
        self.row(std::iter::repeat_n(String::new(), blank).chain(counts).collect());
        self.has_total = true;
    }

    /// Formats the whole table.
    pub fn text(mut self) -> String {
        self.take_text()
    }

    /// Formats the rows added since the last call, after the headings if this is the first call. Columns never become
    /// narrower.
    pub fn take_text(&mut self) -> String {
        let is_first = self.widths.is_empty();
        let of_heads = self.heads.iter().map(|(head, _)| columns(head));
        let mut widths = if is_first { of_heads.collect() } else { std::mem::take(&mut self.widths) };
        for row in &self.rows {
            for (width, value) in widths.iter_mut().zip(row) {
                if is_first || *width > 0 {
                    *width = (*width).max(columns(value));
                }
            }
        }
        if is_first {
            self.narrow(&mut widths);
        }
        if self.has_total
            && let Some(first) = widths.iter().position(|width| *width > 0)
            && let Some(label) = self.rows.last_mut().and_then(|row| row.get_mut(first))
        {
            *label = TOTAL.to_string();
            widths[first] = widths[first].max(TOTAL.len());
        }
        self.shrink(&mut widths);
        let mut text = String::new();
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| (*head).to_string()).collect();
        for row in Some(&heads).filter(|_| is_first).into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((value, width), (_, align)) in row.iter().zip(&widths).zip(&self.heads) {
                if *width == 0 {
                    continue;
                }
                let value = if *align == Align::Right { value.clone() } else { cut(value, *width, *align) };
                line += &padded(&value, *width, *align);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        self.rows.clear();
        self.widths = widths;
        text
    }
}

/// Returns a number of models with its noun.
pub fn models(count: usize) -> String {
    format!("{count} model{}", plural(count as u64))
}

/// A count with its digits grouped: `1 234 567`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(GAP);
        }
        out.push(digit);
    }
    out
}

/// Separator of groups of three digits.
const GAP: char = ' ';

/// Nano-dollars as dollars, rounded to a ten-thousandth; smaller amounts are shown as less than that.
pub fn dollars(nano: u64) -> String {
    match nano.saturating_add(50_000) / 100_000 {
        0 if nano > 0 => "<0.0001".to_string(),
        parts => format!("{}.{:04}", parts / 10_000, parts % 10_000),
    }
}

/// Like [`dollars`], with the sign of dollars.
pub fn money(nano: u64) -> String {
    let text = dollars(nano);
    text.strip_prefix('<').map_or_else(|| ["$", &text].concat(), |least| ["<$", least].concat())
}

/// A share in whole percent, rounded, but 0 % and 100 % only if it is exactly that. The dashboard has the same rule.
pub fn percent(part: u64, of: u64) -> String {
    let (part, of) = (u128::from(part) * 100, u128::from(of.max(1)));
    match (part * 2 + of) / (of * 2) {
        _ if part > 0 && part < of => "< 1 %".to_string(),
        _ if part > of * 99 && part < of * 100 => "> 99 %".to_string(),
        whole => format!("{whole} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_value() {
        let mut table = Table::new(&[("NAME", Align::Left), ("TOKENS", Align::Right)]);
        table.row(vec!["a".to_string(), "1".to_string()]);
        table.row(vec!["läng-er".to_string(), "12345678".to_string()]);
        assert_eq!(table.take_text(), "NAME       TOKENS\na               1\nläng-er  12345678\n");
        table.row(vec!["b".to_string(), "123456789".to_string()]);
        assert_eq!(table.text(), "b        123456789\n", "a page further on");
    }

    #[test]
    fn words_are_cut_if_omitted_columns_are_not_enough() {
        let heads = [("USER", Align::Name), ("CAUSE", Align::Left), ("COST $", Align::Right)];
        let mut table = Table { fits: Some((40, &[])), ..Table::new(&heads) };
        table.row(["u".repeat(30), "short".to_string(), "0.0001".to_string()].to_vec());
        table.row(["漢".repeat(30), "a long cause of a failure".to_string(), "12345.0001".to_string()].to_vec());
        let text = table.text();
        assert!(text.lines().all(|line| columns(line) <= 40) && text.contains("12345.0001"), "{text}");
        assert!(text.contains("a long cause of…  12345"), "{text}");
        assert_eq!(
            [columns("漢a"), columns(&cut("漢漢漢", 4, Align::Left)), columns(&cut("漢漢漢", 5, Align::Left))],
            [3, 3, 5]
        );
        assert_eq!(padded("漢", 4, Align::Right), "  漢  ");
    }

    #[test]
    fn one_long_name_is_cut_before_a_column_is_left_out() {
        let heads = [("ID", Align::Left), ("NAME", Align::Name), ("STATUS", Align::Left), ("COST $", Align::Right)];
        let table = || Table { fits: Some((40, &["ID"])), ..Table::new(&heads) };
        let row = |name: &str, status: &str| ["abcdefghijkl", name, status, "0.1000"].map(str::to_string).to_vec();
        let mut long = table();
        long.row(row(&"n".repeat(117), "revoked"));
        long.row(row("ann", "revoked"));
        let text = long.text();
        assert!(text.lines().all(|line| columns(line) <= 40), "{text}");
        assert!(text.starts_with("NAME ") && text.contains("STATUS") && text.contains("nn…n"), "{text}");
        let mut one = table();
        one.fits = Some((48, &["ID"]));
        one.row(row(&"n".repeat(117), "live"));
        let text = one.text();
        assert!(text.starts_with("ID ") && text.lines().all(|line| columns(line) == 48), "cut to the room: {text}");
    }

    #[test]
    fn both_ends_of_a_long_name_are_seen_and_a_wide_table_cuts_none() {
        let name = format!("{}/{}-east", "p".repeat(48), "m".repeat(80));
        let row = || vec![name.clone(), "a very long cause of it".to_string()];
        let mut narrow = Table::new(&[("TARGET", Align::Name), ("CAUSE", Align::Left)]).within(24, &[]);
        narrow.row(row());
        assert_eq!(narrow.text(), "TARGET      CAUSE\nppppp…east  a very long…\n");
        let mut wide = Table::new(&[("TARGET", Align::Name), ("CAUSE", Align::Left)]).fit(true, &[]);
        wide.row(row());
        assert!(wide.text().contains(&format!("\n{name}  a very long cause of it\n")));
    }

    #[test]
    fn sums_keep_their_label_if_the_first_column_is_left_out() {
        let heads = [("KEY", Align::Left), ("NAME", Align::Name), ("N", Align::Right)];
        let table = |most: usize| {
            let mut table = Table { fits: Some((most, &["KEY"])), ..Table::new(&heads) };
            table.row(["abcdefghijkl", "ann", "1"].map(str::to_string).to_vec());
            table.total(vec!["2".to_string()]);
            table.text()
        };
        assert_eq!(table(80), "KEY           NAME  N\nabcdefghijkl  ann   1\ntotal               2\n");
        assert_eq!(table(12), "NAME   N\nann    1\ntotal  2\n");
    }

    #[test]
    fn columns_without_a_value_are_left_out_first() {
        let row = |cells: [&str; 3]| cells.map(str::to_string).to_vec();
        let heads = [("NAME", Align::Left), ("STATE", Align::Left), ("SINCE", Align::Left)];
        let mut table = Table { fits: Some((12, &["STATE"])), ..Table::new(&heads) };
        table.row(row(["one", "ok", "-"]));
        table.row(row(["two", "ok", "-"]));
        assert_eq!(table.text(), "NAME  STATE\none   ok\ntwo   ok\n");
    }

    #[test]
    fn long_cells_are_cut_and_never_panic() {
        let mut table = Table::new(&[("NAME", Align::Left), ("MODELS", Align::Left), ("COST", Align::Right)]);
        table.row(vec!["é".repeat(1 << 20), "m".repeat(70_000), "1".repeat(70_000)]);
        table.row(vec!["n".repeat(CELL_CHARS_MAX), "m".to_string(), "2".to_string()]);
        let text = table.text();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert_eq!(widest, Some(2 * (CELL_CHARS_MAX + 2) + LAST_CELL_CHARS_MAX));
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split("  ").collect();
        assert!(cells.iter().all(|cell| cell.ends_with('…')), "a cut value says so");
        assert!(text.contains(&format!("\n{}  m ", "n".repeat(CELL_CHARS_MAX))), "a value that fits is whole");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new(&[("NAME", Align::Left)]);
        table.row(vec!["a\x1b[2Jb\nc".to_string()]);
        for turn in
            "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}".chars()
        {
            table.row(vec![format!("a{turn}b")]);
        }
        table.row(vec!["\u{5d0}\u{5d1} \u{fc}".to_string()]);
        assert_eq!(table.text(), format!("NAME\na?[2Jb?c\n{}\u{5d0}\u{5d1} \u{fc}\n", "a?b\n".repeat(12)));
    }

    #[test]
    fn long_line_is_wrapped_below_its_last_column() {
        let text = "Usage: a\n  --by <WHAT>  Group by key, group or model\n\n      A long description of it\n";
        let lines = "Usage: a\n  --by <WHAT>  Group\n      by key, group or\n      model\n\n      A long\n      description of\n      it\n";
        assert_eq!(wrapped(text, 22), lines);
        assert_eq!(wrapped(text, 80), text);
        assert_eq!(wrapped("--a  one two three", 12), "--a  one two\n     three\n");
    }

    #[test]
    fn columns_are_omitted_until_a_line_fits() {
        let mut table =
            Table::new(&[("NAME", Align::Left), ("PLAN", Align::Left), ("ID", Align::Left), ("N", Align::Right)]);
        table.fits = Some((12, &["ID", "PLAN"]));
        table.row(vec!["ann".to_string(), "team".to_string(), "abcdef".to_string(), "1".to_string()]);
        table.row(vec!["bob".to_string(), "team".to_string(), "ghijkl".to_string(), "2".to_string()]);
        assert_eq!(table.take_text(), "NAME  N\nann   1\nbob   2\n", "first what is always the same, then as named");
        table.row(vec!["christopher".to_string(), "solo".to_string(), "x".to_string(), "3".to_string()]);
        assert_eq!(table.text(), "christopher  3\n");
    }

    #[test]
    fn counts_are_grouped_by_three() {
        let cases = [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")];
        for (count, text) in cases {
            assert_eq!(grouped(count), text);
        }
    }

    #[test]
    fn costs_are_rounded_but_never_to_zero() {
        let cases = [
            (0, "0.0000"),
            (1, "<0.0001"),
            (49_999, "<0.0001"),
            (50_000, "0.0001"),
            (123_149_999, "0.1231"),
            (100_150_000, "0.1002"),
            (250_000_000, "0.2500"),
            (12_345_678_901, "12.3457"),
        ];
        for (nano, text) in cases {
            assert_eq!(dollars(nano), text);
        }
        assert_eq!([0, 1, 100_000_000].map(money), ["$0.0000", "<$0.0001", "$0.1000"]);
    }

    #[test]
    fn shares_are_rounded_but_never_to_nothing_or_all() {
        let shares = [(48, 155), (37, 529), (1, 101), (1, 100), (29, 200), (999, 1000), (1207, 1000)];
        let texts = shares.map(|(part, of)| percent(part, of));
        assert_eq!(texts, ["31 %", "7 %", "< 1 %", "1 %", "15 %", "> 99 %", "121 %"]);
        assert_eq!([(u64::MAX, u64::MAX), (0, 0)].map(|(part, of)| percent(part, of)), ["100 %", "0 %"]);
    }
}
