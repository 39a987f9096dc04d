//! A local estimate of tokens: one pass, a few bytes of state, no vocabulary.
//!
//! Owns the estimate. Must never be charged where an upstream has reported usage. Called for reservations, for
//! `message_start`, for usage that no upstream reported and for `POST /v1/messages/count_tokens`.
//!
//! Every byte of the text costs a part of a token that depends only on the byte itself and on the one before it. So the
//! estimate does not depend on how a text is cut into pieces, and sixteen bytes are counted at once, in a few
//! instructions per byte. A loop over characters took three quarters of a request's instructions. JSON escapes are
//! decoded first.
//!
//! A client must not be able to make its own text cheap. Every byte costs at least an eighth of a token, whatever and
//! wherever it is. A byte-level tokenizer counts at most one token per byte, so the estimate of any text is at least an
//! eighth of that count. For ordinary kinds of text it is at least a fifth of the lowest count of three tokenizers:
//! `tests/fixtures/tokens/kinds.jsonl` has the kinds, `scripts/soak tokens` searches for worse texts.
//!
//! The costs above that floor were fitted by least squares to OpenAI's `o200k_base` on English, code, JSON and Chinese.
//! The estimates of the committed texts in `tests/fixtures/tokens` are within 10 % of its counts, as the test below
//! measures. Pieces of 700 characters of other prose, code and JSON were off by 3 to 7 % (root mean square). A text of
//! a few words may be further off. Estimates for scripts other than Latin and Chinese are higher.

use crate::wire::Span;
use crate::wire::json::{Run, runs};
use lanes::tokens::{BLOCK, BYTE_PARTS, PIECE, block, has_backslash, packed, piece};
use lanes::unescape::{unescape_into, unescaped};

/// Tokens counted for one image. Providers charge by area, 765 to 1600 for an ordinary one.
pub const IMAGE_TOKENS: u64 = 1000;
/// Maximum tokens counted for one file: no model reads more at once.
pub const FILE_TOKENS_MAX: u64 = 1_000_000;
/// Tokens around one message: role and separators.
pub const MESSAGE_TOKENS: u64 = 4;

/// Fractions of a token in which all costs are expressed.
const PARTS: u64 = 64;
/// Represents the control characters without a class of their own. It costs as much as a punctuation mark.
const CONTROL: char = '\u{7f}';

const _: () = assert!(BYTE_PARTS as u64 * 8 == PARTS, "a byte costs an eighth of a token");

/// Counts tokens of text fed in pieces. Memory does not grow.
#[derive(Copy, Clone, Debug, Default)]
pub struct Estimator {
    parts: u64,
    /// Text not yet counted, as [`packed`] in two halves, the lower first: pieces of a stream are shorter than the
    /// block that is counted at once.
    waiting: [u64; 2],
    /// Bytes that wait.
    length: u8,
    /// The byte before the waiting ones; 0 at the beginning of a text.
    last: u8,
}

impl Estimator {
    /// Creates an estimator with nothing counted.
    pub fn new() -> Estimator {
        Estimator::default()
    }

    /// Counts the text that the inside of a valid JSON string encodes, or a number as written. A piece of a text must
    /// end at a character boundary.
    #[inline]
    pub fn feed_json(&mut self, raw: &[u8]) {
        if raw.len() > BLOCK {
            return self.feed_long(raw);
        }
        let text = packed(raw);
        match has_backslash(text) {
            false => self.wait(text, raw.len()),
            true => self.feed_escaped(raw),
        }
    }

    /// Counts a short text with escapes.
    #[inline(never)] // else a text without escapes saves more registers than it needs
    fn feed_escaped(&mut self, raw: &[u8]) {
        match unescaped(packed(raw), raw.len()) {
            (text, length, decoded) if decoded == raw.len() => self.wait(text, length),
            _ => self.decode(raw),
        }
    }

    /// Counts a text longer than a block. Most texts have no escape, so decoding begins at the first one.
    #[inline(never)]
    fn feed_long(&mut self, raw: &[u8]) {
        let is_plain = |part: &&[u8]| !part.chunks(BLOCK).any(|block| has_backslash(packed(block)));
        let plain: usize = raw.chunks(PIECE).take_while(is_plain).map(<[u8]>::len).sum();
        let (plain, escaped) = raw.split_at(plain);
        if !plain.is_empty() {
            self.feed_plain(plain);
        }
        if !escaped.is_empty() {
            self.decode(escaped);
        }
    }

    /// Counts a text that may have escapes. Decoded escapes and the text between them are gathered.
    #[inline(never)]
    fn decode(&mut self, mut raw: &[u8]) {
        let (mut text, mut length) = ([0; PIECE], 0);
        loop {
            (length, raw) = unescape_into(raw, &mut text, length);
            if raw.is_empty() {
                return self.feed_plain(&text[..length]);
            }
            if length + BLOCK > PIECE {
                self.feed_plain(&text[..length]);
                length = 0;
                continue;
            }
            let mut runs = runs(raw);
            if let Some(Run::Char(char)) = runs.next() {
                length += printed(char).encode_utf8(&mut text[length..]).len();
            }
            raw = runs.rest();
        }
    }

    /// Counts text without escapes.
    pub fn feed_plain(&mut self, text: &[u8]) {
        if text.len() <= BLOCK {
            return self.wait(packed(text), text.len());
        }
        self.count_waiting();
        for part in text.chunks(PIECE) {
            self.parts = self.parts.saturating_add(piece(part, self.last));
            self.last = part[part.len() - 1];
        }
    }

    /// Stores a short piece until the pieces fill a block.
    #[inline]
    fn wait(&mut self, text: u128, length: usize) {
        if usize::from(self.length) + length > BLOCK {
            self.count_waiting();
        }
        // A shift by the full width returns `None`: the block is then full, and `text` is empty.
        let text = text.checked_shl(8 * u32::from(self.length)).unwrap_or_default();
        self.waiting[0] |= text as u64;
        self.waiting[1] |= (text >> 64) as u64;
        self.length += length as u8;
    }

    fn count_waiting(&mut self) {
        if self.length == 0 {
            return;
        }
        let text = u128::from(self.waiting[0]) | u128::from(self.waiting[1]) << 64;
        self.parts = self.parts.saturating_add(block(text, self.last));
        self.last = text.to_le_bytes()[usize::from(self.length) - 1];
        (self.waiting, self.length) = ([0; 2], 0);
    }

    /// Ends the current word: the next text is separate.
    pub fn cut(&mut self) {
        self.count_waiting();
        self.last = 0;
    }

    /// Counts whole tokens.
    pub fn add(&mut self, tokens: u64) {
        self.parts = self.parts.saturating_add(tokens.saturating_mul(PARTS));
    }

    /// True if nothing was fed.
    pub fn is_empty(&self) -> bool {
        self.parts == 0 && self.length == 0
    }

    /// Tokens counted so far, rounded up; 0 if nothing was fed.
    pub fn tokens(&self) -> u64 {
        let mut all = *self;
        all.count_waiting();
        all.parts.div_ceil(PARTS)
    }
}

/// A character, or the one that represents it.
fn printed(char: char) -> char {
    if char < ' ' && !matches!(char, '\t' | '\n' | '\r') { CONTROL } else { char }
}

/// Bytes of an ordinary text per token.
const TEXT_BYTES_PER_TOKEN: u64 = 4;
/// Maximum number of texts whose positions are kept for a later count: those of thousands of tools.
const LATER_MAX: usize = 1 << 16;
/// Number of texts of an ordinary request: their memory is too small to be reserved.
const LATER_FREE: usize = 64;
/// Maximum bytes of such texts, and of a string that is counted while it arrives, so that no count takes long.
pub const LATER_BYTES_MAX: usize = 1 << 20;
/// Maximum parts of one byte: parts are added up in lanes of eight bits.
const BYTE_PARTS_MAX: u64 = u8::MAX as u64;
/// Parts of a mark between texts.
const MARK_PARTS: u64 = PARTS / 4;

/// Texts of one body, counted on demand: most answers report their usage. The positions of the texts are kept up to a
/// bound; texts beyond it are counted on arrival.
#[derive(Clone, Debug, Default)]
pub struct CountLater {
    /// Boxed, since few requests have so many texts.
    counted: Option<Box<Estimator>>,
    /// A long string that is still arriving: how far it has been counted, and all texts up to that point.
    arriving: Option<Box<(Span, Estimator)>>,
    /// Each with a flag: true if the current word ends with it.
    texts: Vec<(Span, bool)>,
    /// Bytes of those.
    later: usize,
    /// Bytes of all texts.
    bytes: u64,
    /// Tokens of everything that is not text.
    added: u64,
    /// Marks between texts: brackets, quotes, commas.
    marks: u64,
    /// Files that a provider fetches: their size is not known.
    fetched: u64,
}

impl CountLater {
    /// Resets it and keeps the storage.
    #[inline]
    pub fn reset(&mut self) {
        self.texts.clear();
        (self.counted, self.arriving) = (None, None);
        (self.later, self.bytes, self.added, self.marks, self.fetched) = (0, 0, 0, 0, 0);
    }

    /// Adds the text at `span` of `body`, as [`Estimator::feed_json`] takes it. `cut`: the next text is separate.
    #[inline]
    pub fn text(&mut self, body: &[u8], mut span: Span, cut: bool) {
        self.bytes += span.len() as u64;
        if self.arriving.is_some() {
            span = self.arrived(span);
        }
        self.later += span.len();
        self.texts.push((span, cut));
        if self.texts.len() > LATER_MAX || self.later > LATER_BYTES_MAX {
            self.count(body);
        }
    }

    /// Reports an arriving string that may be a text. `span`: its bytes so far, up to the end of a character. A long
    /// one is counted while it arrives.
    pub fn arriving(&mut self, body: &[u8], span: Span) {
        if span.len() < LATER_BYTES_MAX {
            return;
        }
        let known = self.arriving.take().filter(|known| known.0.start == span.start);
        let mut known = known.unwrap_or_else(|| Box::new((Span { end: span.start, ..span }, self.count(body))));
        known.1.feed_json(Span { start: known.0.end, end: span.end }.of(body));
        known.0.end = span.end;
        self.arriving = Some(known);
    }

    /// The part of the text at `span` that was not counted while it arrived.
    #[cold]
    fn arrived(&mut self, span: Span) -> Span {
        match self.arriving.take() {
            Some(known) if known.0.start == span.start => {
                self.counted = Some(Box::new(known.1));
                Span { start: known.0.end, end: span.end }
            }
            _ => span,
        }
    }

    /// Bytes of storage for the positions of many texts; 0 for those of an ordinary request.
    pub fn storage(&self) -> usize {
        let texts = self.texts.capacity();
        if texts <= LATER_FREE { 0 } else { texts * size_of::<(Span, bool)>() }
    }

    /// Ends the current word: the next text is separate.
    #[inline]
    pub fn cut(&mut self) {
        match self.texts.last_mut() {
            Some((_, cut)) => *cut = true,
            None => self.counted.iter_mut().for_each(|counted| counted.cut()),
        }
    }

    /// Counts whole tokens.
    #[inline]
    pub fn add(&mut self, tokens: u64) {
        self.added = self.added.saturating_add(tokens);
    }

    /// Counts a file that the provider fetches.
    #[inline]
    pub fn fetched(&mut self) {
        self.fetched += 1;
    }

    /// Tokens of such files, each at the maximum size.
    #[inline]
    pub fn tokens_fetched(&self) -> u64 {
        self.fetched * FILE_TOKENS_MAX
    }

    /// Counts a mark between texts, which a model reads too.
    #[inline]
    pub fn mark(&mut self) {
        self.marks += 1;
    }

    /// Ends of the texts whose positions are kept.
    pub(super) fn ends(&self) -> TextEnds<'_> {
        TextEnds(&self.texts)
    }

    /// Tokens of all texts so far. `body` must contain them all.
    pub fn tokens(&self, body: &[u8]) -> u64 {
        let mut counted = self.counted(body);
        counted.count_waiting();
        counted.parts = counted.parts.saturating_add(self.marks * MARK_PARTS);
        counted.tokens().saturating_add(self.added).saturating_add(self.tokens_fetched())
    }

    /// Upper bound of [`CountLater::tokens`], known without reading the texts.
    #[inline]
    pub fn tokens_max(&self) -> u64 {
        ((self.bytes * BYTE_PARTS_MAX + self.marks * MARK_PARTS) / PARTS + 1)
            .saturating_add(self.added)
            .saturating_add(self.tokens_fetched())
    }

    /// Approximation of [`CountLater::tokens`] from the length of the texts.
    #[inline]
    pub fn tokens_about(&self) -> u64 {
        (self.bytes / TEXT_BYTES_PER_TOKEN).saturating_add(self.added)
    }

    /// Returns an estimator that has counted the texts.
    fn counted(&self, body: &[u8]) -> Estimator {
        let mut counted = self.counted.as_deref().copied().unwrap_or_default();
        for (span, cut) in &self.texts {
            counted.feed_json(span.of(body));
            if *cut {
                counted.cut();
            }
        }
        counted
    }

    /// Counts the texts whose positions are kept.
    fn count(&mut self, body: &[u8]) -> Estimator {
        let counted = self.counted(body);
        self.counted = Some(Box::new(counted));
        self.texts.clear();
        self.later = 0;
        counted
    }
}

/// Ends of texts in the order of the body.
pub(super) struct TextEnds<'a>(&'a [(Span, bool)]);

impl TextEnds<'_> {
    /// Returns the end of the text that begins at `at`; `None` if its position is not kept. `at` must rise from call to
    /// call.
    #[inline]
    pub(super) fn of(&mut self, at: usize) -> Option<usize> {
        while let Some(((span, _), rest)) = self.0.split_first()
            && span.start as usize <= at
        {
            self.0 = rest;
            if span.start as usize == at {
                return Some(span.end as usize);
            }
        }
        None
    }
}

/// Estimated tokens of a prompt.
#[derive(Copy, Clone, Debug)]
pub enum PromptTokens<'a> {
    /// The number.
    Counted(u64),
    /// Number of tokens of this body, counted on demand.
    Later(&'a CountLater, &'a [u8]),
}

impl PromptTokens<'_> {
    /// Number of tokens; counted again at each call unless it is known.
    pub fn count(self) -> u64 {
        match self {
            PromptTokens::Counted(tokens) => tokens,
            PromptTokens::Later(texts, body) => texts.tokens(body),
        }
    }
}

#[cfg(test)]
mod tests;
