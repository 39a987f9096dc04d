//! Cost of a request on its way to a provider, and of a provider's complete answer on its way back, with and without
//! translation. Together with `parse`, `admit`, `stream` and `turn`, this covers every separately callable stage of the
//! page "What a request costs".

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate::dialect::{
    AnswerTemplates, Capabilities, PromptTokens, RequestScan, RequestTarget, ResponseIdentity, TranslationState, reply,
    rewrite, translate, whole,
};
use tollgate::wire::head::parse_response;
use tollgate::wire::{ModelEndpoint, Shape};

const ME: ResponseIdentity<'static> = ResponseIdentity {
    id: b"req_0123456789abcdef0123456789abcdef",
    model: "bench",
    created: 1_790_000_000,
    prompt: PromptTokens::Counted(9),
    hides: &[],
};

fn request(c: &mut Criterion) {
    let (body, mut scan) = (common::chat("bench", 1200, false), RequestScan::new());
    scan.reset(ModelEndpoint::CHAT);
    scan.finish(body.as_bytes()).expect("the body is valid");
    let fields = scan.fields();
    let capabilities = Capabilities::default();
    let target = |shape| RequestTarget {
        model: "upstream-model-2026-11-01",
        shape,
        capabilities: &capabilities,
        cache_key: None,
    };
    let (mut text, mut pieces, same) = (Vec::new(), Vec::new(), target(Shape::Chat));
    c.bench_function("request: body for a provider of its shape", |b| {
        b.iter(|| {
            rewrite(ModelEndpoint::CHAT, black_box(body.as_bytes()), fields, &same, &mut text, &mut pieces)
                .expect("the request is valid")
        });
    });
    let other = target(Shape::Messages);
    c.bench_function("request: body for a provider of another shape", |b| {
        b.iter(|| {
            text.clear();
            translate(Shape::Chat, black_box(body.as_bytes()), &scan, &other, &mut text).expect("the request is valid");
            text.len()
        });
    });
    c.bench_function("request: prompt counted", |b| {
        b.iter(|| scan.prompt_tokens(black_box(body.as_bytes())).count());
    });
}

fn answer(c: &mut Criterion) {
    let answer = common::answer();
    c.bench_function("answer: head", |b| {
        b.iter(|| parse_response(black_box(&answer), &mut 0, 16384, false).ok().flatten().map(|head| head.len));
    });
    let head = parse_response(&answer, &mut 0, 16384, false).expect("the head is valid").expect("it is complete");
    let (body, mut out, mut templates) = (&answer[head.len as usize..], Vec::new(), AnswerTemplates::default());
    c.bench_function("answer: whole, same shape, like one before it", |b| {
        b.iter(|| {
            out.clear();
            templates.whole(ModelEndpoint::CHAT, black_box(body), &ME, &mut out).expect("the answer is valid");
            out.len()
        });
    });
    c.bench_function("answer: whole, same shape, like none before it", |b| {
        b.iter(|| {
            out.clear();
            whole(ModelEndpoint::CHAT, black_box(body), &ME, &mut out).expect("the answer is valid");
            out.len()
        });
    });
    let state = TranslationState::default();
    for (way, to) in [("messages", Shape::Messages), ("responses", Shape::Responses)] {
        c.bench_function(&format!("answer: whole, chat to {way}"), |b| {
            b.iter(|| {
                out.clear();
                reply((Shape::Chat, to), black_box(body), &state, &ME, &mut out).expect("the answer is valid");
                out.len()
            });
        });
    }
}

criterion_group!(benches, request, answer);
criterion_main!(benches);
