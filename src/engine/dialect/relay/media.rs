//! Facts about a complete answer with audio or images, besides its usage.

use crate::dialect::keys::{K, each_value};
use crate::dialect::tokens::Estimator;
use crate::dialect::usage::ObservedUsage;
use crate::wire::Passthrough;
use crate::wire::json::{Raw, Token};

/// Adds the number of images in the list of an answer, or the length and the text of the audio that it is about.
#[cold]
pub(super) fn observed_media(passthrough: Passthrough, list: &[u8], observed: ObservedUsage) -> ObservedUsage {
    if passthrough.makes_images() {
        let units = u32::try_from(Raw::new(list).items().count()).unwrap_or(u32::MAX);
        return ObservedUsage { units, ..observed };
    }
    if !passthrough.is_transcript() {
        return observed;
    }
    let [usage, duration] = Raw::new(list).pick(["usage", "duration"]);
    let billed = usage.and_then(|usage| usage.get("seconds")).map_or(0, millis);
    let units = if billed > 0 { billed } else { duration.map_or(0, millis) };
    let relayed_tokens = if observed.reported.output.is_some() { 0 } else { words_of(list) };
    ObservedUsage { relayed_tokens, ..observed }.with_length(units, billed > 0)
}

/// Tokens of the text in a transcript in JSON; of its segments if it has no text of its own.
fn words_of(body: &[u8]) -> u64 {
    let (mut own, mut of_parts) = (Estimator::new(), Estimator::new());
    each_value(body, &mut |buf, path, token, whole| {
        let [.., K::Text] = path else { return };
        if token == Token::String {
            let text = &buf[whole.start as usize + 1..whole.end as usize - 1];
            if path.len() == 1 { own.feed_json(text) } else { of_parts.feed_json(text) }
        }
    });
    if own.tokens() > 0 { own.tokens() } else { of_parts.tokens() }
}

/// Longest audio in seconds: a week. An upload cannot be that long, so a provider that reports more reports no length.
const AUDIO_MAX: f64 = 604_800.0;

/// A number of seconds, perhaps as a text, in milliseconds; 0 if it is none.
pub(super) fn millis(seconds: Raw<'_>) -> u32 {
    let number = seconds.string().map_or(seconds, Raw::new).number();
    number.filter(|seconds| *seconds <= AUDIO_MAX).map_or(0, |seconds| (seconds * 1000.0).round() as u32)
}
