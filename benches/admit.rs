//! Cost of an admission: finding the key among a thousand, and checking its plan's limits.

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate::base::time::Unix;
use tollgate::policy::keys::{KeyIx, Keys};
use tollgate::policy::meter::{Amount, Meter, PathIx, Payer};

fn admit(c: &mut Criterion) {
    let (records, text) = common::keys(1000);
    let mut keys = Keys::new(7);
    keys.load(records);
    let now = Unix(1_790_000_000_000);
    c.bench_function("admit: one key among 1,000", |b| {
        b.iter(|| keys.identify(black_box(text.as_bytes()), "tg_", now).expect("the key is known"));
    });
    let (config, mut meter) = (common::config(), Meter::new());
    let plan = config.plan("team").expect("the plan exists");
    c.bench_function("admit: hold and settle", |b| {
        b.iter(|| {
            let payer = Payer { key: KeyIx(7), plan, path: PathIx::NONE, hosts: 1 };
            let estimate = Amount { tokens: 500, nano: 5_000_000 };
            let hold = meter.admit(payer, black_box(now), estimate).expect("no limit is reached");
            meter.settle(hold, Amount { tokens: 354, nano: 3_540_000 });
        });
    });
    assert_eq!(meter.open_holds(), 0);
}

criterion_group!(benches, admit);
criterion_main!(benches);
