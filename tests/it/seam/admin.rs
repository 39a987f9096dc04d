//! The admin listener has room for whoever asks next, however busy others keep it.

use super::rig::Rig;

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
    // As many as it takes: whoever is closed comes again.
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
