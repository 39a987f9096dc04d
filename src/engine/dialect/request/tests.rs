use super::*;
use crate::base::limits::MEMBERS_MAX;

mod media;

fn check(shape: ModelEndpoint, body: &str) -> Result<Fields, String> {
    let mut scan = RequestScan::new();
    scan.reset(shape);
    scan.finish(body.as_bytes()).map(|()| scan.fields().clone()).map_err(|invalid| invalid.0)
}

/// A chat request with `rest` before its messages.
fn chat(rest: &str) -> Result<Fields, String> {
    check(ModelEndpoint::CHAT, &format!(r#"{{{rest}"messages":[{{"role":"user","content":"hi"}}]}}"#))
}

fn messages(rest: &str) -> Result<Fields, String> {
    check(
        ModelEndpoint::MESSAGES,
        &format!(r#"{{{rest}"max_tokens":5,"messages":[{{"role":"user","content":"hi"}}]}}"#),
    )
}

fn refused(result: Result<Fields, String>) -> String {
    result.map(|fields| format!("accepted: {fields:?}")).unwrap_err()
}

#[test]
fn each_specified_chat_field_is_accepted_as_specified() {
    for rest in [
        "",
        r#""model":"small","#,
        r#""stream":true,"#,
        r#""stream":false,"#,
        r#""temperature":0,"#,
        r#""temperature":2.0,"#,
        r#""temperature":1e0,"#,
        r#""top_p":0,"#,
        r#""top_p":1,"#,
        r#""max_tokens":1,"#,
        r#""max_tokens":123456789012345678901234567890,"#,
        r#""tools":[],"#,
        r#""tools":[{"type":"anything"}],"#,
        r#""tool_choice":"auto","#,
        r#""tool_choice":{"type":"function"},"#,
        r#""response_format":{"type":"text"},"#,
        r#""stop":"x","#,
        r#""stop":["a","b"],"#,
        r#""stop":[],"#,
        r#""user":"u","#,
    ] {
        assert!(chat(rest).is_ok(), "{rest}: {:?}", chat(rest));
    }
}

#[test]
fn each_specified_chat_field_is_refused_by_its_path() {
    for (rest, message) in [
        (r#""model":7,"#, "model: expected a string"),
        (r#""stream":"yes","#, "stream: expected true or false"),
        (r#""stream":1,"#, "stream: expected true or false"),
        (r#""temperature":2.1,"#, "temperature: expected a number from 0 to 2"),
        (r#""temperature":-0.1,"#, "temperature: expected a number from 0 to 2"),
        (r#""temperature":"1","#, "temperature: expected a number from 0 to 2"),
        (r#""top_p":1.01,"#, "top_p: expected a number from 0 to 1"),
        (r#""top_p":[],"#, "top_p: expected a number from 0 to 1"),
        (r#""max_tokens":0,"#, "max_tokens: expected an integer of at least 1"),
        (r#""max_tokens":-1,"#, "max_tokens: expected an integer of at least 1"),
        (r#""max_tokens":1.5,"#, "max_tokens: expected an integer of at least 1"),
        (r#""max_tokens":"5","#, "max_tokens: expected an integer of at least 1"),
        (r#""tools":{},"#, "tools: expected an array of objects"),
        (r#""tools":[{},"x"],"#, "tools[1]: expected an object"),
        (r#""tool_choice":7,"#, "tool_choice: expected a string or an object"),
        (r#""tool_choice":["auto"],"#, "tool_choice: expected a string or an object"),
        (r#""response_format":"json","#, "response_format: expected an object"),
        (r#""stop":1,"#, "stop: expected a string or an array of strings"),
        (r#""stop":["a",null],"#, "stop[1]: expected a string"),
        (r#""user":{},"#, "user: expected a string"),
    ] {
        assert_eq!(refused(chat(rest)), message, "{rest}");
    }
}

#[test]
fn null_for_an_optional_field_means_absent() {
    for field in [
        "model",
        "stream",
        "temperature",
        "top_p",
        "max_tokens",
        "tools",
        "tool_choice",
        "response_format",
        "stop",
        "user",
    ] {
        let fields = chat(&format!("\"{field}\":null,")).unwrap();
        assert_eq!((fields.model, fields.stream, fields.max_tokens), (None, false, None), "{field}");
    }
    for field in ["model", "stream", "system"] {
        assert!(messages(&format!("\"{field}\":null,")).is_ok(), "{field}");
    }
}

#[test]
fn chat_messages_are_accepted_and_refused_by_their_paths() {
    let list = |list: &str| check(ModelEndpoint::CHAT, &format!("{{\"messages\":{list}}}"));
    for good in [
        r#"[{"role":"system","content":"a"},{"role":"developer","content":[{"type":"text","text":"b"}]}]"#,
        r#"[{"content":"role last","role":"user","name":"n"}]"#,
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"c"}]}]"#,
        r#"[{"role":"tool","tool_call_id":"c","content":""}]"#,
        r#"[{"role":"assistant"}]"#,
        r#"[{"role":"function","name":"f","content":"x"}]"#,
        r#"[{"role":"user","content":[]}]"#,
        r#"[{"r\u006fle":"us\u0065r","content":"x"}]"#,
        r#"[{"role":"nobody","role":"user","content":7,"content":"the last one counts"}]"#,
        r#"[{"role":"user","content":[{"type":7},{}],"x":[1,[2],{"role":9}]}]"#,
    ] {
        assert!(list(good).is_ok(), "{good}: {:?}", list(good));
    }
    let roles = "expected one of system, developer, user, assistant, tool";
    let content = "expected a string or an array of objects";
    let some = "expected an array of at least one message";
    for (bad, message) in [
        ("[]", format!("messages: {some}")),
        ("{}", format!("messages: {some}")),
        (r#""hi""#, format!("messages: {some}")),
        ("null", format!("messages: required, {some}")),
        (r#"["hi"]"#, "messages[0]: expected an object".to_owned()),
        (r#"[{"role":"user","content":"a"},[]]"#, "messages[1]: expected an object".to_owned()),
        (r#"[{"content":"a"}]"#, format!("messages[0].role: {roles}")),
        (r#"[{"role":"User","content":"a"}]"#, format!("messages[0].role: {roles}")),
        (r#"[{"role":null,"content":"a"}]"#, format!("messages[0].role: {roles}")),
        (r#"[{"role":["user"],"content":"a"}]"#, format!("messages[0].role: {roles}")),
        (
            r#"[{"role":"user","content":"a"},{"role":"user","content":"a"},{"role":"boss","content":"a"}]"#,
            format!("messages[2].role: {roles}"),
        ),
        (r#"[{"role":"user"}]"#, format!("messages[0].content: {content}")),
        (r#"[{"role":"user","content":null}]"#, format!("messages[0].content: {content}")),
        (r#"[{"role":"system","content":7}]"#, format!("messages[0].content: {content}")),
        (r#"[{"role":"assistant","content":{}}]"#, format!("messages[0].content: {content}")),
        (r#"[{"role":"user","content":[{},"x"]}]"#, "messages[0].content[1]: expected an object".to_owned()),
        (r#"[{"role":"user","content":[[{}]]}]"#, "messages[0].content[0]: expected an object".to_owned()),
        (r#"[{"role":"tool","content":"x"}]"#, "messages[0].tool_call_id: expected a string".to_owned()),
        (
            r#"[{"role":"tool","content":"x","tool_call_id":7}]"#,
            "messages[0].tool_call_id: expected a string".to_owned(),
        ),
    ] {
        assert_eq!(refused(list(bad)), message, "{bad}");
    }
    assert_eq!(refused(check(ModelEndpoint::CHAT, "{}")), format!("messages: required, {some}"));
}

#[test]
fn messages_requests_are_accepted_and_refused_by_their_paths() {
    let all = |list: &str| check(ModelEndpoint::MESSAGES, &format!("{{\"max_tokens\":9,\"messages\":{list}}}"));
    for good in [
        r#"[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"}]}]"#,
        r#"[{"role":"system","content":"late"}]"#,
        r#"[{"role":"assistant","content":[]}]"#,
        r#"[{"role":"user","content":[{"text":"x","type":"brand_new","deep":{"type":7}}]}]"#,
    ] {
        assert!(all(good).is_ok(), "{good}: {:?}", all(good));
    }
    for (bad, message) in [
        (r#"[{"role":"developer","content":"a"}]"#, "messages[0].role: expected one of user, assistant, system"),
        (r#"[{"role":"tool","content":"a"}]"#, "messages[0].role: expected one of user, assistant, system"),
        (r#"[{"role":"assistant"}]"#, "messages[0].content: expected a string or an array of content blocks"),
        (r#"[{"role":"user","content":null}]"#, "messages[0].content: expected a string or an array of content blocks"),
        (r#"[{"role":"user","content":[{"type":"text"},{}]}]"#, "messages[0].content[1].type: expected a string"),
        (r#"[{"role":"user","content":[{"type":7}]}]"#, "messages[0].content[0].type: expected a string"),
        (r#"[{"role":"user","content":[{"type":"text","type":7}]}]"#, "messages[0].content[0].type: expected a string"),
        (r#"[{"role":"user","content":[{"deep":{"type":"text"}}]}]"#, "messages[0].content[0].type: expected a string"),
        (r#"[{"role":"user","content":["x"]}]"#, "messages[0].content[0]: expected an object"),
    ] {
        assert_eq!(refused(all(bad)), message, "{bad}");
    }
    let blocks = r#""system":[{"cache_control":{"type":"ephemeral"},"t\u0065xt":"","type":"text","citations":null}],"#;
    for good in ["", r#""system":"s","#, blocks, r#""system":[],"#, r#""stream":true,"#] {
        assert!(messages(good).is_ok(), "{good}");
    }
    for (bad, message) in [
        (r#""system":7,"#, "system: expected a string or an array of text blocks"),
        (r#""system":["s"],"#, "system[0]: expected a text block"),
        (r#""system":[{"type":"text","text":"s"},{"type":"image","text":"s"}],"#, "system[1]: expected a text block"),
        (r#""system":[{"text":"s"}],"#, "system[0]: expected a text block"),
        (r#""system":[{"type":"text","text":["s"]}],"#, "system[0]: expected a text block"),
        (r#""stream":"x","#, "stream: expected true or false"),
        (r#""model":[],"#, "model: expected a string"),
    ] {
        assert_eq!(refused(messages(bad)), message, "{bad}");
    }
    let without = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    assert_eq!(
        refused(check(ModelEndpoint::MESSAGES, without)),
        "max_tokens: required, expected an integer of at least 1"
    );
    let zero = r#"{"max_tokens":0,"messages":[{"role":"user","content":"a"}]}"#;
    assert_eq!(refused(check(ModelEndpoint::MESSAGES, zero)), "max_tokens: expected an integer of at least 1");
    let mut scan = RequestScan::new();
    scan.reset(ModelEndpoint::count_tokens(crate::wire::Shape::Messages));
    assert_eq!(scan.finish(without.as_bytes()), Ok(()));
}

#[test]
fn documented_fields_are_never_validated() {
    for field in [
        "stream_options",
        "max_completion_tokens",
        "parallel_tool_calls",
        "reasoning_effort",
        "n",
        "seed",
        "logprobs",
        "metadata",
        "prediction",
        "functions",
        "service_tier",
        "logit_bias",
    ] {
        for value in ["null", "7", "-1", "\"x\"", "[[]]", "{\"a\":{}}", "true"] {
            assert!(chat(&format!("\"{field}\":{value},")).is_ok(), "{field} = {value}");
        }
    }
    for field in ["temperature", "top_p", "top_k", "tools", "tool_choice", "thinking", "output_config", "metadata"] {
        for value in ["null", "99", "\"x\"", "[\"x\"]", "{}"] {
            assert!(messages(&format!("\"{field}\":{value},")).is_ok(), "{field} = {value}");
        }
    }
}

#[test]
fn unknown_fields_never_cause_a_refusal() {
    for rest in [r#""future":{"a":[1]},"#, r#""future":1,"future":2,"#, r#""":null,"#, r#""store":9,"models":7,"#] {
        assert!(chat(rest).is_ok(), "{rest}");
        assert!(messages(rest).is_ok(), "{rest}");
    }
}

#[test]
fn repeated_key_is_refused_also_when_escaped() {
    for (rest, name) in [
        (r#""model":"a","model":"a","#, "model"),
        (r#""model":"a","mod\u0065l":"b","#, "model"),
        (r#""mess\u0061ges":[{"role":"user","content":"x"}],"#, "messages"),
        (r#""stream":null,"stream":true,"#, "stream"),
        (r#""n":1,"n":2,"#, "n"),
        (r#""stream_options":{},"stream_options":{},"#, "stream_options"),
    ] {
        assert_eq!(refused(chat(rest)), format!("{name}: expected it only once"), "{rest}");
    }
    assert_eq!(refused(messages(r#""thinking":{},"thinking":{},"#)), "thinking: expected it only once");
    for name in ["metadata", "safety_identifier", "prompt_cache_key"] {
        // These members name the user of a request.
        let rest = format!("\"{name}\":{{}},\"{name}\":{{}},");
        assert_eq!(refused(chat(&rest)), format!("{name}: expected it only once"));
    }
    // Members that are neither read nor rewritten may be repeated.
    assert!(chat(r#""seed":1,"seed":2,"#).is_ok());
}

#[test]
fn model_is_found_also_when_escaped() {
    let body = r#"{"mod\u0065l":"org\/sm\u0061ll","messages":[{"role":"user","content":"x"}]}"#;
    let fields = check(ModelEndpoint::CHAT, body).unwrap();
    assert_eq!(fields.model_name(body.as_bytes(), &mut Vec::new()), Some(&b"org/small"[..]));
    let body = r#"{"model":"small","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(
        check(ModelEndpoint::CHAT, body).unwrap().model_name(body.as_bytes(), &mut Vec::new()),
        Some(&b"small"[..])
    );
    assert_eq!(chat("").unwrap().model_name(b"", &mut Vec::new()), None);
}

#[test]
fn model_before_an_error_is_known() {
    for rest in ["\"x\":", "\"messages\":[7]}", "\"temperature\":9,\"messages\":[]}"] {
        let (body, mut scan) = (format!("{{\"model\":\"m\",{rest}"), RequestScan::new());
        scan.reset(ModelEndpoint::CHAT);
        assert!(scan.finish(body.as_bytes()).is_err(), "{body}");
        assert_eq!(scan.fields().model_name(body.as_bytes(), &mut Vec::new()), Some(&b"m"[..]), "{body}");
    }
}

#[test]
fn newer_bound_on_tokens_applies_if_usable() {
    let max = |rest: &str| chat(rest).unwrap().max_tokens;
    assert_eq!(max(r#""max_tokens":5,"max_completion_tokens":9,"#), Some(9));
    assert_eq!(max(r#""max_completion_tokens":9,"max_tokens":5,"#), Some(9));
    assert_eq!(max(r#""max_completion_tokens":0,"max_tokens":5,"#), Some(5));
    assert_eq!(max(r#""max_completion_tokens":"9","max_tokens":5,"#), Some(5));
    assert_eq!(max(r#""max_completion_tokens":null,"#), None);
    assert_eq!(messages(r#""max_completion_tokens":9,"#).unwrap().max_tokens, Some(5));
}

#[test]
fn usage_is_shown_only_on_request() {
    let asks = |rest: &str| chat(rest).unwrap().include_usage;
    assert!(asks(r#""stream":true,"stream_options":{"x":1,"include_usage":true},"#));
    for rest in
        ["", r#""stream_options":{},"#, r#""stream_options":{"include_usage":"yes"},"#, r#""stream_options":7,"#]
    {
        assert!(!asks(rest), "{rest}");
    }
}

#[test]
fn body_that_is_not_a_json_object_is_refused() {
    for (body, message) in [
        ("[]", "the body: expected a JSON object"),
        ("7", "the body: expected a JSON object"),
        ("", "invalid JSON at byte 0: unexpected end"),
        ("\u{feff}{}", "invalid JSON at byte 0: expected a value"),
        ("{\"a\":1} x", "invalid JSON at byte 8: trailing bytes"),
        ("{\"a\":1,}", "invalid JSON at byte 7: expected a string as key"),
        // The syntax is checked first.
        ("{\"model\":7,\"model\":7", "invalid JSON at byte 20: unexpected end"),
    ] {
        assert_eq!(refused(check(ModelEndpoint::CHAT, body)), message, "{body}");
        assert_eq!(refused(check(ModelEndpoint::MESSAGES, body)), message, "{body}");
    }
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(128), "]".repeat(128));
    assert_eq!(refused(check(ModelEndpoint::CHAT, &deep)), "invalid JSON at byte 132: nested deeper than 128 levels");
    let many = format!("{{{}\"z\":0}}", "\"x\":1,".repeat(MEMBERS_MAX));
    let mut scan = RequestScan::new();
    assert_eq!(scan.finish(many.as_bytes()).unwrap_err().0, "the body: expected at most 4096 members");
}

#[test]
fn scan_can_be_reused_and_keeps_nothing() {
    let mut scan = RequestScan::new();
    scan.reset(ModelEndpoint::CHAT);
    assert!(scan.finish(br#"{"model":7}"#).is_err());
    scan.reset(ModelEndpoint::MESSAGES);
    let body = r#"{"model":"m","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(scan.finish(body.as_bytes()), Ok(()));
    scan.reset(ModelEndpoint::CHAT);
    assert_eq!(scan.finish(br#"{"messages":[{"role":"user","content":"x"}]}"#), Ok(()));
    let fields = scan.fields();
    assert_eq!((fields.model, fields.stream, fields.max_tokens, fields.members.len()), (None, false, None, 1));
}

#[test]
fn prompt_estimate_includes_system_and_tools_but_not_base64() {
    let prompt = |shape, body: &str| {
        check(shape, body).unwrap();
        let mut scan = RequestScan::new();
        scan.reset(shape);
        scan.finish(body.as_bytes()).unwrap();
        let tokens = scan.prompt_tokens(body.as_bytes()).count();
        assert!(tokens <= scan.prompt_tokens_max());
        tokens
    };
    let chat = |rest: &str| {
        prompt(ModelEndpoint::CHAT, &format!(r#"{{{rest}"messages":[{{"role":"user","content":"hi"}}]}}"#))
    };
    let base = chat("");
    assert!((2..12).contains(&base), "{base}");
    let words = "word ".repeat(100);
    let with_tools = chat(&format!(r#""tools":[{{"description":"{words}"}}],"#));
    assert!((base + 80..base + 120).contains(&with_tools), "{with_tools}");
    let with_system = prompt(
        ModelEndpoint::MESSAGES,
        &format!(r#"{{"system":"{words}","max_tokens":5,"messages":[{{"role":"user","content":"hi"}}]}}"#),
    );
    assert!((base + 80..base + 120).contains(&with_system), "{with_system}");
    let with_metadata = chat(&format!(r#""metadata":{{"a":"{words}"}},"#));
    assert_eq!(with_metadata, base);
    let call = |input: &str| {
        let block = format!(r#"{{"type":"tool_use","id":"t","name":"f","input":{input}}}"#);
        let turn = format!(r#"{{"role":"assistant","content":[{block}]}}"#);
        prompt(ModelEndpoint::MESSAGES, &format!(r#"{{"max_tokens":5,"messages":[{turn}]}}"#))
    };
    let (without, named) = (call("{}"), call(&format!(r#"{{"{words}":1}}"#)));
    assert!((without + 80..without + 120).contains(&named), "what a model has named is in the prompt: {named}");
    let data = "A".repeat(8000);
    let image = format!(
        r#"{{"messages":[{{"role":"user","content":[
            {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]}}"#
    );
    let estimate = prompt(ModelEndpoint::CHAT, &image);
    assert!((1000..1030).contains(&estimate), "{estimate}");
}

#[test]
fn other_members_read_by_a_model_count_like_tools() {
    let words = "word ".repeat(100);
    let schema = format!(r#"{{"type":"object","properties":{{"url":{{"description":"{words}"}}}}}}"#);
    let (chat, responses) = (r#""messages":[{"role":"user","content":"hi"}]"#, r#""input":"hi""#);
    let messages = format!(r#""max_tokens":5,{chat}"#);
    for (shape, rest, member) in [
        (
            ModelEndpoint::CHAT,
            chat,
            r#""response_format":{"type":"json_schema","json_schema":{"name":"x","schema":@}}"#,
        ),
        (ModelEndpoint::CHAT, chat, r#""functions":[{"name":"f","parameters":@}]"#),
        (ModelEndpoint::CHAT, chat, r#""prediction":{"type":"content","content":[{"type":"text","text":"WORDS"}]}"#),
        (ModelEndpoint::MESSAGES, &messages, r#""output_config":{"format":{"type":"json_schema","schema":@}}"#),
        (ModelEndpoint::MESSAGES, &messages, r#""output_format":{"type":"json_schema","schema":@}"#),
        (
            ModelEndpoint::MESSAGES,
            &messages,
            r#""context_management":{"edits":[{"type":"compact","instructions":"WORDS"}]}"#,
        ),
        (ModelEndpoint::RESPONSES, responses, r#""text":{"format":{"type":"json_schema","name":"x","schema":@}}"#),
    ] {
        let prompt = |body: String| {
            let mut scan = RequestScan::new();
            scan.reset(shape);
            scan.finish(body.as_bytes()).unwrap();
            let (tokens, most) = (scan.prompt_tokens(body.as_bytes()).count(), scan.prompt_tokens_max());
            assert!(tokens <= most, "{body}");
            tokens
        };
        let base = prompt(format!("{{{rest}}}"));
        let member = member.replace('@', &schema).replace("WORDS", &words);
        let more = prompt(format!("{{{member},{rest}}}"));
        assert!((base + 80..base + 160).contains(&more), "{base} {more} {member}");
        // Members whose text would count as an image or document elsewhere.
        let plain = prompt(format!("{{{member},{rest}}}").replace("description", "data"));
        assert!(plain.abs_diff(more) < 5, "{more} {plain}");
    }
}

#[test]
fn conversation_stored_at_the_provider_is_detected() {
    for (rest, thread) in [
        ("", false),
        (r#""thread":null,"#, false),
        (r#""thread":false,"#, false),
        (r#""thread":{"type":"create"},"#, true),
        (r#""thread":{"type":"continue","previous_message_id":"m"},"thread":null,"#, true),
    ] {
        assert_eq!(messages(rest).unwrap().thread, thread, "{rest}");
    }
    assert!(!chat(r#""thread":{"type":"create"},"#).unwrap().thread);
}

/// Tokens of a valid body's prompt.
fn prompt(shape: ModelEndpoint, body: &str) -> u64 {
    let mut scan = RequestScan::new();
    scan.reset(shape);
    scan.finish(body.as_bytes()).unwrap_or_else(|invalid| panic!("{}: {body}", invalid.0));
    let tokens = scan.prompt_tokens(body.as_bytes()).count();
    assert!(tokens <= scan.prompt_tokens_max());
    tokens
}

/// Bodies of one message with these content blocks or items.
fn of_parts(shape: ModelEndpoint, parts: &str) -> String {
    match shape {
        ModelEndpoint::RESPONSES => format!(r#"{{"input":[{parts}]}}"#),
        _ => format!(r#"{{"max_tokens":5,"messages":[{{"role":"user","content":[{parts}]}}]}}"#),
    }
}

#[test]
fn no_member_name_makes_text_cheap() {
    let (chat, messages, responses) = (ModelEndpoint::CHAT, ModelEndpoint::MESSAGES, ModelEndpoint::RESPONSES);
    let places = [
        (chat, r#"{"type":"text","text":"x","KEY":"TEXT"}"#),
        (chat, r#"{"type":"text","text":"x","source":{"type":"base64","KEY":"TEXT"}}"#),
        (chat, r#"{"type":"image_url","file":{"content":{"KEY":"TEXT"}}}"#),
        (messages, r#"{"type":"document","source":{"type":"text","KEY":"TEXT"}}"#),
        (messages, r#"{"type":"image","source":{"type":"base64","KEY":"TEXT"},"type":"text","text":"x"}"#),
        (messages, r#"{"type":"image","source":{"type":"base64","KEY":"TEXT"},"type":5,"type":"text"}"#),
        (messages, r#"{"type":"tool_use","input":{"KEY":"TEXT"}}"#),
        (messages, r#"{"type":"tool_use","input":{"type":"image","source":{"type":"base64","KEY":"TEXT"}}}"#),
        (messages, r#"{"type":"tool_use","input":{"content":[{"type":"image","source":{"KEY":"TEXT"}}]}}"#),
        (messages, r#"{"type":"tool_use","inp\u0075t":{"type":"image","KEY":"TEXT"}}"#),
        (messages, r#"{"type":"tool_use","input":{"a":{"TEXT":1}}}"#),
        (messages, r#"{"type":"text","text":"x","TEXT":1}"#),
        (responses, r#"{"type":"tool_search_call","arguments":{"type":"input_image","KEY":"TEXT"}}"#),
        (responses, r#"{"type":"local_shell_call","action":{"env":{"TEXT":"x"}}}"#),
        (responses, r#"{"type":"function_call","call_id":"c","name":"f","arguments":"TEXT"}"#),
    ];
    for (shape, place) in places {
        for key in ["url", "image_url", "data", "file_data", "encrypted_content", "text", "title"] {
            for front in ["http://h/", "data:image/png;base64,", "data:", ""] {
                let text = format!("{front}{}", "Heron_wait\\\\u".repeat(2000));
                let body = of_parts(shape, &place.replace("KEY", key).replace("TEXT", &text));
                let tokens = prompt(shape, &body);
                let least = 2000 * 13 / 8;
                assert!(tokens >= least, "{tokens} of {least}: {key} {front} {place}");
            }
        }
    }
    let beside = format!(r#"{{"messages":[{{"role":"user","content":"x","url":"http{}"}}]}}"#, "heron/".repeat(2000));
    assert!(prompt(chat, &beside) >= 1500);
}

#[test]
fn marks_and_names_read_by_a_model_are_counted() {
    let lists = format!("[{}[]]", "[],".repeat(60_000));
    let named = format!("[{}1]", r#"{"text":"","type":"","data":1},"#.repeat(5000));
    for (what, least) in [(lists, 60_000 / 5), (named, 5000 * 12 / 5)] {
        let tools = format!(r#"{{"tools":[{{"x":{what}}}],"messages":[{{"role":"user","content":"x"}}]}}"#);
        let schema = tools.replace("\"tools\":[", "\"response_format\":").replace("}],", "},");
        let used = of_parts(ModelEndpoint::MESSAGES, &format!(r#"{{"type":"tool_use","input":{{"x":{what}}}}}"#));
        for (shape, body) in
            [(ModelEndpoint::CHAT, &tools), (ModelEndpoint::CHAT, &schema), (ModelEndpoint::MESSAGES, &used)]
        {
            let tokens = prompt(shape, body);
            assert!(tokens >= least, "{tokens} of {least}: {}", &body[..80]);
        }
    }
    let passthrough = ModelEndpoint::passthrough(crate::wire::Passthrough::Rerank);
    let documents = format!(r#"{{"query":"x","documents":[{{"{}":"x"}}]}}"#, "heron ".repeat(1000));
    assert!(prompt(passthrough, &documents) >= 750);
}

#[test]
fn all_text_of_relayed_requests_is_counted() {
    use crate::wire::Passthrough;
    let text = "heron ".repeat(1000);
    for (of, body, is_text) in [
        (Passthrough::Moderations, r#"{"input":["data:TEXT"]}"#, true),
        (Passthrough::Moderations, r#"{"input":["data:image/png;base64,TEXT"]}"#, true),
        (Passthrough::Moderations, r#"{"input":[{"type":"text","text":"data:image/TEXT"}]}"#, true),
        (Passthrough::Moderations, r#"{"input":[{"type":"image_url","image_url":{"url":"data:TEXT"}}]}"#, true),
        (Passthrough::Moderations, r#"{"input":[{"image_url":{}},["data:image/TEXT"]]}"#, true),
        (Passthrough::Moderations, r#"{"input":[{"image_url":{"url":""},"text":"data:image/TEXT"}]}"#, true),
        (Passthrough::Moderations, r#"{"input":[{"image_url":{"url":"data:image/png;base64,TEXT"}}]}"#, false),
        (Passthrough::Moderations, r#"{"input":[{"image\u005furl":"data:image/png;base64,TEXT"}]}"#, false),
        (Passthrough::Rerank, r#"{"query":"x","documents":[{"image_url":"data:image/TEXT"}]}"#, true),
        (Passthrough::Speech, r#"{"input":"TEXT"}"#, true),
        (Passthrough::Speech, r#"{"input":"x","instructions":"TEXT"}"#, true),
        (Passthrough::Images, r#"{"prompt":"TEXT"}"#, true),
        (Passthrough::Embeddings, r#"{"input":["TEXT"]}"#, true),
        (Passthrough::Completions, r#"{"prompt":"x","suffix":"TEXT"}"#, true),
    ] {
        let tokens = prompt(ModelEndpoint::passthrough(of), &body.replace("TEXT", &text));
        assert_eq!(tokens >= 750, is_text, "{tokens}: {body}");
    }
}

#[test]
fn rewritten_members_are_bounded() {
    let long = "x".repeat(64 * 1024);
    let said = refused(chat(&format!(r#""stream_options":{{"a":"{long}"}},"#)));
    assert_eq!(said, "stream_options: expected at most 65536 bytes");
    let said = refused(check(ModelEndpoint::RESPONSES, &format!(r#"{{"input":"a","include":["{long}"]}}"#)));
    assert_eq!(said, "include: expected at most 65536 bytes");
}

#[test]
fn items_that_a_translation_builds_are_counted() {
    let counts = |shape, body: &str| {
        let fields = check(shape, body).unwrap();
        [fields.messages, fields.parts, fields.tools]
    };
    let chat = r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
        {"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}},{"id":"d","function":{"name":"f"}}]}],
        "tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{}}}}}],"stop":["x","y"]}"#;
    assert_eq!(counts(ModelEndpoint::CHAT, chat), [3, 3, 1]);
    let message = r#"{"max_tokens":1,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]}],
        "tools":[{"name":"f"},{"name":"g"}],"stop_sequences":["x"]}"#;
    assert_eq!(counts(ModelEndpoint::MESSAGES, message), [2, 3, 2]);
    let document = r#"{"type":"document","title":"t","context":"c","source":{"type":"content","content":[
        {"text":"a"},{"text":"b"},{"text":"c","citations":[{"a":{}}]},{"text":"d"}]}}"#;
    let called = r#"{"type":"tool_use","id":"c","name":"f","input":{"a":[[{"b":{}}]]}}"#;
    let returned = format!(r#"{{"type":"tool_result","tool_use_id":"c","content":[{document},{{"type":"text"}}]}}"#);
    for (parts, count) in [
        (document, 1 + 2 + 4 * 2),
        (&format!("{document},{called}"), 1 + 2 + 4 * 2 + 1),
        (&format!("{called},{document},{returned}"), 1 + (1 + 2 + 4 * 2) + 1 + (1 + 2 + 4 * 2) + 1),
    ] {
        let body = of_parts(ModelEndpoint::MESSAGES, parts);
        assert_eq!(counts(ModelEndpoint::MESSAGES, &body)[1], count, "{parts}");
    }
    let response = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"additional_tools",
        "tools":[{"type":"namespace","name":"n","tools":[{"name":"f"}]}]}],
        "tools":[{"type":"namespace","name":"n","tools":[{"name":"f"},{"name":"g"}]},{"type":"custom","name":"h"}]}"#;
    assert_eq!(counts(ModelEndpoint::RESPONSES, response), [2, 3, 4]);
}

/// A provider may read another one of repeated members.
#[test]
fn repeated_members_of_an_item_hide_no_tools() {
    for (item, adds) in [
        (r#""tools":[{"type":"web_search"}]"#, true),
        (r#""tools":[{"type":"web_search"}],"tools":null"#, true),
        (r#""tools":1,"t\u006fols":[{"type":"web_search"}],"tools":"a""#, true),
        (r#""tools":null"#, false),
        (r#""output":{"tools":[]}"#, false),
    ] {
        let body = format!(r#"{{"model":"m","input":[{{"type":"tool_search_output","call_id":"c",{item}}}]}}"#);
        assert_eq!(check(ModelEndpoint::RESPONSES, &body).unwrap().adds_tools, adds, "{body}");
    }
    for (tool, costs) in [
        (r#""type":"web_search","type":"function""#, true),
        (r#""type":"function","type":1"#, true),
        (r#""type":"function""#, false),
    ] {
        let body = chat(&format!(r#""tools":[{{{tool},"function":{{"name":"f"}}}}],"#)).unwrap();
        assert_eq!(body.may_cost_more, costs, "{tool}");
    }
}

#[test]
fn numbers_that_are_too_long_are_ignored() {
    let digits = |count: usize| "1".repeat(count);
    assert!(chat(&format!(r#""max_tokens":{},"#, digits(1024))).is_ok());
    assert!(
        refused(chat(&format!(r#""max_tokens":{},"#, digits(1025)))).starts_with("max_tokens: expected an integer")
    );
    assert!(chat(&format!(r#""temperature":1.{},"#, digits(1022))).is_ok());
    assert!(refused(chat(&format!(r#""temperature":1.{},"#, digits(1023)))).starts_with("temperature: expected"));
}
