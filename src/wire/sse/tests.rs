use super::*;

/// (name, data, comment) of each event.
type Seen = Vec<(String, Option<String>, bool)>;

fn feed(chunks: &[&[u8]]) -> (Seen, Vec<u8>) {
    let (mut splitter, mut held, mut seen, mut raw) = (Splitter::new(), Vec::new(), Vec::new(), Vec::new());
    let mut note = |splitter: &Splitter, event: Event, buf: &[u8]| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !event.is_blank() {
            let data = (event.lines > 0).then(|| text(splitter.data(&event, buf)));
            seen.push((text(event.name.of(buf)), data, event.comment));
            raw.extend_from_slice(event.raw.of(buf));
        }
    };
    for chunk in chunks {
        held.extend_from_slice(chunk);
        while let Some(event) = splitter.next(&held) {
            note(&splitter, event, &held);
            held.drain(..event.len);
        }
    }
    if let Some(event) = splitter.last(&held) {
        note(&splitter, event, &held);
    }
    (seen, raw)
}

fn data(text: &str) -> (String, Option<String>, bool) {
    (String::new(), Some(text.to_owned()), false)
}

#[test]
fn every_line_ending_and_notation_is_read() {
    for end in ["\n", "\r", "\r\n"] {
        let lines = [
            "\u{feff}data: one",
            "",
            "data:two",
            "",
            ": note",
            "",
            "event: named",
            "data:  x",
            "id: 7",
            "retry: 3",
            "",
            "data: a",
            "data:b",
            "data",
            "",
            "event: ping",
            "",
            "",
            "other",
            "",
            "data: last",
            "",
            "",
        ];
        let text = lines.join(end);
        let (seen, _) = feed(&[text.as_bytes()]);
        let named = ("named".to_owned(), Some(" x".to_owned()), false);
        let comment = (String::new(), None, true);
        let ping = ("ping".to_owned(), None, false);
        let want = vec![data("one"), data("two"), comment, named, data("a\nb\n"), ping, data("last")];
        assert_eq!(seen, want, "{end:?}");
        for at in 0..=text.len() {
            assert_eq!(feed(&[&text.as_bytes()[..at], &text.as_bytes()[at..]]).0, want, "{end:?} cut at {at}");
        }
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(feed(&bytes).0, want, "{end:?} byte by byte");
    }
}

#[test]
fn concatenated_raw_events_equal_the_stream() {
    for text in
        [": a\r\n\r\ndata: 1\r\n\r\nevent: x\r\ndata: 2\r\n\r\n", "data: 1\r\rdata: 2\r\r", "data: 1\n\ndata: 2\n\n"]
    {
        assert_eq!(feed(&[text.as_bytes()]).1, text.as_bytes());
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(feed(&bytes).1, text.as_bytes());
    }
}

#[test]
fn mixed_line_endings_are_read_alike_for_every_split() {
    let text = "data: 1\r\r\ndata: 2\n\r\ndata: 3\r\n\rdata: 4\n\n\r\n\n";
    let want = feed(&[text.as_bytes()]);
    assert_eq!(want.0.len(), 4);
    for a in 0..=text.len() {
        for b in a..=text.len() {
            let text = text.as_bytes();
            assert_eq!(feed(&[&text[..a], &text[a..b], &text[b..]]), want, "cut at {a} and {b}");
        }
    }
}

#[test]
fn event_without_a_blank_line_is_returned_only_at_the_end() {
    assert_eq!(feed(&[b"data: 1\n\ndata: 2"]).0, vec![data("1"), data("2")]);
    assert_eq!(feed(&[b"data: 1\n\ndata: 2\r"]).0, vec![data("1"), data("2")]);
    assert_eq!(feed(&[b"data: 1\n\ndata: 2\n"]).0, vec![data("1"), data("2")]);
    let mut splitter = Splitter::new();
    assert_eq!(splitter.next(b"data: 2\n"), None);
}

#[test]
fn event_in_a_thousand_pieces_is_scanned_once() {
    let mut splitter = Splitter::new();
    let text = format!("data: {}\n\n", "x".repeat(100_000));
    for end in (0..text.len()).step_by(100) {
        assert_eq!(splitter.next(&text.as_bytes()[..end]), None);
        assert!(splitter.at as usize + 4 >= end, "searched only up to {} of {end}", splitter.at);
    }
    let event = splitter.next(text.as_bytes()).unwrap();
    assert_eq!(splitter.data(&event, text.as_bytes()).len(), 100_000);
}

#[test]
fn incomplete_byte_order_mark_is_waited_for() {
    let mut splitter = Splitter::new();
    assert_eq!(splitter.next(b"\xEF\xBB"), None);
    let event = splitter.next(b"\xEF\xBB\xBFdata: x\n\n").unwrap();
    assert_eq!((event.raw.start, event.len), (3, 12));
}
