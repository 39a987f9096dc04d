//! Names of the counters of a shared ledger's days, and the amounts that a row adds to them.

use crate::policy::row::Row;
use crate::store::api::{DayKey, DaySums, PEOPLE_MAX, PeopleSums, REST};
use crate::store::who::Who;
use std::cmp::Reverse;

/// Key, model, target, group, endpoint and client as a JSON array. With the number of the sum before it, this is the
/// name of a counter of a day.
pub fn counter_name(row: &Row) -> String {
    let place = [row.key.as_str(), &row.model, &row.target, &row.group, row.endpoint.name(), row.client.name()];
    serde_json::to_string(&place).unwrap_or_default()
}

/// Reads the name of a counter of `day`: the number of the sum, and its key.
pub fn counter_from(day: u64, name: &str) -> Option<(usize, DayKey)> {
    let number = usize::from(name.bytes().next()?.checked_sub(b'0')?);
    let [key, model, target, group, endpoint, client] = serde_json::from_str(name.get(1..)?).ok()?;
    (number <= 5).then_some((number, DayKey { day, key, model, target, group, endpoint, client }))
}

/// Adds the counters of users, sessions and agents of one day. Each name consists of the number of the sum, `u`, `s` or
/// `a`, and the user, session or agent. Only the largest of each are kept.
pub fn add_who(sums: &mut PeopleSums, day: u64, hash: Vec<(String, u64)>) {
    let mut found = PeopleSums::new();
    for (field, value) in &hash {
        let [b'0'..=b'5', letter, ..] = field.as_bytes() else { continue };
        let Some(who) = Who::ALL.into_iter().find(|who| who.plural().as_bytes()[0] == *letter) else { continue };
        found.entry((day, who, field[2..].into())).or_default()[usize::from(field.as_bytes()[0] - b'0')] = *value;
    }
    for who in Who::ALL {
        let of_kind = found.iter().filter(|((_, kind, name), _)| *kind == who && **name != *REST);
        let mut named: Vec<_> = of_kind.collect();
        named.sort_unstable_by_key(|(_, sums)| Reverse((sums[5], sums[1..5].iter().sum::<u64>())));
        let kept = named.iter().take(PEOPLE_MAX).map(|((_, _, name), sums)| (&**name, **sums));
        let rest = named.iter().skip(PEOPLE_MAX).map(|(_, sums)| (REST, **sums));
        let before = found.get(&(day, who, REST.into())).map(|sums| (REST, *sums));
        for (name, more) in kept.chain(rest).chain(before) {
            let sums = sums.entry((day, who, name.into())).or_default();
            sums.iter_mut().zip(more).for_each(|(sum, part)| *sum += part);
        }
    }
}

/// Adds the counters of one day, by their names.
pub fn add_day(sums: &mut DaySums, day: u64, hash: Vec<(String, u64)>) {
    for (name, value) in hash {
        if let Some((number, key)) = counter_from(day, &name) {
            sums.entry(key).or_default()[number] += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::agent::Client;
    use crate::policy::window::DAY_MS;
    use crate::store::api::sums_of;
    use crate::store::tests::sample;

    #[test]
    fn counters_of_a_record_have_its_names() {
        let mut row = sample("AAAAAAAAAAAA", 3 * DAY_MS + 5, "odd \"model\"\n", 7);
        assert_eq!(counter_from(3, &format!("4{}", counter_name(&row))), Some((4, DayKey::from_row(&row))));
        row.usage.out = u64::MAX;
        assert!(sums_of(&row)[4] < 1 << 41, "absurd numbers are capped");
        row.group = "labs/a".into();
        row.client = Client::OTHER;
        assert_eq!(counter_from(3, &format!("0{}", counter_name(&row))), Some((0, DayKey::from_row(&row))));
        let six = "[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"]";
        for nonsense in ["", "9[]", &format!("x{six}"), &format!("7{six}"), "1[\"a\"]", "1[\"a\",\"b\",\"c\"]"] {
            assert_eq!(counter_from(1, nonsense), None, "{nonsense}");
        }
        assert!(counter_from(1, &format!("1{six}")).is_some());
    }
}
