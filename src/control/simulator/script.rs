//! Contents of an answer, token by token, never written out in full: a text of a million tokens takes no memory. Pure;
//! made by `provider::ask`, walked by `provider::answer`.

use std::borrow::Cow;

/// Characters of a tool call's arguments, or of a JSON text, that make one token.
pub const PIECE_CHARS: usize = 6;

/// Words of a text. The first twelve, the usual length of an answer, make one sentence; the others make the next.
const WORDS: [&str; 16] = [
    "This",
    "answer",
    "was",
    "made",
    "by",
    "the",
    "simulated",
    "provider",
    "behind",
    "your",
    "own",
    "gateway.",
    "It",
    "knows",
    "nothing",
    "else.",
];

/// A text, cut into its tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Text {
    /// The given number of words of a fixed text that repeats.
    Words(u64),
    /// Given pieces.
    Pieces(Vec<String>),
    /// A single token of the given number of letters `x`.
    Big(usize),
}

impl Text {
    /// Cuts before every white space that follows a word, so that the joined pieces equal the text.
    pub fn words_of(text: &str) -> Text {
        let mut pieces: Vec<String> = Vec::new();
        let mut blank = true;
        for character in text.chars() {
            match pieces.last_mut() {
                Some(piece) if blank || !character.is_whitespace() => piece.push(character),
                _ => pieces.push(character.to_string()),
            }
            blank = character.is_whitespace();
        }
        Text::Pieces(pieces)
    }

    /// Returns the text before the first of `stops` that occurs in it, and that stop sequence.
    pub fn until(&self, stops: &[String]) -> Option<(Text, String)> {
        if stops.is_empty() || matches!(self, Text::Big(_)) {
            return None;
        }
        let whole: String = (0..self.len()).map(|at| self.piece(at)).collect();
        let found = stops.iter().filter_map(|stop| Some((whole.find(stop.as_str())?, stop)));
        let (end, stop) = found.min()?;
        let (mut pieces, mut left) = (Vec::new(), end);
        for at in 0..self.len() {
            let piece = self.piece(at);
            let take = piece.len().min(left);
            if take > 0 {
                pieces.push(piece[..take].to_owned());
            }
            left -= take;
        }
        Some((Text::Pieces(pieces), stop.clone()))
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        match self {
            Text::Words(count) => *count,
            Text::Pieces(pieces) => pieces.len() as u64,
            Text::Big(_) => 1,
        }
    }

    /// True for a text of no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns token number `at`.
    pub fn piece(&self, at: u64) -> Cow<'_, str> {
        match self {
            Text::Words(_) if at == 0 => WORDS[0].into(),
            Text::Words(_) => format!(" {}", WORDS[(at % WORDS.len() as u64) as usize]).into(),
            Text::Pieces(pieces) => pieces.get(at as usize).map(String::as_str).unwrap_or_default().into(),
            Text::Big(letters) => "x".repeat(*letters).into(),
        }
    }
}

/// Returns the text in pieces of [`PIECE_CHARS`] characters.
pub fn pieces_of(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect()
}

/// A tool call. Its name is its first token, the pieces of its arguments are the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The tool's name.
    pub name: String,
    /// Arguments, a JSON object, in tokens.
    pub args: Vec<String>,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScriptPart {
    /// Reasoning. If there is any, it is the first part.
    Think(Text),
    /// Text.
    Text(Text),
    /// A tool call.
    Call(Call),
}

/// A token of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScriptToken {
    /// A piece of reasoning.
    Thought(String),
    /// A piece of text.
    Word(String),
    /// A tool's name, which begins a call.
    Name(String),
    /// A piece of a call's arguments.
    Args(String),
}

impl ScriptPart {
    /// Returns token number `at`.
    pub fn token(&self, at: u64) -> ScriptToken {
        match self {
            ScriptPart::Think(text) => ScriptToken::Thought(text.piece(at).into_owned()),
            ScriptPart::Text(text) => ScriptToken::Word(text.piece(at).into_owned()),
            ScriptPart::Call(call) => match at.checked_sub(1) {
                None => ScriptToken::Name(call.name.clone()),
                Some(at) => ScriptToken::Args(call.args.get(at as usize).cloned().unwrap_or_default()),
            },
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        match self {
            ScriptPart::Think(text) | ScriptPart::Text(text) => text.len(),
            ScriptPart::Call(call) => 1 + call.args.len() as u64,
        }
    }

    /// True for a part of no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reason for the end of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The answer is complete.
    Stop,
    /// The answer reached `max_tokens`.
    Length,
    /// The answer calls tools.
    Tools,
    /// A stop sequence occurred.
    Sequence,
    /// The answer is a refusal.
    Refusal,
}

/// A whole answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// Parts in order; none is empty.
    pub parts: Vec<ScriptPart>,
    /// Number of tokens that are sent, at most those of the parts.
    pub tokens: u64,
    /// Reason for its end.
    pub finish: Finish,
    /// Stop sequence that ends it, if any.
    pub sequence: Option<String>,
}

impl Script {
    /// Makes a script of the parts, up to `max_tokens`. `end` is the reason for the end without that limit, if it does
    /// not follow from the parts.
    pub fn new(parts: Vec<ScriptPart>, max_tokens: Option<u64>, end: Option<Finish>) -> Script {
        let parts: Vec<ScriptPart> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let all: u64 = parts.iter().map(ScriptPart::len).sum();
        let tokens = all.min(max_tokens.unwrap_or(u64::MAX));
        let calls = parts.iter().any(|part| matches!(part, ScriptPart::Call(_)));
        let finish = match (tokens < all, end, calls) {
            (true, _, _) => Finish::Length,
            (false, Some(end), _) => end,
            (false, None, true) => Finish::Tools,
            (false, None, false) => Finish::Stop,
        };
        Script { parts, tokens, finish, sequence: None }
    }

    /// Returns the parts that are sent, each with its number of tokens.
    pub fn given(&self) -> impl Iterator<Item = (&ScriptPart, u64)> {
        let mut left = self.tokens;
        self.parts.iter().map_while(move |part| {
            let count = part.len().min(left);
            left -= count;
            (count > 0).then_some((part, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_text_join_to_the_text() {
        for text in ["", "a", "one two  three\nfour ", " lead", "größe ünï 東京 x"] {
            let cut = Text::words_of(text);
            let joined: String = (0..cut.len()).map(|at| cut.piece(at).into_owned()).collect();
            assert_eq!(joined, text);
        }
        assert_eq!(Text::words_of("one two three").len(), 3);
    }

    #[test]
    fn a_stop_sequence_ends_a_text_before_it() {
        let text = Text::Words(6);
        let stops = ["the".to_owned(), "s ma".to_owned()];
        let (cut, stop) = text.until(&stops).unwrap();
        assert_eq!((cut, stop.as_str()), (Text::Pieces(vec!["This".into(), " answer".into(), " wa".into()]), "s ma"));
        assert_eq!(text.until(&["gateway".to_owned()]), None);
        assert_eq!(text.until(&["This".to_owned()]).unwrap().0, Text::Pieces(Vec::new()));
    }

    #[test]
    fn a_limit_ends_an_answer_early_and_says_so() {
        let parts = vec![
            ScriptPart::Text(Text::Words(3)),
            ScriptPart::Call(Call { name: "f".into(), args: pieces_of("{\"a\":1}") }),
        ];
        let script = Script::new(parts.clone(), None, None);
        assert_eq!((script.tokens, script.finish), (6, Finish::Tools));
        let script = Script::new(parts, Some(4), Some(Finish::Refusal));
        assert_eq!((script.tokens, script.finish), (4, Finish::Length));
        assert_eq!(script.given().map(|(_, count)| count).collect::<Vec<_>>(), [3, 1]);
    }
}
