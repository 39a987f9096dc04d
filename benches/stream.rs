//! One event of a stream of the client's own shape: id and model spliced, usage overheard.

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate::base::buf::{Buf, Pool};
use tollgate::dialect::{Me, StreamTap};
use tollgate::wire::Shape;

fn stream(c: &mut Criterion) {
    let event = common::event("{\"content\":\" patient\"}", "null");
    let me =
        Me { id: "req_0123456789abcdef0123456789abcdef", model: "bench", created: 1_790_000_000, prompt_estimate: 9 };
    let mut tap = StreamTap::new(Shape::Chat, true, 1 << 20);
    let (mut held, mut pool, mut out) = (Buf::default(), Pool::new(1 << 24), Vec::new());
    c.bench_function("stream: one event, same shape", |b| {
        b.iter(|| {
            out.clear();
            tap.feed(black_box(event.as_bytes()), &mut held, &mut pool, &me, &mut out).expect("the event is sound");
            out.len()
        });
    });
}

criterion_group!(benches, stream);
criterion_main!(benches);
