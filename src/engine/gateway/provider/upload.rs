//! A form on its way to a provider while it arrives from its client. Owns the progress; the client's connection keeps
//! the bytes that cannot be sent yet.

use crate::base::limits::BODY_RATE_MIN;
use crate::base::time::Mono;
use crate::dialect::{Fields, FormWriter, Invalid, RequestForm, RequestTarget};
use crate::wire::body::{LAST_CHUNK, write_chunk};
use crate::wire::head::{Framing, RequestHead};
use crate::wire::multipart::PART_HEAD_MAX;
use std::time::Duration;

/// Least bytes that are looked at in one step: the head of a part fits.
const STEP_MIN: usize = 2 * PART_HEAD_MAX;

/// A form that is being sent.
#[derive(Debug)]
pub(crate) struct Upload {
    writer: FormWriter,
    /// Announced length; `None` if it is sent in chunks.
    pub(crate) length: Option<u64>,
    /// Bytes of the client's body used in the last step, and in all earlier ones.
    used: usize,
    taken: u64,
    /// Why the form is invalid, until that is reported.
    pub(crate) failed: Option<String>,
    /// True if all of it has been written.
    pub(crate) is_written: bool,
    /// When the client was last told to wait, and how long it has waited before, in microseconds.
    waits_since: Mono,
    waited: u64,
}

impl Upload {
    /// The form for `with`; `body` are its bytes so far.
    pub(crate) fn new(
        form: &RequestForm,
        fields: &Fields,
        with: &RequestTarget<'_>,
        head: &RequestHead,
        body: &[u8],
    ) -> Result<Upload, Invalid> {
        let mut writer = FormWriter::new(form, fields, with);
        let length = match head.framing {
            Framing::Length(declared) => Some(writer.announce(body, form.is_complete, declared)?),
            _ => None,
        };
        let (failed, is_written, waits_since) = (None, false, Mono::NEVER);
        Ok(Upload { writer, length, used: 0, taken: 0, failed, is_written, waits_since, waited: 0 })
    }

    /// The boundary of the form.
    pub(crate) fn boundary(&self) -> &[u8] {
        self.writer.boundary()
    }

    /// Estimated tokens of the prompt that has been written.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.writer.prompt.tokens()
    }

    /// Takes the beginnings of the names of fields that were left out since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.writer.dropped)
    }

    /// True if a provider may take it for complete: at most blanks are missing.
    pub(crate) fn is_over(&self) -> bool {
        self.writer.is_over()
    }

    /// True if more of it would be sent if it were here.
    pub(crate) fn awaits_client(&self) -> bool {
        self.waits_since == Mono::NEVER
    }

    /// True if a byte of it has been written: no other attempt can follow.
    pub(crate) fn has_begun(&self) -> bool {
        self.writer.has_begun()
    }

    /// Appends what can be sent of `body`, the bytes that have arrived and are not used; true if the form is complete.
    pub(crate) fn write_some(&mut self, body: &[u8], complete: bool, room: usize, out: &mut Vec<u8>) -> bool {
        let step = &body[self.used.min(body.len())..];
        let step = &step[..step.len().min(room.max(STEP_MIN))];
        let is_last = complete && self.used + step.len() == body.len();
        let written = match self.length {
            Some(_) => self.writer.write(step, is_last, room, out),
            None => {
                let mut chunk = Vec::with_capacity(step.len());
                let written = self.writer.write(step, is_last, 0, &mut chunk);
                write_chunk(out, &chunk);
                out.extend_from_slice(if is_last && written.is_ok() { LAST_CHUNK } else { b"" });
                written
            }
        };
        match written {
            Ok(used) => self.used += used,
            Err(Invalid(why)) => self.failed = Some(why),
        }
        self.is_written = is_last && self.failed.is_none() && self.writer.missing() == 0;
        self.is_written
    }

    /// Takes the number of bytes of the client's body that have been used since the last call.
    pub(crate) fn take_used(&mut self) -> usize {
        self.taken += self.used as u64;
        std::mem::take(&mut self.used)
    }

    /// Bytes of the client's body that have arrived, of which `held` are still here.
    pub(crate) fn received(&self, held: usize) -> u64 {
        self.taken + held as u64
    }

    /// The client waits, or not, from `now` on.
    pub(crate) fn waits(&mut self, waits: bool, now: Mono) {
        match (waits, self.waits_since == Mono::NEVER) {
            (true, true) => self.waits_since = now,
            (false, false) => {
                self.waited += now.micros_since(self.waits_since);
                self.waits_since = Mono::NEVER;
            }
            _ => {}
        }
    }

    /// True if the client sends too slowly: `held` of its bytes have arrived and are not used.
    pub(crate) fn is_too_slow(&self, held: usize, begun: Mono, now: Mono, body_timeout: Duration) -> bool {
        let micros = now.micros_since(begun).saturating_sub(self.waited);
        let due = (micros / 1_000_000).saturating_mul(BODY_RATE_MIN);
        self.awaits_client() && micros > body_timeout.as_micros() as u64 && self.received(held) < due
    }
}
