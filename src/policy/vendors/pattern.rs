//! Patterns of names in the table of vendors: `*` is any text, `[a-z0]` one character of a set; case is ignored.

/// A pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern(String);

impl Pattern {
    /// Returns the pattern that is written so. `None` if it is empty, or if a set has no end or no characters.
    pub fn parse(text: &str) -> Option<Pattern> {
        let mut rest = text;
        while let Some((_, set)) = rest.split_once('[') {
            rest = set.split_once(']').filter(|(inside, _)| !inside.is_empty())?.1;
        }
        (!text.is_empty()).then(|| Pattern(text.to_ascii_lowercase()))
    }

    /// Returns the pattern in lower case.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// True if `name` fits.
    pub fn fits(&self, name: &str) -> bool {
        fits(self.0.as_bytes(), name.to_ascii_lowercase().as_bytes())
    }
}

/// True if the whole `text` fits. After a mismatch it continues behind the last `*`, which then stands for one byte
/// more: that is all that can help, since a later `*` stands for any text, too.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        match step(&pattern[at..], text[read]) {
            Compared::Any => {
                at += 1;
                star = Some((at, read));
            }
            Compared::One(length) => (at, read) = (at + length, read + 1),
            Compared::Wrong => {
                let Some((behind, from)) = &mut star else { return false };
                *from += 1;
                (at, read) = (*behind, *from);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Comparison of a byte with the next part of a pattern.
enum Compared {
    /// `*`.
    Any,
    /// The byte fits a part of so many bytes.
    One(usize),
    Wrong,
}

fn step(pattern: &[u8], byte: u8) -> Compared {
    let (fits, length) = match pattern {
        [b'*', ..] => return Compared::Any,
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| *byte == b']').unwrap_or(rest.len());
            (is_in(&rest[..end], byte), end + 2)
        }
        [one, ..] => (*one == byte, 1),
        [] => (false, 0),
    };
    if fits { Compared::One(length) } else { Compared::Wrong }
}

/// True if a set has this byte: itself, or within a range.
fn is_in(mut set: &[u8], byte: u8) -> bool {
    loop {
        match set {
            [from, b'-', to, rest @ ..] => {
                if (*from..=*to).contains(&byte) {
                    return true;
                }
                set = rest;
            }
            [one, rest @ ..] => {
                if *one == byte {
                    return true;
                }
                set = rest;
            }
            [] => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns() {
        for (pattern, name, want) in [
            ("gpt-5*", "GPT-5.4-mini", true),
            ("gpt-5*", "my-gpt-5", false),
            ("*mistral*", "org/Mistral-7B", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "abab", true),
            ("*a*b", "aba", false),
            ("*claude-opus-4[-.][789]*", "anthropic/claude-opus-4.7", true),
            ("*claude-opus-4[-.][789]*", "claude-opus-4-6", false),
            ("gpt-5.[0-9]-chat*", "gpt-5.2-chat-latest", true),
            ("gpt-5.[0-9]-chat*", "gpt-5.-chat", false),
            ("[-a]b", "-b", true),
            ("*", "", true),
            ("a", "", false),
            ("a*", "a", true),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().fits(name), want, "{pattern} {name}");
        }
        for wrong in ["", "a[", "a[]", "[a-z"] {
            assert_eq!(Pattern::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_takes_no_time() {
        let pattern = Pattern::parse(&"*a".repeat(60)).unwrap();
        assert!(!pattern.fits(&("a".repeat(4000) + "b")));
    }
}
