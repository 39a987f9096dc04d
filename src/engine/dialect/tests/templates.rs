//! Complete answers that are compared with templates of earlier ones: the results equal those of parsed answers.

use super::*;
use crate::base::rng::Rng;
use crate::dialect::{AnswerTemplates, reply, whole};
use crate::wire::ModelEndpoint;

const TEXTS: [&str; 7] = [
    "one two",
    "",
    r#"\"a\" \\ \u00e9 \n"#,
    "\u{e9} \u{6f22}",
    r"\x",
    "a longer text of more than sixteen bytes",
    "null",
];
const NUMBERS: [&str; 8] = ["271", "83", "0", "01", "-1", "1.0", "\"7\"", "99999999999999999999999"];
const MORE: [&str; 11] = [
    "",
    ",\"refusal\":\"no\"",
    ",\"cost\":0.5",
    ",\"x\": {}",
    "}",
    ",\"id\":\"d\"",
    ",\"text\":\"t\"",
    ",\"input_tokens\":3,\"prompt_tokens\":3",
    r#","iterations":[{"type":"compaction","input_tokens":0,"output_tokens":0},{"type":"message","input_tokens":9}]"#,
    r#","cache_read_input_tokens":5"#,
    r#","input_tokens_details":{"cached_tokens":4},"output_tokens_details":{"thinking_tokens":2}"#,
];
const ITEMS: [&str; 5] = [
    "",
    r#",{"type":"tool_use","id":"t","name":"f","input":{}}"#,
    r#",{"type":"text","text":"more"}"#,
    r#",{"type":"reasoning","id":"rs","summary":[]}"#,
    ",null",
];

/// An answer of a format, with parts that are usually the first of each list.
fn answer(shape: Shape, rng: &mut Rng) -> String {
    let mut any = |of: &[&'static str], odd: u64| match rng.below(odd) {
        0 => of[rng.below(of.len() as u64) as usize],
        _ => of[0],
    };
    let (id, model, text) = (any(&TEXTS, 3), any(&TEXTS, 9), any(&TEXTS, 3));
    let [date, prompt, completion] = [3, 3, 3].map(|odd| any(&NUMBERS, odd));
    let [one, two, three] = [9, 9, 9].map(|odd| any(&MORE, odd));
    let (item, word) = (any(&ITEMS, 9), any(&["stop", "end_turn", "completed", "failed", "length", ""], 3));
    let sum = prompt.parse().unwrap_or(1u128) + completion.parse().unwrap_or(1u128);
    let total = if any(&["1", "2"], 6) == "1" { sum } else { sum + 2 };
    match shape {
        Shape::Chat => format!(
            "{{\"id\":\"{id}\",\"object\":\"chat.completion\",\"created\":{date},\"model\":\"{model}\",\"choices\":[{{\
             \"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"{one}}},\"finish_reason\":\"{word}\"{two}}}\
             {item}],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":\
             {total}{three}}}}}"
        ),
        Shape::Messages => format!(
            "{{\"id\":\"{id}\",\"type\":\"message\",\"model\":\"{model}\",\"content\":[{{\"type\":\"text\",\
             \"text\":\"{text}\"{one}}}{item}],\"stop_reason\":\"{word}\",\"stop_sequence\":null{two},\"usage\":{{\
             \"input_tokens\":{prompt},\"output_tokens\":{completion}{three}}}}}"
        ),
        Shape::Responses => format!(
            "{{\"id\":\"{id}\",\"created_at\":{date},\"status\":\"completed\",\"model\":\"{model}\",\"output\":[{{\
             \"type\":\"message\",\"id\":\"{id}\",\"status\":\"{word}\",\"content\":[{{\"type\":\"output_text\",\
             \"text\":\"{text}\"{one}}}]}}{item}]{two},\"store\":false,\"usage\":{{\"input_tokens\":{prompt},\
             \"input_tokens_details\":{{\"cached_tokens\":0}},\"output_tokens\":{completion},\
             \"total_tokens\":{total}{three}}}}}"
        ),
    }
}

#[test]
fn answer_like_an_earlier_one_is_read_as_if_parsed() {
    let (mut rng, state, mut templates) = (Rng::from_u64(43), TranslationState::default(), AnswerTemplates::default());
    for from in Shape::ALL {
        let (mut good, mut fitted) = (0, [0; 2]);
        let endpoint = ModelEndpoint::generate(from);
        for _ in 0..20_000 {
            // Some answers are those of another format, which may have a template, too.
            let other = Shape::ALL[rng.below(3) as usize];
            let is_other = rng.below(8) == 0 && other != from;
            let mut body = answer(if is_other { other } else { from }, &mut rng);
            if is_other {
                let _ = templates.whole(ModelEndpoint::generate(other), body.as_bytes(), &ME, &mut Vec::new());
            }
            if rng.below(16) == 0 {
                let at = rng.below(body.len() as u64) as usize;
                if body.is_char_boundary(at) && body.is_char_boundary(at + 1) {
                    body.replace_range(at..=at, ["\"", "}", "0", " ", "\\", "x", ""][rng.below(7) as usize]);
                }
            }
            let body = body.as_bytes();
            let (mut like, mut read) = (Vec::new(), Vec::new());
            fitted[0] += usize::from(templates.pass(endpoint, body, &ME, &mut Vec::new()).is_some());
            let passed = templates.whole(endpoint, body, &ME, &mut like);
            assert_eq!(passed, whole(endpoint, body, &ME, &mut read), "{}", String::from_utf8_lossy(body));
            assert_eq!(String::from_utf8_lossy(&like), String::from_utf8_lossy(&read));
            good += usize::from(passed.is_ok());
            for to in Shape::ALL.into_iter().filter(|to| *to != from) {
                let (mut like, mut read) = (Vec::new(), Vec::new());
                fitted[1] += usize::from(templates.read(from, body).is_some());
                let translated = templates.reply((from, to), body, &state, &ME, &mut like);
                let parsed = reply((from, to), body, &state, &ME, &mut read);
                assert_eq!(translated, parsed, "{from:?} to {to:?}: {}", String::from_utf8_lossy(body));
                assert_eq!(String::from_utf8_lossy(&like), String::from_utf8_lossy(&read));
            }
        }
        assert!(good > 3000 && fitted.iter().all(|fitted| *fitted > 500), "{from:?}: {good} good, {fitted:?} fitted");
    }
}
