//! Parses enough of Rust's lexical structure to check code without its comments and literals. Byte offsets and line
//! breaks are preserved.

use std::ops::Range;

/// Returns `text` with every comment and the contents of every literal blanked.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' | b'b' | b'c' if starts_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => char_end(bytes, at),
            _ => {
                at += 1;
                continue;
            }
        };
        blank(&mut out[at..end]);
        at = end;
    }
    String::from_utf8(out).expect("only complete literals and comments are blanked")
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| from + length)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn starts_word(bytes: &[u8], at: usize) -> bool {
    at == 0 || !is_word(bytes[at - 1])
}

/// Returns the end of `r"…"`, `r#"…"#`, `br…`, `cr…`; `None` if none starts here.
fn raw_string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + usize::from(bytes[from] != b'r');
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    at += 1;
    let hashes = bytes[at..].iter().take_while(|byte| **byte == b'#').count();
    at += hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let found = bytes[at + 1..].windows(close.len()).position(|window| window == close);
    Some(found.map_or(bytes.len(), |length| at + 1 + length + close.len()))
}

/// Returns the end of a character literal; for a lifetime, the position after the quote.
fn char_end(bytes: &[u8], from: usize) -> usize {
    match bytes.get(from + 1) {
        Some(b'\\') => bytes[from + 3..].iter().position(|byte| *byte == b'\'').map_or(bytes.len(), |n| from + n + 4),
        Some(first) => {
            let width = match *first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            if bytes.get(from + 1 + width) == Some(&b'\'') { from + 2 + width } else { from + 1 }
        }
        None => bytes.len(),
    }
}

/// Returns true for a byte that can be part of a name.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the ranges of items with `#[cfg(test)]`. `code` must be without comments and literals.
pub fn test_items(code: &str) -> Vec<Range<usize>> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(at) = code[from..].find("#[cfg(test)]") {
        let start = from + at;
        from = item_end(code.as_bytes(), start + "#[cfg(test)]".len());
        found.push(start..from);
    }
    found
}

/// Returns `code` with these items blanked.
pub fn without(code: &str, items: &[Range<usize>]) -> String {
    let mut out = code.as_bytes().to_vec();
    items.iter().for_each(|item| blank(&mut out[item.clone()]));
    String::from_utf8(out).expect("complete items are blanked")
}

/// Returns the end of the item that starts at `from`: its closing brace, or its semicolon if there is no brace.
fn item_end(bytes: &[u8], from: usize) -> usize {
    let mut nesting = 0usize;
    for (at, byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => nesting += 1,
            b')' | b']' => nesting = nesting.saturating_sub(1),
            b'{' => return matching_brace(bytes, at),
            b';' if nesting == 0 => return at + 1,
            _ => {}
        }
    }
    bytes.len()
}

/// Returns the offset after the brace that closes the one at `open`.
pub fn matching_brace(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    bytes.len()
}

/// Returns every position of `word` in `code`. If `word` starts or ends with a word character, it must not continue
/// there.
pub fn find_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    let (first, last) = (word.as_bytes()[0], word.as_bytes()[word.len() - 1]);
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = *at > 0 && is_word(first) && is_word(bytes[at - 1]);
        let after = is_word(last) && bytes.get(at + word.len()).is_some_and(|byte| is_word(*byte));
        !before && !after
    })
}

/// Returns the number of the line that contains `at`, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}
