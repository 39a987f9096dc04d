//! The members of a pass-through request, by the table of its endpoint.

use super::super::super::passthrough::{Expected, PassthroughFormat};
use super::super::super::tokens::Estimator;
use super::super::fields::Invalid;
use super::{Checks, ItemKind, Name, answers, whole_number};
use crate::wire::json::{Raw, Stop, Token, eq_unescaped};
use crate::wire::{Passthrough, Span};
use std::num::NonZeroU64;

impl Checks<'_> {
    /// Ends a required member; `token` is its last token.
    pub(super) fn end_needed(&mut self, passthrough: Passthrough, token: Token, value: Raw<'_>) -> Result<(), Stop> {
        let needed = PassthroughFormat::of(passthrough).needed;
        let Some(at) = needed.iter().position(|(name, _)| *name == self.name) else { return Ok(()) };
        let (name, expected) = needed[at];
        let fits = match (expected, token) {
            (Expected::Text | Expected::Texts | Expected::Parts, Token::String) => true,
            (Expected::Texts | Expected::Parts | Expected::List, Token::ArrayClose) => self.items > 0,
            _ => false,
        };
        if !fits {
            return self.refuse(format_args!("{}", name.text()), expected.words());
        }
        if token == Token::ArrayClose && (expected == Expected::List || self.texts != ItemKind::Tokens) {
            self.fields.texts = self.items;
        }
        if name == Name::Query {
            self.query = token_count(value);
        }
        self.found |= 1 << at;
        Ok(())
    }

    /// Checks a value inside such a member.
    pub(super) fn in_needed(
        &mut self,
        passthrough: Passthrough,
        buf: &[u8],
        (token, depth, span): (Token, usize, Span),
    ) -> Result<(), Stop> {
        let needed = PassthroughFormat::of(passthrough).needed.iter().find(|(name, _)| *name == self.name);
        let closes = matches!(token, Token::ObjectClose | Token::ArrayClose);
        // Documents are the client's own text.
        if needed.is_none_or(|(_, expected)| *expected == Expected::Parts) {
            self.inside_beside(buf, token, span);
        }
        let (Some((_, expected)), Token::ArrayOpen) = (needed, self.value_token) else { return Ok(()) };
        if closes {
            // An empty text counts as a token, too.
            let inside = &buf[..span.end as usize - 1];
            self.tokens.add(u64::from(depth == 2 && inside.trim_ascii_end().ends_with(b"[")));
            return Ok(());
        }
        if depth == 2 {
            self.items += 1;
        }
        if *expected == Expected::Texts {
            self.one_of_texts(buf, token, depth, span)?;
        }
        match (token, depth) {
            (_, 2) => self.in_image = false,
            (Token::Key, 3) => self.in_image = *expected == Expected::Parts && eq_unescaped(span.of(buf), "image_url"),
            _ => {}
        }
        match token {
            Token::String if self.in_image && span.of(buf).starts_with(b"data:image/") => self.tokens.add(1),
            Token::String | Token::Key => self.tokens.add(tokens_of(span.of(buf))),
            // A token by its number, or a literal or bracket in a document.
            _ => self.tokens.add(u64::from(depth > 2 || token == Token::Number)),
        }
        Ok(())
    }

    fn one_of_texts(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        let index = self.items - 1;
        let is_token = token == Token::Number && span.of(buf).iter().all(u8::is_ascii_digit);
        let kind = match (depth, token) {
            (2, Token::String) => ItemKind::Texts,
            (2, Token::ArrayOpen) => ItemKind::Lists,
            (2, _) if is_token => ItemKind::Tokens,
            (3, _) if is_token => return Ok(()),
            _ => ItemKind::Unknown,
        };
        if index == 0 && depth == 2 {
            self.texts = kind;
        }
        let expected = match (depth, self.texts) {
            (2, ItemKind::Unknown) => "a string, an integer or an array of integers",
            (3, _) => "integers alone",
            _ if kind == self.texts => return Ok(()),
            (_, ItemKind::Texts) => "a string, as before it",
            (_, ItemKind::Tokens) => "an integer, as before it",
            (_, ItemKind::Lists) => "an array of integers, as before it",
            (_, ItemKind::Unknown) => "a string, an integer or an array of integers",
        };
        let name = self.name.text();
        self.refuse(format_args!("{name}[{index}]"), expected)
    }

    /// Checks that required members are present, and applies the endpoint's other rules.
    pub(super) fn finish_passthrough(&mut self, passthrough: Passthrough) -> Result<(), Invalid> {
        let format = PassthroughFormat::of(passthrough);
        for (at, (name, expected)) in format.needed.iter().enumerate() {
            if self.found & 1 << at == 0 {
                return Err(Invalid(format!("{}: required, expected {}", name.text(), expected.words())));
            }
        }
        // The query or suffix has been counted once on arrival.
        let again = u64::from(self.fields.texts.saturating_sub(1));
        self.tokens.add(again.saturating_mul(self.query.into()));
        let plain = self.plain_max.map(NonZeroU64::get);
        self.fields.max_tokens = match passthrough {
            _ if passthrough.generates() => self.fields.max_tokens.or(plain),
            // The number of tokens that audio or an image takes is not known before.
            _ if passthrough.is_media() => None,
            _ => Some(0),
        };
        Ok(())
    }

    /// Reads a member that matters for some pass-through requests. Only a number of images is refused.
    pub(super) fn beside_needed(&mut self, passthrough: Passthrough, value: Raw<'_>) -> Result<(), Stop> {
        match self.name {
            Name::MaxTokens => {
                self.plain_max = whole_number(value).and_then(NonZeroU64::new);
                // A prompt that is only repeated.
                if whole_number(value) == Some(0) {
                    self.fields.max_tokens = self.fields.max_tokens.or(Some(0));
                }
            }
            Name::MaxCompletionTokens => self.fields.max_tokens = whole_number(value),
            Name::BestOf => self.fields.generated_per_text = answers(value),
            Name::Suffix => self.query = token_count(value),
            // A provider may read a number where Tollgate reads none.
            _ if passthrough.makes_images() && answers(value) == 0 && !value.is_null() => {
                return self.refuse(format_args!("n"), "an integer of at least 1");
            }
            _ => self.fields.answers_per_text = answers(value),
        }
        Ok(())
    }
}

/// Tokens of a value that is a single text; 0 for any other.
fn token_count(value: Raw<'_>) -> u32 {
    value.string().map_or(0, |text| u32::try_from(tokens_of(text)).unwrap_or(u32::MAX))
}

/// Tokens of one text among others: at least one.
fn tokens_of(text: &[u8]) -> u64 {
    let mut counted = Estimator::new();
    counted.feed_json(text);
    counted.tokens().max(1)
}
