//! A request or a provider answer that arrives byte by byte produces the same bytes and the same usage record as one
//! that arrives in one piece.

use super::client::Answer;
use super::endpoints::without_created;
use super::harness::{Harness, ROUTES, body, chat_request, is_chat, messages_request, with};

fn row(h: &Harness, id: &str) -> String {
    let line = h.log_of(id);
    let names = ["model", "target", "status", "stream", "input", "cache_read", "cache_write", "output", "source"];
    names.map(|name| line[name].to_string()).join(" ")
}

fn essence(answer: &Answer) -> String {
    without_created(&answer.text().replace(&answer.id(), "ID"))
}

#[test]
fn byte_by_byte_arrival_changes_nothing() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        for stream in [false, true] {
            let asked = |drip: u32| {
                let body = body(shape, &format!("größe 東京\n#sim tokens=4 cached=1 drip={drip:07}"));
                let body = with(body, "stream", stream);
                if is_chat(shape) { chat_request(&key, &body) } else { messages_request(&key, &body) }
            };
            let at_once = h.client().ask(&asked(1_000_000));
            let mut client = h.client();
            client.drip(&asked(1));
            let dripped = client.answer().unwrap();
            assert_eq!(at_once.status(), 200, "{shape} stream={stream}: {}", at_once.text());
            assert_eq!(essence(&at_once), essence(&dripped), "{shape} stream={stream}");
            assert_eq!(row(&h, &at_once.id()), row(&h, &dripped.id()), "{shape} stream={stream}");
        }
    }
}
