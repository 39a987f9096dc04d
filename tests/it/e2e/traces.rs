//! Traces: headers to the provider and spans to a collector, for requests that succeed, fail over, are translated,
//! rejected or abandoned. A collector that is slow or gone costs spans and nothing else.

use super::client::{Answer, get, post, request};
use super::collector::{Collector, Span, answer};
use super::harness::{Harness, Setup, bearer, chat, gauge, streamed, with};
use super::process::{Folder, wait_for};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A model whose first target is not running, and whose second target has the other API format.
const MODELS: &str = "[[models]]\nid = \"both\"\ncontext = \"256K\"\naffinity = \"off\"\ntargets = [\n\
     { provider = \"nobody\", model = \"up-none\", priority = 1 },\n\
     { provider = \"sim-messages\", model = \"up-both\", priority = 2 },\n]\n\
     [[models]]\nid = \"fim\"\ncontext = \"8K\"\nserves = [\"completions\"]\n\
     targets = [{ provider = \"sim-chat\", model = \"up-fim\" }]\n";

/// Starts a gateway that sends its spans to `otlp`.
fn telemetry(otlp: impl std::fmt::Display, more: &str) -> Harness {
    let more = format!("{MODELS}[telemetry]\notlp = \"http://{otlp}\"\n{more}");
    Harness::start(&Setup { more, ..Setup::default() })
}

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

/// Sends a request with trace headers of the caller.
fn traced(h: &Harness, key: &str, flags: &str, body: &Value) -> Answer {
    let (bearer, parent) = (bearer(key), traceparent(flags));
    let fields = [("authorization", &*bearer), ("traceparent", &parent), ("tracestate", "a=1,b=2")];
    h.client().ask(&post("/v1/chat/completions", &fields, &body.to_string()))
}

/// Waits until a trace has `count` spans, and returns them.
fn spans(collector: &Collector, trace: &str, count: usize) -> Vec<Span> {
    let spans = wait_for("the spans", || Some(collector.trace(trace)).filter(|spans| spans.len() >= count));
    assert_eq!(spans.len(), count, "{spans:#?}");
    spans
}

fn trace_of(answer: &Answer) -> String {
    answer.id().replace("req_", "")
}

#[test]
fn failover_to_another_format_has_complete_spans() {
    let collector = Collector::start();
    let h = telemetry(collector.at, "headers = { x-tenant = \"ops\", authorization = { env = \"SIM_KEY\" } }\n");
    let key = h.key();
    let asked = with(streamed(chat("#sim tokens=20 pace=100 delay=50\nhello there")), "model", "both");
    let asked = with(asked, "stream_options", serde_json::json!({ "include_usage": true }));
    let got = traced(&h, &key, "01", &asked);
    assert_eq!(got.status(), 200, "{}", got.text());
    let spans = spans(&collector, TRACE, 3);
    let [own, first, second] = &spans[..] else { panic!("{spans:#?}") };
    // Parents of the spans, and the headers that the provider received.
    assert_eq!((&*own.parent, &*first.parent, &*second.parent), (SPAN, &*own.id, &*own.id));
    assert_eq!([own.kind, first.kind, second.kind], [2, 3, 3]);
    assert_eq!([own.flags, first.flags, second.flags], [0x301, 0x101, 0x101]);
    assert!(spans.iter().all(|span| span.state == "a=1,b=2"));
    let (head, _) = h.last();
    assert!(head.contains(&format!("traceparent: 00-{TRACE}-{}-01\n", second.id)), "{head}");
    assert!(head.contains("tracestate: a=1,b=2\n"), "{head}");
    // Times of the spans.
    assert!(own.start <= first.start && first.end <= second.start && second.end <= own.end, "{spans:#?}");
    assert!(second.end - second.start >= 200_000_000, "{second:#?}");
    let [(event, at, of)] = &own.events[..] else { panic!("{own:#?}") };
    assert_eq!(event, "gen_ai.server.time_to_first_token");
    let took = of[event].as_f64().unwrap();
    assert!((own.start + 50_000_000..own.end).contains(at), "{own:#?}");
    assert!((took - (at - own.start) as f64 / 1e9).abs() < 1e-6, "{took} {own:#?}");
    assert!(second.attributes["gen_ai.response.time_to_first_chunk"].as_f64().unwrap() < took);
    // Names and attributes of the spans.
    assert_eq!((&*own.name, &*first.name, &*second.name), ("chat both", "chat up-none", "chat up-both"));
    for (name, value) in [
        ("tollgate.request.id", &*got.id()),
        ("http.request.method", "POST"),
        ("url.path", "/v1/chat/completions"),
        ("url.scheme", "http"),
        ("client.address", "127.0.0.1"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "both"),
        ("gen_ai.response.model", "both"),
        ("gen_ai.response.finish_reasons", "stop"),
        ("error.type", ""),
    ] {
        assert_eq!(own.text(name), value, "{name} of {own:#?}");
    }
    let usage: Value = serde_json::from_str(&got.events()[got.events().len() - 2]).unwrap();
    assert_eq!(own.number("gen_ai.usage.input_tokens"), usage["usage"]["prompt_tokens"].as_u64());
    assert_eq!(own.number("gen_ai.usage.output_tokens"), Some(20));
    assert_eq!((own.number("http.response.status_code"), own.status), (Some(200), 0));
    for span in [first, second] {
        assert!(
            !span.attributes.keys().any(|name| name.starts_with("gen_ai.usage")),
            "usage must be reported once: {span:#?}"
        );
        assert_eq!((span.text("gen_ai.operation.name"), span.text("server.address")), ("chat", "127.0.0.1"));
    }
    assert_eq!((first.text("gen_ai.provider.name"), first.text("error.type")), ("nobody", "connect"));
    assert_eq!((first.status, first.number("http.response.status_code")), (2, None));
    assert_eq!((second.text("gen_ai.provider.name"), second.text("error.type")), ("sim-messages", ""));
    assert_eq!(second.number("server.port"), Some(h.upstream.port().into()));
    assert_eq!((second.status, second.number("http.response.status_code")), (0, Some(200)));
    assert_eq!(
        (first.number("http.request.resend_count"), second.number("http.request.resend_count")),
        (None, Some(1))
    );
    // The usage record, the log, and the request to the collector.
    h.ledger(1);
    let exported = h.done(&["ledger", "export"]);
    let row: Value = serde_json::from_str(exported.lines().last().unwrap()).unwrap();
    assert_eq!((row["trace_id"].as_str(), row["span_id"].as_str()), (Some(TRACE), Some(&*own.id)), "{row}");
    let line = h.log_of(&got.id());
    assert_eq!((line["trace_id"].as_str(), line["span_id"].as_str()), (Some(TRACE), Some(&*own.id)));
    let (head, _) = &collector.asked()[0];
    for line in ["post /v1/traces http/1.1\r\n", "content-type: application/json\r\n", "x-tenant: ops\r\n"] {
        assert!(head.contains(line), "{head}");
    }
    assert!(head.contains(&format!("authorization: {}\r\n", super::harness::CREDENTIAL.1)), "{head}");
    let sent: String = collector.asked().iter().map(|(_, body)| body.to_string()).collect();
    assert!(!sent.contains("hello") && !sent.contains(&key) && !sent.contains("Bearer"), "{sent}");
}

#[test]
fn request_without_trace_headers_starts_a_trace() {
    let collector = Collector::start();
    let h = telemetry(collector.at, "");
    let key = h.key();
    let got = h.chat(&key, &chat("hello"));
    let spans = spans(&collector, &trace_of(&got), 2);
    assert_eq!((&*spans[0].parent, &spans[1].parent, spans[0].flags), ("", &spans[0].id, 0x101));
    assert!(h.last().0.contains(&format!("traceparent: 00-{}-{}-01\n", trace_of(&got), spans[1].id)));
    assert!(!h.last().0.contains("tracestate"), "{}", h.last().0);
    assert_eq!((&*spans[0].name, &*spans[1].name, spans[0].events.len()), ("chat small", "chat up-small", 0));
    assert_eq!(spans[0].text("gen_ai.response.finish_reasons"), "stop");
    let line = h.log_of(&got.id());
    assert_eq!(line["trace_id"].as_str(), Some(&*trace_of(&got)));
    let two = serde_json::json!({"model": "fim", "prompt": "hello", "n": 2});
    for body in [two.clone(), streamed(two)] {
        let got = h.client().ask(&post("/v1/completions", &[("authorization", &bearer(&key))], &body.to_string()));
        let spans = self::spans(&collector, &trace_of(&got), 2);
        assert_eq!(spans[0].text("gen_ai.response.finish_reasons"), "stop,stop");
    }
    let input = serde_json::json!({"model": "small", "input": "hello"});
    for body in [input.clone(), streamed(input)] {
        let got = h.client().ask(&post("/v1/responses", &[("authorization", &bearer(&key))], &body.to_string()));
        assert_eq!(got.status(), 200, "{}", got.text());
        let spans = self::spans(&collector, &trace_of(&got), 2);
        assert_eq!(spans[0].text("gen_ai.response.finish_reasons"), "completed");
    }
    // A malformed traceparent is ignored, together with its tracestate.
    let bad = format!("00-{}-{SPAN}-01", TRACE.to_uppercase());
    let fields = [("authorization", &*bearer(&key)), ("traceparent", &bad), ("tracestate", "a=1")];
    let got = h.client().ask(&post("/v1/chat/completions", &fields, &chat("hello").to_string()));
    let spans = self::spans(&collector, &trace_of(&got), 2);
    assert_eq!((&*spans[0].parent, &*spans[0].state), ("", ""));
    assert!(!h.last().0.contains("tracestate"), "{}", h.last().0);
}

#[test]
fn spans_report_rejection_failure_and_disconnect() {
    let collector = Collector::start();
    let h = telemetry(collector.at, "");
    let (key, spent) = (h.key(), h.key_with(&["--plan", "two"]));
    let (small, gone) = (chat("hello"), with(chat("hello"), "model", "gone"));
    (0..2).for_each(|_| assert_eq!(h.chat(&spent, &small).status(), 200));
    let unknown = with(chat("hello"), "model", "unheard-of");
    let broken = chat("#sim status=400 message=no\nhello");
    for (got, name, status, error, failed) in [
        (h.chat("tg_live_wrong", &small), "chat", 401, "authentication_error", 0),
        (h.chat(&spent, &small), "chat", 429, "rate_limit_error", 0),
        (h.chat(&key, &unknown), "chat", 404, "not_found_error", 0),
        (h.chat(&key, &broken), "chat small", 400, "invalid_request_error", 0),
        (h.chat(&key, &gone), "chat gone", 500, "upstream_error", 2),
        (h.get("/v1/models", &key), "GET /v1/models", 200, "", 0),
        (h.get("/v1/models/small", &key), "GET /v1/models/{model}", 200, "", 0),
        (h.get("/nothing", &key), "GET", 404, "not_found_error", 0),
        (h.client().ask(b"nonsense\r\n\r\n"), "HTTP", 400, "invalid_request_error", 0),
    ] {
        let attempts = match status {
            400 if name != "HTTP" => 1,
            500 => 1,
            _ => 0,
        };
        let spans = spans(&collector, &trace_of(&got), 1 + attempts);
        let own = &spans[0];
        assert_eq!((&*own.name, own.number("http.response.status_code")), (name, Some(status)));
        assert_eq!((own.text("error.type"), own.status), (error, failed), "{own:#?}");
        match status {
            404 if name == "chat" => assert_eq!(own.text("gen_ai.request.model"), "unheard-of"),
            404 => assert_eq!(own.text("url.path"), "/nothing"),
            400 if attempts == 1 => {
                assert_eq!((spans[1].text("error.type"), spans[1].status), ("400", 2));
                assert_eq!(spans[1].number("http.response.status_code"), Some(400));
            }
            500 => assert_eq!(spans[1].text("error.type"), "connect"),
            _ => {}
        }
    }
    // A client that disconnects in mid-stream.
    let mut client = h.client();
    let slow = streamed(chat("#sim tokens=1000 pace=20\nhello"));
    let fields = [("authorization", &*bearer(&key)), ("traceparent", &traceparent("01"))];
    client.send(&post("/v1/chat/completions", &fields, &slow.to_string()));
    client.head().unwrap();
    client.chunk().unwrap();
    drop(client);
    let spans = spans(&collector, TRACE, 2);
    assert_eq!((spans[0].text("error.type"), spans[0].number("http.response.status_code")), ("client_left", Some(499)));
    assert_eq!((spans[1].text("error.type"), spans[1].number("http.response.status_code")), ("abandoned", Some(200)));
    assert!(spans[0].number("gen_ai.usage.output_tokens").unwrap() > 0 && spans[0].events.len() == 1);
}

#[test]
fn sampled_flag_of_the_caller_overrides_the_sample_rate() {
    let collector = Collector::start();
    let h = telemetry(collector.at, "sample = 0\n");
    let key = h.key();
    let unsampled = h.chat(&key, &chat("hello"));
    assert!(h.last().0.contains(&format!("traceparent: 00-{}-", trace_of(&unsampled))));
    assert!(h.last().0.lines().any(|line| line.starts_with("traceparent: ") && line.ends_with("-00")));
    assert_eq!(h.log_of(&unsampled.id())["trace_id"].as_str(), Some(&*trace_of(&unsampled)));
    assert_eq!(traced(&h, &key, "00", &chat("hello")).status(), 200);
    assert!(h.last().0.contains(&format!("traceparent: 00-{TRACE}-")) && h.last().0.contains("tracestate: a=1,b=2"));
    assert_eq!(traced(&h, &key, "01", &chat("hello")).status(), 200);
    assert_eq!(spans(&collector, TRACE, 2).len(), 2);
    assert_eq!(collector.spans().len(), 2, "the others must not be recorded");
}

#[test]
fn without_telemetry_trace_headers_are_only_forwarded() {
    let h = Harness::usual();
    let key = h.key();
    let got = traced(&h, &key, "01", &chat("hello"));
    let told = h.last().0;
    let line = told.lines().find_map(|line| line.strip_prefix(&format!("traceparent: 00-{TRACE}-"))).unwrap();
    assert!(line.ends_with("-01") && !line.starts_with(SPAN) && told.contains("tracestate: a=1,b=2\n"), "{told}");
    assert_eq!(h.log_of(&got.id())["trace_id"].as_str(), Some(TRACE));
    let got = h.chat(&key, &chat("hello"));
    assert!(!h.last().0.contains("traceparent"), "{}", h.last().0);
    assert_eq!(h.log_of(&got.id())["trace_id"], Value::Null);
    assert_eq!(gauge(&h, "tollgate_spans_dropped_total"), 0);
}

#[test]
fn dead_collector_costs_only_counted_spans() {
    let dead = format!("127.0.0.1:{}", super::process::free_port());
    let mut h = telemetry(&dead, "");
    let key = h.key();
    (0..20).for_each(|_| assert_eq!(h.chat(&key, &chat("hello")).status(), 200));
    wait_for("the drops", || (gauge(&h, "tollgate_spans_dropped_total") >= 40).then_some(()));
    let told = || h.log().into_iter().filter(|line| line["event"] == "telemetry").collect::<Vec<Value>>();
    // The log is written by a separate thread.
    let told = wait_for("a line of the log", || Some(told()).filter(|told| !told.is_empty()));
    assert_eq!(told.len(), 1, "it must be reported once: {told:?}");
    assert_eq!((told[0]["outcome"].as_str(), told[0]["error"].as_str()), (Some("failed"), Some("connection refused")));
    assert_eq!(h.chat(&key, &chat("hello")).status(), 200);
    let began = Instant::now();
    assert!(h.gateway.stop("TERM").success());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn silent_collector_delays_only_shutdown_by_two_seconds() {
    let collector = Collector::that(Arc::new(|_, _| None));
    let mut h = telemetry(collector.at, "");
    let key = h.key();
    assert_eq!(h.chat(&key, &chat("hello")).status(), 200);
    wait_for("the first batch", || (!collector.asked().is_empty()).then_some(()));
    let began = Instant::now();
    (0..50).for_each(|_| assert_eq!(h.chat(&key, &chat("hello")).status(), 200));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let began = Instant::now();
    assert!(h.gateway.stop("TERM").success());
    let took = began.elapsed();
    let left = h.log().last().unwrap()["spans_left"].as_u64();
    assert!(left >= Some(2 * 51), "{left:?}");
    assert!((Duration::from_millis(1500)..Duration::from_secs(4)).contains(&took), "{took:?}");
}

#[test]
fn spans_beyond_the_queue_bound_are_dropped_and_counted() {
    const ROOT: &str = "GET / HTTP/1.1\r\nhost: gateway.test\r\n\r\n";
    let collector = Collector::that(Arc::new(|_, _| None));
    let h = telemetry(collector.at, "");
    let mut client = h.client();
    client.send(ROOT.as_bytes());
    assert_eq!(client.answer().unwrap().status(), 200);
    wait_for("the first batch", || (!collector.asked().is_empty()).then_some(()));
    let before = h.gateway.resident();
    for _ in 0..400 {
        client.send(ROOT.repeat(50).as_bytes());
        (0..50).for_each(|_| assert_eq!(client.answer().unwrap().status(), 200));
    }
    assert!(h.gateway.resident() < before + (16 << 20), "{before} {}", h.gateway.resident());
    // By then one batch was given up, which had one span. The others were dropped because the queue was full.
    let dropped = wait_for("the drops", || Some(gauge(&h, "tollgate_spans_dropped_total")).filter(|count| *count > 1));
    assert!(dropped > 1 + 512, "{dropped}");
    assert!(collector.asked().len() <= 2);
}

#[test]
fn pending_spans_are_sent_at_shutdown() {
    let collector = Collector::start();
    let mut h = telemetry(collector.at, "");
    let key = h.key();
    let answers: Vec<Answer> = (0..600).map(|_| h.chat(&key, &chat("hello"))).collect();
    assert!(h.gateway.stop("TERM").success());
    let all = collector.spans();
    for answer in &answers {
        assert_eq!(all.iter().filter(|span| span.trace == trace_of(answer)).count(), 2);
    }
    assert_eq!(h.log().last().unwrap()["spans_left"], 0);
    assert!(
        collector
            .asked()
            .iter()
            .all(|(_, body)| { body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len() <= 512 })
    );
}

#[test]
fn collector_retry_partial_rejection_and_redirect() {
    let elsewhere = Collector::start();
    let moved = format!("location: http://{}/v1/traces\r\n", elsewhere.at);
    let says = move |number: usize, _: &Value| match number {
        0 => answer("503 Service Unavailable", "retry-after: 1\r\n", ""),
        1 => answer("200 OK", "", "{\"partialSuccess\":{\"rejectedSpans\":\"2\",\"errorMessage\":\"too old\"}}"),
        2 => answer("307 Temporary Redirect", &moved, ""),
        3 => answer("400 Bad Request", "", "{}"),
        _ => answer("200 OK", "", ""),
    };
    let collector = Collector::that(Arc::new(says));
    let h = telemetry(collector.at, "");
    let dropped = |count| wait_for("the drops", || (gauge(&h, "tollgate_spans_dropped_total") == count).then_some(()));
    // Metrics are read from the admin listener, which creates no spans.
    let ask = || assert_eq!(get(h.at, "/").unwrap().status(), 200);
    ask();
    wait_for("the second try", || (collector.asked().len() == 2).then_some(()));
    let asked = collector.asked();
    assert_eq!(asked[0].1, asked[1].1, "the retry must be identical");
    // The collector claims to have rejected two spans, although it received one.
    dropped(1);
    ask();
    dropped(2);
    ask();
    dropped(3);
    ask();
    wait_for("the last batch", || (collector.asked().len() == 5).then_some(()));
    let outcomes = || -> Vec<String> {
        let log = h.log();
        let told = log.iter().filter(|line| line["event"] == "telemetry");
        told.map(|line| format!("{} {}", line["outcome"], line["error"])).collect()
    };
    wait_for("the recovery", || (outcomes() == ["\"failed\" \"status 307\"", "\"recovered\" null"]).then_some(()));
    assert_eq!(gauge(&h, "tollgate_spans_dropped_total"), 3);
    assert!(elsewhere.asked().is_empty());
}

#[test]
fn reload_changes_and_removes_the_collector() {
    let (one, other) = (Collector::start(), Collector::start());
    let h = telemetry(one.at, "");
    let path = h.folder.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let root = |h: &Harness| h.client().ask(&request("GET", "/", &[("connection", "close")]));
    let got = root(&h);
    spans(&one, &trace_of(&got), 1);
    let reload = |text: &str, count: u64| {
        std::fs::write(&path, text).unwrap();
        h.gateway.signal("HUP");
        wait_for("the reload", || (gauge(&h, "tollgate_reloads_total") == count).then_some(()));
    };
    // Spans that ended before the reload belong to the old collector, even if the new one exists before they are sent.
    let before = root(&h);
    reload(&text.replace(&one.at.to_string(), &other.at.to_string()), 1);
    let got = root(&h);
    spans(&other, &trace_of(&got), 1);
    spans(&one, &trace_of(&before), 1);
    assert!(one.trace(&trace_of(&got)).is_empty());
    reload(text.split("[telemetry]").next().unwrap(), 2);
    let got = root(&h);
    assert_eq!(h.log_of(&got.id())["trace_id"], Value::Null);
    reload(&text, 3);
    let got = root(&h);
    spans(&one, &trace_of(&got), 1);
    assert_eq!(other.spans().len(), 1);
}

#[test]
fn tls_collector_receives_spans_if_trusted() {
    let (collector, pem) = Collector::secured();
    let folder = Folder::new();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).unwrap();
    let trusted = format!("ca_file = \"{}\"\n", file.display());
    for (ca_file, arrives) in [(&*trusted, true), ("", false)] {
        let otlp = format!("otlp = \"https://localhost:{}\"", collector.at.port());
        let more = format!("{MODELS}[telemetry]\n{otlp}\n{ca_file}");
        let h = Harness::start(&Setup { more, ..Setup::default() });
        let got = h.client().ask(&request("GET", "/", &[("connection", "close")]));
        if arrives {
            spans(&collector, &trace_of(&got), 1);
        } else {
            wait_for("the drop", || (gauge(&h, "tollgate_spans_dropped_total") == 1).then_some(()));
            let is_logged = |line: &Value| line["error"] == "the TLS handshake failed";
            wait_for("its line in the log", || h.log().iter().any(is_logged).then_some(()));
        }
    }
}
