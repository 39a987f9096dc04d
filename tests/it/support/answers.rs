//! A strict, incremental parser of the HTTP/1.1 answers that a client receives (RFC 9112). It shares no code with the
//! gateway. At any point the bytes so far are a prefix of a valid sequence of answers; anything else is an error.

use tollgate::base::digest::hex_into;
use tollgate::policy::row::Row;

/// A parsed part of an answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Piece {
    /// A head: its status, and its lines without line ends; the first one is the status line.
    Head(u16, Vec<String>),
    /// Payload without chunk framing.
    Body(Vec<u8>),
    /// The end of an answer. True if it was chunked.
    End(bool),
}

#[derive(Copy, Clone, PartialEq, Debug)]
enum State {
    Head,
    /// Number of remaining bytes, and whether none has arrived yet, since then it may be the answer to a HEAD.
    Length(u64, bool),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    ToEnd,
}

/// The parser.
#[derive(Debug)]
pub struct Answers {
    rest: Vec<u8>,
    state: State,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { rest: Vec::new(), state: State::Head }
    }
}

impl Answers {
    /// Returns true between two answers, with no bytes left.
    pub fn is_between(&self) -> bool {
        self.rest.is_empty() && matches!(self.state, State::Head | State::Length(_, true))
    }

    /// Returns true inside an answer that ends with the connection.
    pub fn runs_to_end(&self) -> bool {
        self.state == State::ToEnd
    }

    /// Parses bytes, and appends the completed parts to `out`.
    pub fn feed(&mut self, data: &[u8], out: &mut Vec<Piece>) -> Result<(), String> {
        self.rest.extend_from_slice(data);
        while self.step(out)? {}
        Ok(())
    }

    fn step(&mut self, out: &mut Vec<Piece>) -> Result<bool, String> {
        match self.state {
            State::Head => self.head(out),
            State::Length(left, untouched) => self.length(left, untouched, out),
            State::ChunkSize => {
                let Some(line) = self.line()? else { return Ok(false) };
                if line.is_empty() || line.len() > 8 || !line.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(format!("not a chunk size: {line:?}"));
                }
                let size = u64::from_str_radix(&line, 16).map_err(|_| "chunk size")?;
                self.state = if size == 0 { State::Trailer } else { State::ChunkData(size) };
                Ok(true)
            }
            State::ChunkData(left) => {
                let count = self.rest.len().min(left as usize);
                if count == 0 {
                    return Ok(false);
                }
                out.push(Piece::Body(self.rest.drain(..count).collect()));
                let left = left - count as u64;
                self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                Ok(true)
            }
            State::ChunkEnd => {
                let Some(line) = self.line()? else { return Ok(false) };
                self.state = State::ChunkSize;
                if line.is_empty() { Ok(true) } else { Err(format!("a chunk is followed by {line:?}")) }
            }
            State::Trailer => {
                let Some(line) = self.line()? else { return Ok(false) };
                if !line.is_empty() {
                    return Err(format!("an unexpected trailer: {line:?}"));
                }
                self.state = State::Head;
                out.push(Piece::End(true));
                Ok(true)
            }
            State::ToEnd => {
                if self.rest.is_empty() {
                    return Ok(false);
                }
                out.push(Piece::Body(std::mem::take(&mut self.rest)));
                Ok(false)
            }
        }
    }

    fn length(&mut self, left: u64, untouched: bool, out: &mut Vec<Piece>) -> Result<bool, String> {
        if left > 0 && self.rest.is_empty() {
            return Ok(false);
        }
        // No body of the gateway starts like a status line, so this was the answer to a HEAD.
        let head_follows = untouched && left > 0 && b"HTTP/1.1 ".starts_with(&self.rest[..self.rest.len().min(9)]);
        if head_follows && self.rest.len() < 9 {
            return Ok(false);
        }
        let count = if head_follows { 0 } else { self.rest.len().min(left as usize) };
        if count > 0 {
            out.push(Piece::Body(self.rest.drain(..count).collect()));
        }
        let left = if head_follows { 0 } else { left - count as u64 };
        self.state = State::Length(left, false);
        if left == 0 {
            self.state = State::Head;
            out.push(Piece::End(false));
        }
        Ok(left == 0)
    }

    fn head(&mut self, out: &mut Vec<Piece>) -> Result<bool, String> {
        let Some(end) = self.rest.windows(4).position(|window| window == b"\r\n\r\n") else {
            let start = &self.rest[..self.rest.len().min(9)];
            return if b"HTTP/1.1 ".starts_with(start) { Ok(false) } else { Err(format!("not an answer: {start:?}")) };
        };
        let head: Vec<u8> = self.rest.drain(..end + 4).collect();
        let text = String::from_utf8(head[..end].to_vec()).map_err(|_| "a head that is not UTF-8")?;
        let lines: Vec<String> = text.split("\r\n").map(String::from).collect();
        if lines.iter().any(|line| line.contains(['\r', '\n', '\0']) || line.is_empty()) {
            return Err(format!("an invalid line in a head: {text:?}"));
        }
        let status = lines[0].strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
        let status = status.ok_or_else(|| format!("an invalid status line: {:?}", lines[0]))?;
        self.state = framing(status, &lines)?;
        out.push(Piece::Head(status, lines));
        if status < 200 {
            self.state = State::Head;
        }
        Ok(true)
    }

    fn line(&mut self) -> Result<Option<String>, String> {
        let Some(end) = self.rest.windows(2).position(|window| window == b"\r\n") else {
            return if self.rest.len() > 64 { Err("an endless line".to_string()) } else { Ok(None) };
        };
        let line: Vec<u8> = self.rest.drain(..end + 2).collect();
        String::from_utf8(line[..end].to_vec()).map(Some).map_err(|_| "a line that is not UTF-8".to_string())
    }
}

/// Returns the value of a header in the lines of a head.
pub fn field<'a>(lines: &'a [String], name: &str) -> Option<&'a str> {
    lines.iter().skip(1).find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Parses dollars with at most nine decimals; returns nano-dollars.
pub fn nano(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 9 {
        return None;
    }
    Some(whole.parse::<u64>().ok()? * 1_000_000_000 + format!("{decimals:0<9}").parse::<u64>().ok()?)
}

/// Returns the id of a usage record's request, as its client saw it.
pub fn request_id(row: &Row) -> String {
    request_name(&row.request)
}

/// Returns a request id as its client saw it.
pub fn request_name(request: &[u8; 16]) -> String {
    let mut id = b"req_".to_vec();
    hex_into(request, &mut id);
    String::from_utf8_lossy(&id).into_owned()
}

fn framing(status: u16, lines: &[String]) -> Result<State, String> {
    let names: Vec<&str> = lines.iter().skip(1).map(|line| line.split(':').next().unwrap_or_default()).collect();
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            return Err(format!("{name} occurs twice in {lines:?}"));
        }
    }
    if status < 200 {
        return Ok(State::Head);
    }
    match (field(lines, "content-length"), field(lines, "transfer-encoding")) {
        (Some(length), None) => {
            let length = length.parse().map_err(|_| format!("content-length {length:?}"))?;
            Ok(State::Length(length, true))
        }
        (None, Some("chunked")) => Ok(State::ChunkSize),
        (None, None) if field(lines, "connection") == Some("close") => Ok(State::ToEnd),
        _ => Err(format!("no framing in {lines:?}")),
    }
}
