//! What coding agents expect of a gateway beyond the API itself.

use super::client::{post, request};
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
    for path in ["/", "/api/hello"] {
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
fn safeguards_are_refused_by_name_where_no_provider_has_them() {
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
