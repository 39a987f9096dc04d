//! Data of a commit: its rows packed as one entry, and their totals, so that each counter is increased once however
//! many rows count in it.

use super::code::APPEND;
use super::day_counters::counter_name;
use super::{Remote, Speaker, grant_name, kept, window_part};
use crate::base::time::Unix;
use crate::policy::ask::Use;
use crate::policy::meter::{Amount, Lease};
use crate::policy::plan::PATH_SEPARATOR;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use crate::store::api::{Sums, sums_of};
use crate::store::who::Who;
use redis::Cmd;

/// First moment, and first moment after.
type TimeRange = (Unix, Unix);

/// Totals of rows of one day, key, model and so on.
struct DayTotals<'a> {
    row: &'a Row,
    day: u64,
    sums: Sums,
}

/// Totals of one user, session or agent on one day.
struct Person<'a> {
    kind: &'static str,
    name: &'a str,
    day: u64,
    sums: Sums,
}

/// Use of one account on one day.
struct DailyUse<'a> {
    account: (bool, &'a str),
    day: u64,
    used: Amount,
}

/// Requests that begin and end in one account, window and period. A request that does both within the commit never had
/// a reservation.
struct AccountUse<'a> {
    account: (bool, &'a str),
    window: TimeRange,
    period: TimeRange,
    /// True if the host has admitted the requests without the ledger. Otherwise the ledger has lent or granted the
    /// reservation.
    alone: bool,
    /// Number of the grant that requests were admitted by; 0 for none.
    grant: u64,
    /// Number of these requests, and the amount reserved for them.
    taken: (u64, Amount),
    /// Number of requests that the ledger has admitted, and that the host confirms.
    served: u64,
    /// Number of ended requests, and the amount reserved for them.
    ended: (u64, Amount),
    /// Tokens that the ended requests used.
    tokens: u64,
}

/// All totals of a commit. The lists are short if rows are similar, and are searched from the end, where the entries of
/// the last row are.
#[derive(Default)]
struct Totals<'a> {
    places: Vec<DayTotals<'a>>,
    people: Vec<Person<'a>>,
    used: Vec<DailyUse<'a>>,
    lines: Vec<AccountUse<'a>>,
}

/// Returns the entry for which `is_it` is true, or a `new` one.
fn entry<T>(list: &mut Vec<T>, is_it: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = list.iter().rposition(is_it).unwrap_or(list.len());
    if at == list.len() {
        list.push(new());
    }
    &mut list[at]
}

fn add(sums: &mut Sums, more: &Sums) {
    sums.iter_mut().zip(more).for_each(|(sum, part)| *sum += part);
}

/// Returns the accounts of a row, its key first: true for a group, and the name.
fn accounts(row: &Row) -> impl Iterator<Item = (bool, &str)> {
    // The groups are read from the row, since the lease may be unknown by now.
    let groups = row.group.rsplit(PATH_SEPARATOR).filter(|name| !name.is_empty()).map(|name| (true, name));
    std::iter::once((false, row.key.as_str())).chain(groups)
}

impl<'a> Totals<'a> {
    fn add(&mut self, row: &'a Row, none: &'a Lease) {
        let (sums, day) = (sums_of(row), row.admitted.0 / DAY_MS);
        let lease = row.lease.as_deref().unwrap_or(none);
        let what = |row: &Row| (row.key, row.endpoint, row.client);
        let is_place = |place: &DayTotals<'_>| {
            let (one, other) = (place.row, row);
            let names = [(&one.model, &other.model), (&one.target, &other.target), (&one.group, &other.group)];
            place.day == day && what(one) == what(other) && names.iter().all(|(one, other)| one == other)
        };
        add(&mut entry(&mut self.places, is_place, || DayTotals { row, day, sums: Sums::default() }).sums, &sums);
        for who in Who::ALL {
            let (Some(name), kind) = (who.of(row), &who.plural()[..1]) else { continue };
            let is_one = |one: &Person<'_>| (one.kind, one.day, one.name) == (kind, day, &**name);
            let new = || Person { kind, name, day, sums: Sums::default() };
            add(&mut entry(&mut self.people, is_one, new).sums, &sums);
        }
        let (tokens, shared) = (sums[1..5].iter().sum(), lease.shared);
        for account in accounts(row) {
            let is_one = |one: &DailyUse<'_>| (one.account, one.day) == (account, day);
            let used = entry(&mut self.used, is_one, || DailyUse { account, day, used: Amount::default() });
            used.used = used.used.plus(Amount { tokens, nano: sums[5] });
            let lent = lease.groups.iter().find(|group| account == (true, &*group.name));
            let (window, period) = match account.0 {
                false => (lease.window, lease.period),
                true => lent.map(|lent| (lent.window, lent.period)).unwrap_or_default(),
            };
            // Counted for every kind of admission.
            let line = self.line(account, window, period, !shared, None);
            (line.ended.0, line.tokens) = (line.ended.0 + 1, line.tokens + tokens);
            line.ended.1 = line.ended.1.plus(lease.reserved);
        }
    }

    /// Counts a request admitted by a grant, or by the ledger.
    fn count(&mut self, one: &'a Use) {
        let (grant, key, lease) = match one {
            Use::Took(grant, key, lease) => (Some(*grant), key, lease),
            Use::Served(key, lease) => (None, key, lease),
            Use::Returned(_) => return,
        };
        let groups = lease.groups.iter().map(|group| ((true, &*group.name), group.window, group.period));
        let key = ((false, key.as_str()), lease.window, lease.period);
        for (account, window, period) in std::iter::once(key).chain(groups) {
            let line = self.line(account, window, period, false, grant);
            match grant {
                None => line.served += 1,
                Some(grant) => {
                    line.grant = grant;
                    line.taken = (line.taken.0 + 1, line.taken.1.plus(lease.reserved));
                }
            }
        }
    }

    fn line(
        &mut self,
        account: (bool, &'a str),
        window: TimeRange,
        period: TimeRange,
        alone: bool,
        grant: Option<u64>,
    ) -> &mut AccountUse<'a> {
        let is_one = |one: &AccountUse<'_>| {
            let is_grant = grant.is_none_or(|grant| one.grant == grant || one.grant == 0);
            (one.account, one.window, one.period, one.alone) == (account, window, period, alone) && is_grant
        };
        let none = (0, Amount::default());
        let new =
            || AccountUse { account, window, period, alone, grant: 0, taken: none, served: 0, ended: none, tokens: 0 };
        entry(&mut self.lines, is_one, new)
    }

    /// Appends the totals in the form that the script expects.
    fn write(&self, writer: &str, cmd: &mut Cmd) {
        let name = |(is_group, name): (bool, &str)| format!("{}{name}", if is_group { "@" } else { "" });
        let mut adds: Vec<(String, String, u64)> = Vec::new();
        let sums = |adds: &mut Vec<_>, hash: String, what: &str, sums: &Sums| {
            let some = sums.iter().enumerate().filter(|(_, sum)| **sum > 0);
            adds.extend(some.map(|(number, sum)| (hash.clone(), format!("{number}{what}"), *sum)));
        };
        for place in &self.places {
            sums(&mut adds, format!("day:{}", place.day), &counter_name(place.row), &place.sums);
        }
        for one in &self.people {
            sums(&mut adds, format!("who:{}", one.day), &format!("{}{}", one.kind, one.name), &one.sums);
        }
        for one in &self.used {
            adds.push((format!("use:{}", name(one.account)), one.day.to_string(), one.used.tokens));
            if one.used.nano > 0 {
                adds.push((format!("cost:{}", name(one.account)), one.day.to_string(), one.used.nano));
            }
        }
        cmd.arg(adds.len());
        for (hash, field, amount) in adds {
            cmd.arg(hash).arg(field).arg(amount);
        }
        let (mut days, mut groups, mut named) = (Vec::new(), Vec::new(), Vec::new());
        self.places.iter().for_each(|place| _ = entry(&mut days, |day| *day == place.day, || place.day));
        let is_group = |one: &&DailyUse<'_>| one.account.0;
        for one in self.used.iter().filter(is_group) {
            entry(&mut groups, |known: &String| known[1..] == *one.account.1, || name(one.account));
        }
        self.people.iter().for_each(|one| _ = entry(&mut named, |day| *day == one.day, || one.day));
        cmd.arg(days.len()).arg(&days).arg(groups.len()).arg(&groups).arg(named.len()).arg(&named);
        for one in &self.lines {
            cmd.arg(name(one.account)).arg(window_part(one.window)).arg(kept(one.window)).arg(one.period.0.0);
            let ((taken, begun), (ended, over)) = (one.taken, one.ended);
            let more = |more: u64, less: u64| match more >= less {
                true => (more - less).to_string(),
                false => format!("-{}", less - more),
            };
            cmd.arg(if one.alone { ended } else { taken }).arg(one.tokens).arg(u8::from(one.alone));
            cmd.arg(more(taken, ended)).arg(more(begun.tokens, over.tokens)).arg(more(begun.nano, over.nano));
            cmd.arg(if taken > 0 { grant_name(writer, one.grant) } else { String::new() });
            cmd.arg(taken).arg(begun.tokens).arg(begun.nano).arg(one.served);
        }
    }
}

impl Remote {
    /// Creates the command for a batch of rows under its number, after the uses of grants. `before`: number of the
    /// preceding batch in the same pipeline, 0 for none. If that batch is not done, this one is not done either,
    /// because otherwise the former would seem done.
    pub(super) fn rows_command(
        &self,
        speaker: &Speaker,
        (number, before): (u64, u64),
        rows: &[Row],
        uses: &[Use],
    ) -> Cmd {
        let seq = format!("seq:{}", speaker.writer);
        let keys = [&*seq, "rows", "days", "wins"].map(|name| self.server.named(name));
        let mut cmd = self.server.script(APPEND, &keys);
        // The argument consists of text and numbers, so this cannot fail.
        cmd.arg(self.server.nodes.prefix())
            .arg(number)
            .arg(&speaker.host)
            .arg(serde_json::to_string(rows).unwrap_or_default());
        cmd.arg(before);
        let (none, mut totals) = (Lease::default(), Totals::default());
        uses.iter().for_each(|one| totals.count(one));
        rows.iter().for_each(|row| totals.add(row, &none));
        totals.write(&speaker.writer, &mut cmd);
        cmd
    }
}
