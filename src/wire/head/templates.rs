//! Templates of earlier heads with two gaps: the key, and the digits of the body's length. Requests of one client
//! program usually differ in nothing else. Such a head is compared instead of parsed.
//!
//! Must never accept a head that the parser would read differently. Everything except the gaps equals a parsed head. In
//! a gap, visible ASCII replaces visible ASCII, and a number without a leading zero replaces another. Must never keep a
//! secret: a template has no key, and a head with fields that might be secret is not kept. A property test and a fuzz
//! target compare templates with the parser.

use super::{Framing, HeaderField, RequestHead, bearer_token, field_lines};
use crate::base::ring::Ring;
use crate::wire::Span;
use crate::wire::template::{BytesTemplate, number};
use lanes::skip::to_invisible;

/// Maximum number of heads kept. The oldest is replaced.
const KEPT_MAX: usize = 8;
/// Maximum size in bytes of a head that is kept.
const HEAD_MAX: usize = 1024;
/// Maximum number of digits of a length. Longer ones are left to the parser.
const LENGTH_DIGITS_MAX: usize = 15;
/// Fields whose values are not secret and do not change between requests. The last is a prefix: fields that begin with
/// it are self-descriptions of OpenAI's and Anthropic's SDKs.
const PUBLIC: [&str; 11] = [
    "host",
    "content-type",
    "content-length",
    "user-agent",
    "accept",
    "accept-encoding",
    "accept-language",
    "connection",
    "anthropic-version",
    "anthropic-beta",
    "x-stainless-",
];

/// Templates of earlier heads.
#[derive(Debug, Default)]
pub struct HeadTemplates(Ring<HeadTemplate>);

/// A part of a head that may differ.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum HeadHole {
    /// Number of visible characters of a key.
    Key(u16),
    /// Number of digits of a number.
    Length(u8),
}

#[derive(Debug)]
struct HeadTemplate {
    template: BytesTemplate<HeadHole, 3>,
    head: RequestHead,
}

impl HeadTemplates {
    /// True if the head at the front of `buf` matches a template and has at most `max` bytes. Writes it to `head`: each
    /// value of it that is returned would be another copy.
    pub(crate) fn find(&mut self, buf: &[u8], max: usize, head: &mut RequestHead) -> bool {
        self.0.find(|template| template.matches(buf, max, head)).is_some()
    }

    /// Keeps a head that has just been parsed, if it is likely to repeat.
    pub(crate) fn learn(&mut self, buf: &[u8], head: &RequestHead) {
        let len = head.len as usize;
        if len > HEAD_MAX || !self.0.takes() {
            return;
        }
        let Some((holes, count)) = holes(&buf[..len], head) else { return };
        let new = || HeadTemplate { template: BytesTemplate::default(), head: *head };
        let place = self.0.place(KEPT_MAX, new);
        place.head = *head;
        place.template.learn(&buf[..len], &holes[..count], [b"", b""]);
    }
}

fn is_visible(text: &[u8]) -> bool {
    to_invisible(text, 0) == text.len()
}

/// Returns the holes of a head and their number; `None` if it is not to be kept.
fn holes(bytes: &[u8], head: &RequestHead) -> Option<([(Span, HeadHole); 2], usize)> {
    let (bearer, api_key) = (head.field(HeaderField::Authorization), head.field(HeaderField::XApiKey));
    let key = match (bearer.is_empty(), api_key.is_empty()) {
        (false, true) => Span::of_part(bytes, bearer_token(bearer.of(bytes))),
        (true, false) => api_key,
        _ => return None,
    };
    if key.is_empty() || !is_visible(key.of(bytes)) || !matches!(head.framing, Framing::None | Framing::Length(_)) {
        return None;
    }
    let mut digits = None;
    for line in field_lines(bytes).filter(|line| *line != b"\r") {
        let line = line.strip_suffix(b"\r")?;
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = &line[..colon];
        let is = |text: &&str| match text.strip_suffix('-') {
            Some(_) => name.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text.as_bytes())),
            None => name.eq_ignore_ascii_case(text.as_bytes()),
        };
        let place = Span::of_part(bytes, line);
        let of_key = (place.start..place.end).contains(&key.start);
        if !of_key && !PUBLIC.iter().any(is) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let value = line[colon + 1..].trim_ascii_start();
            // A repeated length, or one that is not only digits, is unusual.
            if digits.is_some() || !value.iter().all(u8::is_ascii_digit) || value.len() > LENGTH_DIGITS_MAX {
                return None;
            }
            digits = Some(Span::of_part(bytes, value));
        }
    }
    let digits = digits.filter(|digits| !digits.is_empty() && digits.of(bytes)[0] != b'0');
    let key = (key, HeadHole::Key(key.len() as u16));
    match (digits, head.framing) {
        (None, Framing::None) => Some(([key; 2], 1)),
        (Some(digits), Framing::Length(_)) => {
            let length = (digits, HeadHole::Length(digits.len() as u8));
            Some((if key.0.start < digits.start { [key, length] } else { [length, key] }, 2))
        }
        _ => None,
    }
}

impl HeadTemplate {
    fn matches(&self, buf: &[u8], max: usize, head: &mut RequestHead) -> Option<()> {
        let (mut length, mut moved) = (0, None);
        let mut comparison = self.template.compare(buf)?;
        while let Some(hole) = comparison.next_hole()? {
            match hole {
                HeadHole::Key(len) => {
                    if !is_visible(comparison.fill(usize::from(len))?) {
                        return None;
                    }
                }
                HeadHole::Length(digits) => {
                    let (value, now) = number(comparison.left, LENGTH_DIGITS_MAX)?;
                    let at = buf.len() - comparison.left.len();
                    (length, moved) = (value, Some((at as u32, now as u32, u32::from(digits))));
                    comparison.fill(now)?;
                }
            }
        }
        let len = buf.len() - comparison.left.len();
        if len > max {
            return None;
        }
        *head = RequestHead { len: len as u32, ..self.head };
        if let Some((from, now, before)) = moved {
            head.framing = Framing::Length(length);
            if now != before {
                for span in head.fields.iter_mut().filter(|span| span.start > from) {
                    (span.start, span.end) = (span.start + now - before, span.end + now - before);
                }
            }
        }
        Some(())
    }
}
