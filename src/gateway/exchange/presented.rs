//! The key that a head presents.

use super::paths::Endpoint;
use crate::wire::head::{HeaderField, RequestHead, values};

/// The key that a refused request shows; empty if it shows none.
pub(super) fn presented<'a>(head: &RequestHead, bytes: &'a [u8], endpoint: Option<Endpoint>, prefix: &str) -> &'a [u8] {
    beside_credential(head, bytes, usual_key(head, bytes, endpoint, prefix))
}

/// The key in `x-tollgate-key`, which clients send next to a credential of their own; otherwise `usual`.
#[inline]
pub(super) fn beside_credential<'a>(head: &RequestHead, bytes: &'a [u8], usual: &'a [u8]) -> &'a [u8] {
    match head.names_key {
        true => values(bytes, "x-tollgate-key").map(<[u8]>::trim_ascii).find(|key| !key.is_empty()).unwrap_or(usual),
        false => usual,
    }
}

/// The key in `authorization` or `x-api-key`; empty if there is none.
pub(super) fn usual_key<'a>(head: &RequestHead, bytes: &'a [u8], endpoint: Option<Endpoint>, prefix: &str) -> &'a [u8] {
    let bearer = bearer_token(head.field(HeaderField::Authorization).of(bytes));
    let takes_api_key = match endpoint {
        Some(Endpoint::Inference(endpoint)) => endpoint.shape.is_anthropic(),
        other => other != Some(Endpoint::Quota),
    };
    let api_key = if takes_api_key { head.field(HeaderField::XApiKey).of(bytes).trim_ascii() } else { b"" };
    let ours = |token: &[u8]| token.starts_with(prefix.as_bytes());
    match (bearer.is_empty(), api_key.is_empty()) {
        (true, false) => api_key,
        (false, false) if !ours(bearer) && ours(api_key) => api_key,
        _ => bearer,
    }
}

/// The token of an `authorization` header; empty if it has none.
pub(crate) fn bearer_token(value: &[u8]) -> &[u8] {
    match value.split_first_chunk::<7>() {
        // The usual spelling first, before the comparison by letters.
        Some((scheme, token)) if scheme == b"Bearer " || scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_tokens_are_found_whatever_the_case_and_spaces() {
        assert_eq!(bearer_token(b"Bearer abc"), b"abc");
        assert_eq!(bearer_token(b"bearer   abc "), b"abc");
        assert_eq!(bearer_token(b"Basic abc"), b"");
        assert_eq!(bearer_token(b"Bearer "), b"");
    }
}
