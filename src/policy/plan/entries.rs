//! Limits as people write them: texts such as `budget=5/5h:opus-*`, and tables such as `{ budget = 5.0, per = "5h" }`.
//! The configuration, the command line and the admin API all read them here.

use super::caps::{BUDGET_MAX, Cap, Caps, ENTRIES_MAX, Models, Per, Resource, UNLIMITED};
use crate::policy::settings::kinds::{Kind, Shown};
use crate::policy::settings::reader::{Field, Reader};
use crate::policy::settings::units::{context, dollars, quoted};

/// Problem of an entry; it names the member.
pub type EntryError = &'static str;

/// Problem of an entry that names none of the resources.
pub const NO_RESOURCE: EntryError = "expected an entry such as \"budget=5/5h:opus-*\" or { budget = 5.0, per = \"5h\" \
    }, of requests, tokens, budget or running";
const RESOURCES: EntryError = "expected one of requests, tokens, budget and running, found several";
const DOLLARS: EntryError = "budget: expected US dollars above 0, such as 12.50, with at most nine decimals; a key may \
    have none, such as budget/5h=none";
const COUNT: EntryError =
    "expected a number from 1 on, such as 600 or 2M; a key may have none, such as requests/1m=none";
const PER: EntryError = "per: expected 1s to 31d in whole seconds, day, week, month or quarter";
const MODELS: EntryError = "models: expected 1 to 16 ids or prefixes with `*`, those with `!` excluded";
const RUNNING: EntryError = "running has no per and no models";

/// An entry in the form of a table.
#[derive(Default)]
pub struct EntryTable {
    /// Its resources, each with its total as written.
    pub totals: Vec<(Resource, String)>,
    /// Value of `per`.
    pub per: Option<String>,
    /// Value of `models`.
    pub models: Option<Vec<String>>,
}

impl EntryTable {
    /// The limit. Like [`Cap::parse_open`], it needs no time.
    pub fn cap(&self) -> Result<Cap, EntryError> {
        let models = self.models.as_ref().map(|names| names.join(","));
        match &self.totals[..] {
            [] => Err(NO_RESOURCE),
            [(resource, total)] => cap(*resource, Some(total), self.per.as_deref(), models.as_deref()),
            _ => Err(RESOURCES),
        }
    }
}

/// A limit of these parts; without `total` it lifts the plan's.
fn cap(resource: Resource, total: Option<&str>, per: Option<&str>, models: Option<&str>) -> Result<Cap, EntryError> {
    let (read, most, why) = match resource {
        Resource::Budget => (total.map(dollars), BUDGET_MAX, DOLLARS),
        _ => (total.map(context), UNLIMITED, COUNT),
    };
    let total = match read {
        None => 0,
        Some(total) => total.filter(|total| (1..=most).contains(total)).ok_or(why)?,
    };
    let per = per.map_or(Some(Per::Now), Per::parse).ok_or(PER)?;
    let models = models.map_or(Some(Models::default()), Models::parse).ok_or(MODELS)?;
    if resource == Resource::Running && (per != Per::Now || models.text().is_some()) {
        return Err(RUNNING);
    }
    Ok(Cap { models, ..Cap::new(resource, per, total) })
}

impl Cap {
    /// Reads `budget=5/5h:opus-*`, and `budget/5h=none` for an entry that lifts the plan's.
    pub fn parse(text: &str) -> Result<Cap, EntryError> {
        Cap::parse_open(text)?.with_time()
    }

    /// Like [`Cap::parse`], but also without a time: `budget=5`, whose `per` is [`Per::Now`].
    pub fn parse_open(text: &str) -> Result<Cap, EntryError> {
        let (text, lifts) = text.strip_suffix("=none").map_or((text, false), |rest| (rest, true));
        let (start, models) = text.split_once(':').map_or((text, None), |(start, models)| (start, Some(models)));
        let (value, per) = start.split_once('/').map_or((start, None), |(value, per)| (value, Some(per)));
        let (word, total) = value.split_once('=').map_or((value, None), |(word, total)| (word, Some(total)));
        let resource = Resource::ALL.into_iter().find(|resource| resource.as_str() == word).ok_or(NO_RESOURCE)?;
        // Neither a total and `none`, nor none of them.
        if lifts == total.is_some() {
            return Err(if resource == Resource::Budget { DOLLARS } else { COUNT });
        }
        cap(resource, total, per, models)
    }

    /// Fails if it lacks the time for which it limits.
    pub fn with_time(self) -> Result<Cap, EntryError> {
        if self.has_time() { Ok(self) } else { Err(PER) }
    }
}

/// Setting of a list of entries: tables, or their texts.
pub struct Entries;

impl Kind<Caps> for Entries {
    #[inline]
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Caps> {
        let mut caps: Vec<(Cap, String)> = Vec::new();
        for item in reader.items(field, ENTRIES_MAX) {
            let (at, path) = (item.start(), item.path.clone());
            let read = match item.text() {
                None if item.is_table() => read_table(reader, item).cap().and_then(Cap::with_time),
                text => Cap::parse(text.unwrap_or_default()),
            };
            // Only a key can lift a limit.
            let wrong = match read.and_then(|cap| if cap.total > 0 { Ok(cap) } else { Err(COUNT) }) {
                Ok(cap) => match caps.iter().find(|(other, _)| other.is_like(&cap)) {
                    Some((_, other)) => format!("{} is limited in {other} already", cap.name()),
                    None => {
                        caps.push((cap, path));
                        continue;
                    }
                },
                Err(why) => why.to_string(),
            };
            reader.report(at, path, wrong);
        }
        Some(caps.into_iter().map(|(cap, _)| cap).collect())
    }

    #[inline]
    fn shown(&self, caps: &Caps) -> Shown {
        let entries: Vec<String> = caps.iter().map(|cap| quoted(&cap.text())).collect();
        Shown::Value(format!("[{}]", entries.join(", ")))
    }
}

/// Reads `{ budget = 5.0, per = "5h", models = ["opus-*"] }`.
#[inline]
fn read_table(reader: &mut Reader<'_>, field: Field<'_>) -> EntryTable {
    let mut table = EntryTable::default();
    let Some(mut section) = reader.as_table(field) else { return table };
    for resource in Resource::ALL {
        if let Some(value) = section.take(resource.as_str()) {
            let total = value.text().or(value.decimal()).unwrap_or_default();
            table.totals.push((resource, total.to_string()));
        }
    }
    table.per = section.take("per").map(|per| per.text().unwrap_or_default().to_string());
    let models = section.take("models");
    table.models = models.map(|field| reader.strings(field).into_iter().map(|(_, name)| name).collect());
    section.finish(reader);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_written_as_the_same_text() {
        for text in [
            "requests=600/1m",
            "tokens=2000000/day",
            "budget=5/5h",
            "budget=0.50/week:opus-*",
            "budget=5/quarter:opus-*,!opus-mini",
            "running=4",
            "budget/5h=none",
            "budget/day:opus-*=none",
        ] {
            assert_eq!(Cap::parse(text).map(|cap| cap.text()).as_deref(), Ok(text));
        }
        assert_eq!(Cap::parse("tokens=2M/24h").unwrap().text(), "tokens=2000000/day");
        assert_eq!(Cap::parse("tokens=2M/7d").unwrap().text(), "tokens=2000000/7d");
        assert_eq!(Cap::parse("tokens=2M/7d:*").unwrap().text(), "tokens=2000000/7d");
    }

    #[test]
    fn problem_of_an_entry_names_the_member() {
        for (wrong, why) in [
            ("", NO_RESOURCE),
            ("images=1/day", NO_RESOURCE),
            ("budget=5", PER),
            ("budget=0/day", DOLLARS),
            ("budget/day", DOLLARS),
            ("budget=2M/day", DOLLARS),
            ("budget=5/day=none", DOLLARS),
            ("requests=0/1m", COUNT),
            ("requests=1.5/1m", COUNT),
            ("budget=5/32d", PER),
            ("budget=5/1500ms", PER),
            ("running=4/1m", RUNNING),
            ("running=4:opus", RUNNING),
            ("budget=5/day:", MODELS),
            ("budget=5/day:!small", MODELS),
        ] {
            assert_eq!(Cap::parse(wrong), Err(why), "{wrong}");
        }
    }

    #[test]
    fn only_a_temporary_allowance_needs_no_time() {
        for text in ["budget=5", "tokens=2M:opus-*", "budget=none"] {
            let cap = Cap::parse_open(text).unwrap();
            assert!(!cap.has_time() && Cap::parse(text).is_err(), "{text}");
        }
        assert_eq!(Cap::parse_open("budget=5").unwrap().text(), "budget=5");
        assert!(Cap::parse_open("running=4").unwrap().has_time());
    }

    #[test]
    fn table_is_the_same_as_its_text() {
        let table = |totals: &[(Resource, &str)], per: &str, models: &[&str]| {
            let totals = totals.iter().map(|(resource, total)| (*resource, total.to_string())).collect();
            let models = (!models.is_empty()).then(|| models.iter().map(|name| name.to_string()).collect());
            EntryTable { totals, per: Some(per.to_string()), models }.cap()
        };
        let budget = (Resource::Budget, "5.0");
        assert_eq!(table(&[budget], "5h", &["opus-*", "!opus-mini"]), Cap::parse("budget=5/5h:opus-*,!opus-mini"));
        assert_eq!(table(&[], "5h", &[]), Err(NO_RESOURCE));
        assert_eq!(table(&[budget, (Resource::Tokens, "2M")], "5h", &[]), Err(RESOURCES));
        assert_eq!(table(&[budget], "", &[]), Err(PER));
        assert_eq!(table(&[(Resource::Running, "4")], "day", &[]), Err(RUNNING));
    }
}
