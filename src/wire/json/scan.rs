//! The scanner: one pass from value to value. It reports the first byte that is not as the grammar wants it.
//!
//! Owns the grammar (RFC 8259), the UTF-8 check and the bound on nesting. Must never interpret a member: the meaning of
//! a key is the caller's business. Called by `dialect` (requests, answers, stream events).

use super::scanned::scanned;
use super::unescape::hex4;
use crate::wire::Span;
use lanes::skip::{to_special, to_special_near, to_special_wide};
use std::fmt;

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

/// Nesting depth of JSON. Deeper JSON is answered with 400.
const JSON_DEPTH_MAX: usize = 128;

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

const _: () = assert!(JSON_DEPTH_MAX <= u128::BITS as usize);

impl Nest {
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

/// State of a scan. All bytes before `at` have been scanned.
struct Scan {
    at: usize,
    nest: Nest,
    /// True if nothing of the innermost container has been scanned.
    fresh: bool,
}

/// Scans a complete document.
#[inline]
pub fn scan<V: Visitor>(buf: &[u8], visitor: &mut V) -> Result<(), ScanError> {
    scanned(buf.len());
    let mut scan = Scan { at: 0, nest: Nest { depth: 0, around: 0, object: false }, fresh: false };
    loop {
        let opens = scan.value(buf, visitor)?;
        if !opens && !scan.goes_on(buf, visitor)? {
            return Ok(());
        }
    }
}

impl Scan {
    /// Scans a value, with its name if it is in an object. True if the value is a container whose inside follows.
    #[inline(always)]
    fn value<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<bool, ScanError> {
        let (mut place, mut next) = peek(buf, self.at);
        if self.fresh && next == self.nest.closing() {
            self.close(buf, visitor, place)?;
            return Ok(false);
        }
        if self.nest.object {
            let Some(end) = (next == b'"').then(|| string_end(buf, place + 1)).flatten() else {
                return Err(no_name(buf, place));
            };
            let (colon, byte) = peek(buf, end + 1);
            if byte != b':' {
                return Err(unexpected(buf, colon, "expected `:`"));
            }
            visitor.token(buf, Token::Key, self.nest.depth, Span::new(place + 1, end))?;
            (place, next) = peek(buf, colon + 1);
        }
        let (token, span, end) = match next {
            b'"' => {
                let Some(end) = string_end(buf, place + 1) else { return Err(no_string(buf, place + 1)) };
                (Token::String, Span::new(place + 1, end), end + 1)
            }
            b'{' | b'[' => return self.open(buf, visitor, place, next == b'{'),
            b'-' | b'0'..=b'9' => {
                let end = number_end(buf, place).map_err(|at| unexpected(buf, at, "expected a digit"))?;
                (Token::Number, Span::new(place, end), end)
            }
            b't' if buf[place..].starts_with(b"true") => (Token::True, Span::new(place, place + 4), place + 4),
            b'f' if buf[place..].starts_with(b"false") => (Token::False, Span::new(place, place + 5), place + 5),
            b'n' if buf[place..].starts_with(b"null") => (Token::Null, Span::new(place, place + 4), place + 4),
            _ => return Err(no_value(buf, place)),
        };
        self.at = end;
        visitor.token(buf, token, self.nest.depth, span)?;
        Ok(false)
    }

    #[inline(always)]
    fn open<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, place: usize, object: bool) -> Result<bool, ScanError> {
        if self.nest.depth == JSON_DEPTH_MAX {
            return Err(unexpected(buf, place, "nested deeper than 128 levels"));
        }
        if object && let Some(end) = visitor.object(buf, place, self.nest.depth) {
            self.at = end;
            return Ok(false);
        }
        let token = if object { Token::ObjectOpen } else { Token::ArrayOpen };
        visitor.token(buf, token, self.nest.depth, Span::new(place, place + 1))?;
        self.nest.enter(object);
        (self.at, self.fresh) = (place + 1, true);
        Ok(true)
    }

    #[inline(always)]
    fn close<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, place: usize) -> Result<(), Stop> {
        let token = if self.nest.object { Token::ObjectClose } else { Token::ArrayClose };
        self.nest.leave();
        self.at = place + 1;
        visitor.token(buf, token, self.nest.depth, Span::new(place, self.at))
    }

    /// Scans the bytes after a value: closing brackets, then a comma. False at the end of the document.
    #[inline(always)]
    fn goes_on<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<bool, ScanError> {
        self.fresh = false;
        while self.nest.depth > 0 {
            let (place, next) = peek(buf, self.at);
            if next == b',' {
                self.at = place + 1;
                return Ok(true);
            }
            if next != self.nest.closing() {
                let what = if self.nest.object { "expected `,` or `}`" } else { "expected `,` or `]`" };
                return Err(unexpected(buf, place, what));
            }
            self.close(buf, visitor, place)?;
        }
        match peek(buf, self.at).0 {
            place if place < buf.len() => Err(unexpected(buf, place, "trailing bytes")),
            _ => Ok(false),
        }
    }
}

/// Returns the next byte that is not white space, with its offset; 0 at the end.
#[inline(always)]
fn peek(buf: &[u8], at: usize) -> (usize, u8) {
    match buf.get(at) {
        Some(&byte) if byte > b' ' => (at, byte),
        _ => peek_behind_space(buf, at),
    }
}

#[inline(never)]
fn peek_behind_space(buf: &[u8], mut at: usize) -> (usize, u8) {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = buf.get(at) {
        at += 1;
    }
    (at, buf.get(at).copied().unwrap_or_default())
}

/// Returns the error of the byte at `at`, or that of the end.
#[cold]
fn unexpected(buf: &[u8], at: usize, what: &'static str) -> ScanError {
    let what = if at < buf.len() { what } else { "unexpected end" };
    ScanError::Syntax(Syntax { at, what })
}

/// Returns the error of a member without a valid name at `place`.
#[cold]
fn no_name(buf: &[u8], place: usize) -> ScanError {
    match buf.get(place) {
        Some(b'"') => no_string(buf, place + 1),
        _ => unexpected(buf, place, "expected a string as key"),
    }
}

/// Returns the error of an invalid value at `place`.
#[cold]
fn no_value(buf: &[u8], place: usize) -> ScanError {
    let is_cut = |word: &[u8]| word.starts_with(&buf[place..]);
    let is_cut = [&b"true"[..], b"false", b"null"].into_iter().any(is_cut);
    unexpected(buf, if is_cut { buf.len() } else { place }, "expected a value")
}

/// Returns the error of the invalid string whose inside begins at `at`.
#[cold]
fn no_string(buf: &[u8], at: usize) -> ScanError {
    match to_string_end(buf, at) {
        Err(syntax) => ScanError::Syntax(syntax),
        Ok(end) => unexpected(buf, end, ""),
    }
}

/// Returns the offset of the quote that ends the string whose inside begins at `at`; `None` if it is incomplete or
/// invalid.
#[inline(always)]
pub fn string_end(buf: &[u8], at: usize) -> Option<usize> {
    let end = to_special_near(buf, at);
    if buf.get(end) == Some(&b'"') { Some(end) } else { long_string_end(buf, end) }
}

#[inline(never)]
fn long_string_end(buf: &[u8], at: usize) -> Option<usize> {
    to_string_end(buf, at).ok()
}

/// Like [`string_end`], with the error of an invalid string.
fn to_string_end(buf: &[u8], at: usize) -> Result<usize, Syntax> {
    let mut at = to_special_wide(buf, at);
    loop {
        let step = match buf.get(at..).unwrap_or_default() {
            [] => Ok(0),
            [b'"', ..] => return Ok(at),
            rest @ [b'\\', ..] => escape(rest),
            rest @ [0x80..=0xff, ..] => multibyte(rest),
            _ => Err("a control character must be escaped"),
        };
        match step {
            Ok(0) => return Err(Syntax { at: buf.len(), what: "unexpected end" }),
            // After one such character, others usually follow soon.
            Ok(len) => at = to_special(buf, at + len),
            Err(what) => return Err(Syntax { at, what }),
        }
    }
}

/// Returns the offset after the number at `at`, or that of a missing digit.
#[inline(always)]
fn number_end(buf: &[u8], mut at: usize) -> Result<usize, usize> {
    let digits = |from: usize| {
        let mut at = from;
        while buf.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        if at > from { Ok(at) } else { Err(at) }
    };
    if buf[at] == b'-' {
        at += 1;
    }
    // No other digit follows a leading zero.
    at = if buf.get(at) == Some(&b'0') { at + 1 } else { digits(at)? };
    if buf.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if let Some(b'e' | b'E') = buf.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = buf.get(at) {
            at += 1;
        }
        at = digits(at)?;
    }
    Ok(at)
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

/// Returns the length of the well-formed characters at the front that are not ASCII, 0 if the first is incomplete
/// (RFC 3629).
fn multibyte(bytes: &[u8]) -> Result<usize, &'static str> {
    let run = bytes.iter().position(u8::is_ascii).unwrap_or(bytes.len());
    match std::str::from_utf8(&bytes[..run]) {
        Ok(_) => Ok(run),
        Err(error) if error.valid_up_to() > 0 => Ok(error.valid_up_to()),
        Err(error) if error.error_len().is_none() && run == bytes.len() => Ok(0),
        Err(_) => Err("not UTF-8"),
    }
}
