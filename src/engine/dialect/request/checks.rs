//! The visitor behind [`super::RequestScan`]: one small state, no copies.

mod parts;
mod passthrough;
mod read;

use super::super::passthrough::PassthroughFormat;
use super::super::tokens::{CountLater, MESSAGE_TOKENS};
use super::fields::{Fields, Invalid, Member, PresentMembers};
use super::members::{Class, Name};
use super::plain::PlainMessage;
use super::stored::{self, NOTHING_STORED, Stored};
use crate::base::limits::MEMBERS_MAX;
use crate::dialect::dispatch::with_format;
use crate::dialect::messages::unsigned::Unsigned;
use crate::dialect::responses::input::{Input, NO_PROMPTS, NOT_STORED};
use crate::wire::json::{Raw, Stop, Token, Visitor, eq_unescaped, has_escape, string_end, unescape};
use crate::wire::{ModelEndpoint, Operation, Passthrough, Shape, Span};
use read::Reading;
use std::num::NonZeroU64;

/// Bytes of a member that is rewritten for a provider with the client's own API: `include`, `stream_options`.
const REWRITTEN_MAX: usize = 64 * 1024;
/// Longest number in bytes that is parsed. A longer one is not a number.
const NUMBER_BYTES_MAX: usize = 1024;

const CHAT_ROLES: &str = "system, developer, user, assistant, tool";
const MESSAGES_ROLES: &str = "user, assistant, system";

/// Role of a message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum MessageRole {
    Missing,
    Wrong,
    Assistant,
    Tool,
    Another,
}

/// Kind of a message's `content`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Content {
    Missing,
    Good,
    Wrong,
}

/// The current message.
#[derive(Copy, Clone, Debug)]
struct CheckedMessage {
    role: MessageRole,
    content: Content,
    tool_call_id: bool,
    /// Member of the message that a value belongs to.
    member: MessageMember,
    block: u32,
    /// The current block has a `type`.
    typed: bool,
    stored: Stored,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum MessageMember {
    Role,
    Content,
    ToolCallId,
    Another,
}

impl MessageMember {
    /// Member of a message that a key names.
    fn of(key: &[u8]) -> MessageMember {
        match key {
            b"role" => MessageMember::Role,
            b"content" => MessageMember::Content,
            b"tool_call_id" => MessageMember::ToolCallId,
            _ if !has_escape(key) => MessageMember::Another,
            _ if eq_unescaped(key, "role") => MessageMember::Role,
            _ if eq_unescaped(key, "content") => MessageMember::Content,
            _ if eq_unescaped(key, "tool_call_id") => MessageMember::ToolCallId,
            _ => MessageMember::Another,
        }
    }
}

/// The current block of the system prompt. Of a repeated member the last one counts.
#[derive(Copy, Clone, Debug)]
struct SystemBlock {
    /// Member of the block that a value belongs to.
    member: BlockPart,
    is_text: bool,
    has_text: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum BlockPart {
    Type,
    Text,
    Another,
}

const NO_BLOCK: SystemBlock = SystemBlock { member: BlockPart::Another, is_text: false, has_text: false };

/// Kind of the items in a list of texts of a pass-through request; all items must have the same kind.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ItemKind {
    Unknown,
    Texts,
    Tokens,
    Lists,
}

/// The state of one request's checks.
#[derive(Debug)]
pub(super) struct Checks<'f> {
    endpoint: ModelEndpoint,
    fields: &'f mut Fields,
    refusal: Option<Box<Invalid>>,
    tokens: &'f mut CountLater,
    /// Bytes of unknown members, their names included.
    pub(super) unknown: u32,
    seen: u64,
    /// The current member, and the treatment of it in this format.
    key: Span,
    name: Name,
    class: Class,
    /// The last key of a member that is passed on as it is, if it names objects.
    object: Option<Span>,
    /// Start of the current top-level value, and its kind.
    value_start: u32,
    value_token: Token,
    /// Items seen in the current top-level array.
    items: u32,
    message: CheckedMessage,
    block: SystemBlock,
    unsigned: Unsigned,
    input: Input,
    reading: Reading,
    plain_max: Option<NonZeroU64>,
    has_messages: bool,
    /// The list of messages is empty.
    has_no_items: bool,
    /// State of a pass-through request: the required members seen, as bits, and the kind of the current list.
    found: u8,
    texts: ItemKind,
    /// The last member of the current part is an image.
    in_image: bool,
    /// Tokens of a query that is read with each document, or of a suffix that is read with each prompt.
    query: u32,
}

const NO_MESSAGE: CheckedMessage = CheckedMessage {
    role: MessageRole::Missing,
    content: Content::Missing,
    tool_call_id: false,
    member: MessageMember::Another,
    block: 0,
    typed: false,
    stored: NOTHING_STORED,
};

const _: () = assert!((Name::TopK as u32) < 64, "one bit in `seen` for each that is read: those before it");

impl<'f> Checks<'f> {
    #[inline]
    pub(super) fn new(endpoint: ModelEndpoint, fields: &'f mut Fields, tokens: &'f mut CountLater) -> Checks<'f> {
        Checks {
            endpoint,
            fields,
            refusal: None,
            tokens,
            unknown: 0,
            seen: 0,
            key: Span::default(),
            name: Name::Other,
            class: Class::Unknown,
            object: None,
            value_start: 0,
            value_token: Token::Null,
            items: 0,
            message: NO_MESSAGE,
            block: NO_BLOCK,
            unsigned: Unsigned::default(),
            input: Input::default(),
            reading: Reading::default(),
            plain_max: None,
            has_messages: false,
            has_no_items: false,
            found: 0,
            texts: ItemKind::Unknown,
            in_image: false,
            query: 0,
        }
    }

    #[cold]
    fn note(&mut self, words: String) -> Stop {
        self.refusal = Some(Box::new(Invalid(words)));
        Stop
    }

    pub(super) fn refusal(&mut self) -> Invalid {
        self.refusal.take().map_or_else(|| Invalid(String::new()), |refusal| *refusal)
    }

    /// Checks that required members are present.
    pub(super) fn finish(&mut self) -> Result<(), Invalid> {
        if let Some(passthrough) = self.endpoint.as_passthrough() {
            return self.finish_passthrough(passthrough);
        }
        let present = PresentMembers {
            conversation: self.has_messages,
            is_empty: self.has_no_items,
            max_tokens: self.plain_max.is_some() || self.endpoint.operation != Operation::Generate,
        };
        if let Some(why) = with_format!(self.endpoint.shape, F => F::missing(present)) {
            return Err(Invalid(why));
        }
        self.fields.max_tokens = self.fields.max_tokens.or(self.plain_max.map(NonZeroU64::get));
        Ok(())
    }

    /// True if the body is a chat request without messages, but with `input`.
    #[cold]
    pub(super) fn has_input(&self, body: &[u8]) -> bool {
        let is_input = |member: &Member| member.name == Name::Input && !Raw::new(member.value.of(body)).is_null();
        self.endpoint == ModelEndpoint::CHAT && !self.has_messages && self.fields.members.iter().any(is_input)
    }

    fn refuse(&mut self, path: std::fmt::Arguments<'_>, expected: &str) -> Result<(), Stop> {
        Err(self.note(format!("{path}: expected {expected}")))
    }

    /// Begins a member of the top-level object.
    fn begin_member(&mut self, buf: &[u8], key: Span) -> Result<(), Stop> {
        self.key = key;
        self.name = Name::of(key.of(buf));
        self.class = self.name.class(self.endpoint);
        self.items = 0;
        self.object = Some(key).filter(|_| self.class == Class::Unknown && stored::names_object(key.of(buf), b""));
        if self.fields.members.len() >= MEMBERS_MAX {
            return Err(self.note(format!("the body: expected at most {MEMBERS_MAX} members")));
        }
        if self.name.is_single(self.class, self.endpoint) {
            let bit = 1u64 << self.name as u32;
            if self.seen & bit != 0 {
                let mut name = Vec::new();
                unescape(key.of(buf), &mut name);
                return self.refuse(format_args!("{}", String::from_utf8_lossy(&name)), "it only once");
            }
            self.seen |= bit;
        }
        Ok(())
    }

    /// Ends a value of the top-level object.
    fn end_member(&mut self, buf: &[u8], token: Token, value: Span) -> Result<(), Stop> {
        let (key, name) = (self.key, self.name);
        self.end_list(token);
        self.fields.members.push(Member { key, value, name });
        let raw = Raw::new(value.of(buf));
        self.fields.has_odd |= name.is_odd(self.class);
        if self.class == Class::Specified {
            return match self.endpoint.operation {
                _ if token == Token::Null => Ok(()),
                Operation::Passthrough(passthrough) if !matches!(self.name, Name::Model | Name::Stream) => {
                    self.end_needed(passthrough, token, raw)
                }
                _ => self.specified(token, raw, value),
            };
        }
        if self.class == Class::Unknown {
            self.unknown += value.end - key.start;
            self.fields.may_cost_more |= token != Token::Null;
            self.inside_beside(buf, token, value);
        }
        match self.name {
            // This field is rewritten for a provider of the same format.
            Name::StreamOptions | Name::Include if raw.bytes().len() > REWRITTEN_MAX => {
                return self.refuse(format_args!("{}", name.text()), &format!("at most {REWRITTEN_MAX} bytes"));
            }
            Name::StreamOptions if self.endpoint.shape == Shape::Chat => {
                self.fields.include_usage = raw.get("include_usage").and_then(Raw::bool).unwrap_or(false);
            }
            Name::MaxCompletionTokens if self.endpoint == ModelEndpoint::CHAT => {
                self.fields.max_tokens = whole_number(raw)
            }
            Name::MaxTokens | Name::MaxCompletionTokens | Name::N | Name::BestOf | Name::Suffix
                if self.endpoint.is_passthrough() =>
            {
                let passthrough = self.endpoint.as_passthrough();
                if let Some(passthrough) = passthrough {
                    self.beside_needed(passthrough, raw)?;
                }
            }
            Name::Audio if self.endpoint == ModelEndpoint::CHAT => {
                self.fields.may_cost_more |= token != Token::Null;
                self.names_voice(raw);
            }
            Name::Thread if self.endpoint.shape == Shape::Messages => self.fields.thread |= token == Token::ObjectClose,
            Name::ServiceTier | Name::Speed | Name::InferenceGeo | Name::WebSearchOptions | Name::Modalities => {
                self.fields.may_cost_more |= token != Token::Null;
            }
            Name::Prediction if self.endpoint == ModelEndpoint::CHAT => self.fields.predicts = token != Token::Null,
            _ => {}
        }
        Ok(())
    }

    fn specified(&mut self, token: Token, raw: Raw<'_>, value: Span) -> Result<(), Stop> {
        let number = match self.name {
            Name::MaxTokens | Name::MaxOutputTokens => whole_number(raw),
            _ => None,
        };
        let expected = match (self.name, token) {
            (Name::PreviousResponseId | Name::Conversation | Name::Prompt, _) => {
                let name = self.name.text();
                let advice = if self.name == Name::Prompt { NO_PROMPTS } else { NOT_STORED };
                return self.refuse(format_args!("{name}"), &format!("none: {advice}"));
            }
            (Name::Background, Token::True) => {
                return self.refuse(format_args!("background"), "false: Tollgate stores no responses");
            }
            (Name::Background, _) => return Ok(()),
            (Name::Input, Token::String) => {
                self.has_messages = true;
                return Ok(());
            }
            (Name::Input, Token::ArrayClose) if self.items > 0 => {
                self.has_messages = true;
                self.input.end(&mut self.fields.cuts);
                self.fields.adds_tools = self.input.adds_tools;
                return Ok(());
            }
            (Name::MaxOutputTokens, Token::Number) if number.is_some() => {
                self.fields.max_tokens = number;
                return Ok(());
            }
            (Name::Input, _) => "a string or an array of at least one object",
            (Name::Model, Token::String) => {
                self.fields.model = Some(Span { start: value.start + 1, end: value.end - 1 });
                return Ok(());
            }
            // Instead of messages a chat request may have `input`.
            (Name::Messages, Token::ArrayClose) if self.items > 0 || self.endpoint == ModelEndpoint::CHAT => {
                (self.has_messages, self.has_no_items) = (self.items > 0, self.items == 0);
                return Ok(());
            }
            (Name::Stream, Token::True | Token::False) => {
                self.fields.stream = token == Token::True;
                return Ok(());
            }
            (Name::MaxTokens, Token::Number) if number.is_some() => {
                self.plain_max = number.and_then(NonZeroU64::new);
                return Ok(());
            }
            (Name::Temperature, Token::Number) if in_range(raw, 2.0) => return Ok(()),
            (Name::TopP, Token::Number) if in_range(raw, 1.0) => return Ok(()),
            (Name::Tools, Token::ArrayClose) | (Name::User | Name::Instructions, Token::String) => return Ok(()),
            (Name::ToolChoice, Token::String | Token::ObjectClose) => return Ok(()),
            (Name::ResponseFormat, Token::ObjectClose) => return Ok(()),
            (Name::Stop | Name::System, Token::String | Token::ArrayClose) => return Ok(()),
            (Name::Model | Name::User | Name::Instructions, _) => "a string",
            (Name::Messages, _) => "an array of at least one message",
            (Name::Stream, _) => "true or false",
            (Name::MaxTokens | Name::MaxOutputTokens, _) => "an integer of at least 1",
            (Name::Temperature, _) => "a number from 0 to 2",
            (Name::TopP, _) => "a number from 0 to 1",
            (Name::Tools, _) => "an array of objects",
            (Name::ToolChoice, _) => "a string or an object",
            (Name::ResponseFormat, _) => "an object",
            (Name::Stop, _) => "a string or an array of strings",
            _ => "a string or an array of text blocks",
        };
        let name = self.name.text();
        self.refuse(format_args!("{name}"), expected)
    }

    /// Checks a value inside the current top-level array or object: its items and their contents.
    fn inside(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        let closes = matches!(token, Token::ObjectClose | Token::ArrayClose);
        let in_array = self.value_token == Token::ArrayOpen;
        if let Some(passthrough) = self.endpoint.as_passthrough() {
            return self.in_needed(passthrough, buf, (token, depth, span));
        }
        // Of a responses request only the input, the tools and the output format are checked inside.
        if self.endpoint.shape == Shape::Responses && !matches!(self.name, Name::Input | Name::Tools | Name::Text) {
            self.inside_beside(buf, token, span);
            return Ok(());
        }
        if depth == 2 && in_array && token != Token::Key && !closes {
            self.item(token)?;
            self.items += 1;
        }
        match self.name {
            Name::Messages if in_array => self.in_messages(buf, token, depth, span)?,
            Name::System if in_array => self.in_system(buf, token, depth, span)?,
            Name::Input if in_array && self.endpoint.shape == Shape::Responses => {
                self.in_item(token, depth);
                let index = self.items.saturating_sub(1);
                let judged = self.input.token(buf, (token, depth, span), index, self.fields);
                judged.map_err(|refusal| self.note(refusal))?;
            }
            Name::Tools if in_array => self.in_tools(buf, token, depth, span)?,
            Name::System | Name::Tools => {}
            name if name.is_read_by_model(self.endpoint.shape) => {}
            _ => {
                self.inside_beside(buf, token, span);
                return Ok(());
            }
        }
        let is_talk = matches!(self.name, Name::Messages | Name::System | Name::Input);
        self.reading.count(buf, (token, depth, span), is_talk, self.tokens);
        Ok(())
    }

    /// Checks a token of a member that is passed on as it is: it may name an object of the provider's account.
    fn inside_beside(&mut self, buf: &[u8], token: Token, span: Span) {
        let member = self.key.of(buf);
        match (token, self.object) {
            (Token::Key, _) => self.object = Some(span).filter(|key| stored::names_object(key.of(buf), member)),
            (Token::String, Some(name)) => self.names_object(buf, name),
            _ => {}
        }
    }

    #[cold]
    fn names_object(&mut self, buf: &[u8], name: Span) {
        let (is_own, member, name) = (name == self.key, self.key.of(buf), name.of(buf));
        let (of, path) = (stored::name_of(member), stored::name_of(name));
        let why = match is_own {
            true => stored::refusal(format_args!("{of}"), name),
            false => stored::refusal(format_args!("{of}.{path}"), name),
        };
        let passthrough = self.endpoint.as_passthrough().map(PassthroughFormat::of);
        let is_sent = passthrough.is_some_and(|format| self.class == Class::Specified || format.documents(member));
        let noted = match is_sent {
            true => &mut self.fields.stored,
            false if Name::leads_elsewhere(member) => return,
            false => &mut self.fields.stored_beside,
        };
        noted.get_or_insert_with(|| Box::new(why));
    }

    /// Recognises the most common message, with a role and a text only, by its bytes: applies the effects that its
    /// tokens would have and returns its end.
    fn plain_message(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        let message = PlainMessage::at(buf, at, |text| string_end(buf, text))?;
        let role = if message.is_assistants() { MessageRole::Assistant } else { MessageRole::Another };
        self.begin_message();
        self.message = CheckedMessage { role, content: Content::Good, member: MessageMember::Content, ..NO_MESSAGE };
        for span in [message.role, message.text] {
            self.tokens.text(buf, span, true);
        }
        self.fields.opening.message(self.items, message.text, message.is_users());
        self.items += 1;
        Some(message.end())
    }

    fn begin_message(&mut self) {
        self.message = NO_MESSAGE;
        self.tokens.cut();
        self.tokens.add(MESSAGE_TOKENS);
    }
}

impl Visitor for Checks<'_> {
    #[inline(always)]
    fn object(&mut self, buf: &[u8], at: usize, depth: usize) -> Option<usize> {
        if depth != 2 || self.value_token != Token::ArrayOpen {
            return None;
        }
        match self.name {
            Name::Messages => self.plain_message(buf, at),
            Name::Input if self.endpoint.shape == Shape::Responses => {
                let end = self.plain_message(buf, at)?;
                self.input.passed(Span::new(at, end), &mut self.fields.cuts);
                Some(end)
            }
            _ => None,
        }
    }

    #[inline(always)] // callers usually know the kind of token at compile time
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        let opens = matches!(token, Token::ObjectOpen | Token::ArrayOpen);
        let closes = matches!(token, Token::ObjectClose | Token::ArrayClose);
        match depth {
            0 if matches!(token, Token::ObjectOpen | Token::ObjectClose) => Ok(()),
            0 => self.refuse(format_args!("the body"), "a JSON object"),
            1 if token == Token::Key => self.begin_member(buf, span),
            1 if opens => {
                (self.value_start, self.value_token) = (span.start, token);
                Ok(())
            }
            1 if closes => self.end_member(buf, token, Span { start: self.value_start, end: span.end }),
            1 => {
                let quote = u32::from(token == Token::String);
                let is_prompt = match self.name {
                    Name::System => true,
                    Name::Input if self.endpoint.is_passthrough() => true,
                    Name::Instructions if self.endpoint.as_passthrough() == Some(Passthrough::Speech) => true,
                    Name::Input | Name::Instructions => self.endpoint.shape == Shape::Responses,
                    Name::Query | Name::Prompt | Name::Suffix => self.endpoint.is_passthrough(),
                    _ => false,
                };
                if is_prompt && token == Token::String {
                    self.tokens.text(buf, span, self.endpoint.is_passthrough());
                }
                self.end_member(buf, token, Span { start: span.start - quote, end: span.end + quote })
            }
            _ => self.inside(buf, token, depth, span),
        }
    }
}

/// A whole number of 1 or more.
#[inline]
pub(super) fn whole_number(raw: Raw<'_>) -> Option<u64> {
    short(raw).and_then(Raw::integer).filter(|count| *count >= 1)
}

/// Number of answers requested, read as leniently as some servers do, which accept `"2"` as a number. 0 if absent.
pub(super) fn answers(raw: Raw<'_>) -> u32 {
    // A number that is too long to read counts as the maximum: a server may read it.
    if raw.bytes().len() > 8 * NUMBER_BYTES_MAX {
        return u32::MAX;
    }
    let text = raw.text();
    let value = text.as_ref().map_or(raw, |text| Raw::new(text.trim().trim_start_matches('+').as_bytes()));
    let Some(number) = short(value) else { return u32::MAX };
    u32::try_from(number.integer().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// The value, if it is short enough to be a number.
fn short(raw: Raw<'_>) -> Option<Raw<'_>> {
    (raw.bytes().len() <= NUMBER_BYTES_MAX).then_some(raw)
}

/// True for a number from 0 to `most`.
fn in_range(raw: Raw<'_>, most: f64) -> bool {
    let Some(raw) = short(raw) else { return false };
    if let [b'0', b'.', digits @ ..] = raw.bytes()
        && digits.iter().all(u8::is_ascii_digit)
    {
        return true;
    }
    raw.number().is_some_and(|number| (0.0..=most).contains(&number))
}
