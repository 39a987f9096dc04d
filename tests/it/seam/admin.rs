//! Room on the admin listener for the next client, while others keep it busy.

use super::rig::Rig;
use tollgate::base::seam::Ending;
use tollgate::gateway::orders::Notice;

/// Connections to the admin listener at once.
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

#[test]
fn connections_that_are_kept_busy_do_not_hide_the_gateways_health() {
    let mut rig = Rig::new(1);
    let mut held: Vec<String> = Vec::new();
    // As many as needed: a closed client connects again.
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
fn half_of_the_connections_are_never_kept() {
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
fn where_there_is_no_room_the_one_that_was_idle_longest_goes() {
    let mut rig = Rig::new(1);
    let labels: Vec<String> = (0..ROOM).map(|number| connect(&mut rig, number)).collect();
    for (number, oldest) in labels.iter().enumerate().take(3) {
        assert!(is_open(&rig, oldest));
        let label = connect(&mut rig, ROOM + number);
        assert!(!is_open(&rig, oldest), "the oldest makes room");
        assert!(labels[number + 1..].iter().all(|other| is_open(&rig, other)), "and no other");
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

fn desk_answers(rig: &mut Rig) {
    let ask = rig.world.desk.pop_front().unwrap();
    rig.world.notice(Notice::Desk(ask.answer(200, Ok(b"{}".to_vec())))).unwrap();
}

#[test]
fn a_client_with_a_token_makes_no_room_for_clients_without() {
    let mut rig = Rig::with(1, &[READ, WRITE]);
    let [live, asked, half] = [0, 1, 2].map(|number| connect(&mut rig, number));
    rig.give(&live, LIVE);
    rig.give(&asked, format!("{ISSUE}{{\"name\":\"x\"}}"));
    rig.give(&half, format!("{ISSUE}{{\"name\""));
    (3..3 * ROOM).for_each(|number| drop(connect(&mut rig, number)));
    for label in [&live, &asked, &half] {
        assert!(is_open(&rig, label), "{label}");
    }
    desk_answers(&mut rig);
    assert_eq!(rig.status(&asked), 200, "{}", rig.got(&asked));
    rig.give(&half, ":\"y\"}");
    desk_answers(&mut rig);
    assert_eq!(rig.status(&half), 200, "{}", rig.got(&half));
    // A wrong token is none.
    let label = connect(&mut rig, 3 * ROOM);
    rig.give(&label, LIVE.replace("admin-token", "other-token"));
    (0..ROOM).for_each(|number| drop(connect(&mut rig, 4 * ROOM + number)));
    assert!(!is_open(&rig, &label));
}

#[test]
fn where_all_have_shown_a_token_one_more_is_not_let_in() {
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
fn answers_under_way_without_a_token_are_kept_in_half_of_the_places() {
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
fn a_feed_says_how_many_requests_it_could_not_tell_of() {
    let mut rig = Rig::with(1, &[READ]);
    let live = connect(&mut rig, 0);
    rig.give(&live, LIVE);
    let ended = 1000 + 234;
    (0..ended).for_each(|_| rig.send("c", "GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"));
    rig.wait(250);
    let told = rig.got(&live);
    let (missed, rest) = told.split_once("event: missed\ndata: {\"requests\":").expect("a mark of the gap");
    assert!(!missed.contains("data: "), "the mark stands where the gap is");
    let missed: usize = rest.split('}').next().unwrap().parse().unwrap();
    assert_eq!(missed + rest.matches("data: {").count(), ended);
    assert!(missed >= 234);
}
