//! Errors about a client's own credential for a provider.

use super::{About, Refusal, RefusalKind};
use std::borrow::Cow;

/// Reason why a request to a provider that takes the credentials of clients is refused.
#[derive(Debug)]
pub enum CredentialError {
    /// The client sends none.
    Missing,
    /// This header, which the provider would get, has a key of the gateway.
    GatewayKey(&'static str),
    /// The provider answers with this status, and perhaps a message and seconds to wait.
    Refused(u16, Option<String>, Option<u64>),
}

impl From<CredentialError> for Refusal {
    fn from(error: CredentialError) -> Refusal {
        // Without this header Claude Code repeats a 401 for minutes. A provider's 401 lacks it, since the client may
        // repeat the request with a renewed credential.
        let refusal = |text| {
            let refusal = Refusal::new(RefusalKind::Authentication, 401, text);
            Refusal { should_retry: Some(false), ..refusal }
        };
        match error {
            CredentialError::Missing => {
                let text = "this model needs a credential of your own for its provider: send it in `authorization`, \
                            and the gateway's key in `x-tollgate-key`";
                refusal(Cow::Borrowed(text)).because(About::Key, "no credential of the client")
            }
            CredentialError::GatewayKey(header) => {
                let text = format!(
                    "this model's provider gets `{header}`, which has the gateway's key: send that in \
                     `x-tollgate-key`, and your own credential in `authorization`"
                );
                refusal(Cow::Owned(text)).because(About::Key, "where the provider would see it")
            }
            CredentialError::Refused(status, message, retry_after) => {
                let (kind, status, text) = match status {
                    401 => (RefusalKind::Authentication, 401, "the model's provider does not accept your credential"),
                    404 => (RefusalKind::NotFound, 404, "the model's provider does not find this for your credential"),
                    429 => (RefusalKind::RateLimit, 429, "your credential has reached a limit of the model's provider"),
                    _ => (RefusalKind::Permission, 403, "the model's provider refuses this to your credential"),
                };
                let retry_after = retry_after.map(|seconds| seconds.max(1));
                let text = message.map_or(Cow::Borrowed(text), Cow::Owned);
                Refusal { retry_after, ..Refusal::new(kind, status, text) }
            }
        }
    }
}
