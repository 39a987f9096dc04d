//! The transitions of an exchange as one table, from which the documentation of [`TRANSITIONS`] is made. A debug build
//! checks every step against it.

use super::event::{Effect, ExchangeEvent};
use super::state::{Exchange, State};

macro_rules! transitions {
    ($($state:literal $events:literal => $next:literal)*) => {
        /// States, events, and the states that may follow. `Data` is a piece of an answer's body; `end` is the one end
        /// of an exchange, or that its head is authorized again.
        ///
        /// | state | events | next |
        /// |---|---|---|
        $(#[doc = concat!("| ", $state, " | ", $events, " | ", $next, " |")])*
        pub(super) const TRANSITIONS: &[(&str, &str, &str)] = &[$(($state, $events, $next)),*];
    };
}

transitions! {
    "Identifying" "LookedUp, Due" => "end"
    "Reading" "Body" => "Reading, Translating, Reserving, Queued, Attempting, end"
    "Reading" "Refused" => "end"
    "Reading" "Due" => "Reading"
    "Translating" "Translated" => "Translating, Reserving, Queued, Attempting, end"
    "Translating" "Offloaded" => "end"
    "Translating" "Due" => "Translating, end"
    "Translating" "Drained" => "Translating"
    "Reserving" "Ruled, Counted" => "Translating, Reserving, Queued, Attempting, end"
    "Reserving" "Body" => "Reserving, end"
    "Reserving" "Refused" => "end"
    "Reserving" "Due" => "Translating, Reserving, Queued, Attempting, end"
    "Reserving" "Drained" => "Reserving"
    "Queued" "Place" => "Translating, Reserving, Queued, Attempting, end"
    "Queued" "Body" => "Queued, end"
    "Queued" "Refused" => "end"
    "Queued" "Due" => "Queued, end"
    "Queued" "Count, Drained" => "Queued"
    "Attempting" "Named, DialFailed, Renewed, Failed, Due" => "Translating, Reserving, Queued, Attempting, end"
    "Attempting" "Dialed, Count, Drained" => "Attempting"
    "Attempting" "Body" => "Attempting, end"
    "Attempting" "Refused" => "end"
    "Attempting" "Head" => "Translating, Reserving, Queued, Attempting, Answering, end"
    "Answering" "Data, BodyEnd" => "Translating, Reserving, Queued, Attempting, Answering, Committing, end"
    "Answering" "Offloaded, Due" => "Translating, Reserving, Queued, Attempting, Answering, Committing, end"
    "Answering" "Body" => "Answering, end"
    "Answering" "Refused" => "end"
    "Answering" "Whole" => "Translating, Reserving, Queued, Attempting, Answering, Committing, end"
    "Answering" "Failed" => "Translating, Reserving, Queued, Attempting, end"
    "Answering" "Room, Drained, Count" => "Answering"
    "Answering" "Left" => "Lingering, end"
    "Lingering" "Data, BodyEnd, Offloaded, Failed, Due, Room" => "Lingering, end"
    "Committing" "Committed, NotCommitted, Due" => "end"
    "Committing" "Drained, Body, Refused" => "Committing"
    "any" "Left, Stopped" => "end"
}

/// A step under way, in a debug build: its state and its event.
pub(super) struct Step(Option<(&'static str, &'static str)>);

impl Step {
    /// A step of `exchange` by `event`; `None`: by a piece of the answer's body.
    #[inline]
    pub(super) fn of(exchange: &Exchange, event: Option<&ExchangeEvent<'_>>) -> Step {
        let names = || (state_name(&exchange.state), event.map_or("Data", event_name));
        Step(cfg!(debug_assertions).then(names))
    }

    /// The step has led `exchange` to its state, with `effect`.
    #[inline]
    pub(super) fn leads(self, exchange: &Exchange, effect: &Effect) {
        if let Some((from, event)) = self.0 {
            let next = if effect.ends() { "end" } else { state_name(&exchange.state) };
            assert!(is_listed(from, event, next), "{from} and {event} lead to {next}");
        }
    }
}

fn is_listed(from: &str, event: &str, next: &str) -> bool {
    let lists = |list: &str, name: &str| list.split(", ").any(|one| one == name);
    let row = |(state, events, nexts): &(&str, &str, &str)| {
        (*state == from || *state == "any") && lists(events, event) && lists(nexts, next)
    };
    TRANSITIONS.iter().any(row)
}

fn state_name(state: &State) -> &'static str {
    match state {
        State::Identifying { .. } => "Identifying",
        State::Reading { .. } => "Reading",
        State::Translating(_) => "Translating",
        State::Reserving(_) => "Reserving",
        State::Queued(_) => "Queued",
        State::Attempting(_) => "Attempting",
        State::Answering(_) => "Answering",
        State::Lingering(_) => "Lingering",
        State::Committing(_) => "Committing",
        State::Ended => "Ended",
    }
}

fn event_name(event: &ExchangeEvent<'_>) -> &'static str {
    match event {
        ExchangeEvent::LookedUp { .. } => "LookedUp",
        ExchangeEvent::Body { .. } => "Body",
        ExchangeEvent::Refused(_) => "Refused",
        ExchangeEvent::Translated { .. } => "Translated",
        ExchangeEvent::Count => "Count",
        ExchangeEvent::Counted => "Counted",
        ExchangeEvent::Ruled(..) => "Ruled",
        ExchangeEvent::Place => "Place",
        ExchangeEvent::Named { .. } => "Named",
        ExchangeEvent::Dialed(_) => "Dialed",
        ExchangeEvent::DialFailed(..) => "DialFailed",
        ExchangeEvent::Renewed => "Renewed",
        ExchangeEvent::Head(..) => "Head",
        ExchangeEvent::Whole(_) => "Whole",
        ExchangeEvent::BodyEnd => "BodyEnd",
        ExchangeEvent::Failed { .. } => "Failed",
        ExchangeEvent::Room => "Room",
        ExchangeEvent::Drained => "Drained",
        ExchangeEvent::Offloaded(_) => "Offloaded",
        ExchangeEvent::Committed => "Committed",
        ExchangeEvent::NotCommitted => "NotCommitted",
        ExchangeEvent::Due(_) => "Due",
        ExchangeEvent::Left => "Left",
        ExchangeEvent::Stopped => "Stopped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn step_that_is_not_in_the_table_is_found() {
        assert!(is_listed("Reading", "Body", "Reserving") && is_listed("Queued", "Left", "end"));
        assert!(!is_listed("Reading", "Body", "Committing") && !is_listed("Queued", "Left", "Queued"));
        assert!(!is_listed("Reading", "Dialed", "Reading") && !is_listed("Ended", "Due", "end"));
    }

    type Table<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

    /// The words of `text` that follow `prefix`.
    fn words<'a>(text: &'a str, prefix: &'static str) -> impl Iterator<Item = &'a str> {
        let word = |rest: &'a str| rest.split(|c: char| !c.is_ascii_alphanumeric()).next();
        text.split(prefix).skip(1).filter_map(word)
    }

    /// The pairs of the two matches, by reference and by value: every state of an arm with every event of it.
    fn matched(source: &str) -> Table<'_> {
        let mut table = Table::new();
        for (head, indent) in
            [("match (&mut *state, event) {", "\n            ("), ("match (state, event) {", "\n        (")]
        {
            let body = source.split(head).nth(1).expect("the match is there");
            let body = body.split("(state, event) =>").next().expect("its last arm is, too");
            let patterns = body.split(indent).skip(1).filter_map(|arm| arm.split("=>").next());
            for arm in patterns {
                let states: Vec<&str> = match arm.starts_with("state, ") {
                    true => vec!["any"],
                    false => words(arm, "State::").collect(),
                };
                for state in states {
                    table.entry(state).or_default().extend(words(arm, "Event::"));
                }
            }
        }
        table.retain(|_, events| !events.is_empty());
        table
    }

    /// The pairs of the table. A piece of a body arrives by [`super::super::Exchange::data`].
    fn listed() -> Table<'static> {
        let mut table = Table::new();
        for (state, events, _) in TRANSITIONS {
            table.entry(state).or_default().extend(events.split(", ").filter(|event| *event != "Data"));
        }
        table
    }

    #[test]
    fn table_of_states_equals_the_match() {
        let matched = matched(include_str!("dispatch.rs"));
        assert!(matched.len() > 5, "{matched:?}");
        assert_eq!(matched, listed());
    }
}
