//! Checks the order of a conversation like the real providers: calls and results in pairs and in order, texts that are
//! not empty, and valid names and ids. Pure; called by `provider::ask`. Error texts resemble those of the providers.

use crate::wire::Shape;
use serde_json::Value;

/// Maximum length of the id of a call in the chat API.
const CHAT_ID_MAX: usize = 40;
/// Maximum length of the id of a call in the responses API.
const RESPONSES_ID_MAX: usize = 64;
/// Maximum length of the name of a tool in the chat API, and in the messages API.
const NAME_MAX: [usize; 2] = [64, 128];

/// Returns an error if the conversation is refused.
pub(super) fn check(shape: Shape, root: &Value, messages: &[Value]) -> Result<(), String> {
    names(shape, root)?;
    match shape {
        Shape::Messages => turns(messages, root["tools"].as_array().is_some_and(|tools| !tools.is_empty())),
        Shape::Responses => items(root, messages),
        _ => chat(messages),
    }
}

/// Checks the items of a response: calls and outputs in pairs, in any position. Nothing is kept between requests.
fn items(root: &Value, messages: &[Value]) -> Result<(), String> {
    if root["store"] != false {
        return Err("store: this provider keeps nothing".to_owned());
    }
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        for call in list(&message["tool_calls"]) {
            let id = text(call, "id");
            if id.is_empty() || id.len() > RESPONSES_ID_MAX {
                return Err(format!("Invalid 'call_id': expected at most {RESPONSES_ID_MAX} characters"));
            }
            open.push(id.to_owned());
        }
        if message["role"] == "tool" && !answer(&mut open, text(message, "tool_call_id")) {
            let id = text(message, "tool_call_id");
            return Err(format!("No tool call found for function call output with call_id {id}."));
        }
    }
    match open.first() {
        Some(id) => Err(format!("No tool output found for function call {id}.")),
        None => Ok(()),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn names(shape: Shape, root: &Value) -> Result<(), String> {
    let most = NAME_MAX[usize::from(shape == Shape::Messages)];
    for (at, tool) in list(&root["tools"]).iter().enumerate() {
        let name = match (shape, tool.get("function")) {
            (Shape::Chat, None) => continue,
            (Shape::Chat, Some(function)) => text(function, "name"),
            (Shape::Responses, _) if tool["type"] != "function" => continue,
            _ => text(tool, "name"),
        };
        if !is_plain(name) || name.len() > most {
            return Err(format!("tools[{at}].name: should match '^[a-zA-Z0-9_-]{{1,{most}}}$'"));
        }
    }
    Ok(())
}

/// Removes `id` from the calls that are still to be answered.
fn answer(open: &mut Vec<String>, id: &str) -> bool {
    let place = open.iter().position(|call| call == id);
    place.map(|place| open.remove(place)).is_some()
}

fn chat(messages: &[Value]) -> Result<(), String> {
    let mut open: Vec<String> = Vec::new();
    let unanswered = |open: &[String]| match open.first() {
        Some(id) => Err(format!(
            "an assistant message with 'tool_calls' must be followed by tool messages responding to each \
             'tool_call_id'; without one: {id}"
        )),
        None => Ok(()),
    };
    for (at, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            if !answer(&mut open, text(message, "tool_call_id")) {
                let words = "must be a response to a preceding message with 'tool_calls'";
                return Err(format!("messages[{at}]: a message with role 'tool' {words}"));
            }
            continue;
        }
        unanswered(&open)?;
        for call in list(&message["tool_calls"]) {
            let id = text(call, "id");
            if id.is_empty() || id.chars().count() > CHAT_ID_MAX {
                return Err(format!("messages[{at}].tool_calls: an id has 1 to {CHAT_ID_MAX} characters"));
            }
            if !call["function"]["arguments"].is_string() {
                return Err(format!("messages[{at}].tool_calls: arguments are a string"));
            }
            open.push(id.to_owned());
        }
    }
    unanswered(&open)
}

/// Checks the turns. Consecutive messages of one role count as one.
fn turns(messages: &[Value], has_tools: bool) -> Result<(), String> {
    let (mut open, mut said): (Vec<String>, bool) = (Vec::new(), false);
    for (at, message) in messages.iter().enumerate() {
        let blocks = list(&message["content"]);
        if blocks.iter().any(|block| block["type"] == "text" && text(block, "text").is_empty()) {
            return Err(format!("messages.{at}: text content blocks must be non-empty"));
        }
        let of_tools = |block: &Value| block["type"] == "tool_use" || block["type"] == "tool_result";
        if !has_tools && blocks.iter().any(of_tools) {
            return Err("requests which include `tool_use` or `tool_result` blocks must define tools".to_owned());
        }
        if message["role"] == "user" {
            said |= message["content"].is_string();
            for block in blocks {
                if block["type"] != "tool_result" {
                    said = true;
                } else if said || !answer(&mut open, text(block, "tool_use_id")) {
                    let words =
                        "each `tool_result` block must have a corresponding `tool_use` block in the previous message";
                    return Err(format!("messages.{at}: unexpected `tool_use_id`; {words}"));
                }
            }
        } else if message["role"] == "assistant" {
            if at > 0 && messages[at - 1]["role"] != "assistant" {
                unanswered(at, &open)?;
            }
            said = false;
            calls(at, blocks, &mut open)?;
        }
    }
    let last = messages.last().filter(|message| message["role"] == "assistant");
    let end = last.map(|last| match &last["content"] {
        Value::String(text) => text.as_str(),
        content => list(content).last().map_or("", |block| text(block, "text")),
    });
    if end.is_some_and(|end| end.ends_with(char::is_whitespace)) {
        return Err("messages: final assistant content cannot end with trailing whitespace".to_owned());
    }
    unanswered(messages.len(), &open)
}

fn unanswered(at: usize, open: &[String]) -> Result<(), String> {
    match open.first() {
        Some(id) => Err(format!(
            "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}"
        )),
        None => Ok(()),
    }
}

fn calls(at: usize, blocks: &[Value], open: &mut Vec<String>) -> Result<(), String> {
    for block in blocks.iter().filter(|block| block["type"] == "tool_use") {
        if !is_plain(text(block, "id")) {
            return Err(format!("messages.{at}: tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"));
        }
        if !block["input"].is_object() {
            return Err(format!("messages.{at}: tool_use.input: Input should be a valid dictionary"));
        }
        open.push(text(block, "id").to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(messages: Value) -> Result<(), String> {
        check(Shape::Chat, &json!({}), list(&messages))
    }

    fn messages(messages: Value) -> Result<(), String> {
        check(Shape::Messages, &json!({ "tools": [{ "name": "f" }] }), list(&messages))
    }

    fn call(id: &str) -> Value {
        json!({ "id": id, "function": { "name": "f", "arguments": "{}" } })
    }

    fn used(id: &str) -> Value {
        json!({ "type": "tool_use", "id": id, "name": "f", "input": {} })
    }

    fn result(id: &str) -> Value {
        json!({ "type": "tool_result", "tool_use_id": id, "content": "" })
    }

    #[test]
    fn chat_results_directly_follow_their_calls() {
        let asked = json!({ "role": "assistant", "tool_calls": [call("a"), call("b")] });
        let tool = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "" });
        let user = json!({ "role": "user", "content": "x" });
        assert_eq!(chat(json!([user, asked, tool("b"), tool("a"), user])), Ok(()));
        for wrong in [
            json!([user, asked, tool("a"), user]),
            json!([user, asked, tool("a")]),
            json!([user, tool("a")]),
            json!([asked, tool("a"), tool("a"), tool("b")]),
            json!([{ "role": "assistant", "tool_calls": [call("")] }, tool("")]),
            json!([{ "role": "assistant", "tool_calls": [call(&"x".repeat(41))] }]),
        ] {
            assert!(chat(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_come_first_and_all_of_them_in_the_next_turn() {
        let user = |content: Value| json!({ "role": "user", "content": content });
        let assistant = |content: Value| json!({ "role": "assistant", "content": content });
        let said = json!({ "type": "text", "text": "x" });
        let asked = assistant(json!([used("a"), used("b")]));
        assert_eq!(messages(json!([user(json!("x")), asked, user(json!([result("b"), result("a"), said]))])), Ok(()));
        assert_eq!(messages(json!([asked, user(json!([result("b")])), user(json!([result("a")]))])), Ok(()));
        for wrong in [
            json!([asked, user(json!([result("a")])), assistant(json!("y"))]),
            json!([asked, user(json!([said, result("a"), result("b")]))]),
            json!([asked, user(json!([result("a"), result("b"), result("c")]))]),
            json!([asked, user(json!("x"))]),
            json!([asked]),
            json!([user(json!([{ "type": "text", "text": "" }]))]),
            json!([user(json!("x")), assistant(json!("y "))]),
            json!([assistant(json!([used("a:b")])), user(json!([result("a:b")]))]),
        ] {
            assert!(messages(wrong.clone()).is_err(), "{wrong}");
        }
        let tools = json!([asked, user(json!([result("b"), result("a")]))]);
        assert!(check(Shape::Messages, &json!({}), list(&tools)).is_err());
    }

    #[test]
    fn length_of_names_is_bounded_by_the_format() {
        let chat = |name: &str| check(Shape::Chat, &json!({ "tools": [{ "function": { "name": name } }] }), &[]);
        let messages = |name: &str| check(Shape::Messages, &json!({ "tools": [{ "name": name }] }), &[]);
        assert!(chat(&"n".repeat(64)).is_ok() && messages(&"n".repeat(128)).is_ok());
        assert!(chat(&"n".repeat(65)).is_err() && messages(&"n".repeat(129)).is_err());
        assert!(chat("a b").is_err() && messages("").is_err());
    }
}
