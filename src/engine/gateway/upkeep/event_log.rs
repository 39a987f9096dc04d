//! Log lines about the gateway itself, in one form: a time, an event, its outcome.

use crate::base::text::push_number;
use crate::base::time::Unix;
use crate::gateway::cx::Cx;
use crate::gateway::ids::ClientId;
use crate::gateway::report::access_log;
use crate::gateway::report::log_limit::LogCaller;
use crate::policy::cause::{Advice, Cause};
use crate::policy::window;
use crate::wire::json::write_string;
use std::time::Duration;

/// Writes a warning for the operator.
pub(crate) fn warn(text: &str, cx: &mut Cx) {
    cx.log_event(|out| {
        out.extend_from_slice(b",\"event\":\"warning\",\"message\":");
        write_string(out, text);
    });
}

impl Cx {
    /// Writes a line about the gateway itself. `write` appends members, each with a comma before it.
    pub(crate) fn log_event(&mut self, mut write: impl FnMut(&mut Vec<u8>)) {
        // Compiled once for all events, which are rare.
        let write: &mut dyn FnMut(&mut Vec<u8>) = &mut write;
        let time = self.report.date.iso(self.now.unix);
        self.commands.orders.log(|out| {
            access_log::open(time, out);
            out.push(b'"');
            write(out);
            out.extend_from_slice(b"}\n");
        });
    }

    /// Writes a line about a target or a credential of a provider: it fails or cools down (with cause, duration of the
    /// cool-down, and the next step unless the cause decides it), or (`None`) has recovered.
    pub(crate) fn log_target(&mut self, label: &str, trouble: Option<(Cause, Option<Duration>, Option<Advice>)>) {
        let now = self.now.unix;
        self.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"target\",\"outcome\":\"");
            out.extend_from_slice(match trouble {
                Some((_, Some(_), _)) => b"resting".as_slice(),
                Some((_, None, _)) => b"failing",
                None => b"recovered",
            });
            out.extend_from_slice(b"\",\"target\":");
            write_string(out, label);
            let Some((cause, cooldown, advice)) = trouble else { return };
            out.extend_from_slice(b",\"cause\":\"");
            cause.write(out);
            out.push(b'"');
            if let Some(cooldown) = cooldown {
                out.extend_from_slice(b",\"until\":\"");
                // Only whole seconds are logged, rounded up: at the logged time the cool-down is over.
                let until = now.0.saturating_add(cooldown.as_micros().div_ceil(1000) as u64);
                window::write_iso(Unix(until.next_multiple_of(1000)), out);
                out.push(b'"');
            }
            advice.unwrap_or_else(|| cause.advice()).write(out);
        });
    }

    /// Writes a line about handing over.
    pub(crate) fn log_upgrade(&mut self, outcome: &str) {
        self.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"upgrade\",\"outcome\":");
            write_string(out, outcome);
        });
    }

    /// Checks the clock, and logs if it is behind or no longer is. True if it is plausible.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_clock(&mut self) -> bool {
        let (is_news, behind, [newest, built]) =
            (self.accounts.clock.look(self.now), self.accounts.clock.is_behind(), self.accounts.clock.dates());
        if is_news {
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"clock\",\"outcome\":\"");
                out.extend_from_slice(if behind { b"behind" } else { b"right" });
                out.push(b'"');
                for (name, date) in [("newest_record", newest), ("built", built)] {
                    if date > Unix(0) {
                        out.extend_from_slice(format!(",\"{name}\":\"").as_bytes());
                        window::write_iso(date, out);
                        out.push(b'"');
                    }
                }
            });
        }
        !behind
    }

    /// True if the log line of a request that cost nothing is written.
    pub(crate) fn takes_free_line(&mut self, caller: LogCaller) -> bool {
        let takes = self.report.log_limit.takes(caller, self.now.mono);
        self.report.stats.log_suppressed += u64::from(!takes);
        takes
    }

    /// Counts and logs a request to the admin listener with a wrong token.
    pub(crate) fn tell_of_wrong_token(&mut self, id: ClientId) {
        self.report.stats.admin_refused += 1;
        let peer = self.connections.peers.socket(id).to_canonical();
        if self.takes_free_line(LogCaller::AdminStranger) {
            self.log_event(|out| {
                out.extend_from_slice(
                    format!(",\"event\":\"admin\",\"outcome\":\"refused\",\"peer\":\"{peer}\"").as_bytes(),
                );
            });
        }
    }

    /// Logs the numbers of suppressed lines, if due or if the process is about to end.
    pub(crate) fn tell_of_suppressed(&mut self, ends: bool) {
        if self.report.log_limit.due() > self.now.mono && !ends {
            return;
        }
        for (caller, lines) in self.report.log_limit.take_suppressed() {
            let key = if let LogCaller::Key(key) = caller { Some(self.access.keys.get(key).id()) } else { None };
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"suppressed\",\"requests\":");
                push_number(out, lines);
                match (caller, key) {
                    (LogCaller::AdminStranger, _) => out.extend_from_slice(b",\"listener\":\"admin\""),
                    (_, Some(key)) => {
                        out.extend_from_slice(b",\"key\":\"");
                        out.extend_from_slice(key.text());
                        out.push(b'"');
                    }
                    (_, None) => {}
                }
            });
        }
    }
}
