use super::event::Tap;
use super::*;
use crate::base::rng::Rng;
use crate::dialect::answer::Frame;
use crate::dialect::tests::{ME, fixtures};
use crate::dialect::{AnswerTemplates, Broken, ErrorText, ObservedUsage, Reported};
use crate::wire::ModelEndpoint;
use serde_json::Value;

fn whole_text(shape: ModelEndpoint, body: &str) -> (String, ObservedUsage) {
    let mut out = Vec::new();
    let observed = whole(shape, body.as_bytes(), &ME, &mut out).unwrap();
    serde_json::from_slice::<Value>(&out).unwrap();
    (String::from_utf8(out).unwrap(), observed)
}

#[test]
fn complete_answers_pass_unchanged_except_for_id_and_model() {
    for (shape, ending) in [(ModelEndpoint::CHAT, "upstream.chat"), (ModelEndpoint::MESSAGES, "upstream.messages")] {
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
fn missing_members_of_a_chat_answer_are_added() {
    let body = r#"{"choices":[{"message":{"content":"hello there"}}]}"#;
    let (out, observed) = whole_text(ModelEndpoint::CHAT, body);
    let want = concat!(
        r#"{"id":"req_5f1c9a7e3b2d4c60","object":"chat.completion","created":1795158000,"model":"team-fast","#,
        r#""usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10},"#,
        r#""choices":[{"message":{"content":"hello there"}}]}"#
    );
    assert_eq!(out, want);
    assert_eq!((observed.reported, observed.relayed_tokens), (Reported::default(), 3));
}

#[test]
fn counters_are_completed_and_their_sum_corrected() {
    let usage = |text: &str| {
        let body = format!(
            r#"{{"id":1,"object":"o","created":0,"model":null,"usage":{text},"choices":[{{"message":{{}}}}]}}"#
        );
        let out = whole_text(ModelEndpoint::CHAT, &body).0;
        let from = out.find("\"usage\":").unwrap() + 8;
        out[from..out.find(",\"choices\"").unwrap()].to_owned()
    };
    let right = r#"{ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 , "x":{"total_tokens":1}}"#;
    assert_eq!(usage(right), right);
    assert_eq!(
        usage(r#"{"total_tokens":6,"prompt_tokens":3,"completion_tokens":4}"#),
        r#"{"total_tokens":7,"prompt_tokens":3,"completion_tokens":4}"#
    );
    assert_eq!(
        usage(r#"{"total_tokens":99,"prompt_tokens":3,"completion_tokens":4}"#),
        r#"{"total_tokens":99,"prompt_tokens":3,"completion_tokens":96}"#
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
fn invalid_answers_and_errors_are_distinguished() {
    let broken = |shape, body: &str| whole(shape, body.as_bytes(), &ME, &mut Vec::new()).unwrap_err();
    for shape in [ModelEndpoint::CHAT, ModelEndpoint::MESSAGES] {
        for body in ["", "<html>", "[]", "{}", "null", "{\"choices\":{}}", "{\"content\":\"x\"}", "{\"choices\":[]"] {
            assert_eq!(broken(shape, body), Broken::NotJson, "{body}");
        }
        let error = |message: &str| {
            Broken::Error(ErrorText { message: message.into(), kind: Some("t".into()), ..ErrorText::default() })
        };
        assert_eq!(broken(shape, r#"{"error":{"message":"m","type":"t"},"choices":[],"content":[]}"#), error("m"));
        assert_eq!(broken(shape, r#"{"object":"error","message":"m","type":"t"}"#), error("m"));
    }
}

#[test]
fn answer_that_matches_a_template_is_passed_on_as_if_parsed() {
    const TEXTS: [&str; 6] =
        ["one two", "", r#"\"a\" \\ \u00e9 \n"#, "é 漢字", r"\x", "a longer text of more than sixteen bytes"];
    const NUMBERS: [&str; 8] = ["271", "0", "83", "354", "01", "-1", "1.0", "99999999999999999999999"];
    const MORE: [&str; 6] = ["", ",\"refusal\":null", ",\"logprobs\": null", ",\"x\":{}", "}", ",\"id\":\"d\""];
    let mut rng = Rng::from_u64(41);
    let (mut templates, mut good, mut bad, mut fitted) = (AnswerTemplates::default(), 0, 0, 0);
    for _ in 0..60_000 {
        let mut any = |of: &[&'static str]| match rng.below(6) {
            0 => of[rng.below(of.len() as u64) as usize],
            _ => of[0],
        };
        let (id, model, text, word) = (any(&TEXTS), any(&TEXTS), any(&TEXTS), any(&["stop", "length"]));
        let more = [any(&MORE), any(&MORE), any(&MORE)];
        let numbers = [any(&NUMBERS), any(&NUMBERS), any(&NUMBERS), any(&["354", "542", "355"]), any(&NUMBERS)];
        let total =
            if rng.below(4) > 0 { numbers[1].parse().unwrap_or(1) + numbers[2].parse().unwrap_or(1) } else { 3u128 };
        let mut answer = format!(
            "{{\"id\":\"{id}\",\"object\":\"chat.completion\",\"created\":{},\"model\":\"{model}\"{},\"choices\":[{{\"index\":0,\
             \"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"{}}},\"finish_reason\":\"{word}\"}}],\"usage\":{{\
             \"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{total}{}}}}}\n",
            numbers[0], more[0], more[1], numbers[1], numbers[2], more[2]
        );
        if rng.below(8) == 0 {
            let at = rng.below(answer.len() as u64) as usize;
            if answer.is_char_boundary(at) && answer.is_char_boundary(at + 1) {
                answer.replace_range(at..=at, ["\"", "}", "0", " ", "\\", "x", ""][rng.below(7) as usize]);
            }
        }
        let (mut like, mut read) = (Vec::new(), Vec::new());
        let known = templates.pass(ModelEndpoint::CHAT, answer.as_bytes(), &ME, &mut Vec::new());
        let passed = templates.whole(ModelEndpoint::CHAT, answer.as_bytes(), &ME, &mut like);
        assert_eq!(passed, whole(ModelEndpoint::CHAT, answer.as_bytes(), &ME, &mut read), "{answer}");
        assert_eq!(String::from_utf8_lossy(&like), String::from_utf8_lossy(&read), "{answer}");
        fitted += usize::from(known.is_some());
        *if passed.is_ok() { &mut good } else { &mut bad } += 1;
    }
    assert!(good > 10_000 && bad > 1000 && fitted > 5000 && fitted < good, "{good} good, {bad} bad, {fitted} fitted");
}

#[test]
fn template_of_an_answer_keeps_no_content() {
    let kept = |message: &str| {
        let answer = format!(
            "{{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
             \"message\":{{\"role\":\"assistant\",{message}}},\"finish_reason\":\"stop\"}}],\
             \"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}}}"
        );
        let mut templates = AnswerTemplates::default();
        templates.whole(ModelEndpoint::CHAT, answer.as_bytes(), &ME, &mut Vec::new()).unwrap();
        let shown = format!("{templates:?}");
        let bytes: Vec<String> = b"heron".iter().map(u8::to_string).collect();
        assert!(!shown.contains(&bytes.join(", ")), "{shown}");
        templates.pass(ModelEndpoint::CHAT, answer.as_bytes(), &ME, &mut Vec::new()).is_some()
    };
    let long = "heron ".repeat(12);
    assert!(kept("\"content\":\"the heron stands\""));
    assert!(kept(&format!("\"content\":\"{long}\",\"refusal\":null")));
    assert!(!kept(&format!("\"content\":\"x\",\"reasoning_content\":\"{long}\"")));
    assert!(!kept(&format!("\"content\":null,\"reasoning\":\"{long}\"")));
    assert!(!kept(&format!("\"content\":[{{\"type\":\"text\",\"text\":\"{long}\"}}]")));
}

#[test]
fn answers_without_usage_are_estimated_from_all_their_text() {
    let text = "heron_waits ".repeat(500);
    let passthrough = ModelEndpoint::passthrough(crate::wire::Passthrough::Completions);
    for (shape, body) in [
        (passthrough, r#"{"choices":[{"text":"TEXT","finish_reason":"stop"}]}"#),
        (passthrough, r#"{"usage":null,"choices":[{"text":"TEXT","finish_reason":"stop"}]}"#),
        (passthrough, r#"{"choices":[{"text":"TEXT"}],"usage":{"prompt_tokens":3}}"#),
        (ModelEndpoint::CHAT, r#"{"choices":[{"message":{"content":"TEXT"}}]}"#),
        (ModelEndpoint::CHAT, r#"{"choices":[{"message":{"content":[{"type":"text","text":"TEXT"}]}}]}"#),
        (
            ModelEndpoint::CHAT,
            r#"{"choices":[{"message":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"TEXT"}]}]}}]}"#,
        ),
        (ModelEndpoint::CHAT, r#"{"choices":[{"message":{"content":null,"reasoning":"TEXT"}}]}"#),
        (ModelEndpoint::CHAT, r#"{"choices":[{"message":{"function_call":{"name":"f","arguments":"TEXT"}}}]}"#),
        (ModelEndpoint::CHAT, r#"{"choices":[{"message":{"tool_calls":[{"custom":{"name":"f","input":"TEXT"}}]}}]}"#),
        (ModelEndpoint::MESSAGES, r#"{"content":[{"type":"text","text":"TEXT"}]}"#),
        (ModelEndpoint::MESSAGES, r#"{"content":[{"type":"redacted_thinking","data":"TEXT"}]}"#),
        (ModelEndpoint::MESSAGES, r#"{"content":[{"type":"tool_use","name":"f","input":{"a":{"TEXT":[1]}}}]}"#),
        (
            ModelEndpoint::RESPONSES,
            r#"{"output":[{"type":"message","content":[{"type":"output_text","text":"TEXT"}]}]}"#,
        ),
        (
            ModelEndpoint::RESPONSES,
            r#"{"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"TEXT"}]}]}"#,
        ),
        (ModelEndpoint::RESPONSES, r#"{"output":[{"type":"custom_tool_call","name":"f","input":"TEXT"}]}"#),
    ] {
        let observed = whole_text(shape, &body.replace("TEXT", &text)).1;
        assert!(observed.relayed_tokens * 8 >= text.len() as u64, "{}: {body}", observed.relayed_tokens);
    }
}

#[test]
fn events_without_usage_are_estimated_from_all_their_text() {
    let text = "heron_waits ".repeat(500);
    for (shape, name, event) in [
        (ModelEndpoint::CHAT, "", r#"{"choices":[{"index":0,"delta":{"content":"TEXT"}}]}"#),
        (ModelEndpoint::CHAT, "", r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"TEXT"}]}}]}"#),
        (
            ModelEndpoint::CHAT,
            "",
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"TEXT"}]}]}}]}"#,
        ),
        (ModelEndpoint::CHAT, "", r#"{"choices":[{"index":0,"delta":{"function_call":{"arguments":"TEXT"}}}]}"#),
        (ModelEndpoint::CHAT, "", r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"custom":{"input":"TEXT"}}]}}]}"#),
        (
            ModelEndpoint::passthrough(crate::wire::Passthrough::Completions),
            "",
            r#"{"choices":[{"index":0,"text":"TEXT"}]}"#,
        ),
        (
            ModelEndpoint::MESSAGES,
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","name":"f","input":{"a":"TEXT"}}}"#,
        ),
        (
            ModelEndpoint::RESPONSES,
            "response.completed",
            r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"TEXT"}]}]}}"#,
        ),
    ] {
        let data = event.replace("TEXT", &text);
        let raw = format!("event: {name}\ndata: {data}\n\n");
        let frame = Frame { name: name.as_bytes(), data: data.as_bytes(), comment: false, raw: raw.as_bytes() };
        let mut tap = Tap::new(shape, false);
        tap.event(&frame, &ME, &mut Vec::new()).unwrap_or_else(|_| panic!("{event}"));
        let tokens = tap.observed().relayed_tokens;
        assert!(tokens * 8 >= text.len() as u64, "{tokens}: {event}");
    }
}

/// Usage of a chat provider, and the (input, cache read, output) that it bills.
const BILLED: [(&str, [u64; 3]); 5] = [
    // Reasoning counted outside the completion (sub2api#5771, inspect_ai#5528, CLIProxyAPI#5733): the total shows it.
    (
        r#"{"prompt_tokens":9000,"completion_tokens":1200,"total_tokens":12700,
            "completion_tokens_details":{"reasoning_tokens":2500}}"#,
        [9000, 0, 3700],
    ),
    (
        r#"{"completion_tokens_details":{"reasoning_tokens":900},"total_tokens":10200,
            "completion_tokens":1200,"prompt_tokens":9000}"#,
        [9000, 0, 1200],
    ),
    // A total that fits neither way of counting is ignored.
    (
        r#"{"prompt_tokens":9000,"completion_tokens":1200,"total_tokens":12701,
            "completion_tokens_details":{"reasoning_tokens":2500}}"#,
        [9000, 0, 1200],
    ),
    // DeepSeek's and Moonshot's names for tokens read from a cache.
    (
        r#"{"prompt_tokens":5000,"completion_tokens":12,"total_tokens":5012,
            "prompt_cache_hit_tokens":4500,"prompt_cache_miss_tokens":500}"#,
        [500, 4500, 12],
    ),
    (
        r#"{"cached_tokens":4500,"prompt_tokens":5000,"completion_tokens":12,"total_tokens":5012,
            "prompt_tokens_details":null}"#,
        [500, 4500, 12],
    ),
];

fn one_chunk(data: &str) -> (Value, Reported) {
    let data = data.replace('\n', " ");
    let raw = format!("data: {data}\n\n");
    let frame = Frame { name: b"", data: data.as_bytes(), comment: false, raw: raw.as_bytes() };
    let (mut tap, mut out) = (Tap::new(ModelEndpoint::CHAT, true), Vec::new());
    tap.event(&frame, &ME, &mut out).unwrap_or_else(|_| panic!("{data}"));
    (serde_json::from_slice(&out["data: ".len()..]).unwrap(), tap.observed().reported)
}

#[test]
fn usage_equals_the_bill_however_the_provider_counts() {
    for (usage, [input, read, output]) in BILLED {
        let body =
            format!(r#"{{"choices":[{{"message":{{"content":"hi"}},"finish_reason":"stop"}}],"usage":{usage}}}"#);
        let (text, observed) = whole_text(ModelEndpoint::CHAT, &body);
        let chunk = one_chunk(&format!(r#"{{"usage":{usage},"choices":[]}}"#));
        let complete = (serde_json::from_str::<Value>(&text).unwrap(), observed.reported);
        for (value, seen) in [&complete, &chunk] {
            let counted = [seen.input, Some(seen.cache_read.unwrap_or(0)), seen.output];
            assert_eq!(counted, [Some(input), Some(read), Some(output)], "{usage}");
            assert_eq!(value["usage"]["completion_tokens"], output, "{usage}");
        }
        let own = serde_json::from_str::<Value>(usage).unwrap()["total_tokens"].as_u64().unwrap_or(0);
        assert_eq!(complete.0["usage"]["total_tokens"], own.max(input + read + output), "{usage}");
    }
}

#[test]
fn usage_inside_a_choice_is_read_from_a_chunk() {
    let (usage, [input, read, output]) = BILLED[4];
    for top in ["", r#","usage":null"#] {
        let chunk =
            format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop","usage":{usage}}}]{top}}}"#);
        let seen = one_chunk(&chunk).1;
        assert_eq!([seen.input, seen.cache_read, seen.output], [Some(input), Some(read), Some(output)]);
    }
}

#[test]
fn output_in_any_member_of_a_delta_counts() {
    const WORDS: &str = "it was the best of times, it was the worst of times";
    let with = |template: &str, holder: &str| template.replace("HOLDER", holder).replace("WORDS", WORDS);
    let streamed = |member: &str| {
        let chunk = with(r#"{"choices":[{"index":0,"HOLDER":{"role":"assistant",MEMBER}}]}"#, "delta");
        let chunk = chunk.replace("MEMBER", &member.replace("WORDS", WORDS));
        let (mut tap, mut out) = (Tap::new(ModelEndpoint::CHAT, false), Vec::new());
        for _ in 0..3 {
            let raw = format!("data: {chunk}\n\n");
            let frame = Frame { name: b"", data: chunk.as_bytes(), raw: raw.as_bytes(), comment: false };
            tap.event(&frame, &ME, &mut out).unwrap();
        }
        tap.observed().relayed_tokens
    };
    let complete = |member: &str| {
        let body = with(r#"{"choices":[{"HOLDER":{"role":"assistant",MEMBER}}]}"#, "message");
        whole_text(ModelEndpoint::CHAT, &body.replace("MEMBER", &member.replace("WORDS", WORDS))).1.relayed_tokens
    };
    let plain = r#""content":"WORDS""#;
    let (events, answer) = (streamed(plain), complete(plain));
    for member in [
        r#""audio":{"id":"a","transcript":"WORDS"}"#,
        r#""audio":{"data":"WORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDSWORDS"}"#,
        r#""images":[{"type":"image_url","image_url":{"url":"WORDS"},"text":"WORDS"}]"#,
        r#""reasoning_details":[{"type":"reasoning.text","text":"WORDS","signature":"s"}]"#,
        r#""thinking":"WORDS""#,
        r#""reasoning_text":"WORDS""#,
        r#""brand_new":["WORDS"]"#,
    ] {
        assert!(streamed(member) + 1 >= events && streamed(member) <= 2 * events, "{member}: {}", streamed(member));
        assert!(complete(member) + 1 >= answer && complete(member) <= 2 * answer, "{member}: {}", complete(member));
    }
    // A repetition of the reasoning beside it, or of what was read, is no output.
    for member in [
        r#""reasoning":"WORDS","reasoning_details":[{"type":"reasoning.text","text":"WORDS"}]"#,
        r#""content":"WORDS","annotations":[{"url":"WORDS"}]"#,
        r#""content":"WORDS","reasoning_details":[{"type":"reasoning.encrypted","data":"WORDS"}]"#,
    ] {
        assert_eq!((streamed(member), complete(member)), (events, answer), "{member}");
    }
}
