//! Forms that are passed on while they arrive: their memory, and their slots.

use super::rig::Rig;
use crate::scripts::world::DialPlan;

/// Lines that make the model `small` serve forms.
const SERVES: (&str, &str) = ("model small", "serves = [\"transcriptions\", \"images\"]");
/// Buffers for some forms of a key.
const ROOM: (&str, &str) = ("server", "max_buffered = \"8MiB\"");

/// Returns the head of a request with a form of this length.
fn head(rig: &Rig, key: &str, length: usize) -> String {
    let key = &rig.keys.texts[key];
    format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\
         content-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
    )
}

fn part(name: &str, content: &str) -> String {
    let file = if name == "file" { "; filename=a" } else { "" };
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{content}\r\n")
}

/// Sends a form, in pieces of 64 KiB.
fn send(rig: &mut Rig, client: &str, form: &str) {
    form.as_bytes().chunks(64 << 10).for_each(|piece| rig.send(client, piece));
}

#[test]
fn blanks_for_a_dropped_field_are_written_as_the_provider_reads() {
    let mut rig = Rig::with(2, &[SERVES, ROOM]);
    let form = [part("model", "small"), part("file", &"x".repeat(400_000)), part("evil", &"e".repeat(16 << 20))];
    let form = format!("{}--b--\r\n", form.concat());
    for number in 0..4 {
        if number == 3 {
            // A provider that does not read.
            rig.world.plans.push_back(DialPlan::Stall);
        }
        let client = format!("c{number}");
        let begin = head(&rig, "k0", form.len());
        rig.send(&client, begin);
        send(&mut rig, &client, &form);
    }
    // All of the announced bytes arrive where they are read, and no more than a few slices wait where they are not.
    let whole = rig.asked();
    assert_eq!(whole.len(), 3, "{:?}", rig.world.gateway.vitals());
    for label in &whole {
        let got = String::from_utf8_lossy(&rig.world.ends[label].got).into_owned();
        let blanks = got.len() - got.trim_end_matches(' ').len();
        assert!(blanks > 16 << 20 && !got.contains("evil"), "{blanks}");
    }
    assert!(rig.most < 2 << 20, "{} bytes were buffered", rig.most);
}

/// A slow client does not keep others from a target: its key holds half of the slots.
#[test]
fn slow_uploads_of_one_key_leave_slots_to_others() {
    for (slots, uploads) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        let targets = format!("targets = [{{ provider = \"up\", model = \"m\", concurrency = {slots} }}]");
        let lines = [SERVES, ROOM, ("model small", &*targets), ("model small", "queue = { max = 10, wait = \"10s\" }")];
        let mut rig = Rig::with(2, &lines);
        let form = [part("model", "small"), part("file", "x")].concat() + "--b--\r\n";
        let (start, end) = form.split_at(form.len() - 9);
        for number in 0..4 {
            let client = format!("slow{number}");
            let begin = head(&rig, "k0", form.len()) + start;
            rig.send(&client, begin);
        }
        assert_eq!(rig.world.dials, uploads, "of {slots} slots");
        let begin = head(&rig, "k1", form.len()) + &form;
        rig.send("other", begin);
        assert_eq!(rig.world.dials, uploads + usize::from(slots > uploads), "another key gets a free slot of {slots}");
        // The next one gets its slot once an earlier one has arrived.
        rig.send("slow0", end);
        let free = usize::from(slots > uploads + 1);
        assert_eq!(rig.world.dials, uploads + usize::from(slots > uploads) + free, "of {slots} slots");
    }
}

#[test]
fn queued_form_takes_a_free_slot_once_it_has_arrived() {
    let targets = "targets = [{ provider = \"up\", model = \"m\", concurrency = 2 }]";
    let queue = "queue = { max = 10, wait = \"10s\" }";
    let mut rig = Rig::with(1, &[SERVES, ROOM, ("model small", targets), ("model small", queue)]);
    let form = [part("model", "small"), part("file", "x")].concat() + "--b--\r\n";
    let (start, end) = form.split_at(form.len() - 9);
    for client in ["slow", "queued"] {
        let begin = head(&rig, "k0", form.len()) + start;
        rig.send(client, begin);
    }
    assert_eq!(rig.world.dials, 1, "one key holds half of the slots with forms that are still arriving");
    rig.send("queued", end);
    assert_eq!(rig.world.dials, 2);
}

#[test]
fn form_beyond_the_share_of_its_key_is_429_without_a_queue() {
    let targets = "targets = [{ provider = \"up\", model = \"m\", concurrency = 4 }]";
    let mut rig = Rig::with(2, &[SERVES, ROOM, ("model small", targets)]);
    let form = [part("model", "small"), part("file", "x")].concat() + "--b--\r\n";
    let start = &form[..form.len() - 9];
    let mut send = |client: &str, key: &str| {
        let begin = head(&rig, key, form.len()) + start;
        rig.send(client, begin);
        String::from_utf8_lossy(&rig.world.end(client).unwrap().all).into_owned()
    };
    for client in ["a", "b"] {
        assert_eq!(send(client, "k0"), "", "{client} holds a slot");
    }
    let refused = send("c", "k0");
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("retry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("this key uses its share of the model's slots"), "{refused}");
    for client in ["d", "e"] {
        assert_eq!(send(client, "k1"), "", "{client} holds a slot of the other key");
    }
    let full = send("f", "k1");
    assert!(full.starts_with("HTTP/1.1 503 ") && full.contains("every target of the model"), "{full}");
}

#[test]
fn upload_that_drips_ends_by_request_timeout() {
    let lines = [SERVES, ROOM, ("upstream", "request_timeout = \"20s\""), ("server", "body_timeout = \"5s\"")];
    let mut rig = Rig::with(2, &lines);
    let form = [part("model", "small"), part("file", &"x".repeat(4 << 20))].concat() + "--b--\r\n";
    let begin = head(&rig, "k0", form.len());
    rig.send("slow", begin);
    for piece in form.as_bytes().chunks(20 << 10).take(30) {
        rig.give("slow", piece);
        rig.wait(1000);
    }
    assert_eq!(rig.status("slow"), 408, "{}", rig.got("slow"));
    let row = rig.world.rows.pop_front().unwrap();
    assert_eq!((row.status, row.usage.total()), (408, 0));
}
