//! Ten turns with tools at a provider that, like Gemini 3, refuses a missing or foreign thought signature, for clients
//! of every API format. The two examples for Google's endpoints are used with replaced addresses.

use super::client::{Answer, post};
use super::harness::{Harness, Setup, bearer};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const FORMATS: [&str; 3] = ["chat", "messages", "responses"];
const TURNS: usize = 10;
const SKIP: &str = "skip_thought_signature_validator";

/// Returns an example with the simulated provider in place of Google.
fn example(name: &str, id: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/examples").join(name);
    let line = |line: &str| match line.split(" = ").next() {
        Some("base_url") => "base_url = \"http://{provider}/v1beta/openai\"\n".to_owned(),
        Some("api_key") => "api_key = { env = \"SIM_KEY\" }\n".to_owned(),
        Some("id") => format!("id = \"{id}\"\n"),
        _ => format!("{line}\n"),
    };
    fs::read_to_string(path).unwrap().lines().map(line).collect()
}

fn harness() -> Harness {
    let more = example("gemini.toml", "flash") + &example("vertex.toml", "vertex");
    Harness::start(&Setup { more, ..Setup::default() })
}

/// A client that keeps its conversation.
struct Agent<'h> {
    h: &'h Harness,
    key: &'h str,
    format: &'static str,
    streams: bool,
    /// True if it keeps only the fields that every provider knows.
    forgets: bool,
    history: Vec<Value>,
}

impl<'h> Agent<'h> {
    fn new(h: &'h Harness, key: &'h str, format: &'static str, streams: bool, text: &str) -> Agent<'h> {
        let history = vec![json!({ "role": "user", "content": text })];
        Agent { h, key, format, streams, forgets: false, history }
    }

    fn ask(&self, model: &str) -> Answer {
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        let (path, mut body) = match self.format {
            "chat" => (
                "/v1/chat/completions",
                json!({ "messages": self.history, "tools": [
                    { "type": "function", "function": { "name": "look", "parameters": schema } }] }),
            ),
            "messages" => (
                "/v1/messages",
                json!({ "max_tokens": 99_999, "messages": self.history,
                        "tools": [{ "name": "look", "input_schema": schema }] }),
            ),
            _ => (
                "/v1/responses",
                json!({ "input": self.history, "tools": [
                    { "type": "function", "name": "look", "parameters": schema }] }),
            ),
        };
        (body["model"], body["stream"]) = (json!(model), json!(self.streams));
        let answer = self.h.client().ask(&post(path, &[("authorization", &bearer(self.key))], &body.to_string()));
        assert_eq!(answer.status(), 200, "{} at {model}: {}", self.format, answer.text());
        answer
    }

    /// Runs one turn: keeps the answer, and appends the results of its calls. Returns the number of calls.
    fn turn(&mut self, model: &str) -> usize {
        let answer = self.ask(model);
        let events: Vec<Value> = match self.streams {
            true => answer.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect(),
            false => vec![answer.json()],
        };
        match self.format {
            "chat" => self.keep_chat(&events),
            "messages" => self.keep_messages(&events),
            _ => self.keep_responses(&events),
        }
    }

    fn keep_chat(&mut self, events: &[Value]) -> usize {
        let mut calls: Vec<Value> = Vec::new();
        let mut text = String::new();
        for event in events {
            let choice = &event["choices"][0];
            let said = choice.get("delta").unwrap_or(&choice["message"]);
            text += said["content"].as_str().unwrap_or_default();
            for entry in said["tool_calls"].as_array().into_iter().flatten() {
                match entry.get("id") {
                    Some(_) => calls.push(entry.clone()),
                    None => {
                        let arguments = &mut calls.last_mut().unwrap()["function"]["arguments"];
                        *arguments = json!(
                            arguments.as_str().unwrap().to_owned() + entry["function"]["arguments"].as_str().unwrap()
                        );
                    }
                }
            }
        }
        for call in &mut calls {
            call.as_object_mut().unwrap().remove("index");
            if self.forgets {
                call.as_object_mut().unwrap().remove("extra_content");
            }
        }
        let mut message = json!({ "role": "assistant", "content": text });
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        self.history.push(message);
        let result = |call: &Value| json!({ "role": "tool", "tool_call_id": call["id"], "content": "found" });
        self.history.extend(calls.iter().map(result));
        calls.len()
    }

    fn keep_messages(&mut self, events: &[Value]) -> usize {
        let mut blocks: Vec<Value> = Vec::new();
        let mut input = String::new();
        for event in events {
            blocks.extend(event["content"].as_array().cloned().unwrap_or_default());
            if event["type"] == "content_block_start" {
                blocks.push(event["content_block"].clone());
                input.clear();
            }
            let Some(block) = blocks.last_mut() else { continue };
            for name in ["text", "thinking", "signature"] {
                if let Some(more) = event["delta"][name].as_str() {
                    block[name] = json!(block[name].as_str().unwrap_or_default().to_owned() + more);
                }
            }
            input += event["delta"]["partial_json"].as_str().unwrap_or_default();
            if event["type"] == "content_block_stop" && block["type"] == "tool_use" {
                block["input"] = serde_json::from_str(&input).unwrap();
            }
        }
        if self.forgets {
            blocks.retain(|block| block["type"] != "thinking");
        }
        let result = |call: &Value| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "found" });
        let results: Vec<Value> = blocks.iter().filter(|block| block["type"] == "tool_use").map(result).collect();
        self.history.push(json!({ "role": "assistant", "content": blocks }));
        let count = results.len();
        if count > 0 {
            self.history.push(json!({ "role": "user", "content": results }));
        }
        count
    }

    fn keep_responses(&mut self, events: &[Value]) -> usize {
        let last = events.last().unwrap();
        let output = last.get("response").unwrap_or(last)["output"].as_array().unwrap();
        let kept = output.iter().filter(|item| !self.forgets || item["type"] != "reasoning").cloned();
        self.history.extend(kept);
        let result =
            |call: &Value| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "found" });
        let results: Vec<Value> = output.iter().filter(|item| item["type"] == "function_call").map(result).collect();
        self.history.extend(results.iter().cloned());
        results.len()
    }
}

/// Returns the signatures of the calls in the last request to the provider, by message.
fn signatures(h: &Harness) -> Vec<Vec<String>> {
    let (_, body) = h.last();
    let signature =
        |call: &Value| call["extra_content"]["google"]["thought_signature"].as_str().unwrap_or_default().to_owned();
    let calls = |message: &Value| message["tool_calls"].as_array().map(|calls| calls.iter().map(signature).collect());
    body["messages"].as_array().into_iter().flatten().filter_map(calls).collect()
}

#[test]
fn ten_turns_with_parallel_calls_keep_every_signature() {
    let h = harness();
    let key = h.key();
    for format in FORMATS {
        for (streams, model, length) in [(false, "flash", 44), (true, "flash", 16_384), (true, "vertex", 44)] {
            let text = format!("Look.\n#sim turns={TURNS} calls=2 signature={length}");
            let mut agent = Agent::new(&h, &key, format, streams, &text);
            let called = (0..TURNS).map(|_| agent.turn(model)).collect::<Vec<_>>();
            assert_eq!((called, agent.turn(model)), (vec![2; TURNS], 0), "{format} {streams} {model}");
            let sent = signatures(&h);
            assert_eq!(sent.len(), TURNS);
            for calls in sent {
                assert!(calls[0].len() == length && calls[0] != SKIP && calls[1].is_empty(), "{format}: {calls:?}");
            }
        }
    }
}

#[test]
fn a_client_that_forgets_signatures_continues_with_the_skip_word() {
    let h = harness();
    let key = h.key();
    for format in FORMATS {
        let mut agent = Agent::new(&h, &key, format, true, "Look.\n#sim turns=3 calls=2");
        agent.forgets = true;
        assert_eq!((0..4).map(|_| agent.turn("flash")).collect::<Vec<_>>(), [2, 2, 2, 0], "{format}");
        assert_eq!(signatures(&h), vec![[SKIP, ""]; 3], "{format}");
    }
}

#[test]
fn ten_turns_at_changing_models_send_no_model_the_signature_of_another() {
    let h = harness();
    let key = h.key();
    for format in ["messages", "responses"] {
        for streams in [false, true] {
            let mut agent = Agent::new(&h, &key, format, streams, "Look.\n#sim turns=10 calls=2 think=2");
            let models = ["flash", "vertex", "large", "flash", "small"];
            for model in models.iter().cycle().take(TURNS) {
                assert_eq!(agent.turn(model), 2, "{format} at {model}");
                if *model == "flash" || *model == "vertex" {
                    let own = format!("{format} {streams} {model}");
                    let sent: Vec<String> = signatures(&h).into_iter().map(|mut calls| calls.swap_remove(0)).collect();
                    // Signatures of this model come back. In place of all others the provider receives [`SKIP`].
                    let made = models.iter().cycle().take(sent.len()).map(|made| made == model);
                    for (signature, is_own) in sent.iter().zip(made) {
                        assert_eq!(signature != SKIP, is_own, "{own}: {sent:?}");
                    }
                } else {
                    let sent = h.last().1.to_string();
                    assert!(
                        !sent.contains("tg1.") && !sent.contains("thought_signature"),
                        "{format} at {model}: {sent}"
                    );
                }
            }
            assert_eq!(agent.turn("vertex"), 0);
        }
    }
}

#[test]
fn a_refusal_of_a_gemini_model_reaches_the_client() {
    // The body is an array: Gitlawb/openclaude#583.
    let h = harness();
    let key = h.key();
    let call = json!({ "id": "c", "type": "function", "function": { "name": "look", "arguments": "{}" },
        "extra_content": { "google": { "thought_signature": "c2ln" } } });
    let body = json!({ "model": "flash", "messages": [{ "role": "user", "content": "a" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c", "content": "r" }] });
    let answer = h.chat(&key, &body);
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json()["error"]["message"], "Corrupted thought signature.");
}
