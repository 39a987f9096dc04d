//! Capture of the traffic of keys for debugging: what is kept of a request until it has ended.
//!
//! Owns the bounds of memory. What is kept has credentials: `cli::serve::capture_line` stars them when a helper thread
//! writes the request, since that takes long.

use crate::base::buf::{Charge, Pool};
use crate::base::time::{Mono, Now, Unix};
use crate::gateway::client::response::RequestId;
use crate::policy::keys::KeyId;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks whether a capture has ended: the clock may be set meanwhile.
const CAPTURE_LOOK: Duration = Duration::from_secs(60);
/// Bytes of the body of a captured request or answer; the rest is left out and counted.
const CAPTURE_PART_MAX: usize = 4 << 20;
/// Requests to providers that are kept of one captured request.
const CAPTURE_SENT_MAX: usize = 8;

/// The part of the buffers that captures may take, as a divisor. They take it only while half of the buffers is free.
const SHARE: usize = 8;
/// Bytes of memory for each byte that is kept: its buffer may have grown to twice its length, and so may its text.
const FACTOR: usize = 4;

/// Time without a lost request after which a capture has recovered. During a flood, some requests are written.
const RECOVERY: Duration = Duration::from_secs(5);

/// The account of all captures.
#[derive(Debug)]
pub(crate) struct Captures {
    charge: Charge,
    running: Vec<RunningCapture>,
    /// Time at which the next one may have ended; `NEVER` if there is none.
    pub(crate) due: Mono,
}

impl Default for Captures {
    fn default() -> Captures {
        Captures { charge: Charge::default(), running: Vec::new(), due: Mono::NEVER }
    }
}

/// A key whose traffic is captured.
#[derive(Debug)]
struct RunningCapture {
    key: KeyId,
    until: Unix,
    /// Requests that were not written since the capture last recovered, and the time of the last one.
    lost: u64,
    lost_at: Mono,
}

/// Change of a key's capture, for the log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CaptureChange {
    /// The capture runs until this time.
    On(Unix),
    /// An administrator has ended the capture.
    Off,
    /// The time of the capture is over.
    Ended,
}

/// Change in the state of the captures, for the log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CaptureNews {
    /// Requests are lost from now on.
    Failed,
    /// Requests are written again; the number of those lost.
    Recovered(u64),
}

impl Captures {
    /// Bytes charged to the buffers.
    pub(crate) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Takes memory for at most `wanted` bytes of a head or of a body. Returns the bytes that may be kept.
    fn take(&mut self, wanted: usize, is_body: bool, pool: &mut Pool) -> usize {
        let spare = pool.room().saturating_sub(pool.capacity() / 2);
        let share = pool.capacity() / SHARE;
        // Bodies are cut so that heads fit: without its heads a request is lost.
        let most = if is_body { share - share / 4 } else { share };
        let left = most.saturating_sub(self.charge.bytes());
        let taken = wanted.min(spare.min(left) / FACTOR);
        self.charge.set(pool, self.charge.bytes() + taken * FACTOR);
        taken
    }

    /// Appends the bytes that may be kept; returns their number.
    #[inline(never)]
    fn keep(&mut self, bytes: &[u8], is_body: bool, into: &mut Vec<u8>, pool: &mut Pool) -> usize {
        let taken = self.take(bytes.len(), is_body, pool);
        into.extend_from_slice(&bytes[..taken]);
        taken
    }

    /// Releases the memory of a request with `bytes` bytes.
    pub(crate) fn release(&mut self, bytes: usize, pool: &mut Pool) {
        self.charge.set(pool, self.charge.bytes().saturating_sub(bytes * FACTOR));
    }

    /// Records that a request of a key was written, or that it is lost.
    pub(crate) fn ended(&mut self, key: &KeyId, written: bool, now: Mono) -> Option<CaptureNews> {
        // A request may be written after its capture has ended.
        let Some(one) = self.running.iter_mut().find(|one| one.key == *key) else {
            return (!written).then_some(CaptureNews::Failed);
        };
        if written {
            let has_recovered = one.lost > 0 && now >= one.lost_at.after(RECOVERY);
            return has_recovered.then(|| CaptureNews::Recovered(std::mem::take(&mut one.lost)));
        }
        (one.lost, one.lost_at) = (one.lost + 1, now);
        (one.lost == 1).then_some(CaptureNews::Failed)
    }

    /// Sets the end of a key's capture; `None` if there is none. Returns the change, if it is one.
    pub(crate) fn set(&mut self, key: &KeyId, until: Option<Unix>, now: Now) -> Option<CaptureChange> {
        let at = self.running.iter().position(|one| one.key == *key);
        let change = match (at, until) {
            (None, None) => return None,
            (Some(at), Some(until)) if self.running[at].until == until => return None,
            (Some(at), None) if self.running.swap_remove(at).until <= now.unix => CaptureChange::Ended,
            (Some(_), None) => CaptureChange::Off,
            (Some(at), Some(until)) => {
                self.running[at].until = until;
                CaptureChange::On(until)
            }
            (None, Some(until)) => {
                self.running.push(RunningCapture { key: *key, until, lost: 0, lost_at: Mono(0) });
                CaptureChange::On(until)
            }
        };
        self.arm(now);
        Some(change)
    }

    /// Returns a key whose capture has ended by itself, once.
    pub(crate) fn over(&mut self, now: Now) -> Option<KeyId> {
        let over = self.running.iter().position(|one| one.until <= now.unix);
        let key = over.map(|at| self.running.swap_remove(at).key);
        self.arm(now);
        key
    }

    /// The keys whose traffic is captured, with the ends.
    pub(crate) fn running(&self, now: Unix) -> impl Iterator<Item = (KeyId, Unix)> {
        self.running.iter().filter(move |one| now < one.until).map(|one| (one.key, one.until))
    }

    fn arm(&mut self, now: Now) {
        let next = self.running.iter().map(|one| one.until).min();
        let wait = next.map(|until| Duration::from_millis(until.0.saturating_sub(now.unix.0)));
        // The clock may be set meanwhile.
        self.due = wait.map_or(Mono::NEVER, |wait| now.mono.after(wait.min(CAPTURE_LOOK)));
    }
}

/// Head and body of a message, as far as they are kept.
#[derive(Debug, Default)]
pub struct CapturedMessage {
    /// The first line and the headers.
    pub head: Vec<u8>,
    /// The body; empty for a form.
    pub body: Vec<u8>,
    /// Bytes of the body that are not kept.
    pub left_out: u64,
    /// True if the body is a form, of which nothing is kept.
    pub is_form: bool,
}

/// A captured request.
#[derive(Debug)]
pub struct Captured {
    /// The key of the request.
    pub key: KeyId,
    id: RequestId,
    /// Arrival of the request.
    pub received_at: Unix,
    /// The client's request.
    pub received: CapturedMessage,
    /// Requests to providers, each with its target.
    pub sent: Vec<(Arc<str>, CapturedMessage)>,
    /// The response to the client.
    pub answer: CapturedMessage,
    /// Beginning of the gateway's keys.
    pub prefix: String,
    /// Names of the headers in which the configuration has a credential.
    pub secret_headers: Vec<String>,
    kept: usize,
    /// A head found no memory: the request is not written.
    is_lost: bool,
}

impl Captured {
    /// Returns a request at its start. `prefix`: the beginning of the gateway's keys.
    pub(crate) fn new(key: KeyId, id: RequestId, received_at: Unix, prefix: &str) -> Captured {
        Captured {
            key,
            id,
            received_at,
            received: CapturedMessage::default(),
            sent: Vec::new(),
            answer: CapturedMessage::default(),
            prefix: prefix.to_owned(),
            secret_headers: Vec::new(),
            kept: 0,
            is_lost: false,
        }
    }

    /// The id of the request.
    pub fn id(&self) -> &[u8] {
        self.id.text()
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// True if the request cannot be written.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Keeps the head of the client's request.
    pub(crate) fn received(&mut self, head: &[u8], is_form: bool, room: (&mut Captures, &mut Pool)) {
        self.received.is_form = is_form;
        self.kept += room.0.keep(head, false, &mut self.received.head, room.1);
        self.is_lost |= self.received.head.len() < head.len();
    }

    /// Keeps more of the client's body.
    pub(crate) fn body(&mut self, bytes: &[u8], (captures, pool): (&mut Captures, &mut Pool)) {
        self.kept += self.received.push(bytes, captures, pool);
    }

    /// Begins a request to a provider with this complete head. `names`: headers that carry a credential.
    pub(crate) fn sends<'a>(
        &mut self,
        target: &Arc<str>,
        head: &[u8],
        names: impl Iterator<Item = &'a str>,
        is_form: bool,
        (captures, pool): (&mut Captures, &mut Pool),
    ) {
        if self.sent.len() == CAPTURE_SENT_MAX {
            return;
        }
        self.secret_headers.extend(names.map(str::to_ascii_lowercase));
        let mut message = CapturedMessage { is_form, ..CapturedMessage::default() };
        self.kept += captures.keep(head, false, &mut message.head, pool);
        self.is_lost |= message.head.len() < head.len();
        self.sent.push((target.clone(), message));
    }

    /// Keeps more of the body that is sent to a provider.
    pub(crate) fn sent(&mut self, bytes: &[u8], (captures, pool): (&mut Captures, &mut Pool)) {
        if let Some((_, message)) = self.sent.last_mut() {
            self.kept += message.push(bytes, captures, pool);
        }
    }

    /// Keeps more of the answer as the client gets it.
    pub(crate) fn answer(&mut self, head: &[u8], body: &[u8], (captures, pool): (&mut Captures, &mut Pool)) {
        let taken = captures.keep(head, false, &mut self.answer.head, pool);
        self.is_lost |= taken < head.len();
        self.kept += taken + self.answer.push(body, captures, pool);
    }
}

impl CapturedMessage {
    /// Keeps more of the body, as far as the bounds allow. Returns the number of bytes.
    #[cold]
    #[inline(never)]
    fn push(&mut self, bytes: &[u8], captures: &mut Captures, pool: &mut Pool) -> usize {
        let fits = bytes.len().min(CAPTURE_PART_MAX.saturating_sub(self.body.len()));
        // After a gap nothing more is kept: the text would read as if there were none.
        let fits = if self.is_form || self.left_out > 0 { 0 } else { fits };
        let taken = captures.keep(&bytes[..fits], true, &mut self.body, pool);
        self.left_out += (bytes.len() - taken) as u64;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn captured() -> Captured {
        let id = RequestId::fresh(&mut Rng::from_u64(1));
        Captured::new(KeyId::parse("0123456789ab").unwrap(), id, Unix(0), "tg_")
    }

    #[test]
    fn form_is_counted_and_not_kept() {
        let (mut captures, mut pool) = (Captures::default(), Pool::new(1 << 20));
        let mut one = captured();
        one.received(b"POST / HTTP/1.1\r\n\r\n", true, (&mut captures, &mut pool));
        for piece in [&b"--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nRIFF"[..], b"\r\n--b--\r\n"] {
            one.body(piece, (&mut captures, &mut pool));
        }
        assert_eq!((one.received.body.len(), one.received.left_out), (0, 65));
    }

    #[test]
    fn captures_take_an_eighth_of_free_buffers_and_give_it_back() {
        let (mut captures, mut pool) = (Captures::default(), Pool::new(1 << 20));
        let mut one = captured();
        one.received(b"POST / HTTP/1.1\r\n\r\n", false, (&mut captures, &mut pool));
        one.body("\u{fc}".repeat(1 << 19).as_bytes(), (&mut captures, &mut pool));
        one.answer(b"", b"answer", (&mut captures, &mut pool));
        assert!(pool.lent() <= (1 << 20) / SHARE && one.kept() * FACTOR == pool.lent() && !one.is_lost());
        let body = one.received.body.len();
        assert!(body > 10_000 && body + one.received.left_out as usize == 1 << 20);
        one.answer(b"HTTP/1.1 200 OK\r\n\r\n", b"", (&mut captures, &mut pool));
        assert_eq!((one.answer.left_out, one.is_lost()), (6, false), "heads have room that bodies do not take");
        let mut two = captured();
        two.received(&[b'x'; (1 << 20) / SHARE], false, (&mut captures, &mut pool));
        assert!(two.is_lost(), "nothing is left for its head");
        captures.release(one.kept(), &mut pool);
        captures.release(two.kept(), &mut pool);
        assert_eq!(pool.lent(), 0);
        pool.promise(pool.capacity() / 2);
        assert_eq!(captures.take(1, false, &mut pool), 0, "requests come first");
    }

    #[test]
    fn first_loss_and_the_recovery_are_news() {
        let (mut captures, now) = (Captures::default(), Now { mono: Mono(0), unix: Unix(0) });
        let [one, other, third] = ["AAAAAAAAAAAA", "BBBBBBBBBBBB", "CCCCCCCCCCCC"].map(|id| KeyId::parse(id).unwrap());
        for key in [one, other] {
            assert_eq!(captures.set(&key, Some(Unix(1)), now), Some(CaptureChange::On(Unix(1))));
        }
        // Another key's file says nothing of this one's.
        let mut ended = |written, seconds: u64| {
            let now = Mono(seconds * 1_000_000);
            assert_eq!(captures.ended(&other, true, now), None);
            captures.ended(&one, written, now)
        };
        assert_eq!([ended(true, 0), ended(false, 1), ended(false, 2)], [None, Some(CaptureNews::Failed), None]);
        // During a flood, requests are lost and written by turns.
        assert_eq!([ended(true, 3), ended(false, 4), ended(true, 8)], [None; 3]);
        assert_eq!([ended(true, 9), ended(true, 20)], [Some(CaptureNews::Recovered(3)), None]);
        let late = [true, false, false].map(|written| captures.ended(&third, written, Mono(0)));
        assert_eq!(late, [None, Some(CaptureNews::Failed), Some(CaptureNews::Failed)]);
    }

    #[test]
    fn end_of_a_capture_is_due_by_the_wall_clock() {
        let at = |mono: u64, unix: u64| Now { mono: Mono(mono), unix: Unix(unix) };
        let [one, other] = ["AAAAAAAAAAAA", "BBBBBBBBBBBB"].map(|id| KeyId::parse(id).unwrap());
        let mut captures = Captures::default();
        assert_eq!((captures.set(&one, None, at(0, 0)), captures.due), (None, Mono::NEVER));
        captures.set(&one, Some(Unix(5_000)), at(0, 1_000));
        captures.set(&other, Some(Unix(3_000)), at(0, 1_000));
        assert_eq!((captures.set(&one, Some(Unix(5_000)), at(0, 1_000)), captures.due), (None, Mono(2_000_000)));
        // The clock was set back.
        assert_eq!((captures.over(at(2_000_000, 2_500)), captures.due), (None, Mono(2_500_000)));
        assert_eq!((captures.over(at(2_500_000, 3_000)), captures.due), (Some(other), Mono(4_500_000)));
        assert_eq!(captures.running(Unix(3_000)).collect::<Vec<_>>(), [(one, Unix(5_000))]);
        assert_eq!(captures.running(Unix(5_000)).count(), 0);
        assert_eq!(captures.set(&one, None, at(3_000_000, 3_500)), Some(CaptureChange::Off));
        captures.set(&one, Some(Unix(5_000)), at(3_000_000, 3_500));
        assert_eq!(captures.set(&one, None, at(9_000_000, 5_000)), Some(CaptureChange::Ended));
        assert_eq!((captures.over(at(9_000_000, 9_000)), captures.due), (None, Mono::NEVER));
        // The clock is set past the end of a long capture.
        captures.set(&one, Some(Unix(3_600_000)), at(0, 0));
        assert_eq!(captures.due, Mono(0).after(CAPTURE_LOOK));
        let jumped = Now { mono: captures.due, unix: Unix(3_600_000) };
        assert_eq!((captures.over(jumped), captures.due), (Some(one), Mono::NEVER));
    }
}
