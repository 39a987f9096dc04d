//! Holes in the template of an answer.

/// Kind of value in a hole.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum AnswerHole {
    Id,
    Model,
    Text,
    Prompt,
    Completion,
    Total,
    /// A string and a number that are only passed on.
    Word,
    Number,
}

impl AnswerHole {
    /// The holes that every answer must have, each once.
    pub(crate) const NEEDED: [AnswerHole; 5] =
        [AnswerHole::Id, AnswerHole::Model, AnswerHole::Text, AnswerHole::Prompt, AnswerHole::Completion];
}
