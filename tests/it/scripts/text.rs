//! Expands the text of a block (shorthands, lets and escapes), and returns the bytes to send.

use std::collections::BTreeMap;

/// Names that a block may refer to.
#[derive(Clone, Default)]
pub struct Names {
    pub lets: BTreeMap<String, String>,
    pub keys: BTreeMap<String, String>,
}

/// A part of a block.
#[derive(Clone, PartialEq, Debug)]
pub enum Token {
    /// Literal bytes.
    Bytes(Vec<u8>),
    /// A placeholder, which is a pattern or the length of the body.
    Hole(String),
    /// End of a head and start of a body.
    BodyStarts,
    /// End of a body and start of another head.
    HeadStarts,
}

/// Returns the tokens of a block, with shorthands expanded, line ends added, and escapes and lets resolved.
pub fn tokens(lines: &[String], names: &Names) -> Result<Vec<Token>, String> {
    let mut expanded = Vec::new();
    let mut status = Status::default();
    for line in lines {
        match line.strip_prefix('@') {
            Some(short) => expanded.extend(shorthand(short, &mut status)?),
            None => expanded.push(line.clone()),
        }
    }
    let mut head = expanded.first().is_some_and(|line| line.contains("HTTP/"));
    let mut out = Vec::new();
    for (index, line) in expanded.iter().enumerate() {
        let next = expanded.get(index + 1);
        if !head && begins_head(line) {
            head = true;
            out.push(Token::HeadStarts);
        }
        let (line, bare) = match line.strip_suffix(" \\") {
            Some(line) => (line, true),
            None => (line.as_str(), false),
        };
        resolve(line, names, 0, &mut out)?;
        let end: &[u8] = match (bare, head) {
            (true, _) => b"",
            (false, true) => b"\r\n",
            (false, false) if next.is_none_or(|next| begins_head(next)) && !line.is_empty() => b"",
            (false, false) => b"\n",
        };
        push(&mut out, end);
        if head && line.is_empty() && !bare {
            head = false;
            out.push(Token::BodyStarts);
        }
    }
    Ok(out)
}

/// Returns true for a request or status line inside a block, which starts another message.
fn begins_head(line: &str) -> bool {
    line.ends_with(" HTTP/1.1") || line.starts_with("HTTP/1.1 ")
}

/// Returns the bytes to send.
pub fn bytes(lines: &[String], names: &Names) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for message in tokens(lines, names)?.split(|token| *token == Token::HeadStarts) {
        let start = message.iter().position(|token| *token == Token::BodyStarts).unwrap_or(message.len());
        let count = |token: &Token| if let Token::Bytes(bytes) = token { bytes.len() } else { 0 };
        let length: usize = message[start..].iter().map(count).sum();
        for token in message {
            match token {
                Token::Bytes(bytes) => out.extend_from_slice(bytes),
                Token::Hole(name) if name == "length" => out.extend_from_slice(length.to_string().as_bytes()),
                Token::Hole(name) => return Err(format!("{{{name}}} cannot be sent")),
                Token::BodyStarts | Token::HeadStarts => {}
            }
        }
    }
    Ok(out)
}

fn push(out: &mut Vec<Token>, bytes: &[u8]) {
    match out.last_mut() {
        _ if bytes.is_empty() => {}
        Some(Token::Bytes(before)) => before.extend_from_slice(bytes),
        _ => out.push(Token::Bytes(bytes.to_vec())),
    }
}

fn resolve(text: &str, names: &Names, depth: usize, out: &mut Vec<Token>) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        push(out, &rest.as_bytes()[..at]);
        rest = &rest[at..];
        rest = if rest.starts_with('\\') {
            let (byte, len) = escape(rest)?;
            push(out, &[byte]);
            &rest[len..]
        } else {
            placeholder(rest, names, depth, out)?
        };
    }
    push(out, rest.as_bytes());
    Ok(())
}

fn escape(text: &str) -> Result<(u8, usize), String> {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).map_err(|_| format!("bad escape in {text}"));
    match text.as_bytes().get(1) {
        Some(b'r') => Ok((b'\r', 2)),
        Some(b'n') => Ok((b'\n', 2)),
        Some(b't') => Ok((b'\t', 2)),
        Some(b'0') => Ok((0, 2)),
        Some(b'\\') => Ok((b'\\', 2)),
        Some(b'x') => Ok((byte(text.get(2..4).unwrap_or_default())?, 4)),
        _ => Err(format!("unknown escape (a backslash itself is \\\\) in {text}")),
    }
}

/// Parses a placeholder at the brace at the start of `text`: a lower-case word, a digit, `-` or `*` in braces. Any
/// other brace is JSON and stays unchanged.
fn placeholder<'a>(text: &'a str, names: &Names, depth: usize, out: &mut Vec<Token>) -> Result<&'a str, String> {
    let word = text[1..].find('}').map(|end| &text[1..end + 1]).filter(|word| is_word(word));
    let Some(word) = word else {
        push(out, b"{");
        return Ok(&text[1..]);
    };
    let rest = &text[word.len() + 2..];
    if depth > 8 {
        return Err(format!("{{{word}}} refers to itself"));
    }
    if let Some(text) = names.lets.get(word) {
        resolve(text, names, depth + 1, out)?;
    } else if let Some(key) = names.keys.get(word) {
        push(out, key.as_bytes());
    } else if let Some((unit, count)) = word.split_once('*') {
        let count: usize = count.parse().map_err(|_| format!("{{{word}}} has no count"))?;
        let unit = if unit == "sp" { " " } else { unit };
        push(out, unit.repeat(count).as_bytes());
    } else if ["length", "date", "n", "iso", "any", "head", "cost"].contains(&word) || word.starts_with("id") {
        out.push(Token::Hole(word.to_string()));
    } else {
        return Err(format!("{{{word}}} is not defined"));
    }
    Ok(rest)
}

fn is_word(word: &str) -> bool {
    let first = word.chars().next().is_some_and(|c| c.is_ascii_lowercase() || "[]".contains(c));
    first && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-*[]".contains(c))
}

/// State shared by the shorthands of one block.
struct Status {
    code: String,
    id: String,
}

impl Default for Status {
    fn default() -> Status {
        Status { code: "0".to_string(), id: "id".to_string() }
    }
}

fn shorthand(text: &str, status: &mut Status) -> Result<Vec<String>, String> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let words: Vec<&str> = rest.split_whitespace().collect();
    let word = |index: usize, default: &'static str| words.get(index).copied().unwrap_or(default).to_string();
    let lines: Vec<String> = match name {
        "chat" => vec![
            "POST /v1/chat/completions HTTP/1.1".into(),
            "host: gateway".into(),
            format!("authorization: Bearer {{{}}}", word(0, "key")),
            "content-type: application/json".into(),
            "content-length: {length}".into(),
        ],
        "responses" => vec![
            "POST /v1/responses HTTP/1.1".into(),
            "host: gateway".into(),
            format!("authorization: Bearer {{{}}}", word(0, "key")),
            "content-type: application/json".into(),
            "content-length: {length}".into(),
        ],
        "relay" => vec![
            format!("POST /v1/{} HTTP/1.1", word(0, "embeddings")),
            "host: gateway".into(),
            format!("authorization: Bearer {{{}}}", word(1, "key")),
            "content-type: application/json".into(),
            "content-length: {length}".into(),
        ],
        "messages" => vec![
            "POST /v1/messages HTTP/1.1".into(),
            "host: gateway".into(),
            format!("x-api-key: {{{}}}", word(0, "key")),
            "content-type: application/json".into(),
            "content-length: {length}".into(),
        ],
        "get" => vec![
            format!("GET {} HTTP/1.1", word(0, "/")),
            "host: gateway".into(),
            format!("authorization: Bearer {{{}}}", word(1, "key")),
        ],
        "up-chat" | "up-responses" | "up-relay" => vec![
            match name {
                "up-chat" => "POST /v1/chat/completions HTTP/1.1".into(),
                "up-responses" => "POST /v1/responses HTTP/1.1".into(),
                _ => format!("POST /v1/{} HTTP/1.1", word(0, "embeddings")),
            },
            "host: 10.0.0.1".into(),
            "authorization: Bearer sk-upstream-chat".into(),
            format!("user-agent: tollgate/{}", env!("CARGO_PKG_VERSION")),
            "content-type: application/json".into(),
            "accept-encoding: identity".into(),
            "content-length: {length}".into(),
        ],
        "up-messages" => vec![
            "POST /v1/messages HTTP/1.1".into(),
            "host: 10.0.0.2".into(),
            "x-api-key: sk-upstream-messages".into(),
            format!("user-agent: tollgate/{}", env!("CARGO_PKG_VERSION")),
            "content-type: application/json".into(),
            "accept-encoding: identity".into(),
            "content-length: {length}".into(),
            format!("anthropic-version: {}", word(0, "2023-06-01")),
        ],
        "ok" => upstream_head("200"),
        "status" => upstream_head(&word(0, "500")),
        "stream" => vec![
            "HTTP/1.1 200 OK".into(),
            "content-type: text/event-stream".into(),
            "transfer-encoding: chunked".into(),
        ],
        "answer" => {
            let code = word(0, "200");
            vec![format!("HTTP/1.1 {code} {}", reason(&code)), "{head}".into()]
        }
        "length" => vec!["{cost}content-length: {length}".into()],
        "limits" => limits(&words),
        "events" => {
            status.id = word(0, "id");
            let mut lines = answer_head("200", &status.id, "text/event-stream; charset=utf-8");
            lines.extend(limits(&[]));
            lines.push("transfer-encoding: chunked".into());
            lines
        }
        "error" | "error-messages" => error(name, rest, status),
        code if code.len() == 3 && code.bytes().all(|b| b.is_ascii_digit()) => {
            *status = Status { code: code.to_string(), id: word(0, "id") };
            answer_head(code, &status.id, "application/json")
        }
        other => return Err(format!("there is no shorthand @{other}")),
    };
    Ok(lines)
}

fn upstream_head(code: &str) -> Vec<String> {
    vec![format!("HTTP/1.1 {code} Words"), "content-type: application/json".into(), "content-length: {length}".into()]
}

fn answer_head(code: &str, id: &str, content_type: &str) -> Vec<String> {
    let cached: &[&str] = match content_type.starts_with("text/event-stream") {
        true => &["cache-control: no-cache", "x-accel-buffering: no"],
        false => &["cache-control: no-store"],
    };
    let mut lines = vec![
        format!("HTTP/1.1 {code} {}", reason(code)),
        "date: {date}".into(),
        format!("content-type: {content_type}"),
    ];
    lines.extend(cached.iter().map(ToString::to_string));
    lines.extend([
        format!("x-gateway-request-id: {{{id}}}"),
        format!("request-id: {{{id}}}"),
        format!("x-request-id: {{{id}}}"),
    ]);
    lines
}

fn limits(words: &[&str]) -> Vec<String> {
    vec![
        format!("x-ratelimit-remaining-requests: {}", words.first().unwrap_or(&"{n}")),
        format!("x-ratelimit-remaining-tokens: {}", words.get(1).unwrap_or(&"{n}")),
        format!("x-ratelimit-reset: {}", words.get(2).unwrap_or(&"{iso}")),
    ]
}

fn error(name: &str, rest: &str, status: &Status) -> Vec<String> {
    let (close, rest) = rest.strip_prefix("close ").map_or((false, rest), |rest| (true, rest));
    let (kind, message) = rest.split_once(' ').unwrap_or((rest, ""));
    let top = if name == "error" { "" } else { "\"type\":\"error\"," };
    let mut lines = vec!["{cost}content-length: {length}".to_string()];
    if close {
        lines.push("connection: close".to_string());
    }
    let (code, id) = (&status.code, &status.id);
    let message = message.replace('"', "\\\\\"");
    lines.push(String::new());
    lines.push(format!(
        "{{{top}\"error\":{{\"type\":\"{kind}\",\"code\":{code},\"message\":\"{message}\",\"request_id\":\"{{{id}}}\"}}}}"
    ));
    lines
}

fn reason(code: &str) -> &'static str {
    match code {
        "100" => "Continue",
        "200" => "OK",
        "400" => "Bad Request",
        "401" => "Unauthorized",
        "403" => "Forbidden",
        "404" => "Not Found",
        "405" => "Method Not Allowed",
        "408" => "Request Timeout",
        "413" => "Content Too Large",
        "414" => "URI Too Long",
        "417" => "Expectation Failed",
        "426" => "Upgrade Required",
        "429" => "Too Many Requests",
        "431" => "Request Header Fields Too Large",
        "500" => "Internal Server Error",
        "501" => "Not Implemented",
        "503" => "Service Unavailable",
        "504" => "Gateway Timeout",
        "505" => "HTTP Version Not Supported",
        _ => "Words",
    }
}
