//! Tests of heads in one piece, byte by byte, and followed by the next message, and of every refusal.

use super::*;
use crate::base::rng::Rng;

const MAX: usize = 16 * 1024;

fn whole(input: &[u8]) -> Result<Option<RequestHead>, HeadError> {
    parse_request(input, &mut 0, MAX)
}

fn dripped<T>(
    input: &[u8],
    mut parse: impl FnMut(&[u8], &mut u32) -> Result<Option<T>, HeadError>,
) -> Result<Option<T>, HeadError> {
    let mut scanned = 0;
    for end in 0..=input.len() {
        if let done @ (Ok(Some(_)) | Err(_)) = parse(&input[..end], &mut scanned) {
            return done;
        }
    }
    Ok(None)
}

/// Returns the head, and checks that all three ways of delivery give the same result.
fn head(input: &str) -> RequestHead {
    let input = input.as_bytes();
    let parsed = whole(input).unwrap().expect("complete");
    assert_eq!(dripped(input, |buf, at| parse_request(buf, at, MAX)), Ok(Some(parsed)));
    let tailed = [input, b"POST /v1/messages HTTP/1.1\r\n\n\x00"].concat();
    assert_eq!(whole(&tailed), Ok(Some(parsed)));
    parsed
}

/// Returns the status of a refusal, and checks that all three ways of delivery give the same result.
fn refused(input: impl AsRef<[u8]>) -> u16 {
    let input = input.as_ref();
    let error = whole(input).expect_err("refused");
    let drip = dripped(input, |buf, at| parse_request(buf, at, MAX)).expect_err("refused byte by byte");
    assert_eq!(drip.status, error.status, "{error:?} {drip:?}");
    let tailed = [input, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"].concat();
    assert_eq!(whole(&tailed).expect_err("refused with a tail").status, error.status);
    error.status
}

#[test]
fn a_request_head_is_read_into_spans() {
    let text = "POST /v1/chat/completions?x=/y HTTP/1.1\r\nHost: gate:8080\r\nAUTHORIZATION:  Bearer tg_live_a \t\r\n\
                X-Api-Key:k\r\ncontent-type: application/json; charset=utf-8\r\nContent-Length: 12\r\nuser-agent: a\tb\r\n\
                x-other: \u{e9}\r\nanthropic-beta: a, b\r\nanthropic-beta: c\r\nanthropic-version: 2023-06-01\r\n\r\n";
    let head = head(text);
    let bytes = text.as_bytes();
    assert_eq!((head.method, head.http11, head.keep_alive, head.expect), (Method::Post, true, true, Expect::None));
    assert_eq!(head.target.of(bytes), b"/v1/chat/completions?x=/y");
    assert_eq!(head.path.of(bytes), b"/v1/chat/completions");
    assert_eq!(head.len as usize, bytes.len());
    assert_eq!(head.framing, Framing::Length(12));
    let fields = [
        (HeaderField::Host, "gate:8080"),
        (HeaderField::Authorization, "Bearer tg_live_a"),
        (HeaderField::XApiKey, "k"),
        (HeaderField::ContentType, "application/json; charset=utf-8"),
        (HeaderField::ContentEncoding, ""),
        (HeaderField::UserAgent, "a\tb"),
        (HeaderField::AnthropicVersion, "2023-06-01"),
        (HeaderField::AnthropicBeta, "a, b"),
        (HeaderField::Origin, ""),
    ];
    for (field, value) in fields {
        assert_eq!(head.field(field).of(bytes), value.as_bytes(), "{field:?}");
    }
    assert_eq!(values(bytes, "Anthropic-Beta").collect::<Vec<_>>(), [&b"a, b"[..], b"c"]);
}

#[test]
fn all_four_forms_of_a_target_give_their_path() {
    let cases = [
        ("GET /a/b?c#".trim_end_matches('#'), "/a/b"),
        ("GET /", "/"),
        ("GET //x", "//x"),
        ("GET http://h/v1/models?a=/b", "/v1/models"),
        ("GET HTTPS://h:1/x", "/x"),
        ("GET http://h", "/"),
        ("GET http://h?q=/a", "/"),
        ("OPTIONS *", "*"),
        ("CONNECT h:443", "h:443"),
    ];
    for (line, path) in cases {
        let text = format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(head(&text).path.of(text.as_bytes()), path.as_bytes(), "{line}");
    }
    for line in ["GET *", "GET v1", "GET http://", "GET http:///x", "GET ftp://h/x", "GET /a#b", "GET h:443", "POST ?a"]
    {
        assert_eq!(refused(format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n")), 400, "{line}");
    }
}

#[test]
fn method_names_are_case_sensitive() {
    for (text, method) in [("GET", Method::Get), ("HEAD", Method::Head), ("get", Method::Other), ("PUT", Method::Other)]
    {
        assert_eq!(head(&format!("{text} / HTTP/1.1\r\nhost:h\r\n\r\n")).method, method);
    }
}

#[test]
fn keep_alive_depends_on_version_and_connection_header() {
    let cases = [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: x, Close\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ];
    for (version, line, alive) in cases {
        assert_eq!(
            head(&format!("GET / HTTP/{version}\r\nHost: h\r\n{line}\r\n")).keep_alive,
            alive,
            "{version} {line}"
        );
    }
}

#[test]
fn expect_is_only_honoured_on_http_1_1() {
    let cases = [
        ("1.1", "100-continue", Expect::Continue),
        ("1.1", "100-Continue", Expect::Continue),
        ("1.1", "200-maybe", Expect::Other),
        ("1.1", "100-continue, x", Expect::Other),
        ("1.0", "100-continue", Expect::None),
    ];
    for (version, value, expect) in cases {
        assert_eq!(head(&format!("POST / HTTP/{version}\r\nHost: h\r\nExpect: {value}\r\n\r\n")).expect, expect);
    }
}

#[test]
fn framing_is_none_a_length_or_chunks() {
    let cases = [
        ("", Framing::None),
        ("Content-Length: 0\r\n", Framing::Length(0)),
        ("Content-Length: 007\r\n", Framing::Length(7)),
        ("Content-Length: 99999999999999999999999\r\n", Framing::Length(u64::MAX)),
        ("Transfer-Encoding: Chunked\r\n", Framing::Chunked),
    ];
    for (line, framing) in cases {
        assert_eq!(head(&format!("POST / HTTP/1.1\r\nHost: h\r\n{line}\r\n")).framing, framing, "{line}");
    }
}

#[test]
fn framing_that_could_smuggle_is_refused() {
    let cases = [
        ("Content-Length: 5\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
        ("Content-Length: 5, 5\r\n", 400),
        ("Content-Length: +5\r\n", 400),
        ("Content-Length: -5\r\n", 400),
        ("Content-Length: 0x5\r\n", 400),
        ("Content-Length: 5 5\r\n", 400),
        ("Content-Length:\r\n", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400),
        ("Transfer-Encoding: chunked, chunked\r\n", 400),
        ("Transfer-Encoding: chunked, identity\r\n", 400),
        ("Transfer-Encoding: identity\r\n", 400),
        ("Transfer-Encoding: gzip\r\n", 400),
        ("Transfer-Encoding: xchunked\r\n", 400),
        ("Transfer-Encoding: \"chunked\"\r\n", 400),
        ("Transfer-Encoding: ,chunked\r\n", 400),
        ("Transfer-Encoding: chunked;a=b\r\n", 400),
        ("Transfer-Encoding:\r\n", 400),
        ("Transfer-Encoding: \x0bchunked\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding : chunked\r\n", 400),
        ("Transfer-Encoding\t: chunked\r\n", 400),
        ("X: a\r\n Transfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding:\r\n chunked\r\n", 400),
    ];
    for (line, status) in cases {
        assert_eq!(refused(format!("POST / HTTP/1.1\r\nHost: h\r\n{line}\r\n")), status, "{line:?}");
    }
    assert_eq!(refused("POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

#[test]
fn malformed_lines_are_refused() {
    let cases: [&[u8]; 25] = [
        b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\rX\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x7fc\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\tc\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA b: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA : c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\xc3\xa9: c\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /  HTTP/1.1\r\nHost: h\r\n\r\n",
        b" GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\r\nHost: h\r\n\r\n",
        b"GET / HTP/1.1\r\nHost: h\r\n\r\n",
        b"G@T / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for case in cases {
        assert_eq!(refused(case), 400, "{:?}", String::from_utf8_lossy(case));
    }
}

#[test]
fn host_is_one_and_well_formed() {
    let cases = [
        "",
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nhost: b\r\n",
        "Host: a b\r\n",
        "Host: a/b\r\n",
        "Host: u@a\r\n",
        "Host: a, b\r\n",
    ];
    for line in cases {
        assert_eq!(refused(format!("GET / HTTP/1.1\r\n{line}\r\n")), 400, "{line:?}");
    }
    for host in ["", "[::1]:80", "a-b.c_d:1", "%41"] {
        head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    head("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(refused("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
}

#[test]
fn identifying_headers_must_not_be_repeated() {
    for name in ["authorization", "x-api-key", "content-type", "content-encoding", "anthropic-version", "origin"] {
        assert_eq!(refused(format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: a\r\n{name}:\r\n\r\n")), 400, "{name}");
        assert_eq!(refused(format!("GET / HTTP/1.1\r\nHost: h\r\n{name}:\r\n{name}: a\r\n\r\n")), 400, "{name}");
    }
    for name in ["x-request-id", "user-agent", "anthropic-beta", "x-other"] {
        head(&format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: a\r\n{name}: b\r\n\r\n"));
    }
}

#[test]
fn other_versions_are_505_and_nonsense_is_400() {
    for version in ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "HTTP/3", "HTTP/2"] {
        assert_eq!(refused(format!("GET / {version}\r\nHost: h\r\n\r\n")), 505, "{version}");
    }
    for version in ["HTTP/1.x", "http/1.1", "HTTP/11", "HTTP/1.10", "XTTP/1.1"] {
        assert_eq!(refused(format!("GET / {version}\r\nHost: h\r\n\r\n")), 400, "{version}");
    }
    assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
}

#[test]
fn head_up_to_the_maximum_size_is_accepted() {
    let start = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
    let fill = |size: usize| format!("{start}{}\r\n\r\n", "a".repeat(size - start.len() - 4));
    assert_eq!(head(&fill(MAX)).len as usize, MAX);
    assert_eq!(refused(fill(MAX + 1)), 431);
    assert_eq!(refused(format!("{start}{}", "a".repeat(MAX))), 431);
    assert_eq!(refused(format!("GET /{}", "a".repeat(MAX))), 414);
    assert_eq!(refused("a".repeat(MAX)), 414);
}

#[test]
fn a_hundred_headers_pass_and_one_more_does_not() {
    let with = |count: usize| format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "a: b\r\n".repeat(count - 1));
    head(&with(100));
    assert_eq!(refused(with(101)), 431);
}

#[test]
fn unfinished_head_is_resumed_where_the_search_stopped() {
    let text = b"GET / HTTP/1.1\r\nHost: example.org\r\nA: b\r";
    let mut scanned = 0;
    assert_eq!(parse_request(text, &mut scanned, MAX), Ok(None));
    assert_eq!(scanned as usize, text.len() - 1);
    assert_eq!(parse_request(b"", &mut 0, MAX), Ok(None));
}

fn response(input: &str, to_head: bool) -> Result<Option<ResponseHead>, HeadError> {
    let parsed = parse_response(input.as_bytes(), &mut 0, MAX, to_head);
    let drip = dripped(input.as_bytes(), |buf, at| parse_response(buf, at, MAX, to_head));
    match parsed {
        Ok(_) => assert_eq!(drip, parsed),
        Err(_) => assert!(drip.is_err()),
    }
    if let Ok(Some(_)) = parsed {
        let tailed = [input.as_bytes(), b"body\n\0"].concat();
        assert_eq!(parse_response(&tailed, &mut 0, MAX, to_head), parsed);
    }
    parsed
}

#[test]
fn a_response_head_is_read_into_spans() {
    let text = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/event-stream; charset=utf-8\r\nRetry-After: 7\r\n\
                content-encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n";
    let head = response(text, false).unwrap().unwrap();
    let bytes = text.as_bytes();
    assert_eq!((head.status, head.http11, head.keep_alive, head.framing), (429, true, true, Framing::Chunked));
    assert_eq!(head.len as usize, bytes.len());
    assert_eq!(head.content_type.of(bytes), b"text/event-stream; charset=utf-8");
    assert_eq!(head.content_encoding.of(bytes), b"identity");
    assert_eq!(head.retry_after.of(bytes), b"7");
}

#[test]
fn a_response_is_framed_by_its_status_its_request_and_its_headers() {
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false, Framing::Length(5), true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, Framing::None, true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", false, Framing::Length(5), false),
        ("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, Framing::Length(0), true),
        ("HTTP/1.1 200 OK\r\n\r\n", false, Framing::ToEnd, false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", false, Framing::ToEnd, false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n", false, Framing::Length(1), true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", false, Framing::Length(1), false),
        ("HTTP/1.1 204 No Content\r\n\r\n", false, Framing::None, true),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", false, Framing::None, true),
        ("HTTP/1.1 100 Continue\r\n\r\n", false, Framing::None, true),
        ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", false, Framing::None, true),
    ];
    for (text, to_head, framing, alive) in cases {
        let head = response(text, to_head).unwrap().unwrap();
        assert_eq!((head.framing, head.keep_alive), (framing, alive), "{text:?}");
    }
}

#[test]
fn a_broken_response_is_an_error() {
    let cases = [
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 099 No\r\n\r\n",
        "HTTP/1.1 20 No\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "<html>hello</html>\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
    ];
    for case in cases {
        assert_eq!(response(case, false).expect_err(case).status, 502);
    }
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(MAX));
    assert_eq!(response(&long, false).unwrap_err().reason, "the response head is too large");
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(101));
    assert_eq!(response(&many, false).unwrap_err().reason, "the response has too many headers");
    assert_eq!(response("HTTP/1.1 200 OK\r\nA: b\r\n", false), Ok(None));
}

/// Generates heads as clients and providers send them, line by line, some of them unusual.
fn generate(rng: &mut Rng, first: &[&str], lines: &[&str]) -> Vec<u8> {
    let any = |rng: &mut Rng, of: &[&str]| of[rng.below(of.len() as u64) as usize].to_owned();
    let mut text = any(rng, first) + "\r\n";
    for _ in 0..rng.below(9) {
        text += &any(rng, lines);
        text += if rng.below(60) == 0 { "\n" } else { "\r\n" };
    }
    let mut bytes = (text + "\r\nrest").into_bytes();
    if rng.below(3) == 0 {
        let at = rng.below(bytes.len() as u64) as usize;
        const ODD: &[u8] = b" \t\r\n:,;\x7f\x80\0a0Z/%#?\xff";
        bytes[at] = ODD[rng.below(ODD.len() as u64) as usize];
    }
    bytes
}

const FIELDS: &[&str] = &[
    "Host: gate:8080",
    "host:h",
    "Host: a b",
    "Content-Length: 12",
    "content-length:0",
    "content-length: +1",
    "Content-Length: 1234567890123456",
    "Transfer-Encoding: chunked",
    "transfer-encoding: gzip, chunked",
    "Connection: close",
    "Connection: keep-alive",
    "connection: Close, x",
    "authorization: Bearer tg_live_a",
    "x-api-key: k ",
    "content-type:  application/json",
    "content-encoding: gzip",
    "retry-after: 7",
    "x-request-id: one",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-request-id: two",
    "user-agent: a/1 (b; c) \u{e9}",
    "anthropic-version: 2023-06-01",
    "anthropic-beta: a,b",
    "origin: https://example.org",
    "expect: 100-continue",
    "access-control-request-method: POST",
    "access-control-request-headers: a",
    "!#$%&'*+-.^_`|~: token",
    "empty:",
    "a : b",
    " folded",
    "date: Sun, 22 Nov 2026 10:00:00 GMT",
];

/// Returns the length of the head at the front, by the strict search.
fn strict_len(bytes: &[u8]) -> usize {
    match parts::find_end(bytes, &mut 0) {
        Ok(parts::BlankLine::End(len)) => len,
        _ => 0,
    }
}

#[test]
fn fast_and_strict_parser_agree_on_plain_heads() {
    let mut rng = Rng::from_u64(31);
    let requests = [
        "POST /v1/messages?beta=true HTTP/1.1",
        "GET / HTTP/1.1",
        "GET /a%20b HTTP/1.0",
        "PUT /x HTTP/1.1",
        "GET * HTTP/1.1",
    ];
    let answers = [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 ",
        "HTTP/1.1 429 Too Many",
        "HTTP/1.1 204 No",
        "HTTP/1.1 200",
        "HTTP/1.0 200 OK",
    ];
    let (mut plain, mut odd) = (0, 0);
    for _ in 0..40_000 {
        let bytes = generate(&mut rng, &requests, FIELDS);
        let shown = String::from_utf8_lossy(&bytes);
        match request::plain(&bytes) {
            Some(head) => {
                plain += 1;
                assert_eq!(strict_len(&bytes), head.len as usize, "{shown}");
                assert_eq!(request::parse_whole(&bytes[..head.len as usize]), Ok(head), "{shown}");
            }
            None => odd += 1,
        }
        let bytes = generate(&mut rng, &answers, FIELDS);
        let shown = String::from_utf8_lossy(&bytes);
        if let Some(head) = response::plain(&bytes, false) {
            plain += 1;
            assert_eq!(strict_len(&bytes), head.len as usize, "{shown}");
            assert_eq!(response::parse_whole(&bytes[..head.len as usize], false), Ok(head), "{shown}");
        }
    }
    assert!(plain > 1000 && odd > 1000, "{plain} plain, {odd} odd");
}

/// Generates heads of one client program, equal except for the key and the length, some of them unusual.
fn alike(rng: &mut Rng) -> Vec<u8> {
    let number = match rng.below(6) {
        0 => rng.below(20),
        1 => rng.below(1 << 40),
        _ => 100 + rng.below(2000),
    };
    let key = (0..if rng.below(9) == 0 { 9 } else { 12 }).map(|_| char::from(b'0' + rng.below(70) as u8));
    let key: String = key.collect();
    let shows = [format!("authorization: Bearer {key}"), format!("X-Api-Key: {key}")];
    let mut lines = vec![shows[rng.below(2) as usize].clone(), format!("content-length: {number}")];
    for line in ["content-type: application/json", "user-agent: a/1", "x-stainless-os: Linux", "anthropic-version: 1"] {
        lines.extend((rng.below(8) > 0).then(|| line.to_owned()));
    }
    lines.extend((rng.below(12) == 0).then(|| FIELDS[rng.below(FIELDS.len() as u64) as usize].to_owned()));
    let (front, back) = (rng.below(lines.len() as u64) as usize, rng.below(lines.len() as u64) as usize);
    lines.swap(front, back);
    let mut bytes = format!("POST /v1/messages HTTP/1.1\r\nhost: h\r\n{}\r\n\r\n{{}}", lines.join("\r\n")).into_bytes();
    if rng.below(8) == 0 {
        let at = rng.below(bytes.len() as u64) as usize;
        const ODD: &[u8] = b" \t\r\n:,;\x7f\x80\0a0Z/%#?\xff";
        bytes[at] = ODD[rng.below(ODD.len() as u64) as usize];
    }
    bytes
}

/// The head at the front of `bytes`, if it matches a template.
fn fitting(templates: &mut HeadTemplates, bytes: &[u8], max: usize) -> Option<RequestHead> {
    let mut head = RequestHead::unparsed();
    templates.find(bytes, max, &mut head).then_some(head)
}

#[test]
fn head_read_by_template_equals_a_parsed_head() {
    let mut rng = Rng::from_u64(32);
    let (mut templates, mut fitted) = (HeadTemplates::default(), 0);
    for _ in 0..60_000 {
        let bytes = alike(&mut rng);
        let parsed = whole(&bytes);
        if let Some(head) = fitting(&mut templates, &bytes, MAX) {
            fitted += 1;
            assert_eq!(parsed, Ok(Some(head)), "{}", String::from_utf8_lossy(&bytes));
            let len = head.len as usize;
            assert_eq!(
                (fitting(&mut templates, &bytes[..len - 1], MAX), fitting(&mut templates, &bytes, len - 1)),
                (None, None)
            );
        } else if let Ok(Some(head)) = parsed {
            templates.learn(&bytes, &head);
        }
    }
    assert!((1000..59_000).contains(&fitted), "{fitted} fitted");
}

#[test]
fn templates_keep_no_secret() {
    const SECRET: &str = "tg_live_0123456789";
    let shown = |more: &str| {
        let head = format!("POST / HTTP/1.1\r\nhost: h\r\n{more}\r\ncontent-length: 2\r\n\r\n{{}}");
        let mut templates = HeadTemplates::default();
        templates.learn(head.as_bytes(), &whole(head.as_bytes()).unwrap().unwrap());
        let kept = format!("{templates:?}");
        let bytes: Vec<String> = SECRET.bytes().map(|byte| byte.to_string()).collect();
        assert!(!kept.contains(&bytes.join(", ")), "{kept}");
        fitting(&mut templates, head.as_bytes(), MAX).is_some()
    };
    assert!(shown(&format!("authorization: Bearer {SECRET}")));
    assert!(shown(&format!("x-api-key: {SECRET}")));
    for other in ["cookie", "proxy-authorization", "x-forwarded-for", "x-stainless", "x-request-id", "acceptx"] {
        assert!(!shown(&format!("x-api-key: k\r\n{other}: {SECRET}")), "{other}");
    }
    for odd in ["authorization: Basic x", "authorization: Bearer a b", "x-api-key: k\r\nauthorization: Bearer k"] {
        assert!(!shown(odd), "{odd}");
    }
    assert!(!shown(&format!("host2: {SECRET}")), "a head without a key is not kept");
}

#[test]
fn few_templates_are_kept_and_heads_that_never_match_cost_little() {
    let mut templates = HeadTemplates::default();
    let head = |number: usize| {
        format!("GET /{number} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer k\r\nuser-agent: {number}\r\n\r\n")
    };
    for number in 0..1000 {
        let text = head(number);
        assert_eq!(fitting(&mut templates, text.as_bytes(), MAX), None);
        templates.learn(text.as_bytes(), &whole(text.as_bytes()).unwrap().unwrap());
    }
    let kept: Vec<usize> =
        (0..1000).filter(|number| fitting(&mut templates, head(*number).as_bytes(), MAX).is_some()).collect();
    // After many consecutive misses, only few of the following heads are kept.
    assert_eq!(kept.len(), 8);
    assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == 64), "{kept:?}");
}

#[test]
fn most_specific_header_names_the_conversation() {
    let of = |lines: &str| {
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\n{lines}\r\n");
        // Once with an extra blank before a value, so that the strict parser reads it, and once unchanged.
        let found = [head.replace("host: x", "host:  x"), head].map(|head| {
            let parsed = parse_request(head.as_bytes(), &mut 0, 4096).unwrap().unwrap();
            String::from_utf8(parsed.field(HeaderField::Session).of(head.as_bytes()).to_vec()).unwrap()
        });
        assert_eq!(found[0], found[1], "{lines}");
        found[0].clone()
    };
    assert_eq!(of("x-request-id: 7\r\nx-session: 8\r\n"), "");
    assert_eq!(of("X-Session-Id: a\r\n"), "a");
    assert_eq!(of("x-session-affinity: b\r\nsession_id: c\r\nx-session-id: a\r\nx-session-id: d\r\n"), "a");
    assert_eq!(of("x-session-affinity: b\r\nSession_Id: c\r\n"), "c");
    assert_eq!(of("session_id: c\r\nSession-Id: d\r\n"), "d");
    assert_eq!(of("x-session-affinity: b\r\nx-claude-code-session-id: e\r\nsession-id: d\r\n"), "e");
    assert_eq!(of("x-session-id:\r\nsession-id: d\r\n"), "d");
}

#[test]
fn both_parsers_see_traces_and_preflights() {
    let of = |lines: &str| head(&format!("POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n"));
    // A space before the value's end makes the strict parser read it.
    for lines in ["TraceParent: x\r\n", "traceparent: x \r\n", "traceparent:\r\n", "a: b\r\ntraceparent: x\r\n"] {
        assert!(of(lines).traced && !of(lines).is_preflight, "{lines}");
    }
    assert!(!of("tracestate: x\r\ntraceparents: x\r\n").traced);
    for lines in ["X-Tollgate-Key: x\r\n", "x-tollgate-key: x \r\n"] {
        assert!(of(lines).names_key && !of(lines).traced, "{lines}");
    }
    assert!(!of("x-tollgate-keys: x\r\nx-tollgate_key: x\r\n").names_key);
    assert!(of("access-control-request-method: POST\r\n").is_preflight);
    assert!(!of("access-control-request-method:\r\naccess-control-request-headers: x\r\n").is_preflight);
}

#[test]
fn bearer_tokens_are_found_whatever_the_case_and_spaces() {
    assert_eq!(bearer_token(b"Bearer abc"), b"abc");
    assert_eq!(bearer_token(b"bearer   abc "), b"abc");
    assert_eq!(bearer_token(b"Basic abc"), b"");
    assert_eq!(bearer_token(b"Bearer "), b"");
}
