//! Requirements of coding agents for a gateway, beyond the API itself.

use super::client::{get, post, request};
use super::harness::{Harness, Setup, chat, message};
use serde_json::{Value, json};

/// Pages as in Anthropic's API ("List Models": `limit`, `after_id`, `has_more`).
#[test]
fn anthropics_list_of_models_is_paged_and_has_aliases_for_the_picker_of_claude_code() {
    let more = "[[models]]\nid = \"named\"\naliases = [\"claude-tiny\", \"claude-*\"]\ncontext = \"8K\"\n\
                targets = [{ provider = \"sim-chat\", model = \"up-named\" }]";
    let h = Harness::start(&Setup { more: more.to_string(), ..Setup::default() });
    let key = h.key();
    let list = |query: &str, agent: &str| {
        let fields = [("x-api-key", key.as_str()), ("anthropic-version", "2023-06-01"), ("user-agent", agent)];
        h.client().ask(&request("GET", &format!("/v1/models{query}"), &fields))
    };
    let ids = |list: &Value| -> Vec<String> {
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = list("", "curl/8.0").json();
    let mut pages = Vec::new();
    let mut query = "?limit=2".to_string();
    loop {
        let page = list(&query, "curl/8.0").json();
        assert!(ids(&page).len() <= 2 && page["first_id"] == page["data"][0]["id"], "{page}");
        pages.extend(ids(&page));
        assert_eq!(page["last_id"].as_str(), pages.last().map(String::as_str));
        if page["has_more"] == false {
            break;
        }
        query = format!("?limit=2&after_id={}", pages.last().unwrap());
    }
    assert_eq!(pages, ids(&all), "pages must give every model once");
    for (query, agent) in
        [("?aliases=true", "curl/8.0"), ("", "claude-code/2.1.331"), ("?limit=1000", "claude-cli/2.1.331 (external)")]
    {
        let list = list(query, agent).json();
        let at = ids(&list).iter().position(|id| id == "claude-tiny").unwrap_or_else(|| panic!("{list}"));
        assert_eq!(list["data"][at]["description"], "Alias of named");
        assert_eq!(ids(&list).len(), pages.len() + 1, "an alias with `*` is no name");
    }
    assert!(!ids(&list("?aliases=false", "claude-cli/2.1.331").json()).contains(&"claude-tiny".to_string()));
    for query in ["?limit=0", "?limit=1001", "?limit=x", "?after_id=nothing"] {
        assert_eq!(list(query, "curl/8.0").status(), 400, "{query}");
    }
}

#[test]
fn claude_code_finds_the_gateway_and_repeats_no_request_without_a_key() {
    let h = Harness::usual();
    for path in ["/", "/api/hello", "/health"] {
        let mut client = h.client();
        client.send(&request("HEAD", path, &[]));
        assert_eq!(client.head().unwrap().status, 200, "{path}");
    }
    let refused =
        |path: &str, body: Value| h.client().ask(&post(path, &[("x-api-key", "tg_live_wrong")], &body.to_string()));
    let answer = refused("/v1/messages?beta=true", message("x"));
    assert_eq!((answer.status(), answer.head.get("x-should-retry")), (401, Some("false")));
    let answer = refused("/v1/chat/completions", chat("x"));
    assert_eq!((answer.status(), answer.head.get("x-should-retry")), (401, None), "other SDKs do not repeat it");
}

#[test]
fn safeguards_are_refused_by_name_if_no_provider_has_them() {
    let h = Harness::usual();
    let key = h.key();
    let body = |model: &str| {
        json!({"model": model, "max_tokens": 9, "safeguards": {"mode": "auto"},
            "messages": [{"role": "user", "content": "x"}]})
        .to_string()
    };
    let ask = |model: &str| h.client().ask(&post("/v1/messages", &[("x-api-key", &key)], &body(model)));
    let answer = ask("small");
    let message = answer.json()["error"]["message"].to_string();
    assert!(answer.status() == 400 && message.contains("safeguards: "), "{message}");
    assert_eq!(ask("large").status(), 200, "a provider of the same API gets the member");
}

#[test]
fn usage_tells_the_sub_agents_of_claude_code_codex_and_opencode_apart() {
    let h = Harness::usual();
    let key = h.key();
    let claude = ("x-claude-code-session-id", "s-1");
    let agent = |id: &'static str| ("x-claude-code-agent-id", id);
    let cases: [&[(&str, &str)]; 8] = [
        &[claude],
        &[claude, agent("a-1")],
        &[claude, agent("a-1")],
        &[claude, agent("a-2"), ("x-claude-code-parent-agent-id", "a-1")],
        &[("session-id", "c-1"), ("thread-id", "t-2"), ("x-codex-parent-thread-id", "t-1")],
        &[("x-session-id", "o-2"), ("X-Parent-Session-Id", "o-1")],
        // Neither too long a name nor one with quotes harms anything.
        &[claude, agent("\"\\ \u{1f600}"), ("x-claude-code-parent-agent-id", LONG)],
        &[claude, agent("")],
    ];
    let logged: Vec<Value> = cases
        .iter()
        .map(|more| {
            let fields: Vec<_> = [("x-api-key", key.as_str())].iter().chain(*more).copied().collect();
            let answer = h.client().ask(&post("/v1/messages", &fields, &message("x").to_string()));
            assert_eq!(answer.status(), 200, "{}", answer.text());
            let (head, _) = h.last();
            assert!(!head.contains("a-1") && !head.contains("claude-code") && !head.contains("parent"), "{head}");
            h.log_of(&answer.id())
        })
        .collect();
    let text = |at: usize, name: &str| logged[at][name].as_str().unwrap_or_default().to_owned();
    assert_eq!(logged[0].get("agent"), None);
    assert!(text(1, "agent").len() == 16 && text(1, "agent") == text(2, "agent") && text(1, "parent_agent").is_empty());
    assert_ne!(text(3, "agent"), text(1, "agent"));
    assert_eq!(text(3, "parent_agent"), text(1, "agent"), "a parent has the name that it has as an agent");
    assert!(text(4, "agent").len() == 16 && text(4, "parent_agent").len() == 16);
    assert_eq!(text(5, "agent"), text(5, "session"));
    assert!(text(6, "agent").len() == 16 && text(6, "parent_agent").len() == 16);
    assert_eq!(logged[7].get("agent"), None, "an empty name is the main agent");
    h.ledger(cases.len() as u64);
    let agents = h.usage("agent");
    let of = |name: &str| {
        let line = agents.iter().find(|line| line["name"].as_str().unwrap_or_default() == name);
        line.and_then(|line| line["requests"].as_u64())
    };
    assert_eq!((agents.len(), of(&text(1, "agent")), of(&text(3, "agent"))), (6, Some(2), Some(1)), "{agents:?}");
    let page = get(h.admin, "/admin/v1/usage?by=agent,day").unwrap();
    assert!(page.status() == 200 && page.text().contains(&text(4, "agent")), "{}", page.text());
    let export = h.done(&["ledger", "export"]);
    let lines: Vec<Value> = export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named: Vec<&Value> = lines.iter().filter(|line| line["agent"] == *text(3, "agent")).collect();
    assert!(named.len() == 1 && named[0]["parent_agent"] == *text(1, "agent"), "{export}");
    assert!(h.done(&["ledger", "verify"]).starts_with("ok"));
}

/// With the provider names "OpenAI" and "Azure" Codex sends this item, and no release falls back after an error.
#[test]
fn codex_learns_that_only_some_providers_compact() {
    let more = "[[providers]]\nname = \"own-responses\"\nshape = \"responses\"\nbase_url = \"http://{provider}/v1\"\n\
                api_key = { env = \"SIM_KEY\" }\n[[models]]\nid = \"of-responses\"\ncontext = \"256K\"\n\
                targets = [{ provider = \"own-responses\", model = \"up\" }]";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let key = h.key();
    let ask = |path: &str, model: &str, stream: bool| {
        let input = json!([{"role": "user", "content": "x"}, {"type": "compaction_trigger"}]);
        let body = json!({"model": model, "stream": stream, "tools": [], "input": input}).to_string();
        let fields = [("authorization", &*format!("Bearer {key}")), ("user-agent", "codex_exec/0.171.0 (Linux)")];
        h.client().ask(&post(path, &fields, &body))
    };
    for stream in [false, true] {
        for model in ["small", "large"] {
            let answer = ask("/v1/responses", model, stream);
            let text = answer.text();
            assert_eq!(answer.status(), 400, "{model}: {text}");
            assert!(text.contains("input[1]") && text.contains("neither OpenAI nor Azure"), "{model}: {text}");
        }
        ask("/v1/responses", "of-responses", stream);
        assert_eq!(h.last().1["input"][1], json!({"type": "compaction_trigger"}), "it decides itself");
    }
    assert_eq!(ask("/v1/responses/compact", "of-responses", false).status(), 404);
}

const LONG: &str = match std::str::from_utf8(&[b'x'; 4000]) {
    Ok(text) => text,
    Err(_) => "",
};
