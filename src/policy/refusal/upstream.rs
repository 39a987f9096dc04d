//! Refusals after the provider of a model has failed.

use super::{Refusal, RefusalKind, shown};
use std::borrow::Cow;
use std::time::Duration;

/// Failure of a model's provider, as its client learns it. A reason that is not part of it is only for the operator.
#[derive(Debug)]
pub enum UpstreamRefusal {
    /// 400: the provider refused the content of the request (400, 413, 422). Its message is already masked and cut.
    Rejected(Option<String>),
    /// 500: the provider refused the gateway (401, 402, 403, 404).
    Denied,
    /// 500: the provider failed, perhaps with a message. Its `retry-after`, in seconds, is passed on.
    Failed(Option<String>, Option<u64>),
    /// 500: no connection to the provider.
    Unreachable,
    /// 500: the provider's answer is invalid or incomplete.
    Broken,
    /// 500: an event above `max_event` or an answer above `max_response`, by the name of the limit.
    TooLarge(&'static str),
    /// 504: the deadline of this name and length has passed.
    Timeout(&'static str, Duration),
}

impl From<UpstreamRefusal> for Refusal {
    fn from(why: UpstreamRefusal) -> Refusal {
        let failed = |text: Cow<'static, str>| Refusal::new(RefusalKind::Upstream, 500, text);
        match why {
            UpstreamRefusal::Rejected(message) => {
                let text = message.unwrap_or_else(|| "the model's provider refused the request as invalid".to_string());
                Refusal::invalid(400, text)
            }
            UpstreamRefusal::Denied => {
                let refusal = failed("the model's provider does not accept the gateway's requests".into());
                Refusal { should_retry: Some(false), ..refusal }
            }
            UpstreamRefusal::Failed(message, retry_after) => {
                let text = message.map_or(Cow::Borrowed("the model's provider failed"), Cow::Owned);
                Refusal { retry_after: retry_after.map(|seconds| seconds.max(1)), ..failed(text) }
            }
            UpstreamRefusal::Unreachable => failed("the model's provider cannot be reached".into()),
            UpstreamRefusal::Broken => {
                failed("the model's provider ended the response early, or sent an invalid one".into())
            }
            UpstreamRefusal::TooLarge(setting) => {
                failed(format!("the model's answer is larger than {setting} allows").into())
            }
            UpstreamRefusal::Timeout(setting, limit) => {
                let text = format!("the model exceeded {setting} ({})", shown(limit));
                Refusal::new(RefusalKind::Timeout, 504, text)
            }
        }
    }
}
