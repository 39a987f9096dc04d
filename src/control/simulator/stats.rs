//! Statistics of the provider, and its last request, for tests that compare both with the gateway's reports. Bounded:
//! only the head of the last request and the first bytes of its body are kept.

use crate::wire::head::RequestHead;
use serde_json::{Value, json};

/// Bytes of the last request's body that are kept.
const BODY_KEPT: usize = 256 * 1024;

/// Counters since the start, shown by `GET /stats`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SimulatorStats {
    /// Answers begun with status 200.
    pub requests: u64,
    /// Streams among them.
    pub streamed: u64,
    /// Tokens of the prompts of answers begun.
    pub prompt_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
    /// Requests whose client left before all of the answer was written.
    pub aborted: u64,
    /// Requests answered with an error.
    pub failed: u64,
}

impl SimulatorStats {
    /// Counts an answer that has begun.
    pub fn began(&mut self, streamed: bool, prompt: u64) {
        self.requests += 1;
        self.streamed += u64::from(streamed);
        self.prompt_tokens += prompt;
    }

    /// Counts tokens that were written.
    pub fn tokens(&mut self, count: u64) {
        self.completion_tokens += count;
    }

    /// Returns the counters as shown by `GET /stats`.
    pub fn json(&self) -> String {
        json!({
            "requests": self.requests,
            "streamed": self.streamed,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "aborted": self.aborted,
            "failed": self.failed,
        })
        .to_string()
    }
}

/// Last request to a generation endpoint, shown by `GET /last`.
#[derive(Debug, Default)]
pub struct Last {
    head: Vec<u8>,
    body: Vec<u8>,
    bytes: usize,
}

impl Last {
    /// Replaces the last request.
    pub fn keep(&mut self, head: &[u8], body: &[u8]) {
        self.head.clear();
        self.head.extend_from_slice(head);
        self.body.clear();
        self.body.extend_from_slice(&body[..body.len().min(BODY_KEPT)]);
        self.bytes = body.len();
    }

    /// `{"method","target","headers":[[name,value]…],"body":JSON or null,"text":body as text,"bytes":its length}`;
    /// names in lower case, in their original order. `null` before the first request.
    pub fn json(&self) -> String {
        if self.head.is_empty() {
            return "null".to_owned();
        }
        let text = String::from_utf8_lossy(&self.head);
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let headers: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| json!([name.to_lowercase(), value.trim()])).collect();
        let text = String::from_utf8_lossy(&self.body);
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let bytes = self.bytes;
        json!({ "method": method, "target": target, "headers": headers, "body": body, "text": text, "bytes": bytes })
            .to_string()
    }
}

/// Returns the credential of a request, from bearer or from `x-api-key`.
pub fn credential<'a>(head: &RequestHead, bytes: &'a [u8]) -> &'a [u8] {
    use crate::wire::head::HeaderField;
    let bearer = head.field(HeaderField::Authorization).of(bytes);
    match bearer.strip_prefix(b"Bearer ") {
        Some(key) => key,
        None => head.field(HeaderField::XApiKey).of(bytes),
    }
}
