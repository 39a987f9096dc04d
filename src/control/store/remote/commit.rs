//! Data of a commit: its rows packed as one entry, and their totals, so that each counter is increased once however
//! many rows count in it.

use super::code::APPEND;
use super::commands::{RUNNING, json};
use super::day_counters::counter_name;
use super::resp::RedisCommand;
use super::{LeasePlace, Remote, Speaker, grant_name};
use crate::policy::keys::KeyId;
use crate::policy::ledger::Use;
use crate::policy::meter::{Amount, Lease, LeasePart};
use crate::policy::plan::PATH_SEPARATOR;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use crate::store::api::{Sums, sums_of};
use crate::store::who::Who;
use serde::Serialize;

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

/// Requests that begin and end in one part of leases. A request that does both within the commit never had a
/// reservation.
struct PlaceUse<'a> {
    key: KeyId,
    part: &'a LeasePart,
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
    /// Amount that the ended requests used.
    used: Amount,
}

/// Changes of one hash, as the script takes them: each is a field and an amount.
#[derive(Serialize, Default)]
struct HashChange {
    hash: String,
    /// For how long it is kept, in milliseconds; 0: always.
    kept: u64,
    /// Requests that were admitted.
    requests: u64,
    alone: bool,
    always: Vec<String>,
    used: Vec<String>,
    /// Only if the lease of the host has not ended.
    held: Vec<String>,
}

/// Adds `more - less` of a field.
fn change(list: &mut Vec<String>, field: String, more: u64, less: u64) {
    if more != less {
        let sign = if more < less { "-" } else { "" };
        list.extend([field, format!("{sign}{}", more.abs_diff(less))]);
    }
}

impl PlaceUse<'_> {
    /// Its changes, and those of the running requests of its key or group.
    fn changes(&self, speaker: &Speaker) -> impl Iterator<Item = HashChange> + use<> {
        let (place, alone) = (LeasePlace::of(&self.key, self.part), self.alone);
        let ((taken, begun), (ended, over)) = (self.taken, self.ended);
        let of = |requests: u64, amount: Amount| [requests, amount.tokens, amount.nano];
        let requests = self.served + if alone { ended } else { taken };
        let mut own = HashChange { hash: place.hash(), kept: place.kept(), requests, alone, ..HashChange::default() };
        change(&mut own.always, "1".to_string(), requests, 0);
        if taken > 0 {
            let grant = grant_name(&speaker.writer, self.grant);
            let each = of(taken, begun).into_iter().zip(1..);
            each.for_each(|(amount, resource)| change(&mut own.always, format!("{resource}:{grant}"), 0, amount));
        }
        if !place.is_sum_of_days() {
            let used = [self.used.tokens, self.used.nano].into_iter().zip(2..);
            used.for_each(|(amount, resource)| change(&mut own.used, format!("{resource}"), amount, 0));
        }
        let (host, mut running) = (&speaker.host, HashChange { hash: place.running(), ..HashChange::default() });
        if !alone {
            let each = of(0, begun).into_iter().zip(of(self.served, over)).zip(1..);
            each.for_each(|((more, less), resource)| change(&mut own.held, format!("{resource}:{host}"), more, less));
            change(&mut running.held, format!("{RUNNING}:{host}"), taken, ended);
        }
        let has_running = place.is_first() && !running.held.is_empty();
        std::iter::once(own).chain(has_running.then_some(running))
    }
}

/// All totals of a commit. The lists are short if rows are similar, and are searched from the end, where the entries of
/// the last row are.
#[derive(Default)]
struct Totals<'a> {
    places: Vec<DayTotals<'a>>,
    people: Vec<Person<'a>>,
    used: Vec<DailyUse<'a>>,
    parts: Vec<PlaceUse<'a>>,
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
        let tokens = sums[1..5].iter().sum();
        for account in accounts(row) {
            let is_one = |one: &DailyUse<'_>| (one.account, one.day) == (account, day);
            let used = entry(&mut self.used, is_one, || DailyUse { account, day, used: Amount::default() });
            used.used = used.used.plus(Amount { tokens, nano: sums[5] });
        }
        self.end(row.key, lease, Amount { tokens, nano: sums[5] });
    }

    /// Counts the end of a request in the parts of its lease.
    fn end(&mut self, key: KeyId, lease: &'a Lease, used: Amount) {
        for part in &*lease.parts {
            let one = self.part(key, part, !lease.shared, None);
            one.ended = (one.ended.0 + 1, one.ended.1.plus(lease.reserved));
            one.used = one.used.plus(used);
        }
    }

    /// Counts a request admitted by a grant, or by the ledger.
    fn count(&mut self, one: &'a Use) {
        let (grant, key, lease) = match one {
            Use::Took(grant, key, lease) => (Some(*grant), key, lease),
            Use::Served(key, lease) => (None, key, lease),
            Use::Left(key, lease, used) => return self.end(*key, lease, *used),
            Use::Returned(_) => return,
        };
        for part in &*lease.parts {
            let one = self.part(*key, part, false, grant);
            match grant {
                None => one.served += 1,
                Some(grant) => {
                    one.grant = grant;
                    one.taken = (one.taken.0 + 1, one.taken.1.plus(lease.reserved));
                }
            }
        }
    }

    fn part(&mut self, key: KeyId, part: &'a LeasePart, alone: bool, grant: Option<u64>) -> &mut PlaceUse<'a> {
        let is_one = |one: &PlaceUse<'_>| {
            let is_grant = grant.is_none_or(|grant| one.grant == grant || one.grant == 0);
            // The groups of several keys are the same.
            let is_owner = one.key == key || !part.group().is_empty();
            is_owner && (one.part, one.alone) == (part, alone) && is_grant
        };
        let (none, used) = ((0, Amount::default()), Amount::default());
        let new = || PlaceUse { key, part, alone, grant: 0, taken: none, served: 0, ended: none, used };
        entry(&mut self.parts, is_one, new)
    }

    /// Appends the totals in the form that the script expects.
    fn write(&self, speaker: &Speaker, cmd: &mut RedisCommand) {
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
        cmd.number(adds.len() as u64);
        for (hash, field, amount) in adds {
            cmd.arg(hash).arg(field).number(amount);
        }
        let (mut days, mut groups, mut named) = (Vec::new(), Vec::new(), Vec::new());
        self.places.iter().for_each(|place| _ = entry(&mut days, |day| *day == place.day, || place.day));
        let is_group = |one: &&DailyUse<'_>| one.account.0;
        for one in self.used.iter().filter(is_group) {
            entry(&mut groups, |known: &String| known[1..] == *one.account.1, || name(one.account));
        }
        self.people.iter().for_each(|one| _ = entry(&mut named, |day| *day == one.day, || one.day));
        cmd.numbers(&days).number(groups.len() as u64).args(&groups).numbers(&named);
        let changes: Vec<HashChange> = self.parts.iter().flat_map(|one| one.changes(speaker)).collect();
        cmd.arg(json(&changes));
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
    ) -> RedisCommand {
        let seq = format!("seq:{}", speaker.writer);
        let keys = [&*seq, "rows", "days", "wins"].map(|name| self.server.named(name));
        let mut cmd = self.server.script(APPEND, &keys);
        cmd.arg(self.server.nodes.prefix()).number(number).arg(&speaker.host).arg(json(&rows)).number(before);
        let (none, mut totals) = (Lease::default(), Totals::default());
        uses.iter().for_each(|one| totals.count(one));
        rows.iter().for_each(|row| totals.add(row, &none));
        totals.write(speaker, &mut cmd);
        cmd
    }
}
