use super::*;

/// Learns an event without a name, in which `text` occurs once, and which the client got as `sent`, if not unchanged.
fn learn(template: &mut EventTemplate, event: &str, text: &str, sent: Option<&str>) {
    let data = event.trim_end().rsplit("data: ").next().unwrap();
    let at = |whole: &str| whole.find(text).unwrap();
    let frame = Frame { name: b"", data: data.as_bytes(), raw: event.as_bytes(), comment: false };
    let span = Span::new(at(data), at(data) + text.len());
    // A part of the event itself, as the splitter returns it.
    assert!(!Span::of_part(frame.raw, frame.data).is_empty());
    template.learn(&frame, span, sent.map(|sent| (sent.as_bytes(), at(sent))));
}

/// The client's event for one that matches, and its text.
fn sent(template: &mut EventTemplate, event: &str) -> Option<(String, String)> {
    let (text, len) = template.event(event.as_bytes())?;
    let mut out = b"before ".to_vec();
    template.write(&event.as_bytes()[..len], text, &mut out);
    Some((String::from_utf8(text.to_vec()).unwrap(), String::from_utf8(out[7..].to_vec()).unwrap()))
}

#[test]
fn template_is_used_and_given_up_if_it_never_matches() {
    let event = |pad: usize, text: &str| {
        format!("data: {{\"pad\":{pad},\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
    };
    let same = |pad: usize, text: &str| Some((text.to_owned(), event(pad, text)));
    let mut template = EventTemplate::default();
    learn(&mut template, &event(1, "one"), "one", None);
    assert_eq!(sent(&mut template, &(event(1, "two") + "data: next")), same(1, "two"));
    assert_eq!(sent(&mut template, &event(2, "two")), None);
    for pad in 0..100 {
        assert_eq!(sent(&mut template, &event(pad + 10, "one")), None);
        learn(&mut template, &event(pad + 10, "one"), "one", None);
    }
    assert_eq!(sent(&mut template, &event(109, "two")), None, "more are still learned");
}

#[test]
fn client_gets_its_own_event_with_the_text_of_one_that_matches() {
    let data = r#"{"id":"chatcmpl-1","model":"upstream","choices":[{"delta":{"content":"one"}}],"end":null}"#;
    for framing in ["data: DATA\n\n", "data:  DATA\r\n\r\n", ": a\nid: 7\ndata: DATA\n\n"] {
        let event = framing.replace("DATA", data);
        for (client, ends_alike) in [
            (&*framing.replace("DATA", &data.replace("upstream", "m").replace("chatcmpl-1", "x")), true),
            ("data: {\"text\":\"one\"}\n\n", false),
            (r#"{"id":"chatcmpl-1","model":"upstream","choices":[{"delta":{"content":"one"}}],"end":n"#, false),
            ("one", false),
        ] {
            let mut template = EventTemplate::default();
            learn(&mut template, &event, "one", Some(client));
            let end = if ends_alike { client.len() - client.find("one").unwrap() - 3 } else { 0 };
            assert_eq!(template.storage(), event.len() + client.len() - 6 - end, "an equal end is kept once: {client}");
            let want = Some(("two words".to_owned(), client.replace("one", "two words")));
            assert_eq!(sent(&mut template, &event.replace("one", "two words")), want);
        }
    }
}

#[test]
fn other_varying_values_may_be_in_any_order() {
    for members in [
        r#""sequence_number":N,"delta":"TEXT","output_index":8,"obfuscation":"PAD""#,
        r#""obfuscation":"PAD","output_index":8,"sequence_number":N,"delta":"TEXT""#,
    ] {
        let event = |number: &str, text: &str, padding: &str| {
            let members = members.replace('N', number).replace("TEXT", text).replace("PAD", padding);
            format!("event: e\ndata: {{{members}}}\n\n")
        };
        let mut template = EventTemplate::default();
        learn(&mut template, &event("7", "words", "pad"), "words", None);
        let more = event("1234", "heron", "");
        let want = Some(("heron".to_owned(), more.clone()));
        assert_eq!(sent(&mut template, &(more.clone() + "data: next")), want);
        for other in [more.replace(":8", ":9"), more.trim_end().to_owned(), event("012", "heron", "")] {
            assert_eq!(sent(&mut template, &other), None, "{other}");
        }
        for (number, shifted) in [("0", "3"), ("4294967295", "4294967295"), ("4294967296", "4294967296")] {
            let (event, mut out) = (event(number, "heron", "x"), Vec::new());
            template.write_shifted(event.as_bytes(), 3, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), event.replace(&format!(":{number}"), &format!(":{shifted}")));
        }
    }
}

#[test]
fn event_whose_text_is_elsewhere_is_not_learned() {
    let (event, data) = ("data: {\"content\":\"one\"}\n\n", "{\"content\":\"one\"}".to_owned());
    let inside = &event.as_bytes()[6..6 + data.len()];
    // Data of several lines is joined; a text may wait, or be written in another form.
    for (data, sent) in [
        (data.as_bytes(), None),
        (inside, Some(("one", usize::MAX - 1))),
        (inside, Some(("on", 0))),
        (inside, Some(("", 0))),
        (inside, Some(("a two", 2))),
    ] {
        let mut template = EventTemplate::default();
        let frame = Frame { name: b"", data, raw: event.as_bytes(), comment: false };
        template.learn(&frame, Span::new(12, 15), sent.map(|(sent, at)| (sent.as_bytes(), at)));
        assert_eq!(template.event(event.as_bytes()), None, "{sent:?}");
    }
}
