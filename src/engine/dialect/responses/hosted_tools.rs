//! Selects the tools of a responses request that are passed on to a provider of the same format: those that the client
//! runs itself, and provider-hosted ones, at an unmetered price, if the configuration names them.
//!
//! Owns the list of tools that a client runs: any other tool runs at the provider, or may in the future. Must never
//! pass a tool that two readers could interpret differently. Called once for each body that is laid out.

use crate::base::limits::{MESSAGES_MAX, TOOLS_MAX};
use crate::dialect::capabilities::Capabilities;
use crate::dialect::request::{Fields, Invalid, Leave, Name, PartName};
use crate::wire::Span;
use crate::wire::json::{Raw, eq_unescaped};

/// Kinds that the client runs, whatever else the tool says.
const AT_CLIENT: [&str; 5] = ["function", "custom", "namespace", "local_shell", "apply_patch"];
/// Kinds that the client runs if the tool says so.
const AT_EITHER: [&str; 2] = ["shell", "tool_search"];
/// Maximum number of cuts for omitted tools in one request.
const CUTS_MAX: usize = 256;
/// Message for a request whose tools are all omitted.
const NONE_LEFT: &str = "tools: expected at least one tool that the client runs itself: this model runs none of these";
const NOT_OFFERED: &str = "tool_choice: expected auto, none, required, or a tool that the client runs itself";
const TOO_MANY: &str = "tools: expected fewer tools that run at the provider";

/// Omitted tools of a request, so far.
struct OmittedTools<'a> {
    body: &'a [u8],
    takes: &'a Capabilities,
    cuts: Vec<Span>,
    /// Tools that may be called.
    kept: usize,
    gone: usize,
    /// List entries checked.
    seen: usize,
}

/// Spans of the omitted tools, in no order; usually none.
pub fn refused(body: &[u8], fields: &Fields, takes: &Capabilities) -> Result<Vec<Span>, Invalid> {
    let value = |name, text| {
        let member = fields.members.iter().find(|member| member.name == name && !takes.drops(text));
        member.map_or(Raw::NULL, |member| Raw::new(member.value.of(body)))
    };
    let mut tools = OmittedTools { body, takes, cuts: Vec::new(), kept: 0, gone: 0, seen: 0 };
    // They are all checked here, on the event loop.
    if fields.tools as usize > TOOLS_MAX || (fields.adds_tools && fields.messages as usize > MESSAGES_MAX) {
        return too_long();
    }
    tools.list(value(Name::Tools, "tools"), true, is_sent);
    if fields.adds_tools {
        let items = value(Name::Input, "input").items();
        // Tools that a provider's server has listed are not offered by the client.
        let adds = |item: &Raw<'_>| !only(*item, "type").is_some_and(|kind| kind.is("mcp_list_tools"));
        for (key, list) in items.filter(adds).flat_map(Raw::members) {
            if eq_unescaped(key, "tools") {
                tools.list(list, true, is_sent);
            }
        }
    }
    if tools.seen > TOOLS_MAX {
        return too_long();
    }
    if tools.gone == 0 {
        return Ok(tools.cuts);
    }
    let choice = value(Name::ToolChoice, "tool_choice");
    if tools.kept == 0 && !choice.is("none") {
        return Err(Invalid(NONE_LEFT.to_owned()));
    }
    tools.choice(choice)?;
    match tools.cuts.len() {
        0..=CUTS_MAX => Ok(tools.cuts),
        _ => Err(Invalid(TOO_MANY.to_owned())),
    }
}

/// Refuses a request whose lists exceed the bound on checked entries.
fn too_long<T>() -> Result<T, Invalid> {
    Err(Invalid(format!(
        "tools: expected at most {TOOLS_MAX}, and {MESSAGES_MAX} items of input where some bring tools"
    )))
}

impl<'a> OmittedTools<'a> {
    /// Checks a list of tools. `outer`: it may contain a namespace.
    fn list(&mut self, tools: Raw<'a>, outer: bool, is_sent: fn(Raw<'_>, &Capabilities) -> bool) {
        let mut leave = Leave::default();
        for tool in tools.items() {
            self.seen += 1;
            if self.seen > TOOLS_MAX {
                break;
            }
            let is_namespace = tool.get("type").is_some_and(|kind| kind.is("namespace"));
            let goes = is_sent(tool, self.takes) && (outer || !is_namespace);
            leave.item(Span::of_part(self.body, tool.bytes()), !goes, &mut self.cuts);
            self.kept += usize::from(goes && !is_namespace);
            self.gone += usize::from(!goes);
            if goes && is_namespace {
                for (_, list) in tool.members().filter(|(key, _)| eq_unescaped(key, "tools")) {
                    self.list(list, false, is_sent);
                }
            }
            // One more is refused, so no more need to be kept.
            self.cuts.truncate(CUTS_MAX + 1);
        }
        leave.close_list(&mut self.cuts);
    }

    /// Checks that a choice is among the remaining tools.
    fn choice(&mut self, choice: Raw<'a>) -> Result<(), Invalid> {
        let Some(kind) = choice.get("type") else { return Ok(()) };
        let fits = if kind.is("allowed_tools") {
            let kept = self.kept;
            self.seen = 0;
            self.list(choice.get("tools").unwrap_or(Raw::NULL), true, is_offered);
            if self.seen > TOOLS_MAX {
                return too_long();
            }
            self.kept > kept
        } else {
            is_offered(choice, self.takes)
        };
        if fits { Ok(()) } else { Err(Invalid(NOT_OFFERED.to_owned())) }
    }
}

/// The single value of a member; `None` if it is repeated, since two readers could disagree about it.
fn only<'a>(object: Raw<'a>, name: &str) -> Option<Raw<'a>> {
    let mut values = object.members().filter(|(key, _)| eq_unescaped(key, name));
    let (_, value) = values.next()?;
    values.next().is_none().then_some(value)
}

/// True if the configuration names a kind.
fn is_named(kind: Raw<'_>, takes: &Capabilities) -> bool {
    takes.hosted_tools.iter().any(|named| kind.is(named))
}

/// True if tools of this kind may be on offer.
fn is_offered(tool: Raw<'_>, takes: &Capabilities) -> bool {
    let Some(kind) = only(tool, "type") else { return false };
    AT_CLIENT.iter().chain(&AT_EITHER).any(|known| kind.is(known)) || is_named(kind, takes)
}

/// True if a tool is passed on.
fn is_sent(tool: Raw<'_>, takes: &Capabilities) -> bool {
    let Some(kind) = only(tool, "type") else { return false };
    is_clients(tool, kind) || (is_named(kind, takes) && (takes.stored_objects || !names_stored(tool)))
}

/// True if the client runs a tool of this kind.
fn is_clients(tool: Raw<'_>, kind: Raw<'_>) -> bool {
    AT_CLIENT.iter().any(|known| kind.is(known))
        || (kind.is("tool_search") && only(tool, "execution").is_some_and(|place| place.is("client")))
        || (kind.is("shell") && is_local(tool))
}

/// The kind of a passed-on tool that runs at the provider, or of such a tool in a namespace.
pub fn hosted<'a>(tool: Raw<'a>, takes: &Capabilities) -> Option<Raw<'a>> {
    let kind = only(tool, "type")?;
    if kind.is("namespace") {
        let lists = tool.members().filter(|(key, _)| eq_unescaped(key, "tools"));
        let inner = |tool: Raw<'a>| only(tool, "type").filter(|kind| !is_clients(tool, *kind) && is_sent(tool, takes));
        return lists.flat_map(|(_, list)| list.items()).find_map(inner);
    }
    (!is_clients(tool, kind) && is_sent(tool, takes)).then_some(kind)
}

/// True if a shell's commands run at the client.
fn is_local(shell: Raw<'_>) -> bool {
    let mut places = shell.members().filter(|(key, _)| eq_unescaped(key, "environment"));
    let is_client = |place: Raw<'_>| place.is_null() || only(place, "type").is_some_and(|kind| kind.is("local"));
    match (places.next(), places.next()) {
        (None, _) => true,
        (Some((_, place)), None) => is_client(place),
        _ => false,
    }
}

/// True if a tool uses an object that some request has stored at the provider: it could be another key's.
fn names_stored(tool: Raw<'_>) -> bool {
    without_stored(tool.bytes(), b"", false).is_none()
}

/// Length of the value at the front of `bytes`; `None` if such an object is in it. `member`: the key of its member.
/// `is_id`: the strings in it are ids.
fn without_stored(bytes: &[u8], member: &[u8], is_id: bool) -> Option<usize> {
    match bytes.first() {
        Some(b'"') if is_id => None,
        Some(b'[') => Raw::walk(bytes, &mut |_, item| without_stored(item, member, is_id)),
        Some(b'{') => Raw::walk(bytes, &mut |key, value| {
            let is_id = match PartName::of(key) {
                PartName::Schema => return Some(Raw::first(value).bytes().len()),
                PartName::StoredId | PartName::StoredIds | PartName::Container => true,
                name => name == PartName::Id && PartName::of(member) == PartName::Container,
            };
            without_stored(value, key, is_id)
        }),
        _ => Some(Raw::first(bytes).bytes().len()),
    }
}
