//! `tollgate usage --by session --cache`: what conversations paid for cached prefixes that were not read from the
//! cache, and why. Computed from the usage records by the counts that providers report as read and written.
//! Conversations whose provider reports neither are not estimated.

use crate::base::time::Unix;
use crate::cli::output::{Align, Failure, Table, dollars, grouped};
use crate::policy::config::Config;
use crate::policy::prices::ModelPrices;
use crate::policy::row::Row;
use crate::store::api::{DayKey, Entry, Query};
use crate::store::ledger::Ledger;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time for which a provider keeps an unused prefix: Anthropic and OpenAI guarantee no more without a surcharge.
const TIME_TO_LIVE_MS: u64 = 5 * 60 * 1000;
/// Part of a cached prefix, as a divisor, that may stay unread before the prefix counts as changed: providers read in
/// steps, and clients drop the end.
const UNREAD_MAX: u64 = 8;
/// Maximum number of conversations tracked at a time; if there are more, one of them is forgotten.
const FOLLOWED_MAX: usize = 100_000;
/// Maximum lines of the report, the most expensive ones.
const LINES_MAX: usize = 1000;

/// State of a conversation after a request.
struct ConversationState {
    admitted: Unix,
    target: Arc<str>,
    /// Tokens that the provider has reported as in its cache.
    cached: u64,
}

/// Totals of one conversation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct ConversationLine {
    /// Name of the conversation, as in the usage records.
    name: String,
    requests: u64,
    input_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    /// Tokens that were cached and not read from the cache, by reason: the client changed its prefix, the time to live
    /// had passed, another target was chosen, or the previous one failed.
    changed_tokens: u64,
    expired_tokens: u64,
    moved_tokens: u64,
    failed_over_tokens: u64,
    /// Cost of these tokens above the price of reading them from the cache, at the prices configured now.
    cold_cost_nano_usd: u64,
}

impl ConversationLine {
    fn cold(&mut self) -> [&mut u64; 4] {
        [&mut self.changed_tokens, &mut self.expired_tokens, &mut self.moved_tokens, &mut self.failed_over_tokens]
    }
}

/// Cost of cold prefixes by conversation, from the usage records that `query` selects, the most expensive first.
pub(crate) fn report(ledger: &mut Ledger, query: &Query, high: &Config) -> Result<Vec<ConversationLine>, Failure> {
    let mut followed = Followed::default();
    let exported = ledger.export(&mut |entry| {
        if let Entry::Request(row) = entry
            && row.names.session.is_some()
            && query.takes(&DayKey::from_row(&row))
        {
            let model = high.catalog.find(&row.model).and_then(|index| high.catalog.get(index));
            followed.row(&row, model.map(|model| &model.prices));
        }
        true
    });
    exported.map_err(Failure::failed)?;
    Ok(followed.lines())
}

/// Columns that are omitted, in this order, if the terminal is too narrow.
const SPARE: [&str; 4] = ["CACHE WRITE", "CACHE READ", "PROMPT", "REQUESTS"];

/// The lines as a table.
pub(crate) fn table(lines: &[ConversationLine], wide: bool) -> String {
    let heads =
        ["REQUESTS", "PROMPT", "CACHE READ", "CACHE WRITE", "CHANGED", "EXPIRED", "MOVED", "FAILED OVER", "PAID $"];
    let heads: Vec<_> = [("SESSION", Align::Name)].into_iter().chain(heads.map(|head| (head, Align::Right))).collect();
    let mut table = Table::new(&heads).fit(wide, &SPARE);
    for line in lines {
        let mut counts = vec![line.requests, line.input_tokens, line.cache_read_tokens, line.cache_write_tokens];
        counts.extend(line.clone().cold().map(|tokens| *tokens));
        let counts = counts.into_iter().map(grouped).chain([dollars(line.cold_cost_nano_usd)]);
        table.row([line.name.clone()].into_iter().chain(counts).collect());
    }
    table.text()
}

/// Formats the report as comma-separated values, with the column names of the JSON.
pub(crate) fn csv(lines: &[ConversationLine]) -> String {
    let mut out = "session,requests,input_tokens,cache_read_tokens,cache_write_tokens,changed_tokens,expired_tokens,\
                   moved_tokens,failed_over_tokens,cold_cost_nano_usd\r\n"
        .to_string();
    for line in lines {
        // A session is a hash and needs no quotation marks.
        out += &line.name;
        let sums = [line.requests, line.input_tokens, line.cache_read_tokens, line.cache_write_tokens];
        let cold = line.clone().cold().map(|tokens| *tokens);
        for count in sums.into_iter().chain(cold).chain([line.cold_cost_nano_usd]) {
            out.push(',');
            out += &count.to_string();
        }
        out += "\r\n";
    }
    out
}

/// Tracks conversations by session, record by record.
#[derive(Default)]
struct Followed(BTreeMap<Arc<str>, CachedConversation>);

#[derive(Default)]
struct CachedConversation {
    line: ConversationLine,
    /// State by model: a program's requests to another model have a prefix of their own.
    states: Vec<(Arc<str>, ConversationState)>,
}

impl Followed {
    fn row(&mut self, row: &Row, prices: Option<&ModelPrices>) {
        let Some(session) = &row.names.session else { return };
        if self.0.len() >= FOLLOWED_MAX && !self.0.contains_key(session) {
            // An arbitrary one: names are hashes.
            self.0.pop_first();
        }
        let CachedConversation { line, states } = self.0.entry(session.clone()).or_default();
        let usage = &row.usage;
        line.requests += 1;
        line.input_tokens += usage.prompt();
        line.cache_read_tokens += usage.cache_read;
        line.cache_write_tokens += usage.cache_write;
        // A request that reached no provider says nothing about its cache.
        if usage.total() == 0 {
            return;
        }
        let now = ConversationState {
            admitted: row.admitted,
            target: row.target.clone(),
            cached: usage.cache_read.saturating_add(usage.cache_write),
        };
        let Some((_, known)) = states.iter_mut().find(|(model, _)| *model == row.model) else {
            states.push((row.model.clone(), now));
            return;
        };
        let before = std::mem::replace(known, now);
        let unread = before.cached.min(usage.prompt()).saturating_sub(usage.cache_read);
        if unread <= before.cached / UNREAD_MAX {
            return;
        }
        let why = match row.target != before.target {
            true if row.attempts > 1 => 3,
            true => 2,
            false => usize::from(row.admitted.0.saturating_sub(before.admitted.0) > TIME_TO_LIVE_MS),
        };
        *line.cold()[why] += unread;
        let paid = |prices: &ModelPrices| {
            let prices = prices.of(usage.prompt());
            let rate = if usage.cache_write >= unread { prices.cache_write } else { prices.input };
            unread.saturating_mul(rate.saturating_sub(prices.cache_read)) / 1000
        };
        line.cold_cost_nano_usd = line.cold_cost_nano_usd.saturating_add(prices.map_or(0, paid));
    }

    fn lines(self) -> Vec<ConversationLine> {
        let named =
            |(name, one): (Arc<str>, CachedConversation)| ConversationLine { name: name.to_string(), ..one.line };
        let mut lines: Vec<ConversationLine> = self.0.into_iter().map(named).collect();
        lines.sort_unstable_by_key(|line| {
            let cold = line.clone().cold().into_iter().map(|tokens| *tokens).sum::<u64>();
            Reverse((line.cold_cost_nano_usd, cold))
        });
        lines.truncate(LINES_MAX);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::prices::Prices;
    use crate::policy::row::RowNames;

    const PRICES: Prices =
        Prices { input: 3_000_000, output: 0, cache_read: 300_000, cache_write: 3_750_000, hour_write: 6_000_000 };
    const MINUTE: u64 = 60_000;

    fn row(session: &str, admitted: u64, target: &str, attempts: u32, tokens: [u64; 3]) -> Row {
        let [uncached, read, write] = tokens;
        let text = format!(
            r#"{{"r":"{:032x}","k":"abcdefABCDEF","a":{admitted},"m":"m","t":"{target}","e":"messages","s":true,"c":200,
            "u":[{uncached},{read},{write},9],"f":"provider","n":1,"x":{attempts},"d":7,"z":"{session}"}}"#,
            7
        );
        serde_json::from_str(&text).unwrap()
    }

    fn lines(rows: &[Row]) -> Vec<ConversationLine> {
        let mut followed = Followed::default();
        rows.iter().for_each(|row| followed.row(row, Some(&PRICES.into())));
        followed.lines()
    }

    fn cold(rows: &[Row]) -> [u64; 4] {
        lines(rows)[0].clone().cold().map(|tokens| *tokens)
    }

    #[test]
    fn unread_prefix_is_cold_and_has_a_reason() {
        let first = row("s", 0, "p/m", 1, [10, 0, 8000]);
        let warm = row("s", MINUTE, "p/m", 1, [10, 8000, 500]);
        assert_eq!(cold(&[first.clone(), warm.clone()]), [0; 4]);
        let again = |after: u64, target: &str, attempts| row("s", after, target, attempts, [10, 0, 8500]);
        assert_eq!(cold(&[first.clone(), again(MINUTE, "p/m", 1)]), [8000, 0, 0, 0]);
        assert_eq!(cold(&[first.clone(), again(6 * MINUTE, "p/m", 1)]), [0, 8000, 0, 0]);
        assert_eq!(cold(&[first.clone(), again(MINUTE, "q/m", 1)]), [0, 0, 8000, 0]);
        assert_eq!(cold(&[first.clone(), again(MINUTE, "q/m", 2)]), [0, 0, 0, 8000]);
        // Each request is compared with the previous one; tokens read in the meantime have been written there, too.
        assert_eq!(cold(&[first, warm, again(2 * MINUTE, "p/m", 1)]), [8500, 0, 0, 0]);
    }

    #[test]
    fn cost_is_the_difference_to_a_cache_read() {
        let written = [row("s", 0, "p/m", 1, [0, 0, 8000]), row("s", 1, "p/m", 1, [0, 0, 8000])];
        assert_eq!(lines(&written)[0].cold_cost_nano_usd, 8000 * 3450);
        let sent = [row("s", 0, "p/m", 1, [0, 0, 8000]), row("s", 1, "p/m", 1, [8000, 0, 0])];
        assert_eq!(lines(&sent)[0].cold_cost_nano_usd, 8000 * 2700);
        let text = csv(&lines(&sent));
        let [heads, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!((heads.split(',').count(), line), (10, "s,2,16000,0,8000,8000,0,0,0,21600000"));
    }

    #[test]
    fn records_without_conversation_or_cache_are_not_cold() {
        let quiet = [row("s", 0, "p/m", 1, [8000, 0, 0]), row("s", 1, "q/m", 1, [9000, 0, 0])];
        assert_eq!(cold(&quiet), [0; 4], "a provider that reports neither");
        let nobody = Row { names: RowNames::default(), ..row("s", 0, "p/m", 1, [0, 0, 8000]) };
        assert_eq!(lines(&[nobody]), []);
        let beside = Row { model: "small".into(), ..row("s", 1, "p/small", 1, [10, 0, 100]) };
        let turns = [row("s", 0, "p/m", 1, [0, 0, 8000]), beside, row("s", 2, "p/m", 1, [10, 8000, 100])];
        assert_eq!(cold(&turns), [0; 4], "another model beside it");
        let short = [row("s", 0, "p/m", 1, [0, 0, 8000]), row("s", 2, "p/m", 1, [10, 7000, 0])];
        assert_eq!(cold(&short), [0; 4], "a step less");
        let cut = [row("s", 0, "p/m", 1, [0, 0, 8000]), row("s", 2, "p/m", 1, [100, 0, 0])];
        assert_eq!(cold(&cut), [0; 4], "a short request beside a long conversation");
        let most = [row("s", 0, "p/m", 1, [0, 0, 8000]), row("s", 2, "p/m", 1, [5000, 0, 0])];
        assert_eq!(cold(&most), [5000, 0, 0, 0], "no more than was sent");
    }

    #[test]
    fn most_expensive_come_first_and_tracking_is_bounded() {
        let of =
            |name: &str, tokens: u64| [row(name, 0, "p/m", 1, [0, 0, tokens]), row(name, 1, "p/m", 1, [tokens, 0, 0])];
        let found = lines(&[of("a", 100), of("b", 300), of("c", 200)].concat());
        assert_eq!(found.iter().map(|line| &*line.name).collect::<Vec<_>>(), ["b", "c", "a"]);
        let mut followed = Followed::default();
        for n in 0..FOLLOWED_MAX + 50 {
            followed.row(&row(&format!("{n:06}"), 0, "p/m", 1, [0, 0, 8]), None);
        }
        assert_eq!(followed.0.len(), FOLLOWED_MAX);
        assert_eq!(followed.lines().len(), LINES_MAX);
    }
}
