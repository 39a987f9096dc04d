//! Counters of one key or one group, when the clock advances, stops or jumps. An operator or NTP may set the wall
//! clock. A jump must never grant an allowance twice, or refuse a key for longer than its present window.

use super::super::plan::caps::{Cap, LimitList, LimitSpan, Resource};
use super::super::window::DAY_MS;
use super::windows::{
    Amount, Counted, Held, Known, Lease, LeasePart, Open, Restored, SharedCounts, SpanCount, WindowBounds, WindowUse,
    Windows, reserved,
};
use crate::base::time::Unix;
use std::sync::Arc;

/// UTC days whose tokens are stored: two of the longest periods, so that the last one is known if the clock is set back
/// into it.
pub const DAYS_KEPT: u64 = 190;

/// The counters of one key or one group.
#[derive(Clone, Debug, Default)]
pub(super) struct MeterAccount {
    /// Limits at the last update.
    pub(super) limits: LimitList,
    /// Counts of each of their spans.
    pub(super) counts: Box<[SpanCount]>,
    /// Interval in which the present windows of all spans stay the present ones.
    stays: WindowBounds,
    /// The last known day since the epoch, and the use of the requests admitted on it.
    last_day: (u64, Amount),
    /// Days before it, in order.
    earlier_days: Box<[(u64, Amount)]>,
    pub(super) running: u32,
    /// Number of reservations that are bounds, and their sum.
    pub(super) bounded: (u32, Amount),
}

impl MeterAccount {
    /// Brings all counts to `now`, for these limits. `held` visits the reservations that count here.
    #[inline(always)]
    pub(super) fn enter(&mut self, limits: &LimitList, now: Unix, held: Held<'_>) {
        if now < self.stays.0 || now >= self.stays.1 || !self.limits.is_same(limits) {
            self.move_on(limits, now, held);
        }
    }

    /// Moves to other limits or windows.
    #[cold]
    fn move_on(&mut self, limits: &LimitList, now: Unix, held: Held<'_>) {
        if !Arc::ptr_eq(self.limits.spans(), limits.spans()) {
            self.counts = self.arranged(limits.spans(), now, held);
        }
        self.limits = limits.clone();
        for (at, count) in self.counts.iter_mut().enumerate() {
            // A budget that is removed and set again is reported again.
            if !limits.budgets().any(|cap| cap.span == at) {
                count.told = Some(0);
            }
        }
        self.stays = (Unix(0), Unix(u64::MAX));
        for (at, span) in limits.spans().iter().enumerate() {
            let bounds = span.per.bounds(now);
            if self.counts[at].windows.present.bounds != bounds {
                let days = span.is_sum_of_days().then(|| self.days_within(bounds));
                let count = &mut self.counts[at];
                count.windows.enter(bounds, now, span, days, held);
                // Shares of a window that is entered again have been reported.
                count.told = (count.known().used.nano == 0).then_some(0);
            }
            self.stays = (self.stays.0.max(bounds.0), self.stays.1.min(bounds.1));
        }
    }

    /// Counts of `spans`. A span that was there keeps its counts. If the plan's window or period has another length
    /// now, it continues with the windows of the former length.
    #[inline]
    fn arranged(&mut self, spans: &Arc<[LimitSpan]>, now: Unix, held: Held<'_>) -> Box<[SpanCount]> {
        let before = self.limits.spans().clone();
        let like =
            |span: &LimitSpan| before.iter().position(|known| (known.per, &known.models) == (span.per, &span.models));
        let same = |span: &LimitSpan| before.iter().position(|known| known.account == span.account);
        let each = |span: &LimitSpan| match like(span).or_else(|| same(span)) {
            Some(known) => self.counts[known].clone(),
            None => self.begun(span, now, held),
        };
        spans.iter().map(each).collect()
    }

    /// Counts of a span that is new: the sums of its UTC days, or the use of all known windows that overlap its own.
    #[inline]
    fn begun(&self, span: &LimitSpan, now: Unix, held: Held<'_>) -> SpanCount {
        let Some(known) = self.counts.get(self.limits.window()) else { return SpanCount::default() };
        let bounds = span.per.bounds(now);
        let WindowUse { mut requests, mut used } = known.windows.overlapping(bounds);
        if span.per.has_whole_days() {
            used = self.days_within(bounds);
        }
        // The models of earlier requests are not known here.
        if span.models.text().is_some() {
            (requests, used) = (0, Amount::default());
        }
        let inside = |open: &Open| bounds.0 <= open.admitted && open.admitted < bounds.1;
        let reserved = reserved(span, held, inside);
        SpanCount {
            windows: Windows::begun(bounds, now, WindowUse { requests, used }, reserved),
            shared: None,
            told: Some(0),
        }
    }

    /// Sum of the known days within `bounds`.
    #[inline]
    fn days_within(&self, bounds: WindowBounds) -> Amount {
        let days = self.earlier_days.iter().chain([&self.last_day]);
        let inside = |day: u64| (bounds.0..bounds.1).contains(&Unix(day.saturating_mul(DAY_MS)));
        days.filter(|(day, _)| inside(*day)).fold(Amount::default(), |sum, (_, used)| sum.plus(*used))
    }

    /// Each span that counts requests to `model`, with its counts.
    #[inline]
    fn counts_of<'a>(&'a mut self, model: Option<&'a str>) -> impl Iterator<Item = (&'a LimitSpan, &'a mut SpanCount)> {
        self.limits.spans().iter().zip(&mut self.counts).filter(move |(span, _)| span.models.count(model))
    }

    /// Spans that count requests to `model`.
    #[inline]
    pub(super) fn spans_of<'a>(&'a self, model: Option<&'a str>) -> impl Iterator<Item = &'a LimitSpan> {
        self.limits.spans().iter().filter(move |span| span.models.count(model))
    }

    /// Counts one more request in the present windows. `bounded`: its reservation is a bound.
    #[inline]
    pub(super) fn begin(&mut self, estimate: Amount, bounded: bool, model: Option<&str>) {
        self.running += 1;
        self.counts_of(model).for_each(|(_, count)| count.windows.begin(estimate));
        if bounded {
            self.bounded = (self.bounded.0 + 1, self.bounded.1.plus(estimate));
        }
    }

    /// Replaces the bound of `open` by `exact`, which is less.
    #[inline]
    pub(super) fn count(&mut self, open: &Open, exact: Amount) {
        self.end_bounded(open.reserved);
        let excess = open.reserved.minus(exact);
        self.counts_of(open.model.as_deref()).for_each(|(span, count)| count.windows.count(open, span, excess));
    }

    /// Reserves `more` for `open`.
    #[inline]
    pub(super) fn extend(&mut self, open: &Open, more: Amount) {
        self.counts_of(open.model.as_deref()).for_each(|(span, count)| count.windows.extend(open, span, more));
    }

    #[inline]
    fn end_bounded(&mut self, most: Amount) {
        self.bounded = (self.bounded.0.saturating_sub(1), self.bounded.1.minus(most));
    }

    /// Counts one more request that another process admitted, in the windows of its admission.
    #[inline]
    pub(super) fn adopt(&mut self, open: &Open) {
        self.running += 1;
        self.counts_of(open.model.as_deref()).for_each(|(span, count)| count.windows.adopt(open, span));
    }

    /// Ends a request that does not count after all.
    #[inline]
    pub(super) fn cancel(&mut self, open: &Open) {
        self.running = self.running.saturating_sub(1);
        self.counts_of(open.model.as_deref()).for_each(|(span, count)| count.windows.cancel(open, span));
    }

    /// Ends a request with `used`. It counts in the windows of its admission.
    #[inline]
    pub(super) fn end(&mut self, open: &Open, used: Amount) {
        self.running = self.running.saturating_sub(1);
        if open.bounded {
            self.end_bounded(open.reserved);
        }
        for (span, count) in self.counts_of(open.model.as_deref()) {
            count.windows.end(open, span, used);
            if let Some(shared) = &mut count.shared {
                shared.add(open, used);
            }
        }
        self.add_day(open.admitted, used);
    }

    /// Adds use on the day of `at`.
    #[inline]
    fn add_day(&mut self, at: Unix, used: Amount) {
        let day = at.0 / DAY_MS;
        match &mut self.last_day {
            (last, sum) if *last == day => *sum = sum.plus(used),
            _ => self.add_other_day(day, used),
        }
    }

    /// Adds use on a day that is not the last one known.
    #[cold]
    fn add_other_day(&mut self, day: u64, used: Amount) {
        // Many keys need one day in total, which has no storage of its own.
        let mut days = std::mem::take(&mut self.earlier_days).into_vec();
        days.reserve_exact(2);
        if self.last_day.1 != Amount::default() {
            days.push(self.last_day);
        }
        match days.binary_search_by_key(&day, |(day, _)| *day) {
            Ok(place) => days[place].1 = days[place].1.plus(used),
            Err(place) => days.insert(place, (day, used)),
        }
        // A day far ahead, from a wrong clock, must not displace those around the present one.
        if days.len() as u64 > 2 * DAYS_KEPT {
            let present = self.bounds(LimitList::PERIOD).0.0 / DAY_MS;
            days.retain(|(day, _)| day.abs_diff(present) <= DAYS_KEPT);
        }
        self.last_day = days.pop().unwrap_or_default();
        self.earlier_days = days.into();
    }

    /// Restores requests at start: whole days from the sums of days, other windows from single requests.
    #[inline]
    pub(super) fn restore(&mut self, past: &Restored<'_>) {
        let Restored { is_day, at, requests, used, model } = *past;
        if is_day {
            self.add_day(at, used);
        }
        for (span, count) in self.counts_of(Some(model)) {
            if span.per.has_whole_days() == is_day {
                count.windows.present.restore(at, requests, used);
            }
        }
    }

    /// Stores the counts of a shared ledger for those parts that are spans of this account.
    #[inline]
    pub(super) fn learn<'a>(&mut self, news: impl Iterator<Item = (&'a LeasePart, &'a SharedCounts)>, now: Unix) {
        for (part, news) in news {
            let Some(count) = self.count_named(&part.account) else { continue };
            // Another host may have reported shares of a window of which nothing was known here.
            if count.shared.as_ref().is_none_or(|known| known.counts.bounds != news.bounds) {
                count.told = None;
            }
            count.shared.get_or_insert_default().learn(news, now);
        }
    }

    /// Adds one request to the known counts of a shared ledger, in the spans and windows of a lease.
    #[inline]
    pub(super) fn learn_of_one(&mut self, lease: &Lease) {
        for part in &*lease.parts {
            let shared = self.count_named(&part.account).and_then(|count| count.shared.as_mut());
            if let Some(known) = shared.filter(|known| known.counts.bounds == part.bounds) {
                known.counts.requests = known.counts.requests.saturating_add(1);
            }
        }
    }

    /// Counts of the span with this name.
    #[inline]
    fn count_named(&mut self, account: &str) -> Option<&mut SpanCount> {
        let at = self.limits.spans().iter().position(|span| *span.account == *account)?;
        self.counts.get_mut(at)
    }

    /// Forgets which shares of budgets were reported, so that they are reported again.
    #[inline]
    pub(super) fn forget_told(&mut self) {
        self.counts.iter_mut().for_each(|count| count.told = None);
    }

    /// True if the last counts of a shared ledger have expired.
    #[inline]
    pub(super) fn is_old(&self, now: Unix) -> bool {
        let shared = self.counts.get(LimitList::PERIOD).and_then(|count| count.shared.as_deref());
        shared.is_some_and(|known: &Known| known.is_old(now))
    }

    /// Clears the use after the shared ledger was replaced by an empty one. Running requests continue to count.
    #[inline]
    pub(super) fn reset_counts(&mut self) {
        for count in &mut self.counts {
            count.windows.reset();
            count.shared = None;
        }
        (self.last_day, self.earlier_days) = Default::default();
    }

    /// Window or period of a span.
    #[inline]
    pub(super) fn bounds(&self, span: usize) -> WindowBounds {
        self.counts.get(span).map_or_else(WindowBounds::default, |count| count.windows.present.bounds)
    }

    /// Settled use in a span: the larger of this process's and the shared ledger's counts.
    #[inline]
    pub(super) fn known(&self, span: usize) -> WindowUse {
        self.counts.get(span).map_or_else(WindowUse::default, SpanCount::known)
    }

    /// Settled use of the plan's period.
    #[inline]
    pub(super) fn period_known(&self) -> Amount {
        self.known(LimitList::PERIOD).used
    }

    /// Use and reservations of what `cap` limits, and only its settled use.
    #[inline]
    pub(super) fn of(&self, cap: &Cap, counted: Counted) -> (u64, u64) {
        if cap.resource == Resource::Running {
            let running = if counted == Counted::Settled { 0 } else { self.running.into() };
            return (running, running);
        }
        self.counts.get(cap.span).map_or((0, 0), |count| count.of(cap.resource, counted, self.bounded.1))
    }
}
