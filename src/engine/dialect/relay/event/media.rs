//! Passes on events with audio, its text, or images.

use super::super::media::millis;
use super::super::stream_format::StreamFormat;
use super::{EventScan, Tap};
use crate::dialect::answer::{Frame, Relayed, StreamFault};
use crate::dialect::keys::K;
use crate::dialect::relay::cost::remove_cost;
use crate::dialect::usage::Reported;
use crate::wire::Span;
use crate::wire::json::{Raw, Token};

impl Tap {
    /// Passes on an event with audio or an image unchanged, except for the provider's cost. An event whose type ends
    /// with `.done` or `.completed` ends the audio, or an image.
    pub(super) fn media(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Relayed, StreamFault> {
        if frame.data.trim_ascii() == b"[DONE]" {
            if !(self.finish_seen || self.all_ended()) {
                return Err(StreamFault::Incomplete);
            }
            out.extend_from_slice(frame.raw);
            self.finished = true;
            return Ok(Relayed::Event);
        }
        let has_words = matches!(self.format, StreamFormat::Media { words: true, .. });
        let seen = self.look(frame.data, if has_words { words_value } else { media_value })?;
        self.fail_on_error(&seen, frame.data, frame.name)?;
        let kind = seen.value(seen.kind, frame.data).and_then(Raw::string).unwrap_or(frame.name);
        if has_words && !seen.object.is_empty() && (self.relayed.tokens() == 0 || !kind.ends_with(b".done")) {
            // Only the event that ends the text repeats it.
            self.relayed.feed_json(seen.object.of(frame.data));
        }
        let usage = seen.value(seen.usage, frame.data);
        usage.iter().for_each(|usage| self.reported.merge_at(Reported::from_responses(*usage), &self.relayed));
        let (is_end, is_done) = (kind.ends_with(b".completed"), kind.ends_with(b".done"));
        let duration = || Raw::new(frame.data).get("duration").filter(|_| is_done);
        let billed = usage.and_then(|usage| usage.get("seconds")).map_or(0, millis);
        let seconds = if billed > 0 { billed } else { duration().map_or(0, millis) };
        let is_one = kind.ends_with(b".partial_succeeded");
        if let StreamFormat::Media { due, units, begun, listed, timed, .. } = &mut self.format {
            *timed |= billed > 0;
            // Most servers complete each image. MiniMax names each, and completes all of them at once.
            *listed |= is_one;
            let is_image = is_one || (is_end && !*listed);
            *begun = !(is_image || is_end) && (*begun || kind.ends_with(b".partial_image"));
            *units = units.saturating_add(is_image.into()).max(seconds);
            *due = due.saturating_sub(is_image.into());
            self.finish_seen |= is_done || (is_end && (*due == 0 || *listed));
        }
        let begin = out.len();
        out.extend_from_slice(frame.raw);
        remove_cost(seen.own_cost, begin, out);
        Ok(Relayed::Event)
    }
}

/// Notes the relevant values of an event with audio or an image.
fn media_value(path: &[K], token: Token, whole: Span, seen: &mut EventScan) -> bool {
    match path {
        [K::Type] => seen.kind = Some(whole),
        [K::Error] => seen.error = Some(whole),
        [K::Usage] if token == Token::ObjectClose => seen.usage = Some(whole),
        [K::Usage, K::Cost | K::CostDetails | K::CostInUsdTicks] => seen.own_cost = true,
        _ => {}
    }
    false
}

/// Notes the relevant values of an event with text of audio; true for text that counts as relayed.
fn words_value(path: &[K], token: Token, whole: Span, seen: &mut EventScan) -> bool {
    match path {
        // As OpenAI sends it, and as a server of chat chunks does.
        [K::Delta] | [K::Choices, K::Item, K::Delta, K::Content] => return true,
        [K::Text] if token == Token::String => seen.object = whole,
        _ => return media_value(path, token, whole, seen),
    }
    false
}
