//! A provider that records the exact bytes of its requests.

use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A provider that keeps what it receives. Answers with the status that its `script` gives, and in errors with
/// everything that it received.
#[derive(Clone, Default)]
pub struct Recorder {
    received: Arc<Mutex<Vec<String>>>,
    status: Arc<Mutex<u16>>,
    /// Message of errors, and further header lines; if empty, errors contain the received bytes.
    said: Arc<Mutex<(String, String)>>,
    /// Body of responses with status 200; if empty, the default body.
    body: Arc<Mutex<String>>,
}

impl Recorder {
    /// Starts a recorder.
    pub fn start() -> (Recorder, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (recorder, at) = (Recorder::default(), listener.local_addr().unwrap());
        recorder.answer_with(200);
        let own = recorder.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || own.serve(stream));
            }
        });
        (recorder, at)
    }

    /// Sets the status of the next answers.
    pub fn answer_with(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    /// Sets the message of the next errors and further header lines, each with its end.
    pub fn say(&self, message: &str, lines: &str) {
        *self.said.lock().unwrap() = (message.to_owned(), lines.to_owned());
    }

    /// Sets the body of the next responses with status 200; a stream begins with `event: `.
    pub fn answer(&self, body: &str) {
        *self.body.lock().unwrap() = body.to_owned();
    }

    /// Takes the received requests, with head and body.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.received.lock().unwrap())
    }

    fn serve(&self, mut stream: TcpStream) {
        let (mut all, mut block) = (Vec::new(), [0; 16 << 10]);
        loop {
            let text = String::from_utf8_lossy(&all).into_owned();
            let whole = text.split_once("\r\n\r\n").filter(|(head, body)| {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                length.is_none_or(|length| body.len() >= length.parse::<usize>().unwrap())
            });
            if let Some((head, _)) = whole {
                let of_messages = head.contains("/messages ");
                self.received.lock().unwrap().push(text.clone());
                let status = *self.status.lock().unwrap();
                let (said, lines) = self.said.lock().unwrap().clone();
                let body = match (status, of_messages) {
                    (200, true) => json!({"id": "m", "type": "message", "role": "assistant", "model": "m",
                        "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn",
                        "usage": {"input_tokens": 3, "output_tokens": 2}}),
                    (200, false) => json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"},
                        "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}),
                    _ if !said.is_empty() => {
                        json!({"type": "error", "error": {"type": "invalid_request_error", "message": said}})
                    }
                    _ => json!({"type": "error", "error": {"type": "some_error", "message": head, "code": head}}),
                };
                let own = self.body.lock().unwrap().clone();
                let body = if status == 200 && !own.is_empty() { own } else { body.to_string() };
                let kind = if body.starts_with("event: ") { "text/event-stream" } else { "application/json" };
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nretry-after: 7\r\n{lines}content-length: {}\r\n\
                     \r\n{body}",
                    body.len()
                );
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
                all.clear();
                continue;
            }
            match stream.read(&mut block) {
                Ok(0) | Err(_) => return,
                Ok(count) => all.extend_from_slice(&block[..count]),
            }
        }
    }
}
