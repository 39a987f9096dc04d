//! Counters of one key or one group, when the clock advances, stops or jumps. An operator or NTP may set the wall
//! clock. A jump must never grant an allowance twice, or refuse a key for longer than its present window.

use super::super::keys::KeyIx;
use super::super::plan::{Plan, shown};
use super::super::window::{DAY_MS, Period, is_within, window};
use crate::base::limits;
use crate::base::time::Unix;

/// First moment, and first moment after.
pub(super) type WindowBounds = (Unix, Unix);

/// Windows that are stored besides the present one. If there are more, windows in the same block of time are merged.
const LEFT_MAX: usize = 12;
/// Lengths of such blocks in milliseconds. Windows of other lengths begin and end with blocks.
const BLOCKS_MS: [u64; 4] = [60_000, 600_000, 3_600_000, DAY_MS];
/// UTC days whose tokens are stored: two of the longest periods, so that the last one is known if the clock is set back
/// into it.
pub const DAYS_KEPT: u64 = 70;

/// A path of groups, from the root of a tree to the group that a key is in.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct PathIx(pub(super) u32);

impl PathIx {
    /// Path of a key in no group.
    pub const NONE: PathIx = PathIx(0);

    /// True if there is a group.
    pub fn is_some(self) -> bool {
        self != PathIx::NONE
    }
}

/// Tokens, and what they cost in nano-dollars.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Prompt and completion tokens, cached ones included.
    pub tokens: u64,
    /// Nano-dollars.
    pub nano: u64,
}

impl Amount {
    /// Sum of both, saturating.
    pub fn plus(self, more: Amount) -> Amount {
        Amount { tokens: self.tokens.saturating_add(more.tokens), nano: self.nano.saturating_add(more.nano) }
    }

    /// Difference of each, at least 0.
    pub fn minus(self, less: Amount) -> Amount {
        Amount { tokens: self.tokens.saturating_sub(less.tokens), nano: self.nano.saturating_sub(less.nano) }
    }

    /// The smaller of each.
    pub fn min(self, other: Amount) -> Amount {
        Amount { tokens: self.tokens.min(other.tokens), nano: self.nano.min(other.nano) }
    }

    /// The larger of each.
    pub fn max(self, other: Amount) -> Amount {
        Amount { tokens: self.tokens.max(other.tokens), nano: self.nano.max(other.nano) }
    }
}

/// Data of an open reservation, stored in the meter, so that it survives if a bug ends its exchange.
#[derive(Copy, Clone, Debug)]
pub struct Open {
    pub(super) key: KeyIx,
    /// Groups that it also counts in.
    pub(super) path: PathIx,
    /// Window of the key. Those of groups and all periods follow from `admitted`.
    pub(super) window: WindowBounds,
    pub(super) admitted: Unix,
    pub(super) reserved: Amount,
    pub(super) shared: bool,
    /// True if `reserved` is a bound: the estimate of the request has not been counted.
    pub(super) bounded: bool,
}

/// Visits the reservations that count in one account.
pub(super) type Held<'a> = &'a dyn Fn(&mut dyn FnMut(&Open));

/// Use of a key or a group by all hosts, from a shared ledger.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SharedCounts {
    /// Window of the counts.
    pub window: (Unix, Unix),
    /// Requests in it.
    pub requests: u64,
    /// Tokens settled in it.
    pub window_used: u64,
    /// Period of the counts.
    pub period: (Unix, Unix),
    /// Amount settled in it.
    pub period_used: Amount,
}

/// Counts of a shared ledger as this process knows them: those that the ledger reported, and what was admitted here
/// since.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) counts: SharedCounts,
    /// Time of the last report.
    reported_at: Unix,
    /// Since when the ledger reports less; 0 if it does not.
    less: Unix,
}

impl Known {
    /// Adds use that this process has settled since.
    fn add(&mut self, open: &Open, window: WindowBounds, used: Amount) {
        let counts = &mut self.counts;
        if counts.window == window {
            counts.window_used = counts.window_used.saturating_add(used.tokens);
        }
        if counts.period.0 <= open.admitted && open.admitted < counts.period.1 {
            counts.period_used = counts.period_used.plus(used);
        }
    }

    /// True if the last report has expired.
    pub(super) fn is_old(&self, now: Unix) -> bool {
        now.0.abs_diff(self.reported_at.0) >= limits::COUNTS_FRESH.as_millis() as u64
    }

    /// Stores a report. It is too low while requests admitted here are not reported. If it stays lower, it is right: a
    /// counter was repaired, or requests do not count after all.
    fn learn(&mut self, news: &SharedCounts, now: Unix) {
        let (mut next, known) = (*news, &self.counts);
        if known.window == news.window {
            next.requests = news.requests.max(known.requests);
            next.window_used = news.window_used.max(known.window_used);
        }
        if known.period == news.period {
            next.period_used = news.period_used.max(known.period_used);
        }
        self.reported_at = now;
        if next == *news {
            self.less = Unix(0);
        } else if self.less == Unix(0) {
            self.less = now;
        } else if now.0.abs_diff(self.less.0) >= limits::COUNTS_SETTLE.as_millis() as u64 {
            (next, self.less) = (*news, Unix(0));
        }
        self.counts = next;
    }
}

/// Counts of one window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) bounds: WindowBounds,
    /// Moment at which it was left last, or its end if that was earlier. All requests that count here were admitted
    /// before.
    left_at: Unix,
    /// Start of a window whose counts were carried over into this one; 0 if there is none.
    carried_from: Unix,
    pub(super) requests: u64,
    pub(super) used: u64,
    pub(super) reserved: u64,
    /// Part of `requests` and `used` that was counted in other windows.
    from_others: WindowUse,
}

/// Use that is counted in a window.
#[derive(Copy, Clone, Debug, Default)]
struct WindowUse {
    requests: u64,
    tokens: u64,
}

impl WindowUse {
    fn plus(self, other: WindowUse) -> WindowUse {
        WindowUse {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }

    fn max(self, other: WindowUse) -> WindowUse {
        WindowUse { requests: self.requests.max(other.requests), tokens: self.tokens.max(other.tokens) }
    }
}

impl Window {
    /// True if a request that was admitted at `at` in the window `of` counts here.
    fn counts(&self, at: Unix, of: WindowBounds) -> bool {
        self.holds(at) || self.bounds == of || (self.carried_from > Unix(0) && self.carried_from == of.0)
    }

    fn holds(&self, at: Unix) -> bool {
        self.bounds.0 <= at && at < self.bounds.1
    }

    fn contains(&self, other: WindowBounds) -> bool {
        self.bounds.0 <= other.0 && other.1 <= self.bounds.1
    }

    /// True if requests of `other`, which was left, may have been admitted within the bounds of this one.
    fn overlaps(&self, other: &Window) -> bool {
        self.bounds.0 < other.left_at && other.bounds.0 < self.bounds.1
    }

    /// Use that was counted only in this window.
    fn own(&self) -> WindowUse {
        let WindowUse { requests, tokens } = self.from_others;
        WindowUse { requests: self.requests - requests, tokens: self.used - tokens }
    }

    /// Use that was counted in this window or others.
    fn all(&self) -> WindowUse {
        WindowUse { requests: self.requests, tokens: self.used }
    }

    /// Ends a request that counts here.
    #[inline]
    fn end(&mut self, open: &Open, tokens: u64) {
        self.reserved = self.reserved.saturating_sub(open.reserved.tokens);
        self.used = self.used.saturating_add(tokens);
    }

    /// Restores one request at start. It was admitted at `admitted`, in this window or another, and used `tokens`.
    pub(super) fn restore(&mut self, admitted: Unix, tokens: u64) {
        if self.holds(admitted) {
            self.requests = self.requests.saturating_add(1);
            self.used = self.used.saturating_add(tokens);
        }
    }

    /// The length of the shortest block that contains this and `other`; `None` if there is none.
    fn block_with(&self, other: &Window) -> Option<u64> {
        let (start, end) = (self.bounds.0.min(other.bounds.0), self.bounds.1.max(other.bounds.1));
        BLOCKS_MS.into_iter().find(|block| start.0 / block == end.0.saturating_sub(1) / block)
    }

    /// Window that replaces this one and `other`.
    fn merged(&self, other: &Window) -> Window {
        let sum = |one: u64, two: u64| one.saturating_add(two);
        Window {
            bounds: (self.bounds.0.min(other.bounds.0), self.bounds.1.max(other.bounds.1)),
            left_at: self.left_at.max(other.left_at),
            requests: sum(self.requests, other.requests),
            used: sum(self.used, other.used),
            from_others: self.from_others.plus(other.from_others),
            ..Window::default()
        }
    }
}

/// Use in the present period: the sum of its days.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Allowance {
    pub(super) bounds: WindowBounds,
    pub(super) used: Amount,
    pub(super) reserved: Amount,
}

impl Allowance {
    fn holds(&self, at: Unix) -> bool {
        self.bounds.0 <= at && at < self.bounds.1
    }
}

/// The counters of one key or one group.
#[derive(Clone, Debug, Default)]
pub(super) struct MeterAccount {
    pub(super) window: Window,
    /// Windows that were left, at most [`LEFT_MAX`]. They are used again if the clock goes back, and count in a window
    /// of another length that contains them.
    left: Box<[Window]>,
    pub(super) period: Allowance,
    pub(super) calendar: Period,
    /// The last known day since the epoch, and the use of the requests admitted on it.
    last_day: (u64, Amount),
    /// Days before it, in order.
    earlier_days: Box<[(u64, Amount)]>,
    pub(super) running: u32,
    /// Budget at the last update.
    pub(super) budget: u64,
    /// Number of reservations that are bounds, and their sum.
    pub(super) bounded: (u32, Amount),
    /// Last counts of a shared ledger; `None` without one.
    pub(super) shared: Option<Box<Known>>,
}

impl MeterAccount {
    /// Moves to the window `bounds` at `now`.
    ///
    /// A stored window continues with its counts, a new one begins empty. Each window that overlaps it is added as a
    /// whole, since its requests may have been admitted within the bounds. So use stays counted if the length of
    /// windows changes. A window before all stored ones takes over the counts of the present one, since the clock was
    /// set back.
    fn enter_window(&mut self, bounds: WindowBounds, now: Unix, held: Held<'_>) {
        let mut present = self.window;
        let was_there = present.bounds.1 > Unix(0);
        // If the clock was set back, the elapsed time is unknown.
        let last = if now < present.bounds.0 { present.bounds.1 } else { Unix(now.0.saturating_add(1)) };
        present.left_at = present.left_at.max(last.min(present.bounds.1));
        let known = || self.left.iter().chain([&present]).filter(|window| window.bounds.1 > Unix(0));
        let is_later = !was_there || known().any(|known| known.bounds.1 <= bounds.0);
        let has_jumped = known().any(|known| known.bounds.0 >= bounds.0);
        let found = self.left.iter().find(|left| left.bounds == bounds).copied();
        let mut next = found.unwrap_or(Window { bounds, ..Window::default() });
        let others = || known().filter(|other| other.bounds != bounds && next.overlaps(other));
        if has_jumped || !is_later || others().next().is_some() {
            let (own, counted) = (next.own(), others().map(Window::own).fold(WindowUse::default(), WindowUse::plus));
            let mut from_others = next.from_others.max(counted);
            if found.is_none() && !is_later {
                from_others = from_others.max(present.all());
                next.carried_from = present.bounds.0;
            }
            let all = own.plus(from_others);
            (next.requests, next.used, next.from_others) = (all.requests, all.tokens, from_others);
            // A window that is entered for the first time has no reservations. This is the usual case, unless the clock
            // jumps or the length of windows changes.
            next.reserved = reserved(held, |open| next.counts(open.admitted, open.window)).tokens;
        }
        self.window = next;
        self.leave(present, bounds);
    }

    /// Stores `window`, which was left for the one at `entered`.
    fn leave(&mut self, window: Window, entered: WindowBounds) {
        if window.bounds.1 == Unix(0) {
            return;
        }
        if self.left.len() < LEFT_MAX {
            let others = self.left.iter().copied().filter(|left| left.bounds != entered);
            self.left = others.chain([window]).collect();
            return;
        }
        let mut left = std::mem::take(&mut self.left).into_vec();
        left.retain(|left| left.bounds != entered);
        left.push(window);
        left.sort_unstable_by_key(|window| window.bounds);
        if left.len() > LEFT_MAX {
            // The two neighbours that are closest together become one, the earliest such pair.
            let blocks = left.windows(2).enumerate().filter_map(|(at, two)| Some((two[0].block_with(&two[1])?, at)));
            match blocks.min() {
                Some((_, at)) => {
                    let later = left.remove(at + 1);
                    left[at] = left[at].merged(&later);
                }
                None => drop(left.remove(0)),
            }
        }
        self.left = left.into();
    }

    /// Moves to the period of `calendar` that contains `now`.
    fn enter_period(&mut self, calendar: Period, now: Unix, held: Held<'_>) {
        let bounds = calendar.bounds(now);
        let inside = |at: Unix| bounds.0 <= at && at < bounds.1;
        let days = self
            .earlier_days
            .iter()
            .chain([&self.last_day])
            .filter(|(day, _)| inside(Unix(day.saturating_mul(DAY_MS))));
        let used = days.fold(Amount::default(), |sum, (_, used)| sum.plus(*used));
        let reserved = reserved(held, |open| inside(open.admitted));
        self.period = Allowance { bounds, used, reserved };
        self.calendar = calendar;
    }

    /// True if the present period does not contain `now`.
    #[inline]
    fn is_past_period(&self, calendar: Period, now: Unix) -> bool {
        let (start, end) = self.period.bounds;
        self.calendar != calendar || now < start || now >= end
    }

    /// Brings window and period to `now`. `held` visits the reservations that count here.
    #[inline(always)]
    pub(super) fn enter(&mut self, plan: &Plan, now: Unix, held: Held<'_>) {
        self.budget = plan.budget;
        if !is_within(self.window.bounds, now, plan.window) || self.is_past_period(plan.period, now) {
            self.move_on(plan, now, held);
        }
    }

    /// Moves to another window or period.
    #[cold]
    fn move_on(&mut self, plan: &Plan, now: Unix, held: Held<'_>) {
        let bounds = window(now, plan.window);
        if self.window.bounds != bounds {
            self.enter_window(bounds, now, held);
        }
        if self.is_past_period(plan.period, now) {
            self.enter_period(plan.period, now, held);
        }
    }

    /// Stores the counts of a shared ledger. Returns the period's money known before; `None` if nothing was known.
    pub(super) fn learn(&mut self, news: &SharedCounts, now: Unix) -> Option<u64> {
        let known = self.shared.as_ref().filter(|known| known.counts.period == news.period);
        let before = known.map(|_| self.period_known().nano);
        self.shared.get_or_insert_default().learn(news, now);
        before
    }

    /// Clears the use after the shared ledger was replaced by an empty one. Running requests continue to count.
    pub(super) fn reset_counts(&mut self) {
        (self.window.requests, self.window.used, self.window.from_others) = (0, 0, WindowUse::default());
        (self.left, self.last_day, self.earlier_days, self.shared) = Default::default();
        self.period.used = Amount::default();
    }

    /// Counts one more request in the present window and period. `bounded`: its reservation is a bound.
    #[inline]
    pub(super) fn begin(&mut self, estimate: Amount, bounded: bool) {
        self.window.requests += 1;
        self.running += 1;
        self.window.reserved = self.window.reserved.saturating_add(estimate.tokens);
        self.period.reserved = self.period.reserved.plus(estimate);
        if bounded {
            self.bounded = (self.bounded.0 + 1, self.bounded.1.plus(estimate));
        }
    }

    /// Replaces the bound of `open` by `exact`, which is less.
    pub(super) fn count(&mut self, open: &Open, exact: Amount) {
        self.end_bounded(open.reserved);
        let excess = open.reserved.minus(exact);
        if self.window.counts(open.admitted, open.window) {
            self.window.reserved = self.window.reserved.saturating_sub(excess.tokens);
        }
        if self.period.holds(open.admitted) {
            self.period.reserved = self.period.reserved.minus(excess);
        }
    }

    fn end_bounded(&mut self, most: Amount) {
        self.bounded = (self.bounded.0.saturating_sub(1), self.bounded.1.minus(most));
    }

    /// Counts one more request that another process admitted, in the window and period of its admission.
    pub(super) fn adopt(&mut self, open: &Open) {
        self.running += 1;
        if self.window.counts(open.admitted, open.window) {
            self.window.requests += 1;
            self.window.reserved = self.window.reserved.saturating_add(open.reserved.tokens);
        }
        if self.period.holds(open.admitted) {
            self.period.reserved = self.period.reserved.plus(open.reserved);
        }
    }

    /// Ends a request with `used`. It counts in the window and period of its admission, here in `window`.
    #[inline]
    pub(super) fn end(&mut self, open: &Open, window: WindowBounds, used: Amount) {
        self.running = self.running.saturating_sub(1);
        if open.bounded {
            self.end_bounded(open.reserved);
        }
        match self.window.bounds == window {
            true => self.window.end(open, used.tokens),
            false => self.end_elsewhere(open, window, used.tokens),
        }
        if self.period.holds(open.admitted) {
            self.period.reserved = self.period.reserved.minus(open.reserved);
        }
        self.add_day(open.admitted, used);
        if let Some(shared) = &mut self.shared {
            shared.add(open, window, used);
        }
    }

    /// Counts its tokens if the window is not the present one.
    #[cold]
    fn end_elsewhere(&mut self, open: &Open, window: WindowBounds, tokens: u64) {
        // The window in which it was counted can be entered again. If a group's windows had another length then,
        // `window` does not identify it. But that window was left after the admission, unless the clock was set back.
        let place = |is_it: &dyn Fn(&Window) -> bool| self.left.iter().position(is_it);
        let was_there = |left: &Window| left.holds(open.admitted) && open.admitted < left.left_at;
        let is_present = self.window.counts(open.admitted, window);
        let own = place(&|left| left.bounds == window && was_there(left))
            .or_else(|| place(&was_there))
            .or_else(|| if is_present { None } else { place(&|left| left.contains(window)) });
        let own = own.and_then(|at| self.left.get_mut(at));
        if is_present {
            let present = &mut self.window;
            present.end(open, tokens);
            // Tokens that are counted in no other window belong to the present one.
            let elsewhere = &mut present.from_others.tokens;
            *elsewhere = elsewhere.saturating_add(if own.is_some() { tokens } else { 0 });
        }
        if let Some(left) = own {
            left.used = left.used.saturating_add(tokens);
        }
    }

    /// Adds use on the day of `at`, and in the present period if it contains that day.
    #[inline]
    pub(super) fn add_day(&mut self, at: Unix, used: Amount) {
        let day = at.0 / DAY_MS;
        match &mut self.last_day {
            (last, sum) if *last == day => *sum = sum.plus(used),
            _ => self.add_other_day(day, used),
        }
        if self.period.holds(at) {
            self.period.used = self.period.used.plus(used);
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
            let present = self.period.bounds.0.0 / DAY_MS;
            days.retain(|(day, _)| day.abs_diff(present) <= DAYS_KEPT);
        }
        self.last_day = days.pop().unwrap_or_default();
        self.earlier_days = days.into();
    }

    /// Requests and tokens of the present window: the larger of this process's and the shared ledger's counts.
    #[inline]
    pub(super) fn window_known(&self) -> (u64, u64) {
        let shared = self.shared.as_ref().map(|known| &known.counts);
        let shared = shared.filter(|shared| shared.window == self.window.bounds);
        let (requests, used) = shared.map_or((0, 0), |shared| (shared.requests, shared.window_used));
        (self.window.requests.max(requests), self.window.used.max(used))
    }

    /// Use of the period, in the same way.
    #[inline]
    pub(super) fn period_known(&self) -> Amount {
        let shared = self.shared.as_ref().map(|known| &known.counts);
        let shared = shared.filter(|shared| shared.period == self.period.bounds);
        shared.map_or(self.period.used, |shared| self.period.used.max(shared.period_used))
    }

    /// Tokens left: the smaller of the period's and the window's remainder, by settled use.
    #[inline]
    pub(super) fn tokens_left(&self, plan: &Plan) -> u64 {
        tokens_left(plan, self.period_known().tokens, self.window_known().1)
    }
}

/// Tokens left under `plan` after this use of a period and of a window.
#[inline]
pub(super) fn tokens_left(plan: &Plan, of_period: u64, of_window: u64) -> u64 {
    let left = |total: u64, used: u64| if total == 0 { shown(0) } else { shown(total).saturating_sub(used) };
    left(plan.tokens, of_period).min(left(plan.tokens_per_window, of_window))
}

/// Sum of the reservations that `held` visits and `inside` selects.
fn reserved(held: Held<'_>, inside: impl Fn(&Open) -> bool) -> Amount {
    let mut sum = Amount::default();
    held(&mut |open| {
        if inside(open) {
            sum = sum.plus(open.reserved);
        }
    });
    sum
}
