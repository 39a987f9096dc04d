//! A small HTTP/1.1 client over a plain socket. It sends exactly the bytes that it is given and keeps the received
//! bytes, so that a test can inspect both.

use serde_json::Value;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Timeout of every read and write, longer than any expected answer takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a response head.
const HEAD_MAX: usize = 64 * 1024;

/// The head of a response.
#[derive(Clone, Debug)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Names in lower case, in order.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// Returns the value of the only field with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(field, _)| field == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} occurs more than once: {:?}", self.fields);
        value
    }
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    /// Body without chunk framing.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the status code.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Returns the body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Returns the gateway's request id, and checks that all three headers contain it.
    pub fn id(&self) -> String {
        let id = self.head.get("x-gateway-request-id").expect("a request id").to_owned();
        let digits = id.strip_prefix("req_").expect("req_");
        assert!(digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{id}");
        assert_eq!(self.head.get("request-id"), Some(id.as_str()));
        assert_eq!(self.head.get("x-request-id"), Some(id.as_str()));
        id
    }

    /// Returns the data of every event of a stream, in order.
    pub fn events(&self) -> Vec<String> {
        let events = self.text().split("\n\n").filter(|event| !event.is_empty());
        events
            .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
            .map(String::from)
            .collect()
    }
}

/// A connection to a server.
pub struct Client {
    /// The socket, for tests that misbehave.
    pub socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    /// Opens a connection.
    pub fn connect(to: SocketAddr) -> Client {
        Client::try_connect(to).unwrap()
    }

    /// Opens a connection, which a gateway that accepts no more may reset at once.
    pub fn try_connect(to: SocketAddr) -> Result<Client> {
        let socket = TcpStream::connect_timeout(&to, TIMEOUT)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        socket.set_nodelay(true)?;
        Ok(Client { socket, unread: Vec::new() })
    }

    /// Sends these bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Sends a request and returns its answer.
    pub fn ask(&mut self, request: &[u8]) -> Answer {
        self.send(request);
        self.answer().unwrap()
    }

    /// Reads the next response on this connection.
    pub fn answer(&mut self) -> Result<Answer> {
        let head = self.head()?;
        let body = self.body(&head)?;
        Ok(Answer { head, body })
    }

    /// Reads the head of the next response, and skips interim responses.
    pub fn head(&mut self) -> Result<Head> {
        loop {
            let end = loop {
                if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                    break at + 4;
                }
                assert!(self.unread.len() < HEAD_MAX, "a response head that does not end");
                self.more()?;
            };
            let text: Vec<u8> = self.unread.drain(..end).collect();
            let head = parse_head(std::str::from_utf8(&text).unwrap());
            if head.status >= 200 {
                return Ok(head);
            }
        }
    }

    /// Reads the body that belongs to `head`.
    pub fn body(&mut self, head: &Head) -> Result<Vec<u8>> {
        if let Some(length) = head.get("content-length") {
            return self.exactly(length.parse().unwrap());
        }
        let mut body = Vec::new();
        if head.get("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk()? {
                body.extend_from_slice(&chunk);
            }
            return Ok(body);
        }
        while self.more().is_ok() {}
        Ok(std::mem::take(&mut self.unread))
    }

    /// Reads the payload of the next chunk; `None` for the last one.
    pub fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let at = loop {
            if let Some(at) = find(&self.unread, b"\r\n") {
                break at;
            }
            self.more()?;
        };
        let line: Vec<u8> = self.unread.drain(..at + 2).collect();
        let size = usize::from_str_radix(std::str::from_utf8(&line[..at]).unwrap(), 16).unwrap();
        let chunk = self.exactly(size)?;
        assert_eq!(self.exactly(2)?, b"\r\n");
        Ok((size > 0).then_some(chunk))
    }

    /// Returns true if the other side ends the connection without sending another byte.
    pub fn is_ended(&mut self) -> bool {
        if !self.unread.is_empty() {
            eprintln!("not ended: {:?} had come already", String::from_utf8_lossy(&self.unread));
            return false;
        }
        match self.more() {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => true,
            other => {
                eprintln!("not ended: {other:?}, {:?}", String::from_utf8_lossy(&self.unread));
                false
            }
        }
    }

    fn exactly(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.unread.len() < count {
            self.more()?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    fn more(&mut self) -> Result<()> {
        let mut block = [0u8; 64 * 1024];
        loop {
            match self.socket.read(&mut block) {
                Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
                Ok(count) => {
                    self.unread.extend_from_slice(&block[..count]);
                    return Ok(());
                }
                // The kernel does not restart a read with a timeout after the process was stopped.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn parse_head(text: &str) -> Head {
    let mut lines = text.trim_end().split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).expect("a status line");
    let status = status.split(' ').next().unwrap().parse().unwrap();
    let fields = lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("a header line: {line:?}")));
    Head { status, fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
}

/// Returns the offset of `needle` in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

/// Returns a request with a JSON body; `fields` are additional header lines.
pub fn post(path: &str, fields: &[(&str, &str)], body: &str) -> Vec<u8> {
    let length = body.len();
    let mut request = request("POST", path, fields);
    request.truncate(request.len() - 2);
    request.extend_from_slice(
        format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes(),
    );
    request
}

/// Returns a request without a body.
pub fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: gateway.test\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Sends a GET on a new connection.
pub fn get(to: SocketAddr, path: &str) -> Result<Answer> {
    let mut client = Client::try_connect(to)?;
    // The admin listener accepts this host name, too.
    let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    client.socket.write_all(ask.as_bytes())?;
    client.answer()
}
