use super::*;
use crate::base::rng::Rng;
use crate::dialect::template::EventTemplate;
use crate::dialect::tests::{ME, fixtures};
use crate::dialect::{Broken, ErrorText, ObservedUsage, Reported};
use crate::wire::Dialect;
use serde_json::Value;

fn whole_text(shape: Dialect, body: &str) -> (String, ObservedUsage) {
    let mut out = Vec::new();
    let observed = whole(shape, body.as_bytes(), &ME, &mut out).unwrap();
    serde_json::from_slice::<Value>(&out).unwrap();
    (String::from_utf8(out).unwrap(), observed)
}

#[test]
fn whole_answers_pass_byte_for_byte_but_for_id_and_model() {
    for (shape, ending) in [(Dialect::Chat, "upstream.chat"), (Dialect::Messages, "upstream.messages")] {
        for (name, text) in fixtures(&format!(".{ending}.response.json")) {
            let text = String::from_utf8(text).unwrap();
            let mut want = text.replace("\"chatcmpl-Up1\"", "\"req_5f1c9a7e3b2d4c60\"");
            want = want.replace("\"msg_01Up\"", "\"req_5f1c9a7e3b2d4c60\"");
            want = want.replace("\"gpt-4o-mini\"", "\"team-fast\"").replace("\"claude-sonnet-4-6\"", "\"team-fast\"");
            assert_eq!(whole_text(shape, &text).0, want, "{name}");
        }
    }
}

#[test]
fn what_a_chat_answer_promises_and_lacks_is_added() {
    let body = r#"{"choices":[{"message":{"content":"hello there"}}]}"#;
    let (out, observed) = whole_text(Dialect::Chat, body);
    let want = concat!(
        r#"{"id":"req_5f1c9a7e3b2d4c60","object":"chat.completion","created":1795158000,"model":"team-fast","#,
        r#""usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9},"#,
        r#""choices":[{"message":{"content":"hello there"}}]}"#
    );
    assert_eq!(out, want);
    assert_eq!((observed.reported, observed.relayed_tokens), (Reported::default(), 2));
}

#[test]
fn counters_are_completed_and_their_sum_corrected() {
    let usage = |text: &str| {
        let body = format!(r#"{{"id":1,"object":"o","created":0,"model":null,"usage":{text},"choices":[]}}"#);
        let out = whole_text(Dialect::Chat, &body).0;
        let from = out.find("\"usage\":").unwrap() + 8;
        out[from..out.find(",\"choices\"").unwrap()].to_owned()
    };
    let right = r#"{ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 , "x":{"total_tokens":1}}"#;
    assert_eq!(usage(right), right);
    assert_eq!(
        usage(r#"{"total_tokens":99,"prompt_tokens":3,"completion_tokens":4}"#),
        r#"{"total_tokens":7,"prompt_tokens":3,"completion_tokens":4}"#
    );
    assert_eq!(
        usage(r#"{"prompt_tokens":3,"completion_tokens":null}"#),
        r#"{"total_tokens":3,"prompt_tokens":3,"completion_tokens":0}"#
    );
    let estimated = r#"{"prompt_tokens":7,"completion_tokens":0,"total_tokens":7}"#;
    for text in ["null", "{}", "[]", "3"] {
        assert_eq!(usage(text), estimated, "{text}");
    }
}

#[test]
fn what_is_no_answer_is_told_from_an_error() {
    let broken = |shape, body: &str| whole(shape, body.as_bytes(), &ME, &mut Vec::new()).unwrap_err();
    for shape in [Dialect::Chat, Dialect::Messages] {
        for body in ["", "<html>", "[]", "{}", "null", "{\"choices\":{}}", "{\"content\":\"x\"}", "{\"choices\":[]"] {
            assert_eq!(broken(shape, body), Broken::NotJson, "{body}");
        }
        let error =
            |message: &str| Broken::Error(ErrorText { message: message.into(), kind: Some("t".into()), code: None });
        assert_eq!(broken(shape, r#"{"error":{"message":"m","type":"t"},"choices":[],"content":[]}"#), error("m"));
        assert_eq!(broken(shape, r#"{"object":"error","message":"m","type":"t"}"#), error("m"));
    }
}

#[test]
fn the_template_is_used_and_a_stream_that_never_fits_gives_it_up() {
    let event =
        |pad: usize, text: &str| format!("{{\"pad\":{pad},\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}");
    let span = |event: &str, text: &str| {
        let at = event.find(text).unwrap();
        crate::wire::Span::new(at, at + text.len())
    };
    let mut template = EventTemplate::default();
    let first = event(1, "one");
    template.learn(first.as_bytes(), span(&first, "one"), first.as_bytes(), span(&first, "one").start as usize);
    assert_eq!(template.text(event(1, "two").as_bytes()), Some(&b"two"[..]));
    assert_eq!(template.text(event(2, "two").as_bytes()), None);
    for pad in 0..100 {
        let next = event(pad + 10, "one");
        assert_eq!(template.text(next.as_bytes()), None);
        template.learn(next.as_bytes(), span(&next, "one"), next.as_bytes(), span(&next, "one").start as usize);
    }
    assert_eq!(template.text(event(109, "two").as_bytes()), None, "more are still learned");
}

#[test]
fn an_answer_of_the_ordinary_form_is_passed_on_as_one_that_is_read() {
    const TEXTS: [&str; 6] =
        ["", "one two", r#"\"a\" \\ \u00e9 \n"#, "é 漢字", r"\x", "a longer text of more than sixteen bytes"];
    const NUMBERS: [&str; 8] = ["0", "271", "83", "354", "01", "-1", "1.0", "99999999999999999999999"];
    const MORE: [&str; 6] = [",\"refusal\":null", ",\"annotations\":[]", ",\"logprobs\":null", ",\"x\":{}", "}", ""];
    let mut rng = Rng::from_u64(41);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..20_000 {
        let mut any = |of: &[&'static str]| of[rng.below(of.len() as u64 * 2).min(of.len() as u64 - 1) as usize];
        let (text, word) = (any(&TEXTS), any(&TEXTS));
        let more = [any(&MORE), any(&MORE), any(&MORE)];
        let numbers = [any(&NUMBERS[1..]), any(&NUMBERS), any(&NUMBERS)];
        let answer = |pad: &str| {
            format!(
                "{{\"id\":\"c\",\"choices\":[{{{pad}\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"{}{}}}{},\
                 \"finish_reason\":\"{word}\"}}],\"usage\":{{{pad}\"prompt_tokens\":{},\"completion_tokens\":{},\
                 \"total_tokens\":{}}}}}",
                more[0], more[1], more[2], numbers[0], numbers[1], numbers[2]
            )
        };
        let run = |text: &str| {
            let mut out = Vec::new();
            let observed = whole(Dialect::Chat, text.as_bytes(), &ME, &mut out);
            (observed, String::from_utf8(out).unwrap().replace('\t', ""))
        };
        let (fast, read) = (run(&answer("")), run(&answer("\t")));
        assert_eq!(fast, read, "{}", answer(""));
        *if fast.0.is_ok() { &mut good } else { &mut bad } += 1;
    }
    assert!(good > 1000 && bad > 1000, "{good} good, {bad} bad");
}
