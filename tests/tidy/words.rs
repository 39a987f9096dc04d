//! Plain words: the first words of doc comments, and words that only the authors understand.

/// Words that start a relative or pronoun clause, while a doc comment should start with a noun or a verb.
const OPENERS: [&str; 20] = [
    "As", "How", "It", "Its", "Nobody", "Nothing", "Of", "One", "That", "The same", "They", "Those", "What", "When it",
    "Where", "Whether", "Which", "Who", "Whom", "Whose",
];
/// Maximum percentage of doc comments that may start with one of them.
pub const OPENERS_PERCENT_MAX: f64 = 5.0;

/// Private words, each with the term to use.
const PRIVATE: [(&str, &str); 16] = [
    ("anew", "again"),
    ("but for", "except"),
    ("gives way to", "yields to"),
    ("is told", "receives"),
    ("are told", "receive"),
    ("house rules", "project rules"),
    ("knock", "readiness event"),
    ("lies in", "is in"),
    ("mould", "template"),
    ("patience", "timeout"),
    ("rests", "cools down"),
    ("resting", "cooling down"),
    ("stands in", "is in"),
    ("whoever", "anyone"),
    ("the house", "the project"),
    ("this house", "this project"),
];
/// Returns the first line of each doc comment.
fn openings(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        let content = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let begins = content.is_some() && !inside;
        inside = content.is_some();
        content.filter(|_| begins).map(str::trim)
    })
}

/// Returns the number of doc comments, and of those that start with an opener.
pub fn openers(text: &str) -> (usize, usize) {
    let begins = |line: &str| {
        let after =
            |opener: &str| line.strip_prefix(opener).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
        OPENERS.iter().any(|opener| after(opener))
    };
    openings(text).fold((0, 0), |(all, found), line| (all + 1, found + usize::from(begins(line))))
}

/// Returns the private words in a text, each with its line and the term to use. A word in quotes is a name in the log
/// or the API, and may stay.
pub fn private(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (word, term) in PRIVATE {
            let whole = |(at, _): &(usize, &str)| {
                let around = [lower[..*at].chars().next_back(), lower[at + word.len()..].chars().next()];
                let is_name =
                    around.iter().all(|character| character.is_some_and(|character| "\"`*".contains(character)));
                !is_name && !around.into_iter().flatten().any(char::is_alphabetic)
            };
            let count = lower.match_indices(word).filter(whole).count();
            found.extend((0..count).map(|_| format!("{path}:{}: `{word}`: use \"{term}\"", number + 1)));
        }
    }
    found
}
