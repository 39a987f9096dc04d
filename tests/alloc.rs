//! In its steady state the core allocates nothing, neither per request nor per stream event. Drives the gateway in
//! memory as the reactor does, and counts allocations.

#[path = "../benches/common/mod.rs"]
mod common;

use allocation_counter::measure;
use common::{STREAM_HEAD, World, answer, chunk, event, keys, stream_end};
use tollgate::base::limits::{MESSAGES_MAX, PARTS_MAX, TOOLS_MAX, TRIM_AFTER};
use tollgate::dialect::{Capabilities, RequestScan, RequestTarget, most_text, structure, translate};
use tollgate::policy::keys::Keys;
use tollgate::wire::{ModelEndpoint, Shape};

/// Enough repetitions for every vector to grow to its final capacity.
const WARM: usize = 200;

#[test]
fn request_allocates_nothing_even_under_four_groups() {
    for mut world in [World::new(), World::in_groups()] {
        let (request, answer) = (world.request("bench", 1200, false), answer());
        for _ in 0..WARM {
            world.turn(&request, &answer);
        }
        let counted = measure(|| {
            for _ in 0..100 {
                assert!(world.turn(&request, &answer) > 622);
            }
        });
        assert_eq!(counted.count_total, 0, "{} bytes in 100 requests", counted.bytes_total);
    }
}

#[test]
fn stream_event_allocates_nothing() {
    let mut world = World::new();
    let event = chunk(&event("{\"content\":\" patient\"}", "null"));
    let request = world.request("bench", 1200, true);
    world.client_sends(&request);
    world.upstream_sends(STREAM_HEAD);
    for _ in 0..WARM {
        world.upstream_sends(&event);
    }
    let before = world.got;
    let counted = measure(|| {
        for _ in 0..100 {
            world.upstream_sends(&event);
        }
    });
    assert!(world.got > before + 100 * 200);
    assert_eq!(counted.count_total, 0, "{} bytes in 100 events", counted.bytes_total);
    world.upstream_sends(&stream_end());
    assert_eq!(world.rows(), 1);
}

#[test]
fn complete_stream_allocates_nothing() {
    let mut world = World::new();
    let event = chunk(&event("{\"content\":\" patient\"}", "null"));
    let (request, end) = (world.request("bench", 1200, true), stream_end());
    let mut stream = || {
        world.client_sends(&request);
        world.upstream_sends(STREAM_HEAD);
        world.upstream_sends(&event);
        world.upstream_sends(&end);
    };
    (0..WARM).for_each(|_| stream());
    let counted = measure(|| (0..100).for_each(|_| stream()));
    assert_eq!(counted.count_total, 0, "{} bytes in 100 streams", counted.bytes_total);
}

#[test]
fn small_events_that_arrive_together_are_written_together() {
    let mut world = World::new();
    let events = chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n").repeat(100);
    world.client_sends(&world.request("bench", 1200, true));
    world.upstream_sends(STREAM_HEAD);
    (0..WARM).for_each(|_| world.upstream_sends(&events));
    let before = world.named;
    world.upstream_sends(&events);
    assert!(world.named - before <= 2, "named {} times for 100 events", world.named - before);
}

#[test]
fn events_for_a_slow_client_move_few_bytes() {
    let mut world = World::new();
    let event = chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n");
    world.client_sends(&world.request("bench", 1200, true));
    world.upstream_sends(STREAM_HEAD);
    (0..WARM).for_each(|_| world.upstream_sends(&event));
    world.stalls = true;
    (0..100).for_each(|_| world.upstream_sends(&event));
    let counted = measure(|| (0..500).for_each(|_| world.upstream_sends(&event)));
    assert!(counted.count_total <= 50, "storage has grown {} times for 500 events", counted.count_total);
}

#[test]
fn each_key_beyond_a_thousand_takes_at_most_160_bytes() {
    let held = |count: u64| {
        let (records, mut table) = (keys(count).0, None);
        let counted = measure(|| table = Some(Keys::from(records.clone())));
        assert_eq!(table.unwrap().len() as u64, count);
        counted.bytes_current
    };
    let each = (held(101_000) - held(1000)) as f64 / 100_000.0;
    println!("a key takes {each} bytes");
    assert!(each <= 160.0, "{each} bytes a key");
}

#[test]
fn a_burst_of_requests_leaves_little_storage_behind() {
    let mut world = World::new();
    let (request, answer) = (world.request("bench", 1200, false), answer());
    (0..WARM).for_each(|_| assert!(world.turn(&request, &answer) > 0));
    let counted = measure(|| {
        let clients: Vec<_> = (0..1000).map(|_| world.another_sends(&request)).collect();
        clients.into_iter().for_each(|client| world.leaves(client));
        world.passes(TRIM_AFTER);
    });
    assert!(counted.bytes_current <= 64 * 1024, "{} bytes", counted.bytes_current);
}

/// Memory of a waiting request and its client in preallocated tables, which unit tests bound.
const IN_TABLES: usize = 320 + 136;

#[test]
fn waiting_request_takes_at_most_two_kib_plus_its_body() {
    const WAITERS: usize = 1000;
    for stream in [false, true] {
        let mut world = World::new();
        let request = world.request("queued", 1650, stream);
        let body = request.len() - request.windows(4).position(|window| window == b"\r\n\r\n").unwrap() - 4;
        world.client_sends(&request);
        let counted = measure(|| (0..WAITERS).for_each(|_| _ = world.another_sends(&request)));
        assert_eq!(world.queued(), WAITERS);
        let each = counted.bytes_current as usize / WAITERS + IN_TABLES;
        println!("a waiting request uses {} bytes in addition to its body of {body}", each - body);
        assert!(each <= body + 2048, "{each} bytes with a body of {body}");
    }
}

/// Returns requests with as many tiny items as a translation accepts: API format, description, body.
fn tiny_items() -> Vec<(Shape, &'static str, String)> {
    let list = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(",");
    // Vectors that grow by doubling waste the most just above a power of two.
    let (tools, messages, parts) = (TOOLS_MAX / 2 + 2, 16_390, 2 * 16_390);
    assert!(messages < MESSAGES_MAX && parts < PARTS_MAX);
    let chat = |members: String| (Shape::Chat, format!("{{\"model\":\"m\",{members}}}"));
    let message = |members: String| (Shape::Messages, format!("{{\"model\":\"m\",\"max_tokens\":1,{members}}}"));
    let response = |members: String| (Shape::Responses, format!("{{\"model\":\"m\",{members}}}"));
    let hi = "{\"role\":\"user\",\"content\":\"a\"}";
    let said = |one: String| format!("\"messages\":[{hi},{one}]");
    let kinds = [
        (
            "tools",
            chat(format!(
                "\"messages\":[{hi}],\"tools\":[{}]",
                list(tools, &|n| format!("{{\"type\":\"function\",\"function\":{{\"name\":\"t{n}\"}}}}"))
            )),
        ),
        (
            "messages",
            chat(format!(
                "\"messages\":[{}]",
                list(messages, &|n| match n % 2 {
                    0 => hi.to_string(),
                    _ => "{\"role\":\"assistant\",\"content\":\"b\"}".to_string(),
                })
            )),
        ),
        (
            "results",
            chat(said(list(messages, &|_| "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"\"}".to_string()))),
        ),
        (
            "parts",
            chat(said(format!(
                "{{\"role\":\"user\",\"content\":[{}]}}",
                list(parts, &|_| "{\"type\":\"text\",\"text\":\"a\"}".to_string())
            ))),
        ),
        (
            "calls",
            chat(said(format!(
                "{{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}}",
                list(parts, &|n| format!("{{\"id\":\"c{n}\",\"type\":\"function\",\"function\":{{\"name\":\"f\"}}}}"))
            ))),
        ),
        (
            "tools",
            message(format!(
                "{},\"tools\":[{}]",
                said(hi.to_string()),
                list(tools, &|n| format!("{{\"name\":\"t{n}\"}}"))
            )),
        ),
        ("messages", message(format!("\"messages\":[{}]", list(messages, &|_| hi.to_string())))),
        (
            "system",
            message(format!(
                "{},\"system\":[{}]",
                said(hi.to_string()),
                list(messages, &|_| { "{\"type\":\"text\",\"text\":\"a\"}".to_string() })
            )),
        ),
        (
            "calls and results",
            message(said(format!(
                "{{\"role\":\"assistant\",\"content\":[{}]}},{{\"role\":\"user\",\"content\":[{}]}}",
                list(parts / 2, &|n| format!(
                    "{{\"type\":\"tool_use\",\"id\":\"c{n}\",\"name\":\"f\",\"input\":{{}}}}"
                )),
                list(parts / 2, &|n| format!("{{\"type\":\"tool_result\",\"tool_use_id\":\"c{n}\"}}"))
            ))),
        ),
        (
            "parts of a result",
            message(said(format!(
                "{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\
                 \"content\":[{}]}}]}}",
                list(parts, &|_| "{\"type\":\"text\",\"text\":\"a\"}".to_string())
            ))),
        ),
        (
            "parts of a document",
            message(said(format!(
                "{{\"role\":\"user\",\"content\":[{{\"type\":\"document\",\"source\":\
                 {{\"type\":\"content\",\"content\":[{}]}}}}]}}",
                list(parts / 2 - 2, &|_| "{\"text\":\"a\"}".to_string())
            ))),
        ),
        (
            "documents",
            message(said(format!(
                "{{\"role\":\"user\",\"content\":[{}]}}",
                list(parts / 3, &|_| {
                    "{\"type\":\"document\",\"title\":\"a\",\"context\":\"b\",\
                     \"source\":{\"type\":\"text\",\"data\":\"c\"}}"
                        .to_string()
                })
            ))),
        ),
        (
            "documents in a result",
            message(said(format!(
                "{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\
                 \"content\":[{}]}}]}}",
                list(parts / 7, &|_| {
                    "{\"type\":\"document\",\"source\":{\"type\":\"content\",\"content\":[{\"text\":\"a\"},\
                     {\"text\":\"b\"}]}}"
                        .to_string()
                })
            ))),
        ),
        (
            "tools",
            response(format!(
                "\"input\":\"a\",\"tools\":[{}]",
                list(1030, &|n| format!("{{\"type\":\"custom\",\"name\":\"t{n}\"}}"))
            )),
        ),
        (
            "tools of namespaces",
            response(format!(
                "\"input\":\"a\",\"tools\":[{}]",
                list(350, &|n| format!(
                    "{{\"type\":\"namespace\",\"name\":\"n{n}\",\"tools\":[{{\"name\":\"a\"}},{{\"name\":\"b\"}}]}}"
                ))
            )),
        ),
        ("items", response(format!("\"input\":[{}]", list(messages, &|_| hi.to_string())))),
        (
            "calls",
            response(format!(
                "\"input\":[{hi},{}]",
                list(messages, &|n| { format!("{{\"type\":\"function_call\",\"call_id\":\"c{n}\",\"name\":\"f\"}}") })
            )),
        ),
        (
            "calls and outputs",
            response(format!(
                "\"input\":[{hi},{}]",
                list(messages, &|n| match n % 2 {
                    0 => format!("{{\"type\":\"function_call\",\"call_id\":\"c{n}\",\"name\":\"f\"}}"),
                    _ => format!("{{\"type\":\"function_call_output\",\"call_id\":\"c{}\",\"output\":\"\"}}", n - 1),
                })
            )),
        ),
        (
            "only outputs",
            response(format!(
                "\"input\":[{hi},{}]",
                list(messages, &|n| {
                    format!("{{\"type\":\"function_call_output\",\"call_id\":\"c{n}\",\"output\":\"\"}}")
                })
            )),
        ),
        (
            "parts",
            response(format!(
                "\"input\":[{{\"role\":\"user\",\"content\":[{}]}}]",
                list(parts, &|_| "{\"type\":\"input_text\",\"text\":\"a\"}".to_string())
            )),
        ),
    ];
    kinds.into_iter().map(|(what, (from, body))| (from, what, body)).collect()
}

#[test]
fn translation_allocates_no_more_than_was_charged() {
    let capabilities = Capabilities::default();
    let mut over = Vec::new();
    for (from, what, body) in tiny_items() {
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::generate(from));
        scan.finish(body.as_bytes()).unwrap_or_else(|why| panic!("{what}: {why:?}"));
        let fields = scan.fields();
        let charged = structure(from, fields).unwrap() as u64;
        let text = most_text(body.as_bytes(), fields);
        for shape in Shape::ALL.into_iter().filter(|to| *to != from) {
            let target = RequestTarget { model: "m", shape, capabilities: &capabilities, cache_key: None };
            let mut out = Vec::with_capacity(text);
            let mut made = Ok(());
            let counted = measure(|| {
                made = translate(from, body.as_bytes(), &scan, &target, &mut out).map(drop);
            });
            println!(
                "{from:?} to {shape:?}, {what}: {} built of {charged}, {} of {text} written from {}",
                counted.bytes_max,
                out.len(),
                body.len()
            );
            assert!(made.is_ok() || what == "only outputs", "{what}: {made:?}");
            assert!(out.capacity() == text && out.len() <= text, "{what}: {} of {text}", out.len());
            if counted.bytes_max > charged {
                over.push((from, shape, what, counted.bytes_max, charged));
            }
        }
    }
    assert!(over.is_empty(), "{over:?}");
}
