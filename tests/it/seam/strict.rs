//! What a provider reports beyond a strict limit is counted.

use super::rig::{Rig, large_answer};

#[test]
fn provider_that_reports_more_than_was_reserved_is_counted_by_target() {
    let mut rig = Rig::with(1, &[("plan team", "tokens = 1000"), ("plan team", "strict = true")]);
    let (key, body) = (
        rig.keys.texts["k0"].clone(),
        r#"{"model":"small","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#,
    );
    let head = format!("host: g\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n", body.len());
    rig.send("client", format!("POST /v1/chat/completions HTTP/1.1\r\n{head}{body}"));
    let provider = rig.asked().pop().unwrap();
    // 43 tokens are reserved, and 100 reported.
    rig.answer(&provider, &large_answer(0));
    assert_eq!(rig.status("client"), 200);
    rig.world.connect("admin", true).unwrap();
    rig.send("admin", "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let line = "tollgate_overruns_total{target=\"up/up-small\"} 1";
    assert!(rig.got("admin").contains(line), "{}", rig.got("admin"));
    assert!(rig.world.log.iter().any(|line| line.contains("\"event\":\"overrun\"")));
}
