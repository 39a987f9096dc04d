//! Four credentials of 60 requests per minute each, whose provider reports the remaining requests. For five minutes
//! they receive nearly all the requests that they allow together, from an uneven mix of conversations.

use super::rig::{Rig, STREAM, event, stream_end};
use tollgate::base::seam::Ending;

const CREDENTIALS: usize = 4;
/// Requests that one credential allows per minute.
const ALLOWED: u64 = 60;
const MINUTE: u64 = 60_000;
/// Milliseconds between two requests: 97.6 % of the allowed rate.
const PACE: u64 = 256;
const MINUTES: u64 = 5;

/// State of a credential at the provider.
#[derive(Clone, Copy, Default)]
struct Account {
    /// End of its current minute, and requests served in that minute.
    until: u64,
    served: u64,
}

/// Counts of the whole run.
#[derive(Default, Debug)]
struct Seen {
    served: u64,
    refused: u64,
    /// Requests sent with a credential that had reported 0 remaining, while another credential had requests left.
    early: u64,
}

/// Sends one request at `now` and runs it to completion.
fn ask(rig: &mut Rig, session: u64, now: u64, accounts: &mut [Account], seen: &mut Seen) {
    let body =
        format!("{{\"model\":\"small\",\"messages\":[{{\"role\":\"user\",\"content\":\"session {session}\"}}]}}");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        rig.keys.texts["k0"],
        body.len()
    );
    rig.send("c1", format!("{head}{body}"));
    while let Some(label) = rig.asked().pop() {
        let asked = String::from_utf8_lossy(&rig.world.ends[&label].got).into_owned();
        answer(rig, &label, &asked, now, accounts, seen);
    }
    let client = rig.world.end("c1").unwrap();
    client.all.clear();
    client.got.clear();
}

/// Answers a request as the provider does, from the account of its credential.
fn answer(rig: &mut Rig, label: &str, asked: &str, now: u64, accounts: &mut [Account], seen: &mut Seen) {
    let key = asked.split("Bearer key-").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
    let at: usize = key.parse().unwrap();
    for account in accounts.iter_mut().filter(|account| account.until <= now) {
        *account = Account { until: now + MINUTE, served: 0 };
    }
    let others = accounts.iter().enumerate().any(|(other, account)| other != at && account.served < ALLOWED);
    let account = &mut accounts[at];
    let full = account.served >= ALLOWED;
    seen.early += u64::from(full && others);
    (account.served, seen.served) = (account.served + u64::from(!full), seen.served + u64::from(!full));
    seen.refused += u64::from(full);
    let limits = format!(
        "x-ratelimit-remaining-requests: {}\r\nx-ratelimit-reset-requests: {}ms",
        ALLOWED - account.served,
        account.until - now
    );
    let answer = match (full, asked.contains("\"stream\":true")) {
        (true, _) => format!("HTTP/1.1 429 X\r\n{limits}\r\ncontent-length: 2\r\n\r\n{{}}"),
        (_, false) => format!("HTTP/1.1 200 X\r\n{limits}\r\ncontent-length: {}\r\n\r\n{ANSWER}", ANSWER.len()),
        (_, true) => {
            let head = STREAM.replacen("\r\n", &format!("\r\n{limits}\r\n"), 1);
            format!("{head}{}{}", event("a"), stream_end())
        }
    };
    rig.answer(label, &answer);
}

const ANSWER: &str = "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"\"}}],\
                      \"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}";

/// Returns a gateway with four credentials of one provider; `lines` change the model.
fn rig(lines: &[(&str, &str)]) -> Rig {
    let listed: Vec<String> = (0..CREDENTIALS).map(|n| format!("{{ command = [\"key\", \"{n}\"] }}")).collect();
    let keys = format!("api_keys = [{}]", listed.join(", "));
    let mut all = vec![
        ("server", "keepalive_timeout = \"1d\""),
        ("provider many", "shape = \"chat\""),
        ("provider many", "base_url = \"http://10.0.0.3/v1\""),
        ("provider many", &keys),
        ("model small", "targets = [{ provider = \"many\", model = \"m\" }]"),
    ];
    all.extend(lines);
    Rig::with(8, &all)
}

/// Checks the counts of five minutes near or above the allowed rate.
fn holds(seen: &Seen) {
    println!("{seen:?}");
    let allowed = CREDENTIALS as u64 * ALLOWED * MINUTES;
    assert_eq!(seen.early, 0, "{seen:?}");
    assert!(seen.refused * 200 <= seen.served + seen.refused, "at most 0.5 % of all attempts: {seen:?}");
    assert!(seen.served * 100 >= 95 * allowed, "{seen:?} of {allowed}");
}

#[test]
fn credentials_are_used_up_to_their_rate_limit_and_not_beyond() {
    let mut rig = rig(&[]);
    let (mut accounts, mut seen) = ([Account::default(); CREDENTIALS], Seen::default());
    let (mut now, mut number) = (0, 0u64);
    while now < MINUTES * MINUTE {
        number += 1;
        // Conversations have different numbers of turns, so a busy one needs more than its own credential.
        ask(&mut rig, number * number % 23, now, &mut accounts, &mut seen);
        rig.wait(PACE);
        now += PACE;
    }
    holds(&seen);
}

/// Disconnects the clients that have been answered, and removes them.
fn forget_answered(rig: &mut Rig) {
    let is_answered = |text: &str| text.contains("\"usage\"") || text.contains("[DONE]") || text.contains("error");
    let clients = rig.world.ends.keys().filter(|label| label.starts_with('c'));
    let answered: Vec<String> = clients.filter(|label| is_answered(&rig.got(label))).cloned().collect();
    for label in answered {
        rig.world.finish(&label, Ending::Fin).unwrap();
        rig.world.ends.remove(&label);
    }
    rig.world.ends.retain(|label, end| label.starts_with('c') || end.closed.is_none());
}

/// Eight keys send ten times what the credentials allow. The requests queue, and none is sent before a reset, even if
/// slots are free.
#[test]
fn queue_at_ten_times_the_rate_causes_no_provider_429() {
    let mut rig =
        rig(&[("server", "max_buffered = \"64MiB\""), ("model small", "queue = { max = 100, wait = \"2m\" }")]);
    let (mut accounts, mut seen) = ([Account::default(); CREDENTIALS], Seen::default());
    // Ten requests for each that is allowed. An answer takes one second.
    let (tick, mut number, mut due) = (25, 0u64, Vec::new());
    for now in (0..MINUTES * MINUTE).step_by(tick as usize) {
        number += 1;
        let key = rig.keys.texts[&format!("k{}", number % 8)].clone();
        let (head, body) = super::rig::request(&key, 200, number % 3 == 0);
        rig.send(&format!("c{number}"), format!("{head}{body}"));
        for label in
            rig.asked().into_iter().filter(|label| !due.iter().any(|(_, known, _)| known == label)).collect::<Vec<_>>()
        {
            let text = String::from_utf8_lossy(&rig.world.ends[&label].got).into_owned();
            due.push((now + 1000, label, text));
        }
        for (_, label, text) in due.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            answer(&mut rig, &label, &text, now, &mut accounts, &mut seen);
        }
        rig.wait(tick);
        if number.is_multiple_of(50) {
            forget_answered(&mut rig);
        }
    }
    holds(&seen);
}
