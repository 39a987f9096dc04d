//! Claude Code's published requirements for a gateway, case by case: headers and members of the Messages API reach a
//! provider of that API unchanged, and no other provider.

use super::client::post;
use super::harness::{Harness, Setup, message, with};
use super::recorder::Recorder;
use std::fmt::Write;

/// A gateway in front of a provider of each kind, and their recorders: messages, then chat, then responses.
struct Stand {
    h: Harness,
    key: String,
    recorders: [Recorder; 3],
}

const SHAPES: [&str; 3] = ["messages", "chat", "responses"];

impl Stand {
    fn start(more: &str) -> Stand {
        let started = SHAPES.map(|_| Recorder::start());
        let mut text = String::new();
        for (shape, (_, at)) in SHAPES.iter().zip(&started) {
            let path = if *shape == "messages" { "" } else { "/v1" };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "[[providers]]\nname = \"to-{shape}\"\nshape = \"{shape}\"\nbase_url = \"http://{at}{path}\"\n\
                 api_key = {{ env = \"SIM_KEY\" }}\n{more}\n[[models]]\nid = \"of-{shape}\"\ncontext = \"1M\"\n\
                 targets = [{{ provider = \"to-{shape}\", model = \"m\" }}]\n"
            );
        }
        let h = Harness::start(&Setup { more: text, ..Setup::default() });
        let key = h.key();
        Stand { h, key, recorders: started.map(|(recorder, _)| recorder) }
    }

    /// Sends a request with these headers and members. Returns the head and the body that the provider gets, and the
    /// status.
    fn send(&self, to: usize, headers: &[(&str, &str)], members: &str) -> (String, String, u16) {
        let mut body = with(message("hi"), "model", format!("of-{}", SHAPES[to])).to_string();
        body.truncate(body.len() - 1);
        if !members.is_empty() {
            body = format!("{body},{members}");
        }
        let fields: Vec<_> = [("x-api-key", self.key.as_str())].iter().chain(headers).copied().collect();
        let answer = self.h.client().ask(&post("/v1/messages?beta=true", &fields, &format!("{body}}}")));
        let received = self.recorders[to].taken().pop().unwrap_or_default();
        let (head, sent) = received.split_once("\r\n\r\n").unwrap_or_default();
        (head.to_owned(), sent.to_owned(), answer.status())
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

/// The attribution comes first and alone.
const SYSTEM: &str = r#""system": [ {"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.331;"},
 {"type":"text","text":"You are Claude Code\u2026","cache_control":{"type":"ephemeral"}},  {"text":"3","type":"text"} ]"#;

/// Members that reach no provider, and betas that go with them.
const DENIED: [(&str, &str, &str); 14] = [
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
];

#[test]
fn headers_of_the_messages_api_reach_only_its_providers() {
    let stand = Stand::start("");
    for (case, header, line) in FORWARDED {
        let (head, _, status) = stand.send(0, &[header], "");
        assert!(status == 200 && has(&head, line), "{case}: {head}");
        assert_eq!(head.to_lowercase().matches(&header.0.to_lowercase()).count(), 1, "{case}: {head}");
        for to in [1, 2] {
            let (head, ..) = stand.send(to, &[header], "");
            assert!(!head.is_empty() && !head.to_lowercase().contains("anthropic"), "{case}: {head}");
        }
    }
    let twice = [("anthropic-beta", "a-1, b-2"), ("Anthropic-Beta", "c-3"), ("anthropic-x", "1"), ("anthropic-x", "2")];
    let (head, ..) = stand.send(0, &twice, "");
    assert!(has(&head, "anthropic-beta: a-1,b-2,c-3"), "{head}");
    assert!(head.contains("anthropic-x: 1\r\nanthropic-x: 2"), "{head}");
    for header in KEPT {
        for to in 0..3 {
            let (head, body, status) = stand.send(to, &[header], "");
            // The recorder's answer is none of the responses format.
            assert!(status == 200 || to == 2, "{header:?}");
            assert!(!head.is_empty() && !head.contains("kept-") && !body.contains("kept-"), "{header:?}: {head}");
        }
    }
}

#[test]
fn members_of_the_messages_api_arrive_byte_for_byte() {
    let stand = Stand::start("");
    for (case, member) in MEMBERS {
        let (_, body, status) = stand.send(0, &[("anthropic-beta", "b")], member);
        assert!(status == 200 && body.contains(member), "{case}: {body}");
    }
    for (case, member) in MEMBERS.iter().filter(|(case, _)| case.contains("unknown") || *case == "tags") {
        for to in [1, 2] {
            let (head, body, _) = stand.send(to, &[("anthropic-beta", "b")], member);
            let name = member.split('"').nth(1).unwrap();
            assert!(!body.is_empty() && !body.contains(name) && !head.contains("anthropic"), "{case}: {body}");
        }
    }
}

#[test]
fn denied_members_are_left_out_with_their_betas() {
    let stand = Stand::start("");
    for (case, member, beta) in DENIED {
        let betas = format!("before-1,{beta},after-2");
        let (head, body, status) = stand.send(0, &[("anthropic-beta", &betas)], member);
        assert_eq!(status, 200, "{case}");
        let name = member.split('"').nth(1).unwrap();
        assert!(!body.contains(&format!("\"{name}\"")) && !body.contains("elsewhere"), "{case}: {body}");
        assert!(has(&head, "anthropic-beta: before-1,after-2"), "{case}: {head}");
    }
}

/// Errors by whose words Claude Code repairs its request, as Anthropic writes them. In Tollgate's message only the name
/// of the model differs.
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
fn words_by_which_claude_code_repairs_its_request_reach_it() {
    let stand = Stand::start("");
    for (to, shape) in SHAPES.iter().enumerate() {
        stand.recorders[to].answer_with(400);
        for text in REPAIRS {
            stand.recorders[to].say(text, "");
            let (name, wanted) = (format!("of-{shape}"), text.replace("`m`", "`of-").replace(" m:", " of-"));
            let wanted = wanted.replace("`of-", &format!("`{name}`")).replace(" of-", &format!(" {name}:"));
            let body = with(message("hi"), "model", name);
            for streams in [false, true] {
                let body = with(body.clone(), "stream", streams).to_string();
                let answer = stand.h.client().ask(&post("/v1/messages?beta=true", &[("x-api-key", &stand.key)], &body));
                let error = answer.json()["error"].clone();
                assert_eq!((answer.status(), error["type"].as_str()), (400, Some("invalid_request_error")), "{error}");
                assert_eq!(error["message"].as_str(), Some(wanted.as_str()), "{shape}");
                assert_eq!(answer.head.get("x-should-retry"), None, "it repeats the request with other members");
            }
        }
    }
}

/// They are the limits of the provider account, which all keys share.
#[test]
fn limits_of_the_provider_account_reach_no_client() {
    let stand = Stand::start("");
    let lines = "anthropic-ratelimit-requests-remaining: 5\r\nanthropic-ratelimit-unified-status: allowed\r\n\
                 anthropic-organization-id: kept\r\nrequest-id: kept\r\n";
    for status in [200, 400, 429, 529] {
        stand.recorders[0].answer_with(status);
        stand.recorders[0].say("too much", lines);
        let body = with(message("hi"), "model", "of-messages").to_string();
        let answer = stand.h.client().ask(&post("/v1/messages", &[("x-api-key", &stand.key)], &body));
        assert_eq!(answer.status(), if status > 400 { 500 } else { status }, "{}", answer.text());
        let foreign = |(name, value): &(String, String)| name.starts_with("anthropic-") || value == "kept";
        assert!(!answer.head.fields.iter().any(foreign), "{:?}", answer.head.fields);
    }
}

#[test]
fn operators_may_choose_betas_headers_and_unknown_fields() {
    let chosen = "betas = [\"a-1\", \"skills-2025-10-02\"]\nunknown_fields = \"drop\"\n\
                  headers = { \"anthropic-workspace-id\" = \"configured\" }";
    let stand = Stand::start(chosen);
    let headers = [("anthropic-beta", "a-1,b-2,skills-2025-10-02"), ("Anthropic-Workspace-Id", "the-clients")];
    let (head, body, _) = stand.send(0, &headers, r#""brand_new":1"#);
    assert!(has(&head, "anthropic-beta: a-1,skills-2025-10-02"), "{head}");
    assert!(has(&head, "anthropic-workspace-id: configured") && !head.contains("the-clients"), "{head}");
    assert!(!body.contains("brand_new"), "{body}");
}
