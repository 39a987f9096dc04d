//! Writes a messages request.
//!
//! The conversation is first laid out as the format requires (alternating sides, tool results first), so that merging,
//! ordering and dropping happen in one place; then it is written.

use crate::base::limits::MESSAGES_MAX;
use crate::dialect::capabilities::{Cache, Structured, Thinking};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::conversation::{AnswerSettings, Tool, Turn};
use crate::dialect::neutral::conversation::{
    Block, CacheBreakpoint, Conversation, Effort, OutputFormat, Role, Schema, ToolCall, ToolChoice, ToolResult, Tools,
};
use crate::dialect::neutral::naming::{JSON_TOOL, TranslationState, messages_id};
use crate::dialect::neutral::{JsonText, is_blank};
use crate::dialect::request::Invalid;
use crate::dialect::request::refuse;
use crate::dialect::translate::bounds::too_many;
use crate::dialect::translate::ids::CallIds;
use crate::dialect::translate::schema::{may_close, write_closed, write_free, write_input_schema};
use crate::dialect::translate::source::{SourceRequest, as_users, write_user};
use crate::wire::json::{self, Inside, Number, Quoted, Raw, item, key, member_string, put};
use std::borrow::Cow;

/// Maximum length of a `metadata.user_id` that is passed on unchanged.
const USER_MAX: usize = 256;
/// User turns whose end is marked for the prompt cache: the last request had its mark at the one before last.
const MARKED_TURNS: usize = 2;
/// Thinking budgets for efforts; then the minimum of the format and the budget of a high effort.
const BUDGETS: [(&str, u64); 2] = [("low", 2048), ("medium", 8192)];
const BUDGET_MIN: u64 = 1024;
const BUDGET_HIGH: u64 = 16_384;

/// Writes the request; see [`crate::dialect::translate::request`].
pub fn write(
    source: &SourceRequest<'_>,
    conversation: Conversation<'_>,
    state: &mut TranslationState,
    out: &mut Vec<u8>,
) -> Result<(), Invalid> {
    let how = source.target.capabilities.structured_output;
    let plan = MessagesLayout::lay_out(source, &conversation.turns)?;
    let tools = OfferedTools::new(&conversation.tools, conversation.called());
    let is_schema = matches!(conversation.format, OutputFormat::Schema { .. });
    state.json_tool = is_schema && how == Structured::Tool && tools.is_empty();
    let in_words =
        matches!(conversation.format, OutputFormat::Object) || (how != Structured::Native && !state.json_tool);
    let bound = max_tokens(source, &conversation.settings);
    put!(out, r#"{"model":"#, Quoted(source.target.model), r#","max_tokens":"#, Number(bound));
    let marks = source.target.capabilities.cache == Cache::Marks && !source.names_marks();
    plan.write(if in_words { conversation.format.instruction() } else { None }, marks, out);
    match conversation.format {
        OutputFormat::Schema { schema, .. } if state.json_tool => {
            write_json_tool(schema, !source.drops("tool_choice"), out)
        }
        _ => tools.write(source, out),
    }
    let thinks = write_thinking(source, &conversation, &plan, bound, out);
    write_parameters(source, &conversation.settings, thinks, out);
    let takes_effort = write_config(source, &conversation, out);
    if !thinks && !takes_effort {
        state.dropped.extend(&conversation.settings.reasoning);
    }
    put!(out, if source.fields.stream { r#","stream":true}"# } else { "}" });
    Ok(())
}

/// The bound on the answer, which the format requires.
fn max_tokens(source: &SourceRequest<'_>, settings: &AnswerSettings<'_>) -> u64 {
    let capabilities = source.target.capabilities;
    let ceiling = capabilities.max_output_tokens;
    let usual = match ceiling.filter(|_| settings.unbounded) {
        Some(ceiling) => ceiling,
        None => capabilities.default_max_tokens.min(ceiling.unwrap_or(u64::MAX)),
    };
    source.max_tokens().unwrap_or(usual)
}

/// A message of one side, ready to be written.
struct WrittenMessage<'t, 'a> {
    role: Role,
    /// Tool results, which must come first.
    results: Vec<&'t ToolResult<'a>>,
    pieces: Vec<MessagePiece<'t, 'a>>,
}

/// A part of a message.
enum MessagePiece<'t, 'a> {
    Text(JsonText<'t>),
    Block(&'t Block<'a>),
}

/// The conversation in the layout of the format.
struct MessagesLayout<'t, 'a> {
    system: Vec<MessagePiece<'t, 'a>>,
    messages: Vec<WrittenMessage<'t, 'a>>,
}

impl<'t, 'a> MessagesLayout<'t, 'a> {
    fn lay_out(source: &SourceRequest<'_>, turns: &'t [Turn<'a>]) -> Result<MessagesLayout<'t, 'a>, Invalid> {
        if turns.len() > MESSAGES_MAX {
            return too_many(source.own.list(), MESSAGES_MAX, " messages");
        }
        let mut plan = MessagesLayout { system: Vec::new(), messages: Vec::with_capacity(turns.len()) };
        // Positions matter only to a model that accepts system messages in place.
        let keeps_places = source.target.capabilities.mid_conversation_system == Some(true);
        let places = if keeps_places { before_assistant(turns) } else { Vec::new() };
        for (at, turn) in turns.iter().enumerate() {
            match turn.role {
                Role::System { moves } => plan.system(turn, moves, places.get(at) == Some(&true)),
                Role::User => {
                    let rest = pieces(turn.blocks.iter().filter(|block| !matches!(block, Block::Result(_))));
                    let results = turn.blocks.iter().filter_map(|block| match block {
                        Block::Result(result) => Some(result),
                        _ => None,
                    });
                    plan.add(Role::User, results.collect(), rest);
                }
                Role::Assistant => plan.add(Role::Assistant, Vec::new(), assistant(turn)),
            }
        }
        let last = turns.iter().rev().find(|turn| !matches!(turn.role, Role::System { .. }));
        let ends_with = |role| plan.messages.last().is_some_and(|message| message.role == role);
        if last.is_some_and(|turn| turn.role == Role::User) && ends_with(Role::Assistant) {
            // The user's message is blank. Without it the model would continue its own.
            return refuse(source.own.list(), "a last message with content for this model");
        }
        plan.trim_last();
        if plan.messages.is_empty() {
            let system = std::mem::take(&mut plan.system);
            plan.add(Role::User, Vec::new(), system);
        }
        if plan.messages.is_empty() {
            return refuse(source.own.list(), "at least one message with content");
        }
        Ok(plan)
    }

    /// Adds content of `role`; begins a new message if the other side was last. Empty content begins none.
    fn add(&mut self, role: Role, results: Vec<&'t ToolResult<'a>>, pieces: Vec<MessagePiece<'t, 'a>>) {
        if results.is_empty() && pieces.is_empty() {
            return;
        }
        match self.messages.last_mut().filter(|last| last.role == role) {
            Some(last) => {
                last.results.extend(results);
                last.pieces.extend(pieces);
            }
            None => self.messages.push(WrittenMessage { role, results, pieces }),
        }
    }

    /// Adds a system message to the system prompt, unless the model accepts it in place and the place is allowed: after
    /// a user's turn and before the assistant's or the end (`may_stay`). A message that must not move becomes a part of
    /// a user message instead.
    fn system(&mut self, turn: &'t Turn<'a>, moves: bool, may_stay: bool) {
        let texts = || turn.blocks.iter().filter_map(Block::text).filter(|text| !is_blank(text));
        let pieces = || pieces(turn.blocks.iter().filter(|block| !block.text().is_some_and(is_blank)));
        let last = self.messages.last().map(|message| message.role);
        let in_place = may_stay && matches!(last, Some(Role::User | Role::System { .. }));
        if texts().next().is_none() {
        } else if in_place {
            self.add(Role::System { moves: true }, Vec::new(), pieces());
        } else if moves || last.is_none() {
            let pieces = pieces();
            match self.system.is_empty() {
                true => self.system = pieces,
                false => self.system.extend(pieces),
            }
        } else {
            self.add(Role::User, Vec::new(), vec![MessagePiece::Text(as_users(turn))]);
        }
    }

    /// Trims the last assistant message: the model continues it, so it must not end in white space.
    fn trim_last(&mut self) {
        let Some(last) = self.messages.last_mut().filter(|last| last.role == Role::Assistant) else { return };
        last.pieces.pop_if(|piece| matches!(piece, MessagePiece::Block(Block::Breakpoint(_))));
        let Some(MessagePiece::Text(raw)) = last.pieces.last() else { return };
        let text = Raw::text_of(raw);
        let trimmed = text.trim_end();
        if trimmed.len() < text.len() {
            let mut inside = Vec::with_capacity(trimmed.len());
            json::write_escaped(&mut inside, trimmed.as_bytes());
            last.pieces.pop();
            if !inside.is_empty() {
                last.pieces.push(MessagePiece::Text(Cow::Owned(inside)));
            }
        }
        if last.pieces.is_empty() {
            self.messages.pop();
        }
    }

    /// True if a call lacks the reasoning that led to it: a model with a thinking budget requires that reasoning.
    fn lacks_reasoning(&self) -> bool {
        let is = |piece: &MessagePiece<'_, '_>, carried: bool| match piece {
            MessagePiece::Block(Block::SealedReasoning(_)) => carried,
            MessagePiece::Block(Block::Call(_)) => !carried,
            _ => false,
        };
        let has = |message: &WrittenMessage<'_, '_>, carried| message.pieces.iter().any(|piece| is(piece, carried));
        self.messages.iter().any(|message| has(message, false) && !has(message, true))
    }

    /// Appends system prompt and messages. `marks`: the part that the next turn will repeat is marked for the cache; a
    /// cache reads on from the latest mark it knows.
    fn write(&self, instruction: Option<JsonText<'_>>, marks: bool, out: &mut Vec<u8>) {
        let mut users = self.messages.iter().filter(|message| message.role == Role::User).count();
        if !self.system.is_empty() || instruction.is_some() {
            put!(out, r#","system":["#);
            self.system.iter().for_each(|piece| piece.write(out));
            instruction.iter().for_each(|text| write_text(text, out));
            if marks {
                mark(CacheBreakpoint { hour: false }, out);
            }
            put!(out, "]");
        }
        put!(out, r#","messages":["#);
        let mut ids = CallIds::default();
        for message in &self.messages {
            item(out);
            let role = match message.role {
                Role::User => "user",
                Role::Assistant => "assistant",
                Role::System { .. } => "system",
            };
            put!(out, r#"{"role":""#, role, r#"","content":["#);
            ids.user(message.role == Role::User);
            message.results.iter().for_each(|result| write_result(result, ids.result(result.id), out));
            for piece in &message.pieces {
                match piece {
                    MessagePiece::Block(Block::Call(call)) => write_call(call, ids.call(call.id), out),
                    piece => piece.write(out),
                }
            }
            if message.role == Role::User {
                if marks && users <= MARKED_TURNS {
                    mark(CacheBreakpoint { hour: false }, out);
                }
                users -= 1;
            }
            out.extend_from_slice(b"]}");
        }
        out.push(b']');
    }
}

/// For each turn: true if only system messages are between it and an assistant's turn or the end.
fn before_assistant(turns: &[Turn<'_>]) -> Vec<bool> {
    let mut before = vec![true; turns.len()];
    let mut next = true;
    for (at, turn) in turns.iter().enumerate().rev() {
        before[at] = next;
        next = if matches!(turn.role, Role::System { .. }) { next } else { turn.role == Role::Assistant };
    }
    before
}

/// The parts of a user's or a tool's content, without empty texts, and without blank ones unless there is nothing else.
fn pieces<'t, 'a: 't>(blocks: impl Iterator<Item = &'t Block<'a>>) -> Vec<MessagePiece<'t, 'a>> {
    let mut pieces = Vec::with_capacity(blocks.size_hint().1.unwrap_or(0));
    let mut all_blank = true;
    for block in blocks {
        match block {
            Block::Text(text) if text.is_empty() => {}
            Block::Text(text) => {
                all_blank &= is_blank(text);
                pieces.push(MessagePiece::Text(Cow::Borrowed(text)));
            }
            Block::Breakpoint(_) => pieces.push(MessagePiece::Block(block)),
            other => {
                all_blank = false;
                pieces.push(MessagePiece::Block(other));
            }
        }
    }
    if all_blank {
        pieces.clear();
    }
    pieces
}

/// The parts of an assistant's turn in their order: a provider refuses reasoning in another place. Only calls before
/// the last text move behind it, as the format requires.
fn assistant<'t, 'a>(turn: &'t Turn<'a>) -> Vec<MessagePiece<'t, 'a>> {
    let speaks = turn.blocks.iter().filter_map(Block::text).any(|text| !is_blank(text));
    let goes = |block: &&Block<'_>| match block {
        Block::Text(text) => speaks && !text.is_empty(),
        Block::Breakpoint(_) => speaks,
        Block::SealedReasoning(_) | Block::Call(_) => true,
        _ => false,
    };
    let blocks: Vec<&Block<'_>> = turn.blocks.iter().filter(goes).collect();
    let mut end = blocks.iter().rposition(|block| block.text().is_some()).map_or(0, |last| last + 1);
    end += blocks[end..].iter().take_while(|block| matches!(block, Block::Breakpoint(_))).count();
    let calls = |block: &&&Block<'_>| matches!(block, Block::Call(_));
    let (said, rest) = blocks.split_at(end);
    let all = said.iter().filter(|block| !calls(block)).chain(said.iter().filter(calls)).chain(rest);
    let piece = |block: &&'t Block<'a>| match block {
        Block::Text(text) => MessagePiece::Text(Cow::Borrowed(text)),
        block => MessagePiece::Block(block),
    };
    all.map(piece).collect()
}

/// Marks the last block in `out`.
fn mark(mark: CacheBreakpoint, out: &mut Vec<u8>) {
    if out.pop_if(|last| *last == b'}').is_some() {
        put!(out, r#","cache_control":{"type":"ephemeral""#, if mark.hour { r#","ttl":"1h"}}"# } else { "}}" });
    }
}

fn write_text(inside: &[u8], out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"text","text":"#, Inside(inside), "}");
}

impl MessagePiece<'_, '_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            MessagePiece::Text(text) => write_text(text, out),
            MessagePiece::Block(Block::Media(media)) => media.write_block(out),
            MessagePiece::Block(Block::SealedReasoning(json)) => {
                let is = |block: &Raw<'_>, kind| block.get("type").is_some_and(|own| own.is(kind));
                let signed =
                    |block: &Raw<'_>| !block.members().any(|(_, value)| value.string().is_some_and(carrier::is_ours));
                let kinds = |block: &Raw<'_>| is(block, "thinking") || is(block, "redacted_thinking");
                for block in Raw::new(json).items().filter(kinds).filter(signed) {
                    item(out);
                    out.extend_from_slice(block.bytes());
                }
            }
            MessagePiece::Block(Block::Breakpoint(own)) => mark(*own, out),
            MessagePiece::Block(Block::Text(_) | Block::Reasoning(_) | Block::Call(_) | Block::Result(_)) => {}
        }
    }
}

fn write_result(result: &ToolResult<'_>, again: u32, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"tool_result","tool_use_id":""#);
    messages_id(result.id, again, out);
    put!(out, r#"","content":"#);
    if result.plain {
        put!(out, Inside(result.content.first().and_then(Block::text).unwrap_or_default()));
    } else {
        put!(out, "[");
        let said = result.content.iter().filter(|block| !matches!(block, Block::Breakpoint(_)));
        pieces(said).iter().for_each(|piece| piece.write(out));
        put!(out, "]");
    }
    put!(out, if result.failed { r#","is_error":true}"# } else { "}" });
    // Only the result itself can be marked, not its content.
    if let Some(Block::Breakpoint(own)) = result.content.iter().rfind(|block| matches!(block, Block::Breakpoint(_))) {
        mark(*own, out);
    }
}

fn write_call(call: &ToolCall<'_>, again: u32, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"tool_use","id":""#);
    messages_id(call.id, again, out);
    write_called(&call.name, call.arguments, out);
}

/// Appends the rest of a call after its id, in a request or a complete answer.
pub fn write_called(name: &[u8], arguments: Arguments<'_>, out: &mut Vec<u8>) {
    put!(out, r#"","name":"#, Inside(name), r#","input":"#);
    arguments.write_object(out);
    put!(out, "}");
}

/// The tools on offer and the choice among them.
struct OfferedTools<'t, 'a> {
    tools: &'t Tools<'a>,
    /// Names to define without a schema: the history uses them, but the client does not offer them.
    synthetic: Vec<&'t [u8]>,
}

impl<'t, 'a> OfferedTools<'t, 'a> {
    /// Tool blocks in the history require definitions, even if no tool may be called.
    fn new(tools: &'t Tools<'a>, called: Vec<&'t [u8]>) -> OfferedTools<'t, 'a> {
        OfferedTools { tools, synthetic: if tools.list.is_empty() { called } else { Vec::new() } }
    }

    fn is_empty(&self) -> bool {
        self.tools.list.is_empty() && self.synthetic.is_empty()
    }

    fn write(&self, source: &SourceRequest<'_>, out: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        put!(out, r#","tools":["#);
        for tool in &self.tools.list {
            write_tool(tool, source.target.capabilities.strict_tools, out);
        }
        for name in &self.synthetic {
            item(out);
            put!(out, r#"{"name":"#, Inside(name), r#","input_schema":"#);
            write_input_schema(Raw::NULL, out);
            put!(out, "}");
        }
        put!(out, "]");
        if !source.drops("tool_choice") {
            self.write_choice(out);
        }
    }

    fn write_choice(&self, out: &mut Vec<u8>) {
        let one_at_a_time = self.tools.parallel == Some(false);
        let choice = if self.synthetic.is_empty() { &self.tools.choice } else { &ToolChoice::None };
        let kind = match choice {
            ToolChoice::Absent if !one_at_a_time => return,
            ToolChoice::Absent | ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Any => "any",
            ToolChoice::One(_) => "tool",
        };
        put!(out, r#","tool_choice":{"type":""#, kind, "\"");
        if let ToolChoice::One(name) = choice {
            put!(out, r#","name":"#, Inside(name));
        }
        let refuses_parallel = one_at_a_time && *choice != ToolChoice::None;
        put!(out, if refuses_parallel { r#","disable_parallel_tool_use":true}"# } else { "}" });
    }
}

fn write_tool(tool: &Tool<'_>, strict: bool, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"name":"#, Inside(&tool.name));
    if let Some(description) = &tool.description {
        put!(out, r#","description":"#, Inside(description));
    }
    put!(out, r#","input_schema":"#);
    let mut strict = strict && tool.strict;
    match tool.schema {
        Schema::Free => write_free(out),
        Schema::Given(schema) => {
            strict &= may_close(schema);
            if strict { write_closed(schema, out) } else { write_input_schema(schema, out) }
        }
    }
    put!(out, if strict { r#","strict":true}"# } else { "}" });
    if let Some(own) = tool.mark {
        mark(own, out);
    }
}

/// `demands`: the model must call it.
fn write_json_tool(schema: Raw<'_>, demands: bool, out: &mut Vec<u8>) {
    put!(out, r#","tools":[{"name":"#, Quoted(JSON_TOOL));
    put!(out, r#","description":"Give the answer by calling this tool.","input_schema":"#);
    write_input_schema(schema, out);
    put!(out, "}]");
    if demands {
        put!(out, r#","tool_choice":{"type":"tool","name":"#, Quoted(JSON_TOOL));
        put!(out, r#","disable_parallel_tool_use":true}"#);
    }
}

/// Writes the thinking mode, if the client requests one and the model accepts it; true if the model is to think.
fn write_thinking(
    source: &SourceRequest<'_>,
    conversation: &Conversation<'_>,
    plan: &MessagesLayout<'_, '_>,
    bound: u64,
    out: &mut Vec<u8>,
) -> bool {
    let capabilities = source.target.capabilities;
    if source.drops("thinking") {
        return false;
    }
    if conversation.settings.effort == Some(Effort::NONE) {
        if capabilities.effort {
            put!(out, r#","thinking":{"type":"disabled"}"#);
        }
        return false;
    }
    let forced = matches!(conversation.tools.choice, ToolChoice::Any | ToolChoice::One(_));
    match (capabilities.thinking, conversation.settings.reasons) {
        (Thinking::Adaptive, Some(summary)) => {
            let display = if summary { "summarized" } else { "omitted" };
            put!(out, r#","thinking":{"type":"adaptive","display":""#, display, r#""}"#);
            true
        }
        (Thinking::Budget, Some(_)) if !forced && bound > BUDGET_MIN && !plan.lacks_reasoning() => {
            let word = conversation.settings.effort.map_or("medium", Effort::word);
            let word = if word == "minimal" { "low" } else { word };
            let budget = BUDGETS.iter().find(|(known, _)| *known == word).map_or(BUDGET_HIGH, |(_, budget)| *budget);
            // At least half of the bound is left for the answer, unless the format's minimum prevents it.
            let budget = budget.min(bound / 2).max(BUDGET_MIN);
            put!(out, r#","thinking":{"type":"enabled","budget_tokens":"#, Number(budget), "}");
            true
        }
        _ => false,
    }
}

/// Writes `output_config`: the output format if it is native, and the effort. True if the effort is written, here or as
/// disabled thinking.
fn write_config(source: &SourceRequest<'_>, conversation: &Conversation<'_>, out: &mut Vec<u8>) -> bool {
    let capabilities = source.target.capabilities;
    let schema = match conversation.format {
        OutputFormat::Schema { schema, .. } if capabilities.structured_output == Structured::Native => Some(schema),
        _ => None,
    };
    let effort = conversation.settings.effort.filter(|effort| *effort != Effort::NONE && capabilities.effort);
    let disables =
        conversation.settings.effort == Some(Effort::NONE) && capabilities.effort && !source.drops("thinking");
    if (schema.is_none() && effort.is_none()) || source.drops("output_config") {
        return disables;
    }
    put!(out, r#","output_config":{"#);
    if let Some(effort) = effort {
        member_string(out, "effort", if effort.word() == "minimal" { "low" } else { effort.word() });
    }
    if let Some(schema) = schema {
        key(out, "format");
        put!(out, r#"{"type":"json_schema","schema":"#);
        write_closed(schema, out);
        put!(out, "}");
    }
    put!(out, "}");
    disables || effort.is_some()
}

/// Writes sampling, stop sequences and the end user. A thinking model accepts no sampling.
fn write_parameters(source: &SourceRequest<'_>, settings: &AnswerSettings<'_>, thinks: bool, out: &mut Vec<u8>) {
    let sampling = source.target.capabilities.sampling && !thinks;
    if let Some(temperature) = settings.temperature.filter(|_| sampling) {
        let too_high = temperature.number().is_some_and(|number| number > 1.0);
        put!(out, r#","temperature":"#, if too_high { b"1" } else { temperature.bytes() });
    }
    if let Some(top_p) = settings.top_p.filter(|_| sampling) {
        put!(out, r#","top_p":"#, top_p);
    }
    let stops: Vec<&[u8]> = settings.stops.iter().copied().filter(|stop| !is_blank(stop)).collect();
    if !stops.is_empty() && !source.drops("stop_sequences") {
        put!(out, r#","stop_sequences":["#);
        for stop in stops {
            item(out);
            put!(out, Inside(stop));
        }
        put!(out, "]");
    }
    if let Some(user) = settings.user.filter(|_| !source.drops("metadata")) {
        put!(out, r#","metadata":{"user_id":"#);
        write_user(user, USER_MAX, out);
        put!(out, "}");
    }
}
