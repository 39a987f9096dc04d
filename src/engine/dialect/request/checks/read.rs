//! Counts the parts of a request that a model reads: texts, names of members, marks between them, images and files.
//!
//! Owns the decision which strings are counted as images, files or sealed reasoning instead of as text. A client
//! chooses the names of members, so a name alone never makes a string cheap: that needs a part of the right type, and
//! that part must be an item of a conversation. Strings anywhere else are text that a model may read.

use super::super::super::tokens::{CountLater, CountedMedia, FILE_TOKENS_MAX, IMAGE_TOKENS, LATER_BYTES_MAX};
use crate::wire::Span;
use crate::wire::json::{Raw, Run, Token, has_escape, runs};

/// Bytes of a file per token; a page of a PDF costs some thousand tokens.
const FILE_BYTES_PER_TOKEN: u64 = 20;
/// Bytes of a base64 text per token: a fifth of the count of a text with one token per byte.
const TEXT_BYTES_PER_TOKEN: u64 = 5;
/// Bytes of an address or of sealed reasoning per token, at least.
const SEALED_BYTES_PER_TOKEN: u64 = 8;
/// Bytes per token of a string that turns out not to be carried by its part, if it is too long to be counted at once.
const UNSEEN_BYTES_PER_TOKEN: u64 = 2;

/// Names of members, in any format, that lead to the parts of a conversation or occur in them.
const WAYS: [&[u8]; 10] = [
    b"content",
    b"document",
    b"file",
    b"function",
    b"input_audio",
    b"input_video",
    b"output",
    b"source",
    b"summary",
    b"tool_calls",
];
/// Names of members, in any format, whose values are not containers. In one that is, a model has chosen the names.
const NAMES: [&[u8]; 20] = [
    b"arguments",
    b"cache_control",
    b"call_id",
    b"detail",
    b"filename",
    b"format",
    b"id",
    b"input",
    b"is_error",
    b"name",
    b"reasoning_content",
    b"refusal",
    b"role",
    b"signature",
    b"status",
    b"text",
    b"thinking",
    b"title",
    b"tool_call_id",
    b"tool_use_id",
];
/// Levels at which objects are checked for a type; parts are never deeper.
const LEVELS: usize = 12;
/// Characters at the start of a string that identify an address, or the media type of data.
const FRONT: usize = 32;
/// Bytes of the longest escape of such a character.
const ESCAPE_MAX: usize = 6;

/// Type of an object, by its own `type`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum ObjectType {
    /// No type yet.
    #[default]
    Untold,
    /// The source of a part: the part has the type.
    Source,
    Image,
    File,
    /// Reasoning, or a result, that only its provider can read.
    Sealed,
    Another,
}

impl ObjectType {
    fn known(name: &[u8]) -> Option<ObjectType> {
        Some(match name {
            b"base64" | b"url" => ObjectType::Source,
            b"image" | b"image_url" | b"input_image" | b"computer_screenshot" => ObjectType::Image,
            b"document" | b"file" | b"input_file" | b"input_audio" | b"audio_url" | b"video_url" => ObjectType::File,
            b"document_url" | b"file_url" | b"input_video" => ObjectType::File,
            b"reasoning" | b"compaction" | b"redacted_thinking" | b"web_search_result" => ObjectType::Sealed,
            _ => return None,
        })
    }
}

/// Media type of data, from the cheapest to the most expensive; the most expensive of several counts.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum MediaType {
    #[default]
    Untold,
    Image,
    File,
    /// A translation may write out the text.
    Text,
}

impl MediaType {
    fn of(front: &[u8]) -> MediaType {
        match front {
            [b'i', b'm', b'a', b'g', b'e', b'/', ..] => MediaType::Image,
            [b't', b'e', b'x', b't', b'/', ..] => MediaType::Text,
            _ if front.starts_with(b"application/json") => MediaType::Text,
            _ => MediaType::File,
        }
    }
}

/// Name of the current member.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum MemberName {
    /// An item of an array, without a name.
    #[default]
    Item,
    Type,
    Way,
    /// An image or a file, by its address or as data.
    Media,
    /// A file, by its address or as data. The address is never an image's.
    File,
    MediaType,
    Sealed,
    Another,
}

/// A string that its part may carry. It is counted when the part has ended and its type is known.
#[derive(Copy, Clone, Debug)]
struct HeldString {
    span: Span,
    /// Name of its member: `Media`, `File` or `Sealed`.
    key: MemberName,
    /// Media type that the object with the string names.
    media: MediaType,
    /// Depth of the object whose end is awaited.
    depth: u8,
    /// True if that object is the part around the one with the string.
    is_outer: bool,
}

/// State of the count.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reading {
    kinds: [ObjectType; LEVELS],
    media: [MediaType; LEVELS],
    key: MemberName,
    /// Depth of the current container in which a model has chosen all names; 0 if there is none.
    chosen: u8,
    /// Strings held until their object ends: one that is not sealed, and one that is. A search result has both.
    held: [Option<HeldString>; 2],
}

impl Reading {
    /// Counts a token inside a top-level array or object that a model reads. `is_talk`: it is a conversation. Elsewhere
    /// all names are the client's, and there are no images.
    pub(super) fn count(
        &mut self,
        buf: &[u8],
        (token, depth, span): (Token, usize, Span),
        is_talk: bool,
        tokens: &mut CountLater,
    ) {
        let is_chosen = !is_talk || self.chosen > 0;
        let is_text = match token {
            Token::ObjectOpen | Token::ArrayOpen => {
                // Messages have tokens of their own.
                if !is_talk || depth > 2 {
                    tokens.mark();
                }
                if is_talk {
                    self.open(token, depth);
                }
                false
            }
            Token::ObjectClose | Token::ArrayClose => {
                if is_talk {
                    self.close(buf, token, depth, tokens);
                }
                false
            }
            _ if is_chosen => {
                tokens.mark();
                true
            }
            Token::Key => self.name(span.of(buf)),
            Token::String => self.string(buf, depth, span, tokens),
            Token::Number | Token::True | Token::False | Token::Null => {
                self.scalar(depth);
                true
            }
        };
        if is_text {
            tokens.text(buf, span, true);
        }
    }

    /// Handles the name of a member; true if it is text.
    fn name(&mut self, name: &[u8]) -> bool {
        let key = known(name, MemberName::known);
        self.key = key.unwrap_or(MemberName::Another);
        key.is_none() && !NAMES.contains(&name)
    }

    /// Begins a container at this depth.
    fn open(&mut self, token: Token, depth: usize) {
        // `image_url` is a string or an object.
        if self.chosen == 0
            && !matches!(self.key, MemberName::Item | MemberName::Way | MemberName::Media | MemberName::File)
        {
            self.chosen = depth as u8;
        }
        self.key = MemberName::Item;
        if token == Token::ObjectOpen && depth < LEVELS {
            (self.kinds[depth], self.media[depth]) = (ObjectType::Untold, MediaType::Untold);
        }
    }

    /// Ends a container at this depth.
    #[inline]
    fn close(&mut self, buf: &[u8], token: Token, depth: usize, tokens: &mut CountLater) {
        self.key = MemberName::Item;
        if usize::from(self.chosen) == depth {
            self.chosen = 0;
        }
        for place in 0..self.held.len() {
            self.end_part(place, buf, token, depth, tokens);
        }
    }

    /// Ends the object of a held string, or the part around it.
    #[inline]
    fn end_part(&mut self, place: usize, buf: &[u8], token: Token, depth: usize, tokens: &mut CountLater) {
        let Some(mut held) = self.held[place].filter(|held| usize::from(held.depth) == depth) else { return };
        let kind = if token == Token::ObjectClose { self.kinds[depth] } else { ObjectType::Another };
        held.media = held.media.max(self.media[depth]);
        match kind {
            // The part around a source must be an item of a list in a message, or of the conversation.
            ObjectType::Untold | ObjectType::Source if !held.is_outer && depth > 2 => {
                self.held[place] = Some(HeldString { depth: held.depth - 1, is_outer: true, ..held });
            }
            _ => {
                self.held[place] = None;
                held.count(kind, buf, tokens);
            }
        }
    }

    /// Handles a string value where no model has chosen the names; true if it is text.
    fn string(&mut self, buf: &[u8], depth: usize, span: Span, tokens: &mut CountLater) -> bool {
        let of = depth - 1;
        match self.key {
            MemberName::Type => {
                self.says(of, known(span.of(buf), ObjectType::known).unwrap_or(ObjectType::Another));
                true
            }
            MemberName::MediaType => {
                let (front, length) = front(span.of(buf));
                if let Some(media) = self.media.get_mut(of) {
                    *media = (*media).max(MediaType::of(&front[..length]));
                }
                true
            }
            key if key.may_carry() && of < LEVELS => {
                let held = HeldString { span, key, media: MediaType::Untold, depth: of as u8, is_outer: false };
                // A part carries one of the two; which one a provider reads is unknown.
                if let Some(before) = self.held[usize::from(key == MemberName::Sealed)].replace(held) {
                    before.count(ObjectType::Untold, buf, tokens);
                }
                false
            }
            _ => true,
        }
    }

    /// Handles a number or a JSON literal in the same way.
    fn scalar(&mut self, depth: usize) {
        if self.key == MemberName::Type {
            self.says(depth - 1, ObjectType::Another);
        }
    }

    fn says(&mut self, of: usize, what: ObjectType) {
        if let Some(kind) = self.kinds.get_mut(of) {
            *kind = what;
        }
    }
}

impl MemberName {
    fn known(name: &[u8]) -> Option<MemberName> {
        Some(match name {
            b"type" => MemberName::Type,
            b"encrypted_content" => MemberName::Sealed,
            b"url" | b"image_url" | b"data" | b"file_data" => MemberName::Media,
            b"file_url" | b"document_url" | b"audio_url" | b"video_url" => MemberName::File,
            b"media_type" => MemberName::MediaType,
            _ if WAYS.contains(&name) => MemberName::Way,
            _ => return None,
        })
    }

    fn may_carry(self) -> bool {
        matches!(self, MemberName::Media | MemberName::File | MemberName::Sealed)
    }
}

impl HeldString {
    /// Counts it as the content of a part of this kind, or as text.
    fn count(self, kind: ObjectType, buf: &[u8], tokens: &mut CountLater) {
        let (raw, length) = (self.span.of(buf), self.span.len() as u64);
        let (front, end) = front(raw);
        let inline = front[..end].strip_prefix(b"data:");
        let schemes: [&[u8]; 2] = [b"http:", b"https:"];
        let is_url = schemes.iter().any(|scheme| front.starts_with(scheme)) || front.windows(3).any(|at| at == b"://");
        let is_address = is_url && inline.is_none();
        let is_data = inline.is_some() || is_encoded(raw);
        let media = inline.map_or(self.media, MediaType::of);
        let by_address = length.div_ceil(SEALED_BYTES_PER_TOKEN);
        let none = CountedMedia::default();
        let image = CountedMedia { images: 1, ..none };
        let string = CountedMedia { bytes: u32::try_from(length).unwrap_or(u32::MAX), ..none };
        match (kind, self.key) {
            (ObjectType::File | ObjectType::Source | ObjectType::Untold, MemberName::Media) | (_, MemberName::File)
                if is_address =>
            {
                tokens.add(by_address);
                tokens.fetched();
            }
            (ObjectType::Sealed, _) => {
                tokens.add(by_address);
                tokens.medium(string);
            }
            (ObjectType::Image, MemberName::Media) if is_address => {
                tokens.add(IMAGE_TOKENS.max(by_address));
                tokens.medium(CountedMedia { fetches: true, ..image });
            }
            (ObjectType::Image, MemberName::Media | MemberName::File) if is_data && media == MediaType::Image => {
                tokens.add(IMAGE_TOKENS);
                tokens.medium(image);
            }
            (ObjectType::Image | ObjectType::File, MemberName::Media | MemberName::File)
                if is_data && media == MediaType::Text =>
            {
                let least = if kind == ObjectType::Image { IMAGE_TOKENS } else { 0 };
                tokens.add(least.max(length.div_ceil(TEXT_BYTES_PER_TOKEN)));
                tokens.medium(CountedMedia { images: u32::from(kind == ObjectType::Image), ..string });
            }
            (ObjectType::Image | ObjectType::File, MemberName::Media | MemberName::File) if is_data => {
                tokens.add((length / FILE_BYTES_PER_TOKEN).clamp(IMAGE_TOKENS, FILE_TOKENS_MAX));
                tokens.medium(CountedMedia { files: 1, ..none });
            }
            // Data as short as a word, or an address of an unknown form: a small image can have many pixels.
            (ObjectType::Image | ObjectType::File, MemberName::Media | MemberName::File) => {
                tokens.text(buf, self.span, true);
                tokens.medium(if kind == ObjectType::Image { image } else { CountedMedia { files: 1, ..none } });
            }
            _ if self.span.len() > LATER_BYTES_MAX => {
                tokens.add(length / UNSEEN_BYTES_PER_TOKEN);
                tokens.medium(string);
            }
            _ => tokens.text(buf, self.span, true),
        }
    }
}

/// The start of a string in lower case, without the characters that URL parsers skip.
fn front(raw: &[u8]) -> ([u8; FRONT], usize) {
    let (mut front, mut length) = ([0; FRONT], 0);
    let raw = raw.trim_ascii_start();
    // Megabytes must not be searched for an escape.
    let head = &raw[..raw.len().min(ESCAPE_MAX * FRONT)];
    for run in runs(if has_escape(head) { raw } else { head }) {
        let mut char = [0; 4];
        let text = match run {
            Run::Plain(text) => text,
            Run::Char(one) => one.encode_utf8(&mut char).as_bytes(),
        };
        for byte in text.iter().filter(|byte| byte.is_ascii_graphic()) {
            let Some(slot) = front.get_mut(length) else { return (front, length) };
            *slot = byte.to_ascii_lowercase();
            length += 1;
        }
    }
    (front, length)
}

/// Kind of a known word, even one that is written with escapes.
fn known<T>(raw: &[u8], of: fn(&[u8]) -> Option<T>) -> Option<T> {
    let is_escaped = || raw.len() <= ESCAPE_MAX * FRONT && has_escape(raw);
    of(raw).or_else(|| is_escaped().then(|| of(Raw::text_of(raw).as_bytes()))?)
}

/// True if the string may be base64 and is too long for a word.
fn is_encoded(raw: &[u8]) -> bool {
    raw.len() > 64 && !raw.contains(&b' ')
}
