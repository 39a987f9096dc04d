//! Windows and periods of one span, when the clock advances, stops or jumps; and the amounts and reservations that they
//! count.

use super::super::keys::KeyIx;
use super::super::plan::caps::{LimitSpan, Resource};
use super::super::plan::{PATH_SEPARATOR, TARGET_MARK};
use super::super::window::DAY_MS;
use crate::base::limits;
use crate::base::time::Unix;
use std::sync::Arc;

/// First moment, and first moment after.
pub(super) type WindowBounds = (Unix, Unix);

/// Windows that are stored besides the present one. If there are more, windows in the same block of time are merged.
const LEFT_MAX: usize = 12;
/// Lengths of such blocks in milliseconds. Windows of other lengths begin and end with blocks.
const BLOCKS_MS: [u64; 4] = [60_000, 600_000, 3_600_000, DAY_MS];
/// A path of groups, from the root of a tree to the group that a key is in.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct PathIx(pub(super) u32);

impl PathIx {
    /// Path of a key in no group.
    pub const NONE: PathIx = PathIx(0);

    /// True if there is a group.
    #[inline]
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
    /// Remainder without a limit.
    pub const MAX: Amount = Amount { tokens: u64::MAX, nano: u64::MAX };

    /// Sum of both, saturating.
    #[inline]
    pub fn plus(self, more: Amount) -> Amount {
        Amount { tokens: self.tokens.saturating_add(more.tokens), nano: self.nano.saturating_add(more.nano) }
    }

    /// Difference of each, at least 0.
    #[inline]
    pub fn minus(self, less: Amount) -> Amount {
        Amount { tokens: self.tokens.saturating_sub(less.tokens), nano: self.nano.saturating_sub(less.nano) }
    }

    /// The smaller of each.
    #[inline]
    pub fn min(self, other: Amount) -> Amount {
        Amount { tokens: self.tokens.min(other.tokens), nano: self.nano.min(other.nano) }
    }

    /// The larger of each.
    #[inline]
    pub fn max(self, other: Amount) -> Amount {
        Amount { tokens: self.tokens.max(other.tokens), nano: self.nano.max(other.nano) }
    }
}

/// Requests that the ledger knows of at start.
#[derive(Copy, Clone, Debug)]
pub struct Restored<'a> {
    /// True for all requests of the UTC day that begins `at`; false for one that was admitted `at`.
    pub is_day: bool,
    /// See `is_day`.
    pub at: Unix,
    /// Their number.
    pub requests: u64,
    /// Their use.
    pub used: Amount,
    /// Their model.
    pub model: &'a str,
}

/// Data of an open reservation, stored in the meter, so that it survives if a bug ends its exchange.
#[derive(Clone, Debug)]
pub struct Open {
    pub(super) key: KeyIx,
    /// Groups that it also counts in.
    pub(super) path: PathIx,
    /// Windows and periods follow from it.
    pub(super) admitted: Unix,
    pub(super) reserved: Amount,
    pub(super) shared: bool,
    /// True if `reserved` is a bound: the estimate of the request has not been counted.
    pub(super) bounded: bool,
    /// Model of the request, for the entries of `limits` that count only some; `None` if it is unknown.
    pub(super) model: Option<Arc<str>>,
}

/// Visits the reservations that count in one account.
pub(super) type Held<'a> = &'a dyn Fn(&mut dyn FnMut(&Open));

/// Reservation of a running request in a shared ledger. The row of the request returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// Tokens and money reserved.
    pub reserved: Amount,
    /// False if the shared ledger knows nothing of it: there is none, or it could not be reached.
    pub shared: bool,
    /// Groups that it also counts in.
    pub path: PathIx,
    /// Counters that it counts in: the spans of the key, then those of each group of the path, nearest first.
    pub parts: Arc<[LeasePart]>,
}

impl Lease {
    /// True if it counts in the accounts of targets, which admit only what fits as a whole.
    #[inline]
    pub fn is_of_targets(&self) -> bool {
        self.parts.first().is_some_and(|part| part.account.starts_with(TARGET_MARK))
    }
}

/// A span of a key or a group, and the window of it that a request counts in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeasePart {
    /// Name of the span: [`LimitSpan::account`].
    pub account: Arc<str>,
    /// Window or period of the admission.
    pub bounds: (Unix, Unix),
}

impl LeasePart {
    /// Name of the group; `""` for the key.
    #[inline]
    pub fn group(&self) -> &str {
        self.account.split(PATH_SEPARATOR).next().unwrap_or_default()
    }

    /// True for the first span of a key or a group.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.account.split_once(PATH_SEPARATOR).is_some_and(|(_, span)| span == LimitSpan::PERIOD)
    }
}

/// Use in one span by all hosts, from a shared ledger.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SharedCounts {
    /// Window or period of the counts.
    pub bounds: (Unix, Unix),
    /// Requests in it.
    pub requests: u64,
    /// Amount settled in it.
    pub used: Amount,
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
    #[inline]
    pub(super) fn add(&mut self, open: &Open, used: Amount) {
        let counts = &mut self.counts;
        if counts.bounds.0 <= open.admitted && open.admitted < counts.bounds.1 {
            counts.used = counts.used.plus(used);
        }
    }

    /// True if the last report has expired.
    #[inline]
    pub(super) fn is_old(&self, now: Unix) -> bool {
        now.0.abs_diff(self.reported_at.0) >= limits::COUNTS_FRESH.as_millis() as u64
    }

    /// Stores a report. It is too low while requests admitted here are not reported. If it stays lower, it is right: a
    /// counter was repaired, or requests do not count after all.
    #[inline]
    pub(super) fn learn(&mut self, news: &SharedCounts, now: Unix) {
        let (mut next, known) = (*news, &self.counts);
        if known.bounds == news.bounds {
            (next.requests, next.used) = (news.requests.max(known.requests), news.used.max(known.used));
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

/// Counts of an account that decide.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// Use and reservations, as this process knows them.
    Own,
    /// Like `Own`, without reservations that are bounds.
    Exact,
    /// Settled use of all processes.
    Settled,
}

/// Counts of one window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) bounds: WindowBounds,
    /// Moment at which it was entered last: requests that were admitted before may be counted in another window.
    entered: Unix,
    /// Moment at which it was left last, or its end if that was earlier. All requests that count here were admitted
    /// before.
    left_at: Unix,
    /// Start of a window whose counts were carried over into this one; 0 if there is none.
    carried_from: Unix,
    pub(super) requests: u64,
    pub(super) used: Amount,
    pub(super) reserved: Amount,
    /// Part of `requests` and `used` that was counted in other windows.
    from_others: WindowUse,
}

/// Use that is counted in a window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct WindowUse {
    pub(super) requests: u64,
    pub(super) used: Amount,
}

impl WindowUse {
    #[inline]
    fn plus(self, other: WindowUse) -> WindowUse {
        WindowUse { requests: self.requests.saturating_add(other.requests), used: self.used.plus(other.used) }
    }

    #[inline]
    fn max(self, other: WindowUse) -> WindowUse {
        WindowUse { requests: self.requests.max(other.requests), used: self.used.max(other.used) }
    }
}

impl Window {
    /// True if a request that was admitted at `at` in the window `of` counts here.
    #[inline]
    pub(super) fn counts(&self, at: Unix, of: WindowBounds) -> bool {
        self.holds(at) || self.bounds == of || (self.carried_from > Unix(0) && self.carried_from == of.0)
    }

    #[inline]
    pub(super) fn holds(&self, at: Unix) -> bool {
        self.bounds.0 <= at && at < self.bounds.1
    }

    #[inline]
    fn contains(&self, other: WindowBounds) -> bool {
        self.bounds.0 <= other.0 && other.1 <= self.bounds.1
    }

    /// True if requests of `other`, which was left, may have been admitted within the bounds of this one.
    #[inline]
    fn overlaps(&self, other: &Window) -> bool {
        self.bounds.0 < other.left_at && other.bounds.0 < self.bounds.1
    }

    /// Use that was counted only in this window.
    #[inline]
    pub(super) fn own(&self) -> WindowUse {
        let WindowUse { requests, used } = self.from_others;
        WindowUse { requests: self.requests - requests, used: self.used.minus(used) }
    }

    /// Use that was counted in this window or others.
    #[inline]
    pub(super) fn all(&self) -> WindowUse {
        WindowUse { requests: self.requests, used: self.used }
    }

    /// Ends a request that counts here.
    #[inline]
    pub(super) fn end(&mut self, open: &Open, used: Amount) {
        self.reserved = self.reserved.minus(open.reserved);
        self.used = self.used.plus(used);
    }

    /// Restores requests at start. They were admitted at `admitted`, in this window or another, and used `used`.
    #[inline]
    pub(super) fn restore(&mut self, admitted: Unix, requests: u64, used: Amount) {
        if self.holds(admitted) {
            self.requests = self.requests.saturating_add(requests);
            self.used = self.used.plus(used);
        }
    }

    /// The length of the shortest block that contains this and `other`; `None` if there is none.
    #[inline]
    fn block_with(&self, other: &Window) -> Option<u64> {
        let (start, end) = (self.bounds.0.min(other.bounds.0), self.bounds.1.max(other.bounds.1));
        BLOCKS_MS.into_iter().find(|block| start.0 / block == end.0.saturating_sub(1) / block)
    }

    /// Window that replaces this one and `other`.
    #[inline]
    fn merged(&self, other: &Window) -> Window {
        let sum = |one: u64, two: u64| one.saturating_add(two);
        Window {
            bounds: (self.bounds.0.min(other.bounds.0), self.bounds.1.max(other.bounds.1)),
            left_at: self.left_at.max(other.left_at),
            requests: sum(self.requests, other.requests),
            used: self.used.plus(other.used),
            from_others: self.from_others.plus(other.from_others),
            ..Window::default()
        }
    }
}

/// The windows of one span.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    pub(super) present: Window,
    /// Windows that were left, at most [`LEFT_MAX`]. They are used again if the clock goes back, and count in a window
    /// of another length that contains them.
    left: Box<[Window]>,
}

/// Counts of one span.
#[derive(Clone, Debug, Default)]
pub(super) struct SpanCount {
    pub(super) windows: Windows,
    /// Last counts of a shared ledger; `None` without one.
    pub(super) shared: Option<Box<Known>>,
    /// The largest share of the budget in percent that was reported in the present window; 0: none. `None`: it is not
    /// known what was reported.
    pub(super) told: Option<u8>,
}

impl Windows {
    /// Moves to the window `bounds` at `now`.
    ///
    /// A stored window continues with its counts, a new one begins empty. Each window that overlaps it is added as a
    /// whole, since its requests may have been admitted within the bounds. So use stays counted if the length of
    /// windows changes. A window before all stored ones takes over the counts of the present one, since the clock was
    /// set back. `days`: sum of the UTC days of the window, if it consists of such; that is its use then.
    #[inline]
    pub(super) fn enter(
        &mut self,
        bounds: WindowBounds,
        now: Unix,
        span: &LimitSpan,
        days: Option<Amount>,
        held: Held<'_>,
    ) {
        let mut present = self.present;
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
            (next.requests, next.used, next.from_others) = (all.requests, all.used, from_others);
            // A window that is entered for the first time has no reservations. This is the usual case, unless the clock
            // jumps or the length of windows changes.
            next.reserved = reserved(span, held, |open| next.counts(open.admitted, span.per.bounds(open.admitted)));
        }
        if let Some(used) = days {
            (next.used, next.from_others.used, next.carried_from) = (used, Amount::default(), Unix(0));
            next.reserved = reserved(span, held, |open| next.holds(open.admitted));
        }
        next.entered = now;
        self.present = next;
        self.leave(present, bounds);
    }

    /// Stores `window`, which was left for the one at `entered`.
    #[inline]
    pub(super) fn leave(&mut self, window: Window, entered: WindowBounds) {
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

    /// Windows of a span that is new, with what is known of its present one.
    #[inline]
    pub(super) fn begun(bounds: WindowBounds, now: Unix, known: WindowUse, reserved: Amount) -> Windows {
        let WindowUse { requests, used } = known;
        let present = Window { bounds, entered: now, requests, used, reserved, ..Window::default() };
        Windows { present, left: Box::default() }
    }

    /// Use of all known windows that overlap `bounds`, each as a whole.
    #[inline]
    pub(super) fn overlapping(&self, bounds: WindowBounds) -> WindowUse {
        let wanted = Window { bounds, ..Window::default() };
        let present = Window { left_at: self.present.bounds.1, ..self.present };
        let known = self.left.iter().chain([&present]).filter(|window| wanted.overlaps(window));
        known.map(Window::own).fold(WindowUse::default(), WindowUse::plus)
    }

    /// Counts one more request in the present window.
    #[inline]
    pub(super) fn begin(&mut self, estimate: Amount) {
        self.present.requests += 1;
        self.present.reserved = self.present.reserved.plus(estimate);
    }

    /// `open` needs so much less than its bound.
    #[inline]
    pub(super) fn count(&mut self, open: &Open, span: &LimitSpan, excess: Amount) {
        if self.present.counts(open.admitted, span.per.bounds(open.admitted)) {
            self.present.reserved = self.present.reserved.minus(excess);
        }
    }

    /// `open` reserves so much more.
    #[inline]
    pub(super) fn extend(&mut self, open: &Open, span: &LimitSpan, more: Amount) {
        if self.present.counts(open.admitted, span.per.bounds(open.admitted)) {
            self.present.reserved = self.present.reserved.plus(more);
        }
    }

    /// Counts a request that another process admitted.
    #[inline]
    pub(super) fn adopt(&mut self, open: &Open, span: &LimitSpan) {
        if self.present.counts(open.admitted, span.per.bounds(open.admitted)) {
            self.begin(open.reserved);
        }
    }

    /// Ends a request that does not count after all. In a window that has been left it stays counted as a request.
    #[inline]
    pub(super) fn cancel(&mut self, open: &Open, span: &LimitSpan) {
        let present = &mut self.present;
        if present.entered <= open.admitted && open.admitted < present.bounds.1 {
            present.requests = present.requests.saturating_sub(1).max(present.from_others.requests);
        }
        self.end(open, span, Amount::default());
    }

    /// Ends a request with `used`.
    #[inline]
    pub(super) fn end(&mut self, open: &Open, span: &LimitSpan, used: Amount) {
        match self.present.entered <= open.admitted && open.admitted < self.present.bounds.1 {
            true => self.present.end(open, used),
            false => self.end_elsewhere(open, span.per.bounds(open.admitted), used),
        }
    }

    /// Counts its use if the window is not the present one.
    #[cold]
    fn end_elsewhere(&mut self, open: &Open, window: WindowBounds, used: Amount) {
        // The window in which it was counted can be entered again. If windows had another length then, `window` does
        // not identify it. But that window was left after the admission, unless the clock was set back.
        let place = |is_it: &dyn Fn(&Window) -> bool| self.left.iter().position(is_it);
        let was_there = |left: &Window| left.holds(open.admitted) && open.admitted < left.left_at;
        let is_present = self.present.counts(open.admitted, window);
        let own = place(&|left| left.bounds == window && was_there(left))
            .or_else(|| place(&was_there))
            .or_else(|| if is_present { None } else { place(&|left| left.contains(window)) });
        let own = own.and_then(|at| self.left.get_mut(at));
        if is_present {
            let present = &mut self.present;
            present.end(open, used);
            // Use that is counted in no other window belongs to the present one.
            if own.is_some() {
                present.from_others.used = present.from_others.used.plus(used);
            }
        }
        if let Some(left) = own {
            left.used = left.used.plus(used);
        }
    }

    /// Clears the use. Running requests continue to count.
    #[inline]
    pub(super) fn reset(&mut self) {
        (self.present.requests, self.present.used) = (0, Amount::default());
        (self.present.from_others, self.left) = Default::default();
    }
}

impl SpanCount {
    /// Settled use: the larger of this process's and the shared ledger's counts.
    #[inline]
    pub(super) fn known(&self) -> WindowUse {
        let Window { requests, used, bounds, .. } = self.windows.present;
        let own = WindowUse { requests, used };
        let shared = self.shared.as_ref().map(|known| &known.counts).filter(|shared| shared.bounds == bounds);
        shared.map_or(own, |shared| own.max(WindowUse { requests: shared.requests, used: shared.used }))
    }

    /// Use and reservations of a resource, and only its settled use. `bounded`: sum of the reservations that are
    /// bounds.
    #[inline]
    pub(super) fn of(&self, resource: Resource, counted: Counted, bounded: Amount) -> (u64, u64) {
        if counted == Counted::Settled {
            let settled = if self.shared.is_some() { self.known() } else { self.windows.present.all() };
            return (settled.of(resource), settled.of(resource));
        }
        let Window { requests, used, reserved, .. } = &self.windows.present;
        let (used, reserved, bounded) = match resource {
            Resource::Tokens => (used.tokens, reserved.tokens, bounded.tokens),
            Resource::Budget => (used.nano, reserved.nano, bounded.nano),
            Resource::Requests | Resource::Running => return (*requests, *requests),
        };
        let reserved = if counted == Counted::Exact { reserved.saturating_sub(bounded) } else { reserved };
        (used.saturating_add(reserved), used)
    }
}

impl WindowUse {
    /// The part that a resource counts.
    #[inline]
    pub(super) fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Tokens => self.used.tokens,
            Resource::Budget => self.used.nano,
            Resource::Requests | Resource::Running => self.requests,
        }
    }
}

/// Sum of the reservations that `held` visits, `span` counts and `inside` selects.
#[inline]
pub(super) fn reserved(span: &LimitSpan, held: Held<'_>, inside: impl Fn(&Open) -> bool) -> Amount {
    let mut sum = Amount::default();
    held(&mut |open| {
        if span.models.count(open.model.as_deref()) && inside(open) {
            sum = sum.plus(open.reserved);
        }
    });
    sum
}
