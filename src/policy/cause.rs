//! Cause of a failed request or attempt, in a few fixed words. The log and the metrics show it, clients never see it.
//! Must never contain text from a client or a provider.

use crate::base::text::push_number;
use crate::wire::json::member_string;

/// A kind, the detail, and the progress until then: `connect: refused`, `reset after 3 events`, `status 401`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    kind: &'static str,
    what: &'static str,
    status: Option<u16>,
    after: Option<(u64, &'static str)>,
}

const ACCOUNT: &str = "account";

/// The operator's next step about a problem.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// The next step, a sentence.
    pub next: &'static str,
    /// The entry of the manual, as a path in `src/docs`.
    pub manual: &'static str,
}

impl Advice {
    const fn new(next: &'static str, manual: &'static str) -> Advice {
        Advice { next, manual }
    }

    /// Appends the members `next` and `manual` to a JSON object.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in [("next", self.next), ("manual", self.manual)] {
            member_string(out, name, value);
        }
    }

    /// The operator has nothing to do.
    pub const NONE: Advice = Advice::new("", "reference/health.md");
    /// A target does not answer in time.
    pub const HANGS: Advice =
        Advice::new("Look whether the provider hangs: its load and its log.", "reference/health.md#states-of-a-target");
    /// A target answers later than usual.
    pub const SLOW: Advice =
        Advice::new("Look at the provider's load, or add a target.", "reference/health.md#slow-targets");
    /// Only requests of one caller fail.
    pub const ONE_CALLER: Advice = Advice::new(
        "Look at the requests of this key, which may be the cause: `tollgate requests --reasons`.",
        "reference/health.md#states-of-a-target",
    );
    /// No target of a model answers.
    pub const MODEL_DOWN: Advice = Advice::new("Repair one of its targets, or add another one.", "how-to/failover.md");
    /// Many requests fail.
    pub const REASONS: Advice =
        Advice::new("See the reasons: `tollgate requests --reasons`.", "how-to/alerts.md#tollgateservererrors");
    /// The ledger takes no usage records.
    pub const LEDGER: Advice = Advice::new(
        "Free space on its disk, or restore access to it.",
        "how-to/troubleshooting.md#503-the-usage-ledger-is-not-available",
    );
    /// The clock is behind.
    pub const CLOCK: Advice =
        Advice::new("Set the clock. `tollgate ledger clock` shows both times.", "how-to/clock.md");
    const CREDENTIAL: Advice = Advice::new(
        "Check the credential and the account in the provider's console.",
        "how-to/alerts.md#tollgatecredentialrefused",
    );
    const CAPACITY: Advice = Advice::new(
        "Raise the limit at the provider, or add a target or a credential.",
        "how-to/alerts.md#tollgatetargetcoolingdown",
    );
    const CONNECTION: Advice = Advice::new(
        "Run `tollgate check --connect`; check the provider's host and the network.",
        "reference/causes.md#failures-of-providers",
    );
    const PROVIDER: Advice =
        Advice::new("See the provider's console and log.", "reference/causes.md#failures-of-providers");
}

impl Cause {
    /// `kind: what`, or only `kind` if `what` is empty.
    pub const fn new(kind: &'static str, what: &'static str) -> Cause {
        Cause { kind, what, status: None, after: None }
    }

    /// `status 401`.
    pub const fn status(status: u16) -> Cause {
        Cause { status: Some(status), ..Cause::new("status", "") }
    }

    /// `account: status 400`: the provider's account is at fault, whatever the status.
    pub const fn account(status: u16) -> Cause {
        Cause { status: Some(status), ..Cause::new(ACCOUNT, "status") }
    }

    /// `too large for the provider`: the provider accepts no request of this size (status 413).
    pub const fn request_size() -> Cause {
        Cause::new("too large for the provider", "")
    }

    /// Cause with the number of events or bytes that came before it.
    pub const fn after(self, count: u64, unit: &'static str) -> Cause {
        Cause { after: Some((count, unit)), ..self }
    }

    /// True if there was no connection to the provider, so that the request cannot be the cause.
    pub fn is_of_connection(&self) -> bool {
        matches!((self.kind, self.what), ("dns" | "connect" | "tls" | "local", _) | ("timeout", "connect"))
    }

    /// True if the provider's status is the cause.
    pub fn is_of_status(&self) -> bool {
        self.status.is_some()
    }

    /// True if a provider has refused the credential, whatever the request.
    pub fn is_of_credential(&self) -> bool {
        matches!(self.status, Some(401..=403)) || self.kind == ACCOUNT
    }

    /// The operator's next step about a target that fails so.
    pub fn advice(&self) -> Advice {
        match (self.kind, self.status) {
            _ if self.is_of_credential() => Advice::CREDENTIAL,
            (_, Some(429 | 503 | 529)) => Advice::CAPACITY,
            ("timeout" | "no answer", _) if self.what != "connect" => Advice::HANGS,
            ("not HTTP", _) => Advice::CONNECTION,
            _ if self.is_of_connection() => Advice::CONNECTION,
            _ => Advice::PROVIDER,
        }
    }

    /// Number that is equal for equal causes, whatever came before.
    pub fn number(&self) -> u64 {
        let words = self.kind.as_ptr().addr() ^ self.what.as_ptr().addr().rotate_left(9);
        words as u64 ^ u64::from(self.status.unwrap_or(0)) << 48
    }

    /// Appends the words; they need no escapes in JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.kind.as_bytes());
        if !self.what.is_empty() {
            out.extend_from_slice(b": ");
            out.extend_from_slice(self.what.as_bytes());
        }
        if let Some(status) = self.status {
            out.push(b' ');
            push_number(out, u64::from(status));
        }
        if let Some((count, unit)) = self.after {
            out.extend_from_slice(b" after ");
            push_number(out, count);
            out.push(b' ');
            // Units are given in the plural.
            out.extend_from_slice(if count == 1 { &unit.as_bytes()[..unit.len() - 1] } else { unit.as_bytes() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_written_in_a_few_words() {
        for (cause, words) in [
            (Cause::new("connect", "refused"), "connect: refused"),
            (Cause::new("reset", "").after(3, "events"), "reset after 3 events"),
            (Cause::new("timeout", "idle").after(1, "events"), "timeout: idle after 1 event"),
            (Cause::status(401), "status 401"),
            (Cause::account(400), "account: status 400"),
            (Cause::request_size(), "too large for the provider"),
        ] {
            let mut out = Vec::new();
            cause.write(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), words);
        }
    }
}
