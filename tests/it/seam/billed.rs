//! Checks that the reservation of a request covers the most that a provider may bill for it. The simulated provider
//! parses bodies with its own code, independent of how the gateway counts.

use super::rig::Rig;
use serde_json::Value;
use tollgate::base::seam::Ending;
use tollgate::policy::ledger::Ruling;
use tollgate::policy::meter::Amount;

/// Completion tokens that the model reserves for an answer without a smaller bound. No case requests a longer answer.
const RESERVE: u64 = 500;
/// Nano-dollars per prompt token at the highest price, and per completion token.
const PRICES: (u64, u64) = (2000, 4000);
/// All names of the completion bound that any server accepts.
const BOUNDS: [&str; 4] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"];

const ENDPOINTS: [&str; 6] = ["chat/completions", "messages", "responses", "completions", "embeddings", "rerank"];

/// Members besides the prompt that can make an answer longer or request several answers.
const MULTIPLIERS: [&str; 22] = [
    "",
    r#","max_tokens":40"#,
    r#","max_tokens":40.0"#,
    r#","max_tokens":4e1"#,
    r#","max_tokens":100000000"#,
    r#","max_completion_tokens":45.0,"max_tokens":3"#,
    r#","max_output_tokens":4.0E+1"#,
    r#","n":3,"max_tokens":40"#,
    r#","n":3"#,
    r#","n":"3","max_tokens":40"#,
    r#","n":3.0,"max_tokens":40"#,
    r#","\u006e":30e-1,"max_tokens":40"#,
    r#","best_of":5,"max_tokens":40"#,
    r#","best_of":5e0,"n":2"#,
    r#","n":7,"best_of":2,"max_tokens":40"#,
    r#","use_beam_search":true,"n":4,"max_tokens":40"#,
    r#","n_predict":300,"max_tokens":1"#,
    r#","chat_template_kwargs":{"text":"some more words for the model to read and to bill"},"max_tokens":1"#,
    r#","some_member_with_a_long_name_that_is_sent_on":"with text in it","max_tokens":1"#,
    r#","n":100000,"max_tokens":1"#,
    r#","echo":true,"suffix":"a few words behind it","max_tokens":40"#,
    r#","response_format":{"type":"json_object"},"temperature":0.5,"seed":7,"max_tokens":40"#,
];

/// Bytes of the base64 text of a PDF, in prompts that contain one.
const PDF_BYTES: usize = 60_000;
/// Tokens of a document that the provider fetches: the whole context of the model.
const FETCHED: u64 = 256_000;

/// Returns the prompts to try at an endpoint. Some contain files.
fn prompts(endpoint: &str) -> &'static [&'static str] {
    match endpoint {
        "chat/completions" => &[
            r#""messages":[{"role":"user","content":"internationalization misunderstandings"}]"#,
            r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:application/pdf;base64,FILL"}}]}]"#,
            r#""messages":[{"role":"user","content":[{"type":"document_url","document_url":"https://a.example/a.pdf"}]}]"#,
        ],
        "messages" => &[
            r#""messages":[{"role":"user","content":"internationalization misunderstandings"}]"#,
            r#""messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"application/pdf","data":"FILL"}}]}]"#,
            r#""messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://a.example/a.pdf"}}]}]"#,
        ],
        "responses" => &[
            r#""input":"internationalization misunderstandings""#,
            r#""input":[{"role":"user","content":"internationalization misunderstandings"}]"#,
            r#""input":[{"role":"user","content":[{"type":"input_image","image_url":"data:application/pdf;base64,FILL"}]}]"#,
            r#""input":[{"role":"user","content":[{"type":"input_file","file_url":"https://a.example/a.pdf"}]}]"#,
        ],
        "completions" => &[
            r#""prompt":"internationalization misunderstandings""#,
            r#""prompt":["internationalization misunderstandings","counterrevolutionary characteristically interdisciplinary"]"#,
            r#""prompt":[1,2,3]"#,
            r#""prompt":[[1,2],[3],[4,5,6]]"#,
        ],
        "embeddings" => &[
            r#""input":["internationalization misunderstandings","counterrevolutionary characteristically interdisciplinary"]"#,
            r#""input":[[1,2],[3]]"#,
        ],
        _ => &[
            r#""query":"internationalization misunderstandings","documents":["interdisciplinary misunderstandings","counterrevolutionary",{"text":"characteristically"}]"#,
        ],
    }
}

/// Returns a lower bound on the tokens of a value: words of all texts, and numbers in arrays. An inline file counts the
/// tokens that are likely for its size, a file by URL the whole context of the model.
fn words(value: &Value) -> u64 {
    match value {
        Value::String(text) if text.len() >= PDF_BYTES => text.len() as u64 / 20,
        Value::String(text) if text.starts_with("https://") => FETCHED,
        Value::String(text) => text.split_whitespace().count() as u64,
        Value::Array(items) => items.iter().map(|item| if item.is_number() { 1 } else { words(item) }).sum(),
        Value::Object(members) => members.values().map(words).sum(),
        _ => 0,
    }
}

/// Parses a count as a lenient server does.
fn count(value: &Value) -> u64 {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number.filter(|number| number.fract() == 0.0 && *number > 0.0).map_or(0, |number| number as u64)
}

/// Returns the most that a provider bills for `body`, in tokens and nano-dollars.
fn most(endpoint: &str, body: &Value) -> Amount {
    let each_text = |name: &str| match &body[name] {
        Value::Array(items) if items.iter().all(|item| !item.is_number()) => items.len() as u64,
        _ => 1,
    };
    // Roles, types, counts and the like are not prompt text.
    let outside = ["model", "stream", "stream_options", "response_format", "tools", "include", "store", "n", "best_of"];
    let members = body.as_object().unwrap().iter().filter(|(name, _)| !outside.contains(&name.as_str()));
    let content = |value: &Value| match value {
        Value::Array(items) if items.iter().all(|item| item.get("content").is_some()) => {
            items.iter().map(|item| words(&item["content"])).sum()
        }
        other => words(other),
    };
    let mut prompt: u64 = members.map(|(_, value)| content(value)).sum();
    if endpoint == "completions" {
        prompt += words(&body["suffix"]) * (each_text("prompt") - 1);
    }
    if endpoint == "rerank" {
        prompt += words(&body["query"]) * (each_text("documents") - 1);
    }
    let texts = if endpoint == "completions" { each_text("prompt") } else { 1 };
    let answers = texts * count(&body["n"]).max(count(&body["best_of"])).max(1);
    let bound = BOUNDS.iter().map(|name| count(&body[*name])).max().unwrap_or(0);
    let each = match endpoint {
        "embeddings" | "rerank" => 0,
        _ if bound == 0 => RESERVE,
        _ => bound.min(RESERVE),
    };
    let nano = prompt * PRICES.0 + answers * each * PRICES.1;
    Amount { tokens: prompt + answers * each, nano }
}

fn rig(shape: &str, unknown: &str, drops: bool, more: &[(&str, &str)]) -> Rig {
    let (shape, unknown) = (format!("shape = {shape:?}"), format!("unknown_fields = {unknown:?}"));
    let serves = if shape.contains("chat") { r#"["chat","completions","embeddings","rerank"]"# } else { r#"["chat"]"# };
    let (serves, reserve) = (format!("serves = {serves}"), format!("reserve_tokens = {RESERVE}"));
    let dropped = if drops { r#"drop_params = ["max_tokens","max_output_tokens"]"# } else { "drop_params = []" };
    let own = [
        ("provider up", shape.as_str()),
        ("provider up", unknown.as_str()),
        ("model small", serves.as_str()),
        ("model small", reserve.as_str()),
        ("model small", dropped),
        ("model small", "cache_write_price = 2.0"),
        ("server", "max_buffered = \"8MiB\""),
    ];
    Rig::with(40, &[&own, more].concat())
}

fn request(rig: &Rig, key: usize, endpoint: &str, body: &str) -> String {
    let key = &rig.keys.texts[&format!("k{key}")];
    format!(
        "POST /v1/{endpoint} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\nx-api-key: {key}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the body of the request that a provider connection received.
fn asked(rig: &Rig, label: &str) -> Value {
    let got = String::from_utf8_lossy(&rig.world.ends[label].got).into_owned();
    serde_json::from_str(got.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// Sends a request. Returns its reservation and the most that the provider may bill for it; `None` if the gateway
/// rejected it.
fn reserved(rig: &mut Rig, client: &str, endpoint: &str, body: &str) -> Option<(Amount, Amount)> {
    let sent = request(rig, 0, endpoint, body);
    rig.send(client, sent);
    let reserved = rig.world.checks.first()?.lease.reserved;
    rig.world.answer_check(1, Ruling::Admitted).unwrap();
    let label = rig.asked().pop().unwrap_or_else(|| panic!("no provider received {body}"));
    let most = most(endpoint, &asked(rig, &label));
    rig.world.finish(client, Ending::Broken).unwrap();
    Some((reserved, most))
}

/// Configuration with a shared ledger: the requests to the ledger show what is reserved.
const SHARED: [(&str, &str); 2] = [("store", "url = \"redis://10.0.0.9/0\""), ("plan team", "budget = 100000000.0")];

#[test]
fn reservations_cover_what_a_provider_may_bill() {
    let (mut tried, mut rows, mut multiplied) = (0, 0, 0);
    for shape in ["chat", "messages", "responses"] {
        for (unknown, drops) in ["auto", "drop", "forward"].into_iter().flat_map(|u| [(u, false), (u, true)]) {
            let mut rig = rig(shape, unknown, drops, &SHARED);
            for endpoint in ENDPOINTS.into_iter().filter(|name| shape == "chat" || ENDPOINTS[..3].contains(name)) {
                for (multiplier, prompt) in
                    MULTIPLIERS.iter().flat_map(|m| prompts(endpoint).iter().map(move |p| (m, p)))
                {
                    for stream in ["", r#","stream":true"#] {
                        let bound = if endpoint == "messages" { r#","max_tokens":40"# } else { "" };
                        let bound = if multiplier.contains("\"max_tokens\"") { "" } else { bound };
                        let body = format!("{{\"model\":\"small\",{prompt}{multiplier}{bound}{stream}}}");
                        let body = body.replace("FILL", &"A".repeat(PDF_BYTES));
                        // A request rejected with 400 is not billed.
                        let client = format!("c{tried}");
                        tried += 1;
                        let Some((reserved, most)) = reserved(&mut rig, &client, endpoint, &body) else { continue };
                        let row = format!("{endpoint} to {shape}, {unknown}, {drops}: {prompt}{multiplier}{stream}");
                        assert!(reserved.tokens >= most.tokens, "{row}: {reserved:?} of {most:?}");
                        assert!(reserved.nano >= most.nano, "{row}: {reserved:?} of {most:?}");
                        rows += 1;
                        multiplied += u64::from(most.tokens > 2 * RESERVE);
                    }
                }
            }
        }
    }
    assert!(rows > 2500 && multiplied > 100, "{rows} rows, {multiplied} with several answers");
}

#[test]
fn chat_requests_are_sent_with_one_answer_for_every_spelling_of_n() {
    for n in ["2", "3.0", "1.28e2", "\"4\"", "[5]", "true", "1.0"] {
        for key in ["n", "\\u006e"] {
            let mut rig = rig("chat", "forward", false, &[]);
            let body =
                format!("{{\"model\":\"small\",\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}],\"{key}\":{n}}}");
            let sent = request(&rig, 0, "chat/completions", &body);
            rig.send("c1", sent);
            let label = rig.asked().pop().unwrap();
            assert_eq!(asked(&rig, &label)["n"], 1, "{key}: {n}");
        }
    }
}

/// Returns a complete or streamed answer that reports these numbers of tokens.
fn answer(endpoint: &str, prompt: u64, completion: u64, stream: bool) -> String {
    let usage = match endpoint {
        "messages" | "responses" => format!(r#"{{"input_tokens":{prompt},"output_tokens":{completion}}}"#),
        _ => format!(
            r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{}}}"#,
            prompt + completion
        ),
    };
    let text = match (endpoint, stream) {
        ("messages", false) => format!(
            r#"{{"id":"x","type":"message","role":"assistant","model":"m","content":[{{"type":"text","text":"a"}}],"stop_reason":"end_turn","usage":{usage}}}"#
        ),
        ("messages", true) => format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"x\",\"type\":\"message\",\
             \"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"usage\":{usage}}}}}\n\nevent: message_delta\ndata: \
             {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{usage}}}\n\nevent: \
             message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        ),
        ("responses", _) => {
            let whole = format!(
                r#"{{"id":"x","object":"response","created_at":1,"model":"m","status":"completed","output":[{{"type":"message","content":[]}}],"usage":{usage}}}"#
            );
            if stream {
                format!(
                    "event: response.completed\ndata: {{\"type\":\"response.completed\",\"sequence_number\":0,\
                     \"response\":{whole}}}\n\n"
                )
            } else {
                whole
            }
        }
        (_, false) => {
            format!(
                r#"{{"id":"x","created":1,"model":"m","choices":[{{"text":"","message":{{}}}}],"data":[],"results":[],"usage":{usage}}}"#
            )
        }
        (_, true) => {
            let chunk = |rest: &str| format!("data: {{\"id\":\"x\",\"created\":1,\"model\":\"m\",{rest}}}\n\n");
            let end = chunk(r#""choices":[{"index":0,"delta":{},"text":"","finish_reason":"stop"}]"#);
            end + &chunk(&format!("\"choices\":[],\"usage\":{usage}")) + "data: [DONE]\n\n"
        }
    };
    let kind = if stream { "text/event-stream" } else { "application/json" };
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{text}", text.len())
}

#[test]
fn concurrent_requests_exceed_a_budget_by_at_most_one_reservation() {
    const DOLLAR: u64 = 1_000_000_000;
    let long: String = (0..40_000).map(|number| format!("w{number} ")).collect();
    for (endpoint, shape) in ENDPOINTS.into_iter().zip(["chat", "messages", "responses", "chat", "chat", "chat"]) {
        for stream in [false, true] {
            if stream && matches!(endpoint, "embeddings" | "rerank") {
                continue;
            }
            // Each request costs roughly 10 to 40 cents.
            let prompt = match endpoint {
                "completions" => "\"prompt\":[[1],[2]],\"n\":50,\"max_tokens\":1000".to_owned(),
                "embeddings" => format!("\"input\":[{:?}]", long),
                "rerank" => format!("\"query\":\"a b\",\"documents\":[{long:?}]"),
                "responses" => format!("\"input\":{long:?},\"max_output_tokens\":400"),
                _ => format!("\"messages\":[{{\"role\":\"user\",\"content\":{long:?}}}],\"max_tokens\":400"),
            };
            let body = format!("{{\"model\":\"small\",{prompt},\"stream\":{stream}}}");
            let large = [("server", "max_body = \"1MiB\""), ("server", "max_buffered = \"256MiB\"")];
            let mut probe = rig(shape, "auto", false, &[&SHARED[..], &large].concat());
            let (reservation, _) = reserved(&mut probe, "c1", endpoint, &body).unwrap();
            // All keys share the budget of their group.
            let group = [("group all", "budget = 1.0"), ("server", "max_connections = 100")];
            let mut rig = rig(shape, "auto", false, &[&group[..], &large].concat());
            for client in 0..40 {
                let sent = request(&rig, client, endpoint, &body);
                rig.send(&format!("c{client}"), sent);
            }
            let labels = rig.asked();
            assert!((1..40).contains(&labels.len()), "{endpoint}: {} were admitted", labels.len());
            let refused = (0..40).filter(|client| rig.status(&format!("c{client}")) == 429).count();
            assert_eq!(refused + labels.len(), 40, "{endpoint}");
            for label in labels {
                // The answer reports all that was reserved. The completion gets as many tokens as the provider may
                // produce for this body.
                let most = most(endpoint, &asked(&rig, &label));
                let completion = most.nano.saturating_sub(most.tokens * PRICES.0) / (PRICES.1 - PRICES.0);
                rig.answer(&label, &answer(endpoint, reservation.tokens - completion, completion, stream));
            }
            let billed: u64 = rig.world.rows.iter().map(|row| row.cost_nano).sum();
            assert!(billed > DOLLAR / 4, "{endpoint} {stream}: {billed} is too little to test the bound");
            assert!(billed < DOLLAR + reservation.nano, "{endpoint} {stream}: {billed}, the last {reservation:?}");
            assert!(reservation.nano <= DOLLAR, "one reservation may not exceed the budget");
        }
    }
}

#[test]
fn requests_with_files_by_url_run_one_at_a_time_under_a_small_budget() {
    let parts = [
        ("messages", r#"{"type":"document","source":{"type":"url","url":"https://a.example/a.pdf"}}"#),
        ("responses", r#"{"type":"input_file","file_url":"https://a.example/a.pdf"}"#),
        ("chat/completions", r#"{"type":"document_url","document_url":"https://a.example/a.pdf"}"#),
    ];
    for ((endpoint, part), shape) in parts.into_iter().zip(["messages", "responses", "chat"]) {
        let list = if endpoint == "responses" { "input" } else { "messages" };
        let body = format!(
            "{{\"model\":\"small\",\"max_tokens\":40,\"{list}\":[{{\"role\":\"user\",\"content\":[{part}]}}]}}"
        );
        // A tenth of the largest possible cost, and of the largest possible number of tokens.
        for limit in ["budget = 0.05", "tokens_per_window = 30000", "tokens = 30000"] {
            let mut rig = rig(shape, "auto", false, &[("group all", limit)]);
            for client in 0..3 {
                let sent = request(&rig, client, endpoint, &body);
                rig.send(&format!("c{client}"), sent);
            }
            let labels = rig.asked();
            assert_eq!(labels.len(), 1, "{endpoint} {limit}: {}", rig.got("c0"));
            for client in ["c1", "c2"] {
                assert_eq!(rig.status(client), 429, "{endpoint} {limit}");
                assert!(rig.got(client).contains("\r\nretry-after: 1\r\n"), "{}", rig.got(client));
            }
            rig.answer(&labels[0], &answer(endpoint, 1000, 10, false));
            let sent = request(&rig, 3, endpoint, &body);
            rig.send("c3", sent);
            let labels = rig.asked();
            assert_eq!(labels.len(), 1, "{endpoint} {limit}: {}", rig.got("c3"));
            rig.answer(&labels[0], &answer(endpoint, 1000, 10, false));
            // The part of a request whose size is known must fit.
            let long = body.replace(
                "\"content\":[",
                &format!("\"content\":[{{\"type\":\"text\",\"text\":{:?}}},", "a ".repeat(125_000)),
            );
            let sent = request(&rig, 4, endpoint, &long);
            rig.send("c4", sent);
            assert!(rig.got("c4").contains("the request needs up to"), "{endpoint} {limit}: {}", rig.got("c4"));
        }
    }
}

#[test]
fn separately_billed_members_are_403_under_a_budget() {
    let refused = [
        r#""modalities":["text","audio"],"audio":{"voice":"alloy","format":"wav"}"#,
        r#""modalities":["audio"]"#,
        r#""modalities":"audio""#,
        r#""audio":{"voice":"alloy","format":"wav"}"#,
        r#""mod\u0061lities":["text","image"]"#,
        r#""Modalities":["audio"]"#,
        r#""plugins":[{"id":"web"}]"#,
        r#""search_parameters":{"mode":"on"}"#,
        r#""enable_search":true"#,
        r#""enable\u005fsearch":true"#,
        r#""enableSearch":true"#,
        r#""web_search":true"#,
        r#""serviceTier":"priority""#,
        r#""Service_Tier":"priority""#,
        r#""service-tier":"priority""#,
        r#""Tools":[{"type":"web_search"}]"#,
        r#""webSearchOptions":{}"#,
    ];
    let sent = [
        r#""modalities":["text"]"#,
        r#""modalities":null"#,
        r#""audio":null"#,
        r#""enable_search":false"#,
        r#""serviceTier":"flex""#,
        r#""some_member":true"#,
    ];
    let get = |unknown: &str, limit, member: &str, client: &str| {
        let mut rig = rig("chat", unknown, false, &[("group all", limit)]);
        let body = format!(r#"{{"model":"small","messages":[{{"role":"user","content":"a"}}],{member}}}"#);
        let sent = request(&rig, 0, "chat/completions", &body);
        rig.send(client, sent);
        (rig.status(client), rig.asked().len(), rig.got(client))
    };
    for member in refused {
        let (status, asked, got) = get("forward", "budget = 1.0", member, "c1");
        assert_eq!((status, asked), (403, 0), "{member}: {got}");
        assert!(got.contains("is billed at a price that is not configured"), "{member}: {got}");
        assert_eq!(get("forward", "tokens = 100000000", member, "c1").1, 1, "{member}: no budget");
    }
    for member in sent {
        assert_eq!(get("forward", "budget = 1.0", member, "c1").1, 1, "{member}");
    }
    for member in &refused[5..] {
        assert_eq!(get("drop", "budget = 1.0", member, "c1").1, 1, "{member}: not sent");
    }
}
