//! Walks the items of a request: counts what a model reads of them, and finds ids of stored objects.
//!
//! Owns the decision which strings are counted as images, files or sealed reasoning instead of as text. A client
//! chooses the names of members, so a name alone never makes a string cheap: that needs a part of the right type, and
//! that part must be an item of a conversation. Strings anywhere else are text that a model may read.

use super::fields::Fields;
use super::members::Name;
use super::part_names::{ESCAPE_MAX, PartName, known};
use super::reading::{Place, Reading};
use super::stored;
use crate::dialect::tokens::{CountedMedia, FILE_TOKENS_MAX, IMAGE_TOKENS, LATER_BYTES_MAX, MESSAGE_TOKENS};
use crate::wire::Span;
use crate::wire::json::{Raw, Run, ValueKind, has_escape, runs, string_end};

/// Bytes of a file per token; a page of a PDF costs some thousand tokens.
const FILE_BYTES_PER_TOKEN: u64 = 20;
/// Bytes of a base64 text per token: a fifth of the count of a text with one token per byte.
const TEXT_BYTES_PER_TOKEN: u64 = 5;
/// Bytes of an address or of sealed reasoning per token, at least.
const SEALED_BYTES_PER_TOKEN: u64 = 8;
/// Bytes per token of a string that turns out not to be carried by its part, if it is too long to be counted at once.
const UNSEEN_BYTES_PER_TOKEN: u64 = 2;
/// Levels at which strings may be images or files; parts are never deeper.
const LEVELS: usize = 12;
/// Characters at the start of a string that identify an address, or the media type of data.
const FRONT: usize = 32;

/// The rules of a walk for one kind of item.
pub(crate) struct Rules {
    /// The client or a model has chosen all names, and there are no images.
    pub(crate) chosen: bool,
    /// True if strings in the member `(depth, name)` of the member named last are ids of stored objects. The depth is 3
    /// for a member of the item itself.
    pub(crate) is_stored: fn(usize, PartName, PartName) -> bool,
    /// True if the member `(depth, name)` names no objects, whatever is in it.
    pub(crate) is_free: fn(usize, PartName) -> bool,
    /// Parts, and tools, that a translation may make of an object at a depth, 2 for the item itself; the last is true
    /// in a member that names no objects.
    pub(crate) counts: fn(usize, bool) -> (u32, u32),
    /// Notes what a `type`, or `tools`, of the item itself means; each of several. Of a container only the first byte
    /// is passed.
    pub(crate) noted: fn(Place, PartName, Raw<'_>, &mut Fields),
}

/// Result of the walk of an item.
pub(crate) struct Walked {
    /// Bytes of the item.
    pub(crate) length: usize,
    /// The last `type` of the item itself is a string.
    pub(crate) is_typed: bool,
}

/// The rules for blocks of a system prompt.
pub(crate) const BLOCK: Rules = Rules { chosen: false, ..OTHER };
/// The rules for anything else that a model reads.
pub(crate) const OTHER: Rules = Rules {
    chosen: true,
    is_stored: |_, _, _| false,
    is_free: |_, _| true,
    counts: |_, _| (0, 0),
    noted: |_, _, _, _| {},
};
/// The rules for a tool in a chat or messages request.
pub(crate) const TOOL: Rules = Rules {
    is_stored: |depth, name, around| match name {
        PartName::StoredId | PartName::StoredIds | PartName::Container => true,
        _ => depth == 4 && name == PartName::Id && around == PartName::Container,
    },
    is_free: |_, name| name == PartName::Schema,
    ..OTHER
};

/// The rule for ids in a message: not those of its own members.
pub(crate) fn is_stored_in_message(depth: usize, name: PartName, around: PartName) -> bool {
    match name {
        PartName::StoredId => depth > 3,
        _ => depth == 4 && name == PartName::Id && around == PartName::Audio,
    }
}

/// The rule for members of a message that a model has written, or that repeat an answer's citations.
pub(crate) fn is_free_in_message(_depth: usize, name: PartName) -> bool {
    matches!(name, PartName::Arguments | PartName::Input | PartName::Annotations | PartName::Citations)
}

/// Type of an object, by its own `type`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ObjectType {
    /// No type.
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
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum MediaType {
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

/// An object on the way to a string, or an array.
struct Around<'a> {
    /// The bytes from its `{` on; none for an array.
    object: &'a [u8],
    /// Its own type, and the media type that it names, once they were asked for.
    known: Option<(ObjectType, MediaType)>,
}

impl<'a> Around<'a> {
    fn new(object: &'a [u8]) -> Around<'a> {
        Around { object, known: None }
    }

    /// Of a repeated `type` the last one counts, of several media types the most expensive.
    fn types(&mut self) -> (ObjectType, MediaType) {
        *self.known.get_or_insert_with(|| {
            let start = if self.object.is_empty() { ObjectType::Another } else { ObjectType::Untold };
            let (mut kind, mut media) = (start, MediaType::Untold);
            for (key, value) in Raw::of_value(self.object).members() {
                match (PartName::of(key), value.string()) {
                    (PartName::Type, Some(name)) => {
                        kind = known(name, ObjectType::known).unwrap_or(ObjectType::Another);
                    }
                    (PartName::Type, None) if !matches!(value.kind(), ValueKind::Object | ValueKind::Array) => {
                        kind = ObjectType::Another;
                    }
                    (PartName::MediaType, Some(name)) => {
                        let (front, length) = front(name);
                        media = media.max(MediaType::of(&front[..length]));
                    }
                    _ => {}
                }
            }
            (kind, media)
        })
    }
}

/// Position of a value in its item.
#[derive(Copy, Clone)]
struct At<'a> {
    /// Containers around it: 2 for the item itself.
    depth: usize,
    name: PartName,
    /// Name of the member around it.
    around: PartName,
    /// The client or a model has chosen all names here.
    chosen: bool,
    /// Nothing here names an object.
    free: bool,
    /// The key that makes a string here the id of an object.
    id: Option<&'a [u8]>,
    /// For the path: the keys of members at the depths 3 and 5, and the index in a list that is the former.
    keys: [&'a [u8]; 2],
    index: Option<u32>,
}

/// A string that its part carries. It is counted when the part ends.
struct HeldString<'a> {
    raw: &'a [u8],
    /// Name of its member: `Media`, `File` or `Sealed`.
    name: PartName,
    /// Types of its part.
    kind: ObjectType,
    media: MediaType,
    /// Depth of the part.
    depth: usize,
}

/// The walk of one item.
struct ItemWalk<'a, 'r, 'f> {
    reading: &'r mut Reading<'a, 'f>,
    place: Place,
    rules: &'static Rules,
    /// Strings held until their part ends: one that is not sealed, and one that is. A search result has both.
    held: [Option<HeldString<'a>>; 2],
    /// The last `type` of the item itself is a string.
    is_typed: bool,
}

impl<'a> Reading<'a, '_> {
    /// Walks an item of the conversation, and returns its length. `item`: its bytes and those behind it.
    pub(crate) fn message(&mut self, place: Place, item: Raw<'a>, rules: &'static Rules) -> usize {
        self.tokens.add(MESSAGE_TOKENS);
        self.walk(place, item, rules).length
    }

    /// Walks another item of a list. `item`: its bytes and those behind it.
    pub(crate) fn walk(&mut self, place: Place, item: Raw<'a>, rules: &'static Rules) -> Walked {
        self.walk_from(2, place, item, rules)
    }

    /// Counts everything in a container that is a member's value.
    pub(super) fn walk_all(&mut self, value: Raw<'a>) {
        self.walk_from(1, Place { list: Name::Other, index: 0 }, value, &OTHER);
    }

    fn walk_from(&mut self, depth: usize, place: Place, value: Raw<'a>, rules: &'static Rules) -> Walked {
        let (name, around, chosen) = (PartName::Item, PartName::Item, rules.chosen);
        let at = At { depth, name, around, chosen, free: false, id: None, keys: [b"", b""], index: None };
        let mut walk = ItemWalk { reading: self, place, rules, held: [None, None], is_typed: false };
        let length = walk.value(value.bytes(), at, [&mut Around::new(b""), &mut Around::new(b"")]);
        Walked { length: length.unwrap_or(value.bytes().len()), is_typed: walk.is_typed }
    }
}

impl<'a> ItemWalk<'a, '_, '_> {
    /// Walks the value at the front of `bytes`, and returns its length. `around`: the container with it, and the one
    /// around that.
    fn value(&mut self, bytes: &'a [u8], at: At<'a>, around: [&mut Around<'a>; 2]) -> Option<usize> {
        if matches!(bytes.first(), Some(b'{' | b'[')) {
            return if at.chosen && at.free { self.texts(bytes, at.depth) } else { self.container(bytes, at, around) };
        }
        let scalar = Raw::front(bytes);
        if let (Some(_), Some(id)) = (scalar.string(), at.id) {
            self.found_stored(&at, id);
        }
        match scalar.string() {
            Some(raw) if !at.chosen && at.name.may_carry() && at.depth <= LEVELS => self.carried(raw, &at, around),
            Some(raw) => self.text(raw, at.chosen),
            None => self.text(scalar.bytes(), at.chosen),
        }
        Some(scalar.bytes().len())
    }

    fn container(&mut self, bytes: &'a [u8], at: At<'a>, [outer, _]: [&mut Around<'a>; 2]) -> Option<usize> {
        let is_object = bytes[0] == b'{';
        // Items of a conversation have tokens of their own.
        if at.depth > if self.rules.chosen { 1 } else { 2 } {
            self.reading.tokens.mark();
        }
        if is_object {
            let (parts, tools) = (self.rules.counts)(at.depth, at.free);
            self.reading.fields.parts += parts;
            self.reading.fields.tools += tools;
        }
        let mut own = Around::new(if is_object { bytes } else { b"" });
        let chosen = at.chosen || !at.name.has_parts();
        let inside = At { depth: at.depth + 1, name: PartName::Item, around: at.name, chosen, ..at };
        let mut index = 0;
        let length = Raw::walk(bytes, &mut |key, value| {
            let mut inside = inside;
            if is_object {
                self.named(key, &mut inside);
                if inside.depth == 3 && matches!(inside.name, PartName::Type | PartName::Tools) {
                    let value = Raw::front(value);
                    if inside.name == PartName::Type {
                        self.is_typed = value.string().is_some();
                    }
                    (self.rules.noted)(self.place, inside.name, value, self.reading.fields);
                }
            } else if at.depth == 3 {
                inside.index = Some(index);
                index += 1;
            }
            self.value(value, inside, [&mut own, &mut *outer])
        });
        for place in &mut self.held {
            if let Some(held) = place.take_if(|held| held.depth == at.depth) {
                held.count(held.kind, self.reading);
            }
        }
        length
    }

    /// Counts the texts of a container whose names the client or a model has chosen, and that names no objects: nothing
    /// else in it matters. Returns its length.
    fn texts(&mut self, bytes: &'a [u8], depth: usize) -> Option<usize> {
        let (mut at, mut open) = (0, 0);
        loop {
            match *bytes.get(at)? {
                begin @ (b'{' | b'[') => {
                    self.reading.tokens.mark();
                    if begin == b'{' {
                        let (parts, tools) = (self.rules.counts)(depth + open, true);
                        self.reading.fields.parts += parts;
                        self.reading.fields.tools += tools;
                    }
                    (open, at) = (open + 1, at + 1);
                }
                b'}' | b']' => {
                    (open, at) = (open - 1, at + 1);
                    if open == 0 {
                        return Some(at);
                    }
                }
                b'"' => {
                    let end = string_end(bytes, at + 1)?;
                    self.text(&bytes[at + 1..end], true);
                    at = end + 1;
                }
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' => at += 1,
                _ => {
                    let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                    let end = at + bytes[at..].iter().position(is_end)?;
                    self.text(&bytes[at..end], true);
                    at = end;
                }
            }
        }
    }

    /// Notes the name of a member.
    fn named(&mut self, key: &'a [u8], at: &mut At<'a>) {
        // A name without a meaning is not compared.
        at.name = if at.chosen && at.free { PartName::Another } else { PartName::of(key) };
        if at.chosen || at.name.is_text() {
            self.text(key, at.chosen);
        }
        match at.depth {
            3 => at.keys = [key, b""],
            5 => at.keys[1] = key,
            _ => {}
        }
        at.free |= (self.rules.is_free)(at.depth, at.name);
        let is_stored = !at.free && (self.rules.is_stored)(at.depth, at.name, at.around);
        at.id = is_stored.then_some(key);
    }

    /// Counts a text. `marks`: with a mark between it and the one before.
    fn text(&mut self, text: &[u8], marks: bool) {
        let Reading { body, tokens, .. } = &mut *self.reading;
        if marks {
            tokens.mark();
        }
        tokens.text(body, Span::of_part(body, text), true);
    }

    /// Holds a string that its part may carry. The part around a source has its type.
    fn carried(&mut self, raw: &'a [u8], at: &At<'a>, [own, outer]: [&mut Around<'a>; 2]) {
        let (mut depth, (mut kind, mut media)) = (at.depth - 1, own.types());
        if matches!(kind, ObjectType::Untold | ObjectType::Source) && depth > 2 {
            let (of_outer, media_of_outer) = outer.types();
            (depth, kind, media) = (depth - 1, of_outer, media.max(media_of_outer));
        }
        let held = HeldString { raw, name: at.name, kind, media, depth };
        // A part carries one of the two; which one a provider reads is unknown.
        if let Some(before) = self.held[usize::from(at.name == PartName::Sealed)].replace(held) {
            before.count(ObjectType::Untold, self.reading);
        }
    }

    #[cold]
    fn found_stored(&mut self, at: &At<'a>, id: &'a [u8]) {
        let [first, second] = at.keys;
        let mut path = format!("{}.{}", self.place, stored::name_of(first));
        if let Some(index) = at.index.filter(|_| !std::ptr::eq(id, first)) {
            path.push_str(&format!("[{index}]"));
        }
        let mut last = first;
        for key in [second, id] {
            if !key.is_empty() && !std::ptr::eq(key, last) {
                path.push('.');
                path.push_str(&stored::name_of(key));
                last = key;
            }
        }
        self.reading.fields.names_stored(format_args!("{path}"), &stored::name_of(id));
    }
}

impl HeldString<'_> {
    /// Counts it as the content of a part of this kind, or as text.
    fn count(&self, kind: ObjectType, reading: &mut Reading<'_, '_>) {
        let Reading { body, tokens, .. } = reading;
        let (raw, span, length) = (self.raw, Span::of_part(body, self.raw), self.raw.len() as u64);
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
        match (kind, self.name) {
            (ObjectType::File | ObjectType::Source | ObjectType::Untold, PartName::Media) | (_, PartName::File)
                if is_address =>
            {
                tokens.add(by_address);
                tokens.fetched();
            }
            (ObjectType::Sealed, _) => {
                tokens.add(by_address);
                tokens.medium(string);
            }
            (ObjectType::Image, PartName::Media) if is_address => {
                tokens.add(IMAGE_TOKENS.max(by_address));
                tokens.medium(CountedMedia { fetches: true, ..image });
            }
            (ObjectType::Image, PartName::Media | PartName::File) if is_data && media == MediaType::Image => {
                tokens.add(IMAGE_TOKENS);
                tokens.medium(image);
            }
            (ObjectType::Image | ObjectType::File, PartName::Media | PartName::File)
                if is_data && media == MediaType::Text =>
            {
                let least = if kind == ObjectType::Image { IMAGE_TOKENS } else { 0 };
                tokens.add(least.max(length.div_ceil(TEXT_BYTES_PER_TOKEN)));
                tokens.medium(CountedMedia { images: u32::from(kind == ObjectType::Image), ..string });
            }
            (ObjectType::Image | ObjectType::File, PartName::Media | PartName::File) if is_data => {
                tokens.add((length / FILE_BYTES_PER_TOKEN).clamp(IMAGE_TOKENS, FILE_TOKENS_MAX));
                tokens.medium(CountedMedia { files: 1, ..none });
            }
            // Data as short as a word, or an address of an unknown form: a small image can have many pixels.
            (ObjectType::Image | ObjectType::File, PartName::Media | PartName::File) => {
                tokens.text(body, span, true);
                tokens.medium(if kind == ObjectType::Image { image } else { CountedMedia { files: 1, ..none } });
            }
            _ if raw.len() > LATER_BYTES_MAX => {
                tokens.add(length / UNSEEN_BYTES_PER_TOKEN);
                tokens.medium(string);
            }
            _ => tokens.text(body, span, true),
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

/// True if the string may be base64 and is too long for a word.
fn is_encoded(raw: &[u8]) -> bool {
    raw.len() > 64 && !raw.contains(&b' ')
}
