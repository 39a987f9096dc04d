//! Budgets and token quotas of groups and keys: how much is used, and how long the rest lasts. The only list of them
//! and the only forecast: `usage --budgets`, `keys list` and `show`, the admin API and the dashboard show the same.

use super::used::{Used, UsedAmounts, amounts, is_in, of_limits};
use crate::base::limits::KEYS_PAGE;
use crate::base::text::plural;
use crate::base::time::Unix;
use crate::cli::output::{Align, Failure, Table, grouped, money, percent};
use crate::cli::store;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::plan::Plan;
use crate::policy::plan::caps::{Cap, Models, Resource};
use crate::policy::window::{DAY_MS, Period, date, iso, parse_moment, write_http_date};
use crate::store::api::{By, Names, Query};
use crate::store::ledger::Ledger;
use serde_json::{Value, json};

/// Number of days before today whose average use is the pace of a monthly or weekly budget.
const PACE_DAYS: usize = 7;
/// Minimum time before a pace is computed.
const PACE_MIN_MS: u64 = 5 * 60_000;
/// Maximum number of budgets in a report: those with the largest used shares.
const BUDGETS_MAX: usize = 1000;

/// One budget or quota; its amounts are nano-dollars or tokens.
#[derive(Clone)]
pub(in crate::cli) struct BudgetLine {
    /// Name of the group, or of the key with this id.
    name: String,
    key: Option<KeyId>,
    /// The limit, with temporary allowances.
    cap: Cap,
    /// True for the budget or the quota of the plan's period, whose time people know.
    is_usual: bool,
    used: u64,
    /// Creation of the key, or of the group's first key. Use cannot begin earlier.
    begun: Unix,
    /// Amount of today.
    today: u64,
    /// Amounts of the days before today, the latest first.
    days: [u64; PACE_DAYS],
}

/// Result of continuing at the present pace.
struct Forecast {
    text: String,
    /// The days or the day that the pace is taken from.
    pace: Option<String>,
    spent_at: Option<Unix>,
    /// Amount used at the end of the period.
    at_renewal: Option<u64>,
}

impl BudgetLine {
    /// The budgets and quotas of a group or a key. `used` returns what some models have used in the present window or
    /// period.
    fn of(
        (name, key, begun): (&str, Option<KeyId>, Unix),
        limits: &Plan,
        used: &dyn Fn(&Cap) -> UsedAmounts,
    ) -> Vec<BudgetLine> {
        let line = |cap: &Cap| BudgetLine {
            name: name.to_string(),
            key,
            is_usual: limits.setting_of(cap).is_some(),
            used: used(cap)[usize::from(cap.resource == Resource::Budget)],
            cap: cap.clone(),
            begun,
            today: 0,
            days: [0; PACE_DAYS],
        };
        of_limits(limits).map(line).collect()
    }

    pub(super) fn is_money(&self) -> bool {
        self.cap.resource == Resource::Budget
    }

    fn share(&self) -> f64 {
        self.used as f64 / self.cap.total as f64
    }

    /// Amount, time in which it was used, and the name of that time. For a key or group that began today, it is the
    /// time since, from five minutes on. For a day or a shorter
    /// window, the time is the elapsed part of it, from a tenth on. Otherwise it
    /// is the whole days before today, from the first of them with any use; `None` if there is no such day.
    fn pace(&self, now: Unix) -> Option<(u64, u64, String)> {
        let (midnight, start) = (Period::Day.bounds(now).0, self.cap.per.bounds(now).0);
        let minutes = |passed: u64| format!("{} min", passed / 60_000);
        if self.begun >= midnight.max(start) && self.days == [0; PACE_DAYS] {
            let passed = now.0.saturating_sub(self.begun.0);
            return (passed >= PACE_MIN_MS).then(|| (self.used, passed, minutes(passed)));
        }
        if self.is_short(now) {
            let (passed, length) = (now.0 - start.0, self.cap.per.bounds(now).1.0 - start.0);
            let name = || if length == DAY_MS { "today".to_string() } else { minutes(passed) };
            return (passed >= length / 10).then(|| (self.used, passed, name()));
        }
        let days = self.days.iter().rposition(|amount| *amount > 0)? as u64 + 1;
        Some((self.days.iter().sum(), days * DAY_MS, format!("{days} day{}", plural(days))))
    }

    /// True for a day and for windows of at most that length.
    fn is_short(&self, now: Unix) -> bool {
        let (start, end) = self.cap.per.bounds(now);
        end.0 - start.0 <= DAY_MS
    }

    /// Today's amount and the time in which it was used, if it is more than that of an average day and its pace would
    /// spend the budget today: the days before say nothing about that.
    fn pace_of_today(&self, now: Unix) -> Option<(u64, u64)> {
        let (midnight, next) = Period::Day.bounds(now);
        let passed = now.0 - midnight.0;
        let days = self.days.iter().rposition(|amount| *amount > 0).map_or(0, |at| at as u64 + 1);
        let is_more = u128::from(self.today) * u128::from(days) > self.days.iter().map(|day| u128::from(*day)).sum();
        // Keys and groups that began today have the pace since then.
        let is_older = self.begun < midnight && !self.is_short(now);
        let is_known = is_older && passed >= PACE_MIN_MS && (days == 0 || is_more);
        let is_spent = part(self.today, next.0 - now.0, passed) >= self.cap.total.saturating_sub(self.used);
        (is_known && is_spent && self.today > 0).then_some((self.today, passed))
    }

    /// The day on which it was spent, if that is one of the last days.
    fn spent_on(&self, now: Unix) -> Option<Unix> {
        let (midnight, begun) = (Period::Day.bounds(now).0, self.cap.per.bounds(now).0);
        let days = (0..).map(|ago| Unix(midnight.0.saturating_sub(ago * DAY_MS))).take_while(|day| *day >= begun);
        let mut used = self.used;
        let mut amounts = std::iter::once(self.today).chain(self.days).zip(days);
        amounts.find_map(|(amount, day)| {
            used = used.saturating_sub(amount);
            (used < self.cap.total).then_some(day)
        })
    }

    fn forecast(&self, now: Unix) -> Forecast {
        let say = |text: &str| Forecast { text: text.to_string(), pace: None, spent_at: None, at_renewal: None };
        let Some(left) = self.cap.total.checked_sub(self.used).filter(|left| *left > 0) else {
            return say(&self.spent_on(now).map_or("spent".to_string(), |at| ["spent since ", &day(at)].concat()));
        };
        let before = self.pace(now);
        let today = self.pace_of_today(now);
        let of_today = today.map(|(amount, passed)| (amount, passed, "today".to_string()));
        let Some((amount, time, pace)) = of_today.or_else(|| before.clone()) else { return say("too early to say") };
        let end = self.cap.per.bounds(now).1;
        let spent_at = Unix(now.0.saturating_add(part(left, time, amount)));
        let spent_at = Some(spent_at).filter(|at| amount > 0 && *at < end);
        let text = spent_at.map_or("lasts".to_string(), |at| match Period::Day.bounds(at) == Period::Day.bounds(now) {
            true => format!("spent {} UTC", &iso(at)[11..16]),
            false => ["spent ", &day(at)].concat(),
        });
        // Today's pace is not that of the days to come.
        let until = if today.is_some() { Period::Day.bounds(now).1.min(end) } else { end };
        let later = before.map_or(0, |(amount, time, _)| part(amount, end.0 - until.0, time));
        let more = part(amount, until.0 - now.0, time).saturating_add(later);
        Forecast { text, pace: Some(pace), spent_at, at_renewal: Some(self.used.saturating_add(more)) }
    }

    fn amount(&self, amount: u64) -> String {
        if self.is_money() { money(amount) } else { format!("{} token{}", grouped(amount), plural(amount)) }
    }

    /// Amount used at the end of the period. Requests beyond the limit are refused, so it says no number there.
    fn at_renewal(&self, amount: u64) -> String {
        if amount > self.cap.total { "more than the limit".to_string() } else { self.amount(amount) }
    }

    /// The forecast in one line.
    pub(super) fn text(&self, now: Unix) -> String {
        let Forecast { text, pace, at_renewal, .. } = self.forecast(now);
        let more =
            at_renewal.zip(pace).map(|(at, pace)| format!(", {} at renewal (pace: {pace})", self.at_renewal(at)));
        let of = if self.is_usual { String::new() } else { self.cap.words() };
        format!("{}{of}: {text}{}", self.cap.resource.as_str(), more.unwrap_or_default())
    }

    /// The amount used and the limit.
    pub(super) fn used_text(&self) -> String {
        let of = if self.is_usual { String::new() } else { [" per ", &self.span_text()].concat() };
        format!("{} / {}{of}", self.amount(self.used), self.amount(self.cap.total))
    }

    /// Its time and its models: `5h:opus-*`.
    fn span_text(&self) -> String {
        let models = self.cap.models.text().map(|models| [":", models].concat());
        self.cap.per.text() + &models.unwrap_or_default()
    }

    /// The budget as JSON, without a forecast.
    pub(super) fn plain_json(&self, now: Unix) -> Value {
        json!({
            "what": self.what(),
            "name": self.name,
            "key": self.key.map(|key| key.to_string()),
            "unit": if self.is_money() { "usd" } else { "tokens" },
            "per": self.cap.per.text(),
            "models": self.cap.models.names(),
            "used": self.number(self.used),
            "limit": self.number(self.cap.total),
            "share": self.share(),
            "renews": iso(self.cap.per.bounds(now).1),
        })
    }

    pub(in crate::cli) fn json(&self, now: Unix) -> Value {
        let (mut all, Forecast { text, pace, spent_at, at_renewal }) = (self.plain_json(now), self.forecast(now));
        (all["forecast"], all["pace"], all["spent_at"]) = (text.into(), pace.into(), spent_at.map(iso).into());
        all["at_renewal"] = at_renewal.map(|at| self.number(at)).into();
        all
    }

    fn number(&self, amount: u64) -> Value {
        if self.is_money() { (amount as f64 / 1e9).into() } else { amount.into() }
    }

    fn what(&self) -> &'static str {
        if self.key.is_some() { "key" } else { "group" }
    }
}

/// A renewal: its day, and its time if that is not midnight.
fn renewal(at: Unix) -> String {
    if Period::Day.bounds(at).0 == at { date(at) } else { iso(at) }
}

/// A day in words: `27 Nov`.
fn day(at: Unix) -> String {
    let mut date = Vec::new();
    write_http_date(at, &mut date);
    // `Fri, 27 Nov 2026 14:05:00 GMT`
    String::from_utf8(date).unwrap_or_default()[5..11].trim_start_matches('0').to_string()
}

/// `a` times `b` divided by `of`, at most the largest number.
fn part(a: u64, b: u64, of: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

/// The budgets of a key, without the days that forecasts need. `used` has been read for it.
pub(super) fn of_key(key: &KeyRecord, high: &Config, used: &Used, now: Unix) -> Vec<BudgetLine> {
    let limits = high.plan(&key.plan).cloned().unwrap_or_default().with(&key.limits, now);
    let of = |cap: &Cap| used.of_key(cap.per, &cap.models, &key.id);
    BudgetLine::of((&key.name, Some(key.id), key.created), &limits, &of)
}

/// The budgets of all groups and live keys, the largest used shares first.
pub(in crate::cli) fn report(high: &Config, now: Unix) -> Result<Vec<BudgetLine>, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(Vec::new()) };
    let (mut used, mut list) = (Used::default(), Vec::new());
    for limits in high.groups.iter().map(|group| &group.limits) {
        for cap in of_limits(limits) {
            used.read_span(&mut ledger, (By::Group, cap.per, &cap.models), now)?;
        }
        let of = |cap: &Cap| used.of_group(cap.per, &cap.models, &limits.name);
        list.append(&mut BudgetLine::of((&limits.name, None, now), limits, &of));
    }
    let mut after = None;
    loop {
        let page = ledger.keys_page(after.as_ref(), Names::default(), KEYS_PAGE).map_err(Failure::failed)?;
        let mut keys = page.unwrap_or_default();
        let last = keys.last().map(|key| key.id);
        for one in list.iter_mut().filter(|one| one.key.is_none()) {
            let of = |key: &KeyRecord| high.group(key.group.as_deref()?).map(|group| is_in(&group.path, &one.name));
            let own = keys.iter().filter(|key| of(key) == Some(true));
            one.begun = own.map(|key| key.created).fold(one.begun, Unix::min);
        }
        keys.retain(|key| key.is_live(now));
        used.read(&mut ledger, high, &keys, now)?;
        list.extend(keys.iter().flat_map(|key| of_key(key, high, &used, now)));
        list.sort_by(|one, other| other.share().total_cmp(&one.share()));
        list.truncate(BUDGETS_MAX);
        if last.is_none() {
            break;
        }
        after = last;
    }
    read_days(&mut ledger, &mut used, &mut list, now)?;
    Ok(list)
}

/// A table of budgets.
pub(in crate::cli) fn table(list: &[BudgetLine], wide: bool, now: Unix) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[
        ("BUDGET", Align::Name),
        ("PER", Align::Name),
        ("USED", right),
        ("LIMIT", right),
        ("SHARE", right),
        ("FORECAST", left),
        ("AT RENEWAL", right),
        ("PACE", left),
        ("RENEWS", left),
    ])
    .fit(wide, &["AT RENEWAL", "PACE", "LIMIT", "USED", "RENEWS"]);
    for one in list {
        let Forecast { text, pace, at_renewal, .. } = one.forecast(now);
        table.row(vec![
            format!("{} {}", one.what(), one.name),
            one.span_text(),
            one.amount(one.used),
            one.amount(one.cap.total),
            percent(one.used, one.cap.total),
            text,
            at_renewal.map(|at| one.at_renewal(at)).unwrap_or_default(),
            pace.unwrap_or_default(),
            renewal(one.cap.per.bounds(now).1),
        ]);
    }
    table.text()
}

/// Reads what was used today and on the days before.
pub(super) fn read_days(
    ledger: &mut Ledger,
    used: &mut Used,
    list: &mut [BudgetLine],
    now: Unix,
) -> Result<(), Failure> {
    let (today, _) = Period::Day.bounds(now);
    let since = Unix(today.0.saturating_sub(PACE_DAYS as u64 * DAY_MS));
    let mut models: Vec<Models> = list.iter().map(|one| one.cap.models.clone()).collect();
    models.sort_unstable_by(|one, other| one.text().cmp(&other.text()));
    models.dedup();
    let keys: Vec<String> = list.iter().filter_map(|one| Some(one.key?.to_string())).collect();
    for (models, by) in models.iter().flat_map(|models| [(models, By::Key), (models, By::Group)]) {
        let is_asked = |one: &&mut BudgetLine| one.cap.models == *models && one.key.is_some() == (by == By::Key);
        let ids = (by == By::Key).then(|| (By::Key, keys.clone()));
        let only = ids.into_iter().chain(used.models_of(ledger, models)?).collect();
        let query = Query { by: vec![by, By::Day], since: Some(since), until: None, only, page: None };
        for line in ledger.usage(&query).map_err(Failure::failed)? {
            let Some(day) = line.second.as_deref().and_then(parse_moment) else { continue };
            let ago = usize::try_from(today.0.saturating_sub(day.0) / DAY_MS).unwrap_or(usize::MAX);
            let sums = amounts(&line);
            for one in list.iter_mut().filter(is_asked) {
                let is_own = one.key.map_or_else(|| is_in(&line.name, &one.name), |key| key.as_str() == line.name);
                let is_money = one.is_money();
                let mut days = std::iter::once(&mut one.today).chain(&mut one.days);
                if let Some(amount) = days.nth(ago).filter(|_| is_own) {
                    *amount += sums[usize::from(is_money)];
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::plan::caps::Per;

    /// Noon of 20 November 2026, a Friday.
    const NOON: Unix = Unix(1_795_176_000_000);
    const DOLLAR: u64 = 1_000_000_000;

    fn budget(period: Period, [used, limit]: [u64; 2], days: &[u64]) -> BudgetLine {
        let limits = Plan { budget: limit * DOLLAR, period, ..Plan::default() }.settled("");
        let mut budget = BudgetLine::of(("a", None, Unix(0)), &limits, &|_| [0, used * DOLLAR]).remove(0);
        budget.days.iter_mut().zip(days).for_each(|(day, amount)| *day = amount * DOLLAR);
        budget
    }

    fn entry(text: &str, used: u64, days: &[u64]) -> BudgetLine {
        let limits = Plan { limits: Cap::parse(text).into_iter().collect(), ..Plan::default() }.settled("");
        let mut budget = BudgetLine::of(("a", None, Unix(0)), &limits, &|_| [used, used * DOLLAR]).remove(0);
        budget.days.iter_mut().zip(days).for_each(|(day, amount)| *day = *amount);
        budget
    }

    #[test]
    fn every_budget_has_its_time_its_models_and_its_share() {
        // A window of five hours begins at noon.
        let (window, two) = (entry("budget=5/5h:opus-*,!opus-mini", 3, &[9]), Unix(NOON.0 + 2 * 3_600_000));
        let all = window.json(two);
        assert_eq!((&all["per"], &all["models"]), (&json!("5h"), &json!(["opus-*", "!opus-mini"])));
        assert_eq!((&all["share"], &all["renews"]), (&json!(0.6), &json!("2026-11-20T17:00:00Z")));
        let words = "budget for 5 hours and models opus-*,!opus-mini: spent 15:20 UTC, more than the limit at renewal \
                     (pace: 120 min)";
        assert_eq!(window.text(two), words);
        assert_eq!(window.used_text(), "$3.0000 / $5.0000 per 5h:opus-*,!opus-mini");
        assert_eq!(budget(Period::Month, [3, 5], &[]).used_text(), "$3.0000 / $5.0000", "of the plan's period");
        let row = table(&[window], true, two);
        assert!(row.contains("  5h:opus-*,!opus-mini  ") && row.contains("  2026-11-20T17:00:00Z"), "{row}");
        assert!(entry("budget=5/5h", 5, &[]).text(NOON).starts_with("budget for 5 hours: spent"));
        assert!(entry("budget=5/3d", 3, &[9]).text(NOON).ends_with("(pace: 1 day)"));
        let limits =
            |text: &str| Plan { limits: Cap::parse(text).into_iter().collect(), ..Plan::default() }.settled("");
        let counts = ["tokens=5/1h", "tokens=5/59m", "budget=5/1m", "requests=5/day", "running=5"];
        assert_eq!(counts.map(|text| of_limits(&limits(text)).count()), [1, 0, 1, 0, 0]);
    }

    fn text(period: Period, amounts: [u64; 2], days: &[u64]) -> String {
        budget(period, amounts, days).text(NOON)
    }

    #[test]
    fn pace_of_whole_days_decides_when_a_month_is_spent() {
        let spent = "budget: spent 22 Nov, more than the limit at renewal (pace: 1 day)";
        assert_eq!(text(Period::Month, [10, 12], &[1]), spent);
        let lasts = "budget: lasts, $16.3000 at renewal (pace: 5 days)";
        assert_eq!(text(Period::Month, [10, 20], &[1, 0, 1, 0, 1]), lasts);
        assert_eq!(
            text(Period::Month, [10, 20], &[0, 0, 7]),
            "budget: spent 24 Nov, more than the limit at renewal (pace: 3 days)"
        );
        assert_eq!(text(Period::Month, [10, 20], &[]), "budget: too early to say");
        // The week ends on Monday.
        assert_eq!(text(Period::Week, [5, 9], &[1]), "budget: lasts, $7.5000 at renewal (pace: 1 day)");
        assert_eq!(
            text(Period::Week, [5, 7], &[1]),
            "budget: spent 22 Nov, more than the limit at renewal (pace: 1 day)"
        );
    }

    #[test]
    fn spent_budget_has_the_day_on_which_that_happened() {
        let text = |period: Period, amounts: [u64; 2], today: u64, days: &[u64]| {
            BudgetLine { today: today * DOLLAR, ..budget(period, amounts, days) }.text(NOON)
        };
        // 20 November is a Friday; the week began on the 16th.
        assert_eq!(text(Period::Month, [20, 20], 1, &[5]), "budget: spent since 20 Nov");
        assert_eq!(text(Period::Month, [21, 20], 1, &[5]), "budget: spent since 19 Nov", "today's was beyond it");
        assert_eq!(text(Period::Week, [9, 5], 0, &[1, 1, 4, 3, 9]), "budget: spent since 17 Nov");
        assert_eq!(text(Period::Week, [9, 5], 0, &[0, 0, 0, 0, 9]), "budget: spent", "of another week");
        assert_eq!(text(Period::Day, [9, 5], 9, &[9]), "budget: spent since 20 Nov");
        assert_eq!(text(Period::Month, [20, 20], 0, &[]), "budget: spent", "more than seven days ago");
    }

    #[test]
    fn pace_of_today_decides_if_it_spends_the_budget_today() {
        let text = |[used, limit]: [u64; 2], today: u64, days: &[u64]| {
            BudgetLine { today: today * DOLLAR, ..budget(Period::Month, [used, limit], days) }.text(NOON)
        };
        let spent = "budget: spent 16:00 UTC, more than the limit at renewal (pace: today)";
        assert_eq!(text([3, 4], 3, &[]), spent);
        assert_eq!(text([3, 4], 3, &[1]), spent);
        assert_eq!(text([3, 4], 3, &[0, 0, 3]), spent);
        // Not more than on other days, and not enough to spend it today.
        assert_eq!(text([3, 4], 3, &[3]), "budget: spent 20:00 UTC, more than the limit at renewal (pace: 1 day)");
        assert_eq!(text([3, 30], 3, &[1]), "budget: lasts, $13.5000 at renewal (pace: 1 day)");
        assert_eq!(text([3, 7], 3, &[]), "budget: too early to say");
        let early = BudgetLine { today: 3 * DOLLAR, ..budget(Period::Month, [3, 4], &[1]) };
        let midnight = NOON.0 - DAY_MS / 2;
        assert!(early.text(Unix(midnight + PACE_MIN_MS)).starts_with("budget: spent 00:06 UTC"));
        assert!(early.text(Unix(midnight + PACE_MIN_MS - 1)).contains("(pace: 1 day)"));
    }

    #[test]
    fn day_has_the_pace_of_its_own_hours_from_a_tenth_on() {
        assert_eq!(
            text(Period::Day, [3, 4], &[9]),
            "budget: spent 16:00 UTC, more than the limit at renewal (pace: today)"
        );
        assert_eq!(text(Period::Day, [0, 4], &[9]), "budget: lasts, $0.0000 at renewal (pace: today)");
        let tenth = Unix(NOON.0 - DAY_MS / 2 + DAY_MS / 10);
        let day = budget(Period::Day, [1, 20], &[9]);
        assert_eq!(day.text(Unix(tenth.0 - 1)), "budget: too early to say");
        assert_eq!(day.text(tenth), "budget: lasts, $10.0000 at renewal (pace: today)");
    }

    #[test]
    fn pace_of_a_key_begins_with_its_creation() {
        let created = |period: Period, minutes: u64| BudgetLine {
            begun: Unix(NOON.0 - minutes * 60_000),
            ..budget(period, [3, 4], &[])
        };
        let spent = "budget: spent 12:03 UTC, more than the limit at renewal (pace: 10 min)";
        assert_eq!(created(Period::Day, 10).text(NOON), spent);
        assert_eq!(created(Period::Day, 4).text(NOON), "budget: too early to say");
        assert!(created(Period::Month, 120).text(NOON).starts_with("budget: spent 12:40 UTC, "), "the first day, too");
        let moved = BudgetLine { days: [1; PACE_DAYS], ..created(Period::Month, 120) };
        assert!(moved.text(NOON).ends_with("(pace: 7 days)"), "another key of its group had used something before");
        assert!(created(Period::Day, 13 * 60).text(NOON).ends_with("(pace: today)"), "it began yesterday");
    }

    #[test]
    fn table_keeps_the_renewal_and_says_no_impossible_amount() {
        let mut budget = budget(Period::Month, [48, 155], &[10]);
        budget.name = "g".repeat(117);
        let text = table(&[budget], true, NOON);
        let cells = text.lines().nth(1).unwrap().split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        let cells: Vec<&str> = cells.collect();
        let end = ["31 %", "lasts", "$153.0000", "1 day", "2026-12-01"];
        assert_eq!(cells[cells.len() - 5..], end, "{text}");
        let [one, two] = [1, 2].map(|tokens| entry("tokens=5/day", 0, &[]).amount(tokens));
        assert_eq!([one, two], ["1 token", "2 tokens"]);
    }

    #[test]
    fn quota_of_tokens_and_budget_have_one_rule() {
        let limits = Plan { budget: 4 * DOLLAR, tokens: 4000, ..Plan::default() }.settled("");
        let id = KeyId::parse("AAAAAAAAAAAA");
        let lines = BudgetLine::of(("a", id, Unix(0)), &limits, &|_| [3000, 3 * DOLLAR]).into_iter().rev();
        let all: Vec<Value> = lines
            .map(|one| BudgetLine { days: [if one.is_money() { DOLLAR } else { 1000 }; PACE_DAYS], ..one }.json(NOON))
            .collect();
        for member in ["forecast", "pace", "spent_at", "renews", "key", "what"] {
            assert_eq!(all[0][member], all[1][member], "{member}");
        }
        assert_eq!((&all[0]["forecast"], &all[0]["pace"]), (&json!("spent 21 Nov"), &json!("7 days")));
        assert_eq!((&all[0]["at_renewal"], &all[1]["at_renewal"]), (&json!(13.5), &json!(13500)));
        assert_eq!(all[0]["spent_at"], "2026-11-21T12:00:00Z");
    }

    #[test]
    fn largest_amounts_do_not_overflow() {
        let huge = BudgetLine {
            used: u64::MAX - 1,
            cap: Cap::new(Resource::Budget, Per::Calendar(Period::Month), u64::MAX),
            days: [u64::MAX / 7; 7],
            ..budget(Period::Month, [0, 1], &[])
        };
        assert!(huge.text(NOON).starts_with("budget: spent 12:00 UTC"), "{}", huge.text(NOON));
        let slow = BudgetLine { used: 0, days: [1, 0, 0, 0, 0, 0, 0], ..huge };
        assert!(slow.text(NOON).starts_with("budget: lasts"), "{}", slow.text(NOON));
    }
}
