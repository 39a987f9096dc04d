//! Deadlines and bounds towards upstreams: `[upstream]`, set again in a provider, the timeouts in a model too. The
//! catalog holds them for every target, `config` reads and prints them, `gateway` keeps to them.

use super::settings::kinds::{Bytes, Time, Whole};
use super::settings::reader::{Reader, Section};
use super::settings::units::size_text;
use super::settings::{Setting, Settings, section};
use std::ops::RangeInclusive;
use std::time::Duration;

/// No deadline is shorter or longer than this.
pub const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);
/// Bytes of an answer, or of a part of one.
const ANSWERS: RangeInclusive<u64> = 1 << 10..=1 << 30;

section! {
    /// Deadlines and bounds of one provider, or of one model at one provider.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub struct UpstreamLimits {
        /// Time for DNS, TCP and TLS of one attempt, over all addresses tried.
        pub connect_timeout: Duration = Duration::from_secs(5), Time(TIMEOUTS), Live;
        /// Time until the first event of a stream. When it is over, Tollgate tries the next target. If no target is
        /// left, the client gets 504, or an error event if the head of the stream has been sent (`heartbeat_after`).
        pub first_byte_timeout: Duration = Duration::from_secs(300), Time(TIMEOUTS), Live;
        /// Time between two data events of a stream. Comments and pings do not count.
        pub idle_timeout: Duration = Duration::from_secs(600), Time(TIMEOUTS), Live;
        /// Time of all attempts together: for a response that is not streamed, until its end; for a stream, until its
        /// first event. When it is over, the client gets 504, and Tollgate tries no other target. If a stream fails
        /// after events without content, the time begins again with the next target. The time of a form that is still
        /// arriving begins when it takes a slot; if the client has not sent all of the form at its end, it gets 408.
        pub request_timeout: Duration = Duration::from_secs(590), Time(TIMEOUTS), Live;
        /// Targets that are tried for one request, including the first. A model with one target has one attempt, unless
        /// a second credential, a `queue` or a renewed credential allows another.
        pub attempts: u32 = 2, Whole(1..=10), Live;
        /// Consecutive failures after which a target cools down; one is enough if no connection is made within
        /// `connect_timeout`. A single client must not stop a target for others. So failures that a request can cause
        /// must come from two owners, if the gateway has valid keys of two owners (an owner is a group, or a key
        /// without a group). Otherwise, if the gateway has two valid keys, they must come from two keys. 0 turns this
        /// off.
        pub breaker_failures: u32 = 5, Whole(0..=1000), Live;
        /// Time for which a target cools down.
        pub breaker_cooldown: Duration = Duration::from_secs(30), Time(TIMEOUTS), Live;
        /// Maximum number of idle connections that are kept open per provider. The one used last is used next, so at
        /// most as many are kept as were in use at once within `pool_idle_timeout`. An idle connection takes less than
        /// 1 KiB, or up to 40 KiB with TLS. If `memory` is set in `[server]`, the default is a connection for each
        /// 4 MiB of it.
        pub pool_max_idle: usize = 1024, Whole(0..=100_000), Live;
        /// Time for which a connection is kept open without a request.
        pub pool_idle_timeout: Duration = Duration::from_secs(60), Time(TIMEOUTS), Live;
        /// Size of one event of a stream; at most (`max_buffered` / 4) - 128 KiB. If the default is larger than this
        /// bound, the bound applies.
        pub max_event: usize = 8 << 20, Bytes(ANSWERS), Live;
        /// Size of a whole response. It has the same upper bound as `max_event`.
        pub max_response: usize = 64 << 20, Bytes(ANSWERS), Live;
    }
}

/// Bytes of a quarter of all buffers that an answer must leave free.
const BESIDE: usize = 128 << 10;

impl UpstreamLimits {
    /// The defaults, lowered if they do not fit buffers of `max_buffered` bytes. An answer that cannot be buffered
    /// would be paid for and lost.
    #[inline]
    pub fn within(max_buffered: usize) -> UpstreamLimits {
        let (limits, most) = (UpstreamLimits::default(), largest(max_buffered));
        UpstreamLimits { max_event: limits.max_event.min(most), max_response: limits.max_response.min(most), ..limits }
    }

    /// Replaces what `section` sets, and reports what does not fit buffers of `max_buffered` bytes.
    #[inline]
    pub fn read(&mut self, reader: &mut Reader<'_>, section: &mut Section<'_>, max_buffered: usize) {
        self.read_rows(reader, section);
        let most = largest(max_buffered);
        for (key, value) in [("max_event", self.max_event), ("max_response", self.max_response)] {
            if let Some(at) = section.place(key).filter(|_| value > most) {
                let text = format!(
                    "expected at most {} KiB, as server.max_buffered allows, found {}",
                    most >> 10,
                    size_text(value as u64)
                );
                reader.report(at, section.path_of(key), text);
            }
        }
    }
}

/// Bytes of the largest answer or event that fits buffers of `max_buffered` bytes once other requests have ended. It
/// uses half of them, and needs its size twice if it is translated.
#[inline]
fn largest(max_buffered: usize) -> usize {
    (max_buffered / 4).saturating_sub(BESIDE)
}

/// Number of leading rows of [`UpstreamLimits`] that a model may set, too: its timeouts.
const IN_MODELS: usize = 4;

/// The timeouts that a model sets for itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeouts {
    /// The values. Only the rows that are set have a meaning.
    values: UpstreamLimits,
    set: Vec<&'static str>,
}

impl Timeouts {
    /// Rows that a model may set.
    #[inline]
    pub fn rows() -> &'static [Setting<UpstreamLimits>] {
        &UpstreamLimits::ROWS[..IN_MODELS]
    }

    /// Reads the timeouts of `section`.
    #[inline]
    pub fn read(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Timeouts {
        let mut own = Timeouts::default();
        for row in Timeouts::rows() {
            if row.read(reader, section, &mut own.values) {
                own.set.push(row.key);
            }
        }
        own
    }

    /// The values, if the model sets `row`.
    #[inline]
    pub fn own(&self, row: &Setting<UpstreamLimits>) -> Option<&UpstreamLimits> {
        self.set.contains(&row.key).then_some(&self.values)
    }

    /// Returns `limits` with these timeouts replaced.
    pub fn over(&self, limits: &UpstreamLimits) -> UpstreamLimits {
        let mut limits = *limits;
        for row in Timeouts::rows() {
            if let Some(own) = self.own(row) {
                (row.copy)(&mut limits, own);
            }
        }
        limits
    }
}
