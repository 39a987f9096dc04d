//! Cost of a stream event: forwarded in the same API format with id and model replaced, and translated in both
//! directions, including the reading of usage.

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate::base::buf::Pool;
use tollgate::dialect::{ResponseIdentity, SseStream, TranslationState};
use tollgate::wire::{ModelEndpoint, Shape};

const ME: ResponseIdentity<'static> = ResponseIdentity {
    id: b"req_0123456789abcdef0123456789abcdef",
    model: "bench",
    created: 1_790_000_000,
    prompt: tollgate::dialect::PromptTokens::Counted(9),
    hides: &[],
};
const EVENT_MAX: usize = 1 << 20;

/// Beginning of a Messages stream.
const OPENING: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\
    \"type\":\"message\",\"role\":\"assistant\",\"model\":\"up\",\"content\":[],\"stop_reason\":null,\"usage\":\
    {\"input_tokens\":9,\"output_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\
    \"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
const DELTA: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":\
    {\"type\":\"text_delta\",\"text\":\" patient\"}}\n\n";

fn stream(c: &mut Criterion) {
    let chat = common::event("{\"content\":\" patient\"}", "null");
    let (mut pool, mut out) = (Pool::new(1 << 24), Vec::new());
    let mut same = SseStream::same(ModelEndpoint::CHAT, true, EVENT_MAX);
    c.bench_function("stream: one event, same shape", |b| {
        b.iter(|| {
            out.clear();
            same.feed(black_box(chat.as_bytes()), &mut pool, &ME, &mut out).expect("the event is valid");
            out.len()
        });
    });
    let ways = [
        ("chat to messages", (Shape::Chat, Shape::Messages), "", chat.as_str()),
        ("messages to chat", (Shape::Messages, Shape::Chat), OPENING, DELTA),
        ("chat to responses", (Shape::Chat, Shape::Responses), "", chat.as_str()),
    ];
    for (way, upstream, opening, event) in ways {
        let mut translated =
            SseStream::translated(upstream, TranslationState::default(), true, (EVENT_MAX, usize::MAX));
        translated.feed(opening.as_bytes(), &mut pool, &ME, &mut out).expect("the opening is valid");
        c.bench_function(&format!("stream: one event, {way}"), |b| {
            b.iter(|| {
                out.clear();
                translated.feed(black_box(event.as_bytes()), &mut pool, &ME, &mut out).expect("the event is valid");
                out.len()
            });
        });
    }
}

criterion_group!(benches, stream);
criterion_main!(benches);
