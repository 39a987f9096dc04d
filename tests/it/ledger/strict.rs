//! Strict limits under races: whatever is asked, streamed or translated, what the provider counts itself never exceeds a
//! limit.

use super::client::post;
use super::harness::{Harness, Setup, bearer, chat, chat_request, message, messages_request, streamed, with};
use super::races::{admitted, race};
use serde_json::{Value, json};

/// A strict limit of tokens, and one of dollars that pays for as many completion tokens as that at most.
const TOKENS: u64 = 3000;
const BUDGET: u64 = 30_000_000;

/// Nano-dollars of a token of a prompt and of a completion, and of an image.
const PRICES: [u64; 3] = [5000, 10_000, 4_000_000];

fn setup() -> Setup {
    let provider = "[[providers]]\nname = \"sim-responses\"\nshape = \"responses\"\nbase_url = \"http://{provider}/v1\"\n\
                    api_key = { env = \"SIM_KEY\" }\n";
    let model = |id: &str, provider: &str, serves: &str| {
        format!(
            "[[models]]\nid = \"{id}\"\ncontext = \"256K\"\ninput_price = 5.0\noutput_price = 10.0\n{serves}\
             targets = [{{ provider = \"{provider}\", model = \"up\" }}]\n"
        )
    };
    let images = "[[models]]\nid = \"images\"\ncontext = \"8K\"\nserves = [\"images\"]\nprice_per_image = 0.004\n\
                  targets = [{ provider = \"sim-chat\", model = \"up\" }]\n";
    let plans = format!(
        "[[plans]]\nname = \"strict-tokens\"\nstrict = true\ntokens = {TOKENS}\n\
         [[plans]]\nname = \"strict-dollars\"\nstrict = true\nbudget = 0.03\n"
    );
    let models = [
        model("chat", "sim-chat", ""),
        model("messages", "sim-messages", ""),
        model("responses", "sim-responses", ""),
        model("vectors", "sim-chat", "serves = [\"embeddings\"]\n"),
        model("texts", "sim-chat", "serves = [\"completions\"]\n"),
    ];
    Setup { more: [provider.to_owned(), models.concat(), images.to_owned(), plans].concat(), ..Setup::default() }
}

/// Every path of a request: its name, and the request of a key. Each asks for more than its bound, and for fewer tokens
/// than the limit, so that several run at the same time.
fn paths(key: &str) -> Vec<(String, Vec<u8>)> {
    let text = "x\n#sim tokens=5000 delay=20";
    let bounded = |body: Value, model: &str| with(with(body, "model", model), "max_tokens", 310);
    let head = [("authorization", bearer(key))];
    let head: Vec<(&str, &str)> = head.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut all = Vec::new();
    for model in ["chat", "messages", "responses"] {
        for is_streamed in [false, true] {
            let with_stream = |body: Value| if is_streamed { streamed(body) } else { body };
            let name = |client: &str| format!("{client} at {model}, streamed: {is_streamed}");
            all.push((name("chat"), chat_request(key, &with_stream(bounded(chat(text), model)))));
            all.push((name("messages"), messages_request(key, &with_stream(bounded(message(text), model)))));
            let body = json!({"model": model, "input": text, "max_output_tokens": 310, "stream": is_streamed});
            all.push((name("responses"), post("/v1/responses", &head, &body.to_string())));
        }
    }
    let completion = json!({"model": "texts", "prompt": text, "max_tokens": 150, "n": 2}).to_string();
    all.push(("completions".to_owned(), post("/v1/completions", &head, &completion)));
    let vectors = json!({"model": "vectors", "input": ["a b c d e f g h", "one two three"]}).to_string();
    all.push(("embeddings".to_owned(), post("/v1/embeddings", &head, &vectors)));
    all
}

/// Tokens of prompts and of completions that the provider has counted.
fn counted(h: &Harness) -> [u64; 2] {
    ["prompt_tokens", "completion_tokens"].map(|name| h.count(name))
}

#[test]
fn no_strict_limit_is_exceeded_on_any_path() {
    let h = Harness::start(&setup());
    let (names, mut rows): (Vec<String>, u64) = (paths("").into_iter().map(|(name, _)| name).collect(), 0);
    for (at, name) in names.iter().enumerate() {
        for plan in ["strict-tokens", "strict-dollars"] {
            let key = h.key_with(&["--plan", plan]);
            let before = counted(&h);
            let ok = admitted(&race(&[h.at], 200, 1, &paths(&key)[at].1));
            rows += ok as u64;
            h.ledger(rows);
            let after = counted(&h);
            let [prompt, completion] = [0, 1].map(|kind| after[kind] - before[kind]);
            let cost = prompt * PRICES[0] + completion * PRICES[1];
            println!(
                "{name} under {plan}: {ok} of 200 admitted, {prompt} and {completion} tokens, {cost} nano-dollars"
            );
            assert!(ok >= 2, "{name} under {plan}: {ok} admitted");
            match plan {
                "strict-tokens" => assert!(prompt + completion <= TOKENS, "{name}: {prompt} and {completion} tokens"),
                _ => assert!(cost <= BUDGET, "{name}: {cost} nano-dollars"),
            }
        }
    }
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn no_strict_budget_is_exceeded_by_images() {
    let h = Harness::start(&setup());
    let request = |key: &str| {
        let body = json!({"model": "images", "prompt": "a cat", "n": 2}).to_string();
        post("/v1/images/generations", &[("authorization", &bearer(key))], &body)
    };
    let key = h.key_with(&["--plan", "strict-dollars"]);
    let ok = admitted(&race(&[h.at], 200, 1, &request(&key)));
    assert_eq!(ok as u64, BUDGET / (2 * PRICES[2]));
    // Nothing bounds the tokens of an image.
    let key = h.key_with(&["--plan", "strict-tokens"]);
    let refused = h.client().ask(&request(&key));
    assert_eq!(refused.status(), 403);
    assert!(refused.text().contains("images: the cost has no upper bound"), "{}", refused.text());
}

#[test]
fn four_calls_at_4_75_of_a_strict_budget_of_5_dollars_bill_at_most_5() {
    let more = "[[models]]\nid = \"dear\"\ncontext = \"256K\"\ninput_price = 0\noutput_price = 500.0\n\
                targets = [{ provider = \"sim-chat\", model = \"up\" }]\n\
                [[plans]]\nname = \"five\"\nbudget = 5.0\nstrict = true\n";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let key = h.key_with(&["--plan", "five"]);
    let ask = |tokens: u64, bound: u64| {
        with(with(chat(&format!("x\n#sim tokens={tokens}")), "model", "dear"), "max_tokens", bound)
    };
    assert_eq!(h.chat(&key, &ask(9500, 9500)).status(), 200);
    h.ledger(1);
    assert_eq!(h.get("/v1/quota", &key).json()["budget"]["used"], json!(4.75));
    // Each may cost a dollar.
    let answers = race(&[h.at], 4, 1, &chat_request(&key, &ask(2000, 2000)));
    assert!(admitted(&answers) >= 1);
    let refused = answers.iter().find(|answer| answer.status() == 429).map(|answer| answer.text());
    assert!(refused.is_some_and(|text| text.contains("reserved by running requests") || text.contains("spent until")));
    let billed = h.count("completion_tokens") * 500_000;
    assert!(billed <= 5_000_000_000, "{billed} nano-dollars");
    let used = h.get("/v1/quota", &key).json()["budget"]["used"].as_f64().unwrap();
    assert!((4.75..=5.0).contains(&used), "{used}");
}

#[test]
fn strict_is_set_and_taken_back_for_a_key() {
    let more = "[[plans]]\nname = \"loose\"\ntokens = 1000\n";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let key = h.key_with(&["--plan", "loose", "--strict"]);
    let shown = |field: &str| -> Value {
        let all: Value = serde_json::from_str(&h.done(&["keys", "list", "--json"])).unwrap();
        all[0][field].clone()
    };
    let id = shown("id").as_str().unwrap().to_owned();
    let sent = || {
        assert_eq!(h.chat(&key, &chat("x\n#sim tokens=2")).status(), 200);
        h.last().1["max_tokens"].clone()
    };
    assert_eq!(shown("strict"), true);
    assert!(sent().as_u64().is_some_and(|bound| bound < 1000));
    assert!(h.done(&["keys", "show", &id]).contains("strict (own)"));
    h.done(&["keys", "set", &id, "--strict=false"]);
    super::process::wait_for("the change", || sent().is_null().then_some(()));
    assert_eq!(shown("strict"), false);
    // A change of something else keeps it.
    h.done(&["keys", "set", &id, "--strict"]);
    h.done(&["keys", "set", &id, "--limit", "requests=50/1m"]);
    assert_eq!(shown("strict"), true);
}

#[test]
fn running_request_of_a_killed_gateway_is_settled_at_its_whole_reservation() {
    let mut h = Harness::start(&setup());
    let key = h.key_with(&["--plan", "strict-tokens"]);
    let ask = |bound: u64| with(with(chat("x\n#sim stall_after=1"), "model", "chat"), "max_tokens", bound);
    let mut client = h.client();
    client.send(&chat_request(&key, &streamed(ask(2800))));
    assert_eq!(client.head().unwrap().status, 200);
    let refused = h.chat(&key, &ask(2800));
    assert_eq!(refused.status(), 429);
    assert!(refused.text().contains("reserved by running requests"), "{}", refused.text());
    h.gateway.stop("KILL");
    for _ in 0..2 {
        h.start_again();
        let used = h.used(&key);
        assert!((2800..TOKENS).contains(&used), "{used}");
        let rows = h.usage("key");
        assert_eq!(
            (rows[0]["requests"].as_u64(), rows[0]["output_tokens"].as_u64()),
            (Some(1), Some(2800)),
            "{rows:?}"
        );
        assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
        h.gateway.stop("TERM");
    }
    // A request that has ended leaves only its own usage record.
    h.start_again();
    assert_eq!(h.chat(&key, &with(with(chat("x\n#sim tokens=9"), "model", "chat"), "max_tokens", 9)).status(), 200);
    h.ledger(2);
    h.gateway.stop("KILL");
    h.start_again();
    assert_eq!(h.ledger(2).output, 2809);
}

#[cfg(feature = "redis")]
#[test]
fn no_strict_limit_is_exceeded_by_two_gateways_on_one_ledger() {
    let Some(server) = super::shared::Server::start() else { return };
    let store = format!("url = \"{}\"\n", server.url());
    let all: Vec<Harness> = (0..2).map(|_| Harness::start(&Setup { store: store.clone(), ..setup() })).collect();
    let at: Vec<std::net::SocketAddr> = all.iter().map(|h| h.at).collect();
    for (name, path) in [("chat", 0), ("messages to chat, streamed", 4), ("embeddings", paths("").len() - 1)] {
        for plan in ["strict-tokens", "strict-dollars"] {
            let key = all[0].key_with(&["--plan", plan]);
            super::process::wait_for("the other gateway to know the key", || {
                (all[1].status_of(&key) != 401).then_some(())
            });
            let before: Vec<[u64; 2]> = all.iter().map(counted).collect();
            let ok = admitted(&race(&at, 200, 1, &paths(&key)[path].1));
            let after: Vec<[u64; 2]> = all.iter().map(counted).collect();
            let [prompt, completion] =
                [0, 1].map(|kind| (0..2).map(|at| after[at][kind] - before[at][kind]).sum::<u64>());
            let cost = prompt * PRICES[0] + completion * PRICES[1];
            println!("{name} under {plan}: {ok} of 200 admitted by two, {prompt} and {completion} tokens");
            assert!(ok >= 2, "{name} under {plan}: {ok} admitted");
            assert!(prompt + completion <= TOKENS && cost <= BUDGET, "{name}: {prompt} and {completion} tokens");
        }
    }
    // A request without a bound of its own gets what all hosts leave.
    let key = all[0].key_with(&["--plan", "strict-tokens"]);
    super::process::wait_for("the other gateway to know the key", || (all[1].status_of(&key) != 401).then_some(()));
    let text = |tokens: u64| with(chat(&format!("x\n#sim tokens={tokens}")), "model", "chat");
    let mut client = all[0].client();
    client.send(&chat_request(
        &key,
        &streamed(with(with(chat("x\n#sim stall_after=1"), "model", "chat"), "max_tokens", 2000)),
    ));
    assert_eq!(client.head().unwrap().status, 200);
    assert_eq!(all[1].chat(&key, &text(5000)).status(), 200);
    let sent = all[1].last().1["max_tokens"].as_u64().unwrap();
    assert!((700..1000).contains(&sent), "{sent}");
}
