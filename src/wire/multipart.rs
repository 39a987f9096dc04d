//! Reads `multipart/form-data` (RFC 7578) as it arrives: the heads of parts, their content, the end.
//!
//! Owns the syntax. Must never keep a byte: the caller keeps the input that [`Multipart::next`] cannot decide on yet.
//! Every form that two readers could understand differently is an error: else a provider could read a field that was
//! not checked.

use super::Span;

/// Maximum length of a boundary (RFC 2046 section 5.1.1).
const BOUNDARY_MAX: usize = 70;
/// Maximum bytes of the head of a part, with the delimiter before it.
pub const PART_HEAD_MAX: usize = 8 * 1024;
/// Characters of a boundary other than letters and digits.
const BOUNDARY_MARKS: &[u8] = b"'()+_,-./:=? ";
/// Characters that end a value for some readers, quoted or not.
const ENDS: &[u8] = b"\\\";=";

/// Returns the boundary in the value of a `content-type` header; `None` if it is no form, or has no usable boundary.
pub fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let (kind, mut rest) = split_at(content_type, b';');
    if !kind.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let mut found = None;
    while let Some(param) = HeaderParam::next(&mut rest) {
        let param = param.ok()?;
        if param.name.eq_ignore_ascii_case(b"boundary") && found.replace(param.value).is_some() {
            return None;
        }
    }
    let is_mark = |byte: &u8| byte.is_ascii_alphanumeric() || BOUNDARY_MARKS.contains(byte);
    let fits = |value: &&[u8]| (1..=BOUNDARY_MAX).contains(&value.len()) && value.iter().all(is_mark);
    found.filter(fits).filter(|value| !value.ends_with(b" "))
}

/// Header fields of a part that are passed on.
const CONTENT_DISPOSITION: &[u8] = b"content-disposition";
const CONTENT_TYPE: &[u8] = b"content-type";

/// A part of the input.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FormPiece {
    /// Delimiter and head of a part.
    Part {
        /// Place of its name in the piece.
        name: Span,
        /// The part has a file name.
        is_file: bool,
    },
    /// Content of the part, or a piece of it.
    Data,
    /// The delimiter after the last part.
    End,
    /// Line ends and blanks after it.
    Rest,
}

/// Reason why a body is not a form, in the client's terms.
pub type Malformed = &'static str;

const NO_DELIMITER: Malformed = "the body: expected the boundary of its content-type";
const BARE: Malformed = "the body: expected a line end, CR LF, before each boundary";
const CUT_OFF: Malformed = "the body: ended before its closing boundary";
const LONG_HEAD: Malformed = "the body: expected at most 8 KiB in the head of a part";
const BAD_HEAD: Malformed = "the body: a part's head is not valid";
const NO_NAME: Malformed = "the body: expected `content-disposition: form-data` with one name in every part";
const ENCODED: Malformed = "the body: expected no content-transfer-encoding";
const TRAILING: Malformed = "the body: expected nothing after its closing boundary";

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum FormPhase {
    /// Before the first delimiter.
    Start,
    /// Inside the content of a part.
    Content,
    /// After the last delimiter.
    Over,
}

/// A reader of one body.
#[derive(Clone, Debug)]
pub struct Multipart {
    /// The delimiter with the line end before it.
    delimiter: Vec<u8>,
    phase: FormPhase,
    /// No byte of the content has been read.
    begins: bool,
}

impl Multipart {
    /// Returns a reader at the start of a body with this boundary.
    pub fn new(boundary: &[u8]) -> Multipart {
        Multipart { delimiter: [b"\r\n--", boundary].concat(), phase: FormPhase::Start, begins: false }
    }

    /// Returns a reader at the start of a body with the same boundary.
    pub fn restarted(&self) -> Multipart {
        Multipart { delimiter: self.delimiter.clone(), phase: FormPhase::Start, begins: false }
    }

    /// Returns the boundary.
    pub fn boundary(&self) -> &[u8] {
        &self.delimiter[4..]
    }

    /// Returns the delimiter without the line end before it.
    pub fn delimiter(&self) -> &[u8] {
        &self.delimiter[2..]
    }

    /// True after the last delimiter.
    pub fn is_over(&self) -> bool {
        self.phase == FormPhase::Over
    }

    /// Returns the piece at the front of `input` and its length; `None` if more input is needed. `last`: there is no
    /// more. The caller drops the piece before the next call.
    pub fn next(&mut self, input: &[u8], last: bool) -> Result<Option<(FormPiece, usize)>, Malformed> {
        match self.phase {
            FormPhase::Start => {
                let lead = if input.starts_with(b"\r\n") { 2 } else { 0 };
                let own = self.delimiter.len() - 2;
                let there = &input[lead..];
                let delimiter = &self.delimiter[2..];
                if there.len() < own && !last && delimiter.starts_with(there) {
                    return Ok(None);
                }
                if there.len() < own && !last && input.len() < 2 && b"\r\n".starts_with(input) {
                    return Ok(None);
                }
                if !there.starts_with(delimiter) {
                    return Err(NO_DELIMITER);
                }
                self.after_delimiter(input, lead + own, last)
            }
            FormPhase::Content if self.is_undecided(input, last) => Ok(None),
            FormPhase::Content if self.begins && input.starts_with(self.delimiter()) => Err(BARE),
            FormPhase::Content => {
                self.begins = false;
                self.content(input, last)
            }
            FormPhase::Over if input.is_empty() => Ok(None),
            FormPhase::Over if input.iter().all(|byte| b"\r\n\t ".contains(byte)) => {
                Ok(Some((FormPiece::Rest, input.len())))
            }
            FormPhase::Over => Err(TRAILING),
        }
    }

    /// True if the beginning of a part's content could still be a delimiter without the line end before it.
    fn is_undecided(&self, input: &[u8], last: bool) -> bool {
        self.begins && !last && input.len() < self.delimiter().len() && self.delimiter().starts_with(input)
    }

    fn content(&mut self, input: &[u8], last: bool) -> Result<Option<(FormPiece, usize)>, Malformed> {
        let dash = &self.delimiter[2..];
        let data = |end: usize| match last {
            true => Err(CUT_OFF),
            false => Ok((end > 0).then_some((FormPiece::Data, end))),
        };
        let mut from = 0;
        while let Some(found) = input[from..].iter().position(|byte| *byte == b'\n') {
            let (at, rest) = (from + found, &input[from + found + 1..]);
            let is_line_end = at > 0 && input[at - 1] == b'\r';
            if rest.starts_with(dash) {
                return match at {
                    _ if !is_line_end => Err(BARE),
                    1 => self.after_delimiter(input, self.delimiter.len(), last),
                    _ => Ok(Some((FormPiece::Data, at - 1))),
                };
            }
            if dash.starts_with(rest) {
                return data(at - usize::from(is_line_end));
            }
            from = at + 1;
        }
        data(input.len() - usize::from(input.ends_with(b"\r")))
    }

    /// Reads what follows a delimiter, which ends at `from`.
    fn after_delimiter(
        &mut self,
        input: &[u8],
        from: usize,
        last: bool,
    ) -> Result<Option<(FormPiece, usize)>, Malformed> {
        let rest = &input[from..];
        if rest.starts_with(b"--") {
            self.phase = FormPhase::Over;
            return Ok(Some((FormPiece::End, from + 2)));
        }
        let missing = |is_possible: bool| match (last, is_possible) {
            (true, _) => Err(CUT_OFF),
            (false, true) => Ok(None),
            (false, false) => Err(NO_DELIMITER),
        };
        if matches!(rest, [] | [b'-']) {
            return missing(true);
        }
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        match rest[blanks..] {
            [] | [b'\r'] if input.len() <= PART_HEAD_MAX => return missing(true),
            [b'\r', b'\n', ..] => {}
            _ => return Err(NO_DELIMITER),
        }
        // The last line end of the head is part of the blank line.
        let head = from + blanks;
        let Some(length) = input[head..].windows(4).position(|end| end == b"\r\n\r\n") else {
            return if input.len() > PART_HEAD_MAX { Err(LONG_HEAD) } else { missing(true) };
        };
        if head + length + 4 > PART_HEAD_MAX {
            return Err(LONG_HEAD);
        }
        let (name, is_file) = part_head(&input[head..head + length])?;
        (self.phase, self.begins) = (FormPhase::Content, true);
        let name = Span::of_part(input, name);
        Ok(Some((FormPiece::Part { name, is_file }, head + length + 4)))
    }
}

/// Reads the lines of a part's head, each with the line end before it. Returns its name, and true if it has a file
/// name.
fn part_head(head: &[u8]) -> Result<(&[u8], bool), Malformed> {
    let (mut found, mut has_type) = (None, false);
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let is_bad = |byte: &u8| *byte != b'\t' && (byte.is_ascii_control());
        let colon = line.iter().position(|byte| *byte == b':').ok_or(BAD_HEAD)?;
        let (field, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        if field.is_empty() || !field.iter().all(is_token) || line.iter().any(is_bad) {
            return Err(BAD_HEAD);
        }
        if field.eq_ignore_ascii_case(b"content-transfer-encoding") {
            let plain = [&b"binary"[..], b"8bit", b"7bit"];
            if !plain.iter().any(|word| value.eq_ignore_ascii_case(word)) {
                return Err(ENCODED);
            }
        }
        if field.eq_ignore_ascii_case(CONTENT_DISPOSITION) && found.replace(disposition(value)?).is_some() {
            return Err(NO_NAME);
        }
        // A part of parts has names that are not read here.
        if field.eq_ignore_ascii_case(CONTENT_TYPE) {
            let is_form = value.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/"));
            if std::mem::replace(&mut has_type, true) || is_form {
                return Err(BAD_HEAD);
            }
        }
    }
    found.ok_or(NO_NAME)
}

/// Reads the value of a `content-disposition`.
fn disposition(value: &[u8]) -> Result<(&[u8], bool), Malformed> {
    let (kind, mut rest) = split_at(value, b';');
    if !kind.trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return Err(NO_NAME);
    }
    let mut found = [None; 3];
    while let Some(param) = HeaderParam::next(&mut rest) {
        let param = param?;
        // Another one could be a piece of the name (RFC 2231), as `name*0`.
        let known = [&b"name"[..], b"filename", b"filename*"];
        let at = known.iter().position(|name| param.name.eq_ignore_ascii_case(name)).ok_or(NO_NAME)?;
        let is_bad = |byte: &u8| ENDS.contains(byte) || byte.is_ascii_whitespace();
        if found[at].replace(param.value).is_some() || (!param.is_quoted && param.value.iter().any(is_bad)) {
            return Err(NO_NAME);
        }
    }
    let [name, file, other] = found;
    let is_bad = |byte: &u8| ENDS.contains(byte) || b" \t'".contains(byte);
    let name = name.filter(|name| !name.is_empty() && !name.iter().any(is_bad)).ok_or(NO_NAME)?;
    Ok((name, file.or(other).is_some()))
}

/// Appends the lines of a part's head that say what it is, each with the line end before it, and the empty line.
/// `head`: what [`Multipart::next`] has read. Inside quotes, characters that end a value for some readers are replaced.
/// The result is never longer than `head`.
pub fn write_head(head: &[u8], out: &mut Vec<u8>) {
    for name in [CONTENT_DISPOSITION, CONTENT_TYPE] {
        let lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let is_named = |line: &&[u8]| {
            line.split_at_checked(name.len())
                .is_some_and(|(field, rest)| field.eq_ignore_ascii_case(name) && rest.starts_with(b":"))
        };
        for line in lines.filter(is_named) {
            out.extend_from_slice(b"\r\n");
            let (mut is_quoted, mut is_escaped) = (false, false);
            for &byte in line {
                let is_end = is_quoted && if byte == b'"' { is_escaped } else { ENDS.contains(&byte) };
                is_quoted ^= byte == b'"' && !is_escaped;
                is_escaped = is_quoted && !is_escaped && byte == b'\\';
                out.push(if is_end { b'_' } else { byte });
            }
        }
    }
    out.extend_from_slice(b"\r\n\r\n");
}

/// A parameter of a header's value.
struct HeaderParam<'a> {
    name: &'a [u8],
    /// The value; the inside of its quotes if it has some.
    value: &'a [u8],
    is_quoted: bool,
}

impl<'a> HeaderParam<'a> {
    /// Takes the next parameter from `rest`, which is empty or begins behind a semicolon.
    fn next(rest: &mut &'a [u8]) -> Option<Result<HeaderParam<'a>, Malformed>> {
        let text = rest.trim_ascii();
        if text.is_empty() {
            return None;
        }
        let Some(equals) = text.iter().position(|byte| *byte == b'=') else { return Some(Err(BAD_HEAD)) };
        let (name, value) = (text[..equals].trim_ascii(), text[equals + 1..].trim_ascii_start());
        let inside = value.strip_prefix(b"\"");
        let is_quoted = inside.is_some();
        let (value, behind) = match inside {
            None => {
                let (value, behind) = split_at(value, b';');
                (value.trim_ascii(), behind)
            }
            Some(inside) => {
                let mut end = 0;
                while inside.get(end).is_some_and(|byte| *byte != b'"') {
                    end += if inside[end] == b'\\' { 2 } else { 1 };
                }
                if end >= inside.len() {
                    return Some(Err(BAD_HEAD));
                }
                let (between, behind) = split_at(&inside[end + 1..], b';');
                if !between.trim_ascii().is_empty() {
                    return Some(Err(BAD_HEAD));
                }
                (&inside[..end], behind)
            }
        };
        *rest = behind;
        if name.is_empty() || name.iter().any(|byte| b"\"; \t".contains(byte)) || value.contains(&b'\n') {
            return Some(Err(BAD_HEAD));
        }
        Some(Ok(HeaderParam { name, value, is_quoted }))
    }
}

/// Splits at the first `mark`; without one, the second part is empty.
fn split_at(text: &[u8], mark: u8) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == mark) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

#[cfg(test)]
mod tests;
