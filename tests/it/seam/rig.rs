//! Many clients of one gateway in memory: keys `k0`, `k1`, …, clients named by their connection, and a check of the
//! bound on buffered bytes after every step.

use crate::scripts::world::{Cut, World};
use crate::support::setting::{KeyRing, Setting};
use crate::support::world::Driver;
use tollgate::base::seam::Core;
use tollgate::gateway::Start;
use tollgate::policy::config::{Config, Reach};

/// Value of `max_buffered`. One key may use a quarter.
pub const BUDGET: usize = 1 << 20;
/// Head of a provider's stream.
pub const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A gateway with its world, as described above.
pub struct Rig {
    pub world: World,
    pub keys: KeyRing,
    pub config: Config,
    /// Largest number of bytes seen buffered.
    pub most: usize,
}

impl Rig {
    /// Returns a rig with this number of keys, buffers of [`BUDGET`], bodies up to a quarter of that, and answers up to
    /// 128 KiB.
    pub fn new(keys: usize) -> Rig {
        Rig::with(keys, &[])
    }

    /// Returns a rig with some lines of the configuration changed. If they define a group, all keys belong to it.
    pub fn with(keys: usize, lines: &[(&str, &str)]) -> Rig {
        Rig::at(keys, lines, None)
    }

    /// Returns a rig with a key for each of these groups, which the lines define; a key without a group for `""`.
    pub fn owned(groups: &[&str], lines: &[(&str, &str)]) -> Rig {
        Rig::made(groups, lines, None)
    }

    /// Returns a rig with an admin listener of this reach.
    pub fn at(keys: usize, lines: &[(&str, &str)], admin: Option<Reach>) -> Rig {
        let in_group = lines.iter().find_map(|(section, _)| section.strip_prefix("group "));
        Rig::made(&vec![in_group.unwrap_or_default(); keys], lines, admin)
    }

    fn made(groups: &[&str], lines: &[(&str, &str)], admin: Option<Reach>) -> Rig {
        let (mut setting, mut ring) = (Setting::default(), KeyRing::default());
        let own = [
            ("server", "max_body = \"256KiB\""),
            ("server", "max_buffered = \"1MiB\""),
            ("upstream", "max_response = \"128KiB\""),
            ("plan team", "tokens = 0"),
            ("plan team", "requests = 0"),
        ];
        own.iter().chain(lines).for_each(|(section, line)| setting.set(section, line));
        for (number, group) in groups.iter().enumerate() {
            let word = format!("group={group}");
            let words: &[&str] = if group.is_empty() { &[] } else { &[&word] };
            ring.issue(&format!("k{number}"), words);
        }
        let start = Start { keys: ring.records.clone().into(), admin, ..Start::default() };
        Rig { world: World::new(setting.high(), start, Cut::Whole), keys: ring, config: setting.high(), most: 0 }
    }

    /// Connects the client if necessary, and sends bytes from it.
    pub fn send(&mut self, client: &str, bytes: impl AsRef<[u8]>) {
        if !self.world.ends.contains_key(client) {
            self.world.connect(client, false).unwrap();
        }
        self.give(client, bytes);
    }

    /// Sends bytes to the gateway over an existing connection. They are lost if it has been closed.
    pub fn give(&mut self, label: &str, bytes: impl AsRef<[u8]>) {
        if self.world.end(label).unwrap().closed.is_none() {
            self.world.send(label, bytes.as_ref()).unwrap();
        }
        self.holds();
    }

    /// Advances the clock.
    pub fn wait(&mut self, millis: u64) {
        self.world.advance(millis * 1000).unwrap();
        self.holds();
    }

    /// Lets the client read again.
    pub fn read(&mut self, client: &str) {
        self.world.end(client).unwrap().reads = true;
        self.world.settle().unwrap();
        self.holds();
    }

    /// Checks the invariants that hold at every moment.
    pub fn holds(&mut self) {
        let buffered = self.world.gateway.vitals().buffered;
        self.most = self.most.max(buffered);
        let budget = self.config.server.max_buffered;
        assert!(buffered <= budget, "{buffered} bytes are buffered, of {budget}");
    }

    /// True if new clients are accepted.
    pub fn is_open(&self) -> bool {
        self.world.gateway.wants_clients(0)
    }

    /// Returns all bytes that a client has received.
    pub fn got(&self, client: &str) -> String {
        String::from_utf8_lossy(&self.world.ends[client].all).into_owned()
    }

    /// Returns the status that a client has received; 0 for none yet.
    pub fn status(&self, client: &str) -> u16 {
        self.got(client).get(9..12).map_or(0, |status| status.parse().unwrap())
    }

    /// Returns the provider connections that have received a complete request and have not answered it with
    /// [`Rig::answer`].
    pub fn asked(&self) -> Vec<String> {
        let asked = self.world.ends.iter().filter(|(label, end)| {
            let whole = || body_is_whole(&end.got);
            label.starts_with('u') && end.closed.is_none() && whole()
        });
        asked.map(|(label, _)| label.clone()).collect()
    }

    /// Answers the request on a provider connection.
    pub fn answer(&mut self, label: &str, bytes: &str) {
        self.world.end(label).unwrap().got.clear();
        self.give(label, bytes);
    }
}

/// Returns true if the bytes contain a complete request.
fn body_is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]);
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    bytes.len() - end - 4 >= length.unwrap_or(0)
}

/// Returns head and body of a chat request whose body has exactly `length` bytes.
pub fn request(key: &str, length: usize, stream: bool) -> (String, String) {
    let start = format!("{{\"model\":\"small\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"");
    let end = "\"}]}";
    let body = format!("{start}{}{end}", "a".repeat(length - start.len() - end.len()));
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
    );
    (head, body)
}

/// Returns a complete answer of a provider as sent over the wire, slightly more than `size` bytes long.
pub fn large_answer(size: usize) -> String {
    let body = format!(
        "{{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"up-small\",\"choices\":[{{\"message\":{{\"content\":\"\"}}}}],\"usage\":\
         {{\"prompt_tokens\":60,\"completion_tokens\":40,\"total_tokens\":100}},\"pad\":\"{}\"}}",
        "b".repeat(size)
    );
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Returns a chunk with this event.
pub fn event(text: &str) -> String {
    let event = format!(
        "data: {{\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"up-small\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
    );
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// Returns the end of a stream.
pub fn stream_end() -> String {
    let event = "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"up-small\",\"choices\":[{\"index\":0,\
                 \"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    format!("{:x}\r\n{event}\r\n0\r\n\r\n", event.len())
}
