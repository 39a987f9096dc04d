//! Fast path of the scanner: parses value after value while each is complete and valid.
//! Must never report an error, nor wait. The first value that is unusual, invalid or incomplete is left entirely to the
//! scanner's steps, which report the error or ask for more. A property test (`tests.rs`) and a fuzz target compare the
//! two paths.

use super::{ExpectedToken, Nest, Scanner, Stop, Token, Visitor, escape, multibyte};
use crate::wire::Span;
use lanes::skip::{to_special, to_special_near, to_special_wide};

/// State of the fast path. All bytes before `at` have been scanned.
struct FastScan {
    at: usize,
    nest: Nest,
    /// True if a name precedes the next value.
    named: bool,
    /// True if nothing of the innermost container has been scanned.
    fresh: bool,
}

/// Result of scanning a value.
enum ValueScan {
    /// A container was opened.
    Opened,
    /// A value was scanned.
    Passed,
    /// The value is left to the steps.
    Left,
}

impl Scanner {
    /// Scans from value to value.
    #[inline]
    pub(super) fn run<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<(), Stop> {
        let mut run = FastScan { at: self.at, nest: self.nest, named: self.expect == ExpectedToken::Key, fresh: false };
        let expect = run.go(buf, visitor)?;
        (self.at, self.nest, self.expect) = (run.at, run.nest, expect);
        Ok(())
    }
}

impl FastScan {
    /// Returns the tokens expected where the fast path ended.
    #[inline(always)]
    fn go<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<ExpectedToken, Stop> {
        loop {
            match self.value(buf, visitor)? {
                ValueScan::Opened => continue,
                ValueScan::Passed => {}
                ValueScan::Left => break,
            }
            if let Some(expect) = self.behind_value(buf, visitor)? {
                return Ok(expect);
            }
        }
        Ok(match (self.named, self.fresh) {
            (true, true) => ExpectedToken::KeyOrEnd,
            (true, false) => ExpectedToken::Key,
            (false, true) => ExpectedToken::ValueOrEnd,
            (false, false) => ExpectedToken::Value,
        })
    }

    #[inline(always)]
    fn value<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<ValueScan, Stop> {
        let (mut place, mut next) = peek(buf, self.at);
        if self.fresh && next == self.nest.closing() {
            self.close(buf, visitor, place)?;
            return Ok(ValueScan::Passed);
        }
        if self.named {
            let Some(end) = (next == b'"').then(|| string_end(buf, place + 1)).flatten() else {
                return Ok(ValueScan::Left);
            };
            let (colon, byte) = peek(buf, end + 1);
            if byte != b':' {
                return Ok(ValueScan::Left);
            }
            visitor.token(buf, Token::Key, self.nest.depth, Span::new(place + 1, end))?;
            (self.at, self.named, self.fresh) = (colon + 1, false, false);
            (place, next) = peek(buf, self.at);
        }
        let (token, span, end) = match next {
            b'"' => {
                let Some(end) = string_end(buf, place + 1) else { return Ok(ValueScan::Left) };
                (Token::String, Span::new(place + 1, end), end + 1)
            }
            b'{' | b'[' => return self.open(buf, visitor, place, next == b'{'),
            b'-' | b'0'..=b'9' => {
                let Some(end) = number_end(buf, place) else { return Ok(ValueScan::Left) };
                (Token::Number, Span::new(place, end), end)
            }
            b't' if buf[place..].starts_with(b"true") => (Token::True, Span::new(place, place + 4), place + 4),
            b'f' if buf[place..].starts_with(b"false") => (Token::False, Span::new(place, place + 5), place + 5),
            b'n' if buf[place..].starts_with(b"null") => (Token::Null, Span::new(place, place + 4), place + 4),
            _ => return Ok(ValueScan::Left),
        };
        self.at = end;
        visitor.token(buf, token, self.nest.depth, span)?;
        Ok(ValueScan::Passed)
    }

    #[inline(always)]
    fn open<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, place: usize, object: bool) -> Result<ValueScan, Stop> {
        if self.nest.is_full() {
            return Ok(ValueScan::Left);
        }
        if object && let Some(end) = visitor.object(buf, place, self.nest.depth) {
            (self.at, self.fresh) = (end, false);
            return Ok(ValueScan::Passed);
        }
        let token = if object { Token::ObjectOpen } else { Token::ArrayOpen };
        visitor.token(buf, token, self.nest.depth, Span::new(place, place + 1))?;
        self.nest.enter(object);
        (self.at, self.named, self.fresh) = (place + 1, object, true);
        Ok(ValueScan::Opened)
    }

    #[inline(always)]
    fn close<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V, place: usize) -> Result<(), Stop> {
        let token = if self.nest.object { Token::ObjectClose } else { Token::ArrayClose };
        self.nest.leave();
        self.at = place + 1;
        visitor.token(buf, token, self.nest.depth, Span::new(place, self.at))
    }

    /// Handles the bytes after a value: closing brackets, then a comma. `Some` if no value follows.
    #[inline(always)]
    fn behind_value<V: Visitor>(&mut self, buf: &[u8], visitor: &mut V) -> Result<Option<ExpectedToken>, Stop> {
        self.fresh = false;
        while self.nest.depth > 0 {
            let (place, next) = peek(buf, self.at);
            if next == b',' {
                (self.at, self.named) = (place + 1, self.nest.object);
                return Ok(None);
            }
            if next != self.nest.closing() {
                return Ok(Some(ExpectedToken::CommaOrEnd));
            }
            self.close(buf, visitor, place)?;
        }
        Ok(Some(ExpectedToken::End))
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

/// Returns the offset of the quote that ends the string whose inside begins at `at`; `None` if it is incomplete or
/// invalid.
#[inline(always)]
pub fn string_end(buf: &[u8], at: usize) -> Option<usize> {
    let end = to_special_near(buf, at);
    if buf.get(end) == Some(&b'"') { Some(end) } else { long_string_end(buf, end) }
}

#[inline(never)]
fn long_string_end(buf: &[u8], mut at: usize) -> Option<usize> {
    at = to_special_wide(buf, at);
    loop {
        let step = match buf.get(at..).unwrap_or_default() {
            [b'"', ..] => return Some(at),
            rest @ [b'\\', ..] => escape(rest),
            rest @ [0x80..=0xff, ..] => multibyte(rest),
            _ => return None,
        };
        match step {
            Ok(0) | Err(_) => return None,
            // After one such character, others usually follow soon.
            Ok(len) => at = to_special(buf, at + len),
        }
    }
}

/// Returns the offset after the number at `at`; `None` if it is invalid or may continue after the available bytes.
#[inline(always)]
fn number_end(buf: &[u8], mut at: usize) -> Option<usize> {
    let digits = |mut at: usize| {
        while buf.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    if buf[at] == b'-' {
        at += 1;
    }
    let first = at;
    at = digits(at);
    if at == first || (buf[first] == b'0' && at > first + 1) {
        return None;
    }
    if buf.get(at) == Some(&b'.') {
        let point = at + 1;
        at = digits(point);
        if at == point {
            return None;
        }
    }
    if let Some(b'e' | b'E') = buf.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = buf.get(at) {
            at += 1;
        }
        let power = at;
        at = digits(power);
        if at == power {
            return None;
        }
    }
    (at < buf.len()).then_some(at)
}
