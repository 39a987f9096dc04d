//! A local estimate of tokens: one pass, a few bytes of state, no vocabulary.
//!
//! Owns the estimate. Must never be charged where an upstream has reported usage. Called for reservations, for
//! `message_start`, for usage that no upstream reported and for `POST /v1/messages/count_tokens`.
//!
//! Every byte of the text costs a part of a token that depends only on the byte itself and on the one before it, so the
//! estimate does not depend on how a text is cut into pieces. A table has the costs. JSON escapes are decoded first.
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
use crate::wire::json::{Run, has_escape, linear_apart, runs};

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

/// The class of a byte, or of the byte before it, on which a byte's cost depends.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
enum CostClass {
    /// Blanks, and the beginning of a text.
    #[default]
    Blank,
    Lower,
    Upper,
    Digit,
    /// Visible ASCII except letters and digits, and the substitute for control characters.
    Mark,
    /// Line feeds, tabs and other control characters.
    Line,
    /// Bytes that are not ASCII.
    Wide,
}

impl CostClass {
    const ALL: [CostClass; 7] =
        [Self::Blank, Self::Lower, Self::Upper, Self::Digit, Self::Mark, Self::Line, Self::Wide];

    const fn of(byte: u8) -> CostClass {
        match byte {
            b'a'..=b'z' => CostClass::Lower,
            b'A'..=b'Z' => CostClass::Upper,
            b'0'..=b'9' => CostClass::Digit,
            b' ' => CostClass::Blank,
            0x80.. => CostClass::Wide,
            0x21.. => CostClass::Mark,
            _ => CostClass::Line,
        }
    }

    /// Parts of a token that each byte of the class costs: at least an eighth of a token. A letter and a mark cost at
    /// least a fifth of the most expensive ones.
    const fn each(self) -> u8 {
        match self {
            CostClass::Lower | CostClass::Upper => 10,
            CostClass::Digit => 16,
            CostClass::Mark => 13,
            CostClass::Blank | CostClass::Line | CostClass::Wide => 8,
        }
    }

    /// Parts of a token that the first byte of a run costs in addition: a word is about a token, a long one more. Three
    /// digits are about a token.
    const fn first(self) -> u8 {
        match self {
            CostClass::Lower | CostClass::Upper => 20,
            CostClass::Digit => 101,
            CostClass::Mark => 26,
            CostClass::Line => 17,
            CostClass::Blank | CostClass::Wide => 0,
        }
    }
}

/// Parts of a token that `byte` costs after a byte of the class `before`.
const fn cost(before: CostClass, byte: u8) -> u8 {
    let class = CostClass::of(byte);
    let begun = match (before, class) {
        // A capital after a small letter begins a new part of a word.
        (CostClass::Lower, CostClass::Upper) => 16,
        (CostClass::Upper, CostClass::Lower) => 0,
        // A letter after one of another script begins no word.
        (CostClass::Wide, CostClass::Lower | CostClass::Upper) => 0,
        _ if before as u8 == class as u8 => 0,
        _ => class.first(),
    };
    // An ideograph is a little less than a token, a letter of another script half a token, an emoji two.
    let wide = match byte {
        0xf0.. => 96,
        0xe0.. => 30,
        0xc0.. => 14,
        _ => 0,
    };
    class.each() + begun + wide
}

/// CostClass of each byte.
static CLASSES: [CostClass; 256] = {
    let (mut classes, mut byte) = ([CostClass::Blank; 256], 0);
    while byte < classes.len() {
        classes[byte] = CostClass::of(byte as u8);
        byte += 1;
    }
    classes
};

/// Cost of each byte after a byte of each class.
static COSTS: [[u8; 256]; CostClass::ALL.len()] = {
    let (mut costs, mut before) = ([[0; 256]; CostClass::ALL.len()], 0);
    while before < costs.len() {
        let mut byte = 0;
        while byte < 256 {
            costs[before][byte] = cost(CostClass::ALL[before], byte as u8);
            byte += 1;
        }
        before += 1;
    }
    costs
};

/// Counts tokens of text fed in pieces. Memory does not grow.
#[derive(Copy, Clone, Debug, Default)]
pub struct Estimator {
    parts: u64,
    /// CostClass of the last byte.
    last: CostClass,
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
        if has_escape(raw) { self.feed_escaped(raw) } else { self.feed_plain(raw) }
    }

    /// Counts a text with escapes.
    #[inline(never)] // else a text without escapes saves more registers than it needs
    fn feed_escaped(&mut self, raw: &[u8]) {
        for run in runs(raw) {
            match run {
                Run::Plain(bytes) => self.feed_plain(bytes),
                Run::Char(char) => self.feed_plain(printed(char).encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }

    /// Counts text without escapes.
    pub fn feed_plain(&mut self, text: &[u8]) {
        let (mut parts, mut last) = (0, self.last);
        for &byte in text {
            parts += u64::from(COSTS[last as usize][usize::from(byte)]);
            last = CLASSES[usize::from(byte)];
        }
        (self.parts, self.last) = (self.parts.saturating_add(parts), last);
    }

    /// Ends the current word: the next text is separate.
    pub fn cut(&mut self) {
        self.last = CostClass::Blank;
    }

    /// Counts whole tokens.
    pub fn add(&mut self, tokens: u64) {
        self.parts = self.parts.saturating_add(tokens.saturating_mul(PARTS));
    }

    /// True if nothing was fed.
    pub fn is_empty(&self) -> bool {
        self.parts == 0
    }

    /// Tokens counted so far, rounded up; 0 if nothing was fed.
    pub fn tokens(&self) -> u64 {
        self.parts.div_ceil(PARTS)
    }
}

/// Bytes of the text that the inside of a JSON string encodes.
fn decoded_length(raw: &[u8]) -> u64 {
    if !has_escape(raw) {
        return raw.len() as u64;
    }
    let length = |run| match run {
        Run::Plain(bytes) => bytes.len(),
        Run::Char(char) => char.len_utf8(),
    };
    runs(raw).map(length).sum::<usize>() as u64
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
/// Maximum bytes of such texts, so that no count takes long.
pub const LATER_BYTES_MAX: usize = 1 << 20;
/// Maximum parts of one byte, as the type of the table says.
const BYTE_PARTS_MAX: u64 = u8::MAX as u64;
/// Parts of a mark between texts.
const MARK_PARTS: u64 = PARTS / 4;

/// Texts of one body, counted on demand: most answers report their usage. The positions of the texts are kept up to a
/// bound; texts beyond it are counted at once.
#[derive(Clone, Debug, Default)]
pub struct CountLater {
    /// Boxed, since few requests have so many texts.
    counted: Option<Box<Estimator>>,
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
    /// Media among the parts, for an upper bound of the tokens.
    media: CountedMedia,
}

/// Parts that are not text. An upper bound of their tokens depends on the model.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct CountedMedia {
    /// Images.
    pub(super) images: u32,
    /// Files that are in the request.
    pub(super) files: u32,
    /// Bytes of other strings that are not counted like text.
    pub(super) bytes: u32,
    /// True if the provider fetches an image.
    pub(super) fetches: bool,
}

impl CountLater {
    /// Resets it and keeps the storage.
    #[inline]
    pub fn reset(&mut self) {
        self.texts.clear();
        self.counted = None;
        (self.later, self.bytes, self.added, self.marks, self.fetched) = (0, 0, 0, 0, 0);
        self.media = CountedMedia::default();
    }

    /// Adds the text at `span` of `body`, as [`Estimator::feed_json`] takes it. `cut`: the next text is separate.
    #[inline]
    pub fn text(&mut self, body: &[u8], span: Span, cut: bool) {
        self.bytes += span.len() as u64;
        self.later += span.len();
        self.texts.push((span, cut));
        if self.texts.len() > LATER_MAX || self.later > LATER_BYTES_MAX {
            self.count(body);
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

    /// Counts a part that is not text.
    pub(super) fn medium(&mut self, more: CountedMedia) {
        let CountedMedia { images, files, bytes, fetches } = &mut self.media;
        *images = images.saturating_add(more.images);
        *files = files.saturating_add(more.files);
        *bytes = bytes.saturating_add(more.bytes);
        *fetches |= more.fetches;
    }

    /// True if the provider fetches a file or an image.
    pub(super) fn is_fetching(&self) -> bool {
        self.fetched > 0 || self.media.fetches
    }

    /// Tokens of all texts that no tokenizer exceeds: one for each decoded byte and each mark between texts. Texts
    /// whose positions are not kept count as they are written. `image` and `file`: most tokens of each.
    pub(super) fn tokens_most(&self, body: &[u8], image: u64, file: u64) -> u64 {
        let written = self.bytes - self.later as u64;
        let decoded = self.texts.iter().fold(0, |sum, (span, _)| sum + decoded_length(span.of(body)));
        let CountedMedia { images, files, bytes, .. } = self.media;
        let media = u64::from(images).saturating_mul(image).saturating_add(u64::from(files).saturating_mul(file));
        (written + decoded + self.marks + u64::from(bytes)).saturating_add(media)
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
    fn count(&mut self, body: &[u8]) {
        self.counted = Some(Box::new(self.counted(body)));
        self.texts.clear();
        self.later = 0;
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
            // The body of a request, counted while its answer is read.
            PromptTokens::Later(texts, body) => linear_apart(body.len(), || texts.tokens(body)),
        }
    }
}

#[cfg(test)]
mod tests;
