use super::super::capabilities::Capabilities;
use super::super::request::RequestScan;
use super::*;
use crate::wire::{ModelEndpoint, Passthrough, Shape};

struct Case {
    shape: Shape,
    model: &'static str,
    takes: Capabilities,
}

fn case(shape: Shape) -> Case {
    Case { shape, model: "gpt-x", takes: Capabilities::default() }
}

fn takes(shape: Shape, takes: Capabilities) -> Case {
    Case { takes, ..case(shape) }
}

fn unknown(shape: Shape, unknown: UnknownMembers) -> Case {
    takes(shape, Capabilities { unknown, ..Capabilities::default() })
}

/// Results of a scan that forces every member to be checked.
fn every_member(scan: &RequestScan) -> Fields {
    Fields { has_odd: true, ..scan.fields().clone() }
}

impl Case {
    fn run(&self, body: &str) -> String {
        self.try_run(body).unwrap_or_else(|invalid| panic!("{}: {body}", invalid.0))
    }

    fn try_run(&self, body: &str) -> Result<String, Invalid> {
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::generate(self.shape));
        scan.finish(body.as_bytes()).unwrap_or_else(|invalid| panic!("{}: {body}", invalid.0));
        let target =
            RequestTarget { model: self.model, shape: Shape::Chat, capabilities: &self.takes, cache_key: None };
        let (mut text, mut pieces) = (b"left over".to_vec(), vec![RewritePiece::Body(Span::new(0, 1))]);
        let total = rewrite(
            ModelEndpoint::generate(self.shape),
            body.as_bytes(),
            scan.fields(),
            &target,
            &mut text,
            &mut pieces,
        )?;
        // Checking every member gives the same result when the check could be skipped.
        let (walked, mut walked_text, mut walked_pieces) = (every_member(&scan), Vec::new(), Vec::new());
        let of_walk = rewrite(
            ModelEndpoint::generate(self.shape),
            body.as_bytes(),
            &walked,
            &target,
            &mut walked_text,
            &mut walked_pieces,
        );
        assert_eq!((of_walk, &walked_text, &walked_pieces), (Ok(total), &text, &pieces), "{body}");
        let names = |fields: &Fields| -> Vec<Vec<u8>> {
            dropped(ModelEndpoint::generate(self.shape), false, body.as_bytes(), fields, &target)
                .map(<[u8]>::to_vec)
                .collect()
        };
        assert_eq!(names(scan.fields()), names(&walked), "{body}");
        let mut out = Vec::new();
        for piece in &pieces {
            match piece {
                RewritePiece::Body(span) => out.extend_from_slice(span.of(body.as_bytes())),
                RewritePiece::Text(span) => out.extend_from_slice(span.of(&text)),
            }
        }
        assert_eq!(total, out.len() as u64);
        assert!(
            !pieces.iter().any(|piece| matches!(piece, RewritePiece::Body(s) | RewritePiece::Text(s) if s.is_empty()))
        );
        serde_json::from_slice::<serde_json::Value>(&out).unwrap_or_else(|error| {
            panic!("{error}: {}", String::from_utf8_lossy(&out));
        });
        Ok(String::from_utf8(out).unwrap())
    }
}

#[test]
fn tables_of_a_body_with_many_members_take_the_stated_storage() {
    let alternate: String = (0..2000).map(|n| format!(",\"a{n}\":0,\"temperature{n}\":1,\"seed\":{n}")).collect();
    let cuts = ",{\"type\":\"thinking\",\"thinking\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}".repeat(3000);
    for (shape, rest) in [
        (Shape::Chat, format!("\"hi\"}}]{}", &alternate[..alternate.len() / 2].rsplit_once(",\"a").unwrap().0)),
        (Shape::Messages, format!("[{{\"type\":\"text\",\"text\":\"hi\"}}{cuts}]}}],\"max_tokens\":9")),
    ] {
        let role = if shape == Shape::Chat { "user" } else { "assistant" };
        let body = format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"{role}\",\"content\":{rest}}}");
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::generate(shape));
        scan.finish(body.as_bytes()).unwrap_or_else(|invalid| panic!("{}", invalid.0));
        let (fields, mut text, mut pieces) = (scan.fields(), Vec::new(), Vec::new());
        let target = RequestTarget {
            model: "gpt-x",
            shape: Shape::Chat,
            capabilities: &Capabilities::default(),
            cache_key: None,
        };
        rewrite(ModelEndpoint::generate(shape), body.as_bytes(), fields, &target, &mut text, &mut pieces).unwrap();
        let tables = fields.members.capacity() * size_of::<Member>() + fields.cuts.capacity() * size_of::<Span>();
        assert!(pieces.len() > 900, "{shape:?}: {}", pieces.len());
        assert!(fields.storage() >= tables + pieces.capacity() * size_of::<RewritePiece>(), "{shape:?}");
    }
    let mut scan = RequestScan::new();
    let small = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    scan.finish(small).unwrap();
    assert_eq!(scan.fields().storage(), 0);
}

fn chat(body: &str) -> String {
    case(Shape::Chat).run(body)
}

fn messages(body: &str) -> String {
    case(Shape::Messages).run(body)
}

const MESSAGES: &str = r#""messages":[{"role":"user","content":"model"}]"#;

#[test]
fn only_the_model_changes() {
    let body =
        format!("{{ \"model\" : \"small\" ,\n \"temperature\": 1.0e0,\t{MESSAGES}, \"seed\":00 }}").replace("00", "7");
    assert_eq!(chat(&body), body.replace("\"small\"", "\"gpt-x\""));
    let body = format!("{{{MESSAGES},\"max_tokens\":5,\"thinking\":{{\"x\":1.0}},\"system\":\"\"}} ");
    assert_eq!(messages(&body), body.replace("} ", ",\"model\":\"gpt-x\"} "));
}

#[test]
fn missing_or_null_model_is_added() {
    assert_eq!(chat(&format!("{{{MESSAGES}}}")), format!("{{{MESSAGES},\"model\":\"gpt-x\"}}"));
    assert_eq!(chat(&format!("{{\"model\":null,{MESSAGES}}}")), format!("{{\"model\":\"gpt-x\",{MESSAGES}}}"));
    assert_eq!(
        chat(&format!("{{{MESSAGES},\"m\\u006fdel\":\"a\\\"b\"}}")),
        format!("{{{MESSAGES},\"m\\u006fdel\":\"gpt-x\"}}")
    );
}

#[test]
fn a_model_name_is_escaped() {
    let out = Case { model: "a\"b\\c", ..case(Shape::Chat) }.run(&format!("{{\"model\":\"s\",{MESSAGES}}}"));
    assert_eq!(out, format!("{{\"model\":\"a\\\"b\\\\c\",{MESSAGES}}}"));
}

#[test]
fn deny_list_is_never_forwarded_and_unknown_members_only_if_allowed() {
    let denied =
        r#""models":["a"],"fallbacks":[],"api_base":"http://x","container":{},"mcp_servers":[],"st\u006fre":true"#;
    let body = format!("{{{denied},\"model\":\"s\",\"future\":{{\"a\":1}},{MESSAGES}, \"x\" : 1,\"store\":1}}");
    assert_eq!(chat(&body), format!("{{\"model\":\"gpt-x\",{MESSAGES}}}"));
    let out = unknown(Shape::Chat, UnknownMembers::Forward).run(&body);
    assert_eq!(out, format!("{{\"model\":\"gpt-x\",\"future\":{{\"a\":1}},{MESSAGES}, \"x\" : 1}}"));
    let body = format!("{{\"max_tokens\":1,{denied},\"diagnostics\":{{\"previous_message_id\":\"m\"}},{MESSAGES}}}");
    assert_eq!(messages(&body), format!("{{\"max_tokens\":1,{MESSAGES},\"model\":\"gpt-x\"}}"));
}

#[test]
fn members_that_lead_elsewhere_are_never_forwarded() {
    for shape in [Shape::Chat, Shape::Messages] {
        for name in [
            "api_base",
            "apiBase",
            "API-BASE",
            "base_url",
            "baseURL",
            "base\\u005furl",
            "api_key",
            "apiKey",
            "extra_body",
            "extra-headers",
            "extra_query",
            "headers",
            "custom_llm_provider",
            "organization",
            "api_version",
            "Store",
            "Models",
            "Model",
            "MOD\\u0045L",
            "N",
            "Max_Tokens",
            "fall_backs",
            "mcpServers",
            "litellm_params",
            "proxy",
            "credentials",
            "authorization",
            "previous_response_id",
            "conversation",
        ] {
            let body = format!("{{\"model\":\"s\",\"max_tokens\":1,\"{name}\":\"x\",\"future\":1,{MESSAGES}}}");
            let want = format!("{{\"model\":\"gpt-x\",\"max_tokens\":1,\"future\":1,{MESSAGES}}}");
            assert_eq!(unknown(shape, UnknownMembers::Forward).run(&body), want, "{name}");
        }
    }
}

#[test]
fn bound_is_sent_under_the_targets_name() {
    let sent = |newer: bool, drop: &[&str], members: &str| {
        let drop_params = drop.iter().map(|name| (*name).to_owned()).collect();
        let takes = Capabilities { max_completion_tokens: newer, drop_params, ..Capabilities::default() };
        let case = Case { shape: Shape::Chat, model: "gpt-x", takes };
        let out = case.run(&format!("{{\"model\":\"gpt-x\",{members},{MESSAGES}}}"));
        out.strip_prefix("{\"model\":\"gpt-x\",").unwrap().replace(MESSAGES, "M")
    };
    for (newer, own, other) in
        [(true, "max_completion_tokens", "max_tokens"), (false, "max_tokens", "max_completion_tokens")]
    {
        let named = |value: &str| format!("\"{own}\":{value},M}}");
        assert_eq!(sent(newer, &[], &format!("\"{own}\" : 5")), format!("\"{own}\" : 5,M}}"), "as it came");
        assert_eq!(sent(newer, &[], &format!("\"{other}\" : 5")), named(" 5").replace(": 5", ":5"));
        // The newer name has priority if its value is usable, and only one of the two is sent.
        assert_eq!(sent(newer, &[], "\"max_tokens\":5,\"max_completion_tokens\":9"), named("9"));
        assert_eq!(sent(newer, &[], "\"max_completion_tokens\":9,\"max_tokens\":5"), named("9"));
        assert_eq!(sent(newer, &[], "\"max_completion_tokens\":null,\"max_tokens\":5"), named("5"));
        assert_eq!(sent(newer, &[], "\"max_completion_tokens\":\"9\",\"max_tokens\":5"), named("5"));
        assert_eq!(sent(newer, &[], "\"max_completion_tokens\":9,\"max_tokens\":null"), named("9"));
        // An unusable value is passed on, like any documented member.
        assert_eq!(sent(newer, &[], "\"max_completion_tokens\":\"9\""), "\"max_completion_tokens\":\"9\",M}");
        // `drop_params` applies to the name that would be sent.
        assert_eq!(sent(newer, &[own], &format!("\"{other}\":5")), "M}");
        assert_eq!(sent(newer, &[other], &format!("\"{other}\":5")), named("5"));
    }
    assert_eq!(sent(true, &[], "\"max\\u005ftokens\":5"), "\"max_completion_tokens\":5,M}");
    let newer = Capabilities { max_completion_tokens: true, ..Capabilities::default() };
    let body = format!("{{\"model\":\"gpt-x\",\"max_tokens\":5,{MESSAGES}}}");
    assert_eq!(takes(Shape::Messages, newer).run(&body), body, "the messages shape has one name for it");
}

#[test]
fn local_servers_get_their_documented_fields() {
    let fields =
        "\"top_k\":5,\"min_\\u0070\":0.1,\"guided_json\":{},\"dry_base\":1,\"thinking\":{\"type\":\"enabled\"}";
    let more = "\"x_custom\":1,\"store\":true,\"priority\":-9,\"kv_transfer_params\":{},\"logits_processors\":[]";
    let body = format!("{{\"model\":\"gpt-x\",{fields},{more},{MESSAGES}}}");
    let out = unknown(Shape::Chat, UnknownMembers::Local).run(&body);
    assert_eq!(out, format!("{{\"model\":\"gpt-x\",{fields},{MESSAGES}}}"));
    assert_eq!(chat(&body), format!("{{\"model\":\"gpt-x\",{MESSAGES}}}"));
    let body = format!("{{\"model\":\"gpt-x\",\"max_tokens\":1,\"min_p\":0.1,{MESSAGES}}}");
    let out = unknown(Shape::Messages, UnknownMembers::Local).run(&body);
    assert_eq!(out, format!("{{\"model\":\"gpt-x\",\"max_tokens\":1,{MESSAGES}}}"));
}

#[test]
fn members_of_the_other_format_count_as_unknown() {
    let body = format!("{{\"model\":\"s\",\"top_k\":5,\"system\":7,{MESSAGES}}}");
    assert_eq!(chat(&body), format!("{{\"model\":\"gpt-x\",{MESSAGES}}}"));
    let body = format!("{{\"model\":\"s\",\"max_tokens\":5,\"seed\":5,\"stream_options\":{{}},{MESSAGES}}}");
    assert_eq!(messages(&body), format!("{{\"model\":\"gpt-x\",\"max_tokens\":5,{MESSAGES}}}"));
}

#[test]
fn n_is_sent_as_one() {
    for n in ["2", "100", "\"x\"", "[1]", "1.0"] {
        let out = chat(&format!("{{\"model\":\"s\",\"n\" : {n},{MESSAGES}}}"));
        assert_eq!(out, format!("{{\"model\":\"gpt-x\",\"n\" : 1,{MESSAGES}}}"));
    }
    for n in ["1", "null"] {
        let body = format!("{{\"model\":\"gpt-x\",\"n\":{n},{MESSAGES}}}");
        assert_eq!(chat(&body), body);
    }
}

#[test]
fn unsupported_members_are_omitted() {
    let drop_params = vec!["temperature".to_owned(), "stop".to_owned()];
    let case = takes(Shape::Chat, Capabilities { drop_params, ..Capabilities::default() });
    let body = format!("{{\"temp\\u0065rature\":1,\"model\":\"s\",\"stop\":\"x\",{MESSAGES},\"stop_\":1,\"top_p\":1}}");
    assert_eq!(case.run(&body), format!("{{\"model\":\"gpt-x\",{MESSAGES},\"top_p\":1}}"));
}

#[test]
fn usage_is_requested_for_every_chat_stream_and_other_options_are_kept() {
    let options = |rest: &str| {
        let out = chat(&format!("{{\"model\":\"gpt-x\",\"stream\":true,{rest}{MESSAGES}}}"));
        out.replace("{\"model\":\"gpt-x\",\"stream\":true,", "").replace(MESSAGES, "M")
    };
    let asked = "\"stream_options\":{\"include_usage\":true}";
    assert_eq!(options(""), format!("M,{asked}}}"));
    assert_eq!(options(&format!("{asked},")), format!("{asked},M}}"));
    for value in ["null", "7", "{}", "{\"include_usage\":false}", "{\"include_usage\":true,\"include_usage\":false}"] {
        assert_eq!(options(&format!("\"stream_options\":{value},")), format!("{asked},M}}"), "{value}");
    }
    assert_eq!(
        options("\"stream_options\":{\"include_obfuscation\": false, \"include_usage\":null, \"x\":[1.0]},"),
        "\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false,\"x\":[1.0]},M}"
    );
    // Not a stream, or a server that cannot report usage: it is not requested.
    let whole = format!("{{\"model\":\"gpt-x\",\"stream\":false,{MESSAGES}}}");
    assert_eq!(chat(&whole), whole);
    let silent = takes(Shape::Chat, Capabilities { stream_usage: false, ..Capabilities::default() });
    let stream = format!("{{\"model\":\"gpt-x\",\"stream\":true,{MESSAGES}}}");
    assert_eq!(silent.run(&stream), stream);
    let asking = stream.replacen('{', "{\"stream_options\":{\"include_usage\":true},", 1);
    assert_eq!(silent.run(&asking), stream, "nor by a client");
    let body = format!("{{\"model\":\"gpt-x\",\"stream\":true,\"max_tokens\":1,{MESSAGES}}}");
    assert_eq!(messages(&body), body);
}

#[test]
fn large_body_is_three_pieces_without_a_copy() {
    let body =
        format!("{{\"model\":\"s\",\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "x".repeat(100_000));
    let mut scan = RequestScan::new();
    scan.reset(ModelEndpoint::CHAT);
    scan.finish(body.as_bytes()).unwrap();
    let (mut text, mut pieces) = (Vec::new(), Vec::new());
    let target =
        RequestTarget { model: "gpt-x", shape: Shape::Chat, capabilities: &Capabilities::default(), cache_key: None };
    rewrite(ModelEndpoint::CHAT, body.as_bytes(), scan.fields(), &target, &mut text, &mut pieces).unwrap();
    assert_eq!((pieces.len(), text.as_slice()), (3, b"\"gpt-x\"".as_slice()));
}

#[test]
fn only_unsigned_reasoning_is_omitted() {
    let signed = r#"{"type":"thinking","thinking":"a","signature":"Eq"}"#;
    let bare = r#"{"thinking":"b","type":"thinking","signature":""}"#;
    let none = r#"{ "type" : "thinking" , "thinking":"c" }"#;
    let text = r#"{"type":"text","text":"thinking","signature":""}"#;
    let ours = r#"{"type":"redacted_thinking","data":"tg1.eyJ9"}"#;
    let body = |blocks: &str| {
        let assistant = match blocks {
            "" => String::new(),
            blocks => format!(r#"{{"role":"assistant","content":[{blocks}]}},"#),
        };
        let user = r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#;
        format!(r#"{{"model":"gpt-x","max_tokens":1,"messages":[{user},{assistant}{user}]}}"#)
    };
    for (blocks, left) in [
        (format!("{signed},{text}"), format!("{signed},{text}")),
        (format!("{bare},{text}"), text.to_owned()),
        (format!("{bare} , {none} ,{text}"), text.to_owned()),
        (format!("{text},{bare}"), text.to_owned()),
        (format!("{text} , {bare},{none} , {signed}, {none}"), format!("{text} , {signed}")),
        (format!("{bare},{text},{none},{signed}"), format!("{text},{signed}")),
        (bare.to_owned(), String::new()),
        (format!("{bare},{none}"), String::new()),
        (ours.to_owned(), String::new()),
        (format!("{ours},{text}"), text.to_owned()),
        (format!("{text},{}", ours.replace("data", "d\\u0061ta")), text.to_owned()),
    ] {
        assert_eq!(messages(&body(&blocks)), body(&left), "{blocks}");
    }
    let two = body(bare).replacen("]}]", &format!("]}},{{\"role\":\"assistant\",\"content\":[{bare},{text}]}}]"), 1);
    assert!(!messages(&two).contains(bare));
    // The chat format has no such blocks; a user may send something that looks like one.
    let chat_body = format!(r#"{{"model":"gpt-x","messages":[{{"role":"user","content":[{bare}]}}]}}"#);
    assert_eq!(chat(&chat_body), chat_body);
}

/// A case with configured members: name, value, and true if it replaces the client's.
fn written(shape: Shape, params: &[(&str, &str, bool)]) -> Case {
    let param = |(name, json, always): &(&str, &str, bool)| Param {
        name: (*name).to_owned(),
        json: (*json).to_owned(),
        always: *always,
    };
    takes(shape, Capabilities { params: params.iter().map(param).collect(), ..Capabilities::default() })
}

#[test]
fn set_parameter_replaces_the_clients() {
    let case = written(Shape::Chat, &[("temperature", "0.2", true), ("top_k", "[1,{\"a\":\"}\"}]", true)]);
    let set = "\"temperature\":0.2,\"top_k\":[1,{\"a\":\"}\"}]";
    for members in [
        "",
        "\"temperature\":1.5,",
        "\"temp\\u0065rature\" : 1 ,",
        "\"temperature\":null,",
        "\"top_k\":1,\"temperature\":2,\"top_k\":2,",
        "\"top_k\":[{\"temperature\":1}],",
    ] {
        let out = case.run(&format!("{{{members}\"model\":\"s\",{MESSAGES}}}"));
        assert_eq!(out, format!("{{\"model\":\"gpt-x\",{MESSAGES},{set}}}"), "{members}");
        let out = case.run(&format!("{{\"model\":\"s\",{members}{MESSAGES}}}\n"));
        assert_eq!(out, format!("{{\"model\":\"gpt-x\",{MESSAGES},{set}}}\n"), "{members}");
    }
    let out = case.run(&format!("{{\"model\":\"gpt-x\",{MESSAGES},\"top_p\":1,\"temperature\":1}}"));
    assert_eq!(out, format!("{{\"model\":\"gpt-x\",{MESSAGES},\"top_p\":1,{set}}}"));
}

#[test]
fn default_parameter_does_not_replace_the_clients() {
    let case = written(Shape::Chat, &[("temperature", "0.2", false), ("seed", "7", false)]);
    let sent = |members: &str| {
        let out = case.run(&format!("{{\"model\":\"gpt-x\",{members}{MESSAGES}}}"));
        out.strip_prefix("{\"model\":\"gpt-x\",").unwrap().replace(MESSAGES, "M")
    };
    let both = "\"temperature\":0.2,\"seed\":7";
    assert_eq!(sent(""), format!("M,{both}}}"));
    assert_eq!(sent("\"temperature\":null,\"s\\u0065ed\":null,"), format!("M,{both}}}"));
    assert_eq!(sent("\"temperature\":1.50,"), "\"temperature\":1.50,M,\"seed\":7}");
    assert_eq!(sent("\"temp\\u0065rature\":1,"), "\"temp\\u0065rature\":1,M,\"seed\":7}");
    assert_eq!(sent("\"seed\":null,\"seed\":0,\"temperature\":0,"), "\"seed\":0,\"temperature\":0,M}");
}

#[test]
fn default_applies_if_the_clients_own_is_not_sent() {
    let mut case = written(Shape::Chat, &[("top_k", "40", false), ("temperature", "0", true)]);
    let body = format!("{{\"model\":\"gpt-x\",\"top_k\":5,\"temperature\":1,{MESSAGES}}}");
    assert_eq!(case.run(&body), format!("{{\"model\":\"gpt-x\",{MESSAGES},\"top_k\":40,\"temperature\":0}}"));
    case.takes.unknown = UnknownMembers::Local;
    assert_eq!(case.run(&body), format!("{{\"model\":\"gpt-x\",\"top_k\":5,{MESSAGES},\"temperature\":0}}"));
    // A configured member is sent even if it is dropped.
    case.takes.drop_params = vec!["temperature".to_owned(), "top_k".to_owned()];
    assert_eq!(case.run(&body), format!("{{\"model\":\"gpt-x\",{MESSAGES},\"top_k\":40,\"temperature\":0}}"));
}

#[test]
fn configured_members_and_the_gateways_own_are_both_written() {
    let params = [("temperature", "0.2", true), ("service_tier", "\"flex\"", false)];
    let added = "\"temperature\":0.2,\"service_tier\":\"flex\"";
    let asked = "\"stream_options\":{\"include_usage\":true}";
    let out = written(Shape::Chat, &params).run(&format!("{{{MESSAGES},\"stream\":true}}"));
    assert_eq!(out, format!("{{{MESSAGES},\"stream\":true,\"model\":\"gpt-x\",{asked},{added}}}"));
    let out = written(Shape::Messages, &params)
        .run(&format!("{{\"model\":\"s\",\"max_tokens\":5,\"temperature\":1,{MESSAGES}}}"));
    assert_eq!(out, format!("{{\"model\":\"gpt-x\",\"max_tokens\":5,{MESSAGES},{added}}}"));
    let mut reasons = written(Shape::Responses, &params);
    reasons.takes.effort = true;
    let out = reasons.run("{\"temperature\":1,\"model\":\"s\",\"input\":\"hi\"}");
    let own = "\"store\":false,\"include\":[\"reasoning.encrypted_content\"]";
    assert_eq!(out, format!("{{\"model\":\"gpt-x\",\"input\":\"hi\",{own},{added}}}"));
}

#[test]
fn configured_members_fit_their_reserved_storage() {
    let long = format!("\"{}\"", "x".repeat(5000));
    let case = written(Shape::Chat, &[("stop", &long, true), ("user", &long, false), ("a", "1", true)]);
    let body = format!("{{\"model\":\"s\",\"stream\":true,{MESSAGES}}}");
    let mut scan = RequestScan::new();
    scan.finish(body.as_bytes()).unwrap();
    let target = RequestTarget { model: "gpt-x", shape: Shape::Chat, capabilities: &case.takes, cache_key: None };
    let (mut text, mut pieces) = (Vec::with_capacity(256), Vec::new());
    rewrite(ModelEndpoint::CHAT, body.as_bytes(), scan.fields(), &target, &mut text, &mut pieces).unwrap();
    assert!(text.len() > 10_000 && text.capacity() <= 256 + case.takes.params_room(), "{}", text.capacity());
    assert_eq!(Capabilities::default().params_room(), 0);
}

/// Rewrites a responses request with these members for a target with the tools `hosted`.
fn tools(hosted: &[&str], members: &str) -> Result<String, String> {
    let hosted_tools = hosted.iter().map(|name| (*name).to_owned()).collect();
    let case = takes(Shape::Responses, Capabilities { hosted_tools, ..Capabilities::default() });
    let out = case.try_run(&format!("{{\"model\":\"m\",{members}}}")).map_err(|invalid| invalid.0)?;
    let ours = ",\"store\":false}";
    Ok(out.strip_prefix("{\"model\":\"gpt-x\",").unwrap().strip_suffix(ours).unwrap().to_owned())
}

const FUNCTION: &str = r#"{"type":"function","name":"f"}"#;

#[test]
fn only_client_tools_are_passed_on() {
    let one = |tool: &str| tools(&[], &format!("\"input\":\"x\",\"tools\":[{FUNCTION},{tool}]")).unwrap();
    let gone = format!("\"input\":\"x\",\"tools\":[{FUNCTION}]");
    for tool in [
        r#"{"type":"mcp","server_url":"http://evil"}"#,
        r#"{"type":"web_search"}"#,
        r#"{"type":"x_search"}"#,
        r#"{"type":"code_execution"}"#,
        r#"{"type":"openrouter:web_search"}"#,
        r#"{"type":"of_next_month"}"#,
        r#"{"type":"shell","environment":{"type":"container_reference","container_id":"cntr_other"}}"#,
        r#"{"type":"shell","environment":{"type":"container_auto","type":"local"}}"#,
        r#"{"type":"shell","environment":null,"environment":{"type":"container_auto"}}"#,
        r#"{"type":"tool_search","execution":"server"}"#,
        r#"{"type":"tool_search"}"#,
        r#"{"type":"mcp","type":"function","name":"g","server_url":"http://evil"}"#,
        r#"{"\u0074ype":"m\u0063p"}"#,
    ] {
        assert_eq!(one(tool), gone, "{tool}");
        let added = |item: &str, tools: &str| {
            format!("\"input\":[{{\"type\":\"{item}\",\"tools\":[{tools}]}},{{\"role\":\"user\",\"content\":\"x\"}}]")
        };
        for item in ["additional_tools", "tool_search_output", "of_next_month"] {
            let both = format!("{tool},{FUNCTION},{tool},{tool}");
            assert_eq!(tools(&[], &added(item, &both)).unwrap(), added(item, FUNCTION), "{tool}");
        }
        let space = |members: &str| format!("{{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{members}]}}");
        let both = format!("\"tools\":[{tool},{},{tool}],\"input\":\"x\"", space(&format!("{tool},{FUNCTION}")));
        assert_eq!(tools(&[], &both).unwrap(), format!("\"tools\":[{}],\"input\":\"x\"", space(FUNCTION)), "{tool}");
    }
    for tool in [
        r#"{"type":"custom","name":"c"}"#,
        r#"{"type":"local_shell"}"#,
        r#"{"type":"apply_patch"}"#,
        r#"{"type":"shell"}"#,
        r#"{"type":"shell","environment":{"type":"local"}}"#,
        r#"{"type":"tool_search","execution":"client"}"#,
    ] {
        assert_eq!(one(tool), format!("\"input\":\"x\",\"tools\":[{FUNCTION},{tool}]"));
    }
    // Tools that a provider's server has listed are not offered by the client.
    let listed = r#""input":[{"type":"mcp_list_tools","tools":[{"name":"a"}]}]"#;
    assert_eq!(tools(&[], listed).unwrap(), listed);
}

#[test]
fn hosted_tool_is_passed_on_if_configured_and_without_stored_objects() {
    for (tool, goes) in [
        (r#"{"type":"code_interpreter","container":{"type":"auto"}}"#, true),
        (r#"{"type":"code_interpreter","container":{"type":"auto","file_ids":[]}}"#, true),
        (r#"{"type":"code_interpreter","container":{"type":"auto","file_ids":["file-other"]}}"#, false),
        (r#"{"type":"code_interpreter","container":"cntr_other"}"#, false),
        (r#"{"type":"shell","environment":{"type":"container_auto"}}"#, true),
        (r#"{"type":"shell","environment":{"type":"container_reference","container_id":"cntr_other"}}"#, false),
        (r#"{"type":"file_search","vector_store_ids":["vs_other"]}"#, false),
        (r#"{"type":"shell","environment":{"skills":[{"type":"inline","name":"a"}]}}"#, true),
        (r#"{"type":"shell","environment":{"skills":[{"type":"skill_reference","skill_id":"skill_other"}]}}"#, false),
        (r#"{"type":"shell","environment":{"a":[[{"file\u005fids":[["file-other"]]}]]}}"#, false),
        (r#"{"type":"code_interpreter","container":{"id":"cntr_other"}}"#, false),
        (r#"{"type":"web_search","parameters":{"file_id":"a"},"id":"b"}"#, true),
        (r#"{"type":"web_search_preview"}"#, false),
    ] {
        let body = format!("\"input\":\"x\",\"tools\":[{FUNCTION},{tool}]");
        let want = if goes { body.clone() } else { format!("\"input\":\"x\",\"tools\":[{FUNCTION}]") };
        assert_eq!(tools(&["code_interpreter", "shell", "file_search", "web_search"], &body).unwrap(), want);
    }
}

#[test]
fn request_without_remaining_tools_is_refused() {
    let refused = |members: &str| {
        tools(&[], &format!("\"input\":\"x\",{members}")).map_err(|why| why.split_once(':').unwrap().0.to_owned())
    };
    let search = r#"{"type":"web_search"}"#;
    assert_eq!(refused(&format!("\"tools\":[{search}]")), Err("tools".to_owned()));
    assert!(refused(&format!("\"tools\":[{search}],\"tool_choice\":\"none\"")).is_ok());
    for choice in [search, r#"{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"}]}"#] {
        let members = format!("\"tools\":[{search},{FUNCTION}],\"tool_choice\":{choice}");
        assert_eq!(refused(&members), Err("tool_choice".to_owned()), "{choice}");
    }
    let some = |tools: &str| format!("{{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{tools}]}}");
    let members = format!("\"tools\":[{search},{FUNCTION}],\"tool_choice\":{}", some(&format!("{search},{FUNCTION}")));
    assert_eq!(
        refused(&members),
        Ok(format!("\"input\":\"x\",\"tools\":[{FUNCTION}],\"tool_choice\":{}", some(FUNCTION)))
    );
    let many = format!("{search},{FUNCTION},").repeat(300);
    assert_eq!(refused(&format!("\"tools\":[{}]", many.trim_end_matches(','))), Err("tools".to_owned()));
}

/// Carried reasoning and provider-hosted tools are omitted from the same body.
#[test]
fn tools_and_reasoning_are_omitted_from_one_body() {
    let ours = r#"{"type":"reasoning","id":"a","summary":[],"encrypted_content":"tg1\u002eabc"}"#;
    let added = |tools: &str| format!("{{\"type\":\"additional_tools\",\"tools\":[{tools}]}}");
    let search = r#"{"type":"web_search"}"#;
    let both = format!("{search},{FUNCTION}");
    let body = format!("\"tools\":[{both}],\"input\":[{ours},{},{ours},{}]", added(&both), added(&both));
    let want = format!("\"tools\":[{FUNCTION}],\"input\":[{},{}]", added(FUNCTION), added(FUNCTION));
    assert_eq!(tools(&[], &body).unwrap(), want);
}

#[test]
fn ordinary_request_is_unchanged_for_any_target() {
    let ordinary = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"seed":1,"stop":null}"#;
    let late = r#"{ "messages":[{"role":"user","content":"hi"}],"max_tokens":5, "model" : "m" }"#;
    let odd = [
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"n":2}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"max_completion_tokens":6}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"store":true}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"unheard_of":true}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"stream":true}"#,
    ];
    let param = Param { name: "seed".to_owned(), json: "7".to_owned(), always: true };
    let targets = [
        Capabilities::default(),
        Capabilities { max_completion_tokens: true, ..Capabilities::default() },
        Capabilities { drop_params: vec!["seed".to_owned()], ..Capabilities::default() },
        Capabilities { stream_usage: false, unknown: UnknownMembers::Forward, ..Capabilities::default() },
        Capabilities { params: [param].into(), ..Capabilities::default() },
    ];
    for target in targets {
        for shape in [Shape::Chat, Shape::Messages] {
            for body in odd.into_iter().chain([ordinary, late]).filter(|body| body.contains("max_tokens")) {
                takes(shape, target.clone()).run(body);
            }
        }
        takes(Shape::Chat, target.clone()).run(odd[0]);
    }
    let scan = |body: &str| {
        let mut scan = RequestScan::new();
        scan.finish(body.as_bytes()).unwrap();
        goes_as_it_is(ModelEndpoint::CHAT, scan.fields(), &Capabilities::default())
    };
    assert!(scan(ordinary) && scan(late) && !odd[..4].iter().any(|body| scan(body)));
}

/// Members of requests that name an object of the provider's account, each with its path.
const STORED_OBJECTS: &[(Shape, &str, &str)] = &[
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"file","file":{"file_id":"file-1"}}]}]}"#,
        "messages[0].content[1].file.file_id",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":[{"type":"file","file":{"file\u005fid":"file-1"}}]}]}"#,
        "messages[0].content[0].file.file\\u005fid",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":[{"file_id":"file-1"}]}]}"#,
        "messages[0].content[0].file_id",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"},{"role":"assistant","audio":{"id":"audio_1"}}]}"#,
        "messages[1].audio.id",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"audio":{"voice":{"id":"voice_1"},"format":"wav"}}"#,
        "audio.voice.id",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"file","file_id":"file_1"}}]}]}"#,
        "messages[0].content[0].source.file_id",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"container_upload","file_id":"file_1"}]}]}"#,
        "messages[0].content[0].file_id",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image","source":{"type":"file","file_id":"file_1"}}]}]}]}"#,
        "messages[0].content[0].content.file_id",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"input":{"file_id":"a"},"type":"tool_use","source":{"file_id":"file_1"}}]}]}"#,
        "messages[0].content[0].source.file_id",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{}},{"type":"mcp_toolset","mcp_server_name":"s"}]}"#,
        "tools[1].type",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]}"#,
        "tools[0].vector_store_ids",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},{"type":"file_search","file_search":{"vector_store\u005fids":["vs_1"]}}]}"#,
        "tools[1].file_search.vector_store\\u005fids",
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"code_interpreter","container":"cntr_1"}]}"#,
        "tools[0].container",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"code_execution_20250825","name":"c","container":{"id":"cntr_1"}}]}"#,
        "tools[0].container.id",
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","vector_store_ids":["vs_1"],"input_schema":{}}]}"#,
        "tools[0].vector_store_ids",
    ),
    (
        Shape::Responses,
        r#"{"input":[{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}]}"#,
        "input[0].content[0].file_id",
    ),
    (
        Shape::Responses,
        r#"{"input":[{"type":"code_interpreter_call","id":"ci_1","container_id":"cntr_1"}]}"#,
        "input[0].container_id",
    ),
    (
        Shape::Responses,
        r#"{"input":[{"type":"file_search_call","results":[{"text":"x"},{"file_id":"file-1"}]}]}"#,
        "input[0].results[1].file_id",
    ),
    (
        Shape::Responses,
        r#"{"input":[{"type":"shell_call","call_id":"c","environment":{"type":"container_reference","container_id":"cntr_1"}}]}"#,
        "input[0].environment.container_id",
    ),
    (
        Shape::Responses,
        r#"{"input":[{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot","file_id":"file-1"}}]}"#,
        "input[0].output.file_id",
    ),
];

/// Names of stored objects at places where they mean nothing to a provider.
const NOT_STORED_OBJECTS: &[(Shape, &str)] = &[
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":null,"file_data":"x"}}]}]}"#,
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"assistant","content":"x","annotations":[{"file_id":"file-1"}],"tool_calls":[{"id":"c","function":{"name":"f","arguments":{"file_id":"a"}}}]}]}"#,
    ),
    (Shape::Chat, r#"{"messages":[{"role":"user","content":"x"}],"audio":{"voice":"alloy","format":"wav"}}"#),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"default":{"file_id":"a"}}}}]}"#,
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"file_id":"a","deep":{"container_id":"b"}}},{"type":"text","text":"x","citations":[{"file_id":"file_1"}]}]}]}"#,
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"mcp_toolset","input_schema":{"type":"mcp_toolset"}}]}"#,
    ),
    (
        Shape::Chat,
        r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"container","description":"vector_store_ids","parameters":{"type":"object","properties":{"container":{"type":"string"},"vector_store_ids":{"type":"array","items":{"type":"string"}}},"required":["container"],"default":{"vector_store_ids":["a"],"container":"b"}}}}]}"#,
    ),
    (
        Shape::Messages,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{"type":"object","default":{"container":"a","file_ids":["b"]}},"input_examples":[{"container":"a","vector_store_ids":["b"]}]}]}"#,
    ),
    (
        Shape::Responses,
        r#"{"input":"x","tools":[{"type":"function","name":"f","parameters":{"default":{"container":"a","vector_store_ids":["b"]}}},{"type":"file_search","vector_store_ids":[]},{"type":"code_interpreter","container":{"type":"auto"}}]}"#,
    ),
    (
        Shape::Responses,
        r#"{"input":[{"role":"assistant","content":[{"type":"output_text","text":"x","annotations":[{"type":"container_file_citation","container_id":"c","file_id":"f"}]}]}]}"#,
    ),
    (
        Shape::Responses,
        r#"{"input":[{"type":"tool_search_call","call_id":"c","execution":"client","arguments":{"file_id":"a"}},{"type":"tool_search_output","call_id":"c","execution":"client","tools":[{"type":"function","name":"f","parameters":{"default":{"file_id":"a"}}}]}]}"#,
    ),
];

#[test]
fn stored_objects_are_refused_by_path_unless_allowed() {
    for (shape, body, path) in STORED_OBJECTS {
        let refused = case(*shape).try_run(body).unwrap_err().0;
        assert_eq!(refused.split_once(": ").map(|(path, _)| path), Some(*path), "{refused}: {body}");
        let allowed = takes(*shape, Capabilities { stored_objects: true, ..Capabilities::default() });
        assert!(allowed.try_run(body).is_ok(), "{body}");
        for to in [Shape::Chat, Shape::Messages, Shape::Responses].into_iter().filter(|to| to != shape) {
            let mut scan = RequestScan::new();
            scan.reset(ModelEndpoint::generate(*shape));
            scan.finish(body.as_bytes()).unwrap();
            let takes = Capabilities::default();
            let target = RequestTarget { model: "m", shape: to, capabilities: &takes, cache_key: None };
            let translated = super::super::translate(*shape, body.as_bytes(), &scan, &target, &mut Vec::new());
            assert_eq!(translated.err().map(|why| why.0), Some(refused.clone()), "{body}");
        }
    }
    for (shape, body) in NOT_STORED_OBJECTS {
        assert!(case(*shape).try_run(body).is_ok(), "{body}");
    }
}

const fn relayed(passthrough: Passthrough) -> ModelEndpoint {
    ModelEndpoint::passthrough(passthrough)
}

/// Members that name objects outside messages and tools: a JSON endpoint, a body, the path in the refusal, and true if
/// the member is only sent to providers that get unknown ones.
const STORED_BESIDE: &[(ModelEndpoint, &str, &str, bool)] = &[
    (relayed(Passthrough::Speech), r#"{"model":"m","input":"x","voice":{"id":"voice_other"}}"#, "voice.id", false),
    (
        relayed(Passthrough::Speech),
        r#"{"model":"m","input":"x","v\u006fice":{"i\u0064":"voice_other"}}"#,
        "v\\u006fice.i\\u0064",
        false,
    ),
    (
        relayed(Passthrough::Moderations),
        r#"{"input":[{"type":"input_image","file_id":"file-1"}]}"#,
        "input.file_id",
        false,
    ),
    (relayed(Passthrough::Images), r#"{"prompt":"x","images":[{"file_id":"file-1"}]}"#, "images.file_id", true),
    (
        relayed(Passthrough::Embeddings),
        r#"{"input":"x","source":{"deep":[{"container_id":"c"}]}}"#,
        "source.container_id",
        true,
    ),
    (relayed(Passthrough::Embeddings), r#"{"input":"x","source":{"file_ids":["f"]}}"#, "source.file_ids", true),
    (
        ModelEndpoint::CHAT,
        r#"{"messages":[{"role":"user","content":"x"}],"attachments":[{"file_id":"f"}]}"#,
        "attachments.file_id",
        true,
    ),
    (
        ModelEndpoint::MESSAGES,
        r#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"extra":{"file_id":"f"}}"#,
        "extra.file_id",
        true,
    ),
    (ModelEndpoint::RESPONSES, r#"{"input":"x","extra":{"vector_store_ids":["f"]}}"#, "extra.vector_store_ids", true),
];

#[test]
fn stored_objects_are_refused_on_every_endpoint() {
    let send = |endpoint: ModelEndpoint, body: &str, unknown, stored_objects| {
        let mut scan = RequestScan::new();
        scan.reset(endpoint);
        scan.finish(body.as_bytes()).unwrap();
        let takes = Capabilities { unknown, stored_objects, ..Capabilities::default() };
        let target = RequestTarget { model: "m", shape: Shape::Chat, capabilities: &takes, cache_key: None };
        let sent = rewrite(endpoint, body.as_bytes(), scan.fields(), &target, &mut Vec::new(), &mut Vec::new());
        sent.map(|_| ()).map_err(|Invalid(why)| why)
    };
    for &(endpoint, body, path, is_unknown) in STORED_BESIDE {
        let refused = send(endpoint, body, UnknownMembers::Forward, false).unwrap_err();
        assert_eq!(refused.split_once(": ").map(|(path, _)| path), Some(path), "{refused}: {body}");
        assert_eq!(send(endpoint, body, UnknownMembers::Drop, false).is_ok(), is_unknown, "{body}");
        assert_eq!(send(endpoint, body, UnknownMembers::Forward, true), Ok(()), "{body}");
    }
    // Values that name nothing, and the client's own texts.
    for (endpoint, body) in [
        (relayed(Passthrough::Speech), r#"{"input":"x","voice":"alloy"}"#),
        (relayed(Passthrough::Speech), r#"{"input":"x","voice":{"id":null}}"#),
        (relayed(Passthrough::Rerank), r#"{"query":"x","documents":[{"file_id":"f"}]}"#),
        (
            relayed(Passthrough::Embeddings),
            r#"{"input":"file_id","id":"f","source":{"id":"f","file_id":null,"name":"f"}}"#,
        ),
    ] {
        assert_eq!(send(endpoint, body, UnknownMembers::Forward, false), Ok(()), "{body}");
    }
}

#[test]
fn role_developer_becomes_system_if_unsupported() {
    let takes_none = takes(Shape::Chat, Capabilities { developer_role: false, ..Capabilities::default() });
    let takes_it = takes(Shape::Chat, Capabilities::default());
    for (message, want) in [
        (r#"{"role":"developer","content":"a"}"#, r#"{"role":"system","content":"a"}"#),
        (
            r#"{"content":[{"type":"text","text":"a"}],"role":"developer"}"#,
            r#"{"content":[{"type":"text","text":"a"}],"role":"system"}"#,
        ),
        (r#"{"r\u006fle":"d\u0065veloper","content":"a"}"#, r#"{"r\u006fle":"system","content":"a"}"#),
        (
            r#"{"role":"user","content":"developer","name":"developer"}"#,
            r#"{"role":"user","content":"developer","name":"developer"}"#,
        ),
        (r#"{"role":"user","role":"developer","content":""}"#, r#"{"role":"user","role":"system","content":""}"#),
    ] {
        for rest in [r#""model":"m","#, r#""n":2,"model":"m","max_tokens":5,"#] {
            let body = |message: &str| format!("{{{rest}\"messages\":[{message},{message}],\"stream\":true}}");
            let (given, wanted) = (body(message), body(want));
            assert_eq!(takes_none.run(&given), takes_it.run(&wanted), "{message}");
            assert!(takes_it.run(&given).contains(message), "{message}");
        }
    }
}

#[test]
fn long_name_of_a_stored_object_is_cut_in_a_refusal() {
    let body =
        format!(r#"{{"messages":[{{"role":"user","content":[{{"{}":{{"file_id":"f"}}}}]}}]}}"#, "x".repeat(9000));
    let refused = case(Shape::Chat).try_run(&body).unwrap_err().0;
    assert!(refused.len() < 200 && refused.ends_with("Tollgate stores no files"), "{refused}");
}

#[test]
fn checked_lists_of_tools_are_bounded() {
    let list = |count: usize| vec![r#"{"type":"function","name":"f"}"#; count].join(",");
    let offered = |count| format!(r#"{{"input":"a","tools":[{}]}}"#, list(count));
    let added = |count| {
        format!(
            r#"{{"input":[{{"role":"user","content":"a"}},{{"type":"additional_tools","tools":[{}]}}]}}"#,
            list(count)
        )
    };
    let choice = |count| {
        format!(
            r#"{{"input":"a","tools":[{{"type":"function","name":"f"}},{{"type":"web_search"}}],"tool_choice":
            {{"type":"allowed_tools","tools":[{}]}}}}"#,
            list(count)
        )
    };
    let target: [&dyn Fn(usize) -> String; 3] = [&offered, &added, &choice];
    for body in target {
        assert!(case(Shape::Responses).try_run(&body(4096)).is_ok(), "{:.200}", body(2));
        let said = case(Shape::Responses).try_run(&body(4097)).unwrap_err().0;
        assert!(said.starts_with("tools: expected at most 4096"), "{said}");
    }
}

#[test]
fn reasoning_is_included_only_where_the_model_reasons_and_takes_it() {
    let run = |effort: bool, drops: &[&str], members: &str| {
        let drop_params = drops.iter().map(|name| (*name).to_owned()).collect();
        let case = takes(Shape::Responses, Capabilities { effort, drop_params, ..Capabilities::default() });
        let out = case.run(&format!("{{\"model\":\"s\",\"input\":\"hi\"{members}}}"));
        out.strip_prefix("{\"model\":\"gpt-x\",\"input\":\"hi\"").unwrap().to_owned()
    };
    assert_eq!(run(false, &[], ""), ",\"store\":false}");
    assert_eq!(run(true, &[], ""), ",\"store\":false,\"include\":[\"reasoning.encrypted_content\"]}");
    assert_eq!(run(true, &["include"], ""), ",\"store\":false}");
    assert_eq!(run(true, &["include"], ",\"include\":[\"x\"]"), ",\"store\":false}");
    assert_eq!(
        run(true, &["store"], ",\"store\":true,\"include\":[]"),
        ",\"include\":[\"reasoning.encrypted_content\"]}"
    );
    assert_eq!(run(false, &[], ",\"include\":[\"x\"]"), ",\"include\":[\"x\"],\"store\":false}");
}

#[test]
fn an_answer_is_unbounded_if_the_bound_is_dropped_under_the_name_that_is_sent() {
    let is_unbounded = |from: ModelEndpoint, to: Shape, newer: bool, dropped: &str| {
        let takes = Capabilities {
            drop_params: vec![dropped.to_owned()],
            max_completion_tokens: newer,
            ..Capabilities::default()
        };
        let target = RequestTarget { model: "m", shape: to, capabilities: &takes, cache_key: None };
        beside(from, b"{}", &Fields::default(), &target).is_unbounded
    };
    let completions = ModelEndpoint::passthrough(Passthrough::Completions);
    for (from, to, newer, sent) in [
        (ModelEndpoint::CHAT, Shape::Chat, true, "max_completion_tokens"),
        (ModelEndpoint::CHAT, Shape::Chat, false, "max_tokens"),
        (ModelEndpoint::CHAT, Shape::Responses, true, "max_output_tokens"),
        (ModelEndpoint::MESSAGES, Shape::Messages, true, "max_tokens"),
        (ModelEndpoint::MESSAGES, Shape::Chat, true, "max_completion_tokens"),
        (ModelEndpoint::RESPONSES, Shape::Chat, false, "max_tokens"),
        (completions, Shape::Chat, true, "max_tokens"),
    ] {
        for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
            assert_eq!(is_unbounded(from, to, newer, name), name == sent, "{from:?} to {to:?}: {name}");
        }
    }
    assert!(!is_unbounded(ModelEndpoint::CHAT, Shape::Messages, true, "max_tokens"), "always written");
}
