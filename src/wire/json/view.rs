//! Read-only views into a valid document: members and items by walking, without a copy.
//!
//! Owns the walking. Must never be given bytes that no scanner has checked: with them it is safe, but returns nothing
//! useful. Called by `dialect` if a value is read instead of only passed on.

use super::scanned::scanned;
use super::unescape::{eq_unescaped, has_escape, unescape};
use lanes::skip::{to_quote, to_special_near, to_structure};
use std::borrow::Cow;

/// Kind of a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// An object.
    Object,
    /// An array.
    Array,
    /// A string.
    String,
    /// A number.
    Number,
    /// `true` or `false`.
    Bool,
    /// `null`, and anything that is not JSON.
    Null,
}

/// A value as it is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Raw<'a>(&'a [u8]);

/// Returns the number if it has few enough digits to fit any value.
#[inline]
fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() >= 20 {
        return None;
    }
    let mut value = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    Some(value)
}

/// Maximum bytes of a word that is compared: the longest words of the formats have about forty.
const WORD_MAX: usize = 63;
/// Bytes of the longest escape of one byte.
const ESCAPE_MAX: usize = 6;

/// Decodes a string with escapes.
#[cold]
fn decoded(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    unescape(raw, &mut out);
    out
}

impl<'a> Raw<'a> {
    /// The value `null`.
    pub const NULL: Raw<'static> = Raw(b"null");
    /// The string `text`.
    pub const TEXT: Raw<'static> = Raw(b"\"text\"");
    /// The empty object.
    pub const EMPTY: Raw<'static> = Raw(b"{}");

    /// Returns a view of a valid document, without the white space around it.
    #[inline]
    pub fn new(document: &'a [u8]) -> Raw<'a> {
        Raw(document.trim_ascii())
    }

    /// Returns a view of a valid document that has no white space around it.
    #[inline]
    pub fn of_value(value: &'a [u8]) -> Raw<'a> {
        Raw(value)
    }

    /// Returns the bytes as written.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the kind of the value.
    #[inline]
    pub fn kind(self) -> ValueKind {
        match self.0.first() {
            Some(b'{') => ValueKind::Object,
            Some(b'[') => ValueKind::Array,
            Some(b'"') => ValueKind::String,
            Some(b't' | b'f') => ValueKind::Bool,
            Some(b'-' | b'0'..=b'9') => ValueKind::Number,
            _ => ValueKind::Null,
        }
    }

    /// True for `null`.
    #[inline]
    pub fn is_null(self) -> bool {
        self.kind() == ValueKind::Null
    }

    /// Returns the inside of a string, with escapes; `None` for anything else.
    pub fn string(self) -> Option<&'a [u8]> {
        match self.0 {
            [b'"', inside @ .., b'"'] => Some(inside),
            _ => None,
        }
    }

    /// Returns the text of a string, copied only if it has escapes.
    pub fn text(self) -> Option<Cow<'a, str>> {
        self.string().map(Raw::text_of)
    }

    /// Returns the text of the inside of a string.
    pub fn text_of(raw: &'a [u8]) -> Cow<'a, str> {
        if !has_escape(raw) {
            return String::from_utf8_lossy(raw);
        }
        Cow::Owned(String::from_utf8_lossy(&decoded(raw)).into_owned())
    }

    /// Returns the bytes of a string, to be compared with words of a format, whatever its spelling. One that is too
    /// long for a word stays as written.
    #[inline]
    pub fn word(self) -> Option<Cow<'a, [u8]>> {
        let is_spelt = |raw: &[u8]| raw.len() <= ESCAPE_MAX * WORD_MAX && has_escape(raw);
        self.string().map(|raw| if is_spelt(raw) { Cow::Owned(decoded(raw)) } else { Cow::Borrowed(raw) })
    }

    /// True for a string or an array, such as a text in one piece or in parts.
    pub fn is_string_or_array(self) -> bool {
        matches!(self.kind(), ValueKind::String | ValueKind::Array)
    }

    /// True if this is the string `text`.
    #[inline]
    pub fn is(self, text: &str) -> bool {
        self.string().is_some_and(|raw| eq_unescaped(raw, text))
    }

    /// Returns the value of a boolean; `None` for anything else.
    pub fn bool(self) -> Option<bool> {
        match self.0 {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// Returns a count: a non-negative integer, which may be written as `12.0`. Saturates.
    pub fn count(self) -> Option<u64> {
        if let Some(value) = number_of(self.0) {
            return Some(value);
        }
        if self.kind() != ValueKind::Number || self.0[0] == b'-' {
            return None;
        }
        let mut value = 0u64;
        for (at, byte) in self.0.iter().enumerate() {
            match byte {
                b'0'..=b'9' => value = value.saturating_mul(10).saturating_add(u64::from(byte - b'0')),
                b'.' if self.0[at + 1..].iter().all(|&digit| digit == b'0') => return Some(value),
                _ => return None,
            }
        }
        Some(value)
    }

    /// Like [`Raw::count`], but accepts any notation, such as `1.2e1` for 12. Used for values that a client requests,
    /// since a server may accept that notation.
    #[inline]
    pub fn integer(self) -> Option<u64> {
        number_of(self.0).or_else(|| self.odd_integer())
    }

    /// Like [`Raw::integer`], for a number with a fraction, an exponent or many digits.
    #[cold]
    fn odd_integer(self) -> Option<u64> {
        if self.kind() != ValueKind::Number || self.0[0] == b'-' {
            return None;
        }
        let mut parts = self.0.splitn(2, |byte| matches!(byte, b'e' | b'E'));
        let mut digits = parts.next()?.split(|byte| *byte == b'.');
        let (whole, fraction) = (digits.next()?, digits.next().unwrap_or_default());
        // An exponent beyond all bounds is equivalent to the bound.
        let exponent: i64 = match parts.next().and_then(|text| std::str::from_utf8(text).ok()) {
            None => 0,
            Some(text) => text.parse().unwrap_or(if text.starts_with('-') { i64::MIN } else { i64::MAX }),
        };
        let add = |value: u64, digit: u64| value.saturating_mul(10).saturating_add(digit);
        // Number of digits before the point after the exponent has moved it.
        let before = exponent.saturating_add(whole.len() as i64);
        let (mut value, mut place) = (0u64, 0i64);
        for digit in whole.iter().chain(fraction).map(|digit| u64::from(digit.saturating_sub(b'0'))) {
            if place < before {
                value = add(value, digit);
            } else if digit > 0 {
                return None;
            }
            place += 1;
        }
        while place < before && value > 0 && value < u64::MAX {
            value = add(value, 0);
            place += 1;
        }
        Some(value)
    }

    /// Returns a number rounded to a double: for comparison, never to be passed on.
    #[inline]
    pub fn number(self) -> Option<f64> {
        if self.kind() != ValueKind::Number {
            return None;
        }
        std::str::from_utf8(self.0).ok()?.parse().ok()
    }

    /// Iterates over the members of an object in their order; empty for anything else.
    #[inline]
    pub fn members(self) -> Members<'a> {
        Members(if self.kind() == ValueKind::Object { &self.0[1..] } else { &[] })
    }

    /// Iterates over the items of an array in their order; empty for anything else.
    #[inline]
    pub fn items(self) -> Items<'a> {
        Items(if self.kind() == ValueKind::Array { &self.0[1..] } else { &[] })
    }

    /// Returns the scalar at the front of `bytes`; of an object or an array only its first byte, which shows its kind.
    pub fn front(bytes: &'a [u8]) -> Raw<'a> {
        let is_open = matches!(bytes.first(), Some(b'{' | b'['));
        Raw(&bytes[..if is_open { 1 } else { value_len(bytes) }])
    }

    /// Returns the value at the front of `bytes`.
    pub fn first(bytes: &'a [u8]) -> Raw<'a> {
        let value = Raw(&bytes[..value_len(bytes)]);
        scanned(value.0.len());
        value
    }

    /// Calls `read` with each item of the array, or each value of the object, at the front of `bytes`, and with the raw
    /// key of the latter. `read` receives the bytes from the value on and returns its length, so that a nested value is
    /// walked only once. Returns the length of all; `None` if `read` does.
    pub fn walk(bytes: &'a [u8], read: &mut dyn FnMut(&'a [u8], &'a [u8]) -> Option<usize>) -> Option<usize> {
        let (is_object, mut rest) = (bytes.first() == Some(&b'{'), bytes.get(1..)?);
        loop {
            let named = is_object.then(|| Members(rest).name()).flatten();
            let (name, value) = named.unwrap_or_else(|| (b"", skip_filler(rest)));
            if matches!(value.first(), None | Some(b'}' | b']')) {
                return Some(bytes.len() - value.get(1..)?.len());
            }
            rest = value.get(read(name, value)?..)?;
        }
    }

    /// Returns the member called `key`; of several the last, like most parsers. `null` counts as absent.
    pub fn get(self, key: &str) -> Option<Raw<'a>> {
        self.members().filter(|(name, _)| eq_unescaped(name, key)).last().map(|(_, v)| v).filter(|v| !v.is_null())
    }

    /// Like [`Raw::get`] for several names, all different, in one pass.
    #[inline]
    pub fn pick<const N: usize>(self, names: [&str; N]) -> [Option<Raw<'a>>; N] {
        let mut picked = Picked::new(names);
        self.members().for_each(|(name, value)| picked.member(name, value));
        picked.values
    }
}

/// Last member of each of `names`, as in [`Raw::get`].
struct Picked<'a, 'n, const N: usize> {
    names: [&'n str; N],
    values: [Option<Raw<'a>>; N],
}

impl<'a, 'n, const N: usize> Picked<'a, 'n, N> {
    fn new(names: [&'n str; N]) -> Self {
        Picked { names, values: [None; N] }
    }

    #[inline(always)]
    fn member(&mut self, name: &[u8], value: Raw<'a>) {
        for (wanted, found) in self.names.iter().zip(&mut self.values) {
            if eq_unescaped(name, wanted) {
                *found = Some(value).filter(|value| !value.is_null());
                return;
            }
        }
    }
}

/// Iterator over an object's members, as raw key and value.
#[derive(Clone, Debug)]
pub struct Members<'a>(&'a [u8]);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], Raw<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = self.name()?;
        let len = value_len(rest);
        scanned(len);
        self.0 = &rest[len..];
        (len > 0).then(|| (key, Raw(&rest[..len])))
    }
}

impl<'a> Members<'a> {
    /// Returns the next raw key, and the bytes from its value on.
    #[inline]
    fn name(&self) -> Option<(&'a [u8], &'a [u8])> {
        let rest = skip_filler(self.0);
        scanned(self.0.len() - rest.len());
        if rest.first() != Some(&b'"') {
            return None;
        }
        let end = quote(rest);
        scanned(end);
        let (key, rest) = (rest.get(1..end)?, rest.get(end + 1..)?);
        let value = skip_filler(rest);
        scanned(rest.len() - value.len());
        Some((key, value))
    }
}

/// Iterator over an array's items.
#[derive(Clone, Debug)]
pub struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = Raw<'a>;

    #[inline(never)] // many callers, none of them on the path of an ordinary request
    fn next(&mut self) -> Option<Raw<'a>> {
        let rest = skip_filler(self.0);
        let len = value_len(rest);
        scanned(self.0.len() - rest.len() + len);
        self.0 = &rest[len..];
        (len > 0).then(|| Raw(&rest[..len]))
    }
}

impl<'a> Items<'a> {
    /// Returns what `read` makes of the next item, and skips it. `read` receives the bytes from the item on, and also
    /// returns the item's length; `None` leaves the item.
    #[inline]
    pub fn read<T>(&mut self, read: impl FnOnce(&'a [u8]) -> Option<(T, usize)>) -> Option<T> {
        let rest = skip_filler(self.0);
        let (value, length) = read(rest)?;
        self.0 = rest.get(length..)?;
        Some(value)
    }

    /// Returns the next item, with the members of an object that [`Raw::pick`] would return. The same pass finds its
    /// end.
    #[inline]
    pub fn pick<const N: usize>(&mut self, names: [&str; N]) -> Option<(Raw<'a>, [Option<Raw<'a>>; N])> {
        let rest = skip_filler(self.0);
        if rest.first() != Some(&b'{') {
            return self.next().map(|item| (item, [None; N]));
        }
        let mut picked = Picked::new(names);
        let mut members = Members(&rest[1..]);
        members.by_ref().for_each(|(name, value)| picked.member(name, value));
        let behind = skip_filler(members.0);
        // In invalid JSON it may have stopped anywhere.
        let end = if behind.first() == Some(&b'}') { rest.len() - behind.len() + 1 } else { value_len(rest) };
        let (item, rest) = rest.split_at(end);
        self.0 = rest;
        Some((Raw(item), picked.values))
    }
}

#[inline]
fn skip_filler(bytes: &[u8]) -> &[u8] {
    let filler = bytes.iter().position(|b| !matches!(b, b' ' | b'\n' | b'\r' | b'\t' | b',' | b':'));
    &bytes[filler.unwrap_or(bytes.len())..]
}

/// Returns the offset of the quote that ends the string at the front, or the end. Most strings are short.
#[inline]
fn quote(bytes: &[u8]) -> usize {
    let near = to_special_near(bytes, 1);
    if bytes.get(near) == Some(&b'"') { near } else { to_quote(bytes, 1) }
}

/// Returns the length of the value at the front; 0 if there is none.
#[inline]
fn value_len(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(b'"') => (quote(bytes) + 1).min(bytes.len()),
        Some(b'{' | b'[') => container_len(bytes),
        Some(b'}' | b']') | None => 0,
        Some(_) => {
            let is_behind = |b: &u8| matches!(b, b',' | b'}' | b']' | b':' | b' ' | b'\n' | b'\r' | b'\t');
            bytes.iter().position(is_behind).unwrap_or(bytes.len())
        }
    }
}

/// Returns the length of the container at the front.
#[inline]
fn container_len(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    loop {
        match bytes.get(at) {
            Some(b'"') => at += quote(&bytes[at..]),
            Some(b'{' | b'[') => depth += 1,
            Some(_) if depth == 1 => return at + 1,
            Some(_) => depth -= 1,
            None => return bytes.len(),
        }
        at = to_structure(bytes, at + 1);
    }
}
