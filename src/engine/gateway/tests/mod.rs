//! Tests of the whole core that need its internals: panics, pipelined requests, shares of keys.

use super::report::recorder::Recorder;
use super::*;
use crate::base::time::Unix;
use crate::policy::config::Source;
use crate::policy::keys::{Issued, KeyId, KeyNews, KeyRecord, Scope, issue};
use crate::policy::ledger::LedgerNotice;

mod shares;

const CONFIG: &str = "[[providers]]\nname = \"up\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n\
                      [[models]]\nid = \"small\"\ncontext = \"1M\"\ntargets = [{ provider = \"up\", model = \"m\" }]\n\
                      [[plans]]\nname = \"team\"\n";

fn now() -> Now {
    Now { mono: Mono(1_000_000), unix: Unix(1_700_000_000_000) }
}

/// A gateway with one key, and that key.
fn gateway() -> (Gateway, String) {
    let (gateway, mut keys) = gateway_of(CONFIG, 1, None);
    (gateway, keys.remove(0))
}

/// A gateway with `count` keys, and those keys.
fn gateway_of(config: &str, count: u8, descriptors: Option<usize>) -> (Gateway, Vec<String>) {
    let issued: Vec<_> = (7..7 + count).map(|byte| issue("tg_", |out| out.fill(byte))).collect();
    let read = |_: &str| Ok(String::new());
    let source = Source { file: "t", text: config, env: &|_| None, read: &read, run: &Source::no_program };
    let config = Config::parse(&source).unwrap();
    let keys: Vec<KeyRecord> = issued.iter().map(record).collect();
    let start = Start { client_listeners: 1, keys: keys.into(), descriptors, ..Start::default() };
    (Gateway::new(Arc::new(config), start, now()), issued.into_iter().map(|issued| issued.text).collect())
}

fn record(issued: &Issued) -> KeyRecord {
    KeyRecord {
        id: issued.id,
        digest: issued.digest,
        name: "k".to_string(),
        plan: "team".to_string(),
        scope: Scope::default(),
        created: Unix(0),
        expires: None,
        revoked: None,
        disabled: false,
        limits: crate::policy::plan::caps::Caps::default(),
        group: None,
        labels: Vec::new(),
        former: Vec::new(),
        capture: None,
    }
}

/// Log lines that were written since the last call.
fn logged(gateway: &mut Gateway) -> String {
    let orders = gateway.driver.cx.commands.orders.hand_over().drain(..);
    let lines = orders.map(|order| if let Order::Log(lines) = order { lines } else { Vec::new() });
    String::from_utf8(lines.collect::<Vec<_>>().concat()).unwrap()
}

#[test]
fn memory_of_keys_issued_later_is_announced() {
    let config = format!("[server]\nmemory = \"16MiB\"\n{CONFIG}");
    let (mut gateway, _) = gateway_of(&config, 1, None);
    let first = gateway.driver.cx.memory.announced;
    assert!(first <= 16 << 20);
    let mut learn = |from: u32, to: u32| {
        let issued = issue("tg_", |out| out.fill(9));
        let of = |number| KeyRecord { id: KeyId::parse(&format!("{number:012x}")).unwrap(), ..record(&issued) };
        gateway.notice(
            Notice::Ledger(LedgerNotice::Keys(KeyNews::Changed((from..to).map(of).collect(), Vec::new()))),
            now(),
        );
        let most = gateway.driver.cx.setup.config.worst_case_bytes(gateway.driver.cx.access.keys.bytes());
        let lines = logged(&mut gateway);
        let lines: Vec<String> = lines.lines().filter(|line| !line.contains("\"key\"")).map(str::to_owned).collect();
        (most, gateway.driver.cx.memory.announced, lines)
    };
    assert_eq!(learn(1, 500), (first, first, vec![]), "they fit into what was announced");
    let (most, announced, lines) = learn(500, 5000);
    assert!(most > 16 << 20 && announced == most, "{announced} of {most}");
    assert!(lines[0].contains("\"event\":\"memory\",\"keys\":5000,"), "{lines:?}");
    assert!(lines[0].contains(&format!("\"worst_case_bytes\":{most}}}")), "{lines:?}");
    assert!(lines[1].contains("MiB more than server.memory allows: raise it"), "{lines:?}");
    assert_eq!(learn(5000, 5400).2, [""; 0], "an eighth more is announced with the others");
    let (most, announced, lines) = learn(5400, 6000);
    assert!(announced == most && lines.len() == 2, "{lines:?}");
}

#[test]
fn exchange_lost_in_a_panic_leaves_no_reservation_or_charge() {
    let (mut gateway, key) = gateway();
    let conns: Vec<Conn> = (0..2)
        .map(|_| {
            let conn = gateway.accepted(0, "192.0.2.1:9".parse().unwrap(), now()).unwrap();
            let head = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\
                 content-length: 1000000\r\n\r\n{{"
            );
            gateway.bytes(conn, head.as_bytes(), now());
            conn
        })
        .collect();
    let both = gateway.vitals().promised;
    assert!(both > 1_900_000, "{both}");
    // As if the panic had occurred while the exchange and a buffer were being moved.
    let mut on_its_way = crate::base::buf::Buf::default();
    on_its_way.push(&mut gateway.driver.cx.memory.pool, &[7; 10_000]);
    drop(on_its_way);
    let lost = gateway.driver.clients.table.get(client_id(conns[0])).and_then(|client| client.exchange).unwrap();
    drop(gateway.driver.exchanges.remove(lost));
    gateway.panicked(Some(conns[0]), now());
    let one = gateway.vitals().promised;
    assert!(one > 900_000 && one < both / 2 + 10_000, "{one} of {both}");
    gateway.closed(conns[1], Ending::Broken, now());
    assert_eq!((gateway.vitals().promised, gateway.vitals().exchanges), (0, 0));
    assert_eq!(gateway.vitals().buffered, 0);
    let share = gateway.driver.cx.memory.pool.capacity() as u64 / 4;
    let (key, pool) = (crate::policy::keys::KeyIx(0), &mut gateway.driver.cx.memory.pool);
    let all = gateway.driver.cx.memory.shares.body(&mut memory::shares::Promise::default(), key, share, pool);
    assert!(all.is_ok(), "nothing of its share is missing");
}

/// The capture of a request counts as buffered until its thread has written it.
#[test]
fn captures_stay_charged_through_a_panic() {
    let (mut gateway, _) = gateway();
    let cx = &mut gateway.driver.cx;
    let id = crate::policy::keys::KeyId::parse("0123456789ab").unwrap();
    let mut captured =
        report::captures::Captured::new(id, client::response::RequestId::fresh(&mut cx.rng), now().unix, "tg_");
    captured.received(b"POST / HTTP/1.1\r\n\r\n", false, (&mut cx.report.captures, &mut cx.memory.pool));
    let before = gateway.vitals().buffered;
    assert!(captured.kept() > 0 && before > 0);
    gateway.panicked(None, now());
    assert_eq!(gateway.vitals().buffered, before);
    gateway.notice(Notice::Captured(id, captured.kept(), Ok(())), now());
    assert_eq!(gateway.vitals().buffered, 0);
}

#[test]
fn idle_gateway_is_woken_at_the_end_of_no_minute() {
    let (mut gateway, _) = gateway();
    gateway.driver.cx.report.recorder = Recorder::new(true, now());
    let at = |seconds: u64| Now { mono: Mono(1_000_000 * (1 + seconds)), unix: Unix(now().unix.0 + 1000 * seconds) };
    let ask = |gateway: &mut Gateway, seconds: u64| {
        let conn = gateway.accepted(0, "192.0.2.1:9".parse().unwrap(), at(seconds)).unwrap();
        gateway.bytes(conn, b"GET /nope HTTP/1.1\r\nhost: g\r\n\r\n", at(seconds));
        gateway.closed(conn, Ending::Broken, at(seconds));
    };
    ask(&mut gateway, 0);
    let mut woken = 0;
    while let Some(due) = gateway.next_deadline().filter(|_| woken < 9) {
        woken += 1;
        while gateway.expire(at(due.micros_since(now().mono).div_ceil(1_000_000))) {}
    }
    assert_eq!(woken, 2, "the minute of the request, and one without");
    ask(&mut gateway, 900);
    let minutes = gateway.driver.cx.report.recorder.minutes.as_ref().unwrap();
    let counted = minutes.of_hour(&gateway.driver.cx.report.stats, at(900).unix);
    let counted: Vec<_> = counted.map(|sum| (sum.minute - now().unix.0 / 60_000, sum.refused)).collect();
    assert_eq!(counted, [(0, 1), (15, 1)]);
    assert!(gateway.next_deadline().is_some());
}

fn accepted(gateway: &mut Gateway) -> Conn {
    gateway.accepted(0, "192.0.2.1:9".parse().unwrap(), now()).unwrap()
}

fn model_asked(key: &str, name: &str) -> String {
    format!("GET /v1/models/{name} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\r\n")
}

/// Names of the models in the answers to a client, in order.
fn models_answered(gateway: &Gateway, conn: Conn) -> Vec<usize> {
    let text = String::from_utf8_lossy(gateway.unsent(conn)).into_owned();
    text.split("`nope-").skip(1).map(|rest| rest.split('`').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn pipelined_requests_alternate_with_other_connections() {
    let (mut gateway, key) = gateway();
    let (first, second) = (accepted(&mut gateway), accepted(&mut gateway));
    let all: String = (0..50).map(|n| model_asked(&key, &format!("nope-{n}"))).collect();
    gateway.bytes(first, all.as_bytes(), now());
    let burst = usize::from(crate::base::limits::PIPELINE_BURST);
    assert_eq!(models_answered(&gateway, first), Vec::from_iter(0..burst));
    assert!(!gateway.wants_read(first), "no more is read while requests wait");
    assert_eq!(gateway.next_deadline(), Some(now().mono), "the loop must not sleep");

    gateway.bytes(second, model_asked(&key, "nope-100").as_bytes(), now());
    assert_eq!(models_answered(&gateway, second), [100]);
    assert_eq!(models_answered(&gateway, first).len(), burst);

    while gateway.expire(now()) {}
    assert_eq!(models_answered(&gateway, first), Vec::from_iter(0..50));
    assert!(gateway.wants_read(first));
    assert!(gateway.next_deadline().is_some_and(|due| due > now().mono));
}

#[test]
fn clients_with_pipelined_requests_take_turns() {
    let (mut gateway, key) = gateway();
    let conns = [accepted(&mut gateway), accepted(&mut gateway)];
    let all: String = (0..20).map(|n| model_asked(&key, &format!("nope-{n}"))).collect();
    conns.iter().for_each(|conn| gateway.bytes(*conn, all.as_bytes(), now()));
    for round in 2..=4 {
        assert!(gateway.expire(now()) && gateway.expire(now()));
        let burst = usize::from(crate::base::limits::PIPELINE_BURST);
        assert_eq!(conns.map(|conn| models_answered(&gateway, conn).len()), [round * burst; 2]);
    }
}

#[test]
fn draining_answers_pipelined_requests_that_wait() {
    let (mut gateway, key) = gateway();
    let conn = accepted(&mut gateway);
    let all: String = (0..50).map(|n| model_asked(&key, &format!("nope-{n}"))).collect();
    gateway.bytes(conn, all.as_bytes(), now());
    let before = models_answered(&gateway, conn).len();
    let later = Now { mono: now().mono.after(crate::base::limits::DRAIN_IDLE_GRACE), ..now() };
    Core::reply(&mut gateway, Reply::Signal(Signal::Terminate), later);
    while gateway.expire(later) {}
    let text = String::from_utf8_lossy(gateway.unsent(conn)).into_owned();
    assert!(models_answered(&gateway, conn).len() > before, "{text:.2000}");
}

#[test]
fn client_that_leaves_or_panics_leaves_no_pipelined_request() {
    let (mut gateway, key) = gateway();
    let conns = [accepted(&mut gateway), accepted(&mut gateway)];
    let all = model_asked(&key, "nope-1").repeat(50);
    conns.iter().for_each(|conn| gateway.bytes(*conn, all.as_bytes(), now()));
    gateway.closed(conns[0], Ending::Broken, now());
    assert_eq!(gateway.driver.clients.paused.iter().copied().collect::<Vec<_>>(), [client_id(conns[1])]);
    // As if the panic had occurred in the middle of its requests.
    gateway.driver.clients.resumed = gateway.driver.clients.paused.pop_front();
    gateway.panicked(None, now());
    assert_eq!(
        (gateway.vitals().clients, gateway.driver.clients.paused.len(), gateway.driver.clients.resumed),
        (0, 0, None)
    );
    assert_eq!(gateway.vitals().buffered, 0);
}

#[test]
fn number_of_rows_waiting_for_a_ledger_is_bounded() {
    let (mut gateway, _) = gateway();
    (1..crate::base::limits::ROWS_WAITING_MAX).for_each(|_| _ = gateway.driver.cx.accounts.ledger.gave(now().mono));
    assert!(gateway.driver.cx.takes_requests());
    gateway.driver.cx.accounts.ledger.gave(now().mono);
    assert!(!gateway.driver.cx.takes_requests());
    gateway.driver.cx.accounts.ledger.committed(1);
    assert!(gateway.driver.cx.takes_requests());
}

#[test]
fn an_exchange_stays_small() {
    let size = std::mem::size_of::<Exchange>();
    assert!(size <= 320, "{size}");
}
