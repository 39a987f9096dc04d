//! Facts for the operator about an unusual request, beyond the client's error: the cause of its failure, earlier failed
//! attempts, unknown names. Data, and its form in the log line; filled in by `exchange::diagnosis`. Text from a client
//! or a provider is in printable form here, and cut.

use super::captures::Captured;
use super::trace::Trace;
use crate::base::text::push_number;
use crate::policy::cause::Cause;
use crate::policy::keys::KeyIx;
use crate::policy::plan::Shorthand;
use crate::policy::usage::Usage;
use crate::wire::json::write_string;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// See the module's documentation. Text is in printable form.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    /// Failed attempts, except the one that failed the request.
    pub(crate) failed: Vec<Failed>,
    /// Charge for those attempts, and its cost in nano-dollars: each is billed in the tier of its own prompt.
    pub(crate) spent: Usage,
    pub(crate) spent_nano: u64,
    pub(crate) cause: Option<Cause>,
    pub(crate) upstream_status: Option<u16>,
    pub(crate) upstream_code: Box<[u8]>,
    /// Field of the request that the provider's error names.
    pub(crate) upstream_param: Box<[u8]>,
    /// Configured model that a refused request names, if it was refused before its model was chosen.
    pub(crate) model: Option<Arc<str>>,
    /// Requested model, if it is unknown or the request may not use it.
    pub(crate) asked: Box<[u8]>,
    /// Path of the request, if the path is unknown.
    pub(crate) path: Box<[u8]>,
    /// The field that a 400 refers to.
    pub(crate) field: Box<[u8]>,
    pub(crate) limit: Option<Shorthand>,
    /// The group whose limit was reached.
    pub(crate) limit_group: Option<Arc<str>>,
    /// Members of the body that were not passed on.
    pub(crate) dropped: Vec<Box<[u8]>>,
    /// Address of the caller, if a proxy's header gives it.
    pub(crate) caller: Option<Ipv6Addr>,
    /// The key that was presented, if it is no longer valid.
    pub(crate) key: Option<KeyIx>,
    /// Trace of the request, independent of its result.
    pub(crate) trace: Option<Box<Trace>>,
    /// Captured parts of the request, independent of its result.
    pub(crate) captured: Option<Box<Captured>>,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Number of the attempt, counted from 1.
    pub(crate) number: u32,
    pub(crate) target: Arc<str>,
    pub(crate) cause: Cause,
    pub(crate) micros: u64,
}

impl Diagnosis {
    /// True if an attempt has failed, even if the request has not.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Appends the trace header for the attempt of this number to the complete head of a request.
    #[cold]
    pub(crate) fn trace_request(&self, attempt: u8, head: &mut Vec<u8>) {
        if let Some(trace) = &self.trace {
            // The header goes before the empty line.
            head.truncate(head.len() - 2);
            trace.write_headers(attempt, head);
            head.extend_from_slice(b"\r\n");
        }
    }

    /// Trace id for the usage record.
    #[cold]
    pub(crate) fn trace_text(&self) -> Option<Arc<str>> {
        let mut text = Vec::with_capacity(49);
        self.trace.as_ref()?.write_text(&mut text);
        Some(String::from_utf8(text).ok()?.into())
    }

    /// Appends the members of the log line, each with a comma before it.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if let Some(trace) = &self.trace {
            trace.write_members(out);
        }
        word("limit", self.limit.map_or("", Shorthand::as_str).as_bytes(), out);
        word("limit_group", self.limit_group.as_deref().unwrap_or_default().as_bytes(), out);
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
        word("upstream_param", &self.upstream_param, out);
        word("field", &self.field, out);
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

/// Writes a member whose value needs no escapes; nothing if it is empty.
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
