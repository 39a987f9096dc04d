//! Notes what the operator needs to know about a request that failed or went unusually. It is collected while the
//! request runs and written with its log line; most requests have none. Never holds content or a secret: words that a
//! client or a provider chose are escaped and cut, and words that look like keys are replaced.

use super::event::Outcome;
use super::fault::Fault;
use super::job::{RequestJob, RequestNotes};
use super::mask::{mask, without_words};
use super::request::Request;
use super::state::Body;
use crate::base::hash::{mix, mix_bytes};
use crate::base::limits::{TOLD_BYTES_MAX, TOLD_LOOKED_AT_MAX};
use crate::base::time::Mono;
use crate::dialect::RequestScan;
use crate::gateway::client::response::printable;
use crate::gateway::cx::Cx;
use crate::gateway::provider::credential::ClientCredential;
use crate::gateway::report::diagnosis::Failed;
use crate::gateway::report::recorder::FailedRequest;
use crate::policy::cause::Cause;
use crate::policy::keys::{KeyIx, holds_key};
use crate::policy::meter::Whose;
use crate::policy::refusal::{Refusal, RefusalKind};
use crate::wire::head::RequestHead;
use crate::wire::percent;
use std::sync::Arc;

/// Replacement for a word that looks like a key.
const STARS: &[u8] = b"***";

/// Bytes of a refused body in which its model is looked for.
const MODEL_LOOKED_AT: usize = 16 << 10;

/// A word of a client or a provider as it is reported: escaped, checked for keys, then cut. `prefix`: the prefix of our
/// own keys. A word may be as long as a body: no step reads more than its beginning.
pub(super) fn printable_word(word: &[u8], prefix: &str) -> Box<[u8]> {
    let word = beginning(word);
    // A path has its escapes still in it.
    let hidden = || word.contains(&b'%') && holds_key(&percent::decoded(word), prefix);
    match holds_key(&String::from_utf8_lossy(word), prefix) || hidden() {
        true => STARS.into(),
        false => printable(word, TOLD_BYTES_MAX).into(),
    }
}

/// The part of a word that [`printable_word`] reads.
pub(super) fn beginning(word: &[u8]) -> &[u8] {
    &word[..word.len().min(TOLD_LOOKED_AT_MAX)]
}

/// Cause of a body that is not JSON: the position that the client's message names.
fn syntax_error(message: &str) -> Option<Cause> {
    let (at, _) = message.strip_prefix("invalid JSON at byte ")?.split_once(':')?;
    Some(Cause::new("invalid JSON", "").after(at.parse().ok()?, "bytes"))
}

/// The field that a message of Tollgate names: `messages[2].role: expected …`.
fn field_of(message: &str) -> &str {
    let (name, _) = message.split_once(": ").unwrap_or_default();
    let is_path = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte));
    if is_path { name } else { "" }
}

impl Body {
    /// Amount of an answer that has arrived; `None` if none has begun or it is complete.
    pub(super) fn came(&self) -> Option<(u64, &'static str)> {
        match self {
            Body::Stream(stream) => Some((stream.seen.into(), "events")),
            Body::Bytes { came: came @ 1.., .. } => Some((*came, "bytes")),
            Body::Collect { buf, .. } if !buf.is_empty() => Some((buf.len() as u64, "bytes")),
            _ => None,
        }
    }
}

impl RequestNotes {
    /// The request fails with `fault`, in attempt number `last`.
    pub(super) fn note_end(&mut self, request: &Request, fault: &Fault, last: u32) {
        let code = request.printable_word(fault.code.as_deref().unwrap_or_default().as_bytes());
        let param = request.printable_word(fault.param.as_deref().unwrap_or_default().as_bytes());
        let diagnosis = self.get_mut();
        diagnosis.failed.pop_if(|failed| failed.number == last);
        diagnosis.cause = Some(fault.cause());
        diagnosis.upstream_status = fault.upstream_status();
        (diagnosis.upstream_code, diagnosis.upstream_param) = (code, param);
    }

    /// True if the request has failed, or one of its attempts.
    pub(super) fn has_failed(&self, outcome: &Outcome) -> bool {
        self.0.as_ref().is_some_and(|diagnosis| outcome.status >= 400 || diagnosis.has_failures())
    }

    /// The targets at which attempts have failed, each once.
    pub(super) fn failed_targets(&self) -> Vec<Arc<str>> {
        let mut targets: Vec<Arc<str>> = Vec::new();
        for failed in self.0.iter().flat_map(|diagnosis| &diagnosis.failed) {
            if !targets.contains(&failed.target) {
                targets.push(failed.target.clone());
            }
        }
        targets
    }

    /// The key of the request, even if the key is no longer valid.
    #[inline]
    pub(super) fn presented(&self, request: &Request) -> Option<KeyIx> {
        request.found.key.or_else(|| self.0.as_ref()?.key)
    }

    /// The failed request for the recorder. Requests with one reason have equal numbers: of key, status, limit, field,
    /// model, target. Requests of one kind also have one session.
    #[inline]
    fn failure(&self, request: &Request, target: u64, outcome: &Outcome) -> FailedRequest {
        let key = self.presented(request).map_or(u32::MAX, |key| key.0);
        let mut kind = mix(key.into(), outcome.status.into());
        if request.asked.is_some() {
            kind = mix(kind, request.model().map_or(0, |model| model.id.as_ptr().addr() as u64));
        }
        if let Some(diagnosis) = &self.0 {
            let limit = diagnosis.limit.map_or(0, |limit| limit as u64 + 1);
            kind = mix(kind, limit ^ diagnosis.cause.map_or(0, |cause| cause.number()));
            let words = [&diagnosis.field, &diagnosis.asked, &diagnosis.path, &diagnosis.upstream_code];
            if words.iter().any(|word| !word.is_empty()) {
                kind = words.iter().fold(kind, |kind, word| mix_bytes(kind, word));
            }
            if let Some(model) = &diagnosis.model {
                kind = mix(kind, model.as_ptr().addr() as u64);
            }
            if let Some(group) = &diagnosis.limit_group {
                kind = mix_bytes(kind, group.as_bytes());
            }
        }
        let (status, reason) = (outcome.status, mix(kind, target));
        let session = request.extras.as_ref().and_then(|extras| extras.session.as_ref());
        let kind = session.map_or(reason, |session| mix_bytes(reason, session.as_bytes()));
        FailedRequest { status, key, reason, kind }
    }

    /// Notes what the operator needs to know about a refused head. `ended`: the key that it presented, if that is no
    /// longer valid.
    pub(super) fn note_head(
        &mut self,
        request: &Request,
        refusal: &Refusal,
        head: &RequestHead,
        bytes: &[u8],
        ended: Option<KeyIx>,
    ) {
        if refusal.kind == RefusalKind::NotFound || refusal.status == 405 {
            let path = request.printable_word(head.path.of(bytes));
            self.get_mut().path = path;
        }
        if ended.is_some() {
            self.get_mut().key = ended;
        }
    }

    /// No model has the requested name, or the key may not use the model at this endpoint.
    pub(crate) fn note_asked(&mut self, request: &Request, name: &str) {
        let asked = request.printable_word(name.as_bytes());
        self.get_mut().asked = asked;
    }

    /// Notes what `refusal` means for the operator.
    pub(crate) fn explain(&mut self, refusal: &Refusal, cx: &mut Cx) {
        if let Some(limit) = refusal.limit {
            cx.report.stats.refused(limit);
        }
        let fails_upstream = self.0.as_ref().is_some_and(|diagnosis| diagnosis.cause.is_some());
        if fails_upstream {
            return;
        }
        let field = if refusal.kind == RefusalKind::InvalidRequest { field_of(&refusal.message) } else { "" };
        let diagnosis = self.get_mut();
        diagnosis.field = field.as_bytes().into();
        diagnosis.limit = refusal.limit;
        if let Some(Whose::Group(name)) = refusal.whose.as_deref() {
            diagnosis.limit_group = Some(name.clone());
        }
        diagnosis.cause = refusal.cause().or_else(|| syntax_error(&refusal.message));
    }
}

/// The failed request for the recorder.
pub(super) fn failed_request(job: &RequestJob, outcome: &Outcome) -> FailedRequest {
    let target = job.target().filter(|_| job.attempt.attempts > 0).map_or(0, |target| target.seed);
    job.notes.failure(&job.request, target, outcome)
}

impl RequestJob {
    /// Notes the model that a refused request names at the beginning of its body.
    #[cold]
    pub(crate) fn note_model(&mut self, body: &[u8]) {
        let Some(endpoint) = self.request.endpoint().filter(|_| self.request.asked.is_none()) else { return };
        let body = &body[..body.len().min(MODEL_LOOKED_AT)];
        let (mut scan, mut scratch) = (RequestScan::new(), Vec::new());
        scan.reset(endpoint);
        // The members before an error are known.
        let _ = scan.finish(body);
        let catalog = &self.request.setup.config.catalog;
        let named = scan.fields().model_name(body, &mut scratch).and_then(|name| catalog.asked(name));
        if let Some(model) = named.and_then(|index| catalog.get(index)) {
            self.notes.get_mut().model = Some(model.id.clone());
        }
    }

    /// A provider's message with its secrets masked; `None` if there is none.
    pub(super) fn masked(&self, message: &str) -> Option<String> {
        let (model, target) = (self.request.model()?, self.target()?);
        if message.trim().is_empty() {
            return None;
        }
        let provider = self.request.setup.config.providers.get(target.provider)?;
        let credentials = provider.credentials.iter().map(|credential| credential.secret.expose());
        let secrets = credentials.chain(provider.headers.iter().map(|(_, value)| value.as_str()));
        let own = self.request.extras.as_ref().and_then(|extras| extras.credential.as_ref());
        let secrets = secrets.chain(own.into_iter().flat_map(ClientCredential::parts));
        let short = own.and_then(|own| without_words(message, own.parts()));
        let names = (&*target.model, &*model.id);
        Some(mask(short.as_deref().unwrap_or(message), names, secrets, &self.request.setup.config.server.key_prefix))
    }

    /// The present attempt has failed. It may not be the last one.
    pub(super) fn note_failed(&mut self, fault: &Fault, now: Mono) {
        let Some(target) = self.target().map(|target| target.label.clone()) else { return };
        let (attempts, begun) = (self.attempt.attempts, self.attempt.begun);
        let (number, cause, micros) = (attempts.into(), fault.cause(), now.micros_since(begun));
        if let Some(trace) = &mut self.notes.get_mut().trace {
            trace.fails(attempts, fault.end(), fault.upstream_status(), now);
        }
        self.notes.get_mut().failed.push(Failed { number, target, cause, micros });
    }
}

impl Request {
    /// A word of a client or a provider as it is reported.
    pub(super) fn printable_word(&self, word: &[u8]) -> Box<[u8]> {
        printable_word(word, &self.setup.config.server.key_prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_the_text_before_the_colon_if_it_is_a_path() {
        for (message, field) in [
            ("messages[2].role: expected one of system", "messages[2].role"),
            ("content-type: expected application/json", "content-type"),
            ("invalid JSON at byte 7: expected a value", ""),
            ("no colon", ""),
        ] {
            assert_eq!(field_of(message), field);
        }
    }

    #[test]
    fn foreign_text_is_cut_and_escaped_and_a_key_is_masked() {
        assert_eq!(&*printable_word(b"a\"b\n", "tg_"), b"a%22b%0a");
        assert_eq!(printable_word(&[b'x'; 5000], "tg_").len(), TOLD_BYTES_MAX);
        let key = format!("tg_live_{}", "aB3".repeat(17));
        let long = format!("{}{key}", "x".repeat(TOLD_BYTES_MAX - 20));
        for text in [
            "sk-proj-0123456789",
            "sess-sk-proj-0123456789",
            "/v1/tg_0123456789abcdefghij",
            "req/tg_0123456789abcdefghij",
            "Bearer0123456789",
            "id=tg_0123456789abcdef;1",
            &key,
            &format!("sess-{key}"),
            &format!("sess_{key}"),
            &format!("a{key}b"),
            &format!("/v1/key_{key}"),
            &format!("/v1/%74g%5Flive_{}", &key[8..]),
            &long,
        ] {
            assert_eq!(&*printable_word(text.as_bytes(), "tg_"), STARS, "{text}");
        }
        for text in
            ["req_0123456789abcdef0123", "3f2c-77aa-task-sk-1", "tg_7", "", "my-trace:42", "atg_live_0123456789ab"]
        {
            assert_eq!(&*printable_word(text.as_bytes(), "tg_"), text.as_bytes());
        }
    }
}
