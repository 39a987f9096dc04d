//! The endpoint that a path names.

use crate::wire::head::RequestHead;
use crate::wire::{ModelEndpoint, Shape, Span};
use std::borrow::Cow;

/// Endpoint of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    /// `GET /`: agents probe it; 200 without a key.
    Root,
    /// An endpoint that a model serves.
    Inference(ModelEndpoint),
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`; the id as in the head, percent-encoded.
    Model(Span),
    /// `GET /v1/quota`.
    Quota,
    /// A browser's preflight request (CORS).
    Preflight,
}

impl Endpoint {
    /// Name of the endpoint in metrics and log lines.
    #[inline]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Endpoint::Root => "root",
            Endpoint::Inference(endpoint) => endpoint.name(),
            Endpoint::Models | Endpoint::Model(_) => "models",
            Endpoint::Quota => "quota",
            Endpoint::Preflight => "preflight",
        }
    }

    pub(super) fn allowed(self) -> &'static str {
        match self {
            Endpoint::Inference(_) => "POST",
            _ => "GET, HEAD",
        }
    }
}

pub(super) fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = path
        && !rest.is_empty()
    {
        path = rest;
    }
    path
}

/// `path` with each run of slashes replaced by one slash.
pub(super) fn single_slashes(path: &[u8]) -> Cow<'_, [u8]> {
    let is_run = |pair: &[u8]| pair == b"//";
    if !path.windows(2).any(is_run) {
        return Cow::Borrowed(path);
    }
    let mut single = path.to_vec();
    single.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    Cow::Owned(single)
}

/// The endpoint of a path below `/v1` that has no variable part.
#[inline]
pub(super) fn exact_endpoint(inside: &[u8]) -> Option<Endpoint> {
    match inside {
        b"/models" => Some(Endpoint::Models),
        b"/quota" => Some(Endpoint::Quota),
        _ => ModelEndpoint::at(inside).map(Endpoint::Inference),
    }
}

/// The endpoint of a path below `/v1`.
pub(super) fn endpoint_of(inside: &[u8], head: &RequestHead, bytes: &[u8]) -> Option<Endpoint> {
    if let Some(endpoint) = exact_endpoint(inside) {
        return Some(endpoint);
    }
    let id = inside.strip_prefix(b"/models/")?;
    // The id ends where the path does, without the slashes at its end.
    let path = trim_slashes(head.path.of(bytes));
    let end = head.path.start as usize + path.len();
    (!id.is_empty() && path.ends_with(id)).then(|| Endpoint::Model(Span::new(end - id.len(), end)))
}

/// The endpoint for answers that a path below `/v1` is below.
#[cold]
pub(super) fn endpoint_above(inside: &[u8]) -> Option<ModelEndpoint> {
    let is_above =
        |shape: &Shape| inside.strip_prefix(shape.path_below().as_bytes()).is_some_and(|rest| rest.starts_with(b"/"));
    Shape::ALL.into_iter().find(is_above).map(ModelEndpoint::generate)
}

/// True if a path that is not ours is one of OpenAI's, Anthropic's or of servers like theirs, so that the base URL is
/// right.
pub(super) fn is_spoken_elsewhere(inside: &[u8]) -> bool {
    const FIRST: [&[u8]; 10] = [
        b"assistants",
        b"audio",
        b"batches",
        b"complete",
        b"files",
        b"fine_tuning",
        b"images",
        b"realtime",
        b"threads",
        b"vector_stores",
    ];
    let first = inside.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
    FIRST.contains(&first) || inside.starts_with(b"/messages/batches")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_slashes_count_as_one() {
        assert_eq!(trim_slashes(b"/v1/models/"), b"/v1/models");
        assert_eq!(trim_slashes(b"/v1/models//"), b"/v1/models");
        assert_eq!(*single_slashes(b"//v1///a/b"), *b"/v1/a/b");
        assert_eq!(*single_slashes(b"/v1/a"), *b"/v1/a");
        assert_eq!((trim_slashes(b"/"), trim_slashes(b"//")), (&b"/"[..], &b"/"[..]));
    }
}
