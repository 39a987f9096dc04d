//! Cost of parsing a request: its head, and the single pass over its body that finds fields, validates and estimates.

mod common;

use common::{World, chat};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate::dialect::RequestScan;
use tollgate::wire::ModelEndpoint;
use tollgate::wire::head::parse_request;

fn parse(c: &mut Criterion) {
    let request = World::new().request("bench", 1200, false);
    c.bench_function("head of a request", |b| {
        b.iter(|| parse_request(black_box(&request), &mut 0, 16384).ok().flatten().map(|head| head.len));
    });
    let mut group = c.benchmark_group("parse");
    for (name, bytes) in [("chat body 1.2 kB", 1200), ("agent body 400 kB", 400_000)] {
        let body = chat("bench", bytes, false);
        let mut scan = RequestScan::new();
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                scan.reset(ModelEndpoint::CHAT);
                scan.finish(black_box(body.as_bytes())).expect("the body is valid");
                scan.prompt_tokens(body.as_bytes()).count()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parse);
criterion_main!(benches);
