//! Session affinity: sessions of 40 turns run against eight equal targets. A target has the prefix of a conversation in
//! its cache if it served the previous turn.

use super::rig::Rig;
use std::collections::BTreeMap;
use tollgate::base::rng::Rng;

const TARGETS: usize = 8;
/// Number of sessions whose distribution over the targets is checked, and the smaller number that runs all turns.
const SESSIONS: usize = 500;
const LONG_SESSIONS: usize = 100;
const TURNS: usize = 40;

/// Returns a gateway with eight providers, each at its own address; `lines` change its model.
fn rig(lines: &[(&str, &str)]) -> Rig {
    let names: Vec<String> = (0..TARGETS).map(|n| format!("provider p{n}")).collect();
    let urls: Vec<String> = (0..TARGETS).map(|n| format!("base_url = \"http://10.0.1.{n}/v1\"")).collect();
    let list: Vec<String> =
        (0..TARGETS).map(|n| format!("{{ provider = \"p{n}\", model = \"m\", priority = 1 }}")).collect();
    let targets = format!("targets = [{}]", list.join(", "));
    let mut all: Vec<(&str, &str)> = vec![
        ("upstream", "pool_idle_timeout = \"1d\""),
        ("server", "keepalive_timeout = \"1d\""),
        ("model small", &targets),
    ];
    for (name, url) in names.iter().zip(&urls) {
        all.extend([(name.as_str(), "shape = \"chat\""), (name.as_str(), url.as_str())]);
    }
    all.extend(lines);
    Rig::with(1, &all)
}

const ANSWER: &str = "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"\"}}],\
                      \"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}";

/// Sends one turn of a session and answers each attempt with the `status` of its target. Returns the target that served
/// the turn.
fn turn(rig: &mut Rig, session: usize, turn: usize, status: impl Fn(usize) -> u16) -> usize {
    let body = format!(
        "{{\"model\":\"small\",\"messages\":[{{\"role\":\"system\",\"content\":\"You are one of many.\"}},\
         {{\"role\":\"user\",\"content\":\"session {session}\"}},{{\"role\":\"user\",\"content\":\"turn {turn}\"}}]}}"
    );
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        rig.keys.texts["k0"],
        body.len()
    );
    rig.send("c1", format!("{head}{body}"));
    loop {
        let label = rig.asked().pop().expect("a provider receives the request");
        let asked = String::from_utf8_lossy(&rig.world.ends[&label].got).into_owned();
        let host = asked.split("host: 10.0.1.").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
        let at: usize = host.parse().unwrap();
        let (code, more) = (status(at), if status(at) == 200 { "" } else { "retry-after: 3600\r\n" });
        let answer = format!("HTTP/1.1 {code} X\r\n{more}content-length: {}\r\n\r\n{ANSWER}", ANSWER.len());
        rig.answer(&label, &answer);
        if code == 200 {
            rig.world.end("c1").unwrap().all.clear();
            rig.world.end("c1").unwrap().got.clear();
            return at;
        }
    }
}

/// Runs all turns of all sessions, in a random order in each round. Returns, for each session, the target of each turn.
fn play(rig: &mut Rig, sessions: usize, turns: usize, status: impl Fn(usize, usize) -> u16) -> Vec<Vec<usize>> {
    let (mut rng, mut served) = (Rng::from_u64(4), vec![Vec::new(); sessions]);
    for round in 0..turns {
        let mut order: Vec<usize> = (0..sessions).collect();
        (1..sessions).for_each(|n| order.swap(n, rng.below(n as u64 + 1) as usize));
        for session in order {
            let at = turn(rig, session, round, |at| status(round, at));
            served[session].push(at);
        }
    }
    served
}

/// Returns the share of turns that were served by the target of the previous turn.
fn hits(served: &[Vec<usize>]) -> f64 {
    let found: usize = served.iter().map(|turns| turns.windows(2).filter(|pair| pair[0] == pair[1]).count()).sum();
    found as f64 / served.iter().map(Vec::len).sum::<usize>() as f64
}

#[test]
fn session_stays_on_the_target_that_has_its_prefix_cached() {
    let mut rig = rig(&[]);
    let served = play(&mut rig, LONG_SESSIONS, TURNS, |_, _| 200);
    let at_home: usize = served.iter().map(|turns| turns.iter().filter(|at| **at == turns[0]).count()).sum();
    assert!(at_home * 100 >= 99 * LONG_SESSIONS * TURNS, "{at_home}");
    assert!(hits(&served) >= 0.97, "{}", hits(&served));
    let served = play(&mut rig, SESSIONS, 1, |_, _| 200);
    let mut shares = BTreeMap::new();
    served.iter().for_each(|turns| *shares.entry(turns[0]).or_insert(0.0) += 100.0 / SESSIONS as f64);
    assert!(shares.values().all(|share| (share - 100.0 / TARGETS as f64).abs() <= 3.0), "{shares:?}");
}

#[test]
fn without_affinity_turns_rarely_hit_the_cached_prefix() {
    let served = play(&mut rig(&[("model small", "affinity = \"off\"")]), LONG_SESSIONS, 8, |_, _| 200);
    assert!(hits(&served) <= 0.15, "{}", hits(&served));
}

#[test]
fn target_in_cooldown_moves_only_its_own_sessions_and_gets_them_back() {
    let (mut rig, lost) = (rig(&[]), 3);
    let served = play(&mut rig, LONG_SESSIONS, 4, |round, at| if at == lost && round >= 2 { 503 } else { 200 });
    for turns in &served {
        let moved = turns[2] != turns[0] || turns[3] != turns[0];
        assert_eq!(moved, turns[0] == lost, "{turns:?}");
        assert!(turns[2] == turns[3], "a session that moved stays on its new target: {turns:?}");
    }
    rig.wait(3_600_000);
    let again = play(&mut rig, LONG_SESSIONS, 1, |_, _| 200);
    assert!(served.iter().zip(&again).all(|(before, after)| before[0] == after[0]));
}
