//! Decodes a text in every way in which a secret may be encoded: percent-encoding, HTML entities, JSON escapes,
//! hexadecimal digits and base64. Each byte knows the place in the text that it comes from. All letters are lower case.
//! Pure; called by `mask`.

use crate::wire::Span;

/// Characters of an entity or an escape, at most.
const ENTITY_MAX: usize = 12;
/// Hexadecimal digits in a row from which on they may hold part of a secret, and the same of base64.
const HEX_MIN: usize = 16;
const BASE64_MIN: usize = 11;

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
    fn joined(&self) -> MappedText {
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

    /// Range of the message that these bytes come from.
    pub(super) fn span(&self, from: usize, to: usize) -> Span {
        let (first, last) = (self.spans.get(from), self.spans.get(to.saturating_sub(1)));
        Span { start: first.map_or(0, |span| span.start), end: last.map_or(0, |span| span.end) }
    }

    /// Runs of at least this many bytes that each have a value, with the position of each run.
    fn runs(&self, min: usize, value: fn(u8) -> Option<u8>) -> Vec<(usize, Vec<u8>)> {
        let (mut runs, mut run) = (Vec::new(), Vec::new());
        for at in 0..=self.raw.len() {
            match self.raw.get(at).and_then(|byte| value(*byte)) {
                Some(value) => run.push(value),
                None if run.len() >= min => runs.push((at - run.len(), std::mem::take(&mut run))),
                None => run.clear(),
            }
        }
        runs
    }

    /// Adds the bytes that digits of this many bits encode; the first digit is at `begin`.
    fn add(&mut self, of: &MappedText, begin: usize, digits: &[u8], bits: usize) {
        for at in 0..digits.len() * bits / 8 {
            let (first, last) = (at * 8 / bits, (at * 8 + 7) / bits);
            let whole = digits[first..=last].iter().fold(0u32, |sum, digit| sum << bits | u32::from(*digit));
            let byte = (whole >> ((last + 1) * bits - (at + 1) * 8)) as u8;
            self.push(byte, of.span(begin + first, begin + last + 1));
        }
        // No secret continues from one run to the next.
        self.push(0, of.span(begin, begin));
    }
}

/// The bytes that hexadecimal digits in a text stand for, whichever digit begins a byte.
pub(super) fn in_hex(text: &MappedText) -> Vec<MappedText> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = |text: &MappedText| read(text, &text.runs(HEX_MIN, digit), 2, 4);
    [bytes(text), bytes(&text.joined())].concat()
}

/// The bytes that base64 in a text stands for, in either alphabet, whichever digit begins a group.
pub(super) fn in_base64(text: &MappedText) -> Vec<MappedText> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    read(text, &text.runs(BASE64_MIN, digit), 4, 6)
}

/// Bytes that runs of digits encode, read from each of the first `group` digits on.
fn read(text: &MappedText, runs: &[(usize, Vec<u8>)], group: usize, bits: usize) -> Vec<MappedText> {
    let mut all = Vec::new();
    for skipped in (0..group).filter(|_| !runs.is_empty()) {
        let mut read = MappedText::default();
        for (begin, digits) in runs {
            read.add(text, begin + skipped, &digits[skipped..], bits);
        }
        all.push(read);
    }
    all
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
        [b'\\', b'u', digits @ ..] => Some((number(digits.get(..4)?, 16)?, 6)),
        [b'\\', b'x', digits @ ..] => Some((number(digits.get(..2)?, 16)?, 4)),
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
