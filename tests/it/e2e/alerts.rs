//! Alerts by webhook: each is delivered once for its event, over restarts, kills and webhooks that fail, hang or
//! redirect, and never delays a request.

use super::collector::{Answer, Collector, answer};
use super::harness::{Harness, Setup, chat, chat_request, with};
use super::process::{Folder, run, wait_at_most, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A group whose budget two requests of [`spend`] use up.
const GROUP: &str = "[[groups]]\nname = \"eng\"\nbudget = 0.0005\n";

fn setup(alerts: &str) -> Setup {
    Setup { more: format!("{GROUP}[alerts]\n{alerts}\n"), ..Setup::default() }
}

fn webhook(collector: &Collector) -> String {
    format!("url = \"http://{}/hook/s3cret?a=b\"", collector.at)
}

/// Returns a request that costs a little more than half of the budget.
fn spending() -> Value {
    with(chat("x\n#sim tokens=130"), "max_tokens", 130)
}

/// Sends such a request. Returns its status.
fn spend(h: &Harness, key: &str) -> u16 {
    h.chat(key, &spending()).status()
}

/// Returns the bodies of all alerts, once there are at least `count`.
fn alerts(collector: &Collector, count: usize) -> Vec<Value> {
    let bodies = || collector.asked().into_iter().map(|(_, body)| body).collect::<Vec<_>>();
    wait_at_most(Duration::from_secs(60), "the alerts", || Some(bodies()).filter(|all| all.len() >= count))
}

/// Returns the events of alerts in the log, as outcome and id.
fn logged(h: &Harness, outcome: &str) -> Vec<String> {
    let lines = h.log().into_iter().filter(|line| line["event"] == "alert" && line["outcome"] == outcome);
    lines.map(|line| line["id"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn budget_alerts_once_for_each_threshold_and_period() {
    let collector = Collector::start();
    let mut h = Harness::start(&setup(&format!("{}\nbudget = [50, 80, 100]", webhook(&collector))));
    let key = h.key_with(&["--group", "eng"]);
    assert_eq!(spend(&h, &key), 200);
    let [first] = &alerts(&collector, 1)[..] else { panic!("{:?}", collector.asked()) };
    assert_eq!(
        (&first["what"], &first["name"], &first["threshold"]),
        (&"budget".into(), &"group eng".into(), &50.into())
    );
    assert_eq!(first["limit"], 0.0005);
    let used = first["used"].as_f64().unwrap();
    assert!((0.00026..0.0003).contains(&used), "{first}");
    let (begins, renews) = first["period"].as_str().unwrap().split_once('/').unwrap();
    assert!(begins < first["at"].as_str().unwrap() && first["at"].as_str().unwrap() < renews, "{first}");
    let (head, _) = collector.asked().remove(0);
    assert!(head.starts_with("post /hook/s3cret?a=b http/1.1"), "{head}");
    // The second request crosses two thresholds.
    assert_eq!(spend(&h, &key), 200);
    let all = alerts(&collector, 3);
    // Attempts may run concurrently.
    let mut shares: Vec<u64> = all.iter().map(|alert| alert["threshold"].as_u64().unwrap()).collect();
    shares.sort_unstable();
    assert_eq!(shares, [50, 80, 100]);
    let ids: BTreeSet<&str> = all.iter().map(id_of).collect();
    assert_eq!(ids.len(), 3, "{all:?}");
    wait_for("the deliveries", || (logged(&h, "sent").len() == 3).then_some(()));
    h.ledger(2);
    // A raised budget does not repeat an alert, neither after a kill nor after a reload.
    let file = h.folder.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    for budget in ["budget = 0.0012", "budget = 0.0016"] {
        std::fs::write(&file, text.replace("budget = 0.0005", budget)).unwrap();
        if budget.ends_with("12") {
            h.gateway.stop("KILL");
            h.start_again();
        } else {
            h.gateway.signal("HUP");
            wait_for("the reload", || h.log().iter().any(|line| line["outcome"] == "done").then_some(()));
        }
        assert_eq!(spend(&h, &key), 200);
        assert_eq!(spend(&h, &key), 200);
        h.ledger(4);
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(alerts(&collector, 3).len(), 3);
}

#[test]
fn webhook_that_fails_gets_same_alert_again_and_delays_nothing() {
    let works = Arc::new(AtomicBool::new(false));
    let says = works.clone();
    let says: Answer = Arc::new(move |number, _| match (says.load(Ordering::Relaxed), number % 3) {
        (true, _) => answer("204 No Content", "", ""),
        (false, 0) => answer("500 Internal Server Error", "", ""),
        (false, 1) => answer("307 Temporary Redirect", "location: http://127.0.0.1:1/\r\n", ""),
        (false, _) => answer("404 Not Found", "", "{}"),
    });
    let collector = Collector::that(says);
    let h = Harness::start(&setup(&webhook(&collector)));
    let key = h.key_with(&["--group", "eng"]);
    // Both alerts are tried immediately, after one second and after two.
    let began = Instant::now();
    assert_eq!((spend(&h, &key), spend(&h, &key)), (200, 200));
    let tried = alerts(&collector, 6);
    assert!(began.elapsed() > Duration::from_millis(2500), "{:?}", began.elapsed());
    works.store(true, Ordering::Relaxed);
    wait_at_most(Duration::from_secs(30), "the deliveries", || (logged(&h, "sent").len() == 2).then_some(()));
    let mut sent = logged(&h, "sent");
    sent.sort();
    for alert in &tried {
        assert!(sent.iter().any(|id| alert["id"] == **id), "{alert} is none of {sent:?}");
    }
    let count = collector.asked().len();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(collector.asked().len(), count, "an accepted alert was sent again");
    let mut failing = logged(&h, "failing");
    failing.sort();
    assert_eq!(failing, sent);
}

#[test]
fn hanging_webhook_delays_neither_requests_nor_shutdown() {
    let collector = Collector::that(Arc::new(|_, _| None));
    let mut h = Harness::start(&setup(&webhook(&collector)));
    let key = h.key_with(&["--group", "eng"]);
    assert_eq!((spend(&h, &key), spend(&h, &key)), (200, 200));
    alerts(&collector, 1);
    let free = h.key();
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(h.chat(&free, &chat("x\n#sim tokens=1")).status(), 200);
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // An attempt ends after ten seconds.
    wait_at_most(Duration::from_secs(30), "the end of the attempt", || {
        (!logged(&h, "failing").is_empty()).then_some(())
    });
    let line = h.log().into_iter().find(|line| line["event"] == "alert").unwrap();
    assert_eq!(line["error"], "no answer in time", "{line}");
    let began = Instant::now();
    assert!(h.gateway.stop("TERM").success());
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
}

#[test]
fn hanging_attempt_delays_no_other_alert() {
    // The first attempt is not answered. The others get a head, and a body that never ends.
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n\0";
    let hangs = |number: usize, _: &Value| (number > 0).then(|| head.to_owned());
    let collector = Collector::that(Arc::new(hangs));
    let h = Harness::start(&setup(&format!("{}\nbudget = [10, 20, 30, 40, 50]", webhook(&collector))));
    let key = h.key_with(&["--group", "eng"]);
    let began = Instant::now();
    assert_eq!(spend(&h, &key), 200);
    alerts(&collector, 5);
    wait_for("the deliveries", || (logged(&h, "sent").len() == 4).then_some(()));
    // The first attempt ends after ten seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Replaces text in the configuration.
fn reconfigure(h: &Harness, from: &str, to: &str) {
    let file = h.folder.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    std::fs::write(&file, text.replace(from, to)).unwrap();
}

#[test]
fn delivery_is_recorded_within_50_milliseconds_of_the_answer() {
    let answered: Arc<Mutex<Option<Instant>>> = Arc::default();
    let says = answered.clone();
    let collector = Collector::that(Arc::new(move |_, _| {
        *says.lock().unwrap() = Some(Instant::now());
        answer("200 OK", "", "")
    }));
    let plan = "[[plans]]\nname = \"tiny\"\nbudget = 0.0001\n";
    let more = format!("{plan}[alerts]\n{}\nbudget = [100]\n", webhook(&collector));
    let h = Harness::start(&Setup { more, ..Setup::default() });
    // A busy machine may run the gateway late, but not eight times.
    let took = (1..=8).map(|count| {
        assert_eq!(spend(&h, &h.key_with(&["--plan", "tiny"])), 200);
        let at =
            wait_at_most(Duration::from_secs(60), "the record", || (recorded(&h).len() == count).then(Instant::now));
        at - answered.lock().unwrap().unwrap()
    });
    let took: Vec<Duration> = took.collect();
    assert!(took.iter().any(|took| *took <= Duration::from_millis(50)), "{took:?}");
}

#[test]
fn new_budget_period_alerts_again() {
    let collector = Collector::start();
    let h = Harness::start(&setup(&format!("{}\nbudget = [50]", webhook(&collector))));
    reconfigure(&h, "budget = 0.0005\n", "budget = 0.0005\nperiod = \"day\"\n");
    let reload = |count: usize| {
        h.gateway.signal("HUP");
        let done = || h.log().iter().filter(|line| line["event"] == "reload" && line["outcome"] == "done").count();
        wait_for("the reload", || (done() == count).then_some(()));
    };
    reload(1);
    let key = h.key_with(&["--group", "eng"]);
    assert_eq!(spend(&h, &key), 200);
    assert_eq!(alerts(&collector, 1).len(), 1);
    wait_for("the record", || (recorded(&h).len() == 1).then_some(()));
    // The month began before the day whose alert was delivered.
    reconfigure(&h, "period = \"day\"", "period = \"month\"");
    reload(2);
    let [day, month] = &alerts(&collector, 2)[..] else { panic!("{:?}", collector.asked()) };
    assert_ne!(day["period"], month["period"]);
    wait_for("the record", || (recorded(&h).len() == 2).then_some(()));
    // The alert of the existing period has been sent.
    reconfigure(&h, "period = \"month\"", "period = \"day\"");
    reload(3);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(collector.asked().len(), 2);
}

#[test]
fn pending_alerts_without_a_webhook_wake_no_thread() {
    let collector = Collector::that(Arc::new(|_, _| answer("503 Service Unavailable", "", "")));
    let h = Harness::start(&setup(&webhook(&collector)));
    let key = h.key_with(&["--group", "eng"]);
    assert_eq!((spend(&h, &key), spend(&h, &key)), (200, 200));
    alerts(&collector, 2);
    reconfigure(&h, &webhook(&collector), "");
    h.gateway.signal("HUP");
    wait_for("the reload", || h.log().iter().any(|line| line["outcome"] == "done").then_some(()));
    // The next attempts would be due by now, but the thread must wait until it is woken.
    std::thread::sleep(Duration::from_secs(6));
    let woken = || -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", h.gateway.id())).unwrap().flatten();
        let status = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
        let status: Vec<String> = status.filter(|status| status.starts_with("Name:\talerts\n")).collect();
        let [status] = &status[..] else { panic!("{status:?}") };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse().unwrap()
    };
    let before = woken();
    std::thread::sleep(Duration::from_secs(2));
    assert!(woken() - before < 10, "{} times in two seconds", woken() - before);
}

fn ledger_of(h: &Harness) -> rusqlite::Connection {
    rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap()
}

/// Returns the ids of the alerts that the ledger knows as delivered.
fn recorded(h: &Harness) -> Vec<String> {
    let ledger = ledger_of(h);
    let mut query = ledger.prepare("SELECT id FROM alerts WHERE done").unwrap();
    let ids = query.query_map([], |row| row.get(0)).unwrap();
    ids.map(Result::unwrap).collect()
}

/// Returns the id of an alert.
fn id_of(alert: &Value) -> &str {
    alert["id"].as_str().unwrap()
}

#[test]
fn delivered_alert_is_not_repeated_while_the_ledger_cannot_be_written() {
    let collector = Collector::start();
    let mut h = Harness::start(&setup(&format!("{}\nbudget = [50]", webhook(&collector))));
    let key = h.key_with(&["--group", "eng"]);
    // The request is admitted before the ledger stalls, and ends afterwards.
    let ask = with(chat("x\n#sim tokens=130 delay=1500"), "max_tokens", 130);
    let id = std::thread::scope(|scope| {
        let asked = scope.spawn(|| h.chat(&key, &ask).status());
        std::thread::sleep(Duration::from_millis(700));
        let stalled = ledger_of(&h);
        stalled.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(asked.join().unwrap(), 200);
        let [alert] = &alerts(&collector, 1)[..] else { panic!("{:?}", collector.asked()) };
        assert_eq!(alert["threshold"], 50);
        wait_for("the event", || {
            h.log().into_iter().find(|line| line["outcome"] == "sent" && line["error"].is_string())
        });
        // A reload with other thresholds raises the alert again.
        reconfigure(&h, "budget = [50]", "budget = [50, 100]");
        h.gateway.signal("HUP");
        wait_for("the reload", || h.log().iter().any(|line| line["outcome"] == "done").then_some(()));
        std::thread::sleep(Duration::from_secs(2));
        id_of(alert).to_owned()
    });
    // Soon after the ledger can be written again, it knows the alert.
    wait_at_most(Duration::from_secs(20), "the record", || recorded(&h).contains(&id).then_some(()));
    h.gateway.stop("KILL");
    h.start_again();
    std::thread::sleep(Duration::from_secs(2));
    // The ledger that was not written has an alert of its own.
    let sent = collector.asked().into_iter().filter(|(_, alert)| alert["what"] == "budget");
    assert_eq!(sent.count(), 1);
}

/// The ledger remembers the alerts of earlier processes: here that about one target was delivered, and that about
/// another one was not.
#[test]
fn failing_target_alerts_after_a_minute_unless_that_was_delivered() {
    let collector = Collector::start();
    let target = |name: &str| {
        format!(
            "[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:9/v1\"\n[[models]]\n\
             id = \"{name}\"\ncontext = \"1K\"\ntargets = [{{ provider = \"{name}\" }}]\n"
        )
    };
    let more = format!("{}{}[alerts]\n{}\n", target("known"), target("tried"), webhook(&collector));
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    let sql = "INSERT INTO alerts VALUES ('target/known/known', 'alert_known', 5, 1, ?1),
        ('target/tried/tried', 'alert_tried', 5, 0, ?1)";
    ledger_of(&h).execute(sql, [tollgate::io::clock::unix().0 as i64]).unwrap();
    let fails = || {
        for model in ["known", "tried", "gone"] {
            assert!(h.chat(&key, &with(chat("x"), "model", model)).status() >= 500);
        }
    };
    let began = Instant::now();
    fails();
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=1")).status(), 200);
    let mut all =
        wait_at_most(Duration::from_secs(120), "the alerts", || Some(collector.asked()).filter(|all| all.len() >= 2));
    assert!(began.elapsed() > Duration::from_secs(55), "{:?}", began.elapsed());
    all.sort_by_key(|(_, alert)| alert["name"].to_string());
    let [(_, gone), (_, tried)] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&gone["what"], &gone["name"]), (&"target".into(), &"nobody/up-gone".into()));
    assert!(gone["threshold"].is_null() && gone["used"].is_null(), "{gone}");
    assert_eq!((&tried["name"], &tried["id"]), (&"tried/tried".into(), &"alert_tried".into()));
    fails();
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(collector.asked().len(), 2, "the same trouble must not alert twice");
}

/// An earlier process has reported two troubles, of which only the first alert was delivered.
#[test]
fn end_of_delivered_trouble_is_sent_until_the_webhook_accepts_it() {
    let collector = Collector::that(Arc::new(|number, _| match number {
        0 => answer("503 Service Unavailable", "", ""),
        _ => answer("200 OK", "", ""),
    }));
    let h = Harness::start(&setup(&webhook(&collector)));
    let key = h.key();
    let sql = "INSERT INTO alerts VALUES ('target/sim-chat/up-small', 'alert_small', 5000, 1, ?1),
        ('target/sim-messages/up-large', 'alert_large', 5000, 0, ?1)";
    ledger_of(&h).execute(sql, [tollgate::io::clock::unix().0 as i64]).unwrap();
    for model in ["large", "small"] {
        assert_eq!(h.chat(&key, &with(chat("x\n#sim tokens=1"), "model", model)).status(), 200);
    }
    let known = || ledger_of(&h).query_row("SELECT COUNT(*) FROM alerts", [], |row| row.get(0));
    wait_at_most(Duration::from_secs(30), "the end of both", || (known() == Ok(0)).then_some(()));
    wait_for("the log line", || (logged(&h, "resolved") == ["alert_small"]).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    let [refused, sent] = &alerts(&collector, 2)[..] else { panic!("{:?}", collector.asked()) };
    assert_eq!(refused, sent);
    assert_eq!((&sent["event"], &sent["id"]), (&"resolved".into(), &"alert_small".into()));
    assert_eq!((&sent["what"], &sent["name"]), (&"target".into(), &"sim-chat/up-small".into()));
    assert_eq!((&sent["since"], &sent["problem"]["cause"]), (&"1970-01-01T00:00:05Z".into(), &"".into()), "{sent}");
    assert!(sent["at"].as_str() > Some("2020") && sent["problem"]["text"] == "resolved: it answers again", "{sent}");
}

#[test]
fn hundred_concurrent_alerts_survive_a_kill() {
    let failing = Collector::that(Arc::new(|_, _| answer("503 Service Unavailable", "", "")));
    let plan = "[[plans]]\nname = \"tiny\"\nbudget = 0.0001\n";
    let more = format!("{plan}[alerts]\n{}\nbudget = [1, 2, 3, 5, 10, 20, 50, 100]\n", webhook(&failing));
    let mut h = Harness::start(&Setup { more, ..Setup::default() });
    let keys: Vec<String> = (0..13).map(|_| h.key_with(&["--plan", "tiny"])).collect();
    std::thread::scope(|scope| {
        for key in &keys {
            scope.spawn(|| assert_eq!(spend(&h, key), 200));
        }
    });
    h.ledger(13);
    h.gateway.stop("KILL");
    // The killed process may have left attempts that its webhook has not read yet.
    let collector = Collector::start();
    reconfigure(&h, &webhook(&failing), &webhook(&collector));
    h.start_again();
    let all = alerts(&collector, 104);
    std::thread::sleep(Duration::from_secs(1));
    let ids: BTreeSet<&str> = all.iter().map(id_of).collect();
    assert_eq!((ids.len(), collector.asked().len()), (104, 104));
    wait_for("the records", || (recorded(&h).len() == 104).then_some(()));
    h.gateway.stop("KILL");
    h.start_again();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(collector.asked().len(), 104);
}

#[test]
fn alerts_beyond_a_thousand_are_dropped_and_logged() {
    let collector = Collector::that(Arc::new(|_, _| answer("503 Service Unavailable", "", "")));
    // A request of each key uses up five budgets, and passes eight thresholds of each.
    let mut more = "[[plans]]\nname = \"tiny\"\nbudget = 0.0001\n".to_owned();
    for key in 0..26 {
        for (level, parent) in ["", "parent = \"0-", "parent = \"1-", "parent = \"2-"].iter().enumerate() {
            let parent = if level == 0 { String::new() } else { format!("{parent}{key}\"\n") };
            more.push_str(&format!("[[groups]]\nname = \"{level}-{key}\"\nbudget = 0.0001\n{parent}"));
        }
    }
    more.push_str(&format!("[alerts]\n{}\nbudget = [1, 2, 3, 5, 10, 20, 50, 100]\n", webhook(&collector)));
    let h = Harness::start(&Setup { more, ..Setup::default() });
    for key in 0..26 {
        let key = h.key_with(&["--plan", "tiny", "--group", &format!("3-{key}")]);
        assert_eq!(spend(&h, &key), 200);
    }
    let dropped = wait_for("the bound", || Some(logged(&h, "dropped")).filter(|all| all.len() >= 39));
    std::thread::sleep(Duration::from_millis(500));
    // One alert in addition to the thousand may be in delivery.
    assert!((39..=40).contains(&dropped.len()) && logged(&h, "dropped").len() == dropped.len(), "{}", dropped.len());
}

#[test]
fn kill_at_any_moment_loses_no_alert() {
    let collector = Collector::start();
    let moments = [0, 10, 20, 30, 45, 60, 100];
    let plan = |at: usize| format!("[[plans]]\nname = \"tiny{at}\"\nbudget = 0.0001\n");
    let plans: String = (0..=moments.len()).map(plan).collect();
    let more = format!("{plans}[alerts]\n{}\nbudget = [100]\n", webhook(&collector));
    let mut h = Harness::start(&Setup { more, ..Setup::default() });
    let is_spent = |h: &Harness, key: &String| {
        let budget = h.get("/v1/quota", key).json()["budget"].clone();
        budget["used"].as_f64().unwrap() >= budget["total"].as_f64().unwrap()
    };
    let mut keys = Vec::new();
    for at in 0..=moments.len() {
        let key = h.key_with(&["--plan", &format!("tiny{at}")]);
        let known = h.ledger(0).requests;
        assert_eq!(spend(&h, &key), 200);
        match moments.get(at) {
            Some(moment) => std::thread::sleep(Duration::from_millis(*moment)),
            None => drop(h.ledger(known + 1)),
        }
        h.gateway.stop("KILL");
        h.start_again();
        keys.push(key);
    }
    // A kill soon after the response may lose its usage record. Then no alert is due, but one may have been sent.
    let spent: Vec<bool> = keys.iter().map(|key| is_spent(&h, key)).collect();
    assert!(spent[moments.len()], "{spent:?}");
    // An attempt that a kill has interrupted is repeated once its claim has ended.
    let sent = || -> Vec<Value> { collector.asked().into_iter().map(|(_, alert)| alert).collect() };
    let done = |at: usize, sent: &[Value], recorded: &[String]| {
        let name = format!("(plan tiny{at})");
        let of = sent.iter().find(|alert| alert["name"].as_str().unwrap().ends_with(&name));
        of.is_some_and(|alert| recorded.iter().any(|id| id == id_of(alert)))
    };
    wait_for("the alerts", || {
        let (sent, recorded) = (sent(), recorded(&h));
        (0..spent.len()).all(|at| !spent[at] || done(at, &sent, &recorded)).then_some(())
    });
    // Only a kill between an answer of the webhook and its record repeats an alert, with the same id.
    let all = sent();
    let distinct: BTreeSet<(&str, &str)> =
        all.iter().map(|alert| (alert["name"].as_str().unwrap(), id_of(alert))).collect();
    let ids: BTreeSet<&str> = distinct.iter().map(|(_, id)| *id).collect();
    let names: BTreeSet<&str> = distinct.iter().map(|(name, _)| *name).collect();
    assert_eq!((ids.len(), names.len()), (distinct.len(), distinct.len()), "{all:#?}");
    h.gateway.stop("KILL");
    h.start_again();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(sent().len(), all.len(), "a recorded alert was repeated");
}

#[test]
fn kill_right_after_the_delivery_repeats_at_most_the_same_alert() {
    // The alert whose delivery ends in a kill, the process to kill, and the time from the webhook's answer to the kill.
    // An alert of an earlier process may arrive again meanwhile.
    let armed: Arc<Mutex<Option<(String, u32, Duration)>>> = Arc::default();
    let kills = armed.clone();
    let collector = Collector::that(Arc::new(move |_, alert| {
        let is_armed = |(name, ..): &mut (String, u32, Duration)| alert["name"].as_str().unwrap().ends_with(&**name);
        if let Some((_, process, after)) = kills.lock().unwrap().take_if(is_armed) {
            std::thread::spawn(move || {
                std::thread::sleep(after);
                let process = rustix::process::Pid::from_raw(process as i32).unwrap();
                rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
            });
        }
        answer("200 OK", "", "")
    }));
    let moments = [0, 1, 2, 5, 10, 20, 35, 50];
    let plan = |at: usize| format!("[[plans]]\nname = \"tiny{at}\"\nbudget = 0.0001\n");
    let name = |at: usize| format!("(plan tiny{at})");
    let plans: String = (0..=moments.len()).map(plan).collect();
    let more = format!("{plans}[alerts]\n{}\nbudget = [100]\n", webhook(&collector));
    let mut h = Harness::start(&Setup { more, ..Setup::default() });
    let bodies = |at: usize| -> Vec<Value> {
        let is_of = |body: &Value| body["name"].as_str().unwrap().ends_with(&name(at));
        collector.asked().into_iter().map(|(_, body)| body).filter(is_of).collect()
    };
    for at in 0..=moments.len() {
        let key = h.key_with(&["--plan", &format!("tiny{at}")]);
        let armed_moment = moments.get(at).map(|moment| (name(at), h.gateway.id(), Duration::from_millis(*moment)));
        *armed.lock().unwrap() = armed_moment;
        // The kill may precede the end of the response.
        let mut client = h.client();
        client.send(&chat_request(&key, &spending()));
        let _ = client.answer();
        if at == moments.len() {
            let is_recorded = || recorded(&h).iter().any(|id| bodies(at).first().is_some_and(|body| id == id_of(body)));
            wait_for("the record", || is_recorded().then_some(()));
            h.gateway.signal("KILL");
        }
        h.gateway.wait();
        h.start_again();
    }
    std::thread::sleep(Duration::from_secs(2));
    for at in 0..=moments.len() {
        // A repeated alert may be repeated again by each later kill.
        let sent = bodies(at);
        let most = moments.len() + 2 - at;
        assert!((1..=most).contains(&sent.len()), "{at}: {sent:#?}");
        assert!(sent.iter().all(|body| body["id"] == sent[0]["id"]), "{at}: another id: {sent:#?}");
    }
    let asked = collector.asked();
    let ids: BTreeSet<&str> = asked.iter().map(|(_, body)| id_of(body)).collect();
    assert_eq!(ids.len(), moments.len() + 1);
    assert_eq!(bodies(moments.len()).len(), 1, "this delivery was recorded");
}

#[test]
fn threshold_passed_before_it_was_configured_alerts_once() {
    let collector = Collector::start();
    let mut h = Harness::start(&Setup { more: GROUP.to_owned(), ..Setup::default() });
    let key = h.key_with(&["--group", "eng"]);
    assert_eq!(spend(&h, &key), 200);
    h.ledger(1);
    let file = h.folder.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    for (round, budget) in [(1, "[50, 100]"), (2, "[10, 50, 100]")] {
        std::fs::write(&file, format!("{text}\n[alerts]\n{}\nbudget = {budget}\n", webhook(&collector))).unwrap();
        h.gateway.signal("HUP");
        assert_eq!(alerts(&collector, round)[round - 1]["threshold"], [50, 10][round - 1]);
        wait_for("the delivery", || (logged(&h, "sent").len() == round).then_some(()));
    }
    // A start reports all thresholds again, and each that was delivered is known.
    h.gateway.stop("KILL");
    h.start_again();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(collector.asked().len(), 2);
    assert!(!h.log().iter().any(|line| line["event"] == "budget"), "a threshold passed before is not logged");
}

#[test]
fn test_alert_reaches_a_webhook_over_tls_in_the_form_of_slack() {
    let (collector, ca) = Collector::secured();
    let folder = Folder::new();
    std::fs::write(folder.path().join("ca.pem"), ca).unwrap();
    let url = format!("https://localhost:{}/services/s3cret", collector.at.port());
    let config = |alerts: &str| {
        let text = format!(
            "[alerts]\n{alerts}\n[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:9/v1\"\n\
             [[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"p\" }}]\n"
        );
        std::fs::write(folder.path().join("tollgate.toml"), text).unwrap();
    };
    let tollgate = |path: &Path, args: &[&str]| run(path, args, &[]);
    config(&format!("url = \"{url}\"\nform = \"slack\"\nca_file = \"ca.pem\""));
    let done = tollgate(folder.path(), &["alerts", "test"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let [(_, body)] = &collector.asked()[..] else { panic!("{:?}", collector.asked()) };
    let text = body["text"].as_str().unwrap();
    assert!(text.starts_with("Tollgate: ") && body.as_object().unwrap().len() == 1, "{body}");
    let id = done.out.trim_end().rsplit(' ').next().unwrap();
    assert!(text.ends_with(&format!("({id})")), "{body} {}", done.out);
    // The path is a secret.
    let page = tollgate(folder.path(), &["check", "--print"]);
    assert!(page.out.contains(&format!("url = \"https://localhost:{}/***\"", collector.at.port())), "{}", page.out);
    assert!(!page.out.contains("s3cret"));
    // Without the CA it is not trusted, and without a URL there is nothing to test.
    config(&format!("url = \"{url}\""));
    let done = tollgate(folder.path(), &["alerts", "test"]);
    assert!(done.code == 1 && done.err.contains("not delivered: the TLS handshake failed"), "{}", done.err);
    config("budget = [90]");
    let done = tollgate(folder.path(), &["alerts", "test"]);
    assert!(done.code == 1 && done.err.contains("alerts.url is not set"), "{}", done.err);
}
