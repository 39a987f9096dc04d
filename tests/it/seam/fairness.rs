//! Fairness: a key that behaves as badly as possible must not affect others.

use super::rig::{BUDGET, Rig, large_answer, request};
use std::time::Duration;
use tollgate::base::seam::Ending;

/// Returns a Messages request for a provider of the Chat Completions format, with this conversation and these
/// additional members.
fn message(key: &str, messages: &str, more: &str) -> String {
    let body = format!("{{\"model\":\"small\",\"max_tokens\":9,\"messages\":[{messages}]{more}}}");
    format!(
        "POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {key}\r\nanthropic-version: 2023-06-01\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns a tool call whose arguments double in size when they are encoded as a string.
fn doubling(bytes: usize) -> String {
    let arguments = "\\\\".repeat(bytes / 2);
    format!(
        "{{\"role\":\"user\",\"content\":\"a\"}},{{\"role\":\"assistant\",\"content\":[{{\"type\":\"tool_use\",\
         \"id\":\"c\",\"name\":\"f\",\"input\":{{\"a\":\"{arguments}\"}}}}]}},{{\"role\":\"user\",\"content\":\"b\"}}"
    )
}

/// Checks that another key is served on a new connection.
fn is_served(rig: &mut Rig, key: &str, client: &str) {
    let before = rig.asked();
    assert!(rig.is_open(), "new clients are not accepted: {:?}", rig.world.gateway.vitals());
    let (head, body) = request(&rig.keys.texts[key].clone(), 20_000, false);
    rig.send(client, head + &body);
    let provider = rig.asked().into_iter().find(|label| !before.contains(label));
    let provider = provider.unwrap_or_else(|| panic!("{:?} {}", rig.world.gateway.vitals(), rig.got(client)));
    rig.answer(&provider, &large_answer(1000));
    assert_eq!(rig.status(client), 200, "{:.600}", rig.got(client));
}

#[test]
fn one_large_translation_does_not_stop_the_service() {
    let tools: String = (0..7500).map(|n| format!(",{{\"name\":\"t{n}\",\"input_schema\":{{}}}}")).collect();
    let tools = format!(",\"tools\":[{}]", &tools[1..]);
    let plain = "{\"role\":\"user\",\"content\":\"a\"}".to_string();
    for (messages, more) in [(plain, tools), (doubling(BUDGET / 6), String::new())] {
        let mut rig = Rig::new(2);
        let asks = message(&rig.keys.texts["k0"].clone(), &messages, &more);
        rig.send("hostile", asks);
        assert_eq!(rig.asked().len(), usize::from(more.is_empty()), "{:.300}", rig.got("hostile"));
        is_served(&mut rig, "k1", "honest");
    }
}

/// Returns the CPU time of this thread, which does not depend on other threads.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Returns the CPU time that reading a chat request with these members takes.
fn last_byte(members: &str) -> Duration {
    let lines = [("server", "max_body = \"16MiB\""), ("server", "max_buffered = \"64MiB\"")];
    let mut rig = Rig::with(1, &lines);
    let body = format!("{{{members}}}");
    let (length, key) = (body.len(), rig.keys.texts["k0"].clone());
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\
         content-length: {length}\r\n\r\n"
    );
    rig.send("hostile", head + &body[..length - 1]);
    assert_eq!(rig.got("hostile"), "");
    let before = thread_time();
    rig.give("hostile", "}");
    thread_time() - before
}

#[test]
fn long_names_cost_the_loop_no_more_than_a_long_text() {
    const LONG: usize = 8 << 20;
    let (words, escaped) = ("ab-c".repeat(LONG / 4), "\\u0061b".repeat(LONG / 7));
    let ask = "\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]";
    let mut slow = Vec::new();
    for name in [&words, &escaped] {
        let text = last_byte(&format!("{},\"x\":1", ask.replace("hi", name)));
        for (what, members) in [
            ("model", ask.replace("small", name)),
            ("model and alias", ask.replace("small", &format!("small{name}"))),
            ("member", format!("{ask},\"{name}\":1")),
            ("member like another", format!("{ask},\"models{name}\":1")),
            ("role", ask.replace("user", &format!("user{name}"))),
            ("user", format!("{ask},\"user\":\"{name}\"")),
        ] {
            let took = last_byte(&members);
            println!("{what:<20} {took:>10.1?}, a text {text:.1?}");
            if took > 2 * text + Duration::from_millis(40) {
                slow.push((what, took));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}

#[test]
fn request_of_many_small_items_is_translated_by_a_helper_thread() {
    for (count, is_long) in [(20, false), (4000, true)] {
        let mut rig = Rig::with(2, &[("server", "max_body = \"16MiB\""), ("server", "max_buffered = \"64MiB\"")]);
        rig.world.hold_work = true;
        let one = "{\"role\":\"user\",\"content\":\"a\"}";
        let asks = message(&rig.keys.texts["k0"].clone(), &vec![one; count].join(","), "");
        assert!(asks.len() < 200_000);
        rig.send("c", asks);
        assert_eq!(
            (rig.world.works.len(), rig.asked().len()),
            (usize::from(is_long), usize::from(!is_long)),
            "{count}"
        );
        is_served(&mut rig, "k1", "honest");
        rig.world.work().unwrap();
    }
}

#[test]
fn body_of_many_small_values_is_read_by_a_helper_thread() {
    let text = format!("\"{}\"", "a".repeat(200_000));
    let tools = format!("[{}{{}}]", "{},".repeat(60_000));
    let numbers = format!("[{{\"a\":[{}1]}}]", "1,".repeat(60_000));
    for (member, value, is_long) in [("user", &text, false), ("tools", &tools, true), ("tools", &numbers, true)] {
        let mut rig = Rig::with(1, &[("server", "max_body = \"16MiB\""), ("server", "max_buffered = \"64MiB\"")]);
        rig.world.hold_work = true;
        let key = rig.keys.texts["k0"].clone();
        let ask = "\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]";
        let body = format!("{{{ask},\"{member}\":{value}}}");
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n");
        rig.send("c", format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(
            (rig.world.works.len(), rig.asked().len()),
            (usize::from(is_long), usize::from(!is_long)),
            "{member}"
        );
        rig.world.work().unwrap();
        assert_eq!(rig.asked().len(), 1, "{}", rig.got("c"));
    }
}

const MIB: usize = 1 << 20;

/// Returns a gateway with 64 MiB of buffers, of which one key may use 16 MiB. Its helper threads do nothing until the
/// test lets them.
fn large_rig() -> Rig {
    let lines =
        [("server", "max_body = \"16MiB\""), ("server", "max_buffered = \"64MiB\""), ("plan team", "concurrency = 0")];
    let mut rig = Rig::with(2, &lines);
    rig.world.hold_work = true;
    rig
}

/// Returns head and body of a chat request of `k0` with a text of `length` bytes.
fn long_request(rig: &Rig, model: &str, length: usize) -> (String, String) {
    let (head, body) = request(&rig.keys.texts["k0"].clone(), length, false);
    (head, body.replacen("\"small\"", &format!("\"{model}\""), 1).replacen("aaaaa", &"a".repeat(10 - model.len()), 1))
}

#[test]
fn bodies_that_wait_to_be_freed_are_charged_to_their_key() {
    let mut rig = large_rig();
    let mut refused_before = 0;
    for n in 0..12 {
        let (head, body) = long_request(&rig, "absent", 7 * MIB);
        let client = format!("hostile{n}");
        rig.send(&client, head);
        // The body of a request whose head was rejected is not sent.
        match rig.got(&client).is_empty() {
            true => rig.give(&client, body),
            false => refused_before += 1,
        }
        rig.world.work_except_freeing().unwrap();
        assert!([404, 503].contains(&rig.status(&client)), "{:.300}", rig.got(&client));
    }
    let vitals = rig.world.gateway.vitals();
    assert!(vitals.buffered < 16 * MIB, "more than the share of one key: {vitals:?}");
    assert_eq!(refused_before, 10, "two bodies fit its share");
    assert!(rig.got("hostile11").contains("too many bytes of requests in flight"), "{}", rig.got("hostile11"));
    is_served(&mut rig, "k1", "honest");
    rig.world.work().unwrap();
    assert_eq!(rig.world.gateway.vitals().buffered, 0);
    let (head, body) = long_request(&rig, "absent", 7 * MIB);
    rig.send("hostile", head + &body);
    assert_eq!(rig.status("hostile"), 404, "all of its share is free again");
}

#[test]
fn abandoned_translations_are_charged_to_their_key() {
    let mut rig = large_rig();
    for n in 0..6 {
        let (head, body) = long_request(&rig, "large", 5 * MIB);
        let client = format!("hostile{n}");
        rig.send(&client, head);
        rig.give(&client, body);
        rig.world.finish(&client, Ending::Broken).unwrap();
    }
    let vitals = rig.world.gateway.vitals();
    assert!(vitals.buffered < 17 * MIB, "more than the share of one key: {vitals:?}");
    assert!(rig.world.works.len() < 4, "{}", rig.world.works.len());
    is_served(&mut rig, "k1", "honest");
    rig.world.work().unwrap();
    rig.world.work().unwrap();
    assert_eq!(rig.world.gateway.vitals().buffered, 0);
}

#[test]
fn request_whose_translation_does_not_fit_is_rejected_before_its_body() {
    // Requests to `responses` are translated for every model.
    let mut rig = large_rig();
    let mut refused = 0;
    for n in 0..5 {
        let client = format!("hostile{n}");
        let key = rig.keys.texts["k0"].clone();
        let head = format!(
            "POST /v1/responses HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{{",
            5 * MIB
        );
        rig.send(&client, head);
        refused += usize::from(rig.status(&client) == 503);
    }
    assert_eq!(refused, 4, "only one request fits together with its translation");
    is_served(&mut rig, "k1", "honest");
}

#[test]
fn translation_larger_than_all_buffers_is_413() {
    let mut rig = Rig::new(1);
    // Each message has thirty bytes, and several hundred after translation.
    let messages = vec!["{\"role\":\"user\",\"content\":\"a\"}"; 8000].join(",");
    let asks = message(&rig.keys.texts["k0"].clone(), &messages, "");
    rig.send("hostile", asks);
    assert_eq!(rig.status("hostile"), 413, "{}", rig.got("hostile"));
    assert!(rig.got("hostile").contains("take more than 786432 bytes"), "{}", rig.got("hostile"));
}

#[test]
fn translated_requests_have_a_bounded_number_of_items() {
    let lines = [("server", "max_body = \"16MiB\""), ("server", "max_buffered = \"256MiB\"")];
    let mut rig = Rig::with(1, &lines);
    let key = rig.keys.texts["k0"].clone();
    let list = |one: &str, count: usize| vec![one; count].join(",");
    let (hi, text) = ("{\"role\":\"user\",\"content\":\"a\"}", "{\"type\":\"text\",\"text\":\"a\"}");
    let chat = |members: String| format!("{{\"model\":\"MODEL\",{members}}}");
    let said = format!("\"messages\":[{hi}]");
    let function = "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}";
    let call = "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\"}}";
    let parts = " parts, calls and results in all of them";
    let rows = [
        ("chat/completions", chat(format!("{said},\"tools\":[{}]", list(function, 4097))), "tools", 4096, ""),
        ("chat/completions", chat(format!("\"messages\":[{}]", list(hi, 100_001))), "messages", 100_000, ""),
        (
            "chat/completions",
            chat(format!("\"messages\":[{{\"role\":\"user\",\"content\":[{}]}}]", list(text, 100_001))),
            "messages",
            100_000,
            parts,
        ),
        (
            "chat/completions",
            chat(format!("\"messages\":[{hi},{{\"role\":\"assistant\",\"tool_calls\":[{}]}}]", list(call, 100_001))),
            "messages",
            100_000,
            parts,
        ),
        ("chat/completions", chat(format!("{said},\"stop\":[{}]", list("\"a\"", 1025))), "stop", 1024, ""),
        (
            "messages",
            chat(format!("\"max_tokens\":1,{said},\"tools\":[{}]", list("{\"name\":\"f\"}", 4097))),
            "tools",
            4096,
            "",
        ),
        (
            "messages",
            chat(format!("\"max_tokens\":1,{said},\"system\":[{}]", list(text, 100_000))),
            "messages",
            100_000,
            "",
        ),
        (
            "messages",
            chat(format!(
                "\"max_tokens\":1,\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\
             \"tool_use_id\":\"c\",\"content\":[{}]}}]}}]",
                list(text, 100_000)
            )),
            "messages",
            100_000,
            parts,
        ),
        (
            "responses",
            chat(format!("\"input\":\"a\",\"tools\":[{}]", list("{\"type\":\"function\",\"name\":\"f\"}", 4097))),
            "tools",
            4096,
            "",
        ),
        (
            "responses",
            chat(format!(
                "\"input\":\"a\",\"tools\":[{{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{}]}}]",
                list("{\"name\":\"f\"}", 4096)
            )),
            "tools",
            4096,
            "",
        ),
        (
            "responses",
            chat(format!(
                "\"input\":[{hi},{{\"type\":\"additional_tools\",\"tools\":[{}]}}]",
                list("{\"type\":\"function\",\"name\":\"f\"}", 4097)
            )),
            "tools",
            4096,
            "",
        ),
        ("responses", chat(format!("\"input\":[{}]", list(hi, 100_001))), "input", 100_000, ""),
    ];
    for (at, (path, body, field, most, what)) in rows.iter().enumerate() {
        // A request in the provider's own API format is forwarded unchanged; one in another format is translated.
        let (own, other) = if *path == "chat/completions" { ("small", "large") } else { ("large", "small") };
        for model in [own, other] {
            let body = body.replace("MODEL", model);
            let head = format!(
                "POST /v1/{path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let client = format!("c{at}-{model}");
            rig.send(&client, head + &body);
            let is_passed = model == own && *path != "responses";
            match is_passed {
                true => {
                    let provider = rig.asked().pop().unwrap_or_else(|| panic!("{at}: {}", rig.got(&client)));
                    rig.answer(&provider, &large_answer(10));
                }
                false => {
                    let says = format!("{field}: expected at most {most}{what} for this model");
                    assert!(
                        rig.status(&client) == 400 && rig.got(&client).contains(&says),
                        "{at}: {}",
                        rig.got(&client)
                    );
                }
            }
        }
    }
}
