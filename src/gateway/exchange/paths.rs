//! The endpoint that a path names, and the other facts known about a head.

use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use crate::wire::head::RequestHead;
use crate::wire::{ModelEndpoint, Shape, Span};
use std::borrow::Cow;

/// Answer to requests for the paths of the admin listener.
const ON_ADMIN: &str = "health and metrics are on the gateway's `admin_listen` address";

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

/// Facts known about a head, up to the check that failed.
#[derive(Debug, Default)]
pub(crate) struct Identified {
    /// The endpoint, once known; an error has its API format.
    pub(crate) endpoint: Option<Endpoint>,
    /// The endpoint that this unknown path is below: its errors use that API format.
    below: Option<ModelEndpoint>,
    /// The caller, once known.
    pub(crate) key: Option<KeyIx>,
    /// Codex asks, on its own endpoint.
    pub(crate) is_codex: bool,
    /// The body of this chat request is one of the responses format, see [`crate::dialect::RequestScan::has_input`].
    pub(super) has_input: bool,
}

impl Identified {
    /// The model's endpoint, whose API format an error has.
    pub(crate) fn of_model(&self) -> Option<ModelEndpoint> {
        match self.endpoint {
            Some(Endpoint::Inference(endpoint)) => Some(endpoint),
            None => self.below,
            _ => None,
        }
    }

    /// Finds the endpoint that the path names, if it names one below `/v1`.
    #[inline]
    pub(super) fn read_path(&mut self, head: &RequestHead, bytes: &[u8]) -> Result<(), Refusal> {
        let path = head.path.of(bytes);
        // Nearly every path is exact.
        if let [b'/', b'v', b'1', inside @ ..] = path
            && let Some(exact) = exact_endpoint(inside)
        {
            self.endpoint = Some(exact);
            return Ok(());
        }
        let path = single_slashes(trim_slashes(path));
        let inside = match &*path {
            // Path of Cohere's newer clients, with the same body.
            path @ b"/v2/rerank" => &path[3..],
            [b'/', b'v', b'1', inside @ ..] if inside.first().is_none_or(|first| *first == b'/') => inside,
            // Claude Code requests `/api/hello` when it starts, older versions `/`.
            b"/" | b"" | b"/api/hello" => {
                self.endpoint = Some(Endpoint::Root);
                return Ok(());
            }
            b"/healthz" | b"/readyz" | b"/metrics" => return Err(Refusal::of_status(404, ON_ADMIN)),
            _ => return Err(Refusal::no_path()),
        };
        self.endpoint = endpoint_of(inside, head, bytes);
        self.below = if self.endpoint.is_some() { None } else { endpoint_above(inside) };
        Ok(())
    }
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

    /// Path of the endpoint; a part in braces is a placeholder.
    pub(super) fn route(self) -> &'static str {
        match self {
            Endpoint::Root => "/",
            Endpoint::Inference(endpoint) => endpoint.path(),
            Endpoint::Models => "/v1/models",
            Endpoint::Model(_) => "/v1/models/{model}",
            Endpoint::Quota => "/v1/quota",
            Endpoint::Preflight => "",
        }
    }

    pub(super) fn allowed(self) -> &'static str {
        match self {
            Endpoint::Inference(_) => "POST",
            _ => "GET, HEAD",
        }
    }
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = path
        && !rest.is_empty()
    {
        path = rest;
    }
    path
}

/// `path` with each run of slashes replaced by one slash.
fn single_slashes(path: &[u8]) -> Cow<'_, [u8]> {
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
fn exact_endpoint(inside: &[u8]) -> Option<Endpoint> {
    match inside {
        b"/models" => Some(Endpoint::Models),
        b"/quota" => Some(Endpoint::Quota),
        _ => ModelEndpoint::at(inside).map(Endpoint::Inference),
    }
}

/// The endpoint of a path below `/v1`.
fn endpoint_of(inside: &[u8], head: &RequestHead, bytes: &[u8]) -> Option<Endpoint> {
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
fn endpoint_above(inside: &[u8]) -> Option<ModelEndpoint> {
    let is_above =
        |shape: &Shape| inside.strip_prefix(shape.path_below().as_bytes()).is_some_and(|rest| rest.starts_with(b"/"));
    Shape::ALL.into_iter().find(is_above).map(ModelEndpoint::generate)
}

/// Refusal of a path below `/v1` that names no endpoint.
#[cold]
pub(super) fn unknown_path(head: &RequestHead, bytes: &[u8]) -> Refusal {
    let path = single_slashes(trim_slashes(head.path.of(bytes)));
    let is_elsewhere = path.strip_prefix(b"/v1").is_some_and(is_spoken_elsewhere);
    if is_elsewhere { Refusal::not_spoken() } else { Refusal::no_path() }
}

/// True if a path that is not ours is one of OpenAI's, Anthropic's or of servers like theirs, so that the base URL is
/// right.
fn is_spoken_elsewhere(inside: &[u8]) -> bool {
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
