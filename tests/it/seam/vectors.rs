//! Vectors of many texts are an answer of megabytes: what it holds beyond itself is bounded on either side, while it is
//! collected and while its client does not read it.

use super::rig::Rig;

/// Bytes of the answer's vectors.
const LARGE: usize = 2 << 20;
/// Bytes that each side may buffer besides the collected answer.
const SIDE: usize = 256 << 10;

fn request(key: &str) -> String {
    let body = "{\"model\":\"small\",\"input\":\"x\"}";
    let length = body.len();
    format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Floats as they come, digit for digit.
fn floats() -> String {
    let floats: Vec<String> = (0..LARGE / 12).map(|at| format!("0.{at:09}")).collect();
    floats.join(",")
}

#[test]
fn two_megabytes_of_vectors_arrive_byte_for_byte_and_cost_little_beyond_themselves() {
    let lines = [
        ("server", "max_buffered = \"256MiB\""),
        ("server", "max_body = \"1MiB\""),
        ("upstream", "max_response = \"60MiB\""),
        ("model small", "serves = [\"embeddings\"]"),
    ];
    for framing in ["announced", "in chunks"] {
        let mut rig = Rig::with(1, &lines);
        let vectors = floats();
        let answer = |model: &str| {
            format!(
                "{{\"object\":\"list\",\"data\":[{{\"embedding\":[{vectors}]}}],\"model\":\"{model}\",\
                 \"usage\":{{\"prompt_tokens\":60,\"total_tokens\":60}}}}"
            )
        };
        let body = answer("up-small");
        let key = rig.keys.texts["k0"].clone();
        rig.send("c", request(&key));
        rig.world.end("c").unwrap().reads = false;
        let provider = rig.asked().pop().unwrap();
        let length = match framing {
            "announced" => format!("content-length: {}", body.len()),
            _ => "transfer-encoding: chunked".to_owned(),
        };
        rig.answer(&provider, &format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{length}\r\n\r\n"));
        for piece in body.as_bytes().chunks(60_000) {
            let text = String::from_utf8_lossy(piece);
            let framed = if framing == "announced" { text.into() } else { format!("{:x}\r\n{text}\r\n", piece.len()) };
            rig.give(&provider, framed);
        }
        if framing != "announced" {
            rig.give(&provider, "0\r\n\r\n");
        }
        let most = body.len() + 2 * SIDE;
        assert!(rig.most <= most, "{framing}: {} bytes of {} were held", rig.most, body.len());
        rig.read("c");
        assert!(rig.got("c").contains(&answer("small")), "{framing}");
        assert_eq!(rig.world.gateway.vitals().buffered, 0, "{framing}");
    }
}
