//! The endpoints, their methods, and the fields of their answers.

use super::client::{post, request};
use super::harness::{CREDENTIAL, Harness, bearer, chat, message, streamed, with};
use serde_json::{Value, json};

fn members(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("an object: {value}")).keys().map(String::as_str).collect()
}

#[test]
fn models_have_exactly_four_fields() {
    let h = Harness::usual();
    let answer = h.get("/v1/models", &h.key());
    assert_eq!((answer.status(), answer.head.get("content-type")), (200, Some("application/json")));
    let list = answer.json();
    assert_eq!(members(&list), ["data", "object"]);
    assert_eq!(list["object"], "list");
    let data = list["data"].as_array().unwrap();
    let ids: Vec<&str> = data.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["small", "large", "hasty", "hasty-large", "gone"]);
    for model in data {
        assert_eq!(members(model), ["context_window", "id", "object", "owned_by"]);
        assert_eq!(model["object"], "model");
    }
    assert_eq!(data[0], json!({"id": "small", "object": "model", "owned_by": "sim", "context_window": 256_000}));
    assert_eq!(data[1]["context_window"], 1_000_000);
}

#[test]
fn the_model_list_has_only_models_that_the_key_may_use() {
    let h = Harness::usual();
    let key = h.key_with(&["--models", "large,hasty"]);
    let list = h.get("/v1/models", &key).json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["large", "hasty"]);
    assert_eq!(h.get("/v1/models/large", &key).json()["id"], "large");
    assert_eq!(h.get("/v1/models/nothing", &key).status(), 404);
    assert!(matches!(h.get("/v1/models/small", &key).status(), 403 | 404), "the model is outside the scope");
}

#[test]
fn model_list_has_fields_of_both_apis_with_anthropic_version() {
    let h = Harness::usual();
    let key = h.key();
    let fields = [("x-api-key", key.as_str()), ("anthropic-version", "2023-06-01")];
    let list = h.client().ask(&request("GET", "/v1/models?limit=1000", &fields)).json();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("small"), &json!("gone")));
    let model = &list["data"][0];
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("Small One")));
    assert_eq!((&model["object"], &model["context_window"]), (&json!("model"), &json!(256_000)));
    assert_eq!(model["description"], "256000 tokens of context, sim");
}

#[test]
fn the_models_command_prints_a_table_for_people() {
    let h = Harness::usual();
    let table = h.done(&["models"]);
    let line = table.lines().find(|line| line.contains("Large One")).unwrap_or_else(|| panic!("{table}"));
    for word in ["large", "1M", "3", "15"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(table.lines().any(|line| line.contains("Small One") && line.contains("256K")), "{table}");
    let list: Value = serde_json::from_str(&h.done(&["models", "--json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 5, "{list}");
}

#[test]
fn a_chat_completion_has_its_fields() {
    let h = Harness::usual();
    let answer = h.chat(&h.key(), &chat("one two three\n#sim tokens=7"));
    assert_eq!(answer.status(), 200);
    let body = answer.json();
    assert_eq!(body["id"], answer.id());
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("small")));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &body["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("stop")));
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"].as_str().unwrap().split(' ').count(), 7);
    let usage = &body["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(5), &json!(7)));
    assert_eq!(usage["total_tokens"], 12, "the sum of the other two counters");
}

/// The documented response has fields that some servers leave out.
#[test]
fn fields_missing_in_the_provider_answer_are_added() {
    let h = Harness::usual();
    let body = h.chat(&h.key(), &chat("one two three\n#sim bare tokens=7")).json();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    let usage = &body["usage"];
    let [prompt, completion] = ["prompt_tokens", "completion_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert!(prompt > 0 && completion > 0, "{usage}");
    assert_eq!(usage["total_tokens"], prompt + completion);
}

#[test]
fn the_quota_has_its_fields_and_follows_usage() {
    let h = Harness::usual();
    let key = h.key();
    let quota = h.get("/v1/quota", &key).json();
    assert_eq!(members(&quota), ["limits", "object", "period", "plan", "rate_limit", "tokens"]);
    assert_eq!((&quota["object"], &quota["plan"]), (&json!("quota"), &json!("open")));
    let [start, renews] = ["start", "renews"].map(|name| quota["period"][name].as_str().unwrap());
    for date in [start, renews] {
        assert!(date.len() == 10 && date.ends_with("-01"), "the first day of a month: {date}");
    }
    assert!(start < renews);
    assert_eq!(quota["tokens"], json!({"used": 0, "total": 1_000_000_000}));
    let rate = &quota["rate_limit"];
    assert_eq!((&rate["limit"], &rate["remaining"]), (&json!(1_000_000), &json!(1_000_000)));
    let reset = rate["reset_at"].as_str().unwrap();
    assert!(reset.len() == 20 && reset.ends_with('Z') && reset.as_bytes()[10] == b'T', "{reset}");
    h.chat(&key, &chat("one two three\n#sim tokens=7"));
    let quota = h.get("/v1/quota", &key).json();
    assert_eq!(quota["tokens"]["used"], 12);
    assert!(quota["rate_limit"]["remaining"].as_u64().unwrap() >= 999_999, "a new window may have begun");
}

#[test]
fn every_endpoint_accepts_only_its_method() {
    let h = Harness::usual();
    let key = h.key();
    let auth = bearer(&key);
    let fields = [("authorization", auth.as_str())];
    let rows = [
        ("POST", "/v1/chat/completions", chat("hi").to_string()),
        ("POST", "/v1/messages", message("hi").to_string()),
        ("GET", "/v1/models", String::new()),
        ("GET", "/v1/quota", String::new()),
    ];
    for (method, path, body) in &rows {
        let ask = |method: &str, path: &str| match method {
            "POST" => h.client().ask(&post(path, &fields, body)),
            _ => h.client().ask(&request(method, path, &fields)),
        };
        assert_eq!(ask(method, path).status(), 200, "{method} {path}");
        assert_eq!(ask(method, &format!("{path}/?a=b")).status(), 200, "{method} {path}/?a=b");
        let other = if *method == "POST" { "GET" } else { "POST" };
        let answer = ask(other, path);
        assert_eq!(answer.status(), 405, "{other} {path}");
        assert!(answer.head.get("allow").unwrap().contains(method), "{other} {path}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        let bare = h.client().ask(&request(method, path, &[]));
        assert_eq!(bare.status(), 401, "{method} {path} without a key");
    }
}

#[test]
fn answers_arrive_byte_for_byte_except_id_and_model() {
    let h = Harness::usual();
    let key = h.key();
    for (shape, upstream) in [("chat", "up-small"), ("messages", "up-large")] {
        for stream in [false, true] {
            let text = "größe 東京 \"quoted\"\n#sim echo";
            let mut body = super::harness::body(shape, text);
            if stream {
                body = with(streamed(body), "stream_options", json!({"include_usage": true}));
            }
            let ours = h.generate(shape, &key, &body);
            let model = if shape == "chat" { "small" } else { "large" };
            let direct = direct(&h, shape, &with(body, "model", upstream));
            let serial = sim_id(&direct);
            // The provider's serial numbers of the two requests differ by one.
            let before = serial.replace(&number(&serial).to_string(), &(number(&serial) - 1).to_string());
            let expected = direct.replace(&serial, &ours.id()).replace(upstream, model);
            let ours_text = without_cost(ours.text());
            assert!(!ours_text.contains(&before) && !ours_text.contains(upstream), "{ours_text}");
            assert_eq!(without_created(&ours_text), without_created(&expected), "{shape} stream={stream}");
        }
    }
}

/// Sends the request directly to the provider.
fn direct(h: &Harness, shape: &str, body: &Value) -> String {
    let path = if shape == "chat" { "/v1/chat/completions" } else { "/v1/messages" };
    let fields = [("anthropic-version", "2023-06-01"), ("x-api-key", CREDENTIAL.1)];
    let request = post(path, &fields, &body.to_string());
    super::client::Client::connect(h.upstream).ask(&request).text().to_owned()
}

/// Returns the provider's own id in an answer.
fn sim_id(answer: &str) -> String {
    let at = answer.find("\"id\":\"").unwrap() + 6;
    answer[at..].split('"').next().unwrap().to_owned()
}

fn number(id: &str) -> u64 {
    id.rsplit('-').next().and_then(|tail| tail.rsplit('_').next()).unwrap().parse().unwrap()
}

/// Removes the cost from a stream's last usage.
fn without_cost(text: &str) -> String {
    let Some((before, after)) = text.split_once(",\"cost\":") else { return text.to_owned() };
    before.to_owned() + after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// Returns the text without its `created` times.
pub fn without_created(text: &str) -> String {
    let mut parts = text.split("\"created\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |sum, part| sum + "\"created\":" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn an_answer_has_only_the_gateways_headers() {
    let h = Harness::usual();
    let key = h.key();
    let allowed = [
        "date",
        "content-type",
        "content-length",
        "transfer-encoding",
        "cache-control",
        "x-accel-buffering",
        "x-gateway-request-id",
        "request-id",
        "x-request-id",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset",
        "x-tollgate-cost",
    ];
    for stream in [false, true] {
        let answer = h.chat(&key, &with(chat("hi"), "stream", stream));
        for (name, value) in &answer.head.fields {
            assert!(allowed.contains(&name.as_str()), "{name}: {value}");
        }
        let (kind, cache) = if stream { ("text/event-stream", "no-cache") } else { ("application/json", "no-store") };
        assert!(answer.head.get("content-type").unwrap().starts_with(kind));
        assert_eq!(answer.head.get("cache-control"), Some(cache));
        assert_eq!(answer.head.get("x-accel-buffering"), stream.then_some("no"));
    }
}

/// All paths begin with `/v1`. Probes of the root are answered without a key.
#[test]
fn paths_outside_v1_are_unknown_and_the_root_is_open() {
    let h = Harness::usual();
    let key = h.key();
    for path in ["/chat/completions", "/v2/models", "/v1", "/v1/nothing", "/v1x/models", "/v1/models/a/b"] {
        let answer = h.get(path, &key);
        assert_eq!(
            (answer.status(), answer.json()["error"]["type"].as_str()),
            (404, Some("not_found_error")),
            "{path}"
        );
    }
    assert_eq!(
        h.client().ask(&request("GET", "/v2/models", &[])).status(),
        404,
        "outside of /v1: before authentication"
    );
    assert_eq!(
        h.client().ask(&request("GET", "/v1/nothing", &[])).status(),
        401,
        "inside of /v1: after authentication"
    );
    assert_eq!(h.client().ask(&request("GET", "/", &[])).status(), 200);
    let mut client = h.client();
    client.send(&request("HEAD", "/", &[]));
    assert_eq!(client.head().unwrap().status, 200);
}
