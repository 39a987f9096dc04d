//! The members of a request that is relayed, by the table of its endpoint.

use super::super::super::relay::{Expected, Relayed};
use super::super::fields::Invalid;
use super::{Checks, Items, Name};
use crate::wire::json::{Stop, Token};
use crate::wire::{Relay, Span};

impl Checks {
    /// A member that must be there has come, as `token` says.
    pub(super) fn end_needed(&mut self, relay: Relay, token: Token) -> Result<(), Stop> {
        let needed = Relayed::of(relay).needed;
        let Some(at) = needed.iter().position(|(name, _)| *name == self.name) else { return Ok(()) };
        let (name, expected) = needed[at];
        let fits = match (expected, token) {
            (Expected::Text | Expected::Texts, Token::String) => true,
            (Expected::Texts | Expected::List, Token::ArrayClose) => self.items > 0,
            _ => false,
        };
        if !fits {
            return self.refuse(format_args!("{}", name.text()), expected.words());
        }
        if expected == Expected::Texts && token == Token::ArrayClose && self.texts != Items::Tokens {
            self.fields.answers = u16::try_from(self.items).unwrap_or(u16::MAX);
        }
        self.found |= 1 << at;
        Ok(())
    }

    /// A value inside such a member.
    pub(super) fn in_needed(
        &mut self,
        relay: Relay,
        buf: &[u8],
        (token, depth, span): (Token, usize, Span),
    ) -> Result<(), Stop> {
        let needed = Relayed::of(relay).needed.iter().find(|(name, _)| *name == self.name);
        let closes = matches!(token, Token::ObjectClose | Token::ArrayClose);
        let (Some((_, expected)), Token::ArrayOpen, false) = (needed, self.value_token, closes) else {
            return Ok(());
        };
        if depth == 2 {
            self.items += 1;
        }
        if *expected == Expected::Texts {
            self.one_of_texts(buf, token, depth, span)?;
        }
        match token {
            Token::String => self.tokens.text(buf, span, true),
            // A token by its number.
            Token::Number => self.tokens.add(1),
            _ => {}
        }
        Ok(())
    }

    fn one_of_texts(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        let index = self.items - 1;
        let is_token = token == Token::Number && span.of(buf).iter().all(u8::is_ascii_digit);
        let kind = match (depth, token) {
            (2, Token::String) => Items::Texts,
            (2, Token::ArrayOpen) => Items::Lists,
            (2, _) if is_token => Items::Tokens,
            (3, _) if is_token => return Ok(()),
            _ => Items::Unknown,
        };
        if index == 0 && depth == 2 {
            self.texts = kind;
        }
        let expected = match (depth, self.texts) {
            (2, Items::Unknown) => "a string, an integer or an array of integers",
            (3, _) => "integers alone",
            _ if kind == self.texts => return Ok(()),
            (_, Items::Texts) => "a string, as before it",
            (_, Items::Tokens) => "an integer, as before it",
            (_, Items::Lists) => "an array of integers, as before it",
            (_, Items::Unknown) => "a string, an integer or an array of integers",
        };
        let name = self.name.text();
        self.refuse(format_args!("{name}[{index}]"), expected)
    }

    /// What must be there and is not; what else the endpoint means for the request.
    pub(super) fn finish_relayed(&mut self, relay: Relay) -> Result<(), Invalid> {
        let relayed = Relayed::of(relay);
        for (at, (name, expected)) in relayed.needed.iter().enumerate() {
            if self.found & 1 << at == 0 {
                return Err(Invalid(format!("{}: required, expected {}", name.text(), expected.words())));
            }
        }
        // Nothing is reserved for an answer that is no text.
        self.fields.max_tokens = if relayed.generates { self.plain_max } else { Some(0) };
        Ok(())
    }

    /// A member that is read of some relayed requests, and never refused.
    pub(super) fn beside_needed(&mut self, name: Name, count: Option<u64>) {
        match name {
            Name::MaxTokens => self.plain_max = count,
            _ => self.fields.each = count.map_or(1, |count| u16::try_from(count).unwrap_or(u16::MAX)),
        }
    }
}
