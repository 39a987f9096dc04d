//! JSON written piece by piece into a byte vector, without a tree.
//!
//! Owns the escaping and the commas. Must never be given an incomplete value: a caller that opens a bracket closes it.
//! Called by `dialect`.

use super::scanned::scanned;
use super::unescape::eq_unescaped;
use super::view::Raw;
use crate::base::text::push_number;
use lanes::skip::{are_plain, to_either, to_escaped};

/// A piece of JSON that `put!` appends: as a string or bytes, JSON as it is written.
pub trait Put {
    /// Appends the piece.
    fn put(self, out: &mut Vec<u8>);
}

/// A count.
#[derive(Copy, Clone, Debug)]
pub struct Number(pub u64);
/// A JSON string whose inside is already escaped.
#[derive(Copy, Clone, Debug)]
pub struct Inside<'a>(pub &'a [u8]);
/// A text as a JSON string.
#[derive(Copy, Clone, Debug)]
pub struct Quoted<'a>(pub &'a str);
/// A value if there is one, otherwise JSON as it is written.
#[derive(Copy, Clone, Debug)]
pub struct OrElse<T>(pub Option<T>, pub &'static str);

impl Put for &str {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

impl Put for &[u8] {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl Put for Number {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        write_count(out, self.0);
    }
}

impl Put for Inside<'_> {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        write_inside(out, self.0);
    }
}

impl Put for Quoted<'_> {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        write_string(out, self.0);
    }
}

impl Put for Raw<'_> {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes());
    }
}

impl<T: Put> Put for OrElse<T> {
    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        match self.0 {
            Some(value) => value.put(out),
            None => self.1.put(out),
        }
    }
}

/// Appends pieces of JSON, each of a type that is [`Put`].
#[macro_export]
macro_rules! put {
    ($out:expr, $($piece:expr),+ $(,)?) => {{
        let out: &mut Vec<u8> = $out;
        $($crate::json::Put::put($piece, out);)+
    }};
}
pub use crate::put;

/// Appends the comma before a member or an item, if one is needed: a value never ends in an opening bracket.
#[inline]
fn comma(out: &mut Vec<u8>) {
    if !matches!(out.last(), None | Some(b'{' | b'[')) {
        out.push(b',');
    }
}

/// Begins a member of the current object. Its value must be appended next. `name` must need no escapes.
pub fn key(out: &mut Vec<u8>, name: &str) {
    key_inside(out, name.as_bytes());
}

/// Like [`key`], of a name that is already escaped.
pub fn key_inside(out: &mut Vec<u8>, name: &[u8]) {
    comma(out);
    out.push(b'"');
    out.extend_from_slice(name);
    out.extend_from_slice(b"\":");
}

/// Appends the members of `object` to the current object, each unchanged, except those named.
pub fn members(object: Raw<'_>, but: &[&str], out: &mut Vec<u8>) {
    others(object, &|name| but.iter().any(|other| eq_unescaped(name, other)), out);
}

/// Appends `object` with these values behind its other members, in place of its own. An empty value only removes them.
pub fn object_with(object: Raw<'_>, values: &[(&str, impl AsRef<[u8]>)], out: &mut Vec<u8>) {
    out.push(b'{');
    others(object, &|name| values.iter().any(|(other, _)| eq_unescaped(name, other)), out);
    for (name, value) in values.iter().filter(|(_, value)| !value.as_ref().is_empty()) {
        key(out, name);
        out.extend_from_slice(value.as_ref());
    }
    out.push(b'}');
}

fn others(object: Raw<'_>, goes: &dyn Fn(&[u8]) -> bool, out: &mut Vec<u8>) {
    for (name, value) in object.members().filter(|(name, _)| !goes(name)) {
        key_inside(out, name);
        out.extend_from_slice(value.bytes());
    }
}

/// Begins an item of the current array. Its value must be appended next.
#[inline]
pub fn item(out: &mut Vec<u8>) {
    comma(out);
}

/// Appends a count.
pub fn write_count(out: &mut Vec<u8>, count: u64) {
    push_number(out, count);
}

/// Appends a JSON string whose inside is already escaped.
pub fn write_inside(out: &mut Vec<u8>, inside: &[u8]) {
    out.reserve(inside.len() + 2);
    out.push(b'"');
    out.extend_from_slice(inside);
    out.push(b'"');
}

/// Writes a member of the current object: a JSON string whose inside is already escaped.
#[inline]
pub fn member_inside(out: &mut Vec<u8>, name: &str, inside: &[u8]) {
    key(out, name);
    write_inside(out, inside);
}

/// Writes a member of the current object: `text` as a JSON string.
#[inline]
pub fn member_string(out: &mut Vec<u8>, name: &str, text: &str) {
    key(out, name);
    write_string(out, text);
}

/// Writes a member of the current object: a count.
#[inline]
pub fn member_count(out: &mut Vec<u8>, name: &str, count: u64) {
    key(out, name);
    write_count(out, count);
}

/// Appends `text` as a JSON string, quotes included.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    let text = text.as_bytes();
    // Nearly all texts are names.
    let is_written = match text.len() {
        16..=32 => write_halves::<16>(out, text),
        8..=15 => write_halves::<8>(out, text),
        4..=7 => write_halves::<4>(out, text),
        2..=3 => write_halves::<2>(out, text),
        _ => false,
    };
    if !is_written {
        out.reserve(text.len() + 2);
        out.push(b'"');
        write_escaped(out, text);
        out.push(b'"');
    }
}

/// Appends a text of `N` to 2 `N` bytes as a JSON string, as two halves that may overlap: their lengths are known to
/// the compiler. Returns false and writes nothing if the text needs escapes.
#[inline(always)]
fn write_halves<const N: usize>(out: &mut Vec<u8>, text: &[u8]) -> bool {
    let (Some(front), Some(back)) = (text.first_chunk::<N>(), text.last_chunk::<N>()) else { return false };
    if !are_plain(front, back) {
        return false;
    }
    // Copies a length that the compiler knows, then cuts off the excess, since each append costs a check of the
    // capacity.
    let (mut inside, end) = ([b'"'; 34], 1 + text.len());
    inside[1..=N].copy_from_slice(front);
    inside[end - N..end].copy_from_slice(back);
    let length = out.len() + end + 1;
    out.extend_from_slice(&inside[..2 * N + 2]);
    out.truncate(length);
    true
}

/// Appends `text` (UTF-8) as the inside of a JSON string.
pub fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    scanned(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let plain = to_escaped(rest, 0);
        out.extend_from_slice(&rest[..plain]);
        let Some(&special) = rest.get(plain) else { return };
        match special {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u");
                crate::base::digest::hex_into(&[0, special], out);
            }
        }
        rest = &rest[plain + 1..];
    }
}

/// Appends a valid document without the white space between its tokens. Numbers, strings and the order of members are
/// unchanged.
pub fn compact(document: &[u8], out: &mut Vec<u8>) {
    scanned(document.len());
    let mut at = 0;
    while let Some(&byte) = document.get(at) {
        let from = at;
        at += 1;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => continue,
            b'"' => loop {
                at = to_either(document, at, b'"', b'\\');
                match document.get(at) {
                    Some(b'\\') => at += 2,
                    _ => break at = (at + 1).min(document.len()),
                }
            },
            _ => {}
        }
        out.extend_from_slice(&document[from..at.min(document.len())]);
    }
}
