//! Deadlines and bounds towards upstreams: `[upstream]`, set again in a provider, the timeouts in a model too.

use super::reader::{Reader, Section};
use std::ops::RangeInclusive;
use std::time::Duration;

/// No deadline is shorter or longer than this.
pub(super) const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Deadlines and bounds of one provider, or of one model at one provider (contract section 4).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct UpstreamLimits {
    /// For name, TCP and TLS of one attempt.
    pub connect_timeout: Duration,
    /// To a stream's first event.
    pub first_byte_timeout: Duration,
    /// Between two data events of a stream; comments and pings do not count.
    pub idle_timeout: Duration,
    /// For a whole answer over all attempts, and for all waiting before a stream's first event.
    pub request_timeout: Duration,
    /// Targets tried for one request, the first included.
    pub attempts: u32,
    /// Failures in a row after which a target rests. 0: never.
    pub breaker_failures: u32,
    /// How long it rests.
    pub breaker_cooldown: Duration,
    /// Idle connections kept per provider.
    pub pool_max_idle: usize,
    /// How long each is kept.
    pub pool_idle_timeout: Duration,
    /// Bytes of one event of a stream.
    pub max_event: usize,
    /// Bytes of a whole answer.
    pub max_response: usize,
}

impl Default for UpstreamLimits {
    fn default() -> UpstreamLimits {
        UpstreamLimits {
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(600),
            request_timeout: Duration::from_secs(590),
            attempts: 2,
            breaker_failures: 5,
            breaker_cooldown: Duration::from_secs(30),
            pool_max_idle: 64,
            pool_idle_timeout: Duration::from_secs(60),
            max_event: 8 << 20,
            max_response: 64 << 20,
        }
    }
}

impl UpstreamLimits {
    /// Replaces what `section` sets.
    pub(super) fn overlay(&mut self, reader: &mut Reader<'_>, section: &mut Section<'_>) {
        *self = Timeouts::read(reader, section).over(self);
        self.attempts = reader.integer(section, "attempts", self.attempts.into(), 1..=10) as u32;
        let failures = reader.integer(section, "breaker_failures", self.breaker_failures.into(), 0..=1000);
        self.breaker_failures = failures as u32;
        if let Some(cooldown) = reader.duration(section, "breaker_cooldown", TIMEOUTS) {
            self.breaker_cooldown = cooldown;
        }
        let idle = reader.integer(section, "pool_max_idle", self.pool_max_idle as u64, 0..=100_000);
        self.pool_max_idle = idle as usize;
        if let Some(idle) = reader.duration(section, "pool_idle_timeout", TIMEOUTS) {
            self.pool_idle_timeout = idle;
        }
        self.max_event = reader.size(section, "max_event", self.max_event as u64, KIB..=1024 * MIB) as usize;
        self.max_response = reader.size(section, "max_response", self.max_response as u64, KIB..=1024 * MIB) as usize;
    }
}

/// The timeouts that a model sets for itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeouts {
    /// In place of the provider's.
    pub connect_timeout: Option<Duration>,
    /// In place of the provider's.
    pub first_byte_timeout: Option<Duration>,
    /// In place of the provider's.
    pub idle_timeout: Option<Duration>,
    /// In place of the provider's.
    pub request_timeout: Option<Duration>,
}

impl Timeouts {
    /// What `section` sets.
    pub(super) fn read(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Timeouts {
        Timeouts {
            connect_timeout: reader.duration(section, "connect_timeout", TIMEOUTS),
            first_byte_timeout: reader.duration(section, "first_byte_timeout", TIMEOUTS),
            idle_timeout: reader.duration(section, "idle_timeout", TIMEOUTS),
            request_timeout: reader.duration(section, "request_timeout", TIMEOUTS),
        }
    }

    /// `limits` with these in place of its own.
    pub fn over(&self, limits: &UpstreamLimits) -> UpstreamLimits {
        UpstreamLimits {
            connect_timeout: self.connect_timeout.unwrap_or(limits.connect_timeout),
            first_byte_timeout: self.first_byte_timeout.unwrap_or(limits.first_byte_timeout),
            idle_timeout: self.idle_timeout.unwrap_or(limits.idle_timeout),
            request_timeout: self.request_timeout.unwrap_or(limits.request_timeout),
            ..*limits
        }
    }
}
