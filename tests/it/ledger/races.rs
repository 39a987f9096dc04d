//! However many requests race, exactly as many are admitted as the plan allows; tokens stay within the documented
//! bound. The figures are printed.

use super::client::{Answer, Client};
use super::harness::{Harness, Setup, chat, chat_request, message, messages_request, streamed, with};
use super::process::wait_for;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Barrier;

/// Number of connections that race.
pub const CONNECTIONS: usize = 500;
/// Requests on each connection.
pub const EACH: usize = 4;

/// Plans whose windows do not end during the test.
pub const PLANS: &str = r#"
[[plans]]
name = "requests"
requests = 137
window = "31d"

[[plans]]
name = "at-once"
concurrency = 50

[[plans]]
name = "period"
tokens = 1000

[[plans]]
name = "window"
tokens_per_window = 1000
window = "31d"
"#;

/// A model that charges only completion tokens, a plan, and a tree of four levels for each of four races. An answer of
/// 100 tokens costs 0.001 and reserves the same amount, so a budget of 0.01 allows exactly ten answers.
pub fn budgets() -> String {
    let mut text = "[[models]]\nid = \"priced\"\ncontext = \"256K\"\ninput_price = 0\noutput_price = 10.0\n\
                    targets = [{ provider = \"sim-chat\", model = \"up\" }]\n\
                    [[plans]]\nname = \"ten\"\nbudget = 0.01\n"
        .to_owned();
    for race in 0..4 {
        for (level, name) in ["one", "two", "three", "four"].iter().enumerate() {
            let above = ["", "one", "two", "three"][level];
            let parent = if level == 0 { String::new() } else { format!("parent = \"{above}{race}\"\n") };
            let budget = if level == 1 { "budget = 0.01\n" } else { "" };
            text.push_str(&format!("[[groups]]\nname = \"{name}{race}\"\n{parent}{budget}"));
        }
    }
    text
}

/// Returns requests for exactly 100 tokens of `priced`, complete and streamed, in both API formats.
pub fn hundreds(key: &str) -> [Vec<u8>; 4] {
    let text = "x\n#sim tokens=100";
    let priced = |body| with(with(body, "model", "priced"), "max_tokens", 100);
    let (chat, message) = (priced(chat(text)), priced(message(text)));
    [
        chat_request(key, &chat),
        chat_request(key, &streamed(chat)),
        messages_request(key, &message),
        messages_request(key, &streamed(message)),
    ]
}

/// Two hundred requests of each kind race for the budget of a key, and for the budget of a group in the middle of a
/// tree, over these gateways. Each budget allows ten answers. `issue` creates a key that all gateways know.
pub fn race_for_money(all: &[Harness], issue: impl Fn(&[&str]) -> String) {
    let at: Vec<SocketAddr> = all.iter().map(|h| h.at).collect();
    for race in 0..4 {
        let leaf = format!("four{race}");
        for options in [&["--plan", "ten"][..], &["--plan", "open", "--group", &leaf]] {
            let key = issue(options);
            let answers = self::race(&at, 200, 1, &hundreds(&key)[race]);
            let ok = admitted(&answers);
            println!("a budget of ten answers: {ok} of {} admitted, kind {race}, {options:?}", answers.len());
            assert_eq!(ok, 10, "{options:?}");
            // The message depends on what is settled: with a shared ledger, this takes until all gateways have written
            // their usage records.
            let refused = wait_for("all rows", || {
                let refused = all[0].chat(&key, &with(chat("again"), "model", "priced"));
                assert_eq!(refused.status(), 429);
                (refused.head.get("x-budget-remaining") == Some("0.000000")).then_some(refused)
            });
            assert_eq!(refused.head.get("x-should-retry"), Some("false"));
            let text = refused.text();
            let whose = if options.len() == 2 { "plan `ten`".to_owned() } else { format!("group `two{race}`") };
            assert!(text.contains(&format!("the budget of {whose} for a month is spent until ")), "{text}");
        }
    }
}

#[test]
fn budget_of_ten_answers_admits_exactly_ten_of_two_hundred() {
    let mut all = [Harness::start(&Setup { more: budgets(), ..Setup::default() })];
    race_for_money(&all, |options| all[0].key_with(options));
    let [h] = &mut all;
    assert_eq!(h.ledger(80).requests, 80);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
    // After a restart the gateway still knows how much was spent, by the key and in the middle of the tree.
    let keys = [&["--plan", "ten"][..], &["--plan", "open", "--group", "three2"]].map(|options| h.key_with(options));
    h.gateway.stop("TERM");
    h.start_again();
    let ask = with(with(chat("x\n#sim tokens=100"), "model", "priced"), "max_tokens", 100);
    assert_eq!(h.chat(&keys[0], &ask).status(), 200);
    assert_eq!(h.chat(&keys[1], &ask).status(), 429);
}

/// A budget of 0.01 and a model whose output costs 10 dollars up to a prompt of `edge` tokens, and 20 above it.
fn tiered(edge: u64) -> Setup {
    let more = format!(
        "[[models]]\nid = \"priced\"\ncontext = \"256K\"\ninput_price = 0\n\
         output_price = {{ \"0\" = 10.0, \"{edge}\" = 20.0 }}\n\
         targets = [{{ provider = \"sim-chat\", model = \"up\" }}]\n[[plans]]\nname = \"ten\"\nbudget = 0.01\n"
    );
    Setup { more, ..Setup::default() }
}

#[test]
fn budget_at_the_edge_of_a_price_tier_admits_what_the_bound_allows() {
    let text = "a few words for the prompt of this request, so that it has some tokens\n#sim tokens=100";
    let asked = with(with(chat(text), "model", "priced"), "max_tokens", 100);
    let prompt = {
        let h = Harness::start(&tiered(1000));
        let answer = h.chat(&h.key(), &asked);
        assert_eq!(answer.head.get("x-tollgate-cost"), Some("0.001"));
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    // A prompt of the edge costs the lower price, one more token the higher one. Both reserve the higher one.
    for (edge, cost, answers) in [(prompt, "0.001", 10), (prompt - 1, "0.002", 5)] {
        let h = Harness::start(&tiered(edge));
        let key = h.key_with(&["--plan", "ten"]);
        let raced = race(&[h.at], 200, 1, &chat_request(&key, &asked));
        let ok = admitted(&raced);
        println!("a budget at the edge of a tier: {ok} of 200 admitted, then up to {answers}");
        assert!((5..=answers).contains(&ok), "{ok}");
        for answer in raced.iter().filter(|answer| answer.status() == 200) {
            assert_eq!(answer.head.get("x-tollgate-cost"), Some(cost));
        }
        h.ledger(ok as u64);
        let more = (0..20).filter(|_| h.chat(&key, &asked).status() == 200).count();
        // Used: at most the budget less one nano-dollar, plus one reservation of 0.002.
        assert_eq!(ok + more, answers);
        let budget = &h.get("/v1/quota", &key).json()["budget"];
        assert_eq!((&budget["used"], &budget["total"]), (&serde_json::json!(0.01), &serde_json::json!(0.01)));
    }
}

pub fn setup() -> Setup {
    Setup { more: PLANS.to_owned(), ..Setup::default() }
}

/// Sends the same request over many connections concurrently, `each` times on every one, and returns all answers.
pub fn race(to: &[SocketAddr], connections: usize, each: usize, request: &[u8]) -> Vec<Answer> {
    let run = |mut client: Client| {
        client.send(&request.repeat(each));
        (0..each).map(|_| client.answer().unwrap()).collect::<Vec<_>>()
    };
    at_once(to, connections, run).into_iter().flatten().collect()
}

/// Returns the number of connections that get a slot, with `each` attempts per connection. A slot stays in use until
/// all have tried, since the requested stream does not end.
pub fn race_for_slots(to: &[SocketAddr], connections: usize, each: usize, request: &[u8]) -> usize {
    let run = |mut client: Client| {
        for _ in 0..each {
            client.send(request);
            let head = client.head().unwrap();
            if head.status == 200 {
                return Some(client);
            }
            assert_eq!(head.status, 429);
            client.body(&head).unwrap();
        }
        None
    };
    at_once(to, connections, run).into_iter().flatten().count()
}

/// Runs the same closure on many connections, all starting at the same time.
fn at_once<T: Send>(to: &[SocketAddr], connections: usize, run: impl Fn(Client) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(connections);
    std::thread::scope(|scope| {
        let threads = (0..connections).map(|index| {
            let (run, start) = (&run, &start);
            let work = move || {
                let client = Client::connect(to[index % to.len()]);
                start.wait();
                run(client)
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).unwrap()
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the number of answers with 200. All others must be 429.
pub fn admitted(answers: &[Answer]) -> usize {
    let count = |status| answers.iter().filter(|answer| answer.status() == status).count();
    let (ok, refused) = (count(200), count(429));
    let other = answers.iter().find(|answer| ![200, 429].contains(&answer.status())).map(|answer| answer.text());
    assert_eq!(ok + refused, answers.len(), "some answers are neither 200 nor 429: {other:?}");
    ok
}

/// Returns the tokens that a streamed answer with `include_usage` reports.
fn total_tokens(answer: &Answer) -> u64 {
    let usage = answer.events().iter().rev().find_map(|event| {
        let event: Value = serde_json::from_str(event).ok()?;
        event["usage"]["total_tokens"].as_u64()
    });
    usage.unwrap_or_else(|| panic!("no usage in {}", answer.text()))
}

#[test]
fn a_limit_of_n_requests_admits_exactly_n_of_two_thousand() {
    let h = Harness::start(&setup());
    let key = h.key_with(&["--plan", "requests"]);
    let answers = race(&[h.at], CONNECTIONS, EACH, &chat_request(&key, &chat("x\n#sim tokens=2")));
    let ok = admitted(&answers);
    println!("requests per window: {ok} of {} admitted at a limit of 137", answers.len());
    assert_eq!((ok, answers.len()), (137, CONNECTIONS * EACH));
    assert_eq!(h.count("requests"), 137);
    assert_eq!(h.ledger(137).requests, 137);
    let quota = h.get("/v1/quota", &key).json();
    assert_eq!(quota["rate_limit"]["remaining"], 0);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn concurrency_limit_of_n_admits_exactly_n_of_two_thousand() {
    let h = Harness::start(&setup());
    let key = h.key_with(&["--plan", "at-once"]);
    let request = chat_request(&key, &streamed(chat("x\n#sim stall_after=1")));
    let ok = race_for_slots(&[h.at], CONNECTIONS, EACH, &request);
    println!("requests at once: {ok} of {CONNECTIONS} admitted at a limit of 50, each trying {EACH} times");
    assert_eq!(ok, 50);
    assert_eq!(h.count("requests"), 50);
    let again = || (race_for_slots(&[h.at], 60, 1, &request) == 50).then_some(());
    wait_for("all slots to be free again", again);
}

#[test]
fn tokens_per_period_and_per_window_stay_within_the_documented_bound() {
    let h = Harness::start(&setup());
    for plan in ["period", "window"] {
        let key = h.key_with(&["--plan", plan]);
        let asked = with(chat("one two three\n#sim tokens=100 delay=300"), "max_tokens", 100);
        let asked = with(streamed(asked), "stream_options", serde_json::json!({"include_usage": true}));
        let answers = race(&[h.at], 200, 1, &chat_request(&key, &asked));
        let ok: Vec<&Answer> = answers.iter().filter(|answer| answer.status() == 200).collect();
        let used: u64 = ok.iter().map(|answer| total_tokens(answer)).sum();
        let each = total_tokens(ok[0]);
        println!("tokens per {plan}: {} of 200 admitted, {used} used of 1000, {each} each", admitted(&answers));
        // The documented bound: at most total - 1, one reservation, and the usage that exceeds the reservations. An
        // answer reserves its 100 tokens and an estimate of its prompt, which is off by a few tokens at most.
        let excess = 20 * ok.len() as u64;
        assert!(used < 1000 + 100 + 50 + excess, "{used}");
        assert!((5..=11).contains(&ok.len()), "{}", ok.len());
        assert_eq!(h.used(&key), used);
    }
}
