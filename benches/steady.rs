//! Turns of the core in memory, a given number of them and nothing else: for callgrind and perf.
//! `steady [whole|event] [count]`

mod common;

use common::{STREAM_HEAD, World, answer, chunk, event};

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "whole".into());
    let count: usize = args.next().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let mut world = World::new();
    if what == "whole" {
        let (request, answer) = (world.request("bench", 1200, false), answer());
        for _ in 0..count {
            world.turn(&request, &answer);
        }
    } else {
        world.client_sends(&world.request("bench", 1200, true));
        world.upstream_sends(STREAM_HEAD);
        let event = chunk(&event("{\"content\":\" patient\"}", "null"));
        for _ in 0..count {
            world.upstream_sends(&event);
        }
    }
    println!("{count} times {what}: {} bytes for the client, {} rows", world.got, world.rows());
}
