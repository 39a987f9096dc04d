//! What keeps a shared ledger honest and small: recomputing its counters from its rows, writing all of it out, and
//! folding old rows into the sums of their days.

use super::super::api::{DayKey, DaySums, Entry, StoreError, Sums, Taker, Verdict};
use super::super::counters::{add_day, day_key, sums_of};
use super::{FOLD, PREFIX, Remote, SNAPSHOT, integer, is_wrong_type, named};
use crate::base::limits;
use crate::base::order;
use crate::base::time::Unix;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use redis::{ConnectionLike, Value};
use std::collections::BTreeMap;

/// A name, and fields with values in turns.
type Hash = (String, Vec<String>);
/// What the script returns.
type Raw = (String, i64, Vec<Hash>, Vec<Hash>, Vec<Hash>, Vec<Hash>);

/// How often a comparison is begun anew because rows were folded away in the middle of it.
const TRIES: usize = 10;

/// What the rows say of one key or window.
#[derive(Default)]
struct Recount {
    days: DaySums,
    /// Tokens by key and day.
    used: BTreeMap<(String, u64), u64>,
    /// Moment of admission and tokens of every row, by key.
    rows: BTreeMap<String, Vec<(u64, u64)>>,
}

impl Recount {
    fn add(&mut self, place: DayKey, sums: &Sums) {
        *self.used.entry((place.key.clone(), place.day)).or_default() += sums[1..5].iter().sum::<u64>();
        self.days.entry(place).or_default().iter_mut().zip(sums).for_each(|(sum, part)| *sum += part);
    }
}

impl Remote {
    /// Recomputes every counter from the rows, and those folded away, as of one moment; gateways may go on meanwhile.
    /// A window's requests may be more than its rows: those that still run are counted in it, and those of a host that
    /// died with them.
    pub fn verify(&mut self) -> Result<Verdict, StoreError> {
        for _ in 0..TRIES {
            if let Some(verdict) = self.try_verify()? {
                return Ok(verdict);
            }
        }
        Err(StoreError::Shared(self.name.clone(), "rows are being folded away; try again later".to_string()))
    }

    fn try_verify(&mut self) -> Result<Option<Verdict>, StoreError> {
        let names = ["rows", "days", "foldeds", "folds", "keys", "wins"].map(named);
        let mut cmd = self.script(SNAPSHOT, &names);
        cmd.arg(PREFIX);
        let (last, folds, days, folded, uses, windows): Raw = self.run(|connection| cmd.query(connection))?;
        let mut counted = Recount::default();
        let folded = day_sums(&folded);
        let mut verdict = Verdict { folded: folded.values().map(|sums| sums[0]).sum(), ..Verdict::default() };
        folded.into_iter().for_each(|(place, sums)| counted.add(place, &sums));
        if !last.is_empty() {
            self.read_rows(&last, &mut |row| {
                verdict.rows += 1;
                let sums = sums_of(&row);
                let of_key = counted.rows.entry(row.key.to_string()).or_default();
                of_key.push((row.admitted.0, sums[1..5].iter().sum()));
                counted.add(day_key(&row), &sums);
                true
            })?;
        }
        let now: Option<i64> = self.run(|connection| redis::cmd("GET").arg(named("folds")).query(connection))?;
        if now.unwrap_or(0) != folds {
            return Ok(None);
        }
        counted.rows.values_mut().for_each(|rows| order::by_key(rows, |(at, tokens)| (*at, u128::from(*tokens))));
        verdict.compare_days(&day_sums(&days), &counted.days);
        compare_use(&mut verdict, &uses, &counted);
        compare_windows(&mut verdict, &windows, &counted);
        Ok(Some(verdict))
    }

    /// Hands every row up to the one named `last` to `take`, in the order of their commits, until it says false.
    fn read_rows(&mut self, last: &str, take: &mut dyn FnMut(Row) -> bool) -> Result<(), StoreError> {
        let mut from = "-".to_string();
        loop {
            let page: Vec<(String, Vec<(String, String)>)> = self.run(|connection| {
                let mut cmd = redis::cmd("XRANGE");
                cmd.arg(named("rows")).arg(&from).arg(last).arg("COUNT").arg(limits::ROWS_PER_READ).query(connection)
            })?;
            for (_, fields) in &page {
                let row: Option<Row> =
                    fields.iter().find(|(name, _)| name == "row").and_then(|(_, text)| serde_json::from_str(text).ok());
                if row.is_some_and(|row| !take(row)) {
                    return Ok(());
                }
            }
            match page.last() {
                Some((id, _)) => from = format!("({id}"),
                None => return Ok(()),
            }
        }
    }

    /// Hands every entry to `take`; see `Ledger::export`.
    pub fn export(&mut self, take: Taker<'_>) -> Result<(), StoreError> {
        let days: Vec<u64> =
            self.run(|connection| redis::cmd("ZRANGE").arg(named("foldeds")).arg(0).arg(-1).query(connection))?;
        for day in days {
            let hash: Vec<(String, u64)> =
                self.run(|connection| redis::cmd("HGETALL").arg(format!("{PREFIX}folded:{day}")).query(connection))?;
            let mut sums = DaySums::new();
            add_day(&mut sums, day, hash);
            for (place, sums) in sums {
                if !take(Entry::Folded(place, sums)) {
                    return Ok(());
                }
            }
        }
        self.read_rows("+", &mut |row| take(Entry::Request(row)))
    }

    /// Folds at most `max` of the oldest rows, appended before `before`, into the sums of their days; how many that
    /// were.
    pub fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        let mut cmd = self.script(FOLD, &["rows", "foldeds", "folds"].map(named));
        cmd.arg(PREFIX).arg(before.0).arg(max);
        // Read by hand: an entry that is not what it should be keeps old rows where they are, and nothing else.
        match self.run(|connection| connection.req_command(&cmd))? {
            Value::ServerError(error) if is_wrong_type(&error) => {
                self.pass_over("folding", error);
                Ok(0)
            }
            answer => integer(&answer).ok_or_else(|| self.nonsense()),
        }
    }
}

fn pairs(flat: &[String]) -> impl Iterator<Item = (&str, u64)> {
    flat.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].parse().unwrap_or(0)))
}

fn day_sums(hashes: &[Hash]) -> DaySums {
    let mut sums = DaySums::new();
    for (day, flat) in hashes {
        let fields = pairs(flat).map(|(name, value)| (name.to_string(), value)).collect();
        add_day(&mut sums, day.parse().unwrap_or(0), fields);
    }
    sums
}

fn compare_use(verdict: &mut Verdict, uses: &[Hash], counted: &Recount) {
    let mut left = counted.used.clone();
    for (key, flat) in uses {
        for (day, tokens) in pairs(flat) {
            let day: u64 = day.parse().unwrap_or(0);
            let rows = left.remove(&(key.clone(), day)).unwrap_or(0);
            verdict.compare(|| use_name(key, day), tokens, rows);
        }
    }
    for ((key, day), rows) in left {
        verdict.compare(|| use_name(&key, day), 0, rows);
    }
}

fn use_name(key: &str, day: u64) -> String {
    format!("tokens of {key} on {}", crate::policy::window::date(Unix(day.saturating_mul(DAY_MS))))
}

fn compare_windows(verdict: &mut Verdict, windows: &[Hash], counted: &Recount) {
    for (name, flat) in windows {
        let mut parts = name.strip_prefix(PREFIX).unwrap_or(name).split(':').skip(1);
        let (Some(key), Some(start), Some(end)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (Ok(start), Ok(end)) = (start.parse::<u64>(), end.parse::<u64>()) else { continue };
        let of = |field: &str| pairs(flat).find(|(name, _)| *name == field).map_or(0, |(_, value)| value);
        let of_key = counted.rows.get(key).map_or(&[][..], Vec::as_slice);
        let place = |moment: u64| of_key.partition_point(|(at, _)| *at < moment);
        let inside = &of_key[place(start)..place(end)];
        let (rows, tokens) = (inside.len() as u64, inside.iter().map(|(_, tokens)| tokens).sum());
        if flat.is_empty() {
            continue;
        }
        let what = |what: &str| format!("{what} of {key} in the window {start}:{end}");
        verdict.compare(|| what("tokens"), of("t"), tokens);
        verdict.compare(|| what("requests"), of("q").min(rows), rows);
    }
}
