//! The admin listener accepts new clients even when other clients keep all of its connections busy.

use super::rig::{Rig, large_answer, request};
use serde_json::Value;
use tollgate::base::seam::Ending;
use tollgate::gateway::orders::Notice;

/// Maximum number of connections to the admin listener.
const ROOM: usize = 64;
const ASK: &str = "GET /readyz HTTP/1.1\r\nhost: g\r\n\r\n";

fn connect(rig: &mut Rig, number: usize) -> String {
    let label = format!("a{number:03}");
    rig.world.connect(&label, true).unwrap();
    rig.wait(1);
    label
}

fn is_open(rig: &Rig, label: &str) -> bool {
    rig.world.ends[label].closed.is_none()
}

fn is_answered(rig: &mut Rig, label: &str) {
    rig.give(label, ASK);
    assert_eq!(rig.status(label), 200, "{}", rig.got(label));
}

/// Nothing else tells an operator that somebody guesses tokens.
#[test]
fn wrong_admin_tokens_are_counted_and_logged() {
    let mut rig = Rig::with(1, &[("server", "admin_token = { env = \"ADMIN_TOKEN\" }")]);
    rig.world.log.clear();
    rig.world.connect("guesser", true).unwrap();
    for n in 0..300 {
        let path = if n % 2 == 0 { "/metrics" } else { "/admin/v1/status" };
        let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer guess-{n}\r\n\r\n");
        rig.send("guesser", &ask);
    }
    rig.send("guesser", "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let count = |rig: &Rig, text: &str| rig.world.log.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count(&rig, "\"event\":\"admin\",\"outcome\":\"refused\",\"peer\":\""), 100);
    rig.wait(1000);
    assert_eq!(count(&rig, "\"event\":\"suppressed\",\"requests\":200,\"listener\":\"admin\"}"), 1);
    assert!(rig.world.log.iter().all(|line| !line.contains("guess-")));
}

#[test]
fn busy_admin_connections_do_not_block_health_checks() {
    let mut rig = Rig::new(1);
    let mut held: Vec<String> = Vec::new();
    // Three times the limit: a client whose connection was closed connects again.
    for number in 0..3 * ROOM {
        let label = connect(&mut rig, number);
        is_answered(&mut rig, &label);
        held.push(label);
        held.retain(|label| is_open(&rig, label));
        for label in held.clone() {
            rig.give(&label, ASK);
        }
    }
    let label = connect(&mut rig, 3 * ROOM);
    is_answered(&mut rig, &label);
}

#[test]
fn at_most_half_of_admin_connections_are_kept_alive() {
    let mut rig = Rig::new(1);
    let labels: Vec<String> = (0..ROOM).map(|number| connect(&mut rig, number)).collect();
    labels.iter().for_each(|label| is_answered(&mut rig, label));
    let kept: Vec<&String> = labels.iter().filter(|label| is_open(&rig, label)).collect();
    assert!((1..=ROOM / 2).contains(&kept.len()), "{} of {ROOM} are kept", kept.len());
    for label in labels.iter().filter(|label| !is_open(&rig, label)) {
        assert!(rig.got(label).contains("\r\nconnection: close\r\n"), "{}", rig.got(label));
    }
}

#[test]
fn longest_idle_admin_connection_is_closed_for_a_new_one() {
    let mut rig = Rig::new(1);
    let labels: Vec<String> = (0..ROOM).map(|number| connect(&mut rig, number)).collect();
    for (number, oldest) in labels.iter().enumerate().take(3) {
        assert!(is_open(&rig, oldest));
        let label = connect(&mut rig, ROOM + number);
        assert!(!is_open(&rig, oldest), "the oldest connection must be closed");
        assert!(
            labels[number + 1..].iter().all(|other| is_open(&rig, other)),
            "only the oldest connection may be closed"
        );
        rig.give(&label, &ASK[..10]);
    }
    let label = connect(&mut rig, ROOM + 3);
    is_answered(&mut rig, &label);
}

const READ: (&str, &str) = ("server", "admin_token = { env = \"ADMIN_TOKEN\" }");
const WRITE: (&str, &str) = ("server", "admin_write_token = { env = \"ADMIN_WRITE_TOKEN\" }");
const LIVE: &str = "GET /admin/v1/requests/live HTTP/1.1\r\nhost: localhost\r\n\
                    authorization: Bearer admin-token-of-the-test\r\n\r\n";
const ISSUE: &str = "POST /admin/v1/keys HTTP/1.1\r\nhost: localhost\r\ncontent-length: 12\r\n\
                     authorization: Bearer write-token-of-the-test\r\n\r\n";

fn answer_admin_request(rig: &mut Rig) {
    let ask = rig.world.admin_requests.pop_front().unwrap();
    rig.world.notice(Notice::Desk(ask.answer(200, Ok(b"{}".to_vec())))).unwrap();
}

#[test]
fn connection_with_a_token_is_never_closed_for_one_without() {
    let mut rig = Rig::with(1, &[READ, WRITE]);
    let [live, asked, half] = [0, 1, 2].map(|number| connect(&mut rig, number));
    rig.give(&live, LIVE);
    rig.give(&asked, format!("{ISSUE}{{\"name\":\"x\"}}"));
    rig.give(&half, format!("{ISSUE}{{\"name\""));
    (3..3 * ROOM).for_each(|number| drop(connect(&mut rig, number)));
    for label in [&live, &asked, &half] {
        assert!(is_open(&rig, label), "{label}");
    }
    answer_admin_request(&mut rig);
    assert_eq!(rig.status(&asked), 200, "{}", rig.got(&asked));
    rig.give(&half, ":\"y\"}");
    answer_admin_request(&mut rig);
    assert_eq!(rig.status(&half), 200, "{}", rig.got(&half));
    // A wrong token gives no protection.
    let label = connect(&mut rig, 3 * ROOM);
    rig.give(&label, LIVE.replace("admin-token", "other-token"));
    (0..ROOM).for_each(|number| drop(connect(&mut rig, 4 * ROOM + number)));
    assert!(!is_open(&rig, &label));
}

#[test]
fn new_connection_is_refused_when_all_others_have_a_token() {
    let mut rig = Rig::with(1, &[READ]);
    let labels: Vec<String> = (0..ROOM).map(|number| connect(&mut rig, number)).collect();
    labels.iter().for_each(|label| rig.give(label, LIVE));
    assert!(rig.world.connect("one more", true).is_err());
    assert!(labels.iter().all(|label| is_open(&rig, label)));
    rig.world.finish(&labels[5], Ending::Fin).unwrap();
    let label = connect(&mut rig, ROOM);
    is_answered(&mut rig, &label);
}

#[test]
fn streams_without_a_token_use_at_most_half_of_admin_connections() {
    let local = ("server", "admin_listen = \"127.0.0.1:9090\"");
    let mut rig = Rig::with(1, &[local]);
    let labels: Vec<String> = (0..ROOM).map(|number| connect(&mut rig, number)).collect();
    let live = LIVE.replace("authorization: Bearer admin-token-of-the-test\r\n", "");
    labels.iter().for_each(|label| rig.give(label, &live));
    (0..ROOM).for_each(|number| drop(connect(&mut rig, ROOM + number)));
    assert_eq!(labels.iter().filter(|label| is_open(&rig, label)).count(), ROOM / 2);
    let label = connect(&mut rig, 3 * ROOM);
    is_answered(&mut rig, &label);
}

#[test]
fn live_feed_reports_how_many_requests_it_missed() {
    let mut rig = Rig::with(1, &[READ]);
    let live = connect(&mut rig, 0);
    rig.give(&live, LIVE);
    let ended = 1000 + 234;
    (0..ended).for_each(|_| rig.send("c", "GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"));
    rig.wait(250);
    let received = rig.got(&live);
    let (missed, rest) =
        received.split_once("event: missed\ndata: {\"requests\":").expect("an event that reports the gap");
    assert!(!missed.contains("data: "), "no record may come before the reported gap");
    let missed: usize = rest.split('}').next().unwrap().parse().unwrap();
    assert_eq!(missed + rest.matches("data: {").count(), ended);
    assert!(missed >= 234);
}

/// Returns the state of the target of `small` and the whole answer.
fn target(rig: &mut Rig, look: usize) -> (String, Value) {
    let label = connect(rig, 500 + look);
    rig.give(&label, LIVE.replace("requests/live", "targets").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n"));
    let got = rig.got(&label);
    let body: Value = serde_json::from_str(got.split_once("\r\n\r\n").unwrap().1).unwrap();
    let one = body["data"].as_array().unwrap().iter().find(|one| one["model"] == "small").unwrap().clone();
    (one["state"].as_str().unwrap().to_string(), one)
}

#[test]
fn target_is_slow_until_its_first_bytes_come_as_before() {
    let mut rig = Rig::with(1, &[READ]);
    let key = rig.keys.texts["k0"].clone();
    // Sends requests for some minutes, ten in each, whose first byte comes after this time.
    let serve = |rig: &mut Rig, minutes: u64, millis: u64| {
        for _ in 0..minutes * 10 {
            let (head, body) = request(&key, 200, false);
            rig.send("c", head + &body);
            rig.wait(millis);
            let asked = rig.asked().pop().expect("the provider has received a request");
            rig.answer(&asked, &large_answer(10));
            rig.wait(6000 - millis);
        }
    };
    assert_eq!(target(&mut rig, 0).0, "no_traffic");
    serve(&mut rig, 30, 200);
    let (state, one) = target(&mut rig, 1);
    assert_eq!((&*state, &one["since"]), ("ok", &Value::Null), "{one}");
    let usual = one["first_byte_us"]["usual"].as_u64().unwrap();
    assert!((180_000..220_000).contains(&usual), "{one}");
    serve(&mut rig, 4, 2000);
    let (state, one) = target(&mut rig, 2);
    let median = one["first_byte_us"]["median"].as_u64().unwrap();
    assert!(state == "slow" && (1_800_000..2_200_000).contains(&median), "{one}");
    let since = tollgate::policy::window::parse_moment(one["since"].as_str().unwrap()).unwrap();
    let ago = (rig.world.now.unix.0 - since.0) / 60_000;
    assert!((3..=4).contains(&ago), "since {ago} minutes: {one}");
    serve(&mut rig, 5, 200);
    let (state, one) = target(&mut rig, 3);
    assert_eq!((&*state, &one["since"]), ("ok", &Value::Null), "{one}");
}

#[test]
fn refused_requests_are_no_times_of_a_target() {
    let mut rig = Rig::with(1, &[READ]);
    let key = rig.keys.texts["k0"].clone();
    let serve = |rig: &mut Rig, millis: u64, answer: &str| {
        let (head, body) = request(&key, 200, false);
        rig.send("c", head + &body);
        rig.wait(millis);
        let asked = rig.asked().pop().expect("the provider has received a request");
        rig.answer(&asked, answer);
        rig.wait(1000);
    };
    target(&mut rig, 0);
    (0..25).for_each(|_| serve(&mut rig, 1, "HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}"));
    let (_, one) = target(&mut rig, 1);
    assert_eq!((&one["minutes_5"]["answered"], &one["first_byte_us"]), (&25.into(), &Value::Null), "{one}");
    serve(&mut rig, 900, &large_answer(10));
    let median = target(&mut rig, 2).1["first_byte_us"]["median"].as_u64();
    assert!(median.is_some_and(|median| (800_000..1_000_000).contains(&median)), "{median:?}");
}

/// Returns the state of the gateway in one word.
fn health(rig: &mut Rig, look: usize) -> String {
    status(rig, look)["health"].as_str().unwrap().to_string()
}

/// Returns the answer of `GET /admin/v1/status`.
fn status(rig: &mut Rig, look: usize) -> Value {
    let label = connect(rig, 700 + look);
    rig.give(&label, LIVE.replace("requests/live", "status").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n"));
    let got = rig.got(&label);
    serde_json::from_str(got.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn target_hangs_when_clients_leave_before_the_first_byte() {
    // Clients leave after five seconds. A provider that has sent the head of a stream has sent no byte of the answer.
    for (stream, head) in
        [(false, ""), (true, ""), (true, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")]
    {
        let mut rig = Rig::with(1, &[READ]);
        let key = rig.keys.texts["k0"].clone();
        let leave = |rig: &mut Rig, count: usize, millis: u64| {
            for number in 0..count {
                let client = format!("{millis}-{number}");
                let (ask, body) = request(&key, 200, stream);
                rig.send(&client, ask + &body);
                let asked = rig.asked().pop().expect("the provider has received a request");
                if !head.is_empty() {
                    rig.answer(&asked, head);
                }
                rig.wait(millis);
                rig.world.finish(&client, Ending::Broken).unwrap();
                rig.wait(1);
            }
        };
        leave(&mut rig, 9, 500);
        let (state, one) = target(&mut rig, 0);
        assert_eq!((&*state, &one["minutes_5"]["unanswered"]), ("no_traffic", &0.into()), "cancelled at once: {one}");
        leave(&mut rig, 4, 5000);
        let (state, one) = target(&mut rig, 1);
        assert_eq!((&*state, &one["minutes_5"]["unanswered"]), ("ok", &4.into()), "too few: {one}");
        assert_eq!(health(&mut rig, 1), "healthy");
        leave(&mut rig, 1, 6000);
        let (state, one) = target(&mut rig, 2);
        assert_eq!((&*state, &one["last_failure"]["cause"]), ("hung", &"no answer".into()));
        let since = tollgate::policy::window::parse_moment(one["since"].as_str().unwrap()).unwrap();
        let ago = (rig.world.now.unix.0 - since.0) / 1000;
        assert!((25..=28).contains(&ago), "since {ago} seconds: {one}");
        assert_eq!(health(&mut rig, 2), "down");
        // However long nobody tries.
        rig.wait(600_000);
        let (state, one) = target(&mut rig, 3);
        assert_eq!((&*state, &one["minutes_5"]["unanswered"]), ("hung", &0.into()), "{one}");
        assert_eq!(health(&mut rig, 3), "healthy", "nobody uses it");
    }
}

#[test]
fn one_key_that_leaves_does_not_degrade_a_target_that_answers_others() {
    let mut rig = Rig::with(2, &[READ]);
    let [own, other] = ["k0", "k1"].map(|key| rig.keys.texts[key].clone());
    let send = |rig: &mut Rig, key: &str, client: String, answers: bool| {
        let (ask, body) = request(key, 200, false);
        rig.send(&client, ask + &body);
        let asked = rig.asked().pop().expect("the provider has received a request");
        if answers {
            rig.answer(&asked, &large_answer(200));
            return assert_eq!(rig.status(&client), 200, "{}", rig.got(&client));
        }
        rig.wait(5000);
        rig.world.finish(&client, Ending::Broken).unwrap();
        rig.wait(1);
    };
    send(&mut rig, &other, "before".to_string(), true);
    (0..6).for_each(|number| send(&mut rig, &own, format!("left-{number}"), false));
    let (state, one) = target(&mut rig, 0);
    assert_eq!((&*state, &one["one_caller"]), ("hung", &true.into()), "{one}");
    assert_eq!(health(&mut rig, 0), "down", "nobody was answered since");
    send(&mut rig, &other, "after".to_string(), true);
    let (state, one) = target(&mut rig, 1);
    assert_eq!((&*state, &one["one_caller"]), ("hung", &true.into()), "6 of 8: {one}");
    assert_eq!(health(&mut rig, 1), "healthy");
    (0..6).for_each(|number| send(&mut rig, &own, format!("again-{number}"), false));
    assert_eq!(health(&mut rig, 2), "healthy", "the other key was answered meanwhile");
    send(&mut rig, &other, "left".to_string(), false);
    let (_, one) = target(&mut rig, 2);
    assert_eq!(one["one_caller"], false, "{one}");
    let status = status(&mut rig, 3);
    assert_eq!(status["health"], "down", "{status}");
    let model = status["problems"].as_array().unwrap().iter().find(|one| one["what"] == "model").unwrap();
    let since = tollgate::policy::window::parse_moment(model["since"].as_str().unwrap()).unwrap();
    let ago = (rig.world.now.unix.0 - since.0) / 1000;
    assert!((34..=37).contains(&ago), "since the last answer: {model}");
}

#[test]
fn one_key_whose_requests_fail_does_not_degrade_a_gateway_that_answers_others() {
    let mut rig = Rig::with(2, &[READ]);
    for round in 0..3 {
        (0..8).for_each(|number| exchange(&mut rig, "k0", format!("own-{round}-{number}"), FAILURE));
        (0..8).for_each(|number| exchange(&mut rig, "k1", format!("other-{round}-{number}"), &large_answer(200)));
        rig.wait(1000);
    }
    (0..8).for_each(|number| exchange(&mut rig, "k0", format!("last-{number}"), FAILURE));
    let all = status(&mut rig, 0);
    let seen: Vec<_> = all["problems"].as_array().unwrap().iter().map(|one| (&one["what"], &one["health"])).collect();
    assert_eq!(seen, [(&"target".into(), &"healthy".into())], "{all}");
    // Its failures alone are none of the gateway, but with those of others they are.
    (0..5).for_each(|number| exchange(&mut rig, "k1", format!("failed-{number}"), FAILURE));
    assert_eq!(health(&mut rig, 1), "down");
}

/// Returns the problem of the only target.
fn problem(status: &Value) -> &Value {
    status["problems"].as_array().unwrap().iter().find(|one| one["what"] == "target").unwrap()
}

/// Sends a request that the provider answers so.
fn exchange(rig: &mut Rig, key: &str, client: String, answer: &str) {
    let (ask, body) = request(&rig.keys.texts[key].clone(), 200, false);
    rig.send(&client, ask + &body);
    let asked = rig.asked().pop().expect("the provider has received a request");
    rig.answer(&asked, answer);
}

const FAILURE: &str = "HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}";

#[test]
fn only_user_of_a_target_is_not_blamed_for_its_failures() {
    let mut rig = Rig::with(2, &[READ]);
    let logged = |rig: &Rig, next: &str| {
        let mut of_target = rig.world.log.iter().rev().filter(|line| line.contains("\"outcome\":\"failing\""));
        of_target.next().is_some_and(|line| line.contains(next))
    };
    (0..3).for_each(|number| exchange(&mut rig, "k0", format!("own-{number}"), FAILURE));
    let all = status(&mut rig, 0);
    let one = problem(&all);
    let cause = "status 500, 3 of 3 attempts failed in 5 min, only key `k0` has used this target";
    let effect = "3 requests of clients failed in 5 min (model `small`)";
    assert_eq!(one["text"], format!("failing: {cause}; {effect}"), "{one}");
    assert_eq!(one["next"], "See the provider's console and log.");
    assert!(logged(&rig, "See the provider's console and log."), "{:?}", rig.world.log);
    exchange(&mut rig, "k1", "other".to_string(), &large_answer(200));
    (0..3).for_each(|number| exchange(&mut rig, "k0", format!("again-{number}"), FAILURE));
    let all = status(&mut rig, 1);
    let one = problem(&all);
    assert!(one["cause"].as_str().unwrap().ends_with(", all failures are of key `k0`"), "{one}");
    assert!(one["next"].as_str().unwrap().starts_with("Look at the requests of this key"), "{one}");
    assert!(logged(&rig, "Look at the requests of this key"), "{:?}", rig.world.log);
}

#[test]
fn only_target_that_cools_down_counts_while_it_is_tried() {
    let mut rig = Rig::with(1, &[READ]);
    (0..2).for_each(|number| exchange(&mut rig, "k0", format!("failed-{number}"), FAILURE));
    let limited = "HTTP/1.1 429 No\r\nretry-after: 900\r\ncontent-length: 2\r\n\r\n{}";
    exchange(&mut rig, "k0", "limited".to_string(), limited);
    let all = status(&mut rig, 0);
    let one = problem(&all);
    let until = one["until"].as_str().unwrap();
    let causes = "status 429, 3 of 3 attempts failed in 5 min, mostly status 500";
    let wait = format!("the provider asks to wait until {}: one request a second is tried", &until[11..]);
    assert_eq!((&one["state"], &one["cause"]), (&"still_tried".into(), &format!("{causes}, {wait}").into()), "{one}");
    assert_eq!(all["health"], "down", "{all}");
    rig.wait(400_000);
    let all = status(&mut rig, 1);
    let one = problem(&all);
    assert_eq!(
        (&one["state"], &one["health"], &all["health"]),
        (&"still_tried".into(), &"healthy".into(), &"healthy".into())
    );
    assert!(one["cause"].as_str().unwrap().contains("not tried for 5 min"), "{one}");
}

#[test]
fn unread_scrapes_leave_clients_a_small_budget() {
    let groups: Vec<String> = (0..400).map(|number| format!("group with-a-long-name-{number}")).collect();
    let lines: Vec<(&str, &str)> = groups.iter().map(|group| (group.as_str(), "budget = 5.0")).collect();
    let mut rig = Rig::with(1, &lines);
    for number in 0..30 {
        let label = connect(&mut rig, number);
        rig.world.end(&label).unwrap().reads = false;
        rig.give(&label, "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
    }
    assert!(rig.is_open(), "{} bytes are buffered", rig.most);
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 10_000, false);
    rig.send("c0", head + &body);
    assert_eq!(rig.asked().len(), 1, "{}", rig.got("c0"));
}
