//! Relays the events of a response within one format.
//!
//! Tollgate may insert events of its own, so the upstream's are renumbered.

use super::super::answer::estimated;
use super::super::own::{IDENTITY, Own, OwnValues};
use super::super::stream_format::StreamFormat;
use super::{EventScan, Tap, join_lines};
use crate::dialect::answer::{Frame, Relayed, ResponseIdentity, StreamFault};
use crate::dialect::errors::{ErrorText, is_error};
use crate::dialect::keys::K;
use crate::dialect::relay::cost::remove_cost;
use crate::dialect::responses::hidden::hide;
use crate::dialect::responses::read_stream::{failed, is_of_item, is_unanswered, kind_of};
use crate::dialect::responses::response::write_usage;
use crate::dialect::usage::{ObservedUsage, Reported};
use crate::wire::json::{Raw, Token, object_with, write_count};
use crate::wire::{ModelEndpoint, Span};

impl Tap {
    /// Writes an event of Tollgate's own; the upstream's numbers continue after it. Returns the number of events sent
    /// so far. `None`: another format.
    pub(crate) fn keepalive(&mut self, out: &mut Vec<u8>) -> Option<u64> {
        let StreamFormat::Responses { next, inserted, .. } = &mut self.format else { return None };
        out.extend_from_slice(b"event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":");
        write_count(out, u64::from(*next));
        out.extend_from_slice(b"}\n\n");
        (*next, *inserted) = (next.saturating_add(1), inserted.saturating_add(1));
        Some(u64::from(*next))
    }

    /// Notes the number `own` of the upstream's next event, if any; returns the number to send if it differs. Numbers
    /// beyond 32 bits are ignored.
    pub(super) fn number(&mut self, own: Option<u64>) -> Option<u32> {
        let StreamFormat::Responses { next, inserted, .. } = &mut self.format else { return None };
        let Some(own) = own.and_then(|own| u32::try_from(own).ok()) else {
            *next = next.saturating_add(1);
            return None;
        };
        let sent = own.saturating_add((*inserted).into());
        *next = sent.saturating_add(1);
        (*inserted > 0).then_some(sent)
    }

    /// Relays an event of a response.
    pub(super) fn responses(
        &mut self,
        frame: &Frame<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Relayed, StreamFault> {
        let data = frame.data;
        if data.trim_ascii() == b"[DONE]" {
            return Ok(Relayed::Idle);
        }
        let seen = self.look(data, responses_value)?;
        let kind = kind_of(seen.value(seen.kind, data), frame.name);
        let kind = &*kind;
        let number = seen.value(seen.number, data).and_then(Raw::count);
        if matches!(kind, b"keepalive" | b"ping") {
            match kind {
                // Before an answer has begun, clients accept only its opening events.
                _ if !self.begun => out.extend_from_slice(b":\n\n"),
                // Some clients accept no event that their SDK does not know.
                b"ping" => _ = self.keepalive(out),
                _ => self.pass(kind, number, frame, out),
            }
            return Ok(Relayed::Idle);
        }
        let begin = out.len();
        if let Some(usage) = seen.value(seen.usage, data) {
            self.reported.merge_at(Reported::from_responses(usage), &self.relayed);
        }
        let ends = matches!(kind, b"response.completed" | b"response.incomplete");
        let response = Raw::new(seen.object.of(data));
        let error = || seen.value(seen.error, data).filter(|error| is_error(*error)).map(ErrorText::from_value);
        if let Some(text) = failed(kind, Raw::new(data), response).or_else(error) {
            if !seen.object.is_empty() {
                self.failed = Some(response.bytes().into());
            }
            return Err(StreamFault::Error(text));
        }
        self.begun = true;
        if let StreamFormat::Responses { next, inserted, opened: true, .. } = &mut self.format
            && matches!(kind, b"response.created" | b"response.in_progress")
        {
            let own = number.and_then(|own| u32::try_from(own).ok()).unwrap_or_default();
            let ahead = next.saturating_sub(own.saturating_add(1));
            *inserted = u16::try_from(ahead).unwrap_or(u16::MAX);
            return Ok(Relayed::Event);
        }
        self.note_item(kind, response, ends)?;
        if ends && self.observed().reported.output.is_none() {
            // Some servers send only the complete answer, without its pieces.
            let whole = estimated(ModelEndpoint::RESPONSES, response.bytes());
            self.relayed.add(whole.saturating_sub(self.relayed.tokens()));
        }
        if seen.object.is_empty() {
            self.pass(kind, number, frame, out);
            if seen.is_text_alone() && is_plain(frame, kind) {
                return Ok(Relayed::Text { text: seen.text, sent_at: None });
            }
            return Ok(Relayed::Event);
        }
        let from = begin_event(kind, out);
        seen.write(data, IDENTITY, OwnValues::of(identity), out);
        hide(identity.hides, true, from, out);
        if ends && seen.usage.is_none() && self.usage_due.is_some() {
            add_usage(&self.observed(), identity, from, out);
        }
        let sent = self.number(number);
        end_event(from, sent, out);
        remove_cost(seen.own_cost, begin, out);
        Ok(Relayed::Event)
    }

    /// Notes an item of the response, or its end; it is an error if the response ends without an answer.
    fn note_item(&mut self, kind: &[u8], response: Raw<'_>, ends: bool) -> Result<(), StreamFault> {
        if let StreamFormat::Responses { answered, .. } = &mut self.format {
            *answered |= is_of_item(kind, response);
            if ends && !*answered && is_unanswered(kind, response) {
                return Err(StreamFault::Malformed);
            }
        }
        (self.finish_seen, self.finished) = (ends, ends);
        Ok(())
    }

    /// Passes an event on unchanged, except for its number if that differs.
    fn pass(&mut self, kind: &[u8], number: Option<u64>, frame: &Frame<'_>, out: &mut Vec<u8>) {
        match self.number(number) {
            None => out.extend_from_slice(frame.raw),
            sent => {
                let from = begin_event(kind, out);
                out.extend_from_slice(frame.data);
                end_event(from, sent, out);
            }
        }
    }
}

/// True if an event has the form in which it is written with another number.
fn is_plain(frame: &Frame<'_>, kind: &[u8]) -> bool {
    let named = frame.raw.strip_prefix(b"event: ").and_then(|rest| rest.strip_prefix(kind));
    named.and_then(|rest| rest.strip_prefix(b"\ndata: ")?.strip_suffix(b"\n\n")) == Some(frame.data)
}

/// Begins an event; returns the position of its data.
fn begin_event(kind: &[u8], out: &mut Vec<u8>) -> usize {
    for part in [b"event: ", kind, b"\ndata: "] {
        out.extend_from_slice(part);
    }
    out.len()
}

/// Replaces the `usage` of the response in the event that begins at `from`: it has no counts, and the client asked for
/// the cost, which is in it.
#[cold]
fn add_usage(observed: &ObservedUsage, identity: &ResponseIdentity<'_>, from: usize, out: &mut Vec<u8>) {
    let Some(response) = Raw::new(&out[from..]).get("response").map(Raw::bytes) else { return };
    let place = Span::of_part(out, response);
    let (mut usage, mut written) = (Vec::new(), Vec::new());
    write_usage(observed, identity, &mut usage);
    object_with(Raw::new(response), &[("usage", &usage)], &mut written);
    out.splice(place.start as usize..place.end as usize, written);
}

/// Ends an event whose data begins at `from`, with its number replaced if there is a new one.
fn end_event(from: usize, number: Option<u32>, out: &mut Vec<u8>) {
    join_lines(&mut out[from..]);
    if let Some(number) = number
        && let Some(own) = Raw::new(&out[from..]).get("sequence_number")
    {
        let place = Span::of_part(out, own.bytes());
        out.splice(place.start as usize..place.end as usize, number.to_string().into_bytes());
    }
    out.extend_from_slice(b"\n\n");
}

/// Notes the relevant values of a response event; true for text that counts as relayed.
fn responses_value(path: &[K], token: Token, whole: Span, seen: &mut EventScan) -> bool {
    match path {
        [K::Type] => seen.kind = Some(whole),
        [K::SequenceNumber] => seen.number = Some(whole),
        [K::Response] => seen.object = if token == Token::ObjectClose { whole } else { Span::default() },
        [K::Response, K::Id] => seen.places.add(whole, Own::Id),
        [K::Response, K::Model] => seen.places.add(whole, Own::Model),
        [K::Response, K::Store] => seen.places.add(whole, Own::Store),
        [K::Response, K::PreviousResponseId] => seen.places.add(whole, Own::Previous),
        [K::Response, K::Usage] => seen.usage = (token == Token::ObjectClose).then_some(whole),
        [K::Response, K::Usage, K::Cost | K::CostDetails | K::CostInUsdTicks] => seen.own_cost = true,
        [K::Response, K::Error] => seen.error = Some(whole),
        [K::Delta] => return true,
        _ => {}
    }
    false
}
