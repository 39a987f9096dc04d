//! Owns the thread that sends spans to their collector: OTLP over HTTP, in JSON. It starts with the first span. If a
//! collector is slow or unreachable, spans are lost and counted. Neither the event loop nor the end of the process
//! waits long for it.

use crate::base::limits;
use crate::cli::http::blocking_http::{HttpResponse, NoAnswer};
use crate::cli::http::provider_client::{Asker, request, send};
use crate::gateway::Gateway;
use crate::gateway::orders::Notice;
use crate::io::batch_queue::{BatchQueue, IdlePolicy, Polled};
use crate::io::channel::{Receiver, channel};
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{ReactorMessage, Security};
use crate::io::worker::start_thread;
use crate::policy::config::Config;
use crate::wire::head::values;
use crate::wire::json::{self, Raw, ValueKind};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Spans per request to a collector.
const SPANS_PER_BATCH: usize = 512;
/// Pause of the busy thread that sends spans, so that spans accumulate.
const SPANS_TICK: Duration = Duration::from_secs(1);
/// Time that a collector may take to answer, including the connection.
const SPANS_ANSWER: Duration = Duration::from_secs(5);
/// Attempts to send a batch to a collector that cannot be reached or asks for a retry.
const SPANS_TRIES: u32 = 3;
/// Longest `Retry-After` of a collector that is honoured.
const SPANS_AGAIN_MAX: Duration = Duration::from_secs(10);
/// Time that shutdown waits for the last spans to be sent.
const SPANS_PARTING: Duration = Duration::from_secs(2);

/// Pause before a batch is sent again, doubled each time, if the collector sends no `Retry-After`.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval for checking whether the process is ending.
const LOOK: Duration = Duration::from_millis(50);

/// The sender's side.
pub(super) struct Exporter {
    ends: Ends,
    /// Closed when the thread ends.
    ended: Receiver<()>,
}

/// Spans, and the configuration of their requests: its collector gets them, even if the configuration has changed.
struct Given {
    config: Arc<Config>,
    spans: Vec<u8>,
}

/// State that both threads share.
#[derive(Clone)]
struct Ends {
    queue: BatchQueue<Vec<Given>>,
    /// Spans that found no space and have not been reported.
    dropped: Arc<AtomicU64>,
    /// Number of spans that wait or are being sent.
    waiting: Arc<AtomicU64>,
    security: Arc<Mutex<Security>>,
    mailbox: Mailbox<ReactorMessage<Gateway>>,
}

/// Number of spans: each is one line of JSON.
fn count(spans: &[u8]) -> u64 {
    spans.iter().filter(|byte| **byte == b'\n').count() as u64
}

impl Exporter {
    /// Starts the thread. `security` holds the event loop's current certificates.
    pub(super) fn start(
        security: Arc<Mutex<Security>>,
        mailbox: Mailbox<ReactorMessage<Gateway>>,
    ) -> io::Result<Exporter> {
        let ends =
            Ends { queue: BatchQueue::default(), dropped: Arc::default(), waiting: Arc::default(), security, mailbox };
        let (theirs, (alive, ended)) = (ends.clone(), channel());
        let serve = move || {
            theirs.serve();
            drop(alive);
        };
        start_thread("spans", Box::new(serve))?;
        Ok(Exporter { ends, ended })
    }

    /// Passes on spans for the collector of this configuration, and returns their storage for reuse.
    pub(super) fn give(&self, config: &Arc<Config>, mut spans: Vec<u8>) -> Vec<u8> {
        let ends = &self.ends;
        let waiting = ends.queue.put(false, |waiting| {
            let size = waiting.iter().map(|given| given.spans.len()).sum::<usize>() + spans.len();
            if size > limits::SPANS_BYTES_MAX {
                return None;
            }
            match waiting.last_mut() {
                Some(last) if Arc::ptr_eq(&last.config, config) => last.spans.extend_from_slice(&spans),
                _ => waiting.push(Given { config: config.clone(), spans: spans.clone() }),
            }
            ends.waiting.fetch_add(count(&spans), Ordering::Relaxed);
            Some(size)
        });
        match waiting {
            None => drop(ends.dropped.fetch_add(count(&spans), Ordering::Relaxed)),
            // Wakes the thread early, once, when the queue passes half of its bound.
            Some(now) if now > limits::SPANS_BYTES_MAX / 2 && now - spans.len() <= limits::SPANS_BYTES_MAX / 2 => {
                ends.queue.put(true, |_| ());
            }
            Some(_) => {}
        }
        spans.clear();
        spans
    }

    /// Closes the queue: no more spans will come.
    pub(super) fn close(&self) {
        self.ends.queue.close();
    }

    /// Waits a limited time until the last spans are sent. Returns the number of lost spans.
    pub(super) fn finish(&self) -> u64 {
        let _ = self.ended.recv_timeout(SPANS_PARTING);
        self.ends.dropped.load(Ordering::Relaxed) + self.ends.waiting.load(Ordering::Relaxed)
    }
}

impl Ends {
    fn serve(&self) {
        let (mut idle, mut given) = (IdlePolicy::new(SPANS_TICK), Vec::new());
        let mut failing = false;
        loop {
            match self.queue.poll(&mut given, &mut idle, Duration::from_secs(3600), Vec::is_empty) {
                Polled::Found => given.drain(..).for_each(|given| self.send_all(&given, &mut failing)),
                Polled::Nothing => {}
                Polled::Closed => return,
            }
        }
    }

    /// Sends spans in batches, one after the other.
    fn send_all(&self, given: &Given, failing: &mut bool) {
        let mut spans = &given.spans[..];
        while !spans.is_empty() {
            let ends = spans.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
            let end = ends.take(SPANS_PER_BATCH).last().unwrap_or(spans.len());
            let (batch, rest) = spans.split_at(end);
            spans = rest;
            let sent = self.send(&given.config, batch);
            let refused = *sent.as_ref().unwrap_or(&count(batch));
            self.waiting.fetch_sub(count(batch), Ordering::Relaxed);
            if self.queue.is_closed() {
                // The event loop has ended: spans lost from now on are counted by `finish`.
                self.dropped.fetch_add(refused, Ordering::Relaxed);
                continue;
            }
            let lost = refused + self.dropped.swap(0, Ordering::Relaxed);
            let is_news = std::mem::replace(failing, sent.is_err()) != sent.is_err();
            if lost > 0 || is_news {
                let news = is_news.then_some(sent.map(|_| ()));
                // A full mailbox means that the event loop has ended.
                let _ = self.mailbox.send(ReactorMessage::Notice(Notice::Spans(lost, news)));
            }
        }
    }

    /// Sends one batch. Returns how many spans the collector refused, or an error if it refused the batch.
    fn send(&self, config: &Config, batch: &[u8]) -> Result<u64, String> {
        let mut tries = 0;
        loop {
            // Without a collector, no spans are created.
            let Some(collector) = &config.telemetry.collector else { return Ok(0) };
            let security = self.security.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let more = config.telemetry.headers.iter().map(|header| (&*header.name, header.value.expose()));
            let more: Vec<(&str, &str)> = more.collect();
            let request = request(collector, "POST", &collector.path, &more, &envelope(batch));
            let answer = send(collector, &Asker::within(&security, SPANS_ANSWER), &request);
            tries += 1;
            let (why, again) = match answer {
                Ok(answer) if (200..300).contains(&answer.status) => return Ok(refused(&answer).min(count(batch))),
                Ok(answer) => (format!("status {}", answer.status), again_after(&answer)),
                Err(why @ (NoAnswer::Name | NoAnswer::Refused(_) | NoAnswer::Unreachable(..))) => {
                    (why.words().to_string(), Some(AGAIN))
                }
                Err(why) => (why.words().to_string(), None),
            };
            let Some(wait) = again.filter(|_| tries < SPANS_TRIES) else { return Err(why) };
            let mut left = wait * (1 << (tries - 1));
            while !left.is_zero() {
                if self.queue.is_closed() {
                    return Err(why);
                }
                std::thread::sleep(LOOK);
                left = left.saturating_sub(LOOK);
            }
        }
    }
}

/// Name of this host or container. It needs no escapes: other characters are removed.
pub(super) fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().split(|c: char| !c.is_ascii_graphic() || c == '"' || c == '\\').next().unwrap_or_default().to_string()
}

/// Wraps spans in an OTLP request.
fn envelope(spans: &[u8]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let mut body = Vec::with_capacity(spans.len() + 512);
    body.extend_from_slice(b"{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    let instance = [&*host_name(), ":", &std::process::id().to_string()].concat();
    for (name, value) in
        [("service.name", "tollgate"), ("service.version", version), ("service.instance.id", &instance)]
    {
        json::item(&mut body);
        for part in ["{\"key\":\"", name, "\",\"value\":{\"stringValue\":\"", value, "\"}}"] {
            body.extend_from_slice(part.as_bytes());
        }
    }
    for part in ["]},\"scopeSpans\":[{\"scope\":{\"name\":\"tollgate\",\"version\":\"", version, "\"},\"spans\":["] {
        body.extend_from_slice(part.as_bytes());
    }
    for span in spans.split(|byte| *byte == b'\n').filter(|span| !span.is_empty()) {
        json::item(&mut body);
        body.extend_from_slice(span);
    }
    body.extend_from_slice(b"]}]}]}");
    body
}

/// Number of spans that the collector refused in an accepted batch.
fn refused(answer: &HttpResponse) -> u64 {
    if !answer.whole || json::check(&answer.body).is_err() {
        return 0;
    }
    let partial = Raw::new(&answer.body).get("partialSuccess");
    let count =
        partial.filter(|partial| partial.kind() == ValueKind::Object).and_then(|partial| partial.get("rejectedSpans"));
    // In the JSON of protocol buffers, a 64-bit number is a string or a number.
    count.and_then(|count| count.count().or_else(|| count.text()?.parse().ok())).unwrap_or(0)
}

/// Pause before a refused batch may be sent again; `None` if it must not be.
fn again_after(answer: &HttpResponse) -> Option<Duration> {
    let said =
        values(&answer.head, "retry-after").next().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    let wait = said.map_or(AGAIN, Duration::from_secs).min(SPANS_AGAIN_MAX);
    matches!(answer.status, 429 | 502..=504).then_some(wait)
}
