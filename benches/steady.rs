//! Runs only the core in memory, for callgrind and perf: `steady [whole|event|kept] [count]`. `whole` runs this number
//! of complete requests, `event` this number of events of one stream. `kept` runs a complete stream and, with a count,
//! another stream on the same connection up to its first event.

mod common;

use common::{STREAM_HEAD, World, answer, chunk, event, stream_end};

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
    } else if what == "kept" {
        let (request, event) =
            (world.request("bench", 1200, true), chunk(&event("{\"content\":\" patient\"}", "null")));
        world.client_sends(&request);
        [STREAM_HEAD, &event, &stream_end()].iter().for_each(|bytes| world.upstream_sends(bytes));
        if count > 0 {
            world.client_sends(&request);
            [STREAM_HEAD, &event].iter().for_each(|bytes| world.upstream_sends(bytes));
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
