//! Counts the parts of a request that a model reads: texts, names of members, marks between them, images and files.
//!
//! Owns the decision which strings are counted as images, files or sealed reasoning instead of as text. A client
//! chooses the names of members, so a name alone never makes a string cheap: that needs a part of the right type, and
//! that part must be an item of a conversation. Strings anywhere else are text that a model may read.

use super::super::super::tokens::{CountLater, IMAGE_TOKENS, LATER_BYTES_MAX};
use crate::wire::Span;
use crate::wire::json::Token;

/// Bytes of a file for each token that it counts for; a page of a PDF costs some thousand tokens.
const FILE_BYTES_PER_TOKEN: u64 = 20;
/// Bytes of a text in base64 for each token: a fifth of what a text comes to that has a token in each byte.
const TEXT_BYTES_PER_TOKEN: u64 = 5;
/// Tokens that a file counts for at most: no model reads more at once.
const FILE_TOKENS_MAX: u64 = 1_000_000;
/// Bytes of an address or of sealed reasoning for each token that it counts for at least.
const SEALED_BYTES_PER_TOKEN: u64 = 8;
/// Bytes of a string for each token, if it is too long to be looked at once its part turns out not to carry it.
const UNSEEN_BYTES_PER_TOKEN: u64 = 2;

/// Names that the dialects give to members on the way to the parts of a conversation, and in them.
const WAYS: [&[u8]; 11] = [
    b"audio_url",
    b"content",
    b"file",
    b"function",
    b"image_url",
    b"input_audio",
    b"output",
    b"source",
    b"summary",
    b"tool_calls",
    b"video_url",
];
/// Names that the dialects give to members whose values are no containers; if one is, a model has chosen what it holds.
const NAMES: [&[u8]; 26] = [
    b"arguments",
    b"cache_control",
    b"call_id",
    b"data",
    b"detail",
    b"encrypted_content",
    b"file_data",
    b"file_url",
    b"filename",
    b"format",
    b"id",
    b"input",
    b"is_error",
    b"media_type",
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
    b"url",
];
/// Levels whose objects are looked at for a type; parts lie no deeper.
const LEVELS: usize = 10;

/// Type of an object, by its own `type`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Kind {
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

impl Kind {
    fn of(raw: &[u8]) -> Kind {
        match raw {
            b"base64" | b"url" => Kind::Source,
            b"image" | b"image_url" | b"input_image" | b"computer_screenshot" => Kind::Image,
            b"document" | b"file" | b"input_file" | b"input_audio" | b"audio_url" | b"video_url" => Kind::File,
            b"reasoning" | b"compaction" | b"redacted_thinking" | b"web_search_result" => Kind::Sealed,
            _ => Kind::Another,
        }
    }
}

/// Name of the member under way.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Key {
    /// An item of an array, without a name.
    #[default]
    Item,
    Type,
    Way,
    /// An image or a file, by its address or with all its bytes.
    Media,
    Sealed,
    Another,
}

/// A string that its part may carry: it is counted when that has ended and its type is known.
#[derive(Copy, Clone, Debug)]
struct Held {
    span: Span,
    is_sealed: bool,
    /// Depth of the object that has yet to end.
    depth: u8,
    /// True if that is the part around the one that has the string.
    is_outer: bool,
}

/// State of the count.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reading {
    kinds: [Kind; LEVELS],
    key: Key,
    /// Depth of the container under way in which a model has chosen all names; 0 if there is none.
    chosen: u8,
    held: Option<Held>,
}

impl Reading {
    /// Counts a token inside a top-level array or object that a model reads. `is_talk`: it is a conversation; elsewhere
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
                // A message has its tokens.
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

    /// True if a part may carry the string under way, which is counted when that is known.
    pub(super) fn may_carry(&self) -> bool {
        self.chosen == 0 && matches!(self.key, Key::Media | Key::Sealed)
    }

    /// The name of a member; true if it is text.
    fn name(&mut self, name: &[u8]) -> bool {
        self.key = match name {
            b"type" => Key::Type,
            b"encrypted_content" => Key::Sealed,
            b"url" | b"image_url" | b"data" | b"file_data" => Key::Media,
            _ if WAYS.contains(&name) => Key::Way,
            _ => {
                self.key = Key::Another;
                return !NAMES.contains(&name);
            }
        };
        false
    }

    /// A container begins at this depth.
    fn open(&mut self, token: Token, depth: usize) {
        // `image_url` is a string or an object.
        if self.chosen == 0 && !matches!(self.key, Key::Item | Key::Way | Key::Media) {
            self.chosen = depth as u8;
        }
        self.key = Key::Item;
        if let (Token::ObjectOpen, Some(kind)) = (token, self.kinds.get_mut(depth)) {
            *kind = Kind::Untold;
        }
    }

    /// A container ends at this depth.
    #[inline]
    fn close(&mut self, buf: &[u8], token: Token, depth: usize, tokens: &mut CountLater) {
        self.key = Key::Item;
        if usize::from(self.chosen) == depth {
            self.chosen = 0;
        }
        let Some(held) = self.held.filter(|held| usize::from(held.depth) == depth) else { return };
        let kind = if token == Token::ObjectClose { self.kinds[depth] } else { Kind::Another };
        match kind {
            // The part around a source is an item of a list in a message, or of the conversation.
            Kind::Untold | Kind::Source if !held.is_outer && depth > 2 => {
                self.held = Some(Held { depth: held.depth - 1, is_outer: true, ..held });
            }
            _ => {
                self.held = None;
                held.count(kind, buf, tokens);
            }
        }
    }

    /// A string that is no name, where no model has chosen the names; true if it is text.
    fn string(&mut self, buf: &[u8], depth: usize, span: Span, tokens: &mut CountLater) -> bool {
        let of = depth - 1;
        match self.key {
            Key::Type => {
                self.says(of, Kind::of(span.of(buf)));
                true
            }
            Key::Media | Key::Sealed if of < LEVELS => {
                let held = Held { span, is_sealed: self.key == Key::Sealed, depth: of as u8, is_outer: false };
                // A part carries one of them.
                if let Some(before) = self.held.replace(held) {
                    before.count(Kind::Another, buf, tokens);
                }
                false
            }
            _ => true,
        }
    }

    /// A number or a word of JSON, likewise.
    fn scalar(&mut self, depth: usize) {
        if self.key == Key::Type {
            self.says(depth - 1, Kind::Another);
        }
    }

    fn says(&mut self, of: usize, what: Kind) {
        if let Some(kind) = self.kinds.get_mut(of) {
            *kind = what;
        }
    }
}

impl Held {
    /// Counts it as what a part of this kind carries, or as text.
    fn count(self, kind: Kind, buf: &[u8], tokens: &mut CountLater) {
        let (raw, length) = (self.span.of(buf), self.span.len() as u64);
        let is_inline = raw.starts_with(b"data:");
        let is_address = raw.starts_with(b"http");
        match kind {
            Kind::Sealed => tokens.add(length.div_ceil(SEALED_BYTES_PER_TOKEN)),
            Kind::Image | Kind::File if is_address && !self.is_sealed => {
                tokens.add(IMAGE_TOKENS.max(length.div_ceil(SEALED_BYTES_PER_TOKEN)));
            }
            Kind::Image if !self.is_sealed && (is_inline || is_encoded(raw)) => tokens.add(IMAGE_TOKENS),
            Kind::File if !self.is_sealed && is_text(raw) => tokens.add(length.div_ceil(TEXT_BYTES_PER_TOKEN)),
            Kind::File if !self.is_sealed && (is_inline || is_encoded(raw)) => {
                tokens.add(IMAGE_TOKENS.max((length / FILE_BYTES_PER_TOKEN).min(FILE_TOKENS_MAX)));
            }
            _ if self.span.len() > LATER_BYTES_MAX => tokens.add(length / UNSEEN_BYTES_PER_TOKEN),
            _ => tokens.text(buf, self.span, true),
        }
    }
}

/// True if a file has a text, which a translation may write in place of it.
fn is_text(raw: &[u8]) -> bool {
    let begins = |with: &[u8]| raw.get(..with.len()).is_some_and(|front| front.eq_ignore_ascii_case(with));
    begins(b"data:text/") || begins(b"data:application/json")
}

/// True if it may be base64, and is too long for a word.
fn is_encoded(raw: &[u8]) -> bool {
    raw.len() > 64 && !raw.contains(&b' ')
}
