//! The cost of admin API reports on a gateway with many keys: memory depends on the page size, and reports take no CPU
//! time from requests.

use super::client::{Client, get, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer};
use super::process::wait_for;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

const KEYS: usize = 20_000;
const MIB: u64 = 1 << 20;
/// Documented size of the longest answer of the admin API: "lists" in the manual's table of the upper bound.
const LIST_BYTES: u64 = 8 * MIB;
const TOKENS: &str = "admin_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";

/// Starts a gateway with many keys. Each has sums of three days, a label of its own, and entries in the audit log.
fn crowded() -> Harness {
    let mut h = Harness::start(&Setup { server: TOKENS, ..Setup::default() });
    h.key();
    h.gateway.stop("TERM");
    let db = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    let number = format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {KEYS})");
    db.execute_batch(&format!(
        "BEGIN;
         {number} INSERT INTO keys SELECT printf('AAAAAAA%05d', i), randomblob(32), printf('key-%05d', i), plan, endpoints,
             models, created + i, expires, revoked, former, disabled, limits, grp,
             json_array(json_array('team', 't' || i)), capture
             FROM n, keys WHERE name = 'test';
         INSERT INTO days SELECT 20000 + day.value, keys.id, 'small', 'sim/small', '', 'chat', 'other', 1, 2, 3, 4, 5,
             CAST(substr(keys.id, 8) AS INTEGER) FROM keys, json_each('[1, 2, 3]') AS day WHERE name <> 'test';
         {number} INSERT INTO audit (at, who, what, key, before, after) SELECT 20000 * 86400000, 'root', 'edit',
             printf('AAAAAAA%05d', i), json_object('name', hex(zeroblob(200))), '{{}}' FROM n WHERE i <= 9000;
         DELETE FROM changes; COMMIT"
    ))
    .unwrap();
    drop(db);
    h.start_again();
    h
}

fn ask(h: &Harness, path: &str) -> Value {
    let fields = [("authorization", bearer(CREDENTIAL.1))];
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let answer = Client::connect(h.admin).ask(&request("GET", &format!("/admin/v1/{path}"), &fields));
    match answer.status() {
        200 => answer.json(),
        400 => 400.into(),
        status => panic!("{path}: {status}, {}", answer.text()),
    }
}

/// Returns the peak of the gateway's resident memory since the last call, and the present value; both without the pages
/// of its program, of which a report needs some that are not in memory yet.
pub fn peak_and_now(h: &Harness) -> [u64; 2] {
    let process = format!("/proc/{}", h.gateway.id());
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let [peak, now, program] = ["VmHWM:", "VmRSS:", "RssFile:"].map(|name| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    });
    // Resets the peak to the present value (proc_pid_clear_refs(5)).
    fs::write(format!("{process}/clear_refs"), "5").unwrap();
    [peak - program, now - program]
}

#[test]
fn report_memory_is_bounded_by_its_page() {
    let h = crowded();
    // The first response fills caches, whose memory does not count for a report.
    ask(&h, "usage?by=day");
    let [_, before] = peak_and_now(&h);
    let first = ask(&h, "usage?by=key&limit=1000");
    let lines = first["data"].as_array().unwrap();
    assert_eq!(
        (lines.len(), &lines[0]["name"], &lines[0]["key_name"]),
        (1000, &"AAAAAAA20000".into(), &"key-20000".into())
    );
    assert_eq!((&lines[0]["cost_nano_usd"], &first["next"]), (&60_000.into(), &"1000".into()));
    let last = ask(&h, "usage?by=key&limit=1000&after=19500");
    let lines = last["data"].as_array().unwrap();
    assert_eq!((lines.len(), &lines[499]["key_name"], &last["next"]), (500, &"key-00001".into(), &Value::Null));
    let days = ask(&h, "usage?by=day,key&after=40000&limit=1");
    assert_eq!((&days["data"][0]["day"], &days["data"][0]["key"]), (&"2024-10-07".into(), &"AAAAAAA00001".into()));
    let audit = ask(&h, "audit?after=8999&limit=1000");
    assert_eq!(audit["data"][0]["key"], "AAAAAAA00001");
    let [peak, _] = peak_and_now(&h);
    let most = before + LIST_BYTES;
    assert!(peak <= most, "{} KiB more than documented", (peak - most) / 1024);
}

/// Adds keys with long model lists, and as many lines of the audit with their records.
fn with_long_lists(h: &mut Harness, count: usize) {
    h.gateway.stop("TERM");
    let models: Vec<String> = (0..400).map(|number| format!("{number:0>120}")).collect();
    let models = serde_json::to_string(&models).unwrap();
    let db = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    let number = format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})");
    db.execute_batch(&format!(
        "BEGIN;
         {number} INSERT INTO keys SELECT printf('AAAAAAA%05d', i), randomblob(32), 'long', plan, endpoints,
             '{models}', created + i, expires, revoked, former, disabled, limits, grp, labels, capture
             FROM n, keys WHERE name = 'test';
         {number} INSERT INTO audit (at, who, what, key, before, after) SELECT 20000 * 86400000, 'root', 'edit',
             printf('AAAAAAA%05d', i), '{models}', '{models}' FROM n;
         DELETE FROM changes; COMMIT"
    ))
    .unwrap();
    drop(db);
    h.start_again();
}

#[test]
fn pages_of_long_items_and_unread_pages_stay_within_the_documented_memory() {
    const COUNT: usize = 300;
    let mut h = Harness::start(&Setup { server: TOKENS, ..Setup::default() });
    h.key();
    with_long_lists(&mut h, COUNT);
    ask(&h, "usage?by=day");
    let [_, before] = peak_and_now(&h);
    for (path, items) in [("keys", COUNT + 1), ("audit", COUNT + 1)] {
        let (mut seen, mut after, mut pages) = (std::collections::BTreeSet::new(), String::new(), 0);
        loop {
            let page = ask(&h, &format!("{path}?limit=1000{after}"));
            assert!(page.to_string().len() < 1_200_000, "a page of {path} is long");
            seen.extend(page["data"].as_array().unwrap().iter().map(Value::to_string));
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen.len(), items, "{path} in {pages} pages");
        assert!(pages > 3, "{path}");
    }
    let head = [("authorization", bearer(CREDENTIAL.1))];
    let head: Vec<(&str, &str)> = head.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let unread: Vec<TcpStream> = (0..40)
        .map(|number| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.connect(&h.admin.into()).unwrap();
            let path = if number % 2 == 0 { "/admin/v1/audit?limit=1000" } else { "/openapi.json" };
            (&socket).write_all(&request("GET", path, &head)).unwrap();
            socket.into()
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let [peak, _] = peak_and_now(&h);
    let most = before + LIST_BYTES;
    assert!(peak <= most, "{} KiB more than documented", (peak - most) / 1024);
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
    let statuses = unread.iter().step_by(2).map(|mut socket| {
        let mut status = [0; 12];
        socket.read_exact(&mut status).unwrap();
        status
    });
    let refused = statuses.filter(|status| status.ends_with(b" 503")).count();
    assert!((1..20).contains(&refused), "{refused} of 20 pages are refused");
    drop(unread);
    wait_for("room for a page", || {
        let answer = Client::connect(h.admin).ask(&request("GET", "/admin/v1/audit?limit=1000", &head));
        (answer.status() == 200).then_some(())
    });
}

#[test]
fn report_that_must_merge_too_many_lines_is_refused() {
    let h = crowded();
    let merged = ask(&h, "usage?by=provider");
    assert_eq!((&merged["data"][0]["name"], &merged["data"][0]["requests"]), (&"sim".into(), &60_000.into()));
    assert_eq!(ask(&h, "usage?by=label:team,provider&limit=1&after=5")["data"][0]["label:team"], "t19995");
    assert!(ask(&h, "usage?by=label:team,day") == 400, "60,000 lines");
    assert_eq!(ask(&h, "usage?by=label:team,day&since=2024-10-07")["data"].as_array().unwrap().len(), 100);
    let all = h.done(&["usage", "--by", "label:team,day", "--csv"]);
    assert_eq!(all.lines().count(), 1 + 3 * KEYS, "commands have no such bound");
}

/// Returns the CPU time of all threads in clock ticks: of ordinary threads, and of those in the idle scheduling class
/// (proc_pid_stat(5)).
fn ticks_by_class(h: &Harness) -> [u64; 2] {
    let mut ticks = [0; 2];
    for task in fs::read_dir(format!("/proc/{}/task", h.gateway.id())).unwrap() {
        let Ok(stat) = fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let fields: Vec<u64> =
            stat.rsplit_once(')').unwrap().1.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        ticks[usize::from(fields[38] == 5)] += fields[11] + fields[12];
    }
    ticks
}

/// The kernel runs a thread of the idle class only if no other thread has work.
#[test]
#[cfg(target_os = "linux")]
fn report_takes_no_time_from_requests() {
    let h = crowded();
    let before = ticks_by_class(&h);
    for _ in 0..5 {
        ask(&h, "usage?by=key&limit=1000");
        ask(&h, "keys?limit=1000");
        assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
    }
    let after = ticks_by_class(&h);
    let [others, idle] = [after[0] - before[0], after[1] - before[1]];
    assert!(idle >= 20 && others * 4 < idle, "{idle} ticks in the idle class, {others} in the ordinary one");
}
