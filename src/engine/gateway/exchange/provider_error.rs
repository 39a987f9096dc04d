//! Turns the errors of providers into faults. Their messages are masked, since clients may see them.

use super::fault::{CoolDownFor, Fault, FaultKind, REJECTED};
use super::job::RequestJob;
use crate::base::seam::Ending;
use crate::dialect::errors::read_error;
use crate::dialect::{ErrorText, Overflow, StreamFault, has_account_code, is_of_account, is_rate, is_too_large};
use crate::policy::config::Auth;
use crate::policy::upstream_limits::UpstreamLimits;
use std::num::NonZeroU32;

/// Text for an answer that cannot be read.
pub(super) const NOT_JSON: &str = "the provider's answer was not valid";

/// Codes of requests that a provider refuses within an answer that it has begun.
const REFUSALS: [&str; 1] = ["invalid_prompt"];
/// Other codes that concern the provider account that all clients share. Their messages must never reach a client.
const OF_THE_LIMITS: [&str; 6] = [
    "usage_limit_reached",
    "usage_not_included",
    "rate_limit_exceeded",
    "rate_limit_error",
    "permission_error",
    "model_not_found",
];

/// The status that corresponds to an error inside a response, by its code, type and message.
fn status_within(text: &ErrorText) -> u16 {
    let names = || text.code.iter().chain(&text.kind).map(String::as_str);
    let status = text.code.as_ref().and_then(|code| code.parse().ok());
    let is_wrong = names().any(|name| REFUSALS.contains(&name)) || Overflow::of(text).is_some();
    match status {
        _ if is_of_account(text) || names().any(|name| OF_THE_LIMITS.contains(&name)) => 429,
        _ if is_wrong => REJECTED,
        Some(400 | 413 | 422) => REJECTED,
        Some(status @ (401..=404 | 429)) => status,
        _ => 500,
    }
}

impl RequestJob {
    pub(super) fn stream_fault(&self, fault: StreamFault) -> Fault {
        let limit = |of: fn(&UpstreamLimits) -> usize| self.target().map_or(0, |target| of(&target.limits));
        match fault {
            StreamFault::Error(text) => self.error_fault(text),
            StreamFault::TooLarge => {
                Fault::from(FaultKind::AnswerTooLarge("max_event", limit(|limits| limits.max_event)))
            }
            StreamFault::AnswerTooLarge => {
                Fault::from(FaultKind::AnswerTooLarge("max_response", limit(|limits| limits.max_response)))
            }
            StreamFault::Malformed => Fault::from(FaultKind::BadBody(NOT_JSON)),
            StreamFault::Incomplete => Fault::from(FaultKind::Incomplete(Ending::Fin)),
        }
    }

    pub(super) fn error_fault(&self, text: ErrorText) -> Fault {
        self.fault_of(&text, FaultKind::InStream(status_within(&text)))
    }

    /// The failure that an answer with an error status and this body means. `open`: the body of a 429 decides who has
    /// to wait.
    pub(super) fn status_fault(&self, body: &[u8], status: u16, retry_after: Option<NonZeroU32>, open: bool) -> Fault {
        let text = read_error(body).unwrap_or_default();
        let takes_clients = self.takes_clients();
        let is_of_account = !takes_clients && is_of_account(&text);
        // Some providers refuse a request that exceeds a token rate with 413.
        let shown = if status == 413 && is_rate(&text) { 429 } else { status };
        let kind = match shown {
            401..=404 | 429 if takes_clients => FaultKind::ClientCredential(shown),
            401 | 402 | 429 => FaultKind::Status(shown),
            400..500 if is_of_account => FaultKind::Account(shown),
            _ => FaultKind::Status(shown),
        };
        let mut fault = self.fault_of(&text, kind);
        let decides = matches!(fault.kind, FaultKind::Account(_)) || (open && !is_too_large(&text));
        // Words may quote the request of one client.
        let owners = if has_account_code(&text) { CoolDownFor::All } else { CoolDownFor::Owner };
        fault.cool_down = decides.then_some(owners);
        fault.retry_after = retry_after.map(|seconds| u64::from(seconds.get() - 1));
        fault.overflow = fault.overflow.filter(|_| matches!(status, 400 | 413 | 422 | 500));
        fault
    }

    /// True if the provider takes the credentials of clients.
    #[cold]
    pub(super) fn takes_clients(&self) -> bool {
        self.target_provider().is_some_and(|provider| provider.auth == Auth::Client)
    }

    fn fault_of(&self, text: &ErrorText, kind: FaultKind) -> Fault {
        let code = text.code.as_ref().or(text.kind.as_ref()).and_then(|code| self.masked(code));
        let param = text.param.as_ref().and_then(|param| self.masked(param));
        Fault { message: self.masked(&text.message), code, param, overflow: Overflow::of(text), ..Fault::from(kind) }
    }
}
