//! Every documented error at both endpoints, with ids and headers; and the errors that clients receive for a provider's
//! failures, before and after a stream has begun.

use super::client::{Answer, post, request};
use super::harness::{Harness, ROUTES, Setup, bearer, body, chat, is_chat, models_of, streamed, with};
use serde_json::json;

/// Checks the documented error body in the format of its endpoint.
fn check(answer: &Answer, shape: &str, status: u16, kind: &str) {
    let body = answer.json();
    assert_eq!((answer.status(), body["error"]["type"].as_str()), (status, Some(kind)), "{shape}: {body}");
    assert_eq!(body["error"]["code"], status, "error.code must be the status");
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    assert_eq!(body["error"]["request_id"], answer.id(), "section 7 rule 1");
    assert_eq!(body["type"] == "error", !is_chat(shape), "{body}");
    assert_eq!(answer.head.get("content-type"), Some("application/json"));
}

#[test]
fn an_invalid_body_is_400() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        check(&h.generate(shape, &key, &with(body(shape, "x"), "messages", 5)), shape, 400, "invalid_request_error");
        check(&h.generate(shape, &key, &json!([1])), shape, 400, "invalid_request_error");
    }
    let auth = bearer(&key);
    let fields = [("authorization", auth.as_str())];
    let deep = "[".repeat(200) + &"]".repeat(200);
    let model = r#"{"model":"small","model":"small","messages":[{"role":"user","content":"x"}]}"#;
    for text in ["", "{", "{}x", "\u{feff}{}", model, &deep, "{\"messages\":\"\\ud800\"}"] {
        check(&h.client().ask(&post("/v1/chat/completions", &fields, text)), "chat", 400, "invalid_request_error");
    }
}

#[test]
fn a_wrong_content_type_or_encoding_is_400() {
    let h = Harness::usual();
    let auth = bearer(&h.key());
    for (name, value, status) in [
        ("content-type", "text/plain", 400),
        ("content-type", "application/json; charset=utf-8", 200),
        ("content-encoding", "gzip", 400),
        ("content-encoding", "identity", 200),
    ] {
        let body = chat("hi").to_string();
        let length = body.len().to_string();
        let fields = [("authorization", auth.as_str()), (name, value), ("content-length", &length)];
        let mut bytes = request("POST", "/v1/chat/completions", &fields);
        bytes.extend_from_slice(body.as_bytes());
        let answer = h.client().ask(&bytes);
        assert_eq!(answer.status(), status, "{name}: {value}: {}", answer.text());
    }
}

#[test]
fn a_missing_or_malformed_key_is_401() {
    let h = Harness::usual();
    for shape in ROUTES {
        let answer = h.generate(shape, "tg_live_nothing", &body(shape, "x"));
        check(&answer, shape, 401, "authentication_error");
        assert_eq!(answer.head.get("www-authenticate"), Some("Bearer"));
        let path = if is_chat(shape) { "/v1/chat/completions" } else { "/v1/messages" };
        check(&h.client().ask(&post(path, &[], "{}")), shape, 401, "authentication_error");
    }
}

#[test]
fn a_scope_without_the_model_or_endpoint_is_403() {
    let h = Harness::usual();
    let key = h.key_with(&["--models", "hasty,hasty-large"]);
    for shape in ROUTES {
        check(&h.generate(shape, &key, &body(shape, "x")), shape, 403, "permission_error");
    }
    let only_chat = h.key_with(&["--endpoints", "chat"]);
    check(&h.messages(&only_chat, &body("messages", "x")), "messages", 403, "permission_error");
    let only_messages = h.key_with(&["--endpoints", "messages"]);
    check(&h.chat(&only_messages, &chat("x")), "chat", 403, "permission_error");
}

#[test]
fn an_unknown_model_or_path_is_404() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        check(&h.generate(shape, &key, &with(body(shape, "x"), "model", "no-such")), shape, 404, "not_found_error");
    }
    check(&h.get("/v1/no/such/path", &key), "chat", 404, "not_found_error");
    check(&h.get("/v1/models/no-such", &key), "chat", 404, "not_found_error");
}

/// Every way a provider can fail before its first byte, and the error that the client receives.
/// The only target gets one request a second until the time that its provider states; others get 503.
#[test]
fn pause_of_the_only_provider_is_500_and_then_503() {
    let mut refused = 0;
    for shape in ROUTES {
        for stream in [false, true] {
            let h = Harness::usual();
            let key = h.key();
            let asked = with(body(shape, "hi\n#sim status=429 retry_after=7"), "stream", stream);
            let answers = [(); 2].map(|()| h.generate(shape, &key, &asked));
            check(&answers[0], shape, 500, "upstream_error");
            assert_eq!(answers[0].head.get("retry-after"), Some("7"));
            // A machine that is busy for a second sends the second request, too.
            if answers[1].status() == 503 {
                check(&answers[1], shape, 503, "upstream_error");
                let again: u64 = answers[1].head.get("retry-after").unwrap().parse().unwrap();
                assert!((1..=7).contains(&again), "{again}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_provider_failure_is_500() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        for (how, status, kind) in [
            ("status=500", 500, "upstream_error"),
            ("status=503", 500, "upstream_error"),
            ("status=529", 500, "upstream_error"),
            ("status=401", 500, "upstream_error"),
            ("status=404", 500, "upstream_error"),
            ("status=400 message=too_long", 400, "invalid_request_error"),
            ("status=422", 400, "invalid_request_error"),
            ("html", 500, "upstream_error"),
            ("html status=200", 500, "upstream_error"),
            ("garbage", 500, "upstream_error"),
            ("cut_after=0", 500, "upstream_error"),
            ("reset_after=0", 500, "upstream_error"),
            ("encoding=gzip", 500, "upstream_error"),
        ] {
            for stream in [false, true] {
                let asked = with(body(shape, &format!("hi\n#sim {how}")), "stream", stream);
                let answer = h.generate(shape, &key, &asked);
                if stream && how == "garbage" && answer.status() == 200 {
                    // The first event was valid; the error is in the stream.
                    assert!(answer.events().last().unwrap().contains(kind), "{shape}: {}", answer.text());
                    continue;
                }
                check(&answer, shape, status, kind);
                let permanent = matches!(how, "status=401" | "status=404");
                assert_eq!(answer.head.get("x-should-retry"), permanent.then_some("false"), "{how}");
                let again = answer.head.get("retry-after");
                match how {
                    // The provider sends no `retry-after`: the cooldown is 5 s, and grows with each failure.
                    "status=503" | "status=529" => {
                        assert!(again.is_some_and(|wait| (1..=30).contains(&wait.parse().unwrap())), "{again:?}");
                    }
                    _ => assert_eq!(again, None, "{how}"),
                }
                assert_eq!(h.log_of(&answer.id())["status"], status, "{how}");
            }
        }
    }
    let gone = h.chat(&key, &with(chat("x"), "model", "gone"));
    check(&gone, "chat", 500, "upstream_error");
}

#[test]
fn a_providers_message_is_passed_on_masked() {
    let h = Harness::usual();
    let key = h.key();
    let how = "hi\n#sim status=400 message=up-small_dislikes_sk-abcdefghijkl_and_upstream-credential-4711";
    let answer = h.chat(&key, &chat(how));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("small") && message.contains("dislikes"), "{message}");
    for secret in ["up-small", "sk-abc", "4711"] {
        assert!(!message.contains(secret), "{message}");
    }
}

#[test]
fn a_model_that_exceeds_a_timeout_is_504() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        let model = models_of(shape).1;
        for (stream, setting) in [(false, "request_timeout"), (true, "_timeout")] {
            let asked = with(with(body(shape, "hi\n#sim stall_head"), "model", model), "stream", stream);
            let answer = h.generate(shape, &key, &asked);
            check(&answer, shape, 504, "timeout_error");
            assert!(answer.text().contains(setting), "the message names the deadline: {}", answer.text());
            assert_eq!(h.log_of(&answer.id())["status"], 504);
        }
    }
    assert_eq!(h.used(&key), 0, "a failure before the first token must cost nothing");
}

/// After the first byte a failure becomes an error event, and the stream does not end as if it were complete.
#[test]
fn mid_stream_failure_is_an_error_event() {
    // The timeout is short only in mid-stream, since a busy machine can be slow at the beginning.
    let impatient = |id: &str, provider: &str| {
        format!(
            "[[models]]\nid = \"impatient-{id}\"\ncontext = \"256K\"\nidle_timeout = \"400ms\"\n\
             targets = [{{ provider = \"{provider}\", model = \"up-{id}\" }}]\n"
        )
    };
    let more = impatient("small", "sim-chat") + &impatient("large", "sim-messages");
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    for shape in ROUTES {
        let usual = models_of(shape).0;
        let impatient = format!("impatient-{usual}");
        for (how, kind, code) in [
            ("error_after=3 message=out_of_luck", "upstream_error", 500),
            ("cut_after=3", "upstream_error", 500),
            ("reset_after=3", "upstream_error", 500),
            ("stall_after=3", "timeout_error", 504),
            ("stall_after=3 ping=50", "timeout_error", 504),
            ("no_finish no_done", "upstream_error", 500),
        ] {
            let model = if how.starts_with("stall_after") { &impatient } else { usual };
            let asked = streamed(with(body(shape, &format!("hi\n#sim tokens=6 pace=100 {how}")), "model", model));
            let answer = h.generate(shape, &key, &asked);
            assert_eq!(answer.status(), 200, "{shape} {how}");
            let text = answer.text();
            assert!(!text.contains("[DONE]") && !text.contains("message_stop"), "{shape} {how}: {text}");
            let error: serde_json::Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
            let error = (&error["error"]["type"], &error["error"]["code"], &error["error"]["request_id"]);
            assert_eq!(error, (&json!(kind), &json!(code), &json!(answer.id())), "{shape} {how}: {text}");
            assert_eq!(text.contains("event: error\n"), !is_chat(shape), "{shape} {how}");
            let line = h.log_of(&answer.id());
            assert_ne!(line["source"], "provider", "{shape} {how}: {line}");
            assert!(line["output"].as_u64().unwrap() > 0, "{shape} {how}: {line}");
        }
    }
}

#[test]
fn an_error_as_the_first_event_keeps_its_real_status() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        let answer = h.generate(shape, &key, &streamed(body(shape, "hi\n#sim error_after=0 message=no")));
        check(&answer, shape, 500, "upstream_error");
    }
}
