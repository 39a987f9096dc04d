//! While the process stops or hands over, the cost of an event must not grow with the number of clients: the gateway
//! visits all clients once, not at each event.

use super::rig::{Rig, STREAM, request};
use tollgate::base::seam::{Shut, Signal};
use tollgate::gateway::orders::Notice;

/// Number of running streams.
const STREAMS: usize = 40;
/// Events of each stream while the process stops.
const EVENTS: usize = 25;

fn event(rig: &mut Rig, provider: &str) {
    let data = "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"up-small\",\"choices\":\
                [{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    rig.give(provider, format!("{:x}\r\n{data}\r\n", data.len()));
}

/// Runs streams during `stop`. Returns how often the gateway iterated over all clients for the stop itself, and for the
/// events of the streams.
fn walks(stop: impl FnOnce(&mut Rig)) -> (u64, u64) {
    let mut rig = Rig::new(STREAMS);
    for number in 0..STREAMS {
        let (head, body) = request(&rig.keys.texts[&format!("k{number}")].clone(), 200, true);
        rig.send(&format!("c{number}"), head + &body);
    }
    let providers = rig.asked();
    assert_eq!(providers.len(), STREAMS);
    for provider in &providers {
        rig.answer(provider, STREAM);
        event(&mut rig, provider);
    }
    let before = rig.world.gateway.vitals().walks;
    stop(&mut rig);
    let stopping = rig.world.gateway.vitals().walks;
    for _ in 0..EVENTS {
        providers.iter().for_each(|provider| event(&mut rig, provider));
    }
    assert_eq!(rig.got("c0").matches("\"content\":\"a\"").count(), 1 + EVENTS);
    (stopping - before, rig.world.gateway.vitals().walks - stopping)
}

#[test]
fn stream_events_during_shutdown_visit_no_other_client() {
    let (once, more) = walks(|rig| rig.world.signal(Signal::Terminate).unwrap());
    assert!(once <= 1 && more == 0, "{once} iterations for the stop, {more} for the events");
    let (once, more) = walks(|rig| {
        rig.world.signal(Signal::Upgrade).unwrap();
        rig.world.notice(Notice::SuccessorReady).unwrap();
        rig.wait(1000);
    });
    assert!(once > 0 && more == 0, "{once} iterations for the hand-over, {more} for the events");
}

/// Begins a scrape by a collector that does not read, in each version of HTTP; the text is sent in pieces.
fn with_scrapes() -> (Rig, [&'static str; 2]) {
    let groups: Vec<String> = (0..400).map(|number| format!("group with-a-long-name-{number}")).collect();
    let lines: Vec<(&str, &str)> = groups.iter().map(|group| (group.as_str(), "budget = 5.0")).collect();
    let (mut rig, labels) = (Rig::with(1, &lines), ["1.0", "1.1"]);
    for version in labels {
        rig.world.connect(version, true).unwrap();
        rig.world.end(version).unwrap().reads = false;
        rig.give(version, format!("GET /metrics HTTP/{version}\r\nhost: localhost\r\n\r\n"));
    }
    (rig, labels)
}

#[test]
fn unfinished_scrape_is_reset_at_the_end() {
    let (mut rig, labels) = with_scrapes();
    rig.world.signal(Signal::Terminate).unwrap();
    rig.wait(1000);
    assert_eq!(labels.map(|label| rig.world.ends[label].closed), [Some(Shut::Abort); 2]);
    // They are also closed at the end of the drain time, while a request still runs.
    let (mut rig, labels) = with_scrapes();
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 200, true);
    rig.send("c0", head + &body);
    rig.world.signal(Signal::Terminate).unwrap();
    rig.wait(1000);
    assert_eq!(labels.map(|label| rig.world.ends[label].closed), [None; 2]);
    let drain = rig.config.server.drain_timeout.as_millis() as u64;
    rig.wait(drain);
    assert_eq!(labels.map(|label| rig.world.ends[label].closed), [Some(Shut::Abort); 2]);
}
