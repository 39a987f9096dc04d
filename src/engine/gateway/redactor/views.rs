//! Decodes a text in the ways in which its characters may be encoded: percent-encoding, HTML entities, JSON escapes.
//! Each byte knows the place in the text that it comes from. Pure.

use crate::wire::Span;

/// Characters of an entity, and backslashes of an escape, at most.
const ENTITY_MAX: usize = 12;
const ESCAPE_MAX: usize = 16;
/// Names of characters that may be in a credential.
const ENTITIES: [(&[u8], u8); 30] = [
    (b"amp", b'&'),
    (b"apos", b'\''),
    (b"ast", b'*'),
    (b"bsol", b'\\'),
    (b"colon", b':'),
    (b"comma", b','),
    (b"commat", b'@'),
    (b"dash", b'-'),
    (b"dollar", b'$'),
    (b"equals", b'='),
    (b"excl", b'!'),
    (b"grave", b'`'),
    (b"gt", b'>'),
    (b"hat", b'^'),
    (b"hyphen", b'-'),
    (b"lcub", b'{'),
    (b"lowbar", b'_'),
    (b"lpar", b'('),
    (b"lsqb", b'['),
    (b"lt", b'<'),
    (b"num", b'#'),
    (b"percnt", b'%'),
    (b"period", b'.'),
    (b"plus", b'+'),
    (b"quest", b'?'),
    (b"quot", b'"'),
    (b"rpar", b')'),
    (b"semi", b';'),
    (b"sol", b'/'),
    (b"verbar", b'|'),
];

/// Bytes, and where in the message each of them comes from.
#[derive(Clone, Debug, Default)]
pub(super) struct MappedText {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// The bytes before they were turned to lower case.
    raw: Vec<u8>,
}

impl MappedText {
    /// The message, with every encoded character decoded.
    pub(super) fn plain(message: &str) -> MappedText {
        let mut text = MappedText::default();
        for (at, c) in message.char_indices() {
            let span = Span::new(at, at + c.len_utf8());
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push(byte, span));
        }
        text.decoded()
    }

    fn push(&mut self, byte: u8, span: Span) {
        self.bytes.push(byte.to_ascii_lowercase());
        self.raw.push(byte);
        self.spans.push(span);
    }

    /// The text decoded once more.
    pub(super) fn decoded(&self) -> MappedText {
        let (mut text, mut at) = (MappedText::default(), 0);
        while at < self.bytes.len() {
            let (byte, length) = encoded(&self.bytes[at..]).unwrap_or((self.raw[at], 1));
            text.push(byte, self.span(at, at + length));
            at += length;
        }
        text
    }

    /// Bytes written as two hexadecimal digits each, `73 6b`, `73:6b` or `0x73, 0x6b`, without what separates them.
    pub(super) fn joined(&self) -> MappedText {
        let (mut text, mut at) = (MappedText::default(), 0);
        while at < self.bytes.len() {
            let length = self.bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            let prefix = if self.bytes[at..].starts_with(b"0x") { 2 } else { 0 };
            match &self.bytes[at..at + length] {
                [] => {}
                word if word.len() == prefix + 2 => {
                    (at + prefix..at + length).for_each(|digit| text.push(self.raw[digit], self.spans[digit]));
                }
                // A byte that is not a digit: no secret continues from one word to the next.
                _ => text.push(0, self.spans[at]),
            }
            at += length.max(1);
        }
        text
    }

    /// The whole text in lower case.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole text.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Range of the message that these bytes come from.
    pub(super) fn span(&self, from: usize, to: usize) -> Span {
        let (first, last) = (self.spans.get(from), self.spans.get(to.saturating_sub(1)));
        Span { start: first.map_or(0, |span| span.start), end: last.map_or(0, |span| span.end) }
    }
}

/// The encoded character at the front of a lower-case text, and its length.
fn encoded(text: &[u8]) -> Option<(u8, usize)> {
    let number = |digits: &[u8], radix: u32| {
        let value = digits
            .iter()
            .try_fold(0u32, |sum, digit| sum.checked_mul(radix)?.checked_add(char::from(*digit).to_digit(radix)?));
        value.and_then(|value| u8::try_from(value).ok()).filter(|_| !digits.is_empty())
    };
    match text {
        [b'%', digits @ ..] => Some((number(digits.get(..2)?, 16)?, 3)),
        // JSON within JSON has several backslashes.
        [b'\\', ..] => {
            let slashes = text.iter().take(ESCAPE_MAX).take_while(|byte| **byte == b'\\').count();
            let (kind, digits) = text[slashes..].split_first()?;
            let length = match kind {
                b'u' => 4,
                b'x' => 2,
                _ => return None,
            };
            Some((number(digits.get(..length)?, 16)?, slashes + 1 + length))
        }
        [b'&', rest @ ..] => {
            let end = rest.iter().take(ENTITY_MAX).position(|byte| *byte == b';')?;
            let byte = match &rest[..end] {
                [b'#', b'x', digits @ ..] => number(digits, 16)?,
                [b'#', digits @ ..] => number(digits, 10)?,
                name => ENTITIES.iter().find(|(known, _)| *known == name)?.1,
            };
            Some((byte, end + 2))
        }
        _ => None,
    }
}
