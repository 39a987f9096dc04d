//! An embeddings answer for many texts has megabytes. The extra memory that it needs is bounded on both sides, while it
//! is collected and while its client does not read.

use super::rig::Rig;

/// Size of the vectors in the answer, in bytes.
const LARGE: usize = 2 << 20;
/// Bytes that each side may buffer in addition to the collected answer.
const SIDE: usize = 256 << 10;

fn request(key: &str) -> String {
    let body = "{\"model\":\"small\",\"input\":\"x\"}";
    let length = body.len();
    format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Floats in the provider's notation, which must arrive digit for digit.
fn floats() -> String {
    let floats: Vec<String> = (0..LARGE / 12).map(|at| format!("0.{at:09}")).collect();
    floats.join(",")
}

#[test]
fn large_embeddings_arrive_unchanged_with_bounded_extra_memory() {
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
        assert!(rig.most <= most, "{framing}: {} bytes were buffered for an answer of {}", rig.most, body.len());
        rig.read("c");
        assert!(rig.got("c").contains(&answer("small")), "{framing}");
        assert_eq!(rig.world.gateway.vitals().buffered, 0, "{framing}");
    }
}
