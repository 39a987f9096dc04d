//! The scripts: the provider's behaviour for each name that a request may contain.

use super::answers::{error, error_event, ping, stream, whole};
use super::stalls::is_optimised;
use super::wire::{Asked, Wire};
use std::time::Duration;

/// Bytes of text in the answer of `huge`: slightly over 50 MB with its framing, and a fifth of it if the gateway is not
/// optimised, which would take too long.
fn huge() -> usize {
    if is_optimised() { 50_000_000 } else { 10_000_000 }
}

const JSON: &str = "content-type: application/json";
const EVENTS: &str = "content-type: text/event-stream";
/// Longer than every timeout of the table.
const STALL: Duration = Duration::from_secs(20);

/// A provider that follows the scripts, one request after another.
pub fn faulty(mut wire: Wire) {
    let mut served = 0;
    while let Some(mut asked) = wire.request() {
        if asked.script == "stale" {
            // The provider has just closed this kept connection; new connections work.
            if served > 0 {
                return;
            }
            asked.script = "good".into();
        }
        if !play(&mut wire, &asked) {
            return;
        }
        served += 1;
    }
}

/// A provider that answers every request well, each on a new connection.
pub fn good(mut wire: Wire) {
    if let Some(asked) = wire.request() {
        wire.rest(&asked);
        let asked = Asked { script: "good_close".into(), ..asked };
        play(&mut wire, &asked);
    }
}

/// Returns a head with a `content-length`, and the body.
fn sized(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn chunked_head(fields: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\ntransfer-encoding: chunked\r\n\r\n")
}

fn chunk(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n", body.len())
}

fn field_of(asked: &Asked) -> &'static str {
    if asked.stream { EVENTS } else { JSON }
}

/// Returns the complete healthy body.
fn body_of(asked: &Asked) -> String {
    let text = super::answers::TEXT;
    if asked.stream { stream(asked.shape, text).all() } else { whole(asked.shape, text) }
}

/// Returns the part of the body before a fault in mid-answer.
fn half_of(asked: &Asked) -> String {
    if asked.stream {
        return stream(asked.shape, super::answers::TEXT).part(2);
    }
    let body = body_of(asked);
    body[..body.len() / 2].to_owned()
}

/// Follows one script. Returns true if the connection can be used again.
fn play(wire: &mut Wire, asked: &Asked) -> bool {
    let script = asked.script.as_str();
    if let Some(status) = script.strip_prefix("status_") {
        let fields = format!("{JSON}\r\nretry-after: 1");
        let message = error(asked.shape, "the model up is not to be had; key sk-secret123456");
        wire.send(sized(&format!("{status} Whatever"), &fields, &message));
        return true;
    }
    match script {
        "good" => wire.send(sized("200 OK", field_of(asked), &body_of(asked))),
        "chunked" => wire.send(chunked_head(field_of(asked)) + &chunk(&body_of(asked)) + "0\r\n\r\n"),
        "one_byte_chunks" => {
            wire.send(chunked_head(field_of(asked)));
            body_of(asked).chars().for_each(|c| wire.send(chunk(&c.to_string())));
            wire.send("0\r\n\r\n");
        }
        "drip" => {
            let all = sized("200 OK", field_of(asked), &body_of(asked));
            all.as_bytes().iter().for_each(|byte| wire.send([*byte]));
        }
        "interim" => {
            wire.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
            wire.send(sized("200 OK", field_of(asked), &body_of(asked)));
        }
        "wrong_type" => wire.send(sized("200 OK", "content-type: text/plain", &body_of(asked))),
        "html_200" => wire.send(sized("200 OK", "content-type: text/html", "<html>Sign in</html>")),
        "html_502" => wire.send(sized("502 Bad Gateway", "content-type: text/html", "<html>Bad gateway</html>")),
        "gzip" => wire.send(sized("200 OK", &format!("{}\r\ncontent-encoding: gzip", field_of(asked)), "\u{1f}\u{8b}")),
        "plain_for_stream" => wire.send(sized("200 OK", JSON, &whole(asked.shape, super::answers::TEXT))),
        "stream_for_plain" => {
            let events = stream(asked.shape, super::answers::TEXT).all();
            wire.send(sized("200 OK", "content-type: text/plain", &events));
        }
        "no_content" => wire.send("HTTP/1.1 204 No Content\r\n\r\n"),
        "empty" => wire.send(sized("200 OK", field_of(asked), "")),
        "not_json" => wire.send(sized("200 OK", field_of(asked), "data: {\"broken\n\n")),
        "error_200" => {
            let event = error_event(asked.shape, "overloaded");
            let body = if asked.stream { event } else { error(asked.shape, "overloaded") };
            wire.send(sized("200 OK", field_of(asked), &body));
        }
        "huge" => {
            let text = "a".repeat(huge());
            wire.send(sized("200 OK", field_of(asked), &whole(asked.shape, &text)));
        }
        "too_large" => {
            let text = "a".repeat(3 << 20);
            let event = stream(asked.shape, &text).part(1);
            let body = if asked.stream { half_of(asked) + &event } else { whole(asked.shape, &text) };
            wire.send(chunked_head(field_of(asked)) + &chunk(&body) + "0\r\n\r\n");
        }
        _ => return play_end(wire, asked) || play_early(wire, asked),
    }
    true
}

/// Follows scripts that end the connection.
fn play_end(wire: &mut Wire, asked: &Asked) -> bool {
    let (shape, field) = (asked.shape, field_of(asked));
    let parts = || stream(shape, super::answers::TEXT);
    match asked.script.as_str() {
        "good_close" => {
            wire.send(sized("200 OK", &format!("{field}\r\nconnection: close"), &body_of(asked)));
            wire.fin();
        }
        "close" => wire.fin(),
        "reset" => wire.reset(),
        "to_end" => {
            wire.send(format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n{}", body_of(asked)));
            wire.fin();
        }
        "to_end_no_notify" => {
            wire.send(format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n{}", body_of(asked)));
            wire.fin_without_notify();
        }
        "to_end_cut" => {
            wire.send(format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n{}", half_of(asked)));
            wire.fin();
        }
        "paced" => {
            let paced = stream(shape, &super::answers::long_text());
            wire.send(chunked_head(field));
            for part in [&paced.opening].into_iter().chain(&paced.tokens).filter(|part| !part.is_empty()) {
                wire.send(chunk(part));
                std::thread::sleep(Duration::from_millis(40));
            }
            wire.send(chunk(&(paced.finish + &paced.done)) + "0\r\n\r\n");
            return true;
        }
        "extra_bytes" => {
            wire.send(sized("200 OK", field, &body_of(asked)) + "and more than was announced");
            wire.wait_for_end();
        }
        "body_of_204" => {
            wire.send("HTTP/1.1 204 No Content\r\n\r\n{\"here\":\"is a body\"}");
            wire.wait_for_end();
        }
        "garbage" => hang(wire, "\u{16}\u{3}\u{1}\u{0} nothing of HTTP\r\n\r\n"),
        "bad_status" => hang(wire, "HTTP/1.1 two hundred OK\r\n\r\n"),
        "switching" => hang(wire, "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
        "two_lengths" => hang(wire, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na"),
        "length_and_chunks" => {
            hang(wire, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
        }
        "long_head" => hang(wire, &format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "a".repeat(40_000))),
        "head_cut" => {
            wire.send("HTTP/1.1 200 OK\r\ncontent-ty");
            wire.fin();
        }
        "cut_at_head" => {
            wire.send(chunked_head(field));
            wire.fin();
        }
        "cut" | "cut_no_notify" | "reset_mid" => {
            wire.send(chunked_head(field) + &chunk(&half_of(asked)));
            // Bytes sent before a reset are lost unless the gateway reads them in time.
            std::thread::sleep(Duration::from_millis(30));
            match asked.script.as_str() {
                "cut" => wire.fin(),
                "reset_mid" => wire.reset(),
                _ => wire.fin_without_notify(),
            }
        }
        "bad_chunk" => hang(wire, &(chunked_head(field) + &chunk(&half_of(asked)) + "zz\r\nnot a chunk")),
        "malformed_mid" => {
            let events = parts().part(2) + "event: content_block_delta\ndata: {\"broken\n\n" + &parts().finish;
            wire.send(chunked_head(field) + &chunk(&events) + "0\r\n\r\n");
            wire.wait_for_end();
        }
        "error_mid" => {
            let events = parts().part(2) + &error_event(shape, "overloaded");
            wire.send(chunked_head(field) + &chunk(&events));
            wire.wait_for_end();
        }
        "failed" => {
            let word = |text: String| text.replace("\"stop\"", "\"error\"").replace("\"end_turn\"", "\"error\"");
            // Usage reported together with a failure would be charged in full.
            let end = parts().finish.replace(",\"usage\":{\"output_tokens\":3}", "") + &parts().done;
            wire.send(match asked.stream {
                true => chunked_head(field) + &chunk(&(parts().part(2) + &word(end))),
                false => sized("200 OK", field, &word(body_of(asked))),
            });
            wire.wait_for_end();
        }
        "no_reason" => {
            wire.send(chunked_head(field) + &chunk(&(parts().part(2) + &parts().done)));
            wire.wait_for_end();
        }
        "no_finish" => {
            wire.send(sized("200 OK", field, &half_of(asked)));
            wire.wait_for_end();
        }
        _ => return play_stall(wire, asked),
    }
    false
}

/// Follows scripts that let the gateway wait, including those that end well. Returns true if the connection can be used
/// again.
fn play_stall(wire: &mut Wire, asked: &Asked) -> bool {
    let (shape, field) = (asked.shape, field_of(asked));
    let parts = || stream(shape, super::answers::TEXT);
    match asked.script.as_str() {
        "no_done" => {
            let events = parts().part(3) + &parts().finish;
            wire.send(sized("200 OK", field, &events));
            return true;
        }
        "no_done_stall" => {
            wire.send(chunked_head(field) + &chunk(&(parts().part(3) + &parts().finish)));
            wire.stall(STALL);
        }
        "tail_missing" => {
            wire.send(chunked_head(field) + &chunk(&body_of(asked)));
            wire.stall(STALL);
        }
        "stall" => wire.stall(STALL),
        "stall_at_head" => {
            wire.send(chunked_head(field));
            wire.stall(STALL);
        }
        "stall_mid" => {
            wire.send(chunked_head(field) + &chunk(&half_of(asked)));
            wire.stall(STALL);
        }
        "pings" | "pings_mid" => {
            let before = if asked.script == "pings" { String::new() } else { chunk(&half_of(asked)) };
            wire.send(chunked_head(field) + &before);
            for _ in 0..300 {
                wire.send(chunk(ping(shape)));
                wire.stall(Duration::from_millis(40));
            }
        }
        _ => {}
    }
    false
}

/// Follows scripts that answer before they have read the request. Returns true if the connection can be used again.
fn play_early(wire: &mut Wire, asked: &Asked) -> bool {
    match asked.script.as_str() {
        "early_good" => wire.send(sized("200 OK", field_of(asked), &body_of(asked))),
        "early_413" => wire.send(sized("413 Too Large", JSON, &error(asked.shape, "this is too much"))),
        "early_503_close" => {
            let answer = sized("503 Full", &format!("{JSON}\r\nconnection: close"), &error(asked.shape, "full"));
            wire.send(answer);
        }
        "early_reset" => {
            wire.reset();
            return false;
        }
        _ => return false,
    }
    // The provider reads nothing more, so the rest of the request stays unsent.
    std::thread::sleep(Duration::from_millis(100));
    false
}

fn hang(wire: &mut Wire, bytes: &str) {
    wire.send(bytes);
    wire.wait_for_end();
}

/// A provider that does not answer with TLS.
pub fn no_tls(mut wire: Wire) {
    wire.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    wire.wait_for_end();
}

/// A provider that accepts connections and sends nothing.
pub fn silent(mut wire: Wire) {
    wire.stall(STALL);
}

/// A provider that closes every connection before it has received anything.
pub fn slams(mut wire: Wire) {
    wire.fin();
}

/// Returns the text that a client must receive for `script`.
pub fn text_of(script: &str) -> String {
    if script == "huge" { "a".repeat(huge()) } else { super::answers::TEXT.to_owned() }
}
