//! The counters of one key, and what becomes of them when time moves on, stands still or jumps. Time here is the wall
//! clock's, which an operator or NTP may set: no jump may hand an allowance out twice, nor lock a key out for longer
//! than the window that the clock says it is in.

use super::super::keys::KeyIx;
use super::super::plan::{Plan, shown};
use super::super::window::{DAY_MS, Period};
use crate::base::order;
use crate::base::time::Unix;

/// First moment, and first moment after.
pub(super) type Bounds = (Unix, Unix);

/// Windows that are remembered besides the present one; beyond it those that lie in the same block of time are merged.
const LEFT_MAX: usize = 12;
/// Lengths of such blocks in milliseconds: what windows of other lengths begin and end with.
const BLOCKS_MS: [u64; 4] = [60_000, 600_000, 3_600_000, DAY_MS];
/// UTC days whose tokens are remembered: two of the longest periods, so that a clock set back into the last one finds
/// what was used there.
pub const DAYS_KEPT: u64 = 70;

/// What an open hold stands for; lives in the meter's own table, so that an exchange lost to a bug loses none.
#[derive(Copy, Clone, Debug)]
pub struct Open {
    pub(super) key: KeyIx,
    pub(super) window: Bounds,
    pub(super) period: Bounds,
    pub(super) admitted: Unix,
    pub(super) reserved: u64,
    pub(super) shared: bool,
    /// `reserved` is a bound: what the request may really use has not been counted.
    pub(super) bounded: bool,
}

/// What a shared ledger says of a key: everything that all hosts have used.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SharedCounts {
    /// The window it speaks of.
    pub window: (Unix, Unix),
    /// Requests in it.
    pub requests: u64,
    /// Tokens settled in it.
    pub window_used: u64,
    /// The period it speaks of.
    pub period: (Unix, Unix),
    /// Tokens settled in it.
    pub period_used: u64,
}

impl SharedCounts {
    /// What this process has settled since.
    fn add(&mut self, open: &Open, tokens: u64) {
        if self.window == open.window {
            self.window_used = self.window_used.saturating_add(tokens);
        }
        if self.period == open.period {
            self.period_used = self.period_used.saturating_add(tokens);
        }
    }
}

/// What was counted within one window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) bounds: Bounds,
    /// A window whose counts were carried over into this one; without an end, where there is none.
    also: Bounds,
    pub(super) requests: u64,
    pub(super) used: u64,
    pub(super) reserved: u64,
    /// How much of `requests` and `used` was counted in other windows.
    others: (u64, u64),
}

impl Window {
    fn counts(&self, open: &Open) -> bool {
        self.contains(open.window) || (self.also.1 > Unix(0) && self.also == open.window)
    }

    fn contains(&self, other: Bounds) -> bool {
        self.bounds.0 <= other.0 && other.1 <= self.bounds.1
    }

    /// The length of the shortest block that this and `other` lie in; `None` if there is none.
    fn block_with(&self, other: &Window) -> Option<u64> {
        let (start, end) = (self.bounds.0.min(other.bounds.0), self.bounds.1.max(other.bounds.1));
        BLOCKS_MS.into_iter().find(|block| start.0 / block == end.0.saturating_sub(1) / block)
    }

    /// One that stands for this and `other`.
    fn merged(&self, other: &Window) -> Window {
        let sum = |one: u64, two: u64| one.saturating_add(two);
        Window {
            bounds: (self.bounds.0.min(other.bounds.0), self.bounds.1.max(other.bounds.1)),
            requests: sum(self.requests, other.requests),
            used: sum(self.used, other.used),
            others: (sum(self.others.0, other.others.0), sum(self.others.1, other.others.1)),
            ..Window::default()
        }
    }
}

/// What was used in the present period: the sum of its days.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Allowance {
    pub(super) bounds: Bounds,
    pub(super) used: u64,
    pub(super) reserved: u64,
}

/// The counters of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) window: Window,
    /// Windows that were left, at most [`LEFT_MAX`]: a clock that goes back and forth finds them again, and a window of
    /// another length counts those that lie in it.
    left: Box<[Window]>,
    pub(super) period: Allowance,
    calendar: Period,
    /// Days since the epoch with the tokens of requests admitted on them, in order.
    days: Box<[(u64, u64)]>,
    pub(super) running: u32,
    /// Holds whose reservation is a bound, and the tokens of all of them.
    pub(super) bounded: (u32, u64),
    /// What a shared ledger said last; nothing where there is none.
    pub(super) shared: Option<Box<SharedCounts>>,
}

impl Account {
    /// Moves to the window `bounds`. `open` are the key's holds.
    ///
    /// A window that is remembered goes on where it stood; a later one begins anew. One before all that are
    /// remembered, or across them, takes over what the present one has counted: the clock was set back, or the length
    /// of windows was changed, and what was spent stays spent until this window ends. In any case all counts that was
    /// counted within its bounds.
    pub(super) fn enter_window<'a>(&mut self, bounds: Bounds, open: impl Iterator<Item = &'a Open>) {
        let present = self.window;
        let known = || self.left.iter().chain([&present]).map(|window| window.bounds).filter(|(_, end)| *end > Unix(0));
        let is_later = known().any(|(_, end)| end <= bounds.0) || known().next().is_none();
        let has_jumped = known().any(|(start, _)| start >= bounds.0);
        let found = self.left.iter().find(|left| left.bounds == bounds).copied();
        let mut next = found.unwrap_or(Window { bounds, ..Window::default() });
        if has_jumped || !is_later {
            let own = (next.requests - next.others.0, next.used - next.others.1);
            let inside = self.left.iter().chain([&present]);
            let inside = inside.filter(|other| other.bounds != bounds && next.contains(other.bounds));
            let (mut requests, mut used) = next.others;
            let counted = inside.fold((0u64, 0u64), |(requests, used), other| {
                let (own_requests, own_used) = (other.requests - other.others.0, other.used - other.others.1);
                (requests.saturating_add(own_requests), used.saturating_add(own_used))
            });
            (requests, used) = (requests.max(counted.0), used.max(counted.1));
            if found.is_none() && !is_later {
                (requests, used) = (requests.max(present.requests), used.max(present.used));
                next.also = present.bounds;
            }
            next.others = (requests, used);
            (next.requests, next.used) = (own.0.saturating_add(requests), own.1.saturating_add(used));
            // In a window that is entered for the first time, as all are unless the clock jumps, nothing is reserved.
            next.reserved = sum(open.filter(|open| next.counts(open)).map(|open| open.reserved));
        }
        self.window = next;
        self.leave(present, bounds);
    }

    /// Remembers `window`, which was left for the one at `entered`.
    fn leave(&mut self, window: Window, entered: Bounds) {
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
        order::by_key(&mut left, |window| (window.bounds.0.0, window.bounds.1.0.into()));
        if left.len() > LEFT_MAX {
            // The two neighbours that lie closest together, the earliest of such, become one.
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

    /// Moves to the period of `calendar` that `now` lies in. `open` are the key's holds.
    pub(super) fn enter_period<'a>(&mut self, calendar: Period, now: Unix, open: impl Iterator<Item = &'a Open>) {
        let bounds = calendar.bounds(now);
        let inside = |at: Unix| bounds.0 <= at && at < bounds.1;
        let days = self.days.iter().filter(|(day, _)| inside(Unix(day.saturating_mul(DAY_MS))));
        let used = sum(days.map(|(_, tokens)| *tokens));
        let reserved = sum(open.filter(|open| inside(open.admitted)).map(|open| open.reserved));
        self.period = Allowance { bounds, used, reserved };
        self.calendar = calendar;
    }

    /// Whether the present period is not the one that `now` lies in.
    pub(super) fn is_past_period(&self, calendar: Period, now: Unix) -> bool {
        let (start, end) = self.period.bounds;
        self.calendar != calendar || now < start || now >= end
    }

    /// One request more in the present window and period.
    pub(super) fn begin(&mut self, estimate: u64) {
        self.window.requests += 1;
        self.running += 1;
        self.window.reserved = self.window.reserved.saturating_add(estimate);
        self.period.reserved = self.period.reserved.saturating_add(estimate);
    }

    /// A hold whose reservation is a bound has come.
    pub(super) fn begin_bounded(&mut self, most: u64) {
        self.bounded = (self.bounded.0 + 1, self.bounded.1.saturating_add(most));
    }

    /// The reservation of `open` is a bound no more: it is `exact`, which is less.
    pub(super) fn count(&mut self, open: &Open, exact: u64) {
        self.end_bounded(open.reserved);
        let excess = open.reserved.saturating_sub(exact);
        if self.window.counts(open) {
            self.window.reserved = self.window.reserved.saturating_sub(excess);
        }
        if self.period.bounds.0 <= open.admitted && open.admitted < self.period.bounds.1 {
            self.period.reserved = self.period.reserved.saturating_sub(excess);
        }
    }

    fn end_bounded(&mut self, most: u64) {
        self.bounded = (self.bounded.0.saturating_sub(1), self.bounded.1.saturating_sub(most));
    }

    /// One request more that another process admitted, wherever its admission counts.
    pub(super) fn adopt(&mut self, open: &Open) {
        self.running += 1;
        if self.window.counts(open) {
            self.window.requests += 1;
            self.window.reserved = self.window.reserved.saturating_add(open.reserved);
        }
        if self.period.bounds.0 <= open.admitted && open.admitted < self.period.bounds.1 {
            self.period.reserved = self.period.reserved.saturating_add(open.reserved);
        }
    }

    /// A request has ended with `tokens`: they count wherever its admission does.
    pub(super) fn end(&mut self, open: &Open, tokens: u64) {
        self.running = self.running.saturating_sub(1);
        if open.bounded {
            self.end_bounded(open.reserved);
        }
        let window = &mut self.window;
        if window.counts(open) {
            window.reserved = window.reserved.saturating_sub(open.reserved);
            window.used = window.used.saturating_add(tokens);
        }
        if window.bounds != open.window {
            if window.counts(open) {
                window.others.1 = window.others.1.saturating_add(tokens);
            }
            // Where it was counted, for whoever goes back there.
            let own = self.left.iter().position(|left| left.bounds == open.window);
            let own = own.or_else(|| self.left.iter().position(|left| left.contains(open.window)));
            if let Some(left) = own.and_then(|at| self.left.get_mut(at)) {
                left.used = left.used.saturating_add(tokens);
            }
        }
        if self.period.bounds.0 <= open.admitted && open.admitted < self.period.bounds.1 {
            self.period.reserved = self.period.reserved.saturating_sub(open.reserved);
        }
        self.add_day(open.admitted, tokens);
        if let Some(shared) = &mut self.shared {
            shared.add(open, tokens);
        }
    }

    /// Counts tokens of the day that `at` lies on, and in the present period if that holds it.
    pub(super) fn add_day(&mut self, at: Unix, tokens: u64) {
        let day = at.0 / DAY_MS;
        match self.days.binary_search_by_key(&day, |(day, _)| *day) {
            Ok(place) => self.days[place].1 = self.days[place].1.saturating_add(tokens),
            Err(place) => {
                // One a day, and for many keys one in all.
                let mut days = std::mem::take(&mut self.days).into_vec();
                days.reserve_exact(1);
                days.insert(place, (day, tokens));
                self.days = days.into();
            }
        }
        // A day far ahead, from a clock gone wrong, must not push out those around the present one.
        if self.days.len() as u64 > 2 * DAYS_KEPT {
            let present = self.period.bounds.0.0 / DAY_MS;
            let kept = self.days.iter().filter(|(day, _)| day.abs_diff(present) <= DAYS_KEPT);
            self.days = kept.copied().collect();
        }
        if self.period.bounds.0 <= at && at < self.period.bounds.1 {
            self.period.used = self.period.used.saturating_add(tokens);
        }
    }

    /// The larger of what this process has counted and what the shared ledger says of the present window: requests
    /// and tokens.
    pub(super) fn window_known(&self) -> (u64, u64) {
        let shared = self.shared.as_ref().filter(|shared| shared.window == self.window.bounds);
        let (requests, used) = shared.map_or((0, 0), |shared| (shared.requests, shared.window_used));
        (self.window.requests.max(requests), self.window.used.max(used))
    }

    /// The same for tokens of the period.
    pub(super) fn period_known(&self) -> u64 {
        let shared = self.shared.as_ref().filter(|shared| shared.period == self.period.bounds);
        self.period.used.max(shared.map_or(0, |shared| shared.period_used))
    }

    /// Tokens left: the smaller of the period's and the window's remainder, by what is settled.
    pub(super) fn tokens_left(&self, plan: &Plan) -> u64 {
        let left = |total: u64, used: u64| if total == 0 { shown(0) } else { shown(total).saturating_sub(used) };
        left(plan.tokens, self.period_known()).min(left(plan.tokens_per_window, self.window_known().1))
    }
}

fn sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(0, u64::saturating_add)
}
