//! Checks the items of a responses request's `input`, and its tools, while they arrive.
//!
//! Owns the requirements of an item, and the list of items omitted on a route within one format: reasoning that
//! Tollgate carries for targets of another format. Tollgate stores no responses, so a reference to a stored one is
//! refused with a message that says what to send instead; a reference to an object at the provider is noted.

use crate::dialect::neutral::carrier;
use crate::dialect::request::fields::Fields;
use crate::dialect::request::leave::Leave;
use crate::dialect::request::stored::{is_id, name_of};
use crate::wire::Span;
use crate::wire::json::{Token, eq_unescaped};
use std::fmt::Display;

/// Refusal of a reference to a stored response.
pub const NOT_STORED: &str = "Tollgate stores no responses; send the whole conversation in input";
/// Refusal of a reference to a stored prompt.
pub const NO_PROMPTS: &str = "Tollgate stores no prompts; send the text of the prompt in input";
const ROLES: &str = "one of user, assistant, system, developer";

/// Type of an item, as far as the checks distinguish types.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum ItemType {
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

impl ItemType {
    fn of(raw: &[u8]) -> ItemType {
        let known = [
            ("message", ItemType::Message),
            ("function_call", ItemType::Call),
            ("custom_tool_call", ItemType::Call),
            ("reasoning", ItemType::Reasoning),
            ("item_reference", ItemType::Reference),
        ];
        known.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(ItemType::Another, |(_, kind)| *kind)
    }
}

/// Member of an item or a part to which a value belongs.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum ItemMember {
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
    /// Text written by a model.
    Arguments,
    Annotations,
    #[default]
    Another,
}

impl ItemMember {
    fn of(raw: &[u8]) -> ItemMember {
        let known = [
            ("type", ItemMember::Type),
            ("role", ItemMember::Role),
            ("content", ItemMember::Content),
            ("output", ItemMember::Output),
            ("call_id", ItemMember::CallId),
            ("name", ItemMember::Name),
            ("id", ItemMember::Id),
            ("encrypted_content", ItemMember::Encrypted),
            ("file_id", ItemMember::Stored),
            ("container_id", ItemMember::Stored),
            ("tools", ItemMember::Tools),
            ("arguments", ItemMember::Arguments),
            ("annotations", ItemMember::Annotations),
        ];
        known.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(ItemMember::Another, |(_, member)| *member)
    }
}

/// The current item.
#[derive(Copy, Clone, Debug, Default)]
struct Item {
    kind: ItemType,
    /// `true` if it has a valid role, `false` if an invalid one.
    role: Option<bool>,
    assistant: bool,
    content: Option<bool>,
    call_id: bool,
    name: bool,
    id: bool,
    ours: bool,
    member: ItemMember,
    /// Name of the list, and of the last key.
    list: Span,
    key: Span,
    /// Next member of the part, and the index of the part.
    inner: ItemMember,
    part: u32,
    /// True if a member inside a part is named like an object's id.
    is_stored: bool,
}

/// The items so far.
#[derive(Debug, Default)]
pub struct Input {
    item: Item,
    leave: Leave,
    /// An item has a list of tools.
    pub adds_tools: bool,
}

fn expected<T>(path: impl Display, what: impl Display) -> Result<T, String> {
    Err(format!("{path}: expected {what}"))
}

impl Input {
    /// Checks a token inside the array. `index`: the current item.
    pub fn token(
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
                let leaves = self.item.kind == ItemType::Reasoning && self.item.ours;
                self.leave.close(span.end, leaves, &mut fields.cuts);
            }
            (3, Token::Key) => {
                (self.item.member, self.item.list, self.item.part) = (ItemMember::of(span.of(buf)), span, 0);
            }
            (3, Token::String) if self.item.member == ItemMember::Stored => {
                let key = name_of(self.item.key.of(buf));
                fields.names_stored(format_args!("input[{index}].{key}"), &key);
            }
            (3, Token::ArrayOpen) if self.item.member == ItemMember::Tools => self.adds_tools = true,
            (3, Token::ObjectClose | Token::ArrayClose) => {}
            (3, _) => self.value(buf, token, span),
            (4, Token::ObjectOpen) => self.item.inner = ItemMember::Another,
            (4, Token::ObjectClose) => self.item.part += 1,
            (4, Token::Key) => self.item.inner = ItemMember::of(span.of(buf)),
            (4, Token::String) if self.names_stored(self.item.inner == ItemMember::Stored) => {
                let (name, key) = (name_of(self.item.list.of(buf)), name_of(self.item.key.of(buf)));
                fields.names_stored(format_args!("input[{index}].{name}.{key}"), &key);
            }
            (4, _) if self.item.member == ItemMember::Content && self.item.content == Some(true) => {
                return expected(format_args!("input[{index}].content[{}]", self.item.part), "an object");
            }
            (5, Token::Key) => self.item.inner = ItemMember::of(span.of(buf)),
            (5, Token::String) if self.names_stored(self.item.inner == ItemMember::Stored) => {
                self.stored_in_part(buf, index, fields);
            }
            (6.., Token::Key) => self.item.is_stored = is_id(span.of(buf)),
            (6.., Token::String)
                if self.names_stored(self.item.is_stored && self.item.inner != ItemMember::Annotations) =>
            {
                self.stored_in_part(buf, index, fields);
            }
            _ => {}
        }
        Ok(())
    }

    /// True if a string names an object, given that its key does (`key`). Citations in an answer only repeat an id, and
    /// definitions of tools name no objects.
    fn names_stored(&self, key: bool) -> bool {
        key && !matches!(self.item.member, ItemMember::Tools | ItemMember::Arguments)
    }

    fn stored_in_part(&self, buf: &[u8], index: u32, fields: &mut Fields) {
        let (list, part) = (name_of(self.item.list.of(buf)), self.item.part);
        let key = name_of(self.item.key.of(buf));
        fields.names_stored(format_args!("input[{index}].{list}[{part}].{key}"), &key);
    }

    /// Ends the array.
    pub fn end(&mut self, cuts: &mut Vec<Span>) {
        self.leave.close_list(cuts);
    }

    /// Notes an item that was recognised as a whole.
    #[inline]
    pub fn passed(&mut self, item: Span, cuts: &mut Vec<Span>) {
        self.leave.item(item, false, cuts);
    }

    fn value(&mut self, buf: &[u8], token: Token, span: Span) {
        let (item, string) = (&mut self.item, token == Token::String);
        match item.member {
            ItemMember::Type if string => item.kind = ItemType::of(span.of(buf)),
            ItemMember::Type => item.kind = if token == Token::Null { ItemType::Untold } else { ItemType::Wrong },
            ItemMember::Role => {
                let is = |role: &str| string && eq_unescaped(span.of(buf), role);
                let others = ["user", "system", "developer"];
                item.assistant = is("assistant");
                item.role = (token != Token::Null).then_some(item.assistant || others.into_iter().any(is));
            }
            ItemMember::Content => {
                item.content = (token != Token::Null).then_some(matches!(token, Token::String | Token::ArrayOpen));
            }
            ItemMember::CallId => item.call_id = string,
            ItemMember::Name => item.name = string,
            ItemMember::Id => item.id = string,
            ItemMember::Encrypted => item.ours = string && carrier::is_ours(span.of(buf)),
            ItemMember::Output | ItemMember::Stored | ItemMember::Tools | ItemMember::Arguments => {}
            ItemMember::Annotations | ItemMember::Another => {}
        }
    }

    /// Checks a complete item.
    fn judge(&self, index: u32) -> Result<(), String> {
        let item = &self.item;
        match item.kind {
            ItemType::Wrong => expected(format_args!("input[{index}].type"), "a string"),
            ItemType::Reference => stored(index),
            ItemType::Untold if item.role.is_none() && item.content.is_none() && item.id => stored(index),
            ItemType::Untold | ItemType::Message => match (item.role, item.content) {
                (None | Some(false), _) => expected(format_args!("input[{index}].role"), ROLES),
                (_, Some(true)) => Ok(()),
                (_, None) if item.assistant => Ok(()),
                _ => expected(format_args!("input[{index}].content"), "a string or an array of objects"),
            },
            ItemType::Call if !item.call_id => expected(format_args!("input[{index}].call_id"), "a string"),
            ItemType::Call if !item.name => expected(format_args!("input[{index}].name"), "a string"),
            ItemType::Call | ItemType::Reasoning | ItemType::Another => Ok(()),
        }
    }
}

fn stored(index: u32) -> Result<(), String> {
    let what = format!("the item itself, not a reference: {NOT_STORED}; AI SDK: set store to false");
    expected(format_args!("input[{index}]"), what)
}
