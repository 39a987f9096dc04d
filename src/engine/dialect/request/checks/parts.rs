//! Checks the contents of a request's messages, system prompt and tools.

use super::super::stored::NOTHING_STORED;
use super::{
    BlockPart, CHAT_ROLES, CheckedMessage, Checks, Content, MESSAGES_ROLES, MessageMember, MessageRole, NO_BLOCK, Name,
};
use crate::wire::json::{Raw, Stop, Token, eq_unescaped};
use crate::wire::{Shape, Span};

impl Checks<'_> {
    /// Checks an item of a top-level array.
    pub(super) fn item(&mut self, token: Token) -> Result<(), Stop> {
        let index = self.items;
        let is_object = token == Token::ObjectOpen;
        match self.name {
            Name::Messages if !is_object => self.refuse(format_args!("messages[{index}]"), "an object"),
            Name::Messages => {
                self.begin_message();
                Ok(())
            }
            Name::Tools if !is_object && self.endpoint.shape != Shape::Messages => {
                self.refuse(format_args!("tools[{index}]"), "an object")
            }
            Name::Input if self.endpoint.shape != Shape::Responses => Ok(()),
            Name::Input if !is_object => self.refuse(format_args!("input[{index}]"), "an object"),
            Name::Input => {
                self.begin_message();
                Ok(())
            }
            Name::System if !is_object && self.endpoint.shape == Shape::Messages => {
                self.refuse(format_args!("system[{index}]"), "a text block")
            }
            Name::Stop if token != Token::String && self.endpoint.shape == Shape::Chat => {
                self.refuse(format_args!("stop[{index}]"), "a string")
            }
            _ => Ok(()),
        }
    }

    /// Ends a top-level value: counts the items of a list.
    #[inline]
    pub(super) fn end_list(&mut self, token: Token) {
        if token == Token::ArrayClose {
            self.count_items();
        }
    }

    fn count_items(&mut self) {
        match self.name {
            Name::Messages | Name::Input | Name::System => self.fields.messages += self.items,
            Name::Tools => self.fields.inner.add(0, self.items),
            _ => {}
        }
    }

    /// Begins an object in an item of the input, or in a tool: a part, a call, a result, or a tool of a namespace.
    pub(super) fn in_item(&mut self, token: Token, depth: usize) {
        if token == Token::ObjectOpen && matches!(depth, 4 | 6) {
            match self.name {
                Name::Tools => self.fields.inner.add(0, 1),
                _ => self.fields.inner.add(1, 0),
            }
        }
    }

    /// Checks a tool: it may have a type, and in a responses request it must. A tool whose type is not the client's own
    /// may run at the provider.
    pub(super) fn in_tools(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        match (depth, token) {
            (2, Token::ObjectOpen) => (self.block, self.message.stored) = (NO_BLOCK, NOTHING_STORED),
            (2, Token::ObjectClose) if !self.block.has_text => {
                if self.endpoint.shape == Shape::Responses {
                    return self.refuse(format_args!("tools[{}].type", self.items - 1), "a string");
                }
                // In the messages format it is a tool of the client.
                self.fields.may_cost_more |= self.endpoint.shape == Shape::Chat;
            }
            (_, Token::Key) => {
                // In a responses request, only tools that name no stored object are sent.
                if self.endpoint.shape != Shape::Responses {
                    self.message.stored.tool_key(buf, depth, span);
                }
                if depth == 3 {
                    self.block.is_text = eq_unescaped(span.of(buf), "type");
                }
            }
            (_, Token::String) if self.message.stored.is_named() => self.stored_in_tool(buf),
            (3, _) if self.block.is_text => {
                self.block.has_text = token == Token::String;
                if span.of(buf) != b"function" {
                    self.other_tool(span.of(buf));
                }
            }
            (4.., _) if self.endpoint.shape == Shape::Responses => self.in_item(token, depth),
            _ => {}
        }
        Ok(())
    }

    /// Notes a tool of another type than `function`. Both that and `custom` always run at the client, in any format and
    /// with any other members.
    #[cold]
    fn other_tool(&mut self, kind: &[u8]) {
        match kind {
            // The rewriter moves its members to the place where the target expects them.
            b"custom" if self.endpoint.shape == Shape::Chat => {
                (self.fields.has_custom, self.fields.has_odd) = (true, true);
            }
            b"custom" => {}
            _ => self.fields.may_cost_more = true,
        }
        if self.endpoint.shape == Shape::Messages && self.block.has_text && eq_unescaped(kind, "mcp_toolset") {
            // A toolset of an MCP server that is configured in the provider's account.
            self.fields.names_stored(format_args!("tools[{}].type", self.items - 1), "mcp_toolset");
        }
    }

    /// Notes a string inside a tool that names an object of the provider's account.
    #[cold]
    fn stored_in_tool(&mut self, buf: &[u8]) {
        let (index, stored) = (self.items - 1, self.message.stored);
        let (member, name) = (stored.member(buf), stored.name(buf));
        match stored.is_member() {
            true => self.fields.names_stored(format_args!("tools[{index}].{name}"), &name),
            false => self.fields.names_stored(format_args!("tools[{index}].{member}.{name}"), &name),
        }
    }

    /// Notes a voice of the provider's account. A voice is named by a word, or by such an object's id.
    #[cold]
    pub(super) fn names_voice(&mut self, audio: Raw<'_>) {
        if audio.get("voice").and_then(|voice| voice.get("id")).is_some_and(|id| id.string().is_some()) {
            self.fields.names_stored(format_args!("audio.voice.id"), "id");
        }
    }

    /// Notes a string inside a message that names an object of the provider's account.
    #[cold]
    fn stored_in_message(&mut self, buf: &[u8], depth: usize) {
        let CheckedMessage { stored, block, member, .. } = self.message;
        let (index, inner, name) = (self.items - 1, stored.member(buf), stored.name(buf));
        match (member, depth) {
            (MessageMember::Content, 5) => {
                self.fields.names_stored(format_args!("messages[{index}].content[{block}].{name}"), &name)
            }
            (MessageMember::Content, 6..) => {
                let path = format_args!("messages[{index}].content[{block}].{inner}.{name}");
                self.fields.names_stored(path, &name);
            }
            _ => self.fields.names_stored(format_args!("messages[{index}].{inner}.{name}"), &name),
        }
    }

    /// Checks a block of the system prompt: its type must be `text`, and it must have a text.
    pub(super) fn in_system(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        match (depth, token) {
            (2, Token::ObjectOpen) => self.block = NO_BLOCK,
            (2, Token::ObjectClose)
                if self.endpoint.shape == Shape::Messages && !(self.block.is_text && self.block.has_text) =>
            {
                return self.refuse(format_args!("system[{}]", self.items - 1), "a text block");
            }
            (3, Token::Key) => {
                let is = |name| eq_unescaped(span.of(buf), name);
                self.block.member = if is("type") {
                    BlockPart::Type
                } else if is("text") {
                    BlockPart::Text
                } else {
                    BlockPart::Another
                };
            }
            (3, _) => match self.block.member {
                BlockPart::Type => {
                    self.block.is_text = token == Token::String && eq_unescaped(span.of(buf), "text");
                }
                BlockPart::Text => self.block.has_text = token == Token::String,
                BlockPart::Another => {}
            },
            _ => {}
        }
        Ok(())
    }

    pub(super) fn in_messages(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        let closes = matches!(token, Token::ObjectClose | Token::ArrayClose);
        match (depth, token) {
            (2, Token::ObjectClose) => return self.end_message(),
            (3, Token::Key) => {
                self.message.member = MessageMember::of(span.of(buf));
                self.message.stored.key(buf, depth, span);
            }
            (3, Token::ArrayClose)
                if self.message.member == MessageMember::Content && self.endpoint.shape == Shape::Messages =>
            {
                self.unsigned.close_list(&mut self.fields.cuts);
            }
            (3, _) if !closes => self.message_value(buf, token, span),
            (4, Token::ObjectOpen) => {
                self.fields.inner.add(1, 0);
                if self.message.member == MessageMember::Content {
                    self.message.typed = false;
                    self.unsigned.open(span.start);
                }
            }
            (4, Token::ObjectClose) if self.message.member == MessageMember::Content => {
                if self.endpoint.shape == Shape::Messages {
                    self.unsigned.close(span.end, &mut self.fields.cuts);
                }
                if self.endpoint.shape == Shape::Messages && !self.message.typed {
                    let (index, block) = (self.items - 1, self.message.block);
                    return self.refuse(format_args!("messages[{index}].content[{block}].type"), "a string");
                }
                self.message.block += 1;
            }
            (4, _) if self.message.member == MessageMember::Content && self.message.content == Content::Good => {
                let (index, block) = (self.items - 1, self.message.block);
                return self.refuse(format_args!("messages[{index}].content[{block}]"), "an object");
            }
            (5, Token::Key) if self.message.member == MessageMember::Content => {
                self.unsigned.key(span.of(buf));
                self.message.stored.key(buf, depth, span);
            }
            // Inside the result of a tool.
            (6, Token::ObjectOpen) => self.fields.inner.add(1, 0),
            // A document's source, whose title and context become blocks too, or one of its items.
            (5.., Token::ObjectOpen)
                if self.endpoint.shape == Shape::Messages && self.message.stored.is_read(depth) =>
            {
                self.fields.inner.add(2, 0);
            }
            (5, Token::String) if self.message.member == MessageMember::Content => {
                self.message.typed |= self.unsigned.string(span.of(buf));
                if self.message.stored.is_named() {
                    self.stored_in_message(buf, depth);
                }
            }
            (_, Token::Key) => self.message.stored.key(buf, depth, span),
            (_, Token::String) if self.message.stored.is_named() => self.stored_in_message(buf, depth),
            _ => {}
        }
        Ok(())
    }

    /// Begins a value that belongs to a message itself. Of a repeated member the last one counts.
    fn message_value(&mut self, buf: &[u8], token: Token, span: Span) {
        match self.message.member {
            MessageMember::Role if token == Token::String && !span.of(buf).contains(&b'\\') => {
                self.message.role = match (span.of(buf), self.endpoint.shape) {
                    (b"assistant", _) => MessageRole::Assistant,
                    (b"tool", Shape::Chat) => MessageRole::Tool,
                    (b"user" | b"system", _) | (b"function", Shape::Chat) => MessageRole::Another,
                    (b"developer", Shape::Chat) => {
                        self.fields.cuts.push(span);
                        MessageRole::Another
                    }
                    _ => MessageRole::Wrong,
                };
            }
            MessageMember::Role => {
                let is = |text: &str| token == Token::String && eq_unescaped(span.of(buf), text);
                if self.endpoint.shape == Shape::Chat && is("developer") {
                    self.fields.cuts.push(span);
                }
                let others: &[&str] = match self.endpoint.shape {
                    Shape::Chat => &["system", "developer", "user", "function"],
                    _ => &["user", "system"],
                };
                self.message.role = if is("assistant") {
                    MessageRole::Assistant
                } else if self.endpoint.shape == Shape::Chat && is("tool") {
                    MessageRole::Tool
                } else if others.iter().any(|role| is(role)) {
                    MessageRole::Another
                } else {
                    MessageRole::Wrong
                };
            }
            MessageMember::Content => {
                self.message.block = 0;
                self.unsigned = Default::default();
                self.message.content = match token {
                    Token::String | Token::ArrayOpen => Content::Good,
                    Token::Null => Content::Missing,
                    _ => Content::Wrong,
                };
            }
            MessageMember::ToolCallId => self.message.tool_call_id = token == Token::String,
            MessageMember::Another => {}
        }
    }

    fn end_message(&mut self) -> Result<(), Stop> {
        let index = self.items - 1;
        let message = self.message;
        if matches!(message.role, MessageRole::Missing | MessageRole::Wrong) {
            let roles = if self.endpoint.shape == Shape::Chat { CHAT_ROLES } else { MESSAGES_ROLES };
            return self.refuse(format_args!("messages[{index}].role"), &format!("one of {roles}"));
        }
        let may_lack = message.role == MessageRole::Assistant && self.endpoint.shape == Shape::Chat;
        if message.content == Content::Wrong || (message.content == Content::Missing && !may_lack) {
            let expected = match self.endpoint.shape {
                Shape::Chat => "a string or an array of objects",
                _ => "a string or an array of content blocks",
            };
            return self.refuse(format_args!("messages[{index}].content"), expected);
        }
        if message.role == MessageRole::Tool && !message.tool_call_id {
            return self.refuse(format_args!("messages[{index}].tool_call_id"), "a string");
        }
        Ok(())
    }
}
