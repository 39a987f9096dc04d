//! Properties over generated answers and conversations.

use super::*;
use crate::base::rng::Rng;
use crate::wire::ModelEndpoint;
use serde_json::json;

/// A tool call: id, name, arguments as JSON text.
type Call = (String, String, String);

/// An answer that both formats can express.
#[derive(Debug)]
pub(super) struct Answer {
    thinking: String,
    text: String,
    calls: Vec<Call>,
    /// As (chat, messages).
    stop: (&'static str, &'static str),
    counts: [u64; 5],
}

fn words(rng: &mut Rng, most: u64) -> String {
    const PIECES: &[&str] =
        &["one ", "zwei ", "三", "\n", "\"quoted\" ", "back\\slash ", "🎉", "tab\t", "x", "{\"a\":1} ", "data: "];
    (0..rng.below(most)).map(|_| PIECES[rng.below(PIECES.len() as u64) as usize]).collect()
}

fn arguments(rng: &mut Rng) -> String {
    match rng.below(4) {
        0 => "{}".to_owned(),
        1 => format!("{{\"z\":{},\"a\":[1.0,true,null]}}", rng.next_u64()),
        2 => format!("{{\"text\":{}}}", Value::String(words(rng, 6))),
        _ => "{\"deep\":{\"list\":[[],{}],\"n\":-0.5e-3}}".to_owned(),
    }
}

pub(super) fn answer(rng: &mut Rng) -> Answer {
    let calls: Vec<Call> = (0..rng.below(4).saturating_sub(1))
        .map(|at| (format!("call_{at}_{}", rng.below(1000)), format!("tool_{}", rng.below(3)), arguments(rng)))
        .collect();
    let stop = match rng.below(4) {
        _ if !calls.is_empty() => ("tool_calls", "tool_use"),
        0 => ("length", "max_tokens"),
        1 => ("content_filter", "refusal"),
        _ => ("stop", "end_turn"),
    };
    let counts = [rng.below(1000), rng.below(500), rng.below(50), rng.below(900), rng.below(90)];
    Answer { thinking: words(rng, 4), text: words(rng, 8), calls, stop, counts }
}

/// Cuts a text into pieces at random characters.
fn pieces<'a>(rng: &mut Rng, text: &'a str) -> Vec<&'a str> {
    let mut cuts: Vec<usize> =
        text.char_indices().map(|(at, _)| at).filter(|at| *at > 0 && rng.below(3) == 0).collect();
    cuts.push(text.len());
    let mut from = 0;
    cuts.into_iter().filter(|_| !text.is_empty()).map(|to| &text[std::mem::replace(&mut from, to)..to]).collect()
}

impl Answer {
    fn chat_usage(&self) -> Value {
        let [input, read, written, output, reasoning] = self.counts;
        let prompt = input + read + written;
        json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": reasoning}})
    }

    fn messages_usage(&self) -> Value {
        let [input, read, written, output, reasoning] = self.counts;
        json!({"input_tokens": input, "cache_read_input_tokens": read, "cache_creation_input_tokens": written,
            "output_tokens": output, "output_tokens_details": {"thinking_tokens": reasoning}})
    }

    pub(super) fn chat_whole(&self) -> String {
        let mut message = json!({"role": "assistant", "content": self.text, "reasoning_content": self.thinking});
        if !self.calls.is_empty() {
            let call = |(id, name, args): &Call| {
                let function = json!({"name": name, "arguments": args});
                json!({"id": id, "type": "function", "function": function})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        json!({"id": "c", "object": "chat.completion", "model": "m", "usage": self.chat_usage(),
            "choices": [{"index": 0, "message": message, "finish_reason": self.stop.0}]})
        .to_string()
    }

    pub(super) fn messages_whole(&self) -> String {
        let mut content = Vec::new();
        if !self.thinking.is_empty() {
            content.push(json!({"type": "thinking", "thinking": self.thinking, "signature": "s"}).to_string());
        }
        if !self.text.is_empty() {
            content.push(json!({"type": "text", "text": self.text}).to_string());
        }
        for (id, name, args) in &self.calls {
            // Written by hand, since the order and the numbers of the input matter.
            content.push(format!("{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"{name}\",\"input\":{args}}}"));
        }
        format!(
            "{{\"id\":\"m\",\"type\":\"message\",\"content\":[{}],\"stop_reason\":\"{}\",\"usage\":{}}}",
            content.join(","),
            self.stop.1,
            self.messages_usage()
        )
    }

    pub(super) fn chat_stream(&self, rng: &mut Rng) -> String {
        let mut out = String::new();
        let mut delta = |delta: Value, finish: Value| {
            let chunk = json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
            out += &format!("data: {chunk}\n\n");
        };
        delta(json!({"role": "assistant", "content": ""}), Value::Null);
        for piece in pieces(rng, &self.thinking) {
            delta(json!({"reasoning_content": piece}), Value::Null);
        }
        for piece in pieces(rng, &self.text) {
            delta(json!({"content": piece}), Value::Null);
        }
        // The fragments of all calls, interleaved by the seed.
        let mut queues: Vec<(usize, Vec<Value>)> = Vec::new();
        for (index, (id, name, args)) in self.calls.iter().enumerate() {
            let open =
                json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            let rest =
                pieces(rng, args).into_iter().map(|piece| json!({"index": index, "function": {"arguments": piece}}));
            queues.push((0, std::iter::once(open).chain(rest).collect()));
        }
        let mut opened = 0;
        while queues.iter().any(|(at, queue)| at < &queue.len()) {
            let pick = rng.below(queues.len() as u64) as usize;
            let (at, queue) = &mut queues[pick];
            // Calls open in order; then their fragments arrive in any order.
            if *at < queue.len() && (*at > 0 || pick == opened) {
                opened += usize::from(*at == 0);
                delta(json!({"tool_calls": [queue[*at].clone()]}), Value::Null);
                *at += 1;
            }
        }
        delta(json!({}), json!(self.stop.0));
        out += &format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": self.chat_usage()}));
        out
    }

    pub(super) fn messages_stream(&self, rng: &mut Rng) -> String {
        let mut out = String::new();
        let mut event = |data: Value| out += &format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap());
        let usage = self.messages_usage();
        event(json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": usage["input_tokens"],
            "output_tokens": 1}}}));
        let mut index = 0;
        let mut block = |start: Value, deltas: Vec<Value>| {
            event(json!({"type": "content_block_start", "index": index, "content_block": start}));
            for delta in deltas {
                event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
            }
            event(json!({"type": "content_block_stop", "index": index}));
            index += 1;
        };
        if !self.thinking.is_empty() {
            let delta = |piece| json!({"type": "thinking_delta", "thinking": piece});
            let deltas = pieces(rng, &self.thinking).into_iter().map(delta);
            let signature = json!({"type": "signature_delta", "signature": "s"});
            block(json!({"type": "thinking", "thinking": "", "signature": ""}), deltas.chain([signature]).collect());
        }
        if !self.text.is_empty() {
            let delta = |piece| json!({"type": "text_delta", "text": piece});
            block(json!({"type": "text", "text": ""}), pieces(rng, &self.text).into_iter().map(delta).collect());
        }
        for (id, name, args) in &self.calls {
            let delta = |piece| json!({"type": "input_json_delta", "partial_json": piece});
            // An empty input may come without any delta.
            let args = if args == "{}" && rng.below(2) == 0 { "" } else { args };
            let deltas = pieces(rng, args).into_iter().map(delta).collect();
            block(json!({"type": "tool_use", "id": id, "name": name, "input": {}}), deltas);
        }
        event(json!({"type": "message_delta", "delta": {"stop_reason": self.stop.1}, "usage": usage}));
        event(json!({"type": "message_stop"}));
        out
    }
}

fn events(stream: &str) -> impl Iterator<Item = Value> {
    let data = stream.split("\n\n").filter_map(|event| Some(event.split_once("data: ")?.1));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap())
}

fn append(place: &mut Value, more: &Value) {
    let text = place.as_str().unwrap_or_default().to_owned() + more.as_str().unwrap();
    *place = Value::String(text);
}

/// Assembles a chat stream as a client's library does.
pub(super) fn accumulate_chat(stream: &str) -> Value {
    let mut message = json!({"role": null, "content": "", "refusal": null});
    let (mut finish, mut usage, mut calls) = (Value::Null, Value::Null, Vec::<Value>::new());
    for chunk in events(stream) {
        assert_eq!(
            (&chunk["id"], &chunk["model"], &chunk["created"]),
            (&json!(ME_ID), &json!(ME.model), &json!(ME.created))
        );
        if let Some(choice) = chunk["choices"].get(0) {
            for (key, value) in choice["delta"].as_object().unwrap() {
                match key.as_str() {
                    "role" => {
                        assert!(message["role"].is_null(), "role came twice");
                        message["role"] = value.clone();
                    }
                    "tool_calls" => accumulate_call(&value[0], &mut calls),
                    _ if value.is_null() => {}
                    _ => append(&mut message[key], value),
                }
            }
            finish = if choice["finish_reason"].is_null() { finish } else { choice["finish_reason"].clone() };
        } else {
            usage = chunk["usage"].clone();
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
        message["content"] = if message["content"] == "" { Value::Null } else { message["content"].clone() };
    }
    json!({"id": ME_ID, "object": "chat.completion", "created": ME.created, "model": ME.model, "usage": usage,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}]})
}

fn accumulate_call(entry: &Value, calls: &mut Vec<Value>) {
    let index = entry["index"].as_u64().unwrap() as usize;
    if entry.get("id").is_some() {
        assert_eq!(index, calls.len(), "calls come in order, each opened once");
        let mut entry = entry.clone();
        entry.as_object_mut().unwrap().remove("index");
        calls.push(entry);
    } else {
        assert_eq!(entry["function"].as_object().unwrap().len(), 1);
        append(&mut calls[index]["function"]["arguments"], &entry["function"]["arguments"]);
    }
}

/// Assembles a messages stream and checks the strict order of blocks.
pub(super) fn accumulate_messages(stream: &str) -> Value {
    let (mut message, mut blocks, mut open) = (Value::Null, Vec::<Value>::new(), false);
    let (mut partial, mut ended) = (String::new(), false);
    for event in events(stream) {
        assert!(!ended, "nothing follows message_stop");
        match event["type"].as_str().unwrap() {
            "message_start" => {
                assert!(message.is_null());
                assert!(event["message"]["usage"]["input_tokens"].as_u64() > Some(0));
                message = event["message"].clone();
            }
            "content_block_start" => {
                assert!(!open && !message.is_null());
                assert_eq!(event["index"], json!(blocks.len()));
                (open, partial) = (true, String::new());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(open && event["index"] == json!(blocks.len() - 1));
                let block = blocks.last_mut().unwrap();
                let (kind, delta) = (block["type"].clone(), &event["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" if kind == "text" => append(&mut block["text"], &delta["text"]),
                    "thinking_delta" if kind == "thinking" => append(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" if kind == "thinking" => {}
                    "input_json_delta" if kind == "tool_use" => partial += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other} in a block of {kind}"),
                }
            }
            "content_block_stop" => {
                assert!(open && event["index"] == json!(blocks.len() - 1));
                open = false;
                if !partial.is_empty() {
                    blocks.last_mut().unwrap()["input"] = serde_json::from_str(&partial).unwrap();
                }
            }
            "message_delta" => {
                assert!(!open);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => ended = true,
            other => panic!("{other}"),
        }
    }
    assert!(ended);
    message["content"] = Value::Array(blocks);
    message
}

#[test]
fn translated_stream_equals_the_translated_complete_answer() {
    for seed in 0..400 {
        let mut rng = Rng::from_u64(seed);
        let answer = answer(&mut rng);
        let state = TranslationState::default();
        let whole = |from: Shape, body: String| {
            let mut out = Vec::new();
            let observed = reply((from, other(from)), body.as_bytes(), &state, &ME, &mut out).unwrap();
            (serde_json::from_slice::<Value>(&out).unwrap(), observed)
        };
        let text = answer.messages_stream(&mut rng);
        let outcome =
            stream(Shape::Messages, &state, true, &ME, &text.as_bytes().chunks(1 + seed as usize).collect::<Vec<_>>());
        assert_eq!(outcome.result, Ok(()), "seed {seed}");
        let (want, observed) = whole(Shape::Messages, answer.messages_whole());
        assert_eq!(accumulate_chat(&outcome.out), want, "seed {seed}: {answer:?}");
        assert_eq!(outcome.observed.reported, observed.reported, "seed {seed}");

        let text = answer.chat_stream(&mut rng);
        let outcome =
            stream(Shape::Chat, &state, false, &ME, &text.as_bytes().chunks(1 + seed as usize).collect::<Vec<_>>());
        assert_eq!(outcome.result, Ok(()), "seed {seed}");
        let (want, observed) = whole(Shape::Chat, answer.chat_whole());
        assert_eq!(accumulate_messages(&outcome.out), want, "seed {seed}: {answer:?}");
        assert_eq!(outcome.observed.reported, observed.reported, "seed {seed}");
    }
}

#[test]
fn response_written_as_a_stream_equals_the_translated_response() {
    for seed in 0..200 {
        let answer = answer(&mut Rng::from_u64(seed));
        let state = TranslationState::default();
        for (from, body) in [(Shape::Messages, answer.messages_whole()), (Shape::Chat, answer.chat_whole())] {
            let mut out = Vec::new();
            let observed = reply((from, other(from)), body.as_bytes(), &state, &ME, &mut out).unwrap();
            let want: Value = serde_json::from_slice(&out).unwrap();
            // White space between its members must not end an event.
            let body = body.replacen('{', "{\n\r\n", 1);
            let written = unstreamed((from, other(from)), &state, &body).unwrap();
            assert_eq!(written.result, Ok(()), "seed {seed}");
            let got = match from {
                Shape::Messages => accumulate_chat(&written.out),
                _ => accumulate_messages(&written.out),
            };
            assert_eq!(got, want, "seed {seed}: {answer:?}");
            assert_eq!(written.observed.reported, observed.reported, "seed {seed}");
        }
    }
}

/// A conversation in the messages format with content that both formats can express.
fn conversation(rng: &mut Rng) -> Value {
    let text = |rng: &mut Rng| format!("t{}", words(rng, 5).trim_end());
    let mut messages = Vec::new();
    for turn in 0..1 + rng.below(4) {
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}});
        let mut user = vec![json!({"type": "text", "text": text(rng)})];
        user.extend((rng.below(3) == 0).then_some(image));
        if let Some(calls) = messages.last().map(|m: &Value| m["content"].clone()).filter(|_| turn > 0) {
            let results = calls.as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
            let results: Vec<Value> = results
                .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": text(rng)}))
                .collect();
            user.splice(0..0, results);
        }
        messages.push(json!({"role": "user", "content": user}));
        let mut blocks = vec![json!({"type": "text", "text": text(rng)})];
        for at in 0..rng.below(3) {
            let input: Value = serde_json::from_str(&arguments(rng)).unwrap();
            blocks.push(json!({"type": "tool_use", "id": format!("toolu_{turn}_{at}"), "name": "f", "input": input}));
        }
        messages.push(json!({"role": "assistant", "content": blocks}));
    }
    messages.pop();
    let mut body = json!({"model": "m", "max_tokens": 1 + rng.below(999), "messages": messages,
        "system": [{"type": "text", "text": text(rng)}], "temperature": 0.5, "stop_sequences": ["END", "x"],
        "metadata": {"user_id": "u-1"},
        "tools": [{"name": "f", "description": "d",
            "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}}]});
    body["tool_choice"] = match rng.below(4) {
        0 => json!({"type": "any"}),
        1 => json!({"type": "tool", "name": "f"}),
        2 => json!({"type": "auto", "disable_parallel_tool_use": true}),
        _ => json!({"type": "none"}),
    };
    if rng.below(2) == 0 {
        body["stream"] = json!(true);
    }
    body
}

#[test]
fn request_survives_a_round_trip_between_formats() {
    for seed in 0..400 {
        let mut rng = Rng::from_u64(seed);
        let body = conversation(&mut rng);
        let capabilities = Capabilities::default();
        let (there, _) = request(Shape::Messages, &body.to_string(), "m", &capabilities).unwrap();
        let (back, _) = request(Shape::Chat, &there.to_string(), "m", &capabilities).unwrap();
        assert_eq!(back, body, "seed {seed}: by way of {there}");
    }
}

#[test]
fn numbers_and_member_order_are_preserved_exactly() {
    let arguments = r#"{"z": 12345678901234567890123, "a": 1.0, "m": {"y": -0e10, "b": "\u00e9\/"}}"#;
    let compact = r#"{"z":12345678901234567890123,"a":1.0,"m":{"y":-0e10,"b":"\u00e9\/"}}"#;
    let translated = |from: Shape, body: &str| {
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::generate(from));
        scan.finish(body.as_bytes()).unwrap();
        let (mut out, capabilities) = (Vec::new(), Capabilities::default());
        let target = RequestTarget { model: "m", shape: other(from), capabilities: &capabilities, cache_key: None };
        translate(from, body.as_bytes(), &scan, &target, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let body = format!(
        r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f","arguments":{}}}}}]}}],
            "tools":[{{"function":{{"name":"f","parameters":{arguments}}}}}]}}"#,
        Value::String(arguments.to_owned())
    );
    let out = translated(Shape::Chat, &body);
    assert!(out.contains(&format!("\"input\":{compact}")), "{out}");
    assert!(out.contains(&format!("\"input_schema\":{{\"type\":\"object\",{}", &compact[1..])), "{out}");
    let body = format!(
        r#"{{"max_tokens":1,"messages":[{{"role":"assistant","content":[
            {{"type":"tool_use","id":"a","name":"f","input":{arguments}}}]}}]}}"#
    );
    let out = translated(Shape::Messages, &body);
    let escaped = Value::String(compact.to_owned()).to_string();
    assert!(out.contains(&format!("\"arguments\":{escaped}")), "{out}");
}

#[test]
fn waiting_arguments_are_bounded_and_reported() {
    let run = |text: &str| {
        stream(
            Shape::Chat,
            &TranslationState::default(),
            false,
            &ME,
            &text.as_bytes().chunks(60_000).collect::<Vec<_>>(),
        )
    };
    let entry = |index: usize, id: &str, name: &str, args: &str| {
        let entry = json!({"index": index, "id": id, "function": {"name": name, "arguments": args}});
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"tool_calls": [entry]}}]}))
    };
    let more = |index: usize, args: &str| {
        let entry = json!({"index": index, "function": {"arguments": args}});
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"tool_calls": [entry]}}]}))
    };
    let piece = "x".repeat(100_000);
    // The open call streams through, regardless of its length.
    let open = entry(0, "a", "f", "") + &more(0, &piece).repeat(60);
    assert_eq!(run(&open).result, Err(StreamFault::Incomplete));
    // A second one waits, up to the bound.
    let waiting = entry(0, "a", "f", "") + &entry(1, "b", "g", "");
    assert_eq!(run(&(waiting.clone() + &more(1, &piece).repeat(40))).result, Err(StreamFault::Incomplete));
    assert_eq!(run(&(waiting + &more(1, &piece).repeat(60))).result, Err(StreamFault::TooLarge));
    // So do arguments that arrive before their name.
    assert_eq!(run(&more(0, &piece).repeat(60)).result, Err(StreamFault::TooLarge));
    let many: String = (0..200).map(|at| entry(at, &format!("c{at}"), "f", "{}")).collect();
    assert_eq!(run(&many).result, Err(StreamFault::TooLarge));
    // A call whose name never arrives is invalid, and its stream incomplete.
    let nameless = more(0, "{}")
        + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    assert_eq!(run(&nameless).result, Err(StreamFault::Malformed));
}
