//! What the operator is told of a request that did not go as usual, beyond what its client was told (contract section
//! 18): why it failed, which attempts before the last one did, which word of the client's was not understood. Owns it
//! from the moment it is known until the log line is written; most requests have none. Never holds content or a secret:
//! words that a client or a provider chose are escaped and cut, and what looks like a key is not kept.

use super::fault::Fault;
use super::state::{Answering, Attempt, Body, Exchange, State};
use crate::base::limits::TOLD_BYTES_MAX;
use crate::base::text::push_number;
use crate::base::time::Mono;
use crate::gateway::client::response::printable;
use crate::gateway::cx::Cx;
use crate::policy::cause::Cause;
use crate::policy::keys::KeyId;
use crate::policy::meter::LimitKind;
use crate::policy::refusal::{Refusal, RefusalKind};
use crate::wire::head::RequestHead;
use crate::wire::json::write_string;
use std::sync::Arc;

/// What stands for a word that looks like a key.
const STARS: &[u8] = b"***";

/// See the module's documentation. Words are in printable form.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    /// Attempts that failed, but for the one that the request failed with.
    failed: Vec<Failed>,
    cause: Option<Cause>,
    upstream_status: Option<u16>,
    upstream_code: Box<[u8]>,
    /// The model as it was asked for, where that is not known.
    asked: Box<[u8]>,
    /// The path, where there is nothing.
    path: Box<[u8]>,
    /// The field that a 400 is about.
    field: Box<[u8]>,
    limit: Option<LimitKind>,
    /// Members of the body that were not passed on.
    dropped: Vec<Box<[u8]>>,
    /// The key that was shown, where it opens nothing any more.
    key: Option<KeyId>,
}

/// One attempt that failed.
#[derive(Debug)]
struct Failed {
    /// Counted from 1.
    number: u32,
    target: Arc<str>,
    cause: Cause,
    micros: u64,
}

/// A word of a client's or a provider's as it is told. `prefix`: what our own keys begin with.
fn told(word: &[u8], prefix: &str) -> Box<[u8]> {
    match super::names_key(word, prefix) {
        true => STARS.into(),
        false => printable(word, TOLD_BYTES_MAX).into(),
    }
}

/// The field that a message of ours names: `messages[2].role: expected …`.
fn field_of(message: &str) -> &str {
    let (name, _) = message.split_once(": ").unwrap_or_default();
    let is_path = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte));
    if is_path { name } else { "" }
}

impl Exchange {
    fn diagnosis(&mut self) -> &mut Diagnosis {
        self.diagnosis.get_or_insert_default()
    }

    /// A word of a client's or a provider's as it is told.
    pub(super) fn told(&self, word: &[u8]) -> Box<[u8]> {
        told(word, &self.request.setup.config.server.key_prefix)
    }

    /// How much of an answer has come: nothing where none has begun, or all of it.
    pub(super) fn came(&self) -> Option<(u64, &'static str)> {
        match &self.state {
            State::Answering(Answering { body: Body::Stream(stream), .. }) => Some((stream.seen().into(), "events")),
            State::Answering(Answering { body: Body::Collect { buf, .. }, .. }) if !buf.is_empty() => {
                Some((buf.len() as u64, "bytes"))
            }
            _ => None,
        }
    }

    /// The attempt `at` has failed. Whether it is the last one is not known yet.
    pub(super) fn note_failed(&mut self, at: &Attempt, fault: &Fault, now: Mono) {
        let target = self.model().and_then(|model| model.targets.get(at.target as usize));
        let Some(target) = target.map(|target| target.label.clone()) else { return };
        let (number, cause, micros) = (at.attempts, fault.cause(), now.micros_since(at.begun));
        self.diagnosis().failed.push(Failed { number, target, cause, micros });
    }

    /// The request fails with `fault`.
    pub(super) fn note_end(&mut self, fault: &Fault) {
        let last = self.attempt().map_or(0, |at| at.attempts);
        let code = self.told(fault.code.as_deref().unwrap_or_default().as_bytes());
        let diagnosis = self.diagnosis();
        diagnosis.failed.pop_if(|failed| failed.number == last);
        diagnosis.cause = Some(fault.cause());
        diagnosis.upstream_status = fault.upstream_status();
        diagnosis.upstream_code = code;
    }

    /// A head that may not pass: what of it the operator is told. `spent`: the key that it showed, where that is known.
    pub(super) fn note_head(&mut self, refusal: &Refusal, head: &RequestHead, bytes: &[u8], spent: Option<KeyId>) {
        if refusal.kind == RefusalKind::NotFound {
            let path = self.told(head.path.of(bytes));
            self.diagnosis().path = path;
        }
        if spent.is_some() {
            self.diagnosis().key = spent;
        }
    }

    /// No model has the name that was asked for.
    pub(super) fn note_asked(&mut self, name: &str) {
        let asked = self.told(name.as_bytes());
        self.diagnosis().asked = asked;
    }

    /// Members of the body that the present target is not sent.
    pub(super) fn note_dropped(&mut self, names: Vec<Box<[u8]>>) {
        self.diagnosis().dropped = names;
    }

    /// The client is told `refusal`: what that means for the operator.
    pub(crate) fn explain(&mut self, refusal: &Refusal, cx: &mut Cx) {
        if let Some(limit) = refusal.limit {
            cx.stats.refused(limit);
        }
        let fails_upstream = self.diagnosis.as_ref().is_some_and(|diagnosis| diagnosis.cause.is_some());
        if fails_upstream {
            return;
        }
        let field = if refusal.kind == RefusalKind::InvalidRequest { field_of(&refusal.message) } else { "" };
        let diagnosis = self.diagnosis();
        diagnosis.field = field.as_bytes().into();
        diagnosis.limit = refusal.limit;
        diagnosis.cause = refusal.cause();
    }
}

impl Diagnosis {
    /// An attempt has failed, even where the request has not.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Appends the members of the log line, each with a comma before it.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if let Some(key) = &self.key {
            word("key", key.as_str().as_bytes(), out);
        }
        if let Some(cause) = &self.cause {
            out.extend_from_slice(b",\"cause\":\"");
            cause.write(out);
            out.push(b'"');
        }
        if let Some(status) = self.upstream_status {
            out.extend_from_slice(b",\"upstream_status\":");
            push_number(out, u64::from(status));
        }
        word("upstream_code", &self.upstream_code, out);
        word("field", &self.field, out);
        word("limit", self.limit.map_or("", LimitKind::name).as_bytes(), out);
        word("asked", &self.asked, out);
        word("path", &self.path, out);
        if !self.failed.is_empty() {
            out.extend_from_slice(b",\"failed\":");
            list(out, &self.failed, |failed, out| {
                out.extend_from_slice(b"{\"target\":");
                write_string(out, &failed.target);
                out.extend_from_slice(b",\"cause\":\"");
                failed.cause.write(out);
                out.extend_from_slice(b"\",\"us\":");
                push_number(out, failed.micros);
                out.push(b'}');
            });
        }
        if !self.dropped.is_empty() {
            out.extend_from_slice(b",\"dropped\":");
            list(out, &self.dropped, |name, out| {
                out.push(b'"');
                out.extend_from_slice(name);
                out.push(b'"');
            });
        }
    }
}

/// A member whose value needs no escapes; nothing where that is empty.
fn word(name: &str, value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":\"");
        out.extend_from_slice(value);
        out.push(b'"');
    }
}

fn list<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&T, &mut Vec<u8>)) {
    for (index, item) in items.iter().enumerate() {
        out.push(if index == 0 { b'[' } else { b',' });
        write(item, out);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_what_stands_before_the_colon_if_it_is_a_path() {
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
    fn a_strangers_word_is_cut_and_escaped_and_a_key_is_not_told() {
        assert_eq!(&*told(b"a\"b\n", "tg_"), b"a%22b%0a");
        assert_eq!(told(&[b'x'; 5000], "tg_").len(), TOLD_BYTES_MAX);
        for key in ["sk-proj-0123456789", "/v1/tg_0123456789abcdefghij"] {
            assert_eq!(&*told(key.as_bytes(), "tg_"), STARS);
        }
    }
}
