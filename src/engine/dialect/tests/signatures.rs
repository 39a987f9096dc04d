//! Gemini's thought signatures: they are returned to the target that made them, and a call that is checked is never
//! sent without one. Facts: <https://ai.google.dev/gemini-api/docs/thought-signatures> ("OpenAI", "FAQs") and
//! <https://docs.cloud.google.com/vertex-ai/generative-ai/docs/thought-signatures>. Answers of providers are in
//! `tests/fixtures/reports/thought-signatures.txt`.

use super::reports::replayed;
use super::responses::json;
use super::*;
use serde_json::json as value;

const SKIP: &str = "skip_thought_signature_validator";
const FORMATS: [Shape; 3] = [Shape::Chat, Shape::Messages, Shape::Responses];

/// A step of a conversation.
enum Step {
    User(&'static str),
    /// Calls and their results, with an optional carrier before the first.
    Calls(&'static [&'static str], Option<String>),
    /// A result followed by a text of the user.
    CallsAndText(&'static str, &'static str),
}

use crate::wire::ModelEndpoint;
use Step::{Calls, CallsAndText, User};

fn carrier(mark: &carrier::TargetMark, block: &str) -> Option<String> {
    let mut out = Vec::new();
    carrier::close(block.as_bytes(), mark, &mut out);
    Some(String::from_utf8(out).unwrap())
}

/// The request of a client of format `from`.
fn history(from: Shape, steps: &[Step]) -> String {
    let mut items: Vec<Value> = Vec::new();
    for step in steps {
        let (ids, carrier, text): (&[&str], _, _) = match step {
            User(text) => (&[], &None, Some(*text)),
            Calls(ids, carrier) => (ids, carrier, None),
            CallsAndText(id, text) => (std::slice::from_ref(id), &None, Some(*text)),
        };
        if !ids.is_empty() {
            turn(from, ids, carrier.as_deref(), &mut items);
        }
        let user = text.map(|text| value!({"role": "user", "content": [{"type": "text", "text": text}]}));
        match (text, items.last_mut().filter(|last| from == Shape::Messages && last["role"] == "user")) {
            (Some(text), Some(last)) => {
                last["content"].as_array_mut().unwrap().push(value!({"type": "text", "text": text}));
            }
            (Some(text), None) if from == Shape::Responses => items.push(value!({"role": "user", "content": text})),
            _ => items.extend(user),
        }
    }
    match from {
        Shape::Responses => value!({"model": "m", "input": items}).to_string(),
        _ => value!({"model": "m", "max_tokens": 9, "messages": items}).to_string(),
    }
}

/// A message that calls `f` with each id, and the results.
fn turn(from: Shape, ids: &[&str], carrier: Option<&str>, items: &mut Vec<Value>) {
    let each = |of: &dyn Fn(&str) -> Value| ids.iter().map(|id| of(id)).collect::<Vec<_>>();
    match from {
        Shape::Messages => {
            let thought = carrier.map(|own| value!({"type": "thinking", "thinking": "", "signature": own}));
            let mut content: Vec<Value> = thought.into_iter().collect();
            content.extend(each(&|id| value!({"type": "tool_use", "id": id, "name": "f", "input": {}})));
            items.push(value!({"role": "assistant", "content": content}));
            let results = each(&|id| value!({"type": "tool_result", "tool_use_id": id, "content": "r"}));
            items.push(value!({"role": "user", "content": results}));
        }
        Shape::Responses => {
            items.extend(carrier.map(|own| value!({"type": "reasoning", "summary": [], "encrypted_content": own})));
            items.extend(each(&|id| value!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})));
            items.extend(each(&|id| value!({"type": "function_call_output", "call_id": id, "output": "r"})));
        }
        _ => {
            let calls =
                each(&|id| value!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}));
            items.push(value!({"role": "assistant", "content": null, "tool_calls": calls}));
            items.extend(each(&|id| value!({"role": "tool", "tool_call_id": id, "content": "r"})));
        }
    }
}

/// The body that a chat target receives.
fn sent(from: Shape, body: &str, takes: &Capabilities) -> String {
    if from != Shape::Chat {
        return request_for((from, Shape::Chat), body, "up", takes).unwrap().0.to_string();
    }
    let mut scan = RequestScan::new();
    scan.reset(ModelEndpoint::generate(from));
    scan.finish(body.as_bytes()).unwrap_or_else(|invalid| panic!("{}: {body}", invalid.0));
    let with = RequestTarget { model: "up", shape: from, capabilities: takes, cache_key: None };
    let (mut text, mut pieces, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let total =
        rewrite(ModelEndpoint::generate(from), body.as_bytes(), scan.fields(), &with, &mut text, &mut pieces).unwrap();
    for piece in &pieces {
        out.extend_from_slice(match piece {
            RewritePiece::Body(span) => span.of(body.as_bytes()),
            RewritePiece::Text(span) => span.of(&text),
        });
    }
    assert_eq!(total, out.len() as u64);
    String::from_utf8(out).unwrap()
}

/// Id and signature of each call that a chat target receives; `-` if it has none.
fn signed(from: Shape, steps: &[Step], takes: &Capabilities) -> String {
    let body: Value = serde_json::from_str(&sent(from, &history(from, steps), takes)).unwrap();
    let messages = body["messages"].as_array().unwrap();
    let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let one = |call: &Value| {
        let signature = call["extra_content"]["google"]["thought_signature"].as_str().unwrap_or("-");
        format!("{}:{signature}", call["id"].as_str().unwrap())
    };
    calls.map(one).collect::<Vec<_>>().join(" ").replace(SKIP, "skip")
}

fn gemini(mark: carrier::TargetMark) -> Capabilities {
    Capabilities { thought_signatures: true, mark, developer_role: false, ..Capabilities::default() }
}

#[test]
fn signature_of_16_kb_passes_complete_and_streamed() {
    let own = "aB3/+=".repeat(16 * 1024 / 6);
    let call = value!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": own}}});
    let whole = value!({"choices": [{"index": 0, "finish_reason": "stop", "message": {
        "role": "assistant", "content": null, "tool_calls": [call]}}]});
    let chunk = value!({"choices": [{"index": 0, "finish_reason": "stop", "delta": {"tool_calls": [call]}}]});
    let stream = format!("data: {chunk}\n\ndata: [DONE]");
    for to in [Shape::Messages, Shape::Responses] {
        for (streams, answer) in [(false, whole.to_string()), (true, stream.clone())] {
            let back = replayed(to, streams, &answer, &gemini([0; 8]));
            assert_eq!(back["tool_calls"][0]["extra_content"], call["extra_content"], "{to:?} {streams}");
        }
    }
    let body = value!({"model": "m", "messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"}]})
    .to_string();
    assert_eq!(sent(Shape::Chat, &body, &gemini([0; 8])), body.replace("\"m\"", "\"up\""));
}

#[test]
fn signature_is_directly_before_its_call() {
    let answer = r#"{"choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":"Text.",
        "reasoning_content":"Thought.","tool_calls":[
        {"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"},
         "extra_content":{"google":{"thought_signature":"c2ln"}}},
        {"id":"call_2","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}"#;
    for (to, want) in [
        (Shape::Messages, "thinking text thinking tool_use tool_use"),
        (Shape::Responses, "reasoning message reasoning function_call function_call"),
    ] {
        let (_, state) =
            request_for((to, Shape::Chat), &history(to, &[User("a")]), "up", &gemini(*b"0a1b2c3d")).unwrap();
        let mut out = Vec::new();
        reply((Shape::Chat, to), answer.as_bytes(), &state, &ME, &mut out).unwrap();
        let whole: Value = serde_json::from_slice(&out).unwrap();
        let list = &whole[if to == Shape::Messages { "content" } else { "output" }];
        let kinds: Vec<&str> = list.as_array().unwrap().iter().map(|part| part["type"].as_str().unwrap()).collect();
        assert_eq!(kinds.join(" "), want);
        let carrier = list[2].get("signature").or(list[2].get("encrypted_content")).unwrap().as_str().unwrap();
        let held = carrier::open(carrier.as_bytes(), b"0a1b2c3d").unwrap();
        assert_eq!(String::from_utf8(held).unwrap(), r#"[{"thought_signature":"c2ln","id":"call_1"}]"#);
    }
}

#[test]
fn collected_stream_keeps_its_signature_for_a_chat_client() {
    let chunk = r#"{"choices":[{"index":0,"finish_reason":"stop","delta":{"tool_calls":[{"id":"call_1","type":"function",
        "function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"c2ln"}}}]}}]}"#;
    let stream = format!("data: {}\n\ndata: [DONE]\n\n", chunk.replace('\n', ""));
    let mut out = Vec::new();
    let way = (Shape::Chat, Shape::Chat);
    reply(way, stream.as_bytes(), &TranslationState::default(), &ME, &mut out).unwrap();
    let call = &json(std::str::from_utf8(&out).unwrap())["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["extra_content"]["google"]["thought_signature"], "c2ln");
}

#[test]
fn first_unsigned_call_of_each_message_gets_the_placeholder() {
    // TS "FAQs": the placeholder for histories of other models. BerriAI/litellm and the AI SDK send it as well.
    let steps = [
        User("earlier"),
        Calls(&["a", "b"], None),
        User("now"),
        Calls(&["c", "d"], None),
        Calls(&["e"], None),
        Calls(&["f__thought__c2ln"], None),
    ];
    for from in FORMATS {
        let want = "a:- b:- c:skip d:- e:skip f__thought__c2ln:skip";
        assert_eq!(signed(from, &steps, &gemini([0; 8])), want, "{from:?}");
        let developer = Capabilities { developer_role: true, ..gemini([0; 8]) };
        assert_eq!(signed(from, &steps, &developer), want, "{from:?}");
        let other = Capabilities { thought_signatures: false, ..gemini([0; 8]) };
        assert_eq!(signed(from, &steps, &other), want.replace("skip", "-"), "{from:?}");
    }
}

#[test]
fn text_next_to_a_tool_result_begins_the_turn() {
    let steps = [User("a"), CallsAndText("x", "go on"), Calls(&["y"], None)];
    for from in FORMATS {
        assert_eq!(signed(from, &steps, &gemini([0; 8])), "x:- y:skip", "{from:?}");
    }
}

#[test]
fn carrier_of_another_target_is_dropped() {
    let (here, there) =
        (carrier::mark("vertex", "google/gemini-3.8-flash"), carrier::mark("gemini", "gemini-3.8-flash"));
    let block = r#"{"thought_signature":"c2ln"}"#;
    let steps = [
        User("a"),
        Calls(&["own", "own2"], carrier(&here, block)),
        Calls(&["foreign"], carrier(&there, block)),
        Calls(&["broken"], Some("tg1.e30".to_owned())),
    ];
    for from in [Shape::Messages, Shape::Responses] {
        let want = "own:c2ln own2:- foreign:skip broken:skip";
        assert_eq!(signed(from, &steps, &gemini(here)), want, "{from:?}");
        // A signature does not reach a provider of another format either.
        for shape in FORMATS.into_iter().filter(|shape| *shape != from && *shape != Shape::Chat) {
            let takes = Capabilities { mark: carrier::mark("anthropic", "claude"), ..Capabilities::default() };
            let body = request_for((from, shape), &history(from, &steps), "up", &takes).unwrap().0.to_string();
            assert!(!body.contains("tg1.") && !body.contains("c2ln"), "{body}");
        }
    }
}

/// A carrier of a signature for the call with this id.
fn of_call(mark: &carrier::TargetMark, id: &str, signature: &str) -> Option<String> {
    carrier(mark, &value!({"thought_signature": signature, "id": id}).to_string())
}

#[test]
fn signature_returns_only_to_its_own_call() {
    // TS: "signatures must be returned exactly as received", each with its part.
    let mark = *b"0a1b2c3d";
    for from in [Shape::Messages, Shape::Responses] {
        for (own, ids, want) in [
            ("a", &["a", "b"][..], "a:sig b:-"),
            // The client dropped call `a`.
            ("a", &["b"], "b:skip"),
            ("a", &["b", "c"], "b:skip c:-"),
            // The client changed the order.
            ("a", &["b", "a"], "b:skip a:sig"),
            // An id that the client could keep only as a hash.
            ("functions.f:0", &["call_d6bdd4de328a22edd610f954"], "call_d6bdd4de328a22edd610f954:sig"),
            ("", &["a", "b"], "a:sig b:-"),
        ] {
            let carrier = match own {
                "" => carrier(&mark, r#"{"thought_signature":"sig"}"#),
                own => of_call(&mark, own, "sig"),
            };
            let steps = [User("now"), Calls(ids, carrier)];
            assert_eq!(signed(from, &steps, &gemini(mark)), want, "{from:?} {own}");
        }
        // Carriers of two turns, exchanged.
        let steps = [
            User("now"),
            Calls(&["a"], of_call(&mark, "b", "of b")),
            Calls(&["b"], of_call(&mark, "a", "of a")),
            Calls(&["c"], of_call(&mark, "c", "of c")),
        ];
        assert_eq!(signed(from, &steps, &gemini(mark)), "a:skip b:skip c:of c", "{from:?}");
    }
}

#[test]
fn signature_returns_to_a_call_whose_id_was_replaced() {
    // A server that restarts its ids with every answer; a messages client accepts each id only once.
    let call = value!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "c2ln"}}});
    let answer = value!({"choices": [{"index": 0, "finish_reason": "stop", "message": {
        "role": "assistant", "content": null, "tool_calls": [call]}}]})
    .to_string();
    let takes = gemini(*b"0a1b2c3d");
    let asked = history(Shape::Messages, &[User("a"), Calls(&["call_1"], None)]);
    let (_, state) = request_for((Shape::Messages, Shape::Chat), &asked, "up", &takes).unwrap();
    let mut out = Vec::new();
    reply((Shape::Chat, Shape::Messages), answer.as_bytes(), &state, &ME, &mut out).unwrap();
    let content = json(std::str::from_utf8(&out).unwrap())["content"].clone();
    let id = content[1]["id"].as_str().unwrap();
    assert_ne!(id, "call_1");
    let results = value!([{"type": "tool_result", "tool_use_id": id, "content": "r"}]);
    let body = value!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": content}, {"role": "user", "content": results}]});
    let next = json(&sent(Shape::Messages, &body.to_string(), &takes));
    assert_eq!(next["messages"][1]["tool_calls"][0]["extra_content"], call["extra_content"]);
}

/// A call of a chunk or a message, with its signature if it has one.
fn chat_call(id: &str, arguments: &str, signature: Option<&str>) -> Value {
    let mut call = value!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    if let Some(signature) = signature {
        call["extra_content"] = value!({"google": {"thought_signature": signature}});
    }
    call
}

/// A stream of chunks with these entries of `tool_calls`.
fn chunks(entries: &[Value]) -> String {
    let chunk = |delta: Value, word: Value| {
        format!("data: {}\n\n", value!({"choices": [{"index": 0, "delta": delta, "finish_reason": word}]}))
    };
    let calls: String = entries.iter().map(|entry| chunk(value!({"tool_calls": [entry]}), Value::Null)).collect();
    calls + &chunk(value!({}), value!("stop")) + "data: [DONE]"
}

#[test]
fn signature_on_any_call_and_after_a_call_returns() {
    // Google documents neither: a server may do so all the same.
    let both = [chat_call("a", "{}", Some("of a")), chat_call("b", "{\"q\":1}", Some("of b"))];
    let late = |index: u32, signature: &str| {
        let google = value!({"thought_signature": signature});
        value!({"index": index, "extra_content": {"google": google}})
    };
    let with_index = |index: u32, id: &str| {
        let mut call = chat_call(id, "{\"q\":1}", None);
        call["index"] = value!(index);
        call
    };
    let after = [with_index(0, "a"), late(0, "of a"), with_index(1, "b"), late(1, "of b")];
    let at_end = [with_index(0, "a"), with_index(1, "b"), late(0, "of a"), late(1, "of b")];
    let whole = value!({"choices": [{"index": 0, "finish_reason": "stop", "message": {
        "role": "assistant", "content": null, "tool_calls": both}}]});
    for to in [Shape::Messages, Shape::Responses] {
        for (streams, answer) in
            [(false, whole.to_string()), (true, chunks(&both)), (true, chunks(&after)), (true, chunks(&at_end))]
        {
            let back = replayed(to, streams, &answer, &gemini([0; 8]));
            let calls = back["tool_calls"].as_array().unwrap().iter();
            let of = |call: &Value| call["extra_content"]["google"]["thought_signature"].clone();
            assert_eq!(calls.map(of).collect::<Vec<_>>(), ["of a", "of b"], "{to:?}: {answer}");
        }
    }
}

#[test]
fn signature_that_every_chunk_repeats_is_carried_once() {
    let entry = |name: Value, arguments: &str| {
        let google = value!({"thought_signature": "of a"});
        value!({"index": 0, "id": "a", "function": {"name": name, "arguments": arguments},
            "extra_content": {"google": google}})
    };
    let stream = chunks(&[entry(value!("f"), "{\"q\""), entry(Value::Null, ":1"), entry(Value::Null, "}")]);
    let state = TranslationState { mark: *b"0a1b2c3d", ..TranslationState::default() };
    let out = stream_for_every_way((Shape::Chat, Shape::Messages), &state, false, &ME, &format!("{stream}\n\n")).out;
    assert_eq!(out.matches("signature_delta").count(), 1, "{out}");
}

#[test]
fn streamed_call_has_its_signature_for_a_chat_client() {
    // Cursor: requests of the responses format that are answered in chunks.
    let stream = chunks(&[chat_call("a", "{\"q\":1}", Some("of a")), chat_call("b", "{\"q\":1}", None)]);
    let state = TranslationState::default();
    let out = stream_for_every_way((Shape::Chat, Shape::Chat), &state, false, &ME, &format!("{stream}\n\n")).out;
    let chunks = out.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let calls: Vec<Value> = chunks.map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone()).collect();
    let signed = |id: &str| calls.iter().find(|call| call["id"] == id).unwrap()["extra_content"].clone();
    assert_eq!(signed("a"), value!({"google": {"thought_signature": "of a"}}), "{out}");
    assert_eq!(signed("b"), Value::Null, "{out}");
}

#[test]
fn details_of_openrouter_are_returned_without_a_placeholder() {
    // @openrouter/ai-sdk-provider 3.1.0: `reasoning_details` with the signature as `data`, returned as received.
    let details = r#"[{"type":"reasoning.encrypted","id":"c","data":"c2ln","format":"google-gemini-v1","index":0}]"#;
    let mark = carrier::mark("openrouter", "google/gemini-3.8-flash");
    let block = format!("{{\"reasoning_details\":{details}}}");
    let steps = [User("a"), Calls(&["c", "d"], carrier(&mark, &block))];
    for from in [Shape::Messages, Shape::Responses] {
        let body = json(&sent(from, &history(from, &steps), &gemini(mark)));
        let message = &body["messages"][1];
        assert_eq!(message["reasoning_details"].to_string(), json(details).to_string(), "{from:?}");
        assert!(!message.to_string().contains(SKIP), "{from:?}");
    }
    let body = history(Shape::Chat, &[User("a"), Calls(&["c"], None)])
        .replace("\"content\":null", &format!("\"content\":null,\"reasoning_details\":{details}"));
    assert_eq!(sent(Shape::Chat, &body, &gemini(mark)), body.replace("\"m\"", "\"up\""));
}

#[test]
fn streamed_details_return_joined_as_openrouters_clients_do() {
    // @openrouter/ai-sdk-provider: consecutive `reasoning.text` are one item; its text is joined, its signature and
    // format are the first; other items are kept as they came.
    let piece = |more: Value| {
        let mut detail = value!({"type": "reasoning.text", "index": 0});
        detail.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        detail
    };
    let encrypted = value!({"type": "reasoning.encrypted", "data": "RA", "id": "x", "index": 1});
    let streamed = [
        piece(value!({"text": "thoughts \\\"", "format": "anthropic-claude-v1", "signature": null, "own": [1]})),
        piece(value!({"text": "go here", "format": "anthropic-claude-v1"})),
        piece(value!({"signature": "SIG", "format": "anthropic-claude-v1"})),
        encrypted.clone(),
        value!({"type": "reasoning.summary", "summary": "a", "index": 2}),
        value!({"type": "reasoning.summary", "summary": "b", "index": 2}),
        piece(value!({"text": "one more", "index": 3})),
        piece(value!({"text": "another", "index": 4})),
    ];
    let mut stream = String::new();
    for detail in &streamed {
        let chunk = value!({"choices": [{"index": 0, "delta": {"reasoning_details": [detail]}}]});
        stream += &format!("data: {chunk}\n\n");
    }
    stream += "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n";
    stream += "data: [DONE]";
    let first = value!({"type": "reasoning.text", "index": 0, "own": [1], "text": "thoughts \\\"go here",
        "signature": "SIG", "format": "anthropic-claude-v1"});
    let mut want = vec![first];
    want.extend_from_slice(&streamed[3..]);
    for to in [Shape::Messages, Shape::Responses] {
        let back = replayed(to, true, &stream, &Capabilities::default());
        assert_eq!(back["reasoning_details"], Value::Array(want.clone()), "{to:?}");
    }
    // A complete answer returns unchanged.
    let whole = value!({"choices": [{"index": 0, "finish_reason": "stop", "message": {
        "role": "assistant", "content": "hi", "reasoning_details": streamed}}]});
    for to in [Shape::Messages, Shape::Responses] {
        let back = replayed(to, false, &whole.to_string(), &Capabilities::default());
        assert_eq!(back["reasoning_details"], value!(streamed), "{to:?}");
    }
}

#[test]
fn chat_clients_own_signatures_are_unchanged() {
    let own = |member: &str| {
        format!(
            r#"{{"messages": [{{"role":"user","content":"a"}}, {{"role":"assistant","content":null,"tool_calls":[
            {{"id":"c","type":"function" , "function":{{"name":"f","arguments":"{{}}"}},"extra_content": {member}}},
            {{"function":{{"name":"f","arguments":"{{}}"}},"id":"d","type":"function"}}]}},
            {{"role":"tool","tool_call_id":"c","content":"r"}},{{"role":"tool","tool_call_id":"d","content":"r"}}],
            "model":"up"}}"#
        )
    };
    for member in [
        r#"{"google": {"thought_signature": "c2\u006cn"} }"#,
        r#"{"vertex":{"thought_signature":"c2ln"}}"#,
        r#"{"google":{}}"#,
        r#"{"other":1}"#,
        r#"null,"extra_content":null"#,
    ] {
        assert_eq!(sent(Shape::Chat, &own(member), &gemini([0; 8])), own(member));
    }
    let skip = format!(r#"{{"google":{{"thought_signature":"{SKIP}"}}}}"#);
    for member in ["null", "{}", "{ }", r#"{"google":null}"#] {
        for takes in [gemini([0; 8]), Capabilities { developer_role: true, ..gemini([0; 8]) }] {
            assert_eq!(sent(Shape::Chat, &own(member), &takes), own(&skip), "{member}");
        }
        let other = Capabilities { thought_signatures: false, ..gemini([0; 8]) };
        assert_eq!(sent(Shape::Chat, &own(member), &other), own(member));
    }
}
