//! The log: one JSON line per request, and one for everything that happens to the gateway itself. Never content, never
//! a secret: a line contains ids, names from the configuration, numbers, and the client's own request id in printable
//! form.

use super::diagnosis::Diagnosis;
use super::metrics::Timed;
use crate::base::text::{push_ip, push_number};
use crate::base::time::Mono;
use crate::gateway::client::response::{ISO_LEN, RequestId};
use crate::gateway::counters::PHASES;
use crate::gateway::provider::credential::ClientCredential;
use crate::policy::keys::Key;
use crate::policy::meter::{StrictReservation, TargetShare};
use crate::policy::refusal::RefusalKind;
use crate::policy::usage::Usage;
use crate::wire::json::write_string;
use std::net::IpAddr;
use std::sync::Arc;

/// Initial storage, enough for an ordinary line.
const LINE_ROOM: usize = 512;

/// Attribution that a client supplies, and what else few requests have; exists only if there is any.
#[derive(Debug, Default)]
pub(crate) struct ClientAttribution {
    /// The client's own request id, in printable form.
    pub(crate) client_request_id: Box<[u8]>,
    /// The user, in the form that is stored.
    pub(crate) user: Option<Arc<str>>,
    /// The conversation, in the form that is stored.
    pub(crate) session: Option<Arc<str>>,
    /// The agent of the program, and the agent or session that started it, in the form that is stored.
    pub(crate) agent: Option<Arc<str>>,
    pub(crate) parent_agent: Option<Arc<str>>,
    /// The client's credential for its provider, which is never written.
    pub(crate) credential: Option<ClientCredential>,
    /// Content type of an answer without events, as its provider sends it.
    pub(crate) answer_type: Option<Box<str>>,
    /// Reservation of the request in the limits of its targets.
    pub(crate) reserved: TargetShare,
    /// Images that the request may get, or milliseconds of its audio: what is reserved, and charged if the provider
    /// does not report it.
    pub(crate) units: u32,
    /// Reservation under strict limits.
    pub(crate) strict: Option<StrictReservation>,
    /// The requested model, if another one has replaced it.
    pub(crate) replaced: Option<Box<Replaced>>,
}

impl ClientAttribution {
    /// Id of the requested model, if another one has replaced it.
    #[inline]
    pub(crate) fn asked(&self) -> Option<&Arc<str>> {
        self.replaced.as_ref().filter(|replaced| !replaced.reason.is_empty()).map(|replaced| &replaced.asked)
    }
}

/// The requested model of a request that may go to another one.
#[derive(Clone, Debug)]
pub(crate) struct Replaced {
    /// Its id.
    pub(crate) asked: Arc<str>,
    /// Value of `x-tollgate-model-reason`; empty if the request stays with the requested model.
    pub(crate) reason: Box<str>,
    /// Each `on_exhausted` that was followed, as bits.
    pub(crate) rules: u32,
    /// The models that were tried, as indexes into the catalog.
    pub(crate) tried: Vec<u16>,
}

/// Phases of a request, each with its beginning and its end, or `NEVER`.
pub(crate) type Times = [(Timed, Mono, Mono); PHASES];

/// Data of a request's log line.
pub(crate) struct AccessLogLine<'a> {
    pub(crate) id: &'a RequestId,
    pub(crate) endpoint: &'static str,
    pub(crate) peer: IpAddr,
    pub(crate) key: Option<Key<'a>>,
    /// Attribution that the client supplied.
    pub(crate) extras: Option<&'a ClientAttribution>,
    /// Class of the client program; empty if the configuration does not keep it.
    pub(crate) client: &'static str,
    pub(crate) model: Option<&'a str>,
    /// The last target tried, and the number of targets tried.
    pub(crate) target: Option<(&'a str, u32)>,
    pub(crate) stream: bool,
    pub(crate) status: u16,
    /// Type of the error that the client received.
    pub(crate) error: Option<RefusalKind>,
    /// Further facts for the operator.
    pub(crate) diagnosis: Option<&'a Diagnosis>,
    /// Usage that was charged.
    pub(crate) usage: Option<Usage>,
    pub(crate) times: &'a Times,
}

impl AccessLogLine<'_> {
    /// Appends the line.
    pub(crate) fn write(&self, time: &[u8; ISO_LEN], out: &mut Vec<u8>) {
        open(time, out);
        out.extend_from_slice(b"\",\"id\":\"");
        out.extend_from_slice(self.id.text());
        word(out, "\",\"endpoint\":\"", self.endpoint);
        out.extend_from_slice(b"\",\"peer\":\"");
        push_ip(out, self.peer);
        if let Some(key) = self.key {
            out.extend_from_slice(b"\",\"key\":\"");
            out.extend_from_slice(key.id().text());
            out.extend_from_slice(b"\",\"name\":");
            write_string(out, key.name());
            if let Some(group) = &key.kind.group {
                out.extend_from_slice(b",\"group\":");
                write_string(out, group);
            }
        } else {
            out.push(b'"');
        }
        if let Some(extras) = self.extras {
            for (name, value) in [
                (",\"user\":", &extras.user),
                (",\"session\":", &extras.session),
                (",\"agent\":", &extras.agent),
                (",\"parent_agent\":", &extras.parent_agent),
            ] {
                if let Some(value) = value {
                    out.extend_from_slice(name.as_bytes());
                    write_string(out, value);
                }
            }
            if let Some(asked) = extras.asked() {
                word(out, ",\"asked\":\"", asked);
                out.push(b'"');
            }
        }
        if !self.client.is_empty() {
            word(out, ",\"client\":\"", self.client);
            out.push(b'"');
        }
        if let Some(model) = self.model {
            // Model ids need no escapes.
            word(out, ",\"model\":\"", model);
            out.push(b'"');
        }
        if let Some((target, attempts)) = self.target {
            out.extend_from_slice(b",\"target\":");
            write_string(out, target);
            number(out, ",\"attempts\":", u64::from(attempts));
            // Two copies, each of a length known at compile time.
            match self.stream {
                true => out.extend_from_slice(b",\"stream\":true"),
                false => out.extend_from_slice(b",\"stream\":false"),
            }
        }
        number(out, ",\"status\":", u64::from(self.status));
        if let Some(error) = self.error {
            word(out, ",\"error\":\"", error.as_str());
            out.push(b'"');
        }
        if let Some(diagnosis) = self.diagnosis {
            diagnosis.write(out);
        }
        if let Some(usage) = &self.usage {
            write_usage(usage, out);
        }
        self.write_times(out);
        if let Some(extras) = self.extras.filter(|extras| !extras.client_request_id.is_empty()) {
            out.extend_from_slice(b",\"client_request_id\":\"");
            out.extend_from_slice(&extras.client_request_id);
            out.push(b'"');
        }
        out.extend_from_slice(b"}\n");
    }

    /// Writes microseconds per phase, the total first; a phase that was not reached is left out.
    fn write_times(&self, out: &mut Vec<u8>) {
        // Names of constant length cost two moves each. The total has always been reached.
        let [body, queue, send, wait, relay, total] = self.times;
        out.extend_from_slice(b",\"us\":{");
        phase(out, "\"total\":", total);
        phase(out, ",\"body\":", body);
        phase(out, ",\"queue\":", queue);
        phase(out, ",\"send\":", send);
        phase(out, ",\"wait\":", wait);
        phase(out, ",\"relay\":", relay);
        out.push(b'}');
    }
}

/// Begins a line with the time `time`. A closing quote must follow.
pub(crate) fn open(time: &[u8; ISO_LEN], out: &mut Vec<u8>) {
    out.reserve(LINE_ROOM);
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(time);
}

/// Appends `name` and a text of Tollgate's own, which needs no escapes.
#[inline(always)]
fn word(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
}

/// Appends `name` and the duration of a phase, if it was reached.
#[inline(always)]
fn phase(out: &mut Vec<u8>, name: &str, (timed, from, to): &(Timed, Mono, Mono)) {
    debug_assert_eq!(name.trim_matches([',', '"', ':']), timed.name());
    if *from != Mono::NEVER && *to != Mono::NEVER {
        number(out, name, to.micros_since(*from));
    }
}

/// Appends `name` and a number.
#[inline(always)]
fn number(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    push_number(out, value);
}

fn write_usage(usage: &Usage, out: &mut Vec<u8>) {
    number(out, ",\"input\":", usage.uncached_in);
    number(out, ",\"cache_read\":", usage.cache_read);
    number(out, ",\"cache_write\":", usage.cache_write);
    number(out, ",\"output\":", usage.out);
    word(out, ",\"source\":\"", usage.source.as_str());
    out.push(b'"');
}
