//! One key behaves as badly as it can: others are served as if it were not there.

use super::rig::Rig;
use std::time::Duration;

/// Time that this thread has run, whatever others do.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// What the loop takes for the last byte of a chat request with these members.
fn last_byte(members: &str) -> Duration {
    let lines = [("server", "max_body = \"16MiB\""), ("server", "max_buffered = \"64MiB\"")];
    let mut rig = Rig::with(1, &lines);
    let body = format!("{{{members}}}");
    let (length, key) = (body.len(), rig.keys.texts["k0"].clone());
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\
         content-length: {length}\r\n\r\n"
    );
    rig.send("hostile", head + &body[..length - 1]);
    assert_eq!(rig.got("hostile"), "");
    let before = thread_time();
    rig.give("hostile", "}");
    thread_time() - before
}

#[test]
fn long_names_cost_the_loop_no_more_than_a_long_text() {
    const LONG: usize = 8 << 20;
    let (words, escaped) = ("ab-c".repeat(LONG / 4), "\\u0061b".repeat(LONG / 7));
    let ask = "\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]";
    let text = last_byte(&format!("{},\"x\":1", ask.replace("hi", &words)));
    let mut slow = Vec::new();
    for name in [&words, &escaped] {
        for (what, members) in [
            ("model", ask.replace("small", name)),
            ("model and alias", ask.replace("small", &format!("small{name}"))),
            ("member", format!("{ask},\"{name}\":1")),
            ("member like another", format!("{ask},\"models{name}\":1")),
            ("role", ask.replace("user", &format!("user{name}"))),
            ("user", format!("{ask},\"user\":\"{name}\"")),
        ] {
            let took = last_byte(&members);
            println!("{what:<20} {took:>10.1?}, a text {text:.1?}");
            if took > 2 * text + Duration::from_millis(40) {
                slow.push((what, took));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:?}, a text {text:?}");
}
