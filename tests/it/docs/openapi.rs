//! Compares the OpenAPI document with real answers: every status, header and body must match it, and every entry of it
//! must occur.

use super::rig::{Gate, Rig, chat, get, read_to_end};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;

/// Header fields of HTTP itself, which the document does not list.
const OF_HTTP: [&str; 5] = ["date", "content-type", "content-length", "transfer-encoding", "connection"];

/// Documented statuses that need long times or large sizes, which other tests cover; all are `Error`s of the same form.
const ELSEWHERE: [u16; 8] = [408, 414, 417, 431, 501, 503, 504, 505];

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: String,
}

pub(super) fn ask(gate: &Gate, request: &str) -> Answer {
    let mut stream = gate.connect();
    let closing = request.replacen("\r\nhost: h", "\r\nconnection: close\r\nhost: h", 1);
    stream.write_all(closing.as_bytes()).unwrap();
    let text = read_to_end(&mut stream);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let field = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_string(), value.to_string())).unwrap();
    let fields: Vec<(String, String)> = lines.map(field).collect();
    let chunked = fields.iter().any(|(name, _)| name == "transfer-encoding");
    Answer { status, body: if chunked { dechunked(body) } else { body.to_string() }, fields }
}

fn dechunked(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&rest[..size]);
        text = rest[size..].strip_prefix("\r\n").unwrap();
    }
    out
}

fn resolve<'a>(doc: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(path) => doc.pointer(path.trim_start_matches('#')).unwrap_or_else(|| panic!("{path} is missing")),
        None => value,
    }
}

/// A compiled schema of the document, which checks instances.
struct Schema {
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
}

impl Schema {
    /// Compiles `schema`, whose references point into `doc`. Formats are checked, too.
    fn new(doc: &Value, schema: &Value) -> Schema {
        let mut whole = schema.clone();
        whole["components"] = doc["components"].clone();
        let mut compiler = boon::Compiler::new();
        compiler.enable_format_assertions();
        compiler.add_resource("mem:///schema", whole).unwrap();
        let mut schemas = boon::Schemas::new();
        let index = compiler.compile("mem:///schema", &mut schemas).unwrap();
        Schema { schemas, index }
    }

    fn is_valid(&self, instance: &Value) -> bool {
        self.schemas.validate(instance, self.index).is_ok()
    }
}

/// Checks that `instance` matches `schema`, whose references point into `doc`.
fn fits(doc: &Value, schema: &Value, instance: &Value, what: &str) {
    let schema = Schema::new(doc, schema);
    if let Err(error) = schema.schemas.validate(instance, schema.index) {
        panic!("{what}: {error} in {instance}");
    }
}

pub(super) fn check(doc: &Value, path: &str, method: &str, answer: &Answer) {
    let what = format!("{method} {path} {}", answer.status);
    let operation = &doc["paths"][path][method];
    let responses = &operation["responses"];
    // One entry may cover a hundred statuses.
    let range = format!("{}XX", answer.status / 100);
    let response = resolve(doc, responses.get(answer.status.to_string()).unwrap_or(&responses[range]));
    assert!(response.is_object(), "{what} is not in the document: {}", answer.body);
    for (name, value) in answer.fields.iter().filter(|(name, _)| !OF_HTTP.contains(&name.as_str())) {
        let header = resolve(doc, &response["headers"][name]);
        assert!(header.is_object(), "{what}: header {name} is not in the document");
        let integer = header["schema"]["type"] == "integer";
        let instance = if integer { json!(value.parse::<u64>().unwrap()) } else { json!(value) };
        fits(doc, &header["schema"], &instance, &format!("{what}: {name}"));
    }
    for (name, header) in response["headers"].as_object().unwrap() {
        let required = resolve(doc, header)["required"] == true;
        assert!(!required || answer.fields.iter().any(|(field, _)| field == name), "{what}: {name} is missing");
    }
    let (_, kind) = answer.fields.iter().find(|(name, _)| name == "content-type").unwrap();
    let kind = kind.split(';').next().unwrap();
    let range = if kind.starts_with("audio/") { "audio/*" } else { "text/*" };
    let is_bytes = !matches!(kind, "application/json" | "text/event-stream");
    let content = &response["content"][if is_bytes { range } else { kind }];
    assert!(content.is_object(), "{what}: {kind} is not in the document");
    if is_bytes {
        return assert!(!answer.body.is_empty(), "{what}");
    }
    if kind == "application/json" {
        return fits(doc, &content["schema"], &serde_json::from_str(&answer.body).unwrap(), &what);
    }
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    assert!(!events.is_empty());
    let data = &content["schema"]["properties"]["data"];
    let schema = data["anyOf"].get(0).unwrap_or(data)["contentSchema"].clone();
    assert!(schema.is_object(), "{what}: its events are not described");
    events.iter().for_each(|event| fits(doc, &schema, event, &what));
}

fn messages(key: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\nx-api-key: {key}\r\nanthropic-version: 2023-06-01\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

fn setting(name: &str) -> Rig {
    let rig = Rig::new(name, "max_body = \"64KiB\"");
    let models = format!(
        "{}[[providers]]\nname = \"m\"\nshape = \"messages\"\nbase_url = \"http://{}\"\n\
         [[models]]\nid = \"claude\"\ncontext = \"1M\"\ntargets = [{{ provider = \"m\", model = \"y\" }}]\n\
         [[providers]]\nname = \"c\"\nshape = \"chat\"\nbase_url = \"http://{}/v1\"\n\
         [[models]]\nid = \"wide\"\ncontext = \"1M\"\nserves = [\"embeddings\", \"rerank\", \"completions\", \
         \"speech\", \"images\", \"moderations\", \"transcriptions\", \"translations\"]\n\
         targets = [{{ provider = \"c\", model = \"z\" }}]\n",
        rig.models("small"),
        rig.provider,
        rig.provider
    );
    let plans = "[[plans]]\nname = \"default\"\n[[plans]]\nname = \"none\"\nrequests = 1\nwindow = \"7d\"\n";
    rig.configure("max_body = \"64KiB\"", &models, plans);
    rig
}

fn document(gate: &Gate) -> Value {
    let mut stream = super::rig::connect(gate.admin);
    stream.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let text = read_to_end(&mut stream);
    assert!(text.contains("content-type: application/json"), "{text}");
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn every_answer_matches_the_document_and_every_entry_occurs() {
    let rig = setting("openapi-answers");
    let (key, narrow, spent) = (rig.issue(""), rig.issue("--endpoints quota --models small"), rig.issue("--plan none"));
    let (list_only, rich) = (rig.issue("--endpoints models"), rig.issue("--budget 12.5"));
    let gate = rig.start();
    let doc = document(&gate);
    assert_eq!(doc["info"]["version"], env!("CARGO_PKG_VERSION"));
    let ask_chat = |key: &str, stream: bool, text: &str| ask(&gate, &chat(key, "small", stream, text));
    let hello = r#"{"model":"claude","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    let streamed = hello.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
    let failing = hello.replace("hi", "hi #sim status=503");
    let get_with = |key: &str, path: &str| ask(&gate, &get(key, path).replacen("connection: close\r\n", "", 1));
    let versioned = |path: &str| {
        let request = get(&key, path).replacen("connection: close", "anthropic-version: 2023-06-01", 1);
        ask(&gate, &request)
    };
    let other = |method: &str, path: &str, key: &str| {
        ask(&gate, &format!("{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\n\r\n"))
    };
    let broken =
        |method: &str, path: &str| ask(&gate, &format!("{method} {path} HTTP/1.1\r\nhost: h\r\nhost: h\r\n\r\n"));
    assert_eq!(ask_chat(&spent, false, "the only one").status, 200);
    let (chat_path, messages_path, count) = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens");
    let large = "x".repeat(70_000);
    let mut seen = BTreeSet::new();
    let mut see = |path: &str, method: &str, status: u16, answer: Answer| {
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        check(&doc, path, method, &answer);
        seen.insert((path.to_string(), method.to_string(), status));
    };
    for path in ["/", "/api/hello", "/health"] {
        see(path, "get", 200, get_with("none", path));
        see(path, "get", 405, other("POST", path, ""));
    }
    see(chat_path, "post", 200, ask_chat(&key, false, "hello"));
    see(chat_path, "post", 200, ask_chat(&key, true, "hello"));
    see(chat_path, "post", 200, ask_chat(&key, true, "hello #sim error_after=3"));
    see(chat_path, "post", 200, ask(&gate, &chat(&key, "claude", true, "hello")));
    see(chat_path, "post", 404, ask(&gate, &chat(&key, "unknown", false, "hello")));
    see(chat_path, "post", 413, ask_chat(&key, false, &large));
    see(chat_path, "post", 429, ask_chat(&spent, false, "one more"));
    see(chat_path, "post", 500, ask_chat(&key, false, "hello #sim status=502 retry_after=7"));
    see(chat_path, "post", 500, ask_chat(&key, false, "hello #sim status=401"));
    see(messages_path, "post", 200, ask(&gate, &messages(&key, messages_path, hello)));
    see(messages_path, "post", 200, ask(&gate, &messages(&key, messages_path, &streamed)));
    see(messages_path, "post", 404, ask(&gate, &messages(&key, messages_path, &hello.replace("claude", "x"))));
    see(messages_path, "post", 413, ask(&gate, &messages(&key, messages_path, &hello.replace("hi", &large))));
    see(messages_path, "post", 429, ask(&gate, &messages(&spent, messages_path, hello)));
    see(messages_path, "post", 500, ask(&gate, &messages(&key, messages_path, &failing)));
    see(count, "post", 200, ask(&gate, &messages(&key, count, hello)));
    see(count, "post", 404, ask(&gate, &messages(&key, count, &hello.replace("claude", "x"))));
    see(count, "post", 429, ask(&gate, &messages(&spent, count, hello)));
    see(count, "post", 413, ask(&gate, &messages(&key, count, &hello.replace("hi", &large))));
    for path in [chat_path, messages_path, count] {
        see(path, "post", 401, other("POST", path, "nothing"));
        see(path, "post", 403, other("POST", path, &narrow));
        see(path, "post", 405, other("GET", path, &key));
        see(
            path,
            "post",
            400,
            ask(&gate, &messages(&key, path, "{}").replace("x-api-key: ", "authorization: Bearer ")),
        );
    }
    for (template, path) in
        [("/v1/models", "/v1/models"), ("/v1/models/{id}", "/v1/models/small"), ("/v1/quota", "/v1/quota")]
    {
        see(template, "get", 200, get_with(&key, path));
        see(template, "get", 200, versioned(path));
        see(template, "get", 401, get_with("nothing", path));
        see(template, "get", 405, other("DELETE", path, &key));
        see(template, "get", 400, broken("GET", path));
        // A key with the scope `chat` can still read the list, and there is no scope without it.
        see(template, "get", 404, get_with(&key, &format!("{path}/or/not")));
    }
    for path in ["/", "/api/hello", "/health"] {
        see(path, "get", 400, broken("GET", path));
    }
    see("/v1/models", "get", 403, get_with(&narrow, "/v1/models"));
    see("/v1/models/{id}", "get", 403, get_with(&narrow, "/v1/models/small"));
    see("/v1/quota", "get", 403, get_with(&list_only, "/v1/quota"));
    // Headers and errors that only a budget causes.
    see(chat_path, "post", 403, ask_chat(&rich, false, "a model without a price"));
    let quota = get_with(&rich, "/v1/quota");
    assert!(quota.fields.contains(&("x-budget-remaining".to_string(), "12.500000".to_string())), "{:?}", quota.fields);
    let budget = r#""budget":{"used":0.0,"total":12.5,"currency":"USD"},"limits":[{"scope":"key","#;
    assert!(quota.body.contains(budget), "{}", quota.body);
    see("/v1/quota", "get", 200, quota);
    answer_responses(&gate, &doc, [&key, &narrow, &spent], &mut seen);
    answer_relayed(&gate, &doc, [&key, &narrow, &spent], &mut seen);
    complete(&doc, &seen);
}

/// Sends requests to the responses endpoint and the paths below it.
fn answer_responses(
    gate: &Gate,
    doc: &Value,
    [key, narrow, spent]: [&str; 3],
    seen: &mut BTreeSet<(String, String, u16)>,
) {
    let hello = r#"{"model":"small","input":"hi"}"#;
    let large = hello.replace("hi", &"x".repeat(70_000));
    let bearer = |key: &str, path: &str, body: &str| {
        ask(gate, &messages(key, path, body).replace("x-api-key: ", "authorization: Bearer "))
    };
    let bare = |method: &str, path: &str, key: &str| {
        ask(gate, &format!("{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\n\r\n"))
    };
    let mut see = |path: &str, status: u16, answer: Answer| {
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        check(doc, path, "post", &answer);
        seen.insert((path.to_string(), "post".to_string(), status));
    };
    for path in ["/v1/responses", "/v1/responses/input_tokens"] {
        see(path, 200, bearer(key, path, hello));
        see(path, 400, bearer(key, path, r#"{"model":"small","input":"hi","previous_response_id":"resp_1"}"#));
        see(path, 401, bare("POST", path, "nothing"));
        see(path, 403, bare("POST", path, narrow));
        see(path, 404, bearer(key, path, &hello.replace("small", "x")));
        see(path, 405, bare("GET", path, key));
        see(path, 413, bearer(key, path, &large));
        see(path, 429, bearer(spent, path, hello));
    }
    let streamed = hello.replace("\"input\"", "\"stream\":true,\"input\"");
    see("/v1/responses", 200, bearer(key, "/v1/responses", &streamed));
    see("/v1/responses", 200, bearer(key, "/v1/responses", &streamed.replace("small", "claude")));
    see("/v1/responses", 200, bearer(key, "/v1/responses", &streamed.replace("hi", "hi #sim error_after=3")));
    see("/v1/responses", 500, bearer(key, "/v1/responses", &hello.replace("hi", "hi #sim status=503")));
}

fn bearer(gate: &Gate, key: &str, path: &str, body: &str) -> Answer {
    ask(gate, &messages(key, path, body).replace("x-api-key: ", "authorization: Bearer "))
}

/// Sends requests to the relayed endpoints.
fn answer_relayed(
    gate: &Gate,
    doc: &Value,
    [key, narrow, spent]: [&str; 3],
    seen: &mut BTreeSet<(String, String, u16)>,
) {
    let bare = |method: &str, path: &str, key: &str| {
        ask(gate, &format!("{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\n\r\n"))
    };
    let mut see = |path: &str, status: u16, answer: Answer| {
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        check(doc, path, "post", &answer);
        seen.insert((path.to_string(), "post".to_string(), status));
    };
    let (prompt, speech, images) = ("/v1/completions", "/v1/audio/speech", "/v1/images/generations");
    let bodies = [
        ("/v1/embeddings", r#"{"model":"wide","input":"hi"}"#),
        ("/v1/rerank", r#"{"model":"wide","query":"hi","documents":["a hi"]}"#),
        (prompt, r#"{"model":"wide","prompt":"hi"}"#),
        (speech, r#"{"model":"wide","input":"hi","voice":"alloy"}"#),
        (images, r#"{"model":"wide","prompt":"hi"}"#),
        ("/v1/moderations", r#"{"model":"wide","input":"hi"}"#),
    ];
    for (path, body) in bodies {
        see(path, 200, bearer(gate, key, path, body));
        see(path, 400, bearer(gate, key, path, "{}"));
        see(path, 401, bare("POST", path, "nothing"));
        see(path, 403, bare("POST", path, narrow));
        see(path, 404, bearer(gate, key, path, &body.replace("wide", "x")));
        see(path, 404, bearer(gate, key, path, &body.replace("wide", "small")));
        see(path, 405, bare("GET", path, key));
        see(path, 413, bearer(gate, key, path, &body.replace("hi", &"x".repeat(70_000))));
        see(path, 429, bearer(gate, spent, path, body));
        see(path, 500, bearer(gate, key, path, &body.replacen("hi", "hi #sim status=503", 1)));
    }
    let streamed = r#"{"model":"wide","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}"#;
    see(prompt, 200, bearer(gate, key, prompt, streamed));
    see(prompt, 200, bearer(gate, key, prompt, &streamed.replace("hi", "hi #sim error_after=3")));
    let events = r#"{"model":"wide","input":"hi","voice":"alloy","stream_format":"sse"}"#;
    see(speech, 200, bearer(gate, key, speech, events));
    see(speech, 200, bearer(gate, key, speech, &events.replace("hi", "hi #sim error_after=3")));
    see(images, 200, bearer(gate, key, images, streamed));
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"] {
        let file = if path.ends_with("edits") { "image" } else { "file" };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\nauthorization: Bearer "
        );
        let form = |key: &str, model: &str, prompt: &str, format: &str| {
            let part = |name: &str, content: &str| {
                format!("--b\r\ncontent-disposition: form-data; name={name}\r\n\r\n{content}\r\n")
            };
            let fields = [part("model", model), part("prompt", prompt), part("response_format", format)].concat();
            let body = format!("{fields}{}--b--", part(&format!("{file}; filename=a"), "x"));
            ask(gate, &format!("{head}{key}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
        };
        see(path, 200, form(key, "wide", "hi", "json"));
        if file == "file" {
            see(path, 200, form(key, "wide", "hi", "vtt"));
        }
        see(path, 400, bearer(gate, key, path, "{}"));
        see(path, 401, bare("POST", path, "nothing"));
        see(path, 403, bare("POST", path, narrow));
        see(path, 404, form(key, "x", "hi", "json"));
        see(path, 404, form(key, "small", "hi", "json"));
        see(path, 405, bare("GET", path, key));
        see(path, 413, ask(gate, &format!("{head}{key}\r\ncontent-length: 200000000\r\n\r\n")));
        see(path, 429, form(spent, "wide", "hi", "json"));
        see(path, 500, form(key, "wide", "hi #sim status=503", "json"));
    }
}

#[test]
fn relayed_requests_are_accepted_as_documented() {
    let rig = setting("openapi-relayed");
    let key = rig.issue("");
    let gate = rig.start();
    let doc = document(&gate);
    let texts = [
        json!("hi"),
        json!(["hi", ""]),
        json!([1, 2]),
        json!([[1], [2, 3]]),
        json!([]),
        json!(7),
        json!({ "text": "hi" }),
        json!(["hi", 1]),
        json!([1.5]),
        json!([[1], ["x"]]),
        json!([true]),
        json!(null),
    ];
    let with = |name: &str, value: &Value| {
        let mut body = json!({ "model": "wide" });
        body[name] = value.clone();
        body
    };
    let ranking = |query: Value, documents: Value| json!({ "model": "wide", "query": query, "documents": documents });
    let mut cases: Vec<(&str, &str, Value)> = Vec::new();
    for text in &texts {
        cases.push(("/v1/embeddings", "EmbeddingsRequest", with("input", text)));
        cases.push(("/v1/completions", "CompletionRequest", with("prompt", text)));
        cases.push(("/v1/images/generations", "ImagesRequest", with("prompt", text)));
        let mut speech = with("input", text);
        speech["voice"] = json!("alloy");
        cases.push(("/v1/audio/speech", "SpeechRequest", speech));
        cases.push(("/v1/moderations", "ModerationRequest", with("input", text)));
    }
    for body in [
        ranking(json!("q"), json!(["d", { "text": "e" }])),
        ranking(json!("q"), json!([])),
        ranking(json!("q"), json!("d")),
        ranking(json!(["q"]), json!(["d"])),
        ranking(json!("q"), json!(null)),
        json!({ "model": 5, "query": "q", "documents": ["d"] }),
    ] {
        cases.push(("/v1/rerank", "RerankRequest", body));
    }
    for stream in [json!(true), json!(null), json!("yes"), json!(1)] {
        cases.push((
            "/v1/completions",
            "CompletionRequest",
            json!({"model": "wide", "prompt": "hi", "stream": stream}),
        ));
        let images = json!({"model": "wide", "prompt": "hi", "stream": stream});
        cases.push(("/v1/images/generations", "ImagesRequest", images));
    }
    for (path, name, body) in cases {
        let schema = Schema::new(&doc, &json!({"$ref": format!("#/components/schemas/{name}")}));
        let answer = bearer(&gate, &key, path, &body.to_string());
        let expected = if schema.is_valid(&body) { 200 } else { 400 };
        assert_eq!(answer.status, expected, "{path} {body}: {}", answer.body);
    }
}

/// Checks that every entry of the document has been answered.
fn complete(doc: &Value, seen: &BTreeSet<(String, String, u16)>) {
    let mut unseen = Vec::new();
    for (path, item) in doc["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for status in operation["responses"].as_object().unwrap().keys() {
                let status: u16 = status.parse().unwrap();
                if !ELSEWHERE.contains(&status) && !seen.contains(&(path.clone(), method.clone(), status)) {
                    unseen.push(format!("{method} {path} {status}"));
                }
            }
        }
    }
    assert!(unseen.is_empty(), "{unseen:?}");
}

#[test]
fn requests_are_accepted_as_documented() {
    let rig = setting("openapi-requests");
    let key = rig.issue("");
    let gate = rig.start();
    let doc = document(&gate);
    let one = json!([{"role": "user", "content": "hi"}]);
    let bodies = [
        json!({"messages": one, "model": "small"}),
        json!({"messages": one, "model": "small", "temperature": 2, "top_p": 1.0, "stop": ["a"], "user": "u"}),
        json!({"messages": one, "model": "small", "temperature": 2.1}),
        json!({"messages": one, "model": "small", "top_p": -0.1}),
        json!({"messages": one, "model": "small", "max_tokens": 0}),
        json!({"messages": one, "model": "small", "max_tokens": "5"}),
        json!({"messages": one, "model": 5}),
        json!({"messages": [], "model": "small"}),
        json!({"model": "small"}),
        json!({"messages": [{"role": "robot", "content": "hi"}], "model": "small"}),
        json!({"messages": [{"role": "user"}], "model": "small"}),
        json!({"messages": [{"role": "system", "content": null}], "model": "small"}),
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant"}], "model": "small"}),
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": 7}], "model": "small"}),
        json!({"messages": [{"role": "tool", "content": "hi"}], "model": "small"}),
        json!({"messages": one, "model": "small", "stream": "yes"}),
        json!({"messages": one, "model": "small", "tools": {}}),
        json!({"messages": one, "model": "small", "stop": [1]}),
        json!({"messages": one, "model": "small", "response_format": []}),
        json!({"messages": one, "model": "small", "stream": null, "max_tokens": null}),
    ];
    let schema = Schema::new(&doc, &json!({"$ref": "#/components/schemas/ChatRequest"}));
    for body in bodies {
        let text = body.to_string();
        let head = format!("authorization: Bearer {key}\r\ncontent-length: {}", text.len());
        let answer = ask(&gate, &format!("POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n{text}"));
        let expected = if schema.is_valid(&body) { 200 } else { 400 };
        assert_eq!(answer.status, expected, "{body}: {}", answer.body);
    }
}

#[test]
fn system_prompts_match_the_document() {
    let rig = setting("openapi-system");
    let key = rig.issue("");
    let gate = rig.start();
    let doc = document(&gate);
    let systems = [
        json!("be brief"),
        json!(null),
        json!([]),
        json!([{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]),
        json!([{"type": "text", "text": "be brief"}, {"type": "image", "source": {}}]),
        json!([{"text": "be brief"}]),
        json!([{"type": "text"}]),
        json!(["be brief"]),
        json!({"type": "text", "text": "be brief"}),
    ];
    for (path, name) in [("/v1/messages", "MessagesRequest"), ("/v1/messages/count_tokens", "CountRequest")] {
        let schema = Schema::new(&doc, &json!({"$ref": format!("#/components/schemas/{name}")}));
        for system in &systems {
            let one = json!([{"role": "user", "content": "hi"}]);
            let body = json!({"model": "claude", "max_tokens": 9, "system": system, "messages": one});
            let answer = ask(&gate, &messages(&key, path, &body.to_string()));
            let expected = if schema.is_valid(&body) { 200 } else { 400 };
            assert_eq!(answer.status, expected, "{path} {system}: {}", answer.body);
        }
    }
}

/// Generates the valid values of version headers from the document, and sends them to each endpoint.
#[test]
fn version_headers_match_the_document() {
    let rig = setting("openapi-versions");
    let key = rig.issue("");
    let gate = rig.start();
    let doc = document(&gate);
    let body = r#"{"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"model":"claude"}"#;
    for (path, method) in [("/v1/messages", "post"), ("/v1/messages/count_tokens", "post"), ("/v1/models", "get")] {
        let parameters = doc["paths"][path][method]["parameters"].as_array().unwrap();
        let version = parameters.iter().find(|one| one["name"] == "anthropic-version").unwrap();
        let schema = Schema::new(&doc, &version["schema"]);
        for version in ["2023-06-01", "", "0", "tomorrow", "2023-6-1"] {
            let (verb, body) = if method == "post" { ("POST", body) } else { ("GET", "") };
            let head = format!("{verb} {path} HTTP/1.1\r\nhost: h\r\nx-api-key: {key}\r\nanthropic-version: {version}");
            let answer = ask(&gate, &format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
            let expected = if schema.is_valid(&json!(version)) { 200 } else { 400 };
            assert_eq!(answer.status, expected, "{path} {version:?}: {}", answer.body);
        }
    }
}
