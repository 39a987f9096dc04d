//! Reads a complete body: its members, the items of its lists, and what the contract expects of both.
//!
//! Owns the order of the checks, the expected type of each member and the text of a refusal. Must never copy the body.
//! The `check` of each format's folder has the rules for items.

use super::fields::{Fields, Invalid, Member, PresentMembers, refuse};
use super::leave::Leave;
use super::members::{Class, Name};
use super::numbers::{short, whole_number};
use super::plain::PlainMessage;
use super::reading::{Place, Reading};
use super::stored;
use crate::base::limits::MEMBERS_MAX;
use crate::dialect::dispatch::with_format;
use crate::dialect::tokens::{CountLater, MESSAGE_TOKENS};
use crate::wire::json::{self, Raw, ScanError, Stop, Token, ValueKind, Visitor, string_end};
use crate::wire::{ModelEndpoint, Operation, Span};

/// Bytes of a member that is rewritten for a provider with the client's own API: `include`, `stream_options`.
const REWRITTEN_MAX: usize = 64 * 1024;

const _: () = assert!((Name::TopK as u32) < 64, "one bit in `seen` for each that is read: those before it");

impl<'a> Reading<'a, '_> {
    /// Reads all members of the body.
    pub(super) fn read(&mut self) -> Result<(), Invalid> {
        self.items = scan(self.body, self.list_of_conversation(), self.fields, self.tokens)?;
        let mut seen = 0u64;
        for at in 0..self.fields.members.len() {
            let member = self.fields.members[at];
            let class = member.name.class(self.endpoint);
            if member.name.is_single(class, self.endpoint) {
                let bit = 1u64 << member.name as u32;
                if seen & bit != 0 {
                    return refuse(Raw::text_of(member.key.of(self.body)), "it only once");
                }
                seen |= bit;
            }
            self.fields.has_odd |= member.name.is_odd(class);
            let value = Raw::of_value(member.value.of(self.body));
            match self.endpoint.as_passthrough() {
                Some(passthrough) => self.inside_relayed(passthrough, &member, value)?,
                None => self.inside(&member, value)?,
            }
            self.member(&member, class, value)?;
        }
        Ok(())
    }

    /// The member with the conversation, whose items are counted; `None` in a pass-through request.
    fn list_of_conversation(&self) -> Option<Name> {
        match self.endpoint.is_passthrough() {
            true => None,
            false => with_format!(self.endpoint.shape, F => F::REQUESTS.opening[1]),
        }
    }

    /// True if the body is a chat request without messages, but with `input`.
    #[cold]
    pub(super) fn has_input(&self) -> bool {
        let is_input =
            |member: &Member| member.name == Name::Input && !Raw::of_value(member.value.of(self.body)).is_null();
        self.endpoint == ModelEndpoint::CHAT
            && self.conversation.unwrap_or(0) == 0
            && self.fields.members.iter().any(is_input)
    }

    /// Checks that required members are present.
    pub(super) fn required(&mut self) -> Result<(), Invalid> {
        if let Some(passthrough) = self.endpoint.as_passthrough() {
            return self.required_of_relayed(passthrough);
        }
        let present = PresentMembers {
            conversation: self.conversation.is_some_and(|items| items > 0),
            is_empty: self.conversation == Some(0),
            max_tokens: self.plain_max.is_some() || self.endpoint.operation != Operation::Generate,
        };
        match with_format!(self.endpoint.shape, F => F::missing(present)) {
            Some(why) => Err(Invalid(why)),
            None => {
                self.fields.max_tokens = self.fields.max_tokens.or(self.plain_max);
                Ok(())
            }
        }
    }

    /// Reads what is inside a member of a conversation.
    fn inside(&mut self, member: &Member, value: Raw<'a>) -> Result<(), Invalid> {
        let shape = self.endpoint.shape;
        let is_list = with_format!(shape, F => F::LISTS).contains(&member.name);
        match value.kind() {
            ValueKind::String if self.is_prompt(member.name) => {
                self.tokens.text(self.body, inside_of(member), false);
            }
            ValueKind::Array if is_list => return self.list(member, value),
            ValueKind::Array | ValueKind::Object if is_list || member.name.is_read_by_model(shape) => {
                self.walk_all(value);
            }
            _ => self.beside(member, value),
        }
        Ok(())
    }

    /// True if a text in this member is part of the prompt.
    fn is_prompt(&self, name: Name) -> bool {
        name == Name::System || with_format!(self.endpoint.shape, F => F::REQUESTS).opening.contains(&Some(name))
    }

    /// Reads the items of a list. The scan has noted the plain messages.
    fn list(&mut self, member: &Member, list: Raw<'a>) -> Result<(), Invalid> {
        let is_conversation = self.list_of_conversation() == Some(member.name);
        if is_conversation {
            self.tokens.cut();
            let [items, plain] = self.items;
            if items == plain {
                self.fields.messages += items;
                return Ok(());
            }
        }
        let (mut items, end) = (list.items(), member.end());
        let (mut index, mut leave, mut leaves) = (0, Leave::default(), false);
        loop {
            let place = Place { list: member.name, index };
            let item = items.read(|rest| {
                if matches!(rest.first(), None | Some(b']')) {
                    return None;
                }
                let start = end - rest.len();
                let plain =
                    if is_conversation { PlainMessage::at(rest, 0, |text| string_end(rest, text)) } else { None };
                let checked = match plain {
                    Some(message) => Ok((true, message.end())),
                    None => with_format!(self.endpoint.shape, F => F::check_item(place, Raw::of_value(rest), self)),
                };
                let length = checked.as_ref().map_or(0, |(_, length)| *length);
                Some((checked.map(|(goes, length)| (Span::new(start, start + length), goes)), length))
            });
            let Some(item) = item else { break };
            let (span, goes) = item?;
            leave.item(span, !goes, &mut self.fields.cuts);
            leaves |= !goes;
            index += 1;
        }
        leave.close_list(&mut self.fields.cuts);
        if leaves {
            // The first items left out are noted after cuts inside the item behind them.
            self.fields.cuts.sort_unstable_by_key(|cut| cut.start);
        }
        match member.name {
            Name::Tools => self.fields.tools += index,
            Name::Stop => {}
            _ => self.fields.messages += index,
        }
        Ok(())
    }

    /// Notes what a member means for the request, and checks a specified one.
    fn member(&mut self, member: &Member, class: Class, value: Raw<'a>) -> Result<(), Invalid> {
        let name = member.name;
        let passthrough = self.endpoint.as_passthrough();
        if class == Class::Specified {
            return match passthrough {
                _ if value.is_null() => Ok(()),
                Some(passthrough) if !matches!(name, Name::Model | Name::Stream) => {
                    self.needed(passthrough, name, value)
                }
                _ => self.specified(member, value),
            };
        }
        if class == Class::Unknown {
            self.unknown += member.value.end - member.key.start;
            self.fields.may_cost_more |= !value.is_null();
        }
        match name {
            // These members are rewritten for a provider of the same format.
            Name::StreamOptions | Name::Include if value.bytes().len() > REWRITTEN_MAX => {
                return refuse(name.text(), &format!("at most {REWRITTEN_MAX} bytes"));
            }
            Name::ServiceTier | Name::Speed | Name::InferenceGeo | Name::WebSearchOptions | Name::Modalities => {
                self.fields.may_cost_more |= !value.is_null();
            }
            _ => {}
        }
        match passthrough {
            Some(passthrough) => self.beside_needed(passthrough, name, value),
            None => {
                with_format!(self.endpoint.shape, F => F::note_member(name, value, self.fields));
                Ok(())
            }
        }
    }

    /// Checks the type of a specified member, and notes its value.
    fn specified(&mut self, member: &Member, value: Raw<'a>) -> Result<(), Invalid> {
        let name = member.name;
        let Some((rule, expected)) = rule(name) else { return Ok(()) };
        if !rule.fits(value) {
            return refuse(name.text(), expected);
        }
        match name {
            Name::Stream => self.fields.stream = value.bool() == Some(true),
            Name::MaxTokens => self.plain_max = whole_number(value),
            Name::MaxOutputTokens => self.fields.max_tokens = whole_number(value),
            Name::Messages | Name::Input => {
                let items = if value.kind() == ValueKind::String { 1 } else { self.items[0] };
                // Instead of messages a chat request may have `input`.
                if items == 0 && self.endpoint != ModelEndpoint::CHAT {
                    return refuse(name.text(), expected);
                }
                self.conversation = Some(items);
            }
            _ => {}
        }
        Ok(())
    }

    /// Looks for objects of the provider's account in a member that is passed on as it is.
    pub(super) fn beside(&mut self, member: &Member, value: Raw<'a>) {
        let is_container = matches!(value.kind(), ValueKind::Object | ValueKind::Array);
        if !is_container && value.kind() != ValueKind::String {
            return;
        }
        let key = member.key.of(self.body);
        let is_unknown = member.name.class(self.endpoint) == Class::Unknown;
        let own = Some(key).filter(|key| is_unknown && stored::names_object(key, b""));
        if is_container || own.is_some() {
            self.find_object(member, value.bytes(), own);
        }
    }

    /// Looks for such an object in the value at the front of `bytes`; returns the value's length. `name`: the name that
    /// makes a string there an object's.
    fn find_object(&mut self, member: &Member, bytes: &'a [u8], name: Option<&'a [u8]>) -> Option<usize> {
        if let Some(open @ (b'{' | b'[')) = bytes.first() {
            return Raw::walk(bytes, &mut |key, value| {
                let is_id = *open == b'{' && stored::names_object(key, member.key.of(self.body));
                let inherited = name.filter(|_| *open == b'[');
                self.find_object(member, value, if is_id { Some(key) } else { inherited })
            });
        }
        let scalar = Raw::front(bytes);
        if let (Some(name), Some(_)) = (name, scalar.string()) {
            self.names_object(member, name);
        }
        Some(scalar.bytes().len())
    }
}

/// Checks the syntax of a body, and notes its members and the plain messages in the list `conversation`. Returns the
/// number of items in that list, and of plain messages.
fn scan(
    body: &[u8],
    conversation: Option<Name>,
    fields: &mut Fields,
    tokens: &mut CountLater,
) -> Result<[u32; 2], Invalid> {
    let (key, name, start, in_list, items) = (Span::default(), Name::Other, 0, false, [0; 2]);
    let mut top = TopLevel { fields, tokens, conversation, key, name, start, in_list, items };
    match json::scan(body, &mut top) {
        Ok(()) => Ok(top.items),
        Err(ScanError::Syntax(syntax)) => Err(Invalid(syntax.to_string())),
        Err(ScanError::Stopped) if top.fields.members.len() == MEMBERS_MAX => {
            refuse("the body", &format!("at most {MEMBERS_MAX} members"))
        }
        Err(ScanError::Stopped) => refuse("the body", "a JSON object"),
    }
}

/// The visitor of that scan.
struct TopLevel<'f> {
    fields: &'f mut Fields,
    tokens: &'f mut CountLater,
    conversation: Option<Name>,
    /// The current member, and the start of its value.
    key: Span,
    name: Name,
    start: u32,
    /// The value is the list of the conversation.
    in_list: bool,
    items: [u32; 2],
}

impl TopLevel<'_> {
    /// Recognises the most common message, with a role and a text only, by its bytes: notes it and returns its end.
    fn plain_message(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        let message = PlainMessage::at(buf, at, |text| string_end(buf, text))?;
        self.tokens.add(MESSAGE_TOKENS);
        for span in [message.role, message.text] {
            self.tokens.text(buf, span, true);
        }
        let [items, plain] = &mut self.items;
        self.fields.opening.message(*items, message.text, message.is_users());
        (*items, *plain) = (*items + 1, *plain + 1);
        Some(message.end())
    }
}

impl Visitor for TopLevel<'_> {
    #[inline(always)]
    fn object(&mut self, buf: &[u8], at: usize, depth: usize) -> Option<usize> {
        if depth == 2 && self.in_list { self.plain_message(buf, at) } else { None }
    }

    #[inline(always)] // callers usually know the kind of token at compile time
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        let value = match (depth, token) {
            (0, Token::ObjectOpen | Token::ObjectClose) => return Ok(()),
            (0, _) => return Err(Stop),
            (1, Token::Key) => {
                (self.key, self.name) = (span, Name::of(span.of(buf)));
                return if self.fields.members.len() < MEMBERS_MAX { Ok(()) } else { Err(Stop) };
            }
            (1, Token::ObjectOpen) => {
                self.start = span.start;
                return Ok(());
            }
            (1, Token::ArrayOpen) => {
                self.start = span.start;
                if self.conversation == Some(self.name) {
                    (self.in_list, self.items) = (true, [0; 2]);
                }
                return Ok(());
            }
            (1, Token::ObjectClose | Token::ArrayClose) => {
                self.in_list = false;
                Span { start: self.start, end: span.end }
            }
            (1, Token::String) => {
                if self.name == Name::Model {
                    // The model is known even if an error follows.
                    self.fields.model = Some(span);
                }
                Span { start: span.start - 1, end: span.end + 1 }
            }
            (1, _) => span,
            (2, Token::Key | Token::ObjectClose | Token::ArrayClose) => return Ok(()),
            (2, _) => {
                self.items[0] += u32::from(self.in_list);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.fields.members.push(Member { key: self.key, value, name: self.name });
        Ok(())
    }
}

/// The rule for the value of a specified member.
enum Rule {
    Kinds(&'static [ValueKind]),
    /// A number from 0 to this one.
    UpTo(f64),
    /// A whole number of 1 or more.
    Whole,
    /// Any value but `true`.
    NotTrue,
}

impl Rule {
    fn fits(&self, value: Raw<'_>) -> bool {
        match *self {
            Rule::Kinds(kinds) => kinds.contains(&value.kind()),
            Rule::UpTo(most) => value.kind() == ValueKind::Number && in_range(value, most),
            Rule::Whole => whole_number(value).is_some(),
            Rule::NotTrue => value.bool() != Some(true),
        }
    }
}

/// The rule for a specified member, and its words.
fn rule(name: Name) -> Option<(Rule, &'static str)> {
    use ValueKind::{Array, Bool, Object, String};
    const STORED: &str = "none: Tollgate stores no responses; send the whole conversation in input";
    const PROMPT: &str = "none: Tollgate stores no prompts; send the text of the prompt in input";
    Some(match name {
        Name::Model | Name::User | Name::Instructions => (Rule::Kinds(&[String]), "a string"),
        Name::Messages => (Rule::Kinds(&[Array]), "an array of at least one message"),
        Name::Input => (Rule::Kinds(&[String, Array]), "a string or an array of at least one object"),
        Name::Stream => (Rule::Kinds(&[Bool]), "true or false"),
        Name::MaxTokens | Name::MaxOutputTokens => (Rule::Whole, "an integer of at least 1"),
        Name::Temperature => (Rule::UpTo(2.0), "a number from 0 to 2"),
        Name::TopP => (Rule::UpTo(1.0), "a number from 0 to 1"),
        Name::Tools => (Rule::Kinds(&[Array]), "an array of objects"),
        Name::ToolChoice => (Rule::Kinds(&[String, Object]), "a string or an object"),
        Name::ResponseFormat => (Rule::Kinds(&[Object]), "an object"),
        Name::Stop => (Rule::Kinds(&[String, Array]), "a string or an array of strings"),
        Name::System => (Rule::Kinds(&[String, Array]), "a string or an array of text blocks"),
        Name::PreviousResponseId | Name::Conversation => (Rule::Kinds(&[]), STORED),
        Name::Prompt => (Rule::Kinds(&[]), PROMPT),
        Name::Background => (Rule::NotTrue, "false: Tollgate stores no responses"),
        _ => return None,
    })
}

/// The inside of a string that is a member's value.
pub(super) fn inside_of(member: &Member) -> Span {
    Span { start: member.value.start + 1, end: member.value.end - 1 }
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
