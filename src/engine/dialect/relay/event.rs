//! Relays the events of a stream within one format.

mod content;
mod media;
mod response;
mod seen;

use super::cost::remove_cost;
use super::own::{IDENTITY, Own, OwnValues};
use super::stream_format::StreamFormat;
use super::text::{count_others, is_relayed_text};
use crate::dialect::answer::{Destination, Frame, Relayed, ResponseIdentity, StreamFault};
use crate::dialect::chat::write_stream::{CHUNK, write_usage_chunk};
use crate::dialect::dispatch::with_format;
use crate::dialect::errors::{ErrorText, ErrorWords, is_error, read_error};
use crate::dialect::keys::{K, Walk};
use crate::dialect::messages::write_stream::write_usage as write_messages_usage;
use crate::dialect::neutral::delta::{finish_word, finishes};
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::responses::write_stream::ResponsesWriter;
use crate::dialect::tokens::Estimator;
use crate::dialect::usage::{ObservedUsage, Reported};
use crate::wire::json::{self, Raw, Token, key, members};
use crate::wire::{ModelEndpoint, Span};
use lanes::skip::to_either;
use seen::EventScan;

/// Relays each event of a stream within one format.
#[derive(Debug)]
pub(crate) struct Tap {
    reported: Reported,
    relayed: Estimator,
    /// The response that reported the failure of the stream.
    failed: Option<Box<[u8]>>,
    /// Creation time in the chunks of a chat stream, in 32 bits; 0 until a chunk has one.
    created: u32,
    format: StreamFormat,
    /// True while the client of a chat stream has not received the usage where its SDK reads it; `None`: it did not
    /// ask.
    usage_due: Option<bool>,
    /// Part of an answer has arrived; for a chat stream or a completion, the end of one of its choices.
    begun: bool,
    /// The last chunk of a chat stream has a delta with more than its role and text.
    has_more: bool,
    /// True once a finish reason is relayed: only the formal end may be missing.
    pub(crate) finish_seen: bool,
    /// True once the event that ends the stream is relayed.
    pub(crate) finished: bool,
}

/// The event that ends a messages stream.
const MESSAGE_STOP: &[u8] = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

impl StreamFormat {
    fn new(endpoint: ModelEndpoint) -> StreamFormat {
        match endpoint.as_passthrough() {
            Some(passthrough) if !passthrough.generates() => {
                let words = passthrough.is_transcript();
                StreamFormat::Media { due: 1, units: 0, begun: false, listed: false, words, timed: false }
            }
            Some(_) => StreamFormat::Completion { due: 1, running: 0, ended: 0 },
            None => with_format!(endpoint.shape, F => F::STREAM),
        }
    }

    /// `object` of the events of a chat stream, or of a completion's stream.
    fn object(self) -> &'static str {
        if let StreamFormat::Completion { .. } = self { "text_completion" } else { CHUNK }
    }
}

impl Tap {
    /// Returns a tap at the start of a stream. `show_usage`: the client asked for the usage chunk (chat only).
    pub(crate) fn new(endpoint: ModelEndpoint, show_usage: bool) -> Tap {
        Tap {
            reported: Reported::default(),
            relayed: Estimator::new(),
            failed: None,
            created: 0,
            format: StreamFormat::new(endpoint),
            usage_due: show_usage.then_some(true),
            begun: false,
            has_more: false,
            finish_seen: false,
            finished: false,
        }
    }

    /// Relays an event.
    pub(crate) fn event(
        &mut self,
        frame: &Frame<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Relayed, StreamFault> {
        if frame.data.is_empty() {
            idle(self.format, frame, out);
            return Ok(Relayed::Idle);
        }
        match self.format {
            StreamFormat::Chat { .. } | StreamFormat::Completion { .. } => {
                self.chat(frame.name, frame.data, identity, out)
            }
            StreamFormat::Messages => self.messages(frame, identity, out),
            StreamFormat::Media { .. } => self.media(frame, out),
            StreamFormat::Responses { .. } => self.responses(frame, identity, out),
        }
    }

    /// Notes another event like the last one, with this text. Returns the number of events of Tollgate's own before it.
    #[inline]
    pub(crate) fn repeats(&mut self, text: &[u8]) -> u16 {
        self.relayed.feed_json(text);
        let StreamFormat::Responses { next, inserted, .. } = &mut self.format else { return 0 };
        *next = next.saturating_add(1);
        *inserted
    }

    /// Sets the number of choices in the stream; each has an end of its own.
    pub(crate) fn awaits(&mut self, choices: u32) {
        if let StreamFormat::Chat { due, .. } | StreamFormat::Completion { due, .. } | StreamFormat::Media { due, .. } =
            &mut self.format
        {
            *due = choices;
        }
    }

    /// Continues after `events` events were sent: the opening events are not repeated.
    pub(crate) fn resume(&mut self, events: u16) {
        if let StreamFormat::Responses { next, opened, .. } = &mut self.format {
            (*next, *opened) = (events.into(), events > 0);
        }
    }

    /// Writes the error for a broken stream of a response; false for other formats, which use the general error event.
    pub(crate) fn fail(&mut self, words: &ErrorWords<'_>, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> bool {
        let StreamFormat::Responses { next, .. } = self.format else { return false };
        let mut writer = ResponsesWriter::after(next.into(), identity.created);
        match self.failed.take() {
            Some(response) => writer.fail_as(words, Raw::new(&response), identity, out),
            None => {
                let (state, observed) = (&TranslationState::default(), &self.observed());
                writer.fail(words, &mut Destination { state, observed, identity, out });
            }
        }
        true
    }

    /// True if all choices that have begun have ended, or an image has arrived: some servers send only one of several
    /// requested.
    pub(crate) fn all_ended(&self) -> bool {
        match self.format {
            StreamFormat::Chat { running, .. } | StreamFormat::Completion { running, .. } => self.begun && running == 0,
            format => matches!(format, StreamFormat::Media { units: 1.., begun: false, .. }),
        }
    }

    /// Handles a stream without its formal end: writes that end if nothing else is missing.
    pub(crate) fn close(&mut self, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        if !self.finish_seen && !self.all_ended() {
            return Err(StreamFault::Incomplete);
        }
        match self.format {
            StreamFormat::Chat { .. } | StreamFormat::Completion { .. } => self.done(identity, out),
            StreamFormat::Messages => out.extend_from_slice(MESSAGE_STOP),
            // The end of the body is the only formal end.
            StreamFormat::Media { .. } => {}
            // In this format the finish reason and the end are one event.
            StreamFormat::Responses { .. } => return Err(StreamFault::Incomplete),
        }
        self.finished = true;
        Ok(())
    }

    /// Usage observed so far.
    pub(crate) fn observed(&self) -> ObservedUsage {
        let observed = ObservedUsage::of_stream(self.reported, &self.relayed);
        match self.format {
            // A provider bills an image that it has begun to send.
            StreamFormat::Media { units, begun, timed, .. } => {
                observed.with_length(units.saturating_add(begun.into()), timed)
            }
            _ => observed,
        }
    }

    fn chat(
        &mut self,
        name: &[u8],
        data: &[u8],
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Relayed, StreamFault> {
        if data.trim_ascii() == b"[DONE]" {
            if !self.begun {
                return Err(StreamFault::Incomplete);
            }
            self.done(identity, out);
            self.finished = true;
            return Ok(Relayed::Event);
        }
        if name == b"ping" {
            out.extend_from_slice(b":\n\n");
            return Ok(Relayed::Idle);
        }
        let value = if let StreamFormat::Completion { .. } = self.format { completion_value } else { chat_value };
        let mut seen = self.look(data, value)?;
        self.fail_on_error(&seen, data, name)?;
        let reported = seen.value(seen.usage.or(seen.choice_usage), data).map(Reported::from_chat);
        reported.into_iter().for_each(|reported| self.reported.merge_at(reported, &self.relayed));
        let empty = seen.value(seen.choices, data).is_none_or(|choices| choices.items().next().is_none());
        if seen.finishes > 0 {
            // An empty word ends nothing, and a later event that differs only in its text is treated the same.
            seen.finishes = finishes(seen.value(seen.choices, data).unwrap_or(Raw::NULL))?;
        }
        if self.created == 0 {
            let own = seen.value(seen.created, data).and_then(Raw::count).and_then(|own| u32::try_from(own).ok());
            // Some servers write milliseconds.
            self.created = own.filter(|created| *created > 0).unwrap_or(identity.created as u32);
        }
        let output = reported.and_then(|reported| reported.output);
        seen.correct(self.usage_due.is_none(), output, self.created, data);
        if seen.finishes > 0 || self.has_several(seen.value(seen.number, data)) {
            self.ends(seen.value(seen.choices, data).unwrap_or(Raw::NULL), empty && seen.usage.is_some());
        }
        // The client's SDK would store zeros, or counts under other names, as the usage.
        let is_told = seen.completion.is_some() && reported.is_some_and(|reported| reported.believed().is_complete());
        if empty && seen.usage.is_some() && (self.usage_due.is_none() || !is_told) {
            return Ok(Relayed::Event);
        }
        // Clients look for the usage at the end, and the cost can only be there.
        if seen.usage.is_some() && is_told && self.finish_seen {
            self.usage_due = self.usage_due.map(|_| false);
        }
        let (begin, from) = (out.len(), out.len() + b"data: ".len());
        out.extend_from_slice(b"data: ");
        let members = [Own::Id, Own::Object, Own::Created, Own::Model, Own::Choices];
        let (object, counts) = (self.format.object(), [0, output.unwrap_or(0), 0]);
        let values = OwnValues { object, created: self.created.into(), counts, ..OwnValues::of(identity) };
        let text_at = seen.write(data, &members, values, out);
        join_lines(&mut out[from..]);
        out.extend_from_slice(b"\n\n");
        if seen.is_text_alone() {
            return Ok(Relayed::Text { text: seen.text, sent_at: Some(text_at) });
        }
        remove_cost(seen.own_cost, begin, out);
        Ok(Relayed::Event)
    }

    /// True if an event may begin a choice that is not the only one. `number`: a number in its choice, if it has one.
    fn has_several(&self, number: Option<Raw<'_>>) -> bool {
        match self.format {
            StreamFormat::Chat { .. } => number.is_some_and(|number| number.bytes() != b"0"),
            format => matches!(format, StreamFormat::Completion { .. }),
        }
    }

    /// Notes the choices that begin or end with an event. As many ends are expected as choices were requested, and one
    /// for each choice that has begun; after the usage (`has_usage`), no further one begins.
    fn ends(&mut self, choices: Raw<'_>, has_usage: bool) {
        let (StreamFormat::Chat { due, running, ended } | StreamFormat::Completion { due, running, ended }) =
            &mut self.format
        else {
            return;
        };
        let mut choices = choices.items();
        while let Some((_, [index, reason, text, delta])) = choices.pick(["index", "finish_reason", "text", "delta"]) {
            let bit = index.and_then(Raw::count).and_then(|index| 1u16.checked_shl(index as u32)).unwrap_or(0);
            // A failed choice has been detected before.
            if finish_word(reason).is_ok_and(|word| word.is_some()) {
                // A server may repeat the reason.
                *due = due.saturating_sub(u32::from(*ended & bit == 0));
                (*ended, self.begun) = (*ended | bit, true);
                *running &= !bit;
            } else if delta.is_some() || text.and_then(Raw::string).is_some_and(|text| !text.is_empty()) {
                *running |= bit & !*ended;
            }
        }
        if has_usage && self.begun {
            *due = 0;
        }
        self.finish_seen = self.begun && *due == 0 && *running == 0;
    }

    /// Ends a chat stream. A client that asked for the usage gets it, at least as an estimate. Some servers report it
    /// only inside a choice.
    fn done(&mut self, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        if self.usage_due == Some(true) {
            let created = if self.created == 0 { identity.created } else { self.created.into() };
            write_usage_chunk(self.format.object(), &self.observed(), &ResponseIdentity { created, ..*identity }, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn messages(
        &mut self,
        frame: &Frame<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Relayed, StreamFault> {
        let (name, data) = (frame.name, frame.data);
        if data.trim_ascii() == b"[DONE]" {
            return Ok(Relayed::Idle);
        }
        let seen = self.look(data, messages_value)?;
        self.fail_on_error(&seen, data, name)?;
        let kind = seen.value(seen.kind, data).unwrap_or(Raw::NULL);
        let starts = kind.is("message_start");
        let begin = out.len();
        let reported = seen.value(seen.usage, data);
        let reported = reported.map(if starts { Reported::from_start } else { Reported::from_messages });
        if let Some(reported) = reported {
            self.reported.merge_at(reported, &self.relayed);
        }
        if seen.finishes > 0 {
            let word = Raw::new(data).get("delta").and_then(|delta| delta.get("stop_reason"));
            self.finish_seen |= finish_word(word)?.is_some();
        }
        if kind.is("message_stop") && !(self.begun && self.finish_seen) {
            return Err(StreamFault::Incomplete);
        }
        if starts && !seen.object.is_empty() {
            self.begun = true;
            out.extend_from_slice(b"event: message_start\ndata: ");
            let from = out.len();
            seen.write(data, IDENTITY, OwnValues::of(identity), out);
            join_lines(&mut out[from..]);
            out.extend_from_slice(b"\n\n");
            remove_cost(seen.own_cost, begin, out);
            return Ok(Relayed::Event);
        }
        if self.finish_seen && seen.finishes > 0 && self.observed().reported.output.is_none() {
            // The SDKs read the member without checking that it exists.
            out.extend_from_slice(b"event: message_delta\ndata: {");
            let from = out.len();
            members(Raw::new(data), &["usage"], out);
            key(out, "usage");
            write_messages_usage(&self.observed(), identity, out);
            join_lines(&mut out[from..]);
            out.extend_from_slice(b"}\n\n");
            return Ok(Relayed::Event);
        }
        if name.is_empty() {
            // The SDKs silently drop an event without a name.
            out.extend_from_slice(b"event: ");
            out.extend_from_slice(kind.string().unwrap_or(b"message"));
            out.push(b'\n');
        }
        out.extend_from_slice(frame.raw);
        remove_cost(seen.own_cost, begin, out);
        self.finished = kind.is("message_stop");
        if seen.is_text_alone() && kind.is("content_block_delta") && !name.is_empty() {
            return Ok(Relayed::Text { text: seen.text, sent_at: None });
        }
        let is_ping = name == b"ping" || kind.is("ping");
        Ok(if is_ping { Relayed::Idle } else { Relayed::Event })
    }

    fn look(
        &mut self,
        data: &[u8],
        value: fn(&[K], Token, Span, &mut EventScan) -> bool,
    ) -> Result<EventScan, StreamFault> {
        let mut seen = EventScan::default();
        let before = self.relayed;
        let relayed = &mut self.relayed;
        let mut walk = Walk::new(|buf: &[u8], path: &[K], token, whole: Span| {
            if value(path, token, whole, &mut seen) && token == Token::String {
                seen.texts += 1;
                seen.text = Span { start: whole.start + 1, end: whole.end - 1 };
                relayed.feed_json(seen.text.of(buf));
            }
        });
        let scanned = json::scan(data, &mut walk);
        if scanned.is_err() || seen.places.is_too_many() || !data.trim_ascii_start().starts_with(b"{") {
            // The event may be read again with whole characters.
            self.relayed = before;
            return Err(StreamFault::of_other(data));
        }
        self.has_more = seen.has_more;
        if seen.has_others {
            let choices = seen.value(seen.choices, data).unwrap_or(Raw::NULL).items();
            let others = choices.filter_map(|choice| choice.get("delta"));
            seen.texts += others.map(|delta| count_others(delta, &mut self.relayed)).sum::<u32>();
        }
        Ok(seen)
    }

    fn fail_on_error(&self, seen: &EventScan, data: &[u8], name: &[u8]) -> Result<(), StreamFault> {
        let error = seen.value(seen.error, data).filter(|error| is_error(*error));
        let kind = seen.value(seen.kind, data).unwrap_or(Raw::NULL);
        let named = name == b"error";
        let other_type = self.format == StreamFormat::Messages && !named && !kind.is_null() && !kind.is("error");
        match error {
            Some(error) if !other_type => Err(StreamFault::Error(ErrorText::from_value(error))),
            None if named || kind.is("error") => Err(StreamFault::Error(read_error(data).unwrap_or_default())),
            _ => Ok(()),
        }
    }
}

/// Handles an event without data: comments and pings keep the connection open, anything else would crash a client's
/// parser. A comment's text is not passed on, since it may name the provider.
fn idle(format: StreamFormat, frame: &Frame<'_>, out: &mut Vec<u8>) {
    if format == StreamFormat::Messages && frame.name == b"ping" {
        out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
    } else if frame.comment || frame.name == b"ping" {
        out.extend_from_slice(b":\n\n");
    }
}

/// Joins data that arrived in several lines: in JSON a line feed between tokens is equivalent to a space.
fn join_lines(json: &mut [u8]) {
    if to_either(json, 0, b'\n', b'\r') == json.len() {
        return;
    }
    for byte in json {
        if *byte == b'\n' || *byte == b'\r' {
            *byte = b' ';
        }
    }
}

/// Notes the relevant values of a chat chunk; true for text that counts as relayed.
fn chat_value(path: &[K], token: Token, whole: Span, seen: &mut EventScan) -> bool {
    match path {
        [] => seen.object = whole,
        [K::Id] => seen.places.add(whole, Own::Id),
        [K::Model] => seen.places.add(whole, Own::Model),
        [K::Usage] => seen.usage = (token == Token::ObjectClose).then_some(whole),
        [K::Usage, K::CompletionTokens] => seen.completion = Some(whole),
        [K::Choices, K::Item, K::Usage] if token == Token::ObjectClose => seen.choice_usage = Some(whole),
        [K::Error] => seen.error = Some(whole),
        // Some servers send this object instead of an `error` member.
        [K::Object] => seen.kind = Some(whole),
        [K::Choices] => seen.choices = Some(whole),
        [K::Created] => seen.created = Some(whole),
        [K::Choices, K::Item, K::FinishReason | K::Error] => seen.finishes += u32::from(token != Token::Null),
        // Its index, most likely.
        [K::Choices, K::Item, K::Other] if token == Token::Number => seen.number = Some(whole),
        [K::Choices, K::Item, K::Delta, rest @ ..] => {
            let is_relayed_text = is_relayed_text(rest);
            let is_other = !is_relayed_text && !matches!(rest, [] | [K::Role]);
            seen.has_others |= is_other && token == Token::String;
            seen.has_more |= is_other && token != Token::Null;
            return is_relayed_text;
        }
        [.., K::Usage, K::Cost | K::CostDetails | K::CostInUsdTicks] => seen.own_cost = true,
        _ => {}
    }
    false
}

/// Notes the relevant values of a completion event; true for text that counts as relayed.
fn completion_value(path: &[K], token: Token, whole: Span, seen: &mut EventScan) -> bool {
    match path {
        [K::Choices, K::Item, K::Text] => true,
        // Text in the place of a chat chunk's is not a completion's.
        [K::Choices, K::Item, K::Delta, ..] => false,
        _ => chat_value(path, token, whole, seen),
    }
}

/// Notes the relevant values of a messages event; true for text that counts as relayed.
fn messages_value(path: &[K], token: Token, whole: Span, seen: &mut EventScan) -> bool {
    match path {
        [K::Message] => seen.object = if token == Token::ObjectClose { whole } else { Span::default() },
        [K::Message, K::Id] => seen.places.add(whole, Own::Id),
        [K::Message, K::Model] => seen.places.add(whole, Own::Model),
        [K::Usage] | [K::Message, K::Usage] if token == Token::ObjectClose => seen.usage = Some(whole),
        [K::Error] => seen.error = Some(whole),
        [K::Type] => seen.kind = Some(whole),
        [K::Usage, K::Cost | K::CostDetails | K::CostInUsdTicks]
        | [K::Message, K::Usage, K::Cost | K::CostDetails | K::CostInUsdTicks] => seen.own_cost = true,
        [K::Delta, K::StopReason] => seen.finishes += u32::from(token == Token::String),
        [K::Delta, K::Text | K::Thinking | K::PartialJson] => return true,
        [K::ContentBlock, K::Text | K::Thinking | K::Name | K::Data] | [K::ContentBlock, K::Input, ..] => return true,
        _ => {}
    }
    false
}
