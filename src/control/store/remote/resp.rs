//! The protocol of Redis (RESP2): packs commands, and reads answers within bounds.
//!
//! A server that is broken, or not Redis, may send anything: an endless line, or an answer of any length or depth.

use std::fmt;
use std::io::{self, ErrorKind};

/// Maximum length of a line of an answer, which is a number, a word or an error.
const LINE_MAX: usize = 64 << 10;
/// Maximum nesting of an answer. The answers to Tollgate's commands have at most 4 levels.
const DEPTH_MAX: usize = 16;
/// Minimum bytes of an answer per value, on average beyond the first thousand: a value takes more memory than it has
/// bytes.
const VALUE_MIN: usize = 16;

/// Command to a server: its name and its arguments.
#[derive(Clone)]
pub(super) struct RedisCommand {
    words: usize,
    bytes: Vec<u8>,
}

impl RedisCommand {
    /// Returns a command without further arguments. Its words are separated by spaces.
    pub(super) fn new(words: &str) -> RedisCommand {
        let mut command = RedisCommand { words: 0, bytes: Vec::new() };
        words.split(' ').for_each(|word| command.word(word.as_bytes()));
        command
    }

    fn word(&mut self, word: &[u8]) {
        self.words += 1;
        length(&mut self.bytes, '$', word.len());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn arg(&mut self, word: impl AsRef<[u8]>) -> &mut RedisCommand {
        self.word(word.as_ref());
        self
    }

    pub(super) fn args(&mut self, words: &[String]) -> &mut RedisCommand {
        words.iter().for_each(|word| self.word(word.as_bytes()));
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut RedisCommand {
        self.word(number.to_string().as_bytes());
        self
    }

    /// Appends the number of these numbers, and then each.
    pub(super) fn numbers(&mut self, numbers: &[u64]) -> &mut RedisCommand {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|number| _ = self.number(*number));
        self
    }

    /// Appends the command as it is sent.
    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        length(out, '*', self.words);
        out.extend_from_slice(&self.bytes);
    }
}

fn length(out: &mut Vec<u8>, kind: char, length: usize) {
    out.extend_from_slice(format!("{kind}{length}\r\n").as_bytes());
}

/// Value in an answer.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
    /// An error: its code, and a description.
    Error(String),
}

impl Value {
    /// Returns the error, if this is one.
    pub(super) fn error(self) -> Option<LinkError> {
        if let Value::Error(text) = self { Some(LinkError::Server(text)) } else { None }
    }
}

/// A text.
pub(super) fn text(value: &Value) -> Option<&str> {
    if let Value::Text(bytes) = value { std::str::from_utf8(bytes).ok() } else { None }
}

/// Returns the elements of a list; none for any other value.
pub(super) fn list(value: &Value) -> &[Value] {
    if let Value::List(parts) = value { parts } else { &[] }
}

/// Returns a number that is at least 0, also if it is written as a text.
pub(super) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        value => text(value)?.parse().ok(),
    }
}

/// Reason why a command has no result.
pub(super) enum LinkError {
    /// Error that the server has answered: its code, and a description.
    Server(String),
    /// There is no answer.
    Io(io::Error),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::Io(error)
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Server(text) => f.write_str(text),
            LinkError::Io(error) => error.fmt(f),
        }
    }
}

impl LinkError {
    /// Only the code of an error that repeats one of `words`, since a server may repeat what it was sent.
    pub(super) fn without_words(self, words: [&[u8]; 2]) -> LinkError {
        let words = words.map(String::from_utf8_lossy);
        match self {
            LinkError::Server(text) if words.iter().any(|word| !word.is_empty() && text.contains(&**word)) => {
                LinkError::Server(text.split(' ').next().unwrap_or_default().to_string())
            }
            error => error,
        }
    }

    fn word(&self, at: usize) -> &str {
        if let LinkError::Server(text) = self { text.split(' ').nth(at).unwrap_or_default() } else { "" }
    }

    fn is_io(&self, kind: ErrorKind) -> bool {
        matches!(self, LinkError::Io(error) if error.kind() == kind)
    }

    /// Code of the server's error; empty without an answer.
    pub(super) fn code(&self) -> &str {
        self.word(0)
    }

    /// Host and port of the node that has the slot, as `MOVED 7332 HOST:PORT` names it; empty in any other error.
    pub(super) fn moved_to(&self) -> &str {
        if self.code() == "MOVED" { self.word(2) } else { "" }
    }

    pub(super) fn is_timeout(&self) -> bool {
        self.is_io(ErrorKind::TimedOut) || self.is_io(ErrorKind::WouldBlock)
    }

    /// True if this process was stopped and continued while it waited.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_io(ErrorKind::Interrupted)
    }
}

fn wrong(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// An error without the arguments of its command, which a server repeats if it does not know the command: they may be
/// the password, or a secret of the ledger.
fn without_arguments(error: &str) -> &str {
    error.split_once(", with args beginning with").map_or(error, |(error, _)| error)
}

fn nonsense() -> io::Error {
    wrong("an answer that makes no sense: is this a Redis or Valkey server?".to_string())
}

/// Returns the error for an answer that is longer than `most` bytes.
pub(super) fn too_long(most: usize) -> io::Error {
    wrong(format!("an answer of more than {} MiB", most >> 20))
}

/// List that is not complete.
struct OpenList {
    /// Number of missing values, at least 1.
    missing: usize,
    values: Vec<Value>,
}

/// Reader of one answer, which continues as bytes arrive.
#[derive(Default)]
pub(super) struct ReplyReader {
    /// Offset after the read values: the start of a line, or of a text of known length.
    at: usize,
    text: Option<usize>,
    /// Offset up to which there is no end of the line.
    seen: usize,
    /// Lists that contain the next value, the outermost first.
    open: Vec<OpenList>,
    /// Number of values that the lists have, or will have.
    values: usize,
}

impl ReplyReader {
    /// Reads the available bytes of an answer of at most `most` bytes. Returns it once it is complete, with its length.
    pub(super) fn read(&mut self, bytes: &[u8], most: usize) -> io::Result<Option<(Value, usize)>> {
        loop {
            let value = match self.text {
                Some(length) => {
                    let end = self.at + length;
                    let Some(after) = bytes.get(end..end + 2) else { return Ok(None) };
                    if after != b"\r\n" {
                        return Err(nonsense());
                    }
                    let text = Value::Text(bytes[self.at..end].to_vec());
                    (self.text, self.at) = (None, end + 2);
                    Some(text)
                }
                None => {
                    let from = self.at.max(self.seen);
                    let end = bytes[from..].iter().position(|byte| *byte == b'\n').map(|end| from + end);
                    self.seen = end.unwrap_or(bytes.len());
                    if self.seen - self.at > LINE_MAX {
                        return Err(wrong("a line without an end".to_string()));
                    }
                    let Some(end) = end else { return Ok(None) };
                    let line = &bytes[self.at..end];
                    self.at = end + 1;
                    self.take(line, most)?
                }
            };
            if let Some(answer) = value.and_then(|value| self.put(value)) {
                return Ok(Some((answer, self.at)));
            }
        }
    }

    /// Reads a line. Returns the value that ends with it.
    fn take(&mut self, line: &[u8], most: usize) -> io::Result<Option<Value>> {
        let Some((kind, Some(text))) = line.split_first().map(|(kind, text)| (kind, text.strip_suffix(b"\r"))) else {
            return Err(nonsense());
        };
        let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()).ok_or_else(nonsense);
        let length = match kind {
            b'+' => return Ok(Some(Value::Text(text.to_vec()))),
            b'-' => return Ok(Some(Value::Error(without_arguments(&String::from_utf8_lossy(text)).to_string()))),
            b':' => return Ok(Some(Value::Int(number()?))),
            b'$' | b'*' => number()?,
            _ => return Err(nonsense()),
        };
        let Ok(length) = usize::try_from(length) else {
            return if length == -1 { Ok(Some(Value::Nil)) } else { Err(nonsense()) };
        };
        if *kind == b'$' {
            if length > most.saturating_sub(self.at) {
                return Err(too_long(most));
            }
            self.text = Some(length);
            return Ok(None);
        }
        if length > (1000 + most / VALUE_MIN).saturating_sub(self.values) {
            return Err(too_long(most));
        }
        if self.open.len() == DEPTH_MAX {
            return Err(wrong(format!("an answer that is nested deeper than {DEPTH_MAX}")));
        }
        self.values += length;
        if length == 0 {
            return Ok(Some(Value::List(Vec::new())));
        }
        self.open.push(OpenList { missing: length, values: Vec::new() });
        Ok(None)
    }

    /// Puts a complete value into its list. Returns the answer once that is complete.
    fn put(&mut self, mut value: Value) -> Option<Value> {
        while let Some(list) = self.open.last_mut() {
            list.values.push(value);
            list.missing -= 1;
            if list.missing > 0 {
                return None;
            }
            value = Value::List(self.open.pop()?.values);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1000;

    #[test]
    fn error_never_shows_what_was_sent() {
        let error = |text: &str| {
            let (value, _) = ReplyReader::default().read(format!("-{text}\r\n").as_bytes(), MOST).unwrap().unwrap();
            value.error().unwrap()
        };
        let unknown = error("ERR unknown command 'AUTH', with args beginning with: 'bob' 'secret'");
        assert_eq!(unknown.to_string(), "ERR unknown command 'AUTH'");
        let repeated = error("DENIED no user bob with secret");
        assert_eq!(repeated.without_words([b"", b"secret"]).to_string(), "DENIED");
        assert_eq!(error("WRONGPASS no").without_words([b"", b"secret"]).to_string(), "WRONGPASS no");
    }

    /// Returns the first answer and its length, or the error, and checks that they do not depend on the split of the
    /// bytes.
    fn read(bytes: &[u8]) -> Result<Option<(Value, usize)>, String> {
        let text = |error: io::Error| error.to_string();
        let whole = ReplyReader::default().read(bytes, MOST).map_err(text);
        let splits = |piece: usize| (0..bytes.len()).step_by(piece).chain([bytes.len()]).collect::<Vec<_>>();
        let halves = (0..bytes.len().min(200)).map(|end| vec![end, bytes.len()]);
        for ends in [1, 2, 3, 7].map(splits).into_iter().chain(halves) {
            let mut reader = ReplyReader::default();
            let each = ends.iter().map(|end| reader.read(&bytes[..*end], MOST).map_err(text));
            let found = each.into_iter().find(|found| *found != Ok(None)).unwrap_or(Ok(None));
            assert_eq!(found, whole, "{ends:?}: {:?}", String::from_utf8_lossy(bytes));
        }
        whole
    }

    fn word(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn answer_ends_with_its_last_value() {
        let list = Value::List;
        for (answer, value) in [
            (&b"+OK\r\n"[..], word("OK")),
            (b"+QUEUED\r\n", word("QUEUED")),
            (b"+\r\n", word("")),
            (b":-7\r\n", Value::Int(-7)),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"$0\r\n\r\n", word("")),
            (b"$4\r\na\r\nb\r\n", word("a\r\nb")),
            (b"$2\r\n\xff\xfe\r\n", Value::Text(b"\xff\xfe".to_vec())),
            (b"*0\r\n", list(Vec::new())),
            (b"-ERR no\xff\r\n", Value::Error("ERR no\u{fffd}".to_string())),
            (b"*2\r\n-MOVED 1 h:2\r\n*-1\r\n", list(vec![Value::Error("MOVED 1 h:2".to_string()), Value::Nil])),
            (
                b"*3\r\n:1\r\n*2\r\n*0\r\n$1\r\nx\r\n+y\r\n",
                list(vec![Value::Int(1), list(vec![list(Vec::new()), word("x")]), word("y")]),
            ),
        ] {
            let complete = Ok(Some((value, answer.len())));
            assert_eq!(read(answer), complete);
            assert_eq!(read(&[answer, b":9\r\n"].concat()), complete);
            for end in 0..answer.len() {
                assert_eq!(read(&answer[..end]), Ok(None), "{end} bytes of {}", answer.len());
            }
        }
    }

    #[test]
    fn answer_beyond_a_bound_is_refused_early() {
        for (answer, why) in [
            (&b"$1001\r\n"[..], "an answer of more than 0 MiB"),
            (b"$9223372036854775807\r\n", "an answer of more than 0 MiB"),
            (b"$9223372036854775808\r\n", "makes no sense"),
            (b"*9223372036854775807\r\n", "an answer of more than 0 MiB"),
            (b"*1063\r\n", "an answer of more than 0 MiB"),
            (b"*1000\r\n*1000\r\n", "an answer of more than 0 MiB"),
            (&b"*1\r\n".repeat(17), "an answer that is nested deeper than 16"),
            (&[b'+'; LINE_MAX + 2], "a line without an end"),
            (&[&[b'+'; LINE_MAX + 2][..], b"\r\n"].concat(), "a line without an end"),
            (b"$x\r\n", "makes no sense"),
            (b":\r\n", "makes no sense"),
            (b"$1\r\nabc\r\n", "makes no sense"),
            (b"*-2\r\n", "makes no sense"),
            (b"\r\n", "makes no sense"),
            (b"+OK\n", "makes no sense"),
            (b"%1\r\n", "makes no sense"),
        ] {
            let found = read(answer);
            assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{why}: {found:?}");
        }
    }

    #[test]
    fn hostile_bytes_end_or_continue_and_never_cost_more_than_they_are_long() {
        // A xorshift generator of answers in which every kind of line occurs.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..20_000 {
            let parts =
                ["*2\r\n", "*1\r\n", "$1\r\n", "$3\r\n", "*-1\r\n", ":5\r\n", "+a\r\n", "-E\r\n", "abc", "\r\n", "9"];
            let answer: Vec<u8> = (0..next(12)).flat_map(|_| parts[next(11) as usize].bytes()).collect();
            let mut reader = ReplyReader::default();
            if let Ok(Some((_, length))) = reader.read(&answer, MOST) {
                assert!(length <= answer.len());
                let whole = ReplyReader::default().read(&answer[..length], MOST);
                assert_eq!(whole.ok().flatten().map(|(_, length)| length), Some(length));
            }
            assert!(reader.open.iter().all(|list| list.values.len() <= answer.len()));
        }
    }

    #[test]
    fn packed_command_is_read_back() {
        let mut command = RedisCommand::new("A SET");
        command.arg("a\r\nb").arg(b"\xff\x00".as_slice()).arg(String::new()).number(u64::MAX);
        command.args(&["x".to_string(), "\u{e9}".to_string()]);
        let mut bytes = Vec::new();
        command.pack(&mut bytes);
        assert!(
            bytes.starts_with(b"*8\r\n$1\r\nA\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$2\r\n\xff\x00\r\n$0\r\n\r\n$20\r\n1844")
        );
        let words = [
            word("A"),
            word("SET"),
            word("a\r\nb"),
            Value::Text(b"\xff\x00".to_vec()),
            word(""),
            word(&u64::MAX.to_string()),
        ];
        let words = [&words[..], &[word("x"), word("\u{e9}")]].concat();
        assert_eq!(read(&bytes), Ok(Some((Value::List(words), bytes.len()))));
    }

    #[test]
    fn values_of_another_form_are_none() {
        let number = |text: &str| integer(&word(text));
        assert_eq!(
            (integer(&Value::Int(7)), number("7"), number(&u64::MAX.to_string())),
            (Some(7), Some(7), Some(u64::MAX))
        );
        assert_eq!((integer(&Value::Int(-1)), number("-1"), number("1.5"), number("")), (None, None, None, None));
        assert_eq!((integer(&Value::Nil), text(&Value::Int(1)), text(&Value::Text(vec![0xff]))), (None, None, None));
        assert!(list(&word("a")).is_empty() && list(&Value::List(vec![Value::Nil])).len() == 1);
    }

    #[test]
    fn error_has_a_code_and_names_a_node() {
        let error = |text: &str| LinkError::Server(text.to_string());
        let told = |error: &LinkError| (error.code().to_string(), error.moved_to().to_string());
        let pair = |code: &str, node: &str| (code.to_string(), node.to_string());
        assert_eq!(told(&error("MOVED 7332 [::1]:7")), pair("MOVED", "[::1]:7"));
        assert_eq!(told(&error("MOVED")), pair("MOVED", ""));
        assert_eq!(told(&error("ASK 7332 h:1")), pair("ASK", ""));
        assert_eq!(told(&error("NOSCRIPT No matching script.")), pair("NOSCRIPT", ""));
        assert_eq!(error("ERR unknown command").to_string(), "ERR unknown command");
        let io = |kind: ErrorKind| LinkError::from(io::Error::from(kind));
        assert_eq!(told(&io(ErrorKind::TimedOut)), pair("", ""));
        assert!(io(ErrorKind::TimedOut).is_timeout() && io(ErrorKind::WouldBlock).is_timeout());
        assert!(io(ErrorKind::Interrupted).is_interrupted() && !io(ErrorKind::TimedOut).is_interrupted());
    }
}
