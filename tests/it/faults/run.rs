//! Plays the table: every fault, for complete and streamed answers, for clients of both API formats, with one target
//! and with two. After each fault the next request works and all resources are free.

use super::answers::{Shape, TOKENS};
use super::client::{Answer, Client, post};
use super::play::text_of;
use super::table::{FAULTS, Out, Over, Row, WAITS};
use super::world::World;
use serde_json::Value;
use std::fmt::Write;
use std::time::Duration;

/// Timeout until all resources are free; the gateway waits some seconds for the end of a body.
const BACK: Duration = Duration::from_secs(60);
/// A client waits at most ten seconds for the end of a pause.
const PAUSE_TRIALS: u32 = 100;

/// API format of the provider: that of the client, or the other one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Route {
    Same,
    Cross,
}

/// Every row is played on each of these routes.
const ROUTES: &[Route] = &[Route::Same, Route::Cross];

/// A cell of the table.
#[derive(Copy, Clone)]
struct Case {
    row: &'static Row,
    place: &'static str,
    client: Shape,
    route: Route,
    stream: bool,
    two: bool,
}

/// Result of a cell.
struct Played {
    case: Case,
    answer: Answer,
}

impl Case {
    fn all(rows: &'static [Row]) -> Vec<Case> {
        let mut cases = Vec::new();
        for row in rows {
            let secure = if row.place == "usual" { "usual-tls" } else { row.place };
            let places: &[&'static str] = match row.over {
                Over::Both => &[row.place, secure],
                Over::TlsAlone => &[secure],
                Over::Plain => &[row.place],
            };
            for (place, client, route) in product(places) {
                // The routes differ only above the transport.
                if route == Route::Cross && place == "usual-tls" && row.over == Over::Both {
                    continue;
                }
                for (stream, two) in [(false, false), (false, true), (true, false), (true, true)] {
                    let case = Case { row, place, client, route, stream, two };
                    if case.out() != Out::Skip {
                        cases.push(case);
                    }
                }
            }
        }
        cases
    }

    /// Returns the expectation of the row.
    fn out(&self) -> Out {
        if self.stream { self.row.stream } else { self.row.whole }
    }

    /// Returns the API format of the provider.
    fn spoken(&self) -> Shape {
        match (self.route, self.client) {
            (Route::Same, shape) => shape,
            (Route::Cross, Shape::Chat) => Shape::Messages,
            (Route::Cross, Shape::Messages) => Shape::Chat,
        }
    }

    fn model(&self) -> String {
        let targets = if self.two { "two" } else { "one" };
        format!("{}-{}-{targets}", self.place, self.spoken().name())
    }

    /// Returns true if the answer of the second target counts.
    fn fails_over(&self) -> bool {
        self.two && matches!(self.out(), Out::Fails { next: true, .. })
    }

    fn name(&self) -> String {
        let kind = if self.stream { "stream" } else { "whole" };
        format!(
            "{:<18} {:<10} {:<8} {kind:<6} {}",
            self.row.script,
            self.place,
            self.client.name(),
            1 + u8::from(self.two)
        )
    }

    fn request(&self, script: &str, key: &str) -> Vec<u8> {
        let (model, stream, padding) = (self.model(), self.stream, "x".repeat(self.row.padding));
        let kind = if stream { "stream" } else { "whole" };
        let body = format!(
            "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":99,\
             \"messages\":[{{\"role\":\"user\",\"content\":\"#fault {script}/{kind} {padding}\"}}]}}"
        );
        post(self.client.path(), &[("authorization", &format!("Bearer {key}"))], &body)
    }
}

fn product<'a>(places: &'a [&'static str]) -> impl Iterator<Item = (&'static str, Shape, Route)> + 'a {
    let shapes = move |place| Shape::ALL.into_iter().map(move |shape| (place, shape));
    let routes = |(place, shape)| ROUTES.iter().map(move |route| (place, shape, *route));
    places.iter().copied().flat_map(shapes).flat_map(routes)
}

/// Returns the text and the error event, if any, of an answer.
fn read(case: &Case, answer: &Answer) -> (String, Option<Value>) {
    if !case.stream {
        let json = answer.json();
        let text = match case.client {
            Shape::Chat => &json["choices"][0]["message"]["content"],
            Shape::Messages => &json["content"][0]["text"],
        };
        return (text.as_str().unwrap_or_default().to_owned(), None);
    }
    let (mut text, mut error) = (String::new(), None);
    for event in answer.events().iter().filter(|event| *event != "[DONE]") {
        let json: Value = serde_json::from_str(event).unwrap_or_else(|e| panic!("{e}: {event}"));
        assert!(error.is_none(), "events after an error: {event}");
        let delta = match case.client {
            Shape::Chat => &json["choices"][0]["delta"]["content"],
            Shape::Messages => &json["delta"]["text"],
        };
        text += delta.as_str().unwrap_or_default();
        if json.get("error").is_some() {
            error = Some(json["error"].clone());
        }
    }
    (text, error)
}

fn type_of(status: u16) -> &'static str {
    match status {
        400 => "invalid_request_error",
        504 => "timeout_error",
        _ => "upstream_error",
    }
}

fn check_error(error: &Value, status: u16, says: &str, answer: &Answer) {
    assert_eq!(error["type"], type_of(status), "{error}");
    assert_eq!(error["code"], status, "{error}");
    assert_eq!(error["request_id"], answer.id());
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(says), "{message:?} does not say {says:?}");
    assert!(!message.contains("sk-secret"), "{message:?}");
}

/// Compares the client's answer with the table.
fn check_answer(case: &Case, answer: &Answer) {
    let out = if case.fails_over() { Out::Served { kept: false } } else { case.out() };
    let ended = |answer: &Answer| match (case.stream, case.client) {
        (false, _) => true,
        (true, Shape::Chat) => answer.text().ends_with("data: [DONE]\n\n"),
        (true, Shape::Messages) => answer.text().contains("event: message_stop\n"),
    };
    match out {
        Out::Served { .. } => {
            assert_eq!(answer.status(), 200, "{}", String::from_utf8_lossy(&answer.body[..answer.body.len().min(500)]));
            let (text, error) = read(case, answer);
            let script = if case.fails_over() { "good" } else { case.row.script };
            assert!(text == text_of(script), "{} bytes of other text", text.len());
            assert!(error.is_none() && ended(answer), "{error:?}");
        }
        Out::Fails { status, says, .. } => {
            assert_eq!(answer.status(), status, "{}", answer.text());
            check_error(&answer.json()["error"], status, says, answer);
            if case.row.script == "status_429" || case.row.script == "status_503" {
                assert_eq!(answer.head.get("retry-after"), Some("1"));
            }
            if says == "does not accept" {
                assert_eq!(answer.head.get("x-should-retry"), Some("false"));
            }
        }
        Out::Breaks { status, says } => {
            assert_eq!(answer.status(), 200);
            let (text, error) = read(case, answer);
            assert!(text == "one two " && !ended(answer), "{text:?}");
            check_error(&error.expect("an error event"), status, says, answer);
        }
        Out::Skip => unreachable!(),
    }
}

/// Compares the usage record with the table.
fn check_row(world: &World, played: &Played) {
    check_row_of(world, played, false);
}

/// Compares the usage record with the table. `sent_again`: the request was sent twice, since a kept connection was
/// closed.
fn check_row_of(world: &World, played: &Played, sent_again: bool) {
    let (case, answer) = (&played.case, &played.answer);
    let row = world.row(&answer.id());
    let second = case.fails_over();
    let place = if second { "good" } else { case.place };
    assert_eq!(row["target"], format!("{place}-{}/up", case.spoken().name()), "{}", case.name());
    // Sending the request again on a new connection counts as an attempt.
    assert_eq!(row["attempts"], 1 + u64::from(second) + u64::from(sent_again), "{}", case.name());
    let status = match case.out() {
        Out::Breaks { status, .. } => status,
        _ => answer.status(),
    };
    assert_eq!(row["status"], status, "{}", case.name());
    assert_eq!(row["stream"], u64::from(case.stream), "{}", case.name());
    let charged = (row["in"].as_u64().unwrap(), row["out"].as_u64().unwrap(), row["source"].as_str().unwrap());
    match case.out() {
        Out::Breaks { .. } => {
            assert!(charged.0 > 0 && charged.1 > 0, "{} {row}", case.name());
            assert!(matches!(charged.2, "partial" | "estimated"), "{} {row}", case.name());
        }
        out => {
            // Rejected answers are charged, too: as reported, or by an estimate if they are too large.
            let rejected = match case.row.script {
                _ if case.stream => (0, 0, "none"),
                // The second has arrived, except for the end of its framing.
                "failed" | "tail_missing" => (TOKENS.0, TOKENS.1, "provider"),
                "too_large" => (12, 99, "estimated"),
                _ => (0, 0, "none"),
            };
            let expected = match (out, rejected) {
                (Out::Fails { .. }, _) if !second => rejected,
                (_, (input, output, source)) if second => {
                    let source = if source == "estimated" { "partial" } else { "provider" };
                    (TOKENS.0 + input, TOKENS.1 + output, source)
                }
                _ => (TOKENS.0, TOKENS.1, "provider"),
            };
            assert_eq!(charged, expected, "{}", case.name());
        }
    }
}

/// Plays one case on a client's connection, again while the provider pauses after an earlier 429 or 503: an only target
/// gets one request a second until the time that its provider has stated.
fn play(world: &World, client: &mut Client, case: Case) -> Played {
    let mut ask = || client.ask(&case.request(case.row.script, &world.key));
    let pauses = |answer: &Answer| answer.status() == 503 && answer.text().contains("accepts no more requests");
    let mut answer = ask();
    for _ in 0..PAUSE_TRIALS {
        if pauses(&answer) {
            std::thread::sleep(Duration::from_millis(100));
            answer = ask();
        }
    }
    check_answer(&case, &answer);
    Played { case, answer }
}

fn probe(world: &World, client: &mut Client, case: &Case) {
    // A provider address that is itself a fault has no healthy answer, so the usual provider is used.
    let place = if matches!(case.place, "usual-tls" | "roomy" | "narrow") { case.place } else { "usual" };
    let row = FAULTS.iter().find(|row| row.script == "good_close").unwrap();
    let healthy = Case { row, place, two: false, ..*case };
    play(world, client, healthy);
}

/// Checks that connections, buffers and reservations are as before the case, and that the provider's connection was
/// kept or closed as expected.
fn check_rest(world: &World, case: &Case, idle_before: u64) {
    let rest = world.at_rest(BACK);
    assert_eq!(rest.clients, 1, "{rest:?}");
    let kept = match case.out() {
        Out::Served { kept } | Out::Fails { kept, .. } => kept,
        Out::Breaks { .. } | Out::Skip => false,
    };
    assert_eq!(rest.idle, idle_before + u64::from(kept), "connections kept after {}", case.name());
}

/// Appends a readable line for this result.
fn line(text: &mut String, played: &Played) {
    let (case, answer) = (&played.case, &played.answer);
    let what = match case.out() {
        _ if case.fails_over() => "served by the second target".to_owned(),
        Out::Served { kept } => format!("served, connection {}", if kept { "kept" } else { "closed" }),
        Out::Fails { status, says, .. } => format!("{status} {} ({says})", type_of(status)),
        Out::Breaks { status, says } => format!("in-stream {} {status} ({says})", type_of(status)),
        Out::Skip => String::new(),
    };
    let _ = writeln!(text, "{}  {}  {what}", case.name(), answer.status());
}

/// Runs one case. A failure is printed and counted, and the other cases continue.
fn attempt<T>(case: &Case, run: impl FnOnce() -> T) -> Option<T> {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    if done.is_err() {
        eprintln!("FAILED: {}", case.name());
    }
    done.ok()
}

#[test]
fn every_fault_has_the_outcome_of_the_table_and_leaks_nothing() {
    let world = World::start();
    let start = (world.at_rest(BACK), world.gateway.descriptors());
    let mut client = Client::connect(world.at);
    let (mut played, mut failed) = (Vec::new(), 0);
    for case in Case::all(FAULTS) {
        let done = attempt(&case, || {
            let before = world.at_rest(BACK);
            let answer = client.ask(&case.request(case.row.script, &world.key));
            // Resources are checked before the answer: checking a large one takes time, and idle connections are closed
            // after a while.
            check_rest(&world, &case, before.idle);
            check_answer(&case, &answer);
            probe(&world, &mut client, &case);
            Played { case, answer }
        });
        if done.is_none() {
            failed += 1;
            client = Client::connect(world.at);
        }
        played.extend(done);
    }
    drop(client);
    let waits = play_waits(&world);
    failed += waits.iter().filter(|played| played.is_none()).count();
    played.extend(waits.into_iter().flatten());
    let mut text = String::new();
    played.iter().for_each(|played| line(&mut text, played));
    println!(
        "fault              place      client>provider   kind   targets  status  outcome\n{text}{} cases",
        played.len()
    );
    failed += played.iter().filter(|played| attempt(&played.case, || check_row(&world, played)).is_none()).count();
    assert_eq!(failed, 0, "cases have failed, see above");
    assert_eq!(world.metrics()["tollgate_panics_total"], 0.0);
    world.back_to(&start.0, start.1);
}

#[test]
fn stale_kept_connection_does_not_fail_the_request() {
    let world = World::start();
    let row = FAULTS.iter().find(|row| row.script == "good").unwrap();
    for place in ["usual", "usual-tls"] {
        for client in Shape::ALL {
            let case = Case { row, place, client, route: Route::Same, stream: true, two: false };
            let mut connection = Client::connect(world.at);
            connection.ask(&case.request("good", &world.key));
            world.at_rest(BACK);
            let before = world.metrics()["tollgate_stale_retries_total"];
            let answer = connection.ask(&case.request("stale", &world.key));
            check_answer(&case, &answer);
            check_row_of(&world, &Played { case, answer }, true);
            assert_eq!(world.metrics()["tollgate_stale_retries_total"], before + 1.0);
        }
    }
}

#[test]
fn a_failing_target_cools_down_and_the_metrics_show_it() {
    let world = World::start();
    let row = FAULTS.iter().find(|row| row.script == "status_500").unwrap();
    let case = Case { row, place: "brittle", client: Shape::Chat, route: Route::Same, stream: false, two: true };
    let mut client = Client::connect(world.at);
    let target = "target=\"brittle-chat/up\"";
    let attempts = |client: &mut Client| {
        let answer = client.ask(&case.request("status_500", &world.key));
        check_answer(&case, &answer);
        world.row(&answer.id())["attempts"].as_u64().unwrap()
    };
    assert_eq!([attempts(&mut client), attempts(&mut client), attempts(&mut client)], [2, 2, 1]);
    let metrics = world.metrics();
    assert_eq!(metrics[&format!("tollgate_target_cooling_down{{{target}}}")], 1.0);
    assert_eq!(metrics[&format!("tollgate_target_failures_total{{{target}}}")], 2.0);
}

/// Runs the faults that wait for a timeout, all concurrently.
fn play_waits(world: &World) -> Vec<Option<Played>> {
    let play_one = |case: Case| {
        attempt(&case, || {
            let mut client = Client::connect(world.at);
            let played = play(world, &mut client, case);
            probe(world, &mut client, &case);
            played
        })
    };
    let played = std::thread::scope(|scope| {
        let begun: Vec<_> = Case::all(WAITS).into_iter().map(|case| scope.spawn(move || play_one(case))).collect();
        begun.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let rest = world.at_rest(BACK);
    assert_eq!((rest.clients, rest.idle), (0, 0), "{rest:?}");
    played
}
