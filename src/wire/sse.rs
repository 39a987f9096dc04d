//! Server-sent events (WHATWG HTML, section 9.2.6): splits bytes into events, however they arrive.
//!
//! Owns the framing: CR, LF and CRLF, a byte order mark at the start, comments, `data:` with and without a space, data
//! of several lines. Must never look into the data. Called by `dialect::stream`.

use super::Span;
use lanes::skip::to_either;

/// An event, as offsets into the bytes it was cut from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Whole event: field lines, comments and the blank line that ends it, without a byte order mark.
    pub raw: Span,
    /// Number of bytes to skip before the next call.
    pub len: usize,
    /// Value of the last `event:` line; empty if there was none.
    pub name: Span,
    /// Number of `data:` lines.
    pub lines: u32,
    /// True if there is a comment line.
    pub comment: bool,
    /// Data if it is one line; see [`Splitter::data`].
    data: Span,
}

impl Event {
    /// True for a blank line with nothing before it, which is not an event.
    pub fn is_blank(&self) -> bool {
        self.lines == 0 && !self.comment && self.name.is_empty()
    }
}

/// End of the previous line. Decides the meaning of a CR at the very end of the bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum LineEnd {
    Lf,
    CrLf,
    Cr,
}

/// Bytes of storage for joined lines that are kept after an event. Every open stream may have that many.
const JOINED_KEPT: usize = 4096;

#[derive(Debug, Default)]
struct Joined(Vec<u8>);

/// Splits a stream into events. Remembers its position, so that no byte is examined twice.
#[derive(Debug)]
pub struct Splitter {
    /// Data of an event of several lines. Boxed, because few streams have such events.
    joined: Option<Box<Joined>>,
    name: Span,
    data: Span,
    /// Offset of the current line.
    line: u32,
    /// Offset at which the search continues.
    at: u32,
    lines: u32,
    /// Offset of the event: after a byte order mark, or 0.
    begin: u8,
    bom_passed: bool,
    ended: LineEnd,
    comment: bool,
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

impl Default for Splitter {
    fn default() -> Splitter {
        Splitter::new()
    }
}

impl Splitter {
    /// Returns a splitter at the start of a stream.
    pub fn new() -> Splitter {
        let none = Span::default();
        let joined = None;
        let (bom_passed, comment) = (false, false);
        let (begin, line, at, lines) = (0, 0, 0, 0);
        let ended = LineEnd::Lf;
        Splitter { bom_passed, begin, line, at, ended, name: none, data: none, lines, comment, joined }
    }

    /// Returns to the start of a stream, and keeps the storage.
    pub fn reset(&mut self) {
        *self = Splitter { joined: self.joined.take(), ..Splitter::new() };
    }

    /// Returns the next complete event, `None` if there is none yet. `buf` begins at the end of the last event, or at
    /// the start of the stream, and must contain at least the bytes of the previous call.
    pub fn next(&mut self, buf: &[u8]) -> Option<Event> {
        if !self.bom_passed && !self.pass_bom(buf) {
            return None;
        }
        if self.at == 0
            && self.line == 0
            && let Some(event) = one_line(buf)
        {
            return Some(event);
        }
        loop {
            let line = self.line as usize;
            let end = to_either(buf, line.max(self.at as usize), b'\n', b'\r');
            let blank = end == line;
            let (next, ended) = match (buf.get(end), buf.get(end + 1)) {
                (None, _) => {
                    self.at = end as u32;
                    return None;
                }
                (Some(b'\n'), _) => (end + 1, LineEnd::Lf),
                // After a line that ended in CR only, a second CR is the blank line, whatever follows, so there is no
                // need to wait.
                (Some(_), _) if blank && self.ended == LineEnd::Cr && self.line > u32::from(self.begin) => {
                    (end + 1, LineEnd::Cr)
                }
                (Some(_), Some(b'\n')) => (end + 2, LineEnd::CrLf),
                (Some(_), Some(_)) => (end + 1, LineEnd::Cr),
                (Some(_), None) => {
                    self.at = end as u32;
                    return None;
                }
            };
            if blank {
                return Some(self.dispatch(buf, next));
            }
            self.field(buf, end);
            self.line = next as u32;
            self.ended = ended;
        }
    }

    /// True if no byte of the next event has been examined.
    #[inline]
    pub fn is_between(&self) -> bool {
        self.bom_passed && self.at == 0 && self.line == 0
    }

    /// Handles the end of the stream: returns the remaining event, as if a blank line followed. `None` if nothing is
    /// left.
    pub fn last(&mut self, buf: &[u8]) -> Option<Event> {
        if buf.len() <= usize::from(self.begin) {
            return None;
        }
        let line = buf.strip_suffix(b"\r").map_or(buf.len(), <[u8]>::len);
        if line > self.line as usize {
            self.field(buf, line);
        }
        Some(self.dispatch(buf, buf.len()))
    }

    /// Returns the data of an event that [`Splitter::next`] has just returned, with its lines joined by a newline.
    pub fn data<'a>(&'a self, event: &Event, buf: &'a [u8]) -> &'a [u8] {
        match &self.joined {
            Some(joined) if event.lines > 1 => &joined.0,
            _ => event.data.of(buf),
        }
    }

    /// Releases the data of `event`, which is no longer needed.
    pub fn done(&mut self, event: &Event) {
        if event.lines > 1
            && let Some(joined) = &mut self.joined
        {
            joined.0.clear();
            joined.0.shrink_to(JOINED_KEPT);
        }
    }

    fn pass_bom(&mut self, buf: &[u8]) -> bool {
        if buf.starts_with(BOM) {
            self.begin = BOM.len() as u8;
            self.line = BOM.len() as u32;
        } else if BOM.starts_with(buf) {
            return false;
        }
        self.bom_passed = true;
        true
    }

    fn dispatch(&mut self, buf: &[u8], len: usize) -> Event {
        let raw = Span::new(usize::from(self.begin), len);
        if self.lines > 1 {
            self.join(raw.of(buf));
        }
        let event = Event { raw, len, name: self.name, lines: self.lines, comment: self.comment, data: self.data };
        (self.begin, self.line, self.at) = (0, 0, 0);
        self.ended = LineEnd::Lf;
        (self.name, self.data) = (Span::default(), Span::default());
        (self.lines, self.comment) = (0, false);
        event
    }

    fn field(&mut self, buf: &[u8], end: usize) {
        let begin = self.line as usize;
        let line = &buf[begin..end];
        // The only line of nearly every event.
        if self.lines == 0 && line.starts_with(b"data: ") {
            self.data = Span::new(begin + 6, end);
            self.lines = 1;
            return;
        }
        let (name, value) = named(line);
        let value = Span::new(end - value.len(), end);
        match name {
            b"" => self.comment = true,
            b"event" => self.name = value,
            b"data" => {
                if self.lines == 0 {
                    self.data = value;
                }
                self.lines += 1;
            }
            _ => {}
        }
    }

    /// Joins the data of a complete event of several lines. Done only at its end, so that an incomplete event is stored
    /// only once.
    fn join(&mut self, event: &[u8]) {
        let Joined(joined) = &mut **self.joined.get_or_insert_default();
        joined.clear();
        let lines = event.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty());
        for (_, value) in lines.map(named).filter(|(name, _)| *name == b"data") {
            joined.extend_from_slice(value);
            joined.push(b'\n');
        }
        joined.pop();
    }
}

/// Splits a line into name and value: the text before its first colon, and the text after the colon and one blank.
fn named(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().take(8).position(|&byte| byte == b':') {
        None => (line, &line[line.len()..]),
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}

/// Returns a complete event of one data line and a blank line at the front, the usual case.
#[inline]
fn one_line(buf: &[u8]) -> Option<Event> {
    const DATA: &[u8] = b"data: ";
    if !buf.starts_with(DATA) {
        return None;
    }
    let end = to_either(buf, DATA.len(), b'\n', b'\r');
    if buf.get(end..end + 2)? != b"\n\n" {
        return None;
    }
    let (raw, data) = (Span::new(0, end + 2), Span::new(DATA.len(), end));
    Some(Event { raw, len: end + 2, name: Span::default(), lines: 1, comment: false, data })
}

#[cfg(test)]
mod tests;
