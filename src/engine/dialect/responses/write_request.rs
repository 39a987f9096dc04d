//! Writes a responses request: nothing is stored, and reasoning is returned encrypted.

use crate::dialect::chat::write_request::FAILED;
use crate::dialect::neutral::conversation::{
    AnswerSettings, Block, Conversation, Effort, OutputFormat, Role, Schema, ToolCall, ToolResult, Tools, Turn,
};
use crate::dialect::neutral::is_blank;
use crate::dialect::neutral::naming::{TranslationState, responses_id};
use crate::dialect::request::Invalid;
use crate::dialect::request::refuse;
use crate::dialect::translate::openai::{write_caller, write_choice, write_function, write_sampling};
use crate::dialect::translate::schema::is_strict;
use crate::dialect::translate::source::SourceRequest;
use crate::wire::json::{
    Inside, Quoted, Raw, item, key, member_count, member_inside, member_string, put, write_inside,
};

/// Minimum bound on an answer in the responses format.
pub const BOUND_MIN: u64 = 16;

/// Writes the request; see [`crate::dialect::translate::request`].
pub fn write(
    source: &SourceRequest<'_>,
    conversation: Conversation<'_>,
    state: &mut TranslationState,
    out: &mut Vec<u8>,
) -> Result<(), Invalid> {
    let leads = |turn: &&Turn<'_>| matches!(turn.role, Role::System { .. });
    let leading = conversation.turns.iter().take_while(leads).count();
    // The format requires an input.
    let leading = if leading < conversation.turns.len() { leading } else { 0 };
    put!(out, r#"{"model":"#, Quoted(source.target.model));
    write_instructions(&conversation.turns[..leading], out);
    put!(out, r#","input":["#);
    for turn in &conversation.turns[leading..] {
        write_turn(turn, out);
    }
    if out.ends_with(b"[") {
        return refuse(source.own.list(), "at least one message with content");
    }
    out.push(b']');
    write_offer(source, &conversation.tools, out);
    if !write_wishes(source, &conversation.settings, out) {
        state.dropped.extend(&conversation.settings.reasoning);
    }
    write_text(source, &conversation, out);
    if source.fields.stream {
        put!(out, r#","stream":true"#);
    }
    if !source.drops("store") {
        put!(out, r#","store":false"#);
    }
    if source.target.capabilities.effort && !source.drops("include") {
        put!(out, r#","include":["reasoning.encrypted_content"]"#);
    }
    put!(out, "}");
    Ok(())
}

/// Writes the system messages at the front as the instructions.
fn write_instructions(turns: &[Turn<'_>], out: &mut Vec<u8>) {
    let texts = turns.iter().flat_map(|turn| &turn.blocks).filter_map(Block::text).filter(|text| !is_blank(text));
    for (at, text) in texts.clone().enumerate() {
        if at == 0 {
            key(out, "instructions");
        }
        out.extend_from_slice(if at == 0 { b"\"" } else { b"\\n\\n" });
        out.extend_from_slice(text);
    }
    if texts.count() > 0 {
        out.push(b'"');
    }
}

fn open_message(role: &str, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"message","role":""#, role, r#"","content":"#);
}

fn write_turn(turn: &Turn<'_>, out: &mut Vec<u8>) {
    match turn.role {
        Role::User => {
            for block in &turn.blocks {
                if let Block::Result(result) = block {
                    write_result(result, out);
                }
            }
            write_message("user", &turn.blocks, out);
        }
        Role::System { .. } => write_message("developer", &turn.blocks, out),
        Role::Assistant => write_assistant(turn, out),
    }
}

/// Writes the content except calls and results, in one message; a single text as a plain string.
fn write_message(role: &str, blocks: &[Block<'_>], out: &mut Vec<u8>) {
    let said = |block: &&Block<'_>| match block {
        Block::Text(text) => !text.is_empty(),
        Block::Media(_) => true,
        _ => false,
    };
    let mut parts = blocks.iter().filter(said);
    let (Some(first), second) = (parts.next(), parts.next()) else { return };
    open_message(role, out);
    match (first.text(), second) {
        (Some(text), None) => write_inside(out, text),
        _ => {
            out.push(b'[');
            blocks.iter().filter(said).for_each(|block| write_part(block, out));
            out.push(b']');
        }
    }
    out.push(b'}');
}

fn write_part(block: &Block<'_>, out: &mut Vec<u8>) {
    match block {
        Block::Text(text) => {
            item(out);
            put!(out, r#"{"type":"input_text","text":"#, Inside(text), "}");
        }
        Block::Media(media) => media.write_input(out),
        _ => {}
    }
}

/// Writes the items of an assistant's turn in their order: a provider refuses reasoning without the item that it led
/// to.
fn write_assistant(turn: &Turn<'_>, out: &mut Vec<u8>) {
    // Texts that follow each other are one message.
    let mut speaks = false;
    for block in &turn.blocks {
        let text = block.text().filter(|text| !text.is_empty());
        let goes = matches!(block, Block::SealedReasoning(_) | Block::Call(_));
        if speaks && goes {
            out.extend_from_slice(b"\"}");
        }
        if text.is_some() && !speaks {
            open_message("assistant", out);
            out.push(b'"');
        }
        speaks = text.is_some() || (speaks && !goes);
        match block {
            Block::SealedReasoning(json) => write_reasoning(json, out),
            Block::Call(call) => write_call(call, out),
            _ => out.extend_from_slice(text.unwrap_or_default()),
        }
    }
    if speaks {
        out.extend_from_slice(b"\"}");
    }
}

fn write_reasoning(carried: &[u8], out: &mut Vec<u8>) {
    for kept in Raw::new(carried).items().filter(|kept| kept.get("encrypted_content").is_some()) {
        item(out);
        put!(out, r#"{"type":"reasoning","summary":[]"#);
        for name in ["id", "encrypted_content"] {
            if let Some(text) = kept.get(name).and_then(Raw::string) {
                member_inside(out, name, text);
            }
        }
        out.push(b'}');
    }
}

fn write_call(call: &ToolCall<'_>, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"function_call","call_id":""#);
    responses_id(call.id, out);
    put!(out, r#"","name":"#, Inside(&call.name), r#","arguments":""#);
    call.arguments.write_text(out);
    put!(out, r#""}"#);
}

fn write_result(result: &ToolResult<'_>, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"function_call_output","call_id":""#);
    responses_id(result.id, out);
    put!(out, r#"","output":"#);
    let failed = if result.failed { FAILED.as_bytes() } else { b"" };
    let only = match result.content.as_slice() {
        [] => Some(&b""[..]),
        [one] => one.text(),
        _ => None,
    };
    match only {
        Some(text) => put!(out, "\"", failed, text, "\""),
        None => {
            out.push(b'[');
            if result.failed {
                write_part(&Block::Text(failed.into()), out);
            }
            result.content.iter().for_each(|block| write_part(block, out));
            out.push(b']');
        }
    }
    out.push(b'}');
}

fn write_offer(source: &SourceRequest<'_>, tools: &Tools<'_>, out: &mut Vec<u8>) {
    if tools.list.is_empty() {
        return;
    }
    put!(out, r#","tools":["#);
    for tool in &tools.list {
        item(out);
        put!(out, r#"{"type":"function","name":"#);
        write_function(tool, out);
        // The clients of OpenAI's formats know its rules.
        let fits = |schema| source.own.strict_by_rules || is_strict(schema);
        let strict = tool.strict && matches!(tool.schema, Schema::Given(schema) if fits(schema));
        // If omitted, it would mean true.
        put!(out, r#","strict":"#, if strict { "true}" } else { "false}" });
    }
    put!(out, "]");
    write_choice(source, tools, (b"{\"type\":\"function\",\"name\":", b"}"), out);
}

/// Writes the bound on tokens, sampling, the effort and the end user; true if the effort is written. The format has no
/// stop sequences.
fn write_wishes(source: &SourceRequest<'_>, settings: &AnswerSettings<'_>, out: &mut Vec<u8>) -> bool {
    if let Some(max) = source.max_tokens().filter(|_| !source.drops("max_output_tokens")) {
        member_count(out, "max_output_tokens", max.max(BOUND_MIN));
    }
    write_sampling(source, settings, out);
    let takes_effort = source.target.capabilities.effort && !source.drops("reasoning");
    let reasons = takes_effort && (settings.effort.is_some() || settings.reasons.is_some());
    if reasons {
        key(out, "reasoning");
        out.push(b'{');
        if let Some(effort) = settings.effort {
            member_string(out, "effort", effort.word());
        }
        if settings.effort != Some(Effort::NONE) {
            member_string(out, "summary", "auto");
        }
        out.push(b'}');
    }
    write_caller(source, "safety_identifier", settings, out);
    reasons
}

/// Writes the output format and the verbosity.
fn write_text(source: &SourceRequest<'_>, conversation: &Conversation<'_>, out: &mut Vec<u8>) {
    let verbosity = conversation.settings.verbosity;
    if (matches!(conversation.format, OutputFormat::Free) && verbosity.is_none()) || source.drops("text") {
        return;
    }
    key(out, "text");
    out.push(b'{');
    match conversation.format {
        OutputFormat::Free => {}
        OutputFormat::Object => put!(out, r#""format":{"type":"json_object"}"#),
        OutputFormat::Schema { .. } => {
            put!(out, r#""format":{"type":"json_schema""#);
            conversation.format.write_schema(out);
            put!(out, "}");
        }
    }
    if let Some(verbosity) = verbosity {
        member_inside(out, "verbosity", verbosity);
    }
    out.push(b'}');
}
