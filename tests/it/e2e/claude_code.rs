//! Claude Code's published requirements for a gateway, case by case: headers and members of the Messages API reach a
//! provider of that API unchanged, and no other provider.

use super::client::{Answer, post, request};
use super::harness::{Harness, Setup, bearer, message, with};
use super::recorder::Recorder;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// A gateway in front of a provider of each kind, and their recorders: messages, then chat, then responses.
struct Setting {
    h: Harness,
    key: String,
    recorders: [Recorder; 3],
}

const SHAPES: [&str; 3] = ["messages", "chat", "responses"];

impl Setting {
    fn start(more: &str) -> Setting {
        Setting::with(more, "")
    }

    /// Starts a gateway with these lines in each provider and in each model.
    fn with(more: &str, of_model: &str) -> Setting {
        let started = SHAPES.map(|_| Recorder::start());
        let mut text = String::new();
        for (shape, (_, at)) in SHAPES.iter().zip(&started) {
            let path = if *shape == "messages" { "" } else { "/v1" };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "[[providers]]\nname = \"to-{shape}\"\nshape = \"{shape}\"\nbase_url = \"http://{at}{path}\"\n\
                 api_key = {{ env = \"SIM_KEY\" }}\n{more}\n[[models]]\nid = \"of-{shape}\"\ncontext = \"1M\"\n\
                 targets = [{{ provider = \"to-{shape}\", model = \"m\" }}]\n{of_model}\n"
            );
        }
        let h = Harness::start(&Setup { more: text, ..Setup::default() });
        let key = h.key();
        Setting { h, key, recorders: started.map(|(recorder, _)| recorder) }
    }

    /// Sends a request with these headers and members. Returns the head and the body that the provider gets, and the
    /// status.
    fn send(&self, to: usize, headers: &[(&str, &str)], members: &str) -> (String, String, u16) {
        let mut body = with(message("hi"), "model", format!("of-{}", SHAPES[to])).to_string();
        body.truncate(body.len() - 1);
        if !members.is_empty() {
            body = format!("{body},{members}");
        }
        let answer = self.ask(headers, &format!("{body}}}"));
        let (head, sent) = self.received(to);
        (head, sent, answer.status())
    }

    fn ask(&self, headers: &[(&str, &str)], body: &str) -> Answer {
        let fields: Vec<_> = [("x-api-key", self.key.as_str())].iter().chain(headers).copied().collect();
        self.h.client().ask(&post("/v1/messages?beta=true", &fields, body))
    }

    /// Head and body of the last request that a provider got; empty if there is none.
    fn received(&self, to: usize) -> (String, String) {
        let received = self.recorders[to].taken().pop().unwrap_or_default();
        let (head, sent) = received.split_once("\r\n\r\n").unwrap_or_default();
        (head.to_owned(), sent.to_owned())
    }
}

fn has(head: &str, line: &str) -> bool {
    head.lines().any(|found| found == line)
}

/// Headers that reach a provider of the Messages API: name of the case, header, and the line that arrives.
const FORWARDED: [(&str, (&str, &str), &str); 13] = [
    ("version", ("anthropic-version", "2023-06-01"), "anthropic-version: 2023-06-01"),
    ("another version", ("anthropic-version", "2027-01-31"), "anthropic-version: 2027-01-31"),
    ("one beta", ("anthropic-beta", "claude-code-20250219"), "anthropic-beta: claude-code-20250219"),
    ("a list of betas keeps its order", ("anthropic-beta", "b-2,a-1,c-3"), "anthropic-beta: b-2,a-1,c-3"),
    ("an unknown beta", ("anthropic-beta", "from-the-future-2031-01-01"), "anthropic-beta: from-the-future-2031-01-01"),
    (
        "the beta of a long context",
        ("anthropic-beta", "context-1m-2025-08-07"),
        "anthropic-beta: context-1m-2025-08-07",
    ),
    ("the beta of a sign-in", ("anthropic-beta", "oauth-2025-04-20"), "anthropic-beta: oauth-2025-04-20"),
    ("the beta of effort", ("anthropic-beta", "effort-2025-11-24"), "anthropic-beta: effort-2025-11-24"),
    ("workspace", ("anthropic-workspace-id", "wrkspc_01"), "anthropic-workspace-id: wrkspc_01"),
    ("an unknown header", ("anthropic-x-new", "Some \"value\"; q=1"), "anthropic-x-new: Some \"value\"; q=1"),
    ("a header in capitals", ("Anthropic-X-Case", "Value"), "Anthropic-X-Case: Value"),
    ("a header of eleven letters", ("anthropic-x", "1"), "anthropic-x: 1"),
    (
        "direct access by browsers",
        ("anthropic-dangerous-direct-browser-access", "true"),
        "anthropic-dangerous-direct-browser-access: true",
    ),
];

/// Headers that reach no provider.
const KEPT: [(&str, &str); 12] = [
    ("x-claude-code-session-id", "kept-session"),
    ("x-claude-code-agent-id", "kept-agent"),
    ("x-claude-code-parent-agent-id", "kept-parent"),
    ("x-claude-code-request-class", "kept-subagent"),
    ("x-claude-code-agent-type", "kept-type"),
    ("x-claude-code-prompt-id", "kept-prompt"),
    ("x-claude-code-compaction", "kept-compaction"),
    ("x-app", "kept-cli"),
    ("x-stainless-lang", "kept-js"),
    ("user-agent", "claude-cli/2.1.331 (external, kept-cli)"),
    ("x-organization-uuid", "kept-organization"),
    ("anthropology", "kept-other"),
];

/// Members that reach a provider of the Messages API byte for byte.
const MEMBERS: [(&str, &str); 20] = [
    ("context management", r#""context_management":{"edits":[{"type":"clear_tool_uses_20250919","keep":1e0}]}"#),
    ("effort", r#""output_config":{"effort":"high"}"#),
    ("a task budget", r#""output_config": { "task_budget" : {"type":"tokens","total":20000} }"#),
    ("adaptive thinking", r#""thinking":{"type":"adaptive"}"#),
    ("a budget of thinking", r#""thinking":{"type":"enabled","budget_tokens":1024}"#),
    ("metadata", r#""metadata":{"user_id":"user_1_account__session_2"}"#),
    ("an unknown text", r#""brand_new":"a \u0041 \n""#),
    ("an unknown object", r#""brand_new":{"deep":[1.0,-0,1E3,{"x":null}]}"#),
    ("an unknown null", r#""brand_new":null"#),
    ("tags", r#""tags":["team-a","b"]"#),
    ("safeguards", r#""safeguards":{"mode":"auto"}"#),
    (
        "eager input streaming",
        r#""tools":[{"name":"a","input_schema":{"type":"object"},"eager_input_streaming":true}]"#,
    ),
    (
        "strict and deferred tools",
        r#""tools":[{"name":"a","input_schema":{"type":"object"},"strict":true,"defer_loading":true}]"#,
    ),
    ("a tool that searches tools", r#""tools":[{"type":"tool_search_tool_regex_20251119","name":"tool_search"}]"#),
    ("a system prompt of blocks", SYSTEM),
    ("sampling", r#""temperature":0.50,"top_p":1.0,"top_k":5"#),
    ("stop sequences", r#""stop_sequences":["\n\nHuman:","x"]"#),
    ("a cache mark at the top", r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#),
    ("compaction", r#""compaction":{"type":"auto"}"#),
    ("speed", r#""speed":"fast""#),
];

/// The attribution is the first block of the system prompt.
const SYSTEM: &str = r#""system": [ {"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.331;"},
 {"type":"text","text":"You are Claude Code\u2026","cache_control":{"type":"ephemeral"}},  {"text":"3","type":"text"} ]"#;

/// Members that reach no provider, with their betas.
const DENIED: [(&str, &str, &str); 18] = [
    ("container and skills", r#""container":{"skills":[{"skill_id":"s-1"}]}"#, "skills-2025-10-02"),
    ("servers of tools", r#""mcp_servers":[{"url":"https://elsewhere.test"}]"#, "mcp-client-2025-04-04"),
    ("a newer beta of those", r#""mcp_servers":[]"#, "mcp-client-2025-11-20"),
    ("storage", r#""store":true"#, ""),
    ("other models", r#""fallbacks":["elsewhere"]"#, ""),
    ("a list of models", r#""models":["elsewhere"]"#, ""),
    ("diagnostics", r#""diagnostics":{"previous_message_id":"elsewhere"}"#, ""),
    ("a beta in capitals", r#""container":"c-1""#, "SKILLS-2025-10-02"),
    ("a beta in quotes", r#""container":"c-1""#, "\"skills-2025-10-02\""),
    ("betas in the body", r#""anthropic_beta":["skills-2025-10-02"]"#, ""),
    ("a router of a gateway", r#""user_config":{"model_list":[]}"#, ""),
    ("another tenant", r#""tenant_id":"t-1""#, ""),
    ("another address", r#""base_url":"https://elsewhere.test""#, ""),
    ("a credential", r#""api-key":"elsewhere""#, ""),
    // LiteLLM's router reads it: https://docs.litellm.ai/docs/proxy/reliability
    ("other models for long prompts", r#""context_window_fallbacks":[{"m":["elsewhere"]}]"#, ""),
    ("a credential of another API", r#""openai_api_key":"elsewhere""#, ""),
    ("a password", r#""Client-Secret":"elsewhere""#, ""),
    ("an address for answers", r#""success_callback":["elsewhere"]"#, ""),
];

#[test]
fn headers_of_the_messages_api_reach_only_its_providers() {
    let setting = Setting::start("");
    for (case, header, line) in FORWARDED {
        let (head, _, status) = setting.send(0, &[header], "");
        assert!(status == 200 && has(&head, line), "{case}: {head}");
        assert_eq!(head.to_lowercase().matches(&header.0.to_lowercase()).count(), 1, "{case}: {head}");
        for to in [1, 2] {
            let (head, ..) = setting.send(to, &[header], "");
            assert!(!head.is_empty() && !head.to_lowercase().contains("anthropic"), "{case}: {head}");
        }
    }
    let twice = [("anthropic-beta", "a-1, b-2"), ("Anthropic-Beta", "c-3"), ("anthropic-x", "1"), ("anthropic-x", "2")];
    let (head, ..) = setting.send(0, &twice, "");
    assert!(has(&head, "anthropic-beta: a-1,b-2,c-3"), "{head}");
    assert!(head.contains("anthropic-x: 1\r\nanthropic-x: 2"), "{head}");
    let (head, ..) = setting.send(0, &[("anthropic-beta", ""), ("anthropic-beta", "a-1")], "");
    assert!(has(&head, "anthropic-beta: a-1"), "{head}");
    for header in KEPT {
        for to in 0..3 {
            let (head, body, status) = setting.send(to, &[header], "");
            // The recorder's response is not in the responses format.
            assert!(status == 200 || to == 2, "{header:?}");
            assert!(!head.is_empty() && !head.contains("kept-") && !body.contains("kept-"), "{header:?}: {head}");
        }
    }
}

#[test]
fn members_of_the_messages_api_arrive_byte_for_byte() {
    let setting = Setting::start("");
    for (case, member) in MEMBERS {
        let (_, body, status) = setting.send(0, &[("anthropic-beta", "b")], member);
        assert!(status == 200 && body.contains(member), "{case}: {body}");
    }
    for (case, member) in MEMBERS.iter().filter(|(case, _)| case.contains("unknown") || *case == "tags") {
        for to in [1, 2] {
            let (head, body, _) = setting.send(to, &[("anthropic-beta", "b")], member);
            let name = member.split('"').nth(1).unwrap();
            assert!(!body.is_empty() && !body.contains(name) && !head.contains("anthropic"), "{case}: {body}");
        }
    }
}

#[test]
fn denied_members_are_left_out_with_their_betas() {
    let setting = Setting::start("");
    for (case, member, beta) in DENIED {
        let betas = format!("before-1,{beta},after-2");
        let (head, body, status) = setting.send(0, &[("anthropic-beta", &betas)], member);
        assert_eq!(status, 200, "{case}");
        let name = member.split('"').nth(1).unwrap();
        assert!(!body.contains(&format!("\"{name}\"")) && !body.contains("elsewhere"), "{case}: {body}");
        assert!(has(&head, "anthropic-beta: before-1,after-2"), "{case}: {head}");
    }
}

/// Errors of Anthropic whose text makes Claude Code repair its request. In Tollgate's message only the name of the
/// model differs.
const REPAIRS: [&str; 8] = [
    "\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\" and \"output_config.effort\".",
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.3.role: Input should be 'user' or 'assistant', role: system is not supported",
    "output_config: Extra inputs are not permitted",
    "context_management: Extra inputs are not permitted",
    "tools.0.custom.strict: Extra inputs are not permitted",
    "Unexpected value(s) `context-1m-2025-08-07` for the `anthropic-beta` header.",
    "`m` does not support the effort parameter; m: structured outputs are not supported",
];

#[test]
fn error_texts_that_claude_code_recovers_from_are_kept() {
    let setting = Setting::start("");
    for (to, shape) in SHAPES.iter().enumerate() {
        setting.recorders[to].answer_with(400);
        for text in REPAIRS {
            setting.recorders[to].say(text, "");
            let (name, wanted) = (format!("of-{shape}"), text.replace("`m`", "`of-").replace(" m:", " of-"));
            let wanted = wanted.replace("`of-", &format!("`{name}`")).replace(" of-", &format!(" {name}:"));
            let body = with(message("hi"), "model", name);
            for streams in [false, true] {
                let body = with(body.clone(), "stream", streams).to_string();
                let answer =
                    setting.h.client().ask(&post("/v1/messages?beta=true", &[("x-api-key", &setting.key)], &body));
                let error = answer.json()["error"].clone();
                assert_eq!((answer.status(), error["type"].as_str()), (400, Some("invalid_request_error")), "{error}");
                assert_eq!(error["message"].as_str(), Some(wanted.as_str()), "{shape}");
                assert_eq!(answer.head.get("x-should-retry"), None, "it repeats the request with other members");
            }
        }
    }
}

/// All keys share these limits of the provider account.
#[test]
fn limits_of_the_provider_account_reach_no_client() {
    let lines = "anthropic-ratelimit-requests-remaining: 5\r\nanthropic-ratelimit-unified-status: allowed\r\n\
                 anthropic-organization-id: kept\r\nrequest-id: kept\r\n";
    for status in [200, 400, 429, 529] {
        let setting = Setting::start("");
        setting.recorders[0].answer_with(status);
        setting.recorders[0].say("too much", lines);
        let body = with(message("hi"), "model", "of-messages").to_string();
        let answer = setting.h.client().ask(&post("/v1/messages", &[("x-api-key", &setting.key)], &body));
        assert_eq!(answer.status(), if status > 400 { 500 } else { status }, "{}", answer.text());
        let foreign = |(name, value): &(String, String)| name.starts_with("anthropic-") || value == "kept";
        assert!(!answer.head.fields.iter().any(foreign), "{:?}", answer.head.fields);
    }
}

#[test]
fn operators_may_choose_betas_headers_and_unknown_fields() {
    let chosen = "betas = [\"a-1\", \"skills-2025-10-02\"]\nunknown_fields = \"drop\"\n\
                  headers = { \"anthropic-workspace-id\" = \"configured\" }";
    let setting = Setting::start(chosen);
    let headers = [("anthropic-beta", "a-1,b-2,skills-2025-10-02"), ("Anthropic-Workspace-Id", "the-clients")];
    let (head, body, _) = setting.send(0, &headers, r#""brand_new":1"#);
    assert!(has(&head, "anthropic-beta: a-1,skills-2025-10-02"), "{head}");
    assert!(has(&head, "anthropic-workspace-id: configured") && !head.contains("the-clients"), "{head}");
    assert!(!body.contains("brand_new"), "{body}");
}

/// A conversation as Claude Code sends it: marks and references inside, and a system message in the middle.
const CONVERSATION: &str = r#""messages": [ {"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},
 {"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"ToolSearch","input":{ "q" : 1.0 }}]},
 {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"tool_reference","tool_name":"Read"}]}]},
 {"role":"system","content":[{"type":"text","text":"reminder","cache_control":{"type":"ephemeral","ttl":"1h"}}]},
 {"role":"user","content":"b\u00e9"} ]"#;

#[test]
fn conversation_arrives_byte_for_byte_and_a_late_system_message_is_translated() {
    let setting = Setting::start("");
    for (to, shape) in SHAPES.iter().enumerate() {
        let answer = setting.ask(&[], &format!("{{\"model\":\"of-{shape}\",\"max_tokens\":9,{CONVERSATION}}}"));
        let (_, sent) = setting.received(to);
        // The recorder's answer is none of the responses format.
        assert!(answer.status() == 200 || to == 2, "{}", answer.text());
        assert!(if to == 0 { sent.contains(CONVERSATION) } else { sent.contains("reminder") }, "{sent}");
        assert_eq!(sent.contains("cache_control"), to == 0, "{sent}");
    }
}

/// Auto mode: the verdict is in a member of the answer.
#[test]
fn safeguards_and_their_results_pass() {
    let setting = Setting::start("");
    let results = r#""safeguard_results":{"verdict":"allow","score":0.10}"#;
    let whole = format!(
        r#"{{"id":"m","type":"message","role":"assistant","model":"m","content":[{{"type":"text","text":"hi"}}],
        "stop_reason":"end_turn",{results},"usage":{{"input_tokens":3,"output_tokens":2}}}}"#
    );
    let stream = format!(
        "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"m\",\"type\":\"message\",\
         \"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"usage\":{{\"input_tokens\":3,\"output_tokens\":0}}}}}}\n\n\
         event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":0,\
         \"content_block\":{{\"type\":\"text\",\"text\":\"hi\"}}}}\n\n\
         event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":0}}\n\n\
         event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},{results},\
         \"usage\":{{\"output_tokens\":2}}}}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
    );
    let beta = "safeguards-2026-06-01";
    for (streams, body) in [(false, whole), (true, stream)] {
        setting.recorders[0].answer(&body);
        let asked = with(message("hi"), "safeguards", json!({"mode": "auto"}));
        let asked = with(with(asked, "model", "of-messages"), "stream", streams);
        let answer = setting.ask(&[("anthropic-beta", beta)], &asked.to_string());
        assert!(answer.status() == 200 && answer.text().contains(results), "{}", answer.text());
        let (head, sent) = setting.received(0);
        assert!(has(&head, &format!("anthropic-beta: {beta}")) && sent.contains("safeguards"), "{head}{sent}");
    }
}

/// Bedrock and Vertex refuse tags: their operators remove the member and its beta together.
#[test]
fn tags_pass_with_their_beta_or_are_removed_with_it() {
    let (beta, other) = ("request-tags-2026-08-21", "effort-2025-11-24");
    let headers = [("anthropic-beta", &*format!("{beta},{other}"))];
    let tags = r#""tags":["team-a","b"]"#;
    let (head, body, status) = Setting::start("").send(0, &headers, tags);
    assert_eq!(status, 200);
    assert!(has(&head, &format!("anthropic-beta: {beta},{other}")) && body.contains(tags), "{head}{body}");
    let setting = Setting::with(&format!("betas = [\"{other}\"]"), "drop_params = [\"tags\"]");
    let (head, body, status) = setting.send(0, &headers, tags);
    assert_eq!(status, 200);
    assert!(has(&head, &format!("anthropic-beta: {other}")) && !body.contains("tags"), "{head}{body}");
}

#[test]
fn tokens_are_counted_for_every_provider_without_a_request_to_it() {
    let setting = Setting::start("");
    for shape in SHAPES {
        let body = format!(
            "{{\"model\":\"of-{shape}\",{CONVERSATION},{SYSTEM},\"thinking\":{{\"type\":\"adaptive\"}},\
             \"tools\":[{{\"name\":\"a\",\"input_schema\":{{\"type\":\"object\"}}}}]}}"
        );
        let fields = [("x-api-key", setting.key.as_str()), ("anthropic-beta", "token-counting-2024-11-01")];
        let answer = setting.h.client().ask(&post("/v1/messages/count_tokens?beta=true", &fields, &body));
        let counted = answer.json();
        let members: Vec<&str> = counted.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((answer.status(), members), (200, vec!["input_tokens"]), "{counted}");
        assert!((30..300).contains(&counted["input_tokens"].as_u64().unwrap()), "{counted}");
    }
    assert!(setting.recorders.iter().all(|recorder| recorder.taken().is_empty()));
    assert_eq!(setting.h.ledger(0).requests, 0);
}

/// The request of Claude Code's model menu, which gives up after three seconds and at a redirect.
#[test]
fn list_of_models_has_all_members_and_pages_under_every_credential() {
    let mut more = String::new();
    for number in 0..30 {
        // Writing to a String cannot fail.
        let _ = write!(
            more,
            "[[models]]\nid = \"claude-{number}\"\ncontext = \"1M\"\n\
             targets = [{{ provider = \"sim-messages\", model = \"m\" }}]\n"
        );
    }
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    let as_bearer = bearer(&key);
    let (bearers, api) = (("authorization", &*as_bearer), ("x-api-key", &*key));
    let list = |credentials: &[(&str, &str)], query: &str| {
        let usual = [("anthropic-version", "2023-06-01"), ("user-agent", "claude-code/2.1.332")];
        let fields: Vec<_> = credentials.iter().chain(&usual).copied().collect();
        let began = Instant::now();
        let answer = h.client().ask(&request("GET", &format!("/v1/models?{query}"), &fields));
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert!(answer.status() == 200 && answer.head.get("location").is_none(), "{}", answer.text());
        answer.json()
    };
    let all = list(&[api], "limit=1000");
    for credentials in [&[bearers][..], &[bearers, api]] {
        assert_eq!(list(credentials, "limit=1000"), all);
    }
    assert_eq!((&all["has_more"], all["data"].as_array().unwrap().len()), (&json!(false), 35));
    for model in all["data"].as_array().unwrap() {
        for name in ["id", "display_name", "created_at", "description"] {
            assert!(model[name].is_string(), "{name}: {model}");
        }
        assert_eq!(model["type"], "model");
    }
    let (mut ids, mut query): (Vec<Value>, String) = (Vec::new(), "limit=10".to_owned());
    for page in 1..=4 {
        let list = list(&[api], &query);
        ids.extend(list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()));
        assert_eq!((&list["has_more"], &list["last_id"]), (&json!(page < 4), ids.last().unwrap()));
        query = format!("limit=10&after_id={}", ids.last().unwrap().as_str().unwrap());
    }
    let all: Vec<Value> = all["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, all);
}

/// Four images of 6 MB arrive whole; the body is in memory once. A body above `max_body` gets 413.
#[test]
fn body_of_24_mb_is_in_memory_once() {
    let h = Harness::usual();
    let key = h.key();
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png",
        "data": "iVBORw0KGgo".repeat((6 << 20) / 11)}});
    let text = json!({"type": "text", "text": "#sim tokens=1"});
    let messages = json!([{"role": "user", "content": [image, image, image, image, text]}]);
    let body = with(message(""), "messages", messages).to_string();
    assert!(body.len() > 24 << 20);
    let before = h.gateway.peak();
    let answer = h.client().ask(&post("/v1/messages", &[("x-api-key", &key)], &body));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let more = h.gateway.peak() - before;
    assert!(more < 40 << 20, "{more} bytes for a body of {}", body.len());
    let head = [("x-api-key", key.as_str()), ("content-length", "40000000")];
    let refused = h.client().ask(&request("POST", "/v1/messages", &head));
    assert_eq!((refused.status(), refused.json()["type"].as_str()), (413, Some("error")), "{}", refused.text());
}
