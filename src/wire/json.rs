//! A JSON scanner: in place, strict, resumable at any byte, without a tree and without recursion.
//!
//! Owns the grammar (RFC 8259), the UTF-8 check and the bound on nesting. Must never interpret a member: the meaning of
//! a key is the caller's business. Called by `dialect` (requests, answers, stream events).

mod run;
mod scanned;
mod unescape;
mod view;
mod write;

pub use run::string_end;
pub use scanned::{LinearGuard, ScanCount, linear, linear_apart};
pub use unescape::{Run, Runs, eq_unescaped, has_escape, runs, unescape};
pub use view::{Items, Members, Raw, ValueKind};
pub use write::put;
pub use write::{
    Inside, Number, OrElse, Put, Quoted, compact, item, key, key_inside, member_count, member_inside, member_string,
    members, object_with, write_count, write_escaped, write_inside, write_string,
};

use super::Span;
use lanes::skip::{to_special, to_special_wide};
use scanned::scanned;
use std::fmt;
use unescape::hex4;

/// Nesting depth of JSON. Deeper JSON is answered with 400.
const JSON_DEPTH_MAX: usize = 128;

/// Kind of token that the scanner found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Token {
    /// `{`.
    ObjectOpen,
    /// `}`.
    ObjectClose,
    /// `[`.
    ArrayOpen,
    /// `]`.
    ArrayClose,
    /// A member's name. The span is between the quotes, with escapes.
    Key,
    /// A string value. The span is between the quotes, with escapes.
    String,
    /// A number. The span is its text.
    Number,
    /// `true`.
    True,
    /// `false`.
    False,
    /// `null`.
    Null,
}

/// Request of a visitor to stop the scan. The visitor keeps its reason.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Stop;

/// Receives each token once, in order.
pub trait Visitor {
    /// Receives one token. `depth` is the number of containers around it: 0 for the document itself, equal for a
    /// container's opening and its closing, 1 for the members of the outermost object.
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop>;

    /// Receives the start of an object at `at`. A visitor that recognises the object by its form may take it whole and
    /// return its end. The object must then be valid, and the visitor receives none of its tokens.
    #[inline(always)]
    fn object(&mut self, _buf: &[u8], _at: usize, _depth: usize) -> Option<usize> {
        None
    }
}

/// A visitor that only checks that the document is valid.
#[derive(Copy, Clone, Debug, Default)]
pub struct Valid;

impl Visitor for Valid {
    fn token(&mut self, _: &[u8], _: Token, _: usize, _: Span) -> Result<(), Stop> {
        Ok(())
    }
}

/// Position and kind of a syntax error.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Syntax {
    /// Offset of the offending byte.
    pub at: usize,
    /// Description of the error.
    pub what: &'static str,
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid JSON at byte {}: {}", self.at, self.what)
    }
}

/// Reason why a scan ended early.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ScanError {
    /// The document is not JSON.
    Syntax(Syntax),
    /// The visitor stopped the scan.
    Stopped,
}

impl From<Syntax> for ScanError {
    fn from(syntax: Syntax) -> ScanError {
        ScanError::Syntax(syntax)
    }
}

impl From<Stop> for ScanError {
    fn from(_: Stop) -> ScanError {
        ScanError::Stopped
    }
}

/// Kind of token expected next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ExpectedToken {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    InKey,
    InString,
    InNumber(Digits),
    End,
}

/// Position of the scanner within a number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    Power,
}

impl Digits {
    /// Returns the state after `byte`, `None` if the number ends before it.
    fn after(self, byte: u8) -> Option<Digits> {
        use Digits::{Exponent, ExponentSign, Fraction, Minus, Point, Power, Whole, Zero};
        match (self, byte) {
            (Minus, b'0') => Some(Zero),
            (Minus, b'1'..=b'9') | (Whole, b'0'..=b'9') => Some(Whole),
            (Zero | Whole, b'.') => Some(Point),
            (Point | Fraction, b'0'..=b'9') => Some(Fraction),
            (Zero | Whole | Fraction, b'e' | b'E') => Some(Exponent),
            (Exponent, b'+' | b'-') => Some(ExponentSign),
            (Exponent | ExponentSign | Power, b'0'..=b'9') => Some(Power),
            _ => None,
        }
    }

    fn is_whole_number(self) -> bool {
        matches!(self, Digits::Zero | Digits::Whole | Digits::Fraction | Digits::Power)
    }
}

/// A scanner that continues where it stopped. Every call receives the same bytes plus those that have arrived since.
#[derive(Copy, Clone, Debug)]
pub struct Scanner {
    at: usize,
    start: usize,
    nest: Nest,
    expect: ExpectedToken,
}

/// Open containers.
#[derive(Copy, Clone, Debug)]
struct Nest {
    depth: usize,
    /// Bits, one for each container around the innermost, the lowest for the nearest: 1 for an object. Its width is the
    /// bound on nesting.
    around: u128,
    /// True if the innermost container is an object.
    object: bool,
}

impl Nest {
    const NONE: Nest = Nest { depth: 0, around: 0, object: false };

    fn is_full(&self) -> bool {
        self.depth == JSON_DEPTH_MAX
    }

    #[inline(always)]
    fn enter(&mut self, object: bool) {
        self.around = self.around << 1 | u128::from(self.object);
        self.object = object;
        self.depth += 1;
    }

    #[inline(always)]
    fn leave(&mut self) {
        self.object = self.around & 1 == 1;
        self.around >>= 1;
        self.depth -= 1;
    }

    /// Returns the byte that closes the innermost container.
    #[inline(always)]
    fn closing(&self) -> u8 {
        if self.object { b'}' } else { b']' }
    }
}

impl Default for Scanner {
    fn default() -> Scanner {
        Scanner::new()
    }
}

const _: () = assert!(JSON_DEPTH_MAX <= 128);

impl Scanner {
    /// Returns a scanner at the start of a document.
    pub fn new() -> Scanner {
        Scanner { at: 0, start: 0, nest: Nest::NONE, expect: ExpectedToken::Value }
    }

    /// Scans the available bytes. `buf` is the document from its first byte on.
    pub fn scan<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<(), ScanError> {
        scanned(buf.len().saturating_sub(self.at));
        loop {
            if matches!(self.expect, ExpectedToken::Value | ExpectedToken::Key) {
                self.run(buf, visitor)?;
            }
            if !self.step(buf, visitor)? {
                return Ok(());
            }
        }
    }

    /// Span of the unfinished string, up to the last complete character scanned.
    pub fn open_string(&self) -> Option<Span> {
        matches!(self.expect, ExpectedToken::InKey | ExpectedToken::InString).then(|| Span::new(self.start, self.at))
    }

    /// Scans the remaining bytes. The document must end where `buf` ends.
    pub fn finish<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<(), ScanError> {
        self.scan(buf, visitor)?;
        self.end(buf, visitor)
    }

    /// Checks that nothing follows the scanned document.
    fn end<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<(), ScanError> {
        if let ExpectedToken::InNumber(digits) = self.expect
            && self.at == buf.len()
            && digits.is_whole_number()
        {
            self.scalar(buf, visitor, Token::Number, Span::new(self.start, self.at))?;
        }
        if self.expect == ExpectedToken::End && self.at == buf.len() {
            return Ok(());
        }
        Err(ScanError::Syntax(Syntax { at: buf.len(), what: "unexpected end" }))
    }

    /// Scans one token. False if more bytes are needed.
    fn step<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<bool, ScanError> {
        match self.expect {
            ExpectedToken::InKey | ExpectedToken::InString => return self.string(buf, visitor),
            ExpectedToken::InNumber(digits) => return self.number(buf, visitor, digits),
            _ => {}
        }
        let byte = loop {
            match buf.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(&byte) => break byte,
                None => return Ok(false),
            }
        };
        match (self.expect, byte) {
            (ExpectedToken::Colon, b':') => self.pass(ExpectedToken::Value),
            (ExpectedToken::CommaOrEnd, b',') if self.in_object() => self.pass(ExpectedToken::Key),
            (ExpectedToken::CommaOrEnd, b',') => self.pass(ExpectedToken::Value),
            (ExpectedToken::Key | ExpectedToken::KeyOrEnd, b'"') => self.begin_string(ExpectedToken::InKey),
            (ExpectedToken::KeyOrEnd, b'}') => self.close(buf, visitor, Token::ObjectClose)?,
            (ExpectedToken::CommaOrEnd, b'}') if self.in_object() => self.close(buf, visitor, Token::ObjectClose)?,
            (ExpectedToken::ValueOrEnd, b']') => self.close(buf, visitor, Token::ArrayClose)?,
            (ExpectedToken::CommaOrEnd, b']') if !self.in_object() => self.close(buf, visitor, Token::ArrayClose)?,
            (ExpectedToken::Value | ExpectedToken::ValueOrEnd, _) => return self.value(buf, visitor, byte),
            _ => return Err(self.wrong().into()),
        }
        Ok(true)
    }

    fn wrong(&self) -> Syntax {
        let what = match self.expect {
            ExpectedToken::Colon => "expected `:`",
            ExpectedToken::CommaOrEnd if self.in_object() => "expected `,` or `}`",
            ExpectedToken::CommaOrEnd => "expected `,` or `]`",
            ExpectedToken::Key | ExpectedToken::KeyOrEnd => "expected a string as key",
            ExpectedToken::End => "trailing bytes",
            _ => "expected a value",
        };
        Syntax { at: self.at, what }
    }

    fn in_object(&self) -> bool {
        self.nest.object
    }

    fn pass(&mut self, next: ExpectedToken) {
        self.at += 1;
        self.expect = next;
    }

    fn begin_string(&mut self, expect: ExpectedToken) {
        self.pass(expect);
        self.start = self.at;
    }

    /// Sets the tokens expected after a value. A directly following comma, and the quote of a name after it, are taken
    /// at once: they are nearly always there.
    fn after_value(&mut self, buf: &[u8]) {
        if self.nest.depth == 0 {
            self.expect = ExpectedToken::End;
        } else if buf.get(self.at) != Some(&b',') {
            self.expect = ExpectedToken::CommaOrEnd;
        } else if !self.nest.object {
            self.pass(ExpectedToken::Value);
        } else {
            self.pass(ExpectedToken::Key);
            if buf.get(self.at) == Some(&b'"') {
                self.begin_string(ExpectedToken::InKey);
            }
        }
    }

    fn scalar<V: Visitor>(&mut self, buf: &[u8], v: &mut V, token: Token, span: Span) -> Result<(), ScanError> {
        self.after_value(buf);
        Ok(v.token(buf, token, self.nest.depth, span)?)
    }

    fn value<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, byte: u8) -> Result<bool, ScanError> {
        match byte {
            b'"' => self.begin_string(ExpectedToken::InString),
            b'{' => self.open(buf, visitor, Token::ObjectOpen)?,
            b'[' => self.open(buf, visitor, Token::ArrayOpen)?,
            b'-' => self.begin_number(Digits::Minus),
            b'0' => self.begin_number(Digits::Zero),
            b'1'..=b'9' => self.begin_number(Digits::Whole),
            b't' => return self.literal(buf, visitor, b"true", Token::True),
            b'f' => return self.literal(buf, visitor, b"false", Token::False),
            b'n' => return self.literal(buf, visitor, b"null", Token::Null),
            _ => return Err(self.wrong().into()),
        }
        Ok(true)
    }

    fn open<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, token: Token) -> Result<(), ScanError> {
        if self.nest.is_full() {
            return Err(Syntax { at: self.at, what: "nested deeper than 128 levels" }.into());
        }
        let object = token == Token::ObjectOpen;
        visitor.token(buf, token, self.nest.depth, Span::new(self.at, self.at + 1))?;
        self.nest.enter(object);
        self.pass(if object { ExpectedToken::KeyOrEnd } else { ExpectedToken::ValueOrEnd });
        Ok(())
    }

    fn close<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, token: Token) -> Result<(), ScanError> {
        self.nest.leave();
        let span = Span::new(self.at, self.at + 1);
        self.at += 1;
        self.scalar(buf, visitor, token, span)
    }

    fn literal<V: Visitor>(
        &mut self,
        buf: &[u8],
        visitor: &mut V,
        word: &'static [u8],
        token: Token,
    ) -> Result<bool, ScanError> {
        let there = &buf[self.at..buf.len().min(self.at + word.len())];
        if !word.starts_with(there) {
            return Err(self.wrong().into());
        }
        if there.len() < word.len() {
            return Ok(false);
        }
        let span = Span::new(self.at, self.at + word.len());
        self.at += word.len();
        self.scalar(buf, visitor, token, span)?;
        Ok(true)
    }

    fn begin_number(&mut self, digits: Digits) {
        self.start = self.at;
        self.pass(ExpectedToken::InNumber(digits));
    }

    fn number<V: Visitor>(&mut self, buf: &[u8], v: &mut V, mut digits: Digits) -> Result<bool, ScanError> {
        while let Some(&byte) = buf.get(self.at) {
            // Within a run of digits, another digit changes nothing.
            if byte.is_ascii_digit() && matches!(digits, Digits::Whole | Digits::Fraction | Digits::Power) {
                self.at += 1;
                continue;
            }
            let Some(next) = digits.after(byte) else {
                if !digits.is_whole_number() {
                    return Err(Syntax { at: self.at, what: "expected a digit" }.into());
                }
                self.scalar(buf, v, Token::Number, Span::new(self.start, self.at))?;
                return Ok(true);
            };
            digits = next;
            self.at += 1;
        }
        self.expect = ExpectedToken::InNumber(digits);
        Ok(false)
    }

    fn string<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<bool, ScanError> {
        self.at = far_special(buf, self.at);
        loop {
            let step = match buf.get(self.at..).unwrap_or_default() {
                [] => return Ok(false),
                [b'"', ..] => break,
                rest @ [b'\\', ..] => escape(rest),
                rest @ [0x80..=0xff, ..] => multibyte(rest),
                _ => Err("a control character must be escaped"),
            };
            match step {
                Ok(0) => return Ok(false),
                // After one such character, others usually follow soon.
                Ok(len) => self.at = to_special(buf, self.at + len),
                Err(what) => return Err(Syntax { at: self.at, what }.into()),
            }
        }
        let span = Span::new(self.start, self.at);
        self.at += 1;
        if self.expect == ExpectedToken::InKey {
            // A colon and the quote of a string, which nearly always follow a name, are taken at once.
            self.expect = ExpectedToken::Colon;
            if buf.get(self.at) == Some(&b':') {
                self.pass(ExpectedToken::Value);
                if buf.get(self.at) == Some(&b'"') {
                    self.begin_string(ExpectedToken::InString);
                }
            }
            visitor.token(buf, Token::Key, self.nest.depth, span)?;
        } else {
            self.scalar(buf, visitor, Token::String, span)?;
        }
        Ok(true)
    }
}

/// Checks that `document` is one valid document.
pub fn check(document: &[u8]) -> Result<(), Syntax> {
    match Scanner::new().finish(document, &mut Valid) {
        Err(ScanError::Syntax(syntax)) => Err(syntax),
        _ => Ok(()),
    }
}

/// Checks that `document` is one valid document and returns the same members as [`Raw::pick`], in one pass.
#[inline]
pub fn check_and_pick<'a, const N: usize>(
    document: &'a [u8],
    names: [&str; N],
) -> Result<[Option<Raw<'a>>; N], ScanError> {
    let mut spans = [Span::default(); N];
    let mut pick = Pick { names: &names, spans: &mut spans, which: N, start: 0 };
    Scanner::new().finish(document, &mut pick)?;
    Ok(spans.map(|span| (!span.is_empty()).then(|| Raw::new(span.of(document)))))
}

/// Visitor that notes the spans of some members' values, except `null`.
struct Pick<'n> {
    names: &'n [&'n str],
    spans: &'n mut [Span],
    /// Index of the name of the current member.
    which: usize,
    /// Start of the container of its value.
    start: u32,
}

impl Visitor for Pick<'_> {
    #[inline(always)]
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        if depth != 1 {
            return Ok(());
        }
        let value = match token {
            Token::Key => {
                let name = span.of(buf);
                let found = self.names.iter().position(|wanted| eq_unescaped(name, wanted));
                self.which = found.unwrap_or(self.names.len());
                return Ok(());
            }
            Token::ObjectOpen | Token::ArrayOpen => {
                self.start = span.start;
                return Ok(());
            }
            Token::ObjectClose | Token::ArrayClose => Span { start: self.start, end: span.end },
            Token::String => Span { start: span.start - 1, end: span.end + 1 },
            Token::Null => Span::default(),
            Token::Number | Token::True | Token::False => span,
        };
        if let Some(place) = self.spans.get_mut(self.which) {
            *place = value;
        }
        Ok(())
    }
}

/// Like [`to_special_wide`], not inlined: a string that arrives in pieces is rare, and the usual way stays short.
#[inline(never)]
fn far_special(buf: &[u8], at: usize) -> usize {
    to_special_wide(buf, at)
}

/// Returns the length of the escape at the front, 0 if it is incomplete. A lone surrogate is refused, as serde_json
/// does: it has no UTF-8, and parsers differ in its replacement.
fn escape(bytes: &[u8]) -> Result<usize, &'static str> {
    match bytes.get(1) {
        None => return Ok(0),
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => return Ok(2),
        Some(b'u') => {}
        Some(_) => return Err("unknown escape"),
    }
    let code = hex4(&bytes[2..bytes.len().min(6)])?;
    if bytes.len() < 6 {
        return Ok(0);
    }
    match code {
        0xD800..=0xDBFF => {}
        0xDC00..=0xDFFF => return Err("a lone surrogate"),
        _ => return Ok(6),
    }
    let second = &bytes[6..bytes.len().min(12)];
    if !b"\\u".starts_with(&second[..second.len().min(2)]) {
        return Err("a lone surrogate");
    }
    if second.len() < 6 {
        return Ok(0);
    }
    match hex4(&second[2..])? {
        0xDC00..=0xDFFF => Ok(12),
        _ => Err("a lone surrogate"),
    }
}

/// Returns the length of the well-formed non-ASCII characters at the front, 0 if the first is incomplete (RFC 3629).
fn multibyte(bytes: &[u8]) -> Result<usize, &'static str> {
    let mut len = 0;
    while let Some(&first) = bytes.get(len)
        && first >= 0x80
    {
        let (size, second) = match first {
            0xC2..=0xDF => (2, 0x80..=0xBF),
            0xE0 => (3, 0xA0..=0xBF),
            0xED => (3, 0x80..=0x9F),
            0xE1..=0xEF => (3, 0x80..=0xBF),
            0xF0 => (4, 0x90..=0xBF),
            0xF1..=0xF3 => (4, 0x80..=0xBF),
            0xF4 => (4, 0x80..=0x8F),
            // Begins no character, so it is malformed by itself.
            _ => (1, 0x80..=0xBF),
        };
        let Some(rest) = bytes.get(len + 1..len + size) else { return Ok(len) };
        let formed = rest.first().is_some_and(|byte| second.contains(byte));
        if !formed || rest[1..].iter().any(|byte| byte & 0xC0 != 0x80) {
            // A malformed character is only reported at the front, so that its position does not depend on how bytes
            // arrived.
            return if len > 0 { Ok(len) } else { Err("not UTF-8") };
        }
        len += size;
    }
    Ok(len)
}

#[cfg(test)]
mod tests;
