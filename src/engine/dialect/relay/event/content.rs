//! Content of the first events of a stream within one format: text, reasoning, a call, an image or audio.

use super::super::stream_format::StreamFormat;
use super::Tap;
use crate::wire::json::Raw;

/// Members of an event with audio or images that describe it. Any other text in it is content.
const MEDIA_FACTS: [&str; 14] = [
    "type",
    "object",
    "id",
    "event_id",
    "item_id",
    "model",
    "task",
    "size",
    "quality",
    "background",
    "output_format",
    "logprobs",
    "usage",
    "choices",
];

impl Tap {
    /// True if the client gets an event of the stream: it has content, or ends the answer or one of its choices.
    pub(crate) fn shows(&self, data: &[u8]) -> bool {
        let event = Raw::new(data);
        let choices = || event.get("choices").into_iter().flat_map(Raw::items);
        let has_delta = || choices().filter_map(|choice| choice.get("delta")).any(|delta| has_more(delta, &["role"]));
        let has_content = || match self.format {
            StreamFormat::Chat { .. } => self.begun || (self.has_more && has_delta()),
            StreamFormat::Completion { .. } => {
                self.begun || choices().filter_map(|choice| choice.get("text")).any(has_value)
            }
            StreamFormat::Messages => {
                let [kind, message, block, delta] = event.pick(["type", "message", "content_block", "delta"]);
                let delta = delta.filter(|_| kind.is_some_and(|kind| kind.is("content_block_delta")));
                message.and_then(|message| message.get("content")).is_some_and(has_value)
                    || block.into_iter().chain(delta).any(|object| has_more(object, &["type"]))
            }
            // Some servers send the text of audio as chat chunks.
            StreamFormat::Media { .. } => has_more(event, &MEDIA_FACTS) || has_delta(),
            StreamFormat::Responses { .. } => {
                let [item, part, delta] = event.pick(["item", "part", "delta"]);
                let is_call =
                    |item: Raw<'_>| !item.get("type").is_some_and(|it| it.is("message") || it.is("reasoning"));
                item.is_some_and(|item| is_call(item) || has_more(item, &["type", "id", "status", "role", "phase"]))
                    || part.is_some_and(|part| has_more(part, &["type"]))
                    || delta.is_some_and(has_value)
            }
        };
        // Text of the model has been counted.
        self.finish_seen || !self.relayed.is_empty() || has_content()
    }
}

/// True for a text, a list or an object that is not empty.
fn has_value(value: Raw<'_>) -> bool {
    let is_text = value.string().is_some_and(|text| !text.is_empty());
    is_text || value.items().next().is_some() || value.members().next().is_some()
}

/// True if an object has another member than these that is not empty.
fn has_more(object: Raw<'_>, but: &[&str]) -> bool {
    object.members().any(|(name, value)| has_value(value) && !but.iter().any(|known| name == known.as_bytes()))
}
