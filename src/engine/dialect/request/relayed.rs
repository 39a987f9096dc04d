//! The members of a pass-through request, by the table of its endpoint.

use super::body::inside_of;
use super::fields::{Invalid, Member, refuse};
use super::members::Name;
use super::numbers::{answers, whole_number};
use super::reading::{Place, Reading};
use crate::dialect::chat::Chat;
use crate::dialect::format::Format as _;
use crate::dialect::passthrough::{Expected, PassthroughFormat};
use crate::dialect::tokens::Estimator;
use crate::wire::Passthrough;
use crate::wire::json::{Raw, ValueKind, eq_unescaped};

/// Kind of the items in a list of texts; all items must have the same kind.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ItemKind {
    Unknown,
    Texts,
    Tokens,
    Lists,
}

impl ItemKind {
    fn of(item: Raw<'_>) -> ItemKind {
        match item.kind() {
            ValueKind::String => ItemKind::Texts,
            ValueKind::Array => ItemKind::Lists,
            _ if is_token(item) => ItemKind::Tokens,
            _ => ItemKind::Unknown,
        }
    }
}

/// True for a token by its number.
fn is_token(item: Raw<'_>) -> bool {
    item.bytes().iter().all(u8::is_ascii_digit)
}

impl<'a> Reading<'a, '_> {
    /// Reads what is inside a member.
    pub(super) fn inside_relayed(
        &mut self,
        passthrough: Passthrough,
        member: &Member,
        value: Raw<'a>,
    ) -> Result<(), Invalid> {
        let needed = PassthroughFormat::of(passthrough).needed.iter().find(|(name, _)| *name == member.name);
        let expected = needed.map(|(_, expected)| *expected);
        // Documents are the client's own text.
        if expected.is_none_or(|expected| expected == Expected::Parts) {
            self.beside(member, value);
        }
        match (value.kind(), expected) {
            (ValueKind::String, _) if is_prompt(passthrough, member.name) => {
                self.tokens.text(self.body, inside_of(member), true);
                Ok(())
            }
            (ValueKind::Array, Some(expected)) => self.texts(member.name, expected, value),
            _ => Ok(()),
        }
    }

    /// Checks and counts the items of a required list.
    fn texts(&mut self, list: Name, expected: Expected, value: Raw<'a>) -> Result<(), Invalid> {
        let (mut count, mut all) = (0, ItemKind::Unknown);
        for (index, item) in (0..).zip(value.items()) {
            if expected == Expected::Texts {
                all = if index == 0 { ItemKind::of(item) } else { all };
                check_text(Place { list, index }, item, all)?;
            }
            // An empty text counts as a token, too.
            let is_empty = item.kind() == ValueKind::Array && item.items().next().is_none();
            self.tokens.add(u64::from(is_empty));
            self.count_text(item.bytes(), 2, expected == Expected::Parts, false);
            count = index + 1;
        }
        if expected == Expected::List || all != ItemKind::Tokens {
            self.fields.texts = count;
        }
        Ok(())
    }

    /// Counts the value at the front of `bytes`, at this depth in the body, and returns its length. `parts`: it is a
    /// part, or the item that contains it may be one. `in_image`: it is in the image of a part.
    fn count_text(&mut self, bytes: &'a [u8], depth: usize, parts: bool, in_image: bool) -> Option<usize> {
        if let Some(open @ (b'{' | b'[')) = bytes.first() {
            self.tokens.add(u64::from(depth > 2));
            return Raw::walk(bytes, &mut |key, value| {
                if *open == b'{' {
                    self.tokens.add(tokens_of(key));
                }
                let in_image = in_image || (depth == 2 && parts && eq_unescaped(key, "image_url"));
                self.count_text(value, depth + 1, parts, in_image)
            });
        }
        let scalar = Raw::front(bytes);
        self.tokens.add(match scalar.string() {
            Some(text) if in_image && text.starts_with(b"data:image/") => 1,
            Some(text) => tokens_of(text),
            // A token by its number, or a literal in a document.
            None => u64::from(depth > 2 || scalar.kind() == ValueKind::Number),
        });
        Some(scalar.bytes().len())
    }

    /// Checks a required member.
    pub(super) fn needed(&mut self, passthrough: Passthrough, name: Name, value: Raw<'a>) -> Result<(), Invalid> {
        let needed = PassthroughFormat::of(passthrough).needed;
        let Some(at) = needed.iter().position(|(known, _)| *known == name) else { return Ok(()) };
        let expected = needed[at].1;
        let fits = match (expected, value.kind()) {
            (Expected::Text | Expected::Texts | Expected::Parts, ValueKind::String) => true,
            (Expected::Texts | Expected::Parts | Expected::List, ValueKind::Array) => value.items().next().is_some(),
            _ => false,
        };
        if !fits {
            return refuse(name.text(), expected.words());
        }
        if name == Name::Query {
            self.query = token_count(value);
        }
        self.found |= 1 << at;
        Ok(())
    }

    /// Checks that required members are present, and applies the endpoint's other rules.
    pub(super) fn required_of_relayed(&mut self, passthrough: Passthrough) -> Result<(), Invalid> {
        let format = PassthroughFormat::of(passthrough);
        for (at, (name, expected)) in format.needed.iter().enumerate() {
            if self.found & 1 << at == 0 {
                return Err(Invalid(format!("{}: required, expected {}", name.text(), expected.words())));
            }
        }
        // The query or suffix has been counted once.
        let again = u64::from(self.fields.texts.saturating_sub(1));
        self.tokens.add(again.saturating_mul(self.query.into()));
        let plain = self.plain_max;
        self.fields.max_tokens = match passthrough {
            _ if passthrough.generates() => self.fields.max_tokens.or(plain),
            // The number of tokens that audio or an image takes is not known before.
            _ if passthrough.is_media() => None,
            _ => Some(0),
        };
        Ok(())
    }

    /// Reads a member that matters for some pass-through requests. Only a number of images is refused.
    pub(super) fn beside_needed(
        &mut self,
        passthrough: Passthrough,
        name: Name,
        value: Raw<'a>,
    ) -> Result<(), Invalid> {
        match name {
            Name::MaxTokens => self.plain_max = whole_number(value),
            Name::MaxCompletionTokens => self.fields.max_tokens = whole_number(value),
            Name::BestOf => self.fields.generated_per_text = answers(value),
            Name::Suffix => self.query = token_count(value),
            // A provider may read a number where Tollgate reads none.
            Name::N if passthrough.makes_images() && answers(value) == 0 && !value.is_null() => {
                return refuse("n", "an integer of at least 1");
            }
            Name::N => self.fields.answers_per_text = answers(value),
            // Completions are streamed as chat completions are.
            Name::StreamOptions => Chat::note_member(name, value, self.fields),
            _ => {}
        }
        Ok(())
    }
}

/// True if a text in this member is part of the prompt.
fn is_prompt(passthrough: Passthrough, name: Name) -> bool {
    match name {
        Name::System | Name::Input | Name::Query | Name::Prompt | Name::Suffix => true,
        Name::Instructions => passthrough == Passthrough::Speech,
        _ => false,
    }
}

/// Checks an item of a list of texts. `all`: the kind of the first one.
fn check_text(place: Place, item: Raw<'_>, all: ItemKind) -> Result<(), Invalid> {
    place.refuse(match all {
        ItemKind::Unknown => "a string, an integer or an array of integers",
        _ if ItemKind::of(item) == all => match item.items().all(is_token) {
            true => return Ok(()),
            false => "integers alone",
        },
        ItemKind::Texts => "a string, as before it",
        ItemKind::Tokens => "an integer, as before it",
        ItemKind::Lists => "an array of integers, as before it",
    })
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
