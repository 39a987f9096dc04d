//! Checks the items of a responses request's `input`, and its tools, while they arrive.
//!
//! Owns what an item must have, and which items are left out on a same-shape route: reasoning that this gateway carries
//! for targets of another shape. Responses are not stored here, so a reference to a stored one is refused, with
//! a message that says what to send instead; a reference to an object at the provider is noted.

use super::fields::Fields;
use super::leave::Leave;
use super::stored::{is_id, name_of};
use crate::dialect::carrier;
use crate::wire::Span;
use crate::wire::json::{Token, eq_unescaped};
use std::fmt::Display;

/// Why nothing can be asked for that was stored.
pub(super) const NOT_STORED: &str = "responses are not stored here; send the whole conversation in input";
const ROLES: &str = "one of user, assistant, system, developer";

/// Type of an item, as far as it matters here.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// No type yet.
    #[default]
    Untold,
    /// The type is not a string.
    Wrong,
    Message,
    /// A call, which needs an id and a name.
    Call,
    Reasoning,
    Reference,
    Another,
}

impl Kind {
    fn of(raw: &[u8]) -> Kind {
        let known = [
            ("message", Kind::Message),
            ("function_call", Kind::Call),
            ("custom_tool_call", Kind::Call),
            ("reasoning", Kind::Reasoning),
            ("item_reference", Kind::Reference),
        ];
        known.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(Kind::Another, |(_, kind)| *kind)
    }
}

/// Member of an item, or of a part, that a value belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Member {
    Type,
    Role,
    Content,
    Output,
    CallId,
    Name,
    Id,
    Encrypted,
    /// The id of an object at the provider.
    Stored,
    Tools,
    /// Text that a model has written.
    Arguments,
    Annotations,
    #[default]
    Another,
}

impl Member {
    fn of(raw: &[u8]) -> Member {
        let known = [
            ("type", Member::Type),
            ("role", Member::Role),
            ("content", Member::Content),
            ("output", Member::Output),
            ("call_id", Member::CallId),
            ("name", Member::Name),
            ("id", Member::Id),
            ("encrypted_content", Member::Encrypted),
            ("file_id", Member::Stored),
            ("container_id", Member::Stored),
            ("tools", Member::Tools),
            ("arguments", Member::Arguments),
            ("annotations", Member::Annotations),
        ];
        known.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(Member::Another, |(_, member)| *member)
    }
}

/// The item under way.
#[derive(Copy, Clone, Debug, Default)]
struct Item {
    kind: Kind,
    /// `true` if it has a valid role, `false` if an invalid one.
    role: Option<bool>,
    assistant: bool,
    content: Option<bool>,
    call_id: bool,
    name: bool,
    id: bool,
    ours: bool,
    member: Member,
    /// Name of the list, and of the last key.
    list: Span,
    key: Span,
    /// Next member of the part, and the index of the part.
    inner: Member,
    part: u32,
    /// True if something inside a part has the name of an object's id.
    is_stored: bool,
}

/// The items so far.
#[derive(Debug, Default)]
pub(super) struct Input {
    item: Item,
    leave: Leave,
    /// An item has a list of tools.
    pub(super) adds_tools: bool,
}

fn expected<T>(path: impl Display, what: impl Display) -> Result<T, String> {
    Err(format!("{path}: expected {what}"))
}

impl Input {
    /// Checks a token inside the array. `index`: the item under way.
    pub(super) fn token(
        &mut self,
        buf: &[u8],
        (token, depth, span): (Token, usize, Span),
        index: u32,
        fields: &mut Fields,
    ) -> Result<(), String> {
        if token == Token::Key {
            self.item.key = span;
        }
        match (depth, token) {
            (2, Token::ObjectOpen) => {
                self.item = Item::default();
                self.leave.open(span.start);
            }
            (2, Token::ObjectClose) => {
                self.judge(index)?;
                let leaves = self.item.kind == Kind::Reasoning && self.item.ours;
                self.leave.close(span.end, leaves, &mut fields.cuts);
            }
            (3, Token::Key) => {
                (self.item.member, self.item.list, self.item.part) = (Member::of(span.of(buf)), span, 0);
            }
            (3, Token::String) if self.item.member == Member::Stored => {
                let key = name_of(self.item.key.of(buf));
                fields.names_stored(format_args!("input[{index}].{key}"), &key);
            }
            (3, Token::ArrayOpen) if self.item.member == Member::Tools => self.adds_tools = true,
            (3, Token::ObjectClose | Token::ArrayClose) => {}
            (3, _) => self.value(buf, token, span),
            (4, Token::ObjectOpen) => self.item.inner = Member::Another,
            (4, Token::ObjectClose) => self.item.part += 1,
            (4, Token::Key) => self.item.inner = Member::of(span.of(buf)),
            (4, Token::String) if self.names_stored(self.item.inner == Member::Stored) => {
                let (name, key) = (name_of(self.item.list.of(buf)), name_of(self.item.key.of(buf)));
                fields.names_stored(format_args!("input[{index}].{name}.{key}"), &key);
            }
            (4, _) if self.item.member == Member::Content && self.item.content == Some(true) => {
                return expected(format_args!("input[{index}].content[{}]", self.item.part), "an object");
            }
            (5, Token::Key) => self.item.inner = Member::of(span.of(buf)),
            (5, Token::String) if self.names_stored(self.item.inner == Member::Stored) => {
                self.stored_in_part(buf, index, fields);
            }
            (6.., Token::Key) => self.item.is_stored = is_id(span.of(buf)),
            (6.., Token::String)
                if self.names_stored(self.item.is_stored && self.item.inner != Member::Annotations) =>
            {
                self.stored_in_part(buf, index, fields);
            }
            _ => {}
        }
        Ok(())
    }

    /// True if a string names an object, if its key says so: what an answer has cited is no more than said again, and
    /// definitions of tools name none.
    fn names_stored(&self, key: bool) -> bool {
        key && !matches!(self.item.member, Member::Tools | Member::Arguments)
    }

    fn stored_in_part(&self, buf: &[u8], index: u32, fields: &mut Fields) {
        let (list, part) = (name_of(self.item.list.of(buf)), self.item.part);
        let key = name_of(self.item.key.of(buf));
        fields.names_stored(format_args!("input[{index}].{list}[{part}].{key}"), &key);
    }

    /// The array is complete.
    pub(super) fn end(&mut self, cuts: &mut Vec<Span>) {
        self.leave.close_list(cuts);
    }

    /// An item that was taken whole has gone by.
    #[inline]
    pub(super) fn passed(&mut self, start: u32, end: u32, cuts: &mut Vec<Span>) {
        self.leave.open(start);
        self.leave.close(end, false, cuts);
    }

    fn value(&mut self, buf: &[u8], token: Token, span: Span) {
        let (item, string) = (&mut self.item, token == Token::String);
        match item.member {
            Member::Type if string => item.kind = Kind::of(span.of(buf)),
            Member::Type => item.kind = if token == Token::Null { Kind::Untold } else { Kind::Wrong },
            Member::Role => {
                let is = |role: &str| string && eq_unescaped(span.of(buf), role);
                let others = ["user", "system", "developer"];
                item.assistant = is("assistant");
                item.role = (token != Token::Null).then_some(item.assistant || others.into_iter().any(is));
            }
            Member::Content => {
                item.content = (token != Token::Null).then_some(matches!(token, Token::String | Token::ArrayOpen));
            }
            Member::CallId => item.call_id = string,
            Member::Name => item.name = string,
            Member::Id => item.id = string,
            Member::Encrypted => item.ours = string && carrier::is_ours(span.of(buf)),
            Member::Output | Member::Stored | Member::Tools | Member::Arguments => {}
            Member::Annotations | Member::Another => {}
        }
    }

    /// The item is complete: whether it is what it says.
    fn judge(&self, index: u32) -> Result<(), String> {
        let item = &self.item;
        match item.kind {
            Kind::Wrong => expected(format_args!("input[{index}].type"), "a string"),
            Kind::Reference => stored(index),
            Kind::Untold if item.role.is_none() && item.content.is_none() && item.id => stored(index),
            Kind::Untold | Kind::Message => match (item.role, item.content) {
                (None | Some(false), _) => expected(format_args!("input[{index}].role"), ROLES),
                (_, Some(true)) => Ok(()),
                (_, None) if item.assistant => Ok(()),
                _ => expected(format_args!("input[{index}].content"), "a string or an array of objects"),
            },
            Kind::Call if !item.call_id => expected(format_args!("input[{index}].call_id"), "a string"),
            Kind::Call if !item.name => expected(format_args!("input[{index}].name"), "a string"),
            Kind::Call | Kind::Reasoning | Kind::Another => Ok(()),
        }
    }
}

fn stored(index: u32) -> Result<(), String> {
    let what = format!("the item itself, not a reference: {NOT_STORED}; AI SDK: set store to false");
    expected(format_args!("input[{index}]"), what)
}
