//! Cost of a request in the complete core in memory, from the client's bytes to the bytes of the response, including
//! the usage record and the log line; and cost of a stream event.

mod common;

use common::{STREAM_HEAD, World, answer, chunk, event, stream_end};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

fn turn(c: &mut Criterion) {
    let mut world = World::new();
    let (request, answer) = (world.request("bench", 1200, false), answer());
    world.turn(&request, &answer);
    c.bench_function("turn: a whole request of 1.2 kB, an answer of 622 B", |b| {
        b.iter(|| black_box(world.turn(black_box(&request), black_box(&answer))));
    });
    assert!(world.rows() > 0);

    let mut world = World::in_groups();
    let request = world.request("bench", 1200, false);
    world.turn(&request, &answer);
    c.bench_function("turn: the same under four groups with budgets", |b| {
        b.iter(|| black_box(world.turn(black_box(&request), black_box(&answer))));
    });

    let mut world = World::new();
    let event = chunk(&event("{\"content\":\" patient\"}", "null"));
    world.client_sends(&world.request("bench", 1200, true));
    world.upstream_sends(STREAM_HEAD);
    c.bench_function("turn: one event of a stream", |b| b.iter(|| world.upstream_sends(black_box(&event))));
    world.upstream_sends(&stream_end());
    assert_eq!(world.rows(), 1);
}

criterion_group!(benches, turn);
criterion_main!(benches);
