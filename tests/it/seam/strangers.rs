//! Connections without a key are closed to make room for those with a key, have a short idle timeout, and do not flood
//! the log.

use super::rig::Rig;
use tollgate::base::limits::{ADMIN_CONNECTIONS, RESERVE_CONNECTIONS, RESERVE_PER_HOST};
use tollgate::gateway::orders::{Notice, Reloaded};
use tollgate::policy::config::Reach;

const FEW: (&str, &str) = ("server", "max_connections = 20");
const ROOT: &str = "GET / HTTP/1.1\r\nhost: g\r\n\r\n";

fn models(rig: &Rig, key: &str) -> String {
    format!("GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\n\r\n", rig.keys.texts[key])
}

fn connect(rig: &mut Rig, label: &str, address: u8) {
    rig.world.connect_from(label, false, &format!("198.51.100.{address}:999")).unwrap();
}

fn is_open(rig: &Rig, label: &str) -> bool {
    rig.world.ends[label].closed.is_none()
}

#[test]
fn key_is_served_when_strangers_use_all_connections() {
    let mut rig = Rig::with(1, &[FEW]);
    for number in 0..60 {
        let label = format!("s{number:02}");
        connect(&mut rig, &label, 1);
        rig.give(&label, ROOT);
    }
    let ask = models(&rig, "k0");
    for number in 0..15 {
        let label = format!("k{number:02}");
        connect(&mut rig, &label, 1);
        rig.give(&label, &ask);
        assert_eq!(rig.status(&label), 200, "{}", rig.got(&label));
        (0..40).for_each(|more| connect(&mut rig, &format!("m{number}-{more}"), 1));
    }
    assert!(
        (0..15).all(|number| is_open(&rig, &format!("k{number:02}"))),
        "a connection with a key is not closed while there are others"
    );
    assert!(rig.world.gateway.vitals().clients <= 20);
}

#[test]
fn longest_idle_connection_of_busiest_address_is_closed() {
    let mut rig = Rig::with(1, &[FEW]);
    (0..8).for_each(|number| connect(&mut rig, &format!("a{number}"), 1));
    (0..12).for_each(|number| connect(&mut rig, &format!("b{number:02}"), 2));
    rig.give("b00", ROOT);
    for gone in ["b01", "b02", "b03", "b04"] {
        assert!(is_open(&rig, gone));
        connect(&mut rig, &format!("new-{gone}"), 3);
        assert!(!is_open(&rig, gone), "{gone}");
    }
    assert!(is_open(&rig, "b00") && (0..8).all(|number| is_open(&rig, &format!("a{number}"))));
}

#[test]
fn key_with_most_idle_connections_makes_room_when_all_have_shown_a_key() {
    let mut rig = Rig::with(2, &[FEW]);
    let asks = ["k0", "k1"].map(|key| models(&rig, key));
    let label = |number: usize| format!("h{number:02}");
    for number in 0..20 {
        connect(&mut rig, &label(number), 1);
        rig.give(&label(number), &asks[0]);
        rig.wait(10);
    }
    // The last one begins another request.
    rig.give(&label(19), &asks[0][..30]);
    for number in 0..19 {
        let own = format!("own{number:02}");
        connect(&mut rig, &own, 2);
        rig.give(&own, &asks[1]);
        assert_eq!(rig.status(&own), 200, "{}", rig.got(&own));
        // From the tenth on, the other key has as many or fewer.
        assert!(number >= 9 || !is_open(&rig, &label(number)), "the one that has been idle longest is closed");
        assert!(is_open(&rig, &label(19)), "a connection with a request is not idle");
        assert_eq!(rig.world.gateway.vitals().clients, 20);
        rig.wait(10);
    }
    assert!(is_open(&rig, "own18"));
    let open = (0..19).filter(|number| is_open(&rig, &label(*number))).count();
    assert!((9..=10).contains(&open), "neither key drives the other out: {open}");
}

#[test]
fn pending_bytes_are_read_before_a_connection_is_closed() {
    let mut rig = Rig::with(1, &[FEW]);
    (0..20).for_each(|number| connect(&mut rig, &format!("s{number:02}"), 1));
    let ask = models(&rig, "k0");
    // The request is in the socket buffer when the next connection arrives.
    rig.world.end("s00").unwrap().wire.extend(ask.as_bytes());
    connect(&mut rig, "new", 1);
    assert_eq!((rig.status("s00"), is_open(&rig, "s00")), (200, true));
    rig.world.end("s01").unwrap().wire.extend(ROOT.as_bytes());
    connect(&mut rig, "newer", 1);
    assert_eq!((rig.status("s01"), is_open(&rig, "s01")), (200, false));
    assert!(!is_open(&rig, "s02"), "a second one is closed, since the first was kept");
}

/// Each request arrives on its connection before the next connection is accepted, so its sender is still a stranger at
/// that moment.
#[test]
fn burst_of_connections_with_keys_stays_within_the_bound() {
    for admin in [false, true] {
        let mut rig = Rig::with(1, &[FEW]);
        let most = if admin { ADMIN_CONNECTIONS + RESERVE_PER_HOST } else { 20 + RESERVE_CONNECTIONS };
        let head = match admin {
            false => models(&rig, "k0").replacen("GET /v1/models", "POST /v1/chat/completions", 1),
            true => "POST /admin/v1/keys HTTP/1.1\r\nhost: localhost\r\n\r\n".to_string(),
        };
        let begun = head.replacen("\r\n\r\n", "\r\ncontent-length: 999\r\n\r\n{", 1);
        let mut refused = 0;
        for number in 0..300 {
            let label = format!("c{number:03}");
            match rig.world.connect_from(&label, admin, "198.51.100.1:999") {
                Ok(()) => rig.world.end(&label).unwrap().wire.extend(begun.as_bytes()),
                Err(_) => refused += 1,
            }
            let clients = rig.world.gateway.vitals().clients;
            assert!(clients <= most, "{clients} connections, admin: {admin}");
        }
        assert!(admin || refused > 0);
    }
}

#[test]
fn stranger_that_does_not_read_is_closed_immediately() {
    let mut rig = Rig::with(1, &[FEW]);
    for number in 0..20 {
        let label = format!("s{number:02}");
        connect(&mut rig, &label, 1);
        rig.world.end(&label).unwrap().reads = false;
        rig.give(&label, ROOT);
    }
    connect(&mut rig, "new", 2);
    assert!(!is_open(&rig, "s00"));
}

#[test]
fn idle_connection_without_a_key_is_closed_early() {
    let mut rig = Rig::with(1, &[("server", "header_timeout = \"2s\"")]);
    let wrong = models(&rig, "k0").replace("Bearer tg", "Bearer xx");
    let right = models(&rig, "k0");
    for (label, ask) in [("root", ROOT), ("wrong", &wrong), ("right", &right)] {
        connect(&mut rig, label, 1);
        rig.give(label, ask);
    }
    assert_eq!([rig.status("root"), rig.status("wrong"), rig.status("right")], [200, 401, 200]);
    rig.wait(1900);
    assert!(["root", "wrong", "right"].iter().all(|label| is_open(&rig, label)));
    rig.wait(200);
    assert_eq!(["root", "wrong", "right"].map(|label| is_open(&rig, label)), [false, false, true]);
    rig.wait(72_000);
    assert!(is_open(&rig, "right"));
    rig.wait(2_000);
    assert!(!is_open(&rig, "right"));
}

/// Requests that cost nothing count for no limit, so nothing else bounds their lines.
#[test]
fn keys_and_strangers_cause_a_bounded_number_of_log_lines() {
    let mut rig = Rig::with(1, &[]);
    rig.wait(1000 - (rig.world.now.mono.0 / 1000) % 1000);
    rig.world.log.clear();
    let ask = models(&rig, "k0");
    let lost = ask.replacen("/v1/models", "/v1/nothing", 1);
    for _ in 0..250 {
        rig.send("stranger", ROOT);
        rig.send("unknown", "GET /elsewhere HTTP/1.1\r\nhost: g\r\n\r\n");
        rig.send("known", &ask);
        rig.send("known", &lost);
    }
    let count = |rig: &Rig, text: &str| rig.world.log.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count(&rig, "\"endpoint\":\"models\"") + count(&rig, "/v1/nothing"), 100);
    assert_eq!(rig.world.log.len(), 100 + 100);
    rig.wait(1000);
    assert_eq!(count(&rig, "\"event\":\"suppressed\",\"requests\":400}"), 1);
    assert_eq!(count(&rig, "\"event\":\"suppressed\",\"requests\":400,\"key\":\""), 1);
    rig.wait(10_000);
    assert_eq!(rig.world.log.len(), 100 + 100 + 2);
    rig.send("other", ROOT);
    rig.send("known", &ask);
    assert_eq!(rig.world.log.len(), 100 + 100 + 4);
    rig.world.connect("admin", true).unwrap();
    rig.give("admin", "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(rig.got("admin").contains("tollgate_log_suppressed_total 800\n"));
}

const READ: (&str, &str) = ("server", "admin_token = { env = \"ADMIN_TOKEN\" }");
const WRITE: (&str, &str) = ("server", "admin_write_token = { env = \"ADMIN_WRITE_TOKEN\" }");
const PATHS: [&str; 6] = ["/healthz", "/readyz", "/metrics", "/openapi.json", "/", "/admin/v1/status"];

/// Returns the expected status of a request from all its properties.
fn expected(path: &str, reach: Reach, has_token: bool, shown: &str, host: &str) -> u16 {
    let is_owner = reach == Reach::Owner;
    // A token that is not configured is a wrong token.
    let reads = is_owner || shown == "write" || (shown == "read" && has_token);
    let guest = reach == Reach::Host && !has_token && shown.is_empty();
    let is_named = is_owner || host != "evil.test";
    match path {
        "/healthz" | "/readyz" => 200,
        "/metrics" if reads => 200,
        "/metrics" if !guest => 401,
        _ if !is_named => 403,
        "/openapi.json" | "/" => 200,
        _ if reads || guest => 200,
        _ => 401,
    }
}

/// Every kind of socket, whatever `admin_listen` says, before and after a reload adds or removes the token.
#[test]
fn admin_access_follows_the_socket_and_the_token() {
    let mut cases = 0;
    for reach in [Reach::Owner, Reach::Host, Reach::Network] {
        for listen in ["127.0.0.1:9090", "unix:/tmp/admin.sock"] {
            for (before, after) in [(false, false), (false, true), (true, false), (true, true)] {
                let listen = format!("admin_listen = \"{listen}\"");
                let lines = |token: bool| {
                    let mut lines = vec![("server", &*listen), ("server", "admin_hosts = [\"gate.test\"]"), WRITE];
                    lines.extend(token.then_some(READ));
                    lines
                };
                let mut rig = Rig::at(1, &lines(before), Some(reach));
                let fresh = Rig::at(1, &lines(after), Some(reach)).config;
                for (has_token, reloads) in [(before, false), (after, true)] {
                    if reloads {
                        let config = std::sync::Arc::new(fresh.clone());
                        rig.world.notice(Notice::Reloaded(Reloaded::Fresh { config, unchanged: Vec::new() })).unwrap();
                    }
                    for path in PATHS {
                        for (shown, token) in [
                            ("", ""),
                            ("read", "admin-token-of-the-test"),
                            ("write", "write-token-of-the-test"),
                            ("wrong", "other-token-of-the-test"),
                        ] {
                            for host in ["localhost", "10.0.0.1:9090", "gate.test", "evil.test"] {
                                let label = format!("c{cases:05}");
                                cases += 1;
                                rig.world.connect(&label, true).unwrap();
                                let field = if token.is_empty() { "" } else { "authorization: Bearer " };
                                let end = if token.is_empty() { "" } else { "\r\n" };
                                rig.give(
                                    &label,
                                    format!(
                                        "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
                                         {field}{token}{end}\r\n"
                                    ),
                                );
                                let expected = expected(path, reach, has_token, shown, host);
                                let case = format!("{reach:?} {listen} {has_token} {path} {shown} {host}");
                                assert_eq!(rig.status(&label), expected, "{case}");
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cases, 3 * 2 * 4 * 2 * 6 * 4 * 4);
}
