//! The names of members that the reading of items distinguishes, in any format.

use crate::wire::json::{Raw, has_escape};

/// Bytes of the longest escape of a character in such a word.
pub(super) const ESCAPE_MAX: usize = 6;
/// Maximum bytes of such a word.
const WORD_MAX: usize = 32;

/// Name of a member of an item, in any format.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum PartName {
    /// An item of an array, without a name.
    Item,
    Type,
    /// Leads to the parts of a conversation, or occurs in them.
    Way,
    /// An image or a file, by its address or as data.
    Media,
    /// A file, by its address or as data. The address is never an image's.
    File,
    MediaType,
    Sealed,
    /// A value that is no container. In one that is, a model has chosen the names.
    Plain,
    Id,
    /// Written by a model, like `input`.
    Arguments,
    Input,
    /// Repeated from an earlier answer, like `citations`.
    Annotations,
    Citations,
    /// The id of an object of the provider's account.
    StoredId,
    /// The ids of such objects, in a tool.
    StoredIds,
    /// A container of a tool, or its id.
    Container,
    /// The recording of an answer.
    Audio,
    /// Written by the client for the model, in a tool.
    Schema,
    Tools,
    Another,
}

impl PartName {
    /// The name that the inside of a key has.
    pub(crate) fn of(key: &[u8]) -> PartName {
        known(key, PartName::known).unwrap_or(PartName::Another)
    }

    fn known(name: &[u8]) -> Option<PartName> {
        Some(match name {
            b"type" => PartName::Type,
            b"content" | b"document" | b"file" | b"function" | b"input_audio" | b"input_video" => PartName::Way,
            b"output" | b"source" | b"summary" | b"tool_calls" => PartName::Way,
            b"encrypted_content" => PartName::Sealed,
            b"url" | b"image_url" | b"data" | b"file_data" => PartName::Media,
            b"file_url" | b"document_url" | b"audio_url" | b"video_url" => PartName::File,
            b"media_type" => PartName::MediaType,
            b"cache_control" | b"call_id" | b"detail" | b"filename" | b"format" | b"is_error" => PartName::Plain,
            b"name" | b"reasoning_content" | b"refusal" | b"role" | b"signature" | b"status" => PartName::Plain,
            b"text" | b"thinking" | b"title" | b"tool_call_id" | b"tool_use_id" => PartName::Plain,
            b"id" => PartName::Id,
            b"arguments" => PartName::Arguments,
            b"input" => PartName::Input,
            b"annotations" => PartName::Annotations,
            b"citations" => PartName::Citations,
            b"file_id" | b"container_id" | b"skill_id" => PartName::StoredId,
            b"file_ids" | b"vector_store_ids" => PartName::StoredIds,
            b"container" => PartName::Container,
            b"audio" => PartName::Audio,
            b"parameters" | b"input_schema" | b"input_examples" => PartName::Schema,
            b"tools" => PartName::Tools,
            _ => return None,
        })
    }

    /// True if the name is text for a model: it occurs in no part.
    pub(super) fn is_text(self) -> bool {
        use PartName::{Annotations, Another, Audio, Citations, Container, Schema, StoredId, StoredIds, Tools};
        matches!(self, Annotations | Another | Audio | Citations | Container | Schema | StoredId | StoredIds | Tools)
    }

    /// True if its value may be a part, or have some.
    pub(super) fn has_parts(self) -> bool {
        matches!(self, PartName::Item | PartName::Way | PartName::Media | PartName::File)
    }

    pub(super) fn may_carry(self) -> bool {
        matches!(self, PartName::Media | PartName::File | PartName::Sealed)
    }
}

/// Kind of a known word, even one that is written with escapes.
pub(super) fn known<T>(raw: &[u8], of: fn(&[u8]) -> Option<T>) -> Option<T> {
    let is_escaped = || raw.len() <= ESCAPE_MAX * WORD_MAX && has_escape(raw);
    of(raw).or_else(|| is_escaped().then(|| of(Raw::text_of(raw).as_bytes()))?)
}
