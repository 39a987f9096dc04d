//! Verification and size of a shared ledger: recomputes its counters from its rows, exports all of it, and folds old
//! rows into the sums of their days.

use super::super::api::{
    DayKey, DaySums, Entry, PeopleSums, PeopleTotals, StoreError, Sums, Taker, Verdict, add_people, sums_of,
};
use super::code::{FOLD, SNAPSHOT};
use super::day_counters::{add_day, add_who};
use super::resp::{LinkError, RedisCommand, Value, integer, list, text};
use super::writer_clocks::rows_of;
use super::{Remote, is_wrong_type};
use crate::base::time::Unix;
use crate::policy::meter::Amount;
use crate::policy::plan::PATH_SEPARATOR;
use crate::policy::plan::caps::LimitSpan;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use std::collections::BTreeMap;

/// Entries read from a shared ledger at a time, each with the rows of one script.
const ENTRIES_PER_READ: u64 = 32;

/// Maximum number of comparisons, which start again if rows were folded meanwhile.
const TRIES: usize = 10;

/// Values of one key, group or window computed from the rows.
#[derive(Default)]
struct Recount {
    days: DaySums,
    people: PeopleTotals,
    /// Use by account and day.
    used: BTreeMap<(String, u64), Amount>,
    /// Time of admission and tokens of every row, by account.
    rows: BTreeMap<String, Vec<(u64, u64)>>,
}

/// Returns the accounts that a row of this key and this path counts in.
fn accounts(key: &str, path: &str) -> impl Iterator<Item = String> {
    let groups = path.split(PATH_SEPARATOR).filter(|name| !name.is_empty());
    std::iter::once(key.to_string()).chain(groups.map(|name| format!("@{name}")))
}

impl Recount {
    fn add(&mut self, place: DayKey, sums: &Sums) {
        for account in accounts(&place.key, &place.group) {
            let used = self.used.entry((account, place.day)).or_default();
            *used = used.plus(Amount { tokens: sums[1..5].iter().sum(), nano: sums[5] });
        }
        self.days.entry(place).or_default().iter_mut().zip(sums).for_each(|(sum, part)| *sum += part);
    }
}

impl Remote {
    /// Recomputes every counter from the rows and the sums of folded rows, as of one moment. Gateways may continue
    /// meanwhile. A window may have more requests than rows: it includes running requests, and those of hosts that died
    /// while these ran.
    pub fn verify(&mut self) -> Result<Verdict, StoreError> {
        for _ in 0..TRIES {
            if let Some(verdict) = self.try_verify()? {
                return Ok(verdict);
            }
        }
        Err(StoreError::Shared(self.server.name.clone(), "usage records are being folded; try again later".to_string()))
    }

    fn try_verify(&mut self) -> Result<Option<Verdict>, StoreError> {
        self.server.connect()?;
        let names = ["rows", "days", "foldeds", "folds", "keys", "wins", "groups"].map(|name| self.server.named(name));
        let mut cmd = self.server.script(SNAPSHOT, &names);
        cmd.arg(self.server.nodes.prefix());
        let found = self.server.query(&cmd)?;
        let [last, folds, days, folded, uses, costs, windows, people, wrong] = list(&found) else {
            return Err(self.server.nonsense());
        };
        let last = text(last).unwrap_or_default();
        let wrong = list(wrong).iter().filter_map(text).map(str::to_string).collect();
        let mut counted = Recount::default();
        let folded = day_sums(folded);
        let folded_requests = folded.values().map(|sums| sums[0]).sum();
        let mut verdict = Verdict { folded: folded_requests, wrong, ..Verdict::default() };
        folded.iter().for_each(|(place, sums)| counted.add(place.clone(), sums));
        if !last.is_empty() {
            self.read_rows(last, &mut |row| {
                verdict.rows += 1;
                let sums = sums_of(&row);
                add_people(&mut counted.people, &row);
                for account in accounts(row.key.as_str(), &row.group) {
                    let own = counted.rows.entry(account).or_default();
                    own.push((row.admitted.0, sums[1..5].iter().sum()));
                }
                counted.add(DayKey::from_row(&row), &sums);
                true
            })?;
        }
        let now = self.server.query(RedisCommand::new("GET").arg(self.server.named("folds")))?;
        if integer(&now).unwrap_or(0) != integer(folds).ok_or_else(|| self.server.nonsense())? {
            return Ok(None);
        }
        counted.rows.values_mut().for_each(|rows| rows.sort_unstable());
        let stored = day_sums(days);
        verdict.compare_people(&people_totals(people), &counted.people, &stored, &folded);
        verdict.compare_days(&stored, &counted.days);
        compare_use(&mut verdict, "tokens", uses, &counted, |used| used.tokens);
        compare_use(&mut verdict, "nano-dollars", costs, &counted, |used| used.nano);
        compare_windows(&mut verdict, self.server.nodes.prefix(), windows, &counted);
        Ok(Some(verdict))
    }

    /// Passes every row up to the one named `last` to `take`, in the order of their commits, until it returns false.
    fn read_rows(&mut self, last: &str, take: &mut dyn FnMut(Row) -> bool) -> Result<(), StoreError> {
        self.read_entries("XRANGE", ("-", last), &mut |rows| rows.into_iter().all(&mut *take))
    }

    /// Passes the rows of each entry to `take`, until it returns false. `range`: command, with its first and last name.
    fn read_entries(
        &mut self,
        range: &str,
        (first, last): (&str, &str),
        take: &mut dyn FnMut(Vec<Row>) -> bool,
    ) -> Result<(), StoreError> {
        let mut from = first.to_string();
        loop {
            let mut cmd = RedisCommand::new(range);
            cmd.arg(self.server.named("rows")).arg(&from).arg(last).arg("COUNT").number(ENTRIES_PER_READ);
            let page = self.server.query(&cmd)?;
            for entry in list(&page) {
                let [id, fields] = list(entry) else { return Err(self.server.nonsense()) };
                from = format!("({}", text(id).ok_or_else(|| self.server.nonsense())?);
                if !take(rows_of(list(fields)).into_iter().flatten().collect()) {
                    return Ok(());
                }
            }
            if list(&page).is_empty() {
                return Ok(());
            }
        }
    }

    /// Passes every row to `take`, the newest first, until it returns false.
    pub fn recent_rows(&mut self, take: &mut dyn FnMut(Row) -> bool) -> Result<(), StoreError> {
        self.read_entries("XREVRANGE", ("+", "-"), &mut |mut rows| {
            rows.reverse();
            rows.into_iter().all(&mut *take)
        })
    }

    /// Passes every entry to `take`; see `Ledger::export`.
    pub fn export(&mut self, take: Taker<'_>) -> Result<(), StoreError> {
        for day in self.server.days("foldeds")? {
            let hash = self.server.hash(&format!("folded:{day}"))?;
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

    /// Folds the oldest rows, appended before `before`, into the sums of their days, entry by entry until they are
    /// `max` or more. Returns the number of rows.
    pub fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        self.server.connect()?;
        let mut cmd = self.server.script(FOLD, &["rows", "foldeds", "folds"].map(|name| self.server.named(name)));
        cmd.arg(self.server.nodes.prefix()).number(before.0).number(max as u64);
        // Parsed here, since a malformed entry must only prevent folding.
        match self.server.answer(&cmd)? {
            Value::Error(error) if is_wrong_type(&error) => {
                self.server.pass_over("folding", error);
                Ok(0)
            }
            Value::Error(error) => {
                self.server.connection = None;
                Err(self.server.failed(&LinkError::Server(error)))
            }
            answer => integer(&answer).ok_or_else(|| self.server.nonsense()),
        }
    }
}

fn pairs(flat: &[Value]) -> impl Iterator<Item = (&str, u64)> {
    flat.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?.parse().unwrap_or(0))))
}

/// Hashes in a result of the script: name, and alternating fields and values.
fn hashes(found: &Value) -> impl Iterator<Item = (&str, &[Value])> {
    list(found).iter().filter_map(|hash| match list(hash) {
        [name, flat] => Some((text(name)?, list(flat))),
        _ => None,
    })
}

fn day_sums(found: &Value) -> DaySums {
    let mut sums = DaySums::new();
    for (day, flat) in hashes(found) {
        let fields = pairs(flat).map(|(name, value)| (name.to_string(), value)).collect();
        add_day(&mut sums, day.parse().unwrap_or(0), fields);
    }
    sums
}

fn people_totals(found: &Value) -> PeopleTotals {
    let (mut sums, mut totals) = (PeopleSums::new(), PeopleTotals::new());
    for (day, flat) in hashes(found) {
        let fields = pairs(flat).map(|(name, value)| (name.to_string(), value)).collect();
        add_who(&mut sums, day.parse().unwrap_or(0), fields);
    }
    for ((day, who, _), more) in sums {
        totals.entry((day, who)).or_default().iter_mut().zip(more).for_each(|(sum, part)| *sum += part);
    }
    totals
}

/// Compares the use of accounts by day.
fn compare_use(verdict: &mut Verdict, what: &str, uses: &Value, counted: &Recount, of: fn(Amount) -> u64) {
    let name = |account: &str, day: u64| {
        format!("{what} of {account} on {}", crate::policy::window::date(Unix(day.saturating_mul(DAY_MS))))
    };
    let mut left = counted.used.clone();
    for (account, flat) in hashes(uses) {
        for (day, stored) in pairs(flat) {
            let day: u64 = day.parse().unwrap_or(0);
            let rows = left.get_mut(&(account.to_string(), day)).map_or(0, |used| of(std::mem::take(used)));
            verdict.compare(|| name(account, day), stored, rows);
        }
    }
    for ((account, day), used) in left {
        if of(used) > 0 {
            verdict.compare(|| name(&account, day), 0, of(used));
        }
    }
}

fn compare_windows(verdict: &mut Verdict, prefix: &str, windows: &Value, counted: &Recount) {
    for (name, flat) in hashes(windows) {
        // The name of a group may contain colons.
        let mut parts = name.strip_prefix(prefix).unwrap_or(name).rsplitn(3, ':');
        let (Some(end), Some(start), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { continue };
        // Any other span may be newer than its present window.
        let Some((key, LimitSpan::WINDOW)) = rest.split_once(':').and_then(|(_, name)| name.split_once(PATH_SEPARATOR))
        else {
            continue;
        };
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
        // The tokens of whole days are in the sums by day.
        if !start.is_multiple_of(DAY_MS) || !end.is_multiple_of(DAY_MS) {
            verdict.compare(|| what("tokens"), of("2"), tokens);
        }
        verdict.compare(|| what("requests"), of("1").min(rows), rows);
    }
}
