//! Parses a proxy's answer to a request for a tunnel (RFC 9110 section 9.3.6). Pure: bytes to a result. Called by
//! `io::reactor`, and by commands that connect to a server themselves.

/// Maximum bytes of an answer's head, including informational ones before it.
pub const ANSWER_MAX: usize = 8 * 1024;

/// Reasons for the log that there is no tunnel, by status.
const REFUSALS: [(u16, &str); 8] = [
    (400, "proxy: 400, it does not understand"),
    // Tinyproxy answers 401 instead of 407.
    (401, "proxy: 401, it wants other credentials"),
    (403, "proxy: 403, it forbids the tunnel"),
    (405, "proxy: 405, it makes no tunnels"),
    (407, "proxy: 407, it wants other credentials"),
    (502, "proxy: 502, it cannot reach the provider"),
    (503, "proxy: 503, it cannot reach the provider"),
    (504, "proxy: 504, the provider does not answer it"),
];

/// Error text for a proxy that ends the connection instead of answering.
pub const CLOSED: &str = "proxy: closed without an answer";

/// Error text for an answer that is not HTTP.
const NO_HTTP: &str = "proxy: no answer in HTTP";

/// Error text for bytes that no request has asked for: clients speak first in HTTP and TLS.
const UNASKED: &str = "proxy: bytes behind its answer";

/// Like [`answer`] for all bytes that have arrived: none may follow the answer, or they would be taken for that of the
/// provider.
pub fn all_of(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    answer(bytes).and_then(|len| if len.is_some_and(|len| len < bytes.len()) { Err(UNASKED) } else { Ok(len) })
}

/// Returns the length of the answer, after which the tunnel begins; `Ok(None)` while bytes are missing; otherwise the
/// reason that there is no tunnel. Only statuses are read: a good answer has no body, whatever its fields state.
pub fn answer(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        // A server of another protocol may be waiting, and the end of a head may never arrive.
        if !bytes[at..].iter().zip(b"HTTP/1.").all(|(is, should)| is == should) {
            return Err(NO_HTTP);
        }
        let Some(len) = head_len(&bytes[at..]) else {
            return if bytes.len() < ANSWER_MAX { Ok(None) } else { Err(NO_HTTP) };
        };
        let digits = bytes[at..at + len].get(8..13).filter(|digits| digits[0] == b' ' && !digits[4].is_ascii_digit());
        let status = digits.and_then(|digits| std::str::from_utf8(&digits[1..4]).ok()?.parse::<u16>().ok());
        at += len;
        match status.ok_or(NO_HTTP)? {
            100 | 102..200 => {}
            200..300 => return Ok(Some(at)),
            300.. => {
                let known = REFUSALS.iter().find(|(known, _)| Some(*known) == status);
                return Err(known.map_or("proxy: it refuses", |(_, words)| words));
            }
            _ => return Err(NO_HTTP),
        }
    }
}

/// Returns the length of the head at the front, with the empty line that ends it.
fn head_len(bytes: &[u8]) -> Option<usize> {
    let lines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let empty = |at: usize| [&b"\n"[..], b"\r\n"].into_iter().find(|end| bytes[at..].starts_with(end));
    lines.into_iter().find_map(|at| Some(at + empty(at)?.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_200_to_299_open_the_tunnel_after_the_head() {
        for head in [
            "HTTP/1.1 200 Connection established\r\n\r\n",
            "HTTP/1.0 200 OK\r\nproxy-agent: x\r\n\r\n",
            "HTTP/1.1 204 \r\n\r\n",
            "HTTP/1.0 200\r\n\r\n",
            "HTTP/1.0 200 OK\nserver: old\n\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        ] {
            let more = format!("{head}\x16\x03tail");
            for end in 0..head.len() {
                assert_eq!(answer(&head.as_bytes()[..end]), Ok(None), "{head}: {end}");
            }
            assert_eq!(all_of(head.as_bytes()), Ok(Some(head.len())), "{head}");
            assert_eq!(all_of(more.as_bytes()), Err(UNASKED), "{head}");
            assert_eq!(answer(more.as_bytes()), Ok(Some(head.len())), "{head}");
        }
    }

    #[test]
    fn every_other_answer_is_reported_with_its_cause() {
        for (bytes, why) in [
            (
                "HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\n\r\nbody",
                "proxy: 407, it wants",
            ),
            ("HTTP/1.1 403 Forbidden\r\ncontent-length: 4\r\n\r\nbody", "proxy: 403, it forbids"),
            ("HTTP/1.1 302 Found\r\nlocation: x\r\n\r\n", "proxy: it refuses"),
            ("HTTP/1.1 101 Switching\r\n\r\n", "proxy: no answer in HTTP"),
            ("SSH-2.0-x\r\n", "proxy: no answer in HTTP"),
            ("H2", "proxy: no answer in HTTP"),
            ("HTTP/2 200\r\n\r\n", "proxy: no answer in HTTP"),
            ("HTTP/1.1 2000 OK\r\n\r\n", "proxy: no answer in HTTP"),
            ("HTTP/1.1 099 OK\r\n\r\n", "proxy: no answer in HTTP"),
            ("HTTP/1.1\r\n\r\n", "proxy: no answer in HTTP"),
            ("\r\n\r\n", "proxy: no answer in HTTP"),
        ] {
            assert!(answer(bytes.as_bytes()).is_err_and(|said| said.starts_with(why)), "{bytes}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(ANSWER_MAX));
        assert!(answer(endless.as_bytes()).is_err());
        let early = "HTTP/1.1 103 x\r\n\r\n".repeat(ANSWER_MAX / 18 + 1);
        assert!(answer(early.as_bytes()).is_err());
    }
}
