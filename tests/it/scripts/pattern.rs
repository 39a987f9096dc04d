//! Compares received bytes with the pattern of a block, including placeholders.

use super::text::Token;
use std::collections::BTreeMap;

/// Request ids by placeholder.
pub type Bindings = BTreeMap<String, String>;

/// Compares the beginning of `got` with the pattern. Returns the number of matching bytes, or an error that shows the
/// first difference.
pub fn compare(tokens: &[Token], got: &[u8], bound: &mut Bindings) -> Result<usize, String> {
    let mut at = 0;
    let (mut body_at, mut length, mut id) = (None, None, String::new());
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::BodyStarts => body_at = Some(at),
            Token::HeadStarts => {
                honest(length.take(), body_at.take(), at)?;
            }
            Token::Bytes(bytes) => {
                let same = got[at..].iter().zip(bytes).take_while(|(a, b)| a == b).count();
                if same < bytes.len() {
                    return Err(parting(&bytes[same..], got, at + same));
                }
                at += bytes.len();
            }
            Token::Hole(name) => {
                let next = tokens[index + 1..].iter().find_map(|token| match token {
                    Token::Bytes(bytes) => bytes.first().copied(),
                    _ => None,
                });
                let len = hole(name, &got[at..], next);
                let text = String::from_utf8_lossy(&got[at..at + len]).into_owned();
                if len == 0 && name != "any" && name != "cost" {
                    return Err(parting(format!("{{{name}}}").as_bytes(), got, at));
                }
                if name == "length" {
                    length = text.parse::<usize>().ok();
                } else if name.starts_with("id") {
                    id.clone_from(&text);
                    bind(name, text, bound)?;
                } else if name == "cost" && len > 0 {
                    bound.insert(cost_of(&id), text);
                }
                at += len;
            }
        }
    }
    honest(length, body_at, at)?;
    Ok(at)
}

/// Checks a `content-length` against the received body.
fn honest(length: Option<usize>, body_at: Option<usize>, end: usize) -> Result<(), String> {
    match (length, body_at) {
        (Some(length), Some(body_at)) if length != end - body_at => {
            Err(format!("content-length is {length}, but {} bytes followed the head", end - body_at))
        }
        _ => Ok(()),
    }
}

/// Returns the name under which the cost of a request is kept.
pub fn cost_of(id: &str) -> String {
    format!("cost of {id}")
}

fn bind(name: &str, text: String, bound: &mut Bindings) -> Result<(), String> {
    if let Some((other, _)) = bound.iter().find(|(other, value)| *other != name && **value == text) {
        return Err(format!("{{{name}}} and {{{other}}} are both {text}"));
    }
    match bound.get(name) {
        Some(value) if *value != text => Err(format!("{{{name}}} was {value} and is now {text}")),
        _ => {
            bound.insert(name.to_string(), text);
            Ok(())
        }
    }
}

/// Returns the number of bytes that a placeholder matches; 0 if it does not match.
fn hole(name: &str, got: &[u8], next: Option<u8>) -> usize {
    let fits = |len: usize, allowed: &dyn Fn(usize, u8) -> bool| {
        let good = got.len() >= len && got[..len].iter().enumerate().all(|(at, byte)| allowed(at, *byte));
        if good { len } else { 0 }
    };
    match name {
        "n" | "length" => got.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        "cost" if got.starts_with(b"x-tollgate-cost: ") => {
            got.windows(2).position(|end| end == b"\r\n").map_or(0, |at| at + 2)
        }
        "cost" => 0,
        "any" => got.iter().take_while(|byte| **byte != b'\r' && **byte != b'\n' && Some(**byte) != next).count(),
        "head" => got.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0),
        "iso" => fits(20, &|at, byte| byte == b"0000-00-00T00:00:00Z"[at] || (byte.is_ascii_digit() && digit_at(at))),
        "date" => fits(29, &|at, byte| match b"Fri, 00 Nov 0000 00:00:00 GMT"[at] {
            b'0' => byte.is_ascii_digit(),
            b' ' | b',' | b':' => byte == b"Fri, 00 Nov 0000 00:00:00 GMT"[at],
            _ => byte.is_ascii_alphabetic(),
        }),
        _ => fits(36, &|at, byte| match at {
            0..4 => byte == b"req_"[at],
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        }),
    }
}

fn digit_at(at: usize) -> bool {
    !matches!(at, 4 | 7 | 10 | 13 | 16 | 19)
}

/// Describes where two texts differ.
fn parting(expected: &[u8], got: &[u8], at: usize) -> String {
    let from = at.saturating_sub(60);
    format!(
        "after   …{}\nexpected {}\ngot      {}",
        shown(&got[from..at]),
        shown(&expected[..expected.len().min(200)]),
        if at == got.len() { "nothing more".to_string() } else { shown(&got[at..got.len().min(at + 200)]) }
    )
}

/// Returns bytes in printable form.
pub fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'")
}
