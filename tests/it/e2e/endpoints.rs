//! The list of models for people, and answers compared with those that the provider itself gives.

use super::client::post;
use super::harness::{CREDENTIAL, Harness, streamed, with};
use serde_json::{Value, json};

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
fn without_created(text: &str) -> String {
    let mut parts = text.split("\"created\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |sum, part| sum + "\"created\":" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}
